/* SPDX-License-Identifier: MIT
 *
 * Gather, by plan and step and in one call: walk the blocks of each sequence (ops/sequence.c) and
 * move the valid rows of each to the output.
 */
#include <pagedkv/gather.h>

#include <string.h>

#include "base/allocator.h"
#include "base/checked.h"
#include "base/error.h"
#include "ops/plan.h"
#include "ops/rows.h"
#include "ops/walk.h"
#include "ops/sim.h"
#include "parallel/executor.h"

struct pkv_gather_plan {
    struct pkv_allocator allocator;
    struct pkv_cache cache; /* the pattern; its data pointers are not used */
    int32_t run_mode;
    int32_t cpu_level;
    int32_t copy_level;
    int32_t reserved;
};

struct side {
    struct pkv_cache_part part;
    struct pkv_tensor output; /* [num_tokens, num_heads, head_size], resolved */
    struct pkv_row_mover mover;
};

struct job {
    const struct pkv_step *step;
    const struct pkv_cache *cache;
    const char *function;
    int32_t run_mode;
    int32_t num_sides;
    struct side sides[2];
};

/* Blocks collected before they are moved. */
enum { MAX_RUNS = 64 };

struct run_list {
    const struct job *job;
    int64_t count;
    struct {
        int64_t block_id, offset, token, num_tokens;
    } runs[MAX_RUNS];
};

static void flush(struct run_list *list) {
    for (int32_t i = 0; i < list->job->num_sides; i++) {
        const struct side *side = &list->job->sides[i];
        struct pkv_span spans[MAX_RUNS];
        for (int64_t j = 0; j < list->count; j++)
            spans[j] = (struct pkv_span){
                .dst_offset = list->runs[j].token * side->mover.dst_row_stride,
                .src_offset =
                    pkv_cache_part_row(&side->part, list->runs[j].block_id, list->runs[j].offset),
                .num_rows = list->runs[j].num_tokens,
            };
        pkv_rows_move(&side->mover, spans, list->count);
    }
    list->count = 0;
}

static enum pkv_status sim_block(const struct job *job, const struct pkv_walk_block *block,
                                 int64_t token, struct pkv_error *error) {
    const int64_t slot = block->block_id * job->cache->block_size + block->offset;
    enum pkv_status status = PKV_STATUS_OK;
    for (int64_t t = 0; t < block->num_tokens; t++) {
        for (int32_t i = 0; i < job->num_sides && status == PKV_STATUS_OK; i++)
            status = pkv_sim_gather_row(&job->sides[i].part, job->cache->block_size, slot + t,
                                        &job->sides[i].output, token + t, job->function, error);
    }
    return status;
}

/* The parts divide the output tokens; each part looks for its first sequence from the start, which
 * reads one length a sequence. */
static enum pkv_status gather_part(const struct job *job, int64_t part, int64_t num_parts,
                                   struct pkv_error *error) {
    const struct pkv_step *step = job->step;
    struct run_list list;
    list.job = job;
    list.count = 0;
    int64_t first, end, base = 0;
    pkv_rows_share(step->num_gather_tokens, part, num_parts, &first, &end);
    for (int64_t b = 0; b < step->num_seqs && base < end; b++) {
        const int64_t length = pkv_step_seq_len(step, b);
        const int64_t from = first > base ? first - base : 0;
        const int64_t to = end - base < length ? end - base : length;
        struct pkv_walk walk;
        struct pkv_walk_block block;
        int64_t token = base + from;
        if (from < to) {
            const struct pkv_vector row = pkv_step_table_row(step, b);
            pkv_walk_start(&walk, job->cache, &row, pkv_step_seq_offset(step, b) + from, to - from);
            while (pkv_walk_next(&walk, &block)) {
                if (job->run_mode == PKV_RUN_MODE_SIM) {
                    const enum pkv_status status = sim_block(job, &block, token, error);
                    if (status != PKV_STATUS_OK)
                        return status;
                } else {
                    if (list.count == MAX_RUNS)
                        flush(&list);
                    list.runs[list.count].block_id = block.block_id;
                    list.runs[list.count].offset = block.offset;
                    list.runs[list.count].token = token;
                    list.runs[list.count].num_tokens = block.num_tokens;
                    list.count++;
                }
                token += block.num_tokens;
            }
        }
        base += length;
    }
    flush(&list);
    return PKV_STATUS_OK;
}

