/*
 * sample.c: see sample.h. Scores are f32, as in transformers; probabilities are summed in double.
 */
#include "infer/sample.h"

#include <math.h>

#include "base/random.h"
#include "io/file.h"
#include "io/json.h"

int sampling_check(const struct sampling *s, struct error *e)
{
    if (!(s->temperature >= 0) || isinf(s->temperature))
        return error_set(e, PL_USAGE, "temperature is %g, expected 0 (greedy) or more", s->temperature);
    if (s->top_k < 0)
        return error_set(e, PL_USAGE, "top-k is %lld, expected 0 (all tokens) or more", (long long)s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return error_set(e, PL_USAGE, "top-p is %g, expected a number above 0 and at most 1 (all tokens)", s->top_p);
    if (!(s->repetition_penalty > 0) || isinf(s->repetition_penalty))
        return error_set(e, PL_USAGE, "the repetition penalty is %g, expected a number above 0; 1 is none",
                         s->repetition_penalty);
    return PL_OK;
}

void sampler_open(struct sampler *s, int64_t vocabulary, const struct sampling *sampling)
{
    const size_t n = (size_t)vocabulary;
    *s = (struct sampler){.sampling = *sampling, .vocabulary = vocabulary, .scores = mem_alloc(n * sizeof *s->scores),
                          .sorted = mem_alloc(n * sizeof *s->sorted), .kept = mem_alloc(n * sizeof *s->kept)};
}

void sampler_close(struct sampler *s)
{
    mem_free(s->scores);
    mem_free(s->sorted);
    mem_free(s->kept);
    memset(s, 0, sizeof *s);
}

/* --- texts ------------------------------------------------------------------------------------ */

void sampled_text_open(struct sampled_text *t, const struct sampler *s)
{
    *t = (struct sampled_text){.vocabulary = s->vocabulary};
    if (s->sampling.repetition_penalty != 1) t->seen = mem_alloc((size_t)s->vocabulary * sizeof *t->seen);
}

void sampled_text_close(struct sampled_text *t)
{
    mem_free(t->seen);
    *t = (struct sampled_text){0};
}

void sampled_text_begin(struct sampled_text *t, uint32_t number)
{
    if (t->seen) memset(t->seen, 0, (size_t)t->vocabulary * sizeof *t->seen);
    t->number = number;
    t->drawn = 0;
}

void sampled_text_see(struct sampled_text *t, int32_t id)
{
    CHECK(id >= 0 && id < t->vocabulary, "token %d", id);
    if (t->seen) t->seen[id] = true;
}

/* --- scores ----------------------------------------------------------------------------------- */

static void penalize(struct sampler *s, const struct sampled_text *t)
{
    const float penalty = (float)s->sampling.repetition_penalty;
    for (int64_t i = 0; i < s->vocabulary && t->seen; i++)
        if (t->seen[i]) s->scores[i] = s->scores[i] < 0 ? s->scores[i] * penalty : s->scores[i] / penalty;
}

/* Returns the first of the largest; -1: none is comparable. */
static int32_t largest(const struct sampler *s)
{
    int32_t best = -1;
    for (int64_t i = 0; i < s->vocabulary; i++)
        if (!isnan(s->scores[i]) && s->scores[i] > -INFINITY && (best < 0 || s->scores[i] > s->scores[best]))
            best = (int32_t)i;
    return best;
}

/* --- the tokens that may be drawn ------------------------------------------------------------- */

/* Returns the k-th largest of n numbers, which are reordered: quickselect. */
static float kth_largest(float *x, int64_t n, int64_t k)
{
    int64_t low = 0, high = n - 1;
    while (low < high) {
        const float pivot = x[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot) i++;
            while (x[j] < pivot) j--;
            if (i > j) break;
            const float swapped = x[i];
            x[i++] = x[j];
            x[j--] = swapped;
        }
        if (k - 1 <= j) high = j;
        else if (k - 1 >= i) low = i;
        else break;
    }
    return x[k - 1];
}

