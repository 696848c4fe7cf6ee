/* SPDX-License-Identifier: MIT
 *
 * Slot mappings from block tables and from page indices.
 */
#include "check.h"
#include "model.h"

static struct pkv_error error = {.struct_size = sizeof(error)};

/* Contiguous int64 or int32 index tensors on the stack. */
static struct pkv_tensor vector64(int64_t *data, int64_t count) {
    return pkv_tensor_make(data, PKV_DTYPE_I64, 1, &count);
}

static void documented_example(void **state) {
    int32_t table[] = {7, 3};
    int32_t positions[] = {130, 127, 0, -1};
    int64_t slots[4] = {0};
    struct pkv_tensor tables = pkv_tensor_make(table, PKV_DTYPE_I32, 2, (int64_t[]){1, 2});
    struct pkv_tensor at = pkv_tensor_make(positions, PKV_DTYPE_I32, 1, (int64_t[]){4});
    struct pkv_tensor out = vector64(slots, 4);

    (void)state;
    CHECK_OK(pkv_slot_mapping_from_block_table(&tables, &at, NULL, 128, 8, &out, &error), &error);
    assert_int_equal(slots[0], 386);
    assert_int_equal(slots[1], 7 * 128 + 127);
    assert_int_equal(slots[2], 7 * 128);
    assert_int_equal(slots[3], -1);
}

static void one_token_a_sequence_needs_no_ids(void **state) {
    int64_t table[] = {4, -1, 2, 9, 0, -1};
    int64_t positions[] = {1, 5, 3};
    int32_t slots[3] = {0};
    struct pkv_tensor tables = pkv_tensor_make(table, PKV_DTYPE_I64, 2, (int64_t[]){3, 2});
    struct pkv_tensor at = vector64(positions, 3);
    struct pkv_tensor out = pkv_tensor_make(slots, PKV_DTYPE_I32, 1, (int64_t[]){3});

    (void)state;
    CHECK_OK(pkv_slot_mapping_from_block_table(&tables, &at, NULL, 4, 10, &out, &error), &error);
    assert_int_equal(slots[0], 4 * 4 + 1);
    assert_int_equal(slots[1], 9 * 4 + 1);
    assert_int_equal(slots[2], 0 * 4 + 3);
}

static void no_tokens_need_no_ids(void **state) {
    int64_t table[3] = {1, 2, 3}, position = 5, slot = 77;
    const struct pkv_tensor tables = pkv_tensor_make(table, PKV_DTYPE_I64, 2, (int64_t[]){3, 1});
    const struct pkv_tensor positions =
        pkv_tensor_make(&position, PKV_DTYPE_I64, 1, (int64_t[]){0});
    const struct pkv_tensor slots = pkv_tensor_make(&slot, PKV_DTYPE_I64, 1, (int64_t[]){0});

    (void)state;
    CHECK_OK(pkv_slot_mapping_from_block_table(&tables, &positions, NULL, 16, 0, &slots, &error),
             &error);
    assert_int_equal(slot, 77);
}

