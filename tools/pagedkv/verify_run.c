/* SPDX-License-Identifier: MIT
 *
 * One case of verify. See verify_run.h.
 */
#include "verify_run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_ceiling.h"
#include "bench_clock.h"
#include "cli_random.h"

/* A run that takes longer than this (the definition does) is measured once more, not MAX_ROUNDS
 * times. */
enum { MAX_ROUNDS = 15, SLOW_NS = 20000000, CHUNK_BYTES = 1024 };

struct scatter {
    struct verify_memory *memory;
    const struct verify_case *one;
    struct pkv_context *context;
    const struct pkv_executor *executor;
    int64_t *slots;
    int32_t *slots_i32;
    int64_t num_written; /* tokens whose slot is not negative */
    struct pkv_cache cache;
    struct pkv_tensor key;
    struct pkv_tensor value;
    struct pkv_step_indices indices;
    struct pkv_scatter_plan *plan;
    struct pkv_step *step;
    struct pkv_error error;
    struct cli_random random;
    int64_t copy_first; /* where the contiguous copy goes: byte of the caches */
};

static int64_t copy_bytes(const struct scatter *scatter) {
    return scatter->num_written * verify_row_bytes(scatter->one);
}

/* Slots as the case's dtype wants them. Returns 0, or -1 when memory is missing. */
static int draw(struct scatter *scatter) {
    const struct verify_case *one = scatter->one;
    const size_t num_tokens = (size_t)one->num_tokens;
    scatter->slots = malloc(num_tokens * sizeof(scatter->slots[0]));
    scatter->slots_i32 = malloc(num_tokens * sizeof(scatter->slots_i32[0]));
    if (scatter->slots == NULL || scatter->slots_i32 == NULL ||
        verify_draw_slots(one, scatter->slots) != 0)
        return -1;
    for (size_t i = 0; i < num_tokens; i++) {
        scatter->slots_i32[i] = (int32_t)scatter->slots[i];
        scatter->num_written += scatter->slots[i] >= 0;
    }
    const int wide = one->slot_dtype == PKV_DTYPE_I64;
    scatter->indices = (struct pkv_step_indices){
        .struct_size = sizeof(scatter->indices),
        .slot_mapping = pkv_tensor_make(wide ? (void *)scatter->slots : (void *)scatter->slots_i32,
                                        one->slot_dtype, 1, &one->num_tokens)};
    return 0;
}

static enum pkv_status create(struct scatter *scatter) {
    const struct verify_case *one = scatter->one;
    struct pkv_error *error = &scatter->error;
    const int64_t cache_shape[4] = {one->num_blocks, one->block_size, one->num_heads,
                                    one->head_size};
    const int64_t row_shape[3] = {one->num_tokens, one->num_heads, one->head_size};
    struct verify_memory *memory = scatter->memory;
    const struct pkv_tensor key_cache =
        pkv_tensor_make(memory->cache[VERIFY_KEY].data, PKV_DTYPE_BF16, 4, cache_shape);
    const struct pkv_tensor value_cache =
        pkv_tensor_make(memory->cache[VERIFY_VALUE].data, PKV_DTYPE_BF16, 4, cache_shape);
    scatter->key = pkv_tensor_make(memory->source[VERIFY_KEY].data, PKV_DTYPE_BF16, 3, row_shape);
    scatter->value =
        pkv_tensor_make(memory->source[VERIFY_VALUE].data, PKV_DTYPE_BF16, 3, row_shape);
    const struct pkv_step_options options = {.struct_size = sizeof(options),
                                             .max_tokens = one->num_tokens};
    enum pkv_status status = pkv_cache_init(&scatter->cache, &key_cache, &value_cache, NULL, error);
    if (status == PKV_STATUS_OK)
        status =
            pkv_scatter_plan_create(&scatter->plan, scatter->context, &scatter->cache, NULL, error);
    if (status == PKV_STATUS_OK)
        status = pkv_step_create(&scatter->step, &options, error);
    if (status == PKV_STATUS_OK)
        status = pkv_step_set(scatter->context, scatter->step, &scatter->cache, &scatter->indices,
                              error);
    return status;
}

static void destroy(struct scatter *scatter) {
    pkv_step_destroy(scatter->step);
    pkv_scatter_plan_destroy(scatter->plan);
    free(scatter->slots);
    free(scatter->slots_i32);
}

static int prepare_source(void *arg) {
    const struct scatter *scatter = arg;
    const int64_t bytes = scatter->one->num_tokens * verify_row_bytes(scatter->one);
    bench_touch(scatter->memory->source[VERIFY_KEY].data, bytes);
    bench_touch(scatter->memory->source[VERIFY_VALUE].data, bytes);
    return 0;
}

