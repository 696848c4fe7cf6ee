/* SPDX-License-Identifier: MIT
 *
 * What the products of attention have in common, over the vector interface of template/attention.h: panels of
 * transposed keys, rows that are fetched ahead, loops over rows. Beyond that interface the including file defines:
 *
 *   tvec                                   a vector of FVEC_LANES 32-bit words
 *   tvec_load(p)                           unaligned
 *   tvec_load_transposed(words, from, at)  words[j] = word j behind byte `at` of each of FVEC_LANES rows
 *   tvec_f32(t)                            the words as float
 *   PREFETCH(p)                            a macro: fetch p's line
 */
#ifndef PKV_KERNELS_TEMPLATE_ATTENTION_PANEL_H
#define PKV_KERNELS_TEMPLATE_ATTENTION_PANEL_H

#include <stdbool.h>
#include <string.h>

#include "kernels/kernels.h"

enum { PANEL = 2 * FVEC_LANES, CHUNK_BYTES = 4 * FVEC_LANES, ATTENTION_LINE_BYTES = 64 };

/* Arrays of vectors are registers only if every loop over them is unrolled. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* FILL_ROWS of the rows to come are fetched while a panel is filled, the others while it is used: an even flow. */
enum { AHEAD_ROWS = 32, FILL_ROWS = PANEL * 3 / 8 };

/* Rows that are fetched while there is arithmetic to do, in the order in which they are read, a few KiB ahead: that is
 * what the processor's own prefetchers follow. Fetching a whole tile ahead, or lines in another order, took 1.2 to
 * 1.5 times as long. */
struct ahead {
    int64_t num_rows, row_bytes;
    int64_t next; /* row */
    const char *rows[AHEAD_ROWS];
};

/* Rows [first, first + count) of the tokens, and of those that are read next. */
static inline void look_ahead(struct ahead *ahead, const struct pkv_attention_tokens *tokens,
                              int64_t first, int64_t count, int64_t row_bytes) {
    ahead->num_rows = 0;
    ahead->row_bytes = row_bytes;
    ahead->next = 0;
    for (int64_t t = first; t < first + count; t++) {
        const int64_t beyond = t - tokens->num_tokens;
        if (beyond < 0)
            ahead->rows[ahead->num_rows++] = tokens->base + tokens->offsets[t];
        else if (beyond < tokens->num_next)
            ahead->rows[ahead->num_rows++] = tokens->next_base + tokens->next_offsets[beyond];
    }
}

/* A macro: gcc takes a function that only prefetches for one without effect, and drops it. */
#define FETCH_ROW(ahead, row)                                                                      \
    do {                                                                                           \
        if ((row) < (ahead)->num_rows) {                                                           \
            const char *const line = (ahead)->rows[row];                                           \
            for (int64_t byte = 0; byte < (ahead)->row_bytes; byte += ATTENTION_LINE_BYTES)        \
                PREFETCH(line + byte);                                                             \
        }                                                                                          \
        (row)++;                                                                                   \
    } while (0)

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

/* Rows of row_bytes bytes to words: word j of row i is float i of row j of the panel. */
ALWAYS_INLINE void fill_words(float *panel, const char *const from[FVEC_LANES], int64_t row_bytes,
                              struct ahead *ahead) {
    tvec words[FVEC_LANES];
    int64_t at = 0, row = ahead->next, credit = 0;
    for (; at + CHUNK_BYTES <= row_bytes; at += CHUNK_BYTES) {
        credit += FILL_ROWS / 2 * CHUNK_BYTES;
        while (credit >= row_bytes) {
            credit -= row_bytes;
            FETCH_ROW(ahead, row);
        }
        tvec_load_transposed(words, from, at);
        UNROLL for (int64_t j = 0; j < FVEC_LANES; j++)
            fvec_store(panel + (at / 4 + j) * PANEL, tvec_f32(words[j]));
    }
    ahead->next = row;
    if (at == row_bytes)
        return;
    char rest[FVEC_LANES][CHUNK_BYTES] = {{0}};
    const char *rows[FVEC_LANES];
    for (int64_t i = 0; i < FVEC_LANES; i++) {
        memcpy(rest[i], from[i] + at, (size_t)(row_bytes - at));
        rows[i] = rest[i];
    }
    tvec_load_transposed(words, rows, 0);
    UNROLL for (int64_t j = 0; j < FVEC_LANES; j++) {
        if (at + j * 4 < row_bytes)
            fvec_store(panel + (at / 4 + j) * PANEL, tvec_f32(words[j]));
    }
}

/* FVEC_LANES tokens from t on to their half of a panel: word by word, those of all tokens side by side. The last token
 * stands in for missing ones. */
static inline void fill_half_panel(float *panel, const struct pkv_attention_tokens *keys, int64_t t,
                                   int64_t row_bytes, struct ahead *ahead) {
    const char *from[FVEC_LANES];
    for (int64_t i = 0; i < FVEC_LANES; i++) {
        const int64_t token = t + i < keys->num_tokens ? t + i : keys->num_tokens - 1;
        from[i] = keys->base + keys->offsets[token];
    }
    fill_words(panel, from, row_bytes, ahead);
}

#endif
