/* SPDX-License-Identifier: MIT
 *
 * The cache descriptor: its address formula is held against the reference for every element of
 * every layout, and every description that cannot be true is refused.
 */
#include "check.h"
#include "model.h"

static struct pkv_error error = {.struct_size = sizeof(error)};
static _Alignas(64) unsigned char storage[1 << 16];

static const int32_t dtypes[] = {PKV_DTYPE_F32, PKV_DTYPE_BF16, PKV_DTYPE_F8_E4M3FN};

/* The formula that cache.h promises. */
static int64_t formula(const struct pkv_cache_part *part, int64_t block, int64_t offset,
                       int64_t head, int64_t d) {
    int64_t f = part->fragment_bytes / part->element_bytes;

    return block * part->block_stride_bytes + offset * part->token_stride_bytes +
           head * part->head_stride_bytes + d / f * part->fragment_stride_bytes +
           d % f * part->element_bytes;
}

static int64_t fragment_bytes(const struct ref_part *ref) {
    switch (ref->layout) {
    case PKV_LAYOUT_PA_NZ:
        return 32;
    case PKV_LAYOUT_X_PACKED:
        return 16;
    case PKV_LAYOUT_TRANSPOSED:
        return ref->element_bytes;
    default:
        return ref->head_size * ref->element_bytes;
    }
}

static void expect_part(const struct pkv_cache_part *part, const struct model_part *model) {
    const struct ref_part *ref = &model->ref;

    assert_ptr_equal(part->data, model->tensor.data);
    assert_int_equal(part->dtype, model->tensor.dtype);
    assert_int_equal(part->layout, ref->layout);
    assert_int_equal(part->element_bytes, ref->element_bytes);
    assert_int_equal(part->num_heads, ref->num_heads);
    assert_int_equal(part->head_size, ref->head_size);
    assert_int_equal(part->fragment_bytes, fragment_bytes(ref));
    assert_int_equal(part->row_bytes, ref->num_heads * ref->head_size * ref->element_bytes);
    assert_int_equal(part->span_bytes, ref_part_span(ref) * ref->element_bytes);
    for (int64_t block = 0; block < ref->num_blocks; block++) {
        for (int64_t offset = 0; offset < ref->block_size; offset++) {
            for (int64_t head = 0; head < ref->num_heads; head++) {
                for (int64_t d = 0; d < ref->head_size; d++) {
                    assert_int_equal(formula(part, block, offset, head, d),
                                     ref_part_index(ref, block, offset, head, d) *
                                         ref->element_bytes);
                }
            }
        }
    }
}

static void expect_cache(const struct model_sizes *sizes, struct test_rng *rng) {
    struct model_cache model = model_cache_make(sizes, rng);
    struct pkv_cache_options options = model_cache_options(&model);
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    CHECK_OK(pkv_cache_init(&cache, &model.key.tensor, model.has_value ? &model.value.tensor : NULL,
                            &options, &error),
             &error);
    assert_int_equal(cache.num_blocks, sizes->num_blocks);
    assert_int_equal(cache.block_size, sizes->block_size);
    assert_int_equal(cache.num_slots, sizes->num_blocks * sizes->block_size);
    assert_int_equal(cache.format, PKV_FORMAT_PLAIN);
    expect_part(&cache.key, &model.key);
    if (model.has_value) {
        expect_part(&cache.value, &model.value);
    } else {
        assert_null(cache.value.data);
    }
    assert_true(model_cache_is_as_expected(&model));
    model_cache_free(&model);
}

static void every_layout_has_its_addresses(void **state) {
    struct test_rng rng = test_rng_make(1);

    (void)state;
    for (int32_t key = 0; key < REF_NUM_LAYOUTS; key++) {
        for (int32_t value = 0; value < REF_NUM_LAYOUTS; value++) {
            for (int variant = 0; variant < 8; variant++) {
                struct model_sizes sizes = {.key_layout = key,
                                            .value_layout = value,
                                            .key_dtype = dtypes[variant % 3],
                                            .value_dtype = dtypes[variant % 3],
                                            .num_blocks = 3,
                                            .block_size = 5,
                                            .num_heads = 1 + variant % 3,
                                            .key_head_size = 64,
                                            .value_head_size = 32,
                                            .nz_5d = variant & 1,
                                            .padded = (variant >> 1) & 1,
                                            .interleaved = (variant >> 2) & 1};

                expect_cache(&sizes, &rng);
            }
        }
    }
}

