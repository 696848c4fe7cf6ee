/* SPDX-License-Identifier: MIT
 *
 * Every function that creates something, with its first, second, ... allocation failing until it
 * succeeds: out of memory is said, nothing is left behind. And nothing else allocates.
 */
#include "allocator.h"
#include "calls.h"

static struct pkv_error error = {.struct_size = sizeof(error)};
static uint16_t storage[2 * 4 * 2 * 8];

enum { MAX_ALLOCATIONS = 50 };

static struct pkv_cache make_cache(void) {
    struct pkv_tensor key = pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){2, 4, 2, 8});
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    CHECK_OK(pkv_cache_init(&cache, &key, NULL, NULL, &error), &error);
    return cache;
}

static struct pkv_context *context_with(const struct pkv_allocator *hook) {
    struct pkv_context_options options = {.allocator = hook};
    struct pkv_context *context = NULL;

    CHECK_OK(pkv_context_create(&context, &options, &error), &error);
    return context;
}

/* What is created, and how it is destroyed. object stays NULL when it is refused. */
typedef enum pkv_status create_fn(void **object, const struct pkv_allocator *hook);
typedef void destroy_fn(void *object);

static enum pkv_status create_context(void **object, const struct pkv_allocator *hook) {
    struct pkv_context_options options = {.allocator = hook};
    struct pkv_context *context = NULL;
    enum pkv_status status = pkv_context_create(&context, &options, &error);

    *object = context;
    return status;
}

static void destroy_context(void *object) {
    pkv_context_destroy(object);
}

static enum pkv_status create_executor(void **object, const struct pkv_allocator *hook) {
    struct pkv_executor_pthread *pool = NULL;
    enum pkv_status status = pkv_executor_pthread_create(&pool, 3, hook, &error);

    *object = pool;
    return status;
}

static void destroy_executor(void *object) {
    pkv_executor_pthread_destroy(object);
}

static enum pkv_status create_step(void **object, const struct pkv_allocator *hook) {
    struct pkv_step_options options = {.max_tokens = 100, .max_seqs = 8, .allocator = hook};
    struct pkv_step *step = NULL;
    enum pkv_status status = pkv_step_create(&step, &options, &error);

    *object = step;
    return status;
}

static void destroy_step(void *object) {
    pkv_step_destroy(object);
}

/* Plans take their memory from their context's allocator and may outlive the context. */
static enum pkv_status create_scatter_plan(void **object, const struct pkv_allocator *hook) {
    struct test_allocator *allocator = hook->user;
    int64_t fail_at = allocator->fail_at;
    struct pkv_cache cache = make_cache();
    struct pkv_scatter_plan *plan = NULL;
    struct pkv_context *context;
    enum pkv_status status;

    allocator->fail_at = 0;
    context = context_with(hook);
    allocator->fail_at = fail_at == 0 ? 0 : allocator->num_calls + fail_at;
    status = pkv_scatter_plan_create(&plan, context, &cache, NULL, &error);
    pkv_context_destroy(context);
    *object = plan;
    return status;
}

static void destroy_scatter_plan(void *object) {
    pkv_scatter_plan_destroy(object);
}

static enum pkv_status create_gather_plan(void **object, const struct pkv_allocator *hook) {
    struct test_allocator *allocator = hook->user;
    int64_t fail_at = allocator->fail_at;
    struct pkv_cache cache = make_cache();
    struct pkv_gather_plan *plan = NULL;
    struct pkv_context *context;
    enum pkv_status status;

    allocator->fail_at = 0;
    context = context_with(hook);
    allocator->fail_at = fail_at == 0 ? 0 : allocator->num_calls + fail_at;
    status = pkv_gather_plan_create(&plan, context, &cache, &error);
    pkv_context_destroy(context);
    *object = plan;
    return status;
}

static void destroy_gather_plan(void *object) {
    pkv_gather_plan_destroy(object);
}

