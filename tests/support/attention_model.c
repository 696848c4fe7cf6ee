/* SPDX-License-Identifier: MIT
 *
 * Draws the arrays of attention_model.h. Rows are cut out of a pool of numbers that each dtype
 * holds exactly: faster than drawing every element.
 */
#include "attention_model.h"

#include <pagedkv/cache.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

enum { POOL = 1 << 14, MAX_ROW = 1024 };

static float *allocate(int64_t count) {
    float *memory = malloc(((size_t)count + 1) * sizeof(*memory));

    if (memory == NULL) {
        perror("attn_problem_make");
        exit(1);
    }
    return memory;
}

/* Numbers of all sizes below 1, and a few zeros, with as many bits as the dtype keeps. None is so
 * small that a quarter of it would be a denormal of float16. */
static void fill_pool(float *pool, int32_t dtype, struct test_rng *rng) {
    int kept = num_format_of(dtype)->mantissa_bits;

    for (int64_t i = 0; i < POOL + MAX_ROW; i++) {
        float value = (float)test_rng_between(rng, -(1 << 23), 1 << 23) / (1 << 23);
        uint32_t bits;

        if (fabsf(value) < 0x1p-8f) {
            value = 0;
        }
        memcpy(&bits, &value, sizeof(bits));
        bits &= UINT32_MAX << (23 - kept);
        memcpy(&pool[i], &bits, sizeof(bits));
    }
}

/* Rows of that size; each has an amplitude of its own, up to the one given. */
static float *draw_rows(int64_t num_rows, int64_t size, int32_t dtype, int64_t amplitude,
                        struct test_rng *rng) {
    float *pool = allocate(POOL + MAX_ROW);
    float *rows = allocate(num_rows * size);

    fill_pool(pool, dtype, rng);
    for (int64_t r = 0; r < num_rows; r++) {
        const float *from = pool + test_rng_below(rng, POOL);
        float factor = (float)amplitude / (float)(1 << test_rng_below(rng, 3));

        for (int64_t d = 0; d < size; d++) {
            rows[r * size + d] = from[d] * factor;
        }
    }
    free(pool);
    return rows;
}

/* Booleans see three positions of four; numbers are added, and minus infinity comes up, too. Some
 * rows see nothing, some everything. */
static float *draw_mask(const struct attn_sizes *sizes, int64_t num_queries, struct test_rng *rng) {
    int64_t width = sizes->mask_width;
    float *mask = allocate(num_queries * width);

    for (int64_t i = 0; i < num_queries; i++) {
        int64_t kind = test_rng_below(rng, 8);

        for (int64_t c = 0; c < width; c++) {
            int is_seen = kind == 0 ? 0 : kind == 1 ? 1 : test_rng_below(rng, 4) > 0;
            float bias =
                sizes->mask == ATTN_MASK_BOOL ? 0 : (float)test_rng_between(rng, -1000, 1000) / 256;

            mask[i * width + c] = is_seen ? bias : -INFINITY;
        }
    }
    return mask;
}

static int64_t smallest(int64_t a, int64_t b, int64_t c) {
    int64_t least = a < b ? a : b;

    return least < c ? least : c;
}

/* Takes the shared tokens from the sequences before, which agree about them. */
static void share(struct attn_problem *problem, int64_t b) {
    const struct attn_sizes *sizes = &problem->sizes;

    for (int64_t from = 0; from < b; from++) {
        int64_t rows = smallest(sizes->num_shared, sizes->num_tokens[b], sizes->num_tokens[from]) *
                       sizes->num_kv_heads;

        memcpy(problem->arrays[b][1], problem->arrays[from][1],
               (size_t)(rows * sizes->head_size) * sizeof(float));
        memcpy(problem->arrays[b][2], problem->arrays[from][2],
               (size_t)(rows * sizes->value_head_size) * sizeof(float));
    }
}

static void draw_sequence(struct attn_problem *problem, int64_t b, struct test_rng *rng) {
    const struct attn_sizes *sizes = &problem->sizes;
    int64_t amplitude = sizes->amplitude > 0 ? sizes->amplitude : 1;
    int64_t num_rows = sizes->num_tokens[b] * sizes->num_kv_heads;
    float **arrays = problem->arrays[b];

    arrays[0] = draw_rows(sizes->num_queries[b] * sizes->num_heads, sizes->head_size,
                          sizes->query_dtype, amplitude, rng);
    arrays[1] = draw_rows(num_rows, sizes->head_size, sizes->key_dtype, amplitude, rng);
    arrays[2] = sizes->is_mla
                    ? allocate(num_rows * sizes->value_head_size)
                    : draw_rows(num_rows, sizes->value_head_size, sizes->value_dtype, 4, rng);
    if (sizes->mask != ATTN_MASK_NONE) {
        arrays[3] = draw_mask(sizes, sizes->num_queries[b], rng);
    }
    share(problem, b);
    for (int64_t r = 0; r < num_rows && sizes->is_mla; r++) {
        memcpy(arrays[2] + r * sizes->value_head_size, arrays[1] + r * sizes->head_size,
               (size_t)sizes->value_head_size * sizeof(float));
    }
    problem->seqs[b] = (struct attn_ref_seq){.num_queries = sizes->num_queries[b],
                                             .num_tokens = sizes->num_tokens[b],
                                             .query = arrays[0],
                                             .key = arrays[1],
                                             .value = arrays[2],
                                             .mask = arrays[3],
                                             .mask_width = arrays[3] ? sizes->mask_width : 0};
}

