/* SPDX-License-Identifier: MIT
 *
 * NsaCompressWithCache: which sequences complete a window, where its rows are, and the division of
 * the work among threads. The sums are kernels.
 */
#include <pagedkv/nsa_compress.h>

#include <string.h>

#include "base/error.h"
#include "base/formats.h"
#include "geometry/cache.h"
#include "geometry/vector.h"
#include "kernels/c/nsa_compress.h"
#include "ops/context.h"
#include "ops/rows.h"
#include "parallel/executor.h"

_Static_assert(PKV_NSA_MAX_WINDOW == PKV_NSA_MAX_ROWS, "a window of the API is one of the kernels");

/* Windows are multiples of it, and so are the steps between them. */
enum { WINDOW_UNIT = 16 };

struct job {
    const struct pkv_kernels *kernels;
    const char *function;
    struct pkv_cache_part input;
    struct pkv_cache_part output; /* one block of num_rows */
    struct pkv_tensor weight;
    struct pkv_vector slots, lengths;
    struct pkv_vector table_row; /* row 0 of the block table */
    int64_t table_row_stride;    /* in elements */
    int64_t num_seqs;
    int64_t num_blocks, page_block_size, num_rows;
    int64_t window, stride;
    int64_t num_windows; /* that are completed */
    int64_t num_parts;
};

/* Nothing else of such a sequence is looked at. */
static bool is_padding(const struct job *job, int64_t b) {
    return pkv_vector_at(&job->slots, b) < 0;
}

static bool completes_window(const struct job *job, int64_t b) {
    const int64_t length = pkv_vector_at(&job->lengths, b);
    return !is_padding(job, b) && length >= job->window &&
           (length - job->window) % job->stride == 0;
}

static bool counts(const void *user, int64_t b) {
    return completes_window(user, b);
}

static struct pkv_vector table_row(const struct job *job, int64_t b) {
    return pkv_vector_offset(&job->table_row, b * job->table_row_stride);
}

/* The byte offset of the row of a position in the input. */
static int64_t row_offset(const struct job *job, const struct pkv_vector *blocks,
                          int64_t position) {
    const int64_t block = pkv_vector_at(blocks, position / job->page_block_size);
    return pkv_cache_part_row(&job->input, block, position % job->page_block_size);
}

static void compress(const struct job *job, int64_t b, int64_t first_head, int64_t end_head) {
    const struct pkv_vector blocks = table_row(job, b);
    const int64_t first = pkv_vector_at(&job->lengths, b) - job->window;
    const int64_t bytes = job->input.element_bytes;
    struct pkv_nsa_window window; /* 600 bytes that need no zeroes */
    window.num_rows = job->window;
    window.num_heads = end_head - first_head;
    window.num_channels = job->input.head_size;
    window.row_head_stride = job->input.head_stride_bytes;
    window.out_head_stride = job->output.head_stride_bytes;
    window.weight_row_stride = job->weight.strides[0] * bytes;
    window.weight_head_stride = job->weight.strides[1] * bytes;
    window.weights = (const char *)job->weight.data + first_head * window.weight_head_stride;
    for (int64_t t = 0; t < job->window; t++)
        window.rows[t] = (const char *)job->input.data + row_offset(job, &blocks, first + t) +
                         first_head * window.row_head_stride;
    char *out = (char *)job->output.data +
                pkv_vector_at(&job->slots, b) * job->output.token_stride_bytes +
                first_head * window.out_head_stride;
    job->kernels->nsa_compress[job->input.dtype == PKV_DTYPE_F16 ? PKV_HALF_F16 : PKV_HALF_BF16](
        out, &window);
}

/* Heads of windows are what the parts share. */
static void compress_part(const struct job *job, int64_t part) {
    const int64_t num_heads = job->input.num_heads;
    int64_t first, end;
    pkv_rows_share(job->num_windows * num_heads, part, job->num_parts, &first, &end);
    int64_t at = 0; /* of the first head of the next window */
    for (int64_t b = 0; b < job->num_seqs && at < end; b++) {
        if (!completes_window(job, b))
            continue;
        const int64_t from = first > at ? first - at : 0;
        const int64_t to = end - at < num_heads ? end - at : num_heads;
        if (from < to)
            compress(job, b, from, to);
        at += num_heads;
    }
}

