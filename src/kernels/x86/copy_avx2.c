/* SPDX-License-Identifier: MIT
 *
 * The copies in AVX2: the shared bodies over this instruction set's vectors.
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/template/copy_columns.h"
#include "kernels/template/copy_grids.h"
#include "kernels/template/copy_streams.h"

void pkv_copy_init_avx2(struct pkv_kernels *kernels) {
    kernels->copy_spans[PKV_COPY_CACHED] = copy_spans_cached;
    kernels->copy_spans[PKV_COPY_STREAM] = copy_spans_stream;
    kernels->copy_grids[PKV_COPY_CACHED] = copy_grids_cached;
    kernels->copy_grids[PKV_COPY_STREAM] = copy_grids_stream;
    kernels->copy_columns[PKV_COPY_CACHED] = copy_columns_cached;
    kernels->copy_columns[PKV_COPY_STREAM] = copy_columns_stream;
    kernels->copy_streams[PKV_COPY_CACHED] = copy_streams_cached;
    kernels->copy_streams[PKV_COPY_STREAM] = copy_streams_stream;
}
