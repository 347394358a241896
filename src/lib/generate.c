/*
 * generate.c: generation of text for users of the library (the contract is in plimsoll.h).
 *
 * The generator keeps weights and KV cache between calls. A call that needs a longer context plans
 * anew.
 */
#include "plimsoll.h"

#include "infer/generate.h"
#include "infer/sample.h"
#include "infer/prompts.h"
#include "lib/session.h"

enum { NEW_TOKENS = 256, TOKENS_MOST = 1 << 24, CHUNK_MOST = 1 << 20 };

struct session_generator {
    struct generator generator;
    struct generation_config folder;
    struct prompts prompts;    /* the tokenizer is NULL if there is none, and no_tokenizer says why */
    struct error no_tokenizer;
    struct answer answer;      /* of the last call */
    int64_t chunk;             /* that was asked for */
    bool started;
};

_Static_assert((int)PL_END_EOS == GENERATE_EOS && (int)PL_END_STOP == GENERATE_STOP &&
                   (int)PL_END_LENGTH == GENERATE_LENGTH && (int)PL_END_CALLBACK == GENERATE_CALLBACK,
               "the ends of an answer");

static void drop_generator(struct pl_session *s)
{
    struct session_generator *x = s->generator;
    generator_close(&x->generator);
    generation_config_free(&x->folder);
    prompts_close(&x->prompts);
    answer_free(&x->answer);
    mem_free(x);
    s->generator = NULL;
}

/* Opens what a call reads of the model's folder: sampling, EOS, the tokenizer. */
static int open_folder(struct pl_session *s, const char *call)
{
    const struct config *c = &s->config;
    if (s->build)
        return error_set(
            &s->error, PL_USAGE,
            "%s: pl_define gave a model, which generates no text; set model.path to the folder of a language model",
            call);
    if (s->stage == STAGE_STARTED)
        return error_set(&s->error, PL_USAGE,
                         "%s: the session is started, so its memory is in use; save the model (pl_save), and open a "
                         "session with it as model.path",
                         call);
    if (s->generator || config_check(c, CONFIG_NEEDS_MODEL, &s->error)) return s->error.code;
    session_evict(s);
    struct session_generator *x = s->generator = mem_alloc(sizeof *x);
    s->evict = drop_generator;
    const struct image_scope scope = prompts_scope(c, NULL);
    if (generation_config_read(&x->folder, c->model_path, &s->error)) session_evict(s);
    else if (prompts_open(&x->prompts, c, &scope, &x->no_tokenizer)) {
        prompts_close(&x->prompts);
        if (!c->data_tokenizer && !c->data_template) return PL_OK; /* ids need no tokenizer, unless one was asked for */
        s->error = x->no_tokenizer;
        error_prepend(&s->error, "%s", call);
        session_evict(s);
    }
    return s->error.code;
}

static struct pl_generation defaults(const struct session_generator *x)
{
    const struct sampling *f = &x->folder.sampling;
    return (struct pl_generation){.size = sizeof(struct pl_generation),
                                  .max_new = x->folder.max_new ? x->folder.max_new : NEW_TOKENS,
                                  .temperature = f->temperature, .top_k = f->top_k, .top_p = f->top_p,
                                  .repetition_penalty = f->repetition_penalty};
}

int pl_generation_defaults(struct pl_session *s, struct pl_generation *out)
{
    ENTER(s);
    if (session_sized(s, "pl_generation_defaults", out, sizeof *out) || open_folder(s, "pl_generation_defaults"))
        return s->error.code;
    const struct pl_generation found = defaults(s->generator);
    session_give(out, &found, sizeof found);
    return PL_OK;
}

/* --- options of a call ---------------------------------------------------------------------- */

static int check_stops(const struct session_generator *x, const struct pl_generation *o, struct error *e)
{
    if (o->n_stops && !x->prompts.tokenizer) {
        *e = x->no_tokenizer;
        return error_prepend(e, "stops need a tokenizer");
    }
    for (size_t i = 0; i < o->n_stops; i++)
        if (!o->stops[i] || !*o->stops[i])
            return error_set(e, PL_USAGE, "stop %zu is %s, expected a text that is not empty", i,
                             o->stops[i] ? "empty" : "NULL");
    return PL_OK;
}

