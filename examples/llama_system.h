/* SPDX-License-Identifier: MIT
 *
 * What the llama example needs from the system: memory, whole files read with every length
 * checked, and one way to end with a sentence. Nothing here knows of models or caches.
 */
#ifndef LLAMA_SYSTEM_H
#define LLAMA_SYSTEM_H

#include <stddef.h>
#include <stdint.h>

/* Prints "llama: ", the sentence and a newline to stderr, and exits with status 2. */
_Noreturn void llama_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* count elements of element_bytes each, all zero; fails instead of returning NULL, also when the
 * product does not fit. The caller frees it. */
void *llama_alloc(int64_t count, size_t element_bytes);

/* A file in memory and how far it has been read. */
struct llama_file {
    const char *path;
    unsigned char *bytes; /* [num_bytes] */
    int64_t num_bytes;
    int64_t position; /* of the next byte to take */
};

/* Reads the whole file. Fails on anything that is not a regular, readable file. */
void llama_file_read(struct llama_file *file, const char *path);

void llama_file_free(struct llama_file *file);

/* Takes the next num_bytes bytes; `what` names them when the file ends before. */
const void *llama_file_take(struct llama_file *file, int64_t num_bytes, const char *what);

/* Takes one little-endian int32. */
int32_t llama_file_take_int32(struct llama_file *file, const char *what);

/* Takes a float32 tensor [shape0, shape1, shape2], each >= 1. The product is held against what is
 * left of the file before it is formed, so it cannot overflow. */
const float *llama_file_take_floats(struct llama_file *file, int64_t shape0, int64_t shape1,
                                    int64_t shape2, const char *what);

/* Fails if bytes are left: the file does not hold what its header says. */
void llama_file_expect_end(const struct llama_file *file);

#endif
