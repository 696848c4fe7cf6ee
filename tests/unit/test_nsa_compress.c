/* SPDX-License-Identifier: MIT
 *
 * Windowed compression: the published example, sums whose order was worked out by hand, random
 * windows against a reference, and refusals that leave everything as it was.
 */
#include "contexts.h"
#include "guard.h"
#include "nsa_reference.h"
#include "numbers.h"
#include "rng.h"

#include <inttypes.h>
#include <stdlib.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
static uint64_t seed;

enum { MAX_SEQS = 9, MAX_WIDTH = 130 };

/* Lengths 31, 32, 40 and 48 with L 32 and stride 16: the second completes tokens 0 to 31, the
 * fourth 16 to 47. All inputs are 1 and weights 1/32, so the sums are 1. */
static void published_example(void **state) {
    enum { BLOCKS = 8, PAGE = 64, HEADS = 2, SIZE = 16, ROWS = 4 };
    static uint16_t input[BLOCKS * PAGE * HEADS * SIZE], output[ROWS * HEADS * SIZE];
    uint16_t weight[32 * HEADS];
    int32_t slots[4] = {0, 1, 2, 3}, table[4] = {5, 2, 7, 0};
    int64_t lengths[4] = {31, 32, 40, 48};
    struct pkv_nsa_compress_options options = {.struct_size = sizeof(options),
                                               .compress_block_size = 32,
                                               .compress_stride = 16,
                                               .page_block_size = PAGE};
    struct pkv_tensor in =
        pkv_tensor_make(input, PKV_DTYPE_F16, 4, (int64_t[]){BLOCKS, PAGE, HEADS, SIZE});
    struct pkv_tensor w = pkv_tensor_make(weight, PKV_DTYPE_F16, 2, (int64_t[]){32, HEADS});
    struct pkv_tensor out =
        pkv_tensor_make(output, PKV_DTYPE_F16, 3, (int64_t[]){ROWS, HEADS, SIZE});
    struct pkv_tensor slot = pkv_tensor_make(slots, PKV_DTYPE_I32, 1, (int64_t[]){4});
    struct pkv_tensor length = pkv_tensor_make(lengths, PKV_DTYPE_I64, 1, (int64_t[]){4});
    struct pkv_tensor blocks = pkv_tensor_make(table, PKV_DTYPE_I32, 2, (int64_t[]){4, 1});

    (void)state;
    for (size_t i = 0; i < sizeof(input) / sizeof(input[0]); i++) {
        input[i] = 0x3c00;
    }
    for (int i = 0; i < 32 * HEADS; i++) {
        weight[i] = 0x2800;
    }
    for (int i = 0; i < contexts.count; i++) {
        memset(output, 0x77, sizeof(output));
        CHECK_OK(pkv_nsa_compress_with_cache(contexts.all[i], &in, &w, &slot, &length, &blocks,
                                             &out, &options, &error),
                 &error);
        for (int row = 0; row < ROWS; row++) {
            for (int e = 0; e < HEADS * SIZE; e++) {
                assert_int_equal(output[row * HEADS * SIZE + e], row % 2 ? 0x3c00 : 0x7777);
            }
        }
    }
}

/* One window of one channel of bfloat16, weights 1, all tokens 0 but those named. */
static uint16_t sum_of(struct pkv_context *context, int64_t num_rows, const int64_t *tokens,
                       const uint16_t *codes, int count) {
    uint16_t input[64] = {0}, weight[64], output = 0x7777;
    int64_t slot = 0, length = num_rows, block = 0;
    struct pkv_tensor in = pkv_tensor_make(input, PKV_DTYPE_BF16, 4, (int64_t[]){1, 64, 1, 1});
    struct pkv_tensor w = pkv_tensor_make(weight, PKV_DTYPE_BF16, 2, (int64_t[]){num_rows, 1});
    struct pkv_tensor out = pkv_tensor_make(&output, PKV_DTYPE_BF16, 3, (int64_t[]){1, 1, 1});
    struct pkv_tensor slots = pkv_tensor_make(&slot, PKV_DTYPE_I64, 1, (int64_t[]){1});
    struct pkv_tensor lengths = pkv_tensor_make(&length, PKV_DTYPE_I64, 1, (int64_t[]){1});
    struct pkv_tensor table = pkv_tensor_make(&block, PKV_DTYPE_I64, 2, (int64_t[]){1, 1});

    for (int i = 0; i < 64; i++) {
        weight[i] = 0x3f80;
    }
    for (int i = 0; i < count; i++) {
        input[tokens[i]] = codes[i];
    }
    CHECK_OK(
        pkv_nsa_compress_with_cache(context, &in, &w, &slots, &lengths, &table, &out, NULL, &error),
        &error);
    return output;
}

