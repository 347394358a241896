/*
 * text_request.c: see prompts.h.
 */
#include "infer/prompts.h"

#include <math.h>
#include <unistd.h>

#include "data/text/records.h"
#include "infer/generate.h"
#include "io/table.h"
#include "plan/explain.h"
#include "text/tokenizer/tokenizer.h"

enum { NEW_TOKENS = 256,         /* --max-new, where the folder has none */
       LINES_MOST = 256 << 20 }; /* bytes of a file of texts */

/* --- the list of prompts ---------------------------------------------------------------------- */

struct listed_prompt {
    struct prompt prompt;
    uint64_t line;             /* in its file (record_line) */
};

struct prompt_list {
    VEC(struct listed_prompt) at;
    int64_t longest, tokens;   /* tokens of the longest prompt, and of all */
    struct media images; /* of a prompt that the vision tower gets, at most */
    struct bump memory;
};

/* A prompt that was read. */
struct read_prompt {
    const struct token_list *tokens;
    const struct names *images;
    struct media slots;
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
    media_grow(&l->images, &x->slots);
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

/* Opens the model's prompts and reads what is given. Ids need no tokenizer, and use one where there
 * is one, unless `texts`: it is needed for other texts. PL_USAGE, with file and line: a sample
 * cannot be used; there are none. */
static int read_prompts(struct prompt_list *l, struct prompts *p, const struct config *c, struct given_prompt *g,
                        bool texts, struct error *e)
{
    char folder[4096];
    TRY(find_images(g, folder, e));
    const struct image_scope scope = prompts_scope(c, g->chat || g->file ? folder : NULL);
    TRY((g->ids && !texts ? prompts_open_ids : prompts_open)(p, c, &scope, e));
    return g->file ? read_file(l, p, g->file, e) : read_given(l, p, g, e);
}

/* --- what is answered ------------------------------------------------------------------------- */

struct answering {
    const struct text_request *o;
    struct prompts prompts;   /* the tokenizer is NULL with ids, unless the folder has one */
    struct generation_config folder;
    struct sampling sampling;
    struct prompt_list list;  /* those of the file, or one */
    uint32_t asked;           /* of them, so far */
    struct generator generator;
};

/* Takes the folder's values, and over them those of the command. */
static int make_sampling(struct answering *g, struct error *e)
{
    struct sampling *s = &g->sampling;
    TRY(generation_config_read(&g->folder, g->o->config->model_path, e));
    *s = g->folder.sampling;
    if (!isnan(g->o->temperature)) s->temperature = g->o->temperature;
    if (!isnan(g->o->top_p)) s->top_p = g->o->top_p;
    if (!isnan(g->o->repetition_penalty)) s->repetition_penalty = g->o->repetition_penalty;
    if (g->o->top_k != UINT64_MAX) s->top_k = (int64_t)min_u64(g->o->top_k, INT64_MAX);
    s->seed = g->o->seed;
    if (!s->temperature && (g->o->top_k != UINT64_MAX || !isnan(g->o->top_p)))
        return error_set(e, PL_USAGE,
                         "%s chooses among likely tokens, and at temperature 0 the most likely one is taken; add "
                         "--temperature 1, or leave it out",
                         g->o->top_k != UINT64_MAX ? "--top-k" : "--top-p");
    return sampling_check(s, e);
}

/* Finds the lengths of prompts, answers and cache. */
static int measure(const struct answering *g, struct run_generation *out, struct error *e)
{
    const struct text_request *o = g->o;
    const struct prompt_list *l = &g->list;
    const int64_t n = l->longest, most = o->max_new          ? (int64_t)o->max_new
                                         : g->folder.max_new ? g->folder.max_new
                                                             : NEW_TOKENS;
    if (most > 1 << 24 || o->context > 1 << 24 || o->chunk > 1 << 20)
        return error_set(e, PL_USAGE, "--max-new, --context: expected at most %d tokens, --chunk: at most %d", 1 << 24,
                         1 << 20);
    *out = (struct run_generation){.cache = o->context ? (int64_t)o->context : n + most, .prompt = n, .answer = most,
                                   .chunk = (int64_t)o->chunk, .prompts = l->at.n, .tokens = l->tokens,
                                   .batch = (int64_t)min_u64(o->batch, INT32_MAX)};
    if (n >= out->cache)
        return error_set(e, PL_USAGE,
                         "the %sprompt has %lld tokens, and --context %lld leaves no room for an answer; set it to "
                         "more than %lld, or shorten the prompt",
                         l->at.n > 1 ? "longest " : "", (long long)n, (long long)out->cache, (long long)n);
    out->answer = min_i64(most, out->cache - n);
    return PL_OK;
}

/* --- the answer ------------------------------------------------------------------------------- */

static void put_ids(struct json_writer *w, const void *of)
{
    const struct answer *a = of;
    json_begin_list(w, "ids");
    for (uint32_t i = 0; i < a->ids.n; i++) json_put_int(w, NULL, a->ids.at[i]);
    json_end(w);
}

static void put_text(struct json_writer *w, const void *of)
{
    const struct answer *a = of;
    json_put_bytes(w, "text", a->text.n ? a->text.at : "", a->text.n);
}

/* Prints text as it comes. A terminal gets no control codes but line breaks and tabs. */
static void show_text(void *to, const char *bytes, size_t n)
{
    const bool terminal = *(bool *)to;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (!terminal || (c >= 32 && c != 127) || c == '\n' || c == '\t') putchar(c);
    }
    fflush(stdout);
}

