/* SPDX-License-Identifier: MIT
 *
 * The cases of paged attention: real caches, each row of the result against the equations in double
 * (verify_attention_reference.c), within a bound that is computed for that element. What no query
 * sees holds NaN: unused slots, blocks of nobody, and positions outside every window.
 */
#include "verify_other.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_clock.h"
#include "bench_memory.h"
#include "cli_random.h"
#include "verify_attention_reference.h"

enum {
    MAX_SEQS = 8,
    SPARE_BLOCKS = 3,
    STALE_ENTRIES = 2,
    MAX_SIZE = VERIFY_ATTENTION_MAX_HEAD_SIZE
};

struct sizes {
    int64_t num_seqs;
    int64_t lengths[MAX_SEQS][2]; /* queries, and all tokens with them */
    int64_t heads[2];             /* of queries, of keys */
    int64_t head_sizes[2];        /* of keys, of values */
    int64_t block_size;
    int32_t layouts[2];
    int32_t dtypes[2];
    int32_t query_dtype;
    int32_t out_dtype;
    int32_t is_mla; /* values are the first part of each key */
    int32_t non_causal;
    int32_t lse_base;
    int32_t products;
    int32_t mask_dtype; /* 0: no mask */
    int64_t mask_width;
    int32_t has_alibi;
    int32_t has_sinks;
    int64_t left, right; /* positions that a query sees, its own included; 0: all */
    float scale, softcap;
    int64_t num_shared_tokens;
};

static struct verify_result run_case(const struct verify_other *one, struct pkv_context *context,
                                     const struct pkv_executor *executor, int64_t *num_tokens,
                                     int64_t *bytes_checked);

