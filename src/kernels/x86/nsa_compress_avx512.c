/* SPDX-License-Identifier: MIT
 *
 * The windowed compression in AVX-512: the shared bodies over this instruction set's vectors.
 */
#include <immintrin.h>
#include <stdint.h>

typedef __m512 fvec;

enum { FVEC_LANES = 16 };

static inline fvec fvec_set(float x) {
    return _mm512_set1_ps(x);
}

static inline fvec fvec_mul(fvec a, fvec b) {
    return _mm512_mul_ps(a, b);
}

static inline fvec fvec_add(fvec a, fvec b) {
    return _mm512_add_ps(a, b);
}

static inline __m256i load_32(const char *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline void store_32(char *p, __m256i v) {
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

static inline fvec widen_f16(const char *p) {
    return _mm512_cvtph_ps(load_32(p));
}

static inline fvec widen_bf16(const char *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_32(p)), 16));
}

static inline fvec quiet(fvec v) {
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), v, nan);
}

static inline void narrow_f16(char *p, fvec v) {
    store_32(p, _mm512_cvtps_ph(quiet(v), _MM_FROUND_TO_NEAREST_INT));
}

/* The upper half, rounded: half a unit less one, and one more if the result would be odd. The
 * instruction that does it flushes denormals. */
static inline void narrow_bf16(char *p, fvec v) {
    const __m512i bits = _mm512_castps_si512(quiet(v));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    store_32(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
}

static inline void vec_prefetch(const char *p) {
    _mm_prefetch(p, _MM_HINT_T0);
}

#include "kernels/template/nsa_compress.h"

void pkv_nsa_compress_init_avx512(struct pkv_kernels *kernels) {
    nsa_compress_init(kernels);
}
