/*
 * pairs.c: the format `pairs`: images and masks that are found by their names in two folders or in
 * one (match.h, layout.h). What it shares with tables (csv_set.c) is in pairs.h.
 */
#include "data/detect/layout.h"
#include "data/formats/pairs.h"
#include "data/faults.h"
#include "io/file.h"
#include "base/coding.h"
#include "base/progress.h"
#include "data/detect/match.h"
#include "data/volumes/nifti.h"

/* ---- Names ---- */

uint32_t pairs_keep(struct pairs *p, const char *folder, const char *name)
{
    uint32_t at = (uint32_t)p->names.n;
    bool joined = folder && name[0] != '/';
    if (joined) text_printf(&p->names, "%s/", folder);
    text_append(&p->names, name, strlen(name) + 1);
    return at;
}

/* ---- Slices of volumes ----
 *
 * Cases are opened in parallel and added in their order.
 */

/* One pair of files. */
struct opened {
    bool has_image, has_mask; /* whether the file is a volume */
    struct volume image[3], mask;
    uint8_t *labelled;      /* [slices] whether the mask has a label there */
    struct error e;
};

static bool is_volume(const char *path)
{
    if (is_volume_name(path, NULL)) return true;
    return !is_image_name(path) && is_dicom_folder(path);
}

/* --- channels --------------------------------------------------------------------------------- */

/* Prints the path of another modality: nnU-Net has a file for each, case_0000.nii.gz,
 * case_0001.nii.gz. */
static bool modality_path(const char *path, uint32_t modality, struct text *out)
{
    size_t ending = 0, n = strlen(path);
    if (!is_volume_name(path, &ending) || n < ending + 5 || path[n - ending - 5] != '_') return false;
    for (size_t i = n - ending - 4; i < n - ending; i++)
        if (path[i] < '0' || path[i] > '9') return false;
    text_printf(out, "%.*s_%04u%s", (int)(n - ending - 5), path, modality, path + n - ending);
    return true;
}

static int open_channel(struct volume *v, const char *path, uint32_t modality, const struct volume_options *o,
                        struct error *e)
{
    struct text own = {0};
    int rc = volume_open(v, path, o, e);
    if (rc || v->modalities > 1) {
        if (!rc && modality >= v->modalities)
            rc = error_set(e, PL_USAGE, "data.modalities names %u, and it has %u (0 to %u)", modality, v->modalities,
                           v->modalities - 1);
        return rc;
    }
    if (modality_path(path, modality, &own)) {
        volume_close(v);
        rc = volume_open(v, own.at, o, e);
    } else if (modality) {
        rc = error_set(e, PL_USAGE, "data.modalities names %u, and it has one modality", modality);
    }
    text_free(&own);
    return rc;
}

static int open_image(const struct pairs *p, const char *path, struct opened *c, struct error *e)
{
    const struct volume_options o = {p->slices.axis, p->slices.cache, p->room};
    for (uint32_t i = 0; i < p->channels; i++) {
        if (open_channel(&c->image[i], path, p->modality[i], &o, e)) return e->code;
        struct volume *v = &c->image[i], *first = &c->image[0];
        if (v->modalities > 1 && !p->slices.n_modalities && p->json.modalities != v->modalities)
            return error_set(e, PL_USAGE,
                             "it has 4 dimensions (%u x %u x %u x %u): expected a volume of 3; if the fourth are "
                             "modalities, data.modalities chooses one, such as [0], or three as channels",
                             v->dims[0], v->dims[1], v->dims[2], v->modalities);
        if (i && volume_lay_on(v, first, e)) return error_prepend(e, "modality %u", p->modality[i]);
        if (p->channels > 1 && v->channels > 1)
            return error_set(e, PL_USAGE, "it is in colour, and data.modalities asks for channels of their own");
    }
    if (p->slices.neighbours && c->image[0].channels > 1)
        return error_set(e, PL_USAGE, "it is in colour, and data.neighbours needs volumes of one channel");
    return PL_OK;
}

/* --- labelled slices -------------------------------------------------------------------------- */

/* Returns which indices along each axis of the array have a label: [dims[0] + dims[1] +
 * dims[2]]. */
static size_t marks_bytes(const struct volume *v) { return (size_t)v->dims[0] + v->dims[1] + v->dims[2]; }

static bool is_zero(const char *at, size_t n) { return !n || (!*at && !memcmp(at, at + 1, n - 1)); }

