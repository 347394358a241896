/*
 * presets.c: the configurations that model.preset names (see model.h). They are written to model
 * folders unchanged, so they are in the format that transformers reads.
 */
#include "models/configs.h"
#include "models/model.h"

/* All Llama presets share everything except the sizes. */
#define DECODER(architecture, type, vocabulary, hidden, inner, layers, heads, kv_heads, positions, tied)               \
    "{\n"                                                                                                              \
    "  \"architectures\": [\"" architecture "\"],\n"                                                                   \
    "  \"model_type\": \"" type "\",\n"                                                                                \
    "  \"vocab_size\": " #vocabulary ",\n"                                                                             \
    "  \"hidden_size\": " #hidden ",\n"                                                                                \
    "  \"intermediate_size\": " #inner ",\n"                                                                           \
    "  \"num_hidden_layers\": " #layers ",\n"                                                                          \
    "  \"num_attention_heads\": " #heads ",\n"                                                                         \
    "  \"num_key_value_heads\": " #kv_heads ",\n"                                                                      \
    "  \"max_position_embeddings\": " #positions ",\n"                                                                 \
    "  \"hidden_act\": \"silu\",\n"                                                                                    \
    "  \"rms_norm_eps\": 1e-05,\n"                                                                                     \
    "  \"rope_theta\": 10000.0,\n"                                                                                     \
    "  \"initializer_range\": 0.02,\n"                                                                                 \
    "  \"attention_bias\": false,\n"                                                                                   \
    "  \"mlp_bias\": false,\n"                                                                                         \
    "  \"tie_word_embeddings\": " tied ",\n"                                                                           \
    "  \"torch_dtype\": \"float32\"\n"                                                                                 \
    "}\n"
#define LLAMA(...) DECODER("LlamaForCausalLM", "llama", __VA_ARGS__)

/* A vision tower by itself, in the base size with patches of 16 pixels. */
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

/* A small SAM for images of 128 pixels: it trains on a laptop. */
#define SAM_TINY_OF(class, type, keys)                                                                                 \
    "{\n"                                                                                                              \
    "  \"architectures\": [\"" class "\"],\n"                                                                          \
    "  \"model_type\": \"" type "\",\n"                                                                                \
    "  \"initializer_range\": 0.02,\n"                                                                                 \
    "  \"vision_config\": {\"model_type\": \"" type "_vision_model\", \"hidden_size\": 96, \"num_hidden_layers\": 4, " \
    "\"num_attention_heads\": 4, \"mlp_dim\": 384,\n"                                                                  \
    "    \"global_attn_indexes\": [1, 3], \"window_size\": 4, \"image_size\": 128, \"patch_size\": 8, "                \
    "\"output_channels\": 64, \"num_pos_feats\": 32},\n"                                                               \
    "  \"prompt_encoder_config\": {\"model_type\": \"" type "_prompt_encoder\", \"hidden_size\": 64, "                 \
    "\"image_size\": 128, \"patch_size\": 8},\n"                                                                       \
    "  \"mask_decoder_config\": {\"model_type\": \"" type "_mask_decoder\", \"hidden_size\": 64, \"mlp_dim\": 256, "   \
    "\"num_attention_heads\": 4, \"iou_head_hidden_dim\": 64" keys "},\n"                                              \
    "  \"torch_dtype\": \"float32\"\n"                                                                                 \
    "}\n"
#define SAM_TINY SAM_TINY_OF("SamModel", "sam", "")
#define SAM_HQ_TINY SAM_TINY_OF("SamHQModel", "sam_hq", ", \"vit_dim\": 96")

