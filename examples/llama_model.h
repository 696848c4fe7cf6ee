/* SPDX-License-Identifier: MIT
 *
 * A Llama-architecture model in float32: its weights, read from a llama2.c checkpoint, and the
 * arithmetic between the attention calls. It keeps no keys and no values: llama.c does, in blocks.
 */
#ifndef LLAMA_MODEL_H
#define LLAMA_MODEL_H

#include <stdint.h>

#include "llama_system.h"

struct llama_model {
    int64_t dim;        /* num_heads * head_size */
    int64_t hidden_dim; /* of the feed-forward network */
    int64_t num_layers;
    int64_t num_heads;
    int64_t num_kv_heads; /* each serves num_heads / num_kv_heads query heads */
    int64_t head_size;
    int64_t kv_dim; /* num_kv_heads * head_size */
    int64_t vocab_size;
    int64_t max_seq_len;

    const float *embedding;  /* [vocab_size, dim] */
    const float *rms_att;    /* [num_layers, dim] */
    const float *wq;         /* [num_layers, dim, dim] */
    const float *wk;         /* [num_layers, kv_dim, dim] */
    const float *wv;         /* [num_layers, kv_dim, dim] */
    const float *wo;         /* [num_layers, dim, dim] */
    const float *rms_ffn;    /* [num_layers, dim] */
    const float *w1;         /* [num_layers, hidden_dim, dim] */
    const float *w2;         /* [num_layers, dim, hidden_dim] */
    const float *w3;         /* [num_layers, hidden_dim, dim] */
    const float *rms_final;  /* [dim] */
    const float *classifier; /* [vocab_size, dim]; may be the embedding */

    struct llama_file file; /* owns the weights */
};

/* Reads a checkpoint, or fails with a sentence. */
void llama_model_read(struct llama_model *model, const char *path);

void llama_model_free(struct llama_model *model);

/* out[i] = weight[i] * x[i] / sqrt(mean(x^2) + 1e-5); out, x, weight [size]. */
void llama_rms_norm(float *out, const float *x, const float *weight, int64_t size);

/* out = weight x; out [num_rows], weight [num_rows, size], x [size]. */
void llama_multiply(float *out, const float *weight, const float *x, int64_t num_rows,
                    int64_t size);

/* The rotary embedding of one position: pair i of a head turns by position / 10000^(2 i /
 * head_size). cosines, sines [head_size / 2], out. */
void llama_rotary_angles(float *cosines, float *sines, int64_t head_size, int64_t position);

/* Turns the adjacent pairs of every head; heads [num_heads, head_size] in/out. */
void llama_rotate(float *heads, const float *cosines, const float *sines, int64_t num_heads,
                  int64_t head_size);

/* gate[i] = silu(gate[i]) * up[i]; gate [size] in/out, up [size]. */
void llama_swiglu(float *gate, const float *up, int64_t size);

#endif
