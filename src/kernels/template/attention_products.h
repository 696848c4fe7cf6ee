/* SPDX-License-Identifier: MIT
 *
 * The two products of attention over the vector interface of template/attention.h. Scores are
 * computed with tokens in the lanes: the keys of two vectors of tokens are transposed to a panel
 * first. Outputs are computed with the elements of a head in the lanes. So each sum is one chain of
 * fused steps in the order of the definition, whatever the number of rows: a decode step and a
 * prefill give the same bytes. Beyond those of attention_panel.h the including file defines:
 *
 *   tvec_low_f16, tvec_high_f16, tvec_low_bf16, tvec_high_bf16
 *                                          the lower and upper halves of words as float
 *   fvec_zip(v)                            elements of v[0] and v[1] in turn, the first half of
 *   them in v[0]
 *   SCORE_ROWS, VALUE_ROWS                 rows side by side, at most 8: two sums a row stay in
 *   registers
 *   WIDE_ROWS                              likewise, at most 4: four sums a row
 *   WIDENING_ROWS                          for more rows, halves of words become floats once for
 *                                          all of them, not once for each group of rows
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

/* The word after this one in its quarter of the chunks. */
ALWAYS_INLINE int64_t word_after(int64_t word, int64_t quarter_words) {
    return ((word + 1) & (quarter_words - 1)) != 0 ? word + 1 : word + 1 + 3 * quarter_words;
}

