/* SPDX-License-Identifier: MIT
 *
 * Names of levels, the rule that a level is only ever lowered, and the machine's facts. How a level
 * is recognised is in cpu_x86.c and cpu_arm.c.
 */
#include "cpu/cpu.h"

#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/os.h"

static const struct {
    int32_t level;
    const char *name;
} levels[] = {
    {PKV_CPU_LEVEL_BEST, "best"},
    {PKV_CPU_LEVEL_C, "c"},
    {PKV_CPU_LEVEL_AVX2, "avx2"},
    {PKV_CPU_LEVEL_AVX512, "avx512"},
    {PKV_CPU_LEVEL_AVX512_BF16, "avx512_bf16"},
    {PKV_CPU_LEVEL_NEON, "neon"},
    {PKV_CPU_LEVEL_NEON_BF16, "neon_bf16"},
};

static const size_t num_levels = sizeof(levels) / sizeof(levels[0]);

const char *pkv_cpu_level_name(int32_t level) {
    for (size_t i = 0; i < num_levels; i++) {
        if (levels[i].level == level)
            return levels[i].name;
    }
    return "unknown";
}

int32_t pkv_cpu_level_from_name(const char *name) {
    for (size_t i = 0; name && i < num_levels; i++) {
        if (strcmp(levels[i].name, name) == 0)
            return levels[i].level;
    }
    return -1;
}

/* Whether the architecture that this is compiled for knows the level. */
static bool level_is_ours(int32_t level) {
    switch (level) {
    case PKV_CPU_LEVEL_C:
        return true;
#if defined(__x86_64__)
    case PKV_CPU_LEVEL_AVX2:
    case PKV_CPU_LEVEL_AVX512:
    case PKV_CPU_LEVEL_AVX512_BF16:
        return true;
#elif defined(__aarch64__)
    case PKV_CPU_LEVEL_NEON:
    case PKV_CPU_LEVEL_NEON_BF16:
        return true;
#endif
    default:
        return false;
    }
}

int32_t pkv_cpu_lower_level(int32_t detected, int32_t max_level) {
    if (max_level == PKV_CPU_LEVEL_BEST)
        return detected;
    if (!level_is_ours(max_level))
        return -1;
    return max_level < detected ? max_level : detected;
}

enum pkv_status pkv_cpu_info_get(struct pkv_cpu_info *info, struct pkv_error *error) {
    if (info == NULL)
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, __func__, "info", PKV_ERROR_NONE,
                             PKV_ERROR_NONE, PKV_ERROR_NONE, "must not be NULL");
    const struct pkv_cpu_info facts = {.struct_size = sizeof(facts),
                                       .level = pkv_cpu_detect_level(),
                                       .num_cpus = pkv_os_num_cpus(),
                                       .l1d_bytes = pkv_os_cache_bytes(1),
                                       .l2_bytes = pkv_os_cache_bytes(2),
                                       .l3_bytes = pkv_os_cache_bytes(3),
                                       .os_page_bytes = pkv_os_page_bytes()};
    return pkv_struct_write(info, &facts, sizeof(facts), __func__, "info", error);
}
