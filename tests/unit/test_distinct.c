/* SPDX-License-Identifier: MIT
 *
 * Whether numbers differ: never said of numbers that repeat, whichever two and wherever, also when
 * they were made to collide; said of slots as they come in. And what a step makes of it: tokens
 * whose slots differ are divided among threads, others' slots are, and the last token wins.
 */
#include "calls.h"
#include "check.h"
#include "rng.h"

#include "geometry/distinct.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NUMBERS = PKV_DISTINCT_MAX_NUMBERS };

static struct pkv_error error = {.struct_size = sizeof(error)};

/* Its memory ends where the proof may no longer write. */
static struct pkv_distinct make_distinct(int64_t max_numbers) {
    struct pkv_distinct distinct;
    void *memory = malloc((size_t)pkv_distinct_bytes(max_numbers) + 1);

    assert_non_null(memory);
    memset(memory, 0xa5, (size_t)pkv_distinct_bytes(max_numbers));
    pkv_distinct_init(&distinct, memory, max_numbers);
    return distinct;
}

static void free_distinct(struct pkv_distinct *distinct) {
    free(distinct->cells);
}

static struct pkv_vector vector_of(const int64_t *numbers, int64_t count) {
    return (struct pkv_vector){
        .data = numbers, .dtype = PKV_DTYPE_I64, .stride = 1, .count = count};
}

static bool differ(const int64_t *numbers, int64_t count) {
    struct pkv_distinct distinct = make_distinct(count);
    const struct pkv_vector vector = vector_of(numbers, count);
    const bool proven = pkv_distinct_prove(&distinct, &vector);

    free_distinct(&distinct);
    return proven;
}

static int64_t *new_numbers(int64_t count) {
    int64_t *numbers = malloc((size_t)(count + 1) * sizeof(*numbers));
    assert_non_null(numbers);
    return numbers;
}

/* All sequences of up to 6 numbers between -1 and 3. */
static void short_sequences_are_judged_right(void **state) {
    (void)state;
    for (int64_t count = 0; count <= 6; count++) {
        int64_t numbers[6], num_sequences = 1;
        for (int64_t i = 0; i < count; i++) {
            num_sequences *= 5;
        }
        for (int64_t code = 0; code < num_sequences; code++) {
            unsigned seen = 0, repeats = 0;
            int64_t rest = code;
            for (int64_t i = 0; i < count; i++, rest /= 5) {
                numbers[i] = rest % 5 - 1;
                if (numbers[i] >= 0) {
                    repeats |= seen & 1u << numbers[i];
                    seen |= 1u << numbers[i];
                }
            }
            assert_int_equal(differ(numbers, count), repeats == 0);
        }
    }
}

/* Slots as engines have them, of every length around powers of two. */
static void slots_that_differ_are_proven(void **state) {
    static const int64_t steps[] = {1, 16, 128, 4096, 1 << 20, (1 << 20) + 3};
    struct test_rng rng = test_rng_make(test_seed(1));
    int64_t *numbers = new_numbers(MAX_NUMBERS);

    (void)state;
    for (int64_t power = 1; power <= MAX_NUMBERS; power *= 2) {
        for (int64_t count = power - 1; count <= power + 1 && count <= MAX_NUMBERS; count++) {
            test_rng_permutation(&rng, numbers, count);
            assert_true(differ(numbers, count));
            for (int64_t i = 0; i < count; i++) { /* no two of 63 bits are equal */
                numbers[i] = (int64_t)(test_rng_next(&rng) >> 1);
            }
            assert_true(differ(numbers, count));
            for (size_t k = 0; k < sizeof(steps) / sizeof(steps[0]); k++) {
                for (int64_t i = 0; i < count; i++) {
                    numbers[i] = 12345 + i * steps[k];
                }
                assert_true(differ(numbers, count));
            }
            for (int64_t i = 0; i < count; i++) { /* padding may repeat */
                numbers[i] = i % 3 == 1 ? -1 : i % 3 == 2 ? INT64_MIN + i % 2 : i;
            }
            assert_true(differ(numbers, count));
        }
    }
    free(numbers);
}

static void a_repeat_is_never_missed(void **state) {
    struct test_rng rng = test_rng_make(test_seed(2));
    int64_t *numbers = new_numbers(MAX_NUMBERS);

    (void)state;
    for (int64_t first = 0; first < 70; first++) {
        for (int64_t second = first + 1; second < 70; second++) {
            test_rng_permutation(&rng, numbers, 70);
            numbers[second] = numbers[first];
            assert_false(differ(numbers, 70));
        }
    }
    for (int round = 0; round < 400; round++) {
        int64_t count = test_rng_between(&rng, 2, round < 380 ? 5000 : MAX_NUMBERS);
        int64_t first = test_rng_below(&rng, count), second = test_rng_below(&rng, count);
        test_rng_permutation(&rng, numbers, count);
        numbers[first] = numbers[second];
        assert_int_equal(differ(numbers, count), first == second);
    }
    free(numbers);
}

