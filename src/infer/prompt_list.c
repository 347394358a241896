/*
 * prompt_list.c: see prompt_list.h.
 */
#include "infer/prompt_list.h"

#include <stdlib.h>

#include "data/text/records.h"
#include "text/tokenizer/tokenizer.h"

enum { LINES_MOST = 256 << 20 }; /* bytes of a file of texts */

/* A prompt that was read. */
struct read_prompt {
    const struct token_list *tokens;
    const struct names *images;
    struct image_batch slots;
    /* a template rendered it: the tokenizer's eos_token, which is the end of a turn in many
     * templates, ends its answer too */
    bool chat;
    uint64_t line;
};
/* Appends a copy. */
static void add(struct prompt_list *l, const struct prompts *p, const struct read_prompt *x)
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
    images_grow(&l->images, &x->slots);
}

/* --- a file of prompts ------------------------------------------------------------------------ */

/* Reads a sample of JSON, or without one a text. */
static int read_one(struct prompt_list *l, const struct prompts *p, struct value *sample, const char *text,
                    uint64_t line, struct error *e)
{
    struct token_list tokens = {0};
    struct names images = {0};
    struct read_prompt x = {.tokens = &tokens, .images = &images, .line = line};
    int rc = sample ? prompts_sample(p, sample, &images, &tokens, &x.slots, &x.chat, e)
                    : prompts_question(p, text, &images, &tokens, &x.slots, e);
    if (!rc && !tokens.n) rc = error_set(e, PL_USAGE, "the prompt has no tokens");
    if (!rc) add(l, p, &x);
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

/* Appends the prompts of a file. */
static int read_file(struct prompt_list *l, const struct prompts *p, const char *path, struct error *e)
{
    const size_t n = strlen(path);
    const bool text = n > 4 && !strcmp(path + n - 4, ".txt");
    int rc = text ? read_lines(l, p, path, e) : read_records(l, p, path, e);
    if (!rc && !l->at.n) rc = error_set(e, PL_USAGE, "%s has no prompts", path);
    return rc;
}

/* --- the prompt of a command ------------------------------------------------------------------ */

/* Parses "1,2,3", with blanks around the numbers. */
static int parse_ids(const struct prompts *p, const char *ids, struct token_list *out, struct error *e)
{
    for (const char *s = ids; *s;) {
        char *end;
        const long long id = strtoll(s, &end, 10);
        const bool image = p->has_images && id == p->images.text.token; /* which may be below 0 */
        if (end == s || (id < 0 && !image) || id > INT32_MAX)
            return error_set(
                e, PL_USAGE,
                "--ids: expected token ids with commas between them, such as 1,15043,29892; found \"%.40s\"", s);
        vec_push(out, ((struct token){.id = (int32_t)id}));
        s = end + strspn(end, " ");
        if (*s == ',' && s[1]) s++;
        else if (*s) return error_set(e, PL_USAGE, "--ids: expected a comma between token ids; found \"%.40s\"", s);
    }
    return PL_OK;
}

/* Reads ids, which have the image tokens themselves. */
static int read_ids(const struct prompts *p, struct given_prompt *g, struct token_list *out, struct error *e)
{
    struct bump b = {0};
    struct text_images images;
    int rc = parse_ids(p, g->ids, out, e);
    if (!rc) rc = prompts_images(p, g->images.at, g->images.n, &b, &images, &g->slots, NULL, e);
    bump_free(&b);
    return rc;
}

static int read_given(struct prompt_list *l, const struct prompts *p, struct given_prompt *g, struct error *e)
{
    struct token_list tokens = {0};
    int rc = PL_OK;
    if (g->ids) rc = read_ids(p, g, &tokens, e);
    else if (g->text)
        rc = prompts_question(p, g->text, &g->images, &tokens, &g->slots, e) ? error_prepend(e, "--prompt") : PL_OK;
    else rc = prompts_chat_file(p, g->chat, &g->images, &tokens, &g->slots, e);
    if (!rc && !tokens.n) rc = error_set(e, PL_USAGE, "the prompt has no tokens");
    if (!rc) add(l, p, &(struct read_prompt){&tokens, &g->images, g->slots, g->chat, 0});
    token_list_free(&tokens);
    return rc;
}

/* --- all of them ------------------------------------------------------------------------------ */

/* Makes paths of the current folder absolute. */
static void find_paths(struct names *paths)
{
    for (uint32_t i = 0; i < paths->n; i++) {
        char *path = realpath(paths->at[i], NULL);
        if (path && !strstr(paths->at[i], "://")) mem_free(paths->at[i]), paths->at[i] = mem_string(path);
        free(path);
    }
}

/* Finds the folder of images and joins videos to the images. Paths of images are relative to the
 * current folder, those in a file of chats or prompts to its folder. */
static int find_images(struct given_prompt *g, char folder[4096], struct error *e)
{
    const char *file = g->chat ? g->chat : g->file;
    struct text video = {0};
    if (g->chat) find_paths(&g->images), find_paths(&g->videos);
    for (uint32_t i = 0; i < g->videos.n; i++) {
        video.n = 0;
        text_printf(&video, VIDEO_REFERENCE "%s", g->videos.at[i]);
        vec_push(&g->images, mem_string(video.at));
    }
    text_free(&video);
    return file ? path_dir(file, folder, 4096, e) : PL_OK;
}

int prompt_list_open(struct prompt_list *l, struct prompts *p, const struct config *c, struct given_prompt *g,
                     bool texts, struct error *e)
{
    char folder[4096];
    TRY(find_images(g, folder, e));
    const struct image_scope scope = prompts_scope(c, g->chat || g->file ? folder : NULL);
    TRY((g->ids && !texts ? prompts_open_ids : prompts_open)(p, c, &scope, e));
    return g->file ? read_file(l, p, g->file, e) : read_given(l, p, g, e);
}

void prompt_list_free(struct prompt_list *l)
{
    vec_free(&l->at);
    bump_free(&l->memory);
    *l = (struct prompt_list){0};
}
