/* SPDX-License-Identifier: MIT
 *
 * The compressed modes of pkv_scatter_pa_kv_cache: everything that is checked before the first byte
 * is written. The indices are read in scatter_compressed_index.c, the rows move in
 * scatter_compressed_move.c.
 */
#include "ops/scatter_compressed.h"

#include "base/checked.h"
#include "base/error.h"
#include "geometry/interval.h"
#include "ops/scatter.h"

static int32_t mean_type_of(int32_t dtype) {
    switch (dtype) {
    case PKV_DTYPE_F32:
        return PKV_MEAN_F32;
    case PKV_DTYPE_F16:
        return PKV_MEAN_F16;
    case PKV_DTYPE_BF16:
        return PKV_MEAN_BF16;
    case PKV_DTYPE_F8_E5M2:
        return PKV_MEAN_F8_E5M2;
    case PKV_DTYPE_F8_E4M3FN:
        return PKV_MEAN_F8_E4M3FN;
    case PKV_DTYPE_I8:
        return PKV_MEAN_I8;
    case PKV_DTYPE_I16:
        return PKV_MEAN_I16;
    case PKV_DTYPE_I32:
        return PKV_MEAN_I32;
    case PKV_DTYPE_U8:
        return PKV_MEAN_U8;
    case PKV_DTYPE_U16:
        return PKV_MEAN_U16;
    case PKV_DTYPE_U32:
        return PKV_MEAN_U32;
    default:
        return PKV_NUM_MEAN_TYPES;
    }
}

static enum pkv_status check_source(const struct pkv_compressed_job *job,
                                    const struct pkv_compressed_side *side,
                                    struct pkv_error *error) {
    const struct pkv_tensor *source = &side->source;
    const char *function = job->function, *name = side->source_name;
    if (source->dtype != side->part->dtype)
        return pkv_error_set(error, PKV_STATUS_DTYPE, function, name, PKV_ERROR_NONE, source->dtype,
                             side->part->dtype, "must have the dtype of its cache");
    if (source->ndim != 3 && source->ndim != 4)
        return pkv_error_set(error, PKV_STATUS_RANK, function, name, PKV_ERROR_NONE, source->ndim,
                             PKV_ERROR_NONE,
                             "must be [num_tokens, num_heads, head_size] or [num_seqs, "
                             "padded_len, num_heads, head_size] in a compressed mode");
    const int32_t last = source->ndim - 1;
    if (source->shape[last] != side->part->head_size)
        return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function, name, last,
                                  source->shape[last], side->part->head_size,
                                  "must be the head size of its cache");
    const struct pkv_tensor *key = &job->sides[0].source;
    if (source->ndim != key->ndim)
        return pkv_error_set(error, PKV_STATUS_RANK, function, name, PKV_ERROR_NONE, source->ndim,
                             key->ndim, "must have as many dimensions as key");
    for (int32_t i = 0; i < last; i++) {
        if (source->shape[i] != key->shape[i])
            return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function, name, i, source->shape[i],
                                      key->shape[i], "must be that of key");
    }
    return PKV_STATUS_OK;
}

/* Adds keys or values; keys first. */
static enum pkv_status add_side(struct pkv_compressed_job *job, const struct pkv_cache_part *part,
                                const struct pkv_tensor *source, const char *name,
                                struct pkv_error *error) {
    struct pkv_compressed_side *side = &job->sides[job->num_sides++];
    *side = (struct pkv_compressed_side){
        .part = part, .source_name = name, .mean_type = mean_type_of(part->dtype)};
    if (part->num_heads != 1)
        return pkv_error_set_axis(error, PKV_STATUS_SHAPE, job->function,
                                  part == &job->cache->key ? "key_cache" : "value_cache", 2,
                                  part->num_heads, 1,
                                  "must be in a compressed mode, where each region has one head");
    enum pkv_status status =
        pkv_tensor_read(&side->source, source, &(struct pkv_where){job->function, name, error});
    if (status == PKV_STATUS_OK)
        status = check_source(job, side, error);
    if (status != PKV_STATUS_OK)
        return status;
    const struct pkv_tensor *t = &side->source;
    const int32_t token_axis = t->ndim - 3;
    const int64_t shape[3] = {t->shape[token_axis], 1, part->head_size};
    side->tokens = pkv_tensor_make(t->data, t->dtype, 3, shape);
    side->tokens.strides[0] = t->strides[token_axis];
    side->tokens.strides[2] = t->strides[token_axis + 2];
    side->seq_stride = t->ndim == 4 ? t->strides[0] * part->element_bytes : 0;
    side->head_stride = t->strides[token_axis + 1] * part->element_bytes;
    side->channel_stride = part->head_size == 1 ? part->element_bytes
                                                : t->strides[token_axis + 2] * part->element_bytes;
    const struct pkv_row_shape to = pkv_row_shape_of_part(part);
    const struct pkv_row_shape from = pkv_row_shape_of_tensor(&side->tokens);
    side->mover = (struct pkv_row_mover){
        .kernels = &job->context->kernels,
        .dst = part->data,
        .src = t->data,
        .dst_row_stride = part->token_stride_bytes,
        .src_row_stride = side->tokens.strides[0] * part->element_bytes,
    };
    pkv_copy_nest_init(&side->mover.nest, &to, &from);
    return PKV_STATUS_OK;
}

