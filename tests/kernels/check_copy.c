/* SPDX-License-Identifier: MIT
 *
 * Spans of every size, alignment, number, order and place that could trip a vector loop.
 */
#include <inttypes.h>
#include <stdio.h>

#include "copy_memory.h"

enum { MAX_SPANS = 70, BENCH_SPANS = 8192 };

/* Both sides of every power of two, of the cache line and of the vectors; 656 and 1024 are rows of
 * real models. */
static const int64_t sizes[] = {
    0,   1,   2,   3,   4,   5,    7,    8,    9,    12,   15,   16,   17,   23,  24,  31,
    32,  33,  34,  35,  36,  37,   38,   39,   40,   41,   42,   43,   44,   45,  46,  47,
    48,  49,  50,  51,  52,  53,   54,   55,   56,   57,   58,   59,   60,   61,  62,  63,
    64,  65,  95,  96,  97,  127,  128,  129,  191,  192,  193,  255,  256,  257, 319, 320,
    321, 511, 512, 513, 656, 1023, 1024, 1025, 2047, 2048, 4095, 4096, 4097, 8192};
static const int64_t big_sizes[] = {16383, 16384, 32704,  32767, 32768,
                                    32769, 65536, 100001, 262147};
static const int64_t row_sizes[] = {1, 2, 32, 64, 96, 127, 256, 512, 656, 1024, 1152};

static const struct copy_memory *memory;
static struct test_rng *rng;

/* The case that runs. */
static struct {
    const char *group;
    int64_t dst_base, src_base;
    const struct pkv_span *spans;
    int64_t num_spans;
    int64_t row_bytes;
} now;

static void start(const struct kern *kern) {
    rng = kern->rng;
    memory = copy_memory_get(rng->state);
}

static const char *const span_names[] = {"copy_spans_cached", "copy_spans_stream"};

static kern_fn *get_spans(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->copy_spans[index];
}

static void plain_copy_spans(char *dst, const char *src, const struct pkv_span *spans,
                             int64_t num_spans, int64_t row_bytes) {
    for (int64_t i = 0; i < num_spans; i++) {
        for (int64_t k = 0; k < spans[i].num_rows * row_bytes; k++)
            dst[spans[i].dst_offset + k] = src[spans[i].src_offset + k];
    }
}

static kern_fn *plain_spans(int index) {
    (void)index;
    return (kern_fn *)plain_copy_spans;
}

static void describe_spans(void) {
    printf("%s, dst + %" PRId64 ", src + %" PRId64 ", %" PRId64 " spans of rows of %" PRId64
           " bytes, {dst, src, num_rows}:",
           now.group, now.dst_base, now.src_base, now.num_spans, now.row_bytes);
    for (int64_t i = 0; i < min64(now.num_spans, 8); i++)
        printf(" {%" PRId64 ", %" PRId64 ", %" PRId64 "}", now.spans[i].dst_offset,
               now.spans[i].src_offset, now.spans[i].num_rows);
    if (now.num_spans > 8)
        printf(" ...");
}

/* Spans whose offsets count from the start of the buffers. The kernel gets them from some other
 * origin, and right in front of forbidden memory, where reading one too many is a crash. */
static void run_spans(const struct kern *kern, const char *group, const struct pkv_span *list,
                      int64_t num_spans, int64_t row_bytes) {
    struct pkv_span *spans = (void *)(memory->list_end - num_spans * (int64_t)sizeof(*spans));
    int64_t dst_low = COPY_BYTES, src_low = COPY_BYTES, dst_high = 0;
    for (int64_t i = 0; i < num_spans; i++) {
        dst_low = min64(dst_low, list[i].dst_offset);
        dst_high = max64(dst_high, list[i].dst_offset + list[i].num_rows * row_bytes);
        src_low = min64(src_low, list[i].src_offset);
    }
    now.group = group;
    now.dst_base = test_rng_between(rng, 0, dst_low);
    now.src_base = test_rng_between(rng, 0, src_low);
    now.spans = spans;
    now.num_spans = num_spans;
    now.row_bytes = row_bytes;
    for (int64_t i = 0; i < num_spans; i++)
        spans[i] = (struct pkv_span){list[i].dst_offset - now.dst_base,
                                     list[i].src_offset - now.src_base, list[i].num_rows};
    kern_count_case();
    ((pkv_copy_spans_fn *)kern->reference)(memory->expected + now.dst_base,
                                           memory->src + now.src_base, spans, num_spans, row_bytes);
    ((pkv_copy_spans_fn *)kern->tested)(memory->dst + now.dst_base, memory->src + now.src_base,
                                        spans, num_spans, row_bytes);
    copy_memory_compare(num_spans > 0 ? dst_low : now.dst_base, max64(dst_high, now.dst_base));
}

static void run_span(const struct kern *kern, const char *group, int64_t dst, int64_t src,
                     int64_t bytes) {
    run_spans(kern, group, &(struct pkv_span){dst, src, bytes}, 1, 1);
}

/* One span of every size, pushed against each end of one buffer while the other takes every
 * alignment. */
