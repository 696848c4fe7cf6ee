/* SPDX-License-Identifier: MIT
 *
 * Prefix keys: the format of doc/prefix-key.md, on XXH3.
 */
#ifndef PKV_POOL_KEY_H
#define PKV_POOL_KEY_H

#include <stdbool.h>

#include <pagedkv/prefix.h>

/* Writes the fields of a domain as the format says. Returns the bytes that they need; nothing is
 * written beyond max_bytes. -1: a field does not fit into 2^32 - 1 bytes. */
int64_t pkv_key_encode(const struct pkv_domain *domain, unsigned char *encoded, int64_t max_bytes);

/* The key before the first token, from an encoded domain. */
struct pkv_key pkv_key_root(uint64_t seed, int32_t group, int64_t block_size,
                            const unsigned char *encoded, int64_t num_bytes);

/* The key of a block behind the block of key parent. */
struct pkv_key pkv_key_block(uint64_t seed, struct pkv_key parent, const int32_t *tokens,
                             int64_t num_tokens);

static inline bool pkv_key_equal(struct pkv_key a, struct pkv_key b) {
    return a.low == b.low && a.high == b.high;
}

#endif
