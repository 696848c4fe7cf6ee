/* SPDX-License-Identifier: MIT
 *
 * Match, append and fork: reserve, apply, undo.
 */
#include "pool/change.h"

#include <string.h>

#include "pool/blocks.h"
#include "pool/domains.h"
#include "pool/index.h"
#include "pool/prefix.h"

static enum pkv_status check_tokens(const struct pkv_pool *pool,
                                    const struct pkv_seq_record *record, const int32_t *tokens,
                                    int64_t num_tokens, struct pkv_blame blame) {
    if (num_tokens < 0)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "num_tokens", num_tokens, 0,
                          "must be at least");
    if (tokens == NULL && num_tokens > 0 && pool->index_mode != PKV_INDEX_OFF &&
        !record->is_not_indexed)
        return pkv_refuse_missing(blame, "token_ids");
    if (num_tokens > pool->max_tokens_per_seq - record->num_tokens)
        return pkv_refuse(blame, PKV_STATUS_CAPACITY, "num_tokens", num_tokens,
                          pool->max_tokens_per_seq - record->num_tokens,
                          "must not be more than are left of max_tokens_per_seq");
    return PKV_STATUS_OK;
}

/* A sequence without tokens forgets what it was before. */
static void start_afresh(struct pkv_pool *pool, uint32_t seq) {
    pool->seqs[seq].epoch = pool->epoch;
    for (int32_t g = 0; g < pool->num_groups; g++)
        pkv_seq_start_chain(pool, seq, g);
}

static void count_match(struct pkv_pool *pool, int64_t num_tokens,
                        const struct pkv_prefix_hit *hit) {
    pool->counts.num_matches++;
    pool->counts.num_hit_tokens += hit->num_tokens;
    pool->counts.num_miss_tokens += num_tokens - hit->num_tokens;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        const int64_t asked = num_tokens / pool->groups[g].block_size;
        const int64_t found = hit->groups[g].num_blocks - hit->groups[g].first_block;
        pool->counts.num_hit_blocks += found;
        if (asked > hit->groups[g].num_blocks)
            pool->counts.num_miss_blocks += asked - hit->groups[g].num_blocks;
    }
}

/* Takes the blocks that a walk found into a sequence's table. */
static void take_found(struct pkv_pool *pool, uint32_t seq, int32_t g,
                       const struct pkv_prefix_hit *hit) {
    const struct pkv_group *group = &pool->groups[g];
    struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
    uint32_t *table = pkv_seq_table(group, seq);
    const uint32_t first = hit->groups[g].first_block, end = hit->groups[g].num_blocks;
    for (uint32_t i = first; i < end; i++) {
        const struct pkv_block_record *block = &pool->blocks[group->found[i]];
        if (block->num_references > 0)
            continue;
        __builtin_prefetch(&pool->blocks[block->previous == PKV_NIL ? 0 : block->previous]);
        __builtin_prefetch(&pool->blocks[block->next == PKV_NIL ? 0 : block->next]);
    }
    for (uint32_t i = 0; i < end; i++) {
        table[i] = i < first ? PKV_NIL : group->found[i];
        if (i >= first)
            pkv_block_ref(pool, table[i]);
    }
    const uint32_t num_full = (uint32_t)(hit->num_tokens / group->block_size);
    if (end > num_full)
        pool->blocks[table[num_full]].num_uncomputed++;
    part->num_blocks = end;
    part->first_block = first;
    part->num_chained = num_full;
    part->version++;
    if (num_full == 0)
        return;
    /* In a window of one token it is not among those taken, and need not have been found. */
    const uint32_t last = group->found[num_full - 1];
    part->is_broken = last == PKV_NIL;
    if (last != PKV_NIL) {
        part->chain_key = pool->blocks[last].key;
        part->chain_serial = pool->blocks[last].serial;
    }
}

