/* SPDX-License-Identifier: MIT
 *
 * The mean in NEON: the shared bodies over this instruction set's vectors.
 */
#include "kernels/arm/fvec_neon.h"

typedef int64x2_t ivec;

enum { IVEC_LANES = 2 };

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

/* e5m2 is the upper byte of a float16. */
static inline fvec fvec_load_f8_e5m2(const char *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(vshll_n_u8(load_4(p), 8))));
}

/* The magnitude of an e4m3fn, moved to where that of a float16 is, is 2^-8 of its value: the
 * exponents have the biases 7 and 15. Only NaN is no such number; all bits set are one. */
static inline fvec fvec_load_f8_e4m3fn(const char *p) {
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

static inline ivec ivec_load_i8(const char *p) {
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(load_2(p)));
    return vmovl_s32(vget_low_s32(vmovl_s16(vget_low_s16(wide))));
}

static inline ivec ivec_load_i16(const char *p) {
    return vmovl_s32(vget_low_s32(vmovl_s16(vreinterpret_s16_u8(load_4(p)))));
}

static inline ivec ivec_load_i32(const char *p) {
    return vmovl_s32(vreinterpret_s32_u8(load_8(p)));
}

static inline ivec ivec_load_u8(const char *p) {
    const uint32x4_t wide = vmovl_u16(vget_low_u16(vmovl_u8(load_2(p))));
    return vreinterpretq_s64_u64(vmovl_u32(vget_low_u32(wide)));
}

static inline ivec ivec_load_u16(const char *p) {
    const uint32x4_t wide = vmovl_u16(vreinterpret_u16_u8(load_4(p)));
    return vreinterpretq_s64_u64(vmovl_u32(vget_low_u32(wide)));
}

static inline ivec ivec_load_u32(const char *p) {
    return vreinterpretq_s64_u64(vmovl_u32(vreinterpret_u32_u8(load_8(p))));
}

#include "kernels/template/mean.h"

void pkv_mean_init_neon(struct pkv_kernels *kernels) {
    mean_init(kernels);
}
