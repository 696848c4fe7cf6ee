/* SPDX-License-Identifier: MIT
 *
 * The check of a step of attention: 256 sequences of mixed lengths, their block tables, lengths and
 * running totals, in the caches of the processor, as an engine has just written them. One thread.
 */
#include "bench_ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench_ceiling.h"
#include "bench_rounds.h"
#include "cli.h"

enum {
    NUM_SEQS = 256,
    MAX_TOKENS = 8192,
    CHUNK_TOKENS = 512, /* of every 64th sequence; the others decode */
    CHUNK_PERIOD = 64,
    ROUNDS = 63
};

struct step_job {
    struct bench_stage *stage;
    const struct bench_team *team;
    int64_t block_size;
    int64_t num_entries; /* of the table, that a run reads */
    int32_t *block_table;
    int32_t seq_lens[NUM_SEQS];
    int32_t query_start_loc[NUM_SEQS + 1];
    struct pkv_cache cache;
    struct pkv_step *step;
    struct pkv_step_indices indices;
    struct pkv_error error;
};

static int64_t num_blocks(const struct step_job *job) {
    return job->stage->num_blocks * BENCH_BLOCK_SIZE / job->block_size;
}

static int create(struct step_job *job) {
    const int64_t table[] = {NUM_SEQS, MAX_TOKENS / job->block_size};
    const int64_t totals = NUM_SEQS + 1;
    const struct pkv_step_options options = {.struct_size = sizeof(options), .max_seqs = NUM_SEQS};
    job->block_table = malloc((size_t)(table[0] * table[1]) * sizeof(job->block_table[0]));
    if (job->block_table == NULL) {
        job->error.status = PKV_STATUS_OUT_OF_MEMORY;
        return -1;
    }
    for (int64_t i = 0; i < table[0] * table[1]; i++)
        job->block_table[i] = (int32_t)cli_random_below(&job->stage->random, num_blocks(job));
    for (int64_t seq = 0; seq < NUM_SEQS; seq++) {
        const int64_t query_len = seq % CHUNK_PERIOD == 0 ? CHUNK_TOKENS : 1;
        const int64_t length =
            query_len + cli_random_below(&job->stage->random, MAX_TOKENS - query_len + 1);
        job->seq_lens[seq] = (int32_t)length;
        job->query_start_loc[seq + 1] = job->query_start_loc[seq] + (int32_t)query_len;
        job->num_entries += (length + job->block_size - 1) / job->block_size;
    }
    job->indices = (struct pkv_step_indices){
        .struct_size = sizeof(job->indices),
        .block_table = pkv_tensor_make(job->block_table, PKV_DTYPE_I32, 2, table),
        .seq_lens = pkv_tensor_make(job->seq_lens, PKV_DTYPE_I32, 1, table),
        .query_start_loc = pkv_tensor_make(job->query_start_loc, PKV_DTYPE_I32, 1, &totals)};
    return bench_stage_describe(job->stage, &job->cache, PKV_LAYOUT_HND, BENCH_NUM_HEADS,
                                job->block_size, 0, num_blocks(job),
                                &job->error) == PKV_STATUS_OK &&
                   pkv_step_create(&job->step, &options, &job->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

static int prepare(void *arg) {
    const struct step_job *job = arg;
    bench_touch(job->block_table,
                NUM_SEQS * MAX_TOKENS / job->block_size * (int64_t)sizeof(job->block_table[0]));
    bench_touch(job, (int64_t)sizeof(*job));
    return 0;
}

static int set(void *arg) {
    struct step_job *job = arg;
    return pkv_step_set(job->team->context, job->step, &job->cache, &job->indices, &job->error) ==
                   PKV_STATUS_OK
               ? 0
               : -1;
}

static int measure(struct step_job *job, const struct bench_report *report) {
    const struct bench_variant variant = {prepare, set, NULL, job};
    struct bench_line line = {
        .op = "attention", .level = pkv_context_cpu_level(job->team->context), .num_threads = 1};
    struct bench_rounds rounds;
    (void)snprintf(line.text, sizeof(line.text), "step of %d sequences, blocks of %" PRId64,
                   NUM_SEQS, job->block_size);
    if (create(job) != 0 ||
        bench_rounds_measure(&rounds, &variant, 1, ROUNDS, NULL, &job->stage->random) != 0)
        return bench_failed(line.text, &job->error);
    line.ns = bench_rounds_time(&rounds, 0);
    line.bytes = (int64_t)sizeof(int32_t) * (job->num_entries + 2 * NUM_SEQS + 1);
    (void)snprintf(line.note, sizeof(line.note), "1 to %d tokens, %" PRId64 " blocks", MAX_TOKENS,
                   job->num_entries);
    bench_report_line(report, &line);
    return CLI_OK;
}

int bench_attention_step(struct bench_stage *stage, const struct bench_team *team,
                         const struct bench_report *report) {
    static const int64_t block_sizes[] = {128, 16};
    int status = CLI_OK;
    if (stage->pages != BENCH_PAGES_HUGE || team->num_threads > 1)
        return CLI_OK;
    for (int i = 0; status == CLI_OK && i < 2; i++) {
        struct step_job job = {.stage = stage,
                               .team = team,
                               .block_size = block_sizes[i],
                               .error.struct_size = sizeof(job.error)};
        status = measure(&job, report);
        pkv_step_destroy(job.step);
        free(job.block_table);
    }
    return status;
}
