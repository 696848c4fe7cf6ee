/* SPDX-License-Identifier: MIT
 *
 * ONNX's Attention as paged attention: batch entry b is a sequence whose past and new keys are
 * scattered into blocks, and Y and the present keys and values are what ONNX says.
 *
 * ONNX counts the positions of causal queries from the end of the past, whatever keys follow; so a
 * causal sequence ends with its last query, and keys behind it lie in the cache unread. A mask that
 * differs by head is asked head by head. The matrix of products (qk_matmul_output) is not offered.
 */
#include "check.h"
#include "data.h"
#include "numbers.h"
#include "golden_contexts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char folder[] = "golden/onnx";
static struct test_manifest manifest;
static struct pkv_error error = {.struct_size = sizeof(error)};
static struct pkv_context *contexts[NUM_CONTEXTS];

enum { BLOCK_SIZE = 4 };

/* A tensor of the case with its data, which the caller frees; data NULL: there is none. */
static struct pkv_tensor read_tensor(const char *test, const char *kind, const char *name) {
    const struct test_record *record = test_manifest_find(&manifest, test, kind, name);
    struct pkv_tensor tensor = {0};
    size_t bytes = 0;
    int64_t expected;

    if (record == NULL) {
        return tensor;
    }
    tensor = pkv_tensor_make(test_data_read(folder, record->file, &bytes),
                             pkv_dtype_from_name(record->type), record->ndim, record->shape);
    assert_non_null(tensor.data);
    expected = pkv_dtype_bytes(tensor.dtype);
    for (int32_t i = 0; i < tensor.ndim; i++) {
        expected *= tensor.shape[i];
    }
    assert_int_equal(bytes, expected);
    return tensor;
}

static double attribute(const char *test, const char *name, double fallback) {
    const struct test_record *record = test_manifest_find(&manifest, test, "attr", name);

    return record != NULL ? strtod(record->type, NULL) : fallback;
}

struct onnx_case {
    struct pkv_tensor q, k, v, mask, past_key, past_value, y, present_key, present_value;
    int64_t batch, heads, kv_heads, head_size, value_size;
    int64_t num_queries, num_new, num_past;
    int64_t num_tokens; /* past and new */
    int64_t seq_len;    /* of them attended to */
    int64_t width;      /* blocks of a sequence */
    int64_t *table;     /* [batch, width] */
    struct pkv_tensor key_cache, value_cache;
};

/* The heads of a tensor: [batch, heads, length, size], or [batch, length, heads * size] with the
 * number of an attribute. */
static int64_t heads_of(const struct pkv_tensor *tensor, const char *test, const char *name) {
    return tensor->ndim == 4 ? tensor->shape[1] : (int64_t)attribute(test, name, 0);
}

static int64_t length_of(const struct pkv_tensor *tensor) {
    return tensor->shape[tensor->ndim == 4 ? 2 : 1];
}

static int64_t size_of(const struct pkv_tensor *tensor, int64_t heads) {
    return tensor->ndim == 4 ? tensor->shape[3] : tensor->shape[2] / heads;
}

/* Batch entry b as [length, heads, size]. */
static struct pkv_tensor entry_of(const struct pkv_tensor *tensor, int64_t b, int64_t heads) {
    int64_t length = length_of(tensor), size = size_of(tensor, heads);
    struct pkv_tensor entry = {.data = (char *)tensor->data +
                                       b * length * heads * size * pkv_dtype_bytes(tensor->dtype),
                               .dtype = tensor->dtype,
                               .ndim = 3,
                               .shape = {length, heads, size}};

    entry.strides[0] = tensor->ndim == 4 ? size : heads * size;
    entry.strides[1] = tensor->ndim == 4 ? length * size : size;
    entry.strides[2] = 1;
    return entry;
}

static void *element(const struct pkv_tensor *rows, int64_t t, int64_t h, int64_t d) {
    return (char *)rows->data +
           (t * rows->strides[0] + h * rows->strides[1] + d * rows->strides[2]) *
               pkv_dtype_bytes(rows->dtype);
}

