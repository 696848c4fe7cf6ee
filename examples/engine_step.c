/* SPDX-License-Identifier: MIT
 *
 * One step of an engine that brings its own threads: one plan for all layers, indices checked once,
 * each layer divided between two pthreads with run_part. Then the same on the library's own
 * threads, which must give the same bytes. Keys and values are made up: no model is needed here.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pagedkv/pagedkv.h>

enum { NUM_LAYERS = 3, NUM_THREADS = 2, NUM_TOKENS = 48 };
enum { NUM_BLOCKS = 16, BLOCK_SIZE = 4, NUM_KV_HEADS = 2, HEAD_SIZE = 8 };

typedef float token_rows[NUM_TOKENS][NUM_KV_HEADS][HEAD_SIZE];
typedef float cache_rows[NUM_BLOCKS][BLOCK_SIZE][NUM_KV_HEADS][HEAD_SIZE];

/* Index 0 holds keys, index 1 values. */
static token_rows new_rows[NUM_LAYERS][2]; /* what a model computes */
static cache_rows caches[NUM_LAYERS][2];   /* written by two threads */
static cache_rows expected[2];             /* one layer, written by the library's threads */

/* What all threads share; nothing changes it during a step. */
static struct pkv_cache layers[NUM_LAYERS];
static struct pkv_scatter_plan *plan;
static struct pkv_step *step;
static pthread_barrier_t layer_written;

struct worker {
    struct pkv_context *context; /* its own: a context serves one thread at a time */
    int64_t part;
    pthread_t thread;
};

static void check(enum pkv_status status, const struct pkv_error *error) {
    if (status != PKV_STATUS_OK) {
        char text[256];
        pkv_error_text(error, text, sizeof text);
        fprintf(stderr, "engine_step: %s\n", text);
        exit(1);
    }
}

static struct pkv_cache describe(cache_rows *rows) {
    int64_t shape[] = {NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_SIZE};
    struct pkv_tensor key_cache = pkv_tensor_make(rows[0], PKV_DTYPE_F32, 4, shape);
    struct pkv_tensor value_cache = pkv_tensor_make(rows[1], PKV_DTYPE_F32, 4, shape);
    struct pkv_cache cache;
    struct pkv_error error = {0};
    check(pkv_cache_init(&cache, &key_cache, &value_cache, NULL, &error), &error);
    return cache;
}

static struct pkv_tensor rows_of(token_rows *rows) {
    return pkv_tensor_make(rows, PKV_DTYPE_F32, 3,
                           (int64_t[]){NUM_TOKENS, NUM_KV_HEADS, HEAD_SIZE});
}

static void *run_layers(void *argument) {
    struct worker *worker = argument;
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        struct pkv_tensor key = rows_of(&new_rows[layer][0]), value = rows_of(&new_rows[layer][1]);
        struct pkv_error error = {0};
        check(pkv_scatter_run_part(worker->context, plan, step, &layers[layer], &key, &value,
                                   worker->part, NUM_THREADS, &error),
              &error);
        /* The caller orders readers after writers: behind this, attention may read the layer. */
        pthread_barrier_wait(&layer_written);
    }
    return NULL;
}

int main(void) {
    float *numbers = &new_rows[0][0][0][0][0];
    for (size_t i = 0; i < sizeof new_rows / sizeof *numbers; i++) {
        numbers[i] = (float)i + 1.0f;
    }
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        layers[layer] = describe(caches[layer]);
    }
    int32_t slots[NUM_TOKENS]; /* every tenth is padding; the last repeats token 1's, and wins */
    for (int token = 0; token < NUM_TOKENS; token++) {
        slots[token] = token % 10 == 0 ? -1 : token * 7 % (NUM_BLOCKS * BLOCK_SIZE);
    }
    slots[NUM_TOKENS - 1] = slots[1];
    struct pkv_step_indices indices = {
        .slot_mapping = pkv_tensor_make(slots, PKV_DTYPE_I32, 1, (int64_t[]){NUM_TOKENS})};

    /* Once in an engine's life: a plan for every layer, and a step to be set again and again. */
    struct pkv_error error = {0};
    struct pkv_executor_pthread *pool;
    check(pkv_executor_pthread_create(&pool, NUM_THREADS, NULL, &error), &error);
    struct pkv_executor executor = pkv_executor_pthread_hook(pool);
    struct pkv_context_options options = {.executor = &executor};
    struct pkv_context *context;
    check(pkv_context_create(&context, &options, &error), &error);
    check(pkv_scatter_plan_create(&plan, context, &layers[0], NULL, &error), &error);
    check(pkv_step_create(&step, &(struct pkv_step_options){.max_tokens = NUM_TOKENS}, &error),
          &error);
    check(pkv_step_set(context, step, &layers[0], &indices, &error), &error);

    struct worker workers[NUM_THREADS];
    pthread_barrier_init(&layer_written, NULL, NUM_THREADS);
    for (int i = 0; i < NUM_THREADS; i++) {
        workers[i].part = i;
        check(pkv_context_create(&workers[i].context, NULL, &error), &error);
        if (pthread_create(&workers[i].thread, NULL, run_layers, &workers[i]) != 0) {
            return 1;
        }
    }
    for (int i = 0; i < NUM_THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        pkv_context_destroy(workers[i].context);
    }

    int num_equal = 0;
    struct pkv_cache whole = describe(expected);
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        struct pkv_tensor key = rows_of(&new_rows[layer][0]), value = rows_of(&new_rows[layer][1]);
        check(pkv_scatter_run(context, plan, step, &whole, &key, &value, &error), &error);
        num_equal += memcmp(caches[layer], expected, sizeof expected) == 0;
    }
    printf("%d of %d layers hold the bytes of the library's own threads\n", num_equal, NUM_LAYERS);

    pthread_barrier_destroy(&layer_written);
    pkv_step_destroy(step);
    pkv_scatter_plan_destroy(plan);
    pkv_context_destroy(context);
    pkv_executor_pthread_destroy(pool);
    return num_equal == NUM_LAYERS ? 0 : 1;
}
