/*
 * page.c: what the page calls (see page.h). A run is given as JSON, with the keys of a run file.
 * Results are written to the standard output, as the commands of the program write them; a message
 * of an error to the standard error. Each function returns the exit code of the command.
 */
#include "page/page.h"

#include "batch/feed.h"
#include "compare/plan_request.h"
#include "cost/calibration.h"
#include "cost/profile.h"
#include "io/json.h"
#include "io/yaml.h"
#include "models/catalogue.h"

#define EXPORT(name) __attribute__((export_name(#name)))

/* --- text in and out -------------------------------------------------------------------------- */

/* Returns memory for n bytes that the page fills. */
EXPORT(page_take) void *page_take(uint32_t n) { return mem_alloc((size_t)n + 1); }
EXPORT(page_give) void page_give(void *p) { mem_free(p); }

EXPORT(page_file) void page_file(const char *path, const char *text) { page_set_file(path, text); }

static int finish(int rc, const struct error *e)
{
    if (rc && e->text[0]) fprintf(stderr, "%s", e->text);
    fflush(stdout);
    return rc;
}

static int print(struct text *out, int rc, const struct error *e)
{
    if (!rc) fputs(out->at, stdout);
    text_free(out);
    return finish(rc, e);
}

/* --- the run ---------------------------------------------------------------------------------- */

/* Refuses what a page cannot plan: it has no kernels of a CPU. */
static int check_device(const struct config *c, struct error *e)
{
    if (c->device_kind == ON_CUDA && c->device_profile) return PL_OK;
    return error_set(e, PL_USAGE, "a page plans for GPUs: set device.kind to cuda and device.profile to a GPU's name");
}

static int read_run(const void *run, struct config *c, struct error *e)
{
    config_init(c);
    int rc = config_read_text(c, run, "run.yaml", e);
    if (!rc) rc = check_device(c, e);
    if (rc) config_free(c);
    return rc;
}

/* Prints what `plimsoll plan RUN.yaml --json` prints, or with `frontier` the table of budgets. */
EXPORT(page_plan) int page_plan(const char *run, int frontier)
{
    struct error e = {0};
    struct plan_request r = {.source = {.read = read_run, .of = run}, .json = true, .frontier = frontier};
    return finish(plan_request_run(&r, &e), &e);
}

static void put_int(struct bump *b, struct value *run, const char *key, int64_t n)
{
    struct value *data = (struct value *)value_get(run, "data");
    if (!data) value_put(b, run, "data", data = value_new(b, VALUE_MAP));
    value_put(b, data, key, value_int(b, n));
}

/* Prints the run with room for images in its sequence, as `--images N --image-size WxH` plans it:
 * {"run": JSON, "yaml": the run file}. */
EXPORT(page_resolve) int page_resolve(const char *json, const char *images, const char *size)
{
    struct error e = {0};
    struct bump b = {0};
    struct text out = {0}, yaml = {0};
    struct json_writer w = {.out = &out};
    struct config c;
    struct value *run;
    struct plan_request r = {.source = {.read = read_run, .of = json}, .images = *images ? images : NULL,
                             .image_size = *size ? size : NULL};
    int rc = json_parse(json, strlen(json), &b, &run, &e);
    if (!rc) rc = plan_request_read(&r, false, &e);
    if (!rc) rc = plan_source_read(&r.source, &c, &e);
    if (!rc) {
        if (r.source.media.images) {
            put_int(&b, run, "sequence", c.data_sequence);
            if (c.data_max_images > 0) put_int(&b, run, "max_images", c.data_max_images);
            if (c.data_max_patches > 0) put_int(&b, run, "max_patches", c.data_max_patches);
            if (c.data_max_pixels > 0) put_int(&b, run, "max_pixels", c.data_max_pixels);
        }
        config_free(&c);
        yaml_write(run, &yaml);
        json_begin_map(&w, NULL);
        json_put_value(&w, "run", run);
        json_put_string(&w, "yaml", yaml.at);
        json_end(&w);
    }
    text_free(&yaml);
    bump_free(&b);
    return print(&out, rc, &e);
}

/* --- one run within many budgets, for a curve to drag along ----------------------------------- */

static struct {
    struct config config;
    struct planned run;
    bool open;
} held;

EXPORT(page_close) void page_close(void)
{
    if (held.open) planned_close(&held.run), config_free(&held.config);
    held.open = false;
}

static int print_held(int rc, struct error *e)
{
    struct text out = {0};
    if (rc && rc != PL_NOFIT) return print(&out, rc, e);
    const struct plan_note note = planned_note(&held.run, !rc);
    plan_write(&held.run.plan, &held.run.graph, &note, &out);
    fputs(out.at, stdout);
    text_free(&out);
    return finish(rc, e);
}

