/* SPDX-License-Identifier: MIT
 *
 * Scatter: write the rows of new tokens to their slots, in place. EXACT: a scatter moves bytes, and
 * the bytes are the same in every run mode, on every CPU level and for any number of threads.
 *
 * Three ways in, one result: pkv_scatter_run for engines (plan and step made before),
 * pkv_scatter_pa_kv_cache and pkv_scatter_update for single calls in the published argument order.
 */
#ifndef PAGEDKV_SCATTER_H
#define PAGEDKV_SCATTER_H

#include <pagedkv/cache.h>
#include <pagedkv/context.h>
#include <pagedkv/explain.h>
#include <pagedkv/step.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which store instructions write the cache. The bytes are the same. */
enum pkv_store_policy {
    PKV_STORE_AUTO = 0,     /* cached up to 16 tokens, streaming above */
    PKV_STORE_CACHED = 1,   /* ordinary stores: best when the rows are in cache or read at once */
    PKV_STORE_STREAMING = 2 /* around the caches: best for rows that are not in cache */
};

struct pkv_scatter_options {
    size_t struct_size;
    int32_t store_policy; /* enum pkv_store_policy */
    int32_t reserved;     /* 0 */
};

struct pkv_scatter_plan;

/* Takes the static facts: layouts, dtypes, sizes and strides of the cache (not its data), the
 * context's run mode and kernels. Immutable; any number of contexts may share it.
 *
 * plan     out; hand it to pkv_scatter_plan_destroy
 * cache    the pattern of every layer's cache that this plan will write
 * options  nullable
 * errors   NULL_ARGUMENT, INVALID_ARGUMENT, STRUCT_SIZE, OUT_OF_MEMORY
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_plan_create(struct pkv_scatter_plan **plan, struct pkv_context *context,
                        const struct pkv_cache *cache, const struct pkv_scatter_options *options,
                        struct pkv_error *error);

/* NULL is fine. */
PKV_API void pkv_scatter_plan_destroy(struct pkv_scatter_plan *plan);

/* What a run of num_tokens tokens would do on an executor of num_threads threads.
 * errors  NULL_ARGUMENT, INVALID_ARGUMENT (negative), STRUCT_SIZE */
PKV_MUST_USE PKV_API enum pkv_status pkv_scatter_plan_explain(const struct pkv_scatter_plan *plan,
                                                              int64_t num_tokens,
                                                              int32_t num_threads,
                                                              struct pkv_explanation *explanation,
                                                              struct pkv_error *error);

/* Writes one layer: the row of token t to slot_mapping[t], key and value alike.
 *
 * step     set against a cache with the same num_blocks and block_size
 * cache    in/out; same layouts, dtypes, sizes and strides as the plan's
 * key      [num_tokens, num_kv_heads, head_size] in; any strides; dtype of the key cache
 * value    [num_tokens, num_kv_heads, value head_size] in; NULL exactly when the cache is key-only
 * effect   rows of the named slots, all other bytes of the cache stay as they are; a negative slot
 * skips its token; of two tokens with the same slot the later stays (see enum pkv_duplicates);
 *          num_tokens 0 succeeds and does nothing
 * errors   NULL_ARGUMENT, DTYPE, RANK, SHAPE, STRIDE, MISALIGNED, LAYOUT (not the plan's cache),
 * OVERLAP (a row to be written lies in key, value or the slot mapping), BAD_STATE (a step without a
 * slot_mapping, or set for another geometry) threads  the executor's, if there are enough tokens to
 * pay for waking them; the caller's alone otherwise cost     2 * num_tokens * (key row + value row)
 * bytes moved; no allocation source   Ascend ScatterPaKvCache; PyPTO-Gym AT-16
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_run(struct pkv_context *context, const struct pkv_scatter_plan *plan,
                const struct pkv_step *step, const struct pkv_cache *cache,
                const struct pkv_tensor *key, const struct pkv_tensor *value,
                struct pkv_error *error);

/* Part `part` of `num_parts` of the same work, on the calling thread: for engines that already
 * stand on all their threads. All parts together, in any order and at the same time, write the same
 * bytes as one run. Each caller brings its own context. errors  as pkv_scatter_run, and
 * INVALID_ARGUMENT (part outside [0, num_parts), num_parts below 1) */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_run_part(struct pkv_context *context, const struct pkv_scatter_plan *plan,
                     const struct pkv_step *step, const struct pkv_cache *cache,
                     const struct pkv_tensor *key, const struct pkv_tensor *value, int64_t part,
                     int64_t num_parts, struct pkv_error *error);

