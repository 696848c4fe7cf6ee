/* SPDX-License-Identifier: MIT
 *
 * pagedkv info: what the library sees of this machine, as text or as JSON.
 */
#include "cli.h"

#include <string.h>
#include <unistd.h>

#include <jansson.h>

enum { MAX_LEVELS = 8 };

struct facts {
    char version[32];
    struct pkv_cpu_info cpu;
    int num_levels;
    int32_t levels[MAX_LEVELS]; /* those that this machine has, the lowest first */
    int64_t huge_page_bytes;    /* 0: the system does not tell */
    char huge_page_mode[16];    /* "unknown" likewise */
    int64_t memory_bytes;
};

/* Reads the first line of a file of the kernel; empty when it cannot be read. */
static void read_line(const char *path, char *line, int line_bytes) {
    FILE *stream = fopen(path, "re");
    if (stream == NULL || fgets(line, line_bytes, stream) == NULL)
        line[0] = '\0';
    if (stream)
        (void)fclose(stream);
    line[strcspn(line, "\n")] = '\0';
}

static void read_huge_pages(struct facts *facts) {
    char line[128];
    read_line("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", line, sizeof(line));
    if (cli_parse_int(line, 0, INT64_MAX, &facts->huge_page_bytes) != 0)
        facts->huge_page_bytes = 0;
    /* The chosen mode stands in brackets: "always [madvise] never". */
    read_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof(line));
    const char *begin = strchr(line, '[');
    const char *end = begin ? strchr(begin, ']') : NULL;
    (void)strcpy(facts->huge_page_mode, "unknown");
    if (end && (size_t)(end - begin) <= sizeof(facts->huge_page_mode)) {
        memcpy(facts->huge_page_mode, begin + 1, (size_t)(end - begin - 1));
        facts->huge_page_mode[end - begin - 1] = '\0';
    }
}

static void list_levels(struct facts *facts) {
    const int32_t level = facts->cpu.level;
    const int32_t first = level >= PKV_CPU_LEVEL_NEON ? PKV_CPU_LEVEL_NEON : PKV_CPU_LEVEL_AVX2;
    facts->levels[facts->num_levels++] = PKV_CPU_LEVEL_C;
    for (int32_t i = first; i <= level && facts->num_levels < MAX_LEVELS; i++)
        facts->levels[facts->num_levels++] = i;
}

static void print_bytes(const char *label, int64_t num_bytes) {
    if (num_bytes == 0)
        printf("%-16s unknown\n", label);
    else if (num_bytes % (1024 * 1024) == 0)
        printf("%-16s %lld MiB\n", label, (long long)(num_bytes / (1024 * 1024)));
    else
        printf("%-16s %lld KiB\n", label, (long long)(num_bytes / 1024));
}

static void print_text(const struct facts *facts, int32_t used_level) {
    printf("%-16s %s\n", "version", facts->version);
    printf("%-16s %s\n", "CPU level", pkv_cpu_level_name(facts->cpu.level));
    printf("%-16s", "levels");
    for (int i = 0; i < facts->num_levels; i++)
        printf(" %s", pkv_cpu_level_name(facts->levels[i]));
    printf("\n%-16s %s\n", "level in use", pkv_cpu_level_name(used_level));
    printf("%-16s %d\n", "CPUs", (int)facts->cpu.num_cpus);
    print_bytes("L1 data cache", facts->cpu.l1d_bytes);
    print_bytes("L2 cache", facts->cpu.l2_bytes);
    print_bytes("L3 cache", facts->cpu.l3_bytes);
    print_bytes("memory", facts->memory_bytes / (1024 * 1024) * (1024 * 1024));
    print_bytes("OS page", facts->cpu.os_page_bytes);
    print_bytes("huge page", facts->huge_page_bytes);
    printf("%-16s %s\n", "huge pages", facts->huge_page_mode);
}

static int print_json(const struct facts *facts, int32_t used_level) {
    json_t *levels = json_array();
    for (int i = 0; i < facts->num_levels; i++)
        (void)json_array_append_new(levels, json_string(pkv_cpu_level_name(facts->levels[i])));
    json_t *object = json_pack(
        "{s:s, s:s, s:o, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "version", facts->version,
        "cpu_level", pkv_cpu_level_name(facts->cpu.level), "cpu_levels", levels, "cpu_level_in_use",
        pkv_cpu_level_name(used_level), "num_cpus", (int)facts->cpu.num_cpus, "l1d_bytes",
        (json_int_t)facts->cpu.l1d_bytes, "l2_bytes", (json_int_t)facts->cpu.l2_bytes, "l3_bytes",
        (json_int_t)facts->cpu.l3_bytes, "memory_bytes", (json_int_t)facts->memory_bytes,
        "os_page_bytes", (json_int_t)facts->cpu.os_page_bytes, "huge_page_bytes",
        (json_int_t)facts->huge_page_bytes, "huge_page_mode", facts->huge_page_mode);
    if (object == NULL || json_dumpf(object, stdout, JSON_COMPACT) != 0) {
        json_decref(object);
        return cli_error("info", "cannot make the JSON text; free memory and run again");
    }
    putchar('\n');
    json_decref(object);
    return CLI_OK;
}

int cmd_info(int argc, char **argv) {
    int is_json = 0;
    struct cli_context_choice choice = {.threads = 1};
    const struct cli_option options[] = {
        {"json", CLI_FLAG, &is_json, 0, 0, NULL, NULL, "print one JSON object"},
        {"cpu", CLI_TEXT, &choice.cpu, 0, 0, NULL, "LEVEL",
         "use the kernels of a lower CPU level (environment: PAGEDKV_CPU)"},
        {.name = NULL}};
    const struct cli_syntax syntax = {"info",
                                      "info [--json] [--cpu LEVEL]",
                                      "Tells what the library sees of this machine.",
                                      options,
                                      NULL,
                                      NULL};
    int first = 0;
    int status = cli_parse(&syntax, argc, argv, &first);
    if (status != CLI_CONTINUE)
        return status;
    if (first < argc)
        return cli_error("info", "it takes no argument '%s'; leave it out", argv[first]);

    struct cli_context context;
    status = cli_context_create(&context, "info", &choice);
    if (status != CLI_CONTINUE)
        return status;
    const int32_t used_level = pkv_context_cpu_level(context.context);
    cli_context_destroy(&context);

    struct pkv_error error = {.struct_size = sizeof(error)};
    struct facts facts = {.cpu = {.struct_size = sizeof(facts.cpu)}};
    if (pkv_cpu_info_get(&facts.cpu, &error) != PKV_STATUS_OK)
        return cli_library_error("info", NULL, &error);
    const int32_t version = pkv_version();
    (void)snprintf(facts.version, sizeof(facts.version), "%d.%d.%d", (int)(version / 10000),
                   (int)(version / 100 % 100), (int)(version % 100));
    facts.memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    list_levels(&facts);
    read_huge_pages(&facts);
    if (is_json)
        return print_json(&facts, used_level);
    print_text(&facts, used_level);
    return CLI_OK;
}
