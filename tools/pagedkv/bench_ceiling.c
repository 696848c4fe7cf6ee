/* SPDX-License-Identifier: MIT
 *
 * The yardstick copy and the states of the cache. See bench_ceiling.h.
 */
#include "bench_ceiling.h"

#include <string.h>

#include "bench_threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { CACHE_LINE = 64 };

#if defined(__x86_64__)

/* dst is aligned to 64 bytes, bytes a multiple of 64. */
__attribute__((target("avx512f"))) static void
copy_avx512(unsigned char *dst, const unsigned char *src, int64_t bytes) {
    int64_t i = 0;
    for (; i + 4 * CACHE_LINE <= bytes; i += 4 * CACHE_LINE) {
        __m512i a = _mm512_loadu_si512(src + i);
        __m512i b = _mm512_loadu_si512(src + i + 64);
        __m512i c = _mm512_loadu_si512(src + i + 128);
        __m512i d = _mm512_loadu_si512(src + i + 192);
        _mm512_stream_si512((void *)(dst + i), a);
        _mm512_stream_si512((void *)(dst + i + 64), b);
        _mm512_stream_si512((void *)(dst + i + 128), c);
        _mm512_stream_si512((void *)(dst + i + 192), d);
    }
    for (; i < bytes; i += CACHE_LINE)
        _mm512_stream_si512((void *)(dst + i), _mm512_loadu_si512(src + i));
    _mm_sfence();
}

/* As copy_avx512. */
__attribute__((target("avx2"))) static void copy_avx2(unsigned char *dst, const unsigned char *src,
                                                      int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 2 * CACHE_LINE) {
        int64_t step = bytes - i < 2 * CACHE_LINE ? CACHE_LINE : 2 * CACHE_LINE;
        for (int64_t j = i; j < i + step; j += 32)
            _mm256_stream_si256((void *)(dst + j), _mm256_loadu_si256((const void *)(src + j)));
    }
    _mm_sfence();
}

static void copy(unsigned char *dst, const unsigned char *src, int64_t bytes) {
    int64_t head = (int64_t)((CACHE_LINE - (uintptr_t)dst % CACHE_LINE) % CACHE_LINE);
    head = head < bytes ? head : bytes;
    int64_t body = (bytes - head) / CACHE_LINE * CACHE_LINE;
    if (head > 0)
        memcpy(dst, src, (size_t)head);
    if (__builtin_cpu_supports("avx512f"))
        copy_avx512(dst + head, src + head, body);
    else if (__builtin_cpu_supports("avx2"))
        copy_avx2(dst + head, src + head, body);
    else
        memcpy(dst + head, src + head, (size_t)body);
    if (head + body < bytes)
        memcpy(dst + head + body, src + head + body, (size_t)(bytes - head - body));
}

const char *bench_ceiling_name(void) {
    if (__builtin_cpu_supports("avx512f"))
        return "avx512";
    return __builtin_cpu_supports("avx2") ? "avx2" : "memcpy";
}

int bench_flush(const void *data, int64_t bytes) {
    const unsigned char *line = data;
    for (int64_t i = 0; i < bytes; i += CACHE_LINE)
        _mm_clflush(line + i);
    return 0;
}

void bench_fence(void) {
    _mm_mfence();
}

#else

static void copy(unsigned char *dst, const unsigned char *src, int64_t bytes) {
    memcpy(dst, src, (size_t)bytes);
}

const char *bench_ceiling_name(void) {
    return "memcpy";
}

int bench_flush(const void *data, int64_t bytes) {
    (void)data;
    (void)bytes;
    return -1;
}

void bench_fence(void) {
}

#endif

struct work {
    const struct bench_span *spans;
    int32_t num_spans;
    int32_t num_shares;
};

static void copy_share(void *arg, int64_t index) {
    const struct work *work = arg;
    for (int32_t i = 0; i < work->num_spans; i++) {
        const struct bench_span *span = &work->spans[i];
        int64_t lines = span->bytes / CACHE_LINE;
        int64_t first = lines * index / work->num_shares * CACHE_LINE;
        int64_t last = lines * (index + 1) / work->num_shares * CACHE_LINE;
        if (index + 1 == work->num_shares)
            last = span->bytes;
        copy(span->dst + first, span->src + first, last - first);
    }
}

void bench_ceiling_copy(const struct pkv_executor *executor, const struct bench_span *spans,
                        int32_t num_spans) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < num_spans; i++)
        bytes += spans[i].bytes;
    if (bytes <= BENCH_SHORT_BYTES)
        executor = NULL;
    struct work work = {spans, num_spans, bench_num_threads(executor)};
    bench_run_tiles(executor, copy_share, &work, work.num_shares);
}

void bench_touch(const void *data, int64_t bytes) {
    const volatile unsigned char *line = data;
    for (int64_t i = 0; i < bytes; i += CACHE_LINE)
        (void)line[i];
}
