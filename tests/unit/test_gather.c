/* SPDX-License-Identifier: MIT
 *
 * What a gather reads: the documented example, every layout, lengths and totals, offsets inside
 * blocks, tables whose unread entries hold garbage; and what it refuses.
 */
#include "calls.h"
#include "contexts.h"

#include <stdlib.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static uint64_t seed;

enum { MAX_SEQS = 5, MAX_WIDTH = 7 };

/* The indices of one call, as numbers. */
struct draw {
    int64_t num_seqs;
    int64_t width;
    int64_t lengths[MAX_SEQS];
    int64_t offsets[MAX_SEQS];
    int64_t table[MAX_SEQS * MAX_WIDTH];
    int64_t num_tokens;
    int cumulative;
    int has_offsets;
    int32_t dtype;
};

static const int64_t garbage[] = {-1, INT32_MAX, INT32_MIN, 1000000, -77};

/* Every entry that no token needs holds garbage. */
static struct draw draw_indices(struct test_rng *rng, int64_t num_blocks, int64_t block_size) {
    struct draw it = {.num_seqs = test_rng_between(rng, 0, MAX_SEQS),
                      .width = test_rng_between(rng, 1, MAX_WIDTH),
                      .cumulative = (int)test_rng_below(rng, 2),
                      .has_offsets = (int)test_rng_below(rng, 3) > 0,
                      .dtype = test_rng_below(rng, 2) ? PKV_DTYPE_I32 : PKV_DTYPE_I64};

    for (int64_t b = 0; b < it.num_seqs; b++) {
        int64_t room = it.width * block_size;
        int64_t offset = it.has_offsets ? test_rng_below(rng, room + 1) : 0;
        int64_t length = test_rng_below(rng, room - offset + 1);

        it.offsets[b] = offset;
        it.lengths[b] = test_rng_below(rng, 5) == 0 ? 0 : length;
        it.num_tokens += it.lengths[b];
        for (int64_t i = 0; i < it.width; i++) {
            int is_read = it.lengths[b] > 0 && i >= offset / block_size &&
                          i <= (offset + it.lengths[b] - 1) / block_size;

            it.table[b * it.width + i] =
                is_read ? test_rng_below(rng, num_blocks) : garbage[test_rng_below(rng, 5)];
        }
    }
    return it;
}

struct index_tensors {
    struct model_index table;
    struct model_index lengths;
    struct model_index offsets;
    struct gather_indices from;
};

static void make_tensors(struct index_tensors *to, const struct draw *it) {
    int64_t totals[MAX_SEQS + 1] = {0};
    int64_t num_totals = it->num_seqs + 1;

    for (int64_t b = 0; b < it->num_seqs; b++) {
        totals[b + 1] = totals[b] + it->lengths[b];
    }
    to->table = model_index_make(it->dtype, 2, (int64_t[]){it->num_seqs, it->width}, it->table);
    to->lengths = it->cumulative ? model_index_make(it->dtype, 1, &num_totals, totals)
                                 : model_index_make(PKV_DTYPE_I32, 1, &it->num_seqs, it->lengths);
    to->offsets = model_index_make(PKV_DTYPE_I64, 1, &it->num_seqs, it->offsets);
    to->from = (struct gather_indices){.block_table = &to->table.tensor,
                                       .seq_lens = &to->lengths.tensor,
                                       .seq_offsets = it->has_offsets ? &to->offsets.tensor : NULL,
                                       .cumulative = it->cumulative};
}

static void free_tensors(struct index_tensors *it) {
    model_index_free(&it->table);
    model_index_free(&it->lengths);
    model_index_free(&it->offsets);
}

static void ref_gather_all(const struct model_part *part, struct model_rows *rows,
                           const struct draw *it) {
    int64_t row = 0;

    for (int64_t b = 0; b < it->num_seqs; b++) {
        ref_gather(&part->ref, part->shadow, &rows->ref, rows->shadow, row,
                   it->table + b * it->width, it->offsets[b], it->lengths[b]);
        row += it->lengths[b];
    }
}

