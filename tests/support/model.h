/* SPDX-License-Identifier: MIT
 *
 * Caches, rows and index tensors in guarded memory, each with its description for the library and
 * its definition for the reference. Every byte has a shadow that holds what it should be, the
 * padding between rows too: comparing whole memories finds a write anywhere.
 */
#ifndef PAGEDKV_TESTS_MODEL_H
#define PAGEDKV_TESTS_MODEL_H

#include "guard.h"
#include "reference.h"
#include "rng.h"

#include <pagedkv/cache.h>

/* The sizes of a cache to be made. Zeroed fields are legal only where it says so. */
struct model_sizes {
    int32_t key_layout;
    int32_t value_layout;
    int32_t key_dtype;
    int32_t value_dtype; /* 0: key-only */
    int64_t num_blocks;
    int64_t block_size;
    int64_t num_heads;
    int64_t key_head_size;
    int64_t value_head_size;
    int nz_5d;       /* PA_NZ in its 5-D shape */
    int padded;      /* random gaps between fragments, rows, heads and blocks */
    int interleaved; /* keys and values of a block behind each other in one pool */
    enum test_guard_side side;
};

struct model_part {
    struct ref_part ref;
    struct pkv_tensor tensor;
    unsigned char *shadow; /* what tensor.data should hold */
};

struct model_cache {
    struct model_part key;
    struct model_part value; /* tensor.data NULL: key-only */
    int has_value;
    int num_memories;
    struct test_guard memories[2];
    unsigned char *shadows[2];
};

/* Filled with random bytes. */
struct model_cache model_cache_make(const struct model_sizes *sizes, struct test_rng *rng);
void model_cache_free(struct model_cache *cache);

/* 1 if every byte is what its shadow says. */
int model_cache_is_as_expected(const struct model_cache *cache);

/* Options for pkv_cache_init that fit it. */
struct pkv_cache_options model_cache_options(const struct model_cache *cache);

/* Takes the whole cache's bytes, random or not, as what it should hold. */
void model_cache_accept(struct model_cache *cache);

enum model_rows_kind {
    MODEL_ROWS_PACKED,     /* contiguous, strides spelled out */
    MODEL_ROWS_IMPLIED,    /* contiguous, strides all zero */
    MODEL_ROWS_PADDED,     /* gaps between heads and tokens */
    MODEL_ROWS_TRANSPOSED, /* heads outside tokens: [num_heads, num_tokens, head_size] in memory */
    MODEL_ROWS_COLUMNS,    /* tokens innermost: [num_heads, head_size, num_tokens] in memory */
    MODEL_ROWS_NUM_KINDS
};

/* Rows outside a cache: source of a scatter, destination of a gather. */
struct model_rows {
    struct ref_rows ref;
    struct pkv_tensor tensor; /* [num_tokens, num_heads, head_size] */
    struct test_guard memory;
    unsigned char *shadow;
};

struct model_rows model_rows_make(enum model_rows_kind kind, const struct model_part *part,
                                  int64_t num_tokens, enum test_guard_side side,
                                  struct test_rng *rng);
void model_rows_free(struct model_rows *rows);
int model_rows_are_as_expected(const struct model_rows *rows);

/* A contiguous index tensor with its own guarded memory. */
struct model_index {
    struct pkv_tensor tensor;
    struct test_guard memory;
};

struct model_index model_index_make(int32_t dtype, int32_t ndim, const int64_t *shape,
                                    const int64_t *values);
void model_index_free(struct model_index *index);

#endif
