/* SPDX-License-Identifier: MIT
 *
 * What a scatter refuses, and that a refusal changes no byte; what may overlap and what may not;
 * the rules for duplicate slots.
 */
#include "calls.h"
#include "contexts.h"

static struct pkv_error error = {.struct_size = sizeof(error)};
enum { NUM_TOKENS = 6 };

/* A call that would succeed; tests change one thing and call it. */
struct setting {
    struct pkv_context *context;
    struct model_cache cache;
    struct model_rows key_rows;
    struct model_rows value_rows;
    struct model_index slots;
    struct pkv_tensor key;
    struct pkv_tensor value;
    struct pkv_tensor key_cache;
    struct pkv_tensor value_cache;
    struct pkv_tensor mapping;
    struct pkv_scatter_pa_kv_cache_options options;
};

static const int64_t good_slots[NUM_TOKENS] = {7, 3, -1, 11, 0, 5};

static void set_slots(struct setting *it, int32_t dtype, const int64_t *slots) {
    int64_t count = NUM_TOKENS;

    model_index_free(&it->slots);
    it->slots = model_index_make(dtype, 1, &count, slots);
    it->mapping = it->slots.tensor;
}

static struct setting setting_make(struct pkv_context *context, int32_t layout) {
    struct test_rng rng = test_rng_make(77);
    struct model_sizes sizes = {.key_layout = layout,
                                .value_layout = layout,
                                .key_dtype = PKV_DTYPE_F16,
                                .value_dtype = PKV_DTYPE_F16,
                                .num_blocks = 4,
                                .block_size = 3,
                                .num_heads = 2,
                                .key_head_size = 32,
                                .value_head_size = 16};
    struct setting it = {.context = context};

    it.cache = model_cache_make(&sizes, &rng);
    it.key_rows =
        model_rows_make(MODEL_ROWS_PACKED, &it.cache.key, NUM_TOKENS, TEST_GUARD_END, &rng);
    it.value_rows =
        model_rows_make(MODEL_ROWS_PACKED, &it.cache.value, NUM_TOKENS, TEST_GUARD_END, &rng);
    set_slots(&it, PKV_DTYPE_I32, good_slots);
    it.key = it.key_rows.tensor;
    it.value = it.value_rows.tensor;
    it.key_cache = it.cache.key.tensor;
    it.value_cache = it.cache.value.tensor;
    it.options = (struct pkv_scatter_pa_kv_cache_options){
        .struct_size = sizeof(it.options), .key_layout = layout, .value_layout = layout};
    return it;
}

static void setting_free(struct setting *it) {
    model_cache_free(&it->cache);
    model_rows_free(&it->key_rows);
    model_rows_free(&it->value_rows);
    model_index_free(&it->slots);
}

static enum pkv_status call(struct setting *it) {
    return pkv_scatter_pa_kv_cache(it->context, &it->key, &it->key_cache, &it->mapping, &it->value,
                                   &it->value_cache, &it->options, &error);
}

static void expect_refusal(struct setting *it, int32_t expected, int line) {
    check_refused(call(it), &error, expected, __FILE__, line);
    assert_string_equal(error.function, "pkv_scatter_pa_kv_cache");
    assert_true(model_cache_is_as_expected(&it->cache));
    assert_int_equal(pkv_context_last_error(it->context)->status, expected);
}

#define REFUSE(it, expected) expect_refusal(&(it), (expected), __LINE__)

static void the_setting_succeeds(void **state) {
    (void)state;
    for (int32_t layout = 0; layout < REF_NUM_LAYOUTS; layout++) {
        struct setting it = setting_make(contexts.all[0], layout);

        CHECK_OK(call(&it), &error);
        ref_scatter(&it.cache.key.ref, it.cache.key.shadow, &it.key_rows.ref,
                    it.key_rows.memory.data, good_slots);
        ref_scatter(&it.cache.value.ref, it.cache.value.shadow, &it.value_rows.ref,
                    it.value_rows.memory.data, good_slots);
        assert_true(model_cache_is_as_expected(&it.cache));
        setting_free(&it);
    }
}

