/* SPDX-License-Identifier: MIT
 *
 * Moves the rows of a replay, a chunk of tokens at a time. Blocks are written and compared whole,
 * the last one of a prompt too: then it does not matter which request wrote it.
 */
#include "replay/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_random.h"

enum { CHUNK_TOKENS = 8192, CHUNK_BYTES = 1 << 20 };

struct replay_data {
    const struct trace *trace;
    int64_t row_bytes;
    int64_t chunk; /* tokens */
    struct pkv_context *context;
    struct pkv_scatter_plan *scatter;
    struct pkv_gather_plan *gather;
    struct pkv_step *step;
    void *memory;
    struct pkv_cache cache; /* key only */
    char *rows;             /* [chunk, row_bytes], written or read */
    char *expected;         /* likewise */
    int64_t *positions;     /* [chunk] */
    int64_t *slots;         /* [chunk] */
    struct pkv_error error;
};

static int failed(const struct replay_data *data) {
    return cli_library_error("replay", "the data", &data->error);
}

static int create_objects(struct replay_data *data, int64_t num_blocks) {
    const struct pkv_tensor key_cache =
        pkv_tensor_make(data->memory, PKV_DTYPE_U8, 4,
                        (int64_t[]){num_blocks, data->trace->block_size, 1, data->row_bytes});
    const bool ok =
        pkv_cache_init(&data->cache, &key_cache, NULL, NULL, &data->error) == PKV_STATUS_OK &&
        pkv_context_create(&data->context, NULL, &data->error) == PKV_STATUS_OK &&
        pkv_step_create(&data->step, NULL, &data->error) == PKV_STATUS_OK &&
        pkv_scatter_plan_create(&data->scatter, data->context, &data->cache, NULL, &data->error) ==
            PKV_STATUS_OK &&
        pkv_gather_plan_create(&data->gather, data->context, &data->cache, &data->error) ==
            PKV_STATUS_OK;
    return ok ? CLI_CONTINUE : failed(data);
}

struct replay_data *replay_data_create(const struct trace *trace, int64_t num_blocks,
                                       int64_t row_bytes) {
    struct replay_data *data = calloc(1, sizeof(*data));
    int64_t cache_bytes = 0;
    if (data) {
        data->trace = trace;
        data->row_bytes = row_bytes;
        data->error.struct_size = sizeof(data->error);
        data->chunk = CHUNK_BYTES / row_bytes;
        if (data->chunk > CHUNK_TOKENS)
            data->chunk = CHUNK_TOKENS;
        if (data->chunk < 1)
            data->chunk = 1;
        if (num_blocks <= INT64_MAX / row_bytes / trace->block_size) {
            cache_bytes = num_blocks * trace->block_size * row_bytes;
            data->memory = cli_alloc((uint64_t)cache_bytes);
        }
        data->rows = cli_alloc((uint64_t)(data->chunk * row_bytes));
        data->expected = cli_alloc((uint64_t)(data->chunk * row_bytes));
        data->positions = cli_alloc((uint64_t)data->chunk * sizeof(*data->positions));
        data->slots = cli_alloc((uint64_t)data->chunk * sizeof(*data->slots));
    }
    if (data == NULL || !data->memory || !data->rows || !data->expected || !data->positions ||
        !data->slots) {
        (void)cli_error("replay",
                        "no memory for %" PRId64 " blocks of %" PRId64 " rows of %" PRId64
                        " bytes; lower --capacity or --row_bytes",
                        num_blocks, trace->block_size, row_bytes);
        replay_data_destroy(data);
        return NULL;
    }
    memset(data->memory, 0, (size_t)cache_bytes); /* so that the system's work is not timed */
    if (create_objects(data, num_blocks) != CLI_CONTINUE) {
        replay_data_destroy(data);
        return NULL;
    }
    return data;
}

void replay_data_destroy(struct replay_data *data) {
    if (data == NULL)
        return;
    pkv_gather_plan_destroy(data->gather);
    pkv_scatter_plan_destroy(data->scatter);
    pkv_step_destroy(data->step);
    pkv_context_destroy(data->context);
    free(data->memory);
    free(data->rows);
    free(data->expected);
    free(data->positions);
    free(data->slots);
    free(data);
}

/* What tokens [first, first + count) of a request must hold: each 8 bytes are a number made of the
 * block's id and of their place in the block. */
static void fill(const struct replay_data *data, const struct trace_request *request, int64_t first,
                 int64_t count, char *rows) {
    const int64_t block_size = data->trace->block_size;
    const int64_t row_bytes = data->row_bytes;
    const int64_t words = row_bytes / 8 + (row_bytes % 8 != 0);
    int64_t block = first / block_size, offset = first % block_size;
    while (count > 0) {
        const int64_t here = block_size - offset < count ? block_size - offset : count;
        const int32_t id = data->trace->ids[request->first_block + block];
        uint64_t word = cli_mix((uint64_t)id) + (uint64_t)(offset * words);
        for (int64_t i = 0; i < here; i++) {
            for (int64_t at = 0; at < row_bytes; at += 8) {
                /* An odd factor: other words give other bytes. */
                const uint64_t value = word++ * UINT64_C(0x9e3779b97f4a7c15);
                memcpy(rows + at, &value, row_bytes - at < 8 ? (size_t)(row_bytes - at) : 8);
            }
            rows += row_bytes;
        }
        count -= here;
        block++;
        offset = 0;
    }
}

