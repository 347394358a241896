/*
 * foreign_memory.c: facts of other programs about memory, adapters and data.
 */
#include <math.h>
#include <string.h>

#include "config/foreign_rows.h"
#include "io/yaml.h"

static struct value *word(struct foreign_work *w, const char *text) { return value_string(&w->f->memory, text); }

/* --- precision ------------------------------------------------------------------------------------------------ */

/* "f32", "bf16" or "f16" for a dtype of torch; NULL: auto and others. */
static const char *dtype_word(const struct foreign_entry *dtype)
{
    static const char *const words[][2] = {{"bfloat16", "bf16"}, {"bf16", "bf16"}, {"float16", "f16"}, {"fp16", "f16"}, {"half", "f16"}, {"float32", "f32"}, {"fp32", "f32"}, {"float", "f32"}};
    const char *text = foreign_text(dtype);
    if (!strncmp(text, "torch.", 6)) text += 6;
    for (size_t i = 0; i < COUNT(words); i++)
        if (!strcmp(text, words[i][0])) return words[i][1];
    return NULL;
}

struct precision {
    const char *word; /* NULL: nothing says anything */
    const struct foreign_entry *entry;
};

/* Another statement about the precision: it must agree with the one before. */
static void say(struct foreign_work *w, struct precision *p, const char *text, const struct foreign_entry *entry)
{
    if (p->word && strcmp(p->word, text)) foreign_refuse(w, entry, "it asks for %s, but %s (%s:%u) asks for %s; give one of them", text, p->entry->key, p->entry->file, p->entry->line, p->word);
    *p = (struct precision){text, entry};
}

/* What the switches say; a default counts only where no other switch is on. */
static struct precision switches(struct foreign_work *w)
{
    struct precision p = {0};
    const struct foreign_entry *bf16 = foreign_pick(w, HOW_BF16), *fp16 = foreign_pick(w, HOW_FP16), *pure = foreign_given(w, HOW_PURE_BF16), *mixed = foreign_given(w, HOW_MIXED),
                               *amp = foreign_pick(w, HOW_AMP), *dtype = foreign_given(w, HOW_DTYPE);
    if (foreign_true(w, pure)) say(w, &p, "bf16-pure", pure);
    else if (bf16 && bf16->given && foreign_true(w, bf16)) say(w, &p, "bf16", bf16);
    if (fp16 && fp16->given && foreign_true(w, fp16)) say(w, &p, "f16", fp16);
    if (mixed && !foreign_off(mixed->value)) {
        const char *text = dtype_word(mixed);
        if (!text || !strcmp(text, "f32")) foreign_refuse(w, mixed, "found %.100s, and Plimsoll has only fp16 and bf16", foreign_text(mixed));
        else say(w, &p, text, mixed);
    }
    if (foreign_true(w, amp) && !p.word) say(w, &p, dtype_word(dtype) && !strcmp(dtype_word(dtype), "bf16") ? "bf16" : "f16", amp);
    if (!p.word && bf16 && !bf16->given && foreign_true(w, bf16)) say(w, &p, "bf16", bf16);
    return p;
}

/* Without a switch the weights are computed with as they are loaded: in f32 unless the dtype says otherwise. */
static struct precision unswitched(struct foreign_work *w)
{
    const struct foreign_entry *dtype = foreign_given(w, HOW_DTYPE), *amp = foreign_given(w, HOW_AMP), *fp16 = foreign_pick(w, HOW_FP16), *bf16 = foreign_pick(w, HOW_BF16);
    const char *text = dtype_word(dtype);
    if (text) return (struct precision){!strcmp(text, "bf16") ? "bf16-pure" : text, dtype};
    if (amp) return (struct precision){"f32", amp};
    if (bf16 || fp16) return (struct precision){"f32", bf16 ? bf16 : fp16};
    return (struct precision){0};
}

