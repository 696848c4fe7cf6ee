/* SPDX-License-Identifier: MIT
 *
 * The order in which attention reads the tokens of a tile, and the lines that it fetches meanwhile:
 * every row once, those of a block before the next block, and fetched in the order in which they
 * are read. What is fetched has no effect on results, so it is recorded here instead. Addresses are
 * numbers; nothing lies there.
 */
#include "check.h"
#include "rng.h"

#include <stdbool.h>

#include "attention_places.h"

#include "kernels/template/attention_order.h"

enum { MAX_ROWS = MAX_TOKENS * MAX_HEADS };

/* Rows in some order. */
struct rows {
    int64_t count;
    struct {
        int64_t head, token;
    } row[MAX_ROWS];
};

static void read_all(struct rows *rows, const struct pkv_attention_tokens *tokens, int64_t apart,
                     int64_t together) {
    struct step step = first_step(tokens, apart, together);
    rows->count = 0;
    do {
        assert_true(step.first < step.end && step.end - step.first <= step.width);
        assert_true(step.end <= tokens->num_tokens && step.turn.head < tokens->num_heads);
        for (int64_t t = step.first; t < step.end; t++) {
            assert_true(rows->count < MAX_ROWS);
            rows->row[rows->count].head = step.turn.head;
            rows->row[rows->count++].token = t;
        }
    } while (next_step(&step, tokens));
}

/* Every row once, the tokens of a head in ascending order. */
static void check_rows(const struct rows *rows, const struct pkv_attention_tokens *tokens) {
    int64_t next[MAX_HEADS] = {0};
    assert_int_equal(rows->count, tokens->num_heads * tokens->num_tokens);
    for (int64_t i = 0; i < rows->count; i++)
        assert_int_equal(rows->row[i].token, next[rows->row[i].head]++);
}

static void place_any(struct place *place, struct test_rng *rng, bool heads_together) {
    static const int64_t sizes[] = {1, 5, 8, 16, 32, 48, 64, 100, 128, 256};
    place_blocks(place, rng, sizes[test_rng_below(rng, 10)], test_rng_between(rng, 1, MAX_TOKENS),
                 heads_together);
}

static void test_every_row_is_read_once(void **state) {
    (void)state;
    struct test_rng rng = test_rng_make(1);
    static struct place place;
    static struct rows rows;
    for (int n = 0; n < 2000; n++) {
        place_any(&place, &rng, n % 2 == 0);
        read_all(&rows, &place.tokens, n % 3 == 0 ? 16 : STEP_APART, STEP_TOGETHER);
        check_rows(&rows, &place.tokens);
    }
}

/* One block behind the other, and a row between them; the tokens of a head side by side. */
static struct pkv_attention_tokens side_by_side(int64_t *offsets, int64_t block_size,
                                                int64_t row_bytes, bool short_turns) {
    for (int64_t t = 0; t < MAX_TOKENS; t++)
        offsets[t] = (t / block_size * (MAX_HEADS * block_size + 1) + t % block_size) * row_bytes;
    return (struct pkv_attention_tokens){
        .base = (const char *)(uintptr_t)0x200000000000,
        .offsets = offsets,
        .num_tokens = MAX_TOKENS,
        .num_heads = MAX_HEADS,
        .head_stride = block_size * row_bytes,
        .row_bytes = row_bytes,
        .short_turns = short_turns,
    };
}

/* Heads apart: where a head of a block has LONG_TURN_BYTES and more, or blocks may have short
 * turns, a block is read before the next one, else a head. */
static void test_blocks_are_read_in_order(void **state) {
    (void)state;
    static struct rows rows;
    static int64_t offsets[MAX_TOKENS];
    static const struct {
        int64_t block_size, row_bytes;
        bool short_turns, has_turns;
    } cases[] = {{128, 256, false, true}, {64, 256, false, true},   {32, 256, false, true},
                 {64, 128, false, true},  {16, 256, false, false},  {32, 128, false, false},
                 {8, 4096, false, false}, {48, 1024, false, false}, {128, 256, true, true},
                 {16, 256, true, true},   {32, 128, true, true},    {64, 64, true, true}};
    for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
        const int64_t block_size = cases[n].block_size, row_bytes = cases[n].row_bytes;
        const int64_t num_blocks = (MAX_TOKENS + block_size - 1) / block_size;
        const struct pkv_attention_tokens tokens =
            side_by_side(offsets, block_size, row_bytes, cases[n].short_turns);
        int64_t num_steps_back = 0;
        read_all(&rows, &tokens, STEP_APART, STEP_TOGETHER);
        check_rows(&rows, &tokens);
        for (int64_t i = 1; i < rows.count; i++)
            num_steps_back += address_of(&tokens, rows.row[i].head, rows.row[i].token) !=
                              address_of(&tokens, rows.row[i - 1].head, rows.row[i - 1].token) +
                                  (uintptr_t)row_bytes;
        assert_int_equal(num_steps_back,
                         cases[n].has_turns ? num_blocks - 1 : num_blocks * MAX_HEADS - 1);
    }
}

