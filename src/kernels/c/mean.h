/* SPDX-License-Identifier: MIT
 *
 * The definitions of the mean, by name: a better version falls back on them for channels that do
 * not fill a vector, and for those that are not adjacent.
 */
#ifndef PKV_KERNELS_C_MEAN_H
#define PKV_KERNELS_C_MEAN_H

#include "kernels/kernels.h"

pkv_mean_add_fn pkv_mean_add_f32_c, pkv_mean_add_f16_c, pkv_mean_add_bf16_c;
pkv_mean_add_fn pkv_mean_add_f8_e5m2_c, pkv_mean_add_f8_e4m3fn_c;
pkv_mean_add_fn pkv_mean_add_i8_c, pkv_mean_add_i16_c, pkv_mean_add_i32_c;
pkv_mean_add_fn pkv_mean_add_u8_c, pkv_mean_add_u16_c, pkv_mean_add_u32_c;

pkv_mean_store_fn pkv_mean_store_f32_c, pkv_mean_store_f16_c, pkv_mean_store_bf16_c;

#endif
