/* SPDX-License-Identifier: MIT
 *
 * The smallest use: write the keys of new tokens to their slots, then read the sequence back in
 * token order. Values take the arguments that are NULL here; engines use engine_step.c's way.
 */
#include <pagedkv/pagedkv.h>
#include <stdio.h>

int main(void) {
    float cache[4][2][1][2] = {0}; /* [num_blocks, block_size, num_kv_heads, head_size] */
    float rows[4][1][2] = {{{1, 2}}, {{3, 4}}, {{0, 0}}, {{5, 6}}}; /* of 4 new tokens */
    float read[3][1][2];
    int64_t slots[4] = {6, 7, -1, 2}; /* block 3, block 3, padding, block 1 */
    int32_t blocks[1][2] = {{3, 1}};  /* of 1 sequence */
    int32_t lengths[1] = {3};

    struct pkv_tensor key_cache = pkv_tensor_make(cache, PKV_DTYPE_F32, 4, (int64_t[]){4, 2, 1, 2});
    struct pkv_tensor key = pkv_tensor_make(rows, PKV_DTYPE_F32, 3, (int64_t[]){4, 1, 2});
    struct pkv_tensor key_out = pkv_tensor_make(read, PKV_DTYPE_F32, 3, (int64_t[]){3, 1, 2});
    struct pkv_tensor slot_mapping = pkv_tensor_make(slots, PKV_DTYPE_I64, 1, (int64_t[]){4});
    struct pkv_tensor block_table = pkv_tensor_make(blocks, PKV_DTYPE_I32, 2, (int64_t[]){1, 2});
    struct pkv_tensor seq_lens = pkv_tensor_make(lengths, PKV_DTYPE_I32, 1, (int64_t[]){1});
    struct pkv_gather_pa_kv_cache_options options = {.seq_lens_are_plain = 1};

    struct pkv_context *context = NULL;
    struct pkv_error error = {0};
    char text[256];
    int failed = pkv_context_create(&context, NULL, &error) ||
                 pkv_scatter_pa_kv_cache(context, &key, &key_cache, &slot_mapping, NULL, NULL, NULL,
                                         &error) ||
                 pkv_gather_pa_kv_cache(context, &key_cache, NULL, &block_table, &seq_lens,
                                        &key_out, NULL, NULL, &options, &error);
    if (failed) {
        pkv_error_text(&error, text, sizeof text);
        puts(text);
    }
    for (int token = 0; token < 3 && !failed; token++) {
        printf("token %d: %g %g\n", token, read[token][0][0], read[token][0][1]);
    }
    pkv_context_destroy(context);
    return failed;
}
