/* SPDX-License-Identifier: MIT
 *
 * Any geometry and any slots into a scatter. It never crashes; when it succeeds the caches hold
 * what the reference writes, when it fails not one byte has changed; and it fails for a reason.
 */
#include <pagedkv/pagedkv.h>

#include <string.h>

#include "bytes.h"
#include "model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TOKENS = 48, NUM_CONTEXTS = 3 };

struct input {
    struct model_sizes sizes;
    int64_t num_tokens;
    int64_t slots[MAX_TOKENS];
    int64_t num_slots;
    int32_t slot_dtype;
    int32_t duplicates;
    int32_t store_policy;
    struct pkv_context *context;
    int is_clean; /* nothing is wrong with it but, perhaps, its slots */
};

static struct pkv_context *context_number(int64_t number) {
    static struct pkv_context *contexts[NUM_CONTEXTS];
    const struct pkv_context_options options = {
        .run_mode = number == 1 ? PKV_RUN_MODE_SIM : PKV_RUN_MODE_NATIVE,
        .max_cpu_level = number == 2 ? PKV_CPU_LEVEL_C : PKV_CPU_LEVEL_BEST};
    if (contexts[number] == NULL)
        require(pkv_context_create(&contexts[number], &options, NULL) == PKV_STATUS_OK,
                "a context can be made");
    return contexts[number];
}

static int64_t take_head_size(struct bytes *in, int32_t layout, int32_t dtype) {
    int64_t head_size = take_between(in, 1, 40);
    while (!ref_layout_fits(layout, ref_dtype_bytes(dtype), head_size))
        head_size++;
    return head_size;
}

static struct input take_input(struct bytes *in) {
    struct input it = {.is_clean = 1};
    const uint8_t flags = take_byte(in);
    it.sizes = (struct model_sizes){.key_layout = (int32_t)take_between(in, 0, 4),
                                    .value_layout = (int32_t)take_between(in, 0, 4),
                                    .key_dtype = (int32_t)take_between(in, 1, 12),
                                    .value_dtype = (int32_t)take_between(in, 0, 12),
                                    .num_blocks = take_between(in, 1, 6),
                                    .block_size = take_between(in, 1, 6),
                                    .num_heads = take_between(in, 1, 3),
                                    .nz_5d = flags & 1,
                                    .padded = flags >> 1 & 1,
                                    .interleaved = flags >> 2 & 1,
                                    .side = flags >> 3 & 1 ? TEST_GUARD_START : TEST_GUARD_END};
    it.sizes.key_head_size = take_head_size(in, it.sizes.key_layout, it.sizes.key_dtype);
    if (it.sizes.value_dtype != 0)
        it.sizes.value_head_size = take_head_size(in, it.sizes.value_layout, it.sizes.value_dtype);
    else if (it.sizes.key_layout == PKV_LAYOUT_PA_NZ)
        it.is_clean = 0;
    it.num_slots = it.sizes.num_blocks * it.sizes.block_size;
    it.slot_dtype = flags >> 4 & 1 ? PKV_DTYPE_I32 : PKV_DTYPE_I64;
    it.context = context_number(take_between(in, 0, NUM_CONTEXTS - 1));
    it.duplicates = (int32_t)take_between(in, 0, 3);
    it.store_policy = (int32_t)take_between(in, 0, 3);
    if (it.duplicates == 3 || it.store_policy == 3)
        it.is_clean = 0;
    it.num_tokens = take_between(in, 0, MAX_TOKENS);
    for (int64_t t = 0; t < it.num_tokens; t++) {
        it.slots[t] = take_hostile(in, it.num_slots);
        if (it.slot_dtype == PKV_DTYPE_I32)
            it.slots[t] = (int32_t)it.slots[t];
    }
    return it;
}

/* Spoils a description in a way that the library can see. A smaller stride stays inside the memory
 * and is legal: the reference follows it. */
static void spoil(struct bytes *in, struct model_rows *rows, struct input *it) {
    const uint8_t what = take_byte(in);
    const int64_t axis = take_between(in, 0, 2);
    const int64_t number = take_hostile(in, 64);
    struct pkv_tensor *tensor = &rows->tensor;
    if (what < 0x80)
        return;
    if (what < 0x90 && number != tensor->shape[axis]) {
        tensor->shape[axis] = number;
        it->is_clean = 0;
    } else if (what < 0xa0 && (int32_t)number != tensor->dtype) {
        tensor->dtype = (int32_t)number;
        it->is_clean = 0;
    } else if (what < 0xb0 && (int32_t)number != 3) {
        tensor->ndim = (int32_t)number;
        it->is_clean = 0;
    } else if (what < 0xc0) {
        tensor->strides[axis] = INT64_MIN + (number & INT32_MAX);
        it->is_clean = 0;
    } else if (what < 0xd0) {
        tensor->data = NULL;
        it->is_clean = it->is_clean && it->num_tokens == 0;
    } else if (tensor->strides[axis] > 1) {
        tensor->strides[axis] = 1 + (number & INT32_MAX) % tensor->strides[axis];
        rows->ref.strides[axis] = tensor->strides[axis];
    }
}

