/*
 * config_model.c: see config_model.h.
 */
#include "config/config_model.h"

#include <stddef.h>

struct model_choices config_choices(const struct config *c)
{
    static const char *const decoders[] = {[DECODER_AUTO] = NULL, [DECODER_FUSION] = "fusion", [DECODER_PROMPTED] = "prompted"};
    return (struct model_choices){.vision_tower = c->model_vision_tower, .decoder = decoders[c->model_decoder], .image = c->data_image_size, .no_dropout = c->model_dropout == DROPOUT_NONE};
}

int config_open_model(const struct config *c, struct model *m, struct error *e)
{
    const struct model_choices chosen = config_choices(c);
    return c->model_path ? model_open_with(m, c->model_path, &chosen, e) : model_preset_with(m, c->model_preset, &chosen, e);
}