/* The rows must be what the reference reads, gaps between them must stay, so must the cache. */
static void expect_gather(struct pkv_context *context, const struct model_sizes *sizes,
                          const struct draw *it, enum model_rows_kind kind, int way,
                          struct test_rng *rng) {
    struct model_cache cache = model_cache_make(sizes, rng);
    struct model_rows key = model_rows_make(kind, &cache.key, it->num_tokens, sizes->side, rng);
    struct model_rows value = {0};
    struct index_tensors tensors;

    make_tensors(&tensors, it);
    test_guard_protect(&tensors.table.memory);
    test_guard_protect(&tensors.lengths.memory);
    for (int i = 0; i < cache.num_memories; i++) {
        test_guard_protect(&cache.memories[i]);
    }
    ref_gather_all(&cache.key, &key, it);
    if (cache.has_value) {
        value = model_rows_make((kind + 1) % MODEL_ROWS_NUM_KINDS, &cache.value, it->num_tokens,
                                sizes->side, rng);
        ref_gather_all(&cache.value, &value, it);
    }
    CHECK_OK(call_gather(context, &cache, &tensors.from, &key, cache.has_value ? &value : NULL, way,
                         rng, &error),
             &error);
    assert_true(model_rows_are_as_expected(&key));
    if (cache.has_value) {
        assert_true(model_rows_are_as_expected(&value));
        model_rows_free(&value);
    }
    model_rows_free(&key);
    free_tensors(&tensors);
    model_cache_free(&cache);
}

static struct model_sizes plain_sizes(void) {
    return (struct model_sizes){.key_dtype = PKV_DTYPE_BF16,
                                .value_dtype = PKV_DTYPE_BF16,
                                .num_blocks = 6,
                                .block_size = 4,
                                .num_heads = 2,
                                .key_head_size = 64,
                                .value_head_size = 32};
}

static struct draw documented(int cumulative) {
    return (struct draw){.num_seqs = 2,
                         .width = 2,
                         .lengths = {2, 3},
                         .offsets = {2, 0},
                         .table = {3, 1, 0, 2},
                         .num_tokens = 5,
                         .cumulative = cumulative,
                         .has_offsets = 1,
                         .dtype = PKV_DTYPE_I32};
}

/* Block 1 rows 0 and 1, then block 0 rows 0 and 1 and block 2 row 0, spelled out. */
static void documented_example(void **state) {
    uint8_t storage[4 * 2];
    uint8_t out[5] = {0};
    static const uint8_t expected[5] = {10, 11, 0, 1, 20};
    int32_t table[] = {3, 1, 0, 2};
    int32_t totals[] = {0, 2, 5};
    int32_t lengths[] = {2, 3};
    int32_t offsets[] = {2, 0};
    struct pkv_tensor cache = pkv_tensor_make(storage, PKV_DTYPE_U8, 4, (int64_t[]){4, 2, 1, 1});
    struct pkv_tensor tables = pkv_tensor_make(table, PKV_DTYPE_I32, 2, (int64_t[]){2, 2});
    struct pkv_tensor sums = pkv_tensor_make(totals, PKV_DTYPE_I32, 1, (int64_t[]){3});
    struct pkv_tensor lens = pkv_tensor_make(lengths, PKV_DTYPE_I32, 1, (int64_t[]){2});
    struct pkv_tensor starts = pkv_tensor_make(offsets, PKV_DTYPE_I32, 1, (int64_t[]){2});
    struct pkv_tensor key = pkv_tensor_make(out, PKV_DTYPE_U8, 3, (int64_t[]){5, 1, 1});
    struct pkv_gather_pa_kv_cache_options plain = {.seq_lens_are_plain = 1};

    (void)state;
    for (int i = 0; i < 8; i++) {
        storage[i] = (uint8_t)(i / 2 * 10 + i % 2);
    }
    for (int i = 0; i < contexts.count; i++) {
        memset(out, 0, sizeof(out));
        CHECK_OK(pkv_gather_pa_kv_cache(contexts.all[i], &cache, NULL, &tables, &sums, &key, NULL,
                                        &starts, NULL, &error),
                 &error);
        assert_memory_equal(out, expected, 5);
        memset(out, 0, sizeof(out));
        CHECK_OK(pkv_gather_pa_kv_cache(contexts.all[i], &cache, NULL, &tables, &lens, &key, NULL,
                                        &starts, &plain, &error),
                 &error);
        assert_memory_equal(out, expected, 5);
    }
}

