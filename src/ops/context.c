/* SPDX-License-Identifier: MIT
 *
 * Making a context: the machine is asked once, the kernels are chosen, options are copied.
 */
#include "ops/context.h"

#include "base/allocator.h"
#include "base/error.h"
#include "cpu/cpu.h"

enum { SCRATCH_ALIGNMENT = 64 };

const char *pkv_run_mode_name(int32_t run_mode) {
    switch (run_mode) {
    case PKV_RUN_MODE_NATIVE:
        return "native";
    case PKV_RUN_MODE_SIM:
        return "sim";
    default:
        return "unknown";
    }
}

enum pkv_status pkv_context_refuse(struct pkv_context *context, const struct pkv_error *facts,
                                   struct pkv_error *error) {
    if (context)
        context->last_error = *facts;
    return pkv_error_forward(error, facts, facts->function, NULL);
}

enum pkv_status pkv_refuse_null(const char *function, const char *argument,
                                struct pkv_error *error) {
    return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, function, argument, PKV_ERROR_NONE,
                         PKV_ERROR_NONE, PKV_ERROR_NONE, "must not be NULL");
}

enum pkv_status pkv_context_create(struct pkv_context **context,
                                   const struct pkv_context_options *options,
                                   struct pkv_error *error) {
    const int64_t none = PKV_ERROR_NONE;
    if (context == NULL)
        return pkv_refuse_null(__func__, "context", error);
    *context = NULL;
    struct pkv_context_options chosen;
    const enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, __func__, "options", error);
    if (status != PKV_STATUS_OK)
        return status;
    if (chosen.run_mode != PKV_RUN_MODE_NATIVE && chosen.run_mode != PKV_RUN_MODE_SIM)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "options->run_mode",
                             none, chosen.run_mode, none, "must be one of enum pkv_run_mode");
    const int32_t level = pkv_cpu_lower_level(pkv_cpu_detect_level(), chosen.max_cpu_level);
    if (level < 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "options->max_cpu_level",
                             none, chosen.max_cpu_level, none,
                             "must be a level of this machine's architecture");
    if (chosen.executor && (chosen.executor->num_threads < 1 ||
                            (chosen.executor->run == NULL && chosen.executor->num_threads != 1)))
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "options->executor",
                             none, chosen.executor->num_threads, none,
                             "must have at least one thread, and a run function for more than one");

    const struct pkv_allocator allocator = pkv_allocator_resolve(chosen.allocator);
    if (allocator.alloc == NULL)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "options->allocator",
                             none, none, none, "must have both alloc and free, or neither");
    struct pkv_context *made = pkv_alloc(&allocator, sizeof(*made), _Alignof(struct pkv_context));
    if (made == NULL)
        return pkv_error_set(error, PKV_STATUS_OUT_OF_MEMORY, __func__, NULL, none, none,
                             (int64_t)sizeof(*made),
                             "the allocator has no memory of that many bytes");
    *made = (struct pkv_context){
        .allocator = allocator,
        .executor = {.num_threads = 1},
        .run_mode = chosen.run_mode,
        .cpu_level = level,
        .last_error = {.struct_size = sizeof(struct pkv_error), .axis = -1},
    };
    if (chosen.executor)
        made->executor = *chosen.executor;
    pkv_kernels_init(&made->kernels, level);
    *context = made;
    return PKV_STATUS_OK;
}

enum pkv_status pkv_context_reserve(struct pkv_context *context, size_t bytes, const char *function,
                                    struct pkv_error *error) {
    if (bytes <= context->scratch_bytes)
        return PKV_STATUS_OK;
    void *memory = pkv_alloc(&context->allocator, bytes, SCRATCH_ALIGNMENT);
    if (memory == NULL)
        return pkv_error_set(error, PKV_STATUS_OUT_OF_MEMORY, function, NULL, PKV_ERROR_NONE,
                             PKV_ERROR_NONE, (int64_t)bytes,
                             "the allocator has no memory of that many bytes");
    pkv_free(&context->allocator, context->scratch);
    context->scratch = memory;
    context->scratch_bytes = bytes;
    return PKV_STATUS_OK;
}

void pkv_context_destroy(struct pkv_context *context) {
    if (context == NULL)
        return;
    const struct pkv_allocator allocator = context->allocator;
    pkv_free(&allocator, context->scratch);
    pkv_free(&allocator, context);
}

int32_t pkv_context_cpu_level(const struct pkv_context *context) {
    return context ? context->cpu_level : PKV_CPU_LEVEL_C;
}

const struct pkv_error *pkv_context_last_error(const struct pkv_context *context) {
    return context ? &context->last_error : NULL;
}
