/* SPDX-License-Identifier: MIT
 *
 * The bodies of the copies over a small vector interface. The including file defines, for its
 * instruction set:
 *
 *   vec, VEC_BYTES               a vector of VEC_BYTES bytes; LINE_BYTES is a multiple of it
 *   vec_load, vec_store          unaligned
 *   vec_stream                   around the caches if the machine can; destination aligned to VEC_BYTES
 *   vec_stream_16, vec_stream_32 copy that many bytes around the caches if the machine can; destination
 *                                aligned to them
 *   vec_prefetch_page(p)         start the translation of p's page, keep the line out of the way
 *   vec_prefetch_read(p)         fetch p's line
 *   vec_prefetch_write(p)        fetch p's line for writing
 *   vec_fence()                  order streaming stores before what follows
 *
 * and gets copy_spans_cached and copy_spans_stream; template/copy_grids.h adds copy_grids_cached and
 * copy_grids_stream.
 */
#ifndef PKV_KERNELS_TEMPLATE_COPY_H
#define PKV_KERNELS_TEMPLATE_COPY_H

#include <stdbool.h>
#include <string.h>

#include "kernels/c/copy.h"

enum { LINE_BYTES = 64 };

static inline void copy_line(char *dst, const char *src) {
    vec v[LINE_BYTES / VEC_BYTES];
    for (int i = 0; i < LINE_BYTES / VEC_BYTES; i++)
        v[i] = vec_load(src + i * VEC_BYTES);
    for (int i = 0; i < LINE_BYTES / VEC_BYTES; i++)
        vec_store(dst + i * VEC_BYTES, v[i]);
}

/* The whole lines of so many bytes. Four in a round: what goes around the copies takes room among the instructions in
 * flight, and the fewer of them, the earlier the processor comes to what is behind the last row. */
static inline void copy_lines(char *dst, const char *src, int64_t bytes) {
    enum { LINES = 4 };
    for (; bytes >= LINES * LINE_BYTES; bytes -= LINES * LINE_BYTES) {
        for (int line = 0; line < LINES; line++)
            copy_line(dst + line * LINE_BYTES, src + line * LINE_BYTES);
        dst += LINES * LINE_BYTES;
        src += LINES * LINE_BYTES;
    }
    for (; bytes >= LINE_BYTES; bytes -= LINE_BYTES) {
        copy_line(dst, src);
        dst += LINE_BYTES;
        src += LINE_BYTES;
    }
}

static inline void copy_span(char *dst, const char *src, int64_t bytes) {
    const size_t tail = (size_t)bytes % LINE_BYTES;
    copy_lines(dst, src, bytes);
    if (tail > 0)
        memcpy(dst + bytes - tail, src + bytes - tail, tail);
}

static inline void stream_lines(char *dst, const char *src, int64_t num_lines) {
    for (int64_t line = 0; line < num_lines; line++) {
        vec v[LINE_BYTES / VEC_BYTES];
        for (int i = 0; i < LINE_BYTES / VEC_BYTES; i++)
            v[i] = vec_load(src + line * LINE_BYTES + i * VEC_BYTES);
        for (int i = 0; i < LINE_BYTES / VEC_BYTES; i++)
            vec_stream(dst + line * LINE_BYTES + i * VEC_BYTES, v[i]);
    }
}

/* Whole lines stream; what shares a line with its neighbours before and after them is stored as usual. */
static inline void stream_span(char *dst, const char *src, int64_t bytes) {
    const int64_t head = (int64_t)(-(uintptr_t)dst % LINE_BYTES);
    if (head >= bytes) {
        memcpy(dst, src, (size_t)bytes);
        return;
    }
    if (head > 0) {
        memcpy(dst, src, (size_t)head);
        dst += head;
        src += head;
        bytes -= head;
    }
    const int64_t num_lines = bytes / LINE_BYTES, tail = bytes % LINE_BYTES;
    stream_lines(dst, src, num_lines);
    if (tail > 0)
        memcpy(dst + num_lines * LINE_BYTES, src + num_lines * LINE_BYTES, (size_t)tail);
}

/* Random rows wait for address translation more than for memory. Touching the pages of a batch first lets
 * the page walks run side by side. Fewer than 12 at a time leave walkers idle; more than half of the
 * first-level TLB (72 to 96 entries on the cores measured) gain nothing and begin to push each other out. */
enum { TOUCH_BATCH = 32 };