/* An output of [num_tokens, kv_dim] is one of [num_tokens, num_heads, head_size] that is packed
 * inside. */
static void split_rows(struct pkv_tensor *output, const struct pkv_cache_part *part) {
    if (output->ndim != 2 || output->shape[1] != part->num_heads * part->head_size)
        return;
    output->ndim = 3;
    output->shape[1] = part->num_heads;
    output->shape[2] = part->head_size;
    output->strides[2] = output->strides[1];
    output->strides[1] *= part->head_size;
}

static enum pkv_status check_output(const struct job *job, const struct side *side,
                                    const char *name, struct pkv_error *error) {
    const struct pkv_tensor *output = &side->output;
    if (output->dtype != side->part.dtype)
        return pkv_error_set(error, PKV_STATUS_DTYPE, job->function, name, PKV_ERROR_NONE,
                             output->dtype, side->part.dtype, "must have the dtype of its cache");
    if (output->ndim != 3)
        return pkv_error_set(error, PKV_STATUS_RANK, job->function, name, PKV_ERROR_NONE,
                             output->ndim, 3, "must be [num_tokens, num_kv_heads, head_size]");
    const int64_t wanted[3] = {job->step->num_gather_tokens, side->part.num_heads,
                               side->part.head_size};
    static const char *const rules[3] = {
        "must be the sum of the sequence lengths",
        "must be the number of heads of its cache",
        "must be the head size of its cache",
    };
    for (int32_t i = 0; i < 3; i++) {
        if (output->shape[i] != wanted[i])
            return pkv_error_set_axis(error, PKV_STATUS_SHAPE, job->function, name, i,
                                      output->shape[i], wanted[i], rules[i]);
    }
    const struct pkv_strided written = pkv_strided_from_tensor(output);
    if (!pkv_strided_is_injective(&written))
        return pkv_error_set(error, PKV_STATUS_STRIDE, job->function, name, PKV_ERROR_NONE,
                             PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "has strides by which elements share bytes, or interleave");
    return PKV_STATUS_OK;
}

static enum pkv_status add_side(struct job *job, const struct pkv_context *context,
                                const struct pkv_cache_part *part, const struct pkv_tensor *output,
                                const char *name, bool rows_may_be_flat, struct pkv_error *error) {
    struct side *side = &job->sides[job->num_sides];
    side->part = *part;
    enum pkv_status status =
        pkv_tensor_read(&side->output, output, &(struct pkv_where){job->function, name, error});
    if (status != PKV_STATUS_OK)
        return status;
    if (rows_may_be_flat)
        split_rows(&side->output, part);
    status = check_output(job, side, name, error);
    if (status != PKV_STATUS_OK)
        return status;
    const struct pkv_row_shape from = pkv_row_shape_of_part(part);
    const struct pkv_row_shape to = pkv_row_shape_of_tensor(&side->output);
    side->mover = (struct pkv_row_mover){
        .kernels = &context->kernels,
        .dst = side->output.data,
        .src = part->data,
        .dst_row_stride = side->output.strides[0] * part->element_bytes,
        .src_row_stride = part->token_stride_bytes,
        .kind = PKV_COPY_STREAM,
    };
    pkv_copy_nest_init(&side->mover.nest, &to, &from);
    job->num_sides++;
    return PKV_STATUS_OK;
}

/* What is written: the outputs. What must not be touched by that: the caches, the indices and each
 * other. */
