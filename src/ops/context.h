/* SPDX-License-Identifier: MIT
 *
 * The inside of a context, and how an operator reports its refusal.
 */
#ifndef PKV_OPS_CONTEXT_H
#define PKV_OPS_CONTEXT_H

#include <pagedkv/context.h>

#include "kernels/kernels.h"

struct pkv_context {
    struct pkv_allocator allocator;
    struct pkv_executor executor;
    int32_t run_mode;
    int32_t cpu_level;
    struct pkv_kernels kernels;
    struct pkv_error last_error;
    void *scratch; /* aligned to 64 bytes; NULL: none */
    size_t scratch_bytes;
};

/* Gives the context at least so many bytes of scratch; what was in it is lost. */
enum pkv_status pkv_context_reserve(struct pkv_context *context, size_t bytes, const char *function,
                                    struct pkv_error *error);

/* Ends a public function that worked on *facts: records a refusal in the context (nullable) and
 * hands it to the caller. Returns status. */
enum pkv_status pkv_context_refuse(struct pkv_context *context, const struct pkv_error *facts,
                                   struct pkv_error *error);
static inline enum pkv_status pkv_context_finish(struct pkv_context *context,
                                                 enum pkv_status status,
                                                 const struct pkv_error *facts,
                                                 struct pkv_error *error) {
    return status == PKV_STATUS_OK ? status : pkv_context_refuse(context, facts, error);
}

/* The refusal of a NULL argument, as the beginning of most public functions. */
enum pkv_status pkv_refuse_null(const char *function, const char *argument,
                                struct pkv_error *error);

#endif
