/* SPDX-License-Identifier: MIT
 *
 * The method of every measurement: in each round all variants are taken in a new random order, and
 * what is quoted is the median of the ratios of single rounds. The absolute times of a shared
 * machine move by a factor of two within minutes; the ratios inside a round do not.
 */
#ifndef PAGEDKV_BENCH_ROUNDS_H
#define PAGEDKV_BENCH_ROUNDS_H

#include <stdint.h>

#include <pagedkv/executor.h>

#include "cli_random.h"

enum { BENCH_MAX_VARIANTS = 12, BENCH_MAX_ROUNDS = 64, BENCH_WARM_UP_ROUNDS = 2 };

/* One way to do the work. */
struct bench_variant {
    int (*prepare)(void *arg);   /* not timed: fresh rows, state of the caches; 0, or -1: failed */
    int (*run)(void *arg);       /* timed; 0, or -1: failed */
    void (*clean_up)(void *arg); /* not timed, nullable: leaves no trace for the next variant */
    void *arg;
};

struct bench_rounds {
    int32_t num_variants;
    int32_t num_rounds;
    double ns[BENCH_MAX_VARIANTS][BENCH_MAX_ROUNDS]; /* of one sample */
};

/* Takes num_rounds rounds after BENCH_WARM_UP_ROUNDS that do not count. The executor's threads are
 * awake when a sample begins. Returns 0, or -1 as soon as a variant fails. */
int bench_rounds_measure(struct bench_rounds *rounds, const struct bench_variant *variants,
                         int32_t num_variants, int32_t num_rounds,
                         const struct pkv_executor *executor, struct cli_random *random);

struct bench_spread {
    double median;
    double q1;
    double q3;
};

/* Of a variant's times. */
struct bench_spread bench_rounds_time(const struct bench_rounds *rounds, int32_t variant);

/* Of time[other] / time[variant] round by round: how many times as fast as `other` it is. */
struct bench_spread bench_rounds_speed(const struct bench_rounds *rounds, int32_t variant,
                                       int32_t other);

/* Of any values, which are sorted by it. */
struct bench_spread bench_spread_of(double *values, int32_t num_values);

#endif
