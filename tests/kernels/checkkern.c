/* SPDX-License-Identifier: MIT
 *
 * checkkern: every kernel of every CPU level against its C version. This file asks the ladder for
 * each level's table, finds the entries that are new there, and lets their families check them; a
 * crash is caught and is that kernel's failure. It knows no kernel itself.
 */
#include "checkkern.h"

#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "guard.h"

static const struct kern_family *const families[] = {&kern_copy_spans,
                                                     &kern_copy_grids,
                                                     &kern_copy_streams,
                                                     &kern_copy_columns,
                                                     &kern_check_slots,
                                                     &kern_select_slots,
                                                     &kern_mean_add,
                                                     &kern_mean_store,
                                                     &kern_nsa_compress,
                                                     &kern_attention_scores,
                                                     &kern_attention_values,
                                                     &kern_attention_scores_dot,
                                                     &kern_attention_values_dot,
                                                     &kern_attention_softmax,
                                                     &kern_attention_factors,
                                                     &kern_attention_merge,
                                                     &kern_attention_load,
                                                     &kern_attention_store,
                                                     &kern_attention_pair};

/* In the order of the ladder. */
static const int32_t levels[] = {
    PKV_CPU_LEVEL_C,
#if defined(__x86_64__)
    PKV_CPU_LEVEL_AVX2,
    PKV_CPU_LEVEL_AVX512,
    PKV_CPU_LEVEL_AVX512_BF16,
#elif defined(__aarch64__)
    PKV_CPU_LEVEL_NEON,
    PKV_CPU_LEVEL_NEON_BF16,
#endif
};

enum {
    NUM_FAMILIES = sizeof(families) / sizeof(families[0]),
    NUM_LEVELS = sizeof(levels) / sizeof(levels[0]),
    MAX_BUFFERS = 64
};

static struct {
    uint64_t seed;
    bool bench;
    bool list;
    int32_t level; /* only this one; 0: all */
    char **names;  /* only kernels whose name contains one of these; none: all */
    int num_names;
} options;

static struct {
    int num_visited, num_passed, num_failed, num_skipped;
    char name[96]; /* of the kernel under test */
    int64_t num_cases;
    sigjmp_buf leave; /* how a check ends early */
    volatile sig_atomic_t running;
    char failure[256];
} run;

static struct {
    struct kern_buffer buffer;
    struct test_guard guard;
} buffers[MAX_BUFFERS];
static int num_buffers;

const struct kern_buffer *kern_buffer_make(const char *name, int64_t min_bytes) {
    /* 64 KiB is the largest OS page of the platforms. */
    const int64_t bytes = (min_bytes + 65535) / 65536 * 65536;
    if (num_buffers == MAX_BUFFERS) {
        fprintf(stderr, "checkkern: more than %d buffers\n", MAX_BUFFERS);
        exit(1);
    }
    const int i = num_buffers++;
    buffers[i].guard = test_guard_make((size_t)bytes, TEST_GUARD_END);
    buffers[i].buffer = (struct kern_buffer){name, buffers[i].guard.data, bytes};
    return &buffers[i].buffer;
}

void kern_buffer_protect(const struct kern_buffer *buffer) {
    for (int i = 0; i < num_buffers; i++) {
        if (&buffers[i].buffer == buffer)
            test_guard_protect(&buffers[i].guard);
    }
}

void kern_count_case(void) {
    run.num_cases++;
}

bool kern_benching(void) {
    return options.bench;
}

_Noreturn void kern_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(run.failure, sizeof(run.failure), format, args);
    va_end(args);
    siglongjmp(run.leave, 1);
}

void kern_near(const char *name, int64_t row, int64_t column, double is, double wanted,
               double bound) {
    const bool is_good = isnan(wanted)   ? isnan(is)
                         : isinf(wanted) ? is == wanted
                                         : fabs(is - wanted) <= bound;
    if (!is_good)
        kern_fail("%s[%" PRId64 "][%" PRId64 "] is %.9g, should be %.9g within %.3g", name, row,
                  column, is, wanted, bound);
}

