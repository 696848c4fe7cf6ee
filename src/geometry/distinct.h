/* SPDX-License-Identifier: MIT
 *
 * Whether many numbers differ, decided quickly in memory that was prepared before. vector.h has
 * searches that need no memory and take longer.
 */
#ifndef PKV_GEOMETRY_DISTINCT_H
#define PKV_GEOMETRY_DISTINCT_H

#include "geometry/vector.h"

struct pkv_distinct {
    int64_t max_numbers; /* 0: nothing can be decided */
    uint16_t *cells;
    uint16_t *members;
};

/* Entries are numbered in 16 bits, which halves what has to stay in cache. */
#define PKV_DISTINCT_MAX_NUMBERS 65536

/* Bytes for vectors of so many numbers, at most PKV_DISTINCT_MAX_NUMBERS: up to 10 for each. */
int64_t pkv_distinct_bytes(int64_t max_numbers);

/* memory: [pkv_distinct_bytes(max_numbers)], aligned to 2 bytes, with any content; borrowed. */
void pkv_distinct_init(struct pkv_distinct *distinct, void *memory, int64_t max_numbers);

/* True: no number of the vector but negative ones stands twice. False: one does, or the vector is
 * longer than max_numbers, or its numbers collide under a hash that is fixed. The work is bounded:
 * a few passes. */
bool pkv_distinct_prove(const struct pkv_distinct *distinct, const struct pkv_vector *vector);

#endif
