/* SPDX-License-Identifier: MIT
 *
 * Linux: pages, processors, caches, the clock and anonymous memory.
 */
#include "base/os.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"

int64_t pkv_os_page_bytes(void) {
    return sysconf(_SC_PAGESIZE);
}

int32_t pkv_os_num_cpus(void) {
    cpu_set_t set;
    /* Fails on machines with more processors than the set has room for (1024). */
    const long count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                                    : sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : (int32_t)count;
}

int64_t pkv_os_cache_bytes(int32_t level) {
    static const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE,
                                _SC_LEVEL3_CACHE_SIZE};
    const long bytes = level >= 1 && level <= 3 ? sysconf(names[level - 1]) : 0;
    return bytes < 0 ? 0 : bytes;
}

int64_t pkv_os_now_ns(void) {
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

bool pkv_os_random(void *memory, size_t bytes) {
    return getentropy(memory, bytes) == 0;
}

/* bytes in whole OS pages; false when that does not fit. */
static bool round_up_to_pages(int64_t bytes, int64_t *rounded) {
    const int64_t page_bytes = pkv_os_page_bytes();
    if (!pkv_checked_add(bytes, page_bytes - 1, rounded))
        return false;
    *rounded -= *rounded % page_bytes;
    return true;
}

enum pkv_status pkv_os_map(void **memory, int64_t bytes, bool huge, const char *function,
                           struct pkv_error *error) {
    if (bytes < 1)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "bytes", PKV_ERROR_NONE,
                             bytes, 1, "must be at least");
    /* mmap aligns to an OS page only: map one huge page more and give back what is left over. */
    const int64_t spare = huge ? PKV_OS_HUGE_PAGE_BYTES : 0;
    int64_t length, map_bytes;
    if (!round_up_to_pages(bytes, &length) || !pkv_checked_add(length, spare, &map_bytes))
        return pkv_error_set(error, PKV_STATUS_OVERFLOW, function, "bytes", PKV_ERROR_NONE, bytes,
                             PKV_ERROR_NONE, "must leave room for rounding up to OS pages");
    void *map =
        mmap(NULL, (size_t)map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return pkv_error_set(error, PKV_STATUS_OUT_OF_MEMORY, function, "bytes", PKV_ERROR_NONE,
                             bytes, PKV_ERROR_NONE, "must be no more than the system gives");
    unsigned char *start = map;
    if (huge) {
        const int64_t past = (int64_t)((uintptr_t)map % (uintptr_t)PKV_OS_HUGE_PAGE_BYTES);
        const int64_t before = past == 0 ? 0 : PKV_OS_HUGE_PAGE_BYTES - past;
        start += before;
        if (before > 0)
            (void)munmap(map, (size_t)before);
        if (spare > before)
            (void)munmap(start + length, (size_t)(spare - before));
        (void)madvise(start, (size_t)length, MADV_HUGEPAGE);
    }
    *memory = start;
    return PKV_STATUS_OK;
}

void pkv_os_unmap(void *memory, int64_t bytes) {
    int64_t length;
    if (memory && round_up_to_pages(bytes, &length))
        (void)munmap(memory, (size_t)length);
}
