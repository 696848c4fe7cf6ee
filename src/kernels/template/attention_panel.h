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
 *   NEAR_ROWS                              with more rows arithmetic takes much longer than memory, and a whole tile is
 *                                          fetched ahead
 *   TOUCH_ROWS                             with up to so many rows products wait for memory even for pages that are
 *                                          touched at once
 */
#ifndef PKV_KERNELS_TEMPLATE_ATTENTION_PANEL_H
#define PKV_KERNELS_TEMPLATE_ATTENTION_PANEL_H

#include <stdbool.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/template/attention_pages.h"
#include "kernels/template/unroll.h"

enum { PANEL = 2 * FVEC_LANES, CHUNK_BYTES = 4 * FVEC_LANES, ATTENTION_LINE_BYTES = 64 };

/* Some tokens of a head. All heads of some tokens are read, head by head, before the next tokens have their turn. */
struct step {
    int64_t head, first, end;
    int64_t width;          /* of a step, in tokens */
    int64_t turn, turn_end; /* the tokens whose turn it is */
};

/* Tokens of a step, usually: where heads lie apart, and where they lie together and are read in turn. Then the tokens of
 * a step, all heads of them, and as many that are fetched ahead should find room in the first cache. A panel is filled
 * whole. */
enum { STEP_APART = 32, STEP_TOGETHER = 16, PANEL_STEP = PANEL < 16 ? 16 : PANEL };

/* Adjacent rows of a head from which on all heads of a block are read before the next block, which is memory in order:
 * 1.06 times as fast with blocks of 128 tokens, 1.11 with 64. With 4 KiB, short steps cost more than that gains. Every
 * turn begins at a multiple of TURN_TOKENS, up to which scores may be written. */
enum { LONG_TURN_BYTES = 8192, TURN_TOKENS = 32 };

/* Where the turn that begins at `turn` ends. */
static inline int64_t end_of_turn(const struct pkv_attention_tokens *tokens, int64_t turn,
                                  int64_t width) {
    const int64_t *offsets = tokens->offsets, num_tokens = tokens->num_tokens;
    if (tokens->heads_together)
        return turn + width < num_tokens ? turn + width : num_tokens;
    if (tokens->num_heads == 1)
        return num_tokens;
    int64_t end = turn + 1;
    for (int64_t hop = PKV_ATTENTION_TILE / 2; hop > 0; hop /= 2) {
        if (end + hop <= num_tokens &&
            offsets[end + hop - 1] - offsets[end - 1] == hop * tokens->row_bytes)
            end += hop;
    }
    const bool is_turn =
        end % TURN_TOKENS == 0 && (end - turn) * tokens->row_bytes >= LONG_TURN_BYTES;
    return is_turn ? end : num_tokens;
}

static inline void set_end(struct step *step) {
    const int64_t left = step->turn_end - step->first;
    step->end = step->first + (left < step->width ? left : step->width);
}

static inline struct step first_step(const struct pkv_attention_tokens *tokens, int64_t apart,
                                     int64_t together) {
    struct step step = {.width = tokens->heads_together ? together : apart};
    step.turn_end = end_of_turn(tokens, 0, step.width);
    set_end(&step);
    return step;
}

/* The step after *step in the order of memory. Returns false after the last. */
static inline bool next_step(struct step *step, const struct pkv_attention_tokens *tokens) {
    step->first += step->width;
    if (step->first >= step->turn_end) {
        if (++step->head == tokens->num_heads) {
            if (step->turn_end >= tokens->num_tokens)
                return false;
            step->head = 0;
            step->turn = step->turn_end;
            step->turn_end = end_of_turn(tokens, step->turn, step->width);
        }
        step->first = step->turn;
    }
    set_end(step);
    return true;
}

/* Where heads lie apart: half of a first cache of 48 KiB. A third less or more is up to a tenth slower. */
enum { LEAD_BYTES = 24576 };

/* Those that may be fetched ahead of: tokens if heads lie together, else rows of a head. */
static inline int64_t num_ahead_of(const struct pkv_attention_tokens *tokens) {
    return tokens->heads_together ? tokens->num_tokens : tokens->num_tokens * tokens->num_heads;
}

/* How many of them are fetched ahead: 16 at least, and as many as are read side by side; or, if there is time, for there
 * are many rows, all; values within keys are there. What is read after these relies on it, so there is one rule. */
static inline int64_t lead_of(const struct step *step, const struct pkv_attention_tokens *tokens,
                              int64_t num_rows) {
    const int64_t all = num_ahead_of(tokens);
    if (num_rows > NEAR_ROWS || tokens->is_cached)
        return all;
    int64_t lead = step->width < STEP_TOGETHER ? STEP_TOGETHER : step->width;
    if (!tokens->heads_together && lead * tokens->row_bytes < LEAD_BYTES)
        lead = LEAD_BYTES / tokens->row_bytes;
    return lead < all ? lead : all;
}

/* Lines that are fetched while there is arithmetic to do, in the order of memory, a few KiB ahead, as many bytes as are
 * read meanwhile: that is what the processor's own prefetchers follow. Fetching a whole tile ahead, or lines in another
 * order, took 1.2 to 1.5 times as long. */
