/* SPDX-License-Identifier: MIT
 *
 * Memory, walks and threads of the measurements. See bench_stage.h.
 */
#include "bench_stage.h"

#include <stdlib.h>
#include <string.h>

#include "bench_ceiling.h"

/* 128 MiB: the whole cache of the largest processors, and what the smallest stage has. */
enum { SWEEP_ROWS = 131072 };

int bench_walk_create(struct bench_walk *walk, int64_t num_entries, struct cli_random *random) {
    walk->entries = malloc((size_t)num_entries * sizeof(walk->entries[0]));
    walk->num_entries = num_entries;
    walk->next = 0;
    if (walk->entries == NULL)
        return -1;
    for (int64_t i = 0; i < num_entries; i++)
        walk->entries[i] = i;
    cli_random_shuffle(random, walk->entries, num_entries);
    return 0;
}

void bench_walk_destroy(struct bench_walk *walk) {
    free(walk->entries);
    memset(walk, 0, sizeof(*walk));
}

const int64_t *bench_walk_take(struct bench_walk *walk, int64_t num_entries) {
    if (walk->next + num_entries > walk->num_entries)
        walk->next = 0;
    const int64_t *entries = walk->entries + walk->next;
    walk->next += num_entries;
    return entries;
}

int64_t bench_stage_bytes(int64_t num_blocks) {
    return 2 * BENCH_ROW_BYTES *
           (num_blocks * BENCH_BLOCK_SIZE + BENCH_MAX_TOKENS + BENCH_OUTPUT_ROWS);
}

static void fill_random(struct bench_memory *memory, struct cli_random *random) {
    for (int64_t i = 0; i < memory->bytes; i += (int64_t)sizeof(uint64_t)) {
        uint64_t word = cli_random_next(random);
        memcpy(memory->data + i, &word, sizeof(word));
    }
}

int bench_stage_create(struct bench_stage *stage, int64_t num_blocks, enum bench_pages pages,
                       uint64_t seed, const struct pkv_executor *executor) {
    memset(stage, 0, sizeof(*stage));
    stage->pages = pages;
    stage->num_blocks = num_blocks;
    stage->num_slots = num_blocks * BENCH_BLOCK_SIZE;
    stage->random.state = seed;
    const struct {
        struct bench_memory *memory;
        int64_t rows;
    } parts[] = {
        {&stage->key_cache, stage->num_slots},   {&stage->value_cache, stage->num_slots},
        {&stage->key_source, BENCH_MAX_TOKENS},  {&stage->value_source, BENCH_MAX_TOKENS},
        {&stage->key_output, BENCH_OUTPUT_ROWS}, {&stage->value_output, BENCH_OUTPUT_ROWS},
    };
    int failed = bench_walk_create(&stage->slots, stage->num_slots, &stage->random) != 0 ||
                 bench_walk_create(&stage->blocks, num_blocks, &stage->random) != 0;
    for (size_t i = 0; !failed && i < sizeof(parts) / sizeof(parts[0]); i++)
        failed = bench_memory_map(parts[i].memory, parts[i].rows * BENCH_ROW_BYTES, pages,
                                  executor) != 0;
    if (failed) {
        bench_stage_destroy(stage);
        return -1;
    }
    fill_random(&stage->key_source, &stage->random);
    fill_random(&stage->value_source, &stage->random);
    return 0;
}

void bench_stage_destroy(struct bench_stage *stage) {
    bench_memory_unmap(&stage->key_cache);
    bench_memory_unmap(&stage->value_cache);
    bench_memory_unmap(&stage->key_source);
    bench_memory_unmap(&stage->value_source);
    bench_memory_unmap(&stage->key_output);
    bench_memory_unmap(&stage->value_output);
    bench_walk_destroy(&stage->slots);
    bench_walk_destroy(&stage->blocks);
}

double bench_stage_huge_share(const struct bench_stage *stage) {
    const struct bench_memory *parts[] = {&stage->key_cache,  &stage->value_cache,
                                          &stage->key_source, &stage->value_source,
                                          &stage->key_output, &stage->value_output};
    double huge_bytes = 0, bytes = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        int64_t granted = bench_memory_huge_bytes(parts[i]);
        if (granted < 0)
            return -1;
        huge_bytes += (double)granted;
        bytes += (double)parts[i]->bytes;
    }
    return huge_bytes < bytes ? huge_bytes / bytes : 1;
}

