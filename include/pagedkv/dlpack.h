/* SPDX-License-Identifier: MIT
 *
 * struct pkv_tensor to and from DLPack's DLTensor, without moving an element. Header only, and
 * optional: it needs dlpack/dlpack.h (0.6 or later with the same DLTensor). Lifetimes are not
 * handled here: a DLManagedTensor's deleter is the business of whoever holds it.
 */
#ifndef PAGEDKV_DLPACK_H
#define PAGEDKV_DLPACK_H

#include <dlpack/dlpack.h>

#include <pagedkv/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The facts of a refusal by one of the functions below; error is nullable. Returns status. */
static inline enum pkv_status pkv_dlpack_refuse(struct pkv_error *error, enum pkv_status status,
                                                const char *function, const char *argument,
                                                int32_t axis, int64_t value, int64_t bound,
                                                const char *rule) {
    if (error) {
        error->struct_size = sizeof(*error);
        error->status = status;
        error->axis = axis;
        error->function = function;
        error->argument = argument;
        error->index = PKV_ERROR_NONE;
        error->value = value;
        error->bound = bound;
        error->rule = rule;
    }
    return status;
}

/* The DLPack type of a dtype. Those that DLPack 0.6 lacks (the 8-bit floats and bool) travel as
 * uint8. bits is 0 for a number that is no dtype. */
static inline DLDataType pkv_dlpack_dtype(int32_t dtype) {
    DLDataType type;
    type.code = kDLUInt;
    type.bits = (uint8_t)(pkv_dtype_bytes(dtype) * 8);
    type.lanes = 1;
    switch (dtype) {
    case PKV_DTYPE_F32:
    case PKV_DTYPE_F16:
        type.code = kDLFloat;
        break;
    case PKV_DTYPE_BF16:
        type.code = kDLBfloat;
        break;
    case PKV_DTYPE_I8:
    case PKV_DTYPE_I16:
    case PKV_DTYPE_I32:
    case PKV_DTYPE_I64:
        type.code = kDLInt;
        break;
    default:
        break;
    }
    return type;
}

/* The dtype that a DLPack type says by itself; PKV_DTYPE_INVALID if there is none. */
static inline int32_t pkv_dtype_from_dlpack(DLDataType type) {
    static const int32_t dtypes[] = {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16, PKV_DTYPE_I8,
                                     PKV_DTYPE_I16, PKV_DTYPE_I32, PKV_DTYPE_U8,   PKV_DTYPE_U16,
                                     PKV_DTYPE_U32, PKV_DTYPE_I64};
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        const DLDataType known = pkv_dlpack_dtype(dtypes[i]);
        if (known.code == type.code && known.bits == type.bits && known.lanes == type.lanes)
            return dtypes[i];
    }
    return PKV_DTYPE_INVALID;
}

/* What pkv_tensor_from_dlpack checks before it looks at a dimension. */
static inline enum pkv_status pkv_dlpack_check(const DLTensor *source, int32_t dtype,
                                               const char *function, struct pkv_error *error) {
    const int64_t none = PKV_ERROR_NONE;
    if (source->device.device_type != kDLCPU)
        return pkv_dlpack_refuse(error, PKV_STATUS_UNSUPPORTED, function, "source", -1,
                                 (int64_t)source->device.device_type, kDLCPU,
                                 "must have the device type of the CPU");
    if (source->dtype.lanes != 1)
        return pkv_dlpack_refuse(error, PKV_STATUS_DTYPE, function, "source", -1,
                                 source->dtype.lanes, 1, "must have lanes of");
    const int32_t said = pkv_dtype_from_dlpack(source->dtype);
    if (said == PKV_DTYPE_INVALID)
        return pkv_dlpack_refuse(error, PKV_STATUS_DTYPE, function, "source", -1,
                                 source->dtype.code, none,
                                 "must have a type code and bits that are a dtype");
    if (dtype != PKV_DTYPE_INVALID && pkv_dtype_from_dlpack(pkv_dlpack_dtype(dtype)) != said)
        return pkv_dlpack_refuse(error, PKV_STATUS_DTYPE, function, "dtype", -1, dtype, said,
                                 "must be one that travels as the type of source");
    if (source->ndim < 0 || source->ndim > PKV_MAX_DIMS)
        return pkv_dlpack_refuse(error, PKV_STATUS_RANK, function, "source", -1, source->ndim,
                                 PKV_MAX_DIMS, "must have a number of dimensions from 0 to");
    if (source->ndim > 0 && source->shape == NULL)
        return pkv_dlpack_refuse(error, PKV_STATUS_NULL_ARGUMENT, function, "source", -1, none,
                                 none, "must have a shape");
    if (source->byte_offset > (uint64_t)(UINTPTR_MAX - (uintptr_t)source->data))
        return pkv_dlpack_refuse(error, PKV_STATUS_OVERFLOW, function, "source", -1, none, none,
                                 "must have a byte_offset that leads to an address");
    return PKV_STATUS_OK;
}

