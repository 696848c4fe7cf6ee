/* SPDX-License-Identifier: MIT
 *
 * What the compressed modes of scatter_pa_kv_cache refuse: each for its own reason, with the
 * numbers, and without changing a byte.
 */
#include "compressed_calls.h"
#include "contexts.h"

static struct pkv_error error = {.struct_size = sizeof(error)};
/* A call that would succeed: two sequences of 5 and 4 tokens, two heads. Tests change one thing in
 * it. */
struct setting {
    struct pkv_context *context;
    struct comp_case it;
    struct model_cache cache;
    struct model_rows key_rows;
    struct model_rows value_rows;
    struct comp_indices indices;
    struct pkv_tensor key, value, key_cache, value_cache;
    struct pkv_tensor slots, lens, offsets, seq_lens;
    struct pkv_scatter_pa_kv_cache_options options;
};

static const int64_t good_slots[4] = {0, 13, 5, 9};
static const int64_t good_lens[4] = {2, 3, 4, 1};
static const int64_t good_offsets[4] = {1, 2, 0, -1};
static const int64_t good_seq_lens[2] = {5, 4};

/* The index tensors anew, after the numbers of the case were changed; int64. */
static void set_indices(struct setting *s) {
    const int64_t shape[2] = {s->it.num_seqs, s->it.num_heads};

    comp_indices_free(&s->indices);
    s->indices = (struct comp_indices){
        .slots = model_index_make(PKV_DTYPE_I64, 2, shape, s->it.slots),
        .lens = model_index_make(PKV_DTYPE_I64, 2, shape, s->it.lens),
        .offsets = model_index_make(PKV_DTYPE_I64, 2, shape, s->it.offsets),
        .seq_lens = model_index_make(PKV_DTYPE_I64, 1, shape, s->it.seq_lens),
    };
    s->slots = s->indices.slots.tensor;
    s->lens = s->indices.lens.tensor;
    s->offsets = s->indices.offsets.tensor;
    s->seq_lens = s->indices.seq_lens.tensor;
}

static struct setting setting_make(int32_t mode, int64_t padded_len) {
    struct test_rng rng = test_rng_make(5);
    const struct model_sizes sizes = {.key_dtype = PKV_DTYPE_BF16,
                                      .value_dtype = PKV_DTYPE_I8,
                                      .num_blocks = 6,
                                      .block_size = 3,
                                      .num_heads = 1,
                                      .key_head_size = 8,
                                      .value_head_size = 5};
    struct setting s = {
        .context = contexts.all[contexts.count - 1],
        .it = {.mode = mode, .num_seqs = 2, .num_heads = 2, .padded_len = padded_len}};

    memcpy(s.it.slots, good_slots, sizeof(good_slots));
    memcpy(s.it.lens, good_lens, sizeof(good_lens));
    memcpy(s.it.offsets, good_offsets, sizeof(good_offsets));
    memcpy(s.it.seq_lens, good_seq_lens, sizeof(good_seq_lens));
    s.cache = model_cache_make(&sizes, &rng);
    s.key_rows = comp_rows_make(&s.it, MODEL_ROWS_PACKED, &s.cache.key, TEST_GUARD_END, &rng);
    s.value_rows = comp_rows_make(&s.it, MODEL_ROWS_PACKED, &s.cache.value, TEST_GUARD_END, &rng);
    s.key = s.key_rows.tensor;
    s.value = s.value_rows.tensor;
    s.key_cache = s.cache.key.tensor;
    s.value_cache = s.cache.value.tensor;
    set_indices(&s);
    s.options = (struct pkv_scatter_pa_kv_cache_options){.scatter_mode = mode};
    return s;
}

static void setting_free(struct setting *s) {
    comp_indices_free(&s->indices);
    model_rows_free(&s->key_rows);
    model_rows_free(&s->value_rows);
    model_cache_free(&s->cache);
}

static enum pkv_status call(struct setting *s) {
    struct pkv_scatter_pa_kv_cache_options options = s->options;

