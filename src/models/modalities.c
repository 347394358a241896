/*
 * modalities.c: see modalities.h.
 */
#include "models/modalities.h"

#include <ctype.h>
#include <math.h>

#include "graph/emit.h"
#include "models/layers.h"

enum { SIDE_MOST = 4096 };

/* --- configuration ---------------------------------------------------------------------------- */

int modality_find(const struct modality_list *l, const char *name, size_t n)
{
    for (int i = 0; i < l->n; i++)
        if (strlen(l->at[i].name) == n && !memcmp(l->at[i].name, name, n)) return i;
    return -1;
}

char *modality_names(const struct modality_list *l, char out[256])
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < l->n && n < 256; i++)
        n += (size_t)snprintf(out + n, 256 - n, "%s%s", i ? ", " : "", l->at[i].name);
    return out;
}

bool modality_equal(const struct modality *a, const struct modality *b)
{
    return !strcmp(a->name, b->name) && !memcmp(a->size, b->size, sizeof a->size) && a->series == b->series &&
           !memcmp(a->patch, b->patch, sizeof a->patch) && a->to_tower == b->to_tower;
}

/* Checks a name, which names weights, inputs and the files of a record. */
static int check_name(const char *name, struct error *e)
{
    size_t n = 0;
    while (isalnum((unsigned char)name[n]) || name[n] == '_' || name[n] == '-') n++;
    if (n && n < MODALITY_NAME && !name[n]) return PL_OK;
    return error_set(e, PL_USAGE, "a modality is named \"%.60s\"; expected 1 to %d letters, digits, _ and -", name,
                     MODALITY_NAME - 1);
}

/* Parses three or four numbers; *n is how many there are. */
static int parse_axes(const struct value *map, const char *key, int64_t out[4], uint32_t *n, struct error *e)
{
    const struct value *list = value_get(map, key);
    TRY(value_as_list(list, key, e));
    *n = list->count;
    if (*n != 3 && *n != 4)
        return error_set(e, PL_USAGE, "%s has %u numbers, expected depth, height and width, and of a series its "
                         "number of volumes before them", key, *n);
    out[0] = 1;
    for (uint32_t i = 0; i < *n; i++) {
        int64_t *to = &out[4 - *n + i];
        TRY(value_as_int(value_at(list, i), key, to, e));
        if (*to < 1 || *to > SIDE_MOST)
            return error_set(e, PL_USAGE, "%s has the number %lld, expected 1 to %d", key, (long long)*to, SIDE_MOST);
    }
    return PL_OK;
}

static int parse_one(struct modality *x, const struct value *map, struct error *e)
{
    static const char *const keys[] = {"size", "patch", "to"};
    const char *to = "tower";
    uint32_t axes, others;
    TRY(value_as_map(map, x->name, e));
    for (uint32_t i = 0; i < map->count; i++) {
        size_t k = 0;
        while (k < COUNT(keys) && strcmp(keys[k], map->items[i]->key)) k++;
        if (k == COUNT(keys))
            return error_set(e, PL_USAGE, "unknown key %.60s, expected size, patch and to", map->items[i]->key);
    }
    TRY(parse_axes(map, "size", x->size, &axes, e));
    TRY(parse_axes(map, "patch", x->patch, &others, e));
    TRY(value_opt_string(map, "to", &to, e));
    if (axes != others)
        return error_set(e, PL_USAGE, "size has %u numbers and patch %u, expected as many", axes, others);
    if (strcmp(to, "tower") && strcmp(to, "projector"))
        return error_set(e, PL_USAGE, "to is \"%.40s\", expected tower or projector", to);
    x->series = axes == 4;
    x->to_tower = !strcmp(to, "tower");
    x->tokens = x->values = 1;
    for (int k = 0; k < 4; k++) {
        if (x->patch[k] > x->size[k])
            return error_set(e, PL_USAGE, "a patch of %lld is larger than the size %lld", (long long)x->patch[k],
                             (long long)x->size[k]);
        x->tokens *= modality_patches(x, k), x->values *= x->patch[k];
    }
    if (modality_floats(x) <= 1 << 28 && x->tokens <= 1 << 20) return PL_OK;
    return error_set(e, PL_USAGE, "a volume has %lld tokens of %lld values; expected at most 1048576 tokens and 1 GiB",
                     (long long)x->tokens, (long long)x->values);
}

int modalities_parse(struct modality_list *out, const struct value *map, struct error *e)
{
    *out = (struct modality_list){0};
    if (!map || map->kind == VALUE_NULL) return PL_OK;
    TRY(value_as_map(map, "modalities", e));
    if (map->count > MODALITIES)
        return error_set(e, PL_USAGE, "modalities has %u entries, expected at most %d", map->count, MODALITIES);
    for (; out->n < (int)map->count; out->n++) {
        struct modality *x = &out->at[out->n];
        const char *name = map->items[out->n]->key;
        snprintf(x->name, sizeof x->name, "%s", name);
        if (check_name(name, e) || parse_one(x, map->items[out->n], e))
            return error_prepend(e, "modalities.%.40s", name);
    }
    return PL_OK;
}

/* --- patches ---------------------------------------------------------------------------------- */

int64_t modality_offset(const struct modality *x, int axis, int64_t at)
{
    int64_t patch = at / x->patch[axis], value = at % x->patch[axis];
    if (patch >= modality_patches(x, axis)) return -1;
    for (int k = axis + 1; k < 4; k++) patch *= modality_patches(x, k), value *= x->patch[k];
    return patch * x->values + value;
}

void modality_cut(const struct modality *x, const float *volume, float *patches)
{
    int64_t at[4];
    for (int64_t i = 0; i < x->size[0] * x->size[1] * x->size[2] * x->size[3]; i++) {
        int64_t rest = i, to = 0;
        for (int k = 3; k >= 0; k--) at[k] = rest % x->size[k], rest /= x->size[k];
        for (int k = 0; k < 4 && to >= 0; k++) {
            const int64_t part = modality_offset(x, k, at[k]);
            to = part < 0 ? -1 : to + part;
        }
        if (to >= 0) patches[to] = volume[i];
    }
}

/* --- layers ----------------------------------------------------------------------------------- */

id modality_embed(const struct modality *x, struct graph *g, id patches, int64_t width)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "modalities.%s.", x->name);
    const double std = sqrt(1 / (3.0 * (double)x->values)); /* that of torch.nn.Conv3d */
    id w = layer_param(g, prefix, "proj.weight", 5,
                       (int64_t[]){width, x->patch[0], x->patch[1], x->patch[2], x->patch[3]}, std);
    id bias = layer_param(g, prefix, "proj.bias", 1, &width, 0);
    id position = layer_param(g, prefix, "position_embedding.weight", 2, (int64_t[]){x->tokens, width}, 0.02);
    prefix[strlen(prefix) - 1] = 0;
    /* a convolution whose kernel is its stride is a product with a matrix */
    IN_SCOPE(g, prefix, 0)
        patches = op_add(g, op_linear(g, patches, op_reshape(g, w, 2, (int64_t[]){width, x->values}), bias), position);
    return patches;
}
