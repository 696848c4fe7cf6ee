/* SPDX-License-Identifier: MIT
 *
 * Windows of every length, with every number of channels that leaves a tail, over numbers of
 * middling size, over those at the edges of their type and over any bits.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <pagedkv/tensor.h>

#include "checkkern.h"
#include "nsa_reference.h"

enum { MAX_CHANNELS = 1100, MAX_HEADS = 5, MARGIN = 64, ROWS_BYTES = 1 << 20 };

static const char *const names[] = {"nsa_compress_f16", "nsa_compress_bf16"};
static const int32_t dtypes[PKV_NUM_HALF_TYPES] = {PKV_DTYPE_F16, PKV_DTYPE_BF16};

static const struct kern_buffer *rows, *weights, *out, *expected;
static struct test_rng *rng;

/* The case that runs. */
static struct pkv_nsa_window now;

static uint16_t read_code(const char *from) {
    uint16_t code;
    memcpy(&code, from, sizeof(code));
    return code;
}

static void plain_compress(int32_t dtype, char *to, const struct pkv_nsa_window *window) {
    for (int64_t n = 0; n < window->num_heads; n++) {
        for (int64_t c = 0; c < window->num_channels; c++) {
            uint16_t x[PKV_NSA_MAX_ROWS], w[PKV_NSA_MAX_ROWS];
            for (int64_t t = 0; t < window->num_rows; t++) {
                x[t] = read_code(window->rows[t] + n * window->row_head_stride + c * 2);
                w[t] = read_code(window->weights + t * window->weight_row_stride +
                                 n * window->weight_head_stride);
            }
            const uint16_t code = nsa_ref_element(dtype, x, w, window->num_rows);
            memcpy(to + n * window->out_head_stride + c * 2, &code, sizeof(code));
        }
    }
}

static void plain_f16(char *to, const struct pkv_nsa_window *window) {
    plain_compress(PKV_DTYPE_F16, to, window);
}

static void plain_bf16(char *to, const struct pkv_nsa_window *window) {
    plain_compress(PKV_DTYPE_BF16, to, window);
}

static kern_fn *plain_of(int index) {
    return index == PKV_HALF_F16 ? (kern_fn *)plain_f16 : (kern_fn *)plain_bf16;
}

static kern_fn *get(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->nsa_compress[index];
}

static void describe(void) {
    printf("window of %" PRId64 " rows, %" PRId64 " heads %" PRId64 " bytes apart (out %" PRId64
           ", weights %" PRId64 "), %" PRId64 " channels",
           now.num_rows, now.num_heads, now.row_head_stride, now.out_head_stride,
           now.weight_head_stride, now.num_channels);
}

/* Style 0: any bits; 1: an edge of the type or near it; else a number of middling size. */
static uint16_t random_code(int32_t dtype, int style) {
    static const uint16_t edges[2][6] = {{0, 1, 0x03ff, 0x0400, 0x7bff, 0x7c00},
                                         {0, 1, 0x007f, 0x0080, 0x7f7f, 0x7f80}};
    const uint16_t code = (uint16_t)test_rng_next(rng);
    if (style == 0)
        return code;
    if (style == 1)
        return (uint16_t)((code & 0x8000) | edges[dtype == PKV_DTYPE_BF16][test_rng_below(rng, 6)]);
    return dtype == PKV_DTYPE_F16 ? (uint16_t)((code & 0x83ff) | (12 + code % 5) << 10)
                                  : (uint16_t)((code & 0x807f) | (124 + code % 5) << 7);
}

static void fill(char *to, int64_t bytes, int32_t dtype, int style) {
    for (int64_t i = 0; i + 2 <= bytes; i += 2) {
        const uint16_t code = random_code(dtype, style);
        memcpy(to + i, &code, sizeof(code));
    }
}

/* Heads side by side, apart, or the same one again. */
static int64_t head_stride(int64_t bytes) {
    const int64_t kind = test_rng_below(rng, 4);
    return kind == 0 ? bytes + 2 * test_rng_below(rng, 20) : bytes;
}

