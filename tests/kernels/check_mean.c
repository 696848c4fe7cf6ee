/* SPDX-License-Identifier: MIT
 *
 * The mean of rows, for each element type: sums that go on from a first part, and their division.
 * The definition is written once more here, over the tests' own number formats; a sum that is not a
 * number may have any bits that say so, a stored mean may not.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <pagedkv/tensor.h>

#include "checkkern.h"
#include "numbers.h"

enum { MAX_CHANNELS = 300, MAX_ROWS = 40, MAX_GAP = 40, MARGIN = 64, ROWS_BYTES = 1 << 20 };

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

static const char *const add_names[] = {"mean_add_f32",     "mean_add_f16",       "mean_add_bf16",
                                        "mean_add_f8_e5m2", "mean_add_f8_e4m3fn", "mean_add_i8",
                                        "mean_add_i16",     "mean_add_i32",       "mean_add_u8",
                                        "mean_add_u16",     "mean_add_u32"};
static const char *const store_names[] = {
    "mean_store_f32",       "mean_store_f16", "mean_store_bf16", "mean_store_f8_e5m2",
    "mean_store_f8_e4m3fn", "mean_store_i8",  "mean_store_i16",  "mean_store_i32",
    "mean_store_u8",        "mean_store_u16", "mean_store_u32"};

static const int32_t dtypes[PKV_NUM_MEAN_TYPES] = {
    PKV_DTYPE_F32,       PKV_DTYPE_F16, PKV_DTYPE_BF16, PKV_DTYPE_F8_E5M2,
    PKV_DTYPE_F8_E4M3FN, PKV_DTYPE_I8,  PKV_DTYPE_I16,  PKV_DTYPE_I32,
    PKV_DTYPE_U8,        PKV_DTYPE_U16, PKV_DTYPE_U32};

static const struct kern_buffer *rows, *sums, *expected_sums, *dst, *expected_dst;
static struct test_rng *rng;

/* The case that runs. */
static struct {
    const char *group;
    const struct num_format *format;
    char *first; /* element 0 of row 0 */
    int64_t row_stride, num_rows, channel_stride, num_channels;
} now;

/* ---- the definition ---- */

static void plain_add(int type, void *to, const char *from, int64_t row_stride, int64_t num_rows,
                      int64_t channel_stride, int64_t num_channels) {
    const struct num_format *format = num_format_of(dtypes[type]);
    for (int64_t c = 0; c < num_channels; c++) {
        for (int64_t r = 0; r < num_rows; r++) {
            const uint32_t code = num_read(format, from + r * row_stride + c * channel_stride);
            if (num_is_float(format))
                ((float *)to)[c] = ((float *)to)[c] + (float)num_float_of_code(format, code);
            else
                ((int64_t *)to)[c] += num_integer_of_code(format, code);
        }
    }
}

static void plain_store(int type, char *to, const void *from, int64_t num_rows,
                        int64_t num_channels) {
    const struct num_format *format = num_format_of(dtypes[type]);
    for (int64_t c = 0; c < num_channels; c++) {
        uint32_t code;
        if (num_is_float(format))
            code = num_code_of_float(format, ((const float *)from)[c] / (float)num_rows);
        else
            code = (uint32_t)(((const int64_t *)from)[c] / num_rows);
        num_write(format, to + c * format->bytes, code);
    }
}

#define DEFINE_PLAIN(name, type)                                                                   \
    static void plain_add_##name(void *to, const char *from, int64_t row_stride, int64_t num_rows, \
                                 int64_t channel_stride, int64_t num_channels) {                   \
        plain_add(type, to, from, row_stride, num_rows, channel_stride, num_channels);             \
    }                                                                                              \
    static void plain_store_##name(char *to, const void *from, int64_t num_rows,                   \
                                   int64_t num_channels) {                                         \
        plain_store(type, to, from, num_rows, num_channels);                                       \
    }

