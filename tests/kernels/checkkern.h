/* SPDX-License-Identifier: MIT
 *
 * What a family of kernels tells checkkern, and what it may ask of it. checkkern.c owns levels,
 * crashes, counting and time; a family owns inputs, comparison and the definition in plain C.
 */
#ifndef PAGEDKV_TESTS_CHECKKERN_H
#define PAGEDKV_TESTS_CHECKKERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "rng.h"

#define COUNT(array)     ((int64_t)(sizeof(array) / sizeof((array)[0])))
#define PICK(rng, array) ((array)[test_rng_below((rng), COUNT(array))])

/* Any kernel; whoever calls it casts it back to its own type. */
typedef void kern_fn(void);

/* One kernel under test. */
struct kern {
    kern_fn *tested;
    kern_fn *reference; /* the C version; for that itself, the family's plain one, if it has one */
    kern_fn *c;         /* what it is timed against */
    int index;          /* which entry of the family */
    struct test_rng *rng; /* the same cases for every level */
};

/* A family: a row of the kernel table. */
struct kern_family {
    int num_entries;
    const char *const *names; /* of the entries, without the level */
    kern_fn *(*get)(const struct pkv_kernels *kernels, int index);
    /* The definition, written once more for the test; NULL where the check itself computes what is
     * wanted. */
    kern_fn *(*plain)(int index);
    void (*check)(const struct kern *kern);
    void (*bench)(const struct kern *kern);
    void (*describe)(void); /* prints the case that ran last, for a failure */
};

extern const struct kern_family kern_copy_spans;
extern const struct kern_family kern_copy_grids;
extern const struct kern_family kern_copy_streams;
extern const struct kern_family kern_copy_columns;
extern const struct kern_family kern_check_slots;
extern const struct kern_family kern_select_slots;
extern const struct kern_family kern_mean_add;
extern const struct kern_family kern_mean_store;
extern const struct kern_family kern_nsa_compress;
extern const struct kern_family kern_attention_scores;
extern const struct kern_family kern_attention_values;
extern const struct kern_family kern_attention_scores_dot;
extern const struct kern_family kern_attention_values_dot;
extern const struct kern_family kern_attention_softmax;
extern const struct kern_family kern_attention_factors;
extern const struct kern_family kern_attention_merge;
extern const struct kern_family kern_attention_load;
extern const struct kern_family kern_attention_store;
extern const struct kern_family kern_attention_pair;

/* Memory with a forbidden OS page right before its first and right behind its last byte; zeroed.
 * Faults in it are reported by its name. Lives until the program ends. */
struct kern_buffer {
    const char *name;
    unsigned char *data;
    int64_t bytes; /* a multiple of the OS page */
};

const struct kern_buffer *kern_buffer_make(const char *name, int64_t min_bytes);

/* From here on a write into it is a crash. */
void kern_buffer_protect(const struct kern_buffer *buffer);

/* Counts a case that is about to run. */
void kern_count_case(void);

/* Ends the check of this kernel as failed. */
_Noreturn void kern_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Ends the check as failed unless element [row][column] of a result is at most `bound` away from
 * what is wanted; a wanted infinity must be met, and what is wanted not to be a number must not be
 * one. */
void kern_near(const char *name, int64_t row, int64_t column, double is, double wanted,
               double bound);

/* Times call(kern->tested) beside call(kern->c) and prints both; bytes are those that one call
 * reads or writes, for GB/s. Without --bench it makes the call once, so that it cannot rot. */
void kern_time(const struct kern *kern, const char *shape, int64_t bytes, void (*call)(kern_fn *));

/* The same for kernels whose measure is operations: prints GFLOP/s. */
void kern_time_flops(const struct kern *kern, const char *shape, int64_t flops,
                     void (*call)(kern_fn *));

/* Whether --bench was given: otherwise inputs may be small. */
bool kern_benching(void);

#endif
