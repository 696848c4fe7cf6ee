/* SPDX-License-Identifier: MIT
 *
 * pagedkv run: reads a safetensors file, applies one operator, writes a safetensors file. What the
 * operators are is in run_ops.c.
 */
#include "run.h"

#include <stdlib.h>
#include <string.h>

#include "safetensors.h"

enum { MAX_RUN_OPTIONS = 24 };

static const char *const data_dtypes[] = {"hifloat8", NULL};

struct pkv_tensor *run_tensor(struct run_call *call, const char *name) {
    for (int i = 0; i < RUN_MAX_TENSORS && call->op->tensors[i].name; i++) {
        if (strcmp(call->op->tensors[i].name, name) == 0)
            return call->is_present[i] ? &call->tensors[i] : NULL;
    }
    return NULL;
}

void *run_alloc(struct run_call *call, int64_t num_bytes) {
    void *memory = NULL;
    if (call->num_memory < RUN_MAX_MEMORY && num_bytes >= 0)
        memory = cli_alloc((uint64_t)num_bytes);
    if (memory)
        call->memory[call->num_memory++] = memory;
    else
        (void)cli_error(call->command, "%s: no memory for %lld bytes; use smaller tensors",
                        call->file, (long long)num_bytes);
    return memory;
}

void run_output(struct run_call *call, const char *name, const struct pkv_tensor *tensor) {
    call->output_names[call->num_outputs] = name;
    call->outputs[call->num_outputs++] = *tensor;
}

/* All attributes; an operator takes those whose names are in its table. */
static void make_options(struct run_attributes *a, const struct run_operator *op,
                         struct cli_option options[MAX_RUN_OPTIONS]) {
    const struct cli_option all[] = {
        {"dim", CLI_INT, &a->dim, INT32_MIN, INT32_MAX, NULL, "N", "the axis; must be -2 (-2)"},
        {"key_layout", CLI_CHOICE, &a->key_layout, 0, 0, cli_layouts, NULL,
         "layout of the key cache (NHD)"},
        {"value_layout", CLI_CHOICE, &a->value_layout, 0, 0, cli_layouts, NULL,
         "layout of the value cache (NHD)"},
        {"cache_mode", CLI_CHOICE, &a->cache_mode, 0, 0, cli_cache_modes, NULL,
         "both layouts in the published spelling: Norm is NHD, NHSD is HND"},
        {"scatter_mode", CLI_CHOICE, &a->scatter_mode, 0, 0, run_scatter_modes, NULL,
         "how the rows lie in key and value, and which of them are written (None)"},
        {"strides", CLI_TEXT, &a->strides, 0, 0, NULL, "K,V",
         "Nct: elements from row to row (the lengths of the rows)"},
        {"offsets", CLI_TEXT, &a->offsets, 0, 0, NULL, "K,V",
         "Nct: elements in front of the first row (0,0)"},
        {"is_seq_lens_cumsum", CLI_INT, &a->is_seq_lens_cumsum, 0, 1, NULL, "0|1",
         "1: seq_lens holds running totals; 0: lengths (1)"},
        {"num_kv_heads", CLI_INT, &a->num_kv_heads, 1, INT64_MAX, NULL, "N",
         "heads, where a PA_NZ shape does not tell"},
        {"block_size", CLI_INT, &a->block_size, 1, INT64_MAX, NULL, "N",
         "tokens of a block; checked where shapes tell it, needed where they do not"},
        {"from", CLI_CHOICE, &a->from, 0, 0, cli_layouts, NULL, "layout of the input"},
        {"to", CLI_CHOICE, &a->to, 0, 0, cli_layouts, NULL, "layout of the output"},
        {"compress_block_size", CLI_INT, &a->compress_block_size, 1, INT64_MAX, NULL, "N",
         "rows of a window; checked (the first dimension of weight)"},
        {"compress_stride", CLI_INT, &a->compress_stride, 1, INT64_MAX, NULL, "N",
         "tokens from window to window (16)"},
        {"page_block_size", CLI_INT, &a->page_block_size, 1, INT64_MAX, NULL, "N",
         "tokens of a block; checked (the second dimension of input)"},
        {"value", CLI_TEXT, &a->value, 0, 0, NULL, "K[,V]",
         "bits of an element of key and value, such as 0x7fc0 (0)"},
        {"first", CLI_INT, &a->first, 0, INT64_MAX, NULL, "N", "the first block (0)"},
        {"num", CLI_INT, &a->num, 0, INT64_MAX, NULL, "N", "how many blocks (all that follow)"},
        {"scale", CLI_TEXT, &a->scale, 0, 0, NULL, "X",
         "what q . k is multiplied with (1 / sqrt(head_size))"},
        {"causal", CLI_INT, &a->causal, 0, 1, NULL, "0|1",
         "0: a token sees those after it, too (1)"},
        {"window_left", CLI_INT, &a->window_left, -1, INT64_MAX - 1, NULL, "N",
         "how many earlier tokens a token sees; -1: all (-1)"},
        {"window_right", CLI_INT, &a->window_right, -1, INT64_MAX - 1, NULL, "N",
         "how many later tokens it sees, with --causal 0; -1: all (-1)"},
        {"softcap", CLI_TEXT, &a->softcap, 0, 0, NULL, "X",
         "scores become X * tanh(score / X); 0: they stay as they are (0)"},
        {"lse_base", CLI_CHOICE, &a->lse_base, 0, 0, run_lse_bases, NULL,
         "base of the logarithm in lse (e)"},
        {"value_head_size", CLI_INT, &a->value_head_size, 1, INT64_MAX, NULL, "N",
         "without a value cache: so many elements of each key are its value (all)"},
        {"num_shared_tokens", CLI_INT, &a->num_shared_tokens, 0, INT64_MAX, NULL, "N",
         "first tokens that lie in the same blocks in every sequence: read once for all (0)"},
        {"products", CLI_CHOICE, &a->products, 0, 0, run_products, NULL,
         "arithmetic of q . k and weights . v; bf16 is faster and less exact (f32)"},
        {"duplicates", CLI_CHOICE, &a->duplicates, 0, 0, run_duplicates, NULL,
         "what happens to slots that are named twice (last_wins)"},
    };
    int num_options = 0;
    for (int i = 0; op->attributes[i]; i++) {
        for (size_t j = 0; j < sizeof(all) / sizeof(all[0]); j++) {
            if (strcmp(op->attributes[i], all[j].name) == 0)
                options[num_options++] = all[j];
        }
    }
    options[num_options].name = NULL;
}

