/* SPDX-License-Identifier: MIT
 *
 * Sequences of a pool: block tables that grow, fork, shrink and end. Each call here takes effect at
 * once; batch.h does the same for a whole step, all or nothing. Where the rows
 * of a sequence lie in a cache, walk.h tells.
 *
 * num_tokens are reserved: they have slots. Of these num_computed_tokens are written, from the
 * first on: the caller says so. Only what is computed is indexed, and a block in the index is never
 * written below its tokens: a write there takes it out of the index if this sequence is its only
 * holder, and goes to a copy otherwise.
 */
#ifndef PAGEDKV_SEQ_H
#define PAGEDKV_SEQ_H

#include <pagedkv/prefix.h>
#include <pagedkv/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A handle. A handle of zeroes is none; one of a freed sequence is refused. index is below
 * max_seqs, and no other sequence that is alive has it. */
struct pkv_seq {
    uint32_t index;
    uint32_t generation;
};

struct pkv_seq_options {
    size_t struct_size;
    const struct pkv_domain *domain; /* NULL: the empty one; copied */
    int32_t priority;    /* class, 0 to num_priorities - 1: lower ones are evicted and preempted
                          first */
    int32_t not_indexed; /* 1: finds nothing and is never indexed; token ids may be NULL */
};

/* Makes a sequence without tokens.
 *
 * seq      out
 * options  nullable
 * errors   NULL_ARGUMENT (pool, seq), INVALID_ARGUMENT (priority, not_indexed), STRUCT_SIZE,
 *          CAPACITY (max_seqs, max_domain_bytes),
 *          BAD_STATE (a batch step is open, or inside an event callback)
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_seq_create(struct pkv_pool *pool, struct pkv_seq *seq,
                                                    const struct pkv_seq_options *options,
                                                    struct pkv_error *error);

/* Gives all blocks back, the last first, and ends the sequence. With PKV_INDEX_PARTIAL_BLOCKS its
 * last block is indexed with the tokens computed.
 *
 * errors  NULL_ARGUMENT, STALE_HANDLE (freed already, or of another pool), BAD_STATE
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_seq_free(struct pkv_pool *pool, struct pkv_seq seq,
                                                  struct pkv_error *error);

/* Finds the longest indexed beginning of a prompt and takes its blocks. To have a token left to
 * compute, pass one token less than the prompt has.
 *
 * seq             without tokens
 * token_ids       [num_tokens] in
 * num_hit_tokens  out; the sequence has so many tokens now, all of them computed. Whole blocks of
 *                 every group, and one partial block at the end if such are indexed
 * errors          NULL_ARGUMENT, INVALID_ARGUMENT (num_tokens < 0), STALE_HANDLE, CAPACITY (beyond
 *                 max_tokens_per_seq), BAD_STATE (also: the sequence has tokens)
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_seq_match(struct pkv_pool *pool, struct pkv_seq seq,
                                                   const int32_t *token_ids, int64_t num_tokens,
                                                   int64_t *num_hit_tokens,
                                                   struct pkv_error *error);

/* Copy block source to block destination in every cache of the group, before anything is written
 * to the slots of the tokens reserved by the same call or step, and after what was reserved before
 * it is written. */
struct pkv_block_copy {
    int32_t source;
    int32_t destination;
};

