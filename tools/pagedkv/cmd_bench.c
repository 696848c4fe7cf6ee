/* SPDX-License-Identifier: MIT
 *
 * pagedkv bench: every operator beside a ceiling measured in the same process. This file reads the
 * command line and loops over pages and threads; what is measured is in the files of bench_ops.h,
 * such as bench_scatter.c, and how in bench_rounds.c.
 */
#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_ceiling.h"
#include "bench_clock.h"
#include "bench_ops.h"
#include "bench_threads.h"
#include "bench_translation.h"

#define COMMAND "bench"

enum { MAX_TEAMS = 2, SEED = 20260612 };

/* Left to the system and everybody else when memory is short. */
#define RESERVED_BYTES (INT64_C(512) << 20)

static const struct bench_op {
    const char *name;
    int (*run)(struct bench_stage *stage, const struct bench_team *team,
               const struct bench_report *report);
    const char *what;
} ops[] = {
    {"scatter", bench_scatter, "2633, 7902 and 16384 tokens, fresh and warm rows, step set before"},
    {"scatter_small", bench_scatter_small,
     "1 to 256 tokens, random and in runs, cold and warm rows, step set before"},
    {"step", bench_step, "1, 8 and 32 tokens with the check of the step, and the check alone"},
    {"layouts", bench_layouts, "NHD, HND and PA_NZ, head_size 128, and the AVX2 kernels"},
    {"scatter_rows", bench_scatter_rows, "16 to 16384 tokens of MLA, packed and three caches"},
    {"compressed", bench_compressed, "Alibi, Omni and Rope, 40 regions of 4000 tokens"},
    {"gather", bench_gather, "blocks of 16 and 128 tokens, 1 x 1024 and 8 x 4096 tokens"},
    {"copy_blocks", bench_copy_blocks, "64 pairs of blocks of 128 tokens"},
    {"swap_blocks", bench_swap_blocks, "128 blocks of 128 tokens to another cache"},
    {"fill_blocks", bench_fill_blocks, "128 blocks of 128 tokens"},
    {"nsa_compress", bench_nsa_compress, "256 windows of 32 tokens, 2 heads of 256"},
    {"convert_layout", bench_convert_layout, "64 MiB, NHD to HND and to PA_NZ"},
    {"attention_decode", bench_attention_decode,
     "batches of 1 to 32, contexts of 1024 to 16384, HND and NHD"},
    {"attention_mla", bench_attention_mla, "16 and 128 heads of 576/512, contexts of 4096"},
    {"attention_prefill", bench_attention_prefill, "512 new tokens on 512 and on 4096"},
    {"attention_step", bench_attention_step, "the check of a step of 256 sequences; one thread"},
    {"manager", bench_manager, "the block manager: blocks, prefix lookup, steps; one thread"},
};

enum { NUM_OPS = sizeof(ops) / sizeof(ops[0]) };

int bench_failed(const char *text, const struct pkv_error *error) {
    if (error->status == PKV_STATUS_OK)
        (void)cli_error(COMMAND, "%s: the result is wrong; run 'pagedkv verify' and please report",
                        text);
    else
        (void)cli_library_error(COMMAND, text, error);
    return CLI_CHECK_FAILED;
}

static void more_help(FILE *stream, const void *subject) {
    (void)subject;
    fputs("\noperators (all when none is named):\n", stream);
    for (int i = 0; i < NUM_OPS; i++)
        fprintf(stream, "  %-17s  %s\n", ops[i].name, ops[i].what);
    fputs(
        "\nThe ceiling is a contiguous copy of the same bytes with streaming stores, in the same\n"
        "memory, with the same number of threads (calls of up to 256 tokens: with one). That of\n"
        "attention_decode is a sequential read of the same keys and values, that of\n"
        "attention_mla and attention_prefill the peak of the unit that does the products;\n"
        "attention_step and manager have none. 'attention' stands for its four groups.\n"
        "'x scalar' compares with a plain loop of memcpy. Ratios are medians of the ratios of\n"
        "single rounds, in which all variants are taken in random order; bytes are those read\n"
        "and written.\n",
        stream);
}

static void print_ping_pong(const struct bench_report *report, const struct bench_team *team) {
    if (team->num_threads < 2)
        return;
    const struct bench_spread latency = bench_ping_pong(&team->executor);
    if (latency.median <= 0) {
        (void)cli_error(COMMAND, "two threads did not run at the same time; stop other programs");
    } else if (report->json) {
        struct bench_line line = {.op = "ping_pong",
                                  .text = "a cache line between two threads, one way",
                                  .level = pkv_context_cpu_level(team->context),
                                  .num_threads = 2,
                                  .ns = latency};
        bench_report_line(report, &line);
    } else {
        printf("ping-pong between two threads: %.0f ns one way [%.0f, %.0f]\n", latency.median,
               latency.q1, latency.q3);
    }
}

