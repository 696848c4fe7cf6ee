/* SPDX-License-Identifier: MIT
 *
 * Puts the arrays of attention_model.h into caches and tensors of every shape, and takes results
 * out again.
 */
#include "attention_model.h"

#include <pagedkv/cache.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

enum { POISON = 0xff }; /* in every byte: a NaN of each of the three dtypes */

void attn_place_all(struct attn_placement *placement, const struct attn_problem *problem) {
    placement->num_pieces = problem->sizes.num_seqs;
    for (int64_t b = 0; b < problem->sizes.num_seqs; b++) {
        placement->pieces[b] = (struct attn_piece){b, 0, problem->sizes.num_queries[b]};
    }
}

int attn_can_share(const struct attn_problem *problem, int64_t num_shared, int64_t block_size) {
    int64_t whole = (num_shared + block_size - 1) / block_size * block_size;

    for (int64_t b = 0; b < problem->sizes.num_seqs; b++) {
        int64_t num_tokens = problem->sizes.num_tokens[b];

        if (num_tokens < num_shared ||
            (whole > problem->sizes.num_shared && num_tokens > problem->sizes.num_shared)) {
            return 0;
        }
    }
    return num_shared <= problem->sizes.num_shared;
}

/* The code of a number that the dtype holds, NaN and zero included, denormals not. */
static uint32_t code_of(int32_t dtype, float value) {
    uint32_t bits, sign;

    memcpy(&bits, &value, sizeof(bits));
    if (dtype == PKV_DTYPE_F32) {
        return bits;
    }
    if (dtype == PKV_DTYPE_BF16) {
        return bits >> 16;
    }
    sign = bits >> 16 & 0x8000;
    if (isnan(value)) {
        return sign | 0x7e00;
    }
    return value == 0 ? sign : sign | (((bits & 0x7fffffff) >> 13) - ((127 - 15) << 10));
}

static void write_rows(struct model_part *part, int64_t slot, const float *rows) {
    const struct num_format *format = num_format_of(part->tensor.dtype);
    int64_t size = part->ref.head_size;

    for (int64_t h = 0; h < part->ref.num_heads; h++) {
        for (int64_t d = 0; d < size; d++) {
            int64_t at = ref_part_index(&part->ref, slot / part->ref.block_size,
                                        slot % part->ref.block_size, h, d);

            num_write(format, (char *)part->tensor.data + at * format->bytes,
                      code_of(part->tensor.dtype, rows[h * size + d]));
        }
    }
}

/* Blocks of each sequence, whole, whatever its pieces are. */
struct tables {
    int64_t num_blocks;
    int64_t *blocks[ATTN_MAX_SEQS];
};

static int64_t blocks_of(const struct attn_problem *problem, int64_t b, int64_t block_size) {
    return (problem->sizes.num_tokens[b] + block_size - 1) / block_size;
}

static int64_t *allocate(int64_t count) {
    int64_t *memory = calloc((size_t)count + 1, sizeof(*memory));

    if (memory == NULL) {
        perror("attn_call_make");
        exit(1);
    }
    return memory;
}

/* Random ids, with a few blocks left over. */
static struct tables make_tables(const struct attn_problem *problem,
                                 const struct attn_placement *placement, struct test_rng *rng) {
    int64_t size = placement->block_size, used = 0;
    int64_t num_shared = (placement->num_shared + size - 1) / size;
    struct tables tables = {.num_blocks = test_rng_between(rng, 1, 3)};
    int64_t *order;

    for (int64_t b = 0; b < problem->sizes.num_seqs; b++) {
        tables.num_blocks += blocks_of(problem, b, size);
    }
    order = allocate(tables.num_blocks);
    test_rng_permutation(rng, order, tables.num_blocks);
    for (int64_t b = 0; b < problem->sizes.num_seqs; b++) {
        tables.blocks[b] = allocate(blocks_of(problem, b, size));
        for (int64_t i = 0; i < blocks_of(problem, b, size); i++) {
            tables.blocks[b][i] = b > 0 && i < num_shared ? tables.blocks[0][i] : order[used++];
        }
    }
    free(order);
    return tables;
}

