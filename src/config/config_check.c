/*
 * config_check.c: checks that involve several keys, or the model.
 *
 * A key without effect is an error, so that no setting is lost without a word. Column `needs` of
 * config.def says what a key needs; nothing here names a single key for that. The value of a key
 * that was not given counts as its default: a run that resolves `auto` stays as it was written.
 * A key of the run file that --set leaves without effect is noted: `--set data.max_frames=0`
 * needs no other run file.
 */
#include "config/config_rows.h"

#include "data/images/range.h"
#include "models/model.h"

/* --- keys without effect ---------------------------------------------------------------------- */

/* Copies the text up to a separator and moves *at past it; false: nothing is left. */
static bool next_part(const char **at, const char *separator, char out[256])
{
    if (!**at) return false;
    const char *end = strstr(*at, separator);
    const size_t n = end ? (size_t)(end - *at) : strlen(*at);
    snprintf(out, 256, "%.*s", (int)n, *at);
    *at += end ? n + strlen(separator) : n;
    return true;
}

static bool is_kind(const struct model *m, const char *words)
{
    for (const struct model_kind *k = model_kinds; k->word; k++)
        if (config_word_index(words, k->word) >= 0 && k->is(m)) return true;
    return false;
}

/* Reports whether a key has a value other than 0, false and an empty list. */
static bool is_set(const struct config *c, enum config_key key)
{
    const void *member = config_member(c, key);
    switch (config_rows[key].type) {
    case ROW_STRING: case ROW_MAP: return *(char *const *)member;
    case ROW_LIST: return ((const struct config_list *)member)->n > 0;
    case ROW_INTS: return ((const struct config_ints *)member)->n > 0;
    case ROW_GROUPS: return ((const struct config_groups *)member)->n > 0;
    case ROW_MODULES: return ((const struct config_modules *)member)->n > 0;
    case ROW_NAMES:
        return ((const struct config_names *)member)->text || ((const struct config_names *)member)->list.n > 0;
    case ROW_NUMBERS: return ((const struct config_numbers *)member)->n > 0;
    case ROW_INT: case ROW_AUTO_INT: return *(const int64_t *)member;
    case ROW_REAL: return *(const double *)member != 0;
    case ROW_BOOL: return *(const bool *)member;
    default: return config_given(c, key);
    }
}

/* Returns the value of a key with words, as it was written. */
static const char *word_of(const struct config *c, enum config_key key, char out[32])
{
    const struct config_row *r = &config_rows[key];
    const void *member = config_member(c, key);
    if (!config_given(c, key)) return r->standard;
    if (r->type == ROW_CHOICE) return config_word_at(r->allowed, *(const int *)member, out);
    const struct config_setting *s = member;
    return s->chosen ? s->value : "auto";
}

/* Splits "NAME=WORDS"; *words is NULL for "NAME". Returns the key NAME; -1: it is `model` or
 * `validation`. */
static int split_need(char *need, const char **words)
{
    char *equals = strchr(need, '=');
    if (equals) *equals = 0;
    *words = equals ? equals + 1 : NULL;
    return config_find(need);
}

static bool holds(const struct config *c, const struct model *m, const char *need)
{
    char text[256], word[32];
    const char *words;
    snprintf(text, sizeof text, "%s", need);
    const int key = split_need(text, &words);
    if (key >= 0)
        return words ? config_word_index(words, word_of(c, (enum config_key)key, word)) >= 0
                     : is_set(c, (enum config_key)key);
    return words ? !m || is_kind(m, words) : config_validates(c);
}

/* Reports whether a need is about a key that --set gave. */
static bool need_of_option(const struct config *c, const char *need)
{
    char text[256];
    const char *words;
    snprintf(text, sizeof text, "%s", need);
    const int key = split_need(text, &words);
    if (key >= 0) return c->origin[key].source == SOURCE_OPTION;
    const enum config_key model[] = {KEY_model_path, KEY_model_preset},
                          validation[] = {KEY_data_validation, KEY_data_holdout};
    const enum config_key *of = words ? model : validation;
    return c->origin[of[0]].source == SOURCE_OPTION || c->origin[of[1]].source == SOURCE_OPTION;
}

