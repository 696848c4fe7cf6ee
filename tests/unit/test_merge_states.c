/* SPDX-License-Identifier: MIT
 *
 * Merging partial results of attention: by hand, at random against double precision, in place,
 * against attention over the union, and what is refused.
 */
#include "attention_calls.h"
#include "contexts.h"
#include "numbers.h"

#include <math.h>
#include <stdlib.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static struct pkv_context *context;
static uint64_t seed;

enum { MAX_STATES = 6 };

/* One query, two heads, two elements; lse ln 1 and ln 3 give the weights 1/4 and 3/4, lse ln 2 and
 * minus infinity all to the first state, whatever the second one holds.
 *
 *   head 0: (4, 8) / 4 + 3 (8, -8) / 4 = (7, -4), lse = ln 4
 *   head 1: (5, 6), lse = ln 2 */
static void by_hand(void **state) {
    float out_a[4] = {4, 8, 5, 6}, out_b[4] = {8, -8, NAN, INFINITY}, out[4], lse[2];
    float lse_a[2] = {0, 0.693147181f}, lse_b[2] = {1.09861229f, -INFINITY};
    int64_t shape[3] = {1, 2, 2};
    struct pkv_tensor outs[2] = {pkv_tensor_make(out_a, PKV_DTYPE_F32, 3, shape),
                                 pkv_tensor_make(out_b, PKV_DTYPE_F32, 3, shape)};
    struct pkv_tensor lses[2] = {pkv_tensor_make(lse_a, PKV_DTYPE_F32, 2, shape),
                                 pkv_tensor_make(lse_b, PKV_DTYPE_F32, 2, shape)};
    struct pkv_tensor to = pkv_tensor_make(out, PKV_DTYPE_F32, 3, shape);
    struct pkv_tensor to_lse = pkv_tensor_make(lse, PKV_DTYPE_F32, 2, shape);
    static const float wanted[4] = {7, -4, 5, 6};

    (void)state;
    for (int i = 0; i < 3; i++) {
        memset(out, 0xff, sizeof(out));
        memset(lse, 0xff, sizeof(lse));
        if (i == 0) {
            CHECK_OK(pkv_merge_states(context, outs, lses, 2, &to, &to_lse, NULL, &error), &error);
        } else if (i == 1) {
            CHECK_OK(pkv_merge_state(context, &outs[0], &lses[0], &outs[1], &lses[1], &to, &to_lse,
                                     NULL, &error),
                     &error);
        } else {
            CHECK_OK(pkv_merge_state(context, &outs[1], &lses[1], &outs[0], &lses[0], &to, NULL,
                                     NULL, &error),
                     &error);
        }
        for (int d = 0; d < 4; d++) {
            assert_true(fabsf(out[d] - wanted[d]) <= 2e-6f);
        }
        assert_true(i == 2 ? isnan(lse[0]) : fabsf(lse[0] - 1.38629436f) <= 1e-6f);
        assert_true(i == 2 ? isnan(lse[1]) : lse[1] == lse_a[1]);
    }
    /* In base 2: 0 and 1 are the weights 1 and 2. (4 + 2 * 8) / 3, lse = log2 3. */
    lse_b[0] = 1;
    CHECK_OK(pkv_merge_states(context, outs, lses, 2, &to, &to_lse,
                              &(struct pkv_merge_states_options){.lse_base = PKV_LSE_BASE_2},
                              &error),
             &error);
    assert_true(fabsf(out[0] - 20.0f / 3) <= 2e-6f);
    assert_true(fabsf(lse[0] - 1.5849625f) <= 1e-6f);
}

