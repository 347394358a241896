/*
 * dataset.c: the common part of all formats: paths, splits, names, and masks to bits (see
 * dataset.h).
 *
 * A format numbers the samples of its files from 0 to total - 1. A split is an ascending list of
 * these numbers; sample i of the dataset is number chosen[i].
 */
#include "data/dataset.h"

#include <errno.h>
#include <strings.h>
#include <unistd.h>

#include "base/random.h"
#include "data/order.h"
#include "data/formats/memmap.h"
#include "data/masks/polygon.h"
#include "io/file.h"

static const struct dataset_format *const formats[] = {&dataset_sa1b, &dataset_coco,   &dataset_pairs,
                                                       &dataset_csv,  &dataset_packed, &dataset_parquet};

/* --- for the formats ------------------------------------------------------------------- */

static bool named_already(const struct names *l, const char *path)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (!strcmp(l->at[i], path)) return true;
    return false;
}

int dataset_paths(const struct dataset_options *o, struct names *out, struct error *e)
{
    *out = (struct names){0};
    int rc = PL_OK;
    for (uint32_t i = 0; i < o->n_paths && !rc; i++) {
        struct names found = {0};
        rc = file_glob(o->paths[i], &found, e);
        if (!rc && !found.n) rc = error_set(e, PL_USAGE, "%s: there is no such file or folder", o->paths[i]);
        for (uint32_t k = 0; k < found.n && !rc; k++)
            if (!named_already(out, found.at[k])) vec_push(out, mem_string(found.at[k]));
        names_free(&found);
    }
    if (!rc && !out->n) rc = error_set(e, PL_USAGE, "no files are given: set paths or patterns");
    if (rc) names_free(out);
    return rc;
}

void dataset_warn_unpaired(const struct dataset *d, const struct dataset_options *o, const char *path)
{
    const struct dataset_split *s = &o->split;
    bool same_files = s->part && *s->part == 'v' && (s->fraction > 0 || s->list || s->glob || s->column);
    if (d->unpaired.n && s->part && !same_files) log_warn("%s: %s", path, d->unpaired.at);
}

/* --- splits ---------------------------------------------------------------------------- */

