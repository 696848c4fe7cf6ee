/* SPDX-License-Identifier: MIT
 *
 * The published cases of the compressed modes of scatter_pa_kv_cache, at their published sizes. The
 * reference goes region by region, row by row; it uses nothing of the library.
 */
#include "verify_other.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_ceiling.h"
#include "bench_clock.h"
#include "cli_random.h"

enum {
    MAX_ROUNDS = 9,
    SLOW_NS = 200000000,
    MIN_SEQ = 1024, /* Rope and Omni: one random length for all sequences */
    MAX_SEQ = 4096,
    NUM_PARTS = 2,
    GUARD_BYTES = 1 << 20
};

struct sizes {
    int32_t mode; /* enum pkv_scatter_mode */
    int32_t dtype;
    int64_t num_seqs, num_heads, head_size, block_size, num_blocks;
    int64_t seq, kept; /* Alibi: tokens of a sequence, and those that stay; else 0: drawn */
};

#define CASE(mode, type, b, h, d, bs, nb, seq, kept)                                               \
    &(const struct sizes) {                                                                        \
        PKV_SCATTER_MODE_##mode, PKV_DTYPE_##type, b, h, d, bs, nb, seq, kept                      \
    }

static struct verify_result run_case(const struct verify_other *one, struct pkv_context *context,
                                     const struct pkv_executor *executor, int64_t *num_tokens,
                                     int64_t *bytes_checked);

#define OP "scatter_pa_kv_cache"

/* clang-format off */
const struct verify_other verify_compressed_cases[] = {
    {OP, "alibi", "  8000 tokens  2048 x 128   4 x 128 Alibi, i8", "published: the last 1501 of 4000 tokens stay",
     CASE(ALIBI, I8, 2, 4, 128, 128, 2048, 4000, 1501), 11, run_case},
    {OP, "rope_1", "  1 sequence   2048 x 256   1 x 256 Rope, bf16", "published: a window becomes its mean",
     CASE(ROPE, BF16, 1, 1, 256, 256, 2048, 0, 0), 12, run_case},
    {OP, "rope_2", " 40 sequences  8192 x 128   1 x 96  Rope, f16", "published: a window becomes its mean",
     CASE(ROPE, F16, 40, 1, 96, 128, 8192, 0, 0), 13, run_case},
    {OP, "rope_3", "  1 sequence   8192 x 64   24 x 64  Rope, bf16", "published: a window becomes its mean",
     CASE(ROPE, BF16, 1, 24, 64, 64, 8192, 0, 0), 14, run_case},
    {OP, "rope_4", "  8 sequences  8192 x 128   8 x 32  Rope, f16", "published: a window becomes its mean",
     CASE(ROPE, F16, 8, 8, 32, 128, 8192, 0, 0), 15, run_case},
    {OP, "omni_1", "  1 sequence   2048 x 256   1 x 256 Omni, bf16", "published: a window is dropped",
     CASE(OMNI, BF16, 1, 1, 256, 256, 2048, 0, 0), 16, run_case},
    {OP, "omni_2", " 40 sequences  8192 x 128   1 x 96  Omni, f16", "published: a window is dropped",
     CASE(OMNI, F16, 40, 1, 96, 128, 8192, 0, 0), 17, run_case},
    {OP, "omni_3", "  1 sequence   8192 x 64   24 x 64  Omni, bf16", "published: a window is dropped",
     CASE(OMNI, BF16, 1, 24, 64, 64, 8192, 0, 0), 18, run_case},
    {OP, "omni_4", "  8 sequences  8192 x 128   8 x 32  Omni, f16", "published: a window is dropped",
     CASE(OMNI, F16, 8, 8, 32, 128, 8192, 0, 0), 19, run_case},
    {NULL, NULL, NULL, NULL, NULL, 0, NULL},
};
/* clang-format on */

struct job {
    const struct sizes *sizes;
    struct pkv_context *context;
    const struct pkv_executor *executor;
    struct cli_random random;
    int64_t seq, window, offset; /* the same for all tasks */
    int64_t num_rows;            /* of a region */
    int64_t num_tasks;
    int32_t *indices[4]; /* slots, lens, offsets [num_tasks]; seq_lens [num_seqs] */
    struct bench_memory source[NUM_PARTS];
    struct bench_memory cache[NUM_PARTS];
    struct pkv_error error;
};

static int64_t row_bytes(const struct job *job) {
    return job->sizes->head_size * pkv_dtype_bytes(job->sizes->dtype);
}

static int64_t source_bytes(const struct job *job) {
    return job->sizes->num_seqs * job->seq * job->sizes->num_heads * row_bytes(job);
}

