/*
 * step_inputs.c: reads IN.safetensors of `plimsoll step` into the inputs of a run.
 *
 * A port of the model defines the shape and the values of an input. A size that ports leave open
 * comes from the first tensor that has it, and all other tensors must agree. Values are checked and
 * converted row by row, an element of the first dimension, which usually is a sample: the memory
 * does not grow with the batch.
 *
 * A sample is a record of the batch writer, which adds what follows from it (batch/writer.h).
 * position_ids and ranges follow from attention_mask and position_ids as in transformers
 * (convert_row).
 */
#include "batch/step_inputs.h"

#include <math.h>
#include <strings.h>

#include "graph/sizes.h"
#include "models/allocator.h"
#include "models/grounding.h"
#include "models/heads.h"

/* Reports whether the model matches the images of a batch with its texts. */
static bool is_contrastive(const struct model *m) { return m->head && m->head->kind == HEAD_CONTRASTIVE; }

/* --- prompts and loss ------------------------------------------------------------------ */

/* Parses "true", "false", "1" or "0", in any case. */
static int parse_bool(const struct step *s, const char *key, bool *out, struct error *e)
{
    const char *text = st_metadata(&s->in, key);
    if (!text) return PL_OK;
    *out = !strcasecmp(text, "true") || !strcmp(text, "1");
    if (*out || !strcasecmp(text, "false") || !strcmp(text, "0")) return PL_OK;
    return error_set(e, PL_USAGE, "%s: %s is \"%.40s\" in the metadata, it must be true or false", s->in.path, key,
                     text);
}

/* Checks that the frames of each clip have times, and each its own. */
static int check_times(struct step *s, const struct st_entry *times, struct error *e)
{
    const int64_t L = s->size['L'];
    int64_t *row = step_room(s, L, sizeof *row);
    for (int64_t r = 0; r < s->size['B']; r++) {
        TRY(step_ints(s, times, r, L, row, e));
        for (int64_t i = 0; i < L; i++) {
            int64_t k = 0;
            while (row[k] != row[i]) k++;
            if (row[i] >= 0 && k == i) continue;
            return error_set(e, PL_USAGE, "%s: frame_times[%lld,%lld] is %lld, expected 0 or more, and each frame once",
                             s->in.path, (long long)r, (long long)i, (long long)row[i]);
        }
    }
    return PL_OK;
}

/* Finds the frames of clips, and on how many of them prompts are; checks how many masks there
 * are. */
static int find_clip(struct step *s, const struct model *m, struct error *e)
{
    struct prompting *p = &s->holds.prompts;
    const char *given = st_metadata(&s->in, "prompted_frames");
    const bool images = step_tensor(s, m, "pixel_values"), clips = step_tensor(s, m, "pixel_values_videos");
    const int64_t M = max_i64(1, s->size['M']);
    int64_t frames = clips ? s->size['L'] : 1;
    if (images == clips)
        return error_set(e, PL_USAGE, "%s: expected pixel_values or pixel_values_videos, and one of them", s->in.path);
    if (clips != !!step_tensor(s, m, "frame_times"))
        return error_set(e, PL_USAGE, "%s: frame_times are the numbers of the frames of pixel_values_videos: give both",
                         s->in.path);
    bool training = true;
    TRY(parse_bool(s, "training", &training, e));
    p->stable = clips && !training;
    if (clips) TRY(check_times(s, step_tensor(s, m, "frame_times"), e));
    p->frames = clips ? frames : 0;
    p->prompted = !clips ? 0 : given ? strtoll(given, NULL, 10) : 1;
    p->mask_prompts = step_tensor(s, m, "prompt_masks");
    if (clips && (p->prompted < 1 || p->prompted > frames || M % p->prompted))
        return error_set(e, PL_USAGE,
                         "%s: prompted_frames is %s, and there are %lld frames and %lld prompts: expected 1 to %lld "
                         "frames, each with as many prompts", s->in.path, given, (long long)frames, (long long)M,
                         (long long)frames);
    if (p->mask_prompts && (!clips || step_tensor(s, m, "input_points") || step_tensor(s, m, "input_boxes")))
        return error_set(e, PL_USAGE, "%s: prompt_masks are the prompts of clips, without points and boxes",
                         s->in.path);
    if (clips && !p->mask_prompts && !step_tensor(s, m, "input_points") && !step_tensor(s, m, "input_boxes"))
        return error_set(e, PL_USAGE, "%s: clips without prompts: expected input_points, input_boxes or prompt_masks",
                         s->in.path);
    const int64_t targets = M / max_i64(1, p->prompted) * frames;
    if (s->size['G'] && s->size['G'] != targets)
        return error_set(e, PL_USAGE, "%s: gt_masks has %lld masks for a sample, expected %lld: one for each object on "
                         "each frame", s->in.path, (long long)s->size['G'], (long long)targets);
    return PL_OK;
}

