/* SPDX-License-Identifier: MIT
 *
 * Random small cases: geometry, layouts, strides, dtypes, slots, tables, run mode, CPU level,
 * threads, parts. Each scatters, gathers back, copies blocks and converts, and every byte of every
 * memory is held against the reference. PAGEDKV_TEST_SEED repeats a run, PAGEDKV_TEST_CASES sets
 * its length.
 */
#include "calls.h"
#include "contexts.h"

#include <inttypes.h>
#include <stdlib.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static uint64_t seed;

enum { MAX_TOKENS = 80, MAX_BLOCKS = 7 };

static int64_t draw_head_size(struct test_rng *rng, int32_t layout, int32_t dtype) {
    int64_t head_size = test_rng_between(rng, 1, 40);

    while (!ref_layout_fits(layout, ref_dtype_bytes(dtype), head_size)) {
        head_size++;
    }
    return head_size;
}

static struct model_sizes draw_sizes(struct test_rng *rng) {
    struct model_sizes sizes = {
        .key_layout = (int32_t)test_rng_below(rng, REF_NUM_LAYOUTS),
        .value_layout = (int32_t)test_rng_below(rng, REF_NUM_LAYOUTS),
        .key_dtype = (int32_t)test_rng_between(rng, PKV_DTYPE_F32, PKV_DTYPE_F8_E4M3FN),
        .num_blocks = test_rng_between(rng, 1, MAX_BLOCKS),
        .block_size = test_rng_between(rng, 1, 9),
        .num_heads = test_rng_between(rng, 1, 4),
        .nz_5d = (int)test_rng_below(rng, 2),
        .padded = (int)test_rng_below(rng, 2),
        .interleaved = (int)test_rng_below(rng, 2),
        .side = test_rng_below(rng, 2) ? TEST_GUARD_END : TEST_GUARD_START,
    };

    sizes.value_dtype = test_rng_below(rng, 3) == 0
                            ? (int32_t)test_rng_between(rng, PKV_DTYPE_F32, PKV_DTYPE_F8_E4M3FN)
                            : sizes.key_dtype;
    if (test_rng_below(rng, 6) == 0 && sizes.key_layout != PKV_LAYOUT_PA_NZ) {
        sizes.value_dtype = 0;
    }
    sizes.key_head_size = draw_head_size(rng, sizes.key_layout, sizes.key_dtype);
    if (sizes.value_dtype != 0) {
        sizes.value_head_size = draw_head_size(rng, sizes.value_layout, sizes.value_dtype);
    }
    return sizes;
}

static struct pkv_context *any_context(struct test_rng *rng) {
    return contexts.all[test_rng_below(rng, contexts.count)];
}

static int any_way(struct test_rng *rng) {
    return (int)test_rng_between(rng, CALL_ONE_SHOT, 7);
}

static struct model_rows any_rows(struct test_rng *rng, const struct model_part *part,
                                  int64_t num_tokens) {
    enum model_rows_kind kind = (enum model_rows_kind)test_rng_below(rng, MODEL_ROWS_NUM_KINDS);

    return model_rows_make(kind, part, num_tokens,
                           test_rng_below(rng, 2) ? TEST_GUARD_END : TEST_GUARD_START, rng);
}

static int has_repeat(const int64_t *slots, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < i; j++) {
            if (slots[i] >= 0 && slots[i] == slots[j]) {
                return 1;
            }
        }
    }
    return 0;
}

static int64_t draw_slots(struct test_rng *rng, int64_t *slots, int64_t num_slots) {
    int64_t count = test_rng_below(rng, MAX_TOKENS);
    int64_t style = test_rng_below(rng, 3);
    int64_t order[MAX_BLOCKS * 9];

    test_rng_permutation(rng, order, num_slots);
    if (style == 0 && count > num_slots) {
        count = num_slots;
    }
    for (int64_t t = 0; t < count; t++) {
        if (style == 0) { /* each slot at most once */
            slots[t] = order[t];
        } else if (style == 1 && t > 0) { /* runs */
            slots[t] = test_rng_below(rng, 6) ? (slots[t - 1] + 1) % num_slots
                                              : test_rng_below(rng, num_slots);
        } else {
            slots[t] = test_rng_below(rng, num_slots);
        }
        if (test_rng_below(rng, 9) == 0 && style != 1) {
            slots[t] = -test_rng_between(rng, 1, 1000);
        }
    }
    return count;
}

