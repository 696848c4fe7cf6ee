/* SPDX-License-Identifier: MIT
 *
 * Whole blocks from one cache to another, and blocks filled with a value, in every layout.
 */
#include "calls.h"
#include "contexts.h"

#include <inttypes.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static uint64_t seed;

enum { MAX_BLOCKS = 40 };

static struct model_sizes draw_sizes(struct test_rng *rng) {
    static const int32_t dtypes[] = {PKV_DTYPE_F32, PKV_DTYPE_BF16, PKV_DTYPE_I8, PKV_DTYPE_U16,
                                     PKV_DTYPE_HIFLOAT8};
    struct model_sizes sizes = {
        .key_dtype = dtypes[test_rng_below(rng, 5)],
        .value_dtype = dtypes[test_rng_below(rng, 5)],
        .num_blocks = test_rng_between(rng, 1, MAX_BLOCKS),
        .block_size = test_rng_between(rng, 1, 9),
        .num_heads = test_rng_between(rng, 1, 3),
        .key_head_size = 32 * test_rng_between(rng, 1, 3),
        .value_head_size = 32 * test_rng_between(rng, 1, 2),
    };

    if (test_rng_below(rng, 5) == 0) {
        sizes.value_dtype = 0;
    }
    return sizes;
}

static void draw_places(struct model_sizes *sizes, struct test_rng *rng) {
    sizes->key_layout = (int32_t)test_rng_below(rng, REF_NUM_LAYOUTS);
    sizes->value_layout = (int32_t)test_rng_below(rng, REF_NUM_LAYOUTS);
    sizes->padded = (int)test_rng_below(rng, 2);
    sizes->interleaved = (int)test_rng_below(rng, 2);
    sizes->nz_5d = (int)test_rng_below(rng, 2);
    sizes->side = test_rng_below(rng, 2) ? TEST_GUARD_END : TEST_GUARD_START;
    if (sizes->value_dtype == 0 && sizes->key_layout == PKV_LAYOUT_PA_NZ) {
        sizes->key_layout = PKV_LAYOUT_NHD;
    }
}

static void ref_swap_block(const struct model_part *from, const struct model_part *to, int64_t src,
                           int64_t dst) {
    const struct ref_part *a = &from->ref, *b = &to->ref;

    for (int64_t e = 0; e < a->block_size * a->num_heads * a->head_size; e++) {
        int64_t d = e % a->head_size, head = e / a->head_size % a->num_heads;
        int64_t offset = e / a->head_size / a->num_heads;

        memcpy(to->shadow + ref_part_index(b, dst, offset, head, d) * b->element_bytes,
               from->shadow + ref_part_index(a, src, offset, head, d) * a->element_bytes,
               (size_t)a->element_bytes);
    }
}

/* Any block may be a source, again and again; each destination once. */
static void swap_case(struct pkv_context *context, struct test_rng *rng, int64_t block_size) {
    struct model_sizes from = draw_sizes(rng), to;
    struct model_cache src, dst;
    struct pkv_cache caches[2];
    struct model_index mapping;
    int64_t order[MAX_BLOCKS], pairs[2 * MAX_BLOCKS], num_pairs;

    if (block_size != 0) {
        from.block_size = block_size;
    }
    to = from;
    to.num_blocks = test_rng_between(rng, 1, MAX_BLOCKS);
    draw_places(&from, rng);
    draw_places(&to, rng);
    src = model_cache_make(&from, rng);
    dst = model_cache_make(&to, rng);
    num_pairs = test_rng_between(rng, 0, to.num_blocks);
    test_rng_permutation(rng, order, to.num_blocks);
    for (int64_t i = 0; i < num_pairs; i++) {
        pairs[2 * i] = test_rng_below(rng, from.num_blocks);
        pairs[2 * i + 1] = order[i];
        ref_swap_block(&src.key, &dst.key, pairs[2 * i], pairs[2 * i + 1]);
        if (src.has_value) {
            ref_swap_block(&src.value, &dst.value, pairs[2 * i], pairs[2 * i + 1]);
        }
    }
    CHECK_OK(init_cache(&caches[0], &src, &error), &error);
    CHECK_OK(init_cache(&caches[1], &dst, &error), &error);
    mapping = model_index_make(test_rng_below(rng, 2) ? PKV_DTYPE_I32 : PKV_DTYPE_I64, 2,
                               (int64_t[]){num_pairs, 2}, pairs);
    CHECK_OK(pkv_swap_blocks(context, &caches[0], &caches[1], &mapping.tensor, &error), &error);
    assert_true(model_cache_is_as_expected(&src));
    assert_true(model_cache_is_as_expected(&dst));
    model_index_free(&mapping);
    model_cache_free(&src);
    model_cache_free(&dst);
}

