/*
 * generate.c: see generate.h.
 */
#include "infer/generate.h"

#include "dist/agree.h"

const char *generate_end_name(enum generate_end end)
{
    static const char *const names[] = {"eos", "stop", "length", "callback"};
    return names[end];
}

void answer_free(struct answer *a)
{
    vec_free(&a->ids);
    text_free(&a->text);
    memset(a, 0, sizeof *a);
}

static bool is_among(int32_t id, const int32_t *ends, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (ends[i] == id) return true;
    return false;
}

/* --- text ------------------------------------------------------------------------------------- */

/* The text of an answer as it grows. */
struct growing {
    const struct generate_options *o;
    struct token_stream *stream;
    struct text *text;
    size_t searched;              /* no stop string begins before this byte... */
    size_t shown;
};

/* Reports whether the text is asked for before the answer has ended. */
static bool grows(const struct generate_options *o) { return o->tokenizer && (o->n_stops || o->show); }

/* Finds the first stop string in the text; returns false if there is none. */
static bool find_stop(struct growing *t, size_t *at)
{
    bool found = false;
    for (uint32_t i = 0; i < t->o->n_stops && t->text->n; i++) {
        const char *stop = strstr(t->text->at + t->searched, t->o->stops[i]);
        if (stop && (!found || (size_t)(stop - t->text->at) < *at)) *at = (size_t)(stop - t->text->at);
        found |= stop != NULL;
    }
    return found;
}

/* Returns the number of bytes that no stop string can begin in any more. */
static size_t settled(const struct growing *t)
{
    size_t safe = t->text->n;
    for (uint32_t i = 0; i < t->o->n_stops; i++)
        for (size_t n = min_u64(strlen(t->o->stops[i]) - 1, t->text->n); n; n--)
            if (!memcmp(t->text->at + t->text->n - n, t->o->stops[i], n)) {
                safe = min_u64(safe, t->text->n - n);
                break;
            }
    return safe;
}

static void show_until(struct growing *t, size_t end)
{
    if (t->o->show && end > t->shown) t->o->show(t->o->to, t->text->at + t->shown, end - t->shown);
    t->shown = end > t->shown ? end : t->shown;
}

/* Appends a token's text; *stopped: a stop string is in it. A token that the tokenizer does not
 * have, in a vocabulary that is larger than its own, has no text. */
static int grow(struct growing *t, int32_t id, bool *stopped, struct error *e)
{
    size_t at = 0;
    *stopped = false;
    if (!t->stream || !tokenizer_piece(t->o->tokenizer, id)) return PL_OK;
    if (token_stream_put(t->stream, id, t->text, e)) return e->code;
    if ((*stopped = find_stop(t, &at))) t->text->n = at;
    else t->searched = settled(t);
    show_until(t, *stopped ? at : t->searched);
    return PL_OK;
}