static int mark(const struct volume *v, size_t limit, uint8_t *marks, struct error *e)
{
    struct volume flat = *v; /* the array as it lies in the file */
    flat.view = (struct volume_view){.axis = {0, 1, 2}};
    flat.w = v->dims[0], flat.h = v->dims[1], flat.slices = v->dims[2];
    const size_t room = volume_room(&flat, true), most = volume_rgb_room(&(struct volume_channels){.at = {&flat}});
    if (most > limit)
        return error_set(e, PL_USAGE,
                         "reading a slice of %u x %u voxels takes %zu MiB; expected at most %zu (data.sample_memory)",
                         flat.w, flat.h, (most >> 20) + 1, limit >> 20);
    void *memory = mem_alloc(room);
    uint8_t *rows = marks + v->dims[0], *planes = rows + v->dims[1];
    int rc = PL_OK, bytes;
    for (uint32_t k = 0; k < flat.slices && !rc; k++) {
        struct plane p;
        rc = volume_read(&flat, k, 0, true, memory, room, &p, e);
        if (!rc && p.inter == 0 && is_zero(p.at, plane_bytes(&p))) continue;
        if (!rc) rc = plane_to_labels(&p, &bytes, e);
        for (size_t i = 0; i < (size_t)p.w * p.h && !rc; i++)
            if (bytes == 1 ? ((uint8_t *)p.at)[i] : ((uint16_t *)p.at)[i])
                marks[i % p.w] = rows[i / p.w] = planes[k] = 1;
    }
    mem_free(memory);
    return rc;
}

/* Loads the marks, which are stored with their checksum. */
static int load_marks(const struct volume *v, const char *cache, size_t limit, uint8_t *marks, struct error *e)
{
    struct text path = {0};
    struct error ignored;
    const size_t n = marks_bytes(v);
    uint32_t sum = 0;
    const bool stored = v->kind == VOLUME_NIFTI && !volume_cache_path(v->path, cache, ".labels", &path, &ignored);
    uint8_t *both = mem_alloc(n + sizeof sum);
    bool found = false;
    if (stored && file_peek(path.at, both, n + sizeof sum) == n + sizeof sum)
        memcpy(&sum, both + n, sizeof sum), found = sum == crc32c(0, both, n);
    if (!found) memset(both, 0, n);
    int rc = found ? PL_OK : mark(v, limit, both, e);
    if (!rc && !found && stored) {
        sum = crc32c(0, both, n);
        memcpy(both + n, &sum, sizeof sum);
        file_write_atomic(path.at, both, n + sizeof sum, &ignored); /* if it cannot be stored, it is found again */
    }
    memcpy(marks, both, n);
    mem_free(both);
    text_free(&path);
    return rc;
}

static int find_labelled(struct opened *c, const char *cache, size_t limit, struct error *e)
{
    const struct volume *v = &c->mask;
    uint8_t *marks = mem_alloc(marks_bytes(v));
    const uint8_t axis = v->view.axis[2], *along = marks + (axis > 0 ? v->dims[0] : 0) + (axis > 1 ? v->dims[1] : 0);
    int rc = load_marks(v, cache, limit, marks, e);
    c->labelled = mem_alloc(v->slices);
    for (uint32_t i = 0; i < v->slices; i++) c->labelled[i] = along[v->view.flip[2] ? v->slices - 1 - i : i];
    mem_free(marks);
    return rc;
}

/* --- cases ------------------------------------------------------------------------------------ */

static int open_mask(const struct pairs *p, const char *path, struct opened *c, struct error *e)
{
    struct volume *m = &c->mask;
    if (volume_open(m, path, &(struct volume_options){p->slices.axis, p->slices.cache, p->room}, e)) return e->code;
    if (m->modalities > 1) return error_set(e, PL_USAGE, "it has 4 dimensions; expected a label volume of 3");
    if (c->has_image && volume_lay_on(m, &c->image[0], e)) return e->code;
    return m->slices > 1 && !p->slices.all ? find_labelled(c, p->slices.cache, p->room, e) : PL_OK;
}

/* Handles a pair of which one file is no volume. */
static int check_single(struct opened *c, struct error *e)
{
    struct volume *one = c->has_image ? &c->image[0] : &c->mask;
    if (one->slices == 1) return volume_as_stored(one, e);
    return error_set(e, PL_USAGE, "%s has %u slices, and its %s is not a volume", c->has_image ? "it" : "its mask",
                     one->slices, c->has_image ? "mask" : "image");
}

