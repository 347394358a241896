/*
 * follow.c: see writer.h.
 *
 *     image_index,           which feature takes the place of each image token (models/images.h): of
 *     volume_index           an image, or of a volume
 *     sum_index, sum_weights which features it is a sum of (text/template/anyres.h)
 *     ranges, token_windows  of models with tokens that see each other in both directions
 *     patch_ranges, ...      of images of any size: who sees whom, and where each patch is; patches in
 *                            the order of the tower; three positions a token (models/image_grid.h)
 *     texture, information,  of the token allocator (models/allocator.h): of the image as the tower
 *     query_weights          sees it, before it was normalised, and of the question
 *     random_scores          the same for a random choice: a function of train.seed and position,
 *                            so that no split of a batch, and no resume, changes them
 *     question_mask          which tokens the mask decoder does not see (models/prs_med.h)
 *     candidates, answers    which masks are matched with which texts (models/grounding.h)
 *     text_end               where CLIP pools each text (models/heads.h)
 *     memory_rows, ...       what the frames of a clip see of each other (models/sam2_video.c)
 *     mask_shown             which masks that are prompts have a pixel
 */
#include "batch/writer.h"

#include "base/random.h"
#include "data/images/image_processor.h"
#include "models/allocator.h"
#include "models/grounding.h"
#include "models/heads.h"
#include "models/image_grid.h"
#include "models/images.h"
#include "models/masks.h"
#include "models/prs_med.h"

struct follow {
    const struct model *model;
    int64_t T;                   /* tokens of a row */
    const struct batch *batch;   /* that the programs were built for */
    double mean[3], std[3];      /* pixels are (x - mean) / std, x from 0 to 1 */
    uint64_t key;                /* of random scores */
    void *room[ROW_INPUTS];      /* a row of each input that follows */
    uint64_t bytes[ROW_INPUTS];
    int64_t first_frame;         /* the row of its features, where tokens are sums of them */
    bool unmatched;              /* image tokens of the record belong to no image of it */
    int32_t (*ranges)[2];        /* [T] */
    int32_t *ids;                /* [T] with 0 for image tokens that are not in the vocabulary */
    float *rgb;                  /* [3][side][side] */
    int64_t patches;             /* for which a row has room, with images of any size... */
    int64_t section;             /* patches of a section of the sequence of all rows; 0: a row is by itself */
    bool apart;                  /* as graph.sequence says */
    int64_t micro, bucket;       /* rows that share it; a row is rounded up to a multiple of that */
    int64_t next, row;           /* where the next patches of its micro-batch go; the last row that was written */
    struct grid_row grid;        /* ...and what follows from them */
    enum batch_input input;      /* what patches have: their pixels, or what the tower made of them... */
    size_t each;                 /* ...in bytes */
    char *values;                /* [patches][each] */
    const void *given;           /* the record's pixels, in the order of the processors... */
    struct pixel_table table;    /* ...and the values of their bytes */
    int32_t (*positions)[3];     /* [T] */
    int64_t images;              /* of a row whose images share tokens (allocator.h)... */
    int32_t (*cells)[4];         /* ...[patches] and what follows */
    float (*cell_weights)[4];
};

/* Makes the room of a row of images of any size. */
static void make_grid_room(struct follow *f, const struct run *r)
{
    const struct grid_model *g = f->model->images->grids;
    struct planned_input x;
    if (planned_input(&r->planned, batch_inputs[ROW_POSITIONS].name, &x))
        f->positions = mem_alloc(r->planned.graph.storages.at[x.storage].bytes);
    if (!planned_input(&r->planned, batch_inputs[f->input = ROW_PIXELS].name, &x) &&
        !planned_input(&r->planned, batch_inputs[f->input = ROW_EMBEDDINGS].name, &x))
        return;
    f->each = f->input == ROW_PIXELS ? (size_t)grid_values(g) * dtype_size(x.dtype)
                                     : (size_t)f->model->images->width * dtype_size(x.dtype);
    const size_t P = (size_t)(f->patches = (int64_t)(x.sample / f->each));
    const int64_t samples = r->planned.plan.settings.micro_batch, section = r->planned.graph.sequence.section;
    if (x.axis == 1) {
        f->section = f->patches * (section ? section : samples);
        f->micro = samples;
        f->bucket = r->planned.graph.sequence.bucket;
        f->apart = r->planned.graph.sequence.apart;
    }
    f->values = mem_alloc(x.sample);
    f->grid = (struct grid_row){.order = mem_alloc(P * sizeof *f->grid.order),
                                .ranges = mem_alloc(P * sizeof *f->grid.ranges),
                                .positions = mem_alloc(P * sizeof *f->grid.positions),
                                .feature = mem_alloc(P * sizeof *f->grid.feature)};
    if (g->window) f->grid.windows = mem_alloc(P * sizeof *f->grid.windows);
    if (g->tokens && planned_input(&r->planned, batch_inputs[ROW_TEXTURE].name, &x)) {
        f->images = (int64_t)(x.sample / sizeof(float)) / (TEXTURE_CELLS * TEXTURE_CHANNELS);
        f->cells = mem_alloc(P * sizeof *f->cells);
        f->cell_weights = mem_alloc(P * sizeof *f->cell_weights);
        f->rgb = mem_alloc(P * (size_t)(3 * g->patch * g->patch) * sizeof *f->rgb);
    }
    if (!g->table) return;
    f->grid.corners = mem_alloc(P * sizeof *f->grid.corners);
    f->grid.weights = mem_alloc(P * sizeof *f->grid.weights);
}