/* In float32 2^24 + 1 is 2^24 again, and 2^24 + 2 is not. So what is added first shows once 2^24 is
 * taken away. */
static void order_of_the_sum(void **state) {
    static const uint16_t one = 0x3f80, two = 0x4000, big = 0x4b80, minus_big = 0xcb80;

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        struct pkv_context *context = contexts.all[i];
        /* One tile: tokens 1 and 5 make 2 before they meet token 0; the 1 of token 4 meets it at
         * once. */
        assert_int_equal(sum_of(context, 16, (int64_t[]){0, 4, 1, 5, 8},
                                (uint16_t[]){big, one, one, one, minus_big}, 5),
                         two);
        /* Tokens 2 and 6 make 2 before they meet 0 and 4. */
        assert_int_equal(
            sum_of(context, 16, (int64_t[]){0, 2, 6, 8}, (uint16_t[]){big, one, one, minus_big}, 4),
            two);
        /* A 1 in token 2 and a 1 in token 1 meet only what has swallowed the other. */
        assert_int_equal(
            sum_of(context, 16, (int64_t[]){0, 1, 2, 8}, (uint16_t[]){big, one, one, minus_big}, 4),
            0);
        /* Six tiles: 4 joins 0 and 5 joins 1 first; then 2 joins 0. The 1 of tile 4 is lost in tile
         * 0. */
        assert_int_equal(sum_of(context, 48, (int64_t[]){0, 32, 8, 40, 16},
                                (uint16_t[]){big, one, one, one, minus_big}, 5),
                         two);
        /* Tiles 2 and 3 join after that: -2^24 in tile 2 comes too late for the 1 of tile 4, not
         * for tile 3. */
        assert_int_equal(sum_of(context, 48, (int64_t[]){0, 32, 24, 16},
                                (uint16_t[]){big, one, one, minus_big}, 4),
                         one);
        /* Four tiles: 2 joins 0, 3 joins 1. */
        assert_int_equal(sum_of(context, 32, (int64_t[]){0, 16, 8, 24},
                                (uint16_t[]){big, minus_big, one, one}, 4),
                         two);
        /* Eight: 4 joins 0, then 2 with 6. */
        assert_int_equal(sum_of(context, 64, (int64_t[]){0, 16, 48, 32},
                                (uint16_t[]){big, one, one, minus_big}, 4),
                         two);
    }
}

static void what_is_no_number_is_one_nan(void **state) {
    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        struct pkv_context *context = contexts.all[i];

        assert_int_equal(sum_of(context, 16, (int64_t[]){3, 9}, (uint16_t[]){0x7f80, 0xff80}, 2),
                         0x7fc0);
        assert_int_equal(sum_of(context, 16, (int64_t[]){3}, (uint16_t[]){0xffa1}, 1), 0x7fc0);
        assert_int_equal(sum_of(context, 16, (int64_t[]){3}, (uint16_t[]){0xff80}, 1), 0xff80);
        assert_int_equal(sum_of(context, 16, (int64_t[]){3, 4}, (uint16_t[]){0x7f7f, 0x7f7f}, 2),
                         0x7f80);
        assert_int_equal(sum_of(context, 16, (int64_t[]){5}, (uint16_t[]){0x0001}, 1), 0x0001);
    }
}

