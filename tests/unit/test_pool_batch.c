/* SPDX-License-Identifier: MIT
 *
 * The batch step: what it yields goes into a real step with real caches; what it rolls back leaves
 * no trace. The random runs of test_pool_random.c go further; here each rule has its own name.
 */
#include "check.h"

enum { BLOCK_SIZE = 4, NUM_BLOCKS = 12, MAX_LISTENED = 16 };

static struct pkv_error error;

struct fixture {
    struct pkv_pool *pool;
    struct pkv_batch *batch;
    int32_t event_types[MAX_LISTENED];
    int32_t num_events;
};

static void listen(void *user, const struct pkv_pool_event *event) {
    struct fixture *fixture = user;
    assert_true(fixture->num_events < MAX_LISTENED);
    fixture->event_types[fixture->num_events++] = event->type;
}

static void open_fixture(struct fixture *fixture, int64_t num_blocks) {
    const struct pkv_pool_options options = {.num_blocks = num_blocks,
                                             .block_size = BLOCK_SIZE,
                                             .max_seqs = 6,
                                             .max_tokens_per_seq = 64,
                                             .event = listen,
                                             .event_user = fixture};
    *fixture = (struct fixture){.num_events = 0};
    CHECK_OK(pkv_pool_create(&fixture->pool, &options, &error), &error);
    CHECK_OK(pkv_batch_create(&fixture->batch, fixture->pool, NULL, &error), &error);
}

static void close_fixture(struct fixture *fixture) {
    CHECK_OK(pkv_pool_audit(fixture->pool, NULL, &error), &error);
    pkv_batch_destroy(fixture->batch);
    pkv_pool_destroy(fixture->pool);
}

static struct pkv_seq create(struct fixture *fixture) {
    struct pkv_seq seq;
    CHECK_OK(pkv_seq_create(fixture->pool, &seq, NULL, &error), &error);
    return seq;
}

/* One step for one sequence, computed. */
static void run(struct fixture *fixture, struct pkv_seq seq, const int32_t *tokens,
                int64_t num_tokens) {
    CHECK_OK(pkv_batch_begin(fixture->batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture->batch, seq, tokens, num_tokens, &error), &error);
    CHECK_OK(pkv_batch_commit(fixture->batch, &error), &error);
    CHECK_OK(pkv_batch_mark_computed(fixture->batch, &error), &error);
}

static struct pkv_pool_metrics metrics_of(const struct fixture *fixture) {
    struct pkv_pool_metrics metrics = {0};
    CHECK_OK(pkv_pool_metrics_get(fixture->pool, &metrics, &error), &error);
    return metrics;
}

/* Keys that say which token of which text they are. */
static float row_of(int32_t token) {
    return (float)token + 0.5f;
}

static struct pkv_batch_tensors tensors_of(const struct fixture *fixture) {
    struct pkv_batch_tensors tensors = {0};
    CHECK_OK(pkv_batch_tensors_get(fixture->batch, 0, &tensors, &error), &error);
    return tensors;
}

