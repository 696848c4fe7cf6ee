/* SPDX-License-Identifier: MIT
 *
 * Elements to float32 and back: every code of the narrow types, numbers between two codes, every
 * number of elements, every alignment of an element, and the bytes beside them.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <pagedkv/tensor.h>

#include "check_attention.h"
#include "numbers.h"

enum { MAX_COUNT = 600, SHORT_COUNT = 80, CODES_AT_ONCE = 512, BENCH_COUNT = 512 };

static const char *const load_names[] = {"attention_load_f32", "attention_load_f16",
                                         "attention_load_bf16"};
static const char *const store_names[] = {"attention_store_f32", "attention_store_f16",
                                          "attention_store_bf16"};

static const struct kern_buffer *elements;
static struct attention_floats floats;
static const struct num_format *format;
static struct test_rng *rng;

/* The case that runs. */
static struct {
    int64_t at, count; /* the first byte of the elements, and their number */
    float scale;
} now;

static void start(const struct kern *kern) {
    static const int32_t dtypes[PKV_NUM_ATTENTION_TYPES] = {PKV_DTYPE_F32, PKV_DTYPE_F16,
                                                            PKV_DTYPE_BF16};
    rng = kern->rng;
    format = num_format_of(dtypes[kern->index]);
    now.scale = 1;
    if (elements != NULL)
        return;
    elements = kern_buffer_make("elements", MAX_COUNT * 4);
    attention_floats_make(&floats, "floats", MAX_COUNT);
}

static void describe(void) {
    printf("%" PRId64 " elements at byte %" PRId64 ", scale %g", now.count, now.at,
           (double)now.scale);
}

/* Room for the elements at an end of their buffer or anywhere, with random bytes around. */
static char *place(int64_t count) {
    const int64_t room = elements->bytes / format->bytes - count, kind = test_rng_below(rng, 3);
    now.count = count;
    now.at = (kind == 0 ? 0 : kind == 1 ? room : test_rng_below(rng, room + 1)) * format->bytes;
    test_rng_fill(rng, elements->data, (size_t)elements->bytes);
    attention_floats_place(&floats, rng, count);
    kern_count_case();
    return (char *)elements->data + now.at;
}

/* ---- load ---- */

static kern_fn *get_load(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->attention_load[index];
}

static void run_load(const struct kern *kern, const char *from) {
    ((pkv_attention_load_fn *)kern->tested)(floats.data, from, now.count);
    attention_floats_check(&floats);
    for (int64_t i = 0; i < now.count; i++) {
        const float should = attention_decode(kern->index, from + i * format->bytes);
        /* Not attention_same: the sign of a zero is kept. */
        if (!attention_same(floats.data[i], should) ||
            (should == 0 && signbit(floats.data[i]) != signbit(should)))
            kern_fail("element %" PRId64 ", code 0x%" PRIx32 ", became %.9g, should be %.9g", i,
                      num_read(format, from + i * format->bytes), (double)floats.data[i],
                      (double)should);
    }
}

static void check_load(const struct kern *kern) {
    start(kern);
    for (int64_t count = 0; count <= MAX_COUNT; count += count < SHORT_COUNT ? 1 : 37) {
        for (int repeat = 0; repeat < 6; repeat++)
            run_load(kern, place(count));
    }
    for (uint32_t code = 0; code < 65536; code += CODES_AT_ONCE) {
        char *from = place(CODES_AT_ONCE);
        for (uint32_t i = 0; i < CODES_AT_ONCE; i++)
            num_write(format, from + i * (uint32_t)format->bytes,
                      format->bytes == 2 ? code + i : (code + i) << 16);
        run_load(kern, from);
    }
}

/* ---- store ---- */

static kern_fn *get_store(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->attention_store[index];
}

/* Any bits; or a code's number, or what lies in the middle of two of them or beside it. */
static float random_float(void) {
    const uint32_t bits = (uint32_t)test_rng_next(rng);
    float value, next;
    memcpy(&value, &bits, sizeof(value));
    if (format->bytes == 4 || test_rng_below(rng, 4) == 0)
        return value;
    value = (float)num_float_of_code(format, bits & 0xffff);
    next = (float)num_float_of_code(format, (bits + 1) & 0xffff);
    switch (test_rng_below(rng, 4)) {
    case 0:
        return value;
    case 1:
        return value / 2 + next / 2;
    case 2:
        return nextafterf(value / 2 + next / 2, INFINITY);
    default:
        return nextafterf(value / 2 + next / 2, -INFINITY);
    }
}

