/* SPDX-License-Identifier: MIT
 *
 * The kernel table: pure functions on raw pointers, offsets and counts. They know nothing of
 * tensors, layouts or slots; whoever calls has checked everything. The C version of each
 * (kernels/c/) is the definition.
 *
 * Agreement class: EXACT, every version writes the same bytes, but for softmax and factors of
 * attention, which are BOUNDED. None reads or writes a byte that its arguments do not name; every
 * count may be zero, but rows and tokens of attention; sources and destinations do not overlap.
 * Pointers to bytes need no alignment; slots and sums are aligned to their type. A kernel runs on
 * processors of its level only.
 */
#ifndef PKV_KERNELS_KERNELS_H
#define PKV_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

/* Rows one after the other: byte offsets of the first on both sides, and how many. */
struct pkv_span {
    int64_t dst_offset;
    int64_t src_offset;
    int64_t num_rows;
};

/* Copies spans of rows of row_bytes each, adjacent on both sides, in the order of the spans: when
 * two destinations overlap, the later span's bytes stay. */
typedef void pkv_copy_spans_fn(char *dst, const char *src, const struct pkv_span *spans,
                               int64_t num_spans, int64_t row_bytes);

/* num_outer * num_inner pieces of piece_bytes (at least 1) each: piece (i, j) goes from
 * src + i * src_outer + j * src_inner to dst + i * dst_outer + j * dst_inner. Destinations are
 * distinct; sources may coincide. */
struct pkv_grid {
    int64_t piece_bytes;
    int64_t num_outer, dst_outer, src_outer;
    int64_t num_inner, dst_inner, src_inner;
};

/* Where a grid lies. */
struct pkv_place {
    int64_t dst_offset;
    int64_t src_offset;
};

/* Copies one grid at each place, in their order: when destinations of two places overlap, the later
 * place's bytes stay. Grids of one row (num_outer 1) overlap only where their places are equal. */
typedef void pkv_copy_grids_fn(char *dst, const char *src, const struct pkv_grid *grid,
                               const struct pkv_place *places, int64_t num_places);

/* A column of packed rows: row r of its source is `bytes` bytes at src + r * src_stride. */
struct pkv_column {
    const char *src;
    int64_t src_stride;
    int64_t bytes;
};

/* Where a packed row goes, and which row of the sources it is made of. */
struct pkv_packed_place {
    int64_t dst_offset;
    int64_t row;
};

/* Writes packed rows: at dst + dst_offset the columns of that row, one behind the other. Rows are
 * apart from each other, or have the same place: then those of the later one stay. */
typedef void pkv_copy_columns_fn(char *dst, const struct pkv_column *columns, int64_t num_columns,
                                 const struct pkv_packed_place *places, int64_t num_places);

/* num_rows rows of row_bytes bytes, in equal steps on both sides. */
struct pkv_stream {
    int64_t row_bytes;
    int64_t num_rows, dst_stride, src_stride;
};

/* Copies a stream from each place, all of them abreast: row 0 of every place, then row 1 of every
 * place, and so on. When destinations overlap, the bytes of the row that comes later in this order
 * stay. */
typedef void pkv_copy_streams_fn(char *dst, const char *src, const struct pkv_stream *stream,
                                 const struct pkv_place *places, int64_t num_places);

/* The smallest i with slots[i] >= bound, or num_slots. Entries are stride elements apart. */
typedef int64_t pkv_check_slots_fn(const void *slots, int64_t stride, int64_t num_slots,
                                   int64_t bound);

/* Of the entries first ... first + num_slots - 1, those with low <= slot < high, in order: their
 * slots to out_slots, their numbers to out_tokens (both have room for num_slots). Returns how many.
 */
typedef int64_t pkv_select_slots_fn(const void *slots, int64_t stride, int64_t first,
                                    int64_t num_slots, int64_t low, int64_t high,
                                    int64_t *out_slots, int64_t *out_tokens);

/* Element types of two bytes that are numbers. */
enum pkv_half_type { PKV_HALF_F16, PKV_HALF_BF16, PKV_NUM_HALF_TYPES };

enum { PKV_NSA_MAX_ROWS = 64 };

/* Rows of num_heads heads of num_channels adjacent elements, one weight for each row and head.
 * Strides are in bytes. */
