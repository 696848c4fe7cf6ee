/* SPDX-License-Identifier: MIT
 *
 * The operators paged_attention and merge_states of pagedkv run. The attributes keep the field's
 * usual spelling (window_left counts earlier tokens, -1 is all of them); the library counts visible
 * ones.
 */
#include "run.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* In the orders of enum pkv_lse_base and enum pkv_attention_products. */
const char *const run_lse_bases[] = {"e", "2", NULL};
const char *const run_products[] = {"f32", "bf16", NULL};

enum { MAX_STATES = (RUN_MAX_TENSORS - 1) / 2 };

/* A number that float32 holds as something finite. Zero is how the library is told that nothing was
 * given: the softcap may be none, the scale may not. */
static int read_float(const struct run_call *call, const char *name, const char *text,
                      bool may_be_zero, float *value) {
    if (text == NULL)
        return CLI_CONTINUE;
    char *end = NULL;
    errno = 0;
    const double number = strtod(text, &end);
    const float rounded = (float)number;
    if (end == text || *end != '\0' || errno != 0 || !isfinite(rounded) ||
        (rounded == 0 && (!may_be_zero || number != 0)) || (may_be_zero && rounded < 0))
        return cli_error(call->command, "--%s is '%s'; use a finite number %s", name, text,
                         may_be_zero ? "above 0, or 0 for none" : "other than 0");
    *value = rounded;
    return CLI_CONTINUE;
}

/* What the shapes of outputs are made of. Heads without elements would let a short file ask for any
 * amount of memory. */
static int check_heads(const struct run_call *call, const char *name,
                       const struct pkv_tensor *tensor) {
    if (tensor->ndim == 3 && tensor->shape[2] > 0)
        return CLI_CONTINUE;
    return cli_error(call->command,
                     "%s: %s is not [num_tokens, num_heads, head_size] with at least one element a "
                     "head; correct its shape",
                     call->file, name);
}

/* Allocates an output of these dimensions and names it. */
static int add_output(struct run_call *call, const char *name, int32_t dtype, int32_t ndim,
                      const int64_t *shape, struct pkv_tensor *out) {
    int64_t bytes = pkv_dtype_bytes(dtype);
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] > 0 && bytes > INT64_MAX / shape[i])
            return cli_error(call->command, "%s: %s needs more than 2^63 bytes; use fewer tokens",
                             call->file, name);
        bytes *= shape[i];
    }
    void *data = run_alloc(call, bytes);
    if (data == NULL)
        return CLI_USAGE;
    *out = pkv_tensor_make(data, dtype, ndim, shape);
    run_output(call, name, out);
    return CLI_CONTINUE;
}

/* ---- paged_attention ---- */

static int read_options(const struct run_call *call, const struct pkv_tensor *query,
                        struct pkv_paged_attention_options *options) {
    const struct run_attributes *attributes = &call->attributes;
    *options =
        (struct pkv_paged_attention_options){.struct_size = sizeof(*options),
                                             .num_heads = query->shape[1],
                                             .value_head_size = attributes->value_head_size,
                                             .query_dtype = query->dtype,
                                             .products = (int32_t)attributes->products,
                                             .non_causal = attributes->causal == 0,
                                             .lse_base = (int32_t)attributes->lse_base,
                                             .max_visible_left = attributes->window_left + 1,
                                             .max_visible_right = attributes->window_right + 1};
    const int status = read_float(call, "scale", attributes->scale, false, &options->scale);
    if (status != CLI_CONTINUE)
        return status;
    return read_float(call, "softcap", attributes->softcap, true, &options->softcap);
}

static void take_optional(struct run_call *call, const char *name, struct pkv_tensor *to) {
    const struct pkv_tensor *tensor = run_tensor(call, name);
    if (tensor)
        *to = *tensor;
}

static int set_step(struct run_call *call, struct pkv_step *step, const struct pkv_cache *cache) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_step_indices indices = {.struct_size = sizeof(indices),
                                       .block_table = *run_tensor(call, "block_table"),
                                       .seq_lens = *run_tensor(call, "seq_lens"),
                                       .query_start_loc = *run_tensor(call, "query_start_loc"),
                                       .num_shared_tokens = call->attributes.num_shared_tokens};
    take_optional(call, "seq_offset", &indices.seq_offsets);
    if (pkv_step_set(call->cli.context, step, cache, &indices, &error) != PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    return CLI_CONTINUE;
}

