/* SPDX-License-Identifier: MIT
 *
 * The definition of attention in double precision, one query of one head at a time over plain
 * arrays, and how far from it float32 arithmetic may end up. It knows nothing of blocks, tiles and
 * threads, and calls no function of the library.
 */
#ifndef PAGEDKV_TESTS_ATTENTION_REFERENCE_H
#define PAGEDKV_TESTS_ATTENTION_REFERENCE_H

#include <stdint.h>

/* What holds for all sequences. */
struct attn_ref_options {
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_size;
    int64_t value_head_size;
    double scale;   /* 0: 1 / sqrt(head_size) */
    double softcap; /* 0: none */
    int is_causal;
    int64_t max_left;  /* positions seen to the left, the query's own included; 0: all */
    int64_t max_right; /* to the right, if not causal; 0: all */
    int is_base_2;     /* the log-sum-exp */
    int has_bf16_products;
    int32_t out_dtype;   /* enum pkv_dtype */
    const float *slopes; /* nullable: [num_heads] */
    const float *sinks;  /* nullable: [num_heads] */
};

/* One sequence: all its tokens, of which the last num_queries ask. Arrays are contiguous. */
struct attn_ref_seq {
    int64_t num_queries;
    int64_t num_tokens;
    const float *query; /* [num_queries, num_heads, head_size] */
    const float *key;   /* [num_tokens, num_kv_heads, head_size] */
    const float *value; /* [num_tokens, num_kv_heads, value_head_size] */
    /* nullable: [num_queries, mask_width], is added to the scores of the last mask_width positions;
     * minus infinity: unseen */
    const float *mask;
    int64_t mask_width;
};

/* 1 if query i sees position j. */
int attn_ref_sees(const struct attn_ref_options *options, const struct attn_ref_seq *seq, int64_t i,
                  int64_t j);

/* One row of the result: what it is, and how far off it may be, the rounding to out_dtype
 * included. */
struct attn_ref_row {
    double *out;    /* [value_head_size] */
    double *bounds; /* [value_head_size] */
    double lse;
    double lse_bound;
};

/* Fills in *row, whose arrays are the caller's. A row that sees nothing is exact: bounds 0.
 *
 * The bounds, with u = 2^-24, D = head_size, and s(j), m, p(j), L the exact scores, their maximum,
 * the probabilities and the sum of exp(s(j) - m):
 *
 *   score    four chains of at most D / 4 + 6 fused multiply-adds and three additions are off by c
 *            u A(j), c = D / 4 + 9 or D if that is less, A(j) = scale * sum of |q(d) k(d)|; numbers
 *            are not denormal, which dot products of bfloat16 take for 0. Scaling, the cap's
 *            division and product, ALiBi, mask: one rounding each of something no larger than A(j)
 *            or
 *            |cap| + |ALiBi| + |mask|; tanh itself 2^-21 of the cap. tanh does not widen an error.
 *   weight   a score off by e makes it off by the factor exp(e). exp adds the rounding of its
 *            argument, times
 *            |s(j) - m|, and 8 u of its own; so does each level of the tree over tiles. Together
 *            d(j).
 *   sums     n additions in a row: n u of the sum of the absolute terms; n is at most a tile and
 *            what the tree adds.
 *   out      sum of w(1 + d)v / sum of w(1 + d) differs from sum of p v by sum of p d (v - out) /
 *   sum of p(1 + d).
 *   lse      m + log(L): sum of p d, and the roundings of m, log(L) and their sum.
 *
 * Sums in double (the C level and sim) are nearer. With bfloat16 products a query and a weight are
 * off by 2^-8 more. */
void attn_ref_row(const struct attn_ref_options *options, const struct attn_ref_seq *seq, int64_t i,
                  int64_t head, struct attn_ref_row *row);

/* How far a number of that dtype may be from a number x whose magnitude is at most that. */
double attn_ref_rounding(int32_t dtype, double magnitude);

#endif
