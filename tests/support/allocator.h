/* SPDX-License-Identifier: MIT
 *
 * An allocator that counts, refuses on demand, and knows what has not been given back.
 */
#ifndef PAGEDKV_TESTS_ALLOCATOR_H
#define PAGEDKV_TESTS_ALLOCATOR_H

#include <pagedkv/context.h>

struct test_allocator {
    int64_t num_calls; /* of alloc */
    int64_t fail_at;   /* the call that returns NULL, counted from 1; 0: none */
    int64_t num_live;  /* given out and not back */
    int64_t num_bad;   /* alignments that are no power of two or below a pointer's, frees of memory
                          that is not ours */
};

/* The hook; allocator must outlive everything that is made with it. */
struct pkv_allocator test_allocator_hook(struct test_allocator *allocator);

#endif
