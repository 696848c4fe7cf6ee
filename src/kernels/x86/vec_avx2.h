/* SPDX-License-Identifier: MIT
 *
 * The vector interface of template/copy_lines.h in AVX2.
 */
#ifndef PKV_KERNELS_X86_VEC_AVX2_H
#define PKV_KERNELS_X86_VEC_AVX2_H

#include <immintrin.h>

typedef __m256i vec;

enum { VEC_BYTES = 32 };

static inline vec vec_load(const char *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline void vec_store(char *p, vec v) {
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

static inline void vec_stream(char *p, vec v) {
    _mm256_stream_si256((__m256i *)(void *)p, v);
}

#include "kernels/x86/vec_common.h"

#endif