/* Reports whether there are targets for the masks of questions. */
static bool answers_with_mask(const struct step *s) { return s->reasons && s->holds.prompts.targets; }

/* Fills in the prompts. The size of the masks follows from that of the images by m->masks->side. */
static int find_prompts(struct step *s, const struct model *m, struct error *e)
{
    struct prompting *p = &s->holds.prompts;
    bool several = true;
    p->image = s->size['S'];
    s->prompted = m->masks;
    s->reasons = prs_model(m);
    s->holds.answer.classes = s->reasons && step_tensor(s, m, "class_labels");
    p->targets = step_tensor(s, m, "gt_masks");
    if (!model_port(m, "input_points")) return PL_OK;
    if (m->masks->clips) TRY(find_clip(s, m, e));
    p->masks = (s->size['M'] ? s->size['M'] : max_i64(1, p->prompted)) / max_i64(1, p->prompted);
    p->points = step_tensor(s, m, "input_points") ? s->size['P'] : 0;
    p->boxes = step_tensor(s, m, "input_boxes");
    p->mask_inputs = s->size['N'];
    TRY(parse_bool(s, "multimask_output", &several, e));
    p->single = !several;
    TRY(parse_bool(s, "hq_token_only", &p->hq_only, e));
    if (p->hq_only && (several || !m->masks->finer))
        return error_set(e, PL_USAGE, "%s: hq_token_only needs %s", s->in.path,
                         several ? "multimask_output: false, because it gives one mask" : "a SAM-HQ");
    if (step_tensor(s, m, "input_labels") && !p->points)
        return error_set(e, PL_USAGE, "%s: input_labels without input_points", s->in.path);
    if (p->mask_inputs > 1 && p->mask_inputs != p->masks)
        return error_set(e, PL_USAGE,
                         "%s: input_masks has %lld masks for an image; expected 1, or one for each of its %lld prompts",
                         s->in.path, (long long)p->mask_inputs, (long long)p->masks);
    const long long side = (long long)m->masks->side(m, p->image), found = (long long)s->size['H'];
    if (found && found != side)
        return error_set(e, PL_USAGE,
                         "%s: masks of %lld x %lld pixels; for images of %lld pixels this model has masks of %lld x "
                         "%lld",
                         s->in.path, found, found, (long long)p->image, side, side);
    return PL_OK;
}

