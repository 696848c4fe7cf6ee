/* SPDX-License-Identifier: MIT
 *
 * The batch step as a transaction. What its changes do to the pool is in change.c; the tensors are
 * in batch_tensors.c.
 */
#include "pool/batch.h"

#include <string.h>

#include "base/allocator.h"
#include "pool/pool_options.h"
#include "pool/prefix.h"

enum { BATCH_ALIGNMENT = 64, CHANGES_PER_SEQ = 3 };

#define MAX_BATCH (INT64_C(1) << 30)

static void lay_out(struct pkv_batch *batch, struct pkv_arena *arena) {
    const struct pkv_pool *pool = batch->pool;
    const int64_t max_seqs = batch->max_seqs;
    (void)pkv_arena_take(arena, 1, sizeof(*batch));
    batch->changes = pkv_arena_take(arena, batch->max_changes, sizeof(*batch->changes));
    batch->tokens =
        pkv_arena_take(arena, pool->tokens ? batch->max_tokens : 0, sizeof(*batch->tokens));
    batch->seqs = pkv_arena_take(arena, max_seqs, sizeof(*batch->seqs));
    batch->row_of_seq = pkv_arena_take(arena, pool->max_seqs, sizeof(*batch->row_of_seq));
    batch->num_kept = pkv_arena_take(arena, max_seqs, sizeof(*batch->num_kept));
    batch->seq_lens = pkv_arena_take(arena, max_seqs, sizeof(*batch->seq_lens));
    batch->query_start_loc = pkv_arena_take(arena, max_seqs + 1, sizeof(*batch->query_start_loc));
    for (int32_t g = 0; g < pool->num_groups; g++) {
        struct pkv_batch_group *group = &batch->groups[g];
        group->slot_mapping =
            pkv_arena_take(arena, batch->max_tokens, sizeof(*group->slot_mapping));
        group->block_table = pkv_arena_take(
            arena, max_seqs, pool->groups[g].width * (int64_t)sizeof(*group->block_table));
        group->rows = pkv_arena_take(arena, max_seqs, sizeof(*group->rows));
        group->kept_lens = pkv_arena_take(arena, max_seqs, sizeof(*group->kept_lens));
        group->kept_offsets = pkv_arena_take(arena, max_seqs, sizeof(*group->kept_offsets));
        group->copies = pkv_arena_take(arena, max_seqs, sizeof(*group->copies));
    }
}

/* Checks the options; batch gets the sizes, bytes what it needs. */
static enum pkv_status plan(struct pkv_batch *batch, const struct pkv_pool *pool,
                            const struct pkv_batch_options *options,
                            struct pkv_allocator *allocator, int64_t *bytes,
                            struct pkv_blame blame) {
    struct pkv_batch_options chosen;
    const enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, blame.function, "options", blame.error);
    if (status != PKV_STATUS_OK)
        return status;
    if (chosen.max_seqs < 0 || chosen.max_seqs > MAX_BATCH)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "options->max_seqs", chosen.max_seqs,
                          MAX_BATCH, "must lie between 0 and");
    if (chosen.max_tokens < 0 || chosen.max_tokens > MAX_BATCH)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "options->max_tokens",
                          chosen.max_tokens, MAX_BATCH, "must lie between 0 and");
    *allocator = pkv_allocator_resolve(chosen.allocator);
    if (allocator->alloc == NULL)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "options->allocator", PKV_ERROR_NONE,
                          PKV_ERROR_NONE, "must have both alloc and free, or neither");
    struct pkv_arena arena = {0};
    *batch = (struct pkv_batch){.pool = (struct pkv_pool *)pool,
                                .max_seqs = chosen.max_seqs ? chosen.max_seqs : pool->max_seqs,
                                .max_tokens = chosen.max_tokens ? chosen.max_tokens : 8192};
    batch->max_changes = CHANGES_PER_SEQ * batch->max_seqs;
    lay_out(batch, &arena);
    if (arena.is_overflown)
        return pkv_refuse(blame, PKV_STATUS_OVERFLOW, "options", PKV_ERROR_NONE, PKV_ERROR_NONE,
                          "must not need more bytes than 63 bits can count");
    *bytes = arena.bytes;
    return PKV_STATUS_OK;
}

static void init(struct pkv_batch *batch, const struct pkv_batch *planned) {
    struct pkv_arena arena = {.memory = (unsigned char *)batch};
    *batch = *planned;
    lay_out(batch, &arena);
    if (batch->pool->tokens == NULL)
        batch->tokens = NULL;
    memset(batch->row_of_seq, 0, (size_t)batch->pool->max_seqs * sizeof(*batch->row_of_seq));
    for (int32_t g = 0; g < batch->pool->num_groups; g++)
        memset(batch->groups[g].rows, 0, (size_t)batch->max_seqs * sizeof(struct pkv_batch_row));
}

