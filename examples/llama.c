/* SPDX-License-Identifier: MIT
 *
 * A real model on a paged KV cache: loads a llama2.c checkpoint, keeps all keys and values in
 * pagedkv's caches, one per layer, and prints the greedy text. Each token is written with plan,
 * step and run, and read back block by block without a copy. The arithmetic is plain loops: this
 * shows how to hold the cache, not how to be fast.
 *
 *     llama CHECKPOINT TOKENIZER [--prompt TEXT] [--steps 256] [--block_size 16] [--seed N]
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
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
    struct pkv_scatter_plan *plan; /* one plan for all layers: they have the same geometry */
    struct pkv_step *step;         /* the slots of the token at hand, checked once for all layers */
    struct pkv_cache *layers;      /* [num_layers] */
    int64_t num_layers;
    int64_t num_blocks;
    int32_t *block_table; /* [1, num_blocks], logical block -> block_id */
    int64_t slot;         /* slot_mapping [1]; borrowed by the step */
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

    struct pkv_step_options step_options = {.struct_size = sizeof step_options, .max_tokens = 1};
    check(pkv_context_create(&cache->context, NULL, &error), &error);
    check(pkv_scatter_plan_create(&cache->plan, cache->context, &cache->layers[0], NULL, &error),
          &error);
    check(pkv_step_create(&cache->step, &step_options, &error), &error);
}

static void paged_cache_destroy(struct paged_cache *cache) {
    pkv_step_destroy(cache->step);
    pkv_scatter_plan_destroy(cache->plan);
    pkv_context_destroy(cache->context);
    for (int64_t layer = 0; layer < cache->num_layers; layer++) {
        free(cache->layers[layer].key.data);
        free(cache->layers[layer].value.data);
    }
    free(cache->layers);
    free(cache->block_table);
}

/* Once per token: finds its slot through the block table and has it checked. */
static void paged_cache_begin_token(struct paged_cache *cache, int64_t position) {
    struct pkv_error error = {0};
    struct pkv_tensor block_table =
        pkv_tensor_make(cache->block_table, PKV_DTYPE_I32, 2, (int64_t[]){1, cache->num_blocks});
    struct pkv_tensor positions = pkv_tensor_make(&position, PKV_DTYPE_I64, 1, (int64_t[]){1});
    struct pkv_step_indices indices = {
        .struct_size = sizeof indices,
        .slot_mapping = pkv_tensor_make(&cache->slot, PKV_DTYPE_I64, 1, (int64_t[]){1})};
    check(pkv_slot_mapping_from_block_table(&block_table, &positions, NULL,
                                            cache->layers[0].block_size, cache->num_blocks,
                                            &indices.slot_mapping, &error),
          &error);
    check(pkv_step_set(cache->context, cache->step, &cache->layers[0], &indices, &error), &error);
}

/* Once per layer: writes the token's row. key, value [num_kv_heads, head_size]. */
static void paged_cache_write(struct paged_cache *cache, int64_t layer, float *key, float *value) {
    struct pkv_error error = {0};
    const struct pkv_cache *pages = &cache->layers[layer];
    int64_t shape[3] = {1, pages->key.num_heads, pages->key.head_size};
    struct pkv_tensor keys = pkv_tensor_make(key, PKV_DTYPE_F32, 3, shape);
    struct pkv_tensor values = pkv_tensor_make(value, PKV_DTYPE_F32, 3, shape);
    check(pkv_scatter_run(cache->context, cache->plan, cache->step, pages, &keys, &values, &error),
          &error);
}

/* Starts a walk over the first num_tokens tokens of the sequence. */
static void paged_cache_walk(struct pkv_sequence *sequence, const struct paged_cache *cache,
                             int64_t layer, int64_t num_tokens) {
    struct pkv_error error = {0};
    struct pkv_tensor block_table =
        pkv_tensor_make(cache->block_table, PKV_DTYPE_I32, 1, (int64_t[]){cache->num_blocks});
    check(pkv_sequence_init(sequence, &cache->layers[layer], &block_table, 0, num_tokens, &error),
          &error);
}

