/* SPDX-License-Identifier: MIT
 *
 * See attention_reference.h. Scores, weights, sums: three plain loops, and beside each the error
 * that they may have.
 */
#include "attention_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "numbers.h"

/* Half the distance between 1 and the next number, of float32 and of bfloat16. */
static const double unit = 1.0 / 16777216;
static const double unit_bf16 = 1.0 / 256;
/* A weight below it, beside the 1 of the largest score, may count or be rounded to 0. */
static const double smallest = 0x1p-120;

enum { TILE = 256 };

/* What a row sees: scores, and what becomes of them. */
struct seen {
    int64_t count;
    int64_t *positions;
    double *weights; /* scores at first */
    double *errors;  /* of the scores at first, then of the weights, relative */
};

static int64_t position_of(const struct attn_ref_seq *seq, int64_t i) {
    return seq->num_tokens - seq->num_queries + i;
}

/* What the mask adds to position j. */
static double bias_of(const struct attn_ref_seq *seq, int64_t i, int64_t j) {
    int64_t column = j - (seq->num_tokens - seq->mask_width);

    return seq->mask != NULL && column >= 0 ? (double)seq->mask[i * seq->mask_width + column] : 0;
}

int attn_ref_sees(const struct attn_ref_options *options, const struct attn_ref_seq *seq, int64_t i,
                  int64_t j) {
    int64_t right = j - position_of(seq, i);

    if (right > 0 &&
        (options->is_causal || (options->max_right > 0 && right >= options->max_right))) {
        return 0;
    }
    if (options->max_left > 0 && -right >= options->max_left) {
        return 0;
    }
    return bias_of(seq, i, j) != -(double)INFINITY;
}

/* Score and error of position j. */
static double score_of(const struct attn_ref_options *options, const struct attn_ref_seq *seq,
                       int64_t i, int64_t head, int64_t j, double *error) {
    int64_t size = options->head_size;
    int64_t kv_head = head / (options->num_heads / options->num_kv_heads);
    const float *query = seq->query + (i * options->num_heads + head) * size;
    const float *key = seq->key + (j * options->num_kv_heads + kv_head) * size;
    double scale = options->scale != 0 ? options->scale : 1 / sqrt((double)size);
    double alibi = options->slopes != NULL
                       ? (double)options->slopes[head] * (double)(j - position_of(seq, i))
                       : 0;
    double bias = bias_of(seq, i, j);
    double product = 0, magnitude = 0, score;

    for (int64_t d = 0; d < size; d++) {
        double term = (double)query[d] * (double)key[d];

        product += term;
        magnitude += fabs(term);
    }
    score = scale * product;
    magnitude *= fabs(scale);
    *error = (fmin((double)size, (double)size / 4 + 9) + 10) * unit * magnitude;
    if (options->has_bf16_products) {
        *error += 1.01 * unit_bf16 * magnitude;
    }
    if (options->softcap != 0) {
        score = options->softcap * tanh(score / options->softcap);
        *error += 8 * unit * options->softcap;
    }
    *error += 4 * unit * (fabs(score) + fabs(alibi) + fabs(bias));
    return score + alibi + bias;
}

static void *allocate(int64_t count, size_t bytes) {
    void *memory = calloc((size_t)count + 1, bytes);

    if (memory == NULL) {
        perror("attn_ref_row");
        exit(1);
    }
    return memory;
}

static void find_scores(const struct attn_ref_options *options, const struct attn_ref_seq *seq,
                        int64_t i, int64_t head, struct seen *seen) {
    seen->positions = allocate(seq->num_tokens, sizeof(*seen->positions));
    seen->weights = allocate(seq->num_tokens, sizeof(*seen->weights));
    seen->errors = allocate(seq->num_tokens, sizeof(*seen->errors));
    seen->count = 0;
    for (int64_t j = 0; j < seq->num_tokens; j++) {
        if (attn_ref_sees(options, seq, i, j)) {
            int64_t at = seen->count++;

            seen->positions[at] = j;
            seen->weights[at] = score_of(options, seq, i, head, j, &seen->errors[at]);
        }
    }
}

/* A sum with its error. */
struct sum {
    double max;   /* score of weight 1 */
    double total; /* of the weights */
    double error; /* sum of weight * relative error, over total */
};

/* The relative error of exp(score - max), of a score that is off by error. */
static double weight_error(double score, double max, double error, int64_t depth) {
    return expm1(error + 4 * unit * fabs(score - max) + 12 * unit * (double)(depth + 1));
}

static int64_t tree_depth(int64_t num_tokens) {
    int64_t depth = 1;

    for (int64_t tiles = num_tokens / TILE + 2; tiles > 1; tiles = (tiles + 1) / 2) {
        depth++;
    }
    return depth;
}

