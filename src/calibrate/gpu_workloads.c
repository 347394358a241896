/*
 * gpu_workloads.c: the workloads that measure a GPU (calibrate_gpu.h). Widths, heads, windows and
 * tokens are those of the presets; two layers contain each kind of node and keep it short.
 */
#include <stdio.h>
#include <string.h>

#include "calibrate/calibrate_gpu.h"
#include "feed/feed.h"

#define LLAMA(vocabulary, hidden, inner, layers, heads, kv_heads)                                                           \
    "{\"model_type\": \"llama\", \"vocab_size\": " #vocabulary ", \"hidden_size\": " #hidden ", \"intermediate_size\": " #inner \
    ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv_heads       \
    ", \"max_position_embeddings\": 4096, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, "      \
    "\"tie_word_embeddings\": true}"
#define SAM(hidden, heads, inner)                                                                                           \
    "{\"model_type\": \"sam\", \"initializer_range\": 0.02, \"vision_config\": {\"model_type\": \"sam_vision_model\", "         \
    "\"hidden_size\": " #hidden ", \"num_hidden_layers\": 2, \"num_attention_heads\": " #heads ", \"mlp_dim\": " #inner      \
    ", \"global_attn_indexes\": [1], \"window_size\": 14, \"image_size\": 1024, \"patch_size\": 16, \"output_channels\": 256, " \
    "\"num_pos_feats\": 128, \"hidden_act\": \"gelu\", \"layer_norm_eps\": 1e-06}, \"prompt_encoder_config\": "             \
    "{\"model_type\": \"sam_prompt_encoder\", \"hidden_size\": 256, \"image_size\": 1024, \"patch_size\": 16}, "              \
    "\"mask_decoder_config\": {\"model_type\": \"sam_mask_decoder\", \"hidden_size\": 256, \"mlp_dim\": 2048}}"
#define VIT_B SAM(768, 12, 3072)
#define VIT_L SAM(1024, 16, 4096)
#define VIT_H SAM(1280, 16, 5120)
#define LM_1B LLAMA(32000, 2048, 5632, 2, 32, 4)
#define LM_7B LLAMA(32000, 4096, 11008, 1, 32, 32)
#define LORA "adapter.target_modules=all-linear"
#define LM_124M LLAMA(50257, 768, 2048, 2, 12, 12)

