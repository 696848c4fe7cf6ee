/* SPDX-License-Identifier: MIT
 *
 * A hash table with open addressing and linear probing, which doubles when it is half full.
 */
#include "replay/id_table.h"

#include <stdlib.h>
#include <unistd.h>

#include "cli_random.h"

enum { FIRST_LOG_SLOTS = 12 };

uint64_t id_table_seed(void) {
    static uint64_t seed;
    if (seed == 0 && getentropy(&seed, sizeof(seed)) != 0)
        seed = 1;
    return seed;
}

/* Traces number their blocks from 0 in order, so keys below the number of slots keep their order
 * and meet nobody; what is above that decides by how much the others are moved. */
static int64_t place(const struct id_table *table, uint64_t key) {
    return (int64_t)((key ^ cli_mix(id_table_seed() ^ (key >> table->log_slots))) &
                     (uint64_t)(table->num_slots - 1));
}

static int enlarge(struct id_table *table) {
    struct id_table bigger = {.num_ids = table->num_ids,
                              .log_slots =
                                  table->log_slots ? table->log_slots + 1 : FIRST_LOG_SLOTS};
    bigger.num_slots = INT64_C(1) << bigger.log_slots;
    bigger.slots = calloc((size_t)bigger.num_slots, sizeof(*bigger.slots));
    bigger.keys = realloc(table->keys, (size_t)bigger.num_slots / 2 * sizeof(*bigger.keys));
    if (bigger.keys)
        table->keys = bigger.keys;
    if (bigger.slots == NULL || bigger.keys == NULL) {
        free(bigger.slots);
        return -1;
    }
    for (int32_t id = 0; id < bigger.num_ids; id++) {
        int64_t at = place(&bigger, bigger.keys[id]);
        while (bigger.slots[at] != 0)
            at = (at + 1) & (bigger.num_slots - 1);
        bigger.slots[at] = id + 1;
    }
    free(table->slots);
    *table = bigger;
    return 0;
}

int32_t id_table_number(struct id_table *table, uint64_t key,
                        bool (*same)(const void *user, int32_t id), const void *user) {
    if (table->num_ids * 2 >= table->num_slots && enlarge(table) != 0)
        return -1;
    int64_t at = place(table, key);
    while (table->slots[at] != 0) {
        const int32_t id = table->slots[at] - 1;
        if (table->keys[id] == key && (same == NULL || same(user, id)))
            return id;
        at = (at + 1) & (table->num_slots - 1);
    }
    if (table->num_ids == INT32_C(1) << 30)
        return -1;
    const int32_t id = (int32_t)table->num_ids++;
    table->keys[id] = key;
    table->slots[at] = id + 1;
    return id;
}

void id_table_free(struct id_table *table) {
    free(table->slots);
    free(table->keys);
    *table = (struct id_table){0};
}
