/* SPDX-License-Identifier: MIT
 *
 * The address formula of a cache (pagedkv/cache.h), for code that walks rows. Together with
 * copy_nest.h this is the only place where dimensions become distances.
 */
#ifndef PKV_GEOMETRY_CACHE_H
#define PKV_GEOMETRY_CACHE_H

#include <pagedkv/cache.h>

#include "geometry/strided.h"
#include "geometry/tensor.h"

/* Describes one part from its tensor. num_kv_heads as in struct pkv_cache_options. */
enum pkv_status pkv_cache_part_init(struct pkv_cache_part *part, const struct pkv_tensor *tensor,
                                    int32_t layout, int64_t num_kv_heads, int64_t *num_blocks,
                                    int64_t *block_size, const struct pkv_where *where);

/* Gives a PA_NZ part that was described as one head of kv_dim the heads of a part with equal rows,
 * where its fragments allow it; leaves every other part as it is. */
void pkv_cache_part_adopt_heads(struct pkv_cache_part *part, const struct pkv_cache_part *other);

/* Divides the rows of an NHD part of one head into num_heads heads, which they must hold. */
void pkv_cache_part_split_heads(struct pkv_cache_part *part, int64_t num_heads);

/* Refuses a struct that pkv_cache_init has not filled. */
enum pkv_status pkv_cache_refuse(const char *function, const char *argument,
                                 struct pkv_error *error);
static inline enum pkv_status pkv_cache_check(const struct pkv_cache *cache, const char *function,
                                              const char *argument, struct pkv_error *error) {
    const bool is_filled = cache->struct_size == sizeof(*cache) && cache->block_size >= 1 &&
                           cache->num_blocks >= 1 && cache->key.data != NULL;
    return is_filled ? PKV_STATUS_OK : pkv_cache_refuse(function, argument, error);
}

/* All bytes of a part, and those of the row at byte offset `row`. */
struct pkv_strided pkv_cache_part_bytes(const struct pkv_cache_part *part, int64_t num_blocks,
                                        int64_t block_size);
struct pkv_strided pkv_cache_part_row_bytes(const struct pkv_cache_part *part, int64_t row);

/* Same formula, whatever the data. */
static inline bool pkv_cache_part_is_like(const struct pkv_cache_part *a,
                                          const struct pkv_cache_part *b) {
    /* Without a branch for each: they are almost always alike. */
    return ((a->dtype ^ b->dtype) | (a->layout ^ b->layout) | (a->num_heads ^ b->num_heads) |
            (a->head_size ^ b->head_size) | (a->block_stride_bytes ^ b->block_stride_bytes) |
            (a->token_stride_bytes ^ b->token_stride_bytes) |
            (a->head_stride_bytes ^ b->head_stride_bytes) |
            (a->fragment_stride_bytes ^ b->fragment_stride_bytes) |
            (a->fragment_bytes ^ b->fragment_bytes)) == 0;
}

/* The rows of all slots are in equal steps, across block ends too. */
static inline bool pkv_cache_part_is_flat(const struct pkv_cache_part *part, int64_t block_size) {
    return part->block_stride_bytes == block_size * part->token_stride_bytes;
}

/* The byte offset of the row at `offset` of a block. */
static inline int64_t pkv_cache_part_row(const struct pkv_cache_part *part, int64_t block,
                                         int64_t offset) {
    return block * part->block_stride_bytes + offset * part->token_stride_bytes;
}

/* The byte offset of a slot's row. */
static inline int64_t pkv_cache_part_offset(const struct pkv_cache_part *part, int64_t block_size,
                                            int64_t slot) {
    if (pkv_cache_part_is_flat(part, block_size))
        return slot * part->token_stride_bytes;
    const int64_t block = slot / block_size;
    return pkv_cache_part_row(part, block, slot - block * block_size);
}

/* The byte offset of element d of head h, from its row's first byte: the definition. */
static inline int64_t pkv_cache_part_element(const struct pkv_cache_part *part, int64_t h,
                                             int64_t d) {
    const int64_t bytes = d * part->element_bytes;
    return h * part->head_stride_bytes +
           bytes / part->fragment_bytes * part->fragment_stride_bytes +
           bytes % part->fragment_bytes;
}

#endif
