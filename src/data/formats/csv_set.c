/*
 * csv_set.c: the format `csv`: the samples are the rows of a table, with columns for image, mask
 * and split, and for models that answer questions also question and answer.
 *
 * A table without a column of masks may name one file of a pair, where the folders tell them apart:
 *
 *     polyps/train_images/1.jpg     the image; its mask is polyps/train_masks/1.png
 *     polyps/train_masks/1.png      the mask; its image is polyps/train_images/1.jpg
 *
 * Both have the same name, but for the extension, and perhaps _Segmentation at the end of the
 * mask's.
 */
#include "data/formats/csv.h"
#include "data/detect/layout.h"
#include "data/formats/pairs.h"
#include "io/file.h"

/* --- columns -------------------------------------------------------------------------------- */

struct columns {
    int image, mask, split; /* mask -1: the other file of the pair */
    int text[DATASET_TEXTS];
};

static int find_column(const struct csv *c, const char *given, enum csv_usual what)
{
    return given ? csv_column(c, given) : csv_usual_column(c, what);
}

#define NO_RUN_LENGTHS "which are not read from a table: write each mask as a PNG and name the files"

/* Returns a column of run lengths; NULL: none. */
static const char *run_lengths_column(const struct csv *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (strcasestr(c->fields[i], "rle") || strcasestr(c->fields[i], "encodedpixels")) return c->fields[i];
    return NULL;
}

/* Refuses a table; the message names all columns. A first line of paths is a table without
 * names. */
static int refuse_columns(const struct csv *c, const char *given, enum csv_usual what, struct error *e)
{
    static const char *const keys[] = {"image", "mask", "split"}, *const plural[] = {"images", "masks", "splits",
                                                                                     "questions", "answers"};
    static const char *const usual[] = {"image, image_path, img, file", "mask, mask_path, label, seg",
                                        "split, subset, set", "question, prompt, query", "answer, response"};
    struct text names = {0};
    bool paths = false;
    const char *runs = run_lengths_column(c);
    for (uint32_t i = 0; i < c->n && i < 20; i++) {
        text_printf(&names, "%s%s", i ? ", " : "", c->fields[i]);
        paths |= is_image_name(c->fields[i]);
    }
    if (given) error_set(e, PL_USAGE, "its first line has no column %s; its columns are %.400s", given, names.at);
    else if (runs)
        error_set(e, PL_USAGE, "its columns are %.400s: the masks in %s are run lengths, " NO_RUN_LENGTHS, names.at,
                  runs);
    else if (paths)
        error_set(e, PL_USAGE,
                  "its first line is %.400s, expected the names of the columns: add a line such as image%cmask",
                  names.at, c->separator);
    else if (what >= CSV_QUESTION)
        error_set(e, PL_USAGE, "its columns are %.400s; none has a usual name for %s (%s), which the model needs",
                  names.at, plural[what], usual[what]);
    else
        error_set(e, PL_USAGE, "its columns are %.400s; none has a usual name for %s (%s, ...): set data.%s_column",
                  names.at, plural[what], usual[what], keys[what]);
    text_free(&names);
    return e->code;
}

static int find_columns(const struct csv *c, const struct dataset_options *o, struct columns *to, struct error *e)
{
    *to = (struct columns){find_column(c, o->image_column, CSV_IMAGE), find_column(c, o->mask_column, CSV_MASK),
                           find_column(c, o->split_column, CSV_SPLIT),
                           {-1, -1}};
    if (to->image < 0) return refuse_columns(c, o->image_column, CSV_IMAGE, e);
    if (to->mask < 0 && (o->mask_column || run_lengths_column(c)))
        return refuse_columns(c, o->mask_column, CSV_MASK, e);
    for (int k = 0; k < DATASET_TEXTS && o->texts; k++)
        if ((to->text[k] = csv_usual_column(c, CSV_QUESTION + (enum csv_usual)k)) < 0)
            return refuse_columns(c, NULL, CSV_QUESTION + (enum csv_usual)k, e);
    if (to->split < 0 && (o->split_column || o->split.column)) return refuse_columns(c, o->split_column, CSV_SPLIT, e);
    if (to->image == to->mask)
        return error_set(e, PL_USAGE, "data.image_column and data.mask_column are the same column, %s",
                         c->fields[to->image]);
    return PL_OK;
}

/* --- files ---------------------------------------------------------------------------------- */

/* The folder that the paths of a column are relative to. Unless it is given, it is the first of
 * these that has a file of the table: the table's folder, the current directory, images/ or
 * masks/ beside the table, images_and_masks/ beside the table's folder, and the folder above. */
