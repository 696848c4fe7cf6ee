/* SPDX-License-Identifier: MIT
 *
 * The two products of attention, query by key and weight by value: against sums in double within
 * the bound of a chain of roundings, against those chains themselves where a version promises their
 * order, and against the same kernel called for fewer heads, rows and tokens, in another order and
 * at other addresses.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <pagedkv/cpu.h>
#include <pagedkv/tensor.h>

#include "check_attention.h"
#include "numbers.h"

enum { BENCH_HEAD = 128, LEFT_OUT = 32 };

static const char *const scores_names[] = {"attention_scores_f32", "attention_scores_f16",
                                           "attention_scores_bf16"};
static const char *const values_names[] = {"attention_values_f32", "attention_values_f16",
                                           "attention_values_bf16"};

static const char *const scores_dot_name[] = {"attention_scores_dot"};
static const char *const values_dot_name[] = {"attention_values_dot"};

static struct attention_rows rows, moved;
static struct attention_floats scores, query, query_pairs, acc, weights, scratch, again;
static float given[PKV_ATTENTION_MAX_ROWS * ATTENTION_MAX_STRIDE];      /* query or weights */
static float decoded[PKV_ATTENTION_TILE * PKV_ATTENTION_MAX_HEAD_SIZE]; /* of one head */
static struct test_rng *rng;

/* Of the kernel under test: the type of its keys or values, and whether it adds by dot products of
 * bfloat16. */
static int type;
static bool is_dot;
static bool may_take_short_turns;

/* The call that runs: of some or all of the heads, rows of each head and tokens of the case. */
static struct {
    struct attention_part part;
    int64_t first_token; /* those before it are left out */
    int64_t first_head, head_rows;
    struct pkv_attention_tokens tokens;
    const struct pkv_attention_tokens *then;
} call;

static void start(const struct kern *kern, int its_type, bool has_dots, bool takes_short_turns) {
    rng = kern->rng;
    type = its_type;
    is_dot = has_dots;
    may_take_short_turns = takes_short_turns;
    if (rows.data != NULL)
        return;
    attention_rows_make(&rows, "keys or values", "offsets", "offsets of then");
    attention_rows_make(&moved, "moved keys or values", "moved offsets", "moved offsets of then");
    attention_floats_make(&scores, "scores", PKV_ATTENTION_MAX_ROWS * PKV_ATTENTION_TILE);
    attention_floats_make(&weights, "weights", PKV_ATTENTION_MAX_ROWS * PKV_ATTENTION_TILE);
    attention_floats_make(&query, "query", PKV_ATTENTION_MAX_ROWS * ATTENTION_MAX_STRIDE);
    attention_floats_make(&query_pairs, "pairs of the query",
                          PKV_ATTENTION_MAX_ROWS * ATTENTION_MAX_STRIDE);
    attention_floats_make(&acc, "acc", PKV_ATTENTION_MAX_ROWS * ATTENTION_MAX_STRIDE);
    attention_floats_make(&again, "scores or acc of another call",
                          PKV_ATTENTION_MAX_ROWS * ATTENTION_MAX_STRIDE);
    attention_floats_make(&scratch, "scratch", PKV_ATTENTION_SCRATCH);
}

static void describe(void) {
    const struct pkv_attention_tokens *tokens = &call.tokens;
    attention_describe();
    printf("\n      of %" PRId64 " heads, %" PRId64
           " rows from each to the next; called for %" PRId64 " heads from %" PRId64 " on (%" PRId64
           " bytes each, %" PRId64 " bytes from each to the next, %s%s), %" PRId64
           " rows from %" PRId64 " on, %" PRId64 " tokens from %" PRId64 " on, %s",
           attention_now.num_heads, attention_now.head_rows, tokens->num_heads, call.first_head,
           tokens->row_bytes, tokens->head_stride, tokens->heads_together ? "together" : "apart",
           tokens->short_turns ? ", short turns" : "", call.part.num_rows, call.part.first_row,
           tokens->num_tokens, call.first_token, call.then ? "then others" : "then none");
}

/* ---- heads, and parts of a case ---- */

/* More heads for half of the cases, as long as these do not become large; rows between those of the
 * heads. */
