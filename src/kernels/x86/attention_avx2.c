/* SPDX-License-Identifier: MIT
 *
 * Attention in AVX2: the shared bodies over this instruction set's vectors.
 */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef __m256 fvec;
typedef __m256i tvec;
typedef __m256 fmask;

/* Two sums a row, two vectors that they share and a broadcast: 15 of the 16 registers. */
enum { FVEC_LANES = 8, SCORE_ROWS = 6, VALUE_ROWS = 6 };

static inline __m256i first_lanes(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline fvec fvec_load(const float *p) {
    return _mm256_loadu_ps(p);
}

static inline void fvec_store(float *p, fvec v) {
    _mm256_storeu_ps(p, v);
}

static inline fvec fvec_load_part(const float *p, int64_t count) {
    return _mm256_maskload_ps(p, first_lanes(count));
}

static inline void fvec_store_part(float *p, fvec v, int64_t count) {
    _mm256_maskstore_ps(p, first_lanes(count), v);
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

static inline __m128i load_16(const char *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* Masks exist for words alone: an odd last element comes by itself. */
static inline __m128i load_16_part(const char *p, int64_t count) {
    const __m128i words = _mm_maskload_epi32((const int *)(const void *)p,
                                             _mm256_castsi256_si128(first_lanes(count / 2)));
    if (count % 2 == 0)
        return words;
    uint16_t code;
    memcpy(&code, p + 2 * (count - 1), sizeof(code));
    const __m128i is_last =
        _mm_cmpeq_epi16(_mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7), _mm_set1_epi16((short)(count - 1)));
    return _mm_or_si128(words, _mm_and_si128(is_last, _mm_set1_epi16((short)code)));
}

static inline void store_16(char *p, __m128i v) {
    _mm_storeu_si128((__m128i *)(void *)p, v);
}

static inline void store_16_part(char *p, __m128i v, int64_t count) {
    char codes[16];
    store_16(codes, v);
    memcpy(p, codes, (size_t)(2 * count));
}

static inline fvec widen_bf16(__m128i codes) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
}

/* The lower halves of the words must be all that there is. */
static inline __m128i lower_halves(__m256i words) {
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

static inline __m128i narrow_f16(fvec v) {
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* The upper half, rounded: half a unit less one, and one more if the result would be odd. */
static inline __m128i narrow_bf16(fvec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    return lower_halves(_mm256_srli_epi32(up, 16));
}

static inline fvec fvec_load_f16(const char *p) {
    return _mm256_cvtph_ps(load_16(p));
}

static inline fvec fvec_load_f16_part(const char *p, int64_t count) {
    return _mm256_cvtph_ps(load_16_part(p, count));
}

static inline void fvec_store_f16(char *p, fvec v) {
    store_16(p, narrow_f16(v));
}

static inline void fvec_store_f16_part(char *p, fvec v, int64_t count) {
    store_16_part(p, narrow_f16(v), count);
}

static inline fvec fvec_load_bf16(const char *p) {
    return widen_bf16(load_16(p));
}

static inline fvec fvec_load_bf16_part(const char *p, int64_t count) {
    return widen_bf16(load_16_part(p, count));
}

static inline void fvec_store_bf16(char *p, fvec v) {
    store_16(p, narrow_bf16(v));
}

static inline void fvec_store_bf16_part(char *p, fvec v, int64_t count) {
    store_16_part(p, narrow_bf16(v), count);
}

static inline tvec tvec_load(const char *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* As load_16_part: half a word at the end comes by itself. */
static inline tvec tvec_load_part(const char *p, int64_t bytes) {
    const __m256i words =
        _mm256_maskload_epi32((const int *)(const void *)p, first_lanes(bytes / 4));
    if (bytes % 4 == 0)
        return words;
    uint16_t code;
    memcpy(&code, p + bytes - 2, sizeof(code));
    const __m256i is_last = _mm256_cmpeq_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                               _mm256_set1_epi32((int)(bytes / 4)));
    return _mm256_or_si256(words, _mm256_and_si256(is_last, _mm256_set1_epi32(code)));
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

/* Words, pairs of words, then halves of a vector find their places. */
static inline void tvec_transpose(tvec *t) {
    tvec a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(t[i], t[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(t[i], t[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

static inline void prefetch_l2(const char *p) {
    _mm_prefetch(p, _MM_HINT_T1);
}

#include "kernels/template/attention.h"
#include "kernels/template/attention_products.h"

void pkv_attention_init_avx2(struct pkv_kernels *kernels) {
    attention_init(kernels);
}
