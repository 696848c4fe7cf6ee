/* SPDX-License-Identifier: MIT
 *
 * Filling, expecting and checking. See verify_memory.h.
 */
#include "verify_memory.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cli_random.h"
#include "bench_threads.h"

/* Values follow from the number of a chunk of 1 KiB; a row is a whole number of chunks, so they
 * follow from the number of the row. A tile is what one thread fills or checks at a time. */
enum {
    CHUNK_BYTES = 1024,
    CHUNK_WORDS = CHUNK_BYTES / 8,
    TILE_CHUNKS = 1024,
    GUARD_BYTES = 1 << 20
};

/* Word i of a chunk is first + i * STEP: distinct in the chunk, and one addition for a vector. */
#define STEP UINT64_C(0x9e3779b97f4a7c15)

static uint64_t first_word(enum verify_part part, int64_t chunk) {
    return cli_mix((uint64_t)chunk * VERIFY_NUM_PARTS + part + 1);
}

static void fill_chunk(unsigned char *data, enum verify_part part, int64_t chunk) {
    const uint64_t first = first_word(part, chunk);
    uint64_t words[CHUNK_WORDS];
    for (uint64_t i = 0; i < CHUNK_WORDS; i++)
        words[i] = first + i * STEP;
    memcpy(data, words, CHUNK_BYTES);
}

static int chunk_is_filled(const unsigned char *data, enum verify_part part, int64_t chunk) {
    const uint64_t first = first_word(part, chunk);
    uint64_t difference = 0;
    for (uint64_t i = 0; i < CHUNK_WORDS; i++) {
        uint64_t word;
        memcpy(&word, data + i * sizeof(word), sizeof(word));
        difference |= word ^ (first + i * STEP);
    }
    return difference == 0;
}

static int64_t num_tiles(int64_t bytes) {
    const int64_t tile_bytes = (int64_t)TILE_CHUNKS * CHUNK_BYTES;
    return (bytes + tile_bytes - 1) / tile_bytes;
}

/* The chunks of a tile. */
static int64_t last_chunk(int64_t tile, int64_t bytes) {
    const int64_t end = (tile + 1) * TILE_CHUNKS;
    return end < bytes / CHUNK_BYTES ? end : bytes / CHUNK_BYTES;
}

static void fill_tile(void *arg, int64_t tile) {
    const struct verify_memory *memory = arg;
    const int64_t bytes = memory->cache[VERIFY_KEY].bytes;
    for (int part = 0; part < VERIFY_NUM_PARTS; part++) {
        for (int64_t chunk = tile * TILE_CHUNKS; chunk < last_chunk(tile, bytes); chunk++)
            fill_chunk(memory->cache[part].data + chunk * CHUNK_BYTES, part, chunk);
    }
}

void verify_memory_fill(struct verify_memory *memory) {
    bench_run_tiles(memory->executor, fill_tile, memory,
                    num_tiles(memory->cache[VERIFY_KEY].bytes));
}

int verify_memory_create(struct verify_memory *memory, const struct verify_sizes *sizes,
                         const struct pkv_executor *executor) {
    memset(memory, 0, sizeof(*memory));
    memory->executor = executor;
    memory->max_slots = sizes->max_slots;
    memory->last_token = malloc((size_t)sizes->max_slots * sizeof(memory->last_token[0]));
    int failed = memory->last_token == NULL;
    for (int part = 0; part < VERIFY_NUM_PARTS && !failed; part++)
        failed = bench_memory_map(&memory->cache[part], sizes->cache_bytes + GUARD_BYTES,
                                  BENCH_PAGES_HUGE, executor) != 0 ||
                 bench_memory_map(&memory->source[part], sizes->source_bytes, BENCH_PAGES_HUGE,
                                  executor) != 0;
    if (failed) {
        verify_memory_destroy(memory);
        return -1;
    }
    for (int64_t slot = 0; slot < sizes->max_slots; slot++)
        memory->last_token[slot] = -1;
    verify_memory_fill(memory);
    return 0;
}

void verify_memory_destroy(struct verify_memory *memory) {
    for (int part = 0; part < VERIFY_NUM_PARTS; part++) {
        bench_memory_unmap(&memory->cache[part]);
        bench_memory_unmap(&memory->source[part]);
    }
    free(memory->last_token);
    memset(memory, 0, sizeof(*memory));
}

void verify_fill_sources(struct verify_memory *memory, const struct verify_case *one) {
    const int64_t bytes = one->num_tokens * verify_row_bytes(one);
    for (int part = 0; part < VERIFY_NUM_PARTS; part++) {
        struct cli_random random = {cli_mix(one->seed) + (uint64_t)part};
        unsigned char *data = memory->source[part].data;
        for (int64_t i = 0; i < bytes; i += (int64_t)sizeof(uint64_t)) {
            const uint64_t word = cli_random_next(&random);
            memcpy(data + i, &word, sizeof(word));
        }
    }
}

void verify_expect(struct verify_memory *memory, const struct verify_case *one,
                   const int64_t *slots) {
    for (int64_t token = 0; token < one->num_tokens; token++) {
        if (slots[token] >= 0)
            memory->last_token[slots[token]] = (int32_t)token;
    }
}

void verify_restore_slots(struct verify_memory *memory, const struct verify_case *one,
                          const int64_t *slots) {
    const int64_t row_bytes = verify_row_bytes(one);
    for (int64_t token = 0; token < one->num_tokens; token++) {
        if (slots[token] < 0)
            continue;
        memory->last_token[slots[token]] = -1;
        verify_restore_bytes(memory, slots[token] * row_bytes, row_bytes);
    }
}