static void draw_heads(void) {
    const int64_t num_rows = attention_now.num_rows;
    const int64_t products = attention_now.head_size * num_rows * attention_now.num_tokens;
    const bool may_be_large = test_rng_below(rng, 100) == 0;
    int64_t limit = may_be_large ? ATTENTION_MAX_HEADS : ATTENTION_MANY_PRODUCTS / products;
    limit = limit < 2 ? 2 : limit < ATTENTION_MAX_HEADS ? limit : ATTENTION_MAX_HEADS;
    if (limit > PKV_ATTENTION_MAX_ROWS / num_rows)
        limit = PKV_ATTENTION_MAX_ROWS / num_rows;
    if (limit > 1 && test_rng_below(rng, 2) == 0)
        attention_now.num_heads = test_rng_between(rng, 2, limit);
    const int64_t between = PKV_ATTENTION_MAX_ROWS / attention_now.num_heads - num_rows;
    attention_now.head_rows = num_rows + test_rng_below(rng, 2) * test_rng_below(rng, between + 1);
}

/* A row of a head in the arrays of the case. */
static int64_t row_of(int64_t head, int64_t row) {
    return head * attention_now.head_rows + row;
}

/* The same in the arrays that the call writes. */
static int64_t called_row_of(int64_t head, int64_t row) {
    return head * call.head_rows + row;
}

/* Rows from the first one to the last. */
static int64_t num_case_rows(void) {
    return row_of(attention_now.num_heads - 1, attention_now.num_rows);
}

static int64_t num_called_rows(void) {
    return called_row_of(call.tokens.num_heads - 1, call.part.num_rows);
}

static void draw_whole_call(void) {
    call.part = (struct attention_part){0, attention_now.num_rows, attention_now.num_tokens};
    call.first_head = call.first_token = 0;
    call.head_rows = attention_now.head_rows;
    call.tokens = rows.tokens;
    call.tokens.short_turns = may_take_short_turns && test_rng_below(rng, 2) == 0;
    call.then = attention_rows_then(&rows, rng);
}

/* One head, all of them, or some, walked in either order; rows likewise; of the tokens at least the
 * first needs(row) of each row, without at most the first skips(row). */
static void draw_part_call(int64_t (*needs)(int64_t row), int64_t (*skips)(int64_t row)) {
    struct attention_rows *from = &rows;
    if (test_rng_below(rng, 2) == 0) {
        attention_rows_move(&moved, &rows, rng, type);
        from = &moved;
    }
    call.tokens = from->tokens;
    call.then = attention_rows_then(from, rng);
    call.first_head = 0;
    if (test_rng_below(rng, 3) > 0) {
        call.first_head = test_rng_below(rng, attention_now.num_heads);
        call.tokens.num_heads =
            test_rng_below(rng, 2) == 0
                ? 1
                : test_rng_between(rng, 1, attention_now.num_heads - call.first_head);
    }
    call.part = attention_random_part(rng, needs);
    int64_t skipped = call.part.num_tokens - 1;
    for (int64_t r = 0; r < call.part.num_rows; r++) {
        const int64_t most = skips(call.part.first_row + r);
        skipped = most < skipped ? most : skipped;
    }
    call.first_token = test_rng_below(rng, 2) * test_rng_below(rng, skipped + 1);
    call.head_rows = call.tokens.num_heads == 1 ? call.part.num_rows : attention_now.head_rows;
    call.tokens.base += call.first_head * call.tokens.head_stride;
    call.tokens.offsets += call.first_token;
    call.tokens.num_tokens = call.part.num_tokens - call.first_token;
    if (test_rng_below(rng, 2) == 0)
        call.tokens.heads_together = !call.tokens.heads_together;
    call.tokens.short_turns = may_take_short_turns && test_rng_below(rng, 2) == 0;
    call.tokens.is_cached = test_rng_below(rng, 2) == 0;
}

/* The call owns [0, end) of its rows, and has written nothing else; least of all what it was
 * given. */
static void check_written(const struct attention_floats *floats, int64_t stride, int64_t end,
                          const struct attention_floats *from) {
    attention_floats_check(floats);
    attention_floats_check(&scratch);
    if (memcmp(given, from->data, (size_t)from->count * sizeof(float)) != 0)
        kern_fail("wrote into %s", from->buffer->name);
    for (int64_t i = 0; i < num_called_rows(); i++) {
        const bool is_between = i % call.head_rows >= call.part.num_rows;
        const int64_t first = i * stride + (is_between ? 0 : end), behind = (i + 1) * stride;
        attention_floats_check_some(floats, first, behind < floats->count ? behind : floats->count);
    }
}

