/*
 * init.c: `plimsoll init --model X --data DIR`: prints a RUN.yaml for this model and this data.
 *
 * The command opens the model and the data with the readers that training uses and counts the
 * samples; the numbers in the file follow from these counts. Before it prints a configuration for
 * images, it reads some samples with it: what cannot be trained is refused here.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/data.h"
#include "cli/data_samples.h"
#include "cli/init.h"
#include "cli/init_text.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/text/tokens.h"
#include "io/json.h"
#include "models/masks.h"
#include "feed/embed.h"
#include "feed/feed.h"

enum {
    SAMPLES_READ = 64,
    SAMPLES_TRIED = 32,
    SEQUENCES_TRIED = 64,
    RECORDS = 4096,
    MOST_MASKS = 32,
    SCRATCH = 64 << 20
};

struct init_run {
    struct model model;
    bool preset;
    const char *name;        /* of the model */
    struct detected data;
    uint64_t samples;        /* to train on */
    uint64_t held_out;
    double holdout;          /* share of the samples; 0: none, or validation has its own files */
    uint64_t split[2];       /* with `holdout`: images or conversations to train on, and held out */
    struct text split_warning; /* what is wrong with that split */
    uint64_t sample_memory;  /* MiB that the slices of volumes take; 0: what is the standard suffices */
    int64_t image, masks, sequence;
    const char *template;    /* data.template; NULL: not given */
    uint64_t max_frames;     /* data.max_frames; 0: not given */
    uint64_t too_long;       /* conversations longer than a row */
    int64_t max_images;      /* conversations: images in a row; 0: none has any */
    int64_t cells;           /* side of the masks in a packed store; 0: not a packed store */
    bool embeddings;         /* the store has embeddings... */
    char freeze[64];         /* ...which the run uses: the pattern of the frozen encoder; "": it cannot, because: */
    struct error not_used;
    struct text endless;     /* conversations: why the model would not learn to stop; empty: it will */
    struct text decided;     /* the keys that were auto, as they were decided over the data */
    /* files without a partner, or conversations that cannot be used, of both parts; NULL: none */
    char *unused[2];
};

/* ---- the model ---- */

static int open_model(struct init_run *r, const char *name, struct error *e)
{
    r->name = name;
    int rc = model_find(&r->model, name, e);
    r->preset = !*r->model.path;
    return rc ? error_prepend(e, "--model") : PL_OK;
}

static bool is_plain(const struct init_run *r) { return !strcmp(r->data.format, "text"); }
static bool is_text(const struct init_run *r) { return is_plain(r) || !strcmp(r->data.format, "conversations"); }
static bool is_tokens(const struct init_run *r)
{
    return !strcmp(r->data.format, "tokens") || !strcmp(r->data.format, "bytes") || is_text(r);
}

/* Images with masks need a model that predicts masks, tokens a model with a vocabulary. */
static int check_model_matches_data(const struct init_run *r, struct error *e)
{
    const char *type = r->model.family->model_type;
    bool tokens = is_tokens(r);
    if (!r->model.masks && !r->model.vocabulary)
        return error_set(e, PL_USAGE,
                         "%s is a %s, which cannot be trained alone; use a SAM, a language model, or a CLIP or SigLIP",
                         r->name, type);
    if (tokens && r->model.masks)
        return error_set(e, PL_USAGE, "the data are %s, but %s is a %s, which needs images with masks", r->data.what,
                         r->name, type);
    if (!tokens && !r->model.masks)
        return error_set(e, PL_USAGE, "the data are %s, images with masks, but %s is a %s, which needs tokens",
                         r->data.what, r->name, type);
    return PL_OK;
}

/* ---- images ---- */

/* Reads some samples to find the number of masks per image, and the image size of a packed
 * store. */