static void key_and_value_may_differ_in_dtype(void **state) {
    struct test_rng rng = test_rng_make(2);
    struct model_sizes sizes = {.key_layout = PKV_LAYOUT_PA_NZ,
                                .value_layout = PKV_LAYOUT_PA_NZ,
                                .key_dtype = PKV_DTYPE_I8,
                                .value_dtype = PKV_DTYPE_F16,
                                .num_blocks = 2,
                                .block_size = 4,
                                .num_heads = 2,
                                .key_head_size = 64,
                                .value_head_size = 16};

    (void)state;
    expect_cache(&sizes, &rng);
    sizes.value_dtype = 0;
    sizes.key_layout = PKV_LAYOUT_HND;
    expect_cache(&sizes, &rng);
}

/* NHD in name, heads outside tokens in memory: a view that an engine makes by permuting. */
static void permuted_strides_are_a_cache(void **state) {
    struct pkv_tensor tensor = pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){2, 4, 3, 8});
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    (void)state;
    tensor.strides[0] = 96;
    tensor.strides[1] = 8;
    tensor.strides[2] = 32;
    tensor.strides[3] = 1;
    CHECK_OK(pkv_cache_init(&cache, &tensor, NULL, NULL, &error), &error);
    assert_int_equal(cache.key.token_stride_bytes, 16);
    assert_int_equal(cache.key.head_stride_bytes, 64);
}

/* [num_blocks, block_size, 2, heads, size]: keys and values take turns in every row. */
static void rows_that_take_turns_do_not_overlap(void **state) {
    struct pkv_tensor key = pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){3, 4, 2, 8});
    struct pkv_tensor value = key;
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    (void)state;
    key.strides[0] = 4 * 32;
    key.strides[1] = 32;
    key.strides[2] = 8;
    key.strides[3] = 1;
    value = key;
    value.data = storage + 16 * 2;
    CHECK_OK(pkv_cache_init(&cache, &key, &value, NULL, &error), &error);
    /* Per head: [.., heads, 2, size]. */
    key.strides[2] = value.strides[2] = 16;
    value.data = storage + 8 * 2;
    CHECK_OK(pkv_cache_init(&cache, &key, &value, NULL, &error), &error);
    /* One element further they share some. */
    value.data = storage + 7 * 2;
    CHECK_REFUSED(pkv_cache_init(&cache, &key, &value, NULL, &error), &error, PKV_STATUS_OVERLAP);
    value.data = storage;
    CHECK_REFUSED(pkv_cache_init(&cache, &key, &value, NULL, &error), &error, PKV_STATUS_OVERLAP);
}

static void layouts_have_names(void **state) {
    static const char *const names[] = {"NHD", "HND", "PA_NZ", "X_PACKED", "TRANSPOSED"};

    (void)state;
    for (int32_t layout = 0; layout < REF_NUM_LAYOUTS; layout++) {
        assert_string_equal(pkv_layout_name(layout), names[layout]);
        assert_int_equal(pkv_layout_from_name(names[layout]), layout);
    }
    assert_string_equal(pkv_layout_name(-1), "unknown");
    assert_string_equal(pkv_layout_name(5), "unknown");
    assert_int_equal(pkv_layout_from_name("nhd"), PKV_LAYOUT_NHD);
    assert_int_equal(pkv_layout_from_name("Norm"), PKV_LAYOUT_NHD);
    assert_int_equal(pkv_layout_from_name("nhsd"), PKV_LAYOUT_HND);
    assert_int_equal(pkv_layout_from_name("NHDX"), -1);
    assert_int_equal(pkv_layout_from_name(""), -1);
}

