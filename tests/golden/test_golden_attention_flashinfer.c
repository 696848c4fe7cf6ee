/* SPDX-License-Identifier: MIT
 *
 * FlashInfer's attention as paged attention: decode, prefill and MLA over its pages, all of which
 * are full; ragged and single keys, which are no pages, as pages of ten tokens; and its merge of
 * two states. Log-sum-exps are in base 2.
 */
#include "check.h"
#include "data.h"
#include "numbers.h"
#include "golden_contexts.h"

#include <math.h>
#include <stdlib.h>

static const char folder[] = "golden/flashinfer";
static struct test_manifest manifest;
static struct pkv_error error = {.struct_size = sizeof(error)};

enum { MAX_SEQS = 8, MAX_PAGES = 32 };

static struct pkv_context *contexts[NUM_CONTEXTS];

/* A tensor of the case with its data, which the caller frees. */
static struct pkv_tensor read_tensor(const char *test, const char *kind, const char *name) {
    const struct test_record *record = test_manifest_find(&manifest, test, kind, name);
    struct pkv_tensor tensor;
    size_t bytes = 0;
    int64_t expected;
    int32_t dtype;

    if (record == NULL) {
        fail_msg("%s has no %s %s", test, kind, name);
    }
    dtype = strcmp(record->type, "bfloat16") == 0  ? PKV_DTYPE_BF16
            : strcmp(record->type, "float32") == 0 ? PKV_DTYPE_F32
                                                   : PKV_DTYPE_I32;
    tensor = pkv_tensor_make(test_data_read(folder, record->file, &bytes), dtype, record->ndim,
                             record->shape);
    assert_non_null(tensor.data);
    expected = pkv_dtype_bytes(dtype);
    for (int32_t i = 0; i < tensor.ndim; i++) {
        expected *= tensor.shape[i];
    }
    assert_int_equal(bytes, expected);
    return tensor;
}

static int64_t index_at(const struct pkv_tensor *tensor, int64_t i) {
    assert_int_equal(tensor->dtype, PKV_DTYPE_I32);
    return ((const int32_t *)tensor->data)[i];
}

static int64_t count_of(const struct pkv_tensor *tensor) {
    int64_t count = 1;

    for (int32_t i = 0; i < tensor->ndim; i++) {
        count *= tensor->shape[i];
    }
    return count;
}

static void *allocate(int64_t bytes) {
    void *memory = malloc((size_t)bytes);

    assert_non_null(memory);
    return memory;
}

/* Pages of sequence b are entries table[b]; all tokens of them count. */
struct batch {
    int64_t num_seqs, width;
    int32_t table[MAX_SEQS * MAX_PAGES];
    int64_t lengths[MAX_SEQS], starts[MAX_SEQS + 1];
};

static void add_sequence(struct batch *batch, int64_t num_queries, const int64_t *pages,
                         int64_t num_pages, int64_t page_size) {
    int64_t b = batch->num_seqs++;

    assert_true(b < MAX_SEQS && num_pages <= MAX_PAGES);
    batch->width = MAX_PAGES;
    for (int64_t i = 0; i < MAX_PAGES; i++) {
        batch->table[b * MAX_PAGES + i] = i < num_pages ? (int32_t)pages[i] : -1;
    }
    batch->lengths[b] = num_pages * page_size;
    batch->starts[b + 1] = batch->starts[b] + num_queries;
}

/* Sequences by FlashInfer's kv_indptr and kv_indices; a query each, or as many as qo_indptr
 * says. */
static void read_pages(struct batch *batch, const char *test, int64_t page_size, int has_queries) {
    struct pkv_tensor indptr = read_tensor(test, "in", "kv_indptr");
    struct pkv_tensor indices = read_tensor(test, "in", "kv_indices");
    struct pkv_tensor queries = {0};

    if (has_queries) {
        queries = read_tensor(test, "in", "qo_indptr");
    }
    *batch = (struct batch){0};
    for (int64_t b = 0; b + 1 < indptr.shape[0]; b++) {
        int64_t first = index_at(&indptr, b), count = index_at(&indptr, b + 1) - first;
        int64_t pages[MAX_PAGES];

        assert_true(count <= MAX_PAGES);
        for (int64_t i = 0; i < count; i++) {
            pages[i] = index_at(&indices, first + i);
        }
        add_sequence(batch, has_queries ? index_at(&queries, b + 1) - index_at(&queries, b) : 1,
                     pages, count, page_size);
    }
    free(indptr.data);
    free(indices.data);
    free(queries.data);
}

