/* SPDX-License-Identifier: MIT
 *
 * Element types and tensor descriptions: sizes, default strides, and the proof that every element
 * has an address.
 */
#include "geometry/tensor.h"

#include <string.h>
#include <strings.h>

#include "base/checked.h"
#include "base/error.h"

const struct pkv_dtype_info pkv_dtypes[PKV_NUM_DTYPES] = {
    [PKV_DTYPE_INVALID] = {"invalid", 0},
    [PKV_DTYPE_F32] = {"f32", 4},
    [PKV_DTYPE_F16] = {"f16", 2},
    [PKV_DTYPE_BF16] = {"bf16", 2},
    [PKV_DTYPE_I8] = {"i8", 1},
    [PKV_DTYPE_I16] = {"i16", 2},
    [PKV_DTYPE_I32] = {"i32", 4},
    [PKV_DTYPE_U8] = {"u8", 1},
    [PKV_DTYPE_U16] = {"u16", 2},
    [PKV_DTYPE_U32] = {"u32", 4},
    [PKV_DTYPE_HIFLOAT8] = {"hifloat8", 1},
    [PKV_DTYPE_F8_E5M2] = {"f8_e5m2", 1},
    [PKV_DTYPE_F8_E4M3FN] = {"f8_e4m3fn", 1},
    [PKV_DTYPE_I64] = {"i64", 8},
    [PKV_DTYPE_BOOL] = {"bool", 1},
};

int64_t pkv_dtype_bytes(int32_t dtype) {
    return dtype > 0 && dtype < PKV_NUM_DTYPES ? pkv_dtypes[dtype].bytes : 0;
}

const char *pkv_dtype_name(int32_t dtype) {
    return pkv_dtypes[dtype > 0 && dtype < PKV_NUM_DTYPES ? dtype : 0].name;
}

int32_t pkv_dtype_from_name(const char *name) {
    for (int32_t i = 1; name && i < PKV_NUM_DTYPES; i++) {
        if (strcasecmp(name, pkv_dtypes[i].name) == 0)
            return i;
    }
    return PKV_DTYPE_INVALID;
}

bool pkv_dtype_is_cache(int32_t dtype) {
    return dtype >= PKV_DTYPE_F32 && dtype <= PKV_DTYPE_F8_E4M3FN;
}

bool pkv_dtype_is_index(int32_t dtype) {
    return dtype == PKV_DTYPE_I32 || dtype == PKV_DTYPE_I64;
}

struct pkv_tensor pkv_tensor_make(void *data, int32_t dtype, int32_t ndim, const int64_t *shape) {
    struct pkv_tensor tensor = {.data = data, .dtype = dtype, .ndim = ndim};
    for (int32_t i = 0; shape && i < ndim && i < PKV_MAX_DIMS; i++)
        tensor.shape[i] = shape[i];
    return tensor;
}

/* Contiguous strides, and the number of elements, which is also the span. With an empty dimension the
 * product of the others may not fit; no element has an address then, and the strides only need to be some
 * numbers. */
static bool fill_strides(struct pkv_tensor *tensor, int64_t *count) {
    *count = 1;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        tensor->strides[i] = *count;
        if (tensor->shape[i] > 1 && !pkv_checked_mul(*count, tensor->shape[i], count))
            return false;
    }
    return true;
}

/* Elements, and elements from the first to behind the last, of a tensor without empty dimensions. */
static bool measure(const struct pkv_tensor *tensor, int64_t *count, int64_t *span) {
    *count = *span = 1;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t reach;
        if (!pkv_checked_mul(tensor->shape[i] - 1, tensor->strides[i], &reach) ||
            !pkv_checked_add(*span, reach, span) ||
            !pkv_checked_mul(*count, tensor->shape[i], count))
            return false;
    }
    return true;
}

/* No machine has a quarter of the 64-bit addresses; below that, one step beyond the end of any axis, and the
 * sum of two sizes, still fit, and nobody need check again. */
#define MAX_BYTES (INT64_C(1) << 61)

/* Field by field, and only the axes that there are: a caller has often just written the tensor, and a copy of the whole
 * struct would read by vectors what was written by words, which has to wait until the words are in the cache. */
