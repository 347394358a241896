/*
 * suggest_write.c: the run file of a suggestion (suggest.h).
 */
#include <inttypes.h>
#include <unistd.h>

#include "batch/feed.h"
#include "batch/suggest.h"
#include "data/formats/labelled.h"
#include "data/text/records.h"
#include "io/json.h"
#include "models/images.h"
#include "models/masks.h"

enum { SAMPLES_TRIED = 32 };

#define COMMANDS \
    "#\n#   plimsoll plan  RUN.yaml        memory and time, before anything runs\n#   plimsoll train RUN.yaml\n#\n"
#define MEMORY                                                                                                   \
    "\nmemory:\n  budget: auto                   # the memory of this machine, or of its GPU; or a size such as " \
    "8GiB. The fastest plan that fits is used\n"

/* Puts "BEFORE"text"AFTER" with the text quoted. */
static void put_string(struct text *out, const char *before, const char *s, const char *after)
{
    struct json_writer w = {.out = out};
    text_printf(out, "%s", before);
    json_put_string(&w, NULL, s);
    text_printf(out, "%s", after);
}

static void put_list(struct text *out, const char *key, const struct names *l)
{
    text_printf(out, "  %s: [", key);
    for (uint32_t i = 0; i < l->n; i++) put_string(out, i ? ", " : "", l->at[i], "");
    text_printf(out, "]\n");
}

/* --- images with masks, tokens and text ------------------------------------------------------ */

/* Puts the keys that say how images and masks are found. */
static void put_keys(const struct detected *f, struct text *out)
{
    const struct {
        const char *key, *value;
    } keys[] = {{"images", f->set.images},
                {"masks", f->set.masks},
                {"validation_images", f->validation_images},
                {"validation_masks", f->validation_masks},
                {"image_prefix", f->set.image_prefix},
                {"image_suffix", f->set.image_suffix},
                {"mask_prefix", f->set.mask_prefix},
                {"mask_suffix", f->set.mask_suffix},
                {"train_list", f->train_list},
                {"validation_list", f->validation_list},
                {"image_column", f->set.image_column},
                {"mask_column", f->set.mask_column},
                {"split_column", f->set.split_column}};
    for (size_t i = 0; i < COUNT(keys); i++)
        if (keys[i].value) text_printf(out, "  %s: ", keys[i].key), put_string(out, "", keys[i].value, "\n");
    if (f->set.labels)
        text_printf(out,
                    "  labels: classes\n  ignore: 255                    # the borders of objects in Pascal VOC\n");
    if (f->train_split)
        text_printf(out, "  train_split: %s               # the table's split column\n  validation_split: %s\n",
                    f->train_split, f->validation_split);
}

static void put_rows(const struct suggestion *r, struct text *out)
{
    text_printf(out, "  sequence: %" PRId64 "                 # tokens in a %s\n", r->sequence,
                r->plain  ? "row"
                : r->text ? "row, which conversations share"
                          : "sample");
    if (r->max_images || r->max_volumes)
        text_printf(out, "  max_images: %" PRId64 "                  # images in a row; memory grows with it\n",
                    r->max_images);
    if (r->max_volumes)
        text_printf(out,
                    "  max_volumes: %" PRId64
                    "                 # volumes of each modality in a row; memory grows with it\n",
                    r->max_volumes);
    if (r->max_patches)
        text_printf(out,
                    "  max_patches: %" PRId64 "               # patches of images in a row; memory grows with it\n",
                    r->max_patches);
    if (r->max_frames)
        text_printf(out,
                    "  max_frames: %" PRIu64 "                  # frames of videos in a row; memory grows with it\n",
                    r->max_frames);
    if (r->template) put_string(out, "  template: ", r->template, "\n");
    if (r->too_long)
        text_printf(out,
                    "  too_long: cut                  # %" PRIu64
                    " conversations are longer than a row; drop leaves them out\n",
                    r->too_long);
    if (r->text && !r->plain) text_printf(out, "  train_on: assistant            # or: last, all\n");
    if (!r->data.validation.n && !(r->holdout > 0))
        text_printf(out, "  # validation: [...]            # add a file to evaluate on\n");
}

