/* SPDX-License-Identifier: MIT
 *
 * What the operators need of a committed step. Rows of block_table stay from step to step: of a
 * sequence that has the same row as before only the new entries are written.
 */
#include "pool/batch.h"

#include <string.h>

static void fill_row(struct pkv_batch *batch, int32_t g, int64_t row) {
    const struct pkv_pool *pool = batch->pool;
    const struct pkv_group *group = &pool->groups[g];
    const struct pkv_seq seq = batch->seqs[row];
    const struct pkv_seq_group *part = pkv_seq_part(pool, seq.index, g);
    struct pkv_batch_row *filled = &batch->groups[g].rows[row];
    const uint32_t *table = pkv_seq_table(group, seq.index);
    int32_t *entries = batch->groups[g].block_table + row * group->width;
    const bool is_same = filled->seq.index == seq.index &&
                         filled->seq.generation == seq.generation &&
                         filled->version == part->version;
    const uint32_t first = is_same ? filled->num_blocks : 0;
    if (first < part->num_blocks)
        memcpy(entries + first, table + first, (part->num_blocks - first) * sizeof(*entries));
    *filled = (struct pkv_batch_row){seq, part->version, part->num_blocks};
    if (group->window == 0)
        return;
    const int32_t offset = (int32_t)part->first_block * group->block_size;
    batch->groups[g].kept_offsets[row] = offset;
    batch->groups[g].kept_lens[row] = pool->seqs[seq.index].num_tokens - offset;
}

/* Slots of a row's new tokens, block by block. */
static void fill_slots(struct pkv_batch *batch, int32_t g, int64_t row) {
    const struct pkv_group *group = &batch->pool->groups[g];
    const uint32_t block_size = (uint32_t)group->block_size;
    const uint32_t *table = pkv_seq_table(group, batch->seqs[row].index);
    const int32_t first = batch->query_start_loc[row], end = batch->query_start_loc[row + 1];
    const uint32_t position = (uint32_t)(batch->seq_lens[row] - (end - first));
    int64_t *slots = batch->groups[g].slot_mapping;
    uint32_t block = position / block_size, offset = position % block_size;
    for (int32_t token = first; token < end;) {
        const int64_t block_slot = (int64_t)table[block++] * block_size;
        for (; offset < block_size && token < end; offset++)
            slots[token++] = block_slot + offset;
        offset = 0;
    }
}

void pkv_batch_fill(struct pkv_batch *batch) {
    const struct pkv_pool *pool = batch->pool;
    int64_t row = 0;
    batch->query_start_loc[0] = 0;
    for (int64_t i = 0; i < batch->num_changes; i++) {
        const struct pkv_change *change = &batch->changes[i];
        if (change->type != PKV_CHANGE_APPEND || change->num_tokens == 0)
            continue;
        batch->seq_lens[row] = change->old_tokens + change->num_tokens;
        batch->num_kept[row] = batch->seq_lens[row];
        batch->row_of_seq[batch->seqs[row].index] = (int32_t)row;
        batch->query_start_loc[row + 1] = batch->query_start_loc[row] + change->num_tokens;
        for (int32_t g = 0; g < pool->num_groups; g++) {
            fill_row(batch, g, row);
            fill_slots(batch, g, row);
        }
        row++;
    }
}

static struct pkv_tensor vector(void *data, int32_t dtype, int64_t count) {
    return (struct pkv_tensor){
        .data = data, .dtype = dtype, .ndim = 1, .shape = {count}, .strides = {1}};
}

static struct pkv_tensor matrix(void *data, int64_t rows, int64_t columns) {
    return (struct pkv_tensor){.data = data,
                               .dtype = PKV_DTYPE_I32,
                               .ndim = 2,
                               .shape = {rows, columns},
                               .strides = {columns, 1}};
}

enum pkv_status pkv_batch_tensors_get(const struct pkv_batch *batch, int32_t group,
                                      struct pkv_batch_tensors *tensors, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (batch == NULL || tensors == NULL)
        return pkv_refuse_missing(blame, batch == NULL ? "batch" : "tensors");
    if (group < 0 || group >= batch->pool->num_groups)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "group", group,
                          batch->pool->num_groups, "must lie between 0 and the number of groups");
    if (batch->state != PKV_BATCH_COMMITTED && batch->state != PKV_BATCH_COMPUTED)
        return pkv_refuse(blame, PKV_STATUS_BAD_STATE, "batch", PKV_ERROR_NONE, PKV_ERROR_NONE,
                          "must be committed");
    const struct pkv_batch_group *part = &batch->groups[group];
    const bool has_window = batch->pool->groups[group].window > 0;
    struct pkv_batch_tensors views = {
        .struct_size = sizeof(views),
        .seq_lens = vector(batch->seq_lens, PKV_DTYPE_I32, batch->num_seqs),
        .query_start_loc = vector(batch->query_start_loc, PKV_DTYPE_I32, batch->num_seqs + 1),
        .block_mapping = matrix(part->copies, part->num_copies, 2)};
    views.indices = (struct pkv_step_indices){
        .struct_size = sizeof(views.indices),
        .duplicates = PKV_DUPLICATES_ASSUME_UNIQUE, /* each new token has a slot of its own */
        .slot_mapping = vector(part->slot_mapping, PKV_DTYPE_I64, batch->num_tokens),
        .block_table = matrix(part->block_table, batch->num_seqs, batch->pool->groups[group].width),
        .seq_lens =
            has_window ? vector(part->kept_lens, PKV_DTYPE_I32, batch->num_seqs) : views.seq_lens,
        .query_start_loc = views.query_start_loc};
    if (has_window)
        views.indices.seq_offsets = vector(part->kept_offsets, PKV_DTYPE_I32, batch->num_seqs);
    /* indices is a struct that grows, too: what a smaller struct has no room for is not there. */
    size_t room;
    memcpy(&room, tensors, sizeof(room));
    const size_t before = offsetof(struct pkv_batch_tensors, indices);
    if (room > before && room < sizeof(views))
        views.indices.struct_size = room - before;
    return pkv_struct_write(tensors, &views, sizeof(views), __func__, "tensors", error);
}
