/* SPDX-License-Identifier: MIT
 *
 * Who does the work: a hook for the caller's threads, and a small pool of our own.
 * Adapters for OpenMP and pthreadpool are in executor_openmp.h and executor_pthreadpool.h.
 */
#ifndef PAGEDKV_EXECUTOR_H
#define PAGEDKV_EXECUTOR_H

#include <pagedkv/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Runs fn(arg, 0) ... fn(arg, num_tiles - 1), each exactly once, in any order, on any threads, and
 * returns when all have returned. Everything written by a tile is visible to the caller then. */
struct pkv_executor {
    void (*run)(void *user, void (*fn)(void *arg, int64_t index), void *arg, int64_t num_tiles);
    void *user;
    int32_t num_threads; /* how many tiles can run at once; 1 or more */
};

struct pkv_allocator; /* context.h */

/* A pool of num_threads - 1 pthreads; the calling thread is the last of them. Workers spin for a
 * few microseconds after a run and then sleep on a condition variable. One caller at a time: a
 * second thread that runs the same executor waits until the first is done. A tile must not run its
 * own executor. */
struct pkv_executor_pthread;

/* Makes a pool and starts its threads.
 *
 * executor     out; hand it to pkv_executor_pthread_destroy. NULL when the call fails
 * num_threads  1 to 1024; 0: one for each processor that this process may run on, 1024 at the most
 * allocator    in, nullable: malloc and free; copied
 * errors       NULL_ARGUMENT (executor), INVALID_ARGUMENT (num_threads; an allocator with only one
 *              of its functions), OUT_OF_MEMORY (the allocator gave none), SYSTEM (the system
 *              refused a thread or a lock; value is its errno)
 * threads      any
 * cost         one allocation, num_threads - 1 threads
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_executor_pthread_create(struct pkv_executor_pthread **executor, int32_t num_threads,
                            const struct pkv_allocator *allocator, struct pkv_error *error);

/* Ends its threads and frees it. NULL is fine. No run may be under way. */
PKV_API void pkv_executor_pthread_destroy(struct pkv_executor_pthread *executor);

/* The hook to put into a context's options. Valid as long as the pool lives. Without a pool (NULL)
 * it is an executor of one thread: everything happens on the caller's. */
PKV_API struct pkv_executor pkv_executor_pthread_hook(struct pkv_executor_pthread *executor);

#ifdef __cplusplus
}
#endif

#endif
