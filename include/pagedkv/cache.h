/* SPDX-License-Identifier: MIT
 *
 * One layer's paged cache, described: which bytes belong to which token. It owns nothing.
 *
 * A block holds block_size tokens; slot = block_id * block_size + offset. The row of a token has
 * kv_dim = num_kv_heads * head_size elements; a layout cuts the row of each head into fragments:
 *
 *   byte(block, offset, head, d) = block * block_stride + offset * token_stride + head *
 * head_stride
 *                                + (d / f) * fragment_stride + (d % f) * element bytes
 *
 * | layout      | shape                                             | f, elements of a fragment |
 * | NHD         | [num_blocks, block_size, num_kv_heads, head_size] | head_size                 |
 * | HND         | [num_blocks, num_kv_heads, block_size, head_size] | head_size                 |
 * | PA_NZ       | [num_blocks, kv_dim / L, block_size, L]           | L = 32 / element bytes    |
 * |  (or 5-D)   | [num_blocks, num_kv_heads, head_size / L, block_size, L], the same memory     |
 * | X_PACKED    | [num_blocks, num_kv_heads, head_size / x, block_size, x], x = 16 / element bytes
 * | | TRANSPOSED  | [num_blocks, num_kv_heads, head_size, block_size] | 1                         |
 *
 * Strides may be larger than packed ones: pools that interleave keys and values, padded rows, parts
 * of a packed row, slices of heads. The elements of a fragment are always adjacent.
 */
#ifndef PAGEDKV_CACHE_H
#define PAGEDKV_CACHE_H

#include <pagedkv/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

enum pkv_layout {
    PKV_LAYOUT_NHD = 0,       /* published as "Norm", "flash" */
    PKV_LAYOUT_HND = 1,       /* published as "NHSD" */
    PKV_LAYOUT_PA_NZ = 2,     /* 32-byte fragments */
    PKV_LAYOUT_X_PACKED = 3,  /* 16-byte fragments */
    PKV_LAYOUT_TRANSPOSED = 4 /* one element a fragment, tokens adjacent */
};

/* "NHD", "HND", "PA_NZ", "X_PACKED", "TRANSPOSED"; "unknown" otherwise. */
PKV_API const char *pkv_layout_name(int32_t layout);

/* The layout of that name, case ignored, also "Norm" and "NHSD"; -1 if none. */
PKV_API int32_t pkv_layout_from_name(const char *name);

/* How the numbers are stored. */
enum pkv_format {
    PKV_FORMAT_PLAIN = 0 /* as they are */
};

/* The key half or the value half of a cache: the address formula with its numbers filled in.
 * Strides are in bytes. Read it freely; only pkv_cache_init writes it. */
struct pkv_cache_part {
    void *data;     /* NULL: the cache has no such part (key-only) */
    int32_t dtype;  /* enum pkv_dtype */
    int32_t layout; /* enum pkv_layout */
    int64_t element_bytes;
    int64_t num_heads;
    int64_t head_size;
    int64_t block_stride_bytes;
    int64_t token_stride_bytes;
    int64_t head_stride_bytes;
    int64_t fragment_stride_bytes;
    int64_t fragment_bytes;
    int64_t row_bytes;  /* num_heads * head_size * element_bytes: what one token stores */
    int64_t span_bytes; /* from the first to behind the last byte that belongs to the part */
};

struct pkv_cache {
    size_t struct_size;
    int32_t format; /* enum pkv_format */
    int32_t reserved;
    int64_t num_blocks;
    int64_t block_size;
    int64_t num_slots; /* num_blocks * block_size */
    struct pkv_cache_part key;
    struct pkv_cache_part value; /* data NULL: key-only */
};

struct pkv_cache_options {
    size_t struct_size;
    int32_t key_layout;   /* enum pkv_layout */
    int32_t value_layout; /* enum pkv_layout */
    int32_t format;       /* enum pkv_format */
    int32_t reserved;     /* 0 */
    int64_t num_kv_heads; /* PA_NZ in its 4-D shape does not tell: 0 means one head of kv_dim; in
                             the other layouts 0, or what the shape says */
};

/* Describes a cache and proves the description.
 *
 * cache        out
 * key_cache    its shape by layout, see above; strides as they are, larger ones included
 * value_cache  nullable: key-only. Head size, dtype and layout may differ from the key's;
 * num_blocks, block_size and the number of heads may not options      nullable: NHD errors
 * NULL_ARGUMENT, DTYPE (not one of the twelve), RANK, SHAPE, STRIDE (elements of a fragment not
 * adjacent, rows that overlap each other), MISALIGNED, OVERLAP (an element belongs to both parts),
 * LAYOUT (format), UNSUPPORTED (PA_NZ whose head is no multiple of 32 bytes, key-only PA_NZ),
 * OVERFLOW, INVALID_ARGUMENT, STRUCT_SIZE cost         no element is read, no allocation
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_cache_init(struct pkv_cache *cache,
                                                    const struct pkv_tensor *key_cache,
                                                    const struct pkv_tensor *value_cache,
                                                    const struct pkv_cache_options *options,
                                                    struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