/* No state counts: zeros and minus infinity. One state: itself, to the bit. */
static void states_that_do_not_count(void **state) {
    float nothing[2] = {-INFINITY, -INFINITY}, lse[2];
    float outs[2][2] = {{NAN, 3}, {-INFINITY, 1}}, out[2];
    int64_t shape[3] = {2, 1, 1};
    struct pkv_tensor from[2] = {pkv_tensor_make(outs[0], PKV_DTYPE_F32, 3, shape),
                                 pkv_tensor_make(outs[1], PKV_DTYPE_F32, 3, shape)};
    struct pkv_tensor lses[2] = {pkv_tensor_make(nothing, PKV_DTYPE_F32, 2, shape),
                                 pkv_tensor_make(nothing, PKV_DTYPE_F32, 2, shape)};
    struct pkv_tensor to = pkv_tensor_make(out, PKV_DTYPE_F32, 3, shape);
    struct pkv_tensor to_lse = pkv_tensor_make(lse, PKV_DTYPE_F32, 2, shape);
    float one_lse[2] = {5.5f, -87.25f};

    (void)state;
    for (int64_t n = 1; n <= 2; n++) {
        CHECK_OK(pkv_merge_states(context, from, lses, n, &to, &to_lse, NULL, &error), &error);
        assert_memory_equal(out, ((float[2]){0, 0}), sizeof(out));
        assert_memory_equal(lse, nothing, sizeof(lse));
    }
    lses[0].data = one_lse;
    CHECK_OK(pkv_merge_states(context, &from[1], &lses[0], 1, &to, &to_lse, NULL, &error), &error);
    assert_memory_equal(out, outs[1], sizeof(out));
    assert_memory_equal(lse, one_lse, sizeof(lse));
}

/* States of any dtype and strides. */
struct world {
    int64_t num_states, num_tokens, num_heads, size;
    int is_base_2;
    struct model_rows outs[MAX_STATES];
    struct model_rows lses[MAX_STATES]; /* [tokens, heads, 1] */
    struct model_rows out, lse;
    struct pkv_tensor out_tensors[MAX_STATES], lse_tensors[MAX_STATES], lse_tensor;
};

static struct model_rows make_rows(const struct world *world, int64_t size, int32_t dtype,
                                   struct test_rng *rng) {
    struct model_part part = {.ref = {.num_heads = world->num_heads,
                                      .head_size = size,
                                      .element_bytes = num_format_of(dtype)->bytes},
                              .tensor = {.dtype = dtype}};

    return model_rows_make((enum model_rows_kind)test_rng_below(rng, MODEL_ROWS_NUM_KINDS), &part,
                           world->num_tokens, TEST_GUARD_END, rng);
}

static void *element(const struct model_rows *rows, void *data, int64_t t, int64_t h, int64_t d) {
    const int64_t *s = rows->ref.strides;

    return (char *)data +
           (t * s[0] + h * s[1] + d * s[2]) * num_format_of(rows->tensor.dtype)->bytes;
}

static void put(const struct model_rows *rows, int64_t t, int64_t h, int64_t d, float value) {
    const struct num_format *format = num_format_of(rows->tensor.dtype);

    num_write(format, element(rows, rows->memory.data, t, h, d), num_code_of_float(format, value));
}

static double get(const struct model_rows *rows, int64_t t, int64_t h, int64_t d) {
    const struct num_format *format = num_format_of(rows->tensor.dtype);

    return num_float_of_code(format, num_read(format, element(rows, rows->memory.data, t, h, d)));
}

static struct pkv_tensor matrix_of(const struct model_rows *rows) {
    struct pkv_tensor tensor = rows->tensor;

    tensor.ndim = 2;
    tensor.shape[2] = tensor.strides[2] = 0;
    memcpy(tensor.strides, rows->ref.strides, 2 * sizeof(int64_t));
    return tensor;
}

static void draw(struct world *world, struct test_rng *rng) {
    static const int32_t dtypes[] = {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16};

    *world = (struct world){.num_states = test_rng_between(rng, 1, MAX_STATES),
                            .num_tokens = test_rng_below(rng, 5),
                            .num_heads = test_rng_between(rng, 1, 5),
                            .size = test_rng_between(rng, 1, 150),
                            .is_base_2 = (int)test_rng_below(rng, 2)};
    for (int64_t i = 0; i < world->num_states; i++) {
        world->outs[i] = make_rows(world, world->size, dtypes[test_rng_below(rng, 3)], rng);
        world->lses[i] = make_rows(world, 1, PKV_DTYPE_F32, rng);
        for (int64_t t = 0; t < world->num_tokens; t++) {
            for (int64_t h = 0; h < world->num_heads; h++) {
                int counts = test_rng_below(rng, 5) > 0;

                put(&world->lses[i], t, h, 0,
                    counts ? (float)test_rng_between(rng, -3000, 3000) / 300 : -INFINITY);
                for (int64_t d = 0; d < world->size; d++) {
                    put(&world->outs[i], t, h, d,
                        counts ? (float)test_rng_between(rng, -3000, 3000) / 500 : NAN);
                }
            }
        }
        world->out_tensors[i] = world->outs[i].tensor;
        world->lse_tensors[i] = matrix_of(&world->lses[i]);
    }
    world->out = make_rows(world, world->size, dtypes[test_rng_below(rng, 3)], rng);
    world->lse = make_rows(world, 1, PKV_DTYPE_F32, rng);
    world->lse_tensor = matrix_of(&world->lse);
}

