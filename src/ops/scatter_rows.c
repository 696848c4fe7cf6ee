/* SPDX-License-Identifier: MIT
 *
 * Scatter to many targets: by plan, step and run, or in one call. How caches are described is in
 * scatter_rows_plan.c, how rows are moved in scatter.c and scatter_columns.c.
 */
#include "ops/scatter_rows.h"

#include "base/checked.h"
#include "base/error.h"
#include "ops/plan.h"
#include "ops/scatter.h"

static enum pkv_status refuse_row(const struct pkv_tensor *source, int64_t pair, int64_t found,
                                  int64_t wanted, const char *function, struct pkv_error *error) {
    return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function,
                              pkv_scatter_rows_source_names[pair], source->ndim - 1, found, wanted,
                              "must make rows of as many elements as those of its cache");
}

/* Gives the source the heads of its cache, or the cache those of its source, where one has none. */
static enum pkv_status match_heads(struct pkv_tensor *source, struct pkv_cache_part *part,
                                   bool part_has_heads, int64_t pair, const char *function,
                                   struct pkv_error *error) {
    const int64_t row = part->row_bytes / part->element_bytes;
    if (source->ndim == 2) {
        if (source->shape[1] != row)
            return refuse_row(source, pair, source->shape[1], row, function, error);
        source->ndim = 3;
        source->shape[1] = part->num_heads;
        source->shape[2] = part->head_size;
        source->strides[2] = source->strides[1];
        source->strides[1] = part->head_size * source->strides[2];
    } else if (source->ndim == 3 && !part_has_heads) {
        int64_t of_source;
        if (!pkv_checked_mul(source->shape[1], source->shape[2], &of_source) || of_source != row)
            return refuse_row(source, pair, source->shape[2], row, function, error);
        pkv_cache_part_split_heads(part, source->shape[1]);
    }
    return PKV_STATUS_OK;
}

static enum pkv_status add_pair(struct pkv_scatter_job *job,
                                const struct pkv_scatter_rows_plan *plan,
                                struct pkv_cache_part *part, const struct pkv_tensor *given,
                                int64_t pair, struct pkv_error *error) {
    const char *name = pkv_scatter_rows_source_names[pair];
    struct pkv_tensor *source = pkv_scatter_job_source(job);
    enum pkv_status status =
        pkv_tensor_read(source, given, &(struct pkv_where){job->function, name, error});
    if (status != PKV_STATUS_OK)
        return status;
    if (source->ndim != 2 && source->ndim != 3)
        return pkv_error_set(error, PKV_STATUS_RANK, job->function, name, PKV_ERROR_NONE,
                             source->ndim, PKV_ERROR_NONE,
                             "must be [num_tokens, row] or [num_tokens, num_heads, head_size]");
    if (!plan->has_blocks)
        part->block_stride_bytes = job->step->block_size * part->token_stride_bytes;
    status = match_heads(source, part, plan->caches[pair].ndim == 4, pair, job->function, error);
    return status == PKV_STATUS_OK ? pkv_scatter_job_add_source(job, part, name, error) : status;
}

static enum pkv_status check_step(const struct pkv_scatter_rows_plan *plan,
                                  const struct pkv_step *step, const char *function,
                                  struct pkv_error *error) {
    if (!step->is_set || !step->has_slots)
        return pkv_error_set(error, PKV_STATUS_BAD_STATE, function, "step", PKV_ERROR_NONE,
                             PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "must be set with the indices that this operator reads");
    const int64_t num_slots = step->num_blocks * step->block_size;
    if (!plan->has_blocks && num_slots != plan->block_size)
        return pkv_error_set(error, PKV_STATUS_BAD_STATE, function, "step", PKV_ERROR_NONE,
                             num_slots, plan->block_size,
                             "was set for another number of slots; the caches'");
    if (plan->has_blocks &&
        (step->num_blocks != plan->num_blocks || step->block_size != plan->block_size))
        return pkv_refuse_geometry(step, plan->num_blocks, plan->block_size, function, error);
    return PKV_STATUS_OK;
}

/* The job, proved; parts must outlive it. */
static enum pkv_status build(struct pkv_scatter_job *job, struct pkv_cache_part *parts,
                             const struct pkv_context *context,
                             const struct pkv_scatter_rows_plan *plan, const struct pkv_step *step,
                             const struct pkv_tensor *sources, const struct pkv_tensor *caches,
                             const char *function, struct pkv_error *error) {
    enum pkv_status status = check_step(plan, step, function, error);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_rows_take_caches(plan, caches, parts, function, error);
    pkv_scatter_job_init(job, context, step, plan->run_mode, plan->store_policy, function);
    for (int64_t i = 0; i < plan->num_pairs && status == PKV_STATUS_OK; i++)
        status = add_pair(job, plan, &parts[i], &sources[i], i, error);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_job_finish(job, "slot_mapping", error);
    if (status == PKV_STATUS_OK)
        pkv_scatter_join_columns(job);
    return status;
}

