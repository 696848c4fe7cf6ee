/* SPDX-License-Identifier: MIT
 *
 * st_tool: makes and prints safetensors files, so that the tests of the command line need no other
 * language.
 *
 *   st_tool make FILE < TEXT     one tensor a line: NAME DTYPE SHAPE VALUE ..., as in
 *                                "slots I32 2,3 7 1*3 4..5"; SHAPE "-" has no dimension
 *   st_tool dump FILE            the same text, in the order of the data
 *   st_tool raw FILE LENGTH HEADER DATA_BYTES
 *                                any bytes: LENGTH is what the file says of its header ("auto": the
 *                                truth), HEADER a text ("-": from stdin), zeroes follow
 *
 * Values are integers: signed ones of I8 to I64, bit patterns of every other dtype.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors.h"

enum { MAX_TENSORS = 16, MAX_TEXT = 1 << 20 };

static _Noreturn void die(const char *what, const char *which) {
    fprintf(stderr, "st_tool: %s: %s\n", what, which);
    exit(2);
}

static bool is_signed(const char *dtype_name) {
    return dtype_name[0] == 'I';
}

static void put(uint8_t *to, int64_t value, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)((uint64_t)value >> (8 * i));
}

/* "7", "7*3" or "7..9", into at most room elements; returns how many. */
static int64_t read_values(const char *word, uint8_t *to, int64_t room, int64_t bytes) {
    char *end = NULL;
    int64_t first = strtoll(word, &end, 0);
    int64_t count = 1, step = 0;
    if (*end == '*') {
        count = strtoll(end + 1, &end, 0);
    } else if (strncmp(end, "..", 2) == 0) {
        count = strtoll(end + 2, &end, 0) - first + 1;
        step = 1;
    }
    if (*end != '\0' || count < 0 || count > room)
        die("no value, or more than the shape holds", word);
    for (int64_t i = 0; i < count; i++)
        put(to + i * bytes, first + i * step, bytes);
    return count;
}

static void read_tensor(char *line, struct safetensors_tensor *tensor) {
    char *state = NULL;
    tensor->name = strtok_r(line, " ", &state);
    const char *dtype = strtok_r(NULL, " ", &state);
    char *shape = strtok_r(NULL, " ", &state);
    if (shape == NULL)
        die("needs NAME DTYPE SHAPE", tensor->name);
    const int64_t bytes = safetensors_set_dtype(tensor, dtype);
    if (bytes == 0)
        die("unknown dtype", dtype);
    int64_t room = 1;
    for (char *rest = shape; *rest != '\0' && strcmp(shape, "-") != 0;) {
        if (tensor->ndim == PKV_MAX_DIMS)
            die("too many dimensions", tensor->name);
        const int64_t dimension = strtoll(rest, &rest, 10);
        if (dimension < 0 || dimension > MAX_TEXT)
            die("bad dimension", tensor->name);
        tensor->shape[tensor->ndim++] = dimension;
        room *= dimension;
        if (room > MAX_TEXT)
            die("too large", tensor->name);
        rest += *rest == ',';
    }
    tensor->num_bytes = (uint64_t)(room * bytes);
    uint8_t *data = calloc((size_t)room + 1, (size_t)bytes);
    if (data == NULL)
        die("out of memory", tensor->name);
    int64_t done = 0;
    for (const char *word; (word = strtok_r(NULL, " ", &state)) != NULL;)
        done += read_values(word, data + done * bytes, room - done, bytes);
    if (done != room)
        die("fewer values than the shape holds", tensor->name);
    tensor->data = data;
}

static int make(const char *path) {
    struct safetensors_tensor tensors[MAX_TENSORS];
    size_t num_tensors = 0;
    static char text[MAX_TEXT];
    char message[SAFETENSORS_MESSAGE_BYTES];
    memset(tensors, 0, sizeof(tensors));
    const size_t length = fread(text, 1, sizeof(text) - 1, stdin);
    text[length] = '\0';
    char *state = NULL;
    for (char *line = strtok_r(text, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
        if (num_tensors == MAX_TENSORS)
            die("too many tensors", path);
        read_tensor(line, &tensors[num_tensors++]);
    }
    const int failed = safetensors_write(path, tensors, num_tensors, message, sizeof(message));
    for (size_t i = 0; i < num_tensors; i++)
        free((void *)tensors[i].data);
    if (failed)
        die("cannot write", message);
    return 0;
}

static void dump_value(const struct safetensors_tensor *tensor, int64_t i, int64_t bytes) {
    const uint8_t *from = (const uint8_t *)tensor->data + i * bytes;
    uint64_t value = 0;
    for (int64_t byte = bytes - 1; byte >= 0; byte--)
        value = value << 8 | from[byte];
    const int unused = 64 - 8 * (int)bytes;
    if (is_signed(tensor->dtype_name))
        printf(" %" PRId64, (int64_t)(value << unused) >> unused);
    else
        printf(" %" PRIu64, value);
}

static int dump(const char *path) {
    struct safetensors file;
    char message[SAFETENSORS_MESSAGE_BYTES];
    if (safetensors_read(path, &file, message, sizeof(message)) != 0)
        die("cannot read", message);
    for (size_t i = 0; i < file.num_tensors; i++) {
        struct safetensors_tensor *tensor = &file.tensors[i];
        const int64_t bytes = safetensors_set_dtype(tensor, tensor->dtype_name);
        printf("%s %s %s", tensor->name, tensor->dtype_name, tensor->ndim == 0 ? "-" : "");
        for (int32_t axis = 0; axis < tensor->ndim; axis++)
            printf("%s%" PRId64, axis == 0 ? "" : ",", tensor->shape[axis]);
        for (int64_t element = 0; element < (int64_t)tensor->num_bytes / bytes; element++)
            dump_value(tensor, element, bytes);
        putchar('\n');
    }
    safetensors_free(&file);
    return 0;
}

static int raw(const char *path, const char *length, const char *header, const char *data_bytes) {
    static char text[MAX_TEXT];
    size_t header_bytes = strlen(header);
    if (strcmp(header, "-") == 0) {
        header_bytes = fread(text, 1, sizeof(text), stdin);
        header = text;
    }
    const uint64_t said = strcmp(length, "auto") == 0 ? header_bytes : strtoull(length, NULL, 0);
    uint8_t prefix[8];
    put(prefix, (int64_t)said, sizeof(prefix));
    FILE *stream = fopen(path, "wb");
    if (stream == NULL)
        die("cannot open", path);
    (void)fwrite(prefix, 1, sizeof(prefix), stream);
    (void)fwrite(header, 1, header_bytes, stream);
    for (uint64_t i = strtoull(data_bytes, NULL, 0); i > 0; i--)
        (void)fputc(0, stream);
    if (fclose(stream) != 0)
        die("cannot write", path);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "make") == 0)
        return make(argv[2]);
    if (argc == 3 && strcmp(argv[1], "dump") == 0)
        return dump(argv[2]);
    if (argc == 6 && strcmp(argv[1], "raw") == 0)
        return raw(argv[2], argv[3], argv[4], argv[5]);
    die("usage", "st_tool make FILE | dump FILE | raw FILE LENGTH HEADER DATA_BYTES");
}
