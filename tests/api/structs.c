/* SPDX-License-Identifier: MIT
 *
 * Structs that grow: every public struct with a struct_size (but
 * pkv_paged_attention_tensors, of which most must be given), as a program compiled against an
 * older, the same and a newer version of the header passes it. Linked with the shared library, as
 * such a program is.
 */
#include <pagedkv/pagedkv.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NUM_BLOCKS = 2, BLOCK_SIZE = 4, HEAD_SIZE = 8, ROOM = 2048 };

/* What the calls below work on: one tiny cache, one context, one plan of each kind, and a pool with
 * one sequence in a committed step. */
static struct {
    float key_cache[NUM_BLOCKS * BLOCK_SIZE * HEAD_SIZE];
    float key[HEAD_SIZE];
    int64_t slot;
    struct pkv_cache cache;
    struct pkv_context *context;
    struct pkv_scatter_plan *scatter_plan;
    struct pkv_gather_plan *gather_plan;
    struct pkv_step *step;
    struct pkv_pool *pool;
    struct pkv_batch *batch;
    struct pkv_seq seq;
} world;

static struct pkv_tensor key_cache(void) {
    return pkv_tensor_make(world.key_cache, PKV_DTYPE_F32, 4,
                           (int64_t[]){NUM_BLOCKS, BLOCK_SIZE, 1, HEAD_SIZE});
}

/* One call a struct; `in` is the struct under test. Each call succeeds with a struct of zeroes, but
 * for a first field that must be given. */

static enum pkv_status call_context_create(void *in, struct pkv_error *error) {
    struct pkv_context *context = NULL;
    const enum pkv_status status = pkv_context_create(&context, in, error);
    pkv_context_destroy(context);
    return status;
}

static enum pkv_status call_cache_init(void *in, struct pkv_error *error) {
    struct pkv_cache cache = {.struct_size = sizeof(cache)};
    const struct pkv_tensor tensor = key_cache();
    return pkv_cache_init(&cache, &tensor, NULL, in, error);
}

static enum pkv_status call_scatter_plan_create(void *in, struct pkv_error *error) {
    struct pkv_scatter_plan *plan = NULL;
    const enum pkv_status status =
        pkv_scatter_plan_create(&plan, world.context, &world.cache, in, error);
    pkv_scatter_plan_destroy(plan);
    return status;
}

static enum pkv_status call_scatter_pa_kv_cache(void *in, struct pkv_error *error) {
    const struct pkv_tensor key =
        pkv_tensor_make(world.key, PKV_DTYPE_F32, 3, (int64_t[]){1, 1, HEAD_SIZE});
    const struct pkv_tensor cache = key_cache();
    const struct pkv_tensor slots = pkv_tensor_make(&world.slot, PKV_DTYPE_I64, 1, (int64_t[]){1});
    return pkv_scatter_pa_kv_cache(world.context, &key, &cache, &slots, NULL, NULL, in, error);
}

static enum pkv_status call_scatter_update(void *in, struct pkv_error *error) {
    const struct pkv_tensor input =
        pkv_tensor_make(world.key_cache, PKV_DTYPE_F32, 2, (int64_t[]){4, HEAD_SIZE});
    const struct pkv_tensor index =
        pkv_tensor_make(&world.slot, PKV_DTYPE_I64, 2, (int64_t[]){1, 1});
    const struct pkv_tensor src =
        pkv_tensor_make(world.key, PKV_DTYPE_F32, 2, (int64_t[]){1, HEAD_SIZE});
    return pkv_scatter_update(world.context, &input, -2, &index, &src, in, error);
}

static enum pkv_status call_scatter_rows(void *in, struct pkv_error *error) {
    const struct pkv_tensor cache = key_cache();
    const struct pkv_tensor slots = pkv_tensor_make(&world.slot, PKV_DTYPE_I64, 1, (int64_t[]){1});
    const struct pkv_tensor key =
        pkv_tensor_make(world.key, PKV_DTYPE_F32, 2, (int64_t[]){1, HEAD_SIZE});
    return pkv_scatter_rows(world.context, &slots, &key, &cache, 1, in, error);
}

static enum pkv_status call_paged_attention_plan_create(void *in, struct pkv_error *error) {
    struct pkv_paged_attention_plan *plan = NULL;
    const enum pkv_status status =
        pkv_paged_attention_plan_create(&plan, world.context, &world.cache, in, error);
    pkv_paged_attention_plan_destroy(plan);
    return status;
}