static int unknown_output(const struct step *s, const struct model *m, const char *wanted, struct error *e)
{
    if (m->n_outputs > 3)
        return error_set(e, PL_USAGE,
                         "%s: loss_output \"%s\" is no output of this model; it has last_hidden_state and %s to %s",
                         s->in.path, wanted, m->outputs[0], m->outputs[m->n_outputs - 2]);
    char known[256];
    size_t n = 0;
    for (uint32_t i = 0; i < m->n_outputs && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", m->outputs[i]);
    return error_set(e, PL_USAGE, "%s: loss_output \"%s\" is no output of this model; it has %s", s->in.path, wanted,
                     known);
}

/* Finds out whether there is a loss, and of which output: a tower always has one; a language model
 * has one when labels are given, grounding when targets are. */
static int find_loss(struct step *s, const struct model *m, struct error *e)
{
    const char *wanted = st_metadata(&s->in, "loss_output");
    s->has_loss = m->loss_output || is_contrastive(m) || step_tensor(s, m, "labels") ||
                  step_tensor(s, m, "target_masks") || answers_with_mask(s);
    if (!wanted) return PL_OK;
    if (!m->loss_output)
        return error_set(e, PL_USAGE, "%s: loss_output \"%s\": the loss of a %s is computed from %s", s->in.path,
                         wanted, m->family->model_type, m->ground ? "target_masks" : "labels");
    if (s->holds.prompts.targets)
        return error_set(e, PL_USAGE, "%s: loss_output \"%s\" and gt_masks both define a loss: give one of them",
                         s->in.path, wanted);
    if (!model_has_output(m, wanted)) return unknown_output(s, m, wanted, e);
    s->loss_output = wanted;
    return PL_OK;
}

/* --- attention_mask and position_ids -------------------------------------------------------- */

/* Reads and checks row r and converts it to the inputs of a packed batch; sets s->packed if any of
 * it is padding. A token sees the tokens up to itself that are no padding. Positions that are not
 * given are 0, 1, 2, ... also where the row is padded. Without an attention_mask another document
 * begins wherever they do not go up by 1, and a token sees its own document. */
static int convert_row(struct step *s, const struct model *m, int64_t r, int64_t *row, int32_t *at,
                       int32_t (*range)[2], struct error *e)
{
    const struct st_entry *mask = step_tensor(s, m, "attention_mask"), *positions = step_tensor(s, m, "position_ids");
    const int64_t most = m->positions ? m->positions - 1 : INT32_MAX;
    int64_t begin = 0, end = s->T;
    if (mask) {
        TRY(step_ints(s, mask, r, s->T, row, e));
        TRY(step_unpadded(s, r, row, &begin, &end, e));
    }
    s->packed |= begin > 0 || end < s->T;
    if (positions) TRY(step_ints(s, positions, r, s->T, row, e));
    for (int64_t i = 0, document = 0; i < s->T; i++) {
        const int64_t last = min_i64(i + 1, end), x = positions ? row[i] : i;
        if (x < 0 || x > most)
            return error_set(e, PL_USAGE, "%s: position_ids[%lld,%lld] is %lld, expected 0 to %lld%s", s->in.path,
                             (long long)r, (long long)i, (long long)x, (long long)most,
                             m->positions
                                 ? " (max_position_embeddings), beyond which this model's positions are others"
                                 : "");
        if (i && x != row[i - 1] + 1) document = i;
        at[i] = (int32_t)x;
        const bool padded = mask || !positions, sees = !padded || last > begin;
        range[i][0] = (int32_t)(!sees ? 0 : padded ? begin : document);
        range[i][1] = (int32_t)(!sees ? 0 : padded ? last : i + 1);
    }
    return PL_OK;
}

/* Checks all rows, and finds out whether the batch is packed. One without padding and without
 * position_ids is not: its graph is the plain one. */
static int check_rows(struct step *s, const struct model *m, struct error *e)
{
    int64_t *row = step_room(s, s->T, sizeof *row);
    int32_t *at = step_room(s, s->T, sizeof *at), (*range)[2] = step_room(s, s->T, sizeof *range);
    const bool any = step_tensor(s, m, "position_ids") || step_tensor(s, m, "attention_mask");
    s->packed |= step_tensor(s, m, "position_ids") != NULL;
    for (int64_t r = 0; r < s->B && any; r++) TRY(convert_row(s, m, r, row, at, range, e));
    return PL_OK;
}

/* --- values --------------------------------------------------------------------------------- */

/* Converts one integer of an input, element i of row r, to that of the graph. */
static int convert_int(struct step *s, const struct port *p, int64_t r, int64_t i, int64_t x, int32_t *out,
                       struct error *e)
{
    const struct model *m = &s->run.planned.model;
    const int64_t below = p->below > 0 ? p->below : s->size[-p->below];
    const bool label = p->values == VALUES_LABELS, ignored = label && x == -100;
    switch (p->values) {
    case VALUES_POINTS:
        if (x != 0 && x != 1 && x != -1 && x != -10)
            return error_set(
                e, PL_USAGE,
                "%s: %s, sample %lld: element %lld is %lld, expected 1, 0, -1 (not a point) or -10 (padding)",
                s->in.path, p->name, (long long)r, (long long)i, (long long)x);
        *out = x == 1 ? POINT_FOREGROUND : x == 0 ? POINT_BACKGROUND : x == -1 ? POINT_FILLER : POINT_UNUSED;
        return PL_OK;
    case VALUES_INDEX: case VALUES_TARGETS: case VALUES_CLASS:
        if (x >= below)
            return error_set(e, PL_USAGE, "%s: %s[%lld,%lld] is %lld, expected an index below %lld, or -1 for none",
                             s->in.path, p->name, (long long)r, (long long)i, (long long)x, (long long)below);
        if (p->values == VALUES_TARGETS) s->labels += x >= 0;
        *out = x >= 0 ? (int32_t)x : p->values == VALUES_INDEX ? -1 : -100;
        return PL_OK;
    case VALUES_RANGE:
        *out = (int32_t)x;
        return PL_OK;
    default:
        /* a feature takes the place of an image token */
        if (!ignored && (x < 0 || x >= m->vocabulary) &&
            !(m->images && p->values == VALUES_IDS && x == m->images->token))
            return error_set(e, PL_USAGE, "%s: %s[%lld,%lld] is %lld, the vocabulary has %lld entries", s->in.path,
                             p->name, (long long)r, (long long)i, (long long)x, (long long)m->vocabulary);
        if (label && i) s->labels += !ignored; /* the first label predicts nothing */
        *out = (int32_t)x;
        return PL_OK;
    }
}

/* A row of an input: through `raw`, 8 bytes an element, to `ready`, in the graph's layout. */
struct row {
    char *raw, *ready;
    int64_t n;     /* elements in the file */
    int64_t bytes; /* in the graph */
    int64_t w;     /* size of the last dimension */
};

static int convert_ints(struct step *s, const struct port *p, const struct st_entry *t, int64_t at, int64_t r,
                        const struct row *b, struct error *e)
{
    int64_t *x = (int64_t *)(void *)b->raw;
    TRY(step_ints(s, t, at, b->n, x, e));
    if (p->values == VALUES_RANGE && (x[0] < 0 || x[1] < x[0] || x[1] > s->T))
        return error_set(e, PL_USAGE,
                         "%s: %s[%lld] is %lld, %lld; expected a first token and one past the last, from 0 to %lld",
                         s->in.path, p->name, (long long)r, (long long)x[0], (long long)x[1], (long long)s->T);
    for (int64_t i = 0; i < b->n; i++) TRY(convert_int(s, p, r, i, x[i], (int32_t *)(void *)b->ready + i, e));
    return PL_OK;
}

/* Converts reals. Coordinates in pixels become 0..1 over the image, from the corner of the first
 * pixel. */
static int convert_reals(struct step *s, const struct port *p, const struct st_entry *t, int64_t at, int64_t r,
                         const struct row *b, struct error *e)
{
    const struct model *m = &s->run.planned.model;
    float *out = (float *)(void *)b->ready;
    TRY(step_reals(s, t, at, b->n, b->raw, out, e));
    for (int64_t i = 0; i < b->n; i++)
        if (!isfinite(out[i]))
            return error_set(e, PL_USAGE, "%s: %s, %s %lld: element %lld is %g", s->in.path, p->name,
                             p->dim[0] == OPEN('B') ? "sample" : "row", (long long)r, (long long)i, (double)out[i]);
    if (p->values != VALUES_COORDS) return PL_OK;
    const float side = (float)(m->masks->extent * (double)s->holds.prompts.image / (double)m->image);
    for (int64_t i = 0; i < b->n; i++) out[i] = (out[i] + 0.5f) / side;
    return PL_OK;
}

/* Converts masks. Bytes become bits, the first pixel in the lowest bit, rows padded to whole
 * words. */
static int convert_masks(struct step *s, const struct port *p, const struct st_entry *t, int64_t r, const struct row *b,
                         struct error *e)
{
    const uint8_t *raw = (const uint8_t *)b->raw;
    TRY(st_read(&s->in, t, (uint64_t)(r * b->n), (uint64_t)b->n, b->raw, e));
    memset(b->ready, 0, (size_t)b->bytes);
    for (int64_t i = 0; i < b->n; i++) {
        if (raw[i] > 1)
            return error_set(e, PL_USAGE, "%s: %s, sample %lld: element %lld is %d, expected 0 or 1", s->in.path,
                             p->name, (long long)r, (long long)i, raw[i]);
        b->ready[i / b->w * mask_row_bytes(b->w) + i % b->w / 8] |= (char)(raw[i] << (i % b->w % 8));
    }
    return PL_OK;
}

static int convert(struct step *s, const struct port *p, const struct st_entry *t, int64_t at, int64_t r,
                   const struct row *b, struct error *e)
{
    switch (p->values) {
    case VALUES_REAL: case VALUES_COORDS: case VALUES_VOLUMES: return convert_reals(s, p, t, at, r, b, e);
    case VALUES_MASKS: return convert_masks(s, p, t, at, b, e);
    case VALUES_BYTES: return st_read(&s->in, t, (uint64_t)(at * b->n), (uint64_t)b->n, b->ready, e);
    default: return convert_ints(s, p, t, at, r, b, e);
    }
}

/* Returns the size of a port's dimension. */
static int64_t size_of(const struct step *s, const struct port *p, int i)
{
    return p->dim[i] > 0 ? p->dim[i] : s->size[-p->dim[i]];
}

/* Fills in an input that is not given: labels and targets are ignored (-100), points are
 * foreground. */
static void fill_absent(const struct port *p, const struct row *b)
{
    const bool labels = p->values == VALUES_LABELS || p->values == VALUES_TARGETS;
    CHECK(labels || p->values == VALUES_POINTS, "port %s has no default", p->name);
    for (int64_t i = 0; i < b->n; i++) ((int32_t *)(void *)b->ready)[i] = labels ? -100 : POINT_FOREGROUND;
}

static struct row make_row(struct step *s, const struct port *p)
{
    struct row b = {.n = 1, .w = size_of(s, p, p->rank - 1)};
    for (int i = 1; i < p->rank; i++) b.n *= size_of(s, p, i);
    b.bytes = p->values == VALUES_MASKS && b.w ? b.n / b.w * mask_row_bytes(b.w)
              : p->values == VALUES_BYTES      ? b.n
                                               : b.n * 4;
    b.raw = step_room(s, b.n, 8);
    b.ready = step_room(s, max_i64(b.n * 4, b.bytes), 1);
    return b;
}

/* Writes the patches of a modality's volumes. */
static int put_volumes(struct step *s, const struct port *p, const struct st_entry *t, const struct row *b,
                       struct error *e)
{
    const int k = (int)(-p->dim[0] - 'a');
    const struct modality *x = &s->run.planned.model.images->modalities.at[k];
    const uint64_t bytes = (uint64_t)modality_floats(x) * sizeof(float);
    float *patches = step_room(s, modality_floats(x), sizeof *patches);
    for (int64_t r = 0; r < size_of(s, p, 0); r++) {
        TRY(convert(s, p, t, r, r, b, e));
        modality_cut(x, (const float *)(const void *)b->ready, patches);
        TRY(batch_write_part(&s->run, batch_inputs[ROW_VOLUMES_0 + k].name, (uint64_t)r * bytes, patches, bytes, e));
    }
    return PL_OK;
}

/* Writes a tensor whose rows are no samples: images of the whole batch, and then the frames of its
 * videos. */
static int put_images(struct step *s, const struct port *p, const struct st_entry *t, struct error *e)
{
    const bool frames = p->dim[0] == OPEN_FRAMES;
    const int64_t before = frames ? s->size['N'] : 0;
    const char *name = frames ? "pixel_values" : p->name;
    const struct row b = make_row(s, p);
    struct planned_input x;
    if (p->values == VALUES_VOLUMES) return put_volumes(s, p, t, &b, e);
    const bool input = planned_input(&s->run.planned, name, &x);
    for (int64_t r = 0; r < size_of(s, p, 0); r++) {
        TRY(convert(s, p, t, s->image_at && !frames ? s->image_at[r] : r, r, &b, e));
        if (input)
            TRY(batch_write_part(&s->run, name, (uint64_t)((before + r) * b.bytes), b.ready, (uint64_t)b.bytes, e));
    }
    return PL_OK;
}

/* Writes what the token allocator reads about images: the cells around each patch, and given
 * tensors. */
static int put_allocation(struct step *s, const struct grid_row *row, int64_t P, struct error *e)
{
    static const char *const names[] = {"texture", "information", "query_weights"};
    const struct model *m = &s->run.planned.model;
    int32_t (*cells)[4] = step_room(s, P, sizeof *cells);
    float (*weights)[4] = step_room(s, P, sizeof *weights);
    allocator_cells(s->grids, s->n_grids, row, P, cells, weights);
    TRY(batch_write_all(&s->run, batch_inputs[ROW_PATCH_CELLS].name, cells, e));
    TRY(batch_write_all(&s->run, batch_inputs[ROW_CELL_WEIGHTS].name, weights, e));
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct st_entry *t = step_tensor(s, m, names[i]);
        if (!t)
            return error_set(e, PL_USAGE, "%s has no %s, which a model of type %s reads besides images", s->in.path,
                             names[i], m->family->model_type);
        TRY(put_images(s, model_port(m, names[i]), t, e));
    }
    return PL_OK;
}

