/* SPDX-License-Identifier: MIT
 *
 * The decode step of doc/paged-attention-by-hand.md: one query with two heads over three tokens in
 * two blocks; then in two parts that are merged, with a window, and with sinks. The page says what
 * is printed here and why, and a test compares the two.
 */
#include <pagedkv/pagedkv.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUM_BLOCKS = 4, BLOCK_SIZE = 2, NUM_HEADS = 2, KEY_SIZE = 4, VALUE_SIZE = 2 };

/* Positions 0 and 1 are in block 3, position 2 is in block 1: [block][offset][kv head][element]. */
static float keys[NUM_BLOCKS][BLOCK_SIZE][1][KEY_SIZE] = {
    [3] = {{{2, 0, 2, 0}}, {{0, 2, 0, 2}}}, [1] = {{{2, 2, 0, 0}}}};
static float values[NUM_BLOCKS][BLOCK_SIZE][1][VALUE_SIZE] = {
    [3] = {{{1, 0}}, {{0, 1}}}, [1] = {{{2, 2}}}};
static float query[1][NUM_HEADS][KEY_SIZE] = {{{1, 0, 1, 0}, {0, 1, 0, 0}}};

struct result {
    float out[1][NUM_HEADS][VALUE_SIZE];
    float lse[1][NUM_HEADS];
};

static void check(enum pkv_status status, const struct pkv_error *error) {
    if (status != PKV_STATUS_OK) {
        char text[256];
        pkv_error_text(error, text, sizeof text);
        fprintf(stderr, "paged_attention: %s\n", text);
        exit(1);
    }
}

static struct pkv_tensor out_of(struct result *result) {
    return pkv_tensor_make(result->out, PKV_DTYPE_F32, 3, (int64_t[]){1, NUM_HEADS, VALUE_SIZE});
}

static struct pkv_tensor lse_of(struct result *result) {
    return pkv_tensor_make(result->lse, PKV_DTYPE_F32, 2, (int64_t[]){1, NUM_HEADS});
}

/* Attention over the first num_tokens tokens of a sequence with these blocks. sinks [NUM_HEADS],
 * nullable. An engine makes the plan and the step once, and runs them for every layer. */
static struct result attend(struct pkv_context *context, int32_t *blocks, int64_t num_tokens,
                            int64_t max_visible_left, float *sinks) {
    struct pkv_error error = {0};
    struct pkv_tensor key_cache =
        pkv_tensor_make(keys, PKV_DTYPE_F32, 4, (int64_t[]){NUM_BLOCKS, BLOCK_SIZE, 1, KEY_SIZE});
    struct pkv_tensor value_cache = pkv_tensor_make(
        values, PKV_DTYPE_F32, 4, (int64_t[]){NUM_BLOCKS, BLOCK_SIZE, 1, VALUE_SIZE});
    struct pkv_cache cache;
    check(pkv_cache_init(&cache, &key_cache, &value_cache, NULL, &error), &error);

    struct pkv_paged_attention_options options = {.num_heads = NUM_HEADS,
                                                  .max_visible_left = max_visible_left};
    struct pkv_paged_attention_plan *plan;
    check(pkv_paged_attention_plan_create(&plan, context, &cache, &options, &error), &error);

    int64_t num_entries = (num_tokens + BLOCK_SIZE - 1) / BLOCK_SIZE;
    int64_t query_start_loc[2] = {0, 1};
    struct pkv_step_indices indices = {
        .block_table = pkv_tensor_make(blocks, PKV_DTYPE_I32, 2, (int64_t[]){1, num_entries}),
        .seq_lens = pkv_tensor_make(&num_tokens, PKV_DTYPE_I64, 1, (int64_t[]){1}),
        .query_start_loc = pkv_tensor_make(query_start_loc, PKV_DTYPE_I64, 1, (int64_t[]){2})};
    struct pkv_step *step;
    check(pkv_step_create(&step, NULL, &error), &error);
    check(pkv_step_set(context, step, &cache, &indices, &error), &error);

    struct result result;
    struct pkv_paged_attention_tensors tensors = {
        .query = pkv_tensor_make(query, PKV_DTYPE_F32, 3, (int64_t[]){1, NUM_HEADS, KEY_SIZE}),
        .out = out_of(&result),
        .lse = lse_of(&result)};
    if (sinks) {
        tensors.sinks = pkv_tensor_make(sinks, PKV_DTYPE_F32, 1, (int64_t[]){NUM_HEADS});
    }
    check(pkv_paged_attention_run(context, plan, step, &cache, &tensors, &error), &error);
    pkv_step_destroy(step);
    pkv_paged_attention_plan_destroy(plan);
    return result;
}

static void print(const char *name, const struct result *result) {
    printf("%-8s", name);
    for (int head = 0; head < NUM_HEADS; head++) {
        printf("  head %d: %.4f %.4f lse %.4f", head, (double)result->out[0][head][0],
               (double)result->out[0][head][1], (double)result->lse[0][head]);
    }
    putchar('\n');
}

int main(void) {
    struct pkv_error error = {0};
    struct pkv_context *context;
    check(pkv_context_create(&context, NULL, &error), &error);

    struct result whole = attend(context, (int32_t[]){3, 1}, 3, 0, NULL);
    print("whole", &whole);

    struct result first = attend(context, (int32_t[]){3}, 2, 0, NULL);
    struct result second = attend(context, (int32_t[]){1}, 1, 0, NULL);
    struct result merged;
    struct pkv_tensor outs[] = {out_of(&first), out_of(&second)};
    struct pkv_tensor lses[] = {lse_of(&first), lse_of(&second)};
    struct pkv_tensor out = out_of(&merged), lse = lse_of(&merged);
    check(pkv_merge_states(context, outs, lses, 2, &out, &lse, NULL, &error), &error);
    print("part 1", &first);
    print("part 2", &second);
    print("merged", &merged);

    struct result window = attend(context, (int32_t[]){3, 1}, 3, 2, NULL);
    print("window", &window);
    struct result sinks = attend(context, (int32_t[]){3, 1}, 3, 0, (float[]){2, 1});
    print("sinks", &sinks);
    pkv_context_destroy(context);
    return 0;
}
