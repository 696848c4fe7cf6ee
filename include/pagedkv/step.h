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
    PKV_DUPLICATES_LAST_WINS = 0,    /* the later token stays, for any number of threads */
    PKV_DUPLICATES_REJECT = 1,       /* DUPLICATE_SLOT, nothing is written */
    PKV_DUPLICATES_ASSUME_UNIQUE = 2 /* the caller promises that there is none; if there is, any of
                                        the tokens may stay, whole or in parts, in that slot */
};

struct pkv_step_options {
    size_t struct_size;
    int64_t max_tokens; /* entries of a slot_mapping; 0: no limit (nothing is sized by it yet) */
    int64_t max_seqs;   /* sequences of a gather */
    const struct pkv_allocator *allocator; /* NULL: malloc and free; copied */
};

struct pkv_step;

/* Bytes that pkv_step_create_in needs for these options; 0 if they are refused. */
PKV_API size_t pkv_step_memory_size(const struct pkv_step_options *options);

/* Makes a step, empty: set its indices before a run.
 * errors  NULL_ARGUMENT, INVALID_ARGUMENT, STRUCT_SIZE, OVERFLOW, OUT_OF_MEMORY
 * cost    one allocation; pkv_step_set and the runs allocate nothing */
PKV_MUST_USE PKV_API enum pkv_status pkv_step_create(struct pkv_step **step,
                                                     const struct pkv_step_options *options,
                                                     struct pkv_error *error);

/* The same in the caller's memory, aligned to 64 bytes and at least pkv_step_memory_size long. The
 * memory must outlive the step; pkv_step_destroy does not free it.
 * errors  as pkv_step_create, and MISALIGNED, CAPACITY */
PKV_MUST_USE PKV_API enum pkv_status pkv_step_create_in(struct pkv_step **step, void *memory,
                                                        size_t memory_bytes,
                                                        const struct pkv_step_options *options,
                                                        struct pkv_error *error);

/* NULL is fine. */
PKV_API void pkv_step_destroy(struct pkv_step *step);

/* The indices of one step. Each tensor may be absent (ndim 0, data NULL) if no run needs it. They
 * are borrowed: they must stay unchanged until the last run of the step. */
struct pkv_step_indices {
    size_t struct_size;
    int32_t duplicates; /* enum pkv_duplicates */
    int32_t
        seq_lens_cumulative; /* 1: seq_lens holds num_seqs + 1 running totals, the first one 0 */
    struct pkv_tensor slot_mapping; /* [num_tokens] int32 or int64; negative: skip that token */
    struct pkv_tensor block_table;  /* [num_seqs, max_num_blocks_per_seq] int32 or int64 */
    struct pkv_tensor seq_lens;     /* [num_seqs] or [num_seqs + 1] int32 or int64 */
    struct pkv_tensor seq_offsets;  /* [num_seqs] int32 or int64, first token to read; absent: 0 */
};

/* Checks the indices against the geometry of a cache (num_blocks and block_size; its data is not
 * touched) and takes them into the step. When it fails, the step holds no indices.
 *
 * errors  NULL_ARGUMENT, DTYPE, RANK, SHAPE, STRIDE, MISALIGNED, CAPACITY, INVALID_ARGUMENT (a
 * negative length or offset, running totals that fall or do not start at 0), SLOT_OUT_OF_RANGE,
 * DUPLICATE_SLOT (under REJECT), BLOCK_OUT_OF_RANGE (in an entry that a gather reads; all other
 * entries may hold anything), POSITION_OUT_OF_RANGE (seq_offset + length beyond the table's width),
 * BAD_STATE, STRUCT_SIZE, OVERFLOW cost    reads each index once (REJECT: once for each 262,144
 * slots of the cache); no allocation
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_step_set(struct pkv_context *context, struct pkv_step *step, const struct pkv_cache *cache,
             const struct pkv_step_indices *indices, struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
