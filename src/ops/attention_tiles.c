/* SPDX-License-Identifier: MIT
 *
 * Attention of one part: unit by unit, span by span, tile by tile, head by head. The kernels are
 * told what is read next, across the ends of heads, tiles and units, and fetch it meanwhile.
 */
#include "geometry/cache.h"
#include "ops/attention.h"
#include "ops/rows.h"

/* Scores start at a multiple of this token of a tile: two vectors of any level. */
enum { TOKEN_STEP = 32 };

/* A tile of one sequence: where its tokens lie, head 0. */
struct tile {
    int64_t num_tokens; /* 0: there is no tile */
    int64_t skip;       /* tokens at its start that no row sees, a multiple of TOKEN_STEP */
    const int64_t *key_offsets, *value_offsets;
};

struct walk {
    const struct pkv_attention_job *job;
    const struct pkv_attention_workspace *workspace;
    const struct pkv_attention_unit *unit;
    struct pkv_attention_span span;
    struct pkv_attention_rows rows; /* of the span */
    int64_t index;                  /* of the tile */
    struct tile tile;
    struct tile next;                 /* the tile that is read after it, maybe of another unit */
    int64_t next_head, next_head_end; /* the heads that are read there */
    int buffer;                       /* which offsets are this tile's */
    bool joins;                       /* the tile's sums are merged into the top level */
};

/* The last position that a row of the span sees, plus one. */
static int64_t span_end(const struct pkv_attention_job *job,
                        const struct pkv_attention_span *span) {
    if (span->is_shared)
        return span->tile_end * PKV_ATTENTION_TILE;
    return pkv_attention_place(job, span->seq, span->row_end - 1).end;
}

static int64_t span_begin(const struct pkv_attention_job *job,
                          const struct pkv_attention_span *span) {
    return span->is_shared ? 0 : pkv_attention_place(job, span->seq, span->row).begin;
}

static struct tile locate(const struct walk *walk, int buffer,
                          const struct pkv_attention_span *span, int64_t index) {
    const struct pkv_attention_job *job = walk->job;
    const struct pkv_cache *cache = job->cache;
    const int64_t start = index * PKV_ATTENTION_TILE, block_size = cache->block_size;
    const int64_t seen = span_end(job, span) - start, unseen = span_begin(job, span) - start;
    int64_t *keys = walk->workspace->offsets + (int64_t)buffer * 2 * PKV_ATTENTION_TILE;
    int64_t *values = keys + PKV_ATTENTION_TILE;
    const struct tile tile = {
        .num_tokens = seen < PKV_ATTENTION_TILE ? seen : PKV_ATTENTION_TILE,
        .skip = unseen > 0 ? unseen / TOKEN_STEP * TOKEN_STEP : 0,
        .key_offsets = keys,
        .value_offsets = values,
    };
    const struct pkv_vector table = pkv_step_table_row(job->step, span->seq);
    /* Before the sequence's offset its table may hold anything. */
    const int64_t missing = pkv_step_seq_offset(job->step, span->seq) - start;
    const int64_t first = missing > tile.skip ? missing : tile.skip;
    int64_t entry = (start + first) / block_size;
    int64_t offset = (start + first) - entry * block_size;
    for (int64_t t = first; t < tile.num_tokens; entry++, offset = 0) {
        const int64_t block = pkv_vector_at(&table, entry);
        const int64_t left = tile.num_tokens - t, room = block_size - offset;
        const int64_t end = t + (left < room ? left : room);
        int64_t key = pkv_cache_part_row(&cache->key, block, offset);
        int64_t value = pkv_cache_part_row(&job->value, block, offset);
        for (; t < end; t++) {
            keys[t] = key;
            values[t] = value;
            key += cache->key.token_stride_bytes;
            value += job->value.token_stride_bytes;
        }
    }
    for (int64_t t = tile.skip; t < first; t++) {
        keys[t] = keys[first];
        values[t] = values[first];
    }
    return tile;
}

/* The first tile after the span's last one: of the unit's next span, or of the part's next unit. */
static struct tile locate_beyond(struct walk *walk, struct pkv_attention_units units) {
    struct pkv_attention_unit unit = *walk->unit;
    struct pkv_attention_span span = walk->span;
    do {
        while (pkv_attention_next_span(walk->job, &unit, &span)) {
            if (span.tile < span.tile_end) {
                walk->next_head = unit.head;
                walk->next_head_end = unit.head_end;
                return locate(walk, 1 - walk->buffer, &span, span.tile);
            }
        }
        span.row_end = 0;
    } while (pkv_attention_units_next(&units, &unit));
    return (struct tile){0};
}

