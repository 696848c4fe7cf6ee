/* SPDX-License-Identifier: MIT
 *
 * Whole blocks: copies inside a cache and from one cache to another, and conversion between
 * layouts. All are runs of block_size rows.
 */
#include <pagedkv/blocks.h>

#include "base/error.h"
#include "geometry/vector.h"
#include "ops/context.h"
#include "ops/rows.h"
#include "ops/sim.h"
#include "parallel/executor.h"

/* Copies of blocks from one cache to another (or the same one): pair i goes from block source(i) to
 * block destination(i), or block i to block i without pairs. */
struct job {
    struct pkv_cache src;
    struct pkv_cache dst;
    struct pkv_vector sources; /* data NULL: the identity */
    struct pkv_vector destinations;
    int64_t num_pairs;
    int64_t num_parts;
    struct pkv_row_mover movers[2]; /* key, value */
};

static const struct pkv_cache_part *part_of(const struct pkv_cache *cache, int32_t side) {
    return side == 0 ? &cache->key : &cache->value;
}

static int32_t num_sides(const struct job *job) {
    return job->src.value.data ? 2 : 1;
}

static void prepare_movers(struct job *job, const struct pkv_context *context) {
    for (int32_t i = 0; i < num_sides(job); i++) {
        const struct pkv_cache_part *src = part_of(&job->src, i), *dst = part_of(&job->dst, i);
        const struct pkv_row_shape from = pkv_row_shape_of_part(src);
        const struct pkv_row_shape to = pkv_row_shape_of_part(dst);
        job->movers[i] = (struct pkv_row_mover){
            .kernels = &context->kernels,
            .dst = dst->data,
            .src = src->data,
            .dst_row_stride = dst->token_stride_bytes,
            .src_row_stride = src->token_stride_bytes,
            .kind = PKV_COPY_STREAM,
        };
        pkv_copy_nest_init(&job->movers[i].nest, &to, &from);
    }
}

static void pair_at(const struct job *job, int64_t i, int64_t *source, int64_t *destination) {
    *source = job->sources.data ? pkv_vector_at(&job->sources, i) : i;
    *destination = job->sources.data ? pkv_vector_at(&job->destinations, i) : i;
}

/* Spans collected before they are moved. */
enum { MAX_SPANS = 64 };

static void copy_part(const struct job *job, int64_t part) {
    int64_t first, end;
    pkv_rows_share(job->num_pairs * job->src.block_size, part, job->num_parts, &first, &end);
    const int64_t block_size = job->src.block_size;
    for (int32_t side = 0; side < num_sides(job); side++) {
        const struct pkv_cache_part *src = part_of(&job->src, side);
        const struct pkv_cache_part *dst = part_of(&job->dst, side);
        struct pkv_span spans[MAX_SPANS];
        int64_t num_spans = 0;
        for (int64_t row = first; row < end;) {
            const int64_t pair = row / block_size, offset = row % block_size;
            const int64_t rest = end - row;
            const int64_t rows = block_size - offset < rest ? block_size - offset : rest;
            int64_t source, destination;
            pair_at(job, pair, &source, &destination);
            spans[num_spans++] = (struct pkv_span){
                .dst_offset = pkv_cache_part_row(dst, destination, offset),
                .src_offset = pkv_cache_part_row(src, source, offset),
                .num_rows = rows,
            };
            row += rows;
            if (num_spans == MAX_SPANS || row == end) {
                pkv_rows_move(&job->movers[side], spans, num_spans);
                num_spans = 0;
            }
        }
    }
}

static void run_tile(void *arg, int64_t index) {
    copy_part(arg, index);
}

