/* SPDX-License-Identifier: MIT
 *
 * One line of an Azure trace: TIMESTAMP,ContextTokens,GeneratedTokens. Requests are replayed in the
 * order of the file; times are only checked to be there.
 */
#include "replay/trace_format.h"

#include <inttypes.h>
#include <string.h>

#include "cli.h"

static const char header[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

static const char *trim_end(const char *begin, const char *end) {
    while (end > begin && (end[-1] == '\r' || end[-1] == ' '))
        end--;
    return end;
}

bool trace_is_csv_header(const char *begin, const char *end) {
    static const char mark[] = "\xef\xbb\xbf"; /* UTF-8's byte order mark */
    end = trim_end(begin, end);
    if ((size_t)(end - begin) == sizeof(mark) - 1 + sizeof(header) - 1 &&
        memcmp(begin, mark, sizeof(mark) - 1) == 0)
        begin += sizeof(mark) - 1;
    return (size_t)(end - begin) == sizeof(header) - 1 &&
           memcmp(begin, header, sizeof(header) - 1) == 0;
}

static int read_length(const struct trace_reader *reader, const char *name, const char *begin,
                       const char *end, int64_t *length) {
    int64_t value = 0;
    const char *at = begin;
    for (; at < end && *at >= '0' && *at <= '9' && value <= TRACE_MAX_LENGTH; at++)
        value = value * 10 + (*at - '0');
    if (at != end || begin == end || value > TRACE_MAX_LENGTH)
        return trace_line_error(reader, "%s is '%.*s', no number from 0 to %" PRId64, name,
                                (int)(end - begin < 40 ? end - begin : 40), begin,
                                TRACE_MAX_LENGTH);
    *length = value;
    return CLI_CONTINUE;
}

int trace_read_csv_line(struct trace_reader *reader, struct trace *trace, const char *begin,
                        const char *end) {
    int64_t lengths[2];
    const char *fields[4]; /* where they begin, and behind the last */
    int num_fields = 1;
    end = trim_end(begin, end);
    fields[0] = begin;
    for (const char *at = begin; at < end; at++) {
        if (*at == ',') {
            if (num_fields == 3)
                return trace_line_error(reader, "more than the 3 fields %s", header);
            fields[num_fields++] = at + 1;
        }
    }
    if (num_fields < 3)
        return trace_line_error(reader, "%d fields instead of the 3 fields %s", num_fields, header);
    if (fields[1] == begin + 1 || *begin < '0' || *begin > '9')
        return trace_line_error(reader, "TIMESTAMP does not begin with a digit");
    fields[3] = end + 1;
    static const char *const names[] = {"ContextTokens", "GeneratedTokens"};
    for (int i = 0; i < 2; i++) {
        const int status =
            read_length(reader, names[i], fields[i + 1], fields[i + 2] - 1, &lengths[i]);
        if (status != CLI_CONTINUE)
            return status;
    }
    return trace_add_request(trace, lengths[0], lengths[1]) != 0 ? trace_no_memory(reader)
                                                                 : CLI_CONTINUE;
}
