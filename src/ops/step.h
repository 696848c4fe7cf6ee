/* SPDX-License-Identifier: MIT
 *
 * A step from inside: checked indices, and how its work is divided among threads.
 */
#ifndef PKV_OPS_STEP_H
#define PKV_OPS_STEP_H

#include <pagedkv/step.h>

#include "geometry/distinct.h"
#include "ops/context.h"

/* With 256 samples the quantiles of a random mapping are most likely off by at most 3 % of the
 * tokens. */
enum { PKV_STEP_MAX_SAMPLES = 256 };

struct pkv_step {
    struct pkv_allocator allocator;
    bool owns_memory;
    int64_t max_tokens;
    int64_t max_seqs;
    struct pkv_distinct distinct; /* its memory follows the step */

    bool is_set;
    int64_t num_blocks; /* of the cache that the indices were checked against */
    int64_t block_size;

    bool has_slots;
    struct pkv_vector slots;
    bool slots_are_unique;                 /* promised, checked or proven */
    int32_t num_samples;                   /* 0 when they are unique, or few */
    int64_t samples[PKV_STEP_MAX_SAMPLES]; /* ascending slots, evenly chosen among the tokens */

    bool has_gather;
    bool seq_lens_cumulative;
    int64_t num_seqs;
    struct pkv_vector table_row; /* row 0 of the block table */
    int64_t table_row_stride;    /* in elements */
    struct pkv_vector seq_lens;
    struct pkv_vector seq_offsets; /* data NULL: all 0 */
    int64_t num_gather_tokens;

    bool has_queries;
    struct pkv_vector query_start_loc;
    int64_t num_queries;
    int64_t num_shared_tokens;
};

/* Which tokens belong to a part of the work: those of [first_token, end_token) with low <= slot <
 * high. When a slot may be named twice, the parts divide the destination at quantiles of the slots
 * and each walks all tokens in order, so that the last token wins whoever runs what; otherwise they
 * divide the tokens, and read their sources in the order of memory. */
struct pkv_slot_part {
    int64_t first_token, end_token;
    int64_t low, high;
};

/* pkv_step_slot_part for more than one part. */
struct pkv_slot_part pkv_step_divide_slots(const struct pkv_step *step, int64_t part,
                                           int64_t num_parts);

static inline struct pkv_slot_part pkv_step_slot_part(const struct pkv_step *step, int64_t part,
                                                      int64_t num_parts) {
    if (num_parts > 1)
        return pkv_step_divide_slots(step, part, num_parts);
    return (struct pkv_slot_part){0, step->slots.count, 0, INT64_MAX};
}

/* The kernel index for the step's slots. */
static inline enum pkv_slot_type pkv_step_slot_type(const struct pkv_step *step) {
    return step->slots.dtype == PKV_DTYPE_I64   ? PKV_SLOT_I64
           : step->slots.dtype == PKV_DTYPE_I32 ? PKV_SLOT_I32
                                                : PKV_SLOT_I16;
}

/* Refuses a value that is no enum pkv_duplicates. */
enum pkv_status pkv_step_check_duplicates(int32_t duplicates, const char *argument,
                                          const char *function, struct pkv_error *error);

/* A step for one call, without limits and without memory behind it: it is set before anything else
 * is read. */
static inline void pkv_step_init_bare(struct pkv_step *step) {
    step->max_tokens = 0;
    step->max_seqs = 0;
    step->distinct.max_numbers = 0;
}

/* What pkv_step_set does with slots, also of int16: the caller has filled in num_blocks, block_size
 * and slots. The error's function and argument are `where`'s. */
enum pkv_status pkv_step_check_slots(struct pkv_step *step, const struct pkv_kernels *kernels,
                                     int32_t duplicates, const struct pkv_where *where);

/* pkv_step_set with facts reported under another function's name. */
enum pkv_status pkv_step_set_indices(struct pkv_step *step, const struct pkv_kernels *kernels,
                                     int64_t num_blocks, int64_t block_size,
                                     const struct pkv_step_indices *indices, const char *function,
                                     struct pkv_error *error);

/* Length and first token of sequence b. */
int64_t pkv_step_seq_len(const struct pkv_step *step, int64_t b);
int64_t pkv_step_seq_offset(const struct pkv_step *step, int64_t b);

/* Behind the last token that is read: its position is one less. */
int64_t pkv_step_seq_end(const struct pkv_step *step, int64_t b);

/* The number of the first query of sequence b. */
int64_t pkv_step_query_start(const struct pkv_step *step, int64_t b);

/* The block table row of sequence b. */
struct pkv_vector pkv_step_table_row(const struct pkv_step *step, int64_t b);

#endif
