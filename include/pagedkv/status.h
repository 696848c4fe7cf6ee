/* SPDX-License-Identifier: MIT
 *
 * What every function returns, and how it explains a refusal.
 *
 * A function that can fail returns `enum pkv_status` and takes a nullable `struct pkv_error *` as
 * its last parameter. The struct receives plain facts; pkv_error_text makes a sentence of them when
 * somebody wants to read it, so that no hot path formats text. A call that fails writes nothing but
 * the error, unless its contract says what else: most _create functions set their out pointer to
 * NULL, pkv_step_set empties the step.
 *
 * Structs that begin with `size_t struct_size` may grow in later versions. Set it to sizeof of the
 * struct, also in those that a call fills in. A smaller struct is read as if zeroes followed, and
 * filled as far as it goes; a larger one is read only if all that this version does not know is
 * zero and it has at most 4,096 bytes, and filled at its beginning. A size too small for the field
 * itself is refused. 0 stands for the struct's size in version 0.1, so a struct of zeroes means the
 * defaults.
 */
#ifndef PAGEDKV_STATUS_H
#define PAGEDKV_STATUS_H

#include <stddef.h>
#include <stdint.h>

#include <pagedkv/version.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are pinned for ever; each group has room to grow. */
enum pkv_status {
    PKV_STATUS_OK = 0,

    /* Arguments */
    PKV_STATUS_NULL_ARGUMENT = -1,       /* a pointer is NULL (or given) that must not be */
    PKV_STATUS_INVALID_ARGUMENT = -2,    /* a number outside its range, an unknown enum value */
    PKV_STATUS_DTYPE = -3,               /* a tensor's element type does not fit */
    PKV_STATUS_RANK = -4,                /* a tensor's number of dimensions does not fit */
    PKV_STATUS_SHAPE = -5,               /* a tensor's dimension does not fit */
    PKV_STATUS_STRIDE = -6,              /* a tensor's stride does not fit its layout */
    PKV_STATUS_MISALIGNED = -7,          /* data is not aligned to its element; memory as asked */
    PKV_STATUS_OVERLAP = -8,             /* a written element is also read, or written twice */
    PKV_STATUS_LAYOUT = -9,              /* a cache that is not as planned; an unknown format */
    PKV_STATUS_STRUCT_SIZE = -10,        /* no size of a struct, or unknown fields are used */
    PKV_STATUS_DUPLICATE_SLOT = -11,     /* a slot is named twice under PKV_DUPLICATES_REJECT */
    PKV_STATUS_SLOT_OUT_OF_RANGE = -12,  /* slot >= num_blocks * block_size */
    PKV_STATUS_BLOCK_OUT_OF_RANGE = -13, /* block_id < 0 or >= num_blocks, in a read entry */
    PKV_STATUS_POSITION_OUT_OF_RANGE = -14, /* a token position beyond its block table */

    /* Resources */
    PKV_STATUS_OUT_OF_MEMORY = -30, /* the allocator returned NULL */
    PKV_STATUS_OUT_OF_BLOCKS = -31, /* the block pool is exhausted: an everyday answer */
    PKV_STATUS_CAPACITY = -32,      /* more than the object was created for, or memory holds */

    /* Capability */
    PKV_STATUS_UNSUPPORTED = -50, /* valid, but this operator cannot do it */

    /* State */
    PKV_STATUS_BAD_STATE = -70,    /* called before what must come first */
    PKV_STATUS_STALE_HANDLE = -71, /* a block or sequence that was given back, or is another's */

    /* Overflow */
    PKV_STATUS_OVERFLOW = -90, /* a size does not fit in 64 bits, a slot not in its dtype */

    /* System */
    PKV_STATUS_SYSTEM = -110,  /* the operating system refused; value is its errno */
    PKV_STATUS_INTERNAL = -111 /* a broken invariant inside the library: please report */
};

/* The value of index, value and bound when they do not apply. */
#define PKV_ERROR_NONE INT64_MIN

/* The facts of a refusal. All strings are static: nothing to free, valid for ever. Set struct_size
 * (or all to zero) before the call; a call that succeeds leaves it as it was. */
struct pkv_error {
    size_t struct_size;
    int32_t status;       /* enum pkv_status */
    int32_t axis;         /* the dimension of the argument that does not fit, or -1 */
    const char *function; /* the public function that refused */
    const char *argument; /* the argument at fault, or NULL */
    int64_t index;        /* the element of the argument (flat, C order), or PKV_ERROR_NONE */
    int64_t value;        /* what was found, or PKV_ERROR_NONE */
    int64_t bound;        /* what it was held against, or PKV_ERROR_NONE */
    const char *rule;     /* what must hold, or is wrong, as a phrase: "must be at least" */
};

/* The name of a status, without its prefix: "SLOT_OUT_OF_RANGE". Never NULL; "UNKNOWN" for a number
 * that is none. Static; any thread. */
PKV_API const char *pkv_status_name(int32_t status);

/* Writes one sentence about the error into text: function, argument with index and axis, value,
 * rule, bound, status. The value is there without an argument too, after the rule.
 *
 * error       in, nullable; NULL, or status PKV_STATUS_OK: "no error"
 * text        [text_bytes] char, out, nullable: then nothing is written
 * text_bytes  room in text, its NUL included; if above 0, text ends in NUL, cut off if need be
 * returns     the length of the whole sentence without its NUL, as snprintf does
 * threads     any; it only reads
 * cost        formats text; no allocation
 */
PKV_API size_t pkv_error_text(const struct pkv_error *error, char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif

#endif
