/* SPDX-License-Identifier: MIT
 *
 * Caches beyond 2^31 elements and beyond 4 GiB, in memory that is reserved and not used: only the
 * pages of rows that are written become real, and that is tested too.
 */
#include "calls.h"
#include "contexts.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static struct pkv_context *modes[2];

enum { BLOCK_SIZE = 128, NUM_TOKENS = 40 };

/* A cache of bf16 rows, 3 * 2^30 elements: 6 GiB. */
struct giant {
    struct pkv_tensor tensor;
    struct ref_part ref;
    size_t bytes;
};

static int giant_make(struct giant *giant, int32_t layout, int64_t element_bytes, int32_t dtype,
                      int64_t num_blocks, int64_t block_size, int64_t heads, int64_t head_size) {
    *giant = (struct giant){
        .ref = ref_part_make(layout, element_bytes, num_blocks, block_size, heads, head_size, 0)};
    giant->bytes = (size_t)(ref_part_span(&giant->ref) * element_bytes);
    giant->tensor = pkv_tensor_make(NULL, dtype, giant->ref.ndim, giant->ref.shape);
    giant->tensor.data = mmap(NULL, giant->bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (giant->tensor.data == MAP_FAILED) {
        print_message("no %zu bytes of address space here: skipped\n", giant->bytes);
        return 0;
    }
    /* Huge pages would make far more memory real than is written. */
    madvise(giant->tensor.data, giant->bytes, MADV_NOHUGEPAGE);
    return 1;
}

static void giant_free(struct giant *giant) {
    munmap(giant->tensor.data, giant->bytes);
}

/* OS pages of the mapping that are in memory. */
static int64_t count_pages(const struct giant *giant) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t num_pages = (giant->bytes + page - 1) / page;
    unsigned char *present = malloc(num_pages);
    int64_t count = 0;

    assert_non_null(present);
    assert_int_equal(mincore(giant->tensor.data, giant->bytes, present), 0);
    for (size_t i = 0; i < num_pages; i++) {
        count += present[i] & 1;
    }
    free(present);
    return count;
}

/* Slots at both ends, around 2^31 elements and 4 GiB, and anywhere; the third is padding. */
static void choose_slots(int64_t *slots, int64_t num_slots, int64_t row_elements,
                         int64_t element_bytes, struct test_rng *rng) {
    int64_t at_elements = (INT64_C(1) << 31) / row_elements;
    int64_t at_bytes = (INT64_C(1) << 32) / (row_elements * element_bytes);

    for (int64_t t = 0; t < NUM_TOKENS; t++) {
        slots[t] = test_rng_below(rng, num_slots);
    }
    slots[0] = 0;
    slots[1] = num_slots - 1;
    slots[2] = -1;
    slots[3] = at_elements - 1;
    slots[4] = at_elements;
    slots[5] = at_bytes - 1;
    slots[6] = at_bytes;
    slots[7] = num_slots - 1;
}

static unsigned char *element_of(const struct giant *giant, int64_t slot, int64_t head, int64_t d) {
    int64_t index = ref_part_index(&giant->ref, slot / giant->ref.block_size,
                                   slot % giant->ref.block_size, head, d);

    return (unsigned char *)giant->tensor.data + index * giant->ref.element_bytes;
}

/* Every row that a slot names holds the last token with that slot, its neighbours are zero. */
static void expect_rows(const struct giant *giant, const int64_t *slots, const void *source) {
    int64_t row_elements = giant->ref.num_heads * giant->ref.head_size;
    int64_t bytes = giant->ref.element_bytes;
    unsigned char zero[8] = {0};

    for (int64_t t = 0; t < NUM_TOKENS; t++) {
        for (int64_t near = slots[t] - 1; slots[t] >= 0 && near <= slots[t] + 1; near++) {
            int64_t owner = -1;

            if (near < 0 || near >= giant->ref.num_blocks * giant->ref.block_size) {
                continue;
            }
            for (int64_t u = 0; u < NUM_TOKENS; u++) {
                owner = slots[u] == near ? u : owner;
            }
            for (int64_t j = 0; j < row_elements; j++) {
                const void *expected =
                    owner < 0 ? (const void *)zero
                              : (const char *)source + (owner * row_elements + j) * bytes;

                assert_memory_equal(
                    element_of(giant, near, j / giant->ref.head_size, j % giant->ref.head_size),
                    expected, (size_t)bytes);
            }
        }
    }
}

