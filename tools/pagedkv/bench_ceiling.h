/* SPDX-License-Identifier: MIT
 *
 * The yardstick: a contiguous copy with streaming stores, and the states of the cache that it and
 * everything beside it start from. It uses nothing of the library but the executor, so that a
 * mistake there cannot lower the ceiling.
 */
#ifndef PAGEDKV_BENCH_CEILING_H
#define PAGEDKV_BENCH_CEILING_H

#include <stdint.h>

#include <pagedkv/executor.h>

/* One contiguous copy. */
struct bench_span {
    unsigned char *dst;
    const unsigned char *src;
    int64_t bytes;
};

/* "avx512", "avx2" or "memcpy": the stores that the ceiling uses on this machine. */
const char *bench_ceiling_name(void);

/* Up to this many bytes in all a copy stays on the calling thread: waking another one takes longer.
 * 256 tokens of the published geometry, keys and values. */
#define BENCH_SHORT_BYTES INT64_C(524288)

/* Copies all spans, one after the other. With an executor each of its threads copies one contiguous
 * share of every span, unless the copy is short. Stores are fenced. */
void bench_ceiling_copy(const struct pkv_executor *executor, const struct bench_span *spans,
                        int32_t num_spans);

/* Reads one word of every cache line: the lines are in the caches of the calling thread's core as
 * far as they fit. */
void bench_touch(const void *data, int64_t bytes);

/* Writes the lines back and drops them from every cache; their address translations stay known.
 * Done when bench_fence returns. Returns 0, or -1 where the machine has no instruction for it. */
int bench_flush(const void *data, int64_t bytes);
void bench_fence(void);

#endif
