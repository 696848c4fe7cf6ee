/* SPDX-License-Identifier: MIT
 *
 * Drives a pool and the naive model with the same operations, chosen by bytes, and ends the program
 * at the first difference: in a status, a hit, a table, a count, an event or a tensor. The auditor
 * runs after every operation.
 */
#ifndef PAGEDKV_TESTS_POOL_DRIVER_H
#define PAGEDKV_TESTS_POOL_DRIVER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pagedkv/audit.h>
#include <pagedkv/batch.h>

#include "pool_model.h"

enum { DRIVER_MAX_HANDLES = 64, DRIVER_MAX_HELD = 5 };

struct pool_driver {
    const uint8_t *data;
    size_t size;
    size_t at;
    int64_t step;

    struct pkv_pool *pool;
    struct pkv_batch *batch;
    struct pkv_pool_options options;
    struct pkv_layer_group groups[MODEL_MAX_GROUPS];
    struct pkv_seq seqs[MODEL_MAX_SEQS];
    struct pkv_seq stale; /* the handle of the sequence freed last */
    struct pkv_block handles[DRIVER_MAX_HANDLES];
    int32_t lives[DRIVER_MAX_HANDLES]; /* of their blocks when they were made */
    int32_t num_handles;
    struct pkv_pool_event events[MODEL_MAX_EVENTS];
    int32_t num_events;
    uint64_t next_event;

    struct pool_model model;
    struct pool_model before; /* the open batch step */
    int32_t num_changes;
    int32_t rows[MODEL_MAX_SEQS];
    int32_t row_tokens[MODEL_MAX_SEQS];
    struct pkv_block_copy row_copies[MODEL_MAX_SEQS][MODEL_MAX_GROUPS];
    int32_t num_rows;
    int32_t marked_lens[MODEL_MAX_SEQS];
    struct pkv_seq marked_seqs[MODEL_MAX_SEQS];
    int32_t num_marked;
    bool can_mark;
};

/* What the runs have met, so that a test can see that they met something. */
struct pool_driver_totals {
    int64_t num_steps, num_hit_tokens, num_evicted, num_copied, num_rollbacks, num_out_of_blocks,
        num_removed;
};

#define DRIVER_CHECK(driver, condition) driver_check((driver), (condition), #condition, __LINE__)

static inline void driver_check(const struct pool_driver *driver, bool condition, const char *text,
                                int line) {
    if (condition)
        return;
    fprintf(stderr, "pool_driver.h:%d: step %lld: %s\n", line, (long long)driver->step, text);
    abort();
}

static inline uint32_t driver_byte(struct pool_driver *driver) {
    return driver->at < driver->size ? driver->data[driver->at++] : 0;
}

static inline int32_t driver_below(struct pool_driver *driver, int32_t bound) {
    return (int32_t)(driver_byte(driver) % (uint32_t)bound);
}

static inline void driver_note_event(void *user, const struct pkv_pool_event *event) {
    struct pool_driver *driver = user;
    DRIVER_CHECK(driver, driver->num_events < MODEL_MAX_EVENTS);
    DRIVER_CHECK(driver, event->sequence_number == driver->next_event);
    DRIVER_CHECK(driver, (event->type == PKV_POOL_EVENT_STORED) == (event->token_ids != NULL));
    DRIVER_CHECK(driver, pkv_pool_invalidate(driver->pool, NULL) == PKV_STATUS_BAD_STATE);
    driver->next_event++;
    driver->events[driver->num_events++] = *event;
}

