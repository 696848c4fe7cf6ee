/* SPDX-License-Identifier: MIT
 *
 * Scatter to many targets: the published caches of an MLA token, the packed rows by their published
 * offsets, and random pairs of every form against a reference.
 */
#include "allocator.h"
#include "calls.h"
#include "contexts.h"
#include "targets.h"

#include <inttypes.h>
#include <stdlib.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static uint64_t seed;

/* One slot for the three caches: row 130 is row 2 of block 1. */
static void mla_token_goes_to_three_caches(void **state) {
    static int8_t latent[2 * 128 * 512], k_nope[512];
    static uint16_t rope[2 * 128 * 64], k_rope[64];
    static float scales[2 * 128 * 4], k_scale[4];
    int64_t slot = 130;
    struct pkv_tensor index = pkv_tensor_make(&slot, PKV_DTYPE_I64, 1, (int64_t[]){1});
    struct pkv_tensor sources[3] = {
        pkv_tensor_make(k_nope, PKV_DTYPE_I8, 3, (int64_t[]){1, 1, 512}),
        pkv_tensor_make(k_rope, PKV_DTYPE_BF16, 2, (int64_t[]){1, 64}),
        pkv_tensor_make(k_scale, PKV_DTYPE_F32, 2, (int64_t[]){1, 4}),
    };
    struct pkv_tensor caches[3] = {
        pkv_tensor_make(latent, PKV_DTYPE_I8, 4, (int64_t[]){2, 128, 1, 512}),
        pkv_tensor_make(rope, PKV_DTYPE_BF16, 4, (int64_t[]){2, 128, 1, 64}),
        pkv_tensor_make(scales, PKV_DTYPE_F32, 4, (int64_t[]){2, 128, 1, 4}),
    };

    (void)state;
    for (int i = 0; i < 512; i++) {
        k_nope[i] = (int8_t)(i % 120 + 1);
        k_rope[i % 64] = (uint16_t)(1000 + i % 64);
        k_scale[i % 4] = (float)(i % 4 + 1);
    }
    for (int i = 0; i < contexts.count; i++) {
        memset(latent, 0, sizeof(latent));
        memset(rope, 0, sizeof(rope));
        memset(scales, 0, sizeof(scales));
        CHECK_OK(pkv_scatter_rows(contexts.all[i], &index, sources, caches, 3, NULL, &error),
                 &error);
        for (int64_t row = 0; row < 256; row++) {
            assert_int_equal(latent[row * 512 + 511], row == 130 ? k_nope[511] : 0);
            assert_int_equal(rope[row * 64], row == 130 ? 1000 : 0);
            assert_true(scales[row * 4 + 3] == (row == 130 ? 4.0f : 0.0f));
        }
    }
}

/* The published offsets, in bytes of the row: 0, 512, 640 and 0, 512, 528. */
static void packed_rows_have_the_published_columns(void **state) {
    static _Alignas(4) unsigned char data[3 * 5 * 656];
    static const struct {
        int64_t offset;
        int32_t dtype;
        int64_t width;
    } formats[2][3] = {
        {{0, PKV_DTYPE_I8, 512}, {512, PKV_DTYPE_BF16, 64}, {640, PKV_DTYPE_F32, 4}},
        {{0, PKV_DTYPE_F8_E4M3FN, 512}, {512, PKV_DTYPE_F32, 4}, {528, PKV_DTYPE_BF16, 64}},
    };

    (void)state;
    for (int32_t format = 0; format < 2; format++) {
        for (int with_head = 0; with_head < 2; with_head++) {
            struct pkv_tensor columns[PKV_PACKED_ROW_COLUMNS];
            struct pkv_tensor cache =
                pkv_tensor_make(data, PKV_DTYPE_U8, with_head ? 4 : 3,
                                with_head ? (int64_t[]){3, 5, 1, 656} : (int64_t[]){3, 5, 656});

            CHECK_OK(pkv_packed_row_columns(format, &cache, columns, &error), &error);
            for (int i = 0; i < PKV_PACKED_ROW_COLUMNS; i++) {
                int64_t bytes = ref_dtype_bytes(formats[format][i].dtype);

                assert_ptr_equal(columns[i].data, data + formats[format][i].offset);
                assert_int_equal(columns[i].dtype, formats[format][i].dtype);
                assert_int_equal(columns[i].ndim, 4);
                assert_int_equal(columns[i].shape[0], 3);
                assert_int_equal(columns[i].shape[1], 5);
                assert_int_equal(columns[i].shape[2], 1);
                assert_int_equal(columns[i].shape[3], formats[format][i].width);
                assert_int_equal(columns[i].strides[0] * bytes, 5 * 656);
                assert_int_equal(columns[i].strides[1] * bytes, 656);
                assert_int_equal(columns[i].strides[3], 1);
            }
        }
    }
}

