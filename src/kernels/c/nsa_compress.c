/* SPDX-License-Identifier: MIT
 *
 * The definition of the windowed compression. The specification fixes precision and order: float32
 * products, float32 sums, two trees.
 */
#include "kernels/c/nsa_compress.h"

#include <math.h>
#include <string.h>

#include "base/formats.h"

/* values[i] += values[i + half] for as many i as there are values behind half; half of them, or
 * fewer, remain. */
static void fold(float *values, int64_t count, int64_t half) {
    for (int64_t i = 0; i + half < count; i++)
        values[i] = values[i] + values[i + half];
}

float pkv_nsa_sum(float *products, int64_t num_rows) {
    float tiles[PKV_NSA_MAX_TILES];
    const int64_t num_tiles = num_rows / PKV_NSA_TILE_ROWS;
    for (int64_t tile = 0; tile < num_tiles; tile++) {
        float *values = products + tile * PKV_NSA_TILE_ROWS;
        for (int64_t half = PKV_NSA_TILE_ROWS / 2; half > 0; half /= 2)
            fold(values, 2 * half, half);
        tiles[tile] = values[0];
    }
    int64_t half = 1;
    while (2 * half < num_tiles)
        half *= 2;
    fold(tiles, num_tiles, half);
    for (half /= 2; half > 0; half /= 2)
        fold(tiles, 2 * half, half);
    return tiles[0];
}

uint16_t pkv_nsa_round_f16(float sum) {
    return isnan(sum) ? 0x7e00 : pkv_f32_to_f16(sum);
}

uint16_t pkv_nsa_round_bf16(float sum) {
    return isnan(sum) ? 0x7fc0 : pkv_f32_to_bf16(sum);
}

static uint16_t load(const char *from) {
    uint16_t code;
    memcpy(&code, from, sizeof(code));
    return code;
}

#define DEFINE_NSA_COMPRESS(name)                                                                  \
    void pkv_nsa_compress_##name##_c(char *out, const struct pkv_nsa_window *window) {             \
        const int64_t bytes = sizeof(uint16_t);                                                    \
        for (int64_t n = 0; n < window->num_heads; n++) {                                          \
            for (int64_t c = 0; c < window->num_channels; c++) {                                   \
                float products[PKV_NSA_MAX_ROWS];                                                  \
                for (int64_t t = 0; t < window->num_rows; t++) {                                   \
                    const char *x = window->rows[t] + n * window->row_head_stride + c * bytes;     \
                    const char *w = window->weights + t * window->weight_row_stride +              \
                                    n * window->weight_head_stride;                                \
                    products[t] = pkv_##name##_to_f32(load(x)) * pkv_##name##_to_f32(load(w));     \
                }                                                                                  \
                const uint16_t code =                                                              \
                    pkv_nsa_round_##name(pkv_nsa_sum(products, window->num_rows));                 \
                memcpy(out + n * window->out_head_stride + c * bytes, &code, sizeof(code));        \
            }                                                                                      \
        }                                                                                          \
    }

DEFINE_NSA_COMPRESS(f16)
DEFINE_NSA_COMPRESS(bf16)

void pkv_nsa_compress_init_c(struct pkv_kernels *kernels) {
    kernels->nsa_compress[PKV_HALF_F16] = pkv_nsa_compress_f16_c;
    kernels->nsa_compress[PKV_HALF_BF16] = pkv_nsa_compress_bf16_c;
}
