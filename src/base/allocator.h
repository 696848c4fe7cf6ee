/* SPDX-License-Identifier: MIT
 *
 * How the library asks for memory: through the caller's struct pkv_allocator, or malloc and free.
 */
#ifndef PKV_BASE_ALLOCATOR_H
#define PKV_BASE_ALLOCATOR_H

#include <stddef.h>

#include <pagedkv/context.h>

/* The allocator to keep: a copy of the caller's; malloc and free when it is NULL or all its
 * functions are. With only one of the two functions it is unusable: the result has alloc NULL, and
 * the function that took it answers PKV_STATUS_INVALID_ARGUMENT. */
struct pkv_allocator pkv_allocator_resolve(const struct pkv_allocator *allocator);

/* Memory of at least `bytes` (0 gives a pointer too), aligned to at least `alignment`, a power of
 * two; its content is undefined. NULL when there is none. The allocator is a resolved one. */
void *pkv_alloc(const struct pkv_allocator *allocator, size_t bytes, size_t alignment);

/* NULL is fine. */
void pkv_free(const struct pkv_allocator *allocator, void *memory);

#endif
