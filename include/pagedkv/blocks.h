/* SPDX-License-Identifier: MIT
 *
 * Work on whole blocks: copies inside one cache, and the exact conversion between layouts.
 */
#ifndef PAGEDKV_BLOCKS_H
#define PAGEDKV_BLOCKS_H

#include <pagedkv/cache.h>
#include <pagedkv/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Copies block block_mapping[i][0] to block block_mapping[i][1], keys and values, for every i: what
 * copy-on-write asks for. EXACT.
 *
 * cache          in/out
 * block_mapping  [num_pairs, 2] int32 or int64, (source, destination); a source may serve several
 *                destinations; a destination that is also a source, or is named twice, is refused,
 * so that the order of the pairs never matters effect         destination blocks hold what their
 * sources hold; every other byte stays errors         NULL_ARGUMENT, DTYPE, RANK, SHAPE, STRIDE,
 * MISALIGNED, BLOCK_OUT_OF_RANGE, OVERLAP; nothing is written then threads        the executor's,
 * if there are enough bytes to pay for waking them cost           2 * num_pairs * block bytes
 * moved, and one pass over the pairs for each 131,072 blocks of the cache; no allocation source
 * vLLM copy_blocks
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_copy_blocks(struct pkv_context *context,
                                                     const struct pkv_cache *cache,
                                                     const struct pkv_tensor *block_mapping,
                                                     struct pkv_error *error);

/* Rewrites every row of one cache into another of any layout. EXACT.
 *
 * src, dst  in / out, not overlapping; same num_blocks, block_size, dtypes, number of heads and
 * head sizes; layouts and strides as they like. PA_NZ described with one head of kv_dim matches any
 * split of the same kv_dim effect    dst holds the rows of src; padding between the rows of dst
 * stays errors    NULL_ARGUMENT, SHAPE, DTYPE, OVERLAP threads   the executor's, if there are
 * enough bytes cost      2 * cache bytes moved; no allocation
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_convert_layout(struct pkv_context *context,
                                                        const struct pkv_cache *src,
                                                        const struct pkv_cache *dst,
                                                        struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
