/* SPDX-License-Identifier: MIT
 *
 * The published operator in one call: tensors in the published order become a cache, a step and a
 * job, all on the stack.
 */
#include <pagedkv/scatter.h>

#include "base/checked.h"
#include "base/error.h"
#include "ops/plan.h"
#include "ops/scatter.h"
#include "ops/scatter_compressed.h"

static enum pkv_status check_options(const struct pkv_scatter_pa_kv_cache_options *options,
                                     const char *function, struct pkv_error *error) {
    const int64_t none = PKV_ERROR_NONE;
    const bool is_compressed = pkv_scatter_mode_is_compressed(options->scatter_mode);
    if (options->scatter_mode != PKV_SCATTER_MODE_NONE &&
        options->scatter_mode != PKV_SCATTER_MODE_NCT && !is_compressed)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "options->scatter_mode",
                             none, options->scatter_mode, none,
                             "must be one of enum pkv_scatter_mode");
    if (options->reserved != 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "options->reserved",
                             none, options->reserved, 0, "must be");
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"options->key_stride", options->key_stride},
        {"options->value_stride", options->value_stride},
        {"options->key_offset", options->key_offset},
        {"options->value_offset", options->value_offset},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (numbers[i].value < 0)
            return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, numbers[i].name,
                                 none, numbers[i].value, 0, "must be at least");
        if (numbers[i].value != 0 && options->scatter_mode != PKV_SCATTER_MODE_NCT)
            return pkv_error_set(
                error, PKV_STATUS_INVALID_ARGUMENT, function, numbers[i].name, none,
                numbers[i].value, 0,
                "has a meaning in PKV_SCATTER_MODE_NCT only; otherwise it must be");
    }
    const struct {
        const char *name;
        const struct pkv_tensor *tensor;
    } tensors[] = {
        {"compress_lens", options->compress_lens},
        {"compress_seq_offset", options->compress_seq_offset},
        {"seq_lens", options->seq_lens},
    };
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        if (!is_compressed && !pkv_tensor_is_absent(tensors[i].tensor))
            return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, function, tensors[i].name, none,
                                 none, none, "has a meaning in the compressed modes only");
    }
    const enum pkv_status status =
        pkv_scatter_check_store_policy(options->store_policy, function, error);
    return status == PKV_STATUS_OK
               ? pkv_step_check_duplicates(options->duplicates, "options->duplicates", function,
                                           error)
               : status;
}

/* The three-dimensional view of an Nct source: row t starts at element stride * t + offset. */
static enum pkv_status view_nct(struct pkv_tensor *view, const struct pkv_tensor *source,
                                const struct pkv_cache_part *part, int64_t num_tokens,
                                int64_t stride, int64_t offset, const struct pkv_where *where) {
    struct pkv_tensor t;
    const enum pkv_status status = pkv_tensor_read(&t, source, where);
    if (status != PKV_STATUS_OK)
        return status;
    if (t.dtype != part->dtype)
        return pkv_error_set(where->error, PKV_STATUS_DTYPE, where->function, where->argument,
                             PKV_ERROR_NONE, t.dtype, part->dtype,
                             "must have the dtype of its cache");
    if (t.ndim != 2)
        return pkv_error_set(where->error, PKV_STATUS_RANK, where->function, where->argument,
                             PKV_ERROR_NONE, t.ndim, 2, "must be [num_tokens, row] in mode Nct");
    if (!pkv_tensor_is_contiguous(&t))
        return pkv_error_set(where->error, PKV_STATUS_STRIDE, where->function, where->argument,
                             PKV_ERROR_NONE, PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "must be contiguous in mode Nct, which brings its own stride");
    if (stride == 0 && t.shape[0] != num_tokens)
        return pkv_error_set_axis(where->error, PKV_STATUS_SHAPE, where->function, where->argument,
                                  0, t.shape[0], num_tokens,
                                  "must be the number of slots, unless a stride is given");
    const int64_t row = part->num_heads * part->head_size;
    const int64_t step = stride == 0 ? t.shape[1] : stride;
    const int64_t available = pkv_tensor_num_elements(&t);
    int64_t end = 0;
    const bool is_number =
        num_tokens == 0 || (pkv_checked_mul(num_tokens - 1, step, &end) &&
                            pkv_checked_add(end, offset, &end) && pkv_checked_add(end, row, &end));
    if (!is_number || end > available)
        return pkv_error_set(where->error, PKV_STATUS_SHAPE, where->function, where->argument,
                             PKV_ERROR_NONE, available, is_number ? end : PKV_ERROR_NONE,
                             "has too few elements for its rows at this stride and offset");
    const int64_t shape[3] = {num_tokens, part->num_heads, part->head_size};
    char *first = t.data;
    if (num_tokens > 0)
        first += offset * part->element_bytes;
    *view = pkv_tensor_make(first, t.dtype, 3, shape);
    view->strides[0] = num_tokens > 1 ? step : row;
    view->strides[1] = part->head_size;
    view->strides[2] = 1;
    return PKV_STATUS_OK;
}