/* Copies, then scatters the rows of the new tokens, then gathers whole sequences and compares. */
static void use_step(struct fixture *fixture, float *memory, const int32_t *new_tokens,
                     const int32_t *all_tokens) {
    const struct pkv_batch_tensors tensors = tensors_of(fixture);
    const int64_t num_tokens = tensors.indices.slot_mapping.shape[0];
    const int32_t *seq_lens = tensors.seq_lens.data;
    float rows[64], read[128];
    int64_t num_read = 0;
    struct pkv_context *context;
    struct pkv_step *step;
    struct pkv_scatter_plan *scatter;
    struct pkv_gather_plan *gather;
    struct pkv_cache cache;
    const struct pkv_tensor key_cache =
        pkv_tensor_make(memory, PKV_DTYPE_F32, 4, (int64_t[]){NUM_BLOCKS, BLOCK_SIZE, 1, 1});

    for (int64_t i = 0; i < num_tokens; i++)
        rows[i] = row_of(new_tokens[i]);
    for (int64_t i = 0; i < tensors.seq_lens.shape[0]; i++)
        num_read += seq_lens[i];
    const struct pkv_tensor key =
        pkv_tensor_make(rows, PKV_DTYPE_F32, 3, (int64_t[]){num_tokens, 1, 1});
    const struct pkv_tensor out =
        pkv_tensor_make(read, PKV_DTYPE_F32, 3, (int64_t[]){num_read, 1, 1});
    CHECK_OK(pkv_cache_init(&cache, &key_cache, NULL, NULL, &error), &error);
    CHECK_OK(pkv_context_create(&context, NULL, &error), &error);
    CHECK_OK(pkv_step_create(&step, &(struct pkv_step_options){.max_seqs = 8}, &error), &error);
    CHECK_OK(pkv_scatter_plan_create(&scatter, context, &cache, NULL, &error), &error);
    CHECK_OK(pkv_gather_plan_create(&gather, context, &cache, &error), &error);
    CHECK_OK(pkv_copy_blocks(context, &cache, &tensors.block_mapping, &error), &error);
    struct pkv_step_indices strict = tensors.indices;
    assert_int_equal(strict.duplicates, PKV_DUPLICATES_ASSUME_UNIQUE);
    strict.duplicates = PKV_DUPLICATES_REJECT;
    CHECK_OK(pkv_step_set(context, step, &cache, &strict, &error), &error);
    CHECK_OK(pkv_step_set(context, step, &cache, &tensors.indices, &error), &error);
    CHECK_OK(pkv_scatter_run(context, scatter, step, &cache, &key, NULL, &error), &error);
    CHECK_OK(pkv_gather_run(context, gather, step, &cache, &out, NULL, &error), &error);
    for (int64_t i = 0; i < num_read; i++)
        assert_true(read[i] == row_of(all_tokens[i]));
    pkv_gather_plan_destroy(gather);
    pkv_scatter_plan_destroy(scatter);
    pkv_step_destroy(step);
    pkv_context_destroy(context);
}

static int64_t found(const struct fixture *fixture, const int32_t *tokens, int64_t num_tokens) {
    int64_t hit = -1;
    CHECK_OK(pkv_prefix_lookup(fixture->pool, NULL, tokens, num_tokens, &hit, &error), &error);
    return hit;
}

/* What a truncation has dropped is not marked, whatever has come in its place: nobody computed
 * that. */
static void only_what_is_left_is_marked(void **state) {
    struct fixture fixture;
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8}, others[] = {1, 2, 3, 4, 50, 60, 70, 80};
    const int32_t resumed[] = {11, 12, 13, 14, 15, 16, 17, 18};
    struct pkv_batch *second;
    (void)state;

    open_fixture(&fixture, NUM_BLOCKS);
    const struct pkv_seq seq = create(&fixture);
    CHECK_OK(pkv_batch_create(&second, fixture.pool, NULL, &error), &error);
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, seq, tokens, 8, &error), &error);
    CHECK_OK(pkv_batch_commit(fixture.batch, &error), &error);
    CHECK_OK(pkv_seq_truncate(fixture.pool, seq, 4, &error), &error);
    struct pkv_block_copy copy;
    CHECK_OK(pkv_seq_append(fixture.pool, seq, others + 4, 4, &copy, &error), &error);
    CHECK_OK(pkv_batch_mark_computed(fixture.batch, &error), &error);
    assert_int_equal(found(&fixture, others, 8), 4);
    /* Given up and resumed by a second batch: the first one's mark is not the second one's. */
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, seq, tokens, 4, &error), &error);
    CHECK_OK(pkv_batch_commit(fixture.batch, &error), &error);
    CHECK_OK(pkv_seq_truncate(fixture.pool, seq, 0, &error), &error);
    CHECK_OK(pkv_batch_begin(second, &error), &error);
    CHECK_OK(pkv_batch_append(second, seq, resumed, 8, &error), &error);
    CHECK_OK(pkv_batch_commit(second, &error), &error);
    CHECK_OK(pkv_batch_mark_computed(fixture.batch, &error), &error);
    assert_int_equal(found(&fixture, resumed, 8), 0);
    CHECK_OK(pkv_batch_mark_computed(second, &error), &error);
    assert_int_equal(found(&fixture, resumed, 8), 8);
    pkv_batch_destroy(second);
    close_fixture(&fixture);
}

