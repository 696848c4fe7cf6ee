/* SPDX-License-Identifier: MIT
 *
 * The operators of pagedkv run, as a table, and the calls of the library behind them. Checks of
 * tensors are the library's; here is only what a file and attributes leave open.
 */
#include "run.h"

#include <string.h>

/* In the order of enum pkv_scatter_mode; the empty argument is published, too: it means None. */
const char *const run_scatter_modes[] = {"None", "Nct", "Alibi", "Rope", "Omni", "", NULL};
/* In the order of enum pkv_duplicates. */
const char *const run_duplicates[] = {"last_wins", "reject", "assume_unique", NULL};

static int read_layouts(const struct run_call *call, int32_t *key_layout, int32_t *value_layout) {
    const struct run_attributes *attributes = &call->attributes;
    int32_t layouts[2];
    const int status =
        cli_choose_layouts(call->command, attributes->cache_mode, attributes->key_layout,
                           attributes->value_layout, layouts);
    *key_layout = layouts[0];
    *value_layout = layouts[1];
    return status;
}

static int run_scatter_update(struct run_call *call) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    const struct pkv_scatter_update_options options = {
        .struct_size = sizeof(options), .duplicates = (int32_t)call->attributes.duplicates};
    struct pkv_tensor *input = run_tensor(call, "input");
    if (pkv_scatter_update(call->cli.context, input, (int32_t)call->attributes.dim,
                           run_tensor(call, "index"), run_tensor(call, "src"), &options,
                           &error) != PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    run_output(call, "input", input);
    return CLI_OK;
}

/* Reads "K,V": two integers of at least min. */
static int read_pair(const struct run_call *call, const char *name, const char *text, int64_t min,
                     int64_t *key, int64_t *value) {
    char first[24];
    const char *comma = text ? strchr(text, ',') : NULL;
    if (text == NULL)
        return CLI_CONTINUE;
    if (comma && (size_t)(comma - text) < sizeof(first)) {
        memcpy(first, text, (size_t)(comma - text));
        first[comma - text] = '\0';
        if (cli_parse_int(first, min, INT64_MAX, key) == 0 &&
            cli_parse_int(comma + 1, min, INT64_MAX, value) == 0)
            return CLI_CONTINUE;
    }
    return cli_error(call->command, "--%s is '%s'; use two integers K,V of at least %lld", name,
                     text, (long long)min);
}

static int read_scatter_mode(struct run_call *call,
                             struct pkv_scatter_pa_kv_cache_options *options) {
    static const int32_t modes[] = {PKV_SCATTER_MODE_NONE,  PKV_SCATTER_MODE_NCT,
                                    PKV_SCATTER_MODE_ALIBI, PKV_SCATTER_MODE_ROPE,
                                    PKV_SCATTER_MODE_OMNI,  PKV_SCATTER_MODE_NONE};
    options->scatter_mode = modes[call->attributes.scatter_mode];
    options->compress_lens = run_tensor(call, "compress_lens");
    options->compress_seq_offset = run_tensor(call, "compress_seq_offset");
    options->seq_lens = run_tensor(call, "seq_lens");
    if (options->scatter_mode != PKV_SCATTER_MODE_NCT &&
        (call->attributes.strides || call->attributes.offsets))
        return cli_error(call->command, "--strides and --offsets belong to --scatter_mode Nct; "
                                        "leave them out or give that mode");
    int status = read_pair(call, "strides", call->attributes.strides, 1, &options->key_stride,
                           &options->value_stride);
    if (status == CLI_CONTINUE)
        status = read_pair(call, "offsets", call->attributes.offsets, 0, &options->key_offset,
                           &options->value_offset);
    return status;
}

static int run_scatter_pa_kv_cache(struct run_call *call) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_scatter_pa_kv_cache_options options = {
        .struct_size = sizeof(options), .duplicates = (int32_t)call->attributes.duplicates};
    int status = read_layouts(call, &options.key_layout, &options.value_layout);
    if (status == CLI_CONTINUE)
        status = read_scatter_mode(call, &options);
    if (status != CLI_CONTINUE)
        return status;
    struct pkv_tensor *key_cache = run_tensor(call, "key_cache");
    struct pkv_tensor *value_cache = run_tensor(call, "value_cache");
    if (pkv_scatter_pa_kv_cache(call->cli.context, run_tensor(call, "key"), key_cache,
                                run_tensor(call, "slot_mapping"), run_tensor(call, "value"),
                                value_cache, &options, &error) != PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    run_output(call, "key_cache", key_cache);
    if (value_cache)
        run_output(call, "value_cache", value_cache);
    return CLI_OK;
}

