/* SPDX-License-Identifier: MIT
 *
 * Scatter to many targets: one slot_mapping, up to 16 (source, cache) pairs of different
 * widths and dtypes, in one pass. The latent, the rotary part and the scales of an MLA token go to
 * three caches, or to three column ranges of one packed row. EXACT, as every scatter.
 */
#ifndef PAGEDKV_SCATTER_ROWS_H
#define PAGEDKV_SCATTER_ROWS_H

#include <pagedkv/context.h>
#include <pagedkv/scatter.h>
#include <pagedkv/step.h>
#include <pagedkv/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Pairs of one call. */
#define PKV_SCATTER_ROWS_MAX_PAIRS 16

struct pkv_scatter_rows_options {
    size_t struct_size;
    int32_t duplicates;   /* enum pkv_duplicates */
    int32_t store_policy; /* enum pkv_store_policy */
};

/* Writes row t of every source to slot slot_mapping[t] of its cache.
 *
 * slot_mapping  [num_tokens] int32 or int64 in
 * sources       [num_pairs] in; each [num_tokens, row] or [num_tokens, num_heads, head_size], any
 *               strides
 * caches        [num_pairs] in/out; each [num_slots, row], [num_blocks, block_size, row] or
 *               [num_blocks, block_size, num_heads, head_size], of one of the twelve dtypes of a
 *               cache, that of its source; any strides by which the last axis is adjacent and no
 *               two elements share bytes, so that a cache may be a column range of a wider row. All
 *               have the same number of slots, and those with blocks the same blocks. The rows of a
 *               pair have the same heads, or one of the two has none and as many elements
 * num_pairs     1 to PKV_SCATTER_ROWS_MAX_PAIRS
 * options       in, nullable: last token wins, store policy AUTO
 * effect        rows of the named slots in every cache; all other bytes stay as they are. A
 *               negative slot skips its token in every cache; of two tokens with the same slot the
 *               later stays (see enum pkv_duplicates); no tokens succeed and do nothing
 * errors        of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *               STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context, slot_mapping, sources,
 *               caches), INVALID_ARGUMENT (num_pairs, duplicates, store_policy), DTYPE (a cache of
 *               none of the twelve; a source not that of its cache), RANK (not one of the forms
 *               above), SHAPE (an empty axis of a cache; not the slots or blocks of the others; a
 *               source of another number of tokens or another row than its cache), STRIDE (the last
 *               axis of a cache not adjacent, its elements share bytes), DTYPE,
 *               RANK, SLOT_OUT_OF_RANGE, DUPLICATE_SLOT (slot_mapping, as pkv_step_set), OVERLAP
 *               (two caches share bytes; a row to be written shares bytes with a source or
 *               slot_mapping; what only interleaves in steps of different size may be refused too),
 *               STRUCT_SIZE, INTERNAL (sim: an access outside a tensor)
 * threads       as pkv_scatter_run
 * cost          2 * num_tokens * all rows moved, and the passes of pkv_step_set over slot_mapping;
 *               no allocation. Caches that are neighbouring columns of one packed row cost as much
 *               as one cache of that row
 * numerics      EXACT
 * source        PyPTO MLA prolog: one index for the latent, rotary and scale caches; PyPTO-Gym
 *               AT-16
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_rows(struct pkv_context *context, const struct pkv_tensor *slot_mapping,
                 const struct pkv_tensor *sources, const struct pkv_tensor *caches,
                 int64_t num_pairs, const struct pkv_scatter_rows_options *options,
                 struct pkv_error *error);

struct pkv_scatter_rows_plan;

/* Takes the static facts: shapes, dtypes and strides of the caches, where they lie relative to each
 * other, and the context's run mode. Immutable; any number of contexts may share it.
 *
 * plan       out; hand it to pkv_scatter_rows_plan_destroy. NULL when the call fails
 * caches     [num_pairs] in: the pattern of every layer's caches that this plan will write, as in
 *            pkv_scatter_rows; copied
 * num_pairs  1 to PKV_SCATTER_ROWS_MAX_PAIRS
 * options    in, nullable: store policy AUTO
 * errors     those of pkv_scatter_rows about caches; and NULL_ARGUMENT (plan, context, caches),
 *            INVALID_ARGUMENT (num_pairs, store_policy, reserved), STRUCT_SIZE, OUT_OF_MEMORY
 * threads    the caller's alone
 * cost       one allocation, by the context's allocator; no element is read
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_rows_plan_create(struct pkv_scatter_rows_plan **plan, struct pkv_context *context,
                             const struct pkv_tensor *caches, int64_t num_pairs,
                             const struct pkv_scatter_options *options, struct pkv_error *error);

/* Frees it. NULL is fine. */
PKV_API void pkv_scatter_rows_plan_destroy(struct pkv_scatter_rows_plan *plan);

