/* SPDX-License-Identifier: MIT
 *
 * Scores to weights, and partial results to one: against double arithmetic within the bounds of
 * exp, tanh and the roundings of a score; exactly where a fused step is promised; and against the
 * same kernel called for fewer rows and fewer tokens.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check_attention.h"

/* The relative error of exp; where its result would be denormal it may be 0. The error of tanh. */
#define EXP_ERROR  0x1p-22
#define EXP_LOWEST 0x1p-125
#define TANH_ERROR 0x1p-21

static const char *const softmax_name[] = {"attention_softmax"};
static const char *const factors_name[] = {"attention_factors"};
static const char *const merge_name[] = {"attention_merge"};

static const struct kern_buffer *row_buffer;
static struct attention_floats scores, again, biases, maxima, sums, again_maxima, again_sums;
static struct attention_floats other_maxima, other_sums, keeps, adds, acc, other;
static float before[PKV_ATTENTION_MAX_ROWS * PKV_ATTENTION_TILE];
static float old_acc[PKV_ATTENTION_MAX_ROWS * ATTENTION_MAX_STRIDE];
static struct pkv_attention_row *rows; /* [num_rows], in front of a forbidden OS page */
static float scale, softcap;
static struct test_rng *rng;

static void start(const struct kern *kern) {
    const int64_t max_rows = PKV_ATTENTION_MAX_ROWS;
    rng = kern->rng;
    if (row_buffer != NULL)
        return;
    row_buffer = kern_buffer_make("rows", max_rows * (int64_t)sizeof(struct pkv_attention_row));
    attention_floats_make(&scores, "scores", max_rows * PKV_ATTENTION_TILE);
    attention_floats_make(&again, "scores or acc of another call", max_rows * ATTENTION_MAX_STRIDE);
    attention_floats_make(&biases, "bias", max_rows * PKV_ATTENTION_TILE);
    attention_floats_make(&maxima, "max", max_rows);
    attention_floats_make(&sums, "sum", max_rows);
    attention_floats_make(&again_maxima, "max of another call", max_rows);
    attention_floats_make(&again_sums, "sum of another call", max_rows);
    attention_floats_make(&other_maxima, "other_max", max_rows);
    attention_floats_make(&other_sums, "other_sum", max_rows);
    attention_floats_make(&keeps, "keep", max_rows);
    attention_floats_make(&adds, "add", max_rows);
    attention_floats_make(&acc, "acc", max_rows * ATTENTION_MAX_STRIDE);
    attention_floats_make(&other, "other", max_rows * ATTENTION_MAX_STRIDE);
}

static float any_special(void) {
    const float specials[] = {NAN, -NAN, INFINITY, -INFINITY};
    return PICK(rng, specials);
}

/* ---- softmax ---- */

static kern_fn *get_softmax(const struct pkv_kernels *kernels, int index) {
    (void)index;
    return (kern_fn *)kernels->attention_softmax;
}

/* Nothing, all, the first, the last, or some tokens. */
static void random_range(struct pkv_attention_row *row) {
    const int64_t num_tokens = attention_now.num_tokens, kind = test_rng_below(rng, 6);
    row->begin = kind < 2 ? 0 : (int32_t)test_rng_below(rng, num_tokens + 1);
    row->end = (int32_t)(kind == 0   ? num_tokens
                         : kind == 1 ? test_rng_below(rng, num_tokens + 1)
                         : kind == 2 ? row->begin
                                     : test_rng_between(rng, row->begin, num_tokens));
    if (kind == 3)
        row->end = (int32_t)num_tokens;
}

