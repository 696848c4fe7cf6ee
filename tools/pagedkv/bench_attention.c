/* SPDX-License-Identifier: MIT
 *
 * The lines of paged attention: decode beside a sequential read of the same keys and values, MLA
 * and prefill beside the peak of the unit that multiplies. The caches are layers of one memory,
 * taken in turn, so that their keys and values are cold.
 */
#include "bench_ops.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_attention_peak.h"
#include "bench_rounds.h"
#include "bench_threads.h"
#include "cli.h"
#include "verify_attention_reference.h"

enum {
    MIN_ROUNDS = 5,
    MAX_ROUNDS = 31,
    ROUNDS_NS = 200000000, /* what the runs of a case may take, if its speed is as guessed */
    GUESSED_GB_PER_S = 20,
    GUESSED_GFLOPS = 150,
    ELEMENT_BYTES = 2,         /* keys and values are bfloat16 */
    PATTERN_ELEMENTS = 1000003 /* no multiple of a block: no two blocks hold the same */
};

/* What the products are of, and what does them: the unit of the scores and that of the values. */
struct arithmetic {
    const char *what;
    int32_t query_dtype;
    int32_t products;
    enum bench_unit units[2];
};

struct sizes {
    const char *what;
    int64_t num_seqs;
    int64_t query_len;
    int64_t seq_len; /* with the queries */
    int64_t block_size;
    int64_t num_heads, num_kv_heads;
    int64_t head_size, value_head_size;
    int32_t layout;
    const struct arithmetic *arithmetic;
    int is_mla;
    int has_read_ceiling; /* 1: a sequential read; 0: the peak of the unit */
};

struct job {
    struct bench_stage *stage;
    const struct bench_team *team;
    const struct sizes *sizes;
    int64_t num_blocks;             /* of a layer: each block is used */
    int64_t key_bytes, value_bytes; /* of a layer */
    int64_t num_layers;
    int64_t layer; /* taken last */
    struct pkv_cache cache;
    struct pkv_paged_attention_plan *plan;
    struct pkv_step *step;
    struct pkv_paged_attention_tensors tensors;
    int32_t *block_table; /* [num_seqs, blocks of a sequence] */
    int32_t *lengths;     /* [num_seqs], then [num_seqs + 1] of query_start_loc */
    double unit_flops[2]; /* of one sample of the peak, for scores and for values */
    uint64_t sum;         /* of what was read */
    struct pkv_error error;
};

/* ---- memory ---- */

/* Random numbers of magnitudes from 1/8 to 2. */
static void fill_pattern(struct cli_random *random, uint16_t *elements, int64_t num_elements) {
    for (int64_t i = 0; i < num_elements; i++) {
        const uint64_t bits = cli_random_next(random);
        elements[i] =
            (uint16_t)((bits & 1) << 15 | (124 + (bits >> 1 & 3)) << 7 | (bits >> 8 & 127));
    }
}

struct fill {
    const uint16_t *pattern;
    struct bench_memory *memory;
};

static void fill_tile(void *arg, int64_t index) {
    const struct fill *fill = arg;
    const int64_t pattern_bytes = (int64_t)PATTERN_ELEMENTS * ELEMENT_BYTES;
    const int64_t first = index * pattern_bytes, rest = fill->memory->bytes - first;
    memcpy(fill->memory->data + first, fill->pattern,
           (size_t)(rest < pattern_bytes ? rest : pattern_bytes));
}

/* What other measurements left in the caches may be no numbers. */
static int fill_caches(struct bench_stage *stage, const struct bench_team *team) {
    const int64_t pattern_bytes = (int64_t)PATTERN_ELEMENTS * ELEMENT_BYTES;
    uint16_t *pattern = malloc((size_t)pattern_bytes);
    if (pattern == NULL)
        return cli_error("bench", "out of memory; free some");
    fill_pattern(&stage->random, pattern, PATTERN_ELEMENTS);
    struct fill fills[] = {{pattern, &stage->key_cache}, {pattern, &stage->value_cache}};
    for (int i = 0; i < 2; i++)
        bench_run_tiles(&team->executor, fill_tile, &fills[i],
                        (fills[i].memory->bytes + pattern_bytes - 1) / pattern_bytes);
    free(pattern);
    return CLI_OK;
}

