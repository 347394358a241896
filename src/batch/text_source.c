/*
 * text_source.c: see text_source.h.
 */
#include "batch/text_source.h"

#include "batch/batch_plan.h"
#include "batch/model_images.h"
#include "io/json.h"

/* --- tokenizer and template ---------------------------------------------------------------- */

/* Returns the folder or file of the tokenizer: by default the folder that the weights are in. */
static const char *tokenizer_path(const struct config *c, const struct model *m)
{
    if (c->data_tokenizer) return c->data_tokenizer;
    return c->model_path && m && *m->path ? m->path : c->model_path;
}

static int open_tokenizer(struct text_source *s, const struct config *c, const struct model *m, struct error *e)
{
    const char *path = tokenizer_path(c, m);
    if (!path)
        return error_set(e, PL_USAGE,
                         "data.format is text or conversations, and there is no tokenizer: a preset has none. Set "
                         "data.tokenizer to a model folder, a tokenizer.json or a tokenizer.model");
    int rc = tokenizer_open(&s->tokenizer, path, e);
    return rc && c->data_tokenizer ? error_prepend(e, "data.tokenizer") : rc;
}

int text_template_open(struct template **t, struct error *no_template, const struct config *c, const char *path,
                       struct error *e)
{
    char folder[4096];
    if (!dir_exists(path)) {
        if (path_dir(path, folder, sizeof folder, e)) return e->code;
        path = folder;
    }
    if (!template_open(t, path, c->data_template, NULL, no_template)) {
        const int rc = template_set_kwargs(*t, c->data_chat_template_kwargs, e);
        return rc ? error_prepend(e, "data.chat_template_kwargs") : PL_OK;
    }
    if (!c->data_template) return PL_OK; /* an error for the first conversation; texts need none */
    *e = *no_template;
    return error_prepend(e, "data.template");
}

enum feed_role text_files_of(const struct config *c, enum feed_role role)
{
    return c->data_holdout > 0 ? FEED_TRAIN : role;
}

int text_scope_open(struct text_scope *s, const struct config *c, enum feed_role role, struct error *e)
{
    const bool train = text_files_of(c, role) == FEED_TRAIN;
    const struct config_list *paths = train ? &c->data_train : &c->data_validation;
    const char *named = !train && c->data_validation_images ? c->data_validation_images : c->data_images;
    char folder[4096];
    *s = (struct text_scope){0};
    if (tokenize_files(paths->at, paths->n, &s->tables, e)) return e->code;
    if (!named && path_dir(s->tables.at[0], folder, sizeof folder, e)) return e->code;
    text_printf(&s->where, "%s", named ? named : folder);
    s->scope = (struct image_scope){.where = s->where.at, .anywhere = c->data_outside_images, .tables = s->tables.at,
                                    .n_tables = s->tables.n, .room = batch_room(c),
                                    .min_pixels = (uint64_t)c->data_min_pixels,
                                    .max_pixels = (uint64_t)c->data_max_pixels, .volumes = batch_volumes(c),
                                    .range = feed_range(c)};
    return PL_OK;
}

void text_scope_close(struct text_scope *s)
{
    text_free(&s->where);
    names_free(&s->tables);
}

int text_take_videos(struct image_source *s, const struct config *c, const struct model *m, struct error *e)
{
    const struct video_options o = {.fps = c->data_fps, .max_frames = (uint32_t)c->data_max_frames,
                                    .room = batch_room(c),
                                    .image = {.range = feed_range(c)}};
    if (!o.max_frames || !model_images_take_videos(s, m, &o, c->data_tokens_per_frame, c->data_template, e))
        return PL_OK;
    return config_at_key(c, KEY_data_max_frames, e);
}

static int open_images(struct text_source *s, const struct config *c, enum feed_role role, const struct model *m,
                       struct error *e)
{
    struct text_scope x;
    int rc = text_scope_open(&x, c, role, e);
    if (!rc && model_images_open(&s->images, m, s->tokenizer, s->template, &x.scope, e))
        rc = c->data_images && !s->images.files ? error_prepend(e, "data.images") : e->code;
    text_scope_close(&x);
    if (!rc) rc = text_take_videos(&s->images, c, m, e);
    s->options.images = &s->images;
    return rc;
}

int text_source_open(struct text_source *s, const struct config *c, enum feed_role role, const struct model *m,
                     struct error *e)
{
    const struct config_list *paths = text_files_of(c, role) == FEED_TRAIN ? &c->data_train : &c->data_validation;
    struct names files = {0};
    *s = (struct text_source){.options = {.text = c->data_format == FORMAT_TEXT,
                                          .paths = paths->at,
                                          .n_paths = paths->n,
                                          .system = c->data_system}};
    int rc = tokenize_files(paths->at, paths->n, &files, e);
    if (!rc) rc = open_tokenizer(s, c, m, e);
    if (!rc) rc = text_template_open(&s->template, &s->no_template, c, tokenizer_path(c, m), e);
    if (!rc && m && m->images) rc = open_images(s, c, role, m, e);
    names_free(&files);
    s->options.tokenizer = s->tokenizer;
    s->options.room = batch_room(c);
    s->options.max_bad = &c->data_max_bad;
    s->options.template = s->template;
    s->options.no_template = &s->no_template;
    if (rc) text_source_close(s);
    return rc;
}

