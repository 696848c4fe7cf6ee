/* SPDX-License-Identifier: MIT
 *
 * The zero-copy read path: a walk over the blocks of one sequence, in token order, that yields
 * where the rows lie. pkv_gather_pa_kv_cache is written on it.
 */
#ifndef PAGEDKV_WALK_H
#define PAGEDKV_WALK_H

#include <pagedkv/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A walk. Fields are its own business. */
struct pkv_walk {
    const struct pkv_cache *cache;
    const void *block_ids;
    int64_t block_id_stride; /* in elements */
    int32_t block_id_dtype;
    int32_t reserved;
    int64_t next_block; /* the entry of the block to come */
    int64_t offset;     /* in that block */
    int64_t position;   /* the token to come, counted from the sequence's first */
    int64_t end;
};

/* The tokens of one walk that lie in one block. In bytes, token i of them, head h, element d of the
 * key is at
 *
 *   key + i * token_stride_bytes + h * head_stride_bytes
 *       + (d * element_bytes) / fragment_bytes * fragment_stride_bytes
 *       + (d * element_bytes) % fragment_bytes
 *
 * with the numbers of cache->key (cache.h), and likewise the value with those of cache->value; in
 * NHD and HND each head is head_size adjacent elements. */
struct pkv_walk_block {
    int64_t block_id;
    int64_t offset;     /* of the first token in its block */
    int64_t position;   /* of the first token, counted from the sequence's first */
    int64_t num_tokens; /* valid tokens, at least 1 */
    void *key;          /* the first token's row; head 0, element 0 */
    void *value;        /* NULL in a key-only cache */
};

/* Starts a walk over tokens [first_token, first_token + num_tokens) of a sequence.
 *
 * walk         out; valid as long as *cache and the entries of block_table stay as they are
 * cache        in; borrowed
 * block_table  [max_num_blocks_per_seq] int32 or int64 in: one row of a table; only the entries of
 *              those tokens are read; its data is borrowed
 * first_token  >= 0, counted from the sequence's first
 * num_tokens   >= 0; 0 gives an empty walk
 * errors       of block_table those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *              STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (walk, cache), DTYPE (neither
 *              int32 nor int64), RANK (not 1), INVALID_ARGUMENT (first_token, num_tokens),
 *              POSITION_OUT_OF_RANGE (a token beyond the table), BLOCK_OUT_OF_RANGE (in an entry of
 *              those tokens), BAD_STATE (a cache that pkv_cache_init has not filled)
 * threads      any; each walk belongs to one thread at a time
 * cost         reads one table entry a block; no token is touched, no allocation
 * source       PyPTO-Gym AT-17
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_walk_init(struct pkv_walk *walk,
                                                   const struct pkv_cache *cache,
                                                   const struct pkv_tensor *block_table,
                                                   int64_t first_token, int64_t num_tokens,
                                                   struct pkv_error *error);

/* Fills *block with the next block and returns 1, or returns 0 at the end and leaves *block as it
 * was. Neither may be NULL. */
PKV_API int pkv_walk_next(struct pkv_walk *walk, struct pkv_walk_block *block);

#ifdef __cplusplus
}
#endif

#endif
