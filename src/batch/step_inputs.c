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

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "batch/writer.h"
#include "graph/sizes.h"
#include "models/allocator.h"
#include "models/grounding.h"
#include "models/heads.h"
#include "models/images.h"

enum { SIZE_MOST = 1 << 20 }; /* largest size that the batch file may set */

/* Returns the tensor of an input; NULL: not given. */
static const struct st_entry *given(const struct step *s, const struct model *m, const char *name)
{
    const struct port *p = model_port(m, name);
    return p ? s->given[p - m->ports] : NULL;
}

/* Reports whether the model matches the images of a batch with its texts. */
static bool is_contrastive(const struct model *m) { return m->head && m->head->kind == HEAD_CONTRASTIVE; }

/* --- tensors ------------------------------------------------------------------------- */

/* Prints "[B,T]" or "[2,3,224,224]". */
static char *print_shape(int rank, const int64_t *dim, char out[96])
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < rank && n < 96; i++) {
        const char *before = i ? "," : "[", *after = i == rank - 1 ? "]" : "";
        if (dim[i] < 0) n += (size_t)snprintf(out + n, 96 - n, "%s%c%s", before, (char)-dim[i], after);
        else n += (size_t)snprintf(out + n, 96 - n, "%s%lld%s", before, (long long)dim[i], after);
    }
    return out;
}

/* Reports whether a dimension is right: the port fixes it, or the first tensor that has it. */
static bool agrees(struct step *s, int64_t wanted, int64_t found)
{
    if (wanted > 0) return found == wanted;
    int64_t *open = &s->size[-wanted];
    if (!*open) *open = found;
    return *open == found;
}

/* Returns the allowed dtypes of an input, for an error message; NULL: the tensor's dtype is
 * allowed. */
static const char *wrong_dtype(const struct port *p, const struct st_entry *t)
{
    bool whole = t->dtype == DT_I32 || t->dtype == DT_I64, 
         real = t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16;
    bool boolean = t->dtype == DT_U8 || !strcmp(t->dtype_name, "BOOL");
    switch (p->values) {
    case VALUES_REAL: case VALUES_VOLUMES: return real ? NULL : "F32, BF16 or F16";
    case VALUES_COORDS: return real || whole ? NULL : "F32, BF16, F16, I32 or I64";
    case VALUES_MASKS: return boolean ? NULL : "U8 or BOOL";
    case VALUES_BYTES: return t->dtype == DT_U8 ? NULL : "U8";
    case VALUES_PADDING: return whole || boolean ? NULL : "I32, I64, U8 or BOOL";
    default: return whole ? NULL : "I32 or I64";
    }
}

static int check_entry(struct step *s, const struct port *p, const struct st_entry *t, struct error *e)
{
    char expected[96], found[96];
    const char *path = s->in.path;
    if (t->rank != p->rank)
        return error_set(e, PL_USAGE, "%s: %s must be %s, it has rank %d", path, t->name,
                         print_shape(p->rank, p->dim, expected), t->rank);
    const char *other = wrong_dtype(p, t);
    if (other) return error_set(e, PL_USAGE, "%s: %s is %s, it must be %s", path, t->name, t->dtype_name, other);
    for (int i = 0; i < t->rank; i++) {
        if (p->dim[i] == OPEN('T') && t->dims[i] < 2)
            return error_set(e, PL_USAGE, "%s: %s has T = %lld, it must be at least 2", path, t->name,
                             (long long)t->dims[i]);
        const bool none = t->dims[i] < 1 && (i || (p->dim[i] != OPEN_IMAGES && p->dim[i] != OPEN_FRAMES));
        if (none || (p->dim[i] < 0 && t->dims[i] > SIZE_MOST))
            return error_set(e, PL_USAGE, "%s: %s has %lld in dimension %d, it must be between 1 and %d", path, t->name,
                             (long long)t->dims[i], i, SIZE_MOST);
        if (!agrees(s, p->dim[i], t->dims[i]))
            return error_set(e, PL_USAGE, "%s: %s has the shape %s; expected %s%s", path, t->name,
                             print_shape(t->rank, t->dims, found), print_shape(p->rank, p->dim, expected),
                             p->dim[i] < 0 ? ", where a letter has the same size in all inputs"
                                           : " by the model's config.json");
    }
    return PL_OK;
}

/* Returns the port as the file has it: images may be padded to one number for each sample,
 * [B,M,...], instead of [N,...]; videos are [V,W,...], W frames each. */
