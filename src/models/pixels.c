/*
 * pixels.c: the normalisation of image values before a model (see model.h).
 *
 * It is read only here, so that training, evaluation, stored embeddings and `predict` agree.
 */
#include <stdio.h>

#include "io/file.h"
#include "io/json.h"
#include "models/masks.h"

enum { JSON_MOST = 1 << 20 };

static int read_three(const struct value *map, const char *key, double out[3], struct error *e)
{
    const struct value *list = value_get(map, key);
    if (!list || list->kind == VALUE_NULL) return PL_OK;
    if (value_as_list(list, key, e)) return e->code;
    if (list->count != 3) return error_set(e, PL_USAGE, "%s has %u numbers, expected 3", key, list->count);
    for (uint32_t i = 0; i < 3; i++)
        if (value_as_number(value_at(list, i), key, &out[i], e)) return e->code;
    return PL_OK;
}

static int read_norm(struct pixel_norm *n, const struct value *map, struct error *e)
{
    bool scale = true, normalise = true;
    int rc = value_opt_bool(map, "do_rescale", &scale, e);
    if (!rc) rc = value_opt_bool(map, "do_normalize", &normalise, e);
    if (!rc) rc = value_opt_number(map, "rescale_factor", &n->scale, e);
    if (!rc) rc = read_three(map, "image_mean", n->mean, e);
    if (!rc) rc = read_three(map, "image_std", n->std, e);
    if (rc) return rc;
    if (!scale) n->scale = 1;
    if (!(n->scale > 0)) return error_set(e, PL_USAGE, "rescale_factor is %g, it must be above 0", n->scale);
    for (int k = 0; k < 3; k++) {
        if (!normalise) n->mean[k] = 0, n->std[k] = 1;
        if (!(n->std[k] > 0)) return error_set(e, PL_USAGE, "image_std is %g, it must be above 0", n->std[k]);
    }
    return PL_OK;
}

int pixel_norm_read(struct pixel_norm *n, const char *folder, struct error *e)
{
    *n = (struct pixel_norm){1.0 / 255, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
    if (!*folder) return PL_OK;
    struct bump memory = {0};
    char path[1100];
    int rc = PL_OK;
    for (int nested = 0; nested < 2; nested++) {
        struct value *root;
        snprintf(path, sizeof path, "%s/%s", folder, nested ? "processor_config.json" : "preprocessor_config.json");
        if (!file_exists(path)) continue;
        rc = json_read_file(path, JSON_MOST, &memory, &root, e);
        if (!rc && read_norm(n, nested ? value_get(root, "image_processor") : root, e))
            rc = error_prepend(e, "%s", path);
        break;
    }
    bump_free(&memory);
    return rc;
}
