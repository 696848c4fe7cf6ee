/* SPDX-License-Identifier: MIT
 *
 * Attention in AVX-512: the shared bodies over this instruction set's vectors, and the scores of few rows.
 */
#include "kernels/x86/fvec_avx512.h"

#include "kernels/kernels.h"

/* 16 sums, what they share and room for more in 32 registers; to widen halves between the products costs nothing.
 * Touching the pages ahead of 8 rows takes longer than meeting them. */
enum {
    SCORE_ROWS = 8,
    VALUE_ROWS = 8,
    WIDE_ROWS = 4,
    WIDENING_ROWS = PKV_ATTENTION_MAX_ROWS,
    TOUCH_ROWS = 4,
};

#include "kernels/template/attention.h"
#include "kernels/template/attention_products.h"

/* ---- query . key, few rows ----
 *
 * To transpose the keys takes nearly as long as their products with 4 rows. So it ends half way: 4 tokens x 4 words
 * are transposed within each quarter of their vectors. A vector then holds one word of each quarter of a chunk for 4
 * tokens, the sums of the quarters come to be side by side, and are added at the end. */

enum { FEW_ROWS = 4, QUAD_TOKENS = FVEC_LANES };

/* The elements of a row of queries for it: those at the same place of the four quarters of a chunk side by side.
 * Elements beyond the head are 0. */
static void quarter_row(float *to, const float *row, int64_t head_size, int quarter_elements) {
    const __m512i lane = _mm512_cvtps_epi32(fvec_iota());
    const __m512i from =
        _mm512_add_epi32(_mm512_mullo_epi32(_mm512_and_si512(lane, _mm512_set1_epi32(3)),
                                            _mm512_set1_epi32(quarter_elements)),
                         _mm512_srli_epi32(lane, 2));
    for (int64_t d = 0; d < head_size; d += 4 * quarter_elements) {
        fvec chunk[2];
        for (int i = 0; i < 2; i++)
            chunk[i] = fvec_load_up_to(row + d + i * FVEC_LANES, head_size - d - i * FVEC_LANES);
        for (int e = 0; e < quarter_elements; e += 4) {
            const __m512i places = _mm512_add_epi32(from, _mm512_set1_epi32(e));
            fvec_store(to + d + 4 * e, _mm512_permutex2var_ps(chunk[0], places, chunk[1]));
        }
    }
}

/* Four floats, each in all lanes of its quarter. */
static inline fvec spread(const float *quarters) {
    return _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(quarters)),
                                _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
}

/* Words 0 and 1, or 2 and 3, of each quarter of the chunk at byte `at` of 4 rows. */
ALWAYS_INLINE void load_words(tvec words[2], const char *const *rows, int64_t at, bool is_upper) {
    const tvec r0 = tvec_load(rows[0] + at), r1 = tvec_load(rows[1] + at);
    const tvec r2 = tvec_load(rows[2] + at), r3 = tvec_load(rows[3] + at);
    const tvec a = is_upper ? _mm512_unpackhi_epi32(r0, r1) : _mm512_unpacklo_epi32(r0, r1);
    const tvec b = is_upper ? _mm512_unpackhi_epi32(r2, r3) : _mm512_unpacklo_epi32(r2, r3);
    words[0] = _mm512_unpacklo_epi64(a, b);
    words[1] = _mm512_unpackhi_epi64(a, b);
}

/* The sums of 4 x 4 tokens to their scores. */
static inline fvec add_quarters(const fvec sums[4]) {
    const fvec a = _mm512_shuffle_f32x4(sums[0], sums[1], 0x88);
    const fvec b = _mm512_shuffle_f32x4(sums[0], sums[1], 0xdd);
    const fvec c = _mm512_shuffle_f32x4(sums[2], sums[3], 0x88);
    const fvec d = _mm512_shuffle_f32x4(sums[2], sums[3], 0xdd);
    const fvec first = fvec_add(_mm512_shuffle_f32x4(a, c, 0x88), _mm512_shuffle_f32x4(b, d, 0x88));
    return fvec_add(fvec_add(first, _mm512_shuffle_f32x4(a, c, 0xdd)),
                    _mm512_shuffle_f32x4(b, d, 0xdd));
}

