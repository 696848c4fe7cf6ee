/* SPDX-License-Identifier: MIT
 *
 * Sequences: their handles, and the calls that give blocks back or mark tokens computed. Growing is
 * in change.c.
 */
#include "pool/batch.h"
#include "pool/blocks.h"
#include "pool/change.h"
#include "pool/domains.h"
#include "pool/prefix.h"

enum pkv_status pkv_seq_find(const struct pkv_pool *pool, struct pkv_seq seq, const char *argument,
                             struct pkv_seq_record **record, struct pkv_blame blame) {
    if (seq.index < (uint32_t)pool->max_seqs) {
        *record = &pool->seqs[seq.index];
        if ((*record)->is_live && (*record)->generation == seq.generation)
            return PKV_STATUS_OK;
    }
    return pkv_refuse(blame, PKV_STATUS_STALE_HANDLE, argument, seq.index, PKV_ERROR_NONE,
                      "must be the handle of a sequence of this pool that was not freed");
}

uint32_t pkv_seq_take(struct pkv_pool *pool) {
    const uint32_t seq = pool->free_seq;
    struct pkv_seq_record *record = &pool->seqs[seq];
    pool->free_seq = record->next_free;
    record->generation += record->generation == UINT32_MAX ? 2 : 1;
    record->is_live = true;
    record->arrival = pool->counts.arrivals++;
    pool->counts.num_seqs++;
    return seq;
}

void pkv_seq_drop(struct pkv_pool *pool, uint32_t seq) {
    struct pkv_seq_record *record = &pool->seqs[seq];
    record->is_live = false;
    record->next_free = pool->free_seq;
    pool->free_seq = seq;
    pool->counts.num_seqs--;
}

static enum pkv_status create(struct pkv_pool *pool, struct pkv_seq *seq,
                              const struct pkv_seq_options *options, struct pkv_blame blame) {
    struct pkv_seq_options chosen;
    uint32_t domain;
    enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, blame.function, "options", blame.error);
    if (status == PKV_STATUS_OK)
        status = pkv_pool_may_change(pool, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if (chosen.priority < 0 || chosen.priority >= pool->num_priorities)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "options->priority", chosen.priority,
                          pool->num_priorities, "must lie between 0 and the number of classes");
    if (chosen.not_indexed != 0 && chosen.not_indexed != 1)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "options->not_indexed",
                          chosen.not_indexed, PKV_ERROR_NONE, "must be 0 or 1");
    if (pool->free_seq == PKV_NIL)
        return pkv_refuse(blame, PKV_STATUS_CAPACITY, "seq", pool->max_seqs, pool->max_seqs,
                          "cannot be made while max_seqs sequences are alive");
    status = pkv_domains_take(pool, chosen.domain, &domain, blame);
    if (status != PKV_STATUS_OK)
        return status;
    const uint32_t index = pkv_seq_take(pool);
    struct pkv_seq_record *record = &pool->seqs[index];
    record->num_tokens = record->num_computed = record->num_committed = 0;
    record->domain = domain;
    record->epoch = pool->epoch;
    record->batch = 0;
    record->is_not_indexed = chosen.not_indexed;
    record->priority = (uint8_t)chosen.priority;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        pkv_seq_part(pool, index, g)->num_blocks = 0;
        pkv_seq_part(pool, index, g)->first_block = 0;
        pkv_seq_start_chain(pool, index, g);
    }
    *seq = (struct pkv_seq){index, record->generation};
    return PKV_STATUS_OK;
}

enum pkv_status pkv_seq_create(struct pkv_pool *pool, struct pkv_seq *seq,
                               const struct pkv_seq_options *options, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (pool == NULL || seq == NULL)
        return pkv_refuse_missing(blame, pool == NULL ? "pool" : "seq");
    pkv_pool_lock(pool);
    const enum pkv_status status = create(pool, seq, options, blame);
    pkv_pool_unlock(pool);
    return status;
}

/* Gives back the entries from num_kept on, the last first. */
static void give_back(struct pkv_pool *pool, uint32_t seq, int32_t g, uint32_t num_kept) {
    const struct pkv_seq_record *record = &pool->seqs[seq];
    const struct pkv_group *group = &pool->groups[g];
    struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
    const uint32_t *table = pkv_seq_table(group, seq);
    const uint32_t num_computed = (uint32_t)(record->num_computed / group->block_size);
    uint32_t after = PKV_NIL;
    while (part->num_blocks > num_kept) {
        const uint32_t i = --part->num_blocks;
        if (table[i] == PKV_NIL)
            continue;
        if (i > 0 && table[i - 1] != PKV_NIL)
            __builtin_prefetch(&pool->blocks[table[i - 1]], 1);
        pool->blocks[table[i]].num_uncomputed -= i >= num_computed;
        pkv_block_unref(pool, table[i], record->priority, &after);
    }
    part->version++;
}

