/*
 * dataset_json.c: see dataset_json.h.
 */
#include "data/formats/dataset_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "io/file.h"
#include "io/json.h"

/* Adds a name to a number, or a number to a name. Regions, lists of several values, are left
 * out. */
static void add_label(struct dataset_json *j, const struct value *v)
{
    char *end;
    struct dataset_json_label l = {.value = -1};
    if (v->kind == VALUE_STRING) {
        l.value = strtoll(v->key, &end, 10);
        if (*end || end == v->key) return;
        snprintf(l.name, sizeof l.name, "%.63s", v->text);
    } else if (v->kind == VALUE_NUMBER) {
        l.value = (int64_t)v->number;
        snprintf(l.name, sizeof l.name, "%.63s", v->key);
    }
    if (l.value < 1 || l.value > 65535) return;
    j->labels = mem_resize(j->labels, (j->n_labels + 1) * sizeof *j->labels);
    j->labels[j->n_labels++] = l;
}

static void read_names(struct dataset_json *j, const struct value *root)
{
    const struct value *labels = value_get(root, "labels"), *channels = value_get(root, "channel_names");
    if (!channels) channels = value_get(root, "modality");
    for (uint32_t i = 0; labels && labels->kind == VALUE_MAP && i < labels->count; i++) add_label(j, labels->items[i]);
    for (uint32_t i = 0; channels && channels->kind == VALUE_MAP && i < channels->count; i++) {
        const size_t n = strlen(j->modality);
        if (channels->items[i]->kind == VALUE_STRING)
            snprintf(j->modality + n, sizeof j->modality - n, "%s%s", n ? ", " : "", channels->items[i]->text);
        j->modalities++;
    }
}

void dataset_json_read(struct dataset_json *j, const char *folder)
{
    struct error ignored;
    *j = (struct dataset_json){0};
    for (int i = 0; i < 2 && !j->n_labels; i++) {
        struct bump b = {0};
        struct value *root;
        struct text path = {0};
        text_printf(&path, i ? "%s/../dataset.json" : "%s/dataset.json", folder);
        if (file_exists(path.at) && !json_read_file(path.at, 64 << 20, &b, &root, &ignored)) read_names(j, root);
        text_free(&path);
        bump_free(&b);
    }
}

void dataset_json_free(struct dataset_json *j)
{
    mem_free(j->labels);
    *j = (struct dataset_json){0};
}

const char *dataset_json_name(const struct dataset_json *j, int64_t value)
{
    for (uint32_t i = 0; i < j->n_labels; i++)
        if (j->labels[i].value == value) return j->labels[i].name;
    return NULL;
}

int64_t dataset_json_value(const struct dataset_json *j, const char *name)
{
    for (uint32_t i = 0; i < j->n_labels; i++)
        if (!strcasecmp(j->labels[i].name, name)) return j->labels[i].value;
    return -1;
}