/* A struct of an older caller ends within indices, which then say so. */
static void a_smaller_struct_has_smaller_indices(void **state) {
    struct fixture fixture;
    struct pkv_batch_tensors tensors = {0};
    const size_t known = offsetof(struct pkv_step_indices, num_shared_tokens);
    const int32_t tokens[] = {1, 2};
    (void)state;

    open_fixture(&fixture, NUM_BLOCKS);
    const struct pkv_seq seq = create(&fixture);
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, seq, tokens, 2, &error), &error);
    CHECK_OK(pkv_batch_commit(fixture.batch, &error), &error);
    tensors.struct_size = offsetof(struct pkv_batch_tensors, indices) + known;
    CHECK_OK(pkv_batch_tensors_get(fixture.batch, 0, &tensors, &error), &error);
    assert_int_equal(tensors.indices.struct_size, known);
    close_fixture(&fixture);
}

static void a_step_feeds_the_operators(void **state) {
    struct fixture fixture;
    float memory[NUM_BLOCKS * BLOCK_SIZE] = {0};
    const int32_t a[] = {1, 2, 3, 4, 5, 6, 7}, b[] = {1, 2, 3, 4, 20, 21};
    int64_t hit;
    struct pkv_seq fork;
    (void)state;

    open_fixture(&fixture, NUM_BLOCKS);
    const struct pkv_seq first = create(&fixture), second = create(&fixture);
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, first, a, 6, &error), &error);
    CHECK_OK(pkv_batch_commit(fixture.batch, &error), &error);
    use_step(&fixture, memory, a, a);
    CHECK_OK(pkv_batch_mark_computed(fixture.batch, &error), &error);

    /* Now a decoding sequence, one that finds its first block, and a fork that must copy. */
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_fork(fixture.batch, first, &fork, &error), &error);
    CHECK_OK(pkv_batch_match(fixture.batch, second, b, 5, &hit, &error), &error);
    assert_int_equal(hit, 4);
    CHECK_OK(pkv_batch_append(fixture.batch, second, b + 4, 2, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, first, a + 6, 1, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, fork, &(int32_t){30}, 1, &error), &error);
    CHECK_OK(pkv_batch_commit(fixture.batch, &error), &error);
    const struct pkv_batch_tensors tensors = tensors_of(&fixture);
    assert_int_equal(tensors.block_mapping.shape[0], 1);
    assert_int_equal(tensors.query_start_loc.shape[0], 4);
    const int32_t starts[] = {0, 2, 3, 4}, lens[] = {6, 7, 7};
    assert_memory_equal(tensors.query_start_loc.data, starts, sizeof(starts));
    assert_memory_equal(tensors.seq_lens.data, lens, sizeof(lens));
    assert_null(tensors.indices.seq_offsets.data);
    use_step(&fixture, memory, (int32_t[]){20, 21, 7, 30},
             (int32_t[]){1, 2, 3, 4, 20, 21, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 30});
    close_fixture(&fixture);
}

/* Evicts, takes a cached block out of the middle, writes into an indexed block, forks; then
 * back. */
