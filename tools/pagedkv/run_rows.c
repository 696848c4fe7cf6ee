/* SPDX-License-Identifier: MIT
 *
 * The operators scatter_rows and nsa_compress_with_cache of pagedkv run.
 */
#include "run.h"

#include <stdio.h>
#include <string.h>

/* The tensor "source_3" or "cache_3", or NULL. */
static struct pkv_tensor *numbered(struct run_call *call, const char *what, int64_t number) {
    char name[32];
    (void)snprintf(name, sizeof(name), "%s_%d", what, (int)number);
    return run_tensor(call, name);
}

/* Pairs are numbered from 0 without a gap. */
static int take_pairs(struct run_call *call, struct pkv_tensor *sources, struct pkv_tensor *caches,
                      int64_t *num_pairs) {
    int64_t last = -1;
    for (int64_t i = 0; i < PKV_SCATTER_ROWS_MAX_PAIRS; i++) {
        const struct pkv_tensor *source = numbered(call, "source", i);
        const struct pkv_tensor *cache = numbered(call, "cache", i);
        if ((source == NULL) != (cache == NULL))
            return cli_error(call->command, "%s: has no tensor '%s_%d' for '%s_%d'; give both",
                             call->file, source ? "cache" : "source", (int)i,
                             source ? "source" : "cache", (int)i);
        if (source == NULL)
            continue;
        if (i != last + 1)
            return cli_error(call->command,
                             "%s: has a pair %d but no pair %d; number them from 0 on", call->file,
                             (int)i, (int)last + 1);
        sources[i] = *source;
        caches[i] = *cache;
        last = i;
    }
    *num_pairs = last + 1;
    return CLI_CONTINUE;
}

int run_scatter_rows(struct run_call *call) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    const struct pkv_scatter_rows_options options = {
        .struct_size = sizeof(options), .duplicates = (int32_t)call->attributes.duplicates};
    struct pkv_tensor sources[PKV_SCATTER_ROWS_MAX_PAIRS], caches[PKV_SCATTER_ROWS_MAX_PAIRS];
    int64_t num_pairs = 0;
    const int status = take_pairs(call, sources, caches, &num_pairs);
    if (status != CLI_CONTINUE)
        return status;
    if (pkv_scatter_rows(call->cli.context, run_tensor(call, "slot_mapping"), sources, caches,
                         num_pairs, &options, &error) != PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    for (int i = 0; i < RUN_MAX_TENSORS && call->op->tensors[i].name; i++) {
        const char *name = call->op->tensors[i].name;
        if (strncmp(name, "cache_", strlen("cache_")) == 0 && call->is_present[i])
            run_output(call, name, &call->tensors[i]);
    }
    return CLI_OK;
}

int run_nsa_compress_with_cache(struct run_call *call) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    const struct pkv_nsa_compress_options options = {
        .struct_size = sizeof(options),
        .compress_block_size = call->attributes.compress_block_size,
        .compress_stride = call->attributes.compress_stride,
        .page_block_size = call->attributes.page_block_size};
    struct pkv_tensor *output_cache = run_tensor(call, "output_cache");
    if (pkv_nsa_compress_with_cache(
            call->cli.context, run_tensor(call, "input"), run_tensor(call, "weight"),
            run_tensor(call, "slot_mapping"), run_tensor(call, "act_seq_len"),
            run_tensor(call, "block_table"), output_cache, &options, &error) != PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    run_output(call, "output_cache", output_cache);
    return CLI_OK;
}