/* The first bad slot is named: where it is, what it is, and what it was held against. */
static void a_slot_beyond_the_cache_is_refused(void **state) {
    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        for (int at = 0; at < NUM_TOKENS; at++) {
            struct setting it = setting_make(contexts.all[i], i % REF_NUM_LAYOUTS);
            int64_t slots[NUM_TOKENS];

            memcpy(slots, good_slots, sizeof(slots));
            slots[at] = 12;
            set_slots(&it, PKV_DTYPE_I32, slots);
            REFUSE(it, PKV_STATUS_SLOT_OUT_OF_RANGE);
            assert_string_equal(error.argument, "slot_mapping");
            assert_int_equal(error.index, at);
            assert_int_equal(error.value, 12);
            assert_int_equal(error.bound, 12);
            slots[at] = INT32_MAX;
            set_slots(&it, PKV_DTYPE_I32, slots);
            REFUSE(it, PKV_STATUS_SLOT_OUT_OF_RANGE);
            /* Its lower half alone would be a good slot. */
            slots[at] = (INT64_C(1) << 32) + 1;
            set_slots(&it, PKV_DTYPE_I64, slots);
            REFUSE(it, PKV_STATUS_SLOT_OUT_OF_RANGE);
            assert_int_equal(error.value, (INT64_C(1) << 32) + 1);
            slots[at] = INT64_MAX;
            set_slots(&it, PKV_DTYPE_I64, slots);
            it.options.duplicates = PKV_DUPLICATES_ASSUME_UNIQUE;
            REFUSE(it, PKV_STATUS_SLOT_OUT_OF_RANGE);
            slots[at] = 12;
            set_slots(&it, PKV_DTYPE_I64, slots);
            it.options.duplicates = PKV_DUPLICATES_REJECT;
            REFUSE(it, PKV_STATUS_SLOT_OUT_OF_RANGE);
            setting_free(&it);
        }
    }
}

static void duplicates_are_rejected_on_request(void **state) {
    static const int64_t twice[NUM_TOKENS] = {7, 3, -1, 11, 3, -1};
    static const int64_t padding_twice[NUM_TOKENS] = {7, 3, -1, 11, -1, -1};

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        struct setting it = setting_make(contexts.all[i], PKV_LAYOUT_NHD);

        it.options.duplicates = PKV_DUPLICATES_REJECT;
        set_slots(&it, PKV_DTYPE_I32, twice);
        REFUSE(it, PKV_STATUS_DUPLICATE_SLOT);
        assert_int_equal(error.index, 4);
        assert_int_equal(error.value, 3);
        set_slots(&it, PKV_DTYPE_I64, twice);
        REFUSE(it, PKV_STATUS_DUPLICATE_SLOT);
        set_slots(&it, PKV_DTYPE_I64, padding_twice);
        CHECK_OK(call(&it), &error);
        model_cache_accept(&it.cache);
        it.options.duplicates = PKV_DUPLICATES_ASSUME_UNIQUE;
        set_slots(&it, PKV_DTYPE_I32, good_slots);
        CHECK_OK(call(&it), &error);
        it.options.duplicates = 3;
        model_cache_accept(&it.cache);
        REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
        setting_free(&it);
    }
}

