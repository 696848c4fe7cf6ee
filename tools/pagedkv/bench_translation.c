/* SPDX-License-Identifier: MIT
 *
 * Loads of random pages. See bench_translation.h.
 */
#include "bench_translation.h"

#include "bench_ceiling.h"
#include "bench_clock.h"

enum { NUM_SAMPLES = 2000, PAGE_BYTES = 4096, LINE_BYTES = 64 };

static const unsigned char *random_line(const unsigned char *data, int64_t bytes,
                                        struct cli_random *random) {
    return data + cli_random_below(random, bytes / PAGE_BYTES) * PAGE_BYTES +
           cli_random_below(random, PAGE_BYTES / LINE_BYTES) * LINE_BYTES;
}

struct bench_spread cli_random_pages(const unsigned char *data, int64_t bytes,
                                     struct cli_random *random) {
    static double samples[NUM_SAMPLES];
    unsigned sum = 0;
    for (int i = 0; i < NUM_SAMPLES; i++) {
        const unsigned char *lines[BENCH_LOADS_AT_ONCE];
        for (int j = 0; j < BENCH_LOADS_AT_ONCE; j++)
            lines[j] = random_line(data, bytes, random);
        bench_fence();
        const int64_t begin = bench_now_ns();
        for (int j = 0; j < BENCH_LOADS_AT_ONCE; j++)
            sum += *(const volatile unsigned char *)lines[j];
        bench_fence();
        samples[i] = (double)(bench_now_ns() - begin) / BENCH_LOADS_AT_ONCE;
    }
    (void)sum;
    return bench_spread_of(samples, NUM_SAMPLES);
}
