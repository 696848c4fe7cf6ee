/* SPDX-License-Identifier: MIT
 *
 * Paged attention against the definition in double precision, on a grid: every value of each axis
 * and every pair of values, drawn from a seed, and a few long sequences. What no query sees is NaN
 * in all of them.
 */
#include "attention_calls.h"
#include "contexts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t seed;

enum axis {
    HEADS,
    SIZES,
    BLOCK_SIZE,
    LENGTHS,
    LEVEL,
    KEY_DTYPE,
    VALUE_DTYPE,
    QUERY_DTYPE,
    OUT_DTYPE,
    KEY_LAYOUT,
    VALUE_LAYOUT,
    WINDOW,
    CAUSAL,
    SOFTCAP,
    SLOPES,
    SINKS,
    MASK,
    MASK_WIDTH,
    LSE,
    SCALE,
    AMPLITUDE,
    NUM_AXES
};

enum { MAX_VALUES = 24, NUM_TRIES = 40 };

/* The last ones are more heads of one key head than rows are taken at once. */
static const int64_t heads[][2] = {{4, 4}, {8, 2}, {9, 3}, {32, 8}, {40, 40}, {64, 8}, {150, 1}};

static const struct {
    int64_t key, value;
    int is_mla;
} sizes[] = {
    {32, 32, 0},   {46, 46, 0},   {64, 64, 0},   {80, 80, 0},   {96, 96, 0},   {100, 100, 0},
    {112, 112, 0}, {128, 128, 0}, {192, 192, 0}, {256, 256, 0}, {512, 512, 0}, {576, 512, 1},
    {192, 128, 0}, {1, 1, 0},     {3, 45, 0},    {45, 3, 0},    {72, 72, 1},   {64, 576, 0},
};

static const int64_t block_sizes[] = {1, 5, 8, 16, 32, 48, 96, 128};

static const struct {
    int64_t num_seqs;
    int64_t lens[8][2]; /* queries, tokens */
} lengths[] = {
    {1, {{1, 1}}},
    {6, {{0, 1}, {1, 1}, {1, 2}, {0, 0}, {2, 3}, {3, 3}}},
    {4, {{1, 255}, {1, 256}, {0, 40}, {1, 257}}},
    {3, {{1, 520}, {2, 35}, {1, 129}}},
    {3, {{5, 5}, {17, 17}, {3, 130}}},
    {2, {{20, 300}, {1, 31}}},
    {1, {{140, 141}}},
    {1, {{1, 1100}}},
    {8, {{1, 7}, {1, 16}, {1, 33}, {1, 64}, {1, 90}, {1, 12}, {1, 100}, {1, 1}}},
};

static const int32_t dtypes[] = {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16};

/* Visible to the left and to the right, the query's own included. */
static const int64_t windows[][2] = {{0, 0}, {257, 0}, {2, 0}, {0, 8}, {17, 4}, {1, 1}};

static const int64_t mask_widths[] = {3, 40, 700};
static const float scales[] = {0, 0.25f, -0.0625f};

static int num_levels; /* of native kernels; the value after them is sim */
static int level_starts[MAX_VALUES];

static int num_values(enum axis axis) {
    static const int counts[NUM_AXES] = {
        [HEADS] = sizeof(heads) / sizeof(heads[0]),
        [SIZES] = sizeof(sizes) / sizeof(sizes[0]),
        [BLOCK_SIZE] = sizeof(block_sizes) / sizeof(block_sizes[0]),
        [LENGTHS] = sizeof(lengths) / sizeof(lengths[0]),
        [KEY_DTYPE] = 3,
        [VALUE_DTYPE] = 3,
        [QUERY_DTYPE] = 3,
        [OUT_DTYPE] = 2,
        [KEY_LAYOUT] = REF_NUM_LAYOUTS,
        [VALUE_LAYOUT] = REF_NUM_LAYOUTS,
        [WINDOW] = sizeof(windows) / sizeof(windows[0]),
        [CAUSAL] = 2,
        [SOFTCAP] = 2,
        [SLOPES] = 2,
        [SINKS] = 2,
        [MASK] = ATTN_NUM_MASKS,
        [MASK_WIDTH] = sizeof(mask_widths) / sizeof(mask_widths[0]),
        [LSE] = 3,
        [SCALE] = sizeof(scales) / sizeof(scales[0]),
        [AMPLITUDE] = 2,
    };

    return axis == LEVEL ? num_levels + 1 : counts[axis];
}

struct combination {
    int values[NUM_AXES];
};