static double number(const struct pkv_tensor *rows, int64_t t, int64_t h, int64_t d) {
    const struct num_format *format = num_format_of(rows->dtype);

    return num_float_of_code(format, num_read(format, element(rows, t, h, d)));
}

static struct pkv_tensor poisoned(int32_t dtype, int64_t blocks, int64_t heads, int64_t size) {
    size_t bytes = (size_t)(blocks * heads * BLOCK_SIZE * size * pkv_dtype_bytes(dtype));
    void *data = malloc(bytes);

    assert_non_null(data);
    memset(data, 0xff, bytes);
    return pkv_tensor_make(data, dtype, 4, (int64_t[]){blocks, heads, BLOCK_SIZE, size});
}

static void read_case(struct onnx_case *it, const char *test) {
    int is_causal = attribute(test, "is_causal", 0) == 1;

    *it = (struct onnx_case){.q = read_tensor(test, "in", "Q"),
                             .k = read_tensor(test, "in", "K"),
                             .v = read_tensor(test, "in", "V"),
                             .mask = read_tensor(test, "in", "attn_mask"),
                             .past_key = read_tensor(test, "in", "past_key"),
                             .past_value = read_tensor(test, "in", "past_value"),
                             .y = read_tensor(test, "out", "Y"),
                             .present_key = read_tensor(test, "out", "present_key"),
                             .present_value = read_tensor(test, "out", "present_value")};
    it->batch = it->q.shape[0];
    it->heads = heads_of(&it->q, test, "q_num_heads");
    it->kv_heads = heads_of(&it->k, test, "kv_num_heads");
    it->head_size = size_of(&it->q, it->heads);
    it->value_size = size_of(&it->v, it->kv_heads);
    it->num_queries = length_of(&it->q);
    it->num_new = length_of(&it->k);
    it->num_past = it->past_key.data ? length_of(&it->past_key) : 0;
    it->num_tokens = it->num_past + it->num_new;
    it->seq_len = is_causal ? it->num_past + it->num_queries : it->num_tokens;
    assert_true(it->seq_len <= it->num_tokens && it->num_queries <= it->seq_len);
    it->width = (it->num_tokens + BLOCK_SIZE - 1) / BLOCK_SIZE;
    it->table = malloc((size_t)(it->batch * it->width) * sizeof(*it->table));
    assert_non_null(it->table);
    for (int64_t i = 0; i < it->batch * it->width; i++) {
        it->table[i] = it->batch * it->width - i; /* block 0 is nobody's */
    }
    it->key_cache = poisoned(it->k.dtype, it->batch * it->width + 1, it->kv_heads, it->head_size);
    it->value_cache =
        poisoned(it->v.dtype, it->batch * it->width + 1, it->kv_heads, it->value_size);
}

static void free_case(struct onnx_case *it) {
    void *const all[] = {it->q.data,    it->k.data,           it->v.data,
                         it->mask.data, it->past_key.data,    it->past_value.data,
                         it->y.data,    it->present_key.data, it->present_value.data,
                         it->table,     it->key_cache.data,   it->value_cache.data};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        free(all[i]);
    }
}

static void write_tokens(const struct onnx_case *it, struct pkv_context *context,
                         const struct pkv_tensor *keys, const struct pkv_tensor *values,
                         int64_t first) {
    struct pkv_scatter_pa_kv_cache_options options = {.key_layout = PKV_LAYOUT_HND,
                                                      .value_layout = PKV_LAYOUT_HND};
    int64_t slots[64];

    for (int64_t b = 0; b < it->batch; b++) {
        struct pkv_tensor key = entry_of(keys, b, it->kv_heads);
        struct pkv_tensor value = entry_of(values, b, it->kv_heads);
        struct pkv_tensor mapping = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, key.shape);

        assert_true(key.shape[0] <= 64);
        for (int64_t t = 0; t < key.shape[0]; t++) {
            int64_t position = first + t;

            slots[t] = it->table[b * it->width + position / BLOCK_SIZE] * BLOCK_SIZE +
                       position % BLOCK_SIZE;
        }
        CHECK_OK(pkv_scatter_pa_kv_cache(context, &key, &it->key_cache, &mapping, &value,
                                         &it->value_cache, &options, &error),
                 &error);
    }
}

