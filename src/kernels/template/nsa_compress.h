/* SPDX-License-Identifier: MIT
 *
 * The bodies of the windowed compression over a small vector interface. A vector holds neighbouring
 * channels, so that each channel is added up in the order of the definition. The including file
 * defines, for its instruction set:
 *
 *   fvec, FVEC_LANES                  a vector of float
 *   fvec_set(x), fvec_mul, fvec_add   no multiplication joined with an addition
 *   widen_f16, widen_bf16             FVEC_LANES adjacent elements to float
 *   narrow_f16, narrow_bf16           to adjacent elements, nearest even, NaN the positive quiet
 *   one
 *   vec_prefetch(p)                   fetch p's line for reading
 *
 * and gets nsa_compress_init(kernels).
 */
#ifndef PKV_KERNELS_TEMPLATE_NSA_COMPRESS_H
#define PKV_KERNELS_TEMPLATE_NSA_COMPRESS_H

#include <stdbool.h>
#include <string.h>

#include "base/formats.h"
#include "kernels/c/nsa_compress.h"

/* Channels at a time: the sums of their tiles, 16 KiB, stay in the first-level cache. */
enum { NSA_CHANNELS = 512, NSA_LINE_BYTES = 64, HALF_BYTES = 2 };

static inline fvec nsa_fold_tiles(fvec *tiles, int64_t num_tiles) {
    int64_t half = 1;
    while (2 * half < num_tiles)
        half *= 2;
    for (int64_t i = 0; i + half < num_tiles; i++)
        tiles[i] = fvec_add(tiles[i], tiles[i + half]);
    for (half /= 2; half > 0; half /= 2) {
        for (int64_t i = 0; i < half; i++)
            tiles[i] = fvec_add(tiles[i], tiles[i + half]);
    }
    return tiles[0];
}

/* Tile by tile, not channel by channel: the rows of one tile are as many streams as the hardware's
 * prefetch follows, those of a window are not. The rows of the next tile, or of the next head's
 * first one, are asked for meanwhile. */
#define DEFINE_NSA_COMPRESS(name)                                                                  \
    static inline fvec nsa_tile_##name(const char *const *rows, int64_t offset,                    \
                                       const float *weights) {                                     \
        fvec p[PKV_NSA_TILE_ROWS];                                                                 \
        for (int t = 0; t < PKV_NSA_TILE_ROWS; t++)                                                \
            p[t] = fvec_mul(widen_##name(rows[t] + offset), fvec_set(weights[t]));                 \
        for (int half = PKV_NSA_TILE_ROWS / 2; half > 0; half /= 2) {                              \
            for (int t = 0; t < half; t++)                                                         \
                p[t] = fvec_add(p[t], p[t + half]);                                                \
        }                                                                                          \
        return p[0];                                                                               \
    }                                                                                              \
    static inline void nsa_channels_##name(char *out, const struct pkv_nsa_window *window,         \
                                           const float *weights, int64_t first,                    \
                                           int64_t num_channels, bool is_last_head) {              \
        fvec sums[PKV_NSA_MAX_TILES][NSA_CHANNELS / FVEC_LANES], tiles[PKV_NSA_MAX_TILES];         \
        const int64_t num_tiles = window->num_rows / PKV_NSA_TILE_ROWS;                            \
        for (int64_t tile = 0; tile < num_tiles; tile++) {                                         \
            const bool is_last = tile + 1 == num_tiles;                                            \
            const char *const *rows = window->rows + tile * PKV_NSA_TILE_ROWS;                     \
            const char *const *next = is_last ? window->rows : rows + PKV_NSA_TILE_ROWS;           \
            const int64_t step = is_last ? window->row_head_stride : 0;                            \
            for (int64_t c = 0; c < num_channels; c += FVEC_LANES) {                               \
                const int64_t offset = first + c * HALF_BYTES;                                     \
                const bool ahead =                                                                 \
                    c * HALF_BYTES % NSA_LINE_BYTES == 0 && !(is_last && is_last_head);            \
                for (int t = 0; ahead && t < PKV_NSA_TILE_ROWS; t++)                               \
                    vec_prefetch(next[t] + offset + step);                                         \
                sums[tile][c / FVEC_LANES] =                                                       \
                    nsa_tile_##name(rows, offset, weights + tile * PKV_NSA_TILE_ROWS);             \
            }                                                                                      \
        }                                                                                          \
        for (int64_t c = 0; c < num_channels; c += FVEC_LANES) {                                   \
            for (int64_t tile = 0; tile < num_tiles; tile++)                                       \
                tiles[tile] = sums[tile][c / FVEC_LANES];                                          \
            narrow_##name(out + c * HALF_BYTES, nsa_fold_tiles(tiles, num_tiles));                 \
        }                                                                                          \
    }                                                                                              \
    static inline void nsa_head_##name(char *out, const struct pkv_nsa_window *window, int64_t n,  \
                                       int64_t num_channels) {                                     \
        float weights[PKV_NSA_MAX_ROWS];                                                           \
        for (int64_t t = 0; t < window->num_rows; t++) {                                           \
            uint16_t code;                                                                         \
            memcpy(&code,                                                                          \
                   window->weights + t * window->weight_row_stride +                               \
                       n * window->weight_head_stride,                                             \
                   sizeof(code));                                                                  \
            weights[t] = pkv_##name##_to_f32(code);                                                \
        }                                                                                          \
        for (int64_t c = 0; c < num_channels; c += NSA_CHANNELS) {                                 \
            const int64_t rest = num_channels - c;                                                 \
            nsa_channels_##name(out + n * window->out_head_stride + c * HALF_BYTES, window,        \
                                weights, n * window->row_head_stride + c * HALF_BYTES,             \
                                rest < NSA_CHANNELS ? rest : NSA_CHANNELS,                         \
                                n + 1 == window->num_heads);                                       \
        }                                                                                          \
    }                                                                                              \
    static void nsa_compress_##name(char *out, const struct pkv_nsa_window *window) {              \
        const int64_t in_vectors = window->num_channels / FVEC_LANES * FVEC_LANES;                 \
        for (int64_t n = 0; n < window->num_heads; n++)                                            \
            nsa_head_##name(out, window, n, in_vectors);                                           \
        if (in_vectors == window->num_channels)                                                    \
            return;                                                                                \
        struct pkv_nsa_window rest = *window;                                                      \
        rest.num_channels -= in_vectors;                                                           \
        for (int64_t t = 0; t < rest.num_rows; t++)                                                \
            rest.rows[t] += in_vectors * HALF_BYTES;                                               \
        pkv_nsa_compress_##name##_c(out + in_vectors * HALF_BYTES, &rest);                         \
    }

DEFINE_NSA_COMPRESS(f16)
DEFINE_NSA_COMPRESS(bf16)

static void nsa_compress_init(struct pkv_kernels *kernels) {
    kernels->nsa_compress[PKV_HALF_F16] = nsa_compress_f16;
    kernels->nsa_compress[PKV_HALF_BF16] = nsa_compress_bf16;
}

#endif
