/* SPDX-License-Identifier: MIT
 *
 * The threads of bench and verify: tiles on an executor or on the calling thread, waking the
 * executor's threads before a sample, and how far apart two of them are. It makes no threads.
 */
#ifndef PAGEDKV_BENCH_THREADS_H
#define PAGEDKV_BENCH_THREADS_H

#include <stdint.h>

#include <pagedkv/executor.h>

#include "bench_rounds.h"

/* How many tiles run at once: 1 for NULL and for an executor of zeroes. */
int32_t bench_num_threads(const struct pkv_executor *executor);

/* Runs fn(arg, 0) ... fn(arg, num_tiles - 1) on the executor, or here if it is NULL or zeroes. */
void bench_run_tiles(const struct pkv_executor *executor, void (*fn)(void *arg, int64_t index),
                     void *arg, int64_t num_tiles);

/* Returns when all threads of the executor are awake: they have met in a tile. A sleeping thread
 * takes 10 to 100 us to come, which is not what a sample is about. Gives up after 20 ms. */
void bench_wake_threads(const struct pkv_executor *executor);

/* What it takes in ns for a cache line to go from one thread to another, one way. A hypervisor
 * moves the cores of a virtual machine; how two threads scale follows this number. The median is 0
 * when it could not be measured because the executor did not run two tiles at once. */
struct bench_spread bench_ping_pong(const struct pkv_executor *executor);

#endif