/* How the rows lie in the source of pkv_scatter_pa_kv_cache, as published. */
enum pkv_scatter_mode {
    PKV_SCATTER_MODE_NONE = 0, /* key and value are [num_tokens, num_kv_heads, head_size] */
    PKV_SCATTER_MODE_NCT = 1   /* key and value are 2-D [num_tokens, row] or wider, heads from the
                                  cache; the   row of token t starts at element stride * t + offset */
};

struct pkv_scatter_pa_kv_cache_options {
    size_t struct_size;
    int32_t key_layout;   /* enum pkv_layout */
    int32_t value_layout; /* enum pkv_layout */
    int32_t scatter_mode; /* enum pkv_scatter_mode */
    int32_t duplicates;   /* enum pkv_duplicates */
    int32_t store_policy; /* enum pkv_store_policy */
    int32_t reserved;     /* 0 */
    int64_t key_stride;   /* NCT, in elements, > 0; 0: the key's own row length */
    int64_t value_stride; /* NCT, likewise for the value: its own stride, not the key's */
    int64_t key_offset;   /* NCT, in elements from the tensor's first, >= 0 */
    int64_t value_offset;
};

/* The published operator in one call: describes the cache, checks the slots, writes.
 *
 * key, value              as pkv_scatter_run; NCT: 2-D contiguous tensors, read in rows as above
 * key_cache, value_cache  in/out, by layout (see cache.h)
 * slot_mapping            [num_tokens] int32 or int64
 * value, value_cache      both NULL: key-only, refused with PA_NZ
 * options                 nullable: NHD, mode NONE, last token wins
 * errors                  those of pkv_cache_init, pkv_step_set and pkv_scatter_run
 * cost                    as pkv_scatter_run, and one pass over slot_mapping; no allocation
 * source                  Ascend ScatterPaKvCache, scenarios Norm, PA_NZ, NHSD, Nct, key-only
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_pa_kv_cache(struct pkv_context *context, const struct pkv_tensor *key,
                        const struct pkv_tensor *key_cache, const struct pkv_tensor *slot_mapping,
                        const struct pkv_tensor *value, const struct pkv_tensor *value_cache,
                        const struct pkv_scatter_pa_kv_cache_options *options,
                        struct pkv_error *error);

struct pkv_scatter_update_options {
    size_t struct_size;
    int32_t duplicates;   /* enum pkv_duplicates */
    int32_t store_policy; /* enum pkv_store_policy */
};

/* Overwrites rows of input with rows of src, at row numbers taken from index, in place.
 *
 *   2-D  input [rows, d], index [b, s], src [b * s, d]
 *   4-D  input [num_blocks, block_size, n, d], index [b, s], src [b, s, n, d]; a row is n * d
 * elements 3-D  input [1, rows, d], index [b, s], src [1, b * s, d]: the 2-D form in a wrapper
 *
 * input   in/out; any strides that keep the elements of a row's last axis adjacent
 * dim     -2
 * index   [b, s] int16, int32 or int64; a negative entry skips its row
 * src     in; rank and dtype of input; any strides
 * errors  INVALID_ARGUMENT (dim), RANK, SHAPE, DTYPE, STRIDE, SLOT_OUT_OF_RANGE (target >= rows),
 * OVERLAP, DUPLICATE_SLOT, NULL_ARGUMENT, MISALIGNED, OVERFLOW, STRUCT_SIZE; nothing is written
 * then effect  named rows only; duplicates by options; empty tensors are a no-op that succeeds cost
 * 2 * b * s rows moved, one pass over index; no allocation source  PyPTO scatter_update
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_update(struct pkv_context *context, const struct pkv_tensor *input, int32_t dim,
                   const struct pkv_tensor *index, const struct pkv_tensor *src,
                   const struct pkv_scatter_update_options *options, struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
