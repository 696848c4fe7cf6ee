/* SPDX-License-Identifier: MIT
 *
 * The two products of attention, query by key and weight by value: against sums in double within the bound of a
 * chain of roundings, against that chain itself where a version promises its order, and against the same kernel
 * called for fewer rows, for fewer tokens and at other addresses.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check_attention.h"

enum { BENCH_HEAD = 128 };

static const char *const scores_names[] = {"attention_scores_f32", "attention_scores_f16",
                                           "attention_scores_bf16"};
static const char *const values_names[] = {"attention_values_f32", "attention_values_f16",
                                           "attention_values_bf16"};

static const char *const scores_dot_name[] = {"attention_scores_dot"};
static const char *const values_dot_name[] = {"attention_values_dot"};

static struct attention_rows rows, moved;
static struct attention_floats scores, query, acc, weights, scratch, again;
static float decoded[PKV_ATTENTION_TILE * PKV_ATTENTION_MAX_HEAD_SIZE];
static float old_acc[PKV_ATTENTION_MAX_ROWS * ATTENTION_MAX_STRIDE];
static struct test_rng *rng;

/* Of the kernel under test: the type of its keys or values, and whether it adds by dot products of bfloat16. */
static int type;
static bool is_dot;

static void start(const struct kern *kern, int its_type, bool has_dots) {
    rng = kern->rng;
    type = its_type;
    is_dot = has_dots;
    if (rows.data != NULL)
        return;
    attention_rows_make(&rows, "keys or values", "offsets", "next_offsets");
    attention_rows_make(&moved, "moved keys or values", "moved offsets", "moved next_offsets");
    attention_floats_make(&scores, "scores", PKV_ATTENTION_MAX_ROWS * PKV_ATTENTION_TILE);
    attention_floats_make(&weights, "weights", PKV_ATTENTION_MAX_ROWS * PKV_ATTENTION_TILE);
    attention_floats_make(&query, "query", PKV_ATTENTION_MAX_ROWS * ATTENTION_MAX_STRIDE);
    attention_floats_make(&acc, "acc", PKV_ATTENTION_MAX_ROWS * ATTENTION_MAX_STRIDE);
    attention_floats_make(&again, "scores or acc of another call",
                          PKV_ATTENTION_MAX_ROWS * ATTENTION_MAX_STRIDE);
    attention_floats_make(&scratch, "scratch", PKV_ATTENTION_SCRATCH);
}

/* One sum three times: in double, its magnitudes, and as the chain of fused float32 steps; and the magnitudes of
 * the products in which a factor is denormal. */
struct sum {
    double sum, magnitude, denormal;
    float chain;
    int64_t num_steps;
};

static inline void add_product(struct sum *sum, float a, float b) {
    const double product = (double)a * (double)b;
    sum->sum += product;
    sum->magnitude += fabs(product);
    if (fabsf(a) < 0x1p-126f || fabsf(b) < 0x1p-126f)
        sum->denormal += fabs(product);
    sum->chain = fmaf(a, b, sum->chain);
    sum->num_steps++;
}

/* A dot product has one factor rounded to bfloat16 and takes what is denormal for 0. */
static double bound_of(const struct sum *sum) {
    const double num_roundings = (double)(sum->num_steps + 2);
    if (is_dot)
        return sum->magnitude * (0x1p-8 + num_roundings * ATTENTION_ULP) + sum->denormal +
               num_roundings * 0x1p-126;
    return num_roundings * (sum->magnitude * ATTENTION_ULP + ATTENTION_TINY);
}

/* The C version adds in double, dot products in pairs; every other one promises the chain. */
static bool has_chains(const struct kern *kern) {
    return kern->tested != kern->c && !is_dot;
}

static void compare_sum(const struct kern *kern, const char *name, int64_t r, int64_t i, float is,
                        const struct sum *sum) {
    kern_near(name, r, i, (double)is, sum->sum, bound_of(sum));
    if (has_chains(kern) && !attention_same(is, sum->chain))
        kern_fail("%s[%" PRId64 "][%" PRId64 "] is %.9g, the chain of fused steps gives %.9g", name,
                  r, i, (double)is, (double)sum->chain);
}

