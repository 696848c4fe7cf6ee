/* SPDX-License-Identifier: MIT
 *
 * Finding the blocks of a prompt, and indexing those of a sequence.
 *
 * A block of a group without a window is identified by the block before it. In a group with a
 * window the blocks before are gone, so a block whose first token is also the first of a block of
 * the anchor (the first group without a window) is identified by the anchor's block before that,
 * and only the others by their own neighbour: what the window still sees starts at such a block.
 */
#include "pool/prefix.h"

#include "pool/blocks.h"
#include "pool/domains.h"
#include "pool/index.h"

/* Blocks whose keys are computed before the first is looked for, so that the memory behind them
 * arrives meanwhile. */
enum { CHUNK = 32 };

struct walk {
    struct pkv_pool *pool;
    const int32_t *tokens;
    uint32_t domain;
    int32_t group;
    int32_t num_blocks; /* whole blocks of the prompt */
};

static struct pkv_key root_key(const struct pkv_pool *pool, uint32_t domain, int32_t group) {
    return pool->domains.root_keys[(int64_t)domain * pool->num_groups + group];
}

static uint64_t root_serial(const struct pkv_pool *pool, uint32_t domain, int32_t group) {
    return pool->domains.entries[domain].serial + (uint64_t)group;
}

void pkv_seq_start_chain(struct pkv_pool *pool, uint32_t seq, int32_t group) {
    struct pkv_seq_group *part = pkv_seq_part(pool, seq, group);
    part->num_chained = 0;
    part->is_broken = false;
    part->chain_key = root_key(pool, pool->seqs[seq].domain, group);
    part->chain_serial = root_serial(pool, pool->seqs[seq].domain, group);
}

/* Keys of blocks [first, first + count) behind *key, which moves on; prefetches what they name. */
static void hash_chunk(const struct walk *walk, int32_t first, int32_t count, struct pkv_key *key,
                       struct pkv_key keys[CHUNK]) {
    struct pkv_pool *pool = walk->pool;
    const int32_t block_size = pool->groups[walk->group].block_size;
    for (int32_t i = 0; i < count; i++) {
        *key = pkv_key_block(pool->hash_seed, *key,
                             walk->tokens + (int64_t)(first + i) * block_size, block_size);
        keys[i] = *key;
        pkv_index_prefetch(&pool->index, *key);
    }
    for (int32_t i = 0; i < count; i++) {
        const uint32_t block = pool->index.slots[(uint32_t)keys[i].low & pool->index.mask].block;
        if (block == PKV_NIL)
            continue;
        __builtin_prefetch(&pool->blocks[block]);
        __builtin_prefetch(pkv_block_tokens(pool, block));
    }
}

/* The serial that identifies what comes before block i: the anchor's where both begin, else that of
 * the group's own block before; 0, which is no serial, if that was not found. */
static uint64_t parent_serial(const struct walk *walk, int32_t i) {
    const struct pkv_pool *pool = walk->pool;
    const struct pkv_group *group = &pool->groups[walk->group];
    if (i == 0)
        return root_serial(pool, walk->domain, walk->group);
    uint32_t before = group->found[i - 1];
    if (group->anchor >= 0 && i % group->align_blocks == 0) {
        const struct pkv_group *anchor = &pool->groups[group->anchor];
        before = anchor->found[(int64_t)i * group->block_size / anchor->block_size - 1];
    }
    return before == PKV_NIL ? 0 : pool->blocks[before].serial;
}

/* Fills the group's found row; in a group that identifies blocks by their own neighbours the first
 * miss ends the walk. Returns the number of entries. */
static int32_t walk_group(const struct walk *walk) {
    struct pkv_pool *pool = walk->pool;
    const struct pkv_group *group = &pool->groups[walk->group];
    struct pkv_key keys[CHUNK];
    struct pkv_key key = root_key(pool, walk->domain, walk->group);
    struct pkv_contents contents = {.num_tokens = group->block_size, .group = walk->group};
    for (int32_t first = 0; first < walk->num_blocks; first += CHUNK) {
        const int32_t rest = walk->num_blocks - first;
        const int32_t count = rest < CHUNK ? rest : CHUNK;
        hash_chunk(walk, first, count, &key, keys);
        for (int32_t i = first; i < first + count; i++) {
            contents.key = keys[i - first];
            contents.parent_serial = parent_serial(walk, i);
            contents.tokens = walk->tokens + (int64_t)i * group->block_size;
            group->found[i] = pkv_index_find_contents(pool, &contents);
            if (group->found[i] == PKV_NIL && group->anchor < 0)
                return i;
        }
    }
    return walk->num_blocks;
}