static struct attn_sizes sizes_of(const struct combination *at) {
    const int *v = at->values;
    struct attn_sizes made = {
        .num_heads = heads[v[HEADS]][0],
        .num_kv_heads = heads[v[HEADS]][1],
        .head_size = sizes[v[SIZES]].key,
        .value_head_size = sizes[v[SIZES]].value,
        .is_mla = sizes[v[SIZES]].is_mla,
        .key_dtype = dtypes[v[KEY_DTYPE]],
        .value_dtype = dtypes[v[VALUE_DTYPE]],
        .query_dtype = dtypes[v[QUERY_DTYPE]],
        .out_dtype = v[OUT_DTYPE] ? PKV_DTYPE_F32 : dtypes[v[QUERY_DTYPE]],
        .amplitude = v[AMPLITUDE] ? 8 : 1,
        .scale = scales[v[SCALE]],
        .softcap = v[SOFTCAP] ? 50 : 0,
        .is_non_causal = v[CAUSAL],
        .max_left = windows[v[WINDOW]][0],
        .max_right = windows[v[WINDOW]][1],
        .is_base_2 = v[LSE] == 1,
        .has_slopes = v[SLOPES],
        .has_sinks = v[SINKS],
        .mask = (enum attn_mask)v[MASK],
        .mask_width = mask_widths[v[MASK_WIDTH]],
        .num_seqs = lengths[v[LENGTHS]].num_seqs,
    };

    for (int64_t b = 0; b < made.num_seqs; b++) {
        made.num_queries[b] = lengths[v[LENGTHS]].lens[b][0];
        made.num_tokens[b] = lengths[v[LENGTHS]].lens[b][1];
    }
    return made;
}

static int64_t bytes_of(int axis_value) {
    return ref_dtype_bytes(dtypes[axis_value]);
}

/* A layout holds heads of that size, and the whole is not too much for the second that it may take
 * at the most. */
static int is_possible(const struct combination *at) {
    const int *v = at->values;
    struct attn_sizes made = sizes_of(at);
    int64_t tokens = 0, pairs = 0, row = made.head_size + made.value_head_size;
    int is_slow = v[LEVEL] == num_levels ||
                  (num_levels > 1 && v[LEVEL] == 0); /* sums in double, one by one */

    for (int64_t b = 0; b < made.num_seqs; b++) {
        tokens += made.num_tokens[b];
        pairs += made.num_queries[b] * made.num_tokens[b];
    }
    return ref_layout_fits(v[KEY_LAYOUT], bytes_of(v[KEY_DTYPE]), made.head_size) &&
           (made.is_mla ||
            ref_layout_fits(v[VALUE_LAYOUT], bytes_of(v[VALUE_DTYPE]), made.value_head_size)) &&
           tokens * made.num_kv_heads * row <= 5000000 &&
           pairs * made.num_heads * row <= (is_slow ? 6000000 : 25000000);
}

/* Which pairs of values have not come up yet. */
struct pairs {
    unsigned char open[NUM_AXES][MAX_VALUES][NUM_AXES][MAX_VALUES];
    int64_t num_open;
    int64_t num_impossible;
};

static struct pairs pairs;

static void open_all(void) {
    memset(&pairs, 0, sizeof(pairs));
    for (int a = 0; a < NUM_AXES; a++) {
        for (int b = a + 1; b < NUM_AXES; b++) {
            for (int i = 0; i < num_values((enum axis)a); i++) {
                for (int j = 0; j < num_values((enum axis)b); j++) {
                    pairs.open[a][i][b][j] = 1;
                    pairs.num_open++;
                }
            }
        }
    }
}

static int64_t count_open(const struct combination *at) {
    int64_t count = 0;

    for (int a = 0; a < NUM_AXES; a++) {
        for (int b = a + 1; b < NUM_AXES; b++) {
            count += pairs.open[a][at->values[a]][b][at->values[b]];
        }
    }
    return count;
}

static void close_pair(int a, int i, int b, int j) {
    pairs.num_open -= pairs.open[a][i][b][j];
    pairs.open[a][i][b][j] = 0;
}

static void close_pairs(const struct combination *at) {
    for (int a = 0; a < NUM_AXES; a++) {
        for (int b = a + 1; b < NUM_AXES; b++) {
            close_pair(a, at->values[a], b, at->values[b]);
        }
    }
}

struct pair {
    int a, i, b, j;
};

static struct pair first_open(void) {
    for (int a = 0; a < NUM_AXES; a++) {
        for (int b = a + 1; b < NUM_AXES; b++) {
            for (int i = 0; i < num_values((enum axis)a); i++) {
                for (int j = 0; j < num_values((enum axis)b); j++) {
                    if (pairs.open[a][i][b][j]) {
                        return (struct pair){a, i, b, j};
                    }
                }
            }
        }
    }
    return (struct pair){0, 0, 0, 0};
}

