/* SPDX-License-Identifier: MIT
 *
 * Slot mappings from block tables and from page indices: one pass that checks, one that writes.
 */
#include <pagedkv/slots.h>

#include "base/error.h"
#include "geometry/vector.h"

/* Both forms come down to this: where token t finds its block id. */
struct mapping {
    const char *function;
    struct pkv_error *error;
    int64_t block_size;
    int64_t num_blocks;
    struct pkv_vector positions;
    struct pkv_vector out;

    /* Form 1: row seq_ids[t] of a table, or row t, or row 0. */
    struct pkv_vector table_row;
    int64_t table_row_stride;
    int64_t num_seqs;
    struct pkv_vector seq_ids; /* data NULL: see row_is_token */
    bool row_is_token;

    /* Form 2: pages kv_indptr[b] and following of kv_indices, b = seq_ids[t]. */
    bool has_pages;
    struct pkv_vector kv_indices;
    struct pkv_vector kv_indptr;
    struct pkv_vector kv_last_page_len;
};

static enum pkv_status refuse(const struct mapping *map, enum pkv_status status,
                              const char *argument, int64_t index, int64_t value, int64_t bound,
                              const char *rule) {
    return pkv_error_set(map->error, status, map->function, argument, index, value, bound, rule);
}

/* Without num_blocks only negative ones are refused. */
static enum pkv_status refuse_block(const struct mapping *map, const char *argument, int64_t index,
                                    int64_t block) {
    return refuse(map, PKV_STATUS_BLOCK_OUT_OF_RANGE, argument, index, block, map->num_blocks,
                  map->num_blocks == 0 ? "must be at least"
                                       : "must lie between 0 and the number of blocks");
}

static enum pkv_status read_vector(struct pkv_vector *to, const struct pkv_tensor *tensor,
                                   const char *name, int64_t count, struct mapping *map) {
    struct pkv_tensor t;
    const enum pkv_status status =
        pkv_tensor_read_index(&t, tensor, 1, &(struct pkv_where){map->function, name, map->error});
    if (status != PKV_STATUS_OK)
        return status;
    if (count >= 0 && t.shape[0] != count)
        return pkv_error_set_axis(map->error, PKV_STATUS_SHAPE, map->function, name, 0, t.shape[0],
                                  count, "must have that many entries");
    *to = pkv_vector_along(&t, 0);
    return PKV_STATUS_OK;
}

/* What both forms take, and how many tokens there are. */
static enum pkv_status read_common(struct mapping *map, const struct pkv_tensor *positions,
                                   const struct pkv_tensor *slot_mapping) {
    if (map->block_size < 1)
        return refuse(map, PKV_STATUS_INVALID_ARGUMENT, "block_size", PKV_ERROR_NONE,
                      map->block_size, 1, "must be at least");
    if (map->num_blocks < 0)
        return refuse(map, PKV_STATUS_INVALID_ARGUMENT, "num_blocks", PKV_ERROR_NONE,
                      map->num_blocks, 0, "must be at least");
    enum pkv_status status = read_vector(&map->positions, positions, "positions", -1, map);
    if (status == PKV_STATUS_OK)
        status = read_vector(&map->out, slot_mapping, "slot_mapping", map->positions.count, map);
    if (status != PKV_STATUS_OK)
        return status;
    const struct pkv_strided written = pkv_vector_bytes(&map->out);
    if (!pkv_strided_is_injective(&written))
        return refuse(map, PKV_STATUS_STRIDE, "slot_mapping", PKV_ERROR_NONE, map->out.stride, 1,
                      "must have a stride of at least");
    return PKV_STATUS_OK;
}

static enum pkv_status check_apart(const struct mapping *map, const struct pkv_strided *read,
                                   const char *name) {
    const struct pkv_strided written = pkv_vector_bytes(&map->out);
    if (pkv_strided_may_overlap(&written, read))
        return refuse(map, PKV_STATUS_OVERLAP, name, PKV_ERROR_NONE, PKV_ERROR_NONE, PKV_ERROR_NONE,
                      "must not share bytes with slot_mapping");
    return PKV_STATUS_OK;
}

static enum pkv_status check_vector_apart(const struct mapping *map,
                                          const struct pkv_vector *vector, const char *name) {
    const struct pkv_strided read = pkv_vector_bytes(vector);
    return check_apart(map, &read, name);
}

