/* SPDX-License-Identifier: MIT
 *
 * Tensors and views. The tile loop has a file of its own.
 */
#include "check.h"

#include "geometry/tensor.h"

static struct pkv_error error = {.struct_size = sizeof(error)};
static float storage[64];

static struct pkv_tensor tensor_of(int32_t ndim, const int64_t *shape) {
    return pkv_tensor_make(storage, PKV_DTYPE_F32, ndim, shape);
}

static void dtypes_have_sizes_and_names(void **state) {
    static const struct {
        int32_t dtype;
        int64_t bytes;
        const char *name;
    } table[] = {{PKV_DTYPE_F32, 4, "f32"},         {PKV_DTYPE_F16, 2, "f16"},
                 {PKV_DTYPE_BF16, 2, "bf16"},       {PKV_DTYPE_I8, 1, "i8"},
                 {PKV_DTYPE_I16, 2, "i16"},         {PKV_DTYPE_I32, 4, "i32"},
                 {PKV_DTYPE_U8, 1, "u8"},           {PKV_DTYPE_U16, 2, "u16"},
                 {PKV_DTYPE_U32, 4, "u32"},         {PKV_DTYPE_HIFLOAT8, 1, "hifloat8"},
                 {PKV_DTYPE_F8_E5M2, 1, "f8_e5m2"}, {PKV_DTYPE_F8_E4M3FN, 1, "f8_e4m3fn"},
                 {PKV_DTYPE_I64, 8, "i64"},         {PKV_DTYPE_BOOL, 1, "bool"}};

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(pkv_dtype_bytes(table[i].dtype), table[i].bytes);
        assert_string_equal(pkv_dtype_name(table[i].dtype), table[i].name);
        assert_int_equal(pkv_dtype_from_name(table[i].name), table[i].dtype);
    }
    assert_int_equal(pkv_dtype_from_name("BF16"), PKV_DTYPE_BF16);
    assert_int_equal(pkv_dtype_from_name("F8_E4M3fn"), PKV_DTYPE_F8_E4M3FN);
    assert_int_equal(pkv_dtype_from_name("bf1"), PKV_DTYPE_INVALID);
    assert_int_equal(pkv_dtype_from_name("bf16 "), PKV_DTYPE_INVALID);
    assert_int_equal(pkv_dtype_from_name(""), PKV_DTYPE_INVALID);
    for (int32_t dtype = -3; dtype < 200; dtype++) {
        if (dtype < 1 || dtype > 14) {
            assert_int_equal(pkv_dtype_bytes(dtype), 0);
            assert_string_equal(pkv_dtype_name(dtype), "invalid");
        }
    }
}

static void zero_strides_become_c_order(void **state) {
    struct pkv_tensor tensor = tensor_of(3, (int64_t[]){2, 5, 6});

    (void)state;
    CHECK_OK(pkv_tensor_resolve(&tensor, &error), &error);
    assert_int_equal(tensor.strides[0], 30);
    assert_int_equal(tensor.strides[1], 6);
    assert_int_equal(tensor.strides[2], 1);
    tensor = tensor_of(3, (int64_t[]){1, 5, 1});
    CHECK_OK(pkv_tensor_resolve(&tensor, &error), &error);
    assert_int_equal(tensor.strides[0], 5);
    assert_int_equal(tensor.strides[1], 1);
    assert_int_equal(tensor.strides[2], 1);
}

static void own_strides_stay(void **state) {
    struct pkv_tensor tensor = tensor_of(2, (int64_t[]){3, 4});

    (void)state;
    tensor.strides[0] = 1;
    tensor.strides[1] = 3;
    CHECK_OK(pkv_tensor_resolve(&tensor, &error), &error);
    assert_int_equal(tensor.strides[0], 1);
    assert_int_equal(tensor.strides[1], 3);
    /* One zero among others is a real stride: the same row again and again. */
    tensor.strides[0] = 0;
    tensor.strides[1] = 1;
    CHECK_OK(pkv_tensor_resolve(&tensor, &error), &error);
    assert_int_equal(tensor.strides[0], 0);
}

static void empty_tensors_need_no_data(void **state) {
    struct pkv_tensor tensor = pkv_tensor_make(NULL, PKV_DTYPE_BF16, 3, (int64_t[]){0, 4, 8});

    (void)state;
    CHECK_OK(pkv_tensor_resolve(&tensor, &error), &error);
    /* The product is 0, however large the other dimensions are. */
    tensor = pkv_tensor_make(NULL, PKV_DTYPE_F32, 3, (int64_t[]){0, INT64_MAX, INT64_MAX});
    assert_true(pkv_tensor_resolve(&tensor, &error) == PKV_STATUS_OK ||
                error.status == PKV_STATUS_OVERFLOW);
}