/* The layer after the one that was taken last, as addresses. */
static void take_layer(struct job *job, struct bench_read spans[2]) {
    job->layer = (job->layer + 1) % job->num_layers;
    spans[0] = (struct bench_read){job->stage->key_cache.data + job->layer * job->key_bytes,
                                   job->key_bytes};
    spans[1] = (struct bench_read){job->stage->value_cache.data + job->layer * job->value_bytes,
                                   job->value_bytes};
}

static enum pkv_status describe_layer(struct job *job) {
    const struct sizes *sizes = job->sizes;
    struct bench_read spans[2];
    struct pkv_tensor parts[2];
    take_layer(job, spans);
    for (int i = 0; i < 2; i++) {
        const int64_t size = i == 0 ? sizes->head_size : sizes->value_head_size;
        const int64_t nhd[] = {job->num_blocks, sizes->block_size, sizes->num_kv_heads, size};
        const int64_t hnd[] = {job->num_blocks, sizes->num_kv_heads, sizes->block_size, size};
        parts[i] = pkv_tensor_make((void *)spans[i].data, PKV_DTYPE_BF16, 4,
                                   sizes->layout == PKV_LAYOUT_HND ? hnd : nhd);
    }
    const struct pkv_cache_options options = {
        .struct_size = sizeof(options), .key_layout = sizes->layout, .value_layout = sizes->layout};
    return pkv_cache_init(&job->cache, &parts[0], sizes->is_mla ? NULL : &parts[1], &options,
                          &job->error);
}

/* ---- plan, step and tensors ---- */

static enum pkv_status set_step(struct job *job) {
    const struct sizes *sizes = job->sizes;
    const int64_t table[] = {sizes->num_seqs, job->num_blocks / sizes->num_seqs};
    const int64_t totals = sizes->num_seqs + 1;
    int32_t *query_start_loc = job->lengths + sizes->num_seqs;
    for (int64_t i = 0; i <= sizes->num_seqs; i++)
        query_start_loc[i] = (int32_t)(i * sizes->query_len);
    for (int64_t i = 0; i < sizes->num_seqs; i++)
        job->lengths[i] = (int32_t)sizes->seq_len;
    const struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .block_table = pkv_tensor_make(job->block_table, PKV_DTYPE_I32, 2, table),
        .seq_lens = pkv_tensor_make(job->lengths, PKV_DTYPE_I32, 1, table),
        .query_start_loc = pkv_tensor_make(query_start_loc, PKV_DTYPE_I32, 1, &totals)};
    return pkv_step_set(job->team->context, job->step, &job->cache, &indices, &job->error);
}

static int draw_tables(struct job *job) {
    const struct sizes *sizes = job->sizes;
    int64_t *ids = malloc((size_t)job->num_blocks * sizeof(ids[0]));
    job->block_table = malloc((size_t)job->num_blocks * sizeof(job->block_table[0]));
    job->lengths = malloc((size_t)(2 * sizes->num_seqs + 1) * sizeof(job->lengths[0]));
    const int failed = ids == NULL || job->block_table == NULL || job->lengths == NULL;
    for (int64_t i = 0; !failed && i < job->num_blocks; i++)
        ids[i] = i;
    if (!failed)
        cli_random_shuffle(&job->stage->random, ids, job->num_blocks);
    for (int64_t i = 0; !failed && i < job->num_blocks; i++)
        job->block_table[i] = (int32_t)ids[i];
    free(ids);
    return failed ? -1 : 0;
}

/* The queries are bfloat16 numbers in any case. */
static void fill_query(struct job *job, int64_t num_elements) {
    void *data = job->stage->key_output.data;
    uint16_t *codes = data;
    fill_pattern(&job->stage->random, codes, num_elements);
    if (job->sizes->arithmetic->query_dtype != PKV_DTYPE_F32)
        return;
    for (int64_t i = num_elements - 1; i >= 0; i--) {
        const uint32_t bits = (uint32_t)codes[i] << 16;
        memcpy((char *)data + i * (int64_t)sizeof(bits), &bits, sizeof(bits));
    }
}

static void make_tensors(struct job *job) {
    const struct sizes *sizes = job->sizes;
    const int64_t num_tokens = sizes->num_seqs * sizes->query_len;
    const int64_t query[] = {num_tokens, sizes->num_heads, sizes->head_size};
    const int64_t out[] = {num_tokens, sizes->num_heads, sizes->value_head_size};
    const int32_t dtype = sizes->arithmetic->query_dtype;
    fill_query(job, num_tokens * sizes->num_heads * sizes->head_size);
    job->tensors = (struct pkv_paged_attention_tensors){
        .struct_size = sizeof(job->tensors),
        .query = pkv_tensor_make(job->stage->key_output.data, dtype, 3, query),
        .out = pkv_tensor_make(job->stage->value_output.data, dtype, 3, out)};
}

