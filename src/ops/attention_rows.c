/* SPDX-License-Identifier: MIT
 *
 * The rows of a unit: their queries and places on the way in, what they see of a tile, their
 * results on the way out.
 */
#include <math.h>
#include <string.h>

#include "ops/attention.h"

/* Rows lie too far apart for the processor to see what comes next, so some are fetched ahead. */
enum { ROWS_AHEAD = 8, LINE_BYTES = 64, PAGE_BYTES = 4096 };

/* Fetches a line of each page in which a row begins. No instruction retires before its page is
 * translated: met one by one, pages cost a wait each; all at once, they are translated side by
 * side. Inlined always: gcc drops a function that only prefetches. */
static inline __attribute__((always_inline)) void
touch_rows(const struct pkv_attention_job *job, const struct pkv_tensor *tensor,
           const struct pkv_attention_place *places, int64_t num_rows, int64_t kv_head) {
    uintptr_t last = 0;
    for (int64_t r = 0; r < num_rows; r++) {
        const char *row =
            pkv_tensor_at(tensor, places[r].token, kv_head * job->plan->group + places[r].head);
        if ((uintptr_t)row / PAGE_BYTES != last)
            __builtin_prefetch(row);
        last = (uintptr_t)row / PAGE_BYTES;
    }
}

static void load_query(const struct pkv_attention_job *job, float *to, const char *from) {
    pkv_attention_load_fn *load = job->kernels->attention_load[job->query_type];
    const int64_t count = job->plan->head_size;
    if (job->query.strides[2] == 1 || count == 1) {
        load(to, from, count);
        return;
    }
    for (int64_t d = 0; d < count; d++)
        load(to + d, from + d * pkv_tensor_stride_bytes(&job->query, 2), 1);
}

void pkv_attention_load_rows(const struct pkv_attention_job *job,
                             const struct pkv_attention_workspace *workspace,
                             const struct pkv_attention_unit *unit) {
    const struct pkv_paged_attention_plan *plan = job->plan;
    const int64_t num_rows = unit->row_end - unit->row, bytes = pkv_dtype_bytes(job->query.dtype);
    int64_t seq = unit->seq;
    for (int64_t r = 0; r < num_rows; r++) {
        const int64_t row = unit->row + r;
        while (pkv_step_query_start(job->step, seq + 1) * plan->group <= row)
            seq++;
        workspace->places[r] = pkv_attention_place(job, seq, row);
    }
    for (int64_t head = unit->head; head < unit->head_end; head++) {
        touch_rows(job, &job->query, workspace->places, num_rows, head);
        for (int64_t r = 0; r < num_rows; r++) {
            const struct pkv_attention_place *place = &workspace->places[r];
            const char *from =
                pkv_tensor_at(&job->query, place->token, head * plan->group + place->head);
            if (r + ROWS_AHEAD < num_rows) {
                const char *next = pkv_tensor_at(&job->query, place[ROWS_AHEAD].token,
                                                 head * plan->group + place[ROWS_AHEAD].head);
                for (int64_t at = 0; at < plan->head_size * bytes; at += LINE_BYTES)
                    __builtin_prefetch(next + at);
            }
            float *to =
                workspace->query + ((head - unit->head) * num_rows + r) * workspace->query_stride;
            load_query(job, to, from);
            if (job->pair)
                job->pair(to, plan->head_size);
        }
    }
}

/* What the mask adds to the scores of a token's query; NULL where it has no say in the tile. */
static const float *fill_bias(const struct pkv_attention_job *job, float *bias,
                              const struct pkv_attention_place *place, int64_t tile,
                              int64_t num_tokens) {
    const struct pkv_tensor *mask = &job->mask;
    const int64_t width = mask->shape[1];
    const int64_t column =
        tile * PKV_ATTENTION_TILE + width - pkv_step_seq_end(job->step, place->seq);
    if (column + num_tokens <= 0)
        return NULL;
    const char *row = pkv_tensor_at(mask, place->token, 0);
    const int64_t step = pkv_tensor_stride_bytes(mask, 1);
    for (int64_t t = 0; t < num_tokens; t++) {
        const char *entry = row + (column + t) * step;
        if (column + t < 0 || column + t >= width)
            bias[t] = 0;
        else if (mask->dtype == PKV_DTYPE_BOOL)
            bias[t] = *entry ? 0.0f : -INFINITY;
        else
            memcpy(&bias[t], entry, sizeof(float));
    }
    return bias;
}