/* Writes the patches of all images and videos, in the order in which the tower reads them, and what
 * follows from the grids; returns where features lie. */
static int put_grids(struct step *s, int32_t **feature, struct error *e)
{
    const struct model *m = &s->run.planned.model;
    const struct grid_model *g = m->images->grids;
    const int64_t P = s->size['P'] + s->size['V'], K = grid_values(g);
    const struct st_entry *pixels[] = {step_tensor(s, m, "pixel_values"), step_tensor(s, m, "pixel_values_videos")};
    struct planned_input x;
    *feature = NULL;
    if (!P) return PL_OK;
    struct grid_row row = {step_room(s, P, sizeof *row.order), step_room(s, P, sizeof *row.ranges),
                           step_room(s, P, sizeof *row.windows), step_room(s, P, sizeof *row.positions),
                           step_room(s, P, sizeof *row.corners), step_room(s, P, sizeof *row.weights),
                           step_room(s, P, sizeof *row.feature)};
    if (!g->table) row.corners = NULL, row.weights = NULL;
    grid_lay_out(g, s->grids, s->n_grids, P, &row);
    *feature = row.feature;
    const struct {
        enum batch_input input;
        const void *data;
    } inputs[] = {{ROW_PATCH_RANGES, row.ranges}, {ROW_WINDOW_RANGES, row.windows},
                  {ROW_PATCH_POSITIONS, row.positions}, {ROW_PATCH_CORNERS, row.corners},
                  {ROW_CORNER_WEIGHTS, row.weights}};
    for (size_t i = 0; i < COUNT(inputs); i++)
        if (planned_input(&s->run.planned, batch_inputs[inputs[i].input].name, &x))
            TRY(batch_write_all(&s->run, batch_inputs[inputs[i].input].name, inputs[i].data, e));
    if (g->tokens) TRY(put_allocation(s, &row, P, e));
    const struct row b = {step_room(s, K, 8), step_room(s, K, 4), K, 4 * K, K};
    for (int64_t p = 0; p < P; p++) {
        const bool video = row.order[p] >= s->size['P'];
        const struct port *port = model_port(m, video ? "pixel_values_videos" : "pixel_values");
        const int64_t at = row.order[p] - (video ? s->size['P'] : 0);
        TRY(convert(s, port, pixels[video], at, at, &b, e));
        TRY(batch_write_part(&s->run, "pixel_values", (uint64_t)(p * b.bytes), b.ready, (uint64_t)b.bytes, e));
    }
    return PL_OK;
}

