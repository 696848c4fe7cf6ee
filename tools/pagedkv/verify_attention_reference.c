/* SPDX-License-Identifier: MIT
 *
 * The double-precision reference of attention, and its error bound. See
 * verify_attention_reference.h.
 *
 * The bound, with u = 2^-24, n = head_size, P the largest |scale| * sum of |q_d * k_d| and S the
 * largest sum of the terms' magnitudes of a score, over the positions that the row sees:
 *
 *   a score        n + 4 roundings of the products, 12 of the soft cap, its tanh and the sums
 *   a weight       rounding s - max, at most 2 S, and 8 u for exp
 *   a sum          256 terms in a tile, then at most `depth` merges, each with the factor exp(max -
 *   max') numerator and denominator have that error each; the largest sum of weights * |value|
 *   carries it to out
 */
#include "verify_attention_reference.h"

#include <math.h>
#include <string.h>

#include <pagedkv/pagedkv.h>

#define UNIT_F32  0x1p-24
#define UNIT_F16  0x1p-11
#define UNIT_BF16 0x1p-8

enum { TILE_TOKENS = 256 };

/* Elements that lie side by side: of a head, or of a piece of 32 or 16 bytes. */
static int64_t fragment_length(const struct verify_attention_part *part) {
    const int64_t bytes = part->dtype == PKV_DTYPE_F32 ? 4 : 2;
    switch (part->layout) {
    case PKV_LAYOUT_PA_NZ:
        return 32 / bytes;
    case PKV_LAYOUT_X_PACKED:
        return 16 / bytes;
    case PKV_LAYOUT_TRANSPOSED:
        return 1;
    default:
        return part->head_size;
    }
}

int64_t verify_attention_at(const struct verify_attention_part *part, int64_t block, int64_t offset,
                            int64_t head, int64_t d) {
    const int64_t length = fragment_length(part);
    const int64_t j = head * part->head_size + d;
    if (part->layout == PKV_LAYOUT_NHD)
        return (block * part->block_size + offset) * part->num_heads * part->head_size + j;
    return block * part->block_size * part->num_heads * part->head_size +
           (j / length) * part->block_size * length + offset * length + j % length;
}

static double number_f16(uint16_t code) {
    const int exponent = code >> 10 & 31;
    const int fraction = code & 1023;
    double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31)
        value = fraction == 0 ? (double)INFINITY : (double)NAN;
    return code >> 15 ? -value : value;
}

double verify_attention_number(int32_t dtype, const void *data, int64_t i) {
    uint32_t bits = 0;
    uint16_t half = 0;
    float value;
    if (dtype == PKV_DTYPE_F32) {
        memcpy(&bits, (const char *)data + 4 * i, sizeof(bits));
    } else {
        memcpy(&half, (const char *)data + 2 * i, sizeof(half));
        if (dtype == PKV_DTYPE_F16)
            return number_f16(half);
        bits = (uint32_t)half << 16;
    }
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

void verify_attention_gather(const struct verify_attention_part *part, const int32_t *block_table,
                             int64_t num_tokens, int64_t head, double *rows) {
    for (int64_t t = 0; t < num_tokens; t++) {
        const int64_t block = block_table[t / part->block_size];
        for (int64_t d = 0; d < part->head_size; d++)
            *rows++ = verify_attention_number(
                part->dtype, part->data,
                verify_attention_at(part, block, t % part->block_size, head, d));
    }
}

/* What the mask says of a position: 0 where it says nothing. */
static double mask_at(const struct verify_attention_row *row, int64_t position) {
    const int64_t column = position - (row->seq_len - row->mask_width);
    return row->mask && column >= 0 ? row->mask[column] : 0;
}

struct magnitudes {
    double products; /* P */
    double terms;    /* S */
};

static double score_of(const struct verify_attention_row *row, int64_t position,
                       struct magnitudes *largest) {
    const double *key = row->keys + position * row->head_size;
    double sum = 0, magnitude = 0;
    for (int64_t d = 0; d < row->head_size; d++) {
        sum += row->query[d] * key[d];
        magnitude += fabs(row->query[d] * key[d]);
    }
    double score = row->scale * sum;
    if (row->softcap > 0)
        score = row->softcap * tanh(score / row->softcap);
    const double alibi = row->slope * (double)(position - row->position);
    const double mask = mask_at(row, position);
    largest->products = fmax(largest->products, fabs(row->scale) * magnitude);
    largest->terms = fmax(largest->terms, fabs(score) + fabs(alibi) + fabs(mask));
    return score + alibi + mask;
}

static double error_of(const struct verify_attention_row *row, const struct magnitudes *largest) {
    const double depth = ceil(log2((double)(row->end - row->begin) / TILE_TOKENS + 1)) + 2;
    double error =
        UNIT_F32 * ((double)(row->head_size + 4) * largest->products + 14 * largest->terms +
                    TILE_TOKENS + 16 + depth * (2 * largest->terms + 12));
    if (row->has_bf16_products)
        error += UNIT_BF16 * (largest->products + 1);
    return error;
}

/* Fills in the scores, minus infinity where the mask hides a position, and returns the largest
 * one. */
static double fill_scores(const struct verify_attention_row *row, struct magnitudes *largest) {
    double max = row->sink;
    *largest = (struct magnitudes){0, isinf(row->sink) ? 0 : fabs(row->sink)};
    for (int64_t j = row->begin; j < row->end; j++) {
        row->scores[j] = isinf(mask_at(row, j)) ? (double)-INFINITY : score_of(row, j, largest);
        max = fmax(max, row->scores[j]);
    }
    return max;
}

void verify_attention_row(const struct verify_attention_row *row,
                          struct verify_attention_answer *answer) {
    struct magnitudes largest;
    const double max = fill_scores(row, &largest);
    double total = exp(row->sink - max);
    memset(answer, 0, sizeof(*answer));
    answer->lse = max;
    if (isinf(max))
        return;
    for (int64_t j = row->begin; j < row->end; j++) {
        const double weight = exp(row->scores[j] - max);
        const double *value = row->values + j * row->value_stride;
        total += weight;
        for (int64_t d = 0; d < row->value_head_size && weight > 0; d++) {
            answer->out[d] += weight * value[d];
            answer->out_bound[d] += weight * fabs(value[d]);
        }
    }
    const double error = error_of(row, &largest);
    for (int64_t d = 0; d < row->value_head_size; d++) {
        answer->out[d] /= total;
        answer->out_bound[d] *= 2 * error / total;
    }
    answer->lse = max + log(total);
    answer->lse_bound = error + 4 * UNIT_F32 * fabs(answer->lse);
}

double verify_attention_rounded_bound(int32_t dtype, double expected, double bound) {
    const double unit = dtype == PKV_DTYPE_F32   ? UNIT_F32
                        : dtype == PKV_DTYPE_F16 ? UNIT_F16
                                                 : UNIT_BF16;
    /* Below the smallest normal number of float16 the spacing no longer shrinks. */
    const double least = dtype == PKV_DTYPE_F16 ? 0x1p-25 : 0x1p-150;
    return bound + fmax(unit * (fabs(expected) + bound), least);
}
