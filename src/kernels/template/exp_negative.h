/* SPDX-License-Identifier: MIT
 *
 * The exp_negative that template/attention.h asks for, by a polynomial. Beyond the interfaces of
 * template/fvec.h and attention.h the including file defines:
 *
 *   fvec_round, fvec_scale(x, n)           to the nearest integer; x * 2^n for integers -126 <= n
 *                                          <= 127
 */
#ifndef PKV_KERNELS_TEMPLATE_EXP_NEGATIVE_H
#define PKV_KERNELS_TEMPLATE_EXP_NEGATIVE_H

/* The largest error over all float32 is 1.41 * 2^-24. x = n * ln 2 + r with ln 2 in two parts, |r|
 * <= ln 2 / 2, and for exp(r) the polynomial of Cephes' expf. */
static inline fvec exp_negative(fvec x) {
    const float LOWEST = -87.33654f;
    const fvec n = fvec_round(fvec_mul(x, fvec_set(1.44269504f)));
    fvec r = fvec_fma(n, fvec_set(-0.693359375f), x);
    r = fvec_fma(n, fvec_set(2.12194440e-4f), r);
    fvec p = fvec_set(1.9875691500e-4f);
    p = fvec_fma(p, r, fvec_set(1.3981999507e-3f));
    p = fvec_fma(p, r, fvec_set(8.3334519073e-3f));
    p = fvec_fma(p, r, fvec_set(4.1665795894e-2f));
    p = fvec_fma(p, r, fvec_set(1.6666665459e-1f));
    p = fvec_fma(p, r, fvec_set(5.0000001201e-1f));
    const fvec y = fvec_add(fvec_fma(p, fvec_mul(r, r), r), fvec_set(1.0f));
    return fvec_select(fvec_less(x, fvec_set(LOWEST)), fvec_set(0.0f), fvec_scale(y, n));
}

#endif
