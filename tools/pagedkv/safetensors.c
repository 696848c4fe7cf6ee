/* SPDX-License-Identifier: MIT
 *
 * Reads safetensors files, every byte of which may be hostile. The JSON is jansson's business
 * (depth, UTF-8, duplicate names); types, shapes and offsets are checked here. Writing is in
 * safetensors_write.c.
 */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

enum {
    LENGTH_BYTES = 8, /* of the header's length, in front of the header */
    ALIGNMENT = 64,
    /* A JSON value takes two bytes in a header and up to a hundred in memory. A tensor takes about
     * a dozen separators, so this is room for 300,000 tensors and bounds the memory. */
    MAX_SEPARATORS = 4000000
};

static const struct dtype {
    const char *name;
    int32_t dtype;
    int64_t bytes;
} dtypes[] = {
    {"BF16", PKV_DTYPE_BF16, 2},         {"F16", PKV_DTYPE_F16, 2},
    {"F32", PKV_DTYPE_F32, 4},           {"I8", PKV_DTYPE_I8, 1},
    {"I16", PKV_DTYPE_I16, 2},           {"I32", PKV_DTYPE_I32, 4},
    {"I64", PKV_DTYPE_I64, 8},           {"U8", PKV_DTYPE_U8, 1},
    {"U16", PKV_DTYPE_U16, 2},           {"U32", PKV_DTYPE_U32, 4},
    {"F8_E4M3", PKV_DTYPE_F8_E4M3FN, 1}, {"F8_E5M2", PKV_DTYPE_F8_E5M2, 1},
    {"BOOL", PKV_DTYPE_BOOL, 1},         {"F64", PKV_DTYPE_INVALID, 8},
    {"U64", PKV_DTYPE_INVALID, 8},
};

enum { NUM_DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

const char *safetensors_dtype_name(int32_t dtype) {
    if (dtype == PKV_DTYPE_HIFLOAT8)
        return "U8";
    for (int i = 0; i < NUM_DTYPES; i++) {
        if (dtypes[i].dtype == dtype && dtype != PKV_DTYPE_INVALID)
            return dtypes[i].name;
    }
    return NULL;
}

int64_t safetensors_set_dtype(struct safetensors_tensor *tensor, const char *dtype_name) {
    for (int i = 0; i < NUM_DTYPES; i++) {
        if (strcmp(dtypes[i].name, dtype_name) == 0) {
            tensor->dtype = dtypes[i].dtype;
            tensor->dtype_name = dtypes[i].name;
            return dtypes[i].bytes;
        }
    }
    return 0;
}

struct parser {
    char *message;
    size_t message_bytes;
    uint64_t data_bytes;
    const uint8_t *data;
};

__attribute__((format(printf, 2, 3))) static int fail(const struct parser *parser,
                                                      const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(parser->message, parser->message_bytes, format, arguments);
    va_end(arguments);
    return -1;
}

const char *safetensors_shown(const char *name, char text[SAFETENSORS_NAME_BYTES]) {
    const size_t length = strlen(name);
    const size_t end = length < SAFETENSORS_NAME_BYTES ? length : SAFETENSORS_NAME_BYTES - 4;
    for (size_t i = 0; i < end; i++)
        text[i] = '!' <= name[i] && name[i] <= '~' ? name[i] : name[i] == ' ' ? ' ' : '?';
    memcpy(text + end, "...", end < length ? 4 : 0);
    if (end == length)
        text[end] = '\0';
    return text;
}

static int fail_tensor(const struct parser *parser, const char *name, const char *what) {
    char text[SAFETENSORS_NAME_BYTES];
    return fail(parser, "tensor '%s': %s", safetensors_shown(name, text), what);
}

static bool too_many_values(const char *header, size_t size) {
    int64_t separators = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = header[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == ',' || c == ':' || c == '[' || c == '{'))
            separators++;
    }
    return separators > MAX_SEPARATORS;
}

/* Reads the shape and returns the bytes that it needs, or -1. */
static int64_t parse_shape(const struct parser *parser, struct safetensors_tensor *tensor,
                           const json_t *shape, int64_t element_bytes) {
    char text[SAFETENSORS_NAME_BYTES];
    if (!json_is_array(shape))
        return fail_tensor(parser, tensor->name, "shape is missing or no list");
    if (json_array_size(shape) > PKV_MAX_DIMS)
        return fail(parser, "tensor '%s': shape has %zu dimensions, more than %d",
                    safetensors_shown(tensor->name, text), json_array_size(shape), PKV_MAX_DIMS);
    tensor->ndim = (int32_t)json_array_size(shape);
    bool empty = false;
    int64_t bytes = element_bytes;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        const json_t *dimension = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dimension))
            return fail(parser, "tensor '%s': shape[%d] is no integer",
                        safetensors_shown(tensor->name, text), (int)i);
        if (json_integer_value(dimension) < 0)
            return fail(parser, "tensor '%s': shape[%d] is %lld, but must be at least 0",
                        safetensors_shown(tensor->name, text), (int)i,
                        (long long)json_integer_value(dimension));
        tensor->shape[i] = json_integer_value(dimension);
        empty = empty || tensor->shape[i] == 0;
    }
    for (int32_t i = 0; i < tensor->ndim && !empty; i++) {
        if (tensor->shape[i] > INT64_MAX / bytes)
            return fail(
                parser,
                "tensor '%s': shape times element size is beyond 2^63 - 1 at shape[%d], %lld",
                safetensors_shown(tensor->name, text), (int)i, (long long)tensor->shape[i]);
        bytes *= tensor->shape[i];
    }
    return empty ? 0 : bytes;
}

