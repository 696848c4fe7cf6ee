/* SPDX-License-Identifier: MIT
 *
 * The products of attention by the dot products of AVX-512 BF16: two products of bfloat16 and two additions of float32
 * a lane. Denormals count as 0 there. The number of rows has no effect on a row, but the results are not those of the
 * float32 products, so they are chosen by option only.
 */
#include <math.h>

#include "base/formats.h"
#include "kernels/x86/fvec_avx512.h"

#include "kernels/template/attention_panel.h"

enum { DOT_ROWS = 8 };

/* Two floats to a word of bfloat16, the first one in the lower half. */
static inline float pair_of(float first, float second) {
    const uint32_t word = pkv_f32_to_bf16(first) | (uint32_t)pkv_f32_to_bf16(second) << 16;
    float bits;
    memcpy(&bits, &word, sizeof(bits));
    return bits;
}

/* A row of floats to words of pairs; a missing last element is 0. */
static void pair_row(float *words, const float *row, int64_t count) {
    int64_t i = 0;
    for (; i + 2 * FVEC_LANES <= count; i += 2 * FVEC_LANES) {
        const __m512i low = _mm512_castsi256_si512(narrow_bf16(fvec_load(row + i)));
        const __m512i both =
            _mm512_inserti64x4(low, narrow_bf16(fvec_load(row + i + FVEC_LANES)), 1);
        _mm512_storeu_si512(words + i / 2, both);
    }
    for (; i < count; i += 2)
        words[i / 2] = pair_of(row[i], i + 1 < count ? row[i + 1] : 0);
}

static inline fvec dot(fvec sum, fvec pairs, fvec other) {
    return _mm512_dpbf16_ps(sum, (__m512bh)pairs, (__m512bh)other);
}

ALWAYS_INLINE void dot_rows(int rows, float *to, int64_t to_stride, const float *from,
                            int64_t from_stride, const float *panel, int64_t num_words,
                            bool starts) {
    fvec a[8], b[8];
    UNROLL for (int r = 0; r < rows; r++) {
        a[r] = starts ? fvec_set(0.0f) : fvec_load(to + r * to_stride);
        b[r] = starts ? fvec_set(0.0f) : fvec_load(to + r * to_stride + FVEC_LANES);
    }
    for (int64_t w = 0; w < num_words; w++) {
        const fvec k = fvec_load(panel + w * PANEL), l = fvec_load(panel + w * PANEL + FVEC_LANES);
        UNROLL for (int r = 0; r < rows; r++) {
            const fvec q = fvec_set(from[r * from_stride + w]);
            a[r] = dot(a[r], k, q);
            b[r] = dot(b[r], l, q);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        fvec_store(to + r * to_stride, a[r]);
        fvec_store(to + r * to_stride + FVEC_LANES, b[r]);
    }
}

static void dot_all_rows(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                         int64_t num_rows, const float *panel, int64_t num_words, bool starts) {
    for (int64_t r = 0; r < num_rows; r += DOT_ROWS) {
        const int64_t left = num_rows - r;
        const int rows = left < DOT_ROWS ? (int)left : DOT_ROWS;
        WITH_ROWS(rows, dot_rows, to + r * to_stride, to_stride, from + r * from_stride,
                  from_stride, panel, num_words, starts)
    }
}

/* The scratch: a panel, then the pairs of all rows. */
enum { PAIRS_OFFSET = PKV_ATTENTION_MAX_HEAD_SIZE * 32 };

static void scores_dot(float *scores, const float *query, int64_t query_stride, int64_t num_rows,
                       const struct pkv_attention_tokens *keys, int64_t head_size, float *scratch) {
    const int64_t num_words = (head_size + 1) / 2;
    float *pairs = scratch + PAIRS_OFFSET;
    for (int64_t r = 0; r < num_rows; r++)
        pair_row(pairs + r * num_words, query + r * query_stride, head_size);
    for (int64_t t = 0; t < keys->num_tokens; t += PANEL) {
        struct ahead ahead;
        look_ahead(&ahead, keys, t + PANEL, PANEL, head_size * 2);
        fill_half_panel(scratch, keys, t, head_size * 2, &ahead);
        fill_half_panel(scratch + FVEC_LANES, keys, t + FVEC_LANES, head_size * 2, &ahead);
        dot_all_rows(scores + t, PKV_ATTENTION_TILE, pairs, num_words, num_rows, scratch, num_words,
                     true);
    }
}

/* Elements of two neighbouring tokens as words: row t of the panel has those of tokens 2 t and 2 t + 1. */
static void fill_value_panel(float *panel, const struct pkv_attention_tokens *values, int64_t byte,
                             int64_t num_elements) {
    const __mmask32 mask = num_elements >= PANEL ? 0xffffffffu : (1u << num_elements) - 1;
    const __m512i even = _mm512_set1_epi32(0x00200000);
    const __m512i lower = _mm512_add_epi32(
        _mm512_mullo_epi32(_mm512_cvtps_epi32(fvec_iota()), _mm512_set1_epi32(0x00010001)), even);
    const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(0x00100010));
    for (int64_t t = 0; t < values->num_tokens; t += 2) {
        const char *from = values->base + byte;
        const __m512i a = _mm512_maskz_loadu_epi16(mask, from + values->offsets[t]);
        const __m512i b = t + 1 < values->num_tokens
                              ? _mm512_maskz_loadu_epi16(mask, from + values->offsets[t + 1])
                              : _mm512_setzero_si512();
        _mm512_storeu_si512(panel + t / 2 * PANEL, _mm512_permutex2var_epi16(a, lower, b));
        _mm512_storeu_si512(panel + t / 2 * PANEL + FVEC_LANES,
                            _mm512_permutex2var_epi16(a, upper, b));
    }
}

