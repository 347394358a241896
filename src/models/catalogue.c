/*
 * catalogue.c: see catalogue.h. The rows are in catalogue.def; here is what models of a family have
 * in common.
 */
#include "models/catalogue.h"

#include <strings.h>

#include "models/configs.h"
#include "models/model.h"

#define HUB "safetensors.total of the Hub"
#define KERAS "params of KerasHub's preset"
#define GGUF "general.parameter_count of its GGUF file"
#define README "the table of the model card"
#define CONVERTED "transformers' class, with the config.json that its script of conversion writes"
/* The number counts the weights for videos, and is that of SAM 2 for SAM 2.1 too. */
#define SAM2_README "the table of facebookresearch/sam2, with the weights for videos"
#define ULTRALYTICS "Ultralytics, which leaves out 256 fixed frequencies"

/* A language model. `keys` are more keys, each after a comma. */
#define DECODER(class, type, vocabulary, hidden, inner, layers, heads, kv_heads, positions, tied, keys)              \
    "{\n"                                                                                                            \
    "  \"architectures\": [\"" class "ForCausalLM\"],\n"                                                             \
    "  \"model_type\": \"" type "\",\n"                                                                              \
    "  \"vocab_size\": " #vocabulary ",\n"                                                                           \
    "  \"hidden_size\": " #hidden ",\n"                                                                              \
    "  \"intermediate_size\": " #inner ",\n"                                                                         \
    "  \"num_hidden_layers\": " #layers ",\n"                                                                        \
    "  \"num_attention_heads\": " #heads ",\n"                                                                       \
    "  \"num_key_value_heads\": " #kv_heads ",\n"                                                                    \
    "  \"max_position_embeddings\": " #positions ",\n"                                                               \
    "  \"tie_word_embeddings\": " tied keys ",\n"                                                                   \
    "  \"torch_dtype\": \"float32\"\n"                                                                               \
    "}\n"
#define TIED "true"
#define UNTIED "false"
#define SILU ",\n  \"hidden_act\": \"silu\""
#define EPS(eps) ",\n  \"rms_norm_eps\": " #eps
#define THETA(theta) ",\n  \"rope_theta\": " #theta ".0"
#define WINDOW(tokens) ",\n  \"sliding_window\": " #tokens
#define LLAMA3(factor)                                                                                            \
    ",\n  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": " #factor ", \"low_freq_factor\": 1.0, "       \
    "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}"

#define LLAMA(vocabulary, hidden, inner, layers, heads, kv_heads, positions, tied, keys) \
    DECODER("Llama", "llama", vocabulary, hidden, inner, layers, heads, kv_heads, positions, tied, SILU EPS(1e-05) keys)
#define MISTRAL(vocabulary, positions, keys) \
    DECODER("Mistral", "mistral", vocabulary, 4096, 14336, 32, 32, 8, positions, UNTIED, SILU EPS(1e-05) keys)
#define QWEN2(vocabulary, hidden, inner, layers, heads, kv_heads, positions, tied, eps)                     \
    DECODER("Qwen2", "qwen2", vocabulary, hidden, inner, layers, heads, kv_heads, positions, tied,          \
            SILU EPS(eps) THETA(1000000) ",\n  \"use_sliding_window\": false")

#define HEAD_DIM(n) ",\n  \"head_dim\": " #n
#define QWEN3(hidden, inner, layers, heads, positions, tied)                                          \
    DECODER("Qwen3", "qwen3", 151936, hidden, inner, layers, heads, 8, positions, tied,               \
            SILU EPS(1e-06) THETA(1000000) HEAD_DIM(128) ",\n  \"use_sliding_window\": false")
#define MIXTRAL(hidden, inner, layers, heads, positions)                                              \
    DECODER("Mixtral", "mixtral", 32000, hidden, inner, layers, heads, 8, positions, UNTIED,          \
            SILU EPS(1e-05) THETA(1000000) ",\n  \"num_local_experts\": 8,\n  \"num_experts_per_tok\": 2")
