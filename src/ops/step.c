/* SPDX-License-Identifier: MIT
 *
 * Making steps, checking their indices, dividing their work.
 */
#include "ops/step.h"

#include <string.h>

#include "base/allocator.h"
#include "base/error.h"
#include "geometry/cache.h"
#include "ops/rows.h"

enum { STEP_ALIGNMENT = 64 };

static enum pkv_status read_options(struct pkv_step_options *to,
                                    const struct pkv_step_options *options, const char *function,
                                    struct pkv_error *error) {
    const enum pkv_status status =
        pkv_struct_read(to, sizeof(*to), options, function, "options", error);
    if (status != PKV_STATUS_OK)
        return status;
    if (to->max_tokens < 0 || to->max_seqs < 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function,
                             to->max_tokens < 0 ? "options->max_tokens" : "options->max_seqs",
                             PKV_ERROR_NONE, to->max_tokens < 0 ? to->max_tokens : to->max_seqs, 0,
                             "must be at least");
    return PKV_STATUS_OK;
}

/* Without a limit there is no memory to look for repeats in. */
static int64_t max_distinct(const struct pkv_step_options *options) {
    return options->max_tokens < PKV_DISTINCT_MAX_NUMBERS ? options->max_tokens
                                                          : PKV_DISTINCT_MAX_NUMBERS;
}

static size_t memory_size(const struct pkv_step_options *options) {
    return sizeof(struct pkv_step) + (size_t)pkv_distinct_bytes(max_distinct(options));
}

size_t pkv_step_memory_size(const struct pkv_step_options *options) {
    struct pkv_step_options chosen;
    return read_options(&chosen, options, __func__, NULL) == PKV_STATUS_OK ? memory_size(&chosen)
                                                                           : 0;
}

static void step_init(struct pkv_step *step, const struct pkv_step_options *options) {
    memset(step, 0, sizeof(*step));
    step->max_tokens = options->max_tokens;
    step->max_seqs = options->max_seqs;
    pkv_distinct_init(&step->distinct, step + 1, max_distinct(options));
}

enum pkv_status pkv_step_create(struct pkv_step **step, const struct pkv_step_options *options,
                                struct pkv_error *error) {
    if (step == NULL)
        return pkv_refuse_null(__func__, "step", error);
    *step = NULL;
    struct pkv_step_options chosen;
    const enum pkv_status status = read_options(&chosen, options, __func__, error);
    if (status != PKV_STATUS_OK)
        return status;
    const struct pkv_allocator allocator = pkv_allocator_resolve(chosen.allocator);
    if (allocator.alloc == NULL)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "options->allocator",
                             PKV_ERROR_NONE, PKV_ERROR_NONE, PKV_ERROR_NONE,
                             "must have both alloc and free, or neither");
    const size_t bytes = memory_size(&chosen);
    struct pkv_step *made = pkv_alloc(&allocator, bytes, STEP_ALIGNMENT);
    if (made == NULL)
        return pkv_error_set(error, PKV_STATUS_OUT_OF_MEMORY, __func__, NULL, PKV_ERROR_NONE,
                             PKV_ERROR_NONE, (int64_t)bytes,
                             "the allocator has no memory of that many bytes");
    step_init(made, &chosen);
    made->allocator = allocator;
    made->owns_memory = true;
    *step = made;
    return PKV_STATUS_OK;
}

enum pkv_status pkv_step_create_in(struct pkv_step **step, void *memory, size_t memory_bytes,
                                   const struct pkv_step_options *options,
                                   struct pkv_error *error) {
    if (step)
        *step = NULL;
    if (step == NULL || memory == NULL)
        return pkv_refuse_null(__func__, step == NULL ? "step" : "memory", error);
    struct pkv_step_options chosen;
    const enum pkv_status status = read_options(&chosen, options, __func__, error);
    if (status != PKV_STATUS_OK)
        return status;
    if ((uintptr_t)memory % STEP_ALIGNMENT != 0)
        return pkv_error_set(error, PKV_STATUS_MISALIGNED, __func__, "memory", PKV_ERROR_NONE,
                             PKV_ERROR_NONE, STEP_ALIGNMENT, "must be aligned to that many bytes");
    if (memory_bytes < memory_size(&chosen))
        return pkv_error_set(error, PKV_STATUS_CAPACITY, __func__, "memory_bytes", PKV_ERROR_NONE,
                             (int64_t)memory_bytes, (int64_t)memory_size(&chosen),
                             "must be at least pkv_step_memory_size");
    step_init(memory, &chosen);
    *step = memory;
    return PKV_STATUS_OK;
}

