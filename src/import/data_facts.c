/*
 * data_facts.c: facts of other programs about data: which files, what of a conversation is trained
 * on, and how it becomes text.
 *
 * Files of this machine become data.train. The name of a dataset on a hub is listed: a run without
 * data.train does not begin.
 */
#include "config/config_rows.h"
#include "import/import_rows.h"
#include "io/file.h"
#include "io/json.h"

static const char on_a_hub
    [] = "it is on a hub, and data.train names files of this machine: `datasets` writes JSON lines with to_json()";

/* --- files ----------------------------------------------------------------------------------- */

static void put_files(struct import_work *w, const char *ours, struct value *paths, const struct import_entry *entry)
{
    import_put_word(w, "data.format", "conversations", entry);
    import_put(w, ours, paths, entry, NULL);
}

static void put_file(struct import_work *w, const char *ours, enum import_how how)
{
    const struct import_entry *file = import_given(w, how);
    if (file) put_files(w, ours, value_copy(w->b, file->value), file);
}

/* --- LLaMA-Factory: names of datasets in dataset_info.json ------------------------------------ */

/* dataset_info.json says for each dataset the file and what its keys mean. Plimsoll tells the
 * format of a sample from its keys, so a description is followed if it gives the keys their usual
 * names. */

/* Tells whether a column or tag of dataset_info.json has a name that the reader of conversations
 * knows. */
static bool is_usual(const char *column, const char *name)
{
    static const char *const usual[][2] = {{"prompt", "instruction|prompt|text"},
                                           {"query", "input|query"},
                                           {"response", "output|completion"},
                                           {"history", "history"},
                                           {"system", "system"},
                                           {"tools", "tools"},
                                           {"images", "images|image"},
                                           {"videos", "videos|video"},
                                           {"messages", "messages|conversations"},
                                           {"role_tag", "from|role"},
                                           {"content_tag", "value|content"},
                                           {"user_tag", "human|user"},
                                           {"assistant_tag", "gpt|assistant"},
                                           {"observation_tag", "observation|tool"},
                                           {"function_tag", "function_call|function"},
                                           {"system_tag", "system"}};
    for (size_t i = 0; i < COUNT(usual); i++)
        if (!strcmp(usual[i][0], column)) return config_word_index(usual[i][1], name) >= 0;
    return false;
}

static int check_names(const struct value *map, const char *dataset, const char *info, struct error *e)
{
    for (uint32_t i = 0; map && i < map->count; i++) {
        const struct value *v = map->items[i];
        if (v->kind == VALUE_STRING && is_usual(v->key, v->text)) continue;
        return error_set(e, PL_USAGE,
                         "%s: dataset %s: %s is %.100s, and Plimsoll tells samples apart only by the usual keys: "
                         "rename it in the data, or give data.train files with messages",
                         info, dataset, v->key, v->text ? v->text : "not a name");
    }
    return PL_OK;
}

static int find_file(struct import *f, const struct value *all, const char *name, const char *info, const char **path,
                     struct error *e)
{
    const struct value *d = value_get(all, name), *file = value_get(d, "file_name"), *ranking = value_get(d, "ranking"),
                       *format = value_get(d, "formatting");
    char folder[4096];
    if (!d || d->kind != VALUE_MAP) return error_set(e, PL_USAGE, "%s has no dataset %.200s", info, name);
    if (!file || file->kind != VALUE_STRING)
        return error_set(e, PL_USAGE, "%s: dataset %.200s is on a hub and has no file_name: write it to a file with "
                         "`datasets` (to_json) and give that in data.train", info, name);
    if (ranking && !import_off(ranking))
        return error_set(e, PL_USAGE, "%s: dataset %.200s holds ranked answers, which Plimsoll does not train on", info,
                         name);
    if (format && !(format->kind == VALUE_STRING && config_word_index("alpaca|sharegpt|openai", format->text) >= 0))
        return error_set(e, PL_USAGE, "%s: dataset %.200s: formatting is not known, expected alpaca, sharegpt or "
                         "openai", info, name);
    if (check_names(value_get(d, "columns"), name, info, e) || check_names(value_get(d, "tags"), name, info, e))
        return e->code;
    if (path_dir(info, folder, sizeof folder, e)) return e->code;
    *path = strcmp(folder, ".") ? bump_format(&f->memory, "%s/%s", folder, file->text) : file->text;
    return file_exists(*path) ? PL_OK
                              : error_set(e, PL_USAGE, "%s: dataset %.200s: there is no file %s", info, name, *path);
}

