/* SPDX-License-Identifier: MIT
 *
 * The lines of scatter: long calls, short calls, the step's check, layouts and CPU levels. How a
 * scatter is done and timed is in bench_scatter_job.c and bench_rounds.c.
 */
#include "bench_ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench_scatter_job.h"
#include "cli.h"

enum { LONG_ROUNDS = 25, SHORT_ROUNDS = 41, LAYOUT_ROUNDS = 15 };

/* Bytes that one call reads and writes. */
static int64_t bytes_moved(int64_t num_tokens) {
    return 2 * 2 * BENCH_ROW_BYTES * num_tokens;
}

static struct bench_spread divided(struct bench_spread spread, int32_t num_calls) {
    struct bench_spread result = {spread.median / num_calls, spread.q1 / num_calls,
                                  spread.q3 / num_calls};
    return result;
}

/* A line about variant `own`, beside the plain loop and the ceiling. */
static struct bench_line make_line(const char *op, const struct bench_scatter_job *job,
                                   const struct bench_rounds *rounds, int32_t own, int32_t plain,
                                   int32_t ceiling) {
    struct bench_line line = {.op = op,
                              .level = pkv_context_cpu_level(job->context),
                              .num_threads = job->team->num_threads,
                              .ns = divided(bench_rounds_time(rounds, own), job->shape.num_calls),
                              .bytes = bytes_moved(job->shape.num_tokens),
                              .scalar = bench_rounds_speed(rounds, own, plain).median,
                              .ceiling = bench_rounds_speed(rounds, own, ceiling)};
    return line;
}

/* One shape: the library (`own` says how) beside the plain loop and the ceiling. */
static int measure(struct bench_stage *stage, const struct bench_team *team,
                   const struct bench_report *report, const struct bench_scatter_shape *shape,
                   struct bench_variant (*own)(struct bench_scatter_job *job), const char *op,
                   const char *text) {
    struct bench_scatter_job job;
    struct bench_rounds rounds;
    int status = bench_scatter_job_create(&job, stage, team, team->context, shape);
    if (status == 0) {
        const struct bench_variant variants[] = {own(&job), bench_scatter_plain_loop(&job),
                                                 bench_scatter_ceiling(&job)};
        status = bench_rounds_measure(&rounds, variants, 3,
                                      shape->num_calls > 1 ? SHORT_ROUNDS : LONG_ROUNDS,
                                      &team->executor, &stage->random);
    }
    if (status == 0)
        status = bench_scatter_job_check(&job);
    if (status == 0) {
        struct bench_line line = make_line(op, &job, &rounds, 0, 1, 2);
        (void)snprintf(line.text, sizeof(line.text), "%s", text);
        bench_report_line(report, &line);
    }
    status = status == 0 ? CLI_OK : bench_failed(text, &job.error);
    bench_scatter_job_destroy(&job);
    return status;
}

int bench_scatter(struct bench_stage *stage, const struct bench_team *team,
                  const struct bench_report *report) {
    static const int64_t sizes[] = {2633, 7902, BENCH_MAX_TOKENS};
    static const struct {
        int64_t run_tokens;
        int by_slots;
        const char *name;
    } kinds[] = {{1, 0, "random"},
                 {1, 1, "random, divided by slots"},
                 {16, 0, "runs of 16"},
                 {BENCH_BLOCK_SIZE, 0, "runs of 128"}};
    /* Of the source with fresh rows, or of the rows with a warm source. */
    static const struct {
        enum bench_destination destination;
        int cold_source;
        const char *name;
    } states[] = {{BENCH_DESTINATION_FRESH, 0, "warm source"},
                  {BENCH_DESTINATION_FRESH, 1, "cold source"},
                  {BENCH_DESTINATION_WARM, 0, "warm rows"}};
    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
        if (kinds[kind].by_slots && team->num_threads == 1)
            continue; /* one thread divides nothing */
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            for (size_t state = 0; state < sizeof(states) / sizeof(states[0]); state++) {
                const struct bench_scatter_shape shape = {.num_tokens = sizes[i],
                                                          .num_calls = 1,
                                                          .run_tokens = kinds[kind].run_tokens,
                                                          .destination = states[state].destination,
                                                          .cold_source = states[state].cold_source,
                                                          .layout = PKV_LAYOUT_NHD,
                                                          .num_heads = BENCH_NUM_HEADS,
                                                          .by_slots = kinds[kind].by_slots};
                char text[BENCH_CASE_TEXT];
                (void)snprintf(text, sizeof(text), "%" PRId64 " tokens, %s, %s", sizes[i],
                               kinds[kind].name, states[state].name);
                int status =
                    measure(stage, team, report, &shape, bench_scatter_run, "scatter", text);
                if (status != CLI_OK)
                    return status;
            }
        }
    }
    return CLI_OK;
}

