/* SPDX-License-Identifier: MIT
 *
 * A real model on a paged KV cache: loads a llama2.c checkpoint, keeps all keys and values in
 * pagedkv's caches, one per layer, and prints the greedy text. Each token is written with a scatter
 * and read back with paged attention: planned once, its indices checked once per token, run once
 * per layer. The rest of the arithmetic is plain loops: this shows how to hold and read the cache,
 * not how to be fast.
 *
 *     llama CHECKPOINT TOKENIZER [--prompt TEXT] [--steps 256] [--block_size 16] [--seed N]
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pagedkv/pagedkv.h>

#include "llama_model.h"
#include "llama_system.h"
#include "llama_tokenizer.h"

static void check(enum pkv_status status, const struct pkv_error *error) {
    if (status != PKV_STATUS_OK) {
        char text[512];
        pkv_error_text(error, text, sizeof text);
        llama_fail("%s", text);
    }
}

/* ---- The paged cache of one sequence -------------------------------------------------------- */

struct paged_cache {
    struct pkv_context *context;
    /* One plan of each kind for all layers: they have the same geometry. */
    struct pkv_scatter_plan *scatter;
    struct pkv_paged_attention_plan *attention;
    struct pkv_step *step;    /* the indices of the token at hand, checked once for all layers */
    struct pkv_cache *layers; /* [num_layers] */
    int64_t num_layers;
    int64_t num_blocks;
    /* What the step borrows. */
    int32_t *block_table;       /* [1, num_blocks], logical block -> block_id */
    int64_t slot;               /* slot_mapping [1] */
    int64_t num_tokens;         /* seq_lens [1], the token at hand included */
    int64_t query_start_loc[2]; /* one query: the token at hand */
};

/* Gives the sequence its physical blocks in an order that the seed decides (Fisher-Yates). An
 * engine's allocator hands blocks out in no better order, and attention must not care. */
static void shuffle_blocks(int32_t *block_table, int64_t num_blocks, uint64_t seed) {
    for (int64_t i = 0; i < num_blocks; i++) {
        block_table[i] = (int32_t)i;
    }
    for (int64_t i = num_blocks - 1; i > 0; i--) {
        /* Knuth's 64-bit linear congruential generator; its upper bits are the good ones. */
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        int64_t j = (int64_t)((seed >> 33) % (uint64_t)(i + 1));
        int32_t block_id = block_table[i];
        block_table[i] = block_table[j];
        block_table[j] = block_id;
    }
}

static void paged_cache_create(struct paged_cache *cache, const struct llama_model *model,
                               int64_t max_tokens, int64_t block_size, uint64_t seed) {
    struct pkv_error error = {0};
    cache->num_layers = model->num_layers;
    cache->num_blocks = (max_tokens + block_size - 1) / block_size;
    cache->block_table = llama_alloc(cache->num_blocks, sizeof *cache->block_table);
    shuffle_blocks(cache->block_table, cache->num_blocks, seed);
    cache->query_start_loc[0] = 0;
    cache->query_start_loc[1] = 1;

    cache->layers = llama_alloc(cache->num_layers, sizeof *cache->layers);
    int64_t num_slots = cache->num_blocks * block_size;
    size_t row_bytes = (size_t)model->kv_dim * sizeof(float);
    int64_t shape[4] = {cache->num_blocks, block_size, model->num_kv_heads, model->head_size};
    for (int64_t layer = 0; layer < cache->num_layers; layer++) {
        struct pkv_tensor key_cache =
            pkv_tensor_make(llama_alloc(num_slots, row_bytes), PKV_DTYPE_F32, 4, shape);
        struct pkv_tensor value_cache =
            pkv_tensor_make(llama_alloc(num_slots, row_bytes), PKV_DTYPE_F32, 4, shape);
        check(pkv_cache_init(&cache->layers[layer], &key_cache, &value_cache, NULL, &error),
              &error);
    }

    struct pkv_paged_attention_options heads = {.struct_size = sizeof heads,
                                                .num_heads = model->num_heads};
    check(pkv_context_create(&cache->context, NULL, &error), &error);
    check(pkv_scatter_plan_create(&cache->scatter, cache->context, &cache->layers[0], NULL, &error),
          &error);
    check(pkv_paged_attention_plan_create(&cache->attention, cache->context, &cache->layers[0],
                                          &heads, &error),
          &error);
    struct pkv_step_options step_options = {
        .struct_size = sizeof step_options, .max_tokens = 1, .max_seqs = 1};
    check(pkv_step_create(&cache->step, &step_options, &error), &error);
}

