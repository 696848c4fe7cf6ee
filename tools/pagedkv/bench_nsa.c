/* SPDX-License-Identifier: MIT
 *
 * The lines of nsa_compress_with_cache: sequences that all complete a window, their blocks fresh in
 * every sample, beside a plain loop over float32 and one sequential read of as many bytes.
 */
#include "bench_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_ceiling.h"
#include "bench_rounds.h"
#include "bench_threads.h"
#include "cli.h"

enum {
    ROUNDS = 25,
    PAGE = BENCH_BLOCK_SIZE,
    HEADS = BENCH_NUM_HEADS,
    SIZE = BENCH_HEAD_SIZE,
    NUM_SEQS = 256,
    WINDOW = 32,
    STRIDE = 16
};

/* Each sequence has one block, which its window fills from the start. */
struct nsa_job {
    struct bench_stage *stage;
    const struct bench_team *team;
    struct pkv_tensor input, weight, slots, lengths, table, output;
    uint16_t weights[WINDOW * HEADS];
    int64_t slot_of[NUM_SEQS], length_of[NUM_SEQS], block_of[NUM_SEQS];
    int64_t region; /* of the sequential read */
    int64_t sums[64];
    struct pkv_error error;
};

static void create(struct nsa_job *job) {
    struct bench_stage *stage = job->stage;
    const int64_t in[4] = {stage->num_blocks, PAGE, HEADS, SIZE};
    const int64_t w[2] = {WINDOW, HEADS}, out[3] = {NUM_SEQS, HEADS, SIZE};
    const int64_t seqs[2] = {NUM_SEQS, 1};
    job->input = pkv_tensor_make(stage->key_cache.data, PKV_DTYPE_BF16, 4, in);
    job->weight = pkv_tensor_make(job->weights, PKV_DTYPE_BF16, 2, w);
    job->output = pkv_tensor_make(stage->key_output.data, PKV_DTYPE_BF16, 3, out);
    job->slots = pkv_tensor_make(job->slot_of, PKV_DTYPE_I64, 1, seqs);
    job->lengths = pkv_tensor_make(job->length_of, PKV_DTYPE_I64, 1, seqs);
    job->table = pkv_tensor_make(job->block_of, PKV_DTYPE_I64, 2, seqs);
    for (int i = 0; i < WINDOW * HEADS; i++)
        job->weights[i] = (uint16_t)(0x3d00 + i % 64); /* about 1/32 */
    for (int64_t b = 0; b < NUM_SEQS; b++) {
        job->slot_of[b] = b;
        job->length_of[b] = WINDOW;
    }
}

static int prepare(void *arg) {
    struct nsa_job *job = arg;
    memcpy(job->block_of, bench_walk_take(&job->stage->blocks, NUM_SEQS), sizeof(job->block_of));
    return 0;
}

