/* SPDX-License-Identifier: MIT
 *
 * Contexts of every kind that this machine has: CPU level, run mode, number of threads, and an
 * executor that runs its tiles in an odd order. An EXACT operator gives the same bytes in each.
 * Needs cmocka.
 */
#ifndef PAGEDKV_TESTS_CONTEXTS_H
#define PAGEDKV_TESTS_CONTEXTS_H

#include "check.h"

#define TEST_MAX_CONTEXTS 48
#define TEST_MAX_THREADS  4

struct test_contexts {
    int count;
    struct pkv_context *all[TEST_MAX_CONTEXTS];
    const char *names[TEST_MAX_CONTEXTS]; /* of the CPU level */
    struct pkv_executor_pthread *pools[TEST_MAX_THREADS + 1];
};

/* Runs the odd tiles first, then the even ones, each backwards, on the calling thread. */
static inline void run_in_odd_order(void *user, void (*fn)(void *arg, int64_t index), void *arg,
                                    int64_t num_tiles) {
    (void)user;
    for (int64_t parity = 1; parity >= 0; parity--) {
        for (int64_t i = num_tiles - 1; i >= 0; i--) {
            if (i % 2 == parity) {
                fn(arg, i);
            }
        }
    }
}

static inline struct pkv_context *make_context(int32_t run_mode, int32_t level,
                                               const struct pkv_executor *executor) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_context_options options = {.struct_size = sizeof(options),
                                          .run_mode = run_mode,
                                          .max_cpu_level = level,
                                          .executor = executor};
    struct pkv_context *context = NULL;

    CHECK_OK(pkv_context_create(&context, &options, &error), &error);
    assert_non_null(context);
    return context;
}

static inline void add_context(struct test_contexts *contexts, int32_t run_mode, int32_t level,
                               const struct pkv_executor *executor) {
    assert_true(contexts->count < TEST_MAX_CONTEXTS);
    contexts->names[contexts->count] = pkv_cpu_level_name(level);
    contexts->all[contexts->count++] = make_context(run_mode, level, executor);
}

/* Every level that the machine has, native: serial, 1 to 4 threads, and in odd order; then sim. */
static inline void test_contexts_make(struct test_contexts *contexts) {
    static const int32_t levels[] = {PKV_CPU_LEVEL_C,      PKV_CPU_LEVEL_AVX2,
                                     PKV_CPU_LEVEL_AVX512, PKV_CPU_LEVEL_AVX512_BF16,
                                     PKV_CPU_LEVEL_NEON,   PKV_CPU_LEVEL_NEON_BF16};
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_executor odd = {.run = run_in_odd_order, .num_threads = 5};
    struct pkv_cpu_info info = {.struct_size = sizeof(info)};

    memset(contexts, 0, sizeof(*contexts));
    CHECK_OK(pkv_cpu_info_get(&info, &error), &error);
    for (int threads = 1; threads <= TEST_MAX_THREADS; threads++) {
        CHECK_OK(pkv_executor_pthread_create(&contexts->pools[threads], threads, NULL, &error),
                 &error);
    }
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (levels[i] > info.level ||
            (levels[i] < PKV_CPU_LEVEL_NEON && levels[i] > PKV_CPU_LEVEL_C &&
             info.level >= PKV_CPU_LEVEL_NEON)) {
            continue;
        }
        add_context(contexts, PKV_RUN_MODE_NATIVE, levels[i], NULL);
        add_context(contexts, PKV_RUN_MODE_NATIVE, levels[i], &odd);
        for (int threads = 1; threads <= TEST_MAX_THREADS; threads++) {
            struct pkv_executor hook = pkv_executor_pthread_hook(contexts->pools[threads]);

            add_context(contexts, PKV_RUN_MODE_NATIVE, levels[i], &hook);
        }
    }
    add_context(contexts, PKV_RUN_MODE_SIM, PKV_CPU_LEVEL_BEST, NULL);
    add_context(contexts, PKV_RUN_MODE_SIM, PKV_CPU_LEVEL_BEST, &odd);
}

static inline void test_contexts_free(struct test_contexts *contexts) {
    for (int i = 0; i < contexts->count; i++) {
        pkv_context_destroy(contexts->all[i]);
    }
    for (int threads = 1; threads <= TEST_MAX_THREADS; threads++) {
        pkv_executor_pthread_destroy(contexts->pools[threads]);
    }
    memset(contexts, 0, sizeof(*contexts));
}

/* The fixture of a group of tests that use them. */
static struct test_contexts contexts;

static inline int contexts_set_up(void **state) {
    (void)state;
    test_contexts_make(&contexts);
    return 0;
}

static inline int contexts_tear_down(void **state) {
    (void)state;
    test_contexts_free(&contexts);
    return 0;
}

#endif