static void destroy(struct world *world) {
    for (int64_t i = 0; i < world->num_states; i++) {
        model_rows_free(&world->outs[i]);
        model_rows_free(&world->lses[i]);
    }
    model_rows_free(&world->out);
    model_rows_free(&world->lse);
}

/* What must come out of one query and head, and how far off it may be: weights and sums in double,
 * here as there, each off by some units of 2^-44 of its size and of the argument of exp, and one
 * rounding to float32. */
struct wanted {
    double lse, lse_bound;
    double out[150], bounds[150];
};

static void expect(const struct world *world, int64_t t, int64_t h, struct wanted *wanted) {
    double unit = ldexp(1, -44), rounding = 1.01 * ldexp(1, -24),
           base = world->is_base_2 ? M_LN2 : 1;
    double max = -INFINITY, total = 0, error_sum = 0;

    memset(wanted, 0, sizeof(*wanted));
    for (int64_t i = 0; i < world->num_states; i++) {
        max = fmax(max, get(&world->lses[i], t, h, 0) * base);
    }
    for (int64_t i = 0; i < world->num_states; i++) {
        double lse = get(&world->lses[i], t, h, 0) * base;
        double weight = lse == -INFINITY ? 0 : exp(lse - max);
        double off = weight * unit * (16 + 4 * fabs(lse) + 4 * fabs(max));

        total += weight;
        if (weight > 0) {
            error_sum += off;
        }
        for (int64_t d = 0; d < world->size && weight > 0; d++) {
            double value = get(&world->outs[i], t, h, d);

            wanted->out[d] += weight * value;
            wanted->bounds[d] += (off + 8 * unit * weight) * fabs(value);
        }
    }
    for (int64_t d = 0; d < world->size && total > 0; d++) {
        wanted->out[d] /= total;
        wanted->bounds[d] = wanted->bounds[d] / total +
                            fabs(wanted->out[d]) * (error_sum / total + 8 * unit + rounding);
        wanted->bounds[d] +=
            attn_ref_rounding(world->out.tensor.dtype, fabs(wanted->out[d]) + wanted->bounds[d]);
    }
    wanted->lse = total > 0 ? (max + log(total)) / base : -(double)INFINITY;
    wanted->lse_bound = total > 0 ? (error_sum / total + unit * (8 + 8 * fabs(max))) / base +
                                        rounding * fabs(wanted->lse)
                                  : 0;
}

static struct wanted *expect_all(const struct world *world) {
    struct wanted *all = calloc((size_t)(world->num_tokens * world->num_heads) + 1, sizeof(*all));

    assert_non_null(all);
    for (int64_t t = 0; t < world->num_tokens; t++) {
        for (int64_t h = 0; h < world->num_heads; h++) {
            expect(world, t, h, &all[t * world->num_heads + h]);
        }
    }
    return all;
}

static void check_near(double got, double wanted, double bound, const char *what) {
    if (got != wanted && !(fabs(got - wanted) <= bound)) {
        fail_msg("%s is %.9g, not %.9g +- %.3g", what, got, wanted, bound);
    }
}

static void check_world(struct world *world, const struct model_rows *out,
                        const struct model_rows *lse, const struct wanted *all) {
    const struct num_format *format = num_format_of(out->tensor.dtype);

    for (int64_t t = 0; t < world->num_tokens; t++) {
        for (int64_t h = 0; h < world->num_heads; h++) {
            const struct wanted *wanted = &all[t * world->num_heads + h];

            check_near(get(lse, t, h, 0), wanted->lse, wanted->lse_bound, "lse");
            for (int64_t d = 0; d < world->size; d++) {
                check_near(get(out, t, h, d), wanted->out[d], wanted->bounds[d], "out");
                num_write(format, element(out, out->shadow, t, h, d),
                          num_read(format, element(out, out->memory.data, t, h, d)));
            }
            memcpy(element(lse, lse->shadow, t, h, 0), element(lse, lse->memory.data, t, h, 0),
                   sizeof(float));
        }
    }
}