static enum pkv_status call_merge_state(void *in, struct pkv_error *error) {
    float outs[3] = {1, 2, 0}, lses[2] = {0, 0};
    struct pkv_tensor out[3], lse[2];
    for (int i = 0; i < 3; i++)
        out[i] = pkv_tensor_make(&outs[i], PKV_DTYPE_F32, 3, (int64_t[]){1, 1, 1});
    for (int i = 0; i < 2; i++)
        lse[i] = pkv_tensor_make(&lses[i], PKV_DTYPE_F32, 2, (int64_t[]){1, 1});
    return pkv_merge_state(world.context, &out[0], &lse[0], &out[1], &lse[1], &out[2], NULL, in,
                           error);
}

static enum pkv_status call_nsa_compress_with_cache(void *in, struct pkv_error *error) {
    static uint16_t rows[16], weights[16], out[1];
    static int64_t slot, length = 16, block;
    const struct pkv_tensor input =
        pkv_tensor_make(rows, PKV_DTYPE_BF16, 4, (int64_t[]){1, 16, 1, 1});
    const struct pkv_tensor weight =
        pkv_tensor_make(weights, PKV_DTYPE_BF16, 2, (int64_t[]){16, 1});
    const struct pkv_tensor output = pkv_tensor_make(out, PKV_DTYPE_BF16, 3, (int64_t[]){1, 1, 1});
    const struct pkv_tensor slots = pkv_tensor_make(&slot, PKV_DTYPE_I64, 1, (int64_t[]){1});
    const struct pkv_tensor lengths = pkv_tensor_make(&length, PKV_DTYPE_I64, 1, (int64_t[]){1});
    const struct pkv_tensor table = pkv_tensor_make(&block, PKV_DTYPE_I64, 2, (int64_t[]){1, 1});
    return pkv_nsa_compress_with_cache(world.context, &input, &weight, &slots, &lengths, &table,
                                       &output, in, error);
}

static enum pkv_status call_gather_pa_kv_cache(void *in, struct pkv_error *error) {
    static int64_t block_id = 0;
    static int64_t totals[2] = {0, 0}; /* as running totals, and as two lengths: nothing to read */
    const struct pkv_tensor cache = key_cache();
    const struct pkv_tensor table = pkv_tensor_make(&block_id, PKV_DTYPE_I64, 2, (int64_t[]){1, 1});
    const struct pkv_tensor lens = pkv_tensor_make(totals, PKV_DTYPE_I64, 1, (int64_t[]){2});
    const struct pkv_tensor key =
        pkv_tensor_make(world.key, PKV_DTYPE_F32, 3, (int64_t[]){0, 1, HEAD_SIZE});
    return pkv_gather_pa_kv_cache(world.context, &cache, NULL, &table, &lens, &key, NULL, NULL, in,
                                  error);
}

static enum pkv_status call_step_create(void *in, struct pkv_error *error) {
    struct pkv_step *step = NULL;
    const enum pkv_status status = pkv_step_create(&step, in, error);
    pkv_step_destroy(step);
    return status;
}

static enum pkv_status call_step_set(void *in, struct pkv_error *error) {
    return pkv_step_set(world.context, world.step, &world.cache, in, error);
}

static enum pkv_status call_pool_create(void *in, struct pkv_error *error) {
    struct pkv_pool *pool = NULL;
    const enum pkv_status status = pkv_pool_create(&pool, in, error);
    pkv_pool_destroy(pool);
    return status;
}

static enum pkv_status call_prefix_root_key(void *in, struct pkv_error *error) {
    struct pkv_key key;
    return pkv_prefix_root_key(1, 0, BLOCK_SIZE, in, &key, error);
}

static enum pkv_status call_seq_create(void *in, struct pkv_error *error) {
    struct pkv_seq seq;
    const enum pkv_status status = pkv_seq_create(world.pool, &seq, in, error);
    if (status != PKV_STATUS_OK)
        return status;
    return pkv_seq_free(world.pool, seq, error);
}

static enum pkv_status call_batch_create(void *in, struct pkv_error *error) {
    struct pkv_batch *batch = NULL;
    const enum pkv_status status = pkv_batch_create(&batch, world.pool, in, error);
    pkv_batch_destroy(batch);
    return status;
}

static enum pkv_status call_cpu_info_get(void *out, struct pkv_error *error) {
    return pkv_cpu_info_get(out, error);
}

static enum pkv_status call_scatter_plan_explain(void *out, struct pkv_error *error) {
    return pkv_scatter_plan_explain(world.scatter_plan, 1, 1, out, error);
}

