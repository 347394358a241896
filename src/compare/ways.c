/*
 * ways.c: the ways in which people fine-tune a model, as keys of a run file (tables.h).
 */
#include "adapter/adapter.h"
#include "base/progress.h"
#include "compare/tables.h"

#define LORA "adapter.target_modules=all-linear", "adapter.r=16"

enum { FULL, FROZEN, LORA_16, LORA_4 };
/* The first one changes nothing; a row without a name ends the table. */
static const struct way ways[] = {
    [FULL] = {"full", "full fine-tuning", {NULL}},
    [FROZEN] = {"frozen", "vision tower frozen", {"model.freeze=vision_tower"}},
    [LORA_16] = {"lora", "LoRA, r 16", {LORA, "model.freeze=[]"}},
    [LORA_4] = {"qlora", "QLoRA, r 16, NF4", {LORA, "model.freeze=[]", "memory.quantize=nf4"}},
    {0},
};

/* Reports whether a way differs from what a run does already: its vision tower can be frozen, it
 * has no adapter, its weights are not in 4 bits. */
static bool way_differs(const struct way *w, const struct config *c, const struct model *m)
{
    const bool adapter = adapter_given(c), quantized = strcmp(c->memory_quantize.value, "none") != 0;
    switch (w - ways) {
    case FROZEN: return (m->images || m->masks) && !c->model_freeze.n && !adapter;
    case LORA_16: return !adapter;
    case LORA_4: return !quantized;
    default: return true;
    }
}

void way_print(const struct way *w, struct text *out)
{
    for (int i = 0; i < WAY_KEYS && w->keys[i]; i++)
        if (!strchr(w->keys[i], '[')) text_printf(out, " --set %s", w->keys[i]); /* an empty list is the default */
}

/* Plans one way on one GPU. */
static int plan_way(const struct plan_source *s, const struct way *w, const char *gpu, struct plan_row *row,
                    struct error *e)
{
    char profile[64], set[96];
    const char *sets[WAY_KEYS + 2] = {"device.kind=cuda", set};
    struct plan_change x = {.sets = sets, .n = 2, .plain = true};
    if (plan_row_gpu(gpu, row, profile, e)) return error_prepend(e, "--gpu");
    snprintf(set, sizeof set, "device.profile=%s", profile);
    for (int i = 0; i < WAY_KEYS && w->keys[i]; i++) sets[x.n++] = w->keys[i];
    x.gpu = row->gpu;
    x.host = offload_likely(row->gpu);
    int rc = plan_row_make(s, &x, row, e);
    x.host = UINT64_MAX / 2;
    return rc || row->fits ? rc : plan_row_make(s, &x, row, e);
}

int plan_ways(const struct plan_source *s, const struct config *c, const struct model *m, const char *gpus,
              struct plan_rows *rows, struct way_list *list, struct error *e)
{
    char words[512], *at = words;
    struct progress progress;
    progress_begin(&progress, "planning", "rows", 0);
    snprintf(words, sizeof words, "%s", gpus);
    for (char *gpu; (gpu = strsep(&at, ","));)
        for (const struct way *w = ways; w->name; w++) {
            struct plan_row row = {0};
            if (!way_differs(w, c, m)) continue;
            const int rc = plan_way(s, w, gpu, &row, e);
            if (rc && (rc != PL_USAGE || w == ways)) return rc;
            if (rc) continue;
            vec_push(&rows->list, row);
            vec_push(&list->list, w);
            progress_add(&progress, 1);
        }
    progress_clear();
    return PL_OK;
}
