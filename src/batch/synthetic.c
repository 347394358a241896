/*
 * synthetic.c: batches that no data are read for (writer.h).
 */
#include "batch/writer.h"

#include <math.h>

#include "base/random.h"
#include "graph/ops.h"
#include "models/image_grid.h"
#include "models/images.h"
#include "models/masks.h"

/* Contents of inputs of 32-bit words that are neither ids nor normally distributed numbers. */
enum words {
    WORDS_DRAWN,
    WORDS_BYTES,
    WORDS_COORDS,
    WORDS_KINDS,
    WORDS_IMAGE,
    WORDS_GRID,
    WORDS_COUNT,
    WORDS_POSITIONS,
    WORDS_RANGES,
    WORDS_LABELS
};
static const struct {
    const char *name;
    enum words words;
} prompted[] = {
    {"images", WORDS_BYTES},       /* random colours */
    {"gt_masks", WORDS_BYTES},     /* random bits */
    {"input_points", WORDS_COORDS}, /* within the image */
    {"input_labels", WORDS_KINDS}, /* a point on each mask, a filler, then unused slots */
    {"image_valid", WORDS_IMAGE},  /* images fill the canvas, and targets their grid */
    {"gt_valid", WORDS_GRID},
    {"prompt_keys", WORDS_COUNT},
};

static enum words find_words(const struct run *r, const char *name)
{
    for (size_t i = 0; i < COUNT(prompted) && r->planned.model.masks; i++)
        if (!strcmp(prompted[i].name, name)) return prompted[i].words;
    if (r->planned.batch.packed && !strcmp(name, "position_ids")) return WORDS_POSITIONS;
    if (!strcmp(name, "ranges") || !strcmp(name, "token_windows")) return WORDS_RANGES;
    return r->planned.batches.sparse_labels && !strcmp(name, "labels") ? WORDS_LABELS : WORDS_DRAWN;
}

/* Returns word `at` of an input of a mask model; `drawn` is the random word for it. */
static uint32_t prompted_word(const struct run *r, enum words kind, uint64_t at, uint32_t drawn)
{
    const struct prompting *p = &contents_of(&r->planned.batch)->prompts;
    int64_t side = p->image ? p->image : r->planned.model.image;
    uint64_t slot = at % (uint64_t)max_i64(p->points, 1);
    float coord = (float)(drawn >> 8) * 0x1p-24f;
    switch (kind) {
    case WORDS_COORDS: memcpy(&drawn, &coord, sizeof drawn); return drawn;
    case WORDS_KINDS: return slot == 0 ? POINT_FOREGROUND : slot == 1 ? POINT_FILLER : POINT_UNUSED;
    case WORDS_IMAGE: return (uint32_t)side;
    case WORDS_GRID: return (uint32_t)r->planned.model.masks->side(&r->planned.model, side);
    case WORDS_COUNT: return (uint32_t)at;
    default: return drawn;
    }
}

/* Returns word `at` of an input of conversations; `drawn` is the random id for it. A row is one
 * conversation, and the answer is its second half: the share of labels for which the plan's time is
 * predicted (loop_iterations). */
static uint32_t conversation_word(const struct run *r, enum words kind, uint64_t at, uint32_t drawn)
{
    const uint64_t T = (uint64_t)r->planned.batch.T;
    switch (kind) {
    case WORDS_POSITIONS: return (uint32_t)(at % T);
    case WORDS_RANGES: return at % 2 ? (uint32_t)(at / 2 % T + 1) : 0; /* the keys up to the query itself */
    default: return at % T < T / 2 ? (uint32_t)-100 : drawn;
    }
}

/* Fills words [first, first + n) of an input: they depend only on seed, name and index. */
static void make_values(const struct run *r, const struct planned_input *x, enum words kind, uint64_t key,
                        uint64_t first, int64_t n, void *to)
{
    uint32_t *words = to;
    if (kind == WORDS_DRAWN && x->dtype == DT_F32) {
        random_normal(to, key, first, n, 1);
        return;
    }
    random_words(to, key, first, n);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t id = x->below ? words[i] % (uint32_t)x->below : 0;
        if (kind == WORDS_DRAWN) words[i] = x->dtype == DT_U8 ? words[i] : id;
        else
            words[i] = r->planned.model.masks ? prompted_word(r, kind, first + (uint64_t)i, words[i])
                                                               : conversation_word(r, kind, first + (uint64_t)i, id);
    }
}

static int put_input(struct run *r, const char *name, struct error *e)
{
    struct planned_input x;
    CHECK(planned_input(&r->planned, name, &x));
    if (!planned_input_used(&r->planned, &x)) return PL_OK;
    planned_input_ids(&r->planned, &x);
    enum words kind = find_words(r, name);
    uint64_t bytes = r->planned.graph.storages.at[x.storage].bytes,
             key = random_key((uint64_t)r->planned.config->train_seed, name);
    int rc = PL_OK;
    for (uint64_t at = 0; at < bytes && !rc; at += PLAN_STAGING) {
        uint64_t n = min_u64(bytes - at, PLAN_STAGING);
        make_values(r, &x, kind, key, at / 4, (int64_t)((n + 3) / 4), run_staging(r));
        rc = batch_write_part(r, name, at, run_staging(r), n, e);
    }
    return rc;
}

/* A conversation with images of any size: these, then text. */
struct grid_sample {
    struct image_grid *grids;
    int64_t n, patches, tokens; /* images, and what they have in all */
    char *pixels;              /* bytes, or f32 */
    int32_t *ids, *labels, *positions, (*ranges)[2];
};