/* Reads every slot back as a sequence of its own that begins inside a block. */
static void expect_gather(struct pkv_context *context, const struct giant *giant,
                          const int64_t *slots, const void *source) {
    int64_t row_bytes = giant->ref.num_heads * giant->ref.head_size * giant->ref.element_bytes;
    unsigned char *out = malloc((size_t)(row_bytes * NUM_TOKENS));
    int64_t table[NUM_TOKENS], offsets[NUM_TOKENS], lengths[NUM_TOKENS];
    int64_t count = NUM_TOKENS;
    struct pkv_tensor tables, starts, lens, rows;
    struct pkv_gather_pa_kv_cache_options options = {.key_layout = giant->ref.layout,
                                                     .seq_lens_are_plain = 1};

    assert_non_null(out);
    for (int64_t t = 0; t < NUM_TOKENS; t++) {
        int64_t slot = slots[t] < 0 ? slots[0] : slots[t];

        table[t] = slot / giant->ref.block_size;
        offsets[t] = slot % giant->ref.block_size;
        lengths[t] = 1;
    }
    tables = pkv_tensor_make(table, PKV_DTYPE_I64, 2, (int64_t[]){NUM_TOKENS, 1});
    starts = pkv_tensor_make(offsets, PKV_DTYPE_I64, 1, &count);
    lens = pkv_tensor_make(lengths, PKV_DTYPE_I64, 1, &count);
    rows = pkv_tensor_make(out, giant->tensor.dtype, 3,
                           (int64_t[]){NUM_TOKENS, giant->ref.num_heads, giant->ref.head_size});
    CHECK_OK(pkv_gather_pa_kv_cache(context, &giant->tensor, NULL, &tables, &lens, &rows, NULL,
                                    &starts, &options, &error),
             &error);
    for (int64_t t = 0; t < NUM_TOKENS; t++) {
        int64_t slot = slots[t] < 0 ? slots[0] : slots[t];
        int64_t owner = 0;

        for (int64_t u = 0; u < NUM_TOKENS; u++) {
            owner = slots[u] == slot ? u : owner;
        }
        assert_memory_equal(out + t * row_bytes, (const char *)source + owner * row_bytes,
                            (size_t)row_bytes);
    }
    free(out);
}

static void scatter_and_gather(struct giant *giant, int32_t slot_dtype, struct test_rng *rng) {
    int64_t row_elements = giant->ref.num_heads * giant->ref.head_size;
    size_t source_bytes = (size_t)(row_elements * giant->ref.element_bytes * NUM_TOKENS);
    int64_t num_slots = giant->ref.num_blocks * giant->ref.block_size;
    void *source = malloc(source_bytes);
    struct pkv_scatter_pa_kv_cache_options options = {.key_layout = giant->ref.layout};
    int64_t slots[NUM_TOKENS];
    int64_t count = NUM_TOKENS;
    struct model_index index;
    struct pkv_tensor rows;

    assert_non_null(source);
    for (int mode = 0; mode < 2; mode++) {
        madvise(giant->tensor.data, giant->bytes, MADV_DONTNEED);
        test_rng_fill(rng, source, source_bytes);
        choose_slots(slots, num_slots, row_elements, giant->ref.element_bytes, rng);
        index = model_index_make(slot_dtype, 1, &count, slots);
        rows = pkv_tensor_make(source, giant->tensor.dtype, 3,
                               (int64_t[]){NUM_TOKENS, giant->ref.num_heads, giant->ref.head_size});
        CHECK_OK(pkv_scatter_pa_kv_cache(modes[mode], &rows, &giant->tensor, &index.tensor, NULL,
                                         NULL, &options, &error),
                 &error);
        /* A fragment lies in at most two OS pages, and only rows that are named become real. */
        assert_true(count_pages(giant) <=
                    NUM_TOKENS * 2 *
                        (giant->ref.layout == PKV_LAYOUT_NHD ? 1 : giant->ref.num_heads));
        expect_rows(giant, slots, source);
        expect_gather(modes[mode], giant, slots, source);
        slots[9] = num_slots;
        model_index_free(&index);
        index = model_index_make(PKV_DTYPE_I64, 1, &count, slots);
        CHECK_REFUSED(pkv_scatter_pa_kv_cache(modes[mode], &rows, &giant->tensor, &index.tensor,
                                              NULL, NULL, &options, &error),
                      &error, PKV_STATUS_SLOT_OUT_OF_RANGE);
        model_index_free(&index);
    }
    free(source);
}

