/* SPDX-License-Identifier: MIT
 *
 * Overlap by sweeping the intervals in the order of their beginnings. They cannot be sorted where
 * they are, so each pass over the list picks the next ones of that order into a heap on the stack.
 */
#include "geometry/interval.h"

#include <stddef.h>

/* 32 KiB of stack: the heap stays in the first-level cache. */
enum { HEAP_SIZE = 2048 };

/* Beginnings read at a time. */
enum { CHUNK = 256 };

struct entry {
    int64_t begin;
    int64_t number;
};

/* Intervals that begin together go by their numbers, so that every place in the order is taken
 * once. */
static bool is_before(const struct entry *a, const struct entry *b) {
    return a->begin != b->begin ? a->begin < b->begin : a->number < b->number;
}

/* Puts `entry` into a heap of `count` entries, of which the last one in the order is first in
 * memory, at place `hole` or below it. */
static void sift_down(struct entry *heap, int64_t count, int64_t hole, struct entry entry) {
    for (int64_t child = 2 * hole + 1; child < count; child = 2 * hole + 1) {
        if (child + 1 < count && is_before(&heap[child], &heap[child + 1]))
            child++;
        if (!is_before(&entry, &heap[child]))
            break;
        heap[hole] = heap[child];
        hole = child;
    }
    heap[hole] = entry;
}

static void sift_up(struct entry *heap, int64_t hole, struct entry entry) {
    for (; hole > 0 && is_before(&heap[(hole - 1) / 2], &entry); hole = (hole - 1) / 2)
        heap[hole] = heap[(hole - 1) / 2];
    heap[hole] = entry;
}

/* The first HEAP_SIZE non-empty intervals behind `last` (NULL: of all) in the order, sorted;
 * returns how many. */
static int64_t next_entries(const struct pkv_interval_list *list, const struct entry *last,
                            struct entry heap[HEAP_SIZE]) {
    int64_t begins[CHUNK], size = 0;
    for (int64_t first = 0; first < list->count; first += CHUNK) {
        const int64_t rest = list->count - first;
        const int64_t count = rest < CHUNK ? rest : CHUNK;
        list->begins(list->arg, first, count, begins);
        for (int64_t i = 0; i < count; i++) {
            const struct entry entry = {begins[i], first + i};
            if ((last && !is_before(last, &entry)) ||
                (size == HEAP_SIZE && !is_before(&entry, &heap[0])))
                continue;
            if (list->end(list->arg, entry.number) <= entry.begin)
                continue;
            if (size < HEAP_SIZE)
                sift_up(heap, size++, entry);
            else
                sift_down(heap, size, 0, entry);
        }
    }
    for (int64_t end = size - 1; end > 0; end--) {
        const struct entry entry = heap[end];
        heap[end] = heap[0];
        sift_down(heap, end, 0, entry);
    }
    return size;
}

static bool is_ascending(const struct pkv_interval_list *list) {
    int64_t begins[CHUNK], reach = INT64_MIN;
    for (int64_t first = 0; first < list->count; first += CHUNK) {
        const int64_t rest = list->count - first;
        const int64_t count = rest < CHUNK ? rest : CHUNK;
        list->begins(list->arg, first, count, begins);
        for (int64_t i = 0; i < count; i++) {
            const int64_t end = list->end(list->arg, first + i);
            if (end <= begins[i])
                continue;
            if (begins[i] < reach)
                return false;
            reach = end;
        }
    }
    return true;
}

bool pkv_intervals_find_overlap(const struct pkv_interval_list *list, int64_t *earlier,
                                int64_t *later) {
    if (is_ascending(list))
        return false;
    struct entry heap[HEAP_SIZE], last;
    int64_t size = HEAP_SIZE, reach = INT64_MIN;
    for (bool is_first = true; size == HEAP_SIZE; is_first = false) {
        size = next_entries(list, is_first ? NULL : &last, heap);
        for (int64_t i = 0; i < size; i++) {
            if (heap[i].begin < reach) {
                *earlier = last.number;
                *later = heap[i].number;
                return true;
            }
            last = heap[i];
            reach = list->end(list->arg, last.number);
        }
    }
    return false;
}