static void check_ends(const struct kern *kern) {
    for (int64_t i = 0; i < COUNT(sizes); i++) {
        const int64_t bytes = sizes[i], last = COPY_BYTES - bytes;
        for (int64_t shift = 0; shift < 64; shift++) {
            run_span(kern, "source at its end", COPY_MIDDLE + shift, last, bytes);
            run_span(kern, "source at its start", COPY_MIDDLE + shift, 0, bytes);
            run_span(kern, "destination at its end", last, COPY_MIDDLE + shift, bytes);
            run_span(kern, "destination at its start", 0, COPY_MIDDLE + shift, bytes);
        }
        run_span(kern, "both at their ends", last, last, bytes);
        run_span(kern, "both at their starts", 0, 0, bytes);
    }
}

static void check_residues(const struct kern *kern) {
    for (int64_t dst = 0; dst < 64; dst++) {
        for (int64_t src = 0; src < 64; src++) {
            for (int repeat = 0; repeat < 3; repeat++)
                run_span(kern, "alignments", COPY_MIDDLE + dst, COPY_MIDDLE + src,
                         PICK(rng, sizes));
        }
    }
}

/* 0 ... 70 spans side by side in the destination, in random order, from anywhere. */
static void check_side_by_side(const struct kern *kern) {
    for (int64_t num_spans = 0; num_spans <= MAX_SPANS; num_spans++) {
        for (int repeat = 0; repeat < 6; repeat++) {
            struct pkv_span spans[MAX_SPANS];
            int64_t order[MAX_SPANS], total = 0;
            test_rng_permutation(rng, order, num_spans);
            for (int64_t i = 0; i < num_spans; i++) {
                spans[order[i]].num_rows = PICK(rng, sizes);
                spans[order[i]].dst_offset = total;
                spans[order[i]].src_offset = copy_place(rng, spans[order[i]].num_rows);
                total += spans[order[i]].num_rows;
            }
            const int64_t at = copy_place(rng, total);
            for (int64_t i = 0; i < num_spans; i++)
                spans[i].dst_offset += at;
            run_spans(kern, "side by side", spans, num_spans, 1);
        }
    }
}

/* Destinations on top of each other: the later span's bytes must stay. */
static void check_overlap(const struct kern *kern) {
    for (int64_t num_spans = 2; num_spans <= MAX_SPANS; num_spans++) {
        for (int64_t window = 64; window <= 8192; window *= 2) {
            struct pkv_span spans[MAX_SPANS];
            const int64_t at = copy_place(rng, window);
            const bool all_at_once = test_rng_below(rng, 4) == 0;
            for (int64_t i = 0; i < num_spans; i++) {
                const int64_t bytes = all_at_once ? window : test_rng_between(rng, 0, window);
                const int64_t room = window - bytes;
                spans[i] = (struct pkv_span){at + test_rng_between(rng, 0, room),
                                             copy_place(rng, bytes), bytes};
            }
            run_spans(kern, "overlapping destinations", spans, num_spans, 1);
        }
    }
}

/* What scatter and gather make: rows of one size, to or from random slots, some of them twice, and
 * runs of rows, which may begin within others. Tokens that are scattered follow each other, and
 * some are left out. */
static void check_rows(const struct kern *kern) {
    enum { NUM_SLOTS = 256, MAX_RUN = 3 };
    for (int64_t num_spans = 0; num_spans <= MAX_SPANS; num_spans++) {
        for (int repeat = 0; repeat < 4; repeat++) {
            struct pkv_span spans[MAX_SPANS];
            const int64_t bytes = PICK(rng, row_sizes);
            const int64_t stride = bytes + test_rng_below(rng, 3) * 8;
            const int64_t room = (NUM_SLOTS - 1) * stride + MAX_RUN * bytes;
            const int64_t longest = test_rng_between(rng, 1, MAX_RUN);
            const int64_t dst = copy_place(rng, room), src = copy_place(rng, room);
            const bool gather = test_rng_below(rng, 2) == 0;
            int64_t token = 0;
            for (int64_t i = 0; i < num_spans; i++) {
                const int64_t slot = test_rng_below(rng, NUM_SLOTS);
                spans[i] = (struct pkv_span){dst + (gather ? i : slot) * stride,
                                             src + (gather ? slot : token) * stride,
                                             test_rng_between(rng, 1, longest)};
                token += spans[i].num_rows + (test_rng_below(rng, 8) == 0);
            }
            run_spans(kern, gather ? "gathered rows" : "scattered rows", spans, num_spans, bytes);
        }
    }
}

/* A few long spans, apart from each other in random order or anywhere, from anywhere or from one
 * place after the other: a kernel may copy some of them side by side, fetch what comes next early,
 * and do without when they overlap. */
