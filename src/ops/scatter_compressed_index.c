/* SPDX-License-Identifier: MIT
 *
 * The indices of the compressed modes: reading them, checking them, what they mean for one task,
 * and the public query of the lengths that come out. It knows no keys, values or caches.
 */
#include "ops/scatter_compressed.h"

#include "base/checked.h"
#include "base/error.h"

bool pkv_scatter_mode_is_compressed(int32_t scatter_mode) {
    return scatter_mode == PKV_SCATTER_MODE_ALIBI || scatter_mode == PKV_SCATTER_MODE_ROPE ||
           scatter_mode == PKV_SCATTER_MODE_OMNI;
}

static enum pkv_status read_tensor(struct pkv_tensor *to, const struct pkv_tensor *tensor,
                                   const struct pkv_where *where) {
    if (pkv_tensor_is_absent(tensor))
        return pkv_refuse_null(where->function, where->argument, where->error);
    const enum pkv_status status = pkv_tensor_read(to, tensor, where);
    if (status != PKV_STATUS_OK)
        return status;
    if (!pkv_dtype_is_index(to->dtype))
        return pkv_error_set(where->error, PKV_STATUS_DTYPE, where->function, where->argument,
                             PKV_ERROR_NONE, to->dtype, PKV_ERROR_NONE, "must be int32 or int64");
    if (to->ndim != 1 && to->ndim != 2)
        return pkv_error_set(where->error, PKV_STATUS_RANK, where->function, where->argument,
                             PKV_ERROR_NONE, to->ndim, PKV_ERROR_NONE,
                             "must be [num_seqs, num_heads] or [num_seqs * num_heads]");
    return PKV_STATUS_OK;
}

static enum pkv_status read_tasks(struct pkv_task_index *to, const struct pkv_tensor *tensor,
                                  int64_t num_seqs, int64_t num_heads,
                                  const struct pkv_where *where) {
    struct pkv_tensor t;
    const enum pkv_status status = read_tensor(&t, tensor, where);
    if (status != PKV_STATUS_OK)
        return status;
    if (t.ndim == 2) {
        if (t.shape[0] != num_seqs)
            return pkv_error_set_axis(where->error, PKV_STATUS_SHAPE, where->function,
                                      where->argument, 0, t.shape[0], num_seqs,
                                      "must be the number of sequences");
        if (t.shape[1] != num_heads)
            return pkv_error_set_axis(where->error, PKV_STATUS_SHAPE, where->function,
                                      where->argument, 1, t.shape[1], num_heads,
                                      "must be the number of heads");
        *to = (struct pkv_task_index){t.data, t.dtype, t.strides[0], t.strides[1]};
        return PKV_STATUS_OK;
    }
    int64_t num_tasks;
    if (!pkv_checked_mul(num_seqs, num_heads, &num_tasks))
        num_tasks = PKV_ERROR_NONE;
    if (t.shape[0] != num_tasks)
        return pkv_error_set_axis(where->error, PKV_STATUS_SHAPE, where->function, where->argument,
                                  0, t.shape[0], num_tasks,
                                  "must be the number of sequences times the number of heads");
    *to = (struct pkv_task_index){t.data, t.dtype, num_heads * t.strides[0], t.strides[0]};
    return PKV_STATUS_OK;
}

/* What compress_lens says about the number of heads. */
static enum pkv_status count_heads(int64_t *num_heads, const struct pkv_tensor *compress_lens,
                                   int64_t num_seqs, const struct pkv_where *where) {
    struct pkv_tensor t;
    const enum pkv_status status = read_tensor(&t, compress_lens, where);
    if (status != PKV_STATUS_OK)
        return status;
    *num_heads = t.ndim == 2 ? t.shape[1] : num_seqs == 0 ? 0 : t.shape[0] / num_seqs;
    return PKV_STATUS_OK;
}