static void scan_samples(struct init_run *r, const struct dataset *d)
{
    struct mask *records = mem_alloc(RECORDS * sizeof *records);
    const size_t room = r->sample_memory ? r->sample_memory << 20 : SCRATCH;
    void *scratch = mem_alloc(room);
    uint64_t n = dataset_count(d), n_read = min_u64(n, SAMPLES_READ);
    uint32_t most = 1;
    for (uint64_t i = 0; i < n_read; i++) {
        struct dataset_masks found;
        struct error ignored;
        if (dataset_masks(d, i * n / n_read, scratch, room, records, RECORDS, &found, &ignored)) continue;
        if (found.n > most) most = found.n;
        if (records[0].shape.kind == SHAPE_BITS && !records[0].shape.cells.id) r->cells = records[0].shape.cells.w;
    }
    struct dataset_image image;
    struct error ignored;
    r->image = r->model.image;
    if (!dataset_image(d, 0, scratch, room, &image, &ignored) && image.decoded && !d->format->label &&
        (int64_t)(image.stride / 3) % r->model.masks->patch == 0)
        r->image = (int64_t)(image.stride / 3);
    r->masks = min_i64(MOST_MASKS, (int64_t)align_up(most, 4));
    mem_free(scratch);
    mem_free(records);
}

/* "\n  # data.labels auto: ..." without the key: what was decided, as a comment. */
static void put_reason(struct text *out, bool (*print)(const struct dataset *, struct text *), const struct dataset *d)
{
    struct text line = {0};
    if (print(d, &line)) {
        const char *colon = strstr(line.at, ": ");
        text_printf(out, "  # %s\n", colon ? colon + 2 : line.at);
    }
    text_free(&line);
}

/* Training on the file decides as this command did, and so does every other command. */
static void put_decisions(struct init_run *r, const struct dataset *d)
{
    static const char *const kinds[] = {"auto", "binary", "classes", "instances"};
    struct text *out = &r->decided;
    if (dataset_survey(d)->labels) {
        put_reason(out, survey_print_labels, d);
        text_printf(out, "  labels: %s\n", kinds[d->labels.kind]);
        if (d->labels.threshold) text_printf(out, "  threshold: %u\n", d->labels.threshold);
        if (d->labels.ignore > 0) text_printf(out, "  ignore: %d\n", d->labels.ignore);
    }
    if (dataset_survey(d)->range_decided || dataset_survey(d)->volumes) {
        put_reason(out, survey_print_range, d);
        text_printf(out, "  range: %s\n",
                    d->range.kind == RANGE_WINDOW ? "window"
                    : d->range.kind == RANGE_FULL ? "full"
                                                  : "percentiles");
        if (d->range.kind == RANGE_WINDOW)
            text_printf(out, "  window: [%.10g, %.10g]\n", d->range.window[0], d->range.window[1]);
    }
    struct text line = {0};
    for (int k = 0; survey_next_warning(d, &k, &line); text_free(&line))
        text_printf(out, "  # warning: %s\n", line.at), log_warn("%s", line.at);
    if (dataset_print_left(d, false, &line)) text_printf(out, "  # %s\n", line.at);
    text_free(&line);
}

static void keep_unused(struct init_run *r, bool validation, const struct dataset *d)
{
    if (dataset_unpaired(d)) r->unused[validation] = mem_string(dataset_unpaired(d));
}

/* Whether the store's embeddings are those that this model's encoder would compute, and can be
 * trained from. */
static void find_embeddings(struct init_run *r, const struct packed_embeddings *x)
{
    struct packed_embeddings own = {0};
    struct error *e = &r->not_used;
    r->embeddings = x;
    if (!x) return;
    if (r->preset) error_set(e, PL_USAGE, "the encoder of a preset has random weights");
    else if (embed_describe(NULL, &r->model, r->image, &own, e)) return;
    else if (own.layers != x->layers || own.weights != x->weights)
        error_set(e, PL_USAGE, "they were made with %s, which has another encoder", x->model);
    else if (embed_pattern(&r->model, r->image, r->freeze, e)) r->freeze[0] = 0;
}

static void note_largest(struct init_run *r, const struct dataset *d)
{
    const uint64_t mib = (uint64_t)ceil_div((int64_t)d->largest, 1 << 20);
    if (d->largest > loader_default_room(d->format->name, false) && mib > r->sample_memory) r->sample_memory = mib;
}