#define OP "paged_attention"
#define BOTH(x)                                                                                    \
    { PKV_##x, PKV_##x }
#define SIZES &(const struct sizes)

/* clang-format off */
const struct verify_other verify_attention_cases[] = {
    {OP, "attention_decode", "  4 sequences to 2345    32/8 x 128 HND, bf16", "one query each, grouped heads",
     SIZES{4, {{1, 1}, {1, 257}, {1, 1000}, {1, 2345}}, {32, 8}, {128, 128}, 128, BOTH(LAYOUT_HND), BOTH(DTYPE_BF16),
           PKV_DTYPE_BF16, .out_dtype = PKV_DTYPE_BF16}, 41, run_case},
    {OP, "attention_prefill", "  3 sequences to 260      8/2 x 64  NHD, f16", "whole prompts, result in float32",
     SIZES{3, {{260, 260}, {17, 17}, {1, 1}}, {8, 2}, {64, 64}, 16, BOTH(LAYOUT_NHD), BOTH(DTYPE_F16),
           PKV_DTYPE_F16, .out_dtype = PKV_DTYPE_F32}, 42, run_case},
    {OP, "attention_chunked", "  2 sequences to 700      9/3 x 80  NHD, f32", "the last part of a prompt",
     SIZES{2, {{35, 700}, {10, 513}}, {9, 3}, {80, 80}, 48, BOTH(LAYOUT_NHD), BOTH(DTYPE_F32),
           PKV_DTYPE_F32, .out_dtype = PKV_DTYPE_F32}, 43, run_case},
    {OP, "attention_mixed", "  6 sequences to 900      8/8 x 96  HND, bf16", "decode, prefill, chunks and none in one call",
     SIZES{6, {{1, 900}, {130, 130}, {0, 50}, {33, 290}, {1, 1}, {0, 0}}, {8, 8}, {96, 96}, 5, BOTH(LAYOUT_HND), BOTH(DTYPE_BF16),
           PKV_DTYPE_BF16, .out_dtype = PKV_DTYPE_F32}, 44, run_case},
    {OP, "attention_mla", "  2 sequences to 600     16/1 x 576/512, bf16", "values are the first 512 elements of the keys",
     SIZES{2, {{1, 600}, {3, 300}}, {16, 1}, {576, 512}, 64, BOTH(LAYOUT_NHD), BOTH(DTYPE_BF16),
           PKV_DTYPE_BF16, .out_dtype = PKV_DTYPE_BF16, .is_mla = 1}, 45, run_case},
    {OP, "attention_window_sinks_softcap_alibi", " 3 to 1500, 8/2 x 128, bf16", "all of them at once, logarithm to base 2",
     SIZES{3, {{1, 1500}, {70, 600}, {20, 20}}, {8, 2}, {128, 128}, 32, BOTH(LAYOUT_HND), BOTH(DTYPE_BF16),
           PKV_DTYPE_F32, .out_dtype = PKV_DTYPE_F32, .lse_base = PKV_LSE_BASE_2, .has_alibi = 1, .has_sinks = 1, .left = 257,
           .scale = 0.25f, .softcap = 20}, 46, run_case},
    {OP, "attention_window_right", "  2 sequences to 400      4/4 x 46  NHD, f16", "not causal: 99 earlier, 30 later tokens",
     SIZES{2, {{60, 400}, {150, 150}}, {4, 4}, {46, 46}, 16, BOTH(LAYOUT_NHD), BOTH(DTYPE_F16),
           PKV_DTYPE_F16, .out_dtype = PKV_DTYPE_F16, .non_causal = 1, .left = 100, .right = 31}, 47, run_case},
    {OP, "attention_mask", "  3 sequences to 500      8/2 x 64  HND, f16", "boolean, over the last 48 positions; empty rows",
     SIZES{3, {{16, 500}, {12, 12}, {1, 49}}, {8, 2}, {64, 64}, 16, BOTH(LAYOUT_HND), BOTH(DTYPE_F16),
           PKV_DTYPE_F16, .out_dtype = PKV_DTYPE_F32, .mask_dtype = PKV_DTYPE_BOOL, .mask_width = 48}, 48, run_case},
    {OP, "attention_mask_added", "  3 sequences to 500      8/2 x 64  NHD, bf16", "additive, with minus infinity; empty rows",
     SIZES{3, {{16, 500}, {12, 12}, {1, 49}}, {8, 2}, {64, 64}, 16, BOTH(LAYOUT_NHD), BOTH(DTYPE_BF16),
           PKV_DTYPE_BF16, .out_dtype = PKV_DTYPE_F32, .non_causal = 1, .mask_dtype = PKV_DTYPE_F32, .mask_width = 48}, 49, run_case},
    {OP, "attention_shared_prefix", "  8 sequences to 900     16/4 x 128 HND, bf16", "the first 512 tokens in the same blocks",
     SIZES{8, {{1, 513}, {1, 700}, {2, 900}, {1, 640}, {1, 512}, {4, 600}, {1, 777}, {1, 530}}, {16, 4}, {128, 128}, 16,
           BOTH(LAYOUT_HND), BOTH(DTYPE_BF16), PKV_DTYPE_BF16, .out_dtype = PKV_DTYPE_F32, .num_shared_tokens = 512}, 50, run_case},
    {OP, "attention_layouts", "  3 sequences to 600      8/2 x 64  packed f16", "keys X_PACKED, values TRANSPOSED",
     SIZES{3, {{1, 600}, {30, 30}, {9, 260}}, {8, 2}, {64, 64}, 16, {PKV_LAYOUT_X_PACKED, PKV_LAYOUT_TRANSPOSED},
           BOTH(DTYPE_F16), PKV_DTYPE_F16, .out_dtype = PKV_DTYPE_F32}, 51, run_case},
    {OP, "attention_layouts_nz", "  3 sequences to 600      8/2 x 64/96 NZ/HND", "keys PA_NZ in float32, values HND in bfloat16",
     SIZES{3, {{1, 600}, {30, 30}, {9, 260}}, {8, 2}, {64, 96}, 128, {PKV_LAYOUT_PA_NZ, PKV_LAYOUT_HND},
           {PKV_DTYPE_F32, PKV_DTYPE_BF16}, PKV_DTYPE_BF16, .out_dtype = PKV_DTYPE_F32}, 52, run_case},
    {OP, "attention_products_bf16", "  3 sequences to 600      8/2 x 128 HND, bf16", "products of bfloat16 where there are any",
     SIZES{3, {{1, 600}, {130, 130}, {20, 290}}, {8, 2}, {128, 128}, 128, BOTH(LAYOUT_HND), BOTH(DTYPE_BF16),
           PKV_DTYPE_BF16, .out_dtype = PKV_DTYPE_F32, .products = PKV_ATTENTION_PRODUCTS_BF16}, 53, run_case},
    {NULL, NULL, NULL, NULL, NULL, 0, NULL},
};
/* clang-format on */

/* Everything that is drawn and asked for. */
struct job {
    const struct sizes *sizes;
    struct cli_random random;
    struct pkv_context *context;
    const struct pkv_executor *executor;
    int64_t num_tokens; /* queries of all sequences */
    int64_t max_seq_len;
    int64_t num_read_bytes; /* of keys and values that some query sees */
    int64_t width;          /* of the block table */
    struct verify_attention_part parts[2];
    struct bench_memory memory[2]; /* of the parts */
    int32_t *block_table;
    int32_t seq_lens[MAX_SEQS];
    int32_t query_start_loc[MAX_SEQS + 1];
    void *query;
    void *out;
    float *lse;
    void *mask;         /* as the library gets it */
    double *mask_row;   /* of one token, as the reference gets it */
    double *numbers[2]; /* one head of a sequence */
    double *scores;
    float *slopes;
    float *sinks;
    struct pkv_error error;
};

static int64_t dtype_bytes(int32_t dtype) {
    return dtype == PKV_DTYPE_F32 ? 4 : dtype == PKV_DTYPE_BOOL ? 1 : 2;
}

static int64_t part_bytes(const struct verify_attention_part *part) {
    return part->num_blocks * part->block_size * part->num_heads * part->head_size *
           dtype_bytes(part->dtype);
}

/* ---- random numbers ---- */

/* Magnitudes from 1/8 to 2, every bit of the fraction random. */
static void draw(struct cli_random *random, int32_t dtype, void *data, int64_t i) {
    const uint64_t bits = cli_random_next(random);
    const uint32_t sign = (uint32_t)(bits & 1), exponent = (uint32_t)(bits >> 1 & 3);
    const uint32_t fraction = (uint32_t)(bits >> 32);
    if (dtype == PKV_DTYPE_F32) {
        ((uint32_t *)data)[i] = sign << 31 | (124 + exponent) << 23 | (fraction & 0x7fffff);
        return;
    }
    const uint32_t code = dtype == PKV_DTYPE_F16
                              ? sign << 15 | (12 + exponent) << 10 | (fraction & 0x3ff)
                              : sign << 15 | (124 + exponent) << 7 | (fraction & 0x7f);
    ((uint16_t *)data)[i] = (uint16_t)code;
}

/* The positions that query number i of a sequence sees: begin ... end - 1. */
static void visible(const struct sizes *sizes, int64_t seq, int64_t i, int64_t *begin,
                    int64_t *end) {
    const int64_t seq_len = sizes->lengths[seq][1];
    const int64_t position = seq_len - sizes->lengths[seq][0] + i;
    *begin = sizes->left > 0 && position + 1 > sizes->left ? position + 1 - sizes->left : 0;
    *end = sizes->non_causal ? seq_len : position + 1;
    if (sizes->non_causal && sizes->right > 0 && position + sizes->right < seq_len)
        *end = position + sizes->right;
}

/* Numbers for the positions that some query of the sequence sees; NaN stays in the others. */
static void fill_sequence(struct job *job, int64_t seq) {
    const struct sizes *sizes = job->sizes;
    int64_t begin, end, ignored;
    if (sizes->lengths[seq][0] == 0)
        return;
    visible(sizes, seq, 0, &begin, &ignored);
    visible(sizes, seq, sizes->lengths[seq][0] - 1, &ignored, &end);
    for (int part_number = 0; part_number < 2 - sizes->is_mla; part_number++) {
        const struct verify_attention_part *part = &job->parts[part_number];
        job->num_read_bytes +=
            (end - begin) * part->num_heads * part->head_size * dtype_bytes(part->dtype);
        for (int64_t t = begin; t < end; t++) {
            const int64_t block = job->block_table[seq * job->width + t / sizes->block_size];
            for (int64_t j = 0; j < part->num_heads * part->head_size; j++)
                draw(&job->random, part->dtype, part->data,
                     verify_attention_at(part, block, t % sizes->block_size, j / part->head_size,
                                         j % part->head_size));
        }
    }
}

/* Blocks in random order, each in one sequence but for the shared ones; entries behind a sequence's
 * last block hold ids that are none. */
static int draw_block_table(struct job *job, int64_t num_blocks) {
    const struct sizes *sizes = job->sizes;
    const int64_t num_shared = sizes->num_shared_tokens / sizes->block_size;
    int64_t *ids = malloc((size_t)num_blocks * sizeof(ids[0]));
    int64_t next = 0;
    if (ids == NULL)
        return -1;
    for (int64_t i = 0; i < num_blocks; i++)
        ids[i] = i;
    cli_random_shuffle(&job->random, ids, num_blocks);
    for (int64_t seq = 0; seq < sizes->num_seqs; seq++) {
        int32_t *row = job->block_table + seq * job->width;
        for (int64_t i = 0; i < job->width; i++) {
            if (i * sizes->block_size >= sizes->lengths[seq][1])
                row[i] = i % 2 == 0 ? -7 : INT32_MAX;
            else if (seq > 0 && i < num_shared)
                row[i] = job->block_table[i];
            else
                row[i] = (int32_t)ids[next++];
        }
    }
    free(ids);
    return 0;
}

/* A quarter of the positions is hidden, the first query of each sequence sees nothing of the mask's
 * columns, and columns before the first position, which are not read, would do harm. */
static void draw_mask(struct job *job) {
    const struct sizes *sizes = job->sizes;
    for (int64_t seq = 0; seq < sizes->num_seqs; seq++) {
        for (int64_t i = 0; i < sizes->lengths[seq][0]; i++) {
            const int64_t first = (job->query_start_loc[seq] + i) * sizes->mask_width;
            for (int64_t column = 0; column < sizes->mask_width; column++) {
                const int64_t draws = cli_random_below(&job->random, 1024);
                const int is_hidden = i == 0 || draws < 256;
                const int is_unread = column < sizes->mask_width - sizes->lengths[seq][1];
                if (sizes->mask_dtype == PKV_DTYPE_BOOL)
                    ((unsigned char *)job->mask)[first + column] =
                        (unsigned char)(is_unread || !is_hidden);
                else
                    ((float *)job->mask)[first + column] = is_unread   ? NAN
                                                           : is_hidden ? -INFINITY
                                                                       : (float)(draws - 640) / 128;
            }
        }
    }
}

/* ---- memory ---- */

static int alloc_part(struct job *job, int number, int64_t num_blocks) {
    const struct sizes *sizes = job->sizes;
    struct verify_attention_part *part = &job->parts[number];
    *part = (struct verify_attention_part){.dtype = sizes->dtypes[number],
                                           .layout = sizes->layouts[number],
                                           .num_blocks = num_blocks,
                                           .block_size = sizes->block_size,
                                           .num_heads = sizes->heads[1],
                                           .head_size = sizes->head_sizes[number]};
    if (bench_memory_map(&job->memory[number], part_bytes(part), BENCH_PAGES_HUGE, job->executor) !=
        0)
        return -1;
    part->data = job->memory[number].data;
    memset(part->data, 0xff, (size_t)part_bytes(part)); /* a NaN in all three dtypes */
    return 0;
}

static int create(struct job *job) {
    const struct sizes *sizes = job->sizes;
    int64_t num_blocks = SPARE_BLOCKS;
    for (int64_t seq = 0; seq < sizes->num_seqs; seq++) {
        const int64_t length = sizes->lengths[seq][1];
        job->seq_lens[seq] = (int32_t)length;
        job->num_tokens += sizes->lengths[seq][0];
        job->query_start_loc[seq + 1] = (int32_t)job->num_tokens;
        job->max_seq_len = length > job->max_seq_len ? length : job->max_seq_len;
        num_blocks += (length + sizes->block_size - 1) / sizes->block_size;
    }
    job->width = (job->max_seq_len + sizes->block_size - 1) / sizes->block_size + STALE_ENTRIES;
    const int64_t rows = job->num_tokens * sizes->heads[0];
    const int64_t mask_bytes = job->num_tokens * sizes->mask_width * dtype_bytes(sizes->mask_dtype);
    job->block_table = malloc((size_t)(sizes->num_seqs * job->width) * sizeof(int32_t));
    job->query = malloc((size_t)(rows * sizes->head_sizes[0] * dtype_bytes(sizes->query_dtype)));
    job->out = malloc((size_t)(rows * sizes->head_sizes[1] * dtype_bytes(sizes->out_dtype)));
    job->lse = malloc((size_t)rows * sizeof(job->lse[0]));
    job->mask = malloc((size_t)mask_bytes + 1);
    job->mask_row = malloc((size_t)(sizes->mask_width + 1) * sizeof(double));
    job->scores = malloc((size_t)job->max_seq_len * sizeof(double));
    job->slopes = malloc((size_t)sizes->heads[0] * sizeof(float));
    job->sinks = malloc((size_t)sizes->heads[0] * sizeof(float));
    for (int i = 0; i < 2; i++)
        job->numbers[i] = malloc((size_t)(job->max_seq_len * MAX_SIZE) * sizeof(double));
    if (job->block_table == NULL || job->query == NULL || job->out == NULL || job->lse == NULL ||
        job->mask == NULL || job->mask_row == NULL || job->scores == NULL || job->slopes == NULL ||
        job->sinks == NULL || job->numbers[0] == NULL || job->numbers[1] == NULL ||
        alloc_part(job, 0, num_blocks) != 0 ||
        (!sizes->is_mla && alloc_part(job, 1, num_blocks) != 0) ||
        draw_block_table(job, num_blocks) != 0)
        return -1;
    memset(job->out, 0xff, (size_t)(rows * sizes->head_sizes[1] * dtype_bytes(sizes->out_dtype)));
    memset(job->lse, 0xff, (size_t)rows * sizeof(job->lse[0]));
    for (int64_t seq = 0; seq < sizes->num_seqs; seq++)
        fill_sequence(job, seq);
    for (int64_t i = 0; i < rows * sizes->head_sizes[0]; i++)
        draw(&job->random, sizes->query_dtype, job->query, i);
    for (int64_t head = 0; head < sizes->heads[0]; head++) {
        job->slopes[head] = (float)(head + 1) / 64;
        job->sinks[head] = (float)(head % 5) - 1;
    }
    draw_mask(job);
    return 0;
}

static void destroy(struct job *job) {
    bench_memory_unmap(&job->memory[0]);
    bench_memory_unmap(&job->memory[1]);
    free(job->block_table);
    free(job->query);
    free(job->out);
    free(job->lse);
    free(job->mask);
    free(job->mask_row);
    free(job->scores);
    free(job->slopes);
    free(job->sinks);
    free(job->numbers[0]);
    free(job->numbers[1]);
}

/* ---- the call ---- */

static struct pkv_tensor part_tensor(const struct verify_attention_part *part) {
    const int64_t blocks = part->num_blocks, tokens = part->block_size;
    const int64_t heads = part->num_heads, size = part->head_size;
    const int64_t bytes = part->layout == PKV_LAYOUT_PA_NZ ? 32 : 16;
    const int64_t length = bytes / dtype_bytes(part->dtype);
    const int64_t shapes[][5] = {
        [PKV_LAYOUT_NHD] = {blocks, tokens, heads, size},
        [PKV_LAYOUT_HND] = {blocks, heads, tokens, size},
        [PKV_LAYOUT_PA_NZ] = {blocks, heads, size / length, tokens, length},
        [PKV_LAYOUT_X_PACKED] = {blocks, heads, size / length, tokens, length},
        [PKV_LAYOUT_TRANSPOSED] = {blocks, heads, size, tokens},
    };
    const int32_t ndim =
        part->layout == PKV_LAYOUT_PA_NZ || part->layout == PKV_LAYOUT_X_PACKED ? 5 : 4;
    return pkv_tensor_make(part->data, part->dtype, ndim, shapes[part->layout]);
}

static enum pkv_status describe_cache(struct job *job, struct pkv_cache *cache) {
    const struct sizes *sizes = job->sizes;
    const struct pkv_cache_options options = {.struct_size = sizeof(options),
                                              .key_layout = sizes->layouts[0],
                                              .value_layout = sizes->layouts[1]};
    const struct pkv_tensor key = part_tensor(&job->parts[0]);
    if (sizes->is_mla)
        return pkv_cache_init(cache, &key, NULL, &options, &job->error);
    const struct pkv_tensor value = part_tensor(&job->parts[1]);
    return pkv_cache_init(cache, &key, &value, &options, &job->error);
}

static enum pkv_status set_step(struct job *job, struct pkv_step *step,
                                const struct pkv_cache *cache) {
    const struct sizes *sizes = job->sizes;
    const int64_t table[] = {sizes->num_seqs, job->width};
    const int64_t totals = sizes->num_seqs + 1;
    const struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .block_table = pkv_tensor_make(job->block_table, PKV_DTYPE_I32, 2, table),
        .seq_lens = pkv_tensor_make(job->seq_lens, PKV_DTYPE_I32, 1, table),
        .query_start_loc = pkv_tensor_make(job->query_start_loc, PKV_DTYPE_I32, 1, &totals),
        .num_shared_tokens = sizes->num_shared_tokens};
    return pkv_step_set(job->context, step, cache, &indices, &job->error);
}