static inline void driver_open(struct pool_driver *driver) {
    static const struct pkv_layer_group shapes[][MODEL_MAX_GROUPS] = {
        {{4, 0}}, {{1, 0}},         {{3, 0}},         {{8, 0}},
        {{4, 6}}, {{4, 0}, {4, 7}}, {{4, 0}, {2, 5}}, {{2, 5}, {6, 0}, {4, 9}},
        {{2, 1}}, {{4, 0}, {8, 0}}, {{4, 0}, {6, 3}}, {{3, 2}, {3, 0}},
    };
    const int32_t shape = driver_below(driver, sizeof(shapes) / sizeof(shapes[0]));
    struct pkv_pool_options *options = &driver->options;
    int64_t num_groups = 0;
    while (num_groups < MODEL_MAX_GROUPS && shapes[shape][num_groups].block_size > 0) {
        driver->groups[num_groups] = shapes[shape][num_groups];
        num_groups++;
    }
    *options = (struct pkv_pool_options){
        .num_blocks = driver_below(driver, 4) == 0 ? 1 + driver_below(driver, 10)
                                                   : 8 + driver_below(driver, MODEL_MAX_BLOCKS - 7),
        .groups = driver->groups,
        .num_groups = num_groups,
        .max_seqs = 1 + driver_below(driver, MODEL_MAX_SEQS),
        .max_tokens_per_seq = 20 + driver_below(driver, MODEL_MAX_TOKENS - 19),
        .index_mode = driver_below(driver, 8) == 7 ? PKV_INDEX_OFF : PKV_INDEX_FULL_BLOCKS,
        .eviction = driver_below(driver, 3),
        .num_priorities = 1 + driver_below(driver, 3),
        .hash_seed = 1 + driver_byte(driver),
        .event = driver_note_event,
        .event_user = driver,
    };
    if (num_groups == 1 && driver_below(driver, 2) == 1)
        options->index_mode = PKV_INDEX_PARTIAL_BLOCKS;
    options->max_domains = options->max_seqs + 1 + driver_below(driver, 3);
    DRIVER_CHECK(driver, pkv_pool_create(&driver->pool, options, NULL) == PKV_STATUS_OK);
    DRIVER_CHECK(driver,
                 pkv_batch_create(&driver->batch, driver->pool, NULL, NULL) == PKV_STATUS_OK);
    model_init(&driver->model, options);
}

/* Prompts that share beginnings: one of a few texts up to some position, another from there. */
static inline int32_t driver_text(int32_t text, int32_t position) {
    return text * 50 + (position * 7 + position / 5) % 11;
}

static inline int32_t driver_prompt(struct pool_driver *driver, int32_t *tokens) {
    const int32_t first = driver_below(driver, 5) / 2, then = driver_below(driver, 3);
    const int32_t turn = driver_below(driver, 48);
    const int32_t count = driver_below(driver, 20 + driver_below(driver, MODEL_MAX_TOKENS - 19));
    for (int32_t i = 0; i < count; i++)
        tokens[i] = driver_text(i < turn ? first : then, i);
    return count;
}

static inline int32_t driver_seq(struct pool_driver *driver) {
    const int32_t start = driver_byte(driver) % (uint32_t)driver->model.max_seqs;
    for (int32_t i = 0; i < driver->model.max_seqs; i++) {
        const int32_t seq = (start + i) % driver->model.max_seqs;
        if (driver->model.seqs[seq].is_live)
            return seq;
    }
    return -1;
}

static inline void driver_domain(int32_t value, struct pkv_domain *domain) {
    static const char *const salts[] = {"", "a", "b", "ab", "ba", "c"};
    *domain = (struct pkv_domain){.salt = {salts[value], strlen(salts[value])}};
}

static inline void driver_create(struct pool_driver *driver) {
    struct pkv_domain domain;
    const int32_t value = driver_below(driver, 16) < 11 ? 0 : driver_below(driver, 6);
    driver_domain(value, &domain);
    const struct pkv_seq_options options = {
        .domain = &domain,
        .priority = driver_below(driver, driver->options.num_priorities),
        .not_indexed = driver_below(driver, 16) == 15};
    int32_t seq = -1;
    struct pkv_seq made = {0, 0};
    const int32_t expected =
        model_seq_create(&driver->model, value, options.priority, options.not_indexed, &seq);
    DRIVER_CHECK(driver, pkv_seq_create(driver->pool, &made, &options, NULL) == expected);
    if (expected != PKV_STATUS_OK)
        return;
    DRIVER_CHECK(driver, made.index == (uint32_t)seq);
    driver->seqs[seq] = made;
}

