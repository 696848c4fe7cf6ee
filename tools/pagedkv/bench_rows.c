/* SPDX-License-Identifier: MIT
 *
 * The lines of scatter_rows: the packed row of an MLA token and its three separate caches, beside
 * one scatter of a row of the same bytes, a plain loop of memcpy and the ceiling. All rows are
 * fresh in every sample.
 */
#include "bench_ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench_ceiling.h"
#include "bench_rounds.h"
#include "bench_threads.h"
#include "cli.h"

enum { ROUNDS = 25, MAX_CALLS = 16, ROW = 656, NUM_COLUMNS = PKV_PACKED_ROW_COLUMNS };

/* Bytes of the columns of PKV_PACKED_ROW_MLA_I8_BF16_F32. */
static const int64_t widths[NUM_COLUMNS] = {512, 128, 16};

struct rows_job {
    struct bench_stage *stage;
    const struct bench_team *team;
    int64_t num_tokens;
    int32_t num_calls;
    struct pkv_tensor sources[NUM_COLUMNS];
    struct pkv_tensor packed[NUM_COLUMNS];   /* columns of the packed row */
    struct pkv_tensor separate[NUM_COLUMNS]; /* caches of their own */
    struct pkv_tensor row;                   /* one source of the same bytes */
    struct pkv_cache cache;                  /* the packed cache as one */
    struct pkv_scatter_plan *plan;
    struct pkv_scatter_rows_plan *packed_plan;
    struct pkv_scatter_rows_plan *separate_plan;
    struct pkv_step *steps[MAX_CALLS];
    struct pkv_step_indices indices[MAX_CALLS];
    const int64_t *slots; /* of this sample */
    int64_t region;
    struct pkv_error error;
};

static int create_tensors(struct rows_job *job) {
    struct bench_stage *stage = job->stage;
    const int64_t packed_shape[4] = {stage->num_blocks, BENCH_BLOCK_SIZE, 1, ROW};
    const struct pkv_tensor packed =
        pkv_tensor_make(stage->key_cache.data, PKV_DTYPE_U8, 4, packed_shape);
    job->row = pkv_tensor_make(stage->key_source.data, PKV_DTYPE_U8, 3,
                               (int64_t[]){job->num_tokens, 1, ROW});
    unsigned char *const homes[NUM_COLUMNS] = {stage->key_cache.data, stage->value_cache.data,
                                               stage->value_cache.data +
                                                   stage->num_slots * widths[1]};
    unsigned char *source = stage->key_source.data;
    if (pkv_cache_init(&job->cache, &packed, NULL, NULL, &job->error) != PKV_STATUS_OK ||
        pkv_packed_row_columns(PKV_PACKED_ROW_MLA_I8_BF16_F32, &packed, job->packed, &job->error) !=
            PKV_STATUS_OK)
        return -1;
    for (int i = 0; i < NUM_COLUMNS; i++) {
        const int64_t width = job->packed[i].shape[3];
        const int64_t rows[2] = {job->num_tokens, width};
        const int64_t blocks[3] = {stage->num_blocks, BENCH_BLOCK_SIZE, width};
        job->sources[i] = pkv_tensor_make(source, job->packed[i].dtype, 2, rows);
        job->separate[i] = pkv_tensor_make(homes[i], job->packed[i].dtype, 3, blocks);
        source += BENCH_MAX_TOKENS * widths[i];
    }
    return 0;
}

static int create(struct rows_job *job) {
    struct pkv_context *context = job->team->context;
    if (create_tensors(job) != 0 ||
        pkv_scatter_plan_create(&job->plan, context, &job->cache, NULL, &job->error) !=
            PKV_STATUS_OK ||
        pkv_scatter_rows_plan_create(&job->packed_plan, context, job->packed, NUM_COLUMNS, NULL,
                                     &job->error) != PKV_STATUS_OK ||
        pkv_scatter_rows_plan_create(&job->separate_plan, context, job->separate, NUM_COLUMNS, NULL,
                                     &job->error) != PKV_STATUS_OK)
        return -1;
    const struct pkv_step_options options = {.struct_size = sizeof(options),
                                             .max_tokens = job->num_tokens};
    for (int32_t i = 0; i < job->num_calls; i++) {
        if (pkv_step_create(&job->steps[i], &options, &job->error) != PKV_STATUS_OK)
            return -1;
    }
    return 0;
}