/* The first `count` floats of every row in the call of a part are in `should`, of the call of all,
 * from float first_should of the row on. */
static void compare_part(const char *name, int64_t stride, const struct attention_floats *should,
                         int64_t should_stride, int64_t first_should, int64_t count) {
    for (int64_t h = 0; h < call.tokens.num_heads; h++) {
        for (int64_t r = 0; r < call.part.num_rows; r++) {
            const int64_t row = row_of(call.first_head + h, call.part.first_row + r);
            attention_compare_row(name, again.data + called_row_of(h, r) * stride,
                                  should->data + row * should_stride + first_should, count, row,
                                  &call.part);
        }
    }
}

/* ---- sums ---- */

/* One sum three times: in double, its magnitudes, and as chains of fused float32 steps; and the
 * magnitudes of the products in which a factor is denormal. */
struct sum {
    double sum, magnitude, denormal;
    float chains[4];
    int64_t num_steps;
};

static inline void add_exactly(struct sum *sum, float a, float b) {
    const double product = (double)a * (double)b;
    sum->sum += product;
    sum->magnitude += fabs(product);
    if (fabsf(a) < 0x1p-126f || fabsf(b) < 0x1p-126f)
        sum->denormal += fabs(product);
    sum->num_steps++;
}

static inline void add_product(struct sum *sum, int64_t chain, float a, float b) {
    add_exactly(sum, a, b);
    sum->chains[chain] = fmaf(a, b, sum->chains[chain]);
}

static float rounded_to_bf16(float x) {
    return (float)num_float_of_code(num_format_of(PKV_DTYPE_BF16), attention_dot_code(x));
}

/* A pair of neighbours, the second one first; a is rounded already. */
static void add_pair(float *chain, const float *a, const float *b, int64_t count) {
    for (int64_t i = count - 1; i >= 0; i--)
        *chain = attention_without_denormals(fmaf(a[i], attention_without_denormals(b[i]), *chain));
}

/* A dot product has one factor rounded to bfloat16 and takes what is denormal for 0. */
static double bound_of(const struct sum *sum) {
    const double num_roundings = (double)(sum->num_steps + 2);
    if (is_dot)
        return sum->magnitude * (0x1p-8 + num_roundings * ATTENTION_ULP) + sum->denormal +
               num_roundings * 0x1p-126;
    return num_roundings * (sum->magnitude * ATTENTION_ULP + ATTENTION_TINY);
}

static void compare_sum(const char *name, int64_t r, int64_t i, float is, const struct sum *sum,
                        bool has_chains) {
    const float *chains = sum->chains;
    const float wanted = ((chains[0] + chains[1]) + chains[2]) + chains[3];
    /* An infinity beside a denormal that counts as 0 is no number: there the chains alone tell. */
    if (!is_dot || !has_chains || !isinf(sum->denormal))
        kern_near(name, r, i, (double)is, sum->sum, bound_of(sum));
    if (has_chains && !attention_same(is, wanted))
        kern_fail("%s[%" PRId64 "][%" PRId64 "] is %.9g, the chains of fused steps give %.9g", name,
                  r, i, (double)is, (double)wanted);
}

/* ---- scores ---- */

static kern_fn *get_scores(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->attention_scores[index];
}

/* Where a level has none, the C version of float32 products stands in: dot products are timed
 * against it. */
static kern_fn *get_scores_dot(const struct pkv_kernels *kernels, int index) {
    struct pkv_kernels c;
    (void)index;
    pkv_kernels_init(&c, PKV_CPU_LEVEL_C);
    return (kern_fn *)(kernels->attention_scores_dot ? kernels->attention_scores_dot
                                                     : c.attention_scores[PKV_ATTENTION_BF16]);
}

/* What dot products take for a row of floats. */
static void pair_query_row(float *words, const float *row, int64_t count) {
    for (int64_t d = 0; d < count; d += 2) {
        const uint32_t high = d + 1 < count ? attention_dot_code(row[d + 1]) : 0;
        const uint32_t word = high << 16 | attention_dot_code(row[d]);
        memcpy(&words[d / 2], &word, sizeof(word));
    }
}