/* Of some random combinations with the first open pair the one that closes the most. 0 if none is
 * possible. */
static int choose(struct combination *chosen, struct test_rng *rng) {
    struct pair pair = first_open();
    int64_t best = 0;

    for (int n = 0; n < NUM_TRIES * (best == 0 ? 20 : 1); n++) {
        struct combination at;

        for (int a = 0; a < NUM_AXES; a++) {
            at.values[a] = (int)test_rng_below(rng, num_values((enum axis)a));
        }
        at.values[pair.a] = pair.i;
        at.values[pair.b] = pair.j;
        if (is_possible(&at) && count_open(&at) > best) {
            best = count_open(&at);
            *chosen = at;
        }
    }
    if (best == 0) {
        close_pair(pair.a, pair.i, pair.b, pair.j);
        pairs.num_impossible++;
    }
    return best > 0;
}

static void print_combination(const struct combination *at) {
    fprintf(stderr, "combination");
    for (int a = 0; a < NUM_AXES; a++) {
        fprintf(stderr, " %d", at->values[a]);
    }
    fprintf(stderr, "\n");
}

/* A context of that value of the axis: any executor. */
static struct pkv_context *context_of(int level, struct test_rng *rng) {
    int start = level_starts[level];

    return contexts.all[start + test_rng_below(rng, level_starts[level + 1] - start)];
}

static double ask(const struct attn_problem *problem, const struct attn_expected *expected,
                  struct attn_call *call, struct pkv_context *context, struct test_rng *rng) {
    struct attn_answer answer = attn_answer_make(problem);
    double used;

    attn_call_run(call, problem, context, test_rng_below(rng, 4), rng, &answer);
    for (int64_t i = 0; call->placement.has_no_lse && i < answer.num_lse; i++) {
        float lse = i / problem->sizes.num_heads < expected->num_rows ? (float)expected->lse[i] : 0;

        memcpy(&answer.lse[i], &lse, sizeof(lse));
    }
    used = attn_expected_compare(expected, problem, &answer);
    attn_answer_free(&answer);
    return used;
}

/* The level of the axis, and the best one beside it. */
static double run_combination(const struct combination *at, struct test_rng *rng, int64_t every) {
    const int *v = at->values;
    struct attn_sizes made = sizes_of(at);
    struct attn_problem *problem = attn_problem_make(&made, rng);
    struct attn_expected expected = attn_expected_make(problem, every);
    struct attn_placement placement = {
        .key_layout = v[KEY_LAYOUT],
        .value_layout = v[VALUE_LAYOUT],
        .block_size = block_sizes[v[BLOCK_SIZE]],
        .nz_5d = (int)test_rng_below(rng, 2),
        .padded = (int)test_rng_below(rng, 2),
        .interleaved = (int)test_rng_below(rng, 2),
        .has_no_lse = v[LSE] == 2,
        .drops_unseen = (int)test_rng_below(rng, 2),
    };
    struct attn_call *call;
    double used, best;

    attn_place_all(&placement, problem);
    call = attn_call_make(problem, &placement, rng);
    used = ask(problem, &expected, call, context_of(v[LEVEL], rng), rng);
    best = ask(problem, &expected, call, context_of(num_levels - 1, rng), rng);
    attn_call_free(call);
    attn_expected_free(&expected);
    attn_problem_free(problem);
    if (!(used <= 1 && best <= 1)) {
        print_combination(at);
        fail();
    }
    return used > best ? used : best;
}

static void every_pair_of_values(void **state) {
    struct test_rng rng = test_rng_make(seed);
    struct combination at;
    int64_t count = 0;
    double worst = 0;

    (void)state;
    open_all();
    while (pairs.num_open > 0) {
        if (choose(&at, &rng)) {
            double used = run_combination(&at, &rng, 1);

            /* Elsewhere it is the rounding to two bytes that comes near the bound. */
            worst = used > worst && at.values[OUT_DTYPE] ? used : worst;
            close_pairs(&at);
            count++;
        }
    }
    print_message(
        "%d combinations, %d pairs that cannot be; in float32 at the worst %.2f of the bound\n",
        (int)count, (int)pairs.num_impossible, worst);
}

