/* SPDX-License-Identifier: MIT
 *
 * One layer's paged cache, described: which bytes belong to which token. It owns nothing.
 *
 * A block holds block_size tokens; slot = block_id * block_size + offset. The row of a token has
 * kv_dim = num_kv_heads * head_size elements; a layout cuts the row of each head into fragments:
 *
 *   byte(block, offset, head, d) = block * block_stride + offset * token_stride
 *                                + head * head_stride + (d / f) * fragment_stride
 *                                + (d % f) * element bytes
 *
 * | layout     | shape                                                    | f, elements           |
 * | ---------- | -------------------------------------------------------- | --------------------- |
 * | NHD        | [num_blocks, block_size, num_kv_heads, head_size]        | head_size             |
 * | HND        | [num_blocks, num_kv_heads, block_size, head_size]        | head_size             |
 * | PA_NZ      | [num_blocks, kv_dim / f, block_size, f]                  | 32 bytes' worth       |
 * |   or 5-D   | [num_blocks, num_kv_heads, head_size / f, block_size, f] | the same memory       |
 * | X_PACKED   | [num_blocks, num_kv_heads, head_size / f, block_size, f] | 16 bytes' worth       |
 * | TRANSPOSED | [num_blocks, num_kv_heads, head_size, block_size]        | 1                     |
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

/* The layout of that name, case ignored, also "Norm" and "NHSD"; -1 if there is none, or name is
 * NULL. */
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
    int64_t span_bytes; /* from the first byte of the part to its last one, both included */
};

/* Filled by pkv_cache_init, struct_size included. Everything else that takes a cache wants it so:
 * BAD_STATE. */
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
    /* PA_NZ in its 4-D shape does not tell: 0 means as many heads as the other part's shape
     * tells, or one head of kv_dim. In the other layouts 0, or what the shape says. */
    int64_t num_kv_heads;
};

/* Describes a cache and proves the description.
 *
 * cache        out, written whole
 * key_cache    in, its shape by layout, see above, every dimension at least 1; strides as they are,
 *              larger ones included; borrowed: the cache points to its data
 * value_cache  in, nullable: key-only; likewise. Head size, dtype and layout may differ from the
 *              key's; num_blocks, block_size and the number of heads may not
 * options      in, nullable: NHD, plain
 * errors       of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *              STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (cache), DTYPE (not one of the
 *              twelve), RANK (not the layout's), SHAPE (an empty dimension; a fragment of another
 *              length than the layout's; num_kv_heads differs; a value whose num_blocks, block_size
 *              or heads are not the key's), STRIDE (elements of a fragment not adjacent, elements
 *              that share bytes), OVERLAP (a byte belongs to both parts; parts that interleave in
 *              steps of different size may be refused too), LAYOUT (format), UNSUPPORTED (a 4-D
 *              PA_NZ whose heads are no multiples of 32 bytes),
 *              INVALID_ARGUMENT (a layout, reserved, a negative num_kv_heads), STRUCT_SIZE
 * threads      any
 * cost         no element is read, no allocation
 * source       layouts: Ascend ScatterPaKvCache (Norm, PA_NZ, NHSD); vLLM's key and value caches
 *              (X_PACKED, TRANSPOSED)
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