/* A small SAM 2 for images of 128 pixels, and with the memory_ keys for clips. */
#define SAM2_TINY                                                                                                      \
    "{\n"                                                                                                              \
    "  \"architectures\": [\"Sam2Model\"],\n"                                                                          \
    "  \"model_type\": \"sam2\",\n"                                                                                    \
    "  \"vision_config\": {\"model_type\": \"sam2_vision_model\",\n"                                                   \
    "    \"backbone_config\": {\"model_type\": \"sam2_hiera_det_model\", \"image_size\": [128, 128], "                 \
    "\"hidden_size\": 16, \"num_attention_heads\": 1,\n"                                                               \
    "      \"blocks_per_stage\": [1, 2, 2, 1], \"embed_dim_per_stage\": [16, 32, 64, 96], "                            \
    "\"num_attention_heads_per_stage\": [1, 2, 4, 6],\n"                                                               \
    "      \"window_size_per_stage\": [8, 4, 6, 3], \"global_attention_blocks\": [4]},\n"                              \
    "    \"backbone_channel_list\": [96, 64, 32, 16], \"backbone_feature_sizes\": [[32, 32], [16, 16], [8, 8]], "      \
    "\"fpn_hidden_size\": 64},\n"                                                                                      \
    "  \"prompt_encoder_config\": {\"model_type\": \"sam2_prompt_encoder\", \"hidden_size\": 64, "                     \
    "\"image_size\": 128, \"patch_size\": 16},\n"                                                                      \
    "  \"mask_decoder_config\": {\"model_type\": \"sam2_mask_decoder\", \"hidden_size\": 64, \"mlp_dim\": 256, "       \
    "\"num_attention_heads\": 4, \"iou_head_hidden_dim\": 64},\n"                                                      \
    "  \"memory_attention_hidden_size\": 64, \"memory_attention_num_layers\": 2, "                                     \
    "\"memory_attention_feed_forward_hidden_size\": 128, \"memory_encoder_hidden_size\": 64,\n"                        \
    "  \"mask_downsampler_embed_dim\": 64, \"memory_fuser_embed_dim\": 64, \"memory_fuser_intermediate_dim\": 128,\n"  \
    "  \"torch_dtype\": \"float32\"\n"                                                                                 \
    "}\n"

/* TinySAM: the keys of its encoder; the rest as in SAM. */
#define TINYSAM                                                                                                     \
    "{\n"                                                                                                           \
    "  \"architectures\": [\"TinySam\"],\n"                                                                         \
    "  \"model_type\": \"tinysam\",\n"                                                                              \
    "  \"image_size\": 1024,\n"                                                                                    \
    "  \"embed_dims\": [64, 128, 160, 320],\n"                                                                     \
    "  \"depths\": [2, 2, 6, 2],\n"                                                                                \
    "  \"num_heads\": [2, 4, 5, 10],\n"                                                                            \
    "  \"window_sizes\": [7, 7, 14, 7],\n"                                                                         \
    "  \"mlp_ratio\": 4,\n"                                                                                        \
    "  \"mbconv_expand_ratio\": 4,\n"                                                                              \
    "  \"num_classes\": 1000,\n"                                                                                   \
    "  \"prompt_encoder_config\": {\"hidden_size\": 256, \"image_size\": 1024, \"patch_size\": 16},\n"               \
    "  \"mask_decoder_config\": {\"hidden_size\": 256, \"mlp_dim\": 2048, \"layer_norm_eps\": 1e-05},\n"              \
    "  \"torch_dtype\": \"float32\"\n"                                                                              \
    "}\n"

/* A small TinySAM for images of 128 pixels. */
#define TINYSAM_TINY                                                                                                   \
    "{\n"                                                                                                              \
    "  \"architectures\": [\"TinySam\"],\n"                                                                            \
    "  \"model_type\": \"tinysam\",\n"                                                                                 \
    "  \"image_size\": 128, \"embed_dims\": [16, 32, 48, 64], \"depths\": [1, 1, 2, 1], \"num_heads\": [1, 2, 3, "     \
    "4],\n"                                                                                                            \
    "  \"window_sizes\": [4, 4, 4, 4], \"mlp_ratio\": 4, \"mbconv_expand_ratio\": 4, \"num_classes\": 0,\n"            \
    "  \"prompt_encoder_config\": {\"hidden_size\": 64, \"image_size\": 128, \"patch_size\": 16},\n"                   \
    "  \"mask_decoder_config\": {\"hidden_size\": 64, \"mlp_dim\": 256, \"num_attention_heads\": 4, "                  \
    "\"iou_head_hidden_dim\": 64, \"layer_norm_eps\": 1e-05},\n"                                                       \
    "  \"torch_dtype\": \"float32\"\n"                                                                                 \
    "}\n"

