/* SPDX-License-Identifier: MIT
 *
 * Grids of pieces: every size of piece, every pattern of strides, and places that overlap.
 */
#include <inttypes.h>
#include <stdio.h>

#include "copy_memory.h"

enum { BENCH_PLACES = 256 };

static const struct copy_memory *memory;
static struct test_rng *rng;

/* The case that runs. */
static struct {
    const char *group;
    int64_t dst_base, src_base;
    const struct pkv_grid *grid;
    const struct pkv_place *places;
    int64_t num_places;
} now;

static void start(const struct kern *kern) {
    rng = kern->rng;
    memory = copy_memory_get(rng->state);
}

static const char *const grid_names[] = {"copy_grids_cached", "copy_grids_stream"};

static kern_fn *get_grids(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->copy_grids[index];
}

static void plain_copy_grids(char *dst, const char *src, const struct pkv_grid *grid,
                             const struct pkv_place *places, int64_t num_places) {
    for (int64_t p = 0; p < num_places; p++) {
        for (int64_t i = 0; i < grid->num_outer; i++) {
            for (int64_t j = 0; j < grid->num_inner; j++) {
                for (int64_t k = 0; k < grid->piece_bytes; k++)
                    dst[places[p].dst_offset + i * grid->dst_outer + j * grid->dst_inner + k] =
                        src[places[p].src_offset + i * grid->src_outer + j * grid->src_inner + k];
            }
        }
    }
}

static kern_fn *plain_grids(int index) {
    (void)index;
    return (kern_fn *)plain_copy_grids;
}

static void describe_grids(void) {
    printf("%s, dst + %" PRId64 ", src + %" PRId64 ", pieces of %" PRId64 " bytes, outer %" PRId64
           " (dst %" PRId64 ", src %" PRId64 "), inner %" PRId64 " (dst %" PRId64 ", src %" PRId64
           "), %" PRId64 " places {dst, src}:",
           now.group, now.dst_base, now.src_base, now.grid->piece_bytes, now.grid->num_outer,
           now.grid->dst_outer, now.grid->src_outer, now.grid->num_inner, now.grid->dst_inner,
           now.grid->src_inner, now.num_places);
    for (int64_t i = 0; i < min64(now.num_places, 8); i++)
        printf(" {%" PRId64 ", %" PRId64 "}", now.places[i].dst_offset, now.places[i].src_offset);
    if (now.num_places > 8)
        printf(" ...");
}

enum grid_pattern {
    INNER_CONTIGUOUS, /* inner pieces touch, outer rows may have a gap */
    OUTER_CONTIGUOUS, /* transposed: outer pieces touch */
    INNER_PADDED,     /* gaps everywhere */
    OUTER_PADDED,
    INNER_APART, /* single tokens of a fragmented layout: every piece on a line of its own */
    NUM_DST_PATTERNS,
    INNER_BROADCAST = NUM_DST_PATTERNS, /* only a source may read a byte twice */
    OUTER_BROADCAST,
    ALL_BROADCAST,
    OVERLAPPING,
    NUM_SRC_PATTERNS
};

static void make_strides(int pattern, int64_t bytes, int64_t num_outer, int64_t num_inner,
                         int64_t *outer, int64_t *inner) {
    const int64_t gap = test_rng_between(rng, 1, 40), more = test_rng_below(rng, 2) * gap;
    switch (pattern) {
    case INNER_CONTIGUOUS:
        *inner = bytes;
        *outer = num_inner * *inner + more;
        break;
    case OUTER_CONTIGUOUS:
        *outer = bytes;
        *inner = num_outer * *outer + more;
        break;
    case INNER_PADDED:
        *inner = bytes + gap;
        *outer = num_inner * *inner + more;
        break;
    case OUTER_PADDED:
        *outer = bytes + gap;
        *inner = num_outer * *outer + more;
        break;
    case INNER_APART:
        *inner = bytes * test_rng_between(rng, 2, 20);
        *outer = num_inner * *inner + more;
        break;
    case INNER_BROADCAST:
        *inner = 0;
        *outer = bytes + more;
        break;
    case OUTER_BROADCAST:
        *inner = bytes + more;
        *outer = 0;
        break;
    case ALL_BROADCAST:
        *inner = *outer = 0;
        break;
    default:
        *inner = test_rng_between(rng, 0, bytes);
        *outer = test_rng_between(rng, 0, bytes);
    }
}

