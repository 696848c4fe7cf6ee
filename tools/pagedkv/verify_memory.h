/* SPDX-License-Identifier: MIT
 *
 * The caches of verify and the reference that they are held against. Every word of the caches has a
 * value that follows from its place, so that every byte can be checked after a scatter without a
 * second cache. The reference is a loop over the tokens; it uses nothing of the library.
 */
#ifndef PAGEDKV_VERIFY_MEMORY_H
#define PAGEDKV_VERIFY_MEMORY_H

#include <stdint.h>

#include <pagedkv/executor.h>

#include "bench_memory.h"
#include "verify_cases.h"

enum verify_part { VERIFY_KEY, VERIFY_VALUE, VERIFY_NUM_PARTS };

struct verify_memory {
    const struct pkv_executor *executor; /* fills and checks; may be of zeroes */
    struct bench_memory cache[VERIFY_NUM_PARTS];
    struct bench_memory source[VERIFY_NUM_PARTS];
    int32_t *last_token; /* [max_slots]: the last token that names the slot, or -1 */
    int64_t max_slots;
};

/* What a set of cases needs. */
struct verify_sizes {
    int64_t cache_bytes; /* of each part */
    int64_t source_bytes;
    int64_t max_slots;
};

/* Maps and fills, with a guard of 1 MiB behind each cache. Returns 0, or -1 when the system has no
 * such memory. */
int verify_memory_create(struct verify_memory *memory, const struct verify_sizes *sizes,
                         const struct pkv_executor *executor);
void verify_memory_destroy(struct verify_memory *memory);

/* Gives every byte of the caches its own value: after a case that went wrong anything may have been
 * written anywhere. */
void verify_memory_fill(struct verify_memory *memory);

/* Gives the first num_tokens rows of the sources random bytes: all patterns of bf16, NaN too. */
void verify_fill_sources(struct verify_memory *memory, const struct verify_case *one);

/* Learns which token each slot must hold. */
void verify_expect(struct verify_memory *memory, const struct verify_case *one,
                   const int64_t *slots);

/* Gives the rows of these slots their own values again, and forgets the expectation. */
void verify_restore_slots(struct verify_memory *memory, const struct verify_case *one,
                          const int64_t *slots);

/* Gives bytes [first, first + bytes) of both parts their own values again; multiples of 1 KiB. */
void verify_restore_bytes(struct verify_memory *memory, int64_t first, int64_t bytes);

/* The first byte that is not as expected. */
struct verify_difference {
    int64_t num_chunks; /* pieces of 1 KiB that differ; 0: everything is as expected */
    enum verify_part part;
    int64_t byte; /* in the part */
    int found;
    int expected;
};

/* Checks every byte of both caches, also behind the case's last block. With tolerance the elements
 * are compared as bf16 numbers: |found - expected| <= 1e-4 + 2^-7 * |expected|, NaN equal to
 * NaN. */
struct verify_difference verify_check(const struct verify_memory *memory,
                                      const struct verify_case *one, int tolerance);

#endif
