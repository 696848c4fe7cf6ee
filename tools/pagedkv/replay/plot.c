/* SPDX-License-Identifier: MIT
 *
 * Hit rate against capacity as an SVG: capacity on a logarithmic axis, one curve for each policy,
 * and a dashed line at what a cache without limit reaches.
 */
#include "replay/report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "new_file.h"

enum {
    WIDTH = 900,
    HEIGHT = 520,
    LEFT = 84,
    RIGHT = 224, /* the legend stands there */
    TOP = 72,
    BOTTOM = 66,
    NUM_POLICIES = 3
};

/* Colours that people with any colour vision tell apart (Okabe and Ito), and shapes for print. */
static const char *const colours[NUM_POLICIES] = {"#0072b2", "#d55e00", "#009e73"};
static const char *const labels[NUM_POLICIES] = {"LRU", "FIFO", "LFU"};

struct plot {
    FILE *stream;
    const struct replay_report *report;
    double min; /* log10 of capacities */
    double max;
    double step;      /* of hit rates in percent, between two lines */
    double top;       /* hit rate at the upper end */
    double unlimited; /* hit rate in percent, or -1 */
};

static double x_of(const struct plot *plot, double log_capacity) {
    return LEFT + (WIDTH - LEFT - RIGHT) * (log_capacity - plot->min) / (plot->max - plot->min);
}

static double y_of(const struct plot *plot, double percent) {
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * percent / plot->top;
}

static double rate(const struct plot *plot, int64_t i) {
    return 100 * replay_token_hit_rate(&plot->report->results[i]);
}

/* Percent between two lines: at most ten of them. */
static double y_step(double top) {
    static const double steps[] = {0.5, 1, 2, 5, 10};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (top / steps[i] <= 9)
            return steps[i];
    }
    return 20;
}

static void find_ranges(struct plot *plot) {
    const struct replay_report *report = plot->report;
    double most = 0;
    plot->min = INFINITY;
    plot->max = -INFINITY;
    plot->unlimited = -1;
    for (int64_t i = 0; i < report->num_runs; i++) {
        most = fmax(most, rate(plot, i));
        if (report->runs[i].capacity == 0) {
            plot->unlimited = rate(plot, i);
            continue;
        }
        plot->min = fmin(plot->min, log10((double)report->runs[i].capacity));
        plot->max = fmax(plot->max, log10((double)report->runs[i].capacity));
    }
    if (plot->min > plot->max)
        plot->min = plot->max = 3; /* unlimited alone */
    if (plot->max - plot->min < 1) {
        plot->min = floor(plot->min);
        plot->max = plot->min + 1 > plot->max ? plot->min + 1 : plot->min + 2;
    }
    plot->step = y_step(fmax(most, 1));
    plot->top = plot->step * ceil(fmax(most, 1) * 1.02 / plot->step);
}

static void print_text(const struct plot *plot, const char *text) {
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '&' || c == '<' || c == '>' || c == '"' || c < ' ' || c > '~')
            fprintf(plot->stream, c < ' ' || c > '~' ? "?" : "&#%d;", c);
        else
            (void)fputc(c, plot->stream);
    }
}

static void draw_axes(const struct plot *plot) {
    const double right = x_of(plot, plot->max), bottom = y_of(plot, 0);
    for (double y = 0; y <= plot->top + plot->step / 2; y += plot->step) {
        fprintf(plot->stream,
                "<line x1='%d' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#dddddd'/>\n"
                "<text x='%d' y='%.1f' text-anchor='end'>%g %%</text>\n",
                LEFT, y_of(plot, y), right, y_of(plot, y), LEFT - 8, y_of(plot, y) + 5, y);
    }
    for (int power = 0; power < 10; power++) {
        for (int digit = 1; digit < 10; digit++) {
            const double capacity = digit * pow(10, power);
            const double x = x_of(plot, log10(capacity));
            if (log10(capacity) < plot->min - 1e-9 || log10(capacity) > plot->max + 1e-9)
                continue;
            fprintf(plot->stream, "<line x1='%.1f' y1='%d' x2='%.1f' y2='%.1f' stroke='%s'/>\n", x,
                    TOP, x, bottom, digit == 1 ? "#cccccc" : "#f0f0f0");
            if (digit == 1 || digit == 3) {
                static const char *const units[] = {"", "k", "M", "G"};
                fprintf(plot->stream, "<text x='%.1f' y='%.1f' text-anchor='middle'>%g%s</text>\n",
                        x, bottom + 20, capacity / pow(1000, power / 3), units[power / 3]);
            }
        }
    }
    fprintf(plot->stream,
            "<path d='M%d %d V%.1f H%.1f' fill='none' stroke='#333333' stroke-width='1.5'/>\n"
            "<text x='%.1f' y='%d' text-anchor='middle'>capacity in blocks of %" PRId64
            " tokens</text>\n"
            "<text transform='translate(22 %.1f) rotate(-90)' text-anchor='middle'>token hit "
            "rate</text>\n",
            LEFT, TOP, bottom, right, (LEFT + right) / 2, HEIGHT - 20,
            plot->report->trace->block_size, (TOP + bottom) / 2);
}