/* Prints "coco or csv"; of kinds of models, what they mean. */
static void print_words(const char *words, bool of_model, struct text *out)
{
    char word[256], later[256];
    bool more = next_part(&words, "|", word);
    for (bool first = true; more; first = false) {
        more = next_part(&words, "|", later);
        const char *shown = word;
        for (const struct model_kind *k = model_kinds; of_model && k->word; k++)
            if (!strcmp(k->word, word)) shown = k->means;
        text_printf(out, "%s%s", first ? "" : more ? ", " : " or ", shown);
        strcpy(word, later);
    }
}

/* Prints "data.format is pairs, expected coco or csv". */
static void print_need(const struct config *c, const struct model *m, const char *need, struct text *out)
{
    char text[256], word[32];
    const char *words;
    snprintf(text, sizeof text, "%s", need);
    const int key = split_need(text, &words);
    if (key < 0 && !words) text_printf(out, "there is no validation data (data.validation, data.holdout)");
    else if (!words) text_printf(out, "%s is not set", text);
    else if (key < 0) text_printf(out, "the model is a %s, expected ", m->family->model_type);
    else text_printf(out, "%s is %s, expected ", text, word_of(c, (enum config_key)key, word));
    if (words) print_words(words, key < 0, out);
}

/* Returns the technique of a key; NULL: it is none. */
static const struct technique *technique_of(enum config_key key)
{
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        if (config_technique_key(id) == key) return &techniques[id];
    return NULL;
}

const char *config_needs(enum config_key key, char room[64])
{
    const struct technique *t = technique_of(key);
    return t && t->models ? snprintf(room, 64, "model=%s", t->models), room : config_rows[key].needs;
}

/* Reports whether a key asks for nothing: it has its default, or it is 0, false or off. */
static bool asks_nothing(const struct config *c, const struct config *standard, enum config_key key)
{
    const struct technique *t = technique_of(key);
    if (!is_set(c, key) || config_same(c, standard, key)) return true;
    return t && t->off && !strcmp(((const struct config_setting *)config_member(c, key))->value, t->off);
}

/* Prints what a key lacks to have an effect, with a model: what it lacks in that; nothing: it has
 * one. Returns whether --set took that from a key of a file. */
static bool print_lack(const struct config *c, const struct model *m, enum config_key key, struct text *out)
{
    bool taken = false;
    char all[256], any[256], room[64];
    for (const char *needs = config_needs(key, room); !out->n && next_part(&needs, ", ", all);) {
        const char *at = all;
        bool held = !strstr(all, "model=") == (m != NULL); /* the other call says it */
        while (!held && next_part(&at, " or ", any)) held = holds(c, m, any);
        if (held) continue;
        for (at = all; next_part(&at, " or ", any);) {
            text_printf(out, "%s", out->n ? ", and " : "");
            print_need(c, m, any, out);
            taken |= need_of_option(c, any);
        }
    }
    return taken && c->origin[key].source != SOURCE_OPTION;
}

/* Refuses a key without effect; one of another program's configuration is only noted: that program
 * ignores it too. */
static int refuse_key(const struct config *c, enum config_key key, const char *lack, bool note, struct error *e)
{
    error_set(e, PL_USAGE, "%s is given, but %s: it would have no effect", config_rows[key].path, lack);
    config_at_key(c, key, e);
    if (!note && c->origin[key].source != SOURCE_IMPORT) return e->code;
    log_note("%s", e->text);
    *e = (struct error){0};
    return PL_OK;
}

static int check_effects(const struct config *c, const struct model *m, struct error *e)
{
    if (c->checked) return PL_OK;
    struct config standard;
    struct text lack = {0};
    int rc = PL_OK;
    config_init(&standard);
    for (int k = 0; k < CONFIG_KEYS && !rc; k++) {
        const enum config_key key = (enum config_key)k;
        if (!config_given(c, key) || asks_nothing(c, &standard, key)) continue;
        lack.n = 0;
        const bool taken = print_lack(c, m, key, &lack);
        if (lack.n) rc = refuse_key(c, key, lack.at, taken, e);
    }
    text_free(&lack);
    config_free(&standard);
    return rc;
}

int config_check_model(const struct config *c, const struct model *m, struct error *e)
{
    return check_effects(c, m, e);
}