static int is_seen(const struct attn_problem *problem, int64_t b, int64_t j) {
    for (int64_t i = problem->seqs[b].num_queries - 1; i >= 0; i--) {
        if (attn_ref_sees(&problem->ref, &problem->seqs[b], i, j)) {
            return 1;
        }
    }
    return 0;
}

static void fill(float *row, int64_t count, float value) {
    for (int64_t i = 0; i < count; i++) {
        row[i] = value;
    }
}

/* A shared position is seen when any sequence sees it. */
static void poison(struct attn_problem *problem) {
    const struct attn_sizes *sizes = &problem->sizes;

    for (int64_t b = 0; b < sizes->num_seqs; b++) {
        for (int64_t j = 0; j < sizes->num_tokens[b]; j++) {
            int keep = is_seen(problem, b, j);

            for (int64_t other = 0; j < sizes->num_shared && other < sizes->num_seqs; other++) {
                keep = keep || (j < sizes->num_tokens[other] && is_seen(problem, other, j));
            }
            if (!keep) {
                int64_t key_row = sizes->num_kv_heads * sizes->head_size;
                int64_t value_row = sizes->num_kv_heads * sizes->value_head_size;

                fill(problem->arrays[b][1] + j * key_row, key_row, NAN);
                fill(problem->arrays[b][2] + j * value_row, value_row, NAN);
            }
        }
    }
}

static void draw_heads(struct attn_problem *problem, struct test_rng *rng) {
    for (int64_t h = 0; h < problem->sizes.num_heads; h++) {
        problem->slopes[h] = (float)test_rng_between(rng, -100, 500) / 1000;
        problem->sinks[h] = test_rng_below(rng, 6) == 0
                                ? -INFINITY
                                : (float)test_rng_between(rng, -4000, 4000) / 700;
    }
}

struct attn_problem *attn_problem_make(const struct attn_sizes *sizes, struct test_rng *rng) {
    struct attn_problem *problem = calloc(1, sizeof(*problem));

    if (problem == NULL) {
        perror("attn_problem_make");
        exit(1);
    }
    problem->sizes = *sizes;
    draw_heads(problem, rng);
    problem->ref = (struct attn_ref_options){
        .num_heads = sizes->num_heads,
        .num_kv_heads = sizes->num_kv_heads,
        .head_size = sizes->head_size,
        .value_head_size = sizes->value_head_size,
        .scale = (double)sizes->scale,
        .softcap = (double)sizes->softcap,
        .is_causal = !sizes->is_non_causal,
        .max_left = sizes->max_left,
        .max_right = sizes->max_right,
        .is_base_2 = sizes->is_base_2,
        .out_dtype = sizes->out_dtype,
        .slopes = sizes->has_slopes ? problem->slopes : NULL,
        .sinks = sizes->has_sinks ? problem->sinks : NULL,
    };
    for (int64_t b = 0; b < sizes->num_seqs; b++) {
        draw_sequence(problem, b, rng);
        problem->first_rows[b + 1] = problem->first_rows[b] + sizes->num_queries[b];
    }
    poison(problem);
    return problem;
}

void attn_problem_free(struct attn_problem *problem) {
    for (int64_t b = 0; b < problem->sizes.num_seqs; b++) {
        for (int k = 0; k < 4; k++) {
            free(problem->arrays[b][k]);
        }
    }
    free(problem);
}

struct attn_answer attn_answer_make(const struct attn_problem *problem) {
    int64_t num_lse = problem->first_rows[problem->sizes.num_seqs] * problem->sizes.num_heads;
    int64_t num_out = num_lse * problem->sizes.value_head_size;
    struct attn_answer answer = {.num_out = num_out, .num_lse = num_lse};

    answer.out = calloc((size_t)num_out + 1, sizeof(*answer.out));
    answer.lse = calloc((size_t)num_lse + 1, sizeof(*answer.lse));
    if (answer.out == NULL || answer.lse == NULL) {
        perror("attn_answer_make");
        exit(1);
    }
    return answer;
}

void attn_answer_free(struct attn_answer *answer) {
    free(answer->out);
    free(answer->lse);
    *answer = (struct attn_answer){0};
}

