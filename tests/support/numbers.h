/* SPDX-License-Identifier: MIT
 *
 * The number formats of the element types, decoded and rounded through double: the tests' own
 * definition, slow and plain. Not for hifloat8.
 */
#ifndef PAGEDKV_TESTS_NUMBERS_H
#define PAGEDKV_TESTS_NUMBERS_H

#include <stdint.h>

/* Codes are little-endian. A float is a sign, an exponent with a bias, and mantissa_bits; its codes
 * above max_finite are special, and infinity is among them exactly when the mantissa can be 0
 * there. An integer has mantissa_bits 0. */
struct num_format {
    int bytes;
    int mantissa_bits;
    int bias;
    uint32_t max_finite;
    uint32_t nan;  /* the one that a NaN is encoded to */
    int saturates; /* to max_finite, infinity too */
    int is_signed;
};

/* Of an enum pkv_dtype of at most 4 bytes. */
const struct num_format *num_format_of(int32_t dtype);

int num_is_float(const struct num_format *format);

uint32_t num_read(const struct num_format *format, const void *element);
void num_write(const struct num_format *format, void *element, uint32_t code);

double num_float_of_code(const struct num_format *format, uint32_t code);
int64_t num_integer_of_code(const struct num_format *format, uint32_t code);

/* To nearest, ties to even. */
uint32_t num_code_of_float(const struct num_format *format, float value);

#endif