static void paged_cache_destroy(struct paged_cache *cache) {
    pkv_step_destroy(cache->step);
    pkv_paged_attention_plan_destroy(cache->attention);
    pkv_scatter_plan_destroy(cache->scatter);
    pkv_context_destroy(cache->context);
    for (int64_t layer = 0; layer < cache->num_layers; layer++) {
        free(cache->layers[layer].key.data);
        free(cache->layers[layer].value.data);
    }
    free(cache->layers);
    free(cache->block_table);
}

/* Once per token: finds its slot through the block table, and has all indices checked. */
static void paged_cache_begin_token(struct paged_cache *cache, int64_t position) {
    struct pkv_error error = {0};
    struct pkv_tensor positions = pkv_tensor_make(&position, PKV_DTYPE_I64, 1, (int64_t[]){1});
    struct pkv_step_indices indices = {
        .struct_size = sizeof indices,
        .slot_mapping = pkv_tensor_make(&cache->slot, PKV_DTYPE_I64, 1, (int64_t[]){1}),
        .block_table = pkv_tensor_make(cache->block_table, PKV_DTYPE_I32, 2,
                                       (int64_t[]){1, cache->num_blocks}),
        .seq_lens = pkv_tensor_make(&cache->num_tokens, PKV_DTYPE_I64, 1, (int64_t[]){1}),
        .query_start_loc =
            pkv_tensor_make(cache->query_start_loc, PKV_DTYPE_I64, 1, (int64_t[]){2})};
    cache->num_tokens = position + 1;
    check(pkv_slot_mapping_from_block_table(&indices.block_table, &positions, NULL,
                                            cache->layers[0].block_size, cache->num_blocks,
                                            &indices.slot_mapping, &error),
          &error);
    check(pkv_step_set(cache->context, cache->step, &cache->layers[0], &indices, &error), &error);
}

/* Once per layer: writes the token's row. key, value [num_kv_heads, head_size]. */
static void paged_cache_write(struct paged_cache *cache, int64_t layer, float *key, float *value) {
    struct pkv_error error = {0};
    const struct pkv_cache *blocks = &cache->layers[layer];
    int64_t shape[3] = {1, blocks->key.num_heads, blocks->key.head_size};
    struct pkv_tensor keys = pkv_tensor_make(key, PKV_DTYPE_F32, 3, shape);
    struct pkv_tensor values = pkv_tensor_make(value, PKV_DTYPE_F32, 3, shape);
    check(pkv_scatter_run(cache->context, cache->scatter, cache->step, blocks, &keys, &values,
                          &error),
          &error);
}

/* Once per layer, after the write: attention of the token over all tokens so far, itself included.
 * query in, attended out, [num_heads, head_size]. */
static void paged_cache_attend(struct paged_cache *cache, int64_t layer, int64_t num_heads,
                               float *query, float *attended) {
    struct pkv_error error = {0};
    const struct pkv_cache *blocks = &cache->layers[layer];
    int64_t shape[3] = {1, num_heads, blocks->key.head_size};
    struct pkv_paged_attention_tensors tensors = {
        .struct_size = sizeof tensors,
        .query = pkv_tensor_make(query, PKV_DTYPE_F32, 3, shape),
        .out = pkv_tensor_make(attended, PKV_DTYPE_F32, 3, shape)};
    check(pkv_paged_attention_run(cache->context, cache->attention, cache->step, blocks, &tensors,
                                  &error),
          &error);
}

/* ---- The model on top of it ----------------------------------------------------------------- */

/* Everything that lives from one operation to the next. */
struct activations {
    float *residual; /* [dim] */
    float *normed;   /* [dim] */
    float *query;    /* [num_heads, head_size] */
    float *key;      /* [num_kv_heads, head_size] */
    float *value;    /* [num_kv_heads, head_size] */
    float *attended; /* [num_heads, head_size] */
    float *gate;     /* [hidden_dim] */
    float *up;       /* [hidden_dim] */
    float *out;      /* [dim], what a layer adds to the residual */
    float *logits;   /* [vocab_size] */
    float *cosines;  /* [head_size / 2] */
    float *sines;    /* [head_size / 2] */
};

