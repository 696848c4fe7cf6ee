/* SPDX-License-Identifier: MIT
 *
 * What paged attention refuses, under which name, and that a refusal writes nothing. What a step
 * refuses is in test_step_queries.c.
 */
#include "attention_calls.h"
#include "contexts.h"

#include <math.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static struct pkv_context *native, *sim;

/* A call that would succeed; tests change one thing and call it. */
struct setting {
    struct test_rng rng;
    struct attn_problem *problem;
    struct attn_call *call;
    struct pkv_cache cache;
    struct pkv_step *step;
    struct pkv_paged_attention_plan *plans[2]; /* native, sim */
    struct pkv_paged_attention_tensors tensors;
};

enum { TOKENS = 3, HEADS = 4, SIZE = 6, VALUE_SIZE = 5, WIDTH = 9 };

static void setting_make(struct setting *it) {
    struct attn_sizes sizes = {.num_heads = HEADS,
                               .num_kv_heads = 2,
                               .head_size = SIZE,
                               .value_head_size = VALUE_SIZE,
                               .key_dtype = PKV_DTYPE_BF16,
                               .value_dtype = PKV_DTYPE_BF16,
                               .query_dtype = PKV_DTYPE_F16,
                               .out_dtype = PKV_DTYPE_F16,
                               .has_slopes = 1,
                               .has_sinks = 1,
                               .mask = ATTN_MASK_FLOAT,
                               .mask_width = WIDTH,
                               .num_seqs = 2,
                               .num_queries = {1, 2},
                               .num_tokens = {17, 40}};
    struct attn_placement placement = {.block_size = 8, .drops_unseen = 1};
    struct pkv_paged_attention_options options;
    struct pkv_step_indices indices;

    *it = (struct setting){.rng = test_rng_make(5)};
    it->problem = attn_problem_make(&sizes, &it->rng);
    attn_place_all(&placement, it->problem);
    it->call = attn_call_make(it->problem, &placement, &it->rng);
    it->tensors = attn_tensors(it->call);
    options = attn_options(it->problem);
    indices = attn_indices(it->call);
    it->step = make_step(0, 0);
    CHECK_OK(init_cache(&it->cache, &it->call->cache, &error), &error);
    CHECK_OK(pkv_step_set(native, it->step, &it->cache, &indices, &error), &error);
    CHECK_OK(pkv_paged_attention_plan_create(&it->plans[0], native, &it->cache, &options, &error),
             &error);
    CHECK_OK(pkv_paged_attention_plan_create(&it->plans[1], sim, &it->cache, &options, &error),
             &error);
}

static void setting_free(struct setting *it) {
    pkv_step_destroy(it->step);
    pkv_paged_attention_plan_destroy(it->plans[0]);
    pkv_paged_attention_plan_destroy(it->plans[1]);
    attn_call_free(it->call);
    attn_problem_free(it->problem);
}

static int is_poison(const struct test_guard *memory) {
    const unsigned char *bytes = memory->data;

    for (size_t i = 0; i < memory->bytes; i++) {
        if (bytes[i] != 0xff) {
            return 0;
        }
    }
    return 1;
}

static void expect_untouched(const struct setting *it, int line) {
    if (!is_poison(&it->call->out.memory) || !is_poison(&it->call->lse_memory)) {
        fail_msg("line %d: a refused call wrote something", line);
    }
}

/* By all ways in: run and part, native and sim. */
static void expect_refusal(struct setting *it, int32_t expected, const char *argument, int line) {
    for (int way = 0; way < 4; way++) {
        struct pkv_context *context = way % 2 ? sim : native;
        enum pkv_status status =
            way < 2 ? pkv_paged_attention_run(context, it->plans[way % 2], it->step, &it->cache,
                                              &it->tensors, &error)
                    : pkv_paged_attention_run_part(context, it->plans[way % 2], it->step,
                                                   &it->cache, &it->tensors, 0, 2, &error);

        check_refused(status, &error, expected, __FILE__, line);
        if (strcmp(error.argument, argument) != 0) {
            fail_msg("line %d: argument %s instead of %s", line, error.argument, argument);
        }
        assert_string_equal(error.function,
                            way < 2 ? "pkv_paged_attention_run" : "pkv_paged_attention_run_part");
        assert_int_equal(pkv_context_last_error(context)->status, expected);
        expect_untouched(it, line);
    }
    it->tensors = attn_tensors(it->call);
}

