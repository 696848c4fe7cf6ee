/* SPDX-License-Identifier: MIT
 *
 * What the two files of the naive block manager share; not for tests.
 */
#ifndef PAGEDKV_TESTS_POOL_MODEL_INNER_H
#define PAGEDKV_TESTS_POOL_MODEL_INNER_H

#include "pool_model.h"

int32_t model_ceil_div(int32_t a, int32_t b);
bool model_has_index(const struct pool_model *model);
/* The group by which windows are identified: the first without one; -1. */
int32_t model_anchor_of(const struct pool_model *model, int32_t g);
int32_t model_alignment_of(const struct pool_model *model, int32_t g);
/* The first block whose tokens a token at that position may see. */
int32_t model_window_start(const struct pool_model *model, int32_t g, int32_t position);
/* Sequences that hold it and have not computed all of it. */
int32_t model_num_uncomputed(const struct pool_model *model, int32_t block);
void model_remove_from_index(struct pool_model *model, int32_t block, int32_t type);
int32_t model_take(struct pool_model *model);
/* The reference is gone already. */
void model_give_back(struct pool_model *model, int32_t block, int32_t priority, int32_t *after);
void model_store(struct pool_model *model, int32_t block, const struct model_seq *seq,
                 int32_t group, int32_t num_prefix, int32_t num_entry, int64_t parent_id);
/* What a prompt finds in block i of a group: the block with its contents whose parent is what the
 * prompt finds before it. */
int32_t model_find_block(const struct pool_model *model, int32_t domain, int32_t domain_slot,
                         const int32_t *tokens, int32_t g, int32_t i);
/* The length found; *partial is the partial block at its end, or -1. */
int32_t model_walk(const struct pool_model *model, int32_t domain, int32_t domain_slot,
                   const int32_t *tokens, int32_t num_tokens, int32_t *partial);
int32_t model_slot_of_domain(const struct pool_model *model, int32_t value);
int32_t model_take_domain(struct pool_model *model, int32_t value);
int64_t model_root_id(const struct pool_model *model, int32_t domain_slot, int32_t group);

#endif