/* Biases of the rows that have one, side by side; where a row sees nothing they may be anything. */
static void random_bias(struct pkv_attention_row *row, float *bias, bool is_special) {
    const int64_t kind = test_rng_below(rng, 5);
    row->bias = kind < 2 ? NULL : bias;
    for (int64_t t = 0; row->bias && t < attention_now.num_tokens; t++) {
        const bool is_outside = t < row->begin || t >= row->end;
        bias[t] = kind == 2 || (kind == 3 && test_rng_below(rng, 3) == 0)
                      ? -INFINITY
                      : 4 * attention_random(rng, ATTENTION_PLAIN);
        if (kind == 4 && test_rng_below(rng, 2) == 0)
            bias[t] = 0;
        if (is_outside && test_rng_below(rng, 3) == 0)
            bias[t] = any_special();
        if (is_special && test_rng_below(rng, 40) == 0)
            bias[t] = test_rng_below(rng, 2) == 0 ? NAN : INFINITY;
    }
}

static float random_score(int64_t kind) {
    static const float edges[] = {0.0f, -0.0f, 3e38f, -3e38f, 1e30f, 0x1p-149f, -0x1p-126f, 88.0f};
    switch (kind) {
    case 0:
        return attention_random(rng, ATTENTION_WILD);
    case 1:
        return attention_random(rng, ATTENTION_TINY_NUMBERS);
    case 2:
        return 100 * attention_random(rng, ATTENTION_PLAIN);
    case 3:
        return PICK(rng, edges);
    default:
        return 8 * attention_random(rng, ATTENTION_PLAIN);
    }
}

static void random_row(int64_t r, bool is_special) {
    struct pkv_attention_row *row = &rows[r];
    const int64_t kind = test_rng_below(rng, 8);
    float *row_scores = scores.data + r * PKV_ATTENTION_TILE;
    random_range(row);
    random_bias(row, biases.data + r * attention_now.num_tokens, is_special);
    row->slope = test_rng_below(rng, 2) == 0 ? 0.0f : attention_random(rng, ATTENTION_PLAIN) / 8;
    row->distance =
        (float)(test_rng_below(rng, 8) == 0 ? test_rng_between(rng, -(INT64_C(1) << 39), 0)
                                            : test_rng_between(rng, -20000, 300));
    for (int64_t t = 0; t < attention_now.num_tokens; t++) {
        const bool is_outside =
            t < row->begin || t >= row->end || (row->bias && row->bias[t] == -INFINITY);
        row_scores[t] = random_score(kind);
        if ((is_outside && test_rng_below(rng, 3) == 0) ||
            (is_special && test_rng_below(rng, 40) == 0))
            row_scores[t] = any_special();
    }
}

static void random_case(void) {
    static const float scales[] = {1.0f, 0.08838834764f, 0.125f, 1e-3f, -0.3f, 1e-30f};
    static const float softcaps[] = {0.0f, 0.0f, 0.0f, 50.0f, 30.0f, 0.7f, 1e4f};
    const int64_t num_rows = attention_now.num_rows;
    scale = PICK(rng, scales);
    softcap = PICK(rng, softcaps);
    rows = (void *)(row_buffer->data + row_buffer->bytes - num_rows * (int64_t)sizeof(*rows));
    attention_floats_place(&scores, rng, num_rows * PKV_ATTENTION_TILE);
    attention_floats_place(&biases, rng, num_rows * attention_now.num_tokens);
    attention_floats_place(&maxima, rng, num_rows);
    attention_floats_place(&sums, rng, num_rows);
    /* Not aligned any further than to its type, and right in front of the forbidden page. */
    if (biases.data != (float *)(void *)biases.buffer->data)
        biases.data = (float *)(void *)(biases.buffer->data + biases.buffer->bytes) - biases.count;
    for (int64_t r = 0; r < num_rows; r++)
        random_row(r, attention_now.style == ATTENTION_SPECIAL && test_rng_below(rng, 2) == 0);
    memcpy(before, scores.data, (size_t)(num_rows * PKV_ATTENTION_TILE) * sizeof(float));
}

/* Of one row: the scores in double, how far those of a kernel may be from them, and what
 * follows. */
struct row_scores {
    bool is_seen[PKV_ATTENTION_TILE];
    double s[PKV_ATTENTION_TILE], error[PKV_ATTENTION_TILE];
    double max, max_error;
    bool is_broken; /* something seen is not a number, or larger than all numbers */
};