static void run_store(const struct kern *kern, int64_t count) {
    char *to = place(count);
    static unsigned char canary[MAX_COUNT * 4 + 65536];
    const int64_t end = now.at + count * format->bytes;
    memcpy(canary, elements->data, (size_t)elements->bytes);
    for (int64_t i = 0; i < count; i++)
        floats.data[i] = random_float();
    ((pkv_attention_store_fn *)kern->tested)(to, floats.data, now.scale, count);
    for (int64_t i = 0; i < count; i++) {
        const float value = floats.data[i] * now.scale + 0.0f;
        const uint32_t should = num_code_of_float(format, value);
        const uint32_t is = num_read(format, to + i * format->bytes);
        if (is != should)
            kern_fail("element %" PRId64 ", %.9g * scale, became 0x%" PRIx32
                      ", should be 0x%" PRIx32,
                      i, (double)floats.data[i], is, should);
    }
    for (int64_t i = 0; i < elements->bytes; i++) {
        if ((i < now.at || i >= end) && elements->data[i] != canary[i])
            kern_fail("wrote byte %" PRId64 " of the elements, which is not its own", i - now.at);
    }
}

static void check_store(const struct kern *kern) {
    static const float scales[] = {1.0f, 1.0f, 1.0f / 3, 0.0f, 1e-30f, 1e30f, INFINITY, NAN};
    start(kern);
    for (int64_t count = 0; count <= MAX_COUNT; count += count < SHORT_COUNT ? 1 : 37) {
        for (int64_t i = 0; i < COUNT(scales); i++) {
            now.scale = scales[i];
            run_store(kern, count);
        }
    }
    now.scale = 1;
    for (int repeat = 0; repeat < 100; repeat++)
        run_store(kern, MAX_COUNT);
}

/* ---- pair ---- */

static const char *const pair_name[] = {"attention_pair"};

static kern_fn *get_pair(const struct pkv_kernels *kernels, int index) {
    (void)index;
    return (kern_fn *)kernels->attention_pair;
}

static void run_pair(const struct kern *kern, int64_t count) {
    float given[MAX_COUNT];
    (void)place(count);
    for (int64_t i = 0; i < count; i++)
        given[i] = floats.data[i] = random_float();
    ((pkv_attention_pair_fn *)kern->tested)(floats.data, count);
    attention_floats_check(&floats);
    for (int64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, &floats.data[i / 2], sizeof(word));
        const uint32_t is = i % 2 == 0 ? word & 0xffff : word >> 16;
        const bool is_good = isnan(given[i]) ? isnan((float)num_float_of_code(format, is))
                                             : is == attention_dot_code(given[i]);
        if (!is_good || (i == count - 1 && i % 2 == 0 && word >> 16 != 0))
            kern_fail("element %" PRId64 ", %.9g, became 0x%" PRIx32 " in word 0x%" PRIx32
                      ", should be 0x%" PRIx32,
                      i, (double)given[i], is, word, attention_dot_code(given[i]));
    }
}

static void check_pair(const struct kern *kern) {
    start(kern);
    format = num_format_of(PKV_DTYPE_BF16);
    for (int64_t count = 0; count <= MAX_COUNT; count += count < SHORT_COUNT ? 1 : 37) {
        for (int repeat = 0; repeat < 6; repeat++)
            run_pair(kern, count);
    }
    for (int repeat = 0; repeat < 100; repeat++)
        run_pair(kern, MAX_COUNT);
}

/* ---- time ---- */

static void call_load(kern_fn *fn) {
    ((pkv_attention_load_fn *)fn)(floats.data, (const char *)elements->data, BENCH_COUNT);
}

static void call_store(kern_fn *fn) {
    ((pkv_attention_store_fn *)fn)((char *)elements->data, floats.data, 0.5f, BENCH_COUNT);
}

static void bench(const struct kern *kern, void (*call)(kern_fn *)) {
    (void)place(BENCH_COUNT);
    memset(elements->data, 0, (size_t)elements->bytes);
    memset(floats.data, 0, BENCH_COUNT * sizeof(float));
    kern_time(kern, "512 elements", BENCH_COUNT * (4 + format->bytes), call);
}

static void call_pair(kern_fn *fn) {
    ((pkv_attention_pair_fn *)fn)(floats.data, BENCH_COUNT);
}

static void bench_pair(const struct kern *kern) {
    bench(kern, call_pair);
}

static void bench_load(const struct kern *kern) {
    bench(kern, call_load);
}

static void bench_store(const struct kern *kern) {
    bench(kern, call_store);
}

const struct kern_family kern_attention_load = {
    PKV_NUM_ATTENTION_TYPES, load_names, get_load, NULL, check_load, bench_load, describe};
const struct kern_family kern_attention_pair = {1,          pair_name,  get_pair, NULL,
                                                check_pair, bench_pair, describe};
const struct kern_family kern_attention_store = {
    PKV_NUM_ATTENTION_TYPES, store_names, get_store, NULL, check_store, bench_store, describe};