/* Calls of a sample: enough that the clock does not matter, and at most 4 MiB of rows, so that warm
 * rows are in a cache. */
static const struct {
    int64_t num_tokens;
    int32_t num_calls;
} short_calls[] = {{1, BENCH_MAX_CALLS}, {8, 64}, {32, 32}, {64, 16}, {256, 8}};

/* One size of short calls, in slots that are run_tokens consecutive ones. */
static int measure_short_size(struct bench_stage *stage, const struct bench_team *team,
                              const struct bench_report *report, size_t i, int64_t run_tokens,
                              int warm, struct bench_variant (*own)(struct bench_scatter_job *job),
                              const char *op, const char *what) {
    const struct bench_scatter_shape shape = {.num_tokens = short_calls[i].num_tokens,
                                              .num_calls = short_calls[i].num_calls,
                                              .run_tokens = run_tokens,
                                              .destination = warm ? BENCH_DESTINATION_WARM
                                                                  : BENCH_DESTINATION_COLD,
                                              .layout = PKV_LAYOUT_NHD,
                                              .num_heads = BENCH_NUM_HEADS};
    char text[BENCH_CASE_TEXT];
    (void)snprintf(text, sizeof(text), "%" PRId64 " token%s%s, %s rows%s", shape.num_tokens,
                   shape.num_tokens == 1 ? "" : "s", run_tokens > 1 ? ", runs of 128" : "",
                   warm ? "warm" : "cold", what);
    return measure(stage, team, report, &shape, own, op, text);
}

static int measure_short(struct bench_stage *stage, const struct bench_team *team,
                         const struct bench_report *report, size_t num_sizes, int64_t run_tokens,
                         struct bench_variant (*own)(struct bench_scatter_job *job), const char *op,
                         const char *what) {
    int status = CLI_OK;
    for (int warm = 0; warm <= 1; warm++) {
        for (size_t i = 0; i < num_sizes && status == CLI_OK; i++) {
            /* One token is no run. */
            if (run_tokens == 1 || short_calls[i].num_tokens > 1)
                status =
                    measure_short_size(stage, team, report, i, run_tokens, warm, own, op, what);
        }
    }
    return status;
}

int bench_scatter_small(struct bench_stage *stage, const struct bench_team *team,
                        const struct bench_report *report) {
    const size_t num_sizes = sizeof(short_calls) / sizeof(short_calls[0]);
    const int status =
        measure_short(stage, team, report, num_sizes, 1, bench_scatter_run, "scatter_small", "");
    return status == CLI_OK ? measure_short(stage, team, report, num_sizes, BENCH_BLOCK_SIZE,
                                            bench_scatter_run, "scatter_small", "")
                            : status;
}

/* The check alone, in percent of the run that it precedes. */
static int measure_check(struct bench_stage *stage, const struct bench_team *team,
                         const struct bench_report *report, int64_t num_tokens) {
    const struct bench_scatter_shape shape = {.num_tokens = num_tokens,
                                              .num_calls = 1,
                                              .run_tokens = 1,
                                              .destination = BENCH_DESTINATION_FRESH,
                                              .layout = PKV_LAYOUT_NHD,
                                              .num_heads = BENCH_NUM_HEADS};
    struct bench_line line = {.op = "step", .num_threads = team->num_threads};
    (void)snprintf(line.text, sizeof(line.text), "%" PRId64 " tokens, the check alone", num_tokens);
    struct bench_scatter_job job;
    struct bench_rounds rounds;
    int status = bench_scatter_job_create(&job, stage, team, team->context, &shape);
    if (status == 0) {
        const struct bench_variant variants[] = {bench_scatter_check(&job),
                                                 bench_scatter_run(&job)};
        status = bench_rounds_measure(&rounds, variants, 2, LONG_ROUNDS, &team->executor,
                                      &stage->random);
    }
    if (status == 0) {
        line.level = pkv_context_cpu_level(team->context);
        line.ns = bench_rounds_time(&rounds, 0);
        line.bytes = num_tokens * (int64_t)sizeof(int64_t);
        (void)snprintf(line.note, sizeof(line.note), "%.1f %% of the run",
                       100 / bench_rounds_speed(&rounds, 0, 1).median);
        bench_report_line(report, &line);
    }
    status = status == 0 ? CLI_OK : bench_failed(line.text, &job.error);
    bench_scatter_job_destroy(&job);
    return status;
}

int bench_step(struct bench_stage *stage, const struct bench_team *team,
               const struct bench_report *report) {
    static const int64_t sizes[] = {2633, BENCH_MAX_TOKENS};
    int status = measure_short(stage, team, report, 3, 1, bench_scatter_check_and_run, "step",
                               ", check included");
    for (size_t i = 0; status == CLI_OK && i < sizeof(sizes) / sizeof(sizes[0]); i++)
        status = measure_check(stage, team, report, sizes[i]);
    return status;
}