static int parse_offsets(const struct parser *parser, struct safetensors_tensor *tensor,
                         const json_t *offsets, int64_t shape_bytes) {
    const json_t *first = json_array_get(offsets, 0);
    const json_t *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return fail_tensor(parser, tensor->name, "data_offsets is no pair of integers");
    int64_t begin = json_integer_value(first);
    int64_t end = json_integer_value(last);
    char text[SAFETENSORS_NAME_BYTES];
    if (begin < 0 || end < begin)
        return fail(parser, "tensor '%s': data_offsets [%lld, %lld] are negative or reversed",
                    safetensors_shown(tensor->name, text), (long long)begin, (long long)end);
    if ((uint64_t)end > parser->data_bytes)
        return fail(parser,
                    "tensor '%s': data_offsets [%lld, %lld] end beyond the %llu bytes of data",
                    safetensors_shown(tensor->name, text), (long long)begin, (long long)end,
                    (unsigned long long)parser->data_bytes);
    if (end - begin != shape_bytes)
        return fail(parser, "tensor '%s': dtype and shape need %lld bytes, data_offsets span %lld",
                    safetensors_shown(tensor->name, text), (long long)shape_bytes,
                    (long long)(end - begin));
    tensor->data = parser->data + begin;
    tensor->num_bytes = (uint64_t)(end - begin);
    return 0;
}

static int parse_tensor(const struct parser *parser, struct safetensors_tensor *tensor,
                        const char *name, const json_t *entry) {
    tensor->name = name;
    if (!json_is_object(entry))
        return fail_tensor(parser, name, "its entry in the header is no object");
    const json_t *dtype = json_object_get(entry, "dtype");
    if (!json_is_string(dtype))
        return fail_tensor(parser, name, "dtype is missing or no string");
    int64_t element_bytes = safetensors_set_dtype(tensor, json_string_value(dtype));
    char text[SAFETENSORS_NAME_BYTES], unknown[SAFETENSORS_NAME_BYTES];
    if (element_bytes == 0)
        return fail(parser, "tensor '%s': unknown dtype '%s'", safetensors_shown(name, text),
                    safetensors_shown(json_string_value(dtype), unknown));
    int64_t shape_bytes =
        parse_shape(parser, tensor, json_object_get(entry, "shape"), element_bytes);
    if (shape_bytes < 0)
        return -1;
    if (parse_offsets(parser, tensor, json_object_get(entry, "data_offsets"), shape_bytes) != 0)
        return -1;
    if (json_object_size(entry) != 3)
        return fail_tensor(parser, name, "its entry holds more than dtype, shape and data_offsets");
    return 0;
}

static int parse_metadata(const struct parser *parser, const json_t *metadata) {
    const char *key;
    json_t *value;
    char text[SAFETENSORS_NAME_BYTES];
    if (!json_is_object(metadata))
        return fail(parser, "__metadata__ is no object");
    json_object_foreach((json_t *)metadata, key, value) {
        if (!json_is_string(value))
            return fail(parser, "__metadata__: '%s' is no string", safetensors_shown(key, text));
    }
    return 0;
}

static int by_data(const void *left, const void *right) {
    const struct safetensors_tensor *a = left;
    const struct safetensors_tensor *b = right;
    if (a->data != b->data)
        return (const uint8_t *)a->data < (const uint8_t *)b->data ? -1 : 1;
    return (a->num_bytes > b->num_bytes) - (a->num_bytes < b->num_bytes);
}

/* The tensors must lie one behind the other and fill the data. */
static int check_cover(const struct parser *parser, const struct safetensors *out) {
    const uint8_t *end = parser->data;
    char text[SAFETENSORS_NAME_BYTES];
    for (size_t i = 0; i < out->num_tensors; i++) {
        const struct safetensors_tensor *tensor = &out->tensors[i];
        const uint8_t *begin = tensor->data;
        if (begin < end)
            return fail(parser, "tensor '%s': its data overlaps that of another tensor",
                        safetensors_shown(tensor->name, text));
        if (begin > end)
            return fail(parser, "tensor '%s': %lld bytes in front of its data belong to no tensor",
                        safetensors_shown(tensor->name, text), (long long)(begin - end));
        end = begin + tensor->num_bytes;
    }
    uint64_t rest = parser->data_bytes - (uint64_t)(end - parser->data);
    if (rest > 0)
        return fail(parser, "the last %llu bytes belong to no tensor", (unsigned long long)rest);
    return 0;
}

