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
    PKV_STORE_AUTO = 0,     /* cached up to 64 KiB of keys and values in a run, streaming above */
    PKV_STORE_CACHED = 1,   /* ordinary stores: best when the rows are in cache or read at once */
    PKV_STORE_STREAMING = 2 /* around the caches: best for rows that are not in cache */
};

struct pkv_scatter_options {
    size_t struct_size;
    int32_t store_policy; /* enum pkv_store_policy */
    int32_t reserved;     /* 0 */
};

struct pkv_scatter_plan;

/* Takes the static facts: layouts, dtypes, sizes and strides of the cache (not its data), and the
 * context's run mode. Immutable; any number of contexts may share it, each with its own kernels.
 *
 * plan     out; hand it to pkv_scatter_plan_destroy. NULL when the call fails
 * cache    in: the pattern of every layer's cache that this plan will write; copied
 * options  in, nullable: store policy AUTO
 * errors   NULL_ARGUMENT (plan, context, cache), INVALID_ARGUMENT (store_policy, reserved),
 *          STRUCT_SIZE, OUT_OF_MEMORY, BAD_STATE (a cache that pkv_cache_init has not filled),
 *          UNSUPPORTED (a key-only cache in PA_NZ, for which no scatter is published)
 * threads  the caller's alone
 * cost     one allocation, by the context's allocator; no element is read
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_plan_create(struct pkv_scatter_plan **plan, struct pkv_context *context,
                        const struct pkv_cache *cache, const struct pkv_scatter_options *options,
                        struct pkv_error *error);

/* Frees it. NULL is fine. */
PKV_API void pkv_scatter_plan_destroy(struct pkv_scatter_plan *plan);

/* What a run of num_tokens tokens would do in the context that made the plan, on an executor of
 * num_threads threads.
 *
 * num_tokens   >= 0
 * num_threads  >= 1
 * explanation  out; its struct_size is read
 * errors       NULL_ARGUMENT (plan, explanation), INVALID_ARGUMENT (num_tokens, num_threads),
 *              OVERFLOW (bytes of all rows), STRUCT_SIZE
 * threads      any
 * cost         arithmetic only; no allocation
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_scatter_plan_explain(const struct pkv_scatter_plan *plan,
                                                              int64_t num_tokens,
                                                              int32_t num_threads,
                                                              struct pkv_explanation *explanation,
                                                              struct pkv_error *error);

/* Writes one layer: the row of token t to slot_mapping[t], key and value alike.
 *
 * step      in: set with a slot_mapping, against a cache of the same num_blocks and block_size
 * cache     in/out; same layouts, dtypes, sizes and strides as the plan's
 * key       [num_tokens, num_kv_heads, head_size] in; any strides; dtype of the key cache
 * value     [num_tokens, num_kv_heads, value head_size] in; likewise; NULL exactly when the cache
 *           is key-only
 * effect    rows of the named slots; all other bytes of the cache stay as they are. A negative slot
 *           skips its token; of two tokens with the same slot the later stays (see enum
 *           pkv_duplicates); num_tokens 0 succeeds and does nothing
 * errors    of key and value those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *           STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context, plan, step, cache; a value
 *           missing, or given to a key-only cache), DTYPE (not that of its cache), RANK, SHAPE (not
 *           the number of slots, heads or elements of a head), LAYOUT (not the plan's cache),
 *           BAD_STATE (a step that is not set, has no slot_mapping, or was set for another
 *           geometry), OVERLAP (a row to be written shares bytes with key, value or slot_mapping;
 *           one that only interleaves with them may be refused too), INTERNAL (sim: an access
 *           outside a tensor)
 * threads   the executor's, at most one for each 512 KiB to be written; the caller's alone when
 *           that makes one, and in sim
 * cost      2 * num_tokens * (key row + value row) bytes moved; no allocation
 * numerics  EXACT
 * source    Ascend ScatterPaKvCache; PyPTO-Gym AT-16
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_run(struct pkv_context *context, const struct pkv_scatter_plan *plan,
                const struct pkv_step *step, const struct pkv_cache *cache,
                const struct pkv_tensor *key, const struct pkv_tensor *value,
                struct pkv_error *error);

/* Part `part` of `num_parts` of the same work, on the calling thread: for engines that already
 * stand on all their threads. All parts together, in any order and at the same time, write the same
 * bytes as one run.
 *
 * part       0 <= part < num_parts
 * num_parts  >= 1
 * others     as pkv_scatter_run, the same ones in every part
 * effect     some rows of the named slots; parts may be empty
 * errors     those of pkv_scatter_run, and INVALID_ARGUMENT (part, num_parts)
 * threads    the caller's alone; each thread brings its own context
 * cost       its share of the bytes of pkv_scatter_run, and one pass over all slots unless
 *            duplicates are excluded; no allocation
 * numerics   EXACT
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_run_part(struct pkv_context *context, const struct pkv_scatter_plan *plan,
                     const struct pkv_step *step, const struct pkv_cache *cache,
                     const struct pkv_tensor *key, const struct pkv_tensor *value, int64_t part,
                     int64_t num_parts, struct pkv_error *error);

/* How the rows lie in the source of pkv_scatter_pa_kv_cache, and which of them are written, as
 * published. */