/* The longest beginning, at most num_tokens, that a group with a window can continue: all blocks
 * that its next token sees are there. */
static int32_t longest_window(const struct pkv_pool *pool, const struct pkv_group *group,
                              int32_t num_tokens) {
    for (; num_tokens > 0; num_tokens -= pool->hit_align_tokens) {
        const int32_t start = (int32_t)pkv_window_start(group, num_tokens);
        int32_t i = num_tokens / group->block_size;
        while (i > start && group->found[i - 1] != PKV_NIL)
            i--;
        if (i == start)
            return num_tokens;
        /* Nothing that sees the missing block i - 1 will do. */
        while (num_tokens - pool->hit_align_tokens > 0 &&
               (int32_t)pkv_window_start(group, num_tokens - pool->hit_align_tokens) < i &&
               (num_tokens - pool->hit_align_tokens) / group->block_size >= i)
            num_tokens -= pool->hit_align_tokens;
    }
    return 0;
}

/* Partial blocks, the longest first: of block_size - 1 tokens at most, so many are tried. */
static void walk_tail(const struct walk *walk, int32_t num_tokens, struct pkv_prefix_hit *hit) {
    struct pkv_pool *pool = walk->pool;
    const struct pkv_group *group = &pool->groups[0];
    const int32_t num_full = (int32_t)hit->groups[0].num_blocks;
    const struct pkv_key parent_key = num_full == 0 ? root_key(pool, walk->domain, 0)
                                                    : pool->blocks[group->found[num_full - 1]].key;
    struct pkv_contents contents = {.parent_serial = parent_serial(walk, num_full),
                                    .tokens = walk->tokens + hit->num_tokens};
    const int32_t rest = num_tokens - hit->num_tokens;
    for (int32_t n = rest < group->block_size ? rest : group->block_size - 1; n > 0; n--) {
        contents.num_tokens = n;
        contents.key = pkv_key_block(pool->hash_seed, parent_key, contents.tokens, n);
        const uint32_t block = pkv_index_find_contents(pool, &contents);
        if (block == PKV_NIL)
            continue;
        group->found[num_full] = block;
        hit->groups[0].num_blocks++;
        hit->num_tokens += n;
        return;
    }
}

void pkv_prefix_walk(struct pkv_pool *pool, uint32_t domain, const int32_t *tokens,
                     int32_t num_tokens, struct pkv_prefix_hit *hit) {
    struct walk walk = {.pool = pool, .tokens = tokens, .domain = domain};
    *hit = (struct pkv_prefix_hit){0};
    if (pool->index_mode == PKV_INDEX_OFF)
        return;
    int32_t longest = num_tokens;
    for (walk.group = 0; walk.group < pool->num_groups; walk.group++) {
        const struct pkv_group *group = &pool->groups[walk.group];
        if (group->anchor >= 0)
            continue;
        walk.num_blocks = longest / group->block_size;
        longest = walk_group(&walk) * group->block_size;
    }
    longest -= longest % pool->hit_align_tokens;
    for (walk.group = 0; walk.group < pool->num_groups; walk.group++) {
        const struct pkv_group *group = &pool->groups[walk.group];
        if (group->anchor < 0)
            continue;
        walk.num_blocks = longest / group->block_size;
        (void)walk_group(&walk);
    }
    for (int32_t before = -1; before != longest;) {
        before = longest;
        for (int32_t g = 0; g < pool->num_groups; g++) {
            if (pool->groups[g].anchor >= 0)
                longest = longest_window(pool, &pool->groups[g], longest);
        }
    }
    hit->num_tokens = longest;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        hit->groups[g].num_blocks = (uint32_t)(longest / pool->groups[g].block_size);
        hit->groups[g].first_block = pkv_window_start(&pool->groups[g], longest);
    }
    if (pool->index_mode == PKV_INDEX_PARTIAL_BLOCKS) {
        walk.group = 0;
        walk_tail(&walk, num_tokens, hit);
    }
}

