/* SPDX-License-Identifier: MIT
 *
 * One scatter, done four ways. See bench_scatter_job.h.
 */
#include "bench_scatter_job.h"

#include <stdlib.h>
#include <string.h>

#include "bench_ceiling.h"
#include "bench_threads.h"

enum { SCRIBBLE = 0xa5 };

struct bench_rows bench_rows_of(int32_t layout, int64_t num_heads, int64_t block_size) {
    struct bench_rows rows = {.block_stride_bytes = block_size * BENCH_ROW_BYTES,
                              .token_stride_bytes = BENCH_ROW_BYTES,
                              .piece_bytes = BENCH_ROW_BYTES,
                              .num_pieces = 1,
                              .block_size = block_size};
    if (layout == PKV_LAYOUT_HND || layout == PKV_LAYOUT_PA_NZ) {
        rows.piece_bytes = layout == PKV_LAYOUT_HND ? BENCH_ROW_BYTES / num_heads : 32;
        rows.num_pieces = BENCH_ROW_BYTES / rows.piece_bytes;
        rows.token_stride_bytes = rows.piece_bytes;
        rows.piece_stride_bytes = block_size * rows.piece_bytes;
    }
    return rows;
}

int64_t bench_rows_offset(const struct bench_rows *rows, int64_t slot) {
    if (rows->num_pieces == 1)
        return slot * rows->token_stride_bytes;
    return slot / rows->block_size * rows->block_stride_bytes +
           slot % rows->block_size * rows->token_stride_bytes;
}

/* Blocks in random order, each from its beginning: what prefill writes. */
static const int64_t *take_runs(struct bench_scatter_job *job, int64_t num_slots) {
    const int64_t run = job->shape.run_tokens;
    const int64_t *blocks = bench_walk_take(&job->stage->blocks, (num_slots + run - 1) / run);
    for (int64_t i = 0; i < num_slots; i++)
        job->run_slots[i] = blocks[i / run] * BENCH_BLOCK_SIZE + i % run;
    return job->run_slots;
}

static const int64_t *draw_slots(struct bench_scatter_job *job) {
    const int64_t num_slots = job->shape.num_calls * job->shape.num_tokens;
    return job->shape.run_tokens > 1 ? take_runs(job, num_slots)
                                     : bench_walk_take(&job->stage->slots, num_slots);
}

int bench_scatter_job_create(struct bench_scatter_job *job, struct bench_stage *stage,
                             const struct bench_team *team, struct pkv_context *context,
                             const struct bench_scatter_shape *shape) {
    memset(job, 0, sizeof(*job));
    job->shape = *shape;
    job->stage = stage;
    job->team = team;
    job->context = context;
    job->rows = bench_rows_of(shape->layout, shape->num_heads, BENCH_BLOCK_SIZE);
    job->error.struct_size = sizeof(job->error);
    const int64_t row_shape[3] = {shape->num_tokens, shape->num_heads,
                                  BENCH_NUM_HEADS * BENCH_HEAD_SIZE / shape->num_heads};
    job->key = pkv_tensor_make(stage->key_source.data, PKV_DTYPE_BF16, 3, row_shape);
    job->value = pkv_tensor_make(stage->value_source.data, PKV_DTYPE_BF16, 3, row_shape);
    if (bench_stage_describe(stage, &job->cache, shape->layout, shape->num_heads, BENCH_BLOCK_SIZE,
                             0, stage->num_blocks, &job->error) != PKV_STATUS_OK ||
        pkv_scatter_plan_create(&job->plan, context, &job->cache, NULL, &job->error) !=
            PKV_STATUS_OK)
        return -1;
    job->indices = (struct pkv_step_indices){
        .struct_size = sizeof(job->indices),
        .slot_mapping = pkv_tensor_make(NULL, PKV_DTYPE_I64, 1, &shape->num_tokens)};
    const struct pkv_step_options options = {.struct_size = sizeof(options),
                                             .max_tokens = shape->by_slots ? 0 : shape->num_tokens};
    for (int32_t i = 0; i < shape->num_calls; i++) {
        if (pkv_step_create(&job->steps[i], &options, &job->error) != PKV_STATUS_OK)
            return -1;
    }
    job->run_slots = malloc((size_t)(shape->num_calls * shape->num_tokens) * sizeof(int64_t));
    if (job->run_slots == NULL) {
        job->error.status = PKV_STATUS_OUT_OF_MEMORY;
        return -1;
    }
    if (shape->destination == BENCH_DESTINATION_WARM)
        job->slots = draw_slots(job);
    return 0;
}

void bench_scatter_job_destroy(struct bench_scatter_job *job) {
    for (int32_t i = 0; i < job->shape.num_calls; i++)
        pkv_step_destroy(job->steps[i]);
    pkv_scatter_plan_destroy(job->plan);
    free(job->run_slots);
    memset(job, 0, sizeof(*job));
}

enum row_action { ROW_FLUSH, ROW_TOUCH, ROW_SCRIBBLE };