void pkv_step_destroy(struct pkv_step *step) {
    if (step == NULL || !step->owns_memory)
        return;
    const struct pkv_allocator allocator = step->allocator;
    pkv_free(&allocator, step);
}

/* Shell's sort: a few hundred numbers, no memory, no recursion; the gaps are Ciura's. */
static void sort_samples(int64_t *samples, int32_t count) {
    static const int32_t gaps[] = {132, 57, 23, 10, 4, 1};
    for (size_t g = 0; g < sizeof(gaps) / sizeof(gaps[0]); g++) {
        const int32_t gap = gaps[g];
        for (int32_t i = gap; i < count; i++) {
            const int64_t sample = samples[i];
            int32_t j = i;
            for (; j >= gap && samples[j - gap] > sample; j -= gap)
                samples[j] = samples[j - gap];
            samples[j] = sample;
        }
    }
}

/* A small step is not worth a finer division. */
enum { TOKENS_PER_SAMPLE = 16 };

static void take_samples(struct pkv_step *step) {
    const int64_t count = step->slots.count;
    int64_t wanted = count / TOKENS_PER_SAMPLE;
    if (wanted > PKV_STEP_MAX_SAMPLES)
        wanted = PKV_STEP_MAX_SAMPLES;
    for (int64_t i = 0; i < wanted; i++) {
        /* i * count / wanted without the product, which may not fit. */
        const int64_t token = i * (count / wanted) + i * (count % wanted) / wanted;
        const int64_t slot = pkv_vector_at(&step->slots, token);
        if (slot >= 0)
            step->samples[step->num_samples++] = slot;
    }
    sort_samples(step->samples, step->num_samples);
}

struct pkv_slot_part pkv_step_divide_slots(const struct pkv_step *step, int64_t part,
                                           int64_t num_parts) {
    const int64_t count = step->slots.count;
    struct pkv_slot_part all = {0, count, 0, INT64_MAX};
    if (step->slots_are_unique) {
        pkv_rows_share(count, part, num_parts, &all.first_token, &all.end_token);
        return all;
    }
    /* Quantile k of the samples is the border between parts k - 1 and k; more parts than samples
     * leave some parts empty. */
    const int64_t num_samples = step->num_samples;
    const int64_t scale = num_parts > num_samples ? 1 : num_parts;
    const int64_t k = num_parts > num_samples ? part : part * num_samples / scale;
    const int64_t next = num_parts > num_samples ? part + 1 : (part + 1) * num_samples / scale;
    all.low = part == 0 ? 0 : k < num_samples ? step->samples[k] : INT64_MAX;
    all.high = part == num_parts - 1 || next >= num_samples ? INT64_MAX : step->samples[next];
    return all;
}

enum pkv_status pkv_step_check_duplicates(int32_t duplicates, const char *argument,
                                          const char *function, struct pkv_error *error) {
    if (duplicates < PKV_DUPLICATES_LAST_WINS || duplicates > PKV_DUPLICATES_ASSUME_UNIQUE)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, argument, PKV_ERROR_NONE,
                             duplicates, PKV_ERROR_NONE, "must be one of enum pkv_duplicates");
    return PKV_STATUS_OK;
}

/* Steps of fewer tokens are rarely divided: of 4 KiB each they make two parts. */
enum { MIN_DIVIDED_TOKENS = 256 };