/* One way to be wrong: changes of a good description, and the status that they must give. */
struct wrong {
    struct pkv_tensor key;
    struct pkv_tensor value;
    struct pkv_cache_options options;
};

static struct wrong right(int32_t layout) {
    struct ref_part part = ref_part_make(layout, 2, 3, 4, 2, 32, 0);
    struct wrong wrong = {.options = {.struct_size = sizeof(wrong.options),
                                      .key_layout = layout,
                                      .value_layout = layout,
                                      .num_kv_heads = 2}};

    wrong.key = pkv_tensor_make(storage, PKV_DTYPE_BF16, part.ndim, part.shape);
    memcpy(wrong.key.strides, part.strides, sizeof(part.strides));
    wrong.value = wrong.key;
    wrong.value.data = storage + 8192;
    return wrong;
}

#define REFUSE(wrong, expected)                                                                    \
    CHECK_REFUSED(pkv_cache_init(&cache, &(wrong).key, &(wrong).value, &(wrong).options, &error),  \
                  &error, expected)

static void tensors_that_are_no_cache_are_refused(void **state) {
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    (void)state;
    for (int32_t layout = 0; layout < REF_NUM_LAYOUTS; layout++) {
        struct wrong w = right(layout);

        CHECK_OK(pkv_cache_init(&cache, &w.key, &w.value, &w.options, &error), &error);
        for (int32_t dtype = -1; dtype < 20; dtype++) {
            if (dtype < 1 || dtype > 12) {
                w.key.dtype = dtype;
                REFUSE(w, PKV_STATUS_DTYPE);
            }
        }
        w = right(layout);
        w.key.ndim = 3;
        REFUSE(w, PKV_STATUS_RANK);
        w.key.ndim = 6;
        REFUSE(w, PKV_STATUS_RANK);
        w = right(layout);
        w.value.ndim = 9;
        REFUSE(w, PKV_STATUS_RANK);
        for (int32_t axis = 0; axis < right(layout).key.ndim; axis++) {
            w = right(layout);
            w.key.shape[axis] = -2;
            REFUSE(w, PKV_STATUS_SHAPE);
        }
        w = right(layout);
        w.value.shape[0] = 2;
        REFUSE(w, PKV_STATUS_SHAPE);
        w = right(layout);
        w.options.num_kv_heads = 3;
        assert_true(pkv_cache_init(&cache, &w.key, &w.value, &w.options, &error) ==
                        PKV_STATUS_SHAPE ||
                    error.status == PKV_STATUS_UNSUPPORTED);
        w = right(layout);
        w.key.data = storage + 1;
        REFUSE(w, PKV_STATUS_MISALIGNED);
        w = right(layout);
        w.key.data = NULL;
        REFUSE(w, PKV_STATUS_NULL_ARGUMENT);
        w = right(layout);
        w.value.data = NULL;
        REFUSE(w, PKV_STATUS_NULL_ARGUMENT);
        w = right(layout);
        w.key.strides[0] = -1;
        REFUSE(w, PKV_STATUS_STRIDE);
        w = right(layout);
        w.value.data = storage;
        REFUSE(w, PKV_STATUS_OVERLAP);
        w.value.data = storage + 1024;
        REFUSE(w, PKV_STATUS_OVERLAP);
    }
}

static void block_size_and_heads_must_agree(void **state) {
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct wrong w = right(PKV_LAYOUT_NHD);

    (void)state;
    w.value = pkv_tensor_make(storage + 8192, PKV_DTYPE_BF16, 4, (int64_t[]){3, 5, 2, 32});
    REFUSE(w, PKV_STATUS_SHAPE);
    w.value = pkv_tensor_make(storage + 8192, PKV_DTYPE_BF16, 4, (int64_t[]){3, 4, 1, 32});
    REFUSE(w, PKV_STATUS_SHAPE);
    w.value = pkv_tensor_make(storage + 8192, PKV_DTYPE_BF16, 4, (int64_t[]){3, 4, 2, 16});
    CHECK_OK(pkv_cache_init(&cache, &w.key, &w.value, &w.options, &error), &error);
    /* HND sees the same numbers in other places. */
    w = right(PKV_LAYOUT_HND);
    w.value = pkv_tensor_make(storage + 8192, PKV_DTYPE_BF16, 4, (int64_t[]){3, 2, 5, 32});
    REFUSE(w, PKV_STATUS_SHAPE);
}