    if (options.scatter_mode != PKV_SCATTER_MODE_NONE && options.compress_lens == NULL) {
        options.compress_lens = &s->lens;
        options.seq_lens = &s->seq_lens;
        options.compress_seq_offset =
            options.scatter_mode == PKV_SCATTER_MODE_ALIBI ? NULL : &s->offsets;
    }
    return pkv_scatter_pa_kv_cache(s->context, &s->key, &s->key_cache, &s->slots, &s->value,
                                   &s->value_cache, &options, &error);
}

/* In every context: refused, for that argument, and nothing has changed. */
#define REFUSE(setting, status, argument) refuse(&(setting), status, argument, __FILE__, __LINE__)

static void refuse(struct setting *s, int32_t status, const char *argument, const char *file,
                   int line) {
    struct pkv_context *before = s->context;

    for (int i = 0; i < contexts.count; i++) {
        s->context = contexts.all[i];
        check_refused((int32_t)call(s), &error, status, file, line);
        if (error.argument == NULL || strcmp(error.argument, argument) != 0) {
            print_error("names %s, not %s\n", error.argument, argument);
            _fail(file, line);
        }
        _assert_true(model_cache_is_as_expected(&s->cache) != 0, "unchanged", file, line);
    }
    s->context = before;
}

static void expect_numbers(int64_t index, int64_t value, int64_t bound) {
    assert_int_equal(error.index, index);
    assert_int_equal(error.value, value);
    assert_int_equal(error.bound, bound);
}

static void the_setting_succeeds(void **state) {
    (void)state;
    for (int32_t mode = PKV_SCATTER_MODE_ALIBI; mode <= PKV_SCATTER_MODE_OMNI; mode++) {
        for (int padded = 0; padded < 2; padded++) {
            struct setting s = setting_make(mode, padded ? 7 : -1);

            CHECK_OK(call(&s), &error);
            comp_scatter(&s.it, &s.cache.key, s.cache.key.shadow, &s.key_rows.ref,
                         s.key_rows.memory.data);
            comp_scatter(&s.it, &s.cache.value, s.cache.value.shadow, &s.value_rows.ref,
                         s.value_rows.memory.data);
            assert_true(model_cache_is_as_expected(&s.cache));
            setting_free(&s);
        }
    }
}

static void windows_that_do_not_fit(void **state) {
    struct setting s = setting_make(PKV_SCATTER_MODE_ALIBI, -1);

    (void)state;
    s.it.lens[2] = 5;
    set_indices(&s);
    REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "compress_lens");
    expect_numbers(2, 5, 4);
    s.it.lens[2] = -1;
    set_indices(&s);
    REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "compress_lens");
    expect_numbers(2, -1, 0);
    setting_free(&s);

    for (int32_t mode = PKV_SCATTER_MODE_ROPE; mode <= PKV_SCATTER_MODE_OMNI; mode++) {
        s = setting_make(mode, -1);
        s.it.lens[2] = 5;
        set_indices(&s);
        REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "compress_lens");
        expect_numbers(2, 5, 4);
        s.it.lens[2] = 4;
        s.it.offsets[1] = 3;
        set_indices(&s);
        REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "compress_seq_offset");
        expect_numbers(1, 3, 2);
        s.it.offsets[1] = INT64_MAX;
        set_indices(&s);
        REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "compress_seq_offset");
        s.it.lens[1] = 1;
        s.it.offsets[1] = 6;
        set_indices(&s);
        REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "compress_seq_offset");
        expect_numbers(1, 6, 4);
        s.it.lens[1] = 3;
        s.it.offsets[1] = -2;
        set_indices(&s);
        REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "compress_seq_offset");
        expect_numbers(1, -2, -1);
        s.it.lens[1] = INT64_MIN;
        set_indices(&s);
        REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "compress_lens");
        expect_numbers(1, INT64_MIN, 0);
        setting_free(&s);
    }
}

