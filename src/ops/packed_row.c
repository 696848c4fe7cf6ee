/* SPDX-License-Identifier: MIT
 *
 * Packed rows: which columns a published format has, as caches of their own.
 */
#include <pagedkv/scatter_rows.h>

#include "base/error.h"
#include "geometry/tensor.h"

enum { NUM_PACKED_ROWS = PKV_PACKED_ROW_MLA_F8_F32_BF16 + 1 };

/* The largest element of a column: every column starts at a multiple of its own element. */
enum { COLUMN_ALIGNMENT = 4 };

static const struct {
    int64_t row_bytes;
    struct {
        int32_t dtype;
        int64_t width;
    } columns[PKV_PACKED_ROW_COLUMNS];
} formats[NUM_PACKED_ROWS] = {
    [PKV_PACKED_ROW_MLA_I8_BF16_F32] =
        {656, {{PKV_DTYPE_I8, 512}, {PKV_DTYPE_BF16, 64}, {PKV_DTYPE_F32, 4}}},
    [PKV_PACKED_ROW_MLA_F8_F32_BF16] =
        {656, {{PKV_DTYPE_F8_E4M3FN, 512}, {PKV_DTYPE_F32, 4}, {PKV_DTYPE_BF16, 64}}},
};

static enum pkv_status check_cache(const struct pkv_tensor *cache, int64_t row_bytes,
                                   const char *function, struct pkv_error *error) {
    const int32_t last = cache->ndim - 1;
    if (pkv_dtype_bytes(cache->dtype) != 1)
        return pkv_error_set(error, PKV_STATUS_DTYPE, function, "cache", PKV_ERROR_NONE,
                             cache->dtype, PKV_ERROR_NONE, "must have a dtype of one byte");
    if (cache->ndim != 3 && cache->ndim != 4)
        return pkv_error_set(error, PKV_STATUS_RANK, function, "cache", PKV_ERROR_NONE, cache->ndim,
                             PKV_ERROR_NONE,
                             "must be [num_blocks, block_size, row] or with one head before row");
    if (cache->shape[last] != row_bytes)
        return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function, "cache", last,
                                  cache->shape[last], row_bytes, "must be the bytes of a row");
    if (cache->ndim == 4 && cache->shape[2] != 1)
        return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function, "cache", 2, cache->shape[2], 1,
                                  "must be");
    for (int32_t axis = 0; axis < 2; axis++) {
        if (cache->shape[axis] > 1 && cache->strides[axis] % COLUMN_ALIGNMENT != 0)
            return pkv_error_set_axis(error, PKV_STATUS_STRIDE, function, "cache", axis,
                                      cache->strides[axis], COLUMN_ALIGNMENT,
                                      "must be a multiple of the largest element of a column");
    }
    if (pkv_tensor_num_elements(cache) > 0 && cache->strides[last] != 1)
        return pkv_error_set_axis(error, PKV_STATUS_STRIDE, function, "cache", last,
                                  cache->strides[last], 1,
                                  "must have the stride of adjacent elements");
    if ((uintptr_t)cache->data % COLUMN_ALIGNMENT != 0)
        return pkv_error_set(error, PKV_STATUS_MISALIGNED, function, "cache", PKV_ERROR_NONE,
                             PKV_ERROR_NONE, COLUMN_ALIGNMENT,
                             "must be aligned to the largest element of a column");
    return PKV_STATUS_OK;
}

enum pkv_status pkv_packed_row_columns(int32_t packed_row, const struct pkv_tensor *cache,
                                       struct pkv_tensor *columns, struct pkv_error *error) {
    if (cache == NULL || columns == NULL)
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, __func__,
                             cache == NULL ? "cache" : "columns", PKV_ERROR_NONE, PKV_ERROR_NONE,
                             PKV_ERROR_NONE, "must not be NULL");
    if (packed_row < 0 || packed_row >= NUM_PACKED_ROWS)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "packed_row",
                             PKV_ERROR_NONE, packed_row, PKV_ERROR_NONE,
                             "must be one of enum pkv_packed_row");
    struct pkv_tensor packed;
    enum pkv_status status =
        pkv_tensor_read(&packed, cache, &(struct pkv_where){__func__, "cache", error});
    if (status == PKV_STATUS_OK)
        status = check_cache(&packed, formats[packed_row].row_bytes, __func__, error);
    if (status != PKV_STATUS_OK)
        return status;
    char *first = packed.data;
    for (int32_t i = 0; i < PKV_PACKED_ROW_COLUMNS; i++) {
        const int32_t dtype = formats[packed_row].columns[i].dtype;
        const int64_t width = formats[packed_row].columns[i].width;
        const int64_t bytes = pkv_dtype_bytes(dtype);
        const int64_t shape[4] = {packed.shape[0], packed.shape[1], 1, width};
        columns[i] = pkv_tensor_make(first, dtype, 4, shape);
        columns[i].strides[0] = packed.strides[0] / bytes;
        columns[i].strides[1] = packed.strides[1] / bytes;
        columns[i].strides[2] = width;
        columns[i].strides[3] = 1;
        if (first)
            first += width * bytes;
    }
    return PKV_STATUS_OK;
}
