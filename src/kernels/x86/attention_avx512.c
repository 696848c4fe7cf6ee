/* SPDX-License-Identifier: MIT
 *
 * Attention in AVX-512: the shared bodies over this instruction set's vectors.
 */
#include "kernels/x86/fvec_avx512.h"

#include "kernels/template/attention.h"
#include "kernels/template/attention_products.h"

void pkv_attention_init_avx512(struct pkv_kernels *kernels) {
    attention_init(kernels);
}
