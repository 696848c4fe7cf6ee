/* SPDX-License-Identifier: MIT
 *
 * The published cases of plain scatters in other layouts, dtypes and shapes than the matrix of
 * verify_cases.c, at their published sizes. The reference finds each element by the published
 * formula of its layout; it uses nothing of the library.
 */
#include "verify_other.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_ceiling.h"
#include "bench_clock.h"
#include "bench_memory.h"
#include "cli_random.h"
#include "verify_sparse.h"

enum { MAX_ROUNDS = 9, SLOW_NS = 50000000, NUM_PARTS = 2, NZ_BYTES = 32 };

enum pattern {
    RANDOM,    /* distinct; with repetition when there are more tokens than slots */
    PADDING,   /* distinct, about a quarter of them negative */
    ALL_ONES,  /* every token to slot 1 */
    ASCENDING, /* 0, 1, 2, ... */
};

struct sizes {
    int32_t layout;            /* enum pkv_layout, NHD or PA_NZ */
    int32_t dtypes[NUM_PARTS]; /* of the value 0: key-only */
    int64_t num_tokens, num_heads, head_sizes[NUM_PARTS], num_blocks, block_size;
    enum pattern pattern;
    int32_t slot_dtype;
};

#define CASE(layout, key, value, t, h, dk, dv, nb, bs, pattern, slots)                             \
    &(const struct sizes) {                                                                        \
        PKV_LAYOUT_##layout, {PKV_DTYPE_##key, PKV_DTYPE_##value}, t, h, {dk, dv}, nb, bs,         \
            pattern, PKV_DTYPE_##slots                                                             \
    }

static struct verify_result run_case(const struct verify_other *one, struct pkv_context *context,
                                     const struct pkv_executor *executor, int64_t *num_tokens,
                                     int64_t *bytes_checked);

#define OP "scatter_pa_kv_cache"

/* A key-only case has INVALID for its value. */
/* clang-format off */
const struct verify_other verify_scatter_cases[] = {
    {OP, "nz_unit_i32", "   256 tokens    20 x 16    1 x 512/64 NZ, f16", "published: unit test, int32 slots",
     CASE(PA_NZ, F16, F16, 256, 1, 512, 64, 20, 16, RANDOM, I32), 21, run_case},
    {OP, "nz_unit_i64", "   256 tokens    20 x 16    1 x 512/64 NZ, f16", "published: unit test, int64 slots, some negative",
     CASE(PA_NZ, F16, F16, 256, 1, 512, 64, 20, 16, PADDING, I64), 22, run_case},
    {OP, "nz_mla", "  4096 tokens    34 x 128   1 x 512/64 NZ, i8", "published: MLA, int8 keys and f16 values",
     CASE(PA_NZ, I8, F16, 4096, 1, 512, 64, 34, 128, RANDOM, I32), 23, run_case},
    {OP, "nz_large", "  8192 tokens   128 x 128  10 x 128 NZ, f16", "published",
     CASE(PA_NZ, F16, F16, 8192, 10, 128, 128, 128, 128, RANDOM, I32), 24, run_case},
    {OP, "mla_nd", "  3072 tokens   801 x 128   1 x 512/64 f16", "published",
     CASE(NHD, F16, F16, 3072, 1, 512, 64, 801, 128, RANDOM, I32), 25, run_case},
    {OP, "mla_nd_950", "    13 tokens 55367 x 128   1 x 512/64 bf16", "published: 8 GB of addresses",
     CASE(NHD, BF16, BF16, 13, 1, 512, 64, 55367, 128, RANDOM, I32), 26, run_case},
    {OP, "key_only_f16", "     2 tokens   512 x 128  32 x 128 key, f16", "published",
     CASE(NHD, F16, INVALID, 2, 32, 128, 0, 512, 128, RANDOM, I32), 27, run_case},
    {OP, "key_only_bf16", "     2 tokens   512 x 128  32 x 128 key, bf16", "published",
     CASE(NHD, BF16, INVALID, 2, 32, 128, 0, 512, 128, RANDOM, I32), 28, run_case},
    {OP, "key_only_i8", "     2 tokens   512 x 128  32 x 128 key, i8", "published",
     CASE(NHD, I8, INVALID, 2, 32, 128, 0, 512, 128, RANDOM, I32), 29, run_case},
    {OP, "key_only_small", "    64 tokens    16 x 2    32 x 128 key, f16", "published: more tokens than slots, the last one stays",
     CASE(NHD, F16, INVALID, 64, 32, 128, 0, 16, 2, RANDOM, I32), 30, run_case},
    {OP, "key_only_refused", "    64 tokens    16 x 2    32 x 128 key, f16", "the same with slots 0 to 63: refused, nothing is written",
     CASE(NHD, F16, INVALID, 64, 32, 128, 0, 16, 2, ASCENDING, I32), 31, run_case},
    {OP, "aclnn_example", "     2 tokens     1 x 32    2 x 32  NZ, f16", "published: both tokens to slot 1",
     CASE(PA_NZ, F16, F16, 2, 2, 32, 32, 1, 32, ALL_ONES, I32), 32, run_case},
    {NULL, NULL, NULL, NULL, NULL, 0, NULL},
};
/* clang-format on */