/* What identifies the contents before the next block of a sequence's chain; false: the anchor has
 * not come that far. */
static bool chain_parent(const struct pkv_pool *pool, uint32_t seq, int32_t g, uint64_t *serial) {
    const struct pkv_group *group = &pool->groups[g];
    const struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
    *serial = part->chain_serial;
    if (part->num_chained == 0 || group->anchor < 0 ||
        part->num_chained % (uint32_t)group->align_blocks != 0)
        return true;
    const struct pkv_group *anchor = &pool->groups[group->anchor];
    const uint32_t before =
        (uint32_t)((int64_t)part->num_chained * group->block_size / anchor->block_size);
    if (pkv_seq_part(pool, seq, group->anchor)->num_chained < before)
        return false;
    *serial = pool->blocks[pkv_seq_table(anchor, seq)[before - 1]].serial;
    return true;
}

static void advance_group(struct pkv_pool *pool, uint32_t seq, int32_t g) {
    const struct pkv_seq_record *record = &pool->seqs[seq];
    const struct pkv_group *group = &pool->groups[g];
    struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
    const uint32_t num_full = (uint32_t)record->num_computed / (uint32_t)group->block_size;
    while (part->num_chained < num_full && !part->is_broken) {
        const uint32_t block = pkv_seq_table(group, seq)[part->num_chained];
        const struct pkv_block_record *chained = &pool->blocks[block];
        const bool is_known =
            chained->flags & PKV_BLOCK_CHAINED && chained->num_tokens == group->block_size;
        struct pkv_contents contents = {.parent_key = part->chain_key,
                                        .tokens = pool->tokens + block * pool->token_stride,
                                        .num_tokens = group->block_size,
                                        .group = g};
        if (!is_known) {
            if (chained->num_uncomputed > 0 || !chain_parent(pool, seq, g, &contents.parent_serial))
                return;
            contents.key = pkv_key_block(pool->hash_seed, contents.parent_key, contents.tokens,
                                         contents.num_tokens);
            pkv_index_store(pool, block, &contents, record->priority);
        }
        part->chain_key = chained->key;
        part->chain_serial = chained->serial;
        part->num_chained++;
    }
}

void pkv_prefix_advance(struct pkv_pool *pool, uint32_t seq) {
    if (!pkv_seq_is_indexed(pool, &pool->seqs[seq]))
        return;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        if (pool->groups[g].anchor < 0)
            advance_group(pool, seq, g);
    }
    for (int32_t g = 0; g < pool->num_groups; g++) {
        if (pool->groups[g].anchor >= 0)
            advance_group(pool, seq, g);
    }
}

void pkv_prefix_prefetch(const struct pkv_pool *pool, uint32_t seq, int32_t num_computed) {
    if (!pkv_seq_is_indexed(pool, &pool->seqs[seq]))
        return;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        const struct pkv_group *group = &pool->groups[g];
        const struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
        if ((uint32_t)num_computed % (uint32_t)group->block_size != 0 || part->is_broken ||
            part->num_chained >= (uint32_t)num_computed / (uint32_t)group->block_size)
            continue;
        const uint32_t block = pkv_seq_table(group, seq)[part->num_chained];
        pkv_index_prefetch(&pool->index,
                           pkv_key_block(pool->hash_seed, part->chain_key,
                                         pkv_block_tokens(pool, block), group->block_size));
    }
}

void pkv_prefix_index_tail(struct pkv_pool *pool, uint32_t seq) {
    const struct pkv_seq_record *record = &pool->seqs[seq];
    const struct pkv_group *group = &pool->groups[0];
    const struct pkv_seq_group *part = pkv_seq_part(pool, seq, 0);
    const int32_t num_tokens = record->num_computed % group->block_size;
    if (pool->index_mode != PKV_INDEX_PARTIAL_BLOCKS || !pkv_seq_is_indexed(pool, record) ||
        num_tokens == 0 || part->is_broken ||
        part->num_chained != (uint32_t)(record->num_computed / group->block_size))
        return;
    const uint32_t block = pkv_seq_table(group, seq)[part->num_chained];
    const struct pkv_block_record *tail = &pool->blocks[block];
    /* Others may not have computed it; and an entry for more tokens than are left is worth more. */
    if (tail->num_references > 1 ||
        (tail->flags & PKV_BLOCK_INDEXED && tail->num_tokens >= num_tokens))
        return;
    struct pkv_contents contents = {.parent_key = part->chain_key,
                                    .parent_serial = part->chain_serial,
                                    .tokens = pkv_block_tokens(pool, block),
                                    .num_tokens = num_tokens};
    contents.key = pkv_key_block(pool->hash_seed, contents.parent_key, contents.tokens, num_tokens);
    pkv_index_store(pool, block, &contents, record->priority);
}