static enum pkv_status attend(struct job *job, const struct pkv_paged_attention_plan *plan,
                              const struct pkv_step *step, const struct pkv_cache *cache) {
    const struct sizes *sizes = job->sizes;
    const int64_t query[] = {job->num_tokens, sizes->heads[0], sizes->head_sizes[0]};
    const int64_t out[] = {job->num_tokens, sizes->heads[0], sizes->head_sizes[1]};
    const int64_t mask[] = {job->num_tokens, sizes->mask_width};
    struct pkv_paged_attention_tensors tensors = {
        .struct_size = sizeof(tensors),
        .query = pkv_tensor_make(job->query, sizes->query_dtype, 3, query),
        .out = pkv_tensor_make(job->out, sizes->out_dtype, 3, out),
        .lse = pkv_tensor_make(job->lse, PKV_DTYPE_F32, 2, out)};
    if (sizes->has_alibi)
        tensors.alibi_slopes = pkv_tensor_make(job->slopes, PKV_DTYPE_F32, 1, sizes->heads);
    if (sizes->has_sinks)
        tensors.sinks = pkv_tensor_make(job->sinks, PKV_DTYPE_F32, 1, sizes->heads);
    if (sizes->mask_dtype != 0)
        tensors.mask = pkv_tensor_make(job->mask, sizes->mask_dtype, 2, mask);
    return pkv_paged_attention_run(job->context, plan, step, cache, &tensors, &job->error);
}

