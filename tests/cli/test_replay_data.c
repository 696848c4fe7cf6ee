/* SPDX-License-Identifier: MIT
 *
 * `pagedkv replay --data` sees a block that was handed out wrongly: two blocks are written, and
 * read back right, in the wrong order, and after another block has been written over one of them.
 */
#include <stdio.h>

#include "cli.h"
#include "replay/data.h"

static int32_t ids[] = {7, 8, 9};
static struct trace_request requests[] = {{.first_block = 0, .num_blocks = 2},
                                          {.first_block = 2, .num_blocks = 1}};
static const struct trace trace = {
    .block_size = 4, .ids = ids, .requests = requests, .num_requests = 2};

/* Nobody looks at times here. */
double replay_now(void) {
    return 0;
}

static struct replay_data *data;
static int num_failures;

static void expect(int request, int64_t num_hits, int32_t first, int32_t second, int wanted,
                   const char *what) {
    int32_t blocks[] = {first, second};
    const struct pkv_tensor table = pkv_tensor_make(blocks, PKV_DTYPE_I32, 1, (int64_t[]){2});
    struct replay_result result = {0};
    const int status = replay_data_move(data, &requests[request], num_hits, &table, &result);
    if (status == wanted)
        return;
    num_failures++;
    printf("%s: %d, not %d\n", what, status, wanted);
}

int main(void) {
    data = replay_data_create(&trace, 4, 24);
    if (data == NULL)
        return 1;
    expect(0, 0, 3, 1, CLI_CONTINUE, "two new blocks");
    expect(0, 2, 3, 1, CLI_CONTINUE, "found where they were written");
    expect(0, 2, 1, 3, CLI_CHECK_FAILED, "found in the wrong order");
    expect(0, 1, 0, 1, CLI_CHECK_FAILED, "found where nothing was written");
    expect(1, 0, 1, 1, CLI_CONTINUE, "another block over the second one");
    expect(0, 2, 3, 1, CLI_CHECK_FAILED, "found after that");
    replay_data_destroy(data);
    return num_failures > 0;
}