/* The block id of logical block `logical` of token t, or a refusal. */
static enum pkv_status find_in_table(const struct mapping *map, int64_t t, int64_t logical,
                                     int64_t *block) {
    int64_t row = map->row_is_token ? t : 0;
    if (map->seq_ids.data) {
        row = pkv_vector_at(&map->seq_ids, t);
        if (row < 0 || row >= map->num_seqs)
            return refuse(map, PKV_STATUS_INVALID_ARGUMENT, "seq_ids", t, row, map->num_seqs,
                          "must lie between 0 and the number of sequences");
    }
    if (logical >= map->table_row.count)
        return refuse(map, PKV_STATUS_POSITION_OUT_OF_RANGE, "positions", t,
                      pkv_vector_at(&map->positions, t), map->table_row.count * map->block_size,
                      "must be below the tokens of a block table row");
    const struct pkv_vector entries =
        pkv_vector_offset(&map->table_row, row * map->table_row_stride);
    *block = pkv_vector_at(&entries, logical);
    if (*block < 0 || (map->num_blocks != 0 && *block >= map->num_blocks))
        return refuse_block(map, "block_table", row * map->table_row.count + logical, *block);
    return PKV_STATUS_OK;
}

static enum pkv_status find_in_pages(const struct mapping *map, int64_t t, int64_t logical,
                                     int64_t *block) {
    const int64_t num_seqs = map->kv_last_page_len.count;
    const int64_t b = pkv_vector_at(&map->seq_ids, t);
    if (b < 0 || b >= num_seqs)
        return refuse(map, PKV_STATUS_INVALID_ARGUMENT, "batch_indices", t, b, num_seqs,
                      "must lie between 0 and the number of sequences");
    const int64_t first = pkv_vector_at(&map->kv_indptr, b);
    const int64_t pages = pkv_vector_at(&map->kv_indptr, b + 1) - first;
    const int64_t position = pkv_vector_at(&map->positions, t);
    const bool is_last = logical == pages - 1;
    if (logical >= pages ||
        (is_last && position % map->block_size >= pkv_vector_at(&map->kv_last_page_len, b)))
        return refuse(map, PKV_STATUS_POSITION_OUT_OF_RANGE, "positions", t, position, b,
                      "must be below the tokens that the pages hold, kv_last_page_len in the last; "
                      "sequence");
    *block = pkv_vector_at(&map->kv_indices, first + logical);
    if (*block < 0 || (map->num_blocks != 0 && *block >= map->num_blocks))
        return refuse_block(map, "kv_indices", first + logical, *block);
    return PKV_STATUS_OK;
}

static enum pkv_status slot_of(const struct mapping *map, int64_t t, int64_t *slot) {
    const int64_t position = pkv_vector_at(&map->positions, t);
    *slot = -1;
    if (position < 0)
        return PKV_STATUS_OK;
    const int64_t logical = position / map->block_size, offset = position % map->block_size;
    int64_t block = 0;
    const enum pkv_status status = map->has_pages ? find_in_pages(map, t, logical, &block)
                                                  : find_in_table(map, t, logical, &block);
    if (status != PKV_STATUS_OK)
        return status;
    const int64_t largest = map->out.dtype == PKV_DTYPE_I32 ? INT32_MAX : INT64_MAX;
    if (block > (largest - offset) / map->block_size)
        return refuse(map, PKV_STATUS_OVERFLOW, "slot_mapping", t, block, largest,
                      "cannot hold the slot of this block; its largest number");
    *slot = block * map->block_size + offset;
    return PKV_STATUS_OK;
}

static enum pkv_status write_slots(const struct mapping *map) {
    int64_t slot;
    for (int64_t t = 0; t < map->positions.count; t++) {
        const enum pkv_status status = slot_of(map, t, &slot);
        if (status != PKV_STATUS_OK)
            return status;
    }
    char *out = (char *)(uintptr_t)map->out.data;
    for (int64_t t = 0; t < map->positions.count; t++) {
        if (slot_of(map, t, &slot) != PKV_STATUS_OK)
            return refuse(map, PKV_STATUS_INTERNAL, "positions", t, PKV_ERROR_NONE, PKV_ERROR_NONE,
                          "or another index changed while it was read");
        const int64_t at = t * map->out.stride;
        if (map->out.dtype == PKV_DTYPE_I32)
            ((int32_t *)(void *)out)[at] = (int32_t)slot;
        else
            ((int64_t *)(void *)out)[at] = slot;
    }
    return PKV_STATUS_OK;
}

