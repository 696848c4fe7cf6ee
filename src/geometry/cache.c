/* SPDX-License-Identifier: MIT
 *
 * From the shape and strides of a cache tensor to the numbers of the address formula, and the proof
 * that no byte belongs to two elements.
 */
#include "geometry/cache.h"

#include <strings.h>

#include "base/checked.h"
#include "base/error.h"

/* Bytes of a fragment in the packed layouts: a 32-byte unit of the Ascend vector unit, and 16 bytes
 * as in vLLM's key cache. */
enum { NZ_BYTES = 32, X_BYTES = 16 };

/* Which axis of the tensor holds what; -1: the layout has no such axis. */
struct axes {
    int32_t ndim;
    int8_t block, token, head, fragment, element;
};

static const struct axes axes_of[] = {
    [PKV_LAYOUT_NHD] = {4, 0, 1, 2, -1, 3},        [PKV_LAYOUT_HND] = {4, 0, 2, 1, -1, 3},
    [PKV_LAYOUT_PA_NZ] = {4, 0, 2, -1, 1, 3},      [PKV_LAYOUT_X_PACKED] = {5, 0, 3, 1, 2, 4},
    [PKV_LAYOUT_TRANSPOSED] = {4, 0, 3, 1, 2, -1},
};
static const struct axes axes_of_nz_with_heads = {5, 0, 3, 1, 2, 4};

static const struct {
    const char *name;
    int32_t layout;
} layout_names[] = {
    {"NHD", PKV_LAYOUT_NHD},
    {"HND", PKV_LAYOUT_HND},
    {"PA_NZ", PKV_LAYOUT_PA_NZ},
    {"X_PACKED", PKV_LAYOUT_X_PACKED},
    {"TRANSPOSED", PKV_LAYOUT_TRANSPOSED},
    {"Norm", PKV_LAYOUT_NHD},
    {"NHSD", PKV_LAYOUT_HND},
};

const char *pkv_layout_name(int32_t layout) {
    return layout >= PKV_LAYOUT_NHD && layout <= PKV_LAYOUT_TRANSPOSED ? layout_names[layout].name
                                                                       : "unknown";
}

int32_t pkv_layout_from_name(const char *name) {
    for (size_t i = 0; name && i < sizeof(layout_names) / sizeof(layout_names[0]); i++) {
        if (strcasecmp(name, layout_names[i].name) == 0)
            return layout_names[i].layout;
    }
    return -1;
}

static enum pkv_status refuse_shape(const struct pkv_where *where, int32_t axis, int64_t value,
                                    int64_t bound, const char *rule) {
    return pkv_error_set_axis(where->error, PKV_STATUS_SHAPE, where->function, where->argument,
                              axis, value, bound, rule);
}

/* PA_NZ in four dimensions: the second axis runs over the fragments of all heads. */
static enum pkv_status split_nz_heads(struct pkv_cache_part *part, int64_t num_fragments,
                                      int64_t num_kv_heads, const struct pkv_where *where) {
    part->num_heads = num_kv_heads == 0 ? 1 : num_kv_heads;
    if (num_fragments % part->num_heads != 0)
        return pkv_error_set(
            where->error, PKV_STATUS_UNSUPPORTED, where->function, where->argument, PKV_ERROR_NONE,
            num_fragments, part->num_heads,
            "PA_NZ needs heads that are multiples of 32 bytes; its fragments do not "
            "divide by the number of heads");
    const int64_t fragments = num_fragments / part->num_heads;
    part->head_size = fragments * (part->fragment_bytes / part->element_bytes);
    part->head_stride_bytes = fragments * part->fragment_stride_bytes;
    return PKV_STATUS_OK;
}

/* Axes of size 1 may carry any stride; the formula never multiplies it by more than 0. Give them
 * the packed one, so that equal caches have equal numbers and flat ones are seen to be flat. */
