/* SPDX-License-Identifier: MIT
 *
 * Read kernels and arithmetic peaks. See bench_attention_peak.h.
 */
#include "bench_attention_peak.h"

#include <stdatomic.h>
#include <string.h>

#include "bench_threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Some milliseconds of work at some hundred GFLOP/s. */
enum { WORK_TRIPS = 1000000, NUM_STREAMS = 4 };

/* ---- sequential reads ---- */

/* Sums the words of four streams of `bytes` each; a step of one vector from each of them, or with
 * adjacent streams (stride = vector, bytes = a quarter) one stream of four vectors a step. */
typedef uint64_t read_fn(const unsigned char *data, int64_t stream_stride, int64_t step,
                         int64_t num_steps);

#if defined(__x86_64__)

__attribute__((target("avx512f"))) static uint64_t
read_avx512(const unsigned char *data, int64_t stream_stride, int64_t step, int64_t num_steps) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (int64_t i = 0; i < num_steps; i++, data += step) {
        a = _mm512_add_epi64(a, _mm512_loadu_si512(data));
        b = _mm512_add_epi64(b, _mm512_loadu_si512(data + stream_stride));
        c = _mm512_add_epi64(c, _mm512_loadu_si512(data + 2 * stream_stride));
        d = _mm512_add_epi64(d, _mm512_loadu_si512(data + 3 * stream_stride));
    }
    a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
    return (uint64_t)_mm512_reduce_add_epi64(a);
}

__attribute__((target("avx2"))) static uint64_t
read_avx2(const unsigned char *data, int64_t stream_stride, int64_t step, int64_t num_steps) {
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (int64_t i = 0; i < num_steps; i++, data += step) {
        a = _mm256_add_epi64(a, _mm256_loadu_si256((const void *)data));
        b = _mm256_add_epi64(b, _mm256_loadu_si256((const void *)(data + stream_stride)));
        c = _mm256_add_epi64(c, _mm256_loadu_si256((const void *)(data + 2 * stream_stride)));
        d = _mm256_add_epi64(d, _mm256_loadu_si256((const void *)(data + 3 * stream_stride)));
    }
    uint64_t words[4];
    a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
    _mm256_storeu_si256((void *)words, a);
    return words[0] + words[1] + words[2] + words[3];
}

#endif

static uint64_t read_words(const unsigned char *data, int64_t stream_stride, int64_t step,
                           int64_t num_steps) {
    uint64_t sums[NUM_STREAMS] = {0};
    for (int64_t i = 0; i < num_steps; i++, data += step) {
        for (int stream = 0; stream < NUM_STREAMS; stream++) {
            uint64_t word;
            memcpy(&word, data + stream * stream_stride, sizeof(word));
            sums[stream] += word;
        }
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

static read_fn *choose_read(int64_t *vector_bytes) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        *vector_bytes = 64;
        return read_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        *vector_bytes = 32;
        return read_avx2;
    }
#endif
    *vector_bytes = 8;
    return read_words;
}

struct read_work {
    const struct bench_read *spans;
    int32_t num_spans;
    int32_t num_streams;
    int32_t num_shares;
    atomic_uint_least64_t sum;
};

static void read_share(void *arg, int64_t index) {
    struct read_work *work = arg;
    int64_t vector = 0;
    read_fn *read = choose_read(&vector);
    uint64_t sum = 0;
    for (int32_t i = 0; i < work->num_spans; i++) {
        const int64_t bytes = work->spans[i].bytes / work->num_shares;
        const unsigned char *data = work->spans[i].data + index * bytes;
        const int64_t num_steps = bytes / (NUM_STREAMS * vector);
        sum += work->num_streams == 1 ? read(data, vector, NUM_STREAMS * vector, num_steps)
                                      : read(data, bytes / NUM_STREAMS, vector, num_steps);
    }
    (void)atomic_fetch_add(&work->sum, sum);
}

uint64_t bench_read_spans(const struct pkv_executor *executor, const struct bench_read *spans,
                          int32_t num_spans, int32_t num_streams) {
    struct read_work work = {.spans = spans,
                             .num_spans = num_spans,
                             .num_streams = num_streams,
                             .num_shares = bench_num_threads(executor)};
    atomic_init(&work.sum, 0);
    bench_run_tiles(executor, read_share, &work, work.num_shares);
    return atomic_load(&work.sum);
}

/* ---- arithmetic ---- */

