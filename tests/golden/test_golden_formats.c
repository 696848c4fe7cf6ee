/* SPDX-License-Identifier: MIT
 *
 * The scalar number formats against tables computed with ml_dtypes. The saturating tables keep
 * infinity as NaN or infinity where the library saturates it: those inputs are left out. Of NaN
 * only that it is one is compared.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats.h"
#include "data.h"

/* The table, of exactly that many bytes. */
static unsigned char *read_table(const char *file, size_t bytes) {
    size_t found = 0;
    unsigned char *table = test_data_read("golden/fp8", file, &found);
    assert_non_null(table);
    if (found != bytes)
        fail_msg("%s has %zu bytes, not %zu", file, found, bytes);
    return table;
}

static bool is_nan_code(bool e4m3fn, uint8_t code) {
    return e4m3fn ? (code & 0x7f) == 0x7f : (code & 0x7f) > 0x7c;
}

static void check_f8(const char *from, bool e4m3fn, bool saturating) {
    char file[64];
    snprintf(file, sizeof(file), "%s_to_%s_%s.bin", from, e4m3fn ? "e4m3fn" : "e5m2",
             saturating ? "sat" : "nosat");
    unsigned char *table = read_table(file, 0x10000);
    const bool f16 = strcmp(from, "f16") == 0;
    for (uint32_t input = 0; input < 0x10000; input++) {
        const float value =
            f16 ? pkv_f16_to_f32((uint16_t)input) : pkv_bf16_to_f32((uint16_t)input);
        if (saturating && isinf(value))
            continue;
        uint8_t code;
        if (e4m3fn)
            code = saturating ? pkv_f32_to_f8_e4m3fn(value)
                              : pkv_f32_to_f8_e4m3fn_nonsaturating(value);
        else
            code = saturating ? pkv_f32_to_f8_e5m2(value) : pkv_f32_to_f8_e5m2_nonsaturating(value);
        const bool both_nan = is_nan_code(e4m3fn, code) && is_nan_code(e4m3fn, table[input]);
        if (code != table[input] && !both_nan)
            fail_msg("%s: 0x%04x gives 0x%02x, not 0x%02x", file, (unsigned)input, code,
                     table[input]);
    }
    free(table);
}

static void test_f8_encoders(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++)
        check_f8(i & 1 ? "f16" : "bf16", (i & 2) != 0, (i & 4) != 0);
}

/* A table of float32, one for each code, against a decoder. */
static void check_decoder(const char *file, uint32_t num_codes, float (*decode)(uint32_t code)) {
    unsigned char *table = read_table(file, num_codes * sizeof(float));
    for (uint32_t code = 0; code < num_codes; code++) {
        float expected;
        memcpy(&expected, table + code * sizeof(expected), sizeof(expected));
        const float value = decode(code);
        if (memcmp(&value, &expected, sizeof(value)) != 0 && !(isnan(value) && isnan(expected)))
            fail_msg("%s: 0x%x gives %g, not %g", file, (unsigned)code, value, expected);
    }
    free(table);
}

static float decode_e4m3fn(uint32_t code) {
    return pkv_f8_e4m3fn_to_f32((uint8_t)code);
}

static float decode_e5m2(uint32_t code) {
    return pkv_f8_e5m2_to_f32((uint8_t)code);
}

static float decode_f16(uint32_t code) {
    return pkv_f16_to_f32((uint16_t)code);
}

static void test_decoders(void **state) {
    (void)state;
    check_decoder("e4m3fn_decode_f32.bin", 0x100, decode_e4m3fn);
    check_decoder("e5m2_decode_f32.bin", 0x100, decode_e5m2);
    check_decoder("f16_to_f32.bin", 0x10000, decode_f16);
}

static void test_f32_to_f16_and_bf16(void **state) {
    const size_t num_records = 393216, record_bytes = 8;
    (void)state;
    unsigned char *table = read_table("f32_to_f16_bf16.bin", num_records * record_bytes);
    for (size_t i = 0; i < num_records; i++) {
        float value;
        uint16_t expected[2]; /* f16, bf16 */
        memcpy(&value, table + i * record_bytes, sizeof(value));
        memcpy(expected, table + i * record_bytes + sizeof(value), sizeof(expected));
        const uint16_t f16 = pkv_f32_to_f16(value), bf16 = pkv_f32_to_bf16(value);
        const bool right = isnan(value)
                               ? (f16 & 0x7fff) > 0x7c00 && (expected[0] & 0x7fff) > 0x7c00 &&
                                     (bf16 & 0x7fff) > 0x7f80 && (expected[1] & 0x7fff) > 0x7f80
                               : f16 == expected[0] && bf16 == expected[1];
        if (!right)
            fail_msg("record %zu: %g gives f16 0x%04x and bf16 0x%04x, not 0x%04x and 0x%04x", i,
                     value, f16, bf16, expected[0], expected[1]);
    }
    free(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f8_encoders),
        cmocka_unit_test(test_decoders),
        cmocka_unit_test(test_f32_to_f16_and_bf16),
    };
    test_data_require("golden/fp8");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
