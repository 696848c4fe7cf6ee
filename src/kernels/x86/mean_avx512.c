/* SPDX-License-Identifier: MIT
 *
 * The mean in AVX-512: the shared bodies over this instruction set's vectors.
 */
#include "kernels/x86/fvec_avx512.h"

typedef __m512i ivec;

enum { IVEC_LANES = 8 };

static inline ivec ivec_load(const int64_t *p) {
    return _mm512_loadu_si512(p);
}

static inline void ivec_store(int64_t *p, ivec v) {
    _mm512_storeu_si512(p, v);
}

static inline ivec ivec_add(ivec a, ivec b) {
    return _mm512_add_epi64(a, b);
}

static inline __m128i load_8(const char *p) {
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

static inline __m128i load_16(const char *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

static inline __m256i load_32(const char *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* e5m2 is the upper byte of a float16. */
static inline fvec fvec_load_f8_e5m2(const char *p) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_16(p)), 8));
}

/* The magnitude of an e4m3fn, moved to where that of a float16 is, is 2^-8 of its value: the
 * exponents have the biases 7 and 15. Only NaN is no such number. */
static inline fvec fvec_load_f8_e4m3fn(const char *p) {
    const __m256i code = _mm256_cvtepu8_epi16(load_16(p));
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(code, magnitude), 8);
    const __m512 half = _mm512_cvtph_ps(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign));
    const __m512 value = _mm512_mul_ps(half, _mm512_set1_ps(256.0f));
    const __mmask16 is_nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f));
    return _mm512_castsi512_ps(
        _mm512_mask_mov_epi32(_mm512_castps_si512(value), is_nan, _mm512_set1_epi32(0x7fc00000)));
}

static inline ivec ivec_load_i8(const char *p) {
    return _mm512_cvtepi8_epi64(load_8(p));
}

static inline ivec ivec_load_i16(const char *p) {
    return _mm512_cvtepi16_epi64(load_16(p));
}

static inline ivec ivec_load_i32(const char *p) {
    return _mm512_cvtepi32_epi64(load_32(p));
}

static inline ivec ivec_load_u8(const char *p) {
    return _mm512_cvtepu8_epi64(load_8(p));
}

static inline ivec ivec_load_u16(const char *p) {
    return _mm512_cvtepu16_epi64(load_16(p));
}

static inline ivec ivec_load_u32(const char *p) {
    return _mm512_cvtepu32_epi64(load_32(p));
}

#include "kernels/template/mean.h"

void pkv_mean_init_avx512(struct pkv_kernels *kernels) {
    mean_init(kernels);
}