/* Sometimes one slot is too large: then the call must be refused and nothing may change. */
static void scatter_case(struct model_cache *model, struct test_rng *rng) {
    int64_t num_slots = model->key.ref.num_blocks * model->key.ref.block_size;
    int64_t slots[MAX_TOKENS];
    int64_t count = draw_slots(rng, slots, num_slots);
    struct model_rows key = any_rows(rng, &model->key, count);
    struct model_rows value = {0};
    int32_t duplicates = (int32_t)test_rng_below(rng, 3);
    int32_t dtype = test_rng_below(rng, 2) ? PKV_DTYPE_I32 : PKV_DTYPE_I64;
    int32_t expected = PKV_STATUS_OK;
    struct model_index index;
    int32_t status;

    if (model->has_value) {
        value = any_rows(rng, &model->value, count);
    }
    if (count > 0 && test_rng_below(rng, 8) == 0) {
        slots[test_rng_below(rng, count)] = num_slots + test_rng_below(rng, 3) * 1000000;
        expected = PKV_STATUS_SLOT_OUT_OF_RANGE;
    } else if (has_repeat(slots, count)) {
        if (duplicates == PKV_DUPLICATES_ASSUME_UNIQUE) {
            duplicates = PKV_DUPLICATES_LAST_WINS;
        }
        if (duplicates == PKV_DUPLICATES_REJECT) {
            expected = PKV_STATUS_DUPLICATE_SLOT;
        }
    }
    if (expected == PKV_STATUS_OK) {
        ref_scatter(&model->key.ref, model->key.shadow, &key.ref, key.memory.data, slots);
        if (model->has_value) {
            ref_scatter(&model->value.ref, model->value.shadow, &value.ref, value.memory.data,
                        slots);
        }
    }
    index = model_index_make(dtype, 1, &count, slots);
    status = (int32_t)call_scatter(any_context(rng), model, &key, model->has_value ? &value : NULL,
                                   &index.tensor, duplicates, any_way(rng), rng, &error);
    if (expected == PKV_STATUS_OK) {
        check_ok(status, &error, __FILE__, __LINE__);
    } else {
        check_refused(status, &error, expected, __FILE__, __LINE__);
    }
    assert_true(model_cache_is_as_expected(model));
    assert_true(model_rows_are_as_expected(&key));
    model_index_free(&index);
    model_rows_free(&key);
    if (model->has_value) {
        model_rows_free(&value);
    }
}

static void gather_case(struct model_cache *model, struct test_rng *rng) {
    enum { SEQS = 3, WIDTH = 5 };
    int64_t block_size = model->key.ref.block_size;
    int64_t table[SEQS * WIDTH], lengths[SEQS], offsets[SEQS], totals[SEQS + 1] = {0};
    int cumulative = (int)test_rng_below(rng, 2);
    struct model_index indices[3];
    struct gather_indices from;
    struct model_rows key, value = {0};

    for (int64_t b = 0; b < SEQS; b++) {
        offsets[b] = test_rng_below(rng, WIDTH * block_size + 1);
        lengths[b] = test_rng_below(rng, WIDTH * block_size - offsets[b] + 1);
        totals[b + 1] = totals[b] + lengths[b];
        for (int64_t i = 0; i < WIDTH; i++) {
            int is_read = lengths[b] > 0 && i >= offsets[b] / block_size &&
                          i <= (offsets[b] + lengths[b] - 1) / block_size;

            table[b * WIDTH + i] = is_read ? test_rng_below(rng, model->key.ref.num_blocks)
                                           : (int32_t)test_rng_next(rng);
        }
    }
    indices[0] = model_index_make(PKV_DTYPE_I32, 2, (int64_t[]){SEQS, WIDTH}, table);
    indices[1] = model_index_make(PKV_DTYPE_I64, 1, (int64_t[]){SEQS + cumulative},
                                  cumulative ? totals : lengths);
    indices[2] = model_index_make(PKV_DTYPE_I32, 1, (int64_t[]){SEQS}, offsets);
    from = (struct gather_indices){&indices[0].tensor, &indices[1].tensor, &indices[2].tensor,
                                   cumulative};
    key = any_rows(rng, &model->key, totals[SEQS]);
    if (model->has_value) {
        value = any_rows(rng, &model->value, totals[SEQS]);
    }
    for (int64_t b = 0; b < SEQS; b++) {
        ref_gather(&model->key.ref, model->key.shadow, &key.ref, key.shadow, totals[b],
                   table + b * WIDTH, offsets[b], lengths[b]);
        if (model->has_value) {
            ref_gather(&model->value.ref, model->value.shadow, &value.ref, value.shadow, totals[b],
                       table + b * WIDTH, offsets[b], lengths[b]);
        }
    }
    CHECK_OK(call_gather(any_context(rng), model, &from, &key, model->has_value ? &value : NULL,
                         any_way(rng), rng, &error),
             &error);
    assert_true(model_rows_are_as_expected(&key));
    if (model->has_value) {
        assert_true(model_rows_are_as_expected(&value));
        model_rows_free(&value);
    }
    model_rows_free(&key);
    for (int i = 0; i < 3; i++) {
        model_index_free(&indices[i]);
    }
}

