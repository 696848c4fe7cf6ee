/* SPDX-License-Identifier: MIT
 *
 * The auditor. It counts everything anew, from tables, handles, queue and index, and compares.
 */
#include <pagedkv/audit.h>

#include <string.h>

#include "pool/index.h"

/* Set in a mark: the block was met in the queue. */
#define SEEN (UINT32_C(1) << 31)

struct audit {
    struct pkv_pool *pool;
    struct pkv_audit result;
};

static bool fail(struct audit *audit, int32_t rule, int64_t block, int64_t seq, const char *text) {
    audit->result.rule = rule;
    audit->result.block_id = (int32_t)block;
    audit->result.seq_index = seq;
    audit->result.text = text;
    return false;
}

static void clear_marks(const struct pkv_pool *pool) {
    memset(pool->audit_marks, 0, pool->num_blocks * sizeof(*pool->audit_marks));
}

static bool check_table(struct audit *audit, uint32_t seq, int32_t g) {
    const struct pkv_pool *pool = audit->pool;
    const struct pkv_group *group = &pool->groups[g];
    const struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
    const struct pkv_seq_record *record = &pool->seqs[seq];
    const uint32_t *table = pkv_seq_table(group, seq);
    if (record->num_computed < 0 || record->num_computed > record->num_tokens ||
        record->num_tokens > pool->max_tokens_per_seq || record->num_committed > record->num_tokens)
        return fail(audit, PKV_AUDIT_TABLES, -1, seq, "0 <= computed <= reserved tokens");
    if (part->num_blocks != (uint32_t)pkv_blocks_of(record->num_tokens, group->block_size))
        return fail(audit, PKV_AUDIT_TABLES, -1, seq,
                    "a table has one entry for each started block");
    if (part->first_block > pkv_window_start(group, record->num_computed))
        return fail(audit, PKV_AUDIT_TABLES, -1, seq, "blocks in the window are kept");
    for (uint32_t i = 0; i < part->num_blocks; i++) {
        if (i < part->first_block ? table[i] != PKV_NIL : table[i] >= pool->num_blocks)
            return fail(audit, PKV_AUDIT_TABLES, table[i] == PKV_NIL ? -1 : (int64_t)table[i], seq,
                        "an entry is a block, or -1 before the window");
    }
    return true;
}

static bool check_tables(struct audit *audit) {
    const struct pkv_pool *pool = audit->pool;
    for (uint32_t seq = 0; seq < (uint32_t)pool->max_seqs; seq++) {
        for (int32_t g = 0; pool->seqs[seq].is_live && g < pool->num_groups; g++) {
            if (!check_table(audit, seq, g))
                return false;
        }
    }
    return true;
}

/* Calls visit for every entry of every table that is a block. */
static bool visit_entries(struct audit *audit,
                          bool (*visit)(struct audit *audit, uint32_t block, uint32_t seq,
                                        int32_t group, uint32_t i)) {
    const struct pkv_pool *pool = audit->pool;
    for (uint32_t seq = 0; seq < (uint32_t)pool->max_seqs; seq++) {
        for (int32_t g = 0; pool->seqs[seq].is_live && g < pool->num_groups; g++) {
            const struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
            const uint32_t *table = pkv_seq_table(&pool->groups[g], seq);
            for (uint32_t i = part->first_block; i < part->num_blocks; i++) {
                if (!visit(audit, table[i], seq, g, i))
                    return false;
            }
        }
    }
    return true;
}

static bool count_reference(struct audit *audit, uint32_t block, uint32_t seq, int32_t group,
                            uint32_t i) {
    (void)seq, (void)group, (void)i;
    audit->pool->audit_marks[block]++;
    return true;
}

static bool count_uncomputed(struct audit *audit, uint32_t block, uint32_t seq, int32_t group,
                             uint32_t i) {
    const struct pkv_pool *pool = audit->pool;
    const int32_t block_size = pool->groups[group].block_size;
    pool->audit_marks[block] += i >= (uint32_t)(pool->seqs[seq].num_computed / block_size);
    return true;
}

/* A last block with room, that a sequence may write without a copy. */
static bool count_tail(struct audit *audit, uint32_t block, uint32_t seq, int32_t group,
                       uint32_t i) {
    const struct pkv_pool *pool = audit->pool;
    const bool is_open = i + 1 == pkv_seq_part(pool, seq, group)->num_blocks &&
                         pool->seqs[seq].num_tokens % pool->groups[group].block_size != 0 &&
                         pool->blocks[block].num_references == 1;
    if (is_open && pool->audit_marks[block]++ > 0)
        return fail(audit, PKV_AUDIT_OPEN_TAIL, block, seq, "no block is written by two sequences");
    return true;
}

