/* SPDX-License-Identifier: MIT
 *
 * 64-bit size arithmetic that notices when it does not fit.
 */
#ifndef PKV_BASE_CHECKED_H
#define PKV_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* Each returns false, with *result unspecified, when the exact result does not fit in 63 bits. */
static inline bool pkv_checked_mul(int64_t a, int64_t b, int64_t *result) {
    return !__builtin_mul_overflow(a, b, result);
}

static inline bool pkv_checked_add(int64_t a, int64_t b, int64_t *result) {
    return !__builtin_add_overflow(a, b, result);
}

#endif
