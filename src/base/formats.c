/* SPDX-License-Identifier: MIT
 *
 * One rounding and one widening for all formats. A format is a sign bit, then an exponent with a
 * bias, then a mantissa; without the sign its codes, read as integers, are in the order of the
 * values, so that rounding up past a mantissa carries into the exponent by itself.
 */
#include "base/formats.h"

#include <string.h>

/* float32: 23 bits of mantissa, bias 127, infinity 0x7f800000, NaN above it. */
#define F32_MANTISSA_BITS 23
#define F32_BIAS          127
#define F32_INFINITY      UINT32_C(0x7f800000)
#define F32_QUIET_BIT     UINT32_C(0x00400000)
#define F32_MAGNITUDE     UINT32_C(0x7fffffff)

struct format {
    uint32_t mantissa_bits;
    uint32_t bias;
    uint32_t max_finite; /* the code of the largest finite value; what follows is special */
};

/* max_finite is an exponent of all ones but one, then a mantissa of ones; e4m3fn uses the exponent
 * of all ones for numbers too and keeps only the last code, 0x7f, for NaN. */
static const struct format f16 = {10, 15, 0x7bff};
static const struct format bf16 = {7, F32_BIAS, 0x7f7f};
static const struct format e4m3fn = {3, 7, 0x7e};
static const struct format e5m2 = {2, 15, 0x7b};

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* value / 2^shift, rounded to nearest, ties to even; 1 <= shift <= 24 and value < 2^31, so that the
 * sum cannot overflow. Half minus one is enough to carry whatever lies above the tie; at the tie
 * itself the odd bit decides. */
static uint32_t shift_right_to_even(uint32_t value, uint32_t shift) {
    const uint32_t half = UINT32_C(1) << (shift - 1);
    const uint32_t odd = (value >> shift) & 1;
    return (value + half - 1 + odd) >> shift;
}

/* The code nearest to a float32 without sign and not NaN, as if codes went on beyond max_finite:
 * the caller decides what those mean. */
static uint32_t round_magnitude(uint32_t magnitude, const struct format *format) {
    const uint32_t shift = F32_MANTISSA_BITS - format->mantissa_bits;
    const uint32_t exponent = magnitude >> F32_MANTISSA_BITS;
    /* An exponent field e means 2^(e - 127) here and 2^(e' - bias) there; the smallest normal
     * number of the format has e' = 1. */
    const uint32_t min_normal = F32_BIAS - format->bias + 1;
    if (exponent >= min_normal)
        return shift_right_to_even(magnitude - ((min_normal - 1) << F32_MANTISSA_BITS), shift);

    /* A denormal result counts units of 2^(1 - bias - mantissa_bits). The significand, an integer,
     * counts units of 2^(e - 127 - 23), where a denormal float32 has no implicit one and counts
     * like e = 1. The difference of these exponents is the shift. Beyond 24 the significand, which
     * is below 2^24, is less than half a unit. */
    const uint32_t fraction = magnitude & ((UINT32_C(1) << F32_MANTISSA_BITS) - 1);
    const uint32_t significand =
        exponent > 0 ? fraction | UINT32_C(1) << F32_MANTISSA_BITS : fraction;
    const uint32_t denormal_shift = shift + min_normal - (exponent > 0 ? exponent : 1);
    return denormal_shift > 24 ? 0 : shift_right_to_even(significand, denormal_shift);
}

/* The float32 of a finite code without sign. */
static uint32_t widen_magnitude(uint32_t code, const struct format *format) {
    const uint32_t shift = F32_MANTISSA_BITS - format->mantissa_bits;
    uint32_t exponent = F32_BIAS - format->bias;
    uint32_t magnitude = code << shift;
    if (magnitude >> F32_MANTISSA_BITS != 0)
        return magnitude + (exponent << F32_MANTISSA_BITS);
    if (magnitude == 0)
        return 0;
    /* A denormal: double the mantissa until its first one stands where the implicit one is. */
    for (exponent++; magnitude >> F32_MANTISSA_BITS == 0; exponent--)
        magnitude <<= 1;
    return magnitude - (UINT32_C(1) << F32_MANTISSA_BITS) + (exponent << F32_MANTISSA_BITS);
}

