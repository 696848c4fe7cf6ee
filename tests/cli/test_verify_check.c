/* SPDX-License-Identifier: MIT
 *
 * The check behind `pagedkv verify` finds what is wrong: a byte of a row, of a row that nobody
 * wrote, behind the last block, and a token in the wrong place. What it says of right caches is
 * seen in every run of verify.
 */
#include <stdio.h>
#include <string.h>

#include "verify_memory.h"

enum { NUM_TOKENS = 6, NUM_SLOTS = 8, ROW_BYTES = 1024 };

static const struct verify_case one = {.name = "check",
                                       .num_tokens = NUM_TOKENS,
                                       .num_blocks = 2,
                                       .block_size = 4,
                                       .num_heads = 2,
                                       .head_size = 256,
                                       .seed = 3};
static const int64_t slots[NUM_TOKENS] = {5, 0, -1, 7, 5, 2}; /* token 4 stays in slot 5 */

static struct verify_memory memory;
static int num_failures;

static void expect(int64_t num_chunks, enum verify_part part, int64_t byte, int tolerance,
                   const char *what) {
    const struct verify_difference got = verify_check(&memory, &one, tolerance);
    if (got.num_chunks == num_chunks &&
        (num_chunks == 0 || (got.part == part && got.byte == byte && got.found != got.expected)))
        return;
    num_failures++;
    printf("%s: %lld pieces differ, the first one in part %d at %lld\n", what,
           (long long)got.num_chunks, (int)got.part, (long long)got.byte);
}

static void flip(enum verify_part part, int64_t byte, const char *what) {
    memory.cache[part].data[byte] ^= 0x40;
    expect(1, part, byte, 0, what);
    memory.cache[part].data[byte] ^= 0x40;
    expect(0, part, 0, 0, "put right again");
}

/* An element of token 5 whose last bit is within the tolerance, and whose bit above the mantissa's
 * first is not. */
static void tolerate(void) {
    unsigned char *row = memory.cache[VERIFY_KEY].data + 2 * ROW_BYTES;
    int64_t at = 0;
    while (row[at + 1] < 0x3f || row[at + 1] > 0x41) /* magnitudes near 1 */
        at += 2;
    row[at] ^= 1;
    expect(0, VERIFY_KEY, 0, 1, "the last bit, with tolerance");
    expect(1, VERIFY_KEY, 2 * ROW_BYTES + at, 0, "the last bit, without");
    row[at] ^= 1;
    row[at] ^= 0x40;
    expect(1, VERIFY_KEY, 2 * ROW_BYTES + at, 1, "half of the mantissa, with tolerance");
    row[at] ^= 0x40;
}

int main(void) {
    const struct pkv_executor none = {0};
    const struct verify_sizes sizes = {.cache_bytes = NUM_SLOTS * ROW_BYTES,
                                       .source_bytes = NUM_TOKENS * ROW_BYTES,
                                       .max_slots = NUM_SLOTS};
    if (verify_memory_create(&memory, &sizes, &none) != 0) {
        puts("skipped: no memory");
        return 77;
    }
    verify_fill_sources(&memory, &one);
    expect(0, VERIFY_KEY, 0, 0, "as filled");
    verify_expect(&memory, &one, slots);
    for (int token = 0; token < NUM_TOKENS; token++) {
        for (int part = 0; part < VERIFY_NUM_PARTS && slots[token] >= 0; part++)
            memcpy(memory.cache[part].data + slots[token] * ROW_BYTES,
                   memory.source[part].data + token * ROW_BYTES, ROW_BYTES);
    }
    expect(0, VERIFY_KEY, 0, 0, "a right scatter");
    flip(VERIFY_KEY, 5 * ROW_BYTES + 17, "a byte of a key");
    flip(VERIFY_VALUE, 7 * ROW_BYTES + ROW_BYTES - 1, "the last byte of a value");
    flip(VERIFY_VALUE, 1 * ROW_BYTES, "a row that nobody wrote");
    flip(VERIFY_KEY, NUM_SLOTS * ROW_BYTES + 3, "behind the last block");
    /* The first of two tokens in a slot, and a token that went nowhere. */
    memcpy(memory.cache[VERIFY_KEY].data + 5 * ROW_BYTES, memory.source[VERIFY_KEY].data,
           ROW_BYTES);
    if (verify_check(&memory, &one, 0).num_chunks != 1)
        expect(1, VERIFY_KEY, -1, 0, "the first of two tokens");
    memcpy(memory.cache[VERIFY_KEY].data + 5 * ROW_BYTES,
           memory.source[VERIFY_KEY].data + 4 * ROW_BYTES, ROW_BYTES);
    tolerate();
    verify_restore_slots(&memory, &one, slots);
    expect(0, VERIFY_KEY, 0, 0, "restored");
    verify_memory_destroy(&memory);
    return num_failures > 0;
}
