/* SPDX-License-Identifier: MIT
 *
 * FlashInfer's append_paged_kv_cache: page indices to a slot mapping, the slot mapping to a
 * scatter, and the caches must be FlashInfer's to the bit.
 */
#include "check.h"
#include "data.h"

#include <stdio.h>
#include <stdlib.h>

static const char folder[] = "golden/flashinfer";
static const char append[] = "append_paged_kv_cache_";
static struct test_manifest manifest;

/* A tensor of the case with its data, which the caller frees. */
static struct pkv_tensor read_tensor(const char *test, const char *kind, const char *name) {
    const struct test_record *record = test_manifest_find(&manifest, test, kind, name);
    struct pkv_tensor tensor;
    size_t bytes = 0;
    int64_t expected;

    if (record == NULL) {
        fail_msg("%s has no %s %s", test, kind, name);
    }
    tensor = pkv_tensor_make(test_data_read(folder, record->file, &bytes),
                             strcmp(record->type, "bfloat16") == 0 ? PKV_DTYPE_BF16 : PKV_DTYPE_I32,
                             record->ndim, record->shape);
    assert_non_null(tensor.data);
    assert_true(strcmp(record->type, "bfloat16") == 0 || strcmp(record->type, "int32") == 0);
    expected = tensor.dtype == PKV_DTYPE_BF16 ? 2 : 4;
    for (int32_t i = 0; i < tensor.ndim; i++) {
        expected *= tensor.shape[i];
    }
    assert_int_equal(bytes, expected);
    return tensor;
}

static size_t cache_bytes(const struct pkv_tensor *cache) {
    return (size_t)(cache->shape[0] * cache->shape[1] * cache->shape[2] * cache->shape[3] * 2);
}

enum { KEY, VALUE, BATCH, POSITIONS, INDICES, INDPTR, LAST, KEY_CACHE, VALUE_CACHE, NUM_INPUTS };

static void run_case(const char *test, int32_t run_mode) {
    static const char *const names[NUM_INPUTS] = {
        "append_key", "append_value",     "batch_indices",   "positions",      "kv_indices",
        "kv_indptr",  "kv_last_page_len", "paged_kv_cache0", "paged_kv_cache1"};
    struct pkv_context_options options = {.run_mode = run_mode};
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_context *context = NULL;
    struct pkv_tensor in[NUM_INPUTS];
    struct pkv_tensor out_key = read_tensor(test, "out", "0");
    struct pkv_tensor out_value = read_tensor(test, "out", "1");
    struct pkv_tensor mapping;
    int64_t num_tokens;
    int32_t *slots;

    for (int i = 0; i < NUM_INPUTS; i++) {
        in[i] = read_tensor(test, "in", names[i]);
    }
    num_tokens = in[KEY].shape[0];
    slots = calloc((size_t)num_tokens, sizeof(*slots));
    assert_non_null(slots);
    mapping = pkv_tensor_make(slots, PKV_DTYPE_I32, 1, &num_tokens);
    CHECK_OK(pkv_context_create(&context, &options, &error), &error);
    CHECK_OK(pkv_slot_mapping_from_page_indices(&in[BATCH], &in[POSITIONS], &in[INDICES],
                                                &in[INDPTR], &in[LAST], in[KEY_CACHE].shape[1],
                                                in[KEY_CACHE].shape[0], &mapping, &error),
             &error);
    CHECK_OK(pkv_scatter_pa_kv_cache(context, &in[KEY], &in[KEY_CACHE], &mapping, &in[VALUE],
                                     &in[VALUE_CACHE], NULL, &error),
             &error);
    assert_memory_equal(in[KEY_CACHE].data, out_key.data, cache_bytes(&out_key));
    assert_memory_equal(in[VALUE_CACHE].data, out_value.data, cache_bytes(&out_value));
    pkv_context_destroy(context);
    for (int i = 0; i < NUM_INPUTS; i++) {
        free(in[i].data);
    }
    free(out_key.data);
    free(out_value.data);
    free(slots);
}

static void every_case_of_the_manifest(void **state) {
    const char *last = "";
    int num_cases = 0;

    (void)state;
    for (int64_t i = 0; i < manifest.num_records; i++) {
        const char *test = manifest.records[i].test;

        if (strncmp(test, append, strlen(append)) == 0 && strcmp(test, last) != 0) {
            print_message("%s\n", test);
            run_case(test, PKV_RUN_MODE_NATIVE);
            run_case(test, PKV_RUN_MODE_SIM);
            num_cases++;
            last = test;
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
