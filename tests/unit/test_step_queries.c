/* SPDX-License-Identifier: MIT
 *
 * The indices of attention in a step: query_start_loc and num_shared_tokens. What is taken, what is
 * refused and how the refusal explains itself, and that a refused step serves nothing.
 */
#include "calls.h"
#include "contexts.h"

static struct pkv_error error = {.struct_size = sizeof(error)};
static struct pkv_context *context;
static struct pkv_cache cache;
static uint16_t storage[6 * 4 * 1 * 2];

enum { NUM_SEQS = 3, WIDTH = 3 };

/* Blocks of 4 tokens. All sequences begin with blocks 5 and 0; entries of -9 are not read. */
struct setting {
    int64_t table[NUM_SEQS * WIDTH], lengths[NUM_SEQS + 1], starts[NUM_SEQS + 1], offsets[NUM_SEQS];
    struct pkv_step_indices indices;
};

static struct setting good;

static void setting_make(struct setting *it) {
    *it = (struct setting){.table = {5, 0, 2, 5, 0, -9, 5, 0, 3},
                           .lengths = {12, 8, 9},
                           .starts = {0, 1, 1, 10},
                           .indices = {.struct_size = sizeof(it->indices)}};
    it->indices.block_table =
        pkv_tensor_make(it->table, PKV_DTYPE_I64, 2, (int64_t[]){NUM_SEQS, WIDTH});
    it->indices.seq_lens = pkv_tensor_make(it->lengths, PKV_DTYPE_I64, 1, (int64_t[]){NUM_SEQS});
    it->indices.query_start_loc =
        pkv_tensor_make(it->starts, PKV_DTYPE_I64, 1, (int64_t[]){NUM_SEQS + 1});
}

/* Whether a step serves attention: by asking for it. */
static enum pkv_status attend(struct pkv_step *step, int64_t num_tokens) {
    static uint16_t query[64 * 2], out[64 * 2];
    struct pkv_paged_attention_tensors tensors = {
        .query = pkv_tensor_make(query, PKV_DTYPE_BF16, 3, (int64_t[]){num_tokens, 1, 2}),
        .out = pkv_tensor_make(out, PKV_DTYPE_BF16, 3, (int64_t[]){num_tokens, 1, 2})};
    struct pkv_paged_attention_plan *plan = NULL;
    enum pkv_status status;

    CHECK_OK(pkv_paged_attention_plan_create(&plan, context, &cache, NULL, &error), &error);
    status = pkv_paged_attention_run(context, plan, step, &cache, &tensors, &error);
    pkv_paged_attention_plan_destroy(plan);
    return status;
}

static void expect_taken(const struct setting *it, int64_t num_tokens, int line) {
    struct pkv_step *step = make_step(0, 0);

    check_ok(pkv_step_set(context, step, &cache, &it->indices, &error), &error, __FILE__, line);
    check_ok(attend(step, num_tokens), &error, __FILE__, line);
    check_refused(attend(step, num_tokens + 1), &error, PKV_STATUS_SHAPE, __FILE__, line);
    assert_string_equal(error.argument, "query");
    pkv_step_destroy(step);
}

/* A step that was good before serves nothing after. */
static void expect_refused(const struct setting *it, int32_t expected, const char *argument,
                           int line) {
    struct pkv_step *step = make_step(10, NUM_SEQS);

    CHECK_OK(pkv_step_set(context, step, &cache, &good.indices, &error), &error);
    check_refused(pkv_step_set(context, step, &cache, &it->indices, &error), &error, expected,
                  __FILE__, line);
    if (strcmp(error.argument, argument) != 0) {
        fail_msg("line %d: argument %s instead of %s", line, error.argument, argument);
    }
    assert_string_equal(error.function, "pkv_step_set");
    {
        struct pkv_error facts = error;

        check_refused(attend(step, 10), &error, PKV_STATUS_BAD_STATE, __FILE__, line);
        error = facts;
    }
    pkv_step_destroy(step);
}

#define TAKE(it, num_tokens)           expect_taken(&(it), (num_tokens), __LINE__)
#define REFUSE(it, expected, argument) expect_refused(&(it), (expected), (argument), __LINE__)

