/* SPDX-License-Identifier: MIT
 *
 * One line of a trace in JSON: a flat object whose lengths and lists of ids are whole numbers;
 * other fields are checked and skipped. A general parser makes a value of each of the numbers,
 * which is most of what a trace holds; this one stores them where they are needed.
 */
#include "replay/trace_format.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_random.h"

enum field {
    FIELD_INPUT_LENGTH,
    FIELD_OUTPUT_LENGTH,
    FIELD_HASH_IDS,
    FIELD_CHAT_ID,
    FIELD_TURN,
    FIELD_INPUT_TOK_IDS,
    FIELD_OUTPUT_TOKS,
    NUM_FIELDS
};

static const char *const field_names[NUM_FIELDS] = {
    "input_length", "output_length", "hash_ids", "chat_id", "turn", "input_tok_ids", "output_toks",
};

/* Tokens of a block in Mooncake's traces, in Qwen-Bailian's, and of token traces unless told. */
enum { MOONCAKE_BLOCK = 512, QWEN_BLOCK = 16, TOKEN_BLOCK = 16 };

struct trace_token_block {
    int32_t parent; /* id of the block before, -1: none */
    int32_t num_tokens;
    int64_t first_token;
};

struct line {
    struct trace_reader *reader;
    const char *at;
    const char *end;
    unsigned fields; /* bit 1 << enum field: seen */
    int64_t input_length;
    int64_t output_length;
    int64_t count; /* numbers in the list */
};

static void skip_space(struct line *line) {
    while (line->at < line->end && (*line->at == ' ' || *line->at == '\t' || *line->at == '\r'))
        line->at++;
}

/* What comes next, after space; 0 at the end. */
static char next(struct line *line) {
    skip_space(line);
    return line->at < line->end ? *line->at : '\0';
}

static int syntax_error(const struct line *line, const char *expected) {
    if (line->at >= line->end)
        return trace_line_error(line->reader, "the line ends where %s is expected", expected);
    return trace_line_error(line->reader, "%s is expected at '%.*s'", expected,
                            (int)(line->end - line->at < 20 ? line->end - line->at : 20), line->at);
}

/* A whole number from 0 to max. */
static int read_int(struct line *line, const char *name, int64_t max, int64_t *value) {
    const char *begin = line->at, *at = begin;
    uint64_t number = 0;
    for (; at < line->end && *at >= '0' && *at <= '9' && number <= INT64_MAX / 10; at++)
        number = number * 10 + (uint64_t)(*at - '0');
    const char after = at < line->end ? *at : '\0';
    const bool padded = at - begin > 1 && *begin == '0';
    const bool beyond = number > (uint64_t)max || (after >= '0' && after <= '9');
    if (at == begin || padded || beyond || after == '.' || after == 'e' || after == 'E')
        return trace_line_error(
            line->reader, "%s: a whole number from 0 to %" PRId64 " is expected at '%.*s'", name,
            max, (int)(line->end - begin < 20 ? line->end - begin : 20), begin);
    line->at = at;
    *value = (int64_t)number;
    return CLI_CONTINUE;
}

static int read_string(struct line *line, const char **begin, const char **end) {
    if (next(line) != '"')
        return syntax_error(line, "a string");
    *begin = ++line->at;
    for (; line->at < line->end && *line->at != '"'; line->at++) {
        if (*line->at == '\\' && line->at + 1 < line->end && !strchr("\"\\/bfnrtu", *++line->at))
            return syntax_error(line, "the rest of an escape");
        if ((unsigned char)*line->at < ' ')
            return syntax_error(line, "a character of a string");
    }
    if (line->at >= line->end)
        return trace_line_error(line->reader, "a string does not end");
    *end = line->at++;
    return CLI_CONTINUE;
}

/* At least one digit, or -1. */
static int skip_digits(struct line *line) {
    const char *begin = line->at;
    while (line->at < line->end && *line->at >= '0' && *line->at <= '9')
        line->at++;
    return line->at > begin ? 0 : -1;
}