static void grow_end(struct growing *t, bool stopped)
{
    size_t at = 0;
    if (!t->stream) return;
    token_stream_end(t->stream, stopped ? NULL : t->text);
    if (!stopped && find_stop(t, &at)) t->text->n = at;
    show_until(t, t->text->n);
    text_append(t->text, "", 0);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* A text of the generator. */
struct growing_text {
    struct held_answer *held;     /* that it grows; NULL: the text is free */
    uint64_t prompt;              /* its number in the queue */
    const int32_t *ends;          /* the prompt's own */
    uint32_t n_ends;
    struct sampled_text sampled;
    struct growing growing;       /* with grows() */
    int32_t id;                   /* the last token, which the model has not yet seen */
};

struct held_answer {
    struct answer answer;
    bool ended, lost;             /* lost: there is none */
    double begun, between;        /* when the prompt was begun, and when it was put */
};

/* The number of answers, for each text, that may wait for those before them. */
enum { HELD_BY_TEXT = 8 };

void generate_open(struct generate *g, struct generator *generator, const struct generate_options *options)
{
    const int64_t n = generator->texts;
    CHECK(!options->pooled || !grows(options), "a text that grows is not in the pool");
    *g = (struct generate){.generator = generator,
                           .options = *options,
                           .n_held = n > 1 ? (uint64_t)n * HELD_BY_TEXT : 1};
    sampler_open(&g->sampler, generator->run->planned.model.vocabulary, &options->sampling);
    g->texts = mem_alloc((size_t)n * sizeof *g->texts);
    g->tokens = mem_alloc((size_t)n * sizeof *g->tokens);
    g->ids = mem_alloc((size_t)(n * generator->cache) * sizeof *g->ids);
    g->held = mem_alloc(g->n_held * sizeof *g->held);
    for (int64_t i = 0; i < n; i++) sampled_text_open(&g->texts[i].sampled, &g->sampler);
    for (uint64_t i = 0; i < g->n_held && options->pooled; i++) {
        struct answer *a = &g->held[i].answer;
        vec_grow((void **)&a->ids.at, &a->ids.cap, (uint32_t)min_i64(options->most, generator->cache),
                 sizeof *a->ids.at);
    }
}

void generate_close(struct generate *g)
{
    for (int64_t i = 0; g->texts && i < g->generator->texts; i++) {
        if (g->texts[i].growing.stream) token_stream_end(g->texts[i].growing.stream, NULL);
        sampled_text_close(&g->texts[i].sampled);
    }
    for (uint64_t i = 0; i < g->n_held; i++) answer_free(&g->held[i].answer);
    sampler_close(&g->sampler);
    mem_free(g->texts);
    mem_free(g->tokens);
    mem_free(g->ids);
    mem_free(g->held);
    *g = (struct generate){0};
}

static void enter_pool(const struct generate *g)
{
    if (g->options.pooled) mem_pool_enter();
}
static void leave_pool(const struct generate *g)
{
    if (g->options.pooled) mem_pool_leave();
}

/* --- answers ---------------------------------------------------------------------------------- */

/* Decodes the text of an answer that did not grow with it. */
static int decode(const struct generate *g, struct answer *a, struct error *e)
{
    struct growing t = {.o = &g->options, .text = &a->text};
    bool stopped;
    int rc = PL_OK;
    if (!g->options.tokenizer || grows(&g->options)) return PL_OK;
    t.stream = token_stream_begin(g->options.tokenizer, true);
    for (uint32_t i = 0; i < a->ids.n && !rc; i++) rc = grow(&t, a->ids.at[i], &stopped, e);
    grow_end(&t, false);
    return rc;
}

/* Gives the queue the answers whose turn it is. */
static int deliver(struct generate *g, struct error *e)
{
    int rc = PL_OK;
    while (!rc && g->taken < g->begun) {
        struct held_answer *h = &g->held[g->taken % g->n_held];
        if (!h->ended && !h->lost) break;
        enter_pool(g);
        if (!h->lost) rc = decode(g, &h->answer, e);
        if (!rc && !h->lost) rc = g->queue->take(g->queue->to, g->taken, &h->answer, e);
        if (g->options.pooled) h->answer.text = (struct text){0}; /* it goes with the pool */
        leave_pool(g);
        g->taken++;
    }
    return rc;
}

static int end_answer(struct generate *g, struct growing_text *t, struct error *e)
{
    struct held_answer *h = t->held;
    if (t->growing.stream) grow_end(&t->growing, h->answer.end == GENERATE_STOP);
    t->growing = (struct growing){0};
    h->answer.seconds = clock_seconds() - h->between;
    h->ended = true;
    t->held = NULL;
    g->active--;
    return deliver(g, e);
}

/* Tells the queue why there is no answer. */
static int lose(struct generate *g, uint64_t prompt, struct error *e)
{
    g->held[prompt % g->n_held].lost = true;
    int rc = g->queue->take(g->queue->to, prompt, NULL, e);
    return rc ? rc : deliver(g, e);
}

/* Chooses the next token of a text. The last one of an answer is not given to the model: nothing
 * follows it. */
static int choose_token(struct generate *g, int64_t text, struct error *e)
{
    const struct generate_options *o = &g->options;
    struct generator *a = g->generator;
    struct growing_text *t = &g->texts[text];
    struct answer *out = &t->held->answer;
    bool stopped = false;
    int rc = sampler_next(&g->sampler, &t->sampled, generator_logits(a, text), &t->id, e);
    if ((rc = generator_agree(a, &t->id, rc, e))) return lose(g, t->prompt, e) ? e->code : rc;
    vec_push(&out->ids, t->id);
    if (t->growing.stream && grow(&t->growing, t->id, &stopped, e)) return e->code;
    const bool ended = o->each && o->each(o->to, t->id);
    const bool eos = is_among(t->id, o->ends, o->n_ends) || is_among(t->id, t->ends, t->n_ends);
    out->end = eos ? GENERATE_EOS : stopped ? GENERATE_STOP : ended ? GENERATE_CALLBACK : GENERATE_LENGTH;
    const bool goes_on = out->end == GENERATE_LENGTH && out->ids.n < (uint64_t)o->most && a->length[text] < a->cache;
    return goes_on ? PL_OK : end_answer(g, t, e);
}

/* Puts the *n of g->tokens, and chooses those that follow them. *n is then 0. */
static int put_tokens(struct generate *g, uint32_t *n, struct error *e)
{
    int rc = *n ? generator_put(g->generator, g->tokens, *n, e) : PL_OK;
    for (uint32_t i = 0; i < *n && !rc; i++) {
        struct held_answer *h = g->texts[g->tokens[i].text].held;
        if (!h->answer.ids.n) h->between = clock_seconds(), h->answer.prompt_seconds = h->between - h->begun;
        rc = choose_token(g, g->tokens[i].text, e);
    }
    *n = 0;
    return rc;
}

/* Puts the next token of each answer. */
static int put_answers(struct generate *g, struct error *e)
{
    uint32_t n = 0;
    for (int64_t i = 0; i < g->generator->texts; i++)
        if (g->texts[i].held) g->tokens[n++] = (struct text_tokens){i, &g->texts[i].id, 1};
    return put_tokens(g, &n, e);
}

/* --- prompts ---------------------------------------------------------------------------------- */

/* Reads the images of a prompt that begins in a text, and checks its tokens. */
static int read_prompt(struct generate *g, int64_t text, const struct prompt *p, struct error *e)
{
    struct generator *a = g->generator;
    if (!p->n) return error_set(e, PL_USAGE, "the prompt has no tokens");
    generator_begin(a, text);
    enter_pool(g);
    int rc = text_media_read(&a->media, g->options.images, p->images, p->n_images, e);
    leave_pool(g);
    if (!rc) rc = text_media_check(&a->media, p->ids, p->n, p->n_images, e);
    return rc ? rc : generator_check(a, &(struct text_tokens){text, p->ids, p->n}, e);
}

/* Decides whether a prompt can be used. Ranks that run the programs together leave it out if none
 * of them can, and otherwise end. */
static int agree_on_prompt(struct generate *g, int found, bool *lost, struct error *e)
{
    struct ranks *r = g->generator->together;
    struct agreement x = {0};
    *lost = found == PL_USAGE;
    x.broken = *lost;
    int rc = agree(r, &x, *lost ? PL_OK : found, e);
    if (!rc && r && x.broken && x.broken < (uint64_t)r->n) rc = agree_on(r, found, e);
    return rc;
}

/* Gives a text to a prompt. */
static void begin_answer(struct generate *g, int64_t text, const struct prompt *p)
{
    struct growing_text *t = &g->texts[text];
    struct held_answer *h = t->held = &g->held[t->prompt % g->n_held];
    const int64_t vocabulary = g->generator->run->planned.model.vocabulary;
    t->ends = p->ends;
    t->n_ends = p->n_ends;
    sampled_text_begin(&t->sampled, (uint32_t)t->prompt);
    for (int64_t i = 0; i < p->n; i++)
        if (p->ids[i] >= 0 && p->ids[i] < vocabulary) sampled_text_see(&t->sampled, p->ids[i]);
    if (grows(&g->options))
        t->growing = (struct growing){.o = &g->options, .stream = token_stream_begin(g->options.tokenizer, true),
                                      .text = &h->answer.text};
    g->put += (uint64_t)p->n;
    g->active++;
}

/* Begins the next prompt in a text and appends it to the *n of g->tokens, which are put together. A
 * prompt with images is put by itself: its images are in the tower's input. So is one whose tokens
 * all see each other. */
static int begin_prompt(struct generate *g, int64_t text, uint32_t *n, struct error *e)
{
    struct prompt p = {0};
    bool lost = false;
    int found = g->queue->next(g->queue->to, &p, &g->more, e);
    if (!found && !g->more) return PL_OK;
    const uint64_t prompt = g->begun++;
    const struct model *m = &g->generator->run->planned.model;
    const bool alone = p.n_images || m->whole >= WHOLE_PROMPT;
    struct held_answer *h = &g->held[prompt % g->n_held];
    h->ended = h->lost = false;
    h->answer.ids.n = 0;
    h->answer.text.n = 0;
    h->begun = clock_seconds();
    if (alone && put_tokens(g, n, e)) return e->code;
    if (!found) found = read_prompt(g, text, &p, e);
    int rc = agree_on_prompt(g, found, &lost, e);
    if (rc) return lose(g, prompt, e) ? e->code : rc;
    if (lost) return lose(g, prompt, e);
    g->texts[text].prompt = prompt;
    begin_answer(g, text, &p);
    int32_t *ids = g->ids + text * g->generator->cache;
    memcpy(ids, p.ids, (size_t)p.n * sizeof *ids);
    g->tokens[(*n)++] = (struct text_tokens){text, ids, p.n};
    return alone ? put_tokens(g, n, e) : PL_OK;
}

/* Begins prompts in all texts that are free. */
static int begin_prompts(struct generate *g, struct error *e)
{
    uint32_t n = 0;
    int rc = PL_OK;
    for (int64_t i = 0; i < g->generator->texts && !rc; i++)
        while (!g->texts[i].held && g->more && !rc && g->begun - g->taken < g->n_held) rc = begin_prompt(g, i, &n, e);
    return rc ? rc : put_tokens(g, &n, e);
}

/* Reports whether prompts begin now. */
static bool is_time(const struct generate *g)
{
    const uint64_t all = (uint64_t)g->generator->texts, free = all - (uint64_t)g->active;
    if (!g->more || !free || g->begun - g->taken >= g->n_held) return false;
    return !g->active || 2 * free >= all || free * g->put >= (uint64_t)g->generator->chunk * g->begun;
}

int generate_all(struct generate *g, const struct generate_queue *q, struct error *e)
{
    int rc = PL_OK;
    g->queue = q;
    g->more = true;
    g->begun = g->taken = g->put = 0;
    while (!rc && (g->active || g->more)) {
        if (is_time(g)) rc = begin_prompts(g, e);
        if (!rc && g->active) rc = put_answers(g, e);
    }
    for (int64_t i = 0; i < g->generator->texts; i++) {
        struct growing_text *t = &g->texts[i];
        if (t->growing.stream) token_stream_end(t->growing.stream, NULL);
        t->growing = (struct growing){0};
        t->held = NULL;
    }
    g->active = 0;
    return rc;
}

/* --- one prompt ------------------------------------------------------------------------------- */

struct single {
    const struct prompt *prompt; /* NULL: it was given */
    struct answer *out;
};

static int next_single(void *to, struct prompt *out, bool *more, struct error *e)
{
    struct single *s = to;
    (void)e;
    *more = s->prompt;
    if (s->prompt) *out = *s->prompt;
    s->prompt = NULL;
    return PL_OK;
}

static int take_single(void *to, uint64_t i, const struct answer *a, struct error *e)
{
    struct answer *out = ((struct single *)to)->out;
    (void)i;
    if (!a) return e->code;
    out->ids.n = 0;
    out->text.n = 0;
    for (uint32_t k = 0; k < a->ids.n; k++) vec_push(&out->ids, a->ids.at[k]);
    text_append(&out->text, a->text.n ? a->text.at : "", a->text.n);
    out->end = a->end;
    out->prompt_seconds = a->prompt_seconds;
    out->seconds = a->seconds;
    return PL_OK;
}

int generate_answer(struct generate *g, const struct prompt *prompt, struct answer *out, struct error *e)
{
    struct single s = {prompt, out};
    return generate_all(g, &(struct generate_queue){&s, next_single, take_single}, e);
}