/* Into memory of its own, every byte beside the rows as before; then in place of one of the
 * states. */
static void at_random(void **state) {
    struct test_rng rng = test_rng_make(seed);

    (void)state;
    for (int i = 0; i < 400; i++) {
        struct world world;
        struct pkv_merge_states_options options = {.struct_size = sizeof(options)};
        struct wanted *all;
        int64_t k;

        draw(&world, &rng);
        options.lse_base = world.is_base_2 ? PKV_LSE_BASE_2 : PKV_LSE_BASE_E;
        all = expect_all(&world);
        CHECK_OK(pkv_merge_states(context, world.out_tensors, world.lse_tensors, world.num_states,
                                  &world.out.tensor, i % 3 ? &world.lse_tensor : NULL, &options,
                                  &error),
                 &error);
        if (i % 3) {
            check_world(&world, &world.out, &world.lse, all);
        }
        assert_true(i % 3 == 0 || model_rows_are_as_expected(&world.out));
        assert_true(model_rows_are_as_expected(&world.lse));
        free(all);

        k = test_rng_below(&rng, world.num_states);
        world.out.tensor.dtype = world.outs[k].tensor.dtype; /* decides the bound */
        all = expect_all(&world);
        CHECK_OK(pkv_merge_states(context, world.out_tensors, world.lse_tensors, world.num_states,
                                  &world.out_tensors[k], &world.lse_tensors[k], &options, &error),
                 &error);
        check_world(&world, &world.outs[k], &world.lses[k], all);
        free(all);
        destroy(&world);
    }
}

/* Scores as long contexts and large products give them: nothing overflows, nothing becomes NaN. */
static void large_numbers(void **state) {
    static const float lses[][3] = {
        {1e30f, -1e30f, 0}, {3e38f, 3e38f, 3e38f}, {-3e38f, -3e38f, -3e38f}, {1e4f, 1e4f, -1e4f}};

    (void)state;
    for (size_t i = 0; i < sizeof(lses) / sizeof(lses[0]); i++) {
        float numbers[3], values[3] = {1, 1, 1}, out, lse;
        struct pkv_tensor outs[3], from[3];
        struct pkv_tensor to = pkv_tensor_make(&out, PKV_DTYPE_F32, 3, (int64_t[]){1, 1, 1});
        struct pkv_tensor to_lse = pkv_tensor_make(&lse, PKV_DTYPE_F32, 2, (int64_t[]){1, 1});

        memcpy(numbers, lses[i], sizeof(numbers));
        for (int k = 0; k < 3; k++) {
            outs[k] = pkv_tensor_make(&values[k], PKV_DTYPE_F32, 3, (int64_t[]){1, 1, 1});
            from[k] = pkv_tensor_make(&numbers[k], PKV_DTYPE_F32, 2, (int64_t[]){1, 1});
        }
        CHECK_OK(pkv_merge_states(context, outs, from, 3, &to, &to_lse, NULL, &error), &error);
        assert_true(fabsf(out - 1) <= 1e-6f);
        assert_true(fabs((double)lse - (double)numbers[0]) <=
                    1.2 + 1e-6 * fabs((double)numbers[0]));
    }
}

/* Attention over the first and over the other positions of a sequence, merged, is attention over
 * all of them. The parts are taken by masks. */