struct base {
    const char *given, *dir, *sub;
    char path[2100];
    bool found;
};

static const char *base_of(struct base *b, const char *name)
{
    if (b->given) return b->given;
    for (int k = 0; k < 5 && !b->found; k++) {
        struct text full = {0};
        if (k == 0) snprintf(b->path, sizeof b->path, "%s", b->dir);
        else if (k == 1) snprintf(b->path, sizeof b->path, ".");
        else
            snprintf(b->path, sizeof b->path, "%s/%s", b->dir, k == 2 ? b->sub : k == 3 ? "../images_and_masks" : "..");
        text_printf(&full, "%s/%s", b->path, name);
        b->found = file_exists(full.at);
        text_free(&full);
    }
    return b->found ? b->path : b->dir;
}

struct table {
    struct base images, masks;
    const char *path;
    uint64_t rows, n_unread;
    const struct unread *unread;
    char example[256];
};

/* Replaces the end of a folder's name: "a/train_images/1.jpg" with images and masks gives
 * a/train_masks/1.jpg. Returns false if no folder's name ends in `from`. */
static bool swap_folder(const char *path, const char *from, const char *to, struct text *out)
{
    const size_t n = strlen(from);
    for (const char *end = strchr(path, '/'); end; end = strchr(end + 1, '/')) {
        const char *at = end - n;
        if (at < path || strncmp(at, from, n) || (at > path && at[-1] != '/' && at[-1] != '_')) continue;
        text_printf(out, "%.*s%s%s", (int)(at - path), path, to, end);
        return true;
    }
    return false;
}

/* Finds the first file in `base` whose path is this one with another extension and end. */
static bool find_ending(const char *base, const struct text *path, const char *const *ends, struct text *out)
{
    const char *dot = strrchr(path->at, '.'), *slash = strrchr(path->at, '/');
    const int stem = dot && (!slash || dot > slash) ? (int)(dot - path->at) : (int)path->n;
    for (; *ends; ends++) {
        struct text full = {0};
        out->n = 0;
        text_printf(out, "%.*s%s", stem, path->at, *ends);
        text_printf(&full, "%s/%s", base, out->at);
        const bool found = file_exists(out->at[0] == '/' ? out->at : full.at);
        text_free(&full);
        if (found) return true;
    }
    return false;
}

static void cut_ending(struct text *path, const char *end)
{
    const char *dot = strrchr(path->at, '.');
    const size_t n = strlen(end), at = dot ? (size_t)(dot - path->at) : 0;
    if (at < n || strncasecmp(path->at + at - n, end, n)) return;
    memmove(path->at + at - n, path->at + at, path->n - at + 1);
    path->n -= n;
}

#define SEGMENTATION "_Segmentation"

/* Returns the other file of the pair that `path` belongs to: of an image its mask. False: its
 * folders do not tell. */
static bool find_partner(const char *base, const char *path, bool *is_mask, struct text *partner, bool *found)
{
    static const char *const images[] = {".jpg", ".png", ".jpeg", ".webp", ".JPG", ".PNG", NULL};
    static const char *const masks[] = {".png", ".jpg", SEGMENTATION ".png", "_segmentation.png", ".webp",
                                        ".PNG", NULL};
    struct text other = {0};
    *is_mask = swap_folder(path, "masks", "images", &other);
    const bool known = *is_mask || swap_folder(path, "images", "masks", &other);
    if (*is_mask) cut_ending(&other, SEGMENTATION);
    *found = known && find_ending(base, &other, *is_mask ? images : masks, partner);
    if (known && !*found) partner->n = 0, text_printf(partner, "%s", other.at);
    text_free(&other);
    return known;
}

/* --- rows ----------------------------------------------------------------------------------- */

/* Reports whether a cell is missing, as pandas reads a table. */
static bool is_missing(const char *field)
{
    static const char *const words[] = {"", "nan", "NaN", "NA", "N/A", "null", "NULL", "None", NULL};
    for (const char *const *w = words; *w; w++)
        if (!strcmp(field, *w)) return true;
    return false;
}

/* Returns the dataset that a row belongs to: the first folder of its path if there are several,
 * else the table's name. */
static int32_t group_of(struct pairs *p, const char *path, const char *table)
{
    char name[256];
    const char *slash = strchr(path, '/'), *file = strrchr(table, '/');
    file = file ? file + 1 : table;
    if (slash && slash > path && strchr(slash + 1, '/'))
        snprintf(name, sizeof name, "%.*s", (int)min_i64(slash - path, 255), path);
    else snprintf(name, sizeof name, "%.*s", (int)min_i64((int64_t)strcspn(file, "."), 255), file);
    for (uint32_t i = 0; i < p->groups.n; i++)
        if (!strcmp(p->names.at + p->groups.at[i], name)) return (int32_t)i;
    const uint32_t at = pairs_keep(p, NULL, name);
    vec_push(&p->groups, at);
    return (int32_t)p->groups.n - 1;
}