static void act(unsigned char *data, int64_t bytes, enum row_action action) {
    if (action == ROW_FLUSH)
        (void)bench_flush(data, bytes);
    else if (action == ROW_TOUCH)
        bench_touch(data, bytes);
    else
        memset(data, SCRIBBLE, (size_t)bytes);
}

/* On the rows of this sample's slots. */
static void act_on_slots(const struct bench_scatter_job *job, enum row_action action) {
    const struct bench_rows *rows = &job->rows;
    const int64_t num_slots = job->shape.num_calls * job->shape.num_tokens;
    for (int64_t i = 0; i < num_slots; i++) {
        int64_t offset = bench_rows_offset(rows, job->slots[i]);
        for (int64_t j = 0; j < rows->num_pieces; j++, offset += rows->piece_stride_bytes) {
            act(job->stage->key_cache.data + offset, rows->piece_bytes, action);
            act(job->stage->value_cache.data + offset, rows->piece_bytes, action);
        }
    }
    bench_fence();
}

static void act_on_region(const struct bench_scatter_job *job, enum row_action action) {
    const int64_t bytes = job->shape.num_calls * job->shape.num_tokens * BENCH_ROW_BYTES;
    const int64_t offset = job->region * BENCH_ROW_BYTES;
    act(job->stage->key_cache.data + offset, bytes, action);
    act(job->stage->value_cache.data + offset, bytes, action);
    bench_fence();
}

static void prepare_source(const struct bench_scatter_job *job) {
    const int64_t bytes = job->shape.num_tokens * BENCH_ROW_BYTES;
    const struct bench_stage *stage = job->stage;
    if (!job->shape.cold_source) {
        bench_touch(stage->key_source.data, bytes);
        bench_touch(stage->value_source.data, bytes);
    } else if (bench_flush(stage->key_source.data, bytes) != 0 ||
               bench_flush(stage->value_source.data, bytes) != 0) {
        bench_stage_sweep(job->stage);
    }
    bench_fence();
}

/* An engine has just written its indices. */
static void take_slots(struct bench_scatter_job *job) {
    const int64_t num_slots = job->shape.num_calls * job->shape.num_tokens;
    if (job->shape.destination != BENCH_DESTINATION_WARM)
        job->slots = draw_slots(job);
    bench_touch(job->slots, num_slots * (int64_t)sizeof(*job->slots));
}

/* Last of all, so that the caches hold the same whatever is measured. */
static void prepare_rows(const struct bench_scatter_job *job) {
    if (job->shape.destination != BENCH_DESTINATION_FRESH)
        act_on_slots(job, job->shape.destination == BENCH_DESTINATION_WARM ? ROW_TOUCH : ROW_FLUSH);
    prepare_source(job);
}

static int prepare_plain(void *arg) {
    struct bench_scatter_job *job = arg;
    take_slots(job);
    prepare_rows(job);
    return 0;
}

/* As an engine does it, which keeps the struct: new indices for each step. */
static enum pkv_status set_step(struct bench_scatter_job *job, struct pkv_step *step,
                                int32_t call) {
    job->indices.slot_mapping.data =
        (int64_t *)(uintptr_t)(job->slots + call * job->shape.num_tokens);
    return pkv_step_set(job->context, step, &job->cache, &job->indices, &job->error);
}

/* The slots of each call, and a step for each call. */
static int prepare_run(void *arg) {
    struct bench_scatter_job *job = arg;
    take_slots(job);
    for (int32_t i = 0; i < job->shape.num_calls; i++) {
        if (set_step(job, job->steps[i], i) != PKV_STATUS_OK)
            return -1;
    }
    prepare_rows(job);
    return 0;
}

static int prepare_ceiling(void *arg) {
    struct bench_scatter_job *job = arg;
    job->region = bench_stage_take_region(job->stage, job->shape.num_calls * job->shape.num_tokens);
    if (job->shape.destination == BENCH_DESTINATION_COLD)
        act_on_region(job, ROW_FLUSH);
    else if (job->shape.destination == BENCH_DESTINATION_WARM)
        act_on_region(job, ROW_TOUCH);
    prepare_source(job);
    return 0;
}

static int run(void *arg) {
    struct bench_scatter_job *job = arg;
    for (int32_t i = 0; i < job->shape.num_calls; i++) {
        if (pkv_scatter_run(job->context, job->plan, job->steps[i], &job->cache, &job->key,
                            &job->value, &job->error) != PKV_STATUS_OK)
            return -1;
    }
    return 0;
}

static int check(void *arg) {
    struct bench_scatter_job *job = arg;
    for (int32_t i = 0; i < job->shape.num_calls; i++) {
        if (set_step(job, job->steps[0], i) != PKV_STATUS_OK)
            return -1;
    }
    return 0;
}

static int check_and_run(void *arg) {
    struct bench_scatter_job *job = arg;
    for (int32_t i = 0; i < job->shape.num_calls; i++) {
        if (set_step(job, job->steps[0], i) != PKV_STATUS_OK ||
            pkv_scatter_run(job->context, job->plan, job->steps[0], &job->cache, &job->key,
                            &job->value, &job->error) != PKV_STATUS_OK)
            return -1;
    }
    return 0;
}