enum pkv_status pkv_change_match(struct pkv_pool *pool, struct pkv_seq seq, const int32_t *tokens,
                                 int64_t num_tokens, int64_t *num_hit_tokens,
                                 struct pkv_change *change, struct pkv_blame blame) {
    struct pkv_seq_record *record;
    struct pkv_prefix_hit hit;
    enum pkv_status status = pkv_seq_find(pool, seq, "seq", &record, blame);
    if (status == PKV_STATUS_OK)
        status = check_tokens(pool, record, tokens, num_tokens, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if (record->num_tokens > 0)
        return pkv_refuse(blame, PKV_STATUS_BAD_STATE, "seq", record->num_tokens, 0,
                          "must not have tokens yet");
    start_afresh(pool, seq.index);
    hit = (struct pkv_prefix_hit){0};
    if (tokens && !record->is_not_indexed)
        pkv_prefix_walk(pool, record->domain, tokens, (int32_t)num_tokens, &hit);
    count_match(pool, num_tokens, &hit);
    for (int32_t g = 0; g < pool->num_groups; g++)
        take_found(pool, seq.index, g, &hit);
    record->num_tokens = record->num_computed = record->num_committed = hit.num_tokens;
    *num_hit_tokens = hit.num_tokens;
    change->type = PKV_CHANGE_MATCH;
    change->seq = seq.index;
    change->num_tokens = hit.num_tokens;
    const struct pkv_seq_group *part = pkv_seq_part(pool, seq.index, 0);
    const bool has_partial = part->num_blocks > part->num_chained;
    change->partial =
        has_partial ? pkv_seq_table(&pool->groups[0], seq.index)[part->num_chained] : PKV_NIL;
    return PKV_STATUS_OK;
}

static void count_use(struct pkv_block_record *block) {
    block->num_uses += block->num_uses < PKV_QUEUE_MAX_USES;
}

static void apply_match(struct pkv_pool *pool, const struct pkv_change *change) {
    /* A match that found nothing may be followed by another one. */
    if (pool->eviction != PKV_EVICTION_LFU || change->num_tokens == 0)
        return;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        const struct pkv_seq_group *part = pkv_seq_part(pool, change->seq, g);
        const uint32_t *table = pkv_seq_table(&pool->groups[g], change->seq);
        for (uint32_t i = part->first_block; i < part->num_chained; i++)
            count_use(&pool->blocks[table[i]]);
    }
    if (change->partial != PKV_NIL)
        count_use(&pool->blocks[change->partial]);
}

static void undo_match(struct pkv_pool *pool, uint32_t seq) {
    struct pkv_seq_record *record = &pool->seqs[seq];
    for (int32_t g = 0; g < pool->num_groups; g++) {
        struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
        const uint32_t *table = pkv_seq_table(&pool->groups[g], seq);
        if (part->num_blocks > part->num_chained)
            pool->blocks[table[part->num_chained]].num_uncomputed--;
        for (uint32_t i = part->first_block; i < part->num_blocks; i++)
            pkv_block_undo_ref(pool, table[i]);
        part->num_blocks = part->first_block = 0;
        pkv_seq_start_chain(pool, seq, g);
    }
    record->num_tokens = record->num_computed = record->num_committed = 0;
}

/* What an append needs of one group: fills the group's part of the change, and returns how many
 * blocks; -1: a block would have to be copied that holds tokens of this very step. */
static int64_t plan_append(const struct pkv_pool *pool, uint32_t seq, int32_t g,
                           struct pkv_change *change) {
    const struct pkv_group *group = &pool->groups[g];
    const struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
    const int32_t offset = (int32_t)((uint32_t)change->old_tokens % (uint32_t)group->block_size);
    const int64_t num_blocks =
        pkv_blocks_of(change->old_tokens + change->num_tokens, group->block_size);
    change->groups[g].old_blocks = part->num_blocks;
    change->groups[g].copy_source = PKV_NIL;
    change->groups[g].rewrites = false;
    if (offset > 0) {
        const uint32_t tail = pkv_seq_table(group, seq)[part->num_blocks - 1];
        const struct pkv_block_record *block = &pool->blocks[tail];
        if (block->num_references > 1)
            change->groups[g].copy_source = tail;
        else
            change->groups[g].rewrites =
                block->flags & PKV_BLOCK_CHAINED && offset < block->num_tokens;
    }
    if (change->groups[g].copy_source == PKV_NIL)
        return num_blocks - part->num_blocks;
    if (change->old_tokens > change->old_committed)
        return -1;
    return num_blocks - part->num_blocks + 1;
}

static void reserve_append(struct pkv_pool *pool, uint32_t seq, int32_t g,
                           const struct pkv_change *change) {
    const struct pkv_group *group = &pool->groups[g];
    struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
    uint32_t *table = pkv_seq_table(group, seq);
    const uint32_t num_blocks =
        (uint32_t)pkv_blocks_of(change->old_tokens + change->num_tokens, group->block_size);
    uint32_t first = part->num_blocks;
    if (change->groups[g].copy_source != PKV_NIL) {
        struct pkv_block_record *source = &pool->blocks[change->groups[g].copy_source];
        source->num_references--;
        source->num_uncomputed--;
        pool->counts.num_copied_blocks++;
        part->version++;
        first--;
    } else if (change->groups[g].rewrites &&
               pool->blocks[table[first - 1]].flags & PKV_BLOCK_INDEXED) {
        pool->blocks[table[first - 1]].flags |= PKV_BLOCK_PENDING;
    }
    for (uint32_t i = first; i < num_blocks; i++) {
        table[i] = pkv_block_take(pool);
        pool->blocks[table[i]].num_uncomputed = 1;
        if (pool->tokens)
            __builtin_prefetch(pkv_block_tokens(pool, table[i]), 1);
    }
    part->num_blocks = num_blocks;
}

