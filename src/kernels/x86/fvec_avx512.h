/* SPDX-License-Identifier: MIT
 *
 * AVX-512 as the vectors of float that the shared bodies ask for: see template/fvec.h,
 * template/attention.h and template/attention_panel.h.
 */
#ifndef PKV_KERNELS_X86_FVEC_AVX512_H
#define PKV_KERNELS_X86_FVEC_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/template/unroll.h"

typedef __m512 fvec;
typedef __m512i tvec;
typedef __m256i hvec;
typedef __mmask16 fmask;

enum { FVEC_LANES = 16 };

static inline __mmask16 first_lanes(int64_t count) {
    return (__mmask16)((1u << count) - 1);
}

static inline fvec fvec_load(const float *p) {
    return _mm512_loadu_ps(p);
}

static inline void fvec_store(float *p, fvec v) {
    _mm512_storeu_ps(p, v);
}

static inline fvec fvec_load_part(const float *p, int64_t count) {
    return _mm512_maskz_loadu_ps(first_lanes(count), p);
}

/* Any number of elements, or none; those beyond `count` are 0. */
static inline fvec fvec_load_up_to(const float *p, int64_t count) {
    return count >= FVEC_LANES ? fvec_load(p)
           : count > 0         ? fvec_load_part(p, count)
                               : _mm512_setzero_ps();
}

static inline void fvec_store_part(float *p, fvec v, int64_t count) {
    _mm512_mask_storeu_ps(p, first_lanes(count), v);
}

static inline fvec fvec_set(float x) {
    return _mm512_set1_ps(x);
}

static inline fvec fvec_iota(void) {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

static inline fvec fvec_add(fvec a, fvec b) {
    return _mm512_add_ps(a, b);
}

static inline fvec fvec_sub(fvec a, fvec b) {
    return _mm512_sub_ps(a, b);
}

static inline fvec fvec_mul(fvec a, fvec b) {
    return _mm512_mul_ps(a, b);
}

static inline fvec fvec_div(fvec a, fvec b) {
    return _mm512_div_ps(a, b);
}

static inline fvec fvec_fma(fvec a, fvec b, fvec c) {
    return _mm512_fmadd_ps(a, b, c);
}

static inline fvec fvec_max(fvec a, fvec b) {
    return _mm512_max_ps(a, b);
}

static inline fvec fvec_min(fvec a, fvec b) {
    return _mm512_min_ps(a, b);
}

static inline fmask fvec_less(fvec a, fvec b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

static inline fmask fvec_is_nan(fvec v) {
    return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
}

static inline fvec fvec_select(fmask mask, fvec a, fvec b) {
    return _mm512_mask_blend_ps(mask, b, a);
}

static inline bool fvec_any_nan(fvec v) {
    return fvec_is_nan(v) != 0;
}

static inline float fvec_reduce_max(fvec v) {
    return _mm512_reduce_max_ps(v);
}

/* Largest error over all float32 1.46 * 2^-24. Instead of that of template/exp_negative.h it takes
 * a quarter off the softmax: x = n * ln 2 / 8 + r, |r| <= ln 2 / 16, needs two terms less, and a
 * permutation finds the power of 2 to n / 8 (a table of 16 has larger errors). n is in the lower
 * bits of x * 8 / ln 2 + 1.5 * 2^23. What n adds to a table entry below the exponent is taken away
 * from the entry before. */
static inline fvec exp_negative(fvec x) {
    static const int32_t powers[8] = {0x3f800000 - (0 << 20), 0x3f8b95c2 - (1 << 20),
                                      0x3f9837f0 - (2 << 20), 0x3fa5fed7 - (3 << 20),
                                      0x3fb504f3 - (4 << 20), 0x3fc5672a - (5 << 20),
                                      0x3fd744fd - (6 << 20), 0x3feac0c7 - (7 << 20)};
    const fvec LOWEST = fvec_set(-87.33654f), magic = fvec_set(12582912.0f);
    const fvec sum = fvec_fma(x, fvec_set(11.5415603f), magic), n = fvec_sub(sum, magic);
    fvec r = fvec_fma(n, fvec_set(-0.693359375f / 8), x);
    r = fvec_fma(n, fvec_set(2.12194440e-4f / 8), r);
    fvec p = fvec_fma(fvec_set(1.0f / 24), r, fvec_set(1.0f / 6));
    p = fvec_fma(p, r, fvec_set(0.5f));
    p = fvec_fma(p, fvec_mul(r, r), r);
    const __m512i bits = _mm512_castps_si512(sum);
    const __m512i table =
        _mm512_broadcast_i32x8(_mm256_loadu_si256((const __m256i *)(const void *)powers));
    const fvec power = _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_permutexvar_epi32(bits, table), _mm512_slli_epi32(bits, 20)));
    return _mm512_maskz_fmadd_ps(_mm512_cmp_ps_mask(x, LOWEST, _CMP_NLT_UQ), p, power, power);
}

