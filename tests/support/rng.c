/* SPDX-License-Identifier: MIT
 *
 * The generator is splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
 * generators"): one addition and a mixing function, enough for test data.
 */
#include "rng.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test_rng test_rng_make(uint64_t seed) {
    return (struct test_rng){.state = seed};
}

uint64_t test_rng_next(struct test_rng *rng) {
    uint64_t mixed = rng->state += UINT64_C(0x9e3779b97f4a7c15);

    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

int64_t test_rng_below(struct test_rng *rng, int64_t bound) {
    return (int64_t)(test_rng_next(rng) % (uint64_t)bound);
}

int64_t test_rng_between(struct test_rng *rng, int64_t low, int64_t high) {
    return low + test_rng_below(rng, high - low + 1);
}

void test_rng_fill(struct test_rng *rng, void *data, size_t bytes) {
    unsigned char *at = data;

    while (bytes > 0) {
        uint64_t random = test_rng_next(rng);
        size_t step = bytes < sizeof(random) ? bytes : sizeof(random);

        memcpy(at, &random, step);
        at += step;
        bytes -= step;
    }
}

void test_rng_permutation(struct test_rng *rng, int64_t *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t j = test_rng_below(rng, i + 1);

        values[i] = values[j];
        values[j] = i;
    }
}

uint64_t test_seed(uint64_t fallback) {
    const char *text = getenv("PAGEDKV_TEST_SEED");
    uint64_t seed = text != NULL && text[0] != '\0' ? strtoull(text, NULL, 0) : fallback;

    printf("seed %" PRIu64 " (repeat with PAGEDKV_TEST_SEED=%" PRIu64 ")\n", seed, seed);
    return seed;
}
