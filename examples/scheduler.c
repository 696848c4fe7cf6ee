/* SPDX-License-Identifier: MIT
 *
 * A small continuous-batching loop: eight requests with a common beginning, and a pool too small
 * for all. A step takes every running request and a waiting one; when blocks run out the latest
 * arrival is given up, and resumed later through the prefix index. The model is made up: the key of
 * a token is its number, and reading a sequence back must give its tokens.
 */
#include <pagedkv/pagedkv.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUM_REQUESTS = 8, PROMPT = 10, LENGTH = 30, NUM_BLOCKS = 24, BLOCK_SIZE = 4 };

static struct request {
    struct pkv_seq seq;
    enum { WAITING, RUNNING, DONE } state;
    int32_t tokens[LENGTH];
    int64_t num_tokens; /* prompt and generated */
    int64_t num_cached; /* of them written, or found written */
} requests[NUM_REQUESTS], *batch_rows[NUM_REQUESTS];
static float keys[NUM_BLOCKS][BLOCK_SIZE];
static struct pkv_tensor key_cache; /* [num_blocks, block_size, 1 head, head_size 1] */
static struct pkv_context *context;
static struct pkv_pool *pool;
static struct pkv_batch *batch;
static struct pkv_error error;

static void check(int status) {
    char text[256];
    if (status == PKV_STATUS_OK)
        return;
    pkv_error_text(&error, text, sizeof text);
    fprintf(stderr, "scheduler: %s\n", text);
    exit(1);
}

/* Reserves for all that run and the first max_waiting that wait: all rows, or 0 and no change. */
static int reserve(int max_waiting) {
    int num_rows = 0;
    check(pkv_batch_begin(batch, &error));
    for (struct request *r = requests; r < requests + NUM_REQUESTS; r++) {
        if (r->state == DONE || (r->state == WAITING && max_waiting-- <= 0))
            continue;
        if (r->state == WAITING) /* leaves at least one token to compute */
            check(pkv_batch_match(batch, r->seq, r->tokens, r->num_tokens - 1, &r->num_cached,
                                  &error));
        int status = pkv_batch_append(batch, r->seq, r->tokens + r->num_cached,
                                      r->num_tokens - r->num_cached, &error);
        if (status == PKV_STATUS_OUT_OF_BLOCKS) /* an everyday answer: the step is rolled back */
            return 0;
        check(status);
        batch_rows[num_rows++] = r;
    }
    check(pkv_batch_commit(batch, &error));
    return num_rows;
}

/* Writes the keys of the new tokens, and reads every sequence back. */
static void run_model(int num_rows) {
    float new_keys[NUM_REQUESTS * LENGTH], all_keys[NUM_REQUESTS * LENGTH];
    struct pkv_gather_pa_kv_cache_options plain = {.seq_lens_are_plain = 1};
    struct pkv_batch_tensors step = {0};
    int64_t num_new = 0, num_all = 0;
    for (int i = 0; i < num_rows; num_all += batch_rows[i++]->num_tokens)
        for (int64_t t = batch_rows[i]->num_cached; t < batch_rows[i]->num_tokens; t++)
            new_keys[num_new++] = (float)batch_rows[i]->tokens[t];
    struct pkv_tensor new = pkv_tensor_make(new_keys, PKV_DTYPE_F32, 3, (int64_t[]){num_new, 1, 1});
    struct pkv_tensor all = pkv_tensor_make(all_keys, PKV_DTYPE_F32, 3, (int64_t[]){num_all, 1, 1});
    check(pkv_batch_tensors_get(batch, 0, &step, &error));
    check(pkv_scatter_pa_kv_cache(context, &new, &key_cache, &step.indices.slot_mapping, NULL, NULL,
                                  NULL, &error));
    check(pkv_gather_pa_kv_cache(context, &key_cache, NULL, &step.indices.block_table,
                                 &step.seq_lens, &all, NULL, NULL, &plain, &error));
    for (int i = num_all = 0; i < num_rows; i++)
        for (int64_t t = 0; t < batch_rows[i]->num_tokens; t++)
            if (all_keys[num_all++] != (float)batch_rows[i]->tokens[t])
                exit(2);
}

int main(void) {
    int num_steps = 0, num_preempted = 0, num_done = 0, num_found = 0;
    struct pkv_pool_options options = {.num_blocks = NUM_BLOCKS, .block_size = BLOCK_SIZE};
    key_cache = pkv_tensor_make(keys, PKV_DTYPE_F32, 4, (int64_t[]){NUM_BLOCKS, BLOCK_SIZE, 1, 1});
    check(pkv_context_create(&context, NULL, &error));
    check(pkv_pool_create(&pool, &options, &error));
    check(pkv_batch_create(&batch, pool, NULL, &error));
    for (int i = 0; i < NUM_REQUESTS; i++) {
        check(pkv_seq_create(pool, &requests[i].seq, NULL, &error));
        for (int t = 0; t < PROMPT; t++)
            requests[i].tokens[requests[i].num_tokens++] = t < PROMPT / 2 ? t : 100 * i + t;
    }
    for (; num_done < NUM_REQUESTS && num_steps < 1000; num_steps++) {
        int num_rows = reserve(1);
        for (; num_rows == 0 && (num_rows = reserve(0)) == 0; num_preempted++) {
            struct pkv_seq victim;
            check(pkv_preempt_choose(pool, PKV_PREEMPT_LATEST_ARRIVAL, &victim, &error));
            check(pkv_seq_truncate(pool, victim, 0, &error));
            for (int i = 0; i < NUM_REQUESTS; i++) {
                if (requests[i].seq.index == victim.index)
                    requests[i].state = WAITING;
            }
        }
        run_model(num_rows);
        check(pkv_batch_mark_computed(batch, &error));
        for (int i = 0; i < num_rows; i++) {
            struct request *r = batch_rows[i];
            num_found += r->state == WAITING ? (int)r->num_cached : 0;
            r->state = r->num_tokens < LENGTH ? RUNNING : DONE;
            r->num_cached = r->num_tokens;
            if (r->state == RUNNING)
                r->tokens[r->num_tokens++] = 1000 * (int32_t)(r - requests) + num_steps;
            else
                check(pkv_seq_free(pool, r->seq, &error));
            num_done += r->state == DONE;
        }
    }
    printf("%d of %d requests done in %d steps, %d times preempted, %d tokens found by prefix\n",
           num_done, NUM_REQUESTS, num_steps, num_preempted, num_found);
    pkv_batch_destroy(batch);
    pkv_pool_destroy(pool);
    pkv_context_destroy(context);
    return num_done == NUM_REQUESTS ? 0 : 1;
}