struct pkv_nsa_window {
    int64_t num_rows; /* a multiple of 16 */
    int64_t num_heads;
    int64_t num_channels;
    int64_t row_head_stride;
    int64_t out_head_stride;
    const char *weights;
    int64_t weight_row_stride;
    int64_t weight_head_stride;
    const char *rows[PKV_NSA_MAX_ROWS];
};

/* out[n][c] = sum over t of rows[t][n][c] * weights[t][n]: products and sums in float32; 8
 * consecutive products in a tree of their own, then the sums of these in another one; rounded to
 * nearest even. Denormals are kept; what is not a number becomes the positive quiet NaN. */
typedef void pkv_nsa_compress_fn(char *out, const struct pkv_nsa_window *window);

/* Element types of a mean. */
enum pkv_mean_type {
    PKV_MEAN_F32,
    PKV_MEAN_F16,
    PKV_MEAN_BF16,
    PKV_MEAN_F8_E5M2,
    PKV_MEAN_F8_E4M3FN,
    PKV_MEAN_I8,
    PKV_MEAN_I16,
    PKV_MEAN_I32,
    PKV_MEAN_U8,
    PKV_MEAN_U16,
    PKV_MEAN_U32,
    PKV_NUM_MEAN_TYPES,
    /* The types before this one are added up in float, the others in int64_t. */
    PKV_NUM_MEAN_FLOATS = PKV_MEAN_I8
};

/* A part of the sums of a mean: sums[c] += x[r][c] for r = 0 ... num_rows - 1, in this order, each
 * addition rounded once; x[r][c] is the element at rows + r * row_stride + c * channel_stride (in
 * bytes). sums is float or int64_t, aligned to its element, and set to zero before the first
 * part. */
typedef void pkv_mean_add_fn(void *sums, const char *rows, int64_t row_stride, int64_t num_rows,
                             int64_t channel_stride, int64_t num_channels);

/* The mean of num_rows rows, num_rows at least 1: num_channels adjacent elements. Float: one
 * division by (float)num_rows, rounded to nearest even, fp8 saturating; what is not a number
 * becomes the positive quiet NaN of its type. Integer: division truncating toward zero. */
typedef void pkv_mean_store_fn(char *dst, const void *sums, int64_t num_rows, int64_t num_channels);

/* ---- Attention. Scores, values, merge, load and store are EXACT, up to the sign of zero and the
 * bits of NaN; softmax and factors are BOUNDED. All float arrays are aligned to 64 bytes, and so is
 * every row of one (strides are multiples of 16). The result of one row is the same bytes whatever
 * other rows, tokens after its last visible one, or addresses there are. ---- */

/* Element types of queries, keys and values. */
enum pkv_attention_type {
    PKV_ATTENTION_F32,
    PKV_ATTENTION_F16,
    PKV_ATTENTION_BF16,
    PKV_NUM_ATTENTION_TYPES
};

enum {
    PKV_ATTENTION_QUARTER = 16, /* bytes; the sums of scores: see pkv_attention_scores_fn */
    PKV_ATTENTION_TILE =
        256, /* tokens that are attended to at once: the row stride of scores and weights */
    PKV_ATTENTION_MAX_HEAD_SIZE = 576,
    PKV_ATTENTION_MAX_ROWS = 128, /* queries times heads */
    PKV_ATTENTION_PAD = 32,       /* heads in float arrays are padded to a multiple of it */
    /* floats of scratch for scores and values: the queries of all rows in another order (up to 16
     * rows of a head as 16), or a panel of 32 tokens of the largest head and that panel as floats
     * or the pairs of bfloat16 of all rows */
    PKV_ATTENTION_SCRATCH = PKV_ATTENTION_MAX_HEAD_SIZE * PKV_ATTENTION_MAX_ROWS
};

/* Floats of a head in an array. */
static inline int64_t pkv_attention_padded(int64_t head_size) {
    return (head_size + PKV_ATTENTION_PAD - 1) / PKV_ATTENTION_PAD * PKV_ATTENTION_PAD;
}

/* Keys or values of a tile: the row of token t and head h is at base + offsets[t] + h *
 * head_stride. */
