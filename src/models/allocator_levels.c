/*
 * allocator_levels.c: the token allocator over images of any size, with levels of detail (see
 * allocator.h).
 *
 *     scores of cells ── bilinear at each patch ── mean over a feature's patches ── ALLOCATE ── slots
 *     slots: feature │ that again at the coarse level │ its patch at the finer level
 *
 * A slot gathers the feature, and what the tower saw and the texture: of the patch, or the mean.
 */
#include "models/allocator.h"

#include <math.h>

#include "base/allocation.h"
#include "graph/ops.h"
#include "models/layers.h"

#define ADAPTER "texture_adapter."

enum { CHANNELS = 1 + TEXTURE_CHANNELS }; /* of a place: its score, its texture */

struct levels {
    struct graph *g;
    const struct level_tower *t;
    int64_t R, P, F, I, S; /* rows; patches, features, images and slots of each */
};

static id input(const struct levels *l, const char *name, enum dtype type, int rank, const int64_t *dim)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", l->t->any ? "" : "no_", name);
    return graph_input_along(l->g, full, type, rank, dim, l->t->any && !l->t->shared ? 0 : INPUT_SHARED);
}

/* Returns the questions [R I,1,D]. */
static id questions(const struct levels *l)
{
    struct graph *g = l->g;
    const int64_t D = tensor_last(tensor_at(g, l->t->embeddings));
    id x = op_reshape(g, l->t->embeddings, 3, (int64_t[]){l->R, -1, D});
    id weights = input(l, "query_weights", DT_F32, 3, (int64_t[]){l->R, l->I, tensor_at(g, x)->dim[1]});
    return op_reshape(g, op_cast(g, op_bmm(g, weights, x, false, false, DT_F32), DT_NONE), 3,
                      (int64_t[]){l->R * l->I, 1, D});
}

/* Returns score and texture of each cell, [R,I cells,14]. */
static id describe_cells(const struct levels *l)
{
    struct graph *g = l->g;
    const int64_t cells = l->I * TEXTURE_CELLS;
    id texture = input(l, "texture", DT_F32, 3, (int64_t[]){l->R, cells, TEXTURE_CHANNELS});
    id information = input(l, "information", DT_F32, 2, (int64_t[]){l->R, cells});
    id asked = questions(l), known = op_reshape(g, information, 2, (int64_t[]){-1, TEXTURE_CELLS});
    id scores = allocator_scores(g, op_reshape(g, texture, 3, (int64_t[]){-1, TEXTURE_CELLS, TEXTURE_CHANNELS}),
                                 known, asked);
    id parts[] = {op_reshape(g, scores, 3, (int64_t[]){l->R, cells, 1}), op_cast(g, texture, DT_F32)};
    return op_concat(g, parts, 2, 2);
}

/* Returns column k of i32 or real columns [R,n,columns]: [R,n]. */
static id column(const struct levels *l, id x, int k, int64_t n)
{
    return op_reshape(l->g, op_dense(l->g, op_slice(l->g, x, 2, k, 1)), 2, (int64_t[]){l->R, n});
}

/* Returns what the cells have at the centre of each patch, [R,P,14]. */
static id sample(const struct levels *l, id cells)
{
    struct graph *g = l->g;
    id at = input(l, "patch_cells", DT_I32, 3, (int64_t[]){l->R, l->P, 4});
    id weights = op_cast(g, input(l, "cell_weights", DT_F32, 3, (int64_t[]){l->R, l->P, 4}), DT_F32), sum = 0;
    for (int i = 0; i < 4; i++) {
        id x = op_mul(g, op_gather(g, cells, column(l, at, i, l->P)), op_slice(g, weights, 2, i, 1));
        sum = i ? op_add(g, sum, x) : x;
    }
    return sum;
}

/* Returns the means [R,F,C] over the patches [R,P,C] of a feature. */
static id mean(const struct levels *l, id x)
{
    const int64_t C = tensor_last(tensor_at(l->g, x));
    x = op_reshape(l->g, op_dense(l->g, x), 4, (int64_t[]){l->R, l->F, l->P / l->F, C});
    return op_reshape(l->g, op_avgpool_adaptive(l->g, x, l->F, 1), 3, (int64_t[]){l->R, l->F, C});
}

/* Returns what the slots' adapters read of x [R,P,C]: of patches at the finer level, else means. */
static id at_level(const struct levels *l, id x, id slots)
{
    struct graph *g = l->g;
    id parent = column(l, slots, 1, l->S), coarse = op_gather(g, mean(l, x), parent);
    id patch = column(l, slots, 2, l->S);
    return op_add(g, coarse, op_gather(g, op_dense(g, x), patch));
}

