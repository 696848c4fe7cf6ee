/* SPDX-License-Identifier: MIT
 *
 * Plans of paged attention, and the scratch memory that their runs need.
 */
#include <math.h>

#include "base/allocator.h"
#include "base/error.h"
#include "geometry/cache.h"
#include "ops/attention.h"

/* More than any position, and far from the end of 64 bits. */
static const int64_t UNLIMITED = INT64_MAX / 2;

static bool is_attention_dtype(int32_t dtype) {
    return dtype == PKV_DTYPE_F32 || dtype == PKV_DTYPE_F16 || dtype == PKV_DTYPE_BF16;
}

static enum pkv_status refuse(struct pkv_error *error, enum pkv_status status, const char *function,
                              const char *argument, int64_t value, int64_t bound,
                              const char *rule) {
    return pkv_error_set(error, status, function, argument, PKV_ERROR_NONE, value, bound, rule);
}

static enum pkv_status check_cache(const struct pkv_cache *cache, const char *function,
                                   struct pkv_error *error) {
    const enum pkv_status described = pkv_cache_check(cache, function, "cache", error);
    if (described != PKV_STATUS_OK)
        return described;
    const struct pkv_cache_part *const parts[2] = {&cache->key, &cache->value};
    static const char *const names[2] = {"cache->key", "cache->value"};
    for (int i = 0; i < 2 && parts[i]->data; i++) {
        if (!is_attention_dtype(parts[i]->dtype))
            return refuse(error, PKV_STATUS_DTYPE, function, names[i], parts[i]->dtype,
                          PKV_ERROR_NONE, "must hold float32, float16 or bfloat16");
        if (parts[i]->head_size > PKV_ATTENTION_MAX_HEAD_SIZE)
            return refuse(error, PKV_STATUS_SHAPE, function, names[i], parts[i]->head_size,
                          PKV_ATTENTION_MAX_HEAD_SIZE, "must have a head size of at most");
    }
    return PKV_STATUS_OK;
}

static enum pkv_status check_counts(const struct pkv_paged_attention_options *options,
                                    const struct pkv_cache *cache, const char *function,
                                    struct pkv_error *error) {
    const enum pkv_status bad = PKV_STATUS_INVALID_ARGUMENT;
    const int64_t num_kv_heads = cache->key.num_heads;
    const int64_t value_head = options->value_head_size;
    if (options->num_heads < 0 || options->num_heads % num_kv_heads != 0)
        return refuse(error, bad, function, "options->num_heads", options->num_heads, num_kv_heads,
                      "must be a multiple of the cache's number of heads");
    if (cache->value.data && value_head != 0 && value_head != cache->value.head_size)
        return refuse(error, bad, function, "options->value_head_size", value_head,
                      cache->value.head_size, "must be 0 or the head size of the value cache");
    if (value_head < 0 || (cache->value.data == NULL && value_head > cache->key.head_size))
        return refuse(error, bad, function, "options->value_head_size", value_head,
                      cache->key.head_size, "must lie between 0 and the head size of the keys");
    if (options->max_visible_left < 0)
        return refuse(error, bad, function, "options->max_visible_left", options->max_visible_left,
                      0, "must be at least");
    if (options->max_visible_right < 0)
        return refuse(error, bad, function, "options->max_visible_right",
                      options->max_visible_right, 0, "must be at least");
    return PKV_STATUS_OK;
}

