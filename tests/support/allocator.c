/* SPDX-License-Identifier: MIT
 *
 * Each allocation is preceded by a header that names its owner, so that a foreign or a double free
 * is noticed.
 */
#include "allocator.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t magic = UINT64_C(0x70616765646b7621);

struct header {
    struct test_allocator *owner;
    uint64_t magic;
    size_t offset; /* from the start of the allocation to the user's memory */
};

static void *counting_alloc(void *user, size_t bytes, size_t alignment) {
    struct test_allocator *allocator = user;
    size_t offset;
    unsigned char *memory;
    struct header header;

    allocator->num_calls++;
    if (alignment < sizeof(void *) || (alignment & (alignment - 1)) != 0) {
        allocator->num_bad++;
        return NULL;
    }
    if (allocator->num_calls == allocator->fail_at) {
        return NULL;
    }
    offset = (sizeof(struct header) + alignment - 1) / alignment * alignment;
    memory = aligned_alloc(alignment, (offset + bytes + alignment - 1) / alignment * alignment);
    if (memory == NULL) {
        return NULL;
    }
    /* What an allocation holds is nobody's business: garbage finds reads of unset fields. */
    memset(memory + offset, 0xa5, bytes);
    header = (struct header){.owner = allocator, .magic = magic, .offset = offset};
    memcpy(memory + offset - sizeof(header), &header, sizeof(header));
    allocator->num_live++;
    return memory + offset;
}

static void counting_free(void *user, void *memory) {
    struct test_allocator *allocator = user;
    unsigned char *at = memory;
    struct header header;

    if (memory == NULL) {
        return;
    }
    memcpy(&header, at - sizeof(header), sizeof(header));
    if (header.owner != allocator || header.magic != magic) {
        allocator->num_bad++;
        return;
    }
    memset(at - sizeof(header), 0, sizeof(header));
    allocator->num_live--;
    free(at - header.offset);
}

struct pkv_allocator test_allocator_hook(struct test_allocator *allocator) {
    return (struct pkv_allocator){
        .alloc = counting_alloc, .free = counting_free, .user = allocator};
}
