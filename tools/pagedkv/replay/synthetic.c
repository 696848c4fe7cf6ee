/* SPDX-License-Identifier: MIT
 *
 * A synthetic trace: conversations of several turns, some of them alive at a time, each of which
 * begins with one of a few system prompts. A turn's prompt is all that was said before and a new
 * question. It resembles real traffic and claims no more.
 */
#include "replay/trace.h"

#include <stdlib.h>

#include "cli.h"
#include "cli_random.h"
#include "replay/id_table.h"

enum {
    REQUESTS = 10000, /* unless told */
    NUM_PROMPTS = 8,
    NUM_CHATS = 64, /* alive at the same time */
    MAX_LENGTH = 32768,
    MAX_PROMPT = 4096,
    MAX_QUESTION = 2048,
    MAX_ANSWER = 1024,
    LONELY = 3, /* of 10 requests that many are not answered by another turn */
    BLOCK_SIZE = 512
};

struct chat {
    int64_t length; /* tokens said so far; 0: a new one begins */
    int64_t num_full;
    int32_t *full; /* ids of its full blocks, [blocks of MAX_LENGTH] */
};

struct maker {
    struct trace *trace;
    struct cli_random random;
    int32_t num_ids;       /* given out; those of answers that nobody reads on never appear */
    struct id_table table; /* of those that appear */
    int32_t *memory;
    struct chat prompts[NUM_PROMPTS];
    struct chat chats[NUM_CHATS];
};

static int64_t random_below(struct maker *maker, int64_t bound) {
    return (int64_t)(cli_random_next(&maker->random) % (uint64_t)bound);
}

/* Short ones are more frequent: the smaller of two draws. */
static int64_t random_length(struct maker *maker, int64_t max) {
    const int64_t a = random_below(maker, max), b = random_below(maker, max);
    return 1 + (a < b ? a : b);
}

/* The chat becomes longer; blocks that become full get ids of their own. */
static void extend(struct maker *maker, struct chat *chat, int64_t num_tokens) {
    chat->length += num_tokens;
    while ((chat->num_full + 1) * maker->trace->block_size <= chat->length)
        chat->full[chat->num_full++] = maker->num_ids++;
}

static void begin_chat(struct maker *maker, struct chat *chat) {
    const struct chat *prompt = &maker->prompts[random_length(maker, NUM_PROMPTS) - 1];
    for (int64_t i = 0; i < prompt->num_full; i++)
        chat->full[i] = prompt->full[i];
    chat->num_full = prompt->num_full;
    chat->length = prompt->length;
}

static int add_block(struct maker *maker, int32_t id) {
    id = id_table_number(&maker->table, (uint64_t)id, NULL, NULL);
    return id < 0 ? -1 : trace_add_block(maker->trace, id);
}

static int add_turn(struct maker *maker, struct chat *chat) {
    struct trace *trace = maker->trace;
    const int64_t question = random_length(maker, MAX_QUESTION);
    const int64_t answer = random_length(maker, MAX_ANSWER);
    if (chat->length == 0 || chat->length + question + answer > MAX_LENGTH)
        begin_chat(maker, chat);
    extend(maker, chat, question);
    if (trace_add_request(trace, chat->length, answer) != 0)
        return -1;
    for (int64_t i = 0; i < chat->num_full; i++) {
        if (add_block(maker, chat->full[i]) != 0)
            return -1;
    }
    if (chat->length % trace->block_size != 0 && add_block(maker, maker->num_ids++) != 0)
        return -1;
    extend(maker, chat, answer);
    if (random_below(maker, 10) < LONELY)
        chat->length = 0;
    return 0;
}

int trace_make(struct trace *trace, uint64_t seed, const struct trace_options *options) {
    const int64_t num_requests = options->limit > 0 ? options->limit : REQUESTS;
    const int64_t block_size = options->block_size > 0 ? options->block_size : BLOCK_SIZE;
    const int64_t room = MAX_LENGTH / block_size + 1;
    struct maker maker = {.trace = trace, .random = {seed + UINT64_C(0x9e3779b97f4a7c15)}};
    *trace = (struct trace){.format = "synthetic", .block_size = block_size, .has_blocks = true};
    maker.memory = malloc((size_t)((NUM_PROMPTS + NUM_CHATS) * room) * sizeof(*maker.memory));
    int status = maker.memory ? 0 : -1;
    for (int i = 0; status == 0 && i < NUM_PROMPTS; i++) {
        maker.prompts[i].full = maker.memory + i * room;
        extend(&maker, &maker.prompts[i], random_length(&maker, MAX_PROMPT));
    }
    for (int i = 0; i < NUM_CHATS; i++)
        maker.chats[i].full = maker.memory + (NUM_PROMPTS + i) * room;
    for (int64_t i = 0; status == 0 && i < num_requests; i++) {
        /* Fewer ids than there are blocks and answers; both limits hold together. */
        status = maker.num_ids > INT32_MAX / 2
                     ? -1
                     : add_turn(&maker, &maker.chats[random_below(&maker, NUM_CHATS)]);
    }
    if (status == 0)
        status = trace_finish(trace);
    id_table_free(&maker.table);
    free(maker.memory);
    return status == 0 ? CLI_CONTINUE
                       : cli_error("replay", "no memory for a trace of %lld requests; use --limit",
                                   (long long)num_requests);
}