static void parts_of_a_sequence(void **state) {
    (void)state;
    for (int round = 0; round < 6; round++) {
        struct test_rng rng = test_rng_make(seed + 10);
        struct attn_sizes sizes = {.num_heads = 6,
                                   .num_kv_heads = 3,
                                   .head_size = 32,
                                   .value_head_size = 40,
                                   .key_dtype = PKV_DTYPE_BF16,
                                   .value_dtype = PKV_DTYPE_BF16,
                                   .query_dtype = PKV_DTYPE_BF16,
                                   .out_dtype = PKV_DTYPE_F32,
                                   .is_base_2 = round % 2,
                                   .mask = ATTN_MASK_BOOL,
                                   .mask_width = 400,
                                   .num_seqs = 1,
                                   .num_queries = {4},
                                   .num_tokens = {400}};
        int64_t cut = (int64_t[]){1, 100, 256, 300, 399, 397}[round];
        int64_t out_shape[3] = {4, 6, 40};
        struct attn_problem *problem = attn_problem_make(&sizes, &rng);
        struct attn_answer answers[2], merged = attn_answer_make(problem);
        struct pkv_tensor outs[2], lses[2];
        struct pkv_tensor to = pkv_tensor_make(merged.out, PKV_DTYPE_F32, 3, out_shape);
        struct pkv_tensor to_lse = pkv_tensor_make(merged.lse, PKV_DTYPE_F32, 2, out_shape);
        struct pkv_merge_states_options options = {.lse_base =
                                                       round % 2 ? PKV_LSE_BASE_2 : PKV_LSE_BASE_E};
        struct attn_placement placement = {.block_size = 16};
        struct attn_expected expected;

        attn_place_all(&placement, problem);
        for (int part = 0; part < 2; part++) {
            for (int64_t i = 0; i < 4 * 400; i++) {
                problem->arrays[0][3][i] = (i % 400 < cut) == (part == 0) ? 0 : -INFINITY;
            }
            answers[part] = attn_answer_make(problem);
            attn_ask(problem, &placement, context, 0, &rng, &answers[part]);
            outs[part] = pkv_tensor_make(answers[part].out, PKV_DTYPE_F32, 3, out_shape);
            lses[part] = pkv_tensor_make(answers[part].lse, PKV_DTYPE_F32, 2, out_shape);
        }
        CHECK_OK(pkv_merge_states(context, outs, lses, 2, &to, &to_lse, &options, &error), &error);
        memset(problem->arrays[0][3], 0, 4 * 400 * sizeof(float));
        expected = attn_expected_make(problem, 1);
        assert_true(attn_expected_compare(&expected, problem, &merged) <= 1);
        attn_expected_free(&expected);
        attn_answer_free(&answers[0]);
        attn_answer_free(&answers[1]);
        attn_answer_free(&merged);
        attn_problem_free(problem);
    }
}

/* A merge of three states that would succeed; tests change one thing. */
struct setting {
    float out_data[3][2 * 2 * 4], lse_data[3][2 * 2], out_to[2 * 2 * 4 + 8], lse_to[2 * 2 + 8];
    struct pkv_tensor outs[3], lses[3], out, lse;
    struct pkv_merge_states_options options;
};

static void setting_make(struct setting *it) {
    int64_t shape[3] = {2, 2, 4};

    memset(it, 0, sizeof(*it));
    memset(it->out_to, 0xff, sizeof(it->out_to));
    memset(it->lse_to, 0xff, sizeof(it->lse_to));
    for (int i = 0; i < 3; i++) {
        it->outs[i] = pkv_tensor_make(it->out_data[i], PKV_DTYPE_F32, 3, shape);
        it->lses[i] = pkv_tensor_make(it->lse_data[i], PKV_DTYPE_F32, 2, shape);
    }
    it->out = pkv_tensor_make(it->out_to, PKV_DTYPE_F32, 3, shape);
    it->lse = pkv_tensor_make(it->lse_to, PKV_DTYPE_F32, 2, shape);
    it->options.struct_size = sizeof(it->options);
}

static void expect_refused(struct setting *it, int32_t expected, const char *argument,
                           int64_t index, int line) {
    struct setting before = *it;

    check_refused(
        pkv_merge_states(context, it->outs, it->lses, 3, &it->out, &it->lse, &it->options, &error),
        &error, expected, __FILE__, line);
    if (strcmp(error.argument, argument) != 0) {
        fail_msg("line %d: argument %s instead of %s", line, error.argument, argument);
    }
    assert_string_equal(error.function, "pkv_merge_states");
    assert_int_equal(expected == PKV_STATUS_OVERLAP ? error.bound : error.index, index);
    assert_memory_equal(&before, it, sizeof(before));
    setting_make(it);
}

