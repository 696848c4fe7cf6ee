/* SPDX-License-Identifier: MIT
 *
 * Prefetches and the fence of template/copy.h: the same on every x86 level.
 */
#ifndef PKV_KERNELS_X86_VEC_PREFETCH_H
#define PKV_KERNELS_X86_VEC_PREFETCH_H

#include <immintrin.h>

static inline void vec_prefetch_page(const char *p)
{
    _mm_prefetch(p, _MM_HINT_NTA);
}

static inline void vec_prefetch_read(const char *p)
{
    _mm_prefetch(p, _MM_HINT_T1);
}

static inline void vec_prefetch_write(const char *p)
{
    __builtin_prefetch(p, 1);
}

static inline void vec_fence(void)
{
    _mm_sfence();
}

#endif