struct follow *follow_new(const struct run *r, const bool used[ROW_INPUTS])
{
    struct follow *f = mem_alloc(sizeof *f);
    const struct model *m = &r->planned.model;
    struct planned_input x;
    f->model = m;
    f->batch = &r->planned.batch;
    f->table = contents_of(f->batch)->pixels;
    f->key = random_key((uint64_t)r->planned.config->train_seed, "token selection");
    for (int i = 0; i < ROW_INPUTS; i++) {
        if (!used[i] || batch_inputs[i].filler != FILLED_BY_WRITER) continue;
        planned_input(&r->planned, batch_inputs[i].name, &x);
        f->bytes[i] = x.sample;
        /* programs that generate may take more than a sample of text */
        const bool tokens = i == ROW_INDEX || i == ROW_VOLUME_INDEX || i == ROW_QUERY_WEIGHTS ||
                            i == ROW_TOKEN_WINDOWS || i == ROW_SUM_INDEX || i == ROW_SUM_WEIGHTS;
        f->room[i] = mem_alloc(tokens ? r->planned.graph.storages.at[x.storage].bytes : x.sample);
    }
    if (used[ROW_IDS] && planned_input(&r->planned, batch_inputs[ROW_IDS].name, &x)) {
        f->T = (int64_t)(x.sample / sizeof *f->ids);
        f->ids = mem_alloc(r->planned.graph.storages.at[x.storage].bytes);
    }
    if (m->images && m->images->both && used[ROW_IDS] && (used[ROW_INDEX] || m->images->both == BOTH_PROMPT) &&
        planned_input(&r->planned, batch_inputs[ROW_RANGES].name, &x))
        f->ranges = mem_alloc(r->planned.graph.storages.at[x.storage].bytes);
    if (images_sum(m)) f->first_frame = images_first_frame(m, &r->planned.batch);
    if (m->images && m->images->grids) make_grid_room(f, r);
    if (used[ROW_TEXTURE] && !f->rgb) f->rgb = mem_alloc((size_t)(3 * m->image * m->image) * sizeof *f->rgb);
    return f;
}

void follow_free(struct follow *f)
{
    for (int i = 0; i < ROW_INPUTS; i++) mem_free(f->room[i]);
    mem_free(f->ids);
    mem_free(f->ranges);
    mem_free(f->rgb);
    void *const grid[] = {f->grid.order, f->grid.ranges, f->grid.windows, f->grid.positions,
                          f->grid.corners, f->grid.weights, f->grid.feature, f->values, f->positions,
                          f->cells, f->cell_weights};
    for (size_t i = 0; i < COUNT(grid); i++) mem_free(grid[i]);
    mem_free(f);
}

void follow_set_pixels(struct follow *f, const struct image_processor *p)
{
    for (int k = 0; k < 3; k++) {
        const double unit = p->rescale ? 255 * p->factor : 255;
        f->mean[k] = p->normalize ? p->mean[k] / unit : 0;
        f->std[k] = (p->normalize ? p->std[k] : 1) / unit;
    }
}

/* --- images among tokens -------------------------------------------------------------------- */