static int64_t grid_bytes(const struct pkv_grid *grid, int64_t outer, int64_t inner) {
    if (grid->num_outer == 0 || grid->num_inner == 0)
        return 0;
    return (grid->num_outer - 1) * outer + (grid->num_inner - 1) * inner + grid->piece_bytes;
}

/* Places of grids of one row: equal, beside each other, or one between the pieces of another.
 * Returns the end of the last one. */
static int64_t place_single_rows(int64_t *offsets, int64_t num_places, const struct pkv_grid *grid,
                                 int64_t dst_bytes) {
    const int64_t abreast = max64(grid->dst_inner / grid->piece_bytes, 1);
    const int64_t row_bytes = max64(dst_bytes, grid->num_inner * grid->dst_inner);
    const int64_t num_rows = min64(COPY_MAX_PLACES, COPY_BYTES / max64(row_bytes, 1) - 1);
    int64_t high = 0;
    for (int64_t i = 0; i < num_places; i++) {
        const int64_t slot = num_rows < 1 ? 0 : test_rng_below(rng, num_rows * abreast);
        offsets[i] = slot / abreast * row_bytes + slot % abreast * grid->piece_bytes;
        high = max64(high, offsets[i] + dst_bytes);
    }
    return high;
}

/* Returns without a case when the grid does not fit the buffers. */
static void run_grids(const struct kern *kern, const char *group, int64_t bytes, int64_t num_outer,
                      int64_t num_inner, int dst_pattern, int src_pattern) {
    struct pkv_grid *grid = memory->grid;
    *grid = (struct pkv_grid){.piece_bytes = bytes, .num_outer = num_outer, .num_inner = num_inner};
    make_strides(dst_pattern, bytes, num_outer, num_inner, &grid->dst_outer, &grid->dst_inner);
    make_strides(src_pattern, bytes, num_outer, num_inner, &grid->src_outer, &grid->src_inner);
    const int64_t dst_bytes = grid_bytes(grid, grid->dst_outer, grid->dst_inner);
    const int64_t src_bytes = grid_bytes(grid, grid->src_outer, grid->src_inner);
    if (dst_bytes > COPY_BYTES || src_bytes > COPY_BYTES)
        return;
    /* The stride of a single step is never taken. */
    if (num_outer == 1 && test_rng_below(rng, 2) == 0)
        grid->dst_outer = grid->src_outer = test_rng_below(rng, COPY_BYTES);
    if (num_inner == 1 && test_rng_below(rng, 2) == 0)
        grid->dst_inner = grid->src_inner = test_rng_below(rng, COPY_BYTES);

    const int64_t num_pieces = num_outer * num_inner;
    const int64_t most = num_pieces > 256 || bytes * num_pieces > 4096 ? 2 : COPY_MAX_PLACES;
    const int64_t num_places = test_rng_below(rng, 2) == 0 ? 1 : test_rng_between(rng, 0, most);
    int64_t dst[COPY_MAX_PLACES], src[COPY_MAX_PLACES];
    const int64_t dst_high = num_outer == 1
                                 ? place_single_rows(dst, num_places, grid, dst_bytes)
                                 : copy_places(rng, dst, num_places, dst_bytes,
                                               test_rng_below(rng, 2) == 0 ? bytes : dst_bytes);
    copy_places(rng, src, num_places, src_bytes, test_rng_below(rng, 2) == 0 ? bytes : src_bytes);

    struct pkv_place *places = (void *)(memory->list_end - num_places * (int64_t)sizeof(*places));
    int64_t dst_low = dst_high, src_low = COPY_BYTES;
    for (int64_t i = 0; i < num_places; i++) {
        dst_low = min64(dst_low, dst[i]);
        src_low = min64(src_low, src[i]);
    }
    now.group = group;
    now.grid = grid;
    now.places = places;
    now.num_places = num_places;
    now.dst_base = test_rng_between(rng, 0, dst_low);
    now.src_base = test_rng_between(rng, 0, src_low);
    for (int64_t i = 0; i < num_places; i++)
        places[i] = (struct pkv_place){dst[i] - now.dst_base, src[i] - now.src_base};
    kern_count_case();
    ((pkv_copy_grids_fn *)kern->reference)(memory->expected + now.dst_base,
                                           memory->src + now.src_base, grid, places, num_places);
    ((pkv_copy_grids_fn *)kern->tested)(memory->dst + now.dst_base, memory->src + now.src_base,
                                        grid, places, num_places);
    copy_memory_compare(dst_low, dst_high);
}

