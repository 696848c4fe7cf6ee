/* SPDX-License-Identifier: MIT
 *
 * See compressed.h. The rules are those of the specification, written down once more: A, then the
 * mean of B, then C.
 */
#include "compressed.h"

#include "numbers.h"

#include <pagedkv/scatter.h>

#include <string.h>

int64_t comp_num_rows(const struct comp_case *it) {
    int64_t sum = 0;

    if (it->padded_len >= 0) {
        return it->num_seqs * it->padded_len;
    }
    for (int64_t b = 0; b < it->num_seqs; b++) {
        sum += it->seq_lens[b];
    }
    return sum;
}

int comp_is_whole(const struct comp_case *it, int64_t task) {
    return it->offsets[task] == -1 || it->lens[task] == 0 ||
           it->offsets[task] == it->seq_lens[task / it->num_heads];
}

int64_t comp_length(const struct comp_case *it, int64_t task) {
    int64_t seq = it->seq_lens[task / it->num_heads];

    if (it->mode == PKV_SCATTER_MODE_ALIBI) {
        return it->lens[task];
    }
    if (comp_is_whole(it, task)) {
        return seq;
    }
    return seq - it->lens[task] + (it->mode == PKV_SCATTER_MODE_ROPE);
}

void comp_draw(struct comp_case *it, int64_t max_seq, struct test_rng *rng) {
    for (int64_t b = 0; b < it->num_seqs; b++) {
        int64_t most = it->padded_len >= 0 && it->padded_len < max_seq ? it->padded_len : max_seq;

        it->seq_lens[b] = test_rng_between(rng, 0, most);
    }
    for (int64_t t = 0; t < it->num_seqs * it->num_heads; t++) {
        int64_t seq = it->seq_lens[t / it->num_heads];
        int64_t style = test_rng_below(rng, 8);

        if (t % it->num_heads > 0 && style >= 6) { /* the window of the head before */
            it->lens[t] = it->lens[t - 1];
            it->offsets[t] = it->offsets[t - 1];
            continue;
        }
        it->lens[t] = style == 0 ? 0 : style == 1 ? seq : test_rng_between(rng, 0, seq);
        it->offsets[t] = style == 2   ? -1
                         : style == 3 ? 0
                         : style == 4 ? seq - it->lens[t]
                                      : test_rng_between(rng, -1, seq - it->lens[t]);
        if (it->mode == PKV_SCATTER_MODE_ALIBI) {
            continue;
        }
        if (style == 0 && test_rng_below(rng, 2)) { /* without a window one number may be any */
            it->offsets[t] = test_rng_between(rng, -9, 2 * max_seq);
        } else if (style == 2 || style == 5) {
            it->offsets[t] = style == 2 ? -1 : seq;
            it->lens[t] = test_rng_between(rng, 0, 2 * max_seq);
        }
    }
}

int64_t comp_place(struct comp_case *it, int64_t max_gap, int64_t skip, struct test_rng *rng) {
    int64_t order[COMP_MAX_TASKS];
    int64_t num_tasks = it->num_seqs * it->num_heads;
    int64_t next = 0;

    test_rng_permutation(rng, order, num_tasks);
    for (int64_t i = 0; i < num_tasks; i++) {
        int64_t t = order[i];

        next += test_rng_between(rng, 0, max_gap);
        it->slots[t] = next;
        if (skip > 0 && test_rng_below(rng, skip) == 0) {
            it->slots[t] = -test_rng_between(rng, 1, 1000);
            it->lens[t] = test_rng_between(rng, -5, 1000);
            it->offsets[t] = test_rng_between(rng, -5, 1000);
            continue;
        }
        next += comp_length(it, t);
    }
    return next + test_rng_between(rng, 0, max_gap);
}

static const void *source_element(const struct comp_case *it, const struct model_part *part,
                                  const struct ref_rows *rows, const void *src, int64_t seq,
                                  int64_t head, int64_t token, int64_t d) {
    int64_t row = token;

    for (int64_t b = 0; b < seq; b++) {
        row += it->padded_len >= 0 ? it->padded_len : it->seq_lens[b];
    }
    return (const char *)src +
           (row * rows->strides[0] + head * rows->strides[1] + d * rows->strides[2]) *
               part->ref.element_bytes;
}

