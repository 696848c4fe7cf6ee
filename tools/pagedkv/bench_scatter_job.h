/* SPDX-License-Identifier: MIT
 *
 * One scatter, done four ways on the same memory: by the library with a step that is already set,
 * by the library with the step's check in the timed call, by a plain loop of memcpy, and as the
 * ceiling's contiguous copy of the same bytes.
 */
#ifndef PAGEDKV_BENCH_SCATTER_JOB_H
#define PAGEDKV_BENCH_SCATTER_JOB_H

#include <stdint.h>

#include "bench_rounds.h"
#include "bench_stage.h"

enum { BENCH_MAX_CALLS = 128 };

enum bench_destination {
    BENCH_DESTINATION_FRESH, /* rows that nobody has touched for a long time; neither the lines nor
                                their address translations are cached */
    BENCH_DESTINATION_COLD,  /* fresh rows, flushed line by line: the translations are cached */
    BENCH_DESTINATION_WARM   /* the same rows in each sample, just read */
};

struct bench_scatter_shape {
    int64_t num_tokens; /* of one call */
    int32_t num_calls;  /* of a sample, each with rows of its own; the time is divided by it */
    int64_t run_tokens; /* consecutive slots: 1, or those that begin a block, up to a whole one */
    enum bench_destination destination;
    int cold_source; /* flushed; else just read by the calling thread */
    int32_t layout;  /* enum pkv_layout */
    int64_t num_heads;
    int by_slots; /* the steps have no memory to prove that slots differ: threads divide the slots */
};

/* Where the rows lie, worked out from the layouts' definition and not from the library's strides.
 * A row is num_pieces runs of piece_bytes. */
struct bench_rows {
    int64_t block_stride_bytes;
    int64_t token_stride_bytes;
    int64_t piece_stride_bytes;
    int64_t piece_bytes;
    int64_t num_pieces;
    int64_t block_size;
};

struct bench_rows bench_rows_of(int32_t layout, int64_t num_heads, int64_t block_size);

/* Byte offset of a slot's first piece. */
int64_t bench_rows_offset(const struct bench_rows *rows, int64_t slot);

struct bench_scatter_job {
    struct bench_scatter_shape shape;
    struct bench_stage *stage;
    const struct bench_team *team;
    struct bench_rows rows;
    struct pkv_context *context;
    struct pkv_cache cache;
    struct pkv_tensor key;
    struct pkv_tensor value;
    struct pkv_step_indices indices;
    struct pkv_scatter_plan *plan;
    struct pkv_step *steps[BENCH_MAX_CALLS];
    struct pkv_error error; /* of the call that failed */
    int64_t *run_slots;     /* slots of whole blocks are written out here */
    const int64_t *slots;   /* of this sample: num_calls * num_tokens */
    int64_t region;         /* of this sample's contiguous copy */
};

/* context is one of the team's. Returns 0, or -1 with the facts in job->error. */
int bench_scatter_job_create(struct bench_scatter_job *job, struct bench_stage *stage,
                             const struct bench_team *team, struct pkv_context *context,
                             const struct bench_scatter_shape *shape);
void bench_scatter_job_destroy(struct bench_scatter_job *job);

struct bench_variant bench_scatter_run(struct bench_scatter_job *job);
struct bench_variant bench_scatter_check_and_run(struct bench_scatter_job *job);
struct bench_variant bench_scatter_check(struct bench_scatter_job *job);
struct bench_variant bench_scatter_plain_loop(struct bench_scatter_job *job);
struct bench_variant bench_scatter_ceiling(struct bench_scatter_job *job);

/* Runs once more and compares every row with its source: a fast wrong copy is no result. Returns 0,
 * or -1; then job->error is set, with status OK if a row was wrong. */
int bench_scatter_job_check(struct bench_scatter_job *job);

#endif
