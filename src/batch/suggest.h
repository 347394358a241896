/*
 * suggest.h: measures a dataset for a model: what the data keys of a run should be. `init` writes a
 * run file from it.
 */
#pragma once

#include "data/detect/detect.h"
#include "models/model.h"

struct suggestion {
    struct model model;
    bool preset;
    const char *name;        /* of the model */
    const char *template;    /* data.template; NULL: not given */
    uint64_t max_frames;     /* data.max_frames; 0: not given */
    struct detected data;
    bool plain, text;        /* data.format is text; or conversations, or text */
    uint64_t samples;        /* to train on: images, or rows */
    uint64_t held_out;
    double holdout;          /* share of the samples; 0: none, or validation has its own files */
    uint64_t split[2];       /* with `holdout`: images, conversations or rows to train on, and held out */
    struct text warning;     /* what is wrong with that split, or why the model would not learn to stop */
    struct text decided;     /* lines for the keys that were auto, as they were decided over the data */
    char *unused[2]; /* files without a partner, or conversations that cannot be used, of both parts; NULL: none */
    /* images with masks */
    uint64_t sample_memory;  /* MiB that the slices of volumes take; 0: the default suffices */
    int64_t image, masks;
    int64_t cells;           /* side of the masks in a packed store; 0: not a packed store */
    bool embeddings;         /* the store has embeddings... */
    char freeze[64];         /* ...which the run uses: the pattern of the frozen encoder; "": it cannot, because: */
    struct error not_used;
    /* tokens and text */
    int64_t sequence;        /* tokens in a sample or row */
    int64_t max_images;      /* images in a row; 0: no conversation has any... */
    int64_t max_patches;     /* ...or patches, with images of any size */
    int64_t max_volumes;     /* volumes of each modality in a row; 0: no conversation has any */
    uint64_t too_long;       /* conversations longer than a row */
};

/* Opens a model by its folder or preset. suggestion_free may follow a failure, and zeroed ones. */
int suggest_model(struct suggestion *s, const char *model, struct error *e);
/* Detects the data (detect.h) and measures them with the readers that training uses. PL_USAGE: the
 * model cannot be trained on them. */
int suggest_data(struct suggestion *s, const char *data, bool bytes, const struct dataset_options *given,
                 struct error *e);
void suggestion_free(struct suggestion *s);

/* --- its run file (suggest_write.c) ----------------------------------------------------------- */

/* Puts "runs/MODEL-DATA": the last part of the model's path and the whole path of the data, as seen
 * from the current folder, so that each dataset has a folder of its own. A number is added if that
 * folder exists. A long name keeps its end and gets a hash of the whole. */
void suggest_folder(const char *model, const char *data, struct text *out);
/* Writes a RUN.yaml that trains the model on the data into a folder. */
void suggestion_write(const struct suggestion *s, const char *data, const char *folder, struct text *out);
/* Reads some images with masks as training does, with the configuration that was written. PL_USAGE:
 * they cannot be trained on. */
int suggestion_try(const struct suggestion *s, const char *yaml, struct error *e);
/* Writes a RUN.yaml for a vision tower, whose data are images with classes or texts. */
int suggest_labelled(const struct suggestion *s, const char *data, const char *folder, struct text *out,
                     struct error *e);
