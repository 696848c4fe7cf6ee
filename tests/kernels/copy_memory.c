/* SPDX-License-Identifier: MIT
 *
 * Making, filling and comparing the memory of the copies.
 */
#include "copy_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "neighbour.h"

/* Looked at after every case on both sides of what it may write; farther away once a group. */
enum { MARGIN = 512 };

static struct copy_memory memory;
static char *canary;

static void put_canaries_back(void) {
    memcpy(memory.dst, canary, COPY_BYTES);
    memcpy(memory.expected, canary, COPY_BYTES);
}

const struct copy_memory *copy_memory_get(uint64_t seed) {
    neighbour_stop(); /* of a kernel that crashed beside it */
    if (memory.src == NULL) {
        const struct kern_buffer *src = kern_buffer_make("src", COPY_BYTES);
        const struct kern_buffer *list = kern_buffer_make("the spans or places", 1);
        const struct kern_buffer *grid = kern_buffer_make("the grid", 1);
        const struct kern_buffer *stream = kern_buffer_make("the stream", 1);
        struct test_rng rng = test_rng_make(seed);
        memory.src = (char *)src->data;
        memory.dst = (char *)kern_buffer_make("dst", COPY_BYTES)->data;
        memory.expected = (char *)kern_buffer_make("expected", COPY_BYTES)->data;
        memory.list_end = (char *)list->data + list->bytes;
        memory.grid = (void *)(grid->data + grid->bytes - sizeof(*memory.grid));
        memory.stream = (void *)(stream->data + stream->bytes - sizeof(*memory.stream));
        canary = (char *)kern_buffer_make("canary", COPY_BYTES)->data;
        test_rng_fill(&rng, memory.src, COPY_BYTES);
        test_rng_fill(&rng, canary, COPY_BYTES);
        for (int64_t i = 0; i < COPY_BYTES; i++) {
            memory.src[i] = (char)(memory.src[i] | 1);
            canary[i] = (char)(canary[i] & ~1);
        }
        kern_buffer_protect(src);
    }
    put_canaries_back();
    return &memory;
}

static void print_bytes(const char *name, const char *data, int64_t at) {
    const int64_t first = at < 8 ? 0 : at - 8;
    printf("      %-8s", name);
    for (int64_t i = first; i < first + 24 && i < COPY_BYTES; i++)
        printf(i == at ? " [%02x]" : " %02x", (unsigned)(unsigned char)data[i]);
    putchar('\n');
}

static _Noreturn void fail_at(int64_t at) {
    const bool may_write = memory.expected[at] != canary[at];
    printf("      bytes of dst around byte %" PRId64 "\n", at);
    print_bytes("is", memory.dst, at);
    print_bytes("should", memory.expected, at);
    kern_fail("byte %" PRId64 " of dst %s", at,
              !may_write                     ? "changed, but no argument names it"
              : memory.dst[at] == canary[at] ? "was not written"
                                             : "has a wrong value");
}

void copy_memory_compare(int64_t low, int64_t high) {
    low = low < MARGIN ? 0 : low - MARGIN;
    high = high > COPY_BYTES - MARGIN ? COPY_BYTES : high + MARGIN;
    const size_t bytes = (size_t)(high - low);
    if (memcmp(memory.dst + low, memory.expected + low, bytes) != 0) {
        while (memory.dst[low] == memory.expected[low])
            low++;
        fail_at(low);
    }
    memcpy(memory.dst + low, canary + low, bytes);
    memcpy(memory.expected + low, canary + low, bytes);
}

void copy_memory_compare_all(void) {
    if (memcmp(memory.expected, canary, COPY_BYTES) != 0)
        kern_fail("the reference wrote outside of its arguments");
    copy_memory_compare(0, COPY_BYTES);
}

int64_t copy_place(struct test_rng *rng, int64_t bytes) {
    switch (test_rng_below(rng, 4)) {
    case 0:
        return 0;
    case 1:
        return COPY_BYTES - bytes;
    default:
        return test_rng_between(rng, 0, COPY_BYTES - bytes);
    }
}

int64_t copy_places(struct test_rng *rng, int64_t *offsets, int64_t num_places, int64_t bytes,
                    int64_t step) {
    const bool is_stepped = test_rng_below(rng, 2) == 0;
    const int64_t slack = is_stepped ? COPY_MAX_PLACES * step : test_rng_below(rng, 2048);
    const int64_t window = min64(bytes + slack, COPY_BYTES), at = copy_place(rng, window);
    int64_t high = at;
    for (int64_t i = 0; i < num_places; i++) {
        const int64_t shift = is_stepped ? test_rng_below(rng, COPY_MAX_PLACES + 1) * step
                                         : test_rng_between(rng, 0, window - bytes);
        /* The last place that fits ends where the window ends. */
        offsets[i] = at + min64(shift, window - bytes);
        high = max64(high, offsets[i] + bytes);
    }
    return high;
}

void copy_beside_neighbour(const struct kern *kern, void (*call)(const struct kern *),
                           const int64_t *bytes, int num_bytes) {
    /* On a busy machine the other thread has to wait for its turn; it gets so much time and no
     * more. */
    enum { ENOUGH_ROUNDS = 4000, MAX_NS = 20000000 };
    char *at[MAX_NEIGHBOURS];
    struct timespec begin, now;
    for (int i = 0; i < num_bytes; i++)
        at[i] = memory.dst + bytes[i];
    neighbour_start(at, num_bytes);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        for (int repeat = 0; repeat < 100; repeat++)
            call(kern);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (neighbour_rounds() < ENOUGH_ROUNDS &&
             (now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < MAX_NS);
    if (neighbour_stop())
        kern_fail("put back a byte of dst that no argument names and another thread had written");
    put_canaries_back();
}

const struct copy_bench_memory *copy_bench_memory_get(void) {
    static struct copy_bench_memory bench;
    if (bench.src == NULL) {
        bench.src = (char *)kern_buffer_make("bench_src", COPY_BENCH_BYTES)->data;
        bench.dst = (char *)kern_buffer_make("bench_dst", COPY_BENCH_BYTES)->data;
    }
    return &bench;
}