#define REFUSE(it, expected, argument, index)                                                      \
    expect_refused(&(it), (expected), (argument), (index), __LINE__)

static struct pkv_tensor *tensor_of(struct setting *it, int i) {
    return i == 0 ? &it->outs[2] : i == 1 ? &it->lses[1] : i == 2 ? &it->out : &it->lse;
}

static void tensors_that_are_refused(void **state) {
    static const char *const names[] = {"outs", "lses", "out", "lse"};
    static const int64_t indices[] = {2, 1, PKV_ERROR_NONE, PKV_ERROR_NONE};
    struct setting it;

    (void)state;
    setting_make(&it);
    for (int i = 0; i < 4; i++) {
        struct pkv_tensor *tensor = tensor_of(&it, i);
        int32_t ndim = tensor->ndim;

        tensor->data = NULL;
        REFUSE(it, PKV_STATUS_NULL_ARGUMENT, names[i], indices[i]);
        tensor->dtype = 99;
        REFUSE(it, PKV_STATUS_DTYPE, names[i], indices[i]);
        tensor->dtype = PKV_DTYPE_I32;
        REFUSE(it, PKV_STATUS_DTYPE, names[i], indices[i]);
        if (ndim == 2) {
            tensor->dtype = PKV_DTYPE_F16;
            REFUSE(it, PKV_STATUS_DTYPE, names[i], indices[i]);
        }
        tensor->ndim = 9;
        REFUSE(it, PKV_STATUS_RANK, names[i], indices[i]);
        tensor->ndim = ndim - 1;
        REFUSE(it, PKV_STATUS_RANK, names[i], indices[i]);
        tensor->ndim = ndim + 1;
        tensor->shape[ndim] = 1;
        REFUSE(it, PKV_STATUS_RANK, names[i], indices[i]);
        tensor->shape[0] = -1;
        REFUSE(it, PKV_STATUS_SHAPE, names[i], indices[i]);
        tensor->strides[0] = -1;
        REFUSE(it, PKV_STATUS_STRIDE, names[i], indices[i]);
        tensor->strides[0] = INT64_MAX / 2;
        tensor->strides[1] = 1;
        REFUSE(it, PKV_STATUS_OVERFLOW, names[i], indices[i]);
        tensor->data = (char *)tensor->data + 2;
        REFUSE(it, PKV_STATUS_MISALIGNED, names[i], indices[i]);
        /* Another shape than out; out itself decides, so that the first state does not fit it. */
        for (int32_t axis = 0; axis < ndim && i != 2; axis++) {
            tensor->shape[axis]--;
            REFUSE(it, PKV_STATUS_SHAPE, names[i], indices[i]);
        }
    }
    it.out.shape[2]--;
    REFUSE(it, PKV_STATUS_SHAPE, "outs", 0);
    it.out.shape[0]--;
    REFUSE(it, PKV_STATUS_SHAPE, "lse", PKV_ERROR_NONE);
    it.outs[1] = (struct pkv_tensor){0};
    expect_refused(&it, PKV_STATUS_DTYPE, "outs", 1, __LINE__);
}

static void outputs_that_share_bytes(void **state) {
    struct setting it;

    (void)state;
    setting_make(&it);
    memcpy(it.out.strides, (int64_t[]){4, 4, 1}, 3 * sizeof(int64_t));
    REFUSE(it, PKV_STATUS_STRIDE, "out", PKV_ERROR_NONE);
    memcpy(it.lse.strides, (int64_t[]){1, 1}, 2 * sizeof(int64_t));
    REFUSE(it, PKV_STATUS_STRIDE, "lse", PKV_ERROR_NONE);
    it.lse.data = it.out_to + 3;
    REFUSE(it, PKV_STATUS_OVERLAP, "lse", PKV_ERROR_NONE);
    it.out.data = it.out_data[1] + 1;
    REFUSE(it, PKV_STATUS_OVERLAP, "out", 1);
    /* Between the states, overlapping the end of one and the start of the next. */
    it.out.data = it.out_data[0] + 12;
    REFUSE(it, PKV_STATUS_OVERLAP, "out", 0);
    /* The same data with other strides: elements would be read after they are written. */
    it.out.data = it.out_data[2];
    memcpy(it.out.strides, (int64_t[]){4, 8, 1}, 3 * sizeof(int64_t));
    REFUSE(it, PKV_STATUS_OVERLAP, "out", 2);
    it.out.data = it.out_data[2];
    it.out.dtype = PKV_DTYPE_BF16;
    REFUSE(it, PKV_STATUS_OVERLAP, "out", 2);
    it.lse.data = it.lse_data[1] + 1;
    REFUSE(it, PKV_STATUS_OVERLAP, "lse", 1);
    it.lse.data = it.out_data[2];
    REFUSE(it, PKV_STATUS_OVERLAP, "lse", 2);
    it.out.data = it.lse_data[0];
    expect_refused(&it, PKV_STATUS_OVERLAP, "out", 0, __LINE__);
}

