/* SPDX-License-Identifier: MIT
 *
 * References to blocks, and the calls that hand out single blocks.
 */
#include "pool/blocks.h"

#include "pool/index.h"

enum pkv_status pkv_blocks_refuse(struct pkv_pool *pool, int64_t wanted, struct pkv_blame blame) {
    pool->num_out_of_blocks++;
    return pkv_refuse(blame, PKV_STATUS_OUT_OF_BLOCKS, "blocks needed", wanted,
                      pkv_blocks_available(pool), "must not be more than are free or cached");
}

uint32_t pkv_block_take(struct pkv_pool *pool) {
    const uint32_t block = pkv_queue_pop(&pool->queue);
    struct pkv_block_record *record = &pool->blocks[block];
    if (pkv_block_is_current(pool, record)) {
        record->flags |= PKV_BLOCK_PENDING;
        pool->counts.num_cached--;
        /* Its entry leaves the index soon, and in a large pool all of this is far away. */
        pkv_index_prefetch(&pool->index, record->key);
    } else {
        pool->counts.num_free--;
    }
    record->num_references = 1;
    record->generation += record->generation == UINT32_MAX ? 2 : 1;
    pool->counts.num_allocated_blocks++;
    return block;
}

void pkv_block_clean(struct pkv_pool *pool, uint32_t block) {
    struct pkv_block_record *record = &pool->blocks[block];
    if (record->flags & PKV_BLOCK_INDEXED)
        pkv_index_remove(pool, block, PKV_POOL_EVENT_EVICTED);
    record->flags = 0;
}

void pkv_block_untake(struct pkv_pool *pool, uint32_t block) {
    struct pkv_block_record *record = &pool->blocks[block];
    record->flags &= (uint8_t)~PKV_BLOCK_PENDING;
    record->num_references = 0;
    record->num_uncomputed = 0;
    record->generation -= record->generation == 1 ? 2 : 1;
}

void pkv_block_ref(struct pkv_pool *pool, uint32_t block) {
    struct pkv_block_record *record = &pool->blocks[block];
    if (record->num_references++ > 0)
        return;
    pool->counts.num_cached--;
    if (!pool->queue.keeps_used)
        pkv_queue_unlink(&pool->queue, block);
}

void pkv_block_unref(struct pkv_pool *pool, uint32_t block, uint8_t priority, uint32_t *after) {
    struct pkv_block_record *record = &pool->blocks[block];
    if (--record->num_references > 0)
        return;
    const bool is_cached = pkv_block_is_current(pool, record);
    const bool is_linked = record->flags & PKV_BLOCK_LINKED;
    if (is_cached)
        pool->counts.num_cached++;
    else
        pool->counts.num_free++;
    if (is_linked)
        return;
    if (!is_cached) {
        pkv_queue_push_free(&pool->queue, block, *after);
        *after = block;
        return;
    }
    if (record->priority < priority)
        record->priority = priority;
    /* Under FIFO only a block whose turn has come while it was used is not in the queue. */
    if (pool->queue.keeps_used)
        pkv_queue_push_first(&pool->queue, block);
    else
        pkv_queue_push(&pool->queue, block);
}

static enum pkv_status check_list(struct pkv_pool *pool, int64_t num_blocks, const void *blocks,
                                  struct pkv_blame blame) {
    if (num_blocks < 0)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "num_blocks", num_blocks, 0,
                          "must be at least");
    if (blocks == NULL && num_blocks > 0)
        return pkv_refuse_missing(blame, "blocks");
    return pkv_pool_may_change(pool, blame);
}