/* The bytes of text are ids 0 to 255; 256 marks a feature of an image, of which one has 64. */
#define LLAVA_TINY                                                                                                     \
    LLAVA(256,                                                                                                         \
          "\"hidden_size\": 96, \"intermediate_size\": 384, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "    \
          "\"image_size\": 64, \"patch_size\": 8",                                                                     \
          "\"model_type\": \"llama\", \"vocab_size\": 264, \"hidden_size\": 128, \"intermediate_size\": 352, "         \
          "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "                         \
          "\"max_position_embeddings\": 2048")

/* CLIP ViT-L/14 at 336 pixels and Mistral 7B. */
#define LLAVA_MED                                                                                                      \
    LLAVA(                                                                                                             \
        32000,                                                                                                         \
        "\"hidden_size\": 1024, \"intermediate_size\": 4096, \"num_hidden_layers\": 24, \"num_attention_heads\": 16, " \
        "\"image_size\": 336, \"patch_size\": 14, \"projection_dim\": 768",                                            \
        "\"model_type\": \"mistral\", \"vocab_size\": 32064, \"hidden_size\": 4096, \"intermediate_size\": 14336, "    \
        "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "                         \
        "\"max_position_embeddings\": 32768, "                                                                         \
        "\"rope_theta\": 1000000.0, \"sliding_window\": null")

/* PRS-Med of two models: `keys` are of the mask decoder. */
#define PRS_MED(keys, tinysam, llava)                                                                               \
    "{\n"                                                                                                           \
    "  \"architectures\": [\"PRSMed\"],\n"                                                                          \
    "  \"model_type\": \"prs_med\",\n" keys                                                                        \
    "  \"tinysam_config\": " tinysam ",\n"                                                                         \
    "  \"llava_config\": " llava "}\n"

/* Parts of a small PRS-Med: images of 64 pixels, and of 32 pixels for the language model, whose
 * bytes of text and image token are those of LLAVA_TINY. */
#define PRS_TINYSAM                                                                                                 \
    "{\"model_type\": \"tinysam\", \"image_size\": 64, \"embed_dims\": [16, 24, 32, 32], \"depths\": [1, 1, 1, 1], "   \
    "\"num_heads\": [1, 2, 2, 2], \"window_sizes\": [4, 4, 4, 4], \"mlp_ratio\": 2, \"mbconv_expand_ratio\": 2, "     \
    "\"num_classes\": 0, \"prompt_encoder_config\": {\"hidden_size\": 32, \"image_size\": 64, \"patch_size\": 16}, " \
    "\"mask_decoder_config\": {\"hidden_size\": 32, \"mlp_dim\": 64, \"num_attention_heads\": 2}}"
#define PRS_LLAVA                                                                                                      \
    LLAVA(256,                                                                                                         \
          "\"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "     \
          "\"image_size\": 32, \"patch_size\": 8, \"initializer_range\": 0.1",                                         \
          "\"model_type\": \"llama\", \"vocab_size\": 264, \"hidden_size\": 64, \"intermediate_size\": 128, "          \
          "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, "                         \
          "\"max_position_embeddings\": 2048, \"initializer_range\": 0.125")

/* The shape of SmolVLM-256M: SigLIP's base tower at 512 pixels, SmolLM2-135M. */
#define SMOLVLM_256M                                                                                                   \
    "{\n"                                                                                                              \
    "  \"architectures\": [\"SmolVLMForConditionalGeneration\"],\n"                                                    \
    "  \"model_type\": \"smolvlm\",\n"                                                                                 \
    "  \"image_token_id\": 49190,\n"                                                                                   \
    "  \"scale_factor\": 4,\n"                                                                                         \
    "  \"tie_word_embeddings\": false,\n"                                                                              \
    "  \"vision_config\": {\"model_type\": \"smolvlm_vision\", \"hidden_size\": 768, \"intermediate_size\": 3072, "    \
    "\"num_hidden_layers\": 12, \"num_attention_heads\": 12, \"image_size\": 512, \"patch_size\": 16},\n"              \
    "  \"text_config\": {\"model_type\": \"llama\", \"vocab_size\": 49280, \"hidden_size\": 576, "                     \
    "\"intermediate_size\": 1536, "                                                                                    \
    "\"num_hidden_layers\": 30, \"num_attention_heads\": 9, \"num_key_value_heads\": 3, \"max_position_embeddings\": " \
    "8192, "                                                                                                           \
    "\"rope_theta\": 100000.0, \"rms_norm_eps\": 1e-05},\n"                                                            \
    "  \"torch_dtype\": \"float32\"\n"                                                                                 \
    "}\n"

