/* SPDX-License-Identifier: MIT
 *
 * The lines of gather: sequences of random blocks read back in token order, beside a plain loop of
 * one memcpy a block and the ceiling. Blocks and outputs are cold: fresh in every sample.
 */
#include "bench_ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench_ceiling.h"
#include "bench_rounds.h"
#include "bench_threads.h"
#include "cli.h"

enum { ROUNDS = 25, MAX_SEQS = 8 };

struct gather_job {
    struct bench_stage *stage;
    const struct bench_team *team;
    int64_t num_seqs;
    int64_t seq_tokens; /* a multiple of block_size */
    int64_t block_size;
    struct bench_walk blocks;
    struct pkv_cache cache;
    struct pkv_gather_plan *plan;
    struct pkv_step *step;
    struct pkv_step_indices indices;
    struct pkv_tensor key;
    struct pkv_tensor value;
    struct pkv_error error;
    int64_t seq_lens[MAX_SEQS];
    const int64_t *block_table; /* of this sample */
    int64_t output;             /* first row, of this sample */
    int64_t region;
};

static int create(struct gather_job *job) {
    struct bench_stage *stage = job->stage;
    const int64_t num_blocks = stage->num_slots / job->block_size;
    job->error.struct_size = sizeof(job->error);
    for (int64_t i = 0; i < job->num_seqs; i++)
        job->seq_lens[i] = job->seq_tokens;
    if (bench_walk_create(&job->blocks, num_blocks, &stage->random) != 0) {
        job->error.status = PKV_STATUS_OUT_OF_MEMORY;
        return -1;
    }
    const struct pkv_step_options options = {.struct_size = sizeof(options),
                                             .max_seqs = job->num_seqs};
    if (bench_stage_describe(stage, &job->cache, PKV_LAYOUT_NHD, BENCH_NUM_HEADS, job->block_size,
                             0, num_blocks, &job->error) != PKV_STATUS_OK ||
        pkv_gather_plan_create(&job->plan, job->team->context, &job->cache, &job->error) !=
            PKV_STATUS_OK ||
        pkv_step_create(&job->step, &options, &job->error) != PKV_STATUS_OK)
        return -1;
    return 0;
}

static void destroy(struct gather_job *job) {
    pkv_step_destroy(job->step);
    pkv_gather_plan_destroy(job->plan);
    bench_walk_destroy(&job->blocks);
}

static int64_t num_tokens(const struct gather_job *job) {
    return job->num_seqs * job->seq_tokens;
}

static int prepare_plain(void *arg) {
    struct gather_job *job = arg;
    job->block_table = bench_walk_take(&job->blocks, num_tokens(job) / job->block_size);
    job->output = bench_stage_take_output(job->stage, num_tokens(job));
    return 0;
}

static int prepare_run(void *arg) {
    struct gather_job *job = arg;
    (void)prepare_plain(job);
    const int64_t table_shape[2] = {job->num_seqs, job->seq_tokens / job->block_size};
    const int64_t row_shape[3] = {num_tokens(job), BENCH_NUM_HEADS, BENCH_HEAD_SIZE};
    const int64_t output = job->output * BENCH_ROW_BYTES;
    job->indices = (struct pkv_step_indices){
        .struct_size = sizeof(job->indices),
        .block_table =
            pkv_tensor_make((void *)(uintptr_t)job->block_table, PKV_DTYPE_I64, 2, table_shape),
        .seq_lens = pkv_tensor_make(job->seq_lens, PKV_DTYPE_I64, 1, &job->num_seqs)};
    job->key = pkv_tensor_make(job->stage->key_output.data + output, PKV_DTYPE_BF16, 3, row_shape);
    job->value =
        pkv_tensor_make(job->stage->value_output.data + output, PKV_DTYPE_BF16, 3, row_shape);
    return pkv_step_set(job->team->context, job->step, &job->cache, &job->indices, &job->error) ==
                   PKV_STATUS_OK
               ? 0
               : -1;
}

static int prepare_ceiling(void *arg) {
    struct gather_job *job = arg;
    job->region = bench_stage_take_region(job->stage, num_tokens(job));
    job->output = bench_stage_take_output(job->stage, num_tokens(job));
    return 0;
}