static int open_images(struct init_run *r, struct error *e)
{
    struct dataset *d;
    struct dataset_options o = detected_options(&r->data, false);
    if (dataset_open(&d, &o, e)) return e->code;
    uint64_t n = r->samples = dataset_count(d);
    note_largest(r, d);
    scan_samples(r, d);
    find_embeddings(r, dataset_embeddings(d));
    put_decisions(r, d);
    keep_unused(r, false, d);
    const struct dataset_options decided = {.labels = d->labels.kind,
                                            .ignore = d->labels.ignore,
                                            .threshold = d->labels.threshold,
                                            .range = d->range};
    if (detected_validation(&r->data)) {
        o = detected_options(&r->data, true);
        o.labels = decided.labels, o.ignore = decided.ignore, o.threshold = decided.threshold, o.range = decided.range;
        dataset_close(d);
        if (dataset_open(&d, &o, e)) return e->code;
        r->held_out = dataset_count(d);
        note_largest(r, d);
        keep_unused(r, true, d);
    } else if (n > 1) { /* hold out a tenth, at least one sample */
        r->holdout = n >= 10 ? 0.1 : 1.0 / (double)n;
        r->held_out = dataset_held_out(d, r->holdout, 0, &r->split_warning);
        r->split[0] = r->samples = n - r->held_out;
        r->split[1] = r->held_out;
    }
    dataset_close(d);
    return PL_OK;
}

/* Reads samples as training does, with the configuration that is going to be printed. */
static int try_images(const struct init_run *r, const char *yaml, struct error *e)
{
    struct config c;
    config_init(&c);
    int rc = config_read_text(&c, yaml, "the configuration", e);
    if (!rc) rc = config_check(&c, CONFIG_NEEDS_MODEL | CONFIG_NEEDS_DATA | CONFIG_NEEDS_TRAIN, e);
    if (!rc) rc = feed_try_images(&c, &r->model, FEED_TRAIN, SAMPLES_TRIED, e);
    if (!rc && config_validates(&c) && feed_try_images(&c, &r->model, FEED_VALIDATION, SAMPLES_TRIED, e))
        rc = error_prepend(e, "the part to evaluate on");
    config_free(&c);
    return rc;
}

/* ---- tokens ---- */

static int count_tokens(const struct init_run *r, const struct names *paths, uint64_t *n, struct error *e)
{
    struct tokens t;
    struct tokens_options o = {.paths = paths->at,
                               .n_paths = paths->n,
                               .sequence = r->sequence,
                               .vocab_size = r->model.vocabulary,
                               .bytes = !strcmp(r->data.format, "bytes")};
    *n = 0;
    if (!paths->n) return PL_OK;
    if (tokens_open(&t, &o, e)) return e->code;
    *n = tokens_count(&t);
    tokens_close(&t);
    return PL_OK;
}

/* Reads samples that are spread over the files, as training does: ids outside of the vocabulary are
 * an error. */
static int try_tokens(const struct init_run *r, const struct names *paths, struct error *e)
{
    struct tokens t;
    struct tokens_options o = {.paths = paths->at,
                               .n_paths = paths->n,
                               .sequence = r->sequence,
                               .vocab_size = r->model.vocabulary,
                               .bytes = !strcmp(r->data.format, "bytes")};
    if (!paths->n) return PL_OK;
    if (tokens_open(&t, &o, e)) return e->code;
    const uint64_t n = tokens_count(&t), tried = min_u64(n, SEQUENCES_TRIED);
    int32_t *ids = mem_alloc((size_t)r->sequence * sizeof *ids);
    int rc = PL_OK;
    for (uint64_t i = 0; i < tried && !rc; i++) rc = tokens_read(&t, i * n / tried, ids, e);
    mem_free(ids);
    tokens_close(&t);
    return rc;
}

static uint64_t count_positions(const struct init_run *r, uint64_t standard)
{
    struct bump b = {0};
    struct value *config;
    struct error ignored;
    uint64_t positions = standard;
    if (!json_parse(r->model.config_text, strlen(r->model.config_text), &b, &config, &ignored))
        value_opt_uint(config, "max_position_embeddings", &positions, &ignored);
    bump_free(&b);
    return positions;
}