enum pkv_status pkv_step_check_slots(struct pkv_step *step, const struct pkv_kernels *kernels,
                                     int32_t duplicates, const struct pkv_where *where) {
    const struct pkv_vector *slots = &step->slots;
    const int64_t num_slots = step->num_blocks * step->block_size;
    step->has_slots = true;
    step->slots_are_unique = duplicates == PKV_DUPLICATES_ASSUME_UNIQUE;
    step->num_samples = 0;
    const int64_t bad = kernels->check_slots[pkv_step_slot_type(step)](slots->data, slots->stride,
                                                                       slots->count, num_slots);
    if (bad < slots->count)
        return pkv_error_set(where->error, PKV_STATUS_SLOT_OUT_OF_RANGE, where->function,
                             where->argument, bad, pkv_vector_at(slots, bad), num_slots,
                             "must be below the number of slots");
    if (!step->slots_are_unique && slots->count >= MIN_DIVIDED_TOKENS)
        step->slots_are_unique = pkv_distinct_prove(&step->distinct, slots);
    if (duplicates == PKV_DUPLICATES_REJECT && !step->slots_are_unique) {
        const int64_t repeat = pkv_vector_find_repeat(slots);
        if (repeat >= 0)
            return pkv_error_set(where->error, PKV_STATUS_DUPLICATE_SLOT, where->function,
                                 where->argument, repeat, pkv_vector_at(slots, repeat),
                                 PKV_ERROR_NONE,
                                 "must not name a slot that an earlier token names");
        step->slots_are_unique = true;
    }
    if (!step->slots_are_unique && slots->count >= TOKENS_PER_SAMPLE)
        take_samples(step);
    return PKV_STATUS_OK;
}

int64_t pkv_step_seq_len(const struct pkv_step *step, int64_t b) {
    const int64_t length = pkv_vector_at(&step->seq_lens, b);
    return step->seq_lens_cumulative ? pkv_vector_at(&step->seq_lens, b + 1) - length : length;
}

int64_t pkv_step_seq_offset(const struct pkv_step *step, int64_t b) {
    return step->seq_offsets.data ? pkv_vector_at(&step->seq_offsets, b) : 0;
}

int64_t pkv_step_seq_end(const struct pkv_step *step, int64_t b) {
    return pkv_step_seq_offset(step, b) + pkv_step_seq_len(step, b);
}

int64_t pkv_step_query_start(const struct pkv_step *step, int64_t b) {
    return pkv_vector_at(&step->query_start_loc, b);
}

struct pkv_vector pkv_step_table_row(const struct pkv_step *step, int64_t b) {
    return pkv_vector_offset(&step->table_row, b * step->table_row_stride);
}

/* The entries of one sequence that a gather or attention reads. */
static enum pkv_status check_sequence(const struct pkv_step *step, int64_t b, int64_t offset,
                                      int64_t length, const char *function,
                                      struct pkv_error *error) {
    const int64_t width = step->table_row.count;
    if (length == 0)
        return PKV_STATUS_OK;
    const int64_t last = (offset + length - 1) / step->block_size;
    if (last >= width) {
        const int64_t room = width * step->block_size;
        if (offset >= room)
            return pkv_error_set(error, PKV_STATUS_POSITION_OUT_OF_RANGE, function, "seq_offsets",
                                 b, offset, room, "must be below the tokens of a block table row");
        /* Of a running total the bound is one, too. */
        const int64_t before = step->seq_lens_cumulative ? pkv_vector_at(&step->seq_lens, b) : 0;
        return pkv_error_set(error, PKV_STATUS_POSITION_OUT_OF_RANGE, function, "seq_lens",
                             b + step->seq_lens_cumulative, before + length,
                             before + (room - offset),
                             "must not reach beyond its block table row, which has room for");
    }
    const struct pkv_vector row = pkv_step_table_row(step, b);
    const int64_t bad =
        pkv_vector_find_outside(&row, offset / step->block_size, last + 1, step->num_blocks);
    if (bad <= last)
        return pkv_error_set(error, PKV_STATUS_BLOCK_OUT_OF_RANGE, function, "block_table",
                             b * width + bad, pkv_vector_at(&row, bad), step->num_blocks,
                             "must lie between 0 and the number of blocks");
    return PKV_STATUS_OK;
}

