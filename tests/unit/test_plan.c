/* SPDX-License-Identifier: MIT
 *
 * What surrounds a run: explanations, store policies, and steps: their memory, their capacity, the
 * order of set and run.
 */
#include "calls.h"
#include "contexts.h"

#include <stdlib.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static struct pkv_context *native;
static struct pkv_context *sim;
static uint16_t storage[9 * 4 * 2 * 16];
static uint16_t value_storage[9 * 4 * 2 * 16];

/* A cache at an address that nobody owns: only its description is looked at. */
static struct pkv_cache described(int64_t heads, int64_t head_size, int with_value) {
    int64_t shape[] = {9, 4, heads, head_size};
    struct pkv_tensor key = pkv_tensor_make((void *)(uintptr_t)0x10000, PKV_DTYPE_BF16, 4, shape);
    struct pkv_tensor value =
        pkv_tensor_make((void *)(uintptr_t)0x100000000, PKV_DTYPE_BF16, 4, shape);
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    CHECK_OK(pkv_cache_init(&cache, &key, with_value ? &value : NULL, NULL, &error), &error);
    return cache;
}

static struct pkv_explanation explain_scatter(struct pkv_context *context,
                                              const struct pkv_cache *cache,
                                              const struct pkv_scatter_options *options,
                                              int64_t num_tokens, int32_t num_threads) {
    struct pkv_explanation got = {.struct_size = sizeof(got)};
    struct pkv_scatter_plan *plan = NULL;

    CHECK_OK(pkv_scatter_plan_create(&plan, context, cache, options, &error), &error);
    CHECK_OK(pkv_scatter_plan_explain(plan, num_tokens, num_threads, &got, &error), &error);
    pkv_scatter_plan_destroy(plan);
    return got;
}

/* tile_tokens of the published operator: 32 up to kv_dim 512, 16 up to 4096, else 4. */
static void sim_has_the_published_tiles(void **state) {
    static const struct {
        int64_t kv_dim;
        int64_t tile;
    } rule[] = {{1, 32}, {512, 32}, {513, 16}, {4096, 16}, {4097, 4}, {65536, 4}};

    (void)state;
    for (size_t i = 0; i < sizeof(rule) / sizeof(rule[0]); i++) {
        struct pkv_cache cache = described(1, rule[i].kv_dim, 1);
        struct pkv_explanation got = explain_scatter(sim, &cache, NULL, 70, 4);

        assert_int_equal(got.run_mode, PKV_RUN_MODE_SIM);
        assert_int_equal(got.tile_tokens, rule[i].tile);
        assert_int_equal(got.num_tiles, (70 + rule[i].tile - 1) / rule[i].tile);
        assert_int_equal(got.tail_tokens, 70 % rule[i].tile);
        assert_int_equal(got.bytes_read, 70 * rule[i].kv_dim * 4);
        assert_int_equal(got.bytes_written, 70 * rule[i].kv_dim * 4);
    }
}

/* 32 tokens of 4 index bytes, 1024 key bytes and 1024 value bytes. */
static void a_tile_has_its_bytes(void **state) {
    struct pkv_cache cache = described(2, 256, 1);
    struct pkv_explanation got = explain_scatter(sim, &cache, NULL, 64, 1);

    (void)state;
    assert_int_equal(got.tile_bytes, 32 * 2052);
    assert_int_equal(got.tail_tokens, 32);
    assert_int_equal(got.num_tiles, 2);
    cache = described(2, 256, 0);
    got = explain_scatter(sim, &cache, NULL, 0, 1);
    assert_int_equal(got.tile_bytes, 32 * 1028);
    assert_int_equal(got.num_tiles, 0);
    assert_int_equal(got.tail_tokens, 0);
    assert_int_equal(got.bytes_written, 0);
    assert_string_equal(got.value_kernel, "none");
    /* Native scatters select 512 tokens at a time. */
    got = explain_scatter(native, &cache, NULL, 1000, 1);
    assert_int_equal(got.tile_tokens, 512);
    assert_int_equal(got.num_tiles, 2);
    assert_int_equal(got.tail_tokens, 488);
}