/* Returns 0, or -1 with the facts in job->error. */
static int create(struct job *job) {
    const struct sizes *sizes = job->sizes;
    const struct pkv_paged_attention_options options = {.struct_size = sizeof(options),
                                                        .num_heads = sizes->num_heads,
                                                        .value_head_size = sizes->value_head_size,
                                                        .query_dtype =
                                                            sizes->arithmetic->query_dtype,
                                                        .products = sizes->arithmetic->products};
    if (draw_tables(job) != 0) {
        job->error.status = PKV_STATUS_OUT_OF_MEMORY;
        return -1;
    }
    make_tensors(job);
    enum pkv_status status = describe_layer(job);
    if (status == PKV_STATUS_OK)
        status = pkv_paged_attention_plan_create(&job->plan, job->team->context, &job->cache,
                                                 &options, &job->error);
    if (status == PKV_STATUS_OK)
        status = pkv_step_create(&job->step, NULL, &job->error);
    if (status == PKV_STATUS_OK)
        status = set_step(job);
    return status == PKV_STATUS_OK ? 0 : -1;
}

static void destroy(struct job *job) {
    pkv_step_destroy(job->step);
    pkv_paged_attention_plan_destroy(job->plan);
    free(job->block_table);
    free(job->lengths);
}

/* ---- variants ---- */

static int prepare_run(void *arg) {
    return describe_layer(arg) == PKV_STATUS_OK ? 0 : -1;
}