/* The sums of a row again, in float32 and without the tokens whose weight is 0: they may hold anything. */
static void add_row_carefully(float *acc, const float *before, const float *weights,
                              const struct pkv_attention_tokens *values, int64_t byte,
                              int64_t num_elements) {
    for (int64_t d = 0; d < num_elements; d++) {
        acc[d] = before[d];
        for (int64_t t = 0; t < values->num_tokens; t++) {
            uint16_t code;
            memcpy(&code, values->base + values->offsets[t] + byte + d * 2, sizeof(code));
            if (weights[t] != 0)
                acc[d] = fmaf(weights[t], pkv_bf16_to_f32(code), acc[d]);
        }
    }
}

static bool is_finite(const float *acc) {
    const fvec zero = fvec_set(0.0f);
    return !fvec_any_nan(
        fvec_fma(fvec_load(acc), zero, fvec_mul(fvec_load(acc + FVEC_LANES), zero)));
}

static void values_dot(float *acc, int64_t acc_stride, bool starts, const float *weights,
                       int64_t num_rows, const struct pkv_attention_tokens *values,
                       int64_t head_size, float *scratch) {
    enum { TILE_WORDS = PKV_ATTENTION_TILE / 2 };
    const int64_t num_words = (values->num_tokens + 1) / 2;
    float *before = scratch + TILE_WORDS * PANEL; /* [num_rows][PANEL] */
    float *pairs = scratch + PAIRS_OFFSET;
    for (int64_t r = 0; r < num_rows; r++)
        pair_row(pairs + r * TILE_WORDS, weights + r * PKV_ATTENTION_TILE, values->num_tokens);
    for (int64_t d = 0; d < head_size; d += PANEL) {
        for (int64_t r = 0; r < num_rows; r++) {
            for (int64_t i = 0; i < PANEL; i++)
                before[r * PANEL + i] = starts ? 0 : acc[r * acc_stride + d + i];
        }
        fill_value_panel(scratch, values, d * 2, head_size - d);
        dot_all_rows(acc + d, acc_stride, pairs, TILE_WORDS, num_rows, scratch, num_words, starts);
        for (int64_t r = 0; r < num_rows; r++) {
            float *to = acc + r * acc_stride + d;
            if (!is_finite(to))
                add_row_carefully(to, before + r * PANEL, weights + r * PKV_ATTENTION_TILE, values,
                                  d * 2, head_size - d < PANEL ? head_size - d : PANEL);
        }
    }
}

void pkv_attention_init_avx512_bf16(struct pkv_kernels *kernels) {
    kernels->attention_scores_dot = scores_dot;
    kernels->attention_values_dot = values_dot;
}