static void memory_precision(struct foreign_work *w)
{
    const struct foreign_entry *power = foreign_given(w, HOW_SCALE_POWER), *window = foreign_given(w, HOW_SCALE_WINDOW);
    struct precision p = switches(w);
    if (foreign_failed(w)) return;
    if (p.word) foreign_leave(w, foreign_given(w, HOW_DTYPE), "memory.precision follows the switches of mixed precision; master weights are f32");
    else p = unswitched(w);
    if (!p.word) return;
    foreign_put(w, "memory.precision", word(w, p.word), p.entry, NULL);
    if (strcmp(p.word, "f16")) {
        foreign_leave(w, power, "only f16 has a loss scale");
        foreign_leave(w, window, "only f16 has a loss scale");
        return;
    }
    if (power) foreign_put(w, "train.loss_scale", value_number(&w->f->memory, ldexp(1, (int)foreign_whole(w, power, 0, 40))), power, NULL);
    if (window) foreign_put(w, "train.scale_window", value_copy(&w->f->memory, window->value), window, NULL);
}

/* --- recompute and offload ----------------------------------------------------------------------------------------- */

static void memory_recompute(struct foreign_work *w)
{
    const struct foreign_entry *on = foreign_pick(w, HOW_RECOMPUTE), *off = foreign_pick(w, HOW_NO_RECOMPUTE), *asked = off && (off->given || !on || !on->given) ? off : on;
    if (!asked) return;
    if (foreign_true(w, asked) == (asked == on)) foreign_put(w, "memory.recompute", word(w, "all"), asked, NULL);
    else if (asked->given) foreign_put(w, "memory.recompute", word(w, "auto"), asked, NULL);
}

/* Whether an offload entry is on: a device's name, or true. */
static bool offloads(struct foreign_work *w, const struct foreign_entry *entry)
{
    if (!entry || foreign_off(entry->value)) return false;
    if (!strcmp(foreign_text(entry), "cpu") || !strcmp(foreign_text(entry), "true")) return true;
    foreign_refuse(w, entry, "found %.100s; memory.offload moves to host memory: cpu (on a CPU to a file)", *foreign_text(entry) ? foreign_text(entry) : "no device");
    return false;
}

static void memory_offload(struct foreign_work *w)
{
    const struct foreign_entry *stage = foreign_given(w, HOW_STAGE), *optimizer = foreign_given(w, HOW_OFFLOAD_OPTIMIZER), *weights = foreign_given(w, HOW_OFFLOAD_PARAM),
                               *activations = foreign_given(w, HOW_OFFLOAD_ACTIVATIONS);
    const int64_t z = foreign_whole(w, stage, 0, 3);
    const bool o = offloads(w, optimizer), p = offloads(w, weights), a = foreign_true(w, activations);
    static const char *const levels[] = {"none", "optimizer", "gradients", "weights"};
    if (stage && z >= 0 && z <= 3 && !foreign_failed(w)) foreign_put(w, "parallel.shard", word(w, levels[z]), stage, NULL);
    if (p && z < 3) foreign_refuse(w, weights, "it needs ZeRO stage 3, and the stage is %lld; set the stage to 3, or remove it", (long long)z);
    if (o && z < 1) foreign_refuse(w, optimizer, "it needs ZeRO stage 1, 2 or 3, and the stage is 0; set the stage, or remove it");
    if (!o && !p && !a) return;
    struct text parts = {0};
    text_printf(&parts, "%s%s%s", o ? "optimizer+masters+" : "", p ? "weights+" : "", a ? "activations+" : "");
    parts.at[--parts.n] = 0;
    foreign_put(w, "memory.offload", word(w, parts.at), o ? optimizer : p ? weights : activations, NULL);
    text_free(&parts);
}

/* --- adapters and 4-bit weights --------------------------------------------------------------------------------------- */

/* The entry that asks for LoRA; NULL: none does. */
static const struct foreign_entry *asks_for_lora(struct foreign_work *w)
{
    const struct foreign_entry *type = foreign_pick(w, HOW_FINETUNING), *use = foreign_given(w, HOW_USE_LORA);
    const char *text = foreign_text(type);
    if (type && strcmp(text, "lora") && strcmp(text, "full")) foreign_refuse(w, type, "found %.100s, and Plimsoll has only full and lora; model.freeze and train.groups freeze parts", text);
    if (type) return !strcmp(text, "lora") ? type : NULL;
    if (!use && (foreign_has(w, PROGRAM_prs) || foreign_has(w, PROGRAM_ddp))) return foreign_pick(w, HOW_LORA_RANK);
    if (!use && !foreign_has(w, PROGRAM_trl)) return foreign_given(w, HOW_LORA_RANK); /* a script that always has an adapter */
    return foreign_true(w, use) ? use : NULL;
}