static int compare_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Reads the lines of a list, sorted, without blank lines and comments (#). */
static int read_list(const char *path, char **text, struct names *lines, struct error *e)
{
    size_t n;
    char *rest;
    if (file_read(path, 1ull << 30, text, &n, e)) return e->code;
    for (char *line = strtok_r(*text, "\r\n", &rest); line; line = strtok_r(NULL, "\r\n", &rest)) {
        while (*line == ' ' || *line == '\t') line++;
        size_t length = strlen(line);
        while (length && (line[length - 1] == ' ' || line[length - 1] == '\t')) line[--length] = 0;
        if (length && *line != '#') vec_push(lines, line);
    }
    if (lines->n) qsort(lines->at, lines->n, sizeof *lines->at, compare_text);
    return PL_OK;
}

/* Reports whether a list names a sample by its name, its key or its group. Marks the lines that
 * matched. */
static bool listed(const struct names *lines, bool *used, const char *name, const char *key, const char *group)
{
    const char *const words[] = {name, key, group};
    bool found = false;
    for (size_t i = 0; i < COUNT(words) && lines->n; i++) {
        char **line = bsearch(&words[i], lines->at, lines->n, sizeof *lines->at, compare_text);
        if (line) found = used[line - lines->at] = true;
    }
    return found;
}

/* Checks that a list matches a sample: it may name samples of other shards, but one without any
 * match is an error. */
static int check_list(const char *path, const struct names *lines, const bool *used, struct error *e)
{
    uint32_t unknown = 0, first = 0;
    for (uint32_t i = lines->n; i-- > 0;)
        if (!used[i]) unknown++, first = i;
    if (!lines->n) return error_set(e, PL_USAGE, "%s names no sample: expected one name per line", path);
    if (unknown == lines->n)
        return error_set(e, PL_USAGE,
                         "none of the %u names in %s is the name of a sample in this dataset (the first is %s); "
                         "`plimsoll data verify` and the log print names", lines->n, path, lines->at[first]);
    if (unknown)
        log_warn("%s: %u of its %u names match no sample in this dataset, such as %s", path, unknown, lines->n,
                 lines->at[first]);
    return PL_OK;
}

static bool group_of(const struct dataset *d, uint64_t i, char *out, size_t room)
{
    if (d->format->split_group && d->format->split_group(d, i, out, room)) return true;
    if (!d->folders) return false;
    const char *key;
    d->format->describe(d, i, out, room, &key);
    char *slash = strrchr(out, '/');
    if (slash) *slash = 0;
    return slash;
}

/* Selects the samples that match the list, the pattern and the column. */
static int filter(const struct dataset *d, const struct dataset_split *s, uint32_t *to, uint64_t *n, struct error *e)
{
    char *text = NULL, name[1024], group[1024];
    struct names lines = {0};
    *n = 0;
    if (s->list && read_list(s->list, &text, &lines, e)) return e->code;
    bool *used = mem_alloc((lines.n + 1) * sizeof *used);
    for (uint64_t i = 0; i < d->total; i++) {
        const char *key = "";
        d->format->describe(d, i, name, sizeof name, &key);
        if (!group_of(d, i, group, sizeof group)) group[0] = 0;
        if (s->list && !listed(&lines, used, name, key, group)) continue;
        if (s->glob && !pattern_match(s->glob, name) && !pattern_match(s->glob, key) &&
            !(*group && pattern_match(s->glob, group)))
            continue;
        if (s->column) {
            const char *value = d->format->split ? d->format->split(d, i) : NULL;
            if (!value || strcasecmp(value, s->column)) continue; /* Train, TRAIN and train are one part */
        }
        to[(*n)++] = (uint32_t)i;
    }
    int rc = s->list ? check_list(s->list, &lines, used, e) : PL_OK;
    mem_free(used);
    vec_free(&lines);
    mem_free(text);
    return rc;
}

/* Sorts samples by the hash of their group's name, or of their own, so that the order of files
 * does not matter. `samples` NULL: the first n. */
static struct ranked *rank_samples(const struct dataset *d, uint64_t seed, const uint32_t *samples, uint64_t n)
{
    struct ranked *ranks = mem_alloc((n + 1) * sizeof *ranks);
    const uint64_t key = random_key(seed, "split");
    char name[1024];
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t number = samples ? samples[i] : i;
        const char *ignored;
        if (!group_of(d, number, name, sizeof name)) d->format->describe(d, number, name, sizeof name, &ignored);
        ranks[i] = (struct ranked){hash_bytes(name, strlen(name), key), number};
    }
    return ranks;
}

/* Reports whether a name looks like "case_z012". */
static bool looks_like_slice(const char *name)
{
    const char *end = name + strlen(name), *at = end;
    while (at > name && at[-1] >= '0' && at[-1] <= '9') at--;
    return end - at >= 3 && at - name > 2 && at[-2] == '_' && strchr("xyzp", at[-1]);
}

/* Prints what is wrong with a split by fraction, in one line; nothing if all is well. */
static void judge_split(const struct dataset *d, const struct ranked *ranks, uint64_t n, struct text *out)
{
    char name[1024];
    const char *key;
    uint64_t slices = 0;
    if (holdout_one_group(ranks, n)) {
        if (!group_of(d, ranks[0].sample, name, sizeof name))
            d->format->describe(d, ranks[0].sample, name, sizeof name, &key);
        text_printf(out, "all %llu samples are of one group, %s: data.holdout holds out some of them, which are nearly "
                    "those that are trained on, so that scores will be too high; evaluate on another %s",
                    (unsigned long long)n, name, d->format->slice ? "volume" : "one");
        return;
    }
    for (uint64_t i = 0; i < n && !d->format->label; i++) {
        if (group_of(d, ranks[i].sample, name, sizeof name)) return;
        d->format->describe(d, ranks[i].sample, name, sizeof name, &key);
        slices += looks_like_slice(name);
    }
    if (2 * slices > n)
        text_printf(out,
            "its samples look like slices of volumes, such as %s, and the store does not say which belong together: "
            "data.holdout holds out slices of volumes that are trained on, so that scores will be too high; "
            "make the store again with `plimsoll data pack`", name);
}