static struct port port_as_given(const struct model *m, const struct port *p, const struct st_entry *t)
{
    struct port as = *p;
    const bool frames = p->dim[0] == OPEN_FRAMES;
    if (!m->images || !m->images->padded || (p->dim[0] != OPEN_IMAGES && !frames) || t->rank != p->rank + 1) return as;
    as.rank++;
    as.dim[0] = frames ? OPEN('V') : m->images->anyres ? OPEN('I') : OPEN('B');
    as.dim[1] = frames ? OPEN('W') : OPEN('M');
    memcpy(&as.dim[2], &p->dim[1], (size_t)(p->rank - 1) * sizeof *as.dim);
    return as;
}

static int find_entries(struct step *s, const struct model *m, struct error *e)
{
    char known[256];
    for (uint32_t i = 0; i < s->in.n_entries; i++)
        if (!model_port(m, s->in.entries[i].name))
            return error_set(e, PL_USAGE, "%s: unknown input %s; this model takes %s", s->in.path,
                             s->in.entries[i].name, model_list_ports(m, known));
    for (int i = 0; i < m->n_ports; i++) {
        const struct port *p = &m->ports[i];
        s->given[i] = st_find(&s->in, p->name);
        if (!s->given[i] && !p->optional)
            return error_set(e, PL_USAGE, "%s: no %s; this model takes %s", s->in.path, p->name,
                             model_list_ports(m, known));
        const struct port as = s->given[i] ? port_as_given(m, p, s->given[i]) : *p;
        if (s->given[i] && check_entry(s, &as, s->given[i], e)) return e->code;
    }
    return PL_OK;
}

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

/* Fills in the prompts. The size of the masks follows from that of the images by m->masks->side. */
static int find_prompts(struct step *s, const struct model *m, struct error *e)
{
    struct prompting *p = &s->prompts;
    bool several = true;
    p->image = s->size['S'];
    s->prompted = m->masks;
    s->reasons = prs_model(m);
    s->prs.targets = s->reasons && given(s, m, "gt_masks");
    s->prs.classes = s->reasons && given(s, m, "class_labels");
    if (!model_port(m, "input_points")) return PL_OK;
    p->masks = s->size['M'] ? s->size['M'] : 1;
    p->points = given(s, m, "input_points") ? s->size['P'] : 0;
    p->boxes = given(s, m, "input_boxes");
    p->mask_inputs = s->size['N'];
    p->targets = given(s, m, "gt_masks");
    TRY(parse_bool(s, "multimask_output", &several, e));
    p->single = !several;
    if (given(s, m, "input_labels") && !p->points)
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
    s->has_loss =
        m->loss_output || is_contrastive(m) || given(s, m, "labels") || given(s, m, "target_masks") || s->prs.targets;
    if (!wanted) return PL_OK;
    if (!m->loss_output)
        return error_set(e, PL_USAGE, "%s: loss_output \"%s\": the loss of a %s is computed from %s", s->in.path,
                         wanted, m->family->model_type, m->ground ? "target_masks" : "labels");
    if (s->prompts.targets)
        return error_set(e, PL_USAGE, "%s: loss_output \"%s\" and gt_masks both define a loss: give one of them",
                         s->in.path, wanted);
    if (!model_has_output(m, wanted)) return unknown_output(s, m, wanted, e);
    s->loss_output = wanted;
    return PL_OK;
}

/* --- rows ----------------------------------------------------------------------------------- */

/* Reads row r of a tensor, n integers or booleans. */
static int read_ints(const struct step *s, const struct st_entry *t, int64_t r, int64_t n, int64_t *out,
                     struct error *e)
{
    const uint64_t size = t->bytes / (uint64_t)t->elements, bytes = (uint64_t)n * size;
    const char *raw =
        (char *)out + (uint64_t)n * sizeof *out - bytes; /* at the end of `out`, which then grows over it */
    TRY(st_read(&s->in, t, (uint64_t)r * bytes, bytes, (char *)out + (uint64_t)n * sizeof *out - bytes, e));
    for (int64_t i = 0; i < n; i++) {
        int64_t x = 0;
        int32_t half;
        if (size == 8) memcpy(&x, raw + i * 8, 8);
        else if (size == 4) memcpy(&half, raw + i * 4, 4), x = half;
        else x = ((const uint8_t *)raw)[i];
        out[i] = x;
    }
    return PL_OK;
}

/* Reads row r of a tensor, n numbers of any dtype, through `raw`, 8 bytes each. */
static int read_reals(const struct step *s, const struct st_entry *t, int64_t r, int64_t n, void *raw, float *out,
                      struct error *e)
{
    const uint64_t bytes = (uint64_t)n * dtype_size(t->dtype);
    TRY(st_read(&s->in, t, (uint64_t)r * bytes, bytes, raw, e));
    dtype_convert(out, DT_F32, raw, t->dtype, n);
    return PL_OK;
}