/* A drawn call: all tensors in guarded memory, with the strides spelled out. */
struct world {
    int32_t dtype;
    int64_t num_blocks, page, num_heads, head_size, num_rows, window, stride, num_seqs, width;
    int64_t in_strides[3], w_strides[2], out_strides[2];
    struct test_guard in, w, out;
    uint16_t *in_before, *out_shadow;
    int64_t slots[MAX_SEQS], lengths[MAX_SEQS], table[MAX_SEQS * MAX_WIDTH];
};

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static struct test_guard make_codes(int64_t count, struct test_rng *rng, int32_t dtype) {
    struct test_guard guard = test_guard_make(
        (size_t)count * 2, test_rng_below(rng, 2) ? TEST_GUARD_END : TEST_GUARD_START);
    uint16_t *codes = guard.data;

    for (int64_t i = 0; i < count; i++) {
        uint16_t code = (uint16_t)test_rng_next(rng);
        if (test_rng_below(rng, 50) > 0) {
            code = dtype == PKV_DTYPE_F16 ? (uint16_t)((code & 0x83ff) | (12 + code % 5) << 10)
                                          : (uint16_t)((code & 0x807f) | (124 + code % 5) << 7);
        }
        codes[i] = code;
    }
    return guard;
}

static int completes(const struct world *world, int64_t b) {
    return world->slots[b] >= 0 && world->lengths[b] >= world->window &&
           (world->lengths[b] - world->window) % world->stride == 0;
}

/* Entries that are read name blocks, the others hold anything; slots that are used are distinct. */
static void draw_sequences(struct world *world, struct test_rng *rng) {
    int64_t order[64];
    int64_t capacity = world->width * world->page;

    test_rng_permutation(rng, order, world->num_rows);
    for (int64_t b = 0; b < world->num_seqs; b++) {
        int64_t steps = capacity < world->window ? 0 : (capacity - world->window) / world->stride;
        world->lengths[b] = world->window + world->stride * test_rng_below(rng, steps + 1);
        if (test_rng_below(rng, 3) == 0) {
            world->lengths[b] = max64(0, world->lengths[b] + test_rng_between(rng, -20, 3));
        }
        if (world->lengths[b] > capacity || test_rng_below(rng, 10) == 0) {
            world->lengths[b] = test_rng_below(rng, capacity + 1);
        }
        world->slots[b] = order[b];
        if (test_rng_below(rng, 6) == 0) {
            world->slots[b] = -test_rng_between(rng, 1, 1000);
            world->lengths[b] = test_rng_between(rng, -1000, 1000000);
        } else if (!completes(world, b)) {
            world->slots[b] = test_rng_below(rng, 2000);
        }
        for (int64_t i = 0; i < world->width; i++) {
            int is_read = completes(world, b) &&
                          i >= (world->lengths[b] - world->window) / world->page &&
                          i <= (world->lengths[b] - 1) / world->page;
            world->table[b * world->width + i] =
                is_read ? test_rng_below(rng, world->num_blocks) : (int32_t)test_rng_next(rng);
        }
    }
}

static void draw(struct world *world, struct test_rng *rng, int64_t max_heads, int64_t max_size) {
    *world = (struct world){.dtype = test_rng_below(rng, 2) ? PKV_DTYPE_F16 : PKV_DTYPE_BF16};
    world->num_blocks = test_rng_between(rng, 1, 20);
    world->page = test_rng_below(rng, 4) ? test_rng_between(rng, 1, 40) : 64;
    world->num_heads = test_rng_between(rng, 1, max_heads);
    world->head_size = test_rng_between(rng, 1, max_size);
    world->num_rows = test_rng_between(rng, MAX_SEQS, 40);
    world->window = 16 * test_rng_between(rng, 1, 4);
    world->stride = 16 * test_rng_between(rng, 1, world->window / 16);
    world->num_seqs = test_rng_below(rng, MAX_SEQS + 1);
    world->width = 1 + (world->window + test_rng_below(rng, 60)) / world->page;
    world->in_strides[2] = world->head_size + test_rng_below(rng, 2) * test_rng_below(rng, 5);
    world->in_strides[1] =
        world->num_heads * world->in_strides[2] + test_rng_below(rng, 2) * test_rng_below(rng, 5);
    world->in_strides[0] = world->page * world->in_strides[1] + test_rng_below(rng, 4);
    world->w_strides[1] = test_rng_between(rng, 0, 2);
    world->w_strides[0] = max64(1, world->num_heads * world->w_strides[1]);
    world->out_strides[1] = world->head_size + test_rng_below(rng, 3);
    world->out_strides[0] = world->num_heads * world->out_strides[1] + test_rng_below(rng, 3);
    world->in = make_codes(world->num_blocks * world->in_strides[0], rng, world->dtype);
    world->w = make_codes(world->window * world->w_strides[0] + 8, rng, world->dtype);
    world->out = make_codes(world->num_rows * world->out_strides[0], rng, world->dtype);
    world->in_before = malloc(world->in.bytes);
    world->out_shadow = malloc(world->out.bytes);
    assert_non_null(world->in_before);
    assert_non_null(world->out_shadow);
    memcpy(world->in_before, world->in.data, world->in.bytes);
    memcpy(world->out_shadow, world->out.data, world->out.bytes);
    draw_sequences(world, rng);
}

