/* SPDX-License-Identifier: MIT
 *
 * The pool of pthreads: every tile exactly once and visible afterwards, whatever its workers are
 * doing; failures on the way to a pool leave nothing behind.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pagedkv/context.h>
#include <pagedkv/executor.h>

#include "allocator.h"
#include "base/os.h"
#include "parallel/executor.h"

/* The linker sends the pool's calls of pthread_create here. */
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);

static int create_calls, create_fails_at;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument) {
    return ++create_calls == create_fails_at
               ? EAGAIN
               : __real_pthread_create(thread, attributes, start, argument);
}

static struct pkv_executor_pthread *make_pool(int32_t num_threads) {
    struct pkv_executor_pthread *pool = NULL;
    assert_int_equal(pkv_executor_pthread_create(&pool, num_threads, NULL, NULL), PKV_STATUS_OK);
    assert_non_null(pool);
    return pool;
}

/* Plain memory: two tiles that share an element, or a result that is not visible, are a race. */
struct counts {
    int64_t num_tiles;
    int32_t *runs; /* [num_tiles], how often the tile has run */
};

static void count_tile(void *arg, int64_t index) {
    const struct counts *counts = arg;
    counts->runs[index]++;
}

/* Not an assertion of cmocka: these belong to its own thread. */
static bool each_tile_ran(const struct counts *counts, int32_t times) {
    for (int64_t i = 0; i < counts->num_tiles; i++) {
        if (counts->runs[i] != times)
            return false;
    }
    return true;
}

static void check_runs(const struct pkv_executor *executor, int64_t num_tiles, int32_t num_runs) {
    struct counts counts = {num_tiles, calloc((size_t)num_tiles + 1, sizeof(int32_t))};
    assert_non_null(counts.runs);
    for (int32_t run = 1; run <= num_runs; run++) {
        pkv_executor_run(executor, count_tile, &counts, num_tiles);
        assert_true(each_tile_ran(&counts, run));
    }
    free(counts.runs);
}

static void pause_us(long us) {
    const struct timespec time = {0, us * 1000};
    nanosleep(&time, NULL);
}

static void test_every_tile_once(void **state) {
    static const int64_t num_tiles[] = {0, 1, 2, 3, 4, 5, 64, 1000, 300000};
    (void)state;
    check_runs(NULL, 100, 2);
    for (int32_t num_threads = 0; num_threads <= 5; num_threads++) {
        struct pkv_executor_pthread *pool = make_pool(num_threads);
        const struct pkv_executor executor = pkv_executor_pthread_hook(pool);
        assert_int_equal(executor.num_threads, num_threads > 0 ? num_threads : pkv_os_num_cpus());
        for (size_t i = 0; i < sizeof(num_tiles) / sizeof(num_tiles[0]); i++)
            check_runs(&executor, num_tiles[i], 2);
        pkv_executor_pthread_destroy(pool);
    }
}

/* The hook itself takes any number of tiles, also those that pkv_executor_run keeps to itself. */
static void test_hook_with_few_tiles(void **state) {
    (void)state;
    struct pkv_executor_pthread *pool = make_pool(3);
    const struct pkv_executor executor = pkv_executor_pthread_hook(pool);
    struct counts counts = {1, (int32_t[]){0}};
    executor.run(executor.user, count_tile, &counts, 0);
    executor.run(executor.user, count_tile, &counts, -1);
    assert_true(each_tile_ran(&counts, 0));
    executor.run(executor.user, count_tile, &counts, 1);
    assert_true(each_tile_ran(&counts, 1));
    pkv_executor_pthread_destroy(pool);
}

/* Runs close together meet workers that spin; after a pause they sleep; in between they are on
 * their way. */
static void test_many_runs(void **state) {
    (void)state;
    struct pkv_executor_pthread *pool = make_pool(3);
    const struct pkv_executor executor = pkv_executor_pthread_hook(pool);
    check_runs(&executor, 4, 5000);
    for (long us = 0; us < 100; us++) {
        pause_us(us);
        check_runs(&executor, 3, 1);
    }
    pkv_executor_pthread_destroy(pool);
    /* A pool may end while its workers are starting, spinning or falling asleep. */
    for (int i = 0; i < 50; i++) {
        pool = make_pool(4);
        const struct pkv_executor short_lived = pkv_executor_pthread_hook(pool);
        check_runs(&short_lived, 3, i % 3);
        pkv_executor_pthread_destroy(pool);
    }
}