static void settle_single_axes(struct pkv_cache_part *part, int64_t num_blocks,
                               int64_t block_size) {
    const int64_t fragments = part->head_size * part->element_bytes / part->fragment_bytes;
    if (fragments == 1)
        part->fragment_stride_bytes = part->fragment_bytes;
    if (part->num_heads == 1)
        part->head_stride_bytes = fragments * part->fragment_stride_bytes;
    if (block_size == 1)
        part->token_stride_bytes = num_blocks == 1 ? part->row_bytes : part->block_stride_bytes;
    if (num_blocks == 1)
        part->block_stride_bytes = block_size * part->token_stride_bytes;
}

/* The layout's own lengths: of a fragment and, from it, of a head. */
static enum pkv_status measure_fragments(struct pkv_cache_part *part, const struct pkv_tensor *t,
                                         const struct axes *axes, int64_t num_kv_heads,
                                         const struct pkv_where *where) {
    const int64_t length = axes->element < 0 ? 1 : t->shape[axes->element];
    const int64_t fixed = part->layout == PKV_LAYOUT_PA_NZ      ? NZ_BYTES / part->element_bytes
                          : part->layout == PKV_LAYOUT_X_PACKED ? X_BYTES / part->element_bytes
                                                                : length;
    if (length != fixed)
        return refuse_shape(where, axes->element, length, fixed,
                            "must hold the elements of one fragment of the layout");
    if (length > 1 && t->strides[axes->element] != 1)
        return pkv_error_set_axis(where->error, PKV_STATUS_STRIDE, where->function, where->argument,
                                  axes->element, t->strides[axes->element], 1,
                                  "must have the stride of adjacent elements");
    part->fragment_bytes = length * part->element_bytes;
    if (axes->fragment >= 0)
        part->fragment_stride_bytes = t->strides[axes->fragment] * part->element_bytes;
    if (axes->head < 0)
        return split_nz_heads(part, t->shape[axes->fragment], num_kv_heads, where);
    part->num_heads = t->shape[axes->head];
    part->head_stride_bytes = t->strides[axes->head] * part->element_bytes;
    part->head_size = length * (axes->fragment < 0 ? 1 : t->shape[axes->fragment]);
    if (num_kv_heads != 0 && num_kv_heads != part->num_heads)
        return refuse_shape(where, axes->head, part->num_heads, num_kv_heads,
                            "must be the number of key/value heads");
    return PKV_STATUS_OK;
}

enum pkv_status pkv_cache_part_init(struct pkv_cache_part *part, const struct pkv_tensor *tensor,
                                    int32_t layout, int64_t num_kv_heads, int64_t *num_blocks,
                                    int64_t *block_size, const struct pkv_where *where) {
    const int64_t none = PKV_ERROR_NONE;
    struct pkv_tensor t;
    const enum pkv_status status = pkv_tensor_read(&t, tensor, where);
    if (status != PKV_STATUS_OK)
        return status;
    if (!pkv_dtype_is_cache(t.dtype))
        return pkv_error_set(where->error, PKV_STATUS_DTYPE, where->function, where->argument, none,
                             t.dtype, none, "must have one of the twelve element types of a cache");
    const struct axes *axes = &axes_of[layout];
    if (layout == PKV_LAYOUT_PA_NZ && t.ndim == axes_of_nz_with_heads.ndim)
        axes = &axes_of_nz_with_heads;
    if (t.ndim != axes->ndim)
        return pkv_error_set(where->error, PKV_STATUS_RANK, where->function, where->argument, none,
                             t.ndim, axes->ndim,
                             "must have the number of dimensions of its layout");
    for (int32_t i = 0; i < t.ndim; i++) {
        if (t.shape[i] < 1)
            return refuse_shape(where, i, t.shape[i], 1, "must be at least");
    }
    *part = (struct pkv_cache_part){.data = t.data, .dtype = t.dtype, .layout = layout};
    part->element_bytes = pkv_dtype_bytes(t.dtype);
    part->block_stride_bytes = t.strides[axes->block] * part->element_bytes;
    part->token_stride_bytes = t.strides[axes->token] * part->element_bytes;
    const enum pkv_status measured = measure_fragments(part, &t, axes, num_kv_heads, where);
    if (measured != PKV_STATUS_OK)
        return measured;
    *num_blocks = t.shape[axes->block];
    *block_size = t.shape[axes->token];
    part->row_bytes = part->num_heads * part->head_size * part->element_bytes;
    settle_single_axes(part, *num_blocks, *block_size);

    const struct pkv_strided bytes = pkv_cache_part_bytes(part, *num_blocks, *block_size);
    if (!pkv_strided_is_injective(&bytes))
        return pkv_error_set(where->error, PKV_STATUS_STRIDE, where->function, where->argument,
                             none, none, none,
                             "has strides by which elements share bytes, or interleave");
    part->span_bytes = pkv_strided_span(&bytes);
    return PKV_STATUS_OK;
}

