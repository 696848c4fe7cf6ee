/* SPDX-License-Identifier: MIT
 *
 * Vectors of indices, and set questions about them without allocating: the numbers are divided into
 * classes by a hash, small enough for a table on the stack, and each class has a pass of its own.
 */
#include "geometry/vector.h"

#include <string.h>

struct pkv_vector pkv_vector_offset(const struct pkv_vector *vector, int64_t elements) {
    struct pkv_vector moved = *vector;
    moved.data = (const char *)vector->data + elements * pkv_dtype_bytes(vector->dtype);
    return moved;
}

/* Adjacent int32 are compared many at a time: loops without a branch become vector instructions. */
enum { COMPARED_AT_ONCE = 64 };

static bool all_inside(const int32_t *numbers, uint32_t bound) {
    uint32_t outside = 0;
    for (int i = 0; i < COMPARED_AT_ONCE; i++)
        outside |= (uint32_t)numbers[i] >= bound;
    return outside == 0;
}

int64_t pkv_vector_find_outside(const struct pkv_vector *vector, int64_t first, int64_t end,
                                int64_t bound) {
    int64_t i = first;
    if (vector->dtype == PKV_DTYPE_I32 && vector->stride == 1) {
        const int32_t *numbers = vector->data;
        const uint32_t limit = bound > INT32_MAX ? (uint32_t)INT32_MAX + 1 : (uint32_t)bound;
        while (end - i >= COMPARED_AT_ONCE && all_inside(numbers + i, limit))
            i += COMPARED_AT_ONCE;
    }
    for (; i < end; i++) {
        const int64_t number = pkv_vector_at(vector, i);
        if (number < 0 || number >= bound)
            break;
    }
    return i;
}

struct pkv_strided pkv_vector_bytes(const struct pkv_vector *vector) {
    const int64_t element_bytes = pkv_dtype_bytes(vector->dtype);
    struct pkv_strided set = pkv_strided_bytes(vector->data, element_bytes);
    pkv_strided_add(&set, vector->count, vector->stride * element_bytes);
    return set;
}

/* A table of 4096 entries is 32 KiB of stack and stays in the first-level cache; classes of half
 * that size keep its chains short. */
enum { TABLE_BITS = 12, TABLE_SIZE = 1 << TABLE_BITS, CLASS_SIZE = TABLE_SIZE / 2 };

struct table {
    int64_t number[TABLE_SIZE]; /* -1: free */
    int64_t count;
};

/* A bijection (the finalizer of SplitMix64), so that distinct numbers part when classes get
 * finer. */
static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The place of a number in the table: where it is, or where it would go. */
static int64_t *find(struct table *table, int64_t number, uint64_t hash) {
    uint64_t at = hash & (TABLE_SIZE - 1);
    while (table->number[at] != -1 && table->number[at] != number)
        at = (at + 1) & (TABLE_SIZE - 1);
    return &table->number[at];
}

enum { PASS_NOTHING = -1, PASS_FULL = -2 };

/* What is looked for: an entry of members that repeats one before it, or (with probes) a probe that
 * is a member. */
struct search {
    const struct pkv_vector *members;
    const struct pkv_vector *probes;
    bool (*keeps)(const void *user, int64_t i); /* nullable: all members count */
    const void *user;
};

/* One class: returns what is found, PASS_NOTHING if there is none, PASS_FULL if the class does not
 * fit. */
static int64_t pass(struct table *table, const struct search *search, uint64_t num_classes,
                    uint64_t class) {
    const struct pkv_vector *members = search->members, *probes = search->probes;
    memset(table->number, -1, sizeof(table->number));
    table->count = 0;
    for (int64_t i = 0; i < members->count; i++) {
        const int64_t number = pkv_vector_at(members, i);
        const uint64_t hash = mix((uint64_t)number);
        if (number < 0 || ((hash >> TABLE_BITS) & (num_classes - 1)) != class)
            continue;
        if (search->keeps && !search->keeps(search->user, i))
            continue;
        int64_t *place = find(table, number, hash);
        if (*place == number && probes == NULL)
            return i;
        if (*place == -1 && table->count++ == TABLE_SIZE - 1)
            return PASS_FULL;
        *place = number;
    }
    for (int64_t i = 0; probes && i < probes->count; i++) {
        const int64_t number = pkv_vector_at(probes, i);
        const uint64_t hash = mix((uint64_t)number);
        if (number >= 0 && ((hash >> TABLE_BITS) & (num_classes - 1)) == class &&
            *find(table, number, hash) == number)
            return i;
    }
    return PASS_NOTHING;
}

static int64_t find_in_classes(const struct search *search) {
    struct table table;
    uint64_t num_classes = 1;
    while ((int64_t)num_classes * CLASS_SIZE < search->members->count)
        num_classes *= 2;
    for (uint64_t class = 0; class < num_classes;) {
        const int64_t found = pass(&table, search, num_classes, class);
        if (found >= 0)
            return found;
        if (found == PASS_FULL) {
            /* Entries may gather in one class; the finer classes of those done have nothing
             * either. */
            num_classes *= 2;
            class = 0;
            continue;
        }
        class ++;
    }
    return -1;
}

int64_t pkv_vector_find_repeat(const struct pkv_vector *vector) {
    return find_in_classes(&(struct search){.members = vector});
}

int64_t pkv_vector_find_repeat_among(const struct pkv_vector *vector,
                                     bool (*keeps)(const void *user, int64_t i), const void *user) {
    return find_in_classes(&(struct search){.members = vector, .keeps = keeps, .user = user});
}

int64_t pkv_vector_find_common(const struct pkv_vector *members, const struct pkv_vector *probes) {
    return find_in_classes(&(struct search){.members = members, .probes = probes});
}
