/* SPDX-License-Identifier: MIT
 *
 * Paged attention by hand: two steps whose numbers were worked out on paper, rows that see nothing,
 * numbers that are none, nothing to do, plans that contexts share, and memory that is not there.
 */
#include "allocator.h"
#include "attention_calls.h"
#include "contexts.h"

#include <math.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static uint64_t seed;

/* A float32 cache of one sequence, whose blocks and queries are written out. */
struct small {
    struct pkv_tensor key_cache, value_cache;
    struct pkv_step_indices indices;
    struct pkv_paged_attention_options options;
    struct pkv_paged_attention_tensors tensors;
};

static enum pkv_status run(struct pkv_context *context, const struct small *small) {
    struct pkv_paged_attention_plan *plan = NULL;
    struct pkv_step *step = make_step(0, 0);
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    enum pkv_status status;

    CHECK_OK(pkv_cache_init(&cache, &small->key_cache, &small->value_cache, NULL, &error), &error);
    CHECK_OK(pkv_paged_attention_plan_create(&plan, context, &cache, &small->options, &error),
             &error);
    CHECK_OK(pkv_step_set(context, step, &cache, &small->indices, &error), &error);
    status = pkv_paged_attention_run(context, plan, step, &cache, &small->tensors, &error);
    pkv_step_destroy(step);
    pkv_paged_attention_plan_destroy(plan);
    return status;
}

static void expect_near(const float *got, const double *wanted, int count) {
    for (int i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - wanted[i]) <= 1e-6)) {
            fail_msg("number %d is %.9g, not %.9g", i, (double)got[i], wanted[i]);
        }
    }
}

/* Two heads share one key head of size 2; three tokens lie in blocks 2 and 0 of two tokens each;
 * the scale is 1.
 *
 *   token  block, offset  key              value
 *   0      2, 0           (0, ln 3 / 2)    (8, 0)
 *   1      2, 1           (ln 2, 0)        (4, 1)
 *   2      0, 0           (ln 5, 0)        (0, -1)
 *
 *   head 0, query (1, 0): scores 0, ln 2, ln 5; weights 1, 2, 5 of 8
 *     out = (8 / 8 + 8 / 8 + 0, 0 + 2 / 8 - 5 / 8) = (2, -0.375), lse = ln 8
 *   head 1, query (0, 2): scores ln 3, 0, 0; weights 3, 1, 1 of 5
 *     out = (24 / 5 + 4 / 5 + 0, 0 + 1 / 5 - 1 / 5) = (5.6, 0), lse = ln 5
 *
 * Slot 1 of block 0 and all of block 1 hold NaN. */
static void one_decode_step(void **state) {
    float ln2 = 0.693147181f, ln3 = 1.09861229f, ln5 = 1.60943791f;
    float keys[3 * 2 * 2] = {ln5, 0, NAN, NAN, NAN, NAN, NAN, NAN, 0, ln3 / 2, ln2, 0};
    float values[3 * 2 * 2] = {0, -1, NAN, NAN, NAN, NAN, NAN, NAN, 8, 0, 4, 1};
    float query[2 * 2] = {1, 0, 0, 2}, out[4], lse[2];
    int32_t table[3] = {2, 0, 77}, lengths[1] = {3}, starts[2] = {0, 1};
    struct small small = {
        .key_cache = pkv_tensor_make(keys, PKV_DTYPE_F32, 4, (int64_t[]){3, 2, 1, 2}),
        .value_cache = pkv_tensor_make(values, PKV_DTYPE_F32, 4, (int64_t[]){3, 2, 1, 2}),
        .options = {.num_heads = 2, .scale = 1},
        .indices = {.block_table = pkv_tensor_make(table, PKV_DTYPE_I32, 2, (int64_t[]){1, 3}),
                    .seq_lens = pkv_tensor_make(lengths, PKV_DTYPE_I32, 1, (int64_t[]){1}),
                    .query_start_loc = pkv_tensor_make(starts, PKV_DTYPE_I32, 1, (int64_t[]){2})},
        .tensors = {.query = pkv_tensor_make(query, PKV_DTYPE_F32, 3, (int64_t[]){1, 2, 2}),
                    .out = pkv_tensor_make(out, PKV_DTYPE_F32, 3, (int64_t[]){1, 2, 2}),
                    .lse = pkv_tensor_make(lse, PKV_DTYPE_F32, 2, (int64_t[]){1, 2})},
    };

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        memset(out, 0xff, sizeof(out));
        memset(lse, 0xff, sizeof(lse));
        CHECK_OK(run(contexts.all[i], &small), &error);
        expect_near(out, (double[]){2, -0.375, 5.6, 0}, 4);
        expect_near(lse, (double[]){log(8), log(5)}, 2);
    }
}

