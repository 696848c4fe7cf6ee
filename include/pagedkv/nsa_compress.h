/* SPDX-License-Identifier: MIT
 *
 * Windowed compression of native sparse attention: when the newest token of a sequence completes a
 * window, the weighted sum of the window's keys (or values) becomes one row of a second cache.
 */
#ifndef PAGEDKV_NSA_COMPRESS_H
#define PAGEDKV_NSA_COMPRESS_H

#include <pagedkv/context.h>
#include <pagedkv/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a window at the most. */
#define PKV_NSA_MAX_WINDOW 64

struct pkv_nsa_compress_options {
    size_t struct_size;
    int64_t compress_block_size; /* rows of a window, L; 0: as many as weight has */
    int64_t compress_stride;     /* from window to window, at most L; 0: 16 */
    int64_t page_block_size;     /* 0, or the second dimension of input */
};

/* For every sequence b of s = act_seq_len[b] tokens that completes a window, which is one with s >=
 * L and (s - L) a multiple of the stride, and whose slot is not negative:
 *
 *   output_cache[slot_mapping[b]][n][d] = sum over t of row(s - L + t)[n][d] * weight[t][n]
 *
 * with row(p) = input[block_table[b][p / page_block_size]][p % page_block_size]. All other
 * sequences write nothing, and their slots may hold anything.
 *
 * input         [num_blocks, page_block_size, num_kv_heads, head_size] f16 or bf16 in; any strides
 *               by which head_size is adjacent and no two elements share bytes
 * weight        [L, num_kv_heads] in, dtype of input; any strides; L a multiple of 16, at most
 *               PKV_NSA_MAX_WINDOW
 * slot_mapping  [num_seqs] int32 or int64 in
 * act_seq_len   [num_seqs] int32 or int64 in, lengths, the newest token included
 * block_table   [num_seqs, max_num_blocks_per_seq] int32 or int64 in; only entries of windows that
 *               are completed are read
 * output_cache  [num_rows, num_kv_heads, head_size] in/out, dtype of input; strides as input's
 * options       in, nullable: L of weight, stride 16; a stride is a multiple of 16, at most L
 * effect        the rows of the slots named by sequences that complete a window; all other bytes
 *               stay. A sequence with a negative slot is padding: nothing of it is looked at. No
 *               sequences succeed and do nothing
 * errors        of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *               STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (context), DTYPE (input neither f16
 *               nor bf16; weight or output_cache not that of input; an index neither int32 nor
 *               int64), RANK, SHAPE (an empty dimension of input, weight or output_cache; L not as
 *               above; heads, head_size or num_seqs that differ), STRIDE (input, output_cache),
 *               INVALID_ARGUMENT (an option; a negative length), POSITION_OUT_OF_RANGE (a length
 *               beyond the table's width), BLOCK_OUT_OF_RANGE (in an entry that is read),
 *               SLOT_OUT_OF_RANGE, DUPLICATE_SLOT (of sequences that complete a window), OVERLAP
 *               (output_cache shares bytes with another tensor, or may do so), STRUCT_SIZE,
 *               INTERNAL (sim: an access outside a tensor)
 * threads       the executor's, at most one for each 512 KiB to be read; the caller's alone when
 *               that makes one, and in sim
 * cost          per window L * num_kv_heads * head_size elements read, as many products and
 *               additions; no allocation
 * numerics      EXACT: products and sums in float32, each rounded; 8 consecutive products p are
 *               added as ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7)); then, of these R = L /
 *               8 sums, those from h on are added to the first ones, h the largest power of two
 *               below R, and the h that remain are halved likewise until one is left; rounded to
 *               nearest even. What is not a number becomes the positive quiet NaN
 * source        Ascend NsaCompressWithCache
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_nsa_compress_with_cache(
    struct pkv_context *context, const struct pkv_tensor *input, const struct pkv_tensor *weight,
    const struct pkv_tensor *slot_mapping, const struct pkv_tensor *act_seq_len,
    const struct pkv_tensor *block_table, const struct pkv_tensor *output_cache,
    const struct pkv_nsa_compress_options *options, struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
