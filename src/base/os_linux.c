/* SPDX-License-Identifier: MIT
 *
 * Linux: pages, processors, caches, the clock and random bytes.
 */
#include "base/os.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

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