enum { LAYOUT_TOKENS = 7902, LAYOUT_HEADS = 4, NUM_LAYOUTS = 3 };

static const int32_t layouts[NUM_LAYOUTS] = {PKV_LAYOUT_NHD, PKV_LAYOUT_HND, PKV_LAYOUT_PA_NZ};

/* The variants of one round: each layout with the best kernels, as a plain loop and with the AVX2
 * kernels; the ceiling is the last. */
enum { BEST = 0, PLAIN = NUM_LAYOUTS, AVX2 = 2 * NUM_LAYOUTS };

static void report_layouts(const struct bench_report *report, const struct bench_scatter_job *jobs,
                           const struct bench_rounds *rounds, int with_avx2, const char *slots) {
    const int32_t ceiling = rounds->num_variants - 1;
    for (int32_t i = 0; i < (with_avx2 ? 2 : 1) * NUM_LAYOUTS; i++) {
        const int32_t layout = i % NUM_LAYOUTS;
        const int32_t own = i < NUM_LAYOUTS ? BEST + layout : AVX2 + layout;
        struct bench_line line =
            make_line("layouts", &jobs[i], rounds, own, PLAIN + layout, ceiling);
        (void)snprintf(line.text, sizeof(line.text), "%d tokens, %s, %s%s", LAYOUT_TOKENS, slots,
                       pkv_layout_name(layouts[layout]), i < NUM_LAYOUTS ? "" : ", avx2");
        if (i >= NUM_LAYOUTS)
            (void)snprintf(line.note, sizeof(line.note), "%.2f of %s",
                           bench_rounds_speed(rounds, own, BEST + layout).median,
                           pkv_cpu_level_name(pkv_context_cpu_level(jobs[layout].context)));
        else if (layout > 0)
            (void)snprintf(line.note, sizeof(line.note), "%.2f of NHD",
                           bench_rounds_speed(rounds, own, BEST).median);
        bench_report_line(report, &line);
    }
}

static int measure_layouts(struct bench_stage *stage, const struct bench_team *team,
                           const struct bench_report *report, int64_t run_tokens) {
    const char *slots = run_tokens == 1 ? "random" : "runs of 128";
    const int with_avx2 = team->context_avx2 != NULL;
    struct bench_scatter_job jobs[2 * NUM_LAYOUTS];
    struct bench_variant variants[3 * NUM_LAYOUTS + 1];
    struct bench_rounds rounds;
    int32_t num_jobs = 0, num_variants = 0, failed = -1;
    for (; num_jobs < (with_avx2 ? 2 : 1) * NUM_LAYOUTS && failed < 0; num_jobs++) {
        const struct bench_scatter_shape shape = {.num_tokens = LAYOUT_TOKENS,
                                                  .num_calls = 1,
                                                  .run_tokens = run_tokens,
                                                  .destination = BENCH_DESTINATION_FRESH,
                                                  .layout = layouts[num_jobs % NUM_LAYOUTS],
                                                  .num_heads = LAYOUT_HEADS};
        if (bench_scatter_job_create(&jobs[num_jobs], stage, team,
                                     num_jobs < NUM_LAYOUTS ? team->context : team->context_avx2,
                                     &shape) != 0)
            failed = num_jobs;
    }
    if (failed < 0) {
        for (int32_t i = 0; i < NUM_LAYOUTS; i++) {
            variants[BEST + i] = bench_scatter_run(&jobs[i]);
            variants[PLAIN + i] = bench_scatter_plain_loop(&jobs[i]);
            if (with_avx2)
                variants[AVX2 + i] = bench_scatter_run(&jobs[NUM_LAYOUTS + i]);
        }
        num_variants = num_jobs + NUM_LAYOUTS;
        variants[num_variants++] = bench_scatter_ceiling(&jobs[0]);
        (void)bench_rounds_measure(&rounds, variants, num_variants, LAYOUT_ROUNDS, &team->executor,
                                   &stage->random);
        for (int32_t i = 0; i < num_jobs && failed < 0; i++) {
            if (jobs[i].error.status != PKV_STATUS_OK || bench_scatter_job_check(&jobs[i]) != 0)
                failed = i;
        }
    }
    if (failed < 0)
        report_layouts(report, jobs, &rounds, with_avx2, slots);
    int status = failed < 0 ? CLI_OK : bench_failed("layouts", &jobs[failed].error);
    for (int32_t i = 0; i < num_jobs; i++)
        bench_scatter_job_destroy(&jobs[i]);
    return status;
}

int bench_layouts(struct bench_stage *stage, const struct bench_team *team,
                  const struct bench_report *report) {
    int status = measure_layouts(stage, team, report, 1);
    return status == CLI_OK ? measure_layouts(stage, team, report, BENCH_BLOCK_SIZE) : status;
}
