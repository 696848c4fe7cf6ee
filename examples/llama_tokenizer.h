/* SPDX-License-Identifier: MIT
 *
 * Text to tokens and back, from a llama2.c tokenizer file: pieces with scores, merged best first.
 */
#ifndef LLAMA_TOKENIZER_H
#define LLAMA_TOKENIZER_H

#include <stdint.h>

#include "llama_system.h"

/* Begin of sequence: the first token of every text, and the sign of the model that it is done. */
#define LLAMA_TOKEN_BOS 1

/* The text of one token. */
struct llama_piece {
    const char *bytes; /* [num_bytes], without a NUL at the end */
    int32_t num_bytes;
    int32_t token;
    float score; /* the highest is merged first */
};

struct llama_tokenizer {
    int64_t vocab_size;
    int64_t max_piece_bytes;
    struct llama_piece *pieces; /* [vocab_size], by token */
    struct llama_piece *sorted; /* [vocab_size], by bytes */
    struct llama_file file;     /* owns the bytes of the pieces */
};

/* Reads a tokenizer of vocab_size pieces, or fails with a sentence. */
void llama_tokenizer_read(struct llama_tokenizer *tokenizer, const char *path, int64_t vocab_size);

void llama_tokenizer_free(struct llama_tokenizer *tokenizer);

/* Tokens of a text, beginning with BOS.
 *
 * text    NUL-terminated UTF-8; other bytes are taken one by one
 * tokens  [strlen(text) + 2] out
 * returns how many tokens there are, at least 1
 */
int64_t llama_tokenizer_encode(const struct llama_tokenizer *tokenizer, const char *text,
                               int32_t *tokens);

/* Prints a token's text to stdout. After BOS a leading space is dropped; a lone byte that is
 * neither printable nor white space is not printed. */
void llama_tokenizer_print(const struct llama_tokenizer *tokenizer, int32_t previous_token,
                           int32_t token);

#endif
