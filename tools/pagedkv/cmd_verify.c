/* SPDX-License-Identifier: MIT
 *
 * pagedkv verify: the published matrix of scatter_pa_kv_cache, each case against a reference that
 * is written independently, bit for bit, over every byte of the caches, and attention within its
 * bound. This file reads the command line and prints; verify_run.c runs a case, and the tables of
 * verify_other.h bring more.
 */
#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "bench_clock.h"
#include "bench_memory.h"
#include "verify_other.h"
#include "verify_run.h"

#define COMMAND "verify"

/* Left to the system and everybody else when memory is short. */
#define RESERVED_BYTES (INT64_C(256) << 20)

static const struct verify_other *const other_tables[] = {
    verify_scatter_cases, verify_compressed_cases, verify_attention_cases};

enum { NUM_OTHER_TABLES = sizeof(other_tables) / sizeof(other_tables[0]), MAX_OTHERS = 96 };

static const char *const verdict_json[] = {"pass", "fail", "error"};

struct verify {
    int list;
    int tolerance;
    int json;
    int64_t seed;       /* -1: each case has its own */
    int64_t num_blocks; /* 0: as published */
    struct cli_context_choice choice;
    struct cli_context context;
    struct verify_case *cases; /* those that were asked for */
    int32_t num_cases;
    struct verify_other others[MAX_OTHERS];
    int32_t num_others;
    int32_t num_verdicts[3];
    int32_t num_bounded; /* cases that passed within a bound, not bit for bit */
    int64_t num_tokens;  /* of the cases that passed */
    int64_t bytes_checked;
};

static void print_shape(const struct verify_case *one) {
    printf("%-24s %6" PRId64 " tokens %5" PRId64 " x %-4" PRId64 "%3" PRId64 " x %-4" PRId64
           " %-12s",
           one->name, one->num_tokens, one->num_blocks, one->block_size, one->num_heads,
           one->head_size, verify_pattern_name(one->pattern));
}

static void print_other(const struct verify_other *one) {
    const int longer = (int)strlen(one->name) - 24;
    printf("%-24s %-*s", one->name, 48 - (longer > 0 ? longer : 0), one->shape);
}

static int list_cases(void) {
    printf("%-24s %13s %-12s%-11s%s\n", "case", "", "blocks/size", "heads/size", "slots");
    for (int32_t i = 0; i < verify_num_cases; i++) {
        print_shape(&verify_cases[i]);
        printf("%s\n", verify_cases[i].note);
    }
    for (int table = 0; table < NUM_OTHER_TABLES; table++) {
        for (const struct verify_other *one = other_tables[table]; one->name; one++) {
            print_other(one);
            printf("%s\n", one->note);
        }
    }
    return CLI_OK;
}

static int is_case(const char *name) {
    if (verify_case_find(name) >= 0)
        return 1;
    for (int table = 0; table < NUM_OTHER_TABLES; table++) {
        for (const struct verify_other *one = other_tables[table]; one->name; one++) {
            if (strcmp(one->name, name) == 0)
                return 1;
        }
    }
    return 0;
}

/* A case is selected by its name; a name that is none selects those that it begins, up to a '_'. */
static int selects(const char *wanted, const char *name) {
    const size_t length = strlen(wanted);
    if (strcmp(wanted, name) == 0)
        return 1;
    return strncmp(wanted, name, length) == 0 && name[length] == '_' && !is_case(wanted);
}

static int is_selected(const char *name, int num_names, char **names) {
    for (int i = 0; i < num_names; i++) {
        if (selects(names[i], name))
            return 1;
    }
    return num_names == 0;
}

/* The cases of the other tables that were asked for. */
static void select_others(struct verify *verify, int num_names, char **names) {
    for (int table = 0; table < NUM_OTHER_TABLES; table++) {
        for (const struct verify_other *one = other_tables[table]; one->name; one++) {
            if (!is_selected(one->name, num_names, names) || verify->num_others == MAX_OTHERS)
                continue;
            struct verify_other *other = &verify->others[verify->num_others++];
            *other = *one;
            if (verify->seed >= 0)
                other->seed = (uint64_t)verify->seed;
        }
    }
}

static int selects_other(const char *wanted) {
    for (int table = 0; table < NUM_OTHER_TABLES; table++) {
        for (const struct verify_other *one = other_tables[table]; one->name; one++) {
            if (selects(wanted, one->name))
                return 1;
        }
    }
    return 0;
}

