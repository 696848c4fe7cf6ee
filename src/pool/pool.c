/* SPDX-License-Identifier: MIT
 *
 * Making and ending a pool, epochs, events and metrics.
 */
#include "pool/pool.h"

#include <string.h>

#include "base/allocator.h"
#include "base/os.h"
#include "pool/domains.h"
#include "pool/index.h"
#include "pool/pool_options.h"

enum { POOL_ALIGNMENT = 64 };

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int64_t common_multiple(int64_t a, int64_t b) {
    return a / common_divisor(a, b) * b;
}

/* A multiple beyond the longest sequence is as good as any: nothing is aligned to it. */
static void init_groups(struct pkv_pool *pool, const struct pkv_pool_plan *plan) {
    int32_t anchor = -1;
    int64_t align = 1;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        struct pkv_group *group = &pool->groups[g];
        group->block_size = (int32_t)plan->groups[g].block_size;
        group->window = (int32_t)plan->groups[g].max_visible_tokens;
        group->width = pkv_blocks_of(pool->max_tokens_per_seq, group->block_size);
        if (group->window == 0 && anchor < 0)
            anchor = g;
        if (align <= pool->max_tokens_per_seq)
            align = common_multiple(align, group->block_size);
    }
    pool->hit_align_tokens = align > INT32_MAX ? INT32_MAX : (int32_t)align;
    for (int32_t g = 0; g < pool->num_groups; g++) {
        struct pkv_group *group = &pool->groups[g];
        group->anchor = group->window == 0 ? -1 : anchor;
        group->align_blocks = 1;
        if (group->anchor >= 0)
            group->align_blocks =
                (int32_t)(common_multiple(group->block_size, pool->groups[anchor].block_size) /
                          group->block_size);
    }
}

/* Generations start at a number of the pool's own, so that another pool's handles are refused. */
static uint32_t first_generation(const struct pkv_pool *pool) {
    const uint64_t mixed =
        ((uint64_t)(uintptr_t)pool ^ pool->hash_seed) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mixed >> 34) + 1;
}

static void init_contents(struct pkv_pool *pool) {
    const uint32_t generation = first_generation(pool);
    memset(pool->blocks, 0, pool->num_blocks * sizeof(*pool->blocks));
    for (uint32_t i = 0; i < pool->num_blocks; i++)
        pool->blocks[i].generation = generation;
    pool->queue.blocks = pool->blocks;
    for (int64_t level = 0, words = pool->queue.num_buckets; level < PKV_QUEUE_LEVELS; level++) {
        words = words / 64 + 1;
        memset(pool->queue.levels[level], 0, (size_t)words * sizeof(uint64_t));
    }
    memset(pool->queue.tails, 0xff, pool->queue.num_buckets * sizeof(*pool->queue.tails));
    pkv_queue_fill(&pool->queue, pool->num_blocks);
    pkv_index_init(&pool->index);
    memset(pool->seqs, 0, (size_t)pool->max_seqs * sizeof(*pool->seqs));
    memset(pool->seq_groups, 0,
           (size_t)pool->max_seqs * (size_t)pool->num_groups * sizeof(*pool->seq_groups));
    for (int32_t i = 0; i < pool->max_seqs; i++) {
        pool->seqs[i].generation = generation;
        pool->seqs[i].next_free = i + 1 == pool->max_seqs ? PKV_NIL : (uint32_t)i + 1;
    }
    memset(pool->domains.entries, 0, pool->domains.capacity * sizeof(*pool->domains.entries));
    pkv_domains_init(pool);
    pool->epoch = 1;
    pool->next_serial = 1;
    pool->queue.first_serial = 1;
    pool->counts.num_free = pool->num_blocks;
}

static enum pkv_status init_mutex(struct pkv_pool *pool, struct pkv_blame blame) {
    pthread_mutexattr_t attributes;
    int failed = pthread_mutexattr_init(&attributes);
    if (failed == 0) {
        /* A batch step holds it across calls, and these take it again. */
        failed = pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
        if (failed == 0)
            failed = pthread_mutex_init(&pool->mutex, &attributes);
        (void)pthread_mutexattr_destroy(&attributes);
    }
    if (failed != 0)
        return pkv_refuse(blame, PKV_STATUS_SYSTEM, "pool", failed, PKV_ERROR_NONE,
                          "needs a mutex");
    return PKV_STATUS_OK;
}

