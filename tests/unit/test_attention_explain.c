/* SPDX-License-Identifier: MIT
 *
 * What an explanation of paged attention counts, beside numbers worked out by hand, and what it
 * refuses.
 */
#include "check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static struct pkv_error error = {.struct_size = sizeof(error)};

enum { NUM_BLOCKS = 64, BLOCK_SIZE = 128, WIDTH = 64, MAX_SEQS = 3 };

/* Contexts whose explanations differ: threads are promised, and never used. */
static void no_run(void *user, void (*fn)(void *arg, int64_t index), void *arg, int64_t num_tiles) {
    (void)user;
    (void)fn;
    (void)arg;
    (void)num_tiles;
    fail_msg("an explanation runs nothing");
}

static struct pkv_context *make_context(int32_t num_threads, int32_t run_mode, int32_t level) {
    const struct pkv_executor executor = {.run = no_run, .num_threads = num_threads};
    const struct pkv_context_options options = {.struct_size = sizeof(options),
                                                .executor = num_threads > 1 ? &executor : NULL,
                                                .run_mode = run_mode,
                                                .max_cpu_level = level};
    struct pkv_context *context = NULL;
    CHECK_OK(pkv_context_create(&context, &options, &error), &error);
    return context;
}

/* A cache of 2 key heads at an address that nobody owns, and a step of up to 3 sequences. */
struct world {
    struct pkv_context *context;
    struct pkv_cache cache;
    struct pkv_paged_attention_plan *plan;
    struct pkv_step *step;
    int32_t table[MAX_SEQS * WIDTH];
    int64_t lengths[MAX_SEQS], starts[MAX_SEQS + 1];
};

static void make(struct world *world, int32_t num_threads, int32_t run_mode, int32_t dtype,
                 bool has_values, const struct pkv_paged_attention_options *options) {
    const int64_t shape[] = {NUM_BLOCKS, BLOCK_SIZE, 2, 64};
    const struct pkv_tensor key = pkv_tensor_make((void *)(uintptr_t)0x10000, dtype, 4, shape);
    const struct pkv_tensor value =
        pkv_tensor_make((void *)(uintptr_t)0x100000000, dtype, 4, shape);
    const struct pkv_step_options step_options = {.struct_size = sizeof(step_options)};
    memset(world, 0, sizeof(*world));
    world->context = make_context(num_threads, run_mode, 0);
    CHECK_OK(pkv_cache_init(&world->cache, &key, has_values ? &value : NULL, NULL, &error), &error);
    CHECK_OK(pkv_paged_attention_plan_create(&world->plan, world->context, &world->cache, options,
                                             &error),
             &error);
    CHECK_OK(pkv_step_create(&world->step, &step_options, &error), &error);
}

static void destroy(struct world *world) {
    pkv_step_destroy(world->step);
    pkv_paged_attention_plan_destroy(world->plan);
    pkv_context_destroy(world->context);
}

static void set_step(struct world *world, int64_t num_seqs, const int64_t *lengths,
                     const int64_t *query_lens, int64_t num_shared_tokens) {
    for (int64_t b = 0; b < num_seqs; b++) {
        world->lengths[b] = lengths[b];
        world->starts[b + 1] = world->starts[b] + query_lens[b];
    }
    const struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .block_table =
            pkv_tensor_make(world->table, PKV_DTYPE_I32, 2, (int64_t[]){num_seqs, WIDTH}),
        .seq_lens = pkv_tensor_make(world->lengths, PKV_DTYPE_I64, 1, &num_seqs),
        .query_start_loc =
            pkv_tensor_make(world->starts, PKV_DTYPE_I64, 1, (int64_t[]){num_seqs + 1}),
        .num_shared_tokens = num_shared_tokens,
    };
    CHECK_OK(pkv_step_set(world->context, world->step, &world->cache, &indices, &error), &error);
}

static struct pkv_attention_explanation explain(const struct world *world) {
    struct pkv_attention_explanation got = {.struct_size = sizeof(got)};
    CHECK_OK(pkv_paged_attention_explain(world->context, world->plan, world->step, &got, &error),
             &error);
    return got;
}

