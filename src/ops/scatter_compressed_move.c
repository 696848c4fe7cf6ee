/* SPDX-License-Identifier: MIT
 *
 * How the compressed modes move rows. The heads of a sequence are walked abreast, token after
 * token: the source is then read once, in the order of memory, while every region is written as a
 * stream of its own. A window is added up on the way, in the order of its tokens. Everything is
 * checked.
 */
#include "ops/scatter_compressed.h"

#include <string.h>

#include "ops/sim.h"
#include "parallel/executor.h"

enum {
    MAX_MEMBERS = 64,  /* heads abreast */
    SUMS_BYTES = 32768 /* of all windows abreast, on the stack */
};

union sums {
    float floats[SUMS_BYTES / sizeof(float)];
    int64_t integers[SUMS_BYTES / sizeof(int64_t)];
    char bytes[SUMS_BYTES];
};

/* A head of the sequence, with what this part of the work does of its region. */
struct member {
    int64_t head;
    struct pkv_region region;
};

/* One sequence of one side, and what happens to the tokens from one on until that changes for a
 * member. */
struct walk {
    const struct pkv_compressed_job *job;
    const struct pkv_compressed_side *side;
    int64_t seq_offset; /* bytes from the source's first element to that of the sequence */
    int64_t num_places; /* members that copy */
    struct pkv_place places[MAX_MEMBERS];
    int64_t num_windows; /* members that add up */
    int64_t windows[MAX_MEMBERS];
};

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t source_offset(const struct walk *walk, const struct member *member, int64_t token) {
    return walk->seq_offset + member->head * walk->side->head_stride +
           token * walk->side->mover.src_row_stride;
}

static int64_t cache_offset(const struct walk *walk, const struct member *member, int64_t row) {
    return pkv_cache_part_offset(walk->side->part, walk->job->cache->block_size,
                                 member->region.slot + row);
}

/* Adds a member to the walk from `token` on. Returns the token before which it does the same all
 * along, at most `end`. */
static int64_t take_member(struct walk *walk, const struct member *members, int64_t number,
                           int64_t token, int64_t end) {
    const struct member *member = &members[number];
    const struct pkv_region *region = &member->region;
    const struct pkv_token_run *const runs[3] = {&region->copies[0], &region->mean,
                                                 &region->copies[1]};
    const int64_t block_size = walk->job->cache->block_size;
    for (int i = 0; i < 3; i++) {
        const struct pkv_token_run *run = runs[i];
        if (run->num_tokens == 0 || token >= run->token + run->num_tokens)
            continue;
        if (token < run->token)
            return min64(end, run->token);
        end = min64(end, run->token + run->num_tokens);
        if (run == &region->mean) {
            walk->windows[walk->num_windows++] = number;
            return end;
        }
        const int64_t row = run->row + (token - run->token);
        walk->places[walk->num_places++] =
            (struct pkv_place){cache_offset(walk, member, row), source_offset(walk, member, token)};
        if (!pkv_cache_part_is_flat(walk->side->part, block_size))
            end = min64(end, token + block_size - (region->slot + row) % block_size);
        return end;
    }
    return end;
}

/* Copies num_rows rows from each place on. */
static void move_places(const struct walk *walk, int64_t num_rows) {
    const struct pkv_row_mover *mover = &walk->side->mover;
    if (mover->nest.num_levels == 0) {
        const struct pkv_stream stream = {mover->nest.piece_bytes, num_rows, mover->dst_row_stride,
                                          mover->src_row_stride};
        mover->kernels->copy_streams[mover->kind](mover->dst, mover->src, &stream, walk->places,
                                                  walk->num_places);
        return;
    }
    struct pkv_span spans[MAX_MEMBERS];
    for (int64_t i = 0; i < walk->num_places; i++)
        spans[i] =
            (struct pkv_span){walk->places[i].dst_offset, walk->places[i].src_offset, num_rows};
    pkv_rows_move(mover, spans, walk->num_places);
}

static int64_t sum_bytes(const struct pkv_compressed_side *side) {
    return side->mean_type < PKV_NUM_MEAN_FLOATS ? (int64_t)sizeof(float)
                                                 : (int64_t)sizeof(int64_t);
}

/* Sums of the window of member number i. */
static char *sums_of(const struct walk *walk, int64_t i, union sums *sums) {
    return sums->bytes + i * walk->side->part->head_size * sum_bytes(walk->side);
}