/* Rows between those of the heads stay canaries. */
static void fill_query(void) {
    const int64_t stride = attention_now.stride;
    const int style =
        attention_now.style == ATTENTION_TINY_NUMBERS ? ATTENTION_PLAIN : attention_now.style;
    attention_floats_place(&query, rng, num_case_rows() * stride);
    attention_floats_place(&query_pairs, rng, num_case_rows() * stride);
    for (int64_t i = 0; i < attention_now.num_heads * attention_now.num_rows; i++) {
        const int64_t at = row_of(i / attention_now.num_rows, i % attention_now.num_rows) * stride;
        float *row = query.data + at;
        for (int64_t d = 0; d < attention_now.head_size; d++)
            row[d] = attention_random(rng, style);
        if (is_dot && test_rng_below(rng, 4) == 0)
            row[test_rng_below(rng, attention_now.head_size)] =
                attention_random(rng, ATTENTION_TINY_NUMBERS);
        if (style == ATTENTION_SPECIAL && test_rng_below(rng, 8) == 0)
            row[test_rng_below(rng, attention_now.head_size)] =
                test_rng_below(rng, 2) == 0 ? NAN : -INFINITY;
        pair_query_row(query_pairs.data + at, row, attention_now.head_size);
    }
    memcpy(given, (is_dot ? query_pairs : query).data, (size_t)query.count * sizeof(float));
}

/* Whatever a row of scores has beyond the tokens may be written. Rows may be the ends of longer
 * ones, behind a number of tokens that are left out. */
static void call_scores(const struct kern *kern, struct attention_floats *to) {
    const int64_t stride = attention_now.stride;
    const struct attention_floats *from = is_dot ? &query_pairs : &query;
    const int64_t room = PKV_ATTENTION_TILE - call.tokens.num_tokens;
    const int64_t columns = PKV_ATTENTION_TILE - test_rng_below(rng, 2) *
                                                     test_rng_below(rng, room / LEFT_OUT + 1) *
                                                     LEFT_OUT;
    attention_floats_place(to, rng, (num_called_rows() - 1) * PKV_ATTENTION_TILE + columns);
    attention_floats_place(&scratch, rng, PKV_ATTENTION_SCRATCH);
    ((pkv_attention_scores_fn *)kern->tested)(
        to->data, from->data + row_of(call.first_head, call.part.first_row) * stride, stride,
        call.part.num_rows, call.head_rows, &call.tokens, call.then, attention_now.head_size,
        scratch.data);
    check_written(to, PKV_ATTENTION_TILE, columns, from);
}

/* rounded: what dot products see of the query. */
static void add_key(struct sum *sum, const float *from, const float *rounded, const float *key) {
    const int64_t head_size = attention_now.head_size, bytes = attention_bytes(type);
    for (int64_t d = 0; d < head_size; d++) {
        const int64_t chain = d * bytes / PKV_ATTENTION_QUARTER % 4;
        if (!is_dot)
            add_product(sum, chain, from[d], key[d]);
        else
            add_exactly(sum, from[d], key[d]);
        if (is_dot && d % 2 == 0)
            add_pair(&sum->chains[chain], rounded + d, key + d, d + 1 < head_size ? 2 : 1);
    }
}

static void compare_score(int64_t head, int64_t r) {
    const int64_t row = row_of(head, r), head_size = attention_now.head_size;
    const float *from = query.data + row * attention_now.stride;
    float rounded[PKV_ATTENTION_MAX_HEAD_SIZE];
    for (int64_t d = 0; is_dot && d < head_size; d++)
        rounded[d] = rounded_to_bf16(from[d]);
    for (int64_t t = 0; t < attention_now.num_tokens; t++) {
        struct sum sum = {0};
        add_key(&sum, from, rounded, decoded + t * head_size);
        compare_sum("scores", row, t, scores.data[row * PKV_ATTENTION_TILE + t], &sum, true);
    }
}

static int64_t one_token(int64_t row) {
    (void)row;
    return 1;
}

static int64_t any_tokens(int64_t row) {
    (void)row;
    return PKV_ATTENTION_TILE;
}