static void fill_cache(struct attn_call *call, const struct attn_problem *problem,
                       const struct tables *tables) {
    int64_t size = call->placement.block_size;
    int64_t key_row = problem->sizes.num_kv_heads * problem->sizes.head_size;
    int64_t value_row = problem->sizes.num_kv_heads * problem->sizes.value_head_size;

    for (int i = 0; i < call->cache.num_memories; i++) {
        memset(call->cache.memories[i].data, POISON, call->cache.memories[i].bytes);
    }
    for (int64_t b = 0; b < problem->sizes.num_seqs; b++) {
        for (int64_t j = 0; j < problem->sizes.num_tokens[b]; j++) {
            int64_t slot = tables->blocks[b][j / size] * size + j % size;

            if (isnan(problem->seqs[b].value[j * value_row])) {
                continue;
            }
            write_rows(&call->cache.key, slot, problem->seqs[b].key + j * key_row);
            if (!problem->sizes.is_mla) {
                write_rows(&call->cache.value, slot, problem->seqs[b].value + j * value_row);
            }
        }
    }
    for (int i = 0; i < call->cache.num_memories; i++) {
        test_guard_protect(&call->cache.memories[i]);
    }
}

static void make_cache(struct attn_call *call, const struct attn_problem *problem,
                       int64_t num_blocks, struct test_rng *rng) {
    const struct attn_sizes *from = &problem->sizes;
    const struct attn_placement *placement = &call->placement;
    struct model_sizes sizes = {
        .key_layout = placement->key_layout,
        .value_layout = placement->value_layout,
        .key_dtype = from->key_dtype,
        .value_dtype = from->is_mla ? 0 : from->value_dtype,
        .num_blocks = num_blocks,
        .block_size = placement->block_size,
        .num_heads = from->num_kv_heads,
        .key_head_size = from->head_size,
        .value_head_size = from->value_head_size,
        .nz_5d = placement->nz_5d,
        .padded = placement->padded,
        .interleaved = placement->interleaved && !from->is_mla,
        .side = test_rng_below(rng, 2) ? TEST_GUARD_END : TEST_GUARD_START,
    };

    call->cache = model_cache_make(&sizes, rng);
}

static int64_t any_number(int32_t dtype, struct test_rng *rng) {
    int64_t number = (int64_t)test_rng_next(rng);

    return dtype == PKV_DTYPE_I32 ? (int32_t)number : number;
}

/* Somewhere up to the first position that its first query's window reaches, its end if it has no
 * query. */
static int64_t any_offset(const struct attn_problem *problem, const struct attn_piece *piece,
                          int64_t length, struct test_rng *rng) {
    int64_t left = problem->sizes.max_left, position = length - (piece->end - piece->first),
            most = 0;

    if (piece->first == piece->end) {
        most = length;
    } else if (left > 0 && position - (left - 1) > 0) {
        most = position - (left - 1);
    }
    return test_rng_below(rng, 3) ? most : test_rng_between(rng, 0, most);
}