static void check_long(const struct kern *kern) {
    enum { MAX_LONG = 9 };
    for (int repeat = 0; repeat < 400; repeat++) {
        struct pkv_span spans[MAX_LONG];
        int64_t order[MAX_LONG], end = test_rng_below(rng, 300), from = test_rng_below(rng, 300);
        const int64_t num_spans = test_rng_between(rng, 1, MAX_LONG);
        const bool apart = test_rng_below(rng, 2) == 0, in_order = test_rng_below(rng, 2) == 0;
        test_rng_permutation(rng, order, num_spans);
        for (int64_t i = 0; i < num_spans; i++) {
            struct pkv_span *span = &spans[order[i]];
            const bool is_short = test_rng_below(rng, 4) == 0;
            span->num_rows = is_short                      ? PICK(rng, sizes)
                             : test_rng_below(rng, 3) == 0 ? PICK(rng, big_sizes)
                                                           : test_rng_between(rng, 500, 9000);
            if (apart && end + span->num_rows > COPY_BYTES)
                span->num_rows = COPY_BYTES - end;
            span->src_offset = copy_place(rng, span->num_rows);
            span->dst_offset = apart ? end : copy_place(rng, span->num_rows);
            end = min64(end + span->num_rows + test_rng_below(rng, 3) * 21, COPY_BYTES);
        }
        for (int64_t i = 0; in_order && i < num_spans; i++) {
            spans[i].num_rows = min64(spans[i].num_rows, COPY_BYTES - from);
            spans[i].src_offset = from;
            from = min64(from + spans[i].num_rows + test_rng_below(rng, 3) * 21, COPY_BYTES);
        }
        run_spans(kern, apart ? "long, apart" : "long", spans, num_spans, 1);
    }
}

static void call_last_spans(const struct kern *kern) {
    ((pkv_copy_spans_fn *)kern->tested)(memory->dst + now.dst_base, memory->src + now.src_base,
                                        now.spans, now.num_spans, now.row_bytes);
}

/* Rows of one size with a byte between them that belongs to someone else. */
static void check_neighbour_writes(const struct kern *kern) {
    enum { ROWS = 4 };
    for (int repeat = 0; repeat < 30; repeat++) {
        struct pkv_span spans[ROWS];
        int64_t beside[ROWS + 1];
        const int64_t bytes = test_rng_between(rng, 1, 300);
        const int64_t at = beside[0] = COPY_MIDDLE + test_rng_below(rng, 64);
        for (int i = 0; i < ROWS; i++) {
            spans[i] = (struct pkv_span){at + i * (bytes + 1) + 1, copy_place(rng, bytes), 1};
            beside[i + 1] = at + (i + 1) * (bytes + 1);
        }
        run_spans(kern, "beside a neighbour that writes", spans, ROWS, bytes);
        copy_beside_neighbour(kern, call_last_spans, beside, ROWS + 1);
    }
}

static void check_spans(const struct kern *kern) {
    void (*const groups[])(const struct kern *) = {
        check_ends, check_residues, check_side_by_side,    check_overlap,
        check_rows, check_long,     check_neighbour_writes};
    start(kern);
    for (int64_t i = 0; i < COUNT(groups); i++) {
        groups[i](kern);
        copy_memory_compare_all();
    }
}

static const struct copy_bench_memory *bench;
static struct pkv_span bench_list[BENCH_SPANS];
static int64_t num_bench_spans, bench_row_bytes;

static void call_spans(kern_fn *fn) {
    ((pkv_copy_spans_fn *)fn)(bench->dst, bench->src, bench_list, num_bench_spans, bench_row_bytes);
}

/* Rows to random slots, or from them, in memory far larger than the caches; and a few in the
 * caches. */
static void bench_rows(const struct kern *kern, int64_t bytes, int64_t num_rows,
                       const char *where) {
    char shape[64];
    num_bench_spans = num_rows;
    bench_row_bytes = bytes;
    snprintf(shape, sizeof(shape), "%" PRId64 " rows of %" PRId64 " bytes, %s", num_rows, bytes,
             where);
    kern_time(kern, shape, num_rows * bytes, call_spans);
}

static void bench_spans(const struct kern *kern) {
    static const int64_t rows[] = {64, 256, 1024, 4096};
    const int64_t many = kern_benching() ? BENCH_SPANS : 64;
    bench = copy_bench_memory_get();
    for (int64_t i = 0; i < COUNT(rows); i++) {
        const int64_t bytes = rows[i], num_slots = COPY_BENCH_BYTES / bytes;
        for (int64_t k = 0; k < many; k++)
            bench_list[k] = (struct pkv_span){k * bytes, k * bytes, 1};
        bench_rows(kern, bytes, 16, "side by side");
        for (int64_t k = 0; k < many; k++)
            bench_list[k].dst_offset = test_rng_below(kern->rng, num_slots) * bytes;
        bench_rows(kern, bytes, many, "to random slots");
        for (int64_t k = 0; k < many; k++)
            bench_list[k] = (struct pkv_span){k * bytes, bench_list[k].dst_offset, 1};
        bench_rows(kern, bytes, many, "from random slots");
    }
}

const struct kern_family kern_copy_spans = {PKV_NUM_COPY_KINDS, span_names,  get_spans,
                                            plain_spans,        check_spans, bench_spans,
                                            describe_spans};
