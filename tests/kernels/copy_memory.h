/* SPDX-License-Identifier: MIT
 *
 * The memory in which copies are checked: a source that cannot be written, a destination full of
 * canaries, and what the destination should become. Every byte of the source is odd and every
 * canary even, so that one byte too many always shows.
 */
#ifndef PAGEDKV_TESTS_COPY_MEMORY_H
#define PAGEDKV_TESTS_COPY_MEMORY_H

#include "checkkern.h"

/* Source and destination have this size, between forbidden OS pages. */
#define COPY_BYTES  INT64_C(1048576)
#define COPY_MIDDLE (COPY_BYTES / 2)

/* No case has more places. */
enum { COPY_MAX_PLACES = 20 };

struct copy_memory {
    char *src;
    char *dst;
    char *expected;
    char *list_end; /* of the memory for spans or places: behind it is a forbidden OS page */
    struct pkv_grid *grid;
    struct pkv_stream *stream;
};

/* Makes the memory at the first call, from its seed, and puts the canaries back at each. */
const struct copy_memory *copy_memory_get(uint64_t seed);

/* Fails the kernel unless dst is as expected from byte low to byte high and in the margins around
 * them; puts the canaries back there. */
void copy_memory_compare(int64_t low, int64_t high);

/* Fails the kernel unless every canary lives. */
void copy_memory_compare_all(void);

/* At the start, at the end, or anywhere between: where something of this size may begin. */
int64_t copy_place(struct test_rng *rng, int64_t bytes);

/* Offsets for num_places things of `bytes` bytes: anywhere in a window, and then mostly on top of
 * each other, or multiples of step apart: side by side, or as interleaved as the tokens of a block
 * are in most layouts. Returns where the last one ends. */
int64_t copy_places(struct test_rng *rng, int64_t *offsets, int64_t num_places, int64_t bytes,
                    int64_t step);

/* Makes the call again and again for some milliseconds, while another thread writes the named bytes
 * of dst; fails the kernel if one of them is put back. What else the call writes is not looked
 * at. */
void copy_beside_neighbour(const struct kern *kern, void (*call)(const struct kern *),
                           const int64_t *bytes, int num_bytes);

/* Source and destination of the benches: far larger than the second-level cache, zeroed, and only
 * what is used is there. */
#define COPY_BENCH_BYTES INT64_C(67108864)

struct copy_bench_memory {
    char *src;
    char *dst;
};

const struct copy_bench_memory *copy_bench_memory_get(void);

static inline int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#endif
