/* SPDX-License-Identifier: MIT
 *
 * What a scatter writes: documented examples, every dtype, layout, stride and way to call it, held
 * against the reference byte for byte. Refusals are in test_scatter_errors.c.
 */
#include "calls.h"
#include "contexts.h"

#include <stdlib.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static uint64_t seed;

/* A sequence of slots as engines do not send them: random, named again, and padding. */
static void fill_slots(struct test_rng *rng, int64_t *slots, int64_t num_tokens,
                       int64_t num_slots) {
    for (int64_t t = 0; t < num_tokens; t++) {
        slots[t] = test_rng_below(rng, num_slots);
        if (t > 0 && test_rng_below(rng, 4) == 0) {
            slots[t] = slots[test_rng_below(rng, t)];
        }
        if (test_rng_below(rng, 8) == 0) {
            slots[t] = -1 - test_rng_below(rng, 3);
        }
    }
}

struct scatter_case {
    struct model_sizes sizes;
    enum model_rows_kind key_rows;
    enum model_rows_kind value_rows;
    int64_t num_tokens;
    const int64_t *slots; /* NULL: random ones */
    int32_t slot_dtype;
};

/* One call in one context: the cache must hold what the reference writes, and every other byte of
 * its memory what it held before. */
static void expect_scatter(struct pkv_context *context, const struct scatter_case *it, int way,
                           struct test_rng *rng) {
    struct model_cache cache = model_cache_make(&it->sizes, rng);
    struct model_rows key =
        model_rows_make(it->key_rows, &cache.key, it->num_tokens, it->sizes.side, rng);
    struct model_rows value = {0};
    int64_t *slots = calloc((size_t)it->num_tokens + 1, sizeof(*slots));
    struct model_index index;

    assert_non_null(slots);
    if (it->slots != NULL) {
        memcpy(slots, it->slots, (size_t)it->num_tokens * sizeof(*slots));
    } else {
        fill_slots(rng, slots, it->num_tokens, it->sizes.num_blocks * it->sizes.block_size);
    }
    index = model_index_make(it->slot_dtype, 1, &it->num_tokens, slots);
    ref_scatter(&cache.key.ref, cache.key.shadow, &key.ref, key.memory.data, slots);
    if (cache.has_value) {
        value = model_rows_make(it->value_rows, &cache.value, it->num_tokens, it->sizes.side, rng);
        ref_scatter(&cache.value.ref, cache.value.shadow, &value.ref, value.memory.data, slots);
        test_guard_protect(&value.memory);
    }
    test_guard_protect(&key.memory);
    test_guard_protect(&index.memory);
    CHECK_OK(call_scatter(context, &cache, &key, cache.has_value ? &value : NULL, &index.tensor,
                          PKV_DUPLICATES_LAST_WINS, way, rng, &error),
             &error);
    assert_true(model_cache_is_as_expected(&cache));
    model_index_free(&index);
    free(slots);
    if (value.shadow != NULL) {
        model_rows_free(&value);
    }
    model_rows_free(&key);
    model_cache_free(&cache);
}

static struct scatter_case plain_case(void) {
    return (struct scatter_case){.sizes = {.key_dtype = PKV_DTYPE_BF16,
                                           .value_dtype = PKV_DTYPE_BF16,
                                           .num_blocks = 5,
                                           .block_size = 4,
                                           .num_heads = 2,
                                           .key_head_size = 32,
                                           .value_head_size = 32},
                                 .num_tokens = 13,
                                 .slot_dtype = PKV_DTYPE_I32};
}

/* Each context in turn; the way to call changes with it. */
static void expect_in_every_context(const struct scatter_case *it, struct test_rng *rng) {
    for (int i = 0; i < contexts.count; i++) {
        expect_scatter(contexts.all[i], it, i % 9 - 1, rng);
    }
}