static void copy_spans_cached(char *dst, const char *src, const struct pkv_span *spans,
                              int64_t num_spans, int64_t row_bytes) {
    for (int64_t first = 0; first < num_spans; first += TOUCH_BATCH) {
        const struct pkv_span *batch = spans + first;
        const int64_t rest = num_spans - first;
        const int64_t count = rest < TOUCH_BATCH ? rest : TOUCH_BATCH;
        for (int64_t i = 0; i < count; i++)
            vec_prefetch_write(dst + batch[i].dst_offset);
        for (int64_t i = 0; i < count; i++)
            copy_span(dst + batch[i].dst_offset, src + batch[i].src_offset,
                      batch[i].num_rows * row_bytes);
    }
}

/* Spans that are copied side by side: four streams keep more of memory busy than one, most of all when
 * each begins where the hardware's prefetch has nothing to go by. So far ahead the source is fetched, from each span, or
 * from the beginning of the next four. */
enum { LANES = 4, CHUNK_LINES = 4, AHEAD_BYTES = 1024 };

/* Side by side, no span is later than another: only spans apart from each other may go together. */
static inline bool are_apart(const struct pkv_span *spans, int64_t row_bytes) {
    bool apart = true;
    for (int i = 0; i < LANES; i++) {
        const int64_t end = spans[i].dst_offset + spans[i].num_rows * row_bytes;
        for (int j = 0; j < i; j++)
            apart &= end <= spans[j].dst_offset ||
                     spans[j].dst_offset + spans[j].num_rows * row_bytes <= spans[i].dst_offset;
    }
    return apart;
}

/* next: the four spans behind these; NULL: there are fewer. */
static void stream_lanes(char *dst, const char *src, const struct pkv_span *spans,
                         const struct pkv_span *next, int64_t row_bytes) {
    char *to[LANES];
    const char *from[LANES];
    int64_t bytes[LANES], common = INT64_MAX;
    for (int lane = 0; lane < LANES; lane++) {
        to[lane] = dst + spans[lane].dst_offset;
        from[lane] = src + spans[lane].src_offset;
        bytes[lane] = spans[lane].num_rows * row_bytes;
        const int64_t rest = (int64_t)(-(uintptr_t)to[lane] % LINE_BYTES);
        const int64_t head = rest < bytes[lane] ? rest : bytes[lane];
        if (head > 0)
            memcpy(to[lane], from[lane], (size_t)head);
        to[lane] += head;
        from[lane] += head;
        bytes[lane] -= head;
        common = bytes[lane] < common ? bytes[lane] : common;
    }
    enum { CHUNK_BYTES = CHUNK_LINES * LINE_BYTES };
    int64_t done = 0;
    for (; done + CHUNK_BYTES <= common; done += CHUNK_BYTES) {
        for (int lane = 0; lane < LANES; lane++) {
            const char *ahead = done + AHEAD_BYTES < common ? from[lane] + done + AHEAD_BYTES
                                : next ? src + next[lane].src_offset + done % AHEAD_BYTES
                                       : NULL;
            for (int line = 0; ahead && line < CHUNK_LINES; line++)
                vec_prefetch_read(ahead + line * LINE_BYTES);
            stream_lines(to[lane] + done, from[lane] + done, CHUNK_LINES);
        }
    }
    for (int lane = 0; lane < LANES; lane++)
        stream_span(to[lane] + done, from[lane] + done, bytes[lane] - done);
}

static void copy_spans_stream(char *dst, const char *src, const struct pkv_span *spans,
                              int64_t num_spans, int64_t row_bytes) {
    for (int64_t first = 0; first < num_spans; first += TOUCH_BATCH) {
        const int64_t end = num_spans - first < TOUCH_BATCH ? num_spans : first + TOUCH_BATCH;
        for (int64_t i = first; i < end; i++) {
            /* A touch in the middle of a run would fetch a line that is about to be overwritten. */
            const bool goes_on =
                i > 0 &&
                spans[i].dst_offset == spans[i - 1].dst_offset + spans[i - 1].num_rows * row_bytes;
            if (!goes_on)
                vec_prefetch_page(dst + spans[i].dst_offset);
        }
        int64_t i = first;
        while (i < end) {
            if (i + LANES <= end && are_apart(spans + i, row_bytes)) {
                const bool goes_on = i + 2 * LANES <= num_spans;
                stream_lanes(dst, src, spans + i, goes_on ? spans + i + LANES : NULL, row_bytes);
                i += LANES;
            } else {
                stream_span(dst + spans[i].dst_offset, src + spans[i].src_offset,
                            spans[i].num_rows * row_bytes);
                i++;
            }
        }
    }
    vec_fence();
}

#endif