/* ARR-COC grounding: a tower of CLIP and a decoder, whose states are projected side by side. */
#define ARR_COC(width, tower, decoder)                                                                              \
    "{\n"                                                                                                           \
    "  \"architectures\": [\"ArrCocGrounding\"],\n"                                                                 \
    "  \"model_type\": \"arr_coc\",\n"                                                                              \
    "  \"projection_dim\": " #width ",\n"                                                                          \
    "  \"temperature\": 0.07,\n"                                                                                  \
    "  \"vision_feature_layer\": -2,\n"                                                                            \
    "  \"vision_config\": {\"model_type\": \"clip_vision_model\", \"hidden_act\": \"quick_gelu\", " tower "},\n"     \
    "  \"text_config\": {" decoder ", \"rms_norm_eps\": 1e-05},\n"                                                  \
    "  \"torch_dtype\": \"float32\"\n"                                                                              \
    "}\n"

/* The bytes of text are ids 0 to 255; an image has 64 patches. */
#define GROUNDING_TINY                                                                                                 \
    ARR_COC(64,                                                                                                        \
            "\"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "  \
            "\"image_size\": 64, \"patch_size\": 8",                                                                   \
            "\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 64, \"intermediate_size\": 176, "        \
            "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "                       \
            "\"max_position_embeddings\": 512")

/* CLIP ViT-L/14 at 336 pixels and Mistral 7B. */
#define GROUNDING_7B                                                                                                   \
    ARR_COC(                                                                                                           \
        768,                                                                                                           \
        "\"hidden_size\": 1024, \"intermediate_size\": 4096, \"num_hidden_layers\": 24, \"num_attention_heads\": 16, " \
        "\"image_size\": 336, \"patch_size\": 14",                                                                     \
        "\"model_type\": \"mistral\", \"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 14336, "    \
        "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "                         \
        "\"max_position_embeddings\": 32768, "                                                                         \
        "\"rope_theta\": 1000000.0, \"sliding_window\": null")

/* LLaVA with 16 of an image's 64 tokens; ids as in LLAVA_TINY. */
#define ALLOCATOR_TINY                                                                                                 \
    "{\n"                                                                                                              \
    "  \"architectures\": [\"ArrCocAllocator\"],\n"                                                                    \
    "  \"model_type\": \"arr_coc_allocator\",\n"                                                                       \
    "  \"num_visual_tokens\": 16,\n"                                                                                   \
    "  \"token_selection\": \"scored\",\n"                                                                             \
    "  \"image_token_index\": 256,\n"                                                                                  \
    "  \"vision_feature_layer\": -2,\n"                                                                                \
    "  \"vision_config\": {\"model_type\": \"clip_vision_model\", \"hidden_size\": 64, \"intermediate_size\": 128, "   \
    "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"image_size\": 64, \"patch_size\": 8},\n"                  \
    "  \"text_config\": {\"model_type\": \"llama\", \"vocab_size\": 264, \"hidden_size\": 64, \"intermediate_size\": " \
    "176, "                                                                                                            \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": "  \
    "2048, "                                                                                                           \
    "\"rms_norm_eps\": 1e-05},\n"                                                                                      \
    "  \"torch_dtype\": \"float32\"\n"                                                                                 \
    "}\n"

/* A published model with the token allocator. */
#define LEVELS(type, base, width)                                                                                      \
    "{\n"                                                                                                              \
    "  \"architectures\": [\"ArrCoc\"],\n"                                                                             \
    "  \"model_type\": \"" type "\",\n"                                                                                \
    "  \"base_path\": \"" base "\",\n"                                                                                 \
    "  \"num_visual_tokens\": 256,\n"                                                                                  \
    "  \"max_patches\": 200,\n"                                                                                        \
    "  \"texture_adapter_width\": " #width "\n"                                                                        \
    "}\n"

