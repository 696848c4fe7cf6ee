/* SPDX-License-Identifier: MIT
 *
 * The lines of work on whole blocks: copies inside one cache and conversions of layout, beside a
 * plain loop of memcpy and the ceiling. All blocks are cold: fresh in every sample.
 */
#include "bench_ops.h"

#include <stdio.h>
#include <string.h>

#include "bench_ceiling.h"
#include "bench_rounds.h"
#include "bench_scatter_job.h"
#include "bench_threads.h"
#include "cli.h"

enum {
    ROUNDS = 25,
    NUM_PAIRS = 64,
    BLOCK_BYTES = BENCH_BLOCK_SIZE * BENCH_ROW_BYTES,
    CONVERT_BLOCKS = 256, /* 64 MiB of keys and values */
    CONVERT_HEADS = 4
};

/* Both operators move num_blocks blocks; they differ in where these lie. */
struct blocks_job {
    struct bench_stage *stage;
    const struct bench_team *team;
    int64_t num_blocks;
    int32_t layout;         /* convert_layout: of the destination */
    struct bench_rows rows; /* of the destination */
    struct pkv_cache cache;
    struct pkv_cache src; /* convert_layout: windows of the caches, of this sample */
    struct pkv_cache dst;
    int64_t src_row;
    int64_t dst_row;
    int64_t pairs[NUM_PAIRS][2]; /* copy_blocks, of this sample */
    struct pkv_error error;
};

static int prepare_regions(void *arg) {
    struct blocks_job *job = arg;
    job->src_row = bench_stage_take_region(job->stage, 2 * job->num_blocks * BENCH_BLOCK_SIZE);
    job->dst_row = job->src_row + job->num_blocks * BENCH_BLOCK_SIZE;
    return 0;
}

static int run_ceiling(void *arg) {
    const struct blocks_job *job = arg;
    const struct bench_stage *stage = job->stage;
    const int64_t bytes = job->num_blocks * BLOCK_BYTES;
    const int64_t src = job->src_row * BENCH_ROW_BYTES;
    const int64_t dst = job->dst_row * BENCH_ROW_BYTES;
    const struct bench_span spans[2] = {
        {stage->key_cache.data + dst, stage->key_cache.data + src, bytes},
        {stage->value_cache.data + dst, stage->value_cache.data + src, bytes}};
    bench_ceiling_copy(&job->team->executor, spans, 2);
    return 0;
}

static int prepare_pairs(void *arg) {
    struct blocks_job *job = arg;
    const int64_t *blocks = bench_walk_take(&job->stage->blocks, 2 * NUM_PAIRS);
    memcpy(job->pairs, blocks, sizeof(job->pairs));
    return 0;
}

