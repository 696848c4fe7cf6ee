/* SPDX-License-Identifier: MIT
 *
 * Reader and writer of safetensors files: 8 bytes with the length of a JSON header, the header, the
 * elements. The reader trusts nothing: what it accepts can be used without a further check of
 * sizes. It knows nothing of the operators.
 */
#ifndef PAGEDKV_SAFETENSORS_H
#define PAGEDKV_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include <pagedkv/tensor.h>

#define SAFETENSORS_MAX_HEADER_BYTES 100000000
#define SAFETENSORS_MESSAGE_BYTES    512

struct safetensors_tensor {
    const char *name;
    const char *dtype_name; /* as the file spells it: "BF16"; static */
    int32_t dtype;          /* enum pkv_dtype; PKV_DTYPE_INVALID for F64 and U64 */
    int32_t ndim;
    int64_t shape[PKV_MAX_DIMS];
    const void *data; /* inside the bytes that were parsed; may be misaligned */
    uint64_t num_bytes;
};

struct safetensors {
    struct safetensors_tensor *tensors; /* in the order of their data */
    size_t num_tensors;
    void *header; /* owns the names */
    void *file;   /* the file's bytes when safetensors_read made them, else NULL */
};

/* Describes the tensors of a file that lies in memory.
 *
 * bytes    [size] in; borrowed as long as *out lives
 * out      out; hand it to safetensors_free, also after a failure
 * message  [message_bytes] out, one sentence after a failure
 * returns  0, or -1
 */
int safetensors_parse(const void *bytes, size_t size, struct safetensors *out, char *message,
                      size_t message_bytes);

/* Reads a regular file and describes it. Element data starts at a multiple of 64 bytes, so that
 * only tensors at odd offsets are misaligned; the memory is writable. The message names the file.
 */
int safetensors_read(const char *path, struct safetensors *out, char *message,
                     size_t message_bytes);

/* Frees what it owns and zeroes it; a struct of zeroes is fine. */
void safetensors_free(struct safetensors *file);

/* A name from a file as it may be shown on a terminal: short, and '?' for what is no printable
 * ASCII. Returns text. */
enum { SAFETENSORS_NAME_BYTES = 80 };
const char *safetensors_shown(const char *name, char text[SAFETENSORS_NAME_BYTES]);

/* The tensor of that name, or NULL. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name);

/* The name that a safetensors file gives to a dtype, NULL if there is none. HIFLOAT8, which the
 * format lacks, travels as U8. */
const char *safetensors_dtype_name(int32_t dtype);

/* Fills dtype and dtype_name of the tensor from the file's spelling and returns the bytes of one
 * element, or 0 for a name that is no dtype. */
int64_t safetensors_set_dtype(struct safetensors_tensor *tensor, const char *dtype_name);

/* Writes a file: to a temporary name in the same folder, then renamed over path. A failing call
 * leaves no new file, and an old one as it was.
 *
 * tensors  [num_tensors] in, written in this order; num_bytes must be what dtype and shape say
 * returns  0, or -1 with a message that names the file; a path that exists and is no regular file,
 *          and two tensors of one name, are refused
 */
int safetensors_write(const char *path, const struct safetensors_tensor *tensors,
                      size_t num_tensors, char *message, size_t message_bytes);

#endif
