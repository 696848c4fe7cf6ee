/* SPDX-License-Identifier: MIT
 *
 * Merging results of attention over disjoint sets of positions.
 */
#include <math.h>

#include <pagedkv/attention.h>

#include "base/error.h"
#include "geometry/number.h"
#include "geometry/strided.h"
#include "geometry/tensor.h"
#include "ops/context.h"

struct job {
    const struct pkv_tensor *outs, *lses; /* as given; read again where they are used */
    int64_t num_states;
    struct pkv_tensor out, lse; /* resolved; lse: data NULL where absent */
    bool has_lse;
    bool has_two; /* by names of their own */
    double to_natural;
    const char *function;
    struct pkv_error *error;
};

static bool is_state_dtype(int32_t dtype) {
    return dtype == PKV_DTYPE_F32 || dtype == PKV_DTYPE_F16 || dtype == PKV_DTYPE_BF16;
}

/* Reads a tensor of [num_tokens, num_heads(, head_size)] with the shape of out. */
static enum pkv_status read_state(const struct job *job, struct pkv_tensor *to,
                                  const struct pkv_tensor *from, const char *name, int64_t index,
                                  int32_t ndim) {
    struct pkv_error facts = {.struct_size = sizeof(facts)};
    enum pkv_status status =
        pkv_tensor_read(to, from, &(struct pkv_where){job->function, name, &facts});
    if (status == PKV_STATUS_OK &&
        !(ndim == 2 ? to->dtype == PKV_DTYPE_F32 : is_state_dtype(to->dtype)))
        status = pkv_error_set(
            &facts, PKV_STATUS_DTYPE, job->function, name, PKV_ERROR_NONE, to->dtype, PKV_DTYPE_F32,
            ndim == 2 ? "must be float32" : "must be float32, float16 or bfloat16");
    if (status == PKV_STATUS_OK && to->ndim != ndim)
        status = pkv_error_set(&facts, PKV_STATUS_RANK, job->function, name, PKV_ERROR_NONE,
                               to->ndim, ndim,
                               ndim == 2 ? "must be [num_tokens, num_heads]"
                                         : "must be [num_tokens, num_heads, head_size]");
    for (int32_t i = 0; i < ndim && status == PKV_STATUS_OK; i++) {
        if (job->out.ndim != 0 && to->shape[i] != job->out.shape[i])
            status = pkv_error_set_axis(&facts, PKV_STATUS_SHAPE, job->function, name, i,
                                        to->shape[i], job->out.shape[i], "must be that of out");
    }
    if (status == PKV_STATUS_OK)
        return status;
    if (facts.index == PKV_ERROR_NONE)
        facts.index = index;
    return pkv_error_forward(job->error, &facts, job->function, name);
}

static bool is_same(const struct pkv_tensor *a, const struct pkv_tensor *b) {
    bool same = a->data == b->data && a->dtype == b->dtype && a->ndim == b->ndim;
    for (int32_t i = 0; i < a->ndim && same; i++)
        same = a->strides[i] == b->strides[i];
    return same;
}

/* An output may be an input, but not share some bytes with it. */
static enum pkv_status check_apart(const struct job *job, const struct pkv_tensor *output,
                                   const char *name, const struct pkv_tensor *other, int64_t index,
                                   bool may_be_same) {
    const struct pkv_strided a = pkv_strided_from_tensor(output);
    const struct pkv_strided b = pkv_strided_from_tensor(other);
    if ((may_be_same && is_same(output, other)) || !pkv_strided_may_overlap(&a, &b))
        return PKV_STATUS_OK;
    return pkv_error_set(job->error, PKV_STATUS_OVERLAP, job->function, name, PKV_ERROR_NONE,
                         PKV_ERROR_NONE, index,
                         "must not share bytes with an input, unless it is that input; the state");
}

static enum pkv_status check_output(const struct job *job, const struct pkv_tensor *output,
                                    const char *name) {
    const struct pkv_strided bytes = pkv_strided_from_tensor(output);
    if (pkv_strided_is_injective(&bytes))
        return PKV_STATUS_OK;
    return pkv_error_set(job->error, PKV_STATUS_STRIDE, job->function, name, PKV_ERROR_NONE,
                         PKV_ERROR_NONE, PKV_ERROR_NONE,
                         "has strides by which elements share bytes, or interleave");
}

