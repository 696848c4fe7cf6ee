/* SPDX-License-Identifier: MIT
 *
 * The scalar definition of every number format narrower than float32: how its codes decode and how
 * a float32 is rounded to it. Vector kernels are held against these functions, byte for byte.
 *
 * All of it is integer arithmetic on bit patterns: the rounding mode, the flush-to-zero flags and
 * the exception flags of the floating-point environment neither matter nor change.
 */
#ifndef PKV_BASE_FORMATS_H
#define PKV_BASE_FORMATS_H

#include <stdint.h>

/* Decoding is exact: every code of every format is a float32. A float16 NaN becomes quiet, as the
 * conversion instructions of x86 and Arm make it; a bfloat16 is the upper half of a float32 and
 * keeps all its bits. An fp8 NaN decodes to a quiet NaN. Signs are kept, of NaN too. */
float pkv_f16_to_f32(uint16_t code);
float pkv_bf16_to_f32(uint16_t code);
float pkv_f8_e4m3fn_to_f32(uint8_t code);
float pkv_f8_e5m2_to_f32(uint8_t code);

/* Encoding rounds once, to nearest, ties to the even code; denormals are kept, as results and as
 * inputs. Signs are kept, of zero and NaN too. What rounds beyond the largest finite value becomes
 * infinity. NaN stays NaN, quiet, with the upper bits of its payload. */
uint16_t pkv_f32_to_f16(float value);
uint16_t pkv_f32_to_bf16(float value);

/* The saturating encoders, the default of the library: what rounds beyond the largest finite value
 * (448 and 57344), infinity included, becomes that value. NaN becomes 0x7f (e4m3fn) or 0x7e (e5m2)
 * under its sign. Narrowing float16 or bfloat16 through float32 rounds once, as widening is exact.
 */
uint8_t pkv_f32_to_f8_e4m3fn(float value);
uint8_t pkv_f32_to_f8_e5m2(float value);

/* The non-saturating encoders: what rounds beyond the largest finite value, infinity included,
 * becomes NaN in e4m3fn, which has no infinity, and infinity in e5m2. */
uint8_t pkv_f32_to_f8_e4m3fn_nonsaturating(float value);
uint8_t pkv_f32_to_f8_e5m2_nonsaturating(float value);

#endif
