/* SPDX-License-Identifier: MIT
 *
 * What pagedkv run needs to know of an operator: its tensors, its attributes, and a function that
 * calls the library. cmd_run.c reads and writes files around it.
 */
#ifndef PAGEDKV_RUN_H
#define PAGEDKV_RUN_H

#include <stdbool.h>

#include "cli.h"

/* scatter_rows has the most tensors: the slots and PKV_SCATTER_ROWS_MAX_PAIRS pairs. */
enum {
    RUN_MAX_TENSORS = 1 + 2 * PKV_SCATTER_ROWS_MAX_PAIRS,
    RUN_MAX_ATTRIBUTES = 13,
    RUN_MAX_OUTPUTS = PKV_SCATTER_ROWS_MAX_PAIRS,
    RUN_MAX_MEMORY = 2 * RUN_MAX_TENSORS
};

/* A tensor of the input file. */
struct run_tensor {
    const char *name; /* NULL ends a list */
    bool optional;
    bool is_data; /* keys, values and caches, which --dtype hifloat8 labels anew; no indices */
    const char
        *shape; /* NULL: help does not list it: one of a numbered row whose first it explains, or
                  refused */
};

/* The values of all attributes; which of them an operator takes is in its table. Layouts, modes and
 * choices that were not given are RUN_NOT_GIVEN. */
struct run_attributes {
    int64_t dim;
    int64_t block_size;
    int64_t num_kv_heads;
    int64_t is_seq_lens_cumsum;
    int64_t duplicates;   /* enum pkv_duplicates */
    int64_t scatter_mode; /* index into run_scatter_modes */
    int64_t cache_mode;   /* index into cli_cache_modes */
    int64_t key_layout;   /* these four: enum pkv_layout */
    int64_t value_layout;
    int64_t from;
    int64_t to;
    const char *strides; /* "K,V" */
    const char *offsets;
    int64_t compress_block_size;
    int64_t compress_stride;
    int64_t page_block_size;
    const char *value; /* "K" or "K,V" */
    int64_t first;
    int64_t num;
    const char *scale;
    const char *softcap;
    int64_t causal;
    int64_t window_left;
    int64_t window_right;
    int64_t lse_base; /* enum pkv_lse_base */
    int64_t value_head_size;
    int64_t num_shared_tokens;
    int64_t products; /* enum pkv_attention_products */
};

enum { RUN_NOT_GIVEN = -1 };

/* One application of an operator. */
struct run_call {
    const char *command; /* "run scatter_update" */
    const char *file;    /* of the input */
    const struct run_operator *op;
    struct run_attributes attributes;
    struct cli_context cli;
    struct pkv_tensor tensors[RUN_MAX_TENSORS]; /* in the order of op->tensors */
    bool is_present[RUN_MAX_TENSORS];
    const char *output_names[RUN_MAX_OUTPUTS];
    struct pkv_tensor outputs[RUN_MAX_OUTPUTS];
    int num_outputs;
    void *memory[RUN_MAX_MEMORY]; /* to be freed at the end */
    int num_memory;
};

struct run_operator {
    const char *name;
    const char *summary;
    const char *outputs;
    struct run_tensor tensors[RUN_MAX_TENSORS + 1];
    const char *attributes[RUN_MAX_ATTRIBUTES + 1]; /* names in the table of attributes */
    int (*run)(struct run_call *call);              /* CLI_OK, or CLI_USAGE after printing why */
};

/* The operators; the last one has no name. */
extern const struct run_operator run_operators[];

/* Spellings for CLI_CHOICE; NULL at the end. */
extern const char *const run_scatter_modes[];
extern const char *const run_duplicates[];
extern const char *const run_lse_bases[];
extern const char *const run_products[];

/* In run_convert.c, run_blocks.c, run_rows.c and run_attention.c; the others are in run_ops.c. */
int run_convert_layout(struct run_call *call);
int run_copy_blocks(struct run_call *call);
int run_swap_blocks(struct run_call *call);
int run_fill_blocks(struct run_call *call);
int run_scatter_rows(struct run_call *call);
int run_nsa_compress_with_cache(struct run_call *call);
int run_paged_attention(struct run_call *call);
int run_merge_states(struct run_call *call);

/* A tensor that the library calls otherwise than the file. */
struct run_name {
    const char *argument;
    const char *tensor;
};

/* Prints a refusal of the library, with the file's names of tensors. names is nullable and ends
 * with NULL. Returns CLI_USAGE. */
int run_refused(const struct run_call *call, const struct pkv_error *error,
                const struct run_name *names);

/* Describes two tensors of the call, of which that of the value may be missing, with its layouts.
 * Returns CLI_CONTINUE, or CLI_USAGE after printing why not. */
int run_describe_cache(struct run_call *call, const char *key_name, const char *value_name,
                       struct pkv_cache *cache);

/* The tensor of that name in the call, or NULL if the file has none. */
struct pkv_tensor *run_tensor(struct run_call *call, const char *name);

/* Memory that lives as long as the call; NULL after printing that there is none. */
void *run_alloc(struct run_call *call, int64_t num_bytes);

/* Names a tensor of the output file. */
void run_output(struct run_call *call, const char *name, const struct pkv_tensor *tensor);

#endif