static enum pkv_status check_lengths(struct pkv_step *step, const char *function,
                                     struct pkv_error *error) {
    if (step->seq_lens_cumulative && pkv_vector_at(&step->seq_lens, 0) != 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "seq_lens", 0,
                             pkv_vector_at(&step->seq_lens, 0), 0, "must start its totals at");
    for (int64_t b = 0; b < step->num_seqs; b++) {
        const int64_t at = b + step->seq_lens_cumulative;
        const int64_t offset = pkv_step_seq_offset(step, b);
        if (offset < 0)
            return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "seq_offsets", b,
                                 offset, 0, "must be at least");
        /* Totals start at 0 and have not fallen so far, so the difference of two of them fits. */
        if (step->seq_lens_cumulative &&
            pkv_vector_at(&step->seq_lens, at) < pkv_vector_at(&step->seq_lens, b))
            return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "seq_lens", at,
                                 pkv_vector_at(&step->seq_lens, at),
                                 pkv_vector_at(&step->seq_lens, b),
                                 "must not fall below the total before it");
        const int64_t length = pkv_step_seq_len(step, b);
        if (length < 0)
            return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "seq_lens", at,
                                 length, 0, "must be at least");
        if (length > INT64_MAX - offset || length > INT64_MAX - step->num_gather_tokens)
            return pkv_error_set(error, PKV_STATUS_OVERFLOW, function, "seq_lens", at,
                                 pkv_vector_at(&step->seq_lens, at), PKV_ERROR_NONE,
                                 "must keep all positions and the sum in 64 bits");
        const enum pkv_status status = check_sequence(step, b, offset, length, function, error);
        if (status != PKV_STATUS_OK)
            return status;
        step->num_gather_tokens += length;
    }
    return PKV_STATUS_OK;
}

static enum pkv_status set_gather(struct pkv_step *step, const struct pkv_step_indices *indices,
                                  const char *function, struct pkv_error *error) {
    struct pkv_tensor table, lengths, offsets;
    enum pkv_status status = pkv_tensor_read_index(
        &table, &indices->block_table, 2, &(struct pkv_where){function, "block_table", error});
    if (status == PKV_STATUS_OK)
        status = pkv_tensor_read_index(&lengths, &indices->seq_lens, 1,
                                       &(struct pkv_where){function, "seq_lens", error});
    const bool has_offsets = !pkv_tensor_is_absent(&indices->seq_offsets);
    if (status == PKV_STATUS_OK && has_offsets)
        status = pkv_tensor_read_index(&offsets, &indices->seq_offsets, 1,
                                       &(struct pkv_where){function, "seq_offsets", error});
    if (status != PKV_STATUS_OK)
        return status;
    step->num_seqs = table.shape[0];
    step->seq_lens_cumulative = indices->seq_lens_cumulative == 1;
    if (step->max_seqs != 0 && step->num_seqs > step->max_seqs)
        return pkv_error_set(error, PKV_STATUS_CAPACITY, function, "block_table", PKV_ERROR_NONE,
                             step->num_seqs, step->max_seqs,
                             "has more sequences than the step was created for");
    /* A table without columns may have any number of rows; more than there are entries of seq_lens
     * are none. */
    const int64_t lengths_for = lengths.shape[0] - step->seq_lens_cumulative;
    if (lengths_for != step->num_seqs)
        return pkv_error_set_axis(
            error, PKV_STATUS_SHAPE, function, "seq_lens", 0, lengths.shape[0],
            step->num_seqs + (step->seq_lens_cumulative && step->num_seqs < INT64_MAX),
            step->seq_lens_cumulative ? "must be one more than the sequences of block_table"
                                      : "must be the number of sequences of block_table");
    if (has_offsets && offsets.shape[0] != step->num_seqs)
        return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function, "seq_offsets", 0,
                                  offsets.shape[0], step->num_seqs,
                                  "must be the number of sequences of block_table");
    step->table_row = pkv_vector_along(&table, 1);
    step->table_row_stride = table.strides[0];
    step->seq_lens = pkv_vector_along(&lengths, 0);
    if (has_offsets)
        step->seq_offsets = pkv_vector_along(&offsets, 0);
    step->has_gather = true;
    return check_lengths(step, function, error);
}