static void lengths_of_sequences(void **state) {
    struct setting s = setting_make(PKV_SCATTER_MODE_ROPE, -1);

    (void)state;
    s.it.seq_lens[1] = -4;
    set_indices(&s);
    REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "seq_lens");
    expect_numbers(1, -4, 0);
    s.it.seq_lens[1] = 5;
    set_indices(&s);
    REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "seq_lens");
    expect_numbers(PKV_ERROR_NONE, 10, 9);
    s.it.seq_lens[0] = INT64_MAX;
    s.it.seq_lens[1] = INT64_MAX;
    set_indices(&s);
    REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "seq_lens");
    s.it.seq_lens[0] = 5;
    s.it.seq_lens[1] = 4;
    s.key.shape[0] = s.value.shape[0] = 10;
    set_indices(&s);
    REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "seq_lens");
    expect_numbers(PKV_ERROR_NONE, 9, 10);
    setting_free(&s);

    s = setting_make(PKV_SCATTER_MODE_ROPE, 4);
    REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "seq_lens");
    expect_numbers(0, 5, 4);
    setting_free(&s);
}

static void regions_outside_the_cache(void **state) {
    struct setting s = setting_make(PKV_SCATTER_MODE_OMNI, -1);

    (void)state;
    s.it.slots[0] = 16; /* three rows, of 18 */
    set_indices(&s);
    REFUSE(s, PKV_STATUS_SLOT_OUT_OF_RANGE, "slot_mapping");
    expect_numbers(0, 16, 15);
    s.it.slots[0] = INT64_MAX;
    set_indices(&s);
    REFUSE(s, PKV_STATUS_SLOT_OUT_OF_RANGE, "slot_mapping");
    s.it.slots[0] = 15;
    set_indices(&s);
    CHECK_OK(call(&s), &error);
    setting_free(&s);
}

static void regions_that_overlap(void **state) {
    struct setting s = setting_make(PKV_SCATTER_MODE_ROPE, -1);

    (void)state;
    /* Lengths 4, 3, 1, 4: the third one lies in the first, and in no other. */
    s.it.slots[2] = 3;
    for (int32_t duplicates = 0; duplicates < 3; duplicates++) {
        s.options.duplicates = duplicates;
        set_indices(&s);
        REFUSE(s, PKV_STATUS_OVERLAP, "slot_mapping");
        expect_numbers(2, 3, 0);
    }
    s.it.slots[2] = 4;
    set_indices(&s);
    CHECK_OK(call(&s), &error);
    setting_free(&s);

    /* Many, in descending order, of which one is a row too long. */
    s = setting_make(PKV_SCATTER_MODE_ROPE, -1);
    s.it.slots[0] = 14;
    s.it.slots[1] = 11;
    s.it.slots[2] = 10;
    s.it.slots[3] = 6;
    set_indices(&s);
    CHECK_OK(call(&s), &error);
    model_cache_accept(&s.cache);
    s.it.lens[1] = 2;
    set_indices(&s);
    REFUSE(s, PKV_STATUS_OVERLAP, "slot_mapping");
    expect_numbers(0, 14, 1);
    setting_free(&s);
}

/* A skipped region is in nobody's way, and its numbers may be anything. */
static void skipped_regions_do_not_count(void **state) {
    struct setting s = setting_make(PKV_SCATTER_MODE_ROPE, -1);

    (void)state;
    s.it.slots[1] = -1;
    s.it.lens[1] = -77;
    s.it.offsets[1] = 1 << 20;
    set_indices(&s);
    CHECK_OK(call(&s), &error);
    setting_free(&s);
}

static void hifloat8_has_no_mean(void **state) {
    struct setting s = setting_make(PKV_SCATTER_MODE_ROPE, -1);

    (void)state;
    s.value.dtype = s.value_cache.dtype = PKV_DTYPE_HIFLOAT8;
    REFUSE(s, PKV_STATUS_UNSUPPORTED, "compress_lens");
    expect_numbers(0, 2, PKV_ERROR_NONE);
    for (int t = 0; t < 4; t++) {
        s.it.offsets[t] = -1;
        s.it.slots[t] = t == 0 ? 0 : t == 1 ? -1 : 5 + (t - 2) * 4;
    }
    set_indices(&s);
    CHECK_OK(call(&s), &error);
    setting_free(&s);
}

