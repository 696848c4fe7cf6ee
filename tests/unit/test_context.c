/* SPDX-License-Identifier: MIT
 *
 * Contexts: options, CPU levels, the last error.
 */
#include "allocator.h"
#include "contexts.h"

static struct pkv_error error = {.struct_size = sizeof(error)};

static void defaults_are_zero_or_null(void **state) {
    struct pkv_context_options zero = {0};
    struct pkv_cpu_info info = {.struct_size = sizeof(info)};
    struct pkv_context *one = NULL;
    struct pkv_context *two = NULL;

    (void)state;
    CHECK_OK(pkv_cpu_info_get(&info, &error), &error);
    CHECK_OK(pkv_context_create(&one, NULL, &error), &error);
    CHECK_OK(pkv_context_create(&two, &zero, &error), &error);
    assert_int_equal(pkv_context_cpu_level(one), info.level);
    assert_int_equal(pkv_context_cpu_level(two), info.level);
    assert_int_equal(pkv_context_last_error(one)->status, PKV_STATUS_OK);
    pkv_context_destroy(one);
    pkv_context_destroy(two);
    pkv_context_destroy(NULL);
}

static void levels_are_lowered_never_raised(void **state) {
    struct pkv_cpu_info info = {.struct_size = sizeof(info)};

    (void)state;
    CHECK_OK(pkv_cpu_info_get(&info, &error), &error);
    for (int32_t level = -1; level <= 20; level++) {
        struct pkv_context_options options = {.max_cpu_level = level};
        struct pkv_context *context = NULL;
        int known = strcmp(pkv_cpu_level_name(level), "unknown") != 0;
        int same_family = level == PKV_CPU_LEVEL_BEST || level == PKV_CPU_LEVEL_C ||
                          (level >= PKV_CPU_LEVEL_NEON) == (info.level >= PKV_CPU_LEVEL_NEON);
        int32_t status = (int32_t)pkv_context_create(&context, &options, &error);

        if (!known) {
            assert_int_equal(status, PKV_STATUS_INVALID_ARGUMENT);
            assert_null(context);
        } else if (same_family) {
            int32_t expected =
                level == PKV_CPU_LEVEL_BEST || level > info.level ? info.level : level;

            check_ok(status, &error, __FILE__, __LINE__);
            assert_int_equal(pkv_context_cpu_level(context), expected);
        }
        pkv_context_destroy(context);
    }
}

static void options_are_checked(void **state) {
    struct pkv_executor executor = {.run = run_in_odd_order, .num_threads = 0};
    struct pkv_context_options options = {.run_mode = 2};
    struct {
        struct pkv_context_options known;
        char unknown[5];
    } larger = {.known = {.struct_size = sizeof(larger)}};
    struct pkv_context *context = NULL;

    (void)state;
    CHECK_REFUSED(pkv_context_create(&context, &options, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    assert_null(context);
    options = (struct pkv_context_options){.executor = &executor};
    CHECK_REFUSED(pkv_context_create(&context, &options, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    executor = (struct pkv_executor){.num_threads = 2};
    CHECK_REFUSED(pkv_context_create(&context, &options, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_context_create(NULL, NULL, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    options = (struct pkv_context_options){.struct_size = 2};
    CHECK_REFUSED(pkv_context_create(&context, &options, &error), &error, PKV_STATUS_STRUCT_SIZE);
    CHECK_OK(pkv_context_create(&context, &larger.known, &error), &error);
    pkv_context_destroy(context);
    larger.unknown[0] = 1;
    CHECK_REFUSED(pkv_context_create(&context, &larger.known, &error), &error,
                  PKV_STATUS_STRUCT_SIZE);
    /* A version 0.0 without an executor: what it has is read, the rest is zero. */
    options = (struct pkv_context_options){
        .struct_size = offsetof(struct pkv_context_options, executor), .run_mode = 1};
    options.executor = (const struct pkv_executor *)&larger;
    CHECK_OK(pkv_context_create(&context, &options, &error), &error);
    pkv_context_destroy(context);
}

static void the_allocator_is_copied(void **state) {
    struct test_allocator allocator = {0};
    struct pkv_allocator hook = test_allocator_hook(&allocator);
    struct pkv_context_options options = {.allocator = &hook};
    struct pkv_context *context = NULL;

    (void)state;
    CHECK_OK(pkv_context_create(&context, &options, &error), &error);
    assert_int_equal(allocator.num_calls, 1);
    assert_int_equal(allocator.num_live, 1);
    memset(&hook, 0, sizeof(hook));
    pkv_context_destroy(context);
    assert_int_equal(allocator.num_live, 0);
    assert_int_equal(allocator.num_bad, 0);
}

static void the_last_error_stays(void **state) {
    struct pkv_context *context = make_context(PKV_RUN_MODE_NATIVE, PKV_CPU_LEVEL_BEST, NULL);
    uint8_t storage[8] = {0};
    int32_t slots[1] = {9};
    struct pkv_tensor cache = pkv_tensor_make(storage, PKV_DTYPE_U8, 4, (int64_t[]){2, 4, 1, 1});
    struct pkv_tensor key = pkv_tensor_make(slots, PKV_DTYPE_U8, 3, (int64_t[]){1, 1, 1});
    struct pkv_tensor mapping = pkv_tensor_make(slots, PKV_DTYPE_I32, 1, (int64_t[]){1});
    const struct pkv_error *last;

    (void)state;
    assert_int_equal(
        pkv_scatter_pa_kv_cache(context, &key, &cache, &mapping, NULL, NULL, NULL, NULL),
        PKV_STATUS_SLOT_OUT_OF_RANGE);
    last = pkv_context_last_error(context);
    assert_int_equal(last->status, PKV_STATUS_SLOT_OUT_OF_RANGE);
    assert_int_equal(last->value, 9);
    assert_int_equal(last->bound, 8);
    assert_string_equal(last->function, "pkv_scatter_pa_kv_cache");
    slots[0] = 7;
    CHECK_OK(pkv_scatter_pa_kv_cache(context, &key, &cache, &mapping, NULL, NULL, NULL, &error),
             &error);
    last = pkv_context_last_error(context);
    assert_int_equal(last->status, PKV_STATUS_SLOT_OUT_OF_RANGE);
    pkv_context_destroy(context);
}

static void run_modes_have_names(void **state) {
    (void)state;
    assert_string_equal(pkv_run_mode_name(PKV_RUN_MODE_NATIVE), "native");
    assert_string_equal(pkv_run_mode_name(PKV_RUN_MODE_SIM), "sim");
    assert_string_equal(pkv_run_mode_name(2), "unknown");
    assert_string_equal(pkv_run_mode_name(-1), "unknown");
}

static void the_version_is_the_headers(void **state) {
    (void)state;
    assert_int_equal(pkv_version(),
                     PKV_VERSION_MAJOR * 10000 + PKV_VERSION_MINOR * 100 + PKV_VERSION_PATCH);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_zero_or_null),
        cmocka_unit_test(levels_are_lowered_never_raised),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(the_allocator_is_copied),
        cmocka_unit_test(the_last_error_stays),
        cmocka_unit_test(run_modes_have_names),
        cmocka_unit_test(the_version_is_the_headers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