static void *room(struct step *s, int64_t n, size_t size) { return bump_alloc(&s->memory, (size_t)n * size); }

/* --- attention_mask and position_ids -------------------------------------------------------- */

/* Finds the tokens begin .. end that are no padding. */
static int check_padding(const struct step *s, int64_t r, const int64_t *mask, int64_t *begin, int64_t *end,
                         struct error *e)
{
    *begin = *end = 0;
    for (int64_t i = 0; i < s->T; i++) {
        if (mask[i] != 0 && mask[i] != 1)
            return error_set(e, PL_USAGE, "%s: attention_mask[%lld,%lld] is %lld, expected 1, or 0 for padding",
                             s->in.path, (long long)r, (long long)i, (long long)mask[i]);
        if (!mask[i]) continue;
        if (*end && *end != i)
            return error_set(e, PL_USAGE,
                             "%s: attention_mask[%lld,%lld] is 0 between ones; padding must be at the left or the "
                             "right end of a row",
                             s->in.path, (long long)r, (long long)(i - 1));
        if (!*end) *begin = i;
        *end = i + 1;
    }
    return PL_OK;
}

/* Reads and checks row r and converts it to the inputs of a packed batch; sets s->packed if any of
 * it is padding. A token sees the tokens up to itself that are no padding. Positions that are not
 * given are 0, 1, 2, ... also where the row is padded. Without an attention_mask another document
 * begins wherever they do not go up by 1, and a token sees its own document. */
static int convert_row(struct step *s, const struct model *m, int64_t r, int64_t *row, int32_t *at,
                       int32_t (*range)[2], struct error *e)
{
    const struct st_entry *mask = given(s, m, "attention_mask"), *positions = given(s, m, "position_ids");
    const int64_t most = m->positions ? m->positions - 1 : INT32_MAX;
    int64_t begin = 0, end = s->T;
    if (mask) {
        TRY(read_ints(s, mask, r, s->T, row, e));
        TRY(check_padding(s, r, row, &begin, &end, e));
    }
    s->packed |= begin > 0 || end < s->T;
    if (positions) TRY(read_ints(s, positions, r, s->T, row, e));
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
    int64_t *row = room(s, s->T, sizeof *row);
    int32_t *at = room(s, s->T, sizeof *at), (*range)[2] = room(s, s->T, sizeof *range);
    const bool any = given(s, m, "position_ids") || given(s, m, "attention_mask");
    s->packed |= given(s, m, "position_ids") != NULL;
    for (int64_t r = 0; r < s->B && any; r++) TRY(convert_row(s, m, r, row, at, range, e));
    return PL_OK;
}

/* --- images among tokens -------------------------------------------------------------------- */

/* Lists the images of [B,M,...] that are no padding: those with a pixel that is not zero. */
static int list_images(struct step *s, const struct st_entry *t, struct error *e)
{
    const int64_t all = t->dims[0] * t->dims[1], n = t->dims[2] * t->dims[3] * t->dims[4];
    void *raw = room(s, n, 8);
    float *pixels = room(s, n, sizeof *pixels);
    s->image_at = room(s, all, sizeof *s->image_at);
    s->size['N'] = 0;
    for (int64_t i = 0; i < all; i++) {
        TRY(read_reals(s, t, i, n, raw, pixels, e));
        for (int64_t k = 0; k < n; k++)
            if (pixels[k] != 0) {
                s->image_at[s->size['N']++] = i;
                break;
            }
    }
    return PL_OK;
}

/* Checks that the pixels of an image, unless it is padding, are all there. */
static int check_pixel_mask(struct step *s, const struct st_entry *t, struct error *e)
{
    const int64_t all = t->dims[0] * t->dims[1], pixels = t->dims[2] * t->dims[3];
    int64_t *mask = room(s, pixels, sizeof *mask);
    for (int64_t i = 0; i < (s->image_at ? s->size['N'] : all); i++) {
        const int64_t image = s->image_at ? s->image_at[i] : i;
        if (image < all) TRY(read_ints(s, t, image, pixels, mask, e));
        for (int64_t k = 0; k < pixels && image < all; k++)
            if (mask[k] != 1)
                return error_set(e, PL_USAGE,
                                 "%s: pixel_attention_mask leaves out pixels of image %" PRId64
                                 "; images must fill their squares: resize them to config.json's image_size",
                                 s->in.path, image);
    }
    return PL_OK;
}

