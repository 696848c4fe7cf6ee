/* SPDX-License-Identifier: MIT
 *
 * Attention in AVX-512: the shared bodies over this instruction set's vectors.
 */
#include "kernels/x86/fvec_avx512.h"

#include "kernels/kernels.h"

/* 16 sums, what they share and room for more in 32 registers; to widen halves between the products costs nothing. */
enum { SCORE_ROWS = 8, VALUE_ROWS = 8, WIDE_ROWS = 4, WIDENING_ROWS = PKV_ATTENTION_MAX_ROWS };

#include "kernels/template/attention.h"
#include "kernels/template/attention_products.h"

void pkv_attention_init_avx512(struct pkv_kernels *kernels) {
    attention_init(kernels);
}
