/* SPDX-License-Identifier: MIT
 *
 * Any block table, lengths, offsets, positions and pairs into gather, walk, slot mapping and block
 * copies. Nothing crashes; a success gives what the reference gives, a failure changes nothing.
 */
#include <pagedkv/pagedkv.h>

#include <string.h>

#include "bytes.h"
#include "model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_SEQS = 4, MAX_WIDTH = 5, MAX_POSITIONS = 12, MAX_PAIRS = 6 };

struct input {
    struct model_sizes sizes;
    int32_t dtype;
    int64_t num_seqs;
    int64_t width;
    int64_t table[MAX_SEQS * MAX_WIDTH];
    int64_t lengths[MAX_SEQS];
    int64_t offsets[MAX_SEQS];
    struct pkv_context *context;
};

static struct pkv_context *context_number(int64_t number) {
    static struct pkv_context *contexts[2];
    const struct pkv_context_options options = {.run_mode = (int32_t)number};
    if (contexts[number] == NULL)
        require(pkv_context_create(&contexts[number], &options, NULL) == PKV_STATUS_OK,
                "a context can be made");
    return contexts[number];
}

static int64_t take_index(struct bytes *in, int64_t limit, int32_t dtype) {
    const int64_t value = take_hostile(in, limit);
    return dtype == PKV_DTYPE_I32 ? (int32_t)value : value;
}

static struct input take_input(struct bytes *in) {
    struct input it = {.context = context_number(take_between(in, 0, 1))};
    const uint8_t flags = take_byte(in);
    it.sizes = (struct model_sizes){.key_layout = (int32_t)take_between(in, 0, 4),
                                    .value_layout = (int32_t)take_between(in, 0, 4),
                                    .key_dtype = (int32_t)take_between(in, 1, 12),
                                    .value_dtype = (int32_t)take_between(in, 1, 12),
                                    .num_blocks = take_between(in, 1, 6),
                                    .block_size = take_between(in, 1, 6),
                                    .num_heads = take_between(in, 1, 2),
                                    .key_head_size = 32,
                                    .value_head_size = 64,
                                    .padded = flags & 1,
                                    .interleaved = flags >> 1 & 1};
    it.dtype = flags >> 2 & 1 ? PKV_DTYPE_I32 : PKV_DTYPE_I64;
    it.num_seqs = take_between(in, 0, MAX_SEQS);
    it.width = take_between(in, 0, MAX_WIDTH);
    for (int64_t i = 0; i < it.num_seqs * it.width; i++)
        it.table[i] = take_index(in, it.sizes.num_blocks, it.dtype);
    for (int64_t b = 0; b < it.num_seqs; b++) {
        it.lengths[b] = take_index(in, it.width * it.sizes.block_size, it.dtype);
        it.offsets[b] = take_index(in, it.width * it.sizes.block_size, it.dtype);
    }
    return it;
}

static int block_is_good(const struct input *it, int64_t block) {
    return block >= 0 && block < it->sizes.num_blocks;
}

/* Can sequence b be read? Sums are taken with care: each number may be any. */
static int sequence_is_good(const struct input *it, int64_t b) {
    const int64_t offset = it->offsets[b], length = it->lengths[b];
    const int64_t room = it->width * it->sizes.block_size;
    if (offset < 0 || length < 0 || (length > 0 && (offset > room || length > room - offset)))
        return 0;
    for (int64_t p = offset; p < offset + length && length > 0; p++) {
        if (!block_is_good(it, it->table[b * it->width + p / it->sizes.block_size]))
            return 0;
    }
    return 1;
}

