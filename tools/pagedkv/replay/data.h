/* SPDX-License-Identifier: MIT
 *
 * The bytes behind a replay: a cache whose rows are written through slot_mapping and read back when
 * a later request finds them. What a row holds follows from the block of the trace and the token in
 * it, so a block handed out wrongly, or too early, is seen as wrong bytes.
 */
#ifndef PAGEDKV_REPLAY_DATA_H
#define PAGEDKV_REPLAY_DATA_H

#include <pagedkv/tensor.h>

#include "replay/model.h"

struct replay_data;

/* Makes a cache of num_blocks blocks of the trace's block size, row_bytes a token. Returns NULL
 * after printing what failed. */
struct replay_data *replay_data_create(const struct trace *trace, int64_t num_blocks,
                                       int64_t row_bytes);
void replay_data_destroy(struct replay_data *data);

/* Moves the rows of one request whose blocks are in block_table: compares those of the first
 * num_hits blocks with what they must hold, and writes those of the others. Returns as
 * replay_pool. */
int replay_data_move(struct replay_data *data, const struct trace_request *request,
                     int64_t num_hits, const struct pkv_tensor *block_table,
                     struct replay_result *result);

#endif
