/* SPDX-License-Identifier: MIT
 *
 * Several threads, each with a context of its own, write disjoint slots of one cache at the same
 * time and read them back, by one-shot calls, by a shared plan, and as parts of one step. Nothing
 * may be lost, and under ThreadSanitizer nothing may race.
 */
#include <pagedkv/pagedkv.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"

enum {
    NUM_THREADS = 4,
    NUM_BLOCKS = 64,
    BLOCK_SIZE = 16,
    NUM_HEADS = 2,
    HEAD_SIZE = 32,
    ROW = NUM_HEADS * HEAD_SIZE,
    NUM_SLOTS = NUM_BLOCKS * BLOCK_SIZE,
    NUM_TOKENS = NUM_SLOTS / NUM_THREADS,
    NUM_ROUNDS = 60
};

/* What all threads share. */
struct shared {
    struct pkv_tensor key_cache;
    struct pkv_tensor value_cache;
    struct pkv_cache cache;
    struct pkv_scatter_plan *scatter;
    struct pkv_gather_plan *gather;
    struct pkv_step *step; /* of the test of parts */
    struct pkv_tensor key; /* likewise */
    struct pkv_tensor value;
    int64_t blocks[NUM_BLOCKS]; /* a permutation; thread i owns a quarter of it */
    pthread_barrier_t barrier;
};

struct worker {
    struct shared *shared;
    struct pkv_context *context;
    int64_t number;
    int64_t slots[NUM_TOKENS];
    uint16_t key[NUM_TOKENS * ROW];
    uint16_t value[NUM_TOKENS * ROW];
    uint16_t key_back[NUM_TOKENS * ROW];
    uint16_t value_back[NUM_TOKENS * ROW];
};

static void require(int32_t status, const struct pkv_error *error) {
    char text[256];
    if (status != PKV_STATUS_OK) {
        (void)pkv_error_text(error, text, sizeof(text));
        fprintf(stderr, "refused: %s\n", text);
        exit(1);
    }
}

static struct pkv_tensor vector(int64_t *data, int64_t count) {
    return pkv_tensor_make(data, PKV_DTYPE_I64, 1, &count);
}

static struct pkv_tensor rows(uint16_t *data, int64_t count) {
    return pkv_tensor_make(data, PKV_DTYPE_BF16, 3, (int64_t[]){count, NUM_HEADS, HEAD_SIZE});
}

static int64_t *own_blocks(struct worker *worker) {
    return worker->shared->blocks + worker->number * (NUM_BLOCKS / NUM_THREADS);
}

static void write_once(struct worker *worker, struct pkv_step *step, int planned) {
    struct shared *shared = worker->shared;
    struct pkv_error error = {.struct_size = sizeof(error)};
    const struct pkv_tensor mapping = vector(worker->slots, NUM_TOKENS);
    const struct pkv_tensor key = rows(worker->key, NUM_TOKENS);
    const struct pkv_tensor value = rows(worker->value, NUM_TOKENS);
    const struct pkv_step_indices indices = {.slot_mapping = mapping};
    if (!planned) {
        const struct pkv_scatter_pa_kv_cache_options options = {.key_layout = PKV_LAYOUT_HND};
        require(pkv_scatter_pa_kv_cache(worker->context, &key, &shared->key_cache, &mapping, &value,
                                        &shared->value_cache, &options, &error),
                &error);
        return;
    }
    require(pkv_step_set(worker->context, step, &shared->cache, &indices, &error), &error);
    require(pkv_scatter_run(worker->context, shared->scatter, step, &shared->cache, &key, &value,
                            &error),
            &error);
}

