/*
 * rotary.c: tables of rotary positions by the keys of a config.json (see decoder.h).
 */
#include "models/decoder.h"

#include <math.h>

static bool is_given(const struct value *v) { return v && v->kind != VALUE_NULL; }

static int parse_type(struct rotary *r, const struct value *map, struct error *e)
{
    static const char *const names[] = {"default", "linear", "dynamic", "llama3", "yarn", "longrope", "su"};
    const char *type = NULL;
    TRY(value_opt_string(map, "rope_type", &type, e));
    if (!type) TRY(value_opt_string(map, "type", &type, e));
    if (type && r->sectioned && !strcmp(type, "mrope")) type = "default"; /* as Qwen2-VL was published */
    for (size_t i = 0; type; i++) {
        if (i == COUNT(names))
            return error_set(e, PL_USAGE,
                "rope_type \"%s\" is not one of: default, linear, dynamic, llama3, yarn, longrope", type);
        if (strcmp(names[i], type)) continue;
        r->type = (enum rotary_type)min_i64((int64_t)i, ROTARY_LONGROPE); /* su is an older name */
        break;
    }
    /* The first Phi-3 says so. */
    if (r->type == ROTARY_YARN && is_given(value_get(map, "long_factor"))) r->type = ROTARY_LONGROPE;
    return PL_OK;
}

static int parse_factors(struct rotary *r, const struct value *map, double *partial, struct error *e)
{
    const struct {
        const char *key;
        double *to;
    } numbers[] = {
        {"rope_theta", &r->theta}, {"factor", &r->factor},
        {"original_max_position_embeddings", &r->original_positions},
        {"low_freq_factor", &r->low_freq_factor}, {"high_freq_factor", &r->high_freq_factor},
        {"beta_fast", &r->beta_fast}, {"beta_slow", &r->beta_slow},
        {"attention_factor", &r->attention_factor}, {"mscale", &r->mscale},
        {"mscale_all_dim", &r->mscale_all_dim}, {"partial_rotary_factor", partial},
    };
    for (size_t i = 0; i < COUNT(numbers); i++) TRY(value_opt_number(map, numbers[i].key, numbers[i].to, e));
    return value_opt_bool(map, "truncate", &r->truncate, e);
}

/* Parses a list of longrope: a factor for each frequency. */
static int parse_list(const struct rotary *r, const struct value *map, const char *key, struct rotary_sizes s,
                      float **out, struct error *e)
{
    const struct value *list = value_get(map, key);
    const int64_t n = rotary_width(r, s.head_dim) / 2;
    TRY(value_as_list(list, key, e));
    if (list->count != (uint64_t)n)
        return error_set(e, PL_USAGE, "%s has %u entries, expected %lld: one for each frequency", key, list->count,
                         (long long)n);
    *out = bump_alloc(s.memory, (size_t)n * sizeof **out);
    for (int64_t i = 0; i < n; i++) {
        double x;
        TRY(value_as_number(value_at(list, (uint32_t)i), key, &x, e));
        (*out)[i] = (float)x;
    }
    return PL_OK;
}

/* Parses the pairs of each of three positions. */
static int parse_sections(struct rotary *r, const struct value *map, int64_t head_dim, struct error *e)
{
    static const char key[] = "mrope_section";
    const struct value *list = value_get(map, key);
    int64_t *pairs = r->sections.pairs;
    TRY(value_opt_bool(map, "mrope_interleaved", &r->sections.interleaved, e));
    if (!is_given(list)) return PL_OK;
    TRY(value_as_list(list, key, e));
    if (list->count != 3) return error_set(e, PL_USAGE, "%s has %u entries, expected 3", key, list->count);
    for (uint32_t i = 0; i < 3; i++) TRY(value_as_int(value_at(list, i), key, &pairs[i], e));
    if (pairs[0] >= 0 && pairs[1] >= 0 && pairs[2] >= 0 && pairs[0] + pairs[1] + pairs[2] == head_dim / 2) return PL_OK;
    return error_set(e, PL_USAGE,
                     "%s is [%lld, %lld, %lld], expected three counts that add up to %lld, half of head_dim", key,
                     (long long)pairs[0], (long long)pairs[1], (long long)pairs[2], (long long)(head_dim / 2));
}

static int require_positive(const char *name, double x, struct error *e)
{
    if (x > 0 && isfinite(x)) return PL_OK;
    return error_set(e, PL_USAGE, "rope: %s is %g, it must be above 0", name, x);
}

/* Parses a map of the keys of rope_parameters, or with NULL the defaults. The training length that
 * the configuration itself has counts more than the map's. */