/* --- samples ---------------------------------------------------------------------------------- */

/* A sample on its way into a record: a row of every port that has samples. */
struct step_sample {
    struct row row[MODEL_PORTS];
    int64_t *raw;
    int32_t *positions, (*ranges)[2];
    int32_t *valid[2];           /* of masks and of images: all of them; NULL: no such input */
    struct grid_tokens tokens;   /* with images of any size... */
    struct grid_walk walk;       /* ...and where the samples have come to in them */
    bool *is_mask;               /* with masks to choose from */
};

static bool has_samples(const struct port *p)
{
    return p->dim[0] == OPEN('B') && p->values != VALUES_PADDING && p->values != VALUES_POSITIONS &&
           p->values != VALUES_KINDS;
}

/* Makes the row that marks every pixel of the masks of port `of`, or of its images, as valid. */
static int32_t *make_valid(struct step *s, enum batch_input input, const char *of, int axis)
{
    const struct port *p = model_port(&s->run.planned.model, of);
    struct planned_input x;
    if (!p || !planned_input(&s->run.planned, batch_inputs[input].name, &x)) return NULL;
    const int32_t h = (int32_t)size_of(s, p, axis < 0 ? p->rank + axis : axis);
    int32_t *all = step_room(s, (int64_t)x.sample, 1);
    for (uint64_t i = 0; i < x.sample / sizeof *all; i++) all[i] = h;
    return all;
}