static void open_case(const struct pairs *p, const struct item *i, struct opened *c)
{
    const char *image = p->names.at + i->image, *mask = p->names.at + i->mask;
    c->has_image = is_volume(image);
    c->has_mask = is_volume(mask);
    if (c->has_image && open_image(p, image, c, &c->e)) error_prepend(&c->e, "%s", image);
    else if (c->has_mask && open_mask(p, mask, c, &c->e)) error_prepend(&c->e, "%s", mask);
    else if (c->has_image != c->has_mask && check_single(c, &c->e)) error_prepend(&c->e, "%s", image);
}

static void close_case(struct opened *c)
{
    for (int i = 0; i < 3; i++)
        if (c->image[i].path) volume_close(&c->image[i]);
    if (c->mask.path) volume_close(&c->mask);
    mem_free(c->labelled);
    *c = (struct opened){0};
}

/* Reports whether DICOM files are of several patients, by their IDs: anonymous ones often have the
 * same ID. */
static bool tells_patients(const struct opened *cases, uint32_t n)
{
    const char *first = NULL;
    for (uint32_t i = 0; i < n; i++) {
        const char *id = cases[i].image[0].patient;
        if (cases[i].e.code || !*id) continue;
        if (first && strcmp(first, id)) return true;
        first = id;
    }
    return false;
}

/* Returns the patient, else the volume. */
static uint32_t name_whole(struct pairs *p, const struct item *from, const struct volume *v, bool patients)
{
    struct text name = {0};
    if (!patients || !*v->patient) return v->slices > 1 ? from->key + 1 : 0;
    text_printf(&name, "patient %s", v->patient);
    const uint32_t at = pairs_keep(p, NULL, name.at) + 1;
    text_free(&name);
    return at;
}

/* Raises d->largest to what a volume needs. */
static void note_need(struct dataset *d, const struct volume *v)
{
    if (!v->path) return;
    const uint64_t need = volume_rgb_room(&(struct volume_channels){.at = {v}}), outside = volume_outside(v),
                   more = need > outside ? need : outside;
    if (more > d->largest) d->largest = (size_t)more;
}

/* Adds a sample for each slice; the volumes belong to the dataset from now on. */
static void add_case(struct dataset *d, const struct item *from, struct opened *c, bool patients)
{
    static const char letters[] = {[AXIS_AXIAL] = 'z', [AXIS_CORONAL] = 'y', [AXIS_SAGITTAL] = 'x'};
    struct pairs *p = d->state;
    struct item item = *from;
    const uint32_t slices = c->has_image ? c->image[0].slices : 1;
    for (uint32_t i = 0; i < p->channels; i++) note_need(d, &c->image[i]);
    note_need(d, &c->mask);
    const char letter = c->image[0].kind == VOLUME_TIFF ? 'p' : letters[p->slices.axis];
    if (c->has_image) item.image_volume = p->volumes.n + 1, item.whole = name_whole(p, from, &c->image[0], patients);
    for (uint32_t i = 0; i < p->channels && c->has_image; i++)
        vec_push(&p->volumes, c->image[i]), c->image[i] = (struct volume){0};
    if (c->has_mask) vec_push(&p->volumes, c->mask), item.mask_volume = p->volumes.n;
    c->mask = (struct volume){0};
    for (item.slice = 0; item.slice < slices; item.slice++) {
        if (c->labelled && !c->labelled[item.slice]) continue;
        if (slices > 1) {
            struct text name = {0};
            text_printf(&name, "%s_%c%03u", p->names.at + from->name, letter, item.slice);
            item.name = pairs_keep(p, NULL, name.at);
            text_free(&name);
        }
        vec_push(&p->items, item);
    }
}

static uint32_t count_volumes(const struct pairs *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->items.n; i++)
        n += is_volume(p->names.at + p->items.at[i].image) || is_volume(p->names.at + p->items.at[i].mask);
    return n;
}

