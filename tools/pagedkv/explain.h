/* SPDX-License-Identifier: MIT
 *
 * What the explanations of several operators share.
 */
#ifndef PAGEDKV_TOOL_EXPLAIN_H
#define PAGEDKV_TOOL_EXPLAIN_H

#include "cli.h"

/* The block table has a row for each. */
enum { EXPLAIN_MAX_SEQS = 65536 };

/* The published case config1: 2633 tokens into 9760 blocks of 128, 2 heads of 256, bf16; attention
 * of a decode step. */
struct explained {
    const char *op;
    int64_t num_tokens;
    int64_t num_blocks;
    int64_t block_size;
    int64_t num_kv_heads;
    int64_t head_size;
    int64_t value_head_size; /* 0: as head_size */
    int64_t num_heads;       /* 0: as num_kv_heads; this and the next three: attention */
    int64_t num_seqs;
    int64_t seq_len;
    int64_t query_len;
    const char *dtype;
    int64_t cache_mode; /* index into cli_cache_modes; these three: -1, not given */
    int64_t key_layout;
    int64_t value_layout;
    int key_only;
    struct cli_context_choice choice;
};

struct explained_run {
    int32_t run_mode;
    int32_t cpu_level;
    int32_t num_threads;
    const char *kernels[2]; /* of keys, of values */
};

/* The lines from the operator to the value. */
void explain_print_cache(const struct explained *x, const struct pkv_cache *cache,
                         const struct explained_run *run);

/* What moving so many bytes would take at the speed of a copy, measured with `copied` bytes, 64 MiB
 * at the most. */
void explain_print_time(const struct cli_context *context, double moved_bytes, int64_t copied);

/* Everything about paged attention with that cache. */
int explain_attention(const struct cli_context *context, const struct explained *x,
                      const struct pkv_cache *cache);

#endif
