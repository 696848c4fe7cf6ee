/* SPDX-License-Identifier: MIT
 *
 * The definition of the compression, by name: a better version leaves it the channels that do not
 * fill a vector; and its sum, for the run mode sim.
 */
#ifndef PKV_KERNELS_C_NSA_COMPRESS_H
#define PKV_KERNELS_C_NSA_COMPRESS_H

#include "kernels/kernels.h"

/* Products of 8 consecutive tokens are one tile of the sum. */
enum { PKV_NSA_TILE_ROWS = 8, PKV_NSA_MAX_TILES = PKV_NSA_MAX_ROWS / PKV_NSA_TILE_ROWS };

pkv_nsa_compress_fn pkv_nsa_compress_f16_c, pkv_nsa_compress_bf16_c;

/* The sum of num_rows products, a multiple of 16, in the specified order; overwrites them. */
float pkv_nsa_sum(float *products, int64_t num_rows);

/* To an element: nearest even, the positive quiet NaN for what is not a number. */
uint16_t pkv_nsa_round_f16(float sum);
uint16_t pkv_nsa_round_bf16(float sum);

#endif