static void run_scores(const struct kern *kern) {
    draw_heads();
    attention_rows_place(&rows, rng, type, test_rng_below(rng, 3) == 0);
    attention_rows_fill(&rows, rng, type, NULL);
    fill_query();
    draw_whole_call();
    call_scores(kern, &scores);
    for (int64_t h = 0; h < attention_now.num_heads; h++) {
        attention_rows_decode(&rows, type, h, decoded);
        for (int64_t r = 0; r < attention_now.num_rows; r++)
            compare_score(h, r);
    }
    for (int repeat = 0; repeat < 2; repeat++) {
        draw_part_call(one_token, any_tokens);
        call_scores(kern, &again);
        compare_part("scores", PKV_ATTENTION_TILE, &scores, PKV_ATTENTION_TILE, call.first_token,
                     call.tokens.num_tokens);
    }
}

static void check_scores(const struct kern *kern) {
    start(kern, kern->index, false, false);
    attention_sizes(kern, run_scores);
}

static void check_scores_dot(const struct kern *kern) {
    start(kern, PKV_ATTENTION_BF16, kern->tested != kern->c, true);
    attention_sizes(kern, run_scores);
}

/* ---- values ---- */

static kern_fn *get_values(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->attention_values[index];
}

static kern_fn *get_values_dot(const struct pkv_kernels *kernels, int index) {
    struct pkv_kernels c;
    (void)index;
    pkv_kernels_init(&c, PKV_CPU_LEVEL_C);
    return (kern_fn *)(kernels->attention_values_dot ? kernels->attention_values_dot
                                                     : c.attention_values[PKV_ATTENTION_BF16]);
}

/* Rows that see all tokens, some of them, the first ones or none, and tokens that no row sees.
 * Weights need no alignment: they may be a part of longer rows. Rows between those of the heads
 * stay canaries. */
static void fill_weights(const bool *poisoned) {
    const int64_t num_rows = attention_now.num_rows, num_tokens = attention_now.num_tokens;
    const bool hides_poison = test_rng_below(rng, 2) == 0;
    const int64_t begin = test_rng_below(rng, 4) == 0 ? test_rng_below(rng, num_tokens) : 0;
    const int64_t count = (num_case_rows() - 1) * PKV_ATTENTION_TILE + num_tokens;
    attention_floats_place(&weights, rng, count);
    if (test_rng_below(rng, 2) == 0)
        weights.data = (float *)(void *)(weights.buffer->data + weights.buffer->bytes) - count;
    for (int64_t i = 0; i < attention_now.num_heads * num_rows; i++) {
        const int64_t head = i / num_rows, kind = test_rng_below(rng, 5);
        const int64_t end = kind == 0   ? test_rng_between(rng, 0, num_tokens)
                            : kind == 1 ? 0
                                        : num_tokens;
        float *row = weights.data + row_of(head, i % num_rows) * PKV_ATTENTION_TILE;
        for (int64_t t = 0; t < num_tokens; t++) {
            const float weight = fabsf(attention_random(rng, attention_now.style)) / 4;
            const bool is_hidden =
                poisoned[head * num_tokens + t] && (hides_poison || test_rng_below(rng, 4) > 0);
            const bool is_unseen =
                t < begin || t >= end || (kind == 2 && test_rng_below(rng, 3) == 0);
            row[t] = is_hidden || is_unseen ? 0.0f : weight;
        }
        if (attention_now.style == ATTENTION_SPECIAL && test_rng_below(rng, 10) == 0)
            row[test_rng_below(rng, num_tokens)] = NAN;
    }
    memcpy(given, weights.data, (size_t)count * sizeof(float));
}

/* Over the heads that are called. */
static int64_t last_seen(int64_t row) {
    int64_t last = 0;
    for (int64_t h = 0; h < call.tokens.num_heads; h++) {
        const float *of_row = weights.data + row_of(call.first_head + h, row) * PKV_ATTENTION_TILE;
        for (int64_t t = last; t < attention_now.num_tokens; t++) {
            if (of_row[t] != 0)
                last = t + 1;
        }
    }
    return last;
}