static enum pkv_status check_states(const struct job *job) {
    static const char *const two_outs[] = {"out_a", "out_b"};
    static const char *const two_lses[] = {"lse_a", "lse_b"};
    for (int64_t i = 0; i < job->num_states; i++) {
        struct pkv_tensor state, lse;
        const char *const out_name = job->has_two ? two_outs[i] : "outs";
        const char *const lse_name = job->has_two ? two_lses[i] : "lses";
        const int64_t index = job->has_two ? PKV_ERROR_NONE : i;
        enum pkv_status status = read_state(job, &state, &job->outs[i], out_name, index, 3);
        if (status == PKV_STATUS_OK)
            status = read_state(job, &lse, &job->lses[i], lse_name, index, 2);
        if (status == PKV_STATUS_OK)
            status = check_apart(job, &job->out, "out", &state, i, true);
        if (status == PKV_STATUS_OK)
            status = check_apart(job, &job->out, "out", &lse, i, false);
        if (status == PKV_STATUS_OK && job->has_lse)
            status = check_apart(job, &job->lse, "lse", &lse, i, true);
        if (status == PKV_STATUS_OK && job->has_lse)
            status = check_apart(job, &job->lse, "lse", &state, i, false);
        if (status != PKV_STATUS_OK)
            return status;
    }
    return PKV_STATUS_OK;
}

static float read_number(const struct pkv_tensor *tensor, int64_t offset) {
    return pkv_number_read((const char *)tensor->data + offset * pkv_dtype_bytes(tensor->dtype),
                           tensor->dtype);
}

static void write_number(const struct pkv_tensor *tensor, int64_t offset, float number) {
    pkv_number_write((char *)tensor->data + offset * pkv_dtype_bytes(tensor->dtype), tensor->dtype,
                     number);
}

/* A tensor that has been checked, as pkv_tensor_read gives it. */
static struct pkv_tensor resolved(const struct pkv_tensor *given, const char *function) {
    struct pkv_tensor tensor;
    (void)!pkv_tensor_read(&tensor, given, &(struct pkv_where){function, NULL, NULL});
    return tensor;
}

static double lse_of(const struct job *job, int64_t state, int64_t token, int64_t head) {
    const struct pkv_tensor lse = resolved(&job->lses[state], job->function);
    return (double)read_number(&lse, token * lse.strides[0] + head * lse.strides[1]) *
           job->to_natural;
}

/* All elements of one query and head; the old values of an element are read before it is
 * written. */
static void merge(const struct job *job, int64_t token, int64_t head) {
    double max = -INFINITY, total = 0;
    for (int64_t i = 0; i < job->num_states; i++) {
        const double lse = lse_of(job, i, token, head);
        if (lse > max || isnan(lse))
            max = lse;
    }
    for (int64_t i = 0; i < job->num_states; i++) {
        const double lse = lse_of(job, i, token, head);
        if (lse != -INFINITY)
            total += exp(lse - max);
    }
    enum { AT_ONCE = 64 };
    for (int64_t first = 0; first < job->out.shape[2]; first += AT_ONCE) {
        const int64_t left = job->out.shape[2] - first, count = left < AT_ONCE ? left : AT_ONCE;
        double sums[AT_ONCE] = {0};
        for (int64_t i = 0; i < job->num_states; i++) {
            const double lse = lse_of(job, i, token, head);
            const struct pkv_tensor state = resolved(&job->outs[i], job->function);
            const int64_t row = token * state.strides[0] + head * state.strides[1];
            const double weight = lse == -INFINITY ? 0 : exp(lse - max) / total;
            for (int64_t d = 0; d < count && weight != 0; d++)
                sums[d] +=
                    weight * (double)read_number(&state, row + (first + d) * state.strides[2]);
        }
        const int64_t row = token * job->out.strides[0] + head * job->out.strides[1];
        for (int64_t d = 0; d < count; d++)
            write_number(&job->out, row + (first + d) * job->out.strides[2], (float)sums[d]);
    }
    if (job->has_lse)
        write_number(&job->lse, token * job->lse.strides[0] + head * job->lse.strides[1],
                     total == 0 ? -INFINITY : (float)((max + log(total)) / job->to_natural));
}

