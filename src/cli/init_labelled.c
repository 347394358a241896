/*
 * init_labelled.c: `plimsoll init` for a vision tower: a run file with images of classes, or with
 * texts where the model has a text tower and the data have texts.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/init.h"
#include "data/formats/labelled.h"
#include "data/text/records.h"
#include "io/json.h"
#include "models/model.h"

struct found {
    char train[4096], validation[4096]; /* validation "": a tenth of train is held out */
    bool captions;
    struct labelled set;
    struct names classes;    /* of a table, sorted */
};

/* Folders train and val, or the path itself. */
static void find_parts(struct found *f, const char *data)
{
    static const char *const held[] = {"val", "valid", "validation", "test"};
    snprintf(f->train, sizeof f->train, "%s/train", data);
    if (!dir_exists(f->train)) {
        snprintf(f->train, sizeof f->train, "%s", data);
        return;
    }
    for (size_t i = 0; i < COUNT(held) && !dir_exists(f->validation); i++)
        snprintf(f->validation, sizeof f->validation, "%s/%s", data, held[i]);
    if (!dir_exists(f->validation)) f->validation[0] = 0;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void list_classes(struct found *f)
{
    for (uint32_t i = 0; i < f->set.samples.n && !f->set.folders && !f->captions; i++) {
        uint32_t k = 0;
        while (k < f->classes.n && strcmp(f->classes.at[k], f->set.samples.at[i].text)) k++;
        if (k == f->classes.n) vec_push(&f->classes, mem_string(f->set.samples.at[i].text));
    }
    if (f->classes.n) qsort(f->classes.at, f->classes.n, sizeof *f->classes.at, by_name);
}

static bool has_text_tower(const char *model)
{
    struct model m;
    struct error ignored;
    if (!dir_exists(model) || model_open_with(&m, model, &(struct model_choices){.head = HEAD_CONTRASTIVE}, &ignored))
        return false;
    model_close(&m);
    return true;
}

static int open_data(struct found *f, const char *model, struct error *e)
{
    char *path = f->train;
    struct labelled_options o = {.paths = &path, .n_paths = 1, .captions = true, .room = RECORD_MOST, .max_bad = 1};
    struct error ignored;
    f->captions = has_text_tower(model) && !labelled_open(&f->set, &o, &ignored);
    if (f->captions) return PL_OK;
    labelled_close(&f->set);
    o.captions = false;
    return labelled_open(&f->set, &o, e);
}

static void put_string(struct text *out, const char *before, const char *s, const char *after)
{
    struct json_writer w = {.out = out};
    text_printf(out, "%s", before);
    json_put_string(&w, NULL, s);
    text_printf(out, "%s", after);
}

static void print(const struct found *f, const char *model, bool preset, const char *data, const char *folder,
                  struct text *out)
{
    const uint64_t samples = f->set.samples.n, batch = min_u64(f->captions ? 256 : 32, samples);
    text_printf(out, "# %s on %s: %" PRIu64 " images with %s.\n", model, data, samples,
                f->captions      ? "texts"
                : f->set.folders ? "classes, which are folders"
                                 : "classes");
    text_printf(
        out,
        "#\n#   plimsoll plan  RUN.yaml        memory and time, before anything runs\n#   plimsoll train "
        "RUN.yaml\n#\n# docs/guides/vision-towers.md explains it. Paths are relative to the current directory.\n\n");
    put_string(out, preset ? "model:\n  preset: " : "model:\n  path: ", model, "\n");
    for (uint32_t i = 0; i < f->classes.n; i++)
        put_string(out, i ? ", " : "  classes: [", f->classes.at[i], i + 1 < f->classes.n ? "" : "]\n");
    put_string(out, f->captions ? "\ndata:\n  format: captions\n  train: " : "\ndata:\n  format: classes\n  train: ",
               f->train, "\n");
    if (*f->validation) put_string(out, "  validation: ", f->validation, "\n");
    else text_printf(out, "  holdout: 0.1                   # evaluate on a tenth of the images\n");
    text_printf(out, "\ntrain:\n  epochs: 10\n  effective_batch: %" PRIu64 "%s\n", batch,
                f->captions ? "           # each other's negatives: a micro-batch is the whole batch" : "");
    text_printf(
        out,
        "  learning_rate: %s            # for %s weights\n  schedule: cosine\n  warmup_ratio: 0.05\n  clip_norm: 1\n",
        preset ? "1e-3" : "1e-5", preset ? "random" : "pretrained");
    text_printf(out, "  eval_every: %" PRIu64 "\n", (samples + batch - 1) / batch);
    put_string(out, "  out: ", folder, "\n");
    text_printf(out, "\nmemory:\n  budget: auto                   # the memory of this machine, or of its GPU; or a "
                     "size such as 8GiB. The fastest plan that fits is used\n");
}

int init_labelled(const char *model, bool preset, const char *data, const char *folder, struct error *e)
{
    struct found f = {0};
    struct text out = {0};
    find_parts(&f, data);
    int rc = open_data(&f, model, e);
    if (!rc) {
        list_classes(&f);
        print(&f, model, preset, data, folder, &out);
        fputs(out.at, stdout);
    }
    text_free(&out);
    names_free(&f.classes);
    labelled_close(&f.set);
    return rc;
}
