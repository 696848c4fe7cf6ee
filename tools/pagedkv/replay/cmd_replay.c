/* SPDX-License-Identifier: MIT
 *
 * pagedkv replay: reads or makes a trace, replays it for each policy and capacity, and reports. The
 * readers, the models and the reports are in the files beside this one.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "replay/data.h"
#include "replay/report.h"
#include "replay/trace.h"

enum {
    MAX_CAPACITIES = 64,
    MAX_POLICIES = 16,
    MAX_ROW_BYTES = 1 << 20,
    MAX_BLOCK_SIZE = PKV_MAX_BLOCK_SIZE,
    DATA_CAPACITY = 2000,
    DATA_ROW_BYTES = 8
};

struct asked {
    int64_t model; /* enum replay_model */
    const char *policies;
    const char *capacities;
    const char *plot;
    struct trace_options trace;
    int64_t shared_prompt_tokens;
    int64_t row_bytes; /* 0: not given */
    int64_t seed;      /* -1: not given */
    int data;
    int synthetic;
    int json;
    const char *path; /* NULL: synthetic */
};

struct lists {
    int num_policies;
    int32_t policies[MAX_POLICIES];
    int num_capacities;
    int64_t capacities[MAX_CAPACITIES]; /* 0: unlimited */
};

/* Cuts the next entry off a list between commas; NULL after the last. One that is longer than any
 * that means something ends in dots, which mean nothing either. */
static const char *next_entry(const char **list, char entry[32]) {
    if (*list == NULL)
        return NULL;
    const size_t length = strcspn(*list, ",");
    const size_t kept = length < 31 ? length : 31;
    memcpy(entry, *list, kept);
    entry[kept] = '\0';
    if (kept < length)
        memcpy(entry + kept - 3, "...", 3);
    *list = (*list)[length] == ',' ? *list + length + 1 : NULL;
    return entry;
}

static int read_policies(const char *list, struct lists *lists) {
    char entry[32];
    while (next_entry(&list, entry)) {
        int32_t policy = 0;
        while (replay_policies[policy] && strcasecmp(replay_policies[policy], entry) != 0)
            policy++;
        if (replay_policies[policy] == NULL)
            return cli_error("replay", "there is no policy '%s'; --policy takes lru, fifo and lfu",
                             entry);
        if (lists->num_policies == MAX_POLICIES)
            return cli_error("replay", "more than %d policies; name fewer", MAX_POLICIES);
        lists->policies[lists->num_policies++] = policy;
    }
    return CLI_CONTINUE;
}

static int read_capacities(const char *list, struct lists *lists) {
    char entry[32];
    while (next_entry(&list, entry)) {
        int64_t capacity = 0;
        if (strcasecmp(entry, "unlimited") != 0 &&
            cli_parse_int(entry, 1, TRACE_MAX_BLOCKS, &capacity) != 0)
            return cli_error("replay",
                             "'%s' is no capacity; --capacity takes numbers of blocks from 1 to "
                             "%lld, or 'unlimited'",
                             entry, (long long)TRACE_MAX_BLOCKS);
        if (lists->num_capacities == MAX_CAPACITIES)
            return cli_error("replay", "more than %d capacities; name fewer", MAX_CAPACITIES);
        lists->capacities[lists->num_capacities++] = capacity;
    }
    return CLI_CONTINUE;
}

/* For a curve: 1, 2, 5, 10, 20, 50 ... from a thousandth of what the trace needs to all of it. */
static void spread_capacities(const struct trace *trace, struct lists *lists) {
    static const int64_t steps[] = {1, 2, 5};
    int64_t power = 1, capacity = 0;
    while (power * 10 <= trace->num_prefixes / 1000)
        power *= 10;
    for (int i = 0; capacity < trace->num_prefixes && i < MAX_CAPACITIES - 1; i++) {
        capacity = steps[i % 3] * power;
        power *= i % 3 == 2 ? 10 : 1;
        lists->capacities[lists->num_capacities++] = capacity;
    }
    lists->capacities[lists->num_capacities++] = 0;
}

