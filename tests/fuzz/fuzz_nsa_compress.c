/* SPDX-License-Identifier: MIT
 *
 * Any lengths, slots and block tables into the windowed compression. A call succeeds exactly when a
 * plain reading of the rules allows it, and the output then holds what the specification says; one
 * that is refused changes nothing.
 */
#include <pagedkv/pagedkv.h>

#include <string.h>

#include "bytes.h"
#include "model.h"
#include "nsa_reference.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    MAX_SEQS = 6,
    MAX_WIDTH = 6,
    MAX_BLOCKS = 5,
    MAX_PAGE = 40,
    MAX_ROWS = 8,
    ROW = 24,
    NUM_CONTEXTS = 3
};

struct input {
    int32_t dtype;
    int64_t num_blocks, page, num_heads, head_size, num_rows, window, stride, num_seqs, width;
    int64_t slots[MAX_SEQS], lengths[MAX_SEQS], table[MAX_SEQS * MAX_WIDTH];
    int32_t slot_dtype, length_dtype, table_dtype;
    struct pkv_context *context;
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
    return take_byte(in) & 1 ? PKV_DTYPE_I32 : PKV_DTYPE_I64;
}

/* A number that its dtype can hold. */
static int64_t take_index(struct bytes *in, int64_t limit, int32_t dtype) {
    const int64_t number = take_hostile(in, limit);
    return dtype == PKV_DTYPE_I32 ? (int32_t)number : number;
}

static struct input take_input(struct bytes *in) {
    struct input it = {.dtype = take_byte(in) & 1 ? PKV_DTYPE_F16 : PKV_DTYPE_BF16,
                       .num_blocks = take_between(in, 1, MAX_BLOCKS),
                       .page = take_between(in, 1, MAX_PAGE),
                       .num_heads = take_between(in, 1, 2),
                       .head_size = take_between(in, 1, ROW / 2),
                       .num_rows = take_between(in, 1, MAX_ROWS),
                       .window = 16 * take_between(in, 1, 4),
                       .num_seqs = take_between(in, 0, MAX_SEQS),
                       .width = take_between(in, 1, MAX_WIDTH),
                       .slot_dtype = take_dtype(in),
                       .length_dtype = take_dtype(in),
                       .table_dtype = take_dtype(in)};
    it.stride = 16 * take_between(in, 1, it.window / 16);
    it.context = context_number(take_between(in, 0, NUM_CONTEXTS - 1));
    for (int64_t b = 0; b < it.num_seqs; b++) {
        const int64_t capacity = it.width * it.page;
        const int64_t steps = capacity > it.window ? (capacity - it.window) / it.stride : 0;
        it.slots[b] = take_index(in, it.num_rows, it.slot_dtype);
        it.lengths[b] = take_byte(in) < 0xc0 ? it.window + it.stride * take_between(in, 0, steps)
                                             : take_index(in, capacity, it.length_dtype);
        for (int64_t i = 0; i < it.width; i++)
            it.table[b * it.width + i] = take_byte(in) < 0xf0
                                             ? take_between(in, 0, it.num_blocks - 1)
                                             : take_index(in, it.num_blocks, it.table_dtype);
    }
    return it;
}

static int completes(const struct input *it, int64_t b) {
    return it->slots[b] >= 0 && it->lengths[b] >= it->window &&
           (it->lengths[b] - it->window) % it->stride == 0;
}

static enum pkv_status expected_status(const struct input *it) {
    for (int64_t b = 0; b < it->num_seqs; b++) {
        if (it->slots[b] < 0)
            continue;
        if (it->lengths[b] < 0)
            return PKV_STATUS_INVALID_ARGUMENT;
        if (it->lengths[b] > it->width * it->page)
            return PKV_STATUS_POSITION_OUT_OF_RANGE;
        if (!completes(it, b))
            continue;
        if (it->slots[b] >= it->num_rows)
            return PKV_STATUS_SLOT_OUT_OF_RANGE;
        for (int64_t p = it->lengths[b] - it->window; p < it->lengths[b]; p++) {
            const int64_t block = it->table[b * it->width + p / it->page];
            if (block < 0 || block >= it->num_blocks)
                return PKV_STATUS_BLOCK_OUT_OF_RANGE;
        }
    }
    for (int64_t b = 0; b < it->num_seqs; b++) {
        for (int64_t other = 0; other < b; other++) {
            if (completes(it, b) && completes(it, other) && it->slots[b] == it->slots[other])
                return PKV_STATUS_DUPLICATE_SLOT;
        }
    }
    return PKV_STATUS_OK;
}