static enum pkv_status sim_copy(const struct job *job, const char *function,
                                struct pkv_error *error) {
    const int64_t block_size = job->src.block_size;
    enum pkv_status status = PKV_STATUS_OK;
    for (int64_t i = 0; i < job->num_pairs; i++) {
        int64_t source, destination;
        pair_at(job, i, &source, &destination);
        for (int64_t offset = 0; offset < block_size; offset++) {
            for (int32_t side = 0; side < num_sides(job) && status == PKV_STATUS_OK; side++)
                status = pkv_sim_convert_row(part_of(&job->src, side), part_of(&job->dst, side),
                                             block_size, source * block_size + offset,
                                             destination * block_size + offset, function, error);
        }
    }
    return status;
}

static enum pkv_status run(struct job *job, const struct pkv_context *context, const char *function,
                           struct pkv_error *error) {
    if (job->num_pairs == 0)
        return PKV_STATUS_OK;
    if (context->run_mode == PKV_RUN_MODE_SIM)
        return sim_copy(job, function, error);
    const uint64_t row_bytes = (uint64_t)(job->src.key.row_bytes + job->src.value.row_bytes);
    const uint64_t bytes = row_bytes * (uint64_t)job->src.block_size * (uint64_t)job->num_pairs;
    job->num_parts = pkv_rows_num_parts(bytes, context->executor.num_threads);
    prepare_movers(job, context);
    pkv_executor_run(&context->executor, run_tile, job, job->num_parts);
    return PKV_STATUS_OK;
}

static enum pkv_status check_pairs(const struct job *job, const char *function,
                                   struct pkv_error *error) {
    /* Of more pairs than blocks so many of them have a bad destination, or one twice; the tensor
     * may be endless. */
    const int64_t most = job->dst.num_blocks + 1;
    const int64_t num_pairs = job->num_pairs < most ? job->num_pairs : most;
    for (int64_t i = 0; i < num_pairs; i++) {
        int64_t block[2];
        pair_at(job, i, &block[0], &block[1]);
        for (int64_t j = 0; j < 2; j++) {
            const int64_t num_blocks = j == 0 ? job->src.num_blocks : job->dst.num_blocks;
            if (block[j] < 0 || block[j] >= num_blocks)
                return pkv_error_set(error, PKV_STATUS_BLOCK_OUT_OF_RANGE, function,
                                     "block_mapping", 2 * i + j, block[j], num_blocks,
                                     "must lie between 0 and the number of blocks");
        }
    }
    struct pkv_vector destinations = job->destinations;
    destinations.count = num_pairs;
    const int64_t twice = pkv_vector_find_repeat(&destinations);
    if (twice >= 0)
        return pkv_error_set(error, PKV_STATUS_OVERLAP, function, "block_mapping", 2 * twice + 1,
                             pkv_vector_at(&job->destinations, twice), PKV_ERROR_NONE,
                             "must not name a destination that another pair names");
    return PKV_STATUS_OK;
}

/* In one cache the order of the pairs would matter. */
static enum pkv_status check_no_chain(const struct job *job, const char *function,
                                      struct pkv_error *error) {
    const int64_t common = pkv_vector_find_common(&job->destinations, &job->sources);
    if (common >= 0)
        return pkv_error_set(error, PKV_STATUS_OVERLAP, function, "block_mapping", 2 * common,
                             pkv_vector_at(&job->sources, common), PKV_ERROR_NONE,
                             "must not name a source that is a destination too");
    return PKV_STATUS_OK;
}

/* Reads the pairs into the job, whose caches are set, and proves them. */
static enum pkv_status take_pairs(struct job *job, const struct pkv_tensor *block_mapping,
                                  const char *function, struct pkv_error *error) {
    struct pkv_tensor pairs;
    const enum pkv_status status = pkv_tensor_read_index(
        &pairs, block_mapping, 2, &(struct pkv_where){function, "block_mapping", error});
    if (status != PKV_STATUS_OK)
        return status;
    if (pairs.shape[1] != 2)
        return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function, "block_mapping", 1,
                                  pairs.shape[1], 2, "must be");
    job->num_pairs = pairs.shape[0];
    job->sources = pkv_vector_along(&pairs, 0);
    job->destinations = pkv_vector_offset(&job->sources, pairs.strides[1]);
    if (job->num_pairs == 0)
        return PKV_STATUS_OK;
    const struct pkv_strided read = pkv_strided_from_tensor(&pairs);
    for (int32_t side = 0; side < num_sides(job); side++) {
        const struct pkv_strided part = pkv_cache_part_bytes(
            part_of(&job->dst, side), job->dst.num_blocks, job->dst.block_size);
        if (pkv_strided_may_overlap(&part, &read))
            return pkv_error_set(error, PKV_STATUS_OVERLAP, function, "block_mapping",
                                 PKV_ERROR_NONE, PKV_ERROR_NONE, PKV_ERROR_NONE,
                                 "must not share bytes with the cache");
    }
    return check_pairs(job, function, error);
}