static inline void driver_free(struct pool_driver *driver, int32_t seq) {
    const int32_t expected = model_seq_free(&driver->model, seq);
    DRIVER_CHECK(driver, pkv_seq_free(driver->pool, driver->seqs[seq], NULL) == expected);
    if (expected == PKV_STATUS_OK)
        driver->stale = driver->seqs[seq];
}

static inline bool driver_is_full(const struct pool_driver *driver) {
    return driver->model.is_open && driver->num_changes == 3 * driver->model.max_seqs;
}

/* Of a sequence without tokens, if there is one. */
static inline void driver_match(struct pool_driver *driver, int32_t seq) {
    for (int32_t i = 0; i < driver->model.max_seqs; i++) {
        if (driver->model.seqs[i].is_live && driver->model.seqs[i].num_tokens == 0)
            seq = i;
    }
    int32_t tokens[MODEL_MAX_TOKENS], model_hit = -1;
    int64_t hit = -1;
    const int32_t count = driver_prompt(driver, tokens);
    const int32_t expected = driver_is_full(driver)
                                 ? PKV_STATUS_CAPACITY
                                 : model_seq_match(&driver->model, seq, tokens, count, &model_hit);
    const int32_t status =
        driver->model.is_open
            ? pkv_batch_match(driver->batch, driver->seqs[seq], tokens, count, &hit, NULL)
            : pkv_seq_match(driver->pool, driver->seqs[seq], tokens, count, &hit, NULL);
    DRIVER_CHECK(driver, status == expected);
    DRIVER_CHECK(driver, hit == model_hit);
    driver->num_changes += driver->model.is_open && status == PKV_STATUS_OK;
}

static inline void driver_restore(struct pool_driver *driver) {
    driver->model = driver->before;
    driver->num_rows = driver->num_changes = 0;
}

static inline void driver_append(struct pool_driver *driver, int32_t seq) {
    struct model_seq *grown = &driver->model.seqs[seq];
    int32_t tokens[MODEL_MAX_TOKENS];
    struct pkv_block_copy copies[MODEL_MAX_GROUPS], model_copies[MODEL_MAX_GROUPS];
    const int32_t text = driver_below(driver, 7) / 3;
    const int32_t count = driver_below(driver, 2) ? driver_below(driver, 24) : 1;
    int32_t expected;
    for (int32_t i = 0; i < count; i++)
        tokens[i] = driver_text(text, grown->num_tokens + i);
    if (!driver->model.is_open) {
        expected = model_seq_append(&driver->model, seq, tokens, count, model_copies);
        DRIVER_CHECK(driver, pkv_seq_append(driver->pool, driver->seqs[seq], tokens, count, copies,
                                            NULL) == expected);
        DRIVER_CHECK(driver, expected != PKV_STATUS_OK ||
                                 memcmp(copies, model_copies,
                                        (size_t)driver->model.num_groups * sizeof(copies[0])) == 0);
        return;
    }
    if (driver_is_full(driver))
        expected = PKV_STATUS_CAPACITY;
    else if (grown->batch == driver->model.batch)
        expected = PKV_STATUS_BAD_STATE;
    else
        expected = model_seq_append(&driver->model, seq, tokens, count, model_copies);
    DRIVER_CHECK(driver, pkv_batch_append(driver->batch, driver->seqs[seq], tokens, count, NULL) ==
                             expected);
    /* The caller's memory may go. */
    memset(tokens, 0xee, sizeof(tokens));
    if (expected == PKV_STATUS_OUT_OF_BLOCKS)
        driver_restore(driver);
    if (expected != PKV_STATUS_OK)
        return;
    driver->num_changes++;
    if (count == 0)
        return;
    grown->batch = driver->model.batch;
    driver->row_tokens[driver->num_rows] = count;
    memcpy(driver->row_copies[driver->num_rows], model_copies, sizeof(model_copies));
    driver->rows[driver->num_rows++] = seq;
}

