/*
 * step_outputs.c: the output file of `plimsoll step`: the model's outputs, the loss and a gradient
 * for every parameter that is not frozen, zeros for a parameter that has none. All tensors are
 * F32, for any precision of the step.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/step.h"
#include "io/file.h"
#include "io/temporary.h"

/* Appends a tensor as f32, divided by `scale`, in chunks through the staging buffer. Tensor 0:
 * zeros. */
static int write_tensor(struct step *s, struct st_writer *w, id tensor, uint64_t elements, float scale, struct error *e)
{
    const float factor = (float)(1.0 / (double)scale); /* as torch.amp.GradScaler */
    struct run *r = &s->run;
    uint64_t chunk = PLAN_STAGING / 16;
    char *raw = run_staging(r);
    float *out = (float *)(void *)(raw + PLAN_STAGING / 2);
    int rc = PL_OK;
    for (uint64_t at = 0; at < elements && !rc; at += chunk) {
        uint64_t n = elements - at < chunk ? elements - at : chunk;
        if (tensor) {
            enum dtype t = tensor_at(&r->planned.graph, tensor)->dtype;
            const char *from = (const char *)tape_address(&r->tape, tensor) + at * dtype_size(t);
            rc = r->device.ops->read(&r->device, raw, from, n * dtype_size(t), e);
            if (!rc) dtype_convert(out, DT_F32, raw, t, (int64_t)n);
            for (uint64_t i = 0; !rc && scale != 1 && i < n; i++) out[i] *= factor;
        } else {
            memset(out, 0, n * 4);
        }
        if (!rc) rc = st_write_bytes(w, out, n * 4, e);
    }
    return rc;
}

struct out {
    struct st_spec spec;
    id tensor;
    float scale; /* by which its values are multiplied */
};

static struct out output(const struct graph *g, const char *name)
{
    id x = graph_find_output(g, PROGRAM_STEP, name);
    return (struct out){{name, DT_F32, tensor_at(g, x)->rank, tensor_at(g, x)->dim}, x, 1};
}

/* The published name, or for families with named_as_found the name in the model folder; with an
 * adapter the name in its file, as in PEFT's state dict. */
static const char *gradient_name(const struct step *s, const struct param *p, struct bump *names)
{
    char found[1024];
    const char *published = weight_name(&s->run.planned.graph, p);
    if (s->run.weights.adapter)
        return bump_format(names, "grad.%s",
                           weights_name_in_adapter(s->run.weights.adapter, &s->run.planned.graph, p, found));
    bool follow = s->run.planned.model.family->named_as_found && weights_spelled_otherwise(&s->run.weights);
    return bump_format(names, "grad.%s",
                       follow ? weights_name_in_folder(&s->run.weights, published, found) : published);
}

static uint32_t list_outputs(struct step *s, struct out *list, struct bump *names)
{
    const struct graph *g = &s->run.planned.graph;
    const struct model *m = &s->run.planned.model;
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_outputs; i++) list[n++] = output(g, m->outputs[i]);
    if (!s->has_loss) return n;
    list[n++] = output(g, "loss");
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        if (p->frozen) continue;
        const struct tensor *t = tensor_at(g, p->tensor);
        list[n++] = (struct out){{gradient_name(s, p, names), DT_F32, t->rank, t->dim}, p->grad, s->loss_scale};
    }
    return n;
}

/* Writes to a temporary file beside `path` and renames it: an existing file stays intact until
 * then. */
int step_write(struct step *s, const char *path, struct error *e)
{
    struct temporary t;
    if (temporary_file(&t, path, e)) return e->code;
    uint32_t most = s->run.planned.graph.params.n + s->run.planned.model.n_outputs + 1;
    struct out *list = mem_alloc(most * sizeof *list);
    struct st_spec *specs = mem_alloc(most * sizeof *specs);
    struct bump names = {0};
    uint32_t n = list_outputs(s, list, &names);
    for (uint32_t i = 0; i < n; i++) specs[i] = list[i].spec;
    struct st_writer w = {.fd = -1};
    int rc = st_write_begin(&w, t.path, specs, n, (struct st_pair[]){{"format", "pt"}}, 1, e);
    for (uint32_t i = 0; i < n && !rc; i++) {
        uint64_t elements = 1;
        for (int d = 0; d < specs[i].rank; d++) elements *= (uint64_t)specs[i].dims[d];
        rc = write_tensor(s, &w, list[i].tensor, elements, list[i].scale, e);
    }
    if (!rc) rc = st_write_end(&w, e);
    if (rc) st_write_abort(&w);
    else rc = temporary_keep(&t, path, true, e);
    temporary_drop(&t);
    bump_free(&names);
    mem_free(specs);
    mem_free(list);
    return rc;
}