/* The own blocks, as one sequence. */
static void read_once(struct worker *worker, struct pkv_step *step) {
    struct shared *shared = worker->shared;
    struct pkv_error error = {.struct_size = sizeof(error)};
    int64_t length = NUM_TOKENS;
    const struct pkv_tensor key = rows(worker->key_back, NUM_TOKENS);
    const struct pkv_tensor value = rows(worker->value_back, NUM_TOKENS);
    const struct pkv_step_indices indices = {
        .block_table = pkv_tensor_make(own_blocks(worker), PKV_DTYPE_I64, 2,
                                       (int64_t[]){1, NUM_BLOCKS / NUM_THREADS}),
        .seq_lens = vector(&length, 1)};
    require(pkv_step_set(worker->context, step, &shared->cache, &indices, &error), &error);
    require(
        pkv_gather_run(worker->context, shared->gather, step, &shared->cache, &key, &value, &error),
        &error);
}

/* Row t of the sequence is the token whose slot it is. */
static void compare(const struct worker *worker, const int64_t *blocks) {
    for (int64_t t = 0; t < NUM_TOKENS; t++) {
        const int64_t slot = worker->slots[t];
        int64_t row = -1;
        for (int64_t i = 0; i < NUM_BLOCKS / NUM_THREADS; i++) {
            if (blocks[i] == slot / BLOCK_SIZE)
                row = i * BLOCK_SIZE + slot % BLOCK_SIZE;
        }
        if (row < 0 || memcmp(worker->key + t * ROW, worker->key_back + row * ROW, ROW * 2) != 0 ||
            memcmp(worker->value + t * ROW, worker->value_back + row * ROW, ROW * 2) != 0) {
            fprintf(stderr, "thread %" PRId64 " lost slot %" PRId64 "\n", worker->number, slot);
            exit(1);
        }
    }
}

static void *write_and_read(void *arg) {
    struct worker *worker = arg;
    struct pkv_error error = {.struct_size = sizeof(error)};
    const struct pkv_step_options options = {.max_tokens = NUM_TOKENS, .max_seqs = 1};
    struct test_rng rng = test_rng_make((uint64_t)worker->number + 100);
    struct pkv_step *step = NULL;
    require(pkv_step_create(&step, &options, &error), &error);
    for (int round = 0; round < NUM_ROUNDS; round++) {
        int64_t order[NUM_TOKENS];
        test_rng_permutation(&rng, order, NUM_TOKENS);
        for (int64_t t = 0; t < NUM_TOKENS; t++)
            worker->slots[t] =
                own_blocks(worker)[order[t] / BLOCK_SIZE] * BLOCK_SIZE + order[t] % BLOCK_SIZE;
        test_rng_fill(&rng, worker->key, sizeof(worker->key));
        test_rng_fill(&rng, worker->value, sizeof(worker->value));
        (void)pthread_barrier_wait(&worker->shared->barrier);
        write_once(worker, step, round & 1);
        read_once(worker, step);
        compare(worker, own_blocks(worker));
    }
    pkv_step_destroy(step);
    return NULL;
}

/* All threads together do one run: each takes the part of its number. */
static void *run_own_part(void *arg) {
    struct worker *worker = arg;
    struct shared *shared = worker->shared;
    struct pkv_error error = {.struct_size = sizeof(error)};
    (void)pthread_barrier_wait(&shared->barrier);
    require(pkv_scatter_run_part(worker->context, shared->scatter, shared->step, &shared->cache,
                                 &shared->key, &shared->value, worker->number, NUM_THREADS, &error),
            &error);
    return NULL;
}

static void run_threads(struct worker *workers, void *(*fn)(void *)) {
    pthread_t threads[NUM_THREADS];
    for (int64_t i = 0; i < NUM_THREADS; i++) {
        if (pthread_create(&threads[i], NULL, fn, &workers[i]) != 0) {
            fprintf(stderr, "a thread cannot be made\n");
            exit(1);
        }
    }
    for (int64_t i = 0; i < NUM_THREADS; i++)
        (void)pthread_join(threads[i], NULL);
}