/* ---- scores ---- */

static kern_fn *get_scores(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->attention_scores[index];
}

/* Where a level has none, those of float32 products take their place. */
static kern_fn *get_scores_dot(const struct pkv_kernels *kernels, int index) {
    (void)index;
    return (kern_fn *)(kernels->attention_scores_dot
                           ? kernels->attention_scores_dot
                           : kernels->attention_scores[PKV_ATTENTION_BF16]);
}

static void fill_query(void) {
    const int64_t stride = attention_now.stride;
    const int style =
        attention_now.style == ATTENTION_TINY_NUMBERS ? ATTENTION_PLAIN : attention_now.style;
    attention_floats_place(&query, rng, attention_now.num_rows * stride);
    for (int64_t r = 0; r < attention_now.num_rows; r++) {
        for (int64_t d = 0; d < attention_now.head_size; d++)
            query.data[r * stride + d] = attention_random(rng, style);
        if (style == ATTENTION_SPECIAL && test_rng_below(rng, 8) == 0)
            query.data[r * stride + test_rng_below(rng, attention_now.head_size)] =
                test_rng_below(rng, 2) == 0 ? NAN : -INFINITY;
    }
}

static void compare_scores(const struct kern *kern) {
    const int64_t head_size = attention_now.head_size;
    for (int64_t r = 0; r < attention_now.num_rows; r++) {
        for (int64_t t = 0; t < attention_now.num_tokens; t++) {
            struct sum sum = {0};
            for (int64_t d = 0; d < head_size; d++)
                add_product(&sum, query.data[r * attention_now.stride + d],
                            decoded[t * head_size + d]);
            compare_sum(kern, "scores", r, t, scores.data[r * PKV_ATTENTION_TILE + t], &sum);
        }
    }
}

static int64_t one_token(int64_t row) {
    (void)row;
    return 1;
}

static void scores_again(const struct kern *kern) {
    struct attention_part part = attention_random_part(rng, one_token);
    struct attention_rows *keys = &rows;
    if (test_rng_below(rng, 2) == 0) {
        attention_rows_move(&moved, &rows, rng, type);
        keys = &moved;
    }
    struct pkv_attention_tokens tokens = keys->tokens;
    tokens.num_tokens = part.num_tokens;
    attention_floats_place(&again, rng, part.num_rows * PKV_ATTENTION_TILE);
    attention_floats_place(&scratch, rng, PKV_ATTENTION_SCRATCH);
    ((pkv_attention_scores_fn *)kern->tested)(
        again.data, query.data + part.first_row * attention_now.stride, attention_now.stride,
        part.num_rows, &tokens, attention_now.head_size, scratch.data);
    attention_floats_check(&again);
    for (int64_t r = 0; r < part.num_rows; r++)
        attention_compare_row("scores", again.data + r * PKV_ATTENTION_TILE,
                              scores.data + (part.first_row + r) * PKV_ATTENTION_TILE,
                              part.num_tokens, part.first_row + r, &part);
}

static void run_scores(const struct kern *kern) {
    const int64_t num_rows = attention_now.num_rows;
    attention_rows_place(&rows, rng, type, attention_now.num_tokens, attention_now.head_size,
                         test_rng_below(rng, 3) == 0);
    attention_rows_fill(&rows, rng, type, NULL);
    attention_rows_decode(&rows, type, decoded);
    fill_query();
    attention_floats_place(&scores, rng, num_rows * PKV_ATTENTION_TILE);
    attention_floats_place(&scratch, rng, PKV_ATTENTION_SCRATCH);
    ((pkv_attention_scores_fn *)kern->tested)(scores.data, query.data, attention_now.stride,
                                              num_rows, &rows.tokens, attention_now.head_size,
                                              scratch.data);
    attention_floats_check(&scores);
    attention_floats_check(&scratch);
    compare_scores(kern);
    for (int repeat = 0; repeat < 2; repeat++)
        scores_again(kern);
}

