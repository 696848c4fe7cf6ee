/* SPDX-License-Identifier: MIT
 *
 * Fuzz target: any bytes as operations on a pool and on the naive model, which must agree after
 * each.
 */
#include <stdint.h>

#include "pool_driver.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    pool_driver_run(data, size, NULL);
    return 0;
}