static enum pkv_status call_gather_plan_explain(void *out, struct pkv_error *error) {
    return pkv_gather_plan_explain(world.gather_plan, 1, 1, out, error);
}

static enum pkv_status call_pool_metrics_get(void *out, struct pkv_error *error) {
    return pkv_pool_metrics_get(world.pool, out, error);
}

static enum pkv_status call_seq_info_get(void *out, struct pkv_error *error) {
    return pkv_seq_info_get(world.pool, world.seq, out, error);
}

static enum pkv_status call_batch_tensors_get(void *out, struct pkv_error *error) {
    return pkv_batch_tensors_get(world.batch, 0, out, error);
}

static enum pkv_status call_paged_attention_explain(void *out, struct pkv_error *error) {
    static int64_t block_id = 0, length = 1, starts[2] = {0, 1};
    const struct pkv_step_indices indices = {
        .struct_size = sizeof(indices),
        .block_table = pkv_tensor_make(&block_id, PKV_DTYPE_I64, 2, (int64_t[]){1, 1}),
        .seq_lens = pkv_tensor_make(&length, PKV_DTYPE_I64, 1, (int64_t[]){1}),
        .query_start_loc = pkv_tensor_make(starts, PKV_DTYPE_I64, 1, (int64_t[]){2})};
    struct pkv_paged_attention_plan *plan = NULL;
    struct pkv_step *step = NULL;
    enum pkv_status status =
        pkv_paged_attention_plan_create(&plan, world.context, &world.cache, NULL, error);
    if (status == PKV_STATUS_OK)
        status = pkv_step_create(&step, NULL, error);
    if (status == PKV_STATUS_OK)
        status = pkv_step_set(world.context, step, &world.cache, &indices, error);
    if (status == PKV_STATUS_OK)
        status = pkv_paged_attention_explain(world.context, plan, step, out, error);
    pkv_step_destroy(step);
    pkv_paged_attention_plan_destroy(plan);
    return status;
}

static enum pkv_status call_pool_audit(void *out, struct pkv_error *error) {
    return pkv_pool_audit(world.pool, out, error);
}

struct test {
    const char *name;
    enum pkv_status (*call)(void *subject, struct pkv_error *error);
    size_t size;
    int nullable;
    int64_t required; /* of the first field after struct_size; 0: it has a default */
};

static const struct test inputs[] = {
    {"pkv_context_options", call_context_create, sizeof(struct pkv_context_options), 1, 0},
    {"pkv_cache_options", call_cache_init, sizeof(struct pkv_cache_options), 1, 0},
    {"pkv_scatter_options", call_scatter_plan_create, sizeof(struct pkv_scatter_options), 1, 0},
    {"pkv_scatter_pa_kv_cache_options", call_scatter_pa_kv_cache,
     sizeof(struct pkv_scatter_pa_kv_cache_options), 1, 0},
    {"pkv_scatter_update_options", call_scatter_update, sizeof(struct pkv_scatter_update_options),
     1, 0},
    {"pkv_scatter_rows_options", call_scatter_rows, sizeof(struct pkv_scatter_rows_options), 1, 0},
    {"pkv_paged_attention_options", call_paged_attention_plan_create,
     sizeof(struct pkv_paged_attention_options), 1, 0},
    {"pkv_merge_states_options", call_merge_state, sizeof(struct pkv_merge_states_options), 1, 0},
    {"pkv_nsa_compress_options", call_nsa_compress_with_cache,
     sizeof(struct pkv_nsa_compress_options), 1, 0},
    {"pkv_gather_pa_kv_cache_options", call_gather_pa_kv_cache,
     sizeof(struct pkv_gather_pa_kv_cache_options), 1, 0},
    {"pkv_step_options", call_step_create, sizeof(struct pkv_step_options), 1, 0},
    {"pkv_step_indices", call_step_set, sizeof(struct pkv_step_indices), 0, 0},
    {"pkv_pool_options", call_pool_create, sizeof(struct pkv_pool_options), 0, NUM_BLOCKS},
    {"pkv_domain", call_prefix_root_key, sizeof(struct pkv_domain), 1, 0},
    {"pkv_seq_options", call_seq_create, sizeof(struct pkv_seq_options), 1, 0},
    {"pkv_batch_options", call_batch_create, sizeof(struct pkv_batch_options), 1, 0},
};