/* One head of size 4, hence scale 1/2; the query is (2, 0, 0, 0), so that a score is a key's first
 * element: 0, ln 3 and, out of the window of two tokens, 100. The sink of ln 4 has the weight 4 of
 * 1 + 3 + 4.
 *
 *   out = (1 * (8, 0, 16, 0) + 3 * (0, 8, 0, -8)) / 8 = (1, 3, 2, -3), lse = ln 8 = 3 ln 2, or 3 in
 *   base 2 */
static void one_step_with_a_sink(void **state) {
    float keys[4 * 4] = {100, 1, 2, 3, 0, 4, 5, 6, 1.09861229f, 7, 8, 9, NAN, NAN, NAN, NAN};
    float values[4 * 4] = {1e30f, 1e30f, 1e30f, 1e30f, 8,   0,   16,  0,
                           0,     8,     0,     -8,    NAN, NAN, NAN, NAN};
    float query[4] = {2, 0, 0, 0}, sink = 1.38629436f, out[4], lse;
    int64_t table[1] = {0}, lengths[1] = {3}, starts[2] = {0, 1};
    struct small small = {
        .key_cache = pkv_tensor_make(keys, PKV_DTYPE_F32, 4, (int64_t[]){1, 4, 1, 4}),
        .value_cache = pkv_tensor_make(values, PKV_DTYPE_F32, 4, (int64_t[]){1, 4, 1, 4}),
        .options = {.max_visible_left = 2},
        .indices = {.block_table = pkv_tensor_make(table, PKV_DTYPE_I64, 2, (int64_t[]){1, 1}),
                    .seq_lens = pkv_tensor_make(lengths, PKV_DTYPE_I64, 1, (int64_t[]){1}),
                    .query_start_loc = pkv_tensor_make(starts, PKV_DTYPE_I64, 1, (int64_t[]){2})},
        .tensors = {.query = pkv_tensor_make(query, PKV_DTYPE_F32, 3, (int64_t[]){1, 1, 4}),
                    .out = pkv_tensor_make(out, PKV_DTYPE_F32, 3, (int64_t[]){1, 1, 4}),
                    .lse = pkv_tensor_make(&lse, PKV_DTYPE_F32, 2, (int64_t[]){1, 1}),
                    .sinks = pkv_tensor_make(&sink, PKV_DTYPE_F32, 1, (int64_t[]){1})},
    };

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        small.options.lse_base = i % 2 ? PKV_LSE_BASE_2 : PKV_LSE_BASE_E;
        CHECK_OK(run(contexts.all[i], &small), &error);
        expect_near(out, (double[]){1, 3, 2, -3}, 4);
        expect_near(&lse, (double[]){i % 2 ? 3 : log(8)}, 1);
    }
}

/* Without a window, tokens before a sequence's offset are unseen all the same. Keys are 0, so that
 * every token seen has the same weight; a value is its position; entries of blocks that hold
 * nothing but earlier tokens are out of range. */