static void run_tile(void *arg, int64_t index) {
    compress_part(arg, index);
}

/* Reads an element of two bytes, if all of it lies in the memory. */
static enum pkv_status read_code(const struct job *job, const void *data, int64_t span_bytes,
                                 int64_t offset, uint16_t *code, struct pkv_error *error) {
    if (offset < 0 || offset > span_bytes - (int64_t)sizeof(*code))
        return pkv_error_set(error, PKV_STATUS_INTERNAL, job->function, NULL, PKV_ERROR_NONE,
                             offset, span_bytes, "an access would leave its tensor");
    memcpy(code, (const char *)data + offset, sizeof(*code));
    return PKV_STATUS_OK;
}

static float widen(const struct job *job, uint16_t code) {
    return job->input.dtype == PKV_DTYPE_F16 ? pkv_f16_to_f32(code) : pkv_bf16_to_f32(code);
}

/* The definition: one element of one window. */
static enum pkv_status sim_element(const struct job *job, int64_t b, int64_t head, int64_t d,
                                   struct pkv_error *error) {
    const struct pkv_vector blocks = table_row(job, b);
    const int64_t first = pkv_vector_at(&job->lengths, b) - job->window;
    float products[PKV_NSA_MAX_ROWS];
    for (int64_t t = 0; t < job->window; t++) {
        uint16_t x = 0, w = 0;
        enum pkv_status status = read_code(job, job->input.data, job->input.span_bytes,
                                           row_offset(job, &blocks, first + t) +
                                               pkv_cache_part_element(&job->input, head, d),
                                           &x, error);
        if (status == PKV_STATUS_OK)
            status =
                read_code(job, job->weight.data, pkv_tensor_span(&job->weight, job->weight.ndim),
                          (t * job->weight.strides[0] + head * job->weight.strides[1]) *
                              job->input.element_bytes,
                          &w, error);
        if (status != PKV_STATUS_OK)
            return status;
        products[t] = widen(job, x) * widen(job, w);
    }
    const float sum = pkv_nsa_sum(products, job->window);
    const uint16_t code =
        job->input.dtype == PKV_DTYPE_F16 ? pkv_nsa_round_f16(sum) : pkv_nsa_round_bf16(sum);
    const int64_t to = pkv_vector_at(&job->slots, b) * job->output.token_stride_bytes +
                       pkv_cache_part_element(&job->output, head, d);
    uint16_t before;
    const enum pkv_status status =
        read_code(job, job->output.data, job->output.span_bytes, to, &before, error);
    if (status == PKV_STATUS_OK)
        memcpy((char *)job->output.data + to, &code, sizeof(code));
    return status;
}

static enum pkv_status sim(const struct job *job, struct pkv_error *error) {
    for (int64_t b = 0; b < job->num_seqs; b++) {
        if (!completes_window(job, b))
            continue;
        for (int64_t head = 0; head < job->input.num_heads; head++) {
            for (int64_t d = 0; d < job->input.head_size; d++) {
                const enum pkv_status status = sim_element(job, b, head, d, error);
                if (status != PKV_STATUS_OK)
                    return status;
            }
        }
    }
    return PKV_STATUS_OK;
}

static enum pkv_status check_blocks(const struct job *job, int64_t b, int64_t length,
                                    struct pkv_error *error) {
    const struct pkv_vector blocks = table_row(job, b);
    for (int64_t i = (length - job->window) / job->page_block_size;
         i <= (length - 1) / job->page_block_size; i++) {
        const int64_t block = pkv_vector_at(&blocks, i);
        if (block < 0 || block >= job->num_blocks)
            return pkv_error_set(error, PKV_STATUS_BLOCK_OUT_OF_RANGE, job->function, "block_table",
                                 b * blocks.count + i, block, job->num_blocks,
                                 "must lie between 0 and the number of blocks");
    }
    return PKV_STATUS_OK;
}

