/*
 * slice_images.c: see slice_images.h.
 */
#include "infer/slice_images.h"

void slice_images_close(struct slice_images *v)
{
    for (int i = 0; i < 3; i++)
        if (v->at[i].path) volume_close(&v->at[i]);
}

int slice_images_read(const struct slice_images *v, const struct pixel_range *range, uint32_t slice, struct image *out,
                      struct error *e)
{
    const size_t room = volume_rgb_room(&v->channels);
    *out = (struct image){.width = v->at[0].w, .height = v->at[0].h, .rgb = mem_alloc(room)};
    return volume_rgb(&v->channels, range, slice, out->rgb, room, e);
}

/* Opens the volume once for each channel that is a modality. */
static int open_channels(struct slice_images *v, const char *path, const struct image_reading *r, struct error *e)
{
    const struct slice_options s = r->slices;
    const uint32_t n = s.n_modalities ? s.n_modalities : 1;
    for (uint32_t i = 0; i < n && i < 3; i++) {
        const uint32_t modality = s.n_modalities ? (uint32_t)s.modalities[i] : 0;
        struct volume *x = &v->at[i];
        if (volume_open(x, path, &(struct volume_options){s.axis, s.cache}, e)) return error_prepend(e, "%s", path);
        if (x->modalities > 1 && !s.n_modalities)
            return error_set(e, PL_USAGE, "%s has 4 dimensions: choose a modality, such as --set 'data.modalities=[0]'",
                             path);
        if (modality >= x->modalities)
            return error_set(e, PL_USAGE, "%s has %u modalities, and data.modalities names %u", path, x->modalities,
                             modality);
        v->channels.at[i] = x, v->channels.modality[i] = modality;
        if (volume_set_window(x, modality, &r->range, e)) return error_prepend(e, "%s", path);
    }
    for (int i = 0; i < 3 && s.neighbours && n == 1 && v->at[0].slices > 1; i++)
        v->channels.at[i] = &v->at[0], v->channels.modality[i] = v->channels.modality[0], v->channels.step[i] = i - 1;
    return PL_OK;
}

int slice_images_open(struct slice_images *v, const char *path, const struct image_reading *r, struct error *e)
{
    const char *slash = strrchr(path, '/');
    size_t ending = 0;
    *v = (struct slice_images){0};
    snprintf(v->name, sizeof v->name, "%s", slash && slash[1] ? slash + 1 : path);
    if (is_volume_name(v->name, &ending)) v->name[strlen(v->name) - ending] = 0;
    TRY(open_channels(v, path, r, e));
    log_note("%s: %u x %u voxels, %u slices; values from %.10g to %.10g become 0 to 255 (data.window sets others)",
             path, v->at[0].w, v->at[0].h, v->at[0].slices, v->at[0].window[0], v->at[0].window[1]);
    return PL_OK;
}