static int64_t cache_bytes(const struct job *job) {
    return job->sizes->num_blocks * job->sizes->block_size * row_bytes(job);
}

/* Lengths, the window and the slots. Alibi: each region begins with a block; else they are back to
 * back, and one row apart where Rope has no mean to put there. */
static int draw(struct job *job) {
    const struct sizes *sizes = job->sizes;
    job->seq = sizes->seq;
    job->window = sizes->kept;
    if (sizes->mode != PKV_SCATTER_MODE_ALIBI) {
        job->seq = MIN_SEQ + cli_random_below(&job->random, MAX_SEQ - MIN_SEQ + 1);
        job->window = cli_random_below(&job->random, job->seq + 1);
        job->offset = cli_random_below(&job->random, job->seq - job->window + 2) - 1;
    }
    const bool is_whole =
        sizes->mode != PKV_SCATTER_MODE_ALIBI && (job->window == 0 || job->offset == -1);
    const int64_t has_mean = sizes->mode == PKV_SCATTER_MODE_ROPE;
    job->num_rows = sizes->mode == PKV_SCATTER_MODE_ALIBI ? job->window
                    : is_whole                            ? job->seq
                                                          : job->seq - job->window + has_mean;
    int64_t apart = job->num_rows + (is_whole ? has_mean : 0);
    if (sizes->mode == PKV_SCATTER_MODE_ALIBI)
        apart = (apart + sizes->block_size - 1) / sizes->block_size * sizes->block_size;
    job->num_tasks = sizes->num_seqs * sizes->num_heads;
    for (int i = 0; i < 4; i++) {
        job->indices[i] = malloc((size_t)job->num_tasks * sizeof(job->indices[i][0]));
        if (job->indices[i] == NULL)
            return -1;
        for (int64_t task = 0; task < job->num_tasks; task++)
            job->indices[i][task] = (int32_t)(i == 0   ? task * apart
                                              : i == 1 ? job->window
                                              : i == 2 ? job->offset
                                                       : job->seq);
    }
    return 0;
}

/* Integers from 1 to 10, or floats of that size with all bits of their mantissas. */
static void fill_source(struct job *job) {
    for (int part = 0; part < NUM_PARTS; part++) {
        unsigned char *data = job->source[part].data;
        for (int64_t i = 0; i < source_bytes(job); i += pkv_dtype_bytes(job->sizes->dtype)) {
            const uint64_t draw_bits = cli_random_next(&job->random);
            uint16_t code = (uint16_t)(draw_bits % 10 + 1);
            if (job->sizes->dtype == PKV_DTYPE_BF16) /* 1/8 to 8, either sign */
                code = (uint16_t)((draw_bits & 0x807f) | (124 + (draw_bits >> 32) % 6) << 7);
            else if (job->sizes->dtype == PKV_DTYPE_F16)
                code = (uint16_t)((draw_bits & 0x83ff) | (12 + (draw_bits >> 32) % 6) << 10);
            memcpy(data + i, &code, (size_t)pkv_dtype_bytes(job->sizes->dtype));
        }
    }
}

