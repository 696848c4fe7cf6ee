/* SPDX-License-Identifier: MIT
 *
 * The same bytes, however a question is put: threads, parts, the rest of the batch, its order,
 * block ids and block_size, queries cut into steps, shared blocks. What the numbers are is for the
 * other tests of paged attention.
 */
#include "attention_calls.h"
#include "contexts.h"

#include <stdio.h>

static uint64_t seed;

/* One question with the answer that all others must repeat. */
struct question {
    struct test_rng rng;
    struct attn_problem *problem;
    struct pkv_context *context;
    struct attn_placement whole;
    struct attn_answer first;
    struct attn_answer answer;
    const char *name;
};

static void make_question(struct question *question, const char *name,
                          const struct attn_sizes *sizes, struct pkv_context *context) {
    *question = (struct question){.rng = test_rng_make(seed), .context = context, .name = name};
    question->problem = attn_problem_make(sizes, &question->rng);
    question->first = attn_answer_make(question->problem);
    question->answer = attn_answer_make(question->problem);
    question->whole = (struct attn_placement){
        .key_layout = PKV_LAYOUT_HND, .value_layout = PKV_LAYOUT_HND, .block_size = 16};
    attn_place_all(&question->whole, question->problem);
    attn_ask(question->problem, &question->whole, context, 0, &question->rng, &question->first);
}

static void free_question(struct question *question) {
    attn_answer_free(&question->first);
    attn_answer_free(&question->answer);
    attn_problem_free(question->problem);
}

/* Asks again; rows that the placement leaves out stay as they are in the answer. */
static void again(struct question *question, const struct attn_placement *placement,
                  struct pkv_context *context, int64_t num_parts) {
    attn_ask(question->problem, placement, context, num_parts, &question->rng, &question->answer);
}

static void expect_same(struct question *question, const char *how) {
    if (!attn_answers_are_equal(&question->first, &question->answer)) {
        fail_msg("%s: other bytes by %s", question->name, how);
    }
    memset(question->answer.out, 0, (size_t)question->answer.num_out * sizeof(uint32_t));
    memset(question->answer.lse, 0, (size_t)question->answer.num_lse * sizeof(uint32_t));
}

static void threads_and_parts_of(struct question *question,
                                 const struct attn_placement *placement) {
    static const int64_t num_parts[] = {1, 2, 3, 7};
    int32_t level = pkv_context_cpu_level(question->context);
    struct pkv_executor odd = {.run = run_in_odd_order, .num_threads = 5};
    struct pkv_context *context;

    for (int i = 1; i <= 3; i++) {
        struct pkv_executor hook = pkv_executor_pthread_hook(contexts.pools[i]);

        context = make_context(PKV_RUN_MODE_NATIVE, level, &hook);
        again(question, placement, context, 0);
        expect_same(question, i == 1 ? "one thread" : i == 2 ? "two threads" : "three threads");
        pkv_context_destroy(context);
    }
    context = make_context(PKV_RUN_MODE_NATIVE, level, &odd);
    again(question, placement, context, 0);
    expect_same(question, "tiles in odd order");
    pkv_context_destroy(context);
    for (size_t i = 0; i < sizeof(num_parts) / sizeof(num_parts[0]); i++) {
        again(question, placement, question->context, num_parts[i]);
        expect_same(question, "parts");
    }
}

/* Where the heads of a token lie together the work is divided in another way, and read in another
 * order. */
static void threads_and_parts(struct question *question) {
    struct attn_placement placement = question->whole;

    threads_and_parts_of(question, &placement);
    placement.key_layout = PKV_LAYOUT_NHD;
    threads_and_parts_of(question, &placement);
    placement.value_layout = PKV_LAYOUT_NHD;
    threads_and_parts_of(question, &placement);
}

static void batches(struct question *question) {
    struct attn_placement placement = question->whole;
    int64_t count = question->whole.num_pieces;

    for (int64_t b = 0; b < count; b++) {
        placement.num_pieces = 1;
        placement.pieces[0] = question->whole.pieces[b];
        again(question, &placement, question->context, 0);
    }
    expect_same(question, "each sequence alone");
    placement.num_pieces = count;
    for (int64_t b = 0; b < count; b++) {
        placement.pieces[b] = question->whole.pieces[count - 1 - b];
    }
    again(question, &placement, question->context, 0);
    expect_same(question, "the reverse order");
    /* Each sequence twice in a batch. */
    for (int64_t b = 0; b < count; b++) {
        placement.pieces[2 * b] = placement.pieces[2 * b + 1] = question->whole.pieces[b];
    }
    placement.num_pieces = 2 * count;
    again(question, &placement, question->context, 0);
    expect_same(question, "sequences that come twice");
}