static void print_tensors(FILE *stream, const struct run_operator *op) {
    for (int i = 0; op->tensors[i].name; i++) {
        if (op->tensors[i].shape)
            fprintf(stream, "  %s%s\n      %s\n", op->tensors[i].name,
                    op->tensors[i].optional ? " (optional)" : "", op->tensors[i].shape);
    }
}

static void print_operator(FILE *stream, const void *subject) {
    const struct run_operator *op = subject;
    fputs("\ntensors of IN:\n", stream);
    print_tensors(stream, op);
    fprintf(stream, "\ntensors of OUT:\n  %s\n", op->outputs);
}

static void print_operators(FILE *stream, const void *subject) {
    (void)subject;
    fputs("\noperators, with their tensors and attributes:\n", stream);
    for (const struct run_operator *op = run_operators; op->name; op++) {
        const char *separator = "";
        fprintf(stream, "\n%s: %s\n  in: ", op->name, op->summary);
        for (int i = 0; op->tensors[i].name; i++) {
            if (op->tensors[i].shape == NULL)
                continue;
            fprintf(stream, "%s%s%s", separator, op->tensors[i].name,
                    op->tensors[i].optional ? " (optional)" : "");
            separator = ", ";
        }
        fprintf(stream, "\n  out: %s\n  attributes:", op->outputs);
        for (int i = 0; op->attributes[i]; i++)
            fprintf(stream, " --%s", op->attributes[i]);
        fputc('\n', stream);
    }
    fputs("\nevery operator takes: --dtype --run_mode --threads --cpu\n"
          "'pagedkv run OP --help' explains the tensors and attributes of OP.\n",
          stream);
}

