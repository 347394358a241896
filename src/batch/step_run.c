/*
 * step_run.c: runs one forward and backward on given inputs and writes outputs, loss and gradients
 * (step_inputs.h).
 */
#include <math.h>

#include "batch/batch_plan.h"
#include "batch/step_inputs.h"
#include "io/file.h"
#include "io/temporary.h"
#include "models/model.h"

/* --- OUT.safetensors ------------------------------------------------------------------------ */

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
    const struct param *param; /* of which it is the gradient; NULL: an output */
};

static struct out output(const struct graph *g, const char *name)
{
    id x = graph_find_output(g, PROGRAM_STEP, name);
    return (struct out){{name, DT_F32, tensor_at(g, x)->rank, tensor_at(g, x)->dim}, x, 1};
}

/* Returns the name of a gradient: the published name, or for families with named_as_found the name
 * in the model folder; with an adapter the name in its file, as in PEFT's state dict. */
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
    for (uint32_t i = 0; i < m->n_outputs; i++) /* some are only of images, or of clips */
        if (graph_find_output(g, PROGRAM_STEP, m->outputs[i])) list[n++] = output(g, m->outputs[i]);
    if (!s->has_loss) return n;
    list[n++] = output(g, "loss");
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        if (p->frozen) continue;
        const struct tensor *t = tensor_at(g, p->tensor);
        list[n++] = (struct out){{gradient_name(s, p, names), DT_F32, t->rank, t->dim}, p->grad, s->loss_scale, p};
    }
    return n;
}

/* Writes the model's outputs, the loss and a gradient for every parameter that is not frozen, zeros
 * for a parameter that has none. All tensors are F32, for any precision of the step. An existing
 * file stays intact until the new one is complete. */
static int write_outputs(struct step *s, const char *path, struct error *e)
{
    struct temporary t;
    if (temporary_file(&t, path, e)) return e->code;
    uint32_t most = s->run.planned.graph.params.n + s->run.planned.model.n_outputs + 1;
    struct out *list = mem_alloc(most * sizeof *list);
    struct bump names = {0};
    VEC(struct st_spec) specs = {0};
    uint32_t n = list_outputs(s, list, &names);
    for (uint32_t i = 0; i < n; i++) {
        if (!list[i].param) vec_push(&specs, list[i].spec);
        for (int64_t k = 0; list[i].param && k < weight_tensors(&s->run.planned.graph, list[i].param); k++)
            vec_push(&specs, weight_spec(&s->run.planned.graph, list[i].param, list[i].spec.name, k, DT_F32, &names));
    }
    struct st_writer w = {.fd = -1};
    int rc = st_write_begin(&w, t.path, specs.at, specs.n, (struct st_pair[]){{"format", "pt"}}, 1, e);
    for (uint32_t i = 0; i < n && !rc; i++) {
        uint64_t elements = 1;
        for (int d = 0; d < list[i].spec.rank; d++) elements *= (uint64_t)list[i].spec.dims[d];
        rc = write_tensor(s, &w, list[i].tensor, elements, list[i].scale, e);
    }
    rc = st_write_finish(&w, rc, e);
    if (!rc) rc = temporary_keep(&t, path, true, e);
    temporary_drop(&t);
    bump_free(&names);
    vec_free(&specs);
    mem_free(list);
    return rc;
}

/* --- the step ------------------------------------------------------------------------------- */

/* Reports whether the loss is finite and a gradient is not. */
static bool overflows(struct step *s, char *name, size_t room, struct error *e)
{
    float loss = NAN;
    name[0] = '\0';
    if (run_read(&s->run, graph_find_output(&s->run.planned.graph, PROGRAM_STEP, "loss"), &loss, e) || !isfinite(loss))
        return false;
    run_find_stored_nonfinite(&s->run, name, room);
    return name[0];
}

/* Runs the program. In f16 the loss is scaled, as in training: while a gradient is beyond the range
 * of f16, the program runs again with half of the scale, as training's next step would. */
static int run_scaled(struct step *s, const struct config *c, struct step_block *b, struct error *e)
{
    const bool scaled = s->has_loss && settings_scale_loss(&s->run.planned.plan.settings);
    b->loss_scale = scaled ? config_first_scale(c) : 1;
    int rc = PL_OK;
    for (bool again = true; again && !rc;) {
        rc = run_put_step(&s->run, b, e);
        if (!rc) rc = run_program(&s->run, PROGRAM_STEP, e);
        char name[256];
        again = !rc && scaled && b->loss_scale >= 2 && overflows(s, name, sizeof name, e);
        if (again) {
            log_note("%s is not finite at loss scale %g: the step runs again with %g", name, b->loss_scale,
                     b->loss_scale / 2);
            b->loss_scale /= 2;
        }
    }
    s->loss_scale = b->loss_scale;
    return rc;
}

static int run_once(struct step *s, const struct config *c, const char *out, struct error *e)
{
    struct run_options ro =
        {.train = false, .B = s->B, .T = s->T, .loss_output = s->loss_output, .packed = s->packed, .size = s->size};
    if (s->prompted || s->reasons || s->holds.media.tokens_per_frame) ro.holds = &s->holds;
    int rc = run_plan(&s->run, c, &ro, e);
    if (!rc) rc = run_start(&s->run, NULL, true, e);
    if (!rc) rc = step_put_inputs(s, e);
    struct step_block b = {.step = 1, .adam_t = 1};
    for (uint32_t k = 0; k < s->run.planned.graph.n_counts; k++) {
        const double count = step_count(s, graph_count_name(&s->run.planned.graph, k));
        b.inv_count[k] = count > 0 ? (float)(1.0 / count) : 0;
    }
    if (!rc) rc = run_scaled(s, c, &b, e);
    if (!rc) rc = write_outputs(s, out, e);
    run_close(&s->run);
    return rc;
}

/* Opens the file. The model determines the inputs that it must hold, and the file determines the
 * batch size, so the model is opened once for its ports, before the run is planned. */
static int open_batch(struct step *s, const struct config *c, const char *batch, struct error *e)
{
    struct model m;
    TRY(config_open_model(c, &m, e));
    int rc = step_open(s, &m, batch, e);
    const bool masks = s->prompted && s->holds.prompts.targets;
    if (!rc && masks && c->loss_preset == LOSS_STRUCTURE)
        rc = error_set(e, PL_USAGE, "loss.preset is structure, which is a loss of prs_med: use sam or equal-weights");
    if (!rc && masks && c->loss_preset == LOSS_SAM2 && !model_is(&m, "objects"))
        rc = error_set(e, PL_USAGE, "loss.preset is sam2, the loss of a model that predicts objects: use sam or "
                       "equal-weights");
    model_close(&m);
    return rc;
}

int step_run(const struct config *c, const char *batch, const char *out, struct error *e)
{
    struct step s = {.in = {.fd = -1}, .holds.media.tokens_per_frame = c->data_tokens_per_frame};
    int rc = open_batch(&s, c, batch, e);
    if (s.reasons) batch_prs(c, &s.holds);
    else s.holds.prompts.loss = batch_loss(c);
    if (!rc) rc = run_once(&s, c, out, e);
    step_close(&s);
    return rc;
}
