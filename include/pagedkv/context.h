/* SPDX-License-Identifier: MIT
 *
 * The context: everything that the library would otherwise keep in global variables. It holds the
 * kernel table of this CPU, the executor, the run mode and the facts of the last refusal.
 */
#ifndef PAGEDKV_CONTEXT_H
#define PAGEDKV_CONTEXT_H

#include <pagedkv/cpu.h>
#include <pagedkv/executor.h>
#include <pagedkv/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where created objects get their memory. Both functions NULL: malloc and free; one alone is
 * refused. */
struct pkv_allocator {
    /* alignment is a power of two, at least sizeof(void *); NULL means out of memory */
    void *(*alloc)(void *user, size_t bytes, size_t alignment);
    void (*free)(void *user, void *memory);
    void *user;
};

enum pkv_run_mode {
    PKV_RUN_MODE_NATIVE = 0, /* the fast kernels, in parallel on the executor */
    PKV_RUN_MODE_SIM = 1     /* the scalar definition, tile by tile, every access checked */
};

/* "native" or "sim"; "unknown" otherwise. */
PKV_API const char *pkv_run_mode_name(int32_t run_mode);

struct pkv_context_options {
    size_t struct_size;
    int32_t run_mode; /* enum pkv_run_mode */
    /* enum pkv_cpu_level of this architecture; 0: the best; above the machine's: the machine's */
    int32_t max_cpu_level;
    const struct pkv_allocator *allocator; /* NULL: malloc and free; copied */
    const struct pkv_executor *executor;   /* NULL: everything on the calling thread; copied */
};

struct pkv_context;

/* Makes a context.
 *
 * context  out; hand it to pkv_context_destroy. NULL when the call fails
 * options  in, nullable: native, the best level, malloc and free, the calling thread alone
 * errors   NULL_ARGUMENT (context), INVALID_ARGUMENT (run_mode; a max_cpu_level that is none of
 *          this architecture; an executor with num_threads below 1, or above 1 without a run
 *          function; an allocator with only one of its functions), STRUCT_SIZE, OUT_OF_MEMORY
 * threads  any. One context serves one thread at a time; any number of contexts may live at once
 * cost     one allocation; asks the processor what it can do (microseconds)
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_context_create(struct pkv_context **context,
                                                        const struct pkv_context_options *options,
                                                        struct pkv_error *error);

/* Frees it. NULL is fine. Plans made with it and steps set with it may outlive it. */
PKV_API void pkv_context_destroy(struct pkv_context *context);

/* The level whose kernels this context uses; PKV_CPU_LEVEL_C for NULL. */
PKV_API int32_t pkv_context_cpu_level(const struct pkv_context *context);

/* The facts of the last call with this context that failed; status is PKV_STATUS_OK if none has. A
 * call that takes a const context leaves them as they are.
 * Valid until the next call with this context. NULL for NULL. */
PKV_API const struct pkv_error *pkv_context_last_error(const struct pkv_context *context);

#ifdef __cplusplus
}
#endif

#endif