int config_check_read(const struct config *c, const char *command, const char *reads, struct error *e)
{
    struct config standard;
    int rc = PL_OK;
    config_init(&standard);
    for (int k = 0; k < CONFIG_KEYS && !rc; k++) {
        const enum config_key key = (enum config_key)k;
        char pattern[256];
        bool read = c->origin[key].source != SOURCE_OPTION || asks_nothing(c, &standard, key);
        for (const char *at = reads; !read && next_part(&at, " ", pattern);)
            read = pattern_match(pattern, config_rows[key].path);
        if (!read)
            rc = error_set(e, PL_USAGE, "--set %s: `plimsoll %s` does not read this key, but %s", config_rows[key].path,
                           command, reads);
    }
    config_free(&standard);
    return rc;
}

/* --- keys that need or exclude each other ----------------------------------------------------- */

static int check_pair(const struct config *c, enum config_pair p, bool needed, struct error *e)
{
    const enum config_key *pair = config_pairs[p];
    const char *a = config_rows[pair[0]].path, *b = config_rows[pair[1]].path;
    const bool has_a = is_set(c, pair[0]), has_b = is_set(c, pair[1]);
    if (has_a && has_b) {
        error_set(e, PL_USAGE, "both %s and %s are given, expected one of them", a, b);
        return config_at_key(c, pair[1], e);
    }
    if (!needed || has_a || has_b) return PL_OK;
    error_set(e, PL_USAGE, "neither %s nor %s is given, expected one of them", a, b);
    return config_at_key(c, pair[0], e);
}

static int check_needed(const struct config *c, enum config_key key, struct error *e)
{
    const struct config_row *r = &config_rows[key];
    if (is_set(c, key)) return PL_OK;
    error_set(e, PL_USAGE, "%s is not given, and this command needs it: %s", r->path, r->doc);
    return config_at_key(c, key, e);
}

/* Checks that milestones ascend and lie after the warmup. */
static int check_schedule(const struct config *c, struct error *e)
{
    const struct config_ints *m = &c->train_milestones;
    if (check_pair(c, PAIR_DROPS, c->train_schedule == SCHEDULE_STEP, e) || check_pair(c, PAIR_WARMUP, false, e))
        return e->code;
    for (uint32_t i = 0; i < m->n; i++) {
        int64_t least = i ? m->at[i - 1] + 1 : max_i64(1, c->train_warmup_steps);
        if (m->at[i] >= least) continue;
        error_set(e, PL_USAGE,
                  "train.milestones: %lld comes %s, expected ascending steps from the end of the warmup on",
                  (long long)m->at[i], i ? "after a later one or twice" : "within the warmup");
        return config_at_key(c, KEY_train_milestones, e);
    }
    return PL_OK;
}

/* Checks the rates of groups: one is stored as a multiple of the run's, which must not be 0. */
static int check_groups(const struct config *c, struct error *e)
{
    for (uint32_t i = 0; i < c->train_groups.n && c->train_learning_rate == 0; i++) {
        if (!c->train_groups.at[i].given[GROUP_learning_rate]) continue;
        error_set(e, PL_USAGE, "train.groups[%u].learning_rate is given, but train.learning_rate is 0, expected more",
                  i);
        return config_at_key(c, KEY_train_groups, e);
    }
    return PL_OK;
}

static int check_range(const struct config *c, struct error *e)
{
    const bool given = config_given(c, KEY_data_window);
    if (c->data_range == RANGE_WINDOW && !given) {
        error_set(e, PL_USAGE, "data.range is window, and data.window is not given: set it to the two pixel values "
                  "that become black and white, such as [0, 4095]");
        return config_at_key(c, KEY_data_range, e);
    }
    const struct config_range *ranges[] = {&c->data_window, &c->data_percentiles};
    for (int i = given ? 0 : 1; i < 2; i++) {
        const enum config_key key = i ? KEY_data_percentiles : KEY_data_window;
        if (ranges[i]->low < ranges[i]->high) continue;
        error_set(e, PL_USAGE, "%s is [%g, %g], expected two different numbers, the smaller one first",
                  config_rows[key].path, ranges[i]->low, ranges[i]->high);
        return config_at_key(c, key, e);
    }
    return PL_OK;
}