struct pkv_attention_tokens {
    const char *base;
    const int64_t *offsets; /* in bytes, [num_tokens] */
    int64_t num_tokens;     /* 1 to PKV_ATTENTION_TILE */
    int64_t num_heads;
    int64_t head_stride; /* in bytes */
    int64_t row_bytes;   /* that are read of a row */
    /* The heads of a token are nearer to each other than the tokens of a head: some tokens of all
     * heads in turn are memory in order, else all tokens of a head are. */
    bool heads_together;
    /* Heads apart: some tokens of all heads are read before the next ones, however short their
     * blocks are. Not of keys of attention_scores, whose panels are longer. */
    bool short_turns;
    bool is_cached; /* values within keys that were read just before */
    /* Keys of attention_scores_dot, which waits for memory sooner than float32 products do. */
    bool is_for_dots;
};

/* A key is read in chunks of 64 bytes, a chunk in quarters. Quarter i of all chunks has a sum s(i)
 * over its elements d, in ascending order, of query[h][r][d] * key[h][t][d], each step one fused
 * multiply-add; scores[h][r][t] = ((s(0) + s(1)) + s(2)) + s(3). There are num_rows rows of each
 * head; those of head h begin at row h * head_rows. Scores from num_tokens on may be overwritten
 * with anything, up to the next multiple of 32: a call may begin within a tile. then (nullable) is
 * read next: meanwhile its rows are fetched. */
typedef void pkv_attention_scores_fn(float *scores, const float *query, int64_t query_stride,
                                     int64_t num_rows, int64_t head_rows,
                                     const struct pkv_attention_tokens *keys,
                                     const struct pkv_attention_tokens *then, int64_t head_size,
                                     float *scratch);

/* What a row sees of a tile, and how. */
struct pkv_attention_row {
    int32_t begin, end; /* tokens begin ... end - 1 of the tile; 0 <= begin <= end <= num_tokens */
    float slope;        /* ALiBi */
    float distance;     /* position of token 0 minus that of the query */
    const float *bias;  /* nullable: [num_tokens]; minus infinity: unseen. Any alignment */
};

/* Scores to weights: s(t) = softcap * tanh(scale * scores[r][t] / softcap) + slope * (distance + t)
 * + bias[t] (without the tanh for softcap 0), max[r] the largest s that the row sees (minus
 * infinity: none), weights[r][t] = exp(s(t) - max[r]), exactly 0 where unseen, sum[r] the sum of
 * the weights. An unseen score has no effect, NaN or not. Weights from num_tokens on may be
 * overwritten with anything. */
typedef void pkv_attention_softmax_fn(float *scores, const struct pkv_attention_row *rows,
                                      int64_t num_rows, int64_t num_tokens, float scale,
                                      float softcap, float *max, float *sum);

/* acc[h][r][d] = sum over t = 0 ... num_tokens - 1, in this order, of weights[h][r][t] *
 * value[h][t][d], each step one fused multiply-add; a weight of 0 has no effect, whatever the
 * value. weights has the row stride PKV_ATTENTION_TILE and needs no alignment. acc is written up to
 * the padded head size. Heads and then are as for scores. */
typedef void pkv_attention_values_fn(float *acc, int64_t acc_stride, const float *weights,
                                     int64_t num_rows, int64_t head_rows,
                                     const struct pkv_attention_tokens *values,
                                     const struct pkv_attention_tokens *then, int64_t head_size,
                                     float *scratch);

/* Two partial results to one: with m = larger of max[r] and other_max[r], keep[r] = exp(max[r] -
 * m), add[r] = exp(other_max[r] - m), sum[r] = sum[r] * keep[r] + other_sum[r] * add[r], the second
 * product fused; max[r] = m. A side whose maximum is minus infinity has the factor 0, the other one
 * then exactly 1. */
typedef void pkv_attention_factors_fn(float *max, float *sum, const float *other_max,
                                      const float *other_sum, float *keep, float *add,
                                      int64_t num_rows);

/* acc[r][d] = acc[r][d] * keep[r] + other[r][d] * add[r], the second product fused, over the padded
 * head size. A side whose factor is 0 has no effect, whatever it holds; the factor of the other one
 * is then 1. */
typedef void pkv_attention_merge_fn(float *acc, const float *other, int64_t acc_stride,
                                    const float *keep, const float *add, int64_t num_rows,
                                    int64_t head_size);

/* to[i] = from[i] as a float32, count elements. Exact. */
typedef void pkv_attention_load_fn(float *to, const char *from, int64_t count);

/* In place of `count` floats, words of two of them as bfloat16, rounded to nearest even: the first
 * of a pair in the lower half, 0 for a missing last one and for what is denormal. */
typedef void pkv_attention_pair_fn(float *row, int64_t count);

