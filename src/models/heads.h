/*
 * heads.h: the families clip and siglip and their vision models: a vision tower (parts.h), or a head over it with which
 * the tower trains by itself, as the classes of transformers define it.
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

/* The class of a name, or of its number in digits; -1: there is none. */
int64_t head_class(const struct head_model *h, const char *name);

#endif