static void resolve_refuses(void **state) {
    struct pkv_tensor tensor;
    struct pkv_tensor before;

    (void)state;
    CHECK_REFUSED(pkv_tensor_resolve(NULL, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    tensor = pkv_tensor_make(NULL, PKV_DTYPE_F32, 1, (int64_t[]){1});
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    for (int32_t dtype = -1; dtype <= 15; dtype += 16) {
        tensor = pkv_tensor_make(storage, dtype, 1, (int64_t[]){1});
        CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_DTYPE);
        assert_int_equal(error.value, dtype);
    }
    tensor = tensor_of(1, (int64_t[]){1});
    tensor.ndim = PKV_MAX_DIMS + 1;
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_RANK);
    tensor.ndim = -1;
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_RANK);
    tensor = tensor_of(3, (int64_t[]){2, -5, 6});
    before = tensor;
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_SHAPE);
    assert_int_equal(error.axis, 1);
    assert_int_equal(error.value, -5);
    assert_memory_equal(&tensor, &before, sizeof(tensor));
    tensor = tensor_of(2, (int64_t[]){2, 2});
    tensor.strides[0] = 2;
    tensor.strides[1] = -1;
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_STRIDE);
    assert_int_equal(error.axis, 1);
    tensor = tensor_of(1, (int64_t[]){1});
    tensor.data = (char *)storage + 2;
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_MISALIGNED);
    tensor = tensor_of(2, (int64_t[]){INT64_MAX, 2});
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_OVERFLOW);
    /* The elements fit, their bytes do not. */
    tensor = tensor_of(1, (int64_t[]){INT64_MAX / 3});
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_OVERFLOW);
    /* Few elements, far apart. */
    tensor = tensor_of(2, (int64_t[]){3, 2});
    tensor.strides[0] = INT64_MAX / 4;
    tensor.strides[1] = 1;
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_OVERFLOW);
}

/* 2^61 bytes are the most, and what is repeated counts as often as it is repeated. */
static void resolve_refuses_sizes_that_do_not_fit(void **state) {
    struct pkv_tensor tensor = tensor_of(1, (int64_t[]){INT64_C(1) << 59});

    (void)state;
    CHECK_OK(pkv_tensor_resolve(&tensor, &error), &error);
    tensor = tensor_of(1, (int64_t[]){(INT64_C(1) << 59) + 1});
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_OVERFLOW);
    tensor = tensor_of(2, (int64_t[]){INT64_C(1) << 58, 3});
    tensor.strides[1] = 1;
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_OVERFLOW);
    tensor.shape[1] = 2;
    CHECK_OK(pkv_tensor_resolve(&tensor, &error), &error);
}

/* Whoever reads a tensor may multiply its strides by any index: those that no element needs become
 * 1, and what was read means the same when it is read again. */
static void read_leaves_out_strides_that_are_not_used(void **state) {
    const struct pkv_where where = {"function", "argument", &error};
    struct pkv_tensor tensor = tensor_of(3, (int64_t[]){1, 2, 1});
    struct pkv_tensor read, again;

    (void)state;
    tensor.strides[0] = INT64_MAX;
    tensor.strides[1] = 5;
    tensor.strides[2] = INT64_MAX - 1;
    CHECK_OK(pkv_tensor_read(&read, &tensor, &where), &error);
    assert_int_equal(read.strides[0], 1);
    assert_int_equal(read.strides[1], 5);
    assert_int_equal(read.strides[2], 1);
    tensor.strides[1] = 0;
    CHECK_OK(pkv_tensor_read(&read, &tensor, &where), &error);
    CHECK_OK(pkv_tensor_read(&again, &read, &where), &error);
    assert_int_equal(again.strides[1], 0);
    tensor.strides[1] = 5;
    tensor.shape[1] = 0;
    CHECK_OK(pkv_tensor_read(&read, &tensor, &where), &error);
    assert_int_equal(read.strides[1], 0);
    CHECK_OK(pkv_tensor_resolve(&tensor, &error), &error);
    assert_int_equal(tensor.strides[0], INT64_MAX);
    tensor.shape[1] = -1;
    CHECK_REFUSED(pkv_tensor_read(&read, &tensor, &where), &error, PKV_STATUS_SHAPE);
    assert_string_equal(error.argument, "argument");
}

