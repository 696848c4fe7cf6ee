/* SPDX-License-Identifier: MIT
 *
 * See check_attention.h.
 */
#include "check_attention.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <pagedkv/tensor.h>

#include "numbers.h"

enum {
    MAX_GAP = 9,
    MAX_BLOCK = 32, /* of tokens; or all of them are one block */
    ROWS_BYTES = (PKV_ATTENTION_TILE + MAX_BLOCK) * ATTENTION_MAX_HEADS *
                 (PKV_ATTENTION_MAX_HEAD_SIZE + MAX_GAP) * 4
};

/* A canary is a signalling NaN, so that a kernel that reads one shows it. */
static const uint32_t canary = UINT32_C(0x7fa5a5a5);

struct attention_case attention_now;

const char *const attention_type_names[PKV_NUM_ATTENTION_TYPES] = {"f32", "f16", "bf16"};

static const struct num_format *format_of(int type) {
    static const int32_t dtypes[PKV_NUM_ATTENTION_TYPES] = {PKV_DTYPE_F32, PKV_DTYPE_F16,
                                                            PKV_DTYPE_BF16};
    return num_format_of(dtypes[type]);
}

void attention_describe(void) {
    static const char *const styles[ATTENTION_NUM_STYLES] = {
        "middling numbers", "wild numbers", "denormal numbers", "numbers, some not finite"};
    printf("%s: head_size %" PRId64 ", %" PRId64 " rows, %" PRId64 " tokens, stride %" PRId64
           ", %s",
           attention_now.group, attention_now.head_size, attention_now.num_rows,
           attention_now.num_tokens, attention_now.stride, styles[attention_now.style]);
}

/* ---- numbers ---- */

