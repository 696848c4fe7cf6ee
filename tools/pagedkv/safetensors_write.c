/* SPDX-License-Identifier: MIT
 *
 * Writes safetensors files, whole or not at all. Reading is in safetensors.c.
 */
#include "safetensors.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "new_file.h"

enum {
    LENGTH_BYTES = 8,
    HEADER_ALIGNMENT = 8, /* the header is padded with spaces, so that data begins aligned */
    TEXT_BYTES = 256
};

__attribute__((format(printf, 3, 4))) static int fail(char *message, size_t message_bytes,
                                                      const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, message_bytes, format, arguments);
    va_end(arguments);
    return -1;
}

/* The header as text, to be freed; NULL with a reason if it cannot be made. */
static char *make_header(const struct safetensors_tensor *tensors, size_t num_tensors,
                         char reason[TEXT_BYTES]) {
    json_t *header = json_object();
    uint64_t end = 0;
    (void)snprintf(reason, TEXT_BYTES, "out of memory for the header");
    for (size_t i = 0; i < num_tensors; i++) {
        uint64_t begin = end;
        end += tensors[i].num_bytes;
        json_t *shape = json_array();
        for (int32_t axis = 0; axis < tensors[i].ndim; axis++)
            (void)json_array_append_new(shape, json_integer(tensors[i].shape[axis]));
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensors[i].dtype_name, "shape",
                                  shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
        int twice = json_object_get(header, tensors[i].name) != NULL;
        if (twice || json_object_set_new(header, tensors[i].name, entry) != 0) {
            char name[SAFETENSORS_NAME_BYTES];
            (void)snprintf(reason, TEXT_BYTES, "tensor '%s' %s",
                           safetensors_shown(tensors[i].name, name),
                           twice ? "is there twice" : "has a name that is no UTF-8");
            json_decref(header);
            return NULL;
        }
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (text == NULL)
        return NULL;
    size_t length = strlen(text);
    size_t padded = (length + HEADER_ALIGNMENT - 1) / HEADER_ALIGNMENT * HEADER_ALIGNMENT;
    char *header_text = realloc(text, padded + 1);
    if (header_text == NULL) {
        free(text);
        return NULL;
    }
    memset(header_text + length, ' ', padded - length);
    header_text[padded] = '\0';
    return header_text;
}

static int write_all(int descriptor, const void *bytes, size_t size) {
    const uint8_t *rest = bytes;
    while (size > 0) {
        ssize_t count = write(descriptor, rest, size);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return -1;
        rest += count;
        size -= (size_t)count;
    }
    return 0;
}

static int write_file(int descriptor, const char *header, const struct safetensors_tensor *tensors,
                      size_t num_tensors) {
    uint64_t header_bytes = strlen(header);
    uint8_t length[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++)
        length[i] = (uint8_t)(header_bytes >> (8 * i));
    if (write_all(descriptor, length, LENGTH_BYTES) != 0 ||
        write_all(descriptor, header, (size_t)header_bytes) != 0)
        return -1;
    for (size_t i = 0; i < num_tensors; i++) {
        if (write_all(descriptor, tensors[i].data, (size_t)tensors[i].num_bytes) != 0)
            return -1;
    }
    return 0;
}

int safetensors_write(const char *path, const struct safetensors_tensor *tensors,
                      size_t num_tensors, char *message, size_t message_bytes) {
    char reason[TEXT_BYTES];
    char *header = make_header(tensors, num_tensors, reason);
    if (header == NULL)
        return fail(message, message_bytes, "%s: %s", path, reason);
    struct new_file file;
    const char *why = new_file_open(&file, path);
    if (why == NULL) {
        const bool is_written = write_file(file.descriptor, header, tensors, num_tensors) == 0;
        int saved = errno;
        const bool is_closed = close(file.descriptor) == 0;
        if (is_written && !is_closed)
            saved = errno;
        why = new_file_end(&file, is_written && is_closed);
        if (!is_written || !is_closed)
            why = strerror(saved);
    }
    free(header);
    return why ? fail(message, message_bytes, "%s: cannot write: %s", path, why) : 0;
}