/* A token has 128 bytes here, and 64 KiB is the border. */
static void the_store_policy_is_told(void **state) {
    struct pkv_cache cache = described(2, 16, 1);
    struct pkv_scatter_options options = {.store_policy = PKV_STORE_AUTO};

    (void)state;
    assert_string_equal(explain_scatter(native, &cache, &options, 512, 1).store_policy, "cached");
    assert_string_equal(explain_scatter(native, &cache, &options, 513, 1).store_policy,
                        "streaming");
    options.store_policy = PKV_STORE_CACHED;
    assert_string_equal(explain_scatter(native, &cache, &options, 5000, 1).store_policy, "cached");
    options.store_policy = PKV_STORE_STREAMING;
    assert_string_equal(explain_scatter(native, &cache, &options, 1, 1).store_policy, "streaming");
}

static void explanations_are_checked(void **state) {
    struct pkv_cache cache = described(2, 16, 1);
    struct pkv_scatter_plan *plan = NULL;
    struct pkv_gather_plan *gather = NULL;
    struct pkv_explanation got = {.struct_size = sizeof(got)};
    unsigned char old[sizeof(got)];
    size_t known = offsetof(struct pkv_explanation, num_tiles);

    (void)state;
    CHECK_OK(pkv_scatter_plan_create(&plan, native, &cache, NULL, &error), &error);
    CHECK_OK(pkv_gather_plan_create(&gather, native, &cache, &error), &error);
    CHECK_REFUSED(pkv_scatter_plan_explain(plan, -1, 1, &got, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_plan_explain(plan, 1, 0, &got, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_plan_explain(NULL, 1, 1, &got, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_plan_explain(plan, 1, 1, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_OK(pkv_gather_plan_explain(gather, 100, 2, &got, &error), &error);
    assert_int_equal(got.bytes_read, 100 * 2 * 2 * 16 * 2);
    CHECK_REFUSED(pkv_gather_plan_explain(gather, -1, 2, &got, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    /* An older caller's struct is filled as far as it goes. */
    memset(old, 0x5a, sizeof(old));
    memcpy(old, &known, sizeof(known));
    memcpy(&got, old, sizeof(got));
    CHECK_OK(pkv_scatter_plan_explain(plan, 100, 2, &got, &error), &error);
    assert_int_equal(got.num_tokens, 100);
    assert_memory_equal((char *)&got + known, old + known, sizeof(got) - known);
    pkv_scatter_plan_destroy(plan);
    pkv_gather_plan_destroy(gather);
    pkv_scatter_plan_destroy(NULL);
    pkv_gather_plan_destroy(NULL);
}

static void plans_check_their_arguments(void **state) {
    struct pkv_cache cache = described(2, 16, 1);
    struct pkv_scatter_options options = {.store_policy = 3};
    struct pkv_scatter_plan *plan = NULL;
    struct pkv_gather_plan *gather = NULL;

    (void)state;
    CHECK_REFUSED(pkv_scatter_plan_create(&plan, native, &cache, &options, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    assert_null(plan);
    options = (struct pkv_scatter_options){.reserved = 1};
    CHECK_REFUSED(pkv_scatter_plan_create(&plan, native, &cache, &options, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_plan_create(NULL, native, &cache, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_plan_create(&plan, NULL, &cache, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_plan_create(&plan, native, NULL, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_gather_plan_create(NULL, native, &cache, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_gather_plan_create(&gather, NULL, &cache, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_gather_plan_create(&gather, native, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
}

/* Each policy moves the same bytes, on both sides of the border between them. */
static void policies_write_the_same_bytes(void **state) {
    static const int64_t counts[] = {1, 15, 17, 100, 170, 200};
    struct test_rng rng = test_rng_make(4);

    (void)state;
    for (int round = 0; round < 18; round++) {
        struct model_sizes sizes = {.key_layout = round % REF_NUM_LAYOUTS,
                                    .value_layout = (round + 2) % REF_NUM_LAYOUTS,
                                    .key_dtype = PKV_DTYPE_BF16,
                                    .value_dtype = PKV_DTYPE_BF16,
                                    .num_blocks = 12,
                                    .block_size = 16,
                                    .num_heads = 2,
                                    .key_head_size = 64,
                                    .value_head_size = 128,
                                    .padded = round & 1};
        int64_t count = counts[round % 6];
        int64_t slots[200];
        struct model_cache model = model_cache_make(&sizes, &rng);
        struct model_rows key =
            model_rows_make(MODEL_ROWS_PACKED, &model.key, count, TEST_GUARD_END, &rng);
        struct model_rows value =
            model_rows_make(MODEL_ROWS_PACKED, &model.value, count, TEST_GUARD_START, &rng);
        struct model_index index;
        struct pkv_scatter_pa_kv_cache_options options = {.key_layout = sizes.key_layout,
                                                          .value_layout = sizes.value_layout,
                                                          .store_policy = round / 6};

        for (int64_t t = 0; t < count; t++) {
            slots[t] = test_rng_between(&rng, -1, 12 * 16 - 1);
        }
        index = model_index_make(PKV_DTYPE_I64, 1, &count, slots);
        ref_scatter(&model.key.ref, model.key.shadow, &key.ref, key.memory.data, slots);
        ref_scatter(&model.value.ref, model.value.shadow, &value.ref, value.memory.data, slots);
        CHECK_OK(pkv_scatter_pa_kv_cache(native, &key.tensor, &model.key.tensor, &index.tensor,
                                         &value.tensor, &model.value.tensor, &options, &error),
                 &error);
        assert_true(model_cache_is_as_expected(&model));
        model_index_free(&index);
        model_rows_free(&key);
        model_rows_free(&value);
        model_cache_free(&model);
    }
}

/* A description that has come to reach beyond its memory: sim looks at every access, and says what
 * it is. */
static void sim_checks_every_access(void **state) {
    int64_t shape[] = {9, 4, 2, 16}, slots[1] = {35}, table[1] = {8}, length[1] = {4};
    struct pkv_tensor key_cache = pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, shape);
    struct pkv_tensor rows =
        pkv_tensor_make(value_storage, PKV_DTYPE_BF16, 3, (int64_t[]){4, 2, 16});
    struct pkv_tensor row =
        pkv_tensor_make(value_storage, PKV_DTYPE_BF16, 3, (int64_t[]){1, 2, 16});
    int64_t pair[2] = {0, 8};
    struct pkv_tensor mapping = pkv_tensor_make(pair, PKV_DTYPE_I64, 2, (int64_t[]){1, 2});
    struct pkv_step_indices indices = {
        .slot_mapping = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, (int64_t[]){1}),
        .block_table = pkv_tensor_make(table, PKV_DTYPE_I64, 2, (int64_t[]){1, 1}),
        .seq_lens = pkv_tensor_make(length, PKV_DTYPE_I64, 1, (int64_t[]){1})};
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct pkv_scatter_plan *scatter;
    struct pkv_gather_plan *gather;
    struct pkv_step *step = make_step(0, 0);

    (void)state;
    memset(storage, 0x5a, sizeof(storage));
    CHECK_OK(pkv_cache_init(&cache, &key_cache, NULL, NULL, &error), &error);
    cache.key.block_stride_bytes *= 2;
    CHECK_OK(pkv_scatter_plan_create(&scatter, sim, &cache, NULL, &error), &error);
    CHECK_OK(pkv_gather_plan_create(&gather, sim, &cache, &error), &error);
    CHECK_OK(pkv_step_set(sim, step, &cache, &indices, &error), &error);
    CHECK_REFUSED(pkv_scatter_run(sim, scatter, step, &cache, &row, NULL, &error), &error,
                  PKV_STATUS_INTERNAL);
    CHECK_REFUSED(pkv_gather_run(sim, gather, step, &cache, &rows, NULL, &error), &error,
                  PKV_STATUS_INTERNAL);
    CHECK_REFUSED(pkv_copy_blocks(sim, &cache, &mapping, &error), &error, PKV_STATUS_INTERNAL);
    CHECK_REFUSED(pkv_fill_blocks(sim, &cache, 8, 1, &(uint16_t){1}, NULL, &error), &error,
                  PKV_STATUS_INTERNAL);
    for (size_t i = 0; i < sizeof(storage) / sizeof(storage[0]); i++) {
        assert_int_equal(storage[i], 0x5a5a);
    }
    pkv_scatter_plan_destroy(scatter);
    pkv_gather_plan_destroy(gather);
    pkv_step_destroy(step);
}

static void a_step_lives_in_the_callers_memory(void **state) {
    struct pkv_step_options options = {.max_tokens = 100, .max_seqs = 10};
    size_t bytes = pkv_step_memory_size(&options);
    struct pkv_step *step = NULL;
    unsigned char *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);

    (void)state;
    assert_true(bytes > 0);
    assert_true(pkv_step_memory_size(NULL) > 0);
    assert_non_null(memory);
    memset(memory, 0xa5, (bytes + 127) / 64 * 64);
    CHECK_REFUSED(pkv_step_create_in(&step, memory, bytes - 1, &options, &error), &error,
                  PKV_STATUS_CAPACITY);
    CHECK_REFUSED(pkv_step_create_in(&step, memory + 8, bytes, &options, &error), &error,
                  PKV_STATUS_MISALIGNED);
    CHECK_REFUSED(pkv_step_create_in(&step, NULL, bytes, &options, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_step_create_in(NULL, memory, bytes, &options, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_OK(pkv_step_create_in(&step, memory, bytes, &options, &error), &error);
    pkv_step_destroy(step);
    CHECK_OK(pkv_step_create_in(&step, memory, bytes, NULL, &error), &error);
    pkv_step_destroy(step);
    free(memory);
    options.max_tokens = -1;
    assert_int_equal(pkv_step_memory_size(&options), 0);
    CHECK_REFUSED(pkv_step_create(&step, &options, &error), &error, PKV_STATUS_INVALID_ARGUMENT);
    options = (struct pkv_step_options){.max_seqs = -1};
    assert_int_equal(pkv_step_memory_size(&options), 0);
    CHECK_REFUSED(pkv_step_create(&step, &options, &error), &error, PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_step_create(NULL, NULL, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    pkv_step_destroy(NULL);
}

static void a_step_keeps_its_capacity(void **state) {
    struct pkv_cache cache = described(2, 16, 0);
    struct pkv_step *step = make_step(2, 1);
    int64_t numbers[3] = {0, 1, 2};
    struct pkv_step_indices indices = {
        .slot_mapping = pkv_tensor_make(numbers, PKV_DTYPE_I64, 1, (int64_t[]){3})};

    (void)state;
    CHECK_REFUSED(pkv_step_set(native, step, &cache, &indices, &error), &error,
                  PKV_STATUS_CAPACITY);
    assert_int_equal(error.value, 3);
    assert_int_equal(error.bound, 2);
    indices.slot_mapping.shape[0] = 2;
    CHECK_OK(pkv_step_set(native, step, &cache, &indices, &error), &error);
    indices = (struct pkv_step_indices){
        .block_table = pkv_tensor_make(numbers, PKV_DTYPE_I64, 2, (int64_t[]){2, 1}),
        .seq_lens = pkv_tensor_make(numbers, PKV_DTYPE_I64, 1, (int64_t[]){2})};
    CHECK_REFUSED(pkv_step_set(native, step, &cache, &indices, &error), &error,
                  PKV_STATUS_CAPACITY);
    CHECK_REFUSED(pkv_step_set(NULL, step, &cache, &indices, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_step_set(native, NULL, &cache, &indices, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_step_set(native, step, NULL, &indices, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_step_set(native, step, &cache, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    pkv_step_destroy(step);
}

/* A step with slots alone is no step for a gather, and the other way round. */
static void a_run_needs_its_indices(void **state) {
    struct pkv_tensor key_cache =
        pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){9, 4, 2, 16});
    struct pkv_tensor rows =
        pkv_tensor_make(value_storage, PKV_DTYPE_BF16, 3, (int64_t[]){1, 2, 16});
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct pkv_scatter_plan *scatter = NULL;
    struct pkv_gather_plan *gather = NULL;
    struct pkv_step *step = make_step(0, 4);
    int32_t one[2] = {1, 1};
    struct pkv_step_indices slots = {.slot_mapping =
                                         pkv_tensor_make(one, PKV_DTYPE_I32, 1, (int64_t[]){1})};
    struct pkv_step_indices tables = {
        .block_table = pkv_tensor_make(one, PKV_DTYPE_I32, 2, (int64_t[]){1, 2}),
        .seq_lens = pkv_tensor_make(one, PKV_DTYPE_I32, 1, (int64_t[]){1})};
    struct pkv_step_indices both = tables;

    (void)state;
    both.slot_mapping = slots.slot_mapping;
    CHECK_OK(pkv_cache_init(&cache, &key_cache, NULL, NULL, &error), &error);
    CHECK_OK(pkv_scatter_plan_create(&scatter, native, &cache, NULL, &error), &error);
    CHECK_OK(pkv_gather_plan_create(&gather, native, &cache, &error), &error);
    CHECK_REFUSED(pkv_gather_run(native, gather, step, &cache, &rows, NULL, &error), &error,
                  PKV_STATUS_BAD_STATE);
    CHECK_OK(pkv_step_set(native, step, &cache, &slots, &error), &error);
    CHECK_REFUSED(pkv_gather_run(native, gather, step, &cache, &rows, NULL, &error), &error,
                  PKV_STATUS_BAD_STATE);
    CHECK_OK(pkv_scatter_run(native, scatter, step, &cache, &rows, NULL, &error), &error);
    CHECK_OK(pkv_step_set(native, step, &cache, &tables, &error), &error);
    CHECK_REFUSED(pkv_scatter_run(native, scatter, step, &cache, &rows, NULL, &error), &error,
                  PKV_STATUS_BAD_STATE);
    CHECK_OK(pkv_gather_run(native, gather, step, &cache, &rows, NULL, &error), &error);
    for (int i = 0; i < 2; i++) { /* a step for other blocks; the number that differs is told */
        struct pkv_cache other = cache;
        int64_t *const number = i == 0 ? &other.num_blocks : &other.block_size;
        const int64_t bound = *number;
        *number = 100 + i;
        CHECK_OK(pkv_step_set(native, step, &other, &both, &error), &error);
        CHECK_REFUSED(pkv_scatter_run(native, scatter, step, &cache, &rows, NULL, &error), &error,
                      PKV_STATUS_BAD_STATE);
        assert_int_equal(error.value, 100 + i);
        assert_int_equal(error.bound, bound);
    }
    CHECK_OK(pkv_step_set(native, step, &cache, &both, &error), &error);
    CHECK_OK(pkv_gather_run(native, gather, step, &cache, &rows, NULL, &error), &error);
    CHECK_OK(pkv_scatter_run(native, scatter, step, &cache, &rows, NULL, &error), &error);
    CHECK_REFUSED(pkv_gather_run(native, NULL, step, &cache, &rows, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_run(native, scatter, NULL, &cache, &rows, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_run(NULL, scatter, step, &cache, &rows, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_gather_run(native, gather, step, NULL, &rows, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    pkv_step_destroy(step);
    pkv_scatter_plan_destroy(scatter);
    pkv_gather_plan_destroy(gather);
}

static int set_up(void **state) {
    (void)state;
    native = make_context(PKV_RUN_MODE_NATIVE, PKV_CPU_LEVEL_BEST, NULL);
    sim = make_context(PKV_RUN_MODE_SIM, PKV_CPU_LEVEL_BEST, NULL);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    pkv_context_destroy(native);
    pkv_context_destroy(sim);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sim_has_the_published_tiles),
        cmocka_unit_test(a_tile_has_its_bytes),
        cmocka_unit_test(the_store_policy_is_told),
        cmocka_unit_test(explanations_are_checked),
        cmocka_unit_test(plans_check_their_arguments),
        cmocka_unit_test(policies_write_the_same_bytes),
        cmocka_unit_test(sim_checks_every_access),
        cmocka_unit_test(a_step_lives_in_the_callers_memory),
        cmocka_unit_test(a_step_keeps_its_capacity),
        cmocka_unit_test(a_run_needs_its_indices),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