/* Adds channels [first, first + count) of tokens [begin, end), of a head and those side by side
 * with it. */
static void add_tokens(const struct walk *walk, const struct member *member, int64_t begin,
                       int64_t end, int64_t first, int64_t count, char *sums) {
    const struct pkv_compressed_side *side = walk->side;
    const struct pkv_row_mover *mover = &side->mover;
    mover->kernels->mean_add[side->mean_type](
        sums, mover->src + source_offset(walk, member, begin) + first * side->channel_stride,
        mover->src_row_stride, end - begin, side->channel_stride, count);
}

static void store_mean(const struct walk *walk, const struct member *member, int64_t first,
                       int64_t count, const char *sums) {
    const struct pkv_compressed_side *side = walk->side;
    const struct pkv_token_run *window = &member->region.mean;
    side->mover.kernels->mean_store[side->mean_type](side->mover.dst +
                                                         cache_offset(walk, member, window->row) +
                                                         first * side->part->element_bytes,
                                                     sums, window->num_tokens, count);
}

/* A head whose sums have no room has its window read in columns, all of it when it ends. */
static void add_wide_window(const struct walk *walk, const struct member *member, int64_t end,
                            union sums *sums) {
    const struct pkv_token_run *window = &member->region.mean;
    const int64_t head_size = walk->side->part->head_size;
    const int64_t room = SUMS_BYTES / sum_bytes(walk->side);
    if (end < window->token + window->num_tokens)
        return;
    for (int64_t first = 0; first < head_size; first += room) {
        const int64_t count = min64(room, head_size - first);
        memset(sums, 0, SUMS_BYTES);
        add_tokens(walk, member, window->token, end, first, count, sums->bytes);
        store_mean(walk, member, first, count, sums->bytes);
    }
}

/* How many windows of the walk from number i on belong to heads that are side by side in the
 * source. Members go by their heads: those of neighbouring heads are neighbours too, and so are
 * their sums. */
static int64_t count_neighbours(const struct walk *walk, const struct member *members, int64_t i) {
    const struct pkv_compressed_side *side = walk->side;
    const bool is_dense = side->channel_stride == side->part->element_bytes &&
                          side->head_stride == side->part->row_bytes;
    const int64_t head = members[walk->windows[i]].head;
    int64_t count = 1;
    while (is_dense && i + count < walk->num_windows &&
           members[walk->windows[i + count]].head == head + count)
        count++;
    return count;
}

static void add_windows(const struct walk *walk, const struct member *members, int64_t begin,
                        int64_t end, union sums *sums) {
    const int64_t head_size = walk->side->part->head_size;
    const int64_t head_sums = head_size * sum_bytes(walk->side);
    if (head_sums > SUMS_BYTES) {
        add_wide_window(walk, &members[0], end, sums);
        return;
    }
    for (int64_t i = 0; i < walk->num_windows; i++) {
        if (begin == members[walk->windows[i]].region.mean.token)
            memset(sums_of(walk, walk->windows[i], sums), 0, (size_t)head_sums);
    }
    for (int64_t i = 0, count; i < walk->num_windows; i += count) {
        count = count_neighbours(walk, members, i);
        add_tokens(walk, &members[walk->windows[i]], begin, end, 0, count * head_size,
                   sums_of(walk, walk->windows[i], sums));
    }
    for (int64_t i = 0; i < walk->num_windows; i++) {
        const struct member *member = &members[walk->windows[i]];
        const struct pkv_token_run *window = &member->region.mean;
        if (end == window->token + window->num_tokens)
            store_mean(walk, member, 0, head_size, sums_of(walk, walk->windows[i], sums));
    }
}

static void move_members(struct walk *walk, const struct member *members, int64_t num_members,
                         int64_t num_tokens, union sums *sums) {
    for (int64_t token = 0, end; token < num_tokens; token = end) {
        end = num_tokens;
        walk->num_places = walk->num_windows = 0;
        for (int64_t i = 0; i < num_members; i++)
            end = take_member(walk, members, i, token, end);
        if (walk->num_places > 0)
            move_places(walk, end - token);
        if (walk->num_windows > 0)
            add_windows(walk, members, token, end, sums);
    }
}

