/* SPDX-License-Identifier: MIT
 *
 * A thread_safe pool under several threads at once: sequences, batch steps, raw blocks, lookups,
 * epochs. Nothing may race, nobody may see another's blocks in his table, and the auditor passes
 * during and after it.
 */
#include <pagedkv/pagedkv.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "rng.h"

enum {
    NUM_THREADS = 4,
    NUM_ROUNDS = 1500,
    NUM_BLOCKS = 96,
    BLOCK_SIZE = 4,
    MAX_TOKENS = 32,
    SHARED_TOKENS = 16
};

static struct pkv_pool *pool;
static _Atomic int64_t num_hit_tokens, num_commits, num_rollbacks;
static _Atomic uint64_t next_event;

struct worker {
    pthread_t thread;
    int32_t number;
    struct pkv_batch *batch;
    struct test_rng rng;
};

static void require(int condition, const char *text, int line) {
    if (!condition) {
        fprintf(stderr, "test_pool_threads.c:%d: %s\n", line, text);
        exit(1);
    }
}

#define REQUIRE(condition) require((condition), #condition, __LINE__)

/* Called under the pool's lock: numbers come in order, without a gap. */
static void listen(void *user, const struct pkv_pool_event *event) {
    (void)user;
    REQUIRE(event->sequence_number == atomic_fetch_add(&next_event, 1));
}

/* The first half is one of two texts, the rest the thread's own. */
static int64_t make_prompt(struct worker *worker, int32_t *tokens) {
    const int32_t text = (int32_t)test_rng_below(&worker->rng, 2);
    const int64_t num_tokens = test_rng_between(&worker->rng, 1, MAX_TOKENS - 1);
    for (int32_t i = 0; i < num_tokens; i++)
        tokens[i] = i < SHARED_TOKENS ? text * 100 + i : 1000 * (worker->number + 1) + i;
    return num_tokens;
}

static void run_step(struct worker *worker, struct pkv_seq seq, const int32_t *tokens,
                     int64_t num_tokens) {
    int64_t hit = 0;
    REQUIRE(pkv_batch_begin(worker->batch, NULL) == PKV_STATUS_OK);
    REQUIRE(pkv_batch_match(worker->batch, seq, tokens, num_tokens - 1, &hit, NULL) ==
            PKV_STATUS_OK);
    const enum pkv_status status =
        pkv_batch_append(worker->batch, seq, tokens + hit, num_tokens - hit, NULL);
    if (status == PKV_STATUS_OUT_OF_BLOCKS)
        return;
    REQUIRE(status == PKV_STATUS_OK);
    if (test_rng_below(&worker->rng, 4) == 0) {
        REQUIRE(pkv_batch_rollback(worker->batch, NULL) == PKV_STATUS_OK);
        atomic_fetch_add(&num_rollbacks, 1);
        return;
    }
    REQUIRE(pkv_batch_commit(worker->batch, NULL) == PKV_STATUS_OK);
    struct pkv_batch_tensors tensors = {0};
    REQUIRE(pkv_batch_tensors_get(worker->batch, 0, &tensors, NULL) == PKV_STATUS_OK);
    REQUIRE(tensors.indices.slot_mapping.shape[0] == num_tokens - hit);
    REQUIRE(pkv_batch_mark_computed(worker->batch, NULL) == PKV_STATUS_OK);
    atomic_fetch_add(&num_hit_tokens, hit);
    atomic_fetch_add(&num_commits, 1);
}