#define REFUSE(it, expected, argument) expect_refusal(&(it), (expected), (argument), __LINE__)

static void the_setting_succeeds(void **state) {
    struct attn_answer answer;
    struct setting it;

    (void)state;
    setting_make(&it);
    answer = attn_answer_make(it.problem);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(pkv_paged_attention_run(i ? sim : native, it.plans[i], it.step, &it.cache,
                                         &it.tensors, &error),
                 &error);
        assert_true(attn_call_collect(it.call, it.problem, &answer));
        attn_call_reset(it.call);
    }
    attn_answer_free(&answer);
    setting_free(&it);
}

static void missing_arguments(void **state) {
    struct setting it;

    (void)state;
    setting_make(&it);
    for (int i = 0; i < 5; i++) {
        static const char *const names[] = {"context", "plan", "step", "cache", "tensors"};
        struct pkv_context *context = i == 0 ? NULL : native;
        struct pkv_paged_attention_plan *plan = i == 1 ? NULL : it.plans[0];
        struct pkv_step *step = i == 2 ? NULL : it.step;
        struct pkv_cache *cache = i == 3 ? NULL : &it.cache;
        struct pkv_paged_attention_tensors *tensors = i == 4 ? NULL : &it.tensors;

        CHECK_REFUSED(pkv_paged_attention_run(context, plan, step, cache, tensors, &error), &error,
                      PKV_STATUS_NULL_ARGUMENT);
        assert_string_equal(error.argument, names[i]);
        CHECK_REFUSED(
            pkv_paged_attention_run_part(context, plan, step, cache, tensors, 0, 1, &error), &error,
            PKV_STATUS_NULL_ARGUMENT);
        assert_string_equal(error.argument, names[i]);
    }
    it.tensors.query = (struct pkv_tensor){0};
    REFUSE(it, PKV_STATUS_NULL_ARGUMENT, "query");
    it.tensors.out = (struct pkv_tensor){0};
    REFUSE(it, PKV_STATUS_NULL_ARGUMENT, "out");
    it.tensors.struct_size = 3;
    REFUSE(it, PKV_STATUS_STRUCT_SIZE, "tensors");
    it.tensors.struct_size = sizeof(size_t) * 1000;
    REFUSE(it, PKV_STATUS_STRUCT_SIZE, "tensors");
    setting_free(&it);
}

/* The six tensors by name. */
static struct pkv_tensor *tensor_of(struct setting *it, int i) {
    struct pkv_tensor *all[] = {&it->tensors.query,        &it->tensors.out,   &it->tensors.lse,
                                &it->tensors.alibi_slopes, &it->tensors.sinks, &it->tensors.mask};

    return all[i];
}

static const char *const tensor_names[] = {"query", "out", "lse", "alibi_slopes", "sinks", "mask"};

/* What no tensor may be. */
static void unusable_tensors(void **state) {
    struct setting it;

    (void)state;
    setting_make(&it);
    for (int i = 0; i < 6; i++) {
        struct pkv_tensor *tensor = tensor_of(&it, i);
        const char *name = tensor_names[i];

        tensor->data = NULL;
        REFUSE(it, PKV_STATUS_NULL_ARGUMENT, name);
        tensor->dtype = 99;
        REFUSE(it, PKV_STATUS_DTYPE, name);
        tensor->ndim = PKV_MAX_DIMS + 1;
        REFUSE(it, PKV_STATUS_RANK, name);
        tensor->ndim = -1;
        REFUSE(it, PKV_STATUS_RANK, name);
        tensor->shape[0] = -1;
        REFUSE(it, PKV_STATUS_SHAPE, name);
        tensor->strides[0] = -tensor->strides[0] - 1;
        REFUSE(it, PKV_STATUS_STRIDE, name);
        tensor->strides[0] = INT64_MAX / 2;
        if (tensor->shape[0] > 1) {
            REFUSE(it, PKV_STATUS_OVERFLOW, name);
        }
        it.tensors = attn_tensors(it.call);
        if (tensor->dtype != PKV_DTYPE_BOOL) {
            tensor->data = (char *)tensor->data + 1;
            REFUSE(it, PKV_STATUS_MISALIGNED, name);
        }
    }
    setting_free(&it);
}

