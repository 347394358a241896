/*
 * clips.c: see clips.h.
 */
#include "data/clips.h"

#include "base/random.h"
#include "data/fill.h"
#include "data/order.h"

struct clip_slot {
    struct clip_sample out;
    uint8_t *images, *bits;
    struct loader_mask *masks;
    struct slot_fault why;
    int rc; /* not PL_OK: no substitute could be used either */
};

/* The state of a thread. */
struct worker {
    struct clip_options o;
    struct filler *filler;
};

/* --- clips of a dataset ----------------------------------------------------------------------- */

/* Returns the length of a path without its last component. */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) : 0;
}

static bool same_folder(const char *a, const char *b)
{
    const size_t n = folder_length(a);
    return n == folder_length(b) && !strncmp(a, b, n);
}

/* Finds the slices of the volume that begins with sample out->first. */
static void find_slices(const struct dataset *d, const char *volume, struct clip_video *out)
{
    const char *name;
    uint32_t slice;
    snprintf(out->name, sizeof out->name, "%s", volume);
    while (out->first + out->n < dataset_count(d) &&
           dataset_slice(d, out->first + out->n, &slice, &name) == out->volume)
        out->n++;
}

/* Finds the files in the folder of the one at a path. */
static void find_files(const struct dataset *d, const char *path, struct clip_video *out)
{
    size_t end = folder_length(path), begin = end;
    while (begin && path[begin - 1] != '/') begin--;
    snprintf(out->name, sizeof out->name, "%.*s", (int)(end - begin), path + begin);
    while (out->first + out->n < dataset_count(d) &&
           same_folder(path, dataset_image_path(d, out->first + out->n)))
        out->n++;
}

int clips_video(const struct dataset *d, uint64_t first, struct clip_video *out, struct error *e)
{
    const char *volume, *path;
    uint32_t slice;
    *out = (struct clip_video){.first = first, .n = 1, .volume = dataset_slice(d, first, &slice, &volume)};
    if (out->volume) find_slices(d, volume, out);
    else if (d->format->image_path && (path = dataset_image_path(d, first))) find_files(d, path, out);
    else
        return error_set(e, PL_USAGE, "clips are frames in files, in a folder for each video, or slices of volumes");
    return PL_OK;
}

enum data_fault clips_labels(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct label_image *out,
                             struct error *e)
{
    return d->format->values(d, d->chosen ? d->chosen[i] : i, scratch, n, out, e);
}

int clips_find(struct clip_starts *out, const struct dataset *d, uint32_t frames, uint32_t apart, struct error *e)
{
    const uint64_t n = dataset_count(d);
    struct clip_video v = {0};
    *out = (struct clip_starts){0};
    for (uint64_t i = 0, end; i < n; i = end) {
        TRY(clips_video(d, i, &v, e));
        end = i + v.n;
        out->videos++;
        out->short_videos += end - i < frames;
        for (uint64_t k = i; k + frames <= end; k += apart) vec_push(&out->at, (uint32_t)k);
    }
    if (out->at.n) return PL_OK;
    if (v.volume)
        return error_set(e, PL_USAGE, "no volume has %u slices with labels, the length of a clip (data.frames)",
                         frames);
    return error_set(e, PL_USAGE,
                     "no folder has %u frames with masks, the length of a clip (data.frames): expected a folder for "
                     "each video, with its frames in the order of their names", frames);
}

/* --- memory ----------------------------------------------------------------------------------- */

static size_t mask_bytes(const struct clip_options *o) { return grid_mask_bytes(o->image.cells, o->image.cells); }
static uint64_t frame_bytes(const struct clip_options *o) { return (uint64_t)3 * o->image.side * o->image.side; }

static uint64_t slot_layout_of(void *slot, const void *options, char *at)
{
    const struct clip_options *o = options;
    struct clip_slot *s = slot;
    uint64_t used = 0;
    s->images = ring_carve(at, &used, o->frames * frame_bytes(o));
    s->bits = ring_carve(at, &used, (uint64_t)o->frames * o->image.masks * mask_bytes(o));
    s->masks = ring_carve(at, &used, o->image.masks * sizeof *s->masks);
    return used;
}

static uint64_t thread_bytes(const void *options)
{
    return filler_size(&((const struct clip_options *)options)->image);
}

static void *thread_new(const void *options, char *at)
{
    struct worker *w = mem_alloc(sizeof *w);
    w->o = *(const struct clip_options *)options;
    w->filler = filler_new(&w->o.image, at);
    return w;
}

static void thread_free(void *thread)
{
    struct worker *w = thread;
    if (!w) return;
    filler_free(w->filler);
    mem_free(w);
}

/* --- a clip ----------------------------------------------------------------------------------- */

/* Chooses the objects of the first frame: those with a cell of the grid, from a random one on if
 * there are more than fit. */
static enum data_fault choose_objects(struct worker *w, const struct fill_facts *f, uint64_t key, struct clip_slot *s,
                                      struct error *e)
{
    struct loader_sample *x = &s->out.first;
    const uint64_t from = f->n ? random_bits(key, x->position) % f->n : 0;
    for (uint32_t i = 0; i < f->n && x->n < w->o.image.masks; i++) {
        const uint32_t k = (uint32_t)((from + i) % f->n);
        uint8_t *bits = s->bits + x->n * mask_bytes(&w->o);
        struct loader_mask m = {.id = f->records[k].id};
        const enum data_fault fault = fill_bits(w->filler, k, bits, e);
        if (fault) return fault;
        fill_measure(w->filler, bits, &m);
        if (m.area) s->masks[x->n++] = m;
    }
    if (x->n) return FAULT_NONE;
    error_set(e, PL_USAGE, "the first frame of the clip has no object");
    return FAULT_NO_MASKS;
}