/* Each step of a score may round, and tanh has an error of its own. A score that is the product
 * itself is exact. */
static void score_one(struct row_scores *to, const struct pkv_attention_row *row, float product,
                      int64_t t) {
    const double bias = row->bias ? (double)row->bias[t] : 0;
    const double alibi = (double)row->slope * ((double)row->distance + (double)t);
    double s = (double)scale * (double)product;
    double error = 4 * ATTENTION_ULP * (fabs(s) + fabs(alibi) + fabs(bias)) + 4 * ATTENTION_TINY;
    if (softcap != 0) {
        s = (double)softcap * tanh(s / (double)softcap);
        error =
            (double)softcap * TANH_ERROR + 4 * ATTENTION_ULP * (fabs(s) + fabs(alibi) + fabs(bias));
    }
    if (softcap == 0 && scale == 1 && row->slope == 0 && bias == 0)
        error = 0;
    s += alibi + bias;
    to->is_seen[t] = t >= row->begin && t < row->end && bias != -(double)INFINITY;
    to->s[t] = to->is_seen[t] ? s : -(double)INFINITY;
    to->error[t] = isfinite(s) ? error : 0;
    if (to->is_seen[t] && (isnan(s) || s == (double)INFINITY))
        to->is_broken = true;
}

static void score_row(struct row_scores *to, int64_t r) {
    *to = (struct row_scores){.max = -(double)INFINITY};
    for (int64_t t = 0; t < attention_now.num_tokens; t++) {
        score_one(to, &rows[r], before[r * PKV_ATTENTION_TILE + t], t);
        if (to->s[t] > to->max)
            to->max = to->s[t];
    }
    /* Any score that may be the largest one may err. */
    for (int64_t t = 0; t < attention_now.num_tokens; t++) {
        if (to->s[t] + to->error[t] >= to->max && to->error[t] > to->max_error)
            to->max_error = to->error[t];
    }
}

/* exp(distance), where distance is the difference of two numbers that may be off by error,
 * rounded. */
static void near_exp(const char *name, int64_t r, int64_t t, float is, double distance,
                     double error) {
    const double rounding =
        error == 0 ? fabs(distance - (double)(float)distance) : fabs(distance) * ATTENTION_ULP;
    const double wanted = exp(distance), highest = exp(fmin(distance + error + rounding, 1));
    kern_near(name, r, t, (double)is, wanted, highest - wanted + EXP_ERROR * highest + EXP_LOWEST);
}

static void compare_softmax_row(int64_t r) {
    struct row_scores wanted;
    const float *row = scores.data + r * PKV_ATTENTION_TILE;
    double sum = 0;
    score_row(&wanted, r);
    for (int64_t t = 0; t < attention_now.num_tokens; t++) {
        if (wanted.s[t] == -(double)INFINITY) {
            if (row[t] != 0)
                kern_fail("weights[%" PRId64 "][%" PRId64 "] is %.9g, should be 0: not seen", r, t,
                          (double)row[t]);
        } else if (!wanted.is_broken) {
            near_exp("weights", r, t, row[t], wanted.s[t] - wanted.max,
                     wanted.error[t] + wanted.max_error);
        }
        sum += (double)row[t];
    }
    if (wanted.is_broken) {
        if (maxima.data[r] < INFINITY)
            kern_fail("max[%" PRId64 "] is %.9g, should be infinite or not a number", r,
                      (double)maxima.data[r]);
        kern_near("sum", r, 0, (double)sums.data[r], (double)NAN, 0);
        return;
    }
    kern_near("max", r, 0, (double)maxima.data[r], wanted.max, wanted.max_error);
    kern_near("sum", r, 0, (double)sums.data[r], sum,
              (double)attention_now.num_tokens * ATTENTION_ULP * sum);
}

static int64_t end_of(int64_t row) {
    return rows[row].end;
}

