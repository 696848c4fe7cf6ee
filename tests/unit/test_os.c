/* SPDX-License-Identifier: MIT
 *
 * Memory from the operating system and from the allocator hook, the clock, and counts.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "allocator.h"
#include "base/allocator.h"
#include "base/os.h"

static void test_facts(void **state) {
    (void)state;
    const int64_t page_bytes = pkv_os_page_bytes();
    assert_true(page_bytes >= 4096 && (page_bytes & (page_bytes - 1)) == 0);
    assert_true(pkv_os_num_cpus() >= 1);
    for (int32_t level = 0; level <= 4; level++)
        assert_true(pkv_os_cache_bytes(level) >= 0);
    assert_int_equal(pkv_os_cache_bytes(0), 0);
    assert_int_equal(pkv_os_cache_bytes(4), 0);
    int64_t last = pkv_os_now_ns();
    for (int i = 0; i < 1000; i++) {
        const int64_t now = pkv_os_now_ns();
        assert_true(now >= last);
        last = now;
    }
}

/* mincore answers ENOMEM for pages that are not mapped. */
static int is_mapped(unsigned char *page) {
    unsigned char resident;
    return mincore(page, 1, &resident) == 0 || errno != ENOMEM;
}

/* All that is mapped, in OS pages. */
static long num_mapped_pages(void) {
    long pages = -1;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld", &pages) != 1)
        pages = -1;
    if (file)
        fclose(file);
    return pages;
}

static void check_map(int64_t bytes, bool huge) {
    void *memory = NULL;
    assert_int_equal(pkv_os_map(&memory, bytes, huge, "test", NULL), PKV_STATUS_OK);
    const int64_t alignment = huge ? PKV_OS_HUGE_PAGE_BYTES : pkv_os_page_bytes();
    assert_int_equal((uintptr_t)memory % (uintptr_t)alignment, 0);
    unsigned char *at = memory;
    for (int64_t i = 0; i < bytes; i++) {
        if (at[i] != 0)
            fail_msg("byte %lld is not zero", (long long)i);
    }
    memset(memory, 0xff, (size_t)bytes);
    const int64_t last_page = (bytes - 1) / pkv_os_page_bytes() * pkv_os_page_bytes();
    assert_true(is_mapped(at + last_page));
    pkv_os_unmap(memory, bytes);
    assert_false(is_mapped(at));
    assert_false(is_mapped(at + last_page));
}

static void test_map(void **state) {
    static const int64_t sizes[] = {1, 4095, 4096, 4097, 2 << 20, (2 << 20) + 1, 5 << 20};
    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        check_map(sizes[i], false);
        check_map(sizes[i], true);
    }
    pkv_os_unmap(NULL, 4096);
}

/* What is mapped to find an aligned address goes back: 64 forgotten huge pages would be 128 MiB. */
static void test_map_keeps_nothing(void **state) {
    (void)state;
    const long before = num_mapped_pages();
    for (int i = 0; i < 64; i++)
        check_map(1, true);
    assert_true((num_mapped_pages() - before) * pkv_os_page_bytes() < 32 << 20);
}

static void test_map_refusals(void **state) {
    (void)state;
    struct pkv_error error = {0};
    void *memory = NULL;
    assert_int_equal(pkv_os_map(&memory, 0, false, "test", &error), PKV_STATUS_INVALID_ARGUMENT);
    assert_string_equal(error.function, "test");
    assert_int_equal(pkv_os_map(&memory, -1, true, "test", &error), PKV_STATUS_INVALID_ARGUMENT);
    assert_int_equal(error.value, -1);
    assert_int_equal(pkv_os_map(&memory, INT64_MAX, false, "test", &error), PKV_STATUS_OVERFLOW);
    assert_int_equal(pkv_os_map(&memory, INT64_MAX - 65536 * 2, true, "test", &error),
                     PKV_STATUS_OVERFLOW);
    assert_int_equal(pkv_os_map(&memory, INT64_C(1) << 60, true, "test", &error),
                     PKV_STATUS_OUT_OF_MEMORY);
    assert_int_equal(error.value, INT64_C(1) << 60);
    assert_null(memory);
}

static void test_default_allocator(void **state) {
    (void)state;
    const struct pkv_allocator zeroed = {NULL, NULL, NULL};
    const struct pkv_allocator allocators[] = {pkv_allocator_resolve(NULL),
                                               pkv_allocator_resolve(&zeroed)};
    for (int i = 0; i < 2; i++) {
        for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
            for (size_t bytes = 0; bytes <= 100; bytes += 50) {
                void *memory = pkv_alloc(&allocators[i], bytes, alignment);
                assert_non_null(memory);
                assert_int_equal((uintptr_t)memory % alignment, 0);
                memset(memory, 0xff, bytes);
                pkv_free(&allocators[i], memory);
            }
        }
        pkv_free(&allocators[i], NULL);
    }
}

static void test_callers_allocator(void **state) {
    (void)state;
    struct test_allocator memory = {0};
    const struct pkv_allocator hook = test_allocator_hook(&memory);
    const struct pkv_allocator resolved = pkv_allocator_resolve(&hook);
    void *one = pkv_alloc(&resolved, 10, 1);
    assert_non_null(one);
    assert_int_equal(memory.num_live, 1);
    memory.fail_at = 2;
    assert_null(pkv_alloc(&resolved, 10, 64));
    pkv_free(&resolved, NULL);
    pkv_free(&resolved, one);
    assert_int_equal(memory.num_live, 0);
    assert_int_equal(memory.num_bad, 0);
    const struct pkv_allocator no_free = {hook.alloc, NULL, hook.user};
    const struct pkv_allocator no_alloc = {NULL, hook.free, hook.user};
    assert_null(pkv_allocator_resolve(&no_free).alloc);
    assert_null(pkv_allocator_resolve(&no_alloc).alloc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_map_keeps_nothing),
        cmocka_unit_test(test_map_refusals),
        cmocka_unit_test(test_default_allocator),
        cmocka_unit_test(test_callers_allocator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
