/* SPDX-License-Identifier: MIT
 *
 * pagedkv: the paged KV cache of LLM inference. This header includes every other one, except the
 * adapters that need a library of their own (dlpack.h, executor_openmp.h, executor_pthreadpool.h).
 */
#ifndef PAGEDKV_PAGEDKV_H
#define PAGEDKV_PAGEDKV_H

#include <pagedkv/attention.h>
#include <pagedkv/audit.h>
#include <pagedkv/batch.h>
#include <pagedkv/blocks.h>
#include <pagedkv/cache.h>
#include <pagedkv/context.h>
#include <pagedkv/cpu.h>
#include <pagedkv/executor.h>
#include <pagedkv/explain.h>
#include <pagedkv/gather.h>
#include <pagedkv/nsa_compress.h>
#include <pagedkv/pool.h>
#include <pagedkv/pool_events.h>
#include <pagedkv/prefix.h>
#include <pagedkv/scatter.h>
#include <pagedkv/scatter_rows.h>
#include <pagedkv/seq.h>
#include <pagedkv/slots.h>
#include <pagedkv/status.h>
#include <pagedkv/step.h>
#include <pagedkv/tensor.h>
#include <pagedkv/version.h>
#include <pagedkv/walk.h>

#endif
