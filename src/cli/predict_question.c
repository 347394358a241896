/*
 * predict_question.c: `plimsoll predict --question`: the mask and the answer of a PRS-Med model.
 */
#include <stdio.h>

#include "cli/predict.h"
#include "infer/ask.h"
#include "io/json.h"
#include "io/png.h"

enum { NEW_TOKENS = 128 };

static int write_results(const struct predict *p, struct predictor *m, const struct answer *a, struct error *e)
{
    const uint32_t w = m->w, h = m->h;
    uint8_t *mask = mem_alloc((size_t)w * h);
    const struct predictor_prompt none = {0};
    struct traced t = {0};
    struct text out = {0};
    struct json_writer json = {.out = &out};
    predictor_mask(m, 0, 0, 0, mask);
    predict_trace(&t, mask, w, h);
    int rc = png_write(p->output, PNG_BITS, w, h, mask, 0, e);
    if (!rc && p->overlay)
        rc = predict_overlay(p, p->overlay, &(struct predict_drawn){.mask = mask, .prompt = &none}, e);
    json_begin_map(&json, NULL);
    json_put_string(&json, "question", p->question);
    json_put_bytes(&json, "answer", a->text.n ? a->text.at : "", a->text.n);
    json_put_string(&json, "finish", generate_end_name(a->end));
    predict_put_mask_as(&json, "mask", &t, w, h);
    json_end(&json);
    text_printf(&out, "\n");
    if (!rc && p->json) rc = file_write_atomic(p->json, out.at, out.n, e);
    if (!rc) printf("%s\n%s: %u of %u x %u pixels\n", a->text.n ? a->text.at : "", p->output, t.area, w, h);
    trace_free(&t);
    text_free(&out);
    mem_free(mask);
    return rc;
}

int predict_question(struct predict *p, struct error *e)
{
    struct ask a;
    struct predictor mask = {0};
    struct answer answer = {0};
    if (p->side) p->config.data_image_size = (int64_t)p->side; /* of the model's run */
    int rc = ask_open(&a, &p->config, p->image_path, p->question, e);
    if (!rc) rc = ask_mask(&a, &p->image, &mask, e);
    if (!rc) rc = ask_answer(&a, p->max_new ? (int64_t)p->max_new : NEW_TOKENS, &answer, e);
    if (!rc) rc = write_results(p, &mask, &answer, e);
    answer_free(&answer);
    ask_mask_free(&mask);
    ask_close(&a);
    return rc;
}