enum pkv_scatter_mode {
    PKV_SCATTER_MODE_NONE = 0, /* key and value are [num_tokens, num_kv_heads, head_size] */
    /* key and value are 2-D and contiguous, of any two dimensions; the row of token t, kv_dim
     * elements with the heads of the cache, starts at element stride * t + offset of the tensor. */
    PKV_SCATTER_MODE_NCT = 1,
    /* The compressed modes. Each head of each sequence has a region of its own in the cache, and
     * its rows are thinned on the way there; see pkv_scatter_pa_kv_cache. With seq the length of
     * the sequence, w = compress_lens and o = compress_seq_offset: */
    PKV_SCATTER_MODE_ALIBI = 2, /* the last w tokens (w is what is kept) */
    PKV_SCATTER_MODE_ROPE = 3,  /* tokens before o, the mean of the w tokens from o on, the rest */
    PKV_SCATTER_MODE_OMNI = 4   /* tokens before o, and those from o + w on */
};

struct pkv_scatter_pa_kv_cache_options {
    size_t struct_size;
    int32_t key_layout;   /* enum pkv_layout */
    int32_t value_layout; /* enum pkv_layout */
    int32_t scatter_mode; /* enum pkv_scatter_mode */
    int32_t duplicates;   /* enum pkv_duplicates */
    int32_t store_policy; /* enum pkv_store_policy */
    int32_t reserved;     /* 0 */
    /* NCT alone, else 0. In elements, >= 0. */
    int64_t key_stride;   /* 0: the key's second dimension; the first is num_tokens then */
    int64_t value_stride; /* the value's own, not the key's; 0: likewise */
    int64_t key_offset;   /* from the tensor's first element */
    int64_t value_offset;
    /* The compressed modes alone, else NULL. int32 or int64, each its own. */
    const struct pkv_tensor *compress_lens; /* [num_seqs, num_heads] or [num_seqs * num_heads] */
    const struct pkv_tensor *compress_seq_offset; /* likewise; NULL in ALIBI */
    const struct pkv_tensor *seq_lens;            /* [num_seqs] */
};