/* Returns the feature of the k-th image token; below 0: it comes after the last run. */
static int64_t feature_of(const struct batch_record *x, int64_t k, bool *volume)
{
    *volume = false;
    if (!x->runs) return k;
    for (uint32_t i = 0; i < x->n_runs; i++)
        if (k < x->runs[i].end)
            return *volume = x->runs[i].volume, x->runs[i].row + k - (i ? x->runs[i - 1].end : 0);
    return -1;
}

/* The features that each token is a sum of (images_sum); those of frames begin at row `frames`. */
struct sums {
    int32_t (*index)[4];
    float (*weights)[4];
    int64_t frames;
};

/* Finds the features of images in tiles with a map, by their ids; `sums` may be NULL. Returns false
 * if these are of no whole image. */
static bool index_tiles(const struct model *m, const struct batch_record *x, int32_t *ids, int64_t T, int32_t *index,
                        const struct sums *sums)
{
    const struct anyres *a = m->images->anyres;
    const int32_t embedded = a->token >= 0 && a->token < m->vocabulary ? a->token : 0;
    int64_t none[2] = {0}, *next = x->feature ? x->feature : none;
    struct anyres_feature f = {{-1, -1, -1, -1}, {0}};
    struct anyres_shape shape;
    for (int64_t t = 0, n = 1; t < T; t += n, n = 1) {
        const bool image = anyres_is_token(a, ids[t]);
        if (image && !anyres_find(a, ids + t, T - t, &shape)) return false;
        if (image) n = anyres_tokens(a, shape);
        const int64_t first = !image ? 0 : shape.frames ? (sums ? sums->frames : 0) + next[1] : 1 + next[0];
        for (int32_t k = 0; k < n; k++) {
            if (image) anyres_feature(a, shape, (int32_t)first, k, &f);
            index[t + k] = image ? f.row[0] : -1;
            if (image) ids[t + k] = embedded;
            for (int i = 0; i < 4 && sums; i++) {
                sums->index[t + k][i] = image ? f.row[i] : -1;
                sums->weights[t + k][i] = image ? f.weight[i] : 0;
            }
        }
        if (image) next[0] += anyres_images(shape) * m->images->features, next[1] += shape.frames * m->images->features;
    }
    return true;
}

bool batch_index(const struct model *m, const struct batch_record *x, int32_t *ids, int64_t T, int32_t *index,
                 int32_t *volumes)
{
    const int32_t token = m->images->token;
    int64_t first = 0, *next = x->feature ? x->feature : &first;
    if (m->images->anyres) return index_tiles(m, x, ids, T, index, NULL);
    for (int64_t t = 0; t < T; t++) {
        bool volume = false;
        const int32_t feature = ids[t] == token ? (int32_t)feature_of(x, *next, &volume) : -1;
        if (index) index[t] = volume ? -1 : feature;
        if (volumes) volumes[t] = volume ? feature : -1;
        if (feature < 0) continue;
        ++*next;
        if (token < 0 || token >= m->vocabulary) ids[t] = 0;
    }
    return true;
}

/* Returns the tokens of the row. */
static int64_t tokens_of(const struct follow *f, const struct batch_record *x)
{
    return x->is[ROW_IDS].bytes ? (int64_t)(x->is[ROW_IDS].bytes / sizeof *f->ids) : f->T;
}

static void follow_index(struct follow *f, struct batch_record *x)
{
    const int64_t T = tokens_of(f, x);
    memcpy(f->ids, x->is[ROW_IDS].at, (size_t)T * sizeof *f->ids);
    if (f->room[ROW_SUM_INDEX]) {
        const struct sums sums = {f->room[ROW_SUM_INDEX], f->room[ROW_SUM_WEIGHTS], f->first_frame};
        f->unmatched |= !index_tiles(f->model, x, f->ids, T, f->room[ROW_INDEX], &sums);
        x->is[ROW_SUM_INDEX].at = sums.index, x->is[ROW_SUM_WEIGHTS].at = sums.weights;
        x->is[ROW_SUM_INDEX].bytes = x->is[ROW_SUM_WEIGHTS].bytes = 4 * x->is[ROW_IDS].bytes;
    } else {
        f->unmatched |= !batch_index(f->model, x, f->ids, T, f->room[ROW_INDEX], f->room[ROW_VOLUME_INDEX]);
    }
    x->is[ROW_IDS].at = f->ids;
    x->is[ROW_INDEX].bytes = x->is[ROW_VOLUME_INDEX].bytes = x->is[ROW_IDS].bytes;
}

