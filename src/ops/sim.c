/* SPDX-License-Identifier: MIT
 *
 * Rows copied element by element through the address formula. Slow on purpose.
 */
#include "ops/sim.h"

#include <string.h>

#include "base/error.h"

/* One side of a row copy: a row of a cache part, or of a dense tensor. */
struct row {
    char *data;
    int64_t span_bytes;
    int64_t first;                     /* byte offset of the row */
    const struct pkv_cache_part *part; /* either */
    const struct pkv_tensor *tensor;   /* or */
};

static struct row row_of_part(const struct pkv_cache_part *part, int64_t block_size, int64_t slot) {
    return (struct row){
        .data = part->data,
        .span_bytes = part->span_bytes,
        .first = pkv_cache_part_row(part, slot / block_size, slot % block_size),
        .part = part,
    };
}

static struct row row_of_tensor(const struct pkv_tensor *tensor, int64_t token) {
    const struct pkv_strided bytes = pkv_strided_from_tensor(tensor);
    return (struct row){
        .data = tensor->data,
        .span_bytes = pkv_strided_span(&bytes),
        .first = token * tensor->strides[0] * pkv_dtype_bytes(tensor->dtype),
        .tensor = tensor,
    };
}

static int64_t element_offset(const struct row *row, int64_t head, int64_t d) {
    if (row->part)
        return row->first + pkv_cache_part_element(row->part, head, d);
    return row->first + (head * row->tensor->strides[1] + d * row->tensor->strides[2]) *
                            pkv_dtype_bytes(row->tensor->dtype);
}

static enum pkv_status check_access(const struct row *row, int64_t offset, int64_t bytes,
                                    const char *function, struct pkv_error *error) {
    if (offset < 0 || offset > row->span_bytes - bytes)
        return pkv_error_set(error, PKV_STATUS_INTERNAL, function, NULL, PKV_ERROR_NONE, offset,
                             row->span_bytes, "an access would leave its tensor");
    return PKV_STATUS_OK;
}

static enum pkv_status copy_row(const struct row *dst, const struct row *src,
                                const struct pkv_cache_part *shape, const char *function,
                                struct pkv_error *error) {
    const int64_t bytes = shape->element_bytes;
    for (int64_t head = 0; head < shape->num_heads; head++) {
        for (int64_t d = 0; d < shape->head_size; d++) {
            const int64_t to = element_offset(dst, head, d);
            const int64_t from = element_offset(src, head, d);
            enum pkv_status status = check_access(dst, to, bytes, function, error);
            if (status == PKV_STATUS_OK)
                status = check_access(src, from, bytes, function, error);
            if (status != PKV_STATUS_OK)
                return status;
            memcpy(dst->data + to, src->data + from, (size_t)bytes);
        }
    }
    return PKV_STATUS_OK;
}

int64_t pkv_sim_tile_tokens(int64_t kv_dim) {
    return kv_dim <= 512 ? 32 : kv_dim <= 4096 ? 16 : 4;
}

static enum pkv_status scatter_token(const struct pkv_scatter_job *job, int64_t token, int64_t low,
                                     int64_t high, struct pkv_error *error) {
    const int64_t slot = pkv_vector_at(&job->step->slots, token);
    if (slot < low || slot >= high)
        return PKV_STATUS_OK;
    for (int32_t i = 0; i < job->num_sides; i++) {
        const struct pkv_scatter_side *side = &job->sides[i];
        const struct row dst = row_of_part(side->part, job->step->block_size, slot);
        const struct row src = row_of_tensor(&side->source, token);
        const enum pkv_status status = copy_row(&dst, &src, side->part, job->function, error);
        if (status != PKV_STATUS_OK)
            return status;
    }
    return PKV_STATUS_OK;
}

enum pkv_status pkv_sim_scatter(const struct pkv_scatter_job *job, int64_t part, int64_t num_parts,
                                struct pkv_error *error) {
    const struct pkv_slot_part range = pkv_step_slot_part(job->step, part, num_parts);
    const struct pkv_cache_part *key = job->sides[0].part;
    struct pkv_tile_loop loop;
    struct pkv_tile tile;
    enum pkv_status status =
        pkv_tile_loop_init(&loop, range.end_token - range.first_token,
                           pkv_sim_tile_tokens(key->num_heads * key->head_size), NULL, 0, error);
    while (status == PKV_STATUS_OK && pkv_tile_loop_next(&loop, &tile)) {
        for (int64_t i = 0; i < tile.valid && status == PKV_STATUS_OK; i++)
            status = scatter_token(job, range.first_token + tile.offset + i, range.low, range.high,
                                   error);
    }
    return status;
}

enum pkv_status pkv_sim_scatter_row(const struct pkv_cache_part *part, int64_t block_size,
                                    int64_t slot, const struct pkv_tensor *rows, int64_t token,
                                    const char *function, struct pkv_error *error) {
    const struct row dst = row_of_part(part, block_size, slot);
    const struct row src = row_of_tensor(rows, token);
    return copy_row(&dst, &src, part, function, error);
}

enum pkv_status pkv_sim_mean_row(const struct pkv_cache_part *part, int64_t block_size,
                                 int64_t slot, const struct pkv_tensor *rows, int64_t first_token,
                                 int64_t num_tokens, enum pkv_mean_type type, const char *function,
                                 struct pkv_error *error) {
    const struct row dst = row_of_part(part, block_size, slot);
    const struct row first = row_of_tensor(rows, first_token);
    const int64_t bytes = part->element_bytes;
    struct pkv_kernels definition;
    pkv_mean_init_c(&definition);
    enum pkv_status status = PKV_STATUS_OK;
    for (int64_t i = 0; i < num_tokens; i++) {
        const struct row src = row_of_tensor(rows, first_token + i);
        for (int64_t d = 0; d < part->head_size && status == PKV_STATUS_OK; d++)
            status = check_access(&src, element_offset(&src, 0, d), bytes, function, error);
    }
    for (int64_t d = 0; d < part->head_size; d++) {
        const int64_t to = element_offset(&dst, 0, d);
        if (status == PKV_STATUS_OK)
            status = check_access(&dst, to, bytes, function, error);
        if (status != PKV_STATUS_OK)
            return status;
        union {
            float number;
            int64_t integer;
        } sum = {.integer = 0}; /* of all types: no bit is set in 0.0f either */
        definition.mean_add[type](&sum, first.data + element_offset(&first, 0, d),
                                  rows->strides[0] * bytes, num_tokens, bytes, 1);
        definition.mean_store[type](dst.data + to, &sum, num_tokens, 1);
    }
    return PKV_STATUS_OK;
}

enum pkv_status pkv_sim_gather_row(const struct pkv_cache_part *part, int64_t block_size,
                                   int64_t slot, const struct pkv_tensor *rows, int64_t token,
                                   const char *function, struct pkv_error *error) {
    const struct row src = row_of_part(part, block_size, slot);
    const struct row dst = row_of_tensor(rows, token);
    return copy_row(&dst, &src, part, function, error);
}

enum pkv_status pkv_sim_convert_row(const struct pkv_cache_part *src,
                                    const struct pkv_cache_part *dst, int64_t block_size,
                                    int64_t src_slot, int64_t dst_slot, const char *function,
                                    struct pkv_error *error) {
    const struct row from = row_of_part(src, block_size, src_slot);
    const struct row to = row_of_part(dst, block_size, dst_slot);
    return copy_row(&to, &from, dst, function, error);
}
