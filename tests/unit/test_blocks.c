/* SPDX-License-Identifier: MIT
 *
 * Whole blocks: copies inside one cache, and conversion between any two layouts.
 */
#include "calls.h"
#include "contexts.h"

static struct pkv_error error = {.struct_size = sizeof(error)};
static uint64_t seed;

static struct model_sizes plain_sizes(void) {
    return (struct model_sizes){.key_dtype = PKV_DTYPE_BF16,
                                .value_dtype = PKV_DTYPE_F16,
                                .num_blocks = 9,
                                .block_size = 5,
                                .num_heads = 2,
                                .key_head_size = 64,
                                .value_head_size = 32};
}

/* Sources among the first blocks, each destination once among the last: fan-out is allowed. */
static int64_t draw_pairs(struct test_rng *rng, int64_t num_blocks, int64_t *pairs) {
    int64_t order[64];
    int64_t num_sources = test_rng_between(rng, 1, num_blocks - 1);
    int64_t num_pairs = test_rng_between(rng, 0, num_blocks - num_sources);

    test_rng_permutation(rng, order, num_blocks);
    for (int64_t i = 0; i < num_pairs; i++) {
        pairs[2 * i] = order[test_rng_below(rng, num_sources)];
        pairs[2 * i + 1] = order[num_sources + i];
    }
    return num_pairs;
}

static void expect_copy(struct pkv_context *context, const struct model_sizes *sizes, int32_t dtype,
                        struct test_rng *rng) {
    struct model_cache model = model_cache_make(sizes, rng);
    struct model_index mapping;
    struct pkv_cache cache;
    int64_t pairs[2 * 64];
    int64_t num_pairs = draw_pairs(rng, sizes->num_blocks, pairs);

    CHECK_OK(init_cache(&cache, &model, &error), &error);
    mapping = model_index_make(dtype, 2, (int64_t[]){num_pairs, 2}, pairs);
    for (int64_t i = 0; i < num_pairs; i++) {
        ref_copy_block(&model.key.ref, model.key.shadow, pairs[2 * i], pairs[2 * i + 1]);
        if (model.has_value) {
            ref_copy_block(&model.value.ref, model.value.shadow, pairs[2 * i], pairs[2 * i + 1]);
        }
    }
    CHECK_OK(pkv_copy_blocks(context, &cache, &mapping.tensor, &error), &error);
    assert_true(model_cache_is_as_expected(&model));
    model_index_free(&mapping);
    model_cache_free(&model);
}

static void copies_in_every_layout(void **state) {
    struct test_rng rng = test_rng_make(seed);

    (void)state;
    for (int32_t layout = 0; layout < REF_NUM_LAYOUTS; layout++) {
        for (int i = 0; i < contexts.count; i++) {
            struct model_sizes sizes = plain_sizes();

            sizes.key_layout = layout;
            sizes.value_layout = (layout + i) % REF_NUM_LAYOUTS;
            sizes.padded = i & 1;
            sizes.interleaved = (i >> 1) & 1;
            if (i % 7 == 0 && layout != PKV_LAYOUT_PA_NZ) {
                sizes.value_dtype = 0;
            }
            expect_copy(contexts.all[i], &sizes, i & 1 ? PKV_DTYPE_I32 : PKV_DTYPE_I64, &rng);
        }
    }
}

static void large_copies_go_to_the_threads(void **state) {
    struct test_rng rng = test_rng_make(seed + 1);
    struct model_sizes sizes = plain_sizes();

    (void)state;
    sizes.num_blocks = 40;
    sizes.block_size = 64;
    for (int i = 0; i < contexts.count; i++) {
        expect_copy(contexts.all[i], &sizes, PKV_DTYPE_I64, &rng);
    }
}

static void fan_out_is_allowed(void **state) {
    uint8_t storage[4] = {1, 2, 3, 4};
    int32_t pairs[] = {2, 0, 2, 1, 2, 3};
    struct pkv_tensor tensor = pkv_tensor_make(storage, PKV_DTYPE_U8, 4, (int64_t[]){4, 1, 1, 1});
    struct pkv_tensor mapping = pkv_tensor_make(pairs, PKV_DTYPE_I32, 2, (int64_t[]){3, 2});
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    (void)state;
    CHECK_OK(pkv_cache_init(&cache, &tensor, NULL, NULL, &error), &error);
    CHECK_OK(pkv_copy_blocks(contexts.all[0], &cache, &mapping, &error), &error);
    assert_memory_equal(storage, "\3\3\3\3", 4);
}