/* Tokens of a row: the first, and one past the last. */
struct span {
    int32_t begin, end;
};

/* A row's tokens, whose ranges are found. */
struct sight {
    const int32_t *index, *labels, (*from)[2]; /* index NULL: no images; labels NULL: a prompt */
    int32_t (*ranges)[2], (*windows)[2], window;
    int64_t T;
};

/* Returns the tokens that a token sees in a causal row. */
static struct span causal(const struct sight *s, int64_t t)
{
    if (s->from) return (struct span){s->from[t][0], s->from[t][1]};
    return (struct span){0, (int32_t)t + 1};
}

/* Sets the range of a token that sees the tokens up to `end`. A window leaves it those that it
 * leaves in a causal row, and what comes after it; with `all` it leaves out none. */
static void set_range(const struct sight *s, int64_t t, int32_t end, bool all)
{
    const struct span own = causal(s, t);
    s->ranges[t][0] = own.begin;
    s->ranges[t][1] = end;
    if (!s->windows) return;
    s->windows[t][0] = !all && own.end - own.begin > s->window ? own.end - s->window : own.begin;
    s->windows[t][1] = end;
}

/* Lets the tokens of an image see each other. */
static void see_images(const struct sight *s)
{
    for (int64_t t = s->T - 1; t >= 0; t--) {
        const struct span own = causal(s, t);
        const bool inside = s->index && t + 1 < s->T && s->index[t] >= 0 && s->index[t + 1] >= 0 &&
                            s->ranges[t + 1][0] == own.begin;
        set_range(s, t, inside ? s->ranges[t + 1][1] : own.end, false);
    }
}

/* Lets the tokens of each document up to its first label see each other. */
static void see_prompts(const struct sight *s)
{
    for (int64_t t = 0, end, first; t < s->T; t = end) {
        const struct span own = causal(s, t);
        for (end = t + 1; end < s->T && causal(s, end).begin == own.begin && causal(s, end).end > own.begin;) end++;
        for (first = t; first < end && !(s->labels && s->labels[first] >= 0);) first++;
        for (int64_t i = t; i < end; i++)
            set_range(s, i, causal(s, i < first ? first - 1 : i).end, i < first);
    }
}

static void follow_ranges(struct follow *f, struct batch_record *x)
{
    const struct image_model *m = f->model->images;
    const struct sight s = {.index = x->is[ROW_INDEX].at, .labels = x->is[ROW_LABELS].at,
                            .from = x->is[ROW_RANGES].at, .ranges = f->ranges, .windows = f->room[ROW_TOKEN_WINDOWS],
                            .window = (int32_t)m->window, .T = tokens_of(f, x)};
    (m->both == BOTH_PROMPT ? see_prompts : see_images)(&s);
    x->is[ROW_RANGES].at = f->ranges;
    x->is[ROW_RANGES].bytes = x->is[ROW_TOKEN_WINDOWS].bytes = 2 * x->is[ROW_IDS].bytes;
    x->is[ROW_TOKEN_WINDOWS].at = s.windows;
}

/* --- pixels --------------------------------------------------------------------------------- */

/* Returns value k of pixels, which lies in a plane of this number. */
static float pixel_value(const struct follow *f, const void *pixels, int64_t k, int64_t plane)
{
    if (!f->table.rows) return ((const float *)pixels)[k];
    return f->table.value[plane % f->table.rows][((const uint8_t *)pixels)[k]];
}

/* --- images of any size --------------------------------------------------------------------- */

/* Finds where the patches of a row go in the sequence of its micro-batch: x->patch.
 * Returns how many they are with their padding. Rows come in order. The first one has at least
 * padding, and so has one that may be visited by itself. */
static int64_t place_patches(struct follow *f, struct batch_record *x)
{
    int64_t n = 0;
    if (!f->section) return f->patches;
    const bool first = x->row % f->micro == 0;
    CHECK(first || x->row == f->row || x->row == f->row + 1, "row %lld is written after row %lld", (long long)x->row,
          (long long)f->row);
    for (int64_t i = 0; i < x->n_grids; i++) n += grid_patches(&x->grids[i]);
    n = (max_i64(n, first || f->apart) + f->bucket - 1) / f->bucket * f->bucket;
    if (first || f->apart) f->next = x->row % f->micro * f->patches;
    f->row = x->row;
    x->patch = f->next;
    f->next += n;
    return n;
}

