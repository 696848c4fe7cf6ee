/* SPDX-License-Identifier: MIT
 *
 * Names of statuses, the sentence about an error, and structs that grow.
 */
#include "base/dtype.h"
#include "base/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

int32_t pkv_version(void) {
    return PKV_VERSION_MAJOR * 10000 + PKV_VERSION_MINOR * 100 + PKV_VERSION_PATCH;
}

const char *pkv_status_name(int32_t status) {
    switch (status) {
    case PKV_STATUS_OK:
        return "OK";
    case PKV_STATUS_NULL_ARGUMENT:
        return "NULL_ARGUMENT";
    case PKV_STATUS_INVALID_ARGUMENT:
        return "INVALID_ARGUMENT";
    case PKV_STATUS_DTYPE:
        return "DTYPE";
    case PKV_STATUS_RANK:
        return "RANK";
    case PKV_STATUS_SHAPE:
        return "SHAPE";
    case PKV_STATUS_STRIDE:
        return "STRIDE";
    case PKV_STATUS_MISALIGNED:
        return "MISALIGNED";
    case PKV_STATUS_OVERLAP:
        return "OVERLAP";
    case PKV_STATUS_LAYOUT:
        return "LAYOUT";
    case PKV_STATUS_STRUCT_SIZE:
        return "STRUCT_SIZE";
    case PKV_STATUS_DUPLICATE_SLOT:
        return "DUPLICATE_SLOT";
    case PKV_STATUS_SLOT_OUT_OF_RANGE:
        return "SLOT_OUT_OF_RANGE";
    case PKV_STATUS_BLOCK_OUT_OF_RANGE:
        return "BLOCK_OUT_OF_RANGE";
    case PKV_STATUS_POSITION_OUT_OF_RANGE:
        return "POSITION_OUT_OF_RANGE";
    case PKV_STATUS_OUT_OF_MEMORY:
        return "OUT_OF_MEMORY";
    case PKV_STATUS_OUT_OF_BLOCKS:
        return "OUT_OF_BLOCKS";
    case PKV_STATUS_CAPACITY:
        return "CAPACITY";
    case PKV_STATUS_UNSUPPORTED:
        return "UNSUPPORTED";
    case PKV_STATUS_BAD_STATE:
        return "BAD_STATE";
    case PKV_STATUS_STALE_HANDLE:
        return "STALE_HANDLE";
    case PKV_STATUS_OVERFLOW:
        return "OVERFLOW";
    case PKV_STATUS_SYSTEM:
        return "SYSTEM";
    case PKV_STATUS_INTERNAL:
        return "INTERNAL";
    default:
        return "UNKNOWN";
    }
}

/* A growing sentence in a buffer of limited size; length counts what did not fit, too. */
struct sentence {
    char *text;
    size_t size;
    size_t length;
};

__attribute__((format(printf, 2, 3))) static void say(struct sentence *sentence, const char *format,
                                                      ...) {
    char *text = NULL;
    size_t size = 0;
    if (sentence->length < sentence->size) {
        text = sentence->text + sentence->length;
        size = sentence->size - sentence->length;
    }
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, size, format, arguments);
    va_end(arguments);
    if (length > 0)
        sentence->length += (size_t)length;
}

/* The facts that an older caller's struct has room for. */
static struct pkv_error read_facts(const struct pkv_error *error) {
    struct pkv_error facts = {
        .axis = -1, .index = PKV_ERROR_NONE, .value = PKV_ERROR_NONE, .bound = PKV_ERROR_NONE};
    const size_t size = error->struct_size;
    memcpy(&facts, error, size == 0 || size > sizeof(facts) ? sizeof(facts) : size);
    return facts;
}

/* Element types by name. */
static void show_number(char *text, size_t text_bytes, int32_t status, int64_t number) {
    const bool is_dtype =
        status == PKV_STATUS_DTYPE && number > PKV_DTYPE_INVALID && number < PKV_NUM_DTYPES;
    if (is_dtype)
        (void)snprintf(text, text_bytes, "%s", pkv_dtypes[number].name);
    else
        (void)snprintf(text, text_bytes, "%lld", (long long)number);
}