/* A preset has no tokenizer. */
static int open_text(struct init_run *r, struct error *e)
{
    struct init_text t = {.plain = is_plain(r),
                          .tokenizer = *r->model.path ? r->model.path : NULL,
                          .template = r->template,
                          .max_frames = (int64_t)r->max_frames,
                          .vocabulary = r->model.vocabulary,
                          .positions = (int64_t)count_positions(r, 0)};
    if (!t.tokenizer)
        return error_set(
            e, PL_USAGE,
            "%s is a preset, which has no tokenizer; give --model a folder with tokenizer.json or tokenizer.model%s",
            r->name, t.plain ? ", or train on the bytes of the text (`init --bytes`)" : "");
    if (r->model.images && !r->data.images) r->data.images = init_find_images(r->data.train.at[0], &r->data.memory);
    t.images = r->data.images;
    const int rc = init_measure_text(&t, &r->data.train, &r->data.validation, e);
    r->endless = t.endless;
    memcpy(r->unused, t.left_out, sizeof r->unused);
    if (rc) return rc;
    for (int k = 0; k < 2; k++)
        if (r->unused[k]) log_warn("data.%s: %s", k ? "validation" : "train", r->unused[k]);
    if (r->endless.n) log_warn("data.train: %s", r->endless.at);
    r->sequence = t.sequence;
    r->max_images = t.max_images;
    r->samples = t.rows[0];
    r->held_out = t.rows[1];
    r->holdout = t.holdout;
    memcpy(r->split, t.samples, sizeof r->split);
    r->too_long = t.too_long[0] + (t.holdout > 0 ? t.too_long[1] : 0);
    return PL_OK;
}

/* Finds the longest sequence, up to 1024 and the model's limit, of which both datasets have at
 * least one. */
static int open_tokens(struct init_run *r, struct error *e)
{
    const uint64_t positions = count_positions(r, 1024);
    int rc = PL_FAIL;
    for (r->sequence = (int64_t)min_u64(positions, 1024); rc && r->sequence >= 2; r->sequence /= 2) {
        rc = count_tokens(r, &r->data.train, &r->samples, e);
        if (!rc) rc = count_tokens(r, &r->data.validation, &r->held_out, e);
        if (!rc) break;
    }
    if (!rc) e->code = PL_OK; /* attempts with longer sequences set it */
    if (!rc) rc = try_tokens(r, &r->data.train, e);
    if (!rc) rc = try_tokens(r, &r->data.validation, e);
    return rc;
}

/* ---- the file ---- */

static void put_string(struct text *out, const char *s)
{
    struct json_writer w = {.out = out};
    json_put_string(&w, NULL, s);
}

static void put_list(struct text *out, const char *key, const struct names *l)
{
    text_printf(out, "  %s: [", key);
    for (uint32_t i = 0; i < l->n; i++) {
        if (i) text_printf(out, ", ");
        put_string(out, l->at[i]);
    }
    text_printf(out, "]\n");
}

/* The keys that say how images and masks are found. */
static void put_keys(const struct detected *f, struct text *out)
{
    const struct { const char *key, *value;
    } keys[] = {{"images", f->images},
                {"masks", f->masks},
                {"validation_images", f->validation_images},
                {"validation_masks", f->validation_masks},
                {"image_prefix", f->image_prefix},
                {"image_suffix", f->image_suffix},
                {"mask_prefix", f->mask_prefix},
                {"mask_suffix", f->mask_suffix},
                {"train_list", f->train_list},
                {"validation_list", f->validation_list},
                {"image_column", f->image_column},
                {"mask_column", f->mask_column},
                {"split_column", f->split_column}};
    for (size_t i = 0; i < COUNT(keys); i++) {
        if (!keys[i].value) continue;
        text_printf(out, "  %s: ", keys[i].key);
        put_string(out, keys[i].value);
        text_printf(out, "\n");
    }
    if (f->voc)
        text_printf(out,
                    "  labels: classes\n  ignore: 255                    # the borders of objects in Pascal VOC\n");
}

