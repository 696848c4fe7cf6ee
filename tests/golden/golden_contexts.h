/* SPDX-License-Identifier: MIT
 *
 * The contexts in which goldens of attention are asked: the best level, the slower ones of this
 * architecture, and sim.
 */
#ifndef PAGEDKV_TESTS_GOLDEN_CONTEXTS_H
#define PAGEDKV_TESTS_GOLDEN_CONTEXTS_H

#include <pagedkv/context.h>
#include <pagedkv/cpu.h>

static const struct pkv_context_options context_options[] = {
    {0},
    {.max_cpu_level = PKV_CPU_LEVEL_C},
    {.run_mode = PKV_RUN_MODE_SIM},
#if defined(__x86_64__)
    {.max_cpu_level = PKV_CPU_LEVEL_AVX2},
    {.max_cpu_level = PKV_CPU_LEVEL_AVX512},
#endif
};
enum { NUM_CONTEXTS = sizeof(context_options) / sizeof(context_options[0]) };

#endif
