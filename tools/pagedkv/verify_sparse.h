/* SPDX-License-Identifier: MIT
 *
 * A cache of which only the memory around its rows exists: the published ones are larger than the
 * memory of many machines. It is divided into units of a huge page; every word of a unit that is
 * marked has a value that follows from its place, and no page of any other unit must ever come into
 * being. So every byte of the cache is checked, at the cost of the rows.
 */
#ifndef PAGEDKV_VERIFY_SPARSE_H
#define PAGEDKV_VERIFY_SPARSE_H

#include <stdint.h>

struct verify_sparse {
    unsigned char *data; /* NULL: nothing is mapped */
    int64_t bytes;
    int64_t num_units;
    unsigned char *is_marked; /* [num_units]: exists */
    int64_t page_bytes;       /* of the OS */
    unsigned char *residency; /* [bytes / page_bytes], of mincore */
    void *mapping;
    int64_t mapping_bytes;
};

/* Reserves addresses for so many bytes, and no memory. Returns 0, or -1 when the system refuses. */
int verify_sparse_map(struct verify_sparse *sparse, int64_t bytes);

/* Memory of zeroes is fine. */
void verify_sparse_unmap(struct verify_sparse *sparse);

/* Makes the units of bytes [first, first + bytes) exist. All of them before the fill. */
void verify_sparse_mark(struct verify_sparse *sparse, int64_t first, int64_t bytes);
void verify_sparse_fill(struct verify_sparse *sparse);

/* Gives bytes [first, first + bytes), of marked units, their own values again. */
void verify_sparse_restore(struct verify_sparse *sparse, int64_t first, int64_t bytes);

/* The first byte of a page that somebody has made exist, or -1. A system that does not tell which
 * pages exist never shows one. */
int64_t verify_sparse_find_stray(const struct verify_sparse *sparse);

/* The first byte of the marked units that has not its own value, and that value; -1: there is
 * none. */
int64_t verify_sparse_find_changed(const struct verify_sparse *sparse, int *expected);

/* Bytes of the marked units. */
int64_t verify_sparse_marked_bytes(const struct verify_sparse *sparse);

#endif