/* Copies the cases of these names, or all, in the table's order. */
static int select_cases(struct verify *verify, int num_names, char **names) {
    verify->cases = calloc((size_t)verify_num_cases, sizeof(verify->cases[0]));
    int *selected = calloc((size_t)verify_num_cases, sizeof(selected[0]));
    int status =
        verify->cases && selected ? CLI_CONTINUE : cli_error(COMMAND, "out of memory; free some");
    for (int i = 0; i < num_names && status == CLI_CONTINUE; i++) {
        int is_known = selects_other(names[i]);
        for (int32_t k = 0; k < verify_num_cases; k++) {
            if (selects(verify_case_bare_name(names[i]), verify_cases[k].name))
                is_known = selected[k] = 1;
        }
        if (!is_known)
            status =
                cli_error(COMMAND, "there is no case '%s'; see 'pagedkv verify --list'", names[i]);
    }
    for (int32_t i = 0; i < verify_num_cases && status == CLI_CONTINUE; i++) {
        if (num_names > 0 && !selected[i])
            continue;
        struct verify_case *one = &verify->cases[verify->num_cases++];
        *one = verify_cases[i];
        if (verify->seed >= 0)
            one->seed = (uint64_t)verify->seed;
        if (verify->num_blocks > 0 && verify->num_blocks < one->num_blocks)
            one->num_blocks = verify->num_blocks;
    }
    free(selected);
    if (status == CLI_CONTINUE)
        select_others(verify, num_names, names);
    return status;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* What the cases need, after they were cut to max_cache_bytes for each of key and value. */
static struct verify_sizes cut_cases(struct verify *verify, int64_t max_cache_bytes) {
    struct verify_sizes sizes = {0};
    for (int32_t i = 0; i < verify->num_cases; i++) {
        struct verify_case *one = &verify->cases[i];
        const int64_t row_bytes = verify_row_bytes(one);
        const int64_t max_blocks = larger(max_cache_bytes / (one->block_size * row_bytes), 1);
        if (one->num_blocks > max_blocks) {
            fprintf(stderr,
                    "pagedkv verify: %s: memory for %" PRId64 " of %" PRId64
                    " blocks only; free some for the published size\n",
                    one->name, max_blocks, one->num_blocks);
            one->num_blocks = max_blocks;
        }
        const int64_t num_slots = one->num_blocks * one->block_size;
        sizes.max_slots = larger(sizes.max_slots, num_slots);
        sizes.source_bytes = larger(sizes.source_bytes, one->num_tokens * row_bytes);
        sizes.cache_bytes = larger(sizes.cache_bytes, num_slots * row_bytes);
    }
    /* The contiguous copy that a case is compared with lands in the caches too. */
    sizes.cache_bytes = larger(sizes.cache_bytes, sizes.source_bytes);
    return sizes;
}

static struct verify_sizes fit_memory(struct verify *verify) {
    const struct verify_sizes sizes = cut_cases(verify, INT64_MAX);
    const int64_t available = bench_memory_available();
    const int64_t wanted = VERIFY_NUM_PARTS * (sizes.cache_bytes + sizes.source_bytes);
    if (available < 0 || wanted <= available - RESERVED_BYTES)
        return sizes;
    return cut_cases(verify, (available - RESERVED_BYTES) / VERIFY_NUM_PARTS - sizes.source_bytes);
}

static void print_verdict(const struct verify_result *result) {
    printf("%-17s ", result->verdict == VERIFY_PASS   ? "[PRECISION_PASS]"
                     : result->verdict == VERIFY_FAIL ? "[PRECISION_FAIL]"
                                                      : "[PRECISION_ERROR]");
}

static void print_numbers(const struct verify_result *result) {
    if (result->verdict != VERIFY_PASS)
        printf("%s\n", result->message);
    else if (result->bound > 0)
        printf("%9.1f us  error %.1e, bound %.1e\n", result->ns.median / 1e3, result->error,
               result->bound);
    else if (result->bytes == 0)
        printf("%9.1f us\n", result->ns.median / 1e3);
    else
        printf("%9.1f us %6.1f GB/s %4.0f %% of a copy\n", result->ns.median / 1e3,
               (double)result->bytes / result->ns.median, 100 * result->ceiling.median);
}

/* Adds what every case has, and prints the object. */
static void finish_json(json_t *object, const struct verify *verify,
                        const struct verify_result *result) {
    const int passed = result->verdict == VERIFY_PASS;
    const int is_bounded = passed && result->bound > 0;
    json_t *common =
        json_pack("{s:s, s:s, s:s, s:i, s:s, s:I}", "result", verdict_json[result->verdict], "mode",
                  pkv_run_mode_name(verify->context.run_mode), "level",
                  pkv_cpu_level_name(pkv_context_cpu_level(verify->context.context)), "threads",
                  (int)verify->context.num_threads, "pages", bench_pages_name(BENCH_PAGES_HUGE),
                  "bytes", (json_int_t)result->bytes);
    (void)json_object_update(object, common);
    (void)json_object_set_new(object, "median_ns",
                              passed ? json_real(result->ns.median) : json_null());
    (void)json_object_set_new(object, "gb_per_s",
                              passed ? json_real((double)result->bytes / result->ns.median)
                                     : json_null());
    (void)json_object_set_new(object, "ceiling_percent",
                              passed && result->ceiling.median > 0
                                  ? json_real(100 * result->ceiling.median)
                                  : json_null());
    (void)json_object_set_new(object, "error", is_bounded ? json_real(result->error) : json_null());
    (void)json_object_set_new(object, "bound", is_bounded ? json_real(result->bound) : json_null());
    (void)json_object_set_new(object, "message",
                              passed ? json_null() : json_string(result->message));
    (void)json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(common);
    json_decref(object);
}

static void print_case_json(const struct verify *verify, const struct verify_case *one,
                            const struct verify_result *result) {
    finish_json(json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:I}", "op",
                          "scatter_pa_kv_cache", "case", one->name, "num_tokens",
                          (json_int_t)one->num_tokens, "num_blocks", (json_int_t)one->num_blocks,
                          "block_size", (json_int_t)one->block_size, "num_heads",
                          (json_int_t)one->num_heads, "head_size", (json_int_t)one->head_size,
                          "slots", verify_pattern_name(one->pattern), "slot_dtype",
                          pkv_dtype_name(one->slot_dtype), "seed", (json_int_t)one->seed),
                verify, result);
}