/* The lengths of the sequences against the tokens of key; negative ones are refused elsewhere. */
static enum pkv_status check_seq_lens(const struct pkv_compressed_job *job,
                                      struct pkv_error *error) {
    const struct pkv_tensor *key = &job->sides[0].source;
    const struct pkv_vector *seq_lens = &job->index.seq_lens;
    if (job->is_padded && key->shape[0] != seq_lens->count)
        return pkv_error_set_axis(error, PKV_STATUS_SHAPE, job->function, "key", 0, key->shape[0],
                                  seq_lens->count, "must be the number of sequences");
    int64_t sum = 0;
    for (int64_t seq = 0; seq < seq_lens->count; seq++) {
        const int64_t length = pkv_vector_at(seq_lens, seq);
        if (job->is_padded && length > key->shape[1])
            return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, job->function, "seq_lens", seq,
                                 length, key->shape[1], "must not exceed the padded length of key");
        /* A sum that does not fit is too large in any case. */
        if (!pkv_checked_add(sum, length, &sum))
            sum = INT64_MAX;
    }
    if (!job->is_padded && sum != key->shape[0])
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, job->function, "seq_lens",
                             PKV_ERROR_NONE, sum, key->shape[0],
                             "must have the number of tokens of key as its sum");
    return PKV_STATUS_OK;
}

/* int64 holds the sum of so many 32-bit numbers; nobody has a longer sequence. */
enum { MAX_INTEGER_WINDOW = INT32_MAX };

/* A window whose mean the dtype cannot have. */
static enum pkv_status check_mean(const struct pkv_compressed_job *job,
                                  const struct pkv_region *region, int64_t task,
                                  struct pkv_error *error) {
    for (int32_t i = 0; i < job->num_sides && region->mean.num_tokens > 0; i++) {
        if (job->sides[i].mean_type == PKV_NUM_MEAN_TYPES)
            return pkv_error_set(error, PKV_STATUS_UNSUPPORTED, job->function, "compress_lens",
                                 task, region->mean.num_tokens, PKV_ERROR_NONE,
                                 "asks for a mean, which hifloat8 has no rule for");
        if (job->sides[i].mean_type >= PKV_NUM_MEAN_FLOATS &&
            region->mean.num_tokens > MAX_INTEGER_WINDOW)
            return pkv_error_set(error, PKV_STATUS_OVERFLOW, job->function, "compress_lens", task,
                                 region->mean.num_tokens, MAX_INTEGER_WINDOW,
                                 "must not exceed what the sum of integers has room for");
    }
    return PKV_STATUS_OK;
}

/* Every region lies in the cache, and its window has a mean. */
static enum pkv_status check_regions(const struct pkv_compressed_job *job,
                                     struct pkv_error *error) {
    const struct pkv_compressed_index *index = &job->index;
    const int64_t num_slots = job->cache->num_slots;
    enum pkv_status status = PKV_STATUS_OK;
    for (int64_t seq = 0; seq < index->num_seqs; seq++) {
        for (int64_t head = 0; head < index->num_heads && status == PKV_STATUS_OK; head++) {
            const int64_t task = seq * index->num_heads + head;
            const struct pkv_region region = pkv_compressed_region(index, seq, head);
            if (region.slot > num_slots - region.num_rows)
                return pkv_error_set(error, PKV_STATUS_SLOT_OUT_OF_RANGE, job->function,
                                     "slot_mapping", task, region.slot, num_slots - region.num_rows,
                                     "must leave room for its region in the cache, and so not "
                                     "exceed");
            status = check_mean(job, &region, task, error);
        }
    }
    return status;
}

