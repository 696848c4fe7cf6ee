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

/* A row of floats to words of pairs, the first of a pair in the lower half; a missing last element is 0. */
static void pair_row(float *words, const float *row, int64_t count) {
    for (int64_t i = 0; i < count; i += 2 * FVEC_LANES) {
        const fvec low = fvec_load_up_to(row + i, count - i);
        const fvec high = fvec_load_up_to(row + i + FVEC_LANES, count - i - FVEC_LANES);
        const fvec pairs = (fvec)_mm512_cvtne2ps_pbh(high, low);
        const int64_t num_words = (count - i + 1) / 2;
        if (num_words >= FVEC_LANES)
            fvec_store(words + i / 2, pairs);
        else
            fvec_store_part(words + i / 2, pairs, num_words);
    }
}

static inline fvec dot(fvec sum, fvec pairs, fvec other) {
    return _mm512_dpbf16_ps(sum, (__m512bh)pairs, (__m512bh)other);
}

ALWAYS_INLINE void dot_rows(int rows, float *to, int64_t to_stride, const float *from,
                            int64_t from_stride, const float *panel, int64_t num_words) {
    fvec a[8], b[8];
    UNROLL for (int r = 0; r < rows; r++) a[r] = b[r] = fvec_set(0.0f);
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
                         int64_t num_rows, const float *panel, int64_t num_words) {
    for (int64_t r = 0; r < num_rows; r += DOT_ROWS) {
        const int64_t left = num_rows - r;
        const int rows = left < DOT_ROWS ? (int)left : DOT_ROWS;
        WITH_ROWS(rows, dot_rows, to + r * to_stride, to_stride, from + r * from_stride,
                  from_stride, panel, num_words)
    }
}

/* The scratch: a panel, then the pairs of all rows. */
enum { PAIRS_OFFSET = PKV_ATTENTION_MAX_HEAD_SIZE * 32 };

enum { FEW_ROWS = FVEC_LANES, FEW_TOKENS = FVEC_LANES, WORD_BYTES = 4 };

/* Heads are read one after the other. Where they lie together that is not the order of memory, and a whole tile has to
 * be there before. */
static bool has_time(const struct pkv_attention_tokens *tokens, int64_t num_rows) {
    return tokens->heads_together || num_rows > FEW_ROWS;
}

/* ---- query . key, few rows ----
 *
 * To transpose keys takes a quarter as long as their products with 16 rows. So the queries are transposed: a vector of a
 * panel holds a word of 16 rows, and meets the words of the keys as they lie, each in all lanes. */

/* Words of rows side by side; the last row stands in for missing ones. */
static void fill_query_panel(float *panel, const float *pairs, int64_t num_rows,
                             int64_t num_words) {
    const char *rows[FEW_ROWS];
    for (int64_t r = 0; r < FEW_ROWS; r++)
        rows[r] = (const char *)(pairs + (r < num_rows ? r : num_rows - 1) * num_words);
    for (int64_t w = 0; w < num_words; w += FVEC_LANES) {
        tvec words[FVEC_LANES];
        tvec_load_transposed(words, rows, w * WORD_BYTES);
        UNROLL for (int64_t i = 0; i < FVEC_LANES; i++)
            fvec_store(panel + (w + i) * FEW_ROWS, tvec_f32(words[i]));
    }
}

static inline fvec key_word(const char *at, size_t bytes) {
    int32_t word = 0;
    memcpy(&word, at, bytes);
    return (fvec)_mm512_set1_epi32(word);
}

