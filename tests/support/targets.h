/* SPDX-License-Identifier: MIT
 *
 * Pairs of sources and caches for a scatter to many targets, drawn at random: caches of their own
 * and columns of packed rows, in guarded memory with a shadow that holds what each byte should be.
 * The reference goes element by element through the tensors' strides and shares no code with the
 * library.
 */
#ifndef PAGEDKV_TESTS_TARGETS_H
#define PAGEDKV_TESTS_TARGETS_H

#include "guard.h"
#include "rng.h"

#include <pagedkv/cache.h>

enum { TARGETS_MAX_PAIRS = 16 };

struct target_memory {
    struct test_guard guard;
    unsigned char *shadow;
};

struct targets {
    int64_t num_pairs;
    int64_t num_blocks;
    int64_t block_size;
    int64_t num_tokens;
    /* Strides are spelled out here; sometimes the library gets all zeroes for contiguous ones
     * instead. */
    struct pkv_tensor sources[TARGETS_MAX_PAIRS], ref_sources[TARGETS_MAX_PAIRS];
    struct pkv_tensor caches[TARGETS_MAX_PAIRS], ref_caches[TARGETS_MAX_PAIRS];
    int64_t shadow_of[TARGETS_MAX_PAIRS]; /* the memory that holds the cache */
    int num_memories;
    struct target_memory memories[2 * TARGETS_MAX_PAIRS];
};

/* max_width: elements of a row, at least 1. All memory is filled with random bytes. */
struct targets targets_draw(struct test_rng *rng, int64_t num_pairs, int64_t num_blocks,
                            int64_t block_size, int64_t num_tokens, int64_t max_width);
void targets_free(struct targets *targets);

/* Row t of each source to slot slots[t] of its cache, t ascending, in the shadows; a negative slot
 * skips. */
void targets_scatter(struct targets *targets, const int64_t *slots);

/* 1 if every byte of caches and sources is what its shadow says. */
int targets_are_as_expected(const struct targets *targets);

/* A cache of one byte a slot in num_blocks * block_size bytes of data: for its geometry. */
struct pkv_cache targets_geometry(int64_t num_blocks, int64_t block_size, unsigned char *data);

#endif