/* Checks the types of a row's tokens: 1 at the tokens of images, or from the first label on. */
static int check_types(struct step *s, const struct model *m, int64_t r, const int64_t *ids, struct error *e)
{
    const struct st_entry *types = given(s, m, "token_type_ids"), *labels = given(s, m, "labels"),
                          *mask = given(s, m, "attention_mask");
    int64_t *type = room(s, s->T, sizeof *type), *label = room(s, s->T, sizeof *label),
            *seen = room(s, s->T, sizeof *seen);
    bool answer = false;
    if (!types) return PL_OK;
    TRY(read_ints(s, types, r, s->T, type, e));
    if (labels) TRY(read_ints(s, labels, r, s->T, label, e));
    if (mask) TRY(read_ints(s, mask, r, s->T, seen, e));
    for (int64_t i = 0; i < s->T; i++) {
        answer |= labels && label[i] >= 0;
        const bool expected = m->images->both == BOTH_PROMPT ? answer : (int32_t)ids[i] == m->images->token;
        if (type[i] == expected || (mask && !seen[i])) continue;
        return error_set(e, PL_USAGE, "%s: token_type_ids[%lld,%lld] is %lld, expected %d: 1 %s", s->in.path,
                         (long long)r, (long long)i, (long long)type[i], expected,
                         m->images->both == BOTH_PROMPT ? "from the first label of a row on" : "at image tokens");
    }
    return PL_OK;
}

/* Counts the image tokens of all rows; *videos: those of videos, where these have their own. */
static int count_tokens(struct step *s, const struct model *m, int64_t *count, int64_t *videos, struct error *e)
{
    const bool apart = images_sum(m->images);
    int64_t *ids = room(s, s->T, sizeof *ids);
    *count = *videos = 0;
    for (int64_t r = 0; r < s->B; r++) {
        TRY(read_ints(s, given(s, m, "input_ids"), r, s->T, ids, e));
        if (m->images->both) TRY(check_types(s, m, r, ids, e));
        for (int64_t i = 0; i < s->T; i++) {
            *count += (int32_t)ids[i] == m->images->token;
            *videos += apart && (int32_t)ids[i] == m->images->anyres->video;
        }
    }
    return PL_OK;
}

/* --- images of any size ----------------------------------------------------------------------- */

/* Reads the grids of images or of videos, and checks that they have the patches of their pixels. */
static int read_grids(struct step *s, const struct model *m, bool video, struct error *e)
{
    const char *name = video ? "video_grid_thw" : "image_grid_thw",
               *pixels = video ? "pixel_values_videos" : "pixel_values";
    const struct st_entry *t = given(s, m, name), *seconds = video ? given(s, m, "second_per_grid_ts") : NULL;
    const int64_t n = t ? t->dims[0] : 0, merge = m->images->grids->merge, found = s->size[video ? 'V' : 'P'];
    int64_t patches = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t x[3], raw;
        float each = 0;
        TRY(read_ints(s, t, i, 3, x, e));
        if (seconds) TRY(read_reals(s, seconds, i, 1, &raw, &each, e));
        for (int k = 0; k < 3; k++)
            if (x[k] < 1 || x[k] > SIZE_MOST || (k && x[k] % merge) || (!k && !video && x[k] > 1))
                return error_set(e, PL_USAGE,
                                 "%s: %s[%lld] is %lld, %lld, %lld; expected %s, then rows and columns of patches, "
                                 "multiples of %lld", s->in.path, name, (long long)i, (long long)x[0], (long long)x[1],
                                 (long long)x[2], video ? "frames" : "1", (long long)merge);
        s->grids[s->n_grids] = (struct image_grid){x[0], x[1], x[2], video, (double)each};
        TRY(allocator_check(m->images->grids, &s->grids[s->n_grids], e));
        patches += grid_patches(&s->grids[s->n_grids++]);
    }
    if (patches == found) return PL_OK;
    return error_set(e, PL_USAGE, "%s: %s has %lld rows; expected %lld, the patches of the %lld grids of %s",
                     s->in.path, pixels, (long long)found, (long long)patches, (long long)n, name);
}

/* A row's tokens, and what follows of them. */
struct grid_tokens {
    int32_t *ids, *index, (*positions)[3]; /* [T] */
};