static void put_data(const struct init_run *r, struct text *out)
{
    const struct detected *f = &r->data;
    text_printf(out, "data:\n  format: %s\n", f->format);
    put_list(out, "train", &f->train);
    if (f->validation.n) put_list(out, "validation", &f->validation);
    put_keys(f, out);
    if (f->train_split)
        text_printf(out, "  train_split: %s               # the table's split column\n  validation_split: %s\n",
                    f->train_split, f->validation_split);
    if (r->holdout > 0)
        text_printf(out,
                    "  holdout: %.4g                   # share of the %s held out for validation: %llu of %llu\n  "
                    "split_seed: 0                  # random seed of the split\n",
                    r->holdout,
                    is_plain(r)  ? "rows"
                    : is_text(r) ? "conversations"
                                 : "images",
                    (unsigned long long)r->split[1], (unsigned long long)(r->split[0] + r->split[1]));
    if (r->split_warning.n) text_printf(out, "  # warning: %s\n", r->split_warning.at);
    if (r->sequence) {
        text_printf(out, "  sequence: %lld                 # tokens in a %s\n", (long long)r->sequence,
                    is_plain(r)  ? "row"
                    : is_text(r) ? "row, which conversations share"
                                 : "sample");
        if (r->max_images)
            text_printf(out, "  max_images: %lld                  # images in a row; memory grows with it\n",
                        (long long)r->max_images);
        if (r->max_frames)
            text_printf(out, "  max_frames: %llu                  # frames of videos in a row; memory grows with it\n",
                        (unsigned long long)r->max_frames);
        if (r->template) text_printf(out, "  template: "), put_string(out, r->template), text_printf(out, "\n");
        if (r->endless.n) text_printf(out, "  # warning: %s\n", r->endless.at);
        if (r->too_long)
            text_printf(
                out,
                "  too_long: cut                  # %llu conversations are longer than a row; drop leaves them out\n",
                (unsigned long long)r->too_long);
        if (is_text(r) && !is_plain(r)) text_printf(out, "  train_on: assistant            # or: last, all\n");
        if (!f->validation.n && !(r->holdout > 0))
            text_printf(out, "  # validation: [...]            # add a file to evaluate on\n");
        return;
    }
    if (r->decided.n) text_append(out, r->decided.at, r->decided.n);
    if (r->sample_memory)
        text_printf(out,
                    "  sample_memory: %llu             # MiB for each of data.threads: a slice of the largest volume\n",
                    (unsigned long long)r->sample_memory);
    text_printf(out, "  image_size: %lld               # images are resized to this side; smaller is faster\n",
                (long long)r->image);
    if (r->cells && r->cells != r->model.masks->side(&r->model, r->image))
        text_printf(out,
                    "  # The store's masks have a side of %lld, the loss is computed at %lld: `plimsoll data pack "
                    "--model %s` makes them equal.\n",
                    (long long)r->cells, (long long)r->model.masks->side(&r->model, r->image), r->name);
    if (r->embeddings && *r->freeze)
        text_printf(out, "  embeddings: use                # the encoder does not run; to train it too, set `off` and "
                         "leave out model.freeze\n");
    else if (r->embeddings)
        text_printf(out, "  embeddings: off                # those of the store are not used: %s\n", r->not_used.text);
    text_printf(out, "  max_masks: %lld                 # masks per image in a batch; memory grows with it\n",
                (long long)r->masks);
    if (!*r->freeze)
        text_printf(out, "  # flip: 0.5                    # augmentation: flip, flip_vertical, turn, rotate, scale, "
                         "crop, brightness, contrast, gamma, noise\n");
}

/* Counts steps as measure_run of train_begin.c does: batches run across the ends of epochs, and
 * with batch normalisation the last batch is a full one. */
static uint64_t count_steps(const struct init_run *r, uint64_t epochs, uint64_t batch)
{
    const bool whole = r->preset && r->model.batch_norm;
    return (epochs * r->samples + (whole ? 0 : batch - 1)) / batch;
}

/* Random weights get a higher learning rate than pretrained ones. */
static void put_train(const struct init_run *r, const char *out_folder, struct text *out)
{
    bool masks = r->model.masks;
    uint64_t batch = min_u64(8, r->samples), epochs = 10, each = (r->samples + batch - 1) / batch,
             steps = count_steps(r, epochs, batch);
    text_printf(out, "\ntrain:\n  epochs: %llu                     # %llu steps of %llu, over %llu %s\n",
                (unsigned long long)epochs, (unsigned long long)steps, (unsigned long long)batch,
                (unsigned long long)r->samples, is_text(r) ? "rows" : "samples");
    text_printf(out, "  effective_batch: %llu\n", (unsigned long long)batch);
    text_printf(out, "  learning_rate: %s           # for %s\n",
                r->preset ? masks ? "8e-4" : "1e-3"
                : masks   ? "1e-4"
                          : "2e-5",
                r->preset ? "random weights" : "pretrained weights");
    text_printf(out, "  schedule: cosine\n  warmup_steps: %llu\n", (unsigned long long)min_u64(250, steps / 10));
    text_printf(out, "  weight_decay: 0.1\n  no_decay: [%s]\n  clip_norm: 1\n",
                masks ? "\"*norm*\", \"*.bias\"" : "\"*norm.weight\"");
    if (r->held_out)
        text_printf(out, "  eval_every: %llu                # %s an epoch; the best model is kept\n",
                    (unsigned long long)each, r->samples % batch ? "about once" : "once");
    if (r->held_out && r->max_images)
        text_printf(out, "  eval_samples: 12               # held-out questions that each evaluation answers; "
                         "report.html shows them with their images\n");
    text_printf(out, "  save_every: %llu\n  out: ", (unsigned long long)each);
    put_string(out, out_folder);
    text_printf(out, "\n");
}

