/* SPDX-License-Identifier: MIT
 *
 * How internal code fills a struct pkv_error, and how structs with a struct_size cross the API.
 */
#ifndef PKV_BASE_ERROR_H
#define PKV_BASE_ERROR_H

#include <pagedkv/status.h>

/* Fills *error (nullable, its struct_size honoured) and returns status, so that a refusal is one
 * return statement. index, value and bound may be PKV_ERROR_NONE. All strings are static. */
enum pkv_status pkv_error_set(struct pkv_error *error, enum pkv_status status, const char *function,
                              const char *argument, int64_t index, int64_t value, int64_t bound,
                              const char *rule);

/* The same for a dimension of a tensor. */
enum pkv_status pkv_error_set_axis(struct pkv_error *error, enum pkv_status status,
                                   const char *function, const char *argument, int32_t axis,
                                   int64_t value, int64_t bound, const char *rule);

/* Copies the facts of a failed inner call to *to (nullable) under the name of the public function
 * and of its argument (NULL: keep the inner one). Returns the status. */
enum pkv_status pkv_error_forward(struct pkv_error *to, const struct pkv_error *from,
                                  const char *function, const char *argument);

/* Reads a caller's option struct (nullable) into one of `size` bytes: missing fields become zero,
 * unknown ones must be. Returns PKV_STATUS_STRUCT_SIZE otherwise. */
enum pkv_status pkv_struct_read(void *to, size_t size, const void *from, const char *function,
                                const char *argument, struct pkv_error *error);

/* Writes as much of `from` as the caller's struct has room for, and keeps its struct_size. */
enum pkv_status pkv_struct_write(void *to, const void *from, size_t size, const char *function,
                                 const char *argument, struct pkv_error *error);

#endif