#define QWEN3_MOE(hidden, inner, expert, layers, heads, positions, theta)                             \
    DECODER("Qwen3Moe", "qwen3_moe", 151936, hidden, inner, layers, heads, 4, positions, UNTIED,      \
            SILU EPS(1e-06) THETA(theta) HEAD_DIM(128)                                                \
            ",\n  \"num_experts\": 128,\n  \"num_experts_per_tok\": 8,\n  \"moe_intermediate_size\": " #expert \
            ",\n  \"norm_topk_prob\": true,\n  \"decoder_sparse_step\": 1,\n  \"use_sliding_window\": false")
#define GELU_TANH(key) ",\n  \"" key "\": \"gelu_pytorch_tanh\""
#define GEMMA(hidden, inner, layers, heads, kv_heads)                                                 \
    DECODER("Gemma", "gemma", 256000, hidden, inner, layers, heads, kv_heads, 8192, TIED,             \
            GELU_TANH("hidden_act") EPS(1e-06) THETA(10000) HEAD_DIM(256))
#define GEMMA2(hidden, inner, layers, heads, kv_heads, head_dim, scalar)                              \
    DECODER("Gemma2", "gemma2", 256000, hidden, inner, layers, heads, kv_heads, 8192, TIED,           \
            GELU_TANH("hidden_activation") EPS(1e-06) THETA(10000) HEAD_DIM(head_dim) WINDOW(4096)    \
            ",\n  \"query_pre_attn_scalar\": " #scalar ",\n  \"attn_logit_softcapping\": 50.0,\n"     \
            "  \"final_logit_softcapping\": 30.0")
#define GEMMA3(hidden, inner, layers, heads, kv_heads, positions, window)                             \
    DECODER("Gemma3", "gemma3_text", 262144, hidden, inner, layers, heads, kv_heads, positions, TIED, \
            GELU_TANH("hidden_activation") EPS(1e-06) THETA(1000000) HEAD_DIM(256) WINDOW(window)     \
            ",\n  \"rope_local_base_freq\": 10000.0,\n  \"sliding_window_pattern\": 6,\n"              \
            "  \"query_pre_attn_scalar\": 256")
#define GEMMA3_TEXT(hidden, inner, layers, heads, kv_heads, head_dim, scalar)                         \
    "{\"model_type\": \"gemma3_text\", \"vocab_size\": 262208, \"hidden_size\": " #hidden           \
    ", \"intermediate_size\": " #inner ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads   \
    ", \"num_key_value_heads\": " #kv_heads ", \"head_dim\": " #head_dim ", \"query_pre_attn_scalar\": " #scalar \
    ", \"sliding_window\": 1024, \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}}"
#define GEMMA3_IMAGES(hidden, inner, layers, heads, kv_heads, head_dim, scalar)                       \
    "{\n"                                                                                             \
    "  \"architectures\": [\"Gemma3ForConditionalGeneration\"],\n"                                    \
    "  \"model_type\": \"gemma3\",\n"                                                                 \
    "  \"image_token_index\": 262144,\n"                                                              \
    "  \"mm_tokens_per_image\": 256,\n"                                                               \
    "  \"vision_config\": {\"model_type\": \"siglip_vision_model\", \"hidden_size\": 1152, "             \
    "\"intermediate_size\": 4304, \"num_hidden_layers\": 27, \"num_attention_heads\": 16, "            \
    "\"image_size\": 896, \"patch_size\": 14, \"vision_use_head\": false},\n"                          \
    "  \"text_config\": " GEMMA3_TEXT(hidden, inner, layers, heads, kv_heads, head_dim, scalar) ",\n" \
    "  \"torch_dtype\": \"float32\"\n"                                                                \
    "}\n"