/* x * factor mod 2^64 = product. */
static int64_t solve(uint64_t factor, uint64_t product) {
    uint64_t inverse = factor; /* right in 3 bits; each round doubles them */
    for (int round = 0; round < 5; round++) {
        inverse *= 2 - factor * inverse;
    }
    return (int64_t)(inverse * product);
}

/* Numbers with one cell for all of them: only the last one keeps it, and the others meet again
 * elsewhere. Half of them come out negative, which counts for nothing. */
static void numbers_made_to_collide_are_judged_right(void **state) {
    enum { COUNT = 3000 };
    int64_t *numbers = new_numbers(COUNT);

    (void)state;
    for (int64_t i = 0; i < COUNT; i++) {
        numbers[i] = solve(UINT64_C(0x9e3779b97f4a7c15), (uint64_t)i * 977);
    }
    assert_true(differ(numbers, COUNT));
    for (int64_t last = 1; last < COUNT; last += 31) {
        const int64_t kept = numbers[last];
        const int64_t other = last * 7 % last;
        numbers[last] = numbers[other];
        assert_int_equal(differ(numbers, COUNT), numbers[other] < 0);
        numbers[last] = kept;
    }
    free(numbers);
}

/* The rounds in which a number has the first of 16 cells, where 0 always is. */
static int rounds_with_zero(uint64_t number) {
    uint64_t factor = UINT64_C(0x9e3779b97f4a7c15);
    int rounds = 0;
    for (; rounds < 5 && number * factor >> 60 == 0; rounds++) {
        factor *= UINT64_C(0xbf58476d1ce4e5b9);
    }
    return rounds;
}

/* In each of five rounds the last number takes the cell from two zeros, which are never compared
 * with each other. */
static void numbers_that_collide_too_often_are_not_judged(void **state) {
    int64_t numbers[7] = {0, 0};

    (void)state;
    for (int rounds = 5; rounds > 0; rounds--) {
        uint64_t number = 1;
        while (rounds_with_zero(number) != rounds) {
            number++;
        }
        numbers[7 - rounds] = (int64_t)number;
    }
    assert_false(differ(numbers, 7));
}

static void every_type_and_stride_is_read(void **state) {
    enum { COUNT = 300, STRIDE = 3 };
    int16_t narrow[COUNT * STRIDE];
    int32_t middle[COUNT * STRIDE];
    int64_t wide[COUNT * STRIDE];
    struct pkv_distinct distinct = make_distinct(COUNT);

    (void)state;
    for (int64_t i = 0; i < COUNT * STRIDE; i++) { /* what lies between repeats */
        narrow[i] = (int16_t)(i % STRIDE == 0 ? i : 0);
        middle[i] = narrow[i];
        wide[i] = narrow[i];
    }
    for (int repeats = 0; repeats < 2; repeats++) {
        const struct pkv_vector vectors[] = {{narrow, PKV_DTYPE_I16, STRIDE, COUNT},
                                             {middle, PKV_DTYPE_I32, STRIDE, COUNT},
                                             {wide, PKV_DTYPE_I64, STRIDE, COUNT}};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(pkv_distinct_prove(&distinct, &vectors[i]), !repeats);
        }
        narrow[STRIDE] = narrow[7 * STRIDE];
        middle[STRIDE] = middle[7 * STRIDE];
        wide[STRIDE] = wide[7 * STRIDE];
    }
    free_distinct(&distinct);
}

static void longer_vectors_are_not_judged(void **state) {
    int64_t numbers[3] = {1, 2, 3};
    struct pkv_distinct distinct = make_distinct(2);
    struct pkv_vector vector = vector_of(numbers, 3);

    (void)state;
    assert_false(pkv_distinct_prove(&distinct, &vector));
    vector.count = 2;
    assert_true(pkv_distinct_prove(&distinct, &vector));
    free_distinct(&distinct);
    assert_int_equal(pkv_distinct_bytes(0), 0);
    pkv_distinct_init(&distinct, NULL, 0);
    assert_false(pkv_distinct_prove(&distinct, &vector));
}

/* A cache of single bytes, and the tokens that part 0 of 2 writes. */
enum { NUM_TOKENS = 1000, NUM_SLOTS = 4096, HALF = NUM_TOKENS / 2 };