static struct step_sample make_sample(struct step *s, const struct model *m)
{
    struct step_sample x = {.raw = step_room(s, s->T, sizeof *x.raw),
                       .positions = step_room(s, s->T, sizeof *x.positions),
                       .ranges = step_room(s, s->T, sizeof *x.ranges),
                       .valid = {make_valid(s, ROW_MASK_VALID, "gt_masks", -1),
                                 make_valid(s, ROW_IMAGE_VALID, "images", 1)}};
    for (int k = 0; k < m->n_ports; k++)
        if (has_samples(&m->ports[k])) x.row[k] = make_row(s, &m->ports[k]);
    if (m->ground) x.is_mask = step_room(s, s->size['M'], sizeof *x.is_mask);
    if (m->images && m->images->grids) {
        x.tokens = step_grid_tokens(s);
        x.walk = (struct grid_walk){.model = m->images->grids, .grids = s->grids, .n = s->n_grids};
    }
    return x;
}

/* Finds the masks that cover something, and checks the targets. */
static int find_masks(struct step *s, int64_t r, const float *areas, const int32_t *targets, bool *is_mask,
                      struct error *e)
{
    const int64_t M = s->size['M'], side = s->run.planned.model.ground->side, patches = side * side;
    memset(is_mask, 0, (size_t)M * sizeof *is_mask);
    for (int64_t i = 0; i < M * patches; i++) {
        if (!(areas[i] >= 0))
            return error_set(e, PL_USAGE, "%s: masks, sample %lld: mask %lld covers %g of a patch, expected 0 to 1",
                             s->in.path, (long long)r, (long long)(i / patches), (double)areas[i]);
        is_mask[i / patches] |= areas[i] > 0;
    }
    for (int64_t q = 0; q < s->size['Q']; q++)
        if (targets[q] >= 0 && !is_mask[targets[q]])
            return error_set(e, PL_USAGE, "%s: target_masks[%lld,%lld] is %d, and that mask is empty", s->in.path,
                             (long long)r, (long long)q, targets[q]);
    return PL_OK;
}

