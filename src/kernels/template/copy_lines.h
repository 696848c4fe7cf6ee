/* SPDX-License-Identifier: MIT
 *
 * One span of bytes, line by line, over a small vector interface. The including file defines, for
 * its instruction set:
 *
 *   vec, VEC_BYTES               a vector of VEC_BYTES bytes; LINE_BYTES is a multiple of it
 *   vec_load, vec_store          unaligned
 *   vec_copy_32                  copy that many bytes; gcc makes two pieces of such a memcpy for
 *   AVX2
 *   vec_stream                   around the caches if the machine can; destination aligned to
 *   VEC_BYTES vec_stream_16, vec_stream_32 copy that many bytes around the caches if the machine
 *   can; destination
 *                                aligned to them
 *   vec_prefetch_page(p)         start the translation of p's page, keep the line out of the way
 *   vec_prefetch_read(p)         fetch p's line
 *   vec_prefetch_write(p)        fetch p's line for writing
 *   vec_fence()                  order streaming stores before what follows
 *
 * template/copy.h and copy_streams.h are written on it, copy_grids.h and copy_columns.h on
 * template/copy.h.
 */
#ifndef PKV_KERNELS_TEMPLATE_COPY_LINES_H
#define PKV_KERNELS_TEMPLATE_COPY_LINES_H

#include <string.h>

#include "kernels/kernels.h"

enum { LINE_BYTES = 64 };

static inline void copy_line(char *dst, const char *src) {
    vec v[LINE_BYTES / VEC_BYTES];
    for (int i = 0; i < LINE_BYTES / VEC_BYTES; i++)
        v[i] = vec_load(src + i * VEC_BYTES);
    for (int i = 0; i < LINE_BYTES / VEC_BYTES; i++)
        vec_store(dst + i * VEC_BYTES, v[i]);
}

/* The whole lines of so many bytes. Four in a round: what goes around the copies takes room among
 * the instructions in flight, and the fewer of them, the earlier the processor comes to what is
 * behind the last row. */
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

/* The lines of the sources of spans, asked for while others are copied. The processor's own
 * prefetch follows a run of rows too closely and sees nothing of rows that come from here and
 * there. Of a source that begins inside a line the last one is left to it. */
struct ahead {
    const struct pkv_span *next, *end; /* spans of which nothing was asked for */
    const char *src;
    int64_t row_bytes;
    const char *line;  /* the next to ask for */
    int64_t num_lines; /* so many are left of its span */
};

/* 8 KiB, a sixth of a first-level cache of 48 KiB. From memory, half as far took up to 1.1 times as
 * long, and twice as far up to 1.03 times; four spans side by side, 1 KiB ahead of each, 1.05 times
 * (runs of 128 rows) to 1.25 times (runs of 4 and single rows). */
enum { AHEAD_LINES = 128 };

static inline int64_t lines_of(int64_t bytes) {
    return (bytes + LINE_BYTES - 1) / LINE_BYTES;
}

/* Up to so many of the next lines, one after the other from *first; returns their number, 0: none
 * is left. */
static inline int64_t take_ahead(struct ahead *ahead, int64_t num_lines, const char **first) {
    while (ahead->num_lines == 0) {
        if (ahead->next == ahead->end)
            return 0;
        ahead->line = ahead->src + ahead->next->src_offset;
        ahead->num_lines = lines_of(ahead->next->num_rows * ahead->row_bytes);
        ahead->next++;
    }
    const int64_t count = ahead->num_lines < num_lines ? ahead->num_lines : num_lines;
    *first = ahead->line;
    ahead->line += count * LINE_BYTES;
    ahead->num_lines -= count;
    return count;
}

static inline void fetch_ahead(struct ahead *ahead, int64_t num_lines) {
    const char *first;
    int64_t count;
    while (num_lines > 0 && (count = take_ahead(ahead, num_lines, &first)) > 0) {
        for (int64_t line = 0; line < count; line++)
            vec_prefetch_read(first + line * LINE_BYTES);
        num_lines -= count;
    }
}

/* Asks for as many lines as it copies, in groups: line by line, long runs whose source is cached
 * took 1.05 times as long. In a long run the destination is touched as far ahead, once a page: one
 * line more is fetched, but the page is translated in time (4 KiB pages: 1.02 to 1.04 times as fast
 * from memory). */
static inline void stream_lines_ahead(char *dst, const char *src, int64_t num_lines,
                                      struct ahead *ahead) {
    enum { PAGE_LINES = 4096 / LINE_BYTES, GROUP = 4 };
    while (num_lines > 0) {
        if (num_lines > AHEAD_LINES)
            vec_prefetch_page(dst + AHEAD_LINES * LINE_BYTES);
        const char *first;
        const int64_t most = num_lines < PAGE_LINES ? num_lines : PAGE_LINES;
        const int64_t count = take_ahead(ahead, most, &first);
        if (count == 0) {
            stream_lines(dst, src, num_lines);
            return;
        }
        int64_t line = 0;
        for (; line + GROUP <= count; line += GROUP) {
            for (int i = 0; i < GROUP; i++)
                vec_prefetch_read(first + (line + i) * LINE_BYTES);
            stream_lines(dst + line * LINE_BYTES, src + line * LINE_BYTES, GROUP);
        }
        for (; line < count; line++) {
            vec_prefetch_read(first + line * LINE_BYTES);
            stream_lines(dst + line * LINE_BYTES, src + line * LINE_BYTES, 1);
        }
        dst += count * LINE_BYTES;
        src += count * LINE_BYTES;
        num_lines -= count;
    }
}

/* Whole lines stream; what shares a line with its neighbours before and after them is stored as
 * usual. ahead: asks for as many lines as this span has; NULL: for none. */
static inline void stream_span(char *dst, const char *src, int64_t bytes, struct ahead *ahead) {
    const int64_t head = (int64_t)(-(uintptr_t)dst % LINE_BYTES);
    const int64_t to_fetch = lines_of(bytes);
    if (head >= bytes) {
        memcpy(dst, src, (size_t)bytes);
        if (ahead)
            fetch_ahead(ahead, to_fetch);
        return;
    }
    if (head > 0) {
        memcpy(dst, src, (size_t)head);
        dst += head;
        src += head;
        bytes -= head;
    }
    const int64_t num_lines = bytes / LINE_BYTES, tail = bytes % LINE_BYTES;
    if (ahead) {
        stream_lines_ahead(dst, src, num_lines, ahead);
        fetch_ahead(ahead, to_fetch - num_lines);
    } else {
        stream_lines(dst, src, num_lines);
    }
    if (tail > 0)
        memcpy(dst + num_lines * LINE_BYTES, src + num_lines * LINE_BYTES, (size_t)tail);
}

#endif
