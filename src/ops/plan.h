/* SPDX-License-Identifier: MIT
 *
 * What the plans of scatter and gather have in common: the checks of a run, and explanations.
 */
#ifndef PKV_OPS_PLAN_H
#define PKV_OPS_PLAN_H

#include <pagedkv/explain.h>

#include "ops/step.h"

/* The cache follows the plan's pattern, and the step was set for it with what the run needs. */
enum pkv_status pkv_check_cache_and_step(const struct pkv_cache *pattern,
                                         const struct pkv_cache *cache, const struct pkv_step *step,
                                         bool step_has_indices, const char *function,
                                         struct pkv_error *error);

/* The refusal of a step that was set for another number of blocks, or for blocks of another
 * size. */
enum pkv_status pkv_refuse_geometry(const struct pkv_step *step, int64_t num_blocks,
                                    int64_t block_size, const char *function,
                                    struct pkv_error *error);

/* 0 <= part < num_parts. */
enum pkv_status pkv_check_part(int64_t part, int64_t num_parts, const char *function,
                               struct pkv_error *error);

/* Refuses a key-only PA_NZ cache: Ascend's kernels take it for another layout, and no other meaning
 * of it is published. argument: what lacks the values. */
enum pkv_status pkv_check_key_only(int32_t key_layout, bool key_only, const char *argument,
                                   const char *function, struct pkv_error *error);

/* All numbers of an explanation; kernels and policy are left to the caller. native_tile: the tokens
 * that the caller's native loop takes at a time; sim follows the published rule. */
enum pkv_status pkv_explain_rows(struct pkv_explanation *explanation, const struct pkv_cache *cache,
                                 int32_t run_mode, int64_t native_tile, int64_t num_tokens,
                                 int32_t num_threads, const char *function,
                                 struct pkv_error *error);

/* The kernel that moves rows between a part and dense rows of its head size; "none" for an absent
 * part. */
const char *pkv_explain_kernel(const struct pkv_cache_part *part, int32_t run_mode,
                               int32_t copy_level);

#endif
