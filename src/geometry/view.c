/* SPDX-License-Identifier: MIT
 *
 * Views with a valid shape, and the loop over tiles.
 */
#include "base/checked.h"
#include "base/error.h"
#include "geometry/tensor.h"

static enum pkv_status refuse_axis(struct pkv_error *error, const char *argument, int32_t axis,
                                   int64_t value, int64_t bound, const char *rule) {
    return pkv_error_set_axis(error, PKV_STATUS_SHAPE, "pkv_view_init", argument, axis, value,
                              bound, rule);
}

enum pkv_status pkv_view_init(struct pkv_view *view, const struct pkv_tensor *base,
                              const int64_t *shape, const int64_t *offsets,
                              const int64_t *valid_shape, struct pkv_error *error) {
    struct pkv_view made = {0};
    const enum pkv_status status =
        pkv_tensor_read(&made.tensor, base, &(struct pkv_where){__func__, "base", error});
    if (status != PKV_STATUS_OK)
        return status;
    if (view == NULL || (made.tensor.ndim > 0 && (shape == NULL || offsets == NULL)))
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, __func__,
                             view == NULL    ? "view"
                             : shape == NULL ? "shape"
                                             : "offsets",
                             PKV_ERROR_NONE, PKV_ERROR_NONE, PKV_ERROR_NONE, "must not be NULL");
    int64_t first = 0;
    bool empty = false;
    for (int32_t i = 0; i < made.tensor.ndim; i++) {
        const int64_t dimension = base->shape[i];
        if (shape[i] < 0)
            return refuse_axis(error, "shape", i, shape[i], PKV_ERROR_NONE, "must not be negative");
        if (offsets[i] < 0 || offsets[i] > dimension)
            return refuse_axis(error, "offsets", i, offsets[i], dimension,
                               "must lie between 0 and the tensor's dimension");
        const int64_t rest = dimension - offsets[i];
        const int64_t valid = valid_shape ? valid_shape[i] : (shape[i] < rest ? shape[i] : rest);
        if (valid < 0 || valid > shape[i])
            return refuse_axis(error, "valid_shape", i, valid, shape[i],
                               "must lie between 0 and the view's dimension");
        if (valid > rest)
            return refuse_axis(error, "valid_shape", i, valid, rest,
                               "must not reach beyond the tensor");
        made.valid[i] = valid;
        made.tensor.shape[i] = shape[i];
        empty = empty || valid == 0;
    }
    /* An empty view may start behind the last element, where no address need exist. */
    for (int32_t i = 0; !empty && i < made.tensor.ndim; i++)
        first += offsets[i] * made.tensor.strides[i];
    if (!empty)
        made.tensor.data = (char *)made.tensor.data + first * pkv_dtype_bytes(made.tensor.dtype);
    *view = made;
    return PKV_STATUS_OK;
}

enum pkv_status pkv_view_reshape(struct pkv_view *view, int32_t ndim, const int64_t *shape,
                                 struct pkv_error *error) {
    const int64_t none = PKV_ERROR_NONE;
    if (view == NULL || shape == NULL)
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, __func__,
                             view == NULL ? "view" : "shape", none, none, none, "must not be NULL");
    if (ndim < 1 || ndim > PKV_MAX_DIMS)
        return pkv_error_set(error, PKV_STATUS_RANK, __func__, "ndim", none, ndim, PKV_MAX_DIMS,
                             "must lie between 1 and the maximum");
    struct pkv_tensor old;
    const enum pkv_status status =
        pkv_tensor_read(&old, &view->tensor, &(struct pkv_where){__func__, "view", error});
    if (status != PKV_STATUS_OK)
        return status;
    const int64_t old_count = pkv_tensor_num_elements(&old);
    int64_t new_count = 1;
    for (int32_t i = 0; i < old.ndim; i++) {
        if (view->valid[i] != old.shape[i])
            return pkv_error_set_axis(error, PKV_STATUS_SHAPE, __func__, "view", i, view->valid[i],
                                      old.shape[i], "has a tail: valid must equal the dimension");
    }
    if (!pkv_tensor_is_contiguous(&old))
        return pkv_error_set(error, PKV_STATUS_STRIDE, __func__, "view", none, none, none,
                             "must be contiguous to be reshaped in place");
    bool empty = false;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return pkv_error_set_axis(error, PKV_STATUS_SHAPE, __func__, "shape", i, shape[i], none,
                                      "must not be negative");
        empty = empty || shape[i] == 0;
    }
    bool fits = true;
    for (int32_t i = 0; i < ndim && fits && !empty; i++)
        fits = pkv_checked_mul(new_count, shape[i], &new_count);
    if (empty)
        new_count = 0;
    if (!fits)
        new_count = INT64_MAX;
    if (new_count != old_count)
        return pkv_error_set(error, PKV_STATUS_SHAPE, __func__, "shape", none, new_count, old_count,
                             "must have as many elements as the view");
    struct pkv_view made = {.tensor = pkv_tensor_make(old.data, old.dtype, ndim, shape)};
    const enum pkv_status resolved = pkv_tensor_resolve(&made.tensor, error);
    if (resolved != PKV_STATUS_OK)
        return resolved;
    for (int32_t i = 0; i < ndim; i++)
        made.valid[i] = shape[i];
    *view = made;
    return PKV_STATUS_OK;
}

