/* SPDX-License-Identifier: MIT
 *
 * Memory, files and the way out for the llama example. See llama_system.h.
 */
#include "llama_system.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void llama_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("llama: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

void *llama_alloc(int64_t count, size_t element_bytes) {
    void *memory = calloc((size_t)count, element_bytes);
    if (memory == NULL) {
        llama_fail("no memory for %lld elements of %zu bytes", (long long)count, element_bytes);
    }
    return memory;
}

void llama_file_read(struct llama_file *file, const char *path) {
    FILE *stream = fopen(path, "rb");
    if (stream == NULL) {
        llama_fail("cannot open %s: %s", path, strerror(errno));
    }
    struct stat status;
    if (fstat(fileno(stream), &status) != 0 || !S_ISREG(status.st_mode)) {
        llama_fail("%s is not a regular file", path);
    }
    file->path = path;
    file->num_bytes = (int64_t)status.st_size;
    file->position = 0;
    /* One byte more, so that an empty file has memory too. */
    file->bytes = llama_alloc(file->num_bytes + 1, 1);
    if (fread(file->bytes, 1, (size_t)file->num_bytes, stream) != (size_t)file->num_bytes) {
        llama_fail("cannot read %s", path);
    }
    fclose(stream);
}

void llama_file_free(struct llama_file *file) {
    free(file->bytes);
}

const void *llama_file_take(struct llama_file *file, int64_t num_bytes, const char *what) {
    int64_t left = file->num_bytes - file->position;
    if (num_bytes > left) {
        llama_fail("%s: %s needs %lld bytes at byte %lld, but %lld are left", file->path, what,
                   (long long)num_bytes, (long long)file->position, (long long)left);
    }
    const void *taken = file->bytes + file->position;
    file->position += num_bytes;
    return taken;
}

int32_t llama_file_take_int32(struct llama_file *file, const char *what) {
    int32_t value;
    memcpy(&value, llama_file_take(file, sizeof value, what), sizeof value);
    return value;
}

const float *llama_file_take_floats(struct llama_file *file, int64_t shape0, int64_t shape1,
                                    int64_t shape2, const char *what) {
    int64_t left = (file->num_bytes - file->position) / (int64_t)sizeof(float);
    if (shape0 > left || shape1 > left / shape0 || shape2 > left / (shape0 * shape1)) {
        llama_fail("%s: %s needs [%lld, %lld, %lld] floats at byte %lld, but %lld are left",
                   file->path, what, (long long)shape0, (long long)shape1, (long long)shape2,
                   (long long)file->position, (long long)left);
    }
    return llama_file_take(file, shape0 * shape1 * shape2 * (int64_t)sizeof(float), what);
}

void llama_file_expect_end(const struct llama_file *file) {
    if (file->position != file->num_bytes) {
        llama_fail("%s: %lld bytes too long for what it says to hold", file->path,
                   (long long)(file->num_bytes - file->position));
    }
}
