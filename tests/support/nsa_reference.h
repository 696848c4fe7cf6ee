/* SPDX-License-Identifier: MIT
 *
 * One window of NsaCompressWithCache as the specification spells it out, over the tests' own number
 * formats. It shares no code with the library.
 */
#ifndef PAGEDKV_TESTS_NSA_REFERENCE_H
#define PAGEDKV_TESTS_NSA_REFERENCE_H

#include <stdint.h>

/* The code of the weighted sum of num_rows elements (16, 32, 48 or 64 of them): codes of a number
 * format of two bytes, dtype an enum pkv_dtype. */
uint16_t nsa_ref_element(int32_t dtype, const uint16_t *elements, const uint16_t *weights,
                         int64_t num_rows);

#endif