static void score_few_rows(float *to, int64_t num_rows, const float *panel, const char *const *from,
                           int64_t row_bytes, struct ahead *ahead) {
    enum { WORDS = 4, WORDS_BYTES = WORDS * WORD_BYTES };
    fvec sums[FEW_TOKENS];
    UNROLL for (int i = 0; i < FEW_TOKENS; i++) sums[i] = fvec_set(0.0f);
    const char *line = ahead->line;
    int64_t at = 0;
    for (; at + WORDS_BYTES <= row_bytes; at += WORDS_BYTES, panel += WORDS * FEW_ROWS) {
        fvec q[WORDS];
        FETCH(ahead, line, FEW_TOKENS * WORDS_BYTES);
        UNROLL for (int w = 0; w < WORDS; w++) q[w] = fvec_load(panel + w * FEW_ROWS);
        UNROLL for (int i = 0; i < FEW_TOKENS; i++) {
            const char *row = from[i] + at;
            UNROLL for (int w = 0; w < WORDS; w++) sums[i] =
                dot(sums[i], q[w], key_word(row + w * WORD_BYTES, WORD_BYTES));
        }
    }
    ahead->line = line;
    for (; at < row_bytes; at += WORD_BYTES, panel += FEW_ROWS) {
        const size_t bytes = row_bytes - at < WORD_BYTES ? (size_t)(row_bytes - at) : WORD_BYTES;
        UNROLL for (int i = 0; i < FEW_TOKENS; i++) sums[i] =
            dot(sums[i], fvec_load(panel), key_word(from[i] + at, bytes));
    }
    float tokens[FEW_TOKENS][FEW_ROWS];
    const char *rows[FEW_TOKENS];
    tvec words[FEW_ROWS];
    UNROLL for (int i = 0; i < FEW_TOKENS; i++) {
        fvec_store(tokens[i], sums[i]);
        rows[i] = (const char *)tokens[i];
    }
    tvec_load_transposed(words, rows, 0);
    for (int64_t r = 0; r < num_rows; r++)
        fvec_store(to + r * PKV_ATTENTION_TILE, tvec_f32(words[r]));
}

static void scores_dot(float *scores, const float *query, int64_t query_stride, int64_t num_rows,
                       int64_t head_rows, const struct pkv_attention_tokens *keys,
                       const struct pkv_attention_tokens *then, int64_t head_size, float *scratch) {
    const int64_t num_words = (head_size + 1) / 2;
    float *pairs = scratch + PAIRS_OFFSET;
    struct ahead ahead =
        look_ahead(keys, then, lead_of(keys, FEW_TOKENS, has_time(keys, num_rows)));
    for (int64_t head = 0; head < keys->num_heads; head++) {
        const float *from = query + head * head_rows * query_stride;
        float *to = scores + head * head_rows * PKV_ATTENTION_TILE;
        for (int64_t r = 0; r < num_rows; r++)
            pair_row(pairs + r * num_words, from + r * query_stride, head_size);
        if (num_rows <= FEW_ROWS) {
            fill_query_panel(scratch, pairs, num_rows, num_words);
            for (int64_t t = 0; t < keys->num_tokens; t += FEW_TOKENS) {
                const char *rows[FEW_TOKENS];
                find_rows(rows, FEW_TOKENS, keys, head, t);
                score_few_rows(to + t, num_rows, scratch, rows, head_size * 2, &ahead);
            }
            continue;
        }
        for (int64_t t = 0; t < keys->num_tokens; t += PANEL) {
            fill_panel(scratch, keys, head, t, head_size * 2, &ahead);
            dot_all_rows(to + t, PKV_ATTENTION_TILE, pairs, num_words, num_rows, scratch,
                         num_words);
        }
    }
}

