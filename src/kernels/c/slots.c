/* SPDX-License-Identifier: MIT
 *
 * Range checks and selection of slots, for each integer type. They read a few bytes a token beside
 * the kilobytes that a copy moves, and the compiler's code for them is fast enough on every level.
 */
#include "kernels/c/copy.h"

/* A tile of this many entries is reduced to its maximum without a branch before anyone looks
 * closer. */
enum { CHECK_TILE = 64 };

#define DEFINE_SLOT_KERNELS(type, name)                                                            \
    static int64_t check_##name(const void *slots, int64_t stride, int64_t num_slots,              \
                                int64_t bound) {                                                   \
        const type *slot = slots;                                                                  \
        int64_t i = 0;                                                                             \
        for (; stride == 1 && i + CHECK_TILE <= num_slots; i += CHECK_TILE) {                      \
            type largest = slot[i];                                                                \
            for (int64_t j = 1; j < CHECK_TILE; j++)                                               \
                largest = slot[i + j] > largest ? slot[i + j] : largest;                           \
            if (largest >= bound)                                                                  \
                break;                                                                             \
        }                                                                                          \
        for (; i < num_slots; i++) {                                                               \
            if (slot[i * stride] >= bound)                                                         \
                break;                                                                             \
        }                                                                                          \
        return i;                                                                                  \
    }                                                                                              \
                                                                                                   \
    static int64_t select_##name(const void *slots, int64_t stride, int64_t first,                 \
                                 int64_t num_slots, int64_t low, int64_t high, int64_t *out_slots, \
                                 int64_t *out_tokens) {                                            \
        const type *slot = (const type *)slots + first * stride;                                   \
        const uint64_t width = high > low ? (uint64_t)high - (uint64_t)low : 0;                    \
        int64_t count = 0;                                                                         \
        for (int64_t i = 0; i < num_slots; i++) {                                                  \
            const int64_t value = slot[i * stride];                                                \
            out_slots[count] = value;                                                              \
            out_tokens[count] = first + i;                                                         \
            /* Which thread owns a slot is as good as random: counting beats branching. */         \
            /* Below low the difference wraps around to more than any width. */                    \
            count += (uint64_t)value - (uint64_t)low < width;                                      \
        }                                                                                          \
        return count;                                                                              \
    }

DEFINE_SLOT_KERNELS(int16_t, i16)
DEFINE_SLOT_KERNELS(int32_t, i32)
DEFINE_SLOT_KERNELS(int64_t, i64)

void pkv_slots_init_c(struct pkv_kernels *kernels) {
    kernels->check_slots[PKV_SLOT_I16] = check_i16;
    kernels->check_slots[PKV_SLOT_I32] = check_i32;
    kernels->check_slots[PKV_SLOT_I64] = check_i64;
    kernels->select_slots[PKV_SLOT_I16] = select_i16;
    kernels->select_slots[PKV_SLOT_I32] = select_i32;
    kernels->select_slots[PKV_SLOT_I64] = select_i64;
}
