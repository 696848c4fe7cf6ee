/* SPDX-License-Identifier: MIT
 *
 * A trace of requests in memory, and its readers. A trace says how long each request is and, unless
 * it holds lengths only, which blocks its prompt has: each id names a block together with
 * everything before it. It knows nothing of caches.
 */
#ifndef PAGEDKV_REPLAY_TRACE_H
#define PAGEDKV_REPLAY_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TRACE_MAX_LENGTH (INT64_C(1) << 30) /* tokens of a prompt or of an answer */
#define TRACE_MAX_BLOCKS (INT64_C(1) << 30) /* of all requests: as many as a pool can have */

struct trace_request {
    int64_t input_length;
    int64_t output_length;
    int64_t first_block; /* in ids */
    int64_t num_blocks;
};

struct trace {
    const char *format;
    int64_t block_size;
    bool has_blocks; /* false: lengths only, and no request shares anything with another */
    int64_t num_requests;
    int64_t max_requests; /* room in requests */
    struct trace_request *requests;
    int64_t num_blocks; /* of all requests, each time it appears */
    int64_t max_blocks; /* room in ids */
    int32_t *ids;       /* [num_blocks], numbered from 0 in the order of their first appearance */
    int64_t num_ids;
    /* Blocks that can be told apart by what they hold and what comes before them, at most: num_ids
     * unless ids appear after different predecessors. */
    int64_t num_prefixes;
    int64_t longest_request; /* blocks of the prompt that has most */
    int64_t input_tokens;    /* of all requests */
};

struct trace_options {
    int64_t block_size; /* 0: the format's own, or 16 where it has none */
    int64_t limit;      /* requests to read; 0: all */
};

/* Reads a file of any format, told apart by its content. Returns CLI_CONTINUE, or CLI_USAGE after
 * printing what is wrong, with file and line. trace_free releases either. */
int trace_read(struct trace *trace, const char *path, const struct trace_options *options);

/* The same from a stream; path is what messages call it. */
int trace_read_stream(struct trace *trace, const char *path, FILE *stream,
                      const struct trace_options *options);

/* Makes a trace out of nothing: conversations of several turns over a few shared system prompts.
 * The same seed gives the same trace. Returns as trace_read. */
int trace_make(struct trace *trace, uint64_t seed, const struct trace_options *options);

void trace_free(struct trace *trace);

/* For the readers. Each returns 0, or -1 when there is no memory or no room for more. */
int trace_add_request(struct trace *trace, int64_t input_length, int64_t output_length);
int trace_add_block(struct trace *trace, int32_t id); /* to the last request */

/* Fills num_prefixes and longest_request. Returns 0 or -1. */
int trace_finish(struct trace *trace);

/* ceil(length / block_size) */
int64_t trace_blocks_of(int64_t length, int64_t block_size);

#endif