static enum pkv_status copy_blocks(struct pkv_context *context, const struct pkv_cache *cache,
                                   const struct pkv_tensor *block_mapping, const char *function,
                                   struct pkv_error *error) {
    enum pkv_status status = pkv_cache_check(cache, function, "cache", error);
    if (status != PKV_STATUS_OK)
        return status;
    struct job job = {.src = *cache, .dst = *cache};
    status = take_pairs(&job, block_mapping, function, error);
    if (status == PKV_STATUS_OK)
        status = check_no_chain(&job, function, error);
    return status == PKV_STATUS_OK ? run(&job, context, function, error) : status;
}

enum pkv_status pkv_copy_blocks(struct pkv_context *context, const struct pkv_cache *cache,
                                const struct pkv_tensor *block_mapping, struct pkv_error *error) {
    struct pkv_error facts = {.struct_size = sizeof(facts)};
    enum pkv_status status;
    if (context == NULL || cache == NULL)
        status = pkv_refuse_null(__func__, context == NULL ? "context" : "cache", &facts);
    else
        status = copy_blocks(context, cache, block_mapping, __func__, &facts);
    return pkv_context_finish(context, status, &facts, error);
}

static enum pkv_status check_twins(const struct pkv_cache *src, const struct pkv_cache *dst,
                                   const char *function, struct pkv_error *error) {
    if (dst->block_size != src->block_size)
        return pkv_error_set(error, PKV_STATUS_SHAPE, function, "dst", PKV_ERROR_NONE,
                             dst->block_size, src->block_size, "must have the block_size of src");
    if ((src->value.data == NULL) != (dst->value.data == NULL))
        return pkv_error_set(error, PKV_STATUS_SHAPE, function, "dst", PKV_ERROR_NONE,
                             PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "must have a value part exactly when src has one");
    for (int32_t side = 0; side < (src->value.data ? 2 : 1); side++) {
        const struct pkv_cache_part *from = part_of(src, side), *to = part_of(dst, side);
        if (from->dtype != to->dtype)
            return pkv_error_set(error, PKV_STATUS_DTYPE, function, "dst", PKV_ERROR_NONE,
                                 to->dtype, from->dtype, "must have the dtypes of src");
        if (from->num_heads != to->num_heads)
            return pkv_error_set(error, PKV_STATUS_SHAPE, function, "dst", PKV_ERROR_NONE,
                                 to->num_heads, from->num_heads, "must have as many heads as src");
        if (from->head_size != to->head_size)
            return pkv_error_set(error, PKV_STATUS_SHAPE, function, "dst", PKV_ERROR_NONE,
                                 to->head_size, from->head_size, "must have the head size of src");
    }
    return PKV_STATUS_OK;
}

static enum pkv_status check_apart(const struct pkv_cache *src, const struct pkv_cache *dst,
                                   const char *function, struct pkv_error *error) {
    for (int32_t i = 0; i < 4; i++) {
        const struct pkv_cache_part *from = part_of(src, i / 2), *to = part_of(dst, i % 2);
        if (from->data == NULL || to->data == NULL)
            continue;
        const struct pkv_strided read =
            pkv_cache_part_bytes(from, src->num_blocks, src->block_size);
        const struct pkv_strided written =
            pkv_cache_part_bytes(to, dst->num_blocks, dst->block_size);
        if (pkv_strided_may_overlap(&read, &written))
            return pkv_error_set(error, PKV_STATUS_OVERLAP, function, "dst", PKV_ERROR_NONE,
                                 PKV_ERROR_NONE, PKV_ERROR_NONE, "must not share bytes with src");
    }
    return PKV_STATUS_OK;
}

