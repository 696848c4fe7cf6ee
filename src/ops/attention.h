/* SPDX-License-Identifier: MIT
 *
 * Paged attention from inside. A row is a query and one of its heads: row = token * group + head in
 * its group, where the group is the query heads of one key head. Contexts are cut into tiles of
 * PKV_ATTENTION_TILE tokens, at multiples of it; the partial results of tiles are merged in a fixed
 * binary tree (attention_state.h), so that neither the number of rows nor the cutting of the work
 * has an effect on a row's bytes.
 */
#ifndef PKV_OPS_ATTENTION_H
#define PKV_OPS_ATTENTION_H

#include <pagedkv/attention.h>

#include "ops/attention_state.h"
#include "ops/step.h"

struct pkv_paged_attention_plan {
    struct pkv_allocator allocator;
    struct pkv_cache cache; /* the pattern; its data pointers are not used */
    int32_t run_mode;
    int32_t query_dtype;
    int32_t products;
    int32_t lse_base;
    int64_t num_heads;
    int64_t group; /* query heads of a key head */
    int64_t head_size;
    int64_t value_head_size;
    float scale;
    float softcap;
    /* What the query at position p sees: p - left <= j <= p + right. INT64_MAX / 2: all. */
    int64_t left, right;
};

/* One run, checked. Tensors are resolved; absent ones have data NULL. */
struct pkv_attention_job {
    const struct pkv_paged_attention_plan *plan;
    const struct pkv_kernels *kernels;
    const struct pkv_step *step;
    const struct pkv_cache *cache;
    struct pkv_cache_part value; /* the value part, or the front of the keys */
    const char *function;
    struct pkv_tensor query, out, lse, alibi_slopes, sinks, mask;
    pkv_attention_pair_fn *pair; /* nullable: what scores want of a query */
    pkv_attention_scores_fn *scores;
    pkv_attention_values_fn *values, *values_dot; /* values_dot: nullable, for many rows */
    enum pkv_attention_type query_type, out_type;
    int64_t shared_tiles; /* tiles that all sequences share */
};

enum pkv_status pkv_attention_prepare(struct pkv_attention_job *job,
                                      const struct pkv_context *context,
                                      const struct pkv_paged_attention_plan *plan,
                                      const struct pkv_step *step, const struct pkv_cache *cache,
                                      const struct pkv_paged_attention_tensors *tensors,
                                      const char *function, struct pkv_error *error);

/* dtype is one of the three. */
static inline enum pkv_attention_type pkv_attention_type_of(int32_t dtype) {
    return dtype == PKV_DTYPE_F32   ? PKV_ATTENTION_F32
           : dtype == PKV_DTYPE_F16 ? PKV_ATTENTION_F16
                                    : PKV_ATTENTION_BF16;
}

/* What a run and its explanation have in common: a job without tensors, for a step that fits the
 * plan. */
enum pkv_status pkv_attention_job_init(struct pkv_attention_job *job,
                                       const struct pkv_context *context,
                                       const struct pkv_paged_attention_plan *plan,
                                       const struct pkv_step *step, const struct pkv_cache *cache,
                                       const char *function, struct pkv_error *error);

/* With fewer rows float32 products of values are quicker than dot products, which turn the values
 * around, all tokens of a head before the next: 8 rows of head size 128 take 1.2 to 1.35 times as
 * long by dots, from memory. */
enum { PKV_ATTENTION_LEAST_DOT_ROWS = 9 };

/* Values of so many rows are multiplied by dot products. */
static inline bool pkv_attention_takes_dots(const struct pkv_attention_job *job, int64_t num_rows) {
    return job->values_dot && num_rows >= PKV_ATTENTION_LEAST_DOT_ROWS;
}

/* The heads of a token are nearer to each other than the tokens of a head. */
static inline bool pkv_attention_heads_together(const struct pkv_cache_part *part) {
    return part->head_stride_bytes < part->token_stride_bytes;
}

/* Where a row stands, and what it sees: positions begin ... end - 1. */
struct pkv_attention_place {
    int64_t seq;
    int64_t token; /* of all queries of the step */
    int64_t head;  /* in its group */
    int64_t position;
    int64_t begin, end;
};

struct pkv_attention_place pkv_attention_place(const struct pkv_attention_job *job, int64_t seq,
                                               int64_t row);

/* ---- The work, divided (attention_work.c) ---- */

/* Rows [row, row_end) of the step, of key heads [head, head_end). The rows belong to sequences seq,
 * seq + 1, ...; to more than one only where tiles are shared. */
struct pkv_attention_unit {
    int64_t seq;
    int64_t row, row_end;
    int64_t head, head_end;
};

/* How many key heads a unit may have, and all units in order. */
struct pkv_attention_work {
    const struct pkv_attention_job *job;
    int64_t max_heads;
    int64_t num_units;
    int64_t cost; /* of all units */
};

