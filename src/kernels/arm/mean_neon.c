/* SPDX-License-Identifier: MIT
 *
 * The mean in NEON: the shared bodies over this instruction set's vectors.
 */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef float32x4_t fvec;
typedef int64x2_t ivec;

enum { FVEC_LANES = 4, IVEC_LANES = 2 };

static inline fvec fvec_load(const float *p) {
    return vld1q_f32(p);
}

static inline void fvec_store(float *p, fvec v) {
    vst1q_f32(p, v);
}

static inline fvec fvec_add(fvec a, fvec b) {
    return vaddq_f32(a, b);
}

static inline fvec fvec_mean(fvec sums, int64_t num_rows) {
    const float32x4_t mean = vdivq_f32(sums, vdupq_n_f32((float)num_rows));
    const float32x4_t nan = vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000));
    return vbslq_f32(vceqq_f32(mean, mean), mean, nan);
}

static inline ivec ivec_load(const int64_t *p) {
    return vld1q_s64(p);
}

static inline void ivec_store(int64_t *p, ivec v) {
    vst1q_s64(p, v);
}

static inline ivec ivec_add(ivec a, ivec b) {
    return vaddq_s64(a, b);
}

static inline uint8x8_t load_2(const char *p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof(bits));
    return vreinterpret_u8_u16(vdup_n_u16(bits));
}

static inline uint8x8_t load_4(const char *p) {
    uint32_t bits;
    memcpy(&bits, p, sizeof(bits));
    return vreinterpret_u8_u32(vdup_n_u32(bits));
}

static inline uint8x8_t load_8(const char *p) {
    return vld1_u8((const uint8_t *)p);
}

static inline fvec widen_f32(const char *p) {
    return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)p));
}

static inline fvec widen_f16(const char *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(load_8(p)));
}

static inline fvec widen_bf16(const char *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(load_8(p)), 16));
}

/* e5m2 is the upper byte of a float16. */
static inline fvec widen_f8_e5m2(const char *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(vshll_n_u8(load_4(p), 8))));
}

/* The magnitude of an e4m3fn, moved to where that of a float16 is, is 2^-8 of its value: the exponents have
 * the biases 7 and 15. Only NaN is no such number; all bits set are one. */
static inline fvec widen_f8_e4m3fn(const char *p) {
    const uint16x4_t code = vget_low_u16(vmovl_u8(load_4(p)));
    const uint16x4_t magnitude = vand_u16(code, vdup_n_u16(0x7f));
    const uint16x4_t sign = vshl_n_u16(veor_u16(code, magnitude), 8);
    const float32x4_t half =
        vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(vshl_n_u16(magnitude, 7), sign)));
    const uint32x4_t value = vreinterpretq_u32_f32(vmulq_n_f32(half, 256.0f));
    const uint16x4_t is_nan = vceq_u16(magnitude, vdup_n_u16(0x7f));
    const int32x4_t all_bits = vmovl_s16(vreinterpret_s16_u16(is_nan));
    return vreinterpretq_f32_u32(vorrq_u32(value, vreinterpretq_u32_s32(all_bits)));
}

static inline ivec widen_i8(const char *p) {
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(load_2(p)));
    return vmovl_s32(vget_low_s32(vmovl_s16(vget_low_s16(wide))));
}

static inline ivec widen_i16(const char *p) {
    return vmovl_s32(vget_low_s32(vmovl_s16(vreinterpret_s16_u8(load_4(p)))));
}

static inline ivec widen_i32(const char *p) {
    return vmovl_s32(vreinterpret_s32_u8(load_8(p)));
}

static inline ivec widen_u8(const char *p) {
    const uint32x4_t wide = vmovl_u16(vget_low_u16(vmovl_u8(load_2(p))));
    return vreinterpretq_s64_u64(vmovl_u32(vget_low_u32(wide)));
}

static inline ivec widen_u16(const char *p) {
    const uint32x4_t wide = vmovl_u16(vreinterpret_u16_u8(load_4(p)));
    return vreinterpretq_s64_u64(vmovl_u32(vget_low_u32(wide)));
}

static inline ivec widen_u32(const char *p) {
    return vreinterpretq_s64_u64(vmovl_u32(vreinterpret_u32_u8(load_8(p))));
}

static inline void narrow_f32(char *p, fvec v) {
    vst1q_u8((uint8_t *)p, vreinterpretq_u8_f32(v));
}

static inline void narrow_f16(char *p, fvec v) {
    vst1_u8((uint8_t *)p, vreinterpret_u8_f16(vcvt_f16_f32(v)));
}

static inline void narrow_bf16(char *p, fvec v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    vst1_u8((uint8_t *)p, vreinterpret_u8_u16(vshrn_n_u32(rounded, 16)));
}

static inline void vec_prefetch(const char *p) {
    __builtin_prefetch(p, 0, 3);
}

#include "kernels/template/mean.h"

void pkv_mean_init_neon(struct pkv_kernels *kernels) {
    mean_init(kernels);
}
