/* SPDX-License-Identifier: MIT
 *
 * Fuzz target: the readers of traces on any bytes. What they accept must hold together: blocks as
 * the lengths say, numbers without gaps, sums that are right. What they refuse they tell in one
 * line of printable characters.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "replay/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int num_errors;

static void require(int condition) {
    if (!condition)
        abort();
}

/* In place of the tool's. */
int cli_error(const char *command, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    require(strcmp(command, "replay") == 0 && length > 0 && length < (int)sizeof(text));
    for (int i = 0; i < length; i++)
        require(text[i] >= ' ' && text[i] <= '~');
    num_errors++;
    return CLI_USAGE;
}

static void check_request(const struct trace *trace, const struct trace_request *request,
                          int64_t first_block, int32_t *next_id) {
    require(request->input_length >= 0 && request->input_length <= TRACE_MAX_LENGTH);
    require(request->output_length >= 0 && request->output_length <= TRACE_MAX_LENGTH);
    require(request->first_block == first_block);
    require(request->num_blocks ==
            (trace->has_blocks ? trace_blocks_of(request->input_length, trace->block_size) : 0));
    for (int64_t i = first_block; i < first_block + request->num_blocks; i++) {
        require(trace->ids[i] >= 0 && trace->ids[i] <= *next_id);
        *next_id += trace->ids[i] == *next_id;
    }
}

static void check_trace(const struct trace *trace, int64_t limit) {
    int64_t num_blocks = 0, input_tokens = 0, longest = 0;
    int32_t next_id = 0;
    require(trace->num_requests > 0 && (limit == 0 || trace->num_requests <= limit));
    require(trace->block_size > 0 && trace->format != NULL);
    for (int64_t r = 0; r < trace->num_requests; r++) {
        const struct trace_request *request = &trace->requests[r];
        check_request(trace, request, num_blocks, &next_id);
        num_blocks += request->num_blocks;
        input_tokens += request->input_length;
        longest = request->num_blocks > longest ? request->num_blocks : longest;
    }
    require(trace->num_blocks == num_blocks && trace->input_tokens == input_tokens);
    require(trace->num_ids == next_id && trace->longest_request == longest);
    require(trace->num_prefixes >= trace->num_ids &&
            trace->num_prefixes <= trace->num_ids + num_blocks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* The first byte chooses the options. */
    const struct trace_options options = {.block_size = size > 0 && data[0] & 1 ? 7 : 0,
                                          .limit = size > 0 && data[0] & 2 ? 3 : 0};
    struct trace trace;
    if (size < 2)
        return 0;
    FILE *stream = fmemopen((void *)(uintptr_t)(data + 1), size - 1, "r");
    require(stream != NULL);
    num_errors = 0;
    const int status = trace_read_stream(&trace, "a trace", stream, &options);
    (void)fclose(stream);
    require(status == CLI_CONTINUE || status == CLI_USAGE);
    require(num_errors == (status == CLI_USAGE));
    if (status == CLI_CONTINUE)
        check_trace(&trace, options.limit);
    trace_free(&trace);
    return 0;
}