static int parse_map(struct rotary *r, const struct value *config, const struct value *map, struct rotary_sizes s,
                     struct error *e)
{
    double partial = 1, original = r->original_positions;
    *r = (struct rotary){.theta = r->theta, .original_positions = (double)s.positions, .partial = r->partial,
                         .sectioned = r->sectioned, .sections = r->sections,
                         .beta_fast = 32, .beta_slow = 1, .truncate = true};
    TRY(value_opt_number(config, "partial_rotary_factor", &partial, e));
    TRY(value_opt_number(config, "original_max_position_embeddings", &original, e));
    if (is_given(map)) {
        TRY(value_as_map(map, "rope_scaling", e));
        TRY(parse_type(r, map, e));
        TRY(parse_factors(r, map, &partial, e));
        if (r->sectioned) TRY(parse_sections(r, map, s.head_dim, e));
        else if (is_given(value_get(map, "mrope_section")))
            return error_set(e, PL_USAGE, "mrope_section: this model's tokens have one position, not three");
    }
    if (partial != 1 && (!r->partial || !(partial > 0 && partial < 1)))
        return error_set(e, PL_USAGE, "partial_rotary_factor %g is not supported: expected %s1", partial,
                         r->partial ? "above 0, at most " : "");
    if (r->partial) r->partial = partial;
    if (original && r->type >= ROTARY_LLAMA3) r->original_positions = original;
    if (r->type == ROTARY_DYNAMIC) r->original_positions = (double)s.positions; /* whatever the map says */
    TRY(require_positive("rope_theta", r->theta, e));
    TRY(require_positive("original_max_position_embeddings", r->original_positions, e));
    if (!r->factor) r->factor = r->type == ROTARY_LONGROPE ? (double)s.positions / r->original_positions : 1;
    TRY(require_positive("factor", r->factor, e));
    if (r->type == ROTARY_LONGROPE) {
        TRY(parse_list(r, map, "short_factor", s, &r->short_factor, e));
        TRY(parse_list(r, map, "long_factor", s, &r->long_factor, e));
    }
    if (r->type != ROTARY_LLAMA3) return PL_OK;
    TRY(require_positive("low_freq_factor", r->low_freq_factor, e));
    return require_positive("high_freq_factor - low_freq_factor", r->high_freq_factor - r->low_freq_factor, e);
}

int rotary_parse(struct rotary *r, const struct value *config, struct rotary_sizes s, struct error *e)
{
    const struct value *map = value_get(config, "rope_scaling");
    if (!is_given(map) || !map->count) map = value_get(config, "rope_parameters");
    if (value_get(map, "full_attention") || value_get(map, "sliding_attention"))
        return error_set(e, PL_USAGE, "rope_parameters has a map for each kind of layer (full_attention, "
                                      "sliding_attention); this model has one table of positions");
    TRY(value_opt_number(config, "rope_theta", &r->theta, e));
    return parse_map(r, config, map, s, e);
}

int rotary_parse_layers(struct rotary r[2], const struct value *config, struct rotary_sizes s, struct error *e)
{
    const struct value *maps = value_get(config, "rope_parameters"), *full = value_get(maps, "full_attention"),
                       *sliding = value_get(maps, "sliding_attention");
    if (is_given(maps) && !is_given(full) && !is_given(sliding))
        return error_set(e, PL_USAGE, "rope_parameters has neither full_attention nor sliding_attention, "
                                      "which a model with two kinds of layers needs");
    if (is_given(maps) && is_given(value_get(config, "rope_scaling")))
        return error_set(e, PL_USAGE, "rope_parameters and rope_scaling are both given: leave one of them out");
    TRY(value_opt_number(config, "rope_theta", &r[0].theta, e));
    TRY(parse_map(&r[0], config, is_given(maps) ? full : value_get(config, "rope_scaling"), s, e));
    TRY(value_opt_number(config, "rope_local_base_freq", &r[1].theta, e));
    return parse_map(&r[1], config, sliding, s, e);
}

int64_t rotary_width(const struct rotary *r, int64_t head_dim)
{
    return r->partial ? (int64_t)((double)head_dim * r->partial) : head_dim;
}

/* Scales long wavelengths by the factor and keeps short ones, with a ramp in between. */
static double llama3_frequency(const struct rotary *r, double f)
{
    double wave = 2 * M_PI / f, turns = r->original_positions / wave;
    if (turns < r->low_freq_factor) return f / r->factor;
    if (turns > r->high_freq_factor) return f;
    double smooth = (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * f / r->factor + smooth * f;
}

/* Returns the dimension with a wave that makes `turns` turns over the original length. */
static double yarn_dimension(const struct rotary *r, double turns, double D)
{
    return D * log(r->original_positions / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static double yarn_frequency(const struct rotary *r, double f, double i, double D)
{
    double low = yarn_dimension(r, r->beta_fast, D), high = yarn_dimension(r, r->beta_slow, D);
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, D - 1);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
    return f / r->factor * ramp + f * (1 - ramp);
}

static double yarn_scale(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1; }

static double yarn_attention(const struct rotary *r)
{
    if (r->attention_factor > 0) return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return yarn_scale(r->factor, r->mscale) / yarn_scale(r->factor, r->mscale_all_dim);
    return yarn_scale(r->factor, 1);
}

static double longrope_attention(const struct rotary *r)
{
    if (r->attention_factor > 0) return r->attention_factor;
    return r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log(r->original_positions));
}

float rotary_table(const struct rotary *r, int64_t head_dim, int64_t T, float *inv_freq)
{
    const int64_t width = rotary_width(r, head_dim);
    const float *stretch = (double)T > r->original_positions ? r->long_factor : r->short_factor;
    double D = (double)width, theta = r->theta;
    if (r->type == ROTARY_DYNAMIC && (double)T > r->original_positions && width > 2)
        theta *= pow(r->factor * (double)T / r->original_positions - (r->factor - 1), D / (D - 2));
    for (int64_t i = 0; i < width / 2; i++) {
        double f = pow(theta, -2.0 * (double)i / D);
        if (r->type == ROTARY_LINEAR) f /= r->factor;
        if (r->type == ROTARY_LLAMA3) f = llama3_frequency(r, f);
        if (r->type == ROTARY_YARN) f = yarn_frequency(r, f, (double)i, D);
        if (r->type == ROTARY_LONGROPE) f /= (double)stretch[i];
        inv_freq[i] = (float)f;
    }
    if (r->type == ROTARY_LONGROPE) return (float)longrope_attention(r);
    return r->type == ROTARY_YARN ? (float)yarn_attention(r) : 1;
}

bool rotary_follows_length(const struct rotary *r) { return r->type == ROTARY_DYNAMIC || r->type == ROTARY_LONGROPE; }
