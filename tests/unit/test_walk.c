/* SPDX-License-Identifier: MIT
 *
 * The walk over a sequence: which block, which tokens, where they lie.
 */
#include "calls.h"

static struct pkv_error error = {.struct_size = sizeof(error)};

/* Token i of the block, head h, element d, as walk.h says. */
static const unsigned char *element_of(const struct pkv_cache_part *part, const void *first,
                                       int64_t i, int64_t h, int64_t d) {
    int64_t f = part->fragment_bytes / part->element_bytes;

    return (const unsigned char *)first + i * part->token_stride_bytes +
           h * part->head_stride_bytes + d / f * part->fragment_stride_bytes +
           d % f * part->element_bytes;
}

static void expect_tokens(const struct pkv_cache_part *part, const struct model_part *model,
                          const void *first, int64_t slot, int64_t num_tokens) {
    const struct ref_part *ref = &model->ref;

    for (int64_t i = 0; i < num_tokens; i++) {
        for (int64_t h = 0; h < ref->num_heads; h++) {
            for (int64_t d = 0; d < ref->head_size; d++) {
                int64_t index = ref_part_index(ref, (slot + i) / ref->block_size,
                                               (slot + i) % ref->block_size, h, d);

                assert_ptr_equal(element_of(part, first, i, h, d),
                                 (unsigned char *)model->tensor.data + index * ref->element_bytes);
            }
        }
    }
}

static void walk(const struct model_cache *model, const struct pkv_cache *cache,
                 const struct pkv_tensor *tensor, const int64_t *table, int64_t first,
                 int64_t count) {
    int64_t block_size = cache->block_size;
    struct pkv_walk walk;
    struct pkv_walk_block block;
    int64_t position = first;

    CHECK_OK(pkv_walk_init(&walk, cache, tensor, first, count, &error), &error);
    while (pkv_walk_next(&walk, &block)) {
        int64_t offset = position % block_size;
        int64_t room = block_size - offset;
        int64_t left = first + count - position;

        assert_int_equal(block.position, position);
        assert_int_equal(block.block_id, table[position / block_size]);
        assert_int_equal(block.offset, offset);
        assert_int_equal(block.num_tokens, room < left ? room : left);
        expect_tokens(&cache->key, &model->key, block.key, block.block_id * block_size + offset,
                      block.num_tokens);
        if (model->has_value) {
            expect_tokens(&cache->value, &model->value, block.value,
                          block.block_id * block_size + offset, block.num_tokens);
        } else {
            assert_null(block.value);
        }
        position += block.num_tokens;
    }
    assert_int_equal(position, first + count);
    assert_int_equal(pkv_walk_next(&walk, &block), 0);
}

static void every_range_of_every_layout(void **state) {
    struct test_rng rng = test_rng_make(9);
    int64_t table[5] = {4, 0, 2, 2, 6};

    (void)state;
    for (int32_t layout = 0; layout < REF_NUM_LAYOUTS; layout++) {
        for (int variant = 0; variant < 4; variant++) {
            struct model_sizes sizes = {
                .key_layout = layout,
                .value_layout = REF_NUM_LAYOUTS - 1 - layout,
                .key_dtype = PKV_DTYPE_BF16,
                .value_dtype = variant == 3 && layout != PKV_LAYOUT_PA_NZ ? 0 : PKV_DTYPE_F32,
                .num_blocks = 7,
                .block_size = 3,
                .num_heads = 2,
                .key_head_size = 16,
                .value_head_size = 8,
                .padded = variant & 1,
                .interleaved = variant >> 1};
            struct model_cache model = model_cache_make(&sizes, &rng);
            struct model_index index = model_index_make(variant & 1 ? PKV_DTYPE_I32 : PKV_DTYPE_I64,
                                                        1, (int64_t[]){5}, table);
            struct pkv_cache cache;

            CHECK_OK(init_cache(&cache, &model, &error), &error);
            for (int64_t first = 0; first <= 15; first++) {
                for (int64_t count = 0; first + count <= 15; count++) {
                    walk(&model, &cache, &index.tensor, table, first, count);
                }
            }
            model_index_free(&index);
            model_cache_free(&model);
        }
    }
}

static uint8_t storage[7 * 3 * 4];

static struct pkv_cache small_cache(void) {
    struct pkv_tensor tensor = pkv_tensor_make(storage, PKV_DTYPE_U8, 4, (int64_t[]){7, 3, 1, 4});
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    CHECK_OK(pkv_cache_init(&cache, &tensor, NULL, NULL, &error), &error);
    return cache;
}

