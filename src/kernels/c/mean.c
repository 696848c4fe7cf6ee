/* SPDX-License-Identifier: MIT
 *
 * The definition of the mean of a window of rows, in two steps: sums are added up row after row,
 * then divided and stored. Precision and order are the operator's: float32, ascending, from zero.
 *
 * Zero rows add nothing; zero channels touch nothing. Infinities and NaN go through the sums by the
 * rules of IEEE 754; which NaN comes out of an addition depends on the processor, so the store
 * writes one and the same. Denormals are kept, in the default floating-point environment. bytes:
 * num_rows * num_channels elements read; one addition each.
 */
#include "kernels/c/mean.h"

#include <math.h>
#include <string.h>

#include "base/formats.h"

/* sums[c] = sums[c] + decode(x[r][c]), r ascending. */
#define DEFINE_ADD(name, element, sum, decode)                                                     \
    void pkv_mean_add_##name##_c(void *sums, const char *rows, int64_t row_stride,                 \
                                 int64_t num_rows, int64_t channel_stride, int64_t num_channels) { \
        sum *to = sums;                                                                            \
        for (int64_t r = 0; r < num_rows; r++) {                                                   \
            for (int64_t c = 0; c < num_channels; c++) {                                           \
                element x;                                                                         \
                memcpy(&x, rows + r * row_stride + c * channel_stride, sizeof(x));                 \
                to[c] += decode(x);                                                                \
            }                                                                                      \
        }                                                                                          \
    }

/* dst[c] = encode(sums[c] / (float)num_rows). */
#define DEFINE_STORE_FLOAT(linkage, function, element, encode)                                     \
    linkage void function(char *dst, const void *sums, int64_t num_rows, int64_t num_channels) {   \
        const float *from = sums;                                                                  \
        for (int64_t c = 0; c < num_channels; c++) {                                               \
            const float mean = from[c] / (float)num_rows;                                          \
            const element x = encode(isnan(mean) ? NAN : mean);                                    \
            memcpy(dst + c * (int64_t)sizeof(x), &x, sizeof(x));                                   \
        }                                                                                          \
    }

/* dst[c] = sums[c] / num_rows: a mean lies between two elements, so that it fits. */
#define DEFINE_STORE_INTEGER(function, element)                                                    \
    static void function(char *dst, const void *sums, int64_t num_rows, int64_t num_channels) {    \
        const int64_t *from = sums;                                                                \
        for (int64_t c = 0; c < num_channels; c++) {                                               \
            const element x = (element)(from[c] / num_rows);                                       \
            memcpy(dst + c * (int64_t)sizeof(x), &x, sizeof(x));                                   \
        }                                                                                          \
    }

#define AS_IT_IS(x) (x)

DEFINE_ADD(f32, float, float, AS_IT_IS)
DEFINE_ADD(f16, uint16_t, float, pkv_f16_to_f32)
DEFINE_ADD(bf16, uint16_t, float, pkv_bf16_to_f32)
DEFINE_ADD(f8_e5m2, uint8_t, float, pkv_f8_e5m2_to_f32)
DEFINE_ADD(f8_e4m3fn, uint8_t, float, pkv_f8_e4m3fn_to_f32)
DEFINE_ADD(i8, int8_t, int64_t, AS_IT_IS)
DEFINE_ADD(i16, int16_t, int64_t, AS_IT_IS)
DEFINE_ADD(i32, int32_t, int64_t, AS_IT_IS)
DEFINE_ADD(u8, uint8_t, int64_t, AS_IT_IS)
DEFINE_ADD(u16, uint16_t, int64_t, AS_IT_IS)
DEFINE_ADD(u32, uint32_t, int64_t, AS_IT_IS)

DEFINE_STORE_FLOAT(, pkv_mean_store_f32_c, float, AS_IT_IS)
DEFINE_STORE_FLOAT(, pkv_mean_store_f16_c, uint16_t, pkv_f32_to_f16)
DEFINE_STORE_FLOAT(, pkv_mean_store_bf16_c, uint16_t, pkv_f32_to_bf16)
DEFINE_STORE_FLOAT(static, store_f8_e5m2, uint8_t, pkv_f32_to_f8_e5m2)
DEFINE_STORE_FLOAT(static, store_f8_e4m3fn, uint8_t, pkv_f32_to_f8_e4m3fn)
DEFINE_STORE_INTEGER(store_i8, int8_t)
DEFINE_STORE_INTEGER(store_i16, int16_t)
DEFINE_STORE_INTEGER(store_i32, int32_t)
DEFINE_STORE_INTEGER(store_u8, uint8_t)
DEFINE_STORE_INTEGER(store_u16, uint16_t)
DEFINE_STORE_INTEGER(store_u32, uint32_t)

void pkv_mean_init_c(struct pkv_kernels *kernels) {
    kernels->mean_add[PKV_MEAN_F32] = pkv_mean_add_f32_c;
    kernels->mean_add[PKV_MEAN_F16] = pkv_mean_add_f16_c;
    kernels->mean_add[PKV_MEAN_BF16] = pkv_mean_add_bf16_c;
    kernels->mean_add[PKV_MEAN_F8_E5M2] = pkv_mean_add_f8_e5m2_c;
    kernels->mean_add[PKV_MEAN_F8_E4M3FN] = pkv_mean_add_f8_e4m3fn_c;
    kernels->mean_add[PKV_MEAN_I8] = pkv_mean_add_i8_c;
    kernels->mean_add[PKV_MEAN_I16] = pkv_mean_add_i16_c;
    kernels->mean_add[PKV_MEAN_I32] = pkv_mean_add_i32_c;
    kernels->mean_add[PKV_MEAN_U8] = pkv_mean_add_u8_c;
    kernels->mean_add[PKV_MEAN_U16] = pkv_mean_add_u16_c;
    kernels->mean_add[PKV_MEAN_U32] = pkv_mean_add_u32_c;
    kernels->mean_store[PKV_MEAN_F32] = pkv_mean_store_f32_c;
    kernels->mean_store[PKV_MEAN_F16] = pkv_mean_store_f16_c;
    kernels->mean_store[PKV_MEAN_BF16] = pkv_mean_store_bf16_c;
    kernels->mean_store[PKV_MEAN_F8_E5M2] = store_f8_e5m2;
    kernels->mean_store[PKV_MEAN_F8_E4M3FN] = store_f8_e4m3fn;
    kernels->mean_store[PKV_MEAN_I8] = store_i8;
    kernels->mean_store[PKV_MEAN_I16] = store_i16;
    kernels->mean_store[PKV_MEAN_I32] = store_i32;
    kernels->mean_store[PKV_MEAN_U8] = store_u8;
    kernels->mean_store[PKV_MEAN_U16] = store_u16;
    kernels->mean_store[PKV_MEAN_U32] = store_u32;
}