static enum pkv_status prepare(struct job *job, const struct pkv_tensor *out,
                               const struct pkv_tensor *lse,
                               const struct pkv_merge_states_options *options) {
    struct pkv_merge_states_options chosen;
    enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, job->function, "options", job->error);
    if (status != PKV_STATUS_OK)
        return status;
    if (chosen.lse_base != PKV_LSE_BASE_E && chosen.lse_base != PKV_LSE_BASE_2)
        return pkv_error_set(job->error, PKV_STATUS_INVALID_ARGUMENT, job->function,
                             "options->lse_base", PKV_ERROR_NONE, chosen.lse_base, PKV_ERROR_NONE,
                             "must be one of enum pkv_lse_base");
    if (chosen.reserved != 0)
        return pkv_error_set(job->error, PKV_STATUS_INVALID_ARGUMENT, job->function,
                             "options->reserved", PKV_ERROR_NONE, chosen.reserved, 0, "must be");
    if (job->num_states < 1)
        return pkv_error_set(job->error, PKV_STATUS_INVALID_ARGUMENT, job->function, "num_states",
                             PKV_ERROR_NONE, job->num_states, 1, "must be at least");
    job->to_natural = chosen.lse_base == PKV_LSE_BASE_2 ? 0.69314718055994531 : 1;
    job->has_lse = !pkv_tensor_is_absent(lse);
    const struct job any_shape = {.function = job->function, .error = job->error};
    status = read_state(&any_shape, &job->out, out, "out", PKV_ERROR_NONE, 3);
    if (status == PKV_STATUS_OK)
        status = check_output(job, &job->out, "out");
    if (status == PKV_STATUS_OK && job->has_lse)
        status = read_state(job, &job->lse, lse, "lse", PKV_ERROR_NONE, 2);
    if (status == PKV_STATUS_OK && job->has_lse)
        status = check_output(job, &job->lse, "lse");
    if (status == PKV_STATUS_OK && job->has_lse)
        status = check_apart(job, &job->lse, "lse", &job->out, PKV_ERROR_NONE, false);
    return status == PKV_STATUS_OK ? check_states(job) : status;
}

static enum pkv_status merge_states(struct job *job, const struct pkv_tensor *out,
                                    const struct pkv_tensor *lse,
                                    const struct pkv_merge_states_options *options) {
    const enum pkv_status status = prepare(job, out, lse, options);
    if (status != PKV_STATUS_OK)
        return status;
    for (int64_t token = 0; token < job->out.shape[0]; token++) {
        for (int64_t head = 0; head < job->out.shape[1]; head++)
            merge(job, token, head);
    }
    return status;
}

enum pkv_status pkv_merge_states(struct pkv_context *context, const struct pkv_tensor *outs,
                                 const struct pkv_tensor *lses, int64_t num_states,
                                 const struct pkv_tensor *out, const struct pkv_tensor *lse,
                                 const struct pkv_merge_states_options *options,
                                 struct pkv_error *error) {
    struct pkv_error facts = {.struct_size = sizeof(facts)};
    if (context == NULL || outs == NULL || lses == NULL || out == NULL)
        return pkv_context_finish(context,
                                  pkv_refuse_null(__func__,
                                                  context == NULL ? "context"
                                                  : outs == NULL  ? "outs"
                                                  : lses == NULL  ? "lses"
                                                                  : "out",
                                                  &facts),
                                  &facts, error);
    struct job job = {.outs = outs,
                      .lses = lses,
                      .num_states = num_states,
                      .function = __func__,
                      .error = &facts};
    return pkv_context_finish(context, merge_states(&job, out, lse, options), &facts, error);
}

enum pkv_status pkv_merge_state(struct pkv_context *context, const struct pkv_tensor *out_a,
                                const struct pkv_tensor *lse_a, const struct pkv_tensor *out_b,
                                const struct pkv_tensor *lse_b, const struct pkv_tensor *out,
                                const struct pkv_tensor *lse,
                                const struct pkv_merge_states_options *options,
                                struct pkv_error *error) {
    struct pkv_error facts = {.struct_size = sizeof(facts)};
    if (context == NULL || out_a == NULL || lse_a == NULL || out_b == NULL || lse_b == NULL ||
        out == NULL)
        return pkv_context_finish(context,
                                  pkv_refuse_null(__func__,
                                                  context == NULL ? "context"
                                                  : out_a == NULL ? "out_a"
                                                  : lse_a == NULL ? "lse_a"
                                                  : out_b == NULL ? "out_b"
                                                  : lse_b == NULL ? "lse_b"
                                                                  : "out",
                                                  &facts),
                                  &facts, error);
    const struct pkv_tensor outs[2] = {*out_a, *out_b}, lses[2] = {*lse_a, *lse_b};
    struct job job = {.outs = outs,
                      .lses = lses,
                      .num_states = 2,
                      .has_two = true,
                      .function = __func__,
                      .error = &facts};
    return pkv_context_finish(context, merge_states(&job, out, lse, options), &facts, error);
}
