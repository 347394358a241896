/*
 * packed_write.c: writes a packed store, sample by sample (see packed.h). The index is kept in
 * memory, the rest is in a temporary file beside the path, which is renamed when it is complete.
 * The temporary file is this process's own: of several processes that write one path, the last
 * leaves its whole file.
 */
#include <unistd.h>

#include "base/coding.h"
#include "data/masks/grid.h"
#include "data/formats/packed.h"
#include "data/images/range.h"
#include "io/file.h"
#include "io/temporary.h"

struct packed_writer {
    char *path;
    struct temporary to;
    uint64_t at; /* bytes written */
    struct packed_header header;
    struct packed_embeddings embeddings; /* type 0: none */
    struct packed_range range;           /* kind 0: none */
    VEC(struct packed_sample) samples;
    VEC(struct packed_mask) masks;
    VEC(struct packed_category) categories;
    struct text names;
    uint32_t group; /* of the last sample */
};

static int put(struct packed_writer *w, const void *bytes, size_t n, uint32_t *sum, struct error *e)
{
    if (fd_write(w->to.fd, bytes, n)) return file_error(w->to.path, "be written", e);
    if (sum) *sum = crc32c(*sum, bytes, n);
    w->at += n;
    return PL_OK;
}

/* Pads with zeros to the alignment. */
static int align(struct packed_writer *w, uint32_t *sum, struct error *e)
{
    static const char zeros[PACKED_ALIGN];
    return put(w, zeros, (size_t)(align_up(w->at, PACKED_ALIGN) - w->at), sum, e);
}

int packed_create(struct packed_writer **out, const char *path, uint32_t side, uint32_t cells, struct error *e)
{
    static const char zeros[PACKED_DATA]; /* reserves the header: no magic until the end */
    struct packed_writer *w = mem_alloc(sizeof *w);
    w->path = mem_string(path);
    w->header = (struct packed_header){.version = PACKED_VERSION, .side = side, .cells = cells};
    memcpy(w->header.magic, PACKED_MAGIC, sizeof w->header.magic);
    int rc = temporary_file(&w->to, path, e);
    if (!rc) rc = put(w, zeros, sizeof zeros, NULL, e);
    if (rc) packed_abandon(w);
    else *out = w;
    return rc;
}

void packed_embed(struct packed_writer *w, const struct packed_embeddings *e)
{
    CHECK(!w->samples.n && packed_dtype(e->type) != DT_NONE, "embeddings of type %u after %u samples", e->type,
          w->samples.n);
    CHECK(!e->tokens == (w->header.cells > 0), "embeddings of %u tokens beside masks of side %u", e->tokens,
          w->header.cells);
    w->header.version = e->any_size ? PACKED_ANY_SIZE : e->tokens ? PACKED_EMBEDDINGS_ALONE : PACKED_WITH_EMBEDDINGS;
    w->embeddings = *e;
    w->embeddings.sum = crc32c(0, &w->embeddings, offsetof(struct packed_embeddings, sum));
}

void packed_set_range(struct packed_writer *w, const struct pixel_range *r)
{
    const bool whole = r->window[0] >= 0 && r->window[1] < RANGE_VALUES && r->window[0] == (uint32_t)r->window[0] &&
                       r->window[1] == (uint32_t)r->window[1];
    w->range = (struct packed_range){.kind = r->kind, .percentiles = {r->percentiles[0], r->percentiles[1]}};
    if (whole) w->range.window[0] = (uint32_t)r->window[0], w->range.window[1] = (uint32_t)r->window[1];
    else if (r->kind == RANGE_WINDOW)
        w->range.kind = PACKED_REAL_WINDOW, memcpy(w->range.percentiles, r->window, sizeof r->window);
    w->range.sum = crc32c(0, &w->range, offsetof(struct packed_range, sum));
}

static uint32_t keep_name(struct packed_writer *w, const char *name)
{
    uint32_t at = (uint32_t)w->names.n;
    text_append(&w->names, name, strlen(name) + 1);
    return at;
}

static int check_room(const struct packed_writer *w, uint32_t masks, struct error *e)
{
    if (w->names.n <= UINT32_MAX - 4096 && w->samples.n < UINT32_MAX && w->masks.n <= UINT32_MAX - masks) return PL_OK;
    return error_set(e, PL_USAGE, "%s: more samples than one file can hold (%u); pack them into several files", w->path,
                     w->samples.n);
}