float pkv_f16_to_f32(uint16_t code) {
    const uint32_t sign = (uint32_t)(code & 0x8000) << 16;
    const uint32_t magnitude = code & 0x7fff;
    if (magnitude <= f16.max_finite)
        return float_of(sign | widen_magnitude(magnitude, &f16));
    const uint32_t payload = (magnitude & 0x3ff) << (F32_MANTISSA_BITS - f16.mantissa_bits);
    return float_of(sign | F32_INFINITY | payload | (payload != 0 ? F32_QUIET_BIT : 0));
}

float pkv_bf16_to_f32(uint16_t code) {
    return float_of((uint32_t)code << 16);
}

float pkv_f8_e4m3fn_to_f32(uint8_t code) {
    const uint32_t sign = (uint32_t)(code & 0x80) << 24;
    const uint32_t magnitude = code & 0x7f;
    if (magnitude > e4m3fn.max_finite)
        return float_of(sign | F32_INFINITY | F32_QUIET_BIT);
    return float_of(sign | widen_magnitude(magnitude, &e4m3fn));
}

/* e5m2 is the upper byte of a float16. */
float pkv_f8_e5m2_to_f32(uint8_t code) {
    return pkv_f16_to_f32((uint16_t)(code << 8));
}

/* float16 and bfloat16: infinity follows the largest finite code, and NaN follows infinity. */
static uint32_t narrow_ieee(uint32_t magnitude, const struct format *format) {
    const uint32_t infinity = format->max_finite + 1;
    if (magnitude > F32_INFINITY) {
        const uint32_t quiet = magnitude | F32_QUIET_BIT;
        const uint32_t payload = quiet & (F32_INFINITY ^ F32_MAGNITUDE);
        return infinity | payload >> (F32_MANTISSA_BITS - format->mantissa_bits);
    }
    const uint32_t code = round_magnitude(magnitude, format);
    return code > format->max_finite ? infinity : code;
}

uint16_t pkv_f32_to_f16(float value) {
    const uint32_t bits = bits_of(value);
    return (uint16_t)((bits >> 16 & 0x8000) | narrow_ieee(bits & F32_MAGNITUDE, &f16));
}

uint16_t pkv_f32_to_bf16(float value) {
    const uint32_t bits = bits_of(value);
    return (uint16_t)((bits >> 16 & 0x8000) | narrow_ieee(bits & F32_MAGNITUDE, &bf16));
}

/* fp8: one code for NaN, and the caller's choice of code for what is too large. */
static uint8_t narrow_f8(float value, const struct format *format, uint32_t overflow,
                         uint32_t nan) {
    const uint32_t bits = bits_of(value);
    const uint32_t magnitude = bits & F32_MAGNITUDE;
    uint32_t code = nan;
    if (magnitude <= F32_INFINITY) {
        code = round_magnitude(magnitude, format);
        if (code > format->max_finite)
            code = overflow;
    }
    return (uint8_t)((bits >> 24 & 0x80) | code);
}

uint8_t pkv_f32_to_f8_e4m3fn(float value) {
    return narrow_f8(value, &e4m3fn, e4m3fn.max_finite, 0x7f);
}

uint8_t pkv_f32_to_f8_e5m2(float value) {
    return narrow_f8(value, &e5m2, e5m2.max_finite, 0x7e);
}

uint8_t pkv_f32_to_f8_e4m3fn_nonsaturating(float value) {
    return narrow_f8(value, &e4m3fn, 0x7f, 0x7f);
}

uint8_t pkv_f32_to_f8_e5m2_nonsaturating(float value) {
    return narrow_f8(value, &e5m2, 0x7c, 0x7e);
}