static void good_indices(void **state) {
    struct setting it;
    int32_t starts32[NUM_SEQS + 1] = {0, 1, 1, 10};
    int64_t totals[NUM_SEQS + 1] = {0, 12, 20, 29};
    int64_t spaced[3 * (NUM_SEQS + 1)] = {0, -1, -1, 1, -1, -1, 1, -1, -1, 10};

    (void)state;
    setting_make(&it);
    TAKE(it, 10);
    it.indices.query_start_loc =
        pkv_tensor_make(starts32, PKV_DTYPE_I32, 1, (int64_t[]){NUM_SEQS + 1});
    TAKE(it, 10);
    it.indices.seq_lens = pkv_tensor_make(totals, PKV_DTYPE_I64, 1, (int64_t[]){NUM_SEQS + 1});
    it.indices.seq_lens_cumulative = 1;
    TAKE(it, 10);
    it.indices.query_start_loc =
        pkv_tensor_make(spaced, PKV_DTYPE_I64, 1, (int64_t[]){NUM_SEQS + 1});
    it.indices.query_start_loc.strides[0] = 3;
    TAKE(it, 10);
    setting_make(&it);
    memcpy(it.starts, (int64_t[]){0, 12, 20, 29}, sizeof(it.starts)); /* nothing but queries */
    TAKE(it, 29);
    memcpy(it.starts, (int64_t[]){0, 0, 0, 0}, sizeof(it.starts));
    TAKE(it, 0);
    memset(it.lengths, 0, sizeof(it.lengths));
    memset(it.table, 0x80, sizeof(it.table)); /* nothing is read */
    TAKE(it, 0);
    it.indices.block_table.shape[0] = it.indices.seq_lens.shape[0] = 0;
    it.indices.query_start_loc.shape[0] = 1;
    TAKE(it, 0);
    it.indices.block_table.shape[1] = 0;
    TAKE(it, 0);
}

static void good_shared_tokens(void **state) {
    struct setting it;

    (void)state;
    setting_make(&it);
    for (int64_t count = 0; count <= 8; count++) {
        it.indices.num_shared_tokens = count;
        TAKE(it, 10);
    }
    setting_make(&it);
    it.table[3] = it.table[6] = 1;
    it.indices.num_shared_tokens = 0;
    TAKE(it, 10);
    /* One sequence shares with nobody. */
    setting_make(&it);
    it.indices.block_table.shape[0] = it.indices.seq_lens.shape[0] = 1;
    it.indices.query_start_loc.shape[0] = 2;
    it.indices.num_shared_tokens = 12;
    TAKE(it, 1);
    /* None, neither. */
    it.indices.block_table.shape[0] = it.indices.seq_lens.shape[0] = 0;
    it.indices.query_start_loc.shape[0] = 1;
    TAKE(it, 0);
}

static void unusable_tensors(void **state) {
    static const int32_t wrong_dtypes[] = {PKV_DTYPE_I16, PKV_DTYPE_U32, PKV_DTYPE_F32, 0, 99};
    struct setting it;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong_dtypes) / sizeof(wrong_dtypes[0]); i++) {
        setting_make(&it);
        it.indices.query_start_loc.dtype = wrong_dtypes[i];
        REFUSE(it, PKV_STATUS_DTYPE, "query_start_loc");
    }
    setting_make(&it);
    it.indices.query_start_loc.data = NULL;
    REFUSE(it, PKV_STATUS_NULL_ARGUMENT, "query_start_loc");
    setting_make(&it);
    it.indices.query_start_loc.ndim = 0;
    REFUSE(it, PKV_STATUS_RANK, "query_start_loc");
    setting_make(&it);
    it.indices.query_start_loc.ndim = 2;
    it.indices.query_start_loc.shape[1] = 1;
    REFUSE(it, PKV_STATUS_RANK, "query_start_loc");
    setting_make(&it);
    it.indices.query_start_loc.ndim = 9;
    REFUSE(it, PKV_STATUS_RANK, "query_start_loc");
    setting_make(&it);
    it.indices.query_start_loc.strides[0] = -1;
    REFUSE(it, PKV_STATUS_STRIDE, "query_start_loc");
    setting_make(&it);
    it.indices.query_start_loc.shape[0] = -1;
    REFUSE(it, PKV_STATUS_SHAPE, "query_start_loc");
    setting_make(&it);
    it.indices.query_start_loc.strides[0] = INT64_MAX / 2;
    REFUSE(it, PKV_STATUS_OVERFLOW, "query_start_loc");
    setting_make(&it);
    it.indices.query_start_loc.data = (char *)it.starts + 4;
    REFUSE(it, PKV_STATUS_MISALIGNED, "query_start_loc");
    for (int64_t more = -1; more <= 1; more += 2) {
        setting_make(&it);
        it.indices.query_start_loc.shape[0] += more;
        REFUSE(it, PKV_STATUS_SHAPE, "query_start_loc");
        assert_int_equal(error.axis, 0);
        assert_int_equal(error.value, NUM_SEQS + 1 + more);
        assert_int_equal(error.bound, NUM_SEQS + 1);
    }
    setting_make(&it);
    it.indices.query_start_loc.shape[0] = 0;
    REFUSE(it, PKV_STATUS_SHAPE, "query_start_loc");
}

