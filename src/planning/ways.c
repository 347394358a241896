/*
 * ways.c: see ways.h.
 */
#include "planning/ways.h"

#include "adapter/adapter.h"

#define LORA "adapter.target_modules=all-linear", "adapter.r=16"

enum { FULL, FROZEN, LORA_16, LORA_4 };
const struct way ways[] = {
    [FULL] = {"full", "full fine-tuning", {NULL}},
    [FROZEN] = {"frozen", "vision tower frozen", {"model.freeze=vision_tower"}},
    [LORA_16] = {"lora", "LoRA, r 16", {LORA, "model.freeze=[]"}},
    [LORA_4] = {"qlora", "QLoRA, r 16, NF4", {LORA, "model.freeze=[]", "memory.quantize=nf4"}},
    {0},
};

bool way_differs(const struct way *w, const struct config *c, const struct model *m)
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
