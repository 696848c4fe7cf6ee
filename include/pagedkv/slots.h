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
 * block_table   [num_seqs, max_num_blocks_per_seq] int32 or int64 in; only entries of these
 *               positions are read
 * positions     [num_tokens] int32 or int64 in; negative: padding, its slot is -1
 * seq_ids       [num_tokens] int32 or int64 in; nullable when num_seqs is 1, or num_tokens equals
 *               num_seqs (one token a sequence); not looked at for padding
 * block_size    >= 1
 * num_blocks    blocks of the cache, the bound for block ids; 0: only negative ids are refused
 * slot_mapping  [num_tokens] int32 or int64 out
 * effect        slot_mapping alone; as it was when the call fails
 * errors        of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *               STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (seq_ids, where it must be there),
 *               DTYPE (neither int32 nor int64), RANK, SHAPE (seq_ids or slot_mapping of another
 *               length than positions), STRIDE (slots that share bytes), OVERLAP (slot_mapping
 *               shares bytes with an input; one that only interleaves may be refused too),
 *               INVALID_ARGUMENT (block_size, num_blocks, a seq_id that is no sequence),
 *               POSITION_OUT_OF_RANGE (beyond the table's width), BLOCK_OUT_OF_RANGE (in an entry
 *               that is read), OVERFLOW (a slot that does not fit its dtype), INTERNAL (an input
 *               that changes during the call)
 * threads       any; no state
 * cost          two passes over the tokens; no allocation
 * source        vLLM slot mapping
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_slot_mapping_from_block_table(
    const struct pkv_tensor *block_table, const struct pkv_tensor *positions,
    const struct pkv_tensor *seq_ids, int64_t block_size, int64_t num_blocks,
    const struct pkv_tensor *slot_mapping, struct pkv_error *error);

/* The same from FlashInfer's append form: sequence b owns pages kv_indices[kv_indptr[b]] ...
 * kv_indices[kv_indptr[b + 1] - 1], the last of which holds kv_last_page_len[b] tokens.
 *
 * batch_indices     [num_tokens] int32 or int64 in, which sequence; not looked at for padding
 * positions         [num_tokens] int32 or int64 in, token in the sequence; negative: padding, its
 *                   slot is -1
 * kv_indices        [num_pages] int32 or int64 in; only pages of these positions are read
 * kv_indptr         [num_seqs + 1] int32 or int64 in, starts at 0, does not fall, ends at or below
 *                   num_pages
 * kv_last_page_len  [num_seqs] int32 or int64 in, 1 to block_size for a sequence with pages
 * block_size        >= 1
 * num_blocks        as above
 * slot_mapping      [num_tokens] int32 or int64 out
 * effect            slot_mapping alone; as it was when the call fails
 * errors            of each tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *                   STRIDE, MISALIGNED, OVERFLOW; and DTYPE (neither int32 nor int64), RANK, SHAPE
 *                   (batch_indices or slot_mapping of another length than positions; kv_indptr not
 *                   one longer than kv_last_page_len), STRIDE, OVERLAP (as above), INVALID_ARGUMENT
 *                   (block_size, num_blocks, a batch index that is no sequence, kv_indptr or
 *                   kv_last_page_len not as they say above), POSITION_OUT_OF_RANGE (at or beyond
 *                   the sequence's length), BLOCK_OUT_OF_RANGE (in a page that is read), OVERFLOW,
 *                   INTERNAL (as above)
 * threads           any; no state
 * cost              two passes over the tokens, one over the sequences; no allocation
 * source            FlashInfer append_paged_kv_cache
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
