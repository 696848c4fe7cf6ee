/* SPDX-License-Identifier: MIT
 *
 * The merge tree of partial results.
 */
#include "ops/attention_state.h"

#include <math.h>
#include <string.h>

void pkv_attention_stack_clear(struct pkv_attention_stack *stack, int64_t before) {
    stack->before = before;
    stack->depth = 0;
}

/* The height at which two tiles, or the ends of two runs, meet in the tree. */
static int height(int64_t a, int64_t b) {
    return 64 - __builtin_clzll((unsigned long long)(a ^ b));
}

/* True if the two top runs are to be merged now: they meet lower in the tree than the upper one
 * meets `next`, and lower than the lower one meets the run before it. */
static bool top_runs_meet(const struct pkv_attention_stack *stack, int64_t next) {
    if (stack->depth < 2)
        return false;
    const struct pkv_attention_run *b = &stack->runs[stack->depth - 1], *a = b - 1;
    const int64_t before = stack->depth > 2 ? (a - 1)->last : stack->before;
    const int meeting = height(a->last, b->first);
    return meeting < height(b->last, next) && (before < 0 || meeting < height(before, a->first));
}

/* Level `top` into the one under it. */
static void merge_levels(const struct pkv_attention_state *state, const struct pkv_kernels *kernels,
                         const struct pkv_attention_rows *rows, int64_t head_size, int64_t top,
                         float *keep, float *add) {
    const int64_t under = top - 1;
    for (int64_t h = 0; h < rows->num_heads; h++) {
        const int64_t row = h * rows->head_rows + rows->first;
        kernels->attention_factors(pkv_attention_max(state, under, row),
                                   pkv_attention_sum(state, under, row),
                                   pkv_attention_max(state, top, row),
                                   pkv_attention_sum(state, top, row), keep, add, rows->num_rows);
        kernels->attention_merge(pkv_attention_acc(state, under, row),
                                 pkv_attention_acc(state, top, row), state->acc_stride, keep, add,
                                 rows->num_rows, head_size);
    }
}

static void merge_top_runs(const struct pkv_attention_state *state,
                           const struct pkv_kernels *kernels, const struct pkv_attention_rows *rows,
                           int64_t head_size, float *keep, float *add) {
    struct pkv_attention_stack *stack = state->stack;
    const int64_t top = --stack->depth;
    merge_levels(state, kernels, rows, head_size, top, keep, add);
    stack->runs[top - 1].last = stack->runs[top].last;
}

void pkv_attention_state_join(const struct pkv_attention_state *state,
                              const struct pkv_kernels *kernels,
                              const struct pkv_attention_rows *rows, int64_t head_size, float *keep,
                              float *add) {
    merge_levels(state, kernels, rows, head_size, state->stack->depth, keep, add);
}

static void merge_until(const struct pkv_attention_state *state, const struct pkv_kernels *kernels,
                        const struct pkv_attention_rows *rows, int64_t head_size, int64_t next,
                        float *keep, float *add) {
    while (top_runs_meet(state->stack, next))
        merge_top_runs(state, kernels, rows, head_size, keep, add);
}

bool pkv_attention_state_open(const struct pkv_attention_state *state,
                              const struct pkv_kernels *kernels,
                              const struct pkv_attention_rows *rows, int64_t head_size,
                              int64_t next, float *keep, float *add) {
    struct pkv_attention_stack *stack = state->stack;
    merge_until(state, kernels, rows, head_size, next, keep, add);
    /* A tile and its even neighbour meet before either meets anything else. */
    struct pkv_attention_run *top = &stack->runs[stack->depth - 1];
    if (stack->depth > 0 && next % 2 == 1 && top->first == next - 1) {
        top->last = next;
        return true;
    }
    stack->runs[stack->depth++] = (struct pkv_attention_run){next, next};
    return false;
}

void pkv_attention_state_append(const struct pkv_attention_state *state,
                                const struct pkv_attention_state *later,
                                const struct pkv_kernels *kernels,
                                const struct pkv_attention_rows *rows, int64_t head_size,
                                float *keep, float *add) {
    struct pkv_attention_stack *stack = state->stack;
    for (int64_t i = 0; i < later->stack->depth; i++) {
        const struct pkv_attention_run *run = &later->stack->runs[i];
        merge_until(state, kernels, rows, head_size, run->first, keep, add);
        const int64_t level = stack->depth++;
        stack->runs[level] = *run;
        for (int64_t h = 0; h < rows->num_heads; h++) {
            const int64_t row = h * rows->head_rows + rows->first;
            const size_t bytes = (size_t)rows->num_rows * sizeof(float);
            memcpy(pkv_attention_max(state, level, row), pkv_attention_max(later, i, row), bytes);
            memcpy(pkv_attention_sum(state, level, row), pkv_attention_sum(later, i, row), bytes);
            memcpy(pkv_attention_acc(state, level, row), pkv_attention_acc(later, i, row),
                   bytes * (size_t)state->acc_stride);
        }
    }
}

void pkv_attention_state_close(const struct pkv_attention_state *state,
                               const struct pkv_kernels *kernels,
                               const struct pkv_attention_rows *rows, int64_t head_size,
                               float *keep, float *add) {
    if (state->stack->depth == 0) {
        for (int64_t h = 0; h < rows->num_heads; h++) {
            for (int64_t r = 0; r < rows->num_rows; r++) {
                const int64_t row = h * rows->head_rows + rows->first + r;
                *pkv_attention_max(state, 0, row) = -INFINITY;
                *pkv_attention_sum(state, 0, row) = 0;
                memset(pkv_attention_acc(state, 0, row), 0,
                       (size_t)state->acc_stride * sizeof(float));
            }
        }
        return;
    }
    while (state->stack->depth > 1)
        merge_top_runs(state, kernels, rows, head_size, keep, add);
}