/* all, all-linear, "q_proj,v_proj", a list, or the program's choice. */
static struct value *lora_target(struct foreign_work *w, const struct foreign_entry *target, const struct foreign_entry *asked)
{
    const char *text = foreign_text(target);
    struct value *list = value_new(&w->f->memory, VALUE_LIST);
    if (target && target->value->kind == VALUE_LIST && target->value->count) return value_copy(&w->f->memory, target->value);
    if (!*text && asked->row->how == HOW_USE_LORA && !foreign_has(w, PROGRAM_trl)) return word(w, "all-linear");
    if (!*text) text = "q_proj,v_proj";
    if (!strcmp(text, "all") || !strcmp(text, "all-linear")) return word(w, "all-linear");
    for (; *text; text += strspn(text, ", ")) {
        const size_t n = strcspn(text, ", ");
        if (n) value_append(&w->f->memory, list, word(w, bump_format(&w->f->memory, "%.*s", (int)n, text)));
        text += n;
    }
    return list;
}

static void put_as(struct foreign_work *w, const char *ours, enum foreign_how how)
{
    const struct foreign_entry *entry = foreign_pick(w, how);
    if (entry && !(entry->given && foreign_off(entry->value) && entry->value->kind == VALUE_NULL)) foreign_put(w, ours, value_copy(&w->f->memory, entry->value), entry, NULL);
}

/* A script's own default, for a key that the file does not have. */
static void put_script_default(struct foreign_work *w, const char *ours, enum foreign_how how, const char *text, const struct foreign_entry *asked)
{
    if (!foreign_pick(w, how)) foreign_put(w, ours, yaml_scalar(&w->f->memory, text), asked, bump_format(&w->f->memory, "default of scripts with %s", asked->key));
}

/* lora_enable of LLaVA, use_lora of Qwen; and FastChat's script, which always has an adapter. */
static void put_script_defaults(struct foreign_work *w, const struct foreign_entry *asked)
{
    if (asked->row->program != PROGRAM_hf) return;
    put_script_default(w, "adapter.r", HOW_LORA_RANK, "64", asked);
    put_script_default(w, "adapter.lora_alpha", HOW_LORA_ALPHA, "16", asked);
    put_script_default(w, "adapter.lora_dropout", HOW_LORA_DROPOUT, "0.05", asked);
}

static void put_lora(struct foreign_work *w, const struct foreign_entry *asked)
{
    const struct foreign_entry *target = foreign_pick(w, HOW_LORA_TARGET), *rank = foreign_pick(w, HOW_LORA_RANK), *alpha = foreign_pick(w, HOW_LORA_ALPHA);
    foreign_put(w, "adapter.target_modules", lora_target(w, target, asked), target ? target : asked, NULL);
    put_as(w, "adapter.r", HOW_LORA_RANK);
    if (!alpha && rank && foreign_has(w, PROGRAM_lf)) foreign_put(w, "adapter.lora_alpha", value_number(&w->f->memory, 2 * foreign_number(w, rank)), rank, "default of lora_alpha: twice lora_rank");
    put_as(w, "adapter.lora_alpha", HOW_LORA_ALPHA);
    put_as(w, "adapter.lora_dropout", HOW_LORA_DROPOUT);
    put_as(w, "adapter.bias", HOW_LORA_BIAS);
    put_as(w, "adapter.modules_to_save", HOW_LORA_SAVE);
    put_as(w, "adapter.use_rslora", HOW_LORA_RSLORA);
    put_as(w, "adapter.use_dora", HOW_LORA_DORA);
    put_script_defaults(w, asked);
}