/* Replaces the items of d->state whose files are volumes by their slices. */
static int slices_expand(struct dataset *d, struct error *e)
{
    struct pairs *p = d->state;
    const uint32_t n = p->items.n, volumes = count_volumes(p);
    uint32_t bad = 0;
    if (!volumes) return PL_OK;
    struct item *items = mem_copy(p->items.at, n * sizeof *items);
    struct opened *cases = mem_alloc(n * sizeof *cases);
    struct progress progress;
    progress_begin(&progress, "opening", "volumes", n);
#pragma omp parallel for schedule(dynamic)
    for (uint32_t i = 0; i < n; i++) {
        open_case(p, &items[i], &cases[i]);
#pragma omp critical
        progress_add(&progress, 1);
    }
    progress_clear();
    p->items.n = 0;
    const bool patients = tells_patients(cases, n);
    for (uint32_t i = 0; i < n; i++) {
        if (cases[i].e.code && !bad++) *e = cases[i].e;
        if (!cases[i].has_image && !cases[i].has_mask) vec_push(&p->items, items[i]);
        else if (!cases[i].e.code) add_case(d, &items[i], &cases[i], patients);
        close_case(&cases[i]);
    }
    mem_free(cases);
    mem_free(items);
    if (bad)
        text_printf(&d->unpaired, "%s%u of %u volumes cannot be used, such as %s", d->unpaired.n ? ", " : "", bad,
                    volumes, e->text);
    if (bad && !p->items.n) return e->code;
    e->code = PL_OK;
    return PL_OK;
}

/* Returns the channels of a sample's image. */
static struct volume_channels slices_channels(const struct pairs *p, const struct item *i)
{
    struct volume_channels c = {{0}};
    const struct volume *first = &p->volumes.at[i->image_volume - 1];
    for (uint32_t k = 0; k < p->channels; k++)
        c.at[k] = first + k, c.modality[k] = first[k].modalities > 1 ? p->modality[k] : 0;
    if (!p->slices.neighbours || first->slices == 1) return c;
    for (int k = 0; k < 3; k++) c.at[k] = first, c.modality[k] = c.modality[0], c.step[k] = k - 1;
    return c;
}

/* Sets which planes make an image. */
static int set_channels(struct pairs *p, const struct dataset_options *o, struct error *e)
{
    const struct slice_options *s = &o->slices;
    p->slices = *s;
    p->channels = s->n_modalities ? s->n_modalities : 1;
    if (s->n_modalities > 3 || s->n_modalities == 2)
        return error_set(e, PL_USAGE, "data.modalities names %u modalities; expected one, or three as channels",
                         s->n_modalities);
    if (s->n_modalities > 1 && s->neighbours)
        return error_set(e, PL_USAGE,
                         "data.neighbours and three data.modalities exclude each other: an image has three channels");
    for (uint32_t i = 0; i < s->n_modalities; i++) p->modality[i] = (uint32_t)s->modalities[i];
    return PL_OK;
}

/* Begins a dataset of pairs. `folder` is where dataset.json may be. */
int pairs_start(struct dataset *d, const struct dataset_options *o, const char *folder, struct error *e)
{
    struct pairs *p = d->state;
    p->room = d->room;
    dataset_json_read(&p->json, folder);
    if (set_channels(p, o, e)) return e->code;
    return label_set_values(&d->labels, o->categories, o->n_categories, &p->json, e);
}

int pairs_finish(struct dataset *d, struct error *e)
{
    struct pairs *p = d->state;
    if (slices_expand(d, e)) return e->code;
    d->total = p->items.n;
    d->fingerprint = hash_bytes(p->names.at, p->names.n, d->fingerprint);
    return PL_OK;
}

void pairs_close(struct dataset *d)
{
    struct pairs *p = d->state;
    vec_free(&p->items);
    vec_free(&p->groups);
    text_free(&p->names);
    for (uint32_t i = 0; i < p->volumes.n; i++) volume_close(&p->volumes.at[i]);
    vec_free(&p->volumes);
    dataset_json_free(&p->json);
}

/* --- pairs: folders ------------------------------------------------------------------------- */

static void add_pair(struct pairs *p, const char *images, const char *masks, const struct image_file *i,
                     const struct image_file *m, const char *key)
{
    struct item item = {.image = pairs_keep(p, images, i->path)};
    item.mask = pairs_keep(p, masks, m->path);
    item.key = item.name = pairs_keep(p, NULL, key);
    if (strlen(key) != i->stem || memcmp(key, i->path, i->stem)) {
        char name[512];
        snprintf(name, sizeof name, "%.*s", (int)(i->stem < sizeof name ? i->stem : sizeof name - 1), i->path);
        item.name = pairs_keep(p, NULL, name);
    }
    item.split = pairs_keep(p, NULL, "");
    vec_push(&p->items, item);
}