static void put_images(const struct suggestion *r, struct text *out)
{
    const int64_t side = r->model.masks->side(&r->model, r->image);
    if (r->decided.n) text_append(out, r->decided.at, r->decided.n);
    if (r->sample_memory)
        text_printf(out,
                    "  sample_memory: %" PRIu64
                    "             # MiB for each of data.threads: a slice of the largest volume\n",
                    r->sample_memory);
    text_printf(out, "  image_size: %" PRId64 "               # images are resized to this side; smaller is faster\n",
                r->image);
    if (r->cells && r->cells != side)
        text_printf(out,
                    "  # The store's masks have a side of %" PRId64 ", the loss is computed at %" PRId64
                    ": `plimsoll data pack --model %s` makes them equal.\n",
                    r->cells, side, r->name);
    if (r->embeddings && *r->freeze)
        text_printf(out, "  embeddings: use                # the encoder does not run; to train it too, set `off` and "
                         "leave out model.freeze\n");
    else if (r->embeddings)
        text_printf(out, "  embeddings: off                # those of the store are not used: %s\n", r->not_used.text);
    text_printf(out, "  max_masks: %" PRId64 "                 # masks per image in a batch; memory grows with it\n",
                r->masks);
    if (!*r->freeze)
        text_printf(out, "  # flip: 0.5                    # augmentation: flip, flip_vertical, turn, rotate, scale, "
                         "crop, brightness, contrast, gamma, noise\n");
}

static void put_data(const struct suggestion *r, struct text *out)
{
    text_printf(out, "data:\n  format: %s\n", r->data.set.format);
    put_list(out, "train", &r->data.train);
    if (r->data.validation.n) put_list(out, "validation", &r->data.validation);
    put_keys(&r->data, out);
    if (r->holdout > 0)
        text_printf(out,
                    "  holdout: %.4g                   # share of the %s held out for validation: %" PRIu64
                    " of %" PRIu64 "\n  split_seed: 0                  # random seed of the split\n",
                    r->holdout,
                    r->plain  ? "rows"
                    : r->text ? "conversations"
                              : "images",
                    r->split[1], r->split[0] + r->split[1]);
    if (r->warning.n) text_printf(out, "  # warning: %s\n", r->warning.at);
    if (r->sequence) put_rows(r, out);
    else put_images(r, out);
}

/* Puts the keys of training. Steps are counted as measure_run of train_begin.c does: batches run
 * across the ends of epochs, and with batch normalisation the last batch is a full one. Random
 * weights get a higher learning rate than pretrained ones. */
static void put_train(const struct suggestion *r, const char *out_folder, struct text *out)
{
    const bool masks = r->model.masks, whole = r->preset && r->model.batch_norm;
    const uint64_t batch = min_u64(8, r->samples), epochs = 10, each = (r->samples + batch - 1) / batch,
                   steps = (epochs * r->samples + (whole ? 0 : batch - 1)) / batch;
    text_printf(out,
                "\ntrain:\n  epochs: %" PRIu64 "                     # %" PRIu64 " steps of %" PRIu64 ", over %" PRIu64
                " %s\n  effective_batch: %" PRIu64 "\n",
                epochs, steps, batch, r->samples, r->text ? "rows" : "samples", batch);
    text_printf(out, "  learning_rate: %s           # for %s\n",
                r->preset ? masks ? "8e-4" : "1e-3"
                : masks   ? "1e-4"
                          : "2e-5",
                r->preset ? "random weights" : "pretrained weights");
    text_printf(out,
                "  schedule: cosine\n  warmup_steps: %" PRIu64
                "\n  weight_decay: 0.1\n  no_decay: [%s]\n  clip_norm: 1\n",
                min_u64(250, steps / 10), masks ? "\"*norm*\", \"*.bias\"" : "\"*norm.weight\"");
    if (r->held_out)
        text_printf(out, "  eval_every: %" PRIu64 "                # %s an epoch; the best model is kept\n", each,
                    r->samples % batch ? "about once" : "once");
    const bool answers = r->model.family->generates && r->model.whole != WHOLE_CHOOSES;
    if (r->held_out && answers && (r->max_images || r->max_patches || r->max_volumes))
        text_printf(out, "  eval_samples: 12               # held-out questions that each evaluation answers; "
                         "report.html shows them with their images\n");
    text_printf(out, "  save_every: %" PRIu64 "\n", each);
    put_string(out, "  out: ", out_folder, "\n");
}