static void *cache_element(const struct model_part *part, void *cache, int64_t slot, int64_t d) {
    return (char *)cache + ref_part_index(&part->ref, slot / part->ref.block_size,
                                          slot % part->ref.block_size, 0, d) *
                               part->ref.element_bytes;
}

static void mean_element(const struct comp_case *it, const struct model_part *part,
                         const struct ref_rows *rows, const void *src, int64_t task, int64_t d,
                         void *to) {
    const struct num_format *format = num_format_of(part->tensor.dtype);
    int64_t w = it->lens[task];
    float sum = 0.0f;
    int64_t total = 0;

    for (int64_t i = 0; i < w; i++) {
        uint32_t code =
            num_read(format, source_element(it, part, rows, src, task / it->num_heads,
                                            task % it->num_heads, it->offsets[task] + i, d));

        if (num_is_float(format)) {
            sum = sum + (float)num_float_of_code(format, code);
        } else {
            total += num_integer_of_code(format, code);
        }
    }
    num_write(format, to,
              num_is_float(format) ? num_code_of_float(format, sum / (float)w)
                                   : (uint32_t)(total / w));
}

void comp_scatter(const struct comp_case *it, const struct model_part *part, void *cache,
                  const struct ref_rows *rows, const void *src) {
    for (int64_t t = 0; t < it->num_seqs * it->num_heads; t++) {
        int64_t seq = it->seq_lens[t / it->num_heads];
        int64_t row = it->slots[t];
        int64_t w = it->lens[t];
        int64_t o = it->offsets[t];

        for (int64_t i = 0; i < seq && it->slots[t] >= 0; i++) {
            int keep = it->mode == PKV_SCATTER_MODE_ALIBI
                           ? i >= seq - w
                           : comp_is_whole(it, t) || i < o || i >= o + w;
            int mean = it->mode == PKV_SCATTER_MODE_ROPE && !comp_is_whole(it, t) && i == o;

            for (int64_t d = 0; d < part->ref.head_size && (keep || mean); d++) {
                if (mean) {
                    mean_element(it, part, rows, src, t, d, cache_element(part, cache, row, d));
                } else {
                    memcpy(cache_element(part, cache, row, d),
                           source_element(it, part, rows, src, t / it->num_heads, t % it->num_heads,
                                          i, d),
                           (size_t)part->ref.element_bytes);
                }
            }
            row += keep || mean;
        }
    }
}

struct model_rows comp_rows_make(const struct comp_case *it, enum model_rows_kind kind,
                                 const struct model_part *part, enum test_guard_side side,
                                 struct test_rng *rng) {
    struct model_part heads = *part;
    struct model_rows rows;

    heads.ref.num_heads = it->num_heads;
    rows = model_rows_make(kind, &heads, comp_num_rows(it), side, rng);
    if (it->padded_len >= 0) {
        struct pkv_tensor *tensor = &rows.tensor;

        for (int32_t i = 3; i > 0; i--) {
            tensor->shape[i] = tensor->shape[i - 1];
            tensor->strides[i] = tensor->strides[i - 1];
        }
        tensor->ndim = 4;
        tensor->shape[0] = it->num_seqs;
        tensor->shape[1] = it->padded_len;
        tensor->strides[0] = it->padded_len * tensor->strides[1];
    }
    return rows;
}

void comp_calm_rows(struct model_rows *rows, int32_t dtype, struct test_rng *rng) {
    const struct num_format *format = num_format_of(dtype);

    if (format == NULL || !num_is_float(format)) {
        return;
    }
    for (size_t at = 0; at + (size_t)format->bytes <= rows->memory.bytes;
         at += (size_t)format->bytes) {
        char *element = (char *)rows->memory.data + at;
        uint32_t sign = UINT32_C(1) << (format->bytes * 8 - 1);
        uint32_t mantissa = (UINT32_C(1) << format->mantissa_bits) - 1;
        uint32_t exponent = (uint32_t)(format->bias + test_rng_between(rng, -3, 3));

        num_write(format, element,
                  (num_read(format, element) & (sign | mantissa)) | exponent
                                                                        << format->mantissa_bits);
    }
    memcpy(rows->shadow, rows->memory.data, rows->memory.bytes);
}