/* Entries before and behind those that a piece needs hold anything. */
static void make_indices(struct attn_call *call, const struct attn_problem *problem,
                         const struct tables *tables, struct test_rng *rng) {
    int32_t dtypes[4];
    int64_t size = call->placement.block_size, count = call->placement.num_pieces, width = 0;
    int64_t *table, *lengths = allocate(count + 1), *starts = allocate(count + 1), total = 0;
    int64_t *offsets = allocate(count);

    for (int i = 0; i < 4; i++) {
        dtypes[i] = test_rng_below(rng, 2) ? PKV_DTYPE_I32 : PKV_DTYPE_I64;
    }
    call->seq_lens_cumulative = (int32_t)test_rng_below(rng, 2);
    for (int64_t i = 0; i < count; i++) {
        const struct attn_piece *piece = &call->placement.pieces[i];
        int64_t needed = blocks_of(problem, piece->seq, size);
        int64_t length = problem->sizes.num_tokens[piece->seq] -
                         problem->sizes.num_queries[piece->seq] + piece->end;

        if (call->placement.drops_unseen) {
            offsets[i] = any_offset(problem, piece, length, rng);
            length -= offsets[i];
        }
        width = needed > width ? needed : width;
        starts[i + 1] = starts[i] + piece->end - piece->first;
        total += length;
        lengths[call->seq_lens_cumulative ? i + 1 : i] = call->seq_lens_cumulative ? total : length;
    }
    width += test_rng_below(rng, 3);
    int64_t stride = width + test_rng_below(rng, 3);
    table = allocate(count * stride);
    for (int64_t i = 0; i < count; i++) {
        const struct attn_piece *piece = &call->placement.pieces[i];
        int64_t length = problem->sizes.num_tokens[piece->seq] -
                         problem->sizes.num_queries[piece->seq] + piece->end;

        for (int64_t k = 0; k < stride; k++) {
            int is_read = k * size < length && (k + 1) * size > offsets[i] && offsets[i] < length;

            table[i * stride + k] =
                is_read ? tables->blocks[piece->seq][k] : any_number(dtypes[0], rng);
        }
    }
    int64_t num_lengths = count + call->seq_lens_cumulative, num_starts = count + 1;
    call->block_table = model_index_make(dtypes[0], 2, (int64_t[]){count, stride}, table);
    call->block_table.tensor.strides[0] = stride;
    call->block_table.tensor.strides[1] = 1;
    call->block_table.tensor.shape[1] = width;
    call->seq_lens = model_index_make(dtypes[1], 1, &num_lengths, lengths);
    call->query_start_loc = model_index_make(dtypes[2], 1, &num_starts, starts);
    if (call->placement.drops_unseen) {
        call->seq_offsets = model_index_make(dtypes[3], 1, &count, offsets);
        test_guard_protect(&call->seq_offsets.memory);
    }
    test_guard_protect(&call->block_table.memory);
    test_guard_protect(&call->seq_lens.memory);
    test_guard_protect(&call->query_start_loc.memory);
    call->num_rows = starts[count];
    free(table);
    free(lengths);
    free(offsets);
    free(starts);
}

static struct model_rows make_rows(int64_t num_rows, int64_t heads, int64_t size, int32_t dtype,
                                   struct test_rng *rng) {
    struct model_part part = {.ref = {.num_heads = heads,
                                      .head_size = size,
                                      .element_bytes = num_format_of(dtype)->bytes},
                              .tensor = {.dtype = dtype}};
    enum model_rows_kind kind = (enum model_rows_kind)test_rng_below(rng, MODEL_ROWS_NUM_KINDS);

    return model_rows_make(kind, &part, num_rows,
                           test_rng_below(rng, 2) ? TEST_GUARD_END : TEST_GUARD_START, rng);
}

static void *row_element(const struct model_rows *rows, void *data, int64_t row, int64_t head,
                         int64_t d) {
    const int64_t *strides = rows->ref.strides;

    return (char *)data + (row * strides[0] + head * strides[1] + d * strides[2]) *
                              num_format_of(rows->tensor.dtype)->bytes;
}

static void fill_query(struct attn_call *call, const struct attn_problem *problem) {
    int64_t heads = problem->sizes.num_heads, size = problem->sizes.head_size, row = 0;
    const struct num_format *format = num_format_of(problem->sizes.query_dtype);

    for (int64_t k = 0; k < call->placement.num_pieces; k++) {
        const struct attn_piece *piece = &call->placement.pieces[k];

        for (int64_t i = piece->first; i < piece->end; i++, row++) {
            for (int64_t e = 0; e < heads * size; e++) {
                num_write(
                    format,
                    row_element(&call->query, call->query.memory.data, row, e / size, e % size),
                    code_of(problem->sizes.query_dtype,
                            problem->seqs[piece->seq].query[i * heads * size + e]));
            }
        }
    }
    test_guard_protect(&call->query.memory);
}