static void softmax_again(const struct kern *kern) {
    const struct attention_part part = attention_random_part(rng, end_of);
    attention_floats_place(&again, rng, part.num_rows * PKV_ATTENTION_TILE);
    attention_floats_place(&again_maxima, rng, part.num_rows);
    attention_floats_place(&again_sums, rng, part.num_rows);
    for (int64_t r = 0; r < part.num_rows; r++)
        memcpy(again.data + r * PKV_ATTENTION_TILE,
               before + (part.first_row + r) * PKV_ATTENTION_TILE,
               (size_t)part.num_tokens * sizeof(float));
    ((pkv_attention_softmax_fn *)kern->tested)(again.data, rows + part.first_row, part.num_rows,
                                               part.num_tokens, scale, softcap, again_maxima.data,
                                               again_sums.data);
    attention_floats_check(&again);
    for (int64_t r = 0; r < part.num_rows; r++) {
        const int64_t row = part.first_row + r;
        attention_compare_row("weights", again.data + r * PKV_ATTENTION_TILE,
                              scores.data + row * PKV_ATTENTION_TILE, part.num_tokens, row, &part);
        attention_compare_row("max", again_maxima.data + r, maxima.data + row, 1, row, &part);
        attention_compare_row("sum", again_sums.data + r, sums.data + row, 1, row, &part);
    }
}

static void run_softmax(const struct kern *kern) {
    random_case();
    ((pkv_attention_softmax_fn *)kern->tested)(scores.data, rows, attention_now.num_rows,
                                               attention_now.num_tokens, scale, softcap,
                                               maxima.data, sums.data);
    attention_floats_check(&scores);
    attention_floats_check(&maxima);
    attention_floats_check(&sums);
    for (int64_t r = 0; r < attention_now.num_rows; r++)
        compare_softmax_row(r);
    for (int repeat = 0; repeat < 2; repeat++)
        softmax_again(kern);
}

static void check_softmax(const struct kern *kern) {
    start(kern);
    attention_sizes(kern, run_softmax);
}

static void describe_softmax(void) {
    attention_describe();
    printf(", scale %g, softcap %g", (double)scale, (double)softcap);
    for (int64_t r = 0; r < attention_now.num_rows && r < 4; r++)
        printf(", {%" PRId32 " ... %" PRId32 ", slope %g, distance %g%s}", rows[r].begin,
               rows[r].end, (double)rows[r].slope, (double)rows[r].distance,
               rows[r].bias ? ", bias" : "");
}

/* ---- factors ---- */

static kern_fn *get_factors(const struct pkv_kernels *kernels, int index) {
    (void)index;
    return (kern_fn *)kernels->attention_factors;
}

static float random_max(void) {
    switch (test_rng_below(rng, 8)) {
    case 0:
        return -INFINITY;
    case 1:
        return test_rng_below(rng, 4) == 0 ? any_special() : 1.0f;
    case 2:
        return attention_random(rng, ATTENTION_WILD);
    default:
        return 20 * attention_random(rng, ATTENTION_PLAIN);
    }
}

static void place_factors(void) {
    struct attention_floats *const all[] = {&maxima,     &sums,  &other_maxima,
                                            &other_sums, &keeps, &adds};
    for (int64_t i = 0; i < COUNT(all); i++)
        attention_floats_place(all[i], rng, attention_now.num_rows);
    for (int64_t r = 0; r < attention_now.num_rows; r++) {
        maxima.data[r] = before[r] = random_max();
        other_maxima.data[r] = random_max();
        sums.data[r] =
            maxima.data[r] == -INFINITY ? 0.0f : 1 + fabsf(attention_random(rng, ATTENTION_PLAIN));
        other_sums.data[r] = other_maxima.data[r] == -INFINITY
                                 ? 0.0f
                                 : 1 + fabsf(attention_random(rng, ATTENTION_PLAIN));
        old_acc[r] = sums.data[r];
    }
}

static void compare_factor(const char *name, int64_t r, float is, float max, float m,
                           float other_max) {
    if (max == -INFINITY)
        kern_near(name, r, 0, (double)is, 0, 0);
    else if (other_max == -INFINITY && max < INFINITY)
        kern_near(name, r, 0, (double)is, 1, 0);
    else
        near_exp(name, r, 0, is, (double)max - (double)m, 0);
}