/* Reports whether a text is starts and lengths: "1 3 10 5". */
static bool is_run_lengths(const char *field) { return strchr(field, ' ') && field[strspn(field, "0123456789 ")] == 0; }

/* Adds a row of a table without masks. */
static int add_partner(struct dataset *d, const struct csv *c, const struct columns *at, struct table *t,
                       struct item *item, bool *used, struct error *e)
{
    struct pairs *p = d->state;
    const char *path = c->fields[at->image], *base = base_of(&t->images, path);
    struct text partner = {0};
    bool is_mask;
    if (!find_partner(base, path, &is_mask, &partner, used)) {
        text_free(&partner);
        return error_set(e, PL_USAGE,
                         "line %u: the table has no column of masks, and %.200s is in no folder of images or masks "
                         "(such as train_images); set data.mask_column", c->line, path);
    }
    if (!*used && !d->missing[0]) snprintf(d->missing, sizeof d->missing, "%s", partner.at);
    if (!*used) d->report.no_text += !is_mask, d->report.no_image += is_mask;
    else if (is_mask) item->image = pairs_keep(p, base, partner.at), item->mask = pairs_keep(p, base, path);
    else item->image = pairs_keep(p, base, path), item->mask = pairs_keep(p, base, partner.at);
    text_free(&partner);
    return PL_OK;
}

static int add_pair(struct dataset *d, const struct csv *c, const struct columns *at, struct table *t,
                    struct item *item, bool *used, struct error *e)
{
    struct pairs *p = d->state;
    const char *image = c->fields[at->image], *mask = c->fields[at->mask];
    path_from_windows(c->fields[at->mask]);
    if (!*mask) d->report.no_text++;
    else if (!*image) d->report.no_image++;
    *used = *mask && *image;
    if (!*used) return PL_OK;
    const struct unread *u = unread_by_name(image);
    if (!u) u = unread_by_name(mask);
    if (u && !t->unread)
        t->unread = u, snprintf(t->example, sizeof t->example, "%s", unread_by_name(image) ? image : mask);
    t->n_unread += u != NULL;
    if (is_run_lengths(mask))
        return error_set(e, PL_USAGE, "line %u: the mask is given as run lengths (%.20s...), " NO_RUN_LENGTHS, c->line,
                         mask);
    item->image = pairs_keep(p, base_of(&t->images, image), image);
    item->mask = pairs_keep(p, base_of(&t->masks, mask), mask);
    return PL_OK;
}

/* Finds question and answer; returns false if one of them is missing. */
static bool has_texts(const struct csv *c, const struct columns *at)
{
    for (int k = 0; k < DATASET_TEXTS; k++)
        if (at->text[k] >= 0 && is_missing(c->fields[at->text[k]])) return false;
    return true;
}

static int add_row(struct dataset *d, const struct csv *c, const struct columns *at, struct table *t, struct error *e)
{
    struct pairs *p = d->state;
    struct item item = {0};
    bool used;
    path_from_windows(c->fields[at->image]);
    d->report.members++;
    t->rows++;
    if (!has_texts(c, at)) {
        const char *slash = strrchr(t->path, '/');
        if (!d->left.no_answer++)
            snprintf(d->left.no_answer_at, sizeof d->left.no_answer_at, "%.80s:%u", slash ? slash + 1 : t->path,
                     c->line);
        return PL_OK;
    }
    const char *image = c->fields[at->image];
    int rc = at->mask < 0 ? add_partner(d, c, at, t, &item, &used, e) : add_pair(d, c, at, t, &item, &used, e);
    if (rc || !used) return rc;
    item.key = item.name = pairs_keep(p, NULL, image);
    item.split = pairs_keep(p, NULL, at->split >= 0 ? c->fields[at->split] : "");
    for (int k = 0; k < DATASET_TEXTS; k++)
        item.text[k] = at->text[k] >= 0 ? pairs_keep(p, NULL, c->fields[at->text[k]]) : item.split;
    if (at->text[0] >= 0) item.group = group_of(p, image, t->path);
    vec_push(&p->items, item);
    return PL_OK;
}

