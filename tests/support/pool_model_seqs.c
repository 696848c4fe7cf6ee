/* SPDX-License-Identifier: MIT
 *
 * The naive block manager: what its sequences and its callers' handles do.
 */
#include "pool_model_inner.h"

#include <string.h>

static void start_chain(struct pool_model *model, struct model_seq *seq) {
    seq->epoch = model->epoch;
    for (int32_t g = 0; g < model->num_groups; g++) {
        seq->parts[g].num_chained = 0;
        seq->parts[g].chain_id = model_root_id(model, seq->domain_slot, g);
        seq->parts[g].is_broken = false;
    }
}

int32_t model_seq_create(struct pool_model *model, int32_t domain, int32_t priority,
                         bool is_not_indexed, int32_t *seq) {
    if (model->is_open)
        return PKV_STATUS_BAD_STATE;
    if (model->num_free_seqs == 0)
        return PKV_STATUS_CAPACITY;
    *seq = model->free_seqs[--model->num_free_seqs];
    struct model_seq *made = &model->seqs[*seq];
    memset(made, 0, sizeof(*made));
    made->is_live = true;
    made->is_not_indexed = is_not_indexed;
    made->domain = domain;
    made->priority = priority;
    made->arrival = model->arrivals++;
    made->domain_slot = model_take_domain(model, domain);
    start_chain(model, made);
    return PKV_STATUS_OK;
}

int32_t model_seq_match(struct pool_model *model, int32_t seq, const int32_t *tokens,
                        int32_t num_tokens, int32_t *num_hit) {
    struct model_seq *matched = &model->seqs[seq];
    int32_t partial = -1, hit = 0;
    if (num_tokens > model->max_tokens - matched->num_tokens)
        return PKV_STATUS_CAPACITY;
    if (matched->num_tokens > 0)
        return PKV_STATUS_BAD_STATE;
    start_chain(model, matched);
    if (!matched->is_not_indexed)
        hit =
            model_walk(model, matched->domain, matched->domain_slot, tokens, num_tokens, &partial);
    for (int32_t g = 0; g < model->num_groups; g++) {
        struct model_part *part = &matched->parts[g];
        const int32_t num_full = hit / model->groups[g].block_size;
        part->first_block = model_window_start(model, g, num_full * model->groups[g].block_size);
        part->num_blocks = part->num_chained = num_full;
        for (int32_t i = 0; i < num_full; i++) {
            part->table[i] =
                i < part->first_block
                    ? -1
                    : model_find_block(model, matched->domain, matched->domain_slot, tokens, g, i);
            if (part->table[i] >= 0)
                model->blocks[part->table[i]].uses++;
        }
        if (num_full > 0) {
            const int32_t last = model_find_block(model, matched->domain, matched->domain_slot,
                                                  tokens, g, num_full - 1);
            part->is_broken = last < 0;
            if (last >= 0)
                part->chain_id = model->blocks[last].id;
        }
        if (partial >= 0) {
            part->table[part->num_blocks++] = partial;
            model->blocks[partial].uses++;
        }
    }
    memcpy(matched->tokens, tokens, (size_t)hit * sizeof(*tokens));
    matched->num_tokens = matched->num_computed = matched->num_committed = hit;
    model->hit_tokens += hit;
    model->miss_tokens += num_tokens - hit;
    *num_hit = hit;
    return PKV_STATUS_OK;
}

/* The last block, if tokens go into it and others hold it too. */
static int32_t shared_tail(const struct pool_model *model, const struct model_seq *seq, int32_t g) {
    const struct model_part *part = &seq->parts[g];
    if (seq->num_tokens % model->groups[g].block_size == 0)
        return -1;
    const int32_t tail = part->table[part->num_blocks - 1];
    return model_references(model, tail) > 1 ? tail : -1;
}

int32_t model_seq_append(struct pool_model *model, int32_t seq, const int32_t *tokens,
                         int32_t num_tokens, struct pkv_block_copy *copies) {
    struct model_seq *grown = &model->seqs[seq];
    const int32_t old_tokens = grown->num_tokens;
    int32_t wanted = 0;
    for (int32_t g = 0; g < model->num_groups; g++)
        copies[g] = (struct pkv_block_copy){-1, -1};
    if (num_tokens > model->max_tokens - old_tokens)
        return PKV_STATUS_CAPACITY;
    for (int32_t g = 0; g < model->num_groups && num_tokens > 0; g++) {
        const int32_t copied = shared_tail(model, grown, g) >= 0;
        if (copied && grown->num_committed < old_tokens)
            return PKV_STATUS_BAD_STATE;
        wanted += model_ceil_div(old_tokens + num_tokens, model->groups[g].block_size) -
                  grown->parts[g].num_blocks + copied;
    }
    if (wanted > model_num_free(model) + model_num_cached(model))
        return PKV_STATUS_OUT_OF_BLOCKS;
    if (old_tokens == 0)
        start_chain(model, grown);
    for (int32_t g = 0; g < model->num_groups && num_tokens > 0; g++) {
        struct model_part *part = &grown->parts[g];
        const int32_t block_size = model->groups[g].block_size;
        const int32_t source = shared_tail(model, grown, g);
        if (source >= 0) {
            const int32_t copy = model_take(model);
            part->table[part->num_blocks - 1] = copy;
            copies[g] = (struct pkv_block_copy){source, copy};
            model->num_copied++;
        } else if (old_tokens % block_size != 0) {
            const int32_t tail = part->table[part->num_blocks - 1];
            struct model_block *block = &model->blocks[tail];
            if (block->is_known && old_tokens % block_size < block->num_entry) {
                if (block->is_indexed)
                    model_remove_from_index(model, tail, PKV_POOL_EVENT_REMOVED);
                block->is_known = false;
            }
        }
        while (part->num_blocks * block_size < old_tokens + num_tokens) {
            const int32_t block = model_take(model);
            part->table[part->num_blocks++] = block;
        }
    }
    memcpy(grown->tokens + old_tokens, tokens, (size_t)num_tokens * sizeof(*tokens));
    grown->num_tokens += num_tokens;
    if (!model->is_open)
        grown->num_committed = grown->num_tokens;
    return PKV_STATUS_OK;
}