static void move_sequence(const struct pkv_compressed_job *job, int64_t seq, int64_t num_earlier,
                          const struct member *members, int64_t num_members) {
    const int64_t num_tokens = pkv_vector_at(&job->index.seq_lens, seq);
    union sums sums; /* 32 KiB that need no zeroes */
    for (int32_t i = 0; i < job->num_sides; i++) {
        const struct pkv_compressed_side *side = &job->sides[i];
        struct walk walk;
        walk.job = job;
        walk.side = side;
        walk.seq_offset =
            job->is_padded ? seq * side->seq_stride : num_earlier * side->mover.src_row_stride;
        int64_t abreast = MAX_MEMBERS;
        if (side->head_stride > side->mover.src_row_stride)
            abreast = 1; /* the heads are outside the tokens */
        else if (job->index.mode == PKV_SCATTER_MODE_ROPE)
            abreast = max64(SUMS_BYTES / (side->part->head_size * sum_bytes(side)), 1);
        for (int64_t first = 0; first < num_members; first += abreast)
            move_members(&walk, members + first, min64(abreast, num_members - first), num_tokens,
                         &sums);
    }
}

/* The tokens of a run that lie in [begin, end). */
static struct pkv_token_run clip(const struct pkv_token_run *run, int64_t begin, int64_t end) {
    const int64_t first = max64(run->token, begin);
    const int64_t last = min64(run->token + run->num_tokens, end);
    return (struct pkv_token_run){first, run->row + (first - run->token), max64(last - first, 0)};
}

/* How many tokens below `end` all heads of a sequence copy. */
static int64_t count_copies(const struct pkv_compressed_index *index, int64_t seq, int64_t end) {
    int64_t count = 0;
    for (int64_t head = 0; head < index->num_heads; head++) {
        const struct pkv_region region = pkv_compressed_region(index, seq, head);
        for (int i = 0; i < 2; i++)
            count += clip(&region.copies[i], 0, end).num_tokens;
    }
    return count;
}

/* The token of a sequence before which its heads copy `wanted` of their `total` tokens: the border
 * between two parts. */
