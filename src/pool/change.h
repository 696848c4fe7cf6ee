/* SPDX-License-Identifier: MIT
 *
 * Changes that a batch step may contain: match, append, fork. Each is reserved first, which changes
 * references, tables and the queue, and can be undone; then applied, which changes what blocks hold
 * and the index, and cannot fail.
 */
#ifndef PKV_POOL_CHANGE_H
#define PKV_POOL_CHANGE_H

#include "pool/pool.h"

enum pkv_change_type { PKV_CHANGE_MATCH, PKV_CHANGE_APPEND, PKV_CHANGE_FORK };

struct pkv_change {
    int32_t type;
    uint32_t seq;
    uint32_t partial;      /* match: the partial block found, or PKV_NIL */
    int32_t old_tokens;    /* append: reserved before; the new ones follow. Fork: the parent's */
    int32_t old_committed; /* append */
    int32_t num_tokens;    /* match: those found; append: the new ones */
    const int32_t *tokens; /* append */
    struct {
        uint32_t old_blocks;  /* append: entries before */
        uint32_t copy_source; /* append: the last entry before, which is copied; or PKV_NIL */
        bool rewrites;        /* append: the last entry is written below what it is known for */
    } groups[PKV_MAX_GROUPS];
};

/* Each checks, and on success has reserved; on failure nothing is changed. */
enum pkv_status pkv_change_match(struct pkv_pool *pool, struct pkv_seq seq, const int32_t *tokens,
                                 int64_t num_tokens, int64_t *num_hit_tokens,
                                 struct pkv_change *change, struct pkv_blame blame);
enum pkv_status pkv_change_append(struct pkv_pool *pool, struct pkv_seq seq, const int32_t *tokens,
                                  int64_t num_tokens, struct pkv_change *change,
                                  struct pkv_blame blame);
enum pkv_status pkv_change_fork(struct pkv_pool *pool, struct pkv_seq parent, struct pkv_seq *child,
                                struct pkv_change *change, struct pkv_blame blame);

void pkv_change_apply(struct pkv_pool *pool, const struct pkv_change *change);

/* In the reverse order of the reservations; the queue and the counts are the caller's to
 * restore. */
void pkv_change_undo(struct pkv_pool *pool, const struct pkv_change *change);

#endif