enum pkv_status pkv_change_append(struct pkv_pool *pool, struct pkv_seq seq, const int32_t *tokens,
                                  int64_t num_tokens, struct pkv_change *change,
                                  struct pkv_blame blame) {
    struct pkv_seq_record *record;
    enum pkv_status status = pkv_seq_find(pool, seq, "seq", &record, blame);
    if (status == PKV_STATUS_OK)
        status = check_tokens(pool, record, tokens, num_tokens, blame);
    if (status != PKV_STATUS_OK)
        return status;
    change->type = PKV_CHANGE_APPEND;
    change->seq = seq.index;
    change->old_tokens = record->num_tokens;
    change->old_committed = record->num_committed;
    change->num_tokens = (int32_t)num_tokens;
    change->tokens = tokens;
    int64_t wanted = 0;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        /* Nothing is written by no tokens. */
        const int64_t needed = num_tokens > 0 ? plan_append(pool, seq.index, g, change) : 0;
        if (needed < 0)
            return pkv_refuse(blame, PKV_STATUS_BAD_STATE, "seq", PKV_ERROR_NONE, PKV_ERROR_NONE,
                              "shares its last block, which holds tokens reserved in this step");
        wanted += needed;
    }
    if (wanted > pkv_blocks_available(pool))
        return pkv_blocks_refuse(pool, wanted, blame);
    if (record->num_tokens == 0)
        start_afresh(pool, seq.index);
    for (int32_t g = 0; g < pool->num_groups && num_tokens > 0; g++)
        reserve_append(pool, seq.index, g, change);
    record->num_tokens += (int32_t)num_tokens;
    return PKV_STATUS_OK;
}

/* Stores the token ids, group by group: every group's blocks have their own. */
static void store_tokens(struct pkv_pool *pool, const struct pkv_change *change, int32_t g) {
    const uint32_t block_size = (uint32_t)pool->groups[g].block_size;
    const uint32_t *table = pkv_seq_table(&pool->groups[g], change->seq);
    uint32_t position = (uint32_t)change->old_tokens;
    uint32_t block = position / block_size, offset = position % block_size;
    for (uint32_t done = 0; done < (uint32_t)change->num_tokens;) {
        const uint32_t rest = (uint32_t)change->num_tokens - done;
        const uint32_t count = rest < block_size - offset ? rest : block_size - offset;
        memcpy(pkv_block_tokens(pool, table[block]) + offset, change->tokens + done,
               count * sizeof(*change->tokens));
        done += count;
        block++;
        offset = 0;
    }
}

static void apply_append(struct pkv_pool *pool, const struct pkv_change *change) {
    struct pkv_seq_record *record = &pool->seqs[change->seq];
    /* An append of no tokens may be followed by a match in the same step, which is committed as
     * soon as it is made. */
    if (change->num_tokens == 0)
        return;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        const uint32_t *table = pkv_seq_table(&pool->groups[g], change->seq);
        const uint32_t source = change->groups[g].copy_source;
        const uint32_t old_blocks = change->groups[g].old_blocks;
        const uint32_t num_blocks = (uint32_t)pkv_blocks_of(change->old_tokens + change->num_tokens,
                                                            pool->groups[g].block_size);
        if (change->groups[g].rewrites) {
            struct pkv_block_record *tail = &pool->blocks[table[old_blocks - 1]];
            if (tail->flags & PKV_BLOCK_INDEXED)
                pkv_index_remove(pool, table[old_blocks - 1], PKV_POOL_EVENT_REMOVED);
            tail->flags &= (uint8_t)~PKV_BLOCK_CHAINED;
        }
        for (uint32_t i = source == PKV_NIL ? old_blocks : old_blocks - 1; i < num_blocks; i++)
            pkv_block_clean(pool, table[i]);
        if (!pool->tokens || record->is_not_indexed)
            continue;
        if (source != PKV_NIL)
            memcpy(pkv_block_tokens(pool, table[old_blocks - 1]), pkv_block_tokens(pool, source),
                   (size_t)(change->old_tokens % pool->groups[g].block_size) * sizeof(int32_t));
        store_tokens(pool, change, g);
    }
    record->num_committed = change->old_tokens + change->num_tokens;
}

