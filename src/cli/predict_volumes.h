/*
 * predict_volumes.h: predictions of volumes (predict_volumes.c): slices of a volume as images of
 * predict_many, and masks of slices as a label volume of the same geometry.
 */
#ifndef CLI_PREDICT_VOLUMES_H
#define CLI_PREDICT_VOLUMES_H

#include "cli/predict_many.h"
#include "data/volumes/nifti.h"

/* Whether predict takes a path as a volume: NIfTI, or a folder or file of DICOM. */
bool predict_is_volume(const char *path);
/* The slices --slices of one volume, each with the prompt of the command line. */
int predict_slices(struct predict_source *s, struct predict *p, struct error *e);

/* The label volume that is being written. A label is the category of its prompt, else its number,
 * from 1. Where masks of a slice overlap the smallest is written. */
struct label_output {
    const struct predict *p;
    struct nifti_writer *writer;
    const struct volume *of; /* the volume whose labels are written; NULL: none yet */
    uint16_t *labels;        /* [h][w] of the slice */
    uint32_t *area;          /* of the mask of each pixel */
    uint64_t volumes;        /* that are finished */
    bool folders;            /* predict_source.folders */
};
/* Adds a mask of a slice: [h][w] bytes. */
int label_output_add(struct label_output *o, const struct predict_item *x, uint32_t k, const uint8_t *mask,
                     struct error *e);
/* Writes the labels of a slice after its last mask. */
int label_output_slice(struct label_output *o, const struct predict_item *x, struct error *e);
/* Finishes the last volume; `failed`: removes it. */
int label_output_end(struct label_output *o, bool failed, struct error *e);

#endif
