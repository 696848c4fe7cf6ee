/* SPDX-License-Identifier: MIT
 *
 * What a replay tells: a table, JSON lines, a picture. Each takes all runs and their results.
 */
#ifndef PAGEDKV_REPLAY_REPORT_H
#define PAGEDKV_REPLAY_REPORT_H

#include <stdio.h>

#include "replay/model.h"

struct replay_report {
    const char *name; /* of the trace, without folders */
    const struct trace *trace;
    enum replay_model model;
    double read_seconds;
    int64_t row_bytes; /* 0: no data were moved */
    int64_t shared_prompt_tokens;
    int64_t num_runs;
    const struct replay_run *runs;
    const struct replay_result *results;
};

extern const char *const replay_policies[];    /* in the order of enum pkv_eviction, then NULL */
extern const char *const replay_model_names[]; /* in the order of enum replay_model, then NULL */

double replay_block_hit_rate(const struct replay_result *result);
double replay_token_hit_rate(const struct replay_result *result);

void replay_report_text(const struct replay_report *report);
int replay_report_json(const struct replay_report *report); /* CLI_CONTINUE or CLI_USAGE */

/* Writes an SVG of hit rate against capacity, one curve for each policy. Returns CLI_CONTINUE, or
 * CLI_USAGE after printing why not; then there is no file, or the one that was there. */
int replay_plot(const struct replay_report *report, const char *path);

#endif
