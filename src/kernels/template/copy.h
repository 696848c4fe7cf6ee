/* SPDX-License-Identifier: MIT
 *
 * Copies of spans, over the vector interface of template/copy_lines.h: copy_spans_cached and
 * copy_spans_stream.
 */
#ifndef PKV_KERNELS_TEMPLATE_COPY_H
#define PKV_KERNELS_TEMPLATE_COPY_H

#include <stdbool.h>

#include "kernels/c/copy.h"
#include "kernels/template/copy_lines.h"
#include "kernels/template/unroll.h"

/* Random rows wait for address translation more than for memory. Touching the pages of a batch
 * first lets the page walks run side by side. Fewer than 12 at a time leave walkers idle; more than
 * half of the first-level TLB (72 to 96 entries on the cores measured) gain nothing and begin to
 * push each other out. */
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

/* The pages of up to TOUCH_BATCH spans. */
static inline void touch_pages(char *dst, const struct pkv_span *spans, int64_t first, int64_t end,
                               int64_t row_bytes) {
    for (int64_t i = first; i < end; i++) {
        /* Rows that go on need no touch each: it would fetch a line that is about to be
         * overwritten. */
        const bool goes_on = i > 0 && spans[i].dst_offset == spans[i - 1].dst_offset +
                                                                 spans[i - 1].num_rows * row_bytes;
        if (!goes_on)
            vec_prefetch_page(dst + spans[i].dst_offset);
    }
    KEEP_ORDER(); /* gcc takes a function that only prefetches for one that does nothing */
}

/* One after the other: the stream of sources goes on from span to span. */
static inline void stream_in_order(char *dst, const char *src, const struct pkv_span *spans,
                                   int64_t num_spans, int64_t row_bytes) {
    struct ahead ahead = {
        .next = spans, .end = spans + num_spans, .src = src, .row_bytes = row_bytes};
    fetch_ahead(&ahead, AHEAD_LINES);
    for (int64_t i = 0; i < num_spans; i++) {
        if (i % TOUCH_BATCH == 0) {
            const int64_t end = num_spans - i < TOUCH_BATCH ? num_spans : i + TOUCH_BATCH;
            touch_pages(dst, spans, i, end, row_bytes);
        }
        stream_span(dst + spans[i].dst_offset, src + spans[i].src_offset,
                    spans[i].num_rows * row_bytes, &ahead);
    }
}

/* Four spans side by side, where sources lie anywhere: pages of sources are then translated four at
 * a time, which one span after the other waits for (blocks of 16 rows took 1.2 times as long, of
 * 128 rows 1.08 times). So far ahead the source is fetched, from each span, or from the beginning
 * of the next four. */
enum { LANES = 4, CHUNK_LINES = 4, LANE_AHEAD_BYTES = 1024 };

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
            const char *ahead = done + LANE_AHEAD_BYTES < common
                                    ? from[lane] + done + LANE_AHEAD_BYTES
                                : next ? src + next[lane].src_offset + done % LANE_AHEAD_BYTES
                                       : NULL;
            for (int line = 0; ahead && line < CHUNK_LINES; line++)
                vec_prefetch_read(ahead + line * LINE_BYTES);
            stream_lines(to[lane] + done, from[lane] + done, CHUNK_LINES);
        }
    }
    for (int lane = 0; lane < LANES; lane++)
        stream_span(to[lane] + done, from[lane] + done, bytes[lane] - done, NULL);
}

static inline void stream_side_by_side(char *dst, const char *src, const struct pkv_span *spans,
                                       int64_t num_spans, int64_t row_bytes) {
    for (int64_t first = 0; first < num_spans; first += TOUCH_BATCH) {
        const int64_t end = num_spans - first < TOUCH_BATCH ? num_spans : first + TOUCH_BATCH;
        touch_pages(dst, spans, first, end, row_bytes);
        int64_t i = first;
        while (i < end) {
            if (i + LANES <= end && are_apart(spans + i, row_bytes)) {
                const bool goes_on = i + 2 * LANES <= num_spans;
                stream_lanes(dst, src, spans + i, goes_on ? spans + i + LANES : NULL, row_bytes);
                i += LANES;
            } else {
                stream_span(dst + spans[i].dst_offset, src + spans[i].src_offset,
                            spans[i].num_rows * row_bytes, NULL);
                i++;
            }
        }
    }
}

/* Each begins after the one before it, and not far: tokens in order, of which other threads may
 * have some. With two threads 64 rows of 1 KiB are hardly ever another's in a row; 8 KiB took up to
 * 1.05 times as long. */
static inline bool sources_go_on(const struct pkv_span *spans, int64_t num_spans,
                                 int64_t row_bytes) {
    enum { MAX_GAP_BYTES = 65536 };
    bool go_on = true;
    for (int64_t i = 1; i < num_spans; i++) {
        const int64_t end = spans[i - 1].src_offset + spans[i - 1].num_rows * row_bytes;
        const int64_t gap = spans[i].src_offset - end;
        go_on &= gap >= 0 && gap <= MAX_GAP_BYTES;
    }
    return go_on;
}

static void copy_spans_stream(char *dst, const char *src, const struct pkv_span *spans,
                              int64_t num_spans, int64_t row_bytes) {
    if (sources_go_on(spans, num_spans, row_bytes))
        stream_in_order(dst, src, spans, num_spans, row_bytes);
    else
        stream_side_by_side(dst, src, spans, num_spans, row_bytes);
    vec_fence();
}

#endif
