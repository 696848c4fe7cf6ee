/* SPDX-License-Identifier: MIT
 *
 * The hash table from keys to blocks, and how blocks enter and leave it. One block for each key and
 * one key for each block.
 */
#ifndef PKV_POOL_INDEX_H
#define PKV_POOL_INDEX_H

#include "pool/key.h"
#include "pool/pool.h"

/* What a block holds, and the key that follows from it. */
struct pkv_contents {
    struct pkv_key key;
    struct pkv_key parent_key;
    uint64_t parent_serial;
    const int32_t *tokens;
    int32_t num_tokens;
    int32_t group;
};

void pkv_index_init(struct pkv_index *index);

static inline void pkv_index_prefetch(const struct pkv_index *index, struct pkv_key key) {
    __builtin_prefetch(&index->slots[(uint32_t)key.low & index->mask]);
}

/* The block of that key, whatever it holds; PKV_NIL. */
uint32_t pkv_index_find(const struct pkv_pool *pool, struct pkv_key key);

/* The findable block that holds exactly these contents, tokens and parent compared; PKV_NIL. */
uint32_t pkv_index_find_contents(const struct pkv_pool *pool, const struct pkv_contents *contents);

/* Indexes a block in use, whose tokens are stored and computed. If a block in use is indexed with
 * the same contents, that one stays; if one that nobody uses is, the new block takes its place. The
 * block is chained in any case. */
void pkv_index_store(struct pkv_pool *pool, uint32_t block, const struct pkv_contents *contents,
                     uint8_t priority);

/* Takes a block out of the index, and out of the queue's bucket of cached blocks. type is that of
 * the event, sent if the entry could still be found. */
void pkv_index_remove(struct pkv_pool *pool, uint32_t block, int32_t type);

#endif
