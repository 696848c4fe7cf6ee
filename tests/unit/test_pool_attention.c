/* SPDX-License-Identifier: MIT
 *
 * From the block manager to attention: what a batch yields for a group goes into a step as it is,
 * and attention reads what the scatter of that step and of those before has written, with and
 * without a window.
 */
#include "check.h"

#include <math.h>

enum { BLOCK_SIZE = 4, NUM_BLOCKS = 64, NUM_SEQS = 3, WINDOW = 6, SIZE = 8, MAX_TOKENS = 64 };

static struct pkv_error error;

struct group {
    struct pkv_cache cache;
    struct pkv_scatter_plan *scatter;
    struct pkv_paged_attention_plan *attention;
    float keys[NUM_BLOCKS * BLOCK_SIZE * SIZE], values[NUM_BLOCKS * BLOCK_SIZE * SIZE];
};

struct fixture {
    struct pkv_context *context;
    struct pkv_pool *pool;
    struct pkv_batch *batch;
    struct pkv_step *step;
    struct group groups[2];
    struct pkv_seq seqs[NUM_SEQS];
    int64_t num_tokens[NUM_SEQS];
};

static void open_group(struct fixture *fixture, int g) {
    struct group *group = &fixture->groups[g];
    const int64_t shape[4] = {NUM_BLOCKS, BLOCK_SIZE, 1, SIZE};
    const struct pkv_tensor key = pkv_tensor_make(group->keys, PKV_DTYPE_F32, 4, shape),
                            value = pkv_tensor_make(group->values, PKV_DTYPE_F32, 4, shape);
    const struct pkv_paged_attention_options options = {.max_visible_left = g ? WINDOW : 0};

    for (size_t i = 0; i < sizeof(group->keys) / sizeof(group->keys[0]); i++) {
        group->keys[i] = group->values[i] = NAN;
    }
    CHECK_OK(pkv_cache_init(&group->cache, &key, &value, NULL, &error), &error);
    CHECK_OK(
        pkv_scatter_plan_create(&group->scatter, fixture->context, &group->cache, NULL, &error),
        &error);
    CHECK_OK(pkv_paged_attention_plan_create(&group->attention, fixture->context, &group->cache,
                                             &options, &error),
             &error);
}

static void open_fixture(struct fixture *fixture) {
    const struct pkv_layer_group groups[2] = {
        {.block_size = BLOCK_SIZE}, {.block_size = BLOCK_SIZE, .max_visible_tokens = WINDOW}};
    const struct pkv_pool_options options = {.num_blocks = NUM_BLOCKS,
                                             .max_seqs = NUM_SEQS,
                                             .max_tokens_per_seq = MAX_TOKENS,
                                             .groups = groups,
                                             .num_groups = 2};

    CHECK_OK(pkv_context_create(&fixture->context, NULL, &error), &error);
    CHECK_OK(pkv_pool_create(&fixture->pool, &options, &error), &error);
    CHECK_OK(pkv_batch_create(&fixture->batch, fixture->pool, NULL, &error), &error);
    CHECK_OK(pkv_step_create(&fixture->step, NULL, &error), &error);
    for (int g = 0; g < 2; g++) {
        open_group(fixture, g);
    }
    for (int b = 0; b < NUM_SEQS; b++) {
        CHECK_OK(pkv_seq_create(fixture->pool, &fixture->seqs[b], NULL, &error), &error);
        fixture->num_tokens[b] = 0;
    }
}

static void close_fixture(struct fixture *fixture) {
    for (int g = 0; g < 2; g++) {
        pkv_scatter_plan_destroy(fixture->groups[g].scatter);
        pkv_paged_attention_plan_destroy(fixture->groups[g].attention);
    }
    CHECK_OK(pkv_pool_audit(fixture->pool, NULL, &error), &error);
    pkv_step_destroy(fixture->step);
    pkv_batch_destroy(fixture->batch);
    pkv_pool_destroy(fixture->pool);
    pkv_context_destroy(fixture->context);
}

/* A token's value: no two sequences have one in common. */
static float value_of(int seq, int64_t position) {
    return (float)(seq * MAX_TOKENS + position);
}

