/* SPDX-License-Identifier: MIT
 *
 * The definition that the tests hold the library against: one element after the other, each found
 * by (block, offset, head, d) in the shape of its layout. It shares no code with the library.
 */
#ifndef PAGEDKV_TESTS_REFERENCE_H
#define PAGEDKV_TESTS_REFERENCE_H

#include <stdint.h>

#define REF_NUM_LAYOUTS 5

/* The key or the value half of a cache: sizes, and one stride in elements for each dimension of
 * the layout's published shape. */
struct ref_part {
    int32_t layout; /* enum pkv_layout */
    int32_t ndim;
    int64_t element_bytes;
    int64_t num_blocks;
    int64_t block_size;
    int64_t num_heads;
    int64_t head_size;
    int64_t shape[5];
    int64_t strides[5];
};

/* A packed part. nz_5d: PA_NZ in its 5-D shape, which is the same memory. */
struct ref_part ref_part_make(int32_t layout, int64_t element_bytes, int64_t num_blocks,
                              int64_t block_size, int64_t num_heads, int64_t head_size, int nz_5d);

/* Bytes of one element of that dtype, by the table of the field and not by the library's. */
int64_t ref_dtype_bytes(int32_t dtype);

/* 1 if the layout can hold heads of that size. */
int ref_layout_fits(int32_t layout, int64_t element_bytes, int64_t head_size);

/* The element of a token's row, counted from the part's first. */
int64_t ref_part_index(const struct ref_part *part, int64_t block, int64_t offset, int64_t head,
                       int64_t d);

/* One more than the largest index: what the part needs. 0 if it has no element. */
int64_t ref_part_span(const struct ref_part *part);

/* Rows outside the cache: [num_tokens, num_heads, head_size] with any strides, in elements. */
struct ref_rows {
    int64_t num_tokens;
    int64_t strides[3];
};

/* Writes row t of src to slot slots[t], t ascending; a negative slot skips. */
void ref_scatter(const struct ref_part *part, void *cache, const struct ref_rows *rows,
                 const void *src, const int64_t *slots);

/* Reads tokens [first, first + count) of the sequence whose blocks table names into rows row,
 * row + 1, ... of dst. */
void ref_gather(const struct ref_part *part, const void *cache, const struct ref_rows *rows,
                void *dst, int64_t row, const int64_t *table, int64_t first, int64_t count);

void ref_copy_block(const struct ref_part *part, void *cache, int64_t src, int64_t dst);

/* Every row of one cache into another of the same sizes. */
void ref_convert(const struct ref_part *from, const void *src, const struct ref_part *to,
                 void *dst);

#endif