int run_refused(const struct run_call *call, const struct pkv_error *error,
                const struct run_name *names) {
    struct pkv_error named = *error;
    for (; names && names->argument; names++) {
        if (error->argument && strcmp(error->argument, names->argument) == 0)
            named.argument = names->tensor;
    }
    return cli_library_error(call->command, call->file, &named);
}

int run_describe_cache(struct run_call *call, const char *key_name, const char *value_name,
                       struct pkv_cache *cache) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_cache_options options = {.struct_size = sizeof(options),
                                        .num_kv_heads = call->attributes.num_kv_heads};
    const int status = read_layouts(call, &options.key_layout, &options.value_layout);
    if (status != CLI_CONTINUE)
        return status;
    const struct run_name names[] = {
        {"key_cache", key_name}, {"value_cache", value_name}, {NULL, NULL}};
    if (pkv_cache_init(cache, run_tensor(call, key_name), run_tensor(call, value_name), &options,
                       &error) != PKV_STATUS_OK)
        return run_refused(call, &error, names);
    return CLI_CONTINUE;
}

static int64_t read_index(const struct pkv_tensor *tensor, int64_t i) {
    return tensor->dtype == PKV_DTYPE_I64 ? ((const int64_t *)tensor->data)[i]
                                          : ((const int32_t *)tensor->data)[i];
}

/* The tokens that a gather yields. A step has accepted seq_lens, so the sum fits. */
static int64_t count_tokens(const struct pkv_tensor *seq_lens, bool is_cumulative) {
    const int64_t length = seq_lens->shape[0];
    int64_t num_tokens = 0;
    if (is_cumulative)
        return read_index(seq_lens, length - 1);
    for (int64_t i = 0; i < length; i++)
        num_tokens += read_index(seq_lens, i);
    return num_tokens;
}

/* Allocates the output of one part: as the library fills it in *out, as the file names it as an
 * output of the call. */
static int add_gathered(struct run_call *call, const char *name, const struct pkv_cache_part *part,
                        int64_t num_tokens, struct pkv_tensor *out) {
    if (num_tokens > INT64_MAX / part->row_bytes)
        return cli_error(call->command,
                         "%s: %lld tokens need more than 2^63 bytes; correct seq_lens", call->file,
                         (long long)num_tokens);
    void *data = run_alloc(call, num_tokens * part->row_bytes);
    if (data == NULL)
        return CLI_USAGE;
    const int64_t rows[] = {num_tokens, part->num_heads, part->head_size};
    *out = pkv_tensor_make(data, part->dtype, 3, rows);
    struct pkv_tensor named = *out;
    if (part->layout == PKV_LAYOUT_PA_NZ && call->attributes.num_kv_heads == 0) {
        const int64_t flat[] = {num_tokens, part->row_bytes / part->element_bytes};
        named = pkv_tensor_make(data, part->dtype, 2, flat);
    }
    run_output(call, name, &named);
    return CLI_CONTINUE;
}

static int gather(struct run_call *call, const struct pkv_cache *cache, struct pkv_step *step) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    const struct pkv_tensor *seq_lens = run_tensor(call, "seq_lens");
    const struct pkv_tensor *seq_offset = run_tensor(call, "seq_offset");
    struct pkv_step_indices indices = {.struct_size = sizeof(indices),
                                       .seq_lens_cumulative =
                                           (int32_t)call->attributes.is_seq_lens_cumsum,
                                       .block_table = *run_tensor(call, "block_tables"),
                                       .seq_lens = *seq_lens};
    if (seq_offset)
        indices.seq_offsets = *seq_offset;
    static const struct run_name names[] = {
        {"block_table", "block_tables"}, {"seq_offsets", "seq_offset"}, {NULL, NULL}};
    if (pkv_step_set(call->cli.context, step, cache, &indices, &error) != PKV_STATUS_OK)
        return run_refused(call, &error, names);

    struct pkv_tensor key, value;
    const int64_t num_tokens = count_tokens(seq_lens, indices.seq_lens_cumulative != 0);
    const bool has_value = cache->value.data != NULL;
    if (add_gathered(call, "key", &cache->key, num_tokens, &key) != CLI_CONTINUE ||
        (has_value &&
         add_gathered(call, "value", &cache->value, num_tokens, &value) != CLI_CONTINUE))
        return CLI_USAGE;

    struct pkv_gather_plan *plan = NULL;
    enum pkv_status status = pkv_gather_plan_create(&plan, call->cli.context, cache, &error);
    if (status == PKV_STATUS_OK)
        status = pkv_gather_run(call->cli.context, plan, step, cache, &key,
                                has_value ? &value : NULL, &error);
    pkv_gather_plan_destroy(plan);
    return status == PKV_STATUS_OK ? CLI_OK : run_refused(call, &error, NULL);
}