static void tokens_before_an_offset(void **state) {
    enum { TOKENS = 600, SIZE = 8, BLOCK = 8, QUERIES = 3 };
    static const int64_t offsets[] = {0, 1, 7, 8, 31, 32, 33, 255, 256, 257, 300, 512, 596, 597};
    static float keys[TOKENS][SIZE], values[TOKENS][SIZE], query[QUERIES][SIZE], out[QUERIES][SIZE];
    int32_t table[TOKENS / BLOCK], lengths[1], starts[2] = {0, QUERIES};
    int64_t offset;
    struct small small = {
        .key_cache =
            pkv_tensor_make(keys, PKV_DTYPE_F32, 4, (int64_t[]){TOKENS / BLOCK, BLOCK, 1, SIZE}),
        .value_cache =
            pkv_tensor_make(values, PKV_DTYPE_F32, 4, (int64_t[]){TOKENS / BLOCK, BLOCK, 1, SIZE}),
        .indices = {.block_table =
                        pkv_tensor_make(table, PKV_DTYPE_I32, 2, (int64_t[]){1, TOKENS / BLOCK}),
                    .seq_lens = pkv_tensor_make(lengths, PKV_DTYPE_I32, 1, (int64_t[]){1}),
                    .seq_offsets = pkv_tensor_make(&offset, PKV_DTYPE_I64, 1, (int64_t[]){1}),
                    .query_start_loc = pkv_tensor_make(starts, PKV_DTYPE_I32, 1, (int64_t[]){2})},
        .tensors = {.query =
                        pkv_tensor_make(query, PKV_DTYPE_F32, 3, (int64_t[]){QUERIES, 1, SIZE}),
                    .out = pkv_tensor_make(out, PKV_DTYPE_F32, 3, (int64_t[]){QUERIES, 1, SIZE})},
    };

    (void)state;
    for (int64_t t = 0; t < TOKENS; t++) {
        for (int d = 0; d < SIZE; d++) {
            values[TOKENS - BLOCK - t / BLOCK * BLOCK + t % BLOCK][d] = (float)t / 1024;
        }
    }
    for (size_t k = 0; k < sizeof(offsets) / sizeof(offsets[0]); k++) {
        offset = offsets[k];
        lengths[0] = (int32_t)(TOKENS - offset);
        for (int32_t i = 0; i < TOKENS / BLOCK; i++) {
            table[i] = (i + 1) * BLOCK > offset ? TOKENS / BLOCK - 1 - i : i % 2 ? -1 : INT32_MAX;
        }
        for (int i = 0; i < contexts.count; i++) {
            memset(out, 0xff, sizeof(out));
            CHECK_OK(run(contexts.all[i], &small), &error);
            for (int q = 0; q < QUERIES; q++) {
                double mean = (double)(offset + TOKENS - QUERIES + q) / 2 / 1024;

                expect_near(out[q], (double[]){mean, mean}, 2);
            }
        }
    }
}

/* What the tests below start from: two tiles and a bit, two key heads. */
static struct attn_sizes medium(void) {
    return (struct attn_sizes){.num_heads = 6,
                               .num_kv_heads = 2,
                               .head_size = 20,
                               .value_head_size = 12,
                               .key_dtype = PKV_DTYPE_F32,
                               .value_dtype = PKV_DTYPE_F32,
                               .query_dtype = PKV_DTYPE_F32,
                               .out_dtype = PKV_DTYPE_F32,
                               .num_seqs = 3,
                               .num_queries = {3, 1, 40},
                               .num_tokens = {600, 257, 45}};
}

/* The problem as it is now, on every context, against the definition. */
static void expect_defined(const struct attn_problem *problem, int line) {
    struct test_rng rng = test_rng_make(seed);
    struct attn_expected expected = attn_expected_make(problem, 1);
    struct attn_answer answer = attn_answer_make(problem);
    struct attn_placement placement = {
        .key_layout = PKV_LAYOUT_NHD, .value_layout = PKV_LAYOUT_HND, .block_size = 16};

    attn_place_all(&placement, problem);
    for (int i = 0; i < contexts.count; i++) {
        attn_ask(problem, &placement, contexts.all[i], i % 3, &rng, &answer);
        if (!(attn_expected_compare(&expected, problem, &answer) <= 1)) {
            fail_msg("line %d, a context of level %s, number %d", line, contexts.names[i], i);
        }
    }
    attn_answer_free(&answer);
    attn_expected_free(&expected);
}

