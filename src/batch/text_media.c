/*
 * text_media.c: see text_media.h.
 */
#include "batch/text_media.h"

#include "models/image_grid.h"
#include "models/images.h"

/* Returns the bytes of an image for the vision tower. */
static uint64_t image_bytes(const struct model *m)
{
    return (uint64_t)(m->images->channels * m->image * m->image);
}

/* Allocates what images of any size take. */
static void open_grids(struct text_media *m, const struct grid_model *g, size_t rows)
{
    const size_t P = (size_t)m->room.patches, tokens = (size_t)(m->texts * m->cache);
    m->walk = mem_alloc((size_t)m->texts * sizeof *m->walk);
    m->three = mem_alloc(tokens * sizeof *m->three), m->index = mem_alloc(tokens * sizeof *m->index);
    m->row_three = mem_alloc(rows * sizeof *m->row_three), m->row_index = mem_alloc(rows * sizeof *m->row_index);
    if (!P) return;
    m->grids = mem_alloc(P * sizeof *m->grids);
    m->patches = mem_alloc(P * (size_t)grid_values(g) * sizeof *m->patches);
    m->order = mem_alloc(P * sizeof *m->order);
}

void text_media_open(struct text_media *m, struct run *r, struct batch_writer *w, int64_t texts, int64_t cache,
                     int64_t rows)
{
    const struct model *model = &r->planned.model;
    *m = (struct text_media){.run = r, .writer = w, .texts = texts, .cache = cache,
                             .room = contents_of(&r->planned.batch)->media};
    if (model->images && model->images->single) m->pixels = mem_alloc(image_bytes(model));
    int64_t media = m->room.images + m->room.frames;
    for (int k = 0; k < MODALITIES; k++) media += m->room.volumes[k];
    m->runs = mem_alloc((size_t)media * sizeof *m->runs);
    if (images_grids(model)) open_grids(m, images_grids(model), (size_t)rows);
}

void text_media_close(struct text_media *m)
{
    void *const all[] = {m->runs, m->pixels, m->walk, m->three, m->index, m->row_three, m->row_index,
                         m->grids, m->patches, m->order};
    for (size_t i = 0; i < COUNT(all); i++) mem_free(all[i]);
    *m = (struct text_media){0};
}

void text_media_begin(struct text_media *m, int64_t text)
{
    m->feature[0] = m->feature[1] = m->n_runs = 0;
    m->has = (struct media){0};
    m->n_grids = 0;
    if (m->walk) m->walk[text] = (struct grid_walk){.model = images_grids(&m->run->planned.model)};
    if (m->walk && m->room.patches) m->walk[text].grids = m->grids, m->walk[text].feature = m->order;
}

int64_t text_media_tokens(const struct text_media *m) { return m->n_runs ? m->runs[m->n_runs - 1].end : 0; }

/* --- reading ---------------------------------------------------------------------------------- */

/* An image, a video or a volume on its way into the tower's input. */
struct putting {
    struct text_media *m;
    const struct image_pixels *x;
    bool frames;
};

static int refuse_more(const struct text_media *m, struct error *e)
{
    return error_set(e, PL_USAGE, "the text has more than %lld images or tiles, %lld frames of videos and the volumes "
                     "for which memory is planned", (long long)m->room.images, (long long)m->room.frames);
}

/* Writes the patches of a volume. */
static int put_volume(struct text_media *m, int modality, const void *values, struct error *e)
{
    const struct modality *x = &m->run->planned.model.images->modalities.at[modality];
    const uint64_t bytes = (uint64_t)modality_floats(x) * sizeof(float),
                   place = (uint64_t)m->has.volumes[modality]++;
    if (!media_fit(&m->room, &m->has)) return refuse_more(m, e);
    return batch_write_part(m->run, batch_inputs[ROW_VOLUMES_0 + modality].name, place * bytes, values, bytes, e);
}

