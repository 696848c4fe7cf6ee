/* SPDX-License-Identifier: MIT
 *
 * The definition of paged attention: one query and head after the other, in double, each access
 * checked. It shares the address formula with the native mode, and what a row sees.
 */
#include <math.h>

#include "base/error.h"
#include "geometry/cache.h"
#include "geometry/number.h"
#include "geometry/strided.h"
#include "ops/attention.h"

/* Memory that may be touched. */
struct region {
    char *data;
    int64_t span_bytes;
    int32_t dtype;
};

struct sim {
    const struct pkv_attention_job *job;
    struct pkv_error *error;
    enum pkv_status status;
    struct region key, value, query, out, lse, slopes, sinks, mask;
};

static struct region region_of(const struct pkv_tensor *tensor) {
    const struct pkv_strided bytes = pkv_strided_from_tensor(tensor);
    return (struct region){tensor->data, pkv_strided_span(&bytes), tensor->dtype};
}

static bool may_access(struct sim *sim, const struct region *region, int64_t offset) {
    const int64_t bytes = pkv_dtype_bytes(region->dtype);
    if (sim->status == PKV_STATUS_OK && (offset < 0 || offset > region->span_bytes - bytes))
        sim->status =
            pkv_error_set(sim->error, PKV_STATUS_INTERNAL, sim->job->function, NULL, PKV_ERROR_NONE,
                          offset, region->span_bytes, "an access would leave its tensor");
    return sim->status == PKV_STATUS_OK;
}

static double read_number(struct sim *sim, const struct region *region, int64_t offset) {
    if (!may_access(sim, region, offset))
        return 0;
    const char *from = region->data + offset;
    if (region->dtype == PKV_DTYPE_BOOL)
        return *from ? 0 : -INFINITY;
    return (double)pkv_number_read(from, region->dtype);
}

static void write_number(struct sim *sim, const struct region *region, int64_t offset,
                         double number) {
    if (may_access(sim, region, offset))
        pkv_number_write(region->data + offset, region->dtype, (float)number);
}

/* The byte offset of element [i, j, k] of a tensor. */
static int64_t at(const struct pkv_tensor *tensor, int64_t i, int64_t j, int64_t k) {
    return (i * tensor->strides[0] + j * tensor->strides[1] + k * tensor->strides[2]) *
           pkv_dtype_bytes(tensor->dtype);
}

/* The row of a position in a part, by its sequence's block table. */
static int64_t row_of(const struct pkv_attention_job *job, const struct pkv_cache_part *part,
                      int64_t seq, int64_t position) {
    const struct pkv_vector table = pkv_step_table_row(job->step, seq);
    const int64_t block = pkv_vector_at(&table, position / job->cache->block_size);
    return pkv_cache_part_row(part, block, position % job->cache->block_size);
}

struct query {
    struct pkv_attention_place place;
    int64_t head, kv_head;
};

static double mask_at(struct sim *sim, const struct query *query, int64_t position) {
    const struct pkv_tensor *mask = &sim->job->mask;
    const int64_t column =
        position + mask->shape[1] - pkv_step_seq_end(sim->job->step, query->place.seq);
    return column < 0 ? 0 : read_number(sim, &sim->mask, at(mask, query->place.token, column, 0));
}

static double score(struct sim *sim, const struct query *query, int64_t position) {
    const struct pkv_attention_job *job = sim->job;
    const struct pkv_paged_attention_plan *plan = job->plan;
    const int64_t row = row_of(job, &job->cache->key, query->place.seq, position);
    double bias = 0, s = 0;
    if (job->mask.data)
        bias = mask_at(sim, query, position);
    if (bias == -INFINITY)
        return bias;
    for (int64_t d = 0; d < plan->head_size; d++) {
        const int64_t key = row + pkv_cache_part_element(&job->cache->key, query->kv_head, d);
        s += read_number(sim, &sim->query, at(&job->query, query->place.token, query->head, d)) *
             read_number(sim, &sim->key, key);
    }
    s *= (double)plan->scale;
    if (plan->softcap != 0)
        s = (double)plan->softcap * tanh(s / (double)plan->softcap);
    if (job->alibi_slopes.data)
        s += read_number(sim, &sim->slopes, at(&job->alibi_slopes, query->head, 0, 0)) *
             (double)(position - query->place.position);
    return s + bias;
}

