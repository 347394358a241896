/*
 * image_source.c: see image_source.h.
 */
#include "data/image_source.h"

#include <string.h>

#include "data/image.h"

/* --- opening ------------------------------------------------------------------------------------ */

int image_source_processor(struct image_processor *p, const struct model *m, struct error *e)
{
    const enum image_family family = m->images->layout == IMAGE_AS_TILES ? IMAGES_IDEFICS3 : strstr(m->images->tower, "siglip") ? IMAGES_SIGLIP : IMAGES_CLIP;
    if (*m->path) return image_processor_read(p, m->path, family, (uint32_t)m->image, e);
    image_processor_default(p, family, (uint32_t)m->image);
    return PL_OK;
}

int image_source_open(struct image_source *s, const struct model *m, const struct tokenizer *t, const struct template *template, const char *where, struct error *e)
{
    const struct image_model *x = m->images;
    *s = (struct image_source){.text = {.layout = x->layout, .token = x->token, .features = (uint32_t)x->features, .start_end = x->start_end}};
    int rc = image_text_open(&s->text, t, template, e);
    if (!rc) rc = image_source_processor(&s->processor, m, e);
    if (!rc) rc = image_files_open(&s->files, where, e);
    return rc;
}

void image_source_close(struct image_source *s)
{
    if (s->files) image_files_close(s->files);
    *s = (struct image_source){0};
}

uint64_t image_source_fingerprint(const struct image_source *s)
{
    const struct image_processor *p = &s->processor;
    const uint32_t tiles[] = {p->tile, p->split, p->resize, p->longest_edge, p->height, p->width};
    const uint64_t text = image_text_fingerprint(&s->text);
    return s->text.layout == IMAGE_AS_TILES ? hash_bytes(tiles, sizeof tiles, text) : text;
}

/* --- tiles -------------------------------------------------------------------------------------- */

int image_source_tiles(const struct image_source *s, const char *reference, struct image_tiles *out, struct error *e)
{
    uint64_t bytes = 0;
    uint32_t width, height;
    size_t n = 0, room;
    *out = (struct image_tiles){0};
    if (s->text.layout != IMAGE_AS_TILES) return PL_OK;
    if (image_files_find(s->files, reference, &bytes, e)) return e->code;
    void *file = mem_alloc(bytes + 1);
    int rc = image_files_read(s->files, reference, file, bytes, &n, e);
    if (!rc && image_peek(file, n, &(struct image_options){.on_white = true}, &width, &height, &room, e)) rc = error_prepend(e, "%.100s", reference);
    if (!rc) image_processor_count(&s->processor, width, height, &out->rows, &out->columns);
    mem_free(file);
    return rc;
}