/* The walk for a caller's prompt, checked. */
static enum pkv_status look_up(struct pkv_pool *pool, const struct pkv_domain *domain,
                               const int32_t *token_ids, int64_t num_tokens,
                               struct pkv_prefix_hit *hit, struct pkv_blame blame) {
    uint32_t entry = PKV_NIL;
    *hit = (struct pkv_prefix_hit){0};
    if (num_tokens < 0)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "num_tokens", num_tokens, 0,
                          "must be at least");
    if (token_ids == NULL && num_tokens > 0)
        return pkv_refuse_missing(blame, "token_ids");
    const enum pkv_status status = pkv_domains_look_up(pool, domain, &entry, blame);
    if (status != PKV_STATUS_OK || entry == PKV_NIL)
        return status;
    const int64_t most = pool->max_tokens_per_seq;
    pkv_prefix_walk(pool, entry, token_ids, (int32_t)(num_tokens < most ? num_tokens : most), hit);
    return PKV_STATUS_OK;
}

enum pkv_status pkv_prefix_lookup(struct pkv_pool *pool, const struct pkv_domain *domain,
                                  const int32_t *token_ids, int64_t num_tokens,
                                  int64_t *num_hit_tokens, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_prefix_hit hit;
    if (pool == NULL || num_hit_tokens == NULL)
        return pkv_refuse_missing(blame, pool == NULL ? "pool" : "num_hit_tokens");
    pkv_pool_lock(pool);
    const enum pkv_status status = look_up(pool, domain, token_ids, num_tokens, &hit, blame);
    pkv_pool_unlock(pool);
    if (status == PKV_STATUS_OK)
        *num_hit_tokens = hit.num_tokens;
    return status;
}

static enum pkv_status pin(struct pkv_pool *pool, const struct pkv_prefix_hit *hit,
                           struct pkv_block *blocks, int64_t max_blocks, int64_t *num_blocks,
                           struct pkv_blame blame) {
    int64_t count = 0;
    for (int32_t g = 0; g < pool->num_groups; g++)
        count += hit->groups[g].num_blocks - hit->groups[g].first_block;
    if (count > max_blocks)
        return pkv_refuse(blame, PKV_STATUS_CAPACITY, "max_blocks", max_blocks, count,
                          "must have room for every block found");
    *num_blocks = 0;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        for (uint32_t i = hit->groups[g].first_block; i < hit->groups[g].num_blocks; i++) {
            const uint32_t block = pool->groups[g].found[i];
            pkv_block_ref(pool, block);
            pool->blocks[block].num_handles++;
            blocks[(*num_blocks)++] =
                (struct pkv_block){(int32_t)block, pool->blocks[block].generation};
        }
    }
    return PKV_STATUS_OK;
}

enum pkv_status pkv_prefix_pin(struct pkv_pool *pool, const struct pkv_domain *domain,
                               const int32_t *token_ids, int64_t num_tokens,
                               struct pkv_block *blocks, int64_t max_blocks, int64_t *num_blocks,
                               int64_t *num_hit_tokens, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_prefix_hit hit;
    if (pool == NULL || num_blocks == NULL || (blocks == NULL && max_blocks > 0))
        return pkv_refuse_missing(blame, pool == NULL         ? "pool"
                                         : num_blocks == NULL ? "num_blocks"
                                                              : "blocks");
    pkv_pool_lock(pool);
    enum pkv_status status = pkv_pool_may_change(pool, blame);
    if (status == PKV_STATUS_OK)
        status = look_up(pool, domain, token_ids, num_tokens, &hit, blame);
    if (status == PKV_STATUS_OK)
        status = pin(pool, &hit, blocks, max_blocks, num_blocks, blame);
    pkv_pool_unlock(pool);
    if (status == PKV_STATUS_OK && num_hit_tokens)
        *num_hit_tokens = hit.num_tokens;
    return status;
}
