/* SPDX-License-Identifier: MIT
 *
 * The cases: the published matrix of scatter_pa_kv_cache, the rows of its published test file, and
 * three of our own. See verify_cases.h.
 */
#include "verify_cases.h"

#include <stdlib.h>
#include <string.h>

#include <pagedkv/tensor.h>

#include "cli_random.h"

/* The published names carry it. */
#define PREFIX "scatter_pa_kv_cache::test_"

enum { RUN_TOKENS = 128, RUN_OFFSET = 37 };

/* clang-format off */
const struct verify_case verify_cases[] = {
    /*                          tokens blocks  bs heads size */
    {"config1_performance_p0",    2633, 9760, 128,  2, 256, VERIFY_RANDOM, PKV_DTYPE_I32, 42, "published: performance"},
    {"config2_function_p0",       7902, 9760, 128,  2, 256, VERIFY_RANDOM, PKV_DTYPE_I32, 42, "published: function"},
    {"config3_boundary_p0",      16384, 9760, 128,  2, 256, VERIFY_RANDOM, PKV_DTYPE_I32, 42, "published: upper bound"},
    {"gym_config1",                  8,  512, 128,  1, 512, VERIFY_RANDOM, PKV_DTYPE_I32, 42, "test file: config1_performance_p0"},
    {"gym_config2",                128,  512, 128,  4, 128, VERIFY_RANDOM, PKV_DTYPE_I32, 42, "test file: config2_function_p0"},
    {"gym_config3",               4096,  512, 128, 64,  64, VERIFY_RANDOM, PKV_DTYPE_I32, 42, "test file: config3_boundary_p0"},
    {"small_scale",                  8,  100, 128,  2, 256, VERIFY_RANDOM, PKV_DTYPE_I32, 100, "test file"},
    {"min_tokens",                   1,  100, 128,  2, 256, VERIFY_RANDOM, PKV_DTYPE_I32, 200, "test file"},
    {"medium_scale",               500,  500, 128,  2, 256, VERIFY_RANDOM, PKV_DTYPE_I32, 300, "test file"},
    {"duplicates",                6000,   16, 128,  2, 256, VERIFY_DUPLICATES, PKV_DTYPE_I64, 7, "more tokens than slots: the last one stays"},
    {"padding",                   2633, 9760, 128,  2, 256, VERIFY_PADDING, PKV_DTYPE_I64, 7, "negative slots are skipped"},
    {"runs",                      8192, 9760, 128,  2, 256, VERIFY_RUNS, PKV_DTYPE_I64, 7, "prefill: consecutive slots"},
};
/* clang-format on */

const int32_t verify_num_cases = sizeof(verify_cases) / sizeof(verify_cases[0]);

const char *verify_pattern_name(enum verify_pattern pattern) {
    switch (pattern) {
    case VERIFY_RANDOM:
        return "random";
    case VERIFY_DUPLICATES:
        return "duplicates";
    case VERIFY_PADDING:
        return "padding";
    case VERIFY_RUNS:
        return "runs of 128";
    }
    return "unknown";
}

const char *verify_case_bare_name(const char *name) {
    const size_t prefix = strlen(PREFIX);
    return strncmp(name, PREFIX, prefix) == 0 ? name + prefix : name;
}

int32_t verify_case_find(const char *name) {
    name = verify_case_bare_name(name);
    for (int32_t i = 0; i < verify_num_cases; i++) {
        if (strcmp(verify_cases[i].name, name) == 0)
            return i;
    }
    return -1;
}

int64_t verify_row_bytes(const struct verify_case *one) {
    return one->num_heads * one->head_size * (int64_t)sizeof(uint16_t);
}

/* The first num_entries of a random permutation of 0 ... total - 1. */
static int draw_distinct(struct cli_random *random, int64_t total, int64_t num_entries,
                         int64_t *entries) {
    int64_t *all = malloc((size_t)total * sizeof(all[0]));
    if (all == NULL)
        return -1;
    for (int64_t i = 0; i < total; i++)
        all[i] = i;
    for (int64_t i = 0; i < num_entries; i++) {
        const int64_t j = i + cli_random_below(random, total - i);
        entries[i] = all[j];
        all[j] = all[i];
    }
    free(all);
    return 0;
}

static int draw_runs(struct cli_random *random, int64_t num_slots, int64_t num_tokens,
                     int64_t *slots) {
    const int64_t num_runs = (num_tokens + RUN_TOKENS - 1) / RUN_TOKENS;
    int64_t *runs = malloc((size_t)num_runs * sizeof(runs[0]));
    int status = -1;
    if (runs != NULL)
        status = draw_distinct(random, (num_slots - RUN_OFFSET) / RUN_TOKENS, num_runs, runs);
    for (int64_t i = 0; status == 0 && i < num_tokens; i++)
        slots[i] = runs[i / RUN_TOKENS] * RUN_TOKENS + RUN_OFFSET + i % RUN_TOKENS;
    free(runs);
    return status;
}

/* -1 as everybody writes it, and other negative numbers. */
static void pad(struct cli_random *random, int64_t num_tokens, int64_t *slots) {
    for (int64_t i = 0; i < num_tokens; i++) {
        const int64_t draw = cli_random_below(random, 8);
        if (draw == 0 || i == 0)
            slots[i] = -1;
        else if (draw == 1 || i == num_tokens - 1)
            slots[i] = INT32_MIN + cli_random_below(random, INT32_MAX);
    }
}

int verify_draw_slots(const struct verify_case *one, int64_t *slots) {
    struct cli_random random = {one->seed};
    const int64_t num_slots = one->num_blocks * one->block_size;
    const int64_t num_runs = (one->num_tokens + RUN_TOKENS - 1) / RUN_TOKENS;
    if (one->pattern == VERIFY_RUNS && num_runs * RUN_TOKENS + RUN_OFFSET <= num_slots)
        return draw_runs(&random, num_slots, one->num_tokens, slots);
    if (one->pattern == VERIFY_DUPLICATES || one->num_tokens > num_slots) {
        for (int64_t i = 0; i < one->num_tokens; i++)
            slots[i] = cli_random_below(&random, num_slots);
    } else if (draw_distinct(&random, num_slots, one->num_tokens, slots) != 0) {
        return -1;
    }
    if (one->pattern == VERIFY_PADDING)
        pad(&random, one->num_tokens, slots);
    return 0;
}