/* Halves, then quarters, and so on. */
static inline float fvec_reduce_add(fvec v) {
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, _MM_SHUFFLE(1, 0, 3, 2)));
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, _MM_SHUFFLE(2, 3, 0, 1)));
    v = _mm512_add_ps(v, _mm512_permute_ps(v, _MM_SHUFFLE(1, 0, 3, 2)));
    v = _mm512_add_ps(v, _mm512_permute_ps(v, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm512_cvtss_f32(v);
}

static inline hvec hvec_load(const char *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline hvec hvec_load_part(const char *p, int64_t count) {
    return _mm256_maskz_loadu_epi16(first_lanes(count), p);
}

static inline void hvec_store(char *p, hvec v) {
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

static inline void hvec_store_part(char *p, hvec v, int64_t count) {
    _mm256_mask_storeu_epi16(p, first_lanes(count), v);
}

static inline fvec widen_f16(hvec codes) {
    return _mm512_cvtph_ps(codes);
}

static inline fvec widen_bf16(hvec codes) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16));
}

static inline hvec narrow_f16(fvec v) {
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* By integers: the conversion instruction would flush denormals. */
static inline hvec narrow_bf16(fvec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

static inline tvec tvec_load(const char *p) {
    return _mm512_loadu_si512(p);
}

static inline fvec tvec_f32(tvec t) {
    return _mm512_castsi512_ps(t);
}

static inline fvec tvec_low_f16(tvec t) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(t));
}

static inline fvec tvec_high_f16(tvec t) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(t, 16)));
}

static inline fvec tvec_low_bf16(tvec t) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(t, 16));
}

static inline fvec tvec_high_bf16(tvec t) {
    return _mm512_castsi512_ps(_mm512_and_si512(t, _mm512_set1_epi32((int)0xffff0000u)));
}

static inline void fvec_zip(fvec v[2]) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const fvec both = _mm512_permutex2var_ps(v[0], low, v[1]);
    v[1] = _mm512_permutex2var_ps(v[0], _mm512_add_epi32(low, _mm512_set1_epi32(8)), v[1]);
    v[0] = both;
}

/* Words, pairs of words, then quarters of a vector find their places. */
ALWAYS_INLINE void tvec_load_transposed(tvec *words, const char *const *from, int64_t at) {
    tvec a[16], b[16];
    UNROLL for (int i = 0; i < 16; i += 2) {
        const tvec even = tvec_load(from[i] + at), odd = tvec_load(from[i + 1] + at);
        a[i] = _mm512_unpacklo_epi32(even, odd);
        a[i + 1] = _mm512_unpackhi_epi32(even, odd);
    }
    UNROLL for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
        a[i + 8] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        words[i] = _mm512_shuffle_i32x4(a[i], a[i + 8], 0x88);
        words[i + 4] = _mm512_shuffle_i32x4(a[i + 4], a[i + 12], 0x88);
        words[i + 8] = _mm512_shuffle_i32x4(a[i], a[i + 8], 0xdd);
        words[i + 12] = _mm512_shuffle_i32x4(a[i + 4], a[i + 12], 0xdd);
    }
}

#define PREFETCH(p) _mm_prefetch((p), _MM_HINT_T0)

#endif
