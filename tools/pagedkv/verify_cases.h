/* SPDX-License-Identifier: MIT
 *
 * The table of cases that verify runs, and the slots of a case. It knows nothing of the library.
 */
#ifndef PAGEDKV_VERIFY_CASES_H
#define PAGEDKV_VERIFY_CASES_H

#include <stdint.h>

/* How the slots of a case are drawn. */
enum verify_pattern {
    VERIFY_RANDOM,     /* distinct: a random permutation of the whole cache, cut to num_tokens */
    VERIFY_DUPLICATES, /* random, slots come back: the last token must stay */
    VERIFY_PADDING,    /* distinct, about a quarter of them negative: those tokens are skipped */
    VERIFY_RUNS        /* runs of 128 consecutive slots that begin inside a block */
};

/* Always bf16, keys and values of the same shape; a row is a multiple of 1 KiB. */
struct verify_case {
    const char *name;
    int64_t num_tokens;
    int64_t num_blocks;
    int64_t block_size;
    int64_t num_heads;
    int64_t head_size;
    enum verify_pattern pattern;
    int32_t slot_dtype; /* enum pkv_dtype: I32 as published, I64 in our own cases */
    uint64_t seed;
    const char *note;
};

extern const struct verify_case verify_cases[];
extern const int32_t verify_num_cases;

/* "random", "duplicates", "padding", "runs of 128". */
const char *verify_pattern_name(enum verify_pattern pattern);

/* Without the prefix of the published spelling. */
const char *verify_case_bare_name(const char *name);

/* The index of the case of that name, with or without the prefix, or -1. */
int32_t verify_case_find(const char *name);

/* Bytes of a token's key. */
int64_t verify_row_bytes(const struct verify_case *one);

/* Draws the case's slots into slots[num_tokens]. More tokens than slots are drawn with repetition,
 * whatever the pattern, as the published cases do. Returns 0, or -1 when memory is missing. */
int verify_draw_slots(const struct verify_case *one, int64_t *slots);

#endif