static void a_rollback_leaves_no_trace(void **state) {
    struct fixture fixture, untouched;
    const int32_t a[] = {1, 2, 3, 4, 5, 6, 7, 8}, b[] = {11, 12, 13, 14, 15, 16, 17, 18},
                  c[] = {21, 22, 23, 24, 25, 26, 27, 28, 29};
    struct fixture *both[] = {&fixture, &untouched};
    struct pkv_block blocks[2][8];
    struct pkv_seq child, kept[2];
    int64_t hit;
    (void)state;

    for (int i = 0; i < 2; i++) {
        open_fixture(both[i], 8);
        const struct pkv_seq first = create(both[i]), second = create(both[i]);
        run(both[i], first, a, 8);
        run(both[i], second, b, 8);
        CHECK_OK(pkv_seq_free(both[i]->pool, first, &error), &error);
        CHECK_OK(pkv_seq_free(both[i]->pool, second, &error), &error);
        kept[i] = create(both[i]);
        run(both[i], kept[i], c, 8);
        CHECK_OK(pkv_seq_truncate(both[i]->pool, kept[i], 6, &error), &error);
    }
    const struct pkv_seq late = create(&fixture), later = create(&fixture);
    (void)create(&untouched), (void)create(&untouched);
    const struct pkv_pool_metrics before = metrics_of(&fixture);
    const int32_t num_events = fixture.num_events;

    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, kept[0], c, 1, &error), &error);
    CHECK_OK(pkv_prefix_lookup(fixture.pool, NULL, c, 8, &hit, &error), &error);
    assert_int_equal(hit, 4);
    CHECK_OK(pkv_batch_match(fixture.batch, late, b, 8, &hit, &error), &error);
    assert_int_equal(hit, 8);
    CHECK_OK(pkv_batch_fork(fixture.batch, late, &child, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, later, c, 9, &error), &error);
    CHECK_OK(pkv_prefix_lookup(fixture.pool, NULL, a, 8, &hit, &error), &error);
    assert_int_equal(hit, 4);
    CHECK_OK(pkv_pool_audit(fixture.pool, NULL, &error), &error);
    CHECK_OK(pkv_batch_rollback(fixture.batch, &error), &error);

    struct pkv_pool_metrics after = metrics_of(&fixture);
    assert_int_equal(after.num_rollbacks, before.num_rollbacks + 1);
    after.num_rollbacks--;
    assert_memory_equal(&before, &after, sizeof(after));
    assert_int_equal(fixture.num_events, num_events);
    CHECK_OK(pkv_pool_audit(fixture.pool, NULL, &error), &error);
    CHECK_REFUSED(pkv_seq_free(fixture.pool, child, &error), &error, PKV_STATUS_STALE_HANDLE);
    CHECK_OK(pkv_prefix_lookup(fixture.pool, NULL, c, 8, &hit, &error), &error);
    assert_int_equal(hit, 8);
    CHECK_OK(pkv_prefix_lookup(fixture.pool, NULL, a, 8, &hit, &error), &error);
    assert_int_equal(hit, 8);
    CHECK_REFUSED(pkv_batch_rollback(fixture.batch, &error), &error, PKV_STATUS_BAD_STATE);

    /* From here on both pools hand out the same blocks in the same order. */
    for (int i = 0; i < 2; i++) {
        CHECK_OK(pkv_seq_free(both[i]->pool, kept[i], &error), &error);
        CHECK_OK(pkv_block_allocate(both[i]->pool, 8, blocks[i], &error), &error);
    }
    for (int i = 0; i < 8; i++)
        assert_int_equal(blocks[0][i].block_id, blocks[1][i].block_id);
    close_fixture(&fixture);
    close_fixture(&untouched);
}

static void out_of_blocks_rolls_back(void **state) {
    struct fixture fixture;
    const int32_t tokens[20] = {1, 2, 3};
    struct pkv_seq_info info = {0};
    (void)state;

    open_fixture(&fixture, 4);
    const struct pkv_seq first = create(&fixture), second = create(&fixture);
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, first, tokens, 9, &error), &error);
    CHECK_REFUSED(pkv_batch_append(fixture.batch, second, tokens, 5, &error), &error,
                  PKV_STATUS_OUT_OF_BLOCKS);
    assert_int_equal(error.value, 2);
    assert_int_equal(error.bound, 1);
    CHECK_OK(pkv_seq_info_get(fixture.pool, first, &info, &error), &error);
    assert_int_equal(info.num_tokens, 0);
    assert_int_equal(metrics_of(&fixture).num_free_blocks, 4);
    CHECK_REFUSED(pkv_batch_commit(fixture.batch, &error), &error, PKV_STATUS_BAD_STATE);
    /* The pool is free for other things, and for the next step. */
    run(&fixture, second, tokens, 5);
    close_fixture(&fixture);
}

