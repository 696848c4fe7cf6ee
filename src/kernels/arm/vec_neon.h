/* SPDX-License-Identifier: MIT
 *
 * The vector interface of template/copy_lines.h in NEON. AArch64 cores notice long runs of
 * full-line stores and stop allocating by themselves, so the streaming store is the ordinary one.
 */
#ifndef PKV_KERNELS_ARM_VEC_NEON_H
#define PKV_KERNELS_ARM_VEC_NEON_H

#include <arm_neon.h>

typedef uint8x16_t vec;

enum { VEC_BYTES = 16 };

static inline vec vec_load(const char *p) {
    return vld1q_u8((const uint8_t *)p);
}

static inline void vec_store(char *p, vec v) {
    vst1q_u8((uint8_t *)p, v);
}

static inline void vec_stream(char *p, vec v) {
    vst1q_u8((uint8_t *)p, v);
}

static inline void vec_stream_16(char *dst, const char *src) {
    vec_store(dst, vec_load(src));
}

static inline void vec_copy_32(char *dst, const char *src) {
    vec_store(dst, vec_load(src));
    vec_store(dst + VEC_BYTES, vec_load(src + VEC_BYTES));
}

static inline void vec_stream_32(char *dst, const char *src) {
    vec_copy_32(dst, src);
}

static inline void vec_prefetch_page(const char *p) {
    __builtin_prefetch(p, 1, 0);
}

static inline void vec_prefetch_read(const char *p) {
    __builtin_prefetch(p, 0, 3);
}

static inline void vec_prefetch_write(const char *p) {
    __builtin_prefetch(p, 1, 3);
}

static inline void vec_fence(void) {
}

#endif