/* Zeros to the sign, and minus infinity, or the sink as it is. The keys and values are all NaN. */
static void rows_that_see_nothing(void **state) {
    (void)state;
    for (int round = 0; round < 4; round++) {
        struct test_rng rng = test_rng_make(seed + 1);
        struct attn_sizes sizes = medium();
        struct attn_problem *problem;
        struct attn_answer answer;
        struct attn_placement placement = {.block_size = 8};

        sizes.num_seqs = 2;
        sizes.num_queries[0] = 5;
        sizes.mask = round % 2 ? ATTN_MASK_BOOL : ATTN_MASK_FLOAT;
        sizes.mask_width = 600;
        sizes.has_sinks = round >= 2;
        problem = attn_problem_make(&sizes, &rng);
        for (int64_t b = 0; b < 2; b++) {
            for (int64_t i = 0; i < sizes.num_queries[b] * sizes.mask_width; i++) {
                problem->arrays[b][3][i] = -INFINITY;
            }
            for (int64_t i = 0; i < sizes.num_tokens[b] * 2 * 20; i++) {
                problem->arrays[b][1][i] = NAN;
            }
            for (int64_t i = 0; i < sizes.num_tokens[b] * 2 * 12; i++) {
                problem->arrays[b][2][i] = NAN;
            }
        }
        answer = attn_answer_make(problem);
        attn_place_all(&placement, problem);
        for (int i = 0; i < contexts.count; i++) {
            attn_ask(problem, &placement, contexts.all[i], 0, &rng, &answer);
            for (int64_t k = 0; k < answer.num_out; k++) {
                assert_int_equal(answer.out[k], 0);
            }
            for (int64_t k = 0; k < answer.num_lse; k++) {
                float wanted = sizes.has_sinks ? problem->sinks[k % 6] : -INFINITY;

                assert_memory_equal(&answer.lse[k], &wanted, sizeof(wanted));
            }
        }
        attn_answer_free(&answer);
        attn_problem_free(problem);
    }
}

/* A key that is no number makes the rows of its head that see it none, and no other; a value only
 * its own element. */
static void numbers_that_are_none(void **state) {
    static const int64_t positions[] = {0, 1, 255, 256, 300, 599, 598};

    (void)state;
    for (size_t i = 0; i < sizeof(positions) / sizeof(positions[0]); i++) {
        struct test_rng rng = test_rng_make(seed + 2);
        struct attn_sizes sizes = medium();
        struct attn_problem *problem;

        sizes.has_sinks = i % 2 == 0;
        sizes.has_slopes = i % 3 == 0;
        sizes.softcap = i % 4 == 1 ? 30 : 0;
        problem = attn_problem_make(&sizes, &rng);
        problem->arrays[0][1][(positions[i] * 2 + 1) * 20 + 7] = NAN; /* key head 1 */
        problem->arrays[0][2][(positions[i] * 2 + 0) * 12 + 3] = NAN; /* value head 0 */
        problem->arrays[2][2][(20 * 2 + 1) * 12 + 11] = INFINITY;
        expect_defined(problem, __LINE__);
        attn_problem_free(problem);
    }
}

/* Beside a score that is 300 larger no float32 weight is left: such a value may be anything. In the
 * same tile and in another one. */
static void weights_that_underflow(void **state) {
    static const struct {
        int64_t large, small;
    } positions[] = {{10, 20}, {20, 10}, {10, 300}, {300, 10}, {300, 590}, {590, 257}, {10, 590}};

    (void)state;
    for (size_t i = 0; i < sizeof(positions) / sizeof(positions[0]); i++) {
        struct test_rng rng = test_rng_make(seed + 3);
        struct attn_sizes sizes = medium();
        struct attn_problem *problem;

        sizes.scale = 1;
        sizes.num_seqs = 1;
        sizes.num_queries[0] = 1;
        problem = attn_problem_make(&sizes, &rng);
        for (int64_t h = 0; h < 6; h++) {
            problem->arrays[0][0][h * 20] = 4;
        }
        for (int64_t h = 0; h < 2; h++) {
            problem->arrays[0][1][(positions[i].large * 2 + h) * 20] = 100;
            for (int64_t d = 1; d < 12; d++) {
                problem->arrays[0][2][(positions[i].small * 2 + h) * 12 + d] =
                    d % 2 ? NAN : -INFINITY;
            }
        }
        expect_defined(problem, __LINE__);
        attn_problem_free(problem);
    }
}

