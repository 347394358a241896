/*
 * predict_volumes.c: see predict_volumes.h.
 */
#include "cli/predict_volumes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "feed/feed.h"

/* A TIFF of one page is an image. */
static bool is_stack(const char *path)
{
    struct volume v;
    struct error ignored;
    if (!path_has_ending(path, ".tif") && !path_has_ending(path, ".tiff")) return false;
    if (volume_open(&v, path, &(struct volume_options){0}, &ignored)) return false;
    const bool many = v.slices > 1;
    volume_close(&v);
    return many;
}

bool predict_is_volume(const char *path)
{
    return path_has_ending(path, ".nii") || path_has_ending(path, ".nii.gz") || path_has_ending(path, ".dcm") ||
           is_dicom_folder(path) || is_stack(path);
}

/* --- slices as images ------------------------------------------------------------------------- */

struct slices {
    const struct predict *p;
    struct volume at[3];  /* a volume for each channel that is a modality */
    struct volume_channels channels;
    uint32_t first;       /* slice */
    char name[256];
};

static void close_slices(struct predict_source *s)
{
    struct slices *v = s->state;
    for (int i = 0; i < 3; i++)
        if (v->at[i].path) volume_close(&v->at[i]);
    mem_free(v);
}

static int read_slice(struct predict_source *s, uint64_t i, struct predict_item *out, struct error *e)
{
    struct slices *v = s->state;
    const size_t room = volume_rgb_room(&v->channels);
    uint8_t *rgb = mem_alloc(room);
    out->slice = v->first + (uint32_t)i;
    out->volume = &v->at[0];
    out->volume_name = v->name;
    out->prompts = &v->p->common;
    out->n = 1;
    snprintf(out->name, sizeof out->name, "%s_%03u", v->name, out->slice);
    if (volume_rgb(&v->channels, &v->p->range, out->slice, rgb, room, e)) return mem_free(rgb), e->code;
    out->image = (struct predictor_image){.w = v->at[0].w, .h = v->at[0].h, .rgb = rgb};
    return PL_OK;
}

/* --slices FIRST-LAST, counted from 0, both included. */
static int choose_slices(const struct predict *p, const struct volume *v, uint32_t *first, uint64_t *n, struct error *e)
{
    unsigned from = 0, to = v->slices - 1;
    char end;
    *first = 0, *n = v->slices;
    if (!p->slices) return PL_OK;
    const int got = sscanf(p->slices, "%u-%u%c", &from, &to, &end);
    if (got == 1) to = from;
    if ((got != 1 && got != 2) || from > to)
        return error_set(e, PL_USAGE, "--slices %s: expected one number, or the first and the last, such as 40-60",
                         p->slices);
    if (to >= v->slices)
        return error_set(e, PL_USAGE, "--slices %s: %s has the slices 0 to %u", p->slices, v->path, v->slices - 1);
    *first = from, *n = to - from + 1;
    return PL_OK;
}

/* The keys of --set, else those of the model's run. */
static int open_channels(struct slices *v, const struct predict *p, struct error *e)
{
    const struct slice_options s = p->slicing;
    const struct volume_options o = {s.axis, s.cache};
    const uint32_t n = s.n_modalities ? s.n_modalities : 1;
    for (uint32_t i = 0; i < n && i < 3; i++) {
        const uint32_t modality = s.n_modalities ? (uint32_t)s.modalities[i] : 0;
        if (volume_open(&v->at[i], p->paths.at[0], &o, e)) return error_prepend(e, "%s", p->paths.at[0]);
        if (v->at[i].modalities > 1 && !s.n_modalities)
            return error_set(e, PL_USAGE, "%s has 4 dimensions: choose a modality, such as --set 'data.modalities=[0]'",
                             p->paths.at[0]);
        if (modality >= v->at[i].modalities)
            return error_set(e, PL_USAGE, "%s has %u modalities, and data.modalities names %u", p->paths.at[0],
                             v->at[i].modalities, modality);
        v->channels.at[i] = &v->at[i], v->channels.modality[i] = modality;
        if (volume_set_window(&v->at[i], modality, &p->range, e)) return error_prepend(e, "%s", p->paths.at[0]);
    }
    for (int i = 0; i < 3 && s.neighbours && n == 1 && v->at[0].slices > 1; i++)
        v->channels.at[i] = &v->at[0], v->channels.modality[i] = v->channels.modality[0], v->channels.step[i] = i - 1;
    return PL_OK;
}

