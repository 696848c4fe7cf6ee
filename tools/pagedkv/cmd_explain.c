/* SPDX-License-Identifier: MIT
 *
 * pagedkv explain: makes the plan of a scatter, a gather or of attention and tells what a run would
 * do. Caches are reserved addresses that nothing touches; the only memory that moves is that of a
 * short copy, which measures the bandwidth.
 */
#include "explain.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    MAX_DIMENSION = 1 << 30, /* of what is multiplied before the library checks it */
    MAX_COPY_BYTES = 64 * 1024 * 1024,
    MEASURE_NS = 50 * 1000 * 1000 /* how long the copy is repeated */
};

/* A cache tensor of that layout over reserved addresses; CLI_USAGE after printing an error. */
static int reserve(const struct explained *x, int32_t layout, int64_t head_size,
                   struct pkv_tensor *tensor, size_t *num_bytes) {
    const int32_t dtype = pkv_dtype_from_name(x->dtype);
    const struct cli_cache_size size = {x->num_blocks, x->block_size, x->num_kv_heads, head_size};
    int32_t ndim = 0;
    int64_t shape[PKV_MAX_DIMS] = {0};
    const int status = cli_cache_shape("explain", &size, layout, dtype, &ndim, shape);
    if (status != CLI_CONTINUE)
        return status;
    int64_t bytes = pkv_dtype_bytes(dtype);
    for (int32_t i = 0; i < ndim && bytes > 0; i++)
        bytes = shape[i] > INT64_MAX / bytes ? 0 : bytes * shape[i];
    void *data = bytes == 0 ? MAP_FAILED
                            : mmap(NULL, (size_t)bytes, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        return cli_error("explain", "the addresses of a process have no room for such a cache; use "
                                    "fewer blocks or smaller rows");
    *num_bytes = (size_t)bytes;
    *tensor = pkv_tensor_make(data, dtype, ndim, shape);
    return CLI_CONTINUE;
}

static int explain_plan(struct pkv_context *context, const struct explained *x,
                        const struct pkv_cache *cache, int32_t num_threads,
                        struct pkv_explanation *explanation) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    enum pkv_status status;
    if (strcmp(x->op, "scatter_pa_kv_cache") == 0) {
        struct pkv_scatter_plan *plan = NULL;
        status = pkv_scatter_plan_create(&plan, context, cache, NULL, &error);
        if (status == PKV_STATUS_OK)
            status =
                pkv_scatter_plan_explain(plan, x->num_tokens, num_threads, explanation, &error);
        pkv_scatter_plan_destroy(plan);
    } else {
        struct pkv_gather_plan *plan = NULL;
        status = pkv_gather_plan_create(&plan, context, cache, &error);
        if (status == PKV_STATUS_OK)
            status = pkv_gather_plan_explain(plan, x->num_tokens, num_threads, explanation, &error);
        pkv_gather_plan_destroy(plan);
    }
    return status == PKV_STATUS_OK ? CLI_CONTINUE : cli_library_error("explain", NULL, &error);
}