/* Splits "a, b" into a list of names; a list stays one. */
static struct value *split_names(struct import *f, const struct value *v)
{
    struct value *names = value_new(&f->memory, VALUE_LIST);
    for (uint32_t i = 0; v->kind == VALUE_LIST && i < v->count; i++)
        if (v->items[i]->text) value_append(&f->memory, names, value_string(&f->memory, v->items[i]->text));
    for (const char *s = v->kind == VALUE_LIST ? "" : v->text ? v->text : ""; *s;) {
        s += strspn(s, ", \t");
        const size_t n = strcspn(s, ", \t");
        if (n) value_append(&f->memory, names, value_string(&f->memory, bump_format(&f->memory, "%.*s", (int)n, s)));
        s += n;
    }
    return names;
}

static int find_datasets(struct import *f, const struct import_entry *entry, const char *folder, struct value **paths,
                    struct error *e)
{
    struct value *all, *names = split_names(f, entry->value);
    const char *info = import_locate(f, bump_format(&f->memory, "%s/dataset_info.json", folder), entry->file);
    if (!info) info = import_locate(f, "dataset_info.json", entry->file); /* beside the file that names the dataset */
    *paths = value_new(&f->memory, VALUE_LIST);
    if (!info)
        return error_set(e, PL_USAGE, "there is no dataset_info.json in %s or beside %s; it says which files the "
                         "datasets are", folder, entry->file);
    if (json_read_file(info, 16 << 20, &f->memory, &all, e)) return e->code;
    for (uint32_t i = 0; i < names->count; i++) {
        const char *path = NULL;
        if (find_file(f, all, names->items[i]->text, info, &path, e)) return e->code;
        value_append(&f->memory, *paths, value_string(&f->memory, path));
    }
    return PL_OK;
}

static void put_datasets(struct import_work *w, const char *ours, enum import_how how)
{
    const struct import_entry *names = import_given(w, how), *folder = import_pick(w, HOW_DATASET_DIR);
    struct value *paths;
    struct error e;
    if (!names || import_off(names->value) || import_failed(w)) return;
    if (find_datasets(w->f, names, *import_text(folder) ? import_text(folder) : "data", &paths, &e))
        import_refuse(w, names, "%s", e.text);
    else put_files(w, ours, paths, names);
}

/* Returns a file of conversations, or the files of a folder; NULL: there is none. */
static const char *local_files(struct import_work *w, const char *name, const struct import_entry *entry)
{
    static const char *const endings[] = {"jsonl", "json", "parquet"};
    struct error ignored;
    const char *path = import_locate(w->f, name, entry->file);
    if (path && !dir_exists(path)) return path;
    const char *folder = dir_exists(name) ? name : path;
    struct names list = {0};
    const char *found = NULL;
    if (!folder || dir_list(folder, &list, &ignored)) return NULL;
    for (size_t i = 0; i < COUNT(endings) && !found; i++)
        for (uint32_t k = 0; k < list.n && !found; k++)
            if (text_ends_with(list.at[k], endings[i])) found = bump_format(w->b, "%s/*.%s", folder, endings[i]);
    names_free(&list);
    return found;
}

/* Puts dataset_name of TRL and of transformers' scripts. */
static void put_dataset_name(struct import_work *w)
{
    const struct import_entry *name = import_given(w, HOW_DATASET_NAME);
    const char *found = name ? local_files(w, import_text(name), name) : NULL;
    if (found) put_files(w, "data.train", import_word(w, found), name);
    else import_leave(w, name, on_a_hub);
}