static inline void driver_fork(struct pool_driver *driver, int32_t parent) {
    int32_t seq = -1;
    struct pkv_seq child = {0, 0};
    const int32_t expected =
        driver_is_full(driver) ? PKV_STATUS_CAPACITY : model_seq_fork(&driver->model, parent, &seq);
    const int32_t status = driver->model.is_open
                               ? pkv_batch_fork(driver->batch, driver->seqs[parent], &child, NULL)
                               : pkv_seq_fork(driver->pool, driver->seqs[parent], &child, NULL);
    DRIVER_CHECK(driver, status == expected);
    if (status != PKV_STATUS_OK)
        return;
    DRIVER_CHECK(driver, child.index == (uint32_t)seq);
    driver->seqs[seq] = child;
    driver->num_changes += driver->model.is_open;
}

static inline void driver_truncate(struct pool_driver *driver, int32_t seq) {
    const int32_t num_tokens = driver->model.seqs[seq].num_tokens;
    int32_t kept = num_tokens - driver_below(driver, 12);
    if (driver_below(driver, 8) == 0)
        kept = 0;
    const int32_t expected = model_seq_truncate(&driver->model, seq, kept);
    /* What comes after it is not what the step has reserved. */
    for (int32_t row = 0; expected == PKV_STATUS_OK && row < driver->num_marked; row++) {
        if (driver->marked_seqs[row].index == driver->seqs[seq].index &&
            kept < driver->marked_lens[row])
            driver->marked_lens[row] = kept;
    }
    DRIVER_CHECK(driver, pkv_seq_truncate(driver->pool, driver->seqs[seq], kept, NULL) == expected);
}

static inline void driver_mark(struct pool_driver *driver, int32_t seq) {
    const struct model_seq *marked = &driver->model.seqs[seq];
    int32_t computed = marked->num_tokens;
    if (driver_below(driver, 4) == 0)
        computed = marked->num_computed - 1 + driver_below(driver, 12);
    const int32_t expected = model_seq_mark_computed(&driver->model, seq, computed);
    DRIVER_CHECK(driver, pkv_seq_mark_computed(driver->pool, driver->seqs[seq], computed, NULL) ==
                             expected);
}

static inline int64_t driver_entry(const struct pkv_tensor *tensor, int64_t i) {
    return tensor->dtype == PKV_DTYPE_I64 ? ((const int64_t *)tensor->data)[i]
                                          : ((const int32_t *)tensor->data)[i];
}

static inline void driver_check_row(const struct pool_driver *driver, int32_t g, int32_t row,
                                    int32_t first_token, const struct pkv_batch_tensors *tensors) {
    const struct model_seq *seq = &driver->model.seqs[driver->rows[row]];
    const struct model_part *part = &seq->parts[g];
    const int32_t block_size = driver->model.groups[g].block_size;
    const int64_t width = tensors->indices.block_table.shape[1];
    const int32_t offset = part->first_block * block_size;
    DRIVER_CHECK(driver, driver_entry(&tensors->seq_lens, row) == seq->num_tokens);
    DRIVER_CHECK(driver, driver_entry(&tensors->indices.seq_lens, row) == seq->num_tokens - offset);
    DRIVER_CHECK(driver, tensors->indices.seq_offsets.data
                             ? driver_entry(&tensors->indices.seq_offsets, row) == offset
                             : offset == 0);
    DRIVER_CHECK(driver, driver_entry(&tensors->query_start_loc, row) == first_token);
    for (int32_t i = 0; i < part->num_blocks; i++)
        DRIVER_CHECK(driver, driver_entry(&tensors->indices.block_table, row * width + i) ==
                                 part->table[i]);
    for (int32_t i = 0; i < driver->row_tokens[row]; i++) {
        const int32_t position = seq->num_tokens - driver->row_tokens[row] + i;
        DRIVER_CHECK(driver,
                     driver_entry(&tensors->indices.slot_mapping, first_token + i) ==
                         part->table[position / block_size] * block_size + position % block_size);
    }
}

