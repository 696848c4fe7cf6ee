/* SPDX-License-Identifier: MIT
 *
 * Scores of few rows in AVX-512. To transpose the keys takes nearly as long as their products with
 * 4 rows. So it ends half way: 4 tokens x 4 words are transposed within each quarter of their
 * vectors. A vector then holds one word of each quarter of a chunk for 4 tokens, the sums of the
 * quarters come to be side by side, and are added at the end.
 */
#ifndef PKV_KERNELS_X86_ATTENTION_QUADS_H
#define PKV_KERNELS_X86_ATTENTION_QUADS_H

#include "kernels/x86/fvec_avx512.h"

#include "kernels/kernels.h"

/* Of all products in AVX-512. Before float32 products of 8 rows touching all pages at once takes
 * longer than meeting them. */
enum { NEAR_ROWS = 16, TOUCH_ROWS = 4 };

#include "kernels/template/attention_panel.h"

enum { QUAD_ROWS = 4 };

/* The elements of a row of queries for them: those at the same place of the four quarters of a
 * chunk side by side. Elements beyond the head are 0. */
static inline void quarter_row(float *to, const float *row, int64_t head_size,
                               int quarter_elements) {
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
static inline fvec add_quarters(fvec q, fvec r, fvec s, fvec t) {
    const fvec a = _mm512_shuffle_f32x4(q, r, 0x88), b = _mm512_shuffle_f32x4(q, r, 0xdd);
    const fvec c = _mm512_shuffle_f32x4(s, t, 0x88), d = _mm512_shuffle_f32x4(s, t, 0xdd);
    const fvec first = fvec_add(_mm512_shuffle_f32x4(a, c, 0x88), _mm512_shuffle_f32x4(b, d, 0x88));
    return fvec_add(fvec_add(first, _mm512_shuffle_f32x4(a, c, 0xdd)),
                    _mm512_shuffle_f32x4(b, d, 0xdd));
}

/* Four sums of each row are the scores of 16 tokens, two those of 8. */
ALWAYS_INLINE void store_quads(int num_rows, int num_vectors, float *scores, const fvec *sums) {
    UNROLL for (int r = 0; r < num_rows; r += 4 / num_vectors) {
        const fvec *row = sums + r * num_vectors;
        float *to = scores + r * PKV_ATTENTION_TILE;
        if (num_vectors == 4) {
            fvec_store(to, add_quarters(row[0], row[1], row[2], row[3]));
        } else {
            const bool has_other = r + 1 < num_rows;
            const fvec *other = has_other ? row + 2 : row;
            const fvec both = add_quarters(row[0], row[1], other[0], other[1]);
            _mm256_storeu_ps(to, _mm512_castps512_ps256(both));
            if (has_other)
                _mm256_storeu_ps(to + PKV_ATTENTION_TILE, _mm512_extractf32x8_ps(both, 1));
        }
    }
}

/* Those of some lines that fall to part `part` of `num_parts`: all constants. */
ALWAYS_INLINE void fetch_share(const char *lines, int num_lines, int part, int num_parts) {
    UNROLL for (int i = 0; i < num_lines; i++) {
        if (i * num_parts / num_lines == part) {
            PREFETCH(lines + i * ATTENTION_LINE_BYTES);
            KEEP_ORDER();
        }
    }
}

/* quad_scores_<type>: the queries of all heads, row after row, by quarter_row. madd(a, b, c) is c
 * and the products of the elements of a and b, fused; num_vectors, 2 or 4, of four tokens are side
 * by side. The rows of a chunk are loaded again for its second half: compilers would keep them, for
 * which there are no registers, and the stores would take longer. Lines are fetched one at a time
 * between the products: four at once took 1.03 times as long, thirty-two 1.25. Where nothing is
 * ahead, what is read itself is named, and is there. */
#define DEFINE_QUAD_SCORES(type, bytes, madd, num_vectors)                                         \
    ALWAYS_INLINE void quad_rows_##type(int num_rows, float *scores, const float *query,           \
                                        int64_t query_stride, const char *const *from,             \
                                        int64_t row_bytes, struct ahead *ahead) {                  \
        enum { PER_WORD = 4 / bytes, TOKENS = 4 * num_vectors };                                   \
        char rest[TOKENS][CHUNK_BYTES];                                                            \
        const char *rest_rows[TOKENS];                                                             \
        const int64_t whole = row_bytes / CHUNK_BYTES * CHUNK_BYTES;                               \
        if (whole < row_bytes)                                                                     \
            copy_rest(TOKENS, rest, rest_rows, from, whole, row_bytes);                            \
        fvec sums[num_vectors * QUAD_ROWS];                                                        \
        UNROLL for (int i = 0; i < num_vectors * num_rows; i++) sums[i] = fvec_set(0.0f);          \
        const char *line = ahead ? ahead->line : NULL;                                             \
        for (int64_t at = 0; at < row_bytes; at += CHUNK_BYTES) {                                  \
            const char *const *rows = at < whole ? from : rest_rows;                               \
            const int64_t place = at < whole ? at : 0;                                             \
            const float *q = query + at / bytes;                                                   \
            UNROLL for (int half = 0; half < 2; half++) {                                          \
                tvec words[2 * num_vectors];                                                       \
                fvec v[num_vectors][2];                                                            \
                const char *lines = rows[0] + place;                                               \
                if (ahead)                                                                         \
                    lines = take_lines(ahead, &line, TOKENS * CHUNK_BYTES / 2, lines);             \
                KEEP_ORDER();                                                                      \
                UNROLL for (int i = 0; i < num_vectors; i++)                                       \
                    load_words(words + 2 * i, rows + 4 * i, place, half == 1);                     \
                UNROLL for (int word = 0; word < 2; word++) {                                      \
                    UNROLL for (int i = 0; i < num_vectors; i++)                                   \
                        split_##type(v[i], words[2 * i + word]);                                   \
                    UNROLL for (int k = 0; k < PER_WORD; k++) {                                    \
                        UNROLL for (int r = 0; r < num_rows; r++) {                                \
                            fetch_share(lines, TOKENS / 2, (word * PER_WORD + k) * num_rows + r,   \
                                        2 * PER_WORD * num_rows);                                  \
                            const fvec x = spread(q + r * query_stride);                           \
                            fvec *sum = sums + r * num_vectors;                                    \
                            UNROLL for (int i = 0; i < num_vectors; i++) sum[i] =                  \
                                madd(x, v[i][k], sum[i]);                                          \
                        }                                                                          \
                        q += 4;                                                                    \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        if (ahead)                                                                                 \
            ahead->line = line;                                                                    \
        store_quads(num_rows, num_vectors, scores, sums);                                          \
    }                                                                                              \
                                                                                                   \
    static void quad_scores_##type(float *scores, const float *queries, int64_t query_stride,      \
                                   int64_t num_rows, int64_t head_rows,                            \
                                   const struct pkv_attention_tokens *keys,                        \
                                   const struct pkv_attention_tokens *then, int64_t row_bytes) {   \
        enum { TOKENS = 4 * num_vectors };                                                         \
        struct pages pages = look_at_pages(keys, then, num_rows);                                  \
        struct step step = first_step(keys, STEP_APART, STEP_TOGETHER);                            \
        struct ahead ahead = look_ahead(keys, then, lead_of(&step, keys, num_rows));               \
        do {                                                                                       \
            const float *query = queries + step.turn.head * num_rows * query_stride;               \
            float *to = scores + step.turn.head * head_rows * PKV_ATTENTION_TILE;                  \
            for (int64_t t = step.first; t < step.end; t += TOKENS) {                              \
                const char *from[TOKENS];                                                          \
                find_rows(from, TOKENS, keys, step.turn.head, t);                                  \
                for (int64_t r = 0; r < num_rows; r += QUAD_ROWS)                                  \
                    WITH_FEW_ROWS(num_rows - r, quad_rows_##type, to + r * PKV_ATTENTION_TILE + t, \
                                  query + r * query_stride, query_stride, from, row_bytes,         \
                                  r == 0 ? &ahead : NULL)                                          \
            }                                                                                      \
            touch_pages(&pages, (step.end - step.first) * row_bytes);                              \
        } while (next_step(&step, keys));                                                          \
        touch_rest(&pages);                                                                        \
    }

#endif
