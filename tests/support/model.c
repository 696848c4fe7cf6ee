/* SPDX-License-Identifier: MIT
 *
 * Builds the memories of the tests. Strides are made here, from the outermost gap to the innermost
 * element, and read by the reference alone; the library gets them through its tensors.
 */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char *clone_bytes(const void *data, size_t bytes) {
    unsigned char *copy = malloc(bytes + 1);

    if (copy == NULL) {
        perror("clone_bytes");
        exit(1);
    }
    memcpy(copy, data, bytes);
    return copy;
}

/* Widens every stride but the innermost by a random gap. In TRANSPOSED the innermost dimension is
 * the tokens, whose stride may be wider too. */
static void widen(struct ref_part *part, struct test_rng *rng) {
    int64_t stride = 1;

    if (part->layout == PKV_LAYOUT_TRANSPOSED) {
        stride = test_rng_between(rng, 1, 2);
    }
    for (int32_t i = part->ndim - 1; i >= 0; i--) {
        part->strides[i] = stride;
        stride = stride * part->shape[i] + test_rng_between(rng, 0, 3);
    }
}

static struct pkv_tensor tensor_of(const struct ref_part *part, int32_t dtype, void *data) {
    struct pkv_tensor tensor = {.data = data, .dtype = dtype, .ndim = part->ndim};

    memcpy(tensor.shape, part->shape, sizeof(part->shape));
    memcpy(tensor.strides, part->strides, sizeof(part->strides));
    return tensor;
}

static int64_t round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

static void add_memory(struct model_cache *cache, int64_t bytes, enum test_guard_side side,
                       struct test_rng *rng) {
    int i = cache->num_memories++;

    cache->memories[i] = test_guard_make((size_t)bytes, side);
    test_rng_fill(rng, cache->memories[i].data, (size_t)bytes);
    cache->shadows[i] = clone_bytes(cache->memories[i].data, (size_t)bytes);
}

static int64_t block_bytes(const struct ref_part *part) {
    struct ref_part one = *part;

    one.shape[0] = 1;
    return ref_part_span(&one) * part->element_bytes;
}

/* One pool: a block holds its keys, then its values. All strides stay multiples of 4 bytes, the
 * largest element, so that both halves are aligned. */
static void interleave(struct model_cache *cache, const struct model_sizes *sizes,
                       struct test_rng *rng) {
    struct ref_part *key = &cache->key.ref;
    struct ref_part *value = &cache->value.ref;
    int64_t key_bytes = round_up(block_bytes(key), 4);
    int64_t both = key_bytes + round_up(block_bytes(value), 4);
    unsigned char *data;

    key->strides[0] = both / key->element_bytes;
    value->strides[0] = both / value->element_bytes;
    add_memory(cache, sizes->num_blocks * both, sizes->side, rng);
    data = cache->memories[0].data;
    cache->key.tensor = tensor_of(key, sizes->key_dtype, data);
    cache->key.shadow = cache->shadows[0];
    cache->value.tensor = tensor_of(value, sizes->value_dtype, data + key_bytes);
    cache->value.shadow = cache->shadows[0] + key_bytes;
}

static void place_alone(struct model_cache *cache, struct model_part *part, int32_t dtype,
                        enum test_guard_side side, struct test_rng *rng) {
    add_memory(cache, ref_part_span(&part->ref) * part->ref.element_bytes, side, rng);
    part->tensor = tensor_of(&part->ref, dtype, cache->memories[cache->num_memories - 1].data);
    part->shadow = cache->shadows[cache->num_memories - 1];
}

struct model_cache model_cache_make(const struct model_sizes *sizes, struct test_rng *rng) {
    struct model_cache cache = {.has_value = sizes->value_dtype != 0};

    cache.key.ref =
        ref_part_make(sizes->key_layout, ref_dtype_bytes(sizes->key_dtype), sizes->num_blocks,
                      sizes->block_size, sizes->num_heads, sizes->key_head_size, sizes->nz_5d);
    if (sizes->padded) {
        widen(&cache.key.ref, rng);
    }
    if (cache.has_value) {
        cache.value.ref = ref_part_make(sizes->value_layout, ref_dtype_bytes(sizes->value_dtype),
                                        sizes->num_blocks, sizes->block_size, sizes->num_heads,
                                        sizes->value_head_size, sizes->nz_5d);
        if (sizes->padded) {
            widen(&cache.value.ref, rng);
        }
    }
    if (cache.has_value && sizes->interleaved) {
        interleave(&cache, sizes, rng);
        return cache;
    }
    place_alone(&cache, &cache.key, sizes->key_dtype, sizes->side, rng);
    if (cache.has_value) {
        place_alone(&cache, &cache.value, sizes->value_dtype, sizes->side, rng);
    }
    return cache;
}

