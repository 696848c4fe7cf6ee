/* SPDX-License-Identifier: MIT
 *
 * The operator convert_layout of pagedkv run: one tensor in, one out, whose shape follows from the
 * other layout.
 */
#include "run.h"

/* A cache whose key is the tensor. */
static int describe(const struct run_call *call, const struct pkv_tensor *tensor, int32_t layout,
                    int64_t num_kv_heads, struct pkv_cache *cache) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    const struct pkv_cache_options options = {
        .struct_size = sizeof(options), .key_layout = layout, .num_kv_heads = num_kv_heads};
    static const struct run_name names[] = {{"key_cache", "cache"}, {NULL, NULL}};
    if (pkv_cache_init(cache, tensor, NULL, &options, &error) != PKV_STATUS_OK)
        return run_refused(call, &error, names);
    return CLI_CONTINUE;
}

static int check_attributes(const struct run_call *call, const struct pkv_tensor *tensor,
                            const struct pkv_cache *src, int32_t from, int32_t to) {
    const struct run_attributes *attributes = &call->attributes;
    if (attributes->block_size != 0 && attributes->block_size != src->block_size)
        return cli_error(call->command,
                         "%s: cache has blocks of %lld tokens, --block_size is %lld; correct one",
                         call->file, (long long)src->block_size, (long long)attributes->block_size);
    if (from == PKV_LAYOUT_PA_NZ && to != PKV_LAYOUT_PA_NZ && tensor->ndim == 4 &&
        attributes->num_kv_heads == 0)
        return cli_error(call->command,
                         "%s: the shape of this PA_NZ cache does not tell the number "
                         "of heads; give --num_kv_heads",
                         call->file);
    return CLI_CONTINUE;
}

int run_convert_layout(struct run_call *call) {
    const struct run_attributes *attributes = &call->attributes;
    if (attributes->from == RUN_NOT_GIVEN || attributes->to == RUN_NOT_GIVEN)
        return cli_error(call->command, "it needs two layouts; give --from and --to");
    const int32_t from = (int32_t)attributes->from;
    const int32_t to = (int32_t)attributes->to;
    const struct pkv_tensor *tensor = run_tensor(call, "cache");
    struct pkv_cache src, dst;
    int status = describe(call, tensor, from, attributes->num_kv_heads, &src);
    if (status == CLI_CONTINUE)
        status = check_attributes(call, tensor, &src, from, to);
    if (status != CLI_CONTINUE)
        return status;
    const struct cli_cache_size size = {src.num_blocks, src.block_size, src.key.num_heads,
                                        src.key.head_size};
    int32_t ndim = 0;
    int64_t shape[PKV_MAX_DIMS] = {0};
    status = cli_cache_shape(call->command, &size, to, tensor->dtype, &ndim, shape);
    if (status != CLI_CONTINUE)
        return status;

    void *data = run_alloc(call, src.num_slots * src.key.row_bytes);
    if (data == NULL)
        return CLI_USAGE;
    const struct pkv_tensor out = pkv_tensor_make(data, tensor->dtype, ndim, shape);
    struct pkv_error error = {.struct_size = sizeof(error)};
    status = describe(call, &out, to, src.key.num_heads, &dst);
    if (status != CLI_CONTINUE)
        return status;
    if (pkv_convert_layout(call->cli.context, &src, &dst, &error) != PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    run_output(call, "cache", &out);
    return CLI_OK;
}