/* Moves ranges to where the patches are in their section. */
static void move_ranges(const struct follow *f, const struct batch_record *x, int32_t (*ranges)[2], int64_t n)
{
    const int32_t by = (int32_t)(f->section ? x->patch % f->section : 0);
    for (int64_t p = 0; p < n && ranges && by; p++)
        if (ranges[p][1] > ranges[p][0]) ranges[p][0] += by, ranges[p][1] += by;
}

/* Puts the patches into the order of the tower. Padding is zeros: the tower computes with it. */
static void follow_patches(struct follow *f, struct batch_record *x)
{
    const int64_t n = place_patches(f, x);
    const char *from = x->is[f->input].at;
    x->patches = n;
    grid_lay_out(f->model->images->grids, x->grids, x->n_grids, n, &f->grid);
    move_ranges(f, x, f->grid.ranges, n);
    move_ranges(f, x, f->grid.windows, n);
    for (int64_t p = 0; p < n; p++)
        if (f->grid.order[p] < 0) memset(f->values + (size_t)p * f->each, 0, f->each);
        else memcpy(f->values + (size_t)p * f->each, from + (size_t)f->grid.order[p] * f->each, f->each);
    const struct {
        enum batch_input input;
        const void *at;
    } rows[] = {{f->input, f->values}, {ROW_PATCH_RANGES, f->grid.ranges}, {ROW_WINDOW_RANGES, f->grid.windows},
                {ROW_PATCH_POSITIONS, f->grid.positions}, {ROW_PATCH_CORNERS, f->grid.corners},
                {ROW_CORNER_WEIGHTS, f->grid.weights}};
    for (size_t i = 0; i < COUNT(rows); i++) x->is[rows[i].input].at = rows[i].at;
}

/* Finds positions and features of the row's tokens, document by document. */
static void follow_tokens(struct follow *f, struct batch_record *x)
{
    const struct grid_model *g = f->model->images->grids;
    const int32_t first = (int32_t)(f->section ? x->patch / (g->merge * g->merge) : 0);
    const int64_t T = tokens_of(f, x);
    const int32_t *ids = x->is[ROW_IDS].at, *positions = x->is[ROW_POSITIONS].at;
    struct grid_walk walk = {.model = g, .grids = x->grids, .n = x->n_grids, .feature = f->grid.feature};
    int32_t *index = f->room[ROW_INDEX];
    for (int64_t t = 0, end; t < T; t = end) {
        for (end = t + 1; end < T && !(positions && positions[end] == 0); end++) continue;
        f->unmatched |= !grid_document(&walk, ids + t, end - t, f->positions + t, index ? index + t : NULL);
        for (int64_t i = t; i < end && index; i++) index[i] += index[i] >= 0 ? first : 0;
    }
    x->is[ROW_POSITIONS].at = f->positions;
    x->is[ROW_POSITIONS].bytes = 3 * x->is[ROW_IDS].bytes;
    x->is[ROW_INDEX].at = index;
    x->is[ROW_INDEX].bytes = x->is[ROW_IDS].bytes;
}

/* --- the token allocator -------------------------------------------------------------------- */

/* Puts the pixels of an image, from 0 to 1, into f->rgb: of its patches in the order of the
 * processors, which begin with this value of the record. */
static void join_patches(struct follow *f, const struct image_grid *x, int64_t first)
{
    const struct grid_model *g = f->model->images->grids;
    const int64_t side = g->patch, unit = g->merge * g->merge, across = x->w / g->merge, width = x->w * side;
    for (int64_t p = 0; p < grid_patches(x); p++, first += grid_values(g)) {
        const int64_t feature = p / unit, i = p % unit, row = feature / across * g->merge + i / g->merge,
                      column = feature % across * g->merge + i % g->merge;
        for (int64_t c = 0; c < 3; c++)
            for (int64_t k = 0; k < side * side; k++)
                f->rgb[(c * x->h * side + row * side + k / side) * width + column * side + k % side] =
                    (float)((double)pixel_value(f, f->given, first + c * g->temporal * side * side + k, c) * f->std[c] +
                            f->mean[c]);
    }
}

