/* SPDX-License-Identifier: MIT
 *
 * Any lengths, windows, offsets and slots into the compressed modes of a scatter. A call succeeds
 * exactly when a plain reading of the rules allows it, and the caches then hold what the definition
 * writes; a call that is refused changes not one byte. The query of the lengths agrees.
 */
#include <pagedkv/pagedkv.h>

#include <string.h>

#include "bytes.h"
#include "compressed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NUM_CONTEXTS = 3, MAX_SEQS = 4, MAX_HEADS = 4, MAX_SEQ = 12, MAX_ROWS = 40 };

struct input {
    struct comp_case it;
    struct model_sizes sizes;
    int64_t num_rows; /* of a ragged source, whatever seq_lens say */
    int32_t dtypes[4];
    int32_t store_policy;
    struct pkv_context *context;
};

/* The tensors of the case, in the order slots, lens, offsets, seq_lens. */
struct indices {
    struct model_index all[4];
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

/* A number that its dtype can hold. */
static int64_t take_index(struct bytes *in, int64_t limit, int32_t dtype) {
    const int64_t number = take_hostile(in, limit);
    return dtype == PKV_DTYPE_I32 ? (int32_t)number : number;
}

/* Mostly a window that fits; its numbers are spoiled as often as those of anything else. */
static void take_task(struct bytes *in, struct input *input, int64_t task) {
    struct comp_case *it = &input->it;
    const int64_t seq = it->seq_lens[task / it->num_heads];
    const int64_t limit = seq >= 0 && seq <= MAX_SEQ ? seq : MAX_SEQ;
    const uint8_t how = take_byte(in);
    it->lens[task] = take_between(in, 0, limit);
    it->offsets[task] = take_between(in, 0, limit - it->lens[task] + 1) - 1;
    if (how < 12)
        it->lens[task] = take_index(in, limit, input->dtypes[1]);
    else if (how < 24)
        it->offsets[task] = take_index(in, limit, input->dtypes[2]);
}

static struct input take_input(struct bytes *in) {
    struct input input = {0};
    struct comp_case *it = &input.it;
    const uint8_t flags = take_byte(in);
    it->mode = (int32_t)take_between(in, PKV_SCATTER_MODE_ALIBI, PKV_SCATTER_MODE_OMNI);
    it->num_seqs = take_between(in, 0, MAX_SEQS);
    it->num_heads = take_between(in, 0, MAX_HEADS);
    it->padded_len = flags & 1 ? take_between(in, 0, MAX_SEQ) : -1;
    for (int i = 0; i < 4; i++)
        input.dtypes[i] = flags >> (1 + i) & 1 ? PKV_DTYPE_I32 : PKV_DTYPE_I64;
    for (int64_t b = 0; b < it->num_seqs; b++) {
        const int64_t limit = it->padded_len >= 0 ? it->padded_len : MAX_SEQ;
        it->seq_lens[b] = take_byte(in) < 16 ? take_index(in, limit, input.dtypes[3])
                                             : take_between(in, 0, limit);
        if (it->seq_lens[b] >= 0 && it->seq_lens[b] <= MAX_ROWS)
            input.num_rows += it->seq_lens[b];
    }
    if (take_byte(in) < 12)
        input.num_rows = take_between(in, 0, MAX_ROWS);
    for (int64_t t = 0; t < it->num_seqs * it->num_heads; t++)
        take_task(in, &input, t);

