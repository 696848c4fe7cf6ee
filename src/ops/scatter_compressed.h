/* SPDX-License-Identifier: MIT
 *
 * The compressed modes of pkv_scatter_pa_kv_cache from inside. Each head of each sequence has a
 * region of its own in the cache: neighbouring rows of one head. A task is one such pair, number b
 * * num_heads + h.
 */
#ifndef PKV_OPS_SCATTER_COMPRESSED_H
#define PKV_OPS_SCATTER_COMPRESSED_H

#include <pagedkv/scatter.h>

#include "geometry/vector.h"
#include "ops/context.h"
#include "ops/rows.h"

/* Neighbouring tokens of a sequence, and the row of the region where the first one goes. */
struct pkv_token_run {
    int64_t token;
    int64_t row;
    int64_t num_tokens;
};

/* What a task writes: in order, tokens as they are, the mean of a window in one row, tokens again.
 * Each of them may be empty. */
struct pkv_region {
    int64_t slot;     /* of row 0; negative: nothing is written */
    int64_t num_rows; /* its length */
    struct pkv_token_run copies[2];
    struct pkv_token_run mean; /* num_tokens 0: no row either */
};

/* One number for each task, [num_seqs, num_heads] or [num_seqs * num_heads]. */
struct pkv_task_index {
    const void *data;   /* NULL: absent */
    int32_t dtype;      /* I32 or I64 */
    int64_t seq_stride; /* in elements */
    int64_t head_stride;
};

static inline int64_t pkv_task_at(const struct pkv_task_index *tasks, int64_t seq, int64_t head) {
    const int64_t element = seq * tasks->seq_stride + head * tasks->head_stride;
    return tasks->dtype == PKV_DTYPE_I32 ? ((const int32_t *)tasks->data)[element]
                                         : ((const int64_t *)tasks->data)[element];
}

/* The indices of a call. */
struct pkv_compressed_index {
    int32_t mode; /* enum pkv_scatter_mode, one of the three */
    int64_t num_seqs;
    int64_t num_heads;
    struct pkv_vector seq_lens;
    struct pkv_task_index slots; /* absent: all regions are there */
    struct pkv_task_index lens;
    struct pkv_task_index offsets; /* absent in Alibi */
};

/* The tensors of an index. */
struct pkv_compressed_tensors {
    const struct pkv_tensor *slot_mapping; /* NULL: absent */
    const struct pkv_tensor *seq_lens;
    const struct pkv_tensor *compress_lens;
    const struct pkv_tensor *compress_seq_offset;
};

bool pkv_scatter_mode_is_compressed(int32_t scatter_mode);

/* Reads the tensors and checks their shapes. num_heads is a number, or -1: as compress_lens
 * says. */
enum pkv_status pkv_compressed_index_read(struct pkv_compressed_index *index, int32_t mode,
                                          const struct pkv_compressed_tensors *tensors,
                                          int64_t num_heads, const char *function,
                                          struct pkv_error *error);

/* Checks the lengths and offsets of every task that is not skipped. */
enum pkv_status pkv_compressed_index_check(const struct pkv_compressed_index *index,
                                           const char *function, struct pkv_error *error);

/* The region of a task whose numbers are checked. */
struct pkv_region pkv_compressed_region(const struct pkv_compressed_index *index, int64_t seq,
                                        int64_t head);

/* Keys or values: where they come from, where they go. */
struct pkv_compressed_side {
    const struct pkv_cache_part *part;
    const char *source_name;
    struct pkv_tensor source; /* as it was given, resolved */
    struct pkv_tensor tokens; /* one head of it: [num_tokens or padded length, 1, head_size] */
    int64_t seq_stride;       /* bytes between the first tokens of two sequences; ragged: 0 */
    int64_t head_stride;      /* bytes */
    int64_t channel_stride;   /* bytes */
    struct pkv_row_mover mover;
    int32_t mean_type; /* enum pkv_mean_type, or PKV_NUM_MEAN_TYPES: the dtype has no mean */
};

struct pkv_compressed_job {
    const struct pkv_context *context;
    const char *function;
    const struct pkv_cache *cache;
    struct pkv_compressed_index index;
    bool is_padded;
    int32_t num_sides;
    struct pkv_compressed_side sides[2];
    int64_t num_copies;   /* tokens that are copied, each head's own; */
    int64_t num_averaged; /* and those in windows */
    uint64_t num_bytes;   /* to be written */
};

/* Moves everything, on the executor or, in sim, token by token. The job is checked. */
enum pkv_status pkv_compressed_job_run(const struct pkv_compressed_job *job,
                                       struct pkv_error *error);

/* The operator in these modes, with options that are checked but for their tensors. value is absent
 * exactly when the cache has no value part. */
enum pkv_status pkv_scatter_compressed(struct pkv_context *context, const struct pkv_cache *cache,
                                       const struct pkv_tensor *key, const struct pkv_tensor *value,
                                       const struct pkv_tensor *slot_mapping,
                                       const struct pkv_scatter_pa_kv_cache_options *options,
                                       const char *function, struct pkv_error *error);

#endif