/* Puts the files that were found for n datasets. */
static void put_found(struct import_work *w, const char *ours, struct value *paths, uint32_t n,
                      const struct import_entry *entry)
{
    if (paths->count && paths->count < n)
        import_refuse(w, entry, "some of its datasets are files of this machine, and some are not: write all to files, "
                      "and give those");
    if (paths->count) put_files(w, ours, paths, entry);
    else import_leave(w, entry, on_a_hub);
}

/* --- ms-swift -------------------------------------------------------------------------------- */

/* Appends the file of "FILE" or "FILE#SAMPLES"; *samples: all files say the same number, 0: all;
 * -1: they differ. */
static void add_swift_file(struct import_work *w, const char *text, const struct import_entry *entry,
                           struct value *paths, int64_t *samples)
{
    const char *hash = strrchr(text, '#');
    const char *name = hash ? bump_format(w->b, "%.*s", (int)(hash - text), text) : text;
    const char *found = local_files(w, name, entry);
    const int64_t n = hash ? strtol(hash + 1, NULL, 10) : 0;
    if (!found) return;
    *samples = paths->count && *samples != n ? -1 : n;
    value_append(w->b, paths, import_word(w, found));
}

static void put_swift_files(struct import_work *w, const char *ours, enum import_how how)
{
    const struct import_entry *entry = import_given(w, how);
    struct value *paths = value_new(w->b, VALUE_LIST);
    int64_t samples = 0;
    if (!entry) return;
    const struct value *v = entry->value;
    const uint32_t n = v->kind == VALUE_LIST ? v->count : 1;
    for (uint32_t i = 0; i < n; i++) {
        const char *text = v->kind == VALUE_LIST ? v->items[i]->text : v->text;
        if (text) add_swift_file(w, text, entry, paths, &samples);
    }
    put_found(w, ours, paths, n, entry);
    if (samples < 0)
        import_refuse(w, entry, "its files have different numbers of samples, and data.max_samples is one for each "
                      "file: cut the files, or give one number");
    if (samples > 0 && how == HOW_SWIFT_DATASET)
        import_put(w, "data.max_samples", value_int(w->b, samples), entry, NULL);
}

static void put_swift_length(struct import_work *w)
{
    const struct import_entry *length = import_given(w, HOW_SWIFT_LENGTH), *any = import_given(w, HOW_SWIFT_DATASET);
    if (length) import_put_value(w, "data.sequence", length);
    else if (import_has(w, BIT(swift)) && any)
        import_ask(w, any, "data.sequence",
                   "max_length is not given, and rows have a planned length: set data.sequence");
}

/* --- Axolotl --------------------------------------------------------------------------------- */

static const char *member(const struct value *map, const char *key)
{
    const struct value *v = map->kind == VALUE_MAP ? value_get(map, key) : NULL;
    return v && v->text ? v->text : "";
}

/* Asks for the template if a dataset has a prompt format of Axolotl's own, which changes what is
 * trained on; chat_template is the model's, and completion is text. */
static void check_axolotl_type(struct import_work *w, const struct value *dataset, const struct import_entry *entry)
{
    const char *type = member(dataset, "type"), *template = member(dataset, "chat_template");
    const bool own = *type && strcmp(type, "chat_template") && strcmp(type, "completion");
    if (own || (*template && strcmp(template, "tokenizer_default")))
        import_ask(w, entry, "data.template",
                   bump_format(w->b,
                               "%s %s writes prompts in a form of its own: set data.template to `model` for the chat "
                               "template of the model's folder, to a file, or to one that is built in",
                               own ? "type" : "chat_template", own ? type : template));
}

static void put_axolotl_files(struct import_work *w, const char *ours, enum import_how how)
{
    const struct import_entry *entry = import_given(w, how);
    struct value *paths = value_new(w->b, VALUE_LIST);
    if (!entry || import_off(entry->value)) return;
    const struct value *list = entry->value;
    for (uint32_t i = 0; list->kind == VALUE_LIST && i < list->count; i++) {
        const struct value *d = list->items[i], *files = d->kind == VALUE_MAP ? value_get(d, "data_files") : NULL;
        const char *named = files && files->kind == VALUE_LIST && files->count == 1 && files->items[0]->text
                                ? files->items[0]->text
                            : files && files->text ? files->text
                                                   : member(d, "path");
        const char *found = *named ? local_files(w, named, entry) : NULL;
        check_axolotl_type(w, d, entry);
        if (found) value_append(w->b, paths, import_word(w, found));
    }
    put_found(w, ours, paths, list->count, entry);
}

