/* SPDX-License-Identifier: MIT
 *
 * What it costs to reach an OS page that nobody has used for a while: its address must be
 * translated, and the tables for that are the larger the more memory there is. Random slots pay it
 * for each row.
 */
#ifndef PAGEDKV_BENCH_TRANSLATION_H
#define PAGEDKV_BENCH_TRANSLATION_H

#include <stdint.h>

#include "cli_random.h"
#include "bench_rounds.h"

enum { BENCH_LOADS_AT_ONCE = 64 };

/* Time in ns of one of BENCH_LOADS_AT_ONCE loads that wait together, each of a line of a random
 * page of the memory. */
struct bench_spread cli_random_pages(const unsigned char *data, int64_t bytes,
                                     struct cli_random *random);

#endif
