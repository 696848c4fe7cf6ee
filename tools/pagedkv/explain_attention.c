/* SPDX-License-Identifier: MIT
 *
 * pagedkv explain paged_attention: a step of sequences of equal length.
 */
#include "explain.h"

#include <stdlib.h>

/* Indices of such a step: blocks in order, and again from the first one when there are too few. */
struct indices {
    int32_t *table;
    int64_t width;
    int64_t *lengths, *starts;
};

/* Entries of a table that the tool makes: 1 GiB. */
enum { MAX_ENTRIES = 1 << 28 };

static void free_indices(struct indices *indices) {
    free(indices->table);
    free(indices->lengths);
    free(indices->starts);
}

static int make_indices(struct indices *indices, const struct explained *x) {
    const int64_t num_seqs = x->num_seqs;
    *indices = (struct indices){.width = (x->seq_len - 1) / x->block_size + 1};
    if (indices->width > MAX_ENTRIES / num_seqs)
        return cli_error("explain",
                         "a block table of %lld x %lld entries is too large; use fewer "
                         "or shorter sequences, or larger blocks",
                         (long long)num_seqs, (long long)indices->width);
    const int64_t num_entries = num_seqs * indices->width;
    indices->table = malloc((size_t)num_entries * sizeof(*indices->table));
    indices->lengths = malloc((size_t)num_seqs * sizeof(*indices->lengths));
    indices->starts = malloc((size_t)(num_seqs + 1) * sizeof(*indices->starts));
    if (!indices->table || !indices->lengths || !indices->starts) {
        free_indices(indices);
        return cli_error("explain", "there is no memory for a block table of %lld entries",
                         (long long)num_entries);
    }
    for (int64_t i = 0; i < num_entries; i++)
        indices->table[i] = (int32_t)(i % x->num_blocks);
    for (int64_t b = 0; b <= num_seqs; b++)
        indices->starts[b] = b * x->query_len;
    for (int64_t b = 0; b < num_seqs; b++)
        indices->lengths[b] = x->seq_len;
    return CLI_CONTINUE;
}

static enum pkv_status explain_step(const struct cli_context *context, const struct explained *x,
                                    const struct pkv_cache *cache, const struct indices *indices,
                                    struct pkv_attention_explanation *explanation,
                                    struct pkv_error *error) {
    const struct pkv_paged_attention_options options = {.struct_size = sizeof(options),
                                                        .num_heads = x->num_heads,
                                                        .value_head_size =
                                                            x->key_only ? x->value_head_size : 0};
    const struct pkv_step_options step_options = {.struct_size = sizeof(step_options)};
    const struct pkv_step_indices given = {
        .struct_size = sizeof(given),
        .block_table = pkv_tensor_make(indices->table, PKV_DTYPE_I32, 2,
                                       (int64_t[]){x->num_seqs, indices->width}),
        .seq_lens = pkv_tensor_make(indices->lengths, PKV_DTYPE_I64, 1, &x->num_seqs),
        .query_start_loc =
            pkv_tensor_make(indices->starts, PKV_DTYPE_I64, 1, (int64_t[]){x->num_seqs + 1})};
    struct pkv_paged_attention_plan *plan = NULL;
    struct pkv_step *step = NULL;
    enum pkv_status status =
        pkv_paged_attention_plan_create(&plan, context->context, cache, &options, error);
    if (status == PKV_STATUS_OK)
        status = pkv_step_create(&step, &step_options, error);
    if (status == PKV_STATUS_OK)
        status = pkv_step_set(context->context, step, cache, &given, error);
    if (status == PKV_STATUS_OK)
        status = pkv_paged_attention_explain(context->context, plan, step, explanation, error);
    pkv_step_destroy(step);
    pkv_paged_attention_plan_destroy(plan);
    return status;
}

static void print_explanation(const struct explained *x, const struct pkv_cache *cache,
                              const struct pkv_attention_explanation *e, int32_t num_threads) {
    const struct explained_run run = {
        e->run_mode, e->cpu_level, num_threads, {e->score_kernel, e->value_kernel}};
    explain_print_cache(x, cache, &run);
    printf("%-16s %lld in %lld sequence%s of %lld tokens, %lld rows of a query and a head\n",
           "queries", (long long)e->num_tokens, (long long)e->num_seqs, e->num_seqs == 1 ? "" : "s",
           (long long)x->seq_len, (long long)e->num_rows);
    printf("%-16s %lld of %lld token%s, read for %lld unit%s of rows and key heads\n", "tiles",
           (long long)e->num_tiles, (long long)e->tile_tokens, e->tile_tokens == 1 ? "" : "s",
           (long long)e->num_units, e->num_units == 1 ? "" : "s");
    printf("%-16s %lld bytes a tile (note: the unified buffer of an Ascend 910B has %d)\n", "tile",
           (long long)e->tile_bytes, PKV_UNIFIED_BUFFER_BYTES);
    if (e->num_pieces > 1)
        printf("%-16s %lld: the context of a unit is cut into %lld\n", "parts",
               (long long)e->num_parts, (long long)e->num_pieces);
    else
        printf("%-16s %lld\n", "parts", (long long)e->num_parts);
    printf("%-16s %lld read\n", "bytes", (long long)e->bytes_read);
    printf("%-16s %.4g, %.3g for each byte\n", "flops", e->flops,
           e->bytes_read > 0 ? e->flops / (double)e->bytes_read : 0.0);
}

int explain_attention(const struct cli_context *context, const struct explained *x,
                      const struct pkv_cache *cache) {
    struct indices indices;
    const int made = make_indices(&indices, x);
    if (made != CLI_CONTINUE)
        return made;
    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_attention_explanation explanation = {.struct_size = sizeof(explanation)};
    const enum pkv_status status = explain_step(context, x, cache, &indices, &explanation, &error);
    free_indices(&indices);
    if (status != PKV_STATUS_OK)
        return cli_library_error("explain", NULL, &error);
    print_explanation(x, cache, &explanation, context->num_threads);
    explain_print_time(context, (double)explanation.bytes_read, explanation.bytes_read);
    return CLI_OK;
}
