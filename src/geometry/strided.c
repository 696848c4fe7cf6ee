/* SPDX-License-Identifier: MIT
 *
 * Overlap of sets of bytes in regular steps: peel the largest stride of both, keep the few pairs of
 * steps whose spans meet, and ask again inside.
 */
#include "geometry/strided.h"

#include "geometry/tensor.h"

struct pkv_strided pkv_strided_bytes(const void *first, int64_t unit) {
    return (struct pkv_strided){.first = (int64_t)(uintptr_t)first, .unit = unit};
}

void pkv_strided_add(struct pkv_strided *set, int64_t count, int64_t stride) {
    if (count == 0)
        set->unit = 0;
    if (count <= 1 || set->unit == 0)
        return;
    if (set->ndim == 0 && stride == set->unit) {
        set->unit *= count;
        return;
    }
    int32_t at = set->ndim++;
    for (; at > 0 && set->stride[at - 1] < stride; at--) {
        set->count[at] = set->count[at - 1];
        set->stride[at] = set->stride[at - 1];
    }
    set->count[at] = count;
    set->stride[at] = stride;
}

struct pkv_strided pkv_strided_from_tensor(const struct pkv_tensor *tensor) {
    const int64_t element_bytes = pkv_dtype_bytes(tensor->dtype);
    struct pkv_strided set = pkv_strided_bytes(tensor->data, element_bytes);
    if (pkv_tensor_num_elements(tensor) == 0) {
        set.unit = 0;
        return set;
    }
    for (int32_t i = tensor->ndim - 1; i >= 0; i--)
        pkv_strided_add(&set, tensor->shape[i], tensor->strides[i] * element_bytes);
    return set;
}

static int64_t span_from(const struct pkv_strided *set, int32_t dim) {
    int64_t span = set->unit;
    for (int32_t i = dim; i < set->ndim; i++)
        span += (set->count[i] - 1) * set->stride[i];
    return span;
}

int64_t pkv_strided_span(const struct pkv_strided *set) {
    return set->unit == 0 ? 0 : span_from(set, 0);
}

bool pkv_strided_is_injective(const struct pkv_strided *set) {
    if (set->unit == 0)
        return true;
    for (int32_t i = 0; i < set->ndim; i++) {
        if (set->stride[i] < span_from(set, i + 1))
            return false;
    }
    return true;
}

/* The quotient rounded down; b > 0. */
static int64_t floor_div(int64_t a, int64_t b) {
    return a / b - (a % b < 0);
}

/* More steps than this are not looked at one by one: the answer is then "may". */
enum { MAX_STEPS = 4 };

/* Do a's bytes from dimension i on, at offset 0, and b's from dimension j on, at offset delta,
 * meet? */
static bool meet(const struct pkv_strided *a, int32_t i, const struct pkv_strided *b, int32_t j,
                 int64_t delta) {
    const int64_t span_a = span_from(a, i), span_b = span_from(b, j);
    if (delta >= span_a || delta <= -span_b)
        return false;
    const int64_t stride_a = i < a->ndim ? a->stride[i] : 0;
    const int64_t stride_b = j < b->ndim ? b->stride[j] : 0;
    if (stride_a == 0 && stride_b == 0)
        return true;

    /* Step k puts the inner sets at distance delta - k * stride; only a few k bring them together.
     */
    int64_t stride, lowest, highest;
    int32_t next_a = i, next_b = j;
    if (stride_a == stride_b) {
        stride = stride_a;
        lowest = -(b->count[j] - 1);
        highest = a->count[i] - 1;
        next_a++;
        next_b++;
    } else if (stride_a > stride_b) {
        stride = stride_a;
        lowest = 0;
        highest = a->count[i] - 1;
        next_a++;
    } else {
        stride = stride_b;
        lowest = -(b->count[j] - 1);
        highest = 0;
        next_b++;
    }
    const int64_t inner_a = span_from(a, next_a), inner_b = span_from(b, next_b);
    const int64_t from = floor_div(delta - inner_a, stride) + 1;
    const int64_t to = -floor_div(-(delta + inner_b), stride) - 1;
    lowest = from > lowest ? from : lowest;
    highest = to < highest ? to : highest;
    if (highest - lowest >= MAX_STEPS)
        return true;
    for (int64_t k = lowest; k <= highest; k++) {
        if (meet(a, next_a, b, next_b, delta - k * stride))
            return true;
    }
    return false;
}

bool pkv_strided_may_overlap(const struct pkv_strided *a, const struct pkv_strided *b) {
    return a->unit > 0 && b->unit > 0 && meet(a, 0, b, 0, b->first - a->first);
}