/* Two dimensions with one of three arrangements, in fresh memory. */
static struct test_guard make_matrix(struct pkv_tensor *tensor, int32_t dtype, int64_t rows,
                                     int64_t columns, struct test_rng *rng) {
    int64_t kind = test_rng_below(rng, 3), bytes = ref_dtype_bytes(dtype);
    int64_t wide = columns + 1 + test_rng_below(rng, 3);
    struct test_guard memory = test_guard_make(
        (size_t)((kind == 2 && rows > 0 ? (rows - 1) * wide + columns : rows * columns) * bytes),
        TEST_GUARD_END);

    *tensor = (struct pkv_tensor){
        .data = memory.data, .dtype = dtype, .ndim = 2, .shape = {rows, columns}};
    tensor->strides[0] = kind == 0 ? columns : kind == 1 ? 1 : wide;
    tensor->strides[1] = kind == 1 ? rows : 1;
    return memory;
}

/* What column c of a piece's row holds: its positions are those before the piece's end, the mask's
 * those before the sequence's. Nobody may read a column before position 0. */
static void write_mask(const struct attn_call *call, const struct attn_problem *problem,
                       const struct attn_piece *piece, int64_t i, int64_t row) {
    const struct attn_ref_seq *seq = &problem->seqs[piece->seq];
    int64_t width = problem->sizes.mask_width;

    for (int64_t c = 0; c < width; c++) {
        int64_t position = seq->num_tokens - seq->num_queries + piece->end - width + c;
        int64_t column = position - (seq->num_tokens - width);
        int64_t at = row * call->mask.strides[0] + c * call->mask.strides[1];
        float bias = column >= 0 ? seq->mask[i * width + column] : 0;

        if (position < 0) {
            bias = NAN;
        }
        if (call->mask.dtype == PKV_DTYPE_BOOL) {
            ((uint8_t *)call->mask.data)[at] = (uint8_t)(bias == 0 ? 1 + (c * 37 + row) % 255 : 0);
        } else {
            ((float *)call->mask.data)[at] = bias;
        }
    }
}

static void make_mask(struct attn_call *call, const struct attn_problem *problem,
                      struct test_rng *rng) {
    int64_t row = 0;

    call->mask_memory = make_matrix(
        &call->mask, problem->sizes.mask == ATTN_MASK_BOOL ? PKV_DTYPE_BOOL : PKV_DTYPE_F32,
        call->num_rows, problem->sizes.mask_width, rng);
    for (int64_t k = 0; k < call->placement.num_pieces; k++) {
        const struct attn_piece *piece = &call->placement.pieces[k];

        for (int64_t i = piece->first; i < piece->end; i++) {
            write_mask(call, problem, piece, i, row++);
        }
    }
    test_guard_protect(&call->mask_memory);
}

static struct test_guard make_heads(struct pkv_tensor *tensor, const float *values, int64_t count,
                                    struct test_rng *rng) {
    int64_t stride = test_rng_between(rng, 1, 2);
    struct test_guard memory =
        test_guard_make((size_t)((count - 1) * stride + 1) * sizeof(float), TEST_GUARD_END);

    memset(memory.data, POISON, memory.bytes);
    for (int64_t h = 0; h < count; h++) {
        ((float *)memory.data)[h * stride] = values[h];
    }
    *tensor = (struct pkv_tensor){.data = memory.data,
                                  .dtype = PKV_DTYPE_F32,
                                  .ndim = 1,
                                  .shape = {count},
                                  .strides = {stride}};
    test_guard_protect(&memory);
    return memory;
}

