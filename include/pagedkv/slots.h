/* SPDX-License-Identifier: MIT
 *
 * Slot mappings from what engines hold: block tables and positions, or FlashInfer's page indices.
 */
#ifndef PAGEDKV_SLOTS_H
#define PAGEDKV_SLOTS_H

#include <pagedkv/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* slot_mapping[t] = block_table[s][p / block_size] * block_size + p % block_size, with p =
 * positions[t] and s = seq_ids[t].
 *
 * block_table   [num_seqs, max_num_blocks_per_seq] int32 or int64; only entries of these positions
 * are read positions     [num_tokens] int32 or int64; negative: padding, its slot is -1 seq_ids
 * [num_tokens] int32 or int64; NULL when num_seqs is 1, or num_tokens equals num_seqs (one token a
 * sequence) block_size    >= 1 num_blocks    blocks of the cache, the bound for block ids; 0: only
 * negative ids are refused slot_mapping  [num_tokens] int32 or int64, out; untouched on error
 * errors        NULL_ARGUMENT, DTYPE, RANK, SHAPE, STRIDE, MISALIGNED, OVERLAP, INVALID_ARGUMENT
 * (block_size, a seq_id), POSITION_OUT_OF_RANGE, BLOCK_OUT_OF_RANGE, OVERFLOW (a slot that does not
 * fit its dtype) threads       any; no state cost          two passes over the tokens; no
 * allocation
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_slot_mapping_from_block_table(
    const struct pkv_tensor *block_table, const struct pkv_tensor *positions,
    const struct pkv_tensor *seq_ids, int64_t block_size, int64_t num_blocks,
    const struct pkv_tensor *slot_mapping, struct pkv_error *error);

/* The same from FlashInfer's append form: sequence b owns pages kv_indices[kv_indptr[b]] ...
 * kv_indices[kv_indptr[b + 1] - 1], the last of which holds kv_last_page_len[b] tokens.
 *
 * batch_indices     [num_tokens] int32 or int64, which sequence
 * positions         [num_tokens] int32 or int64, token in the sequence; negative: padding, its slot
 * is -1 kv_indices        [num_pages] int32 or int64 kv_indptr         [num_seqs + 1] int32 or
 * int64, starts at 0, does not fall, ends at or below num_pages kv_last_page_len  [num_seqs] int32
 * or int64, 1 to block_size for a sequence with pages block_size, num_blocks, slot_mapping, errors,
 * threads, cost  as above; POSITION_OUT_OF_RANGE also for a position at or beyond the sequence's
 * length source            FlashInfer append_paged_kv_cache
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_slot_mapping_from_page_indices(
    const struct pkv_tensor *batch_indices, const struct pkv_tensor *positions,
    const struct pkv_tensor *kv_indices, const struct pkv_tensor *kv_indptr,
    const struct pkv_tensor *kv_last_page_len, int64_t block_size, int64_t num_blocks,
    const struct pkv_tensor *slot_mapping, struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
