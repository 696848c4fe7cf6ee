/* SPDX-License-Identifier: MIT
 *
 * The auditor: proves that a pool is consistent, or names the first rule that is violated.
 */
#ifndef PAGEDKV_AUDIT_H
#define PAGEDKV_AUDIT_H

#include <pagedkv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In the order in which they are checked. */
enum pkv_audit_rule {
    PKV_AUDIT_PASSED = 0,
    PKV_AUDIT_TABLES = 1,     /* a table has as many entries as its tokens need, each a block or,
                                      before the window, -1; computed <= reserved */
    PKV_AUDIT_REFERENCES = 2, /* references = entries of tables + handles held by callers */
    PKV_AUDIT_UNCOMPUTED = 3, /* holders that have yet to compute a block are counted right */
    PKV_AUDIT_OPEN_TAIL = 4,  /* no block is written by two sequences */
    PKV_AUDIT_COUNTS = 5,     /* free + cached + used = num_blocks, each counted right */
    PKV_AUDIT_FREE_QUEUE = 6, /* the queue holds each free and cached block once, plain free ones
                                      first, then by class and policy */
    PKV_AUDIT_INDEX = 7,      /* index and blocks are a bijection, and each entry can be found */
    /* An indexed block lies below the computed tokens of each holder */
    PKV_AUDIT_INDEX_COMPUTED = 8,
    PKV_AUDIT_INDEX_CONTENTS = 9, /* keys are those of the stored tokens, through the chain */
    PKV_AUDIT_DOMAINS = 10        /* domains are counted right */
};

struct pkv_audit {
    size_t struct_size;
    int32_t rule;      /* enum pkv_audit_rule: the first that is violated */
    int32_t block_id;  /* at fault, or -1 */
    int64_t seq_index; /* index of the handle of the sequence at fault, or -1 */
    const char *text;  /* what must hold, static; NULL when all does */
};

/* Checks the rules of a pool against each other: what a correct pool always keeps.
 *
 * audit   out, nullable, as much as its struct_size has room for
 * errors  NULL_ARGUMENT, STRUCT_SIZE, INTERNAL (a rule is violated; value is the block)
 * cost    O(num_blocks + table entries + their tokens); no allocation
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_pool_audit(struct pkv_pool *pool, struct pkv_audit *audit,
                                                    struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