/* Keeps the samples that are held out, or the rest. */
static void select_fraction(const struct dataset *d, const struct dataset_split *s, uint32_t *chosen, uint64_t *n)
{
    struct text warning = {0};
    struct ranked *ranks = rank_samples(d, s->seed, chosen, *n);
    const uint64_t cut = holdout_cut(ranks, *n, s->fraction), from = s->rest ? cut : 0, to = s->rest ? *n : cut;
    if (s->part && s->rest) judge_split(d, ranks, *n, &warning); /* once, for the part to train on */
    if (warning.n) log_warn("data.train: %s", warning.at);
    for (uint64_t i = from; i < to; i++) chosen[i - from] = (uint32_t)ranks[i].sample;
    *n = to - from;
    if (*n) qsort(chosen, *n, sizeof *chosen, compare_u32);
    mem_free(ranks);
    text_free(&warning);
}

uint64_t dataset_held_out(const struct dataset *d, double fraction, uint64_t seed, struct text *warning)
{
    struct ranked *ranks = rank_samples(d, seed, d->chosen, d->n);
    const uint64_t cut = holdout_cut(ranks, d->n, fraction);
    judge_split(d, ranks, d->n, warning);
    mem_free(ranks);
    return cut;
}

static int apply_split(struct dataset *d, const struct dataset_split *s, struct error *e)
{
    d->n = d->total;
    if (s->fraction < 0 || s->fraction >= 1)
        return error_set(e, PL_USAGE, "the split is %g of the samples; expected a fraction between 0 and 1",
                         s->fraction);
    if (!s->list && !s->glob && !s->column && s->fraction == 0) return PL_OK;
    if (d->total > UINT32_MAX)
        return error_set(e, PL_USAGE, "%llu samples are too many to be split", (unsigned long long)d->total);
    d->chosen = mem_alloc((size_t)d->total * sizeof *d->chosen);
    if (filter(d, s, d->chosen, &d->n, e)) return e->code;
    if (s->fraction > 0) select_fraction(d, s, d->chosen, &d->n);
    d->fingerprint = hash_bytes(d->chosen, (size_t)d->n * sizeof *d->chosen, d->fingerprint);
    return PL_OK;
}

/* --- the interface ------------------------------------------------------------------------ */

/* Refuses files or a split without a sample: the message names the path and the keys. */
static int refuse_empty(const struct dataset *d, const struct dataset_options *o, struct error *e)
{
    const struct dataset_split *s = &o->split;
    const char *part = s->part ? s->part : "*", *first = o->n_paths ? o->paths[0] : "(no path)",
               *more = o->n_paths > 1 ? " and others" : "";
    if (!d->total) return error_set(e, PL_USAGE, "%s%s: no sample has both an image and masks", first, more);
    struct text keys = {0};
    if (s->list) text_printf(&keys, ", data.%s_list is %s", part, s->list);
    if (s->glob) text_printf(&keys, ", data.%s_match is %s", part, s->glob);
    if (s->column) text_printf(&keys, ", data.%s_split is %s", part, s->column);
    if (s->fraction > 0) text_printf(&keys, ", data.holdout is %g", s->fraction);
    int rc = error_set(e, PL_USAGE, "%s%s: the split selects none of %llu samples: %s", first, more,
                       (unsigned long long)d->total, keys.at + 2);
    text_free(&keys);
    return rc;
}

int dataset_open(struct dataset **out, const struct dataset_options *o, struct error *e)
{
    struct dataset *d = mem_alloc(sizeof *d);
    *out = NULL;
    for (size_t i = 0; i < COUNT(formats); i++)
        if (!strcmp(o->format, formats[i]->name)) d->format = formats[i];
    if (d->format == &dataset_packed && memmap_is_index(o)) d->format = &dataset_memmap; /* the store's other layout */
    if (!d->format) {
        mem_free(d);
        return error_set(e, PL_USAGE,
                         "there is no data format %s; the formats are sa1b, coco, pairs, csv, packed, parquet",
                         o->format);
    }
    files_raise_limit(); /* each shard keeps a descriptor open */
    d->fingerprint = hash_bytes(o->format, strlen(o->format), 0);
    d->by_category = o->n_categories;
    d->labels = (struct label_options){.kind = o->labels, .ignore = o->ignore, .threshold = o->threshold};
    d->range = o->range;
    d->folders = o->split.folders;
    d->room = o->room ? o->room : VOLUME_ROOM;
    d->state = mem_alloc(d->format->state);
    struct names paths;
    int rc = dataset_paths(o, &paths, e);
    if (!rc) rc = d->format->open(d, o, &paths, e);
    names_free(&paths);
    if (!rc && o->n_categories && d->format->no_categories)
        rc = error_set(e, PL_USAGE, "data.categories names %s, but this format has no categories (%s): remove the key",
                       o->categories[0], d->format->no_categories);
    if (!rc) rc = survey_dataset(d, e);
    if (!rc && d->format->set_range) d->format->set_range(d);
    if (!rc) rc = apply_split(d, &o->split, e);
    if (!rc && !d->n) rc = refuse_empty(d, o, e);
    if (rc) dataset_close(d);
    else *out = d;
    return rc;
}