/* Dot products are of neighbours: another first token makes other pairs. */
static int64_t first_seen(int64_t row) {
    int64_t first = is_dot ? 0 : attention_now.num_tokens;
    for (int64_t h = 0; h < call.tokens.num_heads; h++) {
        const float *of_row = weights.data + row_of(call.first_head + h, row) * PKV_ATTENTION_TILE;
        for (int64_t t = 0; t < first; t++) {
            if (of_row[t] != 0)
                first = t;
        }
    }
    return first;
}

/* What acc holds before has no effect: canaries, or numbers, which a kernel that goes on from them
 * cannot mend like what is not finite. Returns whether they are canaries. */
static bool fill_acc(const struct attention_floats *to, int64_t stride) {
    const bool has_numbers = test_rng_below(rng, 2) == 0;
    for (int64_t i = 0; has_numbers && i < call.tokens.num_heads * call.part.num_rows; i++) {
        float *row =
            to->data + called_row_of(i / call.part.num_rows, i % call.part.num_rows) * stride;
        for (int64_t d = 0; d < attention_padded(attention_now.head_size); d++)
            row[d] = attention_random(rng, attention_now.style);
    }
    return !has_numbers;
}

static void call_values(const struct kern *kern, struct attention_floats *to, int64_t stride) {
    const int64_t padded = attention_padded(attention_now.head_size);
    attention_floats_place(to, rng, num_called_rows() * stride);
    attention_floats_place(&scratch, rng, PKV_ATTENTION_SCRATCH);
    const bool had_canaries = fill_acc(to, stride);
    ((pkv_attention_values_fn *)kern->tested)(
        to->data, stride,
        weights.data + row_of(call.first_head, call.part.first_row) * PKV_ATTENTION_TILE +
            call.first_token,
        call.part.num_rows, call.head_rows, &call.tokens, call.then, attention_now.head_size,
        scratch.data);
    check_written(to, stride, padded, &weights);
    for (int64_t i = 0; had_canaries && i < num_called_rows(); i++) {
        const bool is_between = i % call.head_rows >= call.part.num_rows;
        for (int64_t d = 0; !is_between && d < padded; d++)
            attention_floats_check_written(to, i * stride + d);
    }
}

static void compare_output(int64_t head, int64_t r) {
    const int64_t head_size = attention_now.head_size, row = row_of(head, r);
    for (int64_t d = 0; d < head_size; d++) {
        struct sum sum = {0};
        for (int64_t t = 0; t < attention_now.num_tokens; t++) {
            const float weight = weights.data[row * PKV_ATTENTION_TILE + t];
            if (weight != 0)
                add_product(&sum, 0, weight, decoded[t * head_size + d]);
        }
        compare_sum("acc", row, d, acc.data[row * attention_now.stride + d], &sum, !is_dot);
    }
}

static void run_values(const struct kern *kern) {
    bool poisoned[ATTENTION_MAX_HEADS * PKV_ATTENTION_TILE];
    draw_heads();
    attention_rows_place(&rows, rng, type,
                         attention_now.style != ATTENTION_SPECIAL && test_rng_below(rng, 3) == 0);
    attention_rows_fill(&rows, rng, type, poisoned);
    fill_weights(poisoned);
    draw_whole_call();
    call_values(kern, &acc, attention_now.stride);
    for (int64_t h = 0; h < attention_now.num_heads; h++) {
        attention_rows_decode(&rows, type, h, decoded);
        for (int64_t r = 0; r < attention_now.num_rows; r++)
            compare_output(h, r);
    }
    /* Sums of dot products that meet what is not finite are done again in another way. */
    if (is_dot && attention_now.style == ATTENTION_SPECIAL)
        return;
    for (int repeat = 0; repeat < 2; repeat++) {
        const int64_t stride =
            attention_padded(attention_now.head_size) + 16 * test_rng_below(rng, 4);
        draw_part_call(last_seen, first_seen);
        call_values(kern, &again, stride);
        compare_part("acc", stride, &acc, attention_now.stride, 0, attention_now.head_size);
    }
}

static void check_values(const struct kern *kern) {
    start(kern, kern->index, false, true);
    attention_sizes(kern, run_values);
}

static void check_values_dot(const struct kern *kern) {
    start(kern, PKV_ATTENTION_BF16, kern->tested != kern->c, true);
    attention_sizes(kern, run_values);
}

/* ---- time ---- */

static const int64_t bench_rows[] = {1, 4, 8, 16, 128};

