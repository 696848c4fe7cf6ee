/* SPDX-License-Identifier: MIT
 *
 * The naive block manager: blocks, victims, index, domains. Every answer is found by looking at
 * everything. What sequences do is in pool_model_seqs.c.
 */
#include "pool_model_inner.h"

#include <stdlib.h>
#include <string.h>

int32_t model_ceil_div(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

bool model_has_index(const struct pool_model *model) {
    return model->index_mode != PKV_INDEX_OFF;
}

/* The group by which windows are identified: the first without one; -1. */
int32_t model_anchor_of(const struct pool_model *model, int32_t g) {
    if (model->groups[g].window == 0)
        return -1;
    for (int32_t other = 0; other < model->num_groups; other++) {
        if (model->groups[other].window == 0)
            return other;
    }
    return -1;
}

static int32_t common_multiple(int32_t a, int32_t b) {
    int32_t multiple = a;
    while (multiple % b != 0)
        multiple += a;
    return multiple;
}

int32_t model_alignment_of(const struct pool_model *model, int32_t g) {
    const int32_t anchor = model_anchor_of(model, g);
    const int32_t block_size = model->groups[g].block_size;
    return anchor < 0 ? 1
                      : common_multiple(block_size, model->groups[anchor].block_size) / block_size;
}

/* The first block whose tokens a token at that position may see. */
int32_t model_window_start(const struct pool_model *model, int32_t g, int32_t position) {
    const struct model_group *group = &model->groups[g];
    int32_t block = 0;
    if (group->window == 0)
        return 0;
    while ((block + 1) * group->block_size <= position - group->window + 1)
        block++;
    return block / model_alignment_of(model, g) * model_alignment_of(model, g);
}

void model_init(struct pool_model *model, const struct pkv_pool_options *options) {
    memset(model, 0, sizeof(*model));
    model->num_blocks = (int32_t)options->num_blocks;
    model->max_seqs = (int32_t)options->max_seqs;
    model->max_tokens = (int32_t)options->max_tokens_per_seq;
    model->index_mode = options->index_mode;
    model->eviction = options->eviction;
    model->num_groups = options->num_groups > 0 ? (int32_t)options->num_groups : 1;
    model->groups[0].block_size = (int32_t)options->block_size;
    for (int32_t g = 0; g < options->num_groups; g++) {
        model->groups[g].block_size = (int32_t)options->groups[g].block_size;
        model->groups[g].window = (int32_t)options->groups[g].max_visible_tokens;
    }
    for (int32_t i = 0; i < model->num_blocks; i++)
        model->plain[model->num_plain++] = i;
    for (int32_t i = model->max_seqs; i-- > 0;)
        model->free_seqs[model->num_free_seqs++] = i;
    model->num_domains = (int32_t)options->max_domains;
    for (int32_t i = 0; i < model->num_domains; i++)
        model->domains[i].idle_since = i - model->num_domains;
}

int32_t model_references(const struct pool_model *model, int32_t block) {
    int32_t count = model->blocks[block].handles;
    for (int32_t s = 0; s < model->max_seqs; s++) {
        const struct model_seq *seq = &model->seqs[s];
        for (int32_t g = 0; seq->is_live && g < model->num_groups; g++) {
            for (int32_t i = 0; i < seq->parts[g].num_blocks; i++)
                count += seq->parts[g].table[i] == block;
        }
    }
    return count;
}

/* Sequences that hold it and have not computed all of it. */
int32_t model_num_uncomputed(const struct pool_model *model, int32_t block) {
    int32_t count = 0;
    for (int32_t s = 0; s < model->max_seqs; s++) {
        const struct model_seq *seq = &model->seqs[s];
        for (int32_t g = 0; seq->is_live && g < model->num_groups; g++) {
            for (int32_t i = 0; i < seq->parts[g].num_blocks; i++)
                count += seq->parts[g].table[i] == block &&
                         (i + 1) * model->groups[g].block_size > seq->num_computed;
        }
    }
    return count;
}

int32_t model_num_cached(const struct pool_model *model) {
    int32_t count = 0;
    for (int32_t i = 0; i < model->num_blocks; i++)
        count += model->blocks[i].is_indexed && model_references(model, i) == 0;
    return count;
}

int32_t model_num_free(const struct pool_model *model) {
    int32_t count = 0;
    for (int32_t i = 0; i < model->num_blocks; i++)
        count += !model->blocks[i].is_indexed && model_references(model, i) == 0;
    return count;
}

static void note_event(struct pool_model *model, int32_t type, int32_t block) {
    const struct model_block *about = &model->blocks[block];
    if (model->num_events == MODEL_MAX_EVENTS)
        abort();
    model->events[model->num_events++] =
        (struct model_event){type, about->group, block, about->num_entry};
}

static void insert_plain(struct pool_model *model, int32_t at, int32_t block) {
    memmove(&model->plain[at + 1], &model->plain[at],
            (size_t)(model->num_plain - at) * sizeof(model->plain[0]));
    model->plain[at] = block;
    model->num_plain++;
}

static void remove_plain(struct pool_model *model, int32_t at) {
    model->num_plain--;
    memmove(&model->plain[at], &model->plain[at + 1],
            (size_t)(model->num_plain - at) * sizeof(model->plain[0]));
}

static int32_t place_in_plain(const struct pool_model *model, int32_t block) {
    for (int32_t i = 0; i < model->num_plain; i++) {
        if (model->plain[i] == block)
            return i;
    }
    return -1;
}

/* Whether block a is evicted before block b. */
static bool is_before(const struct pool_model *model, int32_t a, int32_t b) {
    const struct model_block *x = &model->blocks[a], *y = &model->blocks[b];
    if (x->priority != y->priority)
        return x->priority < y->priority;
    if (model->eviction == PKV_EVICTION_LFU && x->uses != y->uses)
        return x->uses < y->uses;
    return x->order < y->order;
}

/* The indexed block whose turn it is; under FIFO it may be in use. -1: none. */
static int32_t next_victim(const struct pool_model *model) {
    int32_t victim = -1;
    for (int32_t i = 0; i < model->num_blocks; i++) {
        const struct model_block *block = &model->blocks[i];
        const bool is_candidate = model->eviction == PKV_EVICTION_FIFO
                                      ? block->has_place
                                      : model_references(model, i) == 0;
        if (block->is_indexed && is_candidate && (victim < 0 || is_before(model, i, victim)))
            victim = i;
    }
    return victim;
}

void model_remove_from_index(struct pool_model *model, int32_t block, int32_t type) {
    note_event(model, type, block);
    model->blocks[block].is_indexed = false;
    model->blocks[block].has_place = false;
    if (type == PKV_POOL_EVENT_EVICTED)
        model->num_evicted++;
    else
        model->num_removed++;
}

int32_t model_take(struct pool_model *model) {
    int32_t block = -1;
    while (block < 0 && model->num_plain > 0) {
        if (model_references(model, model->plain[0]) == 0)
            block = model->plain[0];
        remove_plain(model, 0);
    }
    while (block < 0) {
        block = next_victim(model);
        if (block < 0)
            abort();
        if (model_references(model, block) > 0) {
            model->blocks[block].has_place = false;
            block = -1;
        } else {
            model_remove_from_index(model, block, PKV_POOL_EVENT_EVICTED);
        }
    }
    model->blocks[block].is_known = false;
    model->blocks[block].life++;
    return block;
}

/* The reference is gone already. */
void model_give_back(struct pool_model *model, int32_t block, int32_t priority, int32_t *after) {
    struct model_block *given = &model->blocks[block];
    if (model_references(model, block) > 0)
        return;
    if (!given->is_indexed) {
        if (place_in_plain(model, block) >= 0)
            return;
        insert_plain(model, *after < 0 ? 0 : place_in_plain(model, *after) + 1, block);
        *after = block;
        return;
    }
    if (model->eviction == PKV_EVICTION_FIFO && given->has_place)
        return;
    if (given->priority < priority)
        given->priority = priority;
    model->clock++;
    given->order = model->eviction == PKV_EVICTION_FIFO ? -model->clock : model->clock;
    given->has_place = model->eviction == PKV_EVICTION_FIFO;
}

static bool has_prefix(const struct model_block *block, int32_t group, int32_t domain,
                       const int32_t *tokens, int32_t num_prefix, int32_t num_entry) {
    return block->group == group && block->domain == domain && block->num_prefix == num_prefix &&
           block->num_entry == num_entry &&
           memcmp(block->prefix, tokens, (size_t)num_prefix * sizeof(*tokens)) == 0;
}

/* The indexed block of these contents; -1. */
static int32_t find(const struct pool_model *model, int32_t group, int32_t domain,
                    const int32_t *tokens, int32_t num_prefix, int32_t num_entry) {
    for (int32_t i = 0; i < model->num_blocks; i++) {
        if (model->blocks[i].is_indexed &&
            has_prefix(&model->blocks[i], group, domain, tokens, num_prefix, num_entry))
            return i;
    }
    return -1;
}

int64_t model_root_id(const struct pool_model *model, int32_t domain_slot, int32_t group) {
    return -(model->domains[domain_slot].id * MODEL_MAX_GROUPS + group + 1);
}

void model_store(struct pool_model *model, int32_t block, const struct model_seq *seq,
                 int32_t group, int32_t num_prefix, int32_t num_entry, int64_t parent_id) {
    struct model_block *made = &model->blocks[block];
    bool is_copy = false;
    if (made->is_indexed)
        model_remove_from_index(model, block, PKV_POOL_EVENT_REMOVED);
    const int32_t other = find(model, group, seq->domain, seq->tokens, num_prefix, num_entry);
    int64_t id = 0, uses = 1, priority = seq->priority;
    if (other >= 0) {
        const struct model_block *old = &model->blocks[other];
        if (old->parent_id == parent_id) {
            id = old->id;
            is_copy = model_references(model, other) > 0;
            uses = old->uses + 1;
            priority = old->priority > priority ? old->priority : priority;
        }
        if (!is_copy) {
            const bool was_cached = model_references(model, other) == 0;
            model_remove_from_index(model, other, PKV_POOL_EVENT_REMOVED);
            if (was_cached)
                insert_plain(model, 0, other);
        }
    }
    made->is_known = true;
    made->group = group;
    made->domain = seq->domain;
    memcpy(made->prefix, seq->tokens, (size_t)num_prefix * sizeof(seq->tokens[0]));
    made->num_prefix = num_prefix;
    made->num_entry = num_entry;
    made->id = id ? id : ++model->next_id;
    made->parent_id = parent_id;
    made->uses = uses;
    made->priority = priority;
    if (is_copy)
        return;
    made->is_indexed = true;
    made->order = ++model->clock;
    made->has_place = model->eviction == PKV_EVICTION_FIFO;
    model->num_stored++;
    note_event(model, PKV_POOL_EVENT_STORED, block);
}

/* What a prompt finds in block i of a group: the block with its contents whose parent is what the
 * prompt finds before it. */
int32_t model_find_block(const struct pool_model *model, int32_t domain, int32_t domain_slot,
                         const int32_t *tokens, int32_t g, int32_t i) {
    const int32_t block_size = model->groups[g].block_size;
    const int32_t anchor = model_anchor_of(model, g);
    const int32_t block = find(model, g, domain, tokens, (i + 1) * block_size, block_size);
    int64_t expected;
    if (block < 0)
        return -1;
    if (i == 0) {
        expected = model_root_id(model, domain_slot, g);
    } else {
        int32_t before;
        if (anchor >= 0 && i % model_alignment_of(model, g) == 0)
            before = model_find_block(model, domain, domain_slot, tokens, anchor,
                                      i * block_size / model->groups[anchor].block_size - 1);
        else
            before = model_find_block(model, domain, domain_slot, tokens, g, i - 1);
        if (before < 0)
            return -1;
        expected = model->blocks[before].id;
    }
    return model->blocks[block].parent_id == expected ? block : -1;
}

static bool every_group_has(const struct pool_model *model, int32_t domain, int32_t domain_slot,
                            const int32_t *tokens, int32_t num_tokens) {
    for (int32_t g = 0; g < model->num_groups; g++) {
        const int32_t first =
            model_anchor_of(model, g) < 0 ? 0 : model_window_start(model, g, num_tokens);
        for (int32_t i = first; i < num_tokens / model->groups[g].block_size; i++) {
            if (model_find_block(model, domain, domain_slot, tokens, g, i) < 0)
                return false;
        }
    }
    return true;
}

/* The length found; *partial is the partial block at its end, or -1. */
int32_t model_walk(const struct pool_model *model, int32_t domain, int32_t domain_slot,
                   const int32_t *tokens, int32_t num_tokens, int32_t *partial) {
    int32_t multiple = 1;
    *partial = -1;
    if (!model_has_index(model) || domain_slot < 0)
        return 0;
    for (int32_t g = 0; g < model->num_groups; g++)
        multiple = common_multiple(multiple, model->groups[g].block_size);
    int32_t longest = num_tokens / multiple * multiple;
    while (longest > 0 && !every_group_has(model, domain, domain_slot, tokens, longest))
        longest -= multiple;
    if (model->index_mode != PKV_INDEX_PARTIAL_BLOCKS)
        return longest;
    const int32_t block_size = model->groups[0].block_size;
    const int64_t parent_id =
        longest == 0 ? model_root_id(model, domain_slot, 0)
                     : model
                           ->blocks[model_find_block(model, domain, domain_slot, tokens, 0,
                                                     longest / block_size - 1)]
                           .id;
    for (int32_t n = block_size - 1; n > 0; n--) {
        if (longest + n > num_tokens)
            continue;
        *partial = find(model, 0, domain, tokens, longest + n, n);
        if (*partial >= 0 && model->blocks[*partial].parent_id == parent_id)
            return longest + n;
        *partial = -1;
    }
    return longest;
}

int32_t model_slot_of_domain(const struct pool_model *model, int32_t value) {
    for (int32_t i = 0; i < model->num_domains; i++) {
        if (model->domains[i].is_set && model->domains[i].value == value)
            return i;
    }
    return -1;
}

int32_t model_take_domain(struct pool_model *model, int32_t value) {
    int32_t slot = model_slot_of_domain(model, value);
    if (slot < 0) {
        for (int32_t i = 0; i < model->num_domains; i++) {
            if (model->domains[i].num_seqs == 0 &&
                (slot < 0 || model->domains[i].idle_since < model->domains[slot].idle_since))
                slot = i;
        }
        model->domains[slot] =
            (struct model_domain){.is_set = true, .value = value, .id = ++model->next_id};
    }
    model->domains[slot].num_seqs++;
    return slot;
}

void model_invalidate(struct pool_model *model) {
    for (int32_t victim = next_victim(model); victim >= 0; victim = next_victim(model)) {
        model->blocks[victim].is_indexed = model->blocks[victim].has_place = false;
        model->plain[model->num_plain++] = victim;
    }
    for (int32_t i = 0; i < model->num_blocks; i++)
        model->blocks[i].is_indexed = false;
    model->epoch++;
    model->events[model->num_events++] = (struct model_event){PKV_POOL_EVENT_CLEARED, 0, -1, 0};
}