void model_cache_free(struct model_cache *cache) {
    for (int i = 0; i < cache->num_memories; i++) {
        test_guard_free(&cache->memories[i]);
        free(cache->shadows[i]);
    }
    *cache = (struct model_cache){0};
}

int model_cache_is_as_expected(const struct model_cache *cache) {
    for (int i = 0; i < cache->num_memories; i++) {
        if (memcmp(cache->memories[i].data, cache->shadows[i], cache->memories[i].bytes) != 0) {
            return 0;
        }
    }
    return 1;
}

void model_cache_accept(struct model_cache *cache) {
    for (int i = 0; i < cache->num_memories; i++) {
        memcpy(cache->shadows[i], cache->memories[i].data, cache->memories[i].bytes);
    }
}

struct pkv_cache_options model_cache_options(const struct model_cache *cache) {
    return (struct pkv_cache_options){.struct_size = sizeof(struct pkv_cache_options),
                                      .key_layout = cache->key.ref.layout,
                                      .value_layout = cache->value.ref.layout,
                                      .num_kv_heads = cache->key.ref.num_heads};
}

/* order names the dimensions from the innermost to the outermost. */
static int64_t lay_out(int64_t *strides, const int64_t *shape, const int *order, int64_t gap) {
    int64_t stride = 1;

    for (int i = 0; i < 3; i++) {
        strides[order[i]] = stride;
        stride = stride * shape[order[i]] + gap;
    }
    return stride;
}

struct model_rows model_rows_make(enum model_rows_kind kind, const struct model_part *part,
                                  int64_t num_tokens, enum test_guard_side side,
                                  struct test_rng *rng) {
    static const int orders[MODEL_ROWS_NUM_KINDS][3] = {[MODEL_ROWS_PACKED] = {2, 1, 0},
                                                        [MODEL_ROWS_IMPLIED] = {2, 1, 0},
                                                        [MODEL_ROWS_PADDED] = {2, 1, 0},
                                                        [MODEL_ROWS_TRANSPOSED] = {2, 0, 1},
                                                        [MODEL_ROWS_COLUMNS] = {0, 2, 1}};
    int64_t shape[3] = {num_tokens, part->ref.num_heads, part->ref.head_size};
    int64_t gap = kind == MODEL_ROWS_PADDED ? test_rng_between(rng, 1, 3) : 0;
    struct model_rows rows = {.ref.num_tokens = num_tokens};
    int64_t elements = lay_out(rows.ref.strides, shape, orders[kind], gap);
    size_t bytes = num_tokens > 0 ? (size_t)(elements * part->ref.element_bytes) : 0;

    rows.memory = test_guard_make(bytes, side);
    test_rng_fill(rng, rows.memory.data, bytes);
    rows.shadow = clone_bytes(rows.memory.data, bytes);
    rows.tensor =
        (struct pkv_tensor){.data = rows.memory.data, .dtype = part->tensor.dtype, .ndim = 3};
    memcpy(rows.tensor.shape, shape, sizeof(shape));
    if (kind != MODEL_ROWS_IMPLIED) {
        memcpy(rows.tensor.strides, rows.ref.strides, sizeof(rows.ref.strides));
    }
    return rows;
}

void model_rows_free(struct model_rows *rows) {
    test_guard_free(&rows->memory);
    free(rows->shadow);
    *rows = (struct model_rows){0};
}

int model_rows_are_as_expected(const struct model_rows *rows) {
    return memcmp(rows->memory.data, rows->shadow, rows->memory.bytes) == 0;
}

struct model_index model_index_make(int32_t dtype, int32_t ndim, const int64_t *shape,
                                    const int64_t *values) {
    struct model_index index = {.tensor = {.dtype = dtype, .ndim = ndim}};
    int64_t count = 1;
    int64_t bytes = ref_dtype_bytes(dtype);

    for (int32_t i = 0; i < ndim; i++) {
        index.tensor.shape[i] = shape[i];
        count *= shape[i];
    }
    index.memory = test_guard_make((size_t)(count * bytes), TEST_GUARD_END);
    index.tensor.data = index.memory.data;
    for (int64_t i = 0; i < count; i++) {
        int16_t narrow = (int16_t)values[i];
        int32_t middle = (int32_t)values[i];
        const void *value = bytes == 2   ? (const void *)&narrow
                            : bytes == 4 ? (const void *)&middle
                                         : (const void *)&values[i];

        memcpy((char *)index.memory.data + i * bytes, value, (size_t)bytes);
    }
    return index;
}

void model_index_free(struct model_index *index) {
    test_guard_free(&index->memory);
    *index = (struct model_index){0};
}