/* Asks for the tokenizer if special tokens are given. A padding token has no effect; the others are
 * those of the tokenizer, or change it. */
static void check_axolotl_tokens(struct import_work *w)
{
    const struct import_entry *tokens = import_given(w, HOW_AXOLOTL_TOKENS);
    bool others = false;
    if (!tokens || import_off(tokens->value)) return;
    for (uint32_t i = 0; tokens->value->kind == VALUE_MAP && i < tokens->value->count; i++)
        others |= strcmp(tokens->value->items[i]->key, "pad_token") && !import_off(tokens->value->items[i]);
    if (others)
        import_ask(w, tokens, "data.tokenizer", "the special tokens of the model's folder are used: set data.tokenizer "
                   "to a folder whose tokenizer has these, such as the model's");
    else import_leave(w, tokens, "padding has no loss and is not attended to");
}

static void check_axolotl_plugins(struct import_work *w)
{
    static const char *const known[] = {"liger", "cut_cross_entropy", "kernels"};
    const struct import_entry *plugins = import_given(w, HOW_AXOLOTL_PLUGINS);
    if (!plugins) return;
    for (uint32_t i = 0; plugins->value->kind == VALUE_LIST && i < plugins->value->count; i++) {
        const char *text = plugins->value->items[i]->text ? plugins->value->items[i]->text : "";
        bool same = false;
        for (size_t k = 0; k < COUNT(known); k++) same |= strstr(text, known[k]) != NULL;
        if (!same)
            import_refuse(w, plugins, "found %.100s: code of others is not run; kernels of Liger and Cut Cross Entropy "
                          "change no results, and have no effect", text);
    }
    import_leave(w, plugins, "the plan chooses the kernels");
}

/* --- what is trained on ---------------------------------------------------------------------- */

static void put_train_on(struct import_work *w)
{
    const struct import_entry *assistant = import_pick(w, HOW_TRAIN_ON_ASSISTANT),
                              *prompt = import_given(w, HOW_TRAIN_ON_PROMPT),
                              *last = import_given(w, HOW_TRAIN_ON_LAST);
    if (import_true(w, prompt) && import_true(w, last))
        import_refuse(w, last, "it and train_on_prompt are both true; give one of them");
    if (import_true(w, prompt)) import_put_word(w, "data.train_on", "all", prompt);
    else if (import_true(w, last)) import_put_word(w, "data.train_on", "last", last);
    else if (assistant) import_put_word(w, "data.train_on", import_true(w, assistant) ? "assistant" : "all", assistant);
}

/* Puts the name of a template that is built in here; others are asked for. LLaVA falls back to v1
 * for names that it does not know. */
static void put_template(struct import_work *w)
{
    const struct import_entry *template = import_given(w, HOW_TEMPLATE),
                              *axolotl = import_given(w, HOW_AXOLOTL_TEMPLATE);
    if (axolotl && !import_off(axolotl->value) && strcmp(import_text(axolotl), "tokenizer_default"))
        import_ask(w, axolotl, "data.template", strstr(axolotl->row->detail, "it says how"));
    if (!template || import_off(template->value)) return;
    const char *same = template->program == PROGRAM_llava
                           ? import_pair(w, "v1=vicuna_v1 vicuna_v1=vicuna_v1 mistral_instruct=mistral_instruct",
                                         import_text(template))
                           : NULL;
    if (same) import_put_word(w, "data.template", same, template);
    else import_ask(w, template, "data.template", strstr(template->row->detail, "it says how"));
}

