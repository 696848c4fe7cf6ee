/* SPDX-License-Identifier: MIT
 *
 * The two products of attention over the vector interface of template/attention.h. Scores are computed with tokens
 * in the lanes: the keys of two vectors of tokens are transposed to a panel first. Outputs are computed with the
 * elements of a head in the lanes. So each sum is one chain of fused steps in the order of the definition, whatever the
 * number of rows: a decode step and a prefill give the same bytes. Beyond that interface the including file defines:
 *
 *   tvec                                   a vector of FVEC_LANES 32-bit words
 *   tvec_load(p), tvec_load_part(p, bytes) unaligned; bytes alone, the others 0
 *   tvec_transpose(t)                      FVEC_LANES by FVEC_LANES words, in place
 *   tvec_f32(t); tvec_low_f16, tvec_high_f16, tvec_low_bf16, tvec_high_bf16
 *                                          the words, or their lower and upper halves, as float
 *   SCORE_ROWS, VALUE_ROWS                 rows side by side, at most 8: two sums a row stay in registers
 *   prefetch_l2(p)                         fetch p's line into the second-level cache
 */
#ifndef PKV_KERNELS_TEMPLATE_ATTENTION_PRODUCTS_H
#define PKV_KERNELS_TEMPLATE_ATTENTION_PRODUCTS_H

#include "kernels/template/attention.h"

enum { PANEL = 2 * FVEC_LANES, CHUNK_BYTES = 4 * FVEC_LANES, ATTENTION_LINE_BYTES = 64 };

/* Arrays of vectors are registers only if every loop over them is unrolled. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* The line at `byte` of the row that is read instead of row t next time. */
ALWAYS_INLINE void fetch_next(const struct pkv_attention_tokens *tokens, int64_t t, int64_t byte) {
    if (t < tokens->num_next && byte % ATTENTION_LINE_BYTES == 0)
        prefetch_l2(tokens->next_base + tokens->next_offsets[t] + byte);
}

/* ---- query . key ---- */

/* Word j of FVEC_LANES tokens to the rows of a panel that belong to its elements. */
ALWAYS_INLINE void put_f32(float *panel, tvec word, int64_t num_elements) {
    (void)num_elements;
    fvec_store(panel, tvec_f32(word));
}

ALWAYS_INLINE void put_f16(float *panel, tvec word, int64_t num_elements) {
    fvec_store(panel, tvec_low_f16(word));
    if (num_elements > 1)
        fvec_store(panel + PANEL, tvec_high_f16(word));
}

ALWAYS_INLINE void put_bf16(float *panel, tvec word, int64_t num_elements) {
    fvec_store(panel, tvec_low_bf16(word));
    if (num_elements > 1)
        fvec_store(panel + PANEL, tvec_high_bf16(word));
}