/* Scores to weights, and their sum; a sink is one more weight. */
static struct sum find_weights(struct seen *seen, double sink, int64_t depth) {
    struct sum sum = {.max = sink};
    double error = 0;

    /* What is not a number stays the maximum. */
    for (int64_t t = 0; t < seen->count && !isnan(sum.max); t++) {
        if (!(seen->weights[t] <= sum.max)) {
            sum.max = seen->weights[t];
        }
    }
    if (sink != -(double)INFINITY) {
        sum.total = exp(sink - sum.max);
        error = sum.total * weight_error(sink, sum.max, 0, depth);
    }
    for (int64_t t = 0; t < seen->count; t++) {
        seen->errors[t] = weight_error(seen->weights[t], sum.max, seen->errors[t], depth);
        seen->weights[t] = exp(seen->weights[t] - sum.max);
        sum.total += seen->weights[t];
        error += seen->weights[t] * seen->errors[t];
    }
    sum.error = error / sum.total;
    return sum;
}

/* A float32 of no larger magnitude is off by so much, or its dtype's smallest step. */
double attn_ref_rounding(int32_t dtype, double magnitude) {
    const struct num_format *format = num_format_of(dtype);

    return ldexp(magnitude, -1 - format->mantissa_bits) +
           ldexp(1, -format->bias - format->mantissa_bits);
}

static void find_out(const struct attn_ref_options *options, const struct attn_ref_seq *seq,
                     int64_t head, const struct seen *seen, const struct sum *sum, int64_t depth,
                     struct attn_ref_row *row) {
    int64_t size = options->value_head_size;
    int64_t kv_head = head / (options->num_heads / options->num_kv_heads);
    double *magnitudes = allocate(size, sizeof(*magnitudes));
    int64_t num_terms = seen->count < TILE ? seen->count : TILE;
    double adding = ((double)num_terms + 4 * (double)depth + 4) * unit;

    for (int64_t d = 0; d < size; d++) {
        row->out[d] = row->bounds[d] = 0;
    }
    for (int64_t t = 0; t < seen->count; t++) {
        const float *value =
            seq->value + (seen->positions[t] * options->num_kv_heads + kv_head) * size;
        double p = seen->weights[t] / sum->total;
        double off = p * (seen->errors[t] + (options->has_bf16_products ? unit_bf16 : 0));

        /* No float32 is so small. */
        if (p < 0x1p-200) {
            continue;
        }
        for (int64_t d = 0; d < size; d++) {
            double magnitude = fabs((double)value[d]);

            row->out[d] += p * (double)value[d];
            magnitudes[d] += p * magnitude;
            row->bounds[d] += (off + smallest) * magnitude;
        }
    }
    for (int64_t d = 0; d < size; d++) {
        double out = fabs(row->out[d]);
        double bound = (row->bounds[d] + out * sum->error) / (1 - sum->error) +
                       adding * (magnitudes[d] + out) + 3 * unit * out + smallest;

        row->bounds[d] = 1.01 * bound + attn_ref_rounding(options->out_dtype, out + bound);
    }
    free(magnitudes);
}

static void find_lse(const struct attn_ref_options *options, const struct seen *seen,
                     const struct sum *sum, int64_t depth, struct attn_ref_row *row) {
    int64_t num_terms = seen->count < TILE ? seen->count : TILE;
    double base = options->is_base_2 ? M_LN2 : 1;

    row->lse = (sum->max + log(sum->total)) / base;
    row->lse_bound = 1.01 * (sum->error + ((double)num_terms + 4 * (double)depth + 4) * unit) +
                     8 * unit * (fabs(log(sum->total)) + fabs(sum->max) + 1);
    row->lse_bound = row->lse_bound / base + 4 * unit * fabs(row->lse);
}

void attn_ref_row(const struct attn_ref_options *options, const struct attn_ref_seq *seq, int64_t i,
                  int64_t head, struct attn_ref_row *row) {
    double sink = options->sinks != NULL ? (double)options->sinks[head] : -(double)INFINITY;
    int64_t depth = tree_depth(seq->num_tokens);
    struct seen seen;
    struct sum sum;

    find_scores(options, seq, i, head, &seen);
    if (seen.count > 0) {
        sum = find_weights(&seen, sink, depth);
        find_out(options, seq, head, &seen, &sum, depth, row);
        find_lse(options, &seen, &sum, depth, row);
    } else {
        for (int64_t d = 0; d < options->value_head_size; d++) {
            row->out[d] = row->bounds[d] = 0;
        }
        row->lse = options->is_base_2 ? sink / M_LN2 : sink;
        row->lse_bound =
            options->is_base_2 && sink != -(double)INFINITY ? 4 * unit * fabs(sink) : 0;
    }
    free(seen.positions);
    free(seen.weights);
    free(seen.errors);
}