void suggestion_write(const struct suggestion *r, const char *data, const char *out_folder, struct text *out)
{
    text_printf(out, "# %s on %s: %s, %" PRIu64 " %s to train on", r->name, data, r->data.what, r->samples,
                r->text ? "rows" : "samples");
    if (r->held_out) text_printf(out, ", %" PRIu64 " to evaluate on", r->held_out);
    text_printf(out, ".\n");
    for (int k = 0; k < 2; k++)
        if (r->unused[k])
            text_printf(out, "# Not used%s: %s.\n", k ? " of the files to evaluate on" : "", r->unused[k]);
    text_printf(out, COMMANDS
                "# `plimsoll train --help` describes every key. Paths are relative to the current directory.\n\n");
    put_string(out, r->preset ? "model:\n  preset: " : "model:\n  path: ", r->name, "");
    if (*r->freeze) {
        text_printf(out, "\n  freeze: [\"");
        for (const char *at = r->freeze; *at; at++) text_printf(out, *at == ',' ? "\", \"" : "%c", *at);
        text_printf(out, "\"]   # the store has the embeddings of this encoder");
    }
    text_printf(out, "\n\n");
    put_data(r, out);
    put_train(r, out_folder, out);
    text_printf(out, MEMORY);
}

int suggestion_try(const struct suggestion *r, const char *yaml, struct error *e)
{
    struct config c;
    if (!r->model.masks) return PL_OK;
    config_init(&c);
    int rc = config_read_text(&c, yaml, "the configuration", e);
    if (!rc) rc = config_check(&c, CONFIG_NEEDS_MODEL | CONFIG_NEEDS_DATA | CONFIG_NEEDS_TRAIN, e);
    if (!rc) rc = feed_try_images(&c, &r->model, FEED_TRAIN, SAMPLES_TRIED, e);
    if (!rc && config_validates(&c) && feed_try_images(&c, &r->model, FEED_VALIDATION, SAMPLES_TRIED, e))
        rc = error_prepend(e, "the part to evaluate on");
    config_free(&c);
    return rc;
}

/* --- images with classes or texts ------------------------------------------------------------- */

struct towers_data {
    char train[4096], validation[4096]; /* validation "": a tenth of train is held out */
    bool captions;
    struct labelled set;
    struct names classes; /* of a table, sorted */
};

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void list_classes(struct towers_data *f)
{
    for (uint32_t i = 0; i < f->set.samples.n && !f->set.folders && !f->captions; i++) {
        uint32_t k = 0;
        while (k < f->classes.n && strcmp(f->classes.at[k], f->set.samples.at[i].text)) k++;
        if (k == f->classes.n) vec_push(&f->classes, mem_string(f->set.samples.at[i].text));
    }
    if (f->classes.n) qsort(f->classes.at, f->classes.n, sizeof *f->classes.at, by_name);
}

/* Opens the images, with texts where the model has a text tower and the data have texts. */
static int open_labelled(struct towers_data *f, const char *model, struct error *e)
{
    char *path = f->train;
    struct labelled_options o = {.paths = &path, .n_paths = 1, .captions = true, .room = RECORD_MOST, .max_bad = 1};
    struct model m;
    struct error ignored;
    const bool texts = dir_exists(model) &&
                       !model_open_with(&m, model, &(struct model_choices){.head = HEAD_CONTRASTIVE}, &ignored);
    if (texts) model_close(&m);
    f->captions = texts && !labelled_open(&f->set, &o, &ignored);
    if (f->captions) return PL_OK;
    labelled_close(&f->set);
    o.captions = false;
    return labelled_open(&f->set, &o, e);
}

