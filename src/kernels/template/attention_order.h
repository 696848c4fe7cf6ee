/* SPDX-License-Identifier: MIT
 *
 * The order in which attention reads the tokens of a tile, and the lines that are fetched
 * meanwhile. See attention_panel.h for what the including file defines.
 */
#ifndef PKV_KERNELS_TEMPLATE_ATTENTION_ORDER_H
#define PKV_KERNELS_TEMPLATE_ATTENTION_ORDER_H

#include <stdbool.h>

#include "kernels/kernels.h"
#include "kernels/template/unroll.h"

enum { ATTENTION_LINE_BYTES = 64 };

/* Some tokens have their turn, and all heads of them are read, head by head, before the next ones
 * have theirs. */
struct turn {
    int64_t head, first, end;
};

/* Some tokens of a head in its turn. */
struct step {
    struct turn turn;
    int64_t first, end;
    int64_t width; /* at most so many */
};

/* Tokens of a step, usually: where heads lie apart, and where they lie together and are read in
 * turn. Then the tokens of a step, all heads of them, and as many that are fetched ahead should
 * find room in the first cache. */
enum { STEP_APART = 32, STEP_TOGETHER = 16 };

/* Adjacent rows of a head from which on all heads of a block are read before the next block, which
 * is memory in order: 1.06 times as fast with blocks of 128 tokens, 1.11 with 64. With less, short
 * steps may cost more than that gains. A turn begins at a multiple of the tokens that a product
 * writes scores of at once, whatever there are. */
enum { LONG_TURN_BYTES = 8192, TURN_TOKENS = 32, SHORT_TURN_TOKENS = 16 };

/* Where the turn that begins at token `first` ends; width is that of heads together. */
static inline int64_t end_of_turn(const struct pkv_attention_tokens *tokens, int64_t first,
                                  int64_t width) {
    const int64_t *offsets = tokens->offsets, num_tokens = tokens->num_tokens;
    const int64_t shortest = tokens->heads_together ? width : SHORT_TURN_TOKENS;
    const int64_t short_end = first + shortest < num_tokens ? first + shortest : num_tokens;
    if (tokens->heads_together)
        return short_end;
    if (tokens->num_heads == 1)
        return num_tokens;
    int64_t end = first + 1;
    for (int64_t hop = PKV_ATTENTION_TILE / 2; hop > 0; hop /= 2) {
        if (end + hop <= num_tokens &&
            offsets[end + hop - 1] - offsets[end - 1] == hop * tokens->row_bytes)
            end += hop;
    }
    if (tokens->short_turns)
        return end % SHORT_TURN_TOKENS == 0 ? end : short_end;
    const bool is_turn =
        end % TURN_TOKENS == 0 && (end - first) * tokens->row_bytes >= LONG_TURN_BYTES;
    return is_turn ? end : num_tokens;
}

static inline struct turn first_turn(const struct pkv_attention_tokens *tokens, int64_t first,
                                     int64_t width) {
    return (struct turn){.first = first, .end = end_of_turn(tokens, first, width)};
}

/* The turn of the next head, or of the tokens behind. Returns false after the last. */
static inline bool next_turn(struct turn *turn, const struct pkv_attention_tokens *tokens,
                             int64_t width) {
    if (++turn->head < tokens->num_heads)
        return true;
    if (turn->end == tokens->num_tokens)
        return false;
    *turn = first_turn(tokens, turn->end, width);
    return true;
}

static inline void begin_step(struct step *step, int64_t first) {
    const int64_t left = step->turn.end - first;
    step->first = first;
    step->end = first + (left < step->width ? left : step->width);
}

static inline struct step first_step(const struct pkv_attention_tokens *tokens, int64_t apart,
                                     int64_t together) {
    struct step step = {.width = tokens->heads_together ? together : apart};
    step.turn = first_turn(tokens, 0, step.width);
    begin_step(&step, 0);
    return step;
}

/* The step after *step in the order of memory. Returns false after the last. */
static inline bool next_step(struct step *step, const struct pkv_attention_tokens *tokens) {
    int64_t first = step->end;
    if (first == step->turn.end) {
        if (!next_turn(&step->turn, tokens, step->width))
            return false;
        first = step->turn.first;
    }
    begin_step(step, first);
    return true;
}

/* Where heads lie apart: half of a first cache of 48 KiB. A third less or more is up to a twentieth
 * slower. */
enum { LEAD_BYTES = 24576 };