/* Keys are 0: what a query gets is the mean of the values that it sees. */
static void attend(struct fixture *fixture, int g, const int64_t *new_tokens) {
    static float keys[NUM_SEQS * MAX_TOKENS][SIZE], values[NUM_SEQS * MAX_TOKENS][SIZE];
    static float query[NUM_SEQS * MAX_TOKENS][SIZE], out[NUM_SEQS * MAX_TOKENS][SIZE];
    struct group *group = &fixture->groups[g];
    struct pkv_batch_tensors tensors = {0};
    int64_t row = 0;

    for (int b = 0; b < NUM_SEQS; b++) {
        for (int64_t i = 0; i < new_tokens[b]; i++, row++) {
            for (int d = 0; d < SIZE; d++) {
                values[row][d] = value_of(b, fixture->num_tokens[b] + i);
            }
        }
    }
    const int64_t shape[3] = {row, 1, SIZE};
    const struct pkv_tensor key = pkv_tensor_make(keys, PKV_DTYPE_F32, 3, shape),
                            value = pkv_tensor_make(values, PKV_DTYPE_F32, 3, shape);
    const struct pkv_paged_attention_tensors rows = {
        .query = pkv_tensor_make(query, PKV_DTYPE_F32, 3, shape),
        .out = pkv_tensor_make(out, PKV_DTYPE_F32, 3, shape)};

    CHECK_OK(pkv_batch_tensors_get(fixture->batch, g, &tensors, &error), &error);
    CHECK_OK(pkv_copy_blocks(fixture->context, &group->cache, &tensors.block_mapping, &error),
             &error);
    /* The promise that no slot is named twice holds. */
    tensors.indices.duplicates = PKV_DUPLICATES_REJECT;
    CHECK_OK(pkv_step_set(fixture->context, fixture->step, &group->cache, &tensors.indices, &error),
             &error);
    CHECK_OK(pkv_batch_tensors_get(fixture->batch, g, &tensors, &error), &error);
    CHECK_OK(pkv_step_set(fixture->context, fixture->step, &group->cache, &tensors.indices, &error),
             &error);
    CHECK_OK(pkv_scatter_run(fixture->context, group->scatter, fixture->step, &group->cache, &key,
                             &value, &error),
             &error);
    CHECK_OK(pkv_paged_attention_run(fixture->context, group->attention, fixture->step,
                                     &group->cache, &rows, &error),
             &error);
    row = 0;
    for (int b = 0; b < NUM_SEQS; b++) {
        for (int64_t i = 0; i < new_tokens[b]; i++, row++) {
            const int64_t position = fixture->num_tokens[b] + i;
            const int64_t first = g && position >= WINDOW ? position - (WINDOW - 1) : 0;
            const double mean = (value_of(b, first) + value_of(b, position)) / 2.0;

            if (!(fabs((double)out[row][0] - mean) <= 1e-4)) {
                fail_msg("group %d, sequence %d, position %d: %g, not %g", g, b, (int)position,
                         (double)out[row][0], mean);
            }
        }
    }
}

/* One step, in which a sequence may have no new tokens. */
static void step(struct fixture *fixture, const int64_t *new_tokens) {
    int32_t ids[MAX_TOKENS];

    CHECK_OK(pkv_batch_begin(fixture->batch, &error), &error);
    for (int b = 0; b < NUM_SEQS; b++) {
        for (int64_t i = 0; i < new_tokens[b]; i++) {
            ids[i] = (int32_t)value_of(b, fixture->num_tokens[b] + i);
        }
        if (new_tokens[b] > 0) {
            CHECK_OK(pkv_batch_append(fixture->batch, fixture->seqs[b], ids, new_tokens[b], &error),
                     &error);
        }
    }
    CHECK_OK(pkv_batch_commit(fixture->batch, &error), &error);
    for (int g = 0; g < 2; g++) {
        attend(fixture, g, new_tokens);
    }
    CHECK_OK(pkv_batch_mark_computed(fixture->batch, &error), &error);
    for (int b = 0; b < NUM_SEQS; b++) {
        fixture->num_tokens[b] += new_tokens[b];
    }
}

/* Prefill in chunks, decode, and both in one step; blocks that the window has left are given back
 * meanwhile. */
static void a_batch_feeds_attention(void **state) {
    static struct fixture fixture;

    (void)state;
    open_fixture(&fixture);
    step(&fixture, (int64_t[]){5, 13, 1});
    step(&fixture, (int64_t[]){7, 1, 0});
    for (int i = 0; i < 20; i++) {
        step(&fixture, (int64_t[]){1, 1, 1 + i % 3});
    }
    close_fixture(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_batch_feeds_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
