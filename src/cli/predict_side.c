/*
 * predict_side.c: the square that a model's training fitted images into.
 *
 * A model that was trained at another size than its config.json's keeps that one's tables: the size is
 * data.image_size of the run. The run's folder has its resolved configuration above the model:
 * RUN/config.yaml, RUN/model, RUN/checkpoints/step-N.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli/predict.h"

/* Cuts off the last name of a path and gives it; NULL: there is none. */
static const char *cut(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || slash == path) return NULL;
    *slash = 0;
    return slash + 1;
}

static bool run_above(const char *model, struct text *config)
{
    char path[PATH_MAX];
    if (!realpath(model, path)) return false;
    const char *name = cut(path), *parent;
    if (!name) return false;
    if (strcmp(name, "model") && (!(parent = cut(path)) || strcmp(parent, "checkpoints"))) return false;
    text_printf(config, "%s/config.yaml", path);
    return file_exists(config->at);
}

int64_t predict_trained_side(const char *model)
{
    struct text path = {0};
    struct config c;
    struct error e;
    int64_t side = 0;
    if (run_above(model, &path)) {
        config_init(&c);
        if (config_read(&c, path.at, &e)) log_warn("the size that %s was trained at is not known: %s", model, e.text);
        else side = c.data_image_size;
        config_free(&c);
    }
    text_free(&path);
    return side;
}
