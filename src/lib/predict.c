/*
 * predict.c: masks of an image for users of the library (the contract is in plimsoll.h).
 *
 * The predictor keeps the logits of the last call, from which pl_mask makes masks.
 */
#include "plimsoll.h"

#include "infer/predictor.h"
#include "io/file.h"
#include "lib/session.h"

enum { SIDE_MOST = 1 << 15, PROMPTS_AT_ONCE = 4096, POINTS_MOST = 4096 };

struct session_predictor {
    struct config config;      /* the session's, in f32 unless a precision was chosen */
    struct predictor predictor;
    int64_t prompts;           /* of the last call */
    int32_t *best;             /* [prompts] */
    bool open;
};

static void drop_predictor(struct pl_session *s)
{
    struct session_predictor *x = s->predictor;
    if (x->open) predictor_close(&x->predictor);
    mem_free(x->best);
    mem_free(x);
    s->predictor = NULL;
}

/* --- arguments ------------------------------------------------------------------------------ */

static int check_prompts(const struct pl_prompt *p, size_t n, struct error *e)
{
    if (!p || !n || n > PROMPTS_AT_ONCE)
        return error_set(e, PL_USAGE, "%zu prompts, expected 1 to %d", p ? n : 0, PROMPTS_AT_ONCE);
    for (size_t i = 0; i < n; i++) {
        if (p[i].size != p[0].size || p[i].n_points != p[0].n_points || !p[i].box != !p[0].box)
            return error_set(e, PL_USAGE, "prompt %zu has other points than prompt 0, or only one of them has a box",
                             i);
        if (p[i].n_points > POINTS_MOST || (p[i].n_points && (!p[i].points || !p[i].labels)) ||
            !(p[i].n_points || p[i].box))
            return error_set(e, PL_USAGE, "prompt %zu has neither points with labels nor a box", i);
        for (size_t k = 0; k < p[i].n_points; k++)
            if (p[i].labels[k] != 0 && p[i].labels[k] != 1)
                return error_set(e, PL_USAGE, "label %zu of prompt %zu is %d, expected 1 (foreground) or 0", k, i,
                                 p[i].labels[k]);
    }
    return PL_OK;
}

static int read_image(const struct pl_image *of, const struct pixel_range *range, struct image *out, struct error *e)
{
    if (!of->path == !of->rgb) return error_set(e, PL_USAGE, "expected an image as path or as rgb, one of the two");
    if (of->path) return image_read(out, of->path, range, e);
    if (of->width < 1 || of->height < 1 || of->width > SIDE_MOST || of->height > SIDE_MOST)
        return error_set(e, PL_USAGE, "an image of %lld x %lld, expected sides of 1 to %d", (long long)of->width,
                         (long long)of->height, SIDE_MOST);
    *out = (struct image){.width = (uint32_t)of->width, .height = (uint32_t)of->height};
    out->rgb = mem_copy(of->rgb, (size_t)(of->width * of->height * 3));
    return PL_OK;
}

/* --- the call ------------------------------------------------------------------------------- */

static int run_prompts(struct session_predictor *x, const struct pl_prompt *prompts, size_t n, struct error *e)
{
    struct predictor_prompt *all = mem_alloc(n * sizeof *all);
    for (size_t i = 0; i < n; i++) {
        all[i].points = (const float (*)[2])(const void *)prompts[i].points;
        all[i].labels = prompts[i].labels;
        if (prompts[i].box) memcpy(all[i].box, prompts[i].box, sizeof all[i].box);
    }
    const int rc = predictor_run(&x->predictor, all, (int64_t)n, e);
    mem_free(all);
    return rc;
}

