/*
 * tokenize_chat.c: `plimsoll tokenize --chat`: a conversation as the model sees it: text, ids, and
 * labels, which are -100 where nothing is trained.
 */
#include <stdio.h>
#include <string.h>

#include "cli/tokenize.h"
#include "feed/text_source.h"
#include "io/file.h"
#include "io/json.h"
#include "text/template/chat.h"

enum { CHAT_MOST = 256 << 20, NOT_TRAINED = -100 };

struct chat {
    struct bump tree;
    struct value *root, *messages, *tools;
    struct image_source source; /* of a model that takes images */
    struct text_images images;
};

/* A list of messages, or {"messages": [...], "tools": [...]}. */
static int read_chat(struct chat *c, const char *path, bool images, struct error *e)
{
    if (json_read_file(path, CHAT_MOST, &c->tree, &c->root, e)) return e->code;
    const bool map = c->root->kind == VALUE_MAP;
    c->messages = map ? (struct value *)value_get(c->root, "messages") : c->root;
    c->tools = map ? (struct value *)value_get(c->root, "tools") : NULL;
    return !images && value_as_list(c->messages, "messages", e) ? error_prepend(e, "%s", path) : PL_OK;
}

/* The images of the chat, for a model that takes them: paths are relative to the folder of the
 * file. */
static int find_images(const struct tokenize_request *r, const struct tokenizer *t, const struct template *template,
                       const struct model *m, struct chat *c, struct error *e)
{
    struct conversation read;
    char folder[4096];
    int rc = path_dir(r->file, folder, sizeof folder, e);
    if (!rc)
        rc = image_source_open(&c->source, m, t, template,
                               &(struct image_scope){.where = folder, .anywhere = true, .room = 1 << 30}, e);
    if (!rc && (conversation_read_chat(c->root, image_text_joint(&c->source.text), &c->tree, &read, e) ||
                tokenize_images(&c->source, &read, &c->tree, &c->images, e)))
        rc = error_prepend(e, "%s", r->file);
    if (rc) return rc;
    c->messages = read.messages;
    c->tools = read.tools;
    return PL_OK;
}

/* The labels are null if it is not known where the answers are. */
static void write_json(const struct chat_tokens *c, const struct text *text, bool labels)
{
    struct text out = {0};
    struct json_writer w = {.out = &out};
    json_begin_map(&w, NULL);
    json_put_bytes(&w, "text", text->n ? text->at : "", text->n);
    json_begin_list(&w, "ids");
    for (uint32_t i = 0; i < c->tokens.n; i++) json_put_int(&w, NULL, c->tokens.at[i].id);
    json_end(&w);
    if (labels) json_begin_list(&w, "labels");
    else json_put_null(&w, "labels");
    for (uint32_t i = 0, k = 0; i < c->tokens.n && labels; i++) {
        while (k < c->answers.n && c->answers.at[k].end <= i) k++;
        json_put_int(&w, NULL, k < c->answers.n && c->answers.at[k].begin <= i ? c->tokens.at[i].id : NOT_TRAINED);
    }
    if (labels) json_end(&w);
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

static int encode(const struct tokenize_request *r, const struct tokenizer *t, const struct template *template,
                  struct chat *c, struct error *e)
{
    const struct text_images *images = c->images.how ? &c->images : NULL;
    struct chat_tokens tokens = {0};
    struct text text = {0};
    const enum chat_failure failed =
        r->generation_prompt ? chat_encode_prompt(t, template, c->messages, c->tools, images, &tokens, &text, e)
                             : chat_encode(t, template, c->messages, c->tools, images, &tokens, &text, e);
    const bool shown = !failed || failed == CHAT_ANSWERS;
    if (failed) error_prepend(e, "%s", r->file);
    if (shown && failed) log_warn("%s", e->text);
    if (shown && r->json) write_json(&tokens, &text, !failed);
    else if (shown) print_chat(t, &tokens, &text);
    chat_tokens_free(&tokens);
    text_free(&text);
    return shown ? PL_OK : e->code;
}

int tokenize_chat(const struct tokenize_request *r, const struct tokenizer *t, struct error *e)
{
    struct template *template = NULL;
    struct chat c = {0};
    struct model own;
    const struct model *m = NULL;
    const bool folder = dir_exists(r->model);
    if (!r->template && !folder)
        return error_set(e, PL_USAGE,
                         "%s is no model folder, which would have a chat template; give one with --template", r->model);
    int rc = text_image_model(&own, folder ? r->model : NULL, NULL, &m, e);
    if (!rc) rc = read_chat(&c, r->file, m != NULL, e);
    if (!rc) rc = template_open(&template, folder ? r->model : NULL, r->template, NULL, e);
    if (!rc && m) rc = find_images(r, t, template, m, &c, e);
    if (!rc) rc = encode(r, t, template, &c, e);
    if (m) model_close(&own);
    image_source_close(&c.source);
    template_close(template);
    bump_free(&c.tree);
    return rc;
}
