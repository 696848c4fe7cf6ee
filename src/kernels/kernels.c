/* SPDX-License-Identifier: MIT
 *
 * The ladder: the definitions first, then what each level of this architecture does better.
 */
#include "kernels/kernels.h"

#include <pagedkv/cpu.h>

void pkv_kernels_init(struct pkv_kernels *kernels, int32_t cpu_level) {
    pkv_slots_init_c(kernels);
    pkv_copy_init_c(kernels);
    pkv_nsa_compress_init_c(kernels);
    pkv_mean_init_c(kernels);
    pkv_attention_init_c(kernels);
    kernels->copy_level = PKV_CPU_LEVEL_C;
#if defined(__x86_64__)
    if (cpu_level < PKV_CPU_LEVEL_AVX2)
        return;
    pkv_copy_init_avx2(kernels);
    pkv_nsa_compress_init_avx2(kernels);
    pkv_mean_init_avx2(kernels);
    pkv_attention_init_avx2(kernels);
    kernels->copy_level = PKV_CPU_LEVEL_AVX2;
    if (cpu_level < PKV_CPU_LEVEL_AVX512)
        return;
    pkv_copy_init_avx512(kernels);
    pkv_nsa_compress_init_avx512(kernels);
    pkv_mean_init_avx512(kernels);
    pkv_attention_init_avx512(kernels);
    kernels->copy_level = PKV_CPU_LEVEL_AVX512;
    if (cpu_level < PKV_CPU_LEVEL_AVX512_BF16)
        return;
    pkv_attention_init_avx512_bf16(kernels);
#elif defined(__aarch64__)
    if (cpu_level < PKV_CPU_LEVEL_NEON)
        return;
    pkv_copy_init_neon(kernels);
    pkv_nsa_compress_init_neon(kernels);
    pkv_mean_init_neon(kernels);
    pkv_attention_init_neon(kernels);
    kernels->copy_level = PKV_CPU_LEVEL_NEON;
#else
    (void)cpu_level;
#endif
}
