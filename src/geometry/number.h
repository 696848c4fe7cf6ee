/* SPDX-License-Identifier: MIT
 *
 * Single numbers of float32, float16 or bfloat16 in memory, for code that is written for clarity.
 * Kernels have loads and stores of their own.
 */
#ifndef PKV_GEOMETRY_NUMBER_H
#define PKV_GEOMETRY_NUMBER_H

#include <math.h>
#include <string.h>

#include <pagedkv/tensor.h>

#include "base/formats.h"

static inline float pkv_number_read(const char *from, int32_t dtype) {
    float f32;
    uint16_t half;
    if (dtype == PKV_DTYPE_F32) {
        memcpy(&f32, from, sizeof(f32));
        return f32;
    }
    memcpy(&half, from, sizeof(half));
    return dtype == PKV_DTYPE_F16 ? pkv_f16_to_f32(half) : pkv_bf16_to_f32(half);
}

/* Rounds to nearest even; what is not a number becomes the positive quiet NaN. */
static inline void pkv_number_write(char *to, int32_t dtype, float number) {
    const float f32 = isnan(number) ? (float)NAN : number;
    const uint16_t half = dtype == PKV_DTYPE_F16 ? pkv_f32_to_f16(f32) : pkv_f32_to_bf16(f32);
    if (dtype == PKV_DTYPE_F32)
        memcpy(to, &f32, sizeof(f32));
    else
        memcpy(to, &half, sizeof(half));
}

#endif
