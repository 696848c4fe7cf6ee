/* SPDX-License-Identifier: MIT
 *
 * The scalar number formats against a definition of another kind: the values of all codes, computed
 * in double from exponent and mantissa, and the nearest of them found by search.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fenv.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/formats.h"
#include "rng.h"

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

/* Adapters to one type of decoder and encoder. */
static float decode_f16(uint32_t code) {
    return pkv_f16_to_f32((uint16_t)code);
}
static float decode_bf16(uint32_t code) {
    return pkv_bf16_to_f32((uint16_t)code);
}
static float decode_e4m3fn(uint32_t code) {
    return pkv_f8_e4m3fn_to_f32((uint8_t)code);
}
static float decode_e5m2(uint32_t code) {
    return pkv_f8_e5m2_to_f32((uint8_t)code);
}
static uint32_t encode_f16(float value) {
    return pkv_f32_to_f16(value);
}
static uint32_t encode_bf16(float value) {
    return pkv_f32_to_bf16(value);
}
static uint32_t encode_e4m3fn(float value) {
    return pkv_f32_to_f8_e4m3fn(value);
}
static uint32_t encode_e5m2(float value) {
    return pkv_f32_to_f8_e5m2(value);
}
static uint32_t encode_e4m3fn_nonsaturating(float value) {
    return pkv_f32_to_f8_e4m3fn_nonsaturating(value);
}
static uint32_t encode_e5m2_nonsaturating(float value) {
    return pkv_f32_to_f8_e5m2_nonsaturating(value);
}

#define NO_CODE UINT32_MAX

struct format {
    const char *name;
    int total_bits, mantissa_bits, bias;
    uint32_t num_finite;    /* codes 0 to num_finite - 1 are finite and not negative */
    uint32_t infinity;      /* code, or NO_CODE */
    uint32_t nan;           /* the lowest code of NaN */
    bool keeps_nan_payload; /* otherwise NaN always encodes to `encoded_nan` */
    uint32_t encoded_nan;
    float (*decode)(uint32_t code);
    struct {
        uint32_t (*encode)(float value);
        uint32_t overflow; /* what is too large becomes this code */
    } encoders[2];
    double *values; /* [num_finite + 1]: of each code, and the next one if exponents went on */
};

static struct format formats[] = {
    {"f16", 16, 10, 15, 0x7c00, 0x7c00, 0x7c01, true, 0, decode_f16, {{encode_f16, 0x7c00}}, NULL},
    {"bf16",
     16,
     7,
     127,
     0x7f80,
     0x7f80,
     0x7f81,
     true,
     0,
     decode_bf16,
     {{encode_bf16, 0x7f80}},
     NULL},
    {"e4m3fn",
     8,
     3,
     7,
     0x7f,
     NO_CODE,
     0x7f,
     false,
     0x7f,
     decode_e4m3fn,
     {{encode_e4m3fn, 0x7e}, {encode_e4m3fn_nonsaturating, 0x7f}},
     NULL},
    {"e5m2",
     8,
     2,
     15,
     0x7c,
     0x7c,
     0x7d,
     false,
     0x7e,
     decode_e5m2,
     {{encode_e5m2, 0x7b}, {encode_e5m2_nonsaturating, 0x7c}},
     NULL},
};

#define NUM_FORMATS (sizeof(formats) / sizeof(formats[0]))

static int make_values(void **state) {
    (void)state;
    for (size_t f = 0; f < NUM_FORMATS; f++) {
        struct format *format = &formats[f];
        format->values = malloc((format->num_finite + 1) * sizeof(double));
        if (format->values == NULL)
            return -1;
        for (uint32_t code = 0; code <= format->num_finite; code++) {
            const int exponent = (int)(code >> format->mantissa_bits);
            const uint32_t mantissa = code & ((1u << format->mantissa_bits) - 1);
            const uint32_t one = exponent > 0 ? 1u << format->mantissa_bits : 0;
            const int scale = (exponent > 0 ? exponent : 1) - format->bias - format->mantissa_bits;
            format->values[code] = ldexp(one + mantissa, scale);
        }
    }
    return 0;
}

static int free_values(void **state) {
    (void)state;
    for (size_t f = 0; f < NUM_FORMATS; f++)
        free(formats[f].values);
    return 0;
}

/* The code of the nearest value, the even one of two; num_finite means "too large". */
static uint32_t nearest(const struct format *format, double magnitude) {
    if (magnitude >= format->values[format->num_finite])
        return format->num_finite;
    uint32_t low = 0, high = format->num_finite; /* values[low] <= magnitude < values[high] */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (format->values[middle] <= magnitude)
            low = middle;
        else
            high = middle;
    }
    const double tie = (format->values[low] + format->values[high]) / 2;
    if (magnitude == tie)
        return low % 2 == 0 ? low : high;
    return magnitude < tie ? low : high;
}

static void check_encoders(const struct format *format, uint32_t bits) {
    const float value = float_of(bits);
    const uint32_t sign = (bits >> 31) << (format->total_bits - 1);
    const uint32_t rounded = isnan(value) ? NO_CODE : nearest(format, fabs((double)value));
    for (int i = 0; i < 2 && format->encoders[i].encode; i++) {
        uint32_t expected = rounded < format->num_finite ? rounded : format->encoders[i].overflow;
        if (isnan(value) && format->keeps_nan_payload)
            expected = format->infinity | 1u << (format->mantissa_bits - 1) |
                       (bits & 0x7fffff) >> (23 - format->mantissa_bits);
        else if (isnan(value))
            expected = format->encoded_nan;
        const uint32_t code = format->encoders[i].encode(value);
        if (code != (sign | expected))
            fail_msg("%s, encoder %d: 0x%08x (%g) gives 0x%x, not 0x%x", format->name, i,
                     (unsigned)bits, value, (unsigned)code, (unsigned)(sign | expected));
    }
}