static void every_layout_and_way(void **state) {
    struct test_rng rng = test_rng_make(seed);

    (void)state;
    for (int32_t layout = 0; layout < REF_NUM_LAYOUTS * REF_NUM_LAYOUTS; layout++) {
        for (int i = 0; i < contexts.count; i++) {
            struct model_sizes sizes = plain_sizes();
            struct draw it = draw_indices(&rng, sizes.num_blocks, sizes.block_size);

            sizes.key_layout = layout % REF_NUM_LAYOUTS;
            sizes.value_layout = layout / REF_NUM_LAYOUTS;
            sizes.padded = i & 1;
            sizes.interleaved = (i >> 1) & 1;
            sizes.nz_5d = (i >> 2) & 1;
            sizes.side = (i >> 1) & 1 ? TEST_GUARD_START : TEST_GUARD_END;
            if (it.num_seqs > 0) {
                expect_gather(contexts.all[i], &sizes, &it, i % MODEL_ROWS_NUM_KINDS, i % 9 - 1,
                              &rng);
            }
        }
    }
}

static void every_dtype(void **state) {
    struct test_rng rng = test_rng_make(seed + 1);

    (void)state;
    for (int32_t dtype = PKV_DTYPE_F32; dtype <= PKV_DTYPE_F8_E4M3FN; dtype++) {
        for (int64_t head_size = 1; head_size < 130; head_size += 9) {
            struct model_sizes sizes = plain_sizes();
            struct draw it = documented((int)head_size & 1);

            sizes.key_dtype = sizes.value_dtype = dtype;
            sizes.key_head_size = head_size;
            sizes.value_head_size = 130 - head_size;
            sizes.block_size = 2;
            expect_gather(contexts.all[(dtype + head_size) % contexts.count], &sizes, &it,
                          MODEL_ROWS_PACKED, (int)head_size % 5 - 1, &rng);
        }
    }
}

static void a_large_gather_goes_to_the_threads(void **state) {
    struct test_rng rng = test_rng_make(seed + 2);
    struct model_sizes sizes = plain_sizes();
    struct draw it = {.num_seqs = 3,
                      .width = 7,
                      .lengths = {400, 1, 447},
                      .offsets = {48, 77, 1},
                      .num_tokens = 848,
                      .has_offsets = 1,
                      .dtype = PKV_DTYPE_I64};

    (void)state;
    sizes.block_size = 64;
    sizes.key_head_size = 128;
    sizes.value_head_size = 128;
    sizes.num_blocks = 9;
    for (int i = 0; i < 21; i++) {
        it.table[i] = test_rng_below(&rng, 9);
    }
    for (int i = 0; i < contexts.count; i++) {
        sizes.key_layout = i % REF_NUM_LAYOUTS;
        expect_gather(contexts.all[i], &sizes, &it, MODEL_ROWS_PACKED, i % 9 - 1, &rng);
    }
}

/* Threads that run the parts side by side must not write the same row. */
static void each_row_belongs_to_one_part(void **state) {
    struct test_rng rng = test_rng_make(seed + 4);
    struct model_sizes sizes = plain_sizes();
    struct draw it = documented(0);
    struct pkv_gather_plan *plan = NULL;
    struct pkv_step *step = make_step(0, 2);
    struct pkv_step_indices indices = {0};
    struct model_cache model;
    struct model_rows key, value;
    struct index_tensors tensors;
    struct pkv_cache cache;

    (void)state;
    sizes.block_size = 2;
    model = model_cache_make(&sizes, &rng);
    key = model_rows_make(MODEL_ROWS_PACKED, &model.key, 5, TEST_GUARD_END, &rng);
    value = model_rows_make(MODEL_ROWS_PACKED, &model.value, 5, TEST_GUARD_END, &rng);
    make_tensors(&tensors, &it);
    indices.block_table = tensors.table.tensor;
    indices.seq_lens = tensors.lengths.tensor;
    indices.seq_offsets = tensors.offsets.tensor;
    CHECK_OK(init_cache(&cache, &model, &error), &error);
    CHECK_OK(pkv_gather_plan_create(&plan, contexts.all[0], &cache, &error), &error);
    CHECK_OK(pkv_step_set(contexts.all[0], step, &cache, &indices, &error), &error);
    for (int64_t num_parts = 1; num_parts <= 8; num_parts++) {
        int writers[5] = {0};

        for (int64_t part = 0; part < num_parts; part++) {
            memcpy(key.memory.data, key.shadow, key.memory.bytes);
            CHECK_OK(pkv_gather_run_part(contexts.all[0], plan, step, &cache, &key.tensor,
                                         &value.tensor, part, num_parts, &error),
                     &error);
            for (int64_t row = 0; row < 5; row++) {
                size_t bytes = key.memory.bytes / 5;

                writers[row] += memcmp((char *)key.memory.data + (size_t)row * bytes,
                                       key.shadow + (size_t)row * bytes, bytes) != 0;
            }
        }
        for (int row = 0; row < 5; row++) {
            assert_int_equal(writers[row], 1);
        }
    }
    pkv_step_destroy(step);
    pkv_gather_plan_destroy(plan);
    free_tensors(&tensors);
    model_rows_free(&key);
    model_rows_free(&value);
    model_cache_free(&model);
}