static uint32_t count_media(const struct answering *g, bool videos)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->o->given.images.n; i++) n += media_is_video(g->o->given.images.at[i]) == videos;
    return n;
}

/* Prints an answer as JSON, one of a file as a line; or as ids. */
static void print_answer(const struct answering *g, const struct listed_prompt *p, const struct answer *a)
{
    const bool one = !g->o->given.file, text = g->prompts.tokenizer;
    const uint32_t videos = one ? count_media(g, true) : 0;
    const struct generator *x = &g->generator;
    const double speed = a->ids.n > 1 && a->seconds > 0 ? (double)(a->ids.n - 1) / a->seconds : 0;
    if (!one || g->o->json)
        PRINT_FACTS(0, FACT_IF(!one, "line", p->line), FACT_CALL(put_ids, a), FACT_CALL_IF(text, put_text, a),
                    FACT("finish", generate_end_name(a->end)), FACT("prompt_tokens", (int64_t)p->prompt.n),
                    FACT_IF(one && g->o->given.images.n, "images", count_media(g, false)),
                    FACT_IF(videos, "videos", videos), FACT_IF(videos, "frames", g->o->given.slots.frames),
                    FACT_IF(one, "prompt_seconds", a->prompt_seconds), FACT_IF(one, "tokens_per_second", speed),
                    FACT_IF(one, "arena_bytes", plan_arena(&x->run->planned.plan)),
                    FACT_IF(one, "kv_cache_bytes", generator_cache_bytes(x)), FACT_IF(one, "context", x->cache),
                    FACT_IF(one, "prompt_chunk", x->chunk), FACT_IF(one, "batch", x->texts));
    else {
        for (uint32_t i = 0; g->o->given.ids && i < a->ids.n; i++) printf("%s%d", i ? "," : "", a->ids.at[i]);
        printf("\n");
    }
    fflush(stdout);
}

static int next_prompt(void *to, struct prompt *out, bool *more, struct error *e)
{
    struct answering *g = to;
    (void)e;
    if ((*more = g->asked < g->list.at.n)) *out = g->list.at.at[g->asked++].prompt;
    return PL_OK;
}

static int take_answer(void *to, uint64_t i, const struct answer *a, struct error *e)
{
    const struct answering *g = to;
    const struct listed_prompt *p = &g->list.at.at[i];
    const char *file = g->o->given.file;
    if (!a) return file ? error_prepend(e, "%s:%llu", file, (unsigned long long)p->line) : e->code;
    print_answer(g, p, a);
    return PL_OK;
}

/* Adds to the folder's EOS the stop texts that are special tokens: answers have no text of
 * these. */
static void add_ends(struct answering *g)
{
    const struct tokenizer *t = g->prompts.tokenizer;
    for (uint32_t i = 0; i < g->o->stops.n; i++) {
        const int32_t id = tokenizer_id(t, g->o->stops.at[i]);
        if (id >= 0 && tokenizer_is_special(t, id)) vec_push(&g->folder.eos, id);
    }
}

