/* SPDX-License-Identifier: MIT
 *
 * Element types: names and sizes.
 */
#include "base/dtype.h"

#include <strings.h>

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
