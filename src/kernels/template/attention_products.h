/* SPDX-License-Identifier: MIT
 *
 * The two products of attention over the vector interface of template/attention.h. Scores are computed with tokens
 * in the lanes: the keys of two vectors of tokens are transposed to a panel first. Outputs are computed with the
 * elements of a head in the lanes. So each sum is one chain of fused steps in the order of the definition, whatever the
 * number of rows: a decode step and a prefill give the same bytes. Beyond those of attention_panel.h the including file
 * defines:
 *
 *   tvec_low_f16, tvec_high_f16, tvec_low_bf16, tvec_high_bf16
 *                                          the lower and upper halves of words as float
 *   SCORE_ROWS, VALUE_ROWS                 rows side by side, at most 8: two sums a row stay in registers
 *   WIDE_ROWS                              likewise, at most 4: four sums a row
 *   WIDENING_ROWS                          for more rows, halves of words become floats once for all of them, not
 *                                          once for each group of rows
 */
#ifndef PKV_KERNELS_TEMPLATE_ATTENTION_PRODUCTS_H
#define PKV_KERNELS_TEMPLATE_ATTENTION_PRODUCTS_H

#include "kernels/template/attention.h"
#include "kernels/template/attention_panel.h"

/* ---- query . key ---- */

/* The elements of one word of every token, as floats. */
ALWAYS_INLINE void split_f32(fvec v[2], tvec word) {
    v[0] = tvec_f32(word);
}

ALWAYS_INLINE void split_f16(fvec v[2], tvec word) {
    v[0] = tvec_low_f16(word);
    v[1] = tvec_high_f16(word);
}

ALWAYS_INLINE void split_bf16(fvec v[2], tvec word) {
    v[0] = tvec_low_bf16(word);
    v[1] = tvec_high_bf16(word);
}