static bool check_references(struct audit *audit) {
    const struct pkv_pool *pool = audit->pool;
    clear_marks(pool);
    (void)visit_entries(audit, count_reference);
    for (uint32_t i = 0; i < pool->num_blocks; i++) {
        const struct pkv_block_record *block = &pool->blocks[i];
        if (block->num_references != pool->audit_marks[i] + block->num_handles)
            return fail(audit, PKV_AUDIT_REFERENCES, i, -1,
                        "references = entries of tables + handles");
    }
    clear_marks(pool);
    (void)visit_entries(audit, count_uncomputed);
    for (uint32_t i = 0; i < pool->num_blocks; i++) {
        if (pool->blocks[i].num_uncomputed != pool->audit_marks[i])
            return fail(audit, PKV_AUDIT_UNCOMPUTED, i, -1,
                        "holders that have yet to compute a block are counted");
    }
    clear_marks(pool);
    return visit_entries(audit, count_tail);
}

static bool check_counts(struct audit *audit) {
    const struct pkv_pool *pool = audit->pool;
    int64_t num_free = 0, num_cached = 0, num_seqs = 0;
    for (uint32_t i = 0; i < pool->num_blocks; i++) {
        if (pool->blocks[i].num_references > 0)
            continue;
        if (pkv_block_is_current(pool, &pool->blocks[i]))
            num_cached++;
        else
            num_free++;
    }
    for (int32_t i = 0; i < pool->max_seqs; i++)
        num_seqs += pool->seqs[i].is_live;
    if (num_free != pool->counts.num_free || num_cached != pool->counts.num_cached ||
        num_seqs != pool->counts.num_seqs)
        return fail(audit, PKV_AUDIT_COUNTS, -1, -1, "free + cached + used = num_blocks");
    return true;
}

static bool check_queue(struct audit *audit) {
    const struct pkv_pool *pool = audit->pool;
    const struct pkv_queue *queue = &pool->queue;
    uint32_t previous = PKV_NIL, bucket = 0;
    clear_marks(pool);
    for (uint32_t i = queue->head; i != PKV_NIL; previous = i, i = pool->blocks[i].next) {
        if (i >= pool->num_blocks)
            return fail(audit, PKV_AUDIT_FREE_QUEUE, -1, -1, "links name blocks");
        const struct pkv_block_record *block = &pool->blocks[i];
        if (pool->audit_marks[i] & SEEN || block->previous != previous ||
            !(block->flags & PKV_BLOCK_LINKED))
            return fail(audit, PKV_AUDIT_FREE_QUEUE, i, -1, "the queue holds each block once");
        pool->audit_marks[i] |= SEEN;
        if (block->num_references > 0 && !queue->keeps_used)
            return fail(audit, PKV_AUDIT_FREE_QUEUE, i, -1, "no block in use is in the queue");
        const uint32_t own = pkv_queue_bucket(queue, block);
        const bool is_last =
            block->next == PKV_NIL || pkv_queue_bucket(queue, &pool->blocks[block->next]) != own;
        if (own < bucket || own >= queue->num_buckets)
            return fail(audit, PKV_AUDIT_FREE_QUEUE, i, -1, "plain free blocks come first");
        if (!(queue->levels[0][own / 64] >> (own % 64) & 1) || is_last != (queue->tails[own] == i))
            return fail(audit, PKV_AUDIT_FREE_QUEUE, i, -1, "a bucket knows its last block");
        bucket = own;
    }
    for (uint32_t i = 0; i < pool->num_blocks; i++) {
        const bool is_linked = pool->blocks[i].flags & PKV_BLOCK_LINKED;
        if (is_linked != !!(pool->audit_marks[i] & SEEN) ||
            (!is_linked && pool->blocks[i].num_references == 0))
            return fail(audit, PKV_AUDIT_FREE_QUEUE, i, -1,
                        "the queue holds each free and cached block");
    }
    return true;
}

static bool check_index(struct audit *audit) {
    const struct pkv_pool *pool = audit->pool;
    const struct pkv_index *index = &pool->index;
    uint32_t num_entries = 0, num_indexed = 0;
    for (uint32_t i = 0; i <= index->mask; i++) {
        const uint32_t block = index->slots[i].block;
        if (block == PKV_NIL)
            continue;
        num_entries++;
        if (block >= pool->num_blocks || !(pool->blocks[block].flags & PKV_BLOCK_INDEXED) ||
            pkv_index_find(pool, pool->blocks[block].key) != block)
            return fail(audit, PKV_AUDIT_INDEX, block < pool->num_blocks ? (int64_t)block : -1, -1,
                        "an entry's block is indexed, and found by its key");
    }
    for (uint32_t i = 0; i < pool->num_blocks; i++) {
        const struct pkv_block_record *block = &pool->blocks[i];
        num_indexed += !!(block->flags & PKV_BLOCK_INDEXED);
        if (pkv_block_is_current(pool, block) &&
            (!(block->flags & PKV_BLOCK_CHAINED) || block->num_tokens == 0 || block->num_uses == 0))
            return fail(audit, PKV_AUDIT_INDEX, i, -1, "an indexed block knows its contents");
    }
    if (num_entries != num_indexed || num_entries != index->num_entries)
        return fail(audit, PKV_AUDIT_INDEX, -1, -1, "index and blocks are a bijection");
    return true;
}