static void put_labelled(const struct towers_data *f, const char *model, bool preset, const char *data,
                         const char *folder, struct text *out)
{
    const uint64_t samples = f->set.samples.n, batch = min_u64(f->captions ? 256 : 32, samples);
    text_printf(out,
                "# %s on %s: %" PRIu64 " images with %s.\n" COMMANDS
                "# docs/guides/vision-towers.md explains it. Paths are relative to the current directory.\n\n",
                model, data, samples,
                f->captions      ? "texts"
                : f->set.folders ? "classes, which are folders"
                                 : "classes");
    put_string(out, preset ? "model:\n  preset: " : "model:\n  path: ", model, "\n");
    if (f->classes.n) put_list(out, "classes", &f->classes);
    text_printf(out, "\ndata:\n  format: %s\n", f->captions ? "captions" : "classes");
    put_string(out, "  train: ", f->train, "\n");
    if (*f->validation) put_string(out, "  validation: ", f->validation, "\n");
    else text_printf(out, "  holdout: 0.1                   # evaluate on a tenth of the images\n");
    text_printf(out,
                "\ntrain:\n  epochs: 10\n  effective_batch: %" PRIu64 "%s\n  learning_rate: %s            # for %s "
                "weights\n  schedule: cosine\n  warmup_ratio: 0.05\n  clip_norm: 1\n  eval_every: %" PRIu64 "\n",
                batch, f->captions ? "           # each other's negatives: a micro-batch is the whole batch" : "",
                preset ? "1e-3" : "1e-5", preset ? "random" : "pretrained", (samples + batch - 1) / batch);
    put_string(out, "  out: ", folder, "\n" MEMORY);
}

int suggest_labelled(const struct suggestion *r, const char *data, const char *folder, struct text *out,
                     struct error *e)
{
    struct towers_data f = {0};
    detect_class_folders(data, f.train, f.validation);
    int rc = open_labelled(&f, r->name, e);
    if (!rc) list_classes(&f), put_labelled(&f, r->name, r->preset, data, folder, out);
    names_free(&f.classes);
    labelled_close(&f.set);
    return rc;
}

/* --- the folder of the run -------------------------------------------------------------------- */

/* Appends a path as one name: "data/my set" is data-my-set. */
static void put_name(struct text *out, const char *path)
{
    for (const char *c = path; *c; c++) {
        bool kept = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '_';
        if (kept) text_printf(out, "%c", *c);
        else if (out->n && out->at[out->n - 1] != '-') text_printf(out, "-");
    }
    while (out->n && out->at[out->n - 1] == '-') out->at[--out->n] = 0;
}

void suggest_folder(const char *model, const char *data, struct text *out)
{
    enum { LONGEST = 64, KEPT = 40 };
    char here[4096];
    struct text name = {0};
    size_t n = strlen(model);
    while (n > 1 && model[n - 1] == '/') n--;
    size_t from = n, below = getcwd(here, sizeof here) ? strlen(here) : 0;
    while (from && model[from - 1] != '/') from--;
    if (below && !strncmp(data, here, below) && data[below] == '/') data += below;
    put_name(&name, data);
    text_printf(out, "runs/%.*s", (int)(n - from), model + from);
    if (name.n > LONGEST)
        text_printf(out, "-%04x-%s", (unsigned)(hash_bytes(name.at, name.n, 0) & 0xffff), name.at + name.n - KEPT);
    else if (name.n) text_printf(out, "-%s", name.at);
    size_t length = out->n;
    for (int i = 2; file_exists(out->at); i++) {
        out->at[out->n = length] = 0;
        text_printf(out, "-%d", i);
    }
    text_free(&name);
}
