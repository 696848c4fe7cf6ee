/* SPDX-License-Identifier: MIT
 *
 * Questions about sequences: what one holds, and which to give up. Nothing is changed here.
 */
#include "pool/pool.h"

static int64_t count_blocks(const struct pkv_pool *pool, uint32_t seq) {
    int64_t count = 0;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        const struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
        count += part->num_blocks - part->first_block;
    }
    return count;
}

enum pkv_status pkv_seq_info_get(struct pkv_pool *pool, struct pkv_seq seq,
                                 struct pkv_seq_info *info, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_seq_record *record;
    struct pkv_seq_info facts = {.struct_size = sizeof(facts)};
    if (pool == NULL || info == NULL)
        return pkv_refuse_missing(blame, pool == NULL ? "pool" : "info");
    pkv_pool_lock(pool);
    const enum pkv_status status = pkv_seq_find(pool, seq, "seq", &record, blame);
    if (status == PKV_STATUS_OK) {
        facts.num_tokens = record->num_tokens;
        facts.num_computed_tokens = record->num_computed;
        facts.num_blocks = count_blocks(pool, seq.index);
        facts.arrival = record->arrival;
        facts.priority = record->priority;
        facts.is_indexed = pool->index_mode != PKV_INDEX_OFF && !record->is_not_indexed &&
                           (record->epoch == pool->epoch || record->num_tokens == 0);
    }
    pkv_pool_unlock(pool);
    if (status != PKV_STATUS_OK)
        return status;
    return pkv_struct_write(info, &facts, sizeof(facts), __func__, "info", error);
}

enum pkv_status pkv_seq_block_table(struct pkv_pool *pool, struct pkv_seq seq, int32_t group,
                                    struct pkv_tensor *block_table, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_seq_record *record;
    if (pool == NULL || block_table == NULL)
        return pkv_refuse_missing(blame, pool == NULL ? "pool" : "block_table");
    if (group < 0 || group >= pool->num_groups)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "group", group, pool->num_groups,
                          "must lie between 0 and the number of groups");
    pkv_pool_lock(pool);
    const enum pkv_status status = pkv_seq_find(pool, seq, "seq", &record, blame);
    if (status == PKV_STATUS_OK)
        *block_table =
            (struct pkv_tensor){.data = pkv_seq_table(&pool->groups[group], seq.index),
                                .dtype = PKV_DTYPE_I32,
                                .ndim = 1,
                                .shape = {pkv_seq_part(pool, seq.index, group)->num_blocks},
                                .strides = {1}};
    pkv_pool_unlock(pool);
    return status;
}

/* Whether a is to be given up rather than b. */
static bool is_preferred(const struct pkv_seq_record *a, const struct pkv_seq_record *b,
                         int32_t policy) {
    if (policy == PKV_PREEMPT_LOWEST_PRIORITY && a->priority != b->priority)
        return a->priority < b->priority;
    return a->arrival > b->arrival;
}

enum pkv_status pkv_preempt_choose(struct pkv_pool *pool, int32_t policy, struct pkv_seq *seq,
                                   struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (seq)
        *seq = (struct pkv_seq){0, 0};
    if (pool == NULL || seq == NULL)
        return pkv_refuse_missing(blame, pool == NULL ? "pool" : "seq");
    if (policy != PKV_PREEMPT_LATEST_ARRIVAL && policy != PKV_PREEMPT_LOWEST_PRIORITY)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "policy", policy, PKV_ERROR_NONE,
                          "must be one of enum pkv_preemption");
    pkv_pool_lock(pool);
    const struct pkv_seq_record *victim = NULL;
    for (uint32_t i = 0; i < (uint32_t)pool->max_seqs; i++) {
        const struct pkv_seq_record *record = &pool->seqs[i];
        if (!record->is_live || count_blocks(pool, i) == 0 ||
            (victim && !is_preferred(record, victim, policy)))
            continue;
        victim = record;
        *seq = (struct pkv_seq){i, record->generation};
    }
    pkv_pool_unlock(pool);
    return victim ? PKV_STATUS_OK
                  : pkv_refuse(blame, PKV_STATUS_CAPACITY, "pool", PKV_ERROR_NONE, PKV_ERROR_NONE,
                               "has no sequence that holds a block");
}