/* Each runs WORK_TRIPS times 12 or 24 instructions on independent sums, which hides a latency of up
 * to 6 or 12 cycles of two units, and fits 16 or 32 registers. x is below 1 and y small, so that
 * sums stay finite. Returns a sum that nobody needs. */
typedef float work_fn(float x, float y);

/* clang-format off */
#define SUMS_12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define SUMS_24(X) SUMS_12(X) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
#define DECLARE(i) VECTOR s##i = SET((float)i);
#define STEP(i)    s##i = MULTIPLY_ADD(s##i, vx, vy);
#define TOTAL(i)   total = ADD(total, s##i);
/* clang-format on */

#define WORK(SUMS)                                                                                 \
    SUMS(DECLARE)                                                                                  \
    for (int64_t trip = 0; trip < WORK_TRIPS; trip++) {                                            \
        SUMS(STEP)                                                                                 \
    }                                                                                              \
    VECTOR total = SET(0.0f);                                                                      \
    SUMS(TOTAL)

#if defined(__x86_64__)

#define VECTOR       __m256
#define SET          _mm256_set1_ps
#define ADD          _mm256_add_ps
#define MULTIPLY_ADD _mm256_fmadd_ps

__attribute__((target("avx2,fma"))) static float fma_avx2(float x, float y) {
    const __m256 vx = SET(x), vy = SET(y);
    WORK(SUMS_12)
    return _mm256_cvtss_f32(total);
}

#undef VECTOR
#undef SET
#undef ADD
#undef MULTIPLY_ADD
#define VECTOR       __m512
#define SET          _mm512_set1_ps
#define ADD          _mm512_add_ps
#define MULTIPLY_ADD _mm512_fmadd_ps

__attribute__((target("avx512f"))) static float fma_avx512(float x, float y) {
    const __m512 vx = SET(x), vy = SET(y);
    WORK(SUMS_24)
    return _mm512_reduce_add_ps(total);
}

#undef MULTIPLY_ADD
#define MULTIPLY_ADD _mm512_dpbf16_ps

/* The products of a pair cancel each other. */
__attribute__((target("avx512f,avx512bf16"))) static float dot_avx512(float x, float y) {
    const __m512bh vx = _mm512_cvtne2ps_pbh(SET(x), SET(-x));
    const __m512bh vy = _mm512_cvtne2ps_pbh(SET(y), SET(y));
    WORK(SUMS_24)
    return _mm512_reduce_add_ps(total);
}

#elif defined(__aarch64__)

#define VECTOR       float32x4_t
#define SET          vdupq_n_f32
#define ADD          vaddq_f32
#define MULTIPLY_ADD vfmaq_f32

static float fma_neon(float x, float y) {
    const float32x4_t vx = SET(x), vy = SET(y);
    WORK(SUMS_24)
    return vaddvq_f32(total);
}

#endif

/* The kernel of a unit and the operations of one of its trips; NULL: there is none. */
static work_fn *choose_work(enum bench_unit unit, int *num_flops) {
#if defined(__x86_64__)
    if (unit == BENCH_UNIT_BF16_DOT) {
        *num_flops = 24 * 64;
        return __builtin_cpu_supports("avx512bf16") ? dot_avx512 : NULL;
    }
    if (__builtin_cpu_supports("avx512f")) {
        *num_flops = 24 * 32;
        return fma_avx512;
    }
    *num_flops = 12 * 16;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? fma_avx2 : NULL;
#elif defined(__aarch64__)
    *num_flops = 24 * 8;
    return unit == BENCH_UNIT_FMA ? fma_neon : NULL;
#else
    (void)unit;
    *num_flops = 0;
    return NULL;
#endif
}

int bench_unit_exists(enum bench_unit unit) {
    int num_flops = 0;
    return choose_work(unit, &num_flops) != NULL;
}

struct arithmetic {
    work_fn *work;
    _Atomic float sum;
};

static void work_share(void *arg, int64_t index) {
    struct arithmetic *arithmetic = arg;
    atomic_store(&arithmetic->sum, arithmetic->work(0.5f + (float)(index % 16) / 64, 0.25f));
}

double bench_unit_work(const struct pkv_executor *executor, enum bench_unit unit) {
    const int32_t num_threads = bench_num_threads(executor);
    int num_flops = 0;
    struct arithmetic arithmetic = {.work = choose_work(unit, &num_flops)};
    if (arithmetic.work == NULL)
        return 0;
    bench_run_tiles(executor, work_share, &arithmetic, num_threads);
    return (double)num_threads * WORK_TRIPS * num_flops;
}