static void compare_factors(int64_t r) {
    const float max = before[r], other_max = other_maxima.data[r];
    const float m = isnan(max) || isnan(other_max) ? NAN : fmaxf(max, other_max);
    const float sum = fmaf(other_sums.data[r], adds.data[r], old_acc[r] * keeps.data[r]);
    kern_near("max", r, 0, (double)maxima.data[r], (double)m, 0);
    compare_factor("keep", r, keeps.data[r], max, m, other_max);
    compare_factor("add", r, adds.data[r], other_max, m, max);
    kern_near("sum", r, 0, (double)sums.data[r], (double)sum, 0);
}

static void run_factors(const struct kern *kern) {
    place_factors();
    ((pkv_attention_factors_fn *)kern->tested)(maxima.data, sums.data, other_maxima.data,
                                               other_sums.data, keeps.data, adds.data,
                                               attention_now.num_rows);
    attention_floats_check(&maxima);
    attention_floats_check(&sums);
    attention_floats_check(&keeps);
    attention_floats_check(&adds);
    for (int64_t r = 0; r < attention_now.num_rows; r++)
        compare_factors(r);
    /* Each row alone: the same factors. */
    for (int64_t r = 0; r < attention_now.num_rows; r++) {
        const struct attention_part part = {r, 1, 0};
        _Alignas(64) float lines[6][16] = {
            {before[r]}, {old_acc[r]}, {other_maxima.data[r]}, {other_sums.data[r]}};
        ((pkv_attention_factors_fn *)kern->tested)(lines[0], lines[1], lines[2], lines[3], lines[4],
                                                   lines[5], 1);
        attention_compare_row("max", lines[0], maxima.data + r, 1, r, &part);
        attention_compare_row("sum", lines[1], sums.data + r, 1, r, &part);
        attention_compare_row("keep", lines[4], keeps.data + r, 1, r, &part);
        attention_compare_row("add", lines[5], adds.data + r, 1, r, &part);
    }
}

static void check_factors(const struct kern *kern) {
    start(kern);
    for (int64_t num_rows = 0; num_rows <= PKV_ATTENTION_MAX_ROWS; num_rows++) {
        for (int repeat = 0; repeat < 8; repeat++) {
            attention_now = (struct attention_case){.group = "factors", .num_rows = num_rows};
            kern_count_case();
            run_factors(kern);
        }
    }
}

/* ---- merge ---- */

static kern_fn *get_merge(const struct pkv_kernels *kernels, int index) {
    (void)index;
    return (kern_fn *)kernels->attention_merge;
}

static void place_merge(void) {
    const int64_t num_rows = attention_now.num_rows, stride = attention_now.stride;
    attention_floats_place(&acc, rng, num_rows * stride);
    attention_floats_place(&other, rng, num_rows * stride);
    attention_floats_place(&keeps, rng, num_rows);
    attention_floats_place(&adds, rng, num_rows);
    for (int64_t r = 0; r < num_rows; r++) {
        const bool is_special =
            attention_now.style == ATTENTION_SPECIAL && test_rng_below(rng, 4) == 0;
        keeps.data[r] = (float)test_rng_below(rng, 5) / 4;
        adds.data[r] = is_special && test_rng_below(rng, 4) == 0
                           ? NAN
                           : fabsf(attention_random(rng, ATTENTION_PLAIN));
        for (int64_t d = 0; d < attention_padded(attention_now.head_size); d++) {
            acc.data[r * stride + d] = attention_random(rng, attention_now.style);
            other.data[r * stride + d] = is_special && test_rng_below(rng, 9) == 0
                                             ? any_special()
                                             : attention_random(rng, attention_now.style);
        }
    }
    memcpy(old_acc, acc.data, (size_t)(num_rows * stride) * sizeof(float));
}

