/* SPDX-License-Identifier: MIT
 *
 * Open addressing with linear probing. A slot keeps 32 bits of the key, which say where the entry
 * would like to be, so that moving entries back on removal needs no look at the blocks.
 */
#include "pool/index.h"

#include <string.h>

void pkv_index_init(struct pkv_index *index) {
    memset(index->slots, 0xff, ((size_t)index->mask + 1) * sizeof(*index->slots));
    index->num_entries = 0;
}

uint32_t pkv_index_find(const struct pkv_pool *pool, struct pkv_key key) {
    const struct pkv_index *index = &pool->index;
    const uint32_t tag = (uint32_t)key.low;
    for (uint32_t i = tag & index->mask;; i = (i + 1) & index->mask) {
        const struct pkv_index_slot slot = index->slots[i];
        if (slot.block == PKV_NIL ||
            (slot.tag == tag && pkv_key_equal(pool->blocks[slot.block].key, key)))
            return slot.block;
    }
}

static bool holds(const struct pkv_pool *pool, uint32_t block,
                  const struct pkv_contents *contents) {
    const struct pkv_block_record *record = &pool->blocks[block];
    return record->num_tokens == contents->num_tokens &&
           record->parent_serial == contents->parent_serial &&
           memcmp(pkv_block_tokens(pool, block), contents->tokens,
                  (size_t)contents->num_tokens * sizeof(*contents->tokens)) == 0;
}

uint32_t pkv_index_find_contents(const struct pkv_pool *pool, const struct pkv_contents *contents) {
    const uint32_t block = pkv_index_find(pool, contents->key);
    const bool is_hit = block != PKV_NIL && pkv_block_is_findable(pool, &pool->blocks[block]) &&
                        holds(pool, block, contents);
    return is_hit ? block : PKV_NIL;
}

static void insert_slot(struct pkv_index *index, uint32_t tag, uint32_t block) {
    uint32_t i = tag & index->mask;
    while (index->slots[i].block != PKV_NIL)
        i = (i + 1) & index->mask;
    index->slots[i] = (struct pkv_index_slot){tag, block};
    index->num_entries++;
}

static void remove_slot(struct pkv_index *index, uint32_t tag, uint32_t block) {
    uint32_t hole = tag & index->mask;
    while (index->slots[hole].block != block)
        hole = (hole + 1) & index->mask;
    /* An entry may move back into the hole unless that lies before where it would like to be. */
    for (uint32_t i = (hole + 1) & index->mask; index->slots[i].block != PKV_NIL;
         i = (i + 1) & index->mask) {
        const uint32_t distance = (i - index->slots[i].tag) & index->mask;
        if (distance < ((i - hole) & index->mask))
            continue;
        index->slots[hole] = index->slots[i];
        hole = i;
    }
    index->slots[hole].block = PKV_NIL;
    index->num_entries--;
}

void pkv_index_remove(struct pkv_pool *pool, uint32_t block, int32_t type) {
    struct pkv_block_record *record = &pool->blocks[block];
    const bool was_current = pkv_block_is_current(pool, record);
    const bool was_linked = record->flags & PKV_BLOCK_LINKED;
    remove_slot(&pool->index, (uint32_t)record->key.low, block);
    /* In an epoch that is over the block is in bucket 0 already, and stays there. */
    if (was_current && was_linked)
        pkv_queue_unlink(&pool->queue, block);
    record->flags &= (uint8_t) ~(PKV_BLOCK_INDEXED | PKV_BLOCK_PENDING);
    if (was_current && was_linked && record->num_references == 0) {
        pkv_queue_push_free(&pool->queue, block, PKV_NIL);
        pool->counts.num_cached--;
        pool->counts.num_free++;
    }
    if (!was_current)
        return;
    if (type == PKV_POOL_EVENT_EVICTED)
        pool->counts.num_evicted_blocks++;
    else
        pool->counts.num_removed_blocks++;
    if (pool->event) /* a few stores are saved when nobody listens */
        pkv_pool_emit(pool, (struct pkv_pool_event){.type = type,
                                                    .group = record->group,
                                                    .block_id = (int32_t)block,
                                                    .num_tokens = record->num_tokens,
                                                    .key = record->key});
}

/* Enters the block; nobody has its key. */
static void enter(struct pkv_pool *pool, uint32_t block, const struct pkv_contents *contents) {
    struct pkv_block_record *record = &pool->blocks[block];
    record->flags |= PKV_BLOCK_INDEXED;
    insert_slot(&pool->index, (uint32_t)record->key.low, block);
    if (pool->queue.keeps_used)
        pkv_queue_push(&pool->queue, block);
    pool->counts.num_stored_blocks++;
    if (pool->event)
        pkv_pool_emit(pool, (struct pkv_pool_event){.type = PKV_POOL_EVENT_STORED,
                                                    .group = record->group,
                                                    .block_id = (int32_t)block,
                                                    .num_tokens = record->num_tokens,
                                                    .key = record->key,
                                                    .parent_key = contents->parent_key,
                                                    .token_ids = contents->tokens});
}

void pkv_index_store(struct pkv_pool *pool, uint32_t block, const struct pkv_contents *contents,
                     uint8_t priority) {
    struct pkv_block_record *record = &pool->blocks[block];
    if (record->flags & PKV_BLOCK_INDEXED)
        pkv_index_remove(pool, block, PKV_POOL_EVENT_REMOVED);
    const uint32_t other = pkv_index_find(pool, contents->key);
    bool is_copy = false;
    record->serial = 0;
    record->num_uses = 1;
    record->priority = priority;
    if (other != PKV_NIL) {
        const struct pkv_block_record *old = &pool->blocks[other];
        if (pkv_block_is_current(pool, old) && holds(pool, other, contents)) {
            record->serial = old->serial;
            is_copy = old->num_references > 0;
            record->num_uses = (uint16_t)(old->num_uses + (old->num_uses < PKV_QUEUE_MAX_USES));
            record->priority = old->priority > priority ? old->priority : priority;
        }
        /* Other contents under the same key: a collision, or a block whose parent left the index
         * and can no longer be reached. The newer one has the key. */
        if (!is_copy)
            pkv_index_remove(pool, other, PKV_POOL_EVENT_REMOVED);
    }
    if (record->serial == 0)
        record->serial = pool->next_serial++;
    record->key = contents->key;
    record->parent_serial = contents->parent_serial;
    record->num_tokens = (uint16_t)contents->num_tokens;
    record->group = (uint8_t)contents->group;
    record->flags |= PKV_BLOCK_CHAINED;
    if (!is_copy)
        enter(pool, block, contents);
}