static void print_pages(const struct bench_report *report, const struct bench_stage *stage) {
    const double share = bench_stage_huge_share(stage);
    const int huge = stage->pages == BENCH_PAGES_HUGE;
    char text[96] = "";
    if (share < 0)
        (void)snprintf(text, sizeof(text), "the system does not tell how many pages are huge");
    else if (huge ? share < 0.99 : share > 0)
        (void)snprintf(text, sizeof(text), "only %.0f %% of the memory has the wanted pages",
                       100 * (huge ? share : 1 - share));
    if (text[0])
        (void)cli_error(COMMAND, "%s pages: %s; read these lines with care",
                        bench_pages_name(stage->pages), text);
    if (!report->json)
        printf("\n%s pages: %.2f GiB mapped, caches of %" PRId64 " blocks of %d tokens\n",
               bench_pages_name(stage->pages),
               (double)bench_stage_bytes(stage->num_blocks) / (1 << 30), stage->num_blocks,
               BENCH_BLOCK_SIZE);
}

/* A part of the keys whose page tables fit into any cache, and all of them. */
enum { PART_BYTES = 64 << 20 };

static void print_random_pages(const struct bench_report *report, struct bench_stage *stage,
                               int32_t cpu_level) {
    _Static_assert((int64_t)BENCH_MIN_BLOCKS * BENCH_BLOCK_SIZE * BENCH_ROW_BYTES >= PART_BYTES,
                   "the part is not larger than the smallest cache");
    const struct {
        int64_t bytes;
        const char *text;
    } cases[] = {{PART_BYTES, "one of 64 loads of random pages of 64 MiB"},
                 {stage->key_cache.bytes, "one of 64 loads of random pages of all keys"}};
    for (int i = 0; i < 2; i++) {
        const struct bench_spread ns =
            cli_random_pages(stage->key_cache.data, cases[i].bytes, &stage->random);
        struct bench_line line = {.op = "pages", .level = cpu_level, .num_threads = 1, .ns = ns};
        (void)snprintf(line.text, sizeof(line.text), "%s", cases[i].text);
        if (report->json)
            bench_report_line(report, &line);
        else
            printf("%s: %.1f ns [%.1f, %.1f]\n", cases[i].text, ns.median, ns.q1, ns.q3);
    }
}

static int run_ops(struct bench_stage *stage, const struct bench_team *teams, int num_teams,
                   const struct bench_report *report, const int *selected) {
    int status = CLI_OK;
    for (int i = 0; status == CLI_OK && i < num_teams; i++) {
        char title[80];
        (void)snprintf(title, sizeof(title), "%s pages, %d thread%s",
                       bench_pages_name(stage->pages), (int)teams[i].num_threads,
                       teams[i].num_threads == 1 ? "" : "s");
        bench_report_head(report, title);
        print_ping_pong(report, &teams[i]);
        for (int j = 0; status == CLI_OK && j < NUM_OPS; j++) {
            if (selected[j])
                status = ops[j].run(stage, &teams[i], report);
        }
        print_ping_pong(report, &teams[i]);
    }
    return status;
}

/* Ratios survive some noise, but not a machine that is fully used by others. */
static void warn_of_load(int32_t num_cpus) {
    double load;
    if (getloadavg(&load, 1) == 1 && load > 0.5 * num_cpus)
        (void)cli_error(COMMAND,
                        "other programs are running (load %.1f on %d processors); read "
                        "these lines with care",
                        load, (int)num_cpus);
}

/* As many of the published blocks as there is memory for, or 0. */
static int64_t choose_num_blocks(void) {
    const int64_t available = bench_memory_available();
    int64_t num_blocks = BENCH_NUM_BLOCKS;
    const int64_t block_bytes = bench_stage_bytes(1) - bench_stage_bytes(0);
    if (available >= 0 && bench_stage_bytes(num_blocks) > available - RESERVED_BYTES)
        num_blocks = (available - RESERVED_BYTES - bench_stage_bytes(0)) / block_bytes;
    if (num_blocks < BENCH_MIN_BLOCKS) {
        (void)cli_error(
            COMMAND,
            "%" PRId64 " MiB of memory are available; free some, %" PRId64 " MiB are the least",
            available >> 20, (bench_stage_bytes(BENCH_MIN_BLOCKS) + RESERVED_BYTES) >> 20);
        return 0;
    }
    if (num_blocks < BENCH_NUM_BLOCKS)
        (void)cli_error(COMMAND,
                        "memory for %" PRId64 " of %d blocks only; free some for the "
                        "published size",
                        num_blocks, BENCH_NUM_BLOCKS);
    return num_blocks;
}

