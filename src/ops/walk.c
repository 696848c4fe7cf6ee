/* SPDX-License-Identifier: MIT
 *
 * The walk over the blocks of a sequence.
 */
#include <pagedkv/walk.h>

#include "base/checked.h"
#include "base/error.h"
#include "geometry/cache.h"
#include "ops/walk.h"

/* From first_token on; more than 64 bits can count are as many as they can. */
static int64_t tokens_behind(int64_t first_token, int64_t width, const struct pkv_cache *cache) {
    int64_t room;
    return pkv_checked_mul(width, cache->block_size, &room) ? room - first_token
                                                            : INT64_MAX - first_token;
}

enum pkv_status pkv_walk_init(struct pkv_walk *walk, const struct pkv_cache *cache,
                              const struct pkv_tensor *block_table, int64_t first_token,
                              int64_t num_tokens, struct pkv_error *error) {
    const int64_t none = PKV_ERROR_NONE;
    if (walk == NULL || cache == NULL)
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, __func__,
                             walk == NULL ? "walk" : "cache", none, none, none, "must not be NULL");
    const enum pkv_status described = pkv_cache_check(cache, __func__, "cache", error);
    if (described != PKV_STATUS_OK)
        return described;
    struct pkv_tensor table;
    const enum pkv_status status = pkv_tensor_read_index(
        &table, block_table, 1, &(struct pkv_where){__func__, "block_table", error});
    if (status != PKV_STATUS_OK)
        return status;
    if (first_token < 0 || num_tokens < 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__,
                             first_token < 0 ? "first_token" : "num_tokens", none,
                             first_token < 0 ? first_token : num_tokens, 0, "must be at least");
    const int64_t width = table.shape[0];
    const struct pkv_vector row = pkv_vector_along(&table, 0);
    if (num_tokens > 0) {
        const int64_t last = num_tokens > INT64_MAX - first_token
                                 ? width
                                 : (first_token + num_tokens - 1) / cache->block_size;
        if (first_token / cache->block_size >= width)
            return pkv_error_set(error, PKV_STATUS_POSITION_OUT_OF_RANGE, __func__, "first_token",
                                 none, first_token, width * cache->block_size,
                                 "must be below the tokens of the block table");
        if (last >= width)
            return pkv_error_set(error, PKV_STATUS_POSITION_OUT_OF_RANGE, __func__, "num_tokens",
                                 none, num_tokens, tokens_behind(first_token, width, cache),
                                 "must not be more than the block table has from first_token on");
        const int64_t bad = pkv_vector_find_outside(&row, first_token / cache->block_size, last + 1,
                                                    cache->num_blocks);
        if (bad <= last)
            return pkv_error_set(error, PKV_STATUS_BLOCK_OUT_OF_RANGE, __func__, "block_table", bad,
                                 pkv_vector_at(&row, bad), cache->num_blocks,
                                 "must lie between 0 and the number of blocks");
    }
    pkv_walk_start(walk, cache, &row, first_token, num_tokens);
    return PKV_STATUS_OK;
}

void pkv_walk_start(struct pkv_walk *walk, const struct pkv_cache *cache,
                    const struct pkv_vector *block_table, int64_t first_token, int64_t num_tokens) {
    const int64_t first_block = first_token / cache->block_size;
    *walk = (struct pkv_walk){
        .cache = cache,
        .block_ids = block_table->data,
        .block_id_stride = block_table->stride,
        .block_id_dtype = block_table->dtype,
        .next_block = first_block,
        .offset = first_token - first_block * cache->block_size,
        .position = first_token,
        .end = first_token + num_tokens,
    };
}

int pkv_walk_next(struct pkv_walk *walk, struct pkv_walk_block *block) {
    const struct pkv_cache *cache = walk->cache;
    const int64_t left = walk->end - walk->position;
    if (left <= 0)
        return 0;
    const struct pkv_vector ids = {
        .data = walk->block_ids, .dtype = walk->block_id_dtype, .stride = walk->block_id_stride};
    const int64_t room = cache->block_size - walk->offset;
    block->block_id = pkv_vector_at(&ids, walk->next_block);
    block->offset = walk->offset;
    block->position = walk->position;
    block->num_tokens = left < room ? left : room;
    block->key =
        (char *)cache->key.data + pkv_cache_part_row(&cache->key, block->block_id, block->offset);
    block->value = cache->value.data == NULL
                       ? NULL
                       : (char *)cache->value.data +
                             pkv_cache_part_row(&cache->value, block->block_id, block->offset);
    walk->position += block->num_tokens;
    walk->next_block++;
    walk->offset = 0;
    return 1;
}
