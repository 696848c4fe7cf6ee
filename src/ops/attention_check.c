/* SPDX-License-Identifier: MIT
 *
 * The checks of one run of paged attention.
 */
#include "base/error.h"
#include "geometry/cache.h"
#include "geometry/strided.h"
#include "ops/attention.h"
#include "ops/plan.h"

/* Which tensor, and what it must be. */
struct wanted {
    const char *name;
    const struct pkv_tensor *given;
    struct pkv_tensor *resolved;
    bool is_optional;
    int32_t ndim;
    int64_t shape[3]; /* -1: any */
};

static enum pkv_status read_tensor(const struct wanted *wanted, const char *function,
                                   struct pkv_error *error) {
    static const char *const rules[4] = {"", "must have one axis", "must have two axes",
                                         "must have three axes"};
    *wanted->resolved = (struct pkv_tensor){0};
    if (wanted->is_optional && pkv_tensor_is_absent(wanted->given))
        return PKV_STATUS_OK;
    if (pkv_tensor_is_absent(wanted->given))
        return pkv_refuse_null(function, wanted->name, error);
    const enum pkv_status status = pkv_tensor_read(
        wanted->resolved, wanted->given, &(struct pkv_where){function, wanted->name, error});
    if (status != PKV_STATUS_OK)
        return status;
    const struct pkv_tensor *tensor = wanted->resolved;
    if (tensor->ndim != wanted->ndim)
        return pkv_error_set(error, PKV_STATUS_RANK, function, wanted->name, PKV_ERROR_NONE,
                             tensor->ndim, wanted->ndim, rules[wanted->ndim]);
    for (int32_t i = 0; i < wanted->ndim; i++) {
        if (wanted->shape[i] >= 0 && tensor->shape[i] != wanted->shape[i])
            return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function, wanted->name, i,
                                      tensor->shape[i], wanted->shape[i],
                                      "must be what the step and the plan say");
    }
    return PKV_STATUS_OK;
}

static enum pkv_status read_tensors(struct pkv_attention_job *job,
                                    const struct pkv_paged_attention_tensors *tensors,
                                    struct pkv_error *error) {
    const int64_t num_tokens = job->step->num_queries, num_heads = job->plan->num_heads;
    const struct wanted all[] = {
        {"query",
         &tensors->query,
         &job->query,
         false,
         3,
         {num_tokens, num_heads, job->plan->head_size}},
        {"out",
         &tensors->out,
         &job->out,
         false,
         3,
         {num_tokens, num_heads, job->plan->value_head_size}},
        {"lse", &tensors->lse, &job->lse, true, 2, {num_tokens, num_heads}},
        {"alibi_slopes", &tensors->alibi_slopes, &job->alibi_slopes, true, 1, {num_heads}},
        {"sinks", &tensors->sinks, &job->sinks, true, 1, {num_heads}},
        {"mask", &tensors->mask, &job->mask, true, 2, {num_tokens, -1}},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const enum pkv_status status = read_tensor(&all[i], job->function, error);
        if (status != PKV_STATUS_OK)
            return status;
    }
    return PKV_STATUS_OK;
}

static enum pkv_status check_dtype(const struct pkv_attention_job *job, const char *name,
                                   const struct pkv_tensor *tensor, int32_t a, int32_t b,
                                   const char *rule, struct pkv_error *error) {
    if (tensor->ndim == 0 || tensor->dtype == a || tensor->dtype == b)
        return PKV_STATUS_OK;
    return pkv_error_set(error, PKV_STATUS_DTYPE, job->function, name, PKV_ERROR_NONE,
                         tensor->dtype, a, rule);
}

