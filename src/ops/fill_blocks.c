/* SPDX-License-Identifier: MIT
 *
 * Whole blocks filled with one value, as copies of a few kilobytes that are full of it.
 */
#include <pagedkv/blocks.h>

#include <string.h>

#include "base/error.h"
#include "geometry/cache.h"
#include "ops/context.h"
#include "ops/rows.h"
#include "parallel/executor.h"

/* Of one value, for copies to read: stays in the first-level cache, and long enough that spans are
 * few. */
enum { PATTERN_BYTES = 4096, MAX_SPANS = 64, MAX_ELEMENT_BYTES = 4 };

struct side {
    const struct pkv_cache_part *part;
    char element[MAX_ELEMENT_BYTES];
    _Alignas(64) char pattern[PATTERN_BYTES];
};

struct job {
    const struct pkv_kernels *kernels;
    int64_t first_block;
    int64_t num_blocks;
    int64_t block_size;
    int64_t num_parts;
    int32_t num_sides;
    struct side sides[2];
};

/* Rows of one byte: the pattern has no end of its own. */
struct span_list {
    const struct pkv_kernels *kernels;
    const struct side *side;
    int64_t count;
    struct pkv_span spans[MAX_SPANS];
};

static void flush(struct span_list *list) {
    list->kernels->copy_spans[PKV_COPY_STREAM](list->side->part->data, list->side->pattern,
                                               list->spans, list->count, 1);
    list->count = 0;
}

/* The bytes of a set, which lies in the part, from dimension dim on. */
static void fill_set(struct span_list *list, const struct pkv_strided *set, int32_t dim,
                     int64_t offset) {
    if (dim < set->ndim) {
        for (int64_t i = 0; i < set->count[dim]; i++)
            fill_set(list, set, dim + 1, offset + i * set->stride[dim]);
        return;
    }
    for (int64_t done = 0; done < set->unit; done += PATTERN_BYTES) {
        const int64_t rest = set->unit - done;
        if (list->count == MAX_SPANS)
            flush(list);
        list->spans[list->count++] =
            (struct pkv_span){offset + done, 0, rest < PATTERN_BYTES ? rest : PATTERN_BYTES};
    }
}

/* Innermost dimensions without gaps become one run of bytes: in TRANSPOSED these are the tokens. */
static void join_dimensions(struct pkv_strided *set) {
    while (set->ndim > 0 && set->stride[set->ndim - 1] == set->unit)
        set->unit *= set->count[--set->ndim];
}

static void fill_rows(struct span_list *list, int64_t first_row, int64_t num_rows) {
    const struct pkv_cache_part *part = list->side->part;
    struct pkv_strided set = pkv_cache_part_row_bytes(part, first_row);
    pkv_strided_add(&set, num_rows, part->token_stride_bytes);
    join_dimensions(&set);
    fill_set(list, &set, 0, set.first - (int64_t)(uintptr_t)part->data);
}

static void fill_part(const struct job *job, int64_t part) {
    int64_t first, end;
    pkv_rows_share(job->num_blocks * job->block_size, part, job->num_parts, &first, &end);
    for (int32_t i = 0; i < job->num_sides; i++) {
        struct span_list list; /* 2 KiB that need no zeroes */
        list.kernels = job->kernels;
        list.side = &job->sides[i];
        list.count = 0;
        const struct pkv_cache_part *to = list.side->part;
        for (int64_t row = first, count; row < end; row += count) {
            const int64_t block = job->first_block + row / job->block_size;
            const int64_t offset = row % job->block_size;
            count = job->block_size - offset < end - row ? job->block_size - offset : end - row;
            fill_rows(&list, pkv_cache_part_row(to, block, offset), count);
        }
        flush(&list);
    }
}

static void run_tile(void *arg, int64_t index) {
    fill_part(arg, index);
}

/* The definition: element by element through the address formula. */
static enum pkv_status sim_row(const struct side *side, int64_t row, const char *function,
                               struct pkv_error *error) {
    const struct pkv_cache_part *part = side->part;
    for (int64_t head = 0; head < part->num_heads; head++) {
        for (int64_t d = 0; d < part->head_size; d++) {
            const int64_t at = row + pkv_cache_part_element(part, head, d);
            if (at < 0 || at > part->span_bytes - part->element_bytes)
                return pkv_error_set(error, PKV_STATUS_INTERNAL, function, NULL, PKV_ERROR_NONE, at,
                                     part->span_bytes, "an access would leave its tensor");
            memcpy((char *)part->data + at, side->element, (size_t)part->element_bytes);
        }
    }
    return PKV_STATUS_OK;
}

