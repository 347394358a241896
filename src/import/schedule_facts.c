/*
 * schedule_facts.c: facts of other programs about the learning rate, its schedule and the
 * optimizer.
 *
 * A scheduler of DeepSpeed is one thing with defaults of its own: where a DeepSpeed file has one,
 * the arguments of the program that uses the file count only where the file says "auto".
 */
#include <ctype.h>
#include <math.h>

#include "config/config_rows.h"
#include "import/import_rows.h"
#include "io/yaml.h"

/* --- the schedule ---------------------------------------------------------------------------- */

static const char *schedule_word(struct import_work *w, const struct import_entry *entry)
{
    const char *word = import_text(entry);
    if (!strncmp(word, "SchedulerType.", 14)) word += 14;
    char *lower = bump_string(w->b, word);
    for (char *s = lower; *s; s++) *s = (char)tolower((unsigned char)*s);
    const char *found = import_pair(w, "linear=linear cosine=cosine constant=constant constant_with_warmup=constant "
                                    "cosine_with_min_lr=cosine warmuplr=constant warmupdecaylr=linear "
                                    "warmupcosinelr=cosine", lower);
    if (found) return found;
    import_refuse(w, entry, "found %.100s, and Plimsoll has only linear, cosine (also with min_lr), constant and "
                  "constant_with_warmup", word);
    return "constant";
}

/* Puts the least rate of cosine_with_min_lr, as a fraction. Other options change a curve in ways
 * that do not exist here. */
static void put_floor(struct import_work *w, const struct import_entry *schedule)
{
    const struct import_entry *options = import_given(w, HOW_SCHEDULE_OPTIONS);
    if (!options || import_off(options->value)) return;
    const struct value *rate = value_get(options->value, "min_lr_rate"), *least = value_get(options->value, "min_lr");
    if (options->value->kind != VALUE_MAP || options->value->count != 1 || !(rate || least) ||
        strcmp(import_text(schedule), "cosine_with_min_lr"))
        import_refuse(w, options, "only min_lr_rate or min_lr of cosine_with_min_lr is known");
    else if (rate && rate->kind == VALUE_NUMBER)
        import_put(w, "train.min_lr_rate", value_copy(w->b, rate), options, NULL);
    else if (least && least->kind == VALUE_NUMBER && w->c->train_learning_rate > 0)
        import_put(w, "train.min_lr_rate", value_number(w->b, least->number / w->c->train_learning_rate), options,
                   NULL);
    else import_refuse(w, options, "min_lr_rate or min_lr is no number");
}

static void put_warmup(struct import_work *w)
{
    const struct import_entry *steps = import_pick(w, HOW_WARMUP), *ratio = import_pick(w, HOW_WARMUP_RATIO),
                              *length = import_pick(w, HOW_STEPS);
    const double n = import_number(w, steps), total = import_number(w, length);
    if (ratio && !ratio->given && !steps && total > 0) { /* Axolotl's default, which ends at 100 steps */
        const double some = fmin(100, floor(import_number(w, ratio) * total));
        if (some > 0) import_put(w, "train.warmup_steps", value_number(w->b, some), ratio, NULL);
        return;
    }
    if (n >= 1) {
        import_put_value(w, "train.warmup_steps", steps);
        if (ratio && import_number(w, ratio) > 0)
            import_leave(w, ratio, bump_format(w->b, "%s is given, and comes first", steps->key));
    } else if (n > 0) import_put_value(w, "train.warmup_ratio", steps);
    else if (ratio && import_number(w, ratio) != 0 && !(steps && steps->given && !ratio->given))
        import_put_value(w, "train.warmup_ratio", ratio);
}

static void put_schedule(struct import_work *w)
{
    const struct import_entry *schedule = import_pick(w, HOW_SCHEDULE);
    if (schedule) {
        import_put_word(w, "train.schedule", schedule_word(w, schedule), schedule);
        put_floor(w, schedule);
    }
    if (schedule && !strcmp(import_text(schedule), "constant")) { /* without warmup, unlike constant_with_warmup */
        import_leave(w, import_given(w, HOW_WARMUP), "the schedule constant has no warmup; constant_with_warmup has");
        import_leave(w, import_given(w, HOW_WARMUP_RATIO),
                     "the schedule constant has no warmup; constant_with_warmup has");
        return;
    }
    put_warmup(w);
}

