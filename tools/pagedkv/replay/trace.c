/* SPDX-License-Identifier: MIT
 *
 * Traces: detection of the format by content, the loop over lines, and the arrays that grow. The
 * formats themselves are in trace_json.c and trace_csv.c.
 */
#include "replay/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "replay/trace_format.h"

enum { FIRST_ROOM = 1024 };

/* Room for one more element. Returns the array, moved or not, or NULL. */
static void *grow(void *array, int64_t count, int64_t *room, size_t element_bytes) {
    if (count < *room)
        return array;
    const int64_t more = *room > 0 ? *room * 2 : FIRST_ROOM;
    void *moved = realloc(array, (size_t)more * element_bytes);
    if (moved)
        *room = more;
    return moved;
}

int trace_add_request(struct trace *trace, int64_t input_length, int64_t output_length) {
    struct trace_request *requests =
        grow(trace->requests, trace->num_requests, &trace->max_requests, sizeof(*requests));
    if (requests == NULL)
        return -1;
    trace->requests = requests;
    requests[trace->num_requests++] = (struct trace_request){
        .input_length = input_length,
        .output_length = output_length,
        .first_block = trace->num_blocks,
    };
    trace->input_tokens += input_length;
    return 0;
}

int trace_add_block(struct trace *trace, int32_t id) {
    if (trace->num_blocks == TRACE_MAX_BLOCKS)
        return -1;
    int32_t *ids = grow(trace->ids, trace->num_blocks, &trace->max_blocks, sizeof(*ids));
    if (ids == NULL)
        return -1;
    trace->ids = ids;
    ids[trace->num_blocks++] = id;
    trace->requests[trace->num_requests - 1].num_blocks++;
    if (id >= trace->num_ids)
        trace->num_ids = id + INT64_C(1);
    return 0;
}

/* From the first block of a request whose predecessor is not the usual one, each block may be one
 * more than its id tells. */
int trace_finish(struct trace *trace) {
    int32_t *previous = malloc((size_t)(trace->num_ids + 1) * sizeof(*previous));
    if (trace->ids == NULL) /* no request has a block; those that look for theirs find an address */
        trace->ids = calloc(1, sizeof(*trace->ids));
    if (previous == NULL || trace->ids == NULL) {
        free(previous);
        return -1;
    }
    for (int64_t i = 0; i < trace->num_ids; i++)
        previous[i] = -2; /* not seen yet; -1: first in its request */
    trace->num_prefixes = trace->num_ids;
    for (int64_t r = 0; r < trace->num_requests; r++) {
        const struct trace_request *request = &trace->requests[r];
        const int32_t *ids = trace->ids + request->first_block;
        int32_t last = -1;
        for (int64_t i = 0; i < request->num_blocks; i++) {
            if (previous[ids[i]] == -2)
                previous[ids[i]] = last;
            if (previous[ids[i]] != last) {
                trace->num_prefixes += request->num_blocks - i;
                break;
            }
            last = ids[i];
        }
        if (request->num_blocks > trace->longest_request)
            trace->longest_request = request->num_blocks;
    }
    free(previous);
    return 0;
}

int64_t trace_blocks_of(int64_t length, int64_t block_size) {
    return length / block_size + (length % block_size != 0);
}

void trace_free(struct trace *trace) {
    free(trace->requests);
    free(trace->ids);
    *trace = (struct trace){0};
}

int trace_line_error(const struct trace_reader *reader, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    for (char *at = text; *at; at++) {
        if (*at < ' ' || *at > '~') /* of the file, which may hold anything */
            *at = '?';
    }
    return cli_error("replay", "%s:%" PRId64 ": %s", reader->path, reader->line_number, text);
}

int trace_no_memory(const struct trace_reader *reader) {
    return trace_line_error(reader,
                            "no memory for more of it, or more than %" PRId64
                            " blocks; use --limit to read less",
                            TRACE_MAX_BLOCKS);
}

static bool is_blank(const char *begin, const char *end) {
    for (const char *at = begin; at < end; at++) {
        if (*at != ' ' && *at != '\t' && *at != '\r')
            return false;
    }
    return true;
}

