/* SPDX-License-Identifier: MIT
 *
 * The queue of blocks that can be handed out. Every operation touches the block, its neighbours and
 * at most three words for each of the levels of bits that tell which buckets hold blocks.
 */
#include "pool/queue.h"

#include <string.h>

/* Set in the log: the block was the last of its bucket. */
#define WAS_TAIL (UINT32_C(1) << 31)

static bool has_blocks(const struct pkv_queue *queue, uint32_t bucket) {
    return queue->levels[0][bucket / 64] >> (bucket % 64) & 1;
}

static void set_bit(struct pkv_queue *queue, uint32_t bucket) {
    for (int level = 0; level < PKV_QUEUE_LEVELS; level++, bucket /= 64)
        queue->levels[level][bucket / 64] |= UINT64_C(1) << (bucket % 64);
}

static void clear_bit(struct pkv_queue *queue, uint32_t bucket) {
    for (int level = 0; level < PKV_QUEUE_LEVELS; level++, bucket /= 64) {
        queue->levels[level][bucket / 64] &= ~(UINT64_C(1) << (bucket % 64));
        if (queue->levels[level][bucket / 64] != 0)
            return;
    }
}

static uint32_t highest_bit(uint64_t word) {
    return 63u - (uint32_t)__builtin_clzll(word);
}

/* The last block of the buckets below one; PKV_NIL if these are empty. */
static uint32_t last_below(const struct pkv_queue *queue, uint32_t bucket) {
    for (int level = 0; level < PKV_QUEUE_LEVELS; level++, bucket /= 64) {
        const uint64_t below =
            queue->levels[level][bucket / 64] & ((UINT64_C(1) << (bucket % 64)) - 1);
        if (below == 0)
            continue;
        uint32_t found = bucket / 64 * 64 + highest_bit(below);
        while (level-- > 0)
            found = found * 64 + highest_bit(queue->levels[level][found]);
        return queue->tails[found];
    }
    return PKV_NIL;
}

static void link_after(struct pkv_queue *queue, uint32_t block, uint32_t after) {
    struct pkv_block_record *record = &queue->blocks[block];
    record->previous = after;
    if (after == PKV_NIL) {
        record->next = queue->head;
        queue->head = block;
    } else {
        record->next = queue->blocks[after].next;
        queue->blocks[after].next = block;
    }
    if (record->next != PKV_NIL)
        queue->blocks[record->next].previous = block;
    record->flags |= PKV_BLOCK_LINKED;
}

static void make_tail(struct pkv_queue *queue, uint32_t block, uint32_t bucket) {
    queue->tails[bucket] = block;
    set_bit(queue, bucket);
}

void pkv_queue_fill(struct pkv_queue *queue, uint32_t num_blocks) {
    for (uint32_t block = 0; block < num_blocks; block++) {
        queue->blocks[block].previous = block == 0 ? PKV_NIL : block - 1;
        queue->blocks[block].next = block + 1 == num_blocks ? PKV_NIL : block + 1;
        queue->blocks[block].flags = PKV_BLOCK_LINKED;
    }
    queue->head = 0;
    make_tail(queue, num_blocks - 1, 0);
}

void pkv_queue_push_free(struct pkv_queue *queue, uint32_t block, uint32_t after) {
    if (!has_blocks(queue, 0) || queue->tails[0] == after)
        make_tail(queue, block, 0);
    link_after(queue, block, after);
}

void pkv_queue_push(struct pkv_queue *queue, uint32_t block) {
    const uint32_t bucket = pkv_queue_bucket(queue, &queue->blocks[block]);
    link_after(queue, block,
               has_blocks(queue, bucket) ? queue->tails[bucket] : last_below(queue, bucket));
    make_tail(queue, block, bucket);
}

void pkv_queue_push_first(struct pkv_queue *queue, uint32_t block) {
    const uint32_t bucket = pkv_queue_bucket(queue, &queue->blocks[block]);
    link_after(queue, block, last_below(queue, bucket));
    if (!has_blocks(queue, bucket))
        make_tail(queue, block, bucket);
}

void pkv_queue_unlink(struct pkv_queue *queue, uint32_t block) {
    struct pkv_block_record *record = &queue->blocks[block];
    const uint32_t bucket = pkv_queue_bucket(queue, record);
    const uint32_t previous = record->previous;
    const bool was_tail = queue->tails[bucket] == block;
    if (was_tail && previous != PKV_NIL &&
        pkv_queue_bucket(queue, &queue->blocks[previous]) == bucket)
        queue->tails[bucket] = previous;
    else if (was_tail)
        clear_bit(queue, bucket);
    if (previous == PKV_NIL)
        queue->head = record->next;
    else
        queue->blocks[previous].next = record->next;
    if (record->next != PKV_NIL)
        queue->blocks[record->next].previous = previous;
    record->flags &= (uint8_t)~PKV_BLOCK_LINKED;
    if (queue->is_logging)
        queue->log[queue->num_logged++] = block | (was_tail ? WAS_TAIL : 0);
}

uint32_t pkv_queue_pop(struct pkv_queue *queue) {
    for (;;) {
        const uint32_t block = queue->head;
        pkv_queue_unlink(queue, block);
        if (queue->head != PKV_NIL && queue->blocks[queue->head].next != PKV_NIL)
            __builtin_prefetch(&queue->blocks[queue->blocks[queue->head].next], 1);
        if (queue->blocks[block].num_references == 0)
            return block;
    }
}

void pkv_queue_undo(struct pkv_queue *queue) {
    while (queue->num_logged > 0) {
        const uint32_t entry = queue->log[--queue->num_logged];
        const uint32_t block = entry & ~WAS_TAIL;
        struct pkv_block_record *record = &queue->blocks[block];
        if (record->previous == PKV_NIL)
            queue->head = block;
        else
            queue->blocks[record->previous].next = block;
        if (record->next != PKV_NIL)
            queue->blocks[record->next].previous = block;
        record->flags |= PKV_BLOCK_LINKED;
        if (entry & WAS_TAIL)
            make_tail(queue, block, pkv_queue_bucket(queue, record));
    }
}

void pkv_queue_forget_buckets(struct pkv_queue *queue) {
    const uint32_t last = last_below(queue, queue->num_buckets);
    for (uint32_t level = 0, words = queue->num_buckets; level < PKV_QUEUE_LEVELS; level++) {
        words = words / 64 + 1;
        memset(queue->levels[level], 0, words * sizeof(*queue->levels[level]));
    }
    if (last != PKV_NIL)
        make_tail(queue, last, 0);
}