static void random_tables(void **state) {
    struct test_rng rng = test_rng_make(*(uint64_t *)*state);

    for (int round = 0; round < 2000; round++) {
        int64_t num_seqs = test_rng_between(&rng, 1, 4);
        int64_t width = test_rng_between(&rng, 1, 5);
        int64_t block_size = test_rng_between(&rng, 1, 9);
        int64_t num_tokens = test_rng_below(&rng, 20);
        int64_t table[20], positions[20], ids[20];
        int32_t in_type = test_rng_below(&rng, 2) ? PKV_DTYPE_I32 : PKV_DTYPE_I64;
        int32_t out_type = test_rng_below(&rng, 2) ? PKV_DTYPE_I32 : PKV_DTYPE_I64;
        struct model_index tables, at, of;
        struct test_guard out =
            test_guard_make((size_t)(num_tokens * ref_dtype_bytes(out_type)), TEST_GUARD_END);
        struct pkv_tensor mapping = pkv_tensor_make(out.data, out_type, 1, &num_tokens);

        for (int64_t i = 0; i < num_seqs * width; i++) {
            table[i] = test_rng_below(&rng, 50);
        }
        for (int64_t t = 0; t < num_tokens; t++) {
            positions[t] = test_rng_between(&rng, -2, width * block_size - 1);
            ids[t] = test_rng_below(&rng, num_seqs);
        }
        tables = model_index_make(in_type, 2, (int64_t[]){num_seqs, width}, table);
        at = model_index_make(out_type, 1, &num_tokens, positions);
        of = model_index_make(in_type, 1, &num_tokens, ids);
        CHECK_OK(pkv_slot_mapping_from_block_table(&tables.tensor, &at.tensor, &of.tensor,
                                                   block_size, 50, &mapping, &error),
                 &error);
        for (int64_t t = 0; t < num_tokens; t++) {
            int64_t p = positions[t];
            int64_t expected =
                p < 0 ? -1 : table[ids[t] * width + p / block_size] * block_size + p % block_size;

            assert_int_equal(out_type == PKV_DTYPE_I32 ? ((int32_t *)out.data)[t]
                                                       : ((int64_t *)out.data)[t],
                             expected);
        }
        model_index_free(&tables);
        model_index_free(&at);
        model_index_free(&of);
        test_guard_free(&out);
    }
}

/* One call that succeeds; tests change one number. */
struct setting {
    int64_t table[4];
    int64_t positions[3];
    int64_t ids[3];
    int64_t slots[3];
    struct pkv_tensor tables, at, of, out;
    int64_t block_size;
    int64_t num_blocks;
};

static void reset(struct setting *it) {
    *it = (struct setting){.table = {5, -1, 2, 9},
                           .positions = {1, 3, 6},
                           .ids = {0, 1, 1},
                           .slots = {-7, -8, -9},
                           .block_size = 4,
                           .num_blocks = 10};
    it->tables = pkv_tensor_make(it->table, PKV_DTYPE_I64, 2, (int64_t[]){2, 2});
    it->at = vector64(it->positions, 3);
    it->of = vector64(it->ids, 3);
    it->out = vector64(it->slots, 3);
}

static enum pkv_status call(struct setting *it) {
    return pkv_slot_mapping_from_block_table(&it->tables, &it->at, &it->of, it->block_size,
                                             it->num_blocks, &it->out, &error);
}

static void expect_refusal(struct setting *it, int32_t expected, int line) {
    check_refused(call(it), &error, expected, __FILE__, line);
    assert_int_equal(it->slots[0], -7);
    assert_int_equal(it->slots[1], -8);
    assert_int_equal(it->slots[2], -9);
    reset(it);
}

#define REFUSE(it, expected) expect_refusal(&(it), (expected), __LINE__)

static void bad_numbers_are_refused(void **state) {
    struct setting it;

    (void)state;
    reset(&it);
    CHECK_OK(call(&it), &error);
    assert_int_equal(it.slots[2], 9 * 4 + 2);
    reset(&it);
    it.positions[0] = 4;
    REFUSE(it, PKV_STATUS_BLOCK_OUT_OF_RANGE);
    assert_int_equal(error.value, -1);
    it.positions[2] = 8;
    REFUSE(it, PKV_STATUS_POSITION_OUT_OF_RANGE);
    assert_int_equal(error.index, 2);
    assert_int_equal(error.value, 8);
    it.positions[1] = INT64_MAX;
    REFUSE(it, PKV_STATUS_POSITION_OUT_OF_RANGE);
    it.ids[1] = 2;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
    it.ids[1] = -1;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
    it.num_blocks = 9;
    REFUSE(it, PKV_STATUS_BLOCK_OUT_OF_RANGE);
    assert_int_equal(error.value, 9);
    it.block_size = 0;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
    it.block_size = -4;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
    it.num_blocks = -1;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
    /* Without a bound any block id is right, as long as its slots can be written down. */
    it.num_blocks = 0;
    it.table[0] = INT64_C(1) << 40;
    CHECK_OK(call(&it), &error);
    assert_int_equal(it.slots[0], (INT64_C(1) << 42) + 1);
    reset(&it);
    it.num_blocks = 0;
    it.table[0] = INT64_C(1) << 62;
    REFUSE(it, PKV_STATUS_OVERFLOW);
}