static int64_t find_border(const struct pkv_compressed_index *index, int64_t seq, int64_t total,
                           int64_t wanted) {
    int64_t low = 0, high = pkv_vector_at(&index->seq_lens, seq);
    if (wanted <= 0 || wanted >= total)
        return wanted <= 0 ? 0 : high;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (count_copies(index, seq, middle) >= wanted)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct share {
    int64_t begin, end;
};

struct parts {
    const struct pkv_compressed_job *job;
    int64_t num_parts;
};

/* A token of a window is read, one that is copied is written too; these are their costs as
 * measured. */
enum { WINDOW_COST = 3, COPY_COST = 4 };

/* The work is first that of all windows, then that of all copies: so few parts have windows, and
 * those read most heads of each token. */
static void share_work(const struct parts *parts, int64_t part, struct share *windows,
                       struct share *copies) {
    const int64_t averaged = parts->job->num_averaged * WINDOW_COST;
    const int64_t copied = parts->job->num_copies * COPY_COST;
    int64_t begin, end;
    pkv_rows_share(averaged + copied, part, parts->num_parts, &begin, &end);
    *windows =
        (struct share){min64(begin, averaged) / WINDOW_COST, min64(end, averaged) / WINDOW_COST};
    *copies = (struct share){max64(begin - averaged, 0) / COPY_COST,
                             max64(end - averaged, 0) / COPY_COST};
}

/* A part has its share of the windows, each of which is whole and goes where its first token is
 * counted; and of all tokens that are copied, sequence after sequence, each in the order of its
 * tokens, so that heads stay abreast. */
static void move_part(void *arg, int64_t part) {
    const struct parts *parts = arg;
    const struct pkv_compressed_job *job = parts->job;
    const struct pkv_compressed_index *index = &job->index;
    struct share windows, copies;
    share_work(parts, part, &windows, &copies);
    struct member members[MAX_MEMBERS];
    int64_t copied = 0, averaged = 0, num_earlier = 0;
    for (int64_t seq = 0; seq < index->num_seqs; seq++) {
        const int64_t length = pkv_vector_at(&index->seq_lens, seq);
        const int64_t total = count_copies(index, seq, length);
        const int64_t begin = find_border(index, seq, total, copies.begin - copied);
        const int64_t end = find_border(index, seq, total, copies.end - copied);
        int64_t num_members = 0;
        copied += total;
        for (int64_t head = 0; head < index->num_heads; head++) {
            struct member *member = &members[num_members];
            *member = (struct member){head, pkv_compressed_region(index, seq, head)};
            struct pkv_region *region = &member->region;
            const int64_t num_averaged = region->mean.num_tokens;
            if (averaged < windows.begin || averaged >= windows.end)
                region->mean.num_tokens = 0;
            averaged += num_averaged;
            for (int i = 0; i < 2; i++)
                region->copies[i] = clip(&region->copies[i], begin, end);
            num_members += region->mean.num_tokens > 0 || region->copies[0].num_tokens > 0 ||
                           region->copies[1].num_tokens > 0;
            if (num_members == MAX_MEMBERS || head == index->num_heads - 1) {
                move_sequence(job, seq, num_earlier, members, num_members);
                num_members = 0;
            }
        }
        num_earlier += length;
    }
}

/* One region of one side, by the definition. */
static enum pkv_status sim_region(const struct pkv_compressed_job *job,
                                  const struct pkv_compressed_side *side,
                                  const struct pkv_region *region, const struct pkv_tensor *tokens,
                                  struct pkv_error *error) {
    const int64_t block_size = job->cache->block_size;
    enum pkv_status status = PKV_STATUS_OK;
    for (int i = 0; i < 2 && status == PKV_STATUS_OK; i++) {
        const struct pkv_token_run *run = &region->copies[i];
        struct pkv_tile_loop loop;
        struct pkv_tile tile;
        status = pkv_tile_loop_init(&loop, run->num_tokens,
                                    pkv_sim_tile_tokens(side->part->head_size), NULL, 0, error);
        while (status == PKV_STATUS_OK && pkv_tile_loop_next(&loop, &tile)) {
            for (int64_t t = tile.offset; t < tile.offset + tile.valid && status == PKV_STATUS_OK;
                 t++)
                status = pkv_sim_scatter_row(side->part, block_size, region->slot + run->row + t,
                                             tokens, run->token + t, job->function, error);
        }
    }
    if (status == PKV_STATUS_OK && region->mean.num_tokens > 0)
        status = pkv_sim_mean_row(side->part, block_size, region->slot + region->mean.row, tokens,
                                  region->mean.token, region->mean.num_tokens,
                                  (enum pkv_mean_type)side->mean_type, job->function, error);
    return status;
}

static enum pkv_status sim_run(const struct pkv_compressed_job *job, struct pkv_error *error) {
    const struct pkv_compressed_index *index = &job->index;
    int64_t num_earlier = 0;
    for (int64_t seq = 0; seq < index->num_seqs; seq++) {
        const int64_t length = pkv_vector_at(&index->seq_lens, seq);
        for (int64_t head = 0; head < index->num_heads; head++) {
            const struct pkv_region region = pkv_compressed_region(index, seq, head);
            for (int32_t i = 0; i < job->num_sides; i++) {
                const struct pkv_compressed_side *side = &job->sides[i];
                struct pkv_tensor tokens = side->tokens;
                if (region.num_rows == 0)
                    continue;
                tokens.data = (char *)tokens.data + head * side->head_stride +
                              (job->is_padded ? seq * side->seq_stride
                                              : num_earlier * side->mover.src_row_stride);
                tokens.shape[0] = length;
                const enum pkv_status status = sim_region(job, side, &region, &tokens, error);
                if (status != PKV_STATUS_OK)
                    return status;
            }
        }
        num_earlier += length;
    }
    return PKV_STATUS_OK;
}

enum pkv_status pkv_compressed_job_run(const struct pkv_compressed_job *job,
                                       struct pkv_error *error) {
    if (job->context->run_mode == PKV_RUN_MODE_SIM)
        return sim_run(job, error);
    /* A window is read for one row that is written: it is the rows read that make a part worth its
     * thread. */
    uint64_t row_bytes = 0;
    for (int32_t i = 0; i < job->num_sides; i++)
        row_bytes += (uint64_t)job->sides[i].part->row_bytes;
    const struct pkv_executor *executor = &job->context->executor;
    struct parts parts = {
        job, pkv_rows_num_parts((uint64_t)(job->num_copies + job->num_averaged) * row_bytes,
                                executor->num_threads)};
    pkv_executor_run(executor, move_part, &parts, parts.num_parts);
    return PKV_STATUS_OK;
}