static void run_merge(const struct kern *kern) {
    const int64_t stride = attention_now.stride;
    place_merge();
    ((pkv_attention_merge_fn *)kern->tested)(acc.data, other.data, stride, keeps.data, adds.data,
                                             attention_now.num_rows, attention_now.head_size);
    attention_floats_check(&acc);
    for (int64_t r = 0; r < attention_now.num_rows; r++) {
        for (int64_t d = 0; d < stride; d++) {
            const int64_t i = r * stride + d;
            if (d < attention_padded(attention_now.head_size))
                kern_near("acc", r, d, (double)acc.data[i],
                          (double)fmaf(other.data[i], adds.data[r], old_acc[i] * keeps.data[r]), 0);
            else
                attention_floats_check_one(&acc, i);
        }
    }
}

static void check_merge(const struct kern *kern) {
    start(kern);
    attention_sizes(kern, run_merge);
}

/* ---- time ---- */

static const int64_t bench_rows[] = {1, 4, 16, 128};

static void call_softmax(kern_fn *fn) {
    memcpy(scores.data, before,
           (size_t)(attention_now.num_rows * PKV_ATTENTION_TILE) * sizeof(float));
    ((pkv_attention_softmax_fn *)fn)(scores.data, rows, attention_now.num_rows, PKV_ATTENTION_TILE,
                                     scale, softcap, maxima.data, sums.data);
}

static void call_factors(kern_fn *fn) {
    ((pkv_attention_factors_fn *)fn)(maxima.data, sums.data, other_maxima.data, other_sums.data,
                                     keeps.data, adds.data, attention_now.num_rows);
}

static void call_merge(kern_fn *fn) {
    ((pkv_attention_merge_fn *)fn)(acc.data, other.data, attention_now.stride, keeps.data,
                                   adds.data, attention_now.num_rows, attention_now.head_size);
}

static void bench_softmax(const struct kern *kern) {
    static const float caps[] = {0.0f, 50.0f};
    attention_now.num_tokens = PKV_ATTENTION_TILE;
    for (int64_t i = 0; i < COUNT(bench_rows); i++) {
        for (int64_t k = 0; k < COUNT(caps); k++) {
            char shape[64];
            attention_now.num_rows = bench_rows[i];
            random_case();
            scale = 1;
            softcap = caps[k];
            for (int64_t r = 0; r < bench_rows[i]; r++)
                rows[r] = (struct pkv_attention_row){.end = PKV_ATTENTION_TILE};
            for (int64_t n = 0; n < bench_rows[i] * PKV_ATTENTION_TILE; n++)
                before[n] = random_score(4);
            snprintf(shape, sizeof(shape), "%" PRId64 " rows of 256 scores, softcap %g",
                     bench_rows[i], (double)caps[k]);
            kern_time(kern, shape, bench_rows[i] * PKV_ATTENTION_TILE * (int64_t)sizeof(float),
                      call_softmax);
        }
    }
}

static void bench_factors(const struct kern *kern) {
    attention_now.num_rows = PKV_ATTENTION_MAX_ROWS;
    place_factors();
    kern_time(kern, "128 rows", PKV_ATTENTION_MAX_ROWS * 6 * (int64_t)sizeof(float), call_factors);
}

static void bench_merge(const struct kern *kern) {
    attention_now = (struct attention_case){
        .num_rows = PKV_ATTENTION_MAX_ROWS, .head_size = 128, .stride = 128};
    place_merge();
    memset(acc.data, 0, (size_t)acc.count * sizeof(float));
    memset(other.data, 0, (size_t)other.count * sizeof(float));
    kern_time(kern, "128 rows, head 128", PKV_ATTENTION_MAX_ROWS * 128 * 3 * (int64_t)sizeof(float),
              call_merge);
}

const struct kern_family kern_attention_softmax = {
    1, softmax_name, get_softmax, NULL, check_softmax, bench_softmax, describe_softmax};
const struct kern_family kern_attention_factors = {
    1, factors_name, get_factors, NULL, check_factors, bench_factors, attention_describe};
const struct kern_family kern_attention_merge = {1,           merge_name,  get_merge,         NULL,
                                                 check_merge, bench_merge, attention_describe};