/* Reports whether the configuration is that of a model of images and text. */
static bool has_tower(const char *path)
{
    struct bump b = {0};
    struct value *v = NULL;
    struct error ignored;
    const bool found = !json_read_file(path, 16u << 20, &b, &v, &ignored) &&
                       (value_get(v, "vision_config") || value_get(v, "mm_vision_tower"));
    bump_free(&b);
    return found;
}

struct model_choices text_choices(const struct config *c)
{
    return (struct model_choices){.vision_tower = c->model_vision_tower, .modalities = c->model_modalities};
}

int text_image_model(struct model *m, const char *folder, const struct model_choices *c, const struct model **out,
                     struct error *e)
{
    char path[4200];
    *out = NULL;
    snprintf(path, sizeof path, "%s/config.json", folder ? folder : "");
    if (!folder || !file_exists(path)) return PL_OK;
    if (model_open_with(m, folder, c, e))
        return has_tower(path) ? e->code : PL_OK;
    if (m->images) *out = m;
    else model_close(m);
    return PL_OK;
}

int text_images_open(struct image_source *s, bool *has, const struct config *c, const struct tokenizer *t,
                     const struct template *template, const struct image_scope *scope, struct error *e)
{
    struct model own;
    const struct model *m = NULL;
    const struct model_choices chosen = text_choices(c);
    *has = false;
    if (c->model_path) TRY(text_image_model(&own, c->model_path, &chosen, &m, e));
    else if (c->model_preset && !model_preset_with(&own, c->model_preset, &chosen, e)) m = &own;
    if (!m) return PL_OK;
    int rc = PL_OK;
    if (m->images) {
        const struct model reader = model_reader(m);
        rc = model_images_open(s, &reader, t, template, scope, e);
        if (!rc && !m->images->single) rc = text_take_videos(s, c, m, e);
        *has = !rc;
    }
    model_close(&own);
    return rc;
}

void text_source_close(struct text_source *s)
{
    image_source_close(&s->images);
    template_close(s->template);
    tokenizer_close(s->tokenizer);
    *s = (struct text_source){0};
}

static struct image_rule image_rule(const struct config *c, const struct text_source *s)
{
    const struct image_text *x = &s->images.text;
    const int64_t unit = image_source_patches_per_token(&s->images);
    if (!x->features) return (struct image_rule){0};
    if (unit)
        return (struct image_rule){.token = x->token, .features = 1, .patches = (uint32_t)unit, .video = x->video,
                                   .most = (uint32_t)(batch_patches(c, unit) / unit),
                                   .too_many = (enum too_many)c->data_too_many_images};
    return (struct image_rule){.token = x->token, .anyres = x->anyres, .features = x->features,
                               .most = (uint32_t)batch_images(c, x->features), .frame_features = x->frame_features,
                               .most_frames = (uint32_t)c->data_max_frames, .modalities = s->images.modalities,
                               .most_volumes = s->images.modalities.n ? (uint32_t)c->data_max_volumes : 0,
                               .too_many = (enum too_many)c->data_too_many_images};
}

struct conversations_options text_rows(const struct config *c, const struct text_source *s, enum feed_role role,
                                       int64_t vocabulary)
{
    const int32_t pad = tokenizer_pad(s->tokenizer);
    return (struct conversations_options){.sequence = c->data_sequence, .train_on = (enum train_on)c->data_train_on,
                                          .too_long = (enum too_long)c->data_too_long, .packing = c->data_packing,
                                          .vocabulary = vocabulary, .max_bad = c->data_max_bad,
                                          .padding = pad >= 0 && (!vocabulary || pad < vocabulary) ? pad : 0,
                                          .holdout = c->data_holdout, .split_seed = (uint64_t)c->data_split_seed,
                                          .held = role == FEED_VALIDATION,
                                          .max_samples = role == FEED_TRAIN ? (uint32_t)c->data_max_samples : 0,
                                          .images = image_rule(c, s)};
}

/* --- do conversations end? -------------------------------------------------------------------- */

