/* SPDX-License-Identifier: MIT
 *
 * The independent definition of scatter, gather, copy and conversion. Written for clarity alone:
 * an element is moved by a memcpy of its size, an address is a sum over the dimensions of a shape.
 */
#include "reference.h"

#include <pagedkv/cache.h>

#include <string.h>

int64_t ref_dtype_bytes(int32_t dtype) {
    switch (dtype) {
    case PKV_DTYPE_I8:
    case PKV_DTYPE_U8:
    case PKV_DTYPE_HIFLOAT8:
    case PKV_DTYPE_F8_E5M2:
    case PKV_DTYPE_F8_E4M3FN:
    case PKV_DTYPE_BOOL:
        return 1;
    case PKV_DTYPE_F16:
    case PKV_DTYPE_BF16:
    case PKV_DTYPE_I16:
    case PKV_DTYPE_U16:
        return 2;
    case PKV_DTYPE_F32:
    case PKV_DTYPE_I32:
    case PKV_DTYPE_U32:
        return 4;
    case PKV_DTYPE_I64:
        return 8;
    default:
        return 0;
    }
}

/* Adjacent elements of a row: 32 bytes of them in PA_NZ, 16 in X_PACKED. */
static int64_t chunk_elements(int32_t layout, int64_t element_bytes) {
    return (layout == PKV_LAYOUT_PA_NZ ? 32 : 16) / element_bytes;
}

int ref_layout_fits(int32_t layout, int64_t element_bytes, int64_t head_size) {
    return (layout != PKV_LAYOUT_PA_NZ && layout != PKV_LAYOUT_X_PACKED) ||
           head_size % chunk_elements(layout, element_bytes) == 0;
}

static void set_shape(struct ref_part *part, int32_t ndim, const int64_t *shape) {
    int64_t stride = 1;

    part->ndim = ndim;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        part->shape[i] = shape[i];
        part->strides[i] = stride;
        stride *= shape[i];
    }
}

struct ref_part ref_part_make(int32_t layout, int64_t element_bytes, int64_t num_blocks,
                              int64_t block_size, int64_t num_heads, int64_t head_size, int nz_5d) {
    struct ref_part part = {.layout = layout,
                            .element_bytes = element_bytes,
                            .num_blocks = num_blocks,
                            .block_size = block_size,
                            .num_heads = num_heads,
                            .head_size = head_size};
    int64_t chunk = chunk_elements(layout, element_bytes);

    if (layout == PKV_LAYOUT_NHD) {
        set_shape(&part, 4, (int64_t[]){num_blocks, block_size, num_heads, head_size});
    } else if (layout == PKV_LAYOUT_HND) {
        set_shape(&part, 4, (int64_t[]){num_blocks, num_heads, block_size, head_size});
    } else if (layout == PKV_LAYOUT_TRANSPOSED) {
        set_shape(&part, 4, (int64_t[]){num_blocks, num_heads, head_size, block_size});
    } else if (layout == PKV_LAYOUT_PA_NZ && !nz_5d) {
        int64_t num_chunks = num_heads * head_size / chunk;

        set_shape(&part, 4, (int64_t[]){num_blocks, num_chunks, block_size, chunk});
    } else {
        set_shape(&part, 5,
                  (int64_t[]){num_blocks, num_heads, head_size / chunk, block_size, chunk});
    }
    return part;
}

int64_t ref_part_index(const struct ref_part *part, int64_t block, int64_t offset, int64_t head,
                       int64_t d) {
    const int64_t *s = part->strides;
    int64_t chunk = chunk_elements(part->layout, part->element_bytes);
    int64_t f = head * part->head_size + d;

    switch (part->layout) {
    case PKV_LAYOUT_NHD:
        return block * s[0] + offset * s[1] + head * s[2] + d * s[3];
    case PKV_LAYOUT_HND:
        return block * s[0] + head * s[1] + offset * s[2] + d * s[3];
    case PKV_LAYOUT_TRANSPOSED:
        return block * s[0] + head * s[1] + d * s[2] + offset * s[3];
    default:
        if (part->ndim == 4) {
            return block * s[0] + f / chunk * s[1] + offset * s[2] + f % chunk * s[3];
        }
        return block * s[0] + head * s[1] + d / chunk * s[2] + offset * s[3] + d % chunk * s[4];
    }
}

int64_t ref_part_span(const struct ref_part *part) {
    int64_t last = 0;

    for (int32_t i = 0; i < part->ndim; i++) {
        if (part->shape[i] == 0) {
            return 0;
        }
        last += (part->shape[i] - 1) * part->strides[i];
    }
    return last + 1;
}

static void *element_at(const void *data, int64_t index, int64_t element_bytes) {
    return (char *)(uintptr_t)data + index * element_bytes;
}

/* One row between two places, each given by the index of an element of that row. */
static void move_row(const struct ref_part *part, void *cache, int64_t block, int64_t offset,
                     const struct ref_rows *rows, void *data, int64_t row, int to_cache) {
    int64_t bytes = part->element_bytes;

    for (int64_t head = 0; head < part->num_heads; head++) {
        for (int64_t d = 0; d < part->head_size; d++) {
            void *inside = element_at(cache, ref_part_index(part, block, offset, head, d), bytes);
            void *outside = element_at(
                data, row * rows->strides[0] + head * rows->strides[1] + d * rows->strides[2],
                bytes);

            memcpy(to_cache ? inside : outside, to_cache ? outside : inside, (size_t)bytes);
        }
    }
}

void ref_scatter(const struct ref_part *part, void *cache, const struct ref_rows *rows,
                 const void *src, const int64_t *slots) {
    for (int64_t t = 0; t < rows->num_tokens; t++) {
        if (slots[t] >= 0) {
            move_row(part, cache, slots[t] / part->block_size, slots[t] % part->block_size, rows,
                     element_at(src, 0, 1), t, 1);
        }
    }
}

void ref_gather(const struct ref_part *part, const void *cache, const struct ref_rows *rows,
                void *dst, int64_t row, const int64_t *table, int64_t first, int64_t count) {
    for (int64_t t = 0; t < count; t++) {
        int64_t position = first + t;

        move_row(part, element_at(cache, 0, 1), table[position / part->block_size],
                 position % part->block_size, rows, dst, row + t, 0);
    }
}

void ref_copy_block(const struct ref_part *part, void *cache, int64_t src, int64_t dst) {
    int64_t bytes = part->element_bytes;

    for (int64_t offset = 0; offset < part->block_size; offset++) {
        for (int64_t head = 0; head < part->num_heads; head++) {
            for (int64_t d = 0; d < part->head_size; d++) {
                memcpy(element_at(cache, ref_part_index(part, dst, offset, head, d), bytes),
                       element_at(cache, ref_part_index(part, src, offset, head, d), bytes),
                       (size_t)bytes);
            }
        }
    }
}

void ref_convert(const struct ref_part *from, const void *src, const struct ref_part *to,
                 void *dst) {
    int64_t bytes = from->element_bytes;

    for (int64_t slot = 0; slot < from->num_blocks * from->block_size; slot++) {
        int64_t block = slot / from->block_size;
        int64_t offset = slot % from->block_size;

        for (int64_t head = 0; head < from->num_heads; head++) {
            for (int64_t d = 0; d < from->head_size; d++) {
                memcpy(element_at(dst, ref_part_index(to, block, offset, head, d), bytes),
                       element_at(src, ref_part_index(from, block, offset, head, d), bytes),
                       (size_t)bytes);
            }
        }
    }
}
