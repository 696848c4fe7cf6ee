/* SPDX-License-Identifier: MIT
 *
 * AVX2 as the vectors of float that the shared bodies ask for: see template/fvec.h,
 * template/attention.h and template/attention_panel.h.
 */
#ifndef PKV_KERNELS_X86_FVEC_AVX2_H
#define PKV_KERNELS_X86_FVEC_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/template/unroll.h"
#include <string.h>

typedef __m256 fvec;
typedef __m256i tvec;
typedef __m128i hvec;
typedef __m256 fmask;

enum { FVEC_LANES = 8 };

static inline fvec fvec_load(const float *p) {
    return _mm256_loadu_ps(p);
}

static inline void fvec_store(float *p, fvec v) {
    _mm256_storeu_ps(p, v);
}

/* By pieces: emulators take a masked load for a whole one, which may end in a page that is not
 * there. */
static inline __m128 load_4_part(const float *p, int64_t count) {
    switch (count) {
    case 0:
        return _mm_setzero_ps();
    case 1:
        return _mm_load_ss(p);
    case 2:
        return _mm_loadl_pi(_mm_setzero_ps(), (const __m64 *)(const void *)p);
    case 3:
        return _mm_movelh_ps(_mm_loadl_pi(_mm_setzero_ps(), (const __m64 *)(const void *)p),
                             _mm_load_ss(p + 2));
    default:
        return _mm_loadu_ps(p);
    }
}

static inline fvec fvec_load_part(const float *p, int64_t count) {
    return count < 4 ? _mm256_set_m128(_mm_setzero_ps(), load_4_part(p, count))
                     : _mm256_set_m128(load_4_part(p + 4, count - 4), _mm_loadu_ps(p));
}

static inline void fvec_store_part(float *p, fvec v, int64_t count) {
    float lanes[FVEC_LANES];
    fvec_store(lanes, v);
    memcpy(p, lanes, (size_t)count * sizeof(float));
}

static inline fvec fvec_set(float x) {
    return _mm256_set1_ps(x);
}

static inline fvec fvec_iota(void) {
    return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
}

static inline fvec fvec_add(fvec a, fvec b) {
    return _mm256_add_ps(a, b);
}

static inline fvec fvec_sub(fvec a, fvec b) {
    return _mm256_sub_ps(a, b);
}

static inline fvec fvec_mul(fvec a, fvec b) {
    return _mm256_mul_ps(a, b);
}

static inline fvec fvec_div(fvec a, fvec b) {
    return _mm256_div_ps(a, b);
}

static inline fvec fvec_fma(fvec a, fvec b, fvec c) {
    return _mm256_fmadd_ps(a, b, c);
}

static inline fvec fvec_max(fvec a, fvec b) {
    return _mm256_max_ps(a, b);
}

static inline fvec fvec_min(fvec a, fvec b) {
    return _mm256_min_ps(a, b);
}

static inline fvec fvec_round(fvec x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* The power of two by its exponent. What is not a number has none and gets 1. */
static inline fvec fvec_scale(fvec x, fvec n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

static inline fmask fvec_less(fvec a, fvec b) {
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

static inline fmask fvec_is_nan(fvec v) {
    return _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
}

static inline fvec fvec_select(fmask mask, fvec a, fvec b) {
    return _mm256_blendv_ps(b, a, mask);
}

static inline bool fvec_any_nan(fvec v) {
    return _mm256_movemask_ps(fvec_is_nan(v)) != 0;
}

static inline float fvec_reduce_max(fvec v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* Halves, then quarters, then the last two. */
static inline float fvec_reduce_add(fvec v) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

static inline hvec hvec_load(const char *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* Less than four elements. */
static inline uint64_t load_codes(const char *p, int64_t count) {
    uint64_t codes = 0;
    uint32_t pair;
    uint16_t last;
    if (count >= 2) {
        memcpy(&pair, p, sizeof(pair));
        codes = pair;
    }
    if (count % 2 != 0) {
        memcpy(&last, p + 2 * (count - 1), sizeof(last));
        codes |= (uint64_t)last << 16 * (count - 1);
    }
    return codes;
}

static inline hvec hvec_load_part(const char *p, int64_t count) {
    uint64_t first;
    if (count < 4)
        return _mm_cvtsi64_si128((int64_t)load_codes(p, count));
    memcpy(&first, p, sizeof(first));
    return _mm_set_epi64x((int64_t)load_codes(p + 8, count - 4), (int64_t)first);
}

static inline void hvec_store(char *p, hvec v) {
    _mm_storeu_si128((__m128i *)(void *)p, v);
}

static inline void hvec_store_part(char *p, hvec v, int64_t count) {
    char codes[16];
    hvec_store(codes, v);
    memcpy(p, codes, (size_t)(2 * count));
}

static inline fvec widen_f16(hvec codes) {
    return _mm256_cvtph_ps(codes);
}

static inline fvec widen_bf16(hvec codes) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
}

/* The lower halves of the words must be all that there is. */
static inline __m128i lower_halves(__m256i words) {
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

static inline hvec narrow_f16(fvec v) {
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* The upper half, rounded: half a unit less one, and one more if the result would be odd. */
static inline hvec narrow_bf16(fvec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    return lower_halves(_mm256_srli_epi32(up, 16));
}

static inline tvec tvec_load(const char *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline fvec tvec_f32(tvec t) {
    return _mm256_castsi256_ps(t);
}

static inline fvec tvec_low_f16(tvec t) {
    return _mm256_cvtph_ps(lower_halves(_mm256_and_si256(t, _mm256_set1_epi32(0xffff))));
}

static inline fvec tvec_high_f16(tvec t) {
    return _mm256_cvtph_ps(lower_halves(_mm256_srli_epi32(t, 16)));
}

static inline fvec tvec_low_bf16(tvec t) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(t, 16));
}

static inline fvec tvec_high_bf16(tvec t) {
    return _mm256_castsi256_ps(_mm256_and_si256(t, _mm256_set1_epi32((int)0xffff0000u)));
}

static inline void fvec_zip(fvec v[2]) {
    const fvec low = _mm256_unpacklo_ps(v[0], v[1]), high = _mm256_unpackhi_ps(v[0], v[1]);
    v[0] = _mm256_permute2f128_ps(low, high, 0x20);
    v[1] = _mm256_permute2f128_ps(low, high, 0x31);
}

/* 16 bytes of row i, and of row i + 4 behind them. */
static inline tvec load_halves(const char *const *from, int i, int64_t at) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(hvec_load(from[i] + at)),
                                   hvec_load(from[i + 4] + at), 1);
}

/* Half a vector from each of two rows, so that only words and pairs of words have to find their
 * places. */
ALWAYS_INLINE void tvec_load_transposed(tvec *words, const char *const *from, int64_t at) {
    UNROLL for (int j = 0; j < 8; j += 4) {
        const tvec a = load_halves(from, 0, at + 4 * j), b = load_halves(from, 1, at + 4 * j);
        const tvec c = load_halves(from, 2, at + 4 * j), d = load_halves(from, 3, at + 4 * j);
        const tvec ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
        const tvec ba = _mm256_unpackhi_epi32(a, b), dc = _mm256_unpackhi_epi32(c, d);
        words[j] = _mm256_unpacklo_epi64(ab, cd);
        words[j + 1] = _mm256_unpackhi_epi64(ab, cd);
        words[j + 2] = _mm256_unpacklo_epi64(ba, dc);
        words[j + 3] = _mm256_unpackhi_epi64(ba, dc);
    }
}

#define PREFETCH(p) _mm_prefetch((p), _MM_HINT_T0)

#endif