static enum pkv_status check_sequence(const struct job *job, int64_t b, struct pkv_error *error) {
    const int64_t length = pkv_vector_at(&job->lengths, b);
    const int64_t slot = pkv_vector_at(&job->slots, b);
    const int64_t width = job->table_row.count;
    if (length < 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, job->function, "act_seq_len", b,
                             length, 0, "must be at least");
    if (length > 0 && (length - 1) / job->page_block_size >= width)
        return pkv_error_set(error, PKV_STATUS_POSITION_OUT_OF_RANGE, job->function, "act_seq_len",
                             b, length, width * job->page_block_size,
                             "must not be more than the tokens of a block_table row");
    if (!completes_window(job, b))
        return PKV_STATUS_OK;
    if (slot >= job->num_rows)
        return pkv_error_set(error, PKV_STATUS_SLOT_OUT_OF_RANGE, job->function, "slot_mapping", b,
                             slot, job->num_rows, "must be below the number of rows");
    return check_blocks(job, b, length, error);
}

static enum pkv_status check_sequences(struct job *job, struct pkv_error *error) {
    for (int64_t b = 0; b < job->num_seqs; b++) {
        if (is_padding(job, b))
            continue;
        const enum pkv_status status = check_sequence(job, b, error);
        if (status != PKV_STATUS_OK)
            return status;
        job->num_windows += completes_window(job, b);
    }
    const int64_t repeat = pkv_vector_find_repeat_among(&job->slots, counts, job);
    if (repeat >= 0)
        return pkv_error_set(error, PKV_STATUS_DUPLICATE_SLOT, job->function, "slot_mapping",
                             repeat, pkv_vector_at(&job->slots, repeat), PKV_ERROR_NONE,
                             "must not name a slot that an earlier sequence names");
    return PKV_STATUS_OK;
}

/* The tensors of a call, resolved. */
struct tensors {
    struct pkv_tensor input, weight, slot_mapping, act_seq_len, block_table, output_cache;
};

static enum pkv_status check_apart(const struct tensors *tensors, const char *function,
                                   struct pkv_error *error) {
    const struct pkv_strided written = pkv_strided_from_tensor(&tensors->output_cache);
    const struct {
        const char *name;
        const struct pkv_tensor *tensor;
    } reads[] = {
        {"input", &tensors->input},
        {"weight", &tensors->weight},
        {"slot_mapping", &tensors->slot_mapping},
        {"act_seq_len", &tensors->act_seq_len},
        {"block_table", &tensors->block_table},
    };
    for (size_t i = 0; i < sizeof(reads) / sizeof(reads[0]); i++) {
        const struct pkv_strided read = pkv_strided_from_tensor(reads[i].tensor);
        if (pkv_strided_may_overlap(&written, &read))
            return pkv_error_set(error, PKV_STATUS_OVERLAP, function, reads[i].name, PKV_ERROR_NONE,
                                 PKV_ERROR_NONE, PKV_ERROR_NONE,
                                 "must not share bytes with output_cache");
    }
    return PKV_STATUS_OK;
}

static enum pkv_status refuse_shape(const char *function, const char *argument, int32_t axis,
                                    int64_t value, int64_t bound, const char *rule,
                                    struct pkv_error *error) {
    return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function, argument, axis, value, bound,
                              rule);
}

static enum pkv_status check_data(const struct pkv_tensor *tensor, const char *argument,
                                  int32_t ndim, int32_t dtype, const char *function,
                                  struct pkv_error *error) {
    if (tensor->dtype != dtype)
        return pkv_error_set(error, PKV_STATUS_DTYPE, function, argument, PKV_ERROR_NONE,
                             tensor->dtype, dtype, "must have the dtype of input");
    if (tensor->ndim != ndim)
        return pkv_error_set(error, PKV_STATUS_RANK, function, argument, PKV_ERROR_NONE,
                             tensor->ndim, ndim, "must have the right number of dimensions");
    for (int32_t axis = 0; axis < ndim; axis++) {
        if (tensor->shape[axis] < 1)
            return refuse_shape(function, argument, axis, tensor->shape[axis], 1,
                                "must be at least", error);
    }
    return PKV_STATUS_OK;
}