/* Adds an image of rows x columns features. */
static void add_grid(const struct grid_model *g, int64_t rows, int64_t columns, struct grid_sample *s)
{
    const struct image_grid x = {1, rows * g->merge, columns * g->merge};
    s->grids[s->n++] = x;
    s->patches += grid_patches(&x);
    s->tokens += g->tokens ? g->tokens : grid_features(g, &x);
}

/* Chooses images for rows of T tokens: of GRID_SIDE x GRID_SIDE features, and one row of features
 * of what is left; or as many of the largest as there is room for, where all have as many tokens.
 * */
static void choose_grids(const struct grid_model *g, const struct media *room, int64_t T, struct grid_sample *s)
{
    enum { GRID_SIDE = 24, GRID = GRID_SIDE * GRID_SIDE };
    int64_t features = room->patches / (g->merge * g->merge);
    s->grids = mem_alloc((size_t)max_i64(features / GRID + 1, room->images) * sizeof *s->grids);
    if (g->tokens) {
        const int64_t n = min_i64(room->images, (T - 1) / g->tokens),
                      side = (int64_t)sqrt((double)features / (double)room->images);
        while (s->n < n) add_grid(g, side, side, s);
        return;
    }
    for (features = min_i64(features, T - 1); features >= GRID; features -= GRID) add_grid(g, GRID_SIDE, GRID_SIDE, s);
    if (features) add_grid(g, 1, features, s);
}

/* Writes one such row of the batch; the answer is its second half. */
static int put_grid_row(struct run *r, struct batch_writer *w, int64_t row, struct grid_sample *s, struct error *e)
{
    const struct grid_model *g = images_grids(&r->planned.model);
    const int64_t T = r->planned.batch.T;
    const uint64_t seed = random_key((uint64_t)r->planned.config->train_seed, "conversation") + (uint64_t)row;
    const int64_t values = s->patches * grid_values(g);
    if (r->planned.batch.holds->pixels.rows) random_words((uint32_t *)(void *)s->pixels, seed, 0, (values + 3) / 4);
    else random_normal((float *)(void *)s->pixels, seed, 0, values, 1);
    random_words((uint32_t *)s->ids, seed, 0, T);
    for (int64_t t = 0; t < T; t++) {
        s->ids[t] = (int32_t)((uint32_t)s->ids[t] % (uint32_t)min_i64(g->image, g->video));
        s->labels[t] = t < T / 2 ? -100 : s->ids[t];
        if (t < s->tokens) s->ids[t] = g->image;
        s->positions[t] = (int32_t)t;
        s->ranges[t][0] = 0, s->ranges[t][1] = (int32_t)t + 1;
    }
    const struct batch_record x = {.is = {[ROW_IDS] = {s->ids},
                                          [ROW_LABELS] = {s->labels},
                                          [ROW_POSITIONS] = {s->positions},
                                          [ROW_RANGES] = {s->ranges},
                                          [ROW_PIXELS] = {s->pixels}},
                                   .grids = s->grids,
                                   .n_grids = s->n};
    return batch_write(w, &(struct batch_target){0}, row, &x, e);
}

static int put_grids(struct run *r, struct error *e)
{
    const struct grid_model *g = images_grids(&r->planned.model);
    const int64_t T = r->planned.batch.T;
    struct grid_sample s = {.ids = mem_alloc((size_t)T * sizeof *s.ids),
                            .labels = mem_alloc((size_t)T * sizeof *s.labels),
                            .positions = mem_alloc((size_t)T * sizeof *s.positions),
                            .ranges = mem_alloc((size_t)T * sizeof *s.ranges)};
    struct batch_writer *w = batch_writer_new(r);
    struct planned_input x;
    int rc = PL_OK;
    choose_grids(g, &r->planned.batch.holds->media, T, &s);
    s.pixels = mem_alloc((size_t)(s.patches * grid_values(g)) * sizeof(float));
    CHECK(planned_input(&r->planned, "input_ids", &x));
    const uint64_t rows = r->planned.graph.storages.at[x.storage].bytes / ((uint64_t)T * sizeof *s.ids);
    for (uint64_t i = 0; i < rows && !rc; i++) rc = put_grid_row(r, w, (int64_t)i, &s, e);
    void *const all[] = {s.grids, s.pixels, s.ids, s.labels, s.positions, s.ranges};
    for (size_t i = 0; i < COUNT(all); i++) mem_free(all[i]);
    batch_writer_free(w);
    return rc;
}

int batch_synthesize(struct run *r, struct error *e)
{
    int rc = PL_OK;
    if (images_grids(&r->planned.model) && r->planned.batch.holds) return put_grids(r, e);
    for (id s = 1; s < r->planned.graph.storages.n && !rc; s++) {
        const char *name = graph_name(&r->planned.graph, r->planned.graph.storages.at[s].name);
        if (r->planned.graph.storages.at[s].kind == KIND_INPUT && strcmp(name, "samples")) rc = put_input(r, name, e);
    }
    return rc;
}

double batch_synthetic_count(const struct run *r)
{
    const struct graph *g = &r->planned.graph;
    double samples = r->planned.effective_batch;
    const struct prompting *p = &contents_of(&r->planned.batch)->prompts;
    if (r->planned.model.masks && p->targets) return samples * (double)p->masks;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        if (n->op == OP_SUM && n->phase == PHASE_FORWARD)
            return (double)tensor_elements(tensor_at(g, n->in[0])) / r->planned.plan.settings.micro_batch * samples;
    }
    return samples *
           (double)max_i64(r->planned.batches.sparse_labels ? r->planned.batch.T / 2 : r->planned.batch.T - 1, 1);
}