static void undo_append(struct pkv_pool *pool, const struct pkv_change *change) {
    struct pkv_seq_record *record = &pool->seqs[change->seq];
    for (int32_t g = 0; g < pool->num_groups && change->num_tokens > 0; g++) {
        struct pkv_seq_group *part = pkv_seq_part(pool, change->seq, g);
        uint32_t *table = pkv_seq_table(&pool->groups[g], change->seq);
        const uint32_t source = change->groups[g].copy_source;
        const uint32_t old_blocks = change->groups[g].old_blocks;
        for (uint32_t i = source == PKV_NIL ? old_blocks : old_blocks - 1; i < part->num_blocks;
             i++)
            pkv_block_untake(pool, table[i]);
        if (source != PKV_NIL) {
            table[old_blocks - 1] = source;
            pool->blocks[source].num_references++;
            pool->blocks[source].num_uncomputed++;
        } else if (change->groups[g].rewrites) {
            pool->blocks[table[old_blocks - 1]].flags &= (uint8_t)~PKV_BLOCK_PENDING;
        }
        part->num_blocks = old_blocks;
    }
    record->num_tokens = change->old_tokens;
}

enum pkv_status pkv_change_fork(struct pkv_pool *pool, struct pkv_seq parent, struct pkv_seq *child,
                                struct pkv_change *change, struct pkv_blame blame) {
    struct pkv_seq_record *record;
    const enum pkv_status status = pkv_seq_find(pool, parent, "parent", &record, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if (pool->free_seq == PKV_NIL)
        return pkv_refuse(blame, PKV_STATUS_CAPACITY, "parent", pool->max_seqs, pool->max_seqs,
                          "must not be forked while max_seqs sequences are alive");
    const uint32_t seq = pkv_seq_take(pool);
    struct pkv_seq_record *made = &pool->seqs[seq];
    const uint32_t generation = made->generation;
    const int64_t arrival = made->arrival;
    *made = *record;
    made->generation = generation;
    made->arrival = arrival;
    made->batch = 0;
    pool->domains.entries[made->domain].num_seqs++;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        const struct pkv_group *group = &pool->groups[g];
        struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
        const uint32_t version = part->version;
        *part = *pkv_seq_part(pool, parent.index, g);
        part->version = version + 1;
        uint32_t *table = pkv_seq_table(group, seq);
        memcpy(table, pkv_seq_table(group, parent.index), part->num_blocks * sizeof(*table));
        const uint32_t num_computed = (uint32_t)(made->num_computed / group->block_size);
        for (uint32_t i = part->first_block; i < part->num_blocks; i++) {
            pool->blocks[table[i]].num_references++;
            pool->blocks[table[i]].num_uncomputed += i >= num_computed;
        }
    }
    *child = (struct pkv_seq){seq, generation};
    change->type = PKV_CHANGE_FORK;
    change->seq = seq;
    change->old_tokens = made->num_tokens;
    return PKV_STATUS_OK;
}

static void undo_fork(struct pkv_pool *pool, uint32_t seq) {
    const struct pkv_seq_record *record = &pool->seqs[seq];
    for (int32_t g = 0; g < pool->num_groups; g++) {
        const struct pkv_group *group = &pool->groups[g];
        const struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
        const uint32_t *table = pkv_seq_table(group, seq);
        const uint32_t num_computed = (uint32_t)(record->num_computed / group->block_size);
        for (uint32_t i = part->first_block; i < part->num_blocks; i++) {
            pool->blocks[table[i]].num_references--;
            pool->blocks[table[i]].num_uncomputed -= i >= num_computed;
        }
    }
    pool->domains.entries[record->domain].num_seqs--;
    pkv_seq_drop(pool, seq);
}

void pkv_change_apply(struct pkv_pool *pool, const struct pkv_change *change) {
    if (change->type == PKV_CHANGE_MATCH)
        apply_match(pool, change);
    else if (change->type == PKV_CHANGE_APPEND)
        apply_append(pool, change);
    else if (pool->seqs[change->seq].num_committed < change->old_tokens)
        pool->seqs[change->seq].num_committed = change->old_tokens;
}

void pkv_change_undo(struct pkv_pool *pool, const struct pkv_change *change) {
    if (change->type == PKV_CHANGE_MATCH)
        undo_match(pool, change->seq);
    else if (change->type == PKV_CHANGE_APPEND)
        undo_append(pool, change);
    else
        undo_fork(pool, change->seq);
}
