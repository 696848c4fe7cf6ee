/* SPDX-License-Identifier: MIT
 *
 * One step of an engine: which tokens are written where, which blocks are read. Its indices are
 * checked once and then serve every layer of the model.
 */
#ifndef PAGEDKV_STEP_H
#define PAGEDKV_STEP_H

#include <pagedkv/cache.h>
#include <pagedkv/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What happens when a slot is named twice in one step. */
enum pkv_duplicates {
    PKV_DUPLICATES_LAST_WINS = 0, /* the later token stays, for any number of threads */
    PKV_DUPLICATES_REJECT = 1,    /* DUPLICATE_SLOT, nothing is written */
    /* The caller promises that there is none; if there is, any of the tokens may stay, whole or in
     * parts, in that slot. */
    PKV_DUPLICATES_ASSUME_UNIQUE = 2
};

struct pkv_step_options {
    size_t struct_size;
    /* More slots or queries than that are CAPACITY; 0: no limit. A limit also gives the step
     * memory, up to 10 bytes a token and 384 KiB in all, in which it finds out whether up to 65,536
     * slots all differ: threads can then divide the tokens instead of the slots, which is faster */
    int64_t max_tokens;
    int64_t max_seqs; /* a block_table of more sequences is CAPACITY; 0: no limit */
    const struct pkv_allocator *allocator; /* NULL: malloc and free; copied */
};

struct pkv_step;

/* Bytes that pkv_step_create_in needs for these options (nullable); 0 if they are refused. */
PKV_API size_t pkv_step_memory_size(const struct pkv_step_options *options);

/* Makes a step, empty: set its indices before a run.
 *
 * step     out; hand it to pkv_step_destroy. NULL when the call fails
 * options  in, nullable: no limits, malloc and free
 * errors   NULL_ARGUMENT (step), INVALID_ARGUMENT (a negative limit; an allocator with only one of
 *          its functions), STRUCT_SIZE, OUT_OF_MEMORY
 * threads  any
 * cost     one allocation; pkv_step_set and the runs allocate nothing
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_step_create(struct pkv_step **step,
                                                     const struct pkv_step_options *options,
                                                     struct pkv_error *error);

/* The same in the caller's memory.
 *
 * step          out. NULL when the call fails
 * memory        [memory_bytes] out, aligned to 64 bytes; it must outlive the step, and
 *               pkv_step_destroy does not free it
 * memory_bytes  at least pkv_step_memory_size
 * options       in, nullable: no limits; the allocator is not looked at
 * errors        NULL_ARGUMENT (step, memory), INVALID_ARGUMENT (a negative limit), STRUCT_SIZE,
 *               MISALIGNED (memory), CAPACITY (memory_bytes)
 * threads       any
 * cost          no allocation
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_step_create_in(struct pkv_step **step, void *memory,
                                                        size_t memory_bytes,
                                                        const struct pkv_step_options *options,
                                                        struct pkv_error *error);

/* Frees it, unless it lives in the caller's memory. NULL is fine. */
PKV_API void pkv_step_destroy(struct pkv_step *step);

/* The indices of one step. A tensor may be absent (ndim 0, data NULL) if no run needs it: a scatter
 * needs slot_mapping, a gather block_table and seq_lens, which come together or not at all;
 * seq_offsets and query_start_loc need both; attention needs query_start_loc. They are borrowed:
 * they must stay unchanged until the last run of the step. */
struct pkv_step_indices {
    size_t struct_size;
    int32_t duplicates; /* enum pkv_duplicates */
    /* 0: seq_lens holds num_seqs lengths; 1: num_seqs + 1 running totals, the first one 0 */
    int32_t seq_lens_cumulative;
    struct pkv_tensor slot_mapping; /* [num_tokens] int32 or int64; negative: skip that token */
    struct pkv_tensor block_table;  /* [num_seqs, max_num_blocks_per_seq] int32 or int64 */
    struct pkv_tensor seq_lens;     /* [num_seqs] or [num_seqs + 1] int32 or int64 */
    /* [num_seqs] int32 or int64, the first token to read, in tokens of its sequence; absent: 0.
     * seq_lens counts from there: what is read are the tokens seq_offset ... seq_offset + seq_len -
     * 1. To attention the tokens before do not exist, with a window or without; positions still
     * count from the beginning of the sequence */
    struct pkv_tensor seq_offsets;
    /* [num_seqs + 1] int32 or int64: running totals of the query lengths, the first one 0. The
     * queries of a sequence are its last tokens: 0 <= query length <= seq_len */
    struct pkv_tensor query_start_loc;
    /* Attention: so many tokens at the start of every sequence lie in the same blocks, entry by
     * entry of block_table. They are then read, 256 at a time, once for up to 128 rows (cascade
     * attention), and contexts are not cut among threads: with fewer sequences and key heads than
     * threads it may take longer. 0: none are known to be */
    int64_t num_shared_tokens;
};

/* Checks the indices against the geometry of a cache, and takes them into the step.
 *
 * step     in/out
 * cache    in: num_blocks and block_size count; its data is not touched
 * indices  in; the struct is copied, the data of its tensors borrowed
 * effect   the step serves any number of runs, on any number of threads, until it is set again.
 *          When the call fails, the step holds no indices
 * errors   of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE, STRIDE,
 *          MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context, step, cache, indices), DTYPE (neither
 *          int32 nor int64), NULL_ARGUMENT (a block_table without seq_lens, or the reverse;
 *          query_start_loc or seq_offsets without both; num_shared_tokens without query_start_loc),
 *          RANK, SHAPE (seq_lens or seq_offsets of another number of sequences than block_table;
 *          query_start_loc not of one more), CAPACITY (more than max_tokens or max_seqs),
 *          INVALID_ARGUMENT (duplicates, seq_lens_cumulative, a negative length or offset, running
 *          totals that fall or do not start at 0, a query length above its seq_len, seq_offsets
 *          together with num_shared_tokens, num_shared_tokens negative or above a seq_len, a shared
 *          block_table entry that differs from the first sequence's), SLOT_OUT_OF_RANGE (a slot
 *          beyond the last), DUPLICATE_SLOT (under REJECT), BLOCK_OUT_OF_RANGE (in an entry of the
 *          tokens seq_offset ... seq_offset + seq_len - 1, whether a window sees them or not; all
 *          other entries may hold anything), POSITION_OUT_OF_RANGE
 *          (seq_offset + length beyond the table's width), OVERFLOW (positions or the sum of the
 *          lengths), BAD_STATE (a cache that pkv_cache_init has not filled), STRUCT_SIZE
 * threads  the caller's alone; no run of the step may be under way
 * cost     reads each index once, query_start_loc and shared entries of block_table twice. With
 *          max_tokens 256 to 65,536 slots are read two or three times more, to find that all differ
 *          (not under ASSUME_UNIQUE). Where that is not found, or not tried, REJECT reads all slots
 *          up to twice for each 2,048 of them. No allocation
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_step_set(struct pkv_context *context, struct pkv_step *step, const struct pkv_cache *cache,
             const struct pkv_step_indices *indices, struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