/* Checks that a held-out part and separate validation files exclude each other, and that a filter
 * for validation images has one for training images, or the two would overlap. */
static int check_data(const struct config *c, struct error *e)
{
    static const enum config_key parts[][2] = {{KEY_data_train_list, KEY_data_validation_list},
                                               {KEY_data_train_match, KEY_data_validation_match},
                                               {KEY_data_train_split, KEY_data_validation_split}};
    for (size_t i = 0; i < COUNT(parts); i++) {
        if (!is_set(c, parts[i][1]) || is_set(c, parts[i][0]) || c->data_validation.n) continue;
        error_set(e, PL_USAGE, "%s is given and %s is not, so images would be both trained and evaluated on; give "
                  "both, or data.validation", config_rows[parts[i][1]].path, config_rows[parts[i][0]].path);
        return config_at_key(c, parts[i][1], e);
    }
    if (c->data_holdout > 0 && (c->data_validation.n || c->data_validation_images)) {
        error_set(e, PL_USAGE, "both data.holdout and %s are given, expected one of them",
                  c->data_validation.n ? "data.validation" : "data.validation_images");
        return config_at_key(c, KEY_data_holdout, e);
    }
    return check_range(c, e);
}

int config_check(const struct config *c, unsigned needs, struct error *e)
{
    if (check_pair(c, PAIR_MODEL, needs & CONFIG_NEEDS_MODEL, e)) return e->code;
    if (check_pair(c, PAIR_LENGTH, needs & CONFIG_NEEDS_TRAIN, e)) return e->code;
    if (!(needs & CONFIG_OPTIONS_ONLY) && check_effects(c, NULL, e)) return e->code;
    if (check_schedule(c, e) || check_groups(c, e) || check_data(c, e)) return e->code;
    if ((needs & CONFIG_NEEDS_DATA) && check_needed(c, KEY_data_train, e)) return e->code;
    if ((needs & CONFIG_NEEDS_TRAIN) && check_needed(c, KEY_train_out, e)) return e->code;
    if (!c->loss_focal && !c->loss_dice && !c->loss_iou) {
        error_set(e, PL_USAGE, "loss.focal, loss.dice and loss.iou are all 0, expected at least one above");
        return config_at_key(c, KEY_loss_focal, e);
    }
    if (config_micro_batch(c) > c->train_effective_batch) {
        error_set(e, PL_USAGE, "memory.micro_batch is %s, expected no more than train.effective_batch, %lld",
                  c->memory_micro_batch.value, (long long)c->train_effective_batch);
        return config_at_key(c, KEY_memory_micro_batch, e);
    }
    return PL_OK;
}

/* --- the model of a configuration ----------------------------------------------------------- */

/* Returns the head over a vision tower: as the data asks for, unless model.head says it. */
static enum head_kind choose_head(const struct config *c)
{
    if (c->model_head != HEAD_AUTO) return (enum head_kind)c->model_head;
    return c->data_format == FORMAT_CLASSES    ? HEAD_CLASSES
           : c->data_format == FORMAT_CAPTIONS ? HEAD_CONTRASTIVE
                                               : HEAD_AUTO;
}

/* Returns what section `model` chooses besides the folder or preset. */
static struct model_choices config_choices(const struct config *c)
{
    static const char *const decoders[] =
        {[DECODER_AUTO] = NULL, [DECODER_FUSION] = "fusion", [DECODER_PROMPTED] = "prompted"};
    return (struct model_choices){.vision_tower = c->model_vision_tower, .decoder = decoders[c->model_decoder],
                                  .image = c->data_image_size, .clips = c->data_frames > 0,
                                  .no_dropout = c->model_dropout == DROPOUT_NONE,
                                  .head = choose_head(c), .classes = c->model_classes.at,
                                  .n_classes = c->model_classes.n, .modalities = c->model_modalities,
                                  .class_folder =
                                      c->data_format == FORMAT_CLASSES && c->data_train.n ? c->data_train.at[0] : NULL};
}

int config_open_model(const struct config *c, struct model *m, struct error *e)
{
    const struct model_choices chosen = config_choices(c);
    return c->model_path ? model_open_with(m, c->model_path, &chosen, e)
                         : model_preset_with(m, c->model_preset, &chosen, e);
}
