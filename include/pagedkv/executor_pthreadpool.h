/* SPDX-License-Identifier: MIT
 *
 * An executor on a pthreadpool (the thread pool of XNNPACK and PyTorch). Header only, and optional:
 * whoever includes it links libpthreadpool; the library itself does not.
 */
#ifndef PAGEDKV_EXECUTOR_PTHREADPOOL_H
#define PAGEDKV_EXECUTOR_PTHREADPOOL_H

#include <pthreadpool.h>

#include <pagedkv/executor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tile function and its argument, as pthreadpool counts in size_t. */
struct pkv_executor_pthreadpool_task {
    void (*fn)(void *arg, int64_t index);
    void *arg;
};

static inline void pkv_executor_pthreadpool_tile(void *context, size_t index) {
    const struct pkv_executor_pthreadpool_task *task =
        (const struct pkv_executor_pthreadpool_task *)context;
    task->fn(task->arg, (int64_t)index);
}

/* The run function of the hook below; user is the pool. Flags 0: its workers wait for the next run
 * as pthreadpool has them wait by default. */
static inline void pkv_executor_pthreadpool_run(void *user, void (*fn)(void *arg, int64_t index),
                                                void *arg, int64_t num_tiles) {
    struct pkv_executor_pthreadpool_task task;
    task.fn = fn;
    task.arg = arg;
    if (num_tiles > 0)
        pthreadpool_parallelize_1d((pthreadpool_t)user, pkv_executor_pthreadpool_tile, &task,
                                   (size_t)num_tiles, 0);
}

/* The hook to put into a context's options.
 *
 * pool     borrowed; it must outlive every use of the hook. NULL, which pthreadpool reads as one
 *          thread, is one here, too
 * threads  a second thread that runs the same pool waits until the first is done; a tile must not
 *          run its own pool
 */
static inline struct pkv_executor pkv_executor_pthreadpool(pthreadpool_t pool) {
    struct pkv_executor executor;
    executor.run = pkv_executor_pthreadpool_run;
    executor.user = (void *)pool;
    executor.num_threads = (int32_t)pthreadpool_get_threads_count(pool);
    return executor;
}

#ifdef __cplusplus
}
#endif

#endif