/* Rows in one piece are read where they lie; others are copied to adjacent bytes first. */
static bool is_in_fragments(const struct pkv_cache_part *part, int64_t head_size) {
    return head_size * part->element_bytes > part->fragment_bytes;
}

/* Keys or values. */
struct side {
    const struct pkv_cache_part *part;
    int64_t head_size;
    char *staged;
    int64_t *staged_offsets;
    bool is_cached, is_for_dots, may_take_short_turns;
};

/* Rows that are moved at once. */
enum { MAX_STAGED = 64 };

/* The rows of one head, whole, one behind the other. */
static void stage(const struct pkv_attention_job *job, const struct side *side, int64_t head,
                  const int64_t *offsets, int64_t num_tokens) {
    struct pkv_cache_part one_head = *side->part;
    one_head.num_heads = 1;
    const struct pkv_row_shape from = pkv_row_shape_of_part(&one_head);
    const struct pkv_row_shape to = pkv_row_shape_dense(&from);
    struct pkv_row_mover mover = {
        .kernels = job->kernels,
        .dst = side->staged,
        .src = (const char *)one_head.data + head * one_head.head_stride_bytes,
        .dst_row_stride = from.head_bytes,
        .src_row_stride = one_head.token_stride_bytes,
        .kind = PKV_COPY_CACHED,
    };
    pkv_copy_nest_init(&mover.nest, &to, &from);
    for (int64_t first = 0, count; first < num_tokens; first += count) {
        struct pkv_span spans[MAX_STAGED];
        count = num_tokens - first < MAX_STAGED ? num_tokens - first : MAX_STAGED;
        for (int64_t i = 0; i < count; i++)
            spans[i] = (struct pkv_span){(first + i) * from.head_bytes, offsets[first + i], 1};
        pkv_rows_move(&mover, spans, count);
    }
    for (int64_t t = 0; t < num_tokens; t++)
        side->staged_offsets[t] = t * from.head_bytes;
}

/* Up to so many queries of a head, and from so many bytes of a head's row and of all heads on, all
 * heads of a short block are read before the next block: memory is in order then, and there is more
 * to do for each token. */
enum { SHORT_TURN_QUERIES = 4, SHORT_TURN_ROW_BYTES = 256, SHORT_TURN_TOKEN_BYTES = 2048 };

/* The tokens of a tile that some row sees, heads [head, head + num_heads). */
static struct pkv_attention_tokens tokens_of(const struct side *side, int64_t head,
                                             int64_t num_heads, const struct tile *tile,
                                             const int64_t *offsets) {
    const struct pkv_cache_part *part = side->part;
    const int64_t row_bytes = side->head_size * part->element_bytes;
    return (struct pkv_attention_tokens){
        .base = (const char *)part->data + head * part->head_stride_bytes,
        .offsets = offsets + tile->skip,
        .num_tokens = tile->num_tokens - tile->skip,
        .num_heads = num_heads,
        .head_stride = part->head_stride_bytes,
        .row_bytes = row_bytes,
        .heads_together = pkv_attention_heads_together(part),
        .short_turns = side->may_take_short_turns && row_bytes >= SHORT_TURN_ROW_BYTES &&
                       num_heads * row_bytes >= SHORT_TURN_TOKEN_BYTES,
        .is_cached = side->is_cached,
        .is_for_dots = side->is_for_dots,
    };
}

/* The first row of a head in the arrays of the workspace and of a level. */
static int64_t row_of(const struct walk *walk, int64_t head) {
    return (head - walk->unit->head) * walk->rows.head_rows + walk->rows.first;
}

typedef void product_fn(const struct walk *walk, int64_t head,
                        const struct pkv_attention_tokens *tokens,
                        const struct pkv_attention_tokens *then);

/* One product of the tile, all heads. */
static void for_all_heads(const struct walk *walk, const struct side *side, const int64_t *offsets,
                          const struct pkv_attention_tokens *then, product_fn *fn) {
    const struct pkv_attention_unit *unit = walk->unit;
    const struct tile *tile = &walk->tile;
    if (!is_in_fragments(side->part, side->head_size)) {
        const struct pkv_attention_tokens tokens =
            tokens_of(side, unit->head, unit->head_end - unit->head, tile, offsets);
        fn(walk, unit->head, &tokens, then);
        return;
    }
    for (int64_t head = unit->head; head < unit->head_end; head++) {
        struct pkv_attention_tokens tokens = tokens_of(side, head, 1, tile, offsets);
        stage(walk->job, side, head, tokens.offsets, tokens.num_tokens);
        tokens.base = side->staged;
        tokens.offsets = side->staged_offsets;
        fn(walk, head, &tokens, head + 1 < unit->head_end ? NULL : then);
    }
}