/* A sink takes weight, but hides no value: it joins after the sums. */
static void a_value_below_a_large_sink(void **state) {
    float keys[4] = {0}, values[4] = {1, NAN, 0, 0}, query[2] = {0}, out[2], sink = 400;
    int32_t table[1] = {0}, lengths[1] = {1}, starts[2] = {0, 1};
    struct small small = {
        .key_cache = pkv_tensor_make(keys, PKV_DTYPE_F32, 4, (int64_t[]){1, 2, 1, 2}),
        .value_cache = pkv_tensor_make(values, PKV_DTYPE_F32, 4, (int64_t[]){1, 2, 1, 2}),
        .indices = {.block_table = pkv_tensor_make(table, PKV_DTYPE_I32, 2, (int64_t[]){1, 1}),
                    .seq_lens = pkv_tensor_make(lengths, PKV_DTYPE_I32, 1, (int64_t[]){1}),
                    .query_start_loc = pkv_tensor_make(starts, PKV_DTYPE_I32, 1, (int64_t[]){2})},
        .tensors = {.query = pkv_tensor_make(query, PKV_DTYPE_F32, 3, (int64_t[]){1, 1, 2}),
                    .out = pkv_tensor_make(out, PKV_DTYPE_F32, 3, (int64_t[]){1, 1, 2}),
                    .sinks = pkv_tensor_make(&sink, PKV_DTYPE_F32, 1, (int64_t[]){1})},
    };

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        CHECK_OK(run(contexts.all[i], &small), &error);
        assert_true(out[0] == 0);
        assert_true(isnan(out[1]));
    }
}

/* As many positions as 64 bits count are all positions. */
static void windows_wider_than_any_sequence(void **state) {
    struct test_rng rng = test_rng_make(seed + 4);
    struct attn_sizes sizes = medium();
    struct attn_problem *problem;

    (void)state;
    sizes.is_non_causal = 1;
    sizes.max_left = INT64_MAX;
    sizes.max_right = INT64_MAX;
    problem = attn_problem_make(&sizes, &rng);
    expect_defined(problem, __LINE__);
    attn_problem_free(problem);
}

/* A mask that is wider than every sequence, and than a tile. */
static void masks_wider_than_any_sequence(void **state) {
    struct test_rng rng = test_rng_make(seed + 5);
    struct attn_sizes sizes = medium();
    struct attn_problem *problem;

    (void)state;
    for (int kind = ATTN_MASK_BOOL; kind < ATTN_NUM_MASKS; kind++) {
        sizes.mask = (enum attn_mask)kind;
        sizes.mask_width = 1300;
        problem = attn_problem_make(&sizes, &rng);
        expect_defined(problem, __LINE__);
        attn_problem_free(problem);
    }
}

/* No sequences, sequences without queries, and outputs of no bytes. */
static void nothing_to_do(void **state) {
    static const int64_t num_seqs[] = {0, 3};

    (void)state;
    for (int i = 0; i < contexts.count * 2; i++) {
        struct test_rng rng = test_rng_make(seed + 6);
        struct attn_sizes sizes = medium();
        struct attn_placement placement = {.block_size = 16};
        struct attn_problem *problem;
        struct attn_answer answer;

        sizes.num_seqs = num_seqs[i % 2];
        sizes.num_tokens[1] = 0;
        memset(sizes.num_queries, 0, sizeof(sizes.num_queries));
        problem = attn_problem_make(&sizes, &rng);
        answer = attn_answer_make(problem);
        attn_place_all(&placement, problem);
        attn_ask(problem, &placement, contexts.all[i / 2], i % 3, &rng, &answer);
        assert_int_equal(answer.num_out, 0);
        attn_answer_free(&answer);
        attn_problem_free(problem);
    }
}

/* A plan made by one context, run by another: the other's kernels and executor, the plan's run
 * mode. Before it has the scratch memory it is refused. */
