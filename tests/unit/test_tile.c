/* SPDX-License-Identifier: MIT
 *
 * The loop over tiles: documented examples, and that every item is covered exactly once.
 */
#include "check.h"
#include "rng.h"

static struct pkv_error error = {.struct_size = sizeof(error)};

struct expected_tile {
    int64_t index, unroll, offset, shape, valid;
};

static void expect_tiles(int64_t total, int64_t tile, const int32_t *unroll, int32_t num_unroll,
                         const struct expected_tile *expected, int count) {
    struct pkv_tile_loop loop;
    struct pkv_tile got;

    CHECK_OK(pkv_tile_loop_init(&loop, total, tile, unroll, num_unroll, &error), &error);
    for (int i = 0; i < count; i++) {
        assert_int_equal(pkv_tile_loop_next(&loop, &got), 1);
        assert_int_equal(got.index, expected[i].index);
        assert_int_equal(got.unroll, expected[i].unroll);
        assert_int_equal(got.offset, expected[i].offset);
        assert_int_equal(got.shape, expected[i].shape);
        assert_int_equal(got.valid, expected[i].valid);
    }
    assert_int_equal(pkv_tile_loop_next(&loop, &got), 0);
    assert_int_equal(pkv_tile_loop_next(&loop, &got), 0);
}

static void documented_examples(void **state) {
    static const struct expected_tile ten_by_four[] = {
        {0, 1, 0, 4, 4}, {1, 1, 4, 4, 4}, {2, 1, 8, 4, 2}};
    static const struct expected_tile seventy_by_32[] = {
        {0, 1, 0, 32, 32}, {1, 1, 32, 32, 32}, {2, 1, 64, 32, 6}};
    static const struct expected_tile thirteen[] = {
        {0, 8, 0, 8, 8}, {8, 4, 8, 4, 4}, {12, 1, 12, 1, 1}};

    (void)state;
    expect_tiles(10, 4, NULL, 0, ten_by_four, 3);
    expect_tiles(70, 32, NULL, 0, seventy_by_32, 3);
    expect_tiles(13, 1, (int32_t[]){8, 4, 1}, 3, thirteen, 3);
    /* Order, duplicates and a missing 1 make no difference. */
    expect_tiles(13, 1, (int32_t[]){4, 8}, 2, thirteen, 3);
    expect_tiles(13, 1, (int32_t[]){1, 4, 8, 4, 8, 1, 1, 8, 4}, 9, thirteen, 3);
    expect_tiles(0, 4, NULL, 0, NULL, 0);
    expect_tiles(0, 4, (int32_t[]){8, 4}, 2, NULL, 0);
}

static void every_item_is_covered_once(void **state) {
    struct test_rng rng = test_rng_make(*(uint64_t *)*state);

    for (int round = 0; round < 20000; round++) {
        int64_t total = test_rng_below(&rng, 300);
        int64_t tile = test_rng_between(&rng, 1, 40);
        int32_t num_unroll = (int32_t)test_rng_below(&rng, 8);
        int32_t unroll[8];
        struct pkv_tile_loop loop;
        struct pkv_tile got;
        int64_t trip = 0;
        int64_t trips = (total + tile - 1) / tile;

        for (int32_t i = 0; i < num_unroll; i++) {
            unroll[i] = (int32_t)test_rng_between(&rng, 1, 20);
        }
        CHECK_OK(pkv_tile_loop_init(&loop, total, tile, unroll, num_unroll, &error), &error);
        assert_int_equal(loop.num_trips, trips);
        while (pkv_tile_loop_next(&loop, &got)) {
            int64_t largest = 1; /* the largest factor that still fits runs next */
            int64_t left = total - trip * tile;

            for (int32_t i = 0; i < num_unroll; i++) {
                if (unroll[i] > largest && unroll[i] <= trips - trip) {
                    largest = unroll[i];
                }
            }
            assert_int_equal(got.index, trip);
            assert_int_equal(got.unroll, largest);
            assert_int_equal(got.offset, trip * tile);
            assert_int_equal(got.shape, largest * tile);
            assert_int_equal(got.valid, left < got.shape ? left : got.shape);
            trip += got.unroll;
        }
        assert_int_equal(trip, trips);
    }
}

static void huge_totals_do_not_wrap(void **state) {
    struct pkv_tile_loop loop;
    struct pkv_tile got;

    (void)state;
    CHECK_OK(pkv_tile_loop_init(&loop, INT64_MAX, INT64_C(1) << 62, NULL, 0, &error), &error);
    assert_int_equal(loop.num_trips, 2);
    assert_int_equal(pkv_tile_loop_next(&loop, &got), 1);
    assert_int_equal(pkv_tile_loop_next(&loop, &got), 1);
    assert_int_equal(got.offset, INT64_C(1) << 62);
    assert_int_equal(got.valid, INT64_MAX - (INT64_C(1) << 62));
    assert_int_equal(pkv_tile_loop_next(&loop, &got), 0);
}

static void refusals(void **state) {
    struct pkv_tile_loop loop;
    int32_t nine[] = {2, 3, 4, 5, 6, 7, 8, 9, 10};

    (void)state;
    CHECK_REFUSED(pkv_tile_loop_init(NULL, 1, 1, NULL, 0, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_tile_loop_init(&loop, 1, 1, NULL, 1, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_tile_loop_init(&loop, -1, 1, NULL, 0, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_tile_loop_init(&loop, 1, 0, NULL, 0, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_tile_loop_init(&loop, 1, -4, NULL, 0, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_tile_loop_init(&loop, 1, 1, NULL, -1, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_tile_loop_init(&loop, 1, 1, (int32_t[]){4, 0}, 2, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_tile_loop_init(&loop, 1, 1, (int32_t[]){-4}, 1, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    /* Eight factors with the 1 that is added would be nine. */
    CHECK_REFUSED(pkv_tile_loop_init(&loop, 1, 1, nine, 8, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_OK(pkv_tile_loop_init(&loop, 1, 1, nine, 7, &error), &error);
    CHECK_REFUSED(pkv_tile_loop_init(&loop, 1, INT64_MAX / 2, (int32_t[]){4}, 1, &error), &error,
                  PKV_STATUS_OVERFLOW);
}

int main(void) {
    uint64_t seed = test_seed(20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_examples),
        cmocka_unit_test_prestate(every_item_is_covered_once, &seed),
        cmocka_unit_test(huge_totals_do_not_wrap),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