static void events_come_at_commit(void **state) {
    struct fixture fixture;
    const int32_t tokens[] = {1, 2, 3, 4}, others[] = {5, 6, 7, 8};
    (void)state;

    open_fixture(&fixture, 1);
    const struct pkv_seq first = create(&fixture), second = create(&fixture);
    run(&fixture, first, tokens, 4);
    CHECK_OK(pkv_seq_free(fixture.pool, first, &error), &error);
    assert_int_equal(fixture.num_events, 1);
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, second, others, 4, &error), &error);
    assert_int_equal(fixture.num_events, 1);
    CHECK_OK(pkv_batch_commit(fixture.batch, &error), &error);
    assert_int_equal(fixture.num_events, 2);
    assert_int_equal(fixture.event_types[1], PKV_POOL_EVENT_EVICTED);
    close_fixture(&fixture);
}

static void misuse_is_refused(void **state) {
    struct fixture fixture;
    struct pkv_batch *other;
    struct pkv_batch_tensors tensors = {0};
    const int32_t tokens[70] = {1, 2, 3};
    struct pkv_block block;
    struct pkv_seq child;
    int64_t hit;
    (void)state;

    open_fixture(&fixture, NUM_BLOCKS);
    const struct pkv_seq seq = create(&fixture), gone = create(&fixture);
    CHECK_OK(pkv_seq_free(fixture.pool, gone, &error), &error);
    CHECK_OK(pkv_batch_create(&other, fixture.pool,
                              &(struct pkv_batch_options){.max_seqs = 1, .max_tokens = 8}, &error),
             &error);
    CHECK_REFUSED(pkv_batch_append(fixture.batch, seq, tokens, 1, &error), &error,
                  PKV_STATUS_BAD_STATE);
    CHECK_REFUSED(pkv_batch_tensors_get(fixture.batch, 0, &tensors, &error), &error,
                  PKV_STATUS_BAD_STATE);
    CHECK_REFUSED(pkv_batch_mark_computed(fixture.batch, &error), &error, PKV_STATUS_BAD_STATE);
    CHECK_OK(pkv_batch_begin(other, &error), &error);
    CHECK_REFUSED(pkv_batch_begin(fixture.batch, &error), &error, PKV_STATUS_BAD_STATE);
    CHECK_REFUSED(pkv_batch_append(fixture.batch, seq, tokens, 1, &error), &error,
                  PKV_STATUS_BAD_STATE);
    CHECK_REFUSED(pkv_seq_free(fixture.pool, seq, &error), &error, PKV_STATUS_BAD_STATE);
    CHECK_REFUSED(pkv_block_allocate(fixture.pool, 1, &block, &error), &error,
                  PKV_STATUS_BAD_STATE);
    CHECK_REFUSED(pkv_pool_invalidate(fixture.pool, &error), &error, PKV_STATUS_BAD_STATE);
    CHECK_REFUSED(pkv_batch_append(other, gone, tokens, 1, &error), &error,
                  PKV_STATUS_STALE_HANDLE);
    CHECK_REFUSED(pkv_batch_fork(other, gone, &child, &error), &error, PKV_STATUS_STALE_HANDLE);
    CHECK_REFUSED(pkv_batch_append(other, seq, tokens, 9, &error), &error, PKV_STATUS_CAPACITY);
    CHECK_REFUSED(pkv_batch_append(other, seq, tokens, -1, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_OK(pkv_batch_append(other, seq, tokens, 2, &error), &error);
    CHECK_REFUSED(pkv_batch_append(other, seq, tokens, 1, &error), &error, PKV_STATUS_BAD_STATE);
    /* A fork of it shares tokens that are not written yet, and cannot be copied. */
    CHECK_OK(pkv_batch_fork(other, seq, &child, &error), &error);
    CHECK_REFUSED(pkv_batch_append(other, child, tokens, 1, &error), &error, PKV_STATUS_CAPACITY);
    CHECK_REFUSED(pkv_batch_match(other, seq, tokens, 2, &hit, &error), &error,
                  PKV_STATUS_BAD_STATE);
    CHECK_OK(pkv_batch_commit(other, &error), &error);
    CHECK_REFUSED(pkv_batch_tensors_get(other, 1, &tensors, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_OK(pkv_batch_mark_computed(other, &error), &error);
    CHECK_REFUSED(pkv_batch_mark_computed(other, &error), &error, PKV_STATUS_BAD_STATE);
    pkv_batch_destroy(other);

    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, seq, tokens, 1, &error), &error);
    CHECK_OK(pkv_seq_info_get(fixture.pool, child, &(struct pkv_seq_info){0}, &error), &error);
    struct pkv_seq grandchild;
    CHECK_OK(pkv_batch_fork(fixture.batch, seq, &grandchild, &error), &error);
    CHECK_REFUSED(pkv_batch_append(fixture.batch, grandchild, tokens, 1, &error), &error,
                  PKV_STATUS_BAD_STATE);
    close_fixture(&fixture); /* rolls back */
}

/* A fork without tokens may match in the same step; what it found is old news, and can be
 * copied. */
static void a_fork_may_match(void **state) {
    struct fixture fixture;
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6};
    const struct pkv_pool_options options = {
        .num_blocks = 8, .block_size = BLOCK_SIZE, .index_mode = PKV_INDEX_PARTIAL_BLOCKS};
    struct pkv_seq fork;
    int64_t hit;
    (void)state;

    CHECK_OK(pkv_pool_create(&fixture.pool, &options, &error), &error);
    CHECK_OK(pkv_batch_create(&fixture.batch, fixture.pool, NULL, &error), &error);
    const struct pkv_seq first = create(&fixture), parent = create(&fixture),
                         other = create(&fixture);
    run(&fixture, first, tokens, 6);
    CHECK_OK(pkv_seq_free(fixture.pool, first, &error), &error);
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_fork(fixture.batch, parent, &fork, &error), &error);
    CHECK_OK(pkv_batch_match(fixture.batch, fork, tokens, 6, &hit, &error), &error);
    assert_int_equal(hit, 6);
    CHECK_OK(pkv_batch_match(fixture.batch, other, tokens, 6, &hit, &error), &error);
    CHECK_OK(pkv_batch_commit(fixture.batch, &error), &error);
    run(&fixture, fork, tokens, 1);
    assert_int_equal(metrics_of(&fixture).num_copied_blocks, 1);
    close_fixture(&fixture);
}