static enum pkv_status check_choices(const struct pkv_paged_attention_options *options,
                                     const char *function, struct pkv_error *error) {
    const enum pkv_status bad = PKV_STATUS_INVALID_ARGUMENT;
    if (options->query_dtype != 0 && !is_attention_dtype(options->query_dtype))
        return refuse(error, PKV_STATUS_DTYPE, function, "options->query_dtype",
                      options->query_dtype, PKV_ERROR_NONE,
                      "must be 0, PKV_DTYPE_F32, PKV_DTYPE_F16 or PKV_DTYPE_BF16");
    if (options->products != PKV_ATTENTION_PRODUCTS_F32 &&
        options->products != PKV_ATTENTION_PRODUCTS_BF16)
        return refuse(error, bad, function, "options->products", options->products, PKV_ERROR_NONE,
                      "must be one of enum pkv_attention_products");
    if (options->lse_base != PKV_LSE_BASE_E && options->lse_base != PKV_LSE_BASE_2)
        return refuse(error, bad, function, "options->lse_base", options->lse_base, PKV_ERROR_NONE,
                      "must be one of enum pkv_lse_base");
    if (options->non_causal != 0 && options->non_causal != 1)
        return refuse(error, bad, function, "options->non_causal", options->non_causal,
                      PKV_ERROR_NONE, "must be 0 or 1");
    if (!isfinite(options->scale))
        return refuse(error, bad, function, "options->scale", PKV_ERROR_NONE, PKV_ERROR_NONE,
                      "must be finite");
    /* Kernels multiply with the reciprocal, which is a normal number then. */
    if (options->softcap != 0 && !(options->softcap >= 0x1p-126f && options->softcap <= 0x1p126f))
        return refuse(error, bad, function, "options->softcap", PKV_ERROR_NONE, PKV_ERROR_NONE,
                      "must be 0 or from 2^-126 to 2^126");
    return PKV_STATUS_OK;
}

static struct pkv_paged_attention_plan
make_plan(const struct pkv_context *context, const struct pkv_cache *cache,
          const struct pkv_paged_attention_options *options) {
    const int64_t num_heads = options->num_heads ? options->num_heads : cache->key.num_heads;
    int64_t value_head_size = options->value_head_size;
    if (value_head_size == 0)
        value_head_size = cache->value.data ? cache->value.head_size : cache->key.head_size;
    int64_t right = 0;
    if (options->non_causal)
        right = options->max_visible_right != 0 && options->max_visible_right < UNLIMITED
                    ? options->max_visible_right - 1
                    : UNLIMITED;
    return (struct pkv_paged_attention_plan){
        .allocator = context->allocator,
        .cache = *cache,
        .run_mode = context->run_mode,
        .query_dtype = options->query_dtype ? options->query_dtype : cache->key.dtype,
        .products = options->products,
        .lse_base = options->lse_base,
        .num_heads = num_heads,
        .group = num_heads / cache->key.num_heads,
        .head_size = cache->key.head_size,
        .value_head_size = value_head_size,
        .scale =
            options->scale != 0 ? options->scale : (float)(1 / sqrt((double)cache->key.head_size)),
        .softcap = options->softcap,
        .left = options->max_visible_left ? options->max_visible_left - 1 : UNLIMITED,
        .right = right,
    };
}

enum pkv_status pkv_paged_attention_plan_create(struct pkv_paged_attention_plan **plan,
                                                struct pkv_context *context,
                                                const struct pkv_cache *cache,
                                                const struct pkv_paged_attention_options *options,
                                                struct pkv_error *error) {
    struct pkv_paged_attention_options chosen;
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (plan)
        *plan = NULL;
    if (plan == NULL || context == NULL || cache == NULL)
        return pkv_context_finish(context,
                                  pkv_refuse_null(__func__,
                                                  plan == NULL      ? "plan"
                                                  : context == NULL ? "context"
                                                                    : "cache",
                                                  &facts),
                                  &facts, error);
    enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, __func__, "options", &facts);
    if (status == PKV_STATUS_OK)
        status = check_cache(cache, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = check_counts(&chosen, cache, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = check_choices(&chosen, __func__, &facts);
    struct pkv_paged_attention_plan *made = NULL;
    if (status == PKV_STATUS_OK) {
        made = pkv_alloc(&context->allocator, sizeof(*made),
                         _Alignof(struct pkv_paged_attention_plan));
        if (made == NULL)
            status =
                refuse(&facts, PKV_STATUS_OUT_OF_MEMORY, __func__, NULL, PKV_ERROR_NONE,
                       (int64_t)sizeof(*made), "the allocator has no memory of that many bytes");
    }
    if (status == PKV_STATUS_OK) {
        *made = make_plan(context, cache, &chosen);
        status = pkv_attention_reserve(context, made, __func__, &facts);
    }
    if (status == PKV_STATUS_OK)
        *plan = made;
    else if (made)
        pkv_free(&context->allocator, made);
    return pkv_context_finish(context, status, &facts, error);
}

void pkv_paged_attention_plan_destroy(struct pkv_paged_attention_plan *plan) {
    if (plan == NULL)
        return;
    const struct pkv_allocator allocator = plan->allocator;
    pkv_free(&allocator, plan);
}

enum pkv_status pkv_paged_attention_reserve(struct pkv_context *context,
                                            const struct pkv_paged_attention_plan *plan,
                                            struct pkv_error *error) {
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL || plan == NULL)
        return pkv_context_finish(
            context, pkv_refuse_null(__func__, context == NULL ? "context" : "plan", &facts),
            &facts, error);
    return pkv_context_finish(context, pkv_attention_reserve(context, plan, __func__, &facts),
                              &facts, error);
}