/* A lead is how far ahead of reading rows are fetched: in tokens where heads lie together, else in
 * rows of a head. This one spans all tokens: fetching begins at once with what is read after
 * them. */
static inline int64_t whole_lead(const struct pkv_attention_tokens *tokens) {
    return tokens->heads_together ? tokens->num_tokens : tokens->num_tokens * tokens->num_heads;
}

/* 16 at least, and as many as are read side by side; or, if there is time, for there are many rows,
 * all; values within keys are there. What is read after these relies on it, so there is one
 * rule. */
static inline int64_t lead_of(const struct step *step, const struct pkv_attention_tokens *tokens,
                              int64_t num_rows) {
    const int64_t all = whole_lead(tokens);
    if (num_rows > NEAR_ROWS || tokens->is_cached)
        return all;
    int64_t lead = step->width < STEP_TOGETHER ? STEP_TOGETHER : step->width;
    if (!tokens->heads_together && lead * tokens->row_bytes < LEAD_BYTES)
        lead = LEAD_BYTES / tokens->row_bytes;
    return lead < all ? lead : all;
}

/* Lines that are fetched while there is arithmetic to do, in the order of memory, a few KiB ahead,
 * as many bytes as are read meanwhile: that is what the processor's own prefetchers follow.
 * Fetching a whole tile ahead, or lines in another order, took 1.2 to 1.5 times as long. */
struct ahead {
    const char *line, *end;                  /* what is left of some adjacent rows */
    struct pkv_attention_tokens tokens;      /* num_heads 0: nothing is left */
    const struct pkv_attention_tokens *then; /* nullable: what is read after these */
    struct turn turn;                        /* of one token where heads lie together */
    int64_t token;                           /* of the turn, behind the adjacent ones */
};

/* Begins `lead` behind the first row. */
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
    ahead->turn = first_turn(&ahead->tokens, tokens->heads_together ? lead : 0, 1);
    int64_t rows = tokens->heads_together ? 0 : lead;
    for (; rows >= ahead->turn.end - ahead->turn.first; next_turn(&ahead->turn, &ahead->tokens, 1))
        rows -= ahead->turn.end - ahead->turn.first;
    ahead->token = ahead->turn.first + rows;
}

/* Rows that are looked at in one go. */
enum { MAX_ADJACENT = 32 };

/* The next adjacent rows. */
static inline void next_rows(struct ahead *ahead) {
    const struct pkv_attention_tokens *tokens = &ahead->tokens;
    int64_t end = tokens->offsets[ahead->token] + tokens->row_bytes;
    const char *head = tokens->base + ahead->turn.head * tokens->head_stride;
    ahead->line = head + end - tokens->row_bytes;
    int64_t t = ahead->token + 1;
    const int64_t limit = t + MAX_ADJACENT < ahead->turn.end ? t + MAX_ADJACENT : ahead->turn.end;
    for (; t < limit && tokens->offsets[t] == end; t++)
        end += tokens->row_bytes;
    ahead->end = head + end;
    if (t < ahead->turn.end) {
        ahead->token = t;
    } else if (next_turn(&ahead->turn, tokens, 1)) {
        ahead->token = ahead->turn.first;
    } else {
        look_at(ahead, ahead->then, 0);
        ahead->then = NULL;
    }
}

/* What is fetched while `tokens` are read: theirs, `lead` further on, then those of `then`. */
static inline struct ahead look_ahead(const struct pkv_attention_tokens *tokens,
                                      const struct pkv_attention_tokens *then, int64_t lead) {
    struct ahead ahead;
    ahead.line = ahead.end = tokens->base + tokens->offsets[0];
    if (lead < whole_lead(tokens)) {
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

/* Fetches the next `bytes` from `line` on, and moves `line` on. A macro: gcc takes a function that
 * only prefetches for one without effect, and drops it. */
#define FETCH(ahead, line, bytes)                                                                  \
    do {                                                                                           \
        if (__builtin_expect((ahead)->end - (line) >= (bytes), 1)) {                               \
            UNROLL for (int64_t at_ = 0; at_ < (bytes); at_ += ATTENTION_LINE_BYTES)               \
                PREFETCH((line) + at_);                                                            \
            (line) += (bytes);                                                                     \
        } else                                                                                     \
            (line) = fetch_rows(ahead, line, bytes);                                               \
    } while (0)

/* The next `bytes` from *line on, for the caller to fetch a few lines at a time, which is quicker
 * than all at once: 1.1 times. *line is moved on. Those that are not all adjacent are fetched here,
 * and `cached` takes their place. */
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

#endif
