/* SPDX-License-Identifier: MIT
 *
 * A naive block manager: the oracle of the pool's tests. It keeps the whole prefix of every indexed
 * block and compares it, counts references by looking into every table, chooses victims by looking
 * at every block, and rolls back by restoring a copy of itself. No hash, no list, no counter that
 * could be wrong.
 */
#ifndef PAGEDKV_TESTS_POOL_MODEL_H
#define PAGEDKV_TESTS_POOL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include <pagedkv/pool.h>
#include <pagedkv/seq.h>

enum {
    MODEL_MAX_BLOCKS = 40,
    MODEL_MAX_SEQS = 6,
    MODEL_MAX_TOKENS = 64,
    MODEL_MAX_GROUPS = 3,
    MODEL_MAX_DOMAINS = 16,
    MODEL_MAX_EVENTS = 512
};

struct model_block {
    bool is_known;   /* what follows describes its contents */
    bool is_indexed; /* and a prompt finds it */
    int32_t group;
    int32_t domain;
    int32_t prefix[MODEL_MAX_TOKENS]; /* all tokens up to the block's last */
    int32_t num_prefix;
    int32_t num_entry; /* of them, in this block */
    int64_t id;        /* of the contents; the same in copies of an indexed block */
    int64_t parent_id;
    int64_t uses;
    int64_t priority;
    int64_t order;   /* LRU, LFU: when it was given back; FIFO: when it was indexed */
    bool has_place;  /* FIFO: its turn has not come yet */
    int32_t handles; /* held by callers */
    int32_t life;    /* how often it was handed out */
};

struct model_group {
    int32_t block_size;
    int32_t window;
};

struct model_part {
    int32_t table[MODEL_MAX_TOKENS];
    int32_t num_blocks;
    int32_t first_block;
    int32_t num_chained;
    int64_t chain_id;
    bool is_broken;
};

struct model_seq {
    bool is_live;
    bool is_not_indexed;
    int32_t domain;      /* its value */
    int32_t domain_slot; /* where it is remembered */
    int32_t priority;
    int64_t arrival;
    int64_t epoch;
    int64_t batch;
    int32_t tokens[MODEL_MAX_TOKENS];
    int32_t num_tokens;
    int32_t num_computed;
    int32_t num_committed;
    struct model_part parts[MODEL_MAX_GROUPS];
};

struct model_domain {
    bool is_set;
    int32_t value;
    int32_t num_seqs;
    int64_t id;
    int64_t idle_since;
};

struct model_event {
    int32_t type;
    int32_t group;
    int32_t block_id;
    int32_t num_tokens;
};

struct pool_model {
    int32_t num_blocks;
    int32_t max_seqs;
    int32_t max_tokens;
    int32_t num_groups;
    struct model_group groups[MODEL_MAX_GROUPS];
    int32_t index_mode;
    int32_t eviction;
    int32_t num_domains;

    struct model_block blocks[MODEL_MAX_BLOCKS];
    int32_t
        plain[MODEL_MAX_BLOCKS]; /* plain free blocks, the next one first; under FIFO also blocks
                                        in use that were indexed in an epoch before */
    int32_t num_plain;
    struct model_seq seqs[MODEL_MAX_SEQS];
    int32_t free_seqs[MODEL_MAX_SEQS]; /* a stack */
    int32_t num_free_seqs;
    struct model_domain domains[MODEL_MAX_DOMAINS];
    int64_t clock;
    int64_t next_id;
    int64_t epoch;
    int64_t arrivals;
    int64_t batch; /* number of the open step, or of the last */
    bool is_open;
    int64_t num_evicted, num_stored, num_removed, num_copied;
    int64_t hit_tokens, miss_tokens;
    struct model_event events[MODEL_MAX_EVENTS]; /* since the driver emptied them */
    int32_t num_events;
};

void model_init(struct pool_model *model, const struct pkv_pool_options *options);

int32_t model_references(const struct pool_model *model, int32_t block);
int32_t model_num_cached(const struct pool_model *model);
int32_t model_num_free(const struct pool_model *model);

/* Each does what the call of that name does to valid handles, and returns its status. */
int32_t model_seq_create(struct pool_model *model, int32_t domain, int32_t priority,
                         bool is_not_indexed, int32_t *seq);
int32_t model_seq_free(struct pool_model *model, int32_t seq);
int32_t model_seq_match(struct pool_model *model, int32_t seq, const int32_t *tokens,
                        int32_t num_tokens, int32_t *num_hit);
int32_t model_seq_append(struct pool_model *model, int32_t seq, const int32_t *tokens,
                         int32_t num_tokens, struct pkv_block_copy *copies);
int32_t model_seq_fork(struct pool_model *model, int32_t parent, int32_t *child);
int32_t model_seq_truncate(struct pool_model *model, int32_t seq, int32_t num_tokens);
int32_t model_seq_mark_computed(struct pool_model *model, int32_t seq, int32_t num_computed);
int32_t model_lookup(struct pool_model *model, int32_t domain, const int32_t *tokens,
                     int32_t num_tokens);
int32_t model_allocate(struct pool_model *model, int32_t num_blocks, int32_t *blocks);
int32_t model_release(struct pool_model *model, int32_t block);
int32_t model_pin(struct pool_model *model, int32_t domain, const int32_t *tokens,
                  int32_t num_tokens, int32_t *blocks, int32_t *num_blocks);
void model_invalidate(struct pool_model *model);

#endif
