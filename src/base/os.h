/* SPDX-License-Identifier: MIT
 *
 * Everything that is asked of the operating system besides threads: os_linux.c answers, and is to be
 * written anew for another system.
 */
#ifndef PKV_BASE_OS_H
#define PKV_BASE_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pagedkv/status.h>

/* Bytes of an OS page. */
int64_t pkv_os_page_bytes(void);

/* Processors that this process may run on; at least 1. */
int32_t pkv_os_num_cpus(void);

/* Bytes of the data cache of level 1, 2 or 3; 0 when the system does not tell. */
int64_t pkv_os_cache_bytes(int32_t level);

/* A clock that never goes back, in nanoseconds from an arbitrary start. */
int64_t pkv_os_now_ns(void);

/* Fills memory with unpredictable bytes, at most 256; false when the system refuses. */
bool pkv_os_random(void *memory, size_t bytes);

/* Bytes of a huge OS page where ordinary ones have 4 KiB, and the alignment of memory that is to
 * have them. */
#define PKV_OS_HUGE_PAGE_BYTES (INT64_C(2) << 20)

/* Zeroed memory straight from the system, in whole OS pages.
 *
 * memory   out; hand it to pkv_os_unmap with the same bytes
 * bytes    1 or more
 * huge     ask for huge pages, and align to them. A wish: a system that has none, or has them
 *          switched off, gives ordinary pages and the call succeeds; the part behind the last whole
 *          huge page always has ordinary ones
 * error    nullable; speaks in the name of `function`
 * errors   INVALID_ARGUMENT (bytes), OVERFLOW (bytes), OUT_OF_MEMORY
 */
PKV_MUST_USE enum pkv_status pkv_os_map(void **memory, int64_t bytes, bool huge,
                                        const char *function, struct pkv_error *error);

/* NULL is fine. */
void pkv_os_unmap(void *memory, int64_t bytes);

#endif
