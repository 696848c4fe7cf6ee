/* SPDX-License-Identifier: MIT
 *
 * x86-64: which level the processor has and the operating system has switched on. cpuid alone is
 * not enough: without the system saving the wide registers at a context switch, using them traps.
 * Bit numbers are those of the CPUID and XGETBV pages of Intel's manual, volume 2.
 */
#include "cpu/cpu.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>

#define BIT(n) (UINT32_C(1) << (n))

/* cpuid leaf 1, ecx. OSXSAVE: the system uses XSAVE, and XGETBV may be asked what it saves. */
#define FMA     BIT(12)
#define OSXSAVE BIT(27)
#define AVX     BIT(28)
#define F16C    BIT(29)

/* Leaf 7, subleaf 0, ebx. */
#define BMI1     BIT(3)
#define AVX2     BIT(5)
#define BMI2     BIT(8)
#define AVX512F  BIT(16)
#define AVX512DQ BIT(17)
#define AVX512CD BIT(28)
#define AVX512BW BIT(30)
#define AVX512VL BIT(31)

/* Leaf 7, subleaf 0, ecx, and subleaf 1, eax. */
#define AVX512_VNNI BIT(11)
#define AVX512_BF16 BIT(5)

/* Register XCR0: what the system saves. xmm and the upper halves of ymm; mask registers, the upper
 * halves of zmm0 to 15, and zmm16 to 31. */
#define SAVES_YMM (BIT(1) | BIT(2))
#define SAVES_ZMM (SAVES_YMM | BIT(5) | BIT(6) | BIT(7))

static bool has(uint32_t bits, uint32_t wanted) {
    return (bits & wanted) == wanted;
}

__attribute__((target("xsave"))) static uint32_t read_xcr0(void) {
    return (uint32_t)_xgetbv(0);
}

int32_t pkv_cpu_detect_level(void) {
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !has(ecx, OSXSAVE))
        return PKV_CPU_LEVEL_C;
    const uint32_t leaf1 = ecx;
    const uint32_t saved = read_xcr0();
    uint32_t num_subleaves;
    if (!__get_cpuid_count(7, 0, &num_subleaves, &ebx, &ecx, &edx))
        return PKV_CPU_LEVEL_C;
    const uint32_t leaf7_ebx = ebx;
    const uint32_t leaf7_ecx = ecx;

    if (!has(leaf1, AVX | FMA | F16C) || !has(leaf7_ebx, AVX2 | BMI1 | BMI2) ||
        !has(saved, SAVES_YMM))
        return PKV_CPU_LEVEL_C;

    if (!has(leaf7_ebx, AVX512F | AVX512BW | AVX512CD | AVX512DQ | AVX512VL) ||
        !has(saved, SAVES_ZMM))
        return PKV_CPU_LEVEL_AVX2;

    if (!has(leaf7_ecx, AVX512_VNNI) || num_subleaves < 1 ||
        !__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !has(eax, AVX512_BF16))
        return PKV_CPU_LEVEL_AVX512;

    return PKV_CPU_LEVEL_AVX512_BF16;
}

#endif