static int unknown_tensor(const struct run_call *call, const char *name) {
    char known[512] = "";
    size_t length = 0;
    for (int i = 0; call->op->tensors[i].name && length < sizeof(known); i++) {
        if (call->op->tensors[i].shape)
            length += (size_t)snprintf(known + length, sizeof(known) - length, " %s",
                                       call->op->tensors[i].name);
    }
    char text[SAFETENSORS_NAME_BYTES];
    return cli_error(call->command, "%s: unknown tensor '%s'; known are%s", call->file,
                     safetensors_shown(name, text), known);
}

static int take_tensor(struct run_call *call, const struct safetensors_tensor *source,
                       bool is_hifloat8) {
    int i = 0;
    while (call->op->tensors[i].name && strcmp(call->op->tensors[i].name, source->name) != 0)
        i++;
    if (call->op->tensors[i].name == NULL)
        return unknown_tensor(call, source->name);
    if (source->dtype == PKV_DTYPE_INVALID)
        return cli_error(call->command,
                         "%s: tensor '%s' has dtype %s, which no operator takes; use another",
                         call->file, source->name, source->dtype_name);
    void *data = (void *)source->data;
    const int64_t element_bytes = pkv_dtype_bytes(source->dtype);
    if ((uintptr_t)data % (uintptr_t)element_bytes != 0) {
        data = run_alloc(call, (int64_t)source->num_bytes);
        if (data == NULL)
            return CLI_USAGE;
        memcpy(data, source->data, (size_t)source->num_bytes);
    }
    int32_t dtype = source->dtype;
    if (is_hifloat8 && call->op->tensors[i].is_data && dtype == PKV_DTYPE_U8)
        dtype = PKV_DTYPE_HIFLOAT8;
    call->tensors[i] = pkv_tensor_make(data, dtype, source->ndim, source->shape);
    call->is_present[i] = true;
    return CLI_CONTINUE;
}

static int take_tensors(struct run_call *call, const struct safetensors *file, bool is_hifloat8) {
    bool has_hifloat8 = false;
    for (size_t i = 0; i < file->num_tensors; i++) {
        int status = take_tensor(call, &file->tensors[i], is_hifloat8);
        if (status != CLI_CONTINUE)
            return status;
    }
    for (int i = 0; call->op->tensors[i].name; i++) {
        if (!call->is_present[i] && !call->op->tensors[i].optional)
            return cli_error(call->command, "%s: has no tensor '%s'; see 'pagedkv %s --help'",
                             call->file, call->op->tensors[i].name, call->command);
        has_hifloat8 = has_hifloat8 || call->tensors[i].dtype == PKV_DTYPE_HIFLOAT8;
    }
    if (is_hifloat8 && !has_hifloat8)
        return cli_error(call->command,
                         "%s: --dtype hifloat8 finds no data of dtype U8; leave it out or store "
                         "the data as U8",
                         call->file);
    return CLI_CONTINUE;
}

static int write_outputs(struct run_call *call, const char *path) {
    struct safetensors_tensor tensors[RUN_MAX_OUTPUTS];
    char message[SAFETENSORS_MESSAGE_BYTES];
    for (int i = 0; i < call->num_outputs; i++) {
        const struct pkv_tensor *output = &call->outputs[i];
        struct safetensors_tensor *tensor = &tensors[i];
        tensor->name = call->output_names[i];
        tensor->ndim = output->ndim;
        memcpy(tensor->shape, output->shape, sizeof(tensor->shape));
        tensor->data = output->data;
        /* Outputs are in memory, so the product fits; beside an axis without elements others may be
         * of any length. */
        int64_t bytes = safetensors_set_dtype(tensor, safetensors_dtype_name(output->dtype));
        for (int32_t axis = 0; axis < output->ndim; axis++)
            bytes = output->shape[axis] == 0 ? 0 : bytes;
        for (int32_t axis = 0; axis < output->ndim && bytes > 0; axis++)
            bytes *= output->shape[axis];
        tensor->num_bytes = (uint64_t)bytes;
    }
    if (safetensors_write(path, tensors, (size_t)call->num_outputs, message, sizeof(message)) != 0)
        return cli_error(call->command, "%s; choose another file or make room", message);
    return CLI_OK;
}

