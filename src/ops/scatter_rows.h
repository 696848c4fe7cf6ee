/* SPDX-License-Identifier: MIT
 *
 * A plan for many targets from inside: made in scatter_rows_plan.c, run in scatter_rows.c.
 */
#ifndef PKV_OPS_SCATTER_ROWS_H
#define PKV_OPS_SCATTER_ROWS_H

#include <pagedkv/scatter_rows.h>

#include "geometry/cache.h"

struct pkv_scatter_rows_plan {
    struct pkv_allocator allocator;
    int32_t run_mode;
    int32_t store_policy;
    int64_t num_pairs;
    /* Else the slots may be divided into blocks in any way: one of all is assumed. */
    bool has_blocks;
    int64_t num_blocks, block_size;
    struct pkv_tensor caches[PKV_SCATTER_ROWS_MAX_PAIRS];    /* as they were given */
    struct pkv_cache_part parts[PKV_SCATTER_ROWS_MAX_PAIRS]; /* the pattern, and where they lay */
};

/* Names of sources and caches in refusals. */
extern const char *const pkv_scatter_rows_source_names[PKV_SCATTER_ROWS_MAX_PAIRS];
extern const char *const pkv_scatter_rows_cache_names[PKV_SCATTER_ROWS_MAX_PAIRS];

/* Fills everything but the allocator and the run mode. store_policy is checked here. */
enum pkv_status pkv_scatter_rows_plan_init(struct pkv_scatter_rows_plan *plan,
                                           const struct pkv_tensor *caches, int64_t num_pairs,
                                           int32_t store_policy, const char *function,
                                           struct pkv_error *error);

/* The parts of a run's caches, which must be like the plan's. */
enum pkv_status pkv_scatter_rows_take_caches(const struct pkv_scatter_rows_plan *plan,
                                             const struct pkv_tensor *caches,
                                             struct pkv_cache_part *parts, const char *function,
                                             struct pkv_error *error);

#endif