/* Finds the positions and the features of row r, whose tokens begin .. end are no padding. */
static int find_features(struct step *s, const struct model *m, int64_t r, struct grid_walk *walk, int64_t *raw,
                         struct grid_tokens *out, struct error *e)
{
    const struct st_entry *mask = given(s, m, "attention_mask"), *kinds = given(s, m, "mm_token_type_ids");
    const struct grid_model *g = m->images->grids;
    int64_t begin = 0, end = s->T;
    if (mask) {
        TRY(read_ints(s, mask, r, s->T, raw, e));
        TRY(check_padding(s, r, raw, &begin, &end, e));
    }
    TRY(read_ints(s, given(s, m, "input_ids"), r, s->T, raw, e));
    for (int64_t i = 0; i < s->T; i++) {
        out->ids[i] = (int32_t)raw[i];
        out->index[i] = -1;
        memset(out->positions[i], 0, sizeof out->positions[i]);
    }
    if (kinds) TRY(read_ints(s, kinds, r, s->T, raw, e));
    for (int64_t i = begin; kinds && i < end; i++) {
        const int expected = out->ids[i] == g->image ? 1 : out->ids[i] == g->video ? 2 : 0;
        if (raw[i] != expected)
            return error_set(e, PL_USAGE, "%s: mm_token_type_ids[%lld,%lld] is %lld, and the token %d is of kind %d",
                             s->in.path, (long long)r, (long long)i, (long long)raw[i], out->ids[i], expected);
    }
    if (grid_document(walk, out->ids + begin, end - begin, out->positions + begin, out->index + begin)) return PL_OK;
    return error_set(
        e, PL_USAGE,
        "%s: the image tokens (id %d) and video tokens (id %d) of row %lld do not match the grids: expected "
        "the patches / %lld of the next image or video wherever such tokens begin",
        s->in.path, g->image, g->video, (long long)r, (long long)(g->merge * g->merge));
}

static struct grid_tokens make_tokens(struct step *s)
{
    return (struct grid_tokens){room(s, s->T, sizeof(int32_t)), room(s, s->T, sizeof(int32_t)),
                                room(s, s->T, 3 * sizeof(int32_t))};
}

/* Checks images and videos of any size. pixel_values and pixel_values_videos are the patches of the
 * whole batch, image_grid_thw and video_grid_thw how many of them each has, and the tokens come in
 * their order. */
static int check_grids(struct step *s, const struct model *m, struct error *e)
{
    const int64_t n = s->size['N'] + s->size['F'];
    s->grids = room(s, max_i64(n, 1), sizeof *s->grids);
    for (int video = 0; video < 2; video++) TRY(read_grids(s, m, video, e));
    struct grid_walk walk = {.model = m->images->grids, .grids = s->grids, .n = s->n_grids};
    struct grid_tokens tokens = make_tokens(s);
    int64_t *raw = room(s, s->T, sizeof *raw);
    for (int64_t r = 0; r < s->B; r++) TRY(find_features(s, m, r, &walk, raw, &tokens, e));
    for (int video = 0; video < 2; video++)
        for (; walk.next[video] < n; walk.next[video]++)
            if (s->grids[walk.next[video]].video == video)
                return error_set(e, PL_USAGE, "%s: input_ids has no tokens for all of the %lld grids of %s", s->in.path,
                                 (long long)s->size[video ? 'F' : 'N'], video ? "video_grid_thw" : "image_grid_thw");
    return PL_OK;
}

/* --- images in tiles with a map --------------------------------------------------------------- */

/* Finds, of each image, whether its conversation has others, by batch_num_images; without that none
 * has. */
static int read_counts(struct step *s, const struct model *m, bool *beside, struct error *e)
{
    const struct st_entry *t = given(s, m, "batch_num_images");
    int64_t n = 0, sum = 0;
    for (int64_t i = 0; t && i < t->dims[0]; i++) {
        TRY(read_ints(s, t, i, 1, &n, e));
        for (int64_t k = 0; k < n && sum + k < s->n_shapes; k++) beside[sum + k] = n > 1;
        sum += n;
        if (n < 0 || sum > s->n_shapes) break;
    }
    if (!t || (n >= 0 && sum == s->n_shapes)) return PL_OK;
    return error_set(e, PL_USAGE, "%s: batch_num_images does not add up to the %lld images of image_sizes", s->in.path,
                     (long long)s->n_shapes);
}

