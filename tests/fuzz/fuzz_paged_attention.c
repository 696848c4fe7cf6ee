/* SPDX-License-Identifier: MIT
 *
 * Any lengths, block tables, query totals, shared tokens, windows and numbers of rows into paged
 * attention. A call succeeds exactly when a plain reading of the rules allows it, and out then
 * holds what the definition says; one that is refused writes nothing.
 */
#include <pagedkv/pagedkv.h>

#include <math.h>
#include <string.h>

#include "attention_reference.h"
#include "bytes.h"
#include "model.h"
#include "numbers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    MAX_SEQS = 4,
    MAX_WIDTH = 4,
    MAX_BLOCK_SIZE = 6,
    MAX_TOKENS = MAX_WIDTH * MAX_BLOCK_SIZE,
    MAX_ROWS = MAX_SEQS * MAX_TOKENS,
    MAX_HEADS = 6,
    MAX_MASK = 12,
    SIZE = 16,
    NUM_CONTEXTS = 3
};

struct input {
    struct pkv_context *context;
    struct model_sizes sizes;
    struct attn_ref_options ref;
    int32_t query_dtype;
    int32_t dtypes[4]; /* of block_table, seq_lens, query_start_loc, seq_offsets */
    int64_t num_seqs, width, num_starts, num_shared;
    int64_t table[MAX_SEQS * MAX_WIDTH], lengths[MAX_SEQS + 1], starts[MAX_SEQS + 2];
    int has_offsets;
    int64_t offsets[MAX_SEQS];
    int64_t num_rows; /* of the tensors */
    int has_lse, is_bool_mask;
    int64_t mask_width;      /* -1: no mask */
    int64_t part, num_parts; /* num_parts 0: one run */
    float slopes[MAX_HEADS], sinks[MAX_HEADS];
    uint8_t seed;
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

static int32_t take_dtype(struct bytes *in) {
    static const int32_t dtypes[] = {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16};
    return dtypes[take_between(in, 0, 2)];
}

/* Mostly near `near`, and a number that its dtype can hold. */
static int64_t take_index(struct bytes *in, int64_t near, int64_t limit, int32_t dtype) {
    const uint8_t kind = take_byte(in);
    const int64_t number = kind < 0xd0   ? near
                           : kind < 0xe8 ? near + kind % 3 - 1
                                         : take_hostile(in, limit);
    return dtype == PKV_DTYPE_I32 ? (int32_t)number : number;
}

static void take_sequences(struct bytes *in, struct input *it) {
    const int64_t room = it->width * it->sizes.block_size;
    const int64_t num_common = take_between(in, 0, it->width);
    for (int64_t b = 0; b < it->num_seqs; b++) {
        it->lengths[b] = take_index(in, take_between(in, 0, room), room, it->dtypes[1]);
        if (it->has_offsets)
            it->offsets[b] = take_index(in, take_between(in, 0, 9), 20, it->dtypes[3]);
        for (int64_t i = 0; i < it->width; i++) {
            const int64_t block = take_between(in, 0, it->sizes.num_blocks - 1);
            it->table[b * it->width + i] =
                take_index(in, i < num_common && b > 0 ? it->table[i] : block, it->sizes.num_blocks,
                           it->dtypes[0]);
        }
        const int64_t most = it->lengths[b] > 0 && it->lengths[b] <= room ? it->lengths[b] : 0;
        const int64_t start = it->starts[b] >= 0 && it->starts[b] < MAX_ROWS ? it->starts[b] : 0;
        it->starts[b + 1] =
            take_index(in, start + take_between(in, 0, most), MAX_ROWS, it->dtypes[2]);
    }
    it->starts[it->num_seqs + 1] = take_byte(in);
    if (take_byte(in) >= 0xf0)
        it->starts[0] = take_index(in, 0, 3, it->dtypes[2]);
}

static void take_options(struct bytes *in, struct input *it) {
    const uint8_t flags = take_byte(in);
    it->ref = (struct attn_ref_options){
        .num_kv_heads = it->sizes.num_heads,
        .num_heads = it->sizes.num_heads * take_between(in, 1, MAX_HEADS / 2),
        .head_size = SIZE,
        .value_head_size = SIZE,
        .softcap = flags & 1 ? 4 : 0,
        .is_causal = !(flags >> 1 & 1),
        .max_left = take_index(in, take_between(in, 0, 9), 30, PKV_DTYPE_I64),
        .max_right = take_index(in, take_between(in, 0, 9), 30, PKV_DTYPE_I64),
        .is_base_2 = flags >> 2 & 1,
        .out_dtype = flags >> 3 & 1 ? PKV_DTYPE_F32 : it->query_dtype,
        .slopes = flags >> 4 & 1 ? it->slopes : NULL,
        .sinks = flags >> 5 & 1 ? it->sinks : NULL,
    };
    it->has_lse = flags >> 6 & 1;
    it->is_bool_mask = flags >> 7 & 1;
    it->mask_width = take_between(in, -3, MAX_MASK);
    for (int64_t h = 0; h < MAX_HEADS; h++) {
        it->slopes[h] = (float)take_between(in, -8, 8) / 8;
        it->sinks[h] = (float)take_between(in, -8, 8);
    }
    if (take_byte(in) & 1) {
        it->num_parts = take_between(in, 1, 4);
        it->part = take_between(in, 0, it->num_parts - 1);
    }
}

static void take_input(struct bytes *in, struct input *it) {
    *it = (struct input){.seed = take_byte(in),
                         .context = context_number(take_between(in, 0, NUM_CONTEXTS - 1))};
    const uint8_t flags = take_byte(in);
    it->sizes = (struct model_sizes){.key_layout = (int32_t)take_between(in, 0, 4),
                                     .value_layout = (int32_t)take_between(in, 0, 4),
                                     .key_dtype = take_dtype(in),
                                     .value_dtype = take_dtype(in),
                                     .num_blocks = take_between(in, 1, 6),
                                     .block_size = take_between(in, 1, MAX_BLOCK_SIZE),
                                     .num_heads = take_between(in, 1, 2),
                                     .key_head_size = SIZE,
                                     .value_head_size = SIZE,
                                     .padded = flags & 1,
                                     .interleaved = flags >> 1 & 1};
    for (int i = 0; i < 4; i++)
        it->dtypes[i] = flags >> (2 + i) & 1 ? PKV_DTYPE_I32 : PKV_DTYPE_I64;
    it->has_offsets = flags >> 6 & 1;
    it->query_dtype = take_dtype(in);
    it->num_seqs = take_between(in, 0, MAX_SEQS);
    it->width = take_between(in, 0, MAX_WIDTH);
    it->num_starts = take_index(in, it->num_seqs + 1, MAX_SEQS, PKV_DTYPE_I64);
    if (it->num_starts < 0 || it->num_starts > MAX_SEQS + 2)
        it->num_starts = it->num_seqs + 1;
    take_sequences(in, it);
    take_options(in, it);
    it->num_shared =
        take_byte(in) & 1 ? take_index(in, take_between(in, 0, 8), 20, PKV_DTYPE_I64) : 0;
    it->num_rows = take_index(in, it->starts[it->num_seqs], MAX_ROWS, PKV_DTYPE_I64);
    if (it->num_rows < 0 || it->num_rows > MAX_ROWS)
        it->num_rows = 1;
}

/* ---- A plain reading of the rules ---- */

static int sequence_is_good(const struct input *it, int64_t b) {
    const int64_t length = it->lengths[b], start = it->starts[b], end = it->starts[b + 1];
    const int64_t room = it->width * it->sizes.block_size, offset = it->offsets[b];
    if (length < 0 || offset < 0 || length > room || (length > 0 && offset > room - length))
        return 0;
    for (int64_t p = offset; p < offset + length && length > 0; p++) {
        const int64_t block = it->table[b * it->width + p / it->sizes.block_size];
        if (block < 0 || block >= it->sizes.num_blocks)
            return 0;
    }
    return start >= 0 && end >= start && end - start <= length;
}

static int step_is_good(const struct input *it) {
    int good = it->num_starts == it->num_seqs + 1 && it->starts[0] == 0 && it->num_shared >= 0 &&
               !(it->has_offsets && it->num_shared != 0);
    for (int64_t b = 0; b < it->num_seqs && good; b++) {
        good = sequence_is_good(it, b) && it->num_shared <= it->lengths[b];
        for (int64_t p = 0; p < it->num_shared && good; p++) {
            const int64_t i = p / it->sizes.block_size;
            good = it->table[b * it->width + i] == it->table[i];
        }
    }
    return good;
}

static int plan_is_good(const struct input *it) {
    return it->ref.max_left >= 0 && it->ref.max_right >= 0;
}

/* ---- Tensors ---- */

struct tensors {
    struct model_rows query, out;
    struct test_guard lse, mask, slopes, sinks;
    float bias[MAX_ROWS * MAX_MASK]; /* the mask as numbers */
    struct pkv_paged_attention_tensors given;
};

/* A number that every dtype holds. */
static float draw_number(struct test_rng *rng) {
    return (float)test_rng_between(rng, -16, 16) / 8;
}

static void fill_part(struct model_part *part, struct test_rng *rng) {
    const struct num_format *format = num_format_of(part->tensor.dtype);
    const struct ref_part *ref = &part->ref;
    for (int64_t e = 0; e < ref->num_blocks * ref->block_size * ref->num_heads * SIZE; e++) {
        const int64_t h = e / SIZE % ref->num_heads, slot = e / SIZE / ref->num_heads;
        const int64_t at =
            ref_part_index(ref, slot / ref->block_size, slot % ref->block_size, h, e % SIZE);
        num_write(format, (char *)part->tensor.data + at * format->bytes,
                  num_code_of_float(format, draw_number(rng)));
    }
}

static struct model_rows make_rows(const struct input *it, int32_t dtype, struct test_rng *rng) {
    const struct model_part part = {.ref = {.num_heads = it->ref.num_heads,
                                            .head_size = SIZE,
                                            .element_bytes = num_format_of(dtype)->bytes},
                                    .tensor = {.dtype = dtype}};
    return model_rows_make((enum model_rows_kind)test_rng_below(rng, MODEL_ROWS_NUM_KINDS), &part,
                           it->num_rows, TEST_GUARD_END, rng);
}

static void *row_element(const struct model_rows *rows, void *data, int64_t t, int64_t h,
                         int64_t d) {
    const int64_t *s = rows->ref.strides;
    return (char *)data +
           (t * s[0] + h * s[1] + d * s[2]) * num_format_of(rows->tensor.dtype)->bytes;
}

static struct test_guard make_floats(const float *from, int64_t count) {
    struct test_guard memory = test_guard_make((size_t)count * sizeof(float), TEST_GUARD_END);
    memcpy(memory.data, from, memory.bytes);
    test_guard_protect(&memory);
    return memory;
}

static void make_mask(const struct input *it, struct tensors *made, struct test_rng *rng) {
    const int64_t count = it->num_rows * it->mask_width;
    const int32_t dtype = it->is_bool_mask ? PKV_DTYPE_BOOL : PKV_DTYPE_F32;
    made->mask = test_guard_make((size_t)(count * ref_dtype_bytes(dtype)), TEST_GUARD_END);
    for (int64_t i = 0; i < count; i++) {
        const int is_seen = test_rng_below(rng, 4) > 0;
        made->bias[i] = !is_seen ? -INFINITY : it->is_bool_mask ? 0 : draw_number(rng);
        if (it->is_bool_mask)
            ((uint8_t *)made->mask.data)[i] = (uint8_t)(is_seen ? 1 + i % 255 : 0);
        else
            ((float *)made->mask.data)[i] = made->bias[i];
    }
    test_guard_protect(&made->mask);
    made->given.mask =
        pkv_tensor_make(made->mask.data, dtype, 2, (int64_t[]){it->num_rows, it->mask_width});
}

static void make_tensors(const struct input *it, struct tensors *made, struct test_rng *rng) {
    const struct num_format *format = num_format_of(it->query_dtype);
    const int64_t heads = it->ref.num_heads;
    memset(made, 0, sizeof(*made));
    made->query = make_rows(it, it->query_dtype, rng);
    made->out = make_rows(it, it->ref.out_dtype, rng);
    for (int64_t e = 0; e < it->num_rows * heads * SIZE; e++)
        num_write(format,
                  row_element(&made->query, made->query.memory.data, e / SIZE / heads,
                              e / SIZE % heads, e % SIZE),
                  num_code_of_float(format, draw_number(rng)));
    test_guard_protect(&made->query.memory);
    made->given =
        (struct pkv_paged_attention_tensors){.query = made->query.tensor, .out = made->out.tensor};
    if (it->has_lse) {
        made->lse = test_guard_make((size_t)(it->num_rows * heads) * 4, TEST_GUARD_END);
        memset(made->lse.data, 0x55, made->lse.bytes);
        made->given.lse =
            pkv_tensor_make(made->lse.data, PKV_DTYPE_F32, 2, (int64_t[]){it->num_rows, heads});
    }
    if (it->ref.slopes) {
        made->slopes = make_floats(it->slopes, heads);
        made->given.alibi_slopes = pkv_tensor_make(made->slopes.data, PKV_DTYPE_F32, 1, &heads);
    }
    if (it->ref.sinks) {
        made->sinks = make_floats(it->sinks, heads);
        made->given.sinks = pkv_tensor_make(made->sinks.data, PKV_DTYPE_F32, 1, &heads);
    }
    if (it->mask_width >= 0)
        make_mask(it, made, rng);
}

static void free_tensors(struct tensors *made) {
    model_rows_free(&made->query);
    model_rows_free(&made->out);
    test_guard_free(&made->lse);
    test_guard_free(&made->mask);
    test_guard_free(&made->slopes);
    test_guard_free(&made->sinks);
}

/* ---- The call ---- */

static void explain(enum pkv_status status, const struct pkv_error *error) {
    char text[256];
    if (status == PKV_STATUS_OK)
        return;
    require(error->status == (int32_t)status && error->function != NULL && error->rule != NULL,
            "a refusal explains itself");
    require(pkv_error_text(error, text, sizeof(text)) > 0, "an error has a text");
}

static enum pkv_status run(const struct input *it, const struct pkv_paged_attention_plan *plan,
                           const struct pkv_step *step, const struct pkv_cache *cache,
                           const struct tensors *tensors, struct pkv_error *error) {
    enum pkv_status status = PKV_STATUS_OK;
    if (it->num_parts == 0)
        return pkv_paged_attention_run(it->context, plan, step, cache, &tensors->given, error);
    for (int64_t i = 0; i < it->num_parts && status == PKV_STATUS_OK; i++)
        status = pkv_paged_attention_run_part(it->context, plan, step, cache, &tensors->given,
                                              (it->part + i) % it->num_parts, it->num_parts, error);
    return status;
}

static enum pkv_status call(const struct input *it, const struct pkv_cache *cache,
                            const struct tensors *tensors) {
    const struct pkv_paged_attention_options options = {
        .num_heads = it->ref.num_heads,
        .query_dtype = it->query_dtype,
        .softcap = (float)it->ref.softcap,
        .non_causal = !it->ref.is_causal,
        .lse_base = it->ref.is_base_2 ? PKV_LSE_BASE_2 : PKV_LSE_BASE_E,
        .max_visible_left = it->ref.max_left,
        .max_visible_right = it->ref.max_right};
    struct model_index table =
        model_index_make(it->dtypes[0], 2, (int64_t[]){it->num_seqs, it->width}, it->table);
    struct model_index lengths = model_index_make(it->dtypes[1], 1, &it->num_seqs, it->lengths);
    struct model_index starts = model_index_make(it->dtypes[2], 1, &it->num_starts, it->starts);
    struct model_index offsets = model_index_make(it->dtypes[3], 1, &it->num_seqs, it->offsets);
    const struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .block_table = table.tensor,
        .seq_lens = lengths.tensor,
        .seq_offsets = it->has_offsets ? offsets.tensor : (struct pkv_tensor){0},
        .query_start_loc = starts.tensor,
        .num_shared_tokens = it->num_shared};
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_paged_attention_plan *plan = NULL;
    struct pkv_step *step = NULL;
    enum pkv_status status =
        pkv_paged_attention_plan_create(&plan, it->context, cache, &options, &error);
    require((status == PKV_STATUS_OK) == plan_is_good(it), "a plan is made exactly when it can be");
    if (status == PKV_STATUS_OK) {
        require(pkv_step_create(&step, NULL, NULL) == PKV_STATUS_OK, "a step can be made");
        status = pkv_step_set(it->context, step, cache, &indices, &error);
        require((status == PKV_STATUS_OK) == step_is_good(it),
                "a step is set exactly when it can be");
    }
    if (status == PKV_STATUS_OK) {
        status = run(it, plan, step, cache, tensors, &error);
        require((status == PKV_STATUS_OK) == (it->num_rows == it->starts[it->num_seqs]),
                "a run succeeds exactly when its tensors fit");
    }
    explain(status, &error);
    pkv_step_destroy(step);
    pkv_paged_attention_plan_destroy(plan);
    model_index_free(&table);
    model_index_free(&lengths);
    model_index_free(&starts);
    model_index_free(&offsets);
    return status;
}