static void blocks(struct question *question) {
    static const int64_t sizes[] = {1, 5, 48, 1000};
    struct attn_placement placement = question->whole;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        placement.block_size = sizes[i];
        again(question, &placement, question->context, 0);
        expect_same(question, "another block_size and other block ids");
    }
}

/* Every sequence in steps of up to that many queries. */
static void cut(struct question *question, int64_t chunk) {
    struct attn_placement placement = question->whole;
    int64_t more = 1;

    for (int64_t from = 0; more; from += chunk) {
        more = 0;
        placement.num_pieces = 0;
        for (int64_t b = 0; b < question->whole.num_pieces; b++) {
            int64_t count = question->problem->sizes.num_queries[b];
            int64_t end = from + chunk < count ? from + chunk : count;

            if (from < count) {
                placement.pieces[placement.num_pieces++] = (struct attn_piece){b, from, end};
                more = more || end < count;
            }
        }
        again(question, &placement, question->context, 0);
    }
    expect_same(question, chunk == 1 ? "token by token" : "chunks of queries");
}

/* Tokens that no query sees are gone: whole, chunk by chunk, and in parts. */
static void dropped(struct question *question) {
    question->whole.drops_unseen = 1;
    blocks(question);
    cut(question, 7);
    again(question, &question->whole, question->context, 3);
    expect_same(question, "offsets in parts");
    question->whole.drops_unseen = 0;
}

static void cuts(struct question *question) {
    static const int64_t chunks[] = {1, 7};

    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        cut(question, chunks[i]);
    }
}

static void shared_blocks(struct question *question) {
    static const int64_t counts[] = {1, 16, 70, 256, 272, 300, 512, 600};
    struct attn_placement placement = question->whole;
    int num_tried = 0;

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        placement.num_shared = counts[i];
        if (attn_can_share(question->problem, counts[i], placement.block_size)) {
            again(question, &placement, question->context, 0);
            expect_same(question, "shared tokens");
            again(question, &placement, question->context, 3);
            expect_same(question, "shared tokens in parts");
            num_tried++;
        }
    }
    assert_true(num_tried > 0);
    for (int i = 2; i <= 3; i++) {
        struct pkv_executor hook = pkv_executor_pthread_hook(contexts.pools[i]);
        struct pkv_context *context =
            make_context(PKV_RUN_MODE_NATIVE, pkv_context_cpu_level(question->context), &hook);

        placement.num_shared = 256;
        if (attn_can_share(question->problem, 256, placement.block_size)) {
            again(question, &placement, context, 0);
            expect_same(question, "shared tokens and threads");
        }
        pkv_context_destroy(context);
    }
}

/* A mixed batch: decode, prefill on a context and from nothing. The rows of 18 queries are more
 * than are taken at once. */
static const struct attn_sizes mixed = {.num_heads = 16,
                                        .num_kv_heads = 2,
                                        .head_size = 40,
                                        .value_head_size = 24,
                                        .key_dtype = PKV_DTYPE_BF16,
                                        .value_dtype = PKV_DTYPE_F16,
                                        .query_dtype = PKV_DTYPE_F32,
                                        .out_dtype = PKV_DTYPE_F32,
                                        .amplitude = 4,
                                        .num_seqs = 5,
                                        .num_queries = {1, 18, 13, 3, 1},
                                        .num_tokens = {257, 18, 530, 513, 1}};

/* Each level that this machine has, serial, from `first` on. */
static void on_levels(int32_t first, const char *name, const struct attn_sizes *sizes,
                      void (*ask)(struct question *question)) {
    int32_t last = -1;

    for (int i = 0; i < contexts.count - 2; i++) {
        int32_t level = pkv_context_cpu_level(contexts.all[i]);
        struct question question;

        if (level != last && level >= first) {
            make_question(&question, name, sizes, contexts.all[i]);
            ask(&question);
            free_question(&question);
        }
        last = level;
    }
}

static void on_every_level(const char *name, const struct attn_sizes *sizes,
                           void (*ask)(struct question *question)) {
    on_levels(PKV_CPU_LEVEL_C, name, sizes, ask);
}

/* The C level works the same way, and slowly: it is asked where that is tested first. */
static void on_fast_levels(const char *name, const struct attn_sizes *sizes,
                           void (*ask)(struct question *question)) {
    on_levels(contexts.count > 8 ? PKV_CPU_LEVEL_AVX2 : PKV_CPU_LEVEL_C, name, sizes, ask);
}

static void ask_everything(struct question *question) {
    threads_and_parts(question);
    batches(question);
    blocks(question);
    cuts(question);
}

static void plain(void **state) {
    (void)state;
    on_every_level("mixed", &mixed, ask_everything);
}