/* Reads the shapes of images and videos. */
static int read_shapes(struct step *s, const struct model *m, struct error *e)
{
    const struct st_entry *t = given(s, m, "image_sizes"), *videos = given(s, m, "pixel_values_videos");
    const struct anyres *a = m->images->anyres;
    s->n_shapes = t ? t->dims[0] : 0;
    if (videos && videos->rank != 5)
        return error_set(e, PL_USAGE, "%s: pixel_values_videos has %d dimensions, expected videos, frames, channels, "
                         "height and width", s->in.path, videos->rank);
    s->n_videos = videos ? videos->dims[0] : 0;
    if (videos) s->size['F'] = videos->dims[0] * videos->dims[1];
    s->shapes = room(s, max_i64(s->n_shapes + s->n_videos, 1), sizeof *s->shapes);
    bool *beside = room(s, max_i64(s->n_shapes, 1), sizeof *beside);
    memset(beside, 0, (size_t)max_i64(s->n_shapes, 1) * sizeof *beside);
    TRY(read_counts(s, m, beside, e));
    for (int64_t i = 0; i < s->n_shapes; i++) {
        int64_t size[2];
        TRY(read_ints(s, t, i, 2, size, e));
        if (size[0] < 1 || size[1] < 1 || size[0] > SIZE_MOST || size[1] > SIZE_MOST)
            return error_set(e, PL_USAGE, "%s: image_sizes[%lld] is %lld, %lld; expected height and width", s->in.path,
                             (long long)i, (long long)size[0], (long long)size[1]);
        s->shapes[i] = beside[i] ? (struct anyres_shape){0}
                                 : anyres_shape_of(a, (uint32_t)size[1], (uint32_t)size[0]);
    }
    for (int64_t i = 0; i < s->n_videos; i++)
        s->shapes[s->n_shapes + i] = (struct anyres_shape){.frames = (int32_t)videos->dims[1]};
    return PL_OK;
}

/* Reads the shapes of images in tiles with a map, and checks that pixels and tokens are as many as
 * follow from them. */
static int check_shapes(struct step *s, const struct model *m, struct error *e)
{
    const struct anyres *a = m->images->anyres;
    int64_t tokens[2], expected[2] = {0}, images = 0;
    TRY(read_shapes(s, m, e));
    TRY(count_tokens(s, m, &tokens[0], &tokens[1], e));
    for (int64_t i = 0; i < s->n_shapes + s->n_videos; i++) {
        images += anyres_images(s->shapes[i]);
        expected[i >= s->n_shapes] += anyres_tokens(a, s->shapes[i]);
    }
    if (images != s->size['N'] || expected[0] != tokens[0])
        return error_set(e, PL_USAGE,
                         "%s: the %lld images of image_sizes have %lld tiles and %lld tokens; pixel_values has %lld, "
                         "and input_ids has %lld image tokens (id %d)", s->in.path, (long long)s->n_shapes,
                         (long long)images, (long long)expected[0], (long long)s->size['N'], (long long)tokens[0],
                         a->token);
    if (expected[1] == tokens[1]) return PL_OK;
    return error_set(e, PL_USAGE, "%s: the %lld videos of pixel_values_videos have %lld tokens; input_ids has %lld "
                     "video tokens (id %d)", s->in.path, (long long)s->n_videos, (long long)expected[1],
                     (long long)tokens[1], a->video);
}

/* Gives the image tokens of a row the ids that tell the shapes of its images and videos. */
static int put_shapes(struct step *s, const struct anyres *a, int64_t r, int32_t *ids, struct error *e)
{
    for (int64_t i = 0, n = 1; i < s->T; i += n, n = 1) {
        const int32_t id = ids[i];
        if (!anyres_is_token(a, id)) continue;
        const bool video = a->pooled && id == a->video;
        const int64_t nth = s->next_shape[video]++;
        const bool known = nth < (video ? s->n_videos : s->n_shapes);
        const struct anyres_shape shape =
            known ? s->shapes[(video ? s->n_shapes : 0) + nth] : (struct anyres_shape){0};
        n = anyres_tokens(a, shape);
        for (int64_t k = 0; k < n; k++)
            if (!known || i + k >= s->T || ids[i + k] != id)
                return error_set(e, PL_USAGE,
                                 "%s: input_ids, sample %lld: %s %lld has %lld tokens, one after the other",
                                 s->in.path, (long long)r, video ? "video" : "image", (long long)nth, (long long)n);
        anyres_put(a, shape, ids + i);
    }
    return PL_OK;
}

/* --- volumes ---------------------------------------------------------------------------------- */

/* Adds the tokens of an image, or of a volume, with the features from `row` on. */
static void add_run(struct step *s, int64_t tokens, int64_t row, bool volume)
{
    const int64_t before = s->n_runs ? s->runs[s->n_runs - 1].end : 0;
    s->runs[s->n_runs++] = (struct image_run){before + tokens, row, volume};
}

