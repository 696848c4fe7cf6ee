/* SPDX-License-Identifier: MIT
 *
 * Options of a pool with their defaults filled in, and where everything lies in its memory.
 */
#ifndef PKV_POOL_POOL_OPTIONS_H
#define PKV_POOL_POOL_OPTIONS_H

#include "pool/pool.h"

struct pkv_pool_plan {
    struct pkv_pool_options options; /* as chosen; groups points below */
    struct pkv_layer_group groups[PKV_MAX_GROUPS];
    int64_t token_stride;
    int64_t index_slots;
    int64_t domain_buckets;
    int64_t num_buckets;
    int64_t bytes; /* of the whole pool */
};

/* Checks the options and fills the plan. */
enum pkv_status pkv_pool_plan(struct pkv_pool_plan *plan, const struct pkv_pool_options *options,
                              struct pkv_blame blame);

/* Hands out pieces of memory of known sizes in a fixed order, each aligned to 64 bytes; with memory
 * NULL it only adds up. */
struct pkv_arena {
    unsigned char *memory;
    int64_t bytes;
    bool is_overflown;
};

void *pkv_arena_take(struct pkv_arena *arena, int64_t count, int64_t element_bytes);

/* Gives the pool its pieces; with arena->memory NULL only counts, and pool is scratch. */
void pkv_pool_lay_out(struct pkv_pool *pool, const struct pkv_pool_plan *plan,
                      struct pkv_arena *arena);

#endif