static int64_t take_rows(int64_t *next, int64_t num_rows, int64_t total_rows) {
    if (*next + num_rows > total_rows)
        *next = 0;
    int64_t first = *next;
    *next += (num_rows + BENCH_BLOCK_SIZE - 1) / BENCH_BLOCK_SIZE * BENCH_BLOCK_SIZE;
    return first;
}

int64_t bench_stage_take_region(struct bench_stage *stage, int64_t num_rows) {
    return take_rows(&stage->next_region, num_rows, stage->num_slots);
}

int64_t bench_stage_take_output(struct bench_stage *stage, int64_t num_rows) {
    return take_rows(&stage->next_output, num_rows, BENCH_OUTPUT_ROWS);
}

void bench_stage_sweep(struct bench_stage *stage) {
    int64_t first = bench_stage_take_region(stage, SWEEP_ROWS);
    bench_touch(stage->key_cache.data + first * BENCH_ROW_BYTES, SWEEP_ROWS * BENCH_ROW_BYTES);
}

enum pkv_status bench_stage_describe(const struct bench_stage *stage, struct pkv_cache *cache,
                                     int32_t layout, int64_t num_heads, int64_t block_size,
                                     int64_t first_row, int64_t num_blocks,
                                     struct pkv_error *error) {
    const int64_t elements = BENCH_NUM_HEADS * BENCH_HEAD_SIZE;
    const int64_t nz = 16; /* bf16 elements of a PA_NZ fragment */
    int64_t shape[4] = {num_blocks, block_size, num_heads, elements / num_heads};
    if (layout == PKV_LAYOUT_HND) {
        shape[1] = num_heads;
        shape[2] = block_size;
    } else if (layout == PKV_LAYOUT_PA_NZ) {
        shape[1] = elements / nz;
        shape[2] = block_size;
        shape[3] = nz;
    }
    const int64_t offset = first_row * BENCH_ROW_BYTES;
    struct pkv_tensor key =
        pkv_tensor_make(stage->key_cache.data + offset, PKV_DTYPE_BF16, 4, shape);
    struct pkv_tensor value =
        pkv_tensor_make(stage->value_cache.data + offset, PKV_DTYPE_BF16, 4, shape);
    struct pkv_cache_options options = {.struct_size = sizeof(options),
                                        .key_layout = layout,
                                        .value_layout = layout,
                                        .num_kv_heads = num_heads};
    return pkv_cache_init(cache, &key, &value, &options, error);
}

int bench_team_create(struct bench_team *team, int32_t num_threads, int32_t max_cpu_level,
                      struct pkv_error *error) {
    memset(team, 0, sizeof(*team));
    team->num_threads = num_threads;
    struct pkv_context_options options = {.struct_size = sizeof(options),
                                          .max_cpu_level = max_cpu_level};
    if (num_threads > 1) {
        if (pkv_executor_pthread_create(&team->pool, num_threads, NULL, error) != PKV_STATUS_OK)
            return -1;
        team->executor = pkv_executor_pthread_hook(team->pool);
        options.executor = &team->executor;
    }
    enum pkv_status status = pkv_context_create(&team->context, &options, error);
    if (status == PKV_STATUS_OK) {
        int32_t level = pkv_context_cpu_level(team->context);
        options.max_cpu_level = PKV_CPU_LEVEL_AVX2;
        if (level == PKV_CPU_LEVEL_AVX512 || level == PKV_CPU_LEVEL_AVX512_BF16)
            status = pkv_context_create(&team->context_avx2, &options, error);
    }
    if (status != PKV_STATUS_OK) {
        bench_team_destroy(team);
        return -1;
    }
    return 0;
}

void bench_team_destroy(struct bench_team *team) {
    pkv_context_destroy(team->context);
    pkv_context_destroy(team->context_avx2);
    pkv_executor_pthread_destroy(team->pool);
    memset(team, 0, sizeof(*team));
}
