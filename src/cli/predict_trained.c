/*
 * predict_trained.c: the image size and the range of 16-bit images that a model was trained with.
 *
 * The config.json of a model does not change when it is trained at another image size, so the size
 * is read from data.image_size of the run; the range from data.range. The folder of a run has its
 * configuration beside the model: RUN/config.yaml, RUN/model, RUN/checkpoints/step-N.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli/predict.h"
#include "feed/feed.h"

/* Removes the last component of a path and returns it; NULL: there is none. */
static const char *split_last(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || slash == path) return NULL;
    *slash = 0;
    return slash + 1;
}

static bool find_run_config(const char *model, struct text *config)
{
    char path[PATH_MAX];
    if (!realpath(model, path)) return false;
    const char *name = split_last(path), *parent;
    if (!name) return false;
    if (strcmp(name, "model") && (!(parent = split_last(path)) || strcmp(parent, "checkpoints"))) return false;
    text_printf(config, "%s/config.yaml", path);
    return file_exists(config->at);
}

struct trained_images predict_trained_images(const char *model)
{
    struct text path = {0};
    struct config c;
    struct error e;
    struct trained_images out = {0};
    if (find_run_config(model, &path)) {
        config_init(&c);
        if (config_read(&c, path.at, &e))
            log_warn("the image size that %s was trained at is unknown: %s", model, e.text);
        else
            out =
                (struct trained_images){.side = c.data_image_size, .range = feed_range(&c), .slices = feed_slices(&c)};
        for (uint32_t i = 0; i < out.slices.n_modalities && i < 3; i++) out.modalities[i] = out.slices.modalities[i];
        out.slices.modalities = NULL, out.slices.cache = NULL; /* they are freed with the configuration */
        config_free(&c);
    }
    text_free(&path);
    return out;
}
