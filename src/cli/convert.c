/*
 * convert.c: `plimsoll convert IN -o OUT`: PyTorch checkpoints to model folders and back
 * (folder/new_folder.h), adapters merged into their base (adapter/adapter_folder.h), and weights in
 * 4 bits.
 */
#include "adapter/adapter_folder.h"
#include "cli/cli.h"
#include "folder/new_folder.h"
#include "io/table.h"

struct request {
    struct options o;
    const char *in, *quantize;
};

static int convert_checkpoint(const struct request *w, struct error *e)
{
    struct checkpoint_summary s;
    char size[32];
    TRY((dir_exists(w->in) ? checkpoint_from_folder : checkpoint_to_folder)(w->in, w->o.output, &s, e));
    if (w->o.json)
        PRINT_FACTS(2, FACT("in", w->in), FACT("out", w->o.output), FACT("model_type", s.type),
                    FACT("tensors", s.tensors), FACT("bytes", s.bytes), FACT("left_out", s.left_out));
    else
        printf("%s: %s, %u tensors, %s%s\n", w->o.output, s.type, s.tensors, size_print(s.bytes, size),
               s.left_out ? "; derived buffers were left out" : "");
    return PL_OK;
}

static void print_merged(const struct request *w, const struct merge *m)
{
    const uint32_t tensors = m->base.n_slots + (m->untied && !m->head);
    if (w->o.json)
        PRINT_FACTS(2, FACT("in", w->in), FACT("adapter", w->o.adapter), FACT("out", w->o.output),
                    FACT("tensors", tensors), FACT("merged", m->n_merged), FACT("whole", m->n_whole),
                    FACT("untied", m->untied));
    else
        printf("%s: %s merged into %s: %u linear modules with LoRA, %u whole tensors, %u tensors in all%s\n",
               w->o.output, w->o.adapter, w->in, m->n_merged, m->n_whole, tensors,
               m->untied ? "; the head no longer shares the embedding's weight" : "");
}

static int fill_merged(void *of, const char *dir, struct error *e) { return merge_write(of, dir, e); }

static int merge(const struct request *w, struct error *e)
{
    struct merge m;
    TRY(new_folder_check(w->o.output, e));
    TRY(merge_open(&m, w->in, w->o.adapter, e));
    int rc = new_folder_write(w->o.output, fill_merged, &m, e);
    if (!rc) print_merged(w, &m);
    merge_close(&m);
    return rc;
}

static void print_quantized(const struct request *w, const struct quantize_folder *q)
{
    const char *adapter = w->o.adapter;
    char before[32], after[32];
    if (w->o.json)
        PRINT_FACTS(2, FACT("in", w->in), FACT_IF(adapter, "adapter", adapter), FACT("out", w->o.output),
                    FACT("model_type", q->model.family->model_type), FACT("quantize", w->quantize),
                    FACT("tensors", q->n_tensors), FACT("quantized", q->n_quantized),
                    FACT("bytes_before", q->bytes_before), FACT("bytes", q->bytes));
    else
        printf("%s: %s%s%s with %u weights of linear layers in 4 bits (NF4), of %u tensors in all: %s, before %s\n",
               w->o.output, w->in, adapter ? " and " : "", adapter ? adapter : "", q->n_quantized, q->n_tensors,
               size_print(q->bytes, after), size_print(q->bytes_before, before));
}

static int fill_quantized(void *of, const char *dir, struct error *e) { return quantize_folder_write(of, dir, e); }

static int quantize(const struct request *w, const char *from, struct error *e)
{
    struct quantize_folder q;
    TRY(new_folder_check(w->o.output, e));
    TRY(quantize_folder_open(&q, from, e));
    int rc = new_folder_write(w->o.output, fill_quantized, &q, e);
    if (!rc) print_quantized(w, &q);
    quantize_folder_close(&q);
    return rc;
}

