/* SPDX-License-Identifier: MIT
 *
 * NEON as the vectors of float that the shared bodies ask for: see template/fvec.h,
 * template/attention.h and template/attention_panel.h.
 */
#ifndef PKV_KERNELS_ARM_FVEC_NEON_H
#define PKV_KERNELS_ARM_FVEC_NEON_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef float32x4_t fvec;
typedef uint32x4_t tvec;
typedef uint16x4_t hvec;
typedef uint32x4_t fmask;

enum { FVEC_LANES = 4 };

static inline fvec fvec_load(const float *p) {
    return vld1q_f32(p);
}

static inline void fvec_store(float *p, fvec v) {
    vst1q_f32(p, v);
}

static inline fvec fvec_load_part(const float *p, int64_t count) {
    float lanes[FVEC_LANES] = {0};
    memcpy(lanes, p, (size_t)count * sizeof(float));
    return vld1q_f32(lanes);
}

static inline void fvec_store_part(float *p, fvec v, int64_t count) {
    float lanes[FVEC_LANES];
    vst1q_f32(lanes, v);
    memcpy(p, lanes, (size_t)count * sizeof(float));
}

static inline fvec fvec_set(float x) {
    return vdupq_n_f32(x);
}

static inline fvec fvec_iota(void) {
    static const float numbers[FVEC_LANES] = {0, 1, 2, 3};
    return vld1q_f32(numbers);
}

static inline fvec fvec_add(fvec a, fvec b) {
    return vaddq_f32(a, b);
}

static inline fvec fvec_sub(fvec a, fvec b) {
    return vsubq_f32(a, b);
}

static inline fvec fvec_mul(fvec a, fvec b) {
    return vmulq_f32(a, b);
}

static inline fvec fvec_div(fvec a, fvec b) {
    return vdivq_f32(a, b);
}

static inline fvec fvec_fma(fvec a, fvec b, fvec c) {
    return vfmaq_f32(c, a, b);
}

/* NEON's own maximum and minimum keep what is not a number, whichever side it is on. */
static inline fvec fvec_max(fvec a, fvec b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline fvec fvec_min(fvec a, fvec b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

static inline fvec fvec_round(fvec x) {
    return vrndnq_f32(x);
}

/* The power of two by its exponent. What is not a number has none and gets 1. */
static inline fvec fvec_scale(fvec x, fvec n) {
    const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}

static inline fmask fvec_less(fvec a, fvec b) {
    return vcltq_f32(a, b);
}

static inline fmask fvec_is_nan(fvec v) {
    return vmvnq_u32(vceqq_f32(v, v));
}

static inline fvec fvec_select(fmask mask, fvec a, fvec b) {
    return vbslq_f32(mask, a, b);
}

static inline bool fvec_any_nan(fvec v) {
    return vmaxvq_u32(fvec_is_nan(v)) != 0;
}

static inline float fvec_reduce_max(fvec v) {
    return vmaxvq_f32(v);
}

static inline float fvec_reduce_add(fvec v) {
    const float32x2_t halves = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(halves, 0) + vget_lane_f32(halves, 1);
}

static inline hvec hvec_load(const char *p) {
    return vreinterpret_u16_u8(vld1_u8((const uint8_t *)p));
}

static inline hvec hvec_load_part(const char *p, int64_t count) {
    char codes[8] = {0};
    memcpy(codes, p, (size_t)(2 * count));
    return hvec_load(codes);
}

static inline void hvec_store(char *p, hvec v) {
    vst1_u8((uint8_t *)p, vreinterpret_u8_u16(v));
}

static inline void hvec_store_part(char *p, hvec v, int64_t count) {
    char codes[8];
    hvec_store(codes, v);
    memcpy(p, codes, (size_t)(2 * count));
}

static inline fvec widen_f16(hvec codes) {
    return vcvt_f32_f16(vreinterpret_f16_u16(codes));
}

static inline fvec widen_bf16(hvec codes) {
    return vreinterpretq_f32_u32(vshll_n_u16(codes, 16));
}

static inline hvec narrow_f16(fvec v) {
    return vreinterpret_u16_f16(vcvt_f16_f32(v));
}

/* The upper half, rounded: half a unit less one, and one more if the result would be odd. */
static inline hvec narrow_bf16(fvec v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vshrn_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd), 16);
}

static inline tvec tvec_load(const char *p) {
    return vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p));
}

static inline fvec tvec_f32(tvec t) {
    return vreinterpretq_f32_u32(t);
}

static inline fvec tvec_low_f16(tvec t) {
    return widen_f16(vmovn_u32(t));
}

static inline fvec tvec_high_f16(tvec t) {
    return widen_f16(vshrn_n_u32(t, 16));
}

static inline fvec tvec_low_bf16(tvec t) {
    return vreinterpretq_f32_u32(vshlq_n_u32(t, 16));
}

static inline fvec tvec_high_bf16(tvec t) {
    return vreinterpretq_f32_u32(vandq_u32(t, vdupq_n_u32(0xffff0000u)));
}

static inline void fvec_zip(fvec v[2]) {
    const fvec low = vzip1q_f32(v[0], v[1]);
    v[1] = vzip2q_f32(v[0], v[1]);
    v[0] = low;
}

static inline tvec lower_pairs(tvec a, tvec b) {
    return vreinterpretq_u32_u64(vtrn1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
}

static inline tvec upper_pairs(tvec a, tvec b) {
    return vreinterpretq_u32_u64(vtrn2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
}

/* Words, then pairs of words find their places. */
static inline void tvec_load_transposed(tvec *words, const char *const *from, int64_t at) {
    const tvec a = tvec_load(from[0] + at), b = tvec_load(from[1] + at);
    const tvec c = tvec_load(from[2] + at), d = tvec_load(from[3] + at);
    const tvec ab = vtrn1q_u32(a, b), cd = vtrn1q_u32(c, d);
    const tvec ba = vtrn2q_u32(a, b), dc = vtrn2q_u32(c, d);
    words[0] = lower_pairs(ab, cd);
    words[1] = lower_pairs(ba, dc);
    words[2] = upper_pairs(ab, cd);
    words[3] = upper_pairs(ba, dc);
}

#define PREFETCH(p) __builtin_prefetch((p), 0, 3)

#endif