void dataset_close(struct dataset *d)
{
    if (!d) return;
    d->format->close(d);
    mem_free(d->state);
    mem_free((void *)d->labels.values);
    text_free(&d->unpaired);
    mem_free(d->chosen);
    mem_free(d);
}

static uint64_t number(const struct dataset *d, uint64_t i)
{
    CHECK(i < d->n, "sample %llu of %llu", (unsigned long long)i, (unsigned long long)d->n);
    return d->chosen ? d->chosen[i] : i;
}

uint64_t dataset_count(const struct dataset *d) { return d->n; }

void dataset_keep(struct dataset *d, const bool *keep)
{
    uint32_t *chosen = mem_alloc((size_t)d->n * sizeof *chosen);
    uint64_t n = 0;
    for (uint64_t i = 0; i < d->n; i++)
        if (keep[i]) chosen[n++] = (uint32_t)number(d, i);
    if (n < d->n) d->fingerprint = hash_bytes(chosen, (size_t)n * sizeof *chosen, d->fingerprint);
    mem_free(d->chosen);
    d->chosen = chosen;
    d->n = n;
}

uint64_t dataset_fingerprint(const struct dataset *d) { return d->fingerprint; }
const struct shard_report *dataset_report(const struct dataset *d) { return &d->report; }
const struct dataset_survey *dataset_survey(const struct dataset *d) { return &d->survey; }

static void add_item(struct text *out, size_t from, uint64_t n, const char *what)
{
    if (n) text_printf(out, "%s%llu %s", out->n > from ? ", " : "", (unsigned long long)n, what);
}

bool dataset_print_left(const struct dataset *d, bool crowds, struct text *out)
{
    const struct dataset_left *l = &d->left;
    size_t start = out->n, from;
    text_printf(out, "left out: ");
    from = out->n;
    if (!crowds)
        add_item(out, from, l->crowds, l->crowds == 1 ? "crowd (iscrowd 1 and several parts; data.crowds: true uses it)"
                                : "crowds (iscrowd 1 and several parts; data.crowds: true uses them)");
    add_item(out, from, l->no_mask, "without a segmentation or of area 0");
    add_item(out, from, l->other_categories, "of other categories (data.categories)");
    if (out->n == from) out->n = start; /* nothing */
    else text_printf(out, ", of the annotations");
    if (l->one_part)
        text_printf(out, "%s%llu with iscrowd 1 and one part %s used",
                    out->n > start ? "; " : "annotations: ", (unsigned long long)l->one_part,
                    l->one_part == 1 ? "is" : "are");
    if (out->n == start) out->at[start] = 0;
    return out->n > start;
}

const char *dataset_unpaired(const struct dataset *d) { return d->unpaired.at; }

void dataset_name(const struct dataset *d, uint64_t i, char *out, size_t room)
{
    const char *key;
    d->format->describe(d, number(d, i), out, room, &key);
}

bool dataset_split_group(const struct dataset *d, uint64_t i, char *out, size_t room)
{
    return group_of(d, number(d, i), out, room);
}

int32_t dataset_group(const struct dataset *d, uint64_t i) { return d->format->group(d, number(d, i)); }

const struct volume *dataset_slice(const struct dataset *d, uint64_t i, uint32_t *slice, const char **name)
{
    return d->format->slice ? d->format->slice(d, number(d, i), slice, name) : NULL;
}

