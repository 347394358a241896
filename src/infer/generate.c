/*
 * generate.c: see generate.h.
 */
#include "infer/generate.h"

#include <string.h>

#include "base/system.h"

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

void generate_open(struct generate *g, struct generator *generator, const struct generate_options *options)
{
    *g = (struct generate){.generator = generator, .options = *options};
    sampler_open(&g->sampler, generator->run->model.vocabulary, &options->sampling);
}

void generate_close(struct generate *g) { sampler_close(&g->sampler); }

static bool ends(const struct generate_options *o, int32_t id)
{
    for (uint32_t i = 0; i < o->n_ends; i++)
        if (o->ends[i] == id) return true;
    return false;
}

/* --- text --------------------------------------------------------------------------------------------- */

/* The text of an answer as it grows. */
struct growing {
    const struct generate_options *o;
    struct token_stream *stream;
    struct text *text;
    size_t searched;              /* no stop string begins before this byte... */
    size_t shown;
};

/* The first stop string in the text; false: none. */
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

/* The bytes that no stop string can begin in any more. */
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

/* Appends a token's text; *stopped: a stop string is in it. A token that the tokenizer does not have, in a
 * vocabulary that is larger than its own, has no text. */
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

/* --- answers ------------------------------------------------------------------------------------------- */

/* Chooses tokens until the answer ends. The last one is not given to the model: nothing follows it. */
static int answer_tokens(struct generate *g, struct growing *t, struct answer *out, struct error *e)
{
    struct generator *a = g->generator;
    for (;;) {
        int32_t id;
        bool stopped;
        int rc = sampler_next(&g->sampler, a->logits, &id, e);
        if ((rc = generator_agree(a, &id, rc, e))) return rc;
        vec_push(&out->ids, id);
        if (grow(t, id, &stopped, e)) return e->code;
        const bool ended = g->options.each && g->options.each(g->options.to, id);
        out->end = ends(&g->options, id) ? GENERATE_EOS : stopped ? GENERATE_STOP : ended ? GENERATE_CALLBACK : GENERATE_LENGTH;
        if (out->end != GENERATE_LENGTH || out->ids.n >= (uint64_t)g->options.most || a->length >= a->cache) return PL_OK;
        if (generator_put(a, &id, 1, e)) return e->code;
    }
}

/* Each feature of an image has its token in the prompt. */
static int check_images(const struct generate *g, const struct prompt *p, struct error *e)
{
    const struct generator *a = g->generator;
    const struct image_model *m = a->run->model.images;
    int64_t tokens = 0;
    for (int64_t i = 0; i < p->n && p->n_images; i++) tokens += p->ids[i] == m->token;
    const int64_t need = generator_image_tokens(a);
    if (!p->n_images || tokens == need) return PL_OK;
    if (a->images.frames)
        return error_set(e, PL_USAGE, "the prompt has %lld image tokens (id %d), and its images and videos need %lld: %lld for each of %lld images, and those of %lld frames", (long long)tokens, m->token,
                         (long long)need, (long long)m->features, (long long)a->images.images, (long long)a->images.frames);
    return error_set(e, PL_USAGE, "the prompt has %lld image tokens (id %d), and its images need %lld: %lld for each of %lld %s", (long long)tokens, m->token,
                     (long long)need, (long long)m->features, (long long)a->images.images, m->layout == IMAGE_AS_TILES ? "tiles and images" : "images");
}

int generate_images(struct generate *g, const struct prompt *prompt, struct error *e)
{
    g->begun = clock_seconds();
    if (!prompt->n) return error_set(e, PL_USAGE, "the prompt has no tokens");
    generator_begin(g->generator);
    sampler_begin(&g->sampler);
    int rc = generator_images(g->generator, g->options.images, prompt->images, prompt->n_images, e);
    return rc ? rc : check_images(g, prompt, e);
}

int generate_text(struct generate *g, const struct prompt *prompt, struct answer *out, struct error *e)
{
    const struct tokenizer *tokenizer = g->options.tokenizer;
    const int64_t vocabulary = g->generator->run->model.vocabulary;
    struct growing t = {.o = &g->options, .text = &out->text};
    out->ids.n = 0;
    out->text.n = 0;
    int rc = generator_put(g->generator, prompt->ids, prompt->n, e);
    const double between = clock_seconds();
    for (int64_t i = 0; i < prompt->n && !rc; i++)
        if (prompt->ids[i] >= 0 && prompt->ids[i] < vocabulary) sampler_see(&g->sampler, prompt->ids[i]);
    if (rc) return rc;
    t.stream = tokenizer ? token_stream_begin(tokenizer, true) : NULL;
    rc = answer_tokens(g, &t, out, e);
    grow_end(&t, out->end == GENERATE_STOP);
    out->prompt_seconds = between - g->begun;
    out->seconds = clock_seconds() - between;
    return rc;
}

int generate_answer(struct generate *g, const struct prompt *prompt, struct answer *out, struct error *e)
{
    int rc = generate_images(g, prompt, e);
    return rc ? rc : generate_text(g, prompt, out, e);
}

int generate_score(struct generate *g, const struct question *questions, uint32_t n, void (*each)(void *to, uint32_t i, const struct answer *a), void *to,
                   struct text_scores *scores, struct error *e)
{
    struct answer a = {0};
    int rc = PL_OK;
    CHECK(g->options.tokenizer, "scores are of texts");
    for (uint32_t i = 0; i < n && !rc; i++) {
        rc = generate_answer(g, &questions[i].prompt, &a, e);
        if (rc) break;
        text_scores_add(scores, a.text.at, questions[i].reference);
        if (each) each(to, i, &a);
    }
    answer_free(&a);
    return rc;
}
