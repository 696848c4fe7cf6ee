/* SPDX-License-Identifier: MIT
 *
 * Attention in AVX2: the shared bodies over this instruction set's vectors.
 */
#include "kernels/x86/fvec_avx2.h"

/* Two sums a row, two vectors that they share and a broadcast: 15 of the 16 registers. At half the
 * speed of AVX-512, touching all pages at once takes longer than meeting them. */
enum {
    SCORE_ROWS = 6,
    VALUE_ROWS = 6,
    WIDE_ROWS = 2,
    WIDENING_ROWS = 12,
    NEAR_ROWS = 6,
    TOUCH_ROWS = 0
};

#include "kernels/template/exp_negative.h"

#include "kernels/template/attention.h"
#include "kernels/template/attention_products.h"

void pkv_attention_init_avx2(struct pkv_kernels *kernels) {
    attention_init(kernels);
}
