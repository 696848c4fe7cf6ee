/* SPDX-License-Identifier: MIT
 *
 * The decision that two sets of bytes overlap, against the sets themselves: it must see every byte
 * that they share, and be exact where it says that it is.
 */
#include "check.h"
#include "rng.h"

#include "geometry/strided.h"

#include <string.h>

enum { BASE = 4096, REACH = 4096, NUM_CASES = 200000 };

struct bytes {
    unsigned char names[REACH]; /* how often each byte is named */
    int is_twice;
};

static int64_t draw_dims(struct test_rng *rng, int64_t counts[3], int64_t strides[3]) {
    int64_t ndim = test_rng_below(rng, 4);

    for (int64_t i = 0; i < ndim; i++) {
        counts[i] = test_rng_between(rng, 0, 5);
        strides[i] = test_rng_between(rng, 0, test_rng_below(rng, 2) ? 12 : 150);
    }
    return ndim;
}

static struct pkv_strided make_set(int64_t first, int64_t unit, int64_t ndim, const int64_t *counts,
                                   const int64_t *strides) {
    struct pkv_strided set = pkv_strided_bytes((void *)(uintptr_t)(BASE + first), unit);

    for (int64_t i = 0; i < ndim; i++) {
        pkv_strided_add(&set, counts[i], strides[i]);
    }
    return set;
}

/* The same by counting, from the numbers themselves. */
static void count_bytes(struct bytes *bytes, int64_t first, int64_t unit, int64_t ndim,
                        const int64_t *counts, const int64_t *strides) {
    int64_t total = 1;

    memset(bytes, 0, sizeof(*bytes));
    for (int64_t i = 0; i < ndim; i++) {
        total *= counts[i];
    }
    for (int64_t k = 0; k < total; k++) {
        int64_t at = first, rest = k;

        for (int64_t i = 0; i < ndim; i++) {
            at += rest % counts[i] * strides[i];
            rest /= counts[i];
        }
        for (int64_t b = 0; b < unit; b++) {
            bytes->is_twice |= bytes->names[at + b]++ > 0;
        }
    }
}

static int share_a_byte(const struct bytes *a, const struct bytes *b) {
    for (int i = 0; i < REACH; i++) {
        if (a->names[i] && b->names[i]) {
            return 1;
        }
    }
    return 0;
}

static void sets_of_every_shape(void **state) {
    struct test_rng rng = test_rng_make(test_seed(29));
    int num_shared = 0, num_apart = 0;
    static struct bytes a_bytes, b_bytes;

    (void)state;
    for (int i = 0; i < NUM_CASES; i++) {
        int64_t counts[2][3], strides[2][3], units[2], firsts[2], ndims[2];
        int is_alike = test_rng_below(&rng, 2), shared, found;

        for (int k = 0; k < 2; k++) {
            firsts[k] = test_rng_between(&rng, 0, 400);
            units[k] = test_rng_between(&rng, 1, 8);
            ndims[k] = draw_dims(&rng, counts[k], strides[k]);
        }
        if (is_alike) {
            memcpy(counts[1], counts[0], sizeof(counts[0]));
            memcpy(strides[1], strides[0], sizeof(strides[0]));
            ndims[1] = ndims[0];
            units[1] = units[0];
        }
        struct pkv_strided a = make_set(firsts[0], units[0], ndims[0], counts[0], strides[0]);
        struct pkv_strided b = make_set(firsts[1], units[1], ndims[1], counts[1], strides[1]);

        count_bytes(&a_bytes, firsts[0], units[0], ndims[0], counts[0], strides[0]);
        count_bytes(&b_bytes, firsts[1], units[1], ndims[1], counts[1], strides[1]);
        shared = share_a_byte(&a_bytes, &b_bytes);
        found = pkv_strided_may_overlap(&a, &b);
        assert_int_equal(found, pkv_strided_may_overlap(&b, &a));
        if (shared && !found) {
            fail_msg("case %d: a shared byte is not seen", i);
        }
        if (pkv_strided_is_injective(&a)) {
            assert_false(a_bytes.is_twice);
            if (is_alike) {
                assert_int_equal(found, shared);
                num_shared += shared;
                num_apart += !shared;
            }
        }
        if (a.first + pkv_strided_span(&a) <= b.first ||
            b.first + pkv_strided_span(&b) <= a.first) {
            assert_false(found);
        }
    }
    assert_true(num_shared > NUM_CASES / 50 && num_apart > NUM_CASES / 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sets_of_every_shape)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
