/* SPDX-License-Identifier: MIT
 *
 * The neighbour: writes, comes back, and looks whether its byte is still there.
 */
#include "neighbour.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    pthread_t thread;
    bool is_running;
    atomic_uchar *bytes[MAX_NEIGHBOURS];
    int num_bytes;
    atomic_bool stop;
    atomic_int rounds;
    bool lost; /* read after the thread has ended */
} neighbour;

static void *run(void *arg) {
    unsigned char value = 0;
    (void)arg;
    for (int i = 0; i < neighbour.num_bytes; i++)
        atomic_store_explicit(neighbour.bytes[i], value, memory_order_relaxed);
    while (!atomic_load_explicit(&neighbour.stop, memory_order_relaxed)) {
        for (int i = 0; i < neighbour.num_bytes; i++) {
            if (atomic_load_explicit(neighbour.bytes[i], memory_order_relaxed) != value)
                neighbour.lost = true;
            atomic_store_explicit(neighbour.bytes[i], (unsigned char)(value + 1),
                                  memory_order_relaxed);
        }
        value++;
        atomic_fetch_add_explicit(&neighbour.rounds, 1, memory_order_relaxed);
    }
    return NULL;
}

void neighbour_start(char *const *bytes, int num_bytes) {
    neighbour.num_bytes = num_bytes;
    for (int i = 0; i < num_bytes; i++)
        neighbour.bytes[i] = (atomic_uchar *)(void *)bytes[i];
    neighbour.lost = false;
    atomic_store(&neighbour.stop, false);
    atomic_store(&neighbour.rounds, 0);
    if (pthread_create(&neighbour.thread, NULL, run, NULL) != 0) {
        fprintf(stderr, "checkkern: no second thread\n");
        exit(1);
    }
    neighbour.is_running = true;
}

int neighbour_rounds(void) {
    return atomic_load_explicit(&neighbour.rounds, memory_order_relaxed);
}

bool neighbour_stop(void) {
    if (!neighbour.is_running)
        return false;
    atomic_store(&neighbour.stop, true);
    pthread_join(neighbour.thread, NULL);
    neighbour.is_running = false;
    return neighbour.lost;
}
