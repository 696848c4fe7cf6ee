/* SPDX-License-Identifier: MIT
 *
 * The lines of the block manager: single blocks, prefix lookup, and the batch step of 256 decoding
 * sequences in pools from a thousand to ten million blocks. It moves no keys or values, so there is
 * no ceiling of bytes to hold it against: what is printed is time for one call.
 */
#include "bench_ops.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <pagedkv/batch.h>

#include "bench_clock.h"
#include "bench_memory.h"
#include "cli_random.h"
#include "bench_rounds.h"
#include "bench_threads.h"
#include "cli.h"

enum {
    SAMPLES = 63,
    BLOCK_SIZE = 16,
    PAIRS_PER_SAMPLE = 100000,
    LOOKUP_BLOCKS = 100,
    LOOKUPS_PER_SAMPLE = 100,
    NUM_SEQS = 256,
    SEQ_BLOCKS = 3, /* so that 256 sequences fit into the smallest pool */
    FILL_BLOCKS = 500,
    WARM_UP_STEPS = 200,
    STEPS_PER_SAMPLE = 32
};

/* Left to the system and everybody else. */
#define RESERVED_BYTES (INT64_C(1) << 30)

struct manager {
    struct pkv_pool *pool;
    struct pkv_batch *batch;
    struct bench_memory memory;
    struct pkv_seq seqs[NUM_SEQS];
    int64_t lengths[NUM_SEQS];
    struct cli_random random;
    double step_ns[SAMPLES];     /* begin, 256 appends, commit */
    double computed_ns[SAMPLES]; /* and mark_computed */
    struct pkv_error error;
};

/* In memory with the wanted pages, as an engine that cares would do it. */
static int open_manager(struct manager *manager, int64_t num_blocks, const struct bench_team *team,
                        const struct bench_report *report) {
    const struct pkv_pool_options options = {.num_blocks = num_blocks,
                                             .block_size = BLOCK_SIZE,
                                             .max_seqs = NUM_SEQS + 1,
                                             .hash_seed = 1};
    const size_t bytes = pkv_pool_memory_size(&options);
    *manager =
        (struct manager){.random = {num_blocks}, .error.struct_size = sizeof(struct pkv_error)};
    if (bench_memory_map(&manager->memory, (int64_t)bytes, report->pages, &team->executor) != 0)
        return cli_error("bench", "the system gave no memory; free some");
    if (pkv_pool_create_in(&manager->pool, manager->memory.data, bytes, &options,
                           &manager->error) != PKV_STATUS_OK ||
        pkv_batch_create(&manager->batch, manager->pool, NULL, &manager->error) != PKV_STATUS_OK)
        return bench_failed("manager", &manager->error);
    return CLI_OK;
}

static void close_manager(struct manager *manager) {
    pkv_batch_destroy(manager->batch);
    pkv_pool_destroy(manager->pool);
    bench_memory_unmap(&manager->memory);
}

static void print_line(const struct bench_report *report, const struct bench_team *team,
                       const char *text, struct bench_spread ns, const char *note) {
    struct bench_line line = {
        .op = "manager", .level = pkv_context_cpu_level(team->context), .num_threads = 1, .ns = ns};
    (void)snprintf(line.text, sizeof(line.text), "%s", text);
    (void)snprintf(line.note, sizeof(line.note), "%s", note);
    bench_report_line(report, &line);
}

static int measure_pairs(struct manager *manager, const struct bench_team *team,
                         const struct bench_report *report) {
    double ns[SAMPLES];
    char note[BENCH_NOTE_TEXT];
    for (int sample = 0; sample < SAMPLES; sample++) {
        const int64_t begin = bench_now_ns();
        for (int i = 0; i < PAIRS_PER_SAMPLE; i++) {
            struct pkv_block block;
            if (pkv_block_allocate(manager->pool, 1, &block, &manager->error) != PKV_STATUS_OK ||
                pkv_block_release(manager->pool, 1, &block, &manager->error) != PKV_STATUS_OK)
                return bench_failed("allocate and free", &manager->error);
        }
        ns[sample] = (double)(bench_now_ns() - begin) / PAIRS_PER_SAMPLE;
    }
    const struct bench_spread spread = bench_spread_of(ns, SAMPLES);
    (void)snprintf(note, sizeof(note), "%.0f million pairs a second", 1e3 / spread.median);
    print_line(report, team, "allocate and free one block", spread, note);
    return CLI_OK;
}