#define DEFINE_SCORES(type, bytes)                                                                 \
    ALWAYS_INLINE void split_words_##type(fvec v[2], fvec w[2], const float *panel,                \
                                          int64_t word) {                                          \
        split_##type(v, tvec_load((const char *)(panel + word * PANEL)));                          \
        split_##type(w, tvec_load((const char *)(panel + word * PANEL + FVEC_LANES)));             \
    }                                                                                              \
                                                                                                   \
    /* quarter_words: words of the panel for a quarter of a chunk. */                              \
    ALWAYS_INLINE void score_rows_##type(                                                          \
        int rows, float *scores, const float *query, int64_t query_stride, const float *panel,     \
        int64_t head_size, int64_t quarter_words, struct ahead *ahead) {                           \
        enum { PER_WORD = 4 / bytes };                                                             \
        const int64_t num_words = head_size / PER_WORD;                                            \
        const char *line = ahead ? ahead->line : NULL;                                             \
        for (int64_t quarter = 0; quarter < 4; quarter++) {                                        \
            fvec a[8], b[8], v[2], w[2];                                                           \
            UNROLL for (int r = 0; r < rows; r++) a[r] = b[r] = fvec_set(0.0f);                    \
            int64_t word = quarter * quarter_words;                                                \
            for (; word < num_words; word = word_after(word, quarter_words)) {                     \
                if (ahead)                                                                         \
                    FETCH(ahead, line, PANEL * 4 / 2);                                             \
                split_words_##type(v, w, panel, word);                                             \
                const float *q = query + word * PER_WORD;                                          \
                UNROLL for (int k = 0; k < PER_WORD; k++) {                                        \
                    UNROLL for (int r = 0; r < rows; r++) {                                        \
                        const fvec x = fvec_set(q[r * query_stride + k]);                          \
                        a[r] = fvec_fma(x, v[k], a[r]);                                            \
                        b[r] = fvec_fma(x, w[k], b[r]);                                            \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
            if (word == num_words && num_words * PER_WORD < head_size) {                           \
                split_words_##type(v, w, panel, word);                                             \
                UNROLL for (int r = 0; r < rows; r++) {                                            \
                    const fvec x = fvec_set(query[r * query_stride + head_size - 1]);              \
                    a[r] = fvec_fma(x, v[0], a[r]);                                                \
                    b[r] = fvec_fma(x, w[0], b[r]);                                                \
                }                                                                                  \
            }                                                                                      \
            UNROLL for (int r = 0; r < rows; r++) {                                                \
                float *to = scores + r * PKV_ATTENTION_TILE;                                       \
                if (quarter > 0) {                                                                 \
                    a[r] = fvec_add(fvec_load(to), a[r]);                                          \
                    b[r] = fvec_add(fvec_load(to + FVEC_LANES), b[r]);                             \
                }                                                                                  \
                fvec_store(to, a[r]);                                                              \
                fvec_store(to + FVEC_LANES, b[r]);                                                 \
            }                                                                                      \
        }                                                                                          \
        if (ahead)                                                                                 \
            ahead->line = line;                                                                    \
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
    static void attention_scores_##type(                                                           \
        float *scores, const float *query, int64_t query_stride, int64_t num_rows,                 \
        int64_t head_rows, const struct pkv_attention_tokens *keys,                                \
        const struct pkv_attention_tokens *then, int64_t head_size, float *scratch) {              \
        const bool widens = bytes < 4 && num_rows > WIDENING_ROWS;                                 \
        float *floats = scratch + PKV_ATTENTION_MAX_HEAD_SIZE * PANEL;                             \
        struct step step = first_step(keys, STEP_APART, PANEL_STEP);                               \
        struct pages pages = look_at_pages(keys, then, num_rows);                                  \
        struct ahead ahead = look_ahead(keys, then, lead_of(&step, keys, num_rows));               \
        do {                                                                                       \
            const int64_t first_row = step.turn.head * head_rows;                                  \
            for (int64_t t = step.first; t < step.end; t += PANEL) {                               \
                fill_panel(scratch, keys, step.turn.head, t, head_size *bytes, &ahead);            \
                if (widens)                                                                        \
                    widen_panel_##type(floats, scratch, head_size);                                \
                for (int64_t r = 0; r < num_rows; r += SCORE_ROWS) {                               \
                    const int64_t left = num_rows - r;                                             \
                    const int rows = left < SCORE_ROWS ? (int)left : SCORE_ROWS;                   \
                    struct ahead *to_fetch = r == 0 ? &ahead : NULL;                               \
                    float *to = scores + (first_row + r) * PKV_ATTENTION_TILE + t;                 \
                    const float *from = query + (first_row + r) * query_stride;                    \
                    if (widens)                                                                    \
                        WITH_ROWS(rows, score_rows_f32, to, from, query_stride, floats, head_size, \
                                  PKV_ATTENTION_QUARTER / bytes, to_fetch)                         \
                    else                                                                           \
                        WITH_ROWS(rows, score_rows_##type, to, from, query_stride, scratch,        \
                                  head_size, PKV_ATTENTION_QUARTER / 4, to_fetch)                  \
                }                                                                                  \
            }                                                                                      \
            touch_pages(&pages, (step.end - step.first) * head_size * bytes);                      \
        } while (next_step(&step, keys));                                                          \
        touch_rest(&pages);                                                                        \
    }

DEFINE_SCORES(f32, 4)
DEFINE_SCORES(f16, 2)
DEFINE_SCORES(bf16, 2)

/* ---- weights . value ---- */

/* Elements of every row of a head from some element on: in the cache, or as floats that were
 * converted before. */
struct value_panel {
    const char *base; /* the elements of token t are at base + offsets[t] */
    const int64_t *offsets;
    const float *floats; /* [num_tokens][PANEL] */
};

/* num_vecs vectors of row t, an even number. In bfloat16 each two of them hold the even elements
 * and the odd ones of their part of the row, which takes half as much as to widen them in order. */
typedef void load_values_fn(fvec *v, int num_vecs, const struct value_panel *values, int64_t t);

/* Sums of them to the order of the elements. */
typedef void order_sums_fn(fvec *sums, int num_vecs);

/* Sums of some rows of a head over tokens [first, end). They continue those in acc, or start if it
 * says so; acc is in the order of the elements once they end. */
struct value_sums {
    float *acc; /* of the first row */
    int64_t acc_stride;
    const float *weights; /* of the first row */
    int64_t first, end;
    bool starts, ends;
    bool take_turns; /* other heads' elements lie between those of neighbouring tokens */
};

ALWAYS_INLINE void add_token(int rows, int num_vecs, fvec *sums, const float *weights,
                             const struct value_panel *values, load_values_fn *load, int64_t t) {
    fvec v[4];
    load(v, num_vecs, values, t);
    UNROLL for (int r = 0; r < rows; r++) {
        const fvec w = fvec_set(weights[r * PKV_ATTENTION_TILE + t]);
        UNROLL for (int i = 0; i < num_vecs; i++) sums[r * num_vecs + i] =
            fvec_fma(w, v[i], sums[r * num_vecs + i]);
    }
}

/* Where heads take turns, so many tokens are loaded by as many instructions: where one loads them
 * all, the processor takes them for a series, translates and fetches what lies behind the block,
 * and nobody wants it. In blocks of 16 tokens that took a fifth longer. */
enum { TURN_LOADS = 8 };

/* All vectors from element d of a head on, those of the panel. num_loads tokens, 1 or, if there is
 * anything ahead, TURN_LOADS, are loaded by instructions of their own. step_bytes are fetched a
 * token. */
ALWAYS_INLINE void add_rows(int rows, int num_vecs, int num_loads, const struct value_sums *what,
                            int64_t d, struct value_panel values, load_values_fn *load,
                            order_sums_fn *order, struct ahead *ahead, int step_bytes) {
    const int64_t acc_stride = what->acc_stride, end = what->end;
    const float *const weights = what->weights;
    float *const acc = what->acc + d;
    fvec sums[16];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int i = 0; i < num_vecs; i++) sums[r * num_vecs + i] =
            what->starts ? fvec_set(0.0f) : fvec_load(acc + r * acc_stride + i * FVEC_LANES);
    }
    const char *line = ahead ? ahead->line : NULL;
    int64_t t = what->first;
    for (; num_loads > 1 && t + num_loads <= end; t += num_loads) {
        const char *lines =
            take_lines(ahead, &line, num_loads * step_bytes, values.base + values.offsets[t]);
        UNROLL for (int i = 0; i < num_loads; i++) {
            UNROLL for (int at = 0; at < step_bytes; at += ATTENTION_LINE_BYTES)
                PREFETCH(lines + i * step_bytes + at);
            add_token(rows, num_vecs, sums, weights, &values, load, t + i);
            KEEP_ORDER();
        }
    }
    for (; t < end; t++) {
        if (ahead)
            FETCH(ahead, line, step_bytes);
        add_token(rows, num_vecs, sums, weights, &values, load, t);
    }
    if (ahead)
        ahead->line = line;
    if (what->ends)
        order(sums, rows * num_vecs);
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int i = 0; i < num_vecs; i++)
            fvec_store(acc + r * acc_stride + i * FVEC_LANES, sums[r * num_vecs + i]);
    }
}

