/*
 * fuzz_prompts.c: any bytes as a file of prompts, as a table and as COCO. Every prompt names an
 * image and has a box or points, whose numbers are finite; prompts of an image stand together, an
 * id among them once; a failure has a message.
 */
#include <math.h>

#include "infer/many.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_prompt(const struct image_prompt *q)
{
    CHECK(*q->image && (q->box || q->n), "a prompt without an image, or nothing to prompt with");
    for (int k = 0; k < 4; k++) CHECK(isfinite(q->corners[k]), "a box without an end");
    for (uint32_t i = 0; i < q->n; i++) {
        CHECK(isfinite(q->points[i][0]) && isfinite(q->points[i][1]), "a point that is nowhere");
        CHECK(q->labels[i] == 0 || q->labels[i] == 1);
    }
}

static void check_parse(const uint8_t *data, size_t size, bool json)
{
    char *text = mem_alloc(size + 1);
    if (size) memcpy(text, data, size);
    struct image_prompts p;
    struct error e = {0};
    const int rc = image_prompts_parse(&p, text, size, json, &e);
    mem_free(text); /* nothing points into it */
    CHECK(rc ? rc == PL_USAGE && e.text[0] : p.all.n > 0, "a failure without a message, or nothing at all");
    for (uint32_t i = 0; i < p.all.n; i++) {
        const struct image_prompt *q = &p.all.at[i];
        check_prompt(q);
        for (uint32_t k = 0; k < i; k++) {
            const int order = strcmp(p.all.at[k].image, q->image);
            CHECK(order < 0 || (!order && (!*q->id || strcmp(p.all.at[k].id, q->id))),
                  "images out of order, or an id twice");
        }
    }
    image_prompts_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_parse(data, size, false);
    check_parse(data, size, true);
    return 0;
}