#define DEFINE_SCORES(type, bytes)                                                                 \
    ALWAYS_INLINE void split_words_##type(fvec v[2], fvec w[2], const float *panel,                \
                                          int64_t word) {                                          \
        split_##type(v, tvec_load((const char *)(panel + word * PANEL)));                          \
        split_##type(w, tvec_load((const char *)(panel + word * PANEL + FVEC_LANES)));             \
    }                                                                                              \
                                                                                                   \
    ALWAYS_INLINE void score_rows_##type(int rows, float *scores, const float *query,              \
                                         int64_t query_stride, const float *panel,                 \
                                         int64_t head_size, struct ahead *ahead) {                 \
        enum { PER_WORD = 4 / bytes };                                                             \
        fvec a[8], b[8], v[2], w[2];                                                               \
        UNROLL for (int r = 0; r < rows; r++) a[r] = b[r] = fvec_set(0.0f);                        \
        int64_t d = 0, credit = 0, row = ahead ? ahead->next : 0;                                  \
        const int64_t row_words = head_size / PER_WORD;                                            \
        for (; d + PER_WORD <= head_size; d += PER_WORD) {                                         \
            credit += PANEL - FILL_ROWS;                                                           \
            if (ahead && credit >= row_words) {                                                    \
                credit -= row_words;                                                               \
                FETCH_ROW(ahead, row);                                                             \
            }                                                                                      \
            split_words_##type(v, w, panel, d / PER_WORD);                                         \
            UNROLL for (int k = 0; k < PER_WORD; k++) {                                            \
                UNROLL for (int r = 0; r < rows; r++) {                                            \
                    const fvec q = fvec_set(query[r * query_stride + d + k]);                      \
                    a[r] = fvec_fma(q, v[k], a[r]);                                                \
                    b[r] = fvec_fma(q, w[k], b[r]);                                                \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        if (d < head_size) {                                                                       \
            split_words_##type(v, w, panel, d / PER_WORD);                                         \
            UNROLL for (int r = 0; r < rows; r++) {                                                \
                const fvec q = fvec_set(query[r * query_stride + d]);                              \
                a[r] = fvec_fma(q, v[0], a[r]);                                                    \
                b[r] = fvec_fma(q, w[0], b[r]);                                                    \
            }                                                                                      \
        }                                                                                          \
        UNROLL for (int r = 0; r < rows; r++) {                                                    \
            fvec_store(scores + r * PKV_ATTENTION_TILE, a[r]);                                     \
            fvec_store(scores + r * PKV_ATTENTION_TILE + FVEC_LANES, b[r]);                        \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void widen_panel_##type(float *floats, const float *panel, int64_t head_size) {         \
        enum { PER_WORD = 4 / bytes };                                                             \
        for (int64_t d = 0; d < head_size; d += PER_WORD) {                                        \
            fvec v[2], w[2];                                                                       \
            split_words_##type(v, w, panel, d / PER_WORD);                                         \
            UNROLL for (int k = 0; k < PER_WORD; k++) {                                            \
                fvec_store(floats + (d + k) * PANEL, v[k]);                                        \
                fvec_store(floats + (d + k) * PANEL + FVEC_LANES, w[k]);                           \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void attention_scores_##type(float *scores, const float *query, int64_t query_stride,   \
                                        int64_t num_rows, const struct pkv_attention_tokens *keys, \
                                        int64_t head_size, float *scratch) {                       \
        const int64_t row_bytes = head_size * bytes;                                               \
        const bool widens = bytes < 4 && num_rows > WIDENING_ROWS;                                 \
        float *floats = scratch + PKV_ATTENTION_MAX_HEAD_SIZE * PANEL;                             \
        struct ahead near, far;                                                                    \
        for (int64_t t = 0; t < keys->num_tokens; t += PANEL) {                                    \
            /* With many rows there is time for all of the next rows, too. */                      \
            look_ahead(&near, keys, t + PANEL, PANEL, row_bytes);                                  \
            look_ahead(&far, keys, keys->num_tokens + t, num_rows > SCORE_ROWS ? PANEL : 0,        \
                       row_bytes);                                                                 \
            fill_half_panel(scratch, keys, t, row_bytes, &near);                                   \
            fill_half_panel(scratch + FVEC_LANES, keys, t + FVEC_LANES, row_bytes, &near);         \
            if (widens)                                                                            \
                widen_panel_##type(floats, scratch, head_size);                                    \
            for (int64_t r = 0; r < num_rows; r += SCORE_ROWS) {                                   \
                const int64_t left = num_rows - r;                                                 \
                const int rows = left < SCORE_ROWS ? (int)left : SCORE_ROWS;                       \
                struct ahead *ahead = r == 0 ? &near : r == SCORE_ROWS ? &far : NULL;              \
                float *to = scores + r * PKV_ATTENTION_TILE + t;                                   \
                const float *from = query + r * query_stride;                                      \
                if (widens)                                                                        \
                    WITH_ROWS(rows, score_rows_f32, to, from, query_stride, floats, head_size,     \
                              ahead)                                                               \
                else                                                                               \
                    WITH_ROWS(rows, score_rows_##type, to, from, query_stride, scratch, head_size, \
                              ahead)                                                               \
            }                                                                                      \
        }                                                                                          \
    }

DEFINE_SCORES(f32, 4)
DEFINE_SCORES(f16, 2)
DEFINE_SCORES(bf16, 2)

/* ---- weights . value ---- */

/* Elements [byte, byte + PANEL elements) of every row: in the cache, or as floats that were converted before. */
struct value_panel {
    const struct pkv_attention_tokens *tokens;
    int64_t byte;
    const float *floats; /* [num_tokens][PANEL] */
};

/* num_vecs vectors of row t. */
typedef void load_values_fn(fvec *v, int num_vecs, const struct value_panel *values, int64_t t);

/* Sums of some rows over tokens [first, end) of a panel. They continue those in acc, or start if it says so. */
struct value_sums {
    float *acc; /* of the first row, at the panel */
    int64_t acc_stride;
    bool starts;
    const float *weights; /* of the first row */
    int64_t first, end;
};

/* The sums of row r again, without the tokens whose weight is 0: they may hold anything. */
static inline void add_carefully(fvec *sums, int num_vecs, const struct value_sums *what, int64_t r,
                                 const struct value_panel *values, load_values_fn *load) {
    const float *acc = what->acc + r * what->acc_stride;
    const float *weights = what->weights + r * PKV_ATTENTION_TILE;
    for (int i = 0; i < num_vecs; i++)
        sums[i] = what->starts ? fvec_set(0.0f) : fvec_load(acc + i * FVEC_LANES);
    for (int64_t t = what->first; t < what->end; t++) {
        if (weights[t] == 0)
            continue;
        fvec v[4];
        load(v, num_vecs, values, t);
        for (int i = 0; i < num_vecs; i++)
            sums[i] = fvec_fma(fvec_set(weights[t]), v[i], sums[i]);
    }
}

/* 0 * x is not a number exactly if x is not finite. */
ALWAYS_INLINE bool all_finite(int count, const fvec *sums) {
    fvec doubt = fvec_set(0.0f);
    UNROLL for (int i = 0; i < count; i++) doubt = fvec_fma(sums[i], fvec_set(0.0f), doubt);
    return !fvec_any_nan(doubt);
}

/* All of *ahead (nullable) is fetched in num_steps tokens. */
ALWAYS_INLINE void add_rows(int rows, int num_vecs, const struct value_sums *what,
                            const struct value_panel *values, load_values_fn *load,
                            struct ahead *ahead, int64_t num_steps) {
    fvec sums[16], v[4];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int i = 0; i < num_vecs; i++) sums[r * num_vecs + i] =
            what->starts ? fvec_set(0.0f)
                         : fvec_load(what->acc + r * what->acc_stride + i * FVEC_LANES);
    }
    int64_t credit = 0, row = ahead ? ahead->next : 0;
    const float *weights = what->weights;
    const int64_t end = what->end;
    for (int64_t t = what->first; t < end; t++) {
        load(v, num_vecs, values, t);
        credit += AHEAD_ROWS;
        if (ahead && credit >= num_steps) {
            credit -= num_steps;
            FETCH_ROW(ahead, row);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const fvec w = fvec_set(weights[r * PKV_ATTENTION_TILE + t]);
            UNROLL for (int i = 0; i < num_vecs; i++) sums[r * num_vecs + i] =
                fvec_fma(w, v[i], sums[r * num_vecs + i]);
        }
    }
    if (ahead)
        ahead->next = row;
    if (!all_finite(rows * num_vecs, sums)) {
        for (int r = 0; r < rows; r++) {
            fvec again[4];
            add_carefully(again, num_vecs, what, r, values, load);
            for (int i = 0; i < num_vecs; i++)
                fvec_store(what->acc + r * what->acc_stride + i * FVEC_LANES, again[i]);
        }
        return;
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int i = 0; i < num_vecs; i++)
            fvec_store(what->acc + r * what->acc_stride + i * FVEC_LANES, sums[r * num_vecs + i]);
    }
}

static inline void load_floats(fvec *v, int num_vecs, const struct value_panel *values, int64_t t) {
    UNROLL for (int i = 0; i < num_vecs; i++) v[i] =
        fvec_load(values->floats + t * PANEL + i * FVEC_LANES);
}

/* With few rows there are registers for panels of twice the width. */
enum { WIDE_PANEL = 2 * PANEL };

#define DEFINE_VALUES(type, bytes)                                                                  \
    static inline void load_rows_##type(fvec *v, int num_vecs, const struct value_panel *values,    \
                                        int64_t t) {                                                \
        const char *from = values->tokens->base + values->tokens->offsets[t] + values->byte;        \
        UNROLL for (int i = 0; i < num_vecs; i++) v[i] =                                            \
            fvec_load_##type(from + i * FVEC_LANES * bytes);                                        \
    }                                                                                               \
                                                                                                    \
    /* A panel as floats; elements beyond the head are 0. */                                        \
    static void convert_panel_##type(float *floats, const struct value_panel *values,               \
                                     int64_t num_elements) {                                        \
        for (int64_t t = 0; t < values->tokens->num_tokens; t++) {                                  \
            const char *from = values->tokens->base + values->tokens->offsets[t] + values->byte;    \
            for (int64_t i = 0; i < PANEL; i += FVEC_LANES) {                                       \
                const int64_t left = num_elements - i;                                              \
                const fvec v = left >= FVEC_LANES ? fvec_load_##type(from + i * bytes)              \
                               : left > 0         ? fvec_load_##type##_part(from + i * bytes, left) \
                                                  : fvec_set(0.0f);                                         \
                fvec_store(floats + t * PANEL + i, v);                                              \
            }                                                                                       \
        }                                                                                           \
    }                                                                                               \
                                                                                                    \
    /* Some tokens at a time, all elements of a head, so that memory is read in order. */           \
    static void add_few_rows_##type(struct value_sums what, int rows,                               \
                                    const struct pkv_attention_tokens *tokens, int64_t head_size,   \
                                    float *floats) {                                                \
        const int64_t num_tokens = tokens->num_tokens, whole = head_size / PANEL * PANEL;           \
        const int64_t num_steps = pkv_attention_padded(head_size) / PANEL * AHEAD_ROWS;             \
        float *const acc = what.acc;                                                                \
        struct value_panel values = {tokens, whole * bytes, floats};                                \
        if (whole < head_size)                                                                      \
            convert_panel_##type(floats, &values, head_size - whole);                               \
        for (what.first = 0; what.first < num_tokens; what.first = what.end) {                      \
            struct ahead ahead;                                                                     \
            what.end =                                                                              \
                what.first + AHEAD_ROWS < num_tokens ? what.first + AHEAD_ROWS : num_tokens;        \
            look_ahead(&ahead, tokens, what.end, AHEAD_ROWS, head_size *bytes);                     \
            int64_t d = 0;                                                                          \
            for (; rows <= WIDE_ROWS && d + WIDE_PANEL <= whole; d += WIDE_PANEL) {                 \
                what.acc = acc + d;                                                                 \
                values.byte = d * bytes;                                                            \
                WITH_FEW_ROWS(rows, add_rows, 4, &what, &values, load_rows_##type, &ahead,          \
                              num_steps / 2)                                                        \
            }                                                                                       \
            for (; d < pkv_attention_padded(head_size); d += PANEL) {                               \
                what.acc = acc + d;                                                                 \
                values.byte = d * bytes;                                                            \
                if (d < whole)                                                                      \
                    WITH_ROWS(rows, add_rows, 2, &what, &values, load_rows_##type, &ahead,          \
                              num_steps)                                                            \
                else                                                                                \
                    WITH_ROWS(rows, add_rows, 2, &what, &values, load_floats, NULL, 0)              \
            }                                                                                       \
            what.starts = false;                                                                    \
        }                                                                                           \
    }                                                                                               \
                                                                                                    \
    static void attention_values_##type(                                                            \
        float *acc, int64_t acc_stride, bool starts, const float *weights, int64_t num_rows,        \
        const struct pkv_attention_tokens *tokens, int64_t head_size, float *scratch) {             \
        struct value_sums what = {acc, acc_stride, starts, weights, 0, tokens->num_tokens};         \
        if (num_rows <= 2 * VALUE_ROWS) {                                                           \
            for (int64_t r = 0; r < num_rows; r += VALUE_ROWS) {                                    \
                const int64_t left = num_rows - r;                                                  \
                what.acc = acc + r * acc_stride;                                                    \
                what.weights = weights + r * PKV_ATTENTION_TILE;                                    \
                add_few_rows_##type(what, left < VALUE_ROWS ? (int)left : VALUE_ROWS, tokens,       \
                                    head_size, scratch);                                            \
            }                                                                                       \
            return;                                                                                 \
        }                                                                                           \
        struct ahead ahead;                                                                         \
        look_ahead(&ahead, tokens, tokens->num_tokens, AHEAD_ROWS, head_size *bytes);               \
        for (int64_t d = 0; d < pkv_attention_padded(head_size); d += PANEL) {                      \
            const struct value_panel values = {tokens, d * bytes, scratch};                         \
            convert_panel_##type(scratch, &values, head_size - d);                                  \
            for (int64_t r = 0; r < num_rows; r += VALUE_ROWS) {                                    \
                const int64_t left = num_rows - r;                                                  \
                const int rows = left < VALUE_ROWS ? (int)left : VALUE_ROWS;                        \
                what.acc = acc + r * acc_stride + d;                                                \
                what.weights = weights + r * PKV_ATTENTION_TILE;                                    \
                WITH_ROWS(rows, add_rows, 2, &what, &values, load_floats, r == 0 ? &ahead : NULL,   \
                          pkv_attention_padded(head_size) / PANEL * tokens->num_tokens)             \
            }                                                                                       \
        }                                                                                           \
    }