static int predict(struct pl_session *s, const struct pl_image *of, const struct pl_prompt *prompts, size_t n,
                   int single, struct pl_masks *out)
{
    struct error *e = &s->error;
    struct image image = {0};
    struct image_reading reading = {0};
    TRY(check_prompts(prompts, n, e));
    TRY(config_check(&s->config, CONFIG_NEEDS_MODEL, e));
    session_evict(s); /* the budget is for one of them */
    struct session_predictor *x = s->predictor = mem_alloc(sizeof *x);
    s->evict = drop_predictor;
    x->config = s->config;
    if (!x->config.memory_precision.chosen) x->config.memory_precision = (struct config_setting){true, "f32"};
    image_reading_find(&reading, &x->config);
    TRY(read_image(of, &reading.range, &image, e));
    const struct predictor_shape shape = {.prompts = (int64_t)n,
                                          .points = (int64_t)prompts[0].n_points,
                                          .box = prompts[0].box != NULL,
                                          .single = single != 0,
                                          .side = reading.side};
    int rc = predictor_open(&x->predictor, &x->config, &image, &shape, e);
    x->open = !rc;
    if (!rc) rc = run_prompts(x, prompts, n, e);
    image_free(&image);
    if (rc) return rc;
    x->prompts = (int64_t)n;
    x->best = mem_alloc(n * sizeof *x->best);
    for (size_t i = 0; i < n; i++) x->best[i] = (int32_t)predictor_best(&x->predictor, (int64_t)i);
    const struct pl_masks masks = {.size = sizeof masks,
                                   .width = x->predictor.w,
                                   .height = x->predictor.h,
                                   .prompts = x->prompts,
                                   .candidates = x->predictor.candidates,
                                   .scores = x->predictor.scores,
                                   .best = x->best,
                                   .arena_bytes = x->predictor.encoder_bytes > x->predictor.decoder_bytes
                                                      ? x->predictor.encoder_bytes
                                                      : x->predictor.decoder_bytes};
    session_give(out, &masks, sizeof masks);
    return PL_OK;
}

int pl_predict(struct pl_session *s, const struct pl_image *image, const struct pl_prompt *prompts, size_t n,
               int single, struct pl_masks *out)
{
    ENTER(s);
    const char *call = "pl_predict";
    struct pl_image of;
    if (session_sized(s, call, out, sizeof *out) || session_sized(s, call, image, sizeof *image)) return s->error.code;
    if (prompts && n && session_sized(s, call, prompts, sizeof *prompts)) return s->error.code;
    if (prompts && n && prompts->size != sizeof *prompts)
        return error_set(&s->error, PL_USAGE, "%s: a prompt has %zu bytes, here %zu", call, prompts->size,
                         sizeof *prompts);
    if (s->stage == STAGE_STARTED)
        return error_set(&s->error, PL_USAGE, "%s: the session is started, so its memory is in use; open another",
                         call);
    session_take(&of, image, sizeof of);
    session_give(out, &(struct pl_masks){.size = sizeof *out}, sizeof *out);
    if (!predict(s, &of, prompts, n, single, out)) return PL_OK;
    session_evict(s);
    return error_prepend(&s->error, "%s", call);
}

int pl_mask(struct pl_session *s, int64_t prompt, int64_t candidate, uint8_t *mask, uint64_t bytes)
{
    ENTER(s);
    struct session_predictor *x = s->predictor;
    if (!x) return error_set(&s->error, PL_USAGE, "pl_mask: nothing is predicted; call pl_predict first");
    if (!mask || prompt < 0 || prompt >= x->prompts || candidate < -1 || candidate >= x->predictor.candidates)
        return error_set(&s->error, PL_USAGE, "pl_mask: prompt %lld, candidate %lld; there are %lld and %lld",
                         (long long)prompt, (long long)candidate, (long long)x->prompts,
                         (long long)x->predictor.candidates);
    const uint64_t want = (uint64_t)x->predictor.w * x->predictor.h;
    if (bytes != want)
        return error_set(&s->error, PL_USAGE, "pl_mask: %llu bytes, expected %llu: a byte for each pixel",
                         (unsigned long long)bytes, (unsigned long long)want);
    predictor_mask(&x->predictor, prompt, candidate < 0 ? x->best[prompt] : candidate, 0, mask);
    return PL_OK;
}
