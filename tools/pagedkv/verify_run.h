/* SPDX-License-Identifier: MIT
 *
 * One case of verify, from its slots to its verdict. It prints nothing.
 */
#ifndef PAGEDKV_VERIFY_RUN_H
#define PAGEDKV_VERIFY_RUN_H

#include <stdint.h>

#include <pagedkv/pagedkv.h>

#include "bench_rounds.h"
#include "verify_cases.h"
#include "verify_memory.h"

enum verify_verdict { VERIFY_PASS, VERIFY_FAIL, VERIFY_ERROR };

struct verify_result {
    enum verify_verdict verdict;
    int64_t bytes;               /* read and written by one run */
    struct bench_spread ns;      /* of one run */
    struct bench_spread ceiling; /* fraction of the speed of a contiguous copy of the same bytes */
    double error; /* PASS of an operator that is not exact: of the element nearest to its bound */
    double bound; /* of that element; 0: compared bit for bit */
    char message[256]; /* FAIL: the first wrong byte; ERROR: why it could not run */
};

/* Scatters the case's tokens once and checks every byte of the caches; then measures more runs
 * beside the contiguous copy, and leaves the caches as it found them. executor is that of the
 * context, or of zeroes. */
struct verify_result verify_run(struct verify_memory *memory, const struct verify_case *one,
                                struct pkv_context *context, const struct pkv_executor *executor,
                                int tolerance);

#endif