static void bad_tensors_are_refused(void **state) {
    struct setting good = setting_make(contexts.all[0], PKV_LAYOUT_NHD);
    struct setting it;

    (void)state;
    it = good;
    it.key.dtype = PKV_DTYPE_BF16;
    REFUSE(it, PKV_STATUS_DTYPE);
    it = good;
    it.value.dtype = PKV_DTYPE_F32;
    assert_int_not_equal(call(&it), PKV_STATUS_OK);
    it = good;
    it.mapping.dtype = PKV_DTYPE_I16;
    REFUSE(it, PKV_STATUS_DTYPE);
    it.mapping.dtype = PKV_DTYPE_U32;
    REFUSE(it, PKV_STATUS_DTYPE);
    it = good;
    it.mapping.ndim = 2;
    it.mapping.shape[1] = 1;
    REFUSE(it, PKV_STATUS_RANK);
    it = good;
    it.key.ndim = 2;
    REFUSE(it, PKV_STATUS_RANK);
    it = good;
    it.value.ndim = 4;
    it.value.shape[3] = 1;
    it.value.strides[3] = 1;
    REFUSE(it, PKV_STATUS_RANK);
    for (int axis = 0; axis < 3; axis++) {
        it = good;
        it.key.shape[axis] -= 1;
        REFUSE(it, PKV_STATUS_SHAPE);
        it = good;
        it.value.shape[axis] -= 1;
        REFUSE(it, PKV_STATUS_SHAPE);
        it = good;
        it.key.strides[axis] = -1;
        REFUSE(it, PKV_STATUS_STRIDE);
    }
    it = good;
    it.key.data = (char *)it.key.data + 1;
    REFUSE(it, PKV_STATUS_MISALIGNED);
    it = good;
    it.key.data = NULL;
    REFUSE(it, PKV_STATUS_NULL_ARGUMENT);
    it = good;
    it.key_cache.data = (char *)it.key_cache.data + 1;
    REFUSE(it, PKV_STATUS_MISALIGNED);
    it = good;
    it.value_cache.shape[0] -= 1;
    REFUSE(it, PKV_STATUS_SHAPE);
    setting_free(&good);
}

static void bad_options_are_refused(void **state) {
    struct setting good = setting_make(contexts.all[0], PKV_LAYOUT_NHD);
    struct setting it;

    (void)state;
    it = good;
    it.options.key_layout = 7;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
    it = good;
    it.options.scatter_mode = 5;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
    it = good;
    it.options.store_policy = 3;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
    it = good;
    it.options.reserved = 1;
    REFUSE(it, PKV_STATUS_INVALID_ARGUMENT);
    it = good;
    it.options.struct_size = 3;
    REFUSE(it, PKV_STATUS_STRUCT_SIZE);
    setting_free(&good);
}

