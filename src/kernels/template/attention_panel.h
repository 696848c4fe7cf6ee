/* SPDX-License-Identifier: MIT
 *
 * What the products of attention have in common, over the vector interface of template/attention.h:
 * panels of transposed keys, loops over rows. Beyond that interface the including file defines:
 *
 *   tvec                                   a vector of FVEC_LANES 32-bit words
 *   tvec_load(p)                           unaligned
 *   tvec_load_transposed(words, from, at)  words[j] = word j behind byte `at` of each of FVEC_LANES
 *   rows
 *   tvec_f32(t)                            the words as float
 *   PREFETCH(p)                            a macro: fetch p's line
 *   NEAR_ROWS                              with more rows arithmetic takes much longer than memory,
 *                                          and a whole tile is fetched ahead
 *   TOUCH_ROWS                             with up to so many rows products wait for memory even
 *                                          for pages that are touched at once
 */
#ifndef PKV_KERNELS_TEMPLATE_ATTENTION_PANEL_H
#define PKV_KERNELS_TEMPLATE_ATTENTION_PANEL_H

#include <stdbool.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/template/attention_order.h"
#include "kernels/template/attention_pages.h"
#include "kernels/template/unroll.h"

enum { PANEL = 2 * FVEC_LANES, CHUNK_BYTES = 4 * FVEC_LANES };

/* Steps of a product that fills panels: these are filled whole. */
enum { PANEL_STEP = PANEL < 16 ? 16 : PANEL };

/* Calls fn(rows, ...) with a constant number of rows: up to 4, up to 8. */
#define WITH_FEW_ROWS(rows, fn, ...)                                                               \
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
    default:                                                                                       \
        fn(4, __VA_ARGS__);                                                                        \
    }

#define WITH_ROWS(rows, fn, ...)                                                                   \
    switch (rows) {                                                                                \
    case 5:                                                                                        \
        fn(5, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 6:                                                                                        \
        fn(6, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 7:                                                                                        \
        fn(7, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 8:                                                                                        \
        fn(8, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    default:                                                                                       \
        WITH_FEW_ROWS(rows, fn, __VA_ARGS__)                                                       \
    }

/* The last bytes of `count` rows, from `at` on: less than a chunk, filled up with zeroes. */
static inline void copy_rest(int count, char (*rest)[CHUNK_BYTES], const char **rows,
                             const char *const *from, int64_t at, int64_t row_bytes) {
    for (int i = 0; i < count; i++) {
        memset(rest[i], 0, CHUNK_BYTES);
        memcpy(rest[i], from[i] + at, (size_t)(row_bytes - at));
        rows[i] = rest[i];
    }
}

/* Rows of row_bytes bytes to words: word j of row i is float i of row j of the panel. Half as much
 * is fetched. */
ALWAYS_INLINE void fill_words(float *panel, const char *const from[FVEC_LANES], int64_t row_bytes,
                              struct ahead *ahead) {
    tvec words[FVEC_LANES];
    const char *line = ahead->line;
    int64_t at = 0;
    for (; at + CHUNK_BYTES <= row_bytes; at += CHUNK_BYTES) {
        FETCH(ahead, line, FVEC_LANES * CHUNK_BYTES / 2);
        tvec_load_transposed(words, from, at);
        UNROLL for (int64_t j = 0; j < FVEC_LANES; j++)
            fvec_store(panel + (at / 4 + j) * PANEL, tvec_f32(words[j]));
    }
    ahead->line = line;
    if (at == row_bytes)
        return;
    char rest[FVEC_LANES][CHUNK_BYTES];
    const char *rows[FVEC_LANES];
    copy_rest(FVEC_LANES, rest, rows, from, at, row_bytes);
    tvec_load_transposed(words, rows, 0);
    UNROLL for (int64_t j = 0; j < FVEC_LANES; j++) {
        if (at + j * 4 < row_bytes)
            fvec_store(panel + (at / 4 + j) * PANEL, tvec_f32(words[j]));
    }
}

/* 0 * x is not a number exactly if x is not finite. */
static inline bool all_finite(const float *rows, int64_t stride, int64_t num_rows,
                              int64_t head_size) {
    fvec doubt = fvec_set(0.0f), doubt_too = fvec_set(0.0f);
    for (int64_t r = 0; r < num_rows; r++) {
        const float *row = rows + r * stride;
        for (int64_t d = 0; d < head_size; d += 2 * FVEC_LANES) {
            doubt = fvec_fma(fvec_load(row + d), fvec_set(0.0f), doubt);
            doubt_too = fvec_fma(fvec_load(row + d + FVEC_LANES), fvec_set(0.0f), doubt_too);
        }
    }
    return !fvec_any_nan(fvec_add(doubt, doubt_too));
}

/* The rows of `count` tokens from t on. The last token stands in for missing ones. */
ALWAYS_INLINE void find_rows(const char **rows, int count,
                             const struct pkv_attention_tokens *tokens, int64_t head, int64_t t) {
    const char *base = tokens->base + head * tokens->head_stride;
    const int64_t last = tokens->num_tokens - 1;
    for (int i = 0; i < count; i++)
        rows[i] = base + tokens->offsets[t + i < last ? t + i : last];
}

/* PANEL tokens from t on to a panel: word by word, those of all tokens side by side. */
static inline void fill_panel(float *panel, const struct pkv_attention_tokens *keys, int64_t head,
                              int64_t t, int64_t row_bytes, struct ahead *ahead) {
    const char *from[PANEL];
    find_rows(from, PANEL, keys, head, t);
    fill_words(panel, from, row_bytes, ahead);
    fill_words(panel + FVEC_LANES, from + FVEC_LANES, row_bytes, ahead);
}

#endif
