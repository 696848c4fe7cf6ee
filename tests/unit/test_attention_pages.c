/* SPDX-License-Identifier: MIT
 *
 * Which pages attention touches before it reads them: all that it needs, hardly any other, and
 * those of long runs one after the other. What is touched has no effect on results, so it is
 * recorded here instead of fetched. Addresses are numbers; nothing lies there.
 */
#include "check.h"
#include "rng.h"

#include <stdbool.h>
#include <stdlib.h>

#include "attention_places.h"

#include "kernels/template/attention_pages.h"

static uintptr_t page_of(uintptr_t address) {
    return address / PAGE_BYTES;
}

static int compare(const void *a, const void *b) {
    const uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

static bool is_touched(const uintptr_t *pages, int64_t count, uintptr_t page) {
    return bsearch(&page, pages, (size_t)count, sizeof(page), compare) != NULL;
}

/* All pages of all rows, and none that is not next to one of them. */
static void check_all(const struct place *place) {
    static uintptr_t pages[MAX_FETCHES], needed[MAX_TOKENS * MAX_HEADS * 3];
    const struct pkv_attention_tokens *tokens = &place->tokens;
    int64_t num_needed = 0;
    for (int64_t i = 0; i < num_fetches; i++)
        pages[i] = page_of(fetches[i]);
    qsort(pages, (size_t)num_fetches, sizeof(pages[0]), compare);
    for (int64_t h = 0; h < tokens->num_heads; h++) {
        for (int64_t t = 0; t < tokens->num_tokens; t++) {
            const uintptr_t row = address_of(tokens, h, t);
            const uintptr_t last = page_of(row + (uintptr_t)tokens->row_bytes - 1);
            for (uintptr_t page = page_of(row); page <= last; page++)
                needed[num_needed++] = page;
        }
    }
    qsort(needed, (size_t)num_needed, sizeof(needed[0]), compare);
    for (int64_t i = 0; i < num_needed; i++)
        assert_true(is_touched(pages, num_fetches, needed[i]));
    for (int64_t i = 0; i < num_fetches; i++) {
        assert_true(is_touched(needed, num_needed, pages[i]) ||
                    is_touched(needed, num_needed, pages[i] - 1) ||
                    is_touched(needed, num_needed, pages[i] + 1));
    }
}

static void test_long_runs(void **state) {
    (void)state;
    struct test_rng rng = test_rng_make(1);
    static struct place place;
    for (int n = 0; n < 400; n++) {
        static const int64_t sizes[] = {128, 256, 48, 64};
        const int64_t block_size = sizes[test_rng_below(&rng, 4)];
        place_blocks(&place, &rng, block_size, test_rng_between(&rng, 1, MAX_TOKENS), n % 2 == 0);
        const struct pkv_attention_tokens before = {.num_heads = 1};
        num_fetches = 0;
        struct pages pages = look_at_pages(&before, &place.tokens, 1);
        if (pages.tokens == NULL) {
            check_all(&place);
            continue;
        }
        const int64_t num_first = num_fetches;
        assert_true(num_first >= FIRST_PAGES);
        touch_pages(&pages, PAGE_BYTES - 1);
        assert_int_equal(num_fetches, num_first);
        touch_pages(&pages, 1);
        assert_int_equal(num_fetches, num_first + 4);
        touch_pages(&pages, 3 * PAGE_BYTES);
        assert_int_equal(num_fetches, num_first + 4 * 4);
        touch_rest(&pages);
        assert_null(pages.tokens);
        int64_t num_steps = 0, num_turns = 0;
        for (int64_t i = num_first; i < num_fetches; i += 4) {
            assert_true(fetches[i] == fetches[i + 3]);
            if (i == num_first)
                continue;
            const bool goes_on = page_of(fetches[i]) == page_of(fetches[i - 4]) + 1;
            num_steps += goes_on;
            num_turns += !goes_on;
        }
        const int64_t num_blocks = (place.tokens.num_tokens + block_size - 1) / block_size;
        assert_true(num_turns < num_blocks * place.tokens.num_heads);
        assert_true(num_steps >= LONG_PAGES - 1);
        check_all(&place);
    }
}

static void test_short_runs(void **state) {
    (void)state;
    struct test_rng rng = test_rng_make(2);
    static struct place place;
    for (int n = 0; n < 400; n++) {
        place_blocks(&place, &rng, test_rng_between(&rng, 1, 16),
                     test_rng_between(&rng, 1, MAX_TOKENS), n % 2 == 0);
        const struct pkv_attention_tokens before = {.num_heads = 1};
        num_fetches = 0;
        struct pages pages = look_at_pages(&before, &place.tokens, 4);
        while (pages.tokens)
            touch_pages(&pages, PAGE_BYTES);
        check_all(&place);
    }
}

static void test_nothing_to_touch(void **state) {
    (void)state;
    struct test_rng rng = test_rng_make(3);
    static struct place place;
    place_blocks(&place, &rng, 16, 32, true);
    struct pkv_attention_tokens before = {.num_heads = 1};
    num_fetches = 0;
    assert_null(look_at_pages(&before, NULL, 1).tokens);
    assert_null(look_at_pages(&before, &place.tokens, NEAR_ROWS + 1).tokens);
    place.tokens.is_cached = true;
    assert_null(look_at_pages(&before, &place.tokens, 1).tokens);
    assert_int_equal(num_fetches, 0);
    place.tokens.is_cached = false;
    place.tokens.is_for_dots = true;
    look_at_pages(&before, &place.tokens, 2 * TOUCH_ROWS);
    assert_true(num_fetches > 0);
    num_fetches = 0;
    before.is_cached = true;
    look_at_pages(&before, &place.tokens, NEAR_ROWS + 1);
    assert_true(num_fetches > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_short_runs),
        cmocka_unit_test(test_nothing_to_touch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