/* Many equal slots: the last token must win, whichever thread writes it. */
static void run_parts(struct shared *shared, struct worker *workers) {
    enum { COUNT = 2000, HOT_SLOTS = 300 };
    struct pkv_error error = {.struct_size = sizeof(error)};
    static int64_t slots[COUNT];
    static uint16_t key[COUNT * ROW], value[COUNT * ROW];
    const struct pkv_step_indices indices = {.slot_mapping = vector(slots, COUNT)};
    struct test_rng rng = test_rng_make(7);
    require(pkv_step_create(&shared->step, NULL, &error), &error);
    shared->key = rows(key, COUNT);
    shared->value = rows(value, COUNT);
    for (int round = 0; round < NUM_ROUNDS / 2; round++) {
        int64_t last[HOT_SLOTS];
        memset(last, 0xff, sizeof(last));
        test_rng_fill(&rng, key, sizeof(key));
        test_rng_fill(&rng, value, sizeof(value));
        for (int64_t t = 0; t < COUNT; t++) {
            slots[t] = test_rng_below(&rng, HOT_SLOTS);
            last[slots[t]] = t;
        }
        require(pkv_step_set(workers[0].context, shared->step, &shared->cache, &indices, &error),
                &error);
        run_threads(workers, run_own_part);
        for (int64_t j = 0; j < HOT_SLOTS * ROW; j++) {
            const int64_t slot = j / ROW, head = j % ROW / HEAD_SIZE, d = j % HEAD_SIZE;
            const int64_t block = slot / BLOCK_SIZE, offset = slot % BLOCK_SIZE;
            const uint16_t *keys = shared->key_cache.data, *values = shared->value_cache.data;
            if (last[slot] >= 0 &&
                (keys[((block * NUM_HEADS + head) * BLOCK_SIZE + offset) * HEAD_SIZE + d] !=
                     key[last[slot] * ROW + j % ROW] ||
                 values[slot * ROW + j % ROW] != value[last[slot] * ROW + j % ROW])) {
                fprintf(stderr, "slot %" PRId64 " does not hold its last token\n", slot);
                exit(1);
            }
        }
    }
    pkv_step_destroy(shared->step);
}

int main(void) {
    static uint16_t keys[NUM_SLOTS * ROW], values[NUM_SLOTS * ROW];
    static struct worker workers[NUM_THREADS];
    const struct pkv_cache_options options = {.key_layout = PKV_LAYOUT_HND};
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct test_rng rng = test_rng_make(test_seed(1));
    struct shared shared = {
        .key_cache = pkv_tensor_make(keys, PKV_DTYPE_BF16, 4,
                                     (int64_t[]){NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, HEAD_SIZE}),
        .value_cache = pkv_tensor_make(values, PKV_DTYPE_BF16, 4,
                                       (int64_t[]){NUM_BLOCKS, BLOCK_SIZE, NUM_HEADS, HEAD_SIZE})};

    test_rng_permutation(&rng, shared.blocks, NUM_BLOCKS);
    if (pthread_barrier_init(&shared.barrier, NULL, NUM_THREADS) != 0)
        return 1;
    require(pkv_cache_init(&shared.cache, &shared.key_cache, &shared.value_cache, &options, &error),
            &error);
    for (int64_t i = 0; i < NUM_THREADS; i++) {
        workers[i].shared = &shared;
        workers[i].number = i;
        require(pkv_context_create(&workers[i].context, NULL, &error), &error);
    }
    require(
        pkv_scatter_plan_create(&shared.scatter, workers[0].context, &shared.cache, NULL, &error),
        &error);
    require(pkv_gather_plan_create(&shared.gather, workers[0].context, &shared.cache, &error),
            &error);
    run_threads(workers, write_and_read);
    run_parts(&shared, workers);
    pkv_scatter_plan_destroy(shared.scatter);
    pkv_gather_plan_destroy(shared.gather);
    for (int64_t i = 0; i < NUM_THREADS; i++)
        pkv_context_destroy(workers[i].context);
    (void)pthread_barrier_destroy(&shared.barrier);
    printf("%d threads, %d rounds: nothing lost\n", NUM_THREADS, NUM_ROUNDS);
    return 0;
}