/* --- DeepSpeed's schedulers ------------------------------------------------------------------ */

static const char *default_of(struct import_work *w, const char *key)
{
    return bump_format(w->b, "default of scheduler.params.%s", key);
}

static void put_ds_warmup(struct import_work *w, const struct import_entry *scheduler)
{
    const struct import_entry *steps = import_given(w, HOW_DS_WARMUP), *type = import_given(w, HOW_DS_WARMUP_TYPE);
    const char *word = import_text(type);
    if (import_automatic(w, "scheduler.params.warmup_num_steps")) {
        put_warmup(w);
        if (!config_warms_up(w->c))
            import_put(w, "train.warmup_steps", value_int(w->b, 2), scheduler,
                       "DeepSpeed's warmup has at least 2 steps");
    } else if (steps)
        import_put(w, "train.warmup_steps", value_int(w->b, import_whole(w, steps, 1, INT32_MAX)), steps, NULL);
    else import_put(w, "train.warmup_steps", value_int(w->b, 1000), scheduler, default_of(w, "warmup_num_steps"));
    if (type && strcmp(word, "log") && strcmp(word, "linear"))
        import_refuse(w, type, "found %.100s, expected log or linear", word);
    if (type) import_put_word(w, "train.warmup_shape", word, type);
    else import_put(w, "train.warmup_shape", import_word(w, "log"), scheduler, default_of(w, "warmup_type"));
}

/* Puts the peak of the warmup as the learning rate. WarmupDecayLR has a peak of its own, others
 * take the optimizer's. */
static void put_ds_rate(struct import_work *w, const struct import_entry *scheduler, bool decays)
{
    const struct import_entry *peak = import_given(w, HOW_DS_MAX_RATE),
                              *rate = import_pick_for(w, "train.learning_rate");
    if (peak && rate && rate->given && rate->program != PROGRAM_ds && import_number(w, rate) != import_number(w, peak))
        import_refuse(w, rate, "it is %g, but in %s:%u %s is %g: they must be the same, or the DeepSpeed file says "
                      "\"auto\"", import_number(w, rate), peak->file, peak->line, peak->key, import_number(w, peak));
    if (peak) import_put_value(w, "train.learning_rate", peak);
    else if (decays && !import_automatic(w, "scheduler.params.warmup_max_lr"))
        import_put(w, "train.learning_rate", value_number(w->b, 0.001), scheduler, default_of(w, "warmup_max_lr"));
}

static void put_ds_start(struct import_work *w, bool decays, bool cosine)
{
    const struct import_entry *least = import_given(w, HOW_DS_MIN_RATE), *ratio = import_given(w, HOW_DS_MIN_RATIO),
                              *start = cosine ? ratio : least;
    double part = import_number(w, start);
    if (!start || part == 0 || import_failed(w)) return;
    if (!cosine) part = w->c->train_learning_rate > 0 ? part / w->c->train_learning_rate : 2;
    if (part < 0 || part > 1)
        import_refuse(w, start, "the warmup begins at %g of the learning rate, expected a part of it", part);
    import_put(w, "train.warmup_start", value_number(w->b, part), start, NULL);
    if (decays) import_put(w, "train.min_lr_rate", value_number(w->b, part), start, NULL);
}

static void put_ds_schedule(struct import_work *w, const struct import_entry *scheduler)
{
    const char *word = schedule_word(w, scheduler);
    const bool decays = !strcmp(word, "linear"), cosine = !strcmp(word, "cosine");
    const struct import_entry *floor = import_given(w, HOW_DS_COSINE_FLOOR);
    import_leave(w, import_given(w, HOW_SCHEDULE),
                 bump_format(w->b, "the scheduler of %s comes first", scheduler->file));
    import_put_word(w, "train.schedule", word, scheduler);
    import_put_word(w, "train.schedule_as", "deepspeed", scheduler);
    put_ds_warmup(w, scheduler);
    put_ds_rate(w, scheduler, decays);
    put_ds_start(w, decays, cosine);
    if (cosine)
        import_put(w, "train.min_lr_rate", floor ? value_copy(w->b, floor->value) : value_number(w->b, 0.0001),
                   floor ? floor : scheduler, floor ? NULL : default_of(w, "cos_min_ratio"));
}