    input.sizes = (struct model_sizes){.key_dtype = (int32_t)take_between(in, 1, 12),
                                       .value_dtype = (int32_t)take_between(in, 0, 12),
                                       .block_size = take_between(in, 1, 7),
                                       .num_heads = 1,
                                       .key_head_size = take_between(in, 1, 40),
                                       .value_head_size = take_between(in, 1, 40),
                                       .padded = flags >> 5 & 1,
                                       .interleaved = flags >> 6 & 1,
                                       .side = flags >> 7 ? TEST_GUARD_START : TEST_GUARD_END};
    input.store_policy = (int32_t)take_between(in, 0, 2);
    input.context = context_number(take_between(in, 0, NUM_CONTEXTS - 1));
    return input;
}

/* The numbers of one task, without its place. */
static int window_is_good(const struct comp_case *it, int64_t t) {
    const int64_t seq = it->seq_lens[t / it->num_heads], w = it->lens[t], o = it->offsets[t];
    if (seq < 0 || w < 0)
        return 0;
    if (it->mode != PKV_SCATTER_MODE_ALIBI && comp_is_whole(it, t))
        return 1;
    return w <= seq && (it->mode == PKV_SCATTER_MODE_ALIBI || (o >= 0 && o <= seq - w));
}

/* Slots side by side with small gaps, some skipped, some anywhere. A window that is not good takes
 * no room.
 */
static void take_slots(struct bytes *in, struct input *input) {
    struct comp_case *it = &input->it;
    int64_t next = 0;
    for (int64_t t = 0; t < it->num_seqs * it->num_heads; t++) {
        const int64_t seq = it->seq_lens[t / it->num_heads];
        const int64_t length = window_is_good(it, t) ? comp_length(it, t) : 0;
        const uint8_t how = take_byte(in);
        next += how & 3;
        it->slots[t] = how < 230   ? next
                       : how < 240 ? -take_between(in, 1, 99)
                                   : take_index(in, next, input->dtypes[0]);
        if (seq <= MAX_SEQ)
            next += length;
    }
    input->sizes.num_blocks = next / input->sizes.block_size + 1 - (next > 9 && take_byte(in) < 20);
}

static int has_no_mean(int32_t dtype) {
    return dtype == PKV_DTYPE_HIFLOAT8;
}

/* Whether the call must succeed. */
static int is_good(const struct input *input) {
    const struct comp_case *it = &input->it;
    const int64_t num_slots = input->sizes.num_blocks * input->sizes.block_size;
    int64_t sum = 0;
    for (int64_t b = 0; b < it->num_seqs; b++) {
        if (it->seq_lens[b] < 0 || it->seq_lens[b] > (it->padded_len >= 0 ? it->padded_len : 1000))
            return 0;
        sum += it->seq_lens[b];
    }
    if (it->padded_len < 0 && sum != input->num_rows)
        return 0;
    for (int64_t t = 0; t < it->num_seqs * it->num_heads; t++) {
        if (it->slots[t] < 0)
            continue;
        if (!window_is_good(it, t) || it->slots[t] > num_slots - comp_length(it, t))
            return 0;
        if (it->mode == PKV_SCATTER_MODE_ROPE && !comp_is_whole(it, t) &&
            (has_no_mean(input->sizes.key_dtype) || has_no_mean(input->sizes.value_dtype)))
            return 0;
    }
    for (int64_t t = 0; t < it->num_seqs * it->num_heads; t++) {
        for (int64_t u = 0; u < t; u++) {
            if (it->slots[t] >= 0 && it->slots[u] >= 0 && comp_length(it, t) > 0 &&
                comp_length(it, u) > 0 && it->slots[t] < it->slots[u] + comp_length(it, u) &&
                it->slots[u] < it->slots[t] + comp_length(it, t))
                return 0;
        }
    }
    return 1;
}

static struct indices make_indices(const struct input *input, struct bytes *in) {
    const struct comp_case *it = &input->it;
    const int64_t tasks[2] = {it->num_seqs, it->num_heads};
    const int64_t flat = it->num_seqs * it->num_heads;
    const int64_t *const values[3] = {it->slots, it->lens, it->offsets};
    struct indices indices;
    for (int i = 0; i < 3; i++)
        indices.all[i] = take_byte(in) & 1
                             ? model_index_make(input->dtypes[i], 1, &flat, values[i])
                             : model_index_make(input->dtypes[i], 2, tasks, values[i]);
    indices.all[3] = model_index_make(input->dtypes[3], 1, &it->num_seqs, it->seq_lens);
    return indices;
}

/* The query, which knows no slots: it succeeds when every window is good. */
static void check_query(const struct input *input, const struct indices *indices) {
    const struct comp_case *it = &input->it;
    const int64_t num_tasks = it->num_seqs * it->num_heads;
    int64_t lengths[MAX_SEQS * MAX_HEADS];
    int good = 1;
    for (int64_t b = 0; b < it->num_seqs; b++)
        good = good && it->seq_lens[b] >= 0;
    for (int64_t t = 0; t < num_tasks; t++) {
        lengths[t] = 4711;
        good = good && window_is_good(it, t);
    }
    if (num_tasks == 0)
        return;
    const struct pkv_tensor out = pkv_tensor_make(lengths, PKV_DTYPE_I64, 1, &num_tasks);
    const enum pkv_status status = pkv_scatter_compressed_lens(
        it->mode, &indices->all[3].tensor, &indices->all[1].tensor,
        it->mode == PKV_SCATTER_MODE_ALIBI ? NULL : &indices->all[2].tensor, &out, NULL);
    require((status == PKV_STATUS_OK) == good, "lengths are told exactly when windows are good");
    for (int64_t t = 0; t < num_tasks; t++)
        require(lengths[t] == (good ? comp_length(it, t) : 4711),
                "lengths are right, or untouched");
}

static void check_scatter(const struct input *input, struct model_cache *cache,
                          const struct model_rows *key, const struct model_rows *value,
                          const struct indices *indices) {
    const struct comp_case *it = &input->it;
    const struct pkv_scatter_pa_kv_cache_options options = {
        .scatter_mode = it->mode,
        .store_policy = input->store_policy,
        .compress_lens = &indices->all[1].tensor,
        .compress_seq_offset = it->mode == PKV_SCATTER_MODE_ALIBI ? NULL : &indices->all[2].tensor,
        .seq_lens = &indices->all[3].tensor};
    struct pkv_error error = {.struct_size = sizeof(error)};
    const enum pkv_status status =
        pkv_scatter_pa_kv_cache(input->context, &key->tensor, &cache->key.tensor,
                                &indices->all[0].tensor, cache->has_value ? &value->tensor : NULL,
                                cache->has_value ? &cache->value.tensor : NULL, &options, &error);
    require((status == PKV_STATUS_OK) == is_good(input), "the status follows from the numbers");
    if (status != PKV_STATUS_OK) {
        char text[256];
        require(error.status == (int32_t)status && error.function != NULL && error.rule != NULL,
                "a refusal explains itself");
        require(pkv_error_text(&error, text, sizeof(text)) > 0, "an error has a text");
    } else {
        comp_scatter(it, &cache->key, cache->key.shadow, &key->ref, key->memory.data);
        if (cache->has_value)
            comp_scatter(it, &cache->value, cache->value.shadow, &value->ref, value->memory.data);
    }
    require(model_cache_is_as_expected(cache), "the caches hold what they should");
    require(model_rows_are_as_expected(key) &&
                (!cache->has_value || model_rows_are_as_expected(value)),
            "sources stay as they are");
}

/* As many rows as the input says, which need not be those of the case. */
static struct model_rows make_rows(const struct input *input, const struct model_part *part,
                                   struct bytes *in, struct test_rng *rng) {
    struct comp_case it = input->it;
    if (it.padded_len < 0) {
        it.num_seqs = 1;
        it.seq_lens[0] = input->num_rows;
    }
    return comp_rows_make(&it, (enum model_rows_kind)take_between(in, 0, MODEL_ROWS_NUM_KINDS - 1),
                          part, input->sizes.side, rng);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes in = {data, size};
    struct test_rng rng = test_rng_make(take_byte(&in));
    struct input input = take_input(&in);
    take_slots(&in, &input);
    struct model_cache cache = model_cache_make(&input.sizes, &rng);
    struct model_rows key = make_rows(&input, &cache.key, &in, &rng);
    struct model_rows value = {0};
    if (cache.has_value)
        value = make_rows(&input, &cache.value, &in, &rng);
    struct indices indices = make_indices(&input, &in);

    check_query(&input, &indices);
    check_scatter(&input, &cache, &key, &value, &indices);
    for (int i = 0; i < 4; i++)
        model_index_free(&indices.all[i]);
    if (cache.has_value)
        model_rows_free(&value);
    model_rows_free(&key);
    model_cache_free(&cache);
    return 0;
}
