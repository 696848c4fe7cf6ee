/* SPDX-License-Identifier: MIT
 *
 * What a run of paged attention would do, counted as the run divides it.
 */
#include "base/checked.h"
#include "base/error.h"
#include "ops/attention.h"

#include <pagedkv/cpu.h>

/* The rungs of the ladder that have products of their own, which are those of copies. */
static int rung_of(const struct pkv_kernels *kernels) {
    switch (kernels->copy_level) {
    case PKV_CPU_LEVEL_AVX2:
        return 1;
    case PKV_CPU_LEVEL_AVX512:
        return 2;
    case PKV_CPU_LEVEL_NEON:
        return 3;
    default:
        return 0;
    }
}

#define NAMES_OF(product, level)                                                                   \
    {                                                                                              \
        [PKV_ATTENTION_F32] = "attention_" product "_f32_" level,                                  \
        [PKV_ATTENTION_F16] = "attention_" product "_f16_" level,                                  \
        [PKV_ATTENTION_BF16] = "attention_" product "_bf16_" level,                                \
    }

static const char *const score_names[][PKV_NUM_ATTENTION_TYPES] = {
    NAMES_OF("scores", "c"), NAMES_OF("scores", "avx2"), NAMES_OF("scores", "avx512"),
    NAMES_OF("scores", "neon")};
static const char *const value_names[][PKV_NUM_ATTENTION_TYPES] = {
    NAMES_OF("values", "c"), NAMES_OF("values", "avx2"), NAMES_OF("values", "avx512"),
    NAMES_OF("values", "neon")};

static void name_kernels(struct pkv_attention_explanation *made,
                         const struct pkv_attention_job *job, int64_t most_rows) {
    const int rung = rung_of(job->kernels);
    made->score_kernel = job->pair
                             ? "attention_scores_dot_avx512_bf16"
                             : score_names[rung][pkv_attention_type_of(job->cache->key.dtype)];
    made->value_kernel = pkv_attention_takes_dots(job, most_rows)
                             ? "attention_values_dot_avx512_bf16"
                             : value_names[rung][pkv_attention_type_of(job->value.dtype)];
}

/* Bytes that are read of a token for one key head; values within keys come with them. */
static int64_t token_bytes(const struct pkv_attention_job *job) {
    const struct pkv_cache_part *key = &job->cache->key, *value = &job->cache->value;
    return (key->row_bytes + value->row_bytes) / key->num_heads;
}

/* The tokens of a span that some row sees. */
static int64_t span_tokens(const struct pkv_attention_job *job,
                           const struct pkv_attention_span *span) {
    int64_t begin = span->tile * PKV_ATTENTION_TILE, end = span->tile_end * PKV_ATTENTION_TILE;
    if (!span->is_shared) {
        const struct pkv_attention_place first = pkv_attention_place(job, span->seq, span->row);
        const struct pkv_attention_place last =
            pkv_attention_place(job, span->seq, span->row_end - 1);
        begin = first.begin > begin ? first.begin : begin;
        end = last.end < end ? last.end : end;
    }
    return end > begin ? end - begin : 0;
}

static bool add_product(int64_t *sum, int64_t a, int64_t b) {
    int64_t product;
    return pkv_checked_mul(a, b, &product) && pkv_checked_add(*sum, product, sum);
}

/* Positions that all queries see, each with every head. */
static double visible_positions(const struct pkv_attention_job *job) {
    const struct pkv_step *step = job->step;
    double sum = 0;
    for (int64_t seq = 0; seq < step->num_seqs; seq++) {
        const int64_t end = pkv_step_query_start(step, seq + 1);
        for (int64_t token = pkv_step_query_start(step, seq); token < end; token++) {
            const struct pkv_attention_place place =
                pkv_attention_place(job, seq, token * job->plan->group);
            sum += place.end > place.begin ? (double)(place.end - place.begin) : 0;
        }
    }
    return sum * (double)job->plan->num_heads;
}