/* The published form of PA_NZ: rows without heads. Taken with every layout. */
static void rows_may_be_flat(void **state) {
    struct test_rng rng = test_rng_make(seed + 3);

    (void)state;
    for (int32_t layout = 0; layout < REF_NUM_LAYOUTS; layout++) {
        struct model_sizes sizes = plain_sizes();
        struct draw it = documented(1);
        struct model_cache cache;
        struct model_rows key, value;
        struct index_tensors tensors;

        sizes.block_size = 2;
        sizes.key_layout = sizes.value_layout = layout;
        cache = model_cache_make(&sizes, &rng);
        key = model_rows_make(MODEL_ROWS_IMPLIED, &cache.key, 5, TEST_GUARD_END, &rng);
        value = model_rows_make(MODEL_ROWS_IMPLIED, &cache.value, 5, TEST_GUARD_END, &rng);
        make_tensors(&tensors, &it);
        ref_gather_all(&cache.key, &key, &it);
        ref_gather_all(&cache.value, &value, &it);
        key.tensor.ndim = value.tensor.ndim = 2;
        key.tensor.shape[1] = 2 * 64;
        value.tensor.shape[1] = 2 * 32;
        CHECK_OK(call_gather(contexts.all[0], &cache, &tensors.from, &key, &value, CALL_ONE_SHOT,
                             &rng, &error),
                 &error);
        assert_true(model_rows_are_as_expected(&key));
        assert_true(model_rows_are_as_expected(&value));
        free_tensors(&tensors);
        model_rows_free(&key);
        model_rows_free(&value);
        model_cache_free(&cache);
    }
}

/* A gather that would succeed, for tests that change one thing. */
struct setting {
    struct model_cache cache;
    struct model_rows key;
    struct model_rows value;
    struct draw draw;
};

static struct setting setting_make(int cumulative) {
    struct test_rng rng = test_rng_make(5);
    struct model_sizes sizes = plain_sizes();
    struct setting it = {.draw = documented(cumulative)};

    sizes.block_size = 2;
    it.cache = model_cache_make(&sizes, &rng);
    it.key = model_rows_make(MODEL_ROWS_PACKED, &it.cache.key, 5, TEST_GUARD_END, &rng);
    it.value = model_rows_make(MODEL_ROWS_PACKED, &it.cache.value, 5, TEST_GUARD_END, &rng);
    return it;
}

static void setting_free(struct setting *it) {
    model_cache_free(&it->cache);
    model_rows_free(&it->key);
    model_rows_free(&it->value);
}

/* In every context, by the published call and by plan and run. No output byte may change. */
static void refuse(struct setting *it, int32_t expected, int line) {
    struct test_rng rng = test_rng_make(1);

    for (int i = 0; i < contexts.count; i++) {
        for (int way = CALL_ONE_SHOT; way <= 2; way++) {
            struct index_tensors tensors;
            int32_t status;

            make_tensors(&tensors, &it->draw);
            status = (int32_t)call_gather(contexts.all[i], &it->cache, &tensors.from, &it->key,
                                          &it->value, way, &rng, &error);
            check_refused(status, &error, expected, __FILE__, line);
            assert_true(model_rows_are_as_expected(&it->key));
            assert_true(model_rows_are_as_expected(&it->value));
            free_tensors(&tensors);
        }
    }
}

#define REFUSE(it, expected) refuse(&(it), (expected), __LINE__)

static void bad_indices_are_refused(void **state) {
    struct setting it = setting_make(0);

    (void)state;
    it.draw.table[1] = 6;
    REFUSE(it, PKV_STATUS_BLOCK_OUT_OF_RANGE);
    assert_int_equal(error.index, 1);
    assert_int_equal(error.value, 6);
    assert_int_equal(error.bound, 6);
    it.draw.table[1] = -1;
    REFUSE(it, PKV_STATUS_BLOCK_OUT_OF_RANGE);
    it.draw = documented(0);
    it.draw.offsets[0] = 3;
    REFUSE(it, PKV_STATUS_POSITION_OUT_OF_RANGE);
    assert_string_equal(error.argument, "seq_lens");
    assert_int_equal(error.value, it.draw.lengths[0]);
    assert_int_equal(error.bound, it.draw.lengths[0] - 1);
    it.draw.offsets[0] = INT64_MAX - 2;
    REFUSE(it, PKV_STATUS_POSITION_OUT_OF_RANGE);
    assert_int_equal(error.index, 0);
    assert_int_equal(error.value, INT64_MAX - 2);
    it.draw.offsets[0] = INT64_MAX;
    REFUSE(it, PKV_STATUS_OVERFLOW);
    it.draw.offsets[0] = -1;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
    it.draw = documented(0);
    it.draw.lengths[1] = -3;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
    setting_free(&it);
}