/* The first ones are small, so that a GPU that cannot run any of them fails at once. */
static const struct workload {
    const char *name, *preset, *config;
    int batch, sequence, chunks;
    const char *set[3];      /* more settings */
    bool full;               /* f32 */
} workloads[] = {
    {"sam-tiny", "sam-tiny", NULL, 4, 2, 1, {0}, false},
    {"llama-tiny", "llama-tiny", NULL, 8, 256, 1, {0}, false},
    {"ViT-B, 1 image", NULL, VIT_B, 1, 2, 1, {0}, false},
    {"ViT-B, 4 images", NULL, VIT_B, 4, 2, 1, {0}, false},
    {"ViT-B, 8 images", NULL, VIT_B, 8, 2, 2, {0}, false},
    {"ViT-B, 1 image, 32 masks", NULL, VIT_B, 1, 2, 1, {"data.format=sa1b"}, false},
    {"ViT-B, 8 images, 32 masks", NULL, VIT_B, 8, 2, 1, {"data.format=sa1b"}, false},
    {"ViT-H, 1 image", NULL, VIT_H, 1, 2, 1, {0}, false},
    {"ViT-H, 1 image, decoder in 8 chunks", NULL, VIT_H, 1, 2, 8, {0}, false},
    {"ViT-H, 2 images", NULL, VIT_H, 2, 2, 1, {0}, false},
    {"ViT-H, 4 images", NULL, VIT_H, 4, 2, 1, {0}, false},
    {"ViT-H, 8 images", NULL, VIT_H, 8, 2, 2, {0}, false},
    {"1.1 B, 1 x 2048", NULL, LM_1B, 1, 2048, 1, {0}, false},
    {"1.1 B, 4 x 2048", NULL, LM_1B, 4, 2048, 1, {0}, false},
    {"1.1 B, 8 x 2048", NULL, LM_1B, 8, 2048, 1, {0}, false},
    {"1.1 B, 8 x 2048, head in 8 chunks", NULL, LM_1B, 8, 2048, 8, {"memory.precision=bf16-pure"}, false},
    {"ViT-H with everything offloaded",
     NULL,
     VIT_H,
     2,
     2,
     1,
     {"memory.offload=[optimizer, masters, weights, activations]"},
     false},
    {"1.1 B with everything offloaded",
     NULL,
     LM_1B,
     4,
     2048,
     1,
     {"memory.offload=[optimizer, masters, weights, activations]"},
     false},
    {"7 B, 4 x 2048, LoRA", NULL, LM_7B, 4, 2048, 4, {LORA, "adapter.r=16"}, false},
    {"7 B, 1 x 2048, LoRA on NF4", NULL, LM_7B, 1, 2048, 1, {LORA, "adapter.r=16", "memory.quantize=nf4"}, false},
    {"ViT-H, 2 images, LoRA", NULL, VIT_H, 2, 2, 1, {LORA, "adapter.r=16"}, false},
    {"1.1 B, 8-bit state", NULL, LM_1B, 1, 512, 1, {"memory.optimizer=adamw-8bit"}, false},
    {"1.1 B, bf16 state", NULL, LM_1B, 1, 512, 1, {"memory.optimizer=adamw-bf16"}, false},
    {"TinySAM, 2 images", "tinysam", NULL, 2, 2, 1, {0}, false},
    {"TinySAM, 8 images", "tinysam", NULL, 8, 2, 1, {0}, false},
    {"7 B, 1 x 2048", NULL, LM_7B, 1, 2048, 1, {0}, false},
    {"7 B, 4 x 2048", NULL, LM_7B, 4, 2048, 4, {0}, false},
    {"1.1 B, 2 tokens, as a token of an answer", NULL, LM_1B, 1, 2, 1, {0}, false},
    {"7 B, 2 tokens, as a token of an answer", NULL, LM_7B, 1, 2, 1, {0}, false},
    {"0.5 B with 152 k tokens, head in 2 chunks", "qwen2-0.5b", NULL, 4, 2048, 2, {0}, false},
    {"0.5 B with 152 k tokens, head in 8 chunks", "qwen2-0.5b", NULL, 4, 2048, 8, {0}, false},
    {"124 M, 16 x 1024", NULL, LM_124M, 16, 1024, 1, {0}, false},
    {"SigLIP, 32 images", "siglip-base-16-224", NULL, 32, 2, 1, {0}, false},
    {"ViT-L, 2 images", NULL, VIT_L, 2, 2, 1, {0}, false},
    {"ViT-B in f32, 1 image", NULL, VIT_B, 1, 2, 1, {0}, true},
    {"124 M in f32, 4 x 1024", NULL, LM_124M, 4, 1024, 1, {0}, true},
};

/* Every key is set, so that the planner has nothing to search. */
static int set_all(struct config *c, const struct workload *w, enum dtype half, struct error *e)
{
    static const char *const always[] = {"device.kind=cuda",      "device.profile=default", "memory.recompute=none",
                                         "memory.fused_step=off", "memory.offload=none",    "memory.host_budget=none",
                                         "data.max_masks=32",     "train.clip_norm=1"};
    char sets[5][64];
    int n = 0, rc = PL_OK;
    snprintf(sets[n++], 64, "data.sequence=%d", w->sequence);
    snprintf(sets[n++], 64, "train.effective_batch=%d", w->batch);
    snprintf(sets[n++], 64, "memory.micro_batch=%d", w->batch);
    snprintf(sets[n++], 64, "memory.head_chunks=%d", w->chunks);
    snprintf(sets[n++], 64, "memory.precision=%s", dtype_name(w->full ? DT_F32 : half));
    for (size_t i = 0; i < COUNT(always) && !rc; i++) rc = config_set(c, always[i], e);
    for (int i = 0; i < n && !rc; i++) rc = config_set(c, sets[i], e);
    for (size_t i = 0; i < COUNT(w->set) && w->set[i] && !rc; i++) rc = config_set(c, w->set[i], e);
    if (!rc && w->preset) {
        snprintf(sets[0], 64, "model.preset=%s", w->preset);
        rc = config_set(c, sets[0], e);
    }
    return rc;
}

bool gpu_workload(int i, enum dtype half, struct config *c, struct run_options *o, const char **name, struct error *e)
{
    if (i >= (int)COUNT(workloads)) return false;
    *name = workloads[i].name;
    *o = (struct run_options){.train = true, .describe = feed_describe, .probe = true, .config_json = workloads[i].config};
    e->code = PL_OK;
    config_init(c);
    if (set_all(c, &workloads[i], half, e)) error_prepend(e, "%s", *name);
    return true;
}
