/* SPDX-License-Identifier: MIT
 *
 * Seeded random numbers for tests: the same seed gives the same cases on every machine.
 * Not for anything secret.
 */
#ifndef PAGEDKV_TESTS_RNG_H
#define PAGEDKV_TESTS_RNG_H

#include <stddef.h>
#include <stdint.h>

struct test_rng {
    uint64_t state;
};

struct test_rng test_rng_make(uint64_t seed);

/* All 64 bits. */
uint64_t test_rng_next(struct test_rng *rng);

/* A number in [0, bound); bound >= 1. */
int64_t test_rng_below(struct test_rng *rng, int64_t bound);

/* A number in [low, high], both ends included. */
int64_t test_rng_between(struct test_rng *rng, int64_t low, int64_t high);

/* Fills memory with random bytes. */
void test_rng_fill(struct test_rng *rng, void *data, size_t bytes);

/* Fills values with 0 ... count - 1 in random order. */
void test_rng_permutation(struct test_rng *rng, int64_t *values, int64_t count);

/* The seed that PAGEDKV_TEST_SEED names, or fallback; prints the one that is used. */
uint64_t test_seed(uint64_t fallback);

#endif
