/* SPDX-License-Identifier: MIT
 *
 * One call of scatter_pa_kv_cache in a compressed mode, on modelled data, with index tensors of any
 * dtype and of either shape. Needs cmocka.
 */
#ifndef PAGEDKV_TESTS_COMPRESSED_CALLS_H
#define PAGEDKV_TESTS_COMPRESSED_CALLS_H

#include "check.h"
#include "compressed.h"

/* The index tensors of a case. */
struct comp_indices {
    struct model_index slots;
    struct model_index lens;
    struct model_index offsets;
    struct model_index seq_lens;
};

static inline struct model_index comp_tasks_make(const struct comp_case *it, const int64_t *values,
                                                 struct test_rng *rng) {
    int64_t shape[2] = {it->num_seqs, it->num_heads};
    int64_t flat = it->num_seqs * it->num_heads;
    int32_t dtype = test_rng_below(rng, 2) ? PKV_DTYPE_I32 : PKV_DTYPE_I64;

    return test_rng_below(rng, 2) ? model_index_make(dtype, 2, shape, values)
                                  : model_index_make(dtype, 1, &flat, values);
}

static inline struct comp_indices comp_indices_make(const struct comp_case *it,
                                                    struct test_rng *rng) {
    int32_t dtype = test_rng_below(rng, 2) ? PKV_DTYPE_I32 : PKV_DTYPE_I64;

    return (struct comp_indices){
        .slots = comp_tasks_make(it, it->slots, rng),
        .lens = comp_tasks_make(it, it->lens, rng),
        .offsets = comp_tasks_make(it, it->offsets, rng),
        .seq_lens = model_index_make(dtype, 1, &it->num_seqs, it->seq_lens),
    };
}

static inline void comp_indices_free(struct comp_indices *indices) {
    model_index_free(&indices->slots);
    model_index_free(&indices->lens);
    model_index_free(&indices->offsets);
    model_index_free(&indices->seq_lens);
}

static inline void comp_indices_protect(struct comp_indices *indices) {
    test_guard_protect(&indices->slots.memory);
    test_guard_protect(&indices->lens.memory);
    test_guard_protect(&indices->offsets.memory);
    test_guard_protect(&indices->seq_lens.memory);
}

static inline struct pkv_scatter_pa_kv_cache_options
comp_options(const struct comp_case *it, const struct comp_indices *indices) {
    return (struct pkv_scatter_pa_kv_cache_options){
        .struct_size = sizeof(struct pkv_scatter_pa_kv_cache_options),
        .scatter_mode = it->mode,
        .compress_lens = &indices->lens.tensor,
        .compress_seq_offset = it->mode == PKV_SCATTER_MODE_ALIBI ? NULL : &indices->offsets.tensor,
        .seq_lens = &indices->seq_lens.tensor,
    };
}

/* value is NULL in a key-only cache. */
static inline enum pkv_status
comp_call(struct pkv_context *context, const struct model_cache *cache,
          const struct model_rows *key, const struct model_rows *value,
          const struct comp_indices *indices, const struct pkv_scatter_pa_kv_cache_options *options,
          struct pkv_error *error) {
    return pkv_scatter_pa_kv_cache(context, &key->tensor, &cache->key.tensor,
                                   &indices->slots.tensor, value ? &value->tensor : NULL,
                                   value ? &cache->value.tensor : NULL, options, error);
}

#endif
