/*
 * heads.h: a head over a vision tower of CLIP or SigLIP, with which the tower trains by itself, as the classes of
 * transformers define it.
 *
 *     classes        logits = classifier(mean of the patch tokens), cross-entropy: CLIPForImageClassification,
 *                    SiglipForImageClassification
 *
 * The inputs of the graph:
 *
 *     pixel_values   f32 [B,3,S,S]
 *     labels         i32 [B]           the class; -100: none
 *
 * The classifier is in the model's folder, or it is new: then the folder is that of the tower, of which it may be a part,
 * and the model is saved as a folder of the class above.
 */
#ifndef HEADS_H
#define HEADS_H

#include "models/model.h"

/* What a model with a head says about itself (model.head). */
struct head_model {
    enum head_kind kind;
    const char **names;  /* [classes] */
    int64_t classes;
    const char *folder;  /* of the tower: its image processor; "": a preset */
    bool fresh;          /* the classifier is in no folder */
    bool siglip;
};

/* For the families of towers: the head that the run asks for, or config.json; HEAD_NONE: none. */
enum head_kind head_of(const struct model *m, const struct value *config);
int head_parse(struct model *m, enum head_kind kind, const struct value *config, struct error *e);
void head_build(const struct model *m, struct graph *g, const struct batch *batch);

/* The class of a name, or of its number in digits; -1: there is none. */
int64_t head_class(const struct head_model *h, const char *name);

#endif
