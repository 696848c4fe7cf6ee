/* SPDX-License-Identifier: MIT
 *
 * The batch step: reserves for several sequences at once, all or nothing, and yields what the
 * operators need.
 *
 * From begin to commit or rollback only the batch, pkv_prefix_lookup and the questions about
 * sequences may be called; everything else that changes the pool answers BAD_STATE (from other
 * threads of a thread_safe pool it waits: all calls of a step, from begin to its end, belong to one
 * thread, and no other may destroy the batch meanwhile). A rollback
 * restores exactly the state before: tables, references, the order of eviction, the index, the
 * metrics (but num_rollbacks and num_out_of_blocks); no event is sent. Running out of blocks rolls
 * back by itself. After a commit the tensors stay until the next begin.
 *
 * A step of an engine: begin, match and append for each sequence, commit; pkv_copy_blocks with
 * block_mapping; pkv_step_set with indices, which then serves scatter, gather and attention; run
 * the model; pkv_batch_mark_computed.
 */
#ifndef PAGEDKV_BATCH_H
#define PAGEDKV_BATCH_H

#include <pagedkv/seq.h>
#include <pagedkv/step.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_batch;

struct pkv_batch_options {
    size_t struct_size;
    int64_t max_seqs;   /* sequences with new tokens, up to 2^30; 0: the pool's */
    int64_t max_tokens; /* new tokens, up to 2^30; 0: 8192 */
    const struct pkv_allocator *allocator; /* NULL: malloc and free; copied */
};

/* Bytes that pkv_batch_create_in needs; 0 if pool is NULL or the options are refused. */
PKV_API size_t pkv_batch_memory_size(const struct pkv_pool *pool,
                                     const struct pkv_batch_options *options);

/* Makes a batch for one pool, closed. A pool may have several, one of them open at a time.
 *
 * batch    out; hand it to pkv_batch_destroy before the pool; NULL on error
 * options  nullable
 * errors   NULL_ARGUMENT (batch, pool), INVALID_ARGUMENT (max_seqs, max_tokens, half an allocator),
 *          STRUCT_SIZE, OVERFLOW, OUT_OF_MEMORY
 * cost     one allocation
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_batch_create(struct pkv_batch **batch,
                                                      struct pkv_pool *pool,
                                                      const struct pkv_batch_options *options,
                                                      struct pkv_error *error);

/* The same in the caller's memory, aligned to 64 bytes and at least pkv_batch_memory_size long.
 * errors   as pkv_batch_create, and MISALIGNED, CAPACITY */
PKV_MUST_USE PKV_API enum pkv_status pkv_batch_create_in(struct pkv_batch **batch,
                                                         struct pkv_pool *pool, void *memory,
                                                         size_t memory_bytes,
                                                         const struct pkv_batch_options *options,
                                                         struct pkv_error *error);

/* Rolls back if it is open. NULL is fine. */
PKV_API void pkv_batch_destroy(struct pkv_batch *batch);

/* Opens the step. The tensors of the step before are gone.
 * errors   NULL_ARGUMENT, BAD_STATE (a batch of this pool is open; inside an event callback) */
PKV_MUST_USE PKV_API enum pkv_status pkv_batch_begin(struct pkv_batch *batch,
                                                     struct pkv_error *error);

/* pkv_seq_match within the step.
 * errors   its errors, and CAPACITY (more than 3 * max_seqs operations), BAD_STATE (not open). Of
 *          an operation that fails nothing is done, and the step stays open */
PKV_MUST_USE PKV_API enum pkv_status pkv_batch_match(struct pkv_batch *batch, struct pkv_seq seq,
                                                     const int32_t *token_ids, int64_t num_tokens,
                                                     int64_t *num_hit_tokens,
                                                     struct pkv_error *error);