/* One sequence with random tokens, computed and given back: its blocks are cached. */
static int cache_tokens(struct manager *manager, int32_t *tokens, int64_t num_tokens) {
    struct pkv_seq seq;
    struct pkv_block_copy copies[PKV_MAX_GROUPS];
    for (int64_t i = 0; i < num_tokens; i++)
        tokens[i] = (int32_t)cli_random_below(&manager->random, 1 << 17);
    const bool failed =
        pkv_seq_create(manager->pool, &seq, NULL, &manager->error) != PKV_STATUS_OK ||
        pkv_seq_append(manager->pool, seq, tokens, num_tokens, copies, &manager->error) !=
            PKV_STATUS_OK ||
        pkv_seq_mark_computed(manager->pool, seq, num_tokens, &manager->error) != PKV_STATUS_OK ||
        pkv_seq_free(manager->pool, seq, &manager->error) != PKV_STATUS_OK;
    return failed ? bench_failed("fill", &manager->error) : CLI_OK;
}

static int measure_lookup(struct manager *manager, const struct bench_team *team,
                          const struct bench_report *report) {
    int32_t tokens[LOOKUP_BLOCKS * BLOCK_SIZE];
    double lookup_ns[SAMPLES], match_ns[SAMPLES];
    const int status = cache_tokens(manager, tokens, LOOKUP_BLOCKS * BLOCK_SIZE);
    if (status != CLI_OK)
        return status;
    for (int sample = 0; sample < SAMPLES; sample++) {
        int64_t hit = 0;
        int64_t begin = bench_now_ns();
        for (int i = 0; i < LOOKUPS_PER_SAMPLE; i++) {
            if (pkv_prefix_lookup(manager->pool, NULL, tokens, LOOKUP_BLOCKS * BLOCK_SIZE, &hit,
                                  &manager->error) != PKV_STATUS_OK ||
                hit != LOOKUP_BLOCKS * BLOCK_SIZE)
                return bench_failed("lookup", &manager->error);
        }
        lookup_ns[sample] = (double)(bench_now_ns() - begin) / LOOKUPS_PER_SAMPLE;
        begin = bench_now_ns();
        for (int i = 0; i < LOOKUPS_PER_SAMPLE; i++) {
            struct pkv_seq seq;
            if (pkv_seq_create(manager->pool, &seq, NULL, &manager->error) != PKV_STATUS_OK ||
                pkv_seq_match(manager->pool, seq, tokens, LOOKUP_BLOCKS * BLOCK_SIZE, &hit,
                              &manager->error) != PKV_STATUS_OK ||
                hit != LOOKUP_BLOCKS * BLOCK_SIZE ||
                pkv_seq_free(manager->pool, seq, &manager->error) != PKV_STATUS_OK)
                return bench_failed("match", &manager->error);
        }
        match_ns[sample] = (double)(bench_now_ns() - begin) / LOOKUPS_PER_SAMPLE;
    }
    print_line(report, team, "prefix lookup, 100 blocks of 16 tokens",
               bench_spread_of(lookup_ns, SAMPLES), "");
    print_line(report, team, "the same taken and given back", bench_spread_of(match_ns, SAMPLES),
               "sequence made, matched and freed");
    return CLI_OK;
}

/* A sequence at its end is replaced by a new one, with a prompt of the given length. */
static int restart(struct manager *manager, int i, int64_t length) {
    int32_t tokens[SEQ_BLOCKS * BLOCK_SIZE];
    struct pkv_block_copy copies[PKV_MAX_GROUPS];
    struct pkv_seq *seq = &manager->seqs[i];
    for (int64_t t = 0; t < length; t++)
        tokens[t] = (int32_t)cli_random_below(&manager->random, 1 << 17);
    const bool failed =
        (seq->generation != 0 &&
         pkv_seq_free(manager->pool, *seq, &manager->error) != PKV_STATUS_OK) ||
        pkv_seq_create(manager->pool, seq, NULL, &manager->error) != PKV_STATUS_OK ||
        pkv_seq_append(manager->pool, *seq, tokens, length, copies, &manager->error) !=
            PKV_STATUS_OK ||
        pkv_seq_mark_computed(manager->pool, *seq, length, &manager->error) != PKV_STATUS_OK;
    manager->lengths[i] = length;
    return failed ? bench_failed("decode", &manager->error) : CLI_OK;
}

