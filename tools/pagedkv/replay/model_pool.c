/* SPDX-License-Identifier: MIT
 *
 * The model "pool": the library's own pool and prefix index. A block of the trace is a block of one
 * token, whose token is its id, so that the last, partial block is indexed as the others are. Of a
 * trace of lengths the blocks have their real size, and nothing is indexed.
 *
 * A request larger than the pool is refused before anything is looked up or changed, as an engine
 * would refuse it.
 */
#include "replay/model.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "cli.h"
#include "replay/data.h"

/* What a sequence of a pool may have. */
#define MAX_SEQ_TOKENS (INT64_C(1) << 30)

double replay_now(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

void replay_count(const struct trace *trace, const struct replay_run *run,
                  const struct trace_request *request, int64_t num_hits,
                  struct replay_result *result) {
    if (num_hits > 0) {
        int64_t tokens = num_hits * trace->block_size;
        if (tokens < run->shared_prompt_tokens)
            tokens = run->shared_prompt_tokens;
        result->num_hit_tokens += smaller(tokens, request->input_length);
    }
    result->num_requests++;
    result->num_tokens += request->input_length;
    result->num_blocks += request->num_blocks;
    result->num_hit_blocks += num_hits;
    result->num_slots += request->num_blocks * trace->block_size;
    result->num_used_slots += request->input_length;
}

void replay_count_refused(const struct trace_request *request, struct replay_result *result) {
    result->num_requests++;
    result->num_refused++;
    result->num_tokens += request->input_length;
    result->num_blocks += request->num_blocks;
}

struct replay {
    const struct trace *trace;
    const struct replay_run *run;
    struct replay_result *result;
    struct pkv_pool *pool;
    int64_t num_blocks; /* of the pool */
    struct pkv_seq seq; /* of the request before, with its blocks; zeroes: none */
    int64_t num_held;   /* these */
    struct pkv_error error;
};

static int failed(const struct replay *replay) {
    return cli_library_error("replay", "the pool", &replay->error);
}

static int end_request(struct replay *replay) {
    if (replay->seq.generation == 0)
        return CLI_CONTINUE;
    if (pkv_seq_free(replay->pool, replay->seq, &replay->error) != PKV_STATUS_OK)
        return failed(replay);
    replay->seq = (struct pkv_seq){0};
    replay->result->num_operations += replay->num_held;
    return CLI_CONTINUE;
}

/* What every request leaves behind is seen here: blocks in use, and blocks cached. */
static int note_peak(struct replay *replay, struct pkv_pool_metrics *metrics) {
    *metrics = (struct pkv_pool_metrics){.struct_size = sizeof(*metrics)};
    if (pkv_pool_metrics_get(replay->pool, metrics, &replay->error) != PKV_STATUS_OK)
        return failed(replay);
    const int64_t occupied = metrics->num_used_blocks + metrics->num_cached_blocks;
    if (occupied > replay->result->peak_blocks)
        replay->result->peak_blocks = occupied;
    replay->result->num_evictions = metrics->num_evicted_blocks;
    return CLI_CONTINUE;
}

static int move_data(struct replay *replay, const struct trace_request *request, int64_t num_hits) {
    struct pkv_tensor block_table;
    if (replay->run->data == NULL)
        return CLI_CONTINUE;
    if (pkv_seq_block_table(replay->pool, replay->seq, 0, &block_table, &replay->error) !=
        PKV_STATUS_OK)
        return failed(replay);
    return replay_data_move(replay->run->data, request, num_hits, &block_table, replay->result);
}

static int replay_blocks(struct replay *replay, const struct trace_request *request) {
    const int32_t *ids = replay->trace->ids + request->first_block;
    struct pkv_block_copy copy;
    struct pkv_pool_metrics metrics;
    int64_t num_hits;
    if (request->num_blocks > replay->num_blocks) {
        replay_count_refused(request, replay->result);
        return CLI_CONTINUE;
    }
    if (pkv_seq_create(replay->pool, &replay->seq, NULL, &replay->error) != PKV_STATUS_OK ||
        pkv_seq_match(replay->pool, replay->seq, ids, request->num_blocks, &num_hits,
                      &replay->error) != PKV_STATUS_OK ||
        pkv_seq_append(replay->pool, replay->seq, ids + num_hits, request->num_blocks - num_hits,
                       &copy, &replay->error) != PKV_STATUS_OK)
        return failed(replay);
    const int status = move_data(replay, request, num_hits);
    if (status != CLI_CONTINUE)
        return status;
    if (pkv_seq_mark_computed(replay->pool, replay->seq, request->num_blocks, &replay->error) !=
        PKV_STATUS_OK)
        return failed(replay);
    replay->num_held = request->num_blocks;
    replay->result->num_operations += request->num_blocks;
    replay_count(replay->trace, replay->run, request, num_hits, replay->result);
    return note_peak(replay, &metrics);
}

/* The prompt, then the answer; at the end the pool says how much of what it gave is in use. */
static int replay_lengths(struct replay *replay, const struct trace_request *request) {
    static const struct pkv_seq_options options = {.struct_size = sizeof(options),
                                                   .not_indexed = 1};
    const int64_t num_tokens = request->input_length + request->output_length;
    const int64_t num_blocks = trace_blocks_of(num_tokens, replay->trace->block_size);
    struct pkv_block_copy copy;
    struct pkv_pool_metrics metrics;
    if (num_blocks > replay->num_blocks || num_tokens > MAX_SEQ_TOKENS) {
        replay_count_refused(request, replay->result);
        return CLI_CONTINUE;
    }
    if (pkv_seq_create(replay->pool, &replay->seq, &options, &replay->error) != PKV_STATUS_OK ||
        pkv_seq_append(replay->pool, replay->seq, NULL, request->input_length, &copy,
                       &replay->error) != PKV_STATUS_OK ||
        pkv_seq_append(replay->pool, replay->seq, NULL, request->output_length, &copy,
                       &replay->error) != PKV_STATUS_OK)
        return failed(replay);
    const int status = note_peak(replay, &metrics);
    replay->num_held = num_blocks;
    replay->result->num_operations += num_blocks;
    replay->result->num_requests++;
    replay->result->num_tokens += request->input_length;
    replay->result->num_slots += metrics.num_table_slots;
    replay->result->num_used_slots += metrics.num_table_slots - metrics.num_waste_tokens;
    return status;
}

/* Blocks that no replay of this trace can do without: more of them change nothing. */
static int64_t blocks_needed(const struct trace *trace, int64_t *longest) {
    *longest = 1;
    if (trace->has_blocks) {
        if (trace->longest_request > 1)
            *longest = trace->longest_request;
        return trace->num_prefixes > 1 ? trace->num_prefixes : 1;
    }
    for (int64_t r = 0; r < trace->num_requests; r++) {
        const int64_t tokens = trace->requests[r].input_length + trace->requests[r].output_length;
        if (tokens > *longest)
            *longest = tokens < MAX_SEQ_TOKENS ? tokens : MAX_SEQ_TOKENS;
    }
    return trace_blocks_of(*longest, trace->block_size);
}

/* The pool's memory in huge pages where the system has them: a pool for a whole trace takes longer
 * to be mapped in small ones than to be used. Returns it for free(), NULL after printing why
 * not. */
static void *create_pool(struct replay *replay, const struct pkv_pool_options *options) {
    const size_t huge = (size_t)1 << 21;
    const size_t bytes = pkv_pool_memory_size(options);
    const size_t rounded = bytes / huge * huge + huge;
    void *memory = bytes > 0 && rounded > bytes ? aligned_alloc(huge, rounded) : NULL;
    if (memory == NULL) {
        (void)cli_error("replay", "no memory for a pool of %lld blocks; lower --capacity",
                        (long long)options->num_blocks);
        return NULL;
    }
    (void)madvise(memory, rounded, MADV_HUGEPAGE);
    if (pkv_pool_create_in(&replay->pool, memory, rounded, options, &replay->error) !=
        PKV_STATUS_OK) {
        (void)failed(replay);
        free(memory);
        return NULL;
    }
    return memory;
}

int replay_pool(const struct trace *trace, const struct replay_run *run,
                struct replay_result *result) {
    int64_t longest;
    const int64_t needed = blocks_needed(trace, &longest);
    struct replay replay = {
        .trace = trace,
        .run = run,
        .result = result,
        .num_blocks = run->capacity > 0 ? smaller(run->capacity, needed) : needed,
        .error.struct_size = sizeof(replay.error),
    };
    const struct pkv_pool_options options = {
        .struct_size = sizeof(options),
        .num_blocks = replay.num_blocks,
        .block_size = trace->has_blocks ? 1 : trace->block_size,
        .max_seqs = 1,
        .max_tokens_per_seq = longest,
        .index_mode = trace->has_blocks ? PKV_INDEX_FULL_BLOCKS : PKV_INDEX_OFF,
        .eviction = run->eviction,
        .hash_seed = 1,
    };
    *result = (struct replay_result){0};
    const double begin = replay_now();
    void *memory = create_pool(&replay, &options);
    if (memory == NULL)
        return CLI_USAGE;
    int status = CLI_CONTINUE;
    for (int64_t r = 0; status == CLI_CONTINUE && r < trace->num_requests; r++) {
        status = end_request(&replay);
        if (status == CLI_CONTINUE)
            status = trace->has_blocks ? replay_blocks(&replay, &trace->requests[r])
                                       : replay_lengths(&replay, &trace->requests[r]);
        replay_progress_add(run->progress);
    }
    if (status == CLI_CONTINUE)
        status = end_request(&replay);
    if (status == CLI_CONTINUE && pkv_pool_audit(replay.pool, NULL, &replay.error) != PKV_STATUS_OK)
        status = failed(&replay);
    pkv_pool_destroy(replay.pool);
    free(memory);
    result->seconds = replay_now() - begin;
    return status;
}