int packed_add(struct packed_writer *w, const struct packed_new *s, struct error *e)
{
    size_t side = w->header.side;
    if (check_room(w, s->n, e)) return e->code;
    struct packed_sample x = {.at = w->at, .first = w->masks.n, .masks = s->n, .empty = s->empty, .h = s->h, .w = s->w,
                              .rows = s->rows, .columns = s->columns};
    int rc = put(w, s->image, side * side * 3, &x.sum, e);
    if (!rc) rc = align(w, &x.sum, e);
    if (!rc && w->embeddings.type) {
        rc = put(w, s->embedding, packed_embedding_bytes(&w->embeddings), &x.sum, e);
        if (!rc) rc = align(w, &x.sum, e);
    }
    if (!rc) rc = put(w, s->bits, s->n * grid_mask_bytes(w->header.cells, w->header.cells), &x.sum, e);
    if (!rc) rc = align(w, NULL, e);
    x.name = keep_name(w, s->name);
    x.key = keep_name(w, s->key);
    if (s->group && (!w->group || strcmp(w->names.at + w->group - 1, s->group))) w->group = keep_name(w, s->group) + 1;
    if (s->group) x.group = w->group;
    vec_push(&w->samples, x);
    for (uint32_t k = 0; k < s->n; k++) {
        const struct mask *m = &s->masks[k];
        struct packed_mask p = {.id = m->id, .area = m->area, .predicted_iou = m->predicted_iou,
                                .stability = m->stability, .point = {m->point[0], m->point[1]},
                                .category = m->category, .crowd = m->crowd};
        memcpy(p.box, m->box, sizeof p.box);
        vec_push(&w->masks, p);
    }
    return rc;
}

int packed_add_output(struct packed_writer *w, const char *reference, const struct packed_output *s, struct error *e)
{
    char room[PACKED_NAME];
    struct packed_sample x = {.at = w->at, .fault = s->fault, .count = s->count, .replaced = s->replaced,
                              .rows = s->rows, .columns = s->columns};
    if (check_room(w, 0, e)) return e->code;
    int rc = s->at ? put(w, s->at, s->count * packed_embedding_bytes(&w->embeddings), &x.sum, e) : PL_OK;
    if (!rc) rc = align(w, NULL, e);
    x.name = keep_name(w, packed_name(reference, room));
    x.key = s->at ? x.name : keep_name(w, s->why);
    vec_push(&w->samples, x);
    return rc;
}

void packed_category(struct packed_writer *w, int32_t number, const char *name)
{
    struct packed_category c = {number, keep_name(w, name)};
    vec_push(&w->categories, c);
}

static int put_index(struct packed_writer *w, struct error *e)
{
    struct packed_header *h = &w->header;
    if (!w->names.n) keep_name(w, "");
    h->index = w->at;
    h->samples = w->samples.n;
    h->masks = w->masks.n;
    h->categories = w->categories.n;
    h->names = w->names.n;
    int rc = put(w, w->samples.at, w->samples.n * sizeof *w->samples.at, &h->index_sum, e);
    if (!rc) rc = put(w, w->masks.at, w->masks.n * sizeof *w->masks.at, &h->index_sum, e);
    if (!rc) rc = put(w, w->categories.at, w->categories.n * sizeof *w->categories.at, &h->index_sum, e);
    if (!rc) rc = put(w, w->names.at, w->names.n, &h->index_sum, e);
    h->bytes = w->at;
    h->header_sum = crc32c(0, h, offsetof(struct packed_header, header_sum));
    return rc;
}

int packed_finish(struct packed_writer *w, struct error *e)
{
    int rc = put_index(w, e);
    if (!rc && lseek(w->to.fd, 0, SEEK_SET)) rc = file_error(w->to.path, "be written", e);
    if (!rc) rc = put(w, &w->header, sizeof w->header, NULL, e);
    if (!rc && w->embeddings.type) rc = put(w, &w->embeddings, sizeof w->embeddings, NULL, e);
    if (!rc && w->range.kind) {
        if (lseek(w->to.fd, PACKED_RANGE, SEEK_SET) != PACKED_RANGE) rc = file_error(w->to.path, "be written", e);
        else rc = put(w, &w->range, sizeof w->range, NULL, e);
    }
    if (!rc) rc = temporary_keep(&w->to, w->path, true, e);
    packed_abandon(w);
    return rc;
}

void packed_abandon(struct packed_writer *w)
{
    temporary_drop(&w->to);
    mem_free(w->path);
    vec_free(&w->samples);
    vec_free(&w->masks);
    vec_free(&w->categories);
    text_free(&w->names);
    mem_free(w);
}
