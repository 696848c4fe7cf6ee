/* SPDX-License-Identifier: MIT
 *
 * A walk over entries that are checked already.
 */
#ifndef PKV_OPS_SEQUENCE_H
#define PKV_OPS_SEQUENCE_H

#include <pagedkv/sequence.h>

#include "geometry/vector.h"

void pkv_sequence_start(struct pkv_sequence *sequence, const struct pkv_cache *cache,
                        const struct pkv_vector *block_table, int64_t first_token,
                        int64_t num_tokens);

#endif
