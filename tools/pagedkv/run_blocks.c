/* SPDX-License-Identifier: MIT
 *
 * The operators of pagedkv run on whole blocks: copy_blocks, swap_blocks and fill_blocks.
 */
#include "run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void output_caches(struct run_call *call, const char *key_name, const char *value_name) {
    run_output(call, key_name, run_tensor(call, key_name));
    if (run_tensor(call, value_name))
        run_output(call, value_name, run_tensor(call, value_name));
}

int run_copy_blocks(struct run_call *call) {
    struct pkv_cache cache;
    struct pkv_error error = {.struct_size = sizeof(error)};
    const int status = run_describe_cache(call, "key_cache", "value_cache", &cache);
    if (status != CLI_CONTINUE)
        return status;
    if (pkv_copy_blocks(call->cli.context, &cache, run_tensor(call, "block_mapping"), &error) !=
        PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    output_caches(call, "key_cache", "value_cache");
    return CLI_OK;
}

int run_swap_blocks(struct run_call *call) {
    struct pkv_cache src, dst;
    struct pkv_error error = {.struct_size = sizeof(error)};
    int status = run_describe_cache(call, "key_cache", "value_cache", &src);
    if (status == CLI_CONTINUE)
        status = run_describe_cache(call, "dst_key_cache", "dst_value_cache", &dst);
    if (status != CLI_CONTINUE)
        return status;
    if (pkv_swap_blocks(call->cli.context, &src, &dst, run_tensor(call, "block_mapping"), &error) !=
        PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    output_caches(call, "dst_key_cache", "dst_value_cache");
    return CLI_OK;
}

/* Reads the bits of one element, decimal or with 0x, that fit in element_bytes; *end is what
 * follows. */
static int read_bits(const char *text, int64_t element_bytes, uint32_t *bits, const char **end) {
    char *rest = NULL;
    if (*text < '0' || *text > '9')
        return -1;
    errno = 0;
    const bool is_hexadecimal = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const unsigned long long value = strtoull(text, &rest, is_hexadecimal ? 16 : 10);
    if (errno != 0 || value >> (8 * element_bytes) != 0)
        return -1;
    *bits = (uint32_t)value;
    *end = rest;
    return 0;
}

/* "K" or "K,V". */
static int read_elements(const struct run_call *call, const struct pkv_cache *cache, uint32_t *key,
                         uint32_t *value) {
    const char *text = call->attributes.value ? call->attributes.value : "0";
    const char *end = text;
    const bool has_value = cache->value.data != NULL;
    int failed = read_bits(text, cache->key.element_bytes, key, &end);
    if (!failed && *end == ',' && has_value)
        failed = read_bits(end + 1, cache->value.element_bytes, value, &end);
    else if (!failed && has_value)
        failed = read_bits(text, cache->value.element_bytes, value, &end);
    if (failed || *end != '\0')
        return cli_error(call->command,
                         "--value is '%s'; use the bits of an element, or of a key and a value "
                         "element K,V, such as 0x7fc0",
                         text);
    return CLI_CONTINUE;
}

int run_fill_blocks(struct run_call *call) {
    struct pkv_cache cache;
    struct pkv_error error = {.struct_size = sizeof(error)};
    uint32_t key = 0, value = 0; /* little-endian: the element's bytes come first */
    int status = run_describe_cache(call, "key_cache", "value_cache", &cache);
    if (status == CLI_CONTINUE)
        status = read_elements(call, &cache, &key, &value);
    if (status != CLI_CONTINUE)
        return status;
    const int64_t first = call->attributes.first;
    const int64_t num =
        call->attributes.num == RUN_NOT_GIVEN ? cache.num_blocks - first : call->attributes.num;
    if (pkv_fill_blocks(call->cli.context, &cache, first, num, &key,
                        cache.value.data ? &value : NULL, &error) != PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    output_caches(call, "key_cache", "value_cache");
    return CLI_OK;
}
