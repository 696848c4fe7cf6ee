/* SPDX-License-Identifier: MIT
 *
 * The run mode sim: the scalar definition of the operators, one tile of tokens at a time, one
 * element at a time, every address checked. With the native mode it shares the address formula and,
 * for means, the C definition.
 */
#ifndef PKV_OPS_SIM_H
#define PKV_OPS_SIM_H

#include "ops/scatter.h"

/* Tokens of a tile, as the published scatter chooses them by the elements of a row. */
int64_t pkv_sim_tile_tokens(int64_t kv_dim);

enum pkv_status pkv_sim_scatter(const struct pkv_scatter_job *job, int64_t part, int64_t num_parts,
                                struct pkv_error *error);

/* Row `token` of [rows, num_heads, head_size], resolved, to row `slot` of a part; and the mean of
 * num_tokens rows from first_token on, one head, of a type that has one. */
enum pkv_status pkv_sim_scatter_row(const struct pkv_cache_part *part, int64_t block_size,
                                    int64_t slot, const struct pkv_tensor *rows, int64_t token,
                                    const char *function, struct pkv_error *error);
enum pkv_status pkv_sim_mean_row(const struct pkv_cache_part *part, int64_t block_size,
                                 int64_t slot, const struct pkv_tensor *rows, int64_t first_token,
                                 int64_t num_tokens, enum pkv_mean_type type, const char *function,
                                 struct pkv_error *error);

/* Row `slot` of a part into row `token` of [rows, num_heads, head_size], resolved, and between two
 * parts. */
enum pkv_status pkv_sim_gather_row(const struct pkv_cache_part *part, int64_t block_size,
                                   int64_t slot, const struct pkv_tensor *rows, int64_t token,
                                   const char *function, struct pkv_error *error);
enum pkv_status pkv_sim_convert_row(const struct pkv_cache_part *src,
                                    const struct pkv_cache_part *dst, int64_t block_size,
                                    int64_t src_slot, int64_t dst_slot, const char *function,
                                    struct pkv_error *error);

#endif