/* --- the optimizer --------------------------------------------------------------------------- */

/* What a name of torch.optim or bitsandbytes means. */
static const struct named_optimizer {
    const char *name, *ours, *decay; /* decay: its default of weight_decay */
    bool coupled;                    /* weight decay is added to the gradient of Adam, which does not exist here */
} optimizers[] = {
    {"adamw", "adamw", "0.01", false},
    {"adamw_torch", "adamw", "0.01", false},
    {"adamw_torch_fused", "adamw", "0.01", false},
    {"adam", "adamw", "0", true},
    {"adamw8bit", "adamw-8bit", "0.01", false},
    {"adamw_8bit", "adamw-8bit", "0.01", false},
    {"adamw_bnb_8bit", "adamw-8bit", "0.01", false},
    {"paged_adamw_8bit", "adamw-8bit", "0.01", false},
    {"pagedadamw8bit", "adamw-8bit", "0.01", false},
    {"adam8bit", "adamw-8bit", "0", false},
    {"sgd", "sgd", "0", false},
    {"adafactor", "adafactor", "0", false},
};

static const struct named_optimizer *find_optimizer(const char *name)
{
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; i < COUNT(optimizers); i++)
        if (!strcasecmp(dot ? dot + 1 : name, optimizers[i].name)) return &optimizers[i];
    return NULL;
}

/* Returns the optimizer that a script or a DeepSpeed file names; DeepSpeed's Adam is AdamW unless
 * adam_w_mode is false. */
static const struct named_optimizer *said_optimizer(struct import_work *w, const struct import_entry **entry)
{
    const struct import_entry *script = import_given(w, HOW_OPTIMIZER), *ds = import_given(w, HOW_DS_OPTIMIZER),
                              *mode = import_pick(w, HOW_ADAM_W_MODE);
    const char *name = import_text(*entry = script ? script : ds);
    if (!*entry) return NULL;
    const struct named_optimizer *found = find_optimizer(name);
    const bool adam = found && (found->coupled || !strcasecmp(name, "adamw")),
               sgd = found && !strcmp(found->ours, "sgd");
    if (*entry == ds && !adam && !sgd) {
        import_refuse(w, ds, "found %.100s, and Plimsoll has only Adam, AdamW and SGD of DeepSpeed's optimizers", name);
        return NULL;
    }
    if (!found)
        import_refuse(w, script, "found %.100s, and Plimsoll has only AdamW, Adam, SGD, Adafactor, and AdamW and Adam "
                      "in 8 bits", name);
    if (*entry != ds || !adam) return found;
    static const struct named_optimizer fused = {"adam", "adamw", "0", false}, coupled = {"adam", "adamw", "0", true};
    const bool plain = found->coupled && mode && mode->given && !import_true(w, mode);
    return plain ? &coupled : import_true(w, import_given(w, HOW_TORCH_ADAM)) ? find_optimizer("adamw") : &fused;
}

/* Puts train.no_decay: transformers' Trainer gives biases and norms no decay; other programs, and
 * DeepSpeed's own optimizers, decay all that they are given. */
static void put_no_decay(struct import_work *w, const struct import_entry *decay)
{
    if (!import_has(w, BIT(hf) | BIT(trl) | BIT(lf) | BIT(llava) | BIT(swift) | BIT(axolotl)) ||
        import_given(w, HOW_DS_OPTIMIZER) || import_number(w, decay) == 0)
        return;
    struct value *patterns = value_new(w->b, VALUE_LIST);
    value_append(w->b, patterns, import_word(w, "*bias*"));
    value_append(w->b, patterns, import_word(w, "*norm*"));
    import_put(w, "train.no_decay", patterns, decay, "as Trainer does: biases and norms do not decay");
}

