/* SPDX-License-Identifier: MIT
 *
 * Attention in NEON: the shared bodies over this instruction set's vectors.
 */
#include "kernels/arm/fvec_neon.h"

enum {
    SCORE_ROWS = 8,
    VALUE_ROWS = 8,
    WIDE_ROWS = 4,
    WIDENING_ROWS = 16,
    NEAR_ROWS = 8,
    TOUCH_ROWS = 0
};

#include "kernels/template/exp_negative.h"

#include "kernels/template/attention.h"
#include "kernels/template/attention_products.h"

void pkv_attention_init_neon(struct pkv_kernels *kernels) {
    attention_init(kernels);
}