struct halves {
    uint8_t memory[NUM_SLOTS];
    uint8_t rows[NUM_TOKENS];
    int64_t slots[NUM_TOKENS];
    struct pkv_context *context;
    struct pkv_scatter_plan *plan;
    struct pkv_step *step;
    struct pkv_cache cache;
};

static enum pkv_status set_halves(struct halves *it, int32_t duplicates) {
    const struct pkv_step_indices indices = {
        .duplicates = duplicates,
        .slot_mapping = pkv_tensor_make(it->slots, PKV_DTYPE_I64, 1, (int64_t[]){NUM_TOKENS})};
    memset(it->memory, 0, sizeof(it->memory));
    return pkv_step_set(it->context, it->step, &it->cache, &indices, &error);
}

static void run_half(struct halves *it, int64_t half) {
    const struct pkv_tensor key =
        pkv_tensor_make(it->rows, PKV_DTYPE_U8, 3, (int64_t[]){NUM_TOKENS, 1, 1});
    CHECK_OK(pkv_scatter_run_part(it->context, it->plan, it->step, &it->cache, &key, NULL, half, 2,
                                  &error),
             &error);
}

static void open_halves(struct halves *it, int64_t max_tokens) {
    struct test_rng rng = test_rng_make(3);
    int64_t order[NUM_SLOTS];
    const struct pkv_tensor key_cache =
        pkv_tensor_make(it->memory, PKV_DTYPE_U8, 4, (int64_t[]){NUM_SLOTS / 16, 16, 1, 1});

    CHECK_OK(pkv_context_create(&it->context, NULL, &error), &error);
    it->cache.struct_size = sizeof(it->cache);
    CHECK_OK(pkv_cache_init(&it->cache, &key_cache, NULL, NULL, &error), &error);
    CHECK_OK(pkv_scatter_plan_create(&it->plan, it->context, &it->cache, NULL, &error), &error);
    it->step = make_step(max_tokens, 1);
    test_rng_permutation(&rng, order, NUM_SLOTS);
    for (int64_t t = 0; t < NUM_TOKENS; t++) {
        it->slots[t] = t % 10 == 9 ? -1 : order[t];
        it->rows[t] = (uint8_t)(1 + t % 255);
    }
}

static void close_halves(struct halves *it) {
    pkv_step_destroy(it->step);
    pkv_scatter_plan_destroy(it->plan);
    pkv_context_destroy(it->context);
}

static int64_t num_written(const struct halves *it, int64_t first, int64_t end) {
    int64_t count = 0;
    for (int64_t t = first; t < end; t++) {
        count += it->slots[t] >= 0 && it->memory[it->slots[t]] == it->rows[t];
    }
    return count;
}

static void a_step_divides_tokens_whose_slots_differ(void **state) {
    struct halves it;
    const int64_t written = HALF - HALF / 10;

    (void)state;
    for (int way = 0; way < 4; way++) {
        static const int32_t duplicates[] = {PKV_DUPLICATES_LAST_WINS, PKV_DUPLICATES_REJECT,
                                             PKV_DUPLICATES_REJECT, PKV_DUPLICATES_ASSUME_UNIQUE};
        open_halves(&it, way < 2 ? NUM_TOKENS : 0);
        CHECK_OK(set_halves(&it, duplicates[way]), &error);
        run_half(&it, 0);
        assert_int_equal(num_written(&it, 0, HALF), written);
        assert_int_equal(num_written(&it, HALF, NUM_TOKENS), 0);
        run_half(&it, 1);
        assert_int_equal(num_written(&it, HALF, NUM_TOKENS), written);
        close_halves(&it);
    }
    /* Without memory for a proof, or with a repeat, the slots are divided. */
    for (int repeats = 0; repeats < 2; repeats++) {
        open_halves(&it, repeats ? NUM_TOKENS : 0);
        it.slots[NUM_TOKENS - 2] = it.slots[repeats ? 0 : NUM_TOKENS - 2];
        CHECK_OK(set_halves(&it, PKV_DUPLICATES_LAST_WINS), &error);
        run_half(&it, 0);
        assert_in_range(num_written(&it, 0, HALF), 1, written - 1);
        assert_in_range(num_written(&it, HALF, NUM_TOKENS), 1, written - 1);
        close_halves(&it);
    }
}