static void norm_example(void **state) {
    uint16_t storage[2 * 4 * 2 * 2] = {0};
    uint16_t source[3 * 2 * 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    int32_t slots[3] = {5, -1, 2};
    struct pkv_tensor cache = pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){2, 4, 2, 2});
    struct pkv_tensor key = pkv_tensor_make(source, PKV_DTYPE_BF16, 3, (int64_t[]){3, 2, 2});
    struct pkv_tensor mapping = pkv_tensor_make(slots, PKV_DTYPE_I32, 1, (int64_t[]){3});

    (void)state;
    CHECK_OK(
        pkv_scatter_pa_kv_cache(contexts.all[0], &key, &cache, &mapping, NULL, NULL, NULL, &error),
        &error);
    for (int i = 0; i < 32; i++) {
        int expected = i >= 20 && i < 24 ? 1 + i - 20 : i >= 8 && i < 12 ? 9 + i - 8 : 0;

        assert_int_equal(storage[i], expected);
    }
}

static void pa_nz_example(void **state) {
    static uint16_t storage[2 * 4 * 64];
    static uint16_t value_storage[2 * 4 * 64];
    uint16_t source[64];
    int64_t slot = 6;
    struct pkv_tensor cache = pkv_tensor_make(storage, PKV_DTYPE_F16, 4, (int64_t[]){2, 4, 4, 16});
    struct pkv_tensor value_cache =
        pkv_tensor_make(value_storage, PKV_DTYPE_F16, 4, (int64_t[]){2, 4, 4, 16});
    struct pkv_tensor key = pkv_tensor_make(source, PKV_DTYPE_F16, 3, (int64_t[]){1, 2, 32});
    struct pkv_tensor mapping = pkv_tensor_make(&slot, PKV_DTYPE_I64, 1, (int64_t[]){1});
    struct pkv_scatter_pa_kv_cache_options options = {.key_layout = PKV_LAYOUT_PA_NZ,
                                                      .value_layout = PKV_LAYOUT_PA_NZ};
    int touched = 0;

    (void)state;
    for (int i = 0; i < 64; i++) {
        source[i] = (uint16_t)(1000 + i);
    }
    CHECK_OK(pkv_scatter_pa_kv_cache(contexts.all[0], &key, &cache, &mapping, &key, &value_cache,
                                     &options, &error),
             &error);
    assert_int_equal(storage[419], 1035);
    for (int i = 0; i < 2 * 4 * 64; i++) {
        touched += storage[i] != 0;
    }
    assert_int_equal(touched, 64);
    assert_memory_equal(storage, value_storage, sizeof(storage));
}

/* Keys and values as column ranges of one fused matrix: Q 8, K 2, V 2. */
static void nct_example(void **state) {
    uint16_t fused[4 * 12];
    uint16_t keys[8 * 2] = {0};
    uint16_t values[8 * 2] = {0};
    int32_t slots[4] = {7, 0, -5, 3};
    struct pkv_tensor source = pkv_tensor_make(fused, PKV_DTYPE_F16, 2, (int64_t[]){4, 12});
    struct pkv_tensor key = pkv_tensor_make(keys, PKV_DTYPE_F16, 4, (int64_t[]){2, 4, 1, 2});
    struct pkv_tensor value = pkv_tensor_make(values, PKV_DTYPE_F16, 4, (int64_t[]){2, 4, 1, 2});
    struct pkv_tensor mapping = pkv_tensor_make(slots, PKV_DTYPE_I32, 1, (int64_t[]){4});
    struct pkv_scatter_pa_kv_cache_options options = {.scatter_mode = PKV_SCATTER_MODE_NCT,
                                                      .key_stride = 12,
                                                      .value_stride = 12,
                                                      .key_offset = 8,
                                                      .value_offset = 10};

    (void)state;
    for (int i = 0; i < 48; i++) {
        fused[i] = (uint16_t)(100 + i);
    }
    CHECK_OK(pkv_scatter_pa_kv_cache(contexts.all[0], &source, &key, &mapping, &source, &value,
                                     &options, &error),
             &error);
    for (int i = 0; i < 16; i++) {
        int slot = i / 2;
        int token = slot == 7 ? 0 : slot == 0 ? 1 : slot == 3 ? 3 : -1;

        assert_int_equal(keys[i], token < 0 ? 0 : 100 + token * 12 + 8 + i % 2);
        assert_int_equal(values[i], token < 0 ? 0 : 100 + token * 12 + 10 + i % 2);
    }
    /* Token 3: elements 44, 45 and 46, 47. */
    assert_int_equal(keys[6], 144);
    assert_int_equal(values[7], 147);
}

