/* SPDX-License-Identifier: MIT
 *
 * Intervals of integers, and whether two of many overlap: answered without memory, as the questions
 * of vector.h are.
 */
#ifndef PKV_GEOMETRY_INTERVAL_H
#define PKV_GEOMETRY_INTERVAL_H

#include <stdbool.h>
#include <stdint.h>

/* Intervals number 0 ... count - 1, the same ones at every call. Interval i has the numbers begin
 * ... end - 1; none, and then it overlaps nothing, when end <= begin. */
struct pkv_interval_list {
    const void *arg;
    int64_t count;
    /* Fills in where intervals first ... first + count - 1 begin. */
    void (*begins)(const void *arg, int64_t first, int64_t count, int64_t *begins);
    int64_t (*end)(const void *arg, int64_t i);
};

/* Whether two of the intervals share a number. If so, *earlier and *later are such a pair: the one
 * that begins first, and the one that begins inside it. Exact; needs no memory. Reads the list once
 * when its intervals come in ascending order, otherwise once more for each 2,048 of them, and then
 * hardly more than their beginnings. */
bool pkv_intervals_find_overlap(const struct pkv_interval_list *list, int64_t *earlier,
                                int64_t *later);

#endif