static enum pkv_status
read_tensors(struct tensors *to, const struct pkv_tensor *input, const struct pkv_tensor *weight,
             const struct pkv_tensor *slot_mapping, const struct pkv_tensor *act_seq_len,
             const struct pkv_tensor *block_table, const struct pkv_tensor *output_cache,
             const char *function, struct pkv_error *error) {
    enum pkv_status status =
        pkv_tensor_read(&to->input, input, &(struct pkv_where){function, "input", error});
    if (status == PKV_STATUS_OK && to->input.dtype != PKV_DTYPE_F16 &&
        to->input.dtype != PKV_DTYPE_BF16)
        status = pkv_error_set(error, PKV_STATUS_DTYPE, function, "input", PKV_ERROR_NONE,
                               to->input.dtype, PKV_ERROR_NONE, "must be float16 or bfloat16");
    if (status == PKV_STATUS_OK)
        status = check_data(&to->input, "input", 4, to->input.dtype, function, error);
    if (status == PKV_STATUS_OK)
        status =
            pkv_tensor_read(&to->weight, weight, &(struct pkv_where){function, "weight", error});
    if (status == PKV_STATUS_OK)
        status = check_data(&to->weight, "weight", 2, to->input.dtype, function, error);
    if (status == PKV_STATUS_OK)
        status = pkv_tensor_read_index(&to->slot_mapping, slot_mapping, 1,
                                       &(struct pkv_where){function, "slot_mapping", error});
    if (status == PKV_STATUS_OK)
        status = pkv_tensor_read_index(&to->act_seq_len, act_seq_len, 1,
                                       &(struct pkv_where){function, "act_seq_len", error});
    if (status == PKV_STATUS_OK)
        status = pkv_tensor_read_index(&to->block_table, block_table, 2,
                                       &(struct pkv_where){function, "block_table", error});
    if (status == PKV_STATUS_OK)
        status = pkv_tensor_read(&to->output_cache, output_cache,
                                 &(struct pkv_where){function, "output_cache", error});
    if (status == PKV_STATUS_OK)
        status = check_data(&to->output_cache, "output_cache", 3, to->input.dtype, function, error);
    return status;
}

static enum pkv_status check_shapes(const struct tensors *tensors, const char *function,
                                    struct pkv_error *error) {
    static const char *const rule = "must be that of input", *const seqs = "must be that of "
                                                                           "slot_mapping";
    const struct {
        const char *name;
        const struct pkv_tensor *tensor;
        int32_t axis;
        int64_t wanted;
        const char *rule;
    } checks[] = {
        {"weight", &tensors->weight, 1, tensors->input.shape[2], rule},
        {"output_cache", &tensors->output_cache, 1, tensors->input.shape[2], rule},
        {"output_cache", &tensors->output_cache, 2, tensors->input.shape[3], rule},
        {"act_seq_len", &tensors->act_seq_len, 0, tensors->slot_mapping.shape[0], seqs},
        {"block_table", &tensors->block_table, 0, tensors->slot_mapping.shape[0], seqs},
    };
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        const int64_t found = checks[i].tensor->shape[checks[i].axis];
        if (found != checks[i].wanted)
            return refuse_shape(function, checks[i].name, checks[i].axis, found, checks[i].wanted,
                                checks[i].rule, error);
    }
    const int64_t window = tensors->weight.shape[0];
    if (window % WINDOW_UNIT != 0)
        return refuse_shape(function, "weight", 0, window, WINDOW_UNIT, "must be a multiple of",
                            error);
    if (window > PKV_NSA_MAX_WINDOW)
        return refuse_shape(function, "weight", 0, window, PKV_NSA_MAX_WINDOW, "must be at most",
                            error);
    return PKV_STATUS_OK;
}

static enum pkv_status refuse_option(const char *function, const char *argument, int64_t value,
                                     int64_t bound, const char *rule, struct pkv_error *error) {
    return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, argument, PKV_ERROR_NONE,
                         value, bound, rule);
}

static enum pkv_status choose_window(struct job *job, const struct tensors *tensors,
                                     const struct pkv_nsa_compress_options *options,
                                     struct pkv_error *error) {
    job->window = tensors->weight.shape[0];
    job->stride = options->compress_stride == 0 ? WINDOW_UNIT : options->compress_stride;
    if (options->compress_block_size != 0 && options->compress_block_size != job->window)
        return refuse_option(job->function, "options->compress_block_size",
                             options->compress_block_size, job->window,
                             "must be the first dimension of weight", error);
    if (options->page_block_size != 0 && options->page_block_size != tensors->input.shape[1])
        return refuse_option(job->function, "options->page_block_size", options->page_block_size,
                             tensors->input.shape[1], "must be the second dimension of input",
                             error);
    if (job->stride < 0 || job->stride % WINDOW_UNIT != 0)
        return refuse_option(job->function, "options->compress_stride", job->stride, WINDOW_UNIT,
                             "must be a multiple of", error);
    if (job->stride > job->window)
        return refuse_option(job->function, "options->compress_stride", job->stride, job->window,
                             "must be at most the rows of a window", error);
    return PKV_STATUS_OK;
}

