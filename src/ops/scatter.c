/* SPDX-License-Identifier: MIT
 *
 * The scatter itself: select the tokens of a part, join neighbours to spans, move the rows. The
 * public forms of it are in scatter_plan.c, scatter_pa_kv_cache.c and scatter_update.c.
 */
#include "ops/scatter.h"

#include "base/error.h"
#include "ops/sim.h"
#include "parallel/executor.h"

/* Up to this many bytes of rows the destination may well be in cache (a decode step writes beside
 * the rows of the step before) and will be read at once: ordinary stores are up to three times as
 * fast then, and lose a fifth when the rows are not in cache. Measured, doc/performance.md. */
enum { MAX_CACHED_BYTES = 65536 };

enum pkv_copy_kind pkv_scatter_copy_kind(int32_t store_policy, uint64_t bytes) {
    const bool cached = store_policy == PKV_STORE_CACHED ||
                        (store_policy == PKV_STORE_AUTO && bytes <= MAX_CACHED_BYTES);
    return cached ? PKV_COPY_CACHED : PKV_COPY_STREAM;
}

enum pkv_status pkv_scatter_check_store_policy(int32_t store_policy, const char *function,
                                               struct pkv_error *error) {
    if (store_policy < PKV_STORE_AUTO || store_policy > PKV_STORE_STREAMING)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "options->store_policy",
                             PKV_ERROR_NONE, store_policy, PKV_ERROR_NONE,
                             "must be one of enum pkv_store_policy");
    return PKV_STATUS_OK;
}

static struct pkv_range range_of(const void *data, int64_t span_bytes) {
    const int64_t first = (int64_t)(uintptr_t)data;
    return (struct pkv_range){first, first + span_bytes};
}

static bool ranges_meet(struct pkv_range a, struct pkv_range b) {
    return a.first < b.end && b.first < a.end;
}

void pkv_scatter_job_init(struct pkv_scatter_job *job, const struct pkv_context *context,
                          const struct pkv_step *step, int32_t run_mode, int32_t store_policy,
                          const char *function) {
    job->step = step;
    job->kernels = &context->kernels;
    job->function = function;
    job->run_mode = run_mode;
    job->store_policy = store_policy;
    job->num_sides = 0;
    job->row_bytes = 0;
    job->written = (struct pkv_range){INT64_MAX, INT64_MIN};
}

static enum pkv_status refuse_shape(const struct pkv_scatter_job *job,
                                    const struct pkv_scatter_side *side, int32_t axis,
                                    int64_t wanted, const char *rule, struct pkv_error *error) {
    return pkv_error_set_axis(error, PKV_STATUS_SHAPE, job->function, side->source_name, axis,
                              side->source.shape[axis], wanted, rule);
}

static enum pkv_status check_source(const struct pkv_scatter_job *job,
                                    const struct pkv_scatter_side *side, struct pkv_error *error) {
    const struct pkv_tensor *source = &side->source;
    const char *name = side->source_name;
    if (source->dtype != side->part->dtype)
        return pkv_error_set(error, PKV_STATUS_DTYPE, job->function, name, PKV_ERROR_NONE,
                             source->dtype, side->part->dtype, "must have the dtype of its cache");
    if (source->ndim != 3)
        return pkv_error_set(error, PKV_STATUS_RANK, job->function, name, PKV_ERROR_NONE,
                             source->ndim, 3, "must be [num_tokens, num_kv_heads, head_size]");
    const int64_t num_tokens = job->step->slots.count;
    const int64_t num_heads = side->part->num_heads, head_size = side->part->head_size;
    if (source->shape[0] != num_tokens)
        return refuse_shape(job, side, 0, num_tokens, "must be the number of slots", error);
    if (source->shape[1] != num_heads)
        return refuse_shape(job, side, 1, num_heads, "must be the number of heads of its cache",
                            error);
    if (source->shape[2] != head_size)
        return refuse_shape(job, side, 2, head_size, "must be the head size of its cache", error);
    return PKV_STATUS_OK;
}

struct pkv_tensor *pkv_scatter_job_source(struct pkv_scatter_job *job) {
    return &job->sides[job->num_sides].source;
}