/* What the slots alone must lead to. */
static enum pkv_status expected_status(const struct input *it) {
    enum pkv_status status = PKV_STATUS_OK;
    for (int64_t t = 0; t < it->num_tokens; t++) {
        if (it->slots[t] >= it->num_slots)
            return PKV_STATUS_SLOT_OUT_OF_RANGE;
        for (int64_t u = 0; u < t && it->slots[t] >= 0; u++) {
            if (it->slots[u] == it->slots[t] && it->duplicates == PKV_DUPLICATES_REJECT)
                status = PKV_STATUS_DUPLICATE_SLOT;
        }
    }
    return status;
}

static int has_repeat(const struct input *it) {
    for (int64_t t = 0; t < it->num_tokens; t++) {
        for (int64_t u = 0; u < t; u++) {
            if (it->slots[t] >= 0 && it->slots[u] == it->slots[t])
                return 1;
        }
    }
    return 0;
}

static void check(struct input *it, struct model_cache *cache, struct model_rows *key,
                  struct model_rows *value) {
    struct model_index index = model_index_make(it->slot_dtype, 1, &it->num_tokens, it->slots);
    const struct pkv_scatter_pa_kv_cache_options options = {.key_layout = it->sizes.key_layout,
                                                            .value_layout = it->sizes.value_layout,
                                                            .duplicates = it->duplicates,
                                                            .store_policy = it->store_policy};
    struct pkv_error error = {.struct_size = sizeof(error)};
    const enum pkv_status status =
        pkv_scatter_pa_kv_cache(it->context, &key->tensor, &cache->key.tensor, &index.tensor,
                                cache->has_value ? &value->tensor : NULL,
                                cache->has_value ? &cache->value.tensor : NULL, &options, &error);
    char text[256];
    if (status != PKV_STATUS_OK) {
        require(error.status == (int32_t)status && error.function != NULL && error.rule != NULL,
                "a refusal explains itself");
        require(pkv_error_text(&error, text, sizeof(text)) > 0, "an error has a text");
    }
    if (it->is_clean)
        require(status == expected_status(it), "the status follows from the slots");
    else
        require(status != PKV_STATUS_OK, "a spoiled call is refused");
    if (status == PKV_STATUS_OK) {
        ref_scatter(&cache->key.ref, cache->key.shadow, &key->ref, key->memory.data, it->slots);
        if (cache->has_value)
            ref_scatter(&cache->value.ref, cache->value.shadow, &value->ref, value->memory.data,
                        it->slots);
    }
    require(model_cache_is_as_expected(cache), "the caches hold what they should");
    require(model_rows_are_as_expected(key) &&
                (!cache->has_value || model_rows_are_as_expected(value)),
            "sources stay as they are");
    model_index_free(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes in = {data, size};
    struct test_rng rng = test_rng_make(take_byte(&in));
    struct input it = take_input(&in);
    struct model_cache cache = model_cache_make(&it.sizes, &rng);
    struct model_rows key =
        model_rows_make((enum model_rows_kind)take_between(&in, 0, MODEL_ROWS_NUM_KINDS - 1),
                        &cache.key, it.num_tokens, it.sizes.side, &rng);
    struct model_rows value = {0};

    /* With the promise broken any of the tokens may stay. */
    if (it.duplicates == PKV_DUPLICATES_ASSUME_UNIQUE && has_repeat(&it))
        it.duplicates = PKV_DUPLICATES_LAST_WINS;
    spoil(&in, &key, &it);
    if (cache.has_value) {
        value =
            model_rows_make((enum model_rows_kind)take_between(&in, 0, MODEL_ROWS_NUM_KINDS - 1),
                            &cache.value, it.num_tokens, it.sizes.side, &rng);
        spoil(&in, &value, &it);
    }
    check(&it, &cache, &key, &value);
    if (cache.has_value)
        model_rows_free(&value);
    model_rows_free(&key);
    model_cache_free(&cache);
    return 0;
}