static int run(void *arg) {
    struct scatter *scatter = arg;
    return pkv_scatter_run(scatter->context, scatter->plan, scatter->step, &scatter->cache,
                           &scatter->key, &scatter->value, &scatter->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

static void clean_up_copy(void *arg) {
    struct scatter *scatter = arg;
    verify_restore_bytes(scatter->memory, scatter->copy_first, copy_bytes(scatter));
    (void)bench_flush(scatter->memory->cache[VERIFY_KEY].data + scatter->copy_first,
                      copy_bytes(scatter));
    (void)bench_flush(scatter->memory->cache[VERIFY_VALUE].data + scatter->copy_first,
                      copy_bytes(scatter));
    bench_fence();
}

static int prepare_copy(void *arg) {
    struct scatter *scatter = arg;
    const int64_t room = scatter->memory->cache[VERIFY_KEY].bytes - copy_bytes(scatter);
    scatter->copy_first = cli_random_below(&scatter->random, room / CHUNK_BYTES + 1) * CHUNK_BYTES;
    return prepare_source(scatter);
}

static int run_copy(void *arg) {
    const struct scatter *scatter = arg;
    struct bench_span spans[VERIFY_NUM_PARTS];
    for (int part = 0; part < VERIFY_NUM_PARTS; part++)
        spans[part] = (struct bench_span){scatter->memory->cache[part].data + scatter->copy_first,
                                          scatter->memory->source[part].data, copy_bytes(scatter)};
    bench_ceiling_copy(scatter->executor, spans, VERIFY_NUM_PARTS);
    return 0;
}

static void measure(struct scatter *scatter, struct verify_result *result, int64_t first_ns) {
    const struct bench_variant variants[] = {{prepare_source, run, NULL, scatter},
                                             {prepare_copy, run_copy, clean_up_copy, scatter}};
    struct bench_rounds rounds;
    if (bench_rounds_measure(&rounds, variants, 2, first_ns > SLOW_NS ? 1 : MAX_ROUNDS,
                             scatter->executor, &scatter->random) != 0) {
        result->verdict = VERIFY_ERROR;
        (void)pkv_error_text(&scatter->error, result->message, sizeof(result->message));
        return;
    }
    result->bytes = 2 * VERIFY_NUM_PARTS * copy_bytes(scatter);
    result->ns = bench_rounds_time(&rounds, 0);
    result->ceiling = bench_rounds_speed(&rounds, 0, 1);
}

static void describe(const struct scatter *scatter, const struct verify_difference *difference,
                     char message[256]) {
    const struct verify_case *one = scatter->one;
    const int64_t row_bytes = verify_row_bytes(one);
    const int64_t slot = difference->byte / row_bytes;
    const char *part = difference->part == VERIFY_KEY ? "key" : "value";
    char where[128], from[48] = "as it was before: no token names this slot";
    if (slot >= one->num_blocks * one->block_size) {
        (void)snprintf(where, sizeof(where), "%s cache, byte %" PRId64 " behind its end", part,
                       difference->byte - one->num_blocks * one->block_size * row_bytes);
        (void)snprintf(from, sizeof(from), "as it was before");
    } else {
        (void)snprintf(where, sizeof(where),
                       "%s cache, slot %" PRId64 " (block %" PRId64 ", offset %" PRId64
                       "), byte %" PRId64 " of the row",
                       part, slot, slot / one->block_size, slot % one->block_size,
                       difference->byte % row_bytes);
        if (scatter->memory->last_token[slot] >= 0)
            (void)snprintf(from, sizeof(from), "from token %d",
                           (int)scatter->memory->last_token[slot]);
    }
    (void)snprintf(message, 256, "%s: found 0x%02x, expected 0x%02x %s; %" PRId64 " KiB differ",
                   where, (unsigned)difference->found, (unsigned)difference->expected, from,
                   difference->num_chunks);
}

struct verify_result verify_run(struct verify_memory *memory, const struct verify_case *one,
                                struct pkv_context *context, const struct pkv_executor *executor,
                                int tolerance) {
    struct verify_result result = {.verdict = VERIFY_ERROR};
    struct scatter scatter = {.memory = memory,
                              .one = one,
                              .context = context,
                              .executor = executor,
                              .error.struct_size = sizeof(scatter.error),
                              .random = {one->seed}};
    if (draw(&scatter) != 0) {
        (void)snprintf(result.message, sizeof(result.message), "no memory for the slots");
        destroy(&scatter);
        return result;
    }
    verify_fill_sources(memory, one);
    int failed = create(&scatter) != PKV_STATUS_OK;
    const int64_t begin = bench_now_ns();
    if (!failed)
        failed = run(&scatter);
    const int64_t first_ns = bench_now_ns() - begin;
    if (failed) {
        (void)pkv_error_text(&scatter.error, result.message, sizeof(result.message));
    } else {
        verify_expect(memory, one, scatter.slots);
        const struct verify_difference difference = verify_check(memory, one, tolerance);
        result.verdict = difference.num_chunks == 0 ? VERIFY_PASS : VERIFY_FAIL;
        if (result.verdict == VERIFY_FAIL)
            describe(&scatter, &difference, result.message);
        else
            measure(&scatter, &result, first_ns);
    }
    verify_restore_slots(memory, one, scatter.slots);
    if (result.verdict == VERIFY_FAIL)
        verify_memory_fill(memory);
    destroy(&scatter);
    return result;
}