size_t pkv_batch_memory_size(const struct pkv_pool *pool, const struct pkv_batch_options *options) {
    struct pkv_batch planned;
    struct pkv_allocator allocator;
    int64_t bytes;
    const struct pkv_blame blame = {__func__, NULL};
    if (pool == NULL || plan(&planned, pool, options, &allocator, &bytes, blame) != PKV_STATUS_OK)
        return 0;
    return (size_t)bytes;
}

enum pkv_status pkv_batch_create(struct pkv_batch **batch, struct pkv_pool *pool,
                                 const struct pkv_batch_options *options, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_batch planned;
    struct pkv_allocator allocator;
    int64_t bytes;
    if (batch == NULL)
        return pkv_refuse_missing(blame, "batch");
    *batch = NULL;
    if (pool == NULL)
        return pkv_refuse_missing(blame, "pool");
    const enum pkv_status status = plan(&planned, pool, options, &allocator, &bytes, blame);
    if (status != PKV_STATUS_OK)
        return status;
    struct pkv_batch *made = pkv_alloc(&allocator, (size_t)bytes, BATCH_ALIGNMENT);
    if (made == NULL)
        return pkv_refuse(blame, PKV_STATUS_OUT_OF_MEMORY, NULL, PKV_ERROR_NONE, bytes,
                          "the allocator has no memory of that many bytes");
    init(made, &planned);
    made->allocator = allocator;
    made->owns_memory = true;
    *batch = made;
    return PKV_STATUS_OK;
}

