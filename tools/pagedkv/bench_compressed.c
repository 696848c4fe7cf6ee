/* SPDX-License-Identifier: MIT
 *
 * The lines of the compressed modes of scatter_pa_kv_cache: 40 regions of 4000 tokens, as sequences
 * and as heads. The ceiling copies as many bytes as a call reads and writes.
 */
#include "bench_ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench_ceiling.h"
#include "bench_rounds.h"
#include "bench_threads.h"
#include "cli.h"

enum {
    ROUNDS = 15,
    NUM_TASKS = 40,
    SEQ = 4000,
    HEAD_SIZE = 128,
    HEAD_BYTES = 2 * HEAD_SIZE, /* bf16 */
    KEPT = 1501,
    OFFSET = 1000,
    WINDOW = 2000,
    SOURCE_ROWS = NUM_TASKS * SEQ * HEAD_BYTES / BENCH_ROW_BYTES /* of the stage */
};

struct job {
    struct bench_stage *stage;
    const struct bench_team *team;
    int32_t mode;
    int64_t num_heads;
    int64_t num_read; /* rows of a region's head that are read, and those that are written */
    int64_t num_written;
    int64_t apart; /* slots from one region to the next: whole blocks */
    int64_t source_row;
    int64_t cache_row;
    int32_t slots[NUM_TASKS], lens[NUM_TASKS], offsets[NUM_TASKS], seq_lens[NUM_TASKS];
    struct pkv_error error;
};

static unsigned char *source_of(const struct job *job, int part) {
    const struct bench_memory *memory =
        part == 0 ? &job->stage->key_output : &job->stage->value_output;
    return memory->data + job->source_row * BENCH_ROW_BYTES;
}

static unsigned char *cache_of(const struct job *job, int part) {
    const struct bench_memory *memory =
        part == 0 ? &job->stage->key_cache : &job->stage->value_cache;
    return memory->data + job->cache_row * BENCH_ROW_BYTES;
}

static int64_t cache_bytes(const struct job *job) {
    return NUM_TASKS * job->apart * HEAD_BYTES;
}

static void describe(struct job *job, int32_t mode, int64_t num_heads) {
    const int rope = mode == PKV_SCATTER_MODE_ROPE, alibi = mode == PKV_SCATTER_MODE_ALIBI;
    job->mode = mode;
    job->num_heads = num_heads;
    job->num_written = alibi ? KEPT : SEQ - WINDOW + rope;
    job->num_read = rope ? SEQ : job->num_written;
    job->apart = (job->num_written + BENCH_BLOCK_SIZE - 1) / BENCH_BLOCK_SIZE * BENCH_BLOCK_SIZE;
    for (int32_t task = 0; task < NUM_TASKS; task++) {
        job->slots[task] = task * (int32_t)job->apart;
        job->lens[task] = alibi ? KEPT : WINDOW;
        job->offsets[task] = OFFSET;
        job->seq_lens[task] = SEQ;
    }
}

static int prepare(void *arg) {
    struct job *job = arg;
    job->source_row = bench_stage_take_output(job->stage, SOURCE_ROWS);
    job->cache_row = bench_stage_take_region(job->stage, cache_bytes(job) / BENCH_ROW_BYTES);
    return 0;
}