static void tensors_that_belong_together(void **state) {
    struct setting it;

    (void)state;
    setting_make(&it);
    it.indices.block_table = (struct pkv_tensor){0};
    REFUSE(it, PKV_STATUS_NULL_ARGUMENT, "block_table");
    it.indices.seq_lens = (struct pkv_tensor){0};
    REFUSE(it, PKV_STATUS_NULL_ARGUMENT, "block_table");
    setting_make(&it);
    it.indices.seq_lens = (struct pkv_tensor){0};
    REFUSE(it, PKV_STATUS_NULL_ARGUMENT, "seq_lens");
    setting_make(&it);
    it.indices.query_start_loc = (struct pkv_tensor){0};
    it.indices.num_shared_tokens = 4;
    REFUSE(it, PKV_STATUS_NULL_ARGUMENT, "query_start_loc");
    it.indices.block_table = it.indices.seq_lens = (struct pkv_tensor){0};
    expect_refused(&it, PKV_STATUS_NULL_ARGUMENT, "query_start_loc", __LINE__);
    setting_make(&it);
    it.indices.seq_offsets = pkv_tensor_make(it.offsets, PKV_DTYPE_I64, 1, (int64_t[]){NUM_SEQS});
    it.indices.num_shared_tokens = 4;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT, "seq_offsets");
}

static void totals_that_cannot_be(void **state) {
    static const struct {
        int64_t starts[NUM_SEQS + 1];
        int64_t index, value, bound;
    } wrong[] = {
        {{1, 1, 1, 10}, 0, 1, 0},
        {{-1, 1, 1, 10}, 0, -1, 0},
        {{INT64_MIN, 1, 1, 10}, 0, INT64_MIN, 0},
        {{0, -1, 1, 10}, 1, -1, 0},
        {{0, INT64_MIN, 1, 10}, 1, INT64_MIN, 0},
        {{0, 5, 4, 10}, 2, 4, 5},
        {{0, 5, 5, INT64_MIN}, 3, INT64_MIN, 5},
        {{0, 13, 13, 13}, 1, 13, 12}, /* 13 queries, 12 tokens */
        {{0, 12, 21, 21}, 2, 21, 20}, /* 9 queries, 8 tokens */
        {{0, 1, 1, 11}, 3, 11, 10},
        {{0, INT64_MAX, INT64_MAX, INT64_MAX}, 1, INT64_MAX, 12},
        {{0, 1, 1, (INT64_C(1) << 32) + 2}, 3, (INT64_C(1) << 32) + 2, 10},
    };
    struct setting it;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        setting_make(&it);
        memcpy(it.starts, wrong[i].starts, sizeof(it.starts));
        expect_refused(&it, PKV_STATUS_INVALID_ARGUMENT, "query_start_loc", __LINE__);
        assert_int_equal(error.index, wrong[i].index);
        assert_int_equal(error.value, wrong[i].value);
        assert_int_equal(error.bound, wrong[i].bound);
    }
}

static void shared_tokens_that_cannot_be(void **state) {
    struct setting it;

    (void)state;
    setting_make(&it);
    it.indices.num_shared_tokens = -1;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT, "num_shared_tokens");
    it.indices.num_shared_tokens = INT64_MIN;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT, "num_shared_tokens");
    it.indices.num_shared_tokens = 9; /* sequence 1 has 8 tokens */
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT, "num_shared_tokens");
    assert_int_equal(error.value, 9);
    assert_int_equal(error.bound, 8);
    it.indices.num_shared_tokens = INT64_MAX;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT, "num_shared_tokens");
    assert_int_equal(error.bound, 12);
    /* Entry 1 of sequence 2 is not the first sequence's: for 4 tokens it need not be, for 5 it
     * must. */
    it.table[7] = 4;
    it.indices.num_shared_tokens = 4;
    TAKE(it, 10);
    it.indices.num_shared_tokens = 5;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT, "block_table");
    assert_int_equal(error.index, 7);
    assert_int_equal(error.value, 4);
    assert_int_equal(error.bound, 0);
}