ALWAYS_INLINE void score_rows(int rows, float *scores, const float *query, int64_t query_stride,
                              const float *panel, int64_t head_size) {
    fvec a[8], b[8];
    UNROLL for (int r = 0; r < rows; r++) a[r] = b[r] = fvec_set(0.0f);
    for (int64_t d = 0; d < head_size; d++) {
        const fvec k = fvec_load(panel + d * PANEL), l = fvec_load(panel + d * PANEL + FVEC_LANES);
        UNROLL for (int r = 0; r < rows; r++) {
            const fvec q = fvec_set(query[r * query_stride + d]);
            a[r] = fvec_fma(q, k, a[r]);
            b[r] = fvec_fma(q, l, b[r]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        fvec_store(scores + r * PKV_ATTENTION_TILE, a[r]);
        fvec_store(scores + r * PKV_ATTENTION_TILE + FVEC_LANES, b[r]);
    }
}

/* Calls fn(rows, ...) with a constant number of rows. */
#define WITH_ROWS(rows, fn, ...)                                                                   \
    switch (rows) {                                                                                \
    case 1:                                                                                        \
        fn(1, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 2:                                                                                        \
        fn(2, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 3:                                                                                        \
        fn(3, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 4:                                                                                        \
        fn(4, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 5:                                                                                        \
        fn(5, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 6:                                                                                        \
        fn(6, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 7:                                                                                        \
        fn(7, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    default:                                                                                       \
        fn(8, __VA_ARGS__);                                                                        \
    }

static void score_panel(float *scores, const float *query, int64_t query_stride, int64_t num_rows,
                        const float *panel, int64_t head_size) {
    for (int64_t r = 0; r < num_rows; r += SCORE_ROWS) {
        const int64_t left = num_rows - r;
        const int rows = left < SCORE_ROWS ? (int)left : SCORE_ROWS;
        WITH_ROWS(rows, score_rows, scores + r * PKV_ATTENTION_TILE, query + r * query_stride,
                  query_stride, panel, head_size)
    }
}

#define DEFINE_SCORES(type, bytes)                                                                   \
    /* FVEC_LANES tokens from t on to their half of a panel; the last token stands in for missing  \
     * ones. */ \
    ALWAYS_INLINE void fill_half_panel_##type(                                                       \
        float *panel, const struct pkv_attention_tokens *keys, int64_t t, int64_t head_size) {       \
        const int64_t row_bytes = head_size * bytes, per_word = 4 / bytes;                           \
        const char *from[FVEC_LANES];                                                                \
        for (int64_t i = 0; i < FVEC_LANES; i++) {                                                   \
            const int64_t token = t + i < keys->num_tokens ? t + i : keys->num_tokens - 1;           \
            from[i] = keys->base + keys->offsets[token];                                             \
        }                                                                                            \
        for (int64_t at = 0; at < row_bytes; at += CHUNK_BYTES) {                                    \
            tvec words[FVEC_LANES];                                                                  \
            const int64_t left = row_bytes - at;                                                     \
            UNROLL for (int64_t i = 0; i < FVEC_LANES; i++) {                                        \
                words[i] = left >= CHUNK_BYTES ? tvec_load(from[i] + at)                             \
                                               : tvec_load_part(from[i] + at, left);                 \
                fetch_next(keys, t + i, at);                                                         \
            }                                                                                        \
            tvec_transpose(words);                                                                   \
            float *to = panel + at / bytes * PANEL;                                                  \
            UNROLL for (int64_t j = 0; j < FVEC_LANES; j++) {                                        \
                if (j * 4 < left)                                                                    \
                    put_##type(to + j * per_word * PANEL, words[j], left / bytes - j * per_word);    \
            }                                                                                        \
        }                                                                                            \
    }                                                                                                \
                                                                                                     \
    static void attention_scores_##type(float *scores, const float *query, int64_t query_stride,     \
                                        int64_t num_rows, const struct pkv_attention_tokens *keys,   \
                                        int64_t head_size, float *scratch) {                         \
        for (int64_t t = 0; t < keys->num_tokens; t += PANEL) {                                      \
            fill_half_panel_##type(scratch, keys, t, head_size);                                     \
            fill_half_panel_##type(scratch + FVEC_LANES, keys, t + FVEC_LANES, head_size);           \
            score_panel(scores + t, query, query_stride, num_rows, scratch, head_size);              \
        }                                                                                            \
    }

DEFINE_SCORES(f32, 4)
DEFINE_SCORES(f16, 2)
DEFINE_SCORES(bf16, 2)

/* ---- weights . value ---- */

/* Where a panel of values comes from: the cache, or floats that were converted before. */
struct value_panel {
    const struct pkv_attention_tokens *tokens;
    int64_t byte;        /* of the panel in each row */
    const float *floats; /* [num_tokens][PANEL] */
};

struct value_output {
    float *acc; /* of the first row, at the panel */
    int64_t acc_stride;
    const float *keep, *add; /* of the first row; NULL: acc is written afresh */
};

/* The sums of one row again, without the tokens whose weight is 0: they may hold anything. */
static void value_row_careful(fvec sums[2], const float *weights, const struct value_panel *values,
                              void (*load)(fvec v[2], const struct value_panel *values,
                                           int64_t t)) {
    sums[0] = sums[1] = fvec_set(0.0f);
    for (int64_t t = 0; t < values->tokens->num_tokens; t++) {
        if (weights[t] == 0)
            continue;
        fvec v[2];
        load(v, values, t);
        sums[0] = fvec_fma(fvec_set(weights[t]), v[0], sums[0]);
        sums[1] = fvec_fma(fvec_set(weights[t]), v[1], sums[1]);
    }
}

ALWAYS_INLINE void value_rows(int rows, const struct value_output *out, const float *weights,
                              const struct value_panel *values,
                              void (*load)(fvec v[2], const struct value_panel *values, int64_t t),
                              bool fetches) {
    fvec a[8], b[8], v[2];
    UNROLL for (int r = 0; r < rows; r++) a[r] = b[r] = fvec_set(0.0f);
    const int64_t num_tokens = values->tokens->num_tokens;
    for (int64_t t = 0; t < num_tokens; t++) {
        load(v, values, t);
        if (fetches)
            fetch_next(values->tokens, t, values->byte);
        UNROLL for (int r = 0; r < rows; r++) {
            const fvec w = fvec_set(weights[r * PKV_ATTENTION_TILE + t]);
            a[r] = fvec_fma(w, v[0], a[r]);
            b[r] = fvec_fma(w, v[1], b[r]);
        }
    }
    /* 0 * x is not a number exactly if x is not finite. */
    fvec doubt = fvec_set(0.0f);
    UNROLL for (int r = 0; r < rows; r++) {
        doubt = fvec_fma(a[r], fvec_set(0.0f), doubt);
        doubt = fvec_fma(b[r], fvec_set(0.0f), doubt);
    }
    const bool is_doubtful = fvec_any_nan(doubt);
    UNROLL for (int r = 0; r < rows; r++) {
        fvec sums[2] = {a[r], b[r]};
        if (is_doubtful)
            value_row_careful(sums, weights + r * PKV_ATTENTION_TILE, values, load);
        float *acc = out->acc + r * out->acc_stride;
        if (out->keep) {
            const fvec keep = fvec_set(out->keep[r]), add = fvec_set(out->add[r]);
            sums[0] = fvec_fma(sums[0], add, fvec_mul(fvec_load(acc), keep));
            sums[1] = fvec_fma(sums[1], add, fvec_mul(fvec_load(acc + FVEC_LANES), keep));
        }
        fvec_store(acc, sums[0]);
        fvec_store(acc + FVEC_LANES, sums[1]);
    }
}

static inline void load_floats(fvec v[2], const struct value_panel *values, int64_t t) {
    v[0] = fvec_load(values->floats + t * PANEL);
    v[1] = fvec_load(values->floats + t * PANEL + FVEC_LANES);
}

#define DEFINE_VALUES(type, bytes)                                                                  \
    static inline void load_rows_##type(fvec v[2], const struct value_panel *values, int64_t t) {   \
        const char *from = values->tokens->base + values->tokens->offsets[t] + values->byte;        \
        v[0] = fvec_load_##type(from);                                                              \
        v[1] = fvec_load_##type(from + FVEC_LANES * bytes);                                         \
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
            for (int64_t line = 0; line < PANEL * bytes; line += ATTENTION_LINE_BYTES)              \
                fetch_next(values->tokens, t, values->byte + line);                                 \
        }                                                                                           \
    }                                                                                               \
                                                                                                    \
    static void attention_values_##type(                                                            \
        float *acc, int64_t acc_stride, const float *weights, int64_t num_rows,                     \
        const struct pkv_attention_tokens *tokens, int64_t head_size, const float *keep,            \
        const float *add, float *scratch) {                                                         \
        for (int64_t d = 0; d < padded_head(head_size); d += PANEL) {                               \
            struct value_panel values = {tokens, d * bytes, scratch};                               \
            const bool converts = num_rows > VALUE_ROWS || head_size - d < PANEL;                   \
            if (converts)                                                                           \
                convert_panel_##type(scratch, &values, head_size - d);                              \
            for (int64_t r = 0; r < num_rows; r += VALUE_ROWS) {                                    \
                const int64_t left = num_rows - r;                                                  \
                const int rows = left < VALUE_ROWS ? (int)left : VALUE_ROWS;                        \
                const struct value_output out = {acc + r * acc_stride + d, acc_stride,              \
                                                 keep ? keep + r : NULL, add ? add + r : NULL};     \
                const float *from = weights + r * PKV_ATTENTION_TILE;                               \
                if (converts)                                                                       \
                    WITH_ROWS(rows, value_rows, &out, from, &values, load_floats, false)            \
                else                                                                                \
                    WITH_ROWS(rows, value_rows, &out, from, &values, load_rows_##type, true)        \
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