/* ---- The definition ---- */

static void read_rows(const struct model_part *part, const struct input *it, int64_t b, float *to) {
    const struct num_format *format = num_format_of(part->tensor.dtype);
    const int64_t size = it->sizes.block_size, row = it->sizes.num_heads * SIZE;
    for (int64_t e = 0; e < it->lengths[b] * row; e++) {
        const int64_t p = it->offsets[b] + e / row;
        const int64_t at = ref_part_index(&part->ref, it->table[b * it->width + p / size], p % size,
                                          e % row / SIZE, e % SIZE);
        to[e] = (float)num_float_of_code(
            format, num_read(format, (const char *)part->tensor.data + at * format->bytes));
    }
}

static void check_row(const struct input *it, struct tensors *tensors,
                      const struct attn_ref_seq *seq, int64_t i, int64_t row) {
    const struct num_format *format = num_format_of(it->ref.out_dtype);
    for (int64_t h = 0; h < it->ref.num_heads; h++) {
        double out[SIZE], bounds[SIZE];
        struct attn_ref_row wanted = {.out = out, .bounds = bounds};
        attn_ref_row(&it->ref, seq, i, h, &wanted);
        for (int64_t d = 0; d < SIZE; d++) {
            const uint32_t code =
                num_read(format, row_element(&tensors->out, tensors->out.memory.data, row, h, d));
            require(fabs(num_float_of_code(format, code) - out[d]) <= bounds[d],
                    "out is what the definition says");
            num_write(format, row_element(&tensors->out, tensors->out.shadow, row, h, d), code);
        }
        if (it->has_lse) {
            const double lse =
                (double)((const float *)tensors->lse.data)[row * it->ref.num_heads + h];
            require(lse == wanted.lse || fabs(lse - wanted.lse) <= wanted.lse_bound,
                    "the log-sum-exp is what the definition says");
        }
    }
}

