/* SPDX-License-Identifier: MIT
 *
 * Streams of rows, abreast from many places: every size of row, heads side by side, and
 * destinations that overlap, where the order of rows decides.
 */
#include <inttypes.h>
#include <stdio.h>

#include "copy_memory.h"

enum { BENCH_HEADS = 8 };

static const struct copy_memory *memory;
static struct test_rng *rng;

/* The case that runs. */
static struct {
    const char *group;
    int64_t dst_base, src_base;
    const struct pkv_stream *stream;
    const struct pkv_place *places;
    int64_t num_places;
} now;

static const char *const stream_names[] = {"copy_streams_cached", "copy_streams_stream"};

static kern_fn *get_streams(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->copy_streams[index];
}

static void plain_copy_streams(char *dst, const char *src, const struct pkv_stream *stream,
                               const struct pkv_place *places, int64_t num_places) {
    for (int64_t row = 0; row < stream->num_rows; row++) {
        for (int64_t p = 0; p < num_places; p++) {
            for (int64_t k = 0; k < stream->row_bytes; k++)
                dst[places[p].dst_offset + row * stream->dst_stride + k] =
                    src[places[p].src_offset + row * stream->src_stride + k];
        }
    }
}

static kern_fn *plain_streams(int index) {
    (void)index;
    return (kern_fn *)plain_copy_streams;
}

static void describe_streams(void) {
    printf("%s, dst + %" PRId64 ", src + %" PRId64 ", %" PRId64 " rows of %" PRId64
           " bytes, strides dst %" PRId64 " src %" PRId64 ", %" PRId64 " places {dst, src}:",
           now.group, now.dst_base, now.src_base, now.stream->num_rows, now.stream->row_bytes,
           now.stream->dst_stride, now.stream->src_stride, now.num_places);
    for (int64_t i = 0; i < min64(now.num_places, 8); i++)
        printf(" {%" PRId64 ", %" PRId64 "}", now.places[i].dst_offset, now.places[i].src_offset);
    if (now.num_places > 8)
        printf(" ...");
}

static void call_streams(const struct kern *kern) {
    ((pkv_copy_streams_fn *)kern->tested)(memory->dst + now.dst_base, memory->src + now.src_base,
                                          now.stream, now.places, now.num_places);
}

/* Touching, with a gap, as far apart as heads are in a token's row, or on top of each other. */
static int64_t random_stride(int64_t bytes) {
    switch (test_rng_below(rng, 5)) {
    case 0:
    case 1:
        return bytes;
    case 2:
        return bytes + test_rng_below(rng, 100);
    case 3:
        return bytes * test_rng_between(rng, 2, COPY_MAX_PLACES);
    default:
        return test_rng_between(rng, 0, bytes);
    }
}

static int64_t stream_bytes(const struct pkv_stream *stream, int64_t stride) {
    return stream->num_rows > 0 ? (stream->num_rows - 1) * stride + stream->row_bytes : 0;
}

/* Returns without a case when the stream does not fit the buffers. */
static void run_streams(const struct kern *kern, int64_t bytes, int64_t num_rows,
                        int64_t num_places) {
    struct pkv_stream *stream = memory->stream;
    *stream = (struct pkv_stream){bytes, num_rows, random_stride(bytes), random_stride(bytes)};
    const int64_t dst_bytes = stream_bytes(stream, stream->dst_stride);
    const int64_t src_bytes = stream_bytes(stream, stream->src_stride);
    if (dst_bytes > COPY_BYTES || src_bytes > COPY_BYTES)
        return;
    int64_t dst[COPY_MAX_PLACES], src[COPY_MAX_PLACES];
    const int64_t dst_high = copy_places(rng, dst, num_places, dst_bytes,
                                         test_rng_below(rng, 2) == 0 ? bytes : dst_bytes);
    copy_places(rng, src, num_places, src_bytes, test_rng_below(rng, 2) == 0 ? bytes : src_bytes);

    struct pkv_place *places = (void *)(memory->list_end - num_places * (int64_t)sizeof(*places));
    int64_t dst_low = dst_high, src_low = COPY_BYTES;
    for (int64_t i = 0; i < num_places; i++) {
        dst_low = min64(dst_low, dst[i]);
        src_low = min64(src_low, src[i]);
    }
    now.group = "streams";
    now.stream = stream;
    now.places = places;
    now.num_places = num_places;
    now.dst_base = test_rng_between(rng, 0, dst_low);
    now.src_base = test_rng_between(rng, 0, src_low);
    for (int64_t i = 0; i < num_places; i++)
        places[i] = (struct pkv_place){dst[i] - now.dst_base, src[i] - now.src_base};
    kern_count_case();
    ((pkv_copy_streams_fn *)kern->reference)(
        memory->expected + now.dst_base, memory->src + now.src_base, stream, places, num_places);
    call_streams(kern);
    copy_memory_compare(dst_low, dst_high);
}

