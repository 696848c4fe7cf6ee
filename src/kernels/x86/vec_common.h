/* SPDX-License-Identifier: MIT
 *
 * What template/copy_lines.h asks for beside full vectors: the same on every x86 level.
 */
#ifndef PKV_KERNELS_X86_VEC_COMMON_H
#define PKV_KERNELS_X86_VEC_COMMON_H

#include <immintrin.h>

static inline void vec_copy_32(char *dst, const char *src) {
    _mm256_storeu_si256((__m256i *)(void *)dst,
                        _mm256_loadu_si256((const __m256i *)(const void *)src));
}

static inline void vec_stream_16(char *dst, const char *src) {
    _mm_stream_si128((__m128i *)(void *)dst, _mm_loadu_si128((const __m128i *)(const void *)src));
}

static inline void vec_stream_32(char *dst, const char *src) {
    _mm256_stream_si256((__m256i *)(void *)dst,
                        _mm256_loadu_si256((const __m256i *)(const void *)src));
}

static inline void vec_prefetch_page(const char *p) {
    _mm_prefetch(p, _MM_HINT_NTA);
}

static inline void vec_prefetch_read(const char *p) {
    _mm_prefetch(p, _MM_HINT_T0);
}

static inline void vec_prefetch_write(const char *p) {
    __builtin_prefetch(p, 1);
}

static inline void vec_fence(void) {
    _mm_sfence();
}

#endif