/* What only makes sense together. */
static int check_options(const struct asked *asked) {
    if (asked->seed >= 0 && !asked->synthetic)
        return cli_error("replay", "--seed is for --synthetic; leave it out");
    if (asked->row_bytes > 0 && !asked->data)
        return cli_error("replay", "--row_bytes is for --data; leave it out");
    if (asked->model == REPLAY_MODEL_IDS && asked->data)
        return cli_error("replay", "--model ids has no blocks to hold data; use --model pool");
    if (asked->model == REPLAY_MODEL_IDS && asked->shared_prompt_tokens > 0)
        return cli_error("replay",
                         "--shared_prompt_tokens counts leading hits; use it with --model pool");
    return CLI_CONTINUE;
}

static int check_trace(const struct asked *asked, const struct trace *trace) {
    if (trace->has_blocks)
        return CLI_CONTINUE;
    const char *option = asked->model == REPLAY_MODEL_IDS ? "--model ids"
                         : asked->data                    ? "--data"
                         : asked->plot                    ? "--plot"
                         : asked->shared_prompt_tokens    ? "--shared_prompt_tokens"
                                                          : NULL;
    if (option)
        return cli_error("replay",
                         "%s has lengths only, and %s needs to know its blocks; leave it "
                         "out",
                         asked->path, option);
    return CLI_CONTINUE;
}

/* Which policies and capacities, as asked for, or the defaults of this trace. */
static int choose_runs(const struct asked *asked, const struct trace *trace, struct lists *lists) {
    const char *policies = asked->policies, *capacities = asked->capacities;
    if (policies == NULL)
        policies = asked->data || !trace->has_blocks ? "lru" : "lru,fifo,lfu";
    int status = read_policies(policies, lists);
    if (status != CLI_CONTINUE)
        return status;
    if (capacities == NULL && asked->data) {
        lists->capacities[lists->num_capacities++] = DATA_CAPACITY;
        return CLI_CONTINUE;
    }
    if (capacities == NULL && asked->plot) {
        spread_capacities(trace, lists);
        return CLI_CONTINUE;
    }
    if (capacities == NULL)
        capacities = trace->has_blocks ? "1000,10000,unlimited" : "unlimited";
    status = read_capacities(capacities, lists);
    for (int i = 0; status == CLI_CONTINUE && asked->data && i < lists->num_capacities; i++) {
        if (lists->capacities[i] == 0)
            status = cli_error("replay", "--data needs a cache of a finite --capacity");
    }
    return status;
}

static int replay_one(const struct asked *asked, const struct trace *trace, struct replay_run *run,
                      struct replay_result *result) {
    if (asked->model == REPLAY_MODEL_IDS)
        return replay_ids(trace, run, result);
    if (asked->data) {
        run->data = replay_data_create(trace, run->capacity,
                                       asked->row_bytes > 0 ? asked->row_bytes : DATA_ROW_BYTES);
        if (run->data == NULL)
            return CLI_USAGE;
    }
    const int status = replay_pool(trace, run, result);
    replay_data_destroy(run->data);
    run->data = NULL;
    return status;
}