static inline void driver_check_tensors(const struct pool_driver *driver) {
    for (int32_t g = 0; g < driver->model.num_groups; g++) {
        struct pkv_batch_tensors tensors = {.struct_size = sizeof(tensors)};
        int32_t num_tokens = 0, num_copies = 0;
        DRIVER_CHECK(driver,
                     pkv_batch_tensors_get(driver->batch, g, &tensors, NULL) == PKV_STATUS_OK);
        DRIVER_CHECK(driver, tensors.indices.block_table.shape[0] == driver->num_rows);
        for (int32_t row = 0; row < driver->num_rows; row++) {
            const struct pkv_block_copy copy = driver->row_copies[row][g];
            driver_check_row(driver, g, row, num_tokens, &tensors);
            num_tokens += driver->row_tokens[row];
            if (copy.source < 0)
                continue;
            DRIVER_CHECK(driver,
                         driver_entry(&tensors.block_mapping, 2 * num_copies) == copy.source);
            DRIVER_CHECK(driver, driver_entry(&tensors.block_mapping, 2 * num_copies + 1) ==
                                     copy.destination);
            num_copies++;
        }
        DRIVER_CHECK(driver, tensors.block_mapping.shape[0] == num_copies);
        DRIVER_CHECK(driver, tensors.indices.slot_mapping.shape[0] == num_tokens);
        DRIVER_CHECK(driver,
                     driver_entry(&tensors.query_start_loc, driver->num_rows) == num_tokens);
    }
}

static inline void driver_commit(struct pool_driver *driver) {
    DRIVER_CHECK(driver, pkv_batch_commit(driver->batch, NULL) == PKV_STATUS_OK);
    driver->model.is_open = false;
    for (int32_t i = 0; i < driver->model.max_seqs; i++)
        driver->model.seqs[i].num_committed = driver->model.seqs[i].num_tokens;
    driver_check_tensors(driver);
    driver->num_marked = driver->num_rows;
    for (int32_t row = 0; row < driver->num_rows; row++) {
        driver->marked_seqs[row] = driver->seqs[driver->rows[row]];
        driver->marked_lens[row] = driver->model.seqs[driver->rows[row]].num_tokens;
    }
    driver->can_mark = true;
}

/* Opens a step, or ends the open one. */
static inline void driver_step(struct pool_driver *driver) {
    if (!driver->model.is_open) {
        DRIVER_CHECK(driver, pkv_batch_begin(driver->batch, NULL) == PKV_STATUS_OK);
        driver->before = driver->model;
        driver->before.batch++;
        driver->model.batch++;
        driver->model.is_open = true;
        driver->num_rows = driver->num_changes = 0;
        driver->can_mark = false;
    } else if (driver_below(driver, 3) > 0) {
        driver_commit(driver);
    } else {
        DRIVER_CHECK(driver, pkv_batch_rollback(driver->batch, NULL) == PKV_STATUS_OK);
        driver_restore(driver);
    }
}

static inline void driver_mark_batch(struct pool_driver *driver) {
    const bool is_allowed = !driver->model.is_open && driver->can_mark;
    DRIVER_CHECK(driver, pkv_batch_mark_computed(driver->batch, NULL) ==
                             (is_allowed ? PKV_STATUS_OK : PKV_STATUS_BAD_STATE));
    for (int32_t row = 0; is_allowed && row < driver->num_marked; row++) {
        const struct pkv_seq handle = driver->marked_seqs[row];
        const struct model_seq *seq = &driver->model.seqs[handle.index];
        const int32_t length = driver->marked_lens[row];
        if (seq->is_live && driver->seqs[handle.index].generation == handle.generation &&
            length > seq->num_computed)
            (void)model_seq_mark_computed(&driver->model, (int32_t)handle.index, length);
    }
    driver->can_mark = driver->can_mark && !is_allowed;
}

