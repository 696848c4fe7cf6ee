/* SPDX-License-Identifier: MIT
 *
 * What the subcommands of pagedkv share: exit statuses, tables of options, errors on stderr, and
 * the context that --run_mode, --threads and --cpu ask for. One cmd_<verb>.c per subcommand.
 */
#ifndef PAGEDKV_CLI_H
#define PAGEDKV_CLI_H

#include <stdint.h>
#include <stdio.h>

#include <pagedkv/pagedkv.h>

/* Exit statuses. CLI_CONTINUE is none: it means that there is work to do. */
enum {
    CLI_CONTINUE = -1,
    CLI_OK = 0,
    CLI_CHECK_FAILED = 1, /* a check of verify, bench or replay failed or could not run */
    CLI_USAGE = 2         /* wrong usage or bad input; one line on stderr says what */
};

/* The subcommands. argv[0] is the command's own name ("run"). Each returns an exit status. */
int cmd_run(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_replay(int argc, char **argv);

/* What follows an option, and what its target points to. */
enum cli_kind {
    CLI_FLAG,  /* nothing; int, set to 1 */
    CLI_INT,   /* a decimal integer in [min, max]; int64_t */
    CLI_TEXT,  /* anything; const char * into argv */
    CLI_CHOICE /* one of choices, case ignored; int64_t, set to its index */
};

struct cli_option {
    const char *name; /* spelled with '_'; users may write '-' instead */
    enum cli_kind kind;
    void *target; /* keeps its value, the default, when the option is not given */
    int64_t min;  /* CLI_INT */
    int64_t max;
    const char *const *choices; /* CLI_CHOICE: NULL at the end; "" stands for an empty argument */
    const char *argument;       /* how help names the argument: "N"; NULL with CLI_FLAG */
    const char *help;           /* one line */
};

/* A command line: what help prints and what is accepted. */
struct cli_syntax {
    const char *command;              /* "run", or "run scatter_update": the prefix of errors */
    const char *synopsis;             /* what follows "usage: pagedkv " */
    const char *summary;              /* one sentence */
    const struct cli_option *options; /* ends with a name of NULL */
    /* nullable: printed after the options, with what help_subject points to */
    void (*more_help)(FILE *stream, const void *help_subject);
    const void *help_subject;
};

/* Reads the options of argv[1] ... and moves what is no option to the end, in its order:
 * argv[*first_argument] ... argv[argc - 1]. In names '-' becomes '_'; `--name value` and
 * `--name=value` are the same; `--` ends the options. Returns CLI_CONTINUE; CLI_OK after --help has
 * printed to stdout; CLI_USAGE after an error, which has been printed. */
int cli_parse(const struct cli_syntax *syntax, int argc, char **argv, int *first_argument);

/* Prints what --help prints. */
void cli_print_help(const struct cli_syntax *syntax, FILE *stream);

/* Reads a whole decimal integer in [min, max]. Returns 0, or -1 and leaves *value alone. */
int cli_parse_int(const char *text, int64_t min, int64_t max, int64_t *value);

/* Prints "pagedkv COMMAND: " and the message and a newline to stderr, and returns CLI_USAGE. The
 * message says what is wrong and then, after a semicolon, what to do. */
int cli_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a call of the library that failed; subject (a file, a case) is nullable. */
int cli_library_error(const char *command, const char *subject, const struct pkv_error *error);

/* The options that choose a context. Put CLI_CONTEXT_OPTIONS(&choice) into a table of options. */
struct cli_context_choice {
    const char *run_mode; /* NULL: native */
    const char *cpu;      /* NULL: the environment variable PAGEDKV_CPU, else the best */
    int64_t threads;      /* 0: one for each processor; start with 1 */
};

#define CLI_MAX_THREADS 1024

/* clang-format off */
#define CLI_CONTEXT_OPTIONS(choice) \
    {"run_mode", CLI_TEXT, &(choice)->run_mode, 0, 0, NULL, "native|sim", \
     "fast kernels, or the definition tile by tile (native)"}, \
    {"threads", CLI_INT, &(choice)->threads, 0, CLI_MAX_THREADS, NULL, "N", \
     "threads that share the work; 0: one for each processor (1)"}, \
    {"cpu", CLI_TEXT, &(choice)->cpu, 0, 0, NULL, "LEVEL", \
     "use the kernels of a lower CPU level (environment: PAGEDKV_CPU)"}
/* clang-format on */

/* A context with the executor that it runs on. */
struct cli_context {
    struct pkv_context *context;
    struct pkv_executor_pthread *executor; /* NULL with one thread */
    struct pkv_executor hook;              /* of that executor; all zero with one thread */
    int32_t run_mode;
    int32_t num_threads;
};

/* Makes it. Returns CLI_CONTINUE, or CLI_USAGE after printing what is wrong. */
int cli_context_create(struct cli_context *context, const char *command,
                       const struct cli_context_choice *choice);

/* Frees it; a context of zeroes is fine. */
void cli_context_destroy(struct cli_context *context);

/* The level that --cpu or PAGEDKV_CPU names: PKV_CPU_LEVEL_BEST when neither is given, or -1 after
 * printing that there is no such level. */
int32_t cli_cpu_level(const char *command, const char *cpu);

/* The mode of that name, native when NULL, or -1 after printing that there is no such mode. */
int32_t cli_run_mode(const char *command, const char *run_mode);

/* Spellings of layouts, in the order of enum pkv_layout, and of published cache modes, of which the
 * empty one means Norm. For CLI_CHOICE. */
extern const char *const cli_layouts[];
extern const char *const cli_cache_modes[];

/* Layouts of key and value from the indices of --cache_mode, --key_layout and --value_layout (-1:
 * not given). Returns CLI_CONTINUE, or CLI_USAGE after printing that they contradict each other. */
int cli_choose_layouts(const char *command, int64_t cache_mode, int64_t key_layout,
                       int64_t value_layout, int32_t layouts[2]);

struct cli_cache_size {
    int64_t num_blocks;
    int64_t block_size;
    int64_t num_kv_heads;
    int64_t head_size;
};

/* The shape of a cache tensor of that size in a layout (PA_NZ in four dimensions). Returns
 * CLI_CONTINUE, or CLI_USAGE after printing that its heads do not divide into fragments. */
int cli_cache_shape(const char *command, const struct cli_cache_size *size, int32_t layout,
                    int32_t dtype, int32_t *ndim, int64_t shape[PKV_MAX_DIMS]);

/* Memory of at least one byte, aligned to 64 bytes, or NULL; free() releases it. */
void *cli_alloc(uint64_t num_bytes);

#endif
