/* SPDX-License-Identifier: MIT
 *
 * Gather: read the rows of sequences back, in token order, contiguous. EXACT. To read rows where
 * they lie, without a copy, walk with pkv_walk_init instead.
 */
#ifndef PAGEDKV_GATHER_H
#define PAGEDKV_GATHER_H

#include <pagedkv/cache.h>
#include <pagedkv/context.h>
#include <pagedkv/explain.h>
#include <pagedkv/walk.h>
#include <pagedkv/step.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_gather_plan;

/* As pkv_scatter_plan_create, for reading.
 *
 * plan     out; hand it to pkv_gather_plan_destroy. NULL when the call fails
 * cache    in: the pattern of every layer's cache that this plan will read; copied
 * errors   NULL_ARGUMENT (plan, context, cache), OUT_OF_MEMORY, UNSUPPORTED (key-only PA_NZ),
 *          BAD_STATE (a cache that pkv_cache_init has not filled)
 * threads  the caller's alone
 * cost     one allocation, by the context's allocator; no element is read
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_gather_plan_create(struct pkv_gather_plan **plan,
                                                            struct pkv_context *context,
                                                            const struct pkv_cache *cache,
                                                            struct pkv_error *error);

/* Frees it. NULL is fine. */
PKV_API void pkv_gather_plan_destroy(struct pkv_gather_plan *plan);

/* What a run of num_tokens tokens would do in the context that made the plan, on an executor of
 * num_threads threads.
 *
 * num_tokens   >= 0
 * num_threads  >= 1
 * explanation  out; its struct_size is read
 * errors       NULL_ARGUMENT (plan, explanation), INVALID_ARGUMENT (num_tokens, num_threads),
 *              OVERFLOW (bytes of all rows, or of a tile), STRUCT_SIZE
 * threads      any
 * cost         arithmetic only; no allocation
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_gather_plan_explain(const struct pkv_gather_plan *plan, int64_t num_tokens, int32_t num_threads,
                        struct pkv_explanation *explanation, struct pkv_error *error);

/* Reads one layer: sequence b gives rows base[b] ... base[b] + length[b] - 1 of key and value,
 * where base is the running total of the lengths; its row t is token seq_offsets[b] + t.
 *
 * step      in: set with block_table and seq_lens, against a cache of the same num_blocks and
 *           block_size
 * cache     in; same layouts, dtypes, sizes and strides as the plan's
 * key       [num_tokens, num_kv_heads, head_size] out; dtype of the key cache; any strides by which
 *           no two elements share bytes; num_tokens = the sum of the lengths
 * value     [num_tokens, num_kv_heads, value head_size] out; likewise; NULL exactly when the cache
 *           is key-only
 * effect    all elements of key and value; bytes between them stay as they are. Without sequences,
 *           or with lengths of 0 alone, it succeeds and does nothing
 * errors    of key and value those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *           STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context, plan, step, cache; a value
 *           missing, or given with a key-only cache), DTYPE (not that of its cache), RANK, SHAPE
 *           (not the sum of the lengths, the heads or the elements of a head), STRIDE (elements
 *           share bytes), LAYOUT (not the plan's cache), BAD_STATE (a step that is not set, has no
 *           block_table, or was set for another geometry), OVERLAP (an output shares bytes with a
 *           cache, an index or the other output; one that only interleaves with them may be refused
 *           too), INTERNAL (sim: an access outside a tensor)
 * threads   the executor's, at most one for each 512 KiB to be written; the caller's alone when
 *           that makes one, and in sim
 * cost      2 * num_tokens * (key row + value row) bytes moved; no allocation
 * numerics  EXACT
 * source    Ascend GatherPaKvCache; PyPTO-Gym AT-17
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_gather_run(struct pkv_context *context, const struct pkv_gather_plan *plan,
               const struct pkv_step *step, const struct pkv_cache *cache,
               const struct pkv_tensor *key, const struct pkv_tensor *value,
               struct pkv_error *error);

/* Part `part` of `num_parts` of the same work, on the calling thread. Any partition, same bytes.
 *
 * part       0 <= part < num_parts
 * num_parts  >= 1
 * others     as pkv_gather_run, the same ones in every part
 * effect     neighbouring rows of key and value, about as many in every part
 * errors     those of pkv_gather_run, and INVALID_ARGUMENT (part, num_parts)
 * threads    the caller's alone; each thread brings its own context
 * cost       its share of the bytes of pkv_gather_run, and the lengths of the sequences before it;
 *            no allocation
 * numerics   EXACT
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_gather_run_part(struct pkv_context *context, const struct pkv_gather_plan *plan,
                    const struct pkv_step *step, const struct pkv_cache *cache,
                    const struct pkv_tensor *key, const struct pkv_tensor *value, int64_t part,
                    int64_t num_parts, struct pkv_error *error);

struct pkv_gather_pa_kv_cache_options {
    size_t struct_size;
    int32_t key_layout;   /* enum pkv_layout */
    int32_t value_layout; /* enum pkv_layout */
    /* 0: seq_lens is [num_seqs + 1] running totals, the published default; 1: [num_seqs] lengths */
    int32_t seq_lens_are_plain;
    int32_t reserved; /* 0 */
};