static void destroy(struct world *world) {
    free(world->in_before);
    free(world->out_shadow);
    test_guard_free(&world->in);
    test_guard_free(&world->w);
    test_guard_free(&world->out);
}

static uint16_t input_at(const struct world *world, int64_t b, int64_t position, int64_t n,
                         int64_t d) {
    int64_t block = world->table[b * world->width + position / world->page];
    const uint16_t *in = world->in.data;

    return in[block * world->in_strides[0] + position % world->page * world->in_strides[1] +
              n * world->in_strides[2] + d];
}

static void expect_windows(struct world *world) {
    const uint16_t *w = world->w.data;
    uint16_t x[64], weights[64];

    for (int64_t b = 0; b < world->num_seqs; b++) {
        for (int64_t e = 0; completes(world, b) && e < world->num_heads * world->head_size; e++) {
            int64_t n = e / world->head_size, d = e % world->head_size;

            for (int64_t t = 0; t < world->window; t++) {
                x[t] = input_at(world, b, world->lengths[b] - world->window + t, n, d);
                weights[t] = w[t * world->w_strides[0] + n * world->w_strides[1]];
            }
            world->out_shadow[world->slots[b] * world->out_strides[0] + n * world->out_strides[1] +
                              d] = nsa_ref_element(world->dtype, x, weights, world->window);
        }
    }
}

static struct pkv_tensor index_tensor(void *to, const int64_t *values, int64_t count,
                                      struct test_rng *rng) {
    int wide = (int)test_rng_below(rng, 2);

    for (int64_t i = 0; i < count; i++) {
        if (wide) {
            ((int64_t *)to)[i] = values[i];
        } else {
            ((int32_t *)to)[i] = (int32_t)values[i];
        }
    }
    return pkv_tensor_make(to, wide ? PKV_DTYPE_I64 : PKV_DTYPE_I32, 1, &count);
}

static enum pkv_status call(struct pkv_context *context, const struct world *world,
                            struct test_rng *rng) {
    static int64_t slot_data[MAX_SEQS], length_data[MAX_SEQS], table_data[MAX_SEQS * MAX_WIDTH];
    struct pkv_nsa_compress_options options = {.struct_size = sizeof(options),
                                               .compress_stride = world->stride};
    struct pkv_tensor in = pkv_tensor_make(
        world->in.data, world->dtype, 4,
        (int64_t[]){world->num_blocks, world->page, world->num_heads, world->head_size});
    struct pkv_tensor w = pkv_tensor_make(world->w.data, world->dtype, 2,
                                          (int64_t[]){world->window, world->num_heads});
    struct pkv_tensor out =
        pkv_tensor_make(world->out.data, world->dtype, 3,
                        (int64_t[]){world->num_rows, world->num_heads, world->head_size});
    struct pkv_tensor slots = index_tensor(slot_data, world->slots, world->num_seqs, rng);
    struct pkv_tensor lengths = index_tensor(length_data, world->lengths, world->num_seqs, rng);
    struct pkv_tensor table =
        index_tensor(table_data, world->table, world->num_seqs * world->width, rng);

    memcpy(in.strides, world->in_strides, sizeof(world->in_strides));
    in.strides[3] = 1;
    memcpy(w.strides, world->w_strides, sizeof(world->w_strides));
    memcpy(out.strides, world->out_strides, sizeof(world->out_strides));
    out.strides[2] = 1;
    table.ndim = 2;
    table.shape[0] = world->num_seqs;
    table.shape[1] = world->width;
    return pkv_nsa_compress_with_cache(context, &in, &w, &slots, &lengths, &table, &out, &options,
                                       &error);
}