static struct pkv_tensor rows_tensor(struct replay_data *data, int64_t count) {
    return pkv_tensor_make(data->rows, PKV_DTYPE_U8, 3, (int64_t[]){count, 1, data->row_bytes});
}

static int write_chunk(struct replay_data *data, const struct pkv_tensor *block_table,
                       int64_t first, int64_t count, struct replay_result *result) {
    const struct pkv_tensor rows = rows_tensor(data, count);
    const struct pkv_tensor positions =
        pkv_tensor_make(data->positions, PKV_DTYPE_I64, 1, (int64_t[]){count});
    struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .slot_mapping = pkv_tensor_make(data->slots, PKV_DTYPE_I64, 1, (int64_t[]){count}),
    };
    for (int64_t i = 0; i < count; i++)
        data->positions[i] = first + i;
    if (pkv_slot_mapping_from_block_table(block_table, &positions, NULL, data->cache.block_size,
                                          data->cache.num_blocks, &indices.slot_mapping,
                                          &data->error) != PKV_STATUS_OK)
        return failed(data);
    const double begin = replay_now();
    if (pkv_step_set(data->context, data->step, &data->cache, &indices, &data->error) !=
            PKV_STATUS_OK ||
        pkv_scatter_run(data->context, data->scatter, data->step, &data->cache, &rows, NULL,
                        &data->error) != PKV_STATUS_OK)
        return failed(data);
    result->copy_seconds += replay_now() - begin;
    result->num_written_bytes += count * data->row_bytes;
    return CLI_CONTINUE;
}

static int read_chunk(struct replay_data *data, const struct pkv_tensor *block_table, int64_t first,
                      int64_t count, struct replay_result *result) {
    const struct pkv_tensor rows = rows_tensor(data, count);
    const struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .block_table = *block_table,
        .seq_lens = pkv_tensor_make(&count, PKV_DTYPE_I64, 1, (int64_t[]){1}),
        .seq_offsets = pkv_tensor_make(&first, PKV_DTYPE_I64, 1, (int64_t[]){1}),
    };
    const double begin = replay_now();
    if (pkv_step_set(data->context, data->step, &data->cache, &indices, &data->error) !=
            PKV_STATUS_OK ||
        pkv_gather_run(data->context, data->gather, data->step, &data->cache, &rows, NULL,
                       &data->error) != PKV_STATUS_OK)
        return failed(data);
    result->copy_seconds += replay_now() - begin;
    result->num_read_bytes += count * data->row_bytes;
    return CLI_CONTINUE;
}

static int report_wrong(const struct replay_data *data, const struct trace_request *request,
                        int64_t first) {
    const int64_t block_size = data->trace->block_size;
    int64_t at = 0;
    while (data->rows[at] == data->expected[at])
        at++;
    const int64_t token = first + at / data->row_bytes;
    (void)cli_error(
        "replay",
        "wrong data: request %" PRId64 ", block %" PRId64 " of its prompt, token %" PRId64
        " of the block, byte %" PRId64 " is 0x%02x instead of 0x%02x",
        (int64_t)(request - data->trace->requests), token / block_size, token % block_size,
        at % data->row_bytes, (unsigned)(unsigned char)data->rows[at],
        (unsigned)(unsigned char)data->expected[at]);
    return CLI_CHECK_FAILED;
}

int replay_data_move(struct replay_data *data, const struct trace_request *request,
                     int64_t num_hits, const struct pkv_tensor *block_table,
                     struct replay_result *result) {
    const int64_t num_hit_tokens = num_hits * data->trace->block_size;
    const int64_t num_tokens = request->num_blocks * data->trace->block_size;
    struct pkv_tensor table =
        pkv_tensor_make(block_table->data, PKV_DTYPE_I32, 2, (int64_t[]){1, request->num_blocks});
    int64_t count;
    for (int64_t first = 0; first < num_hit_tokens; first += count) {
        count = num_hit_tokens - first < data->chunk ? num_hit_tokens - first : data->chunk;
        const int status = read_chunk(data, &table, first, count, result);
        if (status != CLI_CONTINUE)
            return status;
        fill(data, request, first, count, data->expected);
        if (memcmp(data->rows, data->expected, (size_t)(count * data->row_bytes)) != 0)
            return report_wrong(data, request, first);
    }
    for (int64_t first = num_hit_tokens; first < num_tokens; first += count) {
        count = num_tokens - first < data->chunk ? num_tokens - first : data->chunk;
        fill(data, request, first, count, data->rows);
        const int status = write_chunk(data, &table, first, count, result);
        if (status != CLI_CONTINUE)
            return status;
    }
    return CLI_CONTINUE;
}