/* The chain ends where the tokens do. */
static void shorten_chain(struct pkv_pool *pool, uint32_t seq, int32_t g, uint32_t num_full) {
    struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
    if (num_full == 0) {
        pkv_seq_start_chain(pool, seq, g);
        return;
    }
    if (part->num_chained <= num_full)
        return;
    const uint32_t last = pkv_seq_table(&pool->groups[g], seq)[num_full - 1];
    part->num_chained = num_full;
    part->is_broken = last == PKV_NIL;
    if (last != PKV_NIL) {
        part->chain_key = pool->blocks[last].key;
        part->chain_serial = pool->blocks[last].serial;
    }
}

static void shorten(struct pkv_pool *pool, uint32_t seq, int32_t num_tokens) {
    struct pkv_seq_record *record = &pool->seqs[seq];
    pkv_batch_note_truncation(pool, seq, num_tokens);
    if (num_tokens == 0)
        pkv_prefix_index_tail(pool, seq);
    for (int32_t g = 0; g < pool->num_groups; g++) {
        const int32_t block_size = pool->groups[g].block_size;
        const uint32_t num_full = (uint32_t)(num_tokens / block_size);
        struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
        give_back(pool, seq, g, (uint32_t)pkv_blocks_of(num_tokens, block_size));
        if (num_tokens == 0)
            part->first_block = 0;
        /* A block that was computed to its end, and of which tokens are dropped, is not any
         * more. */
        if (part->num_blocks > num_full &&
            record->num_computed >= (int32_t)(num_full + 1) * block_size)
            pool->blocks[pkv_seq_table(&pool->groups[g], seq)[num_full]].num_uncomputed++;
        shorten_chain(pool, seq, g, num_full);
    }
    record->num_tokens = num_tokens;
    if (record->num_computed > num_tokens)
        record->num_computed = num_tokens;
    if (record->num_committed > num_tokens)
        record->num_committed = num_tokens;
}

static enum pkv_status end(struct pkv_pool *pool, struct pkv_seq seq, struct pkv_blame blame) {
    struct pkv_seq_record *record;
    enum pkv_status status = pkv_pool_may_change(pool, blame);
    if (status == PKV_STATUS_OK)
        status = pkv_seq_find(pool, seq, "seq", &record, blame);
    if (status != PKV_STATUS_OK)
        return status;
    shorten(pool, seq.index, 0);
    pkv_domains_drop(pool, record->domain);
    pkv_seq_drop(pool, seq.index);
    return PKV_STATUS_OK;
}

enum pkv_status pkv_seq_free(struct pkv_pool *pool, struct pkv_seq seq, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (pool == NULL)
        return pkv_refuse_missing(blame, "pool");
    pkv_pool_lock(pool);
    const enum pkv_status status = end(pool, seq, blame);
    pkv_pool_unlock(pool);
    return status;
}

static enum pkv_status truncate_to(struct pkv_pool *pool, struct pkv_seq seq, int64_t num_tokens,
                                   struct pkv_blame blame) {
    struct pkv_seq_record *record;
    enum pkv_status status = pkv_pool_may_change(pool, blame);
    if (status == PKV_STATUS_OK)
        status = pkv_seq_find(pool, seq, "seq", &record, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if (num_tokens < 0 || num_tokens > record->num_tokens)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "num_tokens", num_tokens,
                          record->num_tokens, "must lie between 0 and the sequence's tokens");
    for (int32_t g = 0; g < pool->num_groups && num_tokens > 0; g++) {
        const uint32_t start = pkv_window_start(&pool->groups[g], (int32_t)num_tokens);
        if (start < pkv_seq_part(pool, seq.index, g)->first_block)
            return pkv_refuse(blame, PKV_STATUS_BAD_STATE, "num_tokens", num_tokens, PKV_ERROR_NONE,
                              "must leave a window whose blocks were not given back");
    }
    if (num_tokens < record->num_tokens)
        shorten(pool, seq.index, (int32_t)num_tokens);
    return PKV_STATUS_OK;
}

enum pkv_status pkv_seq_truncate(struct pkv_pool *pool, struct pkv_seq seq, int64_t num_tokens,
                                 struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (pool == NULL)
        return pkv_refuse_missing(blame, "pool");
    pkv_pool_lock(pool);
    const enum pkv_status status = truncate_to(pool, seq, num_tokens, blame);
    pkv_pool_unlock(pool);
    return status;
}

/* Gives back what no later token sees. A block that is yet to be indexed waits for that. */
static void slide_window(struct pkv_pool *pool, uint32_t seq, int32_t g) {
    const struct pkv_seq_record *record = &pool->seqs[seq];
    const struct pkv_group *group = &pool->groups[g];
    struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
    uint32_t *table = pkv_seq_table(group, seq);
    uint32_t end_block = pkv_window_start(group, record->num_computed);
    if (pkv_seq_is_indexed(pool, record) && !part->is_broken && end_block > part->num_chained)
        end_block = part->num_chained;
    if (end_block <= part->first_block)
        return;
    uint32_t after = PKV_NIL;
    for (uint32_t i = end_block; i-- > part->first_block;) {
        pkv_block_unref(pool, table[i], record->priority, &after);
        table[i] = PKV_NIL;
    }
    part->first_block = end_block;
    part->version++;
}