enum pkv_status pkv_scatter_job_add_source(struct pkv_scatter_job *job,
                                           const struct pkv_cache_part *part,
                                           const char *source_name, struct pkv_error *error) {
    struct pkv_scatter_side *side = &job->sides[job->num_sides];
    const struct pkv_tensor *source = &side->source;
    side->part = part;
    side->source_name = source_name;
    const enum pkv_status status = check_source(job, side, error);
    if (status != PKV_STATUS_OK)
        return status;
    const struct pkv_range written = range_of(part->data, part->span_bytes);
    side->read = range_of(source->data, pkv_tensor_span(source, 3));
    side->mover.kernels = job->kernels;
    side->mover.dst = part->data;
    side->mover.src = source->data;
    side->mover.dst_row_stride = part->token_stride_bytes;
    side->mover.src_row_stride = source->strides[0] * part->element_bytes;
    pkv_copy_nest_to_part(&side->mover.nest, part, source);
    side->next_column = -1;
    side->is_later_column = false;
    job->row_bytes += (uint64_t)part->row_bytes;
    job->written.first = written.first < job->written.first ? written.first : job->written.first;
    job->written.end = written.end > job->written.end ? written.end : job->written.end;
    job->num_sides++;
    return PKV_STATUS_OK;
}

enum pkv_status pkv_scatter_job_add(struct pkv_scatter_job *job, const struct pkv_cache_part *part,
                                    const struct pkv_tensor *source, const char *source_name,
                                    struct pkv_error *error) {
    const enum pkv_status status =
        pkv_tensor_read(pkv_scatter_job_source(job), source,
                        &(struct pkv_where){job->function, source_name, error});
    return status == PKV_STATUS_OK ? pkv_scatter_job_add_source(job, part, source_name, error)
                                   : status;
}

/* Only rows that are written matter. */
static enum pkv_status check_rows(const struct pkv_scatter_job *job,
                                  const struct pkv_cache_part *part, const struct pkv_strided *read,
                                  const char *name, struct pkv_error *error) {
    const struct pkv_vector *slots = &job->step->slots;
    for (int64_t token = 0; token < slots->count; token++) {
        const int64_t slot = pkv_vector_at(slots, token);
        if (slot < 0)
            continue;
        const int64_t row = pkv_cache_part_offset(part, job->step->block_size, slot);
        const struct pkv_strided written = pkv_cache_part_row_bytes(part, row);
        if (pkv_strided_may_overlap(&written, read))
            return pkv_error_set(error, PKV_STATUS_OVERLAP, job->function, name, PKV_ERROR_NONE,
                                 PKV_ERROR_NONE, token,
                                 "must not share bytes with a row that is written, as does that of "
                                 "token");
    }
    return PKV_STATUS_OK;
}

/* What is read lies among the caches. */
static enum pkv_status check_read(const struct pkv_scatter_job *job, struct pkv_range range,
                                  const struct pkv_strided *read, const char *name,
                                  struct pkv_error *error) {
    for (int32_t i = 0; i < job->num_sides; i++) {
        const struct pkv_cache_part *part = job->sides[i].part;
        if (!ranges_meet(range_of(part->data, part->span_bytes), range))
            continue;
        const enum pkv_status status = check_rows(job, part, read, name, error);
        if (status != PKV_STATUS_OK)
            return status;
    }
    return PKV_STATUS_OK;
}

static enum pkv_status check_overlap(const struct pkv_scatter_job *job, const char *slots_name,
                                     struct pkv_error *error) {
    const struct pkv_vector *slots = &job->step->slots;
    const struct pkv_range slots_range = range_of(slots->data, pkv_vector_span(slots));
    enum pkv_status status = PKV_STATUS_OK;
    if (ranges_meet(job->written, slots_range)) {
        const struct pkv_strided read = pkv_vector_bytes(slots);
        status = check_read(job, slots_range, &read, slots_name, error);
    }
    for (int32_t i = 0; i < job->num_sides && status == PKV_STATUS_OK; i++) {
        const struct pkv_scatter_side *side = &job->sides[i];
        if (ranges_meet(job->written, side->read)) {
            const struct pkv_strided read = pkv_strided_from_tensor(&side->source);
            status = check_read(job, side->read, &read, side->source_name, error);
        }
    }
    return status;
}

/* The count is that of elements in memory or of one repeated row; a wrapped product only picks a
 * policy. */
static uint64_t job_bytes(const struct pkv_scatter_job *job) {
    return job->row_bytes * (uint64_t)job->step->slots.count;
}

enum pkv_status pkv_scatter_job_finish(struct pkv_scatter_job *job, const char *slots_name,
                                       struct pkv_error *error) {
    const enum pkv_copy_kind kind = pkv_scatter_copy_kind(job->store_policy, job_bytes(job));
    for (int32_t i = 0; i < job->num_sides; i++)
        job->sides[i].mover.kind = kind;
    return check_overlap(job, slots_name, error);
}

/* Rows that are adjacent on both sides become one span: consecutive tokens of a contiguous source,
 * in consecutive slots. A span ends with its block, unless blocks follow each other without a gap:
 * then all of the cache counts as one. */
