/*
 * parquet_set.c: the format `parquet`: the samples are the rows of Parquet tables (io/parquet.h),
 * whose cells hold the files of an image and of its masks, as Hugging Face datasets writes them.
 *
 *   image          a column of images: {bytes, path}, or bytes
 *   mask           a label image, as in the format `pairs`
 *   masks          a list of images: each is a mask
 *   liver, tumour  several columns of mask images (data.mask_column: liver, tumour): each is a mask
 *                  of its own category
 *
 * Files stay memory-mapped; a sample's cells are read where they are.
 */
#include "data/formats/csv.h"
#include "data/dataset.h"
#include "data/masks/label.h"
#include "io/file.h"
#include "io/parquet_cell.h"

enum { COLUMNS_MOST = 64, MASKS_MOST = 16 };

struct table {
    struct parquet parquet;
    const char *name;            /* of the file, without folder and extension: in its path */
    int name_n;
    uint64_t first;              /* sample */
    uint32_t image;              /* column */
    uint32_t masks[MASKS_MOST];
};

struct parquet_set {
    VEC(struct table *) tables;
    char *names[MASKS_MOST];     /* of the columns of masks */
    uint32_t n_masks;
    bool lists;                  /* the column of masks has lists */
};

/* --- columns ---------------------------------------------------------------------------------- */

/* The columns of images, by name; "" for others. */
struct columns {
    const char *names[COLUMNS_MOST];
    uint32_t nodes[COLUMNS_MOST], n, images;
};

static void list_columns(const struct parquet *p, struct columns *out)
{
    bool many;
    *out = (struct columns){0};
    for (uint32_t i = 1; i < p->n_nodes && out->n < COLUMNS_MOST; i = p->nodes[i].end) {
        const bool image = parquet_image_leaf(p, i, &many) >= 0;
        out->names[out->n] = image ? p->nodes[i].name : "";
        out->nodes[out->n++] = i;
        out->images += image;
    }
}

/* Returns the one column of images besides `other`; -1: there is none, or several are. */
static int only_column(const struct columns *c, int other)
{
    int found = -1;
    for (uint32_t i = 0; i < c->n; i++) {
        if (!*c->names[i] || (int)i == other) continue;
        if (found >= 0) return -1;
        found = (int)i;
    }
    return found;
}

static int refuse_columns(const struct parquet *p, const char *given, const char *what, struct error *e)
{
    struct text names = {0};
    parquet_print_columns(p, &names);
    if (given) error_set(e, PL_USAGE, "it has no column %s of images; its columns are %s", given, names.at);
    else
        error_set(e, PL_USAGE, "its columns are %s; none has images and a usual name for %s: set data.%s_column",
                  names.at, *what == 'i' ? "images (image, img, ...)" : "masks (mask, label, annotation, ...)", what);
    text_free(&names);
    return e->code;
}

/* Finds the leaf of a column of images. */
static int find_leaf(const struct parquet *p, const char *name, uint32_t *leaf, bool *many, struct error *e)
{
    const uint32_t node = parquet_find(p, name);
    const int64_t found = node ? parquet_image_leaf(p, node, many) : -1;
    *leaf = (uint32_t)found;
    return found >= 0 ? PL_OK : refuse_columns(p, name, "", e);
}

/* Chooses the columns of image and masks: given, or with usual names; where one of two columns of
 * images is known, the other one is known too. */