/* What an engine without a library writes. */
static void copy_rows(const struct bench_scatter_job *job, const int64_t *slots, int64_t first,
                      int64_t last) {
    const struct bench_rows rows = job->rows;
    unsigned char *key_cache = job->stage->key_cache.data;
    unsigned char *value_cache = job->stage->value_cache.data;
    const unsigned char *key = job->stage->key_source.data;
    const unsigned char *value = job->stage->value_source.data;
    const size_t piece_bytes = (size_t)rows.piece_bytes;
    for (int64_t t = first; t < last; t++) {
        const int64_t row = bench_rows_offset(&rows, slots[t]);
        for (int64_t i = 0; i < rows.num_pieces; i++) {
            const int64_t dst = row + i * rows.piece_stride_bytes;
            const int64_t src = t * BENCH_ROW_BYTES + i * rows.piece_bytes;
            memcpy(key_cache + dst, key + src, piece_bytes);
            memcpy(value_cache + dst, value + src, piece_bytes);
        }
    }
}

static void copy_rows_of_share(void *arg, int64_t index) {
    const struct bench_scatter_job *job = arg;
    const int64_t num_tokens = job->shape.num_tokens;
    copy_rows(job, job->slots, num_tokens * index / job->team->num_threads,
              num_tokens * (index + 1) / job->team->num_threads);
}

static int run_plain_loop(void *arg) {
    struct bench_scatter_job *job = arg;
    const int64_t num_tokens = job->shape.num_tokens;
    if (2 * num_tokens * BENCH_ROW_BYTES > BENCH_SHORT_BYTES) {
        bench_run_tiles(&job->team->executor, copy_rows_of_share, job, job->team->num_threads);
        return 0;
    }
    for (int32_t i = 0; i < job->shape.num_calls; i++)
        copy_rows(job, job->slots + i * num_tokens, 0, num_tokens);
    return 0;
}

/* Lines that the plain loop left modified in the caches would be written back during somebody
 * else's sample. Warm rows stay: every way of writing them leaves them so. */
static void clean_up_plain_loop(void *arg) {
    const struct bench_scatter_job *job = arg;
    if (job->shape.destination != BENCH_DESTINATION_WARM)
        act_on_slots(job, ROW_FLUSH);
}

static int run_ceiling(void *arg) {
    struct bench_scatter_job *job = arg;
    const int64_t bytes = job->shape.num_tokens * BENCH_ROW_BYTES;
    for (int32_t i = 0; i < job->shape.num_calls; i++) {
        const int64_t offset = job->region * BENCH_ROW_BYTES + i * bytes;
        const struct bench_span spans[2] = {
            {job->stage->key_cache.data + offset, job->stage->key_source.data, bytes},
            {job->stage->value_cache.data + offset, job->stage->value_source.data, bytes}};
        bench_ceiling_copy(&job->team->executor, spans, 2);
    }
    return 0;
}

struct bench_variant bench_scatter_run(struct bench_scatter_job *job) {
    return (struct bench_variant){prepare_run, run, NULL, job};
}

struct bench_variant bench_scatter_check_and_run(struct bench_scatter_job *job) {
    return (struct bench_variant){prepare_plain, check_and_run, NULL, job};
}

struct bench_variant bench_scatter_check(struct bench_scatter_job *job) {
    return (struct bench_variant){prepare_plain, check, NULL, job};
}

struct bench_variant bench_scatter_plain_loop(struct bench_scatter_job *job) {
    return (struct bench_variant){prepare_plain, run_plain_loop, clean_up_plain_loop, job};
}

struct bench_variant bench_scatter_ceiling(struct bench_scatter_job *job) {
    return (struct bench_variant){prepare_ceiling, run_ceiling, NULL, job};
}

int bench_scatter_job_check(struct bench_scatter_job *job) {
    if (prepare_run(job) != 0)
        return -1;
    act_on_slots(job, ROW_SCRIBBLE);
    if (run(job) != 0)
        return -1;
    const struct bench_rows *rows = &job->rows;
    const int64_t num_slots = job->shape.num_calls * job->shape.num_tokens;
    for (int64_t i = 0; i < num_slots; i++) {
        const int64_t row = bench_rows_offset(rows, job->slots[i]);
        for (int64_t j = 0; j < rows->num_pieces; j++) {
            const int64_t dst = row + j * rows->piece_stride_bytes;
            const int64_t src = i % job->shape.num_tokens * BENCH_ROW_BYTES + j * rows->piece_bytes;
            const size_t bytes = (size_t)rows->piece_bytes;
            if (memcmp(job->stage->key_cache.data + dst, job->stage->key_source.data + src,
                       bytes) != 0 ||
                memcmp(job->stage->value_cache.data + dst, job->stage->value_source.data + src,
                       bytes) != 0)
                return -1;
        }
    }
    return 0;
}