/* What these tensors may not be. */
static void tensors_that_do_not_fit(void **state) {
    static const int32_t wrong_dtypes[][4] = {
        {PKV_DTYPE_F32, PKV_DTYPE_BF16, PKV_DTYPE_I16, PKV_DTYPE_U16},
        {PKV_DTYPE_BF16, PKV_DTYPE_I16, PKV_DTYPE_U16, PKV_DTYPE_I8},
        {PKV_DTYPE_F16, PKV_DTYPE_BF16, PKV_DTYPE_I32, PKV_DTYPE_U32},
        {PKV_DTYPE_F16, PKV_DTYPE_BF16, PKV_DTYPE_I32, PKV_DTYPE_BOOL},
        {PKV_DTYPE_F16, PKV_DTYPE_BF16, PKV_DTYPE_I32, PKV_DTYPE_BOOL},
        {PKV_DTYPE_F16, PKV_DTYPE_BF16, PKV_DTYPE_I32, PKV_DTYPE_U8},
    };
    struct setting it;

    (void)state;
    setting_make(&it);
    for (int i = 0; i < 6; i++) {
        struct pkv_tensor *tensor = tensor_of(&it, i);
        int32_t ndim = tensor->ndim;

        for (int k = 0; k < 4; k++) {
            tensor->dtype = wrong_dtypes[i][k];
            memset(tensor->strides, 0, sizeof(tensor->strides));
            if (pkv_dtype_bytes(tensor->dtype) == 4) {
                /* A place of its own, in case the tensor is checked for more than its dtype. */
                tensor->data = (char *)tensor->data - (uintptr_t)tensor->data % 4;
            }
            REFUSE(it, PKV_STATUS_DTYPE, tensor_names[i]);
        }
        tensor->ndim--;
        if (ndim > 1) {
            REFUSE(it, PKV_STATUS_RANK, tensor_names[i]);
        }
        it.tensors = attn_tensors(it.call);
        tensor->ndim++;
        tensor->shape[ndim] = 1;
        tensor->strides[ndim] = 1;
        REFUSE(it, PKV_STATUS_RANK, tensor_names[i]);
        for (int32_t axis = 0; axis < ndim; axis++) {
            /* A mask may have any width. */
            for (int more = -1; more <= 1 && !(i == 5 && axis == 1); more += 2) {
                tensor->shape[axis] += more;
                memset(tensor->strides, 0, sizeof(tensor->strides));
                REFUSE(it, PKV_STATUS_SHAPE, tensor_names[i]);
                assert_int_equal(error.axis, axis);
            }
        }
    }
    setting_free(&it);
}

static void outputs_that_share_bytes(void **state) {
    struct setting it;

    (void)state;
    setting_make(&it);
    memcpy(it.tensors.out.strides, (int64_t[]){VALUE_SIZE * HEADS, VALUE_SIZE - 1, 1},
           3 * sizeof(int64_t));
    REFUSE(it, PKV_STATUS_STRIDE, "out");
    memcpy(it.tensors.out.strides, (int64_t[]){0, VALUE_SIZE, 1}, 3 * sizeof(int64_t));
    REFUSE(it, PKV_STATUS_STRIDE, "out");
    memcpy(it.tensors.lse.strides, (int64_t[]){1, 1}, 2 * sizeof(int64_t));
    REFUSE(it, PKV_STATUS_STRIDE, "lse");
    it.tensors.lse.strides[1] = 0;
    REFUSE(it, PKV_STATUS_STRIDE, "lse");
    setting_free(&it);
}

