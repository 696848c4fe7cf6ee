/* SPDX-License-Identifier: MIT
 *
 * The walk along a prompt through the index.
 */
#ifndef PKV_POOL_PREFIX_H
#define PKV_POOL_PREFIX_H

#include "pool/pool.h"

/* What a walk found: blocks [first, num) of each group, in its `found` row. */
struct pkv_prefix_hit {
    int32_t num_tokens;
    struct {
        uint32_t first_block;
        uint32_t num_blocks; /* the last one is partial if num_tokens says so */
    } groups[PKV_MAX_GROUPS];
};

/* The longest beginning of the tokens that every group has; nothing is changed but scratch. */
void pkv_prefix_walk(struct pkv_pool *pool, uint32_t domain, const int32_t *tokens,
                     int32_t num_tokens, struct pkv_prefix_hit *hit);

/* Indexes what a sequence has computed and nobody who shares it has yet to compute. */
void pkv_prefix_advance(struct pkv_pool *pool, uint32_t seq);

/* Fetches what pkv_prefix_advance will need once so many tokens are computed. A hint: it hashes the
 * next block of a sequence whose last block is complete by that. */
void pkv_prefix_prefetch(const struct pkv_pool *pool, uint32_t seq, int32_t num_computed);

/* With partial blocks: indexes the last block of a sequence that is about to give it back. */
void pkv_prefix_index_tail(struct pkv_pool *pool, uint32_t seq);

#endif
