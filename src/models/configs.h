/*
 * configs.h: parts of config.json that presets.c and catalogue.c share, as string literals in the
 * format that transformers reads.
 */
#pragma once

/* Segment Anything: all sizes share the prompt encoder and the decoder. */
#define SAM(hidden, layers, heads, inner, global) SAM_OF("SamModel", "sam", hidden, layers, heads, inner, global, "")
#define SAM_HQ(hidden, layers, heads, inner, global)                                                                   \
    SAM_OF("SamHQModel", "sam_hq", hidden, layers, heads, inner, global, ", \"vit_dim\": " #hidden)
/* keys: more of the mask decoder, each after a comma. */
#define SAM_OF(class, type, hidden, layers, heads, inner, global, keys)                                                \
    "{\n"                                                                                                              \
    "  \"architectures\": [\"" class "\"],\n"                                                                          \
    "  \"model_type\": \"" type "\",\n"                                                                                \
    "  \"initializer_range\": 0.02,\n"                                                                                 \
    "  \"vision_config\": {\n"                                                                                         \
    "    \"model_type\": \"" type "_vision_model\",\n"                                                                 \
    "    \"hidden_size\": " #hidden ",\n"                                                                              \
    "    \"num_hidden_layers\": " #layers ",\n"                                                                        \
    "    \"num_attention_heads\": " #heads ",\n"                                                                       \
    "    \"mlp_dim\": " #inner ",\n"                                                                                   \
    "    \"global_attn_indexes\": [" global "],\n"                                                                     \
    "    \"window_size\": 14,\n"                                                                                       \
    "    \"image_size\": 1024,\n"                                                                                      \
    "    \"patch_size\": 16,\n"                                                                                        \
    "    \"output_channels\": 256,\n"                                                                                  \
    "    \"num_pos_feats\": 128,\n"                                                                                    \
    "    \"hidden_act\": \"gelu\",\n"                                                                                  \
    "    \"layer_norm_eps\": 1e-06\n"                                                                                  \
    "  },\n"                                                                                                           \
    "  \"prompt_encoder_config\": {\"model_type\": \"" type "_prompt_encoder\", \"hidden_size\": 256, "                \
    "\"image_size\": 1024, \"patch_size\": 16},\n"                                                                     \
    "  \"mask_decoder_config\": {\"model_type\": \"" type "_mask_decoder\", \"hidden_size\": 256, "                    \
    "\"mlp_dim\": 2048" keys "},\n"                                                                                    \
    "  \"torch_dtype\": \"float32\"\n"                                                                                 \
    "}\n"

/* SAM 2 on images: `width` and `heads` of the first stage, which double in each later one. */
/* keys: of SAM 2's memories, where they are not those of SAM 2.1, each after a comma. */
#define SAM2_1(...) SAM2_OF(__VA_ARGS__, "")
#define SAM2_0(...)                                                                                                    \
    SAM2_OF(__VA_ARGS__, ",\n  \"enable_temporal_pos_encoding_for_object_pointers\": false, "                          \
                         "\"enable_occlusion_spatial_embedding\": false")
#define SAM2_OF(width, w1, w2, w3, heads, h1, h2, h3, blocks, windows, global, background, keys)                       \
    "{\n"                                                                                                              \
    "  \"architectures\": [\"Sam2Model\"],\n"                                                                          \
    "  \"model_type\": \"sam2\",\n"                                                                                    \
    "  \"initializer_range\": 0.02,\n"                                                                                 \
    "  \"vision_config\": {\n"                                                                                         \
    "    \"model_type\": \"sam2_vision_model\",\n"                                                                     \
    "    \"backbone_config\": {\"model_type\": \"sam2_hiera_det_model\", \"hidden_size\": " #width ", "                \
    "\"num_attention_heads\": " #heads ", \"blocks_per_stage\": " blocks ", \"embed_dim_per_stage\": [" #width         \
    ", " #w1 ", " #w2 ", " #w3 "], \"num_attention_heads_per_stage\": [" #heads ", " #h1 ", " #h2 ", " #h3 "], "       \
    "\"window_size_per_stage\": " windows ", \"global_attention_blocks\": " global ", "                                \
    "\"window_positional_embedding_background_size\": " background "},\n"                                              \
    "    \"backbone_channel_list\": [" #w3 ", " #w2 ", " #w1 ", " #width "]\n"                                         \
    "  },\n"                                                                                                           \
    "  \"prompt_encoder_config\": {\"model_type\": \"sam2_prompt_encoder\"},\n"                                        \
    "  \"mask_decoder_config\": {\"model_type\": \"sam2_mask_decoder\"}" keys ",\n"                                    \
    "  \"torch_dtype\": \"float32\"\n"                                                                                 \
    "}\n"

/* LLaVA: a tower of CLIP, a projector, a decoder, as transformers 5 writes it. */
#define LLAVA(token, tower, decoder) LLAVA_OF("Llava", "llava", token, tower, decoder)
#define LLAVA_OF(class, type, token, tower, decoder)                                                                \
    "{\n"                                                                                                           \
    "  \"architectures\": [\"" class "ForConditionalGeneration\"],\n"                                               \
    "  \"model_type\": \"" type "\",\n"                                                                             \
    "  \"image_token_index\": " #token ",\n"                                                                        \
    "  \"vision_feature_layer\": -2,\n"                                                                            \
    "  \"vision_feature_select_strategy\": \"default\",\n"                                                          \
    "  \"projector_hidden_act\": \"gelu\",\n"                                                                      \
    "  \"multimodal_projector_bias\": true,\n"                                                                     \
    "  \"tie_word_embeddings\": false,\n"                                                                          \
    "  \"vision_config\": {\"model_type\": \"clip_vision_model\", \"hidden_act\": \"quick_gelu\", " tower "},\n"     \
    "  \"text_config\": {" decoder ", \"rms_norm_eps\": 1e-05},\n"                                                  \
    "  \"torch_dtype\": \"float32\"\n"                                                                              \
    "}\n"