static void memory_adapter(struct foreign_work *w)
{
    const struct foreign_entry *path = foreign_given(w, HOW_LORA_PATH), *asked = asks_for_lora(w);
    const bool stored = asked && path && !foreign_off(path->value);
    if (stored) foreign_put(w, "adapter.path", value_copy(&w->f->memory, path->value), path, NULL);
    else if (asked) put_lora(w, asked);
    for (enum foreign_how how = HOW_LORA_RANK; how <= HOW_LORA_PATH && (!asked || stored); how++)
        if (!stored || how != HOW_LORA_PATH)
            foreign_leave(w, foreign_given(w, how), stored ? "the adapter in adapter.path has its own settings" : "the file does not ask for an adapter");
}

static void memory_quantize(struct foreign_work *w)
{
    const struct foreign_entry *bits = foreign_given(w, HOW_BITS), *four = foreign_given(w, HOW_BITS4), *asked = foreign_true(w, four) ? four : bits;
    const double n = asked == four ? 4 : foreign_number(w, bits);
    if (!asked || foreign_off(asked->value) || n == 16 || n == 32) return;
    if (n != 4) foreign_refuse(w, asked, "found %g bits, and frozen weights have 4 (memory.quantize: nf4) or are not quantized", n);
    if (!asks_for_lora(w)) foreign_refuse(w, asked, "4-bit weights are frozen, so they need a LoRA adapter, and the file does not ask for one");
    foreign_put(w, "memory.quantize", word(w, "nf4"), asked, NULL);
}

/* --- data ------------------------------------------------------------------------------------------------------------------ */

static void put_files(struct foreign_work *w, const char *ours, struct value *paths, const struct foreign_entry *entry)
{
    foreign_put(w, "data.format", word(w, "conversations"), entry, NULL);
    foreign_put(w, ours, paths, entry, NULL);
}

static void put_datasets(struct foreign_work *w, const char *ours, enum foreign_how how)
{
    const struct foreign_entry *names = foreign_given(w, how), *folder = foreign_pick(w, HOW_DATASET_DIR);
    struct value *paths;
    struct error e;
    if (!names || foreign_off(names->value) || foreign_failed(w)) return;
    if (foreign_datasets(w->f, names, *foreign_text(folder) ? foreign_text(folder) : "data", &paths, &e)) foreign_refuse(w, names, "%s", e.text);
    else put_files(w, ours, paths, names);
}

static void put_train_on(struct foreign_work *w)
{
    const struct foreign_entry *assistant = foreign_pick(w, HOW_TRAIN_ON_ASSISTANT), *prompt = foreign_given(w, HOW_TRAIN_ON_PROMPT), *last = foreign_given(w, HOW_TRAIN_ON_LAST);
    if (foreign_true(w, prompt) && foreign_true(w, last)) foreign_refuse(w, last, "it and train_on_prompt are both true; give one of them");
    if (foreign_true(w, prompt)) foreign_put(w, "data.train_on", word(w, "all"), prompt, NULL);
    else if (foreign_true(w, last)) foreign_put(w, "data.train_on", word(w, "last"), last, NULL);
    else if (assistant) foreign_put(w, "data.train_on", word(w, foreign_true(w, assistant) ? "assistant" : "all"), assistant, NULL);
}

/* packing or neat_packing; without them LLaMA-Factory packs for stage pt alone. */
static void put_packing(struct foreign_work *w)
{
    bool any = false, pretraining = false;
    const struct foreign_entry *last = NULL;
    for (uint32_t i = 0; i < w->f->entries.n; i++) {
        const struct foreign_entry *entry = &w->f->entries.at[i];
        if (!strcmp(entry->row->key, "stage") && !strcmp(foreign_text(entry), "pt")) pretraining = true;
        if (entry->row->how != HOW_PACKING || (last && last->given && !entry->given)) continue;
        last = entry;
        any = any || foreign_true(w, entry);
    }
    if (last && !last->given) any = pretraining;
    if (last) foreign_put(w, "data.packing", value_bool(&w->f->memory, any), last, NULL);
}

/* LLaMA-Factory and TRL cut what is longer than a row. */
static void put_too_long(struct foreign_work *w)
{
    const struct foreign_entry *any = w->f->entries.n ? &w->f->entries.at[0] : NULL;
    if (any && (foreign_has(w, PROGRAM_lf) || foreign_has(w, PROGRAM_trl)))
        foreign_put(w, "data.too_long", word(w, "cut"), &(struct foreign_entry){.file = any->file, .key = "length"}, "longer conversations are cut");
}