static int check_options(const struct session_generator *x, const struct pl_generation *o, int64_t n, struct error *e)
{
    const struct sampling s = {o->temperature, o->top_k, o->top_p, o->repetition_penalty, o->seed};
    if (!n) return error_set(e, PL_USAGE, "the prompt has no tokens");
    if (o->max_new < 1 || o->max_new > TOKENS_MOST || o->context < 0 || o->context > TOKENS_MOST || n > TOKENS_MOST)
        return error_set(e, PL_USAGE,
                         "the prompt has %lld tokens, max_new is %lld, context is %lld; expected at most %d, and a "
                         "max_new of 1 or more",
                         (long long)n, (long long)o->max_new, (long long)o->context, TOKENS_MOST);
    if (o->context && n >= o->context)
        return error_set(e, PL_USAGE, "the prompt has %lld tokens, and a context of %lld leaves no room for an answer",
                         (long long)n, (long long)o->context);
    if (o->chunk < 0 || o->chunk > CHUNK_MOST)
        return error_set(e, PL_USAGE, "chunk is %lld, expected 0 to %d", (long long)o->chunk, CHUNK_MOST);
    if ((o->n_ends && !o->ends) || (o->n_stops && !o->stops) || o->n_ends > 1 << 20 || o->n_stops > 1 << 20)
        return error_set(e, PL_USAGE, "ends or stops is NULL, or has more than %d elements", 1 << 20);
    int rc = sampling_check(&s, e);
    return rc ? rc : check_stops(x, o, e);
}

/* --- the model ------------------------------------------------------------------------------ */

/* Plans and loads the model, unless the last call's fits this one. */
static int start(struct pl_session *s, const struct pl_generation *o, int64_t n, const struct media *media)
{
    struct session_generator *x = s->generator;
    const struct run_generation g = {.cache = o->context ? o->context : n + o->max_new, .prompt = n,
                                     .answer = o->max_new, .chunk = o->chunk};
    if (x->started && x->generator.cache >= g.cache && media_fit(&x->generator.media.room, media) &&
        x->chunk == o->chunk &&
        !(x->generator.run->planned.model.whole >= WHOLE_PROMPT && n > x->generator.chunk))
        return PL_OK;
    if (x->started) generator_close(&x->generator);
    x->chunk = o->chunk;
    int rc = generator_plan(&x->generator, &s->config, &g, &x->prompts.images, media, &s->error);
    if (!rc) rc = generator_start(&x->generator, &s->error);
    x->started = !rc;
    if (rc) generator_close(&x->generator);
    return rc;
}

/* The tokens that end an answer: the folder's, the caller's, and stops that are special tokens,
 * which have no text. */
struct ends {
    VEC(int32_t) list;
};
static void list_ends(const struct session_generator *x, const struct pl_generation *o, struct ends *out)
{
    for (uint32_t i = 0; i < x->folder.eos.n; i++) vec_push(&out->list, x->folder.eos.at[i]);
    for (size_t i = 0; i < o->n_ends; i++) vec_push(&out->list, o->ends[i]);
    for (size_t i = 0; i < o->n_stops; i++) {
        const int32_t id = tokenizer_id(x->prompts.tokenizer, o->stops[i]);
        if (id >= 0 && tokenizer_is_special(x->prompts.tokenizer, id)) vec_push(&out->list, id);
    }
}

/* --- a call --------------------------------------------------------------------------------- */

struct listener {
    struct pl_session *session;
    pl_token_callback callback;
    void *user;
};
static bool give_token(void *to, int32_t id)
{
    const struct listener *l = to;
    l->session->busy = true;
    const bool ends = l->callback && l->callback(id, l->user) != 0;
    l->session->busy = false;
    return ends || caller_stops();
}

static int answer(struct pl_session *s, const struct prompt *prompt, const struct pl_generation *o, struct listener *l)
{
    struct session_generator *x = s->generator;
    struct ends ends = {0};
    struct generate run;
    list_ends(x, o, &ends);
    char **stops = mem_alloc((o->n_stops + 1) * sizeof *stops);
    for (size_t i = 0; i < o->n_stops; i++) stops[i] = mem_string(o->stops[i]);
    const struct generate_options options = {.sampling = {o->temperature, o->top_k, o->top_p, o->repetition_penalty,
                                                          o->seed},
                                             .most = o->max_new,
                                             .ends = ends.list.at,
                                             .n_ends = ends.list.n,
                                             .images = x->prompts.has_images ? &x->prompts.images : NULL,
                                             .tokenizer = x->prompts.tokenizer,
                                             .stops = stops,
                                             .n_stops = (uint32_t)o->n_stops,
                                             .each = give_token,
                                             .to = l};
    generate_open(&run, &x->generator, &options);
    int rc = generate_answer(&run, prompt, &x->answer, &s->error);
    generate_close(&run);
    for (size_t i = 0; i < o->n_stops; i++) mem_free(stops[i]);
    mem_free(stops);
    vec_free(&ends.list);
    return rc;
}

/* Begins a call for an answer: checks the structs, and opens the model's folder. */
static int begin(struct pl_session *s, const char *call, const struct pl_generation *options, struct pl_answer *out)
{
    if (session_sized(s, call, out, sizeof *out) ||
        (options && session_sized(s, call, options, sizeof *options)))
        return s->error.code;
    session_give(out, &(struct pl_answer){.size = sizeof *out, .text = ""}, sizeof *out);
    return open_folder(s, call);
}

