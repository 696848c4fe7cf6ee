/* SPDX-License-Identifier: MIT
 *
 * What the compressed modes of scatter_pa_kv_cache write: the worked examples of the specification,
 * numbers that are special to a mean, and random cases against the definition, byte for byte.
 * Refusals are in test_scatter_compressed_errors.c. PAGEDKV_TEST_SEED repeats a run,
 * PAGEDKV_TEST_CASES sets its length.
 */
#include "compressed_calls.h"
#include "contexts.h"

#include <stdlib.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static uint64_t seed;

/* One sequence and one head of channels that all have the same numbers: key of `dtype`,
 * key-only. */
static void scatter_one(struct pkv_context *context, int32_t mode, int32_t dtype, int64_t seq,
                        int64_t w, int64_t o, int64_t slot, const void *tokens, void *cache,
                        int64_t num_slots) {
    const struct pkv_tensor key =
        pkv_tensor_make((void *)(uintptr_t)tokens, dtype, 3, (int64_t[]){seq, 1, 1});
    const struct pkv_tensor key_cache =
        pkv_tensor_make(cache, dtype, 4, (int64_t[]){1, num_slots, 1, 1});
    const struct pkv_tensor slots = pkv_tensor_make(&slot, PKV_DTYPE_I64, 1, (int64_t[]){1});
    const struct pkv_tensor lens = pkv_tensor_make(&w, PKV_DTYPE_I64, 1, (int64_t[]){1});
    const struct pkv_tensor offsets = pkv_tensor_make(&o, PKV_DTYPE_I64, 1, (int64_t[]){1});
    const struct pkv_tensor seq_lens = pkv_tensor_make(&seq, PKV_DTYPE_I64, 1, (int64_t[]){1});
    const struct pkv_scatter_pa_kv_cache_options options = {
        .struct_size = sizeof(options),
        .scatter_mode = mode,
        .compress_lens = &lens,
        .compress_seq_offset = mode == PKV_SCATTER_MODE_ALIBI ? NULL : &offsets,
        .seq_lens = &seq_lens};

    CHECK_OK(
        pkv_scatter_pa_kv_cache(context, &key, &key_cache, &slots, NULL, NULL, &options, &error),
        &error);
}

static void alibi_example(void **state) {
    uint16_t key[7] = {100, 101, 102, 103, 104, 105, 106};
    uint16_t storage[16] = {0};
    int32_t slots[2] = {0, 8};
    int32_t lens[2] = {2, 1};
    int32_t seq_lens[2] = {3, 4};
    struct pkv_tensor rows = pkv_tensor_make(key, PKV_DTYPE_F16, 3, (int64_t[]){7, 1, 1});
    struct pkv_tensor cache = pkv_tensor_make(storage, PKV_DTYPE_F16, 4, (int64_t[]){4, 4, 1, 1});
    struct pkv_tensor slot_mapping = pkv_tensor_make(slots, PKV_DTYPE_I32, 2, (int64_t[]){2, 1});
    struct pkv_tensor compress = pkv_tensor_make(lens, PKV_DTYPE_I32, 2, (int64_t[]){2, 1});
    struct pkv_tensor lengths = pkv_tensor_make(seq_lens, PKV_DTYPE_I32, 1, (int64_t[]){2});
    struct pkv_scatter_pa_kv_cache_options options = {
        .scatter_mode = PKV_SCATTER_MODE_ALIBI, .compress_lens = &compress, .seq_lens = &lengths};

    (void)state;
    CHECK_OK(pkv_scatter_pa_kv_cache(contexts.all[0], &rows, &cache, &slot_mapping, NULL, NULL,
                                     &options, &error),
             &error);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(storage[i], i == 0 ? 101 : i == 1 ? 102 : i == 8 ? 106 : 0);
    }
}

/* Tokens 10 ... 60, a window of three from token 1 on: the mean is 30, and what follows it begins
 * at token 4, not at the sequence's first. */