static void check_scores(const struct kern *kern) {
    start(kern, kern->index, false);
    attention_sizes(kern, run_scores);
}

static void check_scores_dot(const struct kern *kern) {
    start(kern, PKV_ATTENTION_BF16, true);
    attention_sizes(kern, run_scores);
}

/* ---- values ---- */

static kern_fn *get_values(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->attention_values[index];
}

static kern_fn *get_values_dot(const struct pkv_kernels *kernels, int index) {
    (void)index;
    return (kern_fn *)(kernels->attention_values_dot
                           ? kernels->attention_values_dot
                           : kernels->attention_values[PKV_ATTENTION_BF16]);
}

/* Rows that see all tokens, some of them, the first ones or none, and tokens that no row sees. Weights need no
 * alignment: they may be a part of longer rows. */
static void fill_weights(const bool *poisoned) {
    const bool hides_poison = test_rng_below(rng, 2) == 0;
    const int64_t count =
        (attention_now.num_rows - 1) * PKV_ATTENTION_TILE + attention_now.num_tokens;
    attention_floats_place(&weights, rng, count);
    if (test_rng_below(rng, 2) == 0)
        weights.data = (float *)(void *)(weights.buffer->data + weights.buffer->bytes) - count;
    for (int64_t r = 0; r < attention_now.num_rows; r++) {
        const int64_t kind = test_rng_below(rng, 5);
        const int64_t end = kind == 0   ? test_rng_between(rng, 0, attention_now.num_tokens)
                            : kind == 1 ? 0
                                        : attention_now.num_tokens;
        float *row = weights.data + r * PKV_ATTENTION_TILE;
        for (int64_t t = 0; t < attention_now.num_tokens; t++) {
            const float weight = fabsf(attention_random(rng, attention_now.style)) / 4;
            const bool is_hidden = poisoned[t] && (hides_poison || test_rng_below(rng, 4) > 0);
            const bool is_unseen = t >= end || (kind == 2 && test_rng_below(rng, 3) == 0);
            row[t] = is_hidden || is_unseen ? 0.0f : weight;
        }
        if (attention_now.style == ATTENTION_SPECIAL && test_rng_below(rng, 10) == 0)
            row[test_rng_below(rng, attention_now.num_tokens)] = NAN;
    }
}

static int64_t last_seen(int64_t row) {
    int64_t last = attention_now.num_tokens;
    while (last > 0 && weights.data[row * PKV_ATTENTION_TILE + last - 1] == 0)
        last--;
    return last;
}

/* What the sums go on from, if they do; some of it may be no numbers. */
static void fill_acc(bool starts) {
    const int64_t num_rows = attention_now.num_rows, stride = attention_now.stride;
    const int64_t padded = attention_padded(attention_now.head_size);
    attention_floats_place(&acc, rng, num_rows * stride);
    for (int64_t r = 0; !starts && r < num_rows; r++) {
        for (int64_t d = 0; d < padded; d++)
            acc.data[r * stride + d] = attention_random(rng, attention_now.style);
        if (attention_now.style == ATTENTION_SPECIAL && test_rng_below(rng, 10) == 0)
            acc.data[r * stride + test_rng_below(rng, padded)] =
                test_rng_below(rng, 2) == 0 ? NAN : INFINITY;
    }
    memcpy(old_acc, acc.data, (size_t)(num_rows * stride) * sizeof(float));
}

static void compare_values(const struct kern *kern, bool starts) {
    const int64_t head_size = attention_now.head_size, stride = attention_now.stride;
    for (int64_t r = 0; r < attention_now.num_rows; r++) {
        for (int64_t d = 0; d < head_size; d++) {
            const float first = starts ? 0 : old_acc[r * stride + d];
            struct sum sum = {
                .sum = (double)first, .magnitude = fabs((double)first), .chain = first};
            for (int64_t t = 0; t < attention_now.num_tokens; t++) {
                const float weight = weights.data[r * PKV_ATTENTION_TILE + t];
                if (weight != 0)
                    add_product(&sum, weight, decoded[t * head_size + d]);
            }
            compare_sum(kern, "acc", r, d, acc.data[r * stride + d], &sum);
        }
        for (int64_t d = attention_padded(head_size); d < stride; d++)
            attention_floats_check_one(&acc, r * stride + d);
    }
}

