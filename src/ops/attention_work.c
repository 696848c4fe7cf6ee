/* SPDX-License-Identifier: MIT
 *
 * Dividing attention: units of rows and heads, their cost, the parts of a run, and the spans of a
 * unit.
 */
#include "ops/attention.h"

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

struct pkv_attention_place pkv_attention_place(const struct pkv_attention_job *job, int64_t seq,
                                               int64_t row) {
    const struct pkv_paged_attention_plan *plan = job->plan;
    const int64_t token = row / plan->group;
    const int64_t seq_end = pkv_step_seq_end(job->step, seq);
    const int64_t position = seq_end - (pkv_step_query_start(job->step, seq + 1) - token);
    return (struct pkv_attention_place){
        .seq = seq,
        .token = token,
        .head = row % plan->group,
        .position = position,
        .begin = larger(position - plan->left, pkv_step_seq_offset(job->step, seq)),
        .end = smaller(position + plan->right + 1, seq_end),
    };
}

static int64_t row_start(const struct pkv_attention_job *job, int64_t seq) {
    return pkv_step_query_start(job->step, seq) * job->plan->group;
}

/* The rows of the step that are divided into units together: those of a sequence, or, where tiles
 * are shared, all. */
static int64_t rows_end(const struct pkv_attention_job *job, int64_t seq) {
    return row_start(job, job->shared_tiles > 0 ? job->step->num_seqs : seq + 1);
}

/* The tiles that rows [row, row_end) of one sequence see. Both ends rise with the row. */
static void visible_tiles(const struct pkv_attention_job *job, int64_t seq, int64_t row,
                          int64_t row_end, int64_t *tile, int64_t *tile_end) {
    const struct pkv_attention_place first = pkv_attention_place(job, seq, row);
    const struct pkv_attention_place last = pkv_attention_place(job, seq, row_end - 1);
    *tile = first.begin / PKV_ATTENTION_TILE;
    *tile_end = (last.end + PKV_ATTENTION_TILE - 1) / PKV_ATTENTION_TILE;
}

/* From the first tile that any row sees; each row has its own limits. */
static struct pkv_attention_span shared_span(const struct pkv_attention_job *job,
                                             const struct pkv_attention_unit *unit) {
    struct pkv_attention_span span = {unit->seq,         unit->row, unit->row_end,
                                      job->shared_tiles, 0,         true};
    int64_t seq = unit->seq;
    for (int64_t row = unit->row; row < unit->row_end; row = row_start(job, ++seq)) {
        int64_t tile, tile_end;
        const int64_t row_end = smaller(unit->row_end, row_start(job, seq + 1));
        if (row == row_end)
            continue;
        visible_tiles(job, seq, row, row_end, &tile, &tile_end);
        span.tile = smaller(span.tile, tile);
        span.tile_end = larger(span.tile_end, tile_end);
    }
    span.tile_end = smaller(span.tile_end, job->shared_tiles);
    return span;
}

bool pkv_attention_next_span(const struct pkv_attention_job *job,
                             const struct pkv_attention_unit *unit,
                             struct pkv_attention_span *span) {
    const bool is_first = span->row_end == 0;
    int64_t row = is_first || span->is_shared ? unit->row : span->row_end;
    int64_t seq = is_first || span->is_shared ? unit->seq : span->seq;
    if (is_first && job->shared_tiles > 0) {
        *span = shared_span(job, unit);
        return true;
    }
    if (row >= unit->row_end)
        return false;
    while (row_start(job, seq + 1) <= row)
        seq++;
    span->seq = seq;
    span->row = row;
    span->row_end = smaller(unit->row_end, row_start(job, seq + 1));
    span->is_shared = false;
    visible_tiles(job, seq, span->row, span->row_end, &span->tile, &span->tile_end);
    span->tile = larger(span->tile, job->shared_tiles);
    return true;
}

/* Reading a tile and preparing its keys cost about as much as so many rows. */
enum { ROWS_OF_A_READ = 6 };

static int64_t unit_cost(const struct pkv_attention_job *job,
                         const struct pkv_attention_unit *unit) {
    struct pkv_attention_span span = {.row_end = 0};
    int64_t cost = 1;
    while (pkv_attention_next_span(job, unit, &span))
        cost += larger(span.tile_end - span.tile, 0) * (span.row_end - span.row + ROWS_OF_A_READ);
    return cost * (unit->head_end - unit->head);
}

/* The first unit of the rows that come at or after `row`, head 0. row_end 0: there is none. */
static struct pkv_attention_unit first_unit(const struct pkv_attention_work *work, int64_t seq,
                                            int64_t row) {
    const struct pkv_attention_job *job = work->job;
    const int64_t num_seqs = job->step->num_seqs;
    while (seq < num_seqs && row_start(job, seq + 1) <= row)
        seq++;
    if (seq >= num_seqs)
        return (struct pkv_attention_unit){0};
    const int64_t num_rows = smaller(rows_end(job, seq) - row, PKV_ATTENTION_MAX_ROWS);
    const int64_t num_heads = smaller(work->max_heads, PKV_ATTENTION_MAX_ROWS / num_rows);
    return (struct pkv_attention_unit){seq, row, row + num_rows, 0, larger(num_heads, 1)};
}