static enum pkv_status check_overlap(const struct job *job, struct pkv_error *error) {
    static const char *const names[2] = {"key", "value"};
    const struct pkv_step *step = job->step;
    struct pkv_strided table = pkv_vector_bytes(&step->table_row);
    pkv_strided_add(&table, step->num_seqs,
                    step->table_row_stride * pkv_dtype_bytes(step->table_row.dtype));
    struct pkv_strided read[5] = {table, pkv_vector_bytes(&step->seq_lens)};
    int32_t num_read = 2;
    if (step->seq_offsets.data)
        read[num_read++] = pkv_vector_bytes(&step->seq_offsets);
    for (int32_t i = 0; i < job->num_sides; i++)
        read[num_read++] = pkv_cache_part_bytes(&job->sides[i].part, job->cache->num_blocks,
                                                job->cache->block_size);
    struct pkv_strided written[2];
    for (int32_t i = 0; i < job->num_sides; i++) {
        written[i] = pkv_strided_from_tensor(&job->sides[i].output);
        bool meets = i == 1 && pkv_strided_may_overlap(&written[0], &written[1]);
        for (int32_t j = 0; j < num_read; j++)
            meets = meets || pkv_strided_may_overlap(&written[i], &read[j]);
        if (meets)
            return pkv_error_set(error, PKV_STATUS_OVERLAP, job->function, names[i], PKV_ERROR_NONE,
                                 PKV_ERROR_NONE, PKV_ERROR_NONE,
                                 "must not share bytes with a cache, an index or another output");
    }
    return PKV_STATUS_OK;
}

static enum pkv_status prepare(struct job *job, const struct pkv_context *context, int32_t run_mode,
                               const struct pkv_step *step, const struct pkv_cache *cache,
                               const struct pkv_tensor *key, const struct pkv_tensor *value,
                               bool rows_may_be_flat, const char *function,
                               struct pkv_error *error) {
    const bool has_value = cache->value.data != NULL;
    if (has_value != !pkv_tensor_is_absent(value))
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, function, "value", PKV_ERROR_NONE,
                             PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "must be NULL exactly when the cache is key-only");
    job->step = step;
    job->cache = cache;
    job->function = function;
    job->run_mode = run_mode;
    job->num_sides = 0;
    enum pkv_status status =
        add_side(job, context, &cache->key, key, "key", rows_may_be_flat, error);
    if (status == PKV_STATUS_OK && has_value)
        status = add_side(job, context, &cache->value, value, "value", rows_may_be_flat, error);
    return status == PKV_STATUS_OK ? check_overlap(job, error) : status;
}

struct parts {
    const struct job *job;
    int64_t num_parts;
};

static void run_tile(void *arg, int64_t index) {
    const struct parts *parts = arg;
    (void)gather_part(parts->job, index, parts->num_parts, NULL);
}

static enum pkv_status run(const struct job *job, const struct pkv_executor *executor,
                           struct pkv_error *error) {
    uint64_t row_bytes = 0;
    for (int32_t i = 0; i < job->num_sides; i++)
        row_bytes += (uint64_t)job->sides[i].part.row_bytes;
    const int64_t num_parts = pkv_rows_num_parts(row_bytes * (uint64_t)job->step->num_gather_tokens,
                                                 executor->num_threads);
    if (job->run_mode == PKV_RUN_MODE_SIM || num_parts == 1)
        return gather_part(job, 0, 1, error);
    struct parts parts = {job, num_parts};
    pkv_executor_run(executor, run_tile, &parts, num_parts);
    return PKV_STATUS_OK;
}

enum pkv_status pkv_gather_plan_create(struct pkv_gather_plan **plan, struct pkv_context *context,
                                       const struct pkv_cache *cache, struct pkv_error *error) {
    struct pkv_error facts = {.struct_size = sizeof(facts)};
    enum pkv_status status = PKV_STATUS_OK;
    struct pkv_gather_plan *made = NULL;
    if (plan)
        *plan = NULL;
    if (plan == NULL || context == NULL || cache == NULL)
        status = pkv_refuse_null(__func__,
                                 plan == NULL      ? "plan"
                                 : context == NULL ? "context"
                                                   : "cache",
                                 &facts);
    else
        status = pkv_cache_check(cache, __func__, "cache", &facts);
    if (status == PKV_STATUS_OK)
        status = pkv_check_key_only(cache->key.layout, cache->value.data == NULL, "cache", __func__,
                                    &facts);
    if (status == PKV_STATUS_OK) {
        made = pkv_alloc(&context->allocator, sizeof(*made), _Alignof(struct pkv_gather_plan));
        if (made == NULL)
            status = pkv_error_set(&facts, PKV_STATUS_OUT_OF_MEMORY, __func__, NULL, PKV_ERROR_NONE,
                                   PKV_ERROR_NONE, (int64_t)sizeof(*made),
                                   "the allocator has no memory of that many bytes");
    }
    if (status == PKV_STATUS_OK) {
        *made = (struct pkv_gather_plan){
            .allocator = context->allocator,
            .cache = *cache,
            .run_mode = context->run_mode,
            .cpu_level = context->cpu_level,
            .copy_level = context->kernels.copy_level,
        };
        *plan = made;
    }
    return pkv_context_finish(context, status, &facts, error);
}