DEFINE_PLAIN(f32, PKV_MEAN_F32)
DEFINE_PLAIN(f16, PKV_MEAN_F16)
DEFINE_PLAIN(bf16, PKV_MEAN_BF16)
DEFINE_PLAIN(f8_e5m2, PKV_MEAN_F8_E5M2)
DEFINE_PLAIN(f8_e4m3fn, PKV_MEAN_F8_E4M3FN)
DEFINE_PLAIN(i8, PKV_MEAN_I8)
DEFINE_PLAIN(i16, PKV_MEAN_I16)
DEFINE_PLAIN(i32, PKV_MEAN_I32)
DEFINE_PLAIN(u8, PKV_MEAN_U8)
DEFINE_PLAIN(u16, PKV_MEAN_U16)
DEFINE_PLAIN(u32, PKV_MEAN_U32)

/* ---- cases ---- */

static void start(const struct kern *kern) {
    rng = kern->rng;
    now.format = num_format_of(dtypes[kern->index]);
    if (rows != NULL)
        return;
    rows = kern_buffer_make("rows", ROWS_BYTES);
    sums = kern_buffer_make("sums", MAX_CHANNELS * 8 + 2 * MARGIN);
    expected_sums = kern_buffer_make("expected_sums", sums->bytes);
    dst = kern_buffer_make("dst", MAX_CHANNELS * 4 + 2 * MARGIN);
    expected_dst = kern_buffer_make("expected_dst", dst->bytes);
}

static void describe(void) {
    printf("%s, %" PRId64 " rows %" PRId64 " bytes apart, %" PRId64 " channels %" PRId64
           " bytes apart",
           now.group, now.num_rows, now.row_stride, now.num_channels, now.channel_stride);
}

/* A random element: any bits, or a number of middling size, or one at an edge of the type. */
static uint32_t random_code(int style) {
    const uint32_t code = (uint32_t)test_rng_next(rng);
    if (!num_is_float(now.format) || style == 0)
        return code;
    const int bits = now.format->bytes * 8, mantissa_bits = now.format->mantissa_bits;
    const uint32_t sign = code & UINT32_C(1) << (bits - 1);
    const uint32_t edges[] = {0, 1, (1u << mantissa_bits) - 1, 1u << mantissa_bits,
                              now.format->max_finite};
    if (style == 1)
        return sign | edges[test_rng_below(rng, COUNT(edges))];
    const uint32_t exponent = (uint32_t)(now.format->bias - 3 + test_rng_below(rng, 6));
    return sign | exponent << mantissa_bits | (code & ((1u << mantissa_bits) - 1));
}

/* Places the rows against one end of their buffer and fills them; the bytes between belong to
 * nobody. */
static void place_rows(int style) {
    const int64_t bytes = now.format->bytes;
    int64_t extent = (now.num_channels - 1) * now.channel_stride + bytes;
    extent = now.num_channels == 0 || now.num_rows == 0
                 ? 0
                 : extent + (now.num_rows - 1) * now.row_stride;
    const bool at_start = test_rng_below(rng, 2) == 0;
    now.first = (char *)rows->data + (at_start ? 0 : rows->bytes - extent);
    for (int64_t r = 0; r < now.num_rows; r++) {
        for (int64_t c = 0; c < now.num_channels; c++)
            num_write(now.format, now.first + r * now.row_stride + c * now.channel_stride,
                      random_code(style));
    }
}

static int64_t sum_bytes(void) {
    return num_is_float(now.format) ? (int64_t)sizeof(float) : (int64_t)sizeof(int64_t);
}

/* Where num_channels entries lie in a buffer: against its end, or behind a margin. */
static int64_t place_entries(const struct kern_buffer *buffer, int64_t entry_bytes) {
    return test_rng_below(rng, 2) == 0 ? MARGIN : buffer->bytes - now.num_channels * entry_bytes;
}

static void compare_margins(const char *name, const unsigned char *is, const unsigned char *should,
                            int64_t begin, int64_t end, int64_t bytes) {
    for (int64_t i = begin - MARGIN; i < end + MARGIN && i < bytes; i++) {
        if ((i < begin || i >= end) && is[i] != should[i])
            kern_fail("wrote byte %" PRId64 " of %s, which is not its own", i - begin, name);
    }
}

static bool same_sum(const unsigned char *is, const unsigned char *should) {
    float a, b;
    if (!num_is_float(now.format))
        return memcmp(is, should, sizeof(int64_t)) == 0;
    memcpy(&a, is, sizeof(a));
    memcpy(&b, should, sizeof(b));
    return memcmp(is, should, sizeof(float)) == 0 || (isnan(a) && isnan(b));
}

