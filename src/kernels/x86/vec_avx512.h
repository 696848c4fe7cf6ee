/* SPDX-License-Identifier: MIT
 *
 * The vector interface of template/copy_lines.h in AVX-512.
 */
#ifndef PKV_KERNELS_X86_VEC_AVX512_H
#define PKV_KERNELS_X86_VEC_AVX512_H

#include <immintrin.h>

typedef __m512i vec;

enum { VEC_BYTES = 64 };

static inline vec vec_load(const char *p) {
    return _mm512_loadu_si512(p);
}

static inline void vec_store(char *p, vec v) {
    _mm512_storeu_si512(p, v);
}

static inline void vec_stream(char *p, vec v) {
    _mm512_stream_si512((__m512i *)(void *)p, v);
}

#include "kernels/x86/vec_common.h"

#endif