#define PALIGEMMA(side, tokens, text)                                                                 \
    "{\n"                                                                                             \
    "  \"architectures\": [\"PaliGemmaForConditionalGeneration\"],\n"                                 \
    "  \"model_type\": \"paligemma\",\n"                                                              \
    "  \"image_token_index\": 257152,\n"                                                              \
    "  \"vision_config\": {\"model_type\": \"siglip_vision_model\", \"hidden_size\": 1152, "             \
    "\"intermediate_size\": 4304, \"num_hidden_layers\": 27, \"num_attention_heads\": 16, "            \
    "\"image_size\": " #side ", \"patch_size\": 14, \"num_image_tokens\": " #tokens                   \
    ", \"vision_use_head\": false},\n"                                                               \
    "  \"text_config\": " text ",\n"                                                                 \
    "  \"torch_dtype\": \"float32\"\n"                                                                \
    "}\n"
#define PALIGEMMA_TEXT(type, hidden, inner, layers, heads, kv_heads, head_dim, scalar)                \
    "{\"model_type\": \"" type "\", \"vocab_size\": 257216, \"hidden_size\": " #hidden               \
    ", \"intermediate_size\": " #inner ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads   \
    ", \"num_key_value_heads\": " #kv_heads ", \"head_dim\": " #head_dim ", \"query_pre_attn_scalar\": " #scalar "}"
#define PHI3(vocabulary, hidden, inner, layers, heads, kv_heads, positions, keys) \
    DECODER("Phi3", "phi3", vocabulary, hidden, inner, layers, heads, kv_heads, positions, UNTIED, SILU EPS(1e-05) keys)
#define ONES_8 "1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0"
#define PHI4_MINI                                                                                    \
    DECODER("Phi3", "phi3", 200064, 3072, 8192, 32, 24, 8, 131072, TIED,                             \
            SILU EPS(1e-05) THETA(10000) WINDOW(262144) ",\n  \"pad_token_id\": 199999,\n"           \
            "  \"original_max_position_embeddings\": 4096,\n  \"partial_rotary_factor\": 0.75,\n"    \
            "  \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": ["                       \
            ONES_8 ", " ONES_8 ", " ONES_8 ", " ONES_8 ", " ONES_8 ", " ONES_8 "], \"long_factor\": ["\
            "1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649, "\
            "2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533, "\
            "5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651, "\
            "14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03, "\
            "32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, "                                  \
            "32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77"                                  \
            "]}")
#define OLMO2(hidden, inner, layers, heads, kv_heads)                                                 \
    DECODER("Olmo2", "olmo2", 100352, hidden, inner, layers, heads, kv_heads, 4096, UNTIED,           \
            SILU EPS(1e-06) THETA(500000))
#define OLMO3(hidden, inner, layers, heads, kv_heads)                                                 \
    DECODER("Olmo3", "olmo3", 100278, hidden, inner, layers, heads, kv_heads, 65536, UNTIED,          \
            SILU EPS(1e-06) THETA(500000) WINDOW(4096) ",\n  \"rope_scaling\": {\"rope_type\": \"yarn\", "      \
            "\"factor\": 8.0, \"original_max_position_embeddings\": 8192, \"beta_fast\": 32.0, "             \
            "\"beta_slow\": 1.0, \"attention_factor\": 1.2079441541679836}")
#define SMOLLM3                                                                                       \
    DECODER("SmolLM3", "smollm3", 128256, 2048, 11008, 36, 16, 4, 65536, TIED,                        \
            SILU EPS(1e-06) THETA(5000000) ",\n  \"no_rope_layer_interval\": 4,\n  \"use_sliding_window\": false")

#define GRANITE(vocabulary, hidden, inner, layers, heads, kv_heads, positions)                                  \
    DECODER("Granite", "granite", vocabulary, hidden, inner, layers, heads, kv_heads, positions, TIED,          \
            SILU EPS(1e-05) THETA(10000000) ",\n  \"embedding_multiplier\": 12.0,\n"                            \
            "  \"attention_multiplier\": 0.0078125,\n  \"residual_multiplier\": 0.22,\n  \"logits_scaling\": 16.0")