static void score(const struct walk *walk, int64_t head, const struct pkv_attention_tokens *keys,
                  const struct pkv_attention_tokens *then) {
    const struct pkv_attention_job *job = walk->job;
    const struct pkv_attention_workspace *workspace = walk->workspace;
    const int64_t row = row_of(walk, head);
    job->scores(workspace->scores + row * PKV_ATTENTION_TILE + walk->tile.skip,
                workspace->query + row * workspace->query_stride, workspace->query_stride,
                walk->rows.num_rows, walk->rows.head_rows, keys, then, job->plan->head_size,
                workspace->scratch);
}

/* Where the sums of the tile go: a new level, or one that is merged into the top level
 * afterwards. */
static int64_t level_of_tile(const struct walk *walk) {
    return walk->workspace->state.stack->depth - (walk->joins ? 0 : 1);
}

static void add_values(const struct walk *walk, int64_t head,
                       const struct pkv_attention_tokens *values,
                       const struct pkv_attention_tokens *then) {
    const struct pkv_attention_job *job = walk->job;
    const struct pkv_attention_workspace *workspace = walk->workspace;
    const struct pkv_attention_state *state = &workspace->state;
    const int64_t row = row_of(walk, head);
    pkv_attention_values_fn *add =
        pkv_attention_takes_dots(job, walk->rows.num_rows) ? job->values_dot : job->values;
    add(pkv_attention_acc(state, level_of_tile(walk), row), state->acc_stride,
        workspace->scores + row * PKV_ATTENTION_TILE + walk->tile.skip, walk->rows.num_rows,
        walk->rows.head_rows, values, then, job->plan->value_head_size, workspace->scratch);
}

static void weigh(const struct walk *walk, int64_t head) {
    const struct pkv_attention_job *job = walk->job;
    const struct pkv_attention_workspace *workspace = walk->workspace;
    const struct pkv_paged_attention_plan *plan = job->plan;
    const int64_t row = row_of(walk, head), level = level_of_tile(walk);
    struct pkv_attention_row *rows = workspace->rows + walk->rows.first;
    if (job->alibi_slopes.data) {
        for (int64_t r = 0; r < walk->rows.num_rows; r++) {
            const int64_t h = head * plan->group + workspace->places[walk->rows.first + r].head;
            rows[r].slope =
                ((const float *)job->alibi_slopes.data)[h * job->alibi_slopes.strides[0]];
        }
    }
    job->kernels->attention_softmax(workspace->scores + row * PKV_ATTENTION_TILE, rows,
                                    walk->rows.num_rows, walk->tile.num_tokens, plan->scale,
                                    plan->softcap, pkv_attention_max(&workspace->state, level, row),
                                    pkv_attention_sum(&workspace->state, level, row));
}

static void attend(const struct walk *walk) {
    const struct pkv_attention_job *job = walk->job;
    const struct pkv_attention_workspace *workspace = walk->workspace;
    const struct pkv_attention_unit *unit = walk->unit;
    const struct tile *tile = &walk->tile, *next = &walk->next;
    const bool may_take_short_turns = job->pair != NULL && job->cache->block_size > 1 &&
                                      walk->rows.num_rows <= SHORT_TURN_QUERIES;
    const struct side keys = {
        .part = &job->cache->key,
        .head_size = job->plan->head_size,
        .staged = workspace->staged_keys,
        .staged_offsets = workspace->staged_offsets,
        .is_for_dots = job->pair != NULL,
        .may_take_short_turns = may_take_short_turns,
    };
    const struct side values = {
        .part = &job->value,
        .head_size = job->plan->value_head_size,
        .staged = workspace->staged_values,
        .staged_offsets = workspace->staged_offsets + PKV_ATTENTION_TILE,
        .is_cached = job->value.data == job->cache->key.data,
        .may_take_short_turns = may_take_short_turns,
    };
    const int64_t num_heads = unit->head_end - unit->head;
    const struct pkv_attention_tokens then_values =
        tokens_of(&values, unit->head, num_heads, tile, tile->value_offsets);
    struct pkv_attention_tokens then_keys;
    if (next->num_tokens)
        then_keys = tokens_of(&keys, walk->next_head, walk->next_head_end - walk->next_head, next,
                              next->key_offsets);
    for_all_heads(walk, &keys, tile->key_offsets,
                  is_in_fragments(values.part, values.head_size) ? NULL : &then_values, score);
    for (int64_t head = unit->head; head < unit->head_end; head++)
        weigh(walk, head);
    for_all_heads(walk, &values, tile->value_offsets,
                  next->num_tokens == 0 || is_in_fragments(keys.part, keys.head_size) ? NULL
                                                                                      : &then_keys,
                  add_values);
}