static void draw_marker(const struct plot *plot, int32_t policy, double x, double y) {
    if (policy == PKV_EVICTION_LRU)
        fprintf(plot->stream, "<circle cx='%.1f' cy='%.1f' r='4'", x, y);
    else if (policy == PKV_EVICTION_FIFO)
        fprintf(plot->stream, "<rect x='%.1f' y='%.1f' width='7' height='7'", x - 3.5, y - 3.5);
    else
        fprintf(plot->stream, "<path d='M%.1f %.1f l5 9 h-10 z'", x, y - 6);
    fprintf(plot->stream, " fill='%s'/>\n", colours[policy]);
}

static int by_capacity(const void *a, const void *b) {
    const struct replay_run *const *x = a, *const *y = b;
    return ((*x)->capacity > (*y)->capacity) - ((*x)->capacity < (*y)->capacity);
}

/* Returns whether the policy has any points. order has room for all runs. */
static bool draw_curve(const struct plot *plot, int32_t policy, const struct replay_run **order) {
    const struct replay_report *report = plot->report;
    size_t count = 0;
    for (int64_t i = 0; i < report->num_runs; i++) {
        if (report->runs[i].eviction == policy && report->runs[i].capacity > 0)
            order[count++] = &report->runs[i];
    }
    if (count == 0)
        return false;
    qsort(order, count, sizeof(*order), by_capacity);
    fprintf(plot->stream, "<polyline fill='none' stroke='%s' stroke-width='2.5' points='",
            colours[policy]);
    for (size_t i = 0; i < count; i++)
        fprintf(plot->stream, "%.1f,%.1f ", x_of(plot, log10((double)order[i]->capacity)),
                y_of(plot, rate(plot, order[i] - report->runs)));
    fprintf(plot->stream, "'/>\n");
    for (size_t i = 0; i < count; i++)
        draw_marker(plot, policy, x_of(plot, log10((double)order[i]->capacity)),
                    y_of(plot, rate(plot, order[i] - report->runs)));
    return true;
}

static void draw_legend(const struct plot *plot, int32_t policy, int row) {
    const int x = WIDTH - RIGHT + 28, y = TOP + 14 + row * 26;
    fprintf(plot->stream, "<line x1='%d' y1='%d' x2='%d' y2='%d' stroke='%s' ", x, y, x + 34, y,
            policy < 0 ? "#666666" : colours[policy]);
    if (policy < 0) {
        fprintf(plot->stream,
                "stroke-width='1.5' stroke-dasharray='6 4'/>\n"
                "<text x='%d' y='%d'>unlimited: %.2f %%</text>\n",
                x + 42, y + 5, plot->unlimited);
        return;
    }
    fprintf(plot->stream, "stroke-width='2.5'/>\n<text x='%d' y='%d'>%s</text>\n", x + 42, y + 5,
            labels[policy]);
    draw_marker(plot, policy, x + 17, y);
}

static void draw(struct plot *plot, const struct replay_run **order) {
    const struct replay_report *report = plot->report;
    int row = 0;
    fprintf(plot->stream,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' viewBox='0 0 %d %d' "
            "font-family='sans-serif' font-size='14' fill='#222222'>\n"
            "<rect width='100%%' height='100%%' fill='white'/>\n"
            "<text x='%d' y='30' font-size='18' font-weight='bold'>Prefix hit rate: ",
            WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    print_text(plot, report->name);
    fprintf(plot->stream,
            "</text>\n<text x='%d' y='52' fill='#666666'>%" PRId64 " requests, model %s", LEFT,
            report->trace->num_requests, replay_model_names[report->model]);
    if (report->shared_prompt_tokens > 0)
        fprintf(plot->stream, ", shared prompt of %" PRId64 " tokens",
                report->shared_prompt_tokens);
    fprintf(plot->stream, "</text>\n");
    draw_axes(plot);
    if (plot->unlimited >= 0)
        fprintf(plot->stream,
                "<line x1='%d' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#666666' stroke-width='1.5' "
                "stroke-dasharray='6 4'/>\n",
                LEFT, y_of(plot, plot->unlimited), x_of(plot, plot->max),
                y_of(plot, plot->unlimited));
    for (int32_t policy = 0; policy < NUM_POLICIES; policy++) {
        if (draw_curve(plot, policy, order))
            draw_legend(plot, policy, row++);
    }
    if (plot->unlimited >= 0)
        draw_legend(plot, -1, row);
    fprintf(plot->stream, "</svg>\n");
}

int replay_plot(const struct replay_report *report, const char *path) {
    struct plot plot = {.report = report};
    struct new_file file;
    const struct replay_run **order = calloc((size_t)report->num_runs + 1, sizeof(*order));
    if (order == NULL)
        return cli_error("replay", "no memory for the plot; free some");
    const char *why = new_file_open(&file, path);
    if (why == NULL) {
        plot.stream = fdopen(file.descriptor, "w");
        if (plot.stream) {
            find_ranges(&plot);
            draw(&plot, order);
        }
        const bool failed = plot.stream == NULL || ferror(plot.stream) != 0;
        const bool is_whole = (plot.stream == NULL || fclose(plot.stream) == 0) && !failed;
        const int saved = errno;
        why = new_file_end(&file, is_whole);
        if (!is_whole)
            why = strerror(saved);
    }
    free(order);
    return why ? cli_error("replay", "cannot write %s: %s; name another file with --plot", path,
                           why)
               : CLI_CONTINUE;
}