static void destroy(struct rows_job *job) {
    for (int32_t i = 0; i < job->num_calls; i++)
        pkv_step_destroy(job->steps[i]);
    pkv_scatter_plan_destroy(job->plan);
    pkv_scatter_rows_plan_destroy(job->packed_plan);
    pkv_scatter_rows_plan_destroy(job->separate_plan);
}

static void touch_sources(const struct rows_job *job) {
    unsigned char *source = job->stage->key_source.data;
    bench_touch(source, job->num_tokens * ROW);
    for (int i = 0; i < NUM_COLUMNS; i++) {
        bench_touch(source, job->num_tokens * widths[i]);
        source += BENCH_MAX_TOKENS * widths[i];
    }
    bench_fence();
}

static int prepare(void *arg) {
    struct rows_job *job = arg;
    job->slots = bench_walk_take(&job->stage->slots, job->num_calls * job->num_tokens);
    for (int32_t i = 0; i < job->num_calls; i++) {
        int64_t *slots = (int64_t *)(uintptr_t)(job->slots + i * job->num_tokens);
        job->indices[i] = (struct pkv_step_indices){
            .struct_size = sizeof(job->indices[i]),
            .slot_mapping = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, &job->num_tokens)};
        if (pkv_step_set(job->team->context, job->steps[i], &job->cache, &job->indices[i],
                         &job->error) != PKV_STATUS_OK)
            return -1;
    }
    touch_sources(job);
    return 0;
}

static int run_rows(struct rows_job *job, const struct pkv_scatter_rows_plan *plan,
                    const struct pkv_tensor *caches) {
    for (int32_t i = 0; i < job->num_calls; i++) {
        if (pkv_scatter_rows_run(job->team->context, plan, job->steps[i], job->sources, caches,
                                 &job->error) != PKV_STATUS_OK)
            return -1;
    }
    return 0;
}

static int run_packed(void *arg) {
    struct rows_job *job = arg;
    return run_rows(job, job->packed_plan, job->packed);
}

static int run_separate(void *arg) {
    struct rows_job *job = arg;
    return run_rows(job, job->separate_plan, job->separate);
}

static int run_one(void *arg) {
    struct rows_job *job = arg;
    for (int32_t i = 0; i < job->num_calls; i++) {
        if (pkv_scatter_run(job->team->context, job->plan, job->steps[i], &job->cache, &job->row,
                            NULL, &job->error) != PKV_STATUS_OK)
            return -1;
    }
    return 0;
}

static void copy_share(void *arg, int64_t index) {
    const struct rows_job *job = arg;
    const int64_t total = job->num_calls * job->num_tokens, threads = job->team->num_threads;
    for (int64_t i = total * index / threads; i < total * (index + 1) / threads; i++) {
        unsigned char *dst = job->stage->key_cache.data + job->slots[i] * ROW;
        for (int j = 0; j < NUM_COLUMNS; j++) {
            const unsigned char *source = job->sources[j].data;
            memcpy(dst, source + i % job->num_tokens * widths[j], (size_t)widths[j]);
            dst += widths[j];
        }
    }
}

static int run_plain_loop(void *arg) {
    struct rows_job *job = arg;
    if (job->num_calls > 1) {
        struct bench_team alone = {.num_threads = 1};
        struct rows_job on_one_thread = *job;
        on_one_thread.team = &alone;
        copy_share(&on_one_thread, 0);
    } else {
        bench_run_tiles(&job->team->executor, copy_share, job, job->team->num_threads);
    }
    return 0;
}

static void clean_up_plain_loop(void *arg) {
    const struct rows_job *job = arg;
    for (int64_t i = 0; i < job->num_calls * job->num_tokens; i++)
        (void)bench_flush(job->stage->key_cache.data + job->slots[i] * ROW, ROW);
    bench_fence();
}

static int prepare_ceiling(void *arg) {
    struct rows_job *job = arg;
    job->region = bench_stage_take_region(job->stage, job->num_calls * job->num_tokens);
    touch_sources(job);
    return 0;
}

