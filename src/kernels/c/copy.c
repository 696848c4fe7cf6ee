/* SPDX-License-Identifier: MIT
 *
 * The definition of the copies. A plain machine has no streaming stores: all kinds are the same
 * here.
 */
#include "kernels/c/copy.h"

#include <string.h>

/* dst[span.dst_offset + k] = src[span.src_offset + k], 0 <= k < span.bytes, span after span. */
void pkv_copy_spans_c(char *dst, const char *src, const struct pkv_span *spans, int64_t num_spans) {
    for (int64_t i = 0; i < num_spans; i++)
        memcpy(dst + spans[i].dst_offset, src + spans[i].src_offset, (size_t)spans[i].bytes);
}

/* One body for each size of piece: with a constant size the copy becomes a load and a store. */
static inline void copy_grid(char *dst, const char *src, const struct pkv_grid *grid,
                             size_t bytes) {
    for (int64_t i = 0; i < grid->num_outer; i++) {
        char *to = dst + i * grid->dst_outer;
        const char *from = src + i * grid->src_outer;
        for (int64_t j = 0; j < grid->num_inner; j++)
            memcpy(to + j * grid->dst_inner, from + j * grid->src_inner, bytes);
    }
}

void pkv_copy_grid_c(char *dst, const char *src, const struct pkv_grid *grid) {
    switch (grid->piece_bytes) {
    case 1:
        copy_grid(dst, src, grid, 1);
        break;
    case 2:
        copy_grid(dst, src, grid, 2);
        break;
    case 4:
        copy_grid(dst, src, grid, 4);
        break;
    case 8:
        copy_grid(dst, src, grid, 8);
        break;
    case 16:
        copy_grid(dst, src, grid, 16);
        break;
    case 32:
        copy_grid(dst, src, grid, 32);
        break;
    default:
        copy_grid(dst, src, grid, (size_t)grid->piece_bytes);
    }
}

void pkv_kernels_init_c(struct pkv_kernels *kernels) {
    for (int kind = 0; kind < PKV_NUM_COPY_KINDS; kind++) {
        kernels->copy_spans[kind] = pkv_copy_spans_c;
        kernels->copy_grid[kind] = pkv_copy_grid_c;
    }
    pkv_slots_init_c(kernels);
}