#define GPT2(width, layers, heads)                                                                    \
    "{\n"                                                                                             \
    "  \"architectures\": [\"GPT2LMHeadModel\"],\n"                                                   \
    "  \"model_type\": \"gpt2\",\n"                                                                   \
    "  \"vocab_size\": 50257,\n"                                                                      \
    "  \"n_positions\": 1024,\n"                                                                      \
    "  \"n_embd\": " #width ",\n"                                                                     \
    "  \"n_layer\": " #layers ",\n"                                                                   \
    "  \"n_head\": " #heads ",\n"                                                                     \
    "  \"activation_function\": \"gelu_new\",\n"                                                      \
    "  \"layer_norm_epsilon\": 1e-05,\n"                                                              \
    "  \"attn_pdrop\": 0.0,\n"                                                                       \
    "  \"embd_pdrop\": 0.0,\n"                                                                       \
    "  \"resid_pdrop\": 0.0,\n"                                                                      \
    "  \"tie_word_embeddings\": true,\n"                                                              \
    "  \"torch_dtype\": \"float32\"\n"                                                                \
    "}\n"

#define CLIP_L_336                                                                                              \
    "\"hidden_size\": 1024, \"intermediate_size\": 4096, \"num_hidden_layers\": 24, \"num_attention_heads\": 16, " \
    "\"image_size\": 336, \"patch_size\": 14, \"projection_dim\": 768"
#define LLAVA_TEXT(hidden, inner, layers, heads)                                                                    \
    "\"model_type\": \"llama\", \"vocab_size\": 32064, \"hidden_size\": " #hidden ", \"intermediate_size\": " #inner \
    ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #heads    \
    ", \"max_position_embeddings\": 4096"

#define LLAVA_MISTRAL                                                                                              \
    "\"model_type\": \"mistral\", \"vocab_size\": 32064, \"hidden_size\": 4096, \"intermediate_size\": 14336, "      \
    "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "                          \
    "\"max_position_embeddings\": 32768, \"rope_theta\": 1000000.0, \"sliding_window\": null"
/* A tower of SigLIP without its last layer. */
#define ONEVISION(decoder)                                                                                           \
    "{\n"                                                                                                            \
    "  \"architectures\": [\"LlavaOnevisionForConditionalGeneration\"],\n"                                           \
    "  \"model_type\": \"llava_onevision\",\n"                                                                       \
    "  \"image_token_index\": 151646,\n"                                                                            \
    "  \"video_token_index\": 151647,\n"                                                                            \
    "  \"text_config\": " decoder ",\n"                                                                             \
    "  \"vision_config\": {\"model_type\": \"siglip_vision_model\", \"hidden_size\": 1152, "                           \
    "\"intermediate_size\": 4304, \"num_hidden_layers\": 26, \"num_attention_heads\": 16, \"image_size\": 384, "       \
    "\"patch_size\": 14, \"vision_use_head\": false}\n"                                                             \
    "}\n"

#define INTERNVL(token, tower, decoder)                                                                              \
    "{\n"                                                                                                           \
    "  \"architectures\": [\"InternVLForConditionalGeneration\"],\n"                                                \
    "  \"model_type\": \"internvl\",\n"                                                                             \
    "  \"image_token_id\": " #token ",\n"                                                                           \
    "  \"downsample_ratio\": 0.5,\n"                                                                                \
    "  \"tie_word_embeddings\": false,\n"                                                                           \
    "  \"vision_config\": {\"model_type\": \"internvl_vision\", \"image_size\": [448, 448], "                        \
    "\"patch_size\": [14, 14], \"layer_scale_init_value\": 0.1, " tower "},\n"                                      \
    "  \"text_config\": " decoder                                                                                   \
    "}\n"
#define INTERNVIT_300M                                                                                             \
    "\"hidden_size\": 1024, \"intermediate_size\": 4096, \"num_hidden_layers\": 24, \"num_attention_heads\": 16, " \
    "\"attention_bias\": true"
