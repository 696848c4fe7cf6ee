/* SPDX-License-Identifier: MIT
 *
 * The independent definition of the compressed modes of scatter_pa_kv_cache, token by token and
 * element by element, and random cases for it. It calls no function of the library.
 */
#ifndef PAGEDKV_TESTS_COMPRESSED_H
#define PAGEDKV_TESTS_COMPRESSED_H

#include "model.h"

enum { COMP_MAX_SEQS = 6, COMP_MAX_HEADS = 80, COMP_MAX_TASKS = COMP_MAX_SEQS * COMP_MAX_HEADS };

struct comp_case {
    int32_t mode; /* enum pkv_scatter_mode */
    int64_t num_seqs;
    int64_t num_heads;
    int64_t padded_len; /* -1: ragged */
    int64_t seq_lens[COMP_MAX_SEQS];
    int64_t lens[COMP_MAX_TASKS];
    int64_t offsets[COMP_MAX_TASKS];
    int64_t slots[COMP_MAX_TASKS];
};

/* Rows of the source: of all sequences, and of padding. */
int64_t comp_num_rows(const struct comp_case *it);

/* No window means that everything stays. */
int comp_is_whole(const struct comp_case *it, int64_t task);

/* Rows that a task writes, whatever its slot. */
int64_t comp_length(const struct comp_case *it, int64_t task);

/* Draws lengths, windows and offsets with their edges often: w = 0, o = -1, o = 0, o + w = seq. */
void comp_draw(struct comp_case *it, int64_t max_seq, struct test_rng *rng);

/* Gives each task a place of its own in random order, in between gaps of up to max_gap slots; every
 * skip-th one or so is skipped (0: none), and its numbers spoiled. Returns the slots that a cache
 * needs. */
int64_t comp_place(struct comp_case *it, int64_t max_gap, int64_t skip, struct test_rng *rng);

/* What the part must hold afterwards. rows are [comp_num_rows, num_heads, head_size] at src. */
void comp_scatter(const struct comp_case *it, const struct model_part *part, void *cache,
                  const struct ref_rows *rows, const void *src);

/* Rows of the sources for a cache of one head, and their tensor in the published shape. */
struct model_rows comp_rows_make(const struct comp_case *it, enum model_rows_kind kind,
                                 const struct model_part *part, enum test_guard_side side,
                                 struct test_rng *rng);

/* Makes the elements of float types numbers of middling size: random bits add up to infinity. */
void comp_calm_rows(struct model_rows *rows, int32_t dtype, struct test_rng *rng);

#endif