enum pkv_status pkv_batch_create_in(struct pkv_batch **batch, struct pkv_pool *pool, void *memory,
                                    size_t memory_bytes, const struct pkv_batch_options *options,
                                    struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_batch planned;
    struct pkv_allocator allocator;
    int64_t bytes;
    if (batch == NULL)
        return pkv_refuse_missing(blame, "batch");
    *batch = NULL;
    if (pool == NULL || memory == NULL)
        return pkv_refuse_missing(blame, pool == NULL ? "pool" : "memory");
    const enum pkv_status status = plan(&planned, pool, options, &allocator, &bytes, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if ((uintptr_t)memory % BATCH_ALIGNMENT != 0)
        return pkv_refuse(blame, PKV_STATUS_MISALIGNED, "memory", PKV_ERROR_NONE, BATCH_ALIGNMENT,
                          "must be aligned to that many bytes");
    if (memory_bytes < (size_t)bytes)
        return pkv_refuse(blame, PKV_STATUS_CAPACITY, "memory_bytes", (int64_t)memory_bytes, bytes,
                          "must be at least pkv_batch_memory_size");
    *batch = memory;
    init(*batch, &planned);
    return PKV_STATUS_OK;
}

/* Ends the wait of a committed step for its mark. */
static void forget(struct pkv_batch *batch) {
    struct pkv_batch **link = &batch->pool->unmarked;
    while (*link != NULL && *link != batch)
        link = &(*link)->next_unmarked;
    if (*link == batch)
        *link = batch->next_unmarked;
}

void pkv_batch_note_truncation(struct pkv_pool *pool, uint32_t seq, int32_t num_tokens) {
    for (struct pkv_batch *batch = pool->unmarked; batch; batch = batch->next_unmarked) {
        const int32_t row = batch->row_of_seq[seq];
        if (row < batch->num_seqs && batch->seqs[row].index == seq &&
            num_tokens < batch->num_kept[row])
            batch->num_kept[row] = num_tokens;
    }
}

void pkv_batch_destroy(struct pkv_batch *batch) {
    if (batch == NULL)
        return;
    if (batch->state == PKV_BATCH_OPEN)
        (void)!pkv_batch_rollback(batch, NULL);
    if (batch->state == PKV_BATCH_COMMITTED) {
        pkv_pool_lock(batch->pool);
        forget(batch);
        pkv_pool_unlock(batch->pool);
    }
    if (!batch->owns_memory)
        return;
    const struct pkv_allocator allocator = batch->allocator;
    pkv_free(&allocator, batch);
}

enum pkv_status pkv_batch_begin(struct pkv_batch *batch, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (batch == NULL)
        return pkv_refuse_missing(blame, "batch");
    struct pkv_pool *pool = batch->pool;
    pkv_pool_lock(pool);
    const enum pkv_status status = pkv_pool_may_change(pool, blame);
    if (status != PKV_STATUS_OK) {
        pkv_pool_unlock(pool);
        return status;
    }
    if (batch->state == PKV_BATCH_COMMITTED)
        forget(batch);
    pool->state = PKV_POOL_BATCH;
    pool->open_batch = batch;
    pool->queue.is_logging = true;
    pool->queue.num_logged = 0;
    batch->number = ++pool->batch;
    batch->counts = pool->counts;
    batch->state = PKV_BATCH_OPEN;
    batch->num_changes = batch->num_tokens = batch->num_seqs = 0;
    for (int32_t g = 0; g < pool->num_groups; g++)
        batch->groups[g].num_copies = 0;
    return PKV_STATUS_OK;
}

/* Ends the step; the lock taken at begin is given back. */
static void close_step(struct pkv_batch *batch, int32_t state) {
    struct pkv_pool *pool = batch->pool;
    pool->queue.is_logging = false;
    pool->state = PKV_POOL_IDLE;
    pool->open_batch = NULL;
    batch->state = state;
    pkv_pool_unlock(pool);
}

static void roll_back(struct pkv_batch *batch) {
    struct pkv_pool *pool = batch->pool;
    while (batch->num_changes > 0)
        pkv_change_undo(pool, &batch->changes[--batch->num_changes]);
    pkv_queue_undo(&pool->queue);
    pool->counts = batch->counts;
    pool->num_rollbacks++;
    close_step(batch, PKV_BATCH_EMPTY);
}

/* Whether one more change may come now. */
static enum pkv_status check_open(const struct pkv_batch *batch, struct pkv_blame blame) {
    if (batch == NULL)
        return pkv_refuse_missing(blame, "batch");
    if (batch->state != PKV_BATCH_OPEN || batch->pool->state != PKV_POOL_BATCH)
        return pkv_refuse(blame, PKV_STATUS_BAD_STATE, "batch", PKV_ERROR_NONE, PKV_ERROR_NONE,
                          "must be open");
    return PKV_STATUS_OK;
}

static enum pkv_status check_room(const struct pkv_batch *batch, struct pkv_blame blame) {
    const enum pkv_status status = check_open(batch, blame);
    if (status == PKV_STATUS_OK && batch->num_changes == batch->max_changes)
        return pkv_refuse(blame, PKV_STATUS_CAPACITY, "batch", batch->num_changes,
                          batch->max_changes, "must not hold more operations than");
    return status;
}

enum pkv_status pkv_batch_match(struct pkv_batch *batch, struct pkv_seq seq,
                                const int32_t *token_ids, int64_t num_tokens,
                                int64_t *num_hit_tokens, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    enum pkv_status status = check_room(batch, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if (num_hit_tokens == NULL)
        return pkv_refuse_missing(blame, "num_hit_tokens");
    status = pkv_change_match(batch->pool, seq, token_ids, num_tokens, num_hit_tokens,
                              &batch->changes[batch->num_changes], blame);
    if (status == PKV_STATUS_OK)
        batch->num_changes++;
    return status;
}

static enum pkv_status check_append(const struct pkv_batch *batch, struct pkv_seq seq,
                                    int64_t num_tokens, struct pkv_blame blame) {
    struct pkv_seq_record *record;
    const enum pkv_status status = pkv_seq_find(batch->pool, seq, "seq", &record, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if (record->batch == batch->number)
        return pkv_refuse(blame, PKV_STATUS_BAD_STATE, "seq", PKV_ERROR_NONE, PKV_ERROR_NONE,
                          "must not be appended to twice in a step");
    if (batch->num_seqs == batch->max_seqs)
        return pkv_refuse(blame, PKV_STATUS_CAPACITY, "seq", batch->num_seqs, batch->max_seqs,
                          "must not be one more than");
    if (num_tokens > batch->max_tokens - batch->num_tokens)
        return pkv_refuse(blame, PKV_STATUS_CAPACITY, "num_tokens", num_tokens,
                          batch->max_tokens - batch->num_tokens,
                          "must not be more than the step has room for");
    return PKV_STATUS_OK;
}

enum pkv_status pkv_batch_append(struct pkv_batch *batch, struct pkv_seq seq,
                                 const int32_t *token_ids, int64_t num_tokens,
                                 struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    enum pkv_status status = check_room(batch, blame);
    if (status == PKV_STATUS_OK)
        status = check_append(batch, seq, num_tokens, blame);
    if (status != PKV_STATUS_OK)
        return status;
    struct pkv_change *change = &batch->changes[batch->num_changes];
    status = pkv_change_append(batch->pool, seq, token_ids, num_tokens, change, blame);
    if (status == PKV_STATUS_OUT_OF_BLOCKS)
        roll_back(batch);
    if (status != PKV_STATUS_OK)
        return status;
    batch->num_changes++;
    if (num_tokens == 0)
        return PKV_STATUS_OK;
    if (batch->tokens && token_ids) {
        change->tokens = batch->tokens + batch->num_tokens;
        memcpy(batch->tokens + batch->num_tokens, token_ids,
               (size_t)num_tokens * sizeof(*token_ids));
    }
    batch->pool->seqs[seq.index].batch = batch->number;
    batch->seqs[batch->num_seqs++] = seq;
    batch->num_tokens += num_tokens;
    return PKV_STATUS_OK;
}

enum pkv_status pkv_batch_fork(struct pkv_batch *batch, struct pkv_seq parent,
                               struct pkv_seq *child, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    enum pkv_status status = check_room(batch, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if (child == NULL)
        return pkv_refuse_missing(blame, "child");
    status =
        pkv_change_fork(batch->pool, parent, child, &batch->changes[batch->num_changes], blame);
    if (status == PKV_STATUS_OK)
        batch->num_changes++;
    return status;
}

static void note_copies(struct pkv_batch *batch, const struct pkv_change *change) {
    if (change->type != PKV_CHANGE_APPEND || change->num_tokens == 0)
        return;
    for (int32_t g = 0; g < batch->pool->num_groups; g++) {
        if (change->groups[g].copy_source == PKV_NIL)
            continue;
        struct pkv_batch_group *group = &batch->groups[g];
        const uint32_t *table = pkv_seq_table(&batch->pool->groups[g], change->seq);
        group->copies[group->num_copies++] =
            (struct pkv_block_copy){(int32_t)change->groups[g].copy_source,
                                    (int32_t)table[change->groups[g].old_blocks - 1]};
    }
}

enum pkv_status pkv_batch_commit(struct pkv_batch *batch, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    const enum pkv_status status = check_open(batch, blame);
    if (status != PKV_STATUS_OK)
        return status;
    struct pkv_pool *pool = batch->pool;
    /* The queue is not to be restored any more, and applying may put blocks into it. */
    pool->queue.is_logging = false;
    for (int64_t i = 0; i < batch->num_changes; i++) {
        pkv_change_apply(pool, &batch->changes[i]);
        note_copies(batch, &batch->changes[i]);
    }
    pkv_batch_fill(batch);
    batch->next_unmarked = pool->unmarked;
    pool->unmarked = batch;
    pool->num_commits++;
    close_step(batch, PKV_BATCH_COMMITTED);
    return PKV_STATUS_OK;
}

enum pkv_status pkv_batch_rollback(struct pkv_batch *batch, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    const enum pkv_status status = check_open(batch, blame);
    if (status == PKV_STATUS_OK)
        roll_back(batch);
    return status;
}

/* How many tokens of a row can be marked now; -1: its sequence is gone. */
static int32_t markable(const struct pkv_batch *batch, int64_t row) {
    const struct pkv_seq seq = batch->seqs[row];
    const struct pkv_seq_record *record = &batch->pool->seqs[seq.index];
    if (!record->is_live || record->generation != seq.generation)
        return -1;
    return batch->num_kept[row];
}

/* What the index needs of each row is fetched while the others are looked at. */
static void mark_rows(struct pkv_batch *batch) {
    struct pkv_pool *pool = batch->pool;
    for (int64_t row = 0; row < batch->num_seqs; row++) {
        const int32_t num_tokens = markable(batch, row);
        if (num_tokens > pool->seqs[batch->seqs[row].index].num_computed)
            pkv_prefix_prefetch(pool, batch->seqs[row].index, num_tokens);
    }
    for (int64_t row = 0; row < batch->num_seqs; row++) {
        const int32_t num_tokens = markable(batch, row);
        if (num_tokens > pool->seqs[batch->seqs[row].index].num_computed)
            pkv_seq_set_computed(pool, batch->seqs[row].index, num_tokens);
    }
}

enum pkv_status pkv_batch_mark_computed(struct pkv_batch *batch, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (batch == NULL)
        return pkv_refuse_missing(blame, "batch");
    struct pkv_pool *pool = batch->pool;
    pkv_pool_lock(pool);
    enum pkv_status status = pkv_pool_may_change(pool, blame);
    if (status == PKV_STATUS_OK && batch->state != PKV_BATCH_COMMITTED)
        status = pkv_refuse(blame, PKV_STATUS_BAD_STATE, "batch", PKV_ERROR_NONE, PKV_ERROR_NONE,
                            "must be committed, and not be marked yet");
    if (status == PKV_STATUS_OK) {
        mark_rows(batch);
        forget(batch);
        batch->state = PKV_BATCH_COMPUTED;
    }
    pkv_pool_unlock(pool);
    return status;
}
