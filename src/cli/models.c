/*
 * models.c: `plimsoll models`: the published models whose names a run file or a command takes
 * without a folder.
 */
#include <inttypes.h>

#include "cli/cli.h"
#include "io/table.h"
#include "models/catalogue.h"
#include "models/model.h"

static const struct report_column COLUMNS[] = {
    {"name", "model"}, {"endings"}, {"family", "family"}, {"parameters", "weights", "count"},
    {"published_parameters"}, {"source"}, {"context", "context", "count"}, {"image_size", "image", "count"},
    {"qlora_smallest_bytes", "QLoRA from", "bytes"}};

static int add_model(const struct published *p, struct report_table *t, struct error *e)
{
    struct model m;
    uint64_t weights;
    TRY(model_preset(&m, p->name, e));
    int rc = model_count(&m, &weights, e);
    const uint64_t least = catalogue_smallest(p);
    TABLE_ADD(t, CELL(p->name), CELL(p->endings), CELL(m.family->model_type), CELL(weights), CELL(p->parameters),
              CELL(p->source), CELL_IF(m.longest, m.longest), CELL_IF(m.image, m.image), CELL_IF(least, least));
    model_close(&m);
    return rc;
}

static int models(struct options *o, struct error *e)
{
    struct report_table t = REPORT_TABLE(COLUMNS);
    struct text out = {0};
    int rc = PL_OK;
    for (const struct published *p = catalogue; p->name && !rc; p++) rc = add_model(p, &t, e);
    if (!rc && o->json) PRINT_FACTS(2, FACT_TABLE("models", &t));
    else if (!rc) {
        table_print(&t, 0, 0, &out);
        text_printf(&out,
                    "\nUse a name with --model or as model.preset, in any case of letters, also with the ending "
                    "-Instruct where the publisher has such a model of the same shapes. QLoRA from: the smallest "
                    "memory budget of a GPU for one sample of up to 2048 tokens a step, with adapters of rank 16 on "
                    "all linear layers of weights in NF4, and the rest in host memory.\n");
        fputs(out.at, stdout);
    }
    text_free(&out);
    table_free(&t);
    return rc;
}

const struct command command_models = {
    "models",
    "models [--json]",
    "Lists published models by their names on the Hugging Face Hub: family, number of weights, context, and\n"
    "the smallest budget for QLoRA.\n"
    "`fits`, `plan`, `init` and model.preset take such a name without a download: the shapes are known, the\n"
    "weights are random. The number of weights is computed, and equals the published one.\n"
    "  --json           also the published number and its source",
    .shared = OPT_JSON, .run = models};
