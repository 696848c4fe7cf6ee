/* SPDX-License-Identifier: MIT
 *
 * Tokens of a tile at addresses where nothing lies, for tests of what attention fetches and in
 * which order.
 */
#ifndef PKV_TESTS_UNIT_ATTENTION_PLACES_H
#define PKV_TESTS_UNIT_ATTENTION_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "kernels/kernels.h"
#include "rng.h"

enum { MAX_FETCHES = 1 << 19 };

/* What was fetched since num_fetches was set to 0: addresses. */
static uintptr_t fetches[MAX_FETCHES];
static int64_t num_fetches;

static inline void record(uintptr_t address) {
    assert_true(num_fetches < MAX_FETCHES);
    fetches[num_fetches++] = address;
}

/* What the templates ask for. */
#define PREFETCH(p) record((uintptr_t)(p))
enum { NEAR_ROWS = 16, TOUCH_ROWS = 4 };

enum { MAX_TOKENS = 256, MAX_HEADS = 8, PLACE_ALIGNMENT = 4096 };

struct place {
    struct pkv_attention_tokens tokens;
    int64_t offsets[MAX_TOKENS];
};

static inline uintptr_t address_of(const struct pkv_attention_tokens *tokens, int64_t head,
                                   int64_t token) {
    return (uintptr_t)tokens->base +
           (uintptr_t)(tokens->offsets[token] + head * tokens->head_stride);
}

/* Blocks anywhere but not over each other, rows of a block dense, or with something between the
 * tokens. */
static inline void place_blocks(struct place *place, struct test_rng *rng, int64_t block_size,
                                int64_t num_tokens, bool heads_together) {
    static const int64_t sizes[] = {64, 256, 512, 1152, 4096, 5000};
    const int64_t row_bytes = sizes[test_rng_below(rng, 6)];
    const int64_t num_heads = test_rng_between(rng, 1, MAX_HEADS);
    const int64_t gap = test_rng_below(rng, 2) * 64;
    const int64_t near = row_bytes + (heads_together ? 0 : gap);
    const int64_t far = heads_together ? num_heads * near + gap : block_size * near;
    const int64_t block_bytes = heads_together ? block_size * far : num_heads * far;
    const int64_t num_blocks = (num_tokens + block_size - 1) / block_size;
    int64_t order[MAX_TOKENS];
    test_rng_permutation(rng, order, num_blocks);
    for (int64_t t = 0; t < num_tokens; t++)
        place->offsets[t] = order[t / block_size] * (block_bytes + 16 * PLACE_ALIGNMENT) /
                                PLACE_ALIGNMENT * PLACE_ALIGNMENT +
                            t % block_size * (heads_together ? far : near);
    place->tokens = (struct pkv_attention_tokens){
        .base = (const char *)(uintptr_t)0x200000000000,
        .offsets = place->offsets,
        .num_tokens = num_tokens,
        .num_heads = num_heads,
        .head_stride = heads_together ? near : far,
        .row_bytes = row_bytes,
        .heads_together = heads_together,
        .short_turns = test_rng_below(rng, 2) == 0,
    };
}

#endif
