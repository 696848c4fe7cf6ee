/* SPDX-License-Identifier: MIT
 *
 * The windowed compression in NEON: the shared bodies over this instruction set's vectors.
 */
#include <arm_neon.h>
#include <stdint.h>

typedef float32x4_t fvec;

enum { FVEC_LANES = 4 };

static inline fvec fvec_set(float x) {
    return vdupq_n_f32(x);
}

static inline fvec fvec_mul(fvec a, fvec b) {
    return vmulq_f32(a, b);
}

static inline fvec fvec_add(fvec a, fvec b) {
    return vaddq_f32(a, b);
}

static inline uint16x4_t load_8(const char *p) {
    return vreinterpret_u16_u8(vld1_u8((const uint8_t *)p));
}

static inline void store_8(char *p, uint16x4_t v) {
    vst1_u8((uint8_t *)p, vreinterpret_u8_u16(v));
}

static inline fvec widen_f16(const char *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(load_8(p)));
}

static inline fvec widen_bf16(const char *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(load_8(p), 16));
}

static inline fvec quiet(fvec v) {
    const float32x4_t nan = vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000));
    return vbslq_f32(vceqq_f32(v, v), v, nan);
}

static inline void narrow_f16(char *p, fvec v) {
    store_8(p, vreinterpret_u16_f16(vcvt_f16_f32(quiet(v))));
}

/* The upper half, rounded: half a unit less one, and one more if the result would be odd. */
static inline void narrow_bf16(char *p, fvec v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(quiet(v));
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    store_8(p, vshrn_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd), 16));
}

static inline void vec_prefetch(const char *p) {
    __builtin_prefetch(p, 0, 3);
}

#include "kernels/template/nsa_compress.h"

void pkv_nsa_compress_init_neon(struct pkv_kernels *kernels) {
    nsa_compress_init(kernels);
}