void pkv_gather_plan_destroy(struct pkv_gather_plan *plan) {
    if (plan == NULL)
        return;
    const struct pkv_allocator allocator = plan->allocator;
    pkv_free(&allocator, plan);
}

enum pkv_status pkv_gather_plan_explain(const struct pkv_gather_plan *plan, int64_t num_tokens,
                                        int32_t num_threads, struct pkv_explanation *explanation,
                                        struct pkv_error *error) {
    if (plan == NULL || explanation == NULL)
        return pkv_refuse_null(__func__, plan == NULL ? "plan" : "explanation", error);
    struct pkv_explanation made;
    int64_t tile;
    if (!pkv_checked_mul(MAX_RUNS, plan->cache.block_size, &tile))
        tile = INT64_MAX;
    const enum pkv_status status = pkv_explain_rows(&made, &plan->cache, plan->run_mode, tile,
                                                    num_tokens, num_threads, __func__, error);
    if (status != PKV_STATUS_OK)
        return status;
    made.cpu_level = plan->cpu_level;
    made.key_kernel = pkv_explain_kernel(&plan->cache.key, plan->run_mode, plan->copy_level);
    made.value_kernel = pkv_explain_kernel(&plan->cache.value, plan->run_mode, plan->copy_level);
    made.store_policy = plan->run_mode == PKV_RUN_MODE_SIM ? "cached" : "streaming";
    return pkv_struct_write(explanation, &made, sizeof(made), __func__, "explanation", error);
}

static enum pkv_status prepare_run(struct job *job, const struct pkv_context *context,
                                   const struct pkv_gather_plan *plan, const struct pkv_step *step,
                                   const struct pkv_cache *cache, const struct pkv_tensor *key,
                                   const struct pkv_tensor *value, const char *function,
                                   struct pkv_error *error) {
    if (plan == NULL || step == NULL || cache == NULL)
        return pkv_refuse_null(function,
                               plan == NULL   ? "plan"
                               : step == NULL ? "step"
                                              : "cache",
                               error);
    const enum pkv_status status =
        pkv_check_cache_and_step(&plan->cache, cache, step, step->has_gather, function, error);
    if (status != PKV_STATUS_OK)
        return status;
    return prepare(job, context, plan->run_mode, step, cache, key, value, false, function, error);
}

