/* SPDX-License-Identifier: MIT
 *
 * The input of a fuzz target, read as a stream of numbers; behind its end all bytes are 0.
 */
#ifndef PAGEDKV_TESTS_BYTES_H
#define PAGEDKV_TESTS_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct bytes {
    const uint8_t *data;
    size_t size;
};

static inline uint8_t take_byte(struct bytes *in) {
    if (in->size == 0)
        return 0;
    in->size--;
    return *in->data++;
}

/* In [low, high], from one byte. */
static inline int64_t take_between(struct bytes *in, int64_t low, int64_t high) {
    return low + take_byte(in) % (high - low + 1);
}

static inline int64_t take_wide(struct bytes *in) {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | take_byte(in);
    return (int64_t)value;
}

/* Mostly in [-1, limit], and sometimes a number that arithmetic may trip over. */
static inline int64_t take_hostile(struct bytes *in, int64_t limit) {
    static const int64_t nasty[] = {INT64_MIN,        INT64_MAX,     INT32_MIN,
                                    INT32_MAX,        -1000,         INT64_C(1) << 32,
                                    INT64_C(1) << 62, INT64_MAX / 2, -(INT64_C(1) << 32)};
    const uint8_t kind = take_byte(in);
    if (kind < 0xf0)
        return kind % (limit + 2) - 1;
    if (kind < 0xf9)
        return nasty[kind - 0xf0];
    return kind < 0xfc ? take_wide(in) : limit + kind - 0xfc;
}

/* A broken promise of the library: the run ends here, and the replay driver names the input. */
static inline void require(int condition, const char *promise) {
    if (!condition) {
        fprintf(stderr, "broken promise: %s\n", promise);
        abort();
    }
}

#endif
