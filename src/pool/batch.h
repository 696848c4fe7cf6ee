/* SPDX-License-Identifier: MIT
 *
 * The batch step: its changes until they are committed, and the tensors after that.
 */
#ifndef PKV_POOL_BATCH_H
#define PKV_POOL_BATCH_H

#include <pagedkv/batch.h>

#include "pool/change.h"
#include "pool/pool.h"

enum pkv_batch_state { PKV_BATCH_EMPTY, PKV_BATCH_OPEN, PKV_BATCH_COMMITTED, PKV_BATCH_COMPUTED };

/* What a row of block_table was filled from. */
struct pkv_batch_row {
    struct pkv_seq seq;
    uint32_t version;
    uint32_t num_blocks;
};

struct pkv_batch_group {
    int64_t *slot_mapping;         /* [max_tokens] */
    int32_t *block_table;          /* [max_seqs, width] */
    struct pkv_batch_row *rows;    /* [max_seqs] */
    int32_t *kept_lens;            /* [max_seqs], from kept_offsets on; in a group with a window */
    int32_t *kept_offsets;         /* [max_seqs] */
    struct pkv_block_copy *copies; /* [max_seqs] */
    int64_t num_copies;
};

struct pkv_batch {
    struct pkv_pool *pool;
    struct pkv_allocator allocator;
    bool owns_memory;
    int32_t state; /* enum pkv_batch_state */
    int64_t max_seqs;
    int64_t max_tokens;
    int64_t max_changes;
    uint64_t number; /* of the step, the pool's */

    struct pkv_change *changes; /* [max_changes] */
    int64_t num_changes;
    int32_t *tokens; /* [max_tokens], copies of the new ones; NULL without an index */
    int64_t num_tokens;
    struct pkv_seq *seqs; /* [max_seqs], of each row */
    int64_t num_seqs;
    struct pkv_pool_counts counts; /* of the pool at begin */

    struct pkv_batch *next_unmarked;
    int32_t *row_of_seq; /* [max_seqs of the pool]; of a sequence that is no row, any */
    int32_t *num_kept;   /* [max_seqs]: of seq_lens, those that no truncation has dropped since */

    int32_t *seq_lens;        /* [max_seqs] */
    int32_t *query_start_loc; /* [max_seqs + 1] */
    struct pkv_batch_group groups[PKV_MAX_GROUPS];
};

/* Fills the tensors of a step whose changes are applied. */
void pkv_batch_fill(struct pkv_batch *batch);

/* A sequence keeps so many tokens: what follows them from now on is not what committed steps have
 * reserved. */
void pkv_batch_note_truncation(struct pkv_pool *pool, uint32_t seq, int32_t num_tokens);

#endif