static void run_add(const struct kern *kern, int style) {
    const int64_t bytes = sum_bytes(), at = place_entries(sums, bytes);
    place_rows(style);
    test_rng_fill(rng, sums->data, (size_t)sums->bytes);
    for (int64_t c = 0; c < now.num_channels; c++) {
        const float sum = (float)test_rng_between(rng, -1000, 1000);
        const int64_t integer = test_rng_between(rng, -1000, 1000);
        memcpy(sums->data + at + c * bytes,
               num_is_float(now.format) ? (const void *)&sum : (const void *)&integer,
               (size_t)bytes);
    }
    memcpy(expected_sums->data, sums->data, (size_t)sums->bytes);
    kern_count_case();
    ((pkv_mean_add_fn *)kern->reference)(expected_sums->data + at, now.first, now.row_stride,
                                         now.num_rows, now.channel_stride, now.num_channels);
    ((pkv_mean_add_fn *)kern->tested)(sums->data + at, now.first, now.row_stride, now.num_rows,
                                      now.channel_stride, now.num_channels);
    for (int64_t c = 0; c < now.num_channels; c++) {
        if (!same_sum(sums->data + at + c * bytes, expected_sums->data + at + c * bytes))
            kern_fail("the sum of channel %" PRId64 " is wrong", c);
    }
    compare_margins("sums", sums->data, expected_sums->data, at, at + now.num_channels * bytes,
                    sums->bytes);
}

/* Numbers of channels with every tail; rows as they are, apart, and the same one again; and
 * channels that are not neighbours. */
static void check_adds(const struct kern *kern) {
    start(kern);
    const int64_t bytes = now.format->bytes;
    for (int64_t channels = 0; channels <= MAX_CHANNELS; channels += channels < 80 ? 1 : 13) {
        for (int style = 0; style < 3; style++) {
            now.group = "adjacent channels";
            now.num_channels = channels;
            now.num_rows = test_rng_between(rng, 0, MAX_ROWS);
            now.channel_stride = bytes;
            now.row_stride = channels * bytes + test_rng_below(rng, MAX_GAP);
            if (test_rng_below(rng, 10) == 0)
                now.row_stride = 0;
            run_add(kern, style);
        }
        now.group = "channels apart";
        now.num_rows = test_rng_between(rng, 0, 5);
        now.channel_stride = bytes * test_rng_between(rng, 0, 5);
        now.row_stride = test_rng_below(rng, 2) * MAX_CHANNELS * now.channel_stride + bytes;
        run_add(kern, 2);
    }
}

/* Each value that the type can have, as a sum of one row, and random sums. */
static void run_store(const struct kern *kern) {
    const int64_t bytes = now.format->bytes, at = place_entries(dst, bytes);
    const int64_t sums_at = place_entries(sums, sum_bytes());
    const int64_t num_rows = now.num_rows;
    for (int64_t c = 0; c < now.num_channels; c++) {
        const uint32_t code = random_code((int)test_rng_below(rng, 3));
        float sum = 0;
        int64_t integer = 0;
        if (num_is_float(now.format)) {
            /* Half a step off, so that ties are met; or any bits of a float. */
            sum = (float)num_float_of_code(now.format, code) * (float)num_rows;
            if (test_rng_below(rng, 2) == 0)
                sum += (float)(num_float_of_code(now.format, code + 1) / 2 -
                               num_float_of_code(now.format, code) / 2) *
                       (float)num_rows;
            const uint32_t any = (uint32_t)test_rng_next(rng);
            if (test_rng_below(rng, 4) == 0)
                memcpy(&sum, &any, sizeof(sum));
        } else {
            integer = num_integer_of_code(now.format, code);
            integer = integer * num_rows -
                      (integer > 0 ? 1 : -1) * (integer != 0) * test_rng_below(rng, num_rows);
        }
        memcpy(sums->data + sums_at + c * sum_bytes(),
               num_is_float(now.format) ? (const void *)&sum : (const void *)&integer,
               (size_t)sum_bytes());
    }
    test_rng_fill(rng, dst->data, (size_t)dst->bytes);
    memcpy(expected_dst->data, dst->data, (size_t)dst->bytes);
    kern_count_case();
    ((pkv_mean_store_fn *)kern->reference)((char *)expected_dst->data + at, sums->data + sums_at,
                                           num_rows, now.num_channels);
    ((pkv_mean_store_fn *)kern->tested)((char *)dst->data + at, sums->data + sums_at, num_rows,
                                        now.num_channels);
    for (int64_t c = 0; c < now.num_channels; c++) {
        const uint32_t is = num_read(now.format, dst->data + at + c * bytes);
        const uint32_t should = num_read(now.format, expected_dst->data + at + c * bytes);
        if (is != should)
            kern_fail("the mean of channel %" PRId64 " is 0x%" PRIx32 ", should be 0x%" PRIx32, c,
                      is, should);
    }
    compare_margins("dst", dst->data, expected_dst->data, at, at + now.num_channels * bytes,
                    dst->bytes);
}

