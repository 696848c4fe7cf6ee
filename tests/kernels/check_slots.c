/* SPDX-License-Identifier: MIT
 *
 * The range check and the selection of slots, for each integer type, against a reading of their
 * contract that goes entry by entry through memcpy.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkkern.h"

enum { MAX_SLOTS = 300, MAX_STRIDE = 7 };

static const int type_bytes[PKV_NUM_SLOT_TYPES] = {2, 4, 8};
static const int64_t type_min[PKV_NUM_SLOT_TYPES] = {INT16_MIN, INT32_MIN, INT64_MIN};
static const int64_t type_max[PKV_NUM_SLOT_TYPES] = {INT16_MAX, INT32_MAX, INT64_MAX};

static const struct kern_buffer *slots, *out_slots, *out_tokens;
static struct test_rng *rng;

/* The case that runs. */
static struct {
    const char *group;
    int type;
    const unsigned char *base; /* of entry 0 */
    int64_t stride, first, num_slots, low, high;
} now;

static int64_t read_slot(const void *base, int type, int64_t at) {
    const char *from = (const char *)base + at * type_bytes[type];
    int16_t i16;
    int32_t i32;
    int64_t i64;
    switch (type) {
    case PKV_SLOT_I16:
        memcpy(&i16, from, sizeof(i16));
        return i16;
    case PKV_SLOT_I32:
        memcpy(&i32, from, sizeof(i32));
        return i32;
    default:
        memcpy(&i64, from, sizeof(i64));
        return i64;
    }
}

/* The value is within the type. */
static void write_slot(unsigned char *base, int type, int64_t at, int64_t value) {
    /* Little-endian: the low bytes come first. */
    memcpy(base + at * type_bytes[type], &value, (size_t)type_bytes[type]);
}

static int64_t plain_check(const void *base, int type, int64_t stride, int64_t num_slots,
                           int64_t bound) {
    int64_t i = 0;
    while (i < num_slots && read_slot(base, type, i * stride) < bound)
        i++;
    return i;
}

static int64_t plain_select(const void *base, int type, int64_t stride, int64_t first,
                            int64_t num_slots, int64_t low, int64_t high, int64_t *to_slots,
                            int64_t *to_tokens) {
    int64_t count = 0;
    for (int64_t i = first; i < first + num_slots; i++) {
        const int64_t slot = read_slot(base, type, i * stride);
        if (slot < low || slot >= high)
            continue;
        to_slots[count] = slot;
        to_tokens[count++] = i;
    }
    return count;
}

#define DEFINE_PLAIN(name, type)                                                                   \
    static int64_t plain_check_##name(const void *base, int64_t stride, int64_t num_slots,         \
                                      int64_t bound) {                                             \
        return plain_check(base, type, stride, num_slots, bound);                                  \
    }                                                                                              \
    static int64_t plain_select_##name(const void *base, int64_t stride, int64_t first,            \
                                       int64_t num_slots, int64_t low, int64_t high,               \
                                       int64_t *to_slots, int64_t *to_tokens) {                    \
        return plain_select(base, type, stride, first, num_slots, low, high, to_slots, to_tokens); \
    }

DEFINE_PLAIN(i16, PKV_SLOT_I16)
DEFINE_PLAIN(i32, PKV_SLOT_I32)
DEFINE_PLAIN(i64, PKV_SLOT_I64)

static void start(const struct kern *kern) {
    rng = kern->rng;
    if (slots == NULL) {
        slots = kern_buffer_make("slots", (int64_t)MAX_SLOTS * MAX_STRIDE * 8);
        out_slots = kern_buffer_make("out_slots", (int64_t)MAX_SLOTS * 8);
        out_tokens = kern_buffer_make("out_tokens", (int64_t)MAX_SLOTS * 8);
    }
    now.type = kern->index;
}

/* Puts entry `first` and the ones behind it against one end of their buffer, so that now.base may
 * lie in front of it. What surrounds them, also between strided ones, would be wrong to use. */
static void place_entries(int64_t poison) {
    const int64_t entry = type_bytes[now.type], room = slots->bytes / entry;
    const int64_t length = now.num_slots > 0 ? (now.num_slots - 1) * now.stride + 1 : 0;
    const int64_t at = test_rng_below(rng, 2) == 0 ? 0 : room - length;
    for (int64_t i = at < 16 ? 0 : at - 16; i < at + length + 16 && i < room; i++)
        write_slot(slots->data, now.type, i, poison);
    now.base = slots->data + (at - now.first * now.stride) * entry;
}