float attention_decode(int type, const char *element) {
    const uint32_t code = num_read(format_of(type), element);
    const uint32_t bits = type == PKV_ATTENTION_F32 ? code : code << 16;
    float value;
    if (type == PKV_ATTENTION_F16)
        return (float)num_float_of_code(format_of(type), code);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

uint32_t attention_dot_code(float x) {
    return num_code_of_float(format_of(PKV_ATTENTION_BF16), attention_without_denormals(x));
}

static uint32_t special_code(const struct num_format *format, struct test_rng *rng) {
    const uint32_t infinity = format->max_finite + 1;
    const uint32_t sign = UINT32_C(1) << (format->bytes * 8 - 1);
    const uint32_t codes[] = {infinity, infinity | sign, format->nan, format->nan | sign,
                              infinity | 1};
    return PICK(rng, codes);
}

static uint32_t random_code(const struct num_format *format, struct test_rng *rng, int style) {
    const uint32_t bits = (uint32_t)test_rng_next(rng);
    const uint32_t sign = UINT32_C(1) << (format->bytes * 8 - 1);
    const uint32_t mantissa = (UINT32_C(1) << format->mantissa_bits) - 1;
    const int wild = format->bias > 15 ? 40 : 14;
    const int64_t exponent = style == ATTENTION_TINY_NUMBERS ? test_rng_below(rng, 3)
                             : style == ATTENTION_WILD
                                 ? test_rng_between(rng, format->bias - wild, format->bias + wild)
                                 : test_rng_between(rng, format->bias - 4, format->bias + 1);
    return (bits & (sign | mantissa)) | (uint32_t)exponent << format->mantissa_bits;
}

float attention_random(struct test_rng *rng, int style) {
    char element[4];
    num_write(format_of(PKV_ATTENTION_F32), element,
              random_code(format_of(PKV_ATTENTION_F32), rng, style));
    return attention_decode(PKV_ATTENTION_F32, element);
}

/* ---- keys or values ---- */

void attention_rows_make(struct attention_rows *rows, const char *name, const char *offsets_name,
                         const char *then_name) {
    rows->data = kern_buffer_make(name, ROWS_BYTES);
    rows->offsets = kern_buffer_make(offsets_name, PKV_ATTENTION_TILE * 8);
    rows->then_offsets = kern_buffer_make(then_name, PKV_ATTENTION_TILE * 8);
}

static int64_t *last_offsets(const struct kern_buffer *buffer, int64_t count) {
    return (int64_t *)(void *)(buffer->data + buffer->bytes - count * 8);
}

static int64_t random_gap(struct test_rng *rng, int64_t bytes) {
    return bytes * (test_rng_below(rng, 2) * test_rng_below(rng, MAX_GAP));
}

/* Finds room for rows of elements of `bytes`. The caller says how many there are. Memory is blocks
 * of tokens: in a block the heads of a token lie together, or the tokens of a head. */
static void place_tokens(struct pkv_attention_tokens *tokens, int64_t *offsets,
                         const struct kern_buffer *data, struct test_rng *rng, int64_t bytes,
                         bool repeats) {
    const int64_t num_tokens = tokens->num_tokens, num_heads = tokens->num_heads;
    const int64_t largest = num_tokens < MAX_BLOCK ? num_tokens : MAX_BLOCK;
    const int64_t block =
        test_rng_below(rng, 3) == 0 ? num_tokens : test_rng_between(rng, 1, largest);
    const bool heads_together = test_rng_below(rng, 2) == 0;
    const int64_t near = tokens->row_bytes + random_gap(rng, bytes);
    const int64_t far = ((heads_together ? num_heads : block) - 1) * near + tokens->row_bytes +
                        random_gap(rng, bytes);
    const int64_t block_stride = (heads_together ? block : num_heads) * far;
    const int64_t token_stride = heads_together ? far : near;
    const int64_t head_stride = heads_together ? near : far;
    const int64_t last =
        (num_tokens - 1) / block * block_stride + (num_tokens - 1) % block * token_stride;
    const int64_t room = data->bytes - last - (num_heads - 1) * head_stride - tokens->row_bytes;
    const int64_t kind = test_rng_below(rng, 3);
    const int64_t first = kind == 0   ? 0
                          : kind == 1 ? room
                                      : test_rng_below(rng, room / bytes + 1) * bytes;
    const int64_t base = test_rng_below(rng, 2) * test_rng_below(rng, data->bytes);
    const bool is_sorted = test_rng_below(rng, 3) == 0;
    int64_t order[PKV_ATTENTION_TILE];
    test_rng_permutation(rng, order, num_tokens);
    for (int64_t t = 0; t < num_tokens; t++) {
        const int64_t place = repeats && test_rng_below(rng, 4) == 0
                                  ? test_rng_below(rng, num_tokens)
                                  : (is_sorted ? t : order[t]);
        offsets[t] = first + place / block * block_stride + place % block * token_stride - base;
    }
    tokens->base = (const char *)data->data + base;
    tokens->offsets = offsets;
    tokens->head_stride = head_stride;
    tokens->heads_together = heads_together;
}

void attention_rows_place(struct attention_rows *rows, struct test_rng *rng, int type,
                          bool repeats) {
    const int64_t bytes = attention_bytes(type);
    rows->tokens = (struct pkv_attention_tokens){.num_tokens = attention_now.num_tokens,
                                                 .num_heads = attention_now.num_heads,
                                                 .row_bytes = attention_now.head_size * bytes};
    place_tokens(&rows->tokens, last_offsets(rows->offsets, attention_now.num_tokens), rows->data,
                 rng, bytes, repeats);
}

const struct pkv_attention_tokens *attention_rows_then(struct attention_rows *rows,
                                                       struct test_rng *rng) {
    struct pkv_attention_tokens *then = &rows->then;
    const int64_t kind = test_rng_below(rng, 6);
    if (kind < 2)
        return kind == 0 ? NULL : &rows->tokens;
    then->num_tokens = test_rng_between(rng, 1, PKV_ATTENTION_TILE);
    then->num_heads = test_rng_between(rng, 1, ATTENTION_MAX_HEADS);
    then->row_bytes = test_rng_below(rng, 2) == 0
                          ? rows->tokens.row_bytes
                          : 2 * test_rng_between(rng, 1, 2 * PKV_ATTENTION_MAX_HEAD_SIZE);
    int64_t *offsets = last_offsets(rows->then_offsets, then->num_tokens);
    place_tokens(then, offsets, rows->data, rng, 2, false);
    then->is_for_dots = test_rng_below(rng, 2) == 0;
    then->short_turns = test_rng_below(rng, 2) == 0;
    if (kind == 2) {
        /* Forbidden: rows may be fetched, but not read. */
        then->base = (const char *)rows->data->data;
        for (int64_t t = 0; t < then->num_tokens; t++)
            offsets[t] = -test_rng_between(rng, 1, 4000);
    }
    return then;
}

char *attention_rows_at(const struct attention_rows *rows, int64_t head, int64_t token) {
    return (char *)rows->data->data + (rows->tokens.base - (const char *)rows->data->data) +
           rows->tokens.offsets[token] + head * rows->tokens.head_stride;
}

void attention_rows_fill(const struct attention_rows *rows, struct test_rng *rng, int type,
                         bool *poisoned) {
    const struct num_format *format = format_of(type);
    const int64_t bytes = attention_bytes(type), num_tokens = rows->tokens.num_tokens;
    for (int64_t i = 0; i < rows->tokens.num_heads * num_tokens; i++) {
        char *row = attention_rows_at(rows, i / num_tokens, i % num_tokens);
        const bool is_poisoned =
            attention_now.style == ATTENTION_SPECIAL && test_rng_below(rng, 5) == 0;
        const bool everywhere = is_poisoned && test_rng_below(rng, 2) == 0;
        for (int64_t d = 0; d < attention_now.head_size; d++)
            num_write(format, row + d * bytes,
                      everywhere ? special_code(format, rng)
                                 : random_code(format, rng, attention_now.style));
        if (is_poisoned)
            num_write(format, row + test_rng_below(rng, attention_now.head_size) * bytes,
                      special_code(format, rng));
        if (poisoned)
            poisoned[i] = is_poisoned;
    }
}

void attention_rows_move(struct attention_rows *to, const struct attention_rows *from,
                         struct test_rng *rng, int type) {
    attention_rows_place(to, rng, type, false);
    for (int64_t h = 0; h < from->tokens.num_heads; h++) {
        for (int64_t t = 0; t < from->tokens.num_tokens; t++)
            memcpy(attention_rows_at(to, h, t), attention_rows_at(from, h, t),
                   (size_t)from->tokens.row_bytes);
    }
}

void attention_rows_decode(const struct attention_rows *rows, int type, int64_t head,
                           float *floats) {
    for (int64_t t = 0; t < rows->tokens.num_tokens; t++) {
        const char *row = attention_rows_at(rows, head, t);
        for (int64_t d = 0; d < attention_now.head_size; d++)
            *floats++ = attention_decode(type, row + d * attention_bytes(type));
    }
}

/* ---- float arrays ---- */

void attention_floats_make(struct attention_floats *floats, const char *name, int64_t max_count) {
    floats->buffer = kern_buffer_make(name, max_count * (int64_t)sizeof(float));
}

static int64_t buffer_floats(const struct attention_floats *floats) {
    return floats->buffer->bytes / (int64_t)sizeof(float);
}

void attention_floats_place(struct attention_floats *floats, struct test_rng *rng, int64_t count) {
    enum { LINE = 16 };
    const int64_t room = buffer_floats(floats) / LINE - (count + LINE - 1) / LINE;
    const int64_t kind = test_rng_below(rng, 3);
    const int64_t line = kind == 0 ? 0 : kind == 1 ? room : test_rng_below(rng, room + 1);
    uint32_t *all = (void *)floats->buffer->data;
    for (int64_t i = 0; i < buffer_floats(floats); i++)
        all[i] = canary;
    floats->data = (float *)(void *)floats->buffer->data + line * LINE;
    floats->count = count;
}

static bool is_canary(const struct attention_floats *floats, int64_t index) {
    uint32_t bits;
    memcpy(&bits, floats->data + index, sizeof(bits));
    return bits == canary;
}

void attention_floats_check_one(const struct attention_floats *floats, int64_t index) {
    if (!is_canary(floats, index))
        kern_fail("wrote float %" PRId64 " of %s, which has %" PRId64 " and not all to be written",
                  index, floats->buffer->name, floats->count);
}

void attention_floats_check_written(const struct attention_floats *floats, int64_t index) {
    if (is_canary(floats, index))
        kern_fail("did not write float %" PRId64 " of %s", index, floats->buffer->name);
}

void attention_floats_check_some(const struct attention_floats *floats, int64_t first,
                                 int64_t end) {
    if (first >= end)
        return;
    attention_floats_check_one(floats, first);
    /* Quick as long as all are like the first one. */
    const float *from = floats->data + first;
    if (memcmp(from, from + 1, (size_t)(end - first - 1) * sizeof(float)) == 0)
        return;
    for (int64_t i = first; i < end; i++)
        attention_floats_check_one(floats, i);
}

void attention_floats_check(const struct attention_floats *floats) {
    const int64_t first = floats->data - (float *)(void *)floats->buffer->data;
    attention_floats_check_some(floats, -first, 0);
    attention_floats_check_some(floats, floats->count, buffer_floats(floats) - first);
}

/* ---- other calls of the same kernel ---- */

struct attention_part attention_random_part(struct test_rng *rng, int64_t (*needs)(int64_t row)) {
    struct attention_part part = {0, attention_now.num_rows, attention_now.num_tokens};
    const int64_t kind = test_rng_below(rng, 3);
    if (kind > 0) {
        part.first_row = test_rng_below(rng, attention_now.num_rows);
        part.num_rows =
            kind == 1 ? 1 : test_rng_between(rng, 1, attention_now.num_rows - part.first_row);
    }
    int64_t low = 1;
    for (int64_t r = 0; r < part.num_rows; r++) {
        const int64_t needed = needs(part.first_row + r);
        low = needed > low ? needed : low;
    }
    part.num_tokens =
        test_rng_below(rng, 2) == 0 ? low : test_rng_between(rng, low, attention_now.num_tokens);
    return part;
}

void attention_compare_row(const char *name, const float *is, const float *should, int64_t count,
                           int64_t r, const struct attention_part *part) {
    for (int64_t i = 0; i < count; i++) {
        if (!attention_same(is[i], should[i]))
            kern_fail("%s[%" PRId64 "][%" PRId64 "] is %.9g in a call of rows %" PRId64
                      " ... %" PRId64 " with %" PRId64 " tokens, %.9g in the call of all",
                      name, r, i, (double)is[i], part->first_row,
                      part->first_row + part->num_rows - 1, part->num_tokens, (double)should[i]);
    }
}

/* ---- sizes ---- */

static const int64_t row_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,  13,  14, 15,
                                     16, 17, 18, 19, 20, 24, 31, 32, 33, 48, 64, 100, 127, 128};
