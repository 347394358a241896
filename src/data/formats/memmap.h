/*
 * memmap.h: an index and a memory map: masks as bytes, all of one size, in NumPy's np.memmap of
 * shape (masks, H, W).
 *
 *     index.json   [{"image_path": ..., "mask_start_idx": 0, "mask_end_idx": 7, ...}, ...]
 *     masks.u8     H x W bytes per mask, non-zero inside it, one after the other
 *     images/      the images
 *
 * A sample's masks are those from mask_start_idx up to but without mask_end_idx, each stretched
 * over its image, of any size. The writer adds keys that other readers of the layout ignore:
 * name, group (what data.holdout keeps together), height and width of the image, mask_height and
 * mask_width. If an index lacks these, H and W are equal, or those of a .npy file, and the sizes of
 * the images are read when the dataset is opened.
 *
 * It is the second layout of the format `packed`, used when a path ends in .json. The masks are in
 * the file that data.masks names, else beside the index under its name with another ending, else
 * in masks.*: .u8, .dat, .bin, .memmap or .npy.
 */
#pragma once

#include "data/dataset.h"

extern const struct dataset_format dataset_memmap;

/* Reports whether the options name an index. */
bool memmap_is_index(const struct dataset_options *o);

/* --- writing, atomically ------------------------------------------------------------- */

struct memmap_writer;
/* Creates a folder, which must be missing or empty, for masks of side x side. */
int memmap_create(struct memmap_writer **out, const char *folder, uint32_t side, struct error *e);

struct memmap_new {
    const char *name, *key;
    const char *group;      /* NULL: none */
    uint32_t h, w;          /* size of the image */
    const void *image;      /* a JPEG or PNG file */
    size_t n;
    const uint8_t *bits;    /* [masks][side][stride], as in grid.h */
    uint32_t masks;
};
int memmap_add(struct memmap_writer *w, const struct memmap_new *s, struct error *e);
int memmap_finish(struct memmap_writer *w, struct error *e);
void memmap_abandon(struct memmap_writer *w);
