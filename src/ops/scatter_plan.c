/* SPDX-License-Identifier: MIT
 *
 * Scatter by plan, step and run: static facts once, indices once a step, and a run a layer that
 * looks at pointers and shapes only.
 */
#include <pagedkv/scatter.h>

#include "base/allocator.h"
#include "base/error.h"
#include "ops/plan.h"
#include "ops/scatter.h"

struct pkv_scatter_plan {
    struct pkv_allocator allocator;
    struct pkv_cache cache; /* the pattern; its data pointers are not used */
    int32_t run_mode;
    int32_t cpu_level;
    int32_t copy_level;
    int32_t store_policy;
};

static enum pkv_status plan_create(struct pkv_scatter_plan **plan, struct pkv_context *context,
                                   const struct pkv_cache *cache,
                                   const struct pkv_scatter_options *options, const char *function,
                                   struct pkv_error *error) {
    struct pkv_scatter_options chosen;
    enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, function, "options", error);
    if (status == PKV_STATUS_OK)
        status = pkv_cache_check(cache, function, "cache", error);
    if (status == PKV_STATUS_OK)
        status = pkv_check_key_only(cache->key.layout, cache->value.data == NULL, "cache", function,
                                    error);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_check_store_policy(chosen.store_policy, function, error);
    if (status != PKV_STATUS_OK)
        return status;
    if (chosen.reserved != 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "options->reserved",
                             PKV_ERROR_NONE, chosen.reserved, 0, "must be");
    struct pkv_scatter_plan *made =
        pkv_alloc(&context->allocator, sizeof(*made), _Alignof(struct pkv_scatter_plan));
    if (made == NULL)
        return pkv_error_set(error, PKV_STATUS_OUT_OF_MEMORY, function, NULL, PKV_ERROR_NONE,
                             PKV_ERROR_NONE, (int64_t)sizeof(*made),
                             "the allocator has no memory of that many bytes");
    *made = (struct pkv_scatter_plan){
        .allocator = context->allocator,
        .cache = *cache,
        .run_mode = context->run_mode,
        .cpu_level = context->cpu_level,
        .copy_level = context->kernels.copy_level,
        .store_policy = chosen.store_policy,
    };
    *plan = made;
    return PKV_STATUS_OK;
}

enum pkv_status pkv_scatter_plan_create(struct pkv_scatter_plan **plan, struct pkv_context *context,
                                        const struct pkv_cache *cache,
                                        const struct pkv_scatter_options *options,
                                        struct pkv_error *error) {
    struct pkv_error facts;
    enum pkv_status status;
    facts.struct_size = sizeof(facts);
    if (plan)
        *plan = NULL;
    if (plan == NULL || context == NULL || cache == NULL)
        status = pkv_refuse_null(__func__,
                                 plan == NULL      ? "plan"
                                 : context == NULL ? "context"
                                                   : "cache",
                                 &facts);
    else
        status = plan_create(plan, context, cache, options, __func__, &facts);
    return pkv_context_finish(context, status, &facts, error);
}

void pkv_scatter_plan_destroy(struct pkv_scatter_plan *plan) {
    if (plan == NULL)
        return;
    const struct pkv_allocator allocator = plan->allocator;
    pkv_free(&allocator, plan);
}

enum pkv_status pkv_scatter_plan_explain(const struct pkv_scatter_plan *plan, int64_t num_tokens,
                                         int32_t num_threads, struct pkv_explanation *explanation,
                                         struct pkv_error *error) {
    if (plan == NULL || explanation == NULL)
        return pkv_refuse_null(__func__, plan == NULL ? "plan" : "explanation", error);
    struct pkv_explanation made;
    const enum pkv_status status =
        pkv_explain_rows(&made, &plan->cache, plan->run_mode, PKV_SCATTER_CHUNK_TOKENS, num_tokens,
                         num_threads, __func__, error);
    if (status != PKV_STATUS_OK)
        return status;
    const bool cached =
        pkv_scatter_copy_kind(plan->store_policy, (uint64_t)made.bytes_written) == PKV_COPY_CACHED;
    made.cpu_level = plan->cpu_level;
    made.key_kernel = pkv_explain_kernel(&plan->cache.key, plan->run_mode, plan->copy_level);
    made.value_kernel = pkv_explain_kernel(&plan->cache.value, plan->run_mode, plan->copy_level);
    made.store_policy = cached || plan->run_mode == PKV_RUN_MODE_SIM ? "cached" : "streaming";
    return pkv_struct_write(explanation, &made, sizeof(made), __func__, "explanation", error);
}

/* What run and run_part share: the job, proved. */
static enum pkv_status prepare(struct pkv_scatter_job *job, struct pkv_context *context,
                               const struct pkv_scatter_plan *plan, const struct pkv_step *step,
                               const struct pkv_cache *cache, const struct pkv_tensor *key,
                               const struct pkv_tensor *value, const char *function,
                               struct pkv_error *error) {
    if (plan == NULL || step == NULL || cache == NULL)
        return pkv_refuse_null(function,
                               plan == NULL   ? "plan"
                               : step == NULL ? "step"
                                              : "cache",
                               error);
    enum pkv_status status =
        pkv_check_cache_and_step(&plan->cache, cache, step, step->has_slots, function, error);
    if (status != PKV_STATUS_OK)
        return status;
    const bool has_value = cache->value.data != NULL;
    if (has_value != !pkv_tensor_is_absent(value))
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, function, "value", PKV_ERROR_NONE,
                             PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "must be NULL exactly when the cache is key-only");
    pkv_scatter_job_init(job, context, step, plan->run_mode, plan->store_policy, function);
    status = pkv_scatter_job_add(job, &cache->key, key, "key", error);
    if (status == PKV_STATUS_OK && has_value)
        status = pkv_scatter_job_add(job, &cache->value, value, "value", error);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_job_finish(job, "slot_mapping", error);
    return status;
}

enum pkv_status pkv_scatter_run(struct pkv_context *context, const struct pkv_scatter_plan *plan,
                                const struct pkv_step *step, const struct pkv_cache *cache,
                                const struct pkv_tensor *key, const struct pkv_tensor *value,
                                struct pkv_error *error) {
    struct pkv_scatter_job job;
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    enum pkv_status status =
        prepare(&job, context, plan, step, cache, key, value, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_job_run(&job, &context->executor, &facts);
    return pkv_context_finish(context, status, &facts, error);
}

enum pkv_status pkv_scatter_run_part(struct pkv_context *context,
                                     const struct pkv_scatter_plan *plan,
                                     const struct pkv_step *step, const struct pkv_cache *cache,
                                     const struct pkv_tensor *key, const struct pkv_tensor *value,
                                     int64_t part, int64_t num_parts, struct pkv_error *error) {
    struct pkv_scatter_job job;
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    enum pkv_status status = pkv_check_part(part, num_parts, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = prepare(&job, context, plan, step, cache, key, value, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_job_run_part(&job, part, num_parts, &facts);
    return pkv_context_finish(context, status, &facts, error);
}