DEFINE_VALUES(f32, 4)
DEFINE_VALUES(f16, 2)
DEFINE_VALUES(bf16, 2)

static void attention_init(struct pkv_kernels *kernels) {
    kernels->attention_scores[PKV_ATTENTION_F32] = attention_scores_f32;
    kernels->attention_scores[PKV_ATTENTION_F16] = attention_scores_f16;
    kernels->attention_scores[PKV_ATTENTION_BF16] = attention_scores_bf16;
    kernels->attention_values[PKV_ATTENTION_F32] = attention_values_f32;
    kernels->attention_values[PKV_ATTENTION_F16] = attention_values_f16;
    kernels->attention_values[PKV_ATTENTION_BF16] = attention_values_bf16;
    kernels->attention_load[PKV_ATTENTION_F32] = attention_load_f32;
    kernels->attention_load[PKV_ATTENTION_F16] = attention_load_f16;
    kernels->attention_load[PKV_ATTENTION_BF16] = attention_load_bf16;
    kernels->attention_store[PKV_ATTENTION_F32] = attention_store_f32;
    kernels->attention_store[PKV_ATTENTION_F16] = attention_store_f16;
    kernels->attention_store[PKV_ATTENTION_BF16] = attention_store_bf16;
    kernels->attention_softmax = attention_softmax;
    kernels->attention_factors = attention_factors;
    kernels->attention_merge = attention_merge;
}

#endif