static void bad_totals_are_refused(void **state) {
    struct setting it = setting_make(1);
    struct index_tensors tensors;
    struct test_rng rng = test_rng_make(1);
    static const int64_t wrong[][3] = {{1, 2, 5}, {0, 2, 1}, {-2, 0, 5}, {0, -1, 5}};

    (void)state;
    for (int i = 0; i < 4; i++) {
        make_tensors(&tensors, &it.draw);
        model_index_free(&tensors.lengths);
        tensors.lengths = model_index_make(PKV_DTYPE_I64, 1, (int64_t[]){3}, wrong[i]);
        CHECK_REFUSED(call_gather(contexts.all[0], &it.cache, &tensors.from, &it.key, &it.value,
                                  CALL_ONE_SHOT, &rng, &error),
                      &error, PKV_STATUS_INVALID_ARGUMENT);
        free_tensors(&tensors);
    }
    setting_free(&it);
}

/* A table without columns may have any number of rows. */
static void more_sequences_than_lengths_are_refused(void **state) {
    struct pkv_tensor cache =
        pkv_tensor_make(&(int64_t){0}, PKV_DTYPE_I64, 4, (int64_t[]){1, 1, 1, 1});
    int32_t zero[2] = {0, 0};
    int64_t rows[2] = {INT64_MAX, 0};
    struct pkv_tensor lengths = pkv_tensor_make(zero, PKV_DTYPE_I32, 1, (int64_t[]){1});

    (void)state;
    cache.dtype = PKV_DTYPE_U8;
    for (int32_t plain = 0; plain < 2; plain++) {
        const struct pkv_gather_pa_kv_cache_options options = {.seq_lens_are_plain = plain};
        struct pkv_tensor table = pkv_tensor_make(NULL, PKV_DTYPE_I32, 2, rows);
        struct pkv_tensor key = pkv_tensor_make(NULL, PKV_DTYPE_U8, 3, (int64_t[]){0, 1, 1});
        CHECK_REFUSED(pkv_gather_pa_kv_cache(contexts.all[0], &cache, NULL, &table, &lengths, &key,
                                             NULL, NULL, &options, &error),
                      &error, PKV_STATUS_SHAPE);
        assert_string_equal(error.argument, "seq_lens");
        assert_int_equal(error.bound, INT64_MAX);
    }
}

static void bad_tensors_are_refused(void **state) {
    struct setting good = setting_make(1);
    struct setting it = good;

    (void)state;
    it.key.tensor.shape[0] = 4;
    REFUSE(it, PKV_STATUS_SHAPE);
    it = good;
    it.value.tensor.shape[1] = 1;
    REFUSE(it, PKV_STATUS_SHAPE);
    it = good;
    it.value.tensor.shape[2] = 64;
    REFUSE(it, PKV_STATUS_SHAPE);
    it = good;
    it.key.tensor.dtype = PKV_DTYPE_F16;
    REFUSE(it, PKV_STATUS_DTYPE);
    it = good;
    it.key.tensor.ndim = 4;
    it.key.tensor.shape[3] = 1;
    it.key.tensor.strides[3] = 1;
    REFUSE(it, PKV_STATUS_RANK);
    it = good;
    it.key.tensor.data = NULL;
    REFUSE(it, PKV_STATUS_NULL_ARGUMENT);
    it = good;
    it.key.tensor.data = (char *)it.key.tensor.data + 1;
    REFUSE(it, PKV_STATUS_MISALIGNED);
    it = good;
    it.key.tensor.strides[1] = -1;
    REFUSE(it, PKV_STATUS_STRIDE);
    setting_free(&good);
}