/* One head of one token of a block: [head_size] adjacent floats, for the layout is NHD. rows is the
 * block's key or value pointer, part the matching half of the cache. */
static const float *head_of(const void *rows, const struct pkv_cache_part *part, int64_t token,
                            int64_t kv_head) {
    const char *bytes = rows;
    bytes += token * part->token_stride_bytes + kv_head * part->head_stride_bytes;
    return (const float *)(const void *)bytes;
}

/* ---- The model on top of it ----------------------------------------------------------------- */

/* Everything that lives from one operation to the next. */
struct activations {
    float *residual; /* [dim] */
    float *normed;   /* [dim] */
    float *query;    /* [num_heads, head_size] */
    float *key;      /* [num_kv_heads, head_size] */
    float *value;    /* [num_kv_heads, head_size] */
    float *scores;   /* [num_heads, max_tokens] */
    float *attended; /* [num_heads, head_size] */
    float *gate;     /* [hidden_dim] */
    float *up;       /* [hidden_dim] */
    float *out;      /* [dim], what a layer adds to the residual */
    float *logits;   /* [vocab_size] */
    float *cosines;  /* [head_size / 2] */
    float *sines;    /* [head_size / 2] */
};

static void activations_create(struct activations *a, const struct llama_model *model,
                               int64_t max_tokens) {
    a->residual = llama_alloc(model->dim, sizeof(float));
    a->normed = llama_alloc(model->dim, sizeof(float));
    a->query = llama_alloc(model->dim, sizeof(float));
    a->key = llama_alloc(model->kv_dim, sizeof(float));
    a->value = llama_alloc(model->kv_dim, sizeof(float));
    a->scores = llama_alloc(model->num_heads * max_tokens, sizeof(float));
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
    free(a->scores);
    free(a->attended);
    free(a->gate);
    free(a->up);
    free(a->out);
    free(a->logits);
    free(a->cosines);
    free(a->sines);
}

/* Attention of one query token over the num_tokens tokens in the cache: two walks over the blocks
 * of the sequence, one for the keys and one for the values. Query head h reads key/value head
 * h / group. Nothing here knows where the blocks are.
 *
 * reads a->query, uses a->scores, writes a->attended
 */
static void attend(struct activations *a, const struct llama_model *model,
                   const struct paged_cache *cache, int64_t layer, int64_t num_tokens) {
    int64_t head_size = model->head_size, group = model->num_heads / model->num_kv_heads;
    const struct pkv_cache *pages = &cache->layers[layer];
    struct pkv_sequence sequence;
    struct pkv_sequence_block block;

    paged_cache_walk(&sequence, cache, layer, num_tokens);
    while (pkv_sequence_next(&sequence, &block)) {
        for (int64_t i = 0; i < block.num_tokens; i++) {
            for (int64_t head = 0; head < model->num_heads; head++) {
                const float *query = a->query + head * head_size;
                const float *key = head_of(block.key, &pages->key, i, head / group);
                float score = 0.0f;
                for (int64_t d = 0; d < head_size; d++) {
                    score += query[d] * key[d];
                }
                a->scores[head * num_tokens + block.position + i] = score / sqrtf((float)head_size);
            }
        }
    }
    for (int64_t head = 0; head < model->num_heads; head++) {
        llama_softmax(a->scores + head * num_tokens, num_tokens);
    }

    memset(a->attended, 0, (size_t)model->dim * sizeof(float));
    paged_cache_walk(&sequence, cache, layer, num_tokens);
    while (pkv_sequence_next(&sequence, &block)) {
        for (int64_t i = 0; i < block.num_tokens; i++) {
            for (int64_t head = 0; head < model->num_heads; head++) {
                const float *value = head_of(block.value, &pages->value, i, head / group);
                float weight = a->scores[head * num_tokens + block.position + i];
                float *attended = a->attended + head * head_size;
                for (int64_t d = 0; d < head_size; d++) {
                    attended[d] += weight * value[d];
                }
            }
        }
    }
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
        attend(a, model, cache, layer, position + 1);
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
    activations_create(&a, model, max_tokens);
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
