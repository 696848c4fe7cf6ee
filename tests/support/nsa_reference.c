/* SPDX-License-Identifier: MIT
 *
 * Both trees of the sum, written out.
 */
#include "nsa_reference.h"

#include <stdio.h>
#include <stdlib.h>

#include "numbers.h"

/* Of 8 consecutive tokens: t with t + 4, then with t + 2, then with t + 1. */
static float tile_sum(const float *p) {
    float even = (p[0] + p[4]) + (p[2] + p[6]);
    float odd = (p[1] + p[5]) + (p[3] + p[7]);

    return even + odd;
}

/* 6 sums: half of the next power of two is 4, so that only the first two have a partner. */
static float sum_of_tiles(const float *s, int64_t num_tiles) {
    switch (num_tiles) {
    case 2:
        return s[0] + s[1];
    case 4:
        return (s[0] + s[2]) + (s[1] + s[3]);
    case 6:
        return ((s[0] + s[4]) + s[2]) + ((s[1] + s[5]) + s[3]);
    case 8:
        return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    default:
        fprintf(stderr, "sum_of_tiles: no window of %d tiles\n", (int)num_tiles);
        exit(1);
    }
}

uint16_t nsa_ref_element(int32_t dtype, const uint16_t *elements, const uint16_t *weights,
                         int64_t num_rows) {
    const struct num_format *format = num_format_of(dtype);
    float products[64], sums[8];

    for (int64_t t = 0; t < num_rows; t++) {
        products[t] = (float)num_float_of_code(format, elements[t]) *
                      (float)num_float_of_code(format, weights[t]);
    }
    for (int64_t tile = 0; tile < num_rows / 8; tile++) {
        sums[tile] = tile_sum(products + 8 * tile);
    }
    return (uint16_t)num_code_of_float(format, sum_of_tiles(sums, num_rows / 8));
}
