/* SPDX-License-Identifier: MIT
 *
 * Vectors of float and the element types of two bytes, over a small interface. The including file
 * defines, for its instruction set:
 *
 *   fvec, FVEC_LANES                       a vector of float, at most 16 lanes
 *   fvec_load, fvec_store                  unaligned
 *   fvec_load_part(p, count), fvec_store_part(p, v, count)
 *                                          the first count elements alone; the others are 0
 *   fvec_set                               one float everywhere
 *   fvec_add, fvec_div
 *   fmask, fvec_is_nan, fvec_select(mask, a, b)   a where the mask is set, else b
 *   hvec                                   FVEC_LANES codes of 16 bits
 *   hvec_load(p), hvec_load_part(p, count), hvec_store(p, v), hvec_store_part(p, v, count)
 *   widen_f16, widen_bf16                  codes to float
 *   narrow_f16, narrow_bf16                to nearest even; NaN comes as the positive quiet one
 *
 * and gets fvec_load_<type>, fvec_store_<type> and their _part for f32, f16 and bf16.
 */
#ifndef PKV_KERNELS_TEMPLATE_FVEC_H
#define PKV_KERNELS_TEMPLATE_FVEC_H

#include <math.h>
#include <stdint.h>

/* What is not a number becomes the positive quiet NaN. */
static inline fvec fvec_one_nan(fvec v) {
    return fvec_select(fvec_is_nan(v), fvec_set((float)NAN), v);
}

static inline fvec fvec_load_f32(const char *p) {
    return fvec_load((const float *)(const void *)p);
}

static inline fvec fvec_load_f32_part(const char *p, int64_t count) {
    return fvec_load_part((const float *)(const void *)p, count);
}

static inline void fvec_store_f32(char *p, fvec v) {
    fvec_store((float *)(void *)p, v);
}

static inline void fvec_store_f32_part(char *p, fvec v, int64_t count) {
    fvec_store_part((float *)(void *)p, v, count);
}

#define DEFINE_HALF(type)                                                                          \
    static inline fvec fvec_load_##type(const char *p) {                                           \
        return widen_##type(hvec_load(p));                                                         \
    }                                                                                              \
                                                                                                   \
    static inline fvec fvec_load_##type##_part(const char *p, int64_t count) {                     \
        return widen_##type(hvec_load_part(p, count));                                             \
    }                                                                                              \
                                                                                                   \
    static inline void fvec_store_##type(char *p, fvec v) {                                        \
        hvec_store(p, narrow_##type(v));                                                           \
    }                                                                                              \
                                                                                                   \
    static inline void fvec_store_##type##_part(char *p, fvec v, int64_t count) {                  \
        hvec_store_part(p, narrow_##type(v), count);                                               \
    }

DEFINE_HALF(f16)
DEFINE_HALF(bf16)

#endif
