/* SPDX-License-Identifier: MIT
 *
 * The lines that bench prints, as text or as one JSON object each. It computes nothing but GB/s.
 */
#ifndef PAGEDKV_BENCH_REPORT_H
#define PAGEDKV_BENCH_REPORT_H

#include <stdint.h>

#include "bench_rounds.h"
#include "bench_stage.h"

enum { BENCH_CASE_TEXT = 64, BENCH_NOTE_TEXT = 64 };

struct bench_line {
    const char *op;
    char text[BENCH_CASE_TEXT]; /* what was done, without threads and pages */
    int32_t level;              /* enum pkv_cpu_level of the kernels */
    int32_t num_threads;
    struct bench_spread ns;      /* of one call */
    int64_t bytes;               /* read and written by one call */
    double gflops;               /* floating-point operations for one ns; 0: none are counted */
    double scalar;               /* times as fast as the plain loop of memcpy; 0: there is none */
    struct bench_spread ceiling; /* fraction of the ceiling's speed; median 0: there is none */
    char note[BENCH_NOTE_TEXT];  /* nullable: "" */
};

struct bench_report {
    int json;
    enum bench_pages pages;
};

/* The names of the columns, and what they mean. Nothing with --json. */
void bench_report_head(const struct bench_report *report, const char *title);

void bench_report_line(const struct bench_report *report, const struct bench_line *line);

#endif
