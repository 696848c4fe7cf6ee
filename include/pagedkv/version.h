/* SPDX-License-Identifier: MIT
 *
 * The version of the library: at compile time as macros, at run time as a function.
 * Stability: within one API major version no public function is removed and no field of a public
 * struct moves; option structs grow at their end only (see status.h on struct_size). Until 1.0 a
 * minor version may break both, the CHANGELOG says how, and the soname has both numbers.
 */
#ifndef PAGEDKV_VERSION_H
#define PAGEDKV_VERSION_H

#include <stdint.h>

#define PKV_VERSION_MAJOR 0
#define PKV_VERSION_MINOR 1
#define PKV_VERSION_PATCH 0

/* Marks a symbol that the shared library exports; everything else is hidden. */
#define PKV_API __attribute__((visibility("default")))
/* Marks a function whose result must be looked at. */
#define PKV_MUST_USE __attribute__((warn_unused_result))

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that runs: major * 10000 + minor * 100 + patch. Cannot fail; any
 * thread. */
PKV_API int32_t pkv_version(void);

#ifdef __cplusplus
}
#endif

#endif