static void bad_tensors_are_refused(void **state) {
    struct setting it;

    (void)state;
    reset(&it);
    it.at.dtype = PKV_DTYPE_F32;
    REFUSE(it, PKV_STATUS_DTYPE);
    it.out.dtype = PKV_DTYPE_I16;
    REFUSE(it, PKV_STATUS_DTYPE);
    it.tables.ndim = 1;
    REFUSE(it, PKV_STATUS_RANK);
    it.at.ndim = 2;
    it.at.shape[1] = 1;
    REFUSE(it, PKV_STATUS_RANK);
    it.out.shape[0] = 2;
    REFUSE(it, PKV_STATUS_SHAPE);
    it.of.shape[0] = 2;
    REFUSE(it, PKV_STATUS_SHAPE);
    it.tables.strides[0] = -1;
    REFUSE(it, PKV_STATUS_STRIDE);
    it.at.data = (char *)it.positions + 1;
    REFUSE(it, PKV_STATUS_MISALIGNED);
    it.at.data = NULL;
    REFUSE(it, PKV_STATUS_NULL_ARGUMENT);
    it.out.data = it.positions;
    REFUSE(it, PKV_STATUS_OVERLAP);
    it.out.data = it.table;
    REFUSE(it, PKV_STATUS_OVERLAP);
    it.out.strides[0] = 0;
    it.out.shape[0] = it.at.shape[0] = it.of.shape[0] = 1;
    CHECK_OK(call(&it), &error);
    CHECK_REFUSED(pkv_slot_mapping_from_block_table(NULL, &it.at, NULL, 4, 0, &it.out, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_slot_mapping_from_block_table(&it.tables, NULL, NULL, 4, 0, &it.out, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_slot_mapping_from_block_table(&it.tables, &it.at, NULL, 4, 0, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    /* Two sequences, three tokens, and no word on which belongs to which. */
    reset(&it);
    assert_int_not_equal(
        pkv_slot_mapping_from_block_table(&it.tables, &it.at, NULL, 4, 0, &it.out, &error),
        PKV_STATUS_OK);
}

static void a_slot_must_fit_its_dtype(void **state) {
    int64_t table[] = {INT64_C(1) << 28};
    int64_t positions[] = {7};
    int32_t narrow[] = {-5};
    struct pkv_tensor tables = pkv_tensor_make(table, PKV_DTYPE_I64, 2, (int64_t[]){1, 1});
    struct pkv_tensor at = vector64(positions, 1);
    struct pkv_tensor out = pkv_tensor_make(narrow, PKV_DTYPE_I32, 1, (int64_t[]){1});

    (void)state;
    CHECK_REFUSED(pkv_slot_mapping_from_block_table(&tables, &at, NULL, 8, 0, &out, &error), &error,
                  PKV_STATUS_OVERFLOW);
    assert_int_equal(narrow[0], -5);
    table[0] = (INT64_C(1) << 28) - 1;
    CHECK_OK(pkv_slot_mapping_from_block_table(&tables, &at, NULL, 8, 0, &out, &error), &error);
    assert_int_equal(narrow[0], INT32_MAX);
}

/* FlashInfer's form: two sequences, of 7 and of 3 tokens, pages of 4. */
struct pages {
    int64_t batch[4];
    int64_t positions[4];
    int64_t indices[5];
    int64_t indptr[3];
    int64_t last[2];
    int64_t slots[4];
    int64_t num_tokens;
};

static struct pages good_pages(void) {
    return (struct pages){.batch = {0, 0, 1, 1},
                          .positions = {6, 3, 0, 2},
                          .indices = {5, 2, 8, -1, 99},
                          .indptr = {0, 2, 3},
                          .last = {3, 3},
                          .slots = {-4, -4, -4, -4},
                          .num_tokens = 4};
}

static enum pkv_status call_pages(struct pages *it) {
    struct pkv_tensor batch = vector64(it->batch, it->num_tokens);
    struct pkv_tensor positions = vector64(it->positions, it->num_tokens);
    struct pkv_tensor indices = vector64(it->indices, 5);
    struct pkv_tensor indptr = vector64(it->indptr, 3);
    struct pkv_tensor last = vector64(it->last, 2);
    struct pkv_tensor out = vector64(it->slots, it->num_tokens);

    return pkv_slot_mapping_from_page_indices(&batch, &positions, &indices, &indptr, &last, 4, 9,
                                              &out, &error);
}

static void page_indices(void **state) {
    struct pages it = good_pages();

    (void)state;
    CHECK_OK(call_pages(&it), &error);
    assert_int_equal(it.slots[0], 2 * 4 + 2);
    assert_int_equal(it.slots[1], 5 * 4 + 3);
    assert_int_equal(it.slots[2], 8 * 4);
    assert_int_equal(it.slots[3], 8 * 4 + 2);
    it.positions[1] = -3;
    CHECK_OK(call_pages(&it), &error);
    assert_int_equal(it.slots[1], -1);
    it.num_tokens = 0;
    CHECK_OK(call_pages(&it), &error);
}

static void page_indices_refuse(void **state) {
    static const struct {
        size_t offset; /* of the number in struct pages that is changed */
        int64_t value;
        int32_t status;
    } wrong[] = {
        {offsetof(struct pages, batch), 2, PKV_STATUS_INVALID_ARGUMENT},
        {offsetof(struct pages, batch), -1, PKV_STATUS_INVALID_ARGUMENT},
        {offsetof(struct pages, positions), 7, PKV_STATUS_POSITION_OUT_OF_RANGE},
        {offsetof(struct pages, positions), INT64_MAX, PKV_STATUS_POSITION_OUT_OF_RANGE},
        {offsetof(struct pages, indices), 9, PKV_STATUS_BLOCK_OUT_OF_RANGE},
        {offsetof(struct pages, indices), -1, PKV_STATUS_BLOCK_OUT_OF_RANGE},
        {offsetof(struct pages, indptr), 1, PKV_STATUS_INVALID_ARGUMENT},
        {offsetof(struct pages, indptr) + 8, 4, PKV_STATUS_INVALID_ARGUMENT},
        {offsetof(struct pages, indptr) + 8, -1, PKV_STATUS_INVALID_ARGUMENT},
        {offsetof(struct pages, indptr) + 16, 6, PKV_STATUS_INVALID_ARGUMENT},
        {offsetof(struct pages, last), 0, PKV_STATUS_INVALID_ARGUMENT},
        {offsetof(struct pages, last), 5, PKV_STATUS_INVALID_ARGUMENT},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct pages it = good_pages();

        memcpy((char *)&it + wrong[i].offset, &wrong[i].value, sizeof(wrong[i].value));
        CHECK_REFUSED(call_pages(&it), &error, wrong[i].status);
        for (int t = 0; t < 4; t++) {
            assert_int_equal(it.slots[t], -4);
        }
    }
}

int main(void) {
    uint64_t seed = test_seed(42);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_example),
        cmocka_unit_test(one_token_a_sequence_needs_no_ids),
        cmocka_unit_test(no_tokens_need_no_ids),
        cmocka_unit_test_prestate(random_tables, &seed),
        cmocka_unit_test(bad_numbers_are_refused),
        cmocka_unit_test(bad_tensors_are_refused),
        cmocka_unit_test(a_slot_must_fit_its_dtype),
        cmocka_unit_test(page_indices),
        cmocka_unit_test(page_indices_refuse),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
