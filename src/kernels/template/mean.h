/* SPDX-License-Identifier: MIT
 *
 * The bodies of the mean over a small vector interface. A vector holds neighbouring channels, so
 * that each channel is added up in the order of its rows, as in the definition. Beyond those of
 * template/fvec.h the including file defines:
 *
 *   PREFETCH(p)                          a macro: fetch p's line
 *   fvec_load_f8_e5m2, fvec_load_f8_e4m3fn   FVEC_LANES adjacent elements to float
 *   ivec, IVEC_LANES                     a vector of int64_t
 *   ivec_load, ivec_store, ivec_add      unaligned
 *   ivec_load_i8, ivec_load_i16, ivec_load_i32, ivec_load_u8, ivec_load_u16, ivec_load_u32
 *                                        IVEC_LANES adjacent elements to int64_t
 *
 * and gets mean_init(kernels).
 */
#ifndef PKV_KERNELS_TEMPLATE_MEAN_H
#define PKV_KERNELS_TEMPLATE_MEAN_H

#include <stdbool.h>

#include "kernels/c/mean.h"
#include "kernels/template/fvec.h"

/* Rows added at once: that many streams of loads for one load and one store of the sums. Rows are
 * the outer loop, so that heads side by side are read in the order of memory, which is asked for so
 * far ahead. 4 rows gave 0.77 of the speed of reading, 16 give 0.85, 32 give 0.5. */
enum { ROWS_ABREAST = 16, MEAN_AHEAD_BYTES = 8192, MEAN_LINE_BYTES = 64 };

/* So many sums stay in registers from the first row to the last: one head of 128 in AVX-512. */
enum { REGISTERS = 8 };

static inline fvec fvec_mean(fvec sums, int64_t num_rows) {
    return fvec_one_nan(fvec_div(sums, fvec_set((float)num_rows)));
}

#define DEFINE_MEAN_ADD(name, element_bytes, sum, vec, lanes)                                      \
    static inline void add_rows_##name(sum *to, const char *rows, int64_t row_stride,              \
                                       int64_t num_rows, int64_t num_channels, int64_t ahead) {    \
        for (int64_t c = 0; c < num_channels; c += lanes) {                                        \
            vec v = vec##_load(to + c);                                                            \
            const bool fetches = ahead > 0 && c * element_bytes % MEAN_LINE_BYTES == 0;            \
            for (int64_t r = 0; r < num_rows; r++) {                                               \
                const char *from = rows + r * row_stride + c * element_bytes;                      \
                if (fetches)                                                                       \
                    PREFETCH(from + ahead);                                                        \
                v = vec##_add(v, vec##_load_##name(from));                                         \
            }                                                                                      \
            vec##_store(to + c, v);                                                                \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void add_registers_##name(sum *to, const char *rows, int64_t row_stride,                \
                                     int64_t num_rows, int64_t rows_ahead) {                       \
        vec v[REGISTERS];                                                                          \
        for (int i = 0; i < REGISTERS; i++)                                                        \
            v[i] = vec##_load(to + i * lanes);                                                     \
        for (int64_t r = 0; r < num_rows; r++) {                                                   \
            const char *from = rows + r * row_stride;                                              \
            if (r + rows_ahead < num_rows)                                                         \
                for (int k = 0; k < REGISTERS * lanes * element_bytes; k += MEAN_LINE_BYTES)       \
                    PREFETCH(from + rows_ahead * row_stride + k);                                  \
            for (int i = 0; i < REGISTERS; i++)                                                    \
                v[i] = vec##_add(v[i], vec##_load_##name(from + i * lanes * element_bytes));       \
        }                                                                                          \
        for (int i = 0; i < REGISTERS; i++)                                                        \
            vec##_store(to + i * lanes, v[i]);                                                     \
    }                                                                                              \
                                                                                                   \
    static void mean_add_##name(void *sums, const char *rows, int64_t row_stride,                  \
                                int64_t num_rows, int64_t channel_stride, int64_t num_channels) {  \
        sum *to = sums;                                                                            \
        const int64_t in_vectors =                                                                 \
            channel_stride == element_bytes ? num_channels / lanes * lanes : 0;                    \
        const int64_t rows_ahead = MEAN_AHEAD_BYTES / (in_vectors * element_bytes + 1) + 1;        \
        const int64_t ahead = rows_ahead > ROWS_ABREAST ? rows_ahead : ROWS_ABREAST;               \
        int64_t r = 0;                                                                             \
        if (in_vectors == REGISTERS * lanes) {                                                     \
            add_registers_##name(to, rows, row_stride, num_rows, rows_ahead);                      \
            r = num_rows;                                                                          \
        }                                                                                          \
        for (; r + ROWS_ABREAST + ahead <= num_rows; r += ROWS_ABREAST)                            \
            add_rows_##name(to, rows + r * row_stride, row_stride, ROWS_ABREAST, in_vectors,       \
                            ahead * row_stride);                                                   \
        for (; r < num_rows; r += ROWS_ABREAST)                                                    \
            add_rows_##name(to, rows + r * row_stride, row_stride,                                 \
                            num_rows - r < ROWS_ABREAST ? num_rows - r : ROWS_ABREAST, in_vectors, \
                            0);                                                                    \
        pkv_mean_add_##name##_c(to + in_vectors, rows + in_vectors * channel_stride, row_stride,   \
                                num_rows, channel_stride, num_channels - in_vectors);              \
    }

