/* SPDX-License-Identifier: MIT
 *
 * Packed rows: columns of every size that meet anywhere in a line, rows that touch, and rows at one
 * place, of which the last one stays.
 */
#include <inttypes.h>
#include <stdio.h>

#include "copy_memory.h"

enum { MAX_COLUMNS = 16, MAX_COLUMN_BYTES = 700, BENCH_ROWS = 8192, BENCH_ROW_BYTES = 656 };

static const struct copy_memory *memory;
static struct test_rng *rng;

/* The case that runs. */
static struct {
    const char *group;
    int64_t dst_base, row_bytes, num_columns, num_places;
    struct pkv_column columns[MAX_COLUMNS];
    const struct pkv_packed_place *places;
} now;

static const char *const column_names[] = {"copy_columns_cached", "copy_columns_stream"};

static kern_fn *get_columns(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->copy_columns[index];
}

static void plain_copy_columns(char *dst, const struct pkv_column *columns, int64_t num_columns,
                               const struct pkv_packed_place *places, int64_t num_places) {
    for (int64_t p = 0; p < num_places; p++) {
        int64_t at = places[p].dst_offset;
        for (int64_t c = 0; c < num_columns; c++) {
            for (int64_t k = 0; k < columns[c].bytes; k++)
                dst[at++] = columns[c].src[places[p].row * columns[c].src_stride + k];
        }
    }
}

static kern_fn *plain_columns(int index) {
    (void)index;
    return (kern_fn *)plain_copy_columns;
}

static void describe_columns(void) {
    printf("%s, dst + %" PRId64 ", columns {bytes, stride}:", now.group, now.dst_base);
    for (int64_t i = 0; i < now.num_columns; i++)
        printf(" {%" PRId64 ", %" PRId64 "}", now.columns[i].bytes, now.columns[i].src_stride);
    printf(", %" PRId64 " places {dst, row}:", now.num_places);
    for (int64_t i = 0; i < min64(now.num_places, 8); i++)
        printf(" {%" PRId64 ", %" PRId64 "}", now.places[i].dst_offset, now.places[i].row);
    if (now.num_places > 8)
        printf(" ...");
}

static void call_columns(const struct kern *kern) {
    ((pkv_copy_columns_fn *)kern->tested)(memory->dst + now.dst_base, now.columns, now.num_columns,
                                          now.places, now.num_places);
}

/* Columns of these sizes, each with num_rows rows somewhere in the source, often against one of its
 * ends. */
static void make_columns(const int64_t *sizes, int64_t num_columns, int64_t num_rows) {
    now.num_columns = num_columns;
    now.row_bytes = 0;
    for (int64_t i = 0; i < num_columns; i++) {
        const int64_t stride =
            test_rng_below(rng, 6) == 0 ? 0 : sizes[i] + test_rng_below(rng, 3) * 7;
        const int64_t bytes = num_rows > 0 ? (num_rows - 1) * stride + sizes[i] : 0;
        now.columns[i] =
            (struct pkv_column){memory->src + copy_place(rng, bytes), stride, sizes[i]};
        now.row_bytes += sizes[i];
    }
}

static void run_columns(const struct kern *kern, const char *group, int64_t num_rows,
                        int64_t num_places) {
    int64_t dst[COPY_MAX_PLACES];
    const int64_t step = now.row_bytes + (test_rng_below(rng, 3) == 0 ? 16 : 0);
    const int64_t high = copy_places(rng, dst, num_places, now.row_bytes, step);
    struct pkv_packed_place *places =
        (void *)(memory->list_end - num_places * (int64_t)sizeof(*places));
    int64_t low = high;
    for (int64_t i = 0; i < num_places; i++)
        low = min64(low, dst[i]);
    /* At one place or apart. */
    for (int64_t i = 0; i < num_places && step > 0; i++)
        dst[i] -= (dst[i] - low) % step;
    now.group = group;
    now.places = places;
    now.num_places = num_places;
    now.dst_base = test_rng_between(rng, 0, low);
    for (int64_t i = 0; i < num_places; i++)
        places[i] = (struct pkv_packed_place){dst[i] - now.dst_base, test_rng_below(rng, num_rows)};
    kern_count_case();
    ((pkv_copy_columns_fn *)kern->reference)(memory->expected + now.dst_base, now.columns,
                                             now.num_columns, places, num_places);
    call_columns(kern);
    copy_memory_compare(low, high);
}

/* Two and three columns of every size up to two lines, at every place in a line. */
static void check_sizes(const struct kern *kern) {
    for (int64_t first = 0; first <= 130; first++) {
        for (int repeat = 0; repeat < 64; repeat++) {
            const int64_t sizes[3] = {first, test_rng_below(rng, 131), test_rng_below(rng, 70)};
            make_columns(sizes, test_rng_between(rng, 1, 3), 5);
            run_columns(kern, "small columns", 5, test_rng_between(rng, 0, 3));
        }
    }
}