void pkv_cache_part_adopt_heads(struct pkv_cache_part *part, const struct pkv_cache_part *other) {
    const int64_t head_bytes = other->head_size * other->element_bytes;
    if (part->data == NULL || part->layout != PKV_LAYOUT_PA_NZ || part->num_heads != 1 ||
        part->dtype != other->dtype || part->row_bytes != other->row_bytes ||
        head_bytes % part->fragment_bytes != 0)
        return;
    part->num_heads = other->num_heads;
    part->head_size = other->head_size;
    part->head_stride_bytes = head_bytes / part->fragment_bytes * part->fragment_stride_bytes;
}

void pkv_cache_part_split_heads(struct pkv_cache_part *part, int64_t num_heads) {
    part->num_heads = num_heads;
    part->head_size /= num_heads;
    part->fragment_bytes /= num_heads;
    part->head_stride_bytes = part->fragment_bytes;
    part->fragment_stride_bytes = part->fragment_bytes;
}

enum pkv_status pkv_cache_refuse(const char *function, const char *argument,
                                 struct pkv_error *error) {
    return pkv_error_set(error, PKV_STATUS_BAD_STATE, function, argument, PKV_ERROR_NONE,
                         PKV_ERROR_NONE, PKV_ERROR_NONE, "must be filled by pkv_cache_init");
}

struct pkv_strided pkv_cache_part_row_bytes(const struct pkv_cache_part *part, int64_t row) {
    struct pkv_strided set =
        pkv_strided_bytes((const char *)part->data + row, part->fragment_bytes);
    pkv_strided_add(&set, part->head_size * part->element_bytes / part->fragment_bytes,
                    part->fragment_stride_bytes);
    pkv_strided_add(&set, part->num_heads, part->head_stride_bytes);
    return set;
}

struct pkv_strided pkv_cache_part_bytes(const struct pkv_cache_part *part, int64_t num_blocks,
                                        int64_t block_size) {
    struct pkv_strided set = pkv_cache_part_row_bytes(part, 0);
    pkv_strided_add(&set, block_size, part->token_stride_bytes);
    pkv_strided_add(&set, num_blocks, part->block_stride_bytes);
    return set;
}

static enum pkv_status check_options(const struct pkv_cache_options *options, const char *function,
                                     struct pkv_error *error) {
    const int64_t none = PKV_ERROR_NONE;
    const int32_t layouts[2] = {options->key_layout, options->value_layout};
    static const char *const names[2] = {"options->key_layout", "options->value_layout"};
    for (int32_t i = 0; i < 2; i++) {
        if (layouts[i] < PKV_LAYOUT_NHD || layouts[i] > PKV_LAYOUT_TRANSPOSED)
            return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, names[i], none,
                                 layouts[i], none, "must be one of enum pkv_layout");
    }
    if (options->format != PKV_FORMAT_PLAIN)
        return pkv_error_set(error, PKV_STATUS_LAYOUT, function, "options->format", none,
                             options->format, none, "must be one of enum pkv_format");
    if (options->reserved != 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "options->reserved",
                             none, options->reserved, 0, "must be");
    if (options->num_kv_heads < 0)
        return pkv_error_set(error, PKV_STATUS_INVALID_ARGUMENT, function, "options->num_kv_heads",
                             none, options->num_kv_heads, 0, "must be at least");
    return PKV_STATUS_OK;
}