static void print_summary(const struct verify *verify, double seconds) {
    const struct cli_context *context = &verify->context;
    const int32_t passed = verify->num_verdicts[VERIFY_PASS];
    const int32_t num_cases = verify->num_cases + verify->num_others;
    printf("\n%d of %d cases %s", (int)passed, (int)num_cases,
           verify->tolerance              ? "within the tolerance"
           : verify->num_bounded == 0     ? "exact to the bit"
           : verify->num_bounded < passed ? "exact to the bit or within their bounds"
                                          : "within their bounds");
    if (passed < num_cases)
        printf(", %d wrong, %d could not run", (int)verify->num_verdicts[VERIFY_FAIL],
               (int)verify->num_verdicts[VERIFY_ERROR]);
    if (verify->bytes_checked > 0)
        printf(": %" PRId64 " tokens scattered, %.1f GB of cache checked byte by byte",
               verify->num_tokens, (double)verify->bytes_checked / 1e9);
    printf(", %.1f s\n", seconds);
    printf("(%s, %s, %d thread%s, huge pages)\n", pkv_run_mode_name(context->run_mode),
           pkv_cpu_level_name(pkv_context_cpu_level(context->context)), (int)context->num_threads,
           context->num_threads == 1 ? "" : "s");
}

static void run_cases(struct verify *verify, struct verify_memory *memory) {
    for (int32_t i = 0; i < verify->num_cases; i++) {
        const struct verify_case *one = &verify->cases[i];
        const struct verify_result result = verify_run(memory, one, verify->context.context,
                                                       &verify->context.hook, verify->tolerance);
        verify->num_verdicts[result.verdict]++;
        if (result.verdict != VERIFY_ERROR)
            verify->bytes_checked += VERIFY_NUM_PARTS * memory->cache[VERIFY_KEY].bytes;
        if (result.verdict == VERIFY_PASS)
            verify->num_tokens += one->num_tokens;
        if (verify->json) {
            print_case_json(verify, one, &result);
        } else {
            print_verdict(&result);
            print_shape(one);
            print_numbers(&result);
        }
        (void)fflush(stdout);
    }
}