static int replay_all(const struct asked *asked, const struct lists *lists,
                      struct replay_report *report) {
    static struct replay_run runs[MAX_POLICIES * MAX_CAPACITIES];
    static struct replay_result results[MAX_POLICIES * MAX_CAPACITIES];
    struct replay_progress progress;
    int status = CLI_CONTINUE;
    replay_progress_begin(&progress, lists->num_policies * lists->num_capacities *
                                         report->trace->num_requests);
    for (int p = 0; p < lists->num_policies; p++) {
        for (int c = 0; status == CLI_CONTINUE && c < lists->num_capacities; c++) {
            struct replay_run *run = &runs[report->num_runs];
            *run = (struct replay_run){.eviction = lists->policies[p],
                                       .capacity = lists->capacities[c],
                                       .shared_prompt_tokens = asked->shared_prompt_tokens,
                                       .progress = &progress};
            status = replay_one(asked, report->trace, run, &results[report->num_runs++]);
        }
    }
    replay_progress_end(&progress);
    report->runs = runs;
    report->results = results;
    return status;
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int replay_trace(const struct asked *asked, struct trace *trace) {
    struct lists lists = {0};
    struct replay_report report = {
        .name = asked->path ? name_of(asked->path) : "made-up conversations",
        .trace = trace,
        .model = (enum replay_model)asked->model,
        .row_bytes = !asked->data           ? 0
                     : asked->row_bytes > 0 ? asked->row_bytes
                                            : DATA_ROW_BYTES,
        .shared_prompt_tokens = asked->shared_prompt_tokens,
    };
    const double begin = replay_now();
    int status =
        asked->path ? trace_read(trace, asked->path, &asked->trace)
                    : trace_make(trace, asked->seed < 0 ? 1 : (uint64_t)asked->seed, &asked->trace);
    if (asked->path)
        report.read_seconds = replay_now() - begin;
    if (status == CLI_CONTINUE)
        status = check_trace(asked, trace);
    if (status == CLI_CONTINUE)
        status = choose_runs(asked, trace, &lists);
    if (status == CLI_CONTINUE)
        status = replay_all(asked, &lists, &report);
    if (status == CLI_CONTINUE && asked->plot)
        status = replay_plot(&report, asked->plot);
    if (status == CLI_CONTINUE && asked->json)
        status = replay_report_json(&report);
    else if (status == CLI_CONTINUE)
        replay_report_text(&report);
    return status == CLI_CONTINUE ? CLI_OK : status;
}

int cmd_replay(int argc, char **argv) {
    struct asked asked = {.model = REPLAY_MODEL_POOL, .seed = -1};
    const struct cli_option options[] = {
        {"policy", CLI_TEXT, &asked.policies, 0, 0, NULL, "LIST",
         "which block goes first: lru, fifo, lfu, or several of them (all)"},
        {"capacity", CLI_TEXT, &asked.capacities, 0, 0, NULL, "LIST",
         "blocks of the cache, 'unlimited' among them (1000,10000,unlimited)"},
        {"model", CLI_CHOICE, &asked.model, 0, 0, replay_model_names, "pool|ids",
         "the block manager, or one plain cache over block ids (pool)"},
        {"block_size", CLI_INT, &asked.trace.block_size, 1, MAX_BLOCK_SIZE, NULL, "N",
         "tokens of a block, where the trace leaves it open (16; synthetic: 512)"},
        {"limit", CLI_INT, &asked.trace.limit, 1, INT64_MAX, NULL, "N",
         "requests to replay (all; synthetic: 10000)"},
        {"shared_prompt_tokens", CLI_INT, &asked.shared_prompt_tokens, 1, TRACE_MAX_LENGTH, NULL,
         "N", "count a hit on the first block as so many tokens at least"},
        {"data", CLI_FLAG, &asked.data, 0, 0, NULL, NULL,
         "write real rows, read hits back, compare (capacity 2000, policy lru)"},
        {"row_bytes", CLI_INT, &asked.row_bytes, 1, MAX_ROW_BYTES, NULL, "N",
         "with --data: bytes of a token (8)"},
        {"plot", CLI_TEXT, &asked.plot, 0, 0, NULL, "FILE.svg",
         "draw hit rate against capacity; without --capacity over a wide range"},
        {"synthetic", CLI_FLAG, &asked.synthetic, 0, 0, NULL, NULL,
         "replay a made-up trace of conversations instead of a file"},
        {"seed", CLI_INT, &asked.seed, 0, INT64_MAX, NULL, "N", "with --synthetic: its seed (1)"},
        {"json", CLI_FLAG, &asked.json, 0, 0, NULL, NULL,
         "print one JSON object for each policy and capacity"},
        {.name = NULL}};
    const struct cli_syntax syntax = {
        "replay",
        "replay TRACE | --synthetic [--option ...]",
        "Replays a trace of requests and tells how much of it a cache would have found.",
        options,
        NULL,
        NULL};
    int first = 0;
    int status = cli_parse(&syntax, argc, argv, &first);
    if (status == CLI_CONTINUE)
        status = check_options(&asked);
    if (status != CLI_CONTINUE)
        return status;
    if (argc - first != !asked.synthetic)
        return cli_error("replay", "it takes one trace file, or --synthetic and none; see 'pagedkv "
                                   "replay --help'");
    asked.path = asked.synthetic ? NULL : argv[first];
    struct trace trace = {0};
    status = replay_trace(&asked, &trace);
    trace_free(&trace);
    return status;
}