/* Writes one layer: the row of token t of every source to slot_mapping[t] of its cache.
 *
 * step      in: set with a slot_mapping, against a cache with the num_blocks and block_size of
 *           these; if none of them has blocks, with as many slots
 * sources   [the plan's num_pairs] in, as in pkv_scatter_rows
 * caches    [the plan's num_pairs] in/out; shapes, dtypes and strides of the plan's
 * effect    as pkv_scatter_rows
 * errors    those of pkv_scatter_rows about sources and overlap; of each cache those of
 *           pkv_tensor_resolve; and NULL_ARGUMENT (context, plan, step, sources, caches), LAYOUT
 *           (not the plan's caches), BAD_STATE (a step that is not set, has no slot_mapping, or was
 *           set for another geometry)
 * threads   as pkv_scatter_run
 * cost      2 * num_tokens * all rows moved; no allocation
 * numerics  EXACT
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_rows_run(struct pkv_context *context, const struct pkv_scatter_rows_plan *plan,
                     const struct pkv_step *step, const struct pkv_tensor *sources,
                     const struct pkv_tensor *caches, struct pkv_error *error);

/* Part `part` of `num_parts` of the same work, on the calling thread. All parts together, in any
 * order and at the same time, write the same bytes as one run.
 *
 * part       0 <= part < num_parts
 * num_parts  >= 1
 * others     as pkv_scatter_rows_run, the same ones in every part
 * errors     those of pkv_scatter_rows_run, and INVALID_ARGUMENT (part, num_parts)
 * threads    the caller's alone; each thread brings its own context
 * cost       as pkv_scatter_run_part
 * numerics   EXACT
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_rows_run_part(struct pkv_context *context, const struct pkv_scatter_rows_plan *plan,
                          const struct pkv_step *step, const struct pkv_tensor *sources,
                          const struct pkv_tensor *caches, int64_t part, int64_t num_parts,
                          struct pkv_error *error);

/* The published packed rows of an MLA token, 656 bytes each, column after column. */
enum pkv_packed_row {
    PKV_PACKED_ROW_MLA_I8_BF16_F32 = 0, /* 512 i8 latent, 64 bf16 rotary, 4 f32 scales */
    PKV_PACKED_ROW_MLA_F8_F32_BF16 = 1  /* 512 f8_e4m3fn latent, 4 f32 scales, 64 bf16 rotary */
};

#define PKV_PACKED_ROW_COLUMNS 3

/* The columns of a packed cache as caches of their own, in the order of the row: targets for
 * pkv_scatter_rows, and NHD caches of one head for everything else.
 *
 * packed_row  enum pkv_packed_row
 * cache       in: [num_blocks, block_size, 656] or [num_blocks, block_size, 1, 656] of a dtype of
 *             one byte; data aligned to 4 bytes, last axis adjacent, strides of the first two axes
 *             multiples of 4; borrowed
 * columns     [PKV_PACKED_ROW_COLUMNS] out: [num_blocks, block_size, 1, width] each; written only
 *             on success
 * errors      of cache those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE, STRIDE,
 *             MISALIGNED, OVERFLOW; and NULL_ARGUMENT (cache, columns), INVALID_ARGUMENT
 *             (packed_row), DTYPE (not of one byte), RANK (neither 3 nor 4), SHAPE (a row not of
 *             656 bytes, more than one head), STRIDE (last axis not adjacent; rows not in steps of
 *             4 bytes), MISALIGNED (data not to 4 bytes)
 * threads     any
 * cost        no element is read, no allocation
 * source      ops-transformer MlaProlog, per-tile quantised cache; FlashMLA fp8 cache
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_packed_row_columns(int32_t packed_row,
                                                            const struct pkv_tensor *cache,
                                                            struct pkv_tensor *columns,
                                                            struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
