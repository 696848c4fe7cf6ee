/* SPDX-License-Identifier: MIT
 *
 * The scenarios with known answers of the block manager's specification, each under its own name.
 * The source's block 0 is a reserved one; ours reserves none, so numbers are one less here.
 */
#include "check.h"

enum { MAX_TOKENS = 64 };

static struct pkv_error error;

/* A pool, and the tokens of one request. */
struct scene {
    struct pkv_pool *pool;
    int32_t tokens[MAX_TOKENS];
};

static struct scene open_scene(int64_t block_size, int64_t num_blocks) {
    struct scene scene = {0};
    const struct pkv_pool_options options = {.num_blocks = num_blocks, .block_size = block_size};
    CHECK_OK(pkv_pool_create(&scene.pool, &options, &error), &error);
    return scene;
}

static void close_scene(struct scene *scene) {
    CHECK_OK(pkv_pool_audit(scene->pool, NULL, &error), &error);
    pkv_pool_destroy(scene->pool);
}

static struct pkv_seq create_salted(const struct scene *scene, const char *salt) {
    struct pkv_seq seq;
    const struct pkv_domain domain = {.salt = {salt, strlen(salt)}};
    const struct pkv_seq_options options = {.domain = &domain};
    CHECK_OK(pkv_seq_create(scene->pool, &seq, &options, &error), &error);
    return seq;
}

static struct pkv_seq create(const struct scene *scene) {
    return create_salted(scene, "");
}

static void append(const struct scene *scene, struct pkv_seq seq, const int32_t *tokens,
                   int64_t num_tokens) {
    struct pkv_block_copy copies[1];
    CHECK_OK(pkv_seq_append(scene->pool, seq, tokens, num_tokens, copies, &error), &error);
    CHECK_OK(pkv_pool_audit(scene->pool, NULL, &error), &error);
}

static void compute(const struct scene *scene, struct pkv_seq seq, int64_t num_tokens) {
    CHECK_OK(pkv_seq_mark_computed(scene->pool, seq, num_tokens, &error), &error);
    CHECK_OK(pkv_pool_audit(scene->pool, NULL, &error), &error);
}

static void release(const struct scene *scene, struct pkv_seq seq) {
    CHECK_OK(pkv_seq_free(scene->pool, seq, &error), &error);
    CHECK_OK(pkv_pool_audit(scene->pool, NULL, &error), &error);
}

static int64_t match(const struct scene *scene, struct pkv_seq seq, const int32_t *tokens,
                     int64_t num_tokens) {
    int64_t num_hit_tokens = -1;
    CHECK_OK(pkv_seq_match(scene->pool, seq, tokens, num_tokens, &num_hit_tokens, &error), &error);
    CHECK_OK(pkv_pool_audit(scene->pool, NULL, &error), &error);
    return num_hit_tokens;
}

/* Matches, appends the rest and computes it: a prefill. Returns the tokens found. */
static int64_t prefill(const struct scene *scene, struct pkv_seq seq, const int32_t *tokens,
                       int64_t num_tokens) {
    const int64_t hit = match(scene, seq, tokens, num_tokens);
    append(scene, seq, tokens + hit, num_tokens - hit);
    compute(scene, seq, num_tokens);
    return hit;
}

static int32_t block_of(const struct scene *scene, struct pkv_seq seq, int64_t i) {
    struct pkv_tensor table;
    CHECK_OK(pkv_seq_block_table(scene->pool, seq, 0, &table, &error), &error);
    assert_true(i < table.shape[0]);
    return ((const int32_t *)table.data)[i];
}

static int64_t num_blocks_of(const struct scene *scene, struct pkv_seq seq) {
    struct pkv_seq_info info = {0};
    CHECK_OK(pkv_seq_info_get(scene->pool, seq, &info, &error), &error);
    return info.num_blocks;
}

static int64_t num_available(const struct scene *scene) {
    struct pkv_pool_metrics metrics = {0};
    CHECK_OK(pkv_pool_metrics_get(scene->pool, &metrics, &error), &error);
    return metrics.num_free_blocks + metrics.num_cached_blocks;
}

