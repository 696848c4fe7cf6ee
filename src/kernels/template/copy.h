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
 *   vec_prefetch_read(p)         fetch p's line into the second-level cache
 *   vec_prefetch_write(p)        fetch p's line for writing
 *   vec_fence()                  order streaming stores before what follows
 *
 * and gets copy_spans_cached, copy_spans_stream_scatter, copy_spans_stream_gather; template/copy_grids.h adds
 * copy_grids_cached and copy_grids_stream.
 */
#ifndef PKV_KERNELS_TEMPLATE_COPY_H
#define PKV_KERNELS_TEMPLATE_COPY_H

#include <stdbool.h>
#include <string.h>

#include "kernels/c/copy.h"

enum { LINE_BYTES = 64 };

static inline void copy_lines(char *dst, const char *src, int64_t num_lines) {
    for (int64_t line = 0; line < num_lines; line++) {
        vec v[LINE_BYTES / VEC_BYTES];
        for (int i = 0; i < LINE_BYTES / VEC_BYTES; i++)
            v[i] = vec_load(src + line * LINE_BYTES + i * VEC_BYTES);
        for (int i = 0; i < LINE_BYTES / VEC_BYTES; i++)
            vec_store(dst + line * LINE_BYTES + i * VEC_BYTES, v[i]);
    }
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

static inline void copy_span(char *dst, const char *src, int64_t bytes) {
    const int64_t num_lines = bytes / LINE_BYTES, tail = bytes % LINE_BYTES;
    copy_lines(dst, src, num_lines);
    if (tail > 0)
        memcpy(dst + num_lines * LINE_BYTES, src + num_lines * LINE_BYTES, (size_t)tail);
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
                              int64_t num_spans) {
    for (int64_t first = 0; first < num_spans; first += TOUCH_BATCH) {
        const struct pkv_span *batch = spans + first;
        const int64_t rest = num_spans - first;
        const int64_t count = rest < TOUCH_BATCH ? rest : TOUCH_BATCH;
        for (int64_t i = 0; i < count; i++)
            vec_prefetch_write(dst + batch[i].dst_offset);
        for (int64_t i = 0; i < count; i++)
            copy_span(dst + batch[i].dst_offset, src + batch[i].src_offset, batch[i].bytes);
    }
}

static void copy_spans_stream_scatter(char *dst, const char *src, const struct pkv_span *spans,
                                      int64_t num_spans) {
    for (int64_t first = 0; first < num_spans; first += TOUCH_BATCH) {
        const struct pkv_span *batch = spans + first;
        const int64_t rest = num_spans - first;
        const int64_t count = rest < TOUCH_BATCH ? rest : TOUCH_BATCH;
        for (int64_t i = 0; i < count; i++) {
            /* A touch in the middle of a run would fetch a line that is about to be overwritten. */
            const bool goes_on = first + i > 0 && batch[i].dst_offset ==
                                                      batch[i - 1].dst_offset + batch[i - 1].bytes;
            if (!goes_on)
                vec_prefetch_page(dst + batch[i].dst_offset);
        }
        for (int64_t i = 0; i < count; i++)
            stream_span(dst + batch[i].dst_offset, src + batch[i].src_offset, batch[i].bytes);
    }
    vec_fence();
}

/* While one span is copied the next one is fetched: the hardware's own prefetch starts anew at every jump.
 * Behind this many bytes it has caught up. */
enum { GATHER_AHEAD_BYTES = 32768 };

static void copy_spans_stream_gather(char *dst, const char *src, const struct pkv_span *spans,
                                     int64_t num_spans) {
    for (int64_t i = 0; i < num_spans; i++) {
        char *to = dst + spans[i].dst_offset;
        const char *from = src + spans[i].src_offset;
        int64_t bytes = spans[i].bytes;
        if (i + 1 < num_spans) {
            const char *next = src + spans[i + 1].src_offset;
            int64_t ahead = spans[i + 1].bytes;
            ahead = ahead < bytes ? ahead : bytes;
            ahead = ahead < GATHER_AHEAD_BYTES ? ahead : GATHER_AHEAD_BYTES;
            enum { STEP = 4 * LINE_BYTES };
            int64_t done = 0;
            for (; done + STEP <= ahead; done += STEP) {
                for (int line = 0; line < STEP / LINE_BYTES; line++)
                    vec_prefetch_read(next + done + line * LINE_BYTES);
                stream_span(to + done, from + done, STEP);
            }
            to += done;
            from += done;
            bytes -= done;
        }
        stream_span(to, from, bytes);
    }
    vec_fence();
}

#endif
