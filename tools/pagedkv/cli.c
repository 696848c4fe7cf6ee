/* SPDX-License-Identifier: MIT
 *
 * What the subcommands share: options, errors, contexts. See cli.h.
 */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_OPTIONS = 40, FIRST_VALUE = 256, ALIGNMENT = 64 };

int cli_error(const char *command, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "pagedkv%s%s: ", command[0] ? " " : "", command);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return CLI_USAGE;
}

int cli_library_error(const char *command, const char *subject, const struct pkv_error *error) {
    char text[512];
    (void)pkv_error_text(error, text, sizeof(text));
    const char *what_to_do = "correct it and run again";
    if (error->status == PKV_STATUS_OUT_OF_MEMORY)
        what_to_do = "free memory or use smaller tensors";
    else if (error->status == PKV_STATUS_INTERNAL)
        what_to_do = "please report this";
    return cli_error(command, "%s%s%s; %s", subject ? subject : "", subject ? ": " : "", text,
                     what_to_do);
}

int cli_parse_int(const char *text, int64_t min, int64_t max, int64_t *value) {
    const char *digits = text[0] == '-' ? text + 1 : text;
    if (digits[0] < '0' || digits[0] > '9')
        return -1;
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || number < min || number > max)
        return -1;
    *value = number;
    return 0;
}

static void print_choices(FILE *stream, const char *const *choices) {
    const char *separator = "";
    for (; *choices; choices++) {
        if ((*choices)[0] == '\0')
            continue;
        fprintf(stream, "%s%s", separator, *choices);
        separator = "|";
    }
}

void cli_print_help(const struct cli_syntax *syntax, FILE *stream) {
    fprintf(stream, "usage: pagedkv %s\n\n%s\n\noptions:\n", syntax->synopsis, syntax->summary);
    for (const struct cli_option *option = syntax->options; option->name; option++) {
        fprintf(stream, "  --%s%s", option->name, option->kind == CLI_FLAG ? "" : " ");
        if (option->kind == CLI_CHOICE)
            print_choices(stream, option->choices);
        else if (option->argument)
            fputs(option->argument, stream);
        fprintf(stream, "\n      %s\n", option->help);
    }
    fputs("  --help\n      print this\n", stream);
    if (syntax->more_help)
        syntax->more_help(stream, syntax->help_subject);
}

static int take_choice(const struct cli_syntax *syntax, const struct cli_option *option,
                       const char *text) {
    for (int64_t i = 0; option->choices[i]; i++) {
        if (strcasecmp(option->choices[i], text) == 0) {
            *(int64_t *)option->target = i;
            return CLI_CONTINUE;
        }
    }
    fprintf(stderr, "pagedkv %s: --%s has no choice '%s'; use ", syntax->command, option->name,
            text);
    print_choices(stderr, option->choices);
    fputc('\n', stderr);
    return CLI_USAGE;
}

static int take(const struct cli_syntax *syntax, const struct cli_option *option,
                const char *text) {
    switch (option->kind) {
    case CLI_FLAG:
        *(int *)option->target = 1;
        return CLI_CONTINUE;
    case CLI_INT:
        if (cli_parse_int(text, option->min, option->max, option->target) == 0)
            return CLI_CONTINUE;
        return cli_error(syntax->command, "--%s is '%s'; use an integer from %lld to %lld",
                         option->name, text, (long long)option->min, (long long)option->max);
    case CLI_TEXT:
        *(const char **)option->target = text;
        return CLI_CONTINUE;
    case CLI_CHOICE:
        return take_choice(syntax, option, text);
    }
    return CLI_USAGE;
}

static int unknown_option(const struct cli_syntax *syntax, const char *text) {
    fprintf(stderr, "pagedkv %s: unknown option or attribute '%s'; known are", syntax->command,
            text);
    for (const struct cli_option *option = syntax->options; option->name; option++)
        fprintf(stderr, " --%s", option->name);
    fputs(" --help\n", stderr);
    return CLI_USAGE;
}