static void make_keeps_a_bad_rank_for_the_refusal(void **state) {
    int64_t shape[PKV_MAX_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct pkv_tensor tensor = pkv_tensor_make(storage, PKV_DTYPE_F32, 2000000000, shape);

    (void)state;
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_RANK);
    tensor = pkv_tensor_make(storage, PKV_DTYPE_F32, -7, shape);
    CHECK_REFUSED(pkv_tensor_resolve(&tensor, &error), &error, PKV_STATUS_RANK);
    tensor = pkv_tensor_make(storage, PKV_DTYPE_F32, 8, shape);
    CHECK_OK(pkv_tensor_resolve(&tensor, &error), &error);
}

static void a_view_points_into_its_base(void **state) {
    struct pkv_tensor base = tensor_of(2, (int64_t[]){10, 6});
    struct pkv_view view;

    (void)state;
    CHECK_OK(pkv_view_init(&view, &base, (int64_t[]){4, 3}, (int64_t[]){4, 2}, NULL, &error),
             &error);
    assert_ptr_equal(view.tensor.data, &storage[4 * 6 + 2]);
    assert_int_equal(view.tensor.ndim, 2);
    assert_int_equal(view.tensor.shape[0], 4);
    assert_int_equal(view.tensor.shape[1], 3);
    assert_int_equal(view.tensor.strides[0], 6);
    assert_int_equal(view.tensor.strides[1], 1);
    assert_int_equal(view.valid[0], 4);
    assert_int_equal(view.valid[1], 3);
}

/* A column of one element, repeated: not four elements in C order. */
static void a_view_keeps_strides_of_zero(void **state) {
    struct pkv_tensor base = tensor_of(2, (int64_t[]){4, 1});
    struct pkv_view view;

    (void)state;
    base.strides[1] = 7;
    CHECK_OK(pkv_view_init(&view, &base, (int64_t[]){4, 1}, (int64_t[]){0, 0}, NULL, &error),
             &error);
    CHECK_OK(pkv_tensor_resolve(&view.tensor, &error), &error);
    assert_int_equal(view.tensor.strides[0], 0);
}

static void a_tail_keeps_its_shape_and_loses_validity(void **state) {
    struct pkv_tensor base = tensor_of(2, (int64_t[]){10, 6});
    struct pkv_view view;

    (void)state;
    CHECK_OK(pkv_view_init(&view, &base, (int64_t[]){4, 6}, (int64_t[]){8, 0}, NULL, &error),
             &error);
    assert_int_equal(view.tensor.shape[0], 4);
    assert_int_equal(view.valid[0], 2);
    assert_int_equal(view.valid[1], 6);
    CHECK_OK(pkv_view_init(&view, &base, (int64_t[]){4, 6}, (int64_t[]){8, 0}, (int64_t[]){1, 5},
                           &error),
             &error);
    assert_int_equal(view.valid[0], 1);
    assert_int_equal(view.valid[1], 5);
    /* At the very end nothing is left. */
    CHECK_OK(pkv_view_init(&view, &base, (int64_t[]){4, 6}, (int64_t[]){10, 0}, NULL, &error),
             &error);
    assert_int_equal(view.valid[0], 0);
}