enum pkv_status pkv_compressed_index_read(struct pkv_compressed_index *index, int32_t mode,
                                          const struct pkv_compressed_tensors *tensors,
                                          int64_t num_heads, const char *function,
                                          struct pkv_error *error) {
    const struct pkv_where lens_where = {function, "compress_lens", error};
    const struct pkv_where offsets_where = {function, "compress_seq_offset", error};
    *index = (struct pkv_compressed_index){.mode = mode, .num_heads = num_heads};
    if (pkv_tensor_is_absent(tensors->seq_lens))
        return pkv_refuse_null(function, "seq_lens", error);
    struct pkv_tensor seq_lens;
    enum pkv_status status = pkv_tensor_read_index(
        &seq_lens, tensors->seq_lens, 1, &(struct pkv_where){function, "seq_lens", error});
    if (status != PKV_STATUS_OK)
        return status;
    index->seq_lens = pkv_vector_along(&seq_lens, 0);
    index->num_seqs = seq_lens.shape[0];
    if (num_heads < 0)
        status =
            count_heads(&index->num_heads, tensors->compress_lens, index->num_seqs, &lens_where);
    if (status == PKV_STATUS_OK)
        status = read_tasks(&index->lens, tensors->compress_lens, index->num_seqs, index->num_heads,
                            &lens_where);
    if (status == PKV_STATUS_OK && tensors->slot_mapping)
        status = read_tasks(&index->slots, tensors->slot_mapping, index->num_seqs, index->num_heads,
                            &(struct pkv_where){function, "slot_mapping", error});
    if (status != PKV_STATUS_OK)
        return status;
    if (mode != PKV_SCATTER_MODE_ALIBI)
        return read_tasks(&index->offsets, tensors->compress_seq_offset, index->num_seqs,
                          index->num_heads, &offsets_where);
    if (!pkv_tensor_is_absent(tensors->compress_seq_offset))
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, function, offsets_where.argument,
                             PKV_ERROR_NONE, PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "must not be given in mode Alibi, which keeps the last tokens");
    return PKV_STATUS_OK;
}

/* No window: all tokens as they are, and the other one of the two numbers may be any. */
static bool is_whole(int64_t w, int64_t o, int64_t length) {
    return w == 0 || o == -1 || o == length;
}

/* The numbers of a task: w tokens are kept (Alibi), or make the window that begins at token o. */
static enum pkv_status check_task(const struct pkv_compressed_index *index, int64_t seq,
                                  int64_t head, const char *function, struct pkv_error *error) {
    const int64_t task = seq * index->num_heads + head;
    const int64_t length = pkv_vector_at(&index->seq_lens, seq);
    const int64_t w = pkv_task_at(&index->lens, seq, head);
    if (w < 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "compress_lens", task, w,
                             0, "must be at least");
    const bool has_offset = index->offsets.data != NULL;
    const int64_t o = has_offset ? pkv_task_at(&index->offsets, seq, head) : 0;
    if (has_offset && is_whole(w, o, length))
        return PKV_STATUS_OK;
    if (w > length)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "compress_lens", task, w,
                             length, "must not exceed the length of its sequence");
    if (!has_offset)
        return PKV_STATUS_OK;
    if (o < -1)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "compress_seq_offset",
                             task, o, -1, "must be at least");
    if (o > length - w)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "compress_seq_offset",
                             task, o, length - w,
                             "must not exceed the length of its sequence less that of its window");
    return PKV_STATUS_OK;
}

enum pkv_status pkv_compressed_index_check(const struct pkv_compressed_index *index,
                                           const char *function, struct pkv_error *error) {
    enum pkv_status status = PKV_STATUS_OK;
    for (int64_t seq = 0; seq < index->num_seqs; seq++) {
        const int64_t length = pkv_vector_at(&index->seq_lens, seq);
        if (length < 0)
            return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "seq_lens", seq,
                                 length, 0, "must be at least");
        for (int64_t head = 0; head < index->num_heads && status == PKV_STATUS_OK; head++) {
            if (index->slots.data == NULL || pkv_task_at(&index->slots, seq, head) >= 0)
                status = check_task(index, seq, head, function, error);
        }
    }
    return status;
}

struct pkv_region pkv_compressed_region(const struct pkv_compressed_index *index, int64_t seq,
                                        int64_t head) {
    struct pkv_region region = {0};
    if (index->slots.data)
        region.slot = pkv_task_at(&index->slots, seq, head);
    if (region.slot < 0)
        return region;
    const int64_t length = pkv_vector_at(&index->seq_lens, seq);
    const int64_t w = pkv_task_at(&index->lens, seq, head);
    if (index->mode == PKV_SCATTER_MODE_ALIBI) {
        region.copies[0] = (struct pkv_token_run){length - w, 0, w};
        region.num_rows = w;
        return region;
    }
    const int64_t o = pkv_task_at(&index->offsets, seq, head);
    if (is_whole(w, o, length)) {
        region.copies[0] = (struct pkv_token_run){0, 0, length};
        region.num_rows = length;
        return region;
    }
    const int64_t num_means = index->mode == PKV_SCATTER_MODE_ROPE;
    region.copies[0] = (struct pkv_token_run){0, 0, o};
    region.mean = (struct pkv_token_run){o, o, num_means * w};
    region.copies[1] = (struct pkv_token_run){o + w, o + num_means, length - o - w};
    region.num_rows = length - w + num_means;
    return region;
}