/* What conversion and swap check of their two caches. */
static enum pkv_status take_caches(struct job *job, const struct pkv_cache *src,
                                   const struct pkv_cache *dst, const char *function,
                                   struct pkv_error *error) {
    enum pkv_status status = pkv_cache_check(src, function, "src", error);
    if (status == PKV_STATUS_OK)
        status = pkv_cache_check(dst, function, "dst", error);
    if (status != PKV_STATUS_OK)
        return status;
    job->src = *src;
    job->dst = *dst;
    /* A PA_NZ part may have been described without its heads: take them from the other side. */
    pkv_cache_part_adopt_heads(&job->src.key, &dst->key);
    pkv_cache_part_adopt_heads(&job->src.value, &dst->value);
    pkv_cache_part_adopt_heads(&job->dst.key, &src->key);
    pkv_cache_part_adopt_heads(&job->dst.value, &src->value);
    status = check_twins(&job->src, &job->dst, function, error);
    return status == PKV_STATUS_OK ? check_apart(src, dst, function, error) : status;
}

static enum pkv_status convert(struct pkv_context *context, const struct pkv_cache *src,
                               const struct pkv_cache *dst, const char *function,
                               struct pkv_error *error) {
    struct job job = {0};
    const enum pkv_status status = take_caches(&job, src, dst, function, error);
    if (status != PKV_STATUS_OK)
        return status;
    if (dst->num_blocks != src->num_blocks)
        return pkv_error_set(error, PKV_STATUS_SHAPE, function, "dst", PKV_ERROR_NONE,
                             dst->num_blocks, src->num_blocks, "must have as many blocks as src");
    job.num_pairs = src->num_blocks;
    return run(&job, context, function, error);
}

static enum pkv_status swap_blocks(struct pkv_context *context, const struct pkv_cache *src,
                                   const struct pkv_cache *dst,
                                   const struct pkv_tensor *block_mapping, const char *function,
                                   struct pkv_error *error) {
    struct job job = {0};
    enum pkv_status status = take_caches(&job, src, dst, function, error);
    if (status == PKV_STATUS_OK)
        status = take_pairs(&job, block_mapping, function, error);
    return status == PKV_STATUS_OK ? run(&job, context, function, error) : status;
}

static const char *null_cache(const struct pkv_context *context, const struct pkv_cache *src,
                              const struct pkv_cache *dst) {
    return context == NULL ? "context" : src == NULL ? "src" : dst == NULL ? "dst" : NULL;
}

enum pkv_status pkv_convert_layout(struct pkv_context *context, const struct pkv_cache *src,
                                   const struct pkv_cache *dst, struct pkv_error *error) {
    struct pkv_error facts = {.struct_size = sizeof(facts)};
    const char *missing = null_cache(context, src, dst);
    const enum pkv_status status = missing ? pkv_refuse_null(__func__, missing, &facts)
                                           : convert(context, src, dst, __func__, &facts);
    return pkv_context_finish(context, status, &facts, error);
}

enum pkv_status pkv_swap_blocks(struct pkv_context *context, const struct pkv_cache *src,
                                const struct pkv_cache *dst, const struct pkv_tensor *block_mapping,
                                struct pkv_error *error) {
    struct pkv_error facts = {.struct_size = sizeof(facts)};
    const char *missing = null_cache(context, src, dst);
    const enum pkv_status status =
        missing ? pkv_refuse_null(__func__, missing, &facts)
                : swap_blocks(context, src, dst, block_mapping, __func__, &facts);
    return pkv_context_finish(context, status, &facts, error);
}