static int run(void *arg) {
    struct gather_job *job = arg;
    return pkv_gather_run(job->team->context, job->plan, job->step, &job->cache, &job->key,
                          &job->value, &job->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

/* Calls visit for the key and the value part of every block of a share of the table. */
static int visit_blocks(struct gather_job *job, int64_t index, int64_t num_shares,
                        int (*visit)(unsigned char *output, const unsigned char *block,
                                     size_t bytes)) {
    const int64_t num_blocks = num_tokens(job) / job->block_size;
    const int64_t block_bytes = job->block_size * BENCH_ROW_BYTES;
    const int64_t output = job->output * BENCH_ROW_BYTES;
    struct bench_stage *stage = job->stage;
    int result = 0;
    for (int64_t i = num_blocks * index / num_shares; i < num_blocks * (index + 1) / num_shares;
         i++) {
        const int64_t src = job->block_table[i] * block_bytes;
        const int64_t dst = output + i * block_bytes;
        result |=
            visit(stage->key_output.data + dst, stage->key_cache.data + src, (size_t)block_bytes);
        result |= visit(stage->value_output.data + dst, stage->value_cache.data + src,
                        (size_t)block_bytes);
    }
    return result;
}

static int copy_block(unsigned char *output, const unsigned char *block, size_t bytes) {
    memcpy(output, block, bytes);
    return 0;
}

static int compare_block(unsigned char *output, const unsigned char *block, size_t bytes) {
    return memcmp(output, block, bytes) != 0;
}

static void copy_share(void *arg, int64_t index) {
    struct gather_job *job = arg;
    (void)visit_blocks(job, index, job->team->num_threads, copy_block);
}

static int run_plain(void *arg) {
    struct gather_job *job = arg;
    bench_run_tiles(&job->team->executor, copy_share, job, job->team->num_threads);
    return 0;
}

static void clean_up_plain(void *arg) {
    const struct gather_job *job = arg;
    const int64_t output = job->output * BENCH_ROW_BYTES;
    (void)bench_flush(job->stage->key_output.data + output, num_tokens(job) * BENCH_ROW_BYTES);
    (void)bench_flush(job->stage->value_output.data + output, num_tokens(job) * BENCH_ROW_BYTES);
    bench_fence();
}

static int run_ceiling(void *arg) {
    struct gather_job *job = arg;
    const struct bench_stage *stage = job->stage;
    const int64_t output = job->output * BENCH_ROW_BYTES;
    const int64_t region = job->region * BENCH_ROW_BYTES;
    const int64_t bytes = num_tokens(job) * BENCH_ROW_BYTES;
    const struct bench_span spans[2] = {
        {stage->key_output.data + output, stage->key_cache.data + region, bytes},
        {stage->value_output.data + output, stage->value_cache.data + region, bytes}};
    bench_ceiling_copy(&job->team->executor, spans, 2);
    return 0;
}

/* Gives every block of the table rows of its own, so that a wrong block is seen. */
static void fill_blocks(struct gather_job *job) {
    const struct bench_stage *stage = job->stage;
    const int64_t num_blocks = num_tokens(job) / job->block_size;
    const int64_t block_bytes = job->block_size * BENCH_ROW_BYTES;
    for (int64_t i = 0; i < num_blocks; i++) {
        const int64_t src = i * 101 % (BENCH_MAX_TOKENS - job->block_size) * BENCH_ROW_BYTES;
        const int64_t dst = job->block_table[i] * block_bytes;
        memcpy(stage->key_cache.data + dst, stage->key_source.data + src, (size_t)block_bytes);
        memcpy(stage->value_cache.data + dst, stage->value_source.data + src, (size_t)block_bytes);
    }
}

static int check(struct gather_job *job) {
    if (prepare_run(job) != 0)
        return -1;
    const int64_t output = job->output * BENCH_ROW_BYTES;
    memset(job->stage->key_output.data + output, 0xa5, (size_t)(num_tokens(job) * BENCH_ROW_BYTES));
    memset(job->stage->value_output.data + output, 0xa5,
           (size_t)(num_tokens(job) * BENCH_ROW_BYTES));
    fill_blocks(job);
    return run(job) != 0 || visit_blocks(job, 0, 1, compare_block) != 0 ? -1 : 0;
}

static int measure(struct gather_job *job, const struct bench_report *report) {
    struct bench_line line = {.op = "gather",
                              .level = pkv_context_cpu_level(job->team->context),
                              .num_threads = job->team->num_threads,
                              .bytes = 2 * 2 * BENCH_ROW_BYTES * num_tokens(job)};
    (void)snprintf(line.text, sizeof(line.text),
                   "%" PRId64 " x %" PRId64 " tokens, blocks of %" PRId64 ", cold", job->num_seqs,
                   job->seq_tokens, job->block_size);
    struct bench_rounds rounds;
    int status = create(job);
    if (status == 0) {
        const struct bench_variant variants[] = {{prepare_run, run, NULL, job},
                                                 {prepare_plain, run_plain, clean_up_plain, job},
                                                 {prepare_ceiling, run_ceiling, NULL, job}};
        status = bench_rounds_measure(&rounds, variants, 3, ROUNDS, &job->team->executor,
                                      &job->stage->random);
    }
    if (status == 0)
        status = check(job);
    if (status == 0) {
        line.ns = bench_rounds_time(&rounds, 0);
        line.scalar = bench_rounds_speed(&rounds, 0, 1).median;
        line.ceiling = bench_rounds_speed(&rounds, 0, 2);
        bench_report_line(report, &line);
    }
    status = status == 0 ? CLI_OK : bench_failed(line.text, &job->error);
    destroy(job);
    return status;
}

int bench_gather(struct bench_stage *stage, const struct bench_team *team,
                 const struct bench_report *report) {
    static const struct {
        int64_t num_seqs, seq_tokens, block_size;
    } cases[] = {{1, 1024, 16}, {8, 4096, 16}, {1, 1024, 128}, {8, 4096, 128}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gather_job job = {.stage = stage,
                                 .team = team,
                                 .num_seqs = cases[i].num_seqs,
                                 .seq_tokens = cases[i].seq_tokens,
                                 .block_size = cases[i].block_size};
        int status = measure(&job, report);
        if (status != CLI_OK)
            return status;
    }
    return CLI_OK;
}