/* Refuses files of a format that is not read where they are most of a folder. */
static int check_unread(const struct image_tree *t, const char *folder, struct text *out, struct error *e)
{
    if (!t->unread) return PL_OK;
    if (t->n_unread > t->files.n) return unread_refuse(t->unread, t->n_unread, folder, t->unread_example, e);
    text_printf(out, "%s%llu files are %s, which is not read (such as %s)", out->n ? ", " : "",
                (unsigned long long)t->n_unread, t->unread->name, t->unread_example);
    return PL_OK;
}

static int join_trees(struct dataset *d, const char *images, const char *masks, const struct image_tree *it,
                      const struct image_tree *mt, const struct affixes *given, struct error *e)
{
    struct affixes a;
    struct match m;
    uint64_t n;
    if (check_unread(it, images, &d->unpaired, e) || (mt != it && check_unread(mt, masks, &d->unpaired, e)))
        return e->code;
    if (given) a = *given;
    else if (match_find(it, mt, &a, &n, e)) return error_prepend(e, "%s", images);
    match_join(&m, it, mt, &a);
    match_print(&m, it, mt, &d->unpaired);
    for (uint32_t i = 0; i < m.pairs.n; i++)
        add_pair(d->state, images, masks, &it->files.at[m.pairs.at[i].image], &mt->files.at[m.pairs.at[i].mask],
                 m.pairs.at[i].key);
    d->report.members += it->files.n + (it == mt ? 0 : mt->files.n);
    d->report.no_text += m.alone[0];
    d->report.no_image += m.alone[1];
    d->report.others += m.others[0] + m.others[1];
    d->report.duplicates += m.duplicates;
    int rc = m.pairs.n ? PL_OK : match_refuse(it, images, mt, masks, e);
    match_free(&m);
    return rc;
}

/* Finds the folder of the masks, relative to that of the images, if it is inside; else NULL. */
static const char *inside(const char *folder, const char *outer)
{
    size_t n = strlen(outer);
    return !strncmp(folder, outer, n) && folder[n] == '/' ? folder + n + 1 : NULL;
}

static int join_folders(struct dataset *d, const char *images, const char *masks, const struct affixes *a,
                        struct error *e)
{
    struct image_tree it, mt = {0};
    /* two names of one folder: each image is its own mask, which the survey refuses */
    bool common = !strcmp(images, masks);
    int rc = image_tree_read(&it, images, inside(masks, images), e);
    if (!rc && !common) rc = image_tree_read(&mt, masks, inside(images, masks), e);
    if (!rc) rc = join_trees(d, images, masks, &it, common ? &it : &mt, a, e);
    image_tree_free(&it);
    image_tree_free(&mt);
    return rc;
}

/* Returns ROOT/NAME, or the given folder instead, relative to the root if it exists there. */
static char *folder_of(const char *root, const char *given, const char *usual)
{
    struct text path = {0};
    if (given && !strcmp(given, ".")) text_printf(&path, "%s", root);
    else text_printf(&path, "%s/%s", root, given ? given : usual);
    char *out = mem_string(given && (given[0] == '/' || !dir_exists(path.at)) ? given : path.at);
    text_free(&path);
    return out;
}

static int join_given(struct dataset *d, const struct dataset_options *o, const char *root, const struct affixes *a,
                      struct error *e)
{
    char *images = folder_of(root, o->images, "images"), *masks = folder_of(root, o->masks, "masks");
    int rc = PL_OK;
    for (int k = 0; k < 2 && !rc; k++)
        if (!dir_exists(k ? masks : images))
            rc = error_set(e, PL_USAGE, "%s: there is no folder of %s: expected %s (data.%s sets another)", root,
                           k ? "masks" : "images", k ? masks : images, k ? "masks" : "images");
    if (!rc) rc = join_folders(d, images, masks, a, e);
    mem_free(images);
    mem_free(masks);
    return rc;
}

/* Searches the folders. Pascal VOC's masks hold classes, and 255 is the border between objects. */
static int join_found(struct dataset *d, const char *root, const struct affixes *a, struct error *e)
{
    struct layout l;
    struct bump memory = {0};
    int rc = layout_find(&l, root, a, &memory, e);
    if (!rc) {
        char *images = folder_of(l.root, l.train.images, ""), *masks = folder_of(l.root, l.train.masks, "");
        if (l.voc && d->labels.kind == LABELS_AUTO) d->labels.kind = LABELS_CLASSES;
        if (l.voc && d->labels.ignore < 1) d->labels.ignore = 255;
        rc = join_folders(d, images, masks, &l.train.affixes, e);
        mem_free(images);
        mem_free(masks);
    }
    bump_free(&memory);
    return rc;
}

