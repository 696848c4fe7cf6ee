/* SPDX-License-Identifier: MIT
 *
 * How operators run their tiles: on the caller's executor, or in order on the calling thread.
 */
#ifndef PKV_PARALLEL_EXECUTOR_H
#define PKV_PARALLEL_EXECUTOR_H

#include <stddef.h>

#include <pagedkv/executor.h>

/* Runs fn(arg, 0) ... fn(arg, num_tiles - 1) and returns when all have returned. executor is
 * nullable; without it, with one thread or with one tile everything happens here, in order, and the
 * executor is not touched. */
static inline void pkv_executor_run(const struct pkv_executor *executor,
                                    void (*fn)(void *arg, int64_t index), void *arg,
                                    int64_t num_tiles) {
    if (executor && executor->run && executor->num_threads > 1 && num_tiles > 1) {
        executor->run(executor->user, fn, arg, num_tiles);
        return;
    }
    for (int64_t i = 0; i < num_tiles; i++)
        fn(arg, i);
}

#endif