/* Keeps the top_k tokens, and those whose score equals the k-th largest. */
static int64_t keep_top_k(struct sampler *s)
{
    const int64_t k = s->sampling.top_k;
    float least = -INFINITY;
    int64_t n = 0;
    for (int64_t i = 0; i < s->vocabulary; i++)
        if (!isnan(s->scores[i]) && s->scores[i] > -INFINITY) s->sorted[n++] = s->scores[i];
    if (k && k < n) least = kth_largest(s->sorted, n, k);
    n = 0;
    for (int64_t i = 0; i < s->vocabulary; i++)
        if (!isnan(s->scores[i]) && s->scores[i] > -INFINITY && s->scores[i] >= least)
            s->kept[n++] = (struct sampled){.id = (int32_t)i, .score = s->scores[i]};
    return n;
}

static double weigh(struct sampled *kept, int64_t n)
{
    float most = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, kept[i].score);
    for (int64_t i = 0; i < n; i++) sum += kept[i].weight = exp((double)kept[i].score - (double)most);
    return sum;
}

static int by_score(const void *a, const void *b)
{
    const struct sampled *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    return ((const struct sampled *)a)->id < ((const struct sampled *)b)->id ? -1 : 1;
}

/* Leaves out the least likely tokens that together have at most the probability 1 - top_p; the most
 * likely one always stays. */
static int64_t keep_top_p(struct sampler *s, int64_t n)
{
    if (s->sampling.top_p >= 1) return n;
    qsort(s->kept, (size_t)n, sizeof *s->kept, by_score);
    const double all = weigh(s->kept, n);
    double sum = 0;
    int64_t first = 0;
    while (first < n - 1 && (sum += s->kept[first].weight / all) <= 1 - s->sampling.top_p) first++;
    memmove(s->kept, s->kept + first, (size_t)(n - first) * sizeof *s->kept);
    qsort(s->kept, (size_t)(n - first), sizeof *s->kept, by_id);
    return n - first;
}

/* Scores to candidates; their weights then add up to 1. */
static int64_t list_candidates(struct sampler *s)
{
    for (int64_t i = 0; i < s->vocabulary; i++) s->scores[i] /= (float)s->sampling.temperature;
    const int64_t n = keep_top_p(s, keep_top_k(s));
    const double sum = weigh(s->kept, n);
    for (int64_t i = 0; i < n; i++) s->kept[i].weight /= sum;
    return n;
}

int64_t sampler_candidates(struct sampler *s, const struct sampled_text *t, const float *logits)
{
    memcpy(s->scores, logits, (size_t)s->vocabulary * sizeof *s->scores);
    penalize(s, t);
    return list_candidates(s);
}

static int32_t draw(struct sampler *s, const struct sampled_text *t)
{
    const int64_t n = list_candidates(s);
    double at =
        (double)(random_bits(random_key(s->sampling.seed, "generate"), (uint64_t)t->number << 32 | t->drawn) >> 11) *
        0x1p-53;
    for (int64_t i = 0; i < n - 1; i++)
        if ((at -= s->kept[i].weight) < 0) return s->kept[i].id;
    return s->kept[n - 1].id;
}

int sampler_next(struct sampler *s, struct sampled_text *t, const float *logits, int32_t *id, struct error *e)
{
    memcpy(s->scores, logits, (size_t)s->vocabulary * sizeof *s->scores);
    penalize(s, t);
    *id = largest(s);
    if (*id < 0 || isinf(s->scores[*id]))
        return error_set(e, PL_FAIL,
                         "the model's logits are not finite, so there is no next token; its weights are not usable in "
                         "this precision");
    if (s->sampling.temperature > 0) *id = draw(s, t);
    t->drawn++;
    sampled_text_see(t, *id);
    return PL_OK;
}

/* --- generation_config.json ------------------------------------------------------------------- */