/* Elements of two neighbouring tokens as words: row t of the panel has those of tokens 2 t and 2 t + 1. */
static void fill_value_panel(float *panel, const char *base, const int64_t *offsets,
                             int64_t num_tokens, int64_t num_elements, struct ahead *ahead) {
    const char *line = ahead ? ahead->line : NULL;
    const __mmask32 mask = num_elements >= PANEL ? 0xffffffffu : (1u << num_elements) - 1;
    const __m512i even = _mm512_set1_epi32(0x00200000);
    const __m512i lower = _mm512_add_epi32(
        _mm512_mullo_epi32(_mm512_cvtps_epi32(fvec_iota()), _mm512_set1_epi32(0x00010001)), even);
    const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(0x00100010));
    for (int64_t t = 0; t < num_tokens; t += 2) {
        if (ahead)
            FETCH(ahead, line, 2 * PANEL * 2);
        const __m512i a = _mm512_maskz_loadu_epi16(mask, base + offsets[t]);
        const __m512i b = t + 1 < num_tokens ? _mm512_maskz_loadu_epi16(mask, base + offsets[t + 1])
                                             : _mm512_setzero_si512();
        _mm512_storeu_si512(panel + t / 2 * PANEL, _mm512_permutex2var_epi16(a, lower, b));
        _mm512_storeu_si512(panel + t / 2 * PANEL + FVEC_LANES,
                            _mm512_permutex2var_epi16(a, upper, b));
    }
    if (ahead)
        ahead->line = line;
}

/* The sums of a row again, in float32 and without the tokens whose weight is 0: they may hold anything. */
static void add_row_carefully(float *acc, const float *weights, const char *base,
                              const int64_t *offsets, int64_t num_tokens, int64_t num_elements) {
    for (int64_t d = 0; d < num_elements; d++) {
        acc[d] = 0;
        for (int64_t t = 0; t < num_tokens; t++) {
            uint16_t code;
            memcpy(&code, base + offsets[t] + d * 2, sizeof(code));
            if (weights[t] != 0)
                acc[d] = fmaf(weights[t], pkv_bf16_to_f32(code), acc[d]);
        }
    }
}

/* The sums of one head. */
static void values_dot_of_head(float *acc, int64_t acc_stride, const float *weights,
                               int64_t num_rows, const char *base, const int64_t *offsets,
                               int64_t num_tokens, int64_t head_size, float *scratch,
                               struct ahead *ahead) {
    enum { TILE_WORDS = PKV_ATTENTION_TILE / 2 };
    const int64_t num_words = (num_tokens + 1) / 2;
    float *pairs = scratch + PAIRS_OFFSET;
    for (int64_t r = 0; r < num_rows; r++)
        pair_row(pairs + r * TILE_WORDS, weights + r * PKV_ATTENTION_TILE, num_tokens);
    for (int64_t d = 0; d < head_size; d += PANEL) {
        const int64_t num_elements = head_size - d < PANEL ? head_size - d : PANEL;
        fill_value_panel(scratch, base + d * 2, offsets, num_tokens, num_elements, ahead);
        dot_all_rows(acc + d, acc_stride, pairs, TILE_WORDS, num_rows, scratch, num_words);
    }
    if (all_finite(acc, acc_stride, num_rows, head_size))
        return;
    for (int64_t r = 0; r < num_rows; r++) {
        if (!all_finite(acc + r * acc_stride, acc_stride, 1, head_size))
            add_row_carefully(acc + r * acc_stride, weights + r * PKV_ATTENTION_TILE, base, offsets,
                              num_tokens, head_size);
    }
}

static void values_dot(float *acc, int64_t acc_stride, const float *weights, int64_t num_rows,
                       int64_t head_rows, const struct pkv_attention_tokens *values,
                       const struct pkv_attention_tokens *then, int64_t head_size, float *scratch) {
    struct ahead cursor =
        look_ahead(values, then, lead_of(values, FEW_TOKENS, has_time(values, num_rows)));
    /* To fetch again what is in cache would take a tenth of the time. */
    struct ahead *ahead = values->is_cached && num_rows <= FEW_ROWS ? NULL : &cursor;
    for (int64_t head = 0; head < values->num_heads; head++) {
        const int64_t row = head * head_rows;
        values_dot_of_head(acc + row * acc_stride, acc_stride, weights + row * PKV_ATTENTION_TILE,
                           num_rows, values->base + head * values->head_stride, values->offsets,
                           values->num_tokens, head_size, scratch, ahead);
    }
}

void pkv_attention_init_avx512_bf16(struct pkv_kernels *kernels) {
    kernels->attention_scores_dot = scores_dot;
    kernels->attention_values_dot = values_dot;
}