/* One step of 256 sequences with a new token each; adds its times. */
static int decode_step(struct manager *manager, double *step_ns, double *computed_ns) {
    struct pkv_batch_tensors tensors = {.struct_size = sizeof(tensors)};
    int status = CLI_OK;
    for (int i = 0; status == CLI_OK && i < NUM_SEQS; i++) {
        if (manager->lengths[i] == SEQ_BLOCKS * BLOCK_SIZE)
            status = restart(manager, i, 1 + i % BLOCK_SIZE);
    }
    if (status != CLI_OK)
        return status;
    const int64_t begin = bench_now_ns();
    bool failed = pkv_batch_begin(manager->batch, &manager->error) != PKV_STATUS_OK;
    for (int i = 0; !failed && i < NUM_SEQS; i++) {
        const int32_t token = (int32_t)(manager->lengths[i]++ * NUM_SEQS + i);
        failed = pkv_batch_append(manager->batch, manager->seqs[i], &token, 1, &manager->error) !=
                 PKV_STATUS_OK;
    }
    failed = failed || pkv_batch_commit(manager->batch, &manager->error) != PKV_STATUS_OK ||
             pkv_batch_tensors_get(manager->batch, 0, &tensors, &manager->error) != PKV_STATUS_OK;
    const int64_t committed = bench_now_ns();
    failed = failed || pkv_batch_mark_computed(manager->batch, &manager->error) != PKV_STATUS_OK;
    const int64_t end = bench_now_ns();
    if (failed)
        return bench_failed("decode", &manager->error);
    *step_ns += (double)(committed - begin);
    *computed_ns += (double)(end - begin);
    return CLI_OK;
}

/* Every block holds something cached, so that each new block evicts one. */
static int measure_decode(struct manager *manager, int64_t num_blocks) {
    static int32_t tokens[FILL_BLOCKS * BLOCK_SIZE];
    int status = CLI_OK;
    for (int64_t filled = 0; status == CLI_OK && filled < num_blocks; filled += FILL_BLOCKS)
        status = cache_tokens(manager, tokens, FILL_BLOCKS * BLOCK_SIZE);
    for (int i = 0; status == CLI_OK && i < NUM_SEQS; i++)
        status = restart(manager, i, 1 + i % (SEQ_BLOCKS * BLOCK_SIZE - 1));
    double ignored = 0;
    for (int i = 0; status == CLI_OK && i < WARM_UP_STEPS; i++)
        status = decode_step(manager, &ignored, &ignored);
    for (int sample = 0; status == CLI_OK && sample < SAMPLES; sample++) {
        manager->step_ns[sample] = manager->computed_ns[sample] = 0;
        for (int i = 0; status == CLI_OK && i < STEPS_PER_SAMPLE; i++)
            status = decode_step(manager, &manager->step_ns[sample], &manager->computed_ns[sample]);
        manager->step_ns[sample] /= STEPS_PER_SAMPLE;
        manager->computed_ns[sample] /= STEPS_PER_SAMPLE;
    }
    return status;
}

static int measure_curve(const struct bench_team *team, const struct bench_report *report) {
    static const int64_t sizes[] = {1000, 10000, 100000, 1000000, 10000000};
    double first = 0;
    int status = CLI_OK;
    for (size_t i = 0; status == CLI_OK && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const struct pkv_pool_options options = {.num_blocks = sizes[i], .block_size = BLOCK_SIZE};
        const int64_t available = bench_memory_available();
        if (available >= 0 &&
            (int64_t)pkv_pool_memory_size(&options) > available - RESERVED_BYTES) {
            (void)cli_error("bench", "no memory for a pool of %" PRId64 " blocks; left out",
                            sizes[i]);
            continue;
        }
        static struct manager manager;
        status = open_manager(&manager, sizes[i], team, report);
        if (status == CLI_OK)
            status = measure_decode(&manager, sizes[i]);
        if (status == CLI_OK) {
            char text[BENCH_CASE_TEXT], note[BENCH_NOTE_TEXT];
            const struct bench_spread step = bench_spread_of(manager.step_ns, SAMPLES);
            const struct bench_spread computed = bench_spread_of(manager.computed_ns, SAMPLES);
            first = first > 0 ? first : computed.median;
            (void)snprintf(text, sizeof(text), "step of 256, %" PRId64 " blocks", sizes[i]);
            print_line(report, team, text, step, "");
            (void)snprintf(text, sizeof(text), "the same, marked computed");
            (void)snprintf(note, sizeof(note), "%.2f times that of %" PRId64 " blocks",
                           computed.median / first, sizes[0]);
            print_line(report, team, text, computed, note);
        }
        close_manager(&manager);
    }
    return status;
}

int bench_manager(struct bench_stage *stage, const struct bench_team *team,
                  const struct bench_report *report) {
    (void)stage;
    if (team->num_threads > 1)
        return CLI_OK;
    static struct manager manager;
    int status = open_manager(&manager, 10000, team, report);
    if (status == CLI_OK)
        status = measure_pairs(&manager, team, report);
    if (status == CLI_OK)
        status = measure_lookup(&manager, team, report);
    close_manager(&manager);
    return status == CLI_OK ? measure_curve(team, report) : status;
}