static enum pkv_status init_pool(struct pkv_pool *pool, const struct pkv_pool_plan *plan,
                                 struct pkv_blame blame) {
    const struct pkv_pool_options *options = &plan->options;
    struct pkv_arena arena = {.memory = (unsigned char *)pool};
    memset(pool, 0, sizeof(*pool));
    pkv_pool_lay_out(pool, plan, &arena);
    pool->num_blocks = (uint32_t)options->num_blocks;
    pool->num_groups = (int32_t)options->num_groups;
    pool->index_mode = options->index_mode;
    pool->eviction = options->eviction;
    pool->token_stride = plan->token_stride;
    pool->max_seqs = (int32_t)options->max_seqs;
    pool->max_tokens_per_seq = (int32_t)options->max_tokens_per_seq;
    pool->num_priorities = options->num_priorities;
    pool->is_thread_safe = options->thread_safe;
    pool->event = options->event;
    pool->event_user = options->event_user;
    pool->hash_seed = options->hash_seed;
    while (pool->hash_seed == 0) {
        if (!pkv_os_random(&pool->hash_seed, sizeof(pool->hash_seed)))
            return pkv_refuse(blame, PKV_STATUS_SYSTEM, "options->hash_seed", PKV_ERROR_NONE,
                              PKV_ERROR_NONE, "must be given: the system has no random numbers");
    }
    if (pool->index_mode == PKV_INDEX_OFF)
        pool->tokens = NULL;
    pool->index.mask = (uint32_t)(plan->index_slots - 1);
    pool->queue.num_buckets = (uint32_t)plan->num_buckets;
    pool->queue.uses_per_class = pool->eviction == PKV_EVICTION_LFU ? PKV_QUEUE_MAX_USES : 1;
    pool->queue.keeps_used = pool->eviction == PKV_EVICTION_FIFO;
    pool->domains.capacity = (uint32_t)options->max_domains;
    pool->domains.max_bytes = (uint32_t)options->max_domain_bytes;
    pool->domains.mask = (uint32_t)(plan->domain_buckets - 1);
    init_groups(pool, plan);
    if (pool->is_thread_safe) {
        const enum pkv_status status = init_mutex(pool, blame);
        if (status != PKV_STATUS_OK)
            return status;
    }
    init_contents(pool);
    return PKV_STATUS_OK;
}

size_t pkv_pool_memory_size(const struct pkv_pool_options *options) {
    struct pkv_pool_plan plan;
    return pkv_pool_plan(&plan, options, (struct pkv_blame){__func__, NULL}) == PKV_STATUS_OK
               ? (size_t)plan.bytes
               : 0;
}

enum pkv_status pkv_pool_create(struct pkv_pool **pool, const struct pkv_pool_options *options,
                                struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_pool_plan plan;
    if (pool == NULL)
        return pkv_refuse_missing(blame, "pool");
    *pool = NULL;
    enum pkv_status status = pkv_pool_plan(&plan, options, blame);
    if (status != PKV_STATUS_OK)
        return status;
    const struct pkv_allocator allocator = pkv_allocator_resolve(plan.options.allocator);
    if (allocator.alloc == NULL)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "options->allocator", PKV_ERROR_NONE,
                          PKV_ERROR_NONE, "must have both alloc and free, or neither");
    struct pkv_pool *made = pkv_alloc(&allocator, (size_t)plan.bytes, POOL_ALIGNMENT);
    if (made == NULL)
        return pkv_refuse(blame, PKV_STATUS_OUT_OF_MEMORY, NULL, PKV_ERROR_NONE, plan.bytes,
                          "the allocator has no memory of that many bytes");
    status = init_pool(made, &plan, blame);
    if (status != PKV_STATUS_OK) {
        pkv_free(&allocator, made);
        return status;
    }
    made->allocator = allocator;
    made->owns_memory = true;
    *pool = made;
    return PKV_STATUS_OK;
}

enum pkv_status pkv_pool_create_in(struct pkv_pool **pool, void *memory, size_t memory_bytes,
                                   const struct pkv_pool_options *options,
                                   struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_pool_plan plan;
    if (pool)
        *pool = NULL;
    if (pool == NULL || memory == NULL)
        return pkv_refuse_missing(blame, pool == NULL ? "pool" : "memory");
    enum pkv_status status = pkv_pool_plan(&plan, options, blame);
    if (status != PKV_STATUS_OK)
        return status;
    if ((uintptr_t)memory % POOL_ALIGNMENT != 0)
        return pkv_refuse(blame, PKV_STATUS_MISALIGNED, "memory", PKV_ERROR_NONE, POOL_ALIGNMENT,
                          "must be aligned to that many bytes");
    if (memory_bytes < (size_t)plan.bytes)
        return pkv_refuse(blame, PKV_STATUS_CAPACITY, "memory_bytes", (int64_t)memory_bytes,
                          plan.bytes, "must be at least pkv_pool_memory_size");
    status = init_pool(memory, &plan, blame);
    if (status == PKV_STATUS_OK)
        *pool = memory;
    return status;
}