static int run_nsa(void *arg) {
    struct nsa_job *job = arg;
    const struct pkv_nsa_compress_options options = {.struct_size = sizeof(options),
                                                     .compress_stride = STRIDE};
    return pkv_nsa_compress_with_cache(job->team->context, &job->input, &job->weight, &job->slots,
                                       &job->lengths, &job->table, &job->output, &options,
                                       &job->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

static float float_of(uint16_t code) {
    const uint32_t bits = (uint32_t)code << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* What an engine without a library writes: token after token into sums of float32. */
static void compress_share(void *arg, int64_t index) {
    const struct nsa_job *job = arg;
    const int64_t threads = job->team->num_threads;
    const uint16_t *input = job->input.data;
    uint16_t *output = (uint16_t *)(void *)job->stage->value_output.data;
    for (int64_t b = NUM_SEQS * index / threads; b < NUM_SEQS * (index + 1) / threads; b++) {
        float sums[HEADS * SIZE] = {0};
        const uint16_t *rows = input + job->block_of[b] * PAGE * HEADS * SIZE;
        for (int64_t t = 0; t < WINDOW; t++) {
            for (int64_t i = 0; i < HEADS * SIZE; i++)
                sums[i] += float_of(rows[t * HEADS * SIZE + i]) *
                           float_of(job->weights[t * HEADS + i / SIZE]);
        }
        for (int64_t i = 0; i < HEADS * SIZE; i++) {
            uint32_t bits;
            memcpy(&bits, &sums[i], sizeof(bits));
            output[b * HEADS * SIZE + i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
    }
}

static int run_plain_loop(void *arg) {
    struct nsa_job *job = arg;
    bench_run_tiles(&job->team->executor, compress_share, job, job->team->num_threads);
    return 0;
}

static int prepare_region(void *arg) {
    struct nsa_job *job = arg;
    job->region = bench_stage_take_region(job->stage, NUM_SEQS * WINDOW);
    return 0;
}

/* Every word of as many bytes as the windows have. */
static void read_share(void *arg, int64_t index) {
    struct nsa_job *job = arg;
    const int64_t bytes = (int64_t)NUM_SEQS * WINDOW * BENCH_ROW_BYTES / job->team->num_threads;
    const unsigned char *from =
        job->stage->key_cache.data + job->region * BENCH_ROW_BYTES + index * bytes;
    uint64_t sum = 0;
    for (int64_t i = 0; i < bytes; i += 8) {
        uint64_t word;
        memcpy(&word, from + i, sizeof(word));
        sum += word;
    }
    job->sums[index % 64] = (int64_t)sum;
}

static int run_ceiling(void *arg) {
    struct nsa_job *job = arg;
    bench_run_tiles(&job->team->executor, read_share, job, job->team->num_threads);
    return 0;
}

/* Both trees written out, for the four tiles of this window. */
static float sum_of(const struct nsa_job *job, int64_t b, int64_t i) {
    const uint16_t *rows =
        (const uint16_t *)job->input.data + job->block_of[b] * PAGE * HEADS * SIZE;
    float tiles[WINDOW / 8];
    for (int64_t tile = 0; tile < WINDOW / 8; tile++) {
        float p[8];
        for (int64_t t = 0; t < 8; t++)
            p[t] = float_of(rows[(8 * tile + t) * HEADS * SIZE + i]) *
                   float_of(job->weights[(8 * tile + t) * HEADS + i / SIZE]);
        tiles[tile] = ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
    }
    return (tiles[0] + tiles[2]) + (tiles[1] + tiles[3]);
}

static int check(struct nsa_job *job) {
    (void)prepare(job);
    for (int64_t b = 0; b < NUM_SEQS; b++) {
        uint16_t *rows = (uint16_t *)job->input.data + job->block_of[b] * PAGE * HEADS * SIZE;
        for (int64_t i = 0; i < WINDOW * HEADS * SIZE; i++)
            rows[i] = (uint16_t)(0x3f00 + (cli_random_next(&job->stage->random) & 0x80ff));
    }
    if (run_nsa(job) != 0)
        return -1;
    const uint16_t *output = job->output.data;
    for (int64_t i = 0; i < (int64_t)NUM_SEQS * HEADS * SIZE; i++) {
        const float sum = sum_of(job, i / (HEADS * SIZE), i % (HEADS * SIZE));
        uint32_t bits;
        memcpy(&bits, &sum, sizeof(bits));
        if (output[i] != (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16))
            return -1;
    }
    return 0;
}

int bench_nsa_compress(struct bench_stage *stage, const struct bench_team *team,
                       const struct bench_report *report) {
    struct nsa_job *job = calloc(1, sizeof(*job));
    struct bench_rounds rounds;
    if (job == NULL)
        return cli_error("bench", "out of memory; free some");
    job->stage = stage;
    job->team = team;
    job->error.struct_size = sizeof(job->error);
    create(job);
    const struct bench_variant variants[] = {{prepare, run_nsa, NULL, job},
                                             {prepare, run_plain_loop, NULL, job},
                                             {prepare_region, run_ceiling, NULL, job}};
    int status =
        bench_rounds_measure(&rounds, variants, 3, ROUNDS, &team->executor, &stage->random) != 0 ||
                check(job) != 0
            ? bench_failed("nsa_compress", &job->error)
            : CLI_OK;
    free(job);
    if (status != CLI_OK)
        return status;
    struct bench_line line = {.op = "nsa_compress",
                              .text = "256 windows of 32 tokens, 2 x 256",
                              .level = pkv_context_cpu_level(team->context),
                              .num_threads = team->num_threads,
                              .ns = bench_rounds_time(&rounds, 0),
                              .bytes = (int64_t)NUM_SEQS * WINDOW * BENCH_ROW_BYTES,
                              .scalar = bench_rounds_speed(&rounds, 0, 1).median,
                              .ceiling = bench_rounds_speed(&rounds, 0, 2)};
    (void)snprintf(line.note, sizeof(line.note), "ceiling: a read");
    bench_report_line(report, &line);
    return CLI_OK;
}
