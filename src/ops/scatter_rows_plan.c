/* SPDX-License-Identifier: MIT
 *
 * Plans for many targets: each cache becomes a part of one common geometry, and all of them are
 * proved to lie apart.
 */
#include "ops/scatter_rows.h"

#include "base/allocator.h"
#include "base/checked.h"
#include "base/error.h"
#include "ops/scatter.h"

const char *const pkv_scatter_rows_source_names[PKV_SCATTER_ROWS_MAX_PAIRS] = {
    "sources[0]",  "sources[1]",  "sources[2]",  "sources[3]", "sources[4]",  "sources[5]",
    "sources[6]",  "sources[7]",  "sources[8]",  "sources[9]", "sources[10]", "sources[11]",
    "sources[12]", "sources[13]", "sources[14]", "sources[15]"};
const char *const pkv_scatter_rows_cache_names[PKV_SCATTER_ROWS_MAX_PAIRS] = {
    "caches[0]",  "caches[1]",  "caches[2]",  "caches[3]", "caches[4]",  "caches[5]",
    "caches[6]",  "caches[7]",  "caches[8]",  "caches[9]", "caches[10]", "caches[11]",
    "caches[12]", "caches[13]", "caches[14]", "caches[15]"};

static enum pkv_status read_cache(struct pkv_tensor *cache, const struct pkv_tensor *given,
                                  const struct pkv_where *where) {
    const enum pkv_status status = pkv_tensor_read(cache, given, where);
    if (status != PKV_STATUS_OK)
        return status;
    if (!pkv_dtype_is_cache(cache->dtype))
        return pkv_error_set(where->error, PKV_STATUS_DTYPE, where->function, where->argument,
                             PKV_ERROR_NONE, cache->dtype, PKV_ERROR_NONE,
                             "must have one of the twelve element types of a cache");
    if (cache->ndim < 2 || cache->ndim > 4)
        return pkv_error_set(where->error, PKV_STATUS_RANK, where->function, where->argument,
                             PKV_ERROR_NONE, cache->ndim, PKV_ERROR_NONE,
                             "must be [num_slots, row], [num_blocks, block_size, row] or "
                             "[num_blocks, block_size, num_heads, head_size]");
    for (int32_t axis = 0; axis < cache->ndim; axis++) {
        if (cache->shape[axis] < 1)
            return pkv_error_set_axis(where->error, PKV_STATUS_SHAPE, where->function,
                                      where->argument, axis, cache->shape[axis], 1,
                                      "must be at least");
    }
    const int32_t last = cache->ndim - 1;
    if (cache->shape[last] > 1 && cache->strides[last] != 1)
        return pkv_error_set_axis(where->error, PKV_STATUS_STRIDE, where->function, where->argument,
                                  last, cache->strides[last], 1,
                                  "must have the stride of adjacent elements");
    return PKV_STATUS_OK;
}

/* The geometry that all caches must have: that of the first one with blocks, or one block of all
 * slots. */
static void choose_geometry(struct pkv_scatter_rows_plan *plan,
                            const struct pkv_tensor *const caches) {
    plan->has_blocks = false;
    plan->num_blocks = 1;
    plan->block_size = caches[0].shape[0];
    for (int64_t i = plan->num_pairs - 1; i >= 0; i--) {
        if (caches[i].ndim == 2)
            continue;
        plan->has_blocks = true;
        plan->num_blocks = caches[i].shape[0];
        plan->block_size = caches[i].shape[1];
    }
}

static enum pkv_status check_geometry(const struct pkv_scatter_rows_plan *plan, int64_t pair,
                                      const struct pkv_tensor *cache, const char *function,
                                      struct pkv_error *error) {
    static const char *const rules[2] = {
        "must be the number of blocks, or of slots, of the other caches",
        "must be the block_size of the other caches"};
    int64_t num_slots;
    if (!pkv_checked_mul(plan->num_blocks, plan->block_size, &num_slots))
        return pkv_error_set(error, PKV_STATUS_OVERFLOW, function,
                             pkv_scatter_rows_cache_names[pair], PKV_ERROR_NONE, plan->num_blocks,
                             plan->block_size,
                             "has more slots than 64 bits can count with its block_size");
    const int64_t wanted[2] = {cache->ndim == 2 ? num_slots : plan->num_blocks, plan->block_size};
    for (int32_t axis = 0; axis < (cache->ndim == 2 ? 1 : 2); axis++) {
        if (cache->shape[axis] != wanted[axis])
            return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function,
                                      pkv_scatter_rows_cache_names[pair], axis, cache->shape[axis],
                                      wanted[axis], rules[axis]);
    }
    return PKV_STATUS_OK;
}