const char *dataset_image_path(const struct dataset *d, uint64_t i) { return d->format->image_path(d, number(d, i)); }

const char *dataset_text(const struct dataset *d, uint64_t i, enum dataset_text what)
{
    return d->format->text ? d->format->text(d, number(d, i), what) : NULL;
}

const char *dataset_category(const struct dataset *d, int32_t category)
{
    return d->format->category ? d->format->category(d, category) : NULL;
}

enum data_fault dataset_image(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                              struct error *e)
{
    *out = (struct dataset_image){0};
    return d->format->image(d, number(d, i), to, room, out, e);
}

enum data_fault dataset_masks(const struct dataset *d, uint64_t i, void *scratch, size_t scratch_n,
                              struct mask *masks, uint32_t room, struct dataset_masks *out, struct error *e)
{
    *out = (struct dataset_masks){0};
    enum data_fault f = d->format->masks(d, number(d, i), scratch, scratch_n, masks, room, out, e);
    if (!f && !out->n) {
        error_set(e, PL_USAGE, "it has no mask (%u without pixels)", out->empty);
        f = FAULT_NO_MASKS;
    }
    return f;
}

void dataset_prefetch(const struct dataset *d, uint64_t i)
{
    if (d->format->prefetch) d->format->prefetch(d, number(d, i));
}

const struct packed_embeddings *dataset_embeddings(const struct dataset *d) { return d->embeddings; }
const void *dataset_embedding(const struct dataset *d, uint64_t i) { return d->format->embedding(d, number(d, i)); }

int dataset_intact(const struct dataset *d, struct error *e)
{
    return d->format->intact ? d->format->intact(d, e) : PL_OK;
}

int dataset_check(const struct dataset *d, uint64_t i, struct error *e)
{
    return d->format->check ? d->format->check(d, number(d, i), e) : PL_OK;
}

/* --- masks to bits ------------------------------------------------------------------------ */

static enum data_fault raster_runs(const struct rle *m, const struct grid *g, void *bits, struct error *e)
{
    enum rle_status s = grid_raster(g, m, bits);
    if (!s) return FAULT_NONE;
    error_set(e, PL_USAGE, "%s", rle_status_text(s));
    return s == RLE_BAD_SIZE ? FAULT_SIZE : FAULT_MASK;
}

/* Applies the EXIF orientation: programs in which masks are drawn show a photo as its EXIF
 * orientation says. */
int mask_size_differs(uint32_t w, uint32_t h, uint32_t masks_w, uint32_t masks_h, struct error *e)
{
    bool turned = w == masks_h && h == masks_w;
    return error_set(e, PL_USAGE, "the image is %ux%u, its masks are for %ux%u%s", w, h, masks_w, masks_h,
                     turned ? ": turned by its EXIF orientation, which is not applied here? Then store it upright, "
                              "such as by `mogrify -auto-orient`"
                            : ": resize the masks to the size of their images, without smoothing (nearest neighbour)");
}

enum data_fault mask_raster(const struct mask *m, const struct grid *g, struct polygon_scratch *runs, void *bits,
                            struct error *e)
{
    const struct shape *s = &m->shape;
    struct rle merged;
    enum rle_status status;
    if (s->h != g->at.h || s->w != g->at.w)
        return error_set(e, PL_USAGE, "the mask has %u x %u pixels, its image %u x %u", s->w, s->h, g->at.w, g->at.h),
               FAULT_SIZE;
    switch (s->kind) {
    case SHAPE_RLE: return raster_runs(&s->rle, g, bits, e);
    case SHAPE_POLYGONS:
        status = polygons_union(s->polygons.at, s->polygons.n, s->h, s->w, runs, &merged);
        if (!status) return raster_runs(&merged, g, bits, e);
        return error_set(e, PL_USAGE, "its polygons: %s", rle_status_text(status)), FAULT_MASK;
    case SHAPE_LABEL:
        grid_raster_label(g, s->label.pixels, s->label.stride, s->label.bytes, s->label.id, bits);
        return FAULT_NONE;
    case SHAPE_BITS: cells_raster(s, g, bits); return FAULT_NONE;
    case SHAPE_NONE: break;
    }
    return error_set(e, PL_USAGE, "it has no shape"), FAULT_MASK;
}