/* Plan, step and one run, of which the time is taken. */
static enum pkv_status run(struct job *job, int64_t *ns) {
    const struct sizes *sizes = job->sizes;
    const struct pkv_paged_attention_options options = {.struct_size = sizeof(options),
                                                        .num_heads = sizes->heads[0],
                                                        .value_head_size = sizes->head_sizes[1],
                                                        .query_dtype = sizes->query_dtype,
                                                        .products = sizes->products,
                                                        .scale = sizes->scale,
                                                        .softcap = sizes->softcap,
                                                        .non_causal = sizes->non_causal,
                                                        .lse_base = sizes->lse_base,
                                                        .max_visible_left = sizes->left,
                                                        .max_visible_right = sizes->right};
    struct pkv_cache cache;
    struct pkv_paged_attention_plan *plan = NULL;
    struct pkv_step *step = NULL;
    enum pkv_status status = describe_cache(job, &cache);
    if (status == PKV_STATUS_OK)
        status =
            pkv_paged_attention_plan_create(&plan, job->context, &cache, &options, &job->error);
    if (status == PKV_STATUS_OK)
        status = pkv_step_create(&step, NULL, &job->error);
    if (status == PKV_STATUS_OK)
        status = set_step(job, step, &cache);
    if (status == PKV_STATUS_OK) {
        const int64_t begin = bench_now_ns();
        status = attend(job, plan, step, &cache);
        *ns = bench_now_ns() - begin;
    }
    pkv_step_destroy(step);
    pkv_paged_attention_plan_destroy(plan);
    return status;
}

