/* SPDX-License-Identifier: MIT
 *
 * Attention as its equations say, in double, one row (a query and one of its heads) at a time, with
 * the error that float32 may make. For verify and bench. It uses nothing of the library but names
 * of dtypes and layouts.
 */
#ifndef PAGEDKV_VERIFY_ATTENTION_REFERENCE_H
#define PAGEDKV_VERIFY_ATTENTION_REFERENCE_H

#include <stdint.h>

enum { VERIFY_ATTENTION_MAX_HEAD_SIZE = 576 };

/* Keys or values of a cache, packed, F32, F16 or BF16. */
struct verify_attention_part {
    void *data;
    int32_t dtype;
    int32_t layout;
    int64_t num_blocks;
    int64_t block_size;
    int64_t num_heads;
    int64_t head_size;
};

/* The number of an element of the part. */
int64_t verify_attention_at(const struct verify_attention_part *part, int64_t block, int64_t offset,
                            int64_t head, int64_t d);

/* Element i of an array of F32, F16 or BF16. */
double verify_attention_number(int32_t dtype, const void *data, int64_t i);

/* One head of the positions 0 ... num_tokens - 1 of a sequence, whose blocks are block_table[]:
 * rows[num_tokens] of head_size numbers. */
void verify_attention_gather(const struct verify_attention_part *part, const int32_t *block_table,
                             int64_t num_tokens, int64_t head, double *rows);

/* A query and one of its heads. */
struct verify_attention_row {
    const double *query;  /* [head_size] */
    const double *keys;   /* [seq_len], of head_size each */
    const double *values; /* [seq_len], value_stride apart */
    int64_t head_size;
    int64_t value_head_size;
    int64_t value_stride;
    int64_t seq_len;
    int64_t position; /* of the query */
    int64_t begin;    /* positions begin ... end - 1 are seen, less what the mask hides */
    int64_t end;
    double scale;
    double softcap; /* 0: none */
    double slope;
    double sink;        /* minus infinity: none */
    const double *mask; /* nullable: [mask_width], for the last positions of the sequence */
    double *scores;     /* [seq_len] scratch */
    int64_t mask_width;
    int has_bf16_products; /* 1: queries and weights may be rounded to bfloat16 */
};

struct verify_attention_answer {
    double out[VERIFY_ATTENTION_MAX_HEAD_SIZE];
    double
        out_bound[VERIFY_ATTENTION_MAX_HEAD_SIZE]; /* before the result is rounded to its dtype */
    double lse;                                    /* natural */
    double lse_bound;
};

void verify_attention_row(const struct verify_attention_row *row,
                          struct verify_attention_answer *answer);

/* How far a number that is at most `bound` from `expected` may be after it was rounded to that
 * dtype. */
double verify_attention_rounded_bound(int32_t dtype, double expected, double bound);

#endif
