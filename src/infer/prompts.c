/*
 * prompts.c: see prompts.h.
 */
#include "infer/prompts.h"

#include <string.h>

#include "io/file.h"
#include "io/json.h"
#include "text/template/chat.h"

enum { CHAT_MOST = 256 << 20 }; /* bytes of a chat's file */

int prompts_open(struct prompts *p, const struct config *c, struct error *e)
{
    const char *path = c->data_tokenizer ? c->data_tokenizer : c->model_path;
    char folder[4096];
    *p = (struct prompts){0};
    if (!path) return error_set(e, PL_USAGE, "a preset has no tokenizer: set data.tokenizer to a model folder, a tokenizer.json or a tokenizer.model, or give the prompt as --ids");
    int rc = tokenizer_open(&p->tokenizer, path, e);
    if (rc) return c->data_tokenizer ? error_prepend(e, "data.tokenizer") : rc;
    if (!dir_exists(path)) {
        rc = path_dir(path, folder, sizeof folder, e);
        path = folder;
    }
    if (!rc && template_open(&p->template, path, c->data_template, NULL, &p->no_template) && c->data_template) { /* else it is an error for a chat only */
        *e = p->no_template;
        rc = error_prepend(e, "data.template");
    }
    if (rc) prompts_close(p);
    return rc;
}

void prompts_close(struct prompts *p)
{
    template_close(p->template);
    tokenizer_close(p->tokenizer);
    *p = (struct prompts){0};
}

int prompts_text(const struct prompts *p, const char *text, struct token_list *out, struct error *e)
{
    return tokenizer_encode(p->tokenizer, text, strlen(text), NULL, 0, true, out, e);
}

int prompts_chat(const struct prompts *p, struct value *messages, struct value *tools, struct token_list *out, struct error *e)
{
    struct rendered r = {0};
    if (!p->template) {
        *e = p->no_template;
        return e->code;
    }
    int rc = chat_render(p->tokenizer, p->template, messages, tools, true, &r, e);
    if (!rc) rc = tokenizer_encode(p->tokenizer, r.text.n ? r.text.at : "", r.text.n, r.data.at, r.data.n, false, out, e);
    rendered_free(&r);
    return rc;
}

/* Each message is a map with a role; the template reads the rest. */
static int check_messages(const struct value *messages, struct error *e)
{
    const char *role;
    int rc = value_as_list(messages, "messages", e);
    if (!rc && !messages->count) rc = error_set(e, PL_USAGE, "messages is an empty list");
    for (uint32_t i = 0; i < (rc ? 0 : messages->count) && !rc; i++) {
        rc = value_as_map(value_at(messages, i), "a message", e);
        if (!rc) rc = value_as_string(value_get(value_at(messages, i), "role"), "role", &role, e);
        if (rc) error_prepend(e, "message %u", i + 1);
    }
    return rc;
}

int prompts_chat_file(const struct prompts *p, const char *path, struct token_list *out, struct error *e)
{
    struct bump b = {0};
    struct value *v = NULL;
    int rc = json_read_file(path, CHAT_MOST, &b, &v, e);
    if (!rc) {
        const bool map = v->kind == VALUE_MAP;
        struct value *messages = map ? (struct value *)value_get(v, "messages") : v, *tools = map ? (struct value *)value_get(v, "tools") : NULL;
        if (tools && tools->kind == VALUE_NULL) tools = NULL;
        rc = check_messages(messages, e);
        if (!rc && tools) rc = value_as_list(tools, "tools", e);
        if (!rc) rc = prompts_chat(p, messages, tools, out, e);
        if (rc) error_prepend(e, "%s", path);
    }
    bump_free(&b);
    return rc;
}