/* Whoever kept the handle of a child that never came to be has the handle of nothing. */
static void a_child_rolled_back_has_a_stale_handle(void **state) {
    (void)state;
    struct fixture fixture;
    struct pkv_seq child;
    open_fixture(&fixture, NUM_BLOCKS);
    const struct pkv_seq parent = create(&fixture);
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_fork(fixture.batch, parent, &child, &error), &error);
    CHECK_OK(pkv_batch_rollback(fixture.batch, &error), &error);
    const struct pkv_seq next = create(&fixture);
    assert_int_equal(next.index, child.index);
    CHECK_REFUSED(pkv_seq_free(fixture.pool, child, &error), &error, PKV_STATUS_STALE_HANDLE);
    CHECK_OK(pkv_seq_free(fixture.pool, next, &error), &error);
    close_fixture(&fixture);
}

/* An append of nothing is an operation like others, and what is matched after it counts. */
static void nothing_appended_may_match(void **state) {
    (void)state;
    const int32_t tokens[] = {1, 2, 3, 4};
    struct fixture fixture;
    int64_t hit = 0;
    open_fixture(&fixture, NUM_BLOCKS);
    run(&fixture, create(&fixture), tokens, 4);
    const struct pkv_seq seq = create(&fixture);
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, seq, NULL, 0, &error), &error);
    CHECK_OK(pkv_batch_match(fixture.batch, seq, tokens, 4, &hit, &error), &error);
    CHECK_OK(pkv_batch_commit(fixture.batch, &error), &error);
    assert_int_equal(hit, 4);
    /* The block is shared: a write into it goes to a copy, which needs tokens of earlier steps. */
    CHECK_OK(pkv_seq_truncate(fixture.pool, seq, 3, &error), &error);
    run(&fixture, seq, &tokens[0], 1);
    assert_int_equal(metrics_of(&fixture).num_copied_blocks, 1);
    close_fixture(&fixture);
}

