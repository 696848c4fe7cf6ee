/* SPDX-License-Identifier: MIT
 *
 * Checkpoint reader and arithmetic of the llama example: plain loops, float32 sums in index order.
 * The order is part of the promise, for the greedy text must not depend on the machine.
 */
#include "llama_model.h"

#include <math.h>

static int64_t take_size(struct llama_file *file, const char *name) {
    int32_t value = llama_file_take_int32(file, name);
    if (value < 1) {
        llama_fail("%s: %s is %d, must be 1 or more", file->path, name, (int)value);
    }
    return value;
}

static void expect_multiple(const struct llama_file *file, const char *name, int64_t value,
                            const char *divisor_name, int64_t divisor) {
    if (value % divisor != 0) {
        llama_fail("%s: %s is %lld, must be a multiple of %s %lld", file->path, name,
                   (long long)value, divisor_name, (long long)divisor);
    }
}

/* Reads the seven numbers at the front. Returns whether a classifier follows the weights, which the
 * format says by a negative vocab_size. */
static int read_header(struct llama_model *model, struct llama_file *file) {
    model->dim = take_size(file, "dim");
    model->hidden_dim = take_size(file, "hidden_dim");
    model->num_layers = take_size(file, "n_layers");
    model->num_heads = take_size(file, "n_heads");
    model->num_kv_heads = take_size(file, "n_kv_heads");
    int64_t vocab_size = llama_file_take_int32(file, "vocab_size");
    model->vocab_size = vocab_size < 0 ? -vocab_size : vocab_size;
    model->max_seq_len = take_size(file, "seq_len");

    if (model->vocab_size < 2) {
        llama_fail("%s: vocab_size is %lld, must hold at least the begin-of-sequence token 1",
                   file->path, (long long)vocab_size);
    }
    expect_multiple(file, "dim", model->dim, "n_heads", model->num_heads);
    expect_multiple(file, "n_heads", model->num_heads, "n_kv_heads", model->num_kv_heads);
    model->head_size = model->dim / model->num_heads;
    model->kv_dim = model->num_kv_heads * model->head_size;
    expect_multiple(file, "dim / n_heads", model->head_size, "the rotary pair", 2);
    return vocab_size < 0;
}

void llama_model_read(struct llama_model *model, const char *path) {
    struct llama_file *file = &model->file;
    llama_file_read(file, path);
    int has_classifier = read_header(model, file);

    int64_t layers = model->num_layers, dim = model->dim, kv_dim = model->kv_dim;
    int64_t hidden_dim = model->hidden_dim, vocab_size = model->vocab_size;
    model->embedding = llama_file_take_floats(file, 1, vocab_size, dim, "the token embedding");
    model->rms_att = llama_file_take_floats(file, layers, 1, dim, "rms_att");
    model->wq = llama_file_take_floats(file, layers, dim, dim, "wq");
    model->wk = llama_file_take_floats(file, layers, kv_dim, dim, "wk");
    model->wv = llama_file_take_floats(file, layers, kv_dim, dim, "wv");
    model->wo = llama_file_take_floats(file, layers, dim, dim, "wo");
    model->rms_ffn = llama_file_take_floats(file, layers, 1, dim, "rms_ffn");
    model->w1 = llama_file_take_floats(file, layers, hidden_dim, dim, "w1");
    model->w2 = llama_file_take_floats(file, layers, dim, hidden_dim, "w2");
    model->w3 = llama_file_take_floats(file, layers, hidden_dim, dim, "w3");
    model->rms_final = llama_file_take_floats(file, 1, 1, dim, "rms_final");
    /* Tables of an older rotary embedding, cosines and sines; nothing reads them any more. */
    llama_file_take_floats(file, 2, model->max_seq_len, model->head_size / 2, "the rotary tables");
    model->classifier = has_classifier
                            ? llama_file_take_floats(file, 1, vocab_size, dim, "the classifier")
                            : model->embedding;
    llama_file_expect_end(file);
}

void llama_model_free(struct llama_model *model) {
    llama_file_free(&model->file);
}

void llama_rms_norm(float *out, const float *x, const float *weight, int64_t size) {
    float sum = 0.0f;
    for (int64_t i = 0; i < size; i++) {
        sum += x[i] * x[i];
    }
    float scale = 1.0f / sqrtf(sum / (float)size + 1e-5f);
    for (int64_t i = 0; i < size; i++) {
        out[i] = weight[i] * (scale * x[i]);
    }
}

void llama_multiply(float *out, const float *weight, const float *x, int64_t num_rows,
                    int64_t size) {
    for (int64_t row = 0; row < num_rows; row++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < size; i++) {
            sum += weight[row * size + i] * x[i];
        }
        out[row] = sum;
    }
}

void llama_rotary_angles(float *cosines, float *sines, int64_t head_size, int64_t position) {
    for (int64_t pair = 0; pair < head_size / 2; pair++) {
        float frequency = 1.0f / powf(10000.0f, (float)(2 * pair) / (float)head_size);
        float angle = (float)position * frequency;
        cosines[pair] = cosf(angle);
        sines[pair] = sinf(angle);
    }
}

void llama_rotate(float *heads, const float *cosines, const float *sines, int64_t num_heads,
                  int64_t head_size) {
    for (int64_t head = 0; head < num_heads; head++) {
        float *row = heads + head * head_size;
        for (int64_t pair = 0; pair < head_size / 2; pair++) {
            float a = row[2 * pair], b = row[2 * pair + 1];
            row[2 * pair] = a * cosines[pair] - b * sines[pair];
            row[2 * pair + 1] = a * sines[pair] + b * cosines[pair];
        }
    }
}

void llama_swiglu(float *gate, const float *up, int64_t size) {
    for (int64_t i = 0; i < size; i++) {
        gate[i] = gate[i] * (1.0f / (1.0f + expf(-gate[i]))) * up[i];
    }
}