/* Puts packing or neat_packing; without them LLaMA-Factory packs only for stage pt. */
static void put_packing(struct import_work *w)
{
    bool any = false, pretraining = false;
    const struct import_entry *last = NULL;
    for (uint32_t i = 0; i < w->f->entries.n; i++) {
        const struct import_entry *entry = &w->f->entries.at[i];
        if (!strcmp(entry->row->key, "stage") && !strcmp(import_text(entry), "pt")) pretraining = true;
        if (entry->row->how != HOW_PACKING || (last && last->given && !entry->given)) continue;
        last = entry;
        any = any || import_true(w, entry);
    }
    if (last && !last->given) any = pretraining;
    if (last) import_put(w, "data.packing", value_bool(w->b, any), last, NULL);
}

/* Puts data.too_long cut: LLaMA-Factory, TRL and LLaVA cut what is longer than a row. */
static void put_too_long(struct import_work *w)
{
    const struct import_entry *any = w->f->entries.n ? &w->f->entries.at[0] : NULL;
    if (any && import_has(w, BIT(lf) | BIT(trl) | BIT(llava)))
        import_put(w, "data.too_long", import_word(w, "cut"),
                   &(struct import_entry){.file = any->file, .key = "length"}, "longer conversations are cut");
}

/* --- which samples --------------------------------------------------------------------------- */

/* Puts val_size of LLaMA-Factory, which refuses it beside eval_dataset, or
 * validation_split_percentage of transformers' scripts, which use it without a file of validation
 * data. Returns the fraction. */
static double put_holdout(struct import_work *w)
{
    const struct import_entry *size = import_pick(w, HOW_VAL_SIZE), *percent = import_given(w, HOW_VAL_PERCENT),
                              *part = size ? size : percent;
    const struct import_entry *dataset = import_given(w, HOW_EVAL_DATASET),
                              *file = import_given(w, HOW_VALIDATION_FILE), *given = dataset ? dataset : file;
    if (!part || import_off(part->value)) return 0;
    const double x = import_number(w, part), fraction = size ? x : x / 100;
    const bool both = given && !import_off(given->value);
    if (fraction < 0 || (!size && fraction >= 1))
        import_refuse(w, part, "found %g, expected %s", x, size ? "a fraction" : "a percentage below 100");
    else if (both && size && fraction) import_refuse(w, part, "it and %s are both given; give one of them", given->key);
    else if (both) import_leave(w, part, bump_format(w->b, "%s is given", given->key));
    else if (fraction >= 1)
        import_refuse(w, part, "it is a number of samples, and data.holdout is a fraction of them: give the fraction, "
                      "such as 0.1");
    else import_put(w, "data.holdout", value_number(w->b, fraction), part, NULL);
    return both || fraction >= 1 ? 0 : fraction;
}

/* Puts max_samples. LLaMA-Factory takes the samples first, and then those to evaluate on out of
 * them. */
static void put_max_samples(struct import_work *w, double held)
{
    const struct import_entry *most = import_given(w, HOW_MAX_SAMPLES);
    if (!most || import_off(most->value)) return;
    const int64_t n = import_whole(w, most, 1, UINT32_MAX);
    import_put(w, "data.max_samples", value_int(w->b, max_i64(1, n - (int64_t)((double)n * held + 0.5))), most,
               held > 0 ? bump_format(w->b, "%s, less what is held out", most->key) : NULL);
}

static void put_order(struct import_work *w)
{
    const struct import_entry *unshuffled = import_given(w, HOW_NO_SHUFFLE), *sampling = import_given(w, HOW_SAMPLING);
    if (import_true(w, unshuffled)) import_put(w, "data.shuffle", value_bool(w->b, false), unshuffled, NULL);
    if (!strcmp(import_text(sampling), "sequential"))
        import_put(w, "data.shuffle", value_bool(w->b, false), sampling, NULL);
    else import_leave(w, sampling, "the order of the samples is random, by train.seed (data.shuffle)");
}

/* --- tables of questions, frames ------------------------------------------------------------- */

/* Puts the tables of a folder, whose rows have a split. */
static void put_tables(struct import_work *w, const char *pattern, const struct import_entry *entry)
{
    struct value *files = value_new(w->b, VALUE_LIST);
    value_append(w->b, files, import_word(w, pattern));
    import_put(w, "data.train", files, entry, NULL);
    import_put_word(w, "data.format", "csv", entry);
    import_put_word(w, "data.train_split", "train", entry);
    import_put_word(w, "data.validation_split", "test", entry);
}

