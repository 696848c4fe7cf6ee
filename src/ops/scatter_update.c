/* SPDX-License-Identifier: MIT
 *
 * scatter_update: its 2-D, 3-D and 4-D forms are one cache part of rows and one flat vector of
 * slots.
 */
#include <pagedkv/scatter.h>

#include "base/checked.h"
#include "base/error.h"
#include "ops/scatter.h"

static enum pkv_status refuse(struct pkv_error *error, enum pkv_status status, const char *function,
                              const char *argument, int64_t value, int64_t bound,
                              const char *rule) {
    return pkv_error_set(error, status, function, argument, PKV_ERROR_NONE, value, bound, rule);
}

static enum pkv_status refuse_axis(struct pkv_error *error, const char *function,
                                   const char *argument, int32_t axis, int64_t value, int64_t bound,
                                   const char *rule) {
    return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function, argument, axis, value, bound,
                              rule);
}

static enum pkv_status check_shapes(const struct pkv_tensor *input, const struct pkv_tensor *index,
                                    const struct pkv_tensor *src, const char *function,
                                    struct pkv_error *error) {
    if (input->ndim < 2 || input->ndim > 4)
        return refuse(error, PKV_STATUS_RANK, function, "input", input->ndim, PKV_ERROR_NONE,
                      "must have 2, 3 or 4 dimensions");
    if (src->ndim != input->ndim)
        return refuse(error, PKV_STATUS_RANK, function, "src", src->ndim, input->ndim,
                      "must have as many dimensions as input");
    if (index->ndim != 2)
        return refuse(error, PKV_STATUS_RANK, function, "index", index->ndim, 2,
                      "must have two dimensions");
    if (src->dtype != input->dtype)
        return refuse(error, PKV_STATUS_DTYPE, function, "src", src->dtype, input->dtype,
                      "must have the dtype of input");
    if (!pkv_dtype_is_cache(input->dtype))
        return refuse(error, PKV_STATUS_DTYPE, function, "input", input->dtype, PKV_ERROR_NONE,
                      "must have one of the twelve element types of a cache");
    if (!pkv_dtype_is_index(index->dtype) && index->dtype != PKV_DTYPE_I16)
        return refuse(error, PKV_STATUS_DTYPE, function, "index", index->dtype, PKV_ERROR_NONE,
                      "must be int16, int32 or int64");
    const int32_t last = input->ndim - 1;
    if (src->shape[last] != input->shape[last])
        return refuse_axis(error, function, "src", last, src->shape[last], input->shape[last],
                           "must be that of input");
    if (input->ndim == 3 && (input->shape[0] != 1 || src->shape[0] != 1))
        return refuse_axis(error, function, input->shape[0] != 1 ? "input" : "src", 0,
                           input->shape[0] != 1 ? input->shape[0] : src->shape[0], 1, "must be");
    if (input->ndim == 4) {
        if (src->shape[2] != input->shape[2])
            return refuse_axis(error, function, "src", 2, src->shape[2], input->shape[2],
                               "must be that of input");
        for (int32_t i = 0; i < 2; i++) {
            if (src->shape[i] != index->shape[i])
                return refuse_axis(error, function, "src", i, src->shape[i], index->shape[i],
                                   "must be that of index");
        }
        return PKV_STATUS_OK;
    }
    const int64_t rows = src->shape[last - 1];
    if (rows != pkv_tensor_num_elements(index))
        return refuse_axis(error, function, "src", last - 1, rows, pkv_tensor_num_elements(index),
                           "must be the number of entries of index");
    return PKV_STATUS_OK;
}

/* Two axes as one, if their elements go on in equal steps. */
static bool merge_axes(int64_t outer, int64_t outer_stride, int64_t inner, int64_t inner_stride,
                       int64_t *stride) {
    *stride = inner == 1 ? outer_stride : inner_stride;
    return outer == 1 || inner == 1 || outer_stride == inner * inner_stride;
}

/* The four-dimensional form of the input: a 2-D or 3-D one is a single block of rows. */
static struct pkv_tensor shape_input(const struct pkv_tensor *t) {
    if (t->ndim == 4)
        return *t;
    const int32_t row = t->ndim - 2;
    struct pkv_tensor as = *t;
    as.ndim = 4;
    const int64_t shape[4] = {1, t->shape[row], 1, t->shape[row + 1]};
    const int64_t strides[4] = {0, t->strides[row], 0, t->strides[row + 1]};
    for (int32_t i = 0; i < 4; i++) {
        as.shape[i] = shape[i];
        as.strides[i] = strides[i];
    }
    return as;
}

/* The source as [num_tokens, n, d]. */
static enum pkv_status shape_src(struct pkv_tensor *as, const struct pkv_tensor *t, int64_t count,
                                 const char *function, struct pkv_error *error) {
    const int32_t row = t->ndim == 4 ? 2 : t->ndim - 1;
    int64_t stride = t->strides[row - 1];
    if (t->ndim == 4 &&
        !merge_axes(t->shape[0], t->strides[0], t->shape[1], t->strides[1], &stride))
        return refuse(error, PKV_STATUS_STRIDE, function, "src", t->strides[0],
                      t->shape[1] * t->strides[1],
                      "must have its rows in equal steps over the first two axes");
    *as = *t;
    as->ndim = 3;
    as->shape[0] = count;
    as->strides[0] = stride;
    as->shape[1] = t->ndim == 4 ? t->shape[2] : 1;
    as->strides[1] = t->ndim == 4 ? t->strides[2] : t->shape[row];
    as->shape[2] = t->shape[t->ndim - 1];
    as->strides[2] = t->strides[t->ndim - 1];
    return PKV_STATUS_OK;
}