/* Describes the memory of a DLTensor as a pkv_tensor.
 *
 * tensor   out; borrows the data of source and nothing else; resolved (pkv_tensor_resolve)
 * source   in; on the CPU, one lane. strides NULL means compact; byte_offset is added to data
 * dtype    PKV_DTYPE_INVALID (0): what source says. Otherwise the dtype of the elements, which must
 *          travel as source's type: F8_E4M3FN, F8_E5M2, HIFLOAT8 and BOOL as uint8, others as
 *          themselves
 * effect   on failure tensor is untouched
 * errors   NULL_ARGUMENT (tensor; source; its shape; its data when there are elements), UNSUPPORTED
 *          (another device than the CPU), DTYPE (unknown type, lanes not 1, or another than dtype),
 *          RANK (below 0 or above PKV_MAX_DIMS), SHAPE (a negative dimension), STRIDE (a negative
 *          stride; all strides 0 with a dimension above 1, as a pkv_tensor would read them as
 *          compact), MISALIGNED, OVERFLOW
 * cost     no element is read, no allocation
 */
PKV_MUST_USE static inline enum pkv_status pkv_tensor_from_dlpack(struct pkv_tensor *tensor,
                                                                  const DLTensor *source,
                                                                  int32_t dtype,
                                                                  struct pkv_error *error) {
    const char *const function = "pkv_tensor_from_dlpack";
    if (tensor == NULL || source == NULL)
        return pkv_dlpack_refuse(error, PKV_STATUS_NULL_ARGUMENT, function,
                                 tensor == NULL ? "tensor" : "source", -1, PKV_ERROR_NONE,
                                 PKV_ERROR_NONE, "must not be NULL");
    enum pkv_status status = pkv_dlpack_check(source, dtype, function, error);
    if (status != PKV_STATUS_OK)
        return status;
    const int32_t made_dtype =
        dtype == PKV_DTYPE_INVALID ? pkv_dtype_from_dlpack(source->dtype) : dtype;
    struct pkv_tensor made = pkv_tensor_make(source->data, made_dtype, source->ndim, source->shape);
    int32_t num_strides = 0; /* other than 0 */
    int32_t repeated = -1;   /* a dimension whose elements are all the same one */
    for (int32_t i = 0; source->strides && i < source->ndim; i++) {
        made.strides[i] = source->strides[i];
        num_strides += source->strides[i] != 0;
        if (source->strides[i] == 0 && source->shape[i] > 1)
            repeated = i;
    }
    if (num_strides == 0 && repeated >= 0)
        return pkv_dlpack_refuse(error, PKV_STATUS_STRIDE, function, "source", repeated, 0,
                                 PKV_ERROR_NONE, "must not have strides that are all 0");
    if (source->data)
        made.data = (void *)((uintptr_t)source->data + (uintptr_t)source->byte_offset);
    status = pkv_tensor_resolve(&made, error);
    if (status == PKV_STATUS_OK) {
        *tensor = made;
    } else if (error) {
        error->function = function;
        error->argument = "source";
    }
    return status;
}

/* Describes a pkv_tensor as a DLTensor.
 *
 * target  out; its shape and strides point into tensor: valid as long as tensor lives unchanged
 * tensor  in/out: it is resolved, so that strides hold real values, as newer DLPack versions want
 * effect  dtypes that DLPack 0.6 lacks become uint8: tell the receiver the dtype another way. On
 *         failure both are untouched
 * errors  NULL_ARGUMENT, and those of pkv_tensor_resolve
 * cost    no element is read, no allocation
 */
PKV_MUST_USE static inline enum pkv_status
pkv_tensor_to_dlpack(DLTensor *target, struct pkv_tensor *tensor, struct pkv_error *error) {
    const char *const function = "pkv_tensor_to_dlpack";
    if (target == NULL || tensor == NULL)
        return pkv_dlpack_refuse(error, PKV_STATUS_NULL_ARGUMENT, function,
                                 target == NULL ? "target" : "tensor", -1, PKV_ERROR_NONE,
                                 PKV_ERROR_NONE, "must not be NULL");
    const enum pkv_status status = pkv_tensor_resolve(tensor, error);
    if (status != PKV_STATUS_OK) {
        if (error)
            error->function = function;
        return status;
    }
    target->data = tensor->data;
    target->device.device_type = kDLCPU;
    target->device.device_id = 0;
    target->ndim = tensor->ndim;
    target->dtype = pkv_dlpack_dtype(tensor->dtype);
    target->shape = tensor->shape;
    target->strides = tensor->strides;
    target->byte_offset = 0;
    return PKV_STATUS_OK;
}

#ifdef __cplusplus
}
#endif

#endif