/* Describes the images of a row, and which cells are around its patches. */
static void follow_images(struct follow *f, struct batch_record *x)
{
    const struct grid_model *g = f->model->images->grids;
    float *texture = f->room[ROW_TEXTURE], *information = f->room[ROW_INFORMATION];
    int64_t first = 0;
    memset(texture, 0, f->bytes[ROW_TEXTURE]);
    memset(information, 0, f->bytes[ROW_INFORMATION]);
    for (int64_t i = 0; i < x->n_grids; i++) {
        const struct image_grid *grid = &x->grids[i];
        CHECK(i < f->images, "a row has room for %lld images", (long long)f->images);
        join_patches(f, grid, first);
        texture_of(f->rgb, grid->h * g->patch, grid->w * g->patch, texture + i * TEXTURE_CELLS * TEXTURE_CHANNELS);
        texture_information(texture + i * TEXTURE_CELLS * TEXTURE_CHANNELS, information + i * TEXTURE_CELLS);
        first += grid_patches(grid) * grid_values(g);
    }
    allocator_cells(x->grids, x->n_grids, &f->grid, f->patches, f->cells, f->cell_weights);
    x->is[ROW_PATCH_CELLS].at = f->cells;
    x->is[ROW_CELL_WEIGHTS].at = f->cell_weights;
    x->is[ROW_TEXTURE].at = texture;
    x->is[ROW_INFORMATION].at = information;
}

/* Finds the question of each image of a row, whose tokens are at x->is[ROW_INDEX]; `documents`: the
 * position of each token in its document. */
static void follow_questions(struct follow *f, struct batch_record *x, const int32_t *documents)
{
    const int64_t T = tokens_of(f, x);
    float *weights = f->room[ROW_QUERY_WEIGHTS];
    for (int64_t i = 0; i < f->images; i++)
        question_weights(documents, x->is[ROW_LABELS].at, x->is[ROW_INDEX].at, T,
                         (int32_t)(i * f->model->images->grids->tokens), weights + i * T);
    x->is[ROW_QUERY_WEIGHTS].at = weights;
}

/* Describes the image. A row without one has a texture of zeros, and what follows from it is not
 * read. */
static void follow_texture(struct follow *f, struct batch_record *x)
{
    const void *pixels = x->is[ROW_PIXELS].at;
    const int64_t side = f->model->image, plane = side * side;
    memset(f->room[ROW_TEXTURE], 0, f->bytes[ROW_TEXTURE]);
    memset(f->room[ROW_INFORMATION], 0, f->bytes[ROW_INFORMATION]);
    if (!pixels) return;
    for (int64_t k = 0; k < 3 * plane; k++)
        f->rgb[k] = (float)((double)pixel_value(f, pixels, k, k / plane) * f->std[k / plane] + f->mean[k / plane]);
    texture_of(f->rgb, side, side, f->room[ROW_TEXTURE]);
    texture_information(f->room[ROW_TEXTURE], f->room[ROW_INFORMATION]);
}

static void follow_weights(struct follow *f, struct batch_record *x)
{
    question_weights(x->is[ROW_POSITIONS].at, x->is[ROW_LABELS].at, f->room[ROW_INDEX], tokens_of(f, x),
                     0, f->room[ROW_QUERY_WEIGHTS]);
    x->is[ROW_QUERY_WEIGHTS].bytes = x->is[ROW_IDS].bytes;
}

static void follow_random(struct follow *f, struct batch_record *x)
{
    float *scores = f->room[ROW_RANDOM_SCORES];
    const uint64_t key = random_bits(f->key, x->position), n = f->bytes[ROW_RANDOM_SCORES] / sizeof *scores;
    for (uint64_t k = 0; k < n; k++) scores[k] = (float)(random_bits(key, k) >> 40) * 0x1p-24f;
}

/* --- texts and masks ------------------------------------------------------------------------ */

/* Fills in which tokens are unseen. A row of padding sees all of its tokens: it has no weight. */
static void follow_question(struct follow *f, struct batch_record *x)
{
    const int32_t *question = x->is[ROW_QUESTION].at;
    float *unseen = f->room[ROW_QUESTION_MASK];
    for (int64_t t = 0; t < f->T; t++)
        unseen[t] = question[1] && (t < question[0] || t >= question[1]) ? PRS_UNSEEN : 0;
}

static void follow_end(struct follow *f, struct batch_record *x)
{
    *(int32_t *)f->room[ROW_TEXT_END] = (int32_t)head_text_end(f->model->head, x->is[ROW_IDS].at, f->T);
}

