/* SPDX-License-Identifier: MIT
 *
 * Facts that the operating system tells, the clock, and memory from the allocator hook.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

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
        cmocka_unit_test(test_default_allocator),
        cmocka_unit_test(test_callers_allocator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
