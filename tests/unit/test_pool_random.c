/* SPDX-License-Identifier: MIT
 *
 * Long random runs of operations on pools of every shape, each step compared with the naive model
 * and audited. The runs must meet what they are for.
 */
#include "check.h"
#include "pool_driver.h"
#include "rng.h"

enum { NUM_RUNS = 1500, RUN_BYTES = 4000 };

static void random_operations_agree_with_the_model(void **state) {
    static uint8_t bytes[RUN_BYTES];
    struct test_rng rng = test_rng_make(test_seed(20260701));
    struct pool_driver_totals totals = {0};
    (void)state;

    for (int run = 0; run < NUM_RUNS; run++) {
        test_rng_fill(&rng, bytes, sizeof(bytes));
        pool_driver_run(bytes, sizeof(bytes), &totals);
    }
    print_message("%lld steps: %lld tokens hit, %lld blocks evicted, %lld removed, %lld copied, "
                  "%lld rollbacks, %lld times out of blocks\n",
                  (long long)totals.num_steps, (long long)totals.num_hit_tokens,
                  (long long)totals.num_evicted, (long long)totals.num_removed,
                  (long long)totals.num_copied, (long long)totals.num_rollbacks,
                  (long long)totals.num_out_of_blocks);
    assert_true(totals.num_hit_tokens > NUM_RUNS);
    assert_true(totals.num_evicted > NUM_RUNS);
    assert_true(totals.num_removed > NUM_RUNS);
    assert_true(totals.num_copied > NUM_RUNS);
    assert_true(totals.num_rollbacks > NUM_RUNS);
    assert_true(totals.num_out_of_blocks > NUM_RUNS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_operations_agree_with_the_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
