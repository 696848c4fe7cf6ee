/* SPDX-License-Identifier: MIT
 *
 * What the files of the block manager share: the pool with its blocks, sequences, domains and
 * index. It knows nothing of keys and values, of caches or of operators.
 */
#ifndef PKV_POOL_POOL_H
#define PKV_POOL_POOL_H

#include <pthread.h>
#include <stdbool.h>

#include <pagedkv/pool.h>
#include <pagedkv/seq.h>

#include "base/error.h"
#include "pool/queue.h"

/* One entry of the index: the low half of a key's low half, which also says where the entry would
 * like to be, and the block. */
struct pkv_index_slot {
    uint32_t tag;
    uint32_t block; /* PKV_NIL: empty */
};

/* Open addressing with linear probing, at most two thirds full; entries move back on removal. */
struct pkv_index {
    struct pkv_index_slot *slots; /* [mask + 1] */
    uint32_t mask;
    uint32_t num_entries;
};

struct pkv_group {
    int32_t block_size;
    int32_t window;       /* max_visible_tokens; 0: all */
    int32_t width;        /* entries of a table */
    int32_t anchor;       /* of a group with a window: the first group without; -1: there is none */
    int32_t align_blocks; /* windows begin at multiples of it, where blocks of the anchor end too */
    uint32_t *tables;     /* [max_seqs, width]; PKV_NIL before the window */
    uint32_t *found;      /* [width], what a walk found; scratch */
};

/* One layer group's part of a sequence. Its first num_chained blocks are indexed, or hold the same
 * contents as indexed ones; chain_key and chain_serial are those of the last of them. */
struct pkv_seq_group {
    uint32_t num_blocks;  /* entries of the table */
    uint32_t first_block; /* entries before it are PKV_NIL */
    uint32_t num_chained;
    uint32_t version; /* changes when an entry is replaced; what copies rows looks at it */
    struct pkv_key chain_key;
    uint64_t chain_serial;
    bool is_broken; /* the chain was lost, no further block is indexed */
};

struct pkv_seq_record {
    uint32_t generation; /* never 0 */
    uint32_t next_free;
    int32_t num_tokens;
    int32_t num_computed;
    int32_t num_committed; /* without those reserved in the open batch step */
    uint32_t domain;
    uint64_t epoch; /* of the pool when the first token came */
    uint64_t batch; /* number of the batch step that appended to it last */
    int64_t arrival;
    bool is_live;
    bool is_not_indexed;
    uint8_t priority;
};

/* Domains are compared byte by byte once, when a sequence is made; serials stand for them then. */
struct pkv_domain_entry {
    uint64_t serial; /* of group 0; the next ones are the other groups' */
    uint64_t hash;
    uint32_t num_seqs;
    uint32_t num_bytes;
    uint32_t next;  /* in its bucket */
    uint32_t older; /* among those that no sequence uses */
    uint32_t newer;
    bool is_set;
};

struct pkv_domains {
    struct pkv_domain_entry *entries; /* [capacity] */
    unsigned char *bytes;             /* [capacity, max_bytes] */
    unsigned char *encoded;           /* [max_bytes], scratch */
    struct pkv_key *root_keys;        /* [capacity, num_groups] */
    uint32_t *buckets;                /* [mask + 1] */
    uint32_t capacity;
    uint32_t max_bytes;
    uint32_t mask;
    uint32_t oldest; /* of those that no sequence uses */
    uint32_t newest;
};

enum pkv_pool_state { PKV_POOL_IDLE = 0, PKV_POOL_BATCH = 1, PKV_POOL_CALLBACK = 2 };

struct pkv_batch;

/* The counters that a rollback restores. */
struct pkv_pool_counts {
    int64_t num_free;
    int64_t num_cached;
    int64_t num_seqs;
    int64_t num_matches;
    int64_t num_hit_tokens;
    int64_t num_miss_tokens;
    int64_t num_hit_blocks;
    int64_t num_miss_blocks;
    int64_t num_allocated_blocks;
    int64_t num_evicted_blocks;
    int64_t num_stored_blocks;
    int64_t num_removed_blocks;
    int64_t num_copied_blocks;
    int64_t arrivals;
};

struct pkv_pool {
    /* Fixed at create. */
    uint32_t num_blocks;
    int32_t num_groups;
    int32_t index_mode;
    int32_t eviction;
    uint64_t hash_seed;
    int64_t token_stride; /* entries of tokens a block */
    int32_t max_seqs;
    int32_t max_tokens_per_seq;
    int32_t hit_align_tokens; /* hits are multiples of it: whole blocks of every group */
    int32_t num_priorities;
    bool is_thread_safe;
    bool owns_memory;
    struct pkv_allocator allocator;
    pkv_pool_event_callback event;
    void *event_user;

    struct pkv_block_record *blocks;  /* [num_blocks] */
    int32_t *tokens;                  /* [num_blocks, token_stride]; NULL without an index */
    struct pkv_seq_record *seqs;      /* [max_seqs] */
    struct pkv_seq_group *seq_groups; /* [max_seqs, num_groups] */
    uint32_t *audit_marks;            /* [num_blocks], scratch */
    struct pkv_queue queue;
    struct pkv_index index;
    struct pkv_domains domains;
    struct pkv_group groups[PKV_MAX_GROUPS];

