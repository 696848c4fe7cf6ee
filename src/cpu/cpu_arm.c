/* SPDX-License-Identifier: MIT
 *
 * AArch64: NEON is part of the architecture; what else there is, the kernel says in the auxiliary
 * vector.
 */
#include "cpu/cpu.h"

#if defined(__aarch64__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

int32_t pkv_cpu_detect_level(void) {
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0 || (getauxval(AT_HWCAP2) & HWCAP2_BF16) == 0)
        return PKV_CPU_LEVEL_NEON;
    return PKV_CPU_LEVEL_NEON_BF16;
}

#endif
