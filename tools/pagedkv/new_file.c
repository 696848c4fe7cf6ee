/* SPDX-License-Identifier: MIT
 *
 * Temporary files beside their targets.
 */
#include "new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Temporary names to try. */
enum { MAX_ATTEMPTS = 100 };

const char *new_file_open(struct new_file *file, const char *path) {
    const char *const slash = strrchr(path, '/');
    const int folder = slash ? (int)(slash - path) + 1 : 0;
    const size_t bytes = (size_t)folder + 48;
    struct stat there;
    const int exists = lstat(path, &there) == 0;
    *file = (struct new_file){path, NULL, -1};
    if (exists && !S_ISREG(there.st_mode))
        return "exists and is no regular file";
    file->temporary = malloc(bytes);
    if (file->temporary == NULL)
        return "no memory for a name";
    /* Short whatever the name: folders limit the length of names. */
    for (int i = 0; i < MAX_ATTEMPTS && file->descriptor < 0; i++) {
        (void)snprintf(file->temporary, bytes, "%.*s.pagedkv.%ld.%d.tmp", folder, path,
                       (long)getpid(), i);
        file->descriptor = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file->descriptor < 0 && errno != EEXIST)
            break;
    }
    if (file->descriptor < 0) {
        free(file->temporary);
        file->temporary = NULL;
        return strerror(errno);
    }
    if (exists)
        (void)fchmod(file->descriptor, there.st_mode & 0777);
    return NULL;
}

const char *new_file_end(struct new_file *file, int is_whole) {
    const int failed = is_whole && rename(file->temporary, file->path) != 0;
    const char *const reason = failed ? strerror(errno) : NULL;
    if (!is_whole || failed)
        (void)unlink(file->temporary);
    free(file->temporary);
    file->temporary = NULL;
    return reason;
}