int32_t model_seq_fork(struct pool_model *model, int32_t parent, int32_t *child) {
    if (model->num_free_seqs == 0)
        return PKV_STATUS_CAPACITY;
    *child = model->free_seqs[--model->num_free_seqs];
    model->seqs[*child] = model->seqs[parent];
    model->seqs[*child].arrival = model->arrivals++;
    model->seqs[*child].batch = 0;
    model->domains[model->seqs[parent].domain_slot].num_seqs++;
    return PKV_STATUS_OK;
}

/* Drops entry i of a table and gives its block back. */
static void drop_entry(struct pool_model *model, struct model_seq *seq, int32_t g, int32_t i,
                       int32_t *after) {
    const int32_t block = seq->parts[g].table[i];
    seq->parts[g].table[i] = -1;
    if (block >= 0)
        model_give_back(model, block, seq->priority, after);
}

static bool is_indexed_seq(const struct pool_model *model, const struct model_seq *seq) {
    return model_has_index(model) && !seq->is_not_indexed && seq->epoch == model->epoch;
}

static void index_tail(struct pool_model *model, const struct model_seq *seq) {
    const struct model_part *part = &seq->parts[0];
    const int32_t block_size = model->groups[0].block_size;
    const int32_t num_entry = seq->num_computed % block_size;
    if (model->index_mode != PKV_INDEX_PARTIAL_BLOCKS || !is_indexed_seq(model, seq) ||
        num_entry == 0 || part->is_broken || part->num_chained != seq->num_computed / block_size)
        return;
    const int32_t tail = part->table[part->num_chained];
    if (model_references(model, tail) > 1 ||
        (model->blocks[tail].is_indexed && model->blocks[tail].num_entry >= num_entry))
        return;
    model_store(model, tail, seq, 0, seq->num_computed, num_entry, part->chain_id);
}

static void shorten(struct pool_model *model, struct model_seq *seq, int32_t num_tokens) {
    if (num_tokens == 0)
        index_tail(model, seq);
    for (int32_t g = 0; g < model->num_groups; g++) {
        struct model_part *part = &seq->parts[g];
        const int32_t block_size = model->groups[g].block_size;
        const int32_t num_full = num_tokens / block_size;
        int32_t after = -1;
        while (part->num_blocks > model_ceil_div(num_tokens, block_size)) {
            drop_entry(model, seq, g, part->num_blocks - 1, &after);
            part->num_blocks--;
        }
        if (num_tokens == 0)
            part->first_block = 0;
        if (num_full == 0) {
            part->num_chained = 0;
            part->is_broken = false;
            part->chain_id = model_root_id(model, seq->domain_slot, g);
        } else if (part->num_chained > num_full) {
            part->num_chained = num_full;
            part->is_broken = part->table[num_full - 1] < 0;
            if (!part->is_broken)
                part->chain_id = model->blocks[part->table[num_full - 1]].id;
        }
    }
    seq->num_tokens = num_tokens;
    if (seq->num_computed > num_tokens)
        seq->num_computed = num_tokens;
    if (seq->num_committed > num_tokens)
        seq->num_committed = num_tokens;
}

int32_t model_seq_free(struct pool_model *model, int32_t seq) {
    struct model_seq *ended = &model->seqs[seq];
    if (model->is_open)
        return PKV_STATUS_BAD_STATE;
    shorten(model, ended, 0);
    ended->is_live = false;
    if (--model->domains[ended->domain_slot].num_seqs == 0)
        model->domains[ended->domain_slot].idle_since = ++model->clock;
    model->free_seqs[model->num_free_seqs++] = seq;
    return PKV_STATUS_OK;
}

