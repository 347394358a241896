/*
 * text_files.c: see text_files.h.
 */
#include "train/text_files.h"

#include <stdio.h>
#include <string.h>

#include "io/file.h"
#include "text/template/template.h"

enum { PATH_ROOM = 4096 };

/* What tokenizer_open and template_open read, here and in transformers. */
static const char *const tokenizer_names[] =
    {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
     "vocab.json",     "merges.txt"};
static const char *const template_names[] = {"chat_template.jinja", "chat_template.json"};

static int path_print(char out[PATH_ROOM], const char *folder, const char *name, struct error *e)
{
    if ((size_t)snprintf(out, PATH_ROOM, "%s/%s", folder, name) < PATH_ROOM) return PL_OK;
    return error_set(e, PL_USAGE, "the path %.200s... is too long", folder);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* tokenizer_open decides in the same way. */
static bool is_json(const char *path)
{
    char first = 0;
    file_peek(path, &first, 1);
    return path_has_ending(path, ".json") || first == '{' || first == '\xef';
}

/* The source of the template that the conversations were rendered with: of data.template, or of the
 * folder of a tokenizer that is one file. Texts need none. */
static void keep_template(struct text_files *t, const struct config *c)
{
    char folder[PATH_ROOM];
    const char *from = t->folder ? t->folder : c->model_path;
    struct template *template;
    struct error ignored;
    if (t->file) {
        if (path_dir(t->file, folder, sizeof folder, &ignored)) return;
        from = folder;
    }
    if (template_open(&template, from, c->data_template, NULL, &ignored)) return;
    t->template = mem_string(template_source(template));
    template_close(template);
}

static void add_bytes(struct text_files *t, const char *path)
{
    uint64_t bytes;
    struct error ignored;
    if (file_exists(path) && !file_size(path, &bytes, &ignored)) t->bytes += bytes;
}

int text_files_open(struct text_files *t, const struct config *c, struct error *e)
{
    char path[PATH_ROOM];
    *t = (struct text_files){0};
    if (c->data_format == FORMAT_TOKENS) return PL_OK;
    if (c->data_tokenizer && dir_exists(c->data_tokenizer)) t->folder = c->data_tokenizer;
    else if (c->data_tokenizer)
        t->file = c->data_tokenizer, t->as = is_json(t->file) ? "tokenizer.json" : "tokenizer.model";
    if (t->file || c->data_template) keep_template(t, c);
    for (size_t i = 0; t->folder && i < COUNT(tokenizer_names) + COUNT(template_names); i++) {
        const char *name = i < COUNT(tokenizer_names) ? tokenizer_names[i] : template_names[i - COUNT(tokenizer_names)];
        if (path_print(path, t->folder, name, e)) return e->code;
        add_bytes(t, path);
    }
    if (t->file) add_bytes(t, t->file);
    if (t->template) t->bytes += strlen(t->template);
    return PL_OK;
}

void text_files_close(struct text_files *t)
{
    mem_free(t->template);
    *t = (struct text_files){0};
}

/* --- saving ----------------------------------------------------------------------------------- */

/* Removes the files of these names, and copies those that `from` has; NULL: none. */
static int replace(const char *const *names, size_t n, const char *from, const char *dir, struct error *e)
{
    char source[PATH_ROOM], target[PATH_ROOM];
    int rc = PL_OK;
    for (size_t i = 0; i < n && !rc; i++) {
        rc = path_print(target, dir, names[i], e);
        if (!rc) rc = tree_remove(target, e);
        if (!rc && from) rc = path_print(source, from, names[i], e);
        if (!rc && from && file_exists(source)) rc = file_copy(source, target, e);
    }
    return rc;
}

int text_files_save(const struct text_files *t, const char *dir, struct error *e)
{
    char path[PATH_ROOM];
    int rc = PL_OK;
    if (t->folder && !dir_exists(t->folder))
        log_warn("data.tokenizer: there is no %s any more: %s is saved without a tokenizer", t->folder, dir);
    if (t->folder || t->file) rc = replace(tokenizer_names, COUNT(tokenizer_names), t->folder, dir, e);
    if (!rc && (t->folder || t->file || t->template))
        rc = replace(template_names, COUNT(template_names), t->template ? NULL : t->folder, dir, e);
    if (!rc && t->file) rc = path_print(path, dir, t->as, e);
    if (!rc && t->file) rc = file_copy(t->file, path, e);
    if (!rc && t->template) rc = path_print(path, dir, "chat_template.jinja", e);
    if (!rc && t->template) rc = file_write_atomic(path, t->template, strlen(t->template), e);
    return rc;
}
