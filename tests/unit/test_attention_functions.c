/* SPDX-License-Identifier: MIT
 *
 * The exponential and the hyperbolic tangent of the attention kernels against those of the C
 * library in double, by what the kernels show of them: a merge factor is an exponential, the
 * maximum of one capped score a tangent. Every PAGEDKV_TEST_STRIDE-th float32 of the domain is
 * tried (1: all, which takes minutes); the largest errors are printed.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pagedkv/cpu.h>

#include "cpu/cpu.h"
#include "kernels/kernels.h"

/* The largest relative error of one rounding to float32. */
#define ULP 0x1p-24

enum { AT_ONCE = 128, TANH_LIMIT = 12 };

static const float LOWEST = -87.33654f;

/* A prime near 2^9: all binades, and no pattern in the lower bits. */
static uint32_t stride(void) {
    const char *text = getenv("PAGEDKV_TEST_STRIDE");
    const long number = text ? strtol(text, NULL, 10) : 509;
    return number > 0 ? (uint32_t)number : 509;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

struct worst {
    double error;
    float at;
};

static void note(struct worst *worst, double error, float at) {
    if (!(error <= worst->error))
        *worst = (struct worst){error, at};
}

/* keep = exp(x - 0) for x below 0: maxima x beside maxima 0. */
static void try_exp(const struct pkv_kernels *kernels, const float *x, int64_t count,
                    struct worst *worst) {
    _Alignas(64) float max[AT_ONCE], sum[AT_ONCE] = {0}, zero[AT_ONCE] = {0};
    _Alignas(64) float keep[AT_ONCE], add[AT_ONCE], other_sum[AT_ONCE] = {0};
    memcpy(max, x, (size_t)count * sizeof(float));
    kernels->attention_factors(max, sum, zero, other_sum, keep, add, count);
    for (int64_t i = 0; i < count; i++) {
        const double wanted = exp((double)x[i]);
        assert_true(add[i] == 1);
        assert_true(keep[i] <= 1);
        if (x[i] < LOWEST)
            assert_true(keep[i] == 0 || kernels->copy_level == PKV_CPU_LEVEL_C);
        else
            note(worst, fabs((double)keep[i] - wanted) / wanted, x[i]);
    }
}

/* Row i sees one token, whose score is tanh(x[i]). */
static void try_tanh(const struct pkv_kernels *kernels, const float *x, int64_t count,
                     struct worst *worst) {
    static _Alignas(64) float scores[AT_ONCE * PKV_ATTENTION_TILE];
    _Alignas(64) float max[AT_ONCE], sum[AT_ONCE];
    struct pkv_attention_row rows[AT_ONCE] = {{0}};
    for (int64_t i = 0; i < count; i++) {
        scores[i * PKV_ATTENTION_TILE] = x[i];
        rows[i].end = 1;
    }
    kernels->attention_softmax(scores, rows, count, 1, 1, 1, max, sum);
    for (int64_t i = 0; i < count; i++) {
        assert_true(sum[i] == 1);
        note(worst, fabs((double)max[i] - tanh((double)x[i])), x[i]);
    }
}

typedef void try_fn(const struct pkv_kernels *kernels, const float *x, int64_t count,
                    struct worst *worst);

static struct worst try_all(const struct pkv_kernels *kernels, uint32_t first, uint32_t last,
                            try_fn *fn) {
    struct worst worst = {0, 0};
    float x[AT_ONCE];
    int64_t count = 0;
    for (uint64_t bits = first; bits <= last; bits += stride()) {
        x[count++] = float_of((uint32_t)bits);
        if (count == AT_ONCE || bits + stride() > last) {
            fn(kernels, x, count, &worst);
            count = 0;
        }
    }
    return worst;
}

static void on_every_level(const char *name, uint32_t first, uint32_t last, try_fn *fn,
                           double bound) {
    static const int32_t levels[] = {PKV_CPU_LEVEL_C, PKV_CPU_LEVEL_AVX2, PKV_CPU_LEVEL_AVX512,
                                     PKV_CPU_LEVEL_NEON};
    const int32_t best = pkv_cpu_detect_level();
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        struct pkv_kernels kernels;
        if (levels[i] > best || pkv_cpu_lower_level(best, levels[i]) != levels[i])
            continue;
        pkv_kernels_init(&kernels, levels[i]);
        const struct worst worst = try_all(&kernels, first, last, fn);
        printf("%s, level %d: largest error %.2f u at %.9g\n", name, (int)levels[i],
               worst.error / ULP, (double)worst.at);
        assert_true(worst.error <= bound);
    }
}

static void exponential(void **state) {
    (void)state;
    on_every_level("exp, relative", bits_of(-0.0f), bits_of(-90.0f), try_exp, 1.5 * ULP);
}

static void tangent(void **state) {
    (void)state;
    on_every_level("tanh, positive", 0, bits_of((float)TANH_LIMIT), try_tanh, 5 * ULP);
    on_every_level("tanh, negative", bits_of(-0.0f), bits_of(-(float)TANH_LIMIT), try_tanh,
                   5 * ULP);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential),
        cmocka_unit_test(tangent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