static inline void driver_allocate(struct pool_driver *driver) {
    struct pkv_block blocks[8];
    int32_t model_blocks[8];
    const int32_t count = driver_below(driver, 4);
    if (driver->num_handles + count > DRIVER_MAX_HELD)
        return;
    const int32_t expected = model_allocate(&driver->model, count, model_blocks);
    DRIVER_CHECK(driver, pkv_block_allocate(driver->pool, count, blocks, NULL) == expected);
    for (int32_t i = 0; expected == PKV_STATUS_OK && i < count; i++) {
        DRIVER_CHECK(driver, blocks[i].block_id == model_blocks[i]);
        driver->lives[driver->num_handles] = driver->model.blocks[model_blocks[i]].life;
        driver->handles[driver->num_handles++] = blocks[i];
    }
}

/* Handles stay in the list: some are given back too often. */
static inline void driver_release(struct pool_driver *driver) {
    if (driver->num_handles == 0)
        return;
    const int32_t i = driver_below(driver, driver->num_handles);
    const int32_t block = driver->handles[i].block_id;
    const struct model_block *held = &driver->model.blocks[block];
    int32_t expected = PKV_STATUS_BAD_STATE;
    if (!driver->model.is_open)
        expected = held->life == driver->lives[i] && held->handles > 0
                       ? model_release(&driver->model, block)
                       : PKV_STATUS_STALE_HANDLE;
    DRIVER_CHECK(driver, pkv_block_release(driver->pool, 1, &driver->handles[i], NULL) == expected);
    if (expected != PKV_STATUS_BAD_STATE && driver_below(driver, 4) > 0) {
        driver->num_handles--;
        driver->handles[i] = driver->handles[driver->num_handles];
        driver->lives[i] = driver->lives[driver->num_handles];
    }
}

static inline void driver_pin(struct pool_driver *driver) {
    int32_t tokens[MODEL_MAX_TOKENS], model_blocks[MODEL_MAX_GROUPS * MODEL_MAX_TOKENS], count = 0;
    struct pkv_block blocks[DRIVER_MAX_HANDLES];
    struct pkv_domain domain;
    int64_t num_blocks = 0;
    const int32_t num_tokens = driver_prompt(driver, tokens) / 2;
    if (driver->num_handles > 0)
        return;
    driver_domain(0, &domain);
    const int32_t expected = model_pin(&driver->model, 0, tokens, num_tokens, model_blocks, &count);
    DRIVER_CHECK(driver, pkv_prefix_pin(driver->pool, &domain, tokens, num_tokens, blocks,
                                        DRIVER_MAX_HANDLES, &num_blocks, NULL, NULL) == expected);
    DRIVER_CHECK(driver, num_blocks == count);
    for (int32_t i = 0; i < count && driver->num_handles < DRIVER_MAX_HANDLES; i++) {
        DRIVER_CHECK(driver, blocks[i].block_id == model_blocks[i]);
        driver->lives[driver->num_handles] = driver->model.blocks[model_blocks[i]].life;
        driver->handles[driver->num_handles++] = blocks[i];
    }
}

static inline void driver_lookup(struct pool_driver *driver) {
    int32_t tokens[MODEL_MAX_TOKENS];
    struct pkv_domain domain;
    int64_t hit = -1;
    const int32_t value = driver_below(driver, 6);
    const int32_t count = driver_prompt(driver, tokens);
    driver_domain(value, &domain);
    DRIVER_CHECK(driver, pkv_prefix_lookup(driver->pool, &domain, tokens, count, &hit, NULL) ==
                             PKV_STATUS_OK);
    DRIVER_CHECK(driver, hit == model_lookup(&driver->model, value, tokens, count));
}

static inline void driver_invalidate(struct pool_driver *driver) {
    const bool is_open = driver->model.is_open;
    DRIVER_CHECK(driver, pkv_pool_invalidate(driver->pool, NULL) ==
                             (is_open ? PKV_STATUS_BAD_STATE : PKV_STATUS_OK));
    if (!is_open)
        model_invalidate(&driver->model);
}

