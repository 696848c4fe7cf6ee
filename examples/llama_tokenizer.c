/* SPDX-License-Identifier: MIT
 *
 * The tokenizer of the llama example: byte-pair merging over a vocabulary sorted by bytes.
 */
#include "llama_tokenizer.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens 0, 1 and 2 are special; the 256 raw bytes follow. */
#define FIRST_BYTE_TOKEN 3

static int compare_bytes(const char *a, int64_t a_bytes, const char *b, int64_t b_bytes) {
    int order = memcmp(a, b, (size_t)(a_bytes < b_bytes ? a_bytes : b_bytes));
    return order != 0 ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

/* By bytes; of equal pieces the lower token comes first and is the one that is found. */
static int compare_pieces(const void *left, const void *right) {
    const struct llama_piece *a = left, *b = right;
    int order = compare_bytes(a->bytes, a->num_bytes, b->bytes, b->num_bytes);
    return order != 0 ? order : (a->token > b->token) - (a->token < b->token);
}

void llama_tokenizer_read(struct llama_tokenizer *tokenizer, const char *path, int64_t vocab_size) {
    struct llama_file *file = &tokenizer->file;
    llama_file_read(file, path);
    /* The longest piece as the file says it; measured here instead. */
    llama_file_take_int32(file, "max_token_length");

    tokenizer->vocab_size = vocab_size;
    tokenizer->max_piece_bytes = 0;
    tokenizer->pieces = llama_alloc(vocab_size, sizeof *tokenizer->pieces);
    for (int64_t token = 0; token < vocab_size; token++) {
        struct llama_piece *piece = &tokenizer->pieces[token];
        memcpy(&piece->score, llama_file_take(file, sizeof piece->score, "a score"),
               sizeof piece->score);
        piece->token = (int32_t)token;
        piece->num_bytes = llama_file_take_int32(file, "the length of a piece");
        if (piece->num_bytes < 0) {
            llama_fail("%s: piece %lld is %d bytes long, must not be negative", path,
                       (long long)token, (int)piece->num_bytes);
        }
        piece->bytes = llama_file_take(file, piece->num_bytes, "a piece");
        if (piece->num_bytes > tokenizer->max_piece_bytes) {
            tokenizer->max_piece_bytes = piece->num_bytes;
        }
    }
    llama_file_expect_end(file);

    tokenizer->sorted = llama_alloc(vocab_size, sizeof *tokenizer->sorted);
    memcpy(tokenizer->sorted, tokenizer->pieces, (size_t)vocab_size * sizeof *tokenizer->sorted);
    qsort(tokenizer->sorted, (size_t)vocab_size, sizeof *tokenizer->sorted, compare_pieces);
}

void llama_tokenizer_free(struct llama_tokenizer *tokenizer) {
    free(tokenizer->pieces);
    free(tokenizer->sorted);
    llama_file_free(&tokenizer->file);
}

/* The token whose piece is exactly these bytes, or -1. */
static int32_t find_token(const struct llama_tokenizer *tokenizer, const char *bytes,
                          int64_t num_bytes) {
    int64_t low = 0, high = tokenizer->vocab_size;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const struct llama_piece *piece = &tokenizer->sorted[middle];
        if (compare_bytes(piece->bytes, piece->num_bytes, bytes, num_bytes) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == tokenizer->vocab_size) {
        return -1;
    }
    const struct llama_piece *piece = &tokenizer->sorted[low];
    int equal = compare_bytes(piece->bytes, piece->num_bytes, bytes, num_bytes) == 0;
    return equal ? piece->token : -1;
}

/* Appends one character: its own piece if there is one, else its raw bytes. Returns how many. */
static int64_t append_character(const struct llama_tokenizer *tokenizer, const char *bytes,
                                int64_t num_bytes, int32_t *tokens) {
    tokens[0] = find_token(tokenizer, bytes, num_bytes);
    if (tokens[0] >= 0) {
        return 1;
    }
    for (int64_t i = 0; i < num_bytes; i++) {
        tokens[i] = (unsigned char)bytes[i] + FIRST_BYTE_TOKEN;
        if (tokens[i] >= tokenizer->vocab_size) {
            llama_fail("%s: no piece for byte 0x%02x of the prompt", tokenizer->file.path,
                       (unsigned)(unsigned char)bytes[i]);
        }
    }
    return num_bytes;
}

/* The token of two pieces in a row, or -1. joined is scratch for 2 * max_piece_bytes bytes. */
static int32_t find_joined(const struct llama_tokenizer *tokenizer, int32_t left, int32_t right,
                           char *joined) {
    const struct llama_piece *a = &tokenizer->pieces[left], *b = &tokenizer->pieces[right];
    memcpy(joined, a->bytes, (size_t)a->num_bytes);
    memcpy(joined + a->num_bytes, b->bytes, (size_t)b->num_bytes);
    return find_token(tokenizer, joined, (int64_t)a->num_bytes + b->num_bytes);
}

/* Joins the adjacent pair with the highest score, the first of equals, until no pair has a piece.
 * tokens [num_tokens] in/out; returns how many are left. */
static int64_t merge_tokens(const struct llama_tokenizer *tokenizer, int32_t *tokens,
                            int64_t num_tokens) {
    char *joined = llama_alloc(2 * tokenizer->max_piece_bytes + 1, 1);
    for (;;) {
        int64_t best = -1;
        int32_t best_token = -1;
        for (int64_t i = 0; i + 1 < num_tokens; i++) {
            int32_t token = find_joined(tokenizer, tokens[i], tokens[i + 1], joined);
            if (token >= 0 && (best < 0 || tokenizer->pieces[token].score >
                                               tokenizer->pieces[best_token].score)) {
                best = i;
                best_token = token;
            }
        }
        if (best < 0) {
            break;
        }
        tokens[best] = best_token;
        num_tokens--;
        memmove(tokens + best + 1, tokens + best + 2,
                (size_t)(num_tokens - best - 1) * sizeof *tokens);
    }
    free(joined);
    return num_tokens;
}

int64_t llama_tokenizer_encode(const struct llama_tokenizer *tokenizer, const char *text,
                               int32_t *tokens) {
    int64_t num_tokens = 0;
    tokens[num_tokens++] = LLAMA_TOKEN_BOS;
    if (text[0] != '\0') {
        num_tokens += append_character(tokenizer, " ", 1, tokens + num_tokens);
    }
    while (text[0] != '\0') {
        int64_t num_bytes = 1;
        while (num_bytes < 4 && ((unsigned char)text[num_bytes] & 0xc0) == 0x80) {
            num_bytes++;
        }
        num_tokens += append_character(tokenizer, text, num_bytes, tokens + num_tokens);
        text += num_bytes;
    }
    return merge_tokens(tokenizer, tokens, num_tokens);
}

static int hex_digit(char c) {
    static const char digits[] = "0123456789ABCDEF";
    const char *found = c == '\0' ? NULL : strchr(digits, toupper((unsigned char)c));
    return found == NULL ? -1 : (int)(found - digits);
}

/* The byte that a piece of the form <0xNN> stands for, or -1. */
static int raw_byte(const char *bytes, int64_t num_bytes) {
    if (num_bytes != 6 || memcmp(bytes, "<0x", 3) != 0 || bytes[5] != '>') {
        return -1;
    }
    int high = hex_digit(bytes[3]), low = hex_digit(bytes[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

void llama_tokenizer_print(const struct llama_tokenizer *tokenizer, int32_t previous_token,
                           int32_t token) {
    const char *bytes = tokenizer->pieces[token].bytes;
    int64_t num_bytes = tokenizer->pieces[token].num_bytes;
    if (previous_token == LLAMA_TOKEN_BOS && num_bytes > 0 && bytes[0] == ' ') {
        bytes++;
        num_bytes--;
    }
    int raw = raw_byte(bytes, num_bytes);
    char byte = (char)raw;
    if (raw >= 0) {
        bytes = &byte;
        num_bytes = 1;
    }
    if (num_bytes == 1 && !isprint((unsigned char)bytes[0]) && !isspace((unsigned char)bytes[0])) {
        return;
    }
    fwrite(bytes, 1, (size_t)num_bytes, stdout);
}