/* Each output in each thing that is read, and in the other. Reads may share bytes as they like. */
static void outputs_in_inputs(void **state) {
    struct setting it;

    (void)state;
    setting_make(&it);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "lse" : "out";
        void *const inputs[] = {
            it.tensors.query.data,
            it.tensors.alibi_slopes.data,
            it.tensors.sinks.data,
            it.tensors.mask.data,
            it.cache.key.data,
            it.cache.value.data,
            it.call->block_table.tensor.data,
            it.call->seq_lens.tensor.data,
            it.call->seq_offsets.tensor.data,
            it.call->query_start_loc.tensor.data,
        };

        for (size_t k = 0; k < sizeof(inputs) / sizeof(inputs[0]); k++) {
            struct pkv_tensor *output = tensor_of(&it, i ? 2 : 1);
            uintptr_t at = (uintptr_t)inputs[k];

            output->data = (void *)(at - at % 4);
            memset(output->strides, 0, sizeof(output->strides));
            REFUSE(it, PKV_STATUS_OVERLAP, name);
        }
    }
    it.tensors.lse.data = it.tensors.out.data;
    memset(it.tensors.out.strides, 0, sizeof(it.tensors.out.strides));
    it.tensors.lse.data = (void *)((uintptr_t)it.tensors.out.data & ~(uintptr_t)3);
    REFUSE(it, PKV_STATUS_OVERLAP, "lse");
    setting_free(&it);
}

static struct pkv_cache another_cache(struct setting *it, int what) {
    struct model_sizes sizes = {.key_layout = what == 0 ? PKV_LAYOUT_HND : PKV_LAYOUT_NHD,
                                .key_dtype = what == 1 ? PKV_DTYPE_F16 : PKV_DTYPE_BF16,
                                .value_dtype = what == 2 ? 0 : PKV_DTYPE_BF16,
                                .num_blocks = it->cache.num_blocks + (what == 3),
                                .block_size = what == 4 ? 4 : 8,
                                .num_heads = what == 5 ? 4 : 2,
                                .key_head_size = SIZE,
                                .value_head_size = VALUE_SIZE + (what == 6)};
    struct model_cache model = model_cache_make(&sizes, &it->rng);
    struct pkv_cache cache;

    CHECK_OK(init_cache(&cache, &model, &error), &error);
    model_cache_free(&model); /* nobody looks at its data */
    return cache;
}

static void caches_that_are_not_the_plans(void **state) {
    struct setting it;
    struct pkv_cache right;

    (void)state;
    setting_make(&it);
    right = it.cache;
    for (int what = 0; what < 7; what++) {
        it.cache = another_cache(&it, what);
        REFUSE(it, PKV_STATUS_LAYOUT, "cache");
    }
    it.cache = right;
    it.cache.value.token_stride_bytes += 2;
    REFUSE(it, PKV_STATUS_LAYOUT, "cache");
    it.cache = (struct pkv_cache){0};
    REFUSE(it, PKV_STATUS_BAD_STATE, "cache");
    it.cache = right;
    setting_free(&it);
}