int32_t model_seq_truncate(struct pool_model *model, int32_t seq, int32_t num_tokens) {
    struct model_seq *cut = &model->seqs[seq];
    if (model->is_open)
        return PKV_STATUS_BAD_STATE;
    if (num_tokens < 0 || num_tokens > cut->num_tokens)
        return PKV_STATUS_INVALID_ARGUMENT;
    for (int32_t g = 0; g < model->num_groups && num_tokens > 0; g++) {
        for (int32_t i = model_window_start(model, g, num_tokens);
             i < model_ceil_div(num_tokens, model->groups[g].block_size); i++) {
            if (cut->parts[g].table[i] < 0)
                return PKV_STATUS_BAD_STATE;
        }
        /* At a window's very edge no kept block says so. */
        if (model_window_start(model, g, num_tokens) < cut->parts[g].first_block)
            return PKV_STATUS_BAD_STATE;
    }
    if (num_tokens < cut->num_tokens)
        shorten(model, cut, num_tokens);
    return PKV_STATUS_OK;
}

static void advance(struct pool_model *model, struct model_seq *seq, int32_t g) {
    struct model_part *part = &seq->parts[g];
    const int32_t block_size = model->groups[g].block_size;
    const int32_t anchor = model_anchor_of(model, g);
    while ((part->num_chained + 1) * block_size <= seq->num_computed && !part->is_broken) {
        const int32_t i = part->num_chained, block = part->table[i];
        const struct model_block *next = &model->blocks[block];
        if (!next->is_known || next->num_entry != block_size) {
            int64_t parent_id = part->chain_id;
            if (model_num_uncomputed(model, block) > 0)
                return;
            if (anchor >= 0 && i > 0 && i % model_alignment_of(model, g) == 0) {
                const int32_t before = i * block_size / model->groups[anchor].block_size;
                if (seq->parts[anchor].num_chained < before)
                    return;
                parent_id = model->blocks[seq->parts[anchor].table[before - 1]].id;
            }
            model_store(model, block, seq, g, (i + 1) * block_size, block_size, parent_id);
        }
        part->chain_id = next->id;
        part->num_chained++;
    }
}

int32_t model_seq_mark_computed(struct pool_model *model, int32_t seq, int32_t num_computed) {
    struct model_seq *marked = &model->seqs[seq];
    if (model->is_open)
        return PKV_STATUS_BAD_STATE;
    if (num_computed < marked->num_computed || num_computed > marked->num_tokens)
        return PKV_STATUS_INVALID_ARGUMENT;
    marked->num_computed = num_computed;
    for (int32_t pass = 0; pass < 2 && is_indexed_seq(model, marked); pass++) {
        for (int32_t g = 0; g < model->num_groups; g++) {
            if ((model_anchor_of(model, g) >= 0) == (pass == 1))
                advance(model, marked, g);
        }
    }
    for (int32_t g = 0; g < model->num_groups; g++) {
        struct model_part *part = &marked->parts[g];
        int32_t end = model_window_start(model, g, num_computed), after = -1;
        if (is_indexed_seq(model, marked) && !part->is_broken && end > part->num_chained)
            end = part->num_chained;
        for (int32_t i = end; i-- > part->first_block;)
            drop_entry(model, marked, g, i, &after);
        if (end > part->first_block)
            part->first_block = end;
    }
    return PKV_STATUS_OK;
}

int32_t model_lookup(struct pool_model *model, int32_t domain, const int32_t *tokens,
                     int32_t num_tokens) {
    int32_t partial;
    return model_walk(model, domain, model_slot_of_domain(model, domain), tokens,
                      num_tokens < model->max_tokens ? num_tokens : model->max_tokens, &partial);
}

int32_t model_allocate(struct pool_model *model, int32_t num_blocks, int32_t *blocks) {
    if (model->is_open)
        return PKV_STATUS_BAD_STATE;
    if (num_blocks > model_num_free(model) + model_num_cached(model))
        return PKV_STATUS_OUT_OF_BLOCKS;
    for (int32_t i = 0; i < num_blocks; i++) {
        blocks[i] = model_take(model);
        model->blocks[blocks[i]].handles = 1;
    }
    return PKV_STATUS_OK;
}

int32_t model_release(struct pool_model *model, int32_t block) {
    int32_t after = -1;
    if (model->is_open)
        return PKV_STATUS_BAD_STATE;
    model->blocks[block].handles--;
    model_give_back(model, block, 0, &after);
    return PKV_STATUS_OK;
}

int32_t model_pin(struct pool_model *model, int32_t domain, const int32_t *tokens,
                  int32_t num_tokens, int32_t *blocks, int32_t *num_blocks) {
    int32_t partial;
    const int32_t slot = model_slot_of_domain(model, domain);
    *num_blocks = 0;
    if (model->is_open)
        return PKV_STATUS_BAD_STATE;
    const int32_t hit = model_walk(model, domain, slot, tokens, num_tokens, &partial);
    for (int32_t g = 0; g < model->num_groups; g++) {
        const int32_t num_full = hit / model->groups[g].block_size;
        for (int32_t i = model_window_start(model, g, num_full * model->groups[g].block_size);
             i < num_full; i++)
            blocks[(*num_blocks)++] = model_find_block(model, domain, slot, tokens, g, i);
    }
    if (partial >= 0)
        blocks[(*num_blocks)++] = partial;
    for (int32_t i = 0; i < *num_blocks; i++)
        model->blocks[blocks[i]].handles++;
    return PKV_STATUS_OK;
}