static enum pkv_status check_query_lens(struct pkv_step *step, const char *function,
                                        struct pkv_error *error) {
    const char *const name = "query_start_loc";
    if (pkv_step_query_start(step, 0) != 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, name, 0,
                             pkv_step_query_start(step, 0), 0, "must start its totals at");
    for (int64_t b = 0; b < step->num_seqs; b++) {
        const int64_t start = pkv_step_query_start(step, b),
                      end = pkv_step_query_start(step, b + 1);
        const int64_t seq_len = pkv_step_seq_len(step, b);
        if (end < start)
            return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, name, b + 1, end,
                                 start, "must not fall below the total before it");
        if (end - start > seq_len)
            return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, name, b + 1, end,
                                 start + seq_len,
                                 "must not give a sequence more queries than tokens: at most");
    }
    step->num_queries = pkv_step_query_start(step, step->num_seqs);
    if (step->max_tokens != 0 && step->num_queries > step->max_tokens)
        return pkv_error_set(error, PKV_STATUS_CAPACITY, function, name, PKV_ERROR_NONE,
                             step->num_queries, step->max_tokens,
                             "has more tokens than the step was created for");
    return PKV_STATUS_OK;
}

/* Every sequence has the first one's entries for the shared tokens. */
static enum pkv_status check_shared(struct pkv_step *step, int64_t num_shared, const char *function,
                                    struct pkv_error *error) {
    if (num_shared < 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "num_shared_tokens",
                             PKV_ERROR_NONE, num_shared, 0, "must be at least");
    const int64_t num_entries =
        num_shared / step->block_size + (num_shared % step->block_size != 0);
    const struct pkv_vector first = pkv_step_table_row(step, 0);
    for (int64_t b = 0; b < step->num_seqs && num_shared > 0; b++) {
        const struct pkv_vector row = pkv_step_table_row(step, b);
        if (num_shared > pkv_step_seq_len(step, b))
            return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "num_shared_tokens",
                                 PKV_ERROR_NONE, num_shared, pkv_step_seq_len(step, b),
                                 "must not be more than the tokens of any sequence");
        for (int64_t i = 0; i < num_entries; i++) {
            if (pkv_vector_at(&row, i) != pkv_vector_at(&first, i))
                return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "block_table",
                                     b * row.count + i, pkv_vector_at(&row, i),
                                     pkv_vector_at(&first, i),
                                     "must be the first sequence's entry: its tokens are shared");
        }
    }
    step->num_shared_tokens = num_shared;
    return PKV_STATUS_OK;
}

static enum pkv_status set_queries(struct pkv_step *step, const struct pkv_step_indices *indices,
                                   const char *function, struct pkv_error *error) {
    struct pkv_tensor totals;
    enum pkv_status status =
        pkv_tensor_read_index(&totals, &indices->query_start_loc, 1,
                              &(struct pkv_where){function, "query_start_loc", error});
    if (status != PKV_STATUS_OK)
        return status;
    if (step->seq_offsets.data && indices->num_shared_tokens != 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "seq_offsets",
                             PKV_ERROR_NONE, indices->num_shared_tokens, PKV_ERROR_NONE,
                             "must be absent where num_shared_tokens is not 0");
    if (totals.shape[0] != step->num_seqs + 1)
        return pkv_error_set_axis(error, PKV_STATUS_SHAPE, function, "query_start_loc", 0,
                                  totals.shape[0], step->num_seqs + 1,
                                  "must be one more than the sequences of block_table");
    step->query_start_loc = pkv_vector_along(&totals, 0);
    step->has_queries = true;
    status = check_query_lens(step, function, error);
    return status == PKV_STATUS_OK ? check_shared(step, indices->num_shared_tokens, function, error)
                                   : status;
}

static void clear(struct pkv_step *step) {
    step->is_set = false;
    step->has_queries = false;
    step->num_queries = 0;
    step->num_shared_tokens = 0;
    step->has_gather = false;
    step->has_slots = false;
    step->seq_offsets = (struct pkv_vector){0};
    step->num_gather_tokens = 0;
}