/* Checks that CLIP finds the token at which it pools the text. */
static int check_end(const struct step *s, int64_t r, const int32_t *ids, struct error *e)
{
    const struct head_model *h = s->run.planned.model.head;
    if (h->siglip || head_text_end(h, ids, s->T) >= 0) return PL_OK;
    return error_set(e, PL_USAGE,
                     "%s: input_ids, sample %lld has no end token (eos_token_id %lld of text_config), which its text "
                     "is pooled at",
                     s->in.path, (long long)r, (long long)text_tower_sizes(h->text).end);
}

/* Returns the number of the port input_ids. */
static int ids_port(const struct model *m)
{
    return (int)(model_port(m, "input_ids") - m->ports);
}

/* Reads sample r into a record; prompts that are not given have none. */
static int read_sample(struct step *s, int64_t r, struct step_sample *x, struct batch_record *out, struct error *e)
{
    const struct model *m = &s->run.planned.model;
    struct planned_input found;
    for (int k = 0; k < m->n_ports; k++) {
        const struct port *p = &m->ports[k];
        const struct row *b = &x->row[k];
        if (!b->ready || (!s->given[k] && !planned_input(&s->run.planned, p->name, &found))) continue;
        if (s->given[k]) TRY(convert(s, p, s->given[k], r, r, b, e));
        else fill_absent(p, b);
        out->is[batch_find(p->name)].at = b->ready;
    }
    if (m->images && m->images->anyres)
        TRY(step_put_shapes(s, m->images->anyres, r, (int32_t *)(void *)x->row[ids_port(m)].ready, e));
    if (s->packed) {
        TRY(convert_row(s, m, r, x->raw, x->positions, x->ranges, e));
        out->is[ROW_POSITIONS].at = x->positions;
        out->is[ROW_RANGES].at = x->ranges;
    }
    if (x->walk.model) {
        TRY(step_find_features(s, m, r, &x->walk, x->raw, &x->tokens, e));
        out->is[ROW_POSITIONS].at = x->tokens.positions;
        out->is[ROW_INDEX].at = x->tokens.index;
    }
    out->is[ROW_MASK_VALID].at = x->valid[0];
    out->is[ROW_IMAGE_VALID].at = x->valid[1];
    if (is_contrastive(m)) TRY(check_end(s, r, out->is[ROW_IDS].at, e));
    out->is_mask = x->is_mask;
    return m->ground ? find_masks(s, r, out->is[ROW_AREAS].at, out->is[ROW_TARGETS].at, x->is_mask, e) : PL_OK;
}

