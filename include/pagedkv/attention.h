/* SPDX-License-Identifier: MIT
 *
 * Paged attention: attention that reads keys and values where they lie. Decode, prefill, chunked
 * prefill and mixed batches are one call; so are plain, grouped-query and latent (MLA) heads.
 *
 * Token i of a sequence's queries stands at position p = seq_len - query_len + i. With q its query,
 * k and v the keys and values of its head's group, the score of position j is
 *
 *   s(j) = softcap(scale * q . k(j)) + alibi_slope * (j - p) + mask(j)
 *   softcap(x) = cap * tanh(x / cap)
 *
 * for the positions that it sees, minus infinity for the others, and
 *
 *   lse = log(sum over j of exp(s(j)) + exp(sink))      out = sum over j of exp(s(j) - lse) * v(j)
 */
#ifndef PAGEDKV_ATTENTION_H
#define PAGEDKV_ATTENTION_H

#include <pagedkv/cache.h>
#include <pagedkv/context.h>
#include <pagedkv/explain.h>
#include <pagedkv/step.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The arithmetic of the two products, q . k and weights . v. */
enum pkv_attention_products {
    /* Products and sums in float32; STABLE. On level avx512_bf16 its dot products multiply bfloat16
     * queries with bfloat16 keys: sums are float32 all the same, but numbers below 2^-126 count as
     * 0. */
    PKV_ATTENTION_PRODUCTS_F32 = 0,
    /* On level avx512_bf16 its dot products, for keys and for values that are bfloat16: queries and
     * weights are rounded to bfloat16, sums stay float32. About 1.3 times as fast in prefill,
     * errors near 2^-8. Elsewhere the same as F32; so are the values where fewer than 9 rows
     * (queries times query heads of a key head) are attended to at once, for that is quicker. */
    PKV_ATTENTION_PRODUCTS_BF16 = 1
};

/* The base of log-sum-exp. */
enum pkv_lse_base {
    PKV_LSE_BASE_E = 0,
    PKV_LSE_BASE_2 = 1 /* as FlashInfer's: log2 instead of log */
};

/* A zeroed struct: causal, one head for each key head, everything before a query is seen. */
struct pkv_paged_attention_options {
    size_t struct_size;
    int64_t num_heads; /* query heads, a multiple of num_kv_heads; 0: num_kv_heads */
    /* Without a value cache the values are the first so many elements of each key (MLA); 0: all of
     * them. With one: 0, or its head size. */
    int64_t value_head_size;
    int32_t query_dtype; /* PKV_DTYPE_F32, F16 or BF16; 0: that of the key cache */
    int32_t products;    /* enum pkv_attention_products */
    float scale;         /* 0: 1 / sqrt(head_size); else finite */
    float softcap;       /* 0: none; else from 2^-126 to 2^126 */
    int32_t non_causal;  /* 1: a query sees the positions after its own, too */
    int32_t lse_base;    /* enum pkv_lse_base */
    /* How many positions a query sees from its own on to the left, its own included: what other
     * libraries call window_left, and 1; 0: all. */
    int64_t max_visible_left;
    /* The same to the right, its own included: window_right, and 1; 0: all. Causal queries see
     * nothing after their own position all the same. */
    int64_t max_visible_right;
};

struct pkv_paged_attention_plan;

/* Takes the static facts: layouts, dtypes, sizes and strides of the cache (not its data), the
 * options, and the context's run mode. Immutable; any number of contexts may share it, each with
 * its own kernels; each but the context that makes it needs pkv_paged_attention_reserve once.
 *
 * plan     out; hand it to pkv_paged_attention_plan_destroy. NULL when the call fails
 * context  in/out: gets the scratch memory that the plan's runs need
 * cache    in: the pattern of every layer's cache that this plan will read; copied. float32,
 *          float16 or bfloat16, keys and values each their own; every layout; head sizes up to 576
 * options  in, nullable: see the struct
 * errors   NULL_ARGUMENT (plan, context, cache), DTYPE (a cache or query_dtype that is none of the
 *          three), SHAPE (a head size above 576), INVALID_ARGUMENT (an option out of its range),
 *          STRUCT_SIZE, OUT_OF_MEMORY, BAD_STATE (a cache that pkv_cache_init has not filled)
 * threads  the caller's alone
 * cost     one allocation for the plan, one for the scratch if the context has too little: with one
 *          thread about 25 KiB for each element of a value (3.4 MiB for 128, 12 MiB for MLA's 512),
 *          with more so much for each of twice the threads, 2048 at the most. A decode step touches
 *          a small part of it
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_paged_attention_plan_create(struct pkv_paged_attention_plan **plan, struct pkv_context *context,
                                const struct pkv_cache *cache,
                                const struct pkv_paged_attention_options *options,
                                struct pkv_error *error);

/* Frees it. NULL is fine. */
PKV_API void pkv_paged_attention_plan_destroy(struct pkv_paged_attention_plan *plan);

