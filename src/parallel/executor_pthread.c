/* SPDX-License-Identifier: MIT
 *
 * A pool of pthreads. The caller opens a run, takes tiles like everybody else, closes the run when
 * no tile is left, and waits only for the workers that joined it: a worker that is still asleep
 * costs nothing. It keeps no queue: one run at a time, and no thread belongs to a tile.
 */
#include <pagedkv/executor.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/allocator.h"
#include "base/error.h"
#include "base/os.h"

#define MAX_THREADS 1024

/* How long a thread looks for what it waits for before it sleeps. Waking a sleeping thread takes 5
 * to 15 microseconds on common machines; who spins for no longer than that pays at most twice what
 * the better of "sleep at once" and "go on spinning" would have cost. The clock bounds the spin,
 * and reading it is pause enough between two looks. */
#define SPIN_NS 5000

/* Two cache lines, as processors fetch them in pairs: what different threads write does not share
 * one. */
#define APART 128

/* The state of the pool in one word, so that joining a run is one compare-and-swap:
 * bits 0 to 30 are the number of workers in the run, bit 31 says that the run is open to them, and
 * the upper half is the number of the run, so that a worker joins each at most once. */
#define JOINED(state) ((state)&UINT64_C(0x7fffffff))
#define OPEN          (UINT64_C(1) << 31)
#define RUN(state)    ((uint32_t)((state) >> 32))

struct pkv_executor_pthread {
    struct pkv_allocator allocator;
    int32_t num_threads;

    pthread_mutex_t run_lock; /* held by the caller of the current run */
    pthread_mutex_t lock;     /* guards nothing but going to sleep on: */
    pthread_cond_t run_opened;
    pthread_cond_t run_left;

    /* The current run. Written while nobody has joined, read by those who have. */
    void (*fn)(void *arg, int64_t index);
    void *arg;
    int64_t num_tiles;

    _Alignas(APART) atomic_uint_least64_t state;
    atomic_int num_sleeping;   /* workers that wait for run_opened, or are about to */
    atomic_bool caller_sleeps; /* the caller waits for run_left, or is about to */
    atomic_bool stop;          /* the pool is being destroyed */

    _Alignas(APART) atomic_int_least64_t next_tile;

    _Alignas(APART) pthread_t workers[]; /* [num_threads - 1] */
};

static void take_tiles(struct pkv_executor_pthread *pool) {
    for (;;) {
        const int64_t tile = atomic_fetch_add_explicit(&pool->next_tile, 1, memory_order_relaxed);
        if (tile >= pool->num_tiles)
            return;
        pool->fn(pool->arg, tile);
    }
}

/* The sleeper announces itself, then looks once more, then sleeps; the waker changes the state,
 * then looks for sleepers. Both sides use sequentially consistent atomics, so at least one sees the
 * other. A sleeper holds the lock from its last look until it sleeps: having held it once, the
 * waker knows that the signal finds it asleep. Signalling after unlocking spares the sleeper
 * waiting for the lock as soon as it is awake. */
static void wake(struct pkv_executor_pthread *pool, pthread_cond_t *condition) {
    pthread_mutex_lock(&pool->lock);
    pthread_mutex_unlock(&pool->lock);
    pthread_cond_broadcast(condition);
}

static bool run_is_new(struct pkv_executor_pthread *pool, uint32_t last_run) {
    const uint64_t state = atomic_load(&pool->state);
    return ((state & OPEN) != 0 && RUN(state) != last_run) || atomic_load(&pool->stop);
}

static bool run_is_empty(struct pkv_executor_pthread *pool) {
    return JOINED(atomic_load(&pool->state)) == 0;
}

static void wait_for_run(struct pkv_executor_pthread *pool, uint32_t last_run) {
    for (const int64_t end = pkv_os_now_ns() + SPIN_NS; pkv_os_now_ns() < end;) {
        if (run_is_new(pool, last_run))
            return;
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->num_sleeping, 1);
    while (!run_is_new(pool, last_run))
        pthread_cond_wait(&pool->run_opened, &pool->lock);
    atomic_fetch_sub(&pool->num_sleeping, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *work(void *argument) {
    struct pkv_executor_pthread *pool = argument;
    uint32_t last_run = 0;
    for (;;) {
        wait_for_run(pool, last_run);
        if (atomic_load(&pool->stop))
            return NULL;
        uint64_t state = atomic_load(&pool->state);
        if ((state & OPEN) == 0 || RUN(state) == last_run ||
            !atomic_compare_exchange_strong(&pool->state, &state, state + 1))
            continue;
        last_run = RUN(state);
        take_tiles(pool);
        state = atomic_fetch_sub(&pool->state, 1);
        if (JOINED(state) == 1 && (state & OPEN) == 0 && atomic_load(&pool->caller_sleeps))
            wake(pool, &pool->run_left);
    }
}

static void wait_for_workers(struct pkv_executor_pthread *pool) {
    if (run_is_empty(pool))
        return;
    for (const int64_t end = pkv_os_now_ns() + SPIN_NS; pkv_os_now_ns() < end;) {
        if (run_is_empty(pool))
            return;
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, true);
    while (!run_is_empty(pool))
        pthread_cond_wait(&pool->run_left, &pool->lock);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->lock);
}

static void run(void *user, void (*fn)(void *arg, int64_t index), void *arg, int64_t num_tiles) {
    struct pkv_executor_pthread *pool = user;
    if (pool->num_threads == 1 || num_tiles <= 1) {
        for (int64_t i = 0; i < num_tiles; i++)
            fn(arg, i);
        return;
    }
    pthread_mutex_lock(&pool->run_lock);
    pool->fn = fn;
    pool->arg = arg;
    pool->num_tiles = num_tiles;
    atomic_store_explicit(&pool->next_tile, 0, memory_order_relaxed);
    /* Nobody is in the run and it is closed, so no worker changes the state now. */
    const uint32_t number = RUN(atomic_load(&pool->state)) + 1;
    atomic_store(&pool->state, (uint64_t)number << 32 | OPEN);
    if (atomic_load(&pool->num_sleeping) > 0)
        wake(pool, &pool->run_opened);
    take_tiles(pool);
    atomic_fetch_and(&pool->state, ~OPEN);
    wait_for_workers(pool);
    pthread_mutex_unlock(&pool->run_lock);
}

/* Ends the first num_workers threads, which must not be in a run. */
static void stop_workers(struct pkv_executor_pthread *pool, int32_t num_workers) {
    atomic_store(&pool->stop, true);
    wake(pool, &pool->run_opened);
    for (int32_t i = 0; i < num_workers; i++)
        pthread_join(pool->workers[i], NULL);
}

static void destroy_locks(struct pkv_executor_pthread *pool) {
    pthread_cond_destroy(&pool->run_left);
    pthread_cond_destroy(&pool->run_opened);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->run_lock);
}

