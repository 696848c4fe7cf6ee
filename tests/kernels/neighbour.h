/* SPDX-License-Identifier: MIT
 *
 * A second thread that writes the bytes beside what a kernel may write. A kernel that reads such a
 * byte and puts it back looks innocent to a canary, and takes away what its neighbour wrote. A
 * correct kernel never fails by this; how surely a wrong one does depends on the machine.
 */
#ifndef PAGEDKV_TESTS_NEIGHBOUR_H
#define PAGEDKV_TESTS_NEIGHBOUR_H

#include <stdbool.h>

enum { MAX_NEIGHBOURS = 8 };

/* Starts the thread. At most MAX_NEIGHBOURS bytes. */
void neighbour_start(char *const *bytes, int num_bytes);

/* How often it has written its bytes. */
int neighbour_rounds(void);

/* Ends it, if it runs; whether a byte that it wrote was changed by somebody else. */
bool neighbour_stop(void);

#endif
