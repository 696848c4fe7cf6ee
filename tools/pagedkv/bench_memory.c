/* SPDX-License-Identifier: MIT
 *
 * Memory with a chosen kind of OS page. See bench_memory.h.
 */
#include "bench_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench_threads.h"

#define HUGE_PAGE_BYTES INT64_C(2097152)

const char *bench_pages_name(enum bench_pages pages) {
    if (pages == BENCH_PAGES_HUGE)
        return "huge";
    switch (sysconf(_SC_PAGESIZE)) {
    case 4096:
        return "4k";
    case 16384:
        return "16k";
    case 65536:
        return "64k";
    default:
        return "base";
    }
}

static void touch_tile(void *arg, int64_t index) {
    struct bench_memory *memory = arg;
    int64_t first = index * HUGE_PAGE_BYTES;
    int64_t rest = memory->bytes - first;
    memset(memory->data + first, 0, (size_t)(rest < HUGE_PAGE_BYTES ? rest : HUGE_PAGE_BYTES));
}

int bench_memory_map(struct bench_memory *memory, int64_t bytes, enum bench_pages pages,
                     const struct pkv_executor *executor) {
    memset(memory, 0, sizeof(*memory));
    int64_t mapping_bytes = bytes + HUGE_PAGE_BYTES;
    void *mapping = mmap(NULL, (size_t)mapping_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return -1;
    /* A kernel without transparent huge pages refuses both; what was granted is read later. */
    (void)madvise(mapping, (size_t)mapping_bytes,
                  pages == BENCH_PAGES_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    uintptr_t misalignment = (uintptr_t)mapping % HUGE_PAGE_BYTES;
    memory->mapping = mapping;
    memory->mapping_bytes = mapping_bytes;
    memory->data = (unsigned char *)mapping + (HUGE_PAGE_BYTES - misalignment) % HUGE_PAGE_BYTES;
    memory->bytes = bytes;
    bench_run_tiles(executor, touch_tile, memory, (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES);
    return 0;
}

void bench_memory_unmap(struct bench_memory *memory) {
    if (memory->mapping)
        (void)munmap(memory->mapping, (size_t)memory->mapping_bytes);
    memset(memory, 0, sizeof(*memory));
}

int64_t bench_memory_huge_bytes(const struct bench_memory *memory) {
    FILE *file = fopen("/proc/self/smaps", "r");
    if (file == NULL)
        return -1;
    /* Neighbouring mappings with the same advice are merged into one entry, so an entry may belong
     * to several of them: its share by size is what can be said. */
    uintptr_t begin = (uintptr_t)memory->mapping;
    uintptr_t end = begin + (uintptr_t)memory->mapping_bytes;
    uintptr_t first = 0, last = 0;
    double share = 0, total = 0;
    char line[512];
    while (fgets(line, sizeof(line), file)) {
        uintptr_t low, high;
        int64_t kib;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &low, &high) == 2) {
            first = low > begin ? low : begin;
            last = high < end ? high : end;
            share = last > first ? (double)(last - first) / (double)(high - low) : 0;
        } else if (sscanf(line, "AnonHugePages: %" SCNd64, &kib) == 1) {
            total += share * (double)kib * 1024;
        }
    }
    (void)fclose(file);
    return (int64_t)total;
}

int64_t bench_memory_available(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    if (file == NULL)
        return -1;
    int64_t available = -1, kib;
    char line[256];
    while (available < 0 && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "MemAvailable: %" SCNd64, &kib) == 1)
            available = kib * 1024;
    }
    (void)fclose(file);
    return available;
}
