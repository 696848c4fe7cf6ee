/* SPDX-License-Identifier: MIT
 *
 * The kernel table: pure functions on raw pointers, offsets and counts. They know nothing of
 * tensors, layouts or slots; whoever calls has checked everything. The C version of each
 * (kernels/c/) is the definition; every other version writes the same bytes.
 *
 * Agreement class of all kernels here: EXACT. None reads or writes a byte that its arguments do not
 * name; every count may be zero; sources and destinations do not overlap; no pointer need be
 * aligned.
 */
#ifndef PKV_KERNELS_KERNELS_H
#define PKV_KERNELS_KERNELS_H

#include <stdint.h>

/* One contiguous copy: `bytes` bytes from src + src_offset to dst + dst_offset. */
struct pkv_span {
    int64_t dst_offset;
    int64_t src_offset;
    int64_t bytes;
};

/* Copies the spans in their order: when two destinations overlap, the later span's bytes stay. */
typedef void pkv_copy_spans_fn(char *dst, const char *src, const struct pkv_span *spans,
                               int64_t num_spans);

/* num_outer * num_inner pieces of piece_bytes each: piece (i, j) goes from
 * src + i * src_outer + j * src_inner to dst + i * dst_outer + j * dst_inner. Destinations are distinct;
 * sources may coincide. */
struct pkv_grid {
    int64_t piece_bytes;
    int64_t num_outer, dst_outer, src_outer;
    int64_t num_inner, dst_inner, src_inner;
};

/* Where a grid lies. */
struct pkv_place {
    int64_t dst_offset;
    int64_t src_offset;
};

/* Copies one grid at each place, in their order: when destinations of two places overlap, the later
 * place's bytes stay. */
typedef void pkv_copy_grids_fn(char *dst, const char *src, const struct pkv_grid *grid,
                               const struct pkv_place *places, int64_t num_places);

/* The smallest i with slots[i] >= bound, or num_slots. Entries are stride elements apart. */
typedef int64_t pkv_check_slots_fn(const void *slots, int64_t stride, int64_t num_slots,
                                   int64_t bound);

/* Of the entries first ... first + num_slots - 1, those with low <= slot < high, in order: their
 * slots to out_slots, their numbers to out_tokens (both have room for num_slots). Returns how many.
 */
typedef int64_t pkv_select_slots_fn(const void *slots, int64_t stride, int64_t first,
                                    int64_t num_slots, int64_t low, int64_t high,
                                    int64_t *out_slots, int64_t *out_tokens);

/* How a copy treats the caches. */
enum pkv_copy_kind {
    PKV_COPY_CACHED, /* ordinary stores */
    PKV_COPY_STREAM, /* streaming stores, and a fence at the end */
    PKV_NUM_COPY_KINDS
};

/* Integer types of slots. */
enum pkv_slot_type { PKV_SLOT_I16, PKV_SLOT_I32, PKV_SLOT_I64, PKV_NUM_SLOT_TYPES };

struct pkv_kernels {
    pkv_copy_spans_fn *copy_spans[PKV_NUM_COPY_KINDS];
    pkv_copy_grids_fn *copy_grids[PKV_NUM_COPY_KINDS];
    pkv_check_slots_fn *check_slots[PKV_NUM_SLOT_TYPES];
    pkv_select_slots_fn *select_slots[PKV_NUM_SLOT_TYPES];
    int32_t copy_level; /* enum pkv_cpu_level of the copies: their names in explanations */
};

/* Fills the table with the best kernels of a level (enum pkv_cpu_level, not BEST). Pure. */
void pkv_kernels_init(struct pkv_kernels *kernels, int32_t cpu_level);

/* The rungs of the ladder; each file fills in what it has. */
void pkv_kernels_init_c(struct pkv_kernels *kernels);
void pkv_kernels_init_avx2(struct pkv_kernels *kernels);
void pkv_kernels_init_avx512(struct pkv_kernels *kernels);
void pkv_kernels_init_neon(struct pkv_kernels *kernels);

#endif
