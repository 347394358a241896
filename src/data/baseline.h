/*
 * baseline.h: the rows of a plain JPEG, faster than libjpeg gives them.
 *
 * Four fifths of the time of a photograph goes into its Huffman codes, one at a time. Here a
 * code and its bits are one look into a table, from a window without escapes. Plain is what
 * cameras and SA-1B write: baseline, YCbCr, chroma halved both ways, one scan, no restarts.
 * Everything else, and every file that is damaged, is libjpeg's: jpeg.c asks here first and
 * goes back to libjpeg when the answer is no, at any row. So the rows are libjpeg's to
 * the bit (its slow integer transform, its smooth chroma), and so is every message.
 */
#ifndef DATA_BASELINE_H
#define DATA_BASELINE_H

#include "base/base.h"

/* What the headers say; tables as libjpeg keeps them. */
struct baseline_file {
    uint32_t width, height;
    uint32_t divisor;              /* 1 or 2 */
    struct baseline_part {
        const uint16_t *quant;     /* [64] row by row */
        const uint8_t *dc_bits, *dc_values, *ac_bits, *ac_values; /* bits[1..16]: codes of each length */
    } part[3];                     /* Y, Cb, Cr */
    const uint8_t *data;           /* behind the header of the scan */
    size_t n;
};

struct baseline; /* 130 KB: the tables of the last file stay */
struct baseline *baseline_new(void);
void baseline_free(struct baseline *b);
/* Bytes that reading it takes beside that. */
size_t baseline_bytes(const struct baseline_file *f);
/* False: its tables are not plain. `memory` is of baseline_bytes and stays, as the data does, until
 * another file begins. */
bool baseline_begin(struct baseline *b, const struct baseline_file *f, void *memory);
/* The next row, RGB. False: something is irregular, and no row was given. */
bool baseline_row(struct baseline *b, uint8_t *rgb);
/* After the last row: whether the end mark follows at once. */
bool baseline_ended(struct baseline *b);

#endif