static void bad_pairs_are_refused(void **state) {
    static const struct {
        int64_t pairs[6];
        int32_t status;
    } wrong[] = {
        {{0, 1, 1, 2, 3, 4}, PKV_STATUS_OVERLAP},
        {{1, 2, 0, 1, 3, 4}, PKV_STATUS_OVERLAP},
        {{0, 2, 1, 2, 3, 4}, PKV_STATUS_OVERLAP},
        {{0, 2, 3, 4, 0, 2}, PKV_STATUS_OVERLAP},
        {{0, 1, 5, 5, 3, 4}, PKV_STATUS_OVERLAP},
        {{0, 1, 2, 3, 4, 9}, PKV_STATUS_BLOCK_OUT_OF_RANGE},
        {{0, 1, 2, 3, -1, 4}, PKV_STATUS_BLOCK_OUT_OF_RANGE},
        {{0, 1, 2, 3, (INT64_C(1) << 32) + 4, 5}, PKV_STATUS_BLOCK_OUT_OF_RANGE},
        {{0, 1, INT64_MAX, 3, 4, 5}, PKV_STATUS_BLOCK_OUT_OF_RANGE},
    };
    struct test_rng rng = test_rng_make(seed + 2);
    struct model_sizes sizes = plain_sizes();
    struct model_cache model = model_cache_make(&sizes, &rng);
    struct pkv_cache cache;

    (void)state;
    CHECK_OK(init_cache(&cache, &model, &error), &error);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct model_index mapping =
            model_index_make(PKV_DTYPE_I64, 2, (int64_t[]){3, 2}, wrong[i].pairs);

        for (int j = 0; j < contexts.count; j++) {
            CHECK_REFUSED(pkv_copy_blocks(contexts.all[j], &cache, &mapping.tensor, &error), &error,
                          wrong[i].status);
            assert_true(model_cache_is_as_expected(&model));
        }
        if (wrong[i].status == PKV_STATUS_BLOCK_OUT_OF_RANGE) {
            assert_int_equal(error.value, wrong[i].pairs[error.index]);
            assert_int_equal(error.bound, 9);
        }
        model_index_free(&mapping);
    }
    model_cache_free(&model);
}

/* 2^57 times the same pair: the first ones decide. */
static void endless_pairs_are_refused(void **state) {
    struct test_rng rng = test_rng_make(seed + 3);
    struct model_sizes sizes = plain_sizes();
    struct model_cache model = model_cache_make(&sizes, &rng);
    struct pkv_cache cache;
    int64_t pair[2] = {0, 1};
    struct pkv_tensor mapping =
        pkv_tensor_make(pair, PKV_DTYPE_I64, 2, (int64_t[]){INT64_C(1) << 57, 2});

    (void)state;
    mapping.strides[1] = 1;
    CHECK_OK(init_cache(&cache, &model, &error), &error);
    CHECK_REFUSED(pkv_copy_blocks(contexts.all[0], &cache, &mapping, &error), &error,
                  PKV_STATUS_OVERLAP);
    pair[1] = 9;
    CHECK_REFUSED(pkv_copy_blocks(contexts.all[0], &cache, &mapping, &error), &error,
                  PKV_STATUS_BLOCK_OUT_OF_RANGE);
    assert_true(model_cache_is_as_expected(&model));
    model_cache_free(&model);
}

