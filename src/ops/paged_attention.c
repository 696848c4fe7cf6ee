/* SPDX-License-Identifier: MIT
 *
 * Paged attention, run whole or in parts. How a unit of work is done is in attention_tiles.c.
 */
#include <stdatomic.h>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/plan.h"
#include "parallel/executor.h"

struct run {
    const struct pkv_attention_job *job;
    const struct pkv_attention_work *work;
    char *scratch;
    size_t workspace_bytes;
    int64_t num_workspaces;
    int64_t num_parts;
    int64_t num_pieces; /* of each unit, where units are cut */
    atomic_uchar is_taken[PKV_ATTENTION_MAX_WORKSPACES];
};

static struct pkv_attention_workspace workspace_at(const struct run *run, int64_t i) {
    return pkv_attention_workspace(run->job->plan, run->scratch + (size_t)i * run->workspace_bytes);
}

/* There are more workspaces than threads that take one. */
static int64_t take_workspace(struct run *run) {
    for (int64_t i = 0;; i = (i + 1) % run->num_workspaces) {
        if (atomic_exchange_explicit(&run->is_taken[i], 1, memory_order_acquire) == 0)
            return i;
    }
}

static void run_part(void *arg, int64_t part) {
    struct run *run = arg;
    const int64_t taken = take_workspace(run);
    const struct pkv_attention_workspace workspace = workspace_at(run, taken);
    pkv_attention_run_units(run->job, &workspace,
                            pkv_attention_units(run->work, part, run->num_parts));
    atomic_store_explicit(&run->is_taken[taken], 0, memory_order_release);
}

static bool nth_unit(const struct run *run, int64_t n, struct pkv_attention_unit *unit) {
    struct pkv_attention_units units = pkv_attention_units(run->work, 0, 1);
    bool exists = true;
    for (int64_t i = 0; i <= n && exists; i++)
        exists = pkv_attention_units_next(&units, unit);
    return exists;
}

/* A piece keeps its workspace until the pieces of its unit are put together. */
static void run_piece(void *arg, int64_t i) {
    const struct run *run = arg;
    const struct pkv_attention_workspace workspace = workspace_at(run, i);
    struct pkv_attention_unit unit;
    if (nth_unit(run, i / run->num_pieces, &unit))
        pkv_attention_run_piece(run->job, &workspace, &unit, i % run->num_pieces, run->num_pieces);
}

static void join_pieces(void *arg, int64_t i) {
    const struct run *run = arg;
    const struct pkv_attention_workspace workspace = workspace_at(run, i * run->num_pieces);
    struct pkv_attention_unit unit;
    if (!nth_unit(run, i, &unit))
        return;
    const int64_t num_rows = unit.row_end - unit.row;
    const int64_t head_size = run->job->plan->value_head_size;
    const struct pkv_attention_rows rows = {0, num_rows, unit.head_end - unit.head, num_rows};
    for (int64_t piece = 1; piece < run->num_pieces; piece++) {
        const struct pkv_attention_workspace later = workspace_at(run, i * run->num_pieces + piece);
        pkv_attention_state_append(&workspace.state, &later.state, run->job->kernels, &rows,
                                   head_size, workspace.keep, workspace.add);
    }
    pkv_attention_state_close(&workspace.state, run->job->kernels, &rows, head_size, workspace.keep,
                              workspace.add);
    pkv_attention_store_rows(run->job, &workspace, &unit, 0, num_rows);
}

static enum pkv_status check_scratch(const struct pkv_context *context,
                                     const struct pkv_paged_attention_plan *plan,
                                     int64_t num_workspaces, const char *function,
                                     struct pkv_error *error) {
    const size_t needed = (size_t)num_workspaces * pkv_attention_workspace_bytes(plan);
    if (context->scratch_bytes < needed)
        return pkv_error_set(error, PKV_STATUS_CAPACITY, function, "context", PKV_ERROR_NONE,
                             (int64_t)context->scratch_bytes, (int64_t)needed,
                             "has less scratch than pkv_paged_attention_reserve gives it");
    return PKV_STATUS_OK;
}

static void run_native(const struct pkv_context *context, const struct pkv_attention_job *job) {
    const struct pkv_attention_division division =
        pkv_attention_divide(job, context->executor.num_threads);
    struct run run = {
        .job = job,
        .work = &division.work,
        .scratch = context->scratch,
        .workspace_bytes = pkv_attention_workspace_bytes(job->plan),
        .num_workspaces = pkv_attention_num_workspaces(context->executor.num_threads),
        .num_parts = division.num_parts,
        .num_pieces = division.num_pieces,
    };
    if (run.num_pieces > 1) {
        pkv_executor_run(&context->executor, run_piece, &run, run.num_parts);
        pkv_executor_run(&context->executor, join_pieces, &run, run.work->num_units);
        return;
    }
    pkv_executor_run(&context->executor, run_part, &run, run.num_parts);
}

enum pkv_status pkv_paged_attention_run(struct pkv_context *context,
                                        const struct pkv_paged_attention_plan *plan,
                                        const struct pkv_step *step, const struct pkv_cache *cache,
                                        const struct pkv_paged_attention_tensors *tensors,
                                        struct pkv_error *error) {
    struct pkv_attention_job job;
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    enum pkv_status status =
        pkv_attention_prepare(&job, context, plan, step, cache, tensors, __func__, &facts);
    if (status == PKV_STATUS_OK && plan->run_mode == PKV_RUN_MODE_SIM) {
        status = pkv_attention_sim(&job, &facts);
    } else if (status == PKV_STATUS_OK) {
        const int64_t num_workspaces = pkv_attention_num_workspaces(context->executor.num_threads);
        status = check_scratch(context, plan, num_workspaces, __func__, &facts);
        if (status == PKV_STATUS_OK)
            run_native(context, &job);
    }
    return pkv_context_finish(context, status, &facts, error);
}

enum pkv_status pkv_paged_attention_run_part(struct pkv_context *context,
                                             const struct pkv_paged_attention_plan *plan,
                                             const struct pkv_step *step,
                                             const struct pkv_cache *cache,
                                             const struct pkv_paged_attention_tensors *tensors,
                                             int64_t part, int64_t num_parts,
                                             struct pkv_error *error) {
    struct pkv_attention_job job;
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    enum pkv_status status = pkv_check_part(part, num_parts, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = pkv_attention_prepare(&job, context, plan, step, cache, tensors, __func__, &facts);
    if (status == PKV_STATUS_OK && plan->run_mode == PKV_RUN_MODE_SIM) {
        /* One row after the other: the definition has one part. */
        status = part == 0 ? pkv_attention_sim(&job, &facts) : PKV_STATUS_OK;
    } else if (status == PKV_STATUS_OK) {
        status = check_scratch(context, plan, 1, __func__, &facts);
        if (status == PKV_STATUS_OK) {
            const struct pkv_attention_work work = pkv_attention_work(&job, num_parts);
            const struct pkv_attention_workspace workspace =
                pkv_attention_workspace(plan, context->scratch);
            pkv_attention_run_units(&job, &workspace, pkv_attention_units(&work, part, num_parts));
        }
    }
    return pkv_context_finish(context, status, &facts, error);
}
