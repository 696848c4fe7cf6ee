/* SPDX-License-Identifier: MIT
 *
 * pagedkv, the command-line tool: finds the subcommand and hands over. It does no work of its own.
 */
#include "cli.h"

#include <signal.h>
#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"verify", cmd_verify, "run the published matrix against an independent reference"},
    {"run", cmd_run, "apply one operator to the tensors of a safetensors file"},
    {"bench", cmd_bench, "measure speed beside a ceiling measured in the same process"},
    {"explain", cmd_explain, "tell what a plan would do, without doing it"},
    {"replay", cmd_replay, "replay a trace of requests and tell how much a cache finds"},
    {"info", cmd_info, "tell what this machine can do"},
};

enum { NUM_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void print_help(FILE *stream) {
    fputs("usage: pagedkv COMMAND [ARGUMENT ...]\n\n"
          "The paged KV cache of LLM inference: writes it, reads it, checks it.\n\ncommands:\n",
          stream);
    for (int i = 0; i < NUM_COMMANDS; i++)
        fprintf(stream, "  %-8s %s\n", commands[i].name, commands[i].summary);
    fputs("\n'pagedkv COMMAND --help' explains a command; 'pagedkv --version' prints the version.\n"
          "Options may be spelled with '_' or with '-'. Exit status: 0 ok, 1 a check failed,\n"
          "2 usage or bad input.\n",
          stream);
}

static int finish(const char *command, int status) {
    if (fflush(stdout) != 0 || ferror(stdout))
        return cli_error(command, "cannot write to standard output; make room and run again");
    return status;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : NULL;
    /* A file that becomes too large is an error of write(), and removed. */
    (void)signal(SIGXFSZ, SIG_IGN);
    if (name == NULL) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help(stdout);
        return finish("", CLI_OK);
    }
    if (strcmp(name, "--version") == 0) {
        int32_t version = pkv_version();
        printf("pagedkv %d.%d.%d\n", (int)(version / 10000), (int)(version / 100 % 100),
               (int)(version % 100));
        return finish("", CLI_OK);
    }
    for (int i = 0; i < NUM_COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0)
            return finish(name, commands[i].run(argc - 1, argv + 1));
    }
    return cli_error("", "there is no command '%s'; see 'pagedkv --help'", name);
}
