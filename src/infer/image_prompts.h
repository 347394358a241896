/*
 * image_prompts.h: the prompts of many images, from a file.
 *
 *     CSV    image,id,x0,y0,x1,y1,x,y,label,category  a box, a point, or both in a row
 *     JSON   COCO: the bbox of each annotation
 *
 * Rows of the same image and id are one prompt of several points. Coordinates are pixels of the
 * image as stored.
 */
#pragma once

#include "base/base.h"

struct image_prompt {
    const char *image;  /* as the file names it */
    const char *id;     /* "": none */
    int64_t category;   /* below 0: none */
    int64_t image_id;   /* of COCO; below 0: none */
    uint32_t row;       /* in the file */
    float (*points)[2];
    int *labels;
    uint32_t n;         /* points */
    bool box;
    float corners[4];
};

struct image_prompts {
    VEC(struct image_prompt) all; /* sorted by image, then by row */
    struct bump memory;
};

/* Reads a file. PL_USAGE names the line, or what is missing. On failure nothing needs freeing. */
int image_prompts_read(struct image_prompts *p, const char *path, struct error *e);
/* Does the same from n bytes followed by a 0, which a table overwrites. */
int image_prompts_parse(struct image_prompts *p, char *text, size_t n, bool json, struct error *e);
void image_prompts_free(struct image_prompts *p);