static bool count_units(struct pkv_attention_explanation *made, const struct pkv_attention_job *job,
                        int32_t num_threads, int64_t *most_rows) {
    const struct pkv_attention_division division = pkv_attention_divide(job, num_threads);
    struct pkv_attention_units units = pkv_attention_units(&division.work, 0, 1);
    struct pkv_attention_unit unit;
    bool fits = true;
    *most_rows = 0;
    while (pkv_attention_units_next(&units, &unit)) {
        struct pkv_attention_span span = {.row_end = 0};
        while (pkv_attention_next_span(job, &unit, &span)) {
            const int64_t num_rows = span.row_end - span.row;
            *most_rows = num_rows > *most_rows ? num_rows : *most_rows;
            made->num_tiles += span.tile_end > span.tile ? span.tile_end - span.tile : 0;
            fits = fits && add_product(&made->bytes_read, span_tokens(job, &span),
                                       token_bytes(job) * (unit.head_end - unit.head));
        }
    }
    made->num_units = division.work.num_units;
    made->num_pieces = division.num_pieces;
    made->num_parts = division.num_parts;
    return fits;
}

/* The definition: row after row, token after token, each head by itself. */
static bool count_rows(struct pkv_attention_explanation *made, const struct pkv_attention_job *job,
                       double positions) {
    made->num_units = made->num_rows;
    made->num_pieces = made->num_parts = 1;
    /* Fits: 2^31 rows of 2^32 positions. Exact up to 2^53, which is centuries of sim. */
    made->num_tiles = (int64_t)positions;
    return add_product(&made->bytes_read, made->num_tiles, token_bytes(job));
}

/* Units are counted one by one. */
static const int64_t MAX_ROWS = INT32_MAX;

static enum pkv_status explain(struct pkv_attention_explanation *made,
                               const struct pkv_context *context,
                               const struct pkv_paged_attention_plan *plan,
                               const struct pkv_step *step, const char *function,
                               struct pkv_error *error) {
    struct pkv_attention_job job;
    const enum pkv_status status =
        pkv_attention_job_init(&job, context, plan, step, &plan->cache, function, error);
    if (status != PKV_STATUS_OK)
        return status;
    int64_t num_rows;
    if (!pkv_checked_mul(step->num_queries, plan->num_heads, &num_rows) || num_rows > MAX_ROWS)
        return pkv_error_set(error, PKV_STATUS_OVERFLOW, function, "step", PKV_ERROR_NONE,
                             step->num_queries, MAX_ROWS / plan->num_heads,
                             "has more queries of that many heads than are explained");
    const bool is_sim = plan->run_mode == PKV_RUN_MODE_SIM;
    const double positions = visible_positions(&job);
    const int64_t tile_tokens = is_sim ? 1 : PKV_ATTENTION_TILE;
    const int64_t tile_heads = is_sim ? 1 : plan->cache.key.num_heads;
    *made = (struct pkv_attention_explanation){
        .struct_size = sizeof(*made),
        .run_mode = plan->run_mode,
        .cpu_level = context->cpu_level,
        .num_seqs = step->num_seqs,
        .num_tokens = step->num_queries,
        .num_rows = num_rows,
        .tile_tokens = tile_tokens,
        .flops = 2 * positions * (double)(plan->head_size + plan->value_head_size),
        .score_kernel = "sim",
        .value_kernel = "sim",
    };
    int64_t most_rows;
    bool fits = add_product(&made->tile_bytes, tile_tokens, tile_heads * token_bytes(&job));
    if (is_sim)
        fits = fits && count_rows(made, &job, positions);
    else
        fits = fits && count_units(made, &job, context->executor.num_threads, &most_rows);
    if (!fits)
        return pkv_error_set(error, PKV_STATUS_OVERFLOW, function, "step", PKV_ERROR_NONE,
                             PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "makes the run read more bytes than 64 bits can count");
    if (!is_sim)
        name_kernels(made, &job, most_rows);
    return PKV_STATUS_OK;
}

enum pkv_status pkv_paged_attention_explain(const struct pkv_context *context,
                                            const struct pkv_paged_attention_plan *plan,
                                            const struct pkv_step *step,
                                            struct pkv_attention_explanation *explanation,
                                            struct pkv_error *error) {
    if (context == NULL || plan == NULL || step == NULL || explanation == NULL)
        return pkv_refuse_null(__func__,
                               context == NULL ? "context"
                               : plan == NULL  ? "plan"
                               : step == NULL  ? "step"
                                               : "explanation",
                               error);
    struct pkv_attention_explanation made;
    const enum pkv_status status = explain(&made, context, plan, step, __func__, error);
    if (status != PKV_STATUS_OK)
        return status;
    return pkv_struct_write(explanation, &made, sizeof(made), __func__, "explanation", error);
}