static enum pkv_status check_dtypes(const struct pkv_attention_job *job, struct pkv_error *error) {
    const int32_t query = job->plan->query_dtype, f32 = PKV_DTYPE_F32;
    enum pkv_status status = check_dtype(job, "query", &job->query, query, query,
                                         "must have the plan's query_dtype", error);
    if (status == PKV_STATUS_OK)
        status = check_dtype(job, "out", &job->out, query, f32,
                             "must have the plan's query_dtype, or be float32", error);
    if (status == PKV_STATUS_OK)
        status = check_dtype(job, "lse", &job->lse, f32, f32, "must be float32", error);
    if (status == PKV_STATUS_OK)
        status = check_dtype(job, "alibi_slopes", &job->alibi_slopes, f32, f32, "must be float32",
                             error);
    if (status == PKV_STATUS_OK)
        status = check_dtype(job, "sinks", &job->sinks, f32, f32, "must be float32", error);
    if (status == PKV_STATUS_OK)
        status = check_dtype(job, "mask", &job->mask, f32, PKV_DTYPE_BOOL,
                             "must be float32 or bool", error);
    return status;
}

static struct pkv_strided table_bytes(const struct pkv_step *step) {
    struct pkv_strided table = pkv_vector_bytes(&step->table_row);
    pkv_strided_add(&table, step->num_seqs,
                    step->table_row_stride * pkv_dtype_bytes(step->table_row.dtype));
    return table;
}

/* What is written: out and lse. What must not be touched by that: everything that is read, and each
 * other. */
static enum pkv_status check_overlap(const struct pkv_attention_job *job, struct pkv_error *error) {
    const struct pkv_tensor *const inputs[] = {&job->query, &job->alibi_slopes, &job->sinks,
                                               &job->mask};
    const struct pkv_tensor *const outputs[] = {&job->out, &job->lse};
    static const char *const names[] = {"out", "lse"};
    const struct pkv_cache *cache = job->cache;
    struct pkv_strided read[10] = {
        table_bytes(job->step),
        pkv_vector_bytes(&job->step->seq_lens),
        pkv_vector_bytes(&job->step->query_start_loc),
        pkv_cache_part_bytes(&cache->key, cache->num_blocks, cache->block_size),
    };
    int32_t num_read = 4;
    if (job->step->seq_offsets.data)
        read[num_read++] = pkv_vector_bytes(&job->step->seq_offsets);
    if (cache->value.data)
        read[num_read++] =
            pkv_cache_part_bytes(&cache->value, cache->num_blocks, cache->block_size);
    for (int32_t i = 0; i < 4; i++) {
        if (inputs[i]->data)
            read[num_read++] = pkv_strided_from_tensor(inputs[i]);
    }
    const struct pkv_strided out = pkv_strided_from_tensor(&job->out);
    for (int32_t i = 0; i < 2 && outputs[i]->data; i++) {
        const struct pkv_strided written = pkv_strided_from_tensor(outputs[i]);
        if (!pkv_strided_is_injective(&written))
            return pkv_error_set(error, PKV_STATUS_STRIDE, job->function, names[i], PKV_ERROR_NONE,
                                 PKV_ERROR_NONE, PKV_ERROR_NONE,
                                 "has strides by which elements share bytes, or interleave");
        bool meets = i == 1 && pkv_strided_may_overlap(&out, &written);
        for (int32_t j = 0; j < num_read; j++)
            meets = meets || pkv_strided_may_overlap(&written, &read[j]);
        if (meets)
            return pkv_error_set(error, PKV_STATUS_OVERLAP, job->function, names[i], PKV_ERROR_NONE,
                                 PKV_ERROR_NONE, PKV_ERROR_NONE,
                                 "must not share bytes with a cache, an input or another output");
    }
    return PKV_STATUS_OK;
}