static void check_sequence(const struct input *it, const struct model_cache *cache,
                           struct tensors *tensors, int64_t b) {
    static float query[MAX_TOKENS * MAX_HEADS * SIZE];
    static float keys[MAX_TOKENS * 2 * SIZE], values[MAX_TOKENS * 2 * SIZE];
    const struct num_format *format = num_format_of(it->query_dtype);
    const int64_t first = it->starts[b], count = it->starts[b + 1] - first;
    const int64_t heads = it->ref.num_heads;
    const struct attn_ref_seq seq = {
        .num_queries = count,
        .num_tokens = it->lengths[b],
        .query = query,
        .key = keys,
        .value = values,
        .mask = it->mask_width > 0 ? tensors->bias + first * it->mask_width : NULL,
        .mask_width = it->mask_width > 0 ? it->mask_width : 0};
    read_rows(&cache->key, it, b, keys);
    read_rows(&cache->value, it, b, values);
    for (int64_t e = 0; e < count * heads * SIZE; e++)
        query[e] = (float)num_float_of_code(
            format,
            num_read(format, row_element(&tensors->query, tensors->query.memory.data,
                                         first + e / SIZE / heads, e / SIZE % heads, e % SIZE)));
    for (int64_t i = 0; i < count; i++)
        check_row(it, tensors, &seq, i, first + i);
}

