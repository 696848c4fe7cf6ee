/* SPDX-License-Identifier: MIT
 *
 * Fuzz target: the safetensors reader on any bytes. What it accepts must hold what its header
 * promises: tensors inside the bytes, one behind the other, as long as dtype and shape say.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct safetensors file;
    char message[SAFETENSORS_MESSAGE_BYTES];
    memset(message, 'x', sizeof(message));
    if (safetensors_parse(data, size, &file, message, sizeof(message)) != 0) {
        /* A refusal says why, on one line. */
        const char *end = memchr(message, '\0', sizeof(message));
        require(end != NULL && end != message && memchr(message, '\n', sizeof(message)) == NULL);
        safetensors_free(&file);
        return 0;
    }
    uint64_t total = 0;
    for (size_t i = 0; i < file.num_tensors; i++) {
        const struct safetensors_tensor *tensor = &file.tensors[i];
        struct safetensors_tensor same = *tensor;
        int64_t num_bytes = safetensors_set_dtype(&same, tensor->dtype_name);
        require(num_bytes > 0 && tensor->ndim >= 0 && tensor->ndim <= PKV_MAX_DIMS);
        for (int32_t axis = 0; axis < tensor->ndim; axis++) {
            require(tensor->shape[axis] >= 0);
            num_bytes = tensor->shape[axis] == 0 ? 0 : num_bytes;
        }
        for (int32_t axis = 0; axis < tensor->ndim && num_bytes > 0; axis++)
            require(!__builtin_mul_overflow(num_bytes, tensor->shape[axis], &num_bytes));
        require(tensor->num_bytes == (uint64_t)num_bytes);
        require((const uint8_t *)tensor->data >= data &&
                (const uint8_t *)tensor->data + tensor->num_bytes <= data + size);
        require(safetensors_find(&file, tensor->name) == tensor);
        total += tensor->num_bytes;
    }
    require(total <= size);
    safetensors_free(&file);
    return 0;
}
