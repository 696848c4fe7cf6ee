/* SPDX-License-Identifier: MIT
 *
 * The ceilings of attention: a sequential read of the same bytes, and the arithmetic peak of the
 * unit that does the products. It uses nothing of the library but the executor, so that a mistake
 * there cannot lower them.
 */
#ifndef PAGEDKV_BENCH_ATTENTION_PEAK_H
#define PAGEDKV_BENCH_ATTENTION_PEAK_H

#include <stdint.h>

#include <pagedkv/executor.h>

/* Memory to read. */
struct bench_read {
    const unsigned char *data;
    int64_t bytes;
};

/* Reads all spans, one after the other, every byte once but for a rest of less than 256 bytes a
 * thread, with vector loads; each thread has one contiguous share of every span. num_streams is 1
 * or 4: a share is read from its start, or from four places at once. Returns what nobody needs. */
uint64_t bench_read_spans(const struct pkv_executor *executor, const struct bench_read *spans,
                          int32_t num_spans, int32_t num_streams);

/* What multiplies and adds. */
enum bench_unit {
    BENCH_UNIT_FMA,      /* float32 fused multiply-add */
    BENCH_UNIT_BF16_DOT, /* dot products of bfloat16 pairs, sums in float32 */
};

/* 1 if this machine and this build have the unit. */
int bench_unit_exists(enum bench_unit unit);

/* Keeps the unit as busy as it can be on each of the executor's threads, on registers alone, with
 * the widest vectors of the machine. Returns how many floating-point operations that were, of all
 * threads. */
double bench_unit_work(const struct pkv_executor *executor, enum bench_unit unit);

#endif