/* 4 query heads over 2 of 64 elements, bfloat16: a token has 2 x 128 bytes of keys, and as many of
 * values. */
static const struct pkv_paged_attention_options four_heads = {.struct_size = sizeof(four_heads),
                                                              .num_heads = 4};

static void test_a_decode_step(void **state) {
    (void)state;
    struct world world;
    make(&world, 1, PKV_RUN_MODE_NATIVE, PKV_DTYPE_BF16, true, &four_heads);
    set_step(&world, 3, (int64_t[]){300, 1, 512}, (int64_t[]){1, 1, 1}, 0);
    const struct pkv_attention_explanation got = explain(&world);
    assert_int_equal(got.run_mode, PKV_RUN_MODE_NATIVE);
    assert_int_equal(got.cpu_level, pkv_context_cpu_level(world.context));
    assert_int_equal(got.num_seqs, 3);
    assert_int_equal(got.num_tokens, 3);
    assert_int_equal(got.num_rows, 12);
    assert_int_equal(got.tile_tokens, 256);
    assert_int_equal(got.tile_bytes, 256 * 512);
    /* A unit is a sequence, both key heads: tiles of 256 + 44, 1 and 256 + 256 tokens. */
    assert_int_equal(got.num_units, 3);
    assert_int_equal(got.num_tiles, 2 + 1 + 2);
    assert_int_equal(got.num_pieces, 1);
    assert_int_equal(got.num_parts, 1);
    assert_int_equal(got.bytes_read, 813 * 512);
    assert_true(got.flops == 813.0 * 4 * 2 * (64 + 64));
    destroy(&world);
}

/* Causal, 3 queries at positions 297 to 299 that see 100 tokens each: 198 to 299. */
static void test_windows_and_several_queries(void **state) {
    (void)state;
    struct world world;
    struct pkv_paged_attention_options options = four_heads;
    options.max_visible_left = 100;
    make(&world, 1, PKV_RUN_MODE_NATIVE, PKV_DTYPE_F32, true, &options);
    set_step(&world, 1, (int64_t[]){300}, (int64_t[]){3}, 0);
    struct pkv_attention_explanation got = explain(&world);
    assert_int_equal(got.num_rows, 12);
    assert_int_equal(got.num_tiles, 2);
    assert_int_equal(got.bytes_read, 102 * 1024);
    assert_true(got.flops == 300.0 * 4 * 2 * 128);
    destroy(&world);
    /* 100 queries of 2 heads of a group are 200 rows, in units of 128 and 72 for each key head. */
    make(&world, 1, PKV_RUN_MODE_NATIVE, PKV_DTYPE_F32, true, &four_heads);
    set_step(&world, 1, (int64_t[]){100}, (int64_t[]){100}, 0);
    got = explain(&world);
    assert_int_equal(got.num_units, 4);
    assert_int_equal(got.num_tiles, 4);
    /* The first 64 queries see 64 tokens, the others all 100. */
    assert_int_equal(got.bytes_read, (64 + 100) * 1024);
    assert_true(got.flops == 100.0 * 101 / 2 * 4 * 2 * 128);
    destroy(&world);
}

/* Values that are the front of the keys are read with them. */
static void test_values_within_keys(void **state) {
    (void)state;
    struct world world;
    struct pkv_paged_attention_options options = four_heads;
    options.value_head_size = 48;
    make(&world, 1, PKV_RUN_MODE_NATIVE, PKV_DTYPE_F16, false, &options);
    set_step(&world, 1, (int64_t[]){256}, (int64_t[]){1}, 0);
    const struct pkv_attention_explanation got = explain(&world);
    assert_int_equal(got.tile_bytes, 256 * 256);
    assert_int_equal(got.bytes_read, 256 * 256);
    assert_true(got.flops == 256.0 * 4 * 2 * (64 + 48));
    destroy(&world);
}