static void fail_until_success(create_fn *create, destroy_fn *destroy) {
    for (int64_t n = 1; n <= MAX_ALLOCATIONS; n++) {
        struct test_allocator allocator = {.fail_at = n};
        struct pkv_allocator hook = test_allocator_hook(&allocator);
        void *object = NULL;
        int32_t status = (int32_t)create(&object, &hook);

        if (status == PKV_STATUS_OK) {
            assert_non_null(object);
            assert_true(n > 1);
            destroy(object);
        } else {
            check_refused(status, &error, PKV_STATUS_OUT_OF_MEMORY, __FILE__, __LINE__);
            assert_null(object);
        }
        assert_int_equal(allocator.num_live, 0);
        assert_int_equal(allocator.num_bad, 0);
        if (status == PKV_STATUS_OK) {
            return;
        }
    }
    fail_msg("still out of memory after %d allocations", MAX_ALLOCATIONS);
}

static void contexts_fail_cleanly(void **state) {
    (void)state;
    fail_until_success(create_context, destroy_context);
}

static void executors_fail_cleanly(void **state) {
    (void)state;
    fail_until_success(create_executor, destroy_executor);
}

static void steps_fail_cleanly(void **state) {
    (void)state;
    fail_until_success(create_step, destroy_step);
}

static void plans_fail_cleanly(void **state) {
    (void)state;
    fail_until_success(create_scatter_plan, destroy_scatter_plan);
    fail_until_success(create_gather_plan, destroy_gather_plan);
}

/* After create nothing allocates: not set, not run, not a one-shot call, not a refusal. */
static void nothing_else_allocates(void **state) {
    struct test_allocator allocator = {0};
    struct pkv_allocator hook = test_allocator_hook(&allocator);
    struct pkv_context *context = context_with(&hook);
    struct pkv_step_options options = {.max_seqs = 2, .allocator = &hook};
    struct pkv_cache cache = make_cache();
    struct pkv_scatter_plan *plan = NULL;
    struct pkv_gather_plan *gather = NULL;
    struct pkv_step *step = NULL;
    uint16_t source[3 * 2 * 8] = {0};
    int32_t numbers[] = {3, 0, 3};
    int32_t table[] = {1, 0};
    struct pkv_tensor rows = pkv_tensor_make(source, PKV_DTYPE_BF16, 3, (int64_t[]){3, 2, 8});
    struct pkv_step_indices indices = {
        .slot_mapping = pkv_tensor_make(numbers, PKV_DTYPE_I32, 1, (int64_t[]){3}),
        .block_table = pkv_tensor_make(table, PKV_DTYPE_I32, 2, (int64_t[]){1, 2}),
        .seq_lens = pkv_tensor_make(numbers, PKV_DTYPE_I32, 1, (int64_t[]){1})};
    struct pkv_tensor key_cache =
        pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){2, 4, 2, 8});
    int64_t calls;

    (void)state;
    CHECK_OK(pkv_scatter_plan_create(&plan, context, &cache, NULL, &error), &error);
    CHECK_OK(pkv_gather_plan_create(&gather, context, &cache, &error), &error);
    CHECK_OK(pkv_step_create(&step, &options, &error), &error);
    calls = allocator.num_calls;
    allocator.fail_at = calls + 1;
    CHECK_OK(pkv_step_set(context, step, &cache, &indices, &error), &error);
    CHECK_OK(pkv_scatter_run(context, plan, step, &cache, &rows, NULL, &error), &error);
    CHECK_OK(pkv_gather_run(context, gather, step, &cache, &rows, NULL, &error), &error);
    CHECK_OK(pkv_scatter_pa_kv_cache(context, &rows, &key_cache, &indices.slot_mapping, NULL, NULL,
                                     NULL, &error),
             &error);
    indices.duplicates = PKV_DUPLICATES_REJECT;
    CHECK_REFUSED(pkv_step_set(context, step, &cache, &indices, &error), &error,
                  PKV_STATUS_DUPLICATE_SLOT);
    assert_int_equal(allocator.num_calls, calls);
    pkv_step_destroy(step);
    pkv_scatter_plan_destroy(plan);
    pkv_gather_plan_destroy(gather);
    pkv_context_destroy(context);
    assert_int_equal(allocator.num_live, 0);
    assert_int_equal(allocator.num_bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contexts_fail_cleanly),  cmocka_unit_test(executors_fail_cleanly),
        cmocka_unit_test(steps_fail_cleanly),     cmocka_unit_test(plans_fail_cleanly),
        cmocka_unit_test(nothing_else_allocates),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