/* Plans a run and keeps it. Prints what page_plan prints. */
EXPORT(page_open) int page_open(const char *run)
{
    struct error e = {0};
    const struct plan_source s = {.read = read_run, .of = run};
    const struct run_options o = {.train = true, .describe = feed_describe, .ablation = true, .several = true};
    page_close();
    int rc = plan_source_read(&s, &held.config, &e);
    if (rc) return finish(rc, &e);
    rc = config_check(&held.config, CONFIG_NEEDS_MODEL, &e);
    if (!rc) rc = planned_open(&held.run, &held.config, &o, &e);
    held.open = true;
    rc = print_held(rc, &e);
    if (rc && rc != PL_NOFIT) page_close();
    return rc;
}

/* Plans the run of page_open within another budget in bytes; 0: none. */
EXPORT(page_within) int page_within(double budget)
{
    struct error e = {0};
    if (!held.open) return error_set(&e, PL_USAGE, "no run is open"), finish(PL_USAGE, &e);
    return print_held(planned_within(&held.run, (uint64_t)budget, &e), &e);
}

/* Prints the memory map of the plan that was printed last (map.c). */
EXPORT(page_map) int page_map(void)
{
    struct error e = {0};
    struct text out = {0};
    if (!held.open) return error_set(&e, PL_USAGE, "no run is open"), finish(PL_USAGE, &e);
    page_put_map(&held.run.plan, &held.run.graph, &out);
    return print(&out, PL_OK, &e);
}

/* --- lists ------------------------------------------------------------------------------------ */

static void put_model(struct json_writer *w, const char *name, const struct model *m)
{
    json_begin_map(w, NULL);
    json_put_string(w, "name", name);
    json_put_string(w, "family", m->family->model_type);
    json_put_int(w, "context", m->longest);
    json_put_bool(w, "masks", model_is(m, "masks"));
    json_put_bool(w, "images", model_is(m, "media"));
    json_put_bool(w, "sized", model_is(m, "sized"));
    json_put_bool(w, "trains", model_is(m, "masks") || m->vocabulary > 0);
}

/* Prints the published models. */
EXPORT(page_models) int page_models(void)
{
    struct error e = {0};
    struct text out = {0};
    struct json_writer w = {.out = &out};
    int rc = PL_OK;
    json_begin_list(&w, NULL);
    for (const struct published *p = catalogue; p->name && !rc; p++) {
        struct model m;
        rc = model_preset(&m, p->name, &e);
        if (rc) break;
        put_model(&w, p->name, &m);
        json_put_string(&w, "endings", p->endings);
        json_put_string(&w, "parameters", p->parameters);
        json_put_uint(&w, "least", catalogue_smallest(p));
        json_end(&w);
        model_close(&m);
    }
    json_end(&w);
    return print(&out, rc, &e);
}

/* Prints the same of a model whose config.json was given. */
EXPORT(page_model) int page_model(const char *folder)
{
    struct error e = {0};
    struct text out = {0};
    struct json_writer w = {.out = &out};
    struct model m;
    int rc = model_open(&m, folder, &e);
    if (!rc) {
        put_model(&w, folder, &m);
        json_end(&w);
        model_close(&m);
    }
    return print(&out, rc, &e);
}

/* Prints the GPUs of gpus.def and the measured one: name, memory, and what a run may take of it. */
EXPORT(page_gpus) int page_gpus(void)
{
    static const char *const names[] = {
#define GPU(name, ...) name,
#include "cost/gpus.def"
#undef GPU
        "h200"};
    struct error e = {0};
    struct text out = {0};
    struct json_writer w = {.out = &out};
    struct calibration *c = mem_alloc(sizeof *c);
    int rc = PL_OK;
    json_begin_list(&w, NULL);
    for (size_t i = 0; i < COUNT(names) && !rc; i++) {
        struct profile p;
        rc = profile_gpu(&p, c, names[i], &e);
        json_begin_map(&w, NULL);
        json_put_string(&w, "name", names[i]);
        json_put_uint(&w, "memory", p.memory_bytes);
        json_put_uint(&w, "budget", planned_gpu_budget(p.memory_bytes));
        json_put_bool(&w, "measured", p.measured != NULL);
        json_end(&w);
    }
    json_end(&w);
    mem_free(c);
    return print(&out, rc, &e);
}

/* Prints the GPU whose figures are used for a number of GiB, and its memory and budget. */
EXPORT(page_gpu_of) int page_gpu_of(double gib)
{
    struct error e = {0};
    struct text out = {0};
    struct json_writer w = {.out = &out};
    uint64_t memory;
    const char *name = profile_of_class(gib, &memory);
    json_begin_map(&w, NULL);
    json_put_string(&w, "name", name);
    json_put_uint(&w, "memory", memory);
    json_put_uint(&w, "budget", planned_gpu_budget(memory));
    json_end(&w);
    return print(&out, PL_OK, &e);
}