/* 0 or an errno; then nothing is left initialised. */
static int init_locks(struct pkv_executor_pthread *pool) {
    int failure = pthread_mutex_init(&pool->run_lock, NULL);
    if (failure != 0)
        return failure;
    failure = pthread_mutex_init(&pool->lock, NULL);
    if (failure != 0)
        goto no_lock;
    failure = pthread_cond_init(&pool->run_opened, NULL);
    if (failure != 0)
        goto no_run_opened;
    failure = pthread_cond_init(&pool->run_left, NULL);
    if (failure == 0)
        return 0;
    pthread_cond_destroy(&pool->run_opened);
no_run_opened:
    pthread_mutex_destroy(&pool->lock);
no_lock:
    pthread_mutex_destroy(&pool->run_lock);
    return failure;
}

/* 0 or an errno; then no thread is left. Workers block the signals that are sent to the process:
 * those belong to the threads of the program. The signals of a fault stay open, as they end in the
 * thread that caused them. */
static int start_workers(struct pkv_executor_pthread *pool) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&blocked, faults[i]);
    int failure = pthread_sigmask(SIG_SETMASK, &blocked, &before);
    if (failure != 0)
        return failure;
    int32_t started = 0;
    while (failure == 0 && started < pool->num_threads - 1) {
        failure = pthread_create(&pool->workers[started], NULL, work, pool);
        started += failure == 0;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure != 0)
        stop_workers(pool, started);
    return failure;
}

enum pkv_status pkv_executor_pthread_create(struct pkv_executor_pthread **executor,
                                            int32_t num_threads,
                                            const struct pkv_allocator *allocator,
                                            struct pkv_error *error) {
    const int64_t none = PKV_ERROR_NONE;
    if (executor == NULL)
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, __func__, "executor", none, none,
                             none, "must not be NULL");
    *executor = NULL;
    if (num_threads < 0 || num_threads > MAX_THREADS)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "num_threads", none,
                             num_threads, MAX_THREADS, "must be from 0 to the maximum");
    const struct pkv_allocator resolved = pkv_allocator_resolve(allocator);
    if (resolved.alloc == NULL)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "allocator", none, none,
                             none, "must have both of its functions");
    if (num_threads == 0) {
        num_threads = pkv_os_num_cpus();
        num_threads = num_threads < MAX_THREADS ? num_threads : MAX_THREADS;
    }
    const size_t bytes =
        sizeof(struct pkv_executor_pthread) + (size_t)(num_threads - 1) * sizeof(pthread_t);
    struct pkv_executor_pthread *pool = pkv_alloc(&resolved, bytes, APART);
    if (pool == NULL)
        return pkv_error_set(error, PKV_STATUS_OUT_OF_MEMORY, __func__, NULL, none, none,
                             (int64_t)bytes, "the allocator gave no memory; bytes wanted");
    *pool = (struct pkv_executor_pthread){.allocator = resolved, .num_threads = num_threads};
    atomic_init(&pool->state, 0);
    atomic_init(&pool->num_sleeping, 0);
    atomic_init(&pool->caller_sleeps, false);
    atomic_init(&pool->stop, false);
    atomic_init(&pool->next_tile, 0);
    int failure = init_locks(pool);
    if (failure == 0) {
        failure = start_workers(pool);
        if (failure != 0)
            destroy_locks(pool);
    }
    if (failure != 0) {
        pkv_free(&resolved, pool);
        return pkv_error_set(error, PKV_STATUS_SYSTEM, __func__, NULL, none, failure, none,
                             "the system refused a thread or a lock");
    }
    *executor = pool;
    return PKV_STATUS_OK;
}

void pkv_executor_pthread_destroy(struct pkv_executor_pthread *executor) {
    if (executor == NULL)
        return;
    stop_workers(executor, executor->num_threads - 1);
    destroy_locks(executor);
    const struct pkv_allocator allocator = executor->allocator;
    pkv_free(&allocator, executor);
}

struct pkv_executor pkv_executor_pthread_hook(struct pkv_executor_pthread *executor) {
    /* Without a pool: an executor of one thread, on which everything happens in order. */
    if (executor == NULL)
        return (struct pkv_executor){.run = NULL, .user = NULL, .num_threads = 1};
    return (struct pkv_executor){
        .run = run, .user = executor, .num_threads = executor->num_threads};
}
