/* SPDX-License-Identifier: MIT
 *
 * Tensors, views with a valid shape, and the loop over tiles. Descriptions only: nothing here owns,
 * moves or reads a single element.
 */
#ifndef PAGEDKV_TENSOR_H
#define PAGEDKV_TENSOR_H

#include <pagedkv/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PKV_MAX_DIMS 8

/* Element types. Scatter, gather, copies and conversions of layout move bytes and take the first
 * twelve; indices are I32 or I64 (I16 too in scatter_update). */
enum pkv_dtype {
    PKV_DTYPE_INVALID = 0,
    PKV_DTYPE_F32 = 1,
    PKV_DTYPE_F16 = 2,
    PKV_DTYPE_BF16 = 3,
    PKV_DTYPE_I8 = 4,
    PKV_DTYPE_I16 = 5,
    PKV_DTYPE_I32 = 6,
    PKV_DTYPE_U8 = 7,
    PKV_DTYPE_U16 = 8,
    PKV_DTYPE_U32 = 9,
    PKV_DTYPE_HIFLOAT8 = 10,
    PKV_DTYPE_F8_E5M2 = 11,
    PKV_DTYPE_F8_E4M3FN = 12,
    PKV_DTYPE_I64 = 13,
    PKV_DTYPE_BOOL = 14
};

/* Bytes of one element; 0 for a number that is no dtype. */
PKV_API int64_t pkv_dtype_bytes(int32_t dtype);

/* "bf16", "f8_e4m3fn", ...; "invalid" for a number that is no dtype. Static. */
PKV_API const char *pkv_dtype_name(int32_t dtype);

/* The dtype of that name (as pkv_dtype_name spells it, case ignored); PKV_DTYPE_INVALID if there is
 * none, or name is NULL. */
PKV_API int32_t pkv_dtype_from_name(const char *name);

/* A non-owning description of elements in memory.
 * strides are in elements and must not be negative; all zero means contiguous, C order. data is
 * aligned to its element size. An absent optional tensor is one with ndim 0 and data NULL, or a
 * NULL pointer to the struct. A function that takes a tensor refuses one that cannot be used with
 * the statuses of pkv_tensor_resolve, and changes nothing in the description.
 * Where no two elements may share bytes, each stride has to be at least what the axes with smaller
 * strides span together: elements that only interleave are refused, too. */
struct pkv_tensor {
    void *data;
    int32_t dtype; /* enum pkv_dtype */
    int32_t ndim;  /* 0 to PKV_MAX_DIMS */
    int64_t shape[PKV_MAX_DIMS];
    int64_t strides[PKV_MAX_DIMS];
};

/* A contiguous tensor, as a value: pkv_tensor_make(data, PKV_DTYPE_BF16, 3, (int64_t[]){T, H, D}).
 * Checks nothing: whoever takes the tensor does. An ndim outside 0 to PKV_MAX_DIMS is kept, and
 * refused there; shape is read for at most PKV_MAX_DIMS entries, and all zero when it is NULL. */
PKV_API struct pkv_tensor pkv_tensor_make(void *data, int32_t dtype, int32_t ndim,
                                          const int64_t *shape);

/* Fills in strides that are all zero, and proves that the tensor can be used.
 *
 * tensor   in/out
 * effect   strides that were all zero become those of C order, in elements, also for dimensions of
 *          size 1; nothing else changes
 * errors   NULL_ARGUMENT (tensor; data of a tensor with elements), DTYPE (no enum pkv_dtype), RANK
 *          (ndim outside 0 to PKV_MAX_DIMS), SHAPE (a negative dimension), STRIDE (a negative
 *          stride), MISALIGNED (data to its element), OVERFLOW (more than 2^61 bytes, from the
 *          first to behind the last element, or of all elements)
 * threads  any
 * cost     no element is read, no allocation
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_tensor_resolve(struct pkv_tensor *tensor,
                                                        struct pkv_error *error);

/* A window on a tensor with a fixed shape of which only `valid` holds data: the tail tile of a loop
 * has the shape of every other tile and a smaller valid shape. Consumers visit valid, not shape. */
struct pkv_view {
    struct pkv_tensor tensor;    /* data: the window's first element; shape: the window's */
    int64_t valid[PKV_MAX_DIMS]; /* 0 <= valid[i] <= tensor.shape[i] */
};