#define DEFINE_FEW_SCORES(type, bytes)                                                             \
    ALWAYS_INLINE void few_scores_##type(int num_rows, float *scores, const float *query,          \
                                         int64_t query_stride, const char *const *from,            \
                                         int64_t row_bytes, struct ahead *ahead) {                 \
        enum { PER_WORD = 4 / bytes };                                                             \
        char rest[QUAD_TOKENS][CHUNK_BYTES];                                                       \
        const char *rest_rows[QUAD_TOKENS];                                                        \
        const int64_t whole = row_bytes / CHUNK_BYTES * CHUNK_BYTES;                               \
        if (whole < row_bytes)                                                                     \
            copy_rest(rest, rest_rows, from, whole, row_bytes);                                    \
        fvec sums[4 * FEW_ROWS];                                                                   \
        UNROLL for (int i = 0; i < 4 * num_rows; i++) sums[i] = fvec_set(0.0f);                    \
        const char *line = ahead->line;                                                            \
        for (int64_t at = 0; at < row_bytes; at += CHUNK_BYTES) {                                  \
            const char *const *rows = at < whole ? from : rest_rows;                               \
            const int64_t place = at < whole ? at : 0;                                             \
            const float *q = query + at / bytes;                                                   \
            UNROLL for (int half = 0; half < 2; half++) {                                          \
                tvec words[8];                                                                     \
                fvec v[4][2];                                                                      \
                FETCH(ahead, line, QUAD_TOKENS *CHUNK_BYTES / 2);                                  \
                LOAD_AGAIN();                                                                      \
                UNROLL for (int i = 0; i < 4; i++)                                                 \
                    load_words(words + 2 * i, rows + 4 * i, place, half == 1);                     \
                UNROLL for (int word = 0; word < 2; word++) {                                      \
                    UNROLL for (int i = 0; i < 4; i++) split_##type(v[i], words[2 * i + word]);    \
                    UNROLL for (int k = 0; k < PER_WORD; k++) {                                    \
                        UNROLL for (int r = 0; r < num_rows; r++) {                                \
                            const fvec x = spread(q + r * query_stride);                           \
                            UNROLL for (int i = 0; i < 4; i++) sums[r * 4 + i] =                   \
                                fvec_fma(x, v[i][k], sums[r * 4 + i]);                             \
                        }                                                                          \
                        q += 4;                                                                    \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        ahead->line = line;                                                                        \
        UNROLL for (int r = 0; r < num_rows; r++)                                                  \
            fvec_store(scores + r * PKV_ATTENTION_TILE, add_quarters(sums + 4 * r));               \
    }                                                                                              \
                                                                                                   \
    static void scores_##type(                                                                     \
        float *scores, const float *query, int64_t query_stride, int64_t num_rows,                 \
        int64_t head_rows, const struct pkv_attention_tokens *keys,                                \
        const struct pkv_attention_tokens *then, int64_t head_size, float *scratch) {              \
        if (num_rows > FEW_ROWS) {                                                                 \
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
        touch_next(then, num_rows);                                                                \
        struct step step = first_step(keys, QUAD_TOKENS);                                          \
        struct ahead ahead = look_ahead(keys, then, lead_of(keys, step.width, false));             \
        do {                                                                                       \
            float *to = scores + step.head * head_rows * PKV_ATTENTION_TILE;                       \
            for (int64_t t = step.first; t < step.end; t += QUAD_TOKENS) {                         \
                const char *from[QUAD_TOKENS];                                                     \
                find_rows(from, QUAD_TOKENS, keys, step.head, t);                                  \
                WITH_FEW_ROWS(num_rows, few_scores_##type, to + t,                                 \
                              scratch + step.head * num_rows * stride, stride, from,               \
                              head_size * bytes, &ahead)                                           \
            }                                                                                      \
        } while (next_step(&step, keys));                                                          \
    }

/* The rows of a chunk are loaded again for its second half: compilers would keep them, for which there are no registers,
 * and the stores would take longer. */
#define LOAD_AGAIN() __asm__ volatile("" ::: "memory")

DEFINE_FEW_SCORES(f32, 4)
DEFINE_FEW_SCORES(f16, 2)
DEFINE_FEW_SCORES(bf16, 2)

void pkv_attention_init_avx512(struct pkv_kernels *kernels) {
    attention_init(kernels);
    kernels->attention_scores[PKV_ATTENTION_F32] = scores_f32;
    kernels->attention_scores[PKV_ATTENTION_F16] = scores_f16;
    kernels->attention_scores[PKV_ATTENTION_BF16] = scores_bf16;
}