static bool skip_one_of(struct line *line, const char *letters) {
    const bool is_there = line->at < line->end && *line->at && strchr(letters, *line->at);
    line->at += is_there;
    return is_there;
}

static int skip_number(struct line *line) {
    const char *begin = line->at;
    (void)skip_one_of(line, "-");
    int status = skip_digits(line);
    if (status == 0 && skip_one_of(line, "."))
        status = skip_digits(line);
    if (status == 0 && skip_one_of(line, "eE")) {
        (void)skip_one_of(line, "+-");
        status = skip_digits(line);
    }
    if (status == 0)
        return CLI_CONTINUE;
    line->at = begin;
    return syntax_error(line, "a value");
}

/* A value that means nothing here. */
static int skip_value(struct line *line) {
    static const char *const words[] = {"null", "true", "false"};
    const char *begin, *end;
    if (next(line) == '"')
        return read_string(line, &begin, &end);
    if (next(line) == '[' || next(line) == '{')
        return trace_line_error(line->reader,
                                "a list or an object in a field that is none of a trace's");
    for (int i = 0; i < 3; i++) {
        const size_t length = strlen(words[i]);
        if ((size_t)(line->end - line->at) >= length && memcmp(line->at, words[i], length) == 0) {
            line->at += length;
            return CLI_CONTINUE;
        }
    }
    return skip_number(line);
}

static int append_number(struct trace_reader *reader, int64_t count, int64_t number) {
    if (count == reader->max_numbers) {
        const int64_t room = reader->max_numbers > 0 ? reader->max_numbers * 2 : 1024;
        int64_t *numbers = realloc(reader->numbers, (size_t)room * sizeof(*numbers));
        if (numbers == NULL)
            return trace_no_memory(reader);
        reader->numbers = numbers;
        reader->max_numbers = room;
    }
    reader->numbers[count] = number;
    return CLI_CONTINUE;
}

static int read_list(struct line *line, const char *name, int64_t max) {
    if (next(line) != '[')
        return trace_line_error(line->reader, "%s is no list of whole numbers", name);
    line->at++;
    if (next(line) == ']') {
        line->at++;
        return CLI_CONTINUE;
    }
    for (;;) {
        int64_t number;
        skip_space(line);
        int status = read_int(line, name, max, &number);
        if (status == CLI_CONTINUE)
            status = append_number(line->reader, line->count++, number);
        if (status != CLI_CONTINUE)
            return status;
        const char separator = next(line);
        if (separator != ',' && separator != ']')
            return syntax_error(line, "',' or ']'");
        line->at++;
        if (separator == ']')
            return CLI_CONTINUE;
    }
}

static int read_field(struct line *line, const char *begin, const char *end) {
    int field = 0;
    while (field < NUM_FIELDS && (strlen(field_names[field]) != (size_t)(end - begin) ||
                                  memcmp(field_names[field], begin, (size_t)(end - begin)) != 0))
        field++;
    if (field == NUM_FIELDS)
        return skip_value(line);
    const char *name = field_names[field];
    if (line->fields & 1u << field)
        return trace_line_error(line->reader, "%s appears twice", name);
    line->fields |= 1u << field;
    skip_space(line);
    switch (field) {
    case FIELD_INPUT_LENGTH:
        return read_int(line, name, TRACE_MAX_LENGTH, &line->input_length);
    case FIELD_OUTPUT_LENGTH:
    case FIELD_OUTPUT_TOKS:
        return read_int(line, name, TRACE_MAX_LENGTH, &line->output_length);
    case FIELD_HASH_IDS:
        return read_list(line, name, INT64_MAX);
    case FIELD_INPUT_TOK_IDS:
        return read_list(line, name, INT32_MAX);
    default:
        return skip_value(line);
    }
}

