/* SPDX-License-Identifier: MIT
 *
 * pkv_scatter_compressed_lens: what it tells, and what it refuses without changing a byte.
 */
#include "compressed_calls.h"

static struct pkv_error error = {.struct_size = sizeof(error)};

/* The length of each region, in every dtype and shape, from numbers drawn at random. */
static void lengths_are_told(void **state) {
    struct test_rng rng = test_rng_make(test_seed(20260302));

    (void)state;
    for (int i = 0; i < 3000; i++) {
        struct comp_case it = {
            .mode = (int32_t)test_rng_between(&rng, PKV_SCATTER_MODE_ALIBI, PKV_SCATTER_MODE_OMNI),
            .num_seqs = test_rng_between(&rng, 1, 4),
            .num_heads = test_rng_between(&rng, 1, 5),
            .padded_len = -1};
        int64_t num_tasks = it.num_seqs * it.num_heads;
        struct comp_indices indices;
        struct model_index lengths;
        struct pkv_scatter_pa_kv_cache_options options;

        comp_draw(&it, 13, &rng);
        indices = comp_indices_make(&it, &rng);
        lengths = comp_tasks_make(&it, it.slots, &rng);
        options = comp_options(&it, &indices);

        comp_indices_protect(&indices);
        CHECK_OK(pkv_scatter_compressed_lens(it.mode, options.seq_lens, options.compress_lens,
                                             options.compress_seq_offset, &lengths.tensor, &error),
                 &error);
        for (int64_t t = 0; t < num_tasks; t++) {
            int64_t length = lengths.tensor.dtype == PKV_DTYPE_I32
                                 ? ((int32_t *)lengths.tensor.data)[t]
                                 : ((int64_t *)lengths.tensor.data)[t];

            assert_int_equal(length, comp_length(&it, t));
        }
        comp_indices_free(&indices);
        model_index_free(&lengths);
    }
}

static void no_sequences_have_no_lengths(void **state) {
    int64_t nothing = 4711;
    const struct pkv_tensor seq_lens = pkv_tensor_make(&nothing, PKV_DTYPE_I64, 1, (int64_t[]){0});
    const struct pkv_tensor flat = pkv_tensor_make(&nothing, PKV_DTYPE_I64, 1, (int64_t[]){0});
    const struct pkv_tensor wide = pkv_tensor_make(&nothing, PKV_DTYPE_I64, 2, (int64_t[]){0, 3});

    (void)state;
    CHECK_OK(
        pkv_scatter_compressed_lens(PKV_SCATTER_MODE_OMNI, &seq_lens, &flat, &flat, &flat, &error),
        &error);
    CHECK_OK(
        pkv_scatter_compressed_lens(PKV_SCATTER_MODE_OMNI, &seq_lens, &wide, &wide, &flat, &error),
        &error);
    assert_int_equal(nothing, 4711);
}

static void every_other_number_of_a_tensor(void **state) {
    int64_t output[6] = {1, 2, 3, 4, 5, 6};
    int64_t seqs[2] = {5, INT64_C(3000000000)};
    int64_t w[4] = {1, 2, 0, 3};
    int64_t o[4] = {0, -1, 2, 1};
    const int64_t tasks[2] = {2, 2};
    struct pkv_tensor seq_lens = pkv_tensor_make(seqs, PKV_DTYPE_I64, 1, (int64_t[]){2});
    struct pkv_tensor lens = pkv_tensor_make(w, PKV_DTYPE_I64, 2, tasks);
    struct pkv_tensor offsets = pkv_tensor_make(o, PKV_DTYPE_I64, 2, tasks);
    struct pkv_tensor lengths = pkv_tensor_make(output, PKV_DTYPE_I64, 2, tasks);

    (void)state;
    lengths.strides[0] = 3;
    lengths.strides[1] = 2;
    CHECK_OK(pkv_scatter_compressed_lens(PKV_SCATTER_MODE_ROPE, &seq_lens, &lens, &offsets,
                                         &lengths, &error),
             &error);
    assert_int_equal(output[0], 5);
    assert_int_equal(output[1], 2);
    assert_int_equal(output[2], 5);
    assert_int_equal(output[3], INT64_C(3000000000));
    assert_int_equal(output[4], 5);
    assert_int_equal(output[5], INT64_C(2999999998));
}

static void expect_numbers(int64_t index, int64_t value, int64_t bound) {
    assert_int_equal(error.index, index);
    assert_int_equal(error.value, value);
    assert_int_equal(error.bound, bound);
}

#define REFUSE_QUERY(status, name, ...)                                                            \
    do {                                                                                           \
        CHECK_REFUSED(pkv_scatter_compressed_lens(__VA_ARGS__, &error), &error, status);           \
        assert_string_equal(error.argument, name);                                                 \
        assert_memory_equal(output, before, sizeof(output));                                       \
    } while (0)