static void rope_and_omni_examples(void **state) {
    static const float tokens[6] = {10, 20, 30, 40, 50, 60};
    static const float rope[4] = {10, 30, 50, 60};
    static const float omni[3] = {10, 50, 60};

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        float cache[12] = {0};

        scatter_one(contexts.all[i], PKV_SCATTER_MODE_ROPE, PKV_DTYPE_F32, 6, 3, 1, 4, tokens,
                    cache, 12);
        for (int row = 0; row < 12; row++) {
            assert_true(cache[row] == (row >= 4 && row < 8 ? rope[row - 4] : 0));
        }
        memset(cache, 0, sizeof(cache));
        scatter_one(contexts.all[i], PKV_SCATTER_MODE_OMNI, PKV_DTYPE_F32, 6, 3, 1, 4, tokens,
                    cache, 12);
        for (int row = 0; row < 12; row++) {
            assert_true(cache[row] == (row >= 4 && row < 7 ? omni[row - 4] : 0));
        }
    }
}

/* w = 0 and o = -1 mean that everything stays; o + w may be the whole length. */
static void edges_of_the_window(void **state) {
    static const uint8_t tokens[4] = {8, 16, 24, 32};
    static const struct {
        int32_t mode;
        int64_t w, o;
        uint8_t expected[5];
    } cases[] = {
        {PKV_SCATTER_MODE_ROPE, 0, 2, {8, 16, 24, 32, 0}},
        {PKV_SCATTER_MODE_ROPE, 3, -1, {8, 16, 24, 32, 0}},
        {PKV_SCATTER_MODE_ROPE, 0, 4, {8, 16, 24, 32, 0}},
        {PKV_SCATTER_MODE_ROPE, 2, 2, {8, 16, 28, 0, 0}},
        {PKV_SCATTER_MODE_ROPE, 4, 0, {20, 0, 0, 0, 0}},
        {PKV_SCATTER_MODE_ROPE, 1, 0, {8, 16, 24, 32, 0}},
        {PKV_SCATTER_MODE_OMNI, 0, 1, {8, 16, 24, 32, 0}},
        {PKV_SCATTER_MODE_OMNI, 4, -1, {8, 16, 24, 32, 0}},
        {PKV_SCATTER_MODE_OMNI, 4, 0, {0, 0, 0, 0, 0}},
        {PKV_SCATTER_MODE_OMNI, 1, 3, {8, 16, 24, 0, 0}},
        {PKV_SCATTER_MODE_ALIBI, 0, 0, {0, 0, 0, 0, 0}},
        {PKV_SCATTER_MODE_ALIBI, 4, 0, {8, 16, 24, 32, 0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t cache[5] = {0};

        scatter_one(contexts.all[i % (size_t)contexts.count], cases[i].mode, PKV_DTYPE_U8, 4,
                    cases[i].w, cases[i].o, 0, tokens, cache, 5);
        assert_memory_equal(cache, cases[i].expected, sizeof(cache));
    }
}

/* The mean of one window of up to three tokens, in every context. */
static void expect_mean(int32_t dtype, int64_t w, const void *tokens, const void *expected) {
    for (int i = 0; i < contexts.count; i++) {
        uint32_t mean = 0x5a5a5a5a;

        scatter_one(contexts.all[i], PKV_SCATTER_MODE_ROPE, dtype, w, w, 0, 0, tokens, &mean, 1);
        assert_memory_equal(&mean, expected, (size_t)ref_dtype_bytes(dtype));
    }
}

#define EXPECT_MEAN(dtype, type, expected, ...)                                                    \
    expect_mean(dtype, (int64_t)(sizeof((type[]){__VA_ARGS__}) / sizeof(type)),                    \
                (type[]){__VA_ARGS__}, &(type){expected})

static void means_are_rounded_to_nearest_even(void **state) {
    (void)state;
    /* 1 and 1 + 2^-7: the tie goes to 1; one step further it goes to 1 + 2^-6. */
    EXPECT_MEAN(PKV_DTYPE_BF16, uint16_t, 0x3f80, 0x3f80, 0x3f81);
    EXPECT_MEAN(PKV_DTYPE_BF16, uint16_t, 0x3f82, 0x3f81, 0x3f82);
    EXPECT_MEAN(PKV_DTYPE_F16, uint16_t, 0x3c00, 0x3c00, 0x3c01);
    EXPECT_MEAN(PKV_DTYPE_F16, uint16_t, 0x3c02, 0x3c01, 0x3c02);
    /* The smallest denormal and zero: half of it is a tie, and zero is even. */
    EXPECT_MEAN(PKV_DTYPE_F16, uint16_t, 0x0000, 0x0001, 0x0000);
    EXPECT_MEAN(PKV_DTYPE_F16, uint16_t, 0x0002, 0x0003, 0x0000);
    EXPECT_MEAN(PKV_DTYPE_BF16, uint16_t, 0x0002, 0x0003, 0x0000);
    EXPECT_MEAN(PKV_DTYPE_F32, uint32_t, 2, 3, 0);
    EXPECT_MEAN(PKV_DTYPE_F8_E4M3FN, uint8_t, 0x38, 0x38, 0x39);
    EXPECT_MEAN(PKV_DTYPE_F8_E5M2, uint8_t, 0x3e, 0x3d, 0x3e);
}

/* In float32: 1 vanishes beside 2^24, so that the order shows. */
static void sums_are_float_and_ascending(void **state) {
    const float up[3] = {16777216, 1, -16777216};
    const float down[3] = {16777216, -16777216, 1};
    const float third = 1.0f / 3.0f;
    const float zero = 0;

    (void)state;
    expect_mean(PKV_DTYPE_F32, 3, up, &zero);
    expect_mean(PKV_DTYPE_F32, 3, down, &third);
}

static void special_numbers(void **state) {
    (void)state;
    /* The sum begins with +0. */
    EXPECT_MEAN(PKV_DTYPE_F32, uint32_t, 0, UINT32_C(0x80000000));
    EXPECT_MEAN(PKV_DTYPE_BF16, uint16_t, 0, 0x8000, 0x8000);
    /* NaN of any kind, and infinity minus infinity: the positive quiet NaN. */
    EXPECT_MEAN(PKV_DTYPE_F32, uint32_t, UINT32_C(0x7fc00000), UINT32_C(0xffa12345));
    EXPECT_MEAN(PKV_DTYPE_F32, uint32_t, UINT32_C(0x7fc00000), UINT32_C(0x7f800000),
                UINT32_C(0xff800000));
    EXPECT_MEAN(PKV_DTYPE_BF16, uint16_t, 0x7fc0, 0x7f80, 0xff80, 0x7fff);
    EXPECT_MEAN(PKV_DTYPE_F16, uint16_t, 0x7e00, 0xfdff, 0x3c00);
    EXPECT_MEAN(PKV_DTYPE_F8_E4M3FN, uint8_t, 0x7f, 0xff, 0x00);
    EXPECT_MEAN(PKV_DTYPE_F8_E5M2, uint8_t, 0x7e, 0x7c, 0xfc);
    /* Infinity stays where there is one, and becomes the largest number in fp8. */
    EXPECT_MEAN(PKV_DTYPE_BF16, uint16_t, 0xff80, 0xff80, 0x3f80);
    EXPECT_MEAN(PKV_DTYPE_F16, uint16_t, 0x7c00, 0x7c00, 0x3c00);
    EXPECT_MEAN(PKV_DTYPE_F8_E5M2, uint8_t, 0xfb, 0xfc, 0x00);
    /* The largest numbers add up to infinity in float32 alone. */
    EXPECT_MEAN(PKV_DTYPE_F32, uint32_t, UINT32_C(0x7f800000), UINT32_C(0x7f7fffff),
                UINT32_C(0x7f7fffff));
    EXPECT_MEAN(PKV_DTYPE_F16, uint16_t, 0x7bff, 0x7bff, 0x7bff);
    EXPECT_MEAN(PKV_DTYPE_F8_E4M3FN, uint8_t, 0xfe, 0xfe, 0xfe, 0xfe);
}

static void integers_divide_toward_zero(void **state) {
    (void)state;
    EXPECT_MEAN(PKV_DTYPE_I8, int8_t, -3, -3, -4);
    EXPECT_MEAN(PKV_DTYPE_I8, int8_t, 3, 3, 4);
    EXPECT_MEAN(PKV_DTYPE_I8, int8_t, -128, -128, -128, -128);
    EXPECT_MEAN(PKV_DTYPE_I16, int16_t, -32767, -32768, -32767);
    EXPECT_MEAN(PKV_DTYPE_I32, int32_t, INT32_MIN, INT32_MIN, INT32_MIN);
    EXPECT_MEAN(PKV_DTYPE_I32, int32_t, 0, INT32_MIN, INT32_MAX);
    EXPECT_MEAN(PKV_DTYPE_U8, uint8_t, 254, 255, 254);
    EXPECT_MEAN(PKV_DTYPE_U16, uint16_t, 65534, 65535, 65534);
    EXPECT_MEAN(PKV_DTYPE_U32, uint32_t, UINT32_MAX, UINT32_MAX, UINT32_MAX);
    EXPECT_MEAN(PKV_DTYPE_U32, uint32_t, UINT32_C(2863311530), UINT32_MAX, UINT32_MAX, 0);
}

/* One random case in one context. */
static void run_case(struct pkv_context *context, struct comp_case *it,
                     const struct model_sizes *sizes, int calm, struct test_rng *rng) {
    struct model_cache cache = model_cache_make(sizes, rng);
    struct model_rows key = comp_rows_make(it, (enum model_rows_kind)test_rng_below(rng, 5),
                                           &cache.key, sizes->side, rng);
    struct model_rows value = {0};
    struct comp_indices indices = comp_indices_make(it, rng);
    struct pkv_scatter_pa_kv_cache_options options = comp_options(it, &indices);

    options.store_policy = (int32_t)test_rng_below(rng, 3);
    options.duplicates = (int32_t)test_rng_below(rng, 3);
    if (calm) {
        comp_calm_rows(&key, sizes->key_dtype, rng);
    }
    comp_scatter(it, &cache.key, cache.key.shadow, &key.ref, key.memory.data);
    if (cache.has_value) {
        value = comp_rows_make(it, (enum model_rows_kind)test_rng_below(rng, 5), &cache.value,
                               sizes->side, rng);
        if (calm) {
            comp_calm_rows(&value, sizes->value_dtype, rng);
        }
        comp_scatter(it, &cache.value, cache.value.shadow, &value.ref, value.memory.data);
        test_guard_protect(&value.memory);
    }
    test_guard_protect(&key.memory);
    comp_indices_protect(&indices);
    CHECK_OK(comp_call(context, &cache, &key, cache.has_value ? &value : NULL, &indices, &options,
                       &error),
             &error);
    assert_true(model_cache_is_as_expected(&cache));
    comp_indices_free(&indices);
    if (cache.has_value) {
        model_rows_free(&value);
    }
    model_rows_free(&key);
    model_cache_free(&cache);
}

/* A dtype of the cache; in Rope one that has a mean. */
static int32_t draw_dtype(int32_t mode, struct test_rng *rng) {
    int32_t dtype;

    do {
        dtype = (int32_t)test_rng_between(rng, PKV_DTYPE_F32, PKV_DTYPE_F8_E4M3FN);
    } while (mode == PKV_SCATTER_MODE_ROPE && dtype == PKV_DTYPE_HIFLOAT8);
    return dtype;
}

/* A cache with at least num_slots slots, as blocks of any size. */
static struct model_sizes draw_sizes(int32_t mode, int64_t num_slots, int64_t max_block_size,
                                     int64_t max_head_size, struct test_rng *rng) {
    int64_t block_size = test_rng_between(rng, 1, max_block_size);
    struct model_sizes sizes = {
        .key_dtype = draw_dtype(mode, rng),
        .num_blocks = num_slots / block_size + 1,
        .block_size = block_size,
        .num_heads = 1,
        .key_head_size = test_rng_between(rng, 1, max_head_size),
        .value_head_size = test_rng_between(rng, 1, max_head_size),
        .padded = (int)test_rng_below(rng, 2),
        .interleaved = (int)test_rng_below(rng, 2),
        .side = test_rng_below(rng, 2) ? TEST_GUARD_END : TEST_GUARD_START,
    };

    sizes.value_dtype = test_rng_below(rng, 6) == 0 ? 0 : draw_dtype(mode, rng);
    return sizes;
}

static struct comp_case draw_case(int64_t max_seqs, int64_t max_heads, int64_t max_seq,
                                  struct test_rng *rng) {
    struct comp_case it = {
        .mode = (int32_t)test_rng_between(rng, PKV_SCATTER_MODE_ALIBI, PKV_SCATTER_MODE_OMNI),
        .num_seqs = test_rng_between(rng, 0, max_seqs),
        .num_heads = test_rng_between(rng, 1, max_heads),
        .padded_len = test_rng_below(rng, 2) ? -1 : test_rng_between(rng, 0, max_seq),
    };

    comp_draw(&it, max_seq, rng);
    return it;
}

static void random_cases(void **state) {
    const char *text = getenv("PAGEDKV_TEST_CASES");
    int64_t count = text ? strtoll(text, NULL, 10) : 6000;
    struct test_rng rng = test_rng_make(seed);

    (void)state;
    for (int64_t i = 0; i < count; i++) {
        struct comp_case it = draw_case(4, 5, 13, &rng);
        int64_t num_slots = comp_place(&it, 3, test_rng_below(&rng, 2) ? 5 : 0, &rng);
        struct model_sizes sizes = draw_sizes(it.mode, num_slots, 9, 40, &rng);

        run_case(contexts.all[test_rng_below(&rng, contexts.count)], &it, &sizes,
                 (int)test_rng_below(&rng, 2), &rng);
    }
}

/* Enough bytes for several threads, more heads than are walked abreast, windows that end in the
 * middle of somebody's share; and heads of a size that vectors like. */
static void large_cases(void **state) {
    struct test_rng rng = test_rng_make(seed + 1);

    (void)state;
    for (int i = 0; i < 2 * contexts.count; i++) {
        struct comp_case it = draw_case(3, i % 2 ? 75 : 9, i % 2 ? 60 : 300, &rng);
        int64_t num_slots = comp_place(&it, 30, 9, &rng);
        struct model_sizes sizes = draw_sizes(it.mode, num_slots, 70, 130, &rng);

        if (i % 3 > 0) {
            sizes.key_head_size = sizes.value_head_size = 64 * test_rng_between(&rng, 1, 2);
        }
        run_case(contexts.all[i / 2], &it, &sizes, 1, &rng);
    }
}

/* One task or two, which several threads share. */
static void one_long_sequence(void **state) {
    struct test_rng rng = test_rng_make(seed + 2);

    (void)state;
    for (int i = 0; i < 4 * contexts.count; i++) {
        struct comp_case it = {.mode = i % 4 < 3 ? PKV_SCATTER_MODE_ALIBI + i % 4
                                                 : PKV_SCATTER_MODE_ROPE,
                               .num_seqs = 1,
                               .num_heads = 1 + i / 2 % 2,
                               .padded_len = -1};
        struct model_sizes sizes = {
            .key_dtype = PKV_DTYPE_F32, .block_size = 16, .num_heads = 1, .key_head_size = 256};

        it.seq_lens[0] = 2500;
        it.lens[0] = test_rng_between(&rng, 0, 2500);
        it.offsets[0] = test_rng_between(&rng, -1, 2500 - it.lens[0]);
        it.lens[1] = test_rng_between(&rng, 0, 2500);
        it.offsets[1] = test_rng_between(&rng, -1, 2500 - it.lens[1]);
        sizes.num_blocks = comp_place(&it, 3, 0, &rng) / 16 + 1;
        run_case(contexts.all[i / 4], &it, &sizes, 1, &rng);
    }
}

/* Heads so wide that their sums do not fit into what is kept for them. */
static void wide_heads(void **state) {
    static const int32_t dtypes[] = {PKV_DTYPE_BF16, PKV_DTYPE_I8, PKV_DTYPE_F32};
    struct test_rng rng = test_rng_make(seed + 3);

    (void)state;
    for (int i = 0; i < 24; i++) {
        struct comp_case it = {.mode = PKV_SCATTER_MODE_ROPE,
                               .num_seqs = 2,
                               .num_heads = 2,
                               .padded_len = i % 2 ? -1 : 6};
        struct model_sizes sizes = {.key_dtype = dtypes[i % 3],
                                    .value_dtype = dtypes[(i + 1) % 3],
                                    .block_size = 2,
                                    .num_heads = 1,
                                    .key_head_size = test_rng_between(&rng, 4000, 20000),
                                    .value_head_size = test_rng_between(&rng, 4090, 8200)};

        comp_draw(&it, 6, &rng);
        sizes.num_blocks = comp_place(&it, 2, 0, &rng) / 2 + 1;
        run_case(contexts.all[test_rng_below(&rng, contexts.count)], &it, &sizes, 1, &rng);
    }
}

static void hifloat8_is_copied(void **state) {
    struct test_rng rng = test_rng_make(seed + 4);

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        struct comp_case it = {.mode = PKV_SCATTER_MODE_ALIBI + i % 3,
                               .num_seqs = 3,
                               .num_heads = 2,
                               .padded_len = -1};
        struct model_sizes sizes;

        comp_draw(&it, 9, &rng);
        for (int t = 0; t < 6 && it.mode == PKV_SCATTER_MODE_ROPE; t++) {
            if (t % 2) {
                it.lens[t] = 0;
            } else {
                it.offsets[t] = -1;
            }
        }
        sizes = draw_sizes(it.mode, comp_place(&it, 3, 0, &rng), 5, 20, &rng);
        sizes.key_dtype = PKV_DTYPE_HIFLOAT8;
        run_case(contexts.all[i], &it, &sizes, 0, &rng);
    }
}

/* Nothing to do: no sequences, no heads, no tokens, all regions skipped. */
static void empty_calls(void **state) {
    struct test_rng rng = test_rng_make(seed + 5);
    struct model_sizes sizes = {.key_dtype = PKV_DTYPE_F16,
                                .num_blocks = 2,
                                .block_size = 2,
                                .num_heads = 1,
                                .key_head_size = 8};

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        for (int kind = 0; kind < 4; kind++) {
            struct comp_case it = {.mode = PKV_SCATTER_MODE_ALIBI + i % 3,
                                   .num_seqs = kind == 0 ? 0 : 2,
                                   .num_heads = kind == 1 ? 0 : 3,
                                   .padded_len = i % 2 ? -1 : 4};

            for (int t = 0; t < 6; t++) {
                it.slots[t] = kind == 3 ? -1 - t : t % 4;
                it.lens[t] = kind == 3 ? 99 : 0;
            }
            it.seq_lens[0] = kind == 3 || kind == 1 ? 4 : 0;
            run_case(contexts.all[i], &it, &sizes, 0, &rng);
        }
    }
}

static int set_up(void **state) {
    (void)state;
    seed = test_seed(20260301);
    test_contexts_make(&contexts);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alibi_example),
        cmocka_unit_test(rope_and_omni_examples),
        cmocka_unit_test(edges_of_the_window),
        cmocka_unit_test(means_are_rounded_to_nearest_even),
        cmocka_unit_test(sums_are_float_and_ascending),
        cmocka_unit_test(special_numbers),
        cmocka_unit_test(integers_divide_toward_zero),
        cmocka_unit_test(random_cases),
        cmocka_unit_test(large_cases),
        cmocka_unit_test(one_long_sequence),
        cmocka_unit_test(wide_heads),
        cmocka_unit_test(hifloat8_is_copied),
        cmocka_unit_test(empty_calls),
    };

    return cmocka_run_group_tests(tests, set_up, contexts_tear_down);
}