static void put_all(const struct init_run *r, const char *data, const char *out_folder, struct text *out)
{
    text_printf(out, "# %s on %s: %s, %llu %s to train on", r->name, data, r->data.what, (unsigned long long)r->samples,
                is_text(r) ? "rows" : "samples");
    if (r->held_out) text_printf(out, ", %llu to evaluate on", (unsigned long long)r->held_out);
    text_printf(out, ".\n");
    for (int k = 0; k < 2; k++)
        if (r->unused[k])
            text_printf(out, "# Not used%s: %s.\n", k ? " of the files to evaluate on" : "", r->unused[k]);
    text_printf(
        out,
        "#\n#   plimsoll plan  RUN.yaml        memory and time, before anything runs\n#   plimsoll train "
        "RUN.yaml\n#\n# `plimsoll train --help` describes every key. Paths are relative to the current directory.\n\n");
    text_printf(out, "model:\n  %s: ", r->preset ? "preset" : "path");
    put_string(out, r->name);
    if (*r->freeze)
        text_printf(out, "\n  freeze: [\"%s\"]   # the store has the embeddings of this encoder", r->freeze);
    text_printf(out, "\n\n");
    put_data(r, out);
    put_train(r, out_folder, out);
    text_printf(out, "\nmemory:\n  budget: auto                   # the memory of this machine, or of its GPU; or a "
                     "size such as 8GiB. The fastest plan that fits is used\n");
}

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

/* "runs/MODEL-DATA": the last part of the model's path and the whole path of the data, as seen from
 * the current folder, so that each dataset has a folder of its own. A number is added if that
 * folder exists. A long name keeps its end and gets a hash of the whole. */
static void default_folder(const char *model, const char *data, struct text *out)
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

/* ---- the command ---- */

/* The first file of a folder; a file itself. */
static void first_file(const char *data, struct text *path)
{
    struct names l = {0};
    struct error ignored;
    text_printf(path, "%s", data);
    if (dir_exists(data) && !dir_list(data, &l, &ignored))
        for (uint32_t i = 0; i < l.n && dir_exists(path->at); i++) {
            path->n = 0;
            text_printf(path, "%s/%s", data, l.at[i]);
        }
    names_free(&l);
}

/* The error for a language model and data of no known format: what the reader of tokens says about
 * the file, because that message has what to do. */
static int refuse_tokens(const char *data, struct error *e)
{
    struct text path = {0};
    struct tokens t;
    first_file(data, &path);
    struct tokens_options o = {.paths = &path.at, .n_paths = 1, .sequence = 2, .vocab_size = INT32_MAX};
    /* e keeps the detection's error */
    if (file_exists(path.at) && !dir_exists(path.at) && !tokens_open(&t, &o, e)) tokens_close(&t);
    text_free(&path);
    return e->code;
}

static int init(const char *model, const char *data, bool bytes, const char *template, uint64_t max_frames,
                const struct samples_options *o, const char *out_folder, struct error *e)
{
    struct init_run r = {.template = template, .max_frames = max_frames};
    struct text folder = {0}, text = {0};
    int rc = open_model(&r, model, e);
    if (!rc && r.model.tower) {
        default_folder(model, data, &folder);
        rc = init_labelled(model, r.preset, data, out_folder ? out_folder : folder.at, e);
        text_free(&folder);
        model_close(&r.model);
        return rc;
    }
    if (!rc) rc = detect_data(data, bytes, o, &r.data, e);
    if (rc && r.model.vocabulary && !r.model.masks) rc = refuse_tokens(data, e);
    if (!rc) rc = check_model_matches_data(&r, e);
    if (!rc && max_frames && (!r.model.images || max_frames > 4096))
        rc = error_set(e, PL_USAGE, "--max-frames: expected at most 4096, and a model that takes images; %s is a %s",
                       r.name, r.model.family->model_type);
    if (!rc && (r.model.masks ? open_images(&r, e) : is_text(&r) ? open_text(&r, e) : open_tokens(&r, e)))
        rc = error_prepend(e, "%s (%s)", data, r.data.what);
    if (!rc) {
        default_folder(model, data, &folder);
        put_all(&r, data, out_folder ? out_folder : folder.at, &text);
        if (r.model.masks && try_images(&r, text.at, e)) rc = error_prepend(e, "%s (%s)", data, r.data.what);
        if (!rc) fputs(text.at, stdout);
    }
    mem_free(r.unused[0]);
    mem_free(r.unused[1]);
    text_free(&folder);
    text_free(&text);
    text_free(&r.decided);
    text_free(&r.split_warning);
    text_free(&r.endless);
    detected_free(&r.data);
    model_close(&r.model);
    return rc;
}