/* Reserves slots for tokens at the end.
 *
 * token_ids  [num_tokens] in; NULL only in a pool without index or a sequence that is not_indexed
 * copies     [num_groups] out: one for each layer group; source and destination -1: none is needed.
 *            Untouched on error
 * errors     NULL_ARGUMENT, INVALID_ARGUMENT (num_tokens < 0), STALE_HANDLE, CAPACITY (beyond
 *            max_tokens_per_seq), OUT_OF_BLOCKS (value is what is needed, bound what there is),
 *            BAD_STATE; nothing is changed
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_seq_append(struct pkv_pool *pool, struct pkv_seq seq,
                                                    const int32_t *token_ids, int64_t num_tokens,
                                                    struct pkv_block_copy *copies,
                                                    struct pkv_error *error);

/* Makes a sequence with the same tokens, that shares all blocks.
 *
 * errors  NULL_ARGUMENT, STALE_HANDLE, CAPACITY (max_seqs), BAD_STATE
 * cost    O(blocks of the parent)
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_seq_fork(struct pkv_pool *pool, struct pkv_seq parent,
                                                  struct pkv_seq *child, struct pkv_error *error);

/* Drops tokens from the end; num_tokens 0 gives everything back and keeps the handle, its domain,
 * priority and arrival: that is how a sequence is preempted.
 *
 * num_tokens  that stay
 * errors      NULL_ARGUMENT, INVALID_ARGUMENT (below 0, beyond the present number), STALE_HANDLE,
 *             BAD_STATE (also: the next token's window needs blocks that were given back. Mark
 *             tokens computed only when they are sure to stay, or keep a window that is larger by
 *             what may be dropped)
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_seq_truncate(struct pkv_pool *pool, struct pkv_seq seq,
                                                      int64_t num_tokens, struct pkv_error *error);

/* Says that the keys and values of the first tokens are written, in every layer. Blocks complete
 * by that are indexed, once all sequences that hold them say so; blocks that left the window of
 * their group are given back.
 *
 * num_computed_tokens  not less than before, not more than num_tokens
 * errors               NULL_ARGUMENT, INVALID_ARGUMENT (num_computed_tokens), STALE_HANDLE,
 *                      BAD_STATE
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_seq_mark_computed(struct pkv_pool *pool,
                                                           struct pkv_seq seq,
                                                           int64_t num_computed_tokens,
                                                           struct pkv_error *error);

struct pkv_seq_info {
    size_t struct_size;
    int64_t num_tokens;
    int64_t num_computed_tokens;
    int64_t num_blocks; /* table entries of all groups that are not -1 */
    int64_t arrival;    /* sequences made before it */
    int32_t priority;
    int32_t is_indexed; /* 0: its blocks are not, see not_indexed and pkv_pool_invalidate */
};

/* What a sequence holds.
 *
 * info    out, as much as its struct_size has room for
 * errors  NULL_ARGUMENT, STRUCT_SIZE, STALE_HANDLE
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_seq_info_get(struct pkv_pool *pool, struct pkv_seq seq,
                                                      struct pkv_seq_info *info,
                                                      struct pkv_error *error);

/* The block table of one sequence, not copied: for pkv_walk_init and the like.
 *
 * block_table  out, [num_entries] int32; an entry that left the window is -1. Read only, and valid
 *              until the sequence is changed
 * errors       NULL_ARGUMENT, INVALID_ARGUMENT (group), STALE_HANDLE
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_seq_block_table(struct pkv_pool *pool, struct pkv_seq seq,
                                                         int32_t group,
                                                         struct pkv_tensor *block_table,
                                                         struct pkv_error *error);

/* Which sequence to give up when blocks run out. */
enum pkv_preemption {
    PKV_PREEMPT_LATEST_ARRIVAL = 0, /* the one made last */
    PKV_PREEMPT_LOWEST_PRIORITY = 1 /* one of the lowest class; of these the one made last */
};

/* Names a victim among the sequences that hold blocks. Give it up with pkv_seq_truncate to 0
 * tokens, and resume it with pkv_seq_match and pkv_seq_append: what was indexed and is still cached
 * is found again.
 *
 * policy  enum pkv_preemption
 * seq     out; zeroes on error
 * errors  NULL_ARGUMENT, INVALID_ARGUMENT (policy), CAPACITY (no sequence holds a block)
 * cost    O(max_seqs)
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_preempt_choose(struct pkv_pool *pool, int32_t policy,
                                                        struct pkv_seq *seq,
                                                        struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