/* A token that comes again and again makes a sequence longer than memory. */
static void a_mean_of_too_many_integers(void **state) {
    struct setting s = setting_make(PKV_SCATTER_MODE_ROPE, -1);
    const int64_t many = INT64_C(1) << 31;

    (void)state;
    s.it.num_seqs = s.it.num_heads = 1;
    s.it.seq_lens[0] = many + 1;
    s.it.lens[0] = many;
    s.it.offsets[0] = 1;
    set_indices(&s);
    s.key.shape[0] = s.value.shape[0] = many + 1;
    s.key.shape[1] = s.value.shape[1] = 1;
    s.key.strides[0] = s.value.strides[0] = 0;
    REFUSE(s, PKV_STATUS_OVERFLOW, "compress_lens");
    expect_numbers(0, many, INT32_MAX);
    setting_free(&s);
}

static void index_tensors(void **state) {
    struct setting good = setting_make(PKV_SCATTER_MODE_ROPE, -1);
    struct setting s;

    (void)state;
    for (int i = 0; i < 4; i++) {
        static const char *const names[4] = {"slot_mapping", "compress_lens", "compress_seq_offset",
                                             "seq_lens"};
        struct pkv_tensor *const tensors[4] = {&s.slots, &s.lens, &s.offsets, &s.seq_lens};
        struct pkv_tensor *tensor = tensors[i];

        s = good;
        tensor->dtype = PKV_DTYPE_I16;
        REFUSE(s, PKV_STATUS_DTYPE, names[i]);
        s = good;
        tensor->ndim = 3;
        tensor->shape[2] = 1;
        REFUSE(s, PKV_STATUS_RANK, names[i]);
        s = good;
        tensor->data = NULL;
        REFUSE(s, PKV_STATUS_NULL_ARGUMENT, names[i]);
        s = good;
        tensor->data = (char *)tensor->data + 1;
        REFUSE(s, PKV_STATUS_MISALIGNED, names[i]);
        s = good;
        tensor->ndim = 1;
        tensor->shape[0] = 3;
        if (i < 3) { /* seq_lens says how many sequences there are */
            REFUSE(s, PKV_STATUS_SHAPE, names[i]);
        }
        s = good;
        if (i < 3) {
            tensor->shape[1] = 1;
            REFUSE(s, PKV_STATUS_SHAPE, names[i]);
            assert_int_equal(error.axis, 1);
            s = good;
            tensor->shape[0] = 1;
            REFUSE(s, PKV_STATUS_SHAPE, names[i]);
            assert_int_equal(error.axis, 0);
        }
    }
    setting_free(&good);
}

static void tensors_of_the_options(void **state) {
    struct setting s = setting_make(PKV_SCATTER_MODE_ROPE, -1);
    const struct pkv_tensor absent = {0};

    (void)state;
    s.options.compress_lens = &s.lens;
    s.options.seq_lens = &s.seq_lens;
    REFUSE(s, PKV_STATUS_NULL_ARGUMENT, "compress_seq_offset");
    s.options.compress_seq_offset = &absent;
    REFUSE(s, PKV_STATUS_NULL_ARGUMENT, "compress_seq_offset");
    s.options.compress_seq_offset = &s.offsets;
    s.options.seq_lens = NULL;
    REFUSE(s, PKV_STATUS_NULL_ARGUMENT, "seq_lens");
    s.options.seq_lens = &s.seq_lens;
    s.options.compress_lens = &absent;
    REFUSE(s, PKV_STATUS_NULL_ARGUMENT, "compress_lens");
    s.options.compress_lens = &s.lens;
    s.options.scatter_mode = PKV_SCATTER_MODE_ALIBI;
    REFUSE(s, PKV_STATUS_NULL_ARGUMENT, "compress_seq_offset");
    /* The other modes know none of them. */
    for (int32_t mode = PKV_SCATTER_MODE_NONE; mode <= PKV_SCATTER_MODE_NCT; mode++) {
        s.options =
            (struct pkv_scatter_pa_kv_cache_options){.scatter_mode = mode, .seq_lens = &s.seq_lens};
        s.options.compress_lens = &absent;
        REFUSE(s, PKV_STATUS_NULL_ARGUMENT, "seq_lens");
    }
    setting_free(&s);
}

