/* SPDX-License-Identifier: MIT
 *
 * The products of attention by the dot products of AVX-512 BF16: a lane adds the products of a pair
 * of bfloat16 to a float32, in two fused steps. Queries and weights are rounded to bfloat16. The
 * number of rows has no effect on a row.
 */
#include <math.h>

#include "base/formats.h"
#include "kernels/x86/attention_quads.h"

/* A row of floats to words of pairs, the first of a pair in the lower half; a missing last element
 * is 0. words may be row: what is written has been read. */
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

static void attention_pair(float *row, int64_t count) {
    pair_row(row, row, count);
}

static inline fvec dot(fvec pairs, fvec other, fvec sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)pairs, (__m512bh)other);
}

/* The scratch: a panel, then the pairs of all rows. */
enum { PAIRS_OFFSET = PKV_ATTENTION_MAX_HEAD_SIZE * 32 };

/* ---- query . key: words of pairs in place of elements ---- */

enum { WORD_BYTES = 4, QUARTER_WORDS = PKV_ATTENTION_QUARTER / WORD_BYTES };

ALWAYS_INLINE void split_pairs(fvec v[2], tvec word) {
    v[0] = tvec_f32(word);
}

/* 16 tokens at once would spread queries half as often, but where heads lie together the tokens of
 * all heads, and those that are fetched, would not find room in the first cache: 0.92 to 0.96 times
 * as fast. */
DEFINE_QUAD_SCORES(pairs, 4, dot, 2)

static void dot_quads(float *scores, const float *query, int64_t query_stride, int64_t num_rows,
                      int64_t head_rows, const struct pkv_attention_tokens *keys,
                      const struct pkv_attention_tokens *then, int64_t head_size, float *scratch) {
    const int64_t num_words = (head_size + 1) / 2, stride = pkv_attention_padded(head_size) / 2;
    for (int64_t i = 0; i < keys->num_heads * num_rows; i++) {
        const int64_t row = i / num_rows * head_rows + i % num_rows;
        quarter_row(scratch + i * stride, query + row * query_stride, num_words, QUARTER_WORDS);
    }
    quad_scores_pairs(scores, scratch, stride, num_rows, head_rows, keys, then, head_size * 2);
}

/* ---- query . key, up to 16 rows ----
 *
 * To transpose keys takes a quarter as long as their products with 16 rows. So the queries are
 * transposed: a vector of a panel holds a word of all rows, and meets the words of the keys as they
 * lie, each in all lanes. */

enum { LANE_ROWS = FVEC_LANES, LANE_TOKENS = FVEC_LANES };

/* The panels of all heads at once: of 9 rows, and as long as of 16. */
_Static_assert(PKV_ATTENTION_MAX_ROWS / (2 * QUAD_ROWS + 1) * LANE_ROWS *
                       PKV_ATTENTION_MAX_HEAD_SIZE / 2 <=
                   PKV_ATTENTION_SCRATCH,
               "query panels need more scratch");

/* Queries of a head to such a panel of num_words vectors, and up to 15 more. */
static void fill_query_panel(float *panel, const float *query, int64_t query_stride,
                             int64_t num_rows, int64_t head_size) {
    const char *rows[LANE_ROWS];
    for (int64_t r = 0; r < LANE_ROWS; r++)
        rows[r] = (const char *)(query + (r < num_rows ? r : 0) * query_stride);
    for (int64_t d = 0; d < head_size; d += 2 * FVEC_LANES) {
        tvec words[FVEC_LANES];
        tvec_load_transposed(words, rows, d / 2 * WORD_BYTES);
        UNROLL for (int64_t i = 0; i < FVEC_LANES; i++)
            fvec_store(panel + (d / 2 + i) * LANE_ROWS, tvec_f32(words[i]));
    }
}

static inline fvec key_word(const char *at, size_t bytes) {
    int32_t word = 0;
    memcpy(&word, at, bytes);
    return (fvec)_mm512_set1_epi32(word);
}

/* The same for the words of a quarter, by a load for each, */
ALWAYS_INLINE void key_words_by_loads(fvec words[QUARTER_WORDS], const char *at) {
    UNROLL for (int w = 0; w < QUARTER_WORDS; w++) words[w] =
        key_word(at + w * WORD_BYTES, WORD_BYTES);
}

