/* SPDX-License-Identifier: MIT
 *
 * Seeded random numbers: the SplitMix64 generator (Steele, Lea, Flood: Fast Splittable Pseudorandom
 * Number Generators), the same on every machine. Not for secrets.
 */
#ifndef PAGEDKV_CLI_RANDOM_H
#define PAGEDKV_CLI_RANDOM_H

#include <stdint.h>

struct cli_random {
    uint64_t state; /* any value is a seed */
};

/* A bijection of 64-bit numbers that leaves no pattern of its input visible. */
static inline uint64_t cli_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline uint64_t cli_random_next(struct cli_random *random) {
    random->state += UINT64_C(0x9e3779b97f4a7c15);
    return cli_mix(random->state);
}

/* A number in [0, bound), 1 <= bound < 2^32. The bias, below bound / 2^32, does not matter here. */
static inline int64_t cli_random_below(struct cli_random *random, int64_t bound) {
    return (int64_t)(((cli_random_next(random) >> 32) * (uint64_t)bound) >> 32);
}

/* Puts the entries into a random order. */
static inline void cli_random_shuffle(struct cli_random *random, int64_t *entries,
                                      int64_t num_entries) {
    for (int64_t i = num_entries - 1; i > 0; i--) {
        int64_t j = cli_random_below(random, i + 1);
        int64_t entry = entries[i];
        entries[i] = entries[j];
        entries[j] = entry;
    }
}

#endif
