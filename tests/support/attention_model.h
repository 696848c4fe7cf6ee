/* SPDX-License-Identifier: MIT
 *
 * Attention to be asked for: sequences drawn at random as plain arrays, and one way after the other
 * to put them into a paged cache and index tensors. All memory is guarded; whatever no query sees
 * is poisoned with NaN. It calls no function of the library.
 */
#ifndef PAGEDKV_TESTS_ATTENTION_MODEL_H
#define PAGEDKV_TESTS_ATTENTION_MODEL_H

#include "attention_reference.h"
#include "model.h"

enum { ATTN_MAX_SEQS = 40, ATTN_MAX_HEADS = 160, ATTN_MAX_PIECES = 64 };

enum attn_mask { ATTN_MASK_NONE, ATTN_MASK_BOOL, ATTN_MASK_FLOAT, ATTN_NUM_MASKS };

/* What is asked. Zeroed: causal, no variants. */
struct attn_sizes {
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_size;
    int64_t value_head_size;
    int is_mla; /* no value cache: values are the first elements of the keys */
    int32_t key_dtype;
    int32_t value_dtype;
    int32_t query_dtype;
    int32_t out_dtype;
    int64_t amplitude; /* of keys and queries, a power of two; 0: 1 */
    float scale;
    float softcap;
    int is_non_causal;
    int64_t max_left;
    int64_t max_right;
    int is_base_2;
    int has_slopes;
    int has_sinks;
    enum attn_mask mask;
    int64_t mask_width;
    int64_t num_shared; /* the sequences begin with the same tokens, up to so many */
    int64_t num_seqs;
    int64_t num_queries[ATTN_MAX_SEQS];
    int64_t num_tokens[ATTN_MAX_SEQS];
};

/* The same as plain arrays. Positions that no query sees hold NaN. */
struct attn_problem {
    struct attn_sizes sizes;
    struct attn_ref_options ref;
    struct attn_ref_seq seqs[ATTN_MAX_SEQS];
    int64_t first_rows[ATTN_MAX_SEQS + 1]; /* queries of all sequences before */
    float slopes[ATTN_MAX_HEADS];
    float sinks[ATTN_MAX_HEADS];
    float *arrays[ATTN_MAX_SEQS][4]; /* query, key, value, mask: what seqs points to */
};

struct attn_problem *attn_problem_make(const struct attn_sizes *sizes, struct test_rng *rng);
void attn_problem_free(struct attn_problem *problem);

/* Queries [first, end) of a sequence, as a sequence that ends with the last of them. */
struct attn_piece {
    int64_t seq;
    int64_t first;
    int64_t end;
};

/* How it is put. */
struct attn_placement {
    int32_t key_layout;
    int32_t value_layout;
    int64_t block_size;
    int nz_5d;
    int padded;
    int interleaved;
    int has_no_lse;
    int drops_unseen;   /* seq_offsets: up to the first token that a query's window reaches, tokens
                         may be gone */
    int64_t num_shared; /* num_shared_tokens; see attn_can_share */
    int64_t num_pieces;
    struct attn_piece pieces[ATTN_MAX_PIECES];
};

/* The pieces of an ordinary call: every sequence, whole. */
void attn_place_all(struct attn_placement *placement, const struct attn_problem *problem);

/* 1 if that many tokens lie in blocks that all sequences can share. */
int attn_can_share(const struct attn_problem *problem, int64_t num_shared, int64_t block_size);

/* The memories of one call and what the library is told about them. */
struct attn_call {
    struct attn_placement placement;
    struct model_cache cache;
    struct model_rows query;
    struct model_rows out;
    struct test_guard lse_memory;
    struct test_guard mask_memory;
    struct test_guard head_memory[2]; /* slopes, sinks */
    struct model_index block_table;
    struct model_index seq_lens;
    struct model_index seq_offsets; /* absent unless drops_unseen */
    struct model_index query_start_loc;
    int32_t seq_lens_cumulative;
    int64_t num_rows;
    struct pkv_tensor lse;
    struct pkv_tensor mask;
    struct pkv_tensor slopes;
    struct pkv_tensor sinks;
};

/* Everything that a call reads may only be read. */
struct attn_call *attn_call_make(const struct attn_problem *problem,
                                 const struct attn_placement *placement, struct test_rng *rng);
void attn_call_free(struct attn_call *call);

/* Fills the outputs with NaN. */
void attn_call_reset(struct attn_call *call);

/* Results of any call on a problem, in one order: codes of out, bits of lse. */
struct attn_answer {
    int64_t num_out;
    int64_t num_lse;
    uint32_t *out; /* [queries, num_heads, value_head_size] */
    uint32_t *lse; /* [queries, num_heads] */
};

struct attn_answer attn_answer_make(const struct attn_problem *problem);
void attn_answer_free(struct attn_answer *answer);

/* Takes the rows of a call that has run into the answer. 0 if bytes between the rows were
 * written. */
int attn_call_collect(struct attn_call *call, const struct attn_problem *problem,
                      struct attn_answer *answer);

/* 1 if both hold the same bytes. */
int attn_answers_are_equal(const struct attn_answer *one, const struct attn_answer *other);

/* The definition's results, for every query, or the first, the last and each every-th of each
 * sequence. */
struct attn_expected {
    int64_t num_rows; /* that it holds */
    int64_t *rows;    /* number among all queries */
    double *out;      /* [num_rows, num_heads, value_head_size] */
    double *out_bounds;
    double *lse; /* [num_rows, num_heads] */
    double *lse_bounds;
};

struct attn_expected attn_expected_make(const struct attn_problem *problem, int64_t every);
void attn_expected_free(struct attn_expected *expected);

/* What of the bounds the answer uses up, at the worst place: above 1 it is wrong, and the place has
 * been printed. A NaN where none belongs, or none where one belongs, is infinitely wrong. */
double attn_expected_compare(const struct attn_expected *expected,
                             const struct attn_problem *problem, const struct attn_answer *answer);

#endif