/* Short turns of blocks of another size: 16 tokens of each head, or what is left of a block if it
 * ends where one does. */
static void test_short_turns_have_16_tokens(void **state) {
    (void)state;
    static struct rows rows;
    static int64_t offsets[MAX_TOKENS];
    static const int64_t sizes[] = {1, 2, 4, 5, 8, 20, 48, 100};
    for (size_t n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {
        const struct pkv_attention_tokens tokens = side_by_side(offsets, sizes[n], 256, true);
        read_all(&rows, &tokens, STEP_APART, STEP_TOGETHER);
        check_rows(&rows, &tokens);
        for (int64_t i = 0, first = 0; i < rows.count; first = rows.row[i - 1].token + 1) {
            const int64_t block_end = (first / sizes[n] + 1) * sizes[n];
            const int64_t end = block_end < MAX_TOKENS ? block_end : MAX_TOKENS;
            const int64_t turn = end % 16 == 0 ? end - first : 16;
            for (int64_t head = 0; head < MAX_HEADS; head++) {
                for (int64_t t = first; t < first + turn; t++, i++) {
                    assert_int_equal(rows.row[i].head, head);
                    assert_int_equal(rows.row[i].token, t);
                }
            }
        }
    }
}

/* In the order of memory, tokens of heads that lie together come whole. */
static void fetch_order(struct rows *rows, const struct pkv_attention_tokens *tokens) {
    read_all(rows, tokens, 1, 1);
}

/* The lines of the rows from `first` on, in their order, from fetches[*at] on. */
static void check_fetched(const struct rows *rows, int64_t first,
                          const struct pkv_attention_tokens *tokens, int64_t *at) {
    for (int64_t i = first; i < rows->count; i++) {
        const uintptr_t row = address_of(tokens, rows->row[i].head, rows->row[i].token);
        const uintptr_t end = row + (uintptr_t)tokens->row_bytes;
        for (uintptr_t line = row; line < end; line += ATTENTION_LINE_BYTES) {
            assert_true(*at < num_fetches);
            assert_true(fetches[*at] == line);
            (*at)++;
        }
    }
}

static void test_rows_are_fetched_in_order(void **state) {
    (void)state;
    struct test_rng rng = test_rng_make(2);
    static struct place place, next;
    static struct rows rows;
    for (int n = 0; n < 10000; n++) {
        place_any(&place, &rng, n % 2 == 0);
        place_any(&next, &rng, n % 4 < 2);
        place.tokens.is_cached = n % 16 == 7;
        if (place.tokens.row_bytes % ATTENTION_LINE_BYTES != 0 ||
            next.tokens.row_bytes % ATTENTION_LINE_BYTES != 0)
            continue; /* rows that share lines */
        const struct pkv_attention_tokens *tokens = &place.tokens,
                                          *then = n % 8 == 5 ? NULL : &next.tokens;
        const struct step step = first_step(tokens, STEP_APART, STEP_TOGETHER);
        const bool has_many_rows = n % 9 == 0;
        const int64_t lead = lead_of(&step, tokens, has_many_rows ? NEAR_ROWS + 1 : 1);
        assert_true(lead >= 1 && lead <= whole_lead(tokens));
        if (has_many_rows || tokens->is_cached)
            assert_int_equal(lead, whole_lead(tokens));
        num_fetches = 0;
        struct ahead ahead = look_ahead(tokens, then, lead);
        /* One line at a time, or a few. */
        const char *line = ahead.line;
        while (line < ahead.end || ahead.tokens.num_heads > 0) {
            if (n % 3 == 0)
                FETCH(&ahead, line, ATTENTION_LINE_BYTES);
            else
                FETCH(&ahead, line, 5 * ATTENTION_LINE_BYTES);
        }
        int64_t at = 0;
        fetch_order(&rows, tokens);
        check_fetched(&rows, tokens->heads_together ? lead * tokens->num_heads : lead, tokens, &at);
        if (then) {
            fetch_order(&rows, then);
            check_fetched(&rows, 0, then, &at);
        }
        assert_int_equal(at, num_fetches);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_is_read_once),
        cmocka_unit_test(test_blocks_are_read_in_order),
        cmocka_unit_test(test_short_turns_have_16_tokens),
        cmocka_unit_test(test_rows_are_fetched_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
