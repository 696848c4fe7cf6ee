/* SPDX-License-Identifier: MIT
 *
 * The proof that numbers differ, and no search: which entry repeats another one it does not tell.
 *
 * Each entry writes its number into the cell of a hash of its value; whoever finds his own number
 * there is the last of his cell. Of equal entries at most one finds it, and the others find an
 * entry of their value there: a repeat. If another value has the cell, all of them find that, so
 * that entries which lost their cells, about a fifth, are looked at alone, with another hash. There
 * is no branch for each entry, and cells need not be cleared.
 */
#include "geometry/distinct.h"

/* 65,536 random numbers most likely take at most four. */
enum { MAX_ROUNDS = 5 };

/* At least two cells for each entry. */
static int cell_bits(int64_t num_numbers) {
    int bits = 1;
    while ((INT64_C(1) << bits) < 2 * num_numbers)
        bits++;
    return bits;
}

int64_t pkv_distinct_bytes(int64_t max_numbers) {
    if (max_numbers == 0)
        return 0;
    return ((INT64_C(1) << cell_bits(max_numbers)) + max_numbers) * (int64_t)sizeof(uint16_t);
}

void pkv_distinct_init(struct pkv_distinct *distinct, void *memory, int64_t max_numbers) {
    distinct->max_numbers = max_numbers;
    distinct->cells = memory;
    distinct->members =
        max_numbers > 0 ? distinct->cells + (INT64_C(1) << cell_bits(max_numbers)) : NULL;
}

/* Multiplication by an odd number, of which the highest bits count: slots in equal steps, as those
 * of tokens that begin a block, go to cells in equal steps. */
struct hash {
    uint64_t factor;
    int shift;
};

static inline uint64_t cell_of(struct hash hash, int64_t number) {
    return (uint64_t)number * hash.factor >> hash.shift;
}

/* Collects into distinct->members those of `members` (nullable: all entries) that are not the last
 * of their cells. */
static inline int64_t find_losers(const struct pkv_distinct *distinct,
                                  const struct pkv_vector *vector, struct hash hash,
                                  const uint16_t *members, int64_t num_members) {
    uint16_t *const cells = distinct->cells, *const losers = distinct->members;
    int64_t num_losers = 0;
    for (int64_t k = 0; k < num_members; k++) {
        const int64_t i = members ? members[k] : k;
        cells[cell_of(hash, pkv_vector_at(vector, i))] = (uint16_t)i;
    }
    for (int64_t k = 0; k < num_members; k++) {
        const int64_t i = members ? members[k] : k;
        const bool lost = cells[cell_of(hash, pkv_vector_at(vector, i))] != (uint16_t)i;
        losers[num_losers] = (uint16_t)i;
        num_losers += lost;
    }
    return num_losers;
}

enum { FOUND_REPEAT = -1 };

/* Leaves out negative numbers; FOUND_REPEAT: another entry of the same value has the cell. */
static inline int64_t look_at_losers(const struct pkv_distinct *distinct,
                                     const struct pkv_vector *vector, struct hash hash,
                                     int64_t num_losers) {
    int64_t num_left = 0;
    for (int64_t k = 0; k < num_losers; k++) {
        const uint16_t loser = distinct->members[k];
        const int64_t number = pkv_vector_at(vector, loser);
        if (number < 0)
            continue;
        if (pkv_vector_at(vector, distinct->cells[cell_of(hash, number)]) == number)
            return FOUND_REPEAT;
        distinct->members[num_left++] = loser;
    }
    return num_left;
}

bool pkv_distinct_prove(const struct pkv_distinct *distinct, const struct pkv_vector *vector) {
    if (vector->count > distinct->max_numbers)
        return false;
    /* The golden ratio, and then powers of a factor of SplitMix64. */
    struct hash hash = {UINT64_C(0x9e3779b97f4a7c15), 64 - cell_bits(vector->count)};
    int64_t num_losers = find_losers(distinct, vector, hash, NULL, vector->count);
    for (int round = 1; round < MAX_ROUNDS; round++) {
        const int64_t num_left = look_at_losers(distinct, vector, hash, num_losers);
        if (num_left <= 0)
            return num_left == 0;
        hash.factor *= UINT64_C(0xbf58476d1ce4e5b9);
        num_losers = find_losers(distinct, vector, hash, distinct->members, num_left);
    }
    return num_losers == 0;
}