/* What a gather brings back must be ONNX's to the bit. */
static void check_present(const struct onnx_case *it, struct pkv_context *context) {
    struct pkv_gather_pa_kv_cache_options options = {
        .key_layout = PKV_LAYOUT_HND, .value_layout = PKV_LAYOUT_HND, .seq_lens_are_plain = 1};
    struct pkv_tensor table =
        pkv_tensor_make(it->table, PKV_DTYPE_I64, 2, (int64_t[]){it->batch, it->width});
    struct pkv_tensor seq_lens, keys, values;
    int64_t lengths[8];

    assert_true(it->batch <= 8);
    for (int64_t b = 0; b < it->batch; b++) {
        lengths[b] = it->num_tokens;
    }
    seq_lens = pkv_tensor_make(lengths, PKV_DTYPE_I64, 1, &it->batch);
    keys = pkv_tensor_make(malloc(65536), it->k.dtype, 3,
                           (int64_t[]){it->batch * it->num_tokens, it->kv_heads, it->head_size});
    values = pkv_tensor_make(malloc(65536), it->v.dtype, 3,
                             (int64_t[]){it->batch * it->num_tokens, it->kv_heads, it->value_size});
    assert_true(keys.data && values.data);
    assert_true(it->batch * it->num_tokens * it->kv_heads * (it->head_size + it->value_size) * 4 <=
                65536);
    CHECK_OK(pkv_gather_pa_kv_cache(context, &it->key_cache, &it->value_cache, &table, &seq_lens,
                                    &keys, &values, NULL, &options, &error),
             &error);
    for (int64_t b = 0; b < it->batch; b++) {
        for (int side = 0; side < 2; side++) {
            struct pkv_tensor wanted =
                entry_of(side ? &it->present_value : &it->present_key, b, it->kv_heads);
            struct pkv_tensor got = side ? values : keys;
            int64_t size = got.shape[2];

            got.strides[0] = it->kv_heads * size;
            got.strides[1] = size;
            got.strides[2] = 1;
            assert_int_equal(wanted.shape[0], it->num_tokens);
            for (int64_t e = 0; e < it->num_tokens * it->kv_heads; e++) {
                int64_t t = e / it->kv_heads, h = e % it->kv_heads;

                assert_memory_equal(element(&got, b * it->num_tokens + t, h, 0),
                                    element(&wanted, t, h, 0),
                                    (size_t)(size * pkv_dtype_bytes(got.dtype)));
            }
        }
    }
    free(keys.data);
    free(values.data);
}

/* Entry [b, head, i, j] of the mask, whose axes may be of size 1 or missing. */
static float mask_at(const struct pkv_tensor *mask, int64_t b, int64_t head, int64_t i, int64_t j) {
    const int64_t at[4] = {b, head, i, j};
    int64_t index = 0;

    for (int32_t axis = 0; axis < mask->ndim; axis++) {
        int64_t size = mask->shape[axis];

        index = index * size + (size == 1 ? 0 : at[4 - mask->ndim + axis]);
    }
    if (mask->dtype == PKV_DTYPE_BOOL) {
        return ((const uint8_t *)mask->data)[index] ? 0 : -INFINITY;
    }
    assert_int_equal(mask->dtype, PKV_DTYPE_F32);
    return ((const float *)mask->data)[index];
}

/* One row a query, of the positions that are attended to. */
static struct pkv_tensor make_mask(const struct onnx_case *it, int64_t head) {
    int64_t rows = it->batch * it->num_queries, width = it->seq_len;
    int is_bool = it->mask.dtype == PKV_DTYPE_BOOL;
    float *floats = malloc((size_t)(rows * width) * sizeof(*floats));
    uint8_t *bytes = malloc((size_t)(rows * width));

    assert_true(floats && bytes);
    for (int64_t e = 0; e < rows * width; e++) {
        int64_t row = e / width;

        floats[e] =
            mask_at(&it->mask, row / it->num_queries, head, row % it->num_queries, e % width);
        bytes[e] = floats[e] == 0;
    }
    free(is_bool ? (void *)floats : (void *)bytes);
    return pkv_tensor_make(is_bool ? (void *)bytes : (void *)floats,
                           is_bool ? PKV_DTYPE_BOOL : PKV_DTYPE_F32, 2, (int64_t[]){rows, width});
}