/* Inserts a factor into the descending list unless it is there. False when the list is full. */
static bool insert_factor(struct pkv_tile_loop *loop, int32_t factor) {
    int32_t at = 0;
    while (at < loop->num_unroll && loop->unroll[at] > factor)
        at++;
    if (at < loop->num_unroll && loop->unroll[at] == factor)
        return true;
    if (loop->num_unroll == PKV_MAX_UNROLL)
        return false;
    for (int32_t i = loop->num_unroll; i > at; i--)
        loop->unroll[i] = loop->unroll[i - 1];
    loop->unroll[at] = factor;
    loop->num_unroll++;
    return true;
}

enum pkv_status pkv_tile_loop_init(struct pkv_tile_loop *loop, int64_t total, int64_t tile,
                                   const int32_t *unroll, int32_t num_unroll,
                                   struct pkv_error *error) {
    const int64_t none = PKV_ERROR_NONE;
    if (loop == NULL || (unroll == NULL && num_unroll > 0))
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, __func__,
                             loop == NULL ? "loop" : "unroll", none, none, none,
                             "must not be NULL");
    if (total < 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "total", none, total, 0,
                             "must be at least");
    if (tile < 1)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "tile", none, tile, 1,
                             "must be at least");
    if (num_unroll < 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "num_unroll", none,
                             num_unroll, 0, "must be at least");
    struct pkv_tile_loop made = {.total = total, .tile = tile};
    bool room = insert_factor(&made, 1);
    for (int32_t i = 0; i < num_unroll; i++) {
        if (unroll[i] < 1)
            return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "unroll", i,
                                 unroll[i], 1, "must be at least");
        room = room && insert_factor(&made, unroll[i]);
    }
    if (!room)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, __func__, "num_unroll", none,
                             num_unroll, PKV_MAX_UNROLL,
                             "must not name more distinct factors, 1 included, than");
    int64_t largest;
    if (!pkv_checked_mul(tile, made.unroll[0], &largest))
        return pkv_error_set(error, PKV_STATUS_OVERFLOW, __func__, "tile", none, tile, none,
                             "must fit in 64 bits when multiplied by the largest factor");
    made.num_trips = total / tile + (total % tile != 0);
    *loop = made;
    return PKV_STATUS_OK;
}

/* Factors are tried from the largest: as long as the smaller ones divide the larger ones this is
 * the published order, and it covers every trip once for any list, because 1 is in it. */
int pkv_tile_loop_next(struct pkv_tile_loop *loop, struct pkv_tile *tile) {
    const int64_t left = loop->num_trips - loop->next_trip;
    if (left <= 0)
        return 0;
    int32_t at = 0;
    while (loop->unroll[at] > left)
        at++;
    tile->index = loop->next_trip;
    tile->unroll = loop->unroll[at];
    tile->offset = tile->index * loop->tile;
    tile->shape = tile->unroll * loop->tile;
    tile->valid =
        loop->total - tile->offset < tile->shape ? loop->total - tile->offset : tile->shape;
    loop->next_trip += tile->unroll;
    return 1;
}