/* The published lengths at the upper end, with few heads, one query of many. */
static void long_sequences(void **state) {
    static const struct {
        int64_t num_heads, num_kv_heads, head_size, queries, tokens, every;
    } cases[] = {
        {2, 1, 32, 2345, 2345, 61},  {4, 4, 64, 1, 7812, 1},     {16, 2, 128, 1, 7812, 1},
        {4, 1, 100, 700, 4100, 101}, {3, 3, 46, 2345, 2345, 97}, {64, 8, 32, 3, 7812, 1},
    };
    struct test_rng rng = test_rng_make(seed + 1);
    double worst = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct attn_sizes made = {
            .num_heads = cases[i].num_heads,
            .num_kv_heads = cases[i].num_kv_heads,
            .head_size = cases[i].head_size,
            .value_head_size = cases[i].head_size,
            .key_dtype = dtypes[i % 3],
            .value_dtype = dtypes[(i + 1) % 3],
            .query_dtype = dtypes[i / 2 % 3],
            .out_dtype = PKV_DTYPE_F32,
            .max_left = i % 4 == 3 ? 257 : 0,
            .has_sinks = i % 2,
            .has_slopes = i % 3 == 2,
            .num_seqs = 1,
            .num_queries = {cases[i].queries},
            .num_tokens = {cases[i].tokens},
        };
        struct attn_problem *problem = attn_problem_make(&made, &rng);
        struct attn_expected expected = attn_expected_make(problem, cases[i].every);
        struct attn_placement placement = {.key_layout = (int32_t)(i % 2),
                                           .value_layout = (int32_t)(i / 2 % 2),
                                           .block_size = block_sizes[i % 8]};
        struct attn_call *call;

        attn_place_all(&placement, problem);
        call = attn_call_make(problem, &placement, &rng);
        /* The slow levels would take seconds. */
        for (int level = num_levels > 1; level < num_levels; level++) {
            double used = ask(problem, &expected, call, context_of(level, &rng), &rng);

            assert_true(used <= 1);
            worst = used > worst ? used : worst;
        }
        attn_call_free(call);
        attn_expected_free(&expected);
        attn_problem_free(problem);
    }
    print_message("at the worst %.2f of the bound\n", worst);
}

/* bfloat16 dot products, where there are any; else the same as without. */
static void bf16_products(void **state) {
    struct test_rng rng = test_rng_make(seed + 2);
    double worst = 0;

    (void)state;
    for (int i = 0; i < 24; i++) {
        struct attn_sizes made = {
            .num_heads = heads[i % 6][0],
            .num_kv_heads = heads[i % 6][1],
            .head_size = sizes[i % 18].key,
            .value_head_size = sizes[i % 18].value,
            .is_mla = sizes[i % 18].is_mla,
            .key_dtype = i % 5 ? PKV_DTYPE_BF16 : PKV_DTYPE_F16,
            .value_dtype = i % 7 ? PKV_DTYPE_BF16 : PKV_DTYPE_F32,
            .query_dtype = dtypes[i % 3],
            .out_dtype = PKV_DTYPE_F32,
            .has_slopes = i % 2,
            .has_sinks = i / 2 % 2,
            .softcap = i % 3 ? 0 : 50,
            .mask = i % 4 ? ATTN_MASK_NONE : ATTN_MASK_FLOAT,
            .mask_width = 40,
            .num_seqs = 3,
            .num_queries = {1, 40, 3},
            .num_tokens = {300, 45, 260},
        };
        struct attn_problem *problem = attn_problem_make(&made, &rng);
        struct attn_placement placement = {
            .key_layout = i % 2, .value_layout = i / 2 % 2, .block_size = block_sizes[i % 8]};
        struct attn_expected expected;
        struct attn_call *call;

        problem->ref.has_bf16_products = 1;
        expected = attn_expected_make(problem, 3);
        attn_place_all(&placement, problem);
        call = attn_call_make(problem, &placement, &rng);
        for (int level = num_levels > 1; level < num_levels; level++) {
            double used = ask(problem, &expected, call, context_of(level, &rng), &rng);

            assert_true(used <= 1);
            worst = used > worst ? used : worst;
        }
        attn_call_free(call);
        attn_expected_free(&expected);
        attn_problem_free(problem);
    }
    print_message("at the worst %.2f of the bound\n", worst);
}

static int set_up(void **state) {
    contexts_set_up(state);
    for (int i = 0; i < contexts.count; i++) {
        if (i == 0 || strcmp(contexts.names[i], contexts.names[i - 1]) != 0) {
            level_starts[num_levels++] = i;
        }
    }
    level_starts[num_levels--] = contexts.count; /* the last one is sim */
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_values),
        cmocka_unit_test(long_sequences),
        cmocka_unit_test(bf16_products),
    };

    seed = test_seed(41);
    return cmocka_run_group_tests(tests, set_up, contexts_tear_down);
}