/* Two threads: one long context is cut, and many sequences are not. */
static void test_threads(void **state) {
    (void)state;
    struct world world;
    make(&world, 2, PKV_RUN_MODE_NATIVE, PKV_DTYPE_BF16, true, &four_heads);
    set_step(&world, 1, (int64_t[]){8192}, (int64_t[]){1}, 0);
    struct pkv_attention_explanation got = explain(&world);
    assert_int_equal(got.num_units, 1);
    assert_true(got.num_pieces >= 2);
    assert_int_equal(got.num_parts, got.num_pieces);
    assert_int_equal(got.num_tiles, 32);
    assert_int_equal(got.bytes_read, 8192 * 512);
    destroy(&world);
    make(&world, 2, PKV_RUN_MODE_NATIVE, PKV_DTYPE_BF16, true, &four_heads);
    set_step(&world, 3, (int64_t[]){200, 200, 200}, (int64_t[]){1, 1, 1}, 0);
    got = explain(&world);
    assert_int_equal(got.num_pieces, 1);
    assert_true(got.num_parts >= 2 && got.num_parts <= got.num_units);
    assert_int_equal(got.bytes_read, 600 * 512);
    destroy(&world);
}

/* 256 shared tokens are read once for all, whole; the rest by each. */
static void test_shared_tokens(void **state) {
    (void)state;
    struct world world;
    make(&world, 1, PKV_RUN_MODE_NATIVE, PKV_DTYPE_BF16, true, &four_heads);
    set_step(&world, 2, (int64_t[]){300, 310}, (int64_t[]){1, 1}, 256);
    struct pkv_attention_explanation got = explain(&world);
    assert_int_equal(got.num_units, 1);
    assert_int_equal(got.num_tiles, 3);
    assert_int_equal(got.bytes_read, (256 + 44 + 54) * 512);
    assert_true(got.flops == 610.0 * 4 * 2 * 128);
    destroy(&world);
}

static void test_sim(void **state) {
    (void)state;
    struct world world;
    make(&world, 2, PKV_RUN_MODE_SIM, PKV_DTYPE_BF16, true, &four_heads);
    set_step(&world, 2, (int64_t[]){5, 3}, (int64_t[]){2, 1}, 0);
    const struct pkv_attention_explanation got = explain(&world);
    assert_int_equal(got.run_mode, PKV_RUN_MODE_SIM);
    assert_int_equal(got.num_rows, 12);
    assert_int_equal(got.num_units, 12);
    assert_int_equal(got.tile_tokens, 1);
    assert_int_equal(got.tile_bytes, 256);
    assert_int_equal(got.num_tiles, (4 + 5 + 3) * 4);
    assert_int_equal(got.bytes_read, 12 * 4 * 256);
    assert_int_equal(got.num_parts, 1);
    assert_string_equal(got.score_kernel, "sim");
    assert_string_equal(got.value_kernel, "sim");
    destroy(&world);
}

static void check_names(const struct world *world, int32_t level, const char *score,
                        const char *value) {
    const int32_t best = pkv_context_cpu_level(world->context);
    if (level > best ||
        (level > PKV_CPU_LEVEL_C && level < PKV_CPU_LEVEL_NEON && best >= PKV_CPU_LEVEL_NEON))
        return;
    struct pkv_context *context = make_context(1, PKV_RUN_MODE_NATIVE, level);
    struct pkv_attention_explanation got = {.struct_size = sizeof(got)};
    CHECK_OK(pkv_paged_attention_explain(context, world->plan, world->step, &got, &error), &error);
    assert_int_equal(got.cpu_level, level);
    assert_string_equal(got.score_kernel, score);
    assert_string_equal(got.value_kernel, value);
    pkv_context_destroy(context);
}

/* On every level that the machine has: those of the level, or of the one below if it has none of
 * its own. */