/* Merges the adapter into a temporary folder, in the dtypes of the base, and quantizes that. */
static int merge_and_quantize(const struct request *w, struct error *e)
{
    struct quantize_folder base;
    struct merge m;
    struct temporary t;
    TRY(new_folder_check(w->o.output, e));
    TRY(quantize_folder_open(&base, w->in, e)); /* refuses what the merged model would be refused for */
    quantize_folder_close(&base);
    TRY(merge_open(&m, w->in, w->o.adapter, e));
    int rc = new_folder_fill(&t, w->o.output, fill_merged, &m, e);
    merge_close(&m);
    if (rc) return rc;
    rc = quantize(w, t.path, e);
    temporary_drop(&t);
    return rc;
}

static int convert(struct options *o, struct error *e)
{
    struct request *w = (struct request *)o;
    if (o->paths.n > 1)
        return error_set(e, PL_USAGE, "two inputs are given: %s and %s", o->paths.at[0], o->paths.at[1]);
    if (!o->paths.n || !o->output || !*o->output)
        return error_set(e, PL_USAGE,
                         "expected a checkpoint and -o FOLDER, a folder and -o FILE, or a folder, --adapter FOLDER or "
                         "--quantize nf4, and -o FOLDER: plimsoll %s",
                         command_convert.usage);
    if (w->quantize && strcmp(w->quantize, "nf4"))
        return error_set(e, PL_USAGE, "--quantize %s: expected nf4, the one form in few bits that Plimsoll writes and "
                         "reads", w->quantize);
    w->in = o->paths.at[0];
    if (!file_exists(w->in)) return model_missing(w->in, e);
    if (adapter_folder_is(w->in))
        return error_set(
            e, PL_USAGE,
            "%s holds an adapter, which is merged into its base model: plimsoll convert BASE --adapter %s -o OUT",
            w->in, w->in);
    if (w->quantize && !dir_exists(w->in))
        return error_set(e, PL_USAGE,
                         "--quantize takes a model folder, and %s is a file: plimsoll convert %s -o FOLDER first",
                         w->in, w->in);
    if (w->quantize) return o->adapter ? merge_and_quantize(w, e) : quantize(w, w->in, e);
    return (o->adapter ? merge : convert_checkpoint)(w, e);
}

static const struct option OPTIONS[] = {OPTION(struct request, "--quantize", TEXT, quantize),
                                        OPTION(struct request, "--adapter", TEXT, o.adapter)};

const struct command command_convert = {
    "convert",
    "convert IN.pth -o DIR | DIR -o OUT.pth | BASE [--adapter DIR] [--quantize nf4] -o OUT [--json]",
    "Converts a PyTorch checkpoint of SAM, SAM-HQ, SAM 2, MedSAM, MobileSAM or TinySAM to a model folder\n"
    "(config.json, model.safetensors, preprocessor_config.json), or a model folder to a checkpoint with the\n"
    "published parameter names. The names and shapes of the tensors determine the model; values and dtypes do not\n"
    "change. A checkpoint is read as data: no code in it is executed. With --adapter, merges a LoRA\n"
    "adapter that PEFT or Plimsoll wrote (adapter_config.json, adapter_model.safetensors) into the model\n"
    "folder BASE and writes the merged model folder, in the dtypes of BASE. With --quantize nf4, writes\n"
    "BASE with the weights of its linear layers in 4 bits, all but the output head, as transformers does\n"
    "with bitsandbytes (load_in_4bit, nf4, bnb_4bit_use_double_quant): transformers and Plimsoll read the\n"
    "folder, and a run on it has the bits of a run on BASE with memory.quantize nf4. With --adapter too,\n"
    "the adapter is merged first.",
    .shared = OPT_PATHS | OPT_OUTPUT | OPT_JSON, COMMAND_OPTIONS(OPTIONS),
    COMMAND_STATE(struct request, .o = {0}), .run = convert};
