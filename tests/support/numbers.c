/* SPDX-License-Identifier: MIT
 *
 * See numbers.h. double holds every number here exactly, and ldexp and nearbyint do the rest.
 */
#include "numbers.h"

#include <pagedkv/tensor.h>

#include <math.h>
#include <stddef.h>
#include <string.h>

const struct num_format *num_format_of(int32_t dtype) {
    static const struct num_format formats[] = {
        [PKV_DTYPE_F32] = {4, 23, 127, 0x7f7fffff, 0x7fc00000, 0, 1},
        [PKV_DTYPE_F16] = {2, 10, 15, 0x7bff, 0x7e00, 0, 1},
        [PKV_DTYPE_BF16] = {2, 7, 127, 0x7f7f, 0x7fc0, 0, 1},
        [PKV_DTYPE_F8_E5M2] = {1, 2, 15, 0x7b, 0x7e, 1, 1},
        [PKV_DTYPE_F8_E4M3FN] = {1, 3, 7, 0x7e, 0x7f, 1, 1},
        [PKV_DTYPE_I8] = {.bytes = 1, .is_signed = 1},
        [PKV_DTYPE_I16] = {.bytes = 2, .is_signed = 1},
        [PKV_DTYPE_I32] = {.bytes = 4, .is_signed = 1},
        [PKV_DTYPE_U8] = {.bytes = 1},
        [PKV_DTYPE_U16] = {.bytes = 2},
        [PKV_DTYPE_U32] = {.bytes = 4},
    };

    return dtype > 0 && dtype < (int32_t)(sizeof(formats) / sizeof(formats[0])) &&
                   formats[dtype].bytes > 0
               ? &formats[dtype]
               : NULL;
}

int num_is_float(const struct num_format *format) {
    return format->mantissa_bits > 0;
}

uint32_t num_read(const struct num_format *format, const void *element) {
    uint32_t code = 0;

    memcpy(&code, element, (size_t)format->bytes);
    return code;
}

void num_write(const struct num_format *format, void *element, uint32_t code) {
    memcpy(element, &code, (size_t)format->bytes);
}

double num_float_of_code(const struct num_format *format, uint32_t code) {
    uint32_t sign = UINT32_C(1) << (format->bytes * 8 - 1);
    uint32_t magnitude = code & (sign - 1);
    int exponent = (int)(magnitude >> format->mantissa_bits);
    uint32_t mantissa = magnitude & ((UINT32_C(1) << format->mantissa_bits) - 1);
    double value;

    if (magnitude > format->max_finite) {
        value = mantissa == 0 ? (double)INFINITY : (double)NAN;
    } else if (exponent == 0) {
        value = ldexp(mantissa, 1 - format->bias - format->mantissa_bits);
    } else {
        value = ldexp(mantissa + ldexp(1, format->mantissa_bits),
                      exponent - format->bias - format->mantissa_bits);
    }
    return code & sign ? -value : value;
}

int64_t num_integer_of_code(const struct num_format *format, uint32_t code) {
    int bits = format->bytes * 8;
    int64_t value = (int64_t)(code & (uint32_t)(UINT64_MAX >> (64 - bits)));

    return format->is_signed && value >> (bits - 1) ? value - (INT64_C(1) << bits) : value;
}

uint32_t num_code_of_float(const struct num_format *format, float value) {
    int min_exponent = 1 - format->bias;
    int exponent;
    uint32_t sign = signbit(value) ? UINT32_C(1) << (format->bytes * 8 - 1) : 0;
    uint32_t code = format->max_finite + 1;
    double magnitude = fabs((double)value);

    if (isnan(value)) {
        return format->nan;
    }
    if (!isinf(value)) {
        (void)frexp(magnitude, &exponent);
        exponent = exponent - 1 < min_exponent || magnitude == 0 ? min_exponent : exponent - 1;
        /* In steps of the last bit; a step up from the largest mantissa is the next exponent. */
        code = (uint32_t)((exponent + format->bias - 1) * (1 << format->mantissa_bits) +
                          (int64_t)nearbyint(ldexp(magnitude, format->mantissa_bits - exponent)));
    }
    if (code > format->max_finite) {
        code = format->max_finite + !format->saturates;
    }
    return sign | code;
}