/* The value is read with its own stride, not with the key's. */
static void nct_strides_are_separate(void **state) {
    uint8_t key_source[3 * 7];
    uint8_t value_source[3 * 5];
    uint8_t keys[4 * 2] = {0};
    uint8_t values[4 * 3] = {0};
    int64_t slots[3] = {2, 1, 3};
    struct pkv_tensor key_rows = pkv_tensor_make(key_source, PKV_DTYPE_U8, 2, (int64_t[]){3, 7});
    struct pkv_tensor value_rows =
        pkv_tensor_make(value_source, PKV_DTYPE_U8, 2, (int64_t[]){3, 5});
    struct pkv_tensor key = pkv_tensor_make(keys, PKV_DTYPE_U8, 4, (int64_t[]){1, 4, 2, 1});
    struct pkv_tensor value = pkv_tensor_make(values, PKV_DTYPE_U8, 4, (int64_t[]){1, 4, 2, 1});
    struct pkv_tensor mapping = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, (int64_t[]){3});
    struct pkv_scatter_pa_kv_cache_options options = {.scatter_mode = PKV_SCATTER_MODE_NCT,
                                                      .key_stride = 7,
                                                      .value_stride = 5,
                                                      .key_offset = 3,
                                                      .value_offset = 1};

    (void)state;
    for (int i = 0; i < 21; i++) {
        key_source[i] = (uint8_t)(1 + i);
    }
    for (int i = 0; i < 15; i++) {
        value_source[i] = (uint8_t)(101 + i);
    }
    CHECK_OK(pkv_scatter_pa_kv_cache(contexts.all[0], &key_rows, &key, &mapping, &value_rows,
                                     &value, &options, &error),
             &error);
    for (int t = 0; t < 3; t++) {
        for (int d = 0; d < 2; d++) {
            assert_int_equal(keys[slots[t] * 2 + d], 1 + t * 7 + 3 + d);
            assert_int_equal(values[slots[t] * 2 + d], 101 + t * 5 + 1 + d);
        }
    }
    /* Stride 0 is the row of the tensor's own shape: the head sizes need not agree either. */
    options.key_stride = options.value_stride = 0;
    value = pkv_tensor_make(values, PKV_DTYPE_U8, 4, (int64_t[]){1, 4, 1, 3});
    key = pkv_tensor_make(keys, PKV_DTYPE_U8, 4, (int64_t[]){1, 4, 1, 2});
    CHECK_OK(pkv_scatter_pa_kv_cache(contexts.all[0], &key_rows, &key, &mapping, &value_rows,
                                     &value, &options, &error),
             &error);
    assert_int_equal(values[3 * 3 + 2], 101 + 2 * 5 + 1 + 2);
    assert_int_equal(keys[3 * 2 + 1], 1 + 2 * 7 + 3 + 1);
}

/* A source of any stride and offset into caches of every layout, in every context. */
static void nct_into_every_layout(void **state) {
    enum { COUNT = 9, STRIDE = 2 * 32 + 13, OFFSET = 5 };
    struct test_rng rng = test_rng_make(seed + 11);
    int64_t count = COUNT;

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        for (int32_t layout = 0; layout < REF_NUM_LAYOUTS; layout++) {
            struct model_sizes sizes = plain_case().sizes;
            struct pkv_scatter_pa_kv_cache_options options = {.scatter_mode = PKV_SCATTER_MODE_NCT,
                                                              .key_layout = layout,
                                                              .value_layout = layout,
                                                              .key_stride = STRIDE,
                                                              .value_stride = STRIDE,
                                                              .value_offset = OFFSET};
            struct ref_rows rows = {.num_tokens = COUNT, .strides = {STRIDE, 32, 1}};
            struct test_guard memory = test_guard_make(COUNT * STRIDE * 2, TEST_GUARD_END);
            struct pkv_tensor source =
                pkv_tensor_make(memory.data, PKV_DTYPE_BF16, 2, (int64_t[]){COUNT, STRIDE});
            struct model_cache cache;
            struct model_index index;
            int64_t slots[COUNT];

            sizes.key_layout = sizes.value_layout = layout;
            cache = model_cache_make(&sizes, &rng);
            test_rng_fill(&rng, memory.data, memory.bytes);
            fill_slots(&rng, slots, COUNT, 20);
            index = model_index_make(PKV_DTYPE_I64, 1, &count, slots);
            ref_scatter(&cache.key.ref, cache.key.shadow, &rows, memory.data, slots);
            ref_scatter(&cache.value.ref, cache.value.shadow, &rows,
                        (char *)memory.data + OFFSET * 2, slots);
            CHECK_OK(pkv_scatter_pa_kv_cache(contexts.all[i], &source, &cache.key.tensor,
                                             &index.tensor, &source, &cache.value.tensor, &options,
                                             &error),
                     &error);
            assert_true(model_cache_is_as_expected(&cache));
            model_index_free(&index);
            model_cache_free(&cache);
            test_guard_free(&memory);
        }
    }
}