/* Finds the features of image tokens by volume_order. */
static int order_runs(struct step *s, const struct model *m, const struct st_entry *t, struct error *e)
{
    const struct modality_list *l = &m->images->modalities;
    const int64_t n = t->dims[0];
    int64_t *order = room(s, n, sizeof *order), images = 0, seen[MODALITIES] = {0}, first[MODALITIES] = {0};
    TRY(read_ints(s, t, 0, n, order, e));
    s->runs = room(s, n, sizeof *s->runs);
    for (int k = 1; k < l->n; k++) first[k] = first[k - 1] + s->size['a' + k - 1] * l->at[k - 1].tokens;
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = order[i];
        if (k >= l->n)
            return error_set(e, PL_USAGE, "%s: volume_order[%lld] is %lld, expected a modality below %d, or -1 for an "
                             "image", s->in.path, (long long)i, (long long)k, l->n);
        if (k < 0) add_run(s, m->images->features, images++ * m->images->features, false);
        else add_run(s, l->at[k].tokens, first[k] + seen[k]++ * l->at[k].tokens, true);
    }
    bool all = images == s->size['N'] && !s->size['F'];
    for (int k = 0; k < l->n; k++) all &= seen[k] == s->size['a' + k];
    if (all) return PL_OK;
    return error_set(e, PL_USAGE, "%s: volume_order has %lld entries, expected one for each image of pixel_values and "
                     "each volume, and no frames", s->in.path, (long long)n);
}

/* Finds the features of image tokens of a batch with volumes: in volume_order, or those of images
 * first and then those of one modality after the other. *tokens is how many there are. */
static int find_runs(struct step *s, const struct model *m, int64_t images, int64_t *tokens, struct error *e)
{
    const struct modality_list *l = &m->images->modalities;
    const struct st_entry *t = given(s, m, "volume_order");
    int64_t row = 0;
    *tokens = images;
    for (int k = 0; k < l->n; k++) *tokens += s->size['a' + k] * l->at[k].tokens;
    if (t) return order_runs(s, m, t, e);
    s->runs = room(s, l->n + 1, sizeof *s->runs);
    add_run(s, images, 0, false);
    for (int k = 0; k < l->n; k++) {
        const int64_t n = s->size['a' + k] * l->at[k].tokens;
        add_run(s, n, row, true);
        row += n;
    }
    return PL_OK;
}

/* Checks that there are as many image tokens as features, before anything is planned. pixel_values
 * [N,channels,side,side] are the images of the whole batch, in the order in which their tokens come
 * in input_ids. Models for which transformers pads them, [B,M,...], are given so too: an image of
 * zeros is padding, and a pixel_attention_mask may say so again. frame_values [F,...] are the
 * frames of videos, pooled to data.tokens_per_frame features each; their tokens come after those of
 * all images. */
static int check_images(struct step *s, const struct model *m, struct error *e)
{
    if (!m->images) return PL_OK;
    if (m->images->grids) return check_grids(s, m, e);
    const struct st_entry *t = given(s, m, "pixel_values"), *mask = given(s, m, "pixel_attention_mask");
    int64_t tokens = 0, each = 0, none;
    if (t && t->rank == 5) TRY(list_images(s, t, e));
    if (mask) TRY(check_pixel_mask(s, mask, e));
    if (m->images->anyres) return check_shapes(s, m, e);
    TRY(count_tokens(s, m, &tokens, &none, e));
    const int64_t images = s->size['N'], frames = s->size['F'];
    if (frames) TRY(images_frame_tokens(m, s->frames.tokens_per_frame, &each, e));
    int64_t expected = images * m->images->features + frames * each;
    if (m->images->modalities.n) TRY(find_runs(s, m, expected, &expected, e));
    if (tokens == expected) return PL_OK;
    if (m->images->modalities.n)
        return error_set(e, PL_USAGE,
                         "%s: input_ids has %" PRId64 " image tokens (id %d); its images and volumes have %" PRId64,
                         s->in.path, tokens, m->images->token, expected);
    if (frames)
        return error_set(e, PL_USAGE,
                         "%s: input_ids has %" PRId64 " image tokens (id %d); expected %" PRId64 ": %" PRId64
                         " for each of %" PRId64 " images in pixel_values, then %" PRId64 " for each of %" PRId64
                         " frames in frame_values",
                         s->in.path, tokens, m->images->token, expected, m->images->features, images, each, frames);
    return error_set(e, PL_USAGE,
                     "%s: input_ids has %" PRId64 " image tokens (id %d), and pixel_values %" PRId64
                     " images of %" PRId64 " features: expected %" PRId64 " tokens",
                     s->in.path, tokens, m->images->token, images, m->images->features, expected);
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
    TRY(read_ints(s, t, at, b->n, x, e));
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
    TRY(read_reals(s, t, at, b->n, b->raw, out, e));
    for (int64_t i = 0; i < b->n; i++)
        if (!isfinite(out[i]))
            return error_set(e, PL_USAGE, "%s: %s, %s %lld: element %lld is %g", s->in.path, p->name,
                             p->dim[0] == OPEN('B') ? "sample" : "row", (long long)r, (long long)i, (double)out[i]);
    if (p->values != VALUES_COORDS) return PL_OK;
    const float side = (float)(m->masks->extent * (double)s->prompts.image / (double)m->image);
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
    b.raw = room(s, b.n, 8);
    b.ready = room(s, max_i64(b.n * 4, b.bytes), 1);
    return b;
}