/* or by one load, and a shuffle for each. */
ALWAYS_INLINE void key_words_by_shuffles(fvec words[QUARTER_WORDS], const char *at) {
    const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)at));
    words[0] = (fvec)_mm512_shuffle_epi32(all, 0x00);
    words[1] = (fvec)_mm512_shuffle_epi32(all, 0x55);
    words[2] = (fvec)_mm512_shuffle_epi32(all, 0xaa);
    words[3] = (fvec)_mm512_shuffle_epi32(all, 0xff);
}

/* The sums of one quarter. Each product needs a word in all lanes. To load all of them takes longer
 * than the products, to shuffle all of them too; half of each does not: MLA is 1.06 times as fast
 * as by loads. */
ALWAYS_INLINE const char *dot_quarter(fvec sums[LANE_TOKENS], const float *panel,
                                      const char *const *from, int64_t quarter, int64_t row_bytes,
                                      struct ahead *ahead, const char *line) {
    UNROLL for (int i = 0; i < LANE_TOKENS; i++) sums[i] = fvec_set(0.0f);
    int64_t at = quarter * PKV_ATTENTION_QUARTER;
    for (; at + PKV_ATTENTION_QUARTER <= row_bytes; at += CHUNK_BYTES) {
        const float *words = panel + at / WORD_BYTES * LANE_ROWS;
        fvec q[QUARTER_WORDS];
        FETCH(ahead, line, LANE_TOKENS * PKV_ATTENTION_QUARTER);
        UNROLL for (int w = 0; w < QUARTER_WORDS; w++) q[w] = fvec_load(words + w * LANE_ROWS);
        UNROLL for (int i = 0; i < LANE_TOKENS; i++) {
            const char *row = from[i] + at;
            fvec k[QUARTER_WORDS];
            if (i % 2 != 0)
                key_words_by_shuffles(k, row);
            else
                key_words_by_loads(k, row);
            UNROLL for (int w = 0; w < QUARTER_WORDS; w++) sums[i] = dot(q[w], k[w], sums[i]);
        }
    }
    for (; at < row_bytes; at += WORD_BYTES) {
        const fvec q = fvec_load(panel + at / WORD_BYTES * LANE_ROWS);
        const size_t bytes = row_bytes - at < WORD_BYTES ? (size_t)(row_bytes - at) : WORD_BYTES;
        UNROLL for (int i = 0; i < LANE_TOKENS; i++) sums[i] =
            dot(q, key_word(from[i] + at, bytes), sums[i]);
    }
    return line;
}

static void dot_tokens(float *to, int64_t num_rows, const float *panel, const char *const *from,
                       int64_t row_bytes, struct ahead *ahead) {
    float tokens[LANE_TOKENS][LANE_ROWS];
    const char *rows[LANE_TOKENS], *line = ahead->line;
    for (int64_t quarter = 0; quarter < 4; quarter++) {
        fvec sums[LANE_TOKENS];
        line = dot_quarter(sums, panel, from, quarter, row_bytes, ahead, line);
        UNROLL for (int i = 0; i < LANE_TOKENS; i++)
            fvec_store(tokens[i], quarter == 0 ? sums[i] : fvec_add(fvec_load(tokens[i]), sums[i]));
    }
    ahead->line = line;
    tvec words[LANE_ROWS];
    for (int64_t i = 0; i < LANE_TOKENS; i++)
        rows[i] = (const char *)tokens[i];
    tvec_load_transposed(words, rows, 0);
    for (int64_t r = 0; r < num_rows; r++)
        fvec_store(to + r * PKV_ATTENTION_TILE, tvec_f32(words[r]));
}

static void dot_lanes(float *scores, const float *query, int64_t query_stride, int64_t num_rows,
                      int64_t head_rows, const struct pkv_attention_tokens *keys,
                      const struct pkv_attention_tokens *then, int64_t head_size, float *scratch) {
    const int64_t panel = pkv_attention_padded(head_size) / 2 * LANE_ROWS;
    for (int64_t head = 0; head < keys->num_heads; head++)
        fill_query_panel(scratch + head * panel, query + head * head_rows * query_stride,
                         query_stride, num_rows, head_size);
    struct step step = first_step(keys, LANE_TOKENS, LANE_TOKENS);
    struct ahead ahead = look_ahead(keys, then, lead_of(&step, keys, num_rows));
    struct pages pages = look_at_pages(keys, then, num_rows);
    do {
        float *to = scores + step.turn.head * head_rows * PKV_ATTENTION_TILE;
        for (int64_t t = step.first; t < step.end; t += LANE_TOKENS) {
            const char *rows[LANE_TOKENS];
            find_rows(rows, LANE_TOKENS, keys, step.turn.head, t);
            dot_tokens(to + t, num_rows, scratch + step.turn.head * panel, rows, head_size * 2,
                       &ahead);
        }
        touch_pages(&pages, (step.end - step.first) * head_size * 2);
    } while (next_step(&step, keys));
    touch_rest(&pages);
}