const struct preset presets[] = {
    {"llama-tiny", LLAMA(256, 128, 352, 4, 4, 2, 2048, "true")},        /* byte-level vocabulary, 0.8 M */
    {"llama-124m", LLAMA(50257, 768, 2048, 12, 12, 12, 1024, "true")},  /* the GPT-2 small shape */
    {"llama-1b", LLAMA(32000, 2048, 5632, 22, 32, 4, 2048, "false")},   /* the TinyLlama shape, 1.1 B */
    {"llama-7b", LLAMA(32000, 4096, 11008, 32, 32, 32, 4096, "false")}, /* the Llama 2 shape, 6.7 B */
    /* the Qwen2 shape, 0.5 B */
    {"qwen2-0.5b", DECODER("Qwen2ForCausalLM", "qwen2", 151936, 896, 4864, 24, 14, 2, 32768, "true")},
    {"mistral-7b", DECODER("MistralForCausalLM", "mistral", 32000, 4096, 14336, 32, 32, 8, 32768, "false")}, /* 7.2 B */
    {"clip-vit-b-16", TOWER("CLIPVisionModel", "clip_vision_model", "quick_gelu", 1e-05)},                 /* 86 M */
    {"siglip-base-16-224", TOWER("SiglipVisionModel", "siglip_vision_model", "gelu_pytorch_tanh", 1e-06)}, /* 93 M */
    {"sam-vit-b", SAM(768, 12, 12, 3072, "2, 5, 8, 11")},                                                  /* 94 M */
    {"sam-vit-l", SAM(1024, 24, 16, 4096, "5, 11, 17, 23")},                                               /* 312 M */
    {"sam-vit-h", SAM(1280, 32, 16, 5120, "7, 15, 23, 31")},                                               /* 641 M */
    {"sam-tiny", SAM_TINY},                                                                                /* 0.7 M */
    {"sam-hq-tiny", SAM_HQ_TINY},                                                                          /* 0.8 M */
    {"llava-tiny", LLAVA_TINY},                                                                            /* 1.3 M */
    {"llava-med-7b", LLAVA_MED},                                                                           /* 7.6 B */
    {"smolvlm-256m-shape", SMOLVLM_256M},                                                                  /* 256 M */
    {"grounding-tiny", GROUNDING_TINY},                                                                    /* 0.3 M */
    {"allocator-tiny", ALLOCATOR_TINY},                                                                    /* 0.3 M */
    /* 2.3 B, 50 M of them in the adapter */
    {"arr-coc-2b", LEVELS("arr_coc_qwen2_vl", "Qwen/Qwen2-VL-2B", 17664)},
    /* 2.2 B, 50 M of them in the adapter */
    {"arr-coc-qwen3-2b", LEVELS("arr_coc_qwen3_vl", "Qwen/Qwen3-VL-2B-Instruct", 16128)},
    {"grounding-7b", GROUNDING_7B},                                                                        /* 7.4 B */
    {"sam2-tiny", SAM2_TINY},       /* 0.5 M */
    {"tinysam", TINYSAM},           /* 10 M, 6 M of them in the encoder */
    {"tinysam-tiny", TINYSAM_TINY}, /* 0.4 M */
    /* TinySAM and LLaVA-Med 7B, 7.6 B */
    {"prs-med", PRS_MED("  \"decoder\": \"fusion\",\n", TINYSAM, LLAVA_MED)},
    /* the same with the original's mask decoder */
    {"prs-med-prompted", PRS_MED("  \"decoder\": \"prompted\",\n", TINYSAM, LLAVA_MED)},
    {"prs-med-tiny", PRS_MED("  \"decoder\": \"fusion\",\n  \"pooled_size\": 4,\n  \"num_attention_heads\": 4,\n  "
                             "\"mask_channels\": [32, 16, 8, 8],\n",
                             PRS_TINYSAM, PRS_LLAVA)}, /* 0.2 M */
    {NULL, NULL},
};