static void check_all_encoders(uint32_t bits) {
    for (size_t f = 0; f < NUM_FORMATS; f++)
        check_encoders(&formats[f], bits);
}

static void test_decode_every_code(void **state) {
    (void)state;
    for (size_t f = 0; f < NUM_FORMATS; f++) {
        const struct format *format = &formats[f];
        const uint32_t sign = 1u << (format->total_bits - 1);
        for (uint32_t code = 0; code < 2 * sign; code++) {
            const uint32_t magnitude = code & (sign - 1);
            const float value = format->decode(code);
            bool right = (signbit(value) != 0) == (code >= sign);
            if (magnitude < format->num_finite)
                right = right && fabs((double)value) == format->values[magnitude];
            else if (magnitude == format->infinity)
                right = right && isinf(value);
            else
                right = right && magnitude >= format->nan && isnan(value);
            /* bfloat16 keeps its bits, the others give quiet NaNs */
            if (isnan(value))
                right = right && (format->decode == decode_bf16 ? bits_of(value) == code << 16
                                                                : (bits_of(value) & 0x400000) != 0);
            if (!right)
                fail_msg("%s: 0x%x gives %g", format->name, (unsigned)code, value);
        }
    }
}

/* Narrowing f16 and bf16 goes through float32: the result is the nearest to the narrow input's own
 * value, so widening and rounding together round once. */
static void test_encode_every_f16_and_bf16(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x10000; code++) {
        check_all_encoders(bits_of(pkv_f16_to_f32((uint16_t)code)));
        check_all_encoders(bits_of(pkv_bf16_to_f32((uint16_t)code)));
    }
}

static void test_encode_every_upper_half(void **state) {
    static const uint32_t lower[] = {0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
    (void)state;
    for (uint32_t upper = 0; upper < 0x10000; upper++) {
        for (size_t i = 0; i < sizeof(lower) / sizeof(lower[0]); i++)
            check_all_encoders(upper << 16 | lower[i]);
    }
}

/* Every tie of every format, and its two neighbours. */
static void test_encode_every_tie(void **state) {
    (void)state;
    for (size_t f = 0; f < NUM_FORMATS; f++) {
        const struct format *format = &formats[f];
        for (uint32_t code = 0; code < format->num_finite; code++) {
            const double tie = (format->values[code] + format->values[code + 1]) / 2;
            assert_true((double)(float)tie == tie);
            const uint32_t bits = bits_of((float)tie);
            for (uint32_t near = bits - 1; near <= bits + 1; near++) {
                check_encoders(format, near);
                check_encoders(format, near | 0x80000000u);
            }
        }
    }
}

/* Half of the sample has any exponent, half lies where the narrow formats have their values. */
static void test_encode_sample(void **state) {
    (void)state;
    struct test_rng rng = test_rng_make(test_seed(1));
    for (int i = 0; i < 250000; i++) {
        const uint64_t random = test_rng_next(&rng);
        const uint32_t exponent = (uint32_t)test_rng_between(&rng, 127 - 28, 127 + 18);
        check_all_encoders((uint32_t)random);
        check_all_encoders(((uint32_t)(random >> 32) & 0x807fffff) | exponent << 23);
    }
}

/* Every code and a sample of float32 through every function, as bytes. */
struct results {
    uint32_t decoded[NUM_FORMATS][0x10000];
    uint32_t encoded[NUM_FORMATS][2][0x10000];
};

static void collect(struct results *results) {
    for (size_t f = 0; f < NUM_FORMATS; f++) {
        const struct format *format = &formats[f];
        for (uint32_t code = 0; code < 1u << format->total_bits; code++)
            results->decoded[f][code] = bits_of(format->decode(code));
        for (int i = 0; i < 2 && format->encoders[i].encode; i++) {
            for (uint32_t upper = 0; upper < 0x10000; upper++)
                results->encoded[f][i][upper] =
                    format->encoders[i].encode(float_of(upper << 16 | 0x8001));
        }
    }
}

static void test_floating_point_environment(void **state) {
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    (void)state;
    struct results *usual = calloc(1, sizeof(*usual));
    struct results *other = calloc(1, sizeof(*other));
    assert_non_null(usual);
    assert_non_null(other);
    feclearexcept(FE_ALL_EXCEPT);
    collect(usual);
    assert_int_equal(fetestexcept(FE_ALL_EXCEPT), 0);
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        assert_int_equal(fesetround(modes[i]), 0);
        collect(other);
        assert_int_equal(fesetround(FE_TONEAREST), 0);
        assert_memory_equal(usual, other, sizeof(*usual));
    }
#if defined(__x86_64__)
    const unsigned int before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* flush results to zero, read denormals as zero */
    collect(other);
    _mm_setcsr(before);
    assert_memory_equal(usual, other, sizeof(*usual));
#endif
    free(usual);
    free(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_every_code),
        cmocka_unit_test(test_encode_every_f16_and_bf16),
        cmocka_unit_test(test_encode_every_upper_half),
        cmocka_unit_test(test_encode_every_tie),
        cmocka_unit_test(test_encode_sample),
        cmocka_unit_test(test_floating_point_environment),
    };
    return cmocka_run_group_tests(tests, make_values, free_values);
}
