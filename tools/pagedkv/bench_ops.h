/* SPDX-License-Identifier: MIT
 *
 * What bench can measure, one function for each name on its command line.
 */
#ifndef PAGEDKV_BENCH_OPS_H
#define PAGEDKV_BENCH_OPS_H

#include "bench_report.h"
#include "bench_stage.h"

/* Each prints its lines and returns an exit status; it has printed what is wrong then. */
int bench_scatter(struct bench_stage *stage, const struct bench_team *team,
                  const struct bench_report *report);
int bench_scatter_small(struct bench_stage *stage, const struct bench_team *team,
                        const struct bench_report *report);
int bench_step(struct bench_stage *stage, const struct bench_team *team,
               const struct bench_report *report);
int bench_scatter_rows(struct bench_stage *stage, const struct bench_team *team,
                       const struct bench_report *report);
int bench_layouts(struct bench_stage *stage, const struct bench_team *team,
                  const struct bench_report *report);
int bench_compressed(struct bench_stage *stage, const struct bench_team *team,
                     const struct bench_report *report);
int bench_gather(struct bench_stage *stage, const struct bench_team *team,
                 const struct bench_report *report);
int bench_copy_blocks(struct bench_stage *stage, const struct bench_team *team,
                      const struct bench_report *report);
int bench_swap_blocks(struct bench_stage *stage, const struct bench_team *team,
                      const struct bench_report *report);
int bench_fill_blocks(struct bench_stage *stage, const struct bench_team *team,
                      const struct bench_report *report);
int bench_nsa_compress(struct bench_stage *stage, const struct bench_team *team,
                       const struct bench_report *report);
int bench_convert_layout(struct bench_stage *stage, const struct bench_team *team,
                         const struct bench_report *report);
int bench_attention_decode(struct bench_stage *stage, const struct bench_team *team,
                           const struct bench_report *report);
int bench_attention_mla(struct bench_stage *stage, const struct bench_team *team,
                        const struct bench_report *report);
int bench_attention_prefill(struct bench_stage *stage, const struct bench_team *team,
                            const struct bench_report *report);
int bench_attention_step(struct bench_stage *stage, const struct bench_team *team,
                         const struct bench_report *report);
int bench_manager(struct bench_stage *stage, const struct bench_team *team,
                  const struct bench_report *report);

/* Prints that a call of the library failed, or with status OK that it wrote something wrong, in the
 * case of that name; returns an exit status. */
int bench_failed(const char *text, const struct pkv_error *error);

#endif
