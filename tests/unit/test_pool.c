/* SPDX-License-Identifier: MIT
 *
 * The pool as its caller meets it: options and memory, handles and their misuse, priorities, pins,
 * epochs, windows, metrics, the choice of a victim, the auditor.
 */
#include "allocator.h"
#include "check.h"
#include "pool/pool.h"

#include <stdlib.h>

static struct pkv_error error;

static struct pkv_pool *make(const struct pkv_pool_options *options) {
    struct pkv_pool *pool;
    CHECK_OK(pkv_pool_create(&pool, options, &error), &error);
    return pool;
}

static void finish(struct pkv_pool *pool) {
    CHECK_OK(pkv_pool_audit(pool, NULL, &error), &error);
    pkv_pool_destroy(pool);
}

/* A sequence with these tokens, all computed. */
static struct pkv_seq fill(struct pkv_pool *pool, const int32_t *tokens, int64_t num_tokens,
                           int32_t priority) {
    struct pkv_seq seq;
    struct pkv_block_copy copies[PKV_MAX_GROUPS];
    const struct pkv_seq_options options = {.priority = priority};
    CHECK_OK(pkv_seq_create(pool, &seq, &options, &error), &error);
    CHECK_OK(pkv_seq_append(pool, seq, tokens, num_tokens, copies, &error), &error);
    CHECK_OK(pkv_seq_mark_computed(pool, seq, num_tokens, &error), &error);
    return seq;
}

static int64_t look_up(struct pkv_pool *pool, const int32_t *tokens, int64_t num_tokens) {
    int64_t hit = -1;
    CHECK_OK(pkv_prefix_lookup(pool, NULL, tokens, num_tokens, &hit, &error), &error);
    return hit;
}

static struct pkv_pool_metrics metrics_of(struct pkv_pool *pool) {
    struct pkv_pool_metrics metrics = {0};
    CHECK_OK(pkv_pool_metrics_get(pool, &metrics, &error), &error);
    return metrics;
}