static void count_from(int32_t *tokens, int32_t first, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        tokens[i] = first + (int32_t)i;
}

/* Blocks 0 to 9. */
static void test_prefill(void **state) {
    struct scene scene = open_scene(16, 10);
    int32_t tokens[55];
    struct pkv_block blocks[10];
    (void)state;

    count_from(tokens, 100, 55);
    const struct pkv_seq req0 = create(&scene);
    assert_int_equal(prefill(&scene, req0, tokens, 55), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(block_of(&scene, req0, i), i);

    count_from(tokens + 48, 900, 5);
    const struct pkv_seq req1 = create(&scene);
    assert_int_equal(prefill(&scene, req1, tokens, 53), 48);
    for (int i = 0; i < 3; i++)
        assert_int_equal(block_of(&scene, req1, i), i);
    assert_int_equal(block_of(&scene, req1, 3), 4);
    assert_int_equal(num_available(&scene), 5);

    release(&scene, req0);
    assert_int_equal(num_available(&scene), 6);
    release(&scene, req1);
    assert_int_equal(num_available(&scene), 10);

    count_from(tokens + 48, 700, 6);
    const struct pkv_seq req2 = create(&scene);
    assert_int_equal(prefill(&scene, req2, tokens, 54), 48);
    for (int i = 0; i < 3; i++)
        assert_int_equal(block_of(&scene, req2, i), i);
    assert_int_equal(num_available(&scene), 6);
    release(&scene, req2);

    /* The order of reuse: indexed blocks last, and of these the tail first. */
    CHECK_OK(pkv_block_allocate(scene.pool, 10, blocks, &error), &error);
    for (int i = 0; i < 3; i++)
        assert_int_equal(blocks[7 + i].block_id, 2 - i);
    CHECK_OK(pkv_block_release(scene.pool, 10, blocks, &error), &error);
    close_scene(&scene);
}

static void computed_blocks_are_not_evicted(void **state) {
    struct scene scene = open_scene(16, 2);
    int32_t a[17], b[16];
    (void)state;

    count_from(a, 0, 17);
    count_from(b, 100, 16);
    const struct pkv_seq first = create(&scene), second = create(&scene);
    assert_int_equal(prefill(&scene, first, a, 16), 0);
    assert_int_equal(prefill(&scene, second, b, 16), 0);
    const int32_t block_a = block_of(&scene, first, 0), block_b = block_of(&scene, second, 0);
    release(&scene, first);
    release(&scene, second);

    const struct pkv_seq third = create(&scene);
    assert_int_equal(prefill(&scene, third, a, 17), 16);
    assert_int_equal(block_of(&scene, third, 0), block_a);
    assert_int_equal(block_of(&scene, third, 1), block_b);
    close_scene(&scene);
}

static void hash_is_cleared_on_reuse(void **state) {
    struct scene scene = open_scene(16, 1);
    int32_t a[16], b[16];
    (void)state;

    count_from(a, 0, 16);
    count_from(b, 100, 16);
    struct pkv_seq seq = create(&scene);
    assert_int_equal(prefill(&scene, seq, a, 16), 0);
    release(&scene, seq);
    seq = create(&scene);
    assert_int_equal(prefill(&scene, seq, b, 16), 0);
    assert_int_equal(block_of(&scene, seq, 0), 0);
    release(&scene, seq);
    seq = create(&scene);
    assert_int_equal(match(&scene, seq, a, 16), 0);
    release(&scene, seq);
    seq = create(&scene);
    assert_int_equal(match(&scene, seq, b, 16), 16);
    close_scene(&scene);
}

static void decode(void **state) {
    struct scene scene = open_scene(16, 10);
    int32_t tokens[78];
    (void)state;

    count_from(tokens, 0, 78);
    const struct pkv_seq seq = create(&scene), later = create(&scene);
    assert_int_equal(prefill(&scene, seq, tokens, 55), 0);
    assert_int_equal(num_blocks_of(&scene, seq), 4);
    append(&scene, seq, tokens + 55, 4);
    compute(&scene, seq, 59);
    assert_int_equal(num_blocks_of(&scene, seq), 4);
    append(&scene, seq, tokens + 59, 19);
    assert_int_equal(num_blocks_of(&scene, seq), 5);
    compute(&scene, seq, 78);
    assert_int_equal(match(&scene, later, tokens, 78), 64);
    assert_int_equal(block_of(&scene, later, 3), block_of(&scene, seq, 3));
    close_scene(&scene);
}

static void prefix_caching_off(void **state) {
    struct scene scene = {0};
    struct pkv_block_copy copies[1];
    struct pkv_pool_metrics before = {0}, after = {0};
    const struct pkv_pool_options options = {
        .num_blocks = 4, .block_size = 4, .index_mode = PKV_INDEX_OFF};
    (void)state;

    CHECK_OK(pkv_pool_create(&scene.pool, &options, &error), &error);
    struct pkv_seq seq = create(&scene);
    append(&scene, seq, NULL, 10);
    assert_int_equal(num_blocks_of(&scene, seq), 3);
    compute(&scene, seq, 10);
    release(&scene, seq);
    seq = create(&scene);
    assert_int_equal(match(&scene, seq, NULL, 16), 0);
    append(&scene, seq, NULL, 16);
    assert_int_equal(num_blocks_of(&scene, seq), 4);
    const struct pkv_seq further = create(&scene);
    CHECK_OK(pkv_pool_metrics_get(scene.pool, &before, &error), &error);
    CHECK_REFUSED(pkv_seq_append(scene.pool, further, NULL, 1, copies, &error), &error,
                  PKV_STATUS_OUT_OF_BLOCKS);
    CHECK_OK(pkv_pool_metrics_get(scene.pool, &after, &error), &error);
    before.num_out_of_blocks++;
    assert_memory_equal(&before, &after, sizeof(after));
    assert_int_equal(num_blocks_of(&scene, further), 0);
    close_scene(&scene);
}

static void salt(void **state) {
    struct scene scene = open_scene(16, 10);
    int32_t tokens[32];
    (void)state;

    count_from(tokens, 0, 32);
    const struct pkv_seq red = create_salted(&scene, "red"), blue = create_salted(&scene, "blue"),
                         again = create_salted(&scene, "red"), none = create(&scene);
    assert_int_equal(prefill(&scene, red, tokens, 32), 0);
    assert_int_equal(match(&scene, blue, tokens, 32), 0);
    assert_int_equal(match(&scene, none, tokens, 32), 0);
    assert_int_equal(match(&scene, again, tokens, 32), 32);
    close_scene(&scene);
}

/* The salt reaches the second block through the chain only. */
static void salt_enters_the_first_key(void **state) {
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const struct pkv_domain domain = {.salt = {"red", 3}};
    struct pkv_key plain, salted, second_plain, second_salted;
    (void)state;

    CHECK_OK(pkv_prefix_root_key(7, 0, 4, NULL, &plain, &error), &error);
    CHECK_OK(pkv_prefix_root_key(7, 0, 4, &domain, &salted, &error), &error);
    CHECK_OK(pkv_prefix_block_key(7, &plain, tokens, 4, &plain, &error), &error);
    CHECK_OK(pkv_prefix_block_key(7, &salted, tokens, 4, &salted, &error), &error);
    assert_memory_not_equal(&plain, &salted, sizeof(plain));
    CHECK_OK(pkv_prefix_block_key(7, &plain, tokens + 4, 4, &second_plain, &error), &error);
    CHECK_OK(pkv_prefix_block_key(7, &salted, tokens + 4, 4, &second_salted, &error), &error);
    assert_memory_not_equal(&second_plain, &second_salted, sizeof(plain));
}

static void note_stored_key(void *user, const struct pkv_pool_event *event) {
    struct pkv_key *keys = user;
    assert_int_equal(event->type, PKV_POOL_EVENT_STORED);
    assert_true(event->sequence_number < 2);
    keys[event->sequence_number] = event->key;
}

static void repeated_content(void **state) {
    const int32_t tokens[] = {1, 2, 3, 4, 1, 2, 3, 4};
    struct pkv_key keys[2];
    struct scene scene = {0};
    const struct pkv_pool_options options = {
        .num_blocks = 4, .block_size = 4, .event = note_stored_key, .event_user = keys};
    (void)state;

    CHECK_OK(pkv_pool_create(&scene.pool, &options, &error), &error);
    const struct pkv_seq seq = create(&scene), again = create(&scene);
    assert_int_equal(prefill(&scene, seq, tokens, 8), 0);
    assert_memory_not_equal(&keys[0], &keys[1], sizeof(keys[0]));
    assert_int_equal(match(&scene, again, tokens, 8), 8);
    assert_int_not_equal(block_of(&scene, again, 0), block_of(&scene, again, 1));
    close_scene(&scene);
}

static void truncate_into_an_indexed_block(void **state) {
    struct scene scene = open_scene(4, 8);
    const int32_t old[] = {1, 2, 3, 4, 5, 6, 7, 8}, new[] = {1, 2, 3, 4, 5, 6, 20, 21};
    (void)state;

    const struct pkv_seq a = create(&scene), b = create(&scene), c = create(&scene);
    assert_int_equal(prefill(&scene, a, old, 8), 0);
    CHECK_OK(pkv_seq_truncate(scene.pool, a, 6, &error), &error);
    CHECK_OK(pkv_pool_audit(scene.pool, NULL, &error), &error);
    append(&scene, a, new + 6, 2);
    compute(&scene, a, 8);
    assert_int_equal(match(&scene, b, old, 8), 4);
    assert_int_equal(match(&scene, c, new, 8), 8);
    close_scene(&scene);
}

/* The same with a second holder, who keeps the old contents. */
static void truncate_into_a_shared_block(void **state) {
    struct scene scene = open_scene(4, 8);
    const int32_t old[] = {1, 2, 3, 4, 5, 6, 7, 8}, new[] = {1, 2, 3, 4, 5, 6, 20, 21};
    struct pkv_block_copy copies[1];
    (void)state;

    const struct pkv_seq a = create(&scene), b = create(&scene), c = create(&scene),
                         d = create(&scene);
    assert_int_equal(prefill(&scene, a, old, 8), 0);
    assert_int_equal(match(&scene, d, old, 8), 8);
    CHECK_OK(pkv_seq_truncate(scene.pool, a, 6, &error), &error);
    CHECK_OK(pkv_seq_append(scene.pool, a, new + 6, 2, copies, &error), &error);
    assert_int_equal(copies[0].source, block_of(&scene, d, 1));
    assert_int_equal(copies[0].destination, block_of(&scene, a, 1));
    compute(&scene, a, 8);
    assert_int_equal(match(&scene, b, old, 8), 8);
    assert_int_equal(match(&scene, c, new, 8), 8);
    close_scene(&scene);
}

static void not_computed_not_found(void **state) {
    struct scene scene = open_scene(4, 8);
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)state;

    const struct pkv_seq a = create(&scene), b = create(&scene);
    append(&scene, a, tokens, 8);
    assert_int_equal(match(&scene, b, tokens, 8), 0);
    compute(&scene, a, 4);
    assert_int_equal(match(&scene, b, tokens, 8), 4);
    assert_int_equal(block_of(&scene, b, 0), block_of(&scene, a, 0));
    close_scene(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(computed_blocks_are_not_evicted),
        cmocka_unit_test(hash_is_cleared_on_reuse),
        cmocka_unit_test(decode),
        cmocka_unit_test(prefix_caching_off),
        cmocka_unit_test(salt),
        cmocka_unit_test(salt_enters_the_first_key),
        cmocka_unit_test(repeated_content),
        cmocka_unit_test(truncate_into_an_indexed_block),
        cmocka_unit_test(truncate_into_a_shared_block),
        cmocka_unit_test(not_computed_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