ALWAYS_INLINE void leave_order(fvec *sums, int num_vecs) {
    (void)sums;
    (void)num_vecs;
}

ALWAYS_INLINE void load_floats(fvec *v, int num_vecs, const struct value_panel *values, int64_t t) {
    UNROLL for (int i = 0; i < num_vecs; i++) v[i] =
        fvec_load(values->floats + t * PANEL + i * FVEC_LANES);
}

#define DEFINE_LOAD_ROWS(type, bytes)                                                              \
    ALWAYS_INLINE void load_rows_##type(fvec *v, int num_vecs, const struct value_panel *values,   \
                                        int64_t t) {                                               \
        const char *from = values->base + values->offsets[t];                                      \
        UNROLL for (int i = 0; i < num_vecs; i++) v[i] =                                           \
            fvec_load_##type(from + i * FVEC_LANES * bytes);                                       \
    }

DEFINE_LOAD_ROWS(f32, 4)
DEFINE_LOAD_ROWS(f16, 2)

ALWAYS_INLINE void load_rows_bf16(fvec *v, int num_vecs, const struct value_panel *values,
                                  int64_t t) {
    const char *from = values->base + values->offsets[t];
    UNROLL for (int i = 0; i < num_vecs; i += 2)
        split_bf16(v + i, tvec_load(from + i * FVEC_LANES * 2));
}

ALWAYS_INLINE void order_pairs(fvec *sums, int num_vecs) {
    UNROLL for (int i = 0; i < num_vecs; i += 2) fvec_zip(sums + i);
}