static int choose_columns(struct parquet_set *s, const struct parquet *p, const struct dataset_options *o,
                          const char **image, struct error *e)
{
    struct columns c;
    list_columns(p, &c);
    int mask = o->mask_column ? -1 : usual_column(c.names, c.n, CSV_MASK),
        at = o->image_column ? -1 : usual_column(c.names, c.n, CSV_IMAGE);
    for (uint32_t i = 0; i < c.n && o->image_column; i++)
        if (!strcmp(c.names[i], o->image_column)) at = (int)i;
    if (at < 0 && !o->image_column && mask >= 0) at = only_column(&c, mask);
    if (mask < 0 && !o->mask_column && at >= 0) mask = only_column(&c, at);
    *image = o->image_column ? o->image_column : at >= 0 ? c.names[at] : NULL;
    if (!*image) return refuse_columns(p, NULL, "image", e);
    if (s->n_masks) return PL_OK; /* of the first table */
    if (!o->mask_column && mask < 0) return refuse_columns(p, NULL, "mask", e);
    char *list = mem_string(o->mask_column ? o->mask_column : c.names[mask]), *rest = NULL;
    for (char *name = strtok_r(list, ",", &rest); name && s->n_masks < MASKS_MOST; name = strtok_r(NULL, ",", &rest)) {
        name += strspn(name, " ");
        for (size_t n = strlen(name); n && name[n - 1] == ' ';) name[--n] = 0;
        if (*name) s->names[s->n_masks++] = mem_string(name);
    }
    mem_free(list);
    return PL_OK;
}

static int find_columns(struct parquet_set *s, struct table *t, const struct dataset_options *o, struct error *e)
{
    const char *image;
    bool many;
    if (choose_columns(s, &t->parquet, o, &image, e) || find_leaf(&t->parquet, image, &t->image, &many, e))
        return e->code;
    if (many) return error_set(e, PL_USAGE, "column %s has lists of images; expected one image a row", image);
    for (uint32_t k = 0; k < s->n_masks; k++) {
        if (find_leaf(&t->parquet, s->names[k], &t->masks[k], &many, e)) return e->code;
        if (t->masks[k] == t->image)
            return error_set(e, PL_USAGE,
                "column %s is that of the images and of the masks: set data.image_column and data.mask_column", image);
        if (many && s->n_masks > 1)
            return error_set(e, PL_USAGE, "column %s has lists of masks; expected it to be the only column of masks",
                             s->names[k]);
        s->lists |= many;
        if (parquet_index(&t->parquet, t->masks[k], e)) return e->code;
    }
    return parquet_index(&t->parquet, t->image, e);
}

bool parquet_set_usual(const char *path)
{
    struct parquet p;
    struct error ignored;
    struct columns c;
    if (parquet_open(&p, path, &ignored)) return false;
    list_columns(&p, &c);
    const bool usual = usual_column(c.names, c.n, CSV_IMAGE) >= 0 && usual_column(c.names, c.n, CSV_MASK) >= 0;
    parquet_close(&p);
    return usual;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Hashes a table's name, size and bytes: of a file of more than `most` bytes as many, in blocks
 * spread evenly, and the footer, which has the position and the statistics of every page. */
static uint64_t hash_table(const struct table *t, uint64_t most, uint64_t hash)
{
    enum { BLOCK = 1 << 16 };
    const char *at = t->parquet.map.at;
    const uint64_t bytes = t->parquet.map.bytes, blocks = (bytes + BLOCK - 1) / BLOCK,
                   read = min_u64(blocks, most / BLOCK);
    hash = hash_bytes(t->name, strlen(t->name), hash);
    hash = hash_bytes(&bytes, sizeof bytes, hash);
    for (uint64_t k = 0; k < read; k++) {
        const uint64_t from = (read > 1 ? k * (blocks - 1) / (read - 1) : 0) * BLOCK;
        hash = hash_bytes(at + from, min_u64(BLOCK, bytes - from), hash);
    }
    return hash_bytes(at + bytes - t->parquet.footer, t->parquet.footer, hash);
}

static int add_table(struct dataset *d, const struct dataset_options *o, const char *path, uint64_t most,
                     struct error *e)
{
    struct parquet_set *s = d->state;
    struct table *t = mem_alloc(sizeof *t);
    if (parquet_open(&t->parquet, path, e)) {
        mem_free(t);
        return e->code;
    }
    vec_push(&s->tables, t);
    const char *slash = strrchr(t->parquet.path, '/');
    t->name = slash ? slash + 1 : t->parquet.path;
    t->name_n = (int)strcspn(t->name, ".");
    t->first = d->total;
    d->total += t->parquet.rows;
    d->report.members += t->parquet.rows;
    d->fingerprint = hash_table(t, most, d->fingerprint);
    return find_columns(s, t, o, e) ? error_prepend(e, "%s", path) : PL_OK;
}

static int parquet_set_open(struct dataset *d, const struct dataset_options *o, struct names *paths, struct error *e)
{
    enum { HASHED = 64 << 20, HASHED_LEAST = 1 << 20 }; /* bytes of all tables, and of each */
    struct parquet_set *s = d->state;
    TRY(label_set_values(&d->labels, o->categories, o->n_categories, NULL, e));
    if (o->texts)
        return error_set(e, PL_USAGE, "questions and answers are not read from Parquet tables: use a table in CSV");
    for (uint32_t i = 0; i < paths->n; i++)
        TRY(add_table(d, o, paths->at[i], (uint64_t)max_i64(HASHED / paths->n, HASHED_LEAST), e));
    if (s->n_masks > 1 && o->n_categories)
        return error_set(e, PL_USAGE,
                         "data.categories is given, and the masks are in several columns, which are the categories: "
                         "name those that are wanted in data.mask_column");
    /* an image for each mask */
    if ((s->lists || s->n_masks > 1) && d->labels.kind == LABELS_AUTO) d->labels.kind = LABELS_BINARY;
    return PL_OK;
}

static void parquet_set_close(struct dataset *d)
{
    struct parquet_set *s = d->state;
    for (uint32_t i = 0; i < s->tables.n; i++) parquet_close(&s->tables.at[i]->parquet), mem_free(s->tables.at[i]);
    for (uint32_t i = 0; i < s->n_masks; i++) mem_free(s->names[i]);
    vec_free(&s->tables);
}

/* --- a sample --------------------------------------------------------------------------------- */

static const struct table *table_of(const struct dataset *d, uint64_t i)
{
    const struct parquet_set *s = d->state;
    uint32_t low = 0, high = s->tables.n;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (s->tables.at[middle]->first <= i) low = middle;
        else high = middle;
    }
    return s->tables.at[low];
}