enum pkv_status pkv_slot_mapping_from_block_table(const struct pkv_tensor *block_table,
                                                  const struct pkv_tensor *positions,
                                                  const struct pkv_tensor *seq_ids,
                                                  int64_t block_size, int64_t num_blocks,
                                                  const struct pkv_tensor *slot_mapping,
                                                  struct pkv_error *error) {
    struct mapping map = {
        .function = __func__, .error = error, .block_size = block_size, .num_blocks = num_blocks};
    struct pkv_tensor table;
    enum pkv_status status = pkv_tensor_read_index(
        &table, block_table, 2, &(struct pkv_where){__func__, "block_table", error});
    if (status == PKV_STATUS_OK)
        status = read_common(&map, positions, slot_mapping);
    if (status == PKV_STATUS_OK && !pkv_tensor_is_absent(seq_ids))
        status = read_vector(&map.seq_ids, seq_ids, "seq_ids", map.positions.count, &map);
    if (status != PKV_STATUS_OK)
        return status;
    map.table_row = pkv_vector_along(&table, 1);
    map.table_row_stride = table.strides[0];
    map.num_seqs = table.shape[0];
    map.row_is_token = map.num_seqs == map.positions.count;
    if (pkv_tensor_is_absent(seq_ids) && map.num_seqs != 1 && !map.row_is_token &&
        map.positions.count > 0)
        return refuse(&map, PKV_STATUS_NULL_ARGUMENT, "seq_ids", PKV_ERROR_NONE, PKV_ERROR_NONE,
                      map.num_seqs, "must say which sequence each token belongs to, one of");
    const struct pkv_strided entries = pkv_strided_from_tensor(&table);
    status = check_apart(&map, &entries, "block_table");
    if (status == PKV_STATUS_OK)
        status = check_vector_apart(&map, &map.positions, "positions");
    if (status == PKV_STATUS_OK && map.seq_ids.data)
        status = check_vector_apart(&map, &map.seq_ids, "seq_ids");
    return status == PKV_STATUS_OK ? write_slots(&map) : status;
}

static enum pkv_status check_pages(const struct mapping *map) {
    const int64_t num_seqs = map->kv_last_page_len.count;
    if (pkv_vector_at(&map->kv_indptr, 0) != 0)
        return refuse(map, PKV_STATUS_INVALID_ARGUMENT, "kv_indptr", 0,
                      pkv_vector_at(&map->kv_indptr, 0), 0, "must start at");
    for (int64_t b = 0; b < num_seqs; b++) {
        const int64_t first = pkv_vector_at(&map->kv_indptr, b);
        const int64_t next = pkv_vector_at(&map->kv_indptr, b + 1);
        if (next < first || next > map->kv_indices.count)
            return refuse(map, PKV_STATUS_INVALID_ARGUMENT, "kv_indptr", b + 1, next,
                          next < first ? first : map->kv_indices.count,
                          "must not fall, nor pass the number of pages");
        const int64_t length = pkv_vector_at(&map->kv_last_page_len, b);
        if (next > first && (length < 1 || length > map->block_size))
            return refuse(map, PKV_STATUS_INVALID_ARGUMENT, "kv_last_page_len", b, length,
                          map->block_size, "must lie between 1 and block_size");
    }
    return PKV_STATUS_OK;
}

enum pkv_status pkv_slot_mapping_from_page_indices(
    const struct pkv_tensor *batch_indices, const struct pkv_tensor *positions,
    const struct pkv_tensor *kv_indices, const struct pkv_tensor *kv_indptr,
    const struct pkv_tensor *kv_last_page_len, int64_t block_size, int64_t num_blocks,
    const struct pkv_tensor *slot_mapping, struct pkv_error *error) {
    struct mapping map = {.function = __func__,
                          .error = error,
                          .block_size = block_size,
                          .num_blocks = num_blocks,
                          .has_pages = true};
    enum pkv_status status = read_common(&map, positions, slot_mapping);
    if (status == PKV_STATUS_OK)
        status =
            read_vector(&map.seq_ids, batch_indices, "batch_indices", map.positions.count, &map);
    if (status == PKV_STATUS_OK)
        status = read_vector(&map.kv_indices, kv_indices, "kv_indices", -1, &map);
    if (status == PKV_STATUS_OK)
        status = read_vector(&map.kv_last_page_len, kv_last_page_len, "kv_last_page_len", -1, &map);
    if (status == PKV_STATUS_OK)
        status = read_vector(&map.kv_indptr, kv_indptr, "kv_indptr", map.kv_last_page_len.count + 1,
                             &map);
    if (status == PKV_STATUS_OK)
        status = check_pages(&map);
    const struct {
        const struct pkv_vector *vector;
        const char *name;
    } inputs[] = {{&map.positions, "positions"},
                  {&map.seq_ids, "batch_indices"},
                  {&map.kv_indices, "kv_indices"},
                  {&map.kv_indptr, "kv_indptr"},
                  {&map.kv_last_page_len, "kv_last_page_len"}};
    for (size_t i = 0; status == PKV_STATUS_OK && i < sizeof(inputs) / sizeof(inputs[0]); i++)
        status = check_vector_apart(&map, inputs[i].vector, inputs[i].name);
    return status == PKV_STATUS_OK ? write_slots(&map) : status;
}
