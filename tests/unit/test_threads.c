/* SPDX-License-Identifier: MIT
 *
 * Which calls go to the executor: those that move much, in as many parts as the explanation says;
 * small ones stay on the calling thread, for waking another one costs more than they do.
 */
#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { NUM_BLOCKS = 128, BLOCK_SIZE = 16, HEAD_SIZE = 256, NUM_SLOTS = NUM_BLOCKS * BLOCK_SIZE };
enum { NUM_THREADS = 3 };

static struct pkv_error error = {.struct_size = sizeof(error)};
static int64_t num_runs, num_parts; /* what came to the executor */

static void count_and_run(void *user, void (*fn)(void *arg, int64_t index), void *arg,
                          int64_t num_tiles) {
    (void)user;
    num_runs++;
    num_parts = num_tiles;
    for (int64_t i = 0; i < num_tiles; i++) {
        fn(arg, i);
    }
}

/* Two caches of 2 MiB of keys, rows of 1 KiB. */
struct world {
    float *memory[2];
    float *rows;
    struct pkv_tensor key_cache[2];
    struct pkv_cache cache[2];
    struct pkv_context *context;
};

static void open_world(struct world *world) {
    const struct pkv_executor executor = {.run = count_and_run, .num_threads = NUM_THREADS};
    const struct pkv_context_options options = {.executor = &executor};

    CHECK_OK(pkv_context_create(&world->context, &options, &error), &error);
    world->rows = calloc(NUM_SLOTS * HEAD_SIZE, sizeof(float));
    assert_non_null(world->rows);
    for (int i = 0; i < 2; i++) {
        world->memory[i] = calloc(NUM_SLOTS * HEAD_SIZE, sizeof(float));
        assert_non_null(world->memory[i]);
        world->key_cache[i] = pkv_tensor_make(world->memory[i], PKV_DTYPE_F32, 4,
                                              (int64_t[]){NUM_BLOCKS, BLOCK_SIZE, 1, HEAD_SIZE});
        world->cache[i].struct_size = sizeof(world->cache[i]);
        CHECK_OK(pkv_cache_init(&world->cache[i], &world->key_cache[i], NULL, NULL, &error),
                 &error);
    }
}

static void close_world(struct world *world) {
    pkv_context_destroy(world->context);
    for (int i = 0; i < 2; i++) {
        free(world->memory[i]);
    }
    free(world->rows);
}

static enum pkv_status scatter(struct world *world, int64_t num_blocks) {
    int64_t slots[NUM_SLOTS], count = num_blocks * BLOCK_SIZE;
    struct pkv_tensor key =
        pkv_tensor_make(world->rows, PKV_DTYPE_F32, 3, (int64_t[]){count, 1, HEAD_SIZE});
    struct pkv_tensor mapping = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, &count);

    for (int64_t i = 0; i < count; i++) {
        slots[i] = i;
    }
    return pkv_scatter_pa_kv_cache(world->context, &key, &world->key_cache[0], &mapping, NULL, NULL,
                                   NULL, &error);
}

static enum pkv_status gather(struct world *world, int64_t num_blocks) {
    int64_t table[NUM_BLOCKS], length = num_blocks * BLOCK_SIZE;
    const struct pkv_gather_pa_kv_cache_options options = {.seq_lens_are_plain = 1};
    struct pkv_tensor key =
        pkv_tensor_make(world->rows, PKV_DTYPE_F32, 3, (int64_t[]){length, 1, HEAD_SIZE});
    struct pkv_tensor tables = pkv_tensor_make(table, PKV_DTYPE_I64, 2, (int64_t[]){1, num_blocks});
    struct pkv_tensor lengths = pkv_tensor_make(&length, PKV_DTYPE_I64, 1, (int64_t[]){1});

    for (int64_t i = 0; i < num_blocks; i++) {
        table[i] = i;
    }
    return pkv_gather_pa_kv_cache(world->context, &world->key_cache[0], NULL, &tables, &lengths,
                                  &key, NULL, NULL, &options, &error);
}

/* From the first blocks of one cache to the second one's, or within one to its second half. */
static enum pkv_status copy_or_swap(struct world *world, int64_t num_blocks, int to_other) {
    int64_t pairs[NUM_BLOCKS][2];
    struct pkv_tensor mapping =
        pkv_tensor_make(pairs, PKV_DTYPE_I64, 2, (int64_t[]){num_blocks, 2});

    for (int64_t i = 0; i < num_blocks; i++) {
        pairs[i][0] = i;
        pairs[i][1] = to_other ? i : NUM_BLOCKS / 2 + i;
    }
    return to_other ? pkv_swap_blocks(world->context, &world->cache[0], &world->cache[1], &mapping,
                                      &error)
                    : pkv_copy_blocks(world->context, &world->cache[0], &mapping, &error);
}

static enum pkv_status copy(struct world *world, int64_t num_blocks) {
    return copy_or_swap(world, num_blocks > NUM_BLOCKS / 2 ? NUM_BLOCKS / 2 : num_blocks, 0);
}

static enum pkv_status swap(struct world *world, int64_t num_blocks) {
    return copy_or_swap(world, num_blocks, 1);
}

static enum pkv_status fill(struct world *world, int64_t num_blocks) {
    const float one = 1;
    return pkv_fill_blocks(world->context, &world->cache[0], 0, num_blocks, &one, NULL, &error);
}

static void large_calls_go_to_the_executor(void **state) {
    static const struct {
        const char *name;
        enum pkv_status (*call)(struct world *world, int64_t num_blocks);
    } operators[] = {{"scatter", scatter},
                     {"gather", gather},
                     {"copy_blocks", copy},
                     {"swap_blocks", swap},
                     {"fill_blocks", fill}};
    struct world world;

    (void)state;
    open_world(&world);
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
        num_runs = num_parts = 0;
        CHECK_OK(operators[i].call(&world, 1), &error);
        if (num_runs != 0) {
            fail_msg("%s: a small call went to the executor", operators[i].name);
        }
        CHECK_OK(operators[i].call(&world, NUM_BLOCKS), &error);
        if (num_runs != 1 || num_parts < 2) {
            fail_msg("%s: %d runs, the last one of %d parts", operators[i].name, (int)num_runs,
                     (int)num_parts);
        }
    }
    num_runs = 0;
    CHECK_OK(pkv_convert_layout(world.context, &world.cache[0], &world.cache[1], &error), &error);
    assert_int_equal(num_runs, 1);
    assert_true(num_parts >= 2);
    close_world(&world);
}

/* On both sides of the border, and far beyond it. */
static void explanations_tell_the_parts(void **state) {
    struct pkv_scatter_plan *plan;
    struct world world;

    (void)state;
    open_world(&world);
    CHECK_OK(pkv_scatter_plan_create(&plan, world.context, &world.cache[0], NULL, &error), &error);
    for (int64_t num_blocks = 1; num_blocks <= NUM_BLOCKS; num_blocks++) {
        struct pkv_explanation explanation = {.struct_size = sizeof(explanation)};

        CHECK_OK(pkv_scatter_plan_explain(plan, num_blocks * BLOCK_SIZE, NUM_THREADS, &explanation,
                                          &error),
                 &error);
        num_runs = 0;
        num_parts = 1;
        CHECK_OK(scatter(&world, num_blocks), &error);
        assert_int_equal(num_parts, explanation.num_parts);
        assert_int_equal(num_runs, explanation.num_parts > 1);
    }
    pkv_scatter_plan_destroy(plan);
    close_world(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_calls_go_to_the_executor),
        cmocka_unit_test(explanations_tell_the_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
