/* SPDX-License-Identifier: MIT
 *
 * Draws pairs of sources and caches, and scatters in their shadows.
 */
#include "targets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

/* The row of a pair: its elements, and how they are divided into heads where they are. */
struct row {
    int32_t dtype;
    int64_t num_heads;
    int64_t head_size;
};

static int64_t add_memory(struct targets *targets, int64_t bytes, struct test_rng *rng) {
    struct target_memory *memory = &targets->memories[targets->num_memories];

    memory->guard =
        test_guard_make((size_t)bytes, test_rng_below(rng, 2) ? TEST_GUARD_END : TEST_GUARD_START);
    memory->shadow = malloc((size_t)bytes + 1);
    if (memory->shadow == NULL) {
        perror("add_memory");
        exit(1);
    }
    test_rng_fill(rng, memory->guard.data, (size_t)bytes);
    memcpy(memory->shadow, memory->guard.data, (size_t)bytes);
    return targets->num_memories++;
}

static struct row draw_row(struct test_rng *rng, int64_t max_width) {
    struct row row = {.dtype = (int32_t)test_rng_between(rng, PKV_DTYPE_F32, PKV_DTYPE_F8_E4M3FN)};
    int64_t width = test_rng_below(rng, 3) ? max_width : 1 + max_width / 10;

    row.num_heads = test_rng_between(rng, 1, width < 4 ? width : 4);
    row.head_size = test_rng_between(rng, 1, width / row.num_heads);
    return row;
}

/* Heads, if the description has any, have gaps only where it has. */
static int64_t row_span(const struct row *row, int64_t head_stride) {
    return (row->num_heads - 1) * head_stride + row->head_size;
}

static void describe_cache(struct targets *targets, int64_t pair, const struct row *row,
                           int64_t head_stride, int64_t row_bytes, int64_t block_bytes,
                           unsigned char *data, struct test_rng *rng) {
    int64_t bytes = ref_dtype_bytes(row->dtype);
    struct pkv_tensor *cache = &targets->ref_caches[pair];
    int with_heads = head_stride != row->head_size || test_rng_below(rng, 2);
    int without_blocks =
        !with_heads && block_bytes == targets->block_size * row_bytes && test_rng_below(rng, 2);

    *cache = (struct pkv_tensor){.data = data, .dtype = row->dtype};
    if (without_blocks) {
        cache->ndim = 1;
        cache->shape[0] = targets->num_blocks * targets->block_size;
        cache->strides[0] = row_bytes / bytes;
    } else {
        cache->ndim = 2;
        cache->shape[0] = targets->num_blocks;
        cache->strides[0] = block_bytes / bytes;
        cache->shape[1] = targets->block_size;
        cache->strides[1] = row_bytes / bytes;
    }
    if (with_heads) {
        cache->shape[cache->ndim] = row->num_heads;
        cache->strides[cache->ndim++] = head_stride;
    }
    cache->shape[cache->ndim] = with_heads ? row->head_size : row->num_heads * row->head_size;
    cache->strides[cache->ndim++] = 1;
    targets->caches[pair] = *cache;
}

/* Pairs first ... first + count - 1 in one memory: columns of its rows, with or without gaps
 * between them. All distances are multiples of 4, the largest element. */
static void draw_caches(struct targets *targets, int64_t first, int64_t count,
                        const struct row *rows, struct test_rng *rng) {
    int64_t starts[TARGETS_MAX_PAIRS], head_strides[TARGETS_MAX_PAIRS], order[TARGETS_MAX_PAIRS];
    int64_t row_bytes = 0, block_bytes, memory;
    int gaps = (int)test_rng_below(rng, 2);

    test_rng_permutation(rng, order, count);
    for (int64_t i = 0; i < count; i++) {
        const struct row *row = &rows[first + order[i]];
        int64_t bytes = ref_dtype_bytes(row->dtype);

        row_bytes = (row_bytes + bytes - 1) / bytes * bytes;
        if (gaps) {
            row_bytes += bytes * test_rng_below(rng, 3);
        }
        starts[order[i]] = row_bytes;
        head_strides[order[i]] =
            row->head_size + (gaps && test_rng_below(rng, 3) == 0 ? test_rng_below(rng, 4) : 0);
        row_bytes += row_span(row, head_strides[order[i]]) * bytes;
    }
    row_bytes = (row_bytes + 3) / 4 * 4 + (gaps ? 4 * test_rng_below(rng, 3) : 0);
    block_bytes =
        targets->block_size * row_bytes + (test_rng_below(rng, 3) ? 0 : 4 * test_rng_below(rng, 9));
    memory = add_memory(targets, targets->num_blocks * block_bytes, rng);
    for (int64_t i = 0; i < count; i++) {
        describe_cache(targets, first + i, &rows[first + i], head_strides[i], row_bytes,
                       block_bytes,
                       (unsigned char *)targets->memories[memory].guard.data + starts[i], rng);
        targets->shadow_of[first + i] = memory;
    }
}