/* A resolved cache in four dimensions, of one head if it does not tell. */
static enum pkv_status describe(const struct pkv_scatter_rows_plan *plan, int64_t pair,
                                const struct pkv_tensor *cache, struct pkv_cache_part *part,
                                const char *function, struct pkv_error *error) {
    const int64_t token_stride = cache->strides[cache->ndim == 2 ? 0 : 1];
    const int32_t last = cache->ndim - 1;
    const struct pkv_tensor blocks = {
        .data = cache->data,
        .dtype = cache->dtype,
        .ndim = 4,
        .shape = {plan->num_blocks, plan->block_size, cache->ndim == 4 ? cache->shape[2] : 1,
                  cache->shape[last]},
        .strides = {cache->ndim == 2 ? plan->block_size * token_stride : cache->strides[0],
                    token_stride, cache->ndim == 4 ? cache->strides[2] : cache->shape[last], 1},
    };
    int64_t num_blocks, block_size;
    return pkv_cache_part_init(
        part, &blocks, PKV_LAYOUT_NHD, 0, &num_blocks, &block_size,
        &(struct pkv_where){function, pkv_scatter_rows_cache_names[pair], error});
}

static enum pkv_status check_apart(const struct pkv_scatter_rows_plan *plan,
                                   const struct pkv_cache_part *parts, const char *function,
                                   struct pkv_error *error) {
    for (int64_t i = 1; i < plan->num_pairs; i++) {
        const struct pkv_strided own =
            pkv_cache_part_bytes(&parts[i], plan->num_blocks, plan->block_size);
        for (int64_t j = 0; j < i; j++) {
            const struct pkv_strided other =
                pkv_cache_part_bytes(&parts[j], plan->num_blocks, plan->block_size);
            if (pkv_strided_may_overlap(&own, &other))
                return pkv_error_set(error, PKV_STATUS_OVERLAP, function,
                                     pkv_scatter_rows_cache_names[i], PKV_ERROR_NONE,
                                     PKV_ERROR_NONE, j,
                                     "must not share bytes with another cache, as with that of "
                                     "pair");
        }
    }
    return PKV_STATUS_OK;
}

enum pkv_status pkv_scatter_rows_plan_init(struct pkv_scatter_rows_plan *plan,
                                           const struct pkv_tensor *caches, int64_t num_pairs,
                                           int32_t store_policy, const char *function,
                                           struct pkv_error *error) {
    struct pkv_tensor resolved[PKV_SCATTER_ROWS_MAX_PAIRS];
    if (num_pairs < 1 || num_pairs > PKV_SCATTER_ROWS_MAX_PAIRS)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "num_pairs",
                             PKV_ERROR_NONE, num_pairs, PKV_SCATTER_ROWS_MAX_PAIRS,
                             "must lie between 1 and the maximum");
    enum pkv_status status = pkv_scatter_check_store_policy(store_policy, function, error);
    plan->store_policy = store_policy;
    plan->num_pairs = num_pairs;
    for (int64_t i = 0; i < num_pairs && status == PKV_STATUS_OK; i++) {
        plan->caches[i] = caches[i];
        status = read_cache(&resolved[i], &caches[i],
                            &(struct pkv_where){function, pkv_scatter_rows_cache_names[i], error});
    }
    if (status != PKV_STATUS_OK)
        return status;
    choose_geometry(plan, resolved);
    for (int64_t i = 0; i < num_pairs && status == PKV_STATUS_OK; i++) {
        status = check_geometry(plan, i, &resolved[i], function, error);
        if (status == PKV_STATUS_OK)
            status = describe(plan, i, &resolved[i], &plan->parts[i], function, error);
    }
    return status == PKV_STATUS_OK ? check_apart(plan, plan->parts, function, error) : status;
}

/* The same description word by word, of data that can be used: nothing to prove again. */
static bool is_same(const struct pkv_tensor *a, const struct pkv_tensor *b, int64_t element_bytes) {
    bool same = a->dtype == b->dtype && a->ndim == b->ndim && a->data != NULL &&
                ((uintptr_t)a->data & (uintptr_t)(element_bytes - 1)) == 0;
    for (int32_t i = 0; same && i < b->ndim; i++)
        same = a->shape[i] == b->shape[i] && a->strides[i] == b->strides[i];
    return same;
}