/* "case" of DIR/case.nii.gz */
static void name_of(const char *path, char *out, size_t room)
{
    const char *slash = strrchr(path, '/');
    size_t ending = 0;
    if (slash && !slash[1]) slash = NULL;
    snprintf(out, room, "%s", slash ? slash + 1 : path);
    if (is_volume_name(out, &ending)) out[strlen(out) - ending] = 0;
}

int predict_slices(struct predict_source *s, struct predict *p, struct error *e)
{
    struct slices *v = mem_alloc(sizeof *v);
    v->p = p;
    *s = (struct predict_source){.read = read_slice, .close = close_slices, .state = v, .most = 1};
    name_of(p->paths.at[0], v->name, sizeof v->name);
    int rc = open_channels(v, p, e);
    if (!rc) rc = choose_slices(p, &v->at[0], &v->first, &s->n, e);
    if (!rc) rc = predict_shape(s, p->common.n, p->common.box, e);
    if (!rc)
        log_note("%s: %u x %u voxels, %u slices; values from %.10g to %.10g become 0 to 255 (data.window sets others)",
                 p->paths.at[0], v->at[0].w, v->at[0].h, v->at[0].slices, v->at[0].window[0], v->at[0].window[1]);
    if (rc) close_slices(s);
    return rc;
}

/* --- masks as labels -------------------------------------------------------------------------- */

static bool names_file(const char *path) { return path_has_ending(path, ".nii") || path_has_ending(path, ".nii.gz"); }

static int begin(struct label_output *o, const struct predict_item *x, struct error *e)
{
    const struct volume *v = o->of = x->volume;
    struct text path = {0};
    if (names_file(o->p->output)) text_printf(&path, "%s", o->p->output);
    else predict_label_path(o->p->output, x->volume_name, o->folders, &path);
    int rc = o->folders ? predict_make_folder(path.at, e) : PL_OK;
    if (!rc)
        rc = nifti_write_begin(&o->writer, path.at, v, o->p->config.data_labels == LABELS_INSTANCES ? UINT16_MAX : 255,
                               e);
    text_free(&path);
    o->labels = mem_alloc((size_t)v->w * v->h * sizeof *o->labels);
    o->area = mem_alloc((size_t)v->w * v->h * sizeof *o->area);
    return rc;
}

static int finish(struct label_output *o, bool failed, struct error *e)
{
    int rc = o->writer ? nifti_write_end(o->writer, failed, e) : PL_OK;
    o->volumes += o->writer && !rc && !failed;
    mem_free(o->labels);
    mem_free(o->area);
    *o = (struct label_output){.p = o->p, .volumes = o->volumes, .folders = o->folders};
    return rc;
}

static uint16_t label_of(const struct predict_item *x, uint32_t k)
{
    const struct image_prompt *q = &x->prompts[k];
    const int64_t id = q->id ? strtoll(q->id, NULL, 10) : 0, label = q->category > 0 ? q->category
                                                                     : id > 0        ? id
                                                                                     : (int64_t)k + 1;
    return (uint16_t)min_i64(label, UINT16_MAX);
}

int label_output_add(struct label_output *o, const struct predict_item *x, uint32_t k, const uint8_t *mask,
                     struct error *e)
{
    if (o->of != x->volume && (finish(o, false, e) || begin(o, x, e))) return e->code;
    const size_t n = (size_t)x->volume->w * x->volume->h;
    const uint16_t label = label_of(x, k);
    uint32_t area = 0;
    if (label > 255 && o->p->config.data_labels != LABELS_INSTANCES)
        return error_set(e, PL_USAGE,
                         "a label volume of classes has the values 1 to 255, and a mask has the category %u; "
                         "data.labels: instances has more",
                         label);
    for (size_t i = 0; i < n; i++) area += mask[i] != 0;
    for (size_t i = 0; i < n; i++)
        if (mask[i] && (!o->labels[i] || area < o->area[i])) o->labels[i] = label, o->area[i] = area;
    return PL_OK;
}

int label_output_slice(struct label_output *o, const struct predict_item *x, struct error *e)
{
    const size_t n = (size_t)x->volume->w * x->volume->h;
    if (o->of != x->volume) return PL_OK; /* no mask */
    int rc = nifti_write_slice(o->writer, x->slice, o->labels, e);
    memset(o->labels, 0, n * sizeof *o->labels);
    memset(o->area, 0, n * sizeof *o->area);
    return rc;
}

int label_output_end(struct label_output *o, bool failed, struct error *e) { return finish(o, failed, e); }