static void expect_as_expected(const struct world *world) {
    assert_memory_equal(world->out.data, world->out_shadow, world->out.bytes);
    assert_memory_equal(world->in.data, world->in_before, world->in.bytes);
}

/* Spoils one sequence that completes a window, in one of the ways that must be refused. Returns
 * what is expected. */
static int32_t spoil(struct world *world, struct test_rng *rng) {
    int64_t b = world->num_seqs > 0 ? test_rng_below(rng, world->num_seqs) : 0;

    if (world->num_seqs == 0 || !completes(world, b)) {
        return PKV_STATUS_OK;
    }
    switch (test_rng_below(rng, 5)) {
    case 0:
        world->slots[b] = world->num_rows + test_rng_below(rng, 3);
        return PKV_STATUS_SLOT_OUT_OF_RANGE;
    case 1:
        world->lengths[b] = -test_rng_between(rng, 1, 100);
        return PKV_STATUS_INVALID_ARGUMENT;
    case 2:
        world->lengths[b] = world->width * world->page + test_rng_between(rng, 1, 100);
        return PKV_STATUS_POSITION_OUT_OF_RANGE;
    case 3:
        world->table[b * world->width + (world->lengths[b] - 1) / world->page] =
            test_rng_below(rng, 2) ? -1 : world->num_blocks;
        return PKV_STATUS_BLOCK_OUT_OF_RANGE;
    default:
        for (int64_t other = 0; other < world->num_seqs; other++) {
            if (other != b && completes(world, other)) {
                world->slots[b] = world->slots[other];
                return PKV_STATUS_DUPLICATE_SLOT;
            }
        }
        return PKV_STATUS_OK;
    }
}

static void random_case(struct test_rng *rng, struct pkv_context *context, int64_t max_heads,
                        int64_t max_size) {
    int32_t expected = PKV_STATUS_OK;
    struct world world;
    enum pkv_status status;

    draw(&world, rng, max_heads, max_size);
    if (test_rng_below(rng, 6) == 0) {
        expected = spoil(&world, rng);
    }
    if (expected == PKV_STATUS_OK) {
        expect_windows(&world);
    }
    status = call(context, &world, rng);
    if (expected == PKV_STATUS_OK) {
        check_ok(status, &error, __FILE__, __LINE__);
    } else {
        check_refused(status, &error, expected, __FILE__, __LINE__);
    }
    expect_as_expected(&world);
    destroy(&world);
}

static void random_cases(void **state) {
    const char *wanted = getenv("PAGEDKV_TEST_CASES");
    int64_t num_cases = wanted != NULL ? strtoll(wanted, NULL, 0) : 3000;
    struct test_rng seeds = test_rng_make(seed);

    (void)state;
    for (int64_t i = 0; i < num_cases; i++) {
        struct test_rng rng = test_rng_make(test_rng_next(&seeds));

        random_case(&rng, contexts.all[test_rng_below(&rng, contexts.count)], 4, 40);
    }
    print_message("%" PRId64 " cases\n", num_cases);
}

static void large_windows_go_to_the_threads(void **state) {
    struct test_rng seeds = test_rng_make(seed + 1);

    (void)state;
    for (int i = 0; i < contexts.count; i++) {
        struct test_rng rng = test_rng_make(test_rng_next(&seeds));

        random_case(&rng, contexts.all[i], 24, 300);
    }
}

/* What the refusals start from: two sequences, the second of which completes a window. */
struct small {
    uint16_t input[4 * 16 * 2], weight[32], output[3 * 2];
    int32_t slots[2], table[2 * 2];
    int64_t lengths[2];
    struct pkv_tensor in, w, slot, length, blocks, out;
    struct pkv_nsa_compress_options options;
};