/* to[i] = acc[i] * scale + 0 in the type, rounded to nearest even; what is not a number is the
 * positive quiet NaN. */
typedef void pkv_attention_store_fn(char *to, const float *acc, float scale, int64_t count);

/* How a copy treats the caches. */
enum pkv_copy_kind {
    PKV_COPY_CACHED, /* ordinary stores */
    PKV_COPY_STREAM, /* streaming stores, and a fence at the end */
    PKV_NUM_COPY_KINDS
};

/* Integer types of slots. */
enum pkv_slot_type { PKV_SLOT_I16, PKV_SLOT_I32, PKV_SLOT_I64, PKV_NUM_SLOT_TYPES };

struct pkv_kernels {
    pkv_copy_spans_fn *copy_spans[PKV_NUM_COPY_KINDS];
    pkv_copy_grids_fn *copy_grids[PKV_NUM_COPY_KINDS];
    pkv_copy_columns_fn *copy_columns[PKV_NUM_COPY_KINDS];
    pkv_copy_streams_fn *copy_streams[PKV_NUM_COPY_KINDS];
    pkv_check_slots_fn *check_slots[PKV_NUM_SLOT_TYPES];
    pkv_select_slots_fn *select_slots[PKV_NUM_SLOT_TYPES];
    pkv_mean_add_fn *mean_add[PKV_NUM_MEAN_TYPES];
    pkv_mean_store_fn *mean_store[PKV_NUM_MEAN_TYPES];
    pkv_nsa_compress_fn *nsa_compress[PKV_NUM_HALF_TYPES];
    pkv_attention_scores_fn *attention_scores[PKV_NUM_ATTENTION_TYPES];
    pkv_attention_values_fn *attention_values[PKV_NUM_ATTENTION_TYPES];
    pkv_attention_pair_fn *attention_pair;
    /* The products of bfloat16 keys and values by dot products of bfloat16, NULL where the level
     * has none. Queries come as pairs, in rows of at least the padded head size; weights are
     * rounded. What is denormal counts as 0, as factor, product or sum. The chains of scores are
     * those above but for the order of neighbours: elements 1, 0, 3, 2 and so on; so they do not
     * depend on the number of rows. Values are one chain over pairs of tokens. */
    pkv_attention_scores_fn *attention_scores_dot;
    pkv_attention_values_fn *attention_values_dot;
    pkv_attention_load_fn *attention_load[PKV_NUM_ATTENTION_TYPES];
    pkv_attention_store_fn *attention_store[PKV_NUM_ATTENTION_TYPES];
    pkv_attention_softmax_fn *attention_softmax;
    pkv_attention_factors_fn *attention_factors;
    pkv_attention_merge_fn *attention_merge;
    int32_t copy_level; /* enum pkv_cpu_level of the copies: their names in explanations */
};

/* Fills the table with the best kernels of a level (enum pkv_cpu_level, not BEST). Pure. */
void pkv_kernels_init(struct pkv_kernels *kernels, int32_t cpu_level);

/* The rungs of the ladder; each file fills in what it has. */
void pkv_slots_init_c(struct pkv_kernels *kernels);
void pkv_copy_init_c(struct pkv_kernels *kernels);
void pkv_copy_init_avx2(struct pkv_kernels *kernels);
void pkv_copy_init_avx512(struct pkv_kernels *kernels);
void pkv_copy_init_neon(struct pkv_kernels *kernels);
void pkv_nsa_compress_init_c(struct pkv_kernels *kernels);
void pkv_nsa_compress_init_avx2(struct pkv_kernels *kernels);
void pkv_nsa_compress_init_avx512(struct pkv_kernels *kernels);
void pkv_nsa_compress_init_neon(struct pkv_kernels *kernels);
void pkv_attention_init_c(struct pkv_kernels *kernels);
void pkv_attention_init_avx2(struct pkv_kernels *kernels);
void pkv_attention_init_avx512(struct pkv_kernels *kernels);
void pkv_attention_init_avx512_bf16(struct pkv_kernels *kernels);
void pkv_attention_init_neon(struct pkv_kernels *kernels);
void pkv_mean_init_c(struct pkv_kernels *kernels);
void pkv_mean_init_avx2(struct pkv_kernels *kernels);
void pkv_mean_init_avx512(struct pkv_kernels *kernels);
void pkv_mean_init_neon(struct pkv_kernels *kernels);

#endif