static void set_entry(int64_t i, int64_t value) {
    write_slot(slots->data, now.type,
               (now.base - slots->data) / type_bytes[now.type] + i * now.stride, value);
}

static void describe(void) {
    printf("%s, %" PRId64 " slots %" PRId64 " apart from number %" PRId64 ", low %" PRId64
           ", high %" PRId64 ":",
           now.group, now.num_slots, now.stride, now.first, now.low, now.high);
    for (int64_t i = 0; i < now.num_slots && i < 16; i++)
        printf(" %" PRId64, read_slot(now.base, now.type, (now.first + i) * now.stride));
    if (now.num_slots > 16)
        printf(" ...");
}

static int64_t random_stride(void) {
    static const int64_t strides[] = {1, 1, 1, 2, 3, MAX_STRIDE};
    return PICK(rng, strides);
}

/* In [low, high], with both ends and their neighbours often. */
static int64_t random_value(int64_t low, int64_t high) {
    const uint64_t span = (uint64_t)high - (uint64_t)low;
    uint64_t offset = test_rng_next(rng);
    offset = span == UINT64_MAX ? offset : offset % (span + 1);
    switch (test_rng_below(rng, 8)) {
    case 0:
        return low;
    case 1:
        return high;
    case 2:
        return low + (span > 0);
    default:
        return (int64_t)((uint64_t)low + offset);
    }
}

/* ---- check_slots ---- */

static const char *const check_names[] = {"check_slots_i16", "check_slots_i32", "check_slots_i64"};

static kern_fn *get_check(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->check_slots[index];
}

static kern_fn *plain_check_of(int index) {
    static pkv_check_slots_fn *const plain[] = {plain_check_i16, plain_check_i32, plain_check_i64};
    return (kern_fn *)plain[index];
}

/* Good entries up to number first_bad, a bad one there, and anything behind it. */
static void run_check(const struct kern *kern, int64_t num_slots, int64_t first_bad,
                      int64_t bound) {
    const int64_t min = type_min[now.type], max = type_max[now.type];
    const int64_t good_max = bound - 1 < max ? bound - 1 : max;
    now.group = "check_slots";
    now.stride = random_stride();
    now.num_slots = num_slots;
    now.high = bound;
    place_entries(max);
    const int64_t good_min = test_rng_below(rng, 2) == 0 || bound == 0 ? min : 0;
    for (int64_t i = 0; i < num_slots; i++)
        set_entry(i, i < first_bad    ? random_value(good_min, good_max)
                     : i == first_bad ? random_value(bound, max)
                                      : random_value(min, max));
    kern_count_case();
    const int64_t expected =
        ((pkv_check_slots_fn *)kern->reference)(now.base, now.stride, num_slots, bound);
    const int64_t result =
        ((pkv_check_slots_fn *)kern->tested)(now.base, now.stride, num_slots, bound);
    if (result != expected || result != first_bad)
        kern_fail("returned %" PRId64 ", should be %" PRId64, result, first_bad);
}

static void check_checks(const struct kern *kern) {
    start(kern);
    now.first = now.low = 0;
    const int64_t max = type_max[now.type];
    const int64_t bounds[] = {0, 1, 2, 100, 4096, max / 2 + 1, max - 1, max};
    for (int64_t num_slots = 0; num_slots <= MAX_SLOTS; num_slots += num_slots < 140   ? 1
                                                                     : num_slots < 190 ? 13
                                                                                       : 11) {
        for (int64_t first_bad = 0; first_bad <= num_slots; first_bad++) {
            for (int repeat = 0; repeat < 3; repeat++)
                run_check(kern, num_slots, first_bad, PICK(rng, bounds));
        }
        /* A cache with more slots than the type can count has none that is too large. */
        for (int shift = 0; now.type != PKV_SLOT_I64 && shift < 16; shift++)
            run_check(kern, num_slots, num_slots, max + (INT64_C(1) << shift));
    }
}

static int64_t bench_slots[4096];
static int64_t bench_out[2][COUNT(bench_slots)];

/* Random slots of a cache of 10,000. */
static void make_bench_slots(const struct kern *kern) {
    for (int64_t i = 0; i < COUNT(bench_slots); i++)
        write_slot((unsigned char *)bench_slots, kern->index, i, test_rng_below(kern->rng, 10000));
}

static void call_check(kern_fn *fn) {
    ((pkv_check_slots_fn *)fn)(bench_slots, 1, COUNT(bench_slots), 10000);
}

