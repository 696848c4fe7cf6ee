/* SPDX-License-Identifier: MIT
 *
 * Sides that are neighbouring columns of one packed row: found when the job is made, written row by
 * row.
 */
#include "ops/scatter.h"

static bool continues(const struct pkv_scatter_side *side, const struct pkv_scatter_side *next) {
    const struct pkv_cache_part *part = side->part, *behind = next->part;
    return (const char *)part->data + part->row_bytes == (const char *)behind->data &&
           part->token_stride_bytes == behind->token_stride_bytes &&
           part->block_stride_bytes == behind->block_stride_bytes &&
           side->mover.nest.num_levels == 0 && next->mover.nest.num_levels == 0;
}

void pkv_scatter_join_columns(struct pkv_scatter_job *job) {
    for (int32_t i = 0; i < job->num_sides; i++) {
        for (int32_t j = 0; j < job->num_sides; j++) {
            if (continues(&job->sides[i], &job->sides[j])) {
                job->sides[i].next_column = j;
                job->sides[j].is_later_column = true;
            }
        }
    }
}

/* Rows that are handed to the kernel at once: 2 KiB of stack. */
enum { MAX_PLACES = 128 };

void pkv_scatter_move_columns(const struct pkv_scatter_job *job,
                              const struct pkv_scatter_side *first, const int64_t *slots,
                              const int64_t *tokens, int64_t count) {
    struct pkv_column columns[PKV_SCATTER_MAX_SIDES];
    struct pkv_packed_place places[MAX_PLACES];
    int64_t num_columns = 0, num_places = 0;
    const struct pkv_scatter_side *side = first;
    for (;;) {
        columns[num_columns++] =
            (struct pkv_column){side->mover.src, side->mover.src_row_stride, side->part->row_bytes};
        if (side->next_column < 0)
            break;
        side = &job->sides[side->next_column];
    }
    pkv_copy_columns_fn *copy = job->kernels->copy_columns[first->mover.kind];
    for (int64_t i = 0; i < count; i++) {
        places[num_places++] = (struct pkv_packed_place){
            pkv_cache_part_offset(first->part, job->step->block_size, slots[i]), tokens[i]};
        if (num_places == MAX_PLACES || i == count - 1) {
            copy(first->part->data, columns, num_columns, places, num_places);
            num_places = 0;
        }
    }
}