/* Puts the tables of PRS-Med: train_prs_med.py has one folder for tables and images, train_ddp.py
 * has two. */
static void put_questions(struct import_work *w)
{
    const struct import_entry *root = import_given(w, HOW_DATA_ROOT), *tables = import_given(w, HOW_ANNOTATIONS);
    if (root) put_tables(w, bump_format(w->b, "%s/annotations/*.csv", import_text(root)), root);
    if (tables) put_tables(w, bump_format(w->b, "%s/*.csv", import_text(tables)), tables);
}

/* Puts the frames of a row, which are planned, so that there is always a limit. */
static void put_frames(struct import_work *w)
{
    const struct import_entry *frames = import_given(w, HOW_MAX_FRAMES);
    if (!frames) return;
    if (import_off(frames->value))
        import_leave(w, frames, "all frames of any video cannot be planned; set data.max_frames");
    else import_put_value(w, "data.max_frames", frames);
}

/* Refuses a file of LLaMA-Factory that chats, predicts or evaluates. */
static void check_trains(struct import_work *w)
{
    const struct import_entry *train = import_given(w, HOW_DO_TRAIN), *data = import_given(w, HOW_DATASET),
                              *other = import_any(w, HOW_DO_OTHER);
    bool stage = false;
    if (!import_has(w, BIT(lf)) || import_true(w, train)) return;
    for (uint32_t i = 0; i < w->f->entries.n; i++)
        stage |= w->f->entries.at[i].given && !strcmp(w->f->entries.at[i].row->key, "stage");
    if (other)
        import_refuse(w, other, "this file of LLaMA-Factory predicts or evaluates and does not train: `plimsoll eval` "
                      "and `plimsoll generate` do that; a training run has do_train: true");
    else if (train)
        import_refuse(w, train, "this file of LLaMA-Factory does not train; a training run has do_train: true");
    else if (!data && !stage)
        import_refuse(w, &w->f->entries.at[0], "this file of LLaMA-Factory has neither stage nor dataset: it is for "
                      "inference (llamafactory-cli chat or api), which is `plimsoll generate` here");
}

/* Puts data.format for programs that train on conversations and texts, whatever files they are
 * in. */
static void put_format(struct import_work *w)
{
    static const enum import_program programs[] = {PROGRAM_trl, PROGRAM_lf, PROGRAM_llava, PROGRAM_swift,
                                                   PROGRAM_axolotl};
    for (size_t i = 0; i < COUNT(programs); i++)
        for (uint32_t k = 0; k < w->f->files.n; k++)
            if (!strcmp(w->f->files.at[k].program, import_name(programs[i])))
                import_put(w, "data.format", import_word(w, "conversations"),
                           &(struct import_entry){.file = w->f->files.at[k].name, .key = "data"},
                           bump_format(w->b, "%s trains on conversations", import_name(programs[i])));
}

void import_data(struct import_work *w)
{
    check_trains(w);
    put_format(w);
    put_file(w, "data.train", HOW_TRAIN_FILE);
    put_file(w, "data.validation", HOW_VALIDATION_FILE);
    put_dataset_name(w);
    put_questions(w);
    put_frames(w);
    put_datasets(w, "data.train", HOW_DATASET);
    put_datasets(w, "data.validation", HOW_EVAL_DATASET);
    put_swift_files(w, "data.train", HOW_SWIFT_DATASET);
    put_swift_files(w, "data.validation", HOW_SWIFT_VALIDATION);
    put_swift_length(w);
    put_axolotl_files(w, "data.train", HOW_AXOLOTL_DATASETS);
    put_axolotl_files(w, "data.validation", HOW_AXOLOTL_TESTS);
    check_axolotl_tokens(w);
    check_axolotl_plugins(w);
    put_max_samples(w, put_holdout(w));
    put_order(w);
    put_train_on(w);
    put_template(w);
    put_packing(w);
    put_too_long(w);
}