static void steps_that_do_not_serve(void **state) {
    struct pkv_step *right, *step = make_step(0, 0);
    struct pkv_step_indices indices;
    struct pkv_cache other;
    struct setting it;

    (void)state;
    setting_make(&it);
    indices = attn_indices(it.call);
    right = it.step;
    it.step = step;
    REFUSE(it, PKV_STATUS_BAD_STATE, "step"); /* not set */
    indices.query_start_loc = (struct pkv_tensor){0};
    CHECK_OK(pkv_step_set(native, step, &it.cache, &indices, &error), &error);
    REFUSE(it, PKV_STATUS_BAD_STATE, "step"); /* good for a gather only */
    indices = attn_indices(it.call);
    other = another_cache(&it, 3);
    CHECK_OK(pkv_step_set(native, step, &other, &indices, &error), &error);
    REFUSE(it, PKV_STATUS_BAD_STATE, "step"); /* one block more */
    indices.duplicates = 77;
    CHECK_REFUSED(pkv_step_set(native, step, &it.cache, &indices, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    REFUSE(it, PKV_STATUS_BAD_STATE, "step"); /* a refused set leaves none */
    it.step = right;
    pkv_step_destroy(step);
    setting_free(&it);
}

static void parts_out_of_range(void **state) {
    static const int64_t parts[][2] = {{-1, 3}, {3, 3}, {0, 0}, {0, -1}, {INT64_MAX, INT64_MAX}};
    struct setting it;

    (void)state;
    setting_make(&it);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        for (int k = 0; k < 2; k++) {
            CHECK_REFUSED(pkv_paged_attention_run_part(k ? sim : native, it.plans[k], it.step,
                                                       &it.cache, &it.tensors, parts[i][0],
                                                       parts[i][1], &error),
                          &error, PKV_STATUS_INVALID_ARGUMENT);
            assert_string_equal(error.argument, parts[i][1] < 1 ? "num_parts" : "part");
            expect_untouched(&it, __LINE__);
        }
    }
    /* As many parts as can be counted are fine, and nearly all are empty. */
    CHECK_OK(pkv_paged_attention_run_part(native, it.plans[0], it.step, &it.cache, &it.tensors,
                                          INT64_MAX / 3, INT64_MAX, &error),
             &error);
    setting_free(&it);
}

/* 2^32 tokens and one more, in one block that is only described; and as many with those that are
 * gone. */
static void sequences_that_are_too_long(void **state) {
    static uint16_t element[32];
    int64_t table[1] = {0}, length[1] = {(INT64_C(1) << 32) + 1}, starts[2] = {0, 1};
    int64_t offset[1] = {0}, end = length[0];
    float query[2] = {0}, out[2];
    int64_t block_size = INT64_C(1) << 40;
    struct pkv_tensor key =
        pkv_tensor_make(element, PKV_DTYPE_F16, 4, (int64_t[]){1, block_size, 1, 2});
    struct pkv_step_indices indices = {
        .block_table = pkv_tensor_make(table, PKV_DTYPE_I64, 2, (int64_t[]){1, 1}),
        .seq_lens = pkv_tensor_make(length, PKV_DTYPE_I64, 1, (int64_t[]){1}),
        .seq_offsets = pkv_tensor_make(offset, PKV_DTYPE_I64, 1, (int64_t[]){1}),
        .query_start_loc = pkv_tensor_make(starts, PKV_DTYPE_I64, 1, (int64_t[]){2})};
    struct pkv_paged_attention_tensors tensors = {
        .query = pkv_tensor_make(query, PKV_DTYPE_F32, 3, (int64_t[]){1, 1, 2}),
        .out = pkv_tensor_make(out, PKV_DTYPE_F32, 3, (int64_t[]){1, 1, 2})};
    struct pkv_paged_attention_options options = {.query_dtype = PKV_DTYPE_F32};
    struct pkv_step *step = make_step(0, 0);
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    (void)state;
    memset(out, 0xff, sizeof(out));
    CHECK_OK(pkv_cache_init(&cache, &key, NULL, NULL, &error), &error);
    for (int i = 0; i < 4; i++) {
        struct pkv_context *context = i % 2 ? sim : native;
        struct pkv_paged_attention_plan *plan = NULL;

        offset[0] = i / 2 * 1000;
        length[0] = end - offset[0];
        CHECK_OK(pkv_step_set(native, step, &cache, &indices, &error), &error);

        CHECK_OK(pkv_paged_attention_plan_create(&plan, context, &cache, &options, &error), &error);
        CHECK_REFUSED(pkv_paged_attention_run(context, plan, step, &cache, &tensors, &error),
                      &error, PKV_STATUS_OVERFLOW);
        assert_string_equal(error.argument, "seq_lens");
        assert_int_equal(error.index, 0);
        assert_int_equal(error.value, end);
        assert_int_equal(error.bound, INT64_C(1) << 32);
        pkv_paged_attention_plan_destroy(plan);
    }
    pkv_step_destroy(step);
}

/* ---- The plan ---- */

static void expect_no_plan(struct pkv_cache *cache,
                           const struct pkv_paged_attention_options *options, int32_t expected,
                           const char *argument, int line) {
    struct pkv_paged_attention_plan *plan = (struct pkv_paged_attention_plan *)(void *)&error;

    check_refused(pkv_paged_attention_plan_create(&plan, native, cache, options, &error), &error,
                  expected, __FILE__, line);
    assert_null(plan);
    if (strcmp(error.argument, argument) != 0) {
        fail_msg("line %d: argument %s instead of %s", line, error.argument, argument);
    }
    assert_string_equal(error.function, "pkv_paged_attention_plan_create");
}

static void options_out_of_range(void **state) {
    const struct {
        const char *name;
        struct pkv_paged_attention_options options;
    } wrong[] = {
        {"options->num_heads", {.num_heads = -2}},
        {"options->num_heads", {.num_heads = 3}},
        {"options->num_heads", {.num_heads = 1}},
        {"options->value_head_size", {.value_head_size = -1}},
        {"options->value_head_size", {.value_head_size = VALUE_SIZE - 1}},
        {"options->value_head_size", {.value_head_size = SIZE}},
        {"options->products", {.products = 2}},
        {"options->products", {.products = -1}},
        {"options->lse_base", {.lse_base = 2}},
        {"options->lse_base", {.lse_base = -1}},
        {"options->non_causal", {.non_causal = 2}},
        {"options->non_causal", {.non_causal = -1}},
        {"options->scale", {.scale = NAN}},
        {"options->scale", {.scale = -INFINITY}},
        {"options->softcap", {.softcap = NAN}},
        {"options->softcap", {.softcap = INFINITY}},
        {"options->softcap", {.softcap = -50}},
        {"options->softcap", {.softcap = 1e-39f}},
        {"options->softcap", {.softcap = 3e38f}},
        {"options->max_visible_left", {.max_visible_left = -1}},
        {"options->max_visible_left", {.max_visible_left = INT64_MIN}},
        {"options->max_visible_right", {.max_visible_right = -1, .non_causal = 1}},
        {"options->max_visible_right", {.max_visible_right = INT64_MIN, .non_causal = 1}},
        {"options->max_visible_right", {.max_visible_right = -1}}, /* causal */
    };
    static const int32_t wrong_dtypes[] = {PKV_DTYPE_I32, PKV_DTYPE_F8_E5M2, PKV_DTYPE_I64, 99, -1};
    struct setting it;

    (void)state;
    setting_make(&it);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        expect_no_plan(&it.cache, &wrong[i].options, PKV_STATUS_INVALID_ARGUMENT, wrong[i].name,
                       __LINE__);
    }
    for (size_t i = 0; i < sizeof(wrong_dtypes) / sizeof(wrong_dtypes[0]); i++) {
        struct pkv_paged_attention_options options = {.query_dtype = wrong_dtypes[i]};

        expect_no_plan(&it.cache, &options, PKV_STATUS_DTYPE, "options->query_dtype", __LINE__);
    }
    for (size_t size = 1; size < 20; size += 18) {
        struct pkv_paged_attention_options options = {.struct_size =
                                                          size == 1 ? 1 : sizeof(options) * 100};

        expect_no_plan(&it.cache, &options, PKV_STATUS_STRUCT_SIZE, "options", __LINE__);
    }
    setting_free(&it);
}