/* A window of `shape` at `offsets`, of which `valid_shape` holds data.
 *
 * view         out
 * base         in, any rank; borrowed: the view's data points into its data
 * shape        [base->ndim] in, >= 0; may reach beyond base, as a tail tile does
 * offsets      [base->ndim] in, 0 <= offset <= dimension
 * valid_shape  [base->ndim] in, nullable: as much of shape as base has; else 0 <= valid <= shape
 *              and offset + valid <= dimension: the valid part lies inside the tensor
 * effect       *view is written; in an empty view, data is that of base
 * errors       of base those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE, STRIDE,
 *              MISALIGNED, OVERFLOW; and NULL_ARGUMENT (view; shape or offsets, unless base has
 *              rank 0), SHAPE (with the axis: shape, offsets or valid_shape out of its range)
 * threads      any
 * cost         no element is read, no allocation
 * source       PyPTO view; PyPTO-Gym AT-20
 */
PKV_MUST_USE PKV_API enum pkv_status
pkv_view_init(struct pkv_view *view, const struct pkv_tensor *base, const int64_t *shape,
              const int64_t *offsets, const int64_t *valid_shape, struct pkv_error *error);

/* The same elements under another shape, in place: no byte moves.
 *
 * view     in/out; contiguous and without a tail (valid equals shape), else it is refused
 * ndim     1 to PKV_MAX_DIMS
 * shape    [ndim] in, >= 0; the product must equal the view's number of elements
 * effect   the view has that shape, contiguous strides, and valid equal to shape
 * errors   of the view's tensor those of pkv_tensor_resolve: NULL_ARGUMENT, DTYPE, RANK, SHAPE,
 *          STRIDE, MISALIGNED, OVERFLOW; and NULL_ARGUMENT (view, shape), RANK (ndim), SHAPE (a
 *          negative dimension; the product differs; the view has a tail), STRIDE (not contiguous)
 * threads  any
 * cost     no element is read, no allocation
 * source   PyPTO reshape(inplace=True)
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_view_reshape(struct pkv_view *view, int32_t ndim,
                                                      const int64_t *shape,
                                                      struct pkv_error *error);

#define PKV_MAX_UNROLL 8

/* A loop over `total` items in tiles of `tile`: ceil(total / tile) trips, trip i covers
 * [i * tile, i * tile + min(total - i * tile, tile)). Unroll factors join neighbouring trips: the
 * largest factor runs as often as it fits, then the next; 1 is always among them. */
struct pkv_tile_loop {
    int64_t total;
    int64_t tile;
    int64_t num_trips;
    int64_t next_trip;
    int32_t num_unroll; /* factors, distinct, descending, the last one is 1 */
    int32_t unroll[PKV_MAX_UNROLL];
};

/* One iteration of that loop. */
struct pkv_tile {
    int64_t index;  /* the first trip of this iteration */
    int64_t unroll; /* how many trips it joins */
    int64_t offset; /* first item: index * tile */
    int64_t shape;  /* items of a full iteration: unroll * tile */
    int64_t valid;  /* items that exist: min(total - offset, shape); smaller only in the last one */
};

/* Prepares the loop. Example: total 13, tile 1, factors {8, 4} gives [0, 8), [8, 12), [12, 13).
 *
 * loop        out
 * total       >= 0, in items; 0 gives no iteration
 * tile        >= 1, in items
 * unroll      [num_unroll] in, nullable when num_unroll is 0; each >= 1; duplicates are dropped and
 *             1 is added
 * num_unroll  >= 0; with 1 at most PKV_MAX_UNROLL distinct factors may come together
 * errors      NULL_ARGUMENT (loop; unroll with num_unroll above 0), INVALID_ARGUMENT (total, tile,
 *             num_unroll or a factor out of its range; too many distinct factors), OVERFLOW (tile *
 *             largest factor)
 * threads     any
 * cost        no allocation
 * source      PyPTO loop_unroll; PyPTO-Gym AT-20
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_tile_loop_init(struct pkv_tile_loop *loop, int64_t total,
                                                        int64_t tile, const int32_t *unroll,
                                                        int32_t num_unroll,
                                                        struct pkv_error *error);

/* Fills *tile with the next iteration and returns 1, or returns 0 when none is left and leaves
 * *tile as it was. Neither may be NULL. */
PKV_API int pkv_tile_loop_next(struct pkv_tile_loop *loop, struct pkv_tile *tile);

#ifdef __cplusplus
}
#endif

#endif
