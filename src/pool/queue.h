/* SPDX-License-Identifier: MIT
 *
 * Records of blocks, and the order in which blocks are handed out: one doubly linked list through
 * the records, cut into buckets. Bucket 0 is plain free blocks; behind it come the cached ones, by
 * priority class and, under LFU, by number of uses. Whatever is first in the list goes next.
 */
#ifndef PKV_POOL_QUEUE_H
#define PKV_POOL_QUEUE_H

#include <stdbool.h>

#include <pagedkv/pool.h>

#define PKV_NIL UINT32_MAX

enum {
    PKV_BLOCK_INDEXED = 1, /* the index has an entry for it, maybe of an epoch that is over */
    PKV_BLOCK_CHAINED =
        2, /* key, serial, num_tokens describe its contents: it is indexed, or another
                              block with the same contents is */
    PKV_BLOCK_PENDING = 4, /* leaves the index when the open batch step is committed */
    PKV_BLOCK_LINKED = 8   /* is in the queue */
};

enum { PKV_QUEUE_MAX_USES = 4095, PKV_QUEUE_LEVELS = 3 };

/* 64 bytes: one line of the processor's cache. */
struct pkv_block_record {
    struct pkv_key key;
    uint64_t serial;        /* identity of the contents: never given twice */
    uint64_t parent_serial; /* of the contents of the block before */
    uint32_t previous;      /* in the queue; kept while the block is out of it */
    uint32_t next;
    uint32_t num_references;
    uint32_t generation;     /* never 0 */
    uint32_t num_handles;    /* references by callers, not by sequences */
    uint32_t num_uncomputed; /* sequences that hold it and have not computed all of it */
    uint16_t num_uses;       /* since it was indexed; stops at PKV_QUEUE_MAX_USES */
    uint16_t num_tokens;     /* that key describes */
    uint8_t priority;
    uint8_t group;
    uint8_t flags;
    uint8_t unused;
};

struct pkv_queue {
    struct pkv_block_record *blocks;
    uint64_t first_serial; /* contents with smaller ones are of an epoch that is over */
    uint32_t head;         /* PKV_NIL: empty */
    uint32_t num_buckets;
    uint32_t uses_per_class; /* PKV_QUEUE_MAX_USES under LFU, else 1 */
    uint32_t num_logged;
    bool keeps_used; /* FIFO: indexed blocks keep their place while in use */
    bool is_logging; /* a batch step is open */
    uint32_t *tails; /* [num_buckets], the last block; of buckets whose bit is set */
    uint32_t *log;   /* [num_blocks], blocks unlinked in the batch step, in order */
    uint64_t *levels[PKV_QUEUE_LEVELS]; /* which buckets hold blocks; which words of the level below
                                           are not 0 */
};

static inline bool pkv_queue_is_current(const struct pkv_queue *queue,
                                        const struct pkv_block_record *block) {
    return (block->flags & PKV_BLOCK_INDEXED) && block->serial >= queue->first_serial;
}

static inline uint32_t pkv_queue_bucket(const struct pkv_queue *queue,
                                        const struct pkv_block_record *block) {
    if (!pkv_queue_is_current(queue, block))
        return 0;
    const uint32_t rank = queue->uses_per_class > 1 ? block->num_uses - 1u : 0;
    return 1 + block->priority * queue->uses_per_class + rank;
}

/* All blocks into bucket 0, the first in front. */
void pkv_queue_fill(struct pkv_queue *queue, uint32_t num_blocks);

/* Into bucket 0, behind the block `after`, or to the very front if that is PKV_NIL. */
void pkv_queue_push_free(struct pkv_queue *queue, uint32_t block, uint32_t after);

/* Into its bucket, as the last, or as the first. */
void pkv_queue_push(struct pkv_queue *queue, uint32_t block);
void pkv_queue_push_first(struct pkv_queue *queue, uint32_t block);

void pkv_queue_unlink(struct pkv_queue *queue, uint32_t block);

/* Takes the next block out that nobody uses; the caller knows that there is one. */
uint32_t pkv_queue_pop(struct pkv_queue *queue);

/* Puts back all that was unlinked since is_logging was set, newest first, to exactly its place.
 * Nothing was pushed since. */
void pkv_queue_undo(struct pkv_queue *queue);

/* An epoch ends: every block of the queue is plain free. first_serial is the caller's to move. */
void pkv_queue_forget_buckets(struct pkv_queue *queue);

#endif