/* getopt_long knows one spelling: names get '_'. Arguments that follow an option as a word of their
 * own may begin with "--" only by accident, and none of the options takes such an argument. */
static void normalise(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0)
            continue;
        if (argv[i][2] == '\0')
            return;
        for (char *letter = argv[i] + 2; *letter != '\0' && *letter != '='; letter++) {
            if (*letter == '-')
                *letter = '_';
        }
    }
}

int cli_parse(const struct cli_syntax *syntax, int argc, char **argv, int *first_argument) {
    struct option names[MAX_OPTIONS + 2];
    int num_options = 0;
    memset(names, 0, sizeof(names));
    for (; syntax->options[num_options].name; num_options++) {
        if (num_options == MAX_OPTIONS)
            return cli_error(syntax->command, "its table of options is too long; please report");
        names[num_options].name = syntax->options[num_options].name;
        names[num_options].has_arg =
            syntax->options[num_options].kind == CLI_FLAG ? no_argument : required_argument;
        names[num_options].val = FIRST_VALUE + num_options;
    }
    names[num_options].name = "help";
    names[num_options].val = 'h';

    normalise(argc, argv);
    opterr = 0;
    optind = 0; /* begin anew, also after an earlier table */
    for (;;) {
        int value = getopt_long(argc, argv, ":h", names, NULL);
        if (value == -1)
            break;
        if (value == 'h') {
            cli_print_help(syntax, stdout);
            return CLI_OK;
        }
        if (value == ':')
            return cli_error(syntax->command, "%s needs a value; see --help", argv[optind - 1]);
        if (value == '?' && optopt >= FIRST_VALUE)
            return cli_error(syntax->command, "--%s takes no value; leave it out",
                             syntax->options[optopt - FIRST_VALUE].name);
        if (value < FIRST_VALUE) {
            const char letter[] = {'-', (char)optopt, '\0'};
            return unknown_option(syntax, optopt ? letter : argv[optind - 1]);
        }
        int status = take(syntax, &syntax->options[value - FIRST_VALUE], optarg);
        if (status != CLI_CONTINUE)
            return status;
    }
    *first_argument = optind;
    return CLI_CONTINUE;
}

int32_t cli_cpu_level(const char *command, const char *cpu) {
    const char *source = "--cpu";
    if (cpu == NULL) {
        cpu = getenv("PAGEDKV_CPU");
        source = "PAGEDKV_CPU";
    }
    if (cpu == NULL || (cpu[0] == '\0' && source[0] != '-'))
        return PKV_CPU_LEVEL_BEST;
    int32_t level = pkv_cpu_level_from_name(cpu);
    if (level < 0)
        (void)cli_error(command,
                        "%s names no CPU level: '%s'; use best, c, avx2, avx512, avx512_bf16, neon "
                        "or neon_bf16",
                        source, cpu);
    return level;
}

int32_t cli_run_mode(const char *command, const char *run_mode) {
    if (run_mode == NULL || strcasecmp(run_mode, "native") == 0)
        return PKV_RUN_MODE_NATIVE;
    if (strcasecmp(run_mode, "sim") == 0)
        return PKV_RUN_MODE_SIM;
    if (strcasecmp(run_mode, "npu") == 0)
        (void)cli_error(command, "--run_mode npu: there is no such device here; use native (the "
                                 "kernels of this CPU) or sim (the definition, tile by tile)");
    else
        (void)cli_error(command, "--run_mode has no mode '%s'; use native or sim", run_mode);
    return -1;
}