static void check_gather(const struct input *it, struct model_cache *cache, struct test_rng *rng) {
    struct model_index table =
        model_index_make(it->dtype, 2, (int64_t[]){it->num_seqs, it->width}, it->table);
    struct model_index lengths = model_index_make(it->dtype, 1, &it->num_seqs, it->lengths);
    struct model_index offsets = model_index_make(it->dtype, 1, &it->num_seqs, it->offsets);
    const struct pkv_gather_pa_kv_cache_options options = {.key_layout = it->sizes.key_layout,
                                                           .value_layout = it->sizes.value_layout,
                                                           .seq_lens_are_plain = 1};
    struct pkv_error error = {.struct_size = sizeof(error)};
    int good = 1;
    int64_t num_rows = 0;
    for (int64_t b = 0; b < it->num_seqs; b++) {
        good = good && sequence_is_good(it, b);
        num_rows += good ? it->lengths[b] : 0;
    }
    struct model_rows key =
        model_rows_make(MODEL_ROWS_PADDED, &cache->key, num_rows, TEST_GUARD_END, rng);
    struct model_rows value =
        model_rows_make(MODEL_ROWS_TRANSPOSED, &cache->value, num_rows, TEST_GUARD_START, rng);
    const enum pkv_status status = pkv_gather_pa_kv_cache(
        it->context, &cache->key.tensor, &cache->value.tensor, &table.tensor, &lengths.tensor,
        &key.tensor, &value.tensor, &offsets.tensor, &options, &error);
    require((status == PKV_STATUS_OK) == good, "a gather succeeds exactly when it can");
    for (int64_t b = 0, row = 0; b < it->num_seqs && good; row += it->lengths[b++]) {
        ref_gather(&cache->key.ref, cache->key.shadow, &key.ref, key.shadow, row,
                   it->table + b * it->width, it->offsets[b], it->lengths[b]);
        ref_gather(&cache->value.ref, cache->value.shadow, &value.ref, value.shadow, row,
                   it->table + b * it->width, it->offsets[b], it->lengths[b]);
    }
    require(model_rows_are_as_expected(&key) && model_rows_are_as_expected(&value),
            "rows are read, or nothing is written");
    model_rows_free(&key);
    model_rows_free(&value);
    model_index_free(&table);
    model_index_free(&lengths);
    model_index_free(&offsets);
}

static void check_walk(const struct input *it, const struct model_cache *model,
                       const struct pkv_cache *cache) {
    for (int64_t b = 0; b < it->num_seqs; b++) {
        struct model_index row =
            model_index_make(it->dtype, 1, &it->width, it->table + b * it->width);
        struct pkv_walk walk;
        struct pkv_walk_block block;
        const enum pkv_status status =
            pkv_walk_init(&walk, cache, &row.tensor, it->offsets[b], it->lengths[b], NULL);
        int64_t seen = 0;
        require((status == PKV_STATUS_OK) == sequence_is_good(it, b),
                "a walk starts exactly when it can");
        while (status == PKV_STATUS_OK && pkv_walk_next(&walk, &block)) {
            const int64_t p = it->offsets[b] + seen;
            const int64_t index =
                ref_part_index(&model->key.ref, it->table[b * it->width + p / it->sizes.block_size],
                               p % it->sizes.block_size, 0, 0);
            require(block.num_tokens >= 1 && block.num_tokens <= it->sizes.block_size,
                    "a block yields some of its tokens");
            require((char *)block.key ==
                        (char *)model->key.tensor.data + index * model->key.ref.element_bytes,
                    "a block yields its first row");
            seen += block.num_tokens;
        }
        require(status != PKV_STATUS_OK || seen == it->lengths[b], "a walk sees every token once");
        model_index_free(&row);
    }
}

static void check_slots(const struct input *it, struct bytes *in) {
    int64_t positions[MAX_POSITIONS], ids[MAX_POSITIONS], slots[MAX_POSITIONS];
    int64_t expected[MAX_POSITIONS];
    const int64_t count = take_between(in, 0, MAX_POSITIONS);
    int good = 1;
    for (int64_t t = 0; t < count; t++) {
        positions[t] = take_index(in, it->width * it->sizes.block_size, it->dtype);
        ids[t] = take_index(in, it->num_seqs, it->dtype);
        slots[t] = expected[t] = 4711;
    }
    for (int64_t t = 0; t < count; t++) {
        const int64_t p = positions[t];
        int64_t block = 0;
        if (p >= 0) {
            good = good && ids[t] >= 0 && ids[t] < it->num_seqs &&
                   p < it->width * it->sizes.block_size;
            block = good ? it->table[ids[t] * it->width + p / it->sizes.block_size] : 0;
            good = good && block_is_good(it, block);
        }
        if (good)
            expected[t] = p < 0 ? -1 : block * it->sizes.block_size + p % it->sizes.block_size;
    }
    struct model_index table =
        model_index_make(it->dtype, 2, (int64_t[]){it->num_seqs, it->width}, it->table);
    struct model_index at = model_index_make(it->dtype, 1, &count, positions);
    struct model_index of = model_index_make(it->dtype, 1, &count, ids);
    const struct pkv_tensor out = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, &count);
    const enum pkv_status status =
        pkv_slot_mapping_from_block_table(&table.tensor, &at.tensor, &of.tensor,
                                          it->sizes.block_size, it->sizes.num_blocks, &out, NULL);
    require((status == PKV_STATUS_OK) == good, "slots are written exactly when they exist");
    for (int64_t t = 0; t < count; t++)
        require(slots[t] == (good ? expected[t] : 4711), "slots are right, or untouched");
    model_index_free(&table);
    model_index_free(&at);
    model_index_free(&of);
}

