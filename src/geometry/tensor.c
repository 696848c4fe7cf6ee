/* SPDX-License-Identifier: MIT
 *
 * Tensor descriptions: default strides, and the proof that every element has an address.
 */
#include "geometry/tensor.h"

#include "base/checked.h"
#include "base/error.h"

/* Field by field to where the caller wants it, which GCC does for a literal of values alone: the
 * copy of a struct that was just written has to wait until everything stored before it, rows of a
 * cache for example, has reached the cache. */
struct pkv_tensor pkv_tensor_make(void *data, int32_t dtype, int32_t ndim, const int64_t *shape) {
    int64_t n[PKV_MAX_DIMS];
    for (int32_t i = 0; i < PKV_MAX_DIMS; i++)
        n[i] = shape && i < ndim ? shape[i] : 0;
    return (struct pkv_tensor){
        data, dtype, ndim, {n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]}, {0}};
}

/* Sizes and strides may be anything; the first that is negative is reported. */
static enum pkv_status refuse_negative(const struct pkv_tensor *tensor,
                                       const struct pkv_where *where) {
    int32_t axis = 0;
    while (tensor->shape[axis] >= 0 && tensor->strides[axis] >= 0)
        axis++;
    if (tensor->shape[axis] < 0)
        return pkv_error_set_axis(where->error, PKV_STATUS_SHAPE, where->function, where->argument,
                                  axis, tensor->shape[axis], PKV_ERROR_NONE,
                                  "must not be negative");
    return pkv_error_set_axis(where->error, PKV_STATUS_STRIDE, where->function, where->argument,
                              axis, tensor->strides[axis], PKV_ERROR_NONE,
                              "must not have a negative stride");
}

/* The tensor's own strides, and with them the elements from the first to behind the last one. The
 * stride of a single step is never used, and may be any number: make it one that fits everywhere.
 * Not 0: strides that are all 0 would be taken for C order when the tensor is read again. */
static bool take_strides(struct pkv_tensor *to, const struct pkv_tensor *tensor, int64_t *span) {
    *span = 1;
    for (int32_t i = 0; i < to->ndim; i++) {
        int64_t reach;
        to->strides[i] = to->shape[i] == 1 ? 1 : tensor->strides[i];
        if (!pkv_checked_mul(to->shape[i] - 1, tensor->strides[i], &reach) ||
            !pkv_checked_add(*span, reach, span))
            return false;
    }
    return true;
}

/* No machine has a quarter of the 64-bit addresses; below that, one step beyond the end of any
 * axis, and the sum of two sizes, still fit, and nobody need check again. */
#define MAX_BYTES (INT64_C(1) << 61)

/* Field by field (dtype and ndim apart, or the compiler takes them for one), and only the axes that
 * there are: a caller has often just written the tensor, and what was written by words cannot be
 * read by larger pieces before the words are in the cache. The one loop adds up what it finds,
 * since every call of a small step comes through here several times. */