/* Writes the patches of a modality's volumes. */
static int put_volumes(struct step *s, const struct port *p, const struct st_entry *t, const struct row *b,
                       struct error *e)
{
    const int k = (int)(-p->dim[0] - 'a');
    const struct modality *x = &s->run.planned.model.images->modalities.at[k];
    const uint64_t bytes = (uint64_t)modality_floats(x) * sizeof(float);
    float *patches = room(s, modality_floats(x), sizeof *patches);
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
    int32_t (*cells)[4] = room(s, P, sizeof *cells);
    float (*weights)[4] = room(s, P, sizeof *weights);
    allocator_cells(s->grids, s->n_grids, row, P, cells, weights);
    TRY(batch_write_all(&s->run, batch_inputs[ROW_PATCH_CELLS].name, cells, e));
    TRY(batch_write_all(&s->run, batch_inputs[ROW_CELL_WEIGHTS].name, weights, e));
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct st_entry *t = given(s, m, names[i]);
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
    const struct st_entry *pixels[] = {given(s, m, "pixel_values"), given(s, m, "pixel_values_videos")};
    struct planned_input x;
    *feature = NULL;
    if (!P) return PL_OK;
    struct grid_row row = {room(s, P, sizeof *row.order), room(s, P, sizeof *row.ranges),
                           room(s, P, sizeof *row.windows), room(s, P, sizeof *row.positions),
                           room(s, P, sizeof *row.corners), room(s, P, sizeof *row.weights),
                           room(s, P, sizeof *row.feature)};
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
    const struct row b = {room(s, K, 8), room(s, K, 4), K, 4 * K, K};
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
    int32_t *all = room(s, (int64_t)x.sample, 1);
    for (uint64_t i = 0; i < x.sample / sizeof *all; i++) all[i] = h;
    return all;
}

static struct step_sample make_sample(struct step *s, const struct model *m)
{
    struct step_sample x = {.raw = room(s, s->T, sizeof *x.raw),
                       .positions = room(s, s->T, sizeof *x.positions),
                       .ranges = room(s, s->T, sizeof *x.ranges),
                       .valid = {make_valid(s, ROW_MASK_VALID, "gt_masks", -1),
                                 make_valid(s, ROW_IMAGE_VALID, "images", 1)}};
    for (int k = 0; k < m->n_ports; k++)
        if (has_samples(&m->ports[k])) x.row[k] = make_row(s, &m->ports[k]);
    if (m->ground) x.is_mask = room(s, s->size['M'], sizeof *x.is_mask);
    if (m->images && m->images->grids) {
        x.tokens = make_tokens(s);
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
        TRY(put_shapes(s, m->images->anyres, r, (int32_t *)(void *)x->row[ids_port(m)].ready, e));
    if (s->packed) {
        TRY(convert_row(s, m, r, x->raw, x->positions, x->ranges, e));
        out->is[ROW_POSITIONS].at = x->positions;
        out->is[ROW_RANGES].at = x->ranges;
    }
    if (x->walk.model) {
        TRY(find_features(s, m, r, &x->walk, x->raw, &x->tokens, e));
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
    TRY(find_entries(s, m, e));
    TRY(find_prompts(s, m, e));
    TRY(find_loss(s, m, e));
    s->B = max_i64(1, s->size['B']);
    s->T = s->size['T'] = max_i64(1, s->size['T']);
    TRY(check_rows(s, m, e));
    return check_images(s, m, e);
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
    if (s->prompts.targets) return (double)(s->B * s->prompts.masks);
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
    if (s->has_loss && !s->prs.targets && !(s->counted > 0))
        return error_set(e, PL_USAGE, "%s: every label is ignored, so there is no loss", s->in.path);
    return PL_OK;
}
