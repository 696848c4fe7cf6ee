/* SPDX-License-Identifier: MIT
 *
 * An executor on the threads of OpenMP. Header only, and optional: the file that includes it is
 * compiled with the compiler's OpenMP option (-fopenmp); the library itself needs no OpenMP.
 */
#ifndef PAGEDKV_EXECUTOR_OPENMP_H
#define PAGEDKV_EXECUTOR_OPENMP_H

#ifndef _OPENMP
#error "pagedkv/executor_openmp.h needs the compiler's OpenMP option (-fopenmp)"
#endif

#include <omp.h>

#include <pagedkv/executor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The run function of the hook below; user is the number of threads, stored in the pointer. */
static inline void pkv_executor_openmp_run(void *user, void (*fn)(void *arg, int64_t index),
                                           void *arg, int64_t num_tiles) {
    const int num_threads = (int)(intptr_t)user;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < num_tiles; i++)
        fn(arg, i);
}

/* The hook to put into a context's options. It owns nothing.
 *
 * num_threads  the most threads that a run uses; below 1: as many as OpenMP would by itself
 * threads      each calling thread has its own team of OpenMP threads, as OpenMP has it. Inside a
 *              parallel region a run stays on the calling thread unless nested regions are enabled
 */
static inline struct pkv_executor pkv_executor_openmp(int32_t num_threads) {
    struct pkv_executor executor;
    executor.num_threads = num_threads >= 1 ? num_threads : (int32_t)omp_get_max_threads();
    executor.user = (void *)(intptr_t)executor.num_threads;
    executor.run = pkv_executor_openmp_run;
    return executor;
}

#ifdef __cplusplus
}
#endif

#endif
