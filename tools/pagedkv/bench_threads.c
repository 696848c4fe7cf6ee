/* SPDX-License-Identifier: MIT
 *
 * Tiles, waking and ping-pong. See bench_threads.h.
 */
#include "bench_threads.h"

#include <stdatomic.h>

#include "bench_clock.h"
#include "bench_rounds.h"

enum {
    GIVE_UP_NS = 20000000,
    SPINS_PER_CLOCK = 64,
    PING_PONG_TRIPS = 2000,
    PING_PONG_SAMPLES = 15,
    PING_PONG_LEAST = 5,
    CACHE_LINE = 64
};

int32_t bench_num_threads(const struct pkv_executor *executor) {
    return executor && executor->run && executor->num_threads > 1 ? executor->num_threads : 1;
}

void bench_run_tiles(const struct pkv_executor *executor, void (*fn)(void *arg, int64_t index),
                     void *arg, int64_t num_tiles) {
    if (bench_num_threads(executor) > 1) {
        executor->run(executor->user, fn, arg, num_tiles);
        return;
    }
    for (int64_t i = 0; i < num_tiles; i++)
        fn(arg, i);
}

/* Waits until *value is at least `wanted`. Returns 0, or -1 after GIVE_UP_NS. Without a pause
 * instruction, whose length would be part of every latency measured with it. */
static int wait_for(atomic_int *value, int wanted) {
    int64_t deadline = bench_now_ns() + GIVE_UP_NS;
    for (;;) {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (atomic_load_explicit(value, memory_order_acquire) >= wanted)
                return 0;
        }
        if (bench_now_ns() > deadline)
            return -1;
    }
}

struct meeting {
    atomic_int arrived;
    int expected;
};

static void meet(void *arg, int64_t index) {
    struct meeting *meeting = arg;
    (void)index;
    (void)atomic_fetch_add(&meeting->arrived, 1);
    (void)wait_for(&meeting->arrived, meeting->expected);
}

void bench_wake_threads(const struct pkv_executor *executor) {
    int32_t num_threads = bench_num_threads(executor);
    if (num_threads == 1)
        return;
    struct meeting meeting = {.expected = num_threads};
    bench_run_tiles(executor, meet, &meeting, num_threads);
}

struct ball {
    _Alignas(CACHE_LINE) atomic_int turn;
    _Alignas(CACHE_LINE) int64_t elapsed_ns; /* 0: somebody gave up */
};

/* Tile 0 moves turn from even to odd, tile 1 from odd to even; they start together. */
static void play(void *arg, int64_t index) {
    struct ball *ball = arg;
    int turn = (int)index;
    int64_t begin = 0;
    for (int trip = 0; trip <= PING_PONG_TRIPS; trip++, turn += 2) {
        if (wait_for(&ball->turn, turn) != 0)
            return;
        if (trip == 1)
            begin = bench_now_ns();
        atomic_store_explicit(&ball->turn, turn + 1, memory_order_release);
    }
    if (index == 1)
        ball->elapsed_ns = bench_now_ns() - begin;
}

struct bench_spread bench_ping_pong(const struct pkv_executor *executor) {
    struct bench_spread none = {0, 0, 0};
    double samples[PING_PONG_SAMPLES];
    int32_t num_samples = 0;
    for (int i = 0; i < PING_PONG_SAMPLES && bench_num_threads(executor) > 1; i++) {
        struct ball ball = {.turn = 0, .elapsed_ns = 0};
        bench_run_tiles(executor, play, &ball, 2);
        if (ball.elapsed_ns > 0)
            samples[num_samples++] = (double)ball.elapsed_ns / (2.0 * (PING_PONG_TRIPS - 1));
    }
    return num_samples >= PING_PONG_LEAST ? bench_spread_of(samples, num_samples) : none;
}
