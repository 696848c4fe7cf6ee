/* SPDX-License-Identifier: MIT
 *
 * Moving rows: what scatter, gather, block copies and layout conversion have in common. It turns
 * spans of rows into calls of the copy kernels, whatever the fragments on either side.
 */
#ifndef PKV_OPS_ROWS_H
#define PKV_OPS_ROWS_H

#include "geometry/copy_nest.h"
#include "kernels/kernels.h"

/* One direction between two places, ready to move any number of spans. */
struct pkv_row_mover {
    const struct pkv_kernels *kernels;
    char *dst;
    const char *src;
    int64_t dst_row_stride; /* bytes between the rows of a span */
    int64_t src_row_stride;
    struct pkv_copy_nest nest;
    enum pkv_copy_kind kind;
};

void pkv_rows_move(const struct pkv_row_mover *mover, const struct pkv_span *spans,
                   int64_t num_spans);

/* The name of the kernels that pkv_rows_move would call, for explanations. Static. */
const char *pkv_rows_kernel_name(const struct pkv_copy_nest *nest, int32_t copy_level);

/* Below this many written bytes a part is not worth waking a thread: a wake costs about as much as
 * copying them. */
#define PKV_PART_BYTES UINT64_C(524288)

/* Into how many parts to divide work that writes `bytes` bytes. */
static inline int64_t pkv_rows_num_parts(uint64_t bytes, int32_t num_threads) {
    const uint64_t worth = bytes / PKV_PART_BYTES;
    return worth < 1 ? 1 : worth < (uint64_t)num_threads ? (int64_t)worth : num_threads;
}

/* The share of part `part` of `total` items: [*first, *end). */
void pkv_rows_share(int64_t total, int64_t part, int64_t num_parts, int64_t *first, int64_t *end);

#endif