/* A column of a transposed table: entries that are not adjacent. */
static void the_row_may_be_strided(void **state) {
    struct pkv_cache cache = small_cache();
    int32_t table[3][2] = {{6, -1}, {5, -1}, {0, -1}};
    struct pkv_tensor row = pkv_tensor_make(table, PKV_DTYPE_I32, 1, (int64_t[]){3});
    struct pkv_walk walk;
    struct pkv_walk_block block;

    (void)state;
    row.strides[0] = 2;
    CHECK_OK(pkv_walk_init(&walk, &cache, &row, 0, 9, &error), &error);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pkv_walk_next(&walk, &block), 1);
        assert_int_equal(block.block_id, table[i][0]);
    }
    assert_int_equal(pkv_walk_next(&walk, &block), 0);
}

static void unread_entries_may_hold_anything(void **state) {
    struct pkv_cache cache = small_cache();
    int64_t table[4] = {INT64_MIN, 5, 1, INT64_MAX};
    struct pkv_tensor row = pkv_tensor_make(table, PKV_DTYPE_I64, 1, (int64_t[]){4});
    struct pkv_walk walk;

    (void)state;
    CHECK_OK(pkv_walk_init(&walk, &cache, &row, 3, 6, &error), &error);
    CHECK_OK(pkv_walk_init(&walk, &cache, &row, 0, 0, &error), &error);
    CHECK_OK(pkv_walk_init(&walk, &cache, &row, 12, 0, &error), &error);
    CHECK_REFUSED(pkv_walk_init(&walk, &cache, &row, 2, 6, &error), &error,
                  PKV_STATUS_BLOCK_OUT_OF_RANGE);
    assert_int_equal(error.index, 0);
    CHECK_REFUSED(pkv_walk_init(&walk, &cache, &row, 3, 7, &error), &error,
                  PKV_STATUS_BLOCK_OUT_OF_RANGE);
    assert_int_equal(error.index, 3);
    assert_int_equal(error.value, INT64_MAX);
    assert_int_equal(error.bound, 7);
}

static void refusals(void **state) {
    struct pkv_cache cache = small_cache();
    int64_t table[2] = {1, 7};
    struct pkv_tensor row = pkv_tensor_make(table, PKV_DTYPE_I64, 1, (int64_t[]){2});
    struct pkv_tensor bad = row;
    struct pkv_walk s;

    (void)state;
    CHECK_REFUSED(pkv_walk_init(NULL, &cache, &row, 0, 1, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_walk_init(&s, NULL, &row, 0, 1, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_walk_init(&s, &cache, NULL, 0, 1, &error), &error, PKV_STATUS_NULL_ARGUMENT);
    bad.dtype = PKV_DTYPE_I16;
    CHECK_REFUSED(pkv_walk_init(&s, &cache, &bad, 0, 1, &error), &error, PKV_STATUS_DTYPE);
    bad = row;
    bad.ndim = 2;
    bad.shape[1] = 1;
    CHECK_REFUSED(pkv_walk_init(&s, &cache, &bad, 0, 1, &error), &error, PKV_STATUS_RANK);
    bad = row;
    bad.strides[0] = -1;
    CHECK_REFUSED(pkv_walk_init(&s, &cache, &bad, 0, 1, &error), &error, PKV_STATUS_STRIDE);
    bad = row;
    bad.data = (char *)table + 1;
    CHECK_REFUSED(pkv_walk_init(&s, &cache, &bad, 0, 1, &error), &error, PKV_STATUS_MISALIGNED);
    CHECK_REFUSED(pkv_walk_init(&s, &cache, &row, -1, 1, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_walk_init(&s, &cache, &row, 0, -1, &error), &error,
                  PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_walk_init(&s, &cache, &row, 1, 6, &error), &error,
                  PKV_STATUS_POSITION_OUT_OF_RANGE);
    assert_string_equal(error.argument, "num_tokens");
    assert_int_equal(error.value, 6);
    assert_int_equal(error.bound, 5);
    CHECK_REFUSED(pkv_walk_init(&s, &cache, &row, 1, INT64_MAX, &error), &error,
                  PKV_STATUS_POSITION_OUT_OF_RANGE);
    assert_int_equal(error.bound, 5);
    CHECK_REFUSED(pkv_walk_init(&s, &cache, &row, INT64_MAX, INT64_MAX, &error), &error,
                  PKV_STATUS_POSITION_OUT_OF_RANGE);
    assert_string_equal(error.argument, "first_token");
    assert_int_equal(error.bound, 6);
    CHECK_REFUSED(pkv_walk_init(&s, &cache, &row, 3, 1, &error), &error,
                  PKV_STATUS_BLOCK_OUT_OF_RANGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_range_of_every_layout),
        cmocka_unit_test(the_row_may_be_strided),
        cmocka_unit_test(unread_entries_may_hold_anything),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
