/* SPDX-License-Identifier: MIT
 *
 * Arrays of vectors are registers only if every loop over them is unrolled and every function that
 * has them is inlined.
 */
#ifndef PKV_KERNELS_TEMPLATE_UNROLL_H
#define PKV_KERNELS_TEMPLATE_UNROLL_H

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Memory is read, written and fetched in the order of the source here, and what was read before is
 * read again: compilers like to put all fetching first, and to keep more than there are
 * registers. */
#define KEEP_ORDER() __asm__ volatile("" ::: "memory")

#endif