static inline bool driver_holds_block(const struct pool_model *model, const struct model_seq *seq) {
    for (int32_t g = 0; g < model->num_groups; g++) {
        for (int32_t i = 0; i < seq->parts[g].num_blocks; i++) {
            if (seq->parts[g].table[i] >= 0)
                return true;
        }
    }
    return false;
}

/* Handles of what is gone, and the choice of a victim. */
static inline void driver_misuse(struct pool_driver *driver) {
    struct pkv_block_copy copies[MODEL_MAX_GROUPS];
    struct pkv_seq child, victim;
    const int32_t token = 1, policy = driver_below(driver, 2);
    int32_t best = -1;
    const struct model_seq *seqs = driver->model.seqs;
    for (int32_t i = 0; i < driver->model.max_seqs; i++) {
        if (!seqs[i].is_live || !driver_holds_block(&driver->model, &seqs[i]))
            continue;
        if (best < 0 ||
            (policy == PKV_PREEMPT_LOWEST_PRIORITY && seqs[i].priority < seqs[best].priority) ||
            ((policy == PKV_PREEMPT_LATEST_ARRIVAL || seqs[i].priority == seqs[best].priority) &&
             seqs[i].arrival > seqs[best].arrival))
            best = i;
    }
    DRIVER_CHECK(driver, pkv_preempt_choose(driver->pool, policy, &victim, NULL) ==
                             (best < 0 ? PKV_STATUS_CAPACITY : PKV_STATUS_OK));
    DRIVER_CHECK(driver, best < 0 || victim.index == (uint32_t)best);
    if (driver->model.is_open)
        return;
    DRIVER_CHECK(driver,
                 pkv_seq_free(driver->pool, driver->stale, NULL) == PKV_STATUS_STALE_HANDLE);
    DRIVER_CHECK(driver, pkv_seq_fork(driver->pool, driver->stale, &child, NULL) ==
                             PKV_STATUS_STALE_HANDLE);
    DRIVER_CHECK(driver, pkv_seq_append(driver->pool, driver->stale, &token, 1, copies, NULL) ==
                             PKV_STATUS_STALE_HANDLE);
}

static inline void driver_compare_seq(const struct pool_driver *driver, int32_t s) {
    const struct model_seq *seq = &driver->model.seqs[s];
    struct pkv_seq_info info = {0};
    DRIVER_CHECK(driver,
                 pkv_seq_info_get(driver->pool, driver->seqs[s], &info, NULL) == PKV_STATUS_OK);
    DRIVER_CHECK(driver, info.num_tokens == seq->num_tokens);
    DRIVER_CHECK(driver, info.num_computed_tokens == seq->num_computed);
    DRIVER_CHECK(driver, info.arrival == seq->arrival);
    for (int32_t g = 0; g < driver->model.num_groups; g++) {
        struct pkv_tensor table;
        DRIVER_CHECK(driver, pkv_seq_block_table(driver->pool, driver->seqs[s], g, &table, NULL) ==
                                 PKV_STATUS_OK);
        DRIVER_CHECK(driver, table.shape[0] == seq->parts[g].num_blocks);
        for (int32_t i = 0; i < seq->parts[g].num_blocks; i++)
            DRIVER_CHECK(driver, driver_entry(&table, i) == seq->parts[g].table[i]);
    }
}

