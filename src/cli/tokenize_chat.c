/*
 * tokenize_chat.c: `plimsoll tokenize --chat`: a conversation as the model sees it: text, ids, and labels, which are -100
 * where nothing is trained.
 */
#include <stdio.h>
#include <string.h>

#include "cli/tokenize.h"
#include "io/file.h"
#include "io/json.h"
#include "text/template/chat.h"

enum { CHAT_MOST = 256 << 20, NOT_TRAINED = -100 };

/* A list of messages, or {"messages": [...], "tools": [...]}. */
static int read_chat(const char *path, struct bump *tree, struct value **messages, struct value **tools, struct error *e)
{
    struct value *v;
    if (json_read_file(path, CHAT_MOST, tree, &v, e)) return e->code;
    *tools = NULL;
    *messages = v;
    if (v->kind == VALUE_MAP) {
        *messages = (struct value *)value_get(v, "messages");
        *tools = (struct value *)value_get(v, "tools");
    }
    return value_as_list(*messages, "messages", e) ? error_prepend(e, "%s", path) : PL_OK;
}

/* With the generation prompt the text is what the model continues: nothing of it is trained. */
static int encode_prompt(const struct tokenizer *t, const struct template *template, struct value *messages, struct value *tools, struct chat_tokens *out, struct text *text,
                         struct error *e)
{
    struct rendered r = {0};
    int rc = chat_render(t, template, messages, tools, true, &r, e);
    if (!rc) rc = tokenizer_encode(t, r.text.n ? r.text.at : "", r.text.n, r.data.at, r.data.n, false, &out->tokens, e);
    if (!rc && r.text.n) text_append(text, r.text.at, r.text.n);
    rendered_free(&r);
    return rc;
}

static void write_json(const struct chat_tokens *c, const struct text *text)
{
    struct text out = {0};
    struct json_writer w = {.out = &out};
    json_begin_map(&w, NULL);
    json_put_bytes(&w, "text", text->n ? text->at : "", text->n);
    json_begin_list(&w, "ids");
    for (uint32_t i = 0; i < c->tokens.n; i++) json_put_int(&w, NULL, c->tokens.at[i].id);
    json_end(&w);
    json_begin_list(&w, "labels");
    for (uint32_t i = 0, k = 0; i < c->tokens.n; i++) {
        while (k < c->answers.n && c->answers.at[k].end <= i) k++;
        json_put_int(&w, NULL, k < c->answers.n && c->answers.at[k].begin <= i ? c->tokens.at[i].id : NOT_TRAINED);
    }
    json_end(&w);
    json_end(&w);
    text_append(&out, "\n", 1);
    fwrite(out.at, 1, out.n, stdout);
    text_free(&out);
}

static void print_chat(const struct tokenizer *t, const struct chat_tokens *c, const struct text *text)
{
    uint32_t trained = 0;
    for (uint32_t i = 0; i < c->answers.n; i++) trained += c->answers.at[i].end - c->answers.at[i].begin;
    if (text->n) fwrite(text->at, 1, text->n, stdout);
    printf("\n\n%u token%s, %u of them with a label\n", c->tokens.n, c->tokens.n == 1 ? "" : "s", trained);
    tokenize_print(t, &c->tokens);
}

int tokenize_chat(const struct tokenize_request *r, const struct tokenizer *t, struct error *e)
{
    struct template *template = NULL;
    struct bump tree = {0};
    struct value *messages = NULL, *tools = NULL;
    struct chat_tokens c = {0};
    struct text text = {0};
    if (!r->template && !dir_exists(r->model)) return error_set(e, PL_USAGE, "%s is no model folder, which would have a chat template; give one with --template", r->model);
    int rc = read_chat(r->file, &tree, &messages, &tools, e);
    if (!rc) rc = template_open(&template, dir_exists(r->model) ? r->model : NULL, r->template, NULL, e);
    if (!rc && r->generation_prompt) rc = encode_prompt(t, template, messages, tools, &c, &text, e);
    else if (!rc && chat_encode(t, template, messages, tools, &c, &text, e) != CHAT_FINE) rc = error_prepend(e, "%s", r->file);
    if (!rc && r->json) write_json(&c, &text);
    else if (!rc) print_chat(t, &c, &text);
    chat_tokens_free(&c);
    text_free(&text);
    template_close(template);
    bump_free(&tree);
    return rc;
}
