/* SPDX-License-Identifier: MIT
 *
 * ONNX's TensorScatter as a scatter: batch entry b is a block of sequence_length slots, and token
 * t of its update goes to position write_indices[b] + t, modulo the length in circular mode.
 */
#include "check.h"
#include "data.h"

#include <stdio.h>
#include <stdlib.h>

static const char folder[] = "golden/onnx";
static struct test_manifest manifest;

static const struct test_record *record_of(const char *test, const char *kind, const char *name) {
    const struct test_record *record = test_manifest_find(&manifest, test, kind, name);

    if (record == NULL) {
        fail_msg("%s has no %s %s", test, kind, name);
    }
    return record;
}

static void *read_tensor(const struct test_record *record, const char *type, size_t element_bytes) {
    size_t expected = element_bytes;
    size_t bytes = 0;
    void *data = test_data_read(folder, record->file, &bytes);

    assert_non_null(data);
    assert_string_equal(record->type, type);
    for (int32_t i = 0; i < record->ndim; i++) {
        expected *= (size_t)record->shape[i];
    }
    assert_int_equal(bytes, expected);
    return data;
}

static const char *attribute_of(const char *test, const char *name, const char *fallback) {
    const struct test_record *record = test_manifest_find(&manifest, test, "attr", name);

    return record != NULL ? record->type : fallback;
}

/* past [batch, heads, length, size] is an HND cache of one block a batch entry; [batch, length,
 * size] is one without heads. The update has the same dimensions, with its own length. */
static void run_case(const char *test) {
    const struct test_record *past = record_of(test, "in", "past_cache");
    const struct test_record *update = record_of(test, "in", "update");
    const struct test_record *indices = record_of(test, "in", "write_indices");
    const struct test_record *present = record_of(test, "out", "present_cache");
    int circular = strcmp(attribute_of(test, "mode", "linear"), "circular") == 0;
    int has_heads = past->ndim == 4;
    int64_t batch = past->shape[0];
    int64_t heads = has_heads ? past->shape[1] : 1;
    int64_t length = past->shape[1 + has_heads];
    int64_t size = past->shape[2 + has_heads];
    int64_t count = update->shape[1 + has_heads];
    int64_t num_tokens = batch * count;
    float *cache = read_tensor(past, "f32", sizeof(float));
    float *source = read_tensor(update, "f32", sizeof(float));
    int64_t *starts = read_tensor(indices, "i64", sizeof(int64_t));
    float *expected = read_tensor(present, "f32", sizeof(float));
    int64_t *slots = calloc((size_t)num_tokens, sizeof(*slots));
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_scatter_pa_kv_cache_options options = {.key_layout = PKV_LAYOUT_HND};
    struct pkv_context *context = NULL;
    struct pkv_tensor key_cache, mapping;

    assert_true(past->ndim == 3 || past->ndim == 4);
    assert_int_equal(update->ndim, past->ndim);
    assert_non_null(slots);
    key_cache = pkv_tensor_make(cache, PKV_DTYPE_F32, 4, (int64_t[]){batch, heads, length, size});
    mapping = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, &count);
    CHECK_OK(pkv_context_create(&context, NULL, &error), &error);
    for (int64_t b = 0; b < batch; b++) {
        struct pkv_tensor key = pkv_tensor_make(source + b * heads * count * size, PKV_DTYPE_F32, 3,
                                                (int64_t[]){count, heads, size});

        key.strides[0] = size;
        key.strides[1] = count * size;
        key.strides[2] = 1;
        for (int64_t t = 0; t < count; t++) {
            int64_t position = starts[b] + t;

            slots[t] = b * length + (circular ? position % length : position);
        }
        CHECK_OK(pkv_scatter_pa_kv_cache(context, &key, &key_cache, &mapping, NULL, NULL, &options,
                                         &error),
                 &error);
    }
    assert_memory_equal(cache, expected, (size_t)(batch * heads * length * size) * sizeof(float));
    pkv_context_destroy(context);
    free(cache);
    free(source);
    free(starts);
    free(expected);
    free(slots);
}

static void every_case_of_the_manifest(void **state) {
    int num_cases = 0;

    (void)state;
    for (int64_t i = 0; i < manifest.num_records; i++) {
        const struct test_record *record = &manifest.records[i];

        if (strncmp(record->test, "test_tensorscatter", 18) == 0 &&
            strcmp(record->kind, "op") == 0) {
            print_message("%s\n", record->test);
            run_case(record->test);
            num_cases++;
        }
    }
    assert_true(num_cases > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_case_of_the_manifest)};
    int failed;

    test_data_require(folder);
    if (!test_manifest_read(&manifest, folder))
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_manifest_free(&manifest);
    return failed;
}
