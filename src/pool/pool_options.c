/* SPDX-License-Identifier: MIT
 *
 * Reading options, and the layout of a pool's memory.
 */
#include "pool/pool_options.h"

#include "base/checked.h"

enum { ALIGNMENT = 64 };

#define MAX_BLOCKS (INT64_C(1) << 30)
#define MAX_SEQS   (INT64_C(1) << 24)
#define MAX_TOKENS (INT64_C(1) << 30)

void *pkv_arena_take(struct pkv_arena *arena, int64_t count, int64_t element_bytes) {
    int64_t bytes, end;
    if (!pkv_checked_mul(count, element_bytes, &bytes) ||
        !pkv_checked_add(bytes, ALIGNMENT - 1, &bytes) ||
        !pkv_checked_add(arena->bytes, bytes - bytes % ALIGNMENT, &end)) {
        arena->is_overflown = true;
        return NULL;
    }
    void *piece = arena->memory ? arena->memory + arena->bytes : NULL;
    arena->bytes = end;
    return piece;
}

void pkv_pool_lay_out(struct pkv_pool *pool, const struct pkv_pool_plan *plan,
                      struct pkv_arena *arena) {
    const struct pkv_pool_options *options = &plan->options;
    const bool is_indexed = options->index_mode != PKV_INDEX_OFF;
    struct pkv_queue *queue = &pool->queue;
    struct pkv_domains *domains = &pool->domains;
    (void)pkv_arena_take(arena, 1, sizeof(*pool));
    pool->blocks = pkv_arena_take(arena, options->num_blocks, sizeof(*pool->blocks));
    pool->tokens = pkv_arena_take(arena, is_indexed ? options->num_blocks : 0,
                                  plan->token_stride * (int64_t)sizeof(*pool->tokens));
    pool->index.slots = pkv_arena_take(arena, plan->index_slots, sizeof(*pool->index.slots));
    pool->audit_marks = pkv_arena_take(arena, options->num_blocks, sizeof(*pool->audit_marks));
    queue->log = pkv_arena_take(arena, options->num_blocks, sizeof(*queue->log));
    queue->tails = pkv_arena_take(arena, plan->num_buckets, sizeof(*queue->tails));
    for (int64_t level = 0, words = plan->num_buckets; level < PKV_QUEUE_LEVELS; level++) {
        words = words / 64 + 1;
        queue->levels[level] = pkv_arena_take(arena, words, sizeof(*queue->levels[level]));
    }
    pool->seqs = pkv_arena_take(arena, options->max_seqs, sizeof(*pool->seqs));
    pool->seq_groups = pkv_arena_take(arena, options->max_seqs,
                                      options->num_groups * (int64_t)sizeof(*pool->seq_groups));
    for (int64_t g = 0; g < options->num_groups; g++) {
        struct pkv_group *group = &pool->groups[g];
        const int64_t width = pkv_blocks_of((int32_t)options->max_tokens_per_seq,
                                            (int32_t)plan->groups[g].block_size);
        group->tables =
            pkv_arena_take(arena, options->max_seqs, width * (int64_t)sizeof(*group->tables));
        group->found = pkv_arena_take(arena, width, sizeof(*group->found));
    }
    domains->entries = pkv_arena_take(arena, options->max_domains, sizeof(*domains->entries));
    domains->bytes = pkv_arena_take(arena, options->max_domains, options->max_domain_bytes);
    domains->encoded = pkv_arena_take(arena, options->max_domain_bytes, 1);
    domains->root_keys = pkv_arena_take(arena, options->max_domains,
                                        options->num_groups * (int64_t)sizeof(*domains->root_keys));
    domains->buckets = pkv_arena_take(arena, plan->domain_buckets, sizeof(*domains->buckets));
}

static enum pkv_status check_range(const char *argument, int64_t value, int64_t least, int64_t most,
                                   struct pkv_blame blame) {
    if (value < least)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, argument, value, least,
                          "must be at least");
    if (value > most)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, argument, value, most,
                          "must be at most");
    return PKV_STATUS_OK;
}

static void fill_defaults(struct pkv_pool_options *options) {
    if (options->max_seqs == 0)
        options->max_seqs = 256;
    if (options->max_tokens_per_seq == 0)
        options->max_tokens_per_seq = 8192;
    if (options->num_priorities == 0)
        options->num_priorities = 1;
    if (options->max_domains == 0)
        options->max_domains = 2 * options->max_seqs;
    if (options->max_domain_bytes == 0)
        options->max_domain_bytes = 256;
}