/* The same cache in other words, as with strides that were left out before. */
static enum pkv_status take_cache(const struct pkv_scatter_rows_plan *plan, int64_t pair,
                                  const struct pkv_tensor *given, struct pkv_cache_part *part,
                                  const char *function, struct pkv_error *error) {
    struct pkv_tensor cache;
    struct pkv_error unlike;
    const struct pkv_where where = {function, pkv_scatter_rows_cache_names[pair], error};
    const enum pkv_status status = pkv_tensor_read(&cache, given, &where);
    if (status != PKV_STATUS_OK)
        return status;
    unlike.struct_size = sizeof(unlike);
    if (read_cache(&cache, given, &(struct pkv_where){function, NULL, &unlike}) != PKV_STATUS_OK ||
        check_geometry(plan, pair, &cache, function, &unlike) != PKV_STATUS_OK ||
        describe(plan, pair, &cache, part, function, &unlike) != PKV_STATUS_OK ||
        !pkv_cache_part_is_like(part, &plan->parts[pair]))
        return pkv_error_set(error, PKV_STATUS_LAYOUT, function, where.argument, PKV_ERROR_NONE,
                             PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "must have the shape, dtype and strides of the plan's cache");
    return PKV_STATUS_OK;
}

enum pkv_status pkv_scatter_rows_take_caches(const struct pkv_scatter_rows_plan *plan,
                                             const struct pkv_tensor *caches,
                                             struct pkv_cache_part *parts, const char *function,
                                             struct pkv_error *error) {
    bool moved_together = true;
    for (int64_t i = 0; i < plan->num_pairs; i++) {
        parts[i] = plan->parts[i];
        if (is_same(&caches[i], &plan->caches[i], parts[i].element_bytes)) {
            parts[i].data = caches[i].data;
        } else {
            const enum pkv_status status =
                take_cache(plan, i, &caches[i], &parts[i], function, error);
            if (status != PKV_STATUS_OK)
                return status;
        }
        moved_together =
            moved_together && (uintptr_t)parts[i].data - (uintptr_t)plan->parts[i].data ==
                                  (uintptr_t)parts[0].data - (uintptr_t)plan->parts[0].data;
    }
    return moved_together ? PKV_STATUS_OK : check_apart(plan, parts, function, error);
}

static enum pkv_status plan_create(struct pkv_scatter_rows_plan **plan, struct pkv_context *context,
                                   const struct pkv_tensor *caches, int64_t num_pairs,
                                   const struct pkv_scatter_options *options, const char *function,
                                   struct pkv_error *error) {
    struct pkv_scatter_options chosen;
    struct pkv_scatter_rows_plan made;
    enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, function, "options", error);
    if (status == PKV_STATUS_OK && chosen.reserved != 0)
        status = pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "options->reserved",
                               PKV_ERROR_NONE, chosen.reserved, 0, "must be");
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_rows_plan_init(&made, caches, num_pairs, chosen.store_policy, function,
                                            error);
    if (status != PKV_STATUS_OK)
        return status;
    made.allocator = context->allocator;
    made.run_mode = context->run_mode;
    *plan = pkv_alloc(&context->allocator, sizeof(**plan), _Alignof(struct pkv_scatter_rows_plan));
    if (*plan == NULL)
        return pkv_error_set(error, PKV_STATUS_OUT_OF_MEMORY, function, NULL, PKV_ERROR_NONE,
                             PKV_ERROR_NONE, (int64_t)sizeof(**plan),
                             "the allocator has no memory of that many bytes");
    **plan = made;
    return PKV_STATUS_OK;
}

enum pkv_status pkv_scatter_rows_plan_create(struct pkv_scatter_rows_plan **plan,
                                             struct pkv_context *context,
                                             const struct pkv_tensor *caches, int64_t num_pairs,
                                             const struct pkv_scatter_options *options,
                                             struct pkv_error *error) {
    struct pkv_error facts;
    enum pkv_status status;
    facts.struct_size = sizeof(facts);
    if (plan)
        *plan = NULL;
    if (plan == NULL || context == NULL || caches == NULL)
        status = pkv_refuse_null(__func__,
                                 plan == NULL      ? "plan"
                                 : context == NULL ? "context"
                                                   : "caches",
                                 &facts);
    else
        status = plan_create(plan, context, caches, num_pairs, options, __func__, &facts);
    return pkv_context_finish(context, status, &facts, error);
}

void pkv_scatter_rows_plan_destroy(struct pkv_scatter_rows_plan *plan) {
    if (plan == NULL)
        return;
    const struct pkv_allocator allocator = plan->allocator;
    pkv_free(&allocator, plan);
}
