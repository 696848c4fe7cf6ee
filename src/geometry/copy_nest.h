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

/* The innermost level is the last of the array; unused levels are the first ones. num_levels 0: the whole
 * row is one piece, and the levels are not set. */
struct pkv_copy_nest {
    int64_t piece_bytes;
    int32_t num_levels;
    struct pkv_copy_level level[PKV_COPY_LEVELS];
};

struct pkv_row_shape pkv_row_shape_of_part(const struct pkv_cache_part *part);

/* tensor is resolved: [rows, num_heads, head_size], any strides. */
struct pkv_row_shape pkv_row_shape_of_tensor(const struct pkv_tensor *tensor);

/* The same row with all its bytes adjacent. */
struct pkv_row_shape pkv_row_shape_dense(const struct pkv_row_shape *shape);

/* The two shapes have the same num_heads and head_bytes, and the larger fragment is a multiple of the smaller
 * one: true for every pair of layouts (a head, 32 bytes, 16 bytes, an element). */
void pkv_copy_nest_init(struct pkv_copy_nest *nest, const struct pkv_row_shape *dst,
                        const struct pkv_row_shape *src);

#endif