static void missing_arguments_are_refused(void **state) {
    struct setting it = setting_make(contexts.all[0], PKV_LAYOUT_NHD);
    struct pkv_context *c = it.context;

    (void)state;
    CHECK_REFUSED(pkv_scatter_pa_kv_cache(NULL, &it.key, &it.key_cache, &it.mapping, &it.value,
                                          &it.value_cache, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_pa_kv_cache(c, NULL, &it.key_cache, &it.mapping, &it.value,
                                          &it.value_cache, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_pa_kv_cache(c, &it.key, NULL, &it.mapping, &it.value, &it.value_cache,
                                          NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_pa_kv_cache(c, &it.key, &it.key_cache, NULL, &it.value,
                                          &it.value_cache, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_pa_kv_cache(c, &it.key, &it.key_cache, &it.mapping, NULL,
                                          &it.value_cache, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    /* A value and no cache for it: it would be lost. */
    CHECK_REFUSED(pkv_scatter_pa_kv_cache(c, &it.key, &it.key_cache, &it.mapping, &it.value, NULL,
                                          NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    assert_true(model_cache_is_as_expected(&it.cache));
    setting_free(&it);
}

static void pa_nz_without_values_is_refused(void **state) {
    struct setting it = setting_make(contexts.all[0], PKV_LAYOUT_PA_NZ);

    (void)state;
    CHECK_REFUSED(pkv_scatter_pa_kv_cache(it.context, &it.key, &it.key_cache, &it.mapping, NULL,
                                          NULL, &it.options, &error),
                  &error, PKV_STATUS_UNSUPPORTED);
    assert_true(model_cache_is_as_expected(&it.cache));

    /* The cache can be described, but no plan writes it. */
    const struct pkv_cache_options options = {.struct_size = sizeof(options),
                                              .key_layout = PKV_LAYOUT_PA_NZ};
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    struct pkv_scatter_plan *plan = NULL;
    CHECK_OK(pkv_cache_init(&cache, &it.key_cache, NULL, &options, &error), &error);
    CHECK_REFUSED(pkv_scatter_plan_create(&plan, it.context, &cache, NULL, &error), &error,
                  PKV_STATUS_UNSUPPORTED);
    assert_null(plan);
    setting_free(&it);
}

static void nct_rows_must_lie_in_their_tensor(void **state) {
    struct setting good = setting_make(contexts.all[0], PKV_LAYOUT_NHD);
    struct setting it;

    (void)state;
    good.key.ndim = good.value.ndim = 2;
    good.key.shape[1] = 64;
    good.value.shape[1] = 32;
    memset(good.key.strides, 0, sizeof(good.key.strides));
    memset(good.value.strides, 0, sizeof(good.value.strides));
    good.options.scatter_mode = PKV_SCATTER_MODE_NCT;
    it = good;
    it.options.key_offset = 1;
    REFUSE(it, PKV_STATUS_SHAPE);
    assert_string_equal(error.argument, "key");
    it = good;
    it.options.value_stride = 33;
    REFUSE(it, PKV_STATUS_SHAPE);
    assert_string_equal(error.argument, "value");
    it = good;
    it.options.key_stride = INT64_MAX / 2;
    REFUSE(it, PKV_STATUS_SHAPE);
    assert_int_equal(error.bound, PKV_ERROR_NONE);
    it.options.key_offset = INT64_MAX;
    REFUSE(it, PKV_STATUS_SHAPE);
    assert_int_equal(error.bound, PKV_ERROR_NONE);
    it = good;
    it.value.shape[0]--;
    REFUSE(it, PKV_STATUS_SHAPE);
    assert_string_equal(error.argument, "value");
    assert_int_equal(error.axis, 0);
    assert_int_equal(error.value, error.bound - 1);
    it.value.shape[0] += 2;
    REFUSE(it, PKV_STATUS_SHAPE);
    it = good;
    it.key.strides[0] = 65;
    it.key.strides[1] = 1;
    it.key.shape[0] -= 1;
    REFUSE(it, PKV_STATUS_STRIDE);
    it = good;
    it.value.ndim = 3;
    it.value.shape[2] = 1;
    REFUSE(it, PKV_STATUS_RANK);
    assert_true(model_cache_is_as_expected(&good.cache));
    CHECK_OK(call(&good), &error);
    it = good;
    it.value.shape[0]--; /* with a stride of its own: rows overlap, and there is room for all */
    it.options.value_stride = 1;
    CHECK_OK(call(&it), &error);
    setting_free(&good);
}

/* Strides and offsets of a mode that is not chosen would be silently ignored; negative ones lead
 * out of the tensor. */
static void nct_numbers_are_checked(void **state) {
    static const size_t numbers[] = {
        offsetof(struct pkv_scatter_pa_kv_cache_options, key_stride),
        offsetof(struct pkv_scatter_pa_kv_cache_options, value_stride),
        offsetof(struct pkv_scatter_pa_kv_cache_options, key_offset),
        offsetof(struct pkv_scatter_pa_kv_cache_options, value_offset)};
    static const char *const names[] = {"options->key_stride", "options->value_stride",
                                        "options->key_offset", "options->value_offset"};
    struct setting it = setting_make(contexts.all[0], PKV_LAYOUT_NHD);

    (void)state;
    for (int i = 0; i < 4; i++) {
        for (int mode = PKV_SCATTER_MODE_NONE; mode <= PKV_SCATTER_MODE_NCT; mode++) {
            int64_t value = mode == PKV_SCATTER_MODE_NONE ? 4 : -4;
            struct setting wrong = it;

            wrong.options.scatter_mode = mode;
            memcpy((char *)&wrong.options + numbers[i], &value, sizeof(value));
            REFUSE(wrong, PKV_STATUS_INVALID_ARGUMENT);
            assert_string_equal(error.argument, names[i]);
            assert_int_equal(error.value, value);
        }
    }
    setting_free(&it);
}

/* Checks look at many slots at once: the bad one may be anywhere among them. */
static void one_bad_slot_among_many(void **state) {
    enum { COUNT = 150, NUM_SLOTS = 12 };
    uint8_t storage[NUM_SLOTS];
    uint8_t source[COUNT] = {0};
    uint8_t before[NUM_SLOTS];
    struct pkv_tensor cache = pkv_tensor_make(storage, PKV_DTYPE_U8, 4, (int64_t[]){4, 3, 1, 1});
    struct pkv_tensor key = pkv_tensor_make(source, PKV_DTYPE_U8, 3, (int64_t[]){COUNT, 1, 1});

    (void)state;
    memset(storage, 7, sizeof(storage));
    memcpy(before, storage, sizeof(storage));
    for (int64_t at = 0; at < COUNT; at++) {
        int64_t wide[COUNT];
        int32_t narrow[2 * COUNT]; /* every other entry, so that the stride is not 1 */
        struct pkv_tensor mapping = pkv_tensor_make(wide, PKV_DTYPE_I64, 1, (int64_t[]){COUNT});

        for (int64_t t = 0; t < COUNT; t++) {
            wide[t] = t == at ? NUM_SLOTS : t % (NUM_SLOTS + 1) - 1;
            narrow[2 * t] = (int32_t)wide[t];
            narrow[2 * t + 1] = NUM_SLOTS;
        }
        for (int i = 0; i < 2; i++) {
            CHECK_REFUSED(pkv_scatter_pa_kv_cache(contexts.all[at % contexts.count], &key, &cache,
                                                  &mapping, NULL, NULL, NULL, &error),
                          &error, PKV_STATUS_SLOT_OUT_OF_RANGE);
            assert_int_equal(error.index, at);
            mapping = pkv_tensor_make(narrow, PKV_DTYPE_I32, 1, (int64_t[]){COUNT});
            mapping.strides[0] = 2;
        }
        assert_memory_equal(storage, before, sizeof(storage));
    }
}

/* Sources inside the cache: allowed as long as no row that is read is written. */
static void a_source_in_the_cache(void **state) {
    uint16_t storage[8 * 4];
    int64_t slots[2] = {6, 7};
    struct pkv_tensor cache = pkv_tensor_make(storage, PKV_DTYPE_F16, 4, (int64_t[]){2, 4, 1, 4});
    struct pkv_tensor key = pkv_tensor_make(storage, PKV_DTYPE_F16, 3, (int64_t[]){2, 1, 4});
    struct pkv_tensor mapping = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, (int64_t[]){2});

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        uint16_t before[8 * 4];

        for (int j = 0; j < 32; j++) {
            storage[j] = (uint16_t)j;
        }
        memcpy(before, storage, sizeof(before));
        slots[0] = 6;
        slots[1] = 7;
        CHECK_OK(pkv_scatter_pa_kv_cache(contexts.all[i], &key, &cache, &mapping, NULL, NULL, NULL,
                                         &error),
                 &error);
        assert_memory_equal(storage, before, 24 * sizeof(uint16_t));
        assert_memory_equal(storage + 24, before, 8 * sizeof(uint16_t));
        memcpy(before, storage, sizeof(before));
        slots[0] = 1;
        CHECK_REFUSED(pkv_scatter_pa_kv_cache(contexts.all[i], &key, &cache, &mapping, NULL, NULL,
                                              NULL, &error),
                      &error, PKV_STATUS_OVERLAP);
        assert_memory_equal(storage, before, sizeof(before));
    }
}

/* The value may lie in the key's cache and the key in the value's: likewise. */
static void sources_in_the_other_cache(void **state) {
    uint16_t storage[2][8 * 4] = {{0}};
    int64_t slot = 3;
    struct pkv_tensor caches[2], rows[2];
    struct pkv_tensor mapping = pkv_tensor_make(&slot, PKV_DTYPE_I64, 1, (int64_t[]){1});
    uint16_t source[4] = {1, 2, 3, 4};

    (void)state;
    for (int i = 0; i < 2; i++) {
        caches[i] = pkv_tensor_make(storage[i], PKV_DTYPE_F16, 4, (int64_t[]){2, 4, 1, 4});
    }
    for (int side = 0; side < 2; side++) {
        rows[side] = pkv_tensor_make(source, PKV_DTYPE_F16, 3, (int64_t[]){1, 1, 4});
        for (int64_t row = 0; row < 8; row++) {
            int32_t status;

            rows[!side] = rows[side];
            rows[!side].data = storage[side] + row * 4;
            status = (int32_t)pkv_scatter_pa_kv_cache(contexts.all[0], &rows[0], &caches[0],
                                                      &mapping, &rows[1], &caches[1], NULL, &error);
            assert_int_equal(status, row == slot ? PKV_STATUS_OVERLAP : PKV_STATUS_OK);
            if (row == slot) {
                assert_string_equal(error.argument, side ? "key" : "value");
            }
        }
    }
}

/* Only the last piece of a source lies in the cache that comes behind it: its last row, or its last
 * head. */
static void the_end_of_a_source_in_the_cache(void **state) {
    uint16_t storage[4 + 8 * 4] = {0};
    int64_t slots[2] = {5, 3};
    struct pkv_tensor cache =
        pkv_tensor_make(storage + 4, PKV_DTYPE_F16, 4, (int64_t[]){2, 4, 2, 2});

    (void)state;
    for (int axis = 0; axis < 3; axis++) {
        for (int64_t row = 0; row < 8; row++) {
            const int64_t tokens = axis == 0 ? 2 : 1;
            struct pkv_tensor key =
                pkv_tensor_make(storage, PKV_DTYPE_F16, 3, (int64_t[]){tokens, 2, 2});
            struct pkv_tensor mapping =
                pkv_tensor_make(slots, PKV_DTYPE_I64, 1, (int64_t[]){tokens});
            const int meets = row == slots[0] || (axis == 0 && row == slots[1]);
            enum pkv_status status;

            key.strides[0] = 4;
            key.strides[1] = 2;
            key.strides[2] = 1;
            key.strides[axis] = 4 + row * 4;
            status = pkv_scatter_pa_kv_cache(contexts.all[0], &key, &cache, &mapping, NULL, NULL,
                                             NULL, &error);
            assert_int_equal(status, meets ? PKV_STATUS_OVERLAP : PKV_STATUS_OK);
        }
    }
}

/* The slot mapping in a row that is written would change under the loop. */
static void slots_in_the_cache(void **state) {
    static _Alignas(8) int32_t storage[8 * 4];
    int32_t source[2 * 4] = {0};
    struct pkv_tensor cache = pkv_tensor_make(storage, PKV_DTYPE_I32, 4, (int64_t[]){2, 4, 1, 4});
    struct pkv_tensor key = pkv_tensor_make(source, PKV_DTYPE_I32, 3, (int64_t[]){2, 1, 4});
    struct pkv_tensor mapping = pkv_tensor_make(storage + 4, PKV_DTYPE_I32, 1, (int64_t[]){2});

    (void)state;
    storage[4] = 3;
    storage[5] = 1;
    CHECK_REFUSED(
        pkv_scatter_pa_kv_cache(contexts.all[0], &key, &cache, &mapping, NULL, NULL, NULL, &error),
        &error, PKV_STATUS_OVERLAP);
    assert_int_equal(storage[4], 3);
    assert_int_equal(storage[5], 1);
    storage[5] = 4;
    CHECK_OK(
        pkv_scatter_pa_kv_cache(contexts.all[0], &key, &cache, &mapping, NULL, NULL, NULL, &error),
        &error);
    assert_int_equal(storage[4], 3);
}

static void a_plan_takes_its_own_cache_only(void **state) {
    struct setting it = setting_make(contexts.all[0], PKV_LAYOUT_NHD);
    struct pkv_scatter_plan *plan = NULL;
    struct pkv_step *step = make_step(0, 0);
    struct pkv_step_indices indices = {.slot_mapping = it.mapping};
    struct pkv_cache cache;
    struct pkv_cache other;

    (void)state;
    CHECK_OK(init_cache(&cache, &it.cache, &error), &error);
    CHECK_OK(pkv_scatter_plan_create(&plan, it.context, &cache, NULL, &error), &error);
    CHECK_REFUSED(pkv_scatter_run(it.context, plan, step, &cache, &it.key, &it.value, &error),
                  &error, PKV_STATUS_BAD_STATE);
    CHECK_OK(pkv_step_set(it.context, step, &cache, &indices, &error), &error);
    other = cache;
    other.key.layout = PKV_LAYOUT_HND;
    CHECK_REFUSED(pkv_scatter_run(it.context, plan, step, &other, &it.key, &it.value, &error),
                  &error, PKV_STATUS_LAYOUT);
    other = cache;
    other.key.block_stride_bytes += 64;
    CHECK_REFUSED(pkv_scatter_run(it.context, plan, step, &other, &it.key, &it.value, &error),
                  &error, PKV_STATUS_LAYOUT);
    /* Another number of blocks than the step's slots were checked against. */
    other = cache;
    other.num_blocks -= 1;
    other.num_slots -= other.block_size;
    CHECK_REFUSED(pkv_scatter_run(it.context, plan, step, &other, &it.key, &it.value, &error),
                  &error, PKV_STATUS_LAYOUT);
    for (int64_t parts = -1; parts <= 2; parts++) {
        for (int64_t part = -1; part <= 3; part++) {
            if (parts < 1 || part < 0 || part >= parts) {
                CHECK_REFUSED(pkv_scatter_run_part(it.context, plan, step, &cache, &it.key,
                                                   &it.value, part, parts, &error),
                              &error, PKV_STATUS_INVALID_ARGUMENT);
            }
        }
    }
    /* A refused set leaves no indices behind. */
    indices.slot_mapping.dtype = PKV_DTYPE_F32;
    CHECK_REFUSED(pkv_step_set(it.context, step, &cache, &indices, &error), &error,
                  PKV_STATUS_DTYPE);
    CHECK_REFUSED(pkv_scatter_run(it.context, plan, step, &cache, &it.key, &it.value, &error),
                  &error, PKV_STATUS_BAD_STATE);
    assert_true(model_cache_is_as_expected(&it.cache));
    pkv_step_destroy(step);
    pkv_scatter_plan_destroy(plan);
    setting_free(&it);
}

/* A new step for another layer's cache: same pattern, other memory. */
static void one_plan_serves_many_layers(void **state) {
    struct setting one = setting_make(contexts.all[0], PKV_LAYOUT_HND);
    struct setting two = setting_make(contexts.all[0], PKV_LAYOUT_HND);
    struct pkv_scatter_plan *plan = NULL;
    struct pkv_step *step = make_step(NUM_TOKENS, 0);
    struct pkv_step_indices indices = {.slot_mapping = one.mapping};
    struct pkv_cache cache;

    (void)state;
    CHECK_OK(init_cache(&cache, &one.cache, &error), &error);
    CHECK_OK(pkv_scatter_plan_create(&plan, one.context, &cache, NULL, &error), &error);
    CHECK_OK(pkv_step_set(one.context, step, &cache, &indices, &error), &error);
    CHECK_OK(init_cache(&cache, &two.cache, &error), &error);
    CHECK_OK(pkv_scatter_run(one.context, plan, step, &cache, &one.key, &one.value, &error),
             &error);
    assert_true(model_cache_is_as_expected(&one.cache));
    ref_scatter(&two.cache.key.ref, two.cache.key.shadow, &one.key_rows.ref,
                one.key_rows.memory.data, good_slots);
    ref_scatter(&two.cache.value.ref, two.cache.value.shadow, &one.value_rows.ref,
                one.value_rows.memory.data, good_slots);
    assert_true(model_cache_is_as_expected(&two.cache));
    pkv_step_destroy(step);
    pkv_scatter_plan_destroy(plan);
    setting_free(&one);
    setting_free(&two);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_setting_succeeds),
        cmocka_unit_test(a_slot_beyond_the_cache_is_refused),
        cmocka_unit_test(duplicates_are_rejected_on_request),
        cmocka_unit_test(bad_tensors_are_refused),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(missing_arguments_are_refused),
        cmocka_unit_test(pa_nz_without_values_is_refused),
        cmocka_unit_test(nct_rows_must_lie_in_their_tensor),
        cmocka_unit_test(nct_numbers_are_checked),
        cmocka_unit_test(one_bad_slot_among_many),
        cmocka_unit_test(a_source_in_the_cache),
        cmocka_unit_test(sources_in_the_other_cache),
        cmocka_unit_test(the_end_of_a_source_in_the_cache),
        cmocka_unit_test(slots_in_the_cache),
        cmocka_unit_test(a_plan_takes_its_own_cache_only),
        cmocka_unit_test(one_plan_serves_many_layers),
    };

    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
