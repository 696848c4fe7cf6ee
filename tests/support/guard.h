/* SPDX-License-Identifier: MIT
 *
 * Memory between two OS pages that may not be touched: one byte too far is a crash, not luck.
 */
#ifndef PAGEDKV_TESTS_GUARD_H
#define PAGEDKV_TESTS_GUARD_H

#include <stddef.h>

enum test_guard_side {
    TEST_GUARD_END,  /* the byte behind the data is forbidden */
    TEST_GUARD_START /* the byte before the data is forbidden */
};

struct test_guard {
    void *data; /* never NULL, also for 0 bytes */
    size_t bytes;
    void *first_page; /* the OS pages that hold the data; the ones around them are forbidden */
    size_t num_pages;
    int is_protected;
};

/* Zeroed memory. At the end side data is as aligned as bytes is. Ends the program when the system
 * gives none. */
struct test_guard test_guard_make(size_t bytes, enum test_guard_side side);

/* A zeroed guard is fine. The memory may be used again, by the same thread. */
void test_guard_free(struct test_guard *guard);

/* After this any write into the data is a crash. */
void test_guard_protect(struct test_guard *guard);

#endif