/* The queries of all batch entries behind each other. */
static struct pkv_tensor make_query(const struct onnx_case *it) {
    int64_t row = it->heads * it->head_size, bytes = pkv_dtype_bytes(it->q.dtype);
    char *data = malloc((size_t)(it->batch * it->num_queries * row * bytes));

    assert_non_null(data);
    for (int64_t e = 0; e < it->batch * it->num_queries * row; e++) {
        int64_t t = e / row, f = e % row;
        struct pkv_tensor entry = entry_of(&it->q, t / it->num_queries, it->heads);

        memcpy(data + e * bytes,
               element(&entry, t % it->num_queries, f / it->head_size, f % it->head_size),
               (size_t)bytes);
    }
    return pkv_tensor_make(data, it->q.dtype, 3,
                           (int64_t[]){it->batch * it->num_queries, it->heads, it->head_size});
}

static void attend(const struct onnx_case *it, const char *test, struct pkv_context *context,
                   const struct pkv_paged_attention_tensors *tensors) {
    struct pkv_cache_options cache_options = {.key_layout = PKV_LAYOUT_HND,
                                              .value_layout = PKV_LAYOUT_HND};
    struct pkv_paged_attention_options options = {.num_heads = it->heads,
                                                  .scale = (float)attribute(test, "scale", 0),
                                                  .softcap = (float)attribute(test, "softcap", 0),
                                                  .non_causal =
                                                      attribute(test, "is_causal", 0) != 1};
    struct pkv_step_indices indices = {
        .block_table =
            pkv_tensor_make(it->table, PKV_DTYPE_I64, 2, (int64_t[]){it->batch, it->width})};
    struct pkv_paged_attention_plan *plan = NULL;
    struct pkv_step *step = NULL;
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    int64_t lengths[8], starts[9] = {0};

    for (int64_t b = 0; b < it->batch; b++) {
        lengths[b] = it->seq_len;
        starts[b + 1] = starts[b] + it->num_queries;
    }
    indices.seq_lens = pkv_tensor_make(lengths, PKV_DTYPE_I64, 1, &it->batch);
    indices.query_start_loc = pkv_tensor_make(starts, PKV_DTYPE_I64, 1, (int64_t[]){it->batch + 1});
    CHECK_OK(pkv_cache_init(&cache, &it->key_cache, &it->value_cache, &cache_options, &error),
             &error);
    CHECK_OK(pkv_paged_attention_plan_create(&plan, context, &cache, &options, &error), &error);
    CHECK_OK(pkv_step_create(&step, NULL, &error), &error);
    CHECK_OK(pkv_step_set(context, step, &cache, &indices, &error), &error);
    CHECK_OK(pkv_paged_attention_run(context, plan, step, &cache, tensors, &error), &error);
    pkv_step_destroy(step);
    pkv_paged_attention_plan_destroy(plan);
}

/* All numbers are below 1, and ONNX's were computed in their own dtype: eight roundings of it in
 * float32, and in float16 two. */
static double tolerance(int32_t dtype) {
    return dtype == PKV_DTYPE_F32 ? ldexp(1, -21) : ldexp(1, -10);
}

static void check_y(const struct onnx_case *it, const struct pkv_tensor *out, int64_t head,
                    int64_t head_end) {
    struct pkv_tensor rows = *out;

    rows.strides[0] = it->heads * it->value_size;
    rows.strides[1] = it->value_size;
    rows.strides[2] = 1;
    for (int64_t t = 0; t < it->batch * it->num_queries; t++) {
        struct pkv_tensor wanted = entry_of(&it->y, t / it->num_queries, it->heads);

        for (int64_t h = head; h < head_end; h++) {
            for (int64_t d = 0; d < it->value_size; d++) {
                double y = number(&wanted, t % it->num_queries, h, d);
                double got = number(&rows, t, h, d);

                if (!(fabs(got - y) <= tolerance(it->y.dtype))) {
                    fail_msg("query %d, head %d, element %d is %.9g, not %.9g", (int)t, (int)h,
                             (int)d, got, y);
                }
            }
        }
    }
}