/* The job of tensors whose shapes fit. */
static enum pkv_status describe(struct job *job, const struct tensors *tensors,
                                struct pkv_error *error) {
    const struct pkv_tensor *output = &tensors->output_cache;
    const struct pkv_tensor rows = {
        .data = output->data,
        .dtype = output->dtype,
        .ndim = 4,
        .shape = {1, output->shape[0], output->shape[1], output->shape[2]},
        .strides = {0, output->strides[0], output->strides[1], output->strides[2]},
    };
    int64_t one;
    job->weight = tensors->weight;
    job->slots = pkv_vector_along(&tensors->slot_mapping, 0);
    job->lengths = pkv_vector_along(&tensors->act_seq_len, 0);
    job->table_row = pkv_vector_along(&tensors->block_table, 1);
    job->table_row_stride = tensors->block_table.strides[0];
    job->num_seqs = job->slots.count;
    enum pkv_status status = pkv_cache_part_init(
        &job->input, &tensors->input, PKV_LAYOUT_NHD, 0, &job->num_blocks, &job->page_block_size,
        &(struct pkv_where){job->function, "input", error});
    if (status == PKV_STATUS_OK)
        status = pkv_cache_part_init(&job->output, &rows, PKV_LAYOUT_NHD, 0, &one, &job->num_rows,
                                     &(struct pkv_where){job->function, "output_cache", error});
    return status;
}

static enum pkv_status run(struct job *job, const struct pkv_context *context,
                           struct pkv_error *error) {
    if (context->run_mode == PKV_RUN_MODE_SIM)
        return sim(job, error);
    /* Rows of input in memory, or one row read again and again: a wrapped product only picks a
     * number. */
    const uint64_t bytes =
        (uint64_t)job->num_windows * (uint64_t)job->window * (uint64_t)job->input.row_bytes;
    job->num_parts = pkv_rows_num_parts(bytes, context->executor.num_threads);
    pkv_executor_run(&context->executor, run_tile, job, job->num_parts);
    return PKV_STATUS_OK;
}

static enum pkv_status check_and_run(struct job *job, const struct pkv_context *context,
                                     const struct tensors *tensors,
                                     const struct pkv_nsa_compress_options *options,
                                     struct pkv_error *error) {
    struct pkv_nsa_compress_options chosen;
    enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, job->function, "options", error);
    if (status == PKV_STATUS_OK)
        status = check_shapes(tensors, job->function, error);
    if (status == PKV_STATUS_OK)
        status = choose_window(job, tensors, &chosen, error);
    if (status == PKV_STATUS_OK)
        status = describe(job, tensors, error);
    if (status == PKV_STATUS_OK)
        status = check_sequences(job, error);
    if (status == PKV_STATUS_OK)
        status = check_apart(tensors, job->function, error);
    if (status != PKV_STATUS_OK || job->num_windows == 0)
        return status;
    return run(job, context, error);
}

enum pkv_status pkv_nsa_compress_with_cache(
    struct pkv_context *context, const struct pkv_tensor *input, const struct pkv_tensor *weight,
    const struct pkv_tensor *slot_mapping, const struct pkv_tensor *act_seq_len,
    const struct pkv_tensor *block_table, const struct pkv_tensor *output_cache,
    const struct pkv_nsa_compress_options *options, struct pkv_error *error) {
    struct pkv_error facts = {.struct_size = sizeof(facts)};
    struct tensors tensors;
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    struct job job = {.kernels = &context->kernels, .function = __func__};
    enum pkv_status status = read_tensors(&tensors, input, weight, slot_mapping, act_seq_len,
                                          block_table, output_cache, __func__, &facts);
    if (status == PKV_STATUS_OK)
        status = check_and_run(&job, context, &tensors, options, &facts);
    return pkv_context_finish(context, status, &facts, error);
}
