/* SPDX-License-Identifier: MIT
 *
 * The models of a cache that a trace is replayed against, and what they count. Published figures
 * count in different ways, so there are two.
 */
#ifndef PAGEDKV_REPLAY_MODEL_H
#define PAGEDKV_REPLAY_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/trace.h"

struct replay_data;
struct replay_progress;

enum replay_model {
    REPLAY_MODEL_POOL, /* the library's pool and prefix index: leading hits only, and a request
                          holds its blocks until the next one */
    REPLAY_MODEL_IDS   /* one plain cache over ids: one access for each id, in order; a hit is an id
                          that is there */
};

struct replay_run {
    int32_t eviction;                 /* enum pkv_eviction */
    int64_t capacity;                 /* blocks; 0: unlimited */
    int64_t shared_prompt_tokens;     /* a hit on the first block counts at least so many tokens; 0:
                                         those of the block */
    struct replay_data *data;         /* nullable; pool model: moves the bytes too */
    struct replay_progress *progress; /* counts requests */
};

struct replay_result {
    int64_t num_requests;
    int64_t num_refused; /* of these: larger than the capacity; all their blocks are misses */
    int64_t num_tokens;  /* of the prompts */
    int64_t num_hit_tokens;
    int64_t num_blocks; /* of the prompts */
    int64_t num_hit_blocks;
    int64_t num_evictions;
    int64_t peak_blocks;    /* most that held something at a time */
    int64_t num_slots;      /* token slots of the blocks of each request at its end */
    int64_t num_used_slots; /* of these, slots that hold a token */
    int64_t num_operations; /* blocks found, allocated or given back; of the ids model: accesses */
    double seconds;         /* for all of it */
    int64_t num_written_bytes; /* with data */
    int64_t num_read_bytes;
    double copy_seconds; /* in scatter and gather alone */
};

/* Each replays the whole trace once. They return CLI_CONTINUE; CLI_CHECK_FAILED after printing what
 * data were wrong; CLI_USAGE after printing what failed. */
int replay_pool(const struct trace *trace, const struct replay_run *run,
                struct replay_result *result);
int replay_ids(const struct trace *trace, const struct replay_run *run,
               struct replay_result *result);

/* Counts request r, of which the first num_hits blocks were found: tokens, blocks, slots. */
void replay_count(const struct trace *trace, const struct replay_run *run,
                  const struct trace_request *request, int64_t num_hits,
                  struct replay_result *result);

/* A request that was not let in: its blocks and tokens are misses. */
void replay_count_refused(const struct trace_request *request, struct replay_result *result);

double replay_now(void); /* seconds of a clock that never runs backwards */

/* A bar on stderr while it is a terminal, and nothing otherwise. */
struct replay_progress {
    int64_t total;
    int64_t done;
    int64_t next; /* done at which the bar is drawn anew */
    bool is_on;
};

void replay_progress_begin(struct replay_progress *progress, int64_t total);
void replay_progress_draw(struct replay_progress *progress);
void replay_progress_end(struct replay_progress *progress); /* wipes it */

static inline void replay_progress_add(struct replay_progress *progress) {
    if (++progress->done >= progress->next)
        replay_progress_draw(progress);
}

#endif