/* Two results that were both rounded to bfloat16 from nearly the same number are at most one of its
 * steps apart; one of them in float32, half a step. */
static void check_out(const struct pkv_tensor *got, const struct pkv_tensor *wanted) {
    const struct num_format *format = num_format_of(got->dtype);
    const struct num_format *bf16 = num_format_of(PKV_DTYPE_BF16);
    double step = ldexp(1, got->dtype == PKV_DTYPE_BF16 ? -7 : -8);

    assert_int_equal(wanted->dtype, PKV_DTYPE_BF16);
    assert_int_equal(count_of(got), count_of(wanted));
    for (int64_t i = 0; i < count_of(got); i++) {
        double x = num_float_of_code(format,
                                     num_read(format, (const char *)got->data + i * format->bytes));
        double y = num_float_of_code(bf16, num_read(bf16, (const char *)wanted->data + i * 2));

        if (!(fabs(x - y) <= step * fabs(y) + 1e-5)) {
            fail_msg("out %d is %.9g, not %.9g", (int)i, x, y);
        }
    }
}

/* FlashInfer's are float32 numbers below 16: some roundings of such ones. */
static void check_lse(const struct pkv_tensor *got, const struct pkv_tensor *wanted) {
    assert_int_equal(count_of(got), count_of(wanted));
    for (int64_t i = 0; i < count_of(got); i++) {
        double x = (double)((const float *)got->data)[i];
        double y = (double)((const float *)wanted->data)[i];

        if (!(fabs(x - y) <= 4e-6)) {
            fail_msg("log-sum-exp %d is %.9g, not %.9g", (int)i, x, y);
        }
    }
}

/* What is asked: NHD caches, value NULL for MLA. */
struct question {
    const struct batch *batch;
    const struct pkv_tensor *query, *key_cache, *value_cache;
    const struct pkv_tensor *out, *lse; /* wanted; lse NULL: none */
    int64_t value_head_size;
    float scale; /* 0: 1 / sqrt(head_size), FlashInfer's sm_scale where there is no MLA */
    int is_non_causal;
};

static void ask(const struct question *it, struct pkv_context *context, int32_t out_dtype) {
    const struct batch *batch = it->batch;
    struct pkv_paged_attention_options options = {.num_heads = it->query->shape[1],
                                                  .value_head_size = it->value_head_size,
                                                  .scale = it->scale,
                                                  .non_causal = it->is_non_causal,
                                                  .lse_base = PKV_LSE_BASE_2};
    struct pkv_step_indices indices = {
        .block_table = pkv_tensor_make((void *)(uintptr_t)batch->table, PKV_DTYPE_I32, 2,
                                       (int64_t[]){batch->num_seqs, batch->width}),
        .seq_lens = pkv_tensor_make((void *)(uintptr_t)batch->lengths, PKV_DTYPE_I64, 1,
                                    (int64_t[]){batch->num_seqs}),
        .query_start_loc = pkv_tensor_make((void *)(uintptr_t)batch->starts, PKV_DTYPE_I64, 1,
                                           (int64_t[]){batch->num_seqs + 1})};
    int64_t tokens = it->query->shape[0], heads = it->query->shape[1];
    struct pkv_paged_attention_tensors tensors = {
        .query = *it->query,
        .out = pkv_tensor_make(allocate(tokens * heads * it->value_head_size * 4), out_dtype, 3,
                               (int64_t[]){tokens, heads, it->value_head_size}),
        .lse = pkv_tensor_make(allocate(tokens * heads * 4), PKV_DTYPE_F32, 2,
                               (int64_t[]){tokens, heads})};
    struct pkv_paged_attention_plan *plan = NULL;
    struct pkv_step *step = NULL;
    struct pkv_cache cache = {.struct_size = sizeof(cache)};

    CHECK_OK(pkv_cache_init(&cache, it->key_cache, it->value_cache, NULL, &error), &error);
    CHECK_OK(pkv_paged_attention_plan_create(&plan, context, &cache, &options, &error), &error);
    CHECK_OK(pkv_step_create(&step, NULL, &error), &error);
    CHECK_OK(pkv_step_set(context, step, &cache, &indices, &error), &error);
    CHECK_OK(pkv_paged_attention_run(context, plan, step, &cache, &tensors, &error), &error);
    check_out(&tensors.out, it->out);
    if (it->lse) {
        check_lse(&tensors.lse, it->lse);
    }
    pkv_step_destroy(step);
    pkv_paged_attention_plan_destroy(plan);
    free(tensors.out.data);
    free(tensors.lse.data);
}