/* A token's 656 bytes stand in its row, in the published order; nothing else moves. */
static void packed_rows_are_written(void **state) {
    enum { TOKENS = 300, BLOCKS = 7, BLOCK_SIZE = 128 };
    static const int64_t widths[2][3] = {{512, 128, 16}, {512, 16, 128}};
    struct test_rng rng = test_rng_make(seed);
    int64_t bytes = (int64_t)BLOCKS * BLOCK_SIZE * 656;
    struct test_guard memory = test_guard_make((size_t)bytes, TEST_GUARD_END);
    unsigned char *shadow = malloc((size_t)bytes);
    unsigned char *source = malloc(TOKENS * 656);
    int64_t slots[TOKENS];
    struct pkv_tensor index = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, (int64_t[]){TOKENS});

    (void)state;
    for (int i = 0; i < 2 * contexts.count; i++) {
        int32_t format = i % 2;
        struct pkv_tensor cache =
            pkv_tensor_make(memory.data, PKV_DTYPE_U8, 3, (int64_t[]){BLOCKS, BLOCK_SIZE, 656});
        struct pkv_tensor columns[3], sources[3];
        unsigned char *from = source;

        test_rng_fill(&rng, memory.data, (size_t)bytes);
        test_rng_fill(&rng, source, TOKENS * 656);
        memcpy(shadow, memory.data, (size_t)bytes);
        CHECK_OK(pkv_packed_row_columns(format, &cache, columns, &error), &error);
        for (int j = 0; j < 3; j++) {
            sources[j] = pkv_tensor_make(from, columns[j].dtype, 2,
                                         (int64_t[]){TOKENS, columns[j].shape[3]});
            from += TOKENS * widths[format][j];
        }
        for (int64_t t = 0; t < TOKENS; t++) {
            int64_t at = 0;

            slots[t] = t % 3 == 0 || t == 0 ? test_rng_between(&rng, -9, BLOCKS * BLOCK_SIZE - 1)
                                            : (slots[t - 1] + 1) % (BLOCKS * BLOCK_SIZE);
            from = source;
            for (int j = 0; j < 3 && slots[t] >= 0; j++) {
                memcpy(shadow + slots[t] * 656 + at, from + t * widths[format][j],
                       (size_t)widths[format][j]);
                at += widths[format][j];
                from += TOKENS * widths[format][j];
            }
        }
        CHECK_OK(pkv_scatter_rows(contexts.all[i / 2], &index, sources, columns, 3, NULL, &error),
                 &error);
        assert_memory_equal(memory.data, shadow, (size_t)bytes);
    }
    free(source);
    free(shadow);
    test_guard_free(&memory);
}