struct ahead {
    const char *line, *end;                  /* what is left of some adjacent rows */
    struct pkv_attention_tokens tokens;      /* num_heads 0: nothing is left */
    const struct pkv_attention_tokens *then; /* nullable: what is read after these */
    int64_t token, head;                     /* the row behind the adjacent ones */
    int64_t turn, turn_end;                  /* as in a step; one token where heads lie together */
};

static inline void next_head(struct ahead *ahead) {
    const struct pkv_attention_tokens *tokens = &ahead->tokens;
    if (++ahead->head == tokens->num_heads) {
        ahead->head = 0;
        ahead->turn = ahead->turn_end;
        if (ahead->turn < tokens->num_tokens)
            ahead->turn_end = end_of_turn(tokens, ahead->turn, 1);
    }
    ahead->token = ahead->turn;
}

/* Begins `lead` of them further on. */
static inline void look_at(struct ahead *ahead, const struct pkv_attention_tokens *tokens,
                           int64_t lead) {
    if (tokens == NULL) {
        ahead->tokens.num_heads = 0;
        return;
    }
    ahead->tokens = *tokens;
    if (tokens->heads_together && tokens->head_stride == tokens->row_bytes) {
        ahead->tokens.row_bytes *= tokens->num_heads;
        ahead->tokens.num_heads = 1;
        ahead->tokens.heads_together = false;
    }
    ahead->head = 0;
    ahead->turn = tokens->heads_together ? lead : 0;
    ahead->turn_end = end_of_turn(&ahead->tokens, ahead->turn, 1);
    int64_t rows = tokens->heads_together ? 0 : lead;
    for (; rows >= ahead->turn_end - ahead->turn; next_head(ahead))
        rows -= ahead->turn_end - ahead->turn;
    ahead->token = ahead->turn + rows;
}

/* Rows that are looked at in one go. */
enum { MAX_ADJACENT = 32 };

/* The next adjacent rows. */
static inline void next_rows(struct ahead *ahead) {
    const struct pkv_attention_tokens *tokens = &ahead->tokens;
    int64_t end = tokens->offsets[ahead->token] + tokens->row_bytes;
    const char *head = tokens->base + ahead->head * tokens->head_stride;
    ahead->line = head + end - tokens->row_bytes;
    int64_t t = ahead->token + 1;
    const int64_t limit = t + MAX_ADJACENT < ahead->turn_end ? t + MAX_ADJACENT : ahead->turn_end;
    for (; t < limit && tokens->offsets[t] == end; t++)
        end += tokens->row_bytes;
    ahead->token = t;
    if (t == ahead->turn_end)
        next_head(ahead);
    ahead->end = head + end;
    if (ahead->token == tokens->num_tokens) {
        look_at(ahead, ahead->then, 0);
        ahead->then = NULL;
    }
}

/* What is fetched while `tokens` are read: those `lead` further on, then `then`. */
static inline struct ahead look_ahead(const struct pkv_attention_tokens *tokens,
                                      const struct pkv_attention_tokens *then, int64_t lead) {
    struct ahead ahead;
    ahead.line = ahead.end = tokens->base + tokens->offsets[0];
    if (lead < num_ahead_of(tokens)) {
        look_at(&ahead, tokens, lead);
        ahead.then = then;
    } else {
        look_at(&ahead, then, 0);
        ahead.then = NULL;
    }
    return ahead;
}

/* Fetches `bytes` from `line` on that are not all adjacent; where it goes on. */
static __attribute__((noinline)) const char *fetch_rows(struct ahead *ahead, const char *line,
                                                        int64_t bytes) {
    while (bytes > 0) {
        if (line >= ahead->end) {
            if (ahead->tokens.num_heads == 0)
                return line;
            next_rows(ahead);
            line = ahead->line;
        }
        const int64_t left = ahead->end - line, count = left < bytes ? left : bytes;
        for (int64_t at = 0; at < count; at += ATTENTION_LINE_BYTES)
            PREFETCH(line + at);
        line += count;
        bytes -= count;
    }
    return line;
}

/* Fetches the next `bytes` from `line` on, and moves `line` on. A macro: gcc takes a function that only prefetches for
 * one without effect, and drops it. */
#define FETCH(ahead, line, bytes)                                                                  \
    do {                                                                                           \
        if (__builtin_expect((ahead)->end - (line) >= (bytes), 1)) {                               \
            UNROLL for (int64_t at_ = 0; at_ < (bytes); at_ += ATTENTION_LINE_BYTES)               \
                PREFETCH((line) + at_);                                                            \
            (line) += (bytes);                                                                     \
        } else                                                                                     \
            (line) = fetch_rows(ahead, line, bytes);                                               \
    } while (0)

/* The next `bytes` from *line on, for the caller to fetch a few lines at a time, which is quicker than all at once: 1.1
 * times. *line is moved on. Those that are not all adjacent are fetched here, and `cached` takes their place. */
ALWAYS_INLINE const char *take_lines(struct ahead *ahead, const char **line, int64_t bytes,
                                     const char *cached) {
    const char *from = *line;
    if (__builtin_expect(ahead->end - from >= bytes, 1)) {
        *line += bytes;
        return from;
    }
    *line = fetch_rows(ahead, from, bytes);
    return cached;
}

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

/* Rows of row_bytes bytes to words: word j of row i is float i of row j of the panel. Half as much is fetched. */
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