/* Where a fault lies, in the words of the test. */
static _Noreturn void fail_by_fault(const char *signal_name, const void *address) {
    const int64_t page = (int64_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < num_buffers; i++) {
        const struct kern_buffer *buffer = &buffers[i].buffer;
        const int64_t at = (int64_t)((uintptr_t)address - (uintptr_t)buffer->data);
        if (at < -page || at >= buffer->bytes + page)
            continue;
        if (at < 0)
            kern_fail("%s, %" PRId64 " bytes before the start of %s", signal_name, -at,
                      buffer->name);
        if (at >= buffer->bytes)
            kern_fail("%s, %" PRId64 " bytes behind the end of %s", signal_name, at - buffer->bytes,
                      buffer->name);
        kern_fail("%s, at byte %" PRId64 " of %s", signal_name, at, buffer->name);
    }
    kern_fail("%s, address %p, in none of the buffers", signal_name, address);
}

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)context;
    if (!run.running) {
        signal(number, SIG_DFL); /* a fault of checkkern itself: let it show */
        return;
    }
    switch (number) {
    case SIGSEGV:
        /* x86 reports a misaligned vector access so, without its address. */
        if (info->si_code == SI_KERNEL)
            kern_fail("SIGSEGV without an address: a misaligned vector access, or a wild pointer");
        fail_by_fault("SIGSEGV", info->si_addr);
    case SIGBUS:
        fail_by_fault("SIGBUS", info->si_addr);
    case SIGILL:
        kern_fail("SIGILL: an instruction that this machine lacks");
    default:
        kern_fail("SIGFPE");
    }
}

static void catch_signals(void) {
    /* Its own stack: a kernel may have left none. */
    static char stack[65536];
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    sigaltstack(&other, NULL);
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaction(numbers[i], &action, NULL);
}

