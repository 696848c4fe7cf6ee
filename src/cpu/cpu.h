/* SPDX-License-Identifier: MIT
 *
 * Which level of enum pkv_cpu_level to use. The public questions are in pagedkv/cpu.h.
 */
#ifndef PKV_CPU_CPU_H
#define PKV_CPU_CPU_H

#include <stdint.h>

#include <pagedkv/cpu.h>

/* The best level that processor and operating system support together: PKV_CPU_LEVEL_C or better.
 */
int32_t pkv_cpu_detect_level(void);

/* What a caller's max_level (0: no limit) leaves of the detected level: the lower of the two. A
 * level of the other architecture, or no level at all, is refused with -1. */
int32_t pkv_cpu_lower_level(int32_t detected, int32_t max_level);

#endif