/* ---- the check ---- */

/* Takes an element into the result, the one nearest to its bound. Returns 0 if it is beyond it. */
static int is_within(struct verify_result *result, double found, double expected, double bound) {
    const double error = found == expected ? 0 : fabs(found - expected);
    if (!(error <= bound))
        return 0;
    if (bound > 0 && (result->bound == 0 || error * result->bound > result->error * bound)) {
        result->error = error;
        result->bound = bound;
    }
    return 1;
}

static void compare_row(const struct job *job, const struct verify_attention_answer *answer,
                        int64_t token, int64_t head, struct verify_result *result) {
    const struct sizes *sizes = job->sizes;
    const int64_t size = sizes->head_sizes[1], row = token * sizes->heads[0] + head;
    const double unit = sizes->lse_base == PKV_LSE_BASE_2 ? log(2) : 1;
    double found = (double)job->lse[row], expected = answer->lse / unit;
    double bound = answer->lse_bound / unit;
    int64_t d = 0;
    int is_good = is_within(result, found, expected, bound);
    for (; is_good && d < size; d++) {
        found = verify_attention_number(sizes->out_dtype, job->out, row * size + d);
        expected = answer->out[d];
        bound = verify_attention_rounded_bound(sizes->out_dtype, expected, answer->out_bound[d]);
        is_good = is_within(result, found, expected, bound);
    }
    if (is_good)
        return;
    result->verdict = VERIFY_FAIL;
    (void)snprintf(result->message, sizeof(result->message),
                   "%s, token %" PRId64 ", head %" PRId64 ", element %" PRId64
                   ": found %.9g, expected %.9g within %.2g",
                   d == 0 ? "lse" : "out", token, head, d == 0 ? 0 : d - 1, found, expected, bound);
}

