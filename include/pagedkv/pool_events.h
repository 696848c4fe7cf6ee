/* SPDX-License-Identifier: MIT
 *
 * What a pool tells about its prefix index, for routers and for other tiers of a cache: which
 * contents can be found, and which no longer.
 */
#ifndef PAGEDKV_POOL_EVENTS_H
#define PAGEDKV_POOL_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#include <pagedkv/version.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The key of a block's contents; doc/prefix-key.md. */
struct pkv_key {
    uint64_t low;
    uint64_t high;
};

enum pkv_pool_event_type {
    PKV_POOL_EVENT_STORED = 1, /* the block's contents can be found from now on */
    /* They no longer can: written over by their only holder, replaced by a newer block of the same
     * key, or grown */
    PKV_POOL_EVENT_REMOVED = 2,
    PKV_POOL_EVENT_EVICTED = 3, /* they no longer can: the block is handed out for new ones */
    PKV_POOL_EVENT_CLEARED = 4  /* nothing stored so far can; block_id is -1 */
};

struct pkv_pool_event {
    uint64_t sequence_number; /* 0, 1, 2, ... without a gap */
    int32_t type;             /* enum pkv_pool_event_type */
    int32_t group;            /* layer group */
    int32_t block_id;
    int32_t num_tokens; /* of the entry; less than the block size in a partial block */
    struct pkv_key key;
    struct pkv_key parent_key; /* STORED only: of the block before, or the root key of its domain */
    const int32_t *token_ids;  /* [num_tokens], STORED only; valid during the callback */
};

/* Called during the call that caused the event; those of a batch step at its commit, in the order
 * of its operations. It must be quick, and calls that would change the pool answer BAD_STATE. */
typedef void (*pkv_pool_event_callback)(void *user, const struct pkv_pool_event *event);

#ifdef __cplusplus
}
#endif

#endif