/* The first line that is not blank decides. A CSV's is its header and no request. */
static int read_line(struct trace_reader *reader, struct trace *trace, const char *begin,
                     const char *end) {
    if (memchr(begin, '\0', (size_t)(end - begin)))
        return trace_line_error(reader, "holds a byte of 0, which is no text");
    if (reader->format == TRACE_UNKNOWN && *begin != '{') {
        if (!trace_is_csv_header(begin, end))
            return trace_line_error(reader, "neither a JSON object nor the header "
                                            "'TIMESTAMP,ContextTokens,GeneratedTokens'; the "
                                            "formats are in pagedkv(1)");
        reader->format = TRACE_CSV;
        trace->format = "Azure";
        trace->block_size = reader->options.block_size > 0 ? reader->options.block_size : 16;
        return CLI_CONTINUE;
    }
    return reader->format == TRACE_CSV ? trace_read_csv_line(reader, trace, begin, end)
                                       : trace_read_json_line(reader, trace, begin, end);
}

/* The longest requests in known traces have lines of a few MB. */
enum { MAX_LINE_BYTES = 1 << 28 };

struct line_text {
    char *bytes;
    size_t length, room;
};

/* The next line, without its end. Returns CLI_CONTINUE; CLI_OK at the end of the file; CLI_USAGE
 * after printing why not. */
static int next_line(struct trace_reader *reader, FILE *stream, struct line_text *line) {
    line->length = 0;
    reader->line_number++;
    for (;;) {
        const int byte = getc_unlocked(stream);
        if (byte == EOF && ferror(stream))
            return cli_error("replay", "cannot read %s: %s; name a trace file", reader->path,
                             strerror(errno));
        if (byte == EOF && line->length == 0)
            return CLI_OK;
        if (line->length == line->room) {
            const size_t room = line->room > 0 ? line->room * 2 : 4096;
            char *bytes = room <= MAX_LINE_BYTES ? realloc(line->bytes, room) : NULL;
            if (bytes == NULL)
                return trace_line_error(reader, "is longer than %d bytes, or than there is memory",
                                        MAX_LINE_BYTES);
            line->bytes = bytes;
            line->room = room;
        }
        if (byte == '\n' || byte == EOF) {
            line->bytes[line->length] = '\0';
            return CLI_CONTINUE;
        }
        line->bytes[line->length++] = (char)byte;
    }
}

static int read_lines(struct trace_reader *reader, struct trace *trace, FILE *stream) {
    int status = CLI_CONTINUE;
    const int64_t limit = reader->options.limit > 0 ? reader->options.limit : INT64_MAX;
    struct line_text line = {NULL, 0, 0};
    while (status == CLI_CONTINUE && trace->num_requests < limit) {
        status = next_line(reader, stream, &line);
        const char *end = line.bytes + line.length;
        if (status == CLI_CONTINUE && !is_blank(line.bytes, end))
            status = read_line(reader, trace, line.bytes, end);
    }
    free(line.bytes);
    if (status == CLI_OK)
        status = CLI_CONTINUE;
    if (status == CLI_CONTINUE && trace->num_requests == 0)
        return cli_error("replay", "%s has no requests; name a trace file", reader->path);
    return status;
}

int trace_read_stream(struct trace *trace, const char *path, FILE *stream,
                      const struct trace_options *options) {
    struct trace_reader reader = {.path = path, .options = *options};
    *trace = (struct trace){0};
    int status = read_lines(&reader, trace, stream);
    if (status == CLI_CONTINUE && trace_finish(trace) != 0)
        status = trace_no_memory(&reader);
    trace_reader_free(&reader);
    return status;
}

int trace_read(struct trace *trace, const char *path, const struct trace_options *options) {
    *trace = (struct trace){0};
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return cli_error("replay", "cannot open %s: %s; name a trace file", path, strerror(errno));
    const int status = trace_read_stream(trace, path, stream, options);
    (void)fclose(stream);
    return status;
}