static const struct test outputs[] = {
    {"pkv_cpu_info", call_cpu_info_get, sizeof(struct pkv_cpu_info), 0, 0},
    {"pkv_explanation (scatter)", call_scatter_plan_explain, sizeof(struct pkv_explanation), 0, 0},
    {"pkv_explanation (gather)", call_gather_plan_explain, sizeof(struct pkv_explanation), 0, 0},
    {"pkv_attention_explanation", call_paged_attention_explain,
     sizeof(struct pkv_attention_explanation), 0, 0},
    {"pkv_pool_metrics", call_pool_metrics_get, sizeof(struct pkv_pool_metrics), 0, 0},
    {"pkv_seq_info", call_seq_info_get, sizeof(struct pkv_seq_info), 0, 0},
    {"pkv_batch_tensors", call_batch_tensors_get, sizeof(struct pkv_batch_tensors), 0, 0},
    {"pkv_audit", call_pool_audit, sizeof(struct pkv_audit), 0, 0},
};

static int num_checks;
static int num_failures;

static void check(int holds, const char *name, const char *what) {
    num_checks++;
    if (holds)
        return;
    num_failures++;
    printf("%s: %s\n", name, what);
}

static void expect(const struct test *test, void *subject, enum pkv_status expected,
                   const char *what) {
    struct pkv_error error = {.struct_size = sizeof(error)};
    const enum pkv_status status = test->call(subject, &error);
    if (status != expected) {
        char text[256];
        (void)pkv_error_text(&error, text, sizeof(text));
        printf("  %s, not %s: %s\n", pkv_status_name(status), pkv_status_name(expected), text);
    } else if (status != PKV_STATUS_OK) {
        check(error.status == status && error.function != NULL && error.rule != NULL, test->name,
              "the refusal was not explained");
    }
    check(status == expected, test->name, what);
}

static void set_size(void *subject, size_t size) {
    memcpy(subject, &size, sizeof(size));
}

static void test_input(const struct test *test) {
    _Alignas(64) unsigned char room[ROOM] = {0};

    memcpy(room + sizeof(size_t), &test->required, sizeof(test->required));
    if (test->nullable)
        expect(test, NULL, PKV_STATUS_OK, "NULL must mean the defaults");
    expect(test, room, PKV_STATUS_OK, "zeroes must mean the defaults");
    set_size(room, test->size);
    expect(test, room, PKV_STATUS_OK, "today's size must be accepted");
    set_size(room, test->size + 64);
    expect(test, room, PKV_STATUS_OK, "a newer struct with a tail of zeroes must be accepted");
    room[test->size + 63] = 1;
    expect(test, room, PKV_STATUS_STRUCT_SIZE, "a newer struct with a used tail must be refused");
    set_size(room, test->size);
    expect(test, room, PKV_STATUS_OK, "what lies behind the struct must not be read");

    /* An older program's struct ends early, and what follows it in memory is not ours to read. */
    const size_t oldest = sizeof(size_t) + (test->required ? sizeof(test->required) : 0);
    memset(room + oldest, 0x5a, sizeof(room) - oldest);
    set_size(room, oldest);
    expect(test, room, PKV_STATUS_OK, "an older struct must be extended with zeroes");
    set_size(room, sizeof(size_t) - 1);
    expect(test, room, PKV_STATUS_STRUCT_SIZE, "a size below struct_size's own must be refused");
}

/* A struct_size that was never set: whatever it says, memory behind the struct must not be touched
 * without bound. The struct ends where the mapped memory ends. */
static void test_wild_size(const struct test *test) {
    const size_t os_page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *memory =
        mmap(NULL, 9 * os_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + 8 * os_page, os_page, PROT_NONE) != 0) {
        perror("mmap");
        exit(1);
    }
    set_size(memory, SIZE_MAX);
    expect(test, memory, PKV_STATUS_STRUCT_SIZE, "a wild struct_size must be refused");
    (void)munmap(memory, 9 * os_page);
}

static int untouched(const unsigned char *bytes, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++)
        if (bytes[i] != 0x5a)
            return 0;
    return 1;
}

static void test_output(const struct test *test) {
    const size_t sizes[] = {0, sizeof(size_t), sizeof(size_t) + 4, test->size, test->size + 64};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        _Alignas(64) unsigned char room[ROOM];
        memset(room, 0x5a, sizeof(room));
        set_size(room, sizes[i]);
        expect(test, room, PKV_STATUS_OK, "must be filled in");
        size_t after;
        memcpy(&after, room, sizeof(after));
        check(after == sizes[i], test->name, "struct_size belongs to the caller");
        const size_t given = sizes[i] == 0 ? test->size : sizes[i];
        const size_t written = given < test->size ? given : test->size;
        check(untouched(room, written, ROOM), test->name, "was written behind its struct_size");
        if (written > sizeof(size_t) + 4)
            check(!untouched(room, sizeof(size_t), written), test->name, "was not written");
    }
}