struct job {
    const struct sizes *sizes;
    struct pkv_context *context;
    const struct pkv_executor *executor;
    struct cli_random random;
    int num_parts;
    int64_t num_slots;
    int64_t *slots;
    int32_t *slots_i32;
    unsigned char *is_done; /* [num_slots], of the reference: a later token stays */
    struct bench_memory source[NUM_PARTS];
    struct bench_memory copy[NUM_PARTS];
    struct verify_sparse cache[NUM_PARTS];
    struct pkv_error error;
};

static int64_t element_bytes(const struct job *job, int part) {
    return pkv_dtype_bytes(job->sizes->dtypes[part]);
}

static int64_t row_elements(const struct job *job, int part) {
    return job->sizes->num_heads * job->sizes->head_sizes[part];
}

static int64_t row_bytes(const struct job *job, int part) {
    return row_elements(job, part) * element_bytes(job, part);
}

/* Rows lie in pieces of so many bytes. */
static int64_t piece_bytes(const struct job *job, int part) {
    return job->sizes->layout == PKV_LAYOUT_PA_NZ ? NZ_BYTES : row_bytes(job, part);
}

/* The byte of piece number `piece` of a slot's row. PA_NZ: [num_blocks, row / 32 bytes, block_size,
 * 32 bytes]. */
static int64_t piece_at(const struct job *job, int part, int64_t slot, int64_t piece) {
    const int64_t block_size = job->sizes->block_size;
    const int64_t block = slot / block_size, offset = slot % block_size;
    if (job->sizes->layout != PKV_LAYOUT_PA_NZ)
        return slot * row_bytes(job, part);
    return block * block_size * row_bytes(job, part) + piece * block_size * NZ_BYTES +
           offset * NZ_BYTES;
}

/* ---- slots ---- */

static int draw_distinct(struct job *job) {
    int64_t num_drawn = 0;
    unsigned char *is_drawn = calloc((size_t)job->num_slots, 1);
    if (is_drawn == NULL)
        return -1;
    while (num_drawn < job->sizes->num_tokens) {
        const int64_t slot = cli_random_below(&job->random, job->num_slots);
        if (!is_drawn[slot])
            job->slots[num_drawn++] = slot;
        is_drawn[slot] = 1;
    }
    free(is_drawn);
    return 0;
}

static int draw_slots(struct job *job) {
    const struct sizes *sizes = job->sizes;
    job->slots = malloc((size_t)sizes->num_tokens * sizeof(job->slots[0]));
    job->slots_i32 = malloc((size_t)sizes->num_tokens * sizeof(job->slots_i32[0]));
    job->is_done = calloc((size_t)job->num_slots, 1);
    if (job->slots == NULL || job->slots_i32 == NULL || job->is_done == NULL)
        return -1;
    const int is_distinct = sizes->pattern <= PADDING && sizes->num_tokens <= job->num_slots;
    if (is_distinct && draw_distinct(job) != 0)
        return -1;
    for (int64_t t = 0; t < sizes->num_tokens; t++) {
        if (sizes->pattern == ALL_ONES || sizes->pattern == ASCENDING)
            job->slots[t] = sizes->pattern == ALL_ONES ? 1 : t;
        else if (!is_distinct)
            job->slots[t] = cli_random_below(&job->random, job->num_slots);
        else if (sizes->pattern == PADDING && cli_random_below(&job->random, 4) == 0)
            job->slots[t] = -1 - cli_random_below(&job->random, 1000);
        job->slots_i32[t] = (int32_t)job->slots[t];
    }
    return 0;
}

/* ---- memory ---- */

/* The pieces of every row that is named, and those of the slots before and behind it. */
static void mark_rows(struct job *job, int part) {
    const int64_t bytes = piece_bytes(job, part);
    for (int64_t t = 0; t < job->sizes->num_tokens; t++) {
        for (int64_t slot = job->slots[t] - 1; job->slots[t] >= 0 && slot <= job->slots[t] + 1;
             slot++) {
            for (int64_t i = 0; i < row_bytes(job, part) / bytes; i++) {
                if (slot >= 0 && slot < job->num_slots)
                    verify_sparse_mark(&job->cache[part], piece_at(job, part, slot, i), bytes);
            }
        }
    }
}

