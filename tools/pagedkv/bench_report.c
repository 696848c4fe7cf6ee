/* SPDX-License-Identifier: MIT
 *
 * Lines as text and as JSON. See bench_report.h.
 */
#include "bench_report.h"

#include <stdio.h>

#include <jansson.h>

/* Three digits that count, with a unit. */
static const char *time_text(double ns, char text[16]) {
    static const char *const units[] = {"ns", "us", "ms"};
    int unit = 0;
    for (; unit < 2 && ns >= 1000; unit++)
        ns /= 1000;
    (void)snprintf(text, 16, "%.*f %s", ns < 10 ? 2 : ns < 100 ? 1 : 0, ns, units[unit]);
    return text;
}

void bench_report_head(const struct bench_report *report, const char *title) {
    if (report->json)
        return;
    printf("\n%s\n%-14s %-40s %3s %-5s %10s %23s %7s %8s %9s %s\n", title, "op", "case", "thr",
           "pages", "median", "[quartiles]", "GB/s", "x scalar", "% ceiling", "[quartiles]");
}

static void print_text(const struct bench_report *report, const struct bench_line *line) {
    char median[16], q1[16], q3[16];
    printf("%-14s %-40s %3d %-5s %10s   [%8s, %8s]", line->op, line->text, (int)line->num_threads,
           bench_pages_name(report->pages), time_text(line->ns.median, median),
           time_text(line->ns.q1, q1), time_text(line->ns.q3, q3));
    if (line->bytes > 0)
        printf(" %7.1f", (double)line->bytes / line->ns.median);
    else
        printf(" %7s", "-");
    if (line->scalar > 0)
        printf(" %8.2f", line->scalar);
    else
        printf(" %8s", "-");
    if (line->ceiling.median > 0)
        printf(" %9.0f [%.0f, %.0f]", 100 * line->ceiling.median, 100 * line->ceiling.q1,
               100 * line->ceiling.q3);
    else
        printf(" %9s", "-");
    if (line->gflops > 0)
        printf("  %.0f GFLOP/s", line->gflops);
    printf("%s%s\n", line->note[0] ? "  " : "", line->note);
}

static json_t *number_or_null(double number) {
    return number > 0 ? json_real(number) : json_null();
}

static void print_json(const struct bench_report *report, const struct bench_line *line) {
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:s, s:f, s:f, s:f, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:s}",
        "op", line->op, "case", line->text, "mode", pkv_run_mode_name(PKV_RUN_MODE_NATIVE), "level",
        pkv_cpu_level_name(line->level), "threads", (int)line->num_threads, "pages",
        bench_pages_name(report->pages), "median_ns", line->ns.median, "q1_ns", line->ns.q1,
        "q3_ns", line->ns.q3, "bytes", (json_int_t)line->bytes, "gb_per_s",
        number_or_null((double)line->bytes / line->ns.median), "gflops",
        number_or_null(line->gflops), "scalar_ratio", number_or_null(line->scalar),
        "ceiling_percent", number_or_null(100 * line->ceiling.median), "ceiling_percent_q1",
        number_or_null(100 * line->ceiling.q1), "ceiling_percent_q3",
        number_or_null(100 * line->ceiling.q3), "note", line->note);
    (void)json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(object);
}

void bench_report_line(const struct bench_report *report, const struct bench_line *line) {
    if (report->json)
        print_json(report, line);
    else
        print_text(report, line);
    (void)fflush(stdout);
}