#define DEFINE_VALUES(type, bytes, order_rows)                                                      \
    /* Tokens [first, end) of a panel as floats; elements beyond the head are 0. */                 \
    static void convert_panel_##type(float *floats, const struct value_panel *values,               \
                                     int64_t first, int64_t end, int64_t num_elements) {            \
        for (int64_t t = first; t < end; t++) {                                                     \
            const char *from = values->base + values->offsets[t];                                   \
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
    /* Sums that are finite are right. Others are added again, but for tokens whose weight is 0, \
     * which may hold anything. */  \
    static void mend_rows_##type(float *acc, int64_t acc_stride, const float *weights,              \
                                 int64_t num_rows, const char *base,                                \
                                 const struct pkv_attention_tokens *tokens, int64_t head_size) {    \
        if (all_finite(acc, acc_stride, num_rows, head_size))                                       \
            return;                                                                                 \
        for (int64_t r = 0; r < num_rows; r++, acc += acc_stride, weights += PKV_ATTENTION_TILE) {  \
            for (int64_t d = 0; d < head_size; d += FVEC_LANES) {                                   \
                const int64_t left = head_size - d;                                                 \
                fvec sum = fvec_set(0.0f);                                                          \
                for (int64_t t = 0; t < tokens->num_tokens; t++) {                                  \
                    const char *from = base + tokens->offsets[t] + d * bytes;                       \
                    if (weights[t] == 0)                                                            \
                        continue;                                                                   \
                    const fvec v = left < FVEC_LANES ? fvec_load_##type##_part(from, left)          \
                                                     : fvec_load_##type(from);                      \
                    sum = fvec_fma(fvec_set(weights[t]), v, sum);                                   \
                }                                                                                   \
                fvec_store(acc + d, sum);                                                           \
            }                                                                                       \
        }                                                                                           \
    }                                                                                               \
                                                                                                    \
    /* Whole panels of num_vecs vectors from element d on. Returns the element behind them. */      \
    ALWAYS_INLINE int64_t add_panels_##type(int rows, int num_vecs, const struct value_sums *what,  \
                                            int64_t d, struct value_panel values,                   \
                                            int64_t head_size, struct ahead *ahead) {               \
        const int width = num_vecs * FVEC_LANES, width_bytes = width * bytes;                       \
        const bool take_turns = what->take_turns && ahead;                                          \
        values.base += d * bytes;                                                                   \
        for (; d + width <= head_size; d += width, values.base += width_bytes) {                    \
            if (take_turns)                                                                         \
                add_rows(rows, num_vecs, TURN_LOADS, what, d, values, load_rows_##type,             \
                         order_rows, ahead, width_bytes);                                           \
            else                                                                                    \
                add_rows(rows, num_vecs, 1, what, d, values, load_rows_##type, order_rows, ahead,   \
                         width_bytes);                                                              \
        }                                                                                           \
        return d;                                                                                   \
    }                                                                                               \
                                                                                                    \
    /* All elements of a head; rows is constant, so that what depends on it is chosen once. */      \
    ALWAYS_INLINE void add_head_##type(int rows, const struct value_sums *what,                     \
                                       struct value_panel values, int64_t head_size,                \
                                       struct ahead *ahead) {                                       \
        int64_t d = 0;                                                                              \
        if (rows <= WIDE_ROWS)                                                                      \
            d = add_panels_##type(rows, 4, what, d, values, head_size, ahead);                      \
        d = add_panels_##type(rows, 2, what, d, values, head_size, ahead);                          \
        for (; d < pkv_attention_padded(head_size); d += PANEL)                                     \
            add_rows(rows, 2, 1, what, d, values, load_floats, leave_order, NULL, 0);               \
    }                                                                                               \
                                                                                                    \
    /* Up to VALUE_ROWS rows. */                                                                    \
    static void add_few_rows_##type(int rows, const struct value_sums *what,                        \
                                    const struct value_panel *values, int64_t head_size,            \
                                    struct ahead *ahead) {                                          \
        WITH_ROWS(rows, add_head_##type, what, *values, head_size, ahead)                           \
    }                                                                                               \
                                                                                                    \
    /* Some tokens at a time, all elements of a head, so that memory is read in order. */           \
    static void add_to_few_rows_##type(                                                             \
        const struct value_sums *all, struct step step, int64_t num_rows, int64_t head_rows,        \
        const struct pkv_attention_tokens *tokens, int64_t head_size, float *floats,                \
        struct ahead *ahead, struct pages *pages) {                                                 \
        const int64_t whole = head_size / PANEL * PANEL;                                            \
        struct value_sums what = *all;                                                              \
        do {                                                                                        \
            const char *base = tokens->base + step.turn.head * tokens->head_stride;                 \
            const struct value_panel values = {base, tokens->offsets, floats};                      \
            const struct value_panel rest = {base + whole * bytes, tokens->offsets, NULL};          \
            if (whole < head_size)                                                                  \
                convert_panel_##type(floats, &rest, step.first, step.end, head_size - whole);       \
            what.first = step.first;                                                                \
            what.end = step.end;                                                                    \
            what.starts = step.first == 0;                                                          \
            what.ends = step.end == tokens->num_tokens;                                             \
            for (int64_t r = 0; r < num_rows; r += VALUE_ROWS) {                                    \
                const int64_t left = num_rows - r, row = step.turn.head * head_rows + r;            \
                what.acc = all->acc + row * all->acc_stride;                                        \
                what.weights = all->weights + row * PKV_ATTENTION_TILE;                             \
                add_few_rows_##type(left < VALUE_ROWS ? (int)left : VALUE_ROWS, &what, &values,     \
                                    head_size, r == 0 ? ahead : NULL);                              \
            }                                                                                       \
            touch_pages(pages, (step.end - step.first) * head_size * bytes);                        \
        } while (next_step(&step, tokens));                                                         \
    }                                                                                               \
                                                                                                    \
    /* A panel at a time, all tokens of a head: it becomes floats once for all rows. */             \
    static void add_to_many_rows_##type(                                                            \
        const struct value_sums *all, int64_t num_rows, int64_t head_rows,                          \
        const struct pkv_attention_tokens *tokens, int64_t head_size, float *floats,                \
        struct ahead *ahead, struct pages *pages) {                                                 \
        struct value_sums what = *all;                                                              \
        for (int64_t head = 0; head < tokens->num_heads; head++) {                                  \
            const char *base = tokens->base + head * tokens->head_stride;                           \
            for (int64_t d = 0; d < pkv_attention_padded(head_size); d += PANEL) {                  \
                const struct value_panel values = {base + d * bytes, tokens->offsets, floats};      \
                convert_panel_##type(floats, &values, 0, what.end, head_size - d);                  \
                for (int64_t r = 0; r < num_rows; r += VALUE_ROWS) {                                \
                    const int64_t left = num_rows - r, row = head * head_rows + r;                  \
                    const int rows = left < VALUE_ROWS ? (int)left : VALUE_ROWS;                    \
                    what.acc = all->acc + row * all->acc_stride;                                    \
                    what.weights = all->weights + row * PKV_ATTENTION_TILE;                         \
                    WITH_ROWS(rows, add_rows, 2, 1, &what, d, values, load_floats, leave_order,     \
                              r == 0 ? ahead : NULL, PANEL * bytes)                                 \
                }                                                                                   \
                touch_pages(pages, what.end *PANEL *bytes);                                         \
            }                                                                                       \
        }                                                                                           \
    }                                                                                               \
                                                                                                    \
    static void attention_values_##type(                                                            \
        float *acc, int64_t acc_stride, const float *weights, int64_t num_rows, int64_t head_rows,  \
        const struct pkv_attention_tokens *tokens, const struct pkv_attention_tokens *then,         \
        int64_t head_size, float *scratch) {                                                        \
        const struct value_sums all = {                                                             \
            .acc = acc,                                                                             \
            .acc_stride = acc_stride,                                                               \
            .weights = weights,                                                                     \
            .end = tokens->num_tokens,                                                              \
            .starts = true,                                                                         \
            .ends = true,                                                                           \
            .take_turns = tokens->heads_together && tokens->num_heads > 1,                          \
        };                                                                                          \
        const struct step step = first_step(tokens, STEP_APART, STEP_TOGETHER);                     \
        struct pages pages = look_at_pages(tokens, then, num_rows);                                 \
        struct ahead ahead = look_ahead(tokens, then, lead_of(&step, tokens, num_rows));            \
        if (num_rows <= 2 * VALUE_ROWS)                                                             \
            add_to_few_rows_##type(&all, step, num_rows, head_rows, tokens, head_size, scratch,     \
                                   &ahead, &pages);                                                 \
        else                                                                                        \
            add_to_many_rows_##type(&all, num_rows, head_rows, tokens, head_size, scratch, &ahead,  \
                                    &pages);                                                        \
        touch_rest(&pages);                                                                         \
        for (int64_t head = 0; head < tokens->num_heads; head++)                                    \
            mend_rows_##type(acc + head * head_rows * acc_stride, acc_stride,                       \
                             weights + head * head_rows * PKV_ATTENTION_TILE, num_rows,             \
                             tokens->base + head * tokens->head_stride, tokens, head_size);         \
    }

DEFINE_VALUES(f32, 4, leave_order)
DEFINE_VALUES(f16, 2, leave_order)
DEFINE_VALUES(bf16, 2, order_pairs)

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