static void check_kernel(const struct kern_family *family, const struct kern *kern) {
    run.num_cases = 0;
    if (sigsetjmp(run.leave, 1) == 0) {
        run.running = 1;
        family->check(kern);
        printf("ok    %-36s %8" PRId64 " cases\n", run.name, run.num_cases);
        fflush(stdout);
        family->bench(kern);
        run.num_passed++;
    } else {
        run.num_failed++;
        printf("FAIL  %-36s %s\n", run.name, run.failure);
        printf("      case %" PRId64 ": ", run.num_cases);
        family->describe();
        printf("\n      repeat with: checkkern --seed %" PRIu64 " %s\n", options.seed, run.name);
    }
    run.running = 0;
    fflush(stdout);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double time_calls(kern_fn *fn, void (*call)(kern_fn *), int64_t num_calls) {
    const uint64_t start = now_ns();
    for (int64_t i = 0; i < num_calls; i++)
        call(fn);
    return (double)(now_ns() - start) / (double)num_calls;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_shape(const struct kern *kern, const char *shape, int64_t amount, const char *unit,
                       void (*call)(kern_fn *)) {
    enum { ROUNDS = 9, ROUND_NS = 2000000 };
    double tested[ROUNDS], c[ROUNDS];
    call(kern->tested);
    if (!options.bench)
        return;
    /* The slower of the two fills the round. */
    call(kern->c);
    int64_t num_calls = 1;
    while (num_calls < (INT64_C(1) << 24) &&
           time_calls(kern->c, call, num_calls) * (double)num_calls < ROUND_NS &&
           time_calls(kern->tested, call, num_calls) * (double)num_calls < ROUND_NS)
        num_calls *= 2;
    for (int round = 0; round < ROUNDS; round++) {
        tested[round] = time_calls(kern->tested, call, num_calls);
        c[round] = time_calls(kern->c, call, num_calls);
    }
    qsort(tested, ROUNDS, sizeof(tested[0]), compare_doubles);
    qsort(c, ROUNDS, sizeof(c[0]), compare_doubles);
    const double ns = tested[ROUNDS / 2];
    printf("      %-44s %12.1f ns %7.2f %s %6.2f x C\n", shape, ns, (double)amount / ns, unit,
           c[ROUNDS / 2] / ns);
    fflush(stdout);
}

void kern_time(const struct kern *kern, const char *shape, int64_t bytes, void (*call)(kern_fn *)) {
    time_shape(kern, shape, bytes, "GB/s", call);
}

void kern_time_flops(const struct kern *kern, const char *shape, int64_t flops,
                     void (*call)(kern_fn *)) {
    time_shape(kern, shape, flops, "GFLOP/s", call);
}

static bool is_wanted(int32_t level) {
    if (options.level != 0 && options.level != level)
        return false;
    for (int i = 0; i < options.num_names; i++) {
        if (strstr(run.name, options.names[i]) != NULL)
            return true;
    }
    return options.num_names == 0;
}

/* Whether an earlier level has the same function in this entry. */
static bool is_seen(const struct kern_family *family, int index, const struct pkv_kernels *tables,
                    int level) {
    for (int earlier = 0; earlier < level; earlier++) {
        if (family->get(&tables[earlier], index) == family->get(&tables[level], index))
            return true;
    }
    return false;
}

static void visit(const struct kern_family *family, int index, const struct pkv_kernels *tables,
                  int level) {
    snprintf(run.name, sizeof(run.name), "%s_%s", family->names[index],
             pkv_cpu_level_name(levels[level]));
    if (is_seen(family, index, tables, level) || !is_wanted(levels[level]))
        return;
    run.num_visited++;
    if (options.list) {
        puts(run.name);
        return;
    }
    kern_fn *c = family->get(&tables[0], index);
    struct test_rng rng = test_rng_make(options.seed);
    const struct kern kern = {.tested = family->get(&tables[level], index),
                              .reference = level > 0       ? c
                                           : family->plain ? family->plain(index)
                                                           : NULL,
                              .c = c,
                              .index = index,
                              .rng = &rng};
    if (kern.tested == NULL) {
        run.num_failed++;
        printf("FAIL  %-36s the table has no function\n", run.name);
        return;
    }
    check_kernel(family, &kern);
}

/* Even the function that fills in a level's row is compiled for that level: on a machine that lacks
 * it, not even the names of its kernels can be asked for. */
static void visit_level(struct pkv_kernels *tables, int level, int32_t detected) {
    if (levels[level] > detected) {
        if (options.level != 0 && options.level != levels[level])
            return;
        printf("skip  %-36s this machine has no more than %s\n", pkv_cpu_level_name(levels[level]),
               pkv_cpu_level_name(detected));
        run.num_skipped++;
        return;
    }
    pkv_kernels_init(&tables[level], levels[level]);
    for (int family = 0; family < NUM_FAMILIES; family++) {
        for (int index = 0; index < families[family]->num_entries; index++)
            visit(families[family], index, tables, level);
    }
}

static void usage(FILE *file) {
    fputs("usage: checkkern [--seed N] [--level LEVEL] [--bench] [--list] [NAME ...]\n"
          "Compares every kernel with its C version, on every level that this machine has.\n"
          "  --seed N       repeat the run that printed this seed\n"
          "  --level LEVEL  only the kernels that are new on this level\n"
          "  --bench        time them too\n"
          "  --list         print their names and stop\n"
          "  NAME           only kernels whose name contains one of the names\n"
          "Exit status: 0 all agree, 1 one does not, 2 usage, 77 nothing could be run here.\n",
          file);
}

static bool parse_level(const char *name) {
    options.level = pkv_cpu_level_from_name(name);
    for (int level = 0; level < NUM_LEVELS; level++) {
        if (levels[level] == options.level)
            return true;
    }
    fprintf(stderr, "checkkern: no level %s here; there are", name);
    for (int level = 0; level < NUM_LEVELS; level++)
        fprintf(stderr, " %s", pkv_cpu_level_name(levels[level]));
    fputc('\n', stderr);
    return false;
}

static bool parse_seed(const char *text) {
    char *end;
    options.seed = strtoull(text, &end, 0);
    if (end != text && *end == '\0')
        return true;
    fprintf(stderr, "checkkern: --seed takes a number, not %s\n", text);
    return false;
}

/* Returns the exit status to stop with, or -1 to go on. */
static int parse_options(int argc, char **argv) {
    static const struct option longs[] = {
        {"seed", required_argument, NULL, 's'}, {"level", required_argument, NULL, 'l'},
        {"bench", no_argument, NULL, 'b'},      {"list", no_argument, NULL, 'i'},
        {"help", no_argument, NULL, 'h'},       {NULL, 0, NULL, 0}};
    int option;
    options.seed = now_ns() % 1000000000u;
    while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        bool good = true;
        switch (option) {
        case 's':
            good = parse_seed(optarg);
            break;
        case 'l':
            good = parse_level(optarg);
            break;
        case 'b':
            options.bench = true;
            break;
        case 'i':
            options.list = true;
            break;
        case 'h':
            usage(stdout);
            return 0;
        default:
            usage(stderr);
            return 2;
        }
        if (!good)
            return 2;
    }
    options.names = argv + optind;
    options.num_names = argc - optind;
    return -1;
}

int main(int argc, char **argv) {
    const int stop = parse_options(argc, argv);
    if (stop >= 0)
        return stop;
    const int32_t detected = pkv_cpu_detect_level();
    static struct pkv_kernels tables[NUM_LEVELS];
    if (!options.list) {
        printf("checkkern on %s, seed %" PRIu64 "\n", pkv_cpu_level_name(detected), options.seed);
        catch_signals();
    }
    for (int level = 0; level < NUM_LEVELS; level++)
        visit_level(tables, level, detected);
    if (run.num_visited + run.num_skipped == 0 && options.num_names > 0) {
        fprintf(stderr, "checkkern: no kernel has such a name; --list prints them\n");
        return 2;
    }
    if (options.list)
        return 0;
    printf("%d passed, %d failed, %d skipped\n", run.num_passed, run.num_failed, run.num_skipped);
    return run.num_failed > 0 ? 1 : run.num_passed == 0 ? 77 : 0;
}
