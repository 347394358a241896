/*
 * step.c: `plimsoll step`: one forward and backward on given inputs, outputs,
 * loss and gradients written out: the door through which anyone can check us
 * against another framework.
 *
 * Names are those of the Hugging Face forward: input_ids and labels in; logits,
 * loss and grad.<parameter> out. Without labels only logits are written.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "train/run.h"

struct step {
    struct st_file in;
    const struct st_entry *ids, *labels;
    int64_t B, T;
    struct run run;
    int32_t *row;
    int64_t *wide;
    int64_t counted;     /* labels that count */
};

/* --- inputs ------------------------------------------------------------------------ */

static int check_entry(const struct st_entry *t, const char *path, struct error *e)
{
    if (t->rank != 2 || t->dims[0] < 1 || t->dims[1] < 2)
        return error_set(e, PL_USAGE, "%s: %s must be [B,T] with T at least 2, it has rank %d", path, t->name, t->rank);
    if (t->dtype != DT_I32 && t->dtype != DT_I64)
        return error_set(e, PL_USAGE, "%s: %s is %s, it must be I32 or I64", path, t->name, t->dtype_name);
    return PL_OK;
}

static int open_batch(struct step *s, const char *path, struct error *e)
{
    int rc = st_open(path, &s->in, e);
    if (rc) return rc;
    for (uint32_t i = 0; i < s->in.n_entries && !rc; i++) {
        const struct st_entry *t = &s->in.entries[i];
        if (!strcmp(t->name, "input_ids")) s->ids = t;
        else if (!strcmp(t->name, "labels")) s->labels = t;
        else if (strcmp(t->name, "attention_mask"))
            rc = error_set(e, PL_USAGE, "%s: unknown input %s; this model takes input_ids, labels", path, t->name);
    }
    if (!rc && !s->ids) rc = error_set(e, PL_USAGE, "%s: no input_ids", path);
    if (!rc) rc = check_entry(s->ids, path, e);
    if (!rc && s->labels) rc = check_entry(s->labels, path, e);
    if (rc) return rc;
    s->B = s->ids->dims[0];
    s->T = s->ids->dims[1];
    if (s->labels && (s->labels->dims[0] != s->B || s->labels->dims[1] != s->T))
        return error_set(e, PL_USAGE, "%s: labels and input_ids differ in shape", path);
    if (s->B > 1 << 20 || s->T > 1 << 20) return error_set(e, PL_USAGE, "%s: input_ids of %lld x %lld is too large", path, (long long)s->B, (long long)s->T);
    return PL_OK;
}

/* Row `r` of an integer tensor as i32, each value within [0, below) or -100 where allowed. */
static int read_row(struct step *s, const struct st_entry *t, int64_t r, int64_t below, bool ignore, struct error *e)
{
    uint64_t size = dtype_size(t->dtype), bytes = (uint64_t)s->T * size;
    int rc = st_read(&s->in, t, (uint64_t)r * bytes, bytes, s->wide, e);
    for (int64_t i = 0; i < s->T && !rc; i++) {
        int64_t x = t->dtype == DT_I64 ? s->wide[i] : ((const int32_t *)s->wide)[i];
        if ((x < 0 || x >= below) && !(ignore && x == -100))
            rc = error_set(e, PL_USAGE, "%s: %s[%lld,%lld] is %lld, the vocabulary has %lld entries", s->in.path, t->name,
                           (long long)r, (long long)i, (long long)x, (long long)below);
        s->row[i] = (int32_t)x;
    }
    return rc;
}

/* A mask of ones is no mask; anything else would change the result. */
static int check_mask(struct step *s, struct error *e)
{
    const struct st_entry *m = st_find(&s->in, "attention_mask");
    if (!m) return PL_OK;
    int rc = check_entry(m, s->in.path, e);
    if (!rc && (m->dims[0] != s->B || m->dims[1] != s->T)) rc = error_set(e, PL_USAGE, "%s: attention_mask and input_ids differ in shape", s->in.path);
    for (int64_t r = 0; r < s->B && !rc; r++) {
        rc = read_row(s, m, r, 2, false, e);
        for (int64_t i = 0; i < s->T && !rc; i++)
            if (s->row[i] != 1) rc = error_set(e, PL_USAGE, "%s: attention_mask[%lld,%lld] is 0; padded batches are not taken, ignore labels with -100 instead",
                                               s->in.path, (long long)r, (long long)i);
    }
    return rc;
}

static int put_inputs(struct step *s, struct error *e)
{
    int64_t vocabulary = s->run.model.vocabulary;
    int rc = check_mask(s, e);
    for (int64_t r = 0; r < s->B && !rc; r++) {
        rc = read_row(s, s->ids, r, vocabulary, false, e);
        if (!rc) rc = run_write_input(&s->run, "input_ids", r, s->row, (uint64_t)s->T * sizeof *s->row, e);
        if (!rc && s->labels) rc = read_row(s, s->labels, r, vocabulary, true, e);
        for (int64_t i = 0; i < s->T && !s->labels; i++) s->row[i] = -100;
        for (int64_t i = 1; i < s->T; i++) s->counted += s->row[i] != -100; /* the first label predicts nothing */
        if (!rc) rc = run_write_input(&s->run, "labels", r, s->row, (uint64_t)s->T * sizeof *s->row, e);
    }
    if (!rc && s->labels && !s->counted) rc = error_set(e, PL_USAGE, "%s: every label is ignored, so there is no loss", s->in.path);
    return rc;
}

