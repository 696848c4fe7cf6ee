/* SPDX-License-Identifier: MIT
 *
 * Packed rows, over the same vector interface as template/copy_lines.h. Such rows start anywhere in
 * a cache line, and their columns meet anywhere in one. The lines at both ends of a row, which are
 * stored in parts, are asked for ahead; a line in which columns meet is stored at once.
 */
#ifndef PKV_KERNELS_TEMPLATE_COPY_COLUMNS_H
#define PKV_KERNELS_TEMPLATE_COPY_COLUMNS_H

#include "kernels/template/copy.h"

/* Less than a line, in two moves that may overlap. */
static inline void copy_short(char *dst, const char *src, int64_t bytes) {
    if (bytes >= 32) {
        vec_copy_32(dst, src);
        vec_copy_32(dst + bytes - 32, src + bytes - 32);
    } else if (bytes >= 16) {
        memcpy(dst, src, 16);
        memcpy(dst + bytes - 16, src + bytes - 16, 16);
    } else if (bytes >= 8) {
        memcpy(dst, src, 8);
        memcpy(dst + bytes - 8, src + bytes - 8, 8);
    } else if (bytes >= 4) {
        memcpy(dst, src, 4);
        memcpy(dst + bytes - 4, src + bytes - 4, 4);
    } else {
        for (int64_t i = 0; i < bytes; i++)
            dst[i] = src[i];
    }
}

/* Reads one packed row from its columns. */
struct row_reader {
    const struct pkv_column *column;
    int64_t row;
    const char *from;
    int64_t left; /* bytes of the column */
};

static inline void start_column(struct row_reader *reader) {
    reader->from = reader->column->src + reader->row * reader->column->src_stride;
    reader->left = reader->column->bytes;
}

/* Only when bytes of the row are left. */
static inline void skip_ended_columns(struct row_reader *reader) {
    while (reader->left == 0) {
        reader->column++;
        start_column(reader);
    }
}

/* Less than a line, with ordinary stores. */
static inline void read_bytes(struct row_reader *reader, char *dst, int64_t bytes) {
    while (bytes > 0) {
        skip_ended_columns(reader);
        const int64_t count = bytes < reader->left ? bytes : reader->left;
        copy_short(dst, reader->from, count);
        dst += count;
        bytes -= count;
        reader->from += count;
        reader->left -= count;
    }
}

enum { PIECE_BYTES = 16 };

/* A line in which columns meet, in pieces that the core gathers to a line. Put together in memory
 * it would wait until all stores before it are done. */
static inline void stream_border(struct row_reader *reader, char *dst) {
    for (int i = 0; i < LINE_BYTES; i += PIECE_BYTES) {
        skip_ended_columns(reader);
        if (reader->left >= PIECE_BYTES) {
            vec_stream_16(dst + i, reader->from);
            reader->from += PIECE_BYTES;
            reader->left -= PIECE_BYTES;
        } else {
            char piece[PIECE_BYTES];
            read_bytes(reader, piece, PIECE_BYTES);
            vec_stream_16(dst + i, piece);
        }
    }
}

static inline void stream_packed_row(char *dst, const struct pkv_column *columns, int64_t row,
                                     int64_t row_bytes) {
    struct row_reader reader = {.column = columns, .row = row};
    start_column(&reader);
    const int64_t rest = (int64_t)(-(uintptr_t)dst % LINE_BYTES);
    const int64_t head = rest < row_bytes ? rest : row_bytes;
    read_bytes(&reader, dst, head);
    dst += head;
    int64_t num_lines = (row_bytes - head) / LINE_BYTES;
    while (num_lines > 0) {
        const int64_t whole = reader.left / LINE_BYTES;
        const int64_t count = whole < num_lines ? whole : num_lines;
        stream_lines(dst, reader.from, count);
        dst += count * LINE_BYTES;
        reader.from += count * LINE_BYTES;
        reader.left -= count * LINE_BYTES;
        num_lines -= count;
        if (num_lines > 0) {
            stream_border(&reader, dst);
            dst += LINE_BYTES;
            num_lines--;
        }
    }
    read_bytes(&reader, dst, (row_bytes - head) % LINE_BYTES);
}

/* A part of a scatter skips the rows of other parts, and the hardware's prefetch loses the track
 * there. */
enum { AHEAD_ROWS = 4 };

/* No function of its own for the prefetches: a compiler may take one that returns nothing and
 * stores nothing for one that does nothing. */
static inline void stream_packed_rows(char *dst, const struct pkv_column *columns,
                                      int64_t num_columns, int64_t row_bytes,
                                      const struct pkv_packed_place *places, int64_t num_places) {
    for (int64_t i = 0; i < num_places; i++) {
        vec_prefetch_write(dst + places[i].dst_offset);
        vec_prefetch_write(dst + places[i].dst_offset + row_bytes - 1);
    }
    for (int64_t i = 0; i < num_places; i++) {
        for (int64_t j = 0; i + AHEAD_ROWS < num_places && j < num_columns; j++) {
            const char *from = columns[j].src + places[i + AHEAD_ROWS].row * columns[j].src_stride;
            for (int64_t byte = 0; byte < columns[j].bytes; byte += LINE_BYTES)
                vec_prefetch_read(from + byte);
        }
        stream_packed_row(dst + places[i].dst_offset, columns, places[i].row, row_bytes);
    }
}

static void copy_columns_stream(char *dst, const struct pkv_column *columns, int64_t num_columns,
                                const struct pkv_packed_place *places, int64_t num_places) {
    int64_t row_bytes = 0;
    for (int64_t i = 0; i < num_columns; i++)
        row_bytes += columns[i].bytes;
    for (int64_t first = 0; first < num_places && row_bytes > 0; first += TOUCH_BATCH) {
        const int64_t rest = num_places - first;
        stream_packed_rows(dst, columns, num_columns, row_bytes, places + first,
                           rest < TOUCH_BATCH ? rest : TOUCH_BATCH);
    }
    vec_fence();
}

/* Between touches of a row that is written: the processor finds the lines between by itself. */
enum { TOUCH_BYTES = 512 };

/* Column by column, for in cache it does not matter which lines are written together, and a column
 * has as many lines in each row. */
static void copy_columns_cached(char *dst, const struct pkv_column *columns, int64_t num_columns,
                                const struct pkv_packed_place *places, int64_t num_places) {
    int64_t row_bytes = 0;
    for (int64_t i = 0; i < num_columns; i++)
        row_bytes += columns[i].bytes;
    for (int64_t first = 0; first < num_places; first += TOUCH_BATCH) {
        const int64_t rest = num_places - first;
        const int64_t end = rest < TOUCH_BATCH ? num_places : first + TOUCH_BATCH;
        for (int64_t byte = 0; byte < row_bytes; byte += TOUCH_BYTES) {
            for (int64_t i = first; i < end; i++)
                vec_prefetch_write(dst + places[i].dst_offset + byte);
        }
        int64_t column = 0;
        for (int64_t j = 0; j < num_columns; column += columns[j++].bytes) {
            const int64_t whole = columns[j].bytes / LINE_BYTES * LINE_BYTES;
            for (int64_t i = first; i < end; i++) {
                char *to = dst + places[i].dst_offset + column;
                const char *from = columns[j].src + places[i].row * columns[j].src_stride;
                copy_lines(to, from, whole);
                if (whole < columns[j].bytes)
                    copy_short(to + whole, from + whole, columns[j].bytes - whole);
            }
        }
    }
}

#endif