static void time_scores(kern_fn *fn) {
    ((pkv_attention_scores_fn *)fn)(scores.data, query.data, BENCH_HEAD, attention_now.num_rows,
                                    attention_now.num_rows, &rows.tokens, NULL, BENCH_HEAD,
                                    scratch.data);
}

static void time_values(kern_fn *fn) {
    ((pkv_attention_values_fn *)fn)(acc.data, BENCH_HEAD, weights.data, attention_now.num_rows,
                                    attention_now.num_rows, &rows.tokens, NULL, BENCH_HEAD,
                                    scratch.data);
}

/* One head of a cache with a block of the tile's size, all of it in the first- or second-level
 * cache. */
static void bench_products(const struct kern *kern, void (*time)(kern_fn *)) {
    const int64_t row_bytes = BENCH_HEAD * attention_bytes(type);
    attention_now = (struct attention_case){.group = "bench",
                                            .head_size = BENCH_HEAD,
                                            .num_tokens = PKV_ATTENTION_TILE,
                                            .stride = BENCH_HEAD,
                                            .style = ATTENTION_PLAIN,
                                            .num_heads = 1};
    attention_rows_place(&rows, rng, type, false);
    int64_t *offsets =
        (int64_t *)(void *)(rows.offsets->data + rows.offsets->bytes) - PKV_ATTENTION_TILE;
    for (int64_t t = 0; t < PKV_ATTENTION_TILE; t++)
        offsets[t] = t * row_bytes;
    rows.tokens.base = (const char *)rows.data->data;
    rows.tokens.heads_together = false;
    attention_rows_fill(&rows, rng, type, NULL);
    attention_floats_place(&scratch, rng, PKV_ATTENTION_SCRATCH);
    attention_floats_place(&scores, rng, PKV_ATTENTION_MAX_ROWS * PKV_ATTENTION_TILE);
    attention_floats_place(&weights, rng, PKV_ATTENTION_MAX_ROWS * PKV_ATTENTION_TILE);
    attention_floats_place(&query, rng, PKV_ATTENTION_MAX_ROWS * BENCH_HEAD);
    attention_floats_place(&acc, rng, PKV_ATTENTION_MAX_ROWS * BENCH_HEAD);
    for (int64_t i = 0; i < weights.count; i++)
        weights.data[i] = fabsf(attention_random(rng, ATTENTION_PLAIN));
    for (int64_t i = 0; i < query.count; i++)
        query.data[i] = attention_random(rng, ATTENTION_PLAIN);
    for (int64_t i = 0; i < query.count && is_dot; i += BENCH_HEAD)
        pair_query_row(query.data + i, query.data + i, BENCH_HEAD);
    for (int64_t i = 0; i < COUNT(bench_rows); i++) {
        char shape[64];
        attention_now.num_rows = bench_rows[i];
        snprintf(shape, sizeof(shape), "%" PRId64 " rows, 256 tokens, head 128", bench_rows[i]);
        kern_time_flops(kern, shape, 2 * bench_rows[i] * PKV_ATTENTION_TILE * BENCH_HEAD, time);
    }
}

static void bench_scores(const struct kern *kern) {
    bench_products(kern, time_scores);
}

static void bench_values(const struct kern *kern) {
    bench_products(kern, time_values);
}

const struct kern_family kern_attention_scores = {.num_entries = PKV_NUM_ATTENTION_TYPES,
                                                  .names = scores_names,
                                                  .get = get_scores,
                                                  .check = check_scores,
                                                  .bench = bench_scores,
                                                  .describe = describe};
const struct kern_family kern_attention_values = {.num_entries = PKV_NUM_ATTENTION_TYPES,
                                                  .names = values_names,
                                                  .get = get_values,
                                                  .check = check_values,
                                                  .bench = bench_values,
                                                  .describe = describe};
const struct kern_family kern_attention_scores_dot = {.num_entries = 1,
                                                      .names = scores_dot_name,
                                                      .get = get_scores_dot,
                                                      .check = check_scores_dot,
                                                      .bench = bench_scores,
                                                      .describe = describe};
const struct kern_family kern_attention_values_dot = {.num_entries = 1,
                                                      .names = values_dot_name,
                                                      .get = get_values_dot,
                                                      .check = check_values_dot,
                                                      .bench = bench_values,
                                                      .describe = describe};