/* Answers a prompt whose images the tower gets as `slots`. */
static int generate(struct pl_session *s, const struct prompt *prompt, const struct media *slots,
                    const struct pl_generation *options, struct listener *l, struct pl_answer *out)
{
    struct session_generator *x = s->generator;
    struct pl_generation o = defaults(x);
    if (options) session_take(&o, options, sizeof o);
    int rc = check_options(x, &o, prompt->n, &s->error);
    if (!rc) rc = start(s, &o, prompt->n, slots);
    if (!rc) rc = answer(s, prompt, &o, l);
    if (rc) return rc;
    const struct answer *a = &x->answer;
    const struct pl_answer full = {.size = sizeof full,
                                   .ids = a->ids.at,
                                   .count = a->ids.n,
                                   .text = a->text.n ? a->text.at : "",
                                   .bytes = a->text.n,
                                   .end = a->end,
                                   .prompt_seconds = a->prompt_seconds,
                                   .seconds = a->seconds,
                                   .arena_bytes = plan_arena(&x->generator.run->planned.plan),
                                   .kv_cache_bytes = generator_cache_bytes(&x->generator)};
    session_give(out, &full, sizeof full);
    return caller_check(&s->error);
}

int pl_generate(struct pl_session *s, const int32_t *ids, size_t n, const struct pl_generation *options,
                pl_token_callback callback, void *user, struct pl_answer *out)
{
    ENTER(s);
    if (!ids && n) return error_set(&s->error, PL_USAGE, "pl_generate: the ids are NULL");
    if (begin(s, "pl_generate", options, out)) return s->error.code;
    const struct prompt prompt = {.ids = ids, .n = n > INT32_MAX ? INT32_MAX : (int64_t)n};
    return generate(s, &prompt, &(struct media){0}, options, &(struct listener){s, callback, user}, out)
               ? error_prepend(&s->error, "pl_generate")
               : PL_OK;
}

/* --- a call with images --------------------------------------------------------------------- */

static int check_images(const char *text, const char *const *images, size_t n, struct error *e)
{
    if (!text) return error_set(e, PL_USAGE, "the text is NULL");
    if ((n && !images) || n > 1 << 20) return error_set(e, PL_USAGE, "the images are NULL, or more than %d", 1 << 20);
    for (size_t i = 0; i < n; i++)
        if (!images[i]) return error_set(e, PL_USAGE, "image %zu is NULL", i);
    return PL_OK;
}

/* Reads a text with images, or a chat. */
typedef int read_prompt(const struct prompts *p, const char *text, struct names *images, struct token_list *out,
                        struct media *slots, struct error *e);

static int answer_text(struct pl_session *s, read_prompt *read, const char *text, struct names *images,
                       const struct pl_generation *options, struct listener *l, struct pl_answer *out)
{
    const struct session_generator *x = s->generator;
    struct token_list tokens = {0};
    struct media slots = {0};
    if (!x->prompts.tokenizer) {
        s->error = x->no_tokenizer;
        return s->error.code;
    }
    int rc = read(&x->prompts, text, images, &tokens, &slots, &s->error);
    int32_t *ids = mem_alloc((tokens.n + 1) * sizeof *ids);
    for (uint32_t i = 0; i < tokens.n; i++) ids[i] = tokens.at[i].id;
    if (!rc) rc = generate(s, &(struct prompt){ids, tokens.n, images->at, images->n}, &slots, options, l, out);
    mem_free(ids);
    token_list_free(&tokens);
    return rc;
}

static int generate_text(struct pl_session *s, const char *call, read_prompt *read, const char *text,
                         const char *const *images, size_t n, const struct pl_generation *options, struct listener *l,
                         struct pl_answer *out)
{
    struct names copies = {0};
    if (check_images(text, images, n, &s->error)) return error_prepend(&s->error, "%s", call);
    if (begin(s, call, options, out)) return s->error.code;
    for (size_t i = 0; i < n; i++) vec_push(&copies, mem_string(images[i]));
    int rc = answer_text(s, read, text, &copies, options, l, out);
    names_free(&copies);
    return rc ? error_prepend(&s->error, "%s", call) : PL_OK;
}

int pl_generate_images(struct pl_session *s, const char *text, const char *const *images, size_t n,
                       const struct pl_generation *options, pl_token_callback callback, void *user,
                       struct pl_answer *out)
{
    ENTER(s);
    struct listener l = {s, callback, user};
    return generate_text(s, "pl_generate_images", prompts_question, text, images, n, options, &l, out);
}

int pl_chat(struct pl_session *s, const char *messages, const char *const *images, size_t n,
            const struct pl_generation *options, pl_token_callback callback, void *user, struct pl_answer *out)
{
    ENTER(s);
    struct listener l = {s, callback, user};
    return generate_text(s, "pl_chat", prompts_chat_text, messages, images, n, options, &l, out);
}