static void small_make(struct small *small) {
    memset(small, 0, sizeof(*small));
    small->slots[0] = 900;
    small->slots[1] = 2;
    small->lengths[0] = 20;
    small->lengths[1] = 32;
    small->table[0] = -7;
    small->table[2] = 3;
    small->table[3] = 1;
    small->in = pkv_tensor_make(small->input, PKV_DTYPE_F16, 4, (int64_t[]){4, 16, 1, 2});
    small->w = pkv_tensor_make(small->weight, PKV_DTYPE_F16, 2, (int64_t[]){32, 1});
    small->slot = pkv_tensor_make(small->slots, PKV_DTYPE_I32, 1, (int64_t[]){2});
    small->length = pkv_tensor_make(small->lengths, PKV_DTYPE_I64, 1, (int64_t[]){2});
    small->blocks = pkv_tensor_make(small->table, PKV_DTYPE_I32, 2, (int64_t[]){2, 2});
    small->out = pkv_tensor_make(small->output, PKV_DTYPE_F16, 3, (int64_t[]){3, 1, 2});
    memset(small->output, 0x55, sizeof(small->output));
}

static void expect_refusal(const struct small *small, int32_t expected, const char *argument,
                           int line) {
    struct small before = *small;

    for (int i = 0; i < contexts.count; i++) {
        check_refused(pkv_nsa_compress_with_cache(contexts.all[i], &small->in, &small->w,
                                                  &small->slot, &small->length, &small->blocks,
                                                  &small->out, &small->options, &error),
                      &error, expected, __FILE__, line);
        assert_string_equal(error.argument, argument);
        assert_memory_equal(&before, small, sizeof(before));
    }
}

static void bad_shapes_are_refused(void **state) {
    struct small small;

    (void)state;
    small_make(&small);
    CHECK_OK(pkv_nsa_compress_with_cache(contexts.all[0], &small.in, &small.w, &small.slot,
                                         &small.length, &small.blocks, &small.out, NULL, &error),
             &error);
    small_make(&small);
    small.in.dtype = small.w.dtype = small.out.dtype = PKV_DTYPE_I16;
    expect_refusal(&small, PKV_STATUS_DTYPE, "input", __LINE__);
    small_make(&small);
    small.w.dtype = PKV_DTYPE_BF16;
    expect_refusal(&small, PKV_STATUS_DTYPE, "weight", __LINE__);
    small_make(&small);
    small.out.dtype = PKV_DTYPE_BF16;
    expect_refusal(&small, PKV_STATUS_DTYPE, "output_cache", __LINE__);
    small_make(&small);
    small.in.ndim = 3;
    expect_refusal(&small, PKV_STATUS_RANK, "input", __LINE__);
    small_make(&small);
    small.out.shape[0] = 0;
    expect_refusal(&small, PKV_STATUS_SHAPE, "output_cache", __LINE__);
    small_make(&small);
    small.w.shape[0] = 24;
    expect_refusal(&small, PKV_STATUS_SHAPE, "weight", __LINE__);
    assert_int_equal(error.value, 24);
    assert_int_equal(error.bound, 16);
    small_make(&small);
    small.w.shape[0] = 80;
    small.w.strides[1] = 1;
    expect_refusal(&small, PKV_STATUS_SHAPE, "weight", __LINE__);
    assert_int_equal(error.bound, 64);
    small_make(&small);
    small.w.shape[0] = 16;
    small.w.shape[1] = 2;
    expect_refusal(&small, PKV_STATUS_SHAPE, "weight", __LINE__);
    assert_int_equal(error.axis, 1);
    small_make(&small);
    small.out.shape[2] = 1;
    expect_refusal(&small, PKV_STATUS_SHAPE, "output_cache", __LINE__);
    small_make(&small);
    small.length.shape[0] = 1;
    expect_refusal(&small, PKV_STATUS_SHAPE, "act_seq_len", __LINE__);
    small_make(&small);
    small.blocks.shape[0] = 1;
    expect_refusal(&small, PKV_STATUS_SHAPE, "block_table", __LINE__);
    small_make(&small);
    small.slot.dtype = PKV_DTYPE_I16;
    expect_refusal(&small, PKV_STATUS_DTYPE, "slot_mapping", __LINE__);
    small_make(&small);
    small.in.strides[3] = 2;
    small.in.strides[1] = 4;
    small.in.strides[0] = 4;
    small.in.shape[0] = 1;
    expect_refusal(&small, PKV_STATUS_STRIDE, "input", __LINE__);
    small_make(&small);
    small.out.strides[0] = 1;
    small.out.strides[2] = 1;
    expect_refusal(&small, PKV_STATUS_STRIDE, "output_cache", __LINE__);
    small_make(&small);
    small.out.data = small.input + 8;
    expect_refusal(&small, PKV_STATUS_OVERLAP, "input", __LINE__);
    small_make(&small);
    small.out.data = small.slots;
    small.out.shape[0] = 1;
    small.slots[1] = 0;
    expect_refusal(&small, PKV_STATUS_OVERLAP, "slot_mapping", __LINE__);
}

