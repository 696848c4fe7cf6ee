/* SPDX-License-Identifier: MIT
 *
 * Checks of a run against its plan, and the arithmetic of explanations.
 */
#include "ops/plan.h"

#include "base/checked.h"
#include "base/error.h"
#include "geometry/cache.h"
#include "ops/rows.h"
#include "ops/sim.h"

enum pkv_status pkv_check_cache_and_step(const struct pkv_cache *pattern,
                                         const struct pkv_cache *cache, const struct pkv_step *step,
                                         bool step_has_indices, const char *function,
                                         struct pkv_error *error) {
    const int64_t none = PKV_ERROR_NONE;
    const enum pkv_status described = pkv_cache_check(cache, function, "cache", error);
    if (described != PKV_STATUS_OK)
        return described;
    if (cache->format != pattern->format || cache->num_blocks != pattern->num_blocks ||
        cache->block_size != pattern->block_size ||
        !pkv_cache_part_is_like(&cache->key, &pattern->key) ||
        (cache->value.data == NULL) != (pattern->value.data == NULL) ||
        (cache->value.data != NULL && !pkv_cache_part_is_like(&cache->value, &pattern->value)))
        return pkv_error_set(
            error, PKV_STATUS_LAYOUT, function, "cache", none, none, none,
            "must have the layouts, dtypes, sizes and strides of the plan's cache");
    if (!step->is_set || !step_has_indices)
        return pkv_error_set(error, PKV_STATUS_BAD_STATE, function, "step", none, none, none,
                             "must be set with the indices that this operator reads");
    if (step->num_blocks != cache->num_blocks || step->block_size != cache->block_size)
        return pkv_refuse_geometry(step, cache->num_blocks, cache->block_size, function, error);
    return PKV_STATUS_OK;
}

enum pkv_status pkv_refuse_geometry(const struct pkv_step *step, int64_t num_blocks,
                                    int64_t block_size, const char *function,
                                    struct pkv_error *error) {
    const bool is_size = step->num_blocks == num_blocks;
    return pkv_error_set(error, PKV_STATUS_BAD_STATE, function, "step", PKV_ERROR_NONE,
                         is_size ? step->block_size : step->num_blocks,
                         is_size ? block_size : num_blocks,
                         is_size ? "was set for another block_size; the cache's"
                                 : "was set for another number of blocks; the cache's");
}

enum pkv_status pkv_check_part(int64_t part, int64_t num_parts, const char *function,
                               struct pkv_error *error) {
    if (num_parts < 1)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "num_parts",
                             PKV_ERROR_NONE, num_parts, 1, "must be at least");
    if (part < 0 || part >= num_parts)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "part", PKV_ERROR_NONE,
                             part, num_parts, "must lie between 0 and the number of parts");
    return PKV_STATUS_OK;
}

enum pkv_status pkv_check_key_only(int32_t key_layout, bool key_only, const char *argument,
                                   const char *function, struct pkv_error *error) {
    if (key_only && key_layout == PKV_LAYOUT_PA_NZ)
        return pkv_error_set(error, PKV_STATUS_UNSUPPORTED, function, argument, PKV_ERROR_NONE,
                             PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "must bring values in PA_NZ: there is no key-only form of it");
    return PKV_STATUS_OK;
}

enum { INDEX_BYTES = 4 };

enum pkv_status pkv_explain_rows(struct pkv_explanation *explanation, const struct pkv_cache *cache,
                                 int32_t run_mode, int64_t native_tile, int64_t num_tokens,
                                 int32_t num_threads, const char *function,
                                 struct pkv_error *error) {
    if (num_tokens < 0 || num_threads < 1)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function,
                             num_tokens < 0 ? "num_tokens" : "num_threads", PKV_ERROR_NONE,
                             num_tokens < 0 ? num_tokens : num_threads, num_tokens < 0 ? 0 : 1,
                             "must be at least");
    const bool sim = run_mode == PKV_RUN_MODE_SIM;
    const int64_t kv_dim = cache->key.num_heads * cache->key.head_size;
    const int64_t tile = sim ? pkv_sim_tile_tokens(kv_dim) : native_tile;
    const int64_t row_bytes = cache->key.row_bytes + cache->value.row_bytes;
    int64_t bytes, tile_bytes;
    if (!pkv_checked_mul(tile, row_bytes + INDEX_BYTES, &tile_bytes))
        return pkv_error_set(error, PKV_STATUS_OVERFLOW, function, "plan", PKV_ERROR_NONE, tile,
                             row_bytes,
                             "has tiles of more bytes than 64 bits can count; bytes of a row");
    if (!pkv_checked_mul(num_tokens, row_bytes, &bytes))
        return pkv_error_set(error, PKV_STATUS_OVERFLOW, function, "num_tokens", PKV_ERROR_NONE,
                             num_tokens, row_bytes,
                             "has rows of more bytes than 64 bits can count; bytes of a row");
    *explanation = (struct pkv_explanation){
        .struct_size = sizeof(*explanation),
        .run_mode = run_mode,
        .num_tokens = num_tokens,
        .tile_tokens = tile,
        .num_tiles = num_tokens / tile + (num_tokens % tile != 0),
        .tail_tokens = num_tokens == 0 ? 0 : (num_tokens - 1) % tile + 1,
        .tile_bytes = tile_bytes,
        .num_parts = sim ? 1 : pkv_rows_num_parts((uint64_t)bytes, num_threads),
        .bytes_read = bytes,
        .bytes_written = bytes,
    };
    return PKV_STATUS_OK;
}

const char *pkv_explain_kernel(const struct pkv_cache_part *part, int32_t run_mode,
                               int32_t copy_level) {
    if (part->data == NULL)
        return "none";
    if (run_mode == PKV_RUN_MODE_SIM)
        return "sim";
    const struct pkv_row_shape fragments = pkv_row_shape_of_part(part);
    const struct pkv_row_shape dense = pkv_row_shape_dense(&fragments);
    struct pkv_copy_nest nest;
    pkv_copy_nest_init(&nest, &fragments, &dense);
    return pkv_rows_kernel_name(&nest, copy_level);
}
