/*
 * match.h: which image file belongs to which mask file, by their names.
 *
 *     images/  train/aachen/a_leftImg8bit.png          prefix + core + suffix
 *     masks/   train/aachen/a_gtFine_labelIds.png
 *
 * An image and a mask belong together when they are in the same subfolder and have the same name
 * after prefix, suffix and ending are removed. Both may be in one folder: then the files with the
 * prefix and suffix of masks are the masks.
 */
#pragma once

#include "base/base.h"
#include "data/images/image.h"

struct names;
/* The readable images (JPEG, PNG, volumes) below a folder, by path; a folder of a DICOM series is
 * one. Hidden files are skipped. */
struct image_file {
    char *path;          /* relative to the folder: "train/aachen/a.png" */
    uint32_t base, stem; /* offsets: of the name, and of the end of the name without its ending */
};
struct image_tree {
    VEC(struct image_file) files;
    const struct unread *unread; /* a format that occurs and is not read; NULL: none */
    uint64_t n_unread;
    char *unread_example;
};
/* `skip` is a folder, relative, that is left out; NULL: none. */
int image_tree_read(struct image_tree *t, const char *folder, const char *skip, struct error *e);
void image_tree_free(struct image_tree *t);
/* Lists the images of paths, of which some may be folders. PL_USAGE: there are none. */
int image_paths(struct names *out, const struct names *paths, struct error *e);
bool is_image_name(const char *name); /* also .png, and volumes: .tif, .tiff, .nii, .nii.gz, .dcm */

enum affix { IMAGE_PREFIX, IMAGE_SUFFIX, MASK_PREFIX, MASK_SUFFIX, AFFIXES };
enum { AFFIX_ROOM = 96 };
struct affixes {
    char at[AFFIXES][AFFIX_ROOM];
    bool optional; /* a mask may also have the suffix _mask */
};

struct matched {
    uint32_t image, mask; /* files of the trees */
    const char *key;      /* subfolder and core */
};
struct match {
    VEC(struct matched) pairs;     /* by key */
    uint64_t alone[2];             /* images without a mask, masks without an image */
    uint32_t first_alone[2];
    uint64_t duplicates;           /* further files of the same key */
    uint64_t others[2];            /* files without the prefix and suffix */
    uint32_t first_other[2];
    struct bump keys;
};
/* Joins two trees; masks == images: both are in one folder. The caller calls match_free. */
void match_join(struct match *m, const struct image_tree *images, const struct image_tree *masks,
                const struct affixes *a);
void match_free(struct match *m);
/* Counts the pairs. */
uint64_t match_count(const struct image_tree *images, const struct image_tree *masks, const struct affixes *a);
/* Lists what was not joined, for a warning: "2 images have no mask (such as a.jpg)"; nothing when
 * all files are used. */
void match_print(const struct match *m, const struct image_tree *images, const struct image_tree *masks,
                 struct text *out);
/* Refuses trees in which no image has a mask: PL_USAGE. The folders' names are for the message. */
int match_refuse(const struct image_tree *images, const char *images_name, const struct image_tree *masks,
                 const char *masks_name, struct error *e);

/* Finds prefixes and suffixes with which most files belong together; *n is the number of pairs, 0
 * when the names have nothing in common. PL_USAGE when two choices are equally good: the message
 * names them and the key. */
int match_find(const struct image_tree *images, const struct image_tree *masks, struct affixes *a, uint64_t *n,
               struct error *e);

/* Reports whether a file or folder has a name that is usual for masks: "GroundTruth", "_seg". */
bool names_masks(const char *name, size_t n);
/* Returns the rank of a mask of an image by what people mean: 0 before 1, such as labelIds before
 * instanceIds and color. */
int masks_rank(const char *name);
