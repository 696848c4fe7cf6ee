/* SPDX-License-Identifier: MIT
 *
 * Everything that is asked of the operating system besides threads: os_linux.c answers, and is to
 * be written anew for another system.
 */
#ifndef PKV_BASE_OS_H
#define PKV_BASE_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

#endif