static int run(void *arg) {
    struct job *job = arg;
    return pkv_paged_attention_run(job->team->context, job->plan, job->step, &job->cache,
                                   &job->tensors, &job->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

static int prepare_nothing(void *arg) {
    (void)arg;
    return 0;
}

static int read_layer(struct job *job, int32_t num_streams) {
    struct bench_read spans[2];
    take_layer(job, spans);
    job->sum +=
        bench_read_spans(&job->team->executor, spans, job->sizes->is_mla ? 1 : 2, num_streams);
    return 0;
}

static int run_one_stream(void *arg) {
    return read_layer(arg, 1);
}

static int run_four_streams(void *arg) {
    return read_layer(arg, 4);
}

static int run_unit(struct job *job, int product) {
    job->unit_flops[product] =
        bench_unit_work(&job->team->executor, job->sizes->arithmetic->units[product]);
    return 0;
}

static int run_unit_of_scores(void *arg) {
    return run_unit(arg, 0);
}

static int run_unit_of_values(void *arg) {
    return run_unit(arg, 1);
}

/* ---- the check ---- */

/* The last query of the last sequence, with its last head, against the equations. Returns 0 if it
 * is right. */
static int check(struct job *job) {
    const struct sizes *sizes = job->sizes;
    const int64_t width = job->num_blocks / sizes->num_seqs;
    const int64_t row_number = sizes->num_seqs * sizes->query_len * sizes->num_heads - 1;
    const int32_t *blocks = job->block_table + (sizes->num_seqs - 1) * width;
    const struct verify_attention_part parts[2] = {
        {job->cache.key.data, PKV_DTYPE_BF16, sizes->layout, job->num_blocks, sizes->block_size,
         sizes->num_kv_heads, sizes->head_size},
        {job->cache.value.data, PKV_DTYPE_BF16, sizes->layout, job->num_blocks, sizes->block_size,
         sizes->num_kv_heads, sizes->value_head_size}};
    double *rows = malloc((size_t)(sizes->seq_len * (2 * sizes->head_size + 1)) * sizeof(double));
    if (rows == NULL)
        return -1;
    double *values = rows + sizes->seq_len * sizes->head_size;
    double query[VERIFY_ATTENTION_MAX_HEAD_SIZE];
    for (int64_t d = 0; d < sizes->head_size; d++)
        query[d] = verify_attention_number(job->tensors.query.dtype, job->tensors.query.data,
                                           row_number * sizes->head_size + d);
    verify_attention_gather(&parts[0], blocks, sizes->seq_len, sizes->num_kv_heads - 1, rows);
    if (!sizes->is_mla)
        verify_attention_gather(&parts[1], blocks, sizes->seq_len, sizes->num_kv_heads - 1, values);
    const struct verify_attention_row row = {
        .query = query,
        .keys = rows,
        .values = sizes->is_mla ? rows : values,
        .head_size = sizes->head_size,
        .value_head_size = sizes->value_head_size,
        .value_stride = sizes->is_mla ? sizes->head_size : sizes->value_head_size,
        .seq_len = sizes->seq_len,
        .position = sizes->seq_len - 1,
        .end = sizes->seq_len,
        .scale = 1 / sqrt((double)sizes->head_size),
        .sink = (double)-INFINITY,
        .scores = rows + 2 * sizes->seq_len * sizes->head_size,
        .has_bf16_products = sizes->arithmetic->products == PKV_ATTENTION_PRODUCTS_BF16};
    struct verify_attention_answer answer;
    verify_attention_row(&row, &answer);
    int status = 0;
    for (int64_t d = 0; d < sizes->value_head_size; d++) {
        const double found = verify_attention_number(job->tensors.out.dtype, job->tensors.out.data,
                                                     row_number * sizes->value_head_size + d);
        const double bound = verify_attention_rounded_bound(job->tensors.out.dtype, answer.out[d],
                                                            answer.out_bound[d]);
        if (!(fabs(found - answer.out[d]) <= bound))
            status = -1;
    }
    free(rows);
    return status;
}

/* ---- lines ---- */

/* 2 for each element of a key or a value, query, head and position that it sees. */
static double count_flops(const struct sizes *sizes, int64_t num_elements) {
    double num_visible = 0;
    for (int64_t i = 0; i < sizes->query_len; i++)
        num_visible += (double)(sizes->seq_len - sizes->query_len + i + 1);
    return 2.0 * (double)num_elements * (double)(sizes->num_seqs * sizes->num_heads) * num_visible;
}

static int32_t count_rounds(double bytes, double flops) {
    const double read_ns = bytes / GUESSED_GB_PER_S, work_ns = flops / GUESSED_GFLOPS;
    const double rounds = ROUNDS_NS / (read_ns > work_ns ? read_ns : work_ns);
    return rounds > MAX_ROUNDS ? MAX_ROUNDS : rounds < MIN_ROUNDS ? MIN_ROUNDS : (int32_t)rounds;
}

/* Beside the faster one of two ways to read. */
static void take_read_ceiling(const struct bench_rounds *rounds, struct bench_line *line) {
    const struct bench_spread one = bench_rounds_speed(rounds, 0, 1);
    const struct bench_spread four = bench_rounds_speed(rounds, 0, 2);
    const int is_four = four.median < one.median;
    const double ns = bench_rounds_time(rounds, is_four ? 2 : 1).median;
    line->ceiling = is_four ? four : one;
    (void)snprintf(line->note, sizeof(line->note), "ceiling: a read, %d stream%s, %.1f GB/s",
                   is_four ? 4 : 1, is_four ? "s" : "", (double)line->bytes / ns);
}

/* Scores at the peak of their unit, then values at that of theirs. */
static void take_unit_ceiling(const struct bench_rounds *rounds, const struct job *job,
                              struct bench_line *line) {
    static const char *const names[] = {"FMA", "bf16 dot"};
    const struct sizes *sizes = job->sizes;
    const enum bench_unit *units = sizes->arithmetic->units;
    const int64_t elements[] = {sizes->head_size, sizes->value_head_size};
    double ns = 0, flops = 0;
    line->ceiling = (struct bench_spread){0};
    for (int i = 0; i < 2; i++) {
        const double product_flops = count_flops(sizes, elements[i]);
        const double ratio = product_flops / job->unit_flops[i];
        const struct bench_spread speed = bench_rounds_speed(rounds, 0, 1 + i);
        line->ceiling.median += speed.median * ratio;
        line->ceiling.q1 += speed.q1 * ratio;
        line->ceiling.q3 += speed.q3 * ratio;
        ns += bench_rounds_time(rounds, 1 + i).median * ratio;
        flops += product_flops;
    }
    (void)snprintf(line->note, sizeof(line->note), "ceiling: %s%s%s peak, %.0f GFLOP/s",
                   names[units[0]], units[0] == units[1] ? "" : ", then ",
                   units[0] == units[1] ? "" : names[units[1]], flops / ns);
}

static int measure_job(struct job *job, struct bench_line *line,
                       const struct bench_report *report) {
    const struct bench_variant reads[] = {{prepare_run, run, NULL, job},
                                          {prepare_nothing, run_one_stream, NULL, job},
                                          {prepare_nothing, run_four_streams, NULL, job}};
    const struct bench_variant works[] = {{prepare_run, run, NULL, job},
                                          {prepare_nothing, run_unit_of_scores, NULL, job},
                                          {prepare_nothing, run_unit_of_values, NULL, job}};
    const struct sizes *sizes = job->sizes;
    const double flops = count_flops(sizes, sizes->head_size + sizes->value_head_size);
    const int has_units = bench_unit_exists(sizes->arithmetic->units[0]) &&
                          bench_unit_exists(sizes->arithmetic->units[1]);
    struct bench_rounds rounds;
    int status = create(job);
    if (status == 0)
        status = bench_rounds_measure(&rounds, sizes->has_read_ceiling ? reads : works,
                                      sizes->has_read_ceiling || has_units ? 3 : 1,
                                      count_rounds((double)line->bytes, flops),
                                      &job->team->executor, &job->stage->random);
    if (status == 0)
        status = prepare_run(job) != 0 || run(job) != 0 ? -1 : check(job);
    if (status != 0)
        return bench_failed(line->text, &job->error);
    line->ns = bench_rounds_time(&rounds, 0);
    if (sizes->has_read_ceiling)
        take_read_ceiling(&rounds, line);
    else
        line->gflops = flops / line->ns.median;
    if (!sizes->has_read_ceiling && has_units)
        take_unit_ceiling(&rounds, job, line);
    bench_report_line(report, line);
    return CLI_OK;
}

static int measure(struct bench_stage *stage, const struct bench_team *team,
                   const struct sizes *sizes, const struct bench_report *report) {
    const int64_t seq_blocks = (sizes->seq_len + sizes->block_size - 1) / sizes->block_size;
    struct job job = {.stage = stage,
                      .team = team,
                      .sizes = sizes,
                      .num_blocks = sizes->num_seqs * seq_blocks,
                      .error.struct_size = sizeof(job.error)};
    const int64_t rows = job.num_blocks * sizes->block_size * sizes->num_kv_heads * ELEMENT_BYTES;
    job.key_bytes = rows * sizes->head_size;
    job.value_bytes = sizes->is_mla ? 0 : rows * sizes->value_head_size;
    job.num_layers = stage->key_cache.bytes / job.key_bytes;
    struct bench_line line = {.op = "attention",
                              .level = pkv_context_cpu_level(team->context),
                              .num_threads = team->num_threads,
                              .bytes = job.key_bytes + job.value_bytes};
    (void)snprintf(line.text, sizeof(line.text), "%s", sizes->what);
    if (sizes->has_read_ceiling)
        (void)snprintf(line.text, sizeof(line.text),
                       "%s %" PRId64 " x %" PRId64 ", %s, blocks of %" PRId64, sizes->what,
                       sizes->num_seqs, sizes->seq_len, pkv_layout_name(sizes->layout),
                       sizes->block_size);
    if (job.num_layers == 0) {
        (void)cli_error("bench", "%s: no memory for %" PRId64 " MiB of keys; left out", line.text,
                        job.key_bytes >> 20);
        return CLI_OK;
    }
    const int status = measure_job(&job, &line, report);
    destroy(&job);
    return status;
}

/* ---- operators ---- */

static const struct arithmetic usual = {
    "bf16 queries", PKV_DTYPE_BF16, PKV_ATTENTION_PRODUCTS_F32, {BENCH_UNIT_FMA, BENCH_UNIT_FMA}};

/* Where the kernels have dot products of bfloat16. */
static const struct arithmetic with_dots[] = {
    {"f32 queries", PKV_DTYPE_F32, PKV_ATTENTION_PRODUCTS_F32, {BENCH_UNIT_FMA, BENCH_UNIT_FMA}},
    {"bf16 queries",
     PKV_DTYPE_BF16,
     PKV_ATTENTION_PRODUCTS_F32,
     {BENCH_UNIT_BF16_DOT, BENCH_UNIT_FMA}},
    {"bf16 products",
     PKV_DTYPE_BF16,
     PKV_ATTENTION_PRODUCTS_BF16,
     {BENCH_UNIT_BF16_DOT, BENCH_UNIT_BF16_DOT}},
};

/* 32 query heads over 8 key heads of 128. */
static struct sizes grouped_sizes(const char *what, int64_t num_seqs, int64_t seq_len,
                                  int64_t block_size, int32_t layout) {
    return (struct sizes){.what = what,
                          .num_seqs = num_seqs,
                          .query_len = 1,
                          .seq_len = seq_len,
                          .block_size = block_size,
                          .num_heads = 32,
                          .num_kv_heads = 8,
                          .head_size = 128,
                          .value_head_size = 128,
                          .layout = layout,
                          .arithmetic = &usual,
                          .has_read_ceiling = 1};
}

int bench_attention_decode(struct bench_stage *stage, const struct bench_team *team,
                           const struct bench_report *report) {
    static const int64_t cases[][3] = {{1, 1024, 128},  {1, 4096, 128},  {1, 16384, 128},
                                       {8, 1024, 128},  {8, 4096, 128},  {8, 16384, 128},
                                       {32, 1024, 128}, {32, 4096, 128}, {32, 16384, 128},
                                       {1, 4096, 16},   {8, 4096, 16}};
    static const int32_t layouts[] = {PKV_LAYOUT_HND, PKV_LAYOUT_NHD};
    int status = fill_caches(stage, team);
    for (int j = 0; j < 2; j++) {
        for (size_t i = 0; status == CLI_OK && i < sizeof(cases) / sizeof(cases[0]); i++) {
            const struct sizes sizes =
                grouped_sizes("decode", cases[i][0], cases[i][1], cases[i][2], layouts[j]);
            /* The kind of page hardly matters here: one case shows it. */
            if (stage->pages == BENCH_PAGES_HUGE ||
                (sizes.num_seqs == 8 && sizes.seq_len == 4096 && sizes.block_size == 128))
                status = measure(stage, team, &sizes, report);
        }
    }
    return status;
}

/* With each arithmetic of the kernels. */
static int measure_products(struct bench_stage *stage, const struct bench_team *team,
                            const struct sizes *sizes, const struct bench_report *report) {
    const int has_dots = pkv_context_cpu_level(team->context) == PKV_CPU_LEVEL_AVX512_BF16;
    const struct arithmetic *all = has_dots ? with_dots : &usual;
    int status = CLI_OK;
    for (int i = 0; status == CLI_OK && i < (has_dots ? 3 : 1); i++) {
        struct sizes one = *sizes;
        char text[BENCH_CASE_TEXT];
        (void)snprintf(text, sizeof(text), "%.*s, %s", BENCH_CASE_TEXT - 16, sizes->what,
                       all[i].what);
        one.what = text;
        one.arithmetic = &all[i];
        status = measure(stage, team, &one, report);
    }
    return status;
}

int bench_attention_mla(struct bench_stage *stage, const struct bench_team *team,
                        const struct bench_report *report) {
    static const int64_t cases[][2] = {{16, 1}, {16, 8}, {128, 1}, {128, 8}};
    if (stage->pages != BENCH_PAGES_HUGE)
        return CLI_OK;
    int status = fill_caches(stage, team);
    for (size_t i = 0; status == CLI_OK && i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[BENCH_CASE_TEXT];
        (void)snprintf(text, sizeof(text), "MLA %d heads, %d x 4096", (int)cases[i][0],
                       (int)cases[i][1]);
        const struct sizes sizes = {.what = text,
                                    .num_seqs = cases[i][1],
                                    .query_len = 1,
                                    .seq_len = 4096,
                                    .block_size = 128,
                                    .num_heads = cases[i][0],
                                    .num_kv_heads = 1,
                                    .head_size = 576,
                                    .value_head_size = 512,
                                    .layout = PKV_LAYOUT_NHD,
                                    .is_mla = 1};
        status = measure_products(stage, team, &sizes, report);
    }
    return status;
}

int bench_attention_prefill(struct bench_stage *stage, const struct bench_team *team,
                            const struct bench_report *report) {
    static const int64_t contexts[] = {512, 4096};
    enum { NEW_TOKENS = 512 };
    if (stage->pages != BENCH_PAGES_HUGE)
        return CLI_OK;
    int status = fill_caches(stage, team);
    for (size_t i = 0; status == CLI_OK && i < sizeof(contexts) / sizeof(contexts[0]); i++) {
        char text[BENCH_CASE_TEXT];
        (void)snprintf(text, sizeof(text), "prefill %d on %d", NEW_TOKENS, (int)contexts[i]);
        struct sizes sizes = grouped_sizes(text, 1, contexts[i] + NEW_TOKENS, 128, PKV_LAYOUT_HND);
        sizes.query_len = NEW_TOKENS;
        sizes.has_read_ceiling = 0;
        status = measure_products(stage, team, &sizes, report);
    }
    return status;
}