static void six_gigabytes_of_rows(void **state) {
    struct test_rng rng = test_rng_make(6);

    (void)state;
    for (int32_t layout = PKV_LAYOUT_NHD; layout <= PKV_LAYOUT_HND; layout++) {
        struct giant giant;

        if (!giant_make(&giant, layout, 2, PKV_DTYPE_BF16, 49152, BLOCK_SIZE, 4, 128)) {
            skip();
        }
        assert_true(giant.bytes == INT64_C(6) << 30);
        scatter_and_gather(&giant, PKV_DTYPE_I32, &rng);
        giant_free(&giant);
    }
}

/* Rows of one byte: slot numbers themselves need more than 32 bits. */
static void six_billion_slots(void **state) {
    struct test_rng rng = test_rng_make(7);
    struct giant giant;

    (void)state;
    if (!giant_make(&giant, PKV_LAYOUT_NHD, 1, PKV_DTYPE_F8_E5M2, 48 << 20, BLOCK_SIZE, 1, 1)) {
        skip();
    }
    scatter_and_gather(&giant, PKV_DTYPE_I64, &rng);
    giant_free(&giant);
}

/* copy_blocks and the walk at the far end. */
static void far_blocks(void **state) {
    struct test_rng rng = test_rng_make(8);
    struct giant giant;
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    int32_t pairs[] = {49151, 32768, 1, 49150};
    struct pkv_tensor mapping = pkv_tensor_make(pairs, PKV_DTYPE_I32, 2, (int64_t[]){2, 2});
    struct pkv_tensor row = pkv_tensor_make(pairs, PKV_DTYPE_I32, 1, (int64_t[]){2});
    struct pkv_walk walk;
    struct pkv_walk_block block;
    size_t block_bytes = (size_t)BLOCK_SIZE * 4 * 128 * 2;
    unsigned char *base;

    (void)state;
    if (!giant_make(&giant, PKV_LAYOUT_NHD, 2, PKV_DTYPE_BF16, 49152, BLOCK_SIZE, 4, 128)) {
        skip();
    }
    base = giant.tensor.data;
    test_rng_fill(&rng, base + 49151 * block_bytes, block_bytes);
    test_rng_fill(&rng, base + block_bytes, block_bytes);
    CHECK_OK(pkv_cache_init(&cache, &giant.tensor, NULL, NULL, &error), &error);
    CHECK_OK(pkv_copy_blocks(modes[0], &cache, &mapping, &error), &error);
    assert_memory_equal(base + 32768 * block_bytes, base + 49151 * block_bytes, block_bytes);
    assert_memory_equal(base + 49150 * block_bytes, base + block_bytes, block_bytes);
    assert_int_equal(count_pages(&giant) * sysconf(_SC_PAGESIZE), 4 * (int64_t)block_bytes);
    CHECK_OK(pkv_walk_init(&walk, &cache, &row, 100, 100, &error), &error);
    assert_int_equal(pkv_walk_next(&walk, &block), 1);
    assert_ptr_equal(block.key, base + 49151 * block_bytes + 100 * 1024);
    assert_int_equal(pkv_walk_next(&walk, &block), 1);
    assert_ptr_equal(block.key, base + 32768 * block_bytes);
    assert_int_equal(block.num_tokens, 72);
    giant_free(&giant);
}

static int set_up(void **state) {
    (void)state;
    modes[0] = make_context(PKV_RUN_MODE_NATIVE, PKV_CPU_LEVEL_BEST, NULL);
    modes[1] = make_context(PKV_RUN_MODE_SIM, PKV_CPU_LEVEL_BEST, NULL);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    pkv_context_destroy(modes[0]);
    pkv_context_destroy(modes[1]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(six_gigabytes_of_rows),
        cmocka_unit_test(six_billion_slots),
        cmocka_unit_test(far_blocks),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