/* The published operator in one call: describes the cache, checks the slots, writes.
 *
 * key, value              in, as pkv_scatter_run; NCT: 2-D contiguous, see enum pkv_scatter_mode;
 *                         compressed: see below
 * key_cache, value_cache  in/out, by layout (see cache.h); a 4-D PA_NZ key cache has the heads of
 *                         key, or, under NCT, one head of kv_dim
 * slot_mapping            [num_tokens] int32 or int64 in; compressed: see below
 * value, value_cache      both NULL: key-only, refused with PA_NZ
 * options                 in, nullable: NHD, mode NONE, last token wins, store policy AUTO
 * effect                  as pkv_scatter_run
 * errors                  of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK,
 *                         SHAPE, STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context, key,
 *                         key_cache, slot_mapping; one of value and value_cache without the other;
 *                         a tensor of the options that the mode lacks or does not take), DTYPE,
 *                         RANK, SHAPE, STRIDE, OVERLAP, UNSUPPORTED, OVERFLOW (the caches, as
 *                         pkv_cache_init), DTYPE, RANK, SLOT_OUT_OF_RANGE, DUPLICATE_SLOT
 *                         (slot_mapping, as pkv_step_set), DTYPE, RANK, SHAPE, OVERLAP, INTERNAL
 *                         (key and value, as pkv_scatter_run; NCT: RANK not 2-D, STRIDE not
 *                         contiguous, SHAPE too few elements), INVALID_ARGUMENT (an unknown enum
 *                         value, reserved, a stride or offset that is negative or not for NCT),
 *                         STRUCT_SIZE
 * threads                 as pkv_scatter_run
 * cost                    as pkv_scatter_run, and the passes of pkv_step_set over slot_mapping; no
 *                         allocation
 * numerics                EXACT
 * source                  Ascend ScatterPaKvCache, scenarios Norm, PA_NZ, NHSD, Nct, key-only, and
 *                         Alibi, Rope, Omni
 *
 * In the compressed modes each pair of a sequence b and a head h owns a region: the rows of
 * slot_mapping[b, h], slot_mapping[b, h] + 1, ... in a cache of one head, over the ends of blocks.
 *
 * key, value              [num_tokens, num_heads, head_size] in: the sequences one after the other;
 *                         or [num_seqs, padded_len, num_heads, head_size]: the first seq_lens[b]
 *                         tokens of each. Any strides. Head sizes may differ, the rest may not
 * key_cache, value_cache  [num_blocks, block_size, 1, head_size] in/out, NHD
 * slot_mapping            [num_seqs, num_heads] or [num_seqs * num_heads] int32 or int64 in
 * effect                  With w and o those of the region and seq the length of its sequence:
 *                         ALIBI writes tokens seq - w ... seq - 1. ROPE writes tokens 0 ... o - 1,
 *                         then in one row the mean of tokens o ... o + w - 1, then tokens o + w ...
 *                         seq - 1; OMNI the same without the mean. In both, w = 0, o = -1 or o =
 *                         seq means all tokens as they are, and the other number is not looked at.
 *                         pkv_scatter_compressed_lens tells how many rows that makes. A negative
 *                         slot skips its region: nothing is written, and its w and o are not looked
 *                         at. No region may lie in another one, whatever options->duplicates says
 * errors                  besides those above: DTYPE, RANK, SHAPE (the index tensors; caches with
 *                         more than one head), INVALID_ARGUMENT (seq_lens negative, above
 *                         padded_len, or with a sum that is not num_tokens; compress_lens negative;
 *                         of a window, w above seq, o below 0 or above seq - w),
 *                         SLOT_OUT_OF_RANGE (a region that leaves the cache), OVERLAP (two regions
 *                         that share a slot; a region that shares bytes with an input),
 *                         UNSUPPORTED (another layout than NHD; a region that asks for a mean of
 *                         hifloat8), OVERFLOW (a mean of more than 2^31 - 1 integers)
 * threads                 the executor's, at most one for each 512 KiB to be read; a window is one
 *                         thread's
 * cost                    every token that is written or in a window read once, every row written
 *                         once; regions that do not ascend in memory are compared in one pass over
 *                         the indices for each 1,024 of them; no allocation
 * numerics                EXACT. The mean of f32, f16, bf16, f8_e4m3fn and f8_e5m2 is a float32 sum
 *                         in the order of tokens, from 0, divided by (float)w and rounded to
 *                         nearest even, fp8 saturating; a mean that is not a number is the positive
 *                         quiet NaN. That of integers is an exact sum, divided toward zero
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_pa_kv_cache(struct pkv_context *context, const struct pkv_tensor *key,
                        const struct pkv_tensor *key_cache, const struct pkv_tensor *slot_mapping,
                        const struct pkv_tensor *value, const struct pkv_tensor *value_cache,
                        const struct pkv_scatter_pa_kv_cache_options *options,
                        struct pkv_error *error);

/* How many rows pkv_scatter_pa_kv_cache writes to each region in a compressed mode: w in ALIBI; in
 * OMNI seq - w and in ROPE seq - w + 1, or seq where w = 0, o = -1 or o = seq.
 *
 * scatter_mode         PKV_SCATTER_MODE_ALIBI, _ROPE or _OMNI
 * seq_lens             [num_seqs] int32 or int64 in
 * compress_lens        [num_seqs, num_heads] or [num_seqs * num_heads] int32 or int64 in
 * compress_seq_offset  likewise; NULL in ALIBI
 * compressed_lens      likewise, out
 * effect               compressed_lens alone; as it was when the call fails
 * errors               of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK,
 *                      SHAPE, STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (a tensor that the
 *                      mode lacks or does not take), INVALID_ARGUMENT (scatter_mode; seq_lens
 *                      negative; compress_lens negative; of a window, w above seq, o below 0 or
 *                      above seq - w), DTYPE (neither int32 nor int64), RANK, SHAPE (not one
 *                      number for each head of each sequence), STRIDE (results that share bytes),
 *                      OVERLAP (compressed_lens shares bytes with an input; one that only
 *                      interleaves may be refused too), OVERFLOW (a length that does not fit its
 *                      dtype)
 * threads              any; no state
 * cost                 three passes over the numbers; no allocation
 * source               Ascend ScatterPaKvCache, scenarios Alibi, Rope, Omni
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_compressed_lens(int32_t scatter_mode, const struct pkv_tensor *seq_lens,
                            const struct pkv_tensor *compress_lens,
                            const struct pkv_tensor *compress_seq_offset,
                            const struct pkv_tensor *compressed_lens, struct pkv_error *error);

struct pkv_scatter_update_options {
    size_t struct_size;
    int32_t duplicates;   /* enum pkv_duplicates */
    int32_t store_policy; /* enum pkv_store_policy */
};