static void bad_packed_caches_are_refused(void **state) {
    static _Alignas(4) unsigned char data[2 * 2 * 664];
    struct pkv_tensor good = pkv_tensor_make(data, PKV_DTYPE_U8, 3, (int64_t[]){2, 2, 656});
    struct pkv_tensor columns[3], untouched[3];
    struct pkv_tensor cache = good;

    (void)state;
    memset(columns, 0x5a, sizeof(columns));
    memcpy(untouched, columns, sizeof(columns));
    CHECK_REFUSED(pkv_packed_row_columns(2, &good, columns, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_packed_row_columns(-1, &good, columns, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_packed_row_columns(0, NULL, columns, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_packed_row_columns(0, &good, NULL, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    cache.dtype = PKV_DTYPE_BF16;
    CHECK_REFUSED(pkv_packed_row_columns(0, &cache, columns, &error), &error, PKV_STATUS_DTYPE);
    cache = pkv_tensor_make(data, PKV_DTYPE_U8, 2, (int64_t[]){4, 656});
    CHECK_REFUSED(pkv_packed_row_columns(0, &cache, columns, &error), &error, PKV_STATUS_RANK);
    cache = pkv_tensor_make(data, PKV_DTYPE_U8, 3, (int64_t[]){2, 2, 655});
    CHECK_REFUSED(pkv_packed_row_columns(0, &cache, columns, &error), &error, PKV_STATUS_SHAPE);
    cache = pkv_tensor_make(data, PKV_DTYPE_U8, 4, (int64_t[]){1, 2, 2, 656});
    CHECK_REFUSED(pkv_packed_row_columns(0, &cache, columns, &error), &error, PKV_STATUS_SHAPE);
    assert_int_equal(error.axis, 2);
    cache = good;
    cache.data = data + 2;
    CHECK_REFUSED(pkv_packed_row_columns(0, &cache, columns, &error), &error,
                  PKV_STATUS_MISALIGNED);
    cache = good;
    cache.strides[0] = 2 * 658;
    cache.strides[1] = 658;
    cache.strides[2] = 1;
    CHECK_REFUSED(pkv_packed_row_columns(0, &cache, columns, &error), &error, PKV_STATUS_STRIDE);
    assert_int_equal(error.axis, 1);
    cache.strides[1] = 660;
    cache.strides[2] = 2;
    CHECK_REFUSED(pkv_packed_row_columns(0, &cache, columns, &error), &error, PKV_STATUS_STRIDE);
    assert_memory_equal(columns, untouched, sizeof(columns));
    cache.strides[0] = 2 * 664;
    cache.strides[1] = 664;
    cache.strides[2] = 1;
    CHECK_OK(pkv_packed_row_columns(0, &cache, columns, &error), &error);
    assert_int_equal(columns[2].strides[1], 166);
    /* One block, and blocks of one token: the stride of a single step is never used. */
    cache.shape[0] = 1;
    CHECK_OK(pkv_packed_row_columns(0, &cache, columns, &error), &error);
    assert_int_equal(columns[2].strides[1], 166);
    cache.shape[0] = 2;
    cache.shape[1] = 1;
    CHECK_OK(pkv_packed_row_columns(0, &cache, columns, &error), &error);
    assert_int_equal(columns[2].strides[0], 2 * 166);
    cache.shape[1] = 2;
    cache.strides[2] = 0;
    CHECK_REFUSED(pkv_packed_row_columns(0, &cache, columns, &error), &error, PKV_STATUS_STRIDE);
}

/* By plan, step and run, or in parts. The slots are checked against another cache of the same
 * geometry. */
static enum pkv_status call_planned(struct pkv_context *context, const struct targets *targets,
                                    const struct pkv_tensor *slots, int32_t duplicates, int way,
                                    struct test_rng *rng) {
    unsigned char *data = malloc((size_t)(targets->num_blocks * targets->block_size));
    struct pkv_cache geometry = targets_geometry(targets->num_blocks, targets->block_size, data);
    struct pkv_step_indices indices = {
        .struct_size = sizeof(indices), .duplicates = duplicates, .slot_mapping = *slots};
    struct pkv_scatter_rows_plan *plan = NULL;
    struct pkv_step *step = make_step(0, 0);
    int64_t order[CALL_MAX_PARTS];
    enum pkv_status status;

    CHECK_OK(pkv_scatter_rows_plan_create(&plan, context, targets->caches, targets->num_pairs, NULL,
                                          &error),
             &error);
    status = pkv_step_set(context, step, &geometry, &indices, &error);
    if (status == PKV_STATUS_OK && way == CALL_RUN) {
        status =
            pkv_scatter_rows_run(context, plan, step, targets->sources, targets->caches, &error);
    } else if (status == PKV_STATUS_OK) {
        test_rng_permutation(rng, order, way);
        for (int i = 0; i < way && status == PKV_STATUS_OK; i++) {
            status = pkv_scatter_rows_run_part(context, plan, step, targets->sources,
                                               targets->caches, order[i], way, &error);
        }
    }
    pkv_step_destroy(step);
    pkv_scatter_rows_plan_destroy(plan);
    free(data);
    return status;
}

static enum pkv_status call_rows(struct pkv_context *context, const struct targets *targets,
                                 const struct pkv_tensor *slots, int32_t duplicates, int way,
                                 struct test_rng *rng) {
    struct pkv_scatter_rows_options options = {.struct_size = sizeof(options),
                                               .duplicates = duplicates,
                                               .store_policy = (int32_t)test_rng_below(rng, 3)};

    if (way == CALL_ONE_SHOT) {
        return pkv_scatter_rows(context, slots, targets->sources, targets->caches,
                                targets->num_pairs, &options, &error);
    }
    return call_planned(context, targets, slots, duplicates, way, rng);
}

static int has_repeat(const int64_t *slots, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < i; j++) {
            if (slots[i] >= 0 && slots[i] == slots[j]) {
                return 1;
            }
        }
    }
    return 0;
}

static void draw_slots(struct test_rng *rng, int64_t *slots, int64_t count, int64_t num_slots) {
    int runs = (int)test_rng_below(rng, 2);

    for (int64_t t = 0; t < count; t++) {
        slots[t] = runs && t > 0 && test_rng_below(rng, 8) ? slots[t - 1] + 1
                                                           : test_rng_below(rng, num_slots);
        if (slots[t] >= num_slots || test_rng_below(rng, 12) == 0) {
            slots[t] = -test_rng_between(rng, 1, 1000);
        }
    }
}

/* Sometimes one slot is too large: then the call is refused and nothing changes. */
static void random_case(struct test_rng *rng, int64_t max_tokens, int64_t max_width,
                        struct pkv_context *context) {
    int64_t num_blocks = test_rng_between(rng, 1, 9), block_size = test_rng_between(rng, 1, 9);
    int64_t num_tokens = test_rng_between(rng, 0, max_tokens);
    int64_t num_pairs = test_rng_below(rng, 8) ? test_rng_between(rng, 1, 5)
                                               : test_rng_between(rng, 1, TARGETS_MAX_PAIRS);
    struct targets targets =
        targets_draw(rng, num_pairs, num_blocks, block_size, num_tokens, max_width);
    int64_t *slots = malloc((size_t)(num_tokens + 1) * sizeof(slots[0]));
    int32_t duplicates = (int32_t)test_rng_below(rng, 3);
    int32_t expected = PKV_STATUS_OK;
    struct model_index index;
    enum pkv_status status;

    draw_slots(rng, slots, num_tokens, num_blocks * block_size);
    if (num_tokens > 0 && test_rng_below(rng, 10) == 0) {
        slots[test_rng_below(rng, num_tokens)] = num_blocks * block_size;
        expected = PKV_STATUS_SLOT_OUT_OF_RANGE;
    } else if (has_repeat(slots, num_tokens)) {
        duplicates = duplicates == PKV_DUPLICATES_ASSUME_UNIQUE ? 0 : duplicates;
        if (duplicates == PKV_DUPLICATES_REJECT) {
            expected = PKV_STATUS_DUPLICATE_SLOT;
        }
    }
    if (expected == PKV_STATUS_OK) {
        targets_scatter(&targets, slots);
    }
    index = model_index_make(test_rng_below(rng, 2) ? PKV_DTYPE_I32 : PKV_DTYPE_I64, 1, &num_tokens,
                             slots);
    status = call_rows(context, &targets, &index.tensor, duplicates,
                       (int)test_rng_between(rng, CALL_ONE_SHOT, 7), rng);
    if (expected == PKV_STATUS_OK) {
        check_ok(status, &error, __FILE__, __LINE__);
    } else {
        check_refused(status, &error, expected, __FILE__, __LINE__);
    }
    assert_true(targets_are_as_expected(&targets));
    model_index_free(&index);
    free(slots);
    targets_free(&targets);
}

static void random_cases(void **state) {
    const char *wanted = getenv("PAGEDKV_TEST_CASES");
    int64_t num_cases = wanted != NULL ? strtoll(wanted, NULL, 0) : 4000;
    struct test_rng seeds = test_rng_make(seed + 1);

    (void)state;
    for (int64_t i = 0; i < num_cases; i++) {
        struct test_rng rng = test_rng_make(test_rng_next(&seeds));

        random_case(&rng, 60, i % 2 ? 40 : 300, contexts.all[test_rng_below(&rng, contexts.count)]);
    }
    print_message("%" PRId64 " cases\n", num_cases);
}

/* Enough for several threads and for stores around the caches. */
static void large_cases_go_to_the_threads(void **state) {
    struct test_rng seeds = test_rng_make(seed + 2);

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        struct test_rng rng = test_rng_make(test_rng_next(&seeds));

        random_case(&rng, 2000, 1000, contexts.all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mla_token_goes_to_three_caches),
        cmocka_unit_test(packed_rows_have_the_published_columns),
        cmocka_unit_test(packed_rows_are_written),
        cmocka_unit_test(bad_packed_caches_are_refused),
        cmocka_unit_test(random_cases),
        cmocka_unit_test(large_cases_go_to_the_threads),
    };

    seed = test_seed(31);
    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
