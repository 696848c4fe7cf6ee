/* SPDX-License-Identifier: MIT
 *
 * Memory with a chosen kind of OS page, for bench and verify. It maps, asks what was granted and
 * unmaps; it never falls back to another kind in silence.
 */
#ifndef PAGEDKV_BENCH_MEMORY_H
#define PAGEDKV_BENCH_MEMORY_H

#include <stdint.h>

#include <pagedkv/executor.h>

enum bench_pages { BENCH_PAGES_BASE, BENCH_PAGES_HUGE };

/* "4k" (or the machine's base page) and "huge". */
const char *bench_pages_name(enum bench_pages pages);

struct bench_memory {
    unsigned char *data; /* aligned to 2 MiB; NULL: nothing is mapped */
    int64_t bytes;
    void *mapping;
    int64_t mapping_bytes;
};

/* Maps zeroed private memory and touches every page of it, with the executor's threads. Returns 0,
 * or -1 when the system has no such memory. */
int bench_memory_map(struct bench_memory *memory, int64_t bytes, enum bench_pages pages,
                     const struct pkv_executor *executor);

/* Memory of zeroes is fine. */
void bench_memory_unmap(struct bench_memory *memory);

/* Bytes of it that are backed by transparent huge pages at this moment, from /proc/self/smaps; -1
 * if the system does not tell. */
int64_t bench_memory_huge_bytes(const struct bench_memory *memory);

/* MemAvailable of /proc/meminfo in bytes; -1 if the system does not tell. */
int64_t bench_memory_available(void);

#endif
