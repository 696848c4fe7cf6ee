/* SPDX-License-Identifier: MIT
 *
 * The table and the JSON lines of a replay, and its progress bar.
 */
#include "replay/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include <jansson.h>

#include "cli.h"

const char *const replay_policies[] = {"lru", "fifo", "lfu", NULL};
const char *const replay_model_names[] = {"pool", "ids", NULL};

/* What an allocator without blocks would do with the lengths of a trace. */
struct alternatives {
    double longest;      /* the longest request's length for each */
    double power_of_two; /* the next power of two */
};

static double ratio(double a, double b) {
    return b > 0 ? a / b : 0;
}

double replay_block_hit_rate(const struct replay_result *result) {
    return ratio((double)result->num_hit_blocks, (double)result->num_blocks);
}

double replay_token_hit_rate(const struct replay_result *result) {
    return ratio((double)result->num_hit_tokens, (double)result->num_tokens);
}

static double slot_share(const struct replay_result *result) {
    return ratio((double)result->num_used_slots, (double)result->num_slots);
}

static double operations_per_second(const struct replay_result *result) {
    return ratio((double)result->num_operations, result->seconds);
}

static double gb_per_second(const struct replay_result *result) {
    return ratio(1e-9 * (double)(result->num_written_bytes + result->num_read_bytes),
                 result->copy_seconds);
}

static struct alternatives alternatives_of(const struct trace *trace) {
    double used = 0, powers = 0;
    int64_t longest = 0;
    for (int64_t r = 0; r < trace->num_requests; r++) {
        const int64_t tokens = trace->requests[r].input_length + trace->requests[r].output_length;
        int64_t power = 1;
        while (power < tokens)
            power *= 2;
        used += (double)tokens;
        powers += tokens > 0 ? (double)power : 0;
        if (tokens > longest)
            longest = tokens;
    }
    return (struct alternatives){ratio(used, (double)longest * (double)trace->num_requests),
                                 ratio(used, powers)};
}

/* 1234567 as "1,234,567". */
static const char *grouped(int64_t number, char text[32]) {
    char digits[24];
    const int length = snprintf(digits, sizeof(digits), "%" PRId64, number);
    char *to = text;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return text;
}

/* Lengths to two digits with a unit. */
static const char *rounded(double number, const char *const units[], char text[32]) {
    int unit = 0;
    while (number >= 999.5 && units[unit + 1]) {
        number /= 1000;
        unit++;
    }
    (void)snprintf(text, 32, number < 10 && unit > 0 ? "%.1f%s" : "%.0f%s", number, units[unit]);
    return text;
}

static const char *bytes_text(int64_t bytes, char text[32]) {
    static const char *const units[] = {" bytes", " KB", " MB", " GB", " TB", NULL};
    return rounded((double)bytes, units, text);
}

static void print_head(const struct replay_report *report) {
    const struct trace *trace = report->trace;
    char requests[32], tokens[32], blocks[32], ids[32];
    printf("trace  %s (%s): %s requests, %s prompt tokens", report->name, trace->format,
           grouped(trace->num_requests, requests), grouped(trace->input_tokens, tokens));
    if (report->read_seconds > 0)
        printf(", read in %.3f s", report->read_seconds);
    printf("\nblocks ");
    if (trace->has_blocks)
        printf("%s of %" PRId64 " tokens, %s of them different\n",
               grouped(trace->num_blocks, blocks), trace->block_size, grouped(trace->num_ids, ids));
    else
        printf("of %" PRId64 " tokens; the trace has lengths only, so no request shares any\n",
               trace->block_size);
    printf("model  %s\n", report->model == REPLAY_MODEL_IDS
                              ? "ids: one plain cache, one access for each block"
                              : "pool: the block manager and its prefix index");
    if (report->shared_prompt_tokens > 0)
        printf("       a hit on the first block counts as %" PRId64 " tokens at least\n",
               report->shared_prompt_tokens);
}

static void print_row(const struct replay_report *report, int64_t i) {
    const struct replay_run *run = &report->runs[i];
    const struct replay_result *result = &report->results[i];
    char capacity[32] = "unlimited", evictions[32], peak[32];
    if (run->capacity > 0)
        (void)grouped(run->capacity, capacity);
    printf("%-6s %11s", replay_policies[run->eviction], capacity);
    if (report->trace->has_blocks)
        printf("  %8.2f %%  %8.2f %%  %11s", 100 * replay_block_hit_rate(result),
               100 * replay_token_hit_rate(result), grouped(result->num_evictions, evictions));
    printf("  %11s  %8.2f %%  %9.2f  %6.3f s\n", grouped(result->peak_blocks, peak),
           100 * slot_share(result), 1e-6 * operations_per_second(result), result->seconds);
    if (result->num_refused > 0)
        printf("%18s  %s of the requests are larger than that and were refused\n", "",
               grouped(result->num_refused, evictions));
}

