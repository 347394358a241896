/*
 * token_request.c: see requests.h.
 */
#include "report/requests.h"

#include <errno.h>
#include <inttypes.h>

#include "batch/model_images.h"
#include "batch/text_source.h"
#include "io/file.h"
#include "io/table.h"
#include "text/template/chat.h"
#include "text/tokenizer/tokenizer.h"

enum { CHAT_MOST = 256 << 20, NOT_TRAINED = -100 };

/* --- printing ---------------------------------------------------------------------------- */

/* Prints ids and pieces, two lines. */
static void print_tokens(const struct tokenizer *t, const struct token_list *l)
{
    char piece[512];
    printf("  ids    ");
    for (uint32_t i = 0; i < l->n; i++) printf(" %d", l->at[i].id);
    printf("\n  pieces ");
    for (uint32_t i = 0; i < l->n; i++) {
        const char *stored = tokenizer_piece(t, l->at[i].id);
        text_escape(piece, sizeof piece, stored ? stored : "<image>"); /* an image token that is in no vocabulary */
        printf(" %s", piece);
    }
    printf("\n");
}

static void put_ids(struct json_writer *w, const void *of)
{
    const struct token_list *l = of;
    json_begin_list(w, "ids");
    for (uint32_t i = 0; i < l->n; i++) json_put_int(w, NULL, l->at[i].id);
    json_end(w);
}

/* --- lines ------------------------------------------------------------------------------- */

struct totals {
    uint64_t lines, bytes, tokens, different;
    bool *seen; /* [tokenizer_size] */
};

struct pieces {
    const struct tokenizer *tokenizer;
    const struct token_list *list;
};

static void put_pieces(struct json_writer *w, const void *of)
{
    const struct pieces *p = of;
    const struct token_list *l = p->list;
    json_begin_list(w, "pieces");
    for (uint32_t i = 0; i < l->n; i++) json_put_string(w, NULL, tokenizer_piece(p->tokenizer, l->at[i].id));
    json_end(w);
    json_begin_list(w, "bytes");
    for (uint32_t i = 0; i < l->n; i++) {
        json_begin_list(w, NULL);
        json_put_uint(w, NULL, l->at[i].begin);
        json_put_uint(w, NULL, l->at[i].end);
        json_end(w);
    }
    json_end(w);
}

static int encode_line(const struct token_request *r, const struct tokenizer *t, const char *line, size_t n,
                       struct token_list *l, struct totals *sum, struct error *e)
{
    l->n = 0;
    if (tokenizer_encode(t, line, n, NULL, 0, !r->no_special, l, e)) return e->code;
    sum->tokens += l->n;
    for (uint32_t i = 0; i < l->n; i++) {
        sum->different += !sum->seen[l->at[i].id];
        sum->seen[l->at[i].id] = true;
    }
    if (r->json) PRINT_FACTS(0, FACT_CALL(put_ids, l), FACT_CALL_IF(r->pieces, put_pieces, (&(struct pieces){t, l})));
    else {
        printf("line %" PRIu64 ": %u token%s\n", sum->lines, l->n, l->n == 1 ? "" : "s");
        print_tokens(t, l);
    }
    return PL_OK;
}

/* Decodes a line, which is a JSON list of ids. */
static int decode_line(const struct token_request *r, const struct tokenizer *t, const char *line, size_t n,
                       struct totals *sum, struct error *e)
{
    struct bump tree = {0};
    struct value *list = NULL;
    struct text out = {0}, json = {0};
    VEC(int32_t) ids = {0};
    int rc = json_parse(line, n, &tree, &list, e);
    if (!rc) rc = value_as_list(list, "the line", e);
    for (uint32_t i = 0; !rc && i < list->count; i++) {
        int64_t id = -1;
        rc = value_as_int(list->items[i], "an id", &id, e);
        vec_push(&ids, id < 0 || id > INT32_MAX ? -1 : (int32_t)id);
    }
    if (!rc) rc = tokenizer_decode(t, ids.at, ids.n, r->no_special, &out, e);
    if (!rc && r->json) {
        struct json_writer w = {.out = &json};
        json_put_bytes(&w, NULL, out.n ? out.at : "", out.n);
        fwrite(json.at, 1, json.n, stdout);
    } else if (!rc && out.n) fwrite(out.at, 1, out.n, stdout);
    if (!rc) putchar('\n');
    sum->tokens += ids.n;
    vec_free(&ids);
    text_free(&out);
    text_free(&json);
    bump_free(&tree);
    return rc;
}

