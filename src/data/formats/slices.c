/*
 * slices.c: see slices.h. Cases are opened in parallel and added in their order.
 */
#include "data/formats/slices.h"

#include <stdio.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/progress.h"
#include "data/detect/match.h"
#include "data/volumes/volume_cache.h"
#include "io/file.h"

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

/* nnU-Net has a file per modality: case_0000.nii.gz, case_0001.nii.gz. */
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

/* Which indices along each axis of the array have a label: [dims[0] + dims[1] + dims[2]]. */
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

/* The marks are stored with their checksum. */
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

/* One of both files is no volume. */
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

/* Whether DICOM files are of several patients, by their IDs: anonymous ones often have the same
 * ID. */
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

/* The patient, else the volume. */
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

int slices_expand(struct dataset *d, struct error *e)
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

struct volume_channels slices_channels(const struct pairs *p, const struct item *i)
{
    struct volume_channels c = {{0}};
    const struct volume *first = &p->volumes.at[i->image_volume - 1];
    for (uint32_t k = 0; k < p->channels; k++)
        c.at[k] = first + k, c.modality[k] = first[k].modalities > 1 ? p->modality[k] : 0;
    if (!p->slices.neighbours || first->slices == 1) return c;
    for (int k = 0; k < 3; k++) c.at[k] = first, c.modality[k] = c.modality[0], c.step[k] = k - 1;
    return c;
}
