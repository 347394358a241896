/*
 * data_samples.c: see data_samples.h.
 */
#include "cli/data_samples.h"

#include <inttypes.h>
#include <math.h>

/* Returns the number of a word of a list that ends with NULL; -1: it is none of them. */
static int find_word(const char *word, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(word, words[i])) return i;
    return -1;
}

static int parse_range(const char *word, struct pixel_range *to, struct error *e)
{
    const int kind = word ? find_word(word, (const char *const[]){"auto", "full", "percentiles", NULL}) : 0;
    char end;
    *to = (struct pixel_range){.kind = kind < 0 ? RANGE_WINDOW : (enum range_kind)kind, .percentiles = {0.5, 99.5}};
    if (kind >= 0 ||
        (sscanf(word, "%lf,%lf%c", &to->window[0], &to->window[1], &end) == 2 && to->window[0] < to->window[1] &&
         isfinite(to->window[0]) && isfinite(to->window[1])))
        return PL_OK;
    return error_set(
        e, PL_USAGE,
        "--range %s: expected auto, full, percentiles, or two values, the smaller one first, such as 0,4095", word);
}

int samples_options_read(struct samples_options *o, struct error *e)
{
    struct slice_options *s = &o->set.slices;
    int64_t *m = o->numbers;
    const int labels =
        o->labels ? find_word(o->labels, (const char *const[]){"auto", "binary", "classes", "instances", NULL}) : 0;
    const int axis =
        o->slice_axis ? find_word(o->slice_axis, (const char *const[]){"axial", "coronal", "sagittal", NULL}) : 0;
    if (labels < 0)
        return error_set(e, PL_USAGE, "--labels %s: expected auto, binary, classes or instances", o->labels);
    if (axis < 0) return error_set(e, PL_USAGE, "--slice-axis %s: expected axial, coronal or sagittal", o->slice_axis);
    o->set.labels = (enum label_kind)labels, s->axis = (enum volume_axis)axis;
    o->set.ignore = (int)min_u64(o->ignore, 65535);
    o->set.threshold = (uint32_t)min_u64(o->threshold, 65535);
    TRY(parse_range(o->range, &o->set.range, e));
    if (!o->modalities) return PL_OK;
    char end;
    const int n = sscanf(o->modalities, "%" SCNd64 ",%" SCNd64 ",%" SCNd64 "%c", &m[0], &m[1], &m[2], &end);
    bool fits = n == 1 || n == 3;
    for (int i = 0; i < n && i < 3; i++) fits &= m[i] >= 0 && m[i] <= 9999;
    s->modalities = m, s->n_modalities = (uint32_t)n;
    return fits ? PL_OK
                : error_set(e, PL_USAGE,
                            "--modalities %s: expected the number of one modality, or of three, such as 0,1,2",
                            o->modalities);
}