static void test_kernels_are_named(void **state) {
    (void)state;
    struct world world;
    struct pkv_paged_attention_options options = four_heads;
    make(&world, 1, PKV_RUN_MODE_NATIVE, PKV_DTYPE_F16, true, &options);
    set_step(&world, 1, (int64_t[]){40}, (int64_t[]){40}, 0);
    check_names(&world, PKV_CPU_LEVEL_C, "attention_scores_f16_c", "attention_values_f16_c");
    check_names(&world, PKV_CPU_LEVEL_AVX2, "attention_scores_f16_avx2",
                "attention_values_f16_avx2");
    check_names(&world, PKV_CPU_LEVEL_AVX512, "attention_scores_f16_avx512",
                "attention_values_f16_avx512");
    check_names(&world, PKV_CPU_LEVEL_AVX512_BF16, "attention_scores_f16_avx512",
                "attention_values_f16_avx512");
    check_names(&world, PKV_CPU_LEVEL_NEON, "attention_scores_f16_neon",
                "attention_values_f16_neon");
    check_names(&world, PKV_CPU_LEVEL_NEON_BF16, "attention_scores_f16_neon",
                "attention_values_f16_neon");
    destroy(&world);
    make(&world, 1, PKV_RUN_MODE_NATIVE, PKV_DTYPE_F32, true, &options);
    set_step(&world, 1, (int64_t[]){40}, (int64_t[]){40}, 0);
    check_names(&world, PKV_CPU_LEVEL_AVX2, "attention_scores_f32_avx2",
                "attention_values_f32_avx2");
    destroy(&world);
    /* Dot products: of the values where one sequence has 9 rows and more for a key head, here 80,
     * the other 2. */
    options.products = PKV_ATTENTION_PRODUCTS_BF16;
    make(&world, 1, PKV_RUN_MODE_NATIVE, PKV_DTYPE_BF16, true, &options);
    set_step(&world, 2, (int64_t[]){40, 40}, (int64_t[]){40, 1}, 0);
    check_names(&world, PKV_CPU_LEVEL_C, "attention_scores_bf16_c", "attention_values_bf16_c");
    check_names(&world, PKV_CPU_LEVEL_AVX512_BF16, "attention_scores_dot_avx512_bf16",
                "attention_values_dot_avx512_bf16");
    set_step(&world, 1, (int64_t[]){40}, (int64_t[]){4}, 0);
    check_names(&world, PKV_CPU_LEVEL_AVX512_BF16, "attention_scores_dot_avx512_bf16",
                "attention_values_bf16_avx512");
    destroy(&world);
}

/* One query of a sequence over one block of that size, named again and again. */
static void check_too_large(int32_t run_mode, int64_t block_size, int64_t num_heads,
                            int64_t head_size, int64_t num_blocks) {
    const int64_t shape[] = {1, block_size, num_heads, head_size};
    const struct pkv_tensor key =
        pkv_tensor_make((void *)(uintptr_t)0x10000, PKV_DTYPE_F32, 4, shape);
    const struct pkv_step_options step_options = {.struct_size = sizeof(step_options)};
    int32_t *table = calloc((size_t)num_blocks, sizeof(*table));
    int64_t length = block_size * num_blocks, starts[] = {0, 1};
    const struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .block_table = pkv_tensor_make(table, PKV_DTYPE_I32, 2, (int64_t[]){1, num_blocks}),
        .seq_lens = pkv_tensor_make(&length, PKV_DTYPE_I64, 1, (int64_t[]){1}),
        .query_start_loc = pkv_tensor_make(starts, PKV_DTYPE_I64, 1, (int64_t[]){2})};
    struct world world = {.context = make_context(1, run_mode, 0)};
    struct pkv_attention_explanation got = {.struct_size = sizeof(got)};
    assert_non_null(table);
    CHECK_OK(pkv_cache_init(&world.cache, &key, NULL, NULL, &error), &error);
    CHECK_OK(
        pkv_paged_attention_plan_create(&world.plan, world.context, &world.cache, NULL, &error),
        &error);
    CHECK_OK(pkv_step_create(&world.step, &step_options, &error), &error);
    CHECK_OK(pkv_step_set(world.context, world.step, &world.cache, &indices, &error), &error);
    CHECK_REFUSED(pkv_paged_attention_explain(world.context, world.plan, world.step, &got, &error),
                  &error, PKV_STATUS_OVERFLOW);
    destroy(&world);
    free(table);
}

