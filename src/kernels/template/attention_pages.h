/* SPDX-License-Identifier: MIT
 *
 * OS pages ("pages" in this file) of keys and values, translated before they are read. See
 * attention_panel.h for what the including file defines.
 */
#ifndef PKV_KERNELS_TEMPLATE_ATTENTION_PAGES_H
#define PKV_KERNELS_TEMPLATE_ATTENTION_PAGES_H

#include <stdbool.h>

#include "kernels/kernels.h"
#include "kernels/template/unroll.h"

/* The pages of what is read next. No instruction retires before its page is translated, not even
 * one that only fetches, so pages that are met one by one cost a wait each. A processor that sees
 * an instruction go from page to page translates the pages that follow by itself, and nothing waits
 * for them. So adjacent pages are touched one by one while tokens are read, in the order of memory;
 * but the first ones, which it cannot foresee, at once, side by side. Pages of short blocks are all
 * touched at once. With larger pages some lines are fetched early, which does no harm. */
enum {
    PAGE_BYTES = 4096, /* the smallest pages */
    FIRST_PAGES = 4,
    LONG_PAGES = 16, /* adjacent ones; with 8 it is quicker to touch all at once */
};

/* Tokens are adjacent if no page lies between them. */
struct pages {
    const struct pkv_attention_tokens *tokens; /* NULL: nothing is left */
    int64_t bytes;               /* of a row, or of a token's rows if they lie together */
    int64_t num_streams;         /* the heads, or 1 */
    int64_t hop;                 /* tokens of a page */
    int64_t stream, first, end;  /* adjacent tokens of a stream, or of all from it on */
    const char *page, *page_end; /* what is left of them */
    int64_t read;                /* bytes that were read since a page was touched */
};

/* Four copies of the prefetch in an aligned function: the processor keeps what it has learnt by the
 * address of the instruction, and another one may take the place of one of them. With a single copy
 * attention took 0.85 to 1.7 times as long, depending on where the code around it came to lie. */
static __attribute__((noinline, aligned(64))) void touch_page(const char *page) {
    PREFETCH(page);
    KEEP_ORDER();
    PREFETCH(page);
    KEEP_ORDER();
    PREFETCH(page);
    KEEP_ORDER();
    PREFETCH(page);
    KEEP_ORDER();
}

static inline const char *page_after(const char *page) {
    return (const char *)(((uintptr_t)page & ~(uintptr_t)(PAGE_BYTES - 1)) + PAGE_BYTES);
}

/* The distance of `count` more tokens may be that of adjacent ones. */
static inline bool may_be_adjacent(const struct pages *pages, int64_t t, int64_t count) {
    const int64_t *offsets = pages->tokens->offsets;
    return count > 0 && t + count < pages->tokens->num_tokens && offsets[t + count] >= offsets[t] &&
           offsets[t + count] - offsets[t] <= count * pages->bytes + PAGE_BYTES;
}

/* Token `first` and those that are adjacent to it: as many as there were before, most likely, and
 * more by hops of a page and shorter ones. */
static inline void enter_adjacent(struct pages *pages, int64_t first) {
    const int64_t before = pages->end - pages->first - 1;
    int64_t t = may_be_adjacent(pages, first, before) ? first + before : first;
    for (int64_t hop = pages->hop; hop > 0; hop /= 2) {
        while (may_be_adjacent(pages, t, hop))
            t += hop;
    }
    pages->first = first;
    pages->end = t + 1;
    pages->stream = 0;
}

/* What lies between the heads' adjacent tokens, if less than a page, is no gap. */
static inline void enter_stream(struct pages *pages) {
    const struct pkv_attention_tokens *tokens = pages->tokens;
    const char *base = tokens->base + pages->stream * tokens->head_stride;
    pages->page = base + tokens->offsets[pages->first];
    pages->page_end = base + tokens->offsets[pages->end - 1] + pages->bytes;
    const int64_t gap = tokens->head_stride - (pages->page_end - pages->page);
    if (tokens->head_stride > 0 && gap <= PAGE_BYTES) {
        pages->page_end += (pages->num_streams - 1 - pages->stream) * tokens->head_stride;
        pages->stream = pages->num_streams - 1;
    }
}