#define INTERNVIT_6B                                                                                               \
    "\"hidden_size\": 3200, \"intermediate_size\": 12800, \"num_hidden_layers\": 45, "                            \
    "\"num_attention_heads\": 25, \"use_qk_norm\": true, \"norm_type\": \"rms_norm\""

/* Qwen2-VL and Qwen2.5-VL: the keys of the text model lie beside vision_config. */
#define QWEN_VL(class, type, vocabulary, hidden, inner, layers, heads, kv_heads, positions, tied, sections, vision)    \
    DECODER(class, type, vocabulary, hidden, inner, layers, heads, kv_heads, positions, tied,                          \
            SILU EPS(1e-06) THETA(1000000) ",\n  \"use_sliding_window\": false,\n"                                     \
                                           "  \"image_token_id\": 151655,\n  \"video_token_id\": 151656,\n"            \
                                           "  \"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": " sections    \
                                           "},\n  \"vision_config\": {" vision "}")
#define QWEN2_VL(vocabulary, hidden, inner, layers, heads, kv_heads, tied)                                           \
    QWEN_VL("Qwen2VL", "qwen2_vl", vocabulary, hidden, inner, layers, heads, kv_heads, 32768, tied, "[16, 24, 24]",   \
            "\"depth\": 32, \"embed_dim\": 1280, \"mlp_ratio\": 4, \"num_heads\": 16, \"hidden_size\": " #hidden)
#define QWEN2_5_VL(vocabulary, hidden, inner, layers, heads, kv_heads, tied, tower)                                  \
    QWEN_VL("Qwen2_5_VL", "qwen2_5_vl", vocabulary, hidden, inner, layers, heads, kv_heads, 128000, tied,             \
            "[16, 24, 24]", "\"depth\": 32, \"hidden_size\": 1280, \"intermediate_size\": " #tower                   \
            ", \"num_heads\": 16, \"out_hidden_size\": " #hidden)
#define QWEN3_VL(hidden, inner, layers, heads, tied, tower, tower_inner, depth, blocks)                                \
    "{\n"                                                                                                              \
    "  \"architectures\": [\"Qwen3VLForConditionalGeneration\"],\n"                                                    \
    "  \"model_type\": \"qwen3_vl\",\n"                                                                                \
    "  \"image_token_id\": 151655,\n"                                                                                  \
    "  \"video_token_id\": 151656,\n"                                                                                  \
    "  \"tie_word_embeddings\": " tied ",\n"                                                                           \
    "  \"vision_config\": {\"depth\": " #depth ", \"hidden_size\": " #tower ", \"intermediate_size\": " #tower_inner   \
    ", \"num_heads\": 16, \"out_hidden_size\": " #hidden ", \"deepstack_visual_indexes\": " blocks "},\n"              \
    "  \"text_config\": {\"model_type\": \"qwen3_vl_text\", \"vocab_size\": 151936, \"hidden_size\": " #hidden         \
    ", \"intermediate_size\": " #inner ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads        \
    ", \"num_key_value_heads\": 8, \"head_dim\": 128, \"max_position_embeddings\": 262144, \"rms_norm_eps\": 1e-06, "  \
    "\"hidden_act\": \"silu\", \"rope_theta\": 5000000, "                                                              \
    "\"rope_scaling\": {\"rope_type\": \"default\", \"mrope_interleaved\": true, \"mrope_section\": [24, 20, 20]}},\n" \
    "  \"torch_dtype\": \"float32\"\n"                                                                                 \
    "}\n"
#define QWEN3_VL_SMALL 1024, 4096, 24, "[5, 11, 17]"
#define QWEN3_VL_LARGE 1152, 4304, 27, "[8, 16, 24]"
#define QWEN3_VL_OF(...) QWEN3_VL(__VA_ARGS__)

const struct published catalogue[] = {
#define MODEL(name, endings, parameters, stored, source, config) {name, endings, parameters, stored, source, config},
#include "models/catalogue.def"
#undef MODEL
    {0},
};

uint64_t catalogue_smallest(const struct published *p)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } rows[] = {
#define SMALLEST(name, bytes) {name, bytes},
#include "models/smallest.def"
#undef SMALLEST
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        if (!strcmp(rows[i].name, p->name)) return rows[i].bytes;
    return 0;
}

/* Returns the ending of a row with which a name is the row's name, case ignored; NULL: none. */
static const char *ending_of(const struct published *p, const char *name, int *length)
{
    const size_t n = strlen(p->name);
    *length = 0;
    if (strncasecmp(p->name, name, n)) return NULL;
    if (!name[n]) return "";
    for (const char *at = p->endings; *at; at += *length, at += *at == ' ') {
        *length = (int)strcspn(at, " ");
        if (strlen(name + n) == (size_t)*length && !strncasecmp(at, name + n, (size_t)*length)) return at;
    }
    return NULL;
}

const struct published *catalogue_find(const char *name, struct text *hub)
{
    int length;
    for (const struct published *p = catalogue; p->name; p++) {
        const char *ending = ending_of(p, name, &length);
        if (ending && hub) text_printf(hub, "%s%.*s", p->name, length, ending);
        if (ending) return p;
    }
    return NULL;
}

const char *preset_config(const char *name)
{
    for (const struct preset *p = presets; p->name; p++)
        if (!strcmp(p->name, name)) return p->config;
    const struct published *found = catalogue_find(name, NULL);
    return found ? found->config : NULL;
}

char *preset_text(const char *name, bool clips)
{
    static const char *const images[] = {"\"Sam2Model\"", "\"sam2\""},
                             *const videos[] = {"\"Sam2VideoModel\"", "\"sam2_video\""};
    struct text out = {0};
    for (const char *rest = preset_config(name); *rest;) {
        size_t k = 0;
        while (clips && k < COUNT(images) && strncmp(rest, images[k], strlen(images[k]))) k++;
        const bool found = clips && k < COUNT(images);
        if (found) text_printf(&out, "%s", videos[k]);
        else text_append(&out, rest, 1);
        rest += found ? strlen(images[k]) : 1;
    }
    return out.at;
}

bool catalogue_download(const char *name, struct text *out, struct text *folder)
{
    struct text hub = {0};
    const bool found = catalogue_find(name, &hub);
    const char *last = found ? strchr(hub.at, '/') + 1 : NULL;
    if (found) text_printf(out, "hf download %s --local-dir models/%s", hub.at, last);
    if (found && folder) text_printf(folder, "models/%s", last);
    text_free(&hub);
    return found;
}

/* Counts the edits from one name to another, case ignored. */
static int edits(const char *a, const char *b)
{
    char lower[2][128];
    for (int k = 0; k < 2; k++) {
        snprintf(lower[k], sizeof lower[k], "%s", k ? b : a);
        for (char *c = lower[k]; *c; c++) *c = (char)(*c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
    }
    return edit_distance(lower[0], lower[1]);
}

const char *catalogue_nearest(const char *name)
{
    const char *found = NULL;
    int best = 4;
    for (const struct published *p = catalogue; p->name; p++) {
        const int whole = edits(name, p->name), part = edits(name, strchr(p->name, '/') + 1);
        if (whole < best || part < best) best = whole < part ? whole : part, found = p->name;
    }
    return found;
}

bool catalogue_agrees(const struct published *p, uint64_t parameters)
{
    char *end, shown[32];
    const int64_t n = (int64_t)parameters + p->stored;
    if (strspn(p->parameters, "0123456789") == strlen(p->parameters)) return strtoll(p->parameters, NULL, 10) == n;
    strtod(p->parameters, &end);
    const char *dot = strchr(p->parameters, '.');
    snprintf(shown, sizeof shown, "%.*f%s", dot ? (int)(end - dot) - 1 : 0, (double)n / (*end == 'B' ? 1e9 : 1e6), end);
    return !strcmp(shown, p->parameters);
}