static void copy_refuses_bad_tensors(void **state) {
    uint16_t storage[8] = {0};
    int32_t pairs[] = {2, 0, 2, 1};
    struct pkv_tensor tensor = pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){4, 1, 1, 2});
    struct pkv_tensor good = pkv_tensor_make(pairs, PKV_DTYPE_I32, 2, (int64_t[]){2, 2});
    struct pkv_tensor mapping = good;
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct pkv_context *context = contexts.all[0];

    (void)state;
    CHECK_OK(pkv_cache_init(&cache, &tensor, NULL, NULL, &error), &error);
    mapping.dtype = PKV_DTYPE_F32;
    CHECK_REFUSED(pkv_copy_blocks(context, &cache, &mapping, &error), &error, PKV_STATUS_DTYPE);
    mapping = pkv_tensor_make(pairs, PKV_DTYPE_I32, 1, (int64_t[]){4});
    CHECK_REFUSED(pkv_copy_blocks(context, &cache, &mapping, &error), &error, PKV_STATUS_RANK);
    mapping = pkv_tensor_make(pairs, PKV_DTYPE_I32, 2, (int64_t[]){1, 3});
    CHECK_REFUSED(pkv_copy_blocks(context, &cache, &mapping, &error), &error, PKV_STATUS_SHAPE);
    mapping = good;
    mapping.strides[0] = -2;
    CHECK_REFUSED(pkv_copy_blocks(context, &cache, &mapping, &error), &error, PKV_STATUS_STRIDE);
    mapping = good;
    mapping.data = (char *)pairs + 1;
    CHECK_REFUSED(pkv_copy_blocks(context, &cache, &mapping, &error), &error,
                  PKV_STATUS_MISALIGNED);
    CHECK_REFUSED(pkv_copy_blocks(context, &cache, NULL, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_copy_blocks(context, NULL, &good, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_copy_blocks(NULL, &cache, &good, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    /* The pairs lie in a block that would be overwritten. */
    mapping = pkv_tensor_make(storage, PKV_DTYPE_I32, 2, (int64_t[]){1, 2});
    ((unsigned char *)storage)[0] = 1;
    CHECK_REFUSED(pkv_copy_blocks(context, &cache, &mapping, &error), &error, PKV_STATUS_OVERLAP);
}

/* There and back: what arrives is what the reference writes, what comes back is what was there. */
static void expect_conversion(struct pkv_context *context, const struct model_sizes *from,
                              const struct model_sizes *to, struct test_rng *rng) {
    struct model_cache src = model_cache_make(from, rng);
    struct model_cache dst = model_cache_make(to, rng);
    struct model_cache back = model_cache_make(from, rng);
    struct pkv_cache caches[3];

    CHECK_OK(init_cache(&caches[0], &src, &error), &error);
    CHECK_OK(init_cache(&caches[1], &dst, &error), &error);
    CHECK_OK(init_cache(&caches[2], &back, &error), &error);
    ref_convert(&src.key.ref, src.key.shadow, &dst.key.ref, dst.key.shadow);
    ref_convert(&src.key.ref, src.key.shadow, &back.key.ref, back.key.shadow);
    ref_convert(&src.value.ref, src.value.shadow, &dst.value.ref, dst.value.shadow);
    ref_convert(&src.value.ref, src.value.shadow, &back.value.ref, back.value.shadow);
    CHECK_OK(pkv_convert_layout(context, &caches[0], &caches[1], &error), &error);
    assert_true(model_cache_is_as_expected(&dst));
    assert_true(model_cache_is_as_expected(&src));
    CHECK_OK(pkv_convert_layout(context, &caches[1], &caches[2], &error), &error);
    assert_true(model_cache_is_as_expected(&back));
    assert_true(model_cache_is_as_expected(&dst));
    model_cache_free(&src);
    model_cache_free(&dst);
    model_cache_free(&back);
}

static void every_layout_into_every_other(void **state) {
    static const int32_t dtypes[] = {PKV_DTYPE_F32, PKV_DTYPE_BF16, PKV_DTYPE_F8_E5M2};
    struct test_rng rng = test_rng_make(seed + 3);
    int turn = 0;

    (void)state;
    for (int32_t pair = 0; pair < REF_NUM_LAYOUTS * REF_NUM_LAYOUTS; pair++) {
        for (int variant = 0; variant < 12; variant++, turn++) {
            struct model_sizes from = plain_sizes();
            struct model_sizes to;

            from.key_dtype = from.value_dtype = dtypes[variant % 3];
            from.num_heads = 1 + variant % 4;
            to = from;
            from.key_layout = to.value_layout = pair % REF_NUM_LAYOUTS;
            to.key_layout = from.value_layout = pair / REF_NUM_LAYOUTS;
            from.padded = variant & 1;
            to.padded = (variant >> 1) & 1;
            to.interleaved = (variant >> 2) & 1;
            from.nz_5d = (variant >> 2) & 1;
            expect_conversion(contexts.all[turn % contexts.count], &from, &to, &rng);
        }
    }
}

static void large_conversions_go_to_the_threads(void **state) {
    struct test_rng rng = test_rng_make(seed + 4);
    struct model_sizes from = plain_sizes();
    struct model_sizes to;

    (void)state;
    from.num_blocks = 12;
    from.block_size = 64;
    from.num_heads = 4;
    to = from;
    to.key_layout = PKV_LAYOUT_HND;
    to.value_layout = PKV_LAYOUT_TRANSPOSED;
    for (int i = 0; i < contexts.count; i += 3) {
        expect_conversion(contexts.all[i], &from, &to, &rng);
    }
}

/* PA_NZ that is described as one head of kv_dim fits any split of the same row. */
static void pa_nz_without_heads_fits_any_split(void **state) {
    struct test_rng rng = test_rng_make(seed + 5);
    struct model_sizes from = plain_sizes();
    struct model_sizes to = plain_sizes();
    struct model_cache src, dst;
    struct pkv_cache_options options;
    struct pkv_cache one = {.struct_size = sizeof(one)};
    struct pkv_cache two;

    (void)state;
    from.key_layout = from.value_layout = PKV_LAYOUT_PA_NZ;
    src = model_cache_make(&from, &rng);
    dst = model_cache_make(&to, &rng);
    options = model_cache_options(&src);
    options.num_kv_heads = 0;
    CHECK_OK(pkv_cache_init(&one, &src.key.tensor, &src.value.tensor, &options, &error), &error);
    CHECK_OK(init_cache(&two, &dst, &error), &error);
    ref_convert(&src.key.ref, src.key.shadow, &dst.key.ref, dst.key.shadow);
    ref_convert(&src.value.ref, src.value.shadow, &dst.value.ref, dst.value.shadow);
    CHECK_OK(pkv_convert_layout(contexts.all[0], &one, &two, &error), &error);
    assert_true(model_cache_is_as_expected(&dst));
    CHECK_OK(pkv_convert_layout(contexts.all[0], &two, &one, &error), &error);
    assert_true(model_cache_is_as_expected(&src));
    model_cache_free(&src);
    model_cache_free(&dst);
}

static void expect_no_conversion(const struct model_sizes *to, int32_t expected, int line) {
    struct test_rng rng = test_rng_make(seed + 6);
    struct model_sizes from = plain_sizes();
    struct model_cache src = model_cache_make(&from, &rng);
    struct model_cache dst = model_cache_make(to, &rng);
    struct pkv_cache one, two;

    CHECK_OK(init_cache(&one, &src, &error), &error);
    CHECK_OK(init_cache(&two, &dst, &error), &error);
    check_refused(pkv_convert_layout(contexts.all[0], &one, &two, &error), &error, expected,
                  __FILE__, line);
    assert_true(model_cache_is_as_expected(&dst));
    model_cache_free(&src);
    model_cache_free(&dst);
}

static void conversions_need_the_same_rows(void **state) {
    struct model_sizes to = plain_sizes();

    (void)state;
    to.num_blocks = 8;
    expect_no_conversion(&to, PKV_STATUS_SHAPE, __LINE__);
    to = plain_sizes();
    to.block_size = 6;
    expect_no_conversion(&to, PKV_STATUS_SHAPE, __LINE__);
    to = plain_sizes();
    to.num_heads = 1;
    expect_no_conversion(&to, PKV_STATUS_SHAPE, __LINE__);
    to = plain_sizes();
    to.value_head_size = 64;
    expect_no_conversion(&to, PKV_STATUS_SHAPE, __LINE__);
    to = plain_sizes();
    to.value_dtype = PKV_DTYPE_I16;
    expect_no_conversion(&to, PKV_STATUS_DTYPE, __LINE__);
    to = plain_sizes();
    to.value_dtype = 0;
    expect_no_conversion(&to, PKV_STATUS_SHAPE, __LINE__);
}

static void conversion_in_place_is_refused(void **state) {
    struct test_rng rng = test_rng_make(seed + 7);
    struct model_sizes sizes = plain_sizes();
    struct model_cache model = model_cache_make(&sizes, &rng);
    struct pkv_cache cache;
    struct pkv_cache other;

    (void)state;
    CHECK_OK(init_cache(&cache, &model, &error), &error);
    CHECK_REFUSED(pkv_convert_layout(contexts.all[0], &cache, &cache, &error), &error,
                  PKV_STATUS_OVERLAP);
    /* The new values in the old keys. */
    other = cache;
    other.value.data = cache.key.data;
    other.key.data = cache.value.data;
    CHECK_REFUSED(pkv_convert_layout(contexts.all[0], &cache, &other, &error), &error,
                  PKV_STATUS_OVERLAP);
    CHECK_REFUSED(pkv_convert_layout(contexts.all[0], NULL, &cache, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_convert_layout(contexts.all[0], &cache, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_convert_layout(NULL, &cache, &cache, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    assert_true(model_cache_is_as_expected(&model));
    model_cache_free(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_in_every_layout),
        cmocka_unit_test(large_copies_go_to_the_threads),
        cmocka_unit_test(fan_out_is_allowed),
        cmocka_unit_test(bad_pairs_are_refused),
        cmocka_unit_test(endless_pairs_are_refused),
        cmocka_unit_test(copy_refuses_bad_tensors),
        cmocka_unit_test(every_layout_into_every_other),
        cmocka_unit_test(large_conversions_go_to_the_threads),
        cmocka_unit_test(pa_nz_without_heads_fits_any_split),
        cmocka_unit_test(conversions_need_the_same_rows),
        cmocka_unit_test(conversion_in_place_is_refused),
    };

    seed = test_seed(18);
    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