static int set_affixes(const struct dataset_options *o, struct affixes *a, bool *given, struct error *e)
{
    const char *const from[AFFIXES] = {o->image_prefix, o->image_suffix, o->mask_prefix, o->mask_suffix};
    *a = (struct affixes){0};
    *given = false;
    for (int i = 0; i < AFFIXES; i++) {
        if (!from[i]) continue;
        *given = true;
        if (strlen(from[i]) >= AFFIX_ROOM)
            return error_set(e, PL_USAGE, "a prefix or suffix has more than %d characters: %.40s...", AFFIX_ROOM - 1,
                             from[i]);
        strcpy(a->at[i], from[i]);
    }
    return PL_OK;
}

static int open_root(struct dataset *d, const struct dataset_options *o, const char *root, struct error *e)
{
    struct affixes a;
    bool given;
    if (set_affixes(o, &a, &given, e)) return e->code;
    if (!dir_exists(root)) {
        const struct unread *u = unread_file(root);
        if (!u && is_volume_name(root, NULL)) return volume_refuse(root, e);
        return u ? unread_refuse(u, 1, NULL, root, e)
                 : error_set(e, PL_USAGE, "%s is a file; data.format pairs expects a folder with images and masks",
                             root);
    }
    return o->images || o->masks ? join_given(d, o, root, given ? &a : NULL, e)
                                 : join_found(d, root, given ? &a : NULL, e);
}

static int pairs_open(struct dataset *d, const struct dataset_options *o, struct names *roots, struct error *e)
{
    TRY(pairs_start(d, o, roots->at[0], e));
    for (uint32_t i = 0; i < roots->n; i++) TRY(open_root(d, o, roots->at[i], e));
    TRY(pairs_finish(d, e));
    dataset_warn_unpaired(d, o, roots->at[0]);
    return PL_OK;
}

/* --- a sample: for tables too --------------------------------------------------------------- */

void pairs_describe(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key)
{
    const struct pairs *p = d->state;
    *key = p->names.at + p->items.at[i].key;
    snprintf(name, room, "%s", p->names.at + p->items.at[i].name);
}

bool pairs_split_group(const struct dataset *d, uint64_t i, char *out, size_t room)
{
    const struct pairs *p = d->state;
    const uint32_t whole = p->items.at[i].whole;
    if (whole) snprintf(out, room, "%s", p->names.at + whole - 1);
    return whole;
}

static enum data_fault too_large(const char *path, size_t need, size_t room, struct error *e)
{
    return error_set(e, PL_NOFIT, "%s: a slice takes %zu bytes; expected at most %zu", path, need, room),
           FAULT_TOO_LARGE;
}

enum data_fault pairs_image(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                                  struct error *e)
{
    const struct pairs *p = d->state;
    const struct item *x = &p->items.at[i];
    if (!x->image_volume) return fault_read_file(p->names.at + x->image, to, room, &out->n, e);
    const struct volume_channels c = slices_channels(p, x);
    const size_t need = volume_rgb_room(&c);
    const struct volume *v = c.at[0];
    if (need > room) return too_large(p->names.at + x->image, need, room, e);
    if (volume_rgb(&c, &d->range, x->slice, to, room, e))
        return error_prepend(e, "%s", p->names.at + x->image), FAULT_IMAGE;
    *out = (struct dataset_image){.n = (size_t)v->w * v->h * 3, .decoded = true, .w = v->w, .h = v->h, .full_w = v->w,
                                  .full_h = v->h, .pixels = to, .stride = (size_t)v->w * 3};
    return FAULT_NONE;
}

enum data_fault pairs_plane(const struct dataset *d, uint64_t i, void *to, size_t room, struct plane *out,
                            bool *is_plane, struct error *e)
{
    const struct pairs *p = d->state;
    const struct item *x = &p->items.at[i];
    *is_plane = x->image_volume;
    if (!*is_plane) return FAULT_NONE;
    const struct volume_channels c = slices_channels(p, x);
    const size_t need = volume_room(c.at[0], false);
    if (need > room) return too_large(p->names.at + x->image, need, room, e);
    return volume_read(c.at[0], x->slice, c.modality[0], false, to, room, out, e) ? FAULT_IMAGE : FAULT_NONE;
}

