/* SPDX-License-Identifier: MIT
 *
 * The prefix index: contents of blocks by what they hold and what comes before. Keys, domains,
 * questions about a prompt, pins. Sequences take what it finds with pkv_seq_match.
 *
 * A key only says where to look. A hit compares the stored tokens and the identity of the block
 * before, back to a domain compared byte by byte: two prefixes of the same key are a miss, never a
 * wrong hit.
 */
#ifndef PAGEDKV_PREFIX_H
#define PAGEDKV_PREFIX_H

#include <pagedkv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_bytes {
    const void *data;
    size_t size; /* 0: absent */
};

/* What must be equal, beside the tokens, before two sequences may share a block. All of it is part
 * of the first block's key and reaches the others through the chain. */
struct pkv_domain {
    size_t struct_size;
    struct pkv_bytes model;        /* fingerprint of weights and numeric formats */
    struct pkv_bytes adapter;      /* LoRA or other */
    struct pkv_bytes salt;         /* a tenant's: equal tokens of different salts never share */
    const struct pkv_bytes *media; /* [num_media] images and the like, in order */
    size_t num_media;
};

/* The key of what comes before the first token: the parent of the first block's key.
 *
 * group, block_size  the layer group and its block size
 * domain             in, nullable: no field present
 * key                out
 * errors             NULL_ARGUMENT, INVALID_ARGUMENT (group, block_size), STRUCT_SIZE, CAPACITY (a
 *                    field beyond 2^32 - 1 bytes)
 * source             doc/prefix-key.md
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_prefix_root_key(uint64_t hash_seed, int32_t group, int64_t block_size,
                    const struct pkv_domain *domain, struct pkv_key *key, struct pkv_error *error);

/* The key of a block after its parent.
 *
 * parent     in, the key of the block before, or the root key; may be the same as key
 * token_ids  [num_tokens] in, the block's tokens
 * errors     NULL_ARGUMENT, INVALID_ARGUMENT (num_tokens not 1 to PKV_MAX_BLOCK_SIZE)
 * source     doc/prefix-key.md
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_prefix_block_key(uint64_t hash_seed, const struct pkv_key *parent, const int32_t *token_ids,
                     int64_t num_tokens, struct pkv_key *key, struct pkv_error *error);

/* How many of these tokens a new sequence would find, as pkv_seq_match does, changing nothing. What
 * is beyond max_tokens_per_seq is not looked for.
 *
 * domain          in, nullable
 * token_ids       [num_tokens] in
 * num_hit_tokens  out
 * errors          NULL_ARGUMENT, INVALID_ARGUMENT (num_tokens < 0), STRUCT_SIZE, CAPACITY (domain)
 * cost            one hash and one comparison a block
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_prefix_lookup(struct pkv_pool *pool, const struct pkv_domain *domain, const int32_t *token_ids,
                  int64_t num_tokens, int64_t *num_hit_tokens, struct pkv_error *error);

/* Pins the blocks that pkv_prefix_lookup would find: each gets a reference, so that it is used, not
 * cached, until pkv_block_release gives the reference back.
 *
 * blocks          [max_blocks] out, first all of group 0, then of group 1 ...
 * num_blocks      out, how many of them
 * num_hit_tokens  out, nullable
 * errors          as pkv_prefix_lookup, and CAPACITY (more than max_blocks; nothing is pinned),
 *                 BAD_STATE
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_prefix_pin(struct pkv_pool *pool, const struct pkv_domain *domain, const int32_t *token_ids,
               int64_t num_tokens, struct pkv_block *blocks, int64_t max_blocks,
               int64_t *num_blocks, int64_t *num_hit_tokens, struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
