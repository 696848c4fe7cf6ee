/* SPDX-License-Identifier: MIT
 *
 * Gather: read the rows of sequences back, in token order, contiguous. EXACT. To read rows where
 * they lie, without a copy, walk with pkv_sequence_init instead.
 */
#ifndef PAGEDKV_GATHER_H
#define PAGEDKV_GATHER_H

#include <pagedkv/cache.h>
#include <pagedkv/context.h>
#include <pagedkv/explain.h>
#include <pagedkv/sequence.h>
#include <pagedkv/step.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_gather_plan;

/* As pkv_scatter_plan_create, for reading. */
PKV_MUST_USE PKV_API enum pkv_status pkv_gather_plan_create(struct pkv_gather_plan **plan,
                                                            struct pkv_context *context,
                                                            const struct pkv_cache *cache,
                                                            struct pkv_error *error);

/* NULL is fine. */
PKV_API void pkv_gather_plan_destroy(struct pkv_gather_plan *plan);

/* What a run of num_tokens tokens would do on an executor of num_threads threads.
 * errors  NULL_ARGUMENT, INVALID_ARGUMENT (negative), STRUCT_SIZE */
PKV_MUST_USE PKV_API enum pkv_status
pkv_gather_plan_explain(const struct pkv_gather_plan *plan, int64_t num_tokens, int32_t num_threads,
                        struct pkv_explanation *explanation, struct pkv_error *error);

/* Reads one layer: sequence b gives rows base[b] ... base[b] + length[b] - 1 of key and value,
 * where base is the running total of the lengths; its row t is token seq_offsets[b] + t.
 *
 * step    set with block_table and seq_lens, against a cache with the same num_blocks and
 * block_size cache   in; same layouts, dtypes, sizes and strides as the plan's key     [num_tokens,
 * num_kv_heads, head_size] out; any strides; num_tokens = the sum of the lengths value [num_tokens,
 * num_kv_heads, value head_size] out; NULL exactly when the cache is key-only errors NULL_ARGUMENT,
 * DTYPE, RANK, SHAPE, STRIDE, MISALIGNED, LAYOUT, OVERLAP, BAD_STATE threads the executor's, if
 * there are enough bytes to pay for waking them cost    2 * num_tokens * (key row + value row)
 * bytes moved; no allocation source  Ascend GatherPaKvCache; PyPTO-Gym AT-17
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_gather_run(struct pkv_context *context, const struct pkv_gather_plan *plan,
               const struct pkv_step *step, const struct pkv_cache *cache,
               const struct pkv_tensor *key, const struct pkv_tensor *value,
               struct pkv_error *error);

/* Part `part` of `num_parts` of the same work, on the calling thread. Any partition, same bytes.
 * errors  as pkv_gather_run, and INVALID_ARGUMENT */
PKV_MUST_USE PKV_API enum pkv_status
pkv_gather_run_part(struct pkv_context *context, const struct pkv_gather_plan *plan,
                    const struct pkv_step *step, const struct pkv_cache *cache,
                    const struct pkv_tensor *key, const struct pkv_tensor *value, int64_t part,
                    int64_t num_parts, struct pkv_error *error);

struct pkv_gather_pa_kv_cache_options {
    size_t struct_size;
    int32_t key_layout;         /* enum pkv_layout */
    int32_t value_layout;       /* enum pkv_layout */
    int32_t seq_lens_are_plain; /* 0: seq_lens is [num_seqs + 1] running totals, as published by
                                   default; 1: [num_seqs] lengths */
    int32_t reserved;           /* 0 */
};

/* The published operator in one call.
 *
 * key_cache, value_cache  in, by layout (see cache.h); value_cache and value both NULL: key-only
 * block_tables            [num_seqs, width] int32 or int64
 * seq_lens                [num_seqs + 1] running totals, the first one 0, or [num_seqs] lengths
 * key, value              out, [num_tokens, num_kv_heads, head_size] with any strides, or
 *                         [num_tokens, kv_dim] (the published form for PA_NZ; taken with every
 * layout) seq_offset              nullable, [num_seqs], in tokens, of any value: the walk starts in
 * the middle of a block if it says so. Ascend's kernels divide it by block_size and drop the
 *                         remainder; multiples of block_size give the same result there and here
 * options                 nullable
 * errors                  those of pkv_cache_init, pkv_step_set and pkv_gather_run
 * cost                    as pkv_gather_run, and one pass over the indices; no allocation
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