static int create(struct job *job) {
    if (draw_slots(job) != 0)
        return -1;
    for (int part = 0; part < job->num_parts; part++) {
        const int64_t source_bytes = job->sizes->num_tokens * row_bytes(job, part);
        if (bench_memory_map(&job->source[part], source_bytes, BENCH_PAGES_HUGE, job->executor) !=
                0 ||
            bench_memory_map(&job->copy[part], source_bytes, BENCH_PAGES_HUGE, job->executor) !=
                0 ||
            verify_sparse_map(&job->cache[part], job->num_slots * row_bytes(job, part)) != 0)
            return -1;
        for (int64_t i = 0; i + 8 <= source_bytes; i += 8) {
            const uint64_t word = cli_random_next(&job->random);
            memcpy(job->source[part].data + i, &word, sizeof(word));
        }
        mark_rows(job, part);
        verify_sparse_fill(&job->cache[part]);
    }
    return 0;
}

static void destroy(struct job *job) {
    for (int part = 0; part < job->num_parts; part++) {
        bench_memory_unmap(&job->source[part]);
        bench_memory_unmap(&job->copy[part]);
        verify_sparse_unmap(&job->cache[part]);
    }
    free(job->slots);
    free(job->slots_i32);
    free(job->is_done);
}

/* ---- the call ---- */

static int run(void *arg) {
    struct job *job = arg;
    const struct sizes *sizes = job->sizes;
    struct pkv_tensor source[NUM_PARTS], cache[NUM_PARTS];
    for (int part = 0; part < job->num_parts; part++) {
        const int64_t rows[3] = {sizes->num_tokens, sizes->num_heads, sizes->head_sizes[part]};
        const int64_t nhd[4] = {sizes->num_blocks, sizes->block_size, sizes->num_heads,
                                sizes->head_sizes[part]};
        const int64_t nz[4] = {sizes->num_blocks, row_bytes(job, part) / NZ_BYTES,
                               sizes->block_size, NZ_BYTES / element_bytes(job, part)};
        source[part] = pkv_tensor_make(job->source[part].data, sizes->dtypes[part], 3, rows);
        cache[part] = pkv_tensor_make(job->cache[part].data, sizes->dtypes[part], 4,
                                      sizes->layout == PKV_LAYOUT_PA_NZ ? nz : nhd);
    }
    const struct pkv_tensor slots = pkv_tensor_make(
        sizes->slot_dtype == PKV_DTYPE_I64 ? (void *)job->slots : (void *)job->slots_i32,
        sizes->slot_dtype, 1, &sizes->num_tokens);
    const struct pkv_scatter_pa_kv_cache_options options = {
        .struct_size = sizeof(options), .key_layout = sizes->layout, .value_layout = sizes->layout};
    const int has_value = job->num_parts == NUM_PARTS;
    return pkv_scatter_pa_kv_cache(job->context, &source[0], &cache[0], &slots,
                                   has_value ? &source[1] : NULL, has_value ? &cache[1] : NULL,
                                   &options, &job->error) == PKV_STATUS_OK
               ? 0
               : -1;
}

/* ---- the check ---- */

static void describe(const struct job *job, int part, int64_t byte, int expected,
                     char message[256]) {
    (void)snprintf(message, 256, "%s cache, byte %" PRId64 ": found 0x%02x, expected 0x%02x",
                   part == 0 ? "key" : "value", byte, (unsigned)job->cache[part].data[byte],
                   (unsigned)expected);
}

/* Compares the row of a token with its source, and then takes it out of the cache again. */
static int check_row(struct job *job, int part, int64_t token, char message[256]) {
    const int64_t bytes = piece_bytes(job, part);
    const unsigned char *source = job->source[part].data + token * row_bytes(job, part);
    for (int64_t i = 0; i < row_bytes(job, part) / bytes; i++, source += bytes) {
        const int64_t at = piece_at(job, part, job->slots[token], i);
        for (int64_t j = 0; j < bytes; j++) {
            if (job->cache[part].data[at + j] == source[j])
                continue;
            describe(job, part, at + j, source[j], message);
            return -1;
        }
        verify_sparse_restore(&job->cache[part], at, bytes);
    }
    return 0;
}

/* The rows first, from the last token to the first: the first one met is the one that stays. What
 * is not a row has its own value then, and so has every row, after it was taken out. */
