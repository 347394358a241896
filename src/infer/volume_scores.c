/*
 * volume_scores.c: see own_size.h.
 *
 * A body is a structure in a volume: two masks of its voxels, a bit each, filled slice by slice.
 */
#include "data/dataset.h"
#include "infer/own_size.h"

struct open_body {
    struct body_slice of; /* its first slice */
    uint8_t *predicted, *target; /* [slices][h][w] bits, a slice begins at a byte */
};

static size_t slice_bytes(const struct volume *v) { return ((size_t)v->w * v->h + 7) / 8; }

static const char *category_name(const void *of, int32_t category) { return dataset_category(of, category); }

void volume_scores_open(struct volume_scores *v, const struct dataset *set, const char *const *prompts,
                        double tolerance)
{
    *v = (struct volume_scores){.table = {.bodies = true, .prompts = prompts, .name = category_name, .names_of = set,
                                          .of_volumes = true, .tolerance = tolerance}};
}

static void free_body(struct open_body *b)
{
    mem_free(b->predicted);
    mem_free(b->target);
}

void volume_scores_close(struct volume_scores *v)
{
    for (uint32_t i = 0; i < v->open.n; i++) free_body(&v->open.at[i]);
    vec_free(&v->open);
    mask_table_free(&v->table);
}

/* Returns a mask's voxels as bytes. */
static uint8_t *unpack(const uint8_t *bits, const struct volume *v)
{
    const size_t n = (size_t)v->w * v->h;
    uint8_t *out = mem_alloc(n * v->slices);
    for (uint32_t z = 0; z < v->slices; z++)
        for (size_t i = 0; i < n; i++) out[z * n + i] = bits[z * slice_bytes(v) + i / 8] >> i % 8 & 1;
    return out;
}

/* Compares a body, adds its row, and frees it. */
static void end_body(struct volume_scores *v, struct open_body *b)
{
    const struct volume *x = b->of.volume;
    struct mask_row row = {.sample = b->of.sample, .mask = b->of.mask, .category = b->of.category,
                           .prompt = b->of.prompt};
    uint8_t *predicted = unpack(b->predicted, x), *target = unpack(b->target, x);
    masks_compare(&(struct cell_box){x->w, x->h, x->slices, {x->spacing[0], x->spacing[1], x->spacing[2]}}, predicted,
                  target, v->table.tolerance, row.value[SIZE_OWN]);
    mask_table_add(&v->table, &row);
    mem_free(predicted);
    mem_free(target);
    free_body(b);
}

/* Ends the bodies of a prompt that are of another volume; volume NULL: all bodies. */
static void end_others(struct volume_scores *v, const struct volume *volume, uint32_t prompt)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < v->open.n; i++) {
        struct open_body *b = &v->open.at[i];
        if (!volume || (b->of.prompt == prompt && b->of.volume != volume)) end_body(v, b);
        else v->open.at[kept++] = *b;
    }
    v->open.n = kept;
}

static struct open_body *find_body(struct volume_scores *v, const struct body_slice *at)
{
    for (uint32_t i = 0; i < v->open.n; i++) {
        const struct body_slice *x = &v->open.at[i].of;
        if (x->volume == at->volume && x->prompt == at->prompt && x->mask == at->mask && x->category == at->category)
            return &v->open.at[i];
    }
    const size_t bytes = slice_bytes(at->volume) * at->volume->slices;
    vec_push(&v->open, ((struct open_body){*at, mem_alloc(bytes), mem_alloc(bytes)}));
    return &v->open.at[v->open.n - 1];
}

static void pack(uint8_t *bits, const uint8_t *mask, const struct volume *v)
{
    memset(bits, 0, slice_bytes(v));
    for (size_t i = 0; i < (size_t)v->w * v->h; i++) bits[i / 8] |= (uint8_t)((mask[i] != 0) << i % 8);
}

void volume_scores_add(struct volume_scores *v, const struct body_slice *at, const uint8_t *predicted,
                       const uint8_t *target)
{
    end_others(v, at->volume, at->prompt);
    struct open_body *b = find_body(v, at);
    pack(b->predicted + at->slice * slice_bytes(at->volume), predicted, at->volume);
    pack(b->target + at->slice * slice_bytes(at->volume), target, at->volume);
}

void volume_scores_end(struct volume_scores *v) { end_others(v, NULL, 0); }

void volume_scores_name(const void *set, uint64_t sample, char *out, size_t room)
{
    const char *name = NULL;
    uint32_t slice;
    dataset_slice(set, sample, &slice, &name);
    snprintf(out, room, "%s", name ? name : "");
}

void volume_scores_print(const struct volume_scores *v, struct text *out)
{
    struct report_table list = mask_table_list(&v->table);
    text_printf(out, "\nof whole volumes, in three dimensions (mean ± deviation; distances in mm, NSD within %g mm):\n",
                v->table.tolerance);
    table_print(&list, 0, 0, out);
    table_free(&list);
}