static void begins_of_tasks(const void *arg, int64_t first, int64_t count, int64_t *begins) {
    const struct pkv_compressed_index *index = arg;
    int64_t seq = first / index->num_heads, head = first % index->num_heads;
    for (int64_t i = 0; i < count; i++) {
        begins[i] = pkv_task_at(&index->slots, seq, head);
        if (++head == index->num_heads) {
            head = 0;
            seq++;
        }
    }
}

static int64_t end_of_task(const void *arg, int64_t task) {
    const struct pkv_compressed_index *index = arg;
    const struct pkv_region region =
        pkv_compressed_region(index, task / index->num_heads, task % index->num_heads);
    return region.slot + region.num_rows;
}

static enum pkv_status check_regions_apart(const struct pkv_compressed_job *job,
                                           struct pkv_error *error) {
    const struct pkv_compressed_index *index = &job->index;
    const struct pkv_interval_list list = {index, index->num_seqs * index->num_heads,
                                           begins_of_tasks, end_of_task};
    int64_t earlier, later, slot;
    if (!pkv_intervals_find_overlap(&list, &earlier, &later))
        return PKV_STATUS_OK;
    begins_of_tasks(index, later, 1, &slot);
    return pkv_error_set(error, PKV_STATUS_OVERLAP, job->function, "slot_mapping", later, slot,
                         earlier,
                         "must not lie in the region of another entry, as it does in that of");
}

/* Counts the work. Regions lie in the cache, apart from each other, and windows in key: the sums
 * fit. */
static void count_work(struct pkv_compressed_job *job) {
    const struct pkv_compressed_index *index = &job->index;
    uint64_t num_rows = 0;
    for (int64_t seq = 0; seq < index->num_seqs; seq++) {
        for (int64_t head = 0; head < index->num_heads; head++) {
            const struct pkv_region region = pkv_compressed_region(index, seq, head);
            job->num_averaged += region.mean.num_tokens;
            job->num_copies += region.copies[0].num_tokens + region.copies[1].num_tokens;
            num_rows += (uint64_t)region.num_rows;
        }
    }
    for (int32_t i = 0; i < job->num_sides; i++)
        job->num_bytes += num_rows * (uint64_t)job->sides[i].part->row_bytes;
}

/* Whether a region, which may run over the ends of blocks, shares bytes with a set. */
static bool region_meets(const struct pkv_cache_part *part, int64_t block_size,
                         const struct pkv_region *region, const struct pkv_strided *set) {
    int64_t slot = region->slot;
    for (int64_t rest = region->num_rows, count; rest > 0; rest -= count, slot += count) {
        const int64_t room = block_size - slot % block_size;
        int64_t num_blocks = 1, num_rows = rest < room ? rest : room;
        if (pkv_cache_part_is_flat(part, block_size))
            num_rows = rest;
        else if (room == block_size && rest >= block_size)
            num_blocks = rest / block_size;
        struct pkv_strided rows =
            pkv_cache_part_row_bytes(part, pkv_cache_part_offset(part, block_size, slot));
        pkv_strided_add(&rows, num_rows, part->token_stride_bytes);
        pkv_strided_add(&rows, num_blocks, part->block_stride_bytes);
        if (pkv_strided_may_overlap(&rows, set))
            return true;
        count = num_blocks * num_rows;
    }
    return false;
}

/* The regions of one part against one tensor that is read. */
static enum pkv_status check_read(const struct pkv_compressed_job *job,
                                  const struct pkv_cache_part *part,
                                  const struct pkv_tensor *tensor, const char *name,
                                  struct pkv_error *error) {
    const struct pkv_compressed_index *index = &job->index;
    const struct pkv_strided read = pkv_strided_from_tensor(tensor);
    const struct pkv_strided all =
        pkv_cache_part_bytes(part, job->cache->num_blocks, job->cache->block_size);
    if (!pkv_strided_may_overlap(&all, &read))
        return PKV_STATUS_OK;
    for (int64_t seq = 0; seq < index->num_seqs; seq++) {
        for (int64_t head = 0; head < index->num_heads; head++) {
            const struct pkv_region region = pkv_compressed_region(index, seq, head);
            if (region_meets(part, job->cache->block_size, &region, &read))
                return pkv_error_set(error, PKV_STATUS_OVERLAP, job->function, name, PKV_ERROR_NONE,
                                     PKV_ERROR_NONE, seq * index->num_heads + head,
                                     "must not share bytes with a row that is written, as do those "
                                     "of the region");
        }
    }
    return PKV_STATUS_OK;
}