/* The values of a part to `again`: by one call, or by one for the first tokens and one for the others. Where
 * sums are chains, that is the same. */
static void call_part(const struct kern *kern, const struct attention_part *part, int64_t stride,
                      const struct pkv_attention_tokens *all, bool starts) {
    struct pkv_attention_tokens tokens = *all;
    const bool divides = has_chains(kern) && test_rng_below(rng, 2) == 0;
    const int64_t cut = divides ? test_rng_below(rng, part->num_tokens) : 0;
    const float *from = weights.data + part->first_row * PKV_ATTENTION_TILE;
    if (cut > 0) {
        tokens.num_tokens = cut;
        ((pkv_attention_values_fn *)kern->tested)(again.data, stride, starts, from, part->num_rows,
                                                  &tokens, attention_now.head_size, scratch.data);
    }
    tokens.offsets += cut;
    tokens.num_tokens = part->num_tokens - cut;
    ((pkv_attention_values_fn *)kern->tested)(again.data, stride, starts && cut == 0, from + cut,
                                              part->num_rows, &tokens, attention_now.head_size,
                                              scratch.data);
}

static void values_again(const struct kern *kern, bool starts) {
    const struct attention_part part = attention_random_part(rng, last_seen);
    const int64_t stride = attention_padded(attention_now.head_size) + 16 * test_rng_below(rng, 4);
    const struct attention_rows *values = &rows;
    if (test_rng_below(rng, 2) == 0) {
        attention_rows_move(&moved, &rows, rng, type);
        values = &moved;
    }
    attention_floats_place(&again, rng, part.num_rows * stride);
    attention_floats_place(&scratch, rng, PKV_ATTENTION_SCRATCH);
    for (int64_t r = 0; !starts && r < part.num_rows; r++)
        memcpy(again.data + r * stride, old_acc + (part.first_row + r) * attention_now.stride,
               (size_t)attention_padded(attention_now.head_size) * sizeof(float));
    call_part(kern, &part, stride, &values->tokens, starts);
    attention_floats_check(&again);
    for (int64_t r = 0; r < part.num_rows; r++)
        attention_compare_row("acc", again.data + r * stride,
                              acc.data + (part.first_row + r) * attention_now.stride,
                              attention_now.head_size, part.first_row + r, &part);
}

static void run_values(const struct kern *kern) {
    bool poisoned[PKV_ATTENTION_TILE];
    const bool starts = test_rng_below(rng, 2) == 0;
    attention_rows_place(&rows, rng, type, attention_now.num_tokens, attention_now.head_size,
                         attention_now.style != ATTENTION_SPECIAL && test_rng_below(rng, 3) == 0);
    attention_rows_fill(&rows, rng, type, poisoned);
    attention_rows_decode(&rows, type, decoded);
    fill_weights(poisoned);
    fill_acc(starts);
    attention_floats_place(&scratch, rng, PKV_ATTENTION_SCRATCH);
    ((pkv_attention_values_fn *)kern->tested)(acc.data, attention_now.stride, starts, weights.data,
                                              attention_now.num_rows, &rows.tokens,
                                              attention_now.head_size, scratch.data);
    attention_floats_check(&acc);
    attention_floats_check(&scratch);
    compare_values(kern, starts);
    /* Sums of dot products that meet what is not finite are done again in another way. */
    if (is_dot && attention_now.style == ATTENTION_SPECIAL)
        return;
    for (int repeat = 0; repeat < 2; repeat++)
        values_again(kern, starts);
}

static void check_values(const struct kern *kern) {
    start(kern, kern->index, false);
    attention_sizes(kern, run_values);
}

static void check_values_dot(const struct kern *kern) {
    start(kern, PKV_ATTENTION_BF16, true);
    attention_sizes(kern, run_values);
}

/* ---- time ---- */

static const int64_t bench_rows[] = {1, 4, 8, 16, 128};

