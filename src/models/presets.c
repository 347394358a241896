/*
 * presets.c: see presets.h. The texts are written into model folders as they
 * are, so they are what transformers expects to read.
 */
#include <stddef.h>

#include "models/presets.h"

/* Sizes vary, the rest is the same in every Llama preset. */
#define LLAMA(vocabulary, hidden, inner, layers, heads, kv_heads, positions, tied)                                  \
    "{\n"                                                                                                           \
    "  \"architectures\": [\"LlamaForCausalLM\"],\n"                                                                \
    "  \"model_type\": \"llama\",\n"                                                                                \
    "  \"vocab_size\": " #vocabulary ",\n"                                                                          \
    "  \"hidden_size\": " #hidden ",\n"                                                                             \
    "  \"intermediate_size\": " #inner ",\n"                                                                        \
    "  \"num_hidden_layers\": " #layers ",\n"                                                                       \
    "  \"num_attention_heads\": " #heads ",\n"                                                                      \
    "  \"num_key_value_heads\": " #kv_heads ",\n"                                                                   \
    "  \"max_position_embeddings\": " #positions ",\n"                                                              \
    "  \"hidden_act\": \"silu\",\n"                                                                                 \
    "  \"rms_norm_eps\": 1e-05,\n"                                                                                  \
    "  \"rope_theta\": 10000.0,\n"                                                                                  \
    "  \"initializer_range\": 0.02,\n"                                                                              \
    "  \"attention_bias\": false,\n"                                                                                \
    "  \"mlp_bias\": false,\n"                                                                                      \
    "  \"tie_word_embeddings\": " #tied ",\n"                                                                       \
    "  \"torch_dtype\": \"float32\"\n"                                                                              \
    "}\n"

/* A vision tower alone, the base size of its kind with patches of 16 pixels. */
#define TOWER(class, type, act, eps)                                                                                \
    "{\n"                                                                                                           \
    "  \"architectures\": [\"" class "\"],\n"                                                                        \
    "  \"model_type\": \"" type "\",\n"                                                                              \
    "  \"hidden_size\": 768,\n"                                                                                     \
    "  \"intermediate_size\": 3072,\n"                                                                              \
    "  \"num_hidden_layers\": 12,\n"                                                                                \
    "  \"num_attention_heads\": 12,\n"                                                                              \
    "  \"num_channels\": 3,\n"                                                                                      \
    "  \"image_size\": 224,\n"                                                                                      \
    "  \"patch_size\": 16,\n"                                                                                       \
    "  \"hidden_act\": \"" act "\",\n"                                                                              \
    "  \"layer_norm_eps\": " #eps ",\n"                                                                             \
    "  \"attention_dropout\": 0.0,\n"                                                                               \
    "  \"torch_dtype\": \"float32\"\n"                                                                              \
    "}\n"

const struct preset presets[] = {
    {"llama-tiny", LLAMA(256, 128, 352, 4, 4, 2, 2048, true)},         /* bytes as tokens, 0.8 M */
    {"llama-124m", LLAMA(50257, 768, 2048, 12, 12, 12, 1024, true)},   /* the GPT-2 small shape */
    {"llama-1b", LLAMA(32000, 2048, 5632, 22, 32, 4, 2048, false)},    /* the TinyLlama shape, 1.1 B */
    {"clip-vit-b-16", TOWER("CLIPVisionModel", "clip_vision_model", "quick_gelu", 1e-05)},          /* 86 M */
    {"siglip-base-16-224", TOWER("SiglipVisionModel", "siglip_vision_model", "gelu_pytorch_tanh", 1e-06)}, /* 93 M */
    {NULL, NULL},
};