/* The published operator in one call: describes the cache, checks the indices, reads.
 *
 * key_cache, value_cache  in, by layout (see cache.h); value_cache and value both NULL: key-only,
 *                         refused with PA_NZ; a 4-D PA_NZ key cache has the heads of a 3-D key, or
 *                         one head of kv_dim
 * block_tables            [num_seqs, max_num_blocks_per_seq] int32 or int64 in
 * seq_lens                [num_seqs + 1] running totals, the first one 0, or [num_seqs] lengths
 *                         (seq_lens_are_plain); int32 or int64 in
 * key, value              out, as pkv_gather_run, or [num_tokens, kv_dim] (the published form for
 *                         PA_NZ; taken with every layout)
 * seq_offset              [num_seqs] int32 or int64 in, nullable: 0; in tokens, any number >= 0:
 *                         the walk starts in the middle of a block if it says so. Ascend's kernels
 *                         divide it by block_size and drop the remainder; multiples of block_size
 *                         give the same result there and here
 * options                 in, nullable: NHD, running totals
 * effect                  as pkv_gather_run
 * errors                  of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK,
 *                         SHAPE, STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context, key,
 *                         key_cache, block_tables, seq_lens; one of value and value_cache without
 *                         the other), DTYPE, RANK, SHAPE, STRIDE, OVERLAP, UNSUPPORTED, OVERFLOW
 *                         (the caches, as pkv_cache_init), DTYPE, RANK, SHAPE, BLOCK_OUT_OF_RANGE,
 *                         POSITION_OUT_OF_RANGE, OVERFLOW (the indices, as pkv_step_set), DTYPE,
 *                         RANK, SHAPE, STRIDE, OVERLAP, INTERNAL (key and value, as
 *                         pkv_gather_run), INVALID_ARGUMENT (a layout, seq_lens_are_plain,
 *                         reserved; a negative length or offset, running totals that fall or do not
 *                         start at 0), STRUCT_SIZE
 * threads                 as pkv_gather_run
 * cost                    as pkv_gather_run, and one pass over the indices; no allocation
 * numerics                EXACT
 * source                  Ascend GatherPaKvCache
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_gather_pa_kv_cache(struct pkv_context *context, const struct pkv_tensor *key_cache,
                       const struct pkv_tensor *value_cache, const struct pkv_tensor *block_tables,
                       const struct pkv_tensor *seq_lens, const struct pkv_tensor *key,
                       const struct pkv_tensor *value, const struct pkv_tensor *seq_offset,
                       const struct pkv_gather_pa_kv_cache_options *options,
                       struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
