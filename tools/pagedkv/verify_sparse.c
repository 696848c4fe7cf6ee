/* SPDX-License-Identifier: MIT
 *
 * Reserving, marking, filling and checking. See verify_sparse.h.
 */
#include "verify_sparse.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli_random.h"

enum { UNIT_BYTES = 2097152 };

int verify_sparse_map(struct verify_sparse *sparse, int64_t bytes) {
    memset(sparse, 0, sizeof(*sparse));
    sparse->num_units = (bytes + UNIT_BYTES - 1) / UNIT_BYTES;
    sparse->bytes = sparse->num_units * UNIT_BYTES;
    sparse->mapping_bytes = sparse->bytes + UNIT_BYTES;
    sparse->page_bytes = sysconf(_SC_PAGESIZE);
    sparse->is_marked = calloc((size_t)sparse->num_units, 1);
    sparse->residency = malloc((size_t)(sparse->bytes / sparse->page_bytes));
    sparse->mapping = mmap(NULL, (size_t)sparse->mapping_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sparse->mapping == MAP_FAILED || sparse->is_marked == NULL || sparse->residency == NULL) {
        verify_sparse_unmap(sparse);
        return -1;
    }
    const uintptr_t misalignment = (uintptr_t)sparse->mapping % UNIT_BYTES;
    sparse->data = (unsigned char *)sparse->mapping + (UNIT_BYTES - misalignment) % UNIT_BYTES;
    /* A kernel without transparent huge pages refuses. */
    (void)madvise(sparse->data, (size_t)sparse->bytes, MADV_HUGEPAGE);
    return 0;
}

void verify_sparse_unmap(struct verify_sparse *sparse) {
    if (sparse->mapping && sparse->mapping != MAP_FAILED)
        (void)munmap(sparse->mapping, (size_t)sparse->mapping_bytes);
    free(sparse->is_marked);
    free(sparse->residency);
    memset(sparse, 0, sizeof(*sparse));
}

void verify_sparse_mark(struct verify_sparse *sparse, int64_t first, int64_t bytes) {
    for (int64_t unit = first / UNIT_BYTES; bytes > 0 && unit <= (first + bytes - 1) / UNIT_BYTES;
         unit++)
        sparse->is_marked[unit] = 1;
}

/* The eight bytes at a multiple of eight. */
static void fill_word(unsigned char word[8], int64_t byte) {
    const uint64_t value = cli_mix((uint64_t)byte + 1);
    memcpy(word, &value, sizeof(value));
}

void verify_sparse_fill(struct verify_sparse *sparse) {
    for (int64_t unit = 0; unit < sparse->num_units; unit++) {
        const int64_t first = unit * UNIT_BYTES;
        for (int64_t i = 0; sparse->is_marked[unit] && i < UNIT_BYTES; i += 8)
            fill_word(sparse->data + first + i, first + i);
    }
}

void verify_sparse_restore(struct verify_sparse *sparse, int64_t first, int64_t bytes) {
    unsigned char word[8];
    for (int64_t byte = first; byte < first + bytes; byte++) {
        if (byte == first || byte % 8 == 0)
            fill_word(word, byte / 8 * 8);
        sparse->data[byte] = word[byte % 8];
    }
}

int64_t verify_sparse_find_stray(const struct verify_sparse *sparse) {
    if (mincore(sparse->data, (size_t)sparse->bytes, sparse->residency) != 0)
        return -1;
    for (int64_t byte = 0; byte < sparse->bytes; byte += sparse->page_bytes) {
        if ((sparse->residency[byte / sparse->page_bytes] & 1) &&
            !sparse->is_marked[byte / UNIT_BYTES])
            return byte;
    }
    return -1;
}

int64_t verify_sparse_find_changed(const struct verify_sparse *sparse, int *expected) {
    for (int64_t unit = 0; unit < sparse->num_units; unit++) {
        const int64_t first = unit * UNIT_BYTES;
        for (int64_t i = 0; sparse->is_marked[unit] && i < UNIT_BYTES; i += 8) {
            const unsigned char *found = sparse->data + first + i;
            unsigned char word[8];
            fill_word(word, first + i);
            for (int j = 0; memcmp(found, word, sizeof(word)) != 0 && j < 8; j++) {
                *expected = word[j];
                if (found[j] != word[j])
                    return first + i + j;
            }
        }
    }
    return -1;
}

int64_t verify_sparse_marked_bytes(const struct verify_sparse *sparse) {
    int64_t bytes = 0;
    for (int64_t unit = 0; unit < sparse->num_units; unit++)
        bytes += sparse->is_marked[unit] * UNIT_BYTES;
    return bytes;
}