static void view_refuses(void **state) {
    struct pkv_tensor base = tensor_of(2, (int64_t[]){10, 6});
    struct pkv_view view;
    static const struct {
        int64_t shape[2];
        int64_t offsets[2];
        int64_t valid[2];
        int32_t axis;
    } refused[] = {
        {{-1, 6}, {0, 0}, {0, 6}, 0},        {{4, 6}, {-1, 0}, {4, 6}, 0},
        {{4, 6}, {11, 0}, {0, 6}, 0},        {{4, 6}, {0, 0}, {5, 6}, 0},
        {{4, 6}, {0, 0}, {4, -1}, 1},        {{4, 6}, {8, 0}, {3, 6}, 0},
        {{4, 6}, {0, 2}, {4, 5}, 1},         {{4, 6}, {0, INT64_MAX}, {4, 1}, 1},
        {{4, 6}, {0, 0}, {4, INT64_MAX}, 1}, {{4, INT64_MIN}, {0, 0}, {4, 0}, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        CHECK_REFUSED(pkv_view_init(&view, &base, refused[i].shape, refused[i].offsets,
                                    refused[i].valid, &error),
                      &error, PKV_STATUS_SHAPE);
        assert_int_equal(error.axis, refused[i].axis);
    }
    CHECK_REFUSED(pkv_view_init(NULL, &base, refused[0].shape, refused[0].offsets, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_view_init(&view, NULL, refused[0].shape, refused[0].offsets, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_view_init(&view, &base, NULL, refused[0].offsets, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_view_init(&view, &base, refused[0].shape, NULL, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    base.dtype = 0;
    CHECK_REFUSED(pkv_view_init(&view, &base, (int64_t[]){1, 1}, (int64_t[]){0, 0}, NULL, &error),
                  &error, PKV_STATUS_DTYPE);
}

static void reshape_in_place_moves_nothing(void **state) {
    struct pkv_tensor base = tensor_of(3, (int64_t[]){2, 4, 6});
    struct pkv_view view;

    (void)state;
    CHECK_OK(pkv_view_init(&view, &base, (int64_t[]){2, 4, 6}, (int64_t[]){0, 0, 0}, NULL, &error),
             &error);
    CHECK_OK(pkv_view_reshape(&view, 2, (int64_t[]){8, 6}, &error), &error);
    assert_ptr_equal(view.tensor.data, storage);
    assert_int_equal(view.tensor.ndim, 2);
    assert_int_equal(view.tensor.shape[0], 8);
    assert_int_equal(view.tensor.strides[0], 6);
    assert_int_equal(view.valid[0], 8);
    assert_int_equal(view.valid[1], 6);
    CHECK_OK(pkv_view_reshape(&view, 4, (int64_t[]){1, 2, 24, 1}, &error), &error);
    assert_int_equal(view.tensor.strides[1], 24);
    /* Whole rows out of the middle are contiguous too. */
    CHECK_OK(pkv_view_init(&view, &base, (int64_t[]){1, 3, 6}, (int64_t[]){1, 1, 0}, NULL, &error),
             &error);
    CHECK_OK(pkv_view_reshape(&view, 1, (int64_t[]){18}, &error), &error);
    assert_ptr_equal(view.tensor.data, &storage[30]);
}

static void reshape_refuses(void **state) {
    struct pkv_tensor base = tensor_of(2, (int64_t[]){8, 6});
    struct pkv_view view;
    struct pkv_view before;
    int64_t ones[PKV_MAX_DIMS + 1] = {8, 6, 1, 1, 1, 1, 1, 1, 1};

    (void)state;
    CHECK_OK(pkv_view_init(&view, &base, (int64_t[]){8, 6}, (int64_t[]){0, 0}, NULL, &error),
             &error);
    before = view;
    CHECK_REFUSED(pkv_view_reshape(&view, 2, (int64_t[]){8, 5}, &error), &error, PKV_STATUS_SHAPE);
    CHECK_REFUSED(pkv_view_reshape(&view, 2, (int64_t[]){-8, -6}, &error), &error,
                  PKV_STATUS_SHAPE);
    CHECK_REFUSED(pkv_view_reshape(&view, 0, ones, &error), &error, PKV_STATUS_RANK);
    CHECK_REFUSED(pkv_view_reshape(&view, PKV_MAX_DIMS + 1, ones, &error), &error, PKV_STATUS_RANK);
    CHECK_REFUSED(pkv_view_reshape(&view, 1, NULL, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_view_reshape(NULL, 1, ones, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    /* 2^32 * 2^32 wraps to 0 and times 48 would pass a careless product. */
    assert_int_not_equal(
        pkv_view_reshape(&view, 3, (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 32, 48}, &error),
        PKV_STATUS_OK);
    assert_memory_equal(&view, &before, sizeof(view));
    /* Columns out of rows. */
    CHECK_OK(pkv_view_init(&view, &base, (int64_t[]){8, 3}, (int64_t[]){0, 0}, NULL, &error),
             &error);
    CHECK_REFUSED(pkv_view_reshape(&view, 1, (int64_t[]){24}, &error), &error, PKV_STATUS_STRIDE);
    /* A tail tile. */
    CHECK_OK(pkv_view_init(&view, &base, (int64_t[]){4, 6}, (int64_t[]){6, 0}, NULL, &error),
             &error);
    CHECK_REFUSED(pkv_view_reshape(&view, 1, (int64_t[]){24}, &error), &error, PKV_STATUS_SHAPE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes_have_sizes_and_names),
        cmocka_unit_test(zero_strides_become_c_order),
        cmocka_unit_test(own_strides_stay),
        cmocka_unit_test(empty_tensors_need_no_data),
        cmocka_unit_test(resolve_refuses),
        cmocka_unit_test(resolve_refuses_sizes_that_do_not_fit),
        cmocka_unit_test(read_leaves_out_strides_that_are_not_used),
        cmocka_unit_test(make_keeps_a_bad_rank_for_the_refusal),
        cmocka_unit_test(a_view_points_into_its_base),
        cmocka_unit_test(a_view_keeps_strides_of_zero),
        cmocka_unit_test(a_tail_keeps_its_shape_and_loses_validity),
        cmocka_unit_test(view_refuses),
        cmocka_unit_test(reshape_in_place_moves_nothing),
        cmocka_unit_test(reshape_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