/* The next adjacent ones. Returns false after the last. */
static inline bool next_adjacent(struct pages *pages) {
    if (++pages->stream == pages->num_streams) {
        if (pages->end >= pages->tokens->num_tokens)
            return false;
        enter_adjacent(pages, pages->end);
    }
    enter_stream(pages);
    return true;
}

static inline struct pages find_pages(const struct pkv_attention_tokens *tokens) {
    struct pages pages = {
        .tokens = tokens, .bytes = tokens->row_bytes, .num_streams = tokens->num_heads};
    if (tokens->heads_together) {
        pages.bytes += (tokens->num_heads - 1) * tokens->head_stride;
        pages.num_streams = 1;
    }
    const int64_t distance =
        tokens->num_tokens > 1 ? tokens->offsets[1] - tokens->offsets[0] : PAGE_BYTES;
    pages.hop = distance > 0 && distance < PAGE_BYTES ? PAGE_BYTES / distance : 1;
    enter_adjacent(&pages, 0);
    enter_stream(&pages);
    return pages;
}

static inline bool are_long(const struct pages *pages) {
    return pages->page_end - pages->page >= LONG_PAGES * PAGE_BYTES;
}

/* The first pages of all that are adjacent. Inlined always: gcc drops a function that only
 * prefetches. */
ALWAYS_INLINE void touch_first_pages(struct pages pages) {
    do {
        for (int i = 0; i < FIRST_PAGES && pages.page < pages.page_end; i++) {
            PREFETCH(pages.page);
            pages.page = page_after(pages.page);
        }
    } while (next_adjacent(&pages));
}

/* All pages, but no neighbours in turn: the processor would go on behind them, and page table
 * entries in one line are better waited for once. */
ALWAYS_INLINE void touch_all_pages(struct pages pages) {
    enum { AT_ONCE = 32 };
    bool has_more = true;
    while (has_more) {
        const char *page[AT_ONCE], *end[AT_ONCE];
        int count = 0;
        do {
            page[count] = pages.page;
            end[count++] = pages.page_end;
            has_more = next_adjacent(&pages);
        } while (has_more && count < AT_ONCE);
        for (int left = count; left > 0;) {
            left = 0;
            for (int i = 0; i < count; i++) {
                if (page[i] >= end[i])
                    continue;
                PREFETCH(page[i]);
                page[i] = page_after(page[i]);
                left++;
            }
        }
    }
}

/* Touches what is to be touched at once; the rest is left to touch_pages. Before many rows, whose
 * arithmetic takes longer than all waits, nothing is touched, unless keys come alone, after values
 * within keys. Dot products wait for memory with twice as many rows as others. */
static inline struct pages look_at_pages(const struct pkv_attention_tokens *tokens,
                                         const struct pkv_attention_tokens *then,
                                         int64_t num_rows) {
    const struct pages none = {.tokens = NULL};
    if (then == NULL || then->is_cached || (num_rows > NEAR_ROWS && !tokens->is_cached))
        return none;
    const struct pages pages = find_pages(then);
    if (are_long(&pages)) {
        touch_first_pages(pages);
        return pages;
    }
    const int64_t most_rows = then->is_for_dots ? 2 * TOUCH_ROWS : TOUCH_ROWS;
    if (num_rows <= most_rows || tokens->is_cached)
        touch_all_pages(pages);
    return none;
}

static inline void touch_next_page(struct pages *pages) {
    touch_page(pages->page);
    pages->page = page_after(pages->page);
    if (pages->page >= pages->page_end && !next_adjacent(pages))
        pages->tokens = NULL;
}

/* Touches a page for each that was read; `bytes` more were. */
static inline void touch_pages(struct pages *pages, int64_t bytes) {
    for (pages->read += bytes; pages->read >= PAGE_BYTES && pages->tokens;
         pages->read -= PAGE_BYTES)
        touch_next_page(pages);
}

/* Touches what is left: fewer bytes may have been read than come next. */
static inline void touch_rest(struct pages *pages) {
    while (pages->tokens)
        touch_next_page(pages);
}

#endif