static void check_row(struct job *job, int64_t seq, int64_t i, int64_t head,
                      struct verify_result *result) {
    const struct sizes *sizes = job->sizes;
    const int64_t token = job->query_start_loc[seq] + i, size = sizes->head_sizes[0];
    double query[MAX_SIZE];
    struct verify_attention_answer answer;
    struct verify_attention_row row = {
        .query = query,
        .keys = job->numbers[0],
        .values = job->numbers[sizes->is_mla ? 0 : 1],
        .head_size = size,
        .value_head_size = sizes->head_sizes[1],
        .value_stride = sizes->is_mla ? size : sizes->head_sizes[1],
        .seq_len = sizes->lengths[seq][1],
        .position = sizes->lengths[seq][1] - sizes->lengths[seq][0] + i,
        .scale = sizes->scale != 0 ? (double)sizes->scale : 1 / sqrt((double)size),
        .softcap = (double)sizes->softcap,
        .slope = sizes->has_alibi ? (double)job->slopes[head] : 0,
        .sink = sizes->has_sinks ? (double)job->sinks[head] : (double)-INFINITY,
        .mask = sizes->mask_dtype != 0 ? job->mask_row : NULL,
        .mask_width = sizes->mask_width,
        .scores = job->scores,
        .has_bf16_products = sizes->products == PKV_ATTENTION_PRODUCTS_BF16};
    visible(sizes, seq, i, &row.begin, &row.end);
    for (int64_t d = 0; d < size; d++)
        query[d] = verify_attention_number(sizes->query_dtype, job->query,
                                           (token * sizes->heads[0] + head) * size + d);
    for (int64_t column = 0; column < sizes->mask_width; column++) {
        const int64_t at = token * sizes->mask_width + column;
        if (sizes->mask_dtype == PKV_DTYPE_F32)
            job->mask_row[column] = (double)((const float *)job->mask)[at];
        else
            job->mask_row[column] = ((const unsigned char *)job->mask)[at] ? 0 : (double)-INFINITY;
    }
    verify_attention_row(&row, &answer);
    compare_row(job, &answer, token, head, result);
}

