/* SPDX-License-Identifier: MIT
 *
 * Levels of the processor: names, lowering, and what the machine says of itself.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu/cpu.h"

static void test_names(void **state) {
    static const int32_t levels[] = {0, 1, 2, 3, 4, 10, 11};
    static const int32_t none[] = {-1, 5, 9, 12, INT32_MIN, INT32_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
        assert_int_equal(pkv_cpu_level_from_name(pkv_cpu_level_name(levels[i])), levels[i]);
    assert_string_equal(pkv_cpu_level_name(PKV_CPU_LEVEL_BEST), "best");
    assert_string_equal(pkv_cpu_level_name(PKV_CPU_LEVEL_AVX512_BF16), "avx512_bf16");
    assert_string_equal(pkv_cpu_level_name(PKV_CPU_LEVEL_NEON_BF16), "neon_bf16");
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_string_equal(pkv_cpu_level_name(none[i]), "unknown");
    assert_int_equal(pkv_cpu_level_from_name("unknown"), -1);
    assert_int_equal(pkv_cpu_level_from_name("AVX2"), -1);
    assert_int_equal(pkv_cpu_level_from_name("avx"), -1);
    assert_int_equal(pkv_cpu_level_from_name(""), -1);
    assert_int_equal(pkv_cpu_level_from_name(NULL), -1);
}

static void test_lowering(void **state) {
    (void)state;
#if defined(__x86_64__)
    static const int32_t ours[] = {PKV_CPU_LEVEL_C, PKV_CPU_LEVEL_AVX2, PKV_CPU_LEVEL_AVX512,
                                   PKV_CPU_LEVEL_AVX512_BF16};
    static const int32_t others[] = {PKV_CPU_LEVEL_NEON, PKV_CPU_LEVEL_NEON_BF16, -1, 5, 99};
#else
    static const int32_t ours[] = {PKV_CPU_LEVEL_C, PKV_CPU_LEVEL_NEON, PKV_CPU_LEVEL_NEON_BF16};
    static const int32_t others[] = {PKV_CPU_LEVEL_AVX2, PKV_CPU_LEVEL_AVX512_BF16, -1, 5, 99};
#endif
    const size_t num_ours = sizeof(ours) / sizeof(ours[0]);
    for (size_t detected = 0; detected < num_ours; detected++) {
        assert_int_equal(pkv_cpu_lower_level(ours[detected], 0), ours[detected]);
        for (size_t max = 0; max < num_ours; max++)
            assert_int_equal(pkv_cpu_lower_level(ours[detected], ours[max]),
                             ours[max < detected ? max : detected]);
        for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
            assert_int_equal(pkv_cpu_lower_level(ours[detected], others[i]), -1);
    }
}

/* What the kernel lists in /proc/cpuinfo has passed its own checks of processor and saved state. */
static bool system_lists(const char *flags, const char *flag) {
    const size_t length = strlen(flag);
    for (const char *at = strstr(flags, flag); at; at = strstr(at + 1, flag)) {
        if (at[-1] == ' ' && (at[length] == ' ' || at[length] == '\n'))
            return true;
    }
    return false;
}

static bool system_lists_all(const char *flags, const char *const *wanted) {
    bool all = true;
    for (size_t i = 0; wanted[i]; i++)
        all = all && system_lists(flags, wanted[i]);
    return all;
}

static int32_t level_by_flags(const char *flags) {
#if defined(__x86_64__)
    static const char *const avx2[] = {"avx2", "fma", "f16c", "bmi1", "bmi2", NULL};
    static const char *const avx512[] = {"avx512f",  "avx512bw", "avx512cd",
                                         "avx512dq", "avx512vl", NULL};
    static const char *const avx512_bf16[] = {"avx512_bf16", "avx512_vnni", NULL};
    if (!system_lists_all(flags, avx2))
        return PKV_CPU_LEVEL_C;
    if (!system_lists_all(flags, avx512))
        return PKV_CPU_LEVEL_AVX2;
    return system_lists_all(flags, avx512_bf16) ? PKV_CPU_LEVEL_AVX512_BF16 : PKV_CPU_LEVEL_AVX512;
#else
    static const char *const bf16[] = {"asimddp", "bf16", NULL};
    return system_lists_all(flags, bf16) ? PKV_CPU_LEVEL_NEON_BF16 : PKV_CPU_LEVEL_NEON;
#endif
}

/* The line of /proc/cpuinfo that lists features, or "": there is none for this architecture, or the
 * program is emulated (qemu's user mode shows the file of the machine below). */
static void read_features(char *line, int line_bytes) {
    line[0] = '\0';
#if defined(__x86_64__)
    static const char *const key = "flags";
    uint32_t eax, ebx, ecx, edx;
    __cpuid(0x40000000, eax, ebx, ecx, edx); /* an emulator's name; without one, anything */
    if (memcmp(&ebx, "TCGT", 4) == 0)
        return;
#else
    static const char *const key = "Features";
#endif
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, line_bytes, file) && strncmp(line, key, strlen(key)) != 0)
        line[0] = '\0';
    if (file)
        fclose(file);
}

static void test_detected_level(void **state) {
    (void)state;
    static char features[16384];
    const int32_t level = pkv_cpu_detect_level();
    printf("level %s\n", pkv_cpu_level_name(level));
    read_features(features, sizeof(features));
    if (features[0] == '\0') {
        printf("skipped: the system lists no features of this processor to compare with\n");
        skip();
    }
    assert_int_equal(level, level_by_flags(features));
}

static void test_info(void **state) {
    (void)state;
    struct pkv_error error = {0};
    struct pkv_cpu_info info = {.struct_size = sizeof(info)};
    assert_int_equal(pkv_cpu_info_get(&info, &error), PKV_STATUS_OK);
    assert_int_equal(info.struct_size, sizeof(info));
    assert_int_equal(info.level, pkv_cpu_detect_level());
    assert_true(info.num_cpus >= 1);
    assert_true(info.l1d_bytes >= 0 && info.l2_bytes >= 0 && info.l3_bytes >= 0);
    assert_true(info.os_page_bytes >= 4096 && (info.os_page_bytes & (info.os_page_bytes - 1)) == 0);

    struct pkv_cpu_info zeroed = {0};
    assert_int_equal(pkv_cpu_info_get(&zeroed, NULL), PKV_STATUS_OK);
    assert_int_equal(zeroed.os_page_bytes, info.os_page_bytes);

    /* An older caller has a shorter struct: what lies behind it is not ours. */
    struct pkv_cpu_info shorter;
    memset(&shorter, 0xee, sizeof(shorter));
    shorter.struct_size = offsetof(struct pkv_cpu_info, l1d_bytes);
    assert_int_equal(pkv_cpu_info_get(&shorter, NULL), PKV_STATUS_OK);
    assert_int_equal(shorter.num_cpus, info.num_cpus);
    assert_int_equal((uint64_t)shorter.l1d_bytes, UINT64_C(0xeeeeeeeeeeeeeeee));

    assert_int_equal(pkv_cpu_info_get(NULL, &error), PKV_STATUS_NULL_ARGUMENT);
    assert_string_equal(error.function, "pkv_cpu_info_get");
    struct pkv_cpu_info tiny = {.struct_size = 3};
    assert_int_equal(pkv_cpu_info_get(&tiny, &error), PKV_STATUS_STRUCT_SIZE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_lowering),
        cmocka_unit_test(test_detected_level),
        cmocka_unit_test(test_info),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
