/*
 * step_inputs.c: the inputs of `plimsoll step`, checked against the model's ports.
 *
 * A port defines the shape and the values of an input. A size that ports leave open comes from the
 * first tensor that has it, and all other tensors must agree.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cli/step.h"
#include "models/images.h"

enum { SIZE_MOST = 1 << 20 }; /* largest size that the batch file may set */

/* --- tensors ------------------------------------------------------------------------- */

/* "[B,T]" or "[2,3,224,224]". */
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

static bool is_real(enum dtype t) { return t == DT_F32 || t == DT_BF16 || t == DT_F16; }

/* Checks one dimension: the port fixes it, or the first tensor that has it. */
static bool agrees(struct step *s, int64_t wanted, int64_t found)
{
    if (wanted > 0) return found == wanted;
    int64_t *open = &s->size[-wanted];
    if (!*open) *open = found;
    return *open == found;
}

/* The allowed dtypes of an input, for an error message; NULL: the tensor's dtype is allowed. */
static const char *wrong_dtype(const struct port *p, const struct st_entry *t)
{
    bool whole = t->dtype == DT_I32 || t->dtype == DT_I64, real = is_real(t->dtype);
    bool boolean = t->dtype == DT_U8 || !strcmp(t->dtype_name, "BOOL");
    switch (p->values) {
    case VALUES_REAL: return real ? NULL : "F32, BF16 or F16";
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

/* Images that are padded to one number for each sample, [B,M,...], instead of [N,...]. */
static struct port port_as_given(const struct model *m, const struct port *p, const struct st_entry *t)
{
    struct port as = *p;
    if (!m->images || !m->images->padded || p->dim[0] != OPEN_IMAGES || t->rank != p->rank + 1) return as;
    as.rank++;
    as.dim[0] = OPEN('B');
    as.dim[1] = OPEN('M');
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

static bool is_given(const struct step *s, const struct model *m, const char *name) { return step_given(s, m, name); }

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
    s->prs.targets = s->reasons && is_given(s, m, "gt_masks");
    s->prs.classes = s->reasons && is_given(s, m, "class_labels");
    if (!model_port(m, "input_points")) return PL_OK;
    p->masks = s->size['M'] ? s->size['M'] : 1;
    p->points = is_given(s, m, "input_points") ? s->size['P'] : 0;
    p->boxes = is_given(s, m, "input_boxes");
    p->mask_inputs = s->size['N'];
    p->targets = is_given(s, m, "gt_masks");
    int rc = parse_bool(s, "multimask_output", &several, e);
    p->single = !several;
    if (!rc && is_given(s, m, "input_labels") && !p->points)
        rc = error_set(e, PL_USAGE, "%s: input_labels without input_points", s->in.path);
    if (!rc && p->mask_inputs > 1 && p->mask_inputs != p->masks)
        rc = error_set(e, PL_USAGE,
                       "%s: input_masks has %lld masks for an image; expected 1, or one for each of its %lld prompts",
                       s->in.path, (long long)p->mask_inputs, (long long)p->masks);
    if (!rc && s->size['H'] && s->size['H'] != m->masks->side(m, p->image))
        rc = error_set(e, PL_USAGE,
                       "%s: masks of %lld x %lld pixels; for images of %lld pixels this model has masks of %lld x %lld",
                       s->in.path, (long long)s->size['H'], (long long)s->size['H'], (long long)p->image,
                       (long long)m->masks->side(m, p->image), (long long)m->masks->side(m, p->image));
    return rc;
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

/* A tower always has a loss; a language model has one when labels are given, grounding when targets
 * are. */
static int find_loss(struct step *s, const struct model *m, struct error *e)
{
    const char *wanted = st_metadata(&s->in, "loss_output");
    s->has_loss =
        m->loss_output || step_pairs(m) || is_given(s, m, "labels") || is_given(s, m, "target_masks") || s->prs.targets;
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

int step_open(struct step *s, const struct model *m, const char *path, struct error *e)
{
    int rc = st_open(path, &s->in, e);
    if (!rc) rc = find_entries(s, m, e);
    if (!rc) rc = find_prompts(s, m, e);
    if (!rc) rc = find_loss(s, m, e);
    s->B = max_i64(1, s->size['B']);
    s->T = s->size['T'] ? s->size['T'] : 1;
    s->size['T'] = s->T;
    if (!rc) rc = step_check_rows(s, m, e);
    return rc ? rc : step_check_images(s, m, e);
}