static void check(struct job *job, struct verify_result *result) {
    const struct sizes *sizes = job->sizes;
    const int64_t group = sizes->heads[0] / sizes->heads[1];
    for (int64_t seq = 0; seq < sizes->num_seqs; seq++) {
        const int32_t *blocks = job->block_table + seq * job->width;
        for (int64_t kv_head = 0; kv_head < sizes->heads[1]; kv_head++) {
            for (int part = 0; part < 2 - sizes->is_mla; part++)
                verify_attention_gather(&job->parts[part], blocks, sizes->lengths[seq][1], kv_head,
                                        job->numbers[part]);
            for (int64_t row = 0; row < sizes->lengths[seq][0] * group; row++) {
                check_row(job, seq, row / group, kv_head * group + row % group, result);
                if (result->verdict != VERIFY_PASS)
                    return;
            }
        }
    }
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
    int64_t ns = 0;
    (void)num_tokens;
    (void)bytes_checked;
    if (create(&job) != 0) {
        (void)snprintf(result.message, sizeof(result.message), "no memory for the cache");
    } else if (run(&job, &ns) != PKV_STATUS_OK) {
        (void)pkv_error_text(&job.error, result.message, sizeof(result.message));
    } else {
        result.verdict = VERIFY_PASS;
        result.bytes = job.num_read_bytes;
        result.ns = (struct bench_spread){(double)ns, (double)ns, (double)ns};
        check(&job, &result);
    }
    destroy(&job);
    return result;
}