static int each_line(const struct token_request *r, const struct tokenizer *t, FILE *f, struct totals *sum,
                     struct error *e)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    struct token_list tokens = {0};
    int rc = PL_OK;
    errno = 0;
    while (!rc && (n = getline(&line, &room, f)) >= 0) {
        size_t length = (size_t)n;
        if (length && line[length - 1] == '\n') length--;
        sum->lines++;
        sum->bytes += length;
        if (r->decode) rc = decode_line(r, t, line, length, sum, e);
        else rc = encode_line(r, t, line, length, &tokens, sum, e);
        if (rc) error_prepend(e, "%s: line %" PRIu64, strcmp(r->file, "-") ? r->file : "standard input", sum->lines);
    }
    if (!rc && !feof(f)) rc = file_error(r->file, "read", e);
    free(line);
    token_list_free(&tokens);
    return rc;
}

static void print_totals(const struct tokenizer *t, const struct totals *sum)
{
    char lines[32], bytes[32], tokens[32], different[32], size[32];
    printf("%s%s lines, %s bytes, %s tokens", sum->lines ? "\n" : "", count_print(sum->lines, lines),
           count_print(sum->bytes, bytes), count_print(sum->tokens, tokens));
    if (sum->tokens) printf(": %.2f bytes per token", (double)sum->bytes / (double)sum->tokens);
    printf("; %s different ids of %s\n", count_print(sum->different, different),
           count_print((uint64_t)tokenizer_size(t), size));
}

static int tokenize_lines(const struct token_request *r, const struct tokenizer *t, struct error *e)
{
    FILE *f = stdin;
    if (strcmp(r->file, "-")) {
        int fd = file_open(r->file, NULL, e);
        if (fd < 0) return e->code;
        f = fdopen(fd, "r");
        if (!f) mem_exhausted("%s cannot be opened as a stream", r->file);
    }
    struct totals sum = {.seen = mem_alloc((size_t)tokenizer_size(t) + 1)};
    int rc = each_line(r, t, f, &sum, e);
    if (!rc && !r->decode && !r->json) print_totals(t, &sum);
    mem_free(sum.seen);
    if (f != stdin) fclose(f);
    if (!rc && fflush(stdout)) rc = error_set(e, PL_FAIL, "standard output: cannot write: %s", strerror(errno));
    return rc;
}

/* --- a conversation ------------------------------------------------------------------------ */

struct chat {
    struct bump tree;
    struct value *root, *messages, *beside;
    struct image_source source; /* of a model that takes images */
    struct text_images images;
};

/* Reads a list of messages, or {"messages": [...]}, which may have tools and
 * chat_template_kwargs. */
static int read_chat(struct chat *c, const char *path, bool images, struct error *e)
{
    if (json_read_file(path, CHAT_MOST, &c->tree, &c->root, e)) return e->code;
    const bool map = c->root->kind == VALUE_MAP;
    c->messages = map ? (struct value *)value_get(c->root, "messages") : c->root;
    c->beside = c->root;
    return !images && value_as_list(c->messages, "messages", e) ? error_prepend(e, "%s", path) : PL_OK;
}

/* Finds the images of the chat, for a model that takes them: paths are relative to the folder of
 * the file. */
static int find_images(const struct token_request *r, const struct tokenizer *t, const struct template *template,
                       const struct model *m, struct chat *c, struct error *e)
{
    struct conversation read;
    char folder[4096];
    int rc = path_dir(r->file, folder, sizeof folder, e);
    if (!rc)
        rc = model_images_open(&c->source, m, t, template,
                               &(struct image_scope){.where = folder, .anywhere = true, .room = 1 << 30}, e);
    if (!rc && (conversation_read_chat(c->root, image_text_joint(&c->source.text), &c->tree, &read, e) ||
                tokenize_images(&c->source, &read, &c->tree, &c->images, e)))
        rc = error_prepend(e, "%s", r->file);
    if (rc) return rc;
    c->messages = read.messages;
    c->beside = read.beside;
    return PL_OK;
}

