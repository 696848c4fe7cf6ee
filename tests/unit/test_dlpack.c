/* SPDX-License-Identifier: MIT
 *
 * The DLPack adapter: what it describes, and what it refuses, with nothing changed then.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <pagedkv/dlpack.h>

static _Alignas(64) unsigned char data[4096];

static DLTensor make(uint8_t code, uint8_t bits, int ndim, int64_t *shape, int64_t *strides) {
    return (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = ndim,
                      .dtype = {code, bits, 1},
                      .shape = shape,
                      .strides = strides,
                      .byte_offset = 0};
}

static void test_from_compact(void **state) {
    (void)state;
    int64_t shape[] = {3, 4, 5};
    const DLTensor source = make(kDLBfloat, 16, 3, shape, NULL);
    struct pkv_tensor tensor;
    assert_int_equal(pkv_tensor_from_dlpack(&tensor, &source, 0, NULL), PKV_STATUS_OK);
    assert_ptr_equal(tensor.data, data);
    assert_int_equal(tensor.dtype, PKV_DTYPE_BF16);
    assert_int_equal(tensor.ndim, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(tensor.shape[i], shape[i]);
    assert_int_equal(tensor.strides[0], 20);
    assert_int_equal(tensor.strides[1], 5);
    assert_int_equal(tensor.strides[2], 1);
}

static void test_from_strided(void **state) {
    (void)state;
    int64_t shape[] = {3, 4}, strides[] = {1, 16};
    DLTensor source = make(kDLFloat, 32, 2, shape, strides);
    source.byte_offset = 64;
    struct pkv_tensor tensor;
    assert_int_equal(pkv_tensor_from_dlpack(&tensor, &source, PKV_DTYPE_F32, NULL), PKV_STATUS_OK);
    assert_ptr_equal(tensor.data, data + 64);
    assert_int_equal(tensor.dtype, PKV_DTYPE_F32);
    assert_int_equal(tensor.strides[0], 1);
    assert_int_equal(tensor.strides[1], 16);

    /* One of the strides may be 0 (a broadcast); all of them only where nothing is repeated. */
    strides[1] = 0;
    assert_int_equal(pkv_tensor_from_dlpack(&tensor, &source, 0, NULL), PKV_STATUS_OK);
    assert_int_equal(tensor.strides[1], 0);
    strides[0] = 0;
    struct pkv_error error = {0};
    assert_int_equal(pkv_tensor_from_dlpack(&tensor, &source, 0, &error), PKV_STATUS_STRIDE);
    shape[0] = shape[1] = 1;
    assert_int_equal(pkv_tensor_from_dlpack(&tensor, &source, 0, NULL), PKV_STATUS_OK);
}

static void test_from_scalar_and_empty(void **state) {
    (void)state;
    int64_t shape[] = {0, 7};
    DLTensor source = make(kDLInt, 64, 0, NULL, NULL);
    struct pkv_tensor tensor;
    assert_int_equal(pkv_tensor_from_dlpack(&tensor, &source, 0, NULL), PKV_STATUS_OK);
    assert_int_equal(tensor.ndim, 0);
    assert_int_equal(tensor.dtype, PKV_DTYPE_I64);
    source = make(kDLInt, 32, 2, shape, NULL);
    source.data = NULL;
    source.byte_offset = 8;
    assert_int_equal(pkv_tensor_from_dlpack(&tensor, &source, 0, NULL), PKV_STATUS_OK);
    assert_null(tensor.data);
    shape[0] = 1;
    assert_int_equal(pkv_tensor_from_dlpack(&tensor, &source, 0, NULL), PKV_STATUS_NULL_ARGUMENT);
}

static void test_every_dtype_both_ways(void **state) {
    (void)state;
    for (int32_t dtype = PKV_DTYPE_F32; dtype <= PKV_DTYPE_BOOL; dtype++) {
        struct pkv_tensor tensor = pkv_tensor_make(data, dtype, 2, (int64_t[]){2, 3});
        DLTensor exchange = {0};
        assert_int_equal(pkv_tensor_to_dlpack(&exchange, &tensor, NULL), PKV_STATUS_OK);
        assert_int_equal(exchange.device.device_type, kDLCPU);
        assert_int_equal(exchange.dtype.bits, 8 * pkv_dtype_bytes(dtype));
        assert_int_equal(exchange.dtype.lanes, 1);
        assert_int_equal(exchange.byte_offset, 0);
        assert_ptr_equal(exchange.data, data);
        struct pkv_tensor back;
        assert_int_equal(pkv_tensor_from_dlpack(&back, &exchange, dtype, NULL), PKV_STATUS_OK);
        assert_int_equal(back.dtype, dtype);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(back.shape[i], tensor.shape[i]);
            assert_int_equal(back.strides[i], tensor.strides[i]);
        }
        const int has_no_type = dtype == PKV_DTYPE_HIFLOAT8 || dtype == PKV_DTYPE_F8_E4M3FN ||
                                dtype == PKV_DTYPE_F8_E5M2 || dtype == PKV_DTYPE_BOOL;
        assert_int_equal(pkv_tensor_from_dlpack(&back, &exchange, 0, NULL), PKV_STATUS_OK);
        assert_int_equal(back.dtype, has_no_type ? PKV_DTYPE_U8 : dtype);
    }
    assert_int_equal(pkv_dlpack_dtype(PKV_DTYPE_F16).code, kDLFloat);
    assert_int_equal(pkv_dlpack_dtype(PKV_DTYPE_BF16).code, kDLBfloat);
    assert_int_equal(pkv_dlpack_dtype(PKV_DTYPE_I8).code, kDLInt);
    assert_int_equal(pkv_dlpack_dtype(PKV_DTYPE_U16).code, kDLUInt);
    assert_int_equal(pkv_dlpack_dtype(PKV_DTYPE_F8_E5M2).code, kDLUInt);
    assert_int_equal(pkv_dlpack_dtype(99).bits, 0);
}