int attn_answers_are_equal(const struct attn_answer *one, const struct attn_answer *other) {
    return one->num_out == other->num_out &&
           memcmp(one->out, other->out, (size_t)one->num_out * sizeof(*one->out)) == 0 &&
           memcmp(one->lse, other->lse, (size_t)one->num_lse * sizeof(*one->lse)) == 0;
}

static double *allocate_doubles(int64_t count) {
    double *memory = malloc(((size_t)count + 1) * sizeof(*memory));

    if (memory == NULL) {
        perror("attn_expected_make");
        exit(1);
    }
    return memory;
}

static void expect_row(struct attn_expected *expected, const struct attn_problem *problem,
                       int64_t b, int64_t i) {
    int64_t heads = problem->sizes.num_heads;
    int64_t size = problem->sizes.value_head_size;

    for (int64_t h = 0; h < heads; h++) {
        int64_t at = expected->num_rows * heads + h;
        struct attn_ref_row row = {.out = expected->out + at * size,
                                   .bounds = expected->out_bounds + at * size};

        attn_ref_row(&problem->ref, &problem->seqs[b], i, h, &row);
        expected->lse[at] = row.lse;
        expected->lse_bounds[at] = row.lse_bound;
    }
    expected->rows[expected->num_rows++] = problem->first_rows[b] + i;
}

struct attn_expected attn_expected_make(const struct attn_problem *problem, int64_t every) {
    int64_t num_rows = problem->first_rows[problem->sizes.num_seqs];
    int64_t num_lse = num_rows * problem->sizes.num_heads;
    int64_t num_out = num_lse * problem->sizes.value_head_size;
    struct attn_expected expected = {.out = allocate_doubles(num_out),
                                     .out_bounds = allocate_doubles(num_out),
                                     .lse = allocate_doubles(num_lse),
                                     .lse_bounds = allocate_doubles(num_lse)};

    expected.rows = calloc((size_t)num_rows + 1, sizeof(*expected.rows));
    if (expected.rows == NULL) {
        perror("attn_expected_make");
        exit(1);
    }
    for (int64_t b = 0; b < problem->sizes.num_seqs; b++) {
        for (int64_t i = 0; i < problem->sizes.num_queries[b]; i++) {
            if (i % every == 0 || i + 1 == problem->sizes.num_queries[b]) {
                expect_row(&expected, problem, b, i);
            }
        }
    }
    return expected;
}

void attn_expected_free(struct attn_expected *expected) {
    free(expected->rows);
    free(expected->out);
    free(expected->out_bounds);
    free(expected->lse);
    free(expected->lse_bounds);
    *expected = (struct attn_expected){0};
}

/* How much of its bound a number uses up. */
static double usage(double got, double wanted, double bound) {
    if (isnan(wanted) || isnan(got)) {
        return isnan(wanted) && isnan(got) ? 0 : (double)INFINITY;
    }
    if (got == wanted) {
        return 0;
    }
    return bound > 0 ? fabs(got - wanted) / bound : (double)INFINITY;
}

struct worst {
    double usage;
    const char *what;
    int64_t row, head, d;
    double got, wanted, bound;
};

static void look(struct worst *worst, const char *what, int64_t row, int64_t head, int64_t d,
                 double got, double wanted, double bound) {
    double used = usage(got, wanted, bound);

    if (used > worst->usage) {
        *worst = (struct worst){used, what, row, head, d, got, wanted, bound};
    }
}

double attn_expected_compare(const struct attn_expected *expected,
                             const struct attn_problem *problem, const struct attn_answer *answer) {
    const struct num_format *f32 = num_format_of(PKV_DTYPE_F32);
    const struct num_format *format = num_format_of(problem->sizes.out_dtype);
    int64_t heads = problem->sizes.num_heads, size = problem->sizes.value_head_size;
    struct worst worst = {0};

    for (int64_t r = 0; r < expected->num_rows; r++) {
        int64_t row = expected->rows[r];

        for (int64_t h = 0; h < heads; h++) {
            int64_t to = row * heads + h, from = r * heads + h;

            look(&worst, "lse", row, h, 0, num_float_of_code(f32, answer->lse[to]),
                 expected->lse[from], expected->lse_bounds[from]);
            for (int64_t d = 0; d < size; d++) {
                look(&worst, "out", row, h, d,
                     num_float_of_code(format, answer->out[to * size + d]),
                     expected->out[from * size + d], expected->out_bounds[from * size + d]);
            }
        }
    }
    if (worst.usage > 1) {
        fprintf(stderr, "%s of query %d, head %d, element %d is %.9g, not %.9g +- %.3g\n",
                worst.what, (int)worst.row, (int)worst.head, (int)worst.d, worst.got, worst.wanted,
                worst.bound);
    }
    return worst.usage;
}