static void log_speed(const struct answering *g, double seconds)
{
    char time[32], arena[32];
    log_note("%u prompts in %s, %.3g prompts/s, %lld at once, arena %s", g->list.at.n, duration_print(seconds, time),
             g->list.at.n / seconds, (long long)g->generator.texts,
             size_print(plan_arena(&g->generator.run->planned.plan), arena));
}

static int answer(struct answering *g, const struct run_generation *length, struct error *e)
{
    const struct text_request *o = g->o;
    add_ends(g);
    bool terminal = isatty(STDOUT_FILENO);
    const struct generate_options options = {.sampling = g->sampling, .most = length->answer, .ends = g->folder.eos.at,
                                             .n_ends = g->folder.eos.n,
                                             .images = g->prompts.has_images ? &g->prompts.images : NULL,
                                             .tokenizer = g->prompts.tokenizer, .stops = o->stops.at,
                                             .n_stops = o->stops.n,
                                             .show = o->json || o->given.ids || o->given.file ? NULL : show_text,
                                             .to = &terminal};
    struct generate run;
    TRY(generator_start(&g->generator, e));
    generate_open(&run, &g->generator, &options);
    const double from = clock_seconds();
    int rc = generate_all(&run, &(struct generate_queue){g, next_prompt, take_answer}, e);
    if (!rc && o->given.file) log_speed(g, clock_seconds() - from);
    generate_close(&run);
    return rc;
}

static void show_plan(const struct answering *g, bool fits)
{
    const struct run *r = g->generator.run;
    struct text text = {0};
    const struct plan_note note = planned_note(&r->planned, fits);
    if (g->o->json) plan_write(&r->planned.plan, &r->planned.graph, &note, &text);
    else plan_print(&r->planned.plan, &r->planned.graph, &r->planned.profile, &text);
    if (g->o->explain && !g->o->json)
        plan_explain(&r->planned.plan, &r->planned.graph, &text),
            plan_explain_all(&r->planned.plan, &r->planned.graph, &text);
    fputs(text.at, stdout);
    text_free(&text);
}

static int plan_and_answer(struct answering *g, struct error *e)
{
    struct run_generation o;
    if (measure(g, &o, e)) return e->code;
    int rc = generator_plan(&g->generator, g->o->config, &o, &g->prompts.images, &g->list.images, e);
    const struct run *r = g->generator.run;
    if (r->planned.has_graph && g->o->json && rc == PL_NOFIT) show_plan(g, false);
    if (!rc) generator_warn_longest(&g->generator, o.cache, "the text");
    if (!rc && g->o->dry_run) show_plan(g, true);
    if (!rc && !g->o->dry_run) rc = answer(g, &o, e);
    generator_close(&g->generator);
    return rc;
}

/* --- a request -------------------------------------------------------------------------------- */

int text_request_check(const struct text_request *r, struct error *e)
{
    const int given = !!r->given.ids + !!r->given.text + !!r->given.chat + !!r->given.file;
    if (!given)
        return error_set(e, PL_USAGE,
                         "no prompt is given: add --prompt TEXT, --chat FILE.json, --ids 1,2,3 or --prompts FILE");
    if (given > 1) return error_set(e, PL_USAGE, "--prompt, --chat, --ids and --prompts exclude each other");
    if (r->given.file && r->given.images.n + r->given.videos.n)
        return error_set(
            e, PL_USAGE,
            "--%s is for one prompt; the samples of --prompts name their own: {\"prompt\": ..., \"images\": [...]}",
            r->given.images.n ? "image" : "video");
    if (r->batch && !r->given.file)
        return error_set(e, PL_USAGE, "--batch is for a file of prompts, --prompts FILE; this is one prompt");
    for (uint32_t i = 0; i < r->stops.n; i++)
        if (!*r->stops.at[i]) return error_set(e, PL_USAGE, "--stop: expected a text that is not empty");
    return PL_OK;
}

int text_request_run(struct text_request *r, struct error *e)
{
    struct answering g = {.o = r};
    int rc = make_sampling(&g, e);
    if (!rc) rc = read_prompts(&g.list, &g.prompts, r->config, &r->given, r->stops.n, e);
    if (!rc) rc = plan_and_answer(&g, e);
    generation_config_free(&g.folder);
    prompts_close(&g.prompts);
    vec_free(&g.list.at);
    bump_free(&g.list.memory);
    return rc;
}