static void activations_create(struct activations *a, const struct llama_model *model) {
    a->residual = llama_alloc(model->dim, sizeof(float));
    a->normed = llama_alloc(model->dim, sizeof(float));
    a->query = llama_alloc(model->dim, sizeof(float));
    a->key = llama_alloc(model->kv_dim, sizeof(float));
    a->value = llama_alloc(model->kv_dim, sizeof(float));
    a->attended = llama_alloc(model->dim, sizeof(float));
    a->gate = llama_alloc(model->hidden_dim, sizeof(float));
    a->up = llama_alloc(model->hidden_dim, sizeof(float));
    a->out = llama_alloc(model->dim, sizeof(float));
    a->logits = llama_alloc(model->vocab_size, sizeof(float));
    a->cosines = llama_alloc(model->head_size / 2, sizeof(float));
    a->sines = llama_alloc(model->head_size / 2, sizeof(float));
}

static void activations_destroy(struct activations *a) {
    free(a->residual);
    free(a->normed);
    free(a->query);
    free(a->key);
    free(a->value);
    free(a->attended);
    free(a->gate);
    free(a->up);
    free(a->out);
    free(a->logits);
    free(a->cosines);
    free(a->sines);
}

static void add(float *sum, const float *x, int64_t size) {
    for (int64_t i = 0; i < size; i++) {
        sum[i] += x[i];
    }
}

/* One token through the model: its row enters every layer's cache, its logits come out. */
static void forward(struct activations *a, const struct llama_model *model,
                    struct paged_cache *cache, int32_t token, int64_t position) {
    int64_t dim = model->dim, kv_dim = model->kv_dim, hidden_dim = model->hidden_dim;
    memcpy(a->residual, model->embedding + token * dim, (size_t)dim * sizeof(float));
    llama_rotary_angles(a->cosines, a->sines, model->head_size, position);
    paged_cache_begin_token(cache, position);

    for (int64_t layer = 0; layer < model->num_layers; layer++) {
        llama_rms_norm(a->normed, a->residual, model->rms_att + layer * dim, dim);
        llama_multiply(a->query, model->wq + layer * dim * dim, a->normed, dim, dim);
        llama_multiply(a->key, model->wk + layer * kv_dim * dim, a->normed, kv_dim, dim);
        llama_multiply(a->value, model->wv + layer * kv_dim * dim, a->normed, kv_dim, dim);
        llama_rotate(a->query, a->cosines, a->sines, model->num_heads, model->head_size);
        llama_rotate(a->key, a->cosines, a->sines, model->num_kv_heads, model->head_size);

        paged_cache_write(cache, layer, a->key, a->value);
        paged_cache_attend(cache, layer, model->num_heads, a->query, a->attended);
        llama_multiply(a->out, model->wo + layer * dim * dim, a->attended, dim, dim);
        add(a->residual, a->out, dim);

        llama_rms_norm(a->normed, a->residual, model->rms_ffn + layer * dim, dim);
        const float *w1 = model->w1 + layer * hidden_dim * dim;
        const float *w2 = model->w2 + layer * dim * hidden_dim;
        const float *w3 = model->w3 + layer * hidden_dim * dim;
        llama_multiply(a->gate, w1, a->normed, hidden_dim, dim);
        llama_multiply(a->up, w3, a->normed, hidden_dim, dim);
        llama_swiglu(a->gate, a->up, hidden_dim);
        llama_multiply(a->out, w2, a->gate, dim, hidden_dim);
        add(a->residual, a->out, dim);
    }
    llama_rms_norm(a->normed, a->residual, model->rms_final, dim);
    llama_multiply(a->logits, model->classifier, a->normed, model->vocab_size, dim);
}

