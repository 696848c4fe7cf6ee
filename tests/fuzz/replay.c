/* SPDX-License-Identifier: MIT
 *
 * Runs a fuzz target without a fuzzer: on the empty input, on every file given (folders: on the
 * files in them), and on seeded mutations of these. The same arguments give the same inputs.
 *
 *   fuzz_x [--mutations N] [--seed N] [--only K] [PATH ...]
 *
 * A crash names the input as a number; --only K runs that input alone and writes it to input.bin.
 */
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Sanitizers abort, so that the handler below can name the input. */
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

const char *__asan_default_options(void) {
    return "abort_on_error=1";
}
const char *__ubsan_default_options(void) {
    return "halt_on_error=1:abort_on_error=1";
}

enum { MAX_SEED_BYTES = 1 << 16, MAX_GROWTH = 256, MAX_EDITS = 4 };

struct replay {
    int64_t mutations;
    uint64_t seed;
    int64_t only; /* -1: all */
    int64_t num_inputs;
};

static volatile sig_atomic_t crashed_input; /* low bits are enough to find it */

static void report_crash(int number) {
    char text[64] = "fuzz: the target failed on input ";
    size_t end = strlen(text);
    char digits[16];
    int count = 0;
    for (int rest = (int)crashed_input; count == 0 || rest > 0; rest /= 10)
        digits[count++] = (char)('0' + rest % 10);
    while (count > 0)
        text[end++] = digits[--count];
    text[end++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, text, end);
    (void)ignored;
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static size_t below(struct test_rng *rng, size_t bound) {
    return bound == 0 ? 0 : (size_t)test_rng_below(rng, (int64_t)bound);
}

/* One edit of bytes, which have room for MAX_GROWTH more. Returns the new size. */
static size_t edit(uint8_t *bytes, size_t size, size_t capacity, struct test_rng *rng) {
    static const uint8_t nasty[] = {0, 1, 0x7f, 0x80, 0xff, '"', '[', ']', '{', '}', ',', '-', '9'};
    const size_t at = below(rng, size);
    const size_t length = 1 + below(rng, 16);
    switch (test_rng_next(rng) % 6) {
    case 0:
        if (size > 0)
            bytes[at] ^= (uint8_t)(1u << below(rng, 8));
        return size;
    case 1:
        if (size > 0)
            bytes[at] = nasty[below(rng, sizeof(nasty))];
        return size;
    case 2: /* cut the end off */
        return at;
    case 3: /* take some bytes out */
        if (length >= size - at)
            return at;
        memmove(bytes + at, bytes + at + length, size - at - length);
        return size - length;
    case 4: /* put random bytes in */
        if (size + length > capacity)
            return size;
        memmove(bytes + at + length, bytes + at, size - at);
        for (size_t i = 0; i < length; i++)
            bytes[at + i] = (uint8_t)test_rng_next(rng);
        return size + length;
    default: /* repeat the end somewhere else */
        if (size < length)
            return size;
        memmove(bytes + below(rng, size - length + 1), bytes + size - length, length);
        return size;
    }
}

/* Exactly `size` bytes on the heap, so that a sanitizer sees the first byte read behind them. */
static void run_one(struct replay *replay, const uint8_t *bytes, size_t size) {
    const int64_t number = replay->num_inputs++;
    if (replay->only >= 0 && replay->only != number)
        return;
    if (replay->only >= 0) {
        FILE *stream = fopen("input.bin", "wb");
        if (stream == NULL || fwrite(bytes, 1, size, stream) != size || fclose(stream) != 0)
            fprintf(stderr, "fuzz: cannot write input.bin: %s\n", strerror(errno));
    }
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL) {
        fprintf(stderr, "fuzz: out of memory\n");
        exit(2);
    }
    if (size > 0)
        memcpy(copy, bytes, size);
    crashed_input = (sig_atomic_t)number;
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void run_seed(struct replay *replay, const uint8_t *bytes, size_t size) {
    static uint8_t mutated[MAX_SEED_BYTES + MAX_GROWTH];
    struct test_rng rng = test_rng_make(replay->seed ^ (uint64_t)replay->num_inputs << 20);
    run_one(replay, bytes, size);
    for (int64_t i = 0; i < replay->mutations; i++) {
        size_t mutated_size = size;
        memcpy(mutated, bytes, size);
        for (size_t edits = 1 + below(&rng, MAX_EDITS); edits > 0; edits--)
            mutated_size = edit(mutated, mutated_size, sizeof(mutated), &rng);
        run_one(replay, mutated, mutated_size);
    }
}

static int run_file(struct replay *replay, const char *path) {
    static uint8_t bytes[MAX_SEED_BYTES];
    FILE *stream = fopen(path, "rb");
    if (stream == NULL) {
        fprintf(stderr, "fuzz: cannot open %s: %s\n", path, strerror(errno));
        return -1;
    }
    const size_t size = fread(bytes, 1, sizeof(bytes), stream);
    (void)fclose(stream);
    run_seed(replay, bytes, size);
    return 0;
}

static int run_path(struct replay *replay, const char *path) {
    struct dirent **entries = NULL;
    const int num_entries = scandir(path, &entries, NULL, alphasort);
    if (num_entries < 0)
        return run_file(replay, path);
    int failed = 0;
    for (int i = 0; i < num_entries; i++) {
        char name[4096];
        const int length = snprintf(name, sizeof(name), "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && length < (int)sizeof(name))
            failed |= run_file(replay, name);
        free(entries[i]);
    }
    free(entries);
    return failed;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"mutations", required_argument, NULL, 'm'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"only", required_argument, NULL, 'o'},
                                            {NULL, 0, NULL, 0}};
    struct replay replay = {.mutations = 1000, .seed = 1, .only = -1};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 'm')
            replay.mutations = strtoll(optarg, NULL, 10);
        else if (option == 's')
            replay.seed = strtoull(optarg, NULL, 10);
        else if (option == 'o')
            replay.only = strtoll(optarg, NULL, 10);
        else
            return 2;
    }
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        (void)signal(signals[i], report_crash);

    static const uint8_t nothing[1] = {0};
    run_seed(&replay, nothing, 0);
    int failed = 0;
    for (int i = optind; i < argc; i++)
        failed |= run_path(&replay, argv[i]);
    printf("%lld inputs, seed %llu\n", (long long)replay.num_inputs,
           (unsigned long long)replay.seed);
    return failed ? 2 : 0;
}
