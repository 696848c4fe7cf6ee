/* SPDX-License-Identifier: MIT
 *
 * Attention in AVX-512: the shared bodies over this instruction set's vectors, and the scores of
 * few rows.
 */
#include "kernels/x86/attention_quads.h"

/* 16 sums, what they share and room for more in 32 registers; to widen halves between the products
 * costs nothing. */
enum {
    SCORE_ROWS = 8,
    VALUE_ROWS = 8,
    WIDE_ROWS = 4,
    WIDENING_ROWS = PKV_ATTENTION_MAX_ROWS,
};

#include "kernels/template/attention.h"
#include "kernels/template/attention_products.h"

/* ---- query . key, few rows ---- */

#define DEFINE_FEW_SCORES(type, bytes)                                                             \
    DEFINE_QUAD_SCORES(type, bytes, fvec_fma, 4)                                                   \
                                                                                                   \
    static void scores_##type(                                                                     \
        float *scores, const float *query, int64_t query_stride, int64_t num_rows,                 \
        int64_t head_rows, const struct pkv_attention_tokens *keys,                                \
        const struct pkv_attention_tokens *then, int64_t head_size, float *scratch) {              \
        if (num_rows > QUAD_ROWS) {                                                                \
            attention_scores_##type(scores, query, query_stride, num_rows, head_rows, keys, then,  \
                                    head_size, scratch);                                           \
            return;                                                                                \
        }                                                                                          \
        const int64_t stride = pkv_attention_padded(head_size);                                    \
        for (int64_t i = 0; i < keys->num_heads * num_rows; i++) {                                 \
            const int64_t row = i / num_rows * head_rows + i % num_rows;                           \
            quarter_row(scratch + i * stride, query + row * query_stride, head_size,               \
                        PKV_ATTENTION_QUARTER / bytes);                                            \
        }                                                                                          \
        quad_scores_##type(scores, scratch, stride, num_rows, head_rows, keys, then,               \
                           head_size *bytes);                                                      \
    }

DEFINE_FEW_SCORES(f32, 4)
DEFINE_FEW_SCORES(f16, 2)
DEFINE_FEW_SCORES(bf16, 2)

void pkv_attention_init_avx512(struct pkv_kernels *kernels) {
    attention_init(kernels);
    kernels->attention_scores[PKV_ATTENTION_F32] = scores_f32;
    kernels->attention_scores[PKV_ATTENTION_F16] = scores_f16;
    kernels->attention_scores[PKV_ATTENTION_BF16] = scores_bf16;
}
