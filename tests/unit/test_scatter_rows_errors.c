/* SPDX-License-Identifier: MIT
 *
 * Scatter to many targets: what is refused, with the argument named and nothing changed, and what a
 * plan holds its callers to.
 */
#include "allocator.h"
#include "calls.h"
#include "contexts.h"
#include "targets.h"

#include <stdlib.h>

static struct pkv_error error = {.struct_size = sizeof(error)};
/* What the refusals below start from: two caches of 4 blocks of 2 slots, one of them without
 * blocks. */
struct world {
    uint8_t memory[2][64];
    uint8_t source[2][64];
    int64_t slots[2];
    struct pkv_tensor index, sources[2], caches[2];
};

static void world_make(struct world *world) {
    memset(world, 0x11, sizeof(*world));
    world->slots[0] = 1;
    world->slots[1] = 6;
    world->index = pkv_tensor_make(world->slots, PKV_DTYPE_I64, 1, (int64_t[]){2});
    world->sources[0] = pkv_tensor_make(world->source[0], PKV_DTYPE_U8, 2, (int64_t[]){2, 6});
    world->sources[1] = pkv_tensor_make(world->source[1], PKV_DTYPE_U8, 3, (int64_t[]){2, 2, 3});
    world->caches[0] = pkv_tensor_make(world->memory[0], PKV_DTYPE_U8, 4, (int64_t[]){4, 2, 2, 3});
    world->caches[1] = pkv_tensor_make(world->memory[1], PKV_DTYPE_U8, 2, (int64_t[]){8, 6});
}

/* Every context, and nothing changes. The message names the argument. */
static void expect_refusal(const struct world *world, int32_t expected, const char *argument,
                           int line) {
    struct world before = *world;
    struct pkv_tensor sources[2] = {world->sources[0], world->sources[1]};

    for (int i = 0; i < contexts.count; i++) {
        check_refused(pkv_scatter_rows(contexts.all[i], &world->index, sources, world->caches, 2,
                                       NULL, &error),
                      &error, expected, __FILE__, line);
        assert_string_equal(error.argument, argument);
        assert_memory_equal(&before, world, sizeof(before));
    }
}

static void bad_caches_are_refused(void **state) {
    struct world world;

    (void)state;
    world_make(&world);
    CHECK_OK(pkv_scatter_rows(contexts.all[0], &world.index, world.sources, world.caches, 2, NULL,
                              &error),
             &error);
    world_make(&world);
    world.caches[0].dtype = world.sources[0].dtype = PKV_DTYPE_BOOL;
    expect_refusal(&world, PKV_STATUS_DTYPE, "caches[0]", __LINE__);
    world_make(&world);
    world.caches[1] = pkv_tensor_make(world.memory[1], PKV_DTYPE_U8, 1, (int64_t[]){48});
    expect_refusal(&world, PKV_STATUS_RANK, "caches[1]", __LINE__);
    world_make(&world);
    world.caches[1].shape[1] = 0;
    expect_refusal(&world, PKV_STATUS_SHAPE, "caches[1]", __LINE__);
    world_make(&world);
    world.caches[1].shape[0] = 7;
    expect_refusal(&world, PKV_STATUS_SHAPE, "caches[1]", __LINE__);
    assert_int_equal(error.axis, 0);
    assert_int_equal(error.value, 7);
    assert_int_equal(error.bound, 8);
    world_make(&world);
    world.caches[1] = pkv_tensor_make(world.memory[1], PKV_DTYPE_U8, 3, (int64_t[]){2, 4, 6});
    expect_refusal(&world, PKV_STATUS_SHAPE, "caches[1]", __LINE__);
    world_make(&world);
    world.caches[1].strides[0] = 1;
    world.caches[1].strides[1] = 8;
    expect_refusal(&world, PKV_STATUS_STRIDE, "caches[1]", __LINE__);
    assert_int_equal(error.axis, 1);
    world_make(&world);
    world.caches[1].strides[0] = 5;
    world.caches[1].strides[1] = 1;
    expect_refusal(&world, PKV_STATUS_STRIDE, "caches[1]", __LINE__);
    world_make(&world);
    world.caches[1].data = NULL;
    expect_refusal(&world, PKV_STATUS_NULL_ARGUMENT, "caches[1]", __LINE__);
    world_make(&world);
    world.caches[1].data = world.memory[0];
    expect_refusal(&world, PKV_STATUS_OVERLAP, "caches[1]", __LINE__);
    assert_int_equal(error.bound, 0);
}