static int measure(const struct bench_team *teams, int num_teams,
                   const struct bench_report *options, const int *selected) {
    static const enum bench_pages pages[] = {BENCH_PAGES_HUGE, BENCH_PAGES_BASE};
    const int64_t num_blocks = choose_num_blocks();
    int status = num_blocks > 0 ? CLI_OK : CLI_USAGE;
    for (int i = 0; status == CLI_OK && i < 2; i++) {
        struct bench_report report = {.json = options->json, .pages = pages[i]};
        struct bench_stage stage;
        if (bench_stage_create(&stage, num_blocks, pages[i], SEED,
                               &teams[num_teams - 1].executor) != 0)
            return cli_error(COMMAND, "the system gave no memory; free some");
        print_pages(&report, &stage);
        print_random_pages(&report, &stage, pkv_context_cpu_level(teams[0].context));
        status = run_ops(&stage, teams, num_teams, &report, selected);
        bench_stage_destroy(&stage);
    }
    return status;
}

/* Names on the command line to selected[]; none means all. A name that is no operator stands for
 * those that it begins, up to a '_'. */
static int select_ops(int num_names, char **names, int *selected) {
    for (int i = 0; i < NUM_OPS; i++)
        selected[i] = num_names == 0;
    for (int i = 0; i < num_names; i++) {
        const size_t length = strlen(names[i]);
        int exact = 0, found = 0;
        while (exact < NUM_OPS && strcmp(ops[exact].name, names[i]) != 0)
            exact++;
        for (int j = 0; j < NUM_OPS; j++) {
            if (exact < NUM_OPS
                    ? j == exact
                    : strncmp(ops[j].name, names[i], length) == 0 && ops[j].name[length] == '_')
                found = selected[j] = 1;
        }
        if (!found)
            return cli_error(COMMAND, "there is no operator '%s'; see 'pagedkv bench --help'",
                             names[i]);
    }
    return CLI_CONTINUE;
}

/* One team of the wanted size; or one thread, and two if there are two processors. */
static int create_teams(struct bench_team *teams, int *num_teams, int64_t threads) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_cpu_info info = {.struct_size = sizeof(info)};
    const int32_t level = cli_cpu_level(COMMAND, NULL);
    if (level < 0)
        return CLI_USAGE;
    if (pkv_cpu_info_get(&info, &error) != PKV_STATUS_OK)
        return cli_library_error(COMMAND, NULL, &error);
    warn_of_load(info.num_cpus);
    const int32_t sizes[MAX_TEAMS] = {threads > 0 ? (int32_t)threads : 1, 2};
    const int wanted = threads == 0 && info.num_cpus > 1 ? 2 : 1;
    for (*num_teams = 0; *num_teams < wanted; (*num_teams)++) {
        if (bench_team_create(&teams[*num_teams], sizes[*num_teams], level, &error) != 0)
            return cli_library_error(COMMAND, NULL, &error);
    }
    return CLI_CONTINUE;
}

int cmd_bench(int argc, char **argv) {
    int64_t threads = 0;
    struct bench_report report = {0};
    const struct cli_option options[] = {
        {"threads", CLI_INT, &threads, 1, CLI_MAX_THREADS, NULL, "N",
         "measure with N threads only (one, and two where there are two processors)"},
        {"json", CLI_FLAG, &report.json, 0, 0, NULL, NULL, "print one JSON object per line"},
        {0}};
    const struct cli_syntax syntax = {
        COMMAND,
        "bench [OP ...] [--threads N] [--json]",
        "Measures operators beside a ceiling measured in the same process.",
        options,
        more_help,
        NULL};
    int first = 0, selected[NUM_OPS], num_teams = 0;
    int status = cli_parse(&syntax, argc, argv, &first);
    if (status == CLI_CONTINUE)
        status = select_ops(argc - first, argv + first, selected);
    if (status != CLI_CONTINUE)
        return status;
    const int64_t begin = bench_now_ns();
    struct bench_team teams[MAX_TEAMS] = {{0}};
    status = create_teams(teams, &num_teams, threads);
    if (status == CLI_CONTINUE) {
        if (!report.json)
            printf("pagedkv bench: %s kernels; the ceiling copies with %s stores\n",
                   pkv_cpu_level_name(pkv_context_cpu_level(teams[0].context)),
                   bench_ceiling_name());
        status = measure(teams, num_teams, &report, selected);
        if (status == CLI_OK && !report.json)
            printf("\n%.0f s\n", (double)(bench_now_ns() - begin) / 1e9);
    }
    for (int i = 0; i < num_teams; i++)
        bench_team_destroy(&teams[i]);
    return status;
}