static int put_samples(struct step *s, struct batch_writer *w, struct error *e)
{
    struct step_sample x = make_sample(s, &s->run.planned.model);
    if (x.walk.model) {
        int32_t *feature;
        TRY(put_grids(s, &feature, e));
        x.walk.feature = feature;
    }
    int64_t feature[2] = {0}; /* the images of all samples are in one row of features */
    for (int64_t r = 0; r < s->B; r++) {
        struct batch_record record = {.feature = feature, .runs = s->runs, .n_runs = s->n_runs};
        TRY(read_sample(s, r, &x, &record, e));
        TRY(batch_write(w, &(struct batch_target){0}, r, &record, e));
    }
    return PL_OK;
}

/* --- all of them ---------------------------------------------------------------------------- */

int step_open(struct step *s, const struct model *m, const char *path, struct error *e)
{
    TRY(st_open(path, &s->in, e));
    TRY(step_find_tensors(s, m, e));
    TRY(find_prompts(s, m, e));
    TRY(find_loss(s, m, e));
    s->B = max_i64(1, s->size['B']);
    s->T = s->size['T'] = max_i64(1, s->size['T']);
    TRY(check_rows(s, m, e));
    return step_check_images(s, m, e);
}

void step_close(struct step *s)
{
    st_close(&s->in);
    bump_free(&s->memory);
}

/* Returns the divisor of the loss: the number of masks, of labels (counted while reading), or of
 * elements of the output whose mean square is the loss. */
static double count(const struct step *s)
{
    const struct graph *g = &s->run.planned.graph;
    const struct model *m = &s->run.planned.model;
    if (s->prompted && s->holds.prompts.targets) return (double)(s->B * s->holds.prompts.masks);
    if (is_contrastive(m)) return (double)s->B;
    if (!m->loss_output) return s->labels;
    const char *name = s->loss_output ? s->loss_output : m->loss_output;
    return (double)tensor_elements(tensor_at(g, graph_find_output(g, PROGRAM_STEP, name)));
}

double step_count(const struct step *s, const char *name)
{
    if (!strcmp(name, "tokens")) return s->labels;
    if (!strcmp(name, "masks")) return (double)s->B;
    return s->counted;
}

/* Reports whether the rows of an input are no samples, and are written as they are. */
static bool is_shared(const struct port *p)
{
    return p->dim[0] != OPEN('B') && p->values != VALUES_PADDING && p->values != VALUES_SIZES &&
           p->values != VALUES_ORDER;
}

int step_put_inputs(struct step *s, struct error *e)
{
    const struct model *m = &s->run.planned.model;
    for (int k = 0; k < m->n_ports; k++)
        if (s->given[k] && is_shared(&m->ports[k]) && !(m->images && m->images->grids))
            TRY(put_images(s, &m->ports[k], s->given[k], e));
    struct batch_writer *w = batch_writer_new(&s->run);
    const int rc = put_samples(s, w, e);
    batch_writer_free(w);
    if (rc) return rc;
    s->counted = count(s);
    if (s->has_loss && !answers_with_mask(s) && !(s->counted > 0))
        return error_set(e, PL_USAGE, "%s: every label is ignored, so there is no loss", s->in.path);
    return PL_OK;
}