/* val_size of LLaMA-Factory, which refuses it beside eval_dataset; validation_split_percentage of transformers' scripts, which
 * use it without a file of validation data. */
static void put_holdout(struct foreign_work *w)
{
    const struct foreign_entry *size = foreign_given(w, HOW_VAL_SIZE), *percent = foreign_given(w, HOW_VAL_PERCENT), *part = size ? size : percent;
    const struct foreign_entry *dataset = foreign_given(w, HOW_EVAL_DATASET), *file = foreign_given(w, HOW_VALIDATION_FILE), *given = dataset ? dataset : file;
    if (!part || foreign_off(part->value)) return;
    const double x = foreign_number(w, part), fraction = size ? x : x / 100;
    const bool both = given && !foreign_off(given->value);
    if (fraction < 0 || (!size && fraction >= 1)) foreign_refuse(w, part, "found %g, expected %s", x, size ? "a fraction or a number of samples" : "a percentage below 100");
    else if (both && size && fraction) foreign_refuse(w, part, "it and %s are both given; give one of them", given->key);
    else if (both) foreign_leave(w, part, bump_format(&w->f->memory, "%s is given", given->key));
    else if (fraction >= 1) foreign_leave(w, part, "it is a number of samples, and data.holdout is a fraction of them");
    else foreign_put(w, "data.holdout", value_number(&w->f->memory, fraction), part, NULL);
}

/* The tables of a folder, whose rows have a split. */
static void put_tables(struct foreign_work *w, const char *pattern, const struct foreign_entry *entry)
{
    struct value *files = value_new(&w->f->memory, VALUE_LIST);
    value_append(&w->f->memory, files, word(w, pattern));
    foreign_put(w, "data.train", files, entry, NULL);
    foreign_put(w, "data.format", word(w, "csv"), entry, NULL);
    foreign_put(w, "data.train_split", word(w, "train"), entry, NULL);
    foreign_put(w, "data.validation_split", word(w, "test"), entry, NULL);
}

/* train_prs_med.py has one folder for tables and images, train_ddp.py of PRS-Med has two. */
static void put_questions(struct foreign_work *w)
{
    const struct foreign_entry *root = foreign_given(w, HOW_DATA_ROOT), *tables = foreign_given(w, HOW_ANNOTATIONS);
    if (root) put_tables(w, bump_format(&w->f->memory, "%s/annotations/*.csv", foreign_text(root)), root);
    if (tables) put_tables(w, bump_format(&w->f->memory, "%s/*.csv", foreign_text(tables)), tables);
}

/* The frames of a row are planned, so that there is always a limit. */
static void put_frames(struct foreign_work *w)
{
    const struct foreign_entry *frames = foreign_given(w, HOW_MAX_FRAMES);
    if (!frames) return;
    if (foreign_off(frames->value)) foreign_leave(w, frames, "all frames of any video cannot be planned; set data.max_frames");
    else foreign_put(w, "data.max_frames", value_copy(&w->f->memory, frames->value), frames, NULL);
}

static void memory_data(struct foreign_work *w)
{
    const struct foreign_entry *train = foreign_given(w, HOW_TRAIN_FILE), *validation = foreign_given(w, HOW_VALIDATION_FILE), *unshuffled = foreign_given(w, HOW_NO_SHUFFLE);
    if (train) put_files(w, "data.train", value_copy(&w->f->memory, train->value), train);
    if (validation) put_files(w, "data.validation", value_copy(&w->f->memory, validation->value), validation);
    put_questions(w);
    put_frames(w);
    put_datasets(w, "data.train", HOW_DATASET);
    put_datasets(w, "data.validation", HOW_EVAL_DATASET);
    put_holdout(w);
    if (foreign_true(w, unshuffled)) foreign_put(w, "data.shuffle", value_bool(&w->f->memory, false), unshuffled, NULL);
    put_train_on(w);
    put_packing(w);
    put_too_long(w);
}

void foreign_memory(struct foreign_work *w)
{
    memory_precision(w);
    memory_recompute(w);
    memory_offload(w);
    memory_adapter(w);
    memory_quantize(w);
    memory_data(w);
}