static void bench_checks(const struct kern *kern) {
    make_bench_slots(kern);
    kern_time(kern, "4096 slots", COUNT(bench_slots) * type_bytes[kern->index], call_check);
}

/* ---- select_slots ---- */

static const char *const select_names[] = {"select_slots_i16", "select_slots_i32",
                                           "select_slots_i64"};

static kern_fn *get_select(const struct pkv_kernels *kernels, int index) {
    return (kern_fn *)kernels->select_slots[index];
}

static kern_fn *plain_select_of(int index) {
    static pkv_select_slots_fn *const plain[] = {plain_select_i16, plain_select_i32,
                                                 plain_select_i64};
    return (kern_fn *)plain[index];
}

static void compare_outputs(const char *name, const int64_t *is, const int64_t *should,
                            int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (is[i] != should[i])
            kern_fail("%s[%" PRId64 "] is %" PRId64 ", should be %" PRId64, name, i, is[i],
                      should[i]);
    }
}

static void run_select(const struct kern *kern, int64_t num_slots, int64_t low, int64_t high) {
    static const int64_t canary = INT64_C(0x5a5a5a5a5a5a5a5a);
    static int64_t expected_slots[MAX_SLOTS], expected_tokens[MAX_SLOTS];
    /* Room for num_slots exactly: right behind it, or right before it, lies forbidden memory. */
    const int64_t at = test_rng_below(rng, 2) == 0 ? 0 : out_slots->bytes / 8 - num_slots;
    int64_t *to_slots = (int64_t *)(void *)out_slots->data + at;
    int64_t *to_tokens = (int64_t *)(void *)out_tokens->data + at;
    int64_t *const canary_slots = at == 0 ? to_slots + num_slots : to_slots - 1;
    int64_t *const canary_tokens = at == 0 ? to_tokens + num_slots : to_tokens - 1;
    *canary_slots = *canary_tokens = canary;

    kern_count_case();
    const int64_t expected = ((pkv_select_slots_fn *)kern->reference)(
        now.base, now.stride, now.first, num_slots, low, high, expected_slots, expected_tokens);
    const int64_t count = ((pkv_select_slots_fn *)kern->tested)(
        now.base, now.stride, now.first, num_slots, low, high, to_slots, to_tokens);
    if (count != expected)
        kern_fail("returned %" PRId64 ", should be %" PRId64, count, expected);
    compare_outputs("out_slots", to_slots, expected_slots, count);
    compare_outputs("out_tokens", to_tokens, expected_tokens, count);
    if (*canary_slots != canary || *canary_tokens != canary)
        kern_fail("wrote outside of the room for %" PRId64 " slots", num_slots);
}

static void check_selects(const struct kern *kern) {
    static const int64_t firsts[] = {0, 0, 1, 5, 64};
    start(kern);
    now.group = "select_slots";
    const int64_t min = type_min[now.type], max = type_max[now.type];
    for (int64_t num_slots = 0; num_slots <= MAX_SLOTS; num_slots++) {
        for (int repeat = 0; repeat < 30; repeat++) {
            const bool wild = test_rng_below(rng, 3) == 0;
            now.stride = random_stride();
            now.first = PICK(rng, firsts);
            now.num_slots = num_slots;
            /* Ranges like those of threads, of one slot, of none, and all that the type can
             * hold. */
            now.low = wild ? random_value(min, max) : test_rng_below(rng, 50);
            now.high = wild ? random_value(min, max) : test_rng_below(rng, 80);
            if (repeat == 0) {
                now.low = INT64_MIN;
                now.high = INT64_MAX;
            }
            place_entries(now.low);
            for (int64_t i = 0; i < num_slots; i++)
                set_entry(now.first + i, wild ? random_value(min, max) : random_value(-3, 60));
            run_select(kern, num_slots, now.low, now.high);
        }
    }
}

static void call_select(kern_fn *fn) {
    ((pkv_select_slots_fn *)fn)(bench_slots, 1, 0, COUNT(bench_slots), 0, 5000, bench_out[0],
                                bench_out[1]);
}

static void bench_selects(const struct kern *kern) {
    make_bench_slots(kern);
    kern_time(kern, "4096 slots, half of them chosen", COUNT(bench_slots) * type_bytes[kern->index],
              call_select);
}

const struct kern_family kern_check_slots = {
    PKV_NUM_SLOT_TYPES, check_names,  get_check, plain_check_of,
    check_checks,       bench_checks, describe};
const struct kern_family kern_select_slots = {
    PKV_NUM_SLOT_TYPES, select_names,  get_select, plain_select_of,
    check_selects,      bench_selects, describe};
