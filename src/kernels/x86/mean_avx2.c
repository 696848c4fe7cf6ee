/* SPDX-License-Identifier: MIT
 *
 * The mean in AVX2 with F16C: the shared bodies over this instruction set's vectors.
 */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m256 fvec;
typedef __m256i ivec;

enum { FVEC_LANES = 8, IVEC_LANES = 4 };

static inline fvec fvec_load(const float *p) {
    return _mm256_loadu_ps(p);
}

static inline void fvec_store(float *p, fvec v) {
    _mm256_storeu_ps(p, v);
}

static inline fvec fvec_add(fvec a, fvec b) {
    return _mm256_add_ps(a, b);
}

static inline fvec fvec_mean(fvec sums, int64_t num_rows) {
    const __m256 mean = _mm256_div_ps(sums, _mm256_set1_ps((float)num_rows));
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(mean, nan, _mm256_cmp_ps(mean, mean, _CMP_UNORD_Q));
}

static inline ivec ivec_load(const int64_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline void ivec_store(int64_t *p, ivec v) {
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

static inline ivec ivec_add(ivec a, ivec b) {
    return _mm256_add_epi64(a, b);
}

static inline __m128i load_4(const char *p) {
    int32_t bits;
    memcpy(&bits, p, sizeof(bits));
    return _mm_cvtsi32_si128(bits);
}

static inline __m128i load_8(const char *p) {
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

static inline __m128i load_16(const char *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

static inline fvec widen_f32(const char *p) {
    return _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static inline fvec widen_f16(const char *p) {
    return _mm256_cvtph_ps(load_16(p));
}

static inline fvec widen_bf16(const char *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(p)), 16));
}

/* e5m2 is the upper byte of a float16. */
static inline fvec widen_f8_e5m2(const char *p) {
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(load_8(p)), 8));
}

/* The magnitude of an e4m3fn, moved to where that of a float16 is, is 2^-8 of its value: the exponents have
 * the biases 7 and 15. Only NaN is no such number; all bits set are one. */
static inline fvec widen_f8_e4m3fn(const char *p) {
    const __m128i code = _mm_cvtepu8_epi16(load_8(p));
    const __m128i magnitude = _mm_and_si128(code, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_xor_si128(code, magnitude), 8);
    const __m256 half = _mm256_cvtph_ps(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign));
    const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    return _mm256_or_ps(_mm256_mul_ps(half, _mm256_set1_ps(256.0f)),
                        _mm256_castsi256_ps(_mm256_cvtepi16_epi32(is_nan)));
}

static inline ivec widen_i8(const char *p) {
    return _mm256_cvtepi8_epi64(load_4(p));
}

static inline ivec widen_i16(const char *p) {
    return _mm256_cvtepi16_epi64(load_8(p));
}

static inline ivec widen_i32(const char *p) {
    return _mm256_cvtepi32_epi64(load_16(p));
}

static inline ivec widen_u8(const char *p) {
    return _mm256_cvtepu8_epi64(load_4(p));
}

static inline ivec widen_u16(const char *p) {
    return _mm256_cvtepu16_epi64(load_8(p));
}

static inline ivec widen_u32(const char *p) {
    return _mm256_cvtepu32_epi64(load_16(p));
}

static inline void narrow_f32(char *p, fvec v) {
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_castps_si256(v));
}

static inline void narrow_f16(char *p, fvec v) {
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void narrow_bf16(char *p, fvec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packus_epi32(_mm256_castsi256_si128(rounded),
                                                            _mm256_extracti128_si256(rounded, 1)));
}

static inline void vec_prefetch(const char *p) {
    _mm_prefetch(p, _MM_HINT_T0);
}

#include "kernels/template/mean.h"

void pkv_mean_init_avx2(struct pkv_kernels *kernels) {
    mean_init(kernels);
}
