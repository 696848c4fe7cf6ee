/* SPDX-License-Identifier: MIT
 *
 * Prefix keys: the vectors of doc/prefix-key.md, computed by another implementation; events that
 * carry them; and what happens when keys collide, with a key function that is wrapped to do so all
 * the time.
 */
#include "check.h"
#include "pool/key.h"
#include "rng.h"

/* The test is linked so that the pool calls the first, and the second is the real one. */
struct pkv_key __wrap_pkv_key_block(uint64_t seed, struct pkv_key parent, const int32_t *tokens,
                                    int64_t num_tokens);
struct pkv_key __real_pkv_key_block(uint64_t seed, struct pkv_key parent, const int32_t *tokens,
                                    int64_t num_tokens);

struct pkv_key __wrap_pkv_key_root(uint64_t seed, int32_t group, int64_t block_size,
                                   const unsigned char *encoded, int64_t num_bytes);
struct pkv_key __real_pkv_key_root(uint64_t seed, int32_t group, int64_t block_size,
                                   const unsigned char *encoded, int64_t num_bytes);

static struct pkv_error error;
static uint64_t key_mask = UINT64_MAX; /* what is left of the keys */

struct pkv_key __wrap_pkv_key_block(uint64_t seed, struct pkv_key parent, const int32_t *tokens,
                                    int64_t num_tokens) {
    struct pkv_key key = __real_pkv_key_block(seed, parent, tokens, num_tokens);
    key.low &= key_mask;
    if (key_mask != UINT64_MAX)
        key.high = 0;
    return key;
}

struct pkv_key __wrap_pkv_key_root(uint64_t seed, int32_t group, int64_t block_size,
                                   const unsigned char *encoded, int64_t num_bytes) {
    struct pkv_key key = __real_pkv_key_root(seed, group, block_size, encoded, num_bytes);
    if (key_mask != UINT64_MAX)
        key = (struct pkv_key){0, 0};
    return key;
}

static void assert_key(struct pkv_key key, uint64_t high, uint64_t low) {
    if (key.high != high || key.low != low)
        print_error("%016llx %016llx\n", (unsigned long long)key.high, (unsigned long long)key.low);
    assert_true(key.high == high && key.low == low);
}

static void documented_vectors(void **state) {
    static const int32_t tokens[] = {-1, 0, 1, INT32_MAX, 7, 8};
    const struct pkv_bytes media[] = {{"\0\1", 2}, {"image", 5}};
    const struct pkv_domain domain = {.model = {"model-7b/bf16", 13},
                                      .adapter = {"lora-3", 6},
                                      .salt = {"tenant", 6},
                                      .media = media,
                                      .num_media = 2};
    const uint64_t seed = UINT64_C(0x0123456789abcdef);
    int32_t counted[300];
    struct pkv_key key;
    (void)state;

    for (int32_t i = 0; i < 300; i++)
        counted[i] = i;
    CHECK_OK(pkv_prefix_root_key(1, 0, 16, NULL, &key, &error), &error);
    assert_key(key, UINT64_C(0xcc45f58a213ae984), UINT64_C(0x69a653e8aaa1efb3));
    CHECK_OK(pkv_prefix_block_key(1, &key, counted, 16, &key, &error), &error);
    assert_key(key, UINT64_C(0x5a07e75838164768), UINT64_C(0xdacc093256b93cb7));
    CHECK_OK(pkv_prefix_block_key(1, &key, counted + 16, 16, &key, &error), &error);
    assert_key(key, UINT64_C(0xdf3aa317f1e348b5), UINT64_C(0xacabe40d39f8f060));

    CHECK_OK(pkv_prefix_root_key(seed, 1, 4, &domain, &key, &error), &error);
    assert_key(key, UINT64_C(0xf30ef5c2a79fc07e), UINT64_C(0x84d220e7f7356574));
    CHECK_OK(pkv_prefix_block_key(seed, &key, tokens, 4, &key, &error), &error);
    assert_key(key, UINT64_C(0x39eeb5701cfe1cef), UINT64_C(0x5467b614413e60a8));
    CHECK_OK(pkv_prefix_block_key(seed, &key, tokens + 4, 2, &key, &error), &error);
    assert_key(key, UINT64_C(0xbf91e860db20c8f3), UINT64_C(0x87334bd3cb3dfd59));

    CHECK_OK(pkv_prefix_root_key(42, 0, 300, NULL, &key, &error), &error);
    assert_key(key, UINT64_C(0x8644e026ff0e700b), UINT64_C(0xe490cd8fed502dbb));
    CHECK_OK(pkv_prefix_block_key(42, &key, counted, 300, &key, &error), &error);
    assert_key(key, UINT64_C(0x7a839bf417c9d9c3), UINT64_C(0x7a7a0406f03bedd6));
}