static int run_ceiling(void *arg) {
    struct rows_job *job = arg;
    const int64_t bytes = job->num_tokens * ROW;
    for (int32_t i = 0; i < job->num_calls; i++) {
        const struct bench_span span = {job->stage->key_cache.data + job->region * BENCH_ROW_BYTES +
                                            i * bytes,
                                        job->stage->key_source.data, bytes};
        bench_ceiling_copy(&job->team->executor, &span, 1);
    }
    return 0;
}

/* Every column of every row, after one more run of each kind. */
static int check(struct rows_job *job) {
    const struct pkv_tensor *const kinds[2] = {job->packed, job->separate};
    for (int kind = 0; kind < 2; kind++) {
        if (prepare(job) != 0)
            return -1;
        const int64_t total = job->num_calls * job->num_tokens;
        for (int64_t i = 0; i < total * NUM_COLUMNS; i++) {
            const int j = (int)(i % NUM_COLUMNS);
            const int64_t stride = kind == 0 ? ROW : widths[j];
            unsigned char *home = kinds[kind][j].data;
            memset(home + job->slots[i / NUM_COLUMNS] * stride, 0x5a, (size_t)widths[j]);
        }
        if ((kind == 0 ? run_packed(job) : run_separate(job)) != 0)
            return -1;
        for (int64_t i = 0; i < total * NUM_COLUMNS; i++) {
            const int j = (int)(i % NUM_COLUMNS);
            const int64_t stride = kind == 0 ? ROW : widths[j];
            const unsigned char *home = kinds[kind][j].data, *source = job->sources[j].data;
            if (memcmp(home + job->slots[i / NUM_COLUMNS] * stride,
                       source + i / NUM_COLUMNS % job->num_tokens * widths[j],
                       (size_t)widths[j]) != 0)
                return -1;
        }
    }
    return 0;
}

enum { PACKED, SEPARATE, ONE, PLAIN, CEILING, NUM_VARIANTS };

static int measure(struct rows_job *job, const struct bench_report *report, const char *text) {
    const struct bench_variant variants[NUM_VARIANTS] = {
        [PACKED] = {prepare, run_packed, NULL, job},
        [SEPARATE] = {prepare, run_separate, NULL, job},
        [ONE] = {prepare, run_one, NULL, job},
        [PLAIN] = {prepare, run_plain_loop, clean_up_plain_loop, job},
        [CEILING] = {prepare_ceiling, run_ceiling, NULL, job}};
    static const char *const names[] = {"packed row", "three caches", "one scatter"};
    struct bench_rounds rounds;
    if (create(job) != 0 ||
        bench_rounds_measure(&rounds, variants, NUM_VARIANTS, ROUNDS, &job->team->executor,
                             &job->stage->random) != 0 ||
        check(job) != 0)
        return bench_failed(text, &job->error);
    for (int32_t own = PACKED; own <= ONE; own++) {
        const struct bench_spread ns = bench_rounds_time(&rounds, own);
        struct bench_line line = {
            .op = "scatter_rows",
            .level = pkv_context_cpu_level(job->team->context),
            .num_threads = job->team->num_threads,
            .ns = {ns.median / job->num_calls, ns.q1 / job->num_calls, ns.q3 / job->num_calls},
            .bytes = 2 * job->num_tokens * ROW,
            .scalar = bench_rounds_speed(&rounds, own, PLAIN).median,
            .ceiling = bench_rounds_speed(&rounds, own, CEILING)};
        (void)snprintf(line.text, sizeof(line.text), "%s, %s", text, names[own]);
        if (own != ONE)
            (void)snprintf(line.note, sizeof(line.note), "%.2f of one scatter",
                           bench_rounds_speed(&rounds, own, ONE).median);
        bench_report_line(report, &line);
    }
    return CLI_OK;
}

int bench_scatter_rows(struct bench_stage *stage, const struct bench_team *team,
                       const struct bench_report *report) {
    static const int64_t sizes[] = {16, 64, 2633, BENCH_MAX_TOKENS};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct rows_job job = {.stage = stage,
                               .team = team,
                               .num_tokens = sizes[i],
                               .num_calls = sizes[i] < 1024 ? MAX_CALLS : 1,
                               .error.struct_size = sizeof(job.error)};
        char text[BENCH_CASE_TEXT / 2];
        (void)snprintf(text, sizeof(text), "%" PRId64 " tokens", sizes[i]);
        const int status = measure(&job, report, text);
        destroy(&job);
        if (status != CLI_OK)
            return status;
    }
    return CLI_OK;
}