/* A handle that its caller may use now. */
static enum pkv_status check_handle(const struct pkv_pool *pool, const struct pkv_block *blocks,
                                    int64_t i, struct pkv_blame blame) {
    if (blocks[i].block_id < 0 || (uint32_t)blocks[i].block_id >= pool->num_blocks)
        return pkv_error_set(blame.error, PKV_STATUS_BLOCK_OUT_OF_RANGE, blame.function, "blocks",
                             i, blocks[i].block_id, pool->num_blocks,
                             "must lie between 0 and the number of blocks");
    const struct pkv_block_record *record = &pool->blocks[blocks[i].block_id];
    if (record->generation != blocks[i].generation || record->num_handles == 0)
        return pkv_error_set(blame.error, PKV_STATUS_STALE_HANDLE, blame.function, "blocks", i,
                             blocks[i].block_id, PKV_ERROR_NONE,
                             "must be the handle of a block that was not given back");
    return PKV_STATUS_OK;
}

static enum pkv_status allocate(struct pkv_pool *pool, int64_t num_blocks, struct pkv_block *blocks,
                                struct pkv_blame blame) {
    const enum pkv_status status = check_list(pool, num_blocks, blocks, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if (num_blocks > pkv_blocks_available(pool))
        return pkv_blocks_refuse(pool, num_blocks, blame);
    for (int64_t i = 0; i < num_blocks; i++) {
        const uint32_t block = pkv_block_take(pool);
        pkv_block_clean(pool, block);
        pool->blocks[block].num_handles = 1;
        blocks[i] = (struct pkv_block){(int32_t)block, pool->blocks[block].generation};
    }
    return PKV_STATUS_OK;
}

enum pkv_status pkv_block_allocate(struct pkv_pool *pool, int64_t num_blocks,
                                   struct pkv_block *blocks, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (pool == NULL)
        return pkv_refuse_missing(blame, "pool");
    pkv_pool_lock(pool);
    const enum pkv_status status = allocate(pool, num_blocks, blocks, blame);
    pkv_pool_unlock(pool);
    return status;
}

static enum pkv_status retain(struct pkv_pool *pool, int64_t num_blocks,
                              const struct pkv_block *blocks, struct pkv_blame blame) {
    enum pkv_status status = check_list(pool, num_blocks, blocks, blame);
    for (int64_t i = 0; status == PKV_STATUS_OK && i < num_blocks; i++)
        status = check_handle(pool, blocks, i, blame);
    for (int64_t i = 0; status == PKV_STATUS_OK && i < num_blocks; i++) {
        pool->blocks[blocks[i].block_id].num_references++;
        pool->blocks[blocks[i].block_id].num_handles++;
    }
    return status;
}

enum pkv_status pkv_block_retain(struct pkv_pool *pool, int64_t num_blocks,
                                 const struct pkv_block *blocks, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (pool == NULL)
        return pkv_refuse_missing(blame, "pool");
    pkv_pool_lock(pool);
    const enum pkv_status status = retain(pool, num_blocks, blocks, blame);
    pkv_pool_unlock(pool);
    return status;
}

static enum pkv_status release(struct pkv_pool *pool, int64_t num_blocks,
                               const struct pkv_block *blocks, struct pkv_blame blame) {
    enum pkv_status status = check_list(pool, num_blocks, blocks, blame);
    if (status != PKV_STATUS_OK)
        return status;
    /* Handles are given back one by one first, so that one named too often is found. */
    int64_t i = 0;
    for (; i < num_blocks; i++) {
        status = check_handle(pool, blocks, i, blame);
        if (status != PKV_STATUS_OK)
            break;
        pool->blocks[blocks[i].block_id].num_handles--;
    }
    if (status != PKV_STATUS_OK) {
        while (i-- > 0)
            pool->blocks[blocks[i].block_id].num_handles++;
        return status;
    }
    uint32_t after = PKV_NIL;
    while (i-- > 0)
        pkv_block_unref(pool, (uint32_t)blocks[i].block_id, 0, &after);
    return PKV_STATUS_OK;
}

enum pkv_status pkv_block_release(struct pkv_pool *pool, int64_t num_blocks,
                                  const struct pkv_block *blocks, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (pool == NULL)
        return pkv_refuse_missing(blame, "pool");
    pkv_pool_lock(pool);
    const enum pkv_status status = release(pool, num_blocks, blocks, blame);
    pkv_pool_unlock(pool);
    return status;
}
