/* SPDX-License-Identifier: MIT
 *
 * Blocks between free, cached and used. It does not know who refers to them.
 */
#ifndef PKV_POOL_BLOCKS_H
#define PKV_POOL_BLOCKS_H

#include "pool/pool.h"

static inline int64_t pkv_blocks_available(const struct pkv_pool *pool) {
    return pool->counts.num_free + pool->counts.num_cached;
}

/* OUT_OF_BLOCKS, counted. */
enum pkv_status pkv_blocks_refuse(struct pkv_pool *pool, int64_t wanted, struct pkv_blame blame);

/* Takes the next block, with one reference; the caller knows that there is one. What it was cached
 * for stays in the index, but is not found, until pkv_block_clean. */
uint32_t pkv_block_take(struct pkv_pool *pool);

/* Forgets what a taken block held. */
void pkv_block_clean(struct pkv_pool *pool, uint32_t block);

/* Undoes pkv_block_take but for the queue and the counts. */
void pkv_block_untake(struct pkv_pool *pool, uint32_t block);

/* One reference more on a block that is used or cached, and that back but for queue and counts. */
void pkv_block_ref(struct pkv_pool *pool, uint32_t block);
static inline void pkv_block_undo_ref(struct pkv_pool *pool, uint32_t block) {
    pool->blocks[block].num_references--;
}

/* One reference less. A block that nobody uses goes behind the other cached ones of its bucket, or
 * becomes plain free: then behind block *after, and *after is moved to it. Blocks given back from
 * the last to the first, with one *after that starts as PKV_NIL, are handed out in that order. */
void pkv_block_unref(struct pkv_pool *pool, uint32_t block, uint8_t priority, uint32_t *after);

#endif