/* Axes in any order of nesting, with or without gaps. */
static void draw_source(struct targets *targets, int64_t pair, const struct row *row,
                        struct test_rng *rng) {
    struct pkv_tensor *source = &targets->ref_sources[pair];
    int64_t order[3], stride = 1, bytes = ref_dtype_bytes(row->dtype);
    int plain = (int)test_rng_below(rng, 2);
    int with_heads = (int)test_rng_below(rng, 2);

    *source = (struct pkv_tensor){.dtype = row->dtype, .ndim = with_heads ? 3 : 2};
    source->shape[0] = targets->num_tokens;
    source->shape[1] = with_heads ? row->num_heads : row->num_heads * row->head_size;
    source->shape[2] = row->head_size;
    test_rng_permutation(rng, order, source->ndim);
    for (int32_t i = source->ndim - 1; i >= 0; i--) {
        int64_t axis = plain ? i : order[i];

        source->strides[axis] = stride;
        stride *= source->shape[axis] > 0 ? source->shape[axis] : 1;
        stride += plain ? 0 : test_rng_below(rng, 3);
    }
    source->data = targets->memories[add_memory(targets, stride * bytes, rng)].guard.data;
    targets->sources[pair] = *source;
    if (plain && test_rng_below(rng, 2)) {
        memset(targets->sources[pair].strides, 0, sizeof(source->strides));
    }
}

struct targets targets_draw(struct test_rng *rng, int64_t num_pairs, int64_t num_blocks,
                            int64_t block_size, int64_t num_tokens, int64_t max_width) {
    struct targets targets = {.num_pairs = num_pairs,
                              .num_blocks = num_blocks,
                              .block_size = block_size,
                              .num_tokens = num_tokens};
    struct row rows[TARGETS_MAX_PAIRS];

    for (int64_t i = 0; i < num_pairs; i++) {
        rows[i] = draw_row(rng, max_width);
    }
    for (int64_t i = 0, count; i < num_pairs; i += count) {
        count = test_rng_between(rng, 1, num_pairs - i);
        draw_caches(&targets, i, count, rows, rng);
    }
    for (int64_t i = 0; i < num_pairs; i++) {
        draw_source(&targets, i, &rows[i], rng);
    }
    return targets;
}

void targets_free(struct targets *targets) {
    for (int i = 0; i < targets->num_memories; i++) {
        test_guard_free(&targets->memories[i].guard);
        free(targets->memories[i].shadow);
    }
    *targets = (struct targets){0};
}

/* The offset of element e of a row, from its first one: axes from `axis` on, in C order. */
static int64_t row_offset(const struct pkv_tensor *tensor, int32_t axis, int64_t e) {
    int64_t offset = 0;

    for (int32_t i = tensor->ndim - 1; i >= axis; i--) {
        offset += e % tensor->shape[i] * tensor->strides[i];
        e /= tensor->shape[i];
    }
    return offset;
}

static int64_t row_elements(const struct pkv_tensor *tensor, int32_t axis) {
    int64_t count = 1;

    for (int32_t i = axis; i < tensor->ndim; i++) {
        count *= tensor->shape[i];
    }
    return count;
}

/* A cache without blocks has two axes, one with them three or four. */
static void scatter_row(struct targets *targets, int64_t pair, int64_t token, int64_t slot) {
    const struct pkv_tensor *source = &targets->ref_sources[pair];
    const struct pkv_tensor *cache = &targets->ref_caches[pair];
    const struct target_memory *memory = &targets->memories[targets->shadow_of[pair]];
    int64_t bytes = ref_dtype_bytes(cache->dtype);
    int32_t row_axis = cache->ndim == 2 ? 1 : 2;
    int64_t first = cache->ndim == 2 ? slot * cache->strides[0]
                                     : slot / targets->block_size * cache->strides[0] +
                                           slot % targets->block_size * cache->strides[1];
    unsigned char *to =
        memory->shadow + ((unsigned char *)cache->data - (unsigned char *)memory->guard.data);

    for (int64_t e = 0; e < row_elements(cache, row_axis); e++) {
        memcpy(to + (first + row_offset(cache, row_axis, e)) * bytes,
               (unsigned char *)source->data +
                   (token * source->strides[0] + row_offset(source, 1, e)) * bytes,
               (size_t)bytes);
    }
}

void targets_scatter(struct targets *targets, const int64_t *slots) {
    for (int64_t token = 0; token < targets->num_tokens; token++) {
        for (int64_t pair = 0; pair < targets->num_pairs && slots[token] >= 0; pair++) {
            scatter_row(targets, pair, token, slots[token]);
        }
    }
}

int targets_are_as_expected(const struct targets *targets) {
    for (int i = 0; i < targets->num_memories; i++) {
        const struct target_memory *memory = &targets->memories[i];

        if (memcmp(memory->guard.data, memory->shadow, memory->guard.bytes) != 0) {
            return 0;
        }
    }
    return 1;
}

struct pkv_cache targets_geometry(int64_t num_blocks, int64_t block_size, unsigned char *data) {
    struct pkv_tensor rows =
        pkv_tensor_make(data, PKV_DTYPE_U8, 4, (int64_t[]){num_blocks, block_size, 1, 1});
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    if (pkv_cache_init(&cache, &rows, NULL, NULL, NULL) != PKV_STATUS_OK) {
        abort();
    }
    return cache;
}
