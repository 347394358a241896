/*
 * prompt_list.c: see prompt_list.h.
 */
#include "infer/prompt_list.h"

#include <string.h>

#include "data/text/records.h"

enum { LINES_MOST = 256 << 20 }; /* bytes of a file of texts */

void prompt_list_add(struct prompt_list *l, const struct prompts *p, const struct read_prompt *x)
{
    const uint32_t n = x->tokens->n;
    const int32_t eos = x->chat ? tokenizer_eos(p->tokenizer) : -1;
    int32_t *ids = bump_alloc(&l->memory, (n + 1) * sizeof *ids);
    char **images = bump_alloc(&l->memory, (x->images->n + 1) * sizeof *images);
    for (uint32_t i = 0; i < n; i++) ids[i] = x->tokens->at[i].id;
    for (uint32_t i = 0; i < x->images->n; i++) images[i] = bump_string(&l->memory, x->images->at[i]);
    ids[n] = eos;
    vec_push(&l->at, ((struct listed_prompt){{ids, n, images, x->images->n, ids + n, eos >= 0}, x->line}));
    l->longest = max_i64(l->longest, n);
    l->tokens += n;
    l->images.images = max_i64(l->images.images, x->slots.images);
    l->images.frames = max_i64(l->images.frames, x->slots.frames);
    l->images.tokens_per_frame = max_i64(l->images.tokens_per_frame, x->slots.tokens_per_frame);
}

/* A sample of JSON, or without one a text. */
static int read_one(struct prompt_list *l, const struct prompts *p, struct value *sample, const char *text,
                    uint64_t line, struct error *e)
{
    struct token_list tokens = {0};
    struct names images = {0};
    struct read_prompt x = {.tokens = &tokens, .images = &images, .line = line};
    int rc = sample ? prompts_sample(p, sample, &images, &tokens, &x.slots, &x.chat, e)
                    : prompts_question(p, text, &images, &tokens, &x.slots, e);
    if (!rc && !tokens.n) rc = error_set(e, PL_USAGE, "the prompt has no tokens");
    if (!rc) prompt_list_add(l, p, &x);
    names_free(&images);
    token_list_free(&tokens);
    return rc;
}

static int read_records(struct prompt_list *l, const struct prompts *p, const char *path, struct error *e)
{
    struct records r;
    struct record x;
    bool more = true;
    int rc = records_open(&r, path, RECORD_MOST, e);
    if (rc) return rc;
    while (!(rc = records_next(&r, &x, &more, e)) && more) {
        struct bump b = {0};
        struct value *sample = NULL;
        rc = conversation_parse(x.text, x.n, RECORD_MOST, &b, &sample, e)
                 ? e->code
                 : read_one(l, p, sample, NULL, record_line(x.line), e);
        bump_free(&b);
        if (!rc) continue;
        error_prepend(e, "%s:%s", path, record_place(x.line).text);
        break;
    }
    records_close(&r);
    return rc;
}

static int read_lines(struct prompt_list *l, const struct prompts *p, const char *path, struct error *e)
{
    char *text = NULL;
    size_t n = 0;
    int rc = file_read(path, LINES_MOST, &text, &n, e);
    if (!rc && memchr(text, 0, n))
        rc = error_set(e, PL_USAGE, "%s has a byte 0: expected a text, with a prompt a line", path);
    uint64_t line = 0;
    for (char *at = text; !rc && at < text + n;) {
        char *end = at + strcspn(at, "\n"), *next = end < text + n ? end + 1 : end;
        *end = 0;
        if (end > at && end[-1] == '\r') end[-1] = 0;
        line++;
        if (*at && (rc = read_one(l, p, NULL, at, line, e)))
            error_prepend(e, "%s:%llu", path, (unsigned long long)line);
        at = next;
    }
    mem_free(text);
    return rc;
}

int prompt_list_read(struct prompt_list *l, const struct prompts *p, const char *path, struct error *e)
{
    const size_t n = strlen(path);
    const bool text = n > 4 && !strcmp(path + n - 4, ".txt");
    int rc = text ? read_lines(l, p, path, e) : read_records(l, p, path, e);
    if (!rc && !l->at.n) rc = error_set(e, PL_USAGE, "%s has no prompts", path);
    return rc;
}

void prompt_list_free(struct prompt_list *l)
{
    vec_free(&l->at);
    bump_free(&l->memory);
    *l = (struct prompt_list){0};
}