static void keys_values_and_caches(void **state) {
    struct setting good = setting_make(PKV_SCATTER_MODE_OMNI, -1);
    struct setting s = good;

    (void)state;
    s.key.dtype = PKV_DTYPE_F16;
    REFUSE(s, PKV_STATUS_DTYPE, "key");
    s = good;
    s.value.shape[1] = 1;
    REFUSE(s, PKV_STATUS_SHAPE, "value");
    s = good;
    s.value.shape[0] = 8;
    REFUSE(s, PKV_STATUS_SHAPE, "value");
    s.value.shape[0] = 10;
    REFUSE(s, PKV_STATUS_SHAPE, "value");
    assert_int_equal(error.axis, 0);
    s = good;
    s.key.shape[2] = 7;
    REFUSE(s, PKV_STATUS_SHAPE, "key");
    s = good;
    s.key.ndim = 2;
    REFUSE(s, PKV_STATUS_RANK, "key");
    s = good;
    s.value.ndim = 4;
    s.value.shape[3] = 5;
    s.value.strides[3] = 1;
    REFUSE(s, PKV_STATUS_RANK, "value");
    s = good;
    s.key_cache.shape[2] = s.value_cache.shape[2] = 2;
    s.key_cache.shape[1] = s.value_cache.shape[1] = 1;
    memset(s.key_cache.strides, 0, sizeof(s.key_cache.strides));
    memset(s.value_cache.strides, 0, sizeof(s.value_cache.strides));
    REFUSE(s, PKV_STATUS_SHAPE, "key_cache");
    s = good;
    s.options.value_layout = PKV_LAYOUT_HND;
    memset(s.value_cache.strides, 0, sizeof(s.value_cache.strides));
    s.value_cache.shape[1] = 1;
    s.value_cache.shape[2] = 3;
    REFUSE(s, PKV_STATUS_UNSUPPORTED, "options->value_layout");
    s = good;
    s.options.duplicates = 3;
    REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "options->duplicates");
    s = good;
    s.options.scatter_mode = PKV_SCATTER_MODE_OMNI + 1;
    s.options.compress_lens = &s.lens;
    REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "options->scatter_mode");
    s = good;
    s.options.key_stride = 8;
    REFUSE(s, PKV_STATUS_INVALID_ARGUMENT, "options->key_stride");
    setting_free(&good);

    /* As many padded sequences as lengths. */
    s = setting_make(PKV_SCATTER_MODE_OMNI, 5);
    s.key.shape[0] = s.value.shape[0] = 1;
    REFUSE(s, PKV_STATUS_SHAPE, "key");
    setting_free(&s);
}

/* What is read lies in the cache: refused where a region is, allowed elsewhere. */
static void reads_inside_the_cache(void **state) {
    (void)state;
    for (int what = 0; what < 5; what++) {
        struct setting s = setting_make(PKV_SCATTER_MODE_OMNI, -1);
        static const char *const names[5] = {"slot_mapping", "compress_lens", "compress_seq_offset",
                                             "seq_lens", "key"};
        struct pkv_tensor *const tensors[5] = {&s.slots, &s.lens, &s.offsets, &s.seq_lens, &s.key};
        char *cache = s.cache.key.tensor.data;
        size_t bytes = what == 3 ? 16 : 32;

        if (what == 4) { /* the key itself, in as many bytes: head size 8, bf16 */
            s.key.data = cache;
            s.key.strides[0] = 0;
            s.key.strides[1] = 0;
            s.key.strides[2] = 1;
            bytes = 16;
        }
        for (int slot = 0; slot < 17; slot++) {
            int is_written = slot < 3 || (slot >= 13 && slot < 15) || (slot >= 9 && slot < 13);

            if (bytes == 32) {
                is_written = is_written || slot == 8 || slot == 12;
            }
            if (what < 4) {
                memcpy(cache + slot * 16,
                       (what == 0   ? s.indices.slots
                        : what == 1 ? s.indices.lens
                        : what == 2 ? s.indices.offsets
                                    : s.indices.seq_lens)
                           .memory.data,
                       bytes);
            }
            tensors[what]->data = cache + slot * 16;
            model_cache_accept(&s.cache);
            if (is_written) {
                REFUSE(s, PKV_STATUS_OVERLAP, names[what]);
            } else {
                CHECK_OK(call(&s), &error);
            }
            model_cache_accept(&s.cache);
        }
        setting_free(&s);
    }
}