/* Tiles [first, end) of the walk's span; units are those that come after its unit. */
static void attend_tiles(struct walk *walk, int64_t first, int64_t end,
                         const struct pkv_attention_units *units) {
    const struct pkv_attention_job *job = walk->job;
    const struct pkv_attention_workspace *workspace = walk->workspace;
    if (first < end)
        walk->tile = locate(walk, walk->buffer, &walk->span, first);
    for (int64_t index = first; index < end; index++) {
        walk->next_head = walk->unit->head;
        walk->next_head_end = walk->unit->head_end;
        if (index + 1 < end)
            walk->next = locate(walk, 1 - walk->buffer, &walk->span, index + 1);
        else if (units)
            walk->next = locate_beyond(walk, *units);
        else
            walk->next = (struct tile){0};
        pkv_attention_see_tile(job, workspace, walk->rows.first, walk->rows.num_rows, index,
                               walk->tile.num_tokens);
        walk->joins = pkv_attention_state_open(&workspace->state, job->kernels, &walk->rows,
                                               job->plan->value_head_size, index, workspace->keep,
                                               workspace->add);
        attend(walk);
        if (walk->joins)
            pkv_attention_state_join(&workspace->state, job->kernels, &walk->rows,
                                     job->plan->value_head_size, workspace->keep, workspace->add);
        walk->buffer = 1 - walk->buffer;
        walk->tile = walk->next;
    }
}

static void enter_span(struct walk *walk) {
    const struct pkv_attention_unit *unit = walk->unit;
    walk->rows = (struct pkv_attention_rows){
        .first = walk->span.row - unit->row,
        .num_rows = walk->span.row_end - walk->span.row,
        .num_heads = unit->head_end - unit->head,
        .head_rows = unit->row_end - unit->row,
    };
}

static void run_unit(struct walk *walk, const struct pkv_attention_unit *unit,
                     const struct pkv_attention_units *units) {
    const struct pkv_attention_job *job = walk->job;
    const struct pkv_attention_workspace *workspace = walk->workspace;
    struct pkv_attention_stack shared;
    pkv_attention_stack_clear(&shared, -1);
    walk->unit = unit;
    walk->span.row_end = 0;
    pkv_attention_load_rows(job, workspace, unit);
    while (pkv_attention_next_span(job, unit, &walk->span)) {
        enter_span(walk);
        *workspace->state.stack = shared;
        attend_tiles(walk, walk->span.tile, walk->span.tile_end, units);
        if (walk->span.is_shared) {
            shared = *workspace->state.stack;
            continue;
        }
        pkv_attention_state_close(&workspace->state, job->kernels, &walk->rows,
                                  job->plan->value_head_size, workspace->keep, workspace->add);
        pkv_attention_store_rows(job, workspace, unit, walk->rows.first, walk->rows.num_rows);
    }
}

void pkv_attention_run_units(const struct pkv_attention_job *job,
                             const struct pkv_attention_workspace *workspace,
                             struct pkv_attention_units units) {
    struct walk walk = {.job = job, .workspace = workspace};
    struct pkv_attention_unit unit;
    while (pkv_attention_units_next(&units, &unit))
        run_unit(&walk, &unit, &units);
}

void pkv_attention_run_piece(const struct pkv_attention_job *job,
                             const struct pkv_attention_workspace *workspace,
                             const struct pkv_attention_unit *unit, int64_t piece,
                             int64_t num_pieces) {
    struct walk walk = {.job = job, .workspace = workspace, .unit = unit};
    pkv_attention_stack_clear(workspace->state.stack, -1);
    pkv_attention_load_rows(job, workspace, unit);
    if (!pkv_attention_next_span(job, unit, &walk.span))
        return;
    enter_span(&walk);
    const int64_t first = walk.span.tile, num_tiles = walk.span.tile_end - first;
    /* Pieces begin at multiples of an eighth of their length: their runs are few. */
    int64_t step = 1;
    while (step * 16 * num_pieces <= num_tiles)
        step *= 2;
    int64_t begin = first + num_tiles * piece / num_pieces;
    int64_t end = first + num_tiles * (piece + 1) / num_pieces;
    begin = piece == 0 ? first : begin / step * step;
    end = piece == num_pieces - 1 ? first + num_tiles : end / step * step;
    if (begin >= end)
        return;
    pkv_attention_stack_clear(workspace->state.stack, begin > first ? begin - 1 : -1);
    attend_tiles(&walk, begin, end, NULL);
}