static double value_at(struct sim *sim, const struct query *query, int64_t position, int64_t d) {
    const struct pkv_attention_job *job = sim->job;
    const int64_t row = row_of(job, &job->value, query->place.seq, position);
    return read_number(sim, &sim->value,
                       row + pkv_cache_part_element(&job->value, query->kv_head, d));
}

/* So far below the largest score, a sink not counted, no weight is left in float32, nor one of its
 * tile: it has no effect, whatever the value is. */
static const double LOWEST_EXPONENT = -300;

static double largest_score(struct sim *sim, const struct query *query) {
    double max = -INFINITY;
    for (int64_t j = query->place.begin; j < query->place.end; j++) {
        const double s = score(sim, query, j);
        if (s > max || isnan(s))
            max = s;
        if (isnan(max))
            break;
    }
    return max;
}

/* Two walks over the positions: the largest score, then weights and sums. */
static void attend(struct sim *sim, const struct query *query) {
    const struct pkv_attention_job *job = sim->job;
    const int64_t head_size = job->plan->value_head_size;
    const double largest = largest_score(sim, query);
    double sink = -INFINITY;
    if (job->sinks.data)
        sink = read_number(sim, &sim->sinks, at(&job->sinks, query->head, 0, 0));
    const double max = isnan(largest) || largest > sink ? largest : sink;
    double sums[PKV_ATTENTION_MAX_HEAD_SIZE] = {0};
    double total = max == -INFINITY ? 0 : exp(sink - max);
    for (int64_t j = query->place.begin; j < query->place.end && max != -INFINITY; j++) {
        const double above = score(sim, query, j), s = above - max;
        if (above == -INFINITY || above - largest < LOWEST_EXPONENT)
            continue;
        for (int64_t d = 0; d < head_size; d++)
            sums[d] += exp(s) * value_at(sim, query, j, d);
        total += exp(s);
    }
    for (int64_t d = 0; d < head_size; d++)
        write_number(sim, &sim->out, at(&job->out, query->place.token, query->head, d),
                     total == 0 ? 0 : sums[d] / total);
    if (job->lse.data) {
        const double lse = total == 0 ? -INFINITY : max + log(total);
        const double to_base = job->plan->lse_base == PKV_LSE_BASE_2 ? log2(exp(1)) : 1;
        write_number(sim, &sim->lse, at(&job->lse, query->place.token, query->head, 0),
                     lse * to_base);
    }
}

enum pkv_status pkv_attention_sim(const struct pkv_attention_job *job, struct pkv_error *error) {
    const struct pkv_cache_part *key = &job->cache->key, *value = &job->value;
    struct sim sim = {
        .job = job,
        .error = error,
        .key = {key->data, key->span_bytes, key->dtype},
        .value = {value->data, value->span_bytes, value->dtype},
        .query = region_of(&job->query),
        .out = region_of(&job->out),
        .lse = region_of(&job->lse),
        .slopes = region_of(&job->alibi_slopes),
        .sinks = region_of(&job->sinks),
        .mask = region_of(&job->mask),
    };
    const int64_t group = job->plan->group;
    for (int64_t seq = 0; seq < job->step->num_seqs; seq++) {
        const int64_t end = pkv_step_query_start(job->step, seq + 1) * group;
        for (int64_t row = pkv_step_query_start(job->step, seq) * group; row < end; row++) {
            struct query query = {.place = pkv_attention_place(job, seq, row)};
            for (int64_t h = 0; h < key->num_heads && sim.status == PKV_STATUS_OK; h++) {
                query.kv_head = h;
                query.head = h * group + query.place.head;
                attend(&sim, &query);
            }
        }
    }
    return sim.status;
}