static void ask_all(const struct question *it) {
    for (int k = 0; k < NUM_CONTEXTS; k++) {
        ask(it, contexts[k], PKV_DTYPE_BF16);
        ask(it, contexts[k], PKV_DTYPE_F32);
    }
}

/* Keys and values in pages, one query a sequence or many. */
static void run_paged(const char *test, int is_prefill) {
    struct pkv_tensor query = read_tensor(test, "in", "q");
    struct pkv_tensor keys = read_tensor(test, "in", "k_cache");
    struct pkv_tensor values = read_tensor(test, "in", "v_cache");
    struct pkv_tensor out = read_tensor(test, "out", "0"), lse = read_tensor(test, "out", "1");
    struct batch batch;
    struct question question = {&batch, &query, &keys, &values, &out, &lse, values.shape[3], 0, 0};

    read_pages(&batch, test, keys.shape[1], is_prefill);
    ask_all(&question);
    free(query.data);
    free(keys.data);
    free(values.data);
    free(out.data);
    free(lse.data);
}

static void paged_decode(void **state) {
    (void)state;
    run_paged("gqa_paged_decode_h32_kv8_d128_ps16", 0);
}

static void paged_prefill(void **state) {
    (void)state;
    run_paged("gqa_paged_prefill_h32_kv8_d128_ps16", 1);
}

/* [tokens, heads, size] as pages of ten tokens. */
static struct pkv_tensor paged(const struct pkv_tensor *rows) {
    assert_int_equal(rows->shape[0] % 10, 0);
    return pkv_tensor_make(rows->data, rows->dtype, 4,
                           (int64_t[]){rows->shape[0] / 10, 10, rows->shape[1], rows->shape[2]});
}

static void run_contiguous(const char *test, const struct batch *batch, int has_lse,
                           int is_non_causal) {
    struct pkv_tensor query = read_tensor(test, "in", "q");
    struct pkv_tensor keys = read_tensor(test, "in", "k"), key_cache = paged(&keys);
    struct pkv_tensor values = read_tensor(test, "in", "v"), value_cache = paged(&values);
    struct pkv_tensor out = read_tensor(test, "out", "0"), lse = {0};
    struct question question = {batch,           &query, &key_cache,
                                &value_cache,    &out,   has_lse ? &lse : NULL,
                                values.shape[2], 0,      is_non_causal};

    if (has_lse) {
        lse = read_tensor(test, "out", "1");
    }
    if (query.ndim == 2) {
        query = pkv_tensor_make(query.data, query.dtype, 3,
                                (int64_t[]){1, query.shape[0], query.shape[1]});
    }
    ask_all(&question);
    free(query.data);
    free(keys.data);
    free(values.data);
    free(out.data);
    free(lse.data);
}

static void ragged(void **state) {
    static const char test[] = "gqa_ragged_h32_kv8_d128";
    struct pkv_tensor tokens = read_tensor(test, "in", "kv_indptr");
    struct pkv_tensor queries = read_tensor(test, "in", "qo_indptr");
    struct batch batch = {0};

    (void)state;
    for (int64_t b = 0; b + 1 < tokens.shape[0]; b++) {
        int64_t pages[MAX_PAGES];
        int64_t first = index_at(&tokens, b) / 10, count = index_at(&tokens, b + 1) / 10 - first;

        assert_int_equal(index_at(&tokens, b) % 10, 0);
        for (int64_t i = 0; i < count; i++) {
            pages[i] = first + i;
        }
        add_sequence(&batch, index_at(&queries, b + 1) - index_at(&queries, b), pages, count, 10);
    }
    run_contiguous(test, &batch, 1, 0);
    free(tokens.data);
    free(queries.data);
}

static void single_sequences(void **state) {
    static const int64_t pages[] = {0, 1, 2, 3, 4};
    struct batch batch = {0};

    (void)state;
    add_sequence(&batch, 1, pages, 5, 10);
    run_contiguous("single_decode_h32_kv8_d128", &batch, 0, 0);
    batch = (struct batch){0};
    add_sequence(&batch, 5, pages, 4, 10);
    run_contiguous("single_prefill_h32_kv8_d128", &batch, 0, 1);
}