static void swaps_between_any_two_layouts(void **state) {
    struct test_rng rng = test_rng_make(seed);

    (void)state;
    for (int i = 0; i < 1500; i++) {
        swap_case(contexts.all[i % contexts.count], &rng, 0);
    }
}

static void large_swaps_go_to_the_threads(void **state) {
    struct test_rng rng = test_rng_make(seed + 1);

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        swap_case(contexts.all[i], &rng, 128);
    }
}

/* Copying is refused when a destination is a source too; between two caches these are different
 * blocks. */
static void a_number_may_be_source_and_destination(void **state) {
    uint8_t from[4] = {1, 2, 3, 4}, to[4] = {9, 9, 9, 9};
    int32_t pairs[] = {0, 1, 1, 2, 2, 0};
    struct pkv_tensor a = pkv_tensor_make(from, PKV_DTYPE_U8, 4, (int64_t[]){4, 1, 1, 1});
    struct pkv_tensor b = pkv_tensor_make(to, PKV_DTYPE_U8, 4, (int64_t[]){4, 1, 1, 1});
    struct pkv_tensor mapping = pkv_tensor_make(pairs, PKV_DTYPE_I32, 2, (int64_t[]){3, 2});
    struct pkv_cache src, dst;

    (void)state;
    CHECK_OK(pkv_cache_init(&src, &a, NULL, NULL, &error), &error);
    CHECK_OK(pkv_cache_init(&dst, &b, NULL, NULL, &error), &error);
    CHECK_OK(pkv_swap_blocks(contexts.all[0], &src, &dst, &mapping, &error), &error);
    assert_memory_equal(to, "\3\1\2\11", 4);
}

