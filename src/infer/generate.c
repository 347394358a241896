/*
 * generate.c: see generate.h.
 */
#include "infer/generate.h"

#include <string.h>

#include "base/system.h"

const char *generate_end_name(enum generate_end end)
{
    static const char *const names[] = {"eos", "length"};
    return names[end];
}

void answer_free(struct answer *a)
{
    vec_free(&a->ids);
    memset(a, 0, sizeof *a);
}

void generate_open(struct generate *g, struct generator *generator, const struct generate_options *options)
{
    *g = (struct generate){.generator = generator, .options = *options};
    sampler_open(&g->sampler, generator->run.model.vocabulary, &options->sampling);
}

void generate_close(struct generate *g) { sampler_close(&g->sampler); }

static bool ends(const struct generate_options *o, int32_t id)
{
    for (uint32_t i = 0; i < o->n_ends; i++)
        if (o->ends[i] == id) return true;
    return false;
}

/* Chooses tokens until the answer ends. The last one is not given to the model: nothing follows it. */
static int answer_tokens(struct generate *g, struct answer *out, struct error *e)
{
    struct generator *a = g->generator;
    for (;;) {
        int32_t id;
        if (sampler_next(&g->sampler, a->logits, &id, e)) return e->code;
        vec_push(&out->ids, id);
        out->end = ends(&g->options, id) ? GENERATE_EOS : GENERATE_LENGTH;
        if (out->end == GENERATE_EOS || out->ids.n >= (uint64_t)g->options.most || a->length >= a->cache) return PL_OK;
        if (generator_put(a, &id, 1, e)) return e->code;
    }
}

int generate_answer(struct generate *g, const int32_t *prompt, int64_t n, struct answer *out, struct error *e)
{
    out->ids.n = 0;
    if (!n) return error_set(e, PL_USAGE, "the prompt has no tokens");
    generator_begin(g->generator);
    sampler_begin(&g->sampler);
    const double start = clock_seconds();
    int rc = generator_put(g->generator, prompt, n, e);
    const double between = clock_seconds();
    for (int64_t i = 0; i < n && !rc; i++) sampler_see(&g->sampler, prompt[i]);
    if (!rc) rc = answer_tokens(g, out, e);
    out->prompt_seconds = between - start;
    out->seconds = clock_seconds() - between;
    return rc;
}