/* The merge tree has room for so many tokens. */
static enum pkv_status check_lengths(const struct pkv_attention_job *job, struct pkv_error *error) {
    const int64_t limit = (int64_t)PKV_ATTENTION_TILE << PKV_ATTENTION_MAX_TILE_BITS;
    const struct pkv_step *step = job->step;
    if (step->table_row.count <= limit / step->block_size)
        return PKV_STATUS_OK;
    for (int64_t b = 0; b < step->num_seqs; b++) {
        if (pkv_step_seq_len(step, b) > 0 && pkv_step_seq_end(step, b) > limit)
            return pkv_error_set(error, PKV_STATUS_OVERFLOW, job->function, "seq_lens", b,
                                 pkv_step_seq_end(step, b), limit,
                                 "must, with its offset, be at most");
    }
    return PKV_STATUS_OK;
}

/* Dot products of bfloat16 keys are chosen for what the queries are, never for how many there are:
 * a decode step and a prefill have the same bytes. */
static void choose_products(struct pkv_attention_job *job) {
    const struct pkv_kernels *kernels = job->kernels;
    const bool may_round = job->plan->products == PKV_ATTENTION_PRODUCTS_BF16;
    const bool has_bf16_queries = job->plan->query_dtype == PKV_DTYPE_BF16 || may_round;
    const bool has_bf16_keys = job->cache->key.dtype == PKV_DTYPE_BF16;
    const bool has_dots = has_bf16_queries && has_bf16_keys && kernels->attention_scores_dot;
    job->pair = has_dots ? kernels->attention_pair : NULL;
    job->scores = has_dots
                      ? kernels->attention_scores_dot
                      : kernels->attention_scores[pkv_attention_type_of(job->cache->key.dtype)];
    job->values = kernels->attention_values[pkv_attention_type_of(job->value.dtype)];
    job->values_dot =
        may_round && job->value.dtype == PKV_DTYPE_BF16 ? kernels->attention_values_dot : NULL;
}

enum pkv_status pkv_attention_job_init(struct pkv_attention_job *job,
                                       const struct pkv_context *context,
                                       const struct pkv_paged_attention_plan *plan,
                                       const struct pkv_step *step, const struct pkv_cache *cache,
                                       const char *function, struct pkv_error *error) {
    const enum pkv_status status =
        pkv_check_cache_and_step(&plan->cache, cache, step, step->has_queries, function, error);
    if (status != PKV_STATUS_OK)
        return status;
    *job = (struct pkv_attention_job){
        .plan = plan,
        .kernels = &context->kernels,
        .step = step,
        .cache = cache,
        .value = cache->value.data ? cache->value : cache->key,
        .function = function,
        .query_type = pkv_attention_type_of(plan->query_dtype),
        .shared_tiles = step->num_seqs > 1 ? step->num_shared_tokens / PKV_ATTENTION_TILE : 0,
    };
    choose_products(job);
    return check_lengths(job, error);
}

enum pkv_status pkv_attention_prepare(struct pkv_attention_job *job,
                                      const struct pkv_context *context,
                                      const struct pkv_paged_attention_plan *plan,
                                      const struct pkv_step *step, const struct pkv_cache *cache,
                                      const struct pkv_paged_attention_tensors *tensors,
                                      const char *function, struct pkv_error *error) {
    struct pkv_paged_attention_tensors given;
    if (plan == NULL || step == NULL || cache == NULL || tensors == NULL)
        return pkv_refuse_null(function,
                               plan == NULL    ? "plan"
                               : step == NULL  ? "step"
                               : cache == NULL ? "cache"
                                               : "tensors",
                               error);
    enum pkv_status status =
        pkv_struct_read(&given, sizeof(given), tensors, function, "tensors", error);
    if (status == PKV_STATUS_OK)
        status = pkv_attention_job_init(job, context, plan, step, cache, function, error);
    if (status == PKV_STATUS_OK)
        status = read_tensors(job, &given, error);
    if (status == PKV_STATUS_OK)
        status = check_dtypes(job, error);
    if (status == PKV_STATUS_OK)
        status = check_overlap(job, error);
    if (status == PKV_STATUS_OK)
        job->out_type = pkv_attention_type_of(job->out.dtype);
    return status;
}