/* A tile on a worker outlives the caller's spin: the caller has to sleep and to be woken. */
struct slow_tiles {
    pthread_t caller;
    int32_t done[2];
};

static void slow_tile(void *arg, int64_t index) {
    struct slow_tiles *tiles = arg;
    pause_us(pthread_equal(pthread_self(), tiles->caller) ? 50 : 1000);
    tiles->done[index]++;
}

static void test_caller_sleeps(void **state) {
    (void)state;
    struct pkv_executor_pthread *pool = make_pool(2);
    const struct pkv_executor executor = pkv_executor_pthread_hook(pool);
    for (int i = 1; i <= 50; i++) {
        struct slow_tiles tiles = {pthread_self(), {0, 0}};
        pkv_executor_run(&executor, slow_tile, &tiles, 2);
        assert_int_equal(tiles.done[0], 1);
        assert_int_equal(tiles.done[1], 1);
    }
    pkv_executor_pthread_destroy(pool);
}

/* Tiles that wait for each other end only if as many as promised run at the same time. */
static void meet(void *arg, int64_t index) {
    atomic_int *missing = arg;
    (void)index;
    const int64_t give_up = pkv_os_now_ns() + INT64_C(10) * 1000000000;
    atomic_fetch_sub(missing, 1);
    while (atomic_load(missing) > 0 && pkv_os_now_ns() < give_up)
        sched_yield();
}

static void test_tiles_run_at_once(void **state) {
    (void)state;
    struct pkv_executor_pthread *pool = make_pool(4);
    const struct pkv_executor executor = pkv_executor_pthread_hook(pool);
    for (int i = 0; i < 20; i++) {
        atomic_int missing = 4;
        const int64_t start = pkv_os_now_ns();
        pkv_executor_run(&executor, meet, &missing, 4);
        assert_true(pkv_os_now_ns() - start < INT64_C(10) * 1000000000);
    }
    pkv_executor_pthread_destroy(pool);
}

struct caller {
    struct pkv_executor executor;
    pthread_barrier_t *start;
    bool right;
};

static void *call_many_times(void *argument) {
    struct caller *caller = argument;
    struct counts counts = {7, (int32_t[7]){0}};
    caller->right = true;
    pthread_barrier_wait(caller->start);
    for (int32_t run = 1; run <= 2000; run++) {
        pkv_executor_run(&caller->executor, count_tile, &counts, counts.num_tiles);
        caller->right = caller->right && each_tile_ran(&counts, run);
    }
    return NULL;
}