/* The published rows, and any number of columns of any size. */
static void check_rows(const struct kern *kern) {
    static const int64_t published[2][3] = {{512, 128, 16}, {512, 16, 128}};
    for (int repeat = 0; repeat < 2000; repeat++) {
        int64_t sizes[MAX_COLUMNS];
        const int64_t count = test_rng_between(rng, 0, MAX_COLUMNS);
        make_columns(published[repeat % 2], 3, 40);
        run_columns(kern, "published rows", 40, test_rng_between(rng, 0, COPY_MAX_PLACES));
        for (int64_t i = 0; i < count; i++)
            sizes[i] = test_rng_below(rng, test_rng_below(rng, 2) == 0 ? 20 : MAX_COLUMN_BYTES);
        make_columns(sizes, count, 9);
        run_columns(kern, "any columns", 9, test_rng_between(rng, 0, COPY_MAX_PLACES));
    }
}

/* More rows than the kernels take at once, one behind the other and back to front. */
static void check_many(const struct kern *kern) {
    enum { ROWS = 150 };
    static const int64_t sizes[3] = {512, 128, 16};
    struct pkv_packed_place *places = (void *)(memory->list_end - ROWS * (int64_t)sizeof(*places));
    make_columns(sizes, 3, ROWS);
    for (int repeat = 0; repeat < 64; repeat++) {
        now.group = "many rows";
        now.places = places;
        now.num_places = ROWS;
        now.dst_base = COPY_MIDDLE + repeat;
        for (int64_t i = 0; i < ROWS; i++)
            places[i] = (struct pkv_packed_place){
                (repeat % 2 ? ROWS - 1 - i : i / 2) * now.row_bytes, (i * 7) % ROWS};
        kern_count_case();
        ((pkv_copy_columns_fn *)kern->reference)(memory->expected + now.dst_base, now.columns, 3,
                                                 places, ROWS);
        call_columns(kern);
        copy_memory_compare(now.dst_base, now.dst_base + ROWS * now.row_bytes);
    }
}

/* Rows with a byte of someone else's before, between and behind them. */
static void check_neighbour_writes(const struct kern *kern) {
    enum { ROWS = 3 };
    for (int repeat = 0; repeat < 30; repeat++) {
        const int64_t sizes[3] = {test_rng_between(rng, 1, 150), test_rng_between(rng, 1, 50),
                                  test_rng_between(rng, 1, 150)};
        struct pkv_packed_place *places =
            (void *)(memory->list_end - ROWS * (int64_t)sizeof(*places));
        int64_t beside[ROWS + 1];
        make_columns(sizes, 3, ROWS);
        now.group = "beside a neighbour that writes";
        now.places = places;
        now.num_places = ROWS;
        now.dst_base = COPY_MIDDLE + test_rng_below(rng, 64);
        for (int i = 0; i <= ROWS; i++)
            beside[i] = now.dst_base + i * (now.row_bytes + 1);
        for (int64_t i = 0; i < ROWS; i++)
            places[i] = (struct pkv_packed_place){1 + i * (now.row_bytes + 1), i};
        kern_count_case();
        copy_beside_neighbour(kern, call_columns, beside, ROWS + 1);
    }
}

static void check_columns(const struct kern *kern) {
    rng = kern->rng;
    memory = copy_memory_get(rng->state);
    check_sizes(kern);
    check_rows(kern);
    check_many(kern);
    copy_memory_compare_all();
    check_neighbour_writes(kern);
    copy_memory_compare_all();
}

static const struct copy_bench_memory *bench;
static struct pkv_column bench_list[3];
static struct pkv_packed_place bench_places[BENCH_ROWS];
static int64_t num_bench_places;

static void call_bench(kern_fn *fn) {
    ((pkv_copy_columns_fn *)fn)(bench->dst, bench_list, 3, bench_places, num_bench_places);
}

static void bench_columns(const struct kern *kern) {
    static const int64_t widths[3] = {512, 128, 16};
    const int64_t num_slots = COPY_BENCH_BYTES / BENCH_ROW_BYTES;
    const char *from;
    bench = copy_bench_memory_get();
    from = bench->src;
    num_bench_places = kern_benching() ? BENCH_ROWS : 64;
    for (int i = 0; i < 3; i++) {
        bench_list[i] = (struct pkv_column){from, widths[i], widths[i]};
        from += num_bench_places * widths[i];
    }
    for (int64_t i = 0; i < num_bench_places; i++)
        bench_places[i] = (struct pkv_packed_place){i * BENCH_ROW_BYTES, i};
    kern_time(kern, "rows of 512 + 128 + 16 bytes, side by side",
              num_bench_places * BENCH_ROW_BYTES, call_bench);
    for (int64_t i = 0; i < num_bench_places; i++)
        bench_places[i].dst_offset = test_rng_below(kern->rng, num_slots) * BENCH_ROW_BYTES;
    kern_time(kern, "rows of 512 + 128 + 16 bytes, to random slots",
              num_bench_places * BENCH_ROW_BYTES, call_bench);
}

const struct kern_family kern_copy_columns = {PKV_NUM_COPY_KINDS, column_names,  get_columns,
                                              plain_columns,      check_columns, bench_columns,
                                              describe_columns};
