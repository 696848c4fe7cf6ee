/* SPDX-License-Identifier: MIT
 *
 * Grids of pieces, over the same vector interface as template/copy_lines.h: heads of HND, fragments
 * of PA_NZ (32 bytes) and X_PACKED (16), single elements of TRANSPOSED.
 */
#ifndef PKV_KERNELS_TEMPLATE_COPY_GRIDS_H
#define PKV_KERNELS_TEMPLATE_COPY_GRIDS_H

#include "kernels/template/copy.h"
#include "kernels/template/unroll.h"

static inline void copy_piece(char *dst, const char *src, int64_t bytes, bool stream) {
    if (stream && bytes == 16)
        vec_stream_16(dst, src);
    else if (stream && bytes == 32)
        vec_stream_32(dst, src);
    else if (stream)
        stream_span(dst, src, bytes, NULL);
    else if (bytes >= LINE_BYTES)
        copy_span(dst, src, bytes);
    else if (bytes == 32)
        vec_copy_32(dst, src);
    else
        memcpy(dst, src, (size_t)bytes);
}

/* Inner steps of a tile. Few enough that the lines of both sides stay in the first-level cache
 * until the outer steps have used them up: fragments whose rows lie 1 KiB apart fall on few of its
 * sets, so 8 of those (0.81 of a plain copy; 32 gave 0.63); single elements use up 32 lines at once
 * on the other side. */
enum { TILE_FRAGMENTS = 8, TILE_ELEMENTS = 32 };

ALWAYS_INLINE void copy_tile(char *dst, const char *src, const struct pkv_grid *grid, int64_t bytes,
                             bool stream, int64_t num_inner, int64_t num_outer) {
    for (int64_t j = 0; j < num_inner; j++) {
        for (int64_t i = 0; i < num_outer; i++)
            copy_piece(dst + i * grid->dst_outer + j * grid->dst_inner,
                       src + i * grid->src_outer + j * grid->src_inner, bytes, stream);
    }
}

/* As many outer steps side by side as pieces fit in a line: where one side goes on along the outer
 * axis and the other along the inner one, each line of either is then visited once. */
static inline void copy_one_grid(char *dst, const char *src, const struct pkv_grid *grid,
                                 int64_t bytes, bool stream) {
    const int64_t abreast = bytes < LINE_BYTES ? LINE_BYTES / bytes : 1;
    const int64_t step = bytes < 16 ? TILE_ELEMENTS : TILE_FRAGMENTS;
    for (int64_t tile = 0; tile < grid->num_inner; tile += step) {
        const int64_t left = grid->num_inner - tile;
        const int64_t num_inner = left < step ? left : step;
        for (int64_t first = 0; first < grid->num_outer; first += abreast) {
            const int64_t rest = grid->num_outer - first;
            const int64_t count = rest < abreast ? rest : abreast;
            char *to = dst + first * grid->dst_outer + tile * grid->dst_inner;
            const char *from = src + first * grid->src_outer + tile * grid->src_inner;
            /* Whole tiles of fragments have constant counts, and compilers unroll them; in loops
             * they took up to 1.8 times as long. */
            if (bytes >= 16 && bytes < LINE_BYTES && num_inner == step && count == abreast)
                copy_tile(to, from, grid, bytes, stream, TILE_FRAGMENTS, LINE_BYTES / bytes);
            else
                copy_tile(to, from, grid, bytes, stream, num_inner, count);
        }
    }
}

/* Sizes that a copy becomes a load and a store for; the others are as the piece says. */
static inline void copy_grid_of_size(char *dst, const char *src, const struct pkv_grid *grid,
                                     bool stream) {
    switch (grid->piece_bytes) {
    case 1:
        copy_one_grid(dst, src, grid, 1, false);
        break;
    case 2:
        copy_one_grid(dst, src, grid, 2, false);
        break;
    case 4:
        copy_one_grid(dst, src, grid, 4, false);
        break;
    case 8:
        copy_one_grid(dst, src, grid, 8, false);
        break;
    case 16:
        copy_one_grid(dst, src, grid, 16, stream);
        break;
    case 32:
        copy_one_grid(dst, src, grid, 32, stream);
        break;
    default:
        copy_one_grid(dst, src, grid, grid->piece_bytes, stream && grid->piece_bytes >= LINE_BYTES);
    }
}

/* The pieces of one token lie equal, large steps apart and wait for each other in memory; those of
 * different tokens do not: piece by piece over all places takes 0.65 to 0.9 of the time of place by
 * place. */