/* Gives another context the scratch memory that the plan's runs need: once, before its first run.
 * The scratch serves every plan that needs no more.
 *
 * errors   NULL_ARGUMENT (context, plan), OUT_OF_MEMORY
 * threads  the caller's alone
 * cost     one allocation if the context has too little, none otherwise
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_paged_attention_reserve(struct pkv_context *context,
                            const struct pkv_paged_attention_plan *plan, struct pkv_error *error);

/* What a run on this context with this step would do. The cache is that of the plan.
 *
 * context      in: its kernels and the threads of its executor
 * step         in: as pkv_paged_attention_run takes it
 * explanation  out; its struct_size is read
 * errors       NULL_ARGUMENT (context, plan, step, explanation), BAD_STATE (a step that is not set,
 *              lacks query_start_loc, or was set for another geometry), OVERFLOW (a sequence of
 *              more than 2^32 tokens, those before its offset included; 2^31 rows and more; bytes
 *              that 64 bits cannot count), STRUCT_SIZE
 * threads      any; the context is only read
 * cost         one pass over the queries and one over the units; no element of the cache is read,
 *              no allocation
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_paged_attention_explain(const struct pkv_context *context,
                            const struct pkv_paged_attention_plan *plan,
                            const struct pkv_step *step,
                            struct pkv_attention_explanation *explanation, struct pkv_error *error);

/* The tensors of one run. Optional ones may be absent (ndim 0, data NULL). Any strides. */
struct pkv_paged_attention_tensors {
    size_t struct_size;
    /* [num_tokens, num_heads, head_size] in, the plan's query_dtype */
    struct pkv_tensor query;
    /* [num_tokens, num_heads, value_head_size] out; query_dtype or float32 */
    struct pkv_tensor out;
    struct pkv_tensor lse;          /* optional: [num_tokens, num_heads] float32 out */
    struct pkv_tensor alibi_slopes; /* optional: [num_heads] float32 in */
    struct pkv_tensor sinks;        /* optional: [num_heads] float32 in */
    /* optional: [num_tokens, width] in, for the last `width` positions of the token's sequence;
     * earlier positions are not masked, columns before the first position are not read. BOOL: a
     * byte, 0 means unseen; float32: is added, minus infinity means unseen */
    struct pkv_tensor mask;
};

