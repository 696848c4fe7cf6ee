/* SPDX-License-Identifier: MIT
 *
 * Work on whole blocks: copies inside one cache and between two, filling them with a value, and the
 * exact conversion between layouts.
 */
#ifndef PAGEDKV_BLOCKS_H
#define PAGEDKV_BLOCKS_H

#include <pagedkv/cache.h>
#include <pagedkv/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Copies block block_mapping[i][0] to block block_mapping[i][1], keys and values, for every i: what
 * copy-on-write asks for.
 *
 * cache          in/out
 * block_mapping  [num_pairs, 2] int32 or int64 in, (source, destination); any strides; a source may
 *                serve several destinations; a destination that is also a source, or is named
 *                twice, is refused, so that the order of the pairs never matters
 * effect         the rows of destination blocks hold what those of their sources hold; every other
 *                byte stays, padding between rows included; num_pairs 0 succeeds and does nothing
 * errors         of block_mapping those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *                STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context, cache), DTYPE (neither
 *                int32 nor int64), RANK (not 2), SHAPE (second dimension not 2), BLOCK_OUT_OF_RANGE
 *                (a source or destination), OVERLAP (a destination named twice or also a source; a
 *                mapping that shares bytes with the cache, or may do so), BAD_STATE (a cache that
 *                pkv_cache_init has not filled), INTERNAL (sim: an access outside the cache)
 * threads        the executor's, at most one for each 512 KiB to be written; the caller's alone
 *                when that makes one, and in sim
 * cost           2 * num_pairs * block bytes moved, and up to four passes over the pairs for each
 *                2,048 of them; no allocation
 * numerics       EXACT
 * source         vLLM copy_blocks
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_copy_blocks(struct pkv_context *context,
                                                     const struct pkv_cache *cache,
                                                     const struct pkv_tensor *block_mapping,
                                                     struct pkv_error *error);

/* Copies block block_mapping[i][0] of src to block block_mapping[i][1] of dst, keys and values, for
 * every i: what swapping a sequence out and in asks for.
 *
 * src            in
 * dst            in/out, apart from src; same block_size, dtypes, number of heads and head sizes,
 *                key-only like src; num_blocks, layouts and strides as they like. A PA_NZ part
 *                described with one head of kv_dim goes together with any split of the same kv_dim
 *                into heads that are multiples of 32 bytes
 * block_mapping  [num_pairs, 2] int32 or int64 in, (block of src, block of dst); any strides; a
 *                source may serve several destinations; a destination that is named twice is
 *                refused, so that the order of the pairs never matters
 * effect         the rows of destination blocks hold what those of their sources hold; every other
 *                byte stays, padding between rows included; num_pairs 0 succeeds and does nothing
 * errors         of block_mapping those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *                STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context, src, dst), BAD_STATE (a
 *                cache that pkv_cache_init has not filled), SHAPE (another block_size, number of
 *                heads or head size; one of the caches key-only; second dimension of block_mapping
 *                not 2), DTYPE (key or value of another dtype; block_mapping neither int32 nor
 *                int64), RANK (block_mapping not 2), BLOCK_OUT_OF_RANGE (a source or destination),
 *                OVERLAP (src and dst share bytes; caches that interleave in steps of different
 *                size may be refused too; a destination named twice; a mapping that shares bytes
 *                with dst, or may do so), INTERNAL (sim: an access outside a cache)
 * threads        as pkv_copy_blocks
 * cost           as pkv_copy_blocks
 * numerics       EXACT
 * source         vLLM swap_blocks
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_swap_blocks(struct pkv_context *context,
                                                     const struct pkv_cache *src,
                                                     const struct pkv_cache *dst,
                                                     const struct pkv_tensor *block_mapping,
                                                     struct pkv_error *error);

/* Fills blocks with a value: NaN in blocks that were given back shows who still reads them.
 *
 * cache          in/out
 * first_block    >= 0
 * num_blocks     >= 0; first_block + num_blocks at most the cache's
 * key_element    [bytes of a key element] in, aligned to nothing; copied before anything is written
 * value_element  [bytes of a value element] in, likewise; NULL exactly when the cache is key-only
 * effect         every element of the rows of these blocks holds the value; every other byte stays,
 *                padding between rows included; num_blocks 0 succeeds and does nothing
 * errors         NULL_ARGUMENT (context, cache, key_element; a value_element missing, or given to a
 *                key-only cache), BLOCK_OUT_OF_RANGE (first_block, num_blocks), BAD_STATE (a cache
 *                that pkv_cache_init has not filled), INTERNAL (sim: an access outside the cache)
 * threads        as pkv_copy_blocks
 * cost           the bytes of all rows written; no allocation
 * numerics       EXACT
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_fill_blocks(struct pkv_context *context, const struct pkv_cache *cache, int64_t first_block,
                int64_t num_blocks, const void *key_element, const void *value_element,
                struct pkv_error *error);

/* Rewrites every row of one cache into another of any layout.
 *
 * src       in
 * dst       in/out, apart from src; same num_blocks, block_size, dtypes, number of heads and head
 *           sizes, key-only like src; layouts and strides as they like. A PA_NZ part described with
 *           one head of kv_dim goes together with any split of the same kv_dim into heads that are
 *           multiples of 32 bytes
 * effect    dst holds the rows of src; padding between the rows of dst stays
 * errors    NULL_ARGUMENT (context, src, dst), BAD_STATE (a cache that pkv_cache_init has not
 *           filled), SHAPE (another num_blocks, block_size, number of heads or head size; one of
 *           them key-only), DTYPE (key or value of another dtype), OVERLAP (src and dst share
 *           bytes; caches that interleave in steps of different size may be refused too), INTERNAL
 *           (sim: an access outside a cache)
 * threads   the executor's, at most one for each 512 KiB to be written; the caller's alone when
 *           that makes one, and in sim
 * cost      2 * bytes of all rows moved; no allocation
 * numerics  EXACT
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_convert_layout(struct pkv_context *context,
                                                        const struct pkv_cache *src,
                                                        const struct pkv_cache *dst,
                                                        struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