static enum pkv_status set(struct pkv_step *step, const struct pkv_kernels *kernels,
                           const struct pkv_step_indices *indices, const char *function,
                           struct pkv_error *error) {
    const enum pkv_status known =
        pkv_step_check_duplicates(indices->duplicates, "duplicates", function, error);
    if (known != PKV_STATUS_OK)
        return known;
    if (indices->seq_lens_cumulative != 0 && indices->seq_lens_cumulative != 1)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "seq_lens_cumulative",
                             PKV_ERROR_NONE, indices->seq_lens_cumulative, PKV_ERROR_NONE,
                             "must be 0 or 1");
    if (!pkv_tensor_is_absent(&indices->slot_mapping)) {
        const struct pkv_where where = {function, "slot_mapping", error};
        struct pkv_tensor tensor;
        enum pkv_status status = pkv_tensor_read_index(&tensor, &indices->slot_mapping, 1, &where);
        if (status != PKV_STATUS_OK)
            return status;
        if (step->max_tokens != 0 && tensor.shape[0] > step->max_tokens)
            return pkv_error_set(error, PKV_STATUS_CAPACITY, function, "slot_mapping",
                                 PKV_ERROR_NONE, tensor.shape[0], step->max_tokens,
                                 "has more tokens than the step was created for");
        step->slots = pkv_vector_along(&tensor, 0);
        status = pkv_step_check_slots(step, kernels, indices->duplicates, &where);
        if (status != PKV_STATUS_OK)
            return status;
    }
    const bool has_table = !pkv_tensor_is_absent(&indices->block_table);
    const bool has_lengths = !pkv_tensor_is_absent(&indices->seq_lens);
    const bool has_offsets = !pkv_tensor_is_absent(&indices->seq_offsets);
    const bool has_queries = !pkv_tensor_is_absent(&indices->query_start_loc);
    if (!has_table && (has_lengths || has_offsets || has_queries))
        return pkv_refuse_null(function, "block_table", error);
    if (has_table && !has_lengths)
        return pkv_refuse_null(function, "seq_lens", error);
    if (!has_queries && indices->num_shared_tokens != 0)
        return pkv_refuse_null(function, "query_start_loc", error);
    enum pkv_status status = PKV_STATUS_OK;
    if (has_table)
        status = set_gather(step, indices, function, error);
    if (status == PKV_STATUS_OK && has_queries)
        status = set_queries(step, indices, function, error);
    return status;
}

enum pkv_status pkv_step_set_indices(struct pkv_step *step, const struct pkv_kernels *kernels,
                                     int64_t num_blocks, int64_t block_size,
                                     const struct pkv_step_indices *indices, const char *function,
                                     struct pkv_error *error) {
    clear(step);
    step->num_blocks = num_blocks;
    step->block_size = block_size;
    const enum pkv_status status = set(step, kernels, indices, function, error);
    if (status == PKV_STATUS_OK)
        step->is_set = true;
    else
        clear(step);
    return status;
}

enum pkv_status pkv_step_set(struct pkv_context *context, struct pkv_step *step,
                             const struct pkv_cache *cache, const struct pkv_step_indices *indices,
                             struct pkv_error *error) {
    struct pkv_error facts;
    struct pkv_step_indices read;
    /* Today's struct is read where it is: its four tensors outweigh everything else in a small
     * step. */
    const bool is_current = indices && indices->struct_size == sizeof(*indices);
    const struct pkv_step_indices *known = is_current ? indices : &read;
    enum pkv_status status = PKV_STATUS_OK;
    facts.struct_size = sizeof(facts);
    if (context == NULL || step == NULL || cache == NULL || indices == NULL)
        status = pkv_refuse_null(__func__,
                                 context == NULL ? "context"
                                 : step == NULL  ? "step"
                                 : cache == NULL ? "cache"
                                                 : "indices",
                                 &facts);
    else if (!is_current)
        status = pkv_struct_read(&read, sizeof(read), indices, __func__, "indices", &facts);
    if (status == PKV_STATUS_OK)
        status = pkv_cache_check(cache, __func__, "cache", &facts);
    if (status == PKV_STATUS_OK)
        status = pkv_step_set_indices(step, &context->kernels, cache->num_blocks, cache->block_size,
                                      known, __func__, &facts);
    else if (step)
        clear(step);
    return pkv_context_finish(context, status, &facts, error);
}
