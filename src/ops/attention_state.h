/* SPDX-License-Identifier: MIT
 *
 * Partial results of attention: for each row a maximum, a sum and an accumulator. Each level of the
 * state holds those of a run of tiles. Neighbouring runs are merged as the nodes of the binary tree
 * over all tiles of the context: two runs meet at their lowest common ancestor, and lower ancestors
 * come first. So the order of additions depends on the numbers of the tiles alone, wherever the
 * work was cut, and few levels hold any context.
 */
#ifndef PKV_OPS_ATTENTION_STATE_H
#define PKV_OPS_ATTENTION_STATE_H

#include <stdbool.h>

#include "kernels/kernels.h"

/* A run from tile 0 on needs a level for each bit of the last tile's number, and one; a piece of a
 * context, whose start is a multiple of an eighth of its length or less, a few more. */
enum { PKV_ATTENTION_MAX_TILE_BITS = 24, PKV_ATTENTION_LEVELS = 40 };

struct pkv_attention_run {
    int64_t first, last; /* tiles */
};

struct pkv_attention_stack {
    int64_t before; /* the last tile before the first run that belongs to the same rows; -1: none */
    int64_t depth;
    struct pkv_attention_run runs[PKV_ATTENTION_LEVELS];
};

struct pkv_attention_state {
    int64_t acc_stride; /* floats of a row, padded */
    float *acc;         /* [levels][MAX_ROWS][acc_stride] */
    float *max, *sum;   /* [levels][MAX_ROWS] */
    struct pkv_attention_stack *stack;
};

/* Rows of a unit: num_rows from row `first` on, of each of num_heads heads that lie head_rows
 * apart. */
struct pkv_attention_rows {
    int64_t first, num_rows, num_heads, head_rows;
};

void pkv_attention_stack_clear(struct pkv_attention_stack *stack, int64_t before);

static inline float *pkv_attention_acc(const struct pkv_attention_state *state, int64_t level,
                                       int64_t row) {
    return state->acc + (level * PKV_ATTENTION_MAX_ROWS + row) * state->acc_stride;
}

static inline float *pkv_attention_max(const struct pkv_attention_state *state, int64_t level,
                                       int64_t row) {
    return state->max + level * PKV_ATTENTION_MAX_ROWS + row;
}

static inline float *pkv_attention_sum(const struct pkv_attention_state *state, int64_t level,
                                       int64_t row) {
    return state->sum + level * PKV_ATTENTION_MAX_ROWS + row;
}

/* Merges the runs that meet before tile `next` does, and makes room for it. Returns true if the
 * tile meets the top run before anything else: then its results go to the level above the top, and
 * pkv_attention_state_join follows; false if it starts a level of its own, which is then the top.
 * keep and add are scratch, [MAX_ROWS]. */
bool pkv_attention_state_open(const struct pkv_attention_state *state,
                              const struct pkv_kernels *kernels,
                              const struct pkv_attention_rows *rows, int64_t head_size,
                              int64_t next, float *keep, float *add);

void pkv_attention_state_join(const struct pkv_attention_state *state,
                              const struct pkv_kernels *kernels,
                              const struct pkv_attention_rows *rows, int64_t head_size, float *keep,
                              float *add);

/* Adds the runs of another state, which come after those of this one. */
void pkv_attention_state_append(const struct pkv_attention_state *state,
                                const struct pkv_attention_state *later,
                                const struct pkv_kernels *kernels,
                                const struct pkv_attention_rows *rows, int64_t head_size,
                                float *keep, float *add);

/* Merges all runs into level 0; no run gives an empty one. */
void pkv_attention_state_close(const struct pkv_attention_state *state,
                               const struct pkv_kernels *kernels,
                               const struct pkv_attention_rows *rows, int64_t head_size,
                               float *keep, float *add);

#endif