static int64_t now_ns(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

struct copy {
    char *dst;
    const char *src;
    int64_t num_bytes;
    int64_t num_pieces;
};

static void copy_piece(void *arg, int64_t index) {
    const struct copy *copy = arg;
    const int64_t begin = copy->num_bytes / copy->num_pieces * index;
    const int64_t end = index + 1 == copy->num_pieces
                            ? copy->num_bytes
                            : copy->num_bytes / copy->num_pieces * (index + 1);
    memcpy(copy->dst + begin, copy->src + begin, (size_t)(end - begin));
}

/* Bytes moved (read and written) per nanosecond by the fastest of several plain copies on the
 * context's threads; 0 when there is no memory for it. */
static double measure_copy(const struct cli_context *context, int64_t num_bytes) {
    struct copy copy = {.num_bytes = num_bytes, .num_pieces = context->num_threads};
    copy.dst = cli_alloc((uint64_t)copy.num_bytes);
    char *src = cli_alloc((uint64_t)copy.num_bytes);
    copy.src = src;
    double best = 0;
    if (copy.dst && src) {
        memset(copy.dst, 0, (size_t)copy.num_bytes);
        memset(src, 1, (size_t)copy.num_bytes);
        const int64_t begin = now_ns();
        int64_t end = begin;
        do {
            const int64_t start = end;
            if (context->executor)
                context->hook.run(context->hook.user, copy_piece, &copy, copy.num_pieces);
            else
                copy_piece(&copy, 0);
            end = now_ns();
            const double speed = 2.0 * (double)copy.num_bytes / (double)(end - start + 1);
            best = speed > best ? speed : best;
        } while (end - begin < MEASURE_NS);
    }
    free(copy.dst);
    free(src);
    return best;
}

void explain_print_cache(const struct explained *x, const struct pkv_cache *cache,
                         const struct explained_run *run) {
    printf("%-16s %s\n", "operator", x->op);
    printf("%-16s %s, CPU level %s, %d thread%s\n", "run mode", pkv_run_mode_name(run->run_mode),
           pkv_cpu_level_name(run->cpu_level), (int)run->num_threads,
           run->num_threads == 1 ? "" : "s");
    printf("%-16s %lld blocks of %lld tokens, %lld slots\n", "cache", (long long)cache->num_blocks,
           (long long)cache->block_size, (long long)cache->num_slots);
    const struct pkv_cache_part *parts[] = {&cache->key, &cache->value};
    static const char *const names[] = {"key", "value"};
    for (int i = 0; i < 2; i++) {
        if (parts[i]->data == NULL) {
            const int is_read = strcmp(run->kernels[i], "none") != 0;
            printf("%-16s %s%s\n", names[i],
                   is_read ? "within the keys, kernel " : "none (key-only)",
                   is_read ? run->kernels[i] : "");
            continue;
        }
        printf("%-16s %s %s, %lld heads of %lld, %lld bytes a row, kernel %s\n", names[i],
               pkv_layout_name(parts[i]->layout), pkv_dtype_name(parts[i]->dtype),
               (long long)parts[i]->num_heads, (long long)parts[i]->head_size,
               (long long)parts[i]->row_bytes, run->kernels[i]);
    }
}

void explain_print_time(const struct cli_context *context, double moved_bytes, int64_t copied) {
    copied = copied < 1 ? 1 : copied < MAX_COPY_BYTES ? copied : MAX_COPY_BYTES;
    const double speed = measure_copy(context, copied);
    if (speed > 0)
        printf("%-16s %.2f GB/s read and written, by repeated copies of %lld bytes\n"
               "%-16s %.2f us at that speed\n",
               "copy", speed, (long long)copied, "time", moved_bytes / speed / 1000);
}

static void print_explanation(const struct explained *x, const struct pkv_cache *cache,
                              const struct pkv_explanation *e, int32_t num_threads) {
    const struct explained_run run = {
        e->run_mode, e->cpu_level, num_threads, {e->key_kernel, e->value_kernel}};
    explain_print_cache(x, cache, &run);
    printf("%-16s %lld tokens in %lld tile%s of %lld, the last one holds %lld\n", "tiles",
           (long long)e->num_tokens, (long long)e->num_tiles, e->num_tiles == 1 ? "" : "s",
           (long long)e->tile_tokens, (long long)e->tail_tokens);
    printf("%-16s %lld bytes a tile (note: the unified buffer of an Ascend 910B has %d)\n", "tile",
           (long long)e->tile_bytes, PKV_UNIFIED_BUFFER_BYTES);
    printf("%-16s %lld\n", "parts", (long long)e->num_parts);
    printf("%-16s %s\n", "store policy", e->store_policy);
    printf("%-16s %lld read, %lld written\n", "bytes", (long long)e->bytes_read,
           (long long)e->bytes_written);
}

/* Describes the cache, explains its plan and times the copy. */
static int explain_cache(const struct cli_context *context, const struct explained *x,
                         const int32_t layouts[2], const struct pkv_tensor *key,
                         const struct pkv_tensor *value) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    const struct pkv_cache_options options = {.struct_size = sizeof(options),
                                              .key_layout = layouts[0],
                                              .value_layout = layouts[1],
                                              .num_kv_heads = x->num_kv_heads};
    struct pkv_cache cache;
    if (pkv_cache_init(&cache, key, value, &options, &error) != PKV_STATUS_OK)
        return cli_library_error("explain", NULL, &error);
    if (strcmp(x->op, "paged_attention") == 0)
        return explain_attention(context, x, &cache);
    struct pkv_explanation explanation = {.struct_size = sizeof(explanation)};
    const int status =
        explain_plan(context->context, x, &cache, context->num_threads, &explanation);
    if (status != CLI_CONTINUE)
        return status;
    print_explanation(x, &cache, &explanation, context->num_threads);

    explain_print_time(context, (double)explanation.bytes_read + (double)explanation.bytes_written,
                       explanation.bytes_written);
    return CLI_OK;
}

static int explain(const struct cli_context *context, const struct explained *x) {
    struct pkv_tensor key, value;
    size_t key_bytes = 0, value_bytes = 0;
    int32_t layouts[2];
    const int64_t value_head_size = x->value_head_size > 0 ? x->value_head_size : x->head_size;
    int status =
        cli_choose_layouts("explain", x->cache_mode, x->key_layout, x->value_layout, layouts);
    if (status == CLI_CONTINUE)
        status = reserve(x, layouts[0], x->head_size, &key, &key_bytes);
    if (status == CLI_CONTINUE && !x->key_only)
        status = reserve(x, layouts[1], value_head_size, &value, &value_bytes);
    if (status == CLI_CONTINUE)
        status = explain_cache(context, x, layouts, &key, x->key_only ? NULL : &value);
    if (key_bytes > 0)
        (void)munmap(key.data, key_bytes);
    if (value_bytes > 0)
        (void)munmap(value.data, value_bytes);
    return status;
}

