/* SPDX-License-Identifier: MIT
 *
 * The mean in AVX2 with F16C: the shared bodies over this instruction set's vectors.
 */
#include "kernels/x86/fvec_avx2.h"

typedef __m256i ivec;

enum { IVEC_LANES = 4 };

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

/* e5m2 is the upper byte of a float16. */
static inline fvec fvec_load_f8_e5m2(const char *p) {
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(load_8(p)), 8));
}

/* The magnitude of an e4m3fn, moved to where that of a float16 is, is 2^-8 of its value: the
 * exponents have the biases 7 and 15. Only NaN is no such number; all bits set are one. */
static inline fvec fvec_load_f8_e4m3fn(const char *p) {
    const __m128i code = _mm_cvtepu8_epi16(load_8(p));
    const __m128i magnitude = _mm_and_si128(code, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_xor_si128(code, magnitude), 8);
    const __m256 half = _mm256_cvtph_ps(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign));
    const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    return _mm256_or_ps(_mm256_mul_ps(half, _mm256_set1_ps(256.0f)),
                        _mm256_castsi256_ps(_mm256_cvtepi16_epi32(is_nan)));
}

static inline ivec ivec_load_i8(const char *p) {
    return _mm256_cvtepi8_epi64(load_4(p));
}

static inline ivec ivec_load_i16(const char *p) {
    return _mm256_cvtepi16_epi64(load_8(p));
}

static inline ivec ivec_load_i32(const char *p) {
    return _mm256_cvtepi32_epi64(load_16(p));
}

static inline ivec ivec_load_u8(const char *p) {
    return _mm256_cvtepu8_epi64(load_4(p));
}

static inline ivec ivec_load_u16(const char *p) {
    return _mm256_cvtepu16_epi64(load_8(p));
}

static inline ivec ivec_load_u32(const char *p) {
    return _mm256_cvtepu32_epi64(load_16(p));
}

#include "kernels/template/mean.h"

void pkv_mean_init_avx2(struct pkv_kernels *kernels) {
    mean_init(kernels);
}
