/* SPDX-License-Identifier: MIT
 *
 * Cases of verify that are not of the shape of struct verify_case: each brings its own memory and
 * its own reference. A table of them belongs to one operator or mode; those of attention are
 * compared within a bound, the others bit for bit.
 */
#ifndef PAGEDKV_VERIFY_OTHER_H
#define PAGEDKV_VERIFY_OTHER_H

#include <stdint.h>

#include "verify_run.h"

struct verify_other {
    const char *op;
    const char *name;  /* NULL ends a table */
    const char *shape; /* as text, for the list and the result */
    const char *note;
    const void *sizes; /* what run makes of it */
    uint64_t seed;
    /* Adds to *num_tokens and *bytes_checked, unless the verdict is VERIFY_ERROR. */
    struct verify_result (*run)(const struct verify_other *one, struct pkv_context *context,
                                const struct pkv_executor *executor, int64_t *num_tokens,
                                int64_t *bytes_checked);
};

/* Plain scatters in other layouts, dtypes and shapes. */
extern const struct verify_other verify_scatter_cases[];

/* Alibi, Rope and Omni. */
extern const struct verify_other verify_compressed_cases[];

/* Paged attention. */
extern const struct verify_other verify_attention_cases[];

#endif