/* Writes pixels to the tower's input. Frames have their places after those of all images. */
static int put_pixels(void *user, const void *values, uint32_t count, struct error *e)
{
    const struct putting *p = user;
    struct text_media *m = p->m;
    const uint64_t bytes = image_bytes(&m->run->planned.model);
    struct media *n = &m->has;
    if (p->x->modality >= 0) return put_volume(m, p->x->modality, values, e);
    const int64_t place = p->frames ? m->room.images + n->frames : n->images;
    *(p->frames ? &n->frames : &n->images) += count;
    if (!media_fit(&m->room, n)) return refuse_more(m, e);
    if (!m->pixels) return batch_write_part(m->run, "pixel_values", (uint64_t)place * bytes, values, count * bytes, e);
    memcpy(m->pixels, values, bytes);
    return PL_OK;
}

static int put_patches(void *user, const void *values, uint32_t count, struct error *e)
{
    const struct putting *p = user;
    struct text_media *m = p->m;
    const int64_t K = grid_values(images_grids(&m->run->planned.model));
    if (m->has.patches + count > m->room.patches)
        return error_set(e, PL_USAGE, "the images of the text have more than %lld patches, for which memory is planned",
                         (long long)m->room.patches);
    memcpy(m->patches + m->has.patches * K, values, (size_t)(count * K));
    m->has.patches += count;
    m->grids[m->n_grids++] = (struct image_grid){p->x->grid.t, p->x->grid.h, p->x->grid.w, p->x->video, p->x->seconds};
    return PL_OK;
}

/* Reads images of any size, and writes them to the tower's inputs. */
static int read_grids(struct text_media *m, const struct image_source *s, char *const *references, uint32_t n,
                      struct error *e)
{
    for (uint32_t i = 0; i < n; i++) {
        struct image_pixels x;
        TRY(image_source_read(s, references[i], false, put_patches, &(struct putting){m, &x}, &x, e));
    }
    if (!m->room.patches) return PL_OK;
    if (s) {
        const struct image_processor normalisation = image_source_normalisation(&s->patches);
        batch_writer_set_pixels(m->writer, &normalisation);
    }
    grid_lay_out(images_grids(&m->run->planned.model), m->grids, m->n_grids, m->room.patches,
                 &(struct grid_row){.feature = m->order});
    const struct batch_record images = {.is = {[ROW_PIXELS] = {m->patches}}, .grids = m->grids, .n_grids = m->n_grids};
    return batch_write(m->writer, &(struct batch_target){0}, 0, &images, e);
}

/* Adds the tokens of an image, a video or a volume; `before`: what came before it. */
static void add_run(struct text_media *m, const struct putting *p, const struct media *before)
{
    const struct image_model *x = m->run->planned.model.images;
    const int k = p->x->modality;
    const int64_t tokens = k >= 0                                   ? x->modalities.at[k].tokens
                           : p->frames && m->room.tokens_per_frame ? m->room.tokens_per_frame
                                                                   : x->features;
    const int64_t row = k >= 0 ? images_volume_row(&m->run->planned.model, &m->room, k) + before->volumes[k] * tokens
                        : p->frames ? m->room.images * x->features + before->frames * tokens
                                    : before->images * tokens;
    m->runs[m->n_runs] = (struct image_run){text_media_tokens(m) + p->x->count * tokens, row, k >= 0};
    m->n_runs++;
}

int text_media_read(struct text_media *m, const struct image_source *s, char *const *references, uint32_t n,
                    struct error *e)
{
    const struct image_model *x = m->run->planned.model.images;
    if (x && x->grids) return read_grids(m, s, references, n, e);
    if (s) batch_writer_set_pixels(m->writer, &s->processor);
    if (n && x->channels != 3)
        return error_set(e, PL_USAGE, "the vision tower takes images of %lld channels, and files have 3",
                         (long long)x->channels);
    const bool beside = image_source_images(references, n) > 1;
    for (uint32_t i = 0; i < n; i++) {
        struct image_pixels pixels;
        struct putting p = {m, &pixels, media_is_video(references[i])};
        const struct media before = m->has;
        TRY(image_source_read(s, references[i], beside, put_pixels, &p, &pixels, e));
        add_run(m, &p, &before);
    }
    return PL_OK;
}

/* --- image tokens ----------------------------------------------------------------------------- */