static enum pkv_status sim(const struct job *job, const char *function, struct pkv_error *error) {
    enum pkv_status status = PKV_STATUS_OK;
    for (int64_t i = 0; i < job->num_blocks * job->block_size; i++) {
        for (int32_t j = 0; j < job->num_sides && status == PKV_STATUS_OK; j++) {
            const struct pkv_cache_part *part = job->sides[j].part;
            const int64_t block = job->first_block + i / job->block_size;
            status = sim_row(&job->sides[j], pkv_cache_part_row(part, block, i % job->block_size),
                             function, error);
        }
    }
    return status;
}

static void add_side(struct job *job, const struct pkv_cache_part *part, const void *element) {
    struct side *side = &job->sides[job->num_sides++];
    side->part = part;
    memcpy(side->element, element, (size_t)part->element_bytes);
    for (int64_t i = 0; i < PATTERN_BYTES; i += part->element_bytes)
        memcpy(side->pattern + i, side->element, (size_t)part->element_bytes);
}

static enum pkv_status fill_blocks(struct pkv_context *context, const struct pkv_cache *cache,
                                   int64_t first_block, int64_t num_blocks, const void *key_element,
                                   const void *value_element, const char *function,
                                   struct pkv_error *error) {
    const enum pkv_status status = pkv_cache_check(cache, function, "cache", error);
    if (status != PKV_STATUS_OK)
        return status;
    const bool has_value = cache->value.data != NULL;
    if (has_value != (value_element != NULL))
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, function, "value_element",
                             PKV_ERROR_NONE, PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "must be NULL exactly when the cache is key-only");
    if (first_block < 0 || first_block > cache->num_blocks)
        return pkv_error_set(error, PKV_STATUS_BLOCK_OUT_OF_RANGE, function, "first_block",
                             PKV_ERROR_NONE, first_block, cache->num_blocks,
                             "must lie between 0 and the number of blocks");
    if (num_blocks < 0 || num_blocks > cache->num_blocks - first_block)
        return pkv_error_set(error, PKV_STATUS_BLOCK_OUT_OF_RANGE, function, "num_blocks",
                             PKV_ERROR_NONE, num_blocks, cache->num_blocks - first_block,
                             "must lie between 0 and the blocks from the first one on");
    struct job job; /* 8 KiB that need no zeroes */
    job.kernels = &context->kernels;
    job.first_block = first_block;
    job.num_blocks = num_blocks;
    job.block_size = cache->block_size;
    job.num_sides = 0;
    add_side(&job, &cache->key, key_element);
    if (has_value)
        add_side(&job, &cache->value, value_element);
    if (context->run_mode == PKV_RUN_MODE_SIM)
        return sim(&job, function, error);
    const uint64_t row_bytes = (uint64_t)(cache->key.row_bytes + cache->value.row_bytes);
    job.num_parts = pkv_rows_num_parts(row_bytes * (uint64_t)job.block_size * (uint64_t)num_blocks,
                                       context->executor.num_threads);
    pkv_executor_run(&context->executor, run_tile, &job, job.num_parts);
    return PKV_STATUS_OK;
}

enum pkv_status pkv_fill_blocks(struct pkv_context *context, const struct pkv_cache *cache,
                                int64_t first_block, int64_t num_blocks, const void *key_element,
                                const void *value_element, struct pkv_error *error) {
    struct pkv_error facts = {.struct_size = sizeof(facts)};
    enum pkv_status status;
    if (context == NULL || cache == NULL || key_element == NULL)
        status = pkv_refuse_null(__func__,
                                 context == NULL ? "context"
                                 : cache == NULL ? "cache"
                                                 : "key_element",
                                 &facts);
    else
        status = fill_blocks(context, cache, first_block, num_blocks, key_element, value_element,
                             __func__, &facts);
    return pkv_context_finish(context, status, &facts, error);
}
