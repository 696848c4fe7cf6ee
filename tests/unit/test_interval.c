/* SPDX-License-Identifier: MIT
 *
 * Overlap of intervals, against a comparison of every pair: few and many, sorted and not, empty
 * ones, and the one pair among thousands that overlaps.
 */
#include "check.h"
#include "rng.h"

#include "geometry/interval.h"

#include <stdlib.h>

enum { MAX_COUNT = 5000 };

struct interval {
    int64_t begin;
    int64_t end;
};

struct list {
    struct interval intervals[MAX_COUNT];
    int64_t num_reads; /* of beginnings */
};

static void begins(const void *arg, int64_t first, int64_t count, int64_t *to) {
    struct list *list = (struct list *)(uintptr_t)arg;

    list->num_reads += count;
    for (int64_t i = 0; i < count; i++) {
        to[i] = list->intervals[first + i].begin;
    }
}

static int64_t end(const void *arg, int64_t i) {
    return ((const struct list *)arg)->intervals[i].end;
}

static int find(struct list *list, int64_t count, int64_t *earlier, int64_t *later) {
    const struct pkv_interval_list intervals = {list, count, begins, end};

    return pkv_intervals_find_overlap(&intervals, earlier, later);
}

static int overlaps(const struct interval *a, const struct interval *b) {
    return a->begin < a->end && b->begin < b->end && a->begin < b->end && b->begin < a->end;
}

/* What is found is a pair that overlaps; nothing is found only if there is none. */
static void expect_right(struct list *list, int64_t count) {
    int64_t earlier = -1;
    int64_t later = -1;
    int wanted = 0;

    for (int64_t i = 0; i < count && !wanted; i++) {
        for (int64_t j = 0; j < i && !wanted; j++) {
            wanted = overlaps(&list->intervals[i], &list->intervals[j]);
        }
    }
    assert_int_equal(find(list, count, &earlier, &later), wanted);
    if (wanted) {
        const struct interval *a = &list->intervals[earlier];
        const struct interval *b = &list->intervals[later];

        assert_int_not_equal(earlier, later);
        assert_true(a->begin <= b->begin && b->begin < a->end && b->begin < b->end);
    }
}

static void few(void **state) {
    static struct list list;
    struct test_rng rng = test_rng_make(test_seed(11));

    (void)state;
    for (int repeat = 0; repeat < 20000; repeat++) {
        int64_t count = test_rng_between(&rng, 0, 9);
        int64_t room = test_rng_between(&rng, 1, 60);

        for (int64_t i = 0; i < count; i++) {
            int64_t begin = test_rng_between(&rng, -5, room);

            list.intervals[i] = (struct interval){begin, begin + test_rng_between(&rng, -2, 5)};
        }
        expect_right(&list, count);
    }
}

/* Touching intervals in any order, and then one of them a number longer. */
static void many(void **state) {
    static const int64_t counts[] = {255, 256, 257, 2047, 2048, 2049, 4096, 4097, MAX_COUNT};
    static struct list list;
    struct test_rng rng = test_rng_make(test_seed(12));
    int64_t order[MAX_COUNT];
    int64_t earlier;
    int64_t later;

    (void)state;
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        int64_t count = counts[k];
        int64_t next = 0;

        test_rng_permutation(&rng, order, count);
        for (int64_t i = 0; i < count; i++) {
            int64_t length = test_rng_between(&rng, 0, 3);

            list.intervals[order[i]] = (struct interval){next, next + length};
            next += length;
        }
        list.num_reads = 0;
        assert_false(find(&list, count, &earlier, &later));
        assert_in_range(list.num_reads, count, count * (count / 2048 + 2));
        for (int repeat = 0; repeat < 30; repeat++) {
            int64_t i = test_rng_below(&rng, count);
            struct interval *one = &list.intervals[i];

            one->end++;
            expect_right(&list, count);
            one->end--;
        }
    }
}

/* Each of many in turn reaches into the one behind it, and into no other: none gets lost between
 * two passes. */
static void each_of_many(void **state) {
    static struct list list;
    struct test_rng rng = test_rng_make(test_seed(13));
    int64_t order[MAX_COUNT];
    int64_t earlier;
    int64_t later;

    (void)state;
    test_rng_permutation(&rng, order, MAX_COUNT);
    for (int64_t i = 0; i < MAX_COUNT; i++) {
        list.intervals[order[i]] = (struct interval){2 * i, 2 * i + 2};
    }
    assert_false(find(&list, MAX_COUNT, &earlier, &later));
    for (int64_t i = 0; i < MAX_COUNT - 1; i++) {
        list.intervals[order[i]].end++;
        assert_true(find(&list, MAX_COUNT, &earlier, &later));
        assert_int_equal(earlier, order[i]);
        assert_int_equal(later, order[i + 1]);
        list.intervals[order[i]].end--;
    }
}

static void ascending_ones_are_read_once(void **state) {
    static struct list list;
    int64_t earlier;
    int64_t later;

    (void)state;
    for (int64_t i = 0; i < MAX_COUNT; i++) {
        list.intervals[i] = (struct interval){10 * i, 10 * i + (i % 3 == 0 ? 0 : 10)};
    }
    /* An empty one is nowhere, wherever it says that it is. */
    list.intervals[77] = (struct interval){3, -8};
    assert_false(find(&list, MAX_COUNT, &earlier, &later));
    assert_int_equal(list.num_reads, MAX_COUNT);
}

static void the_whole_range(void **state) {
    static struct list list = {
        .intervals = {{0, INT64_MAX}, {INT64_MIN, 0}, {INT64_MAX - 1, INT64_MAX}}};

    (void)state;
    expect_right(&list, 2);
    expect_right(&list, 3);
}

/* All of them begin at the same place. */
static void equal_ones(void **state) {
    static struct list list;
    int64_t earlier;
    int64_t later;

    (void)state;
    for (int64_t i = 0; i < MAX_COUNT; i++) {
        list.intervals[i] = (struct interval){5, 5};
    }
    assert_false(find(&list, MAX_COUNT, &earlier, &later));
    list.intervals[100].end = list.intervals[4000].end = 6;
    assert_true(find(&list, MAX_COUNT, &earlier, &later));
    assert_int_equal(earlier, 100);
    assert_int_equal(later, 4000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few),
        cmocka_unit_test(many),
        cmocka_unit_test(each_of_many),
        cmocka_unit_test(ascending_ones_are_read_once),
        cmocka_unit_test(the_whole_range),
        cmocka_unit_test(equal_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
