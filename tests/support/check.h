/* SPDX-License-Identifier: MIT
 *
 * What every unit test asks of a call: that it succeeded, or that it was refused for the right
 * reason and said so. Needs cmocka.
 */
#ifndef PAGEDKV_TESTS_CHECK_H
#define PAGEDKV_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <pagedkv/pagedkv.h>

/* CHECK_OK(pkv_something(..., &error), &error) */
#define CHECK_OK(status, error) check_ok((status), (error), __FILE__, __LINE__)

/* CHECK_REFUSED(pkv_something(..., &error), &error, PKV_STATUS_SHAPE) */
#define CHECK_REFUSED(status, error, expected)                                                     \
    check_refused((status), (error), (expected), __FILE__, __LINE__)

static inline void check_ok(int32_t status, const struct pkv_error *error, const char *file,
                            int line) {
    if (status != PKV_STATUS_OK) {
        char text[512];

        pkv_error_text(error, text, sizeof(text));
        print_error("refused with %s: %s\n", pkv_status_name(status), text);
        _fail(file, line);
    }
}

static inline void check_refused(int32_t status, const struct pkv_error *error, int32_t expected,
                                 const char *file, int line) {
    if (status != expected) {
        char text[512] = "";

        if (status != PKV_STATUS_OK) {
            pkv_error_text(error, text, sizeof(text));
        }
        print_error("expected %s, got %s: %s\n", pkv_status_name(expected), pkv_status_name(status),
                    text);
        _fail(file, line);
    }
    if (error->status != expected || error->function == NULL || error->rule == NULL) {
        print_error("the error does not explain %s\n", pkv_status_name(expected));
        _fail(file, line);
    }
}

#endif