enum pkv_status pkv_tensor_read(struct pkv_tensor *to, const struct pkv_tensor *tensor,
                                const struct pkv_where *where) {
    const char *const function = where->function, *const argument = where->argument;
    const int64_t none = PKV_ERROR_NONE;
    if (tensor == NULL)
        return pkv_error_set(where->error, PKV_STATUS_NULL_ARGUMENT, function, argument, none, none,
                             none, "must not be NULL");
    if (tensor->dtype <= PKV_DTYPE_INVALID || tensor->dtype >= PKV_NUM_DTYPES)
        return pkv_error_set(where->error, PKV_STATUS_DTYPE, function, argument, none,
                             tensor->dtype, none, "must have a dtype of enum pkv_dtype");
    to->dtype = tensor->dtype;
    if (tensor->ndim < 0 || tensor->ndim > PKV_MAX_DIMS)
        return pkv_error_set(where->error, PKV_STATUS_RANK, function, argument, none, tensor->ndim,
                             PKV_MAX_DIMS,
                             "must have a number of dimensions from 0 to the maximum");
    const int64_t element_bytes = pkv_dtypes[tensor->dtype].bytes;
    to->data = tensor->data;
    to->ndim = tensor->ndim;
    int64_t count = 1, signs = 0, strides = 0;
    bool empty = false, fits = true;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        const int64_t size = tensor->shape[i], stride = tensor->strides[i];
        signs |= size | stride;
        strides |= stride;
        to->shape[i] = size;
        to->strides[i] = count;
        empty |= size == 0;
        fits &= pkv_checked_mul(count, size, &count);
    }
    if (signs < 0)
        return refuse_negative(tensor, where);
    int64_t span = count, bytes;
    if (empty) {
        /* However large the other axes are: no element has an address. */
        for (int32_t i = 0; i < to->ndim; i++)
            to->strides[i] = 0;
    } else {
        fits = fits && (strides == 0 || take_strides(to, tensor, &span)) &&
               pkv_checked_mul(count < span ? span : count, element_bytes, &bytes) &&
               bytes <= MAX_BYTES;
        if (!fits)
            return pkv_error_set(where->error, PKV_STATUS_OVERFLOW, function, argument, none, none,
                                 MAX_BYTES, "has more bytes than sizes may have");
        if (to->data == NULL)
            return pkv_error_set(where->error, PKV_STATUS_NULL_ARGUMENT, function, argument, none,
                                 none, none, "has elements, but its data is NULL");
    }
    if (((uintptr_t)to->data & (uintptr_t)(element_bytes - 1)) != 0)
        return pkv_error_set(where->error, PKV_STATUS_MISALIGNED, function, argument, none, none,
                             element_bytes, "must be aligned to the bytes of its element");
    return PKV_STATUS_OK;
}

enum pkv_status pkv_tensor_resolve(struct pkv_tensor *tensor, struct pkv_error *error) {
    struct pkv_tensor read;
    const enum pkv_status status =
        pkv_tensor_read(&read, tensor, &(struct pkv_where){__func__, "tensor", error});
    if (status != PKV_STATUS_OK)
        return status;
    int64_t strides = 0;
    for (int32_t i = 0; i < tensor->ndim; i++)
        strides |= tensor->strides[i];
    /* With an empty dimension the product of the others may not fit; the strides only need to be
     * some numbers then. */
    int64_t count = 1;
    bool fits = strides == 0;
    for (int32_t i = tensor->ndim - 1; i >= 0 && fits; i--) {
        tensor->strides[i] = count;
        fits = tensor->shape[i] == 0 || pkv_checked_mul(count, tensor->shape[i], &count);
    }
    return PKV_STATUS_OK;
}

enum pkv_status pkv_tensor_read_index(struct pkv_tensor *to, const struct pkv_tensor *tensor,
                                      int32_t ndim, const struct pkv_where *where) {
    const enum pkv_status status = pkv_tensor_read(to, tensor, where);
    if (status != PKV_STATUS_OK)
        return status;
    if (!pkv_dtype_is_index(to->dtype))
        return pkv_error_set(where->error, PKV_STATUS_DTYPE, where->function, where->argument,
                             PKV_ERROR_NONE, to->dtype, PKV_ERROR_NONE, "must be int32 or int64");
    if (to->ndim != ndim)
        return pkv_error_set(where->error, PKV_STATUS_RANK, where->function, where->argument,
                             PKV_ERROR_NONE, to->ndim, ndim,
                             "must have the right number of dimensions");
    return PKV_STATUS_OK;
}

int64_t pkv_tensor_num_elements(const struct pkv_tensor *tensor) {
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] == 0)
            return 0;
    }
    for (int32_t i = 0; i < tensor->ndim; i++)
        count *= tensor->shape[i];
    return count;
}

bool pkv_tensor_is_contiguous(const struct pkv_tensor *tensor) {
    int64_t stride = 1;
    if (pkv_tensor_num_elements(tensor) == 0)
        return true;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != stride)
            return false;
        stride *= tensor->shape[i];
    }
    return true;
}