static void parquet_set_describe(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key)
{
    const struct table *t = table_of(d, i);
    snprintf(name, room, "%.*s/%llu", t->name_n, t->name, (unsigned long long)(i - t->first) + 1);
    *key = name;
}

/* Reads a cell; *n is its length, and *state says whether it is there. */
static enum data_fault read_cell(const struct table *t, struct parquet_cell at, void *to, size_t room, size_t *n,
                                 enum cell_state *state, struct error *e)
{
    const int rc = parquet_cell(&t->parquet, at, to, room, n, state, e);
    if (rc == PL_NOFIT) error_prepend(e, "row %llu of %s", (unsigned long long)at.row + 1, t->name);
    return !rc ? FAULT_NONE : rc == PL_NOFIT ? FAULT_TOO_LARGE : FAULT_READ;
}

static enum data_fault parquet_set_image(const struct dataset *d, uint64_t i, void *to, size_t room,
                                         struct dataset_image *out, struct error *e)
{
    const struct table *t = table_of(d, i);
    enum cell_state state;
    enum data_fault f = read_cell(t, (struct parquet_cell){t->image, i - t->first, 0}, to, room, &out->n, &state, e);
    if (!f && state != CELL_THERE)
        f = FAULT_IMAGE,
        error_set(e, PL_USAGE, "row %llu of %s has no image", (unsigned long long)(i - t->first) + 1, t->name);
    return f;
}

/* Decodes the mask image of a cell; `state` says whether there is one. */
static enum data_fault decode(const struct table *t, struct parquet_cell at, void *scratch, size_t n,
                              struct label_image *out, enum cell_state *state, struct error *e)
{
    char name[256];
    size_t bytes;
    enum data_fault f = read_cell(t, at, scratch, n, &bytes, state, e);
    if (f || *state != CELL_THERE) return f;
    snprintf(name, sizeof name, "%.180s, row %llu", t->name, (unsigned long long)at.row + 1);
    return label_decode_bytes(name, scratch, n, bytes, out, e);
}

