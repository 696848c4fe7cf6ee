/* SPDX-License-Identifier: MIT
 *
 * The windowed compression in AVX2: the shared bodies over this instruction set's vectors.
 */
#include <immintrin.h>
#include <stdint.h>

typedef __m256 fvec;

enum { FVEC_LANES = 8 };

static inline fvec fvec_set(float x) {
    return _mm256_set1_ps(x);
}

static inline fvec fvec_mul(fvec a, fvec b) {
    return _mm256_mul_ps(a, b);
}

static inline fvec fvec_add(fvec a, fvec b) {
    return _mm256_add_ps(a, b);
}

static inline __m128i load_16(const char *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

static inline void store_16(char *p, __m128i v) {
    _mm_storeu_si128((__m128i *)(void *)p, v);
}

static inline fvec widen_f16(const char *p) {
    return _mm256_cvtph_ps(load_16(p));
}

static inline fvec widen_bf16(const char *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(p)), 16));
}

static inline fvec quiet(fvec v) {
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

static inline void narrow_f16(char *p, fvec v) {
    store_16(p, _mm256_cvtps_ph(quiet(v), _MM_FROUND_TO_NEAREST_INT));
}

/* The upper half, rounded: half a unit less one, and one more if the result would be odd. */
static inline void narrow_bf16(char *p, fvec v) {
    const __m256i bits = _mm256_castps_si256(quiet(v));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i codes = _mm256_srli_epi32(sum, 16);
    store_16(p,
             _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1)));
}

static inline void vec_prefetch(const char *p) {
    _mm_prefetch(p, _MM_HINT_T0);
}

#include "kernels/template/nsa_compress.h"

void pkv_nsa_compress_init_avx2(struct pkv_kernels *kernels) {
    nsa_compress_init(kernels);
}