/* The tensor of the query's results: dense enough to be written, apart from what is read, wide
 * enough. */
static enum pkv_status check_output(const struct pkv_compressed_index *index,
                                    const struct pkv_compressed_tensors *tensors,
                                    const struct pkv_tensor *output,
                                    const struct pkv_where *where) {
    struct pkv_tensor resolved;
    enum pkv_status status = pkv_tensor_read(&resolved, output, where);
    if (status != PKV_STATUS_OK)
        return status;
    const struct pkv_strided written = pkv_strided_from_tensor(&resolved);
    if (!pkv_strided_is_injective(&written))
        return pkv_error_set(where->error, PKV_STATUS_STRIDE, where->function, where->argument,
                             PKV_ERROR_NONE, PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "has strides by which elements share bytes, or interleave");
    const struct pkv_tensor *const inputs[] = {tensors->seq_lens, tensors->compress_lens,
                                               tensors->compress_seq_offset};
    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        struct pkv_tensor input;
        if (pkv_tensor_is_absent(inputs[i]))
            continue;
        status = pkv_tensor_read(&input, inputs[i], where);
        if (status != PKV_STATUS_OK)
            return status;
        const struct pkv_strided read = pkv_strided_from_tensor(&input);
        if (pkv_strided_may_overlap(&written, &read))
            return pkv_error_set(where->error, PKV_STATUS_OVERLAP, where->function, where->argument,
                                 PKV_ERROR_NONE, PKV_ERROR_NONE, PKV_ERROR_NONE,
                                 "must not share bytes with an input");
    }
    for (int64_t seq = 0; resolved.dtype == PKV_DTYPE_I32 && seq < index->num_seqs; seq++) {
        for (int64_t head = 0; head < index->num_heads; head++) {
            const int64_t length = pkv_compressed_region(index, seq, head).num_rows;
            if (length > INT32_MAX)
                return pkv_error_set(where->error, PKV_STATUS_OVERFLOW, where->function,
                                     where->argument, seq * index->num_heads + head, length,
                                     INT32_MAX, "must fit its dtype");
        }
    }
    return PKV_STATUS_OK;
}

static void write_lengths(const struct pkv_compressed_index *index,
                          const struct pkv_task_index *output) {
    for (int64_t seq = 0; seq < index->num_seqs; seq++) {
        for (int64_t head = 0; head < index->num_heads; head++) {
            const int64_t length = pkv_compressed_region(index, seq, head).num_rows;
            const int64_t element = seq * output->seq_stride + head * output->head_stride;
            if (output->dtype == PKV_DTYPE_I32)
                ((int32_t *)(uintptr_t)output->data)[element] = (int32_t)length;
            else
                ((int64_t *)(uintptr_t)output->data)[element] = length;
        }
    }
}

enum pkv_status pkv_scatter_compressed_lens(int32_t scatter_mode, const struct pkv_tensor *seq_lens,
                                            const struct pkv_tensor *compress_lens,
                                            const struct pkv_tensor *compress_seq_offset,
                                            const struct pkv_tensor *compressed_lens,
                                            struct pkv_error *error) {
    const struct pkv_where where = {__func__, "compressed_lens", error};
    const struct pkv_compressed_tensors tensors = {NULL, seq_lens, compress_lens,
                                                   compress_seq_offset};
    struct pkv_compressed_index index;
    struct pkv_task_index output;
    if (!pkv_scatter_mode_is_compressed(scatter_mode))
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "scatter_mode",
                             PKV_ERROR_NONE, scatter_mode, PKV_ERROR_NONE,
                             "must be one of the compressed modes of enum pkv_scatter_mode");
    enum pkv_status status =
        pkv_compressed_index_read(&index, scatter_mode, &tensors, -1, __func__, error);
    if (status == PKV_STATUS_OK)
        status = read_tasks(&output, compressed_lens, index.num_seqs, index.num_heads, &where);
    if (status == PKV_STATUS_OK)
        status = pkv_compressed_index_check(&index, __func__, error);
    if (status == PKV_STATUS_OK)
        status = check_output(&index, &tensors, compressed_lens, &where);
    if (status == PKV_STATUS_OK)
        write_lengths(&index, &output);
    return status;
}
