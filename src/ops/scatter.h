/* SPDX-License-Identifier: MIT
 *
 * The work that every form of scatter comes down to: pairs of (source rows, cache part) and one
 * checked slot mapping.
 */
#ifndef PKV_OPS_SCATTER_H
#define PKV_OPS_SCATTER_H

#include <pagedkv/scatter_rows.h>

#include "ops/context.h"
#include "ops/rows.h"
#include "ops/step.h"

/* Addresses from the first byte to behind the last one. */
struct pkv_range {
    int64_t first, end;
};

struct pkv_scatter_side {
    const struct pkv_cache_part *part;
    struct pkv_tensor source; /* [num_tokens, num_heads, head_size], resolved */
    struct pkv_range read;    /* that of the source */
    const char *source_name;
    struct pkv_row_mover mover;
    int32_t next_column;  /* the side whose rows lie right behind these in one packed row, or -1 */
    bool is_later_column; /* another side has this one as its next */
};

/* Key and value are two sides; pkv_scatter_rows has more. */
enum { PKV_SCATTER_MAX_SIDES = PKV_SCATTER_ROWS_MAX_PAIRS };

struct pkv_scatter_job {
    const struct pkv_step *step;
    const struct pkv_kernels *kernels;
    const char *function;
    int32_t run_mode;
    int32_t store_policy;
    int32_t num_sides;
    uint64_t row_bytes;       /* of a token, all sides together */
    struct pkv_range written; /* all that may be, and what lies between */
    struct pkv_scatter_side sides[PKV_SCATTER_MAX_SIDES];
};

/* An empty job for a set step. */
void pkv_scatter_job_init(struct pkv_scatter_job *job, const struct pkv_context *context,
                          const struct pkv_step *step, int32_t run_mode, int32_t store_policy,
                          const char *function);

/* Checks a source against the step and the part, and adds the pair. The part must outlive the
 * job. */
enum pkv_status pkv_scatter_job_add(struct pkv_scatter_job *job, const struct pkv_cache_part *part,
                                    const struct pkv_tensor *source, const char *source_name,
                                    struct pkv_error *error);

/* The same in two steps: the caller puts a resolved source into its place, and changes its shape if
 * need be. */
struct pkv_tensor *pkv_scatter_job_source(struct pkv_scatter_job *job);
enum pkv_status pkv_scatter_job_add_source(struct pkv_scatter_job *job,
                                           const struct pkv_cache_part *part,
                                           const char *source_name, struct pkv_error *error);

/* Chooses the stores, and refuses a job in which a row to be written lies in a source or in the
 * slot mapping. */
enum pkv_status pkv_scatter_job_finish(struct pkv_scatter_job *job, const char *slots_name,
                                       struct pkv_error *error);

/* Joins sides that are neighbouring columns of a packed row, so that each row is written at
 * once. */
void pkv_scatter_join_columns(struct pkv_scatter_job *job);

/* Moves the rows of joined columns, of which `first` is the first: tokens[i] to slots[i]. */
void pkv_scatter_move_columns(const struct pkv_scatter_job *job,
                              const struct pkv_scatter_side *first, const int64_t *slots,
                              const int64_t *tokens, int64_t count);

/* Does the work: all of it on the executor, or one part on this thread. */
enum pkv_status pkv_scatter_job_run(const struct pkv_scatter_job *job,
                                    const struct pkv_executor *executor, struct pkv_error *error);
enum pkv_status pkv_scatter_job_run_part(const struct pkv_scatter_job *job, int64_t part,
                                         int64_t num_parts, struct pkv_error *error);

/* Tokens selected at a time: their slots and spans take 20 KiB of stack and stay in the first-level
 * cache between the pass over keys and the pass over values. */
enum { PKV_SCATTER_CHUNK_TOKENS = 512 };

/* The kind of copy for a step that writes so many bytes of rows. */
enum pkv_copy_kind pkv_scatter_copy_kind(int32_t store_policy, uint64_t bytes);

/* Refuses a value that is no enum pkv_store_policy. */
enum pkv_status pkv_scatter_check_store_policy(int32_t store_policy, const char *function,
                                               struct pkv_error *error);

#endif
