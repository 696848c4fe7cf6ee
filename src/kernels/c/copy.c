/* SPDX-License-Identifier: MIT
 *
 * The definition of the copies. A plain machine has no streaming stores: all kinds are the same
 * here.
 */
#include "kernels/c/copy.h"

#include <string.h>

/* dst[span.dst_offset + k] = src[span.src_offset + k], 0 <= k < span.num_rows * row_bytes, span
 * after span. */
void pkv_copy_spans_c(char *dst, const char *src, const struct pkv_span *spans, int64_t num_spans,
                      int64_t row_bytes) {
    for (int64_t i = 0; i < num_spans; i++)
        memcpy(dst + spans[i].dst_offset, src + spans[i].src_offset,
               (size_t)(spans[i].num_rows * row_bytes));
}

void pkv_copy_grids_c(char *dst, const char *src, const struct pkv_grid *grid,
                      const struct pkv_place *places, int64_t num_places) {
    for (int64_t place = 0; place < num_places; place++) {
        char *to = dst + places[place].dst_offset;
        const char *from = src + places[place].src_offset;
        for (int64_t i = 0; i < grid->num_outer; i++) {
            for (int64_t j = 0; j < grid->num_inner; j++)
                memcpy(to + i * grid->dst_outer + j * grid->dst_inner,
                       from + i * grid->src_outer + j * grid->src_inner, (size_t)grid->piece_bytes);
        }
    }
}

void pkv_copy_columns_c(char *dst, const struct pkv_column *columns, int64_t num_columns,
                        const struct pkv_packed_place *places, int64_t num_places) {
    for (int64_t i = 0; i < num_places; i++) {
        char *to = dst + places[i].dst_offset;
        for (int64_t j = 0; j < num_columns; j++) {
            memcpy(to, columns[j].src + places[i].row * columns[j].src_stride,
                   (size_t)columns[j].bytes);
            to += columns[j].bytes;
        }
    }
}

void pkv_copy_streams_c(char *dst, const char *src, const struct pkv_stream *stream,
                        const struct pkv_place *places, int64_t num_places) {
    for (int64_t row = 0; row < stream->num_rows; row++) {
        for (int64_t place = 0; place < num_places; place++)
            memcpy(dst + places[place].dst_offset + row * stream->dst_stride,
                   src + places[place].src_offset + row * stream->src_stride,
                   (size_t)stream->row_bytes);
    }
}

void pkv_copy_init_c(struct pkv_kernels *kernels) {
    for (int kind = 0; kind < PKV_NUM_COPY_KINDS; kind++) {
        kernels->copy_spans[kind] = pkv_copy_spans_c;
        kernels->copy_grids[kind] = pkv_copy_grids_c;
        kernels->copy_columns[kind] = pkv_copy_columns_c;
        kernels->copy_streams[kind] = pkv_copy_streams_c;
    }
}