static void options_are_checked(void **state) {
    static const struct pkv_layer_group too_large[] = {{PKV_MAX_BLOCK_SIZE + 1, 0}};
    static const struct pkv_layer_group two[] = {{4, 0}, {8, 0}};
    const struct {
        struct pkv_pool_options options;
        int32_t expected;
    } cases[] = {
        {{.num_blocks = 0}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = -1}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = INT64_MAX}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .block_size = -1}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .max_seqs = INT64_MIN}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .max_seqs = INT64_MAX}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .max_tokens_per_seq = -1}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .index_mode = 3}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .eviction = -1}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .num_priorities = PKV_MAX_PRIORITIES + 1}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .thread_safe = 2}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .max_seqs = 4, .max_domains = 4}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .max_domain_bytes = -1}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .num_groups = 1}, PKV_STATUS_NULL_ARGUMENT},
        {{.num_blocks = 1, .groups = too_large, .num_groups = 1}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .groups = two, .num_groups = 9}, PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .groups = two, .num_groups = 2, .block_size = 4},
         PKV_STATUS_INVALID_ARGUMENT},
        {{.num_blocks = 1, .groups = two, .num_groups = 2, .index_mode = PKV_INDEX_PARTIAL_BLOCKS},
         PKV_STATUS_UNSUPPORTED},
        {{.num_blocks = 1 << 30,
          .max_seqs = 1 << 30,
          .max_tokens_per_seq = 1 << 30,
          .block_size = 1,
          .max_domains = 1 << 30},
         PKV_STATUS_INVALID_ARGUMENT},
    };
    struct pkv_pool *pool;
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(pkv_pool_memory_size(&cases[i].options), 0);
        CHECK_REFUSED(pkv_pool_create(&pool, &cases[i].options, &error), &error, cases[i].expected);
        assert_null(pool);
    }
    CHECK_REFUSED(pkv_pool_create(&pool, NULL, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_pool_create(NULL, &cases[0].options, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
}

static void memory_can_be_the_callers(void **state) {
    const struct pkv_pool_options options = {.num_blocks = 100};
    const size_t bytes = pkv_pool_memory_size(&options);
    unsigned char *memory = aligned_alloc(64, bytes + 64);
    struct pkv_pool *pool;
    (void)state;

    assert_non_null(memory);
    memset(memory, 0xa5, bytes + 64);
    CHECK_REFUSED(pkv_pool_create_in(&pool, memory + 8, bytes, &options, &error), &error,
                  PKV_STATUS_MISALIGNED);
    CHECK_REFUSED(pkv_pool_create_in(&pool, memory, bytes - 1, &options, &error), &error,
                  PKV_STATUS_CAPACITY);
    CHECK_OK(pkv_pool_create_in(&pool, memory, bytes, &options, &error), &error);
    finish(pool);
    for (size_t i = bytes; i < bytes + 64; i++)
        assert_int_equal(memory[i], 0xa5);
    free(memory);
}

static void an_allocator_is_asked_once(void **state) {
    struct test_allocator counts = {.fail_at = 1};
    const struct pkv_allocator hook = test_allocator_hook(&counts);
    const struct pkv_pool_options options = {.num_blocks = 100, .allocator = &hook};
    const struct pkv_batch_options batch_options = {.allocator = &hook};
    struct pkv_pool *pool;
    struct pkv_batch *batch;
    (void)state;

    CHECK_REFUSED(pkv_pool_create(&pool, &options, &error), &error, PKV_STATUS_OUT_OF_MEMORY);
    counts.fail_at = 3;
    CHECK_OK(pkv_pool_create(&pool, &options, &error), &error);
    CHECK_REFUSED(pkv_batch_create(&batch, pool, &batch_options, &error), &error,
                  PKV_STATUS_OUT_OF_MEMORY);
    CHECK_OK(pkv_batch_create(&batch, pool, &batch_options, &error), &error);
    pkv_batch_destroy(batch);
    finish(pool);
    assert_int_equal(counts.num_calls, 4);
    assert_int_equal(counts.num_live, 0);
    assert_int_equal(counts.num_bad, 0);
}

/* The promise about metadata, for every size and policy: what a block costs beside its tokens. */
static void a_block_costs_at_most_128_bytes(void **state) {
    (void)state;
    for (int32_t eviction = 0; eviction < 3; eviction++) {
        for (int64_t num_blocks = 1000; num_blocks < 2000000; num_blocks += num_blocks / 3) {
            struct pkv_pool_options options = {
                .num_blocks = num_blocks, .block_size = 16, .eviction = eviction};
            const size_t large = pkv_pool_memory_size(&options);
            options.num_blocks = 1;
            const size_t fixed = pkv_pool_memory_size(&options);
            assert_true((large - fixed) / (size_t)num_blocks <= 128 + 16 * sizeof(int32_t));
        }
    }
}

static void blocks_are_handed_out_all_or_none(void **state) {
    struct pkv_pool *pool = make(&(struct pkv_pool_options){.num_blocks = 5});
    struct pkv_block blocks[6] = {{0}};
    (void)state;

    CHECK_REFUSED(pkv_block_allocate(pool, 6, blocks, &error), &error, PKV_STATUS_OUT_OF_BLOCKS);
    assert_int_equal(error.value, 6);
    assert_int_equal(error.bound, 5);
    assert_int_equal(blocks[0].generation, 0);
    assert_int_equal(metrics_of(pool).num_free_blocks, 5);
    CHECK_OK(pkv_block_allocate(pool, 5, blocks, &error), &error);
    CHECK_OK(pkv_block_allocate(pool, 0, NULL, &error), &error);
    CHECK_REFUSED(pkv_block_allocate(pool, 1, blocks, &error), &error, PKV_STATUS_OUT_OF_BLOCKS);
    CHECK_REFUSED(pkv_block_allocate(pool, -1, blocks, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_block_allocate(pool, 1, NULL, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_OK(pkv_block_release(pool, 5, blocks, &error), &error);
    assert_int_equal(metrics_of(pool).num_free_blocks, 5);
    /* The last given back first is the next. */
    CHECK_OK(pkv_block_allocate(pool, 1, blocks, &error), &error);
    assert_int_equal(blocks[0].block_id, 4);
    finish(pool);
}

static void misused_handles_are_refused(void **state) {
    const struct pkv_pool_options options = {.num_blocks = 4, .hash_seed = 9};
    struct pkv_pool *pool = make(&options), *other = make(&options);
    struct pkv_block blocks[3], foreign;
    const int32_t tokens[] = {1, 2, 3};
    (void)state;

    CHECK_OK(pkv_block_allocate(pool, 2, blocks, &error), &error);
    CHECK_OK(pkv_block_allocate(other, 1, &foreign, &error), &error);
    CHECK_REFUSED(pkv_block_release(pool, 1, &foreign, &error), &error, PKV_STATUS_STALE_HANDLE);
    const struct pkv_block outside = {4, blocks[0].generation}, below = {-1, 1}, none = {0, 0};
    CHECK_REFUSED(pkv_block_release(pool, 1, &outside, &error), &error,
                  PKV_STATUS_BLOCK_OUT_OF_RANGE);
    CHECK_REFUSED(pkv_block_retain(pool, 1, &below, &error), &error, PKV_STATUS_BLOCK_OUT_OF_RANGE);
    CHECK_REFUSED(pkv_block_release(pool, 1, &none, &error), &error, PKV_STATUS_STALE_HANDLE);

    /* Twice in one list: the error names the second, and nothing is given back. */
    blocks[2] = blocks[0];
    CHECK_REFUSED(pkv_block_release(pool, 3, blocks, &error), &error, PKV_STATUS_STALE_HANDLE);
    assert_int_equal(error.index, 2);
    assert_int_equal(metrics_of(pool).num_used_blocks, 2);
    CHECK_OK(pkv_block_retain(pool, 1, blocks, &error), &error);
    CHECK_OK(pkv_block_release(pool, 3, blocks, &error), &error);
    CHECK_REFUSED(pkv_block_release(pool, 1, blocks, &error), &error, PKV_STATUS_STALE_HANDLE);
    CHECK_REFUSED(pkv_block_retain(pool, 1, blocks, &error), &error, PKV_STATUS_STALE_HANDLE);

    /* The same block, handed out anew, to a sequence and to a caller. */
    const struct pkv_seq seq = fill(pool, tokens, 3, 0);
    CHECK_REFUSED(pkv_block_release(pool, 1, &blocks[1], &error), &error, PKV_STATUS_STALE_HANDLE);
    CHECK_OK(pkv_seq_free(pool, seq, &error), &error);
    CHECK_OK(pkv_block_allocate(pool, 1, blocks, &error), &error);
    assert_int_equal(blocks[0].block_id, blocks[1].block_id);
    CHECK_REFUSED(pkv_block_release(pool, 1, &blocks[1], &error), &error, PKV_STATUS_STALE_HANDLE);
    CHECK_OK(pkv_block_release(pool, 1, blocks, &error), &error);
    finish(pool);
    pkv_pool_destroy(other);
}

/* The tokens beyond need not even be there. */
static void lookup_ends_with_the_longest_sequence(void **state) {
    enum { LONGEST = 16 };
    const struct pkv_pool_options options = {
        .num_blocks = 8, .block_size = 4, .max_tokens_per_seq = LONGEST};
    struct pkv_pool *pool = make(&options);
    int32_t *tokens = calloc(LONGEST, sizeof(*tokens));
    (void)state;

    assert_non_null(tokens);
    (void)fill(pool, tokens, LONGEST, 0);
    assert_int_equal(look_up(pool, tokens, LONGEST), LONGEST);
    assert_int_equal(look_up(pool, tokens, INT64_MAX), LONGEST);
    free(tokens);
    finish(pool);
}

static void misused_sequences_are_refused(void **state) {
    const struct pkv_pool_options options = {
        .num_blocks = 8, .block_size = 4, .max_seqs = 2, .max_tokens_per_seq = 20};
    struct pkv_pool *pool = make(&options), *other = make(&options);
    struct pkv_block_copy copies[1];
    int32_t tokens[24] = {0};
    int64_t hit;
    struct pkv_seq child;
    (void)state;

    const struct pkv_seq seq = fill(pool, tokens, 10, 0), foreign = fill(other, tokens, 4, 0);
    CHECK_REFUSED(pkv_seq_free(pool, foreign, &error), &error, PKV_STATUS_STALE_HANDLE);
    CHECK_REFUSED(pkv_seq_free(pool, (struct pkv_seq){0, 0}, &error), &error,
                  PKV_STATUS_STALE_HANDLE);
    CHECK_REFUSED(pkv_seq_free(pool, (struct pkv_seq){UINT32_MAX, 1}, &error), &error,
                  PKV_STATUS_STALE_HANDLE);
    CHECK_REFUSED(pkv_seq_truncate(pool, seq, -1, &error), &error, PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_seq_truncate(pool, seq, 11, &error), &error, PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_seq_mark_computed(pool, seq, 9, &error), &error, PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_seq_mark_computed(pool, seq, 11, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_seq_match(pool, seq, tokens, 4, &hit, &error), &error, PKV_STATUS_BAD_STATE);
    CHECK_REFUSED(pkv_seq_append(pool, seq, tokens, 11, copies, &error), &error,
                  PKV_STATUS_CAPACITY);
    CHECK_REFUSED(pkv_seq_append(pool, seq, tokens, INT64_MAX, copies, &error), &error,
                  PKV_STATUS_CAPACITY);
    CHECK_REFUSED(pkv_seq_append(pool, seq, tokens, -1, copies, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_seq_append(pool, seq, NULL, 1, copies, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_OK(pkv_seq_fork(pool, seq, &child, &error), &error);
    CHECK_REFUSED(pkv_seq_fork(pool, seq, &child, &error), &error, PKV_STATUS_CAPACITY);
    CHECK_OK(pkv_seq_free(pool, seq, &error), &error);
    CHECK_REFUSED(pkv_seq_free(pool, seq, &error), &error, PKV_STATUS_STALE_HANDLE);
    CHECK_REFUSED(pkv_seq_fork(pool, seq, &child, &error), &error, PKV_STATUS_STALE_HANDLE);
    CHECK_REFUSED(pkv_seq_append(pool, seq, tokens, 1, copies, &error), &error,
                  PKV_STATUS_STALE_HANDLE);
    /* The handle's place serves another sequence now. */
    const struct pkv_seq next = fill(pool, tokens, 4, 0);
    assert_int_equal(next.index, seq.index);
    CHECK_REFUSED(pkv_seq_truncate(pool, seq, 0, &error), &error, PKV_STATUS_STALE_HANDLE);
    CHECK_REFUSED(pkv_seq_create(pool, &child, &(struct pkv_seq_options){.priority = 1}, &error),
                  &error, PKV_STATUS_INVALID_ARGUMENT);
    finish(pool);
    pkv_pool_destroy(other);
}

static void forks_copy_on_write(void **state) {
    struct pkv_pool *pool = make(&(struct pkv_pool_options){.num_blocks = 8, .block_size = 4});
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7};
    struct pkv_block_copy copies[1];
    struct pkv_tensor table;
    struct pkv_seq child;
    (void)state;

    const struct pkv_seq parent = fill(pool, tokens, 6, 0);
    CHECK_OK(pkv_seq_fork(pool, parent, &child, &error), &error);
    assert_int_equal(metrics_of(pool).num_used_blocks, 2);
    CHECK_OK(pkv_seq_append(pool, child, tokens + 6, 1, copies, &error), &error);
    assert_int_equal(copies[0].source, 1);
    assert_int_equal(copies[0].destination, 2);
    CHECK_OK(pkv_seq_block_table(pool, child, 0, &table, &error), &error);
    assert_int_equal(((int32_t *)table.data)[0], 0);
    assert_int_equal(((int32_t *)table.data)[1], 2);
    /* Its last block is the parent's alone now. */
    CHECK_OK(pkv_seq_append(pool, parent, tokens + 6, 1, copies, &error), &error);
    assert_int_equal(copies[0].source, -1);
    assert_int_equal(metrics_of(pool).num_copied_blocks, 1);
    finish(pool);
}

/* Which of three cached single-block prompts is left after the others are evicted. */
static void lower_classes_go_first(void **state) {
    const int32_t prompts[3][4] = {{1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}};
    struct pkv_pool *pool = make(&(struct pkv_pool_options){
        .num_blocks = 3, .block_size = 4, .num_priorities = 3, .eviction = PKV_EVICTION_LRU});
    struct pkv_block blocks[3];
    (void)state;

    CHECK_OK(pkv_seq_free(pool, fill(pool, prompts[0], 4, 2), &error), &error);
    CHECK_OK(pkv_seq_free(pool, fill(pool, prompts[1], 4, 0), &error), &error);
    CHECK_OK(pkv_seq_free(pool, fill(pool, prompts[2], 4, 1), &error), &error);
    CHECK_OK(pkv_block_allocate(pool, 1, blocks, &error), &error);
    assert_int_equal(look_up(pool, prompts[1], 4), 0);
    assert_int_equal(look_up(pool, prompts[2], 4), 4);
    CHECK_OK(pkv_block_allocate(pool, 1, blocks + 1, &error), &error);
    assert_int_equal(look_up(pool, prompts[2], 4), 0);
    assert_int_equal(look_up(pool, prompts[0], 4), 4);
    assert_int_equal(metrics_of(pool).num_evicted_blocks, 2);
    finish(pool);
}

/* Uses A, B, C, A again, then evicts one: LRU takes B, FIFO takes A, LFU takes B; after one more
 * use of B and C, each policy names another victim. */
static void policies_choose_their_victims(void **state) {
    const int32_t prompts[3][4] = {{1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}};
    static const int uses[] = {0, 1, 2, 0, 0, 1};
    static const int victims[3][2] = {{2, 0}, {0, 1}, {2, 1}};
    (void)state;

    for (int32_t eviction = 0; eviction < 3; eviction++) {
        struct pkv_pool *pool = make(
            &(struct pkv_pool_options){.num_blocks = 3, .block_size = 4, .eviction = eviction});
        struct pkv_block blocks[2];
        for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
            struct pkv_seq seq;
            struct pkv_block_copy copies[1];
            int64_t hit;
            const int32_t *tokens = prompts[uses[i]];
            CHECK_OK(pkv_seq_create(pool, &seq, NULL, &error), &error);
            CHECK_OK(pkv_seq_match(pool, seq, tokens, 4, &hit, &error), &error);
            assert_int_equal(hit, i < 3 ? 0 : 4);
            CHECK_OK(pkv_seq_append(pool, seq, tokens + hit, 4 - hit, copies, &error), &error);
            CHECK_OK(pkv_seq_mark_computed(pool, seq, 4, &error), &error);
            CHECK_OK(pkv_seq_free(pool, seq, &error), &error);
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(look_up(pool, prompts[victims[eviction][i]], 4), 4);
            CHECK_OK(pkv_block_allocate(pool, 1, &blocks[i], &error), &error);
            assert_int_equal(look_up(pool, prompts[victims[eviction][i]], 4), 0);
        }
        finish(pool);
    }
}

static void pins_keep_a_prefix(void **state) {
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct pkv_pool *pool = make(&(struct pkv_pool_options){.num_blocks = 4, .block_size = 4});
    struct pkv_block pinned[2], blocks[3];
    int64_t num_blocks, hit;
    (void)state;

    CHECK_OK(pkv_seq_free(pool, fill(pool, tokens, 8, 0), &error), &error);
    CHECK_REFUSED(pkv_prefix_pin(pool, NULL, tokens, 8, pinned, 1, &num_blocks, NULL, &error),
                  &error, PKV_STATUS_CAPACITY);
    assert_int_equal(metrics_of(pool).num_cached_blocks, 2);
    CHECK_OK(pkv_prefix_pin(pool, NULL, tokens, 8, pinned, 2, &num_blocks, &hit, &error), &error);
    assert_int_equal(num_blocks, 2);
    assert_int_equal(hit, 8);
    CHECK_REFUSED(pkv_block_allocate(pool, 3, blocks, &error), &error, PKV_STATUS_OUT_OF_BLOCKS);
    CHECK_OK(pkv_block_allocate(pool, 2, blocks, &error), &error);
    assert_int_equal(look_up(pool, tokens, 8), 8);
    CHECK_OK(pkv_block_release(pool, 2, pinned, &error), &error);
    CHECK_OK(pkv_block_allocate(pool, 1, blocks + 2, &error), &error);
    assert_int_equal(look_up(pool, tokens, 8), 4);
    finish(pool);
}

static void an_epoch_ends_for_blocks_in_use_too(void **state) {
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    struct pkv_pool *pool = make(&(struct pkv_pool_options){.num_blocks = 9, .block_size = 4});
    struct pkv_block_copy copies[1];
    struct pkv_seq_info info = {0};
    (void)state;

    const struct pkv_seq used = fill(pool, tokens, 8, 0);
    const struct pkv_seq other = fill(pool, tokens + 4, 8, 0);
    CHECK_OK(pkv_seq_free(pool, other, &error), &error);
    assert_int_equal(metrics_of(pool).num_cached_blocks, 2);
    CHECK_OK(pkv_pool_invalidate(pool, &error), &error);
    assert_int_equal(metrics_of(pool).num_cached_blocks, 0);
    assert_int_equal(metrics_of(pool).num_free_blocks, 7);
    assert_int_equal(look_up(pool, tokens, 8), 0);
    assert_int_equal(look_up(pool, tokens + 4, 8), 0);
    /* What it computes now stands on keys and values from before. */
    CHECK_OK(pkv_seq_append(pool, used, tokens + 8, 4, copies, &error), &error);
    CHECK_OK(pkv_seq_mark_computed(pool, used, 12, &error), &error);
    CHECK_OK(pkv_seq_info_get(pool, used, &info, &error), &error);
    assert_int_equal(info.is_indexed, 0);
    assert_int_equal(look_up(pool, tokens, 12), 0);
    CHECK_OK(pkv_pool_audit(pool, NULL, &error), &error);
    /* New contents under the same keys are found; the old blocks can be had. */
    CHECK_OK(pkv_seq_truncate(pool, used, 0, &error), &error);
    CHECK_OK(pkv_seq_append(pool, used, tokens, 8, copies, &error), &error);
    CHECK_OK(pkv_seq_mark_computed(pool, used, 8, &error), &error);
    assert_int_equal(look_up(pool, tokens, 12), 8);
    finish(pool);
}

/* Full attention beside a window of 6 tokens: old blocks of the window are given back. */
static void windows_give_blocks_back(void **state) {
    static const struct pkv_layer_group groups[] = {{4, 0}, {4, 6}};
    struct pkv_pool *pool =
        make(&(struct pkv_pool_options){.num_blocks = 12, .groups = groups, .num_groups = 2});
    int32_t tokens[24];
    struct pkv_tensor full, window;
    struct pkv_seq late;
    int64_t hit;
    (void)state;

    for (int32_t i = 0; i < 24; i++)
        tokens[i] = i;
    const struct pkv_seq seq = fill(pool, tokens, 20, 0);
    CHECK_OK(pkv_seq_block_table(pool, seq, 0, &full, &error), &error);
    CHECK_OK(pkv_seq_block_table(pool, seq, 1, &window, &error), &error);
    assert_int_equal(full.shape[0], 5);
    assert_int_equal(window.shape[0], 5);
    /* Token 20 sees tokens 15 to 20: blocks 3 and 4. */
    for (int i = 0; i < 5; i++) {
        assert_true(((int32_t *)full.data)[i] >= 0);
        assert_int_equal(((int32_t *)window.data)[i] >= 0, i >= 3);
    }
    assert_int_equal(metrics_of(pool).num_used_blocks, 7);
    CHECK_REFUSED(pkv_seq_truncate(pool, seq, 16, &error), &error, PKV_STATUS_BAD_STATE);
    CHECK_OK(pkv_seq_truncate(pool, seq, 17, &error), &error);
    /* Another sequence needs only what its own window sees. */
    CHECK_OK(pkv_seq_create(pool, &late, NULL, &error), &error);
    CHECK_OK(pkv_seq_match(pool, late, tokens, 20, &hit, &error), &error);
    assert_int_equal(hit, 20);
    CHECK_OK(pkv_seq_block_table(pool, late, 1, &window, &error), &error);
    assert_int_equal(((int32_t *)window.data)[2], -1);
    assert_true(((int32_t *)window.data)[3] >= 0);
    finish(pool);
}

/* The window's old blocks are evicted; a hit does not need them, but the ones it sees. */
static void a_hit_needs_its_window_only(void **state) {
    static const struct pkv_layer_group groups[] = {{4, 0}, {4, 4}};
    struct pkv_pool *pool =
        make(&(struct pkv_pool_options){.num_blocks = 9, .groups = groups, .num_groups = 2});
    int32_t tokens[16];
    struct pkv_block blocks[9];
    (void)state;

    for (int32_t i = 0; i < 16; i++)
        tokens[i] = i;
    const struct pkv_seq seq = fill(pool, tokens, 16, 0);
    assert_int_equal(metrics_of(pool).num_cached_blocks, 3);
    /* The plain free one, and the three that left the window. */
    CHECK_OK(pkv_block_allocate(pool, 4, blocks, &error), &error);
    assert_int_equal(metrics_of(pool).num_evicted_blocks, 3);
    assert_int_equal(look_up(pool, tokens, 16), 16);
    assert_int_equal(look_up(pool, tokens, 15), 0);
    CHECK_OK(pkv_seq_free(pool, seq, &error), &error);
    finish(pool);
}

static void waste_is_counted(void **state) {
    struct pkv_pool *pool = make(&(struct pkv_pool_options){.num_blocks = 9, .block_size = 8});
    int32_t tokens[20] = {0};
    (void)state;

    (void)fill(pool, tokens, 17, 0);
    const struct pkv_seq seq = fill(pool, tokens, 5, 0);
    assert_int_equal(metrics_of(pool).num_table_slots, 32);
    assert_int_equal(metrics_of(pool).num_waste_tokens, 10);
    CHECK_OK(pkv_seq_free(pool, seq, &error), &error);
    assert_int_equal(metrics_of(pool).num_waste_tokens, 7);
    finish(pool);
}

/* Its window has been given back whole: giving it up would free nothing. */
static void victims_hold_blocks(void **state) {
    const struct pkv_layer_group window = {.block_size = 4, .max_visible_tokens = 1};
    struct pkv_pool *pool =
        make(&(struct pkv_pool_options){.num_blocks = 9, .groups = &window, .num_groups = 1});
    const int32_t tokens[] = {1, 2, 3, 4, 5};
    struct pkv_seq victim = {9, 9};
    (void)state;

    const struct pkv_seq first = fill(pool, tokens, 5, 0);
    (void)fill(pool, tokens, 4, 0);
    CHECK_OK(pkv_preempt_choose(pool, PKV_PREEMPT_LATEST_ARRIVAL, &victim, &error), &error);
    assert_int_equal(victim.index, first.index);
    CHECK_OK(pkv_seq_free(pool, first, &error), &error);
    CHECK_REFUSED(pkv_preempt_choose(pool, PKV_PREEMPT_LATEST_ARRIVAL, &victim, &error), &error,
                  PKV_STATUS_CAPACITY);
    victim = (struct pkv_seq){9, 9};
    CHECK_REFUSED(pkv_preempt_choose(NULL, PKV_PREEMPT_LATEST_ARRIVAL, &victim, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    assert_int_equal(victim.generation, 0);
    finish(pool);
}

static void victims_are_chosen_and_resumed(void **state) {
    struct pkv_pool *pool =
        make(&(struct pkv_pool_options){.num_blocks = 9, .block_size = 4, .num_priorities = 2});
    const int32_t tokens[3][8] = {{1, 2, 3, 4, 5, 6, 7, 8}, {9, 9, 9, 9, 9}, {8, 8, 8, 8, 8}};
    struct pkv_seq victim;
    int64_t hit;
    (void)state;

    CHECK_REFUSED(pkv_preempt_choose(pool, PKV_PREEMPT_LATEST_ARRIVAL, &victim, &error), &error,
                  PKV_STATUS_CAPACITY);
    const struct pkv_seq first = fill(pool, tokens[0], 8, 0);
    (void)fill(pool, tokens[1], 5, 1);
    const struct pkv_seq third = fill(pool, tokens[2], 5, 1);
    CHECK_REFUSED(pkv_preempt_choose(pool, 2, &victim, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_OK(pkv_preempt_choose(pool, PKV_PREEMPT_LATEST_ARRIVAL, &victim, &error), &error);
    assert_int_equal(victim.index, third.index);
    CHECK_OK(pkv_preempt_choose(pool, PKV_PREEMPT_LOWEST_PRIORITY, &victim, &error), &error);
    assert_int_equal(victim.index, first.index);
    CHECK_OK(pkv_seq_truncate(pool, victim, 0, &error), &error);
    assert_int_equal(metrics_of(pool).num_cached_blocks, 2);
    CHECK_OK(pkv_seq_match(pool, victim, tokens[0], 8, &hit, &error), &error);
    assert_int_equal(hit, 8);
    finish(pool);
}

/* Each damage is done by hand to a sound pool, found, and undone. */
static void the_auditor_finds_damage(void **state) {
    struct pkv_pool *pool = make(&(struct pkv_pool_options){.num_blocks = 8, .block_size = 4});
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    struct pkv_audit audit = {0};
    (void)state;

    const struct pkv_seq seq = fill(pool, tokens, 10, 0);
    CHECK_OK(pkv_seq_free(pool, fill(pool, tokens + 4, 6, 0), &error), &error);
    CHECK_OK(pkv_pool_audit(pool, &audit, &error), &error);
    assert_int_equal(audit.rule, PKV_AUDIT_PASSED);
    assert_int_equal(audit.block_id, -1);
    struct pkv_block_record *block = &pool->blocks[1];
    struct pkv_seq_record *record = &pool->seqs[seq.index];

#define FIND(lvalue, damage, expected_rule, expected_block)                                        \
    do {                                                                                           \
        const int64_t sound = (int64_t)(lvalue);                                                   \
        lvalue = damage;                                                                           \
        CHECK_REFUSED(pkv_pool_audit(pool, &audit, &error), &error, PKV_STATUS_INTERNAL);          \
        assert_int_equal(audit.rule, expected_rule);                                               \
        assert_int_equal(audit.block_id, expected_block);                                          \
        assert_non_null(audit.text);                                                               \
        lvalue = (unsigned)sound;                                                                  \
        CHECK_OK(pkv_pool_audit(pool, &audit, &error), &error);                                    \
    } while (0)

    FIND(block->num_references, 2, PKV_AUDIT_REFERENCES, 1);
    FIND(block->num_handles, 1, PKV_AUDIT_REFERENCES, 1);
    FIND(block->num_uncomputed, 1, PKV_AUDIT_UNCOMPUTED, 1);
    FIND(pool->counts.num_free, 5, PKV_AUDIT_COUNTS, -1);
    FIND(pool->blocks[pool->queue.head].previous, 1, PKV_AUDIT_FREE_QUEUE,
         (int32_t)pool->queue.head);
    FIND(pool->queue.head, pool->blocks[pool->queue.head].next, PKV_AUDIT_FREE_QUEUE,
         (int32_t)pool->queue.head);
    FIND(block->flags, PKV_BLOCK_CHAINED, PKV_AUDIT_INDEX, 1);
    FIND(record->num_computed, 7, PKV_AUDIT_UNCOMPUTED, 1);
    FIND(pool->tokens[1 * 4 + 2], 99, PKV_AUDIT_INDEX_CONTENTS, 1);
    FIND(pkv_seq_part(pool, seq.index, 0)->num_blocks, 2, PKV_AUDIT_TABLES, -1);
    FIND(pool->domains.entries[record->domain].num_seqs, 2, PKV_AUDIT_DOMAINS, -1);
    finish(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(memory_can_be_the_callers),
        cmocka_unit_test(an_allocator_is_asked_once),
        cmocka_unit_test(a_block_costs_at_most_128_bytes),
        cmocka_unit_test(blocks_are_handed_out_all_or_none),
        cmocka_unit_test(misused_handles_are_refused),
        cmocka_unit_test(lookup_ends_with_the_longest_sequence),
        cmocka_unit_test(misused_sequences_are_refused),
        cmocka_unit_test(forks_copy_on_write),
        cmocka_unit_test(lower_classes_go_first),
        cmocka_unit_test(policies_choose_their_victims),
        cmocka_unit_test(pins_keep_a_prefix),
        cmocka_unit_test(an_epoch_ends_for_blocks_in_use_too),
        cmocka_unit_test(windows_give_blocks_back),
        cmocka_unit_test(a_hit_needs_its_window_only),
        cmocka_unit_test(waste_is_counted),
        cmocka_unit_test(victims_hold_blocks),
        cmocka_unit_test(victims_are_chosen_and_resumed),
        cmocka_unit_test(the_auditor_finds_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
