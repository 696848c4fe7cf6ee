/* SPDX-License-Identifier: MIT
 *
 * From runs of rows to kernel calls. Whole rows become spans, which the span kernels copy side by side;
 * rows in pieces become grids.
 */
#include "ops/rows.h"

#include <pagedkv/cpu.h>

enum { LINE_BYTES = 64 };

/* Spans collected before a kernel is called: 6 KiB of stack, enough for its batches. */
enum { MAX_SPANS = 256 };

/* Runs that are handed to a grid kernel at once. */
enum { MAX_PLACES = 64 };

/* Runs whose rows are adjacent on both sides are spans as they are. */
static void move_adjacent_rows(const struct pkv_row_mover *mover, const struct pkv_row_run *runs,
                               int64_t num_runs) {
    struct pkv_span spans[MAX_SPANS];
    for (int64_t first = 0, count; first < num_runs; first += count) {
        count = num_runs - first < MAX_SPANS ? num_runs - first : MAX_SPANS;
        for (int64_t i = 0; i < count; i++)
            spans[i] = (struct pkv_span){runs[first + i].dst_offset, runs[first + i].src_offset,
                                         runs[first + i].num_rows * mover->nest.piece_bytes};
        mover->kernels->copy_spans[mover->kind](mover->dst, mover->src, spans, count);
    }
}

static void move_single_rows(const struct pkv_row_mover *mover, const struct pkv_row_run *runs,
                             int64_t num_runs) {
    struct pkv_span spans[MAX_SPANS];
    int64_t count = 0;
    for (const struct pkv_row_run *run = runs; run < runs + num_runs; run++) {
        for (int64_t row = 0; row < run->num_rows; row++) {
            if (count == MAX_SPANS) {
                mover->kernels->copy_spans[mover->kind](mover->dst, mover->src, spans, count);
                count = 0;
            }
            spans[count++] = (struct pkv_span){run->dst_offset + row * mover->dst_row_stride,
                                               run->src_offset + row * mover->src_row_stride,
                                               mover->nest.piece_bytes};
        }
    }
    mover->kernels->copy_spans[mover->kind](mover->dst, mover->src, spans, count);
}

/* The grid of num_rows rows and the innermost level. Small pieces: the inner loop runs where the destination
 * is densest, since stores cost more than loads. Pieces of a line and more: row after row, whole on one side,
 * a few streams that go on on the other. Several rows never become a grid of one row: theirs may overlap in part. */
static struct pkv_grid make_grid(const struct pkv_row_mover *mover, int64_t num_rows) {
    const struct pkv_copy_level *level = &mover->nest.level[PKV_COPY_LEVELS - 1];
    const bool rows_inside = num_rows > 1 && level->count > 1 &&
                             mover->nest.piece_bytes < LINE_BYTES &&
                             mover->dst_row_stride < level->dst_stride;
    const struct pkv_copy_level rows = {num_rows, mover->dst_row_stride, mover->src_row_stride};
    const struct pkv_copy_level *outer = rows_inside ? level : &rows;
    const struct pkv_copy_level *inner = rows_inside ? &rows : level;
    return (struct pkv_grid){
        .piece_bytes = mover->nest.piece_bytes,
        .num_outer = outer->count,
        .dst_outer = outer->dst_stride,
        .src_outer = outer->src_stride,
        .num_inner = inner->count,
        .dst_inner = inner->dst_stride,
        .src_inner = inner->src_stride,
    };
}

/* Runs of the same length share one grid and go to the kernel together, level by level. */
static void move_grids(const struct pkv_row_mover *mover, const struct pkv_row_run *runs,
                       int64_t num_runs) {
    const struct pkv_copy_level *level = mover->nest.level;
    struct pkv_place places[MAX_PLACES];
    for (int64_t first = 0, count; first < num_runs; first += count) {
        const struct pkv_grid grid = make_grid(mover, runs[first].num_rows);
        for (count = 0; first + count < num_runs && count < MAX_PLACES; count++) {
            const struct pkv_row_run *run = &runs[first + count];
            if (run->num_rows != runs[first].num_rows)
                break;
            places[count] = (struct pkv_place){run->dst_offset, run->src_offset};
        }
        for (int64_t i = 0; i < level[0].count; i++) {
            for (int64_t j = 0; j < level[1].count; j++)
                mover->kernels->copy_grids[mover->kind](
                    mover->dst + i * level[0].dst_stride + j * level[1].dst_stride,
                    mover->src + i * level[0].src_stride + j * level[1].src_stride, &grid, places,
                    count);
        }
    }
}

void pkv_rows_move(const struct pkv_row_mover *mover, const struct pkv_row_run *runs,
                   int64_t num_runs) {
    const int64_t bytes = mover->nest.piece_bytes;
    if (mover->nest.num_levels > 0)
        move_grids(mover, runs, num_runs);
    else if (mover->dst_row_stride == bytes && mover->src_row_stride == bytes)
        move_adjacent_rows(mover, runs, num_runs);
    else
        move_single_rows(mover, runs, num_runs);
}

const char *pkv_rows_kernel_name(const struct pkv_copy_nest *nest, int32_t copy_level) {
    const bool grid = nest->num_levels > 0;
    switch (copy_level) {
    case PKV_CPU_LEVEL_AVX2:
        return grid ? "copy_grids_avx2" : "copy_spans_avx2";
    case PKV_CPU_LEVEL_AVX512:
        return grid ? "copy_grids_avx512" : "copy_spans_avx512";
    case PKV_CPU_LEVEL_NEON:
        return grid ? "copy_grids_neon" : "copy_spans_neon";
    default:
        return grid ? "copy_grids_c" : "copy_spans_c";
    }
}

int64_t pkv_rows_num_parts(uint64_t bytes, int32_t num_threads) {
    const uint64_t worth = bytes / PKV_PART_BYTES;
    return worth < 1 ? 1 : worth < (uint64_t)num_threads ? (int64_t)worth : num_threads;
}

void pkv_rows_share(int64_t total, int64_t part, int64_t num_parts, int64_t *first, int64_t *end) {
    const int64_t each = total / num_parts, rest = total % num_parts;
    *first = part * each + (part < rest ? part : rest);
    *end = *first + each + (part < rest);
}