static void the_last_of_equal_slots_wins(void **state) {
    static const int64_t slots[] = {0, 0, 1, 1, 2};
    struct scatter_case it = plain_case();
    struct test_rng rng = test_rng_make(seed);

    (void)state;
    it.num_tokens = 5;
    it.slots = slots;
    expect_in_every_context(&it, &rng);
}

static void more_tokens_than_slots(void **state) {
    struct scatter_case it = plain_case();
    struct test_rng rng = test_rng_make(seed + 1);

    (void)state;
    it.num_tokens = 311;
    it.sizes.num_blocks = 2;
    it.sizes.block_size = 3;
    expect_in_every_context(&it, &rng);
}

static void no_tokens_change_nothing(void **state) {
    struct scatter_case it = plain_case();
    struct test_rng rng = test_rng_make(seed + 2);

    (void)state;
    it.num_tokens = 0;
    expect_in_every_context(&it, &rng);
    it.key_rows = MODEL_ROWS_IMPLIED;
    it.value_rows = MODEL_ROWS_IMPLIED;
    expect_in_every_context(&it, &rng);
}

static void all_padding_changes_nothing(void **state) {
    static const int64_t slots[] = {-1, -7, INT32_MIN, -1};
    struct scatter_case it = plain_case();
    struct test_rng rng = test_rng_make(seed + 3);

    (void)state;
    it.num_tokens = 4;
    it.slots = slots;
    expect_in_every_context(&it, &rng);
}

static void negative_64_bit_slots_skip(void **state) {
    static const int64_t slots[] = {3, INT64_MIN, 19, -(INT64_C(1) << 32), -(INT64_C(1) << 32) + 2};
    struct scatter_case it = plain_case();
    struct test_rng rng = test_rng_make(seed + 4);

    (void)state;
    it.num_tokens = 5;
    it.slots = slots;
    it.slot_dtype = PKV_DTYPE_I64;
    expect_in_every_context(&it, &rng);
}

static void every_dtype_and_head_size(void **state) {
    static const int64_t head_sizes[] = {1, 3, 8, 17, 32, 64, 100, 256};
    struct test_rng rng = test_rng_make(seed + 5);
    int context = 0;

    (void)state;
    for (int32_t dtype = PKV_DTYPE_F32; dtype <= PKV_DTYPE_F8_E4M3FN; dtype++) {
        for (size_t i = 0; i < sizeof(head_sizes) / sizeof(head_sizes[0]); i++) {
            struct scatter_case it = plain_case();

            it.sizes.key_dtype = it.sizes.value_dtype = dtype;
            it.sizes.key_head_size = head_sizes[i];
            it.sizes.value_head_size = head_sizes[(i + 3) % 8];
            it.sizes.num_heads = 1 + (int64_t)i % 3;
            it.sizes.side = i % 2 ? TEST_GUARD_START : TEST_GUARD_END;
            it.num_tokens = 21;
            it.slot_dtype = i % 2 ? PKV_DTYPE_I64 : PKV_DTYPE_I32;
            expect_scatter(contexts.all[context++ % contexts.count], &it, (int)i % 4 - 1, &rng);
        }
    }
}

