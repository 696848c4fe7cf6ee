/* SPDX-License-Identifier: MIT
 *
 * The lines of blocks that move between two caches, and of blocks that are filled, beside plain
 * loops. All blocks are cold: fresh in every sample.
 */
#include "bench_ops.h"

#include <stdio.h>
#include <string.h>

#include "bench_ceiling.h"
#include "bench_rounds.h"
#include "bench_threads.h"
#include "cli.h"

enum { ROUNDS = 25, NUM_PAIRS = 128, BLOCK_BYTES = BENCH_BLOCK_SIZE * BENCH_ROW_BYTES };

/* From the stage's keys to its values, each taken for a cache of keys alone. */
struct swap_job {
    struct bench_stage *stage;
    const struct bench_team *team;
    struct pkv_cache src;
    struct pkv_cache dst;
    int64_t pairs[NUM_PAIRS][2]; /* of this sample */
    int64_t region;              /* fill, and the ceiling */
    struct pkv_error error;
};

static int create(struct swap_job *job) {
    const int64_t shape[4] = {job->stage->num_blocks, BENCH_BLOCK_SIZE, BENCH_NUM_HEADS,
                              BENCH_HEAD_SIZE};
    const struct pkv_tensor src =
        pkv_tensor_make(job->stage->key_cache.data, PKV_DTYPE_BF16, 4, shape);
    const struct pkv_tensor dst =
        pkv_tensor_make(job->stage->value_cache.data, PKV_DTYPE_BF16, 4, shape);
    return pkv_cache_init(&job->src, &src, NULL, NULL, &job->error) == PKV_STATUS_OK &&
                   pkv_cache_init(&job->dst, &dst, NULL, NULL, &job->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

static int prepare_pairs(void *arg) {
    struct swap_job *job = arg;
    memcpy(job->pairs, bench_walk_take(&job->stage->blocks, 2 * NUM_PAIRS), sizeof(job->pairs));
    return 0;
}

static int run_swap(void *arg) {
    struct swap_job *job = arg;
    const int64_t shape[2] = {NUM_PAIRS, 2};
    const struct pkv_tensor mapping = pkv_tensor_make(job->pairs, PKV_DTYPE_I64, 2, shape);
    return pkv_swap_blocks(job->team->context, &job->src, &job->dst, &mapping, &job->error) ==
                   PKV_STATUS_OK
               ? 0
               : -1;
}

static void copy_share(void *arg, int64_t index) {
    const struct swap_job *job = arg;
    for (int64_t i = NUM_PAIRS * index / job->team->num_threads;
         i < NUM_PAIRS * (index + 1) / job->team->num_threads; i++)
        memcpy(job->stage->value_cache.data + job->pairs[i][1] * BLOCK_BYTES,
               job->stage->key_cache.data + job->pairs[i][0] * BLOCK_BYTES, BLOCK_BYTES);
}

static int run_plain_copy(void *arg) {
    struct swap_job *job = arg;
    bench_run_tiles(&job->team->executor, copy_share, job, job->team->num_threads);
    return 0;
}

static void clean_up_plain_copy(void *arg) {
    const struct swap_job *job = arg;
    for (int64_t i = 0; i < NUM_PAIRS; i++)
        (void)bench_flush(job->stage->value_cache.data + job->pairs[i][1] * BLOCK_BYTES,
                          BLOCK_BYTES);
    bench_fence();
}

static int prepare_region(void *arg) {
    struct swap_job *job = arg;
    job->region = bench_stage_take_region(job->stage, NUM_PAIRS * BENCH_BLOCK_SIZE);
    return 0;
}

static int run_ceiling(void *arg) {
    const struct swap_job *job = arg;
    const int64_t byte = job->region * BENCH_ROW_BYTES;
    const struct bench_span span = {job->stage->value_cache.data + byte,
                                    job->stage->key_cache.data + byte,
                                    (int64_t)NUM_PAIRS * BLOCK_BYTES};
    bench_ceiling_copy(&job->team->executor, &span, 1);
    return 0;
}

static int check_swap(struct swap_job *job) {
    (void)prepare_pairs(job);
    for (int64_t i = 0; i < NUM_PAIRS; i++) {
        memcpy(job->stage->key_cache.data + job->pairs[i][0] * BLOCK_BYTES,
               job->stage->key_source.data + i * BENCH_ROW_BYTES, BLOCK_BYTES);
        memset(job->stage->value_cache.data + job->pairs[i][1] * BLOCK_BYTES, 0x5a, BLOCK_BYTES);
    }
    if (run_swap(job) != 0)
        return -1;
    for (int64_t i = 0; i < NUM_PAIRS; i++) {
        if (memcmp(job->stage->value_cache.data + job->pairs[i][1] * BLOCK_BYTES,
                   job->stage->key_source.data + i * BENCH_ROW_BYTES, BLOCK_BYTES) != 0)
            return -1;
    }
    return 0;
}

int bench_swap_blocks(struct bench_stage *stage, const struct bench_team *team,
                      const struct bench_report *report) {
    struct swap_job job = {.stage = stage, .team = team, .error.struct_size = sizeof(job.error)};
    const struct bench_variant variants[] = {
        {prepare_pairs, run_swap, NULL, &job},
        {prepare_pairs, run_plain_copy, clean_up_plain_copy, &job},
        {prepare_region, run_ceiling, NULL, &job}};
    struct bench_rounds rounds;
    if (create(&job) != 0 ||
        bench_rounds_measure(&rounds, variants, 3, ROUNDS, &team->executor, &stage->random) != 0 ||
        check_swap(&job) != 0)
        return bench_failed("swap_blocks", &job.error);
    struct bench_line line = {.op = "swap_blocks",
                              .text = "128 blocks of 128 tokens to another cache",
                              .level = pkv_context_cpu_level(team->context),
                              .num_threads = team->num_threads,
                              .ns = bench_rounds_time(&rounds, 0),
                              .bytes = 2 * (int64_t)NUM_PAIRS * BLOCK_BYTES,
                              .scalar = bench_rounds_speed(&rounds, 0, 1).median,
                              .ceiling = bench_rounds_speed(&rounds, 0, 2)};
    bench_report_line(report, &line);
    return CLI_OK;
}

static const uint16_t poison = 0x7fc0;

static int run_fill(void *arg) {
    struct swap_job *job = arg;
    return pkv_fill_blocks(job->team->context, &job->dst, job->region / BENCH_BLOCK_SIZE, NUM_PAIRS,
                           &poison, NULL, &job->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

/* What a loop over elements becomes. */
static void fill_share(void *arg, int64_t index) {
    const struct swap_job *job = arg;
    const int64_t bytes = (int64_t)NUM_PAIRS * BLOCK_BYTES / job->team->num_threads;
    uint16_t *to = (uint16_t *)(void *)(job->stage->value_cache.data +
                                        job->region * BENCH_ROW_BYTES + index * bytes);
    for (int64_t i = 0; i < bytes / (int64_t)sizeof(*to); i++)
        to[i] = poison;
}

static int run_plain_fill(void *arg) {
    struct swap_job *job = arg;
    bench_run_tiles(&job->team->executor, fill_share, job, job->team->num_threads);
    return 0;
}

static void clean_up_plain_fill(void *arg) {
    const struct swap_job *job = arg;
    (void)bench_flush(job->stage->value_cache.data + job->region * BENCH_ROW_BYTES,
                      (int64_t)NUM_PAIRS * BLOCK_BYTES);
    bench_fence();
}

static int check_fill(struct swap_job *job) {
    (void)prepare_region(job);
    const uint16_t *to = (const uint16_t *)(const void *)(job->stage->value_cache.data +
                                                          job->region * BENCH_ROW_BYTES);
    if (run_fill(job) != 0)
        return -1;
    for (int64_t i = 0; i < (int64_t)NUM_PAIRS * BLOCK_BYTES / (int64_t)sizeof(*to); i++) {
        if (to[i] != poison)
            return -1;
    }
    return 0;
}

int bench_fill_blocks(struct bench_stage *stage, const struct bench_team *team,
                      const struct bench_report *report) {
    struct swap_job job = {.stage = stage, .team = team, .error.struct_size = sizeof(job.error)};
    const struct bench_variant variants[] = {
        {prepare_region, run_fill, NULL, &job},
        {prepare_region, run_plain_fill, clean_up_plain_fill, &job},
        {prepare_region, run_ceiling, NULL, &job}};
    struct bench_rounds rounds;
    if (create(&job) != 0 ||
        bench_rounds_measure(&rounds, variants, 3, ROUNDS, &team->executor, &stage->random) != 0 ||
        check_fill(&job) != 0)
        return bench_failed("fill_blocks", &job.error);
    struct bench_line line = {.op = "fill_blocks",
                              .text = "128 blocks of 128 tokens, only written",
                              .level = pkv_context_cpu_level(team->context),
                              .num_threads = team->num_threads,
                              .ns = bench_rounds_time(&rounds, 0),
                              .bytes = (int64_t)NUM_PAIRS * BLOCK_BYTES,
                              .scalar = bench_rounds_speed(&rounds, 0, 1).median,
                              .ceiling = bench_rounds_speed(&rounds, 0, 2)};
    (void)snprintf(line.note, sizeof(line.note), "ceiling: a copy");
    bench_report_line(report, &line);
    return CLI_OK;
}
