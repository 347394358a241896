/*
 * rotary.c: tables of rotary positions by the keys of a config.json (see rotary.h).
 */
#include "models/rotary.h"

#include <math.h>
#include <string.h>

static int parse_type(struct rotary *r, const struct value *map, struct error *e)
{
    static const char *const names[] = {"default", "linear", "dynamic", "llama3", "yarn"};
    const char *type = NULL;
    int rc = value_opt_string(map, "rope_type", &type, e);
    if (!rc && !type) rc = value_opt_string(map, "type", &type, e);
    if (rc || !type) return rc;
    for (size_t i = 0; i < COUNT(names); i++)
        if (!strcmp(names[i], type)) {
            r->type = (enum rotary_type)i;
            return PL_OK;
        }
    return error_set(e, PL_USAGE, "rope type \"%s\" is not one of: default, linear, dynamic, llama3, yarn", type);
}

static int parse_factors(struct rotary *r, const struct value *map, struct error *e)
{
    double partial = 1;
    int rc = PL_OK;
    const struct {
        const char *key;
        double *to;
    } numbers[] = {
        {"rope_theta", &r->theta}, {"factor", &r->factor},
        {"original_max_position_embeddings", &r->original_positions},
        {"low_freq_factor", &r->low_freq_factor}, {"high_freq_factor", &r->high_freq_factor},
        {"beta_fast", &r->beta_fast}, {"beta_slow", &r->beta_slow},
        {"attention_factor", &r->attention_factor}, {"mscale", &r->mscale},
        {"mscale_all_dim", &r->mscale_all_dim}, {"partial_rotary_factor", &partial},
    };
    for (size_t i = 0; i < COUNT(numbers) && !rc; i++) rc = value_opt_number(map, numbers[i].key, numbers[i].to, e);
    if (!rc) rc = value_opt_bool(map, "truncate", &r->truncate, e);
    if (!rc && partial != 1)
        rc = error_set(e, PL_USAGE, "partial_rotary_factor %g is not supported: expected 1", partial);
    return rc;
}

static int require_positive(const char *name, double x, struct error *e)
{
    if (x > 0 && isfinite(x)) return PL_OK;
    return error_set(e, PL_USAGE, "rope: %s is %g, it must be above 0", name, x);
}

int rotary_parse(struct rotary *r, const struct value *config, int64_t positions, struct error *e)
{
    *r = (struct rotary){.theta = r->theta, .factor = 1, .original_positions = (double)positions,
                         .beta_fast = 32, .beta_slow = 1, .truncate = true};
    int rc = value_opt_number(config, "rope_theta", &r->theta, e);
    const struct value *map = value_get(config, "rope_parameters");
    if (!map || map->kind == VALUE_NULL) map = value_get(config, "rope_scaling");
    if (!rc && map && map->kind != VALUE_NULL) {
        rc = value_as_map(map, "rope_scaling", e);
        if (!rc) rc = parse_type(r, map, e);
        if (!rc) rc = parse_factors(r, map, e);
    }
    if (!rc) rc = require_positive("rope_theta", r->theta, e);
    if (!rc) rc = require_positive("factor", r->factor, e);
    if (!rc) rc = require_positive("original_max_position_embeddings", r->original_positions, e);
    if (!rc && r->type == ROTARY_LLAMA3) rc = require_positive("low_freq_factor", r->low_freq_factor, e);
    if (!rc && r->type == ROTARY_LLAMA3)
        rc = require_positive("high_freq_factor - low_freq_factor", r->high_freq_factor - r->low_freq_factor, e);
    return rc;
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

float rotary_table(const struct rotary *r, int64_t head_dim, int64_t T, float *inv_freq)
{
    double D = (double)head_dim, theta = r->theta;
    if (r->type == ROTARY_DYNAMIC && (double)T > r->original_positions && head_dim > 2)
        theta *= pow(r->factor * (double)T / r->original_positions - (r->factor - 1), D / (D - 2));
    for (int64_t i = 0; i < head_dim / 2; i++) {
        double f = pow(theta, -2.0 * (double)i / D);
        if (r->type == ROTARY_LINEAR) f /= r->factor;
        if (r->type == ROTARY_LLAMA3) f = llama3_frequency(r, f);
        if (r->type == ROTARY_YARN) f = yarn_frequency(r, f, (double)i, D);
        inv_freq[i] = (float)f;
    }
    return r->type == ROTARY_YARN ? (float)yarn_attention(r) : 1;
}

bool rotary_follows_length(const struct rotary *r) { return r->type == ROTARY_DYNAMIC; }
