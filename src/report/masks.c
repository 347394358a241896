/*
 * masks.c: see masks.h.
 */
#include "report/masks.h"

#include <inttypes.h>

#include "report/page.h"

static void put_chip(struct text *out, struct colour c, bool outline, const char *name)
{
    text_printf(out, "<span><i class='chip' style='%s#%02x%02x%02x'></i>%s</span>\n",
                outline ? "border:2px solid " : "background:", c.r, c.g, c.b, name);
}

void masks_legend(struct text *out)
{
    text_printf(out, "<p class='chips'>");
    put_chip(out, MASKS_PREDICTION, false, "prediction");
    put_chip(out, MASKS_TRUTH, true, "outline of the ground truth");
    put_chip(out, MASKS_PROMPT, false, "prompt");
    text_printf(out, "</p>\n");
}

void masks_caption(struct text *out, double iou, const char *prompt, const char *sample, int64_t mask)
{
    text_printf(out, "<b>IoU %.3f</b>, prompt: ", iou);
    html_escape(out, prompt);
    text_printf(out, "<br><span class='dim'>");
    page_text(out, sample);
    text_printf(out, ", mask %" PRId64 "</span>", mask);
}
