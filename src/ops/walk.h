/* SPDX-License-Identifier: MIT
 *
 * A walk over entries that are checked already.
 */
#ifndef PKV_OPS_WALK_H
#define PKV_OPS_WALK_H

#include <pagedkv/walk.h>

#include "geometry/vector.h"

void pkv_walk_start(struct pkv_walk *walk, const struct pkv_cache *cache,
                    const struct pkv_vector *block_table, int64_t first_token, int64_t num_tokens);

#endif
