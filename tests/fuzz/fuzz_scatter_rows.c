/* SPDX-License-Identifier: MIT
 *
 * Any pairs of sources and caches, packed ones too, and any slots into a scatter to many targets.
 * When it succeeds the caches hold what the reference writes, when it fails not one byte has
 * changed; and it fails for a reason.
 */
#include <pagedkv/pagedkv.h>

#include "bytes.h"
#include "model.h"
#include "targets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TOKENS = 40, NUM_CONTEXTS = 3 };

struct input {
    struct targets targets;
    int64_t num_pairs; /* as the call says */
    int64_t slots[MAX_TOKENS];
    int64_t num_slots;
    int32_t slot_dtype;
    struct pkv_scatter_rows_options options;
    int64_t num_parts; /* 0: the one call */
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

/* Spoils a description in a way that must be refused, whatever the others are. */
static void spoil(struct bytes *in, struct input *it) {
    const uint8_t what = take_byte(in);
    const int64_t pair = take_between(in, 0, it->targets.num_pairs - 1);
    const int64_t axis = take_between(in, 0, 1), number = take_hostile(in, 64);
    struct pkv_tensor *source = &it->targets.sources[pair], *cache = &it->targets.caches[pair];
    const int64_t element_bytes = pkv_dtype_bytes(cache->dtype);
    if (what < 0xa0)
        return;
    it->is_clean = 0;
    if (what < 0xa8 && number != source->shape[axis])
        source->shape[axis] = number;
    else if (what < 0xb0 && (int32_t)number != source->dtype)
        source->dtype = (int32_t)number;
    else if (what < 0xb8 && (int32_t)number != cache->dtype)
        cache->dtype = (int32_t)number;
    else if (what < 0xc0 && ((int32_t)number < 2 || (int32_t)number > 4))
        *(what & 1 ? &source->ndim : &cache->ndim) = (int32_t)number;
    else if (what < 0xc8)
        (what & 1 ? source : cache)->strides[axis] = INT64_MIN + (number & INT32_MAX);
    else if (what < 0xd0)
        cache->data = NULL;
    else if (what < 0xd8 && element_bytes > 1)
        (what & 1 ? source : cache)->data = (char *)(what & 1 ? source : cache)->data + 1;
    else if (what < 0xe0 && it->targets.num_pairs > 1)
        it->targets.caches[pair] = it->targets.caches[pair == 0 ? 1 : 0];
    else if (what < 0xe8)
        it->num_pairs = what & 1 ? 0 : TARGETS_MAX_PAIRS + 1 + (number & INT32_MAX);
    else if (what < 0xf0)
        it->options.store_policy = 3 + (int32_t)(number & 0xffff);
    else
        it->is_clean = 1;
}

static struct input take_input(struct bytes *in) {
    struct test_rng rng = test_rng_make((uint64_t)take_wide(in));
    struct input it = {.is_clean = 1};
    const uint8_t flags = take_byte(in);
    const int64_t num_blocks = take_between(in, 1, 6), block_size = take_between(in, 1, 6);
    const int64_t num_tokens = take_between(in, 0, MAX_TOKENS);
    it.num_pairs = flags & 1 ? take_between(in, 1, TARGETS_MAX_PAIRS) : take_between(in, 1, 4);
    it.targets =
        targets_draw(&rng, it.num_pairs, num_blocks, block_size, num_tokens, flags & 2 ? 300 : 24);
    it.num_slots = num_blocks * block_size;
    it.slot_dtype = flags & 4 ? PKV_DTYPE_I32 : PKV_DTYPE_I64;
    it.context = context_number(take_between(in, 0, NUM_CONTEXTS - 1));
    it.options.duplicates = (int32_t)take_between(in, 0, 1);
    it.options.store_policy = (int32_t)take_between(in, 0, 2);
    it.num_parts = flags & 8 ? take_between(in, 1, 5) : 0;
    for (int64_t t = 0; t < num_tokens; t++) {
        it.slots[t] = take_hostile(in, it.num_slots);
        if (it.slot_dtype == PKV_DTYPE_I32)
            it.slots[t] = (int32_t)it.slots[t];
    }
    spoil(in, &it);
    return it;
}

/* What the slots alone must lead to. */
static enum pkv_status expected_status(const struct input *it) {
    enum pkv_status status = PKV_STATUS_OK;
    for (int64_t t = 0; t < it->targets.num_tokens; t++) {
        if (it->slots[t] >= it->num_slots)
            return PKV_STATUS_SLOT_OUT_OF_RANGE;
        for (int64_t u = 0; u < t && it->slots[t] >= 0; u++) {
            if (it->slots[u] == it->slots[t] && it->options.duplicates == PKV_DUPLICATES_REJECT)
                status = PKV_STATUS_DUPLICATE_SLOT;
        }
    }
    return status;
}

/* Only a plan that can be made; the parts from the last to the first. */
static enum pkv_status call_in_parts(const struct input *it, const struct pkv_tensor *slots,
                                     struct pkv_error *error) {
    const struct pkv_scatter_options options = {.store_policy = it->options.store_policy};
    const struct pkv_step_indices indices = {.duplicates = it->options.duplicates,
                                             .slot_mapping = *slots};
    static uint8_t rows[36];
    const int64_t shape[4] = {it->targets.num_blocks, it->targets.block_size, 1, 1};
    const struct pkv_tensor tensor = pkv_tensor_make(rows, PKV_DTYPE_U8, 4, shape);
    struct pkv_scatter_rows_plan *plan = NULL;
    struct pkv_step *step = NULL;
    struct pkv_cache cache;
    enum pkv_status status = pkv_scatter_rows_plan_create(&plan, it->context, it->targets.caches,
                                                          it->num_pairs, &options, error);
    if (status == PKV_STATUS_OK)
        status = pkv_cache_init(&cache, &tensor, NULL, NULL, error);
    if (status == PKV_STATUS_OK)
        status = pkv_step_create(&step, NULL, error);
    if (status == PKV_STATUS_OK)
        status = pkv_step_set(it->context, step, &cache, &indices, error);
    for (int64_t part = it->num_parts - 1; part >= 0 && status == PKV_STATUS_OK; part--)
        status = pkv_scatter_rows_run_part(it->context, plan, step, it->targets.sources,
                                           it->targets.caches, part, it->num_parts, error);
    pkv_step_destroy(step);
    pkv_scatter_rows_plan_destroy(plan);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes in = {data, size};
    struct input it = take_input(&in);
    struct model_index index = model_index_make(it.slot_dtype, 1, &it.targets.num_tokens, it.slots);
    struct pkv_error error = {.struct_size = sizeof(error)};
    const enum pkv_status status =
        it.num_parts > 0 ? call_in_parts(&it, &index.tensor, &error)
                         : pkv_scatter_rows(it.context, &index.tensor, it.targets.sources,
                                            it.targets.caches, it.num_pairs, &it.options, &error);
    char text[256];
    if (status != PKV_STATUS_OK) {
        require(error.status == (int32_t)status && error.function != NULL && error.rule != NULL,
                "a refusal explains itself");
        require(pkv_error_text(&error, text, sizeof(text)) > 0, "an error has a text");
    }
    if (it.is_clean)
        require(status == expected_status(&it), "the status follows from the slots");
    else
        require(status != PKV_STATUS_OK, "a spoiled call is refused");
    if (status == PKV_STATUS_OK)
        targets_scatter(&it.targets, it.slots);
    require(targets_are_as_expected(&it.targets), "caches hold what they should, sources too");
    model_index_free(&index);
    targets_free(&it.targets);
    return 0;
}