static int read_object(struct line *line) {
    if (next(line) != '{')
        return syntax_error(line, "'{'");
    line->at++;
    bool more = next(line) != '}';
    while (more) {
        const char *begin, *end;
        int status = read_string(line, &begin, &end);
        if (status != CLI_CONTINUE)
            return status;
        if (next(line) != ':')
            return syntax_error(line, "':'");
        line->at++;
        status = read_field(line, begin, end);
        if (status != CLI_CONTINUE)
            return status;
        more = next(line) == ',';
        if (more)
            line->at++;
    }
    if (next(line) != '}')
        return syntax_error(line, "',' or '}'");
    line->at++;
    return next(line) == '\0' && line->at == line->end ? CLI_CONTINUE
                                                       : syntax_error(line, "the end of the line");
}

/* The first line says which format the file has, and what size its blocks are. */
static int detect(const struct line *line, struct trace *trace) {
    struct trace_reader *reader = line->reader;
    const bool hashes = line->fields & 1u << FIELD_HASH_IDS;
    const bool tokens = line->fields & 1u << FIELD_INPUT_TOK_IDS;
    const int64_t asked = reader->options.block_size;
    if (hashes == tokens)
        return trace_line_error(reader, "%s; a trace has one of them",
                                hashes ? "both hash_ids and input_tok_ids"
                                       : "neither hash_ids nor input_tok_ids");
    reader->format = hashes ? TRACE_HASHES : TRACE_TOKENS;
    trace->has_blocks = true;
    if (tokens) {
        trace->format = "tokens";
        trace->block_size = asked > 0 ? asked : TOKEN_BLOCK;
        return CLI_CONTINUE;
    }
    const bool qwen = line->fields & (1u << FIELD_CHAT_ID | 1u << FIELD_TURN);
    trace->format = qwen ? "Qwen-Bailian" : "Mooncake";
    trace->block_size = qwen ? QWEN_BLOCK : MOONCAKE_BLOCK;
    if (asked > 0 && asked != trace->block_size)
        return cli_error("replay",
                         "%s: the blocks of a %s trace have %" PRId64
                         " tokens; leave --block_size out",
                         reader->path, trace->format, trace->block_size);
    return CLI_CONTINUE;
}

static int require(const struct line *line, enum field field) {
    return line->fields & 1u << field
               ? CLI_CONTINUE
               : trace_line_error(line->reader, "%s is missing", field_names[field]);
}

static int add_hashes(struct line *line, struct trace *trace) {
    struct trace_reader *reader = line->reader;
    static const enum field fields[] = {FIELD_HASH_IDS, FIELD_INPUT_LENGTH, FIELD_OUTPUT_LENGTH};
    for (int i = 0; i < 3; i++) {
        if (require(line, fields[i]) != CLI_CONTINUE)
            return CLI_USAGE;
    }
    const int64_t expected = trace_blocks_of(line->input_length, trace->block_size);
    if (line->count != expected)
        return trace_line_error(reader,
                                "input_length %" PRId64 " makes %" PRId64 " blocks of %" PRId64
                                " tokens, but hash_ids has %" PRId64,
                                line->input_length, expected, trace->block_size, line->count);
    if (trace_add_request(trace, line->input_length, line->output_length) != 0)
        return trace_no_memory(reader);
    for (int64_t i = 0; i < line->count; i++) {
        const int32_t id =
            id_table_number(&reader->table, (uint64_t)reader->numbers[i], NULL, NULL);
        if (id < 0 || trace_add_block(trace, id) != 0)
            return trace_no_memory(reader);
    }
    return CLI_CONTINUE;
}

/* The block to be numbered, as the last of those known; see store_block. */
struct candidate {
    const struct trace_reader *reader;
    const struct trace_token_block *block;
};