size_t pkv_error_text(const struct pkv_error *from, char *text, size_t text_bytes) {
    struct sentence sentence = {text, text ? text_bytes : 0, 0};
    const struct pkv_error facts = from ? read_facts(from) : (struct pkv_error){0};
    const struct pkv_error *error = &facts;
    if (sentence.size > 0)
        text[0] = '\0';
    if (error->status == PKV_STATUS_OK) {
        say(&sentence, "no error");
        return sentence.length;
    }
    if (error->function)
        say(&sentence, "%s: ", error->function);
    char value[32], bound[32];
    show_number(value, sizeof(value), error->status, error->value);
    show_number(bound, sizeof(bound), error->status, error->bound);
    if (error->argument) {
        say(&sentence, "%s", error->argument);
        if (error->index != PKV_ERROR_NONE)
            say(&sentence, "[%lld]", (long long)error->index);
        if (error->axis >= 0)
            say(&sentence, ", dimension %d,", (int)error->axis);
        if (error->value != PKV_ERROR_NONE)
            say(&sentence, " is %s, but", value);
        say(&sentence, " ");
    }
    say(&sentence, "%s", error->rule ? error->rule : "was refused");
    if (error->bound != PKV_ERROR_NONE)
        say(&sentence, " (%s)", bound);
    if (error->argument == NULL && error->value != PKV_ERROR_NONE)
        say(&sentence, ": %s", value);
    say(&sentence, " [%s]", pkv_status_name(error->status));
    return sentence.length;
}

static enum pkv_status fill(struct pkv_error *error, const struct pkv_error *facts) {
    if (error)
        (void)pkv_struct_write(error, facts, sizeof(*facts), NULL, NULL, NULL);
    return (enum pkv_status)facts->status;
}

enum pkv_status pkv_error_set(struct pkv_error *error, enum pkv_status status, const char *function,
                              const char *argument, int64_t index, int64_t value, int64_t bound,
                              const char *rule) {
    const struct pkv_error facts = {.struct_size = sizeof(facts),
                                    .status = status,
                                    .axis = -1,
                                    .function = function,
                                    .argument = argument,
                                    .index = index,
                                    .value = value,
                                    .bound = bound,
                                    .rule = rule};
    return fill(error, &facts);
}

enum pkv_status pkv_error_set_axis(struct pkv_error *error, enum pkv_status status,
                                   const char *function, const char *argument, int32_t axis,
                                   int64_t value, int64_t bound, const char *rule) {
    const struct pkv_error facts = {.struct_size = sizeof(facts),
                                    .status = status,
                                    .axis = axis,
                                    .function = function,
                                    .argument = argument,
                                    .index = PKV_ERROR_NONE,
                                    .value = value,
                                    .bound = bound,
                                    .rule = rule};
    return fill(error, &facts);
}

enum pkv_status pkv_error_forward(struct pkv_error *to, const struct pkv_error *from,
                                  const char *function, const char *argument) {
    struct pkv_error facts = *from;
    facts.function = function;
    if (argument)
        facts.argument = argument;
    return fill(to, &facts);
}

enum pkv_status pkv_struct_read(void *to, size_t size, const void *from, const char *function,
                                const char *argument, struct pkv_error *error) {
    if (from == NULL) {
        memset(to, 0, size);
        return PKV_STATUS_OK;
    }
    size_t from_size;
    memcpy(&from_size, from, sizeof(from_size));
    if (from_size == 0)
        from_size = size;
    const unsigned char *bytes = from;
    /* No struct of any version is larger than a page of memory: such a size was never set. */
    bool fits = from_size >= sizeof(from_size) && from_size <= 4096;
    for (size_t i = size; fits && i < from_size; i++)
        fits = bytes[i] == 0;
    if (!fits)
        return pkv_error_set(
            error, PKV_STATUS_STRUCT_SIZE, function, argument, PKV_ERROR_NONE, (int64_t)from_size,
            (int64_t)size,
            "must have a struct_size from 8 to 4096 and zeroes in fields that this "
            "version does not know; its size here");
    const size_t known = from_size < size ? from_size : size;
    memcpy(to, from, known);
    memset((char *)to + known, 0, size - known);
    memcpy(to, &size, sizeof(size));
    return PKV_STATUS_OK;
}

enum pkv_status pkv_struct_write(void *to, const void *from, size_t size, const char *function,
                                 const char *argument, struct pkv_error *error) {
    size_t to_size;
    memcpy(&to_size, to, sizeof(to_size));
    const size_t room = to_size == 0 ? size : to_size;
    if (room < sizeof(to_size))
        return pkv_error_set(error, PKV_STATUS_STRUCT_SIZE, function, argument, PKV_ERROR_NONE,
                             (int64_t)to_size, (int64_t)size,
                             "must have a struct_size of at least 8; its size here");
    memcpy(to, from, room < size ? room : size);
    memcpy(to, &to_size, sizeof(to_size));
    return PKV_STATUS_OK;
}
