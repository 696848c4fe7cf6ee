/* SPDX-License-Identifier: MIT
 *
 * The pthreadpool adapter: every tile exactly once.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>

#include <pagedkv/executor_pthreadpool.h>

#include "parallel/executor.h"

#define NUM_TILES 1000

static void count_tile(void *arg, int64_t index) {
    atomic_int *runs = arg;
    atomic_fetch_add(&runs[index], 1);
}

static void check_pool(pthreadpool_t pool, int32_t num_threads) {
    static atomic_int runs[NUM_TILES];
    const struct pkv_executor executor = pkv_executor_pthreadpool(pool);
    assert_int_equal(executor.num_threads, num_threads);
    executor.run(executor.user, count_tile, runs, 0);
    executor.run(executor.user, count_tile, runs, -1);
    for (int run = 0; run < 20; run++) {
        executor.run(executor.user, count_tile, runs, NUM_TILES);
        for (int i = 0; i < NUM_TILES; i++)
            assert_int_equal(atomic_exchange(&runs[i], 0), 1);
    }
    pkv_executor_run(&executor, count_tile, runs, 2);
    assert_int_equal(atomic_exchange(&runs[0], 0) + atomic_exchange(&runs[1], 0), 2);
}

static void test_every_tile_once(void **state) {
    (void)state;
    check_pool(NULL, 1);
    for (int32_t num_threads = 1; num_threads <= 3; num_threads++) {
        pthreadpool_t pool = pthreadpool_create((size_t)num_threads);
        assert_non_null(pool);
        check_pool(pool, num_threads);
        pthreadpool_destroy(pool);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_tile_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