static void print_data(const struct replay_report *report, int64_t i) {
    const struct replay_result *result = &report->results[i];
    char written[32], read[32], capacity[32];
    printf("%s, %s blocks: %s written through slot_mapping, %s read back and compared: every byte "
           "right; %.2f GB/s\n",
           replay_policies[report->runs[i].eviction], grouped(report->runs[i].capacity, capacity),
           bytes_text(result->num_written_bytes, written), bytes_text(result->num_read_bytes, read),
           gb_per_second(result));
}

void replay_report_text(const struct replay_report *report) {
    print_head(report);
    printf("\n%-6s %11s", "policy", "capacity");
    if (report->trace->has_blocks)
        printf("  %10s  %10s  %11s", "block hits", "token hits", "evictions");
    printf("  %11s  %10s  %9s  %8s\n", "peak blocks", "slots used", "M ops / s", "time");
    for (int64_t i = 0; i < report->num_runs; i++)
        print_row(report, i);
    if (!report->trace->has_blocks) {
        const struct alternatives other = alternatives_of(report->trace);
        printf("\nWithout blocks, slots used would be %.2f %% if each request had room for the "
               "longest one,\nand %.2f %% if it had the next power of two.\n",
               100 * other.longest, 100 * other.power_of_two);
    }
    if (report->row_bytes > 0) {
        printf("\n");
        for (int64_t i = 0; i < report->num_runs; i++)
            print_data(report, i);
    }
}

static json_t *json_of(const struct replay_report *report, int64_t i) {
    const struct replay_run *run = &report->runs[i];
    const struct replay_result *result = &report->results[i];
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:f, s:f, s:f, s:f}",
        "trace", report->trace->format, "model", replay_model_names[report->model], "policy",
        replay_policies[run->eviction], "capacity",
        run->capacity > 0 ? json_integer(run->capacity) : json_null(), "block_size",
        (json_int_t)report->trace->block_size, "requests", (json_int_t)result->num_requests,
        "refused_requests", (json_int_t)result->num_refused, "tokens",
        (json_int_t)result->num_tokens, "blocks", (json_int_t)result->num_blocks, "block_hit_rate",
        replay_block_hit_rate(result), "token_hit_rate", replay_token_hit_rate(result), "evictions",
        (json_int_t)result->num_evictions, "peak_blocks", (json_int_t)result->peak_blocks,
        "slot_share", slot_share(result), "operations_per_s", operations_per_second(result),
        "seconds", result->seconds, "read_seconds", report->read_seconds);
    if (object && !report->trace->has_blocks) {
        const struct alternatives other = alternatives_of(report->trace);
        json_object_set_new(object, "slot_share_longest", json_real(other.longest));
        json_object_set_new(object, "slot_share_power_of_two", json_real(other.power_of_two));
    }
    if (object && report->row_bytes > 0) {
        json_object_set_new(object, "row_bytes", json_integer(report->row_bytes));
        json_object_set_new(object, "written_bytes", json_integer(result->num_written_bytes));
        json_object_set_new(object, "read_bytes", json_integer(result->num_read_bytes));
        json_object_set_new(object, "gb_per_s", json_real(gb_per_second(result)));
    }
    return object;
}

int replay_report_json(const struct replay_report *report) {
    for (int64_t i = 0; i < report->num_runs; i++) {
        json_t *object = json_of(report, i);
        char *text = object ? json_dumps(object, JSON_REAL_PRECISION(9)) : NULL;
        json_decref(object);
        if (text == NULL)
            return cli_error("replay", "no memory for the report; free some");
        puts(text);
        free(text);
    }
    return CLI_CONTINUE;
}

enum { BAR = 40, STEPS = 200 };

void replay_progress_begin(struct replay_progress *progress, int64_t total) {
    *progress = (struct replay_progress){
        .total = total, .next = INT64_MAX, .is_on = isatty(STDERR_FILENO) != 0};
    if (progress->is_on)
        replay_progress_draw(progress);
}

void replay_progress_draw(struct replay_progress *progress) {
    static const char full[BAR + 1] = "########################################";
    const int64_t total = progress->total > 0 ? progress->total : 1;
    const int filled = (int)(BAR * progress->done / total);
    fprintf(stderr, "\r[%-*.*s] %3d %%", BAR, filled, full, (int)(100 * progress->done / total));
    (void)fflush(stderr);
    progress->next = progress->done + total / STEPS + 1;
}

void replay_progress_end(struct replay_progress *progress) {
    if (progress->is_on)
        fprintf(stderr, "\r%*s\r", BAR + 8, "");
}