static enum pkv_status describe(struct pkv_cache *cache, const struct pkv_tensor *key,
                                const struct pkv_tensor *key_cache,
                                const struct pkv_tensor *value_cache,
                                const struct pkv_scatter_pa_kv_cache_options *options,
                                const char *function, struct pkv_error *error) {
    const enum pkv_status known = pkv_check_key_only(
        options->key_layout, pkv_tensor_is_absent(value_cache), "value_cache", function, error);
    if (known != PKV_STATUS_OK)
        return known;
    /* PA_NZ does not tell its heads; the source does, except in Nct. */
    const bool heads_are_needed = key_cache && key_cache->ndim == 4 &&
                                  options->key_layout == PKV_LAYOUT_PA_NZ && key->ndim == 3;
    const struct pkv_cache_options cache_options = {
        .struct_size = sizeof(cache_options),
        .key_layout = options->key_layout,
        .value_layout = options->value_layout,
        .num_kv_heads = heads_are_needed && key->shape[1] > 0 ? key->shape[1] : 0,
    };
    struct pkv_error facts = {.struct_size = sizeof(facts)};
    const enum pkv_status status =
        pkv_cache_init(cache, key_cache, value_cache, &cache_options, &facts);
    return status == PKV_STATUS_OK ? status : pkv_error_forward(error, &facts, function, NULL);
}

static enum pkv_status add_side(struct pkv_scatter_job *job, const struct pkv_cache_part *part,
                                const struct pkv_tensor *source, const char *name, int64_t stride,
                                int64_t offset,
                                const struct pkv_scatter_pa_kv_cache_options *options,
                                struct pkv_error *error) {
    if (options->scatter_mode == PKV_SCATTER_MODE_NONE)
        return pkv_scatter_job_add(job, part, source, name, error);
    const enum pkv_status status =
        view_nct(pkv_scatter_job_source(job), source, part, job->step->slots.count, stride, offset,
                 &(struct pkv_where){job->function, name, error});
    return status == PKV_STATUS_OK ? pkv_scatter_job_add_source(job, part, name, error) : status;
}

static enum pkv_status scatter(struct pkv_context *context, const struct pkv_tensor *key,
                               const struct pkv_tensor *key_cache,
                               const struct pkv_tensor *slot_mapping,
                               const struct pkv_tensor *value, const struct pkv_tensor *value_cache,
                               const struct pkv_scatter_pa_kv_cache_options *options,
                               const char *function, struct pkv_error *error) {
    if (key == NULL || key_cache == NULL || slot_mapping == NULL)
        return pkv_refuse_null(function,
                               key == NULL         ? "key"
                               : key_cache == NULL ? "key_cache"
                                                   : "slot_mapping",
                               error);
    if (pkv_tensor_is_absent(slot_mapping))
        return pkv_refuse_null(function, "slot_mapping", error);
    if (pkv_tensor_is_absent(value) != pkv_tensor_is_absent(value_cache))
        return pkv_refuse_null(function, pkv_tensor_is_absent(value) ? "value" : "value_cache",
                               error);
    struct pkv_scatter_pa_kv_cache_options chosen;
    struct pkv_cache cache;
    struct pkv_step step;
    struct pkv_scatter_job job;
    enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, function, "options", error);
    if (status == PKV_STATUS_OK)
        status = check_options(&chosen, function, error);
    if (status == PKV_STATUS_OK)
        status = describe(&cache, key, key_cache, value_cache, &chosen, function, error);
    if (status != PKV_STATUS_OK)
        return status;
    if (pkv_scatter_mode_is_compressed(chosen.scatter_mode))
        return pkv_scatter_compressed(context, &cache, key, value, slot_mapping, &chosen, function,
                                      error);
    const struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .duplicates = chosen.duplicates,
        .slot_mapping = *slot_mapping,
    };
    pkv_step_init_bare(&step);
    status = pkv_step_set_indices(&step, &context->kernels, cache.num_blocks, cache.block_size,
                                  &indices, function, error);
    if (status != PKV_STATUS_OK)
        return status;
    pkv_scatter_job_init(&job, context, &step, context->run_mode, chosen.store_policy, function);
    status = add_side(&job, &cache.key, key, "key", chosen.key_stride, chosen.key_offset, &chosen,
                      error);
    if (status == PKV_STATUS_OK && cache.value.data)
        status = add_side(&job, &cache.value, value, "value", chosen.value_stride,
                          chosen.value_offset, &chosen, error);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_job_finish(&job, "slot_mapping", error);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_job_run(&job, &context->executor, error);
    return status;
}

enum pkv_status pkv_scatter_pa_kv_cache(struct pkv_context *context, const struct pkv_tensor *key,
                                        const struct pkv_tensor *key_cache,
                                        const struct pkv_tensor *slot_mapping,
                                        const struct pkv_tensor *value,
                                        const struct pkv_tensor *value_cache,
                                        const struct pkv_scatter_pa_kv_cache_options *options,
                                        struct pkv_error *error) {
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    const enum pkv_status status = scatter(context, key, key_cache, slot_mapping, value,
                                           value_cache, options, __func__, &facts);
    return pkv_context_finish(context, status, &facts, error);
}