static void strides_that_fit_no_layout_are_refused(void **state) {
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct wrong w;

    (void)state;
    for (int32_t layout = 0; layout < REF_NUM_LAYOUTS; layout++) {
        int32_t last = right(layout).key.ndim - 1;

        if (layout != PKV_LAYOUT_TRANSPOSED) {
            w = right(layout);
            w.key.strides[last] = 2;
            REFUSE(w, PKV_STATUS_STRIDE);
            w.key.strides[last] = 0;
            REFUSE(w, PKV_STATUS_STRIDE);
        }
        /* Blocks, and the dimension before the last, one element too close. */
        w = right(layout);
        w.key.strides[0] -= 1;
        REFUSE(w, PKV_STATUS_STRIDE);
        w = right(layout);
        w.key.strides[last - 1] -= 1;
        REFUSE(w, PKV_STATUS_STRIDE);
        w = right(layout);
        w.key.strides[0] = 0;
        REFUSE(w, PKV_STATUS_STRIDE);
    }
}

static void packed_layouts_need_their_fragment(void **state) {
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct wrong w = right(PKV_LAYOUT_PA_NZ);

    (void)state;
    w.key = pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){3, 8, 4, 8});
    REFUSE(w, PKV_STATUS_SHAPE);
    w = right(PKV_LAYOUT_X_PACKED);
    w.key = pkv_tensor_make(storage, PKV_DTYPE_BF16, 5, (int64_t[]){3, 2, 2, 4, 16});
    REFUSE(w, PKV_STATUS_SHAPE);
    /* 2 heads of 24 elements fill 3 fragments of 16, but no head fills whole ones. */
    w = right(PKV_LAYOUT_PA_NZ);
    w.key = pkv_tensor_make(storage, PKV_DTYPE_BF16, 4, (int64_t[]){3, 3, 4, 16});
    REFUSE(w, PKV_STATUS_UNSUPPORTED);
    w.options.num_kv_heads = 1;
    w.value = pkv_tensor_make(storage + 8192, PKV_DTYPE_BF16, 4, (int64_t[]){3, 3, 4, 16});
    CHECK_OK(pkv_cache_init(&cache, &w.key, &w.value, &w.options, &error), &error);
    /* The heads of the value must be whole as well. */
    w = right(PKV_LAYOUT_PA_NZ);
    w.value = pkv_tensor_make(storage + 8192, PKV_DTYPE_BF16, 4, (int64_t[]){3, 3, 4, 16});
    REFUSE(w, PKV_STATUS_UNSUPPORTED);
    w = right(PKV_LAYOUT_PA_NZ);
    CHECK_OK(pkv_cache_init(&cache, &w.key, NULL, &w.options, &error), &error);
}

static void without_a_number_pa_nz_has_one_head(void **state) {
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct wrong w = right(PKV_LAYOUT_PA_NZ);

    (void)state;
    w.options.num_kv_heads = 0;
    CHECK_OK(pkv_cache_init(&cache, &w.key, &w.value, &w.options, &error), &error);
    assert_int_equal(cache.key.num_heads, 1);
    assert_int_equal(cache.key.head_size, 64);
}

