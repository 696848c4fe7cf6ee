/* SPDX-License-Identifier: MIT
 *
 * One call of paged attention on modelled data, from the cache's description to the answer: whole,
 * or part by part. Needs cmocka.
 */
#ifndef PAGEDKV_TESTS_ATTENTION_CALLS_H
#define PAGEDKV_TESTS_ATTENTION_CALLS_H

#include "attention_model.h"
#include "calls.h"

static inline struct pkv_paged_attention_options attn_options(const struct attn_problem *problem) {
    const struct attn_sizes *sizes = &problem->sizes;

    return (struct pkv_paged_attention_options){
        .struct_size = sizeof(struct pkv_paged_attention_options),
        .num_heads = sizes->num_heads,
        .value_head_size = sizes->value_head_size,
        .query_dtype = sizes->query_dtype,
        .products = problem->ref.has_bf16_products ? PKV_ATTENTION_PRODUCTS_BF16
                                                   : PKV_ATTENTION_PRODUCTS_F32,
        .scale = sizes->scale,
        .softcap = sizes->softcap,
        .non_causal = sizes->is_non_causal,
        .lse_base = sizes->is_base_2 ? PKV_LSE_BASE_2 : PKV_LSE_BASE_E,
        .max_visible_left = sizes->max_left,
        .max_visible_right = sizes->max_right,
    };
}

static inline struct pkv_step_indices attn_indices(const struct attn_call *call) {
    return (struct pkv_step_indices){
        .struct_size = sizeof(struct pkv_step_indices),
        .seq_lens_cumulative = call->seq_lens_cumulative,
        .block_table = call->block_table.tensor,
        .seq_lens = call->seq_lens.tensor,
        .seq_offsets = call->seq_offsets.tensor,
        .query_start_loc = call->query_start_loc.tensor,
        .num_shared_tokens = call->placement.num_shared,
    };
}

static inline struct pkv_paged_attention_tensors attn_tensors(const struct attn_call *call) {
    return (struct pkv_paged_attention_tensors){
        .struct_size = sizeof(struct pkv_paged_attention_tensors),
        .query = call->query.tensor,
        .out = call->out.tensor,
        .lse = call->lse,
        .alibi_slopes = call->slopes,
        .sinks = call->sinks,
        .mask = call->mask,
    };
}

/* num_parts 0: one run; else so many parts in random order. */
static inline void attn_call_run(struct attn_call *call, const struct attn_problem *problem,
                                 struct pkv_context *context, int64_t num_parts,
                                 struct test_rng *rng, struct attn_answer *answer) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_paged_attention_options options = attn_options(problem);
    struct pkv_paged_attention_tensors tensors = attn_tensors(call);
    struct pkv_step_indices indices = attn_indices(call);
    struct pkv_paged_attention_plan *plan = NULL;
    struct pkv_step *step = make_step(0, 0);
    struct pkv_cache cache;
    int64_t order[CALL_MAX_PARTS];

    attn_call_reset(call);
    CHECK_OK(init_cache(&cache, &call->cache, &error), &error);
    CHECK_OK(pkv_paged_attention_plan_create(&plan, context, &cache, &options, &error), &error);
    CHECK_OK(pkv_step_set(context, step, &cache, &indices, &error), &error);
    if (num_parts == 0) {
        CHECK_OK(pkv_paged_attention_run(context, plan, step, &cache, &tensors, &error), &error);
    }
    if (num_parts > 0) {
        test_rng_permutation(rng, order, num_parts);
    }
    for (int64_t i = 0; i < num_parts; i++) {
        CHECK_OK(pkv_paged_attention_run_part(context, plan, step, &cache, &tensors, order[i],
                                              num_parts, &error),
                 &error);
    }
    pkv_step_destroy(step);
    pkv_paged_attention_plan_destroy(plan);
    if (!attn_call_collect(call, problem, answer)) {
        fail_msg("bytes between the rows of out or lse were written");
    }
}

/* The same in one go, on fresh memory. */
static inline void attn_ask(const struct attn_problem *problem,
                            const struct attn_placement *placement, struct pkv_context *context,
                            int64_t num_parts, struct test_rng *rng, struct attn_answer *answer) {
    struct attn_call *call = attn_call_make(problem, placement, rng);

    attn_call_run(call, problem, context, num_parts, rng, answer);
    attn_call_free(call);
}

#endif