static void plans_are_shared(void **state) {
    struct test_rng rng = test_rng_make(seed + 7);
    struct attn_sizes sizes = medium();
    struct attn_problem *problem = attn_problem_make(&sizes, &rng);
    struct attn_placement placement = {.block_size = 16};
    struct attn_answer wanted = attn_answer_make(problem), answer = attn_answer_make(problem);
    struct attn_call *call;
    struct pkv_paged_attention_options options = attn_options(problem);
    struct pkv_paged_attention_tensors tensors;
    struct pkv_step_indices indices;
    struct pkv_cache cache;

    (void)state;
    attn_place_all(&placement, problem);
    call = attn_call_make(problem, &placement, &rng);
    tensors = attn_tensors(call);
    indices = attn_indices(call);
    CHECK_OK(init_cache(&cache, &call->cache, &error), &error);
    for (int i = 0; i < contexts.count; i++) {
        int is_sim = i >= contexts.count - 2;
        struct pkv_context *maker = contexts.all[is_sim ? i : (i + 7) % (contexts.count - 2)];
        struct pkv_context *user =
            make_context(PKV_RUN_MODE_NATIVE, pkv_context_cpu_level(contexts.all[i]), NULL);
        struct pkv_paged_attention_plan *plan = NULL;
        struct pkv_step *step = make_step(0, 0);

        attn_call_run(call, problem, contexts.all[i], 0, &rng, &wanted);
        attn_call_reset(call);
        CHECK_OK(pkv_paged_attention_plan_create(&plan, maker, &cache, &options, &error), &error);
        CHECK_OK(pkv_step_set(user, step, &cache, &indices, &error), &error);
        if (!is_sim) {
            CHECK_REFUSED(pkv_paged_attention_run(user, plan, step, &cache, &tensors, &error),
                          &error, PKV_STATUS_CAPACITY);
            CHECK_REFUSED(
                pkv_paged_attention_run_part(user, plan, step, &cache, &tensors, 0, 1, &error),
                &error, PKV_STATUS_CAPACITY);
            assert_true(model_rows_are_as_expected(&call->out));
        }
        CHECK_OK(pkv_paged_attention_reserve(user, plan, &error), &error);
        CHECK_OK(pkv_paged_attention_run(user, plan, step, &cache, &tensors, &error), &error);
        assert_true(attn_call_collect(call, problem, &answer));
        assert_true(attn_answers_are_equal(&wanted, &answer));
        pkv_step_destroy(step);
        pkv_paged_attention_plan_destroy(plan);
        pkv_context_destroy(user);
    }
    attn_call_free(call);
    attn_answer_free(&wanted);
    attn_answer_free(&answer);
    attn_problem_free(problem);
}

/* NULL and a struct of zeros are what the header says: causal, a head for each key head, 1 /
 * sqrt(head_size). */
static void zeroed_options(void **state) {
    struct pkv_paged_attention_options zeroed = {0};
    struct test_rng rng = test_rng_make(seed + 8);
    struct attn_sizes sizes = medium();
    struct attn_problem *problem;
    struct attn_expected expected;
    struct attn_placement placement = {.block_size = 16};
    struct attn_answer answer;
    struct attn_call *call;
    struct pkv_paged_attention_tensors tensors;
    struct pkv_step_indices indices;
    struct pkv_cache cache;

    (void)state;
    sizes.num_heads = 2;
    sizes.query_dtype = sizes.key_dtype = PKV_DTYPE_BF16;
    sizes.out_dtype = PKV_DTYPE_BF16;
    problem = attn_problem_make(&sizes, &rng);
    expected = attn_expected_make(problem, 1);
    answer = attn_answer_make(problem);
    attn_place_all(&placement, problem);
    call = attn_call_make(problem, &placement, &rng);
    tensors = attn_tensors(call);
    indices = attn_indices(call);
    CHECK_OK(init_cache(&cache, &call->cache, &error), &error);
    for (int i = 0; i < 2; i++) {
        struct pkv_paged_attention_plan *plan = NULL;
        struct pkv_step *step = make_step(0, 0);

        attn_call_reset(call);
        CHECK_OK(pkv_paged_attention_plan_create(&plan, contexts.all[0], &cache, i ? &zeroed : NULL,
                                                 &error),
                 &error);
        CHECK_OK(pkv_step_set(contexts.all[0], step, &cache, &indices, &error), &error);
        CHECK_OK(pkv_paged_attention_run(contexts.all[0], plan, step, &cache, &tensors, &error),
                 &error);
        assert_true(attn_call_collect(call, problem, &answer));
        assert_true(attn_expected_compare(&expected, problem, &answer) <= 1);
        pkv_step_destroy(step);
        pkv_paged_attention_plan_destroy(plan);
    }
    attn_call_free(call);
    attn_expected_free(&expected);
    attn_answer_free(&answer);
    attn_problem_free(problem);
}

static struct pkv_cache bf16_cache(void) {
    static uint16_t storage[2 * 4 * 2 * 8];
    struct pkv_tensor key = pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){2, 4, 2, 8});
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    CHECK_OK(pkv_cache_init(&cache, &key, NULL, NULL, &error), &error);
    return cache;
}

static struct pkv_context *context_with(const struct pkv_allocator *hook) {
    struct pkv_context_options options = {.allocator = hook};
    struct pkv_context *context = NULL;

    CHECK_OK(pkv_context_create(&context, &options, &error), &error);
    return context;
}

