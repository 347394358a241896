/*
 * config_model.c: see config_model.h.
 */
#include "config/config_model.h"

#include <stddef.h>

/* Returns the head over a vision tower: as the data asks for, unless model.head says it. */
static enum head_kind choose_head(const struct config *c)
{
    if (c->model_head != HEAD_AUTO) return (enum head_kind)c->model_head;
    return c->data_format == FORMAT_CLASSES    ? HEAD_CLASSES
           : c->data_format == FORMAT_CAPTIONS ? HEAD_CONTRASTIVE
                                               : HEAD_AUTO;
}

struct model_choices config_choices(const struct config *c)
{
    static const char *const decoders[] =
        {[DECODER_AUTO] = NULL, [DECODER_FUSION] = "fusion", [DECODER_PROMPTED] = "prompted"};
    return (struct model_choices){.vision_tower = c->model_vision_tower,
                                  .decoder = decoders[c->model_decoder],
                                  .image = c->data_image_size,
                                  .no_dropout = c->model_dropout == DROPOUT_NONE,
                                  .head = choose_head(c),
                                  .classes = c->model_classes.at,
                                  .n_classes = c->model_classes.n,
                                  .class_folder =
                                      c->data_format == FORMAT_CLASSES && c->data_train.n ? c->data_train.at[0] : NULL};
}

int config_open_model(const struct config *c, struct model *m, struct error *e)
{
    const struct model_choices chosen = config_choices(c);
    return c->model_path ? model_open_with(m, c->model_path, &chosen, e)
                         : model_preset_with(m, c->model_preset, &chosen, e);
}