static enum pkv_status read_groups(struct pkv_pool_plan *plan, struct pkv_blame blame) {
    struct pkv_pool_options *options = &plan->options;
    if (options->groups == NULL && options->num_groups > 0)
        return pkv_refuse_missing(blame, "options->groups");
    enum pkv_status status =
        check_range("options->num_groups", options->num_groups, 0, PKV_MAX_GROUPS, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if (options->num_groups > 0 && options->block_size != 0)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "options->block_size",
                          options->block_size, 0, "must be given for each group instead, and be");
    if (options->num_groups == 0)
        plan->groups[0] = (struct pkv_layer_group){.block_size = options->block_size};
    for (int64_t g = 0; g < options->num_groups; g++)
        plan->groups[g] = options->groups[g];
    if (options->num_groups == 0)
        options->num_groups = 1;
    options->groups = plan->groups;
    for (int64_t g = 0; status == PKV_STATUS_OK && g < options->num_groups; g++) {
        struct pkv_layer_group *group = &plan->groups[g];
        if (group->block_size == 0)
            group->block_size = 16;
        status = check_range("options->groups, block_size", group->block_size, 1,
                             PKV_MAX_BLOCK_SIZE, blame);
        if (status == PKV_STATUS_OK)
            status = check_range("options->groups, max_visible_tokens", group->max_visible_tokens,
                                 0, MAX_TOKENS, blame);
        if (group->block_size > plan->token_stride)
            plan->token_stride = group->block_size;
    }
    return status;
}

static int64_t power_of_two(int64_t least) {
    int64_t power = 1;
    while (power < least)
        power *= 2;
    return power;
}

static enum pkv_status check_options(struct pkv_pool_plan *plan, struct pkv_blame blame) {
    struct pkv_pool_options *options = &plan->options;
    const int64_t least_domains = options->max_seqs <= MAX_SEQS ? options->max_seqs + 1 : 1;
    const struct {
        const char *argument;
        int64_t value;
        int64_t least;
        int64_t most;
    } ranges[] = {
        {"options->num_blocks", options->num_blocks, 1, MAX_BLOCKS},
        {"options->max_seqs", options->max_seqs, 1, MAX_SEQS},
        {"options->max_tokens_per_seq", options->max_tokens_per_seq, 1, MAX_TOKENS},
        {"options->index_mode", options->index_mode, 0, PKV_INDEX_OFF},
        {"options->eviction", options->eviction, 0, PKV_EVICTION_LFU},
        {"options->num_priorities", options->num_priorities, 1, PKV_MAX_PRIORITIES},
        {"options->thread_safe", options->thread_safe, 0, 1},
        {"options->max_domains", options->max_domains, least_domains, MAX_BLOCKS},
        {"options->max_domain_bytes", options->max_domain_bytes, 1, INT32_MAX},
    };
    enum pkv_status status = PKV_STATUS_OK;
    for (size_t i = 0; status == PKV_STATUS_OK && i < sizeof(ranges) / sizeof(ranges[0]); i++)
        status = check_range(ranges[i].argument, ranges[i].value, ranges[i].least, ranges[i].most,
                             blame);
    if (status == PKV_STATUS_OK && options->num_groups > 1 &&
        options->index_mode == PKV_INDEX_PARTIAL_BLOCKS)
        return pkv_refuse(blame, PKV_STATUS_UNSUPPORTED, "options->index_mode", options->num_groups,
                          1, "must not index partial blocks of more groups than");
    return status;
}

enum pkv_status pkv_pool_plan(struct pkv_pool_plan *plan, const struct pkv_pool_options *options,
                              struct pkv_blame blame) {
    *plan = (struct pkv_pool_plan){0};
    if (options == NULL)
        return pkv_refuse_missing(blame, "options");
    enum pkv_status status = pkv_struct_read(&plan->options, sizeof(plan->options), options,
                                             blame.function, "options", blame.error);
    if (status == PKV_STATUS_OK)
        status = read_groups(plan, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if (plan->options.max_seqs >= 0 && plan->options.max_seqs <= MAX_SEQS)
        fill_defaults(&plan->options);
    status = check_options(plan, blame);
    if (status != PKV_STATUS_OK)
        return status;
    const bool is_indexed = plan->options.index_mode != PKV_INDEX_OFF;
    const int64_t num_ranks = plan->options.eviction == PKV_EVICTION_LFU ? PKV_QUEUE_MAX_USES : 1;
    plan->index_slots =
        is_indexed ? power_of_two(plan->options.num_blocks + plan->options.num_blocks / 2 + 1) : 1;
    plan->domain_buckets = power_of_two(plan->options.max_domains);
    plan->num_buckets = 1 + plan->options.num_priorities * num_ranks;
    struct pkv_pool scratch;
    struct pkv_arena arena = {0};
    pkv_pool_lay_out(&scratch, plan, &arena);
    if (arena.is_overflown)
        return pkv_refuse(blame, PKV_STATUS_OVERFLOW, "options", PKV_ERROR_NONE, PKV_ERROR_NONE,
                          "must not need more bytes than 63 bits can count");
    plan->bytes = arena.bytes;
    return PKV_STATUS_OK;
}