static int run(int argc, char **argv, struct error *e)
{
    const char *model = NULL, *data = NULL, *out = NULL, *template = NULL;
    bool help, bytes = false;
    uint64_t max_frames = 0;
    struct samples_options o = {0};
    const struct data_option table[] = {{"--model", DATA_TEXT, &model},
                                        {"--data", DATA_TEXT, &data},
                                        {"--out", DATA_TEXT, &out},
                                        {"--bytes", DATA_SWITCH, &bytes},
                                        {"--template", DATA_TEXT, &template},
                                        {"--max-frames", DATA_POSITIVE, &max_frames},
                                        FOLDER_OPTIONS(o)};
    if (init_is_from(argc, argv)) return init_from(argc, argv, e);
    int rc = data_options(&command_init, table, COUNT(table), argc, argv, NULL, &help, e);
    if (rc || help) return rc;
    if (!model)
        return error_set(e, PL_USAGE, "no model is given: add --model with a folder or a preset such as sam-tiny");
    if (!data) return error_set(e, PL_USAGE, "no data is given: add --data with a folder or a file");
    return init(model, data, bytes, template, max_frames, &o, out, e);
}

const struct command command_init =
    {"init",
     "init --model MODEL --data DIR [--bytes] [--template FILE] [--max-frames N] [--out FOLDER] > RUN.yaml\n"
     "       plimsoll init --config-from FILE... [--ranks N] [--set key=value]... > RUN.yaml",
     "Detects the format of the data, counts the samples, and prints a configuration that trains the model on them.\n"
     "\n"
     "  --model MODEL   a folder with config.json, or a preset such as sam-tiny\n"
     "  --data DIR      images and masks, in two folders or in one, also in train/ and val/ (Kvasir-SEG, ISIC,\n"
     "                  nnU-Net, Pascal VOC, Cityscapes); COCO's instances_*.json, also of Roboflow; a .csv or\n"
     "                  .tsv with columns of images and masks; tar shards, or extracted folders of x.jpg +\n"
     "                  x.json; *.pack; index.json + masks.u8; tokens: .npy, .bin, .tokens, .safetensors;\n"
     "                  conversations: .json or .jsonl of LLaVA, ShareGPT, OpenAI messages, Alpaca, prompt and\n"
     "                  completion, or text; plain text: .txt; for a vision tower images in folders of their classes, "
     "also in\n"
     "                  train/ and val/, or a table of images with classes or texts\n"
     "  --bytes         the data are files of any kind, and each byte is a token (data.format: bytes)\n"
     "  --template FILE conversations: a chat template (data.template), if the model's folder has none; or chatml, "
     "mistral_instruct, vicuna_v1\n"
     "  --max-frames N  conversations with videos: frames in a row (data.max_frames); without it such conversations "
     "are left out\n"
     "  --out FOLDER    the value of train.out; default: runs/MODEL-DATA\n"
     "  --config-from FILE  instead of a model and data: prints what the configuration of another program says "
     "(Hugging Face\n"
     "                  TrainingArguments, TRL, LLaMA-Factory, ms-swift, Axolotl, LLaVA, DeepSpeed, Accelerate, a "
     "training command\n"
     "                  line, values in Python's notation), with where each value comes from; --set key=value changes "
     "or adds keys,\n"
     "                  and --ranks N is the number of ranks (parallel.ranks)\n" FOLDER_HELP,
     run};