static void bad_sources_are_refused(void **state) {
    struct world world;

    (void)state;
    world_make(&world);
    world.sources[1].dtype = PKV_DTYPE_I8;
    expect_refusal(&world, PKV_STATUS_DTYPE, "sources[1]", __LINE__);
    world_make(&world);
    world.sources[0] = pkv_tensor_make(world.source[0], PKV_DTYPE_U8, 1, (int64_t[]){12});
    expect_refusal(&world, PKV_STATUS_RANK, "sources[0]", __LINE__);
    world_make(&world);
    world.sources[0].shape[0] = 3;
    expect_refusal(&world, PKV_STATUS_SHAPE, "sources[0]", __LINE__);
    assert_int_equal(error.axis, 0);
    world_make(&world);
    world.sources[0].shape[1] = 5;
    expect_refusal(&world, PKV_STATUS_SHAPE, "sources[0]", __LINE__);
    assert_int_equal(error.axis, 1);
    assert_int_equal(error.value, 5);
    assert_int_equal(error.bound, 6);
    world_make(&world);
    world.sources[1].shape[2] = 2;
    expect_refusal(&world, PKV_STATUS_SHAPE, "sources[1]", __LINE__);
    world_make(&world); /* 3 heads of 2 are not 2 heads of 3, when the cache tells */
    world.sources[0] = pkv_tensor_make(world.source[0], PKV_DTYPE_U8, 3, (int64_t[]){2, 3, 2});
    expect_refusal(&world, PKV_STATUS_SHAPE, "sources[0]", __LINE__);
    world_make(&world);
    world.sources[1].strides[0] = -6;
    expect_refusal(&world, PKV_STATUS_STRIDE, "sources[1]", __LINE__);
    world_make(&world); /* the row of slot 6 */
    world.sources[1].data = world.memory[0] + 36;
    expect_refusal(&world, PKV_STATUS_OVERLAP, "sources[1]", __LINE__);
    world_make(&world);
    world.slots[1] = 8;
    expect_refusal(&world, PKV_STATUS_SLOT_OUT_OF_RANGE, "slot_mapping", __LINE__);
    assert_int_equal(error.index, 1);
    assert_int_equal(error.value, 8);
    assert_int_equal(error.bound, 8);
    world_make(&world);
    world.index.dtype = PKV_DTYPE_F32;
    expect_refusal(&world, PKV_STATUS_DTYPE, "slot_mapping", __LINE__);
}

/* Rows that are not written may be read: the cache's own row 0 as source of row 1. */
static void unwritten_rows_may_be_sources(void **state) {
    uint8_t data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t slot = 1;
    struct pkv_tensor index = pkv_tensor_make(&slot, PKV_DTYPE_I32, 1, (int64_t[]){1});
    struct pkv_tensor cache = pkv_tensor_make(data, PKV_DTYPE_U8, 2, (int64_t[]){4, 2});
    struct pkv_tensor source = pkv_tensor_make(data, PKV_DTYPE_U8, 2, (int64_t[]){1, 2});

    (void)state;
    CHECK_OK(pkv_scatter_rows(contexts.all[0], &index, &source, &cache, 1, NULL, &error), &error);
    assert_memory_equal(data, "\1\2\1\2\5\6\7\10", 8);
}