/* Of an entry's tokens, those that a holder has reserved are computed. After a truncation that is
 * fewer than the entry has; the others are still there, for no one has written over them. */
static bool check_computed(struct audit *audit, uint32_t block, uint32_t seq, int32_t group,
                           uint32_t i) {
    const struct pkv_pool *pool = audit->pool;
    const struct pkv_seq_record *record = &pool->seqs[seq];
    const int32_t first = (int32_t)i * pool->groups[group].block_size;
    const int32_t reserved = record->num_tokens - first;
    const int32_t entry = pool->blocks[block].num_tokens;
    if (pkv_block_is_findable(pool, &pool->blocks[block]) &&
        first + (entry < reserved ? entry : reserved) > record->num_computed)
        return fail(audit, PKV_AUDIT_INDEX_COMPUTED, block, seq,
                    "an indexed block lies below the computed tokens of each holder");
    return true;
}

/* Keys along a sequence's chain; the blocks before a window are gone, so it starts at the first. */
static bool check_chain(struct audit *audit, uint32_t seq, int32_t g) {
    const struct pkv_pool *pool = audit->pool;
    const struct pkv_group *group = &pool->groups[g];
    const struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
    const uint32_t *table = pkv_seq_table(group, seq);
    struct pkv_key key =
        pool->domains.root_keys[(int64_t)pool->seqs[seq].domain * pool->num_groups + g];
    for (uint32_t i = part->first_block; i < part->num_chained; i++) {
        const struct pkv_block_record *block = &pool->blocks[table[i]];
        if (!(block->flags & PKV_BLOCK_CHAINED) || block->num_tokens != group->block_size ||
            block->group != g)
            return fail(audit, PKV_AUDIT_INDEX_CONTENTS, table[i], seq,
                        "blocks of a chain know their contents");
        if (i == 0 || i > part->first_block) {
            key = pkv_key_block(pool->hash_seed, key, pkv_block_tokens(pool, table[i]),
                                group->block_size);
            if (!pkv_key_equal(key, block->key))
                return fail(audit, PKV_AUDIT_INDEX_CONTENTS, table[i], seq,
                            "a key is that of the stored tokens");
        }
        key = block->key;
    }
    if (part->num_chained > part->first_block && !pkv_key_equal(key, part->chain_key))
        return fail(audit, PKV_AUDIT_INDEX_CONTENTS, -1, seq, "a chain ends with its last block");
    return true;
}

static bool check_contents(struct audit *audit) {
    const struct pkv_pool *pool = audit->pool;
    for (uint32_t seq = 0; seq < (uint32_t)pool->max_seqs; seq++) {
        for (int32_t g = 0; pool->seqs[seq].is_live && g < pool->num_groups; g++) {
            if (pkv_seq_is_indexed(pool, &pool->seqs[seq]) && !check_chain(audit, seq, g))
                return false;
        }
    }
    return true;
}

static bool check_domains(struct audit *audit) {
    const struct pkv_pool *pool = audit->pool;
    const struct pkv_domains *domains = &pool->domains;
    int64_t num_used = 0, num_idle = 0, num_counted = 0;
    for (uint32_t i = 0; i < domains->capacity; i++) {
        num_used += domains->entries[i].num_seqs > 0;
        num_counted += domains->entries[i].num_seqs;
    }
    for (uint32_t i = domains->oldest; i != PKV_NIL && num_idle <= domains->capacity;
         i = domains->entries[i].newer)
        num_idle++;
    if (num_used + num_idle != domains->capacity || num_counted != pool->counts.num_seqs)
        return fail(audit, PKV_AUDIT_DOMAINS, -1, -1, "domains count their sequences");
    return true;
}

enum pkv_status pkv_pool_audit(struct pkv_pool *pool, struct pkv_audit *audit,
                               struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (pool == NULL)
        return pkv_refuse_missing(blame, "pool");
    struct audit work = {.pool = pool,
                         .result = {.struct_size = sizeof(work.result),
                                    .rule = PKV_AUDIT_PASSED,
                                    .block_id = -1,
                                    .seq_index = -1}};
    pkv_pool_lock(pool);
    const bool passed = check_tables(&work) && check_references(&work) && check_counts(&work) &&
                        check_queue(&work) && check_index(&work) &&
                        visit_entries(&work, check_computed) && check_contents(&work) &&
                        check_domains(&work);
    pkv_pool_unlock(pool);
    if (audit) {
        const enum pkv_status status =
            pkv_struct_write(audit, &work.result, sizeof(work.result), __func__, "audit", error);
        if (status != PKV_STATUS_OK)
            return status;
    }
    if (!passed)
        return pkv_refuse(blame, PKV_STATUS_INTERNAL, "pool", work.result.block_id, PKV_ERROR_NONE,
                          work.result.text);
    return PKV_STATUS_OK;
}