static void test_two_callers(void **state) {
    (void)state;
    struct pkv_executor_pthread *pool = make_pool(3);
    struct caller callers[2];
    pthread_t threads[2];
    pthread_barrier_t start;
    assert_int_equal(pthread_barrier_init(&start, NULL, 2), 0);
    for (int i = 0; i < 2; i++) {
        callers[i].executor = pkv_executor_pthread_hook(pool);
        callers[i].start = &start;
        assert_int_equal(pthread_create(&threads[i], NULL, call_many_times, &callers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_true(callers[i].right);
    }
    pthread_barrier_destroy(&start);
    pkv_executor_pthread_destroy(pool);
}

/* A tile may run other work in order: without an executor, or on one with a single thread. */
static void nested_tile(void *arg, int64_t index) {
    struct counts *counts = arg;
    const struct pkv_executor single = pkv_executor_pthread_hook(NULL);
    pkv_executor_run(index % 2 ? &single : NULL, count_tile, &counts[index], 3);
}

static void test_nested_serial(void **state) {
    (void)state;
    struct pkv_executor_pthread *pool = make_pool(3);
    const struct pkv_executor executor = pkv_executor_pthread_hook(pool);
    int32_t runs[8][3] = {{0}};
    struct counts counts[8];
    for (int i = 0; i < 8; i++)
        counts[i] = (struct counts){3, runs[i]};
    pkv_executor_run(&executor, nested_tile, counts, 8);
    for (int i = 0; i < 8; i++)
        assert_true(each_tile_ran(&counts[i], 1));
    pkv_executor_pthread_destroy(pool);
}

/* Signals that are sent to the process are for the program's own threads. */
struct masks {
    atomic_int missing;
    pthread_t caller;
    bool right[2];
};

static void look_at_mask(void *arg, int64_t index) {
    struct masks *masks = arg;
    const bool worker = !pthread_equal(pthread_self(), masks->caller);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    masks->right[index] = sigismember(&mask, SIGUSR1) == worker && !sigismember(&mask, SIGSEGV);
    meet(&masks->missing, index);
}

static void test_signals(void **state) {
    (void)state;
    struct pkv_executor_pthread *pool = make_pool(2);
    const struct pkv_executor executor = pkv_executor_pthread_hook(pool);
    struct masks masks = {2, pthread_self(), {false, false}};
    pkv_executor_run(&executor, look_at_mask, &masks, 2);
    assert_true(masks.right[0]);
    assert_true(masks.right[1]);
    pkv_executor_pthread_destroy(pool);
}

static void test_arguments(void **state) {
    (void)state;
    struct pkv_executor_pthread *pool = NULL;
    struct pkv_error error = {0};
    assert_int_equal(pkv_executor_pthread_create(NULL, 1, NULL, &error), PKV_STATUS_NULL_ARGUMENT);
    assert_string_equal(error.function, "pkv_executor_pthread_create");
    assert_string_equal(error.argument, "executor");
    assert_int_equal(pkv_executor_pthread_create(&pool, -1, NULL, &error),
                     PKV_STATUS_INVALID_ARGUMENT);
    assert_int_equal(pkv_executor_pthread_create(&pool, 1025, NULL, &error),
                     PKV_STATUS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "num_threads");
    assert_int_equal(error.value, 1025);
    assert_int_equal(error.bound, 1024);
    struct test_allocator memory = {0};
    struct pkv_allocator half = test_allocator_hook(&memory);
    half.free = NULL;
    assert_int_equal(pkv_executor_pthread_create(&pool, 2, &half, &error),
                     PKV_STATUS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "allocator");
    assert_int_equal(memory.num_calls, 0);
    assert_null(pool);
    pkv_executor_pthread_destroy(NULL);
    assert_int_equal(pkv_executor_pthread_hook(NULL).num_threads, 1);
}

static void test_allocation_failures(void **state) {
    (void)state;
    enum pkv_status status = PKV_STATUS_OUT_OF_MEMORY;
    int64_t fail_at = 0;
    while (status == PKV_STATUS_OUT_OF_MEMORY) {
        struct test_allocator memory = {.fail_at = ++fail_at};
        const struct pkv_allocator allocator = test_allocator_hook(&memory);
        struct pkv_executor_pthread *pool = NULL;
        status = pkv_executor_pthread_create(&pool, 3, &allocator, NULL);
        if (status == PKV_STATUS_OK) {
            const struct pkv_executor executor = pkv_executor_pthread_hook(pool);
            check_runs(&executor, 100, 1);
            pkv_executor_pthread_destroy(pool);
        } else {
            assert_null(pool);
        }
        assert_int_equal(memory.num_live, 0);
        assert_int_equal(memory.num_bad, 0);
    }
    assert_int_equal(status, PKV_STATUS_OK);
    assert_true(fail_at > 1);
}

static void test_thread_failures(void **state) {
    (void)state;
    for (int fail_at = 1; fail_at <= 4; fail_at++) {
        struct test_allocator memory = {0};
        const struct pkv_allocator allocator = test_allocator_hook(&memory);
        struct pkv_executor_pthread *pool = NULL;
        struct pkv_error error = {0};
        create_calls = 0;
        create_fails_at = fail_at;
        const enum pkv_status status = pkv_executor_pthread_create(&pool, 4, &allocator, &error);
        create_fails_at = 0;
        if (fail_at <= 3) {
            assert_int_equal(status, PKV_STATUS_SYSTEM);
            assert_int_equal(error.value, EAGAIN);
            assert_null(pool);
        } else {
            assert_int_equal(status, PKV_STATUS_OK);
            pkv_executor_pthread_destroy(pool);
        }
        assert_int_equal(memory.num_live, 0);
        /* The mask of the caller is its own again. */
        sigset_t mask;
        pthread_sigmask(SIG_SETMASK, NULL, &mask);
        assert_int_equal(sigismember(&mask, SIGUSR1), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tile_once),   cmocka_unit_test(test_hook_with_few_tiles),
        cmocka_unit_test(test_many_runs),         cmocka_unit_test(test_caller_sleeps),
        cmocka_unit_test(test_tiles_run_at_once), cmocka_unit_test(test_two_callers),
        cmocka_unit_test(test_nested_serial),     cmocka_unit_test(test_signals),
        cmocka_unit_test(test_arguments),         cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_thread_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