static enum pkv_status resolve(struct pkv_tensor *to, bool *is_empty,
                               const struct pkv_tensor *tensor, const struct pkv_where *where) {
    const char *function = where->function, *argument = where->argument;
    const int64_t none = PKV_ERROR_NONE;
    if (tensor->dtype <= PKV_DTYPE_INVALID || tensor->dtype >= PKV_NUM_DTYPES)
        return pkv_error_set(where->error, PKV_STATUS_DTYPE, function, argument, none,
                             tensor->dtype, none, "must have a dtype of enum pkv_dtype");
    if (tensor->ndim < 0 || tensor->ndim > PKV_MAX_DIMS)
        return pkv_error_set(where->error, PKV_STATUS_RANK, function, argument, none, tensor->ndim,
                             PKV_MAX_DIMS,
                             "must have a number of dimensions from 0 to the maximum");
    const int64_t element_bytes = pkv_dtypes[tensor->dtype].bytes;
    to->data = tensor->data;
    to->dtype = tensor->dtype;
    to->ndim = tensor->ndim;
    bool empty = false, has_strides = false;
    for (int32_t i = 0; i < to->ndim; i++) {
        const int64_t size = tensor->shape[i], stride = tensor->strides[i];
        if (size < 0)
            return pkv_error_set_axis(where->error, PKV_STATUS_SHAPE, function, argument, i, size,
                                      none, "must not be negative");
        if (stride < 0)
            return pkv_error_set_axis(where->error, PKV_STATUS_STRIDE, function, argument, i,
                                      stride, none, "must not have a negative stride");
        to->shape[i] = size;
        to->strides[i] = stride;
        empty = empty || size == 0;
        has_strides = has_strides || stride != 0;
    }
    *is_empty = empty;
    int64_t count = 0, span = 0;
    bool fits;
    if (has_strides) {
        fits = empty || measure(to, &count, &span);
    } else {
        fits = fill_strides(to, &count) || empty;
        span = count;
    }
    int64_t bytes;
    fits = fits && (empty || (pkv_checked_mul(count < span ? span : count, element_bytes, &bytes) &&
                              bytes <= MAX_BYTES));
    if (!fits)
        return pkv_error_set(where->error, PKV_STATUS_OVERFLOW, function, argument, none, none,
                             MAX_BYTES, "has more bytes than sizes may have");
    if (to->data == NULL && !empty)
        return pkv_error_set(where->error, PKV_STATUS_NULL_ARGUMENT, function, argument, none, none,
                             none, "has elements, but its data is NULL");
    if (((uintptr_t)to->data & (uintptr_t)(element_bytes - 1)) != 0)
        return pkv_error_set(where->error, PKV_STATUS_MISALIGNED, function, argument, none, none,
                             element_bytes, "must be aligned to the bytes of its element");
    return PKV_STATUS_OK;
}

enum pkv_status pkv_tensor_read(struct pkv_tensor *to, const struct pkv_tensor *tensor,
                                const struct pkv_where *where) {
    if (tensor == NULL)
        return pkv_error_set(where->error, PKV_STATUS_NULL_ARGUMENT, where->function,
                             where->argument, PKV_ERROR_NONE, PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "must not be NULL");
    bool empty;
    const enum pkv_status status = resolve(to, &empty, tensor, where);
    if (status != PKV_STATUS_OK)
        return status;
    /* The stride of a single step, and that of no element, is never used, and may be any number: make it one
     * that fits everywhere. */
    for (int32_t i = 0; i < to->ndim; i++) {
        if (empty || to->shape[i] == 1)
            to->strides[i] = 0;
    }
    return PKV_STATUS_OK;
}

enum pkv_status pkv_tensor_resolve(struct pkv_tensor *tensor, struct pkv_error *error) {
    const struct pkv_where where = {__func__, "tensor", error};
    struct pkv_tensor resolved;
    if (tensor == NULL)
        return pkv_tensor_read(&resolved, NULL, &where);
    bool empty;
    resolved = *tensor;
    const enum pkv_status status = resolve(&resolved, &empty, tensor, &where);
    if (status == PKV_STATUS_OK)
        *tensor = resolved;
    return status;
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