/* With plan and step instead of the one call, so that hostile lengths are refused before memory for
 * their tokens is asked for. */
static int run_gather_pa_kv_cache(struct run_call *call) {
    struct pkv_cache cache;
    int status = run_describe_cache(call, "key_cache", "value_cache", &cache);
    if (status != CLI_CONTINUE)
        return status;
    const struct pkv_tensor *block_tables = run_tensor(call, "block_tables");
    const int64_t num_seqs = block_tables->ndim > 0 ? block_tables->shape[0] : 0;
    const struct pkv_step_options options = {.struct_size = sizeof(options),
                                             .max_seqs = num_seqs > 0 ? num_seqs : 1};
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_step *step = NULL;
    if (pkv_step_create(&step, &options, &error) != PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    status = gather(call, &cache, step);
    pkv_step_destroy(step);
    return status;
}

/* From block tables or, when there is none, from FlashInfer's page indices. */
static int run_slot_mapping(struct run_call *call) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    const struct pkv_tensor *positions = run_tensor(call, "positions");
    const struct pkv_tensor *block_table = run_tensor(call, "block_table");
    const bool has_pages = run_tensor(call, "batch_indices") || run_tensor(call, "kv_indices") ||
                           run_tensor(call, "kv_indptr") || run_tensor(call, "kv_last_page_len");
    const int64_t block_size = call->attributes.block_size;
    if (block_size == 0)
        return cli_error(call->command,
                         "the tensors do not tell the block size; give --block_size");
    if (has_pages && (block_table || run_tensor(call, "seq_ids")))
        return cli_error(call->command,
                         "%s: holds tensors of both forms; leave out block_table and seq_ids, or "
                         "batch_indices, kv_indices, kv_indptr and kv_last_page_len",
                         call->file);

    const int64_t num_tokens = positions->ndim == 1 ? positions->shape[0] : 0;
    if (num_tokens > INT64_MAX / (int64_t)sizeof(int64_t))
        return cli_error(call->command, "%s: positions has too many tokens; use fewer", call->file);
    void *data = run_alloc(call, num_tokens * (int64_t)sizeof(int64_t));
    if (data == NULL)
        return CLI_USAGE;
    const struct pkv_tensor slots = pkv_tensor_make(data, PKV_DTYPE_I64, 1, &num_tokens);
    const enum pkv_status status =
        has_pages
            ? pkv_slot_mapping_from_page_indices(
                  run_tensor(call, "batch_indices"), positions, run_tensor(call, "kv_indices"),
                  run_tensor(call, "kv_indptr"), run_tensor(call, "kv_last_page_len"), block_size,
                  0, &slots, &error)
            : pkv_slot_mapping_from_block_table(block_table, positions, run_tensor(call, "seq_ids"),
                                                block_size, 0, &slots, &error);
    if (status != PKV_STATUS_OK)
        return run_refused(call, &error, NULL);
    run_output(call, "slot_mapping", &slots);
    return CLI_OK;
}

#define CACHE_SHAPE "by layout: see pagedkv(1)"
#define LAYOUTS     "key_layout", "value_layout", "cache_mode"

