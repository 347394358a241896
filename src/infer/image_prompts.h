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

#include "io/file.h"

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
/* Parses the points X,Y[,LABEL] and the box X0,Y0,X1,Y1 (NULL: none) of a command; with an `image`,
 * the one at a path, they must lie in it. The caller frees points and labels, also on failure. */
struct image;
int image_prompt_parse(struct image_prompt *q, const struct names *points, const char *box, const struct image *image,
                       const char *path, struct error *e);

struct image_prompts {
    VEC(struct image_prompt) all; /* sorted by image, then by row */
    struct bump memory;
};

/* Reads a file. PL_USAGE names the line, or what is missing. On failure nothing needs freeing. */
int image_prompts_read(struct image_prompts *p, const char *path, struct error *e);
/* Does the same from n bytes followed by a 0, which a table overwrites. */
int image_prompts_parse(struct image_prompts *p, char *text, size_t n, bool json, struct error *e);
void image_prompts_free(struct image_prompts *p);
