/* SPDX-License-Identifier: MIT
 *
 * The memory that all measurements with one kind of OS page share: the caches, the sources, the
 * outputs, and walks that hand out rows which nobody has touched for a long time. Plus the threads.
 * It measures nothing.
 */
#ifndef PAGEDKV_BENCH_STAGE_H
#define PAGEDKV_BENCH_STAGE_H

#include <stdint.h>

#include <pagedkv/pagedkv.h>

#include "bench_memory.h"
#include "cli_random.h"

/* The published geometry of scatter_pa_kv_cache: 9760 blocks of 128 tokens, 2 heads of 256,
 * bf16. */
enum {
    BENCH_NUM_BLOCKS = 9760,
    BENCH_MIN_BLOCKS = 1024,
    BENCH_BLOCK_SIZE = 128,
    BENCH_NUM_HEADS = 2,
    BENCH_HEAD_SIZE = 256,
    BENCH_ROW_BYTES = 1024,
    BENCH_MAX_TOKENS = 16384,
    BENCH_OUTPUT_ROWS = 131072 /* four times the largest gather */
};

/* Distinct entries in random order; when too few are left it starts again, so an entry comes back
 * only after nearly all others. */
struct bench_walk {
    int64_t *entries;
    int64_t num_entries;
    int64_t next;
};

int bench_walk_create(struct bench_walk *walk, int64_t num_entries, struct cli_random *random);
void bench_walk_destroy(struct bench_walk *walk);

/* num_entries of them, adjacent in memory; num_entries <= walk->num_entries. */
const int64_t *bench_walk_take(struct bench_walk *walk, int64_t num_entries);

struct bench_stage {
    enum bench_pages pages;
    int64_t num_blocks;
    int64_t num_slots;
    struct cli_random random;
    struct bench_memory key_cache; /* num_slots rows */
    struct bench_memory value_cache;
    struct bench_memory key_source; /* BENCH_MAX_TOKENS rows of random bytes */
    struct bench_memory value_source;
    struct bench_memory key_output; /* BENCH_OUTPUT_ROWS rows */
    struct bench_memory value_output;
    struct bench_walk slots;
    struct bench_walk blocks;
    int64_t next_region;
    int64_t next_output;
};

/* Bytes that a stage of num_blocks maps. */
int64_t bench_stage_bytes(int64_t num_blocks);

/* Returns 0, or -1 when memory is missing. */
int bench_stage_create(struct bench_stage *stage, int64_t num_blocks, enum bench_pages pages,
                       uint64_t seed, const struct pkv_executor *executor);
void bench_stage_destroy(struct bench_stage *stage);

/* Part of the mapped memory that huge pages back, 0 to 1; -1 if the system does not tell. */
double bench_stage_huge_share(const struct bench_stage *stage);

/* The first of num_rows adjacent rows of the caches, at the start of a block, further on each time:
 * a contiguous copy meets fresh memory just as a scatter does. */
int64_t bench_stage_take_region(struct bench_stage *stage, int64_t num_rows);

/* The first of num_rows adjacent rows of the outputs, likewise. */
int64_t bench_stage_take_output(struct bench_stage *stage, int64_t num_rows);

/* Reads so much of the caches that everything else leaves the processor's: for machines without an
 * instruction that flushes a line. */
void bench_stage_sweep(struct bench_stage *stage);

/* The caches' memory as a cache of another shape: bf16, num_heads * head_size = 512. With `blocks`
 * blocks that begin at row first_row. Returns the library's status. */
enum pkv_status bench_stage_describe(const struct bench_stage *stage, struct pkv_cache *cache,
                                     int32_t layout, int64_t num_heads, int64_t block_size,
                                     int64_t first_row, int64_t num_blocks,
                                     struct pkv_error *error);

/* Who works: `num_threads` threads, on the kernels of the best level and of AVX2. */
struct bench_team {
    int32_t num_threads;
    struct pkv_executor_pthread *pool; /* NULL with one thread */
    struct pkv_executor executor;      /* zeroes with one thread */
    struct pkv_context *context;
    struct pkv_context *context_avx2; /* NULL unless the best level is higher */
};

/* Returns 0, or -1 with the facts in *error. max_cpu_level is that of pkv_context_options. */
int bench_team_create(struct bench_team *team, int32_t num_threads, int32_t max_cpu_level,
                      struct pkv_error *error);
void bench_team_destroy(struct bench_team *team);

#endif