/* ---- query . key, many rows ---- */

/* Words of a chunk, or what there is of it, of two vectors of tokens. */
ALWAYS_INLINE void dot_chunk(int rows, fvec a[4][3], fvec b[4][3], const float *pairs,
                             int64_t pairs_stride, const float *panel, int64_t num_words) {
    UNROLL for (int w = 0; w < QUARTER_WORDS; w++) {
        UNROLL for (int q = 0; q < 4; q++) {
            const int word = q * QUARTER_WORDS + w;
            if (word >= num_words)
                continue;
            const fvec k = fvec_load(panel + word * PANEL);
            const fvec l = fvec_load(panel + word * PANEL + FVEC_LANES);
            UNROLL for (int r = 0; r < rows; r++) {
                const fvec x = fvec_set(pairs[r * pairs_stride + word]);
                a[q][r] = dot(x, k, a[q][r]);
                b[q][r] = dot(x, l, b[q][r]);
            }
        }
    }
}

static inline fvec sum_of_quarters(const fvec sums[4][3], int r) {
    return fvec_add(fvec_add(fvec_add(sums[0][r], sums[1][r]), sums[2][r]), sums[3][r]);
}

/* The sums of all quarters of up to 3 rows stay in registers. */
ALWAYS_INLINE void dot_panel_rows(int rows, float *to, const float *pairs, int64_t pairs_stride,
                                  const float *panel, int64_t num_words) {
    fvec a[4][3], b[4][3];
    UNROLL for (int q = 0; q < 4; q++) {
        UNROLL for (int r = 0; r < rows; r++) a[q][r] = b[q][r] = fvec_set(0.0f);
    }
    int64_t word = 0;
    for (; word + FVEC_LANES <= num_words; word += FVEC_LANES)
        dot_chunk(rows, a, b, pairs + word, pairs_stride, panel + word * PANEL, FVEC_LANES);
    if (word < num_words)
        dot_chunk(rows, a, b, pairs + word, pairs_stride, panel + word * PANEL, num_words - word);
    UNROLL for (int r = 0; r < rows; r++) {
        fvec_store(to + r * PKV_ATTENTION_TILE, sum_of_quarters(a, r));
        fvec_store(to + r * PKV_ATTENTION_TILE + FVEC_LANES, sum_of_quarters(b, r));
    }
}

static void dot_panel(float *to, const float *query, int64_t query_stride, int64_t num_rows,
                      const float *panel, int64_t num_words) {
    int64_t r = 0;
    for (; r + 3 <= num_rows; r += 3)
        dot_panel_rows(3, to + r * PKV_ATTENTION_TILE, query + r * query_stride, query_stride,
                       panel, num_words);
    for (; r < num_rows; r++)
        dot_panel_rows(1, to + r * PKV_ATTENTION_TILE, query + r * query_stride, query_stride,
                       panel, num_words);
}

static void dot_panels(float *scores, const float *query, int64_t query_stride, int64_t num_rows,
                       int64_t head_rows, const struct pkv_attention_tokens *keys,
                       const struct pkv_attention_tokens *then, int64_t head_size, float *scratch) {
    const int64_t num_words = (head_size + 1) / 2;
    struct ahead ahead = look_ahead(keys, then, whole_lead(keys));
    for (int64_t head = 0; head < keys->num_heads; head++) {
        const float *from = query + head * head_rows * query_stride;
        float *to = scores + head * head_rows * PKV_ATTENTION_TILE;
        for (int64_t t = 0; t < keys->num_tokens; t += PANEL) {
            fill_panel(scratch, keys, head, t, head_size * 2, &ahead);
            dot_panel(to + t, from, query_stride, num_rows, scratch, num_words);
        }
    }
}

/* With 8 rows quads take three quarters of the time of lanes, of which half would be idle. */
static void scores_dot(float *scores, const float *query, int64_t query_stride, int64_t num_rows,
                       int64_t head_rows, const struct pkv_attention_tokens *keys,
                       const struct pkv_attention_tokens *then, int64_t head_size, float *scratch) {
    if (num_rows <= 2 * QUAD_ROWS)
        dot_quads(scores, query, query_stride, num_rows, head_rows, keys, then, head_size, scratch);
    else if (num_rows <= LANE_ROWS)
        dot_lanes(scores, query, query_stride, num_rows, head_rows, keys, then, head_size, scratch);
    else
        dot_panels(scores, query, query_stride, num_rows, head_rows, keys, then, head_size,
                   scratch);
}