static void put_decay(struct import_work *w, const struct named_optimizer *optimizer, const struct import_entry *named)
{
    const struct import_entry *decay = import_pick(w, HOW_DECAY);
    if (decay && optimizer && optimizer->coupled && import_number(w, decay) > 0)
        import_refuse(w, decay, "it is %g with Adam, which adds it to the gradient, and AdamW does not: name AdamW, or "
                      "set it to 0", import_number(w, decay));
    if (decay) {
        import_put_value(w, "train.weight_decay", decay);
        put_no_decay(w, decay);
    } else if (optimizer && !import_automatic(w, "optimizer.params.weight_decay"))
        import_put(w, "train.weight_decay", yaml_scalar(w->b, optimizer->decay), named,
                   bump_format(w->b, "default of %s", import_text(named)));
}

/* Puts the numbers that an optimizer of DeepSpeed has unless they are given, there or by the
 * program that uses the file. */
static void put_ds_defaults(struct import_work *w, const struct import_entry *type)
{
    static const struct {
        const char *ours, *value, *key;
    } defaults[] = {{"train.learning_rate", "0.001", "lr"},
                    {"train.beta1", "0.9", "betas"},
                    {"train.beta2", "0.999", "betas"},
                    {"train.eps", "1e-8", "eps"}};
    for (size_t i = 0; i < COUNT(defaults); i++) {
        const char *key = bump_format(w->b, "optimizer.params.%s", defaults[i].key);
        if (config_given(w->c, (enum config_key)config_find(defaults[i].ours)) || import_automatic(w, key) ||
            (i && !strcasecmp(import_text(type), "sgd")))
            continue;
        import_put(w, defaults[i].ours, yaml_scalar(w->b, defaults[i].value), type,
                   bump_format(w->b, "default of %s", key));
    }
}

static void put_betas(struct import_work *w)
{
    const struct import_entry *betas = import_given(w, HOW_BETAS);
    if (!betas) return;
    if (betas->value->kind != VALUE_LIST || betas->value->count != 2) {
        import_refuse(w, betas, "expected a list of two numbers");
        return;
    }
    import_put(w, "train.beta1", value_copy(w->b, betas->value->items[0]), betas, NULL);
    import_put(w, "train.beta2", value_copy(w->b, betas->value->items[1]), betas, NULL);
}

/* Puts momentum 0: torch.optim.SGD has none unless it is given. */
static void put_momentum(struct import_work *w)
{
    if (w->c->origin[KEY_memory_optimizer].source != SOURCE_IMPORT || strcmp(w->c->memory_optimizer.value, "sgd") ||
        config_given(w->c, KEY_train_momentum))
        return;
    import_put(w, "train.momentum", value_int(w->b, 0),
               &(struct import_entry){.file = w->c->origin[KEY_memory_optimizer].file, .key = "momentum"},
               "default of torch.optim.SGD");
}

/* Puts ms-swift's learning rate, which follows from what is trained. */
static void put_swift_rate(struct import_work *w)
{
    const struct import_entry *rate = import_pick(w, HOW_SWIFT_RATE), *asked = import_asks_for_lora(w);
    if (rate) import_put_value(w, "train.learning_rate", rate);
    else if (import_has(w, BIT(swift)))
        import_put(w, "train.learning_rate", value_number(w->b, asked ? 1e-4 : 1e-5),
                   asked ? asked : &(struct import_entry){.file = w->f->files.at[0].name, .key = "learning_rate"},
                   asked ? "default of learning_rate with an adapter" : "default of learning_rate without an adapter");
}

void import_schedule(struct import_work *w)
{
    const struct import_entry *named, *scheduler = import_given(w, HOW_DS_SCHEDULE);
    const struct named_optimizer *optimizer = said_optimizer(w, &named);
    put_swift_rate(w);
    put_betas(w);
    if (optimizer) import_put_word(w, "memory.optimizer", optimizer->ours, named);
    put_decay(w, optimizer, named);
    if (named && named->row->how == HOW_DS_OPTIMIZER) put_ds_defaults(w, named);
    put_momentum(w);
    if (scheduler) put_ds_schedule(w, scheduler);
    else put_schedule(w);
}