static void arguments_that_are_refused(void **state) {
    struct setting it;

    (void)state;
    setting_make(&it);
    it.options.lse_base = 2;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT, "options->lse_base", PKV_ERROR_NONE);
    it.options.lse_base = -1;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT, "options->lse_base", PKV_ERROR_NONE);
    it.options.reserved = 1;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT, "options->reserved", PKV_ERROR_NONE);
    it.options.struct_size = 1;
    REFUSE(it, PKV_STATUS_STRUCT_SIZE, "options", PKV_ERROR_NONE);
    for (int64_t n = -1; n <= 0; n++) {
        CHECK_REFUSED(
            pkv_merge_states(context, it.outs, it.lses, n, &it.out, &it.lse, NULL, &error), &error,
            PKV_STATUS_INVALID_ARGUMENT);
        assert_string_equal(error.argument, "num_states");
    }
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"context", "outs", "lses", "out"};

        CHECK_REFUSED(pkv_merge_states(i == 0 ? NULL : context, i == 1 ? NULL : it.outs,
                                       i == 2 ? NULL : it.lses, 3, i == 3 ? NULL : &it.out, &it.lse,
                                       NULL, &error),
                      &error, PKV_STATUS_NULL_ARGUMENT);
        assert_string_equal(error.argument, names[i]);
    }
    for (int i = 0; i < 6; i++) {
        static const char *const names[] = {"context", "out_a", "lse_a", "out_b", "lse_b", "out"};

        CHECK_REFUSED(pkv_merge_state(i == 0 ? NULL : context, i == 1 ? NULL : &it.outs[0],
                                      i == 2 ? NULL : &it.lses[0], i == 3 ? NULL : &it.outs[1],
                                      i == 4 ? NULL : &it.lses[1], i == 5 ? NULL : &it.out, &it.lse,
                                      NULL, &error),
                      &error, PKV_STATUS_NULL_ARGUMENT);
        assert_string_equal(error.argument, names[i]);
        assert_string_equal(error.function, "pkv_merge_state");
    }
    for (int i = 0; i < 4; i++) { /* each of the two states by its own name */
        static const char *const names[] = {"out_a", "out_b", "lse_a", "lse_b"};
        struct pkv_tensor *const states[] = {&it.outs[0], &it.outs[1], &it.lses[0], &it.lses[1]};

        setting_make(&it);
        states[i]->dtype = PKV_DTYPE_I32;
        CHECK_REFUSED(pkv_merge_state(context, &it.outs[0], &it.lses[0], &it.outs[1], &it.lses[1],
                                      &it.out, &it.lse, NULL, &error),
                      &error, PKV_STATUS_DTYPE);
        assert_string_equal(error.argument, names[i]);
        assert_int_equal(error.index, PKV_ERROR_NONE);
    }
    for (size_t i = 0; i < sizeof(it.out_to) / sizeof(it.out_to[0]); i++) {
        assert_true(isnan(it.out_to[i]));
    }
}

static int set_up(void **state) {
    (void)state;
    context = make_context(PKV_RUN_MODE_NATIVE, PKV_CPU_LEVEL_BEST, NULL);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    pkv_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(states_that_do_not_count),
        cmocka_unit_test(at_random),
        cmocka_unit_test(large_numbers),
        cmocka_unit_test(parts_of_a_sequence),
        cmocka_unit_test(tensors_that_are_refused),
        cmocka_unit_test(outputs_that_share_bytes),
        cmocka_unit_test(arguments_that_are_refused),
    };

    seed = test_seed(44);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