void pkv_pool_destroy(struct pkv_pool *pool) {
    if (pool == NULL)
        return;
    if (pool->is_thread_safe)
        (void)pthread_mutex_destroy(&pool->mutex);
    if (!pool->owns_memory)
        return;
    const struct pkv_allocator allocator = pool->allocator;
    pkv_free(&allocator, pool);
}

uint64_t pkv_pool_hash_seed(const struct pkv_pool *pool) {
    return pool ? pool->hash_seed : 0;
}

void pkv_pool_emit(struct pkv_pool *pool, struct pkv_pool_event event) {
    const int32_t state = pool->state;
    if (pool->event == NULL)
        return;
    event.sequence_number = (uint64_t)pool->num_events++;
    pool->state = PKV_POOL_CALLBACK;
    pool->event(pool->event_user, &event);
    pool->state = state;
}

enum pkv_status pkv_pool_invalidate(struct pkv_pool *pool, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (pool == NULL)
        return pkv_refuse_missing(blame, "pool");
    pkv_pool_lock(pool);
    const enum pkv_status status = pkv_pool_may_change(pool, blame);
    if (status == PKV_STATUS_OK) {
        pkv_queue_forget_buckets(&pool->queue);
        pool->queue.first_serial = pool->next_serial;
        pool->epoch++;
        pool->counts.num_free += pool->counts.num_cached;
        pool->counts.num_cached = 0;
        pkv_pool_emit(pool,
                      (struct pkv_pool_event){.type = PKV_POOL_EVENT_CLEARED, .block_id = -1});
    }
    pkv_pool_unlock(pool);
    return status;
}

/* Slots behind the tables, and those of them without a token. */
static void count_slots(const struct pkv_pool *pool, struct pkv_pool_metrics *metrics) {
    for (uint32_t seq = 0; seq < (uint32_t)pool->max_seqs; seq++) {
        if (!pool->seqs[seq].is_live)
            continue;
        for (int32_t g = 0; g < pool->num_groups; g++) {
            const struct pkv_seq_group *part = pkv_seq_part(pool, seq, g);
            const int64_t block_size = pool->groups[g].block_size;
            metrics->num_table_slots += (part->num_blocks - part->first_block) * block_size;
            metrics->num_waste_tokens += part->num_blocks * block_size - pool->seqs[seq].num_tokens;
        }
    }
}

enum pkv_status pkv_pool_metrics_get(struct pkv_pool *pool, struct pkv_pool_metrics *metrics,
                                     struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (pool == NULL || metrics == NULL)
        return pkv_refuse_missing(blame, pool == NULL ? "pool" : "metrics");
    pkv_pool_lock(pool);
    const struct pkv_pool_counts *counts = &pool->counts;
    struct pkv_pool_metrics facts = {.struct_size = sizeof(facts),
                                     .num_blocks = pool->num_blocks,
                                     .num_free_blocks = counts->num_free,
                                     .num_cached_blocks = counts->num_cached,
                                     .num_used_blocks =
                                         pool->num_blocks - counts->num_free - counts->num_cached,
                                     .num_seqs = counts->num_seqs,
                                     .num_matches = counts->num_matches,
                                     .num_hit_tokens = counts->num_hit_tokens,
                                     .num_miss_tokens = counts->num_miss_tokens,
                                     .num_hit_blocks = counts->num_hit_blocks,
                                     .num_miss_blocks = counts->num_miss_blocks,
                                     .num_allocated_blocks = counts->num_allocated_blocks,
                                     .num_evicted_blocks = counts->num_evicted_blocks,
                                     .num_stored_blocks = counts->num_stored_blocks,
                                     .num_removed_blocks = counts->num_removed_blocks,
                                     .num_copied_blocks = counts->num_copied_blocks,
                                     .num_out_of_blocks = pool->num_out_of_blocks,
                                     .num_commits = pool->num_commits,
                                     .num_rollbacks = pool->num_rollbacks,
                                     .num_events = pool->num_events};
    count_slots(pool, &facts);
    pkv_pool_unlock(pool);
    return pkv_struct_write(metrics, &facts, sizeof(facts), __func__, "metrics", error);
}