static int check_part(struct job *job, int part, int is_refused, char message[256]) {
    const int64_t stray = verify_sparse_find_stray(&job->cache[part]);
    int expected = 0;
    if (stray >= 0) {
        (void)snprintf(message, 256,
                       "%s cache: something was written near byte %" PRId64 ", far from every row",
                       part == 0 ? "key" : "value", stray);
        return -1;
    }
    memset(job->is_done, 0, (size_t)job->num_slots);
    for (int64_t t = job->sizes->num_tokens - 1; t >= 0 && !is_refused; t--) {
        if (job->slots[t] < 0 || job->is_done[job->slots[t]])
            continue;
        job->is_done[job->slots[t]] = 1;
        if (check_row(job, part, t, message) != 0)
            return -1;
    }
    const int64_t changed = verify_sparse_find_changed(&job->cache[part], &expected);
    if (changed >= 0)
        describe(job, part, changed, expected, message);
    return changed >= 0 ? -1 : 0;
}

/* ---- the measurement ---- */

static int64_t num_written(const struct job *job) {
    int64_t count = 0;
    for (int64_t t = 0; t < job->sizes->num_tokens; t++)
        count += job->slots[t] >= 0;
    return count;
}

static int run_copy(void *arg) {
    const struct job *job = arg;
    struct bench_span spans[NUM_PARTS];
    for (int part = 0; part < job->num_parts; part++)
        spans[part] = (struct bench_span){job->copy[part].data, job->source[part].data,
                                          num_written(job) * row_bytes(job, part)};
    bench_ceiling_copy(job->executor, spans, job->num_parts);
    return 0;
}

static int prepare_nothing(void *arg) {
    (void)arg;
    return 0;
}

static void measure(struct job *job, int64_t first_ns, struct verify_result *result) {
    const struct bench_variant variants[] = {{prepare_nothing, run, NULL, job},
                                             {prepare_nothing, run_copy, NULL, job}};
    struct bench_rounds rounds;
    if (bench_rounds_measure(&rounds, variants, 2, first_ns > SLOW_NS ? 1 : MAX_ROUNDS,
                             job->executor, &job->random) != 0) {
        result->verdict = VERIFY_ERROR;
        (void)pkv_error_text(&job->error, result->message, sizeof(result->message));
        return;
    }
    for (int part = 0; part < job->num_parts; part++)
        result->bytes += 2 * num_written(job) * row_bytes(job, part);
    result->ns = bench_rounds_time(&rounds, 0);
    result->ceiling = bench_rounds_speed(&rounds, 0, 1);
}

/* The status that the slots must lead to, and every byte. */
static struct verify_result check_and_measure(struct job *job, int64_t *num_tokens,
                                              int64_t *bytes_checked) {
    struct verify_result result = {.verdict = VERIFY_PASS};
    const int must_refuse = job->sizes->pattern == ASCENDING;
    const int64_t begin = bench_now_ns();
    const int failed = run(job);
    const int64_t ns = bench_now_ns() - begin;
    if (failed && (!must_refuse || job->error.status != PKV_STATUS_SLOT_OUT_OF_RANGE)) {
        result.verdict = VERIFY_ERROR;
        (void)pkv_error_text(&job->error, result.message, sizeof(result.message));
        return result;
    }
    if (!failed && must_refuse) {
        result.verdict = VERIFY_FAIL;
        (void)snprintf(result.message, sizeof(result.message),
                       "slots beyond the last one were not refused");
        return result;
    }
    for (int part = 0; part < job->num_parts && result.verdict == VERIFY_PASS; part++) {
        if (check_part(job, part, failed, result.message) != 0)
            result.verdict = VERIFY_FAIL;
        *bytes_checked += verify_sparse_marked_bytes(&job->cache[part]);
    }
    if (result.verdict != VERIFY_PASS)
        return result;
    if (must_refuse) {
        result.ns = (struct bench_spread){(double)ns, (double)ns, (double)ns};
        return result;
    }
    *num_tokens += job->sizes->num_tokens;
    measure(job, ns, &result);
    return result;
}

static struct verify_result run_case(const struct verify_other *one, struct pkv_context *context,
                                     const struct pkv_executor *executor, int64_t *num_tokens,
                                     int64_t *bytes_checked) {
    struct verify_result result = {.verdict = VERIFY_ERROR};
    const struct sizes *sizes = one->sizes;
    struct job job = {.sizes = sizes,
                      .context = context,
                      .executor = executor,
                      .random = {one->seed},
                      .num_parts = sizes->dtypes[1] == PKV_DTYPE_INVALID ? 1 : NUM_PARTS,
                      .num_slots = sizes->num_blocks * sizes->block_size,
                      .error.struct_size = sizeof(job.error)};
    if (create(&job) == 0)
        result = check_and_measure(&job, num_tokens, bytes_checked);
    else
        (void)snprintf(result.message, sizeof(result.message),
                       "no memory for %" PRId64 " tokens, or no addresses for the cache",
                       sizes->num_tokens);
    destroy(&job);
    return result;
}