static inline void copy_across(char *dst, const char *src, const struct pkv_grid *grid,
                               const struct pkv_place *places, int64_t num_places, int64_t bytes) {
    for (int64_t j = 0; j < grid->num_inner; j++) {
        for (int64_t i = 0; i < num_places; i++)
            copy_piece(dst + places[i].dst_offset + j * grid->dst_inner,
                       src + places[i].src_offset + j * grid->src_inner, bytes, false);
    }
}

/* Smaller pieces are not worth a visit each. */
enum { MIN_ACROSS_PIECE = 16 };

static void copy_grids_cached(char *dst, const char *src, const struct pkv_grid *grid,
                              const struct pkv_place *places, int64_t num_places) {
    const int64_t bytes = grid->piece_bytes;
    if (grid->num_outer == 1 && grid->dst_inner >= LINE_BYTES && bytes >= MIN_ACROSS_PIECE) {
        if (bytes == 16)
            copy_across(dst, src, grid, places, num_places, 16);
        else if (bytes == 32)
            copy_across(dst, src, grid, places, num_places, 32);
        else
            copy_across(dst, src, grid, places, num_places, bytes);
        return;
    }
    for (int64_t i = 0; i < num_places; i++)
        copy_grid_of_size(dst + places[i].dst_offset, src + places[i].src_offset, grid, false);
}

/* Streaming pays where pieces fill whole lines, each by itself or one after the other. A single row
 * in short pieces is no stream: ordinary stores are a little faster for it. */
static inline bool fills_lines(const struct pkv_grid *grid, const char *dst) {
    const int64_t bytes = grid->piece_bytes;
    if (bytes >= LINE_BYTES)
        return grid->num_outer > 1 || grid->dst_inner == bytes;
    return (bytes == 16 || bytes == 32) && grid->dst_inner == bytes &&
           grid->dst_outer % bytes == 0 && grid->num_inner * bytes >= 2 * LINE_BYTES &&
           (uintptr_t)dst % (uintptr_t)bytes == 0;
}

/* Pieces of single rows, far apart in the destination, stream from this size on, if their pages are
 * touched and their sources fetched before: pieces of 512 bytes took 1.1 to 1.7 times as long row
 * by row, those of 256 bytes 1.03 to 1.5 times by ordinary stores. Pieces of 128 bytes take 1.03 to
 * 1.25 times as long this way. */
enum { MIN_STREAM_ACROSS = 256 };

static inline void stream_across(char *dst, const char *src, const struct pkv_grid *grid,
                                 const struct pkv_place *places, int64_t num_places) {
    /* Half of what spans take: pieces of 256 bytes take 1.05 times as long with 2 KiB or 8. */
    enum { ACROSS_AHEAD_BYTES = 4096 };
    const int64_t places_ahead = ACROSS_AHEAD_BYTES / grid->piece_bytes + 1;
    for (int64_t j = 0; j < grid->num_inner; j++) {
        char *const to = dst + j * grid->dst_inner;
        const char *const from = src + j * grid->src_inner;
        for (int64_t i = 0; i < num_places; i++) {
            if (i % TOUCH_BATCH == 0) {
                for (int64_t k = i; k < num_places && k < i + TOUCH_BATCH; k++)
                    vec_prefetch_page(to + places[k].dst_offset);
            }
            if (i + places_ahead < num_places) {
                const char *ahead = from + places[i + places_ahead].src_offset;
                for (int64_t byte = 0; byte < grid->piece_bytes; byte += LINE_BYTES)
                    vec_prefetch_read(ahead + byte);
            }
            stream_span(to + places[i].dst_offset, from + places[i].src_offset, grid->piece_bytes,
                        NULL);
        }
    }
}

static void copy_grids_stream(char *dst, const char *src, const struct pkv_grid *grid,
                              const struct pkv_place *places, int64_t num_places) {
    if (grid->num_outer == 1 && grid->dst_inner != grid->piece_bytes &&
        grid->piece_bytes >= MIN_STREAM_ACROSS) {
        stream_across(dst, src, grid, places, num_places);
        vec_fence();
        return;
    }
    for (int64_t first = 0, count; first < num_places; first += count) {
        char *to = dst + places[first].dst_offset;
        count = 1;
        if (fills_lines(grid, to)) {
            copy_grid_of_size(to, src + places[first].src_offset, grid, true);
            continue;
        }
        while (first + count < num_places &&
               !fills_lines(grid, dst + places[first + count].dst_offset))
            count++;
        copy_grids_cached(dst, src, grid, places + first, count);
    }
    vec_fence();
}

#endif