/* Every row on its own, some against the ends of their buffer. */
static void place(int style, int32_t dtype) {
    const int64_t bytes = 2 * now.num_channels;
    now.row_head_stride = test_rng_below(rng, 10) == 0 ? 0 : head_stride(bytes);
    now.out_head_stride = head_stride(bytes);
    now.weight_head_stride = test_rng_below(rng, 10) == 0 ? 0 : 2;
    now.weight_row_stride = 2 * (now.num_heads + test_rng_below(rng, 3));
    const int64_t row_bytes = (now.num_heads - 1) * now.row_head_stride + bytes;
    for (int64_t t = 0; t < now.num_rows; t++) {
        const int64_t last = rows->bytes - row_bytes;
        const int64_t kind = test_rng_below(rng, 8);
        char *row = (char *)rows->data + (kind == 0   ? 0
                                          : kind == 1 ? last
                                                      : 2 * test_rng_below(rng, last / 2 + 1));
        fill(row, row_bytes, dtype, style);
        now.rows[t] = row;
    }
    const int64_t weight_bytes = (now.num_rows - 1) * now.weight_row_stride +
                                 (now.num_heads - 1) * now.weight_head_stride + 2;
    char *first =
        (char *)weights->data + (test_rng_below(rng, 2) == 0 ? 0 : weights->bytes - weight_bytes);
    fill(first, weight_bytes, dtype, style);
    now.weights = first;
}

static void run(const struct kern *kern, int style) {
    place(style, dtypes[kern->index]);
    const int64_t bytes = (now.num_heads - 1) * now.out_head_stride + 2 * now.num_channels;
    const int64_t at = test_rng_below(rng, 2) == 0 ? MARGIN : out->bytes - bytes;
    test_rng_fill(rng, out->data, (size_t)out->bytes);
    memcpy(expected->data, out->data, (size_t)out->bytes);
    kern_count_case();
    ((pkv_nsa_compress_fn *)kern->reference)((char *)expected->data + at, &now);
    ((pkv_nsa_compress_fn *)kern->tested)((char *)out->data + at, &now);
    for (int64_t i = 0; i < out->bytes; i++) {
        if (out->data[i] != expected->data[i])
            kern_fail("byte %" PRId64 " of out is 0x%02x, should be 0x%02x", i - at, out->data[i],
                      expected->data[i]);
    }
}

static void check(const struct kern *kern) {
    rng = kern->rng;
    if (rows == NULL) {
        rows = kern_buffer_make("rows", ROWS_BYTES);
        weights = kern_buffer_make("weights", PKV_NSA_MAX_ROWS * 2 * (MAX_HEADS + 3));
        out = kern_buffer_make("out", MAX_HEADS * (2 * MAX_CHANNELS + 64) + 2 * MARGIN);
        expected = kern_buffer_make("expected", out->bytes);
    }
    for (int64_t channels = 1; channels <= MAX_CHANNELS; channels += channels < 70 ? 1 : 103) {
        for (int64_t length = 16; length <= PKV_NSA_MAX_ROWS; length += 16) {
            for (int style = 0; style < 3; style++) {
                now.num_rows = length;
                now.num_heads = test_rng_between(rng, 1, MAX_HEADS);
                now.num_channels = channels;
                run(kern, style);
            }
        }
    }
}

static void call(kern_fn *fn) {
    ((pkv_nsa_compress_fn *)fn)((char *)out->data, &now);
}

static void bench(const struct kern *kern) {
    enum { CHANNELS = 128, HEADS = 4 };
    const int64_t row_bytes = HEADS * CHANNELS * 2;
    memset(rows->data, 0, (size_t)rows->bytes);
    now.num_rows = 32;
    now.num_heads = HEADS;
    now.num_channels = CHANNELS;
    now.row_head_stride = now.out_head_stride = CHANNELS * 2;
    now.weights = (const char *)weights->data;
    now.weight_row_stride = HEADS * 2;
    now.weight_head_stride = 2;
    for (int64_t t = 0; t < now.num_rows; t++)
        now.rows[t] = (const char *)rows->data + t * row_bytes;
    kern_time(kern, "32 rows of 4 heads of 128 channels", now.num_rows * row_bytes, call);
}

const struct kern_family kern_nsa_compress = {
    PKV_NUM_HALF_TYPES, names, get, plain_of, check, bench, describe};
