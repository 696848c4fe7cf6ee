/* SPDX-License-Identifier: MIT
 *
 * How the bytes of a row move from one place to another, when both may lie in fragments: pieces of
 * equal size in at most three nested levels of equal steps. Layouts and strides end here; kernels
 * see a piece, counts and steps.
 */
#ifndef PKV_GEOMETRY_COPY_NEST_H
#define PKV_GEOMETRY_COPY_NEST_H

#include "geometry/cache.h"

/* Where the bytes of a row lie, relative to its first byte. */
struct pkv_row_shape {
    int64_t num_heads;
    int64_t head_stride;
    int64_t head_bytes;
    int64_t fragment_stride;
    int64_t fragment_bytes; /* divides head_bytes */
};

struct pkv_copy_level {
    int64_t count; /* at least 2; 1 in an unused level */
    int64_t dst_stride;
    int64_t src_stride;
};

#define PKV_COPY_LEVELS 3

/* The innermost level is the last of the array; unused levels are the first ones. num_levels 0: the
 * whole row is one piece, and the levels are not set. */
struct pkv_copy_nest {
    int64_t piece_bytes;
    int32_t num_levels;
    struct pkv_copy_level level[PKV_COPY_LEVELS];
};

static inline struct pkv_row_shape pkv_row_shape_of_part(const struct pkv_cache_part *part) {
    return (struct pkv_row_shape){
        .num_heads = part->num_heads,
        .head_stride = part->head_stride_bytes,
        .head_bytes = part->head_size * part->element_bytes,
        .fragment_stride = part->fragment_stride_bytes,
        .fragment_bytes = part->fragment_bytes,
    };
}

/* tensor is resolved: [rows, num_heads, head_size], any strides. */
static inline struct pkv_row_shape pkv_row_shape_of_tensor(const struct pkv_tensor *tensor) {
    const int64_t element_bytes = pkv_dtypes[tensor->dtype].bytes;
    const bool adjacent = tensor->strides[2] == 1 || tensor->shape[2] == 1;
    return (struct pkv_row_shape){
        .num_heads = tensor->shape[1],
        .head_stride = tensor->shape[1] == 1 ? 0 : tensor->strides[1] * element_bytes,
        .head_bytes = tensor->shape[2] * element_bytes,
        .fragment_stride = adjacent ? 0 : tensor->strides[2] * element_bytes,
        .fragment_bytes = adjacent ? tensor->shape[2] * element_bytes : element_bytes,
    };
}

/* The same row with all its bytes adjacent. */
struct pkv_row_shape pkv_row_shape_dense(const struct pkv_row_shape *shape);

static inline bool pkv_row_shape_is_dense(const struct pkv_row_shape *shape) {
    return shape->fragment_bytes == shape->head_bytes &&
           (shape->num_heads == 1 || shape->head_stride == shape->head_bytes);
}

/* pkv_copy_nest_init for rows of which one is not all adjacent bytes. */
void pkv_copy_nest_divide(struct pkv_copy_nest *nest, const struct pkv_row_shape *dst,
                          const struct pkv_row_shape *src);

/* The two shapes have the same num_heads and head_bytes, and the larger fragment is a multiple of
 * the smaller one: true for every pair of layouts (a head, 32 bytes, 16 bytes, an element). */
static inline void pkv_copy_nest_init(struct pkv_copy_nest *nest, const struct pkv_row_shape *dst,
                                      const struct pkv_row_shape *src) {
    if (pkv_row_shape_is_dense(dst) && pkv_row_shape_is_dense(src)) {
        nest->num_levels = 0;
        nest->piece_bytes = dst->num_heads * dst->head_bytes;
    } else {
        pkv_copy_nest_divide(nest, dst, src);
    }
}

/* pkv_copy_nest_init from the rows of a resolved tensor to those of a part, without shapes where
 * all bytes of a row are adjacent on both sides: a scatter of one token takes 0.95 of the time, of
 * eight 0.97. */
static inline void pkv_copy_nest_to_part(struct pkv_copy_nest *nest,
                                         const struct pkv_cache_part *part,
                                         const struct pkv_tensor *rows) {
    const bool source_is_dense = (rows->shape[2] == 1 || rows->strides[2] == 1) &&
                                 (rows->shape[1] == 1 || rows->strides[1] == rows->shape[2]);
    const bool part_is_dense =
        part->num_heads * part->fragment_bytes == part->row_bytes &&
        (part->num_heads == 1 || part->head_stride_bytes == part->fragment_bytes);
    if (source_is_dense && part_is_dense) {
        nest->num_levels = 0;
        nest->piece_bytes = part->row_bytes;
    } else {
        const struct pkv_row_shape to = pkv_row_shape_of_part(part);
        const struct pkv_row_shape from = pkv_row_shape_of_tensor(rows);
        pkv_copy_nest_divide(nest, &to, &from);
    }
}

#endif