/* Sets the window of volumes; that of one slice is found when it is read. */
void pairs_set_range(struct dataset *d)
{
    struct pairs *p = d->state;
#pragma omp parallel for schedule(dynamic)
    for (uint32_t i = 0; i < p->items.n; i++) {
        const struct item *x = &p->items.at[i];
        struct error ignored; /* reading the slice reports it */
        if (!x->image_volume || (i && x[-1].image_volume == x->image_volume)) continue;
        struct volume *v = &p->volumes.at[x->image_volume - 1];
        for (uint32_t k = 0; k < p->channels && v->slices > 1; k++)
            volume_set_window(&v[k], v[k].modalities > 1 ? p->modality[k] : 0, &d->range, &ignored);
    }
}

const struct volume *pairs_slice(const struct dataset *d, uint64_t i, uint32_t *slice, const char **name)
{
    const struct pairs *p = d->state;
    const struct item *x = &p->items.at[i];
    const struct volume *v = x->image_volume ? &p->volumes.at[x->image_volume - 1] : NULL;
    if (!v || (v->kind == VOLUME_TIFF && v->slices == 1)) return NULL; /* one page is an image */
    *slice = x->slice;
    *name = p->names.at + x->key;
    return v;
}

/* Reads the labels of a slice into the scratch: the plane, and the table of label_masks behind
 * it. */
static enum data_fault read_labels(const struct pairs *p, const struct item *x, void *scratch, size_t n,
                                   struct label_image *out, struct error *e)
{
    const struct volume *v = &p->volumes.at[x->mask_volume - 1];
    const char *path = p->names.at + x->mask;
    const size_t room = (size_t)align_up(volume_room(v, true), 8), need = room + 65536 * sizeof(uint16_t);
    struct plane plane;
    if (need > n) return too_large(path, need, n, e);
    *out = (struct label_image){.h = v->h, .w = v->w, .pixels = scratch,
                                .map = (uint16_t *)(void *)((char *)scratch + room)};
    if (volume_read(v, x->slice, 0, true, scratch, room, &plane, e) || plane_to_labels(&plane, &out->bytes, e))
        return error_prepend(e, "%s", path), FAULT_MASK;
    return FAULT_NONE;
}

enum data_fault pairs_values(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct label_image *out,
                             struct error *e)
{
    const struct pairs *p = d->state;
    const struct item *x = &p->items.at[i];
    return x->mask_volume ? read_labels(p, x, scratch, n, out, e)
                          : label_decode(p->names.at + x->mask, scratch, n, out, e);
}

enum data_fault pairs_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                                  uint32_t room, struct dataset_masks *out, struct error *e)
{
    const struct pairs *p = d->state;
    const struct item *x = &p->items.at[i];
    struct label_image m;
    if (!x->mask_volume) return label_read(p->names.at + x->mask, &d->labels, scratch, n, masks, room, out, e);
    enum data_fault f = read_labels(p, x, scratch, n, &m, e);
    if (!f) f = label_masks(m.pixels, m.h, m.w, m.bytes, &d->labels, m.map, masks, room, out, e);
    if (f && f != FAULT_MANY && f != FAULT_TOO_LARGE) error_prepend(e, "%s", p->names.at + x->name);
    return f;
}

const char *pairs_label_path(const struct dataset *d, uint64_t i)
{
    const struct pairs *p = d->state;
    return p->names.at + p->items.at[i].mask;
}

const char *pairs_image_path(const struct dataset *d, uint64_t i)
{
    const struct pairs *p = d->state;
    return p->names.at + p->items.at[i].image;
}

static const char *pairs_category(const struct dataset *d, int32_t category)
{
    const struct pairs *p = d->state;
    return dataset_json_name(&p->json, category);
}

const struct dataset_format dataset_pairs = {
    .name = "pairs", .state = sizeof(struct pairs), .open = pairs_open, .close = pairs_close,
    .describe = pairs_describe, .image = pairs_image, .masks = pairs_masks, .category = pairs_category,
    .values = pairs_values, .plane = pairs_plane, .set_range = pairs_set_range, .slice = pairs_slice,
    .split_group = pairs_split_group, .label = pairs_label_path, .image_path = pairs_image_path,
};