static enum pkv_status scatter(struct pkv_context *context, const struct pkv_tensor *input,
                               const struct pkv_tensor *index, const struct pkv_tensor *src,
                               const struct pkv_scatter_update_options *options,
                               const char *function, struct pkv_error *error) {
    struct pkv_vector slots = pkv_vector_along(index, 1);
    slots.count = pkv_tensor_num_elements(index);
    if (!merge_axes(index->shape[0], index->strides[0], index->shape[1], index->strides[1],
                    &slots.stride))
        return refuse(error, PKV_STATUS_STRIDE, function, "index", index->strides[0],
                      index->shape[1] * index->strides[1],
                      "must have its entries in equal steps over both axes");
    struct pkv_step step;
    struct pkv_scatter_job job;
    struct pkv_cache_part part;
    struct pkv_tensor rows;
    const struct pkv_tensor blocks = shape_input(input);
    int64_t num_blocks, block_size, num_slots;
    enum pkv_status status =
        pkv_cache_part_init(&part, &blocks, PKV_LAYOUT_NHD, 0, &num_blocks, &block_size,
                            &(struct pkv_where){function, "input", error});
    if (status == PKV_STATUS_OK && !pkv_checked_mul(num_blocks, block_size, &num_slots))
        status = refuse(error, PKV_STATUS_OVERFLOW, function, "input", num_blocks, block_size,
                        "has more rows than 64 bits can count with its block_size");
    if (status == PKV_STATUS_OK)
        status = shape_src(&rows, src, slots.count, function, error);
    if (status != PKV_STATUS_OK)
        return status;
    pkv_step_init_bare(&step);
    step.num_blocks = num_blocks;
    step.block_size = block_size;
    step.slots = slots;
    status = pkv_step_check_slots(&step, &context->kernels, options->duplicates,
                                  &(struct pkv_where){function, "index", error});
    if (status != PKV_STATUS_OK)
        return status;
    pkv_scatter_job_init(&job, context, &step, context->run_mode, options->store_policy, function);
    *pkv_scatter_job_source(&job) = rows;
    status = pkv_scatter_job_add_source(&job, &part, "src", error);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_job_finish(&job, "index", error);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_job_run(&job, &context->executor, error);
    return status;
}

/* An input without rows takes padding only. */
static enum pkv_status refuse_rows(const struct pkv_context *context,
                                   const struct pkv_tensor *index, const char *function,
                                   struct pkv_error *error) {
    struct pkv_step step;
    const struct pkv_vector first = pkv_vector_along(index, 1);
    step.num_blocks = 0;
    step.block_size = 1;
    for (int64_t i = 0; i < index->shape[0]; i++) {
        step.slots = pkv_vector_offset(&first, i * index->strides[0]);
        const enum pkv_status status =
            pkv_step_check_slots(&step, &context->kernels, PKV_DUPLICATES_ASSUME_UNIQUE,
                                 &(struct pkv_where){function, "index", error});
        if (status != PKV_STATUS_OK) {
            if (error->index != PKV_ERROR_NONE)
                error->index += i * index->shape[1];
            return status;
        }
    }
    return PKV_STATUS_OK;
}

static enum pkv_status check_and_scatter(struct pkv_context *context,
                                         const struct pkv_tensor *input, int32_t dim,
                                         const struct pkv_tensor *index,
                                         const struct pkv_tensor *src,
                                         const struct pkv_scatter_update_options *options,
                                         const char *function, struct pkv_error *error) {
    struct pkv_scatter_update_options chosen;
    struct pkv_tensor to, at, from;
    enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, function, "options", error);
    if (status != PKV_STATUS_OK)
        return status;
    if (dim != -2)
        return refuse(error, PKV_STATUS_INVALID_ARGUMENT, function, "dim", dim, -2, "must be");
    status = pkv_step_check_duplicates(chosen.duplicates, "options->duplicates", function, error);
    if (status == PKV_STATUS_OK)
        status = pkv_scatter_check_store_policy(chosen.store_policy, function, error);
    if (status == PKV_STATUS_OK)
        status = pkv_tensor_read(&to, input, &(struct pkv_where){function, "input", error});
    if (status == PKV_STATUS_OK)
        status = pkv_tensor_read(&at, index, &(struct pkv_where){function, "index", error});
    if (status == PKV_STATUS_OK)
        status = pkv_tensor_read(&from, src, &(struct pkv_where){function, "src", error});
    if (status == PKV_STATUS_OK)
        status = check_shapes(&to, &at, &from, function, error);
    if (status != PKV_STATUS_OK)
        return status;
    /* Without an entry there is nothing to do, and without an element in a row nothing to move. */
    if (pkv_tensor_num_elements(&at) == 0 ||
        (pkv_tensor_num_elements(&from) == 0 && pkv_tensor_num_elements(&to) == 0))
        return PKV_STATUS_OK;
    if (pkv_tensor_num_elements(&to) == 0)
        return refuse_rows(context, &at, function, error);
    return scatter(context, &to, &at, &from, &chosen, function, error);
}

enum pkv_status pkv_scatter_update(struct pkv_context *context, const struct pkv_tensor *input,
                                   int32_t dim, const struct pkv_tensor *index,
                                   const struct pkv_tensor *src,
                                   const struct pkv_scatter_update_options *options,
                                   struct pkv_error *error) {
    struct pkv_error facts;
    facts.struct_size = sizeof(facts);
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    const enum pkv_status status =
        check_and_scatter(context, input, dim, index, src, options, __func__, &facts);
    return pkv_context_finish(context, status, &facts, error);
}