/* pkv_seq_append within the step: the sequence becomes the next row of the tensors. Once a step for
 * each sequence; 0 tokens make no row, and may be followed by others. The copies needed are in
 * block_mapping.
 *
 * token_ids  [num_tokens] in; copied
 * errors     those of pkv_seq_append, and CAPACITY (max_seqs, max_tokens, more than 3 * max_seqs
 *            operations), BAD_STATE (not open;
 *            appended to in this step; the block to be copied holds tokens reserved in this very
 *            step, by the sequence that it was forked from: fork before the append, or append in
 *            the next step). The step stays open, except that OUT_OF_BLOCKS rolls it back
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_batch_append(struct pkv_batch *batch, struct pkv_seq seq,
                                                      const int32_t *token_ids, int64_t num_tokens,
                                                      struct pkv_error *error);

/* pkv_seq_fork within the step. After a rollback the child's handle is that of a freed sequence.
 * errors   those of pkv_seq_fork, and CAPACITY (operations), BAD_STATE (not open) */
PKV_MUST_USE PKV_API enum pkv_status pkv_batch_fork(struct pkv_batch *batch, struct pkv_seq parent,
                                                    struct pkv_seq *child, struct pkv_error *error);

/* Makes it so: events are sent, the tensors filled.
 * errors   NULL_ARGUMENT, BAD_STATE (not open)
 * cost     O(new tokens + new blocks); a row of block_table is copied whole only when another
 *          sequence had that row in the step before */
PKV_MUST_USE PKV_API enum pkv_status pkv_batch_commit(struct pkv_batch *batch,
                                                      struct pkv_error *error);

/* Undoes the step: the pool is as it was at begin (see above).
 * errors   NULL_ARGUMENT, BAD_STATE (not open) */
PKV_MUST_USE PKV_API enum pkv_status pkv_batch_rollback(struct pkv_batch *batch,
                                                        struct pkv_error *error);

/* What one layer group's operators need of a committed step. Rows are in the order of the appends.
 * Views of the batch's memory: nothing is copied; valid until the next begin. */
struct pkv_batch_tensors {
    size_t struct_size;
    struct pkv_tensor seq_lens;        /* [num_seqs] int32, context length including this step */
    struct pkv_tensor query_start_loc; /* [num_seqs + 1] int32 */
    struct pkv_tensor block_mapping;   /* [num_copies, 2] int32 (source, destination), for
                                          pkv_copy_blocks before anything is written */
    struct pkv_step_indices indices;   /* for pkv_step_set: slot_mapping [num_tokens] int64;
                                        block_table [num_seqs, width] int32; and what is there to be
                                        read: seq_lens [num_seqs] int32 tokens from seq_offsets
                                        [num_seqs] int32 on. The offsets are 0 and left out, except
                                        in a group with a window: there the tokens before are gone.
                                        query_start_loc as above; duplicates: no slot is named
                                        twice, which threads divide better (ASSUME_UNIQUE) */
};

/* The tensors of one group.
 *
 * tensors  out, as much as its struct_size has room for; tensors->indices is filled as far as it
 *          fits, and its own struct_size tells how far
 * errors   NULL_ARGUMENT, INVALID_ARGUMENT (group), STRUCT_SIZE, BAD_STATE (not committed) */
PKV_MUST_USE PKV_API enum pkv_status pkv_batch_tensors_get(const struct pkv_batch *batch,
                                                           int32_t group,
                                                           struct pkv_batch_tensors *tensors,
                                                           struct pkv_error *error);

/* pkv_seq_mark_computed for every row of a committed step, up to the tokens that it had at the
 * commit. Sequences freed since are left out; of those truncated since, what every truncation has
 * left is marked, and nothing that came after one, by an append or another batch.
 * errors   NULL_ARGUMENT, BAD_STATE (not committed, marked already, a batch is open, inside an
 *          event callback) */
PKV_MUST_USE PKV_API enum pkv_status pkv_batch_mark_computed(struct pkv_batch *batch,
                                                             struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