static void bad_calls_are_refused(void **state) {
    struct pkv_scatter_rows_options options = {.struct_size = sizeof(options)};
    struct pkv_context *context = contexts.all[0];
    struct world world;

    (void)state;
    world_make(&world);
    CHECK_REFUSED(
        pkv_scatter_rows(context, &world.index, world.sources, world.caches, 0, NULL, &error),
        &error, PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(
        pkv_scatter_rows(context, &world.index, world.sources, world.caches, 17, NULL, &error),
        &error, PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(
        pkv_scatter_rows(NULL, &world.index, world.sources, world.caches, 2, NULL, &error), &error,
        PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_rows(context, NULL, world.sources, world.caches, 2, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_rows(context, &world.index, NULL, world.caches, 2, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_rows(context, &world.index, world.sources, NULL, 2, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    options.duplicates = 3;
    CHECK_REFUSED(
        pkv_scatter_rows(context, &world.index, world.sources, world.caches, 2, &options, &error),
        &error, PKV_STATUS_INVALID_ARGUMENT);
    options = (struct pkv_scatter_rows_options){.store_policy = 3};
    CHECK_REFUSED(
        pkv_scatter_rows(context, &world.index, world.sources, world.caches, 2, &options, &error),
        &error, PKV_STATUS_INVALID_ARGUMENT);
}

static void plans_hold_their_callers_to_it(void **state) {
    unsigned char rows[16];
    struct pkv_cache geometry = targets_geometry(4, 2, rows), other = targets_geometry(2, 4, rows);
    struct pkv_context *context = contexts.all[0];
    struct pkv_scatter_rows_plan *plan = NULL;
    struct pkv_step *step = make_step(0, 0);
    struct pkv_step_indices indices = {.struct_size = sizeof(indices)};
    struct world world, before;

    (void)state;
    world_make(&world);
    indices.slot_mapping = world.index;
    CHECK_OK(pkv_scatter_rows_plan_create(&plan, context, world.caches, 2, NULL, &error), &error);
    before = world;
    CHECK_REFUSED(pkv_scatter_rows_run(context, plan, step, world.sources, world.caches, &error),
                  &error, PKV_STATUS_BAD_STATE);
    CHECK_OK(pkv_step_set(context, step, &other, &indices, &error), &error);
    CHECK_REFUSED(pkv_scatter_rows_run(context, plan, step, world.sources, world.caches, &error),
                  &error, PKV_STATUS_BAD_STATE);
    assert_int_equal(error.value, 2);
    assert_int_equal(error.bound, 4);
    CHECK_OK(pkv_step_set(context, step, &geometry, &indices, &error), &error);
    world.caches[1].shape[1] = 5;
    CHECK_REFUSED(pkv_scatter_rows_run(context, plan, step, world.sources, world.caches, &error),
                  &error, PKV_STATUS_LAYOUT);
    assert_string_equal(error.argument, "caches[1]");
    world.caches[1] = before.caches[1];
    world.caches[1].dtype = 99;
    CHECK_REFUSED(pkv_scatter_rows_run(context, plan, step, world.sources, world.caches, &error),
                  &error, PKV_STATUS_DTYPE);
    world.caches[1] = before.caches[1];
    world.caches[1].data = world.memory[0] + 6; /* apart in the plan, not here */
    CHECK_REFUSED(pkv_scatter_rows_run(context, plan, step, world.sources, world.caches, &error),
                  &error, PKV_STATUS_OVERLAP);
    world.caches[1] = before.caches[1];
    CHECK_REFUSED(
        pkv_scatter_rows_run_part(context, plan, step, world.sources, world.caches, 2, 2, &error),
        &error, PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_rows_run(context, NULL, step, world.sources, world.caches, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_rows_run(context, plan, step, NULL, world.caches, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    assert_memory_equal(&world, &before, sizeof(world));
    /* The same strides, spelled out. */
    world.caches[1].strides[0] = 6;
    world.caches[1].strides[1] = 1;
    memset(world.source, 0x22, sizeof(world.source));
    CHECK_OK(pkv_scatter_rows_run(context, plan, step, world.sources, world.caches, &error),
             &error);
    assert_int_equal(world.memory[1][36], 0x22);
    pkv_step_destroy(step);
    pkv_scatter_rows_plan_destroy(plan);
}

/* Without blocks any step of as many slots will do. */
static void caches_without_blocks_fit_any_step(void **state) {
    unsigned char rows[16], data[12];
    struct pkv_context *context = contexts.all[0];
    struct pkv_step *step = make_step(0, 0);
    int64_t slots[] = {5, 0, 2};
    unsigned char source[] = {10, 11, 12};
    struct pkv_tensor cache = pkv_tensor_make(data, PKV_DTYPE_U8, 2, (int64_t[]){6, 1});
    struct pkv_tensor rows_in = pkv_tensor_make(source, PKV_DTYPE_U8, 2, (int64_t[]){3, 1});
    struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .slot_mapping = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, (int64_t[]){3})};
    struct pkv_scatter_rows_plan *plan = NULL;

    (void)state;
    cache.strides[0] = 2;
    cache.strides[1] = 1;
    CHECK_OK(pkv_scatter_rows_plan_create(&plan, context, &cache, 1, NULL, &error), &error);
    for (int64_t block_size = 1; block_size <= 6; block_size++) {
        if (6 % block_size == 0) {
            struct pkv_cache geometry = targets_geometry(6 / block_size, block_size, rows);

            memset(data, 0, sizeof(data));
            CHECK_OK(pkv_step_set(context, step, &geometry, &indices, &error), &error);
            CHECK_OK(pkv_scatter_rows_run(context, plan, step, &rows_in, &cache, &error), &error);
            assert_memory_equal(data, "\13\0\0\0\14\0\0\0\0\0\12\0", 12);
        }
    }
    pkv_step_destroy(step);
    pkv_scatter_rows_plan_destroy(plan);
}

static void plan_creation_fails_cleanly(void **state) {
    struct test_allocator allocator = {.fail_at = 2};
    struct pkv_allocator hook = test_allocator_hook(&allocator);
    struct pkv_context_options options = {.struct_size = sizeof(options), .allocator = &hook};
    struct pkv_scatter_options bad = {.struct_size = sizeof(bad), .reserved = 1};
    struct pkv_scatter_rows_plan *plan = NULL;
    struct pkv_context *context = NULL;
    struct world world;

    (void)state;
    world_make(&world);
    CHECK_OK(pkv_context_create(&context, &options, &error), &error);
    CHECK_REFUSED(pkv_scatter_rows_plan_create(&plan, context, world.caches, 2, NULL, &error),
                  &error, PKV_STATUS_OUT_OF_MEMORY);
    assert_null(plan);
    CHECK_OK(pkv_scatter_rows_plan_create(&plan, context, world.caches, 2, NULL, &error), &error);
    pkv_scatter_rows_plan_destroy(plan);
    pkv_scatter_rows_plan_destroy(NULL);
    CHECK_REFUSED(pkv_scatter_rows_plan_create(&plan, context, world.caches, 2, &bad, &error),
                  &error, PKV_STATUS_INVALID_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_rows_plan_create(NULL, context, world.caches, 2, NULL, &error),
                  &error, PKV_STATUS_NULL_ARGUMENT);
    CHECK_REFUSED(pkv_scatter_rows_plan_create(&plan, context, NULL, 2, NULL, &error), &error,
                  PKV_STATUS_NULL_ARGUMENT);
    assert_null(plan);
    pkv_context_destroy(context);
    assert_int_equal(allocator.num_live, 0);
    assert_int_equal(allocator.num_bad, 0);
}

/* Neighbours in block 0 that part from there on are no columns of one row. */
static void neighbours_with_other_blocks_stay_apart(void **state) {
    unsigned char data[28] = {0};
    int64_t slot = 3;
    unsigned char source[2] = {1, 2};
    struct pkv_tensor index = pkv_tensor_make(&slot, PKV_DTYPE_I64, 1, (int64_t[]){1});
    struct pkv_tensor sources[2], caches[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        sources[i] = pkv_tensor_make(source, PKV_DTYPE_U8, 2, (int64_t[]){1, 2});
        caches[i] = pkv_tensor_make(data + 2 * i, PKV_DTYPE_U8, 3, (int64_t[]){2, 2, 2});
        caches[i].strides[0] = 16 + 4 * i;
        caches[i].strides[1] = 4;
        caches[i].strides[2] = 1;
    }
    CHECK_OK(pkv_scatter_rows(contexts.all[0], &index, sources, caches, 2, NULL, &error), &error);
    for (int i = 0; i < 28; i++) {
        assert_int_equal(data[i], i == 20 || i == 26 ? 1 : i == 21 || i == 27 ? 2 : 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_caches_are_refused),
        cmocka_unit_test(bad_sources_are_refused),
        cmocka_unit_test(unwritten_rows_may_be_sources),
        cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(plans_hold_their_callers_to_it),
        cmocka_unit_test(caches_without_blocks_fit_any_step),
        cmocka_unit_test(neighbours_with_other_blocks_stay_apart),
        cmocka_unit_test(plan_creation_fails_cleanly),
    };

    return cmocka_run_group_tests(tests, contexts_set_up, contexts_tear_down);
}