/* Heads outside, rows inside: the rows of a sequence read the same keys again. */
static struct pkv_attention_unit unit_after(const struct pkv_attention_work *work,
                                            const struct pkv_attention_unit *unit) {
    const struct pkv_attention_job *job = work->job;
    const int64_t end = rows_end(job, unit->seq);
    struct pkv_attention_unit next = *unit;
    if (unit->row_end < end) {
        next.row = unit->row_end;
        next.row_end = smaller(unit->row_end + PKV_ATTENTION_MAX_ROWS, end);
        while (row_start(job, next.seq + 1) <= next.row)
            next.seq++;
        return next;
    }
    const int64_t num_kv_heads = job->cache->key.num_heads;
    if (unit->head_end < num_kv_heads) {
        /* Back to the first rows that are divided together. */
        const int64_t seq = job->shared_tiles > 0 ? 0 : unit->seq;
        next = first_unit(work, seq, row_start(job, seq));
        next.head = unit->head_end;
        next.head_end = smaller(next.head + next.head_end, num_kv_heads);
        return next;
    }
    return first_unit(work, unit->seq, end);
}

struct pkv_attention_work pkv_attention_work(const struct pkv_attention_job *job,
                                             int64_t wanted_units) {
    struct pkv_attention_work work = {.job = job, .max_heads = job->cache->key.num_heads};
    for (;;) {
        work.num_units = 0;
        work.cost = 0;
        for (struct pkv_attention_unit unit = first_unit(&work, 0, 0); unit.row_end > 0;
             unit = unit_after(&work, &unit)) {
            work.num_units++;
            work.cost += unit_cost(job, &unit);
        }
        if (work.num_units >= wanted_units || work.max_heads == 1)
            return work;
        work.max_heads = (work.max_heads + 1) / 2;
    }
}

struct pkv_attention_units pkv_attention_units(const struct pkv_attention_work *work, int64_t part,
                                               int64_t num_parts) {
    return (struct pkv_attention_units){
        .work = work, .part = part, .num_parts = num_parts, .next = first_unit(work, 0, 0)};
}

/* A unit belongs to the part in which its middle lies. */
bool pkv_attention_units_next(struct pkv_attention_units *units, struct pkv_attention_unit *unit) {
    const struct pkv_attention_work *work = units->work;
    while (units->next.row_end > 0) {
        const int64_t cost = unit_cost(work->job, &units->next);
        const double middle = (double)units->cost + (double)cost / 2;
        const int64_t part =
            smaller((int64_t)(middle / (double)work->cost * (double)units->num_parts),
                    units->num_parts - 1);
        if (part > units->part)
            return false;
        *unit = units->next;
        units->cost += cost;
        units->next = unit_after(work, &units->next);
        if (part == units->part)
            return true;
    }
    return false;
}

/* Tiles that are worth a piece of their own, where all threads have one: its first keys are not
 * fetched ahead, and its sums have to be joined. */
enum { LEAST_TILES = 8 };

/* Pieces into which the contexts of few units are cut, some empty where one is short; 1: they are
 * many or all short. */
static int64_t choose_pieces(const struct pkv_attention_job *job,
                             const struct pkv_attention_work *work, int32_t num_threads) {
    const int64_t num_workspaces = pkv_attention_num_workspaces(num_threads);
    if (work->num_units == 0 || job->shared_tiles > 0)
        return 1;
    const int64_t most = num_workspaces / work->num_units;
    int64_t most_tiles = 1;
    struct pkv_attention_units units = pkv_attention_units(work, 0, 1);
    struct pkv_attention_unit unit;
    while (most_tiles < most * LEAST_TILES && pkv_attention_units_next(&units, &unit)) {
        struct pkv_attention_span span = {.row_end = 0};
        const int64_t num_tiles =
            pkv_attention_next_span(job, &unit, &span) ? span.tile_end - span.tile : 0;
        most_tiles = num_tiles > most_tiles ? num_tiles : most_tiles;
    }
    const int64_t fewest = (num_threads + work->num_units - 1) / work->num_units;
    int64_t num_pieces = most_tiles / LEAST_TILES;
    num_pieces = num_pieces < fewest ? fewest : num_pieces;
    num_pieces = num_pieces < most ? num_pieces : most;
    num_pieces = num_pieces < most_tiles ? num_pieces : most_tiles;
    return num_pieces < 1 ? 1 : num_pieces;
}

/* Parts for each thread: one that gets its processor late leaves the others something to do. */
enum { PARTS_PER_THREAD = 4 };

/* Few units are made more. Contexts are cut rather than heads: where the heads of a token are
 * neighbours in memory, half of them take nearly as long as all, so there heads are divided only if
 * a thread would have nothing to do. */
struct pkv_attention_division pkv_attention_divide(const struct pkv_attention_job *job,
                                                   int32_t num_threads) {
    const int64_t max_parts = num_threads > 1 ? (int64_t)num_threads * PARTS_PER_THREAD : 1;
    const int64_t wanted = pkv_attention_heads_together(&job->cache->key) ? num_threads : max_parts;
    struct pkv_attention_division division = {.work = pkv_attention_work(job, 1), .num_pieces = 1};
    if (num_threads > 1)
        division.num_pieces = choose_pieces(job, &division.work, num_threads);
    if (division.num_pieces == 1 && division.work.num_units < wanted)
        division.work = pkv_attention_work(job, wanted);
    const int64_t num_units = division.work.num_units;
    division.num_parts = division.num_pieces > 1 ? num_units * division.num_pieces
                         : num_units < max_parts ? num_units
                                                 : max_parts;
    return division;
}