/* The error struct itself, filled by a refusal. */
static void test_error(void) {
    const size_t full = sizeof(struct pkv_error);
    const size_t sizes[] = {0, sizeof(size_t) + 4, full, full + 64};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        _Alignas(64) unsigned char room[ROOM];
        memset(room, 0x5a, sizeof(room));
        set_size(room, sizes[i]);
        const enum pkv_status status = pkv_cpu_info_get(NULL, (struct pkv_error *)(void *)room);
        check(status == PKV_STATUS_NULL_ARGUMENT, "pkv_error", "NULL must be refused");
        int32_t stored;
        memcpy(&stored, room + sizeof(size_t), sizeof(stored));
        check(stored == status, "pkv_error", "must hold the status");
        const size_t given = sizes[i] == 0 ? full : sizes[i];
        check(untouched(room, given < full ? given : full, ROOM), "pkv_error",
              "was written behind its struct_size");
    }
    check(pkv_cpu_info_get(NULL, NULL) == PKV_STATUS_NULL_ARGUMENT, "pkv_error",
          "a NULL error must do no harm");
}

/* A cache described by pkv_cache_init of another version: struct_size says how much of it is there.
 */
static void test_cache(void) {
    _Alignas(64) unsigned char room[ROOM] = {0};
    const struct pkv_tensor tensor = key_cache();
    const size_t full = sizeof(struct pkv_cache);
    set_size(room, full + 64);
    enum pkv_status status =
        pkv_cache_init((struct pkv_cache *)(void *)room, &tensor, NULL, NULL, NULL);
    check(status == PKV_STATUS_OK, "pkv_cache", "a newer struct must be filled in");
    struct pkv_scatter_plan *plan = NULL;
    status =
        pkv_scatter_plan_create(&plan, world.context, (struct pkv_cache *)(void *)room, NULL, NULL);
    check(status == PKV_STATUS_OK, "pkv_cache", "a newer struct must be accepted");
    pkv_scatter_plan_destroy(plan);
}

static void must(enum pkv_status status, const char *what) {
    if (status != PKV_STATUS_OK) {
        printf("%s: %s\n", what, pkv_status_name(status));
        exit(1);
    }
}

static void make_pool(void) {
    const struct pkv_pool_options options = {.num_blocks = NUM_BLOCKS, .block_size = BLOCK_SIZE};
    must(pkv_pool_create(&world.pool, &options, NULL), "pkv_pool_create");
    must(pkv_batch_create(&world.batch, world.pool, NULL, NULL), "pkv_batch_create");
    must(pkv_seq_create(world.pool, &world.seq, NULL, NULL), "pkv_seq_create");
    must(pkv_batch_begin(world.batch, NULL), "pkv_batch_begin");
    must(pkv_batch_append(world.batch, world.seq, (int32_t[]){7}, 1, NULL), "pkv_batch_append");
    must(pkv_batch_commit(world.batch, NULL), "pkv_batch_commit");
}

int main(void) {
    const struct pkv_tensor tensor = key_cache();
    must(pkv_cache_init(&world.cache, &tensor, NULL, NULL, NULL), "pkv_cache_init");
    must(pkv_context_create(&world.context, NULL, NULL), "pkv_context_create");
    must(pkv_scatter_plan_create(&world.scatter_plan, world.context, &world.cache, NULL, NULL),
         "pkv_scatter_plan_create");
    must(pkv_gather_plan_create(&world.gather_plan, world.context, &world.cache, NULL),
         "pkv_gather_plan_create");
    must(pkv_step_create(&world.step, NULL, NULL), "pkv_step_create");
    make_pool();

    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        test_input(&inputs[i]);
        test_wild_size(&inputs[i]);
    }
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++)
        test_output(&outputs[i]);
    test_error();
    test_cache();

    pkv_batch_destroy(world.batch);
    pkv_pool_destroy(world.pool);
    pkv_step_destroy(world.step);
    pkv_gather_plan_destroy(world.gather_plan);
    pkv_scatter_plan_destroy(world.scatter_plan);
    pkv_context_destroy(world.context);
    printf("%d checks, %d failed\n", num_checks, num_failures);
    return num_failures != 0;
}