    int32_t state; /* enum pkv_pool_state */
    uint32_t free_seq;
    uint64_t epoch;
    uint64_t next_serial;
    uint64_t batch; /* number of the batch step, counted from 1 */
    const struct pkv_batch *open_batch;
    struct pkv_batch *unmarked; /* committed steps that are not marked yet, the newest first */
    struct pkv_pool_counts counts;
    int64_t num_events;
    int64_t num_out_of_blocks;
    int64_t num_commits;
    int64_t num_rollbacks;
    pthread_mutex_t mutex;
};

/* Facts for an error, in the name of a public function. */
struct pkv_blame {
    const char *function;
    struct pkv_error *error;
};

static inline enum pkv_status pkv_refuse(struct pkv_blame blame, enum pkv_status status,
                                         const char *argument, int64_t value, int64_t bound,
                                         const char *rule) {
    (void)pkv_error_set(blame.error, status, blame.function, argument, PKV_ERROR_NONE, value, bound,
                        rule);
    return status;
}

static inline enum pkv_status pkv_refuse_missing(struct pkv_blame blame, const char *argument) {
    return pkv_refuse(blame, PKV_STATUS_NULL_ARGUMENT, argument, PKV_ERROR_NONE, PKV_ERROR_NONE,
                      "must not be NULL");
}

static inline void pkv_pool_lock(struct pkv_pool *pool) {
    if (pool->is_thread_safe)
        (void)pthread_mutex_lock(&pool->mutex);
}

static inline void pkv_pool_unlock(struct pkv_pool *pool) {
    if (pool->is_thread_safe)
        (void)pthread_mutex_unlock(&pool->mutex);
}

/* BAD_STATE unless the pool may be changed now. */
static inline enum pkv_status pkv_pool_may_change(const struct pkv_pool *pool,
                                                  struct pkv_blame blame) {
    if (pool->state == PKV_POOL_IDLE)
        return PKV_STATUS_OK;
    return pkv_refuse(blame, PKV_STATUS_BAD_STATE, "pool", PKV_ERROR_NONE, PKV_ERROR_NONE,
                      pool->state == PKV_POOL_BATCH ? "has an open batch step"
                                                    : "must not be changed by an event callback");
}

/* The index holds the block's contents, from this epoch. */
static inline bool pkv_block_is_current(const struct pkv_pool *pool,
                                        const struct pkv_block_record *block) {
    return pkv_queue_is_current(&pool->queue, block);
}

static inline bool pkv_block_is_findable(const struct pkv_pool *pool,
                                         const struct pkv_block_record *block) {
    return pkv_block_is_current(pool, block) && !(block->flags & PKV_BLOCK_PENDING);
}

static inline int32_t *pkv_block_tokens(const struct pkv_pool *pool, uint32_t block) {
    return pool->tokens + (int64_t)block * pool->token_stride;
}

static inline uint32_t *pkv_seq_table(const struct pkv_group *group, uint32_t seq) {
    return group->tables + (int64_t)seq * group->width;
}

static inline struct pkv_seq_group *pkv_seq_part(const struct pkv_pool *pool, uint32_t seq,
                                                 int32_t group) {
    return &pool->seq_groups[(int64_t)seq * pool->num_groups + group];
}

static inline int32_t pkv_blocks_of(int32_t num_tokens, int32_t block_size) {
    return (int32_t)(((uint32_t)num_tokens + (uint32_t)block_size - 1) / (uint32_t)block_size);
}

/* The first block that tokens from num_tokens on still see. */
static inline uint32_t pkv_window_start(const struct pkv_group *group, int32_t num_tokens) {
    const int32_t unseen = num_tokens - group->window + 1;
    if (group->window == 0 || unseen <= 0)
        return 0;
    const uint32_t block = (uint32_t)unseen / (uint32_t)group->block_size;
    return block - block % (uint32_t)group->align_blocks;
}

/* Whether blocks that the sequence computes will be indexed. */
static inline bool pkv_seq_is_indexed(const struct pkv_pool *pool,
                                      const struct pkv_seq_record *seq) {
    return pool->index_mode != PKV_INDEX_OFF && !seq->is_not_indexed && seq->epoch == pool->epoch;
}

/* The record behind a handle; STALE_HANDLE. */
enum pkv_status pkv_seq_find(const struct pkv_pool *pool, struct pkv_seq seq, const char *argument,
                             struct pkv_seq_record **record, struct pkv_blame blame);

/* A handle's place for a new sequence, with its generation moved on; the caller knows that there is
 * one. pkv_seq_drop ends or undoes it, and keeps the generation: callers may still hold the
 * handle. */
uint32_t pkv_seq_take(struct pkv_pool *pool);
void pkv_seq_drop(struct pkv_pool *pool, uint32_t seq);

/* The chain of a sequence without tokens begins at its domain. */
void pkv_seq_start_chain(struct pkv_pool *pool, uint32_t seq, int32_t group);

/* pkv_seq_mark_computed without its checks. */
void pkv_seq_set_computed(struct pkv_pool *pool, uint32_t seq, int32_t num_computed);

/* Numbers and sends an event, if anybody listens. */
void pkv_pool_emit(struct pkv_pool *pool, struct pkv_pool_event event);

#endif
