/* SPDX-License-Identifier: MIT
 *
 * What a plan would do, in numbers: nothing is run.
 */
#ifndef PAGEDKV_EXPLAIN_H
#define PAGEDKV_EXPLAIN_H

#include <pagedkv/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The unified buffer of the Ascend 910B, in which the published operators hold a tile. Shown beside
 * tile_bytes; it limits nothing here. */
#define PKV_UNIFIED_BUFFER_BYTES 196608

/* Filled by pkv_scatter_plan_explain and pkv_gather_plan_explain. */
struct pkv_explanation {
    size_t struct_size;
    int32_t run_mode;  /* enum pkv_run_mode */
    int32_t cpu_level; /* enum pkv_cpu_level */
    int64_t num_tokens;
    int64_t tile_tokens; /* tokens of a full tile */
    int64_t num_tiles;   /* ceil(num_tokens / tile_tokens) */
    int64_t tail_tokens; /* tokens of the last tile; 0 when num_tokens is 0 */
    int64_t tile_bytes;  /* of a full tile: key and value rows, and an index of 4 bytes a token */
    int64_t num_parts;   /* pieces of work handed to the executor */
    int64_t bytes_read;  /* of keys and values; indices come on top */
    int64_t bytes_written;
    const char *key_kernel;   /* static names; "sim" in that run mode */
    const char *value_kernel; /* likewise; "none" in a key-only plan */
    const char *store_policy; /* "cached" or "streaming", for num_tokens tokens */
};

/* Filled by pkv_paged_attention_explain. A row is a query and one of its heads; a unit is up to 128
 * rows and the key heads that are read for them together. In sim a unit is a row, and a tile one
 * token of one head. */
struct pkv_attention_explanation {
    size_t struct_size;
    int32_t run_mode;  /* enum pkv_run_mode */
    int32_t cpu_level; /* enum pkv_cpu_level */
    int64_t num_seqs;
    int64_t num_tokens; /* queries of the step */
    int64_t num_rows;
    int64_t tile_tokens; /* tokens that are attended to at once */
    int64_t num_tiles;   /* tiles that are read, by all units together */
    int64_t tile_bytes;  /* of a full tile: keys and values of all key heads; sim: of one */
    int64_t num_units;
    int64_t num_pieces;       /* of each unit's context, for the threads; 1: it is not cut */
    int64_t num_parts;        /* pieces of work handed to the executor */
    int64_t bytes_read;       /* of keys and values; tiles that sequences share count whole */
    double flops;             /* of both products, for the positions that the queries see */
    const char *score_kernel; /* static names; "sim" in that run mode */
    const char *value_kernel; /* likewise; that of the units with the most rows */
};

#ifdef __cplusplus
}
#endif

#endif