static void bad_indices_are_refused(void **state) {
    struct small small;

    (void)state;
    small_make(&small);
    small.slots[1] = 3;
    expect_refusal(&small, PKV_STATUS_SLOT_OUT_OF_RANGE, "slot_mapping", __LINE__);
    assert_int_equal(error.index, 1);
    assert_int_equal(error.value, 3);
    assert_int_equal(error.bound, 3);
    small_make(&small);
    small.lengths[0] = -1;
    expect_refusal(&small, PKV_STATUS_INVALID_ARGUMENT, "act_seq_len", __LINE__);
    assert_int_equal(error.index, 0);
    small_make(&small); /* completes nothing, and lies beyond the table all the same */
    small.lengths[0] = 33;
    expect_refusal(&small, PKV_STATUS_POSITION_OUT_OF_RANGE, "act_seq_len", __LINE__);
    small_make(&small);
    small.lengths[0] = INT64_MAX;
    expect_refusal(&small, PKV_STATUS_POSITION_OUT_OF_RANGE, "act_seq_len", __LINE__);
    small_make(&small);
    small.table[3] = 4;
    expect_refusal(&small, PKV_STATUS_BLOCK_OUT_OF_RANGE, "block_table", __LINE__);
    assert_int_equal(error.index, 3);
    assert_int_equal(error.value, 4);
    assert_int_equal(error.bound, 4);
    small_make(&small);
    small.slots[0] = 2;
    small.lengths[0] = 32;
    small.table[0] = 0;
    expect_refusal(&small, PKV_STATUS_DUPLICATE_SLOT, "slot_mapping", __LINE__);
    assert_int_equal(error.index, 1);
    assert_int_equal(error.value, 2);
}

static void bad_options_are_refused(void **state) {
    static const struct pkv_nsa_compress_options wrong[] = {
        {.compress_block_size = 16}, {.compress_block_size = -32}, {.compress_stride = 8},
        {.compress_stride = -16},    {.compress_stride = 48},      {.page_block_size = 64},
    };
    static const char *const names[] = {
        "options->compress_block_size", "options->compress_block_size", "options->compress_stride",
        "options->compress_stride",     "options->compress_stride",     "options->page_block_size",
    };
    struct small small;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        small_make(&small);
        small.options = wrong[i];
        expect_refusal(&small, PKV_STATUS_INVALID_ARGUMENT, names[i], __LINE__);
    }
    small_make(&small);
    CHECK_REFUSED(pkv_nsa_compress_with_cache(NULL, &small.in, &small.w, &small.slot, &small.length,
                                              &small.blocks, &small.out, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_nsa_compress_with_cache(contexts.all[0], &small.in, &small.w, &small.slot,
                                              &small.length, NULL, &small.out, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
}

/* The slots of sequences that complete nothing may repeat those that are used, and each other. */
static void ignored_slots_may_repeat(void **state) {
    struct small small;

    (void)state;
    small_make(&small);
    small.slots[0] = 2;
    CHECK_OK(pkv_nsa_compress_with_cache(contexts.all[0], &small.in, &small.w, &small.slot,
                                         &small.length, &small.blocks, &small.out, NULL, &error),
             &error);
    assert_int_equal(small.output[4], 0);
    assert_int_equal(small.output[3], 0x5555);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_example),
        cmocka_unit_test(order_of_the_sum),
        cmocka_unit_test(what_is_no_number_is_one_nan),
        cmocka_unit_test(random_cases),
        cmocka_unit_test(large_windows_go_to_the_threads),
        cmocka_unit_test(bad_shapes_are_refused),
        cmocka_unit_test(bad_indices_are_refused),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(ignored_slots_may_repeat),
    };

    seed = test_seed(32);
    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
