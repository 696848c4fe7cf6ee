/* SPDX-License-Identifier: MIT
 *
 * Guarded memory by mmap and mprotect. Small mappings are kept and used again: making one takes
 * three system calls and some page faults, and the tests make hundreds of thousands.
 */
#include "guard.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_SPARE_PAGES = 16 };

/* Lies in the first data page of a mapping that nobody uses. */
struct spare {
    struct spare *next;
};

static _Thread_local struct spare *spares[MAX_SPARE_PAGES + 1]; /* by number of data pages */

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *map_pages(size_t num_pages) {
    size_t page = page_bytes();
    unsigned char *map =
        mmap(NULL, (num_pages + 2) * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED || mprotect(map + page, num_pages * page, PROT_READ | PROT_WRITE) != 0) {
        perror("test_guard_make");
        exit(1);
    }
    return map + page;
}

struct test_guard test_guard_make(size_t bytes, enum test_guard_side side) {
    size_t page = page_bytes();
    size_t num_pages = bytes > 0 ? (bytes + page - 1) / page : 1;
    struct test_guard guard = {.bytes = bytes, .num_pages = num_pages};
    struct spare *spare = num_pages <= MAX_SPARE_PAGES ? spares[num_pages] : NULL;

    if (spare != NULL) {
        spares[num_pages] = spare->next;
        guard.first_page = spare;
        memset(guard.first_page, 0, num_pages * page);
    } else {
        guard.first_page = map_pages(num_pages);
    }
    guard.data =
        (unsigned char *)guard.first_page + (side == TEST_GUARD_END ? num_pages * page - bytes : 0);
    return guard;
}

void test_guard_free(struct test_guard *guard) {
    size_t page = page_bytes();
    struct spare *spare = guard->first_page;

    if (spare != NULL && guard->num_pages > MAX_SPARE_PAGES) {
        munmap((unsigned char *)guard->first_page - page, (guard->num_pages + 2) * page);
    } else if (spare != NULL) {
        if (guard->is_protected &&
            mprotect(spare, guard->num_pages * page, PROT_READ | PROT_WRITE) != 0) {
            perror("test_guard_free");
            exit(1);
        }
        spare->next = spares[guard->num_pages];
        spares[guard->num_pages] = spare;
    }
    *guard = (struct test_guard){0};
}

void test_guard_protect(struct test_guard *guard) {
    if (mprotect(guard->first_page, guard->num_pages * page_bytes(), PROT_READ) != 0) {
        perror("test_guard_protect");
        exit(1);
    }
    guard->is_protected = 1;
}