/* Refused with that status, an error in the function's name, and the tensor untouched. */
static void refuse(const DLTensor *source, int32_t dtype, enum pkv_status status) {
    struct pkv_tensor tensor, before;
    memset(&before, 0x5a, sizeof(before));
    memcpy(&tensor, &before, sizeof(tensor));
    struct pkv_error error = {0};
    assert_int_equal(pkv_tensor_from_dlpack(&tensor, source, dtype, &error), status);
    assert_int_equal(error.status, status);
    assert_string_equal(error.function, "pkv_tensor_from_dlpack");
    assert_non_null(error.argument);
    assert_non_null(error.rule);
    assert_int_equal(pkv_tensor_from_dlpack(&tensor, source, dtype, NULL), status);
    assert_memory_equal(&tensor, &before, sizeof(tensor));
}

static void test_refused_types(void **state) {
    (void)state;
    int64_t shape[] = {2, 3};
    DLTensor source = make(kDLFloat, 32, 2, shape, NULL);
    refuse(NULL, 0, PKV_STATUS_NULL_ARGUMENT);
    source.device.device_type = kDLCUDA;
    refuse(&source, 0, PKV_STATUS_UNSUPPORTED);
    source = make(kDLFloat, 32, 2, shape, NULL);
    source.dtype.lanes = 4;
    refuse(&source, 0, PKV_STATUS_DTYPE);
    source.dtype.lanes = 0;
    refuse(&source, 0, PKV_STATUS_DTYPE);
    static const uint8_t unknown[][2] = {{kDLFloat, 64}, {kDLComplex, 64},      {kDLInt, 4},
                                         {kDLUInt, 64},  {kDLOpaqueHandle, 64}, {kDLUInt, 0},
                                         {99, 8},        {kDLFloat, 8}};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        source = make(unknown[i][0], unknown[i][1], 2, shape, NULL);
        refuse(&source, 0, PKV_STATUS_DTYPE);
        refuse(&source, PKV_DTYPE_U8, PKV_STATUS_DTYPE);
    }
    source = make(kDLUInt, 16, 2, shape, NULL);
    refuse(&source, PKV_DTYPE_BF16, PKV_STATUS_DTYPE);
    refuse(&source, PKV_DTYPE_F8_E4M3FN, PKV_STATUS_DTYPE);
    refuse(&source, 99, PKV_STATUS_DTYPE);
    refuse(&source, -1, PKV_STATUS_DTYPE);
    source = make(kDLInt, 8, 2, shape, NULL);
    refuse(&source, PKV_DTYPE_F8_E4M3FN, PKV_STATUS_DTYPE);
}

static void test_refused_shapes(void **state) {
    (void)state;
    int64_t shape[9] = {2, 3, 1, 1, 1, 1, 1, 1, 1}, strides[9] = {3, 1, 1, 1, 1, 1, 1, 1, 1};
    DLTensor source = make(kDLFloat, 32, 9, shape, NULL);
    refuse(&source, 0, PKV_STATUS_RANK);
    source.ndim = -1;
    refuse(&source, 0, PKV_STATUS_RANK);
    source = make(kDLFloat, 32, 8, shape, strides);
    struct pkv_tensor tensor;
    assert_int_equal(pkv_tensor_from_dlpack(&tensor, &source, 0, NULL), PKV_STATUS_OK);
    strides[1] = -1;
    refuse(&source, 0, PKV_STATUS_STRIDE);
    strides[1] = 1;
    shape[7] = -1;
    refuse(&source, 0, PKV_STATUS_SHAPE);
    shape[7] = INT64_MAX;
    refuse(&source, 0, PKV_STATUS_OVERFLOW);
    shape[7] = 1;
    source.shape = NULL;
    refuse(&source, 0, PKV_STATUS_NULL_ARGUMENT);
    source = make(kDLFloat, 32, 2, shape, NULL);
    source.byte_offset = 2;
    refuse(&source, 0, PKV_STATUS_MISALIGNED);
    source.byte_offset = UINT64_MAX - 3;
    refuse(&source, 0, PKV_STATUS_OVERFLOW);
    source.byte_offset = 0;
    source.data = NULL;
    refuse(&source, 0, PKV_STATUS_NULL_ARGUMENT);
}

static void test_refused_exports(void **state) {
    (void)state;
    struct pkv_error error = {0};
    struct pkv_tensor tensor = pkv_tensor_make(data, 99, 1, (int64_t[]){2});
    const struct pkv_tensor before = tensor;
    DLTensor target;
    assert_int_equal(pkv_tensor_to_dlpack(&target, &tensor, &error), PKV_STATUS_DTYPE);
    assert_string_equal(error.function, "pkv_tensor_to_dlpack");
    assert_memory_equal(&tensor, &before, sizeof(tensor));
    assert_int_equal(pkv_tensor_to_dlpack(NULL, &tensor, &error), PKV_STATUS_NULL_ARGUMENT);
    assert_string_equal(error.argument, "target");
    assert_int_equal(pkv_tensor_to_dlpack(&target, NULL, &error), PKV_STATUS_NULL_ARGUMENT);
    assert_string_equal(error.argument, "tensor");
    assert_int_equal(pkv_tensor_from_dlpack(NULL, &target, 0, &error), PKV_STATUS_NULL_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_compact),          cmocka_unit_test(test_from_strided),
        cmocka_unit_test(test_from_scalar_and_empty), cmocka_unit_test(test_every_dtype_both_ways),
        cmocka_unit_test(test_refused_types),         cmocka_unit_test(test_refused_shapes),
        cmocka_unit_test(test_refused_exports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