/* Every word of a cache has its own value. */
static uint64_t filled_word(int part, int64_t word) {
    return (uint64_t)(word * NUM_PARTS + part + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static int create(struct job *job) {
    for (int part = 0; part < NUM_PARTS; part++) {
        if (bench_memory_map(&job->source[part], source_bytes(job), BENCH_PAGES_HUGE,
                             job->executor) != 0 ||
            bench_memory_map(&job->cache[part], cache_bytes(job) + GUARD_BYTES, BENCH_PAGES_HUGE,
                             job->executor) != 0)
            return -1;
        for (int64_t word = 0; word < job->cache[part].bytes / 8; word++) {
            const uint64_t value = filled_word(part, word);
            memcpy(job->cache[part].data + word * 8, &value, sizeof(value));
        }
    }
    fill_source(job);
    return 0;
}

static void destroy(struct job *job) {
    for (int part = 0; part < NUM_PARTS; part++) {
        bench_memory_unmap(&job->source[part]);
        bench_memory_unmap(&job->cache[part]);
    }
    for (int i = 0; i < 4; i++)
        free(job->indices[i]);
}

static int run(void *arg) {
    struct job *job = arg;
    const struct sizes *sizes = job->sizes;
    const int64_t tasks[2] = {sizes->num_seqs, sizes->num_heads};
    const int64_t rows[3] = {sizes->num_seqs * job->seq, sizes->num_heads, sizes->head_size};
    const int64_t blocks[4] = {sizes->num_blocks, sizes->block_size, 1, sizes->head_size};
    struct pkv_tensor indices[4], source[NUM_PARTS], cache[NUM_PARTS];
    for (int i = 0; i < 4; i++)
        indices[i] = pkv_tensor_make(job->indices[i], PKV_DTYPE_I32, i < 3 ? 2 : 1, tasks);
    for (int part = 0; part < NUM_PARTS; part++) {
        source[part] = pkv_tensor_make(job->source[part].data, sizes->dtype, 3, rows);
        cache[part] = pkv_tensor_make(job->cache[part].data, sizes->dtype, 4, blocks);
    }
    const struct pkv_scatter_pa_kv_cache_options options = {
        .struct_size = sizeof(options),
        .scatter_mode = sizes->mode,
        .compress_lens = &indices[1],
        .compress_seq_offset = sizes->mode == PKV_SCATTER_MODE_ALIBI ? NULL : &indices[2],
        .seq_lens = &indices[3]};
    return pkv_scatter_pa_kv_cache(job->context, &source[0], &cache[0], &indices[0], &source[1],
                                   &cache[1], &options, &job->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

/* ---- the reference ---- */

static float float_of(int32_t dtype, uint16_t code) {
    if (dtype == PKV_DTYPE_BF16) {
        const uint32_t bits = (uint32_t)code << 16;
        float number;
        memcpy(&number, &bits, sizeof(number));
        return number;
    }
    const int exponent = code >> 10 & 0x1f, mantissa = code & 0x3ff; /* no special numbers here */
    const float magnitude = exponent == 0 ? ldexpf((float)mantissa, -24)
                                          : ldexpf((float)(mantissa + 1024), exponent - 25);
    return code & 0x8000 ? -magnitude : magnitude;
}

/* The code of dtype nearest to a number of middling size, the even one of two. */
static uint16_t code_of(int32_t dtype, float number) {
    const int mantissa_bits = dtype == PKV_DTYPE_BF16 ? 7 : 10;
    const int bias = dtype == PKV_DTYPE_BF16 ? 127 : 15;
    int exponent;
    (void)frexpf(fabsf(number), &exponent);
    exponent = number == 0 || exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    const float steps = rintf(ldexpf(fabsf(number), mantissa_bits - exponent));
    const int code = ((exponent + bias - 1) << mantissa_bits) + (int)steps;
    return (uint16_t)((signbit(number) ? 0x8000 : 0) | code);
}

static const unsigned char *source_row(const struct job *job, int part, int64_t task,
                                       int64_t token) {
    const int64_t heads = job->sizes->num_heads;
    return job->source[part].data +
           ((task / heads * job->seq + token) * heads + task % heads) * row_bytes(job);
}

static void mean_row(const struct job *job, int part, int64_t task, unsigned char *row) {
    const int32_t dtype = job->sizes->dtype;
    for (int64_t d = 0; d < job->sizes->head_size; d++) {
        float sum = 0;
        for (int64_t i = 0; i < job->window; i++) {
            uint16_t code;
            memcpy(&code, source_row(job, part, task, job->offset + i) + 2 * d, sizeof(code));
            sum = sum + float_of(dtype, code);
        }
        const uint16_t mean = code_of(dtype, sum / (float)job->window);
        memcpy(row + 2 * d, &mean, sizeof(mean));
    }
}

/* What row number `row` of a region must hold, in the source or in `room`. */
static const unsigned char *expected_row(const struct job *job, int part, int64_t task, int64_t row,
                                         unsigned char *room) {
    const bool is_rope = job->sizes->mode == PKV_SCATTER_MODE_ROPE;
    if (job->sizes->mode == PKV_SCATTER_MODE_ALIBI)
        return source_row(job, part, task, job->seq - job->window + row);
    if (job->window == 0 || job->offset == -1 || row < job->offset)
        return source_row(job, part, task, row);
    if (!is_rope)
        return source_row(job, part, task, row + job->window);
    if (row > job->offset)
        return source_row(job, part, task, row + job->window - 1);
    mean_row(job, part, task, room);
    return room;
}

/* Compares one row with what it must hold; counts and describes the first byte that differs. */
static void compare(const struct job *job, int part, int64_t byte, const unsigned char *expected,
                    int64_t bytes, int64_t *num_wrong, char message[256]) {
    const unsigned char *found = job->cache[part].data + byte;
    if (memcmp(found, expected, (size_t)bytes) == 0 || (*num_wrong)++ > 0)
        return;
    int64_t i = 0;
    while (found[i] == expected[i])
        i++;
    const int64_t slot = (byte + i) / row_bytes(job);
    (void)snprintf(message, 256,
                   "%s cache, slot %" PRId64 ", byte %" PRId64
                   " of the row: found 0x%02x, expected 0x%02x",
                   part == 0 ? "key" : "value", slot, (byte + i) % row_bytes(job),
                   (unsigned)found[i], (unsigned)expected[i]);
}

static void check_filled(const struct job *job, int part, int64_t begin, int64_t end,
                         int64_t *num_wrong, char message[256]) {
    for (int64_t byte = begin; byte < end; byte += 8) {
        const uint64_t value = filled_word(part, byte / 8);
        unsigned char expected[8];
        memcpy(expected, &value, sizeof(value));
        compare(job, part, byte, expected, 8, num_wrong, message);
    }
}

/* Every byte of a cache and of its guard: regions ascend, and nothing else may have changed. */
static int64_t check_part(const struct job *job, int part, char message[256]) {
    unsigned char room[1024];
    int64_t num_wrong = 0, done = 0;
    for (int64_t task = 0; task < job->num_tasks; task++) {
        const int64_t first = job->indices[0][task] * row_bytes(job);
        check_filled(job, part, done, first, &num_wrong, message);
        for (int64_t row = 0; row < job->num_rows; row++)
            compare(job, part, first + row * row_bytes(job),
                    expected_row(job, part, task, row, room), row_bytes(job), &num_wrong, message);
        done = first + job->num_rows * row_bytes(job);
    }
    check_filled(job, part, done, job->cache[part].bytes, &num_wrong, message);
    return num_wrong;
}

/* ---- the measurement ---- */

static int64_t num_read(const struct job *job) {
    return job->sizes->mode == PKV_SCATTER_MODE_ROPE ? job->seq : job->num_rows;
}

/* Read and written. */
static int64_t bytes_moved(const struct job *job) {
    return NUM_PARTS * (num_read(job) + job->num_rows) * job->num_tasks * row_bytes(job);
}

static int run_copy(void *arg) {
    const struct job *job = arg;
    const int64_t wanted = bytes_moved(job) / NUM_PARTS / 2;
    const int64_t bytes = wanted < source_bytes(job) ? wanted : source_bytes(job);
    const struct bench_span spans[NUM_PARTS] = {{job->cache[0].data, job->source[0].data, bytes},
                                                {job->cache[1].data, job->source[1].data, bytes}};
    bench_ceiling_copy(job->executor, spans, NUM_PARTS);
    return 0;
}

static int prepare_nothing(void *arg) {
    (void)arg;
    return 0;
}

static void measure(struct job *job, int64_t first_ns, struct verify_result *result) {
    const struct bench_variant variants[] = {{prepare_nothing, run, NULL, job},
                                             {prepare_nothing, run_copy, NULL, job}};
    struct bench_rounds rounds;
    if (bench_rounds_measure(&rounds, variants, 2, first_ns > SLOW_NS ? 1 : MAX_ROUNDS,
                             job->executor, &job->random) != 0) {
        result->verdict = VERIFY_ERROR;
        (void)pkv_error_text(&job->error, result->message, sizeof(result->message));
        return;
    }
    result->bytes = bytes_moved(job);
    result->ns = bench_rounds_time(&rounds, 0);
    result->ceiling = bench_rounds_speed(&rounds, 0, 1);
}

static struct verify_result run_case(const struct verify_other *one, struct pkv_context *context,
                                     const struct pkv_executor *executor, int64_t *num_tokens,
                                     int64_t *bytes_checked) {
    struct verify_result result = {.verdict = VERIFY_ERROR};
    struct job job = {.sizes = one->sizes,
                      .context = context,
                      .executor = executor,
                      .random = {one->seed},
                      .error.struct_size = sizeof(job.error)};
    if (draw(&job) != 0 || create(&job) != 0) {
        (void)snprintf(result.message, sizeof(result.message), "no memory for 2 x %" PRId64 " MiB",
                       (cache_bytes(&job) + source_bytes(&job)) >> 20);
        destroy(&job);
        return result;
    }
    const int64_t begin = bench_now_ns();
    const int failed = run(&job);
    const int64_t first_ns = bench_now_ns() - begin;
    if (failed) {
        (void)pkv_error_text(&job.error, result.message, sizeof(result.message));
    } else {
        int64_t num_wrong = 0;
        for (int part = 0; part < NUM_PARTS && num_wrong == 0; part++)
            num_wrong = check_part(&job, part, result.message);
        result.verdict = num_wrong == 0 ? VERIFY_PASS : VERIFY_FAIL;
        *bytes_checked += job.cache[0].bytes + job.cache[1].bytes;
        *num_tokens += num_wrong == 0 ? job.num_tasks * job.num_rows : 0;
        if (num_wrong == 0)
            measure(&job, first_ns, &result);
    }
    destroy(&job);
    return result;
}
