/* SPDX-License-Identifier: MIT
 *
 * Rounds in random order, and medians of paired ratios. See bench_rounds.h.
 */
#include "bench_rounds.h"

#include <stdlib.h>

#include "bench_clock.h"
#include "bench_threads.h"

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_spread bench_spread_of(double *values, int32_t num_values) {
    qsort(values, (size_t)num_values, sizeof(values[0]), compare);
    struct bench_spread result = {values[num_values / 2], values[num_values / 4],
                                  values[num_values - 1 - num_values / 4]};
    return result;
}

static int take_sample(const struct bench_variant *variant, const struct pkv_executor *executor,
                       double *ns) {
    if (variant->prepare(variant->arg) != 0)
        return -1;
    bench_wake_threads(executor);
    int64_t begin = bench_now_ns();
    int status = variant->run(variant->arg);
    *ns = (double)(bench_now_ns() - begin);
    if (variant->clean_up)
        variant->clean_up(variant->arg);
    return status;
}

int bench_rounds_measure(struct bench_rounds *rounds, const struct bench_variant *variants,
                         int32_t num_variants, int32_t num_rounds,
                         const struct pkv_executor *executor, struct cli_random *random) {
    int64_t order[BENCH_MAX_VARIANTS];
    for (int32_t i = 0; i < num_variants; i++)
        order[i] = i;
    rounds->num_variants = num_variants;
    rounds->num_rounds = num_rounds;
    for (int32_t round = -BENCH_WARM_UP_ROUNDS; round < num_rounds; round++) {
        cli_random_shuffle(random, order, num_variants);
        for (int32_t i = 0; i < num_variants; i++) {
            double ns;
            if (take_sample(&variants[order[i]], executor, &ns) != 0)
                return -1;
            if (round >= 0)
                rounds->ns[order[i]][round] = ns;
        }
    }
    return 0;
}

struct bench_spread bench_rounds_time(const struct bench_rounds *rounds, int32_t variant) {
    double values[BENCH_MAX_ROUNDS];
    for (int32_t i = 0; i < rounds->num_rounds; i++)
        values[i] = rounds->ns[variant][i];
    return bench_spread_of(values, rounds->num_rounds);
}

struct bench_spread bench_rounds_speed(const struct bench_rounds *rounds, int32_t variant,
                                       int32_t other) {
    double values[BENCH_MAX_ROUNDS];
    for (int32_t i = 0; i < rounds->num_rounds; i++)
        values[i] = rounds->ns[other][i] / rounds->ns[variant][i];
    return bench_spread_of(values, rounds->num_rounds);
}