static enum pkv_status check_reads(const struct pkv_compressed_job *job,
                                   const struct pkv_compressed_tensors *tensors,
                                   struct pkv_error *error) {
    const struct {
        const char *name;
        const struct pkv_tensor *tensor;
    } reads[] = {
        {"key", &job->sides[0].source},
        {"value", job->num_sides > 1 ? &job->sides[1].source : NULL},
        {"slot_mapping", tensors->slot_mapping},
        {"seq_lens", tensors->seq_lens},
        {"compress_lens", tensors->compress_lens},
        {"compress_seq_offset", tensors->compress_seq_offset},
    };
    for (size_t i = 0; i < sizeof(reads) / sizeof(reads[0]); i++) {
        struct pkv_tensor tensor;
        if (pkv_tensor_is_absent(reads[i].tensor))
            continue;
        enum pkv_status status = pkv_tensor_read(
            &tensor, reads[i].tensor, &(struct pkv_where){job->function, reads[i].name, error});
        for (int32_t side = 0; side < job->num_sides && status == PKV_STATUS_OK; side++)
            status = check_read(job, job->sides[side].part, &tensor, reads[i].name, error);
        if (status != PKV_STATUS_OK)
            return status;
    }
    return PKV_STATUS_OK;
}

static enum pkv_status check_layouts(const struct pkv_compressed_job *job,
                                     const struct pkv_scatter_pa_kv_cache_options *options,
                                     struct pkv_error *error) {
    const int32_t layouts[2] = {options->key_layout, options->value_layout};
    static const char *const names[2] = {"options->key_layout", "options->value_layout"};
    for (int32_t i = 0; i < (job->cache->value.data ? 2 : 1); i++) {
        if (layouts[i] != PKV_LAYOUT_NHD)
            return pkv_error_set(error, PKV_STATUS_UNSUPPORTED, job->function, names[i],
                                 PKV_ERROR_NONE, layouts[i], PKV_LAYOUT_NHD,
                                 "must be NHD in a compressed mode");
    }
    return PKV_STATUS_OK;
}

enum pkv_status pkv_scatter_compressed(struct pkv_context *context, const struct pkv_cache *cache,
                                       const struct pkv_tensor *key, const struct pkv_tensor *value,
                                       const struct pkv_tensor *slot_mapping,
                                       const struct pkv_scatter_pa_kv_cache_options *options,
                                       const char *function, struct pkv_error *error) {
    struct pkv_compressed_job job = {.context = context, .function = function, .cache = cache};
    const struct pkv_compressed_tensors tensors = {
        slot_mapping, options->seq_lens, options->compress_lens, options->compress_seq_offset};
    enum pkv_status status = check_layouts(&job, options, error);
    if (status == PKV_STATUS_OK)
        status = add_side(&job, &cache->key, key, "key", error);
    if (status == PKV_STATUS_OK && cache->value.data)
        status = add_side(&job, &cache->value, value, "value", error);
    if (status != PKV_STATUS_OK)
        return status;
    const struct pkv_tensor *source = &job.sides[0].source;
    job.is_padded = source->ndim == 4;
    status = pkv_compressed_index_read(&job.index, options->scatter_mode, &tensors,
                                       source->shape[source->ndim - 2], function, error);
    if (status == PKV_STATUS_OK)
        status = pkv_compressed_index_check(&job.index, function, error);
    if (status == PKV_STATUS_OK)
        status = check_seq_lens(&job, error);
    if (status == PKV_STATUS_OK)
        status = check_regions(&job, error);
    if (status == PKV_STATUS_OK)
        status = check_regions_apart(&job, error);
    if (status == PKV_STATUS_OK)
        status = check_reads(&job, &tensors, error);
    if (status != PKV_STATUS_OK)
        return status;
    count_work(&job);
    for (int32_t i = 0; i < job.num_sides; i++)
        job.sides[i].mover.kind = pkv_scatter_copy_kind(options->store_policy, job.num_bytes);
    return pkv_compressed_job_run(&job, error);
}