/* ---- weights . value ---- */

/* Rows side by side. */
enum { DOT_ROWS = 8 };

ALWAYS_INLINE void dot_rows(int rows, fvec *doubt, float *to, int64_t to_stride, const float *from,
                            int64_t from_stride, const float *panel, int64_t num_words) {
    fvec a[8], b[8];
    UNROLL for (int r = 0; r < rows; r++) a[r] = b[r] = fvec_set(0.0f);
    for (int64_t w = 0; w < num_words; w++) {
        const fvec k = fvec_load(panel + w * PANEL), l = fvec_load(panel + w * PANEL + FVEC_LANES);
        UNROLL for (int r = 0; r < rows; r++) {
            const fvec x = fvec_set(from[r * from_stride + w]);
            a[r] = dot(x, k, a[r]);
            b[r] = dot(x, l, b[r]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        fvec_store(to + r * to_stride, a[r]);
        fvec_store(to + r * to_stride + FVEC_LANES, b[r]);
        doubt[0] = fvec_fma(a[r], fvec_set(0.0f), doubt[0]);
        doubt[1] = fvec_fma(b[r], fvec_set(0.0f), doubt[1]);
    }
}

/* Not a number if one of the sums is not finite. */
static fvec dot_all_rows(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                         int64_t num_rows, const float *panel, int64_t num_words) {
    fvec doubt[2] = {fvec_set(0.0f), fvec_set(0.0f)};
    for (int64_t r = 0; r < num_rows; r += DOT_ROWS) {
        const int64_t left = num_rows - r;
        const int rows = left < DOT_ROWS ? (int)left : DOT_ROWS;
        WITH_ROWS(rows, dot_rows, doubt, to + r * to_stride, to_stride, from + r * from_stride,
                  from_stride, panel, num_words)
    }
    return fvec_add(doubt[0], doubt[1]);
}

/* Elements of two neighbouring tokens as words: row t of the panel has those of tokens 2 t and 2 t
 * + 1. */
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

/* The sums of a row again, in float32 and without the tokens whose weight is 0: they may hold
 * anything. */
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
                               struct ahead *ahead, struct pages *pages) {
    enum { TILE_WORDS = PKV_ATTENTION_TILE / 2 };
    const int64_t num_words = (num_tokens + 1) / 2;
    float *pairs = scratch + PAIRS_OFFSET;
    for (int64_t r = 0; r < num_rows; r++)
        pair_row(pairs + r * TILE_WORDS, weights + r * PKV_ATTENTION_TILE, num_tokens);
    fvec doubt = fvec_set(0.0f);
    for (int64_t d = 0; d < head_size; d += PANEL) {
        const int64_t num_elements = head_size - d < PANEL ? head_size - d : PANEL;
        fill_value_panel(scratch, base + d * 2, offsets, num_tokens, num_elements, ahead);
        doubt = fvec_add(doubt, dot_all_rows(acc + d, acc_stride, pairs, TILE_WORDS, num_rows,
                                             scratch, num_words));
        touch_pages(pages, num_tokens * num_elements * 2);
    }
    if (!fvec_any_nan(doubt))
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
    const struct step step = first_step(values, LANE_TOKENS, LANE_TOKENS);
    struct ahead cursor = look_ahead(values, then, lead_of(&step, values, num_rows));
    struct pages pages = look_at_pages(values, then, num_rows);
    /* After values within keys come keys, and their scores fetch for themselves: to do it here took
     * a tenth longer. */
    struct ahead *ahead = values->is_cached && num_rows <= LANE_ROWS ? NULL : &cursor;
    for (int64_t head = 0; head < values->num_heads; head++) {
        const int64_t row = head * head_rows;
        values_dot_of_head(acc + row * acc_stride, acc_stride, weights + row * PKV_ATTENTION_TILE,
                           num_rows, values->base + head * values->head_stride, values->offsets,
                           values->num_tokens, head_size, scratch, ahead, &pages);
    }
    touch_rest(&pages);
}

void pkv_attention_init_avx512_bf16(struct pkv_kernels *kernels) {
    kernels->attention_pair = attention_pair;
    kernels->attention_scores_dot = scores_dot;
    kernels->attention_values_dot = values_dot;
}