/* At least wanted_units units, if rows and heads allow it. */
struct pkv_attention_work pkv_attention_work(const struct pkv_attention_job *job,
                                             int64_t wanted_units);

/* How a run is divided among threads: parts of whole units, or the units' contexts in pieces, each
 * a part. */
struct pkv_attention_division {
    struct pkv_attention_work work;
    int64_t num_pieces; /* of each unit; 1: none is cut */
    int64_t num_parts;
};

struct pkv_attention_division pkv_attention_divide(const struct pkv_attention_job *job,
                                                   int32_t num_threads);

/* A walk over the units of part `part` of `num_parts`. */
struct pkv_attention_units {
    const struct pkv_attention_work *work;
    int64_t part, num_parts;
    int64_t cost; /* of the units before the next one */
    struct pkv_attention_unit next;
};

struct pkv_attention_units pkv_attention_units(const struct pkv_attention_work *work, int64_t part,
                                               int64_t num_parts);
bool pkv_attention_units_next(struct pkv_attention_units *units, struct pkv_attention_unit *unit);

/* A unit is attended to span by span: some of its rows, tiles [tile, tile_end) of one sequence's
 * blocks. */
struct pkv_attention_span {
    int64_t seq; /* whose row of the block table */
    int64_t row, row_end;
    int64_t tile, tile_end;
    bool is_shared; /* the tiles that all rows of the unit share; comes first */
};

/* The span after *span in the unit; first with row_end 0. Returns false after the last. */
bool pkv_attention_next_span(const struct pkv_attention_job *job,
                             const struct pkv_attention_unit *unit,
                             struct pkv_attention_span *span);

/* ---- The work, done ---- */

/* Bytes of scratch that a part needs: a multiple of 64. */
size_t pkv_attention_workspace_bytes(const struct pkv_paged_attention_plan *plan);

/* Parts that a context works on at once, at the most; and the scratch for them. */
enum { PKV_ATTENTION_MAX_WORKSPACES = 2048 };
int64_t pkv_attention_num_workspaces(int32_t num_threads);
enum pkv_status pkv_attention_reserve(struct pkv_context *context,
                                      const struct pkv_paged_attention_plan *plan,
                                      const char *function, struct pkv_error *error);

/* One part's scratch, carved out of 64-byte aligned memory. */
struct pkv_attention_workspace {
    struct pkv_attention_state state;
    float *query;      /* [MAX_ROWS][query_stride] */
    float *scores;     /* [MAX_ROWS][TILE] */
    float *scratch;    /* PKV_ATTENTION_SCRATCH */
    float *keep, *add; /* [MAX_ROWS] */
    float *bias;       /* [MAX_ROWS][TILE], a query each */
    struct pkv_attention_row *rows;
    struct pkv_attention_place *places; /* [MAX_ROWS] */
    int64_t *offsets; /* [2][2][TILE]: of keys and values, this tile's and the next one's */
    char *staged_keys, *staged_values; /* [TILE][head] of fragmented layouts */
    int64_t *staged_offsets;           /* [2][TILE] */
    int64_t query_stride;
};

struct pkv_attention_workspace pkv_attention_workspace(const struct pkv_paged_attention_plan *plan,
                                                       void *memory);

/* All units of a part, start to end. */
void pkv_attention_run_units(const struct pkv_attention_job *job,
                             const struct pkv_attention_workspace *workspace,
                             struct pkv_attention_units units);

/* Piece `piece` of `num_pieces` of one unit of a single span; its state stays in the workspace. */
void pkv_attention_run_piece(const struct pkv_attention_job *job,
                             const struct pkv_attention_workspace *workspace,
                             const struct pkv_attention_unit *unit, int64_t piece,
                             int64_t num_pieces);

/* Queries to floats, and the places of a unit's rows. */
void pkv_attention_load_rows(const struct pkv_attention_job *job,
                             const struct pkv_attention_workspace *workspace,
                             const struct pkv_attention_unit *unit);

/* What the rows [first, first + num_rows) of the unit see of a tile; the bias of their mask. */
void pkv_attention_see_tile(const struct pkv_attention_job *job,
                            const struct pkv_attention_workspace *workspace, int64_t first,
                            int64_t num_rows, int64_t tile, int64_t num_tokens);

/* The merged results of rows [first, first + num_rows) of the unit, to out and lse. */
void pkv_attention_store_rows(const struct pkv_attention_job *job,
                              const struct pkv_attention_workspace *workspace,
                              const struct pkv_attention_unit *unit, int64_t first,
                              int64_t num_rows);

/* The definition, row by row in double, every access checked. */
enum pkv_status pkv_attention_sim(const struct pkv_attention_job *job, struct pkv_error *error);

#endif