static int run(void *arg) {
    struct job *job = arg;
    const int64_t tasks[2] = {NUM_TASKS / job->num_heads, job->num_heads};
    const int64_t rows[3] = {tasks[0] * SEQ, job->num_heads, HEAD_SIZE};
    const int64_t blocks[4] = {NUM_TASKS * job->apart / BENCH_BLOCK_SIZE, BENCH_BLOCK_SIZE, 1,
                               HEAD_SIZE};
    const struct pkv_tensor slots = pkv_tensor_make(job->slots, PKV_DTYPE_I32, 2, tasks);
    const struct pkv_tensor lens = pkv_tensor_make(job->lens, PKV_DTYPE_I32, 2, tasks);
    const struct pkv_tensor offsets = pkv_tensor_make(job->offsets, PKV_DTYPE_I32, 2, tasks);
    const struct pkv_tensor seq_lens = pkv_tensor_make(job->seq_lens, PKV_DTYPE_I32, 1, tasks);
    const struct pkv_tensor key = pkv_tensor_make(source_of(job, 0), PKV_DTYPE_BF16, 3, rows);
    const struct pkv_tensor value = pkv_tensor_make(source_of(job, 1), PKV_DTYPE_BF16, 3, rows);
    const struct pkv_tensor key_cache =
        pkv_tensor_make(cache_of(job, 0), PKV_DTYPE_BF16, 4, blocks);
    const struct pkv_tensor value_cache =
        pkv_tensor_make(cache_of(job, 1), PKV_DTYPE_BF16, 4, blocks);
    const struct pkv_scatter_pa_kv_cache_options options = {
        .struct_size = sizeof(options),
        .scatter_mode = job->mode,
        .compress_lens = &lens,
        .compress_seq_offset = job->mode == PKV_SCATTER_MODE_ALIBI ? NULL : &offsets,
        .seq_lens = &seq_lens};
    return pkv_scatter_pa_kv_cache(job->team->context, &key, &key_cache, &slots, &value,
                                   &value_cache, &options, &job->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

/* The mean of a window, channel by channel in float; the numbers are not special. */
static void plain_mean(unsigned char *to, const unsigned char *from, int64_t token_bytes) {
    float sums[HEAD_SIZE] = {0};
    for (int64_t i = 0; i < WINDOW; i++) {
        for (int64_t d = 0; d < HEAD_SIZE; d++) {
            uint16_t code;
            float number;
            memcpy(&code, from + i * token_bytes + 2 * d, sizeof(code));
            const uint32_t bits = (uint32_t)code << 16;
            memcpy(&number, &bits, sizeof(number));
            sums[d] += number;
        }
    }
    for (int64_t d = 0; d < HEAD_SIZE; d++) {
        const float mean = sums[d] / (float)WINDOW;
        uint32_t bits;
        memcpy(&bits, &mean, sizeof(bits));
        const uint16_t code = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        memcpy(to + 2 * d, &code, sizeof(code));
    }
}

/* Region after region, row after row. */
static void plain_share(void *arg, int64_t index) {
    const struct job *job = arg;
    const int64_t shares = job->team->num_threads, token_bytes = job->num_heads * HEAD_BYTES;
    const int is_alibi = job->mode == PKV_SCATTER_MODE_ALIBI;
    const int is_rope = job->mode == PKV_SCATTER_MODE_ROPE;
    for (int64_t i = 2 * NUM_TASKS * index / shares; i < 2 * NUM_TASKS * (index + 1) / shares;
         i++) {
        const int part = i >= NUM_TASKS;
        const int64_t task = i % NUM_TASKS;
        const int64_t seq = task / job->num_heads, head = task % job->num_heads;
        const unsigned char *from =
            source_of(job, part) + seq * SEQ * token_bytes + head * HEAD_BYTES;
        unsigned char *to = cache_of(job, part) + task * job->apart * HEAD_BYTES;
        for (int64_t token = is_alibi ? SEQ - KEPT : 0; token < SEQ; token++) {
            if (!is_alibi && token == OFFSET) {
                if (is_rope)
                    plain_mean(to, from + token * token_bytes, token_bytes);
                to += is_rope ? HEAD_BYTES : 0;
                token += WINDOW;
            }
            memcpy(to, from + token * token_bytes, HEAD_BYTES);
            to += HEAD_BYTES;
        }
    }
}

static int run_plain(void *arg) {
    struct job *job = arg;
    bench_run_tiles(&job->team->executor, plain_share, job, job->team->num_threads);
    return 0;
}

static void clean_up_plain(void *arg) {
    const struct job *job = arg;
    for (int part = 0; part < 2; part++)
        (void)bench_flush(cache_of(job, part), cache_bytes(job));
    bench_fence();
}

static int run_ceiling(void *arg) {
    const struct job *job = arg;
    const int64_t bytes = (job->num_read + job->num_written) * NUM_TASKS * HEAD_BYTES / 2;
    const struct bench_span spans[2] = {{cache_of(job, 0), source_of(job, 0), bytes},
                                        {cache_of(job, 1), source_of(job, 1), bytes}};
    bench_ceiling_copy(&job->team->executor, spans, 2);
    return 0;
}

/* The ceiling's destination is as large as its source, and may be larger than the regions. */
static int prepare_ceiling(void *arg) {
    struct job *job = arg;
    job->source_row = bench_stage_take_output(job->stage, SOURCE_ROWS);
    job->cache_row = bench_stage_take_region(job->stage, SOURCE_ROWS);
    return 0;
}

/* The library and the plain loop write the same from random numbers between 1/8 and 8. */
static int check(struct job *job) {
    (void)prepare(job);
    for (int part = 0; part < 2; part++) {
        unsigned char *data = source_of(job, part);
        for (int64_t i = 0; i < SOURCE_ROWS * BENCH_ROW_BYTES; i += 2) {
            const uint64_t draw = cli_random_next(&job->stage->random);
            const uint16_t code = (uint16_t)((draw & 0x807f) | (124 + (draw >> 32) % 6) << 7);
            memcpy(data + i, &code, sizeof(code));
        }
        memset(cache_of(job, part), 0xa5, (size_t)cache_bytes(job));
    }
    if (run(job) != 0)
        return -1;
    const int64_t written = job->cache_row;
    job->cache_row = bench_stage_take_region(job->stage, cache_bytes(job) / BENCH_ROW_BYTES);
    for (int part = 0; part < 2; part++)
        memset(cache_of(job, part), 0xa5, (size_t)cache_bytes(job));
    (void)run_plain(job);
    struct job other = *job;
    other.cache_row = written;
    return memcmp(cache_of(job, 0), cache_of(&other, 0), (size_t)cache_bytes(job)) != 0 ||
                   memcmp(cache_of(job, 1), cache_of(&other, 1), (size_t)cache_bytes(job)) != 0
               ? -1
               : 0;
}

static int measure(struct job *job, const struct bench_report *report, const char *text) {
    const struct bench_variant variants[] = {{prepare, run, NULL, job},
                                             {prepare, run_plain, clean_up_plain, job},
                                             {prepare_ceiling, run_ceiling, NULL, job}};
    struct bench_rounds rounds;
    if (bench_rounds_measure(&rounds, variants, 3, ROUNDS, &job->team->executor,
                             &job->stage->random) != 0 ||
        check(job) != 0)
        return bench_failed(text, &job->error);
    struct bench_line line = {.op = "compressed",
                              .level = pkv_context_cpu_level(job->team->context),
                              .num_threads = job->team->num_threads,
                              .ns = bench_rounds_time(&rounds, 0),
                              .bytes =
                                  2 * (job->num_read + job->num_written) * NUM_TASKS * HEAD_BYTES,
                              .scalar = bench_rounds_speed(&rounds, 0, 1).median,
                              .ceiling = bench_rounds_speed(&rounds, 0, 2)};
    (void)snprintf(line.text, sizeof(line.text), "%s", text);
    bench_report_line(report, &line);
    return CLI_OK;
}

int bench_compressed(struct bench_stage *stage, const struct bench_team *team,
                     const struct bench_report *report) {
    static const int64_t num_heads[] = {1, 5, 40};
    static const struct {
        int32_t mode;
        const char *text;
    } modes[] = {{PKV_SCATTER_MODE_ALIBI, "Alibi, 1501 of 4000"},
                 {PKV_SCATTER_MODE_OMNI, "Omni, 2000 of 4000"},
                 {PKV_SCATTER_MODE_ROPE, "Rope, 2001 of 4000"}};
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        for (size_t j = 0; j < sizeof(num_heads) / sizeof(num_heads[0]); j++) {
            struct job job = {.stage = stage, .team = team, .error.struct_size = sizeof(job.error)};
            char text[BENCH_CASE_TEXT];
            describe(&job, modes[i].mode, num_heads[j]);
            (void)snprintf(text, sizeof(text), "%s, %" PRId64 " x %" PRId64 " heads", modes[i].text,
                           NUM_TASKS / num_heads[j], num_heads[j]);
            const int status = measure(&job, report, text);
            if (status != CLI_OK)
                return status;
        }
    }
    return CLI_OK;
}
