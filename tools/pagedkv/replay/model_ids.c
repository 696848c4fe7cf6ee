/* SPDX-License-Identifier: MIT
 *
 * The model "ids": a plain cache over block ids, with LRU, FIFO or LFU. It knows nothing of the
 * library's pool, so that the two can be held against each other.
 *
 * One list holds the ids in the cache from the next victim to the safest, for all three policies.
 * LRU moves an id to the end when it is used, FIFO leaves it where it is. LFU keeps the list in
 * order of counts, those of equal count in order of use, and remembers the last id of each count:
 * an id whose count rises goes behind the last one of its new count.
 */
#include "replay/model.h"

#include <stdlib.h>

#include "cli.h"

enum { NONE = -1 };

struct node {
    int32_t previous; /* nearer to being evicted */
    int32_t next;
    int32_t count; /* uses since it came in; 0: not in the cache */
};

struct cache {
    struct node *nodes; /* [num_ids] */
    int32_t *last;      /* [num_blocks + 2], of each count, or NONE */
    int32_t head;
    int32_t tail;
    int64_t size;
    int64_t capacity;
    int32_t eviction;
};

static void unlink_node(struct cache *cache, int32_t id) {
    struct node *node = &cache->nodes[id];
    if (node->previous == NONE)
        cache->head = node->next;
    else
        cache->nodes[node->previous].next = node->next;
    if (node->next == NONE)
        cache->tail = node->previous;
    else
        cache->nodes[node->next].previous = node->previous;
}

/* after NONE: at the head. */
static void link_node(struct cache *cache, int32_t id, int32_t after) {
    struct node *node = &cache->nodes[id];
    node->previous = after;
    node->next = after == NONE ? cache->head : cache->nodes[after].next;
    if (after == NONE)
        cache->head = id;
    else
        cache->nodes[after].next = id;
    if (node->next == NONE)
        cache->tail = id;
    else
        cache->nodes[node->next].previous = id;
}

/* It leaves the ids of its count. */
static void forget_last(struct cache *cache, int32_t id) {
    const struct node *node = &cache->nodes[id];
    if (cache->last[node->count] != id)
        return;
    const int32_t previous = node->previous;
    cache->last[node->count] =
        previous != NONE && cache->nodes[previous].count == node->count ? previous : NONE;
}

static void use_lfu(struct cache *cache, int32_t id) {
    struct node *node = &cache->nodes[id];
    const int32_t place = node->previous;
    forget_last(cache, id);
    unlink_node(cache, id);
    /* Where the ids of its new count end; else those of its old one; else where it was. */
    int32_t after = cache->last[node->count + 1];
    if (after == NONE)
        after = cache->last[node->count];
    if (after == NONE)
        after = place;
    node->count++;
    link_node(cache, id, after);
    cache->last[node->count] = id;
}

static void insert(struct cache *cache, int32_t id) {
    struct node *node = &cache->nodes[id];
    node->count = 1;
    link_node(cache, id, cache->eviction == PKV_EVICTION_LFU ? cache->last[1] : cache->tail);
    cache->last[1] = id;
    cache->size++;
}

static void evict(struct cache *cache) {
    const int32_t victim = cache->head;
    forget_last(cache, victim);
    unlink_node(cache, victim);
    cache->nodes[victim].count = 0;
    cache->size--;
}

/* Returns whether the id was there, and counts an eviction. */
static bool access_id(struct cache *cache, int32_t id, int64_t *num_evictions) {
    if (cache->nodes[id].count > 0) {
        if (cache->eviction == PKV_EVICTION_LFU) {
            use_lfu(cache, id);
        } else if (cache->eviction == PKV_EVICTION_LRU && cache->tail != id) {
            unlink_node(cache, id);
            link_node(cache, id, cache->tail);
        }
        return true;
    }
    if (cache->size == cache->capacity) {
        evict(cache);
        (*num_evictions)++;
    }
    insert(cache, id);
    return false;
}

static void replay_requests(struct cache *cache, const struct trace *trace,
                            const struct replay_run *run, struct replay_result *result) {
    for (int64_t r = 0; r < trace->num_requests; r++) {
        const struct trace_request *request = &trace->requests[r];
        const int32_t *ids = trace->ids + request->first_block;
        int64_t num_hits = 0;
        for (int64_t i = 0; i < request->num_blocks; i++) {
            if (!access_id(cache, ids[i], &result->num_evictions))
                continue;
            num_hits++;
            result->num_hit_tokens += i < request->num_blocks - 1
                                          ? trace->block_size
                                          : request->input_length - i * trace->block_size;
        }
        result->num_operations += request->num_blocks;
        result->num_hit_blocks += num_hits;
        if (cache->size > result->peak_blocks)
            result->peak_blocks = cache->size;
        replay_count(trace, run, request, 0, result);
        replay_progress_add(run->progress);
    }
}

int replay_ids(const struct trace *trace, const struct replay_run *run,
               struct replay_result *result) {
    struct cache cache = {
        .nodes = calloc((size_t)trace->num_ids + 1, sizeof(*cache.nodes)),
        .last = malloc((size_t)(trace->num_blocks + 2) * sizeof(*cache.last)),
        .head = NONE,
        .tail = NONE,
        .capacity = run->capacity > 0 ? run->capacity : INT64_MAX,
        .eviction = run->eviction,
    };
    *result = (struct replay_result){0};
    int status = CLI_CONTINUE;
    if (cache.nodes == NULL || cache.last == NULL) {
        status = cli_error("replay", "no memory for a cache of this trace; use --limit");
    } else {
        const double begin = replay_now();
        for (int64_t i = 0; i < trace->num_blocks + 2; i++)
            cache.last[i] = NONE;
        replay_requests(&cache, trace, run, result);
        result->seconds = replay_now() - begin;
    }
    free(cache.nodes);
    free(cache.last);
    return status;
}