enum { LIMIT = 64 << 20 }; /* bytes of a configuration file */

/* Sets what a configuration without an eos_token_id means: LlamaConfig and MistralConfig have a
 * default, and LLaVA's original ones are these. */
static void default_eos(struct generation_config *g, const struct value *v)
{
    const char *type = "";
    struct error ignored;
    if (value_opt_string(v, "model_type", &type, &ignored)) return;
    if (!strcmp(type, "llama") || !strcmp(type, "mistral") || !strcmp(type, "llava_llama") ||
        !strcmp(type, "llava_mistral"))
        vec_push(&g->eos, 2);
}

static int read_eos(struct generation_config *g, const struct value *v, struct error *e)
{
    const struct value *eos = value_get(v, "eos_token_id");
    const bool list = eos && eos->kind == VALUE_LIST;
    int rc = PL_OK;
    g->has_eos = eos;
    if (!eos || eos->kind == VALUE_NULL) return PL_OK;
    for (uint32_t i = 0; i < (list ? eos->count : 1) && !rc; i++) {
        int64_t id = 0;
        rc = value_as_int(list ? value_at(eos, i) : eos, "eos_token_id", &id, e);
        if (!rc && (id < 0 || id > INT32_MAX))
            rc = error_set(e, PL_USAGE, "eos_token_id has %lld, expected the id of a token", (long long)id);
        if (!rc) vec_push(&g->eos, (int32_t)id);
    }
    return rc;
}

static int read_sampling(struct generation_config *g, const struct value *v, struct error *e)
{
    bool samples = false;
    int rc = value_opt_bool(v, "do_sample", &samples, e);
    if (!rc) rc = value_opt_number(v, "temperature", &g->temperature, e);
    if (!rc) rc = value_opt_int(v, "top_k", &g->sampling.top_k, e);
    if (!rc) rc = value_opt_number(v, "top_p", &g->sampling.top_p, e);
    if (!rc) rc = value_opt_number(v, "repetition_penalty", &g->sampling.repetition_penalty, e);
    if (!rc) rc = value_opt_int(v, "max_new_tokens", &g->max_new, e);
    if (!rc && g->max_new < 0)
        rc = error_set(e, PL_USAGE, "max_new_tokens is %lld, expected a number above 0", (long long)g->max_new);
    g->sampling.temperature = samples ? g->temperature : 0;
    return rc ? rc : sampling_check(&g->sampling, e);
}

/* Reads one file of the folder, if it is there. */
static int read_file(struct generation_config *g, const char *folder, const char *name, bool all, struct error *e)
{
    char path[4200];
    struct bump b = {0};
    struct value *v = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!file_exists(path)) return PL_OK;
    int rc = json_read_file(path, LIMIT, &b, &v, e);
    if (!rc) {
        rc = value_as_map(v, "the file", e);
        if (!rc && all) rc = read_sampling(g, v, e);
        if (!rc && !g->has_eos) rc = read_eos(g, v, e);
        const struct value *text = rc ? NULL : value_get(v, "text_config"); /* of a model of images and text */
        if (text && text->kind != VALUE_MAP) text = NULL;
        if (text && !all && !g->has_eos) rc = read_eos(g, text, e);
        if (!rc && !g->has_eos && !all) default_eos(g, text ? text : v);
        if (rc) error_prepend(e, "%s", path);
    }
    bump_free(&b);
    return rc;
}

int generation_config_read(struct generation_config *g, const char *folder, struct error *e)
{
    *g = (struct generation_config){.temperature = 1, .sampling = {.top_k = 50, .top_p = 1, .repetition_penalty = 1}};
    if (!folder) return PL_OK;
    int rc = read_file(g, folder, "generation_config.json", true, e);
    return rc ? rc : read_file(g, folder, "config.json", false, e);
}

void generation_config_free(struct generation_config *g)
{
    vec_free(&g->eos);
    memset(g, 0, sizeof *g);
}