/* clang-format off */
#define ROWS_PAIR(number) \
    {"source_" #number, true, true, NULL}, {"cache_" #number, true, true, NULL}
#define STATE(number) \
    {"out_" #number, true, false, NULL}, {"lse_" #number, true, false, NULL}
/* clang-format on */

const struct run_operator run_operators[] = {
    {"scatter_update",
     "overwrites rows of input with rows of src, at the row numbers in index; negative ones skip",
     "input",
     {{"input", false, true, "[rows, d], [1, rows, d] or [num_blocks, block_size, n, d]"},
      {"index", false, false, "[b, s] I16, I32 or I64"},
      {"src", false, true, "[b * s, d], [1, b * s, d] or [b, s, n, d]"}},
     {"dim", "duplicates"},
     run_scatter_update},
    {"scatter_pa_kv_cache",
     "writes the rows of new tokens to their slots; a negative slot skips its token",
     "key_cache, value_cache",
     {{"key", false, true,
       "[num_tokens, num_kv_heads, head_size]; Nct: [num_tokens, row]; Alibi, Rope, Omni: also "
       "[num_seqs, padded_len, num_heads, head_size]"},
      {"key_cache", false, true, CACHE_SHAPE "; Alibi, Rope, Omni: one head"},
      {"slot_mapping", false, false,
       "[num_tokens] I32 or I64; Alibi, Rope, Omni: [num_seqs, num_heads], or flat"},
      {"value", true, true, "as key, with its own head_size; none: key-only"},
      {"value_cache", true, true, CACHE_SHAPE},
      {"compress_lens", true, false,
       "[num_seqs, num_heads], or flat. Alibi: tokens kept; Rope, Omni: length of the window"},
      {"seq_lens", true, false, "[num_seqs]. Alibi, Rope, Omni"},
      {"compress_seq_offset", true, false,
       "[num_seqs, num_heads], or flat. Rope, Omni: first token of the window; -1: there is none"}},
     {LAYOUTS, "scatter_mode", "strides", "offsets", "duplicates"},
     run_scatter_pa_kv_cache},
    {"scatter_rows",
     "writes the rows of up to 16 sources to the same slots of their caches",
     "cache_0, cache_1, ...",
     {{"slot_mapping", false, false, "[num_tokens] I32 or I64; a negative slot skips its token"},
      {"source_0", false, true,
       "[num_tokens, row] or [num_tokens, num_heads, head_size]; source_1 to source_15 likewise"},
      {"cache_0", false, true,
       "[num_slots, row], [num_blocks, block_size, row] or [num_blocks, block_size, num_heads, "
       "head_size]; cache_1 to cache_15 likewise"},
      ROWS_PAIR(1),
      ROWS_PAIR(2),
      ROWS_PAIR(3),
      ROWS_PAIR(4),
      ROWS_PAIR(5),
      ROWS_PAIR(6),
      ROWS_PAIR(7),
      ROWS_PAIR(8),
      ROWS_PAIR(9),
      ROWS_PAIR(10),
      ROWS_PAIR(11),
      ROWS_PAIR(12),
      ROWS_PAIR(13),
      ROWS_PAIR(14),
      ROWS_PAIR(15)},
     {"duplicates"},
     run_scatter_rows},
    {"nsa_compress_with_cache",
     "compresses the windows that the newest tokens complete, one row each",
     "output_cache",
     {{"input", false, true, "[num_blocks, page_block_size, num_kv_heads, head_size] F16 or BF16"},
      {"weight", false, true, "[compress_block_size, num_kv_heads]"},
      {"slot_mapping", false, false, "[num_seqs] I32 or I64; a negative slot skips its sequence"},
      {"act_seq_len", false, false, "[num_seqs] I32 or I64, lengths with the newest token"},
      {"block_table", false, false, "[num_seqs, width] I32 or I64"},
      {"output_cache", false, true, "[num_rows, num_kv_heads, head_size]"}},
     {"compress_block_size", "compress_stride", "page_block_size"},
     run_nsa_compress_with_cache},
    {"gather_pa_kv_cache",
     "reads the rows of sequences back, in token order",
     "key, value: [num_tokens, num_kv_heads, head_size]; PA_NZ without --num_kv_heads: "
     "[num_tokens, kv_dim]",
     {{"key_cache", false, true, CACHE_SHAPE},
      {"value_cache", true, true, CACHE_SHAPE},
      {"block_tables", false, false, "[num_seqs, width] I32 or I64"},
      {"seq_lens", false, false, "[num_seqs + 1] running totals, or [num_seqs] lengths"},
      {"seq_offset", true, false, "[num_seqs], first token to read"}},
     {LAYOUTS, "is_seq_lens_cumsum", "num_kv_heads"},
     run_gather_pa_kv_cache},
    {"paged_attention",
     "attention of new tokens over the keys and values of their sequences, where they lie",
     "out: [num_tokens, num_heads, value head size], query's dtype; lse: [num_tokens, num_heads] "
     "F32",
     {{"query", false, false, "[num_tokens, num_heads, head_size] F32, F16 or BF16"},
      {"key_cache", false, true, CACHE_SHAPE},
      {"value_cache", true, true,
       CACHE_SHAPE "; none: values are the first part of each key (MLA)"},
      {"block_table", false, false, "[num_seqs, width] I32 or I64"},
      {"seq_lens", false, false, "[num_seqs] lengths, the new tokens included"},
      {"query_start_loc", false, false, "[num_seqs + 1] running totals of the new tokens"},
      {"seq_offset", true, false, "[num_seqs], first token that is there; seq_lens counts from it"},
      {"alibi_slopes", true, false, "[num_heads] F32"},
      {"sinks", true, false, "[num_heads] F32, joins the denominator"},
      {"mask", true, false,
       "[num_tokens, width] for the last positions of the sequence. BOOL: 0 is unseen; F32: is "
       "added"},
      {"k_scale", true, false, NULL},
      {"v_scale", true, false, NULL}},
     {LAYOUTS, "num_kv_heads", "scale", "causal", "window_left", "window_right", "softcap",
      "lse_base", "value_head_size", "num_shared_tokens", "products"},
     run_paged_attention},
    {"merge_states",
     "merges attention over disjoint sets of positions into attention over all of them",
     "out, of out_0's dtype; lse",
     {{"out_0", false, false,
       "[num_tokens, num_heads, head_size] F32, F16 or BF16; out_1 to out_15 likewise"},
      {"lse_0", false, false, "[num_tokens, num_heads] F32; lse_1 to lse_15 likewise"},
      STATE(1),
      STATE(2),
      STATE(3),
      STATE(4),
      STATE(5),
      STATE(6),
      STATE(7),
      STATE(8),
      STATE(9),
      STATE(10),
      STATE(11),
      STATE(12),
      STATE(13),
      STATE(14),
      STATE(15)},
     {"lse_base"},
     run_merge_states},
    {"copy_blocks",
     "copies whole blocks inside a cache",
     "key_cache, value_cache",
     {{"key_cache", false, true, CACHE_SHAPE},
      {"value_cache", true, true, CACHE_SHAPE},
      {"block_mapping", false, false, "[num_pairs, 2] I32 or I64, (source, destination)"}},
     {LAYOUTS},
     run_copy_blocks},
    {"swap_blocks",
     "copies whole blocks from one cache to another",
     "dst_key_cache, dst_value_cache",
     {{"key_cache", false, true, CACHE_SHAPE},
      {"value_cache", true, true, CACHE_SHAPE},
      {"dst_key_cache", false, true, "as key_cache, with its own num_blocks"},
      {"dst_value_cache", true, true, "as value_cache, with its own num_blocks"},
      {"block_mapping", false, false, "[num_pairs, 2] I32 or I64, (source, destination)"}},
     {LAYOUTS},
     run_swap_blocks},
    {"fill_blocks",
     "fills whole blocks with one value",
     "key_cache, value_cache",
     {{"key_cache", false, true, CACHE_SHAPE}, {"value_cache", true, true, CACHE_SHAPE}},
     {LAYOUTS, "value", "first", "num"},
     run_fill_blocks},
    {"convert_layout",
     "rewrites a cache into another layout",
     "cache",
     {{"cache", false, true, CACHE_SHAPE}},
     {"from", "to", "num_kv_heads", "block_size"},
     run_convert_layout},
    {"slot_mapping",
     "slots of tokens, from block tables or from FlashInfer's page indices",
     "slot_mapping [num_tokens] I64",
     {{"positions", false, false, "[num_tokens]; all are I32 or I64; a negative one is padding"},
      {"block_table", true, false, "[num_seqs, width]"},
      {"seq_ids", true, false, "[num_tokens]; not needed for one sequence or one token each"},
      {"batch_indices", true, false, "[num_tokens], instead of block_table and seq_ids"},
      {"kv_indices", true, false, "[num_pages]"},
      {"kv_indptr", true, false, "[num_seqs + 1]"},
      {"kv_last_page_len", true, false, "[num_seqs]"}},
     {"block_size"},
     run_slot_mapping},
    {NULL, NULL, NULL, {{NULL, false, false, NULL}}, {NULL}, NULL},
};
