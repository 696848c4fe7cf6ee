/* SPDX-License-Identifier: MIT
 *
 * What trace.c and the readers of single lines share. Only they include it.
 */
#ifndef PAGEDKV_REPLAY_TRACE_FORMAT_H
#define PAGEDKV_REPLAY_TRACE_FORMAT_H

#include <stdarg.h>

#include "replay/id_table.h"
#include "replay/trace.h"

enum trace_format {
    TRACE_UNKNOWN,
    TRACE_HASHES, /* JSON lines with the ids of blocks: Mooncake and Qwen-Bailian */
    TRACE_TOKENS, /* JSON lines with token ids */
    TRACE_CSV     /* lengths alone: Azure */
};

struct trace_reader {
    const char *path;
    int64_t line_number;
    struct trace_options options;
    enum trace_format format;
    struct id_table table; /* of the ids seen so far */
    int64_t *numbers;      /* [max_numbers], the list of the present line */
    int64_t max_numbers;
    struct trace_token_block *token_blocks; /* [max_token_blocks], one for each id */
    int64_t max_token_blocks;
    int32_t *tokens; /* [max_tokens], of blocks seen so far */
    int64_t num_tokens;
    int64_t max_tokens;
};

/* Prints "FILE:LINE: message" and returns CLI_USAGE. */
int trace_line_error(const struct trace_reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
int trace_no_memory(const struct trace_reader *reader);

/* Each adds the request of one line, without its newline and not blank. They return CLI_CONTINUE,
 * or CLI_USAGE after printing what is wrong. */
int trace_read_json_line(struct trace_reader *reader, struct trace *trace, const char *begin,
                         const char *end);
int trace_read_csv_line(struct trace_reader *reader, struct trace *trace, const char *begin,
                        const char *end);
bool trace_is_csv_header(const char *begin, const char *end);

void trace_reader_free(struct trace_reader *reader);

#endif