/* Neither a row of its own nor the only word in a step. */
static void nothing_appended_may_be_followed_by_tokens(void **state) {
    (void)state;
    const int32_t tokens[] = {1, 2, 3};
    struct fixture fixture;
    open_fixture(&fixture, NUM_BLOCKS);
    const struct pkv_seq seq = create(&fixture), other = create(&fixture);
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, other, NULL, 0, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, seq, NULL, 0, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, seq, tokens, 3, &error), &error);
    CHECK_OK(pkv_batch_commit(fixture.batch, &error), &error);
    const struct pkv_batch_tensors tensors = tensors_of(&fixture);
    assert_int_equal(tensors.seq_lens.shape[0], 1);
    assert_int_equal(((const int32_t *)tensors.seq_lens.data)[0], 3);
    assert_int_equal(tensors.indices.slot_mapping.shape[0], 3);
    close_fixture(&fixture);
}

/* Handles of blocks count on as if the step had never been. */
static void generations_are_rolled_back(void **state) {
    struct fixture fixture;
    struct pkv_block before, after;
    (void)state;

    open_fixture(&fixture, 1);
    const struct pkv_seq seq = create(&fixture);
    CHECK_OK(pkv_block_allocate(fixture.pool, 1, &before, &error), &error);
    CHECK_OK(pkv_block_release(fixture.pool, 1, &before, &error), &error);
    CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
    CHECK_OK(pkv_batch_append(fixture.batch, seq, &(int32_t){1}, 1, &error), &error);
    CHECK_OK(pkv_batch_rollback(fixture.batch, &error), &error);
    CHECK_OK(pkv_block_allocate(fixture.pool, 1, &after, &error), &error);
    assert_int_equal(after.generation, before.generation + 1);
    close_fixture(&fixture);
}

/* Rows keep their place from step to step, change it, and disappear. */
static void rows_follow_their_sequences(void **state) {
    struct fixture fixture;
    const int32_t tokens[] = {1, 2, 3, 4, 5};
    (void)state;

    open_fixture(&fixture, NUM_BLOCKS);
    struct pkv_seq seqs[3] = {create(&fixture), create(&fixture), create(&fixture)};
    static const int orders[][3] = {{0, 1, 2}, {0, 1, 2}, {2, 0, 1}, {1, 2, -1}, {0, 1, 2}};
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        CHECK_OK(pkv_batch_begin(fixture.batch, &error), &error);
        for (int row = 0; row < 3 && orders[i][row] >= 0; row++)
            CHECK_OK(pkv_batch_append(fixture.batch, seqs[orders[i][row]], tokens, i == 0 ? 3 : 2,
                                      &error),
                     &error);
        CHECK_OK(pkv_batch_commit(fixture.batch, &error), &error);
        const struct pkv_batch_tensors tensors = tensors_of(&fixture);
        for (int row = 0; row < 3 && orders[i][row] >= 0; row++) {
            struct pkv_tensor table;
            CHECK_OK(pkv_seq_block_table(fixture.pool, seqs[orders[i][row]], 0, &table, &error),
                     &error);
            const int32_t *entries = (const int32_t *)tensors.indices.block_table.data +
                                     row * tensors.indices.block_table.shape[1];
            assert_memory_equal(entries, table.data, (size_t)table.shape[0] * sizeof(int32_t));
        }
        /* Shrinks between the steps, so that the same row gets other blocks. */
        CHECK_OK(pkv_seq_truncate(fixture.pool, seqs[i % 3], 1, &error), &error);
        if (i == 3) {
            CHECK_OK(pkv_seq_free(fixture.pool, seqs[0], &error), &error);
            seqs[0] = create(&fixture);
        }
    }
    close_fixture(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_feeds_the_operators),
        cmocka_unit_test(only_what_is_left_is_marked),
        cmocka_unit_test(a_smaller_struct_has_smaller_indices),
        cmocka_unit_test(a_rollback_leaves_no_trace),
        cmocka_unit_test(out_of_blocks_rolls_back),
        cmocka_unit_test(events_come_at_commit),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(a_fork_may_match),
        cmocka_unit_test(a_child_rolled_back_has_a_stale_handle),
        cmocka_unit_test(nothing_appended_may_match),
        cmocka_unit_test(nothing_appended_may_be_followed_by_tokens),
        cmocka_unit_test(generations_are_rolled_back),
        cmocka_unit_test(rows_follow_their_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
