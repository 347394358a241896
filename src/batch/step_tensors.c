/*
 * step_tensors.c: the tensors of IN.safetensors: which there are, whether their shapes agree with
 * the model's ports and with each other, and their rows.
 */

#include "batch/step_inputs.h"

const struct st_entry *step_tensor(const struct step *s, const struct model *m, const char *name)
{
    const struct port *p = model_port(m, name);
    return p ? s->given[p - m->ports] : NULL;
}

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
        if (none || (p->dim[i] < 0 && t->dims[i] > STEP_SIZE_MOST))
            return error_set(e, PL_USAGE, "%s: %s has %lld in dimension %d, it must be between 1 and %d", path, t->name,
                             (long long)t->dims[i], i, STEP_SIZE_MOST);
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

int step_find_tensors(struct step *s, const struct model *m, struct error *e)
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

/* --- rows ----------------------------------------------------------------------------------- */

int step_ints(const struct step *s, const struct st_entry *t, int64_t r, int64_t n, int64_t *out, struct error *e)
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

int step_reals(const struct step *s, const struct st_entry *t, int64_t r, int64_t n, void *raw, float *out,
               struct error *e)
{
    const uint64_t bytes = (uint64_t)n * dtype_size(t->dtype);
    TRY(st_read(&s->in, t, (uint64_t)r * bytes, bytes, raw, e));
    dtype_convert(out, DT_F32, raw, t->dtype, n);
    return PL_OK;
}

void *step_room(struct step *s, int64_t n, size_t size) { return bump_alloc(&s->memory, (size_t)n * size); }

int step_unpadded(const struct step *s, int64_t r, const int64_t *mask, int64_t *begin, int64_t *end, struct error *e)
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