static int32_t clamped(int64_t x, int64_t high) {
    return (int32_t)(x < 0 ? 0 : x > high ? high : x);
}

void pkv_attention_see_tile(const struct pkv_attention_job *job,
                            const struct pkv_attention_workspace *workspace, int64_t first,
                            int64_t num_rows, int64_t tile, int64_t num_tokens) {
    const int64_t start = tile * PKV_ATTENTION_TILE;
    for (int64_t r = first; r < first + num_rows; r++) {
        const struct pkv_attention_place *place = &workspace->places[r];
        struct pkv_attention_row *row = &workspace->rows[r];
        row->end = clamped(place->end - start, num_tokens);
        row->begin = clamped(place->begin - start, row->end);
        row->slope = 0;
        row->distance = (float)(start - place->position);
        row->bias = NULL;
        if (job->mask.data == NULL)
            continue;
        if (r > first && place->token == place[-1].token)
            row->bias = row[-1].bias;
        else
            row->bias =
                fill_bias(job, workspace->bias + r * PKV_ATTENTION_TILE, place, tile, num_tokens);
    }
}

/* Log-sum-exp, and what the accumulator is multiplied with. */
static double finish(double max, double sum, bool has_sink, double sink, double *scale) {
    if (has_sink) {
        const double m = max > sink || isnan(max) ? max : sink;
        const double kept = max == -INFINITY ? 0 : exp(max - m);
        sum = sum * kept + (sink == -INFINITY ? 0 : exp(sink - m));
        *scale = sum == 0 ? 0 : kept / sum;
        return sum == 0 ? -INFINITY : m + log(sum);
    }
    *scale = sum == 0 ? 0 : 1 / sum;
    return sum == 0 ? -INFINITY : max + log(sum);
}

static void store_row(const struct pkv_attention_job *job, const struct pkv_attention_place *place,
                      int64_t head, const float *acc, float scale) {
    const int64_t count = job->plan->value_head_size;
    pkv_attention_store_fn *store = job->kernels->attention_store[job->out_type];
    char *to = pkv_tensor_at(&job->out, place->token, head);
    if (job->out.strides[2] == 1 || count == 1) {
        store(to, acc, scale, count);
        return;
    }
    for (int64_t d = 0; d < count; d++)
        store(to + d * pkv_tensor_stride_bytes(&job->out, 2), acc + d, scale, 1);
}

void pkv_attention_store_rows(const struct pkv_attention_job *job,
                              const struct pkv_attention_workspace *workspace,
                              const struct pkv_attention_unit *unit, int64_t first,
                              int64_t num_rows) {
    const struct pkv_paged_attention_plan *plan = job->plan;
    const struct pkv_attention_state *state = &workspace->state;
    const double to_base = plan->lse_base == PKV_LSE_BASE_2 ? 1.4426950408889634 : 1;
    const int64_t out_bytes = pkv_dtype_bytes(job->out.dtype);
    for (int64_t kv_head = unit->head; kv_head < unit->head_end; kv_head++) {
        touch_rows(job, &job->out, workspace->places + first, num_rows, kv_head);
        for (int64_t r = first; r < first + num_rows; r++) {
            const int64_t row = (kv_head - unit->head) * (unit->row_end - unit->row) + r;
            const struct pkv_attention_place *place = &workspace->places[r];
            const int64_t head = kv_head * plan->group + place->head;
            if (r + ROWS_AHEAD < first + num_rows) {
                const char *next = pkv_tensor_at(&job->out, place[ROWS_AHEAD].token,
                                                 kv_head * plan->group + place[ROWS_AHEAD].head);
                for (int64_t at = 0; at < plan->value_head_size * out_bytes; at += LINE_BYTES)
                    __builtin_prefetch(next + at, 1);
            }
            double sink = 0, scale;
            if (job->sinks.data)
                sink = (double)((const float *)job->sinks.data)[head * job->sinks.strides[0]];
            const double lse = finish((double)*pkv_attention_max(state, 0, row),
                                      (double)*pkv_attention_sum(state, 0, row),
                                      job->sinks.data != NULL, sink, &scale);
            store_row(job, place, head, pkv_attention_acc(state, 0, row), (float)scale);
            if (job->lse.data) {
                float *to = (float *)(void *)pkv_tensor_at(&job->lse, place->token, head);
                *to = isnan(lse) ? (float)NAN : (float)(lse * to_base);
            }
        }
    }
}