static const int64_t token_counts[] = {1,   2,   3,   4,   5,   6,   7,   8,   9,  12, 15,
                                       16,  17,  23,  24,  25,  31,  32,  33,  63, 64, 65,
                                       100, 127, 128, 129, 191, 200, 254, 255, 256};
static const int64_t large_heads[] = {46,  64,  80,  96,  100, 112,
                                      128, 192, 256, 512, 575, PKV_ATTENTION_MAX_HEAD_SIZE};

/* Which of the three has to be small gives way: of two draws the smaller one, as long as the case
 * is large. */
static void run_size(const struct kern *kern, void (*run)(const struct kern *kern),
                     const char *group, int64_t head_size, int64_t num_rows, int64_t num_tokens) {
    const bool any_rows = num_rows == 0, any_tokens = num_tokens == 0, any_head = head_size == 0;
    const bool may_be_large = test_rng_below(kern->rng, 100) == 0;
    for (int attempt = 0; attempt < 40; attempt++) {
        if (any_rows)
            num_rows = PICK(kern->rng, row_counts);
        if (any_tokens)
            num_tokens = PICK(kern->rng, token_counts);
        if (any_head)
            head_size = test_rng_below(kern->rng, 3) == 0 ? PICK(kern->rng, large_heads)
                                                          : test_rng_between(kern->rng, 1, 40);
        if (may_be_large || head_size * num_rows * num_tokens < ATTENTION_MANY_PRODUCTS)
            break;
    }
    attention_now = (struct attention_case){
        .group = group,
        .head_size = head_size,
        .num_rows = num_rows,
        .num_tokens = num_tokens,
        .stride = attention_padded(head_size) + 16 * test_rng_below(kern->rng, 4),
        .style = (int)test_rng_below(kern->rng, ATTENTION_NUM_STYLES),
        .num_heads = 1,
        .head_rows = num_rows};
    kern_count_case();
    run(kern);
}

void attention_sizes(const struct kern *kern, void (*run)(const struct kern *kern)) {
    enum { SMALL_HEADS = 40, ALL_ROWS = 20 };
    for (int64_t i = 1; i <= SMALL_HEADS + COUNT(large_heads); i++) {
        const int64_t head_size = i <= SMALL_HEADS ? i : large_heads[i - SMALL_HEADS - 1];
        for (int repeat = 0; repeat < 6; repeat++)
            run_size(kern, run, "every head size", head_size, 0, 0);
    }
    for (int64_t num_tokens = 1; num_tokens <= PKV_ATTENTION_TILE; num_tokens++)
        run_size(kern, run, "every number of tokens", 0, 0, num_tokens);
    for (int64_t i = 0; i < COUNT(row_counts); i++) {
        for (int64_t k = 0; k < COUNT(token_counts); k += row_counts[i] <= ALL_ROWS ? 1 : 5)
            run_size(kern, run, "every number of rows", 0, row_counts[i], token_counts[k]);
    }
}