static void call_scores(kern_fn *fn) {
    ((pkv_attention_scores_fn *)fn)(scores.data, query.data, BENCH_HEAD, attention_now.num_rows,
                                    &rows.tokens, BENCH_HEAD, scratch.data);
}

static void call_values(kern_fn *fn) {
    ((pkv_attention_values_fn *)fn)(acc.data, BENCH_HEAD, true, weights.data,
                                    attention_now.num_rows, &rows.tokens, BENCH_HEAD, scratch.data);
}

/* One head of a cache with a block of the tile's size, all of it in the first- or second-level cache. */
static void bench_products(const struct kern *kern, void (*call)(kern_fn *)) {
    const int64_t row_bytes = BENCH_HEAD * attention_bytes(type);
    attention_now = (struct attention_case){.group = "bench",
                                            .head_size = BENCH_HEAD,
                                            .num_tokens = PKV_ATTENTION_TILE,
                                            .stride = BENCH_HEAD,
                                            .style = ATTENTION_PLAIN};
    attention_rows_place(&rows, rng, type, PKV_ATTENTION_TILE, BENCH_HEAD, false);
    int64_t *offsets =
        (int64_t *)(void *)(rows.offsets->data + rows.offsets->bytes) - PKV_ATTENTION_TILE;
    for (int64_t t = 0; t < PKV_ATTENTION_TILE; t++)
        offsets[t] = t * row_bytes;
    rows.tokens.base = (const char *)rows.data->data;
    rows.tokens.num_next = 0;
    attention_rows_fill(&rows, rng, type, NULL);
    attention_floats_place(&scratch, rng, PKV_ATTENTION_SCRATCH);
    attention_floats_place(&scores, rng, PKV_ATTENTION_MAX_ROWS * PKV_ATTENTION_TILE);
    attention_floats_place(&weights, rng, PKV_ATTENTION_MAX_ROWS * PKV_ATTENTION_TILE);
    attention_floats_place(&query, rng, PKV_ATTENTION_MAX_ROWS * BENCH_HEAD);
    attention_floats_place(&acc, rng, PKV_ATTENTION_MAX_ROWS * BENCH_HEAD);
    for (int64_t i = 0; i < weights.count; i++)
        weights.data[i] = fabsf(attention_random(rng, ATTENTION_PLAIN));
    for (int64_t i = 0; i < query.count; i++)
        query.data[i] = attention_random(rng, ATTENTION_PLAIN);
    for (int64_t i = 0; i < COUNT(bench_rows); i++) {
        char shape[64];
        attention_now.num_rows = bench_rows[i];
        snprintf(shape, sizeof(shape), "%" PRId64 " rows, 256 tokens, head 128", bench_rows[i]);
        kern_time_flops(kern, shape, 2 * bench_rows[i] * PKV_ATTENTION_TILE * BENCH_HEAD, call);
    }
}

static void bench_scores(const struct kern *kern) {
    bench_products(kern, call_scores);
}

static void bench_values(const struct kern *kern) {
    bench_products(kern, call_values);
}

const struct kern_family kern_attention_scores = {.num_entries = PKV_NUM_ATTENTION_TYPES,
                                                  .names = scores_names,
                                                  .get = get_scores,
                                                  .check = check_scores,
                                                  .bench = bench_scores,
                                                  .describe = attention_describe};
const struct kern_family kern_attention_values = {.num_entries = PKV_NUM_ATTENTION_TYPES,
                                                  .names = values_names,
                                                  .get = get_values,
                                                  .check = check_values,
                                                  .bench = bench_values,
                                                  .describe = attention_describe};
const struct kern_family kern_attention_scores_dot = {.num_entries = 1,
                                                      .names = scores_dot_name,
                                                      .get = get_scores_dot,
                                                      .check = check_scores_dot,
                                                      .bench = bench_scores,
                                                      .describe = attention_describe};
const struct kern_family kern_attention_values_dot = {.num_entries = 1,
                                                      .names = values_dot_name,
                                                      .get = get_values_dot,
                                                      .check = check_values_dot,
                                                      .bench = bench_values,
                                                      .describe = attention_describe};