static void run_sequence(struct worker *worker) {
    int32_t tokens[MAX_TOKENS];
    struct pkv_seq seq, child;
    struct pkv_block_copy copies[1];
    const int64_t num_tokens = make_prompt(worker, tokens);
    REQUIRE(pkv_seq_create(pool, &seq, NULL, NULL) == PKV_STATUS_OK);
    run_step(worker, seq, tokens, num_tokens);
    if (pkv_seq_fork(pool, seq, &child, NULL) == PKV_STATUS_OK) {
        const enum pkv_status status =
            pkv_seq_append(pool, child, &worker->number, 1, copies, NULL);
        REQUIRE(status == PKV_STATUS_OK || status == PKV_STATUS_OUT_OF_BLOCKS);
        REQUIRE(pkv_seq_free(pool, child, NULL) == PKV_STATUS_OK);
    }
    REQUIRE(pkv_seq_free(pool, seq, NULL) == PKV_STATUS_OK);
    REQUIRE(pkv_seq_free(pool, seq, NULL) == PKV_STATUS_STALE_HANDLE);
}

static void run_others(struct worker *worker) {
    int32_t tokens[MAX_TOKENS];
    struct pkv_block blocks[3];
    int64_t hit;
    const int64_t num_tokens = make_prompt(worker, tokens);
    REQUIRE(pkv_prefix_lookup(pool, NULL, tokens, num_tokens, &hit, NULL) == PKV_STATUS_OK);
    if (pkv_block_allocate(pool, 3, blocks, NULL) == PKV_STATUS_OK)
        REQUIRE(pkv_block_release(pool, 3, blocks, NULL) == PKV_STATUS_OK);
    if (test_rng_below(&worker->rng, 64) == 0)
        REQUIRE(pkv_pool_invalidate(pool, NULL) == PKV_STATUS_OK);
    if (test_rng_below(&worker->rng, 16) == 0)
        REQUIRE(pkv_pool_audit(pool, NULL, NULL) == PKV_STATUS_OK);
}

static void *run_worker(void *argument) {
    struct worker *worker = argument;
    for (int round = 0; round < NUM_ROUNDS; round++) {
        run_sequence(worker);
        run_others(worker);
    }
    return NULL;
}

int main(void) {
    const struct pkv_pool_options options = {.num_blocks = NUM_BLOCKS,
                                             .block_size = BLOCK_SIZE,
                                             .max_seqs = 2 * NUM_THREADS,
                                             .max_tokens_per_seq = MAX_TOKENS + 1,
                                             .thread_safe = 1,
                                             .event = listen};
    struct worker workers[NUM_THREADS];
    struct pkv_pool_metrics metrics = {0};
    const uint64_t seed = test_seed(20260703);

    REQUIRE(pkv_pool_create(&pool, &options, NULL) == PKV_STATUS_OK);
    for (int i = 0; i < NUM_THREADS; i++) {
        workers[i].number = i;
        workers[i].rng = test_rng_make(seed + (uint64_t)i);
        REQUIRE(pkv_batch_create(&workers[i].batch, pool, NULL, NULL) == PKV_STATUS_OK);
    }
    for (int i = 0; i < NUM_THREADS; i++)
        REQUIRE(pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0);
    for (int i = 0; i < NUM_THREADS; i++)
        REQUIRE(pthread_join(workers[i].thread, NULL) == 0);

    REQUIRE(pkv_pool_audit(pool, NULL, NULL) == PKV_STATUS_OK);
    REQUIRE(pkv_pool_metrics_get(pool, &metrics, NULL) == PKV_STATUS_OK);
    REQUIRE(metrics.num_used_blocks == 0 && metrics.num_seqs == 0);
    REQUIRE(metrics.num_commits == num_commits && metrics.num_rollbacks >= num_rollbacks);
    REQUIRE(num_hit_tokens > NUM_ROUNDS && num_rollbacks > 0);
    printf("%lld steps committed, %lld tokens found, %lld rolled back, %lld events\n",
           (long long)num_commits, (long long)num_hit_tokens, (long long)metrics.num_rollbacks,
           (long long)metrics.num_events);
    for (int i = 0; i < NUM_THREADS; i++)
        pkv_batch_destroy(workers[i].batch);
    pkv_pool_destroy(pool);
    return 0;
}
