/*
 * answers.c: see answers.h.
 */
#include "infer/answers.h"
#include "data/text/records.h"

#include "feed/text_source.h"

int answers_open(struct held_out *h, const struct config *c, const struct question_limits *most, struct error *e)
{
    struct text_scope x;
    *h = (struct held_out){0};
    int rc = text_scope_open(&x, c, FEED_VALIDATION, e);
    if (!rc) rc = generation_config_read(&h->folder, c->model_path, e);
    if (!rc) rc = prompts_open(&h->prompts, c, &x.scope, e);
    if (!rc && h->prompts.has_images && image_files_store(h->prompts.images.files))
        rc = error_set(e, PL_USAGE,
                       "%s has embeddings of images, and answers need the images, which the vision tower sees: set "
                       "data.images to their folder or tar",
                       x.where.at);
    if (!rc) rc = questions_read(&h->questions, c, &h->prompts, most, e);
    text_scope_close(&x);
    if (rc) return rc;
    const int32_t eos = tokenizer_eos(h->prompts.tokenizer); /* the end of a turn in many templates */
    if (eos >= 0) vec_push(&h->folder.eos, eos);
    return PL_OK;
}

void answers_close(struct held_out *h)
{
    questions_free(&h->questions);
    prompts_close(&h->prompts);
    generation_config_free(&h->folder);
}

struct generate_options answers_options(const struct held_out *h, int64_t tokens)
{
    return (struct generate_options){.sampling = {.top_p = 1, .repetition_penalty = 1},
                                     .most = tokens,
                                     .ends = h->folder.eos.at,
                                     .n_ends = h->folder.eos.n,
                                     .tokenizer = h->prompts.tokenizer,
                                     .images = h->prompts.has_images ? &h->prompts.images : NULL};
}

void answers_put_scores(struct json_writer *w, const struct text_scores *s)
{
    const struct text_score x = text_scores_result(s);
    json_put_number(w, "exact_match", x.exact);
    json_put_number(w, "token_f1", x.f1);
    json_put_number(w, "bleu", x.bleu);
    json_put_number(w, "rouge_l", x.rouge_l);
}

void answers_put_line(struct text *out, const struct held_out *h, uint32_t file, uint32_t i, const struct answer *a,
                      const struct text_scores *one)
{
    const struct questions *q = &h->questions;
    const uint32_t number = q->file[file].first + i;
    struct json_writer w = {.out = out};
    json_begin_map(&w, NULL);
    json_put_string(&w, "file", q->files.at[file]);
    json_put_uint(&w, "line", record_line(q->asked.at[number].line));
    const struct prompt *p = &q->at.at[number].prompt;
    if (p->n_images) json_begin_list(&w, "images");
    for (uint32_t k = 0; k < p->n_images; k++) json_put_string(&w, NULL, p->images[k]);
    if (p->n_images) json_end(&w);
    json_put_value(&w, "prompt", q->asked.at[number].prompt);
    json_put_bytes(&w, "answer", a->text.n ? a->text.at : "", a->text.n);
    json_put_string(&w, "reference", q->at.at[number].reference);
    json_put_string(&w, "finish", generate_end_name(a->end));
    answers_put_scores(&w, one);
    json_end(&w);
    text_printf(out, "\n");
}