/* --- outputs -------------------------------------------------------------------------- */

/* Appends a tensor as f32, in pieces through the staging buffer. tensor 0: zeros. */
static int write_tensor(struct step *s, struct st_writer *w, id tensor, uint64_t elements, struct error *e)
{
    struct run *r = &s->run;
    uint64_t piece = PLAN_STAGING / 16;
    char *raw = run_staging(r), *out = raw + PLAN_STAGING / 2;
    int rc = PL_OK;
    for (uint64_t at = 0; at < elements && !rc; at += piece) {
        uint64_t n = elements - at < piece ? elements - at : piece;
        if (tensor) {
            enum dtype t = tensor_at(&r->graph, tensor)->dtype;
            const char *from = (const char *)tape_address(&r->tape, tensor) + at * dtype_size(t);
            rc = r->device.ops->read(&r->device, raw, from, n * dtype_size(t), e);
            if (!rc) dtype_convert(out, DT_F32, raw, t, (int64_t)n);
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
};

static uint32_t list_outputs(struct step *s, struct out *list, struct bump *names)
{
    const struct graph *g = &s->run.graph;
    uint32_t n = 0;
    id logits = graph_find_output(g, PROGRAM_STEP, "logits"), loss = graph_find_output(g, PROGRAM_STEP, "loss");
    list[n++] = (struct out){{"logits", DT_F32, 3, tensor_at(g, logits)->dim}, logits};
    if (!s->labels) return n;
    list[n++] = (struct out){{"loss", DT_F32, 0, tensor_at(g, loss)->dim}, loss};
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        if (p->frozen) continue;
        const struct tensor *t = tensor_at(g, p->tensor);
        list[n++] = (struct out){{bump_format(names, "grad.%s", graph_name(g, t->name)), DT_F32, t->rank, t->dim}, p->grad};
    }
    return n;
}

/* Written beside `path` and renamed: a file that was there stays whole until then. */
static int write_outputs(struct step *s, const char *path, struct error *e)
{
    char beside[4200];
    snprintf(beside, sizeof beside, "%s.tmp.%d", path, (int)getpid());
    uint32_t most = s->run.graph.params.n + 2;
    struct out *list = mem_alloc(most * sizeof *list);
    struct st_spec *specs = mem_alloc(most * sizeof *specs);
    struct bump names = {0};
    uint32_t n = list_outputs(s, list, &names);
    for (uint32_t i = 0; i < n; i++) specs[i] = list[i].spec;
    struct st_writer w = {.fd = -1};
    int rc = st_write_begin(&w, beside, specs, n, (struct st_pair[]){{"format", "pt"}}, 1, e);
    for (uint32_t i = 0; i < n && !rc; i++) {
        uint64_t elements = 1;
        for (int d = 0; d < specs[i].rank; d++) elements *= (uint64_t)specs[i].dims[d];
        rc = write_tensor(s, &w, list[i].tensor, elements, e);
    }
    if (!rc) rc = st_write_end(&w, e);
    if (rc) st_write_abort(&w);
    else rc = file_rename(beside, path, e);
    bump_free(&names);
    mem_free(specs);
    mem_free(list);
    return rc;
}

/* --- the command -------------------------------------------------------------------------- */

static int run_once(struct step *s, const struct config *c, const struct options *o, struct error *e)
{
    struct run_options ro = {.train = false, .B = s->B, .T = s->T};
    int rc = run_plan(&s->run, c, &ro, e);
    if (!rc) rc = run_start(&s->run, NULL, true, e);
    if (!rc) rc = put_inputs(s, e);
    struct step_block b = {.inv_count = s->counted ? (float)(1.0 / (double)s->counted) : 0, .loss_scale = 1, .step = 1, .adam_t = 1};
    if (!rc) rc = run_put_step(&s->run, &b, e);
    if (!rc) rc = run_program(&s->run, PROGRAM_STEP, e);
    if (!rc) rc = write_outputs(s, o->output, e);
    run_close(&s->run);
    return rc;
}

static int step_files(const struct options *o, struct error *e)
{
    struct config c;
    struct step s = {.in = {.fd = -1}};
    int rc = options_config(o, &c, e);
    if (rc) return rc;
    c.model_path = (char *)o->model;
    c.model_preset = NULL;
    rc = open_batch(&s, o->batch, e);
    if (!rc) {
        s.row = mem_alloc((size_t)s.T * sizeof *s.row);
        s.wide = mem_alloc((size_t)s.T * sizeof *s.wide);
        rc = run_once(&s, &c, o, e);
    }
    st_close(&s.in);
    mem_free(s.row);
    mem_free(s.wide);
    config_free(&c);
    return rc;
}

static int step(int argc, char **argv, struct error *e)
{
    struct options o;
    int rc = options_parse(&o, OPT_MODEL | OPT_BATCH | OPT_OUTPUT | OPT_MEMORY, argc, argv, e);
    if (rc) return rc;
    if (o.help) print_help(&command_step);
    else if (!o.model || !o.batch || !o.output)
        rc = error_set(e, PL_USAGE, "needs --model DIR, --batch IN.safetensors and --out OUT.safetensors");
    else rc = step_files(&o, e);
    options_free(&o);
    return rc;
}

const struct command command_step = {
    "step", "step --model DIR --batch IN.safetensors --out OUT.safetensors [--set key=value]...",
    "Runs one forward and backward on given inputs and writes logits, loss and every gradient.", step};
