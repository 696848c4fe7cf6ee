/* SPDX-License-Identifier: MIT
 *
 * The OpenMP adapter: every tile exactly once.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>

#include <pagedkv/executor_openmp.h>

#include "parallel/executor.h"

#define NUM_TILES 1000

static void count_tile(void *arg, int64_t index) {
    atomic_int *runs = arg;
    atomic_fetch_add(&runs[index], 1);
}

static void test_every_tile_once(void **state) {
    (void)state;
    static atomic_int runs[NUM_TILES];
    for (int32_t num_threads = 0; num_threads <= 3; num_threads++) {
        const struct pkv_executor executor = pkv_executor_openmp(num_threads);
        assert_true(executor.num_threads >= 1);
        if (num_threads > 0)
            assert_int_equal(executor.num_threads, num_threads);
        executor.run(executor.user, count_tile, runs, 0);
        executor.run(executor.user, count_tile, runs, NUM_TILES);
        for (int i = 0; i < NUM_TILES; i++)
            assert_int_equal(atomic_exchange(&runs[i], 0), 1);
    }
}

static void see_team(void *arg, int64_t index) {
    atomic_int *team = arg;
    (void)index;
    atomic_store(team, omp_get_num_threads());
}

static void test_threads_as_asked(void **state) {
    (void)state;
    omp_set_dynamic(0);
    atomic_int team = 0;
    const struct pkv_executor executor = pkv_executor_openmp(3);
    pkv_executor_run(&executor, see_team, &team, NUM_TILES);
    assert_int_equal(atomic_load(&team), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tile_once),
        cmocka_unit_test(test_threads_as_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
