/* SPDX-License-Identifier: MIT
 *
 * Numbers things from 0 in the order in which they first appear: a hash table from a 64-bit hash to
 * that number. Nothing is ever removed.
 */
#ifndef PAGEDKV_REPLAY_ID_TABLE_H
#define PAGEDKV_REPLAY_ID_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct id_table {
    int32_t *slots;    /* an id plus one; 0: empty. A power of two of them, at most half taken */
    uint64_t *keys;    /* of each id */
    int64_t num_slots; /* 2 ^ log_slots */
    int log_slots;
    int64_t num_ids;
};

/* The number of the thing with that key; num_ids as it was before if it is new. same says whether a
 * number with an equal key is the same thing; NULL: an equal key says so. Returns -1 without
 * memory, or when 2^30 are known. */
int32_t id_table_number(struct id_table *table, uint64_t key,
                        bool (*same)(const void *user, int32_t id), const void *user);

/* A number of this process for the hashes of what a file holds: nobody can make keys that meet. */
uint64_t id_table_seed(void);

void id_table_free(struct id_table *table);

#endif