enum pkv_status pkv_gather_run(struct pkv_context *context, const struct pkv_gather_plan *plan,
                               const struct pkv_step *step, const struct pkv_cache *cache,
                               const struct pkv_tensor *key, const struct pkv_tensor *value,
                               struct pkv_error *error) {
    struct job job;
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    enum pkv_status status =
        prepare_run(&job, context, plan, step, cache, key, value, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = run(&job, &context->executor, &facts);
    return pkv_context_finish(context, status, &facts, error);
}

enum pkv_status pkv_gather_run_part(struct pkv_context *context, const struct pkv_gather_plan *plan,
                                    const struct pkv_step *step, const struct pkv_cache *cache,
                                    const struct pkv_tensor *key, const struct pkv_tensor *value,
                                    int64_t part, int64_t num_parts, struct pkv_error *error) {
    struct job job;
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    enum pkv_status status = pkv_check_part(part, num_parts, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = prepare_run(&job, context, plan, step, cache, key, value, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = gather_part(&job, part, num_parts, &facts);
    return pkv_context_finish(context, status, &facts, error);
}

/* The published call has other words for two indices of a step. */
static const char *published_name(const char *argument) {
    if (strcmp(argument, "block_table") == 0)
        return "block_tables";
    return strcmp(argument, "seq_offsets") == 0 ? "seq_offset" : argument;
}

static enum pkv_status gather(struct pkv_context *context, const struct pkv_tensor *key_cache,
                              const struct pkv_tensor *value_cache,
                              const struct pkv_tensor *block_tables,
                              const struct pkv_tensor *seq_lens, const struct pkv_tensor *key,
                              const struct pkv_tensor *value, const struct pkv_tensor *seq_offset,
                              const struct pkv_gather_pa_kv_cache_options *options,
                              const char *function, struct pkv_error *error) {
    struct pkv_gather_pa_kv_cache_options chosen;
    struct pkv_cache cache;
    struct pkv_step step;
    struct job job;
    if (key == NULL || block_tables == NULL || seq_lens == NULL)
        return pkv_refuse_null(function,
                               key == NULL            ? "key"
                               : block_tables == NULL ? "block_tables"
                                                      : "seq_lens",
                               error);
    enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, function, "options", error);
    if (status != PKV_STATUS_OK)
        return status;
    if ((chosen.seq_lens_are_plain != 0 && chosen.seq_lens_are_plain != 1) || chosen.reserved != 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function,
                             chosen.reserved ? "options->reserved" : "options->seq_lens_are_plain",
                             PKV_ERROR_NONE,
                             chosen.reserved ? chosen.reserved : chosen.seq_lens_are_plain,
                             chosen.reserved ? 0 : 1, chosen.reserved ? "must be" : "must be 0 or");
    status = pkv_check_key_only(chosen.key_layout, pkv_tensor_is_absent(value_cache), "value_cache",
                                function, error);
    if (status != PKV_STATUS_OK)
        return status;
    /* PA_NZ does not tell its heads; the output does, if it has three axes. */
    const bool heads_are_needed = key_cache && key_cache->ndim == 4 && key->ndim == 3 &&
                                  chosen.key_layout == PKV_LAYOUT_PA_NZ;
    const struct pkv_cache_options cache_options = {
        .struct_size = sizeof(cache_options),
        .key_layout = chosen.key_layout,
        .value_layout = chosen.value_layout,
        .num_kv_heads = heads_are_needed && key->shape[1] > 0 ? key->shape[1] : 0,
    };
    struct pkv_error facts = {.struct_size = sizeof(facts)};
    status = pkv_cache_init(&cache, key_cache, value_cache, &cache_options, &facts);
    if (status != PKV_STATUS_OK)
        return pkv_error_forward(error, &facts, function, NULL);
    struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .seq_lens_cumulative = !chosen.seq_lens_are_plain,
        .block_table = *block_tables,
        .seq_lens = *seq_lens,
    };
    if (seq_offset)
        indices.seq_offsets = *seq_offset;
    pkv_step_init_bare(&step);
    status = pkv_step_set_indices(&step, &context->kernels, cache.num_blocks, cache.block_size,
                                  &indices, function, &facts);
    if (status != PKV_STATUS_OK)
        return pkv_error_forward(error, &facts, function, published_name(facts.argument));
    if (!step.has_gather)
        status = pkv_refuse_null(function, "block_tables", error);
    if (status == PKV_STATUS_OK)
        status = prepare(&job, context, context->run_mode, &step, &cache, key, value, true,
                         function, error);
    return status == PKV_STATUS_OK ? run(&job, &context->executor, error) : status;
}

enum pkv_status
pkv_gather_pa_kv_cache(struct pkv_context *context, const struct pkv_tensor *key_cache,
                       const struct pkv_tensor *value_cache, const struct pkv_tensor *block_tables,
                       const struct pkv_tensor *seq_lens, const struct pkv_tensor *key,
                       const struct pkv_tensor *value, const struct pkv_tensor *seq_offset,
                       const struct pkv_gather_pa_kv_cache_options *options,
                       struct pkv_error *error) {
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    const enum pkv_status status = gather(context, key_cache, value_cache, block_tables, seq_lens,
                                          key, value, seq_offset, options, __func__, &facts);
    return pkv_context_finish(context, status, &facts, error);
}