/* Rows of the output that share bytes with each other, with the other output, with the cache. */
static void overlapping_outputs_are_refused(void **state) {
    struct setting good = setting_make(1);
    struct setting it = good;

    (void)state;
    it.key.tensor.strides[0] = 64;
    {
        struct test_rng rng = test_rng_make(1);
        struct index_tensors tensors;
        int32_t status;

        make_tensors(&tensors, &it.draw);
        status = (int32_t)call_gather(contexts.all[0], &it.cache, &tensors.from, &it.key, &it.value,
                                      CALL_ONE_SHOT, &rng, &error);
        assert_true(status == PKV_STATUS_OVERLAP || status == PKV_STATUS_STRIDE);
        free_tensors(&tensors);
    }
    it = good;
    it.value.tensor.data = it.key.tensor.data;
    REFUSE(it, PKV_STATUS_OVERLAP);
    it = good;
    it.value.tensor.data = it.cache.key.tensor.data;
    REFUSE(it, PKV_STATUS_OVERLAP);
    assert_true(model_cache_is_as_expected(&good.cache));
    setting_free(&good);
}

static void key_and_value_come_together(void **state) {
    struct setting it = setting_make(1);
    struct index_tensors tensors;
    struct pkv_gather_pa_kv_cache_options options = {.reserved = 1};
    struct pkv_context *context = contexts.all[0];

    (void)state;
    make_tensors(&tensors, &it.draw);
    CHECK_REFUSED(pkv_gather_pa_kv_cache(context, &it.cache.key.tensor, &it.cache.value.tensor,
                                         &tensors.table.tensor, &tensors.lengths.tensor,
                                         &it.key.tensor, NULL, NULL, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_gather_pa_kv_cache(context, &it.cache.key.tensor, NULL, &tensors.table.tensor,
                                         &tensors.lengths.tensor, &it.key.tensor, &it.value.tensor,
                                         NULL, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_gather_pa_kv_cache(context, &it.cache.key.tensor, &it.cache.value.tensor,
                                         &tensors.table.tensor, &tensors.lengths.tensor,
                                         &it.key.tensor, &it.value.tensor, NULL, &options, &error),
                  &error, PKV_STATUS_INVALID_ARGUMENT);
    options = (struct pkv_gather_pa_kv_cache_options){.seq_lens_are_plain = 2};
    CHECK_REFUSED(pkv_gather_pa_kv_cache(context, &it.cache.key.tensor, &it.cache.value.tensor,
                                         &tensors.table.tensor, &tensors.lengths.tensor,
                                         &it.key.tensor, &it.value.tensor, NULL, &options, &error),
                  &error, PKV_STATUS_INVALID_ARGUMENT);
    options = (struct pkv_gather_pa_kv_cache_options){.key_layout = PKV_LAYOUT_PA_NZ};
    CHECK_REFUSED(pkv_gather_pa_kv_cache(context, &it.cache.key.tensor, NULL, &tensors.table.tensor,
                                         &tensors.lengths.tensor, &it.key.tensor, NULL, NULL,
                                         &options, &error),
                  &error, PKV_STATUS_UNSUPPORTED);
    assert_string_equal(error.argument, "value_cache");
    assert_true(model_rows_are_as_expected(&it.key));
    free_tensors(&tensors);
    setting_free(&it);
}

/* Keys alone in PA_NZ: the plan says so. */
static void key_only_pa_nz_is_refused(void **state) {
    static uint16_t storage[16];
    struct pkv_tensor key = pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){1, 1, 1, 16});
    struct pkv_cache_options options = {.key_layout = PKV_LAYOUT_PA_NZ};
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct pkv_gather_plan *plan;

    (void)state;
    CHECK_OK(pkv_cache_init(&cache, &key, NULL, &options, &error), &error);
    CHECK_REFUSED(pkv_gather_plan_create(&plan, contexts.all[0], &cache, &error), &error,
                  PKV_STATUS_UNSUPPORTED);
    assert_null(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_example),
        cmocka_unit_test(every_layout_and_way),
        cmocka_unit_test(every_dtype),
        cmocka_unit_test(a_large_gather_goes_to_the_threads),
        cmocka_unit_test(each_row_belongs_to_one_part),
        cmocka_unit_test(rows_may_be_flat),
        cmocka_unit_test(bad_indices_are_refused),
        cmocka_unit_test(bad_totals_are_refused),
        cmocka_unit_test(more_sequences_than_lengths_are_refused),
        cmocka_unit_test(bad_tensors_are_refused),
        cmocka_unit_test(overlapping_outputs_are_refused),
        cmocka_unit_test(key_and_value_come_together),
        cmocka_unit_test(key_only_pa_nz_is_refused),
    };

    seed = test_seed(17);
    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
