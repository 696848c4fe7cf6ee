/* SPDX-License-Identifier: MIT
 *
 * What this machine's processor can do, as levels. A context picks its kernels by level; a caller
 * may lower the level, never raise it.
 */
#ifndef PAGEDKV_CPU_H
#define PAGEDKV_CPU_H

#include <pagedkv/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Each level includes the ones before it of the same architecture. */
enum pkv_cpu_level {
    PKV_CPU_LEVEL_BEST = 0,        /* as an option: the best that the machine has */
    PKV_CPU_LEVEL_C = 1,           /* the definitions, no vector instructions named */
    PKV_CPU_LEVEL_AVX2 = 2,        /* AVX2, FMA, F16C, BMI1, BMI2 */
    PKV_CPU_LEVEL_AVX512 = 3,      /* AVX-512 F, BW, CD, DQ, VL */
    PKV_CPU_LEVEL_AVX512_BF16 = 4, /* AVX-512 BF16 and VNNI */
    PKV_CPU_LEVEL_NEON = 10,       /* the AArch64 baseline */
    PKV_CPU_LEVEL_NEON_BF16 = 11   /* DOTPROD and BF16; its kernels are those of NEON */
};

/* The machine as this process sees it. Sizes are in bytes, 0 when the system does not tell. */
struct pkv_cpu_info {
    size_t struct_size;
    int32_t level;    /* enum pkv_cpu_level, the best that processor and system support */
    int32_t num_cpus; /* processors that this process may run on */
    int64_t l1d_bytes;
    int64_t l2_bytes;
    int64_t l3_bytes;
    int64_t os_page_bytes;
};

/* Asks processor and operating system.
 *
 * info     out; its struct_size is read
 * errors   NULL_ARGUMENT (info), STRUCT_SIZE (too small for its own first field)
 * threads  any
 * cost     microseconds, as a virtual machine traps the questions: not for a hot path
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_cpu_info_get(struct pkv_cpu_info *info,
                                                      struct pkv_error *error);

/* "c", "avx2", "avx512", "avx512_bf16", "neon", "neon_bf16"; "best" for 0; "unknown" otherwise. */
PKV_API const char *pkv_cpu_level_name(int32_t level);

/* The level of that name as pkv_cpu_level_name spells it, or -1, also for NULL: an unknown name is
 * an error, not a default. */
PKV_API int32_t pkv_cpu_level_from_name(const char *name);

#ifdef __cplusplus
}
#endif

#endif