static enum pkv_status prepare(struct pkv_scatter_job *job, struct pkv_cache_part *parts,
                               const struct pkv_context *context,
                               const struct pkv_scatter_rows_plan *plan,
                               const struct pkv_step *step, const struct pkv_tensor *sources,
                               const struct pkv_tensor *caches, const char *function,
                               struct pkv_error *error) {
    if (plan == NULL || step == NULL || sources == NULL || caches == NULL)
        return pkv_refuse_null(function,
                               plan == NULL      ? "plan"
                               : step == NULL    ? "step"
                               : sources == NULL ? "sources"
                                                 : "caches",
                               error);
    return build(job, parts, context, plan, step, sources, caches, function, error);
}

enum pkv_status pkv_scatter_rows_run(struct pkv_context *context,
                                     const struct pkv_scatter_rows_plan *plan,
                                     const struct pkv_step *step, const struct pkv_tensor *sources,
                                     const struct pkv_tensor *caches, struct pkv_error *error) {
    struct pkv_scatter_job job;
    struct pkv_cache_part parts[PKV_SCATTER_ROWS_MAX_PAIRS];
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    enum pkv_status status =
        prepare(&job, parts, context, plan, step, sources, caches, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_job_run(&job, &context->executor, &facts);
    return pkv_context_finish(context, status, &facts, error);
}

enum pkv_status pkv_scatter_rows_run_part(struct pkv_context *context,
                                          const struct pkv_scatter_rows_plan *plan,
                                          const struct pkv_step *step,
                                          const struct pkv_tensor *sources,
                                          const struct pkv_tensor *caches, int64_t part,
                                          int64_t num_parts, struct pkv_error *error) {
    struct pkv_scatter_job job;
    struct pkv_cache_part parts[PKV_SCATTER_ROWS_MAX_PAIRS];
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    enum pkv_status status = pkv_check_part(part, num_parts, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = prepare(&job, parts, context, plan, step, sources, caches, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_job_run_part(&job, part, num_parts, &facts);
    return pkv_context_finish(context, status, &facts, error);
}

static enum pkv_status scatter(struct pkv_context *context, const struct pkv_tensor *slot_mapping,
                               const struct pkv_tensor *sources, const struct pkv_tensor *caches,
                               int64_t num_pairs, const struct pkv_scatter_rows_options *options,
                               const char *function, struct pkv_error *error) {
    struct pkv_scatter_rows_options chosen;
    struct pkv_scatter_rows_plan plan;
    struct pkv_step step;
    struct pkv_scatter_job job;
    struct pkv_cache_part parts[PKV_SCATTER_ROWS_MAX_PAIRS];
    if (pkv_tensor_is_absent(slot_mapping) || sources == NULL || caches == NULL)
        return pkv_refuse_null(function,
                               sources == NULL  ? "sources"
                               : caches == NULL ? "caches"
                                                : "slot_mapping",
                               error);
    enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, function, "options", error);
    if (status == PKV_STATUS_OK)
        status =
            pkv_step_check_duplicates(chosen.duplicates, "options->duplicates", function, error);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_rows_plan_init(&plan, caches, num_pairs, chosen.store_policy, function,
                                            error);
    if (status != PKV_STATUS_OK)
        return status;
    plan.run_mode = context->run_mode;
    const struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .duplicates = chosen.duplicates,
        .slot_mapping = *slot_mapping,
    };
    pkv_step_init_bare(&step);
    status = pkv_step_set_indices(&step, &context->kernels, plan.num_blocks, plan.block_size,
                                  &indices, function, error);
    if (status == PKV_STATUS_OK)
        status = build(&job, parts, context, &plan, &step, sources, caches, function, error);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_job_run(&job, &context->executor, error);
    return status;
}

enum pkv_status pkv_scatter_rows(struct pkv_context *context, const struct pkv_tensor *slot_mapping,
                                 const struct pkv_tensor *sources, const struct pkv_tensor *caches,
                                 int64_t num_pairs, const struct pkv_scatter_rows_options *options,
                                 struct pkv_error *error) {
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    const enum pkv_status status =
        scatter(context, slot_mapping, sources, caches, num_pairs, options, __func__, &facts);
    return pkv_context_finish(context, status, &facts, error);
}
