/* SPDX-License-Identifier: MIT
 *
 * The default allocator, and the rules that hold for every allocator.
 */
#include "base/allocator.h"

#include <stdlib.h>

/* posix_memalign, as aligned_alloc of C11 wants a size that is a multiple of the alignment. */
static void *default_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    void *memory = NULL;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void default_free(void *user, void *memory) {
    (void)user;
    free(memory);
}

struct pkv_allocator pkv_allocator_resolve(const struct pkv_allocator *allocator) {
    if (allocator == NULL || (allocator->alloc == NULL && allocator->free == NULL))
        return (struct pkv_allocator){default_alloc, default_free, NULL};
    if (allocator->alloc == NULL || allocator->free == NULL)
        return (struct pkv_allocator){NULL, NULL, NULL};
    return *allocator;
}

void *pkv_alloc(const struct pkv_allocator *allocator, size_t bytes, size_t alignment) {
    const size_t least = alignment > sizeof(void *) ? alignment : sizeof(void *);
    return allocator->alloc(allocator->user, bytes > 0 ? bytes : 1, least);
}

void pkv_free(const struct pkv_allocator *allocator, void *memory) {
    if (memory)
        allocator->free(allocator->user, memory);
}