static void put_text(struct json_writer *w, const void *of)
{
    const struct text *text = of;
    json_put_bytes(w, "text", text->n ? text->at : "", text->n);
}

static void put_labels(struct json_writer *w, const void *of)
{
    const struct chat_tokens *c = of;
    json_begin_list(w, "labels");
    for (uint32_t i = 0, k = 0; i < c->tokens.n; i++) {
        while (k < c->answers.n && c->answers.at[k].end <= i) k++;
        json_put_int(w, NULL, k < c->answers.n && c->answers.at[k].begin <= i ? c->tokens.at[i].id : NOT_TRAINED);
    }
    json_end(w);
}

static void print_chat(const struct tokenizer *t, const struct chat_tokens *c, const struct text *text)
{
    uint32_t trained = 0;
    for (uint32_t i = 0; i < c->answers.n; i++) trained += c->answers.at[i].end - c->answers.at[i].begin;
    if (text->n) fwrite(text->at, 1, text->n, stdout);
    printf("\n\n%u token%s, %u of them with a label\n", c->tokens.n, c->tokens.n == 1 ? "" : "s", trained);
    print_tokens(t, &c->tokens);
}

static int encode(const struct token_request *r, const struct tokenizer *t, const struct template *template,
                  struct chat *c, struct error *e)
{
    const struct text_images *images = c->images.how ? &c->images : NULL;
    struct chat_tokens tokens = {0};
    struct text text = {0};
    const enum chat_failure failed =
        r->generation_prompt ? chat_encode_prompt(t, template, c->messages, c->beside, images, &tokens, &text, e)
                             : chat_encode(t, template, c->messages, c->beside, images, &tokens, &text, e);
    for (uint32_t i = 0; images && i < tokens.tokens.n; i++)
        tokens.tokens.at[i].id = image_text_id(images->how, tokens.tokens.at[i].id);
    const bool shown = !failed || failed == CHAT_ANSWERS;
    if (failed) error_prepend(e, "%s", r->file);
    if (shown && failed) log_warn("%s", e->text);
    if (shown && r->json) /* the labels are null if it is not known where the answers are */
        PRINT_FACTS(0, FACT_CALL(put_text, &text), FACT_CALL(put_ids, &tokens.tokens),
                    FACT_CALL_IF(!failed, put_labels, &tokens), {"labels", {failed ? CELL_NULL : CELL_NONE}});
    else if (shown) print_chat(t, &tokens, &text);
    chat_tokens_free(&tokens);
    text_free(&text);
    return shown ? PL_OK : e->code;
}

static int tokenize_chat(const struct token_request *r, const struct tokenizer *t, struct error *e)
{
    struct template *template = NULL;
    struct chat c = {0};
    struct model own;
    const struct model *m = NULL;
    const bool folder = dir_exists(r->model);
    if (!r->template && !folder)
        return error_set(e, PL_USAGE,
                         "%s is no model folder, which would have a chat template; give one with --template",
                         r->model);
    int rc = text_image_model(&own, folder ? r->model : NULL, &(struct model_choices){0}, &m, e);
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

int token_request_run(const struct token_request *r, struct error *e)
{
    struct tokenizer *t = NULL;
    if (r->decode + r->chat + r->pieces > 1)
        return error_set(e, PL_USAGE, "--decode, --chat and --pieces do not go together");
    if ((r->generation_prompt || r->template) && !r->chat)
        return error_set(e, PL_USAGE, "%s is for --chat", r->template ? "--template" : "--add-generation-prompt");
    TRY(tokenizer_open(&t, r->model, e));
    int rc = r->chat ? tokenize_chat(r, t, e) : tokenize_lines(r, t, e);
    tokenizer_close(t);
    return rc;
}