static int parse_header(const struct parser *parser, json_t *header, struct safetensors *out) {
    const char *name;
    json_t *entry;
    if (!json_is_object(header))
        return fail(parser, "the header is no JSON object");
    size_t room = json_object_size(header);
    out->tensors = calloc(room > 0 ? room : 1, sizeof(*out->tensors));
    if (out->tensors == NULL)
        return fail(parser, "out of memory for %zu tensors", room);
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) {
            if (parse_metadata(parser, entry) != 0)
                return -1;
        } else if (parse_tensor(parser, &out->tensors[out->num_tensors++], name, entry) != 0) {
            return -1;
        }
    }
    qsort(out->tensors, out->num_tensors, sizeof(*out->tensors), by_data);
    return check_cover(parser, out);
}

int safetensors_parse(const void *bytes, size_t size, struct safetensors *out, char *message,
                      size_t message_bytes) {
    struct parser parser = {.message = message, .message_bytes = message_bytes};
    memset(out, 0, sizeof(*out));
    if (size < LENGTH_BYTES)
        return fail(&parser, "%zu bytes are too few for a safetensors file", size);
    const uint8_t *file = bytes;
    uint64_t header_bytes = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        header_bytes = header_bytes << 8 | file[i];
    if (header_bytes > SAFETENSORS_MAX_HEADER_BYTES)
        return fail(&parser, "the header is said to have %llu bytes, more than the %d allowed",
                    (unsigned long long)header_bytes, SAFETENSORS_MAX_HEADER_BYTES);
    if (header_bytes > size - LENGTH_BYTES)
        return fail(&parser, "truncated: the header is said to have %llu bytes, %zu are left",
                    (unsigned long long)header_bytes, size - LENGTH_BYTES);
    const char *header = (const char *)file + LENGTH_BYTES;
    if (too_many_values(header, (size_t)header_bytes))
        return fail(&parser, "the header holds more than %d values", MAX_SEPARATORS);

    json_error_t error;
    json_t *json = json_loadb(header, (size_t)header_bytes, JSON_REJECT_DUPLICATES, &error);
    char text[SAFETENSORS_NAME_BYTES];
    if (json == NULL)
        return fail(&parser, "the header is no valid JSON: %s, at byte %d",
                    safetensors_shown(error.text, text), error.position);
    out->header = json;
    parser.data = file + LENGTH_BYTES + header_bytes;
    parser.data_bytes = size - LENGTH_BYTES - header_bytes;
    return parse_header(&parser, json, out);
}

static int read_all(int descriptor, uint8_t *bytes, size_t size) {
    size_t done = 0;
    while (done < size) {
        ssize_t count = read(descriptor, bytes + done, size - done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return -1;
        done += (size_t)count;
    }
    return 0;
}

/* Reads the file so that the byte behind its header lies at a multiple of ALIGNMENT. */
static const uint8_t *read_open_file(int descriptor, size_t size, struct safetensors *out) {
    uint8_t length[LENGTH_BYTES] = {0};
    if (size >= LENGTH_BYTES && pread(descriptor, length, LENGTH_BYTES, 0) != (ssize_t)LENGTH_BYTES)
        return NULL;
    size_t pad = ALIGNMENT - (LENGTH_BYTES + (size_t)length[0]) % ALIGNMENT;
    uint8_t *memory = aligned_alloc(ALIGNMENT, (size / ALIGNMENT + 2) * ALIGNMENT);
    out->file = memory;
    if (memory == NULL || read_all(descriptor, memory + pad, size) != 0)
        return NULL;
    return memory + pad;
}

int safetensors_read(const char *path, struct safetensors *out, char *message,
                     size_t message_bytes) {
    struct parser parser = {.message = message, .message_bytes = message_bytes};
    memset(out, 0, sizeof(*out));
    /* O_NONBLOCK: a pipe is refused below instead of waiting for its writer here. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (descriptor < 0 || fstat(descriptor, &status) != 0) {
        int failed = fail(&parser, "%s: cannot open: %s", path, strerror(errno));
        if (descriptor >= 0)
            (void)close(descriptor);
        return failed;
    }
    if (!S_ISREG(status.st_mode)) {
        (void)close(descriptor);
        return fail(&parser, "%s: is no regular file", path);
    }
    errno = 0;
    size_t size = (size_t)status.st_size;
    const uint8_t *bytes = read_open_file(descriptor, size, out);
    int saved = errno;
    (void)close(descriptor);
    if (bytes == NULL)
        return fail(&parser, "%s: cannot read its %zu bytes: %s", path, size,
                    saved ? strerror(saved) : "it became shorter meanwhile");

    void *file = out->file;
    char text[SAFETENSORS_MESSAGE_BYTES];
    int failed = safetensors_parse(bytes, size, out, text, sizeof(text));
    out->file = file;
    return failed ? fail(&parser, "%s: %s", path, text) : 0;
}

void safetensors_free(struct safetensors *file) {
    json_decref(file->header);
    free(file->tensors);
    free(file->file);
    memset(file, 0, sizeof(*file));
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file,
                                                  const char *name) {
    for (size_t i = 0; i < file->num_tensors; i++) {
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    }
    return NULL;
}