static void check_stores(const struct kern *kern) {
    static const int64_t counts[] = {1, 1, 2, 3, 4, 7, 1000, 65537, INT64_C(1) << 26};
    start(kern);
    now.group = "store";
    now.row_stride = now.channel_stride = 0;
    for (int64_t channels = 0; channels <= MAX_CHANNELS; channels += channels < 80 ? 1 : 13) {
        for (int64_t i = 0; i < COUNT(counts); i++) {
            now.num_channels = channels;
            now.num_rows = counts[i];
            run_store(kern);
        }
    }
}

static kern_fn *get_add(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->mean_add[index];
}

static kern_fn *get_store(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->mean_store[index];
}

static kern_fn *plain_add_of(int index) {
    static pkv_mean_add_fn *const plain[] = {plain_add_f32,     plain_add_f16,       plain_add_bf16,
                                             plain_add_f8_e5m2, plain_add_f8_e4m3fn, plain_add_i8,
                                             plain_add_i16,     plain_add_i32,       plain_add_u8,
                                             plain_add_u16,     plain_add_u32};
    return (kern_fn *)plain[index];
}

static kern_fn *plain_store_of(int index) {
    static pkv_mean_store_fn *const plain[] = {
        plain_store_f32,       plain_store_f16, plain_store_bf16, plain_store_f8_e5m2,
        plain_store_f8_e4m3fn, plain_store_i8,  plain_store_i16,  plain_store_i32,
        plain_store_u8,        plain_store_u16, plain_store_u32};
    return (kern_fn *)plain[index];
}

/* ---- time ---- */

enum { BENCH_ROWS = 128, BENCH_CHANNELS = 128 };

static int64_t bench_sums[BENCH_CHANNELS];
static int64_t bench_stride;

static void call_add(kern_fn *fn) {
    ((pkv_mean_add_fn *)fn)(bench_sums, (const char *)rows->data, bench_stride, BENCH_ROWS,
                            now.format->bytes, BENCH_CHANNELS);
}

static void call_store(kern_fn *fn) {
    ((pkv_mean_store_fn *)fn)((char *)dst->data, bench_sums, 3, BENCH_CHANNELS);
}

static void bench_adds(const struct kern *kern) {
    const int64_t row_bytes = BENCH_CHANNELS * (int64_t)num_format_of(dtypes[kern->index])->bytes;
    memset(rows->data, 0, (size_t)rows->bytes);
    memset(bench_sums, 0, sizeof(bench_sums));
    bench_stride = row_bytes;
    kern_time(kern, "128 rows of 128 channels, adjacent", BENCH_ROWS * row_bytes, call_add);
    bench_stride = rows->bytes / BENCH_ROWS;
    kern_time(kern, "128 rows of 128 channels, 8 KiB apart", BENCH_ROWS * row_bytes, call_add);
}

static void bench_stores(const struct kern *kern) {
    memset(bench_sums, 0, sizeof(bench_sums));
    kern_time(kern, "128 channels",
              BENCH_CHANNELS * (int64_t)num_format_of(dtypes[kern->index])->bytes, call_store);
}

const struct kern_family kern_mean_add = {PKV_NUM_MEAN_TYPES, add_names,  get_add, plain_add_of,
                                          check_adds,         bench_adds, describe};
const struct kern_family kern_mean_store = {
    PKV_NUM_MEAN_TYPES, store_names,  get_store, plain_store_of,
    check_stores,       bench_stores, describe};