static int apply(struct run_call *call, const char *out_path, bool is_hifloat8) {
    struct safetensors file;
    char message[SAFETENSORS_MESSAGE_BYTES];
    int status;
    if (safetensors_read(call->file, &file, message, sizeof(message)) != 0)
        status = cli_error(call->command, "%s; give a valid safetensors file", message);
    else
        status = take_tensors(call, &file, is_hifloat8);
    if (status == CLI_CONTINUE)
        status = call->op->run(call);
    if (status == CLI_OK)
        status = write_outputs(call, out_path);
    for (int i = 0; i < call->num_memory; i++)
        free(call->memory[i]);
    safetensors_free(&file);
    return status;
}

static int run_operator(const struct run_operator *op, int argc, char **argv) {
    struct run_call call = {.op = op,
                            .attributes = {.dim = -2,
                                           .is_seq_lens_cumsum = 1,
                                           .causal = 1,
                                           .window_left = -1,
                                           .window_right = -1,
                                           .cache_mode = RUN_NOT_GIVEN,
                                           .key_layout = RUN_NOT_GIVEN,
                                           .value_layout = RUN_NOT_GIVEN,
                                           .from = RUN_NOT_GIVEN,
                                           .to = RUN_NOT_GIVEN,
                                           .num = RUN_NOT_GIVEN}};
    struct cli_context_choice choice = {.threads = 1};
    int64_t data_dtype = RUN_NOT_GIVEN;
    struct cli_option options[MAX_RUN_OPTIONS];
    const struct cli_option common[] = {{"dtype", CLI_CHOICE, &data_dtype, 0, 0, data_dtypes, NULL,
                                         "what the elements of U8 keys, values and caches are"},
                                        CLI_CONTEXT_OPTIONS(&choice),
                                        {.name = NULL}};
    make_options(&call.attributes, op, options);
    int num_options = 0;
    while (options[num_options].name)
        num_options++;
    memcpy(options + num_options, common, sizeof(common));

    char command[64], synopsis[96];
    (void)snprintf(command, sizeof(command), "run %s", op->name);
    (void)snprintf(synopsis, sizeof(synopsis),
                   "run %s IN.safetensors OUT.safetensors [--attribute value ...]", op->name);
    const struct cli_syntax syntax = {command, synopsis, op->summary, options, print_operator, op};
    int first = 0;
    int status = cli_parse(&syntax, argc, argv, &first);
    if (status != CLI_CONTINUE)
        return status;
    if (argc - first != 2)
        return cli_error(command, "it takes two files, not %d; give IN and OUT", argc - first);
    call.command = command;
    call.file = argv[first];
    status = cli_context_create(&call.cli, command, &choice);
    if (status != CLI_CONTINUE)
        return status;
    status = apply(&call, argv[first + 1], data_dtype != RUN_NOT_GIVEN);
    cli_context_destroy(&call.cli);
    return status;
}

int cmd_run(int argc, char **argv) {
    static const struct cli_option no_options[] = {{.name = NULL}};
    static const struct cli_syntax syntax = {
        "run",
        "run OP IN.safetensors OUT.safetensors [--attribute value ...]",
        "Applies one operator to the tensors of IN and writes its results to OUT.",
        no_options,
        print_operators,
        NULL};
    if (argc < 2 || argv[1][0] == '-') {
        int first = 0;
        int status = cli_parse(&syntax, argc, argv, &first);
        return status == CLI_CONTINUE
                   ? cli_error("run", "it needs an operator first; see 'pagedkv run --help'")
                   : status;
    }
    for (const struct run_operator *op = run_operators; op->name; op++) {
        if (strcmp(op->name, argv[1]) == 0)
            return run_operator(op, argc - 1, argv + 1);
    }
    fprintf(stderr, "pagedkv run: there is no operator '%s'; use", argv[1]);
    for (const struct run_operator *op = run_operators; op->name; op++)
        fprintf(stderr, " %s", op->name);
    fputc('\n', stderr);
    return CLI_USAGE;
}
