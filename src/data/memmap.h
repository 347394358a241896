/*
 * memmap.h: an index and a memory map: masks as bytes of one size, NumPy's np.memmap of shape
 * (masks, H, W).
 *
 *     index.json   [{"image_path": ..., "mask_start_idx": 0, "mask_end_idx": 7, ...}, ...]
 *     masks.u8     H x W bytes a mask, not 0 on it, one behind the other
 *     images/      the images
 *
 * A sample's masks are those from mask_start_idx up to and without mask_end_idx, each stretched
 * over its image, whatever that's size. What we write has more keys, which other readers of
 * the layout pass over: name, height and width of the image, mask_height and mask_width. Where
 * an index lacks these, H and W are equal, or those of a .npy file, and images are asked for
 * their size when the set is opened.
 *
 * It is the second layout of the format `packed`, taken when a path ends in .json. The masks lie
 * in the file that data.masks names, else beside the index in its name with another ending, else
 * in masks.*: .u8, .dat, .bin, .memmap or .npy.
 */
#ifndef MEMMAP_H
#define MEMMAP_H

#include "data/dataset.h"

extern const struct dataset_format dataset_memmap;

/* Whether the options name an index. */
bool memmap_is_index(const struct dataset_options *o);

/* --- writing: all or nothing ------------------------------------------------------------- */

struct memmap_writer;
/* A folder, which must not be there yet or be empty, with masks of side x side. */
int memmap_create(struct memmap_writer **out, const char *folder, uint32_t side, struct error *e);

struct memmap_new {
    const char *name, *key;
    uint32_t h, w;          /* of the image */
    const void *image;      /* a JPEG or PNG file */
    size_t n;
    const uint8_t *bits;    /* [masks][side][stride], as grid.h has them */
    uint32_t masks;
};
int memmap_add(struct memmap_writer *w, const struct memmap_new *s, struct error *e);
int memmap_finish(struct memmap_writer *w, struct error *e);
void memmap_abandon(struct memmap_writer *w);

#endif
