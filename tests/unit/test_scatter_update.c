/* SPDX-License-Identifier: MIT
 *
 * scatter_update: its documented examples, its three ranks, its index types, its refusals.
 */
#include "check.h"
#include "guard.h"
#include "rng.h"

#include <stdlib.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static struct pkv_context *native;
static struct pkv_context *sim;

static enum pkv_status update(const struct pkv_tensor *input, const struct pkv_tensor *index,
                              const struct pkv_tensor *src) {
    return pkv_scatter_update(native, input, -2, index, src, NULL, &error);
}

static void two_dimensions(void **state) {
    for (int mode = 0; mode < 2; mode++) {
        float input[8 * 3] = {0};
        float src[4 * 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
        int64_t index[4] = {1, 2, 4, 5};
        static const int source_of[8] = {-1, 0, 1, -1, 2, 3, -1, -1};
        struct pkv_tensor in = pkv_tensor_make(input, PKV_DTYPE_F32, 2, (int64_t[]){8, 3});
        struct pkv_tensor at = pkv_tensor_make(index, PKV_DTYPE_I64, 2, (int64_t[]){2, 2});
        struct pkv_tensor from = pkv_tensor_make(src, PKV_DTYPE_F32, 2, (int64_t[]){4, 3});

        (void)state;
        CHECK_OK(pkv_scatter_update(mode ? sim : native, &in, -2, &at, &from, NULL, &error),
                 &error);
        for (int row = 0; row < 8; row++) {
            for (int d = 0; d < 3; d++) {
                float expected = source_of[row] < 0 ? 0 : src[source_of[row] * 3 + d];

                assert_true(input[row * 3 + d] == expected);
            }
        }
    }
}

static void four_dimensions(void **state) {
    int16_t input[2 * 6 * 3] = {0};
    int16_t src[4 * 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    int32_t index[4] = {1, 8, 4, 10};
    struct pkv_tensor in = pkv_tensor_make(input, PKV_DTYPE_I16, 4, (int64_t[]){2, 6, 1, 3});
    struct pkv_tensor at = pkv_tensor_make(index, PKV_DTYPE_I32, 2, (int64_t[]){2, 2});
    struct pkv_tensor from = pkv_tensor_make(src, PKV_DTYPE_I16, 4, (int64_t[]){2, 2, 1, 3});

    (void)state;
    CHECK_OK(update(&in, &at, &from), &error);
    for (int row = 0; row < 12; row++) {
        int source = row == 1 ? 0 : row == 8 ? 1 : row == 4 ? 2 : row == 10 ? 3 : -1;

        for (int d = 0; d < 3; d++) {
            assert_int_equal(input[row * 3 + d], source < 0 ? 0 : src[source * 3 + d]);
        }
    }
}

/* input [6, 2] zeros, index [[4, -1], [0, 4]], rows a, b, c, e: row 0 = c, row 4 = e. */
static void negative_indices_skip_and_the_last_wins(void **state) {
    for (int mode = 0; mode < 2; mode++) {
        int32_t input[6 * 2] = {0};
        int32_t src[4 * 2] = {10, 11, 20, 21, 30, 31, 50, 51};
        int32_t expected[6 * 2] = {30, 31, 0, 0, 0, 0, 0, 0, 50, 51, 0, 0};
        int16_t index[4] = {4, -1, 0, 4};
        struct pkv_tensor in = pkv_tensor_make(input, PKV_DTYPE_I32, 2, (int64_t[]){6, 2});
        struct pkv_tensor at = pkv_tensor_make(index, PKV_DTYPE_I16, 2, (int64_t[]){2, 2});
        struct pkv_tensor from = pkv_tensor_make(src, PKV_DTYPE_I32, 2, (int64_t[]){4, 2});

        (void)state;
        CHECK_OK(pkv_scatter_update(mode ? sim : native, &in, -2, &at, &from, NULL, &error),
                 &error);
        assert_memory_equal(input, expected, sizeof(expected));
    }
}

static void three_dimensions(void **state) {
    uint16_t input[5 * 4] = {0};
    uint16_t src[2 * 4] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint16_t expected[5 * 4] = {0, 0, 0, 0, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4};
    int64_t index[2] = {4, 1};
    struct pkv_tensor in = pkv_tensor_make(input, PKV_DTYPE_BF16, 3, (int64_t[]){1, 5, 4});
    struct pkv_tensor at = pkv_tensor_make(index, PKV_DTYPE_I64, 2, (int64_t[]){1, 2});
    struct pkv_tensor from = pkv_tensor_make(src, PKV_DTYPE_BF16, 3, (int64_t[]){1, 2, 4});

    (void)state;
    CHECK_OK(update(&in, &at, &from), &error);
    assert_memory_equal(input, expected, sizeof(expected));
    in.shape[0] = 2;
    in.shape[1] = 2;
    assert_int_not_equal(update(&in, &at, &from), PKV_STATUS_OK);
}

/* Random sizes, index types, ranks, gaps between rows; the definition is the loop in the middle. */
struct random_case {
    int64_t blocks, block_size, heads, d, b, s, gap, src_gap;
    int64_t row_bytes, element;
    int rank4;
};

static struct random_case draw(struct test_rng *rng) {
    struct random_case it = {.blocks = test_rng_between(rng, 1, 4),
                             .block_size = test_rng_between(rng, 1, 6),
                             .heads = test_rng_between(rng, 1, 3),
                             .d = test_rng_between(rng, 1, 40),
                             .b = test_rng_between(rng, 1, 4),
                             .s = test_rng_between(rng, 1, 5),
                             .gap = test_rng_between(rng, 0, 2),
                             .src_gap = test_rng_between(rng, 0, 2),
                             .rank4 = (int)test_rng_below(rng, 2)};

    if (!it.rank4) {
        it.heads = 1;
    }
    return it;
}

static struct pkv_tensor tensor_with_gap(void *data, int32_t dtype, int rank4, const int64_t *shape,
                                         int64_t gap) {
    struct pkv_tensor tensor;
    int64_t row = shape[2] * shape[3] + gap;

    if (rank4) {
        tensor = pkv_tensor_make(data, dtype, 4, shape);
        tensor.strides[0] = shape[1] * row;
        tensor.strides[1] = row;
        tensor.strides[2] = shape[3];
        tensor.strides[3] = 1;
    } else {
        tensor = pkv_tensor_make(data, dtype, 2, (int64_t[]){shape[0] * shape[1], shape[3]});
        tensor.strides[0] = row;
        tensor.strides[1] = 1;
    }
    return tensor;
}

static void one_random_case(struct test_rng *rng) {
    static const int32_t dtypes[] = {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_I8};
    static const int64_t sizes[] = {4, 2, 1};
    static const int32_t index_dtypes[] = {PKV_DTYPE_I16, PKV_DTYPE_I32, PKV_DTYPE_I64};
    struct random_case it = draw(rng);
    int pick = (int)test_rng_below(rng, 3);
    int index_pick = (int)test_rng_below(rng, 3);
    int64_t rows = it.blocks * it.block_size;
    int64_t count = it.b * it.s;
    int64_t row = it.heads * it.d;
    size_t in_bytes = (size_t)(rows * (row + it.gap) * sizes[pick]);
    size_t src_bytes = (size_t)(count * (row + it.src_gap) * sizes[pick]);
    struct test_guard input = test_guard_make(in_bytes, TEST_GUARD_END);
    struct test_guard src = test_guard_make(src_bytes, TEST_GUARD_END);
    struct test_guard index = test_guard_make((size_t)count * 8, TEST_GUARD_START);
    unsigned char *expected = malloc(in_bytes);
    struct pkv_tensor in, from, at;

    assert_non_null(expected);
    test_rng_fill(rng, input.data, in_bytes);
    test_rng_fill(rng, src.data, src_bytes);
    memcpy(expected, input.data, in_bytes);
    for (int64_t i = 0; i < count; i++) {
        int64_t target = test_rng_between(rng, -2, rows - 1);

        if (index_pick == 0) {
            ((int16_t *)index.data)[i] = (int16_t)target;
        } else if (index_pick == 1) {
            ((int32_t *)index.data)[i] = (int32_t)target;
        } else {
            ((int64_t *)index.data)[i] = target;
        }
        if (target >= 0) {
            memcpy(expected + target * (row + it.gap) * sizes[pick],
                   (char *)src.data + i * (row + it.src_gap) * sizes[pick],
                   (size_t)(row * sizes[pick]));
        }
    }
    in = tensor_with_gap(input.data, dtypes[pick], it.rank4,
                         (int64_t[]){it.blocks, it.block_size, it.heads, it.d}, it.gap);
    from = tensor_with_gap(src.data, dtypes[pick], it.rank4,
                           (int64_t[]){it.b, it.s, it.heads, it.d}, it.src_gap);
    at = pkv_tensor_make(index.data, index_dtypes[index_pick], 2, (int64_t[]){it.b, it.s});
    CHECK_OK(pkv_scatter_update(test_rng_below(rng, 2) ? native : sim, &in, -2, &at, &from, NULL,
                                &error),
             &error);
    assert_memory_equal(input.data, expected, in_bytes);
    free(expected);
    test_guard_free(&input);
    test_guard_free(&src);
    test_guard_free(&index);
}

static void random_cases(void **state) {
    struct test_rng rng = test_rng_make(*(uint64_t *)*state);

    for (int i = 0; i < 3000; i++) {
        one_random_case(&rng);
    }
}

static void empty_is_a_no_op(void **state) {
    float input[4] = {1, 2, 3, 4};
    int32_t index[1] = {0};
    struct pkv_tensor in = pkv_tensor_make(input, PKV_DTYPE_F32, 2, (int64_t[]){2, 2});
    struct pkv_tensor at = pkv_tensor_make(index, PKV_DTYPE_I32, 2, (int64_t[]){0, 3});
    struct pkv_tensor from = pkv_tensor_make(NULL, PKV_DTYPE_F32, 2, (int64_t[]){0, 2});

    (void)state;
    CHECK_OK(update(&in, &at, &from), &error);
    /* Rows of no elements. */
    in = pkv_tensor_make(NULL, PKV_DTYPE_F32, 2, (int64_t[]){2, 0});
    at = pkv_tensor_make(index, PKV_DTYPE_I32, 2, (int64_t[]){1, 1});
    from = pkv_tensor_make(NULL, PKV_DTYPE_F32, 2, (int64_t[]){1, 0});
    CHECK_OK(update(&in, &at, &from), &error);
    assert_true(input[0] == 1 && input[3] == 4);
}

struct trio {
    struct pkv_tensor in, at, from;
};

static float storage[8 * 3];
static float source[4 * 3];
static int64_t targets[4] = {1, 2, 4, 5};

static struct trio good(void) {
    return (struct trio){pkv_tensor_make(storage, PKV_DTYPE_F32, 2, (int64_t[]){8, 3}),
                         pkv_tensor_make(targets, PKV_DTYPE_I64, 2, (int64_t[]){2, 2}),
                         pkv_tensor_make(source, PKV_DTYPE_F32, 2, (int64_t[]){4, 3})};
}

#define REFUSE(it, expected) CHECK_REFUSED(update(&(it).in, &(it).at, &(it).from), &error, expected)

static void shapes_and_types_are_checked(void **state) {
    struct trio it = good();

    (void)state;
    for (int32_t dim = -4; dim <= 4; dim++) {
        if (dim != -2) {
            CHECK_REFUSED(pkv_scatter_update(native, &it.in, dim, &it.at, &it.from, NULL, &error),
                          &error, PKV_STATUS_INVALID_ARGUMENT);
            assert_string_equal(error.argument, "dim");
            assert_int_equal(error.value, dim);
        }
    }
    it.in.ndim = 1;
    REFUSE(it, PKV_STATUS_RANK);
    it = good();
    it.in = pkv_tensor_make(storage, PKV_DTYPE_F32, 4, (int64_t[]){2, 4, 1, 3});
    REFUSE(it, PKV_STATUS_RANK);
    it = good();
    it.in.ndim = it.from.ndim = 5;
    for (int i = 2; i < 5; i++) {
        it.in.shape[i] = it.from.shape[i] = 1;
    }
    REFUSE(it, PKV_STATUS_RANK);
    it = good();
    it.at = pkv_tensor_make(targets, PKV_DTYPE_I64, 1, (int64_t[]){4});
    REFUSE(it, PKV_STATUS_RANK);
    it = good();
    it.from.shape[0] = 3;
    REFUSE(it, PKV_STATUS_SHAPE);
    it = good();
    it.from.shape[1] = 2;
    REFUSE(it, PKV_STATUS_SHAPE);
    it = good();
    it.from.dtype = PKV_DTYPE_I32;
    REFUSE(it, PKV_STATUS_DTYPE);
    it = good();
    it.at.dtype = PKV_DTYPE_U32;
    REFUSE(it, PKV_STATUS_DTYPE);
    it = good();
    it.in.strides[0] = 6;
    it.in.strides[1] = 2;
    it.in.shape[0] = 4;
    REFUSE(it, PKV_STATUS_STRIDE);
    it = good();
    it.in.strides[0] = 2;
    it.in.strides[1] = 1;
    REFUSE(it, PKV_STATUS_STRIDE);
    it = good();
    it.in.data = (char *)storage + 1;
    REFUSE(it, PKV_STATUS_MISALIGNED);
    it = good();
    it.from.data = NULL;
    REFUSE(it, PKV_STATUS_NULL_ARGUMENT);
    it = good();
    CHECK_REFUSED(pkv_scatter_update(native, NULL, -2, &it.at, &it.from, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_update(native, &it.in, -2, NULL, &it.from, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_update(native, &it.in, -2, &it.at, NULL, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_update(NULL, &it.in, -2, &it.at, &it.from, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
}

/* Strides of axes with one element may be anything, and zeros beside them are no C order. */
static void strides_beside_single_elements(void **state) {
    float cell = 5, one = 42, cells[4] = {-1, -2, -3, -4};
    int64_t index[4] = {0, 1, 2, 3};
    struct pkv_tensor in = pkv_tensor_make(&cell, PKV_DTYPE_F32, 2, (int64_t[]){4, 1});
    struct pkv_tensor at = pkv_tensor_make(&index[3], PKV_DTYPE_I64, 2, (int64_t[]){1, 1});
    struct pkv_tensor from = pkv_tensor_make(&one, PKV_DTYPE_F32, 2, (int64_t[]){1, 1});

    (void)state;
    in.strides[1] = 7;
    CHECK_REFUSED(update(&in, &at, &from), &error, PKV_STATUS_STRIDE);
    assert_true(cell == 5);
    /* One row for all four tokens. */
    in = pkv_tensor_make(cells, PKV_DTYPE_F32, 4, (int64_t[]){1, 4, 1, 1});
    at = pkv_tensor_make(index, PKV_DTYPE_I64, 2, (int64_t[]){2, 2});
    from = pkv_tensor_make(&one, PKV_DTYPE_F32, 4, (int64_t[]){2, 2, 1, 1});
    from.strides[2] = from.strides[3] = 1;
    CHECK_OK(update(&in, &at, &from), &error);
    for (int i = 0; i < 4; i++) {
        assert_true(cells[i] == 42);
    }
}

/* The index of a refusal is flat, also where there is no row at all. */
/* The one stride that is not 0 is that of a single row: each row is the first byte, and nothing
 * behind it is read. */
static void broadcast_sources(void **state) {
    static const int64_t strides[3][4] = {{31, 0, 0, 0}, {0, 4096, 0, 0}, {0, 0, 7, 0}};
    static const int64_t shapes[3][4] = {{1, 2, 2, 32}, {2, 1, 2, 32}, {1, 2, 1, 32}};
    struct pkv_context *const contexts[2] = {native, sim};

    (void)state;
    for (int i = 0; i < 6; i++) {
        struct test_guard one = test_guard_make(1, TEST_GUARD_END);
        uint8_t input[4 * 64] = {0};
        int64_t rows[2] = {3, 1};
        const int64_t n = shapes[i / 2][2];
        struct pkv_tensor in = pkv_tensor_make(input, PKV_DTYPE_U8, 4, (int64_t[]){1, 4, n, 32});
        struct pkv_tensor at = pkv_tensor_make(rows, PKV_DTYPE_I64, 2,
                                               (int64_t[]){shapes[i / 2][0], shapes[i / 2][1]});
        struct pkv_tensor from = pkv_tensor_make(one.data, PKV_DTYPE_U8, 4, shapes[i / 2]);

        *(uint8_t *)one.data = 7;
        memcpy(from.strides, strides[i / 2], sizeof(strides[0]));
        CHECK_OK(pkv_scatter_update(contexts[i % 2], &in, -2, &at, &from, NULL, &error), &error);
        for (int64_t k = 0; k < 4 * n * 32; k++) {
            assert_int_equal(input[k], k / (n * 32) % 2 == 1 ? 7 : 0);
        }
        test_guard_free(&one);
    }
}

static void a_target_without_rows(void **state) {
    float nothing = 0;
    int64_t index[4] = {-1, -1, -1, 5};
    struct pkv_tensor in = pkv_tensor_make(&nothing, PKV_DTYPE_F32, 2, (int64_t[]){0, 3});
    struct pkv_tensor at = pkv_tensor_make(index, PKV_DTYPE_I64, 2, (int64_t[]){2, 2});
    float rows[4 * 3] = {0};
    struct pkv_tensor from = pkv_tensor_make(rows, PKV_DTYPE_F32, 2, (int64_t[]){4, 3});

    (void)state;
    CHECK_REFUSED(update(&in, &at, &from), &error, PKV_STATUS_SLOT_OUT_OF_RANGE);
    assert_int_equal(error.index, 3);
    assert_int_equal(error.value, 5);
}

static void targets_are_checked_before_a_byte_is_written(void **state) {
    struct trio it = good();
    struct pkv_scatter_update_options reject = {.duplicates = PKV_DUPLICATES_REJECT};
    float zeros[8 * 3] = {0};

    (void)state;
    memset(storage, 0, sizeof(storage));
    for (int i = 0; i < 12; i++) {
        source[i] = (float)(i + 1);
    }
    targets[3] = 8;
    REFUSE(it, PKV_STATUS_SLOT_OUT_OF_RANGE);
    assert_string_equal(error.argument, "index");
    assert_int_equal(error.index, 3);
    assert_int_equal(error.value, 8);
    assert_int_equal(error.bound, 8);
    targets[3] = INT64_MAX;
    REFUSE(it, PKV_STATUS_SLOT_OUT_OF_RANGE);
    targets[3] = 2;
    CHECK_REFUSED(pkv_scatter_update(native, &it.in, -2, &it.at, &it.from, &reject, &error), &error,
                  PKV_STATUS_DUPLICATE_SLOT);
    targets[3] = 5;
    it.from.data = storage;
    REFUSE(it, PKV_STATUS_OVERLAP);
    reject.duplicates = 9;
    it = good();
    CHECK_REFUSED(pkv_scatter_update(native, &it.in, -2, &it.at, &it.from, &reject, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    assert_memory_equal(storage, zeros, sizeof(zeros));
}

int main(void) {
    uint64_t seed = test_seed(3);
    struct pkv_context_options options = {.run_mode = PKV_RUN_MODE_SIM};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_dimensions),
        cmocka_unit_test(four_dimensions),
        cmocka_unit_test(negative_indices_skip_and_the_last_wins),
        cmocka_unit_test(three_dimensions),
        cmocka_unit_test_prestate(random_cases, &seed),
        cmocka_unit_test(empty_is_a_no_op),
        cmocka_unit_test(shapes_and_types_are_checked),
        cmocka_unit_test(strides_beside_single_elements),
        cmocka_unit_test(broadcast_sources),
        cmocka_unit_test(a_target_without_rows),
        cmocka_unit_test(targets_are_checked_before_a_byte_is_written),
    };
    int failed;

    if (pkv_context_create(&native, NULL, NULL) != PKV_STATUS_OK ||
        pkv_context_create(&sim, &options, NULL) != PKV_STATUS_OK) {
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    pkv_context_destroy(native);
    pkv_context_destroy(sim);
    return failed;
}
