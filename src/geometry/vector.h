/* SPDX-License-Identifier: MIT
 *
 * A vector of integers as indices come in: any integer type, any step.
 */
#ifndef PKV_GEOMETRY_VECTOR_H
#define PKV_GEOMETRY_VECTOR_H

#include "geometry/strided.h"
#include "geometry/tensor.h"

struct pkv_vector {
    const void *data; /* NULL: absent */
    int32_t dtype;    /* I16, I32 or I64 */
    int64_t stride;   /* in elements */
    int64_t count;
};

static inline int64_t pkv_vector_at(const struct pkv_vector *vector, int64_t i) {
    switch (vector->dtype) {
    case PKV_DTYPE_I16:
        return ((const int16_t *)vector->data)[i * vector->stride];
    case PKV_DTYPE_I32:
        return ((const int32_t *)vector->data)[i * vector->stride];
    default:
        return ((const int64_t *)vector->data)[i * vector->stride];
    }
}

/* The vector along `axis` of a resolved tensor, at index 0 of the other axes. */
static inline struct pkv_vector pkv_vector_along(const struct pkv_tensor *tensor, int32_t axis) {
    return (struct pkv_vector){.data = tensor->data,
                               .dtype = tensor->dtype,
                               .stride = tensor->strides[axis],
                               .count = tensor->shape[axis]};
}

/* The same vector, `elements` elements further on in memory. */
struct pkv_vector pkv_vector_offset(const struct pkv_vector *vector, int64_t elements);

/* The smallest i in [first, end) with an entry below 0 or at least bound, or end. */
int64_t pkv_vector_find_outside(const struct pkv_vector *vector, int64_t first, int64_t end,
                                int64_t bound);

/* Bytes from the first to behind the last entry. */
static inline int64_t pkv_vector_span(const struct pkv_vector *vector) {
    return vector->count == 0
               ? 0
               : ((vector->count - 1) * vector->stride + 1) * pkv_dtypes[vector->dtype].bytes;
}

struct pkv_strided pkv_vector_bytes(const struct pkv_vector *vector);

/* Does a non-negative number stand twice in the vector? The number of an entry that repeats another
 * one, or -1. Needs no memory; reads the vector once for each 2,048 of its entries. */
int64_t pkv_vector_find_repeat(const struct pkv_vector *vector);

/* The same among those entries alone that keeps, given user and an entry's number, says yes to. */
int64_t pkv_vector_find_repeat_among(const struct pkv_vector *vector,
                                     bool (*keeps)(const void *user, int64_t i), const void *user);

/* The number of a probe that is one of the (non-negative, distinct) members, or -1. */
int64_t pkv_vector_find_common(const struct pkv_vector *members, const struct pkv_vector *probes);

#endif