void verify_restore_bytes(struct verify_memory *memory, int64_t first, int64_t bytes) {
    for (int part = 0; part < VERIFY_NUM_PARTS; part++) {
        for (int64_t byte = first; byte < first + bytes; byte += CHUNK_BYTES)
            fill_chunk(memory->cache[part].data + byte, part, byte / CHUNK_BYTES);
    }
}

struct check {
    const struct verify_memory *memory;
    int64_t row_bytes;
    int64_t case_bytes; /* of each part */
    int tolerance;
    atomic_int_least64_t num_chunks;
    atomic_int_least64_t first[VERIFY_NUM_PARTS]; /* chunk, INT64_MAX: none */
};

/* The source of a chunk that a token was written to, or NULL: it must be as it was filled. */
static const unsigned char *expected_source(const struct check *check, enum verify_part part,
                                            int64_t chunk) {
    const int64_t byte = chunk * CHUNK_BYTES;
    if (byte >= check->case_bytes)
        return NULL;
    const int32_t token = check->memory->last_token[byte / check->row_bytes];
    if (token < 0)
        return NULL;
    return check->memory->source[part].data + token * check->row_bytes + byte % check->row_bytes;
}

static void expected_chunk(const struct check *check, enum verify_part part, int64_t chunk,
                           unsigned char expected[CHUNK_BYTES]) {
    const unsigned char *source = expected_source(check, part, chunk);
    if (source)
        memcpy(expected, source, CHUNK_BYTES);
    else
        fill_chunk(expected, part, chunk);
}

static float bf16_at(const unsigned char *data) {
    const uint32_t bits = (uint32_t)data[1] << 24 | (uint32_t)data[0] << 16;
    float number;
    memcpy(&number, &bits, sizeof(number));
    return number;
}

/* The published comparison: absolute tolerance 1e-4, relative 2^-7, equal infinities, NaN is NaN.
 * Returns the first byte of the first element that fails, or CHUNK_BYTES. */
static int64_t first_intolerable(const unsigned char *found, const unsigned char *expected) {
    for (int64_t i = 0; i < CHUNK_BYTES; i += 2) {
        const double a = (double)bf16_at(found + i), b = (double)bf16_at(expected + i);
        if (a == b || (isnan(a) && isnan(b)))
            continue;
        if (!isfinite(a) || !isfinite(b) || fabs(a - b) > 1e-4 + 0.0078125 * fabs(b))
            return i;
    }
    return CHUNK_BYTES;
}

static int64_t first_different(const unsigned char *found, const unsigned char *expected) {
    int64_t i = 0;
    while (i < CHUNK_BYTES && found[i] == expected[i])
        i++;
    return i;
}

static int chunk_is_wrong(const struct check *check, enum verify_part part, int64_t chunk) {
    const unsigned char *found = check->memory->cache[part].data + chunk * CHUNK_BYTES;
    const unsigned char *source = expected_source(check, part, chunk);
    if (source ? memcmp(found, source, CHUNK_BYTES) == 0 : chunk_is_filled(found, part, chunk))
        return 0;
    if (!check->tolerance)
        return 1;
    unsigned char expected[CHUNK_BYTES];
    expected_chunk(check, part, chunk, expected);
    return first_intolerable(found, expected) < CHUNK_BYTES;
}

static void check_tile(void *arg, int64_t tile) {
    struct check *check = arg;
    const int64_t bytes = check->memory->cache[VERIFY_KEY].bytes;
    for (int part = 0; part < VERIFY_NUM_PARTS; part++) {
        for (int64_t chunk = tile * TILE_CHUNKS; chunk < last_chunk(tile, bytes); chunk++) {
            if (!chunk_is_wrong(check, part, chunk))
                continue;
            (void)atomic_fetch_add(&check->num_chunks, 1);
            int_least64_t first = atomic_load(&check->first[part]);
            while (chunk < first &&
                   !atomic_compare_exchange_weak(&check->first[part], &first, chunk))
                ;
        }
    }
}

struct verify_difference verify_check(const struct verify_memory *memory,
                                      const struct verify_case *one, int tolerance) {
    struct check check = {.memory = memory,
                          .row_bytes = verify_row_bytes(one),
                          .case_bytes = one->num_blocks * one->block_size * verify_row_bytes(one),
                          .tolerance = tolerance};
    for (int part = 0; part < VERIFY_NUM_PARTS; part++)
        atomic_init(&check.first[part], INT64_MAX);
    bench_run_tiles(memory->executor, check_tile, &check,
                    num_tiles(memory->cache[VERIFY_KEY].bytes));
    struct verify_difference difference = {.num_chunks = atomic_load(&check.num_chunks)};
    if (difference.num_chunks == 0)
        return difference;
    difference.part = atomic_load(&check.first[VERIFY_KEY]) < INT64_MAX ? VERIFY_KEY : VERIFY_VALUE;
    const int64_t chunk = atomic_load(&check.first[difference.part]);
    const unsigned char *found = memory->cache[difference.part].data + chunk * CHUNK_BYTES;
    unsigned char expected[CHUNK_BYTES];
    expected_chunk(&check, difference.part, chunk, expected);
    const int64_t i =
        tolerance ? first_intolerable(found, expected) : first_different(found, expected);
    difference.byte = chunk * CHUNK_BYTES + i;
    difference.found = found[i];
    difference.expected = expected[i];
    return difference;
}