static int run_copy_blocks(void *arg) {
    struct blocks_job *job = arg;
    const int64_t shape[2] = {NUM_PAIRS, 2};
    const struct pkv_tensor mapping = pkv_tensor_make(job->pairs, PKV_DTYPE_I64, 2, shape);
    return pkv_copy_blocks(job->team->context, &job->cache, &mapping, &job->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

static void copy_pairs_of_share(void *arg, int64_t index) {
    const struct blocks_job *job = arg;
    const struct bench_stage *stage = job->stage;
    for (int64_t i = NUM_PAIRS * index / job->team->num_threads;
         i < NUM_PAIRS * (index + 1) / job->team->num_threads; i++) {
        const int64_t src = job->pairs[i][0] * BLOCK_BYTES, dst = job->pairs[i][1] * BLOCK_BYTES;
        memcpy(stage->key_cache.data + dst, stage->key_cache.data + src, BLOCK_BYTES);
        memcpy(stage->value_cache.data + dst, stage->value_cache.data + src, BLOCK_BYTES);
    }
}

static int run_plain_copy(void *arg) {
    struct blocks_job *job = arg;
    bench_run_tiles(&job->team->executor, copy_pairs_of_share, job, job->team->num_threads);
    return 0;
}

static void flush_block(const struct bench_stage *stage, int64_t block) {
    (void)bench_flush(stage->key_cache.data + block * BLOCK_BYTES, BLOCK_BYTES);
    (void)bench_flush(stage->value_cache.data + block * BLOCK_BYTES, BLOCK_BYTES);
}

static void clean_up_plain_copy(void *arg) {
    const struct blocks_job *job = arg;
    for (int64_t i = 0; i < NUM_PAIRS; i++)
        flush_block(job->stage, job->pairs[i][1]);
    bench_fence();
}

static void scribble(const struct bench_stage *stage, int64_t row, int64_t num_rows) {
    memset(stage->key_cache.data + row * BENCH_ROW_BYTES, 0xa5,
           (size_t)(num_rows * BENCH_ROW_BYTES));
    memset(stage->value_cache.data + row * BENCH_ROW_BYTES, 0x5a,
           (size_t)(num_rows * BENCH_ROW_BYTES));
}

static int check_copy(struct blocks_job *job) {
    const struct bench_stage *stage = job->stage;
    (void)prepare_pairs(job);
    for (int64_t i = 0; i < NUM_PAIRS; i++) {
        const int64_t src = job->pairs[i][0] * BLOCK_BYTES;
        memcpy(stage->key_cache.data + src, stage->key_source.data + i * BENCH_ROW_BYTES,
               BLOCK_BYTES);
        memcpy(stage->value_cache.data + src, stage->value_source.data + i * BENCH_ROW_BYTES,
               BLOCK_BYTES);
        scribble(stage, job->pairs[i][1] * BENCH_BLOCK_SIZE, BENCH_BLOCK_SIZE);
    }
    int failed = run_copy_blocks(job);
    for (int64_t i = 0; i < NUM_PAIRS && !failed; i++) {
        const int64_t src = job->pairs[i][0] * BLOCK_BYTES, dst = job->pairs[i][1] * BLOCK_BYTES;
        failed = memcmp(stage->key_cache.data + dst, stage->key_cache.data + src, BLOCK_BYTES) ||
                 memcmp(stage->value_cache.data + dst, stage->value_cache.data + src, BLOCK_BYTES);
    }
    return failed ? -1 : 0;
}

static int prepare_windows(void *arg) {
    struct blocks_job *job = arg;
    (void)prepare_regions(job);
    return bench_stage_describe(job->stage, &job->src, PKV_LAYOUT_NHD, CONVERT_HEADS,
                                BENCH_BLOCK_SIZE, job->src_row, job->num_blocks,
                                &job->error) == PKV_STATUS_OK &&
                   bench_stage_describe(job->stage, &job->dst, job->layout, CONVERT_HEADS,
                                        BENCH_BLOCK_SIZE, job->dst_row, job->num_blocks,
                                        &job->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

static int run_convert(void *arg) {
    struct blocks_job *job = arg;
    return pkv_convert_layout(job->team->context, &job->src, &job->dst, &job->error) ==
                   PKV_STATUS_OK
               ? 0
               : -1;
}

static int copy_piece(unsigned char *dst, const unsigned char *src, size_t bytes) {
    memcpy(dst, src, bytes);
    return 0;
}

static int compare_piece(unsigned char *dst, const unsigned char *src, size_t bytes) {
    return memcmp(dst, src, bytes) != 0;
}

/* Calls visit for each piece of each row of a share of the blocks: the source is NHD. */
static int visit_pieces(const struct blocks_job *job, int64_t index, int64_t num_shares,
                        int (*visit)(unsigned char *dst, const unsigned char *src, size_t bytes)) {
    const struct bench_stage *stage = job->stage;
    const struct bench_rows rows = job->rows;
    const int64_t num_rows = job->num_blocks * BENCH_BLOCK_SIZE;
    int result = 0;
    for (int64_t row = num_rows * index / num_shares; row < num_rows * (index + 1) / num_shares;
         row++) {
        int64_t src = (job->src_row + row) * BENCH_ROW_BYTES;
        int64_t dst = job->dst_row * BENCH_ROW_BYTES + bench_rows_offset(&rows, row);
        for (int64_t i = 0; i < rows.num_pieces;
             i++, src += rows.piece_bytes, dst += rows.piece_stride_bytes) {
            result |= visit(stage->key_cache.data + dst, stage->key_cache.data + src,
                            (size_t)rows.piece_bytes);
            result |= visit(stage->value_cache.data + dst, stage->value_cache.data + src,
                            (size_t)rows.piece_bytes);
        }
    }
    return result;
}

static void convert_share(void *arg, int64_t index) {
    const struct blocks_job *job = arg;
    (void)visit_pieces(job, index, job->team->num_threads, copy_piece);
}

static int run_plain_convert(void *arg) {
    struct blocks_job *job = arg;
    bench_run_tiles(&job->team->executor, convert_share, job, job->team->num_threads);
    return 0;
}

static void clean_up_plain_convert(void *arg) {
    const struct blocks_job *job = arg;
    for (int64_t i = 0; i < job->num_blocks; i++)
        flush_block(job->stage, job->dst_row / BENCH_BLOCK_SIZE + i);
    bench_fence();
}

static int check_convert(struct blocks_job *job) {
    if (prepare_windows(job) != 0)
        return -1;
    const struct bench_stage *stage = job->stage;
    const int64_t num_rows = job->num_blocks * BENCH_BLOCK_SIZE;
    for (int64_t row = 0; row < num_rows; row += BENCH_MAX_TOKENS) {
        const int64_t rest = num_rows - row;
        const size_t bytes =
            (size_t)((rest < BENCH_MAX_TOKENS ? rest : BENCH_MAX_TOKENS) * BENCH_ROW_BYTES);
        const int64_t src = (job->src_row + row) * BENCH_ROW_BYTES;
        memcpy(stage->key_cache.data + src, stage->key_source.data, bytes);
        memcpy(stage->value_cache.data + src, stage->value_source.data, bytes);
    }
    scribble(stage, job->dst_row, num_rows);
    return run_convert(job) != 0 || visit_pieces(job, 0, 1, compare_piece) != 0 ? -1 : 0;
}

/* The library, the plain loop and the ceiling; then the check; then the line. */
static int measure(struct blocks_job *job, const struct bench_report *report, const char *op,
                   const char *text, const struct bench_variant variants[3],
                   int (*check)(struct blocks_job *job)) {
    struct bench_rounds rounds;
    if (bench_rounds_measure(&rounds, variants, 3, ROUNDS, &job->team->executor,
                             &job->stage->random) != 0 ||
        check(job) != 0)
        return bench_failed(text, &job->error);
    struct bench_line line = {.op = op,
                              .level = pkv_context_cpu_level(job->team->context),
                              .num_threads = job->team->num_threads,
                              .ns = bench_rounds_time(&rounds, 0),
                              .bytes = 2 * 2 * job->num_blocks * BLOCK_BYTES,
                              .scalar = bench_rounds_speed(&rounds, 0, 1).median,
                              .ceiling = bench_rounds_speed(&rounds, 0, 2)};
    (void)snprintf(line.text, sizeof(line.text), "%s", text);
    bench_report_line(report, &line);
    return CLI_OK;
}

int bench_copy_blocks(struct bench_stage *stage, const struct bench_team *team,
                      const struct bench_report *report) {
    struct blocks_job job = {.stage = stage,
                             .team = team,
                             .num_blocks = NUM_PAIRS,
                             .error.struct_size = sizeof(job.error)};
    const struct bench_variant variants[] = {
        {prepare_pairs, run_copy_blocks, NULL, &job},
        {prepare_pairs, run_plain_copy, clean_up_plain_copy, &job},
        {prepare_regions, run_ceiling, NULL, &job}};
    if (bench_stage_describe(stage, &job.cache, PKV_LAYOUT_NHD, BENCH_NUM_HEADS, BENCH_BLOCK_SIZE,
                             0, stage->num_blocks, &job.error) != PKV_STATUS_OK)
        return bench_failed("copy_blocks", &job.error);
    return measure(&job, report, "copy_blocks", "64 pairs of blocks of 128 tokens", variants,
                   check_copy);
}

int bench_convert_layout(struct bench_stage *stage, const struct bench_team *team,
                         const struct bench_report *report) {
    static const int32_t layouts[] = {PKV_LAYOUT_HND, PKV_LAYOUT_PA_NZ};
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        struct blocks_job job = {.stage = stage,
                                 .team = team,
                                 .num_blocks = CONVERT_BLOCKS,
                                 .layout = layouts[i],
                                 .rows = bench_rows_of(layouts[i], CONVERT_HEADS, BENCH_BLOCK_SIZE),
                                 .error.struct_size = sizeof(job.error)};
        const struct bench_variant variants[] = {
            {prepare_windows, run_convert, NULL, &job},
            {prepare_windows, run_plain_convert, clean_up_plain_convert, &job},
            {prepare_regions, run_ceiling, NULL, &job}};
        char text[BENCH_CASE_TEXT];
        (void)snprintf(text, sizeof(text), "64 MiB, NHD to %s", pkv_layout_name(layouts[i]));
        int status = measure(&job, report, "convert_layout", text, variants, check_convert);
        if (status != CLI_OK)
            return status;
    }
    return CLI_OK;
}