static bool same_block(const void *user, int32_t id) {
    const struct candidate *candidate = user;
    const struct trace_token_block *a = candidate->block;
    const struct trace_token_block *b = &candidate->reader->token_blocks[id];
    return a->parent == b->parent && a->num_tokens == b->num_tokens &&
           memcmp(candidate->reader->tokens + a->first_token,
                  candidate->reader->tokens + b->first_token,
                  (size_t)a->num_tokens * sizeof(int32_t)) == 0;
}

/* Appends tokens [first, first + num_tokens) of the line to those known. */
static int store_tokens(struct trace_reader *reader, int64_t first, int32_t num_tokens) {
    if (reader->num_tokens + num_tokens > reader->max_tokens) {
        const int64_t room = (reader->num_tokens + num_tokens) * 2;
        int32_t *tokens = realloc(reader->tokens, (size_t)room * sizeof(*tokens));
        if (tokens == NULL)
            return -1;
        reader->tokens = tokens;
        reader->max_tokens = room;
    }
    for (int32_t i = 0; i < num_tokens; i++)
        reader->tokens[reader->num_tokens + i] = (int32_t)reader->numbers[first + i];
    return 0;
}

/* The number of the block of these tokens after parent. Its tokens stay stored if it is new. */
static int32_t number_block(struct trace_reader *reader, int32_t parent, int64_t first,
                            int32_t num_tokens) {
    const struct trace_token_block block = {parent, num_tokens, reader->num_tokens};
    const struct candidate candidate = {reader, &block};
    const int64_t num_known = reader->table.num_ids;
    uint64_t hash = cli_mix(id_table_seed() ^ (uint64_t)(int64_t)parent);
    if (store_tokens(reader, first, num_tokens) != 0)
        return -1;
    if (num_known == reader->max_token_blocks) {
        const int64_t room = num_known > 0 ? num_known * 2 : 1024;
        struct trace_token_block *blocks =
            realloc(reader->token_blocks, (size_t)room * sizeof(*blocks));
        if (blocks == NULL)
            return -1;
        reader->token_blocks = blocks;
        reader->max_token_blocks = room;
    }
    for (int32_t i = 0; i < num_tokens; i++)
        hash = cli_mix(hash ^ (uint64_t)reader->numbers[first + i]);
    const int32_t id = id_table_number(&reader->table, hash, same_block, &candidate);
    if (id == num_known) {
        reader->token_blocks[id] = block;
        reader->num_tokens += num_tokens;
    }
    return id;
}

static int add_tokens(struct line *line, struct trace *trace) {
    struct trace_reader *reader = line->reader;
    if (require(line, FIELD_INPUT_TOK_IDS) != CLI_CONTINUE ||
        require(line, FIELD_OUTPUT_TOKS) != CLI_CONTINUE)
        return CLI_USAGE;
    if (line->count > TRACE_MAX_LENGTH ||
        trace_add_request(trace, line->count, line->output_length) != 0)
        return trace_no_memory(reader);
    int32_t parent = -1;
    for (int64_t i = 0; i < line->count; i += trace->block_size) {
        const int64_t rest = line->count - i;
        parent = number_block(reader, parent, i,
                              (int32_t)(rest < trace->block_size ? rest : trace->block_size));
        if (parent < 0 || trace_add_block(trace, parent) != 0)
            return trace_no_memory(reader);
    }
    return CLI_CONTINUE;
}

int trace_read_json_line(struct trace_reader *reader, struct trace *trace, const char *begin,
                         const char *end) {
    struct line line = {.reader = reader, .at = begin, .end = end};
    int status = read_object(&line);
    if (status == CLI_CONTINUE && reader->format == TRACE_UNKNOWN)
        status = detect(&line, trace);
    if (status != CLI_CONTINUE)
        return status;
    return reader->format == TRACE_HASHES ? add_hashes(&line, trace) : add_tokens(&line, trace);
}

void trace_reader_free(struct trace_reader *reader) {
    id_table_free(&reader->table);
    free(reader->numbers);
    free(reader->token_blocks);
    free(reader->tokens);
}
