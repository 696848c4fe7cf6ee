/* SPDX-License-Identifier: MIT
 *
 * Finds and reads test data: numbers from other implementations, in the folder that
 * PAGEDKV_TEST_DATA names, or ../shared beside the source tree.
 */
#ifndef PAGEDKV_TESTS_DATA_H
#define PAGEDKV_TESTS_DATA_H

#include <stddef.h>
#include <stdint.h>

#define TEST_MAX_DIMS 8

/* One file of a manifest: which case it belongs to, what it is, how to read it. */
struct test_record {
    char *text;       /* the line, cut into the fields below */
    const char *test; /* name of the case */
    const char *kind; /* "op", "attr", "in", "out" */
    const char *name; /* of the tensor, without its index; of the attribute */
    const char *type; /* dtype, or the attribute's value */
    const char *file;
    int32_t ndim;
    int64_t shape[TEST_MAX_DIMS];
};

struct test_manifest {
    int64_t num_records;
    struct test_record *records;
};

/* Ends the program with 77, which CTest takes for skipped, and says why, when the folder is not
 * there. */
void test_data_require(const char *folder);

/* Writes the path of a file below the test data into path. */
void test_data_path(char *path, size_t path_bytes, const char *folder, const char *file);

/* The whole file in fresh memory (free it), aligned for any element; NULL if it cannot be read. */
void *test_data_read(const char *folder, const char *file, size_t *bytes);

/* Reads folder/manifest.tsv. Returns 1, or 0 if there is none; ends the program if it is not one.
 */
int test_manifest_read(struct test_manifest *manifest, const char *folder);
void test_manifest_free(struct test_manifest *manifest);

/* The record of that case, kind and name; NULL if there is none. */
const struct test_record *test_manifest_find(const struct test_manifest *manifest, const char *test,
                                             const char *kind, const char *name);

#endif