/* Attention of one layer.
 *
 * context   in/out: its scratch
 * step      in: set with block_table, seq_lens and query_start_loc, against a cache of the same
 *           num_blocks and block_size. The keys and values of the step's own tokens are in the
 *           cache already
 * cache     in: same layouts, dtypes, sizes and strides as the plan's
 * tensors   see the struct
 * effect    out and lse, whole. A query that sees nothing gets zeros and a log-sum-exp of minus
 *           infinity, or its sink; rounding is to nearest even
 * errors    of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE, STRIDE,
 *           MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context, plan, step, cache, tensors; query,
 *           out), DTYPE, RANK, SHAPE (not as the struct says), LAYOUT (not the plan's cache),
 *           BAD_STATE (a step that is not set, lacks query_start_loc, or was set for another
 *           geometry), STRIDE (elements of an output that share bytes), OVERLAP (an output shares
 *           bytes with another tensor, the cache or an index; one that only interleaves with them
 *           may be refused too), CAPACITY (a context without pkv_paged_attention_reserve), OVERFLOW
 *           (a sequence of more than 2^32 tokens, those before its offset included), STRUCT_SIZE,
 *           INTERNAL (sim: an access outside a tensor)
 * threads   the executor's; the caller's alone in sim, where part 0 does everything. Contexts are
 *           divided when there are no more units of work (up to 128 rows of a sequence, of all its
 *           key heads) than threads, and fewer than 256 tokens are shared
 * cost      reads the keys and values that the step's queries see once for each 128 rows (a row is
 *           a query and one of its heads), 2 * rows * positions * (head_size + value_head_size)
 *           flops; no allocation
 * numerics  BOUNDED: doc/numerics.md derives the bound. STABLE with PRODUCTS_F32: out and lse of a
 *           query have the same bytes for any number of threads and parts, any other sequences in
 *           the batch and their order, any block ids and block_size, any num_shared_tokens, any
 *           seq_offsets that hide no token from a query, and any cutting of a sequence's queries
 *           into steps. A masked or unseen position never has an
 *           effect, whatever its key and value hold; a visible one has none where its weight, or
 *           the weight of its tile of 256 tokens, underflows to 0
 * source    FlashAttention-2 (tiles), vLLM PagedAttention, FlashInfer; ALiBi: Press et al.; sinks:
 *           gpt-oss; soft cap: Gemma 2; MLA: DeepSeek-V2
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_paged_attention_run(struct pkv_context *context, const struct pkv_paged_attention_plan *plan,
                        const struct pkv_step *step, const struct pkv_cache *cache,
                        const struct pkv_paged_attention_tensors *tensors, struct pkv_error *error);

/* Part `part` of `num_parts` of the same work, on the calling thread. Any partition, same bytes.
 *
 * part       0 <= part < num_parts
 * num_parts  >= 1
 * others     as pkv_paged_attention_run, the same ones in every part
 * effect     the outputs of some queries and heads, about as much work in every part; parts may be
 *            empty: a query and a key head are never divided
 * errors     those of pkv_paged_attention_run, and INVALID_ARGUMENT (part, num_parts)
 * threads    the caller's alone; each thread brings its own context
 * cost       its share, and one pass over the lengths; no allocation
 * numerics   as pkv_paged_attention_run
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_paged_attention_run_part(struct pkv_context *context,
                             const struct pkv_paged_attention_plan *plan,
                             const struct pkv_step *step, const struct pkv_cache *cache,
                             const struct pkv_paged_attention_tensors *tensors, int64_t part,
                             int64_t num_parts, struct pkv_error *error);

struct pkv_merge_states_options {
    size_t struct_size;
    int32_t lse_base; /* enum pkv_lse_base, of all log-sum-exps */
    int32_t reserved; /* 0 */
};

/* Merges attention over disjoint sets of positions into attention over all of them:
 * lse = log(sum of exp(lse_i)), out = sum of exp(lse_i - lse) * out_i.
 *
 * outs        [num_states] in: each [num_tokens, num_heads, head_size] float32, float16 or
 *             bfloat16, any strides
 * lses        [num_states] in: each [num_tokens, num_heads] float32
 * num_states  >= 1
 * out         [num_tokens, num_heads, head_size] out, one of the three dtypes; may be one of outs
 *             itself (the same data, dtype and strides)
 * lse         nullable: [num_tokens, num_heads] float32 out; may be one of lses itself
 * options     in, nullable: natural logarithm
 * effect      out and lse. A state whose log-sum-exp is minus infinity, or so far below the largest
 *             that its weight is 0, does not count, whatever its out holds; if none counts, zeros
 *             and minus infinity. One that is plus infinity or NaN makes both NaN. Both run modes
 *             do the same
 * errors      of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *             STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context, outs, lses, out),
 *             INVALID_ARGUMENT (num_states, lse_base, reserved), DTYPE, RANK, SHAPE, STRIDE
 *             (outputs that share bytes), OVERLAP (an output shares bytes with an input in part, or
 *             with the other output), STRUCT_SIZE. The error's index, with OVERLAP its bound, is
 *             the number of the state; pkv_merge_state names it
 * threads     the caller's alone
 * cost        every out is read once, every lse twice and once more for each 64 elements of a head;
 *             no allocation
 * numerics    BOUNDED: doc/numerics.md; states are added in their order, in double, and rounded to
 *             float32 once
 * source      FlashInfer merge_state, merge_states
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_merge_states(struct pkv_context *context, const struct pkv_tensor *outs,
                 const struct pkv_tensor *lses, int64_t num_states, const struct pkv_tensor *out,
                 const struct pkv_tensor *lse, const struct pkv_merge_states_options *options,
                 struct pkv_error *error);

/* Two states: pkv_merge_states with outs {out_a, out_b} and lses {lse_a, lse_b}. */
PKV_MUST_USE PKV_API enum pkv_status
pkv_merge_state(struct pkv_context *context, const struct pkv_tensor *out_a,
                const struct pkv_tensor *lse_a, const struct pkv_tensor *out_b,
                const struct pkv_tensor *lse_b, const struct pkv_tensor *out,
                const struct pkv_tensor *lse, const struct pkv_merge_states_options *options,
                struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
