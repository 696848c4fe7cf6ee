/* SPDX-License-Identifier: MIT
 *
 * Test data files and their manifests: one line a tensor, six fields between tabs.
 */
#include "data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void test_data_path(char *path, size_t path_bytes, const char *folder, const char *file) {
    const char *root = getenv("PAGEDKV_TEST_DATA");

    if (root == NULL || root[0] == '\0') {
        root = PAGEDKV_SOURCE_DIR "/../shared";
    }
    snprintf(path, path_bytes, "%s/%s/%s", root, folder, file);
}

void test_data_require(const char *folder) {
    char path[4096];

    test_data_path(path, sizeof(path), folder, "");
    if (access(path, R_OK) != 0) {
        printf("skipped: there is no %s (see PAGEDKV_TEST_DATA)\n", path);
        exit(77);
    }
}

void *test_data_read(const char *folder, const char *file, size_t *bytes) {
    char path[4096];
    FILE *stream;
    void *data = NULL;
    long size;

    test_data_path(path, sizeof(path), folder, file);
    stream = fopen(path, "rb");
    if (stream == NULL) {
        return NULL;
    }
    if (fseek(stream, 0, SEEK_END) == 0 && (size = ftell(stream)) >= 0 &&
        fseek(stream, 0, SEEK_SET) == 0) {
        data = malloc((size_t)size + 1);
        if (data != NULL && fread(data, 1, (size_t)size, stream) == (size_t)size) {
            ((char *)data)[size] = '\0';
            *bytes = (size_t)size;
        } else {
            free(data);
            data = NULL;
        }
    }
    fclose(stream);
    return data;
}

static void fail(const char *folder, const char *line) {
    fprintf(stderr, "%s/manifest.tsv: not a line of a manifest: %.*s\n", folder,
            (int)strcspn(line, "\n"), line);
    exit(1);
}

/* "2x1x4x5". A scalar has no dimensions; some manifests say "scalar", some give its value there. */
static void parse_shape(struct test_record *record, const char *text) {
    while (*text >= '0' && *text <= '9' && record->ndim < TEST_MAX_DIMS) {
        char *end;

        record->shape[record->ndim++] = strtoll(text, &end, 10);
        text = *end == 'x' ? end + 1 : end;
    }
    if (*text != '\0') {
        record->ndim = 0;
    }
}

/* Fields: case, kind, name, dtype or value, shape, file. In the manifests without an "op" line the
 * same fields stand in the same order; a name may carry its position before a colon. */
static int parse_line(struct test_record *record, const char *line, size_t length) {
    char *fields[6];
    char *rest;
    char *colon;

    record->text = malloc(length + 1);
    if (record->text == NULL) {
        return 0;
    }
    memcpy(record->text, line, length);
    record->text[length] = '\0';
    rest = record->text;
    for (int i = 0; i < 6; i++) {
        fields[i] = strsep(&rest, "\t");
        if (fields[i] == NULL) {
            return 0;
        }
    }
    record->test = fields[0];
    record->kind = fields[1];
    colon = strchr(fields[2], ':');
    record->name = colon != NULL ? colon + 1 : fields[2];
    record->type = fields[3];
    record->file = fields[5];
    parse_shape(record, fields[4]);
    return rest == NULL;
}

int test_manifest_read(struct test_manifest *manifest, const char *folder) {
    size_t bytes;
    char *text = test_data_read(folder, "manifest.tsv", &bytes);
    int64_t num_lines = 1;

    *manifest = (struct test_manifest){0};
    if (text == NULL) {
        return 0;
    }
    for (const char *at = text; *at != '\0'; at++) {
        num_lines += *at == '\n';
    }
    manifest->records = calloc((size_t)num_lines, sizeof(*manifest->records));
    if (manifest->records == NULL) {
        perror("test_manifest_read");
        exit(1);
    }
    for (const char *line = text; *line != '\0';) {
        size_t length = strcspn(line, "\n");

        if (length > 0 && !parse_line(&manifest->records[manifest->num_records++], line, length)) {
            fail(folder, line);
        }
        line += length + (line[length] == '\n');
    }
    free(text);
    return 1;
}

void test_manifest_free(struct test_manifest *manifest) {
    for (int64_t i = 0; i < manifest->num_records; i++) {
        free(manifest->records[i].text);
    }
    free(manifest->records);
    *manifest = (struct test_manifest){0};
}

const struct test_record *test_manifest_find(const struct test_manifest *manifest, const char *test,
                                             const char *kind, const char *name) {
    for (int64_t i = 0; i < manifest->num_records; i++) {
        const struct test_record *record = &manifest->records[i];

        if (strcmp(record->test, test) == 0 && strcmp(record->kind, kind) == 0 &&
            strcmp(record->name, name) == 0) {
            return record;
        }
    }
    return NULL;
}
