/* SPDX-License-Identifier: MIT
 *
 * The bodies of the attention kernels that work on rows of floats: weights, factors, merges,
 * conversions. The two products are in attention_products.h. Beyond those of template/fvec.h the
 * including file defines:
 *
 *   fvec_iota                              0, 1, 2, ...
 *   fvec_sub, fvec_mul
 *   fvec_fma(a, b, c)                      a * b + c, fused
 *   fvec_max, fvec_min (a, b)              b where one of them is not a number
 *   fvec_less(a, b)                        a comparison
 *   fvec_any_nan(v)                        bool
 *   fvec_reduce_max, fvec_reduce_add       to one float, in an order of its own that never changes
 *   exp_negative(x)                        exp(x) for x <= 0, relative error below 1.5 * 2^-24; 0
 *                                          below -87.33654, where the result would be denormal;
 *                                          exactly 1 for 0; NaN stays. Any instruction set can have
 *                                          that of exp_negative.h
 */
#ifndef PKV_KERNELS_TEMPLATE_ATTENTION_H
#define PKV_KERNELS_TEMPLATE_ATTENTION_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/template/fvec.h"

/* tanh(x), absolute error below 2^-21 (4.9 * 2^-24 at the most, over all float32): the rational
 * function of degrees 13 and 6 that Eigen and XNNPACK use, clamped where it comes nearest to 1. */
static inline fvec tanh_any(fvec x) {
    const fvec limit = fvec_set(7.90531110763549805f);
    const fvec c = fvec_max(fvec_set(-7.90531110763549805f), fvec_min(limit, x));
    const fvec q = fvec_mul(c, c);
    fvec p = fvec_set(-2.76076847742355e-16f);
    p = fvec_fma(p, q, fvec_set(2.00018790482477e-13f));
    p = fvec_fma(p, q, fvec_set(-8.60467152213735e-11f));
    p = fvec_fma(p, q, fvec_set(5.12229709037114e-08f));
    p = fvec_fma(p, q, fvec_set(1.48572235717979e-05f));
    p = fvec_fma(p, q, fvec_set(6.37261928875436e-04f));
    p = fvec_fma(p, q, fvec_set(4.89352455891786e-03f));
    fvec d = fvec_set(1.19825839466702e-06f);
    d = fvec_fma(d, q, fvec_set(1.18534705686654e-04f));
    d = fvec_fma(d, q, fvec_set(2.26843463243900e-03f));
    d = fvec_fma(d, q, fvec_set(4.89352518554385e-03f));
    return fvec_div(fvec_mul(p, c), d);
}

/* What turns a product into a score. */
struct scoring {
    fvec scale, softcap, inverse_softcap, slope, distance;
    bool has_softcap, has_slope;
};

static inline fvec score_of(fvec product, const struct scoring *how, int64_t t) {
    fvec s = fvec_mul(product, how->scale);
    if (how->has_softcap)
        s = fvec_mul(tanh_any(fvec_mul(s, how->inverse_softcap)), how->softcap);
    if (!how->has_slope)
        return s;
    const fvec place = fvec_add(how->distance, fvec_add(fvec_iota(), fvec_set((float)t)));
    return fvec_fma(how->slope, place, s);
}

static inline fvec add_bias(fvec s, const float *bias, int64_t t, int64_t num_tokens) {
    const fvec unseen = fvec_set(-INFINITY);
    const fvec b = t + FVEC_LANES <= num_tokens ? fvec_load(bias + t)
                                                : fvec_load_part(bias + t, num_tokens - t);
    s = fvec_select(fvec_less(unseen, b), fvec_add(s, b), unseen);
    return fvec_select(fvec_is_nan(b), b, s);
}

/* s where the row sees the token, minus infinity elsewhere. */
static inline fvec hide_unseen(fvec s, const struct pkv_attention_row *row, int64_t t) {
    const fvec unseen = fvec_set(-INFINITY), token = fvec_add(fvec_iota(), fvec_set((float)t));
    s = fvec_select(fvec_less(token, fvec_set((float)row->begin)), unseen, s);
    return fvec_select(fvec_less(token, fvec_set((float)row->end)), s, unseen);
}