/* ---- Scratch ---- */

/* Takes bytes from the front of the memory; with at NULL it only counts. */
struct carver {
    char *at;
    size_t bytes;
};

static void *carve(struct carver *carver, int64_t count, size_t item_bytes) {
    char *piece = carver->at;
    const size_t bytes = ((size_t)count * item_bytes + 63) / 64 * 64;
    carver->bytes += bytes;
    if (carver->at)
        carver->at += bytes;
    return piece;
}

static struct pkv_attention_workspace carve_workspace(const struct pkv_paged_attention_plan *plan,
                                                      struct carver *carver) {
    const int64_t max_rows = PKV_ATTENTION_MAX_ROWS, tile = PKV_ATTENTION_TILE;
    const int64_t level_rows = PKV_ATTENTION_LEVELS * max_rows;
    const int64_t value_row = plan->cache.value.data ? plan->value_head_size : plan->head_size;
    struct pkv_attention_workspace workspace = {.query_stride =
                                                    pkv_attention_padded(plan->head_size)};
    workspace.state.acc_stride = pkv_attention_padded(plan->value_head_size);
    workspace.query = carve(carver, max_rows * workspace.query_stride, sizeof(float));
    workspace.scores = carve(carver, max_rows * tile, sizeof(float));
    workspace.scratch = carve(carver, PKV_ATTENTION_SCRATCH, sizeof(float));
    workspace.keep = carve(carver, max_rows, sizeof(float));
    workspace.add = carve(carver, max_rows, sizeof(float));
    workspace.rows = carve(carver, max_rows, sizeof(*workspace.rows));
    workspace.places = carve(carver, max_rows, sizeof(*workspace.places));
    workspace.offsets = carve(carver, 4 * tile, sizeof(int64_t));
    workspace.staged_offsets = carve(carver, 2 * tile, sizeof(int64_t));
    workspace.staged_keys = carve(carver, tile * plan->head_size, sizeof(float));
    workspace.staged_values = carve(carver, tile * value_row, sizeof(float));
    workspace.bias = carve(carver, max_rows * tile, sizeof(float));
    workspace.state.stack = carve(carver, 1, sizeof(*workspace.state.stack));
    workspace.state.max = carve(carver, level_rows, sizeof(float));
    workspace.state.sum = carve(carver, level_rows, sizeof(float));
    workspace.state.acc = carve(carver, level_rows * workspace.state.acc_stride, sizeof(float));
    return workspace;
}

size_t pkv_attention_workspace_bytes(const struct pkv_paged_attention_plan *plan) {
    struct carver carver = {0};
    (void)carve_workspace(plan, &carver);
    return carver.bytes;
}

struct pkv_attention_workspace pkv_attention_workspace(const struct pkv_paged_attention_plan *plan,
                                                       void *memory) {
    struct carver carver = {.at = memory};
    return carve_workspace(plan, &carver);
}

int64_t pkv_attention_num_workspaces(int32_t num_threads) {
    const int64_t num_workspaces = 2 * (int64_t)num_threads;
    return num_threads <= 1                                ? 1
           : num_workspaces < PKV_ATTENTION_MAX_WORKSPACES ? num_workspaces
                                                           : PKV_ATTENTION_MAX_WORKSPACES;
}

enum pkv_status pkv_attention_reserve(struct pkv_context *context,
                                      const struct pkv_paged_attention_plan *plan,
                                      const char *function, struct pkv_error *error) {
    const int64_t num_workspaces = pkv_attention_num_workspaces(context->executor.num_threads);
    return pkv_context_reserve(
        context, (size_t)num_workspaces * pkv_attention_workspace_bytes(plan), function, error);
}