/* Rows of a and b behind each other, as the keys of MLA: [.., 512] and [.., 64] to [.., 576]. */
static struct pkv_tensor join(const struct pkv_tensor *a, const struct pkv_tensor *b) {
    struct pkv_tensor both = *a;
    int64_t last = a->ndim - 1, sizes[2] = {a->shape[last] * 2, b->shape[last] * 2};
    int64_t rows = count_of(a) / a->shape[last];
    char *to = allocate(rows * (sizes[0] + sizes[1]));

    both.data = to;
    both.shape[last] = a->shape[last] + b->shape[last];
    memset(both.strides, 0, sizeof(both.strides));
    for (int64_t r = 0; r < rows; r++, to += sizes[0] + sizes[1]) {
        memcpy(to, (const char *)a->data + r * sizes[0], (size_t)sizes[0]);
        memcpy(to + sizes[0], (const char *)b->data + r * sizes[1], (size_t)sizes[1]);
    }
    return both;
}

/* Queries and keys are the latent part and the rotary one; values are the latent part of the keys.
 * FlashInfer's scale is that of the heads before they were absorbed: 128 + 64 elements. */
static void latent_decode(void **state) {
    static const char test[] = "mla_paged_decode_h16_ckv512_kpe64_ps1";
    struct pkv_tensor parts[4] = {
        read_tensor(test, "in", "q_nope"), read_tensor(test, "in", "q_pe"),
        read_tensor(test, "in", "ckv_cache"), read_tensor(test, "in", "kpe_cache")};
    struct pkv_tensor query = join(&parts[0], &parts[1]), rows = join(&parts[2], &parts[3]);
    struct pkv_tensor keys = pkv_tensor_make(
        rows.data, rows.dtype, 4, (int64_t[]){rows.shape[0], rows.shape[1], 1, rows.shape[2]});
    struct pkv_tensor out = read_tensor(test, "out", "0"), lse = read_tensor(test, "out", "1");
    struct batch batch;
    struct question question = {
        &batch, &query, &keys, NULL, &out, &lse, parts[0].shape[2], (float)(1 / sqrt(192.0)), 0};

    (void)state;
    read_pages(&batch, test, keys.shape[1], 0);
    ask_all(&question);
    for (int i = 0; i < 4; i++) {
        free(parts[i].data);
    }
    free(query.data);
    free(rows.data);
    free(out.data);
    free(lse.data);
}

static void merge_of_two_states(void **state) {
    static const char test[] = "merge_state_h32_d128";
    struct pkv_merge_states_options options = {.lse_base = PKV_LSE_BASE_2};
    struct pkv_tensor v_a = read_tensor(test, "in", "v_a"), s_a = read_tensor(test, "in", "s_a");
    struct pkv_tensor v_b = read_tensor(test, "in", "v_b"), s_b = read_tensor(test, "in", "s_b");
    struct pkv_tensor wanted = read_tensor(test, "out", "0"), sums = read_tensor(test, "out", "1");
    struct pkv_tensor out = wanted, lse = sums;

    (void)state;
    out.data = allocate(count_of(&out) * 4);
    lse.data = allocate(count_of(&lse) * 4);
    CHECK_OK(pkv_merge_state(contexts[0], &v_a, &s_a, &v_b, &s_b, &out, &lse, &options, &error),
             &error);
    for (int64_t i = 0; i < count_of(&out); i++) {
        float x = ((const float *)out.data)[i], y = ((const float *)wanted.data)[i];

        /* Both float32, of numbers below 4. */
        assert_true(fabsf(x - y) <= 1e-6f);
    }
    check_lse(&lse, &sums);
    free(v_a.data);
    free(s_a.data);
    free(v_b.data);
    free(s_b.data);
    free(wanted.data);
    free(sums.data);
    free(out.data);
    free(lse.data);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paged_decode),  cmocka_unit_test(paged_prefill),
        cmocka_unit_test(ragged),        cmocka_unit_test(single_sequences),
        cmocka_unit_test(latent_decode), cmocka_unit_test(merge_of_two_states),
    };
    int failed;

    test_data_require(folder);
    if (!test_manifest_read(&manifest, folder))
        return 1;
    failed = cmocka_run_group_tests(tests, set_up, tear_down);
    test_manifest_free(&manifest);
    return failed;
}