/* Overwrites rows of input with rows of src, at row numbers taken from index, in place.
 *
 *   2-D  input [rows, d], index [b, s], src [b * s, d]
 *   3-D  input [1, rows, d], index [b, s], src [1, b * s, d]: the 2-D form in a wrapper
 *   4-D  input [num_blocks, block_size, n, d], index [b, s], src [b, s, n, d]; a row has n * d
 *        elements, and rows = num_blocks * block_size
 *
 * input     in/out; one of the twelve dtypes of a cache; any strides by which the last axis is
 *           adjacent and no two elements share bytes
 * dim       -2
 * index     [b, s] int16, int32 or int64 in; a negative entry skips its row; entries in equal steps
 *           over its two axes, as those of a contiguous tensor are
 * src       in; rank and dtype of input; any strides, but in 4-D with its rows in equal steps over
 *           the first two axes
 * options   in, nullable: last entry wins, store policy AUTO
 * effect    the named rows; all other bytes of input stay as they are. An index without entries,
 *           and rows without elements in input and src, succeed and do nothing; an input without
 *           rows takes an index of negative entries alone
 * errors    of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE, STRIDE,
 *           MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context), INVALID_ARGUMENT (dim, duplicates,
 *           store_policy), DTYPE (src not that of input; none of the twelve; index none of its
 *           three), RANK (not one of the forms above), SHAPE (likewise),
 *           STRIDE (last axis of input not adjacent, its elements share bytes; index or src not in
 *           equal steps), SLOT_OUT_OF_RANGE (target >= rows), DUPLICATE_SLOT (under REJECT),
 *           OVERLAP (a row to be written shares bytes with src or index; one that only interleaves
 *           with them may be refused too), STRUCT_SIZE, INTERNAL (sim: an access
 *           outside a tensor)
 * threads   as pkv_scatter_run
 * cost      2 * b * s rows moved, and the passes of pkv_step_set over index; no allocation
 * numerics  EXACT
 * source    PyPTO scatter_update
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_scatter_update(struct pkv_context *context, const struct pkv_tensor *input, int32_t dim,
                   const struct pkv_tensor *index, const struct pkv_tensor *src,
                   const struct pkv_scatter_update_options *options, struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
