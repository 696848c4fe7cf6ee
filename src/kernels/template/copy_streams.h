/* SPDX-License-Identifier: MIT
 *
 * Rows of one size that go on at many places, over the same vector interface as
 * template/copy_lines.h: heads side by side in the source, each with a region of its own in the
 * destination.
 */
#ifndef PKV_KERNELS_TEMPLATE_COPY_STREAMS_H
#define PKV_KERNELS_TEMPLATE_COPY_STREAMS_H

#include "kernels/template/copy_lines.h"

/* Row after row the source is read in the order of memory, and so far ahead it is asked for: twice
 * the latency of memory at full speed, and a part of the first-level cache. */
enum { STREAM_AHEAD_BYTES = 8192 };

/* Every row begins and ends with a line of the destination. */
static inline bool rows_are_whole_lines(const char *dst, const struct pkv_stream *stream,
                                        const struct pkv_place *places, int64_t num_places) {
    uintptr_t bits = (uintptr_t)stream->row_bytes | (uintptr_t)stream->dst_stride;
    for (int64_t i = 0; i < num_places; i++)
        bits |= (uintptr_t)(dst + places[i].dst_offset);
    return bits % LINE_BYTES == 0;
}

enum row_stores { CACHED_ROWS, STREAMED_ROWS, STREAMED_LINES };

static inline void copy_streams(char *dst, const char *src, const struct pkv_stream *stream,
                                const struct pkv_place *places, int64_t num_places,
                                enum row_stores stores) {
    const int64_t bytes = stream->row_bytes;
    const int64_t wanted = STREAM_AHEAD_BYTES / (num_places * bytes + 1);
    const int64_t rows_ahead = wanted > 1 ? wanted : 1;
    for (int64_t row = 0; row < stream->num_rows; row++) {
        const bool goes_on = row + rows_ahead < stream->num_rows;
        for (int64_t i = 0; i < num_places; i++) {
            char *to = dst + places[i].dst_offset + row * stream->dst_stride;
            const char *from = src + places[i].src_offset + row * stream->src_stride;
            for (int64_t k = 0; goes_on && k < bytes; k += LINE_BYTES)
                vec_prefetch_read(from + rows_ahead * stream->src_stride + k);
            if (stores == STREAMED_LINES)
                stream_lines(to, from, bytes / LINE_BYTES);
            else if (stores == STREAMED_ROWS)
                stream_span(to, from, bytes, NULL);
            else
                copy_span(to, from, bytes);
        }
    }
}

/* One place whose rows touch on both sides is one long row. */
static inline bool is_one_span(const struct pkv_stream *stream, int64_t num_places) {
    return num_places == 1 && stream->dst_stride == stream->row_bytes &&
           stream->src_stride == stream->row_bytes;
}

static void copy_streams_cached(char *dst, const char *src, const struct pkv_stream *stream,
                                const struct pkv_place *places, int64_t num_places) {
    if (is_one_span(stream, num_places))
        copy_span(dst + places[0].dst_offset, src + places[0].src_offset,
                  stream->row_bytes * stream->num_rows);
    else
        copy_streams(dst, src, stream, places, num_places, CACHED_ROWS);
}

static void copy_streams_stream(char *dst, const char *src, const struct pkv_stream *stream,
                                const struct pkv_place *places, int64_t num_places) {
    if (is_one_span(stream, num_places))
        stream_span(dst + places[0].dst_offset, src + places[0].src_offset,
                    stream->row_bytes * stream->num_rows, NULL);
    else if (rows_are_whole_lines(dst, stream, places, num_places))
        copy_streams(dst, src, stream, places, num_places, STREAMED_LINES);
    else
        copy_streams(dst, src, stream, places, num_places, STREAMED_ROWS);
    vec_fence();
}

#endif