static void follow_candidates(struct follow *f, struct batch_record *x)
{
    const int64_t Q = (int64_t)(f->bytes[ROW_ANSWERS] / (2 * sizeof(int32_t))),
                  M = (int64_t)(f->bytes[ROW_CANDIDATES] / sizeof(float)) / (2 * Q) - Q;
    ground_candidates(x->is_mask, M, x->is[ROW_TARGETS].at, Q, f->room[ROW_CANDIDATES], f->room[ROW_ANSWERS]);
}

/* --- clips ---------------------------------------------------------------------------------- */

static void follow_clip(struct follow *f, struct batch_record *x)
{
    struct clip_rows rows = {f->room[ROW_MEMORY_ROWS], f->room[ROW_POINTER_ROWS], f->room[ROW_POINTER_TIMES]};
    clip_rows(f->model, &contents_of(f->batch)->prompts, x->is[ROW_FRAME_TIMES].at, &rows);
    x->is[ROW_POINTER_TIMES].at = rows.time;
}

static void follow_shown(struct follow *f, struct batch_record *x)
{
    const int64_t n = (int64_t)(f->bytes[ROW_MASK_SHOWN] / sizeof(int32_t)),
                  side = contents_of(f->batch)->prompts.image;
    const float *masks = x->is[ROW_GIVEN_MASKS].at;
    int32_t *shown = f->room[ROW_MASK_SHOWN];
    for (int64_t i = 0; i < n; i++) {
        shown[i] = 0;
        for (int64_t k = 0; k < side * side; k++) shown[i] |= masks[i * side * side + k] > 0;
    }
}

/* --- all of them ---------------------------------------------------------------------------- */

/* What follows, unless the record has it: `of` is what it follows from, and `also` a second input
 * that the function fills. */
static const struct {
    enum batch_input input, also, of;
    void (*fill)(struct follow *f, struct batch_record *x);
} rules[] = {{ROW_INDEX, ROW_VOLUME_INDEX, ROW_IDS, follow_index},
             {ROW_VOLUME_INDEX, ROW_INDEX, ROW_IDS, follow_index},
             {ROW_TEXTURE, ROW_INFORMATION, ROW_IDS, follow_texture},
             {ROW_QUERY_WEIGHTS, ROW_QUERY_WEIGHTS, ROW_IDS, follow_weights},
             {ROW_RANDOM_SCORES, ROW_RANDOM_SCORES, ROW_IDS, follow_random},
             {ROW_QUESTION_MASK, ROW_QUESTION_MASK, ROW_QUESTION, follow_question},
             {ROW_TEXT_END, ROW_TEXT_END, ROW_IDS, follow_end},
             {ROW_CANDIDATES, ROW_ANSWERS, ROW_TARGETS, follow_candidates},
             {ROW_MEMORY_ROWS, ROW_POINTER_ROWS, ROW_FRAME_TIMES, follow_clip},
             {ROW_MASK_SHOWN, ROW_MASK_SHOWN, ROW_GIVEN_MASKS, follow_shown}};

bool follow_record(struct follow *f, const bool used[ROW_INPUTS], struct batch_record *x)
{
    f->unmatched = false;
    if (f->positions || f->patches) {
        const int32_t *documents = x->is[ROW_INDEX].at ? x->documents : x->is[ROW_POSITIONS].at;
        const bool text = x->is[ROW_IDS].at, images = f->patches && !x->is[ROW_INDEX].at && (text || x->grids);
        f->given = x->is[ROW_PIXELS].at;
        if (images) follow_patches(f, x);
        if (images && f->images) follow_images(f, x);
        if (text && !x->is[ROW_INDEX].at) follow_tokens(f, x);
        if (text && f->images && documents && !f->unmatched) follow_questions(f, x, documents);
        return !f->unmatched;
    }
    for (size_t i = 0; i < COUNT(rules); i++) {
        if (!used[rules[i].input] || !x->is[rules[i].of].at || x->is[rules[i].input].at) continue;
        if (x->text && rules[i].of == ROW_IDS) continue;
        rules[i].fill(f, x);
        x->is[rules[i].input].at = f->room[rules[i].input];
        x->is[rules[i].also].at = f->room[rules[i].also];
    }
    if (f->ranges && x->is[ROW_IDS].at && !x->text) follow_ranges(f, x);
    return !f->unmatched;
}