static void check_outputs(const struct input *it, const struct model_cache *cache,
                          struct tensors *tensors, enum pkv_status status) {
    const unsigned char *lse = tensors->lse.data;
    for (int64_t b = 0; b < it->num_seqs && status == PKV_STATUS_OK; b++)
        check_sequence(it, cache, tensors, b);
    for (size_t i = 0; i < tensors->lse.bytes && status != PKV_STATUS_OK; i++)
        require(lse[i] == 0x55, "a refused call writes no log-sum-exp");
    require(model_rows_are_as_expected(&tensors->out), "nothing but rows of out is written");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tensors tensors;
    struct bytes in = {data, size};
    struct input it;
    take_input(&in, &it);
    struct test_rng rng = test_rng_make(it.seed);
    struct model_cache model = model_cache_make(&it.sizes, &rng);
    const struct pkv_cache_options options = model_cache_options(&model);
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    fill_part(&model.key, &rng);
    fill_part(&model.value, &rng);
    for (int i = 0; i < model.num_memories; i++)
        test_guard_protect(&model.memories[i]);
    require(pkv_cache_init(&cache, &model.key.tensor, &model.value.tensor, &options, NULL) ==
                PKV_STATUS_OK,
            "a right description is taken");
    make_tensors(&it, &tensors, &rng);
    check_outputs(&it, &model, &tensors, call(&it, &cache, &tensors));
    free_tensors(&tensors);
    model_cache_free(&model);
    return 0;
}