static void run_others(struct verify *verify) {
    for (int32_t i = 0; i < verify->num_others; i++) {
        const struct verify_other *one = &verify->others[i];
        const struct verify_result result =
            one->run(one, verify->context.context, &verify->context.hook, &verify->num_tokens,
                     &verify->bytes_checked);
        verify->num_verdicts[result.verdict]++;
        verify->num_bounded += result.verdict == VERIFY_PASS && result.bound > 0;
        if (verify->json) {
            finish_json(json_pack("{s:s, s:s, s:s, s:I}", "op", one->op, "case", one->name, "shape",
                                  one->shape, "seed", (json_int_t)one->seed),
                        verify, &result);
        } else {
            print_verdict(&result);
            print_other(one);
            print_numbers(&result);
        }
        (void)fflush(stdout);
    }
}

static int verify_all(struct verify *verify) {
    const int64_t begin = bench_now_ns();
    if (verify->num_cases > 0) {
        const struct verify_sizes sizes = fit_memory(verify);
        struct verify_memory memory;
        if (verify_memory_create(&memory, &sizes, &verify->context.hook) != 0) {
            (void)cli_error(COMMAND,
                            "the system gave no memory for 2 x %" PRId64 " MiB; free some, or "
                            "give a smaller --num_blocks",
                            (sizes.cache_bytes + sizes.source_bytes) >> 20);
            return CLI_USAGE;
        }
        run_cases(verify, &memory);
        verify_memory_destroy(&memory);
    }
    run_others(verify);
    if (!verify->json)
        print_summary(verify, (double)(bench_now_ns() - begin) / 1e9);
    return verify->num_verdicts[VERIFY_PASS] == verify->num_cases + verify->num_others
               ? CLI_OK
               : CLI_CHECK_FAILED;
}

int cmd_verify(int argc, char **argv) {
    struct verify verify = {.seed = -1};
    const struct cli_option options[] = {
        {"list", CLI_FLAG, &verify.list, 0, 0, NULL, NULL, "print the cases and their sizes"},
        {"run_mode", CLI_TEXT, &verify.choice.run_mode, 0, 0, NULL, "native|sim",
         "fast kernels, or the definition tile by tile (native)"},
        {"seed", CLI_INT, &verify.seed, 0, INT64_MAX, NULL, "N",
         "draw slots, keys and values from this seed (each case has its own)"},
        {"threads", CLI_INT, &verify.choice.threads, 0, CLI_MAX_THREADS, NULL, "N",
         "threads that share the work; 0: one for each processor (0)"},
        {"cpu", CLI_TEXT, &verify.choice.cpu, 0, 0, NULL, "LEVEL",
         "use the kernels of a lower CPU level (environment: PAGEDKV_CPU)"},
        {"num_blocks", CLI_INT, &verify.num_blocks, 1, INT32_MAX, NULL, "N",
         "at most N blocks in a cache (as published)"},
        {"tolerance", CLI_FLAG, &verify.tolerance, 0, 0, NULL, NULL,
         "compare as the published test does, within 1e-4 + 2^-7 * |expected| (bit for bit)"},
        {"json", CLI_FLAG, &verify.json, 0, 0, NULL, NULL, "print one JSON object for each case"},
        {0}};
    const struct cli_syntax syntax = {
        COMMAND,
        "verify [CASE ...] [--list] [--run_mode native|sim] [--seed N] [--threads N]\n"
        "                      [--num_blocks N] [--tolerance] [--cpu LEVEL] [--json]",
        "Runs the published cases of scatter_pa_kv_cache and checks every byte of the caches, and\n"
        "cases of paged attention and checks every number, against independent references.\n"
        "A CASE is a name of --list, or its start up to a '_': attention.",
        options,
        NULL,
        NULL};
    int first = 0;
    int status = cli_parse(&syntax, argc, argv, &first);
    if (status == CLI_CONTINUE)
        status = cli_context_create(&verify.context, COMMAND, &verify.choice);
    if (status == CLI_CONTINUE && !verify.list)
        status = select_cases(&verify, argc - first, argv + first);
    if (status == CLI_CONTINUE)
        status = verify.list ? list_cases() : verify_all(&verify);
    cli_context_destroy(&verify.context);
    free(verify.cases);
    return status;
}