/* The table's numbers as page indices: the lengths take the part of kv_indptr and last lengths. */
static void check_pages(const struct input *it, struct bytes *in) {
    int64_t positions[MAX_POSITIONS], ids[MAX_POSITIONS], slots[MAX_POSITIONS];
    int64_t indptr[MAX_SEQS + 1];
    const int64_t count = take_between(in, 0, MAX_POSITIONS);
    const int64_t num_pages = it->num_seqs * it->width, num_starts = it->num_seqs + 1;
    for (int64_t t = 0; t < count; t++) {
        positions[t] = take_index(in, it->width * it->sizes.block_size, it->dtype);
        ids[t] = take_index(in, it->num_seqs, it->dtype);
        slots[t] = 4711;
    }
    for (int64_t b = 0; b <= it->num_seqs; b++)
        indptr[b] = b == 0 ? 0 : take_index(in, num_pages, it->dtype);
    struct model_index pages = model_index_make(it->dtype, 1, &num_pages, it->table);
    struct model_index starts = model_index_make(it->dtype, 1, &num_starts, indptr);
    struct model_index last = model_index_make(it->dtype, 1, &it->num_seqs, it->lengths);
    struct model_index at = model_index_make(it->dtype, 1, &count, positions);
    struct model_index of = model_index_make(it->dtype, 1, &count, ids);
    const struct pkv_tensor out = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, &count);
    const enum pkv_status status = pkv_slot_mapping_from_page_indices(
        &of.tensor, &at.tensor, &pages.tensor, &starts.tensor, &last.tensor, it->sizes.block_size,
        it->sizes.num_blocks, &out, NULL);
    for (int64_t t = 0; t < count; t++)
        require(status == PKV_STATUS_OK
                    ? slots[t] >= -1 && slots[t] < it->sizes.num_blocks * it->sizes.block_size
                    : slots[t] == 4711,
                "slots of pages lie in the cache, or are untouched");
    model_index_free(&pages);
    model_index_free(&starts);
    model_index_free(&last);
    model_index_free(&at);
    model_index_free(&of);
}

static void check_copy(const struct input *it, struct model_cache *model,
                       const struct pkv_cache *cache, struct bytes *in) {
    int64_t pairs[2 * MAX_PAIRS];
    const int64_t count = take_between(in, 0, MAX_PAIRS);
    int good = 1;
    for (int64_t i = 0; i < 2 * count; i++) {
        pairs[i] = take_index(in, it->sizes.num_blocks, it->dtype);
        good = good && block_is_good(it, pairs[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < count; j++)
            good = good && pairs[2 * i + 1] != pairs[2 * j] &&
                   (i == j || pairs[2 * i + 1] != pairs[2 * j + 1]);
    }
    struct model_index mapping = model_index_make(it->dtype, 2, (int64_t[]){count, 2}, pairs);
    const enum pkv_status status = pkv_copy_blocks(it->context, cache, &mapping.tensor, NULL);
    require((status == PKV_STATUS_OK) == good, "blocks are copied exactly when the pairs allow");
    for (int64_t i = 0; i < count && good; i++) {
        ref_copy_block(&model->key.ref, model->key.shadow, pairs[2 * i], pairs[2 * i + 1]);
        ref_copy_block(&model->value.ref, model->value.shadow, pairs[2 * i], pairs[2 * i + 1]);
    }
    model_index_free(&mapping);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes in = {data, size};
    struct test_rng rng = test_rng_make(take_byte(&in));
    struct input it = take_input(&in);
    struct model_cache model = model_cache_make(&it.sizes, &rng);
    const struct pkv_cache_options options = model_cache_options(&model);
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    require(pkv_cache_init(&cache, &model.key.tensor, &model.value.tensor, &options, NULL) ==
                PKV_STATUS_OK,
            "a right description is taken");
    check_gather(&it, &model, &rng);
    check_walk(&it, &model, &cache);
    check_slots(&it, &in);
    check_pages(&it, &in);
    check_copy(&it, &model, &cache, &in);
    require(model_cache_is_as_expected(&model), "the caches hold what they should");
    model_cache_free(&model);
    return 0;
}