/* The scores of a row as exp gets them, and the largest that it sees: of a row without soft cap,
 * slope and bias. */
static inline float score_plain_row(float *scores, const struct pkv_attention_row *row,
                                    fvec scale) {
    const int64_t begin = row->begin, end = row->end;
    fvec highest = fvec_set(-INFINITY);
    for (int64_t t = begin / FVEC_LANES * FVEC_LANES; begin < end && t < end;) {
        for (; t >= begin && t + FVEC_LANES <= end; t += FVEC_LANES) {
            const fvec s = fvec_mul(fvec_load(scores + t), scale);
            highest = fvec_max(s, highest);
            fvec_store(scores + t, s);
        }
        if (t < end) {
            const fvec s = hide_unseen(fvec_mul(fvec_load(scores + t), scale), row, t);
            highest = fvec_max(s, highest);
            fvec_store(scores + t, s);
            t += FVEC_LANES;
        }
    }
    return fvec_reduce_max(highest);
}

/* The same for any row. Not inlined: what it needs in registers would push out what exp does. */
static __attribute__((noinline)) float score_row(float *scores, const struct pkv_attention_row *row,
                                                 int64_t num_tokens, const struct scoring *how) {
    const int64_t begin = row->begin, end = row->end;
    fvec highest = fvec_set(-INFINITY);
    for (int64_t t = begin / FVEC_LANES * FVEC_LANES; begin < end && t < end; t += FVEC_LANES) {
        fvec s = score_of(fvec_load(scores + t), how, t);
        if (row->bias)
            s = add_bias(s, row->bias, t, num_tokens);
        if (t < begin || t + FVEC_LANES > end)
            s = hide_unseen(s, row, t);
        highest = fvec_max(s, highest);
        fvec_store(scores + t, s);
    }
    return fvec_reduce_max(highest);
}

/* Scores to weights; their sum. */
static inline float weigh_row(float *scores, const struct pkv_attention_row *row,
                              int64_t num_tokens, float max) {
    const int64_t first = row->begin / FVEC_LANES * FVEC_LANES;
    const int64_t last = row->begin < row->end ? row->end : first;
    const fvec shift = fvec_set(max == -INFINITY ? 0.0f : max);
    fvec total = fvec_set(0.0f);
    int64_t t = 0;
    for (; t < first; t += FVEC_LANES)
        fvec_store(scores + t, fvec_set(0.0f));
    for (; t < last; t += FVEC_LANES) {
        const fvec weight = exp_negative(fvec_sub(fvec_load(scores + t), shift));
        fvec_store(scores + t, weight);
        total = fvec_add(total, weight);
    }
    for (; t < num_tokens; t += FVEC_LANES)
        fvec_store(scores + t, fvec_set(0.0f));
    return fvec_reduce_add(total);
}

/* Rows whose scores are in the first-level cache at once. What a row waits for, its maximum and its
 * sum, then has the work of other rows beside it. */
enum { SOFTMAX_ROWS = 16 };

static void attention_softmax(float *scores, const struct pkv_attention_row *rows, int64_t num_rows,
                              int64_t num_tokens, float scale, float softcap, float *max,
                              float *sum) {
    struct scoring how = {
        .scale = fvec_set(scale),
        .softcap = fvec_set(softcap),
        .inverse_softcap = fvec_set(softcap == 0 ? 0.0f : 1.0f / softcap),
        .has_softcap = softcap != 0,
    };
    for (int64_t first = 0; first < num_rows; first += SOFTMAX_ROWS) {
        const int64_t end = num_rows - first < SOFTMAX_ROWS ? num_rows : first + SOFTMAX_ROWS;
        for (int64_t r = first; r < end; r++) {
            float *row = scores + r * PKV_ATTENTION_TILE;
            if (softcap == 0 && rows[r].slope == 0 && rows[r].bias == NULL) {
                max[r] = score_plain_row(row, &rows[r], how.scale);
                continue;
            }
            how.slope = fvec_set(rows[r].slope);
            how.distance = fvec_set(rows[r].distance);
            how.has_slope = rows[r].slope != 0;
            max[r] = score_row(row, &rows[r], num_tokens, &how);
        }
        for (int64_t r = first; r < end; r++)
            sum[r] = weigh_row(scores + r * PKV_ATTENTION_TILE, &rows[r], num_tokens, max[r]);
    }
    for (int64_t r = 0; r < num_rows; r++) {
        if (isnan(sum[r]))
            max[r] = sum[r];
    }
}