static enum data_fault parquet_set_values(const struct dataset *d, uint64_t i, void *scratch, size_t n,
                                          struct label_image *out, struct error *e)
{
    const struct table *t = table_of(d, i);
    enum cell_state state;
    enum data_fault f = decode(t, (struct parquet_cell){t->masks[0], i - t->first, 0}, scratch, n, out, &state, e);
    return f || state == CELL_THERE
               ? f
               : (error_set(e, PL_USAGE, "row %llu of %s has no mask", (unsigned long long)(i - t->first) + 1, t->name),
                  FAULT_NO_MASKS);
}

/* Room that is left, and what was found. */
struct gathering {
    const struct dataset *d;
    char *scratch;
    size_t n;
    struct mask *masks;
    uint32_t room;
    struct dataset_masks *out;
};

/* Adds the masks of an image, the k-th of several (from 1; 0: the only one). The pixels stay in the
 * scratch. */
static enum data_fault add_masks(struct gathering *g, const struct label_image *m, const char *name, uint32_t k,
                                 int32_t category, struct error *e)
{
    struct dataset_masks found;
    struct mask *to = g->masks + g->out->n;
    if (g->out->h && (g->out->h != m->h || g->out->w != m->w))
        return error_set(e, PL_USAGE, "%s: its mask images have different sizes: %u x %u and %u x %u", name, g->out->w,
                         g->out->h, m->w, m->h), FAULT_SIZE;
    enum data_fault f = label_image_masks(name, m, &g->d->labels, to, g->room - g->out->n, &found, e);
    if (f) return f;
    for (uint32_t i = 0; i < found.n && k; i++) {
        to[i].id += (int64_t)k << 16;
        if (category) to[i].category = category;
    }
    const size_t used = min_u64(g->n, align_up((uint64_t)m->h * m->w * (uint32_t)m->bytes, 64));
    g->scratch += used;
    g->n -= used;
    g->out->h = m->h, g->out->w = m->w;
    g->out->n += found.n;
    g->out->empty += found.empty + (k && !found.n);
    return FAULT_NONE;
}

static enum data_fault parquet_set_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n,
                                         struct mask *masks, uint32_t room, struct dataset_masks *out, struct error *e)
{
    const struct parquet_set *s = d->state;
    const struct table *t = table_of(d, i);
    struct gathering g = {d, scratch, n, masks, room, out};
    char name[256];
    snprintf(name, sizeof name, "%.180s, row %llu", t->name, (unsigned long long)(i - t->first) + 1);
    for (uint32_t c = 0; c < s->n_masks; c++) {
        enum cell_state state = CELL_THERE;
        for (uint32_t k = 0; k < (s->lists ? UINT16_MAX : 1) && state != CELL_NONE; k++) {
            struct label_image m;
            enum data_fault f =
                decode(t, (struct parquet_cell){t->masks[c], i - t->first, k}, g.scratch, g.n, &m, &state, e);
            if (!f && state == CELL_THERE)
                f = add_masks(&g, &m, name, s->lists         ? k + 1
                              : s->n_masks > 1 ? c + 1
                                               : 0, s->n_masks > 1 ? (int32_t)c + 1 : 0, e);
            if (f) return f;
        }
    }
    return FAULT_NONE;
}

static const char *parquet_set_category(const struct dataset *d, int32_t category)
{
    const struct parquet_set *s = d->state;
    return s->n_masks > 1 && category >= 1 && (uint32_t)category <= s->n_masks ? s->names[category - 1] : NULL;
}

static const char *parquet_set_label(const struct dataset *d, uint64_t i) { return table_of(d, i)->parquet.path; }

static int parquet_set_intact(const struct dataset *d, struct error *e)
{
    const struct parquet_set *s = d->state;
    for (uint32_t i = 0; i < s->tables.n; i++)
        if (parquet_check(&s->tables.at[i]->parquet, e)) return e->code;
    return PL_OK;
}

const struct dataset_format dataset_parquet = {
    .name = "parquet", .state = sizeof(struct parquet_set), .open = parquet_set_open, .close = parquet_set_close,
    .describe = parquet_set_describe, .image = parquet_set_image, .masks = parquet_set_masks,
    .category = parquet_set_category, .intact = parquet_set_intact, .label = parquet_set_label,
    .values = parquet_set_values,
};
