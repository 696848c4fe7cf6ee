/* SPDX-License-Identifier: MIT
 *
 * One operator on modelled data by each way that the library offers: the published call, plan and
 * step and run, or all parts in random order. Needs cmocka.
 */
#ifndef PAGEDKV_TESTS_CALLS_H
#define PAGEDKV_TESTS_CALLS_H

#include "check.h"
#include "model.h"

#define CALL_ONE_SHOT (-1) /* the published operator */
#define CALL_RUN      0    /* plan, step, run; a positive number: so many parts */

#define CALL_MAX_PARTS 16

static inline const struct pkv_tensor *tensor_or_null(const struct model_rows *rows) {
    return rows != NULL ? &rows->tensor : NULL;
}

static inline enum pkv_status init_cache(struct pkv_cache *cache, const struct model_cache *model,
                                         struct pkv_error *error) {
    struct pkv_cache_options options = model_cache_options(model);

    *cache = (struct pkv_cache){.struct_size = sizeof(*cache)};
    return pkv_cache_init(cache, &model->key.tensor, model->has_value ? &model->value.tensor : NULL,
                          &options, error);
}

static inline struct pkv_step *make_step(int64_t max_tokens, int64_t max_seqs) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_step_options options = {
        .struct_size = sizeof(options), .max_tokens = max_tokens, .max_seqs = max_seqs};
    struct pkv_step *step = NULL;

    CHECK_OK(pkv_step_create(&step, &options, &error), &error);
    return step;
}

static inline enum pkv_status
scatter_one_shot(struct pkv_context *context, const struct model_cache *model,
                 const struct model_rows *key, const struct model_rows *value,
                 const struct pkv_tensor *slots, int32_t duplicates, struct pkv_error *error) {
    struct pkv_scatter_pa_kv_cache_options options = {.struct_size = sizeof(options),
                                                      .key_layout = model->key.ref.layout,
                                                      .value_layout = model->value.ref.layout,
                                                      .duplicates = duplicates};

    return pkv_scatter_pa_kv_cache(context, &key->tensor, &model->key.tensor, slots,
                                   tensor_or_null(value),
                                   model->has_value ? &model->value.tensor : NULL, &options, error);
}

/* Stops at the first refusal, so that its error is the one that the caller sees. */
static inline enum pkv_status
scatter_planned(struct pkv_context *context, const struct pkv_scatter_plan *plan,
                const struct pkv_step *step, const struct pkv_cache *cache,
                const struct model_rows *key, const struct model_rows *value, int way,
                struct test_rng *rng, struct pkv_error *error) {
    enum pkv_status status = PKV_STATUS_OK;
    int64_t order[CALL_MAX_PARTS];

    if (way == CALL_RUN) {
        return pkv_scatter_run(context, plan, step, cache, &key->tensor, tensor_or_null(value),
                               error);
    }
    test_rng_permutation(rng, order, way);
    for (int i = 0; i < way && status == PKV_STATUS_OK; i++) {
        status = pkv_scatter_run_part(context, plan, step, cache, &key->tensor,
                                      tensor_or_null(value), order[i], way, error);
    }
    return status;
}

/* value is NULL in a key-only cache. */
static inline enum pkv_status call_scatter(struct pkv_context *context,
                                           const struct model_cache *model,
                                           const struct model_rows *key,
                                           const struct model_rows *value,
                                           const struct pkv_tensor *slots, int32_t duplicates,
                                           int way, struct test_rng *rng, struct pkv_error *error) {
    struct pkv_step_indices indices = {
        .struct_size = sizeof(indices), .duplicates = duplicates, .slot_mapping = *slots};
    struct pkv_scatter_plan *plan = NULL;
    struct pkv_step *step = NULL;
    struct pkv_cache cache;
    enum pkv_status status;

    if (way == CALL_ONE_SHOT) {
        return scatter_one_shot(context, model, key, value, slots, duplicates, error);
    }
    CHECK_OK(init_cache(&cache, model, error), error);
    CHECK_OK(pkv_scatter_plan_create(&plan, context, &cache, NULL, error), error);
    step = make_step(slots->shape[0], 0);
    status = pkv_step_set(context, step, &cache, &indices, error);
    if (status == PKV_STATUS_OK) {
        status = scatter_planned(context, plan, step, &cache, key, value, way, rng, error);
    }
    pkv_step_destroy(step);
    pkv_scatter_plan_destroy(plan);
    return status;
}

struct gather_indices {
    const struct pkv_tensor *block_table;
    const struct pkv_tensor *seq_lens;
    const struct pkv_tensor *seq_offsets; /* nullable */
    int32_t cumulative;
};

static inline enum pkv_status
gather_planned(struct pkv_context *context, const struct pkv_gather_plan *plan,
               const struct pkv_step *step, const struct pkv_cache *cache,
               const struct model_rows *key, const struct model_rows *value, int way,
               struct test_rng *rng, struct pkv_error *error) {
    enum pkv_status status = PKV_STATUS_OK;
    int64_t order[CALL_MAX_PARTS];

    if (way == CALL_RUN) {
        return pkv_gather_run(context, plan, step, cache, &key->tensor, tensor_or_null(value),
                              error);
    }
    test_rng_permutation(rng, order, way);
    for (int i = 0; i < way && status == PKV_STATUS_OK; i++) {
        status = pkv_gather_run_part(context, plan, step, cache, &key->tensor,
                                     tensor_or_null(value), order[i], way, error);
    }
    return status;
}

static inline enum pkv_status call_gather(struct pkv_context *context,
                                          const struct model_cache *model,
                                          const struct gather_indices *from,
                                          const struct model_rows *key,
                                          const struct model_rows *value, int way,
                                          struct test_rng *rng, struct pkv_error *error) {
    struct pkv_step_indices indices = {.struct_size = sizeof(indices),
                                       .seq_lens_cumulative = from->cumulative,
                                       .block_table = *from->block_table,
                                       .seq_lens = *from->seq_lens};
    struct pkv_gather_pa_kv_cache_options options = {.struct_size = sizeof(options),
                                                     .key_layout = model->key.ref.layout,
                                                     .value_layout = model->value.ref.layout,
                                                     .seq_lens_are_plain = !from->cumulative};
    struct pkv_gather_plan *plan = NULL;
    struct pkv_step *step = NULL;
    struct pkv_cache cache;
    enum pkv_status status;

    if (way == CALL_ONE_SHOT) {
        return pkv_gather_pa_kv_cache(context, &model->key.tensor,
                                      model->has_value ? &model->value.tensor : NULL,
                                      from->block_table, from->seq_lens, &key->tensor,
                                      tensor_or_null(value), from->seq_offsets, &options, error);
    }
    if (from->seq_offsets != NULL) {
        indices.seq_offsets = *from->seq_offsets;
    }
    CHECK_OK(init_cache(&cache, model, error), error);
    CHECK_OK(pkv_gather_plan_create(&plan, context, &cache, error), error);
    step = make_step(0, from->block_table->shape[0]);
    status = pkv_step_set(context, step, &cache, &indices, error);
    if (status == PKV_STATUS_OK) {
        status = gather_planned(context, plan, step, &cache, key, value, way, rng, error);
    }
    pkv_step_destroy(step);
    pkv_gather_plan_destroy(plan);
    return status;
}

#endif