/* Every size of piece in every pattern, with random counts. */
static void check_pieces(const struct kern *kern) {
    static const int64_t more_sizes[] = {47, 48, 49, 63, 64, 65, 96, 100, 127, 128, 129, 255, 1000};
    static const int64_t counts[] = {0,  1,  2,  3,  4,  5,  7,  8,  9,   15,
                                     16, 17, 31, 32, 33, 63, 64, 65, 100, 129};
    for (int64_t i = 0; i < 40 + COUNT(more_sizes); i++) {
        const int64_t bytes = i < 40 ? i + 1 : more_sizes[i - 40];
        for (int dst = 0; dst < NUM_DST_PATTERNS; dst++) {
            for (int src = 0; src < NUM_SRC_PATTERNS; src++) {
                for (int repeat = 0; repeat < 3; repeat++)
                    run_grids(kern, "sizes of pieces", bytes, PICK(rng, counts), PICK(rng, counts),
                              dst, src);
            }
        }
    }
}

/* Every pair of small counts, for the sizes that are elements or fragments of a layout. */
static void check_counts(const struct kern *kern) {
    for (int64_t bytes = 1; bytes <= 32; bytes *= 2) {
        for (int64_t outer = 0; outer <= 36; outer++) {
            for (int64_t inner = 0; inner <= 36; inner++)
                run_grids(kern, "counts", bytes, outer, inner,
                          (int)test_rng_below(rng, NUM_DST_PATTERNS),
                          (int)test_rng_below(rng, NUM_SRC_PATTERNS));
        }
    }
}

/* The rows of a block of tokens in each layout, both ways: transposed values, packed keys, NZ. */
static void check_layouts(const struct kern *kern) {
    static const int64_t tokens[] = {1, 15, 16, 17, 31, 32, 64, 127, 128};
    static const int64_t fragments[] = {1, 3, 4, 8, 16, 36, 64, 80, 128, 256};
    for (int64_t bytes = 1; bytes <= 32; bytes *= 2) {
        for (int64_t i = 0; i < COUNT(tokens); i++) {
            for (int64_t j = 0; j < COUNT(fragments); j++) {
                run_grids(kern, "transposed write", bytes, fragments[j], tokens[i],
                          INNER_CONTIGUOUS, OUTER_CONTIGUOUS);
                run_grids(kern, "transposed read", bytes, tokens[i], fragments[j], INNER_CONTIGUOUS,
                          OUTER_PADDED);
            }
        }
    }
}

static void call_last_grids(const struct kern *kern) {
    ((pkv_copy_grids_fn *)kern->tested)(memory->dst + now.dst_base, memory->src + now.src_base,
                                        now.grid, now.places, now.num_places);
}

/* Rows of pieces that touch, and between the rows bytes that belong to someone else: a single one,
 * or so many that every row is aligned and may be streamed. */