static int64_t place_rows(struct pkv_span *spans, const struct pkv_scatter_job *job,
                          const struct pkv_scatter_side *side, const int64_t *slots,
                          const int64_t *tokens, int64_t count) {
    /* A copy that nothing else points to: its strides are loaded once, not for each row. */
    const struct pkv_cache_part part = *side->part;
    const int64_t block_size = job->step->block_size, src_stride = side->mover.src_row_stride;
    const bool is_flat = pkv_cache_part_is_flat(&part, block_size);
    struct pkv_span *end = spans;
    int64_t next_slot = -1, next_token = -1, last_block = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t slot = slots[i], token = tokens[i];
        const int64_t block = is_flat ? 0 : slot / block_size;
        if (slot == next_slot && token == next_token && block == last_block)
            end[-1].num_rows++;
        else
            *end++ = (struct pkv_span){pkv_cache_part_row(&part, block, slot - block * block_size),
                                       token * src_stride, 1};
        next_slot = slot + 1;
        next_token = token + 1;
        last_block = block;
    }
    return end - spans;
}

/* Rows of the same tokens are at the same offsets. */
static bool steps_alike(const struct pkv_scatter_side *a, const struct pkv_scatter_side *b) {
    return a->part->block_stride_bytes == b->part->block_stride_bytes &&
           a->mover.dst_row_stride == b->mover.dst_row_stride &&
           a->mover.src_row_stride == b->mover.src_row_stride;
}

static void move_sides(const struct pkv_scatter_job *job, const int64_t *slots,
                       const int64_t *tokens, int64_t count) {
    struct pkv_span spans[PKV_SCATTER_CHUNK_TOKENS];
    int64_t num_spans = 0;
    const struct pkv_scatter_side *placed = NULL;
    for (int32_t i = 0; i < job->num_sides; i++) {
        const struct pkv_scatter_side *side = &job->sides[i];
        if (side->is_later_column)
            continue;
        if (side->next_column >= 0) {
            pkv_scatter_move_columns(job, side, slots, tokens, count);
            continue;
        }
        if (placed == NULL || !steps_alike(placed, side))
            num_spans = place_rows(spans, job, side, slots, tokens, count);
        placed = side;
        pkv_rows_move(&side->mover, spans, num_spans);
    }
}

static void scatter_part(const struct pkv_scatter_job *job, int64_t part, int64_t num_parts) {
    const struct pkv_vector *slots = &job->step->slots;
    const struct pkv_slot_part range = pkv_step_slot_part(job->step, part, num_parts);
    pkv_select_slots_fn *select = job->kernels->select_slots[pkv_step_slot_type(job->step)];
    int64_t chosen_slots[PKV_SCATTER_CHUNK_TOKENS], chosen_tokens[PKV_SCATTER_CHUNK_TOKENS];
    int64_t chosen = 0;
    for (int64_t first = range.first_token; first < range.end_token;) {
        /* Fill the chunk: a part that owns few of the tokens would otherwise move few rows at a
         * time. */
        const int64_t rest = range.end_token - first;
        const int64_t room = PKV_SCATTER_CHUNK_TOKENS - chosen;
        const int64_t count = rest < room ? rest : room;
        chosen += select(slots->data, slots->stride, first, count, range.low, range.high,
                         chosen_slots + chosen, chosen_tokens + chosen);
        first += count;
        if (chosen < PKV_SCATTER_CHUNK_TOKENS / 2 && first < range.end_token)
            continue;
        move_sides(job, chosen_slots, chosen_tokens, chosen);
        chosen = 0;
    }
}

struct parts {
    const struct pkv_scatter_job *job;
    int64_t num_parts;
};

static void run_tile(void *arg, int64_t index) {
    const struct parts *parts = arg;
    scatter_part(parts->job, index, parts->num_parts);
}

enum pkv_status pkv_scatter_job_run_part(const struct pkv_scatter_job *job, int64_t part,
                                         int64_t num_parts, struct pkv_error *error) {
    if (job->run_mode == PKV_RUN_MODE_SIM)
        return pkv_sim_scatter(job, part, num_parts, error);
    scatter_part(job, part, num_parts);
    return PKV_STATUS_OK;
}

enum pkv_status pkv_scatter_job_run(const struct pkv_scatter_job *job,
                                    const struct pkv_executor *executor, struct pkv_error *error) {
    const int64_t num_parts = pkv_rows_num_parts(job_bytes(job), executor->num_threads);
    if (job->run_mode == PKV_RUN_MODE_SIM || num_parts == 1)
        return pkv_scatter_job_run_part(job, 0, 1, error);
    struct parts parts = {job, num_parts};
    pkv_executor_run(executor, run_tile, &parts, num_parts);
    return PKV_STATUS_OK;
}