/* The first allocation fails, then the second, until the plan is made. Nothing is left behind, and
 * what failed can be tried again with the same context. */
static void memory_that_is_not_there(void **state) {
    struct pkv_cache cache = bf16_cache();
    int64_t num_failed = 0;
    enum pkv_status status = PKV_STATUS_OUT_OF_MEMORY;

    (void)state;
    for (int64_t n = 1; status != PKV_STATUS_OK && n < 20; n++) {
        struct test_allocator allocator = {0};
        struct pkv_allocator hook = test_allocator_hook(&allocator);
        struct pkv_context *context = context_with(&hook);
        struct pkv_paged_attention_plan *plan = NULL;

        allocator.fail_at = allocator.num_calls + n;
        status = pkv_paged_attention_plan_create(&plan, context, &cache, NULL, &error);
        if (status != PKV_STATUS_OK) {
            check_refused(status, &error, PKV_STATUS_OUT_OF_MEMORY, __FILE__, __LINE__);
            assert_null(plan);
            num_failed++;
            CHECK_OK(pkv_paged_attention_plan_create(&plan, context, &cache, NULL, &error), &error);
        }
        assert_non_null(plan);
        if (n % 2) {
            pkv_paged_attention_plan_destroy(plan);
            pkv_context_destroy(context);
        } else {
            pkv_context_destroy(context);
            pkv_paged_attention_plan_destroy(plan);
        }
        assert_int_equal(allocator.num_live, 0);
        assert_int_equal(allocator.num_bad, 0);
    }
    assert_int_equal(num_failed, 2); /* the plan, and the scratch */
    pkv_paged_attention_plan_destroy(NULL);
}

/* Scratch is reserved once for plans of one size; out of memory leaves the context as it was. */
static void scratch_is_kept(void **state) {
    struct test_allocator allocator = {0};
    struct pkv_allocator hook = test_allocator_hook(&allocator);
    struct pkv_context *context = context_with(&hook);
    struct pkv_context *other = context_with(&hook);
    struct pkv_cache cache = bf16_cache();
    struct pkv_paged_attention_plan *plans[2] = {NULL, NULL};
    int64_t num_calls;

    (void)state;
    CHECK_OK(pkv_paged_attention_plan_create(&plans[0], context, &cache, NULL, &error), &error);
    num_calls = allocator.num_calls;
    CHECK_OK(pkv_paged_attention_plan_create(&plans[1], context, &cache, NULL, &error), &error);
    CHECK_OK(pkv_paged_attention_reserve(context, plans[1], &error), &error);
    assert_int_equal(allocator.num_calls, num_calls + 1);
    allocator.fail_at = allocator.num_calls + 1;
    CHECK_REFUSED(pkv_paged_attention_reserve(other, plans[0], &error), &error,
                  PKV_STATUS_OUT_OF_MEMORY);
    CHECK_OK(pkv_paged_attention_reserve(other, plans[0], &error), &error);
    num_calls = allocator.num_calls;
    CHECK_OK(pkv_paged_attention_reserve(other, plans[1], &error), &error);
    assert_int_equal(allocator.num_calls, num_calls);
    CHECK_REFUSED(pkv_paged_attention_reserve(NULL, plans[0], &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    assert_string_equal(error.argument, "context");
    CHECK_REFUSED(pkv_paged_attention_reserve(other, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    assert_string_equal(error.argument, "plan");
    pkv_paged_attention_plan_destroy(plans[0]);
    pkv_paged_attention_plan_destroy(plans[1]);
    pkv_context_destroy(context);
    pkv_context_destroy(other);
    assert_int_equal(allocator.num_live, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_decode_step),
        cmocka_unit_test(one_step_with_a_sink),
        cmocka_unit_test(tokens_before_an_offset),
        cmocka_unit_test(rows_that_see_nothing),
        cmocka_unit_test(numbers_that_are_none),
        cmocka_unit_test(weights_that_underflow),
        cmocka_unit_test(a_value_below_a_large_sink),
        cmocka_unit_test(windows_wider_than_any_sequence),
        cmocka_unit_test(masks_wider_than_any_sequence),
        cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(plans_are_shared),
        cmocka_unit_test(zeroed_options),
        cmocka_unit_test(memory_that_is_not_there),
        cmocka_unit_test(scratch_is_kept),
    };

    seed = test_seed(43);
    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
