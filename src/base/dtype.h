/* SPDX-License-Identifier: MIT
 *
 * Element types as internal code sees them: beside the public questions a table, and two kinds.
 */
#ifndef PKV_BASE_DTYPE_H
#define PKV_BASE_DTYPE_H

#include <pagedkv/tensor.h>

#include <stdbool.h>

enum { PKV_NUM_DTYPES = PKV_DTYPE_BOOL + 1 };

/* By enum pkv_dtype. */
struct pkv_dtype_info {
    const char *name;
    int64_t bytes;
};
extern const struct pkv_dtype_info pkv_dtypes[PKV_NUM_DTYPES];

/* True for one of the twelve element types of a cache. */
bool pkv_dtype_is_cache(int32_t dtype);

/* True for int32 and int64. */
bool pkv_dtype_is_index(int32_t dtype);

#endif