static struct pkv_cache cache_of(int32_t key_dtype, int32_t value_dtype, int64_t key_size,
                                 int64_t value_size) {
    static uint32_t storage[2][2 * 2 * 600];
    struct pkv_tensor key =
        pkv_tensor_make(storage[0], key_dtype, 4, (int64_t[]){2, 2, 1, key_size});
    struct pkv_tensor value =
        pkv_tensor_make(storage[1], value_dtype, 4, (int64_t[]){2, 2, 1, value_size});
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    CHECK_OK(pkv_cache_init(&cache, &key, value_size > 0 ? &value : NULL, NULL, &error), &error);
    return cache;
}

static void caches_without_a_plan(void **state) {
    struct pkv_paged_attention_options options = {0};
    struct pkv_paged_attention_plan *plan = NULL;
    struct pkv_cache cache = cache_of(PKV_DTYPE_F16, PKV_DTYPE_F16, 8, 8);

    (void)state;
    CHECK_REFUSED(pkv_paged_attention_plan_create(NULL, native, &cache, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    assert_string_equal(error.argument, "plan");
    CHECK_REFUSED(pkv_paged_attention_plan_create(&plan, NULL, &cache, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    assert_string_equal(error.argument, "context");
    expect_no_plan(NULL, NULL, PKV_STATUS_NULL_ARGUMENT, "cache", __LINE__);
    cache = (struct pkv_cache){0};
    expect_no_plan(&cache, NULL, PKV_STATUS_BAD_STATE, "cache", __LINE__);
    for (int32_t dtype = 1; dtype <= PKV_DTYPE_F8_E4M3FN; dtype++) {
        if (dtype != PKV_DTYPE_F32 && dtype != PKV_DTYPE_F16 && dtype != PKV_DTYPE_BF16) {
            cache = cache_of(dtype, PKV_DTYPE_F16, 8, 8);
            expect_no_plan(&cache, NULL, PKV_STATUS_DTYPE, "cache->key", __LINE__);
            cache = cache_of(PKV_DTYPE_F32, dtype, 8, 8);
            expect_no_plan(&cache, NULL, PKV_STATUS_DTYPE, "cache->value", __LINE__);
        }
    }
    cache = cache_of(PKV_DTYPE_F32, PKV_DTYPE_F32, 577, 8);
    expect_no_plan(&cache, NULL, PKV_STATUS_SHAPE, "cache->key", __LINE__);
    cache = cache_of(PKV_DTYPE_F32, PKV_DTYPE_F32, 8, 577);
    expect_no_plan(&cache, NULL, PKV_STATUS_SHAPE, "cache->value", __LINE__);
    /* Without a value cache values are a part of the keys. */
    cache = cache_of(PKV_DTYPE_F32, 0, 576, 0);
    options.value_head_size = 577;
    expect_no_plan(&cache, &options, PKV_STATUS_INVALID_ARGUMENT, "options->value_head_size",
                   __LINE__);
    options.value_head_size = 576;
    CHECK_OK(pkv_paged_attention_plan_create(&plan, native, &cache, &options, &error), &error);
    pkv_paged_attention_plan_destroy(plan);
}

static int set_up(void **state) {
    (void)state;
    native = make_context(PKV_RUN_MODE_NATIVE, PKV_CPU_LEVEL_BEST, NULL);
    sim = make_context(PKV_RUN_MODE_SIM, PKV_CPU_LEVEL_BEST, NULL);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    pkv_context_destroy(native);
    pkv_context_destroy(sim);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_setting_succeeds),
        cmocka_unit_test(missing_arguments),
        cmocka_unit_test(unusable_tensors),
        cmocka_unit_test(tensors_that_do_not_fit),
        cmocka_unit_test(outputs_that_share_bytes),
        cmocka_unit_test(outputs_in_inputs),
        cmocka_unit_test(caches_that_are_not_the_plans),
        cmocka_unit_test(steps_that_do_not_serve),
        cmocka_unit_test(parts_out_of_range),
        cmocka_unit_test(sequences_that_are_too_long),
        cmocka_unit_test(options_out_of_range),
        cmocka_unit_test(caches_without_a_plan),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
