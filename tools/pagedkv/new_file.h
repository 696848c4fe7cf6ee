/* SPDX-License-Identifier: MIT
 *
 * A file that appears under its name whole or not at all: it is written under a temporary name in
 * the same folder, which then replaces what was there.
 */
#ifndef PAGEDKV_NEW_FILE_H
#define PAGEDKV_NEW_FILE_H

struct new_file {
    const char *path; /* borrowed */
    char *temporary;  /* NULL: none */
    int descriptor;   /* to be written to, and closed by whoever opened a stream on it */
};

/* Opens the temporary file, with the permissions of a regular file that is there already. Returns
 * NULL, or why it cannot be done; then there is nothing to end. */
const char *new_file_open(struct new_file *file, const char *path);

/* Ends it, after the descriptor was closed: under its own name if is_whole, else there is nothing
 * left of it. Returns NULL, or why it could not get its name. */
const char *new_file_end(struct new_file *file, int is_whole);

#endif