/* Blocks of two rows of 16 bytes with 16 bytes between them; a region of 7 rows from slot 1 on: a
 * row, two whole blocks, two rows. The lengths lie in each of these 16 bytes in turn. */
static void reads_between_blocks(void **state) {
    _Alignas(16) unsigned char storage[6 * 48];
    unsigned char before[sizeof(storage)];
    static const uint16_t rows[7 * 8] = {1, 2, 3};
    int64_t slot = 1;
    int64_t w = 7;
    const int64_t seq_len[2] = {7, 0};
    const struct pkv_tensor key =
        pkv_tensor_make((void *)(uintptr_t)rows, PKV_DTYPE_F16, 3, (int64_t[]){7, 1, 8});
    struct pkv_tensor cache = pkv_tensor_make(storage, PKV_DTYPE_F16, 4, (int64_t[]){6, 2, 1, 8});
    const struct pkv_tensor slots = pkv_tensor_make(&slot, PKV_DTYPE_I64, 1, (int64_t[]){1});
    const struct pkv_tensor lens = pkv_tensor_make(&w, PKV_DTYPE_I64, 1, (int64_t[]){1});

    (void)state;
    cache.strides[0] = 24;
    cache.strides[1] = cache.strides[2] = 8;
    cache.strides[3] = 1;
    for (int place = 0; place < 18; place++) {
        const int row = place % 3 == 2 ? -1 : place / 3 * 2 + place % 3;
        const int is_written = row >= 1 && row < 8;
        const struct pkv_tensor seq_lens =
            pkv_tensor_make(storage + place * 16, PKV_DTYPE_I64, 1, (int64_t[]){1});
        const struct pkv_scatter_pa_kv_cache_options options = {
            .scatter_mode = PKV_SCATTER_MODE_ALIBI, .compress_lens = &lens, .seq_lens = &seq_lens};

        memset(storage, 0, sizeof(storage));
        memcpy(storage + place * 16, seq_len, sizeof(seq_len));
        memcpy(before, storage, sizeof(before));
        if (is_written) {
            CHECK_REFUSED(pkv_scatter_pa_kv_cache(contexts.all[0], &key, &cache, &slots, NULL, NULL,
                                                  &options, &error),
                          &error, PKV_STATUS_OVERLAP);
            assert_memory_equal(storage, before, sizeof(storage));
        } else {
            CHECK_OK(pkv_scatter_pa_kv_cache(contexts.all[0], &key, &cache, &slots, NULL, NULL,
                                             &options, &error),
                     &error);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_setting_succeeds),   cmocka_unit_test(windows_that_do_not_fit),
        cmocka_unit_test(lengths_of_sequences),   cmocka_unit_test(regions_outside_the_cache),
        cmocka_unit_test(regions_that_overlap),   cmocka_unit_test(skipped_regions_do_not_count),
        cmocka_unit_test(hifloat8_has_no_mean),   cmocka_unit_test(a_mean_of_too_many_integers),
        cmocka_unit_test(index_tensors),          cmocka_unit_test(tensors_of_the_options),
        cmocka_unit_test(keys_values_and_caches), cmocka_unit_test(reads_inside_the_cache),
        cmocka_unit_test(reads_between_blocks),
    };

    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
