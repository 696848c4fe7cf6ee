/* SPDX-License-Identifier: MIT
 *
 * From spans of rows to kernel calls. Rows that are whole on both sides are copied as they are;
 * rows in pieces become grids.
 */
#include "ops/rows.h"

#include <pagedkv/cpu.h>

enum { LINE_BYTES = 64 };

/* Spans collected before a kernel is called: 6 KiB of stack, enough for its batches. */
enum { MAX_SPANS = 256 };

/* Spans that are handed to a grid kernel at once. */
enum { MAX_PLACES = 64 };

/* Rows apart from each other, each a span of its own. */
static void move_single_rows(const struct pkv_row_mover *mover, const struct pkv_span *spans,
                             int64_t num_spans) {
    pkv_copy_spans_fn *const copy = mover->kernels->copy_spans[mover->kind];
    struct pkv_span rows[MAX_SPANS];
    int64_t count = 0;
    for (const struct pkv_span *span = spans; span < spans + num_spans; span++) {
        for (int64_t row = 0; row < span->num_rows; row++) {
            if (count == MAX_SPANS) {
                copy(mover->dst, mover->src, rows, count, mover->nest.piece_bytes);
                count = 0;
            }
            rows[count++] = (struct pkv_span){span->dst_offset + row * mover->dst_row_stride,
                                              span->src_offset + row * mover->src_row_stride, 1};
        }
    }
    copy(mover->dst, mover->src, rows, count, mover->nest.piece_bytes);
}

/* The grid of num_rows rows and the innermost level. Small pieces: the inner loop runs where the
 * destination is densest, since stores cost more than loads. Pieces of a line and more: row after
 * row, whole on one side, a few streams that go on on the other. Several rows never become a grid
 * of one row: theirs may overlap in part. */
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

/* Spans of the same length share one grid and go to the kernel together, level by level. */
static void move_grids(const struct pkv_row_mover *mover, const struct pkv_span *spans,
                       int64_t num_spans) {
    const struct pkv_copy_level *level = mover->nest.level;
    struct pkv_place places[MAX_PLACES];
    for (int64_t first = 0, count; first < num_spans; first += count) {
        const struct pkv_grid grid = make_grid(mover, spans[first].num_rows);
        for (count = 0; first + count < num_spans && count < MAX_PLACES; count++) {
            const struct pkv_span *span = &spans[first + count];
            if (span->num_rows != spans[first].num_rows)
                break;
            places[count] = (struct pkv_place){span->dst_offset, span->src_offset};
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

void pkv_rows_move(const struct pkv_row_mover *mover, const struct pkv_span *spans,
                   int64_t num_spans) {
    const int64_t bytes = mover->nest.piece_bytes;
    if (mover->nest.num_levels > 0)
        move_grids(mover, spans, num_spans);
    else if (mover->dst_row_stride == bytes && mover->src_row_stride == bytes)
        mover->kernels->copy_spans[mover->kind](mover->dst, mover->src, spans, num_spans, bytes);
    else
        move_single_rows(mover, spans, num_spans);
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

void pkv_rows_share(int64_t total, int64_t part, int64_t num_parts, int64_t *first, int64_t *end) {
    const int64_t each = total / num_parts, rest = total % num_parts;
    *first = part * each + (part < rest ? part : rest);
    *end = *first + each + (part < rest);
}