static void windows_and_sinks(void **state) {
    struct attn_sizes sizes = mixed;

    (void)state;
    sizes.max_left = 70;
    sizes.has_sinks = 1;
    sizes.softcap = 50;
    on_fast_levels("window and sinks", &sizes, ask_everything);
    on_every_level("behind a window", &sizes, dropped);
    sizes.mask = ATTN_MASK_FLOAT;
    sizes.mask_width = 100;
    sizes.has_slopes = 1;
    sizes.max_left = 300;
    on_fast_levels("behind a window, under a mask", &sizes, dropped);
}

static void masks_and_slopes(void **state) {
    struct attn_sizes sizes = mixed;

    (void)state;
    sizes.mask = ATTN_MASK_FLOAT;
    sizes.mask_width = 300;
    sizes.has_slopes = 1;
    sizes.has_sinks = 1;
    on_fast_levels("mask and slopes", &sizes, ask_everything);
    sizes.mask = ATTN_MASK_BOOL;
    sizes.mask_width = 40;
    on_fast_levels("boolean mask", &sizes, ask_everything);
}

static void latent_heads(void **state) {
    struct attn_sizes sizes = mixed;

    (void)state;
    sizes.num_heads = 16;
    sizes.num_kv_heads = 1;
    sizes.is_mla = 1;
    sizes.query_dtype = sizes.out_dtype = PKV_DTYPE_BF16;
    on_fast_levels("MLA", &sizes, ask_everything);
}

/* More heads of one key head than rows are taken at once. */
static void many_heads(void **state) {
    struct attn_sizes sizes = mixed;

    (void)state;
    sizes.num_heads = 150;
    sizes.num_kv_heads = 1;
    sizes.has_sinks = 1;
    sizes.num_seqs = 2;
    sizes.num_queries[1] = 5;
    sizes.num_tokens[1] = 300;
    on_fast_levels("150 heads", &sizes, ask_everything);
}

static void ask_long(struct question *question) {
    threads_and_parts(question);
    batches(question);
}

/* Few sequences: contexts are divided among the threads. */
static void long_contexts(void **state) {
    struct attn_sizes sizes = {.num_heads = 4,
                               .num_kv_heads = 1,
                               .head_size = 32,
                               .value_head_size = 32,
                               .key_dtype = PKV_DTYPE_BF16,
                               .value_dtype = PKV_DTYPE_BF16,
                               .query_dtype = PKV_DTYPE_BF16,
                               .out_dtype = PKV_DTYPE_F32,
                               .amplitude = 4,
                               .num_seqs = 1,
                               .num_queries = {1},
                               .num_tokens = {5000}};

    (void)state;
    on_fast_levels("a long context", &sizes, ask_long);
    sizes.has_sinks = 1;
    sizes.max_left = 3000;
    sizes.num_queries[0] = 5;
    on_fast_levels("a long window", &sizes, ask_long);
    sizes.mask = ATTN_MASK_FLOAT;
    sizes.mask_width = 4000;
    sizes.num_seqs = 2;
    sizes.num_queries[1] = 1;
    sizes.num_tokens[1] = 2500;
    on_fast_levels("a long mask", &sizes, ask_long);
    sizes.num_heads = 12;
    sizes.num_kv_heads = 3;
    sizes.num_tokens[1] = 40;
    on_fast_levels("a short context beside a long one", &sizes, ask_long);
}

static void shared_prefixes(void **state) {
    struct attn_sizes sizes = mixed;

    (void)state;
    sizes.num_shared = 640;
    sizes.num_seqs = 6;
    for (int64_t b = 0; b < 6; b++) {
        sizes.num_queries[b] = b == 3 ? 30 : 1;
        sizes.num_tokens[b] = 600 + 20 * b;
    }
    on_every_level("a shared prefix", &sizes, shared_blocks);
    sizes.max_left = 400;
    sizes.has_sinks = 1;
    sizes.has_slopes = 1;
    on_fast_levels("a shared prefix behind a window", &sizes, shared_blocks);
    sizes.mask = ATTN_MASK_BOOL;
    sizes.mask_width = 500;
    sizes.max_left = 0;
    on_fast_levels("a shared prefix under a mask", &sizes, shared_blocks);
    sizes.is_mla = 1;
    sizes.num_queries[0] = 0;
    on_fast_levels("a shared prefix of MLA", &sizes, shared_blocks);
    for (int64_t b = 0; b < 6; b++) {
        sizes.num_tokens[b] = 70;
        sizes.num_queries[b] = b;
    }
    on_fast_levels("nothing but a shared prefix", &sizes, shared_blocks);
}