static void bad_swaps_are_refused(void **state) {
    static const struct {
        int64_t pairs[4];
        int32_t status;
        int64_t index, bound;
    } wrong[] = {
        {{0, 1, 2, 1}, PKV_STATUS_OVERLAP, 3, PKV_ERROR_NONE},
        {{0, 1, 3, 2}, PKV_STATUS_BLOCK_OUT_OF_RANGE, 2, 3},
        {{0, 1, 2, 5}, PKV_STATUS_BLOCK_OUT_OF_RANGE, 3, 5},
        {{0, 1, -1, 2}, PKV_STATUS_BLOCK_OUT_OF_RANGE, 2, 3},
        {{0, 1, 2, INT64_MIN}, PKV_STATUS_BLOCK_OUT_OF_RANGE, 3, 5},
    };
    uint16_t from[3 * 2 * 4], to[5 * 2 * 4], before[5 * 2 * 4];
    struct pkv_tensor a = pkv_tensor_make(from, PKV_DTYPE_F16, 4, (int64_t[]){3, 2, 1, 4});
    struct pkv_tensor b = pkv_tensor_make(to, PKV_DTYPE_F16, 4, (int64_t[]){5, 2, 1, 4});
    struct pkv_cache src, dst, other;
    int64_t good_pairs[] = {0, 1, 2, 4};
    struct pkv_tensor good = pkv_tensor_make(good_pairs, PKV_DTYPE_I64, 2, (int64_t[]){2, 2});
    struct pkv_tensor inside = pkv_tensor_make(to, PKV_DTYPE_I32, 2, (int64_t[]){1, 2});

    (void)state;
    memset(from, 1, sizeof(from));
    memset(to, 0, sizeof(to));
    memcpy(before, to, sizeof(to));
    CHECK_OK(pkv_cache_init(&src, &a, NULL, NULL, &error), &error);
    CHECK_OK(pkv_cache_init(&dst, &b, NULL, NULL, &error), &error);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct model_index mapping =
            model_index_make(PKV_DTYPE_I64, 2, (int64_t[]){2, 2}, wrong[i].pairs);

        for (int j = 0; j < contexts.count; j++) {
            CHECK_REFUSED(pkv_swap_blocks(contexts.all[j], &src, &dst, &mapping.tensor, &error),
                          &error, wrong[i].status);
            assert_int_equal(error.index, wrong[i].index);
            assert_int_equal(error.bound, wrong[i].bound);
            assert_memory_equal(to, before, sizeof(to));
        }
        model_index_free(&mapping);
    }
    CHECK_REFUSED(pkv_swap_blocks(contexts.all[0], &src, &src, &good, &error), &error,
                  PKV_STATUS_OVERLAP);
    CHECK_REFUSED(pkv_swap_blocks(contexts.all[0], &src, &dst, &inside, &error), &error,
                  PKV_STATUS_OVERLAP);
    a.dtype = PKV_DTYPE_BF16;
    CHECK_OK(pkv_cache_init(&other, &a, NULL, NULL, &error), &error);
    CHECK_REFUSED(pkv_swap_blocks(contexts.all[0], &other, &dst, &good, &error), &error,
                  PKV_STATUS_DTYPE);
    a = pkv_tensor_make(from, PKV_DTYPE_F16, 4, (int64_t[]){3, 1, 2, 4});
    CHECK_OK(pkv_cache_init(&other, &a, NULL, NULL, &error), &error);
    CHECK_REFUSED(pkv_swap_blocks(contexts.all[0], &other, &dst, &good, &error), &error,
                  PKV_STATUS_SHAPE);
    other = (struct pkv_cache){0};
    CHECK_REFUSED(pkv_swap_blocks(contexts.all[0], &other, &dst, &good, &error), &error,
                  PKV_STATUS_BAD_STATE);
    CHECK_REFUSED(pkv_swap_blocks(NULL, &src, &dst, &good, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_swap_blocks(contexts.all[0], NULL, &dst, &good, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_swap_blocks(contexts.all[0], &src, NULL, &good, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_swap_blocks(contexts.all[0], &src, &dst, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    assert_memory_equal(to, before, sizeof(to));
}

static void ref_fill(const struct model_part *part, int64_t first, int64_t num,
                     const unsigned char *element) {
    const struct ref_part *ref = &part->ref;
    int64_t per_block = ref->block_size * ref->num_heads * ref->head_size;

    for (int64_t e = first * per_block; e < (first + num) * per_block; e++) {
        int64_t d = e % ref->head_size, head = e / ref->head_size % ref->num_heads;
        int64_t slot = e / ref->head_size / ref->num_heads;

        memcpy(part->shadow +
                   ref_part_index(ref, slot / ref->block_size, slot % ref->block_size, head, d) *
                       ref->element_bytes,
               element, (size_t)ref->element_bytes);
    }
}

static void fill_case(struct pkv_context *context, struct test_rng *rng, int64_t block_size) {
    struct model_sizes sizes = draw_sizes(rng);
    unsigned char key[4], value[4];
    struct model_cache model;
    struct pkv_cache cache;
    int64_t first, num;

    if (block_size != 0) {
        sizes.block_size = block_size;
    }
    if (block_size > 1000) {
        sizes.num_blocks = test_rng_between(rng, 1, 3);
    }
    draw_places(&sizes, rng);
    model = model_cache_make(&sizes, rng);
    first = test_rng_between(rng, 0, sizes.num_blocks);
    num = test_rng_between(rng, 0, sizes.num_blocks - first);
    test_rng_fill(rng, key, sizeof(key));
    test_rng_fill(rng, value, sizeof(value));
    ref_fill(&model.key, first, num, key);
    if (model.has_value) {
        ref_fill(&model.value, first, num, value);
    }
    CHECK_OK(init_cache(&cache, &model, &error), &error);
    CHECK_OK(
        pkv_fill_blocks(context, &cache, first, num, key, model.has_value ? value : NULL, &error),
        &error);
    assert_true(model_cache_is_as_expected(&model));
    model_cache_free(&model);
}

static void fills_in_every_layout(void **state) {
    struct test_rng rng = test_rng_make(seed + 2);

    (void)state;
    for (int i = 0; i < 1500; i++) {
        fill_case(contexts.all[i % contexts.count], &rng, 0);
    }
}

static void large_fills_go_to_the_threads(void **state) {
    struct test_rng rng = test_rng_make(seed + 3);

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        fill_case(contexts.all[i], &rng, 128);
        fill_case(contexts.all[i], &rng, 4000); /* a part is less than a block */
    }
}

/* The element may lie in what is filled. */
static void the_value_may_come_from_the_cache(void **state) {
    uint16_t data[6] = {1, 2, 3, 4, 5, 6};
    struct pkv_tensor tensor = pkv_tensor_make(data, PKV_DTYPE_BF16, 4, (int64_t[]){3, 1, 1, 2});
    struct pkv_cache cache;

    (void)state;
    CHECK_OK(pkv_cache_init(&cache, &tensor, NULL, NULL, &error), &error);
    CHECK_OK(pkv_fill_blocks(contexts.all[0], &cache, 1, 2, &data[4], NULL, &error), &error);
    assert_int_equal(data[1], 2);
    for (int i = 2; i < 6; i++) {
        assert_int_equal(data[i], 5);
    }
}

static void bad_fills_are_refused(void **state) {
    uint16_t keys[6] = {1, 2, 3, 4, 5, 6}, values[6] = {1, 2, 3, 4, 5, 6}, nan = 0x7fc0;
    struct pkv_tensor key = pkv_tensor_make(keys, PKV_DTYPE_BF16, 4, (int64_t[]){3, 1, 1, 2});
    struct pkv_tensor value = pkv_tensor_make(values, PKV_DTYPE_BF16, 4, (int64_t[]){3, 1, 1, 2});
    static const struct {
        int64_t first, num;
        const char *argument;
    } wrong[] = {{-1, 1, "first_block"},        {4, 0, "first_block"},
                 {INT64_MAX, 1, "first_block"}, {1, 3, "num_blocks"},
                 {0, INT64_MAX, "num_blocks"},  {1, -1, "num_blocks"}};
    struct pkv_cache both, key_only, none = {0};

    (void)state;
    CHECK_OK(pkv_cache_init(&both, &key, &value, NULL, &error), &error);
    CHECK_OK(pkv_cache_init(&key_only, &key, NULL, NULL, &error), &error);
    for (int i = 0; i < contexts.count; i++) {
        struct pkv_context *context = contexts.all[i];

        for (size_t j = 0; j < sizeof(wrong) / sizeof(wrong[0]); j++) {
            CHECK_REFUSED(
                pkv_fill_blocks(context, &both, wrong[j].first, wrong[j].num, &nan, &nan, &error),
                &error, PKV_STATUS_BLOCK_OUT_OF_RANGE);
            assert_string_equal(error.argument, wrong[j].argument);
        }
        CHECK_REFUSED(pkv_fill_blocks(context, &both, 0, 3, &nan, NULL, &error), &error,
                      PKV_STATUS_NULL_ARGUMENT);
        CHECK_REFUSED(pkv_fill_blocks(context, &key_only, 0, 3, &nan, &nan, &error), &error,
                      PKV_STATUS_NULL_ARGUMENT);
        CHECK_REFUSED(pkv_fill_blocks(context, &both, 0, 3, NULL, &nan, &error), &error,
                      PKV_STATUS_NULL_ARGUMENT);
        CHECK_REFUSED(pkv_fill_blocks(context, NULL, 0, 3, &nan, &nan, &error), &error,
                      PKV_STATUS_NULL_ARGUMENT);
        CHECK_REFUSED(pkv_fill_blocks(context, &none, 0, 3, &nan, &nan, &error), &error,
                      PKV_STATUS_BAD_STATE);
    }
    CHECK_REFUSED(pkv_fill_blocks(NULL, &both, 0, 3, &nan, &nan, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(keys[i], i + 1);
        assert_int_equal(values[i], i + 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swaps_between_any_two_layouts),
        cmocka_unit_test(large_swaps_go_to_the_threads),
        cmocka_unit_test(a_number_may_be_source_and_destination),
        cmocka_unit_test(bad_swaps_are_refused),
        cmocka_unit_test(fills_in_every_layout),
        cmocka_unit_test(large_fills_go_to_the_threads),
        cmocka_unit_test(the_value_may_come_from_the_cache),
        cmocka_unit_test(bad_fills_are_refused),
    };

    seed = test_seed(33);
    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