/* Every size of row, few rows and many, few places and many. */
static void check_rows(const struct kern *kern) {
    static const int64_t more_sizes[] = {160, 191, 192,  193,  255,  256,  257,  511, 512,
                                         513, 656, 1024, 1025, 2048, 4096, 8191, 8192};
    static const int64_t few[] = {0, 1, 2, 3, 5, 16, 17, 33};
    static const int64_t places[] = {0, 1, 1, 1, 2, 3, 4, 7, 8, 16, COPY_MAX_PLACES};
    for (int64_t i = 0; i <= 130 + COUNT(more_sizes); i++) {
        const int64_t bytes = i <= 130 ? i : more_sizes[i - 131];
        for (int repeat = 0; repeat < 40; repeat++)
            run_streams(kern, bytes, PICK(rng, few), PICK(rng, places));
        run_streams(kern, bytes, test_rng_between(rng, 100, 600), PICK(rng, places));
    }
}

/* Two heads of rows, and between the rows a byte that belongs to someone else. */
static void check_neighbour_writes(const struct kern *kern) {
    enum { ROWS = 3 };
    for (int repeat = 0; repeat < 30; repeat++) {
        const int64_t bytes = test_rng_between(rng, 1, 300), head = ROWS * (bytes + 1);
        struct pkv_place *places = (void *)(memory->list_end - 2 * (int64_t)sizeof(*places));
        int64_t beside[2 * ROWS + 1];
        *memory->stream = (struct pkv_stream){bytes, ROWS, bytes + 1, 2 * bytes};
        places[0] = (struct pkv_place){1, 0};
        places[1] = (struct pkv_place){1 + head, bytes};
        now.group = "beside a neighbour that writes";
        now.stream = memory->stream;
        now.places = places;
        now.num_places = 2;
        now.dst_base = COPY_MIDDLE + test_rng_below(rng, 64);
        now.src_base = 0;
        for (int i = 0; i <= 2 * ROWS; i++)
            beside[i] = now.dst_base + i * (bytes + 1);
        kern_count_case();
        copy_beside_neighbour(kern, call_streams, beside, 2 * ROWS + 1);
    }
}

static void check_streams(const struct kern *kern) {
    rng = kern->rng;
    memory = copy_memory_get(rng->state);
    check_rows(kern);
    copy_memory_compare_all();
    check_neighbour_writes(kern);
    copy_memory_compare_all();
}

static const struct copy_bench_memory *bench;
static struct pkv_stream bench_stream;
static struct pkv_place bench_places[BENCH_HEADS];

static void call_bench(kern_fn *fn) {
    ((pkv_copy_streams_fn *)fn)(bench->dst, bench->src, &bench_stream, bench_places, BENCH_HEADS);
}

/* Heads side by side in the source, each with a region of its own in the destination. */
static void bench_streams(const struct kern *kern) {
    static const int64_t rows[] = {64, 128, 256, 1024};
    const int64_t num_rows = kern_benching() ? 4096 : 64;
    bench = copy_bench_memory_get();
    for (int64_t i = 0; i < COUNT(rows); i++) {
        char shape[64];
        bench_stream = (struct pkv_stream){rows[i], num_rows, rows[i], BENCH_HEADS * rows[i]};
        for (int64_t head = 0; head < BENCH_HEADS; head++)
            bench_places[head] = (struct pkv_place){head * num_rows * rows[i], head * rows[i]};
        snprintf(shape, sizeof(shape), "%d heads, %" PRId64 " rows of %" PRId64 " bytes",
                 BENCH_HEADS, num_rows, rows[i]);
        kern_time(kern, shape, BENCH_HEADS * num_rows * rows[i], call_bench);
    }
}

const struct kern_family kern_copy_streams = {PKV_NUM_COPY_KINDS, stream_names,  get_streams,
                                              plain_streams,      check_streams, bench_streams,
                                              describe_streams};