static void run_case(const char *test, struct pkv_context *context) {
    struct pkv_paged_attention_tensors tensors = {.struct_size = sizeof(tensors)};
    struct onnx_case it;
    int64_t passes;

    read_case(&it, test);
    if (it.past_key.data) {
        write_tokens(&it, context, &it.past_key, &it.past_value, 0);
    }
    write_tokens(&it, context, &it.k, &it.v, it.num_past);
    if (it.present_key.data) {
        check_present(&it, context);
    }
    tensors.query = make_query(&it);
    tensors.out = pkv_tensor_make(
        malloc((size_t)(it.batch * it.num_queries * it.heads * it.value_size) * sizeof(float)),
        it.y.dtype, 3, (int64_t[]){it.batch * it.num_queries, it.heads, it.value_size});
    assert_non_null(tensors.out.data);
    passes = it.mask.ndim == 4 && it.mask.shape[1] > 1 ? it.heads : 1;
    for (int64_t head = 0; head < passes; head++) {
        if (it.mask.data) {
            tensors.mask = make_mask(&it, head);
        }
        attend(&it, test, context, &tensors);
        check_y(&it, &tensors.out, passes > 1 ? head : 0, passes > 1 ? head + 1 : it.heads);
        free(tensors.mask.data);
    }
    free(tensors.query.data);
    free(tensors.out.data);
    free_case(&it);
}

/* Why a case cannot be asked of a paged cache: an attribute or input that is not among those
 * above. */
static const char *stranger_in(const char *test) {
    static const char *const known[] = {"Q",
                                        "K",
                                        "V",
                                        "attn_mask",
                                        "past_key",
                                        "past_value",
                                        "is_causal",
                                        "kv_num_heads",
                                        "q_num_heads",
                                        "scale",
                                        "softcap",
                                        "qk_matmul_output_mode",
                                        "softmax_precision"};

    for (int64_t i = 0; i < manifest.num_records; i++) {
        const struct test_record *record = &manifest.records[i];
        int is_known = strcmp(record->kind, "op") == 0 || strcmp(record->kind, "out") == 0;

        for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
            is_known = is_known || strcmp(record->name, known[k]) == 0;
        }
        if (strcmp(record->test, test) == 0 && !is_known) {
            return record->name;
        }
    }
    return NULL;
}

static void every_case_of_the_manifest(void **state) {
    int num_cases = 0, num_strangers = 0, num_products = 0, num_presents = 0;

    (void)state;
    for (int64_t i = 0; i < manifest.num_records; i++) {
        const struct test_record *record = &manifest.records[i];
        const char *test = record->test;

        if (strcmp(record->kind, "op") != 0 || strcmp(record->type, "Attention") != 0) {
            continue;
        }
        if (stranger_in(test)) {
            print_message("%s: %s is not offered\n", test, stranger_in(test));
            num_strangers++;
            continue;
        }
        print_message("%s\n", test);
        for (int k = 0; k < NUM_CONTEXTS; k++) {
            run_case(test, contexts[k]);
        }
        num_cases++;
        num_products += test_manifest_find(&manifest, test, "out", "qk_matmul_output") != NULL;
        num_presents += test_manifest_find(&manifest, test, "out", "present_key") != NULL;
    }
    print_message(
        "%d cases, %d with present keys; %d are not offered; of %d the matrix of products "
        "was not looked at\n",
        num_cases, num_presents, num_strangers, num_products);
    assert_true(num_cases >= 51);
    assert_int_equal(num_strangers, 0);
}

static int set_up(void **state) {
    (void)state;
    for (int k = 0; k < NUM_CONTEXTS; k++) {
        CHECK_OK(pkv_context_create(&contexts[k], &context_options[k], &error), &error);
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int k = 0; k < NUM_CONTEXTS; k++) {
        pkv_context_destroy(contexts[k]);
    }
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_case_of_the_manifest)};
    int failed;

    test_data_require(folder);
    if (!test_manifest_read(&manifest, folder))
        return 1;
    failed = cmocka_run_group_tests(tests, set_up, tear_down);
    test_manifest_free(&manifest);
    return failed;
}