static int attend(struct run_call *call, const struct pkv_paged_attention_plan *plan,
                  const struct pkv_step *step, const struct pkv_cache *cache,
                  int64_t value_head_size) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_paged_attention_tensors tensors = {.struct_size = sizeof(tensors),
                                                  .query = *run_tensor(call, "query")};
    const int64_t shape[] = {tensors.query.shape[0], tensors.query.shape[1], value_head_size};
    if (add_output(call, "out", tensors.query.dtype, 3, shape, &tensors.out) != CLI_CONTINUE ||
        add_output(call, "lse", PKV_DTYPE_F32, 2, shape, &tensors.lse) != CLI_CONTINUE)
        return CLI_USAGE;
    take_optional(call, "alibi_slopes", &tensors.alibi_slopes);
    take_optional(call, "sinks", &tensors.sinks);
    take_optional(call, "mask", &tensors.mask);
    if (pkv_paged_attention_run(call->cli.context, plan, step, cache, &tensors, &error) !=
        PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    return CLI_OK;
}

/* Values are those of the value cache, or the first part of each key. */
static int64_t value_size(const struct run_call *call, const struct pkv_cache *cache) {
    if (cache->value.data)
        return cache->value.head_size;
    return call->attributes.value_head_size > 0 ? call->attributes.value_head_size
                                                : cache->key.head_size;
}

int run_paged_attention(struct run_call *call) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_paged_attention_options options;
    struct pkv_paged_attention_plan *plan = NULL;
    struct pkv_step *step = NULL;
    struct pkv_cache cache;
    const struct pkv_tensor *query = run_tensor(call, "query");
    if (run_tensor(call, "k_scale") || run_tensor(call, "v_scale"))
        return cli_error(call->command,
                         "%s: k_scale and v_scale belong to quantised caches, which attention does "
                         "not read; leave them out and give caches of F32, F16 or BF16",
                         call->file);
    int status = check_heads(call, "query", query);
    if (status == CLI_CONTINUE)
        status = run_describe_cache(call, "key_cache", "value_cache", &cache);
    if (status == CLI_CONTINUE)
        status = read_options(call, query, &options);
    if (status != CLI_CONTINUE)
        return status;
    if (pkv_paged_attention_plan_create(&plan, call->cli.context, &cache, &options, &error) !=
            PKV_STATUS_OK ||
        pkv_step_create(&step, NULL, &error) != PKV_STATUS_OK)
        status = run_refused(call, &error, NULL);
    if (status == CLI_CONTINUE)
        status = set_step(call, step, &cache);
    if (status == CLI_CONTINUE)
        status = attend(call, plan, step, &cache, value_size(call, &cache));
    pkv_step_destroy(step);
    pkv_paged_attention_plan_destroy(plan);
    return status;
}

/* ---- merge_states ---- */

/* Takes out_0, lse_0, out_1, lse_1 ... without a gap. */
static int take_states(struct run_call *call, struct pkv_tensor *outs, struct pkv_tensor *lses,
                       int64_t *num_states) {
    *num_states = 0;
    for (int i = 0; i < MAX_STATES; i++) {
        char names[2][16];
        (void)snprintf(names[0], sizeof(names[0]), "out_%d", i);
        (void)snprintf(names[1], sizeof(names[1]), "lse_%d", i);
        const struct pkv_tensor *out = run_tensor(call, names[0]);
        const struct pkv_tensor *lse = run_tensor(call, names[1]);
        if (out == NULL && lse == NULL)
            continue;
        if (out == NULL || lse == NULL)
            return cli_error(call->command, "%s: has no tensor '%s' for '%s'; give both",
                             call->file, names[out != NULL], names[out == NULL]);
        if (*num_states != i)
            return cli_error(call->command,
                             "%s: has a state %d but no state %d; number them from 0 on",
                             call->file, i, (int)*num_states);
        outs[i] = *out;
        lses[i] = *lse;
        *num_states = i + 1;
    }
    return CLI_CONTINUE;
}

int run_merge_states(struct run_call *call) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    const struct pkv_merge_states_options options = {
        .struct_size = sizeof(options), .lse_base = (int32_t)call->attributes.lse_base};
    struct pkv_tensor outs[MAX_STATES], lses[MAX_STATES], out, lse;
    int64_t num_states = 0;
    int status = take_states(call, outs, lses, &num_states);
    if (status == CLI_CONTINUE)
        status = check_heads(call, "out_0", &outs[0]);
    if (status == CLI_CONTINUE)
        status = add_output(call, "out", outs[0].dtype, 3, outs[0].shape, &out);
    if (status == CLI_CONTINUE)
        status = add_output(call, "lse", PKV_DTYPE_F32, 2, outs[0].shape, &lse);
    if (status != CLI_CONTINUE)
        return status;
    /* The outputs follow from the first state. */
    static const struct run_name names[] = {{"out", "out_0"}, {"lse", "out_0"}, {NULL, NULL}};
    if (pkv_merge_states(call->cli.context, outs, lses, num_states, &out, &lse, &options, &error) !=
        PKV_STATUS_OK)
        return run_refused(call, &error, names);
    return CLI_OK;
}