/* The index of the largest element, the first of equals; x [size]. */
static int32_t largest(const float *x, int64_t size) {
    int64_t best = 0;
    for (int64_t i = 1; i < size; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return (int32_t)best;
}

/* Prints the prompt and what the model makes of it: max_tokens tokens, or until it says BOS.
 * prompt [num_prompt_tokens], beginning with BOS. */
static void generate(const struct llama_model *model, const struct llama_tokenizer *tokenizer,
                     struct paged_cache *cache, const int32_t *prompt, int64_t num_prompt_tokens,
                     int64_t max_tokens) {
    struct activations a;
    activations_create(&a, model);
    int32_t token = prompt[0];
    for (int64_t position = 0; position < max_tokens; position++) {
        forward(&a, model, cache, token, position);
        int32_t next = position + 1 < num_prompt_tokens ? prompt[position + 1]
                                                        : largest(a.logits, model->vocab_size);
        if (next == LLAMA_TOKEN_BOS) {
            break;
        }
        llama_tokenizer_print(tokenizer, token, next);
        fflush(stdout);
        token = next;
    }
    putchar('\n');
    if (fflush(stdout) != 0 || ferror(stdout)) {
        llama_fail("cannot write to stdout");
    }
    activations_destroy(&a);
}

/* ---- The command line ----------------------------------------------------------------------- */

struct options {
    const char *checkpoint;
    const char *tokenizer;
    const char *prompt;
    int64_t steps; /* 0: as many as the model's context holds */
    int64_t block_size;
    uint64_t seed;
};

static uint64_t parse_number(const char *name, const char *text, uint64_t min, uint64_t max) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    /* strtoull alone would take blanks, signs and an empty text. */
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < min ||
        value > max) {
        llama_fail("--%s is \"%s\", must be a whole number from %llu to %llu", name, text,
                   (unsigned long long)min, (unsigned long long)max);
    }
    return value;
}

static struct options parse_options(int argc, char **argv) {
    static const struct option names[] = {
        {"prompt", required_argument, NULL, 'p'},     {"steps", required_argument, NULL, 'n'},
        {"block_size", required_argument, NULL, 'b'}, {"block-size", required_argument, NULL, 'b'},
        {"seed", required_argument, NULL, 's'},       {NULL, 0, NULL, 0}};
    struct options options = {.prompt = "", .steps = 256, .block_size = 16};
    int usage_error = 0;
    for (int name; (name = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (name == 'p') {
            options.prompt = optarg;
        } else if (name == 'n') {
            options.steps = (int64_t)parse_number("steps", optarg, 0, INT32_MAX);
        } else if (name == 'b') {
            options.block_size = (int64_t)parse_number("block_size", optarg, 1, INT32_MAX);
        } else if (name == 's') {
            options.seed = parse_number("seed", optarg, 0, UINT64_MAX);
        } else {
            usage_error = 1;
        }
    }
    if (usage_error || argc - optind != 2) {
        llama_fail("usage: llama CHECKPOINT TOKENIZER [--prompt TEXT] [--steps 256] "
                   "[--block_size 16] [--seed N]");
    }
    options.checkpoint = argv[optind];
    options.tokenizer = argv[optind + 1];
    return options;
}

int main(int argc, char **argv) {
    struct options options = parse_options(argc, argv);
    struct llama_model model;
    llama_model_read(&model, options.checkpoint);
    struct llama_tokenizer tokenizer;
    llama_tokenizer_read(&tokenizer, options.tokenizer, model.vocab_size);

    int64_t max_tokens = options.steps;
    if (max_tokens == 0 || max_tokens > model.max_seq_len) {
        max_tokens = model.max_seq_len;
    }
    int64_t prompt_bytes = (int64_t)strlen(options.prompt);
    if (prompt_bytes / model.max_seq_len > tokenizer.max_piece_bytes) {
        llama_fail("the prompt of %lld bytes cannot fit the model's context of %lld tokens",
                   (long long)prompt_bytes, (long long)model.max_seq_len);
    }
    int32_t *prompt = llama_alloc(prompt_bytes + 2, sizeof *prompt);
    int64_t num_prompt_tokens = llama_tokenizer_encode(&tokenizer, options.prompt, prompt);

    struct paged_cache cache;
    paged_cache_create(&cache, &model, max_tokens, options.block_size, options.seed);
    generate(&model, &tokenizer, &cache, prompt, num_prompt_tokens, max_tokens);

    paged_cache_destroy(&cache);
    free(prompt);
    llama_tokenizer_free(&tokenizer);
    llama_model_free(&model);
    return 0;
}