static void keys_are_refused_for_nonsense(void **state) {
    const struct pkv_domain domain = {.salt = {NULL, 1}};
    const struct pkv_domain no_media = {.num_media = 1};
    const int32_t token = 1;
    struct pkv_key key = {0, 0};
    (void)state;

    CHECK_REFUSED(pkv_prefix_root_key(1, 0, 0, NULL, &key, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_prefix_root_key(1, -1, 4, NULL, &key, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_prefix_root_key(1, 0, 4, &domain, &key, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_prefix_root_key(1, 0, 4, &no_media, &key, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_prefix_block_key(1, &key, &token, 0, &key, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_prefix_block_key(1, NULL, &token, 1, &key, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
}

/* Fields are tagged and prefixed with their length: no two domains are written alike. */
static void fields_do_not_run_into_each_other(void **state) {
    const struct pkv_bytes ab[] = {{"a", 1}, {"b", 1}}, a_b[] = {{"ab", 2}};
    const struct pkv_domain domains[] = {
        {.salt = {"ab", 2}},
        {.adapter = {"ab", 2}},
        {.model = {"ab", 2}},
        {.model = {"a", 1}, .adapter = {"b", 1}},
        {.adapter = {"a", 1}, .salt = {"b", 1}},
        {.media = ab, .num_media = 2},
        {.media = a_b, .num_media = 1},
        {.num_media = 0},
    };
    enum { NUM_DOMAINS = sizeof(domains) / sizeof(domains[0]) };
    struct pkv_key keys[NUM_DOMAINS];
    (void)state;

    for (int i = 0; i < NUM_DOMAINS; i++) {
        CHECK_OK(pkv_prefix_root_key(5, 0, 16, &domains[i], &keys[i], &error), &error);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(&keys[i], &keys[j], sizeof(keys[0]));
    }
}

struct listener {
    struct pkv_pool_event events[16];
    int32_t tokens[16][4];
    int num_events;
};

static void listen(void *user, const struct pkv_pool_event *event) {
    struct listener *listener = user;
    assert_true(listener->num_events < 16);
    if (event->token_ids)
        memcpy(listener->tokens[listener->num_events], event->token_ids,
               (size_t)event->num_tokens * sizeof(int32_t));
    listener->events[listener->num_events++] = *event;
}

static void events_carry_keys_and_tokens(void **state) {
    struct listener listener = {.num_events = 0};
    const struct pkv_pool_options options = {.num_blocks = 3,
                                             .block_size = 4,
                                             .hash_seed = 77,
                                             .event = listen,
                                             .event_user = &listener};
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct pkv_pool *pool;
    struct pkv_seq seq;
    struct pkv_block_copy copies[1];
    struct pkv_block blocks[2];
    struct pkv_key root, first, second;
    (void)state;

    CHECK_OK(pkv_pool_create(&pool, &options, &error), &error);
    assert_int_equal(pkv_pool_hash_seed(pool), 77);
    CHECK_OK(pkv_prefix_root_key(77, 0, 4, NULL, &root, &error), &error);
    CHECK_OK(pkv_prefix_block_key(77, &root, tokens, 4, &first, &error), &error);
    CHECK_OK(pkv_prefix_block_key(77, &first, tokens + 4, 4, &second, &error), &error);
    CHECK_OK(pkv_seq_create(pool, &seq, NULL, &error), &error);
    CHECK_OK(pkv_seq_append(pool, seq, tokens, 9, copies, &error), &error);
    assert_int_equal(listener.num_events, 0);
    CHECK_OK(pkv_seq_mark_computed(pool, seq, 9, &error), &error);
    CHECK_OK(pkv_seq_free(pool, seq, &error), &error);
    CHECK_OK(pkv_block_allocate(pool, 2, blocks, &error), &error);
    CHECK_OK(pkv_pool_invalidate(pool, &error), &error);
    assert_int_equal(listener.num_events, 4);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(listener.events[i].sequence_number, i);

    const struct pkv_pool_event *event = listener.events;
    assert_int_equal(event->type, PKV_POOL_EVENT_STORED);
    assert_key(event->key, first.high, first.low);
    assert_key(event->parent_key, root.high, root.low);
    assert_int_equal(event->block_id, 0);
    assert_memory_equal(listener.tokens[0], tokens, 4 * sizeof(int32_t));
    event++;
    assert_int_equal(event->type, PKV_POOL_EVENT_STORED);
    assert_key(event->key, second.high, second.low);
    assert_key(event->parent_key, first.high, first.low);
    assert_int_equal(event->num_tokens, 4);
    assert_memory_equal(listener.tokens[1], tokens + 4, 4 * sizeof(int32_t));
    event++;
    assert_int_equal(event->type, PKV_POOL_EVENT_EVICTED);
    assert_int_equal(event->block_id, 1);
    assert_key(event->key, second.high, second.low);
    event++;
    assert_int_equal(event->type, PKV_POOL_EVENT_CLEARED);
    assert_int_equal(event->block_id, -1);
    pkv_pool_destroy(pool);
}

static void seeds_are_drawn(void **state) {
    const struct pkv_pool_options options = {.num_blocks = 1};
    struct pkv_pool *a, *b;
    (void)state;

    CHECK_OK(pkv_pool_create(&a, &options, &error), &error);
    CHECK_OK(pkv_pool_create(&b, &options, &error), &error);
    assert_true(pkv_pool_hash_seed(a) != pkv_pool_hash_seed(b));
    assert_true(pkv_pool_hash_seed(a) != 0);
    pkv_pool_destroy(a);
    pkv_pool_destroy(b);
}

enum { BLOCK_SIZE = 2, NUM_BLOCKS = 24, MAX_TOKENS = 16, NUM_SEQS = 4 };

/* What has really been computed into each block: everything from the first token on. */
static int32_t truth[NUM_BLOCKS][MAX_TOKENS];
static int32_t truth_tokens[NUM_BLOCKS];

static int64_t check_hit(struct pkv_pool *pool, struct pkv_seq seq, const int32_t *tokens,
                         int64_t hit) {
    struct pkv_tensor table;
    CHECK_OK(pkv_seq_block_table(pool, seq, 0, &table, &error), &error);
    for (int64_t i = 0; i < hit / BLOCK_SIZE; i++) {
        const int32_t block = ((const int32_t *)table.data)[i];
        const int64_t num_tokens = (i + 1) * BLOCK_SIZE;
        assert_int_equal(truth_tokens[block], num_tokens);
        assert_memory_equal(truth[block], tokens, (size_t)num_tokens * sizeof(int32_t));
    }
    return hit;
}

static void note_truth(struct pkv_pool *pool, struct pkv_seq seq, const int32_t *tokens,
                       int64_t num_tokens) {
    struct pkv_tensor table;
    CHECK_OK(pkv_seq_block_table(pool, seq, 0, &table, &error), &error);
    for (int32_t i = 0; i < num_tokens / BLOCK_SIZE; i++) {
        const int32_t block = ((const int32_t *)table.data)[i];
        truth_tokens[block] = (i + 1) * BLOCK_SIZE;
        memcpy(truth[block], tokens, (size_t)truth_tokens[block] * sizeof(int32_t));
    }
}

/* Two bits of key: nearly everything collides. Whatever is found must be right all the same. */
static void collisions_are_misses(void **state) {
    struct test_rng rng = test_rng_make(test_seed(20260702));
    struct pkv_pool *pool;
    struct pkv_seq seqs[NUM_SEQS] = {{0, 0}};
    int64_t num_hit_tokens = 0;
    (void)state;

    for (int32_t eviction = 0; eviction < 3; eviction++) {
        const struct pkv_pool_options options = {.num_blocks = NUM_BLOCKS,
                                                 .block_size = BLOCK_SIZE,
                                                 .eviction = eviction,
                                                 .max_tokens_per_seq = MAX_TOKENS};
        CHECK_OK(pkv_pool_create(&pool, &options, &error), &error);
        key_mask = 3;
        for (int round = 0; round < 20000; round++) {
            int32_t tokens[MAX_TOKENS];
            struct pkv_block_copy copies[1];
            int64_t hit;
            const int slot = (int)test_rng_below(&rng, NUM_SEQS);
            const int64_t num_tokens = test_rng_between(&rng, 1, 10);
            for (int64_t i = 0; i < num_tokens; i++)
                tokens[i] = (int32_t)test_rng_below(&rng, 2);
            if (round >= NUM_SEQS && seqs[slot].generation != 0)
                CHECK_OK(pkv_seq_free(pool, seqs[slot], &error), &error);
            CHECK_OK(pkv_seq_create(pool, &seqs[slot], NULL, &error), &error);
            CHECK_OK(pkv_seq_match(pool, seqs[slot], tokens, num_tokens, &hit, &error), &error);
            num_hit_tokens += check_hit(pool, seqs[slot], tokens, hit);
            CHECK_OK(
                pkv_seq_append(pool, seqs[slot], tokens + hit, num_tokens - hit, copies, &error),
                &error);
            CHECK_OK(pkv_seq_mark_computed(pool, seqs[slot], num_tokens, &error), &error);
            note_truth(pool, seqs[slot], tokens, num_tokens);
            if (round % 16 == 0)
                CHECK_OK(pkv_pool_audit(pool, NULL, &error), &error);
        }
        key_mask = UINT64_MAX;
        memset(seqs, 0, sizeof(seqs));
        pkv_pool_destroy(pool);
    }
    assert_true(num_hit_tokens > 1000);
}

/* Domains of one root key and one length do not share either. */
static void domains_of_equal_keys_stay_apart(void **state) {
    const int32_t tokens[] = {1, 2};
    const struct pkv_domain red = {.salt = {"red", 3}}, tan = {.salt = {"tan", 3}};
    struct pkv_pool *pool;
    struct pkv_seq seq;
    struct pkv_block_copy copies[1];
    int64_t hit;
    (void)state;

    key_mask = 3;
    CHECK_OK(pkv_pool_create(&pool, &(struct pkv_pool_options){.num_blocks = 4, .block_size = 2},
                             &error),
             &error);
    CHECK_OK(pkv_seq_create(pool, &seq, &(struct pkv_seq_options){.domain = &red}, &error), &error);
    CHECK_OK(pkv_seq_append(pool, seq, tokens, 2, copies, &error), &error);
    CHECK_OK(pkv_seq_mark_computed(pool, seq, 2, &error), &error);
    CHECK_OK(pkv_prefix_lookup(pool, &red, tokens, 2, &hit, &error), &error);
    assert_int_equal(hit, 2);
    CHECK_OK(pkv_seq_create(pool, &seq, &(struct pkv_seq_options){.domain = &tan}, &error), &error);
    CHECK_OK(pkv_seq_match(pool, seq, tokens, 2, &hit, &error), &error);
    assert_int_equal(hit, 0);
    pkv_pool_destroy(pool);
    key_mask = UINT64_MAX;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_vectors),
        cmocka_unit_test(keys_are_refused_for_nonsense),
        cmocka_unit_test(fields_do_not_run_into_each_other),
        cmocka_unit_test(events_carry_keys_and_tokens),
        cmocka_unit_test(seeds_are_drawn),
        cmocka_unit_test(domains_of_equal_keys_stay_apart),
        cmocka_unit_test(collisions_are_misses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
