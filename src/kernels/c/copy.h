/* SPDX-License-Identifier: MIT
 *
 * The definitions, by name: a better version may fall back on them for sizes that it does not
 * treat.
 */
#ifndef PKV_KERNELS_C_COPY_H
#define PKV_KERNELS_C_COPY_H

#include "kernels/kernels.h"

pkv_copy_spans_fn pkv_copy_spans_c;
pkv_copy_grids_fn pkv_copy_grids_c;
pkv_copy_columns_fn pkv_copy_columns_c;
pkv_copy_streams_fn pkv_copy_streams_c;

#endif
