/* SPDX-License-Identifier: MIT
 *
 * Tensors as internal code sees them: resolved, and in the shape that an operator asks for.
 */
#ifndef PKV_GEOMETRY_TENSOR_H
#define PKV_GEOMETRY_TENSOR_H

#include <pagedkv/tensor.h>

#include <stdbool.h>

#include "base/dtype.h"

/* What a refusal is reported about. */
struct pkv_where {
    const char *function;
    const char *argument;
    struct pkv_error *error;
};

/* The checks of pkv_tensor_resolve, reported as `where` says, and a copy of the axes that there
 * are, with strides that can be multiplied by any index: those of resolve, but 1 where a stride of
 * the caller's own is never used. What was read may be read again. tensor is nullable:
 * NULL_ARGUMENT. */
enum pkv_status pkv_tensor_read(struct pkv_tensor *to, const struct pkv_tensor *tensor,
                                const struct pkv_where *where);

/* A one-dimensional (or, with ndim 2, two-dimensional) tensor of int32 or int64, resolved. */
enum pkv_status pkv_tensor_read_index(struct pkv_tensor *to, const struct pkv_tensor *tensor,
                                      int32_t ndim, const struct pkv_where *where);

/* An optional tensor is absent. */
static inline bool pkv_tensor_is_absent(const struct pkv_tensor *tensor) {
    return tensor == NULL || (tensor->ndim == 0 && tensor->data == NULL);
}

/* The tensor is resolved, so that the product is known to fit. */
int64_t pkv_tensor_num_elements(const struct pkv_tensor *tensor);

/* Bytes from the first to behind the last element of a tensor that pkv_tensor_read gave. ndim: its
 * own, which a caller that knows it need not look up. */
static inline int64_t pkv_tensor_span(const struct pkv_tensor *tensor, int32_t ndim) {
    int64_t last = 0;
    bool is_empty = false;
    for (int32_t i = 0; i < ndim; i++) {
        is_empty |= tensor->shape[i] == 0;
        last += (tensor->shape[i] - 1) * tensor->strides[i];
    }
    return is_empty ? 0 : (last + 1) * pkv_dtypes[tensor->dtype].bytes;
}

/* Bytes from one index of an axis to the next, of a resolved tensor. */
static inline int64_t pkv_tensor_stride_bytes(const struct pkv_tensor *tensor, int32_t axis) {
    return tensor->strides[axis] * pkv_dtypes[tensor->dtype].bytes;
}

/* Where element [i, j] is, or with a third axis the row [i, j]. */
static inline char *pkv_tensor_at(const struct pkv_tensor *tensor, int64_t i, int64_t j) {
    return (char *)tensor->data + i * pkv_tensor_stride_bytes(tensor, 0) +
           j * pkv_tensor_stride_bytes(tensor, 1);
}

/* All elements adjacent in C order (an empty tensor is). The tensor is resolved. */
bool pkv_tensor_is_contiguous(const struct pkv_tensor *tensor);

#endif