/* Queries count as tokens; a step may also scatter, each within the limit. */
static void limits(void **state) {
    struct setting it;
    int64_t slots[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct pkv_step *step = make_step(9, 0);

    (void)state;
    setting_make(&it);
    CHECK_REFUSED(pkv_step_set(context, step, &cache, &it.indices, &error), &error,
                  PKV_STATUS_CAPACITY);
    assert_string_equal(error.argument, "query_start_loc");
    assert_int_equal(error.value, 10);
    assert_int_equal(error.bound, 9);
    it.starts[3] = 9;
    CHECK_OK(pkv_step_set(context, step, &cache, &it.indices, &error), &error);
    it.indices.slot_mapping = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, (int64_t[]){9});
    CHECK_OK(pkv_step_set(context, step, &cache, &it.indices, &error), &error);
    CHECK_OK(attend(step, 9), &error);
    it.indices.slot_mapping.shape[0] = 10;
    CHECK_REFUSED(pkv_step_set(context, step, &cache, &it.indices, &error), &error,
                  PKV_STATUS_CAPACITY);
    pkv_step_destroy(step);
    step = make_step(0, 2);
    setting_make(&it);
    CHECK_REFUSED(pkv_step_set(context, step, &cache, &it.indices, &error), &error,
                  PKV_STATUS_CAPACITY);
    assert_string_equal(error.argument, "block_table");
    pkv_step_destroy(step);
}

/* What a gather checks is checked for attention, too: every entry of every sequence, whoever
 * asks. */
static void entries_that_are_read(void **state) {
    struct setting it;

    (void)state;
    setting_make(&it);
    memcpy(it.starts, (int64_t[]){0, 0, 0, 1}, sizeof(it.starts));
    it.table[2] = 6;
    REFUSE(it, PKV_STATUS_BLOCK_OUT_OF_RANGE, "block_table");
    assert_int_equal(error.index, 2);
    it.table[2] = -1;
    REFUSE(it, PKV_STATUS_BLOCK_OUT_OF_RANGE, "block_table");
    it.lengths[0] = 8; /* now it is not read */
    TAKE(it, 1);
    it.lengths[0] = 13;
    REFUSE(it, PKV_STATUS_POSITION_OUT_OF_RANGE, "seq_lens");
    assert_int_equal(error.index, 0);
    assert_int_equal(error.value, 13);
    assert_int_equal(error.bound, 12);
}

/* The struct of the version before knew neither: it is read as if both were absent. */
static void a_struct_of_before(void **state) {
    struct pkv_step *step = make_step(0, 0);
    struct setting it;

    (void)state;
    setting_make(&it);
    it.starts[0] = 77;
    it.indices.num_shared_tokens = -5;
    it.indices.struct_size = offsetof(struct pkv_step_indices, query_start_loc);
    CHECK_OK(pkv_step_set(context, step, &cache, &it.indices, &error), &error);
    CHECK_REFUSED(attend(step, 10), &error, PKV_STATUS_BAD_STATE);
    assert_string_equal(error.argument, "step");
    pkv_step_destroy(step);
}

static int set_up(void **state) {
    struct pkv_tensor key = pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){6, 4, 1, 2});

    (void)state;
    context = make_context(PKV_RUN_MODE_NATIVE, PKV_CPU_LEVEL_BEST, NULL);
    cache = (struct pkv_cache){.struct_size = sizeof(cache)};
    CHECK_OK(pkv_cache_init(&cache, &key, NULL, NULL, &error), &error);
    setting_make(&good);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    pkv_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_indices),
        cmocka_unit_test(good_shared_tokens),
        cmocka_unit_test(unusable_tensors),
        cmocka_unit_test(tensors_that_belong_together),
        cmocka_unit_test(totals_that_cannot_be),
        cmocka_unit_test(shared_tokens_that_cannot_be),
        cmocka_unit_test(limits),
        cmocka_unit_test(entries_that_are_read),
        cmocka_unit_test(a_struct_of_before),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