bool text_media_is_token(const struct text_media *m, int32_t id, int64_t feature)
{
    const struct image_model *x = m->run->planned.model.images;
    if (m->n_runs && x->anyres) return anyres_is_token(x->anyres, id);
    return m->n_runs && id == x->token && feature < text_media_tokens(m);
}

/* Checks the image tokens of a prompt whose ids tell the shapes of its images. */
static int check_tiles(const struct anyres *a, const int32_t *ids, int64_t n, struct media has, struct error *e)
{
    struct anyres_shape shape;
    for (int64_t i = 0; i < n;) {
        const bool image = anyres_is_token(a, ids[i]);
        if (image && !anyres_find(a, ids + i, n - i, &shape))
            return error_set(e, PL_USAGE, "image tokens of this model follow from the sizes of images: give the prompt "
                                          "as text or as a chat");
        if (image) has.images -= anyres_images(shape), has.frames -= shape.frames;
        i += image ? anyres_tokens(a, shape) : 1;
    }
    if (!has.images && !has.frames) return PL_OK;
    return error_set(e, PL_USAGE, "the image tokens of the prompt do not match its images");
}

int text_media_check(const struct text_media *m, const int32_t *ids, int64_t n, uint32_t n_images, struct error *e)
{
    const struct image_model *x = m->run->planned.model.images;
    int64_t tokens = 0;
    if (!n_images || x->grids) return PL_OK;
    if (x->anyres) return check_tiles(x->anyres, ids, n, m->has, e);
    for (int64_t i = 0; i < n; i++) tokens += ids[i] == x->token;
    const int64_t need = text_media_tokens(m);
    if (tokens == need) return PL_OK;
    if (media_volumes(&m->has))
        return error_set(e, PL_USAGE, "the prompt has %lld image tokens (id %d), and its images and volumes need %lld",
                         (long long)tokens, x->token, (long long)need);
    if (m->has.frames)
        return error_set(e, PL_USAGE,
                         "the prompt has %lld image tokens (id %d), and its images and videos need %lld: %lld for each "
                         "of %lld images, and those of %lld frames",
                         (long long)tokens, x->token, (long long)need, (long long)x->features,
                         (long long)m->has.images, (long long)m->has.frames);
    return error_set(e, PL_USAGE,
                     "the prompt has %lld image tokens (id %d), and its images need %lld: %lld for each of %lld %s",
                     (long long)tokens, x->token, (long long)need, (long long)x->features, (long long)m->has.images,
                     image_is_tiled(x->layout) ? "tiles and images" : "images");
}

int text_media_place(struct text_media *m, int64_t text, int64_t at, const int32_t *ids, int64_t n, struct error *e)
{
    if (!m->walk) return PL_OK;
    at += text * m->cache;
    m->walk[text].n = m->n_grids;
    if (grid_tokens(&m->walk[text], ids, n, m->three + at, m->index + at)) return PL_OK;
    return error_set(e, PL_USAGE, "the image tokens of the prompt do not match its images");
}

void text_media_put(struct text_media *m, const struct row_token *rows, int64_t n, bool single, struct batch_record *x)
{
    const uint64_t bytes = (uint64_t)n * sizeof(int32_t);
    if (!single && m->has.images) x->is[ROW_PIXELS].at = m->pixels;
    x->runs = m->runs, x->n_runs = m->n_runs, x->feature = m->feature, x->text = single;
    if (m->room.images && !single) x->documents = x->is[ROW_POSITIONS].at;
    if (!m->walk) return;
    for (int64_t t = 0; t < n; t++) {
        const int64_t at = rows[t].text < 0 ? 0 : rows[t].text * m->cache + rows[t].position;
        m->row_index[t] = rows[t].text < 0 ? -1 : m->index[at];
        memcpy(m->row_three[t], m->three[at], sizeof *m->row_three);
    }
    x->is[ROW_POSITIONS].at = m->row_three, x->is[ROW_POSITIONS].bytes = 3 * bytes;
    x->is[ROW_INDEX].at = m->row_index, x->is[ROW_INDEX].bytes = bytes;
}