static void refusals(void **state) {
    int64_t output[6] = {1, 2, 3, 4, 5, 6};
    int64_t before[6];
    int64_t seqs[2] = {5, INT64_C(3000000000)};
    int64_t w[4] = {1, 2, 0, 3};
    int64_t o[4] = {0, -1, 2, 1};
    const int64_t tasks[2] = {2, 2};
    struct pkv_tensor seq_lens = pkv_tensor_make(seqs, PKV_DTYPE_I64, 1, (int64_t[]){2});
    struct pkv_tensor lens = pkv_tensor_make(w, PKV_DTYPE_I64, 2, tasks);
    struct pkv_tensor offsets = pkv_tensor_make(o, PKV_DTYPE_I64, 2, tasks);
    struct pkv_tensor lengths = pkv_tensor_make(output, PKV_DTYPE_I64, 2, tasks);
    struct pkv_tensor wrong;
    const int32_t rope = PKV_SCATTER_MODE_ROPE;
    const int32_t alibi = PKV_SCATTER_MODE_ALIBI;

    (void)state;
    memcpy(before, output, sizeof(before));
    for (int32_t mode = -1; mode <= 5; mode++) {
        if (mode < PKV_SCATTER_MODE_ALIBI || mode > PKV_SCATTER_MODE_OMNI) {
            REFUSE_QUERY(PKV_STATUS_INVALID_ARGUMENT, "scatter_mode", mode, &seq_lens, &lens,
                         &offsets, &lengths);
        }
    }
    REFUSE_QUERY(PKV_STATUS_NULL_ARGUMENT, "seq_lens", rope, NULL, &lens, &offsets, &lengths);
    REFUSE_QUERY(PKV_STATUS_NULL_ARGUMENT, "compress_lens", rope, &seq_lens, NULL, &offsets,
                 &lengths);
    REFUSE_QUERY(PKV_STATUS_NULL_ARGUMENT, "compress_seq_offset", rope, &seq_lens, &lens, NULL,
                 &lengths);
    REFUSE_QUERY(PKV_STATUS_NULL_ARGUMENT, "compress_seq_offset", alibi, &seq_lens, &lens, &offsets,
                 &lengths);
    REFUSE_QUERY(PKV_STATUS_NULL_ARGUMENT, "compressed_lens", rope, &seq_lens, &lens, &offsets,
                 NULL);
    wrong = lengths;
    wrong.dtype = PKV_DTYPE_I16;
    REFUSE_QUERY(PKV_STATUS_DTYPE, "compressed_lens", rope, &seq_lens, &lens, &offsets, &wrong);
    wrong = lengths;
    wrong.shape[1] = 3;
    REFUSE_QUERY(PKV_STATUS_SHAPE, "compressed_lens", rope, &seq_lens, &lens, &offsets, &wrong);
    wrong = lengths;
    wrong.strides[0] = 1;
    wrong.strides[1] = 1;
    REFUSE_QUERY(PKV_STATUS_STRIDE, "compressed_lens", rope, &seq_lens, &lens, &offsets, &wrong);
    wrong = lens;
    wrong.ndim = 1;
    wrong.shape[0] = 3;
    REFUSE_QUERY(PKV_STATUS_SHAPE, "compress_lens", rope, &seq_lens, &wrong, &offsets, &lengths);
    wrong = lengths;
    wrong.data = w;
    REFUSE_QUERY(PKV_STATUS_OVERLAP, "compressed_lens", rope, &seq_lens, &lens, &offsets, &wrong);
    wrong = lengths;
    wrong.dtype = PKV_DTYPE_I32;
    REFUSE_QUERY(PKV_STATUS_OVERFLOW, "compressed_lens", rope, &seq_lens, &lens, &offsets, &wrong);
    expect_numbers(2, INT64_C(3000000000), INT32_MAX);
    w[3] = -1;
    REFUSE_QUERY(PKV_STATUS_INVALID_ARGUMENT, "compress_lens", rope, &seq_lens, &lens, &offsets,
                 &lengths);
    expect_numbers(3, -1, 0);
    w[3] = 3;
    o[0] = 6;
    REFUSE_QUERY(PKV_STATUS_INVALID_ARGUMENT, "compress_seq_offset", rope, &seq_lens, &lens,
                 &offsets, &lengths);
    expect_numbers(0, 6, 4);
    o[0] = 0;
    seqs[0] = -1;
    REFUSE_QUERY(PKV_STATUS_INVALID_ARGUMENT, "seq_lens", rope, &seq_lens, &lens, &offsets,
                 &lengths);
    seqs[0] = 5;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_are_told),
        cmocka_unit_test(no_sequences_have_no_lengths),
        cmocka_unit_test(every_other_number_of_a_tensor),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