void text_print_endless(const struct tokenizer *t, uint64_t chats, uint64_t endless, struct text *out)
{
    const char *eos = tokenizer_special(t, "eos_token");
    if (!chats || endless < chats) return;
    text_printf(out,
                "no answer of %llu conversation%s ends with an end token%s%s, so the model does not learn to stop: set "
                "data.template to a template that adds one, such as %s, or "
                "write {{ eos_token }} behind the answers of yours",
                (unsigned long long)chats, chats == 1 ? "" : "s", eos ? " such as " : "", eos ? eos : "",
                tokenizer_id(t, "<|im_end|>") >= 0 ? "chatml"
                                                   : "vicuna_v1 (LLaVA 1.5) or mistral_instruct (LLaVA-Med)");
}

/* Counts the first conversations of a file. */
static void count_endless(const struct text_source *s, const struct config *c, const char *path, uint32_t *left,
                          uint64_t *chats, uint64_t *endless)
{
    struct records r;
    struct record x;
    struct error ignored;
    bool more = true;
    if (records_open(&r, path, s->options.room, &ignored)) return; /* texts have no template */
    for (; *left && !records_next(&r, &x, &more, &ignored) && more; --*left) {
        struct bump b = {0};
        struct tokenized t;
        const bool fine = !tokenize_sample(&s->options, x.text, x.n, &b, &t, &ignored) && t.conversation.messages;
        *chats += fine;
        *endless += fine && !(c->data_train_on == TRAIN_ON_ALL ? t.tokens.text_ends : t.tokens.answer_ends);
        tokenized_free(&t);
        bump_free(&b);
    }
    records_close(&r);
}

void text_warn_endless(const struct config *c, const struct model *m)
{
    enum { LOOKED_AT = 16 };
    struct text_source s;
    struct names files = {0};
    struct text line = {0};
    struct error ignored;
    uint64_t chats = 0, endless = 0;
    uint32_t left = LOOKED_AT;
    if (c->data_format != FORMAT_CONVERSATIONS || !c->data_train.n || text_source_open(&s, c, FEED_TRAIN, m, &ignored))
        return;
    if (!tokenize_files(c->data_train.at, c->data_train.n, &files, &ignored))
        for (uint32_t i = 0; i < files.n && left && s.template; i++)
            count_endless(&s, c, files.at[i], &left, &chats, &endless);
    text_print_endless(s.tokenizer, chats, endless, &line);
    if (line.n) log_warn("data.train: %s", line.at);
    text_free(&line);
    names_free(&files);
    text_source_close(&s);
}

/* --- the store ------------------------------------------------------------------------------- */

int text_store_path(const struct text_source *s, const char *folder, enum feed_role role, struct text *out,
                    struct error *e)
{
    struct names files;
    if (folder) {
        text_printf(out, "%s/%s.tokenized", folder, role == FEED_TRAIN ? "train" : "validation");
        return PL_OK;
    }
    int rc = tokenize_files(s->options.paths, s->options.n_paths, &files, e);
    if (!rc) text_printf(out, "%s.tokenized", files.at[0]);
    names_free(&files);
    return rc;
}

/* Checks that the store at a path can be used; `e` says why not. */
static int check_store(const char *path, const struct token_store_key *key, struct error *e)
{
    struct token_store s;
    if (token_store_open(&s, path, e)) return e->code;
    const char *differs = token_store_differs(&s.header->key, key);
    if (differs) error_set(e, PL_USAGE, "%s is stale: it was made from %s", path, differs);
    token_store_close(&s);
    return differs ? PL_USAGE : PL_OK;
}

static int find_named(const struct text_source *s, const struct config *c, const struct token_store_key *key,
                      enum feed_role role, struct text *path, struct error *e)
{
    int rc = text_store_path(s, c->data_store, role, path, e);
    if (!rc && !file_exists(path->at)) rc = error_set(e, PL_USAGE, "there is no %s", path->at);
    if (!rc) rc = check_store(path->at, key, e);
    if (!rc) return PL_OK;
    const size_t n = strlen(e->text);
    if (n < sizeof e->text)
        snprintf(e->text + n, sizeof e->text - n,
                 "; make it with `plimsoll data tokenize RUN.yaml -o %s`, or leave data.store out", c->data_store);
    return error_prepend(e, "data.store");
}

int text_store_find(const struct text_source *s, const struct config *c, const char *folder, enum feed_role role,
                    struct text *path, struct error *e)
{
    struct token_store_key key;
    const char *const folders[] = {folder, NULL};
    role = text_files_of(c, role); /* both parts of a split are in one store */
    if (tokenize_key(&s->options, &key, e)) return e->code;
    if (c->data_store) return find_named(s, c, &key, role, path, e);
    for (size_t i = 0; i < COUNT(folders); i++) {
        struct error why;
        path->n = 0;
        if (text_store_path(s, folders[i], role, path, e)) return e->code;
        if (!file_exists(path->at)) continue;
        if (!check_store(path->at, &key, &why)) return PL_OK;
        log_note("%s; a new store is made", why.text);
    }
    path->n = 0;
    if (text_store_path(s, folder, role, path, e)) return e->code;
    return tokenize_build(&s->options, &key, path->at, e);
}