static void check_neighbour_writes(const struct kern *kern) {
    enum { ROWS = 4 };
    for (int repeat = 0; repeat < 30; repeat++) {
        const int64_t bytes = INT64_C(1) << test_rng_below(rng, 6);
        const int64_t inner = test_rng_between(rng, 1, 20), row_bytes = inner * bytes;
        const int64_t gap = repeat % 2 == 0 ? 1 : 32;
        struct pkv_place *place = (void *)(memory->list_end - (int64_t)sizeof(*place));
        int64_t beside[ROWS + 1];
        *memory->grid =
            (struct pkv_grid){bytes, ROWS, row_bytes + gap, row_bytes, inner, bytes, bytes};
        *place = (struct pkv_place){gap, 0};
        now.group = "beside a neighbour that writes";
        now.dst_base = COPY_MIDDLE + test_rng_below(rng, 64) / gap * gap;
        now.src_base = 0;
        now.grid = memory->grid;
        now.places = place;
        now.num_places = 1;
        beside[0] = now.dst_base + gap - 1;
        for (int i = 0; i < ROWS; i++)
            beside[i + 1] = now.dst_base + (i + 1) * (gap + row_bytes);
        kern_count_case();
        copy_beside_neighbour(kern, call_last_grids, beside, ROWS + 1);
    }
}

static void check_grids(const struct kern *kern) {
    void (*const groups[])(const struct kern *) = {check_pieces, check_counts, check_layouts,
                                                   check_neighbour_writes};
    start(kern);
    for (int64_t i = 0; i < COUNT(groups); i++) {
        groups[i](kern);
        copy_memory_compare_all();
    }
}

static const struct copy_bench_memory *bench;
static struct pkv_grid bench_grid;
static struct pkv_place bench_places[BENCH_PLACES];
static int64_t num_bench_places;

static void call_grids(kern_fn *fn) {
    ((pkv_copy_grids_fn *)fn)(bench->dst, bench->src, &bench_grid, bench_places, num_bench_places);
}

/* A row of 512 bytes in pieces: a block of tokens written to a fragmented layout and read from it,
 * and single tokens written all over it. */
static void bench_grids(const struct kern *kern) {
    enum { TOKENS = 128 };
    static const int64_t pieces[] = {1, 2, 4, 16, 32};
    bench = copy_bench_memory_get();
    const int64_t many = kern_benching() ? BENCH_PLACES : 16;
    for (int64_t i = 0; i < COUNT(pieces); i++) {
        const int64_t bytes = pieces[i], num_pieces = 512 / bytes, apart = TOKENS * bytes;
        const int64_t block_bytes = num_pieces * apart;
        const struct pkv_grid write = {bytes, num_pieces, apart, bytes, TOKENS, bytes, 512};
        const struct pkv_grid read = {bytes, TOKENS, 512, bytes, num_pieces, bytes, apart};
        const struct pkv_grid token = {bytes, 1, 0, 0, num_pieces, apart, bytes};
        char shape[64];
        num_bench_places = 1;
        bench_places[0] = (struct pkv_place){0, 0};
        bench_grid = write;
        snprintf(shape, sizeof(shape), "block in pieces of %" PRId64 " bytes, write", bytes);
        kern_time(kern, shape, block_bytes, call_grids);
        bench_grid = read;
        snprintf(shape, sizeof(shape), "block in pieces of %" PRId64 " bytes, read", bytes);
        kern_time(kern, shape, block_bytes, call_grids);
        bench_grid = token;
        num_bench_places = many;
        for (int64_t k = 0; k < many; k++) {
            const int64_t block = test_rng_below(kern->rng, COPY_BENCH_BYTES / block_bytes);
            const int64_t offset = test_rng_below(kern->rng, TOKENS);
            bench_places[k] = (struct pkv_place){block * block_bytes + offset * bytes, k * 512};
        }
        snprintf(shape, sizeof(shape), "%" PRId64 " tokens in pieces of %" PRId64 " bytes", many,
                 bytes);
        kern_time(kern, shape, many * 512, call_grids);
    }
}

const struct kern_family kern_copy_grids = {PKV_NUM_COPY_KINDS, grid_names,  get_grids,
                                            plain_grids,        check_grids, bench_grids,
                                            describe_grids};