#define DEFINE_MEAN_STORE(name, element_bytes)                                                     \
    static void mean_store_##name(char *dst, const void *sums, int64_t num_rows,                   \
                                  int64_t num_channels) {                                          \
        const float *from = sums;                                                                  \
        int64_t c = 0;                                                                             \
        for (; c + FVEC_LANES <= num_channels; c += FVEC_LANES)                                    \
            fvec_store_##name(dst + c * element_bytes, fvec_mean(fvec_load(from + c), num_rows));  \
        pkv_mean_store_##name##_c(dst + c * element_bytes, from + c, num_rows, num_channels - c);  \
    }

DEFINE_MEAN_ADD(f32, 4, float, fvec, FVEC_LANES)
DEFINE_MEAN_ADD(f16, 2, float, fvec, FVEC_LANES)
DEFINE_MEAN_ADD(bf16, 2, float, fvec, FVEC_LANES)
DEFINE_MEAN_ADD(f8_e5m2, 1, float, fvec, FVEC_LANES)
DEFINE_MEAN_ADD(f8_e4m3fn, 1, float, fvec, FVEC_LANES)
DEFINE_MEAN_ADD(i8, 1, int64_t, ivec, IVEC_LANES)
DEFINE_MEAN_ADD(i16, 2, int64_t, ivec, IVEC_LANES)
DEFINE_MEAN_ADD(i32, 4, int64_t, ivec, IVEC_LANES)
DEFINE_MEAN_ADD(u8, 1, int64_t, ivec, IVEC_LANES)
DEFINE_MEAN_ADD(u16, 2, int64_t, ivec, IVEC_LANES)
DEFINE_MEAN_ADD(u32, 4, int64_t, ivec, IVEC_LANES)

DEFINE_MEAN_STORE(f32, 4)
DEFINE_MEAN_STORE(f16, 2)
DEFINE_MEAN_STORE(bf16, 2)

/* A window has one store for all its additions: the types without a narrowing instruction, and the
 * division of int64_t, stay with the definition. */
static void mean_init(struct pkv_kernels *kernels) {
    kernels->mean_add[PKV_MEAN_F32] = mean_add_f32;
    kernels->mean_add[PKV_MEAN_F16] = mean_add_f16;
    kernels->mean_add[PKV_MEAN_BF16] = mean_add_bf16;
    kernels->mean_add[PKV_MEAN_F8_E5M2] = mean_add_f8_e5m2;
    kernels->mean_add[PKV_MEAN_F8_E4M3FN] = mean_add_f8_e4m3fn;
    kernels->mean_add[PKV_MEAN_I8] = mean_add_i8;
    kernels->mean_add[PKV_MEAN_I16] = mean_add_i16;
    kernels->mean_add[PKV_MEAN_I32] = mean_add_i32;
    kernels->mean_add[PKV_MEAN_U8] = mean_add_u8;
    kernels->mean_add[PKV_MEAN_U16] = mean_add_u16;
    kernels->mean_add[PKV_MEAN_U32] = mean_add_u32;
    kernels->mean_store[PKV_MEAN_F32] = mean_store_f32;
    kernels->mean_store[PKV_MEAN_F16] = mean_store_f16;
    kernels->mean_store[PKV_MEAN_BF16] = mean_store_bf16;
}

#endif