enum pkv_status pkv_cache_init(struct pkv_cache *cache, const struct pkv_tensor *key_cache,
                               const struct pkv_tensor *value_cache,
                               const struct pkv_cache_options *options, struct pkv_error *error) {
    if (cache == NULL)
        return pkv_error_set(error, PKV_STATUS_NULL_ARGUMENT, __func__, "cache", PKV_ERROR_NONE,
                             PKV_ERROR_NONE, PKV_ERROR_NONE, "must not be NULL");
    struct pkv_cache_options chosen;
    enum pkv_status status =
        pkv_struct_read(&chosen, sizeof(chosen), options, __func__, "options", error);
    const bool key_only = pkv_tensor_is_absent(value_cache);
    if (status == PKV_STATUS_OK)
        status = check_options(&chosen, __func__, error);
    if (status != PKV_STATUS_OK)
        return status;

    struct pkv_cache made = {.struct_size = sizeof(made), .format = chosen.format};
    status = pkv_cache_part_init(&made.key, key_cache, chosen.key_layout, chosen.num_kv_heads,
                                 &made.num_blocks, &made.block_size,
                                 &(struct pkv_where){__func__, "key_cache", error});
    if (status != PKV_STATUS_OK)
        return status;
    if (!key_only) {
        const struct pkv_where where = {__func__, "value_cache", error};
        const int64_t heads = chosen.value_layout == PKV_LAYOUT_PA_NZ && value_cache->ndim == 4
                                  ? made.key.num_heads
                                  : chosen.num_kv_heads;
        int64_t num_blocks, block_size;
        status = pkv_cache_part_init(&made.value, value_cache, chosen.value_layout, heads,
                                     &num_blocks, &block_size, &where);
        /* A 4-D PA_NZ key does not tell its heads; a value of another layout does. */
        if (status == PKV_STATUS_OK && chosen.num_kv_heads == 0 && made.key.num_heads == 1 &&
            made.value.num_heads > 1 && chosen.key_layout == PKV_LAYOUT_PA_NZ)
            status = pkv_cache_part_init(&made.key, key_cache, chosen.key_layout,
                                         made.value.num_heads, &made.num_blocks, &made.block_size,
                                         &(struct pkv_where){__func__, "key_cache", error});
        if (status != PKV_STATUS_OK)
            return status;
        if (num_blocks != made.num_blocks)
            return pkv_error_set(error, PKV_STATUS_SHAPE, __func__, "value_cache", PKV_ERROR_NONE,
                                 num_blocks, made.num_blocks,
                                 "must have as many blocks as the key cache");
        if (block_size != made.block_size)
            return pkv_error_set(error, PKV_STATUS_SHAPE, __func__, "value_cache", PKV_ERROR_NONE,
                                 block_size, made.block_size,
                                 "must have the block_size of the key cache");
        if (made.value.num_heads != made.key.num_heads)
            return pkv_error_set(error, PKV_STATUS_SHAPE, __func__, "value_cache", PKV_ERROR_NONE,
                                 made.value.num_heads, made.key.num_heads,
                                 "must have as many heads as the key cache");
        const struct pkv_strided key =
            pkv_cache_part_bytes(&made.key, made.num_blocks, made.block_size);
        const struct pkv_strided value =
            pkv_cache_part_bytes(&made.value, made.num_blocks, made.block_size);
        if (pkv_strided_may_overlap(&key, &value))
            return pkv_error_set(error, PKV_STATUS_OVERLAP, __func__, "value_cache", PKV_ERROR_NONE,
                                 PKV_ERROR_NONE, PKV_ERROR_NONE,
                                 "must not share bytes with the key cache");
    }
    if (!pkv_checked_mul(made.num_blocks, made.block_size, &made.num_slots))
        return pkv_error_set(error, PKV_STATUS_OVERFLOW, __func__, "key_cache", PKV_ERROR_NONE,
                             made.num_blocks, made.block_size,
                             "has more slots than 64 bits can count with its block_size");
    *cache = made;
    return PKV_STATUS_OK;
}