static int take_operator(struct explained *x, int num_arguments, char **arguments) {
    if (num_arguments != 1 || (strcmp(arguments[0], "scatter_pa_kv_cache") != 0 &&
                               strcmp(arguments[0], "gather_pa_kv_cache") != 0 &&
                               strcmp(arguments[0], "paged_attention") != 0))
        return cli_error("explain", "it takes one operator; give scatter_pa_kv_cache, "
                                    "gather_pa_kv_cache or paged_attention");
    if (pkv_dtype_from_name(x->dtype) == PKV_DTYPE_INVALID)
        return cli_error("explain",
                         "--dtype has no element type '%s'; use f32, f16, bf16, i8, "
                         "f8_e4m3fn, hifloat8 or another name of them",
                         x->dtype);
    x->op = arguments[0];
    return CLI_CONTINUE;
}

int cmd_explain(int argc, char **argv) {
    struct explained x = {.num_tokens = 2633,
                          .num_blocks = 9760,
                          .block_size = 128,
                          .num_kv_heads = 2,
                          .head_size = 256,
                          .num_seqs = 8,
                          .seq_len = 4096,
                          .query_len = 1,
                          .dtype = "bf16",
                          .cache_mode = -1,
                          .key_layout = -1,
                          .value_layout = -1,
                          .choice = {.threads = 1}};
    const struct cli_option options[] = {
        {"num_tokens", CLI_INT, &x.num_tokens, 0, MAX_DIMENSION, NULL, "N",
         "tokens of a step (2633); not for attention"},
        {"num_blocks", CLI_INT, &x.num_blocks, 1, MAX_DIMENSION, NULL, "N", "blocks (9760)"},
        {"block_size", CLI_INT, &x.block_size, 1, MAX_DIMENSION, NULL, "N",
         "tokens of a block (128)"},
        {"num_kv_heads", CLI_INT, &x.num_kv_heads, 1, MAX_DIMENSION, NULL, "N", "heads (2)"},
        {"head_size", CLI_INT, &x.head_size, 1, MAX_DIMENSION, NULL, "N",
         "elements of a head (256)"},
        {"value_head_size", CLI_INT, &x.value_head_size, 1, MAX_DIMENSION, NULL, "N",
         "elements of a value head (as head_size)"},
        {"dtype", CLI_TEXT, &x.dtype, 0, 0, NULL, "NAME", "element type: f32, bf16, u8 ... (bf16)"},
        {"key_layout", CLI_CHOICE, &x.key_layout, 0, 0, cli_layouts, NULL, "key layout (NHD)"},
        {"value_layout", CLI_CHOICE, &x.value_layout, 0, 0, cli_layouts, NULL,
         "value layout (NHD)"},
        {"cache_mode", CLI_CHOICE, &x.cache_mode, 0, 0, cli_cache_modes, NULL,
         "both layouts in the published spelling: Norm is NHD, NHSD is HND"},
        {"key_only", CLI_FLAG, &x.key_only, 0, 0, NULL, NULL, "no value"},
        {"num_heads", CLI_INT, &x.num_heads, 1, MAX_DIMENSION, NULL, "N",
         "attention: query heads (as num_kv_heads)"},
        {"num_seqs", CLI_INT, &x.num_seqs, 1, EXPLAIN_MAX_SEQS, NULL, "N",
         "attention: sequences (8)"},
        {"seq_len", CLI_INT, &x.seq_len, 1, MAX_DIMENSION, NULL, "N",
         "attention: tokens of each sequence (4096)"},
        {"query_len", CLI_INT, &x.query_len, 1, MAX_DIMENSION, NULL, "N",
         "attention: the last of them that are queries (1)"},
        CLI_CONTEXT_OPTIONS(&x.choice),
        {.name = NULL}};
    const struct cli_syntax syntax = {
        "explain",
        "explain scatter_pa_kv_cache|gather_pa_kv_cache|paged_attention [--option value ...]",
        "Tells what a plan of that operator would do. No cache memory is touched.",
        options,
        NULL,
        NULL};
    int first = 0;
    int status = cli_parse(&syntax, argc, argv, &first);
    if (status != CLI_CONTINUE)
        return status;
    status = take_operator(&x, argc - first, argv + first);
    if (status != CLI_CONTINUE)
        return status;
    struct cli_context context;
    status = cli_context_create(&context, "explain", &x.choice);
    if (status != CLI_CONTINUE)
        return status;
    status = explain(&context, &x);
    cli_context_destroy(&context);
    return status;
}