static inline fvec factor(fvec max, fvec m) {
    const fmask is_seen = fvec_less(fvec_set(-INFINITY), max);
    const fvec f = exp_negative(fvec_sub(max, m));
    return fvec_select(fvec_is_nan(max), max, fvec_select(is_seen, f, fvec_set(0.0f)));
}

static void attention_factors(float *max, float *sum, const float *other_max,
                              const float *other_sum, float *keep, float *add, int64_t num_rows) {
    for (int64_t r = 0; r < num_rows; r += FVEC_LANES) {
        const int64_t count = num_rows - r < FVEC_LANES ? num_rows - r : FVEC_LANES;
        const fvec a = fvec_load_part(max + r, count), b = fvec_load_part(other_max + r, count);
        const fvec m = fvec_select(fvec_is_nan(a), a, fvec_max(a, b));
        const fvec k = factor(a, m), n = factor(b, m);
        const fvec kept = fvec_mul(fvec_load_part(sum + r, count), k);
        fvec_store_part(sum + r, fvec_fma(fvec_load_part(other_sum + r, count), n, kept), count);
        fvec_store_part(max + r, m, count);
        fvec_store_part(keep + r, k, count);
        fvec_store_part(add + r, n, count);
    }
}

static void attention_merge(float *acc, const float *other, int64_t acc_stride, const float *keep,
                            const float *add, int64_t num_rows, int64_t head_size) {
    for (int64_t r = 0; r < num_rows; r++) {
        const fvec k = fvec_set(keep[r]), n = fvec_set(add[r]);
        const int64_t end = r * acc_stride + pkv_attention_padded(head_size);
        if (keep[r] == 0) {
            for (int64_t i = r * acc_stride; i < end; i += FVEC_LANES)
                fvec_store(acc + i, fvec_mul(fvec_load(other + i), n));
        } else if (add[r] != 0) {
            for (int64_t i = r * acc_stride; i < end; i += FVEC_LANES)
                fvec_store(acc + i,
                           fvec_fma(fvec_load(other + i), n, fvec_mul(fvec_load(acc + i), k)));
        }
    }
}

static inline fvec outgoing(fvec acc, fvec scale) {
    const fvec v = fvec_add(fvec_mul(acc, scale), fvec_set(0.0f));
    return fvec_one_nan(v);
}

#define DEFINE_CONVERSIONS(type, bytes)                                                            \
    static void attention_load_##type(float *to, const char *from, int64_t count) {                \
        int64_t i = 0;                                                                             \
        for (; i + FVEC_LANES <= count; i += FVEC_LANES)                                           \
            fvec_store(to + i, fvec_load_##type(from + i * bytes));                                \
        if (i < count)                                                                             \
            fvec_store_part(to + i, fvec_load_##type##_part(from + i * bytes, count - i),          \
                            count - i);                                                            \
    }                                                                                              \
                                                                                                   \
    static void attention_store_##type(char *to, const float *acc, float scale, int64_t count) {   \
        const fvec factor_of_all = fvec_set(scale);                                                \
        int64_t i = 0;                                                                             \
        for (; i + FVEC_LANES <= count; i += FVEC_LANES)                                           \
            fvec_store_##type(to + i * bytes, outgoing(fvec_load(acc + i), factor_of_all));        \
        if (i < count)                                                                             \
            fvec_store_##type##_part(to + i * bytes,                                               \
                                     outgoing(fvec_load_part(acc + i, count - i), factor_of_all),  \
                                     count - i);                                                   \
    }

DEFINE_CONVERSIONS(f32, 4)
DEFINE_CONVERSIONS(f16, 2)
DEFINE_CONVERSIONS(bf16, 2)

#endif