int cli_context_create(struct cli_context *context, const char *command,
                       const struct cli_context_choice *choice) {
    memset(context, 0, sizeof(*context));
    int32_t level = cli_cpu_level(command, choice->cpu);
    context->run_mode = cli_run_mode(command, choice->run_mode);
    if (level < 0 || context->run_mode < 0)
        return CLI_USAGE;

    struct pkv_error error = {.struct_size = sizeof(error)};
    struct pkv_context_options options = {
        .struct_size = sizeof(options), .run_mode = context->run_mode, .max_cpu_level = level};
    context->num_threads = 1;
    if (choice->threads != 1) {
        if (pkv_executor_pthread_create(&context->executor, (int32_t)choice->threads, NULL,
                                        &error) != PKV_STATUS_OK)
            return cli_library_error(command, NULL, &error);
        context->hook = pkv_executor_pthread_hook(context->executor);
        context->num_threads = context->hook.num_threads;
        options.executor = &context->hook;
    }
    if (pkv_context_create(&context->context, &options, &error) != PKV_STATUS_OK) {
        cli_context_destroy(context);
        return cli_library_error(command, NULL, &error);
    }
    return CLI_CONTINUE;
}

void cli_context_destroy(struct cli_context *context) {
    pkv_context_destroy(context->context);
    pkv_executor_pthread_destroy(context->executor);
    memset(context, 0, sizeof(*context));
}

const char *const cli_layouts[] = {"NHD", "HND", "PA_NZ", "X_PACKED", "TRANSPOSED", NULL};
const char *const cli_cache_modes[] = {"Norm", "PA_NZ", "NHSD", "", NULL};

int cli_choose_layouts(const char *command, int64_t cache_mode, int64_t key_layout,
                       int64_t value_layout, int32_t layouts[2]) {
    layouts[0] = key_layout < 0 ? PKV_LAYOUT_NHD : (int32_t)key_layout;
    layouts[1] = value_layout < 0 ? PKV_LAYOUT_NHD : (int32_t)value_layout;
    if (cache_mode < 0)
        return CLI_CONTINUE;
    if (key_layout >= 0 || value_layout >= 0)
        return cli_error(command, "--cache_mode names the layouts of --key_layout and "
                                  "--value_layout; give one or the other");
    const char *mode = cli_cache_modes[cache_mode];
    layouts[0] = mode[0] == '\0' ? PKV_LAYOUT_NHD : pkv_layout_from_name(mode);
    layouts[1] = layouts[0];
    return CLI_CONTINUE;
}

int cli_cache_shape(const char *command, const struct cli_cache_size *size, int32_t layout,
                    int32_t dtype, int32_t *ndim, int64_t shape[PKV_MAX_DIMS]) {
    const int64_t blocks = size->num_blocks, tokens = size->block_size;
    const int64_t heads = size->num_kv_heads, head_size = size->head_size;
    const int64_t fragment_bytes = layout == PKV_LAYOUT_PA_NZ ? 32 : 16;
    const int64_t length = fragment_bytes / pkv_dtype_bytes(dtype);
    if ((layout == PKV_LAYOUT_PA_NZ || layout == PKV_LAYOUT_X_PACKED) && head_size % length != 0)
        return cli_error(command,
                         "%s has fragments of %lld elements of %s, which do not divide a head of "
                         "%lld; choose another layout or head size",
                         pkv_layout_name(layout), (long long)length, pkv_dtype_name(dtype),
                         (long long)head_size);
    const int64_t shapes[][5] = {
        [PKV_LAYOUT_NHD] = {blocks, tokens, heads, head_size},
        [PKV_LAYOUT_HND] = {blocks, heads, tokens, head_size},
        [PKV_LAYOUT_PA_NZ] = {blocks, heads * (head_size / length), tokens, length},
        [PKV_LAYOUT_X_PACKED] = {blocks, heads, head_size / length, tokens, length},
        [PKV_LAYOUT_TRANSPOSED] = {blocks, heads, head_size, tokens},
    };
    *ndim = layout == PKV_LAYOUT_X_PACKED ? 5 : 4;
    memcpy(shape, shapes[layout], sizeof(shapes[layout]));
    return CLI_CONTINUE;
}

void *cli_alloc(uint64_t num_bytes) {
    if (num_bytes > (uint64_t)INT64_MAX - ALIGNMENT)
        return NULL;
    uint64_t rounded = (num_bytes / ALIGNMENT + 1) * ALIGNMENT;
    return aligned_alloc(ALIGNMENT, (size_t)rounded);
}