/* In either order of the parts; and the repeat of one step is not remembered in the next. */
static void with_a_repeat_the_last_token_wins(void **state) {
    struct halves it;

    (void)state;
    open_halves(&it, 2 * NUM_TOKENS);
    for (int64_t t = 0; t < HALF; t += 7) {
        const int64_t kept = it.slots[NUM_TOKENS - 2 - t];
        if (it.slots[t] < 0 || kept < 0) {
            continue;
        }
        it.slots[NUM_TOKENS - 2 - t] = it.slots[t];
        CHECK_REFUSED(set_halves(&it, PKV_DUPLICATES_REJECT), &error, PKV_STATUS_DUPLICATE_SLOT);
        assert_int_equal(error.index, NUM_TOKENS - 2 - t);
        CHECK_OK(set_halves(&it, PKV_DUPLICATES_LAST_WINS), &error);
        run_half(&it, t % 2);
        run_half(&it, 1 - t % 2);
        assert_int_equal(it.memory[it.slots[t]], it.rows[NUM_TOKENS - 2 - t]);
        it.slots[NUM_TOKENS - 2 - t] = kept;
        CHECK_OK(set_halves(&it, PKV_DUPLICATES_REJECT), &error);
    }
    close_halves(&it);
}

static void the_memory_of_a_step_is_bounded(void **state) {
    const struct pkv_step_options bare = {.struct_size = sizeof(bare)};
    struct pkv_step_options options = bare;
    const size_t bare_bytes = pkv_step_memory_size(&bare);

    (void)state;
    for (options.max_tokens = 1; options.max_tokens <= INT64_C(1) << 40;
         options.max_tokens = options.max_tokens * 3 / 2 + 1) {
        const int64_t bytes = (int64_t)(pkv_step_memory_size(&options) - bare_bytes);
        assert_in_range(bytes, 1, 384 * 1024);
        assert_true(bytes <= 10 * options.max_tokens);
    }
}

/* One slot more than what a step can prove; a slot comes twice, and the parts run backwards. */
static void longer_steps_divide_their_slots(void **state) {
    enum { TOKENS = MAX_NUMBERS + 1 };
    const int64_t num_slots = TOKENS + 1;
    int64_t *slots = new_numbers(num_slots);
    uint8_t *rows = malloc(TOKENS), *memory = calloc((size_t)num_slots, 1);
    struct test_rng rng = test_rng_make(test_seed(4));
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct pkv_context *context;
    struct pkv_scatter_plan *plan;
    struct pkv_step *step = make_step(TOKENS + 1000, 0);

    (void)state;
    assert_true(rows != NULL && memory != NULL);
    const struct pkv_tensor key_cache =
        pkv_tensor_make(memory, PKV_DTYPE_U8, 4, (int64_t[]){num_slots / 2, 2, 1, 1});
    const struct pkv_tensor key = pkv_tensor_make(rows, PKV_DTYPE_U8, 3, (int64_t[]){TOKENS, 1, 1});
    const struct pkv_step_indices indices = {
        .slot_mapping = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, (int64_t[]){TOKENS})};
    test_rng_permutation(&rng, slots, num_slots);
    for (int64_t t = 0; t < TOKENS; t++) {
        rows[t] = (uint8_t)(1 + t % 251);
    }
    slots[TOKENS - 1] = slots[0];
    CHECK_OK(pkv_context_create(&context, NULL, &error), &error);
    CHECK_OK(pkv_cache_init(&cache, &key_cache, NULL, NULL, &error), &error);
    CHECK_OK(pkv_scatter_plan_create(&plan, context, &cache, NULL, &error), &error);
    CHECK_OK(pkv_step_set(context, step, &cache, &indices, &error), &error);
    for (int64_t part = 2; part >= 0; part--) {
        CHECK_OK(pkv_scatter_run_part(context, plan, step, &cache, &key, NULL, part, 3, &error),
                 &error);
    }
    for (int64_t t = 1; t < TOKENS; t++) {
        assert_int_equal(memory[slots[t]], rows[t]);
    }
    pkv_scatter_plan_destroy(plan);
    pkv_step_destroy(step);
    pkv_context_destroy(context);
    free(memory);
    free(rows);
    free(slots);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_sequences_are_judged_right),
        cmocka_unit_test(slots_that_differ_are_proven),
        cmocka_unit_test(a_repeat_is_never_missed),
        cmocka_unit_test(numbers_made_to_collide_are_judged_right),
        cmocka_unit_test(numbers_that_collide_too_often_are_not_judged),
        cmocka_unit_test(every_type_and_stride_is_read),
        cmocka_unit_test(longer_vectors_are_not_judged),
        cmocka_unit_test(a_step_divides_tokens_whose_slots_differ),
        cmocka_unit_test(with_a_repeat_the_last_token_wins),
        cmocka_unit_test(the_memory_of_a_step_is_bounded),
        cmocka_unit_test(longer_steps_divide_their_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