/* Fills the bits of the chosen objects on a later frame. */
static enum data_fault find_objects(struct worker *w, const struct fill_facts *f, uint32_t t, struct clip_slot *s,
                                    struct error *e)
{
    uint8_t *bits = s->bits + (size_t)t * w->o.image.masks * mask_bytes(&w->o);
    for (uint32_t i = 0; i < s->out.first.n; i++)
        for (uint32_t k = 0; k < f->n; k++) {
            if (f->records[k].id != s->masks[i].id) continue;
            const enum data_fault fault = fill_bits(w->filler, k, bits + i * mask_bytes(&w->o), e);
            if (fault) return fault;
        }
    return FAULT_NONE;
}

/* Reads a frame. Without any object it has the size of the first one. */
static enum data_fault read_frame(struct worker *w, const struct clip_source *source, uint32_t sample, uint32_t t,
                                  struct clip_slot *s, struct error *e)
{
    struct fill_facts f = {0};
    enum data_fault fault = fill_records(w->filler, source->set, sample + t, false, &f, e);
    if (fault == FAULT_NO_MASKS && t) fault = FAULT_NONE, f.n = 0;
    if (fault) return fault;
    if (!t) {
        struct loader_sample *x = &s->out.first;
        x->height = f.h, x->width = f.w, x->rows = f.rows, x->columns = f.columns;
        x->mask_rows = x->mask_columns = w->o.image.cells;
        fault = choose_objects(w, &f, random_key(source->order.seed, "objects of a clip"), s, e);
    } else {
        fault = find_objects(w, &f, t, s, e);
    }
    if (fault) return fault;
    return fill_sample_image(w->filler, source->set, sample + t, s->images + t * frame_bytes(&w->o), e);
}

static enum data_fault read_clip(struct worker *w, const struct clip_source *source, uint64_t clip, uint64_t position,
                                 struct clip_slot *s, struct error *e)
{
    const uint32_t sample = source->starts->at.at[clip];
    s->out = (struct clip_sample){.images = s->images, .bits = s->bits,
                                  .first = {.position = position, .sample = sample, .image = s->images,
                                            .bits = s->bits, .masks = s->masks}};
    memset(s->bits, 0, (size_t)w->o.frames * w->o.image.masks * mask_bytes(&w->o));
    for (uint32_t t = 0; t < w->o.frames; t++) {
        const enum data_fault fault = read_frame(w, source, sample, t, s, e);
        if (!fault) continue;
        dataset_name(source->set, sample + t, s->why.name, sizeof s->why.name);
        return fault;
    }
    return FAULT_NONE;
}

static void fill_clip(void *thread, const void *from, uint64_t position, void *slot)
{
    struct worker *w = thread;
    const struct clip_source *source = from;
    const struct sample_order *o = &source->order;
    struct clip_slot *s = slot;
    struct error e = {0};
    const uint64_t n = source->starts->at.n, clip = o->once ? position : sample_at(o->seed, position, n, o->shuffle);
    char name[sizeof s->why.name];
    s->why = (struct slot_fault){.fault = FAULT_NONE};
    s->rc = PL_OK;
    const enum data_fault fault = read_clip(w, source, clip, position, s, &e);
    if (!fault) return;
    s->why.broken = 1;
    faults_set(&s->why, fault, &e);
    snprintf(name, sizeof name, "%s", s->why.name);
    s->rc = o->once ? PL_OK : PL_FAIL;
    if (o->once) s->out.first.n = 0;
    for (uint64_t i = 0; i < FAULTS_TRIES && s->rc && fault != FAULT_OPEN; i++)
        if (!read_clip(w, source, faults_substitute(o->seed, position, i, n), position, s, &e)) s->rc = PL_OK;
    snprintf(s->why.name, sizeof s->why.name, "%s", name);
}

/* --- the consumer ----------------------------------------------------------------------------- */

static uint64_t count_clips(const void *source) { return ((const struct clip_source *)source)->starts->at.n; }

static int take(void *from, const void *slot, struct error *e)
{
    const struct clip_slot *s = slot;
    struct clip_source *source = from;
    struct loader_counts *c = &source->order.counts;
    const bool whole = (s->out.first.position + 1) % source->starts->at.n == 0;
    const char *instead = source->order.once ? "it is left out" : "another clip replaces it";
    if (faults_open(&s->why, e)) return e->code;
    c->seen++;
    if (s->why.fault == FAULT_NO_MASKS) c->empty++;
    else if (s->why.broken) faults_count(c, &s->why, false, instead, "");
    if (dataset_intact(source->set, e)) return e->code;
    if (s->rc)
        return error_set(e, c->broken + c->empty == c->seen ? PL_USAGE : PL_FAIL,
                         "no clip is left: the one with %s cannot be used (%s), and neither can any substitute that "
                         "was tried", s->why.name, s->why.text);
    return faults_check(c, source->order.max_bad, whole, "", e);
}

const struct reader_kind clips_kind = {
    .ring = {sizeof(struct clip_slot), slot_layout_of, thread_bytes, thread_new, thread_free, fill_clip, NULL},
    .options = sizeof(struct clip_options),
    .threads = offsetof(struct clip_options, image.threads),
    .slots = offsetof(struct clip_options, image.slots),
    .count = count_clips,
    .take = take};
