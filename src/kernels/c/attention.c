/* SPDX-License-Identifier: MIT
 *
 * The definitions of the attention kernels: what each of them computes, one number after the other.
 * The products are chains of float32 in the order that kernels.h fixes; everything else is computed
 * in double.
 */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/formats.h"
#include "kernels/kernels.h"

static float load_f32(const char *from) {
    float value;
    memcpy(&value, from, sizeof(value));
    return value;
}

static float load_f16(const char *from) {
    uint16_t code;
    memcpy(&code, from, sizeof(code));
    return pkv_f16_to_f32(code);
}

static float load_bf16(const char *from) {
    uint16_t code;
    memcpy(&code, from, sizeof(code));
    return pkv_bf16_to_f32(code);
}

static void store_f32(char *to, float value) {
    memcpy(to, &value, sizeof(value));
}

static void store_f16(char *to, float value) {
    const uint16_t code = pkv_f32_to_f16(value);
    memcpy(to, &code, sizeof(code));
}

static void store_bf16(char *to, float value) {
    const uint16_t code = pkv_f32_to_bf16(value);
    memcpy(to, &code, sizeof(code));
}

/* Where the C versions and the vector versions agree: one rounding for both products. */
static float combine(float kept, float keep, float added, float add) {
    return fmaf(added, add, kept * keep);
}

static const char *row_of(const struct pkv_attention_tokens *tokens, int64_t head, int64_t t) {
    return tokens->base + tokens->offsets[t] + head * tokens->head_stride;
}