/* Every pair of layouts, packed and padded and interleaved, in every context. */
static void every_pair_of_layouts(void **state) {
    struct test_rng rng = test_rng_make(seed + 6);

    (void)state;
    for (int32_t key = 0; key < REF_NUM_LAYOUTS; key++) {
        for (int32_t value = 0; value < REF_NUM_LAYOUTS; value++) {
            for (int variant = 0; variant < 4; variant++) {
                struct scatter_case it = plain_case();

                it.sizes.key_layout = key;
                it.sizes.value_layout = value;
                it.sizes.padded = variant & 1;
                it.sizes.interleaved = variant >> 1;
                it.sizes.nz_5d = (key + value) & 1;
                it.sizes.key_head_size = 64;
                it.key_rows = (enum model_rows_kind)(variant % MODEL_ROWS_NUM_KINDS);
                it.value_rows = (enum model_rows_kind)((variant + 1) % MODEL_ROWS_NUM_KINDS);
                expect_in_every_context(&it, &rng);
            }
        }
    }
}

static void every_kind_of_source(void **state) {
    struct test_rng rng = test_rng_make(seed + 7);

    (void)state;
    for (int key = 0; key < MODEL_ROWS_NUM_KINDS; key++) {
        for (int value = 0; value < MODEL_ROWS_NUM_KINDS; value++) {
            struct scatter_case it = plain_case();

            it.key_rows = (enum model_rows_kind)key;
            it.value_rows = (enum model_rows_kind)value;
            it.sizes.num_heads = 3;
            expect_in_every_context(&it, &rng);
        }
    }
}

static void pa_nz_mixes_dtypes(void **state) {
    struct test_rng rng = test_rng_make(seed + 8);
    struct scatter_case it = plain_case();

    (void)state;
    it.sizes.key_layout = it.sizes.value_layout = PKV_LAYOUT_PA_NZ;
    it.sizes.key_dtype = PKV_DTYPE_I8;
    it.sizes.key_head_size = 64;
    it.sizes.value_head_size = 16;
    expect_in_every_context(&it, &rng);
    it.sizes.value_dtype = PKV_DTYPE_F32;
    it.sizes.padded = 1;
    expect_in_every_context(&it, &rng);
}

static void key_only(void **state) {
    struct test_rng rng = test_rng_make(seed + 9);

    (void)state;
    for (int32_t layout = 0; layout < REF_NUM_LAYOUTS; layout++) {
        struct scatter_case it = plain_case();

        it.sizes.key_layout = layout;
        it.sizes.value_dtype = 0;
        it.sizes.key_head_size = 576;
        it.sizes.num_heads = 1;
        if (layout != PKV_LAYOUT_PA_NZ) {
            expect_in_every_context(&it, &rng);
        }
    }
}

/* Sizes above the store policy's limits and the thread threshold, with many equal slots. */
static void large_batches(void **state) {
    struct test_rng rng = test_rng_make(seed + 10);
    struct scatter_case it = plain_case();

    (void)state;
    it.sizes.num_blocks = 9;
    it.sizes.block_size = 16;
    it.sizes.key_head_size = 128;
    it.sizes.value_head_size = 128;
    it.num_tokens = 1500;
    expect_in_every_context(&it, &rng);
    it.sizes.num_blocks = 130;
    it.sizes.key_layout = PKV_LAYOUT_HND;
    it.sizes.value_layout = PKV_LAYOUT_PA_NZ;
    expect_in_every_context(&it, &rng);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_example),
        cmocka_unit_test(pa_nz_example),
        cmocka_unit_test(nct_example),
        cmocka_unit_test(nct_strides_are_separate),
        cmocka_unit_test(nct_into_every_layout),
        cmocka_unit_test(the_last_of_equal_slots_wins),
        cmocka_unit_test(more_tokens_than_slots),
        cmocka_unit_test(no_tokens_change_nothing),
        cmocka_unit_test(all_padding_changes_nothing),
        cmocka_unit_test(negative_64_bit_slots_skip),
        cmocka_unit_test(every_dtype_and_head_size),
        cmocka_unit_test(every_pair_of_layouts),
        cmocka_unit_test(every_kind_of_source),
        cmocka_unit_test(pa_nz_mixes_dtypes),
        cmocka_unit_test(key_only),
        cmocka_unit_test(large_batches),
    };

    seed = test_seed(16);
    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