struct attn_call *attn_call_make(const struct attn_problem *problem,
                                 const struct attn_placement *placement, struct test_rng *rng) {
    const struct attn_sizes *sizes = &problem->sizes;
    struct tables tables = make_tables(problem, placement, rng);
    struct attn_call *call = calloc(1, sizeof(*call));

    if (call == NULL) {
        perror("attn_call_make");
        exit(1);
    }
    call->placement = *placement;
    make_cache(call, problem, tables.num_blocks, rng);
    fill_cache(call, problem, &tables);
    make_indices(call, problem, &tables, rng);
    call->query =
        make_rows(call->num_rows, sizes->num_heads, sizes->head_size, sizes->query_dtype, rng);
    fill_query(call, problem);
    call->out =
        make_rows(call->num_rows, sizes->num_heads, sizes->value_head_size, sizes->out_dtype, rng);
    if (!placement->has_no_lse) {
        call->lse_memory =
            make_matrix(&call->lse, PKV_DTYPE_F32, call->num_rows, sizes->num_heads, rng);
    }
    if (sizes->mask != ATTN_MASK_NONE) {
        make_mask(call, problem, rng);
    }
    if (sizes->has_slopes) {
        call->head_memory[0] = make_heads(&call->slopes, problem->slopes, sizes->num_heads, rng);
    }
    if (sizes->has_sinks) {
        call->head_memory[1] = make_heads(&call->sinks, problem->sinks, sizes->num_heads, rng);
    }
    for (int64_t b = 0; b < sizes->num_seqs; b++) {
        free(tables.blocks[b]);
    }
    attn_call_reset(call);
    return call;
}

void attn_call_free(struct attn_call *call) {
    model_cache_free(&call->cache);
    model_rows_free(&call->query);
    model_rows_free(&call->out);
    test_guard_free(&call->lse_memory);
    test_guard_free(&call->mask_memory);
    test_guard_free(&call->head_memory[0]);
    test_guard_free(&call->head_memory[1]);
    model_index_free(&call->block_table);
    model_index_free(&call->seq_lens);
    model_index_free(&call->seq_offsets);
    model_index_free(&call->query_start_loc);
    free(call);
}

void attn_call_reset(struct attn_call *call) {
    memset(call->out.memory.data, POISON, call->out.memory.bytes);
    memset(call->out.shadow, POISON, call->out.memory.bytes);
    if (call->lse_memory.data != NULL) {
        memset(call->lse_memory.data, POISON, call->lse_memory.bytes);
    }
}

static void collect_row(struct attn_call *call, const struct attn_problem *problem, int64_t from,
                        int64_t to, struct attn_answer *answer) {
    int64_t heads = problem->sizes.num_heads, size = problem->sizes.value_head_size;
    const struct num_format *format = num_format_of(problem->sizes.out_dtype);

    for (int64_t h = 0; h < heads; h++) {
        for (int64_t d = 0; d < size; d++) {
            uint32_t code =
                num_read(format, row_element(&call->out, call->out.memory.data, from, h, d));

            answer->out[(to * heads + h) * size + d] = code;
            num_write(format, row_element(&call->out, call->out.shadow, from, h, d), code);
        }
        if (call->lse.data != NULL) {
            float *lse =
                (float *)call->lse.data + from * call->lse.strides[0] + h * call->lse.strides[1];

            memcpy(&answer->lse[to * heads + h], lse, sizeof(*lse));
            memset(lse, POISON, sizeof(*lse));
        }
    }
}

int attn_call_collect(struct attn_call *call, const struct attn_problem *problem,
                      struct attn_answer *answer) {
    const unsigned char *bytes = call->lse_memory.data;
    int64_t row = 0;

    for (int64_t k = 0; k < call->placement.num_pieces; k++) {
        const struct attn_piece *piece = &call->placement.pieces[k];

        for (int64_t i = piece->first; i < piece->end; i++) {
            collect_row(call, problem, row++, problem->first_rows[piece->seq] + i, answer);
        }
    }
    for (size_t i = 0; i < call->lse_memory.bytes; i++) {
        if (bytes[i] != POISON) {
            return 0;
        }
    }
    return model_rows_are_as_expected(&call->out);
}