#define DEFINE_TYPE(type, bytes)                                                                   \
    static void scores_##type(                                                                     \
        float *scores, const float *query, int64_t query_stride, int64_t num_rows,                 \
        int64_t head_rows, const struct pkv_attention_tokens *keys,                                \
        const struct pkv_attention_tokens *then, int64_t head_size, float *scratch) {              \
        (void)then;                                                                                \
        (void)scratch;                                                                             \
        for (int64_t i = 0; i < keys->num_heads * num_rows; i++) {                                 \
            const int64_t head = i / num_rows, row = head * head_rows + i % num_rows;              \
            for (int64_t t = 0; t < keys->num_tokens; t++) {                                       \
                const char *key = row_of(keys, head, t);                                           \
                float sums[4] = {0};                                                               \
                for (int64_t d = 0; d < head_size; d++) {                                          \
                    float *sum = &sums[d * bytes / PKV_ATTENTION_QUARTER % 4];                     \
                    *sum =                                                                         \
                        fmaf(query[row * query_stride + d], load_##type(key + d * bytes), *sum);   \
                }                                                                                  \
                scores[row * PKV_ATTENTION_TILE + t] = sums[0] + sums[1] + sums[2] + sums[3];      \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void values_##type(                                                                     \
        float *acc, int64_t acc_stride, const float *weights, int64_t num_rows, int64_t head_rows, \
        const struct pkv_attention_tokens *values, const struct pkv_attention_tokens *then,        \
        int64_t head_size, float *scratch) {                                                       \
        (void)then;                                                                                \
        (void)scratch;                                                                             \
        for (int64_t i = 0; i < values->num_heads * num_rows; i++) {                               \
            const int64_t head = i / num_rows, row = head * head_rows + i % num_rows;              \
            for (int64_t d = 0; d < pkv_attention_padded(head_size); d++) {                        \
                float sum = 0;                                                                     \
                for (int64_t t = 0; t < values->num_tokens && d < head_size; t++) {                \
                    const float weight = weights[row * PKV_ATTENTION_TILE + t];                    \
                    if (weight != 0)                                                               \
                        sum = fmaf(weight, load_##type(row_of(values, head, t) + d * bytes), sum); \
                }                                                                                  \
                acc[row * acc_stride + d] = sum;                                                   \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void load_all_##type(float *to, const char *from, int64_t count) {                      \
        for (int64_t i = 0; i < count; i++)                                                        \
            to[i] = load_##type(from + i * bytes);                                                 \
    }                                                                                              \
                                                                                                   \
    static void store_all_##type(char *to, const float *acc, float scale, int64_t count) {         \
        for (int64_t i = 0; i < count; i++) {                                                      \
            const float value = acc[i] * scale + 0.0f;                                             \
            store_##type(to + i * bytes, isnan(value) ? (float)NAN : value);                       \
        }                                                                                          \
    }

DEFINE_TYPE(f32, 4)
DEFINE_TYPE(f16, 2)
DEFINE_TYPE(bf16, 2)

static double score(float product, const struct pkv_attention_row *row, int64_t t, float scale,
                    float softcap) {
    double s = (double)scale * (double)product;
    if (softcap != 0)
        s = (double)softcap * tanh(s / (double)softcap);
    s += (double)row->slope * ((double)row->distance + (double)t);
    return row->bias ? s + (double)row->bias[t] : s;
}

static void softmax(float *scores, const struct pkv_attention_row *rows, int64_t num_rows,
                    int64_t num_tokens, float scale, float softcap, float *max, float *sum) {
    for (int64_t r = 0; r < num_rows; r++) {
        float *row = &scores[r * PKV_ATTENTION_TILE];
        double total = 0;
        max[r] = -INFINITY;
        for (int64_t t = 0; t < num_tokens; t++) {
            const bool is_seen = t >= rows[r].begin && t < rows[r].end &&
                                 !(rows[r].bias && rows[r].bias[t] == -INFINITY);
            row[t] = is_seen ? (float)score(row[t], &rows[r], t, scale, softcap) : -INFINITY;
            if (row[t] > max[r] || isnan(row[t]))
                max[r] = row[t];
        }
        for (int64_t t = 0; t < num_tokens; t++) {
            row[t] = row[t] == -INFINITY ? 0.0f : (float)exp((double)row[t] - (double)max[r]);
            total += (double)row[t];
        }
        sum[r] = (float)total;
    }
}

static void factors(float *max, float *sum, const float *other_max, const float *other_sum,
                    float *keep, float *add, int64_t num_rows) {
    for (int64_t r = 0; r < num_rows; r++) {
        const float m = max[r] > other_max[r] || isnan(max[r]) ? max[r] : other_max[r];
        keep[r] = max[r] == -INFINITY ? 0.0f : (float)exp((double)max[r] - (double)m);
        add[r] = other_max[r] == -INFINITY ? 0.0f : (float)exp((double)other_max[r] - (double)m);
        sum[r] = combine(sum[r], keep[r], other_sum[r], add[r]);
        max[r] = m;
    }
}

static void merge(float *acc, const float *other, int64_t acc_stride, const float *keep,
                  const float *add, int64_t num_rows, int64_t head_size) {
    for (int64_t r = 0; r < num_rows; r++) {
        for (int64_t i = r * acc_stride; i < r * acc_stride + pkv_attention_padded(head_size);
             i++) {
            if (keep[r] == 0)
                acc[i] = other[i] * add[r];
            else if (add[r] != 0)
                acc[i] = combine(acc[i], keep[r], other[i], add[r]);
        }
    }
}

static void pair(float *row, int64_t count) {
    for (int64_t i = 0; i < count; i += 2) {
        uint32_t word = 0;
        for (int64_t j = 0; j < 2 && i + j < count; j++) {
            const float x = row[i + j];
            const uint32_t code = pkv_f32_to_bf16(fabsf(x) < FLT_MIN ? copysignf(0, x) : x);
            word |= code << 16 * j;
        }
        memcpy(&row[i / 2], &word, sizeof(word));
    }
}

void pkv_attention_init_c(struct pkv_kernels *kernels) {
    kernels->attention_scores[PKV_ATTENTION_F32] = scores_f32;
    kernels->attention_scores[PKV_ATTENTION_F16] = scores_f16;
    kernels->attention_scores[PKV_ATTENTION_BF16] = scores_bf16;
    kernels->attention_values[PKV_ATTENTION_F32] = values_f32;
    kernels->attention_values[PKV_ATTENTION_F16] = values_f16;
    kernels->attention_values[PKV_ATTENTION_BF16] = values_bf16;
    kernels->attention_pair = pair;
    kernels->attention_scores_dot = NULL;
    kernels->attention_values_dot = NULL;
    kernels->attention_load[PKV_ATTENTION_F32] = load_all_f32;
    kernels->attention_load[PKV_ATTENTION_F16] = load_all_f16;
    kernels->attention_load[PKV_ATTENTION_BF16] = load_all_bf16;
    kernels->attention_store[PKV_ATTENTION_F32] = store_all_f32;
    kernels->attention_store[PKV_ATTENTION_F16] = store_all_f16;
    kernels->attention_store[PKV_ATTENTION_BF16] = store_all_bf16;
    kernels->attention_softmax = softmax;
    kernels->attention_factors = factors;
    kernels->attention_merge = merge;
}