static id adapt(const struct levels *l, id seen, id texture, int64_t C)
{
    struct graph *g = l->g;
    const struct linear_init down = {.std = l->t->std}, up = {0};
    id x = op_concat(g, (id[]){seen, op_cast(g, texture, DT_NONE)}, 2, 2);
    x = op_act(g, layer_linear_init(g, x, ADAPTER, "down", l->t->inner, down), ACT_GELU);
    return layer_linear_init(g, x, ADAPTER, "up", C, up);
}

/* Returns the inputs that say where tokens are; without images there are none. */
static struct outputs allocate(const struct levels *l, id score, const struct token_rows *rows)
{
    const struct grid_model *m = l->t->grid;
    id places = l->t->any ? rows->positions : input(l, "position_ids", DT_I32, 3, (int64_t[]){1, 1, 3});
    id index = l->t->any ? rows->index : input(l, "image_index", DT_I32, 2, (int64_t[]){1, 1});
    /* equal up to rounding is equal */
    id equal = op_cast(l->g, op_reshape(l->g, score, 2, (int64_t[]){l->R, l->F}), DT_F16);
    const union attr a = {.allocate = {l->I, m->tokens, m->most, m->merge}};
    return op_outputs(l->g, OP_ALLOCATE, &a, (id[]){equal, l->t->ranges, l->t->places, places, index}, 5);
}

id allocator_levels(struct graph *g, const struct level_tower *t, struct token_rows *rows)
{
    if (!t->patches || !t->features || !t->embeddings || !t->ranges) return 0;
    const struct tensor *p = tensor_at(g, t->patches), *f = tensor_at(g, t->features);
    const struct levels l = {g, t, p->dim[0], p->dim[1], f->dim[1], t->images, t->images * t->grid->tokens};
    const int64_t C = tensor_last(f);
    id places = sample(&l, describe_cells(&l));
    if (!places) return 0;
    id score = op_dense(g, op_slice(g, mean(&l, places), 2, 0, 1));
    const struct outputs chosen = allocate(&l, score, rows);
    if (!chosen.at[0]) return 0;
    id slots = chosen.at[0], feature = column(&l, slots, 0, l.S);
    id weight = op_cast(g, op_gather(g, score, feature), DT_NONE);
    id texture = at_level(&l, op_slice(g, places, 2, 1, TEXTURE_CHANNELS), slots);
    id more = adapt(&l, at_level(&l, t->patches, slots), texture, C);
    id tokens = op_mul(g, op_add(g, op_gather(g, t->features, feature), more), weight);
    for (int i = 0; i < rows->n_features; i++)
        rows->features[i] = op_mul(g, op_gather(g, rows->features[i], feature), weight);
    if (t->any) rows->positions = chosen.at[1];
    return tokens;
}

/* --- for who fills a batch -------------------------------------------------------------------- */

/* Returns the cell before position `at` of `size`, and the share of the next one. */
static int between(int64_t at, int64_t size, float *share)
{
    const float x = fmaxf(0, ((float)at + 0.5f) * TEXTURE_SIDE / (float)size - 0.5f);
    *share = x - floorf(x);
    return (int)floorf(x);
}

void allocator_cells(const struct image_grid *grids, int64_t n, const struct grid_row *row, int64_t P,
                     int32_t (*cells)[4], float (*weights)[4])
{
    int64_t p = 0;
    for (int64_t i = 0; i < n; i++)
        for (const int64_t end = p + grid_patches(&grids[i]); p < end; p++) {
            float down, right;
            const int y = between(row->positions[p][0], grids[i].h, &down),
                      x = between(row->positions[p][1], grids[i].w, &right);
            for (int k = 0; k < 4; k++) {
                const int64_t at[2] = {min_i64(y + (k & 2 ? 1 : 0), TEXTURE_SIDE - 1),
                                       min_i64(x + (k & 1), TEXTURE_SIDE - 1)};
                cells[p][k] = (int32_t)(i * TEXTURE_CELLS + at[0] * TEXTURE_SIDE + at[1]);
                weights[p][k] = (k & 2 ? down : 1 - down) * (k & 1 ? right : 1 - right);
            }
        }
    memset(cells + p, 0, (size_t)(P - p) * sizeof *cells);
    memset(weights + p, 0, (size_t)(P - p) * sizeof *weights);
}

int64_t allocator_least_pixels(const struct grid_model *m)
{
    const int64_t unit = m->merge * m->merge;
    return m->tokens ? allocation_least(m->tokens, m->most, unit) * unit * m->patch * m->patch : 0;
}

int allocator_check(const struct grid_model *m, const struct image_grid *x, struct error *e)
{
    const int64_t pixels = x->h * x->w * m->patch * m->patch, least = allocator_least_pixels(m);
    if (pixels >= least) return PL_OK;
    return error_set(e, PL_USAGE,
                     "an image of %lld x %lld patches has %lld pixels; num_visual_tokens %lld needs at least %lld",
                     (long long)x->h, (long long)x->w, (long long)pixels, (long long)m->tokens, (long long)least);
}