static void copy_case(struct model_cache *model, struct test_rng *rng) {
    int64_t num_blocks = model->key.ref.num_blocks;
    int64_t order[MAX_BLOCKS];
    int64_t pairs[2 * MAX_BLOCKS];
    int64_t num_sources = test_rng_between(rng, 1, num_blocks);
    int64_t num_pairs = num_blocks - num_sources;
    struct model_index mapping;
    struct pkv_cache cache;

    test_rng_permutation(rng, order, num_blocks);
    for (int64_t i = 0; i < num_pairs; i++) {
        pairs[2 * i] = order[test_rng_below(rng, num_sources)];
        pairs[2 * i + 1] = order[num_sources + i];
        ref_copy_block(&model->key.ref, model->key.shadow, pairs[2 * i], pairs[2 * i + 1]);
        if (model->has_value) {
            ref_copy_block(&model->value.ref, model->value.shadow, pairs[2 * i], pairs[2 * i + 1]);
        }
    }
    mapping = model_index_make(PKV_DTYPE_I64, 2, (int64_t[]){num_pairs, 2}, pairs);
    CHECK_OK(init_cache(&cache, model, &error), &error);
    CHECK_OK(pkv_copy_blocks(any_context(rng), &cache, &mapping.tensor, &error), &error);
    assert_true(model_cache_is_as_expected(model));
    model_index_free(&mapping);
}

static void convert_case(struct model_cache *model, const struct model_sizes *from,
                         struct test_rng *rng) {
    struct model_sizes to = *from;
    struct model_cache dst;
    struct pkv_cache src_cache, dst_cache;

    to.padded = (int)test_rng_below(rng, 2);
    to.interleaved = (int)test_rng_below(rng, 2);
    do {
        to.key_layout = (int32_t)test_rng_below(rng, REF_NUM_LAYOUTS);
    } while (!ref_layout_fits(to.key_layout, model->key.ref.element_bytes, to.key_head_size) ||
             (!model->has_value && to.key_layout == PKV_LAYOUT_PA_NZ));
    do {
        to.value_layout = (int32_t)test_rng_below(rng, REF_NUM_LAYOUTS);
    } while (model->has_value &&
             !ref_layout_fits(to.value_layout, model->value.ref.element_bytes, to.value_head_size));
    dst = model_cache_make(&to, rng);
    CHECK_OK(init_cache(&src_cache, model, &error), &error);
    CHECK_OK(init_cache(&dst_cache, &dst, &error), &error);
    ref_convert(&model->key.ref, model->key.shadow, &dst.key.ref, dst.key.shadow);
    if (model->has_value) {
        ref_convert(&model->value.ref, model->value.shadow, &dst.value.ref, dst.value.shadow);
    }
    CHECK_OK(pkv_convert_layout(any_context(rng), &src_cache, &dst_cache, &error), &error);
    assert_true(model_cache_is_as_expected(&dst));
    assert_true(model_cache_is_as_expected(model));
    model_cache_free(&dst);
}

static void random_cases(void **state) {
    const char *wanted = getenv("PAGEDKV_TEST_CASES");
    int64_t num_cases = wanted != NULL ? strtoll(wanted, NULL, 0) : 2000;
    struct test_rng seeds = test_rng_make(seed);

    (void)state;
    for (int64_t i = 0; i < num_cases; i++) {
        struct test_rng rng = test_rng_make(test_rng_next(&seeds));
        struct model_sizes sizes = draw_sizes(&rng);
        struct model_cache model = model_cache_make(&sizes, &rng);

        scatter_case(&model, &rng);
        gather_case(&model, &rng);
        if (i % 4 == 0) {
            copy_case(&model, &rng);
            scatter_case(&model, &rng);
        }
        if (i % 4 == 1) {
            convert_case(&model, &sizes, &rng);
        }
        model_cache_free(&model);
    }
    print_message("%" PRId64 " cases\n", num_cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_cases)};

    seed = test_seed(20250801);
    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
