/* SPDX-License-Identifier: MIT
 *
 * Two row shapes cut to their common piece, and neighbouring levels joined wherever both sides step
 * on evenly.
 */
#include "geometry/copy_nest.h"

struct pkv_row_shape pkv_row_shape_dense(const struct pkv_row_shape *shape) {
    return (struct pkv_row_shape){
        .num_heads = shape->num_heads,
        .head_stride = shape->head_bytes,
        .head_bytes = shape->head_bytes,
        .fragment_stride = shape->head_bytes,
        .fragment_bytes = shape->head_bytes,
    };
}

/* Adds a level outside of the ones there. Levels of one step vanish; a level that only continues
 * the one inside it, on both sides, lengthens that one, or the piece. */
static void add_level(struct pkv_copy_nest *nest, int64_t count, int64_t dst_stride,
                      int64_t src_stride) {
    if (count == 1)
        return;
    if (nest->num_levels == 0 && dst_stride == nest->piece_bytes &&
        src_stride == nest->piece_bytes) {
        nest->piece_bytes *= count;
        return;
    }
    struct pkv_copy_level *outermost = &nest->level[PKV_COPY_LEVELS - nest->num_levels];
    if (nest->num_levels > 0 && dst_stride == outermost->count * outermost->dst_stride &&
        src_stride == outermost->count * outermost->src_stride) {
        outermost->count *= count;
        return;
    }
    nest->num_levels++;
    outermost[-1] = (struct pkv_copy_level){count, dst_stride, src_stride};
}

void pkv_copy_nest_divide(struct pkv_copy_nest *nest, const struct pkv_row_shape *dst,
                          const struct pkv_row_shape *src) {
    nest->num_levels = 0;
    const bool dst_is_finer = dst->fragment_bytes < src->fragment_bytes;
    const int64_t small = dst_is_finer ? dst->fragment_bytes : src->fragment_bytes;
    const int64_t large = dst_is_finer ? src->fragment_bytes : dst->fragment_bytes;
    const int64_t ratio = large / small;
    nest->piece_bytes = small;
    for (int32_t i = 0; i < PKV_COPY_LEVELS; i++)
        nest->level[i] = (struct pkv_copy_level){.count = 1};
    /* Inside a large fragment the side that owns it steps by the piece itself. */
    add_level(nest, ratio, dst_is_finer ? dst->fragment_stride : small,
              dst_is_finer ? small : src->fragment_stride);
    add_level(nest, dst->head_bytes / large,
              dst_is_finer ? ratio * dst->fragment_stride : dst->fragment_stride,
              dst_is_finer ? src->fragment_stride : ratio * src->fragment_stride);
    add_level(nest, dst->num_heads, dst->head_stride, src->head_stride);
}
