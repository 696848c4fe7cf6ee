/* SPDX-License-Identifier: MIT
 *
 * What the families of the attention kernels share: keys and values in memory with forbidden OS
 * pages around it, arrays of floats between canaries, numbers of several styles. Comparing is the
 * families' own work.
 */
#ifndef PAGEDKV_TESTS_CHECK_ATTENTION_H
#define PAGEDKV_TESTS_CHECK_ATTENTION_H

#include <math.h>

#include "checkkern.h"

/* Half a unit in the last place of 1: the relative error of one rounding to float32. */
#define ATTENTION_ULP 0x1p-24

/* The error of one rounding to a denormal float32. */
#define ATTENTION_TINY 0x1p-149

enum {
    ATTENTION_MAX_STRIDE = PKV_ATTENTION_MAX_HEAD_SIZE + 64,
    ATTENTION_MAX_HEADS = 8,
    /* Larger cases than these many products are rare: they would find nothing else. */
    ATTENTION_MANY_PRODUCTS = 60000
};

/* Numbers of middling size; of all exponents that cannot overflow a sum; denormal ones; middling
 * with some that are infinite or not a number. */
enum attention_style {
    ATTENTION_PLAIN,
    ATTENTION_WILD,
    ATTENTION_TINY_NUMBERS,
    ATTENTION_SPECIAL,
    ATTENTION_NUM_STYLES
};

/* The case that runs. It has one head, unless its family gives it more: num_rows are then those of
 * each, and those of head h begin at row h * head_rows. */
struct attention_case {
    const char *group;
    int64_t head_size, num_rows, num_tokens, stride;
    int style;
    int64_t num_heads, head_rows;
};

extern struct attention_case attention_now;

void attention_describe(void);

extern const char *const attention_type_names[PKV_NUM_ATTENTION_TYPES];

static inline int64_t attention_bytes(int type) {
    return type == PKV_ATTENTION_F32 ? 4 : 2;
}

static inline int64_t attention_padded(int64_t head_size) {
    return (head_size + PKV_ATTENTION_PAD - 1) / PKV_ATTENTION_PAD * PKV_ATTENTION_PAD;
}

float attention_decode(int type, const char *element);
float attention_random(struct test_rng *rng, int style);

/* ---- keys or values ---- */

/* The rows of a tile, in a buffer of their own, and those that are read after them, as the kernels
 * get them. */
struct attention_rows {
    const struct kern_buffer *data, *offsets, *then_offsets;
    struct pkv_attention_tokens tokens, then;
};

void attention_rows_make(struct attention_rows *rows, const char *name, const char *offsets_name,
                         const char *then_name);

/* Gives every token and head of attention_now a row: the heads of a token or some tokens of a head
 * side by side or apart, tokens in any order, all against an end of the buffer or anywhere; some
 * tokens share a place if repeats. */
void attention_rows_place(struct attention_rows *rows, struct test_rng *rng, int type,
                          bool repeats);

/* Invents what is read after them: other heads and tokens of another size, forbidden rows, the same
 * rows, or NULL. */
const struct pkv_attention_tokens *attention_rows_then(struct attention_rows *rows,
                                                       struct test_rng *rng);

char *attention_rows_at(const struct attention_rows *rows, int64_t head, int64_t token);

/* Fills them with numbers of the style of attention_now; of a special style, some rows hold what is
 * not finite: those in `poisoned`, nullable: [head][num_tokens]. */
void attention_rows_fill(const struct attention_rows *rows, struct test_rng *rng, int type,
                         bool *poisoned);

/* The same rows at other places. */
void attention_rows_move(struct attention_rows *to, const struct attention_rows *from,
                         struct test_rng *rng, int type);

/* Those of a head as float: floats[token * head_size + element]. */
void attention_rows_decode(const struct attention_rows *rows, int type, int64_t head,
                           float *floats);

/* ---- float arrays ---- */

/* An array between canaries; data is aligned to 64 bytes. */
struct attention_floats {
    const struct kern_buffer *buffer;
    float *data;
    int64_t count;
};

void attention_floats_make(struct attention_floats *floats, const char *name, int64_t max_count);

/* Places count floats against the start or the end of the buffer, or between; everything is a
 * canary then. */
void attention_floats_place(struct attention_floats *floats, struct test_rng *rng, int64_t count);

/* Fails the kernel unless every canary outside of the array lives. */
void attention_floats_check(const struct attention_floats *floats);

/* Fails the kernel unless this element of the array, which is not to be written, is still a
 * canary. */
void attention_floats_check_one(const struct attention_floats *floats, int64_t index);

/* The same of elements [first, end). */
void attention_floats_check_some(const struct attention_floats *floats, int64_t first, int64_t end);

/* Fails the kernel unless this element of the array, which is to be written, no longer is a
 * canary. */
void attention_floats_check_written(const struct attention_floats *floats, int64_t index);

/* As the dot products of bfloat16 see numbers and leave them. */
static inline float attention_without_denormals(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* The bfloat16 that they take for a float. */
uint32_t attention_dot_code(float x);

/* Equal in all that can reach an output: neither the sign of a zero nor the bits of what is not a
 * number can. */
static inline bool attention_same(float a, float b) {
    return a == b || (a != a && b != b);
}

/* ---- other calls of the same kernel ---- */

/* Some of the rows and a number of tokens of attention_now. */
struct attention_part {
    int64_t first_row, num_rows, num_tokens;
};

/* One row, all of them, or some; any number of tokens that has the first needs(row) of each. */
struct attention_part attention_random_part(struct test_rng *rng, int64_t (*needs)(int64_t row));

/* Fails the kernel unless `count` results of row r are in the call of a part what they are in the
 * call of all. */
void attention_compare_row(const char *name, const float *is, const float *should, int64_t count,
                           int64_t r, const struct attention_part *part);

/* ---- sizes ---- */

/* Calls run(kern) for every head size with several numbers of rows and tokens, for every number of
 * tokens, and for every small number of rows with every tail of tokens; attention_now says
 * which. */
void attention_sizes(const struct kern *kern, void (*run)(const struct kern *kern));

#endif