void pkv_seq_set_computed(struct pkv_pool *pool, uint32_t seq, int32_t num_computed) {
    struct pkv_seq_record *record = &pool->seqs[seq];
    for (int32_t g = 0; g < pool->num_groups; g++) {
        const uint32_t block_size = (uint32_t)pool->groups[g].block_size;
        const uint32_t *table = pkv_seq_table(&pool->groups[g], seq);
        const uint32_t end_block = (uint32_t)num_computed / block_size;
        for (uint32_t i = (uint32_t)record->num_computed / block_size; i < end_block; i++)
            pool->blocks[table[i]].num_uncomputed--;
    }
    record->num_computed = num_computed;
    pkv_prefix_advance(pool, seq);
    for (int32_t g = 0; g < pool->num_groups; g++) {
        if (pool->groups[g].window > 0)
            slide_window(pool, seq, g);
    }
}

static enum pkv_status mark_computed(struct pkv_pool *pool, struct pkv_seq seq,
                                     int64_t num_computed, struct pkv_blame blame) {
    struct pkv_seq_record *record;
    enum pkv_status status = pkv_pool_may_change(pool, blame);
    if (status == PKV_STATUS_OK)
        status = pkv_seq_find(pool, seq, "seq", &record, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if (num_computed < record->num_computed || num_computed > record->num_tokens)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "num_computed_tokens", num_computed,
                          num_computed < record->num_computed ? record->num_computed
                                                              : record->num_tokens,
                          "must not fall, nor exceed the sequence's tokens");
    pkv_seq_set_computed(pool, seq.index, (int32_t)num_computed);
    return PKV_STATUS_OK;
}

enum pkv_status pkv_seq_mark_computed(struct pkv_pool *pool, struct pkv_seq seq,
                                      int64_t num_computed_tokens, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (pool == NULL)
        return pkv_refuse_missing(blame, "pool");
    pkv_pool_lock(pool);
    const enum pkv_status status = mark_computed(pool, seq, num_computed_tokens, blame);
    pkv_pool_unlock(pool);
    return status;
}

enum pkv_status pkv_seq_match(struct pkv_pool *pool, struct pkv_seq seq, const int32_t *token_ids,
                              int64_t num_tokens, int64_t *num_hit_tokens,
                              struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_change change;
    if (pool == NULL || num_hit_tokens == NULL)
        return pkv_refuse_missing(blame, pool == NULL ? "pool" : "num_hit_tokens");
    pkv_pool_lock(pool);
    enum pkv_status status = pkv_pool_may_change(pool, blame);
    if (status == PKV_STATUS_OK)
        status = pkv_change_match(pool, seq, token_ids, num_tokens, num_hit_tokens, &change, blame);
    if (status == PKV_STATUS_OK)
        pkv_change_apply(pool, &change);
    pkv_pool_unlock(pool);
    return status;
}

enum pkv_status pkv_seq_append(struct pkv_pool *pool, struct pkv_seq seq, const int32_t *token_ids,
                               int64_t num_tokens, struct pkv_block_copy *copies,
                               struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_change change;
    if (pool == NULL || copies == NULL)
        return pkv_refuse_missing(blame, pool == NULL ? "pool" : "copies");
    pkv_pool_lock(pool);
    enum pkv_status status = pkv_pool_may_change(pool, blame);
    if (status == PKV_STATUS_OK)
        status = pkv_change_append(pool, seq, token_ids, num_tokens, &change, blame);
    if (status == PKV_STATUS_OK) {
        pkv_change_apply(pool, &change);
        for (int32_t g = 0; g < pool->num_groups; g++) {
            copies[g] = (struct pkv_block_copy){-1, -1};
            if (num_tokens > 0 && change.groups[g].copy_source != PKV_NIL)
                copies[g] = (struct pkv_block_copy){
                    (int32_t)change.groups[g].copy_source,
                    (int32_t)pkv_seq_table(&pool->groups[g],
                                           seq.index)[change.groups[g].old_blocks - 1]};
        }
    }
    pkv_pool_unlock(pool);
    return status;
}

enum pkv_status pkv_seq_fork(struct pkv_pool *pool, struct pkv_seq parent, struct pkv_seq *child,
                             struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_change change;
    if (pool == NULL || child == NULL)
        return pkv_refuse_missing(blame, pool == NULL ? "pool" : "child");
    pkv_pool_lock(pool);
    enum pkv_status status = pkv_pool_may_change(pool, blame);
    if (status == PKV_STATUS_OK)
        status = pkv_change_fork(pool, parent, child, &change, blame);
    if (status == PKV_STATUS_OK)
        pkv_change_apply(pool, &change);
    pkv_pool_unlock(pool);
    return status;
}