/* 2^32 tokens and one block more; and 2^30 tokens of 2^23 heads of 2^11 bytes, which are 2^64. */
static void test_sizes_that_do_not_fit(void **state) {
    (void)state;
    check_too_large(PKV_RUN_MODE_NATIVE, INT64_C(1) << 30, 1, 1, 5);
    assert_string_equal(error.argument, "seq_lens");
    for (int i = 0; i < 2; i++) {
        check_too_large(i == 0 ? PKV_RUN_MODE_NATIVE : PKV_RUN_MODE_SIM, INT64_C(1) << 14,
                        INT64_C(1) << 23, 512, INT64_C(1) << 16);
        assert_string_equal(error.argument, "step");
    }
}

static void test_explain_refuses(void **state) {
    (void)state;
    struct world world;
    struct pkv_attention_explanation got = {.struct_size = sizeof(got)}, before;
    make(&world, 1, PKV_RUN_MODE_NATIVE, PKV_DTYPE_BF16, true, &four_heads);
    memset((char *)&got + sizeof(size_t), 0x5a, sizeof(got) - sizeof(size_t));
    before = got;
    CHECK_REFUSED(pkv_paged_attention_explain(world.context, world.plan, world.step, &got, &error),
                  &error, PKV_STATUS_BAD_STATE);
    /* A step of slots has no queries, and one for a cache of other blocks is none for this plan. */
    const struct pkv_step_indices slots = {
        .struct_size = sizeof(slots),
        .slot_mapping = pkv_tensor_make(world.starts, PKV_DTYPE_I64, 1, (int64_t[]){1})};
    CHECK_OK(pkv_step_set(world.context, world.step, &world.cache, &slots, &error), &error);
    CHECK_REFUSED(pkv_paged_attention_explain(world.context, world.plan, world.step, &got, &error),
                  &error, PKV_STATUS_BAD_STATE);
    const int64_t own_blocks = world.cache.num_blocks;
    world.cache.num_blocks = own_blocks - 1;
    set_step(&world, 1, (int64_t[]){300}, (int64_t[]){1}, 0);
    world.cache.num_blocks = own_blocks;
    CHECK_REFUSED(pkv_paged_attention_explain(world.context, world.plan, world.step, &got, &error),
                  &error, PKV_STATUS_BAD_STATE);
    set_step(&world, 1, (int64_t[]){300}, (int64_t[]){1}, 0);
    CHECK_REFUSED(pkv_paged_attention_explain(NULL, world.plan, world.step, &got, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    assert_string_equal(error.argument, "context");
    CHECK_REFUSED(pkv_paged_attention_explain(world.context, NULL, world.step, &got, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_paged_attention_explain(world.context, world.plan, NULL, &got, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_paged_attention_explain(world.context, world.plan, world.step, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    assert_memory_equal(&got, &before, sizeof(got));
    /* The context is const, so its last error is none of these. */
    assert_int_equal(pkv_context_last_error(world.context)->status, PKV_STATUS_OK);
    destroy(&world);
    /* Heads that no tensor could have: counting their units would take years. */
    struct pkv_paged_attention_options options = {.struct_size = sizeof(options),
                                                  .num_heads = INT64_MAX - 1};
    for (int i = 0; i < 2; i++) {
        make(&world, 1, i == 0 ? PKV_RUN_MODE_NATIVE : PKV_RUN_MODE_SIM, PKV_DTYPE_BF16, true,
             &options);
        set_step(&world, 1, (int64_t[]){300}, (int64_t[]){300}, 0);
        CHECK_REFUSED(
            pkv_paged_attention_explain(world.context, world.plan, world.step, &got, &error),
            &error, PKV_STATUS_OVERFLOW);
        assert_int_equal(error.value, 300);
        destroy(&world);
        options.num_heads = INT64_C(1) << 31;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_decode_step),
        cmocka_unit_test(test_windows_and_several_queries),
        cmocka_unit_test(test_values_within_keys),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_shared_tokens),
        cmocka_unit_test(test_sim),
        cmocka_unit_test(test_kernels_are_named),
        cmocka_unit_test(test_sizes_that_do_not_fit),
        cmocka_unit_test(test_explain_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