static int read_rows(struct dataset *d, struct csv *c, const struct columns *at, struct table *t, struct error *e)
{
    const struct pairs *p = d->state;
    bool more;
    uint32_t columns = c->n;
    while (!csv_next(c, &more, e) && more) {
        if (c->n != columns)
            return error_set(e, PL_USAGE, "line %u has %u fields; expected %u as in the first line", c->line, c->n,
                             columns);
        if (p->names.n > 1u << 31) return error_set(e, PL_USAGE, "line %u: the table is too large", c->line);
        if (add_row(d, c, at, t, e)) return e->code;
    }
    if (more) return e->code;
    return 2 * t->n_unread > t->rows ? unread_refuse(t->unread, t->n_unread, NULL, t->example, e) : PL_OK;
}

static int read_table(struct dataset *d, const struct dataset_options *o, const char *path, struct error *e)
{
    char dir[2048], *text;
    size_t n;
    bool more;
    if (path_dir(path, dir, sizeof dir, e) || file_read(path, 1ull << 30, &text, &n, e)) return e->code;
    struct csv *c = mem_alloc(sizeof *c);
    struct columns at;
    struct table t = {.path = path, .images = {.given = o->images, .dir = dir, .sub = "images"},
                      .masks = {.given = o->masks, .dir = dir, .sub = "masks"}};
    csv_begin(c, text, n);
    int rc = csv_next(c, &more, e);
    if (!rc && !more) rc = error_set(e, PL_USAGE, "it is empty; expected a line with the names of the columns");
    if (!rc) rc = find_columns(c, o, &at, e);
    if (!rc) rc = read_rows(d, c, &at, &t, e);
    mem_free(c);
    mem_free(text);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

static void print_rows(struct text *out, uint64_t n, const char *what)
{
    if (n)
        text_printf(out, "%s%llu %s no %s", out->n ? ", " : "", (unsigned long long)n, n == 1 ? "row has" : "rows have",
                    what);
}

static int csv_open(struct dataset *d, const struct dataset_options *o, struct names *paths, struct error *e)
{
    char dir[2048];
    TRY(path_dir(paths->at[0], dir, sizeof dir, e));
    TRY(pairs_start(d, o, dir, e));
    for (uint32_t i = 0; i < paths->n; i++) TRY(read_table(d, o, paths->at[i], e));
    print_rows(&d->unpaired, d->report.no_text, "mask");
    print_rows(&d->unpaired, d->report.no_image, "image");
    if (d->missing[0]) text_printf(&d->unpaired, " (such as %s)", d->missing);
    print_rows(&d->unpaired, d->left.no_answer, "question or no answer");
    if (d->left.no_answer)
        text_printf(&d->unpaired, " (%s%s)", d->left.no_answer > 1 ? "such as " : "", d->left.no_answer_at);
    TRY(pairs_finish(d, e));
    dataset_warn_unpaired(d, o, paths->at[0]);
    return PL_OK;
}

static const char *csv_split(const struct dataset *d, uint64_t i)
{
    const struct pairs *p = d->state;
    return p->names.at + p->items.at[i].split;
}

static const char *csv_text(const struct dataset *d, uint64_t i, enum dataset_text what)
{
    const struct pairs *p = d->state;
    return p->groups.n ? p->names.at + p->items.at[i].text[what] : NULL;
}

static int32_t csv_group_of(const struct dataset *d, uint64_t i)
{
    return ((const struct pairs *)d->state)->items.at[i].group;
}

static const char *csv_group(const struct dataset *d, int32_t group)
{
    const struct pairs *p = d->state;
    if (!p->groups.n) return dataset_json_name(&p->json, group);
    return group >= 0 && (uint32_t)group < p->groups.n ? p->names.at + p->groups.at[group] : NULL;
}

/* Reads the masks. In a table with questions their category is the dataset, so that scores are
 * listed by dataset. */
static enum data_fault csv_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                                 uint32_t room, struct dataset_masks *out, struct error *e)
{
    const struct pairs *p = d->state;
    enum data_fault fault = pairs_masks(d, i, scratch, n, masks, room, out, e);
    for (uint32_t k = 0; k < out->n && fault == FAULT_NONE && p->groups.n; k++)
        masks[k].category = p->items.at[i].group;
    return fault;
}

const struct dataset_format dataset_csv = {
    .name = "csv", .state = sizeof(struct pairs), .open = csv_open, .close = pairs_close, .describe = pairs_describe,
    .image = pairs_image, .masks = csv_masks, .category = csv_group, .split = csv_split, .text = csv_text,
    .group = csv_group_of, .values = pairs_values, .plane = pairs_plane, .set_range = pairs_set_range,
    .slice = pairs_slice, .split_group = pairs_split_group, .label = pairs_label_path, .image_path = pairs_image_path,
};
