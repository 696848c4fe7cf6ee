/* SPDX-License-Identifier: MIT
 *
 * Sets of bytes in regular steps, and whether two of them share a byte. This is how overlap is
 * decided for caches that interleave, slices and strided sources alike.
 */
#ifndef PKV_GEOMETRY_STRIDED_H
#define PKV_GEOMETRY_STRIDED_H

#include <pagedkv/tensor.h>

#include <stdbool.h>

#define PKV_STRIDED_DIMS (PKV_MAX_DIMS + 1)

/* The bytes first + sum(i_k * stride[k]) + [0, unit), 0 <= i_k < count[k]. Strides are in bytes,
 * descending; counts are at least 2; first is an address. */
struct pkv_strided {
    int64_t first;
    int64_t unit; /* 0: the empty set */
    int32_t ndim;
    int64_t count[PKV_STRIDED_DIMS];
    int64_t stride[PKV_STRIDED_DIMS];
};

/* A set without dimensions: one run of bytes. */
struct pkv_strided pkv_strided_bytes(const void *first, int64_t unit);

/* Adds a dimension in its place in the order; count 0 empties the set, count 1 adds nothing. A
 * stride equal to the unit extends the unit. Add the innermost dimension first. */
void pkv_strided_add(struct pkv_strided *set, int64_t count, int64_t stride);

/* All elements of a resolved tensor. */
struct pkv_strided pkv_strided_from_tensor(const struct pkv_tensor *tensor);

/* Bytes from the first to behind the last one. */
int64_t pkv_strided_span(const struct pkv_strided *set);

/* True when every stride steps over all that the smaller ones reach: then no byte is named twice.
 * The reverse does not hold; such sets are refused as overlapping themselves. */
bool pkv_strided_is_injective(const struct pkv_strided *set);

/* False only if the sets share no byte. Exact when the sets advance in the same strides (two parts
 * of one pool) or their spans are disjoint; in other cases it may answer true where they only
 * interleave. */
bool pkv_strided_may_overlap(const struct pkv_strided *a, const struct pkv_strided *b);

#endif