static inline void driver_compare(struct pool_driver *driver) {
    struct pool_model *model = &driver->model;
    struct pkv_pool_metrics metrics = {0};
    struct pkv_audit audit = {0};
    if (pkv_pool_audit(driver->pool, &audit, NULL) != PKV_STATUS_OK) {
        fprintf(stderr, "audit, rule %d, block %d: %s\n", (int)audit.rule, (int)audit.block_id,
                audit.text);
        DRIVER_CHECK(driver, audit.rule == PKV_AUDIT_PASSED);
    }
    for (int32_t s = 0; s < model->max_seqs; s++) {
        if (model->seqs[s].is_live)
            driver_compare_seq(driver, s);
    }
    DRIVER_CHECK(driver, pkv_pool_metrics_get(driver->pool, &metrics, NULL) == PKV_STATUS_OK);
    DRIVER_CHECK(driver, metrics.num_free_blocks == model_num_free(model));
    DRIVER_CHECK(driver, metrics.num_cached_blocks == model_num_cached(model));
    DRIVER_CHECK(driver, metrics.num_seqs == model->max_seqs - model->num_free_seqs);
    DRIVER_CHECK(driver, metrics.num_hit_tokens == model->hit_tokens);
    DRIVER_CHECK(driver, metrics.num_miss_tokens == model->miss_tokens);
    DRIVER_CHECK(driver, metrics.num_copied_blocks == model->num_copied);
    if (model->is_open) {
        DRIVER_CHECK(driver, driver->num_events == 0);
        return;
    }
    DRIVER_CHECK(driver, metrics.num_evicted_blocks == model->num_evicted);
    DRIVER_CHECK(driver, metrics.num_stored_blocks == model->num_stored);
    DRIVER_CHECK(driver, metrics.num_removed_blocks == model->num_removed);
    DRIVER_CHECK(driver, driver->num_events == model->num_events);
    for (int32_t i = 0; i < driver->num_events; i++) {
        const struct pkv_pool_event *event = &driver->events[i];
        const struct model_event *expected = &model->events[i];
        DRIVER_CHECK(driver, event->type == expected->type);
        DRIVER_CHECK(driver, event->block_id == expected->block_id);
        DRIVER_CHECK(driver, event->type == PKV_POOL_EVENT_CLEARED ||
                                 (event->group == expected->group &&
                                  event->num_tokens == expected->num_tokens));
    }
    driver->num_events = model->num_events = 0;
}

/* What is done how often, in 64ths. */
static inline void driver_operate(struct pool_driver *driver) {
    const int32_t operation = driver_below(driver, 64);
    const int32_t seq = driver_seq(driver);
    if (operation < 6)
        driver_create(driver);
    else if (operation < 14)
        driver_step(driver);
    else if (operation < 18)
        driver_mark_batch(driver);
    else if (operation < 19)
        driver_allocate(driver);
    else if (operation < 21)
        driver_release(driver);
    else if (operation < 22)
        driver_pin(driver);
    else if (operation < 24)
        driver_lookup(driver);
    else if (operation < 25)
        driver_misuse(driver);
    else if (operation < 26 && driver_below(driver, 8) == 0)
        driver_invalidate(driver);
    else if (seq < 0)
        driver_create(driver);
    else if (operation < 30)
        driver_free(driver, seq);
    else if (operation < 36)
        driver_match(driver, seq);
    else if (operation < 48)
        driver_append(driver, seq);
    else if (operation < 51)
        driver_fork(driver, seq);
    else if (operation < 55)
        driver_truncate(driver, seq);
    else
        driver_mark(driver, seq);
}

/* Runs until the bytes are used up; adds to totals, nullable. */
static inline void pool_driver_run(const uint8_t *data, size_t size,
                                   struct pool_driver_totals *totals) {
    struct pool_driver *driver = calloc(1, sizeof(*driver));
    struct pkv_pool_metrics metrics = {0};
    if (driver == NULL)
        abort();
    driver->data = data;
    driver->size = size;
    driver_open(driver);
    for (; driver->at < driver->size; driver->step++) {
        driver_operate(driver);
        driver_compare(driver);
    }
    DRIVER_CHECK(driver, pkv_pool_metrics_get(driver->pool, &metrics, NULL) == PKV_STATUS_OK);
    if (totals) {
        totals->num_steps += driver->step;
        totals->num_hit_tokens += metrics.num_hit_tokens;
        totals->num_evicted += metrics.num_evicted_blocks;
        totals->num_copied += metrics.num_copied_blocks;
        totals->num_rollbacks += metrics.num_rollbacks;
        totals->num_out_of_blocks += metrics.num_out_of_blocks;
        totals->num_removed += metrics.num_removed_blocks;
    }
    pkv_batch_destroy(driver->batch);
    pkv_pool_destroy(driver->pool);
    free(driver);
}

#endif