/* bfloat16 queries and keys are multiplied in other ways with up to 4, 8, 16 and with more rows. */
static void bf16_queries(void **state) {
    static const int64_t head_sizes[] = {46, 128, 33};
    struct attn_sizes sizes = mixed;

    (void)state;
    sizes.query_dtype = sizes.key_dtype = sizes.value_dtype = PKV_DTYPE_BF16;
    sizes.num_heads = 8;
    sizes.num_kv_heads = 2;
    for (int i = 0; i < 3; i++) {
        sizes.head_size = sizes.value_head_size = head_sizes[i];
        sizes.num_queries[0] = 1 + i;
        on_fast_levels("bfloat16 queries", &sizes, ask_everything);
    }
}

/* With products of bfloat16, where the processor has them, other queries are rounded, and with 9
 * rows of a key head and more weights are. */
static void ask_for_bf16_products(struct question *question) {
    const struct attn_sizes *sizes = &question->problem->sizes;
    const int has_dots = pkv_context_cpu_level(question->context) == PKV_CPU_LEVEL_AVX512_BF16;

    question->problem->ref.has_bf16_products = 1;
    again(question, &question->whole, question->context, 0);
    if (has_dots && (sizes->num_heads >= 9 || sizes->query_dtype != PKV_DTYPE_BF16)) {
        assert_false(attn_answers_are_equal(&question->first, &question->answer));
    } else {
        expect_same(question, "products of bfloat16 for few rows");
    }
}

static void bf16_products_round(void **state) {
    struct attn_sizes sizes = mixed;

    (void)state;
    sizes.value_dtype = PKV_DTYPE_BF16;
    sizes.num_kv_heads = 1;
    sizes.num_seqs = 1;
    for (int64_t heads = 7; heads <= 10; heads++) {
        sizes.num_heads = heads;
        sizes.query_dtype = PKV_DTYPE_F32;
        on_fast_levels("float32 queries", &sizes, ask_for_bf16_products);
        sizes.query_dtype = PKV_DTYPE_BF16;
        on_fast_levels("bfloat16 queries", &sizes, ask_for_bf16_products);
    }
}

static void fill_queries(struct attn_problem *problem, float value) {
    const struct attn_sizes *sizes = &problem->sizes;

    for (int64_t b = 0; b < sizes->num_seqs; b++) {
        int64_t count = sizes->num_queries[b] * sizes->num_heads * sizes->head_size;

        for (int64_t i = 0; i < count; i++) {
            problem->arrays[b][0][i] = value;
        }
    }
}

/* Denormal queries, with keys so large that each is seen: where there are dot products they count
 * as 0. */
static void ask_for_denormals(struct question *question) {
    struct attn_problem *problem = question->problem;
    const struct attn_sizes *sizes = &problem->sizes;
    const int has_dots = pkv_context_cpu_level(question->context) == PKV_CPU_LEVEL_AVX512_BF16;

    for (int64_t b = 0; b < sizes->num_seqs; b++) {
        int64_t count = sizes->num_tokens[b] * sizes->num_kv_heads * sizes->head_size;

        for (int64_t i = 0; i < count; i++) {
            problem->arrays[b][1][i] *= 0x1p120f;
        }
    }
    fill_queries(problem, 0);
    attn_ask(problem, &question->whole, question->context, 0, &question->rng, &question->first);
    fill_queries(problem, 0x1p-130f);
    again(question, &question->whole, question->context, 0);
    if (has_dots) {
        expect_same(question, "denormal queries, not zeros");
    } else {
        assert_false(attn_answers_are_equal(&question->first, &question->answer));
    }
}

static void denormals_count_as_zero(void **state) {
    static const int64_t num_heads[] = {1, 6, 12, 40};
    struct attn_sizes sizes = mixed;

    (void)state;
    sizes.query_dtype = sizes.key_dtype = sizes.value_dtype = PKV_DTYPE_BF16;
    sizes.num_kv_heads = 1;
    sizes.num_seqs = 2;
    sizes.num_queries[1] = 1;
    sizes.num_tokens[1] = 300;
    for (int i = 0; i < 4; i++) {
        sizes.num_heads = num_heads[i];
        on_fast_levels("denormal queries", &sizes, ask_for_denormals);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),
        cmocka_unit_test(windows_and_sinks),
        cmocka_unit_test(masks_and_slopes),
        cmocka_unit_test(latent_heads),
        cmocka_unit_test(many_heads),
        cmocka_unit_test(long_contexts),
        cmocka_unit_test(shared_prefixes),
        cmocka_unit_test(bf16_queries),
        cmocka_unit_test(bf16_products_round),
        cmocka_unit_test(denormals_count_as_zero),
    };

    seed = test_seed(42);
    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