static void options_are_checked(void **state) {
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct {
        struct pkv_cache_options known;
        int64_t unknown;
    } larger = {.known = right(PKV_LAYOUT_HND).options};
    struct wrong w = right(PKV_LAYOUT_HND);

    (void)state;
    w.options.key_layout = 5;
    REFUSE(w, PKV_STATUS_INVALID_ARGUMENT);
    w.options.key_layout = PKV_LAYOUT_HND;
    w.options.value_layout = -1;
    REFUSE(w, PKV_STATUS_INVALID_ARGUMENT);
    w = right(PKV_LAYOUT_HND);
    w.options.reserved = 1;
    REFUSE(w, PKV_STATUS_INVALID_ARGUMENT);
    w = right(PKV_LAYOUT_HND);
    w.options.format = 1;
    REFUSE(w, PKV_STATUS_LAYOUT);
    w = right(PKV_LAYOUT_HND);
    w.options.num_kv_heads = -1;
    assert_int_not_equal(pkv_cache_init(&cache, &w.key, &w.value, &w.options, &error),
                         PKV_STATUS_OK);
    w = right(PKV_LAYOUT_HND);
    larger.known.struct_size = sizeof(larger);
    CHECK_OK(pkv_cache_init(&cache, &w.key, &w.value, &larger.known, &error), &error);
    larger.unknown = 1;
    CHECK_REFUSED(pkv_cache_init(&cache, &w.key, &w.value, &larger.known, &error), &error,
                  PKV_STATUS_STRUCT_SIZE);
    CHECK_REFUSED(pkv_cache_init(NULL, &w.key, &w.value, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_cache_init(&cache, NULL, &w.value, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
}

/* A zeroed struct and NULL mean the same. */
static void defaults_are_nhd(void **state) {
    struct pkv_cache one = {.struct_size = sizeof(one)};
    struct pkv_cache two = {.struct_size = sizeof(two)};
    struct pkv_cache_options zero = {0};
    struct pkv_tensor key = pkv_tensor_make(storage, PKV_DTYPE_U8, 4, (int64_t[]){3, 4, 2, 5});

    (void)state;
    CHECK_OK(pkv_cache_init(&one, &key, NULL, NULL, &error), &error);
    CHECK_OK(pkv_cache_init(&two, &key, NULL, &zero, &error), &error);
    assert_memory_equal(&one, &two, sizeof(one));
    assert_int_equal(one.key.layout, PKV_LAYOUT_NHD);
}

static void sizes_do_not_wrap(void **state) {
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct pkv_tensor key;

    (void)state;
    key = pkv_tensor_make(storage, PKV_DTYPE_F32, 4,
                          (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 32, 1, 1});
    CHECK_REFUSED(pkv_cache_init(&cache, &key, NULL, NULL, &error), &error, PKV_STATUS_OVERFLOW);
    key = pkv_tensor_make(storage, PKV_DTYPE_U8, 4, (int64_t[]){2, 1, 1, 8});
    key.strides[0] = INT64_MAX - 4;
    key.strides[1] = key.strides[2] = 8;
    key.strides[3] = 1;
    CHECK_REFUSED(pkv_cache_init(&cache, &key, NULL, NULL, &error), &error, PKV_STATUS_OVERFLOW);
    /* Strides of dimensions of size 1 are never walked. */
    key.strides[0] = 8;
    key.strides[1] = INT64_MAX;
    assert_true(pkv_cache_init(&cache, &key, NULL, NULL, &error) == PKV_STATUS_OK ||
                error.status == PKV_STATUS_OVERFLOW);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_has_its_addresses),
        cmocka_unit_test(key_and_value_may_differ_in_dtype),
        cmocka_unit_test(permuted_strides_are_a_cache),
        cmocka_unit_test(rows_that_take_turns_do_not_overlap),
        cmocka_unit_test(layouts_have_names),
        cmocka_unit_test(tensors_that_are_no_cache_are_refused),
        cmocka_unit_test(block_size_and_heads_must_agree),
        cmocka_unit_test(strides_that_fit_no_layout_are_refused),
        cmocka_unit_test(packed_layouts_need_their_fragment),
        cmocka_unit_test(without_a_number_pa_nz_has_one_head),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(defaults_are_nhd),
        cmocka_unit_test(sizes_do_not_wrap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