static void expect_window(const struct input *it, int64_t b, const uint16_t *input,
                          const uint16_t *weight, uint16_t *output) {
    const int64_t row = it->num_heads * it->head_size;
    uint16_t x[64], w[64];
    for (int64_t e = 0; e < row; e++) {
        for (int64_t t = 0; t < it->window; t++) {
            const int64_t p = it->lengths[b] - it->window + t;
            const int64_t block = it->table[b * it->width + p / it->page];
            x[t] = input[(block * it->page + p % it->page) * row + e];
            w[t] = weight[t * it->num_heads + e / it->head_size];
        }
        output[it->slots[b] * row + e] = nsa_ref_element(it->dtype, x, w, it->window);
    }
}

/* All tensors but the output are read only, and that is enforced. */
static enum pkv_status call(const struct input *it, const struct test_guard *input,
                            const struct test_guard *weight, const struct test_guard *output,
                            struct pkv_error *error) {
    const int64_t in_shape[4] = {it->num_blocks, it->page, it->num_heads, it->head_size};
    const int64_t weight_shape[2] = {it->window, it->num_heads};
    const int64_t out_shape[3] = {it->num_rows, it->num_heads, it->head_size};
    const int64_t table_shape[2] = {it->num_seqs, it->width};
    const struct pkv_tensor in = pkv_tensor_make(input->data, it->dtype, 4, in_shape);
    const struct pkv_tensor w = pkv_tensor_make(weight->data, it->dtype, 2, weight_shape);
    const struct pkv_tensor out = pkv_tensor_make(output->data, it->dtype, 3, out_shape);
    const struct pkv_nsa_compress_options options = {.compress_stride = it->stride};
    struct model_index slots = model_index_make(it->slot_dtype, 1, &it->num_seqs, it->slots);
    struct model_index lengths = model_index_make(it->length_dtype, 1, &it->num_seqs, it->lengths);
    struct model_index table = model_index_make(it->table_dtype, 2, table_shape, it->table);
    const enum pkv_status status = pkv_nsa_compress_with_cache(
        it->context, &in, &w, &slots.tensor, &lengths.tensor, &table.tensor, &out, &options, error);
    model_index_free(&slots);
    model_index_free(&lengths);
    model_index_free(&table);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes in = {data, size};
    struct test_rng rng = test_rng_make(take_byte(&in));
    const struct input it = take_input(&in);
    const int64_t row_bytes = it.num_heads * it.head_size * 2;
    struct test_guard input =
        test_guard_make((size_t)(it.num_blocks * it.page * row_bytes), TEST_GUARD_END);
    struct test_guard weight =
        test_guard_make((size_t)(it.window * it.num_heads * 2), TEST_GUARD_END);
    struct test_guard output = test_guard_make((size_t)(it.num_rows * row_bytes), TEST_GUARD_END);
    uint16_t expected[MAX_ROWS * ROW];
    struct pkv_error error = {.struct_size = sizeof(error)};
    char text[256];

    test_rng_fill(&rng, input.data, input.bytes);
    test_rng_fill(&rng, weight.data, weight.bytes);
    test_rng_fill(&rng, output.data, output.bytes);
    memcpy(expected, output.data, output.bytes);
    test_guard_protect(&input);
    test_guard_protect(&weight);
    const enum pkv_status status = call(&it, &input, &weight, &output, &error);
    require(status == expected_status(&it), "the status follows from the rules");
    if (status != PKV_STATUS_OK) {
        require(error.status == (int32_t)status && error.function != NULL && error.rule != NULL,
                "a refusal explains itself");
        require(pkv_error_text(&error, text, sizeof(text)) > 0, "an error has a text");
    }
    for (int64_t b = 0; b < it.num_seqs && status == PKV_STATUS_OK; b++) {
        if (completes(&it, b))
            expect_window(&it, b, input.data, weight.data, expected);
    }
    require(memcmp(output.data, expected, output.bytes) == 0, "the output is what it should be");
    test_guard_free(&input);
    test_guard_free(&weight);
    test_guard_free(&output);
    return 0;
}
