/*
 * sam_config.c: config.json and preprocessor_config.json for the weights that sam_names.c
 * recognises. Values that the shapes do not determine are those of all published models: 1024
 * pixels for a TinyViT, eight heads in the decoder, and the epsilons of the original code. Its
 * decoder's norms use PyTorch's 1e-5; the default in transformers is 1e-6.
 */
#include "io/json.h"
#include "models/sam.h"
#include "models/sam_names.h"

enum { TINY_IMAGE = 1024, TINY_PATCH = 16, DECODER_HEADS = 8 };

static int64_t image_size(const struct sam_names *n) { return n->tiny ? TINY_IMAGE : n->size['g'] * n->size['p']; }
static int64_t patch_size(const struct sam_names *n) { return n->tiny ? TINY_PATCH : n->size['p']; }

/* Returns eight, or in a narrow model the largest number that divides the width. */
static int64_t decoder_heads(const struct sam_names *n)
{
    int64_t heads = DECODER_HEADS;
    while (heads > 1 && (n->size['a'] % heads || n->size['e'] % heads)) heads /= 2;
    return heads;
}

/* Writes a number with a decimal point even if it is whole: transformers rejects 4 where it
 * expects 4.0. */
static void put_float(struct json_writer *w, const char *key, double x)
{
    struct bump b = {0};
    char digits[40];
    number_print(x, digits);
    if (!strpbrk(digits, ".e")) strcat(digits, ".0");
    json_put_value(w, key, value_digits(&b, digits, strlen(digits)));
    bump_free(&b);
}

/* Writes the model_type of a sub-configuration. */
static void put_part_type(const struct sam_names *n, struct json_writer *w, const char *part)
{
    char type[40];
    snprintf(type, sizeof type, "%s_%s", n->high ? "sam_hq" : "sam", part);
    json_put_string(w, "model_type", type);
}

static void vit_config(const struct sam_names *n, struct json_writer *w)
{
    const int64_t *s = n->size;
    put_part_type(n, w, "vision_model");
    json_put_int(w, "hidden_size", s['d']);
    json_put_int(w, "num_hidden_layers", s['B']);
    json_put_int(w, "num_attention_heads", s['d'] / s['h']);
    json_put_int(w, "mlp_dim", s['m']);
    put_float(w, "mlp_ratio", (double)s['m'] / (double)s['d']);
    json_put_int(w, "window_size", n->window);
    json_begin_list(w, "global_attn_indexes");
    for (int i = 0; i < s['B']; i++)
        if (n->table[i] == 2 * s['g'] - 1) json_put_int(w, NULL, i);
    json_end(w);
    json_put_int(w, "patch_size", s['p']);
    json_put_bool(w, "qkv_bias", true);
    json_put_bool(w, "use_abs_pos", true);
    json_put_bool(w, "use_rel_pos", true);
    put_float(w, "attention_dropout", 0);
    json_put_number(w, "initializer_range", 1e-10);
    json_put_number(w, "layer_norm_eps", 1e-6);
}

/* Writes a list with one number per stage. */
static void stage_list(const struct sam_names *n, struct json_writer *w, const char *key, size_t offset)
{
    json_begin_list(w, key);
    for (int i = 0; i < n->n_stages; i++)
        json_put_int(w, NULL, *(const int64_t *)((const char *)&n->stage[i] + offset));
    json_end(w);
}

static void tinyvit_config(const struct sam_names *n, struct json_writer *w)
{
    const struct sam_stage *last = &n->stage[n->n_stages - 1];
    json_put_string(w, "model_type", "tinyvit");
    stage_list(n, w, "embed_dims", offsetof(struct sam_stage, dim));
    stage_list(n, w, "depths", offsetof(struct sam_stage, depth));
    stage_list(n, w, "num_heads", offsetof(struct sam_stage, heads));
    stage_list(n, w, "window_sizes", offsetof(struct sam_stage, window));
    put_float(w, "mlp_ratio", (double)last->inner / (double)last->dim);
    put_float(w, "mbconv_expand_ratio", (double)n->stage[0].inner / (double)n->stage[0].dim);
    json_put_int(w, "local_conv_size", 3);
    json_put_int(w, "num_classes", n->size['N']);
    json_put_number(w, "layer_norm_eps", 1e-5);
    json_put_number(w, "batch_norm_eps", 1e-5);
}

static void prompt_config(const struct sam_names *n, struct json_writer *w)
{
    json_begin_map(w, "prompt_encoder_config");
    put_part_type(n, w, "prompt_encoder");
    json_put_int(w, "hidden_size", n->size['e']);
    json_put_int(w, "image_size", image_size(n));
    json_put_int(w, "patch_size", patch_size(n));
    json_put_int(w, "image_embedding_size", image_size(n) / patch_size(n));
    json_put_int(w, "mask_input_channels", n->size['k']);
    json_put_int(w, "num_point_embeddings", n->size['P']);
    json_put_string(w, "hidden_act", "gelu");
    json_put_number(w, "layer_norm_eps", 1e-6);
    json_end(w);
}

static void decoder_config(const struct sam_names *n, struct json_writer *w)
{
    json_begin_map(w, "mask_decoder_config");
    put_part_type(n, w, "mask_decoder");
    json_put_int(w, "hidden_size", n->size['e']);
    json_put_int(w, "mlp_dim", n->size['n']);
    json_put_int(w, "num_hidden_layers", n->size['L']);
    json_put_int(w, "num_attention_heads", decoder_heads(n));
    json_put_int(w, "attention_downsample_rate", n->size['e'] / max_i64(1, n->size['a']));
    json_put_int(w, "num_multimask_outputs", n->size['t'] - 1);
    json_put_int(w, "iou_head_depth", 3);
    json_put_int(w, "iou_head_hidden_dim", n->size['i']);
    if (n->high) json_put_int(w, "vit_dim", n->size['d']);
    json_put_string(w, "hidden_act", "relu");
    json_put_number(w, "layer_norm_eps", 1e-5);
    json_end(w);
}

const char *sam_torch_dtype(enum dtype t)
{
    switch (t) {
    case DT_F16: return "float16";
    case DT_BF16: return "bfloat16";
    case DT_F64: return "float64";
    default: return "float32";
    }
}

void sam_config_json(const struct sam_names *n, struct text *out)
{
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_map(&w, NULL);
    json_begin_list(&w, "architectures");
    json_put_string(&w, NULL, n->tiny ? "TinySam" : n->high ? "SamHQModel" : "SamModel");
    json_end(&w);
    json_put_string(&w, "model_type", n->type);
    json_put_number(&w, "initializer_range", 0.02);
    json_put_string(&w, "torch_dtype", sam_torch_dtype(n->parts.n ? n->parts.at[0].from->dtype : DT_F32));
    json_begin_map(&w, "vision_config");
    if (n->tiny) tinyvit_config(n, &w);
    else vit_config(n, &w);
    json_put_int(&w, "image_size", image_size(n));
    json_put_int(&w, "num_channels", n->size['c']);
    json_put_int(&w, "output_channels", n->size['o']);
    json_put_int(&w, "num_pos_feats", n->size['f']);
    json_put_string(&w, "hidden_act", "gelu");
    json_end(&w);
    prompt_config(n, &w);
    decoder_config(n, &w);
    json_end(&w);
    text_append(out, "\n", 1);
}

/* --- does a folder's configuration match? --------------------------------------------------- */

/* Values that no shape determines. */
static const struct field {
    const char *key;
    size_t at; /* offset in struct sam */
    enum { FIELD_SIZE, FIELD_REAL, FIELD_ACT } kind;
} not_in_shapes[] = {
    {"vision_config.image_size", offsetof(struct sam, vision.image), FIELD_SIZE},
    {"vision_config.layer_norm_eps", offsetof(struct sam, vision.eps), FIELD_REAL},
    {"vision_config.hidden_act", offsetof(struct sam, vision.act), FIELD_ACT},
    {"prompt_encoder_config.image_size", offsetof(struct sam, prompts.image), FIELD_SIZE},
    {"prompt_encoder_config.layer_norm_eps", offsetof(struct sam, prompts.eps), FIELD_REAL},
    {"prompt_encoder_config.hidden_act", offsetof(struct sam, prompts.act), FIELD_ACT},
    {"mask_decoder_config.num_attention_heads", offsetof(struct sam, decoder.heads), FIELD_SIZE},
    {"mask_decoder_config.layer_norm_eps", offsetof(struct sam, decoder.eps), FIELD_REAL},
    {"mask_decoder_config.hidden_act", offsetof(struct sam, decoder.act), FIELD_ACT},
};

static const char *field_print(const struct model *m, const struct field *f, char out[32])
{
    static const char *const acts[] = {[ACT_GELU] = "gelu",
                                       [ACT_GELU_TANH] = "gelu_pytorch_tanh",
                                       [ACT_QUICK_GELU] = "quick_gelu",
                                       [ACT_RELU] = "relu",
                                       [ACT_SIGMOID] = "sigmoid",
                                       [ACT_SILU] = "silu",
                                       [ACT_TANH] = "tanh"};
    const char *at = (const char *)m->config + f->at;
    switch (f->kind) {
    case FIELD_SIZE: snprintf(out, 32, "%lld", (long long)*(const int64_t *)(const void *)at); break;
    case FIELD_REAL: number_print(*(const double *)(const void *)at, out); break;
    case FIELD_ACT: snprintf(out, 32, "%s", acts[*(const enum act_kind *)(const void *)at]); break;
    }
    return out;
}

/* Compares both as the layer code sees them: a missing key has its default. */
int sam_config_check(const struct sam_names *n, const struct model *m, struct error *e)
{
    struct text text = {0};
    struct model implied;
    char have[32], assumed[32];
    sam_config_json(n, &text);
    int rc = model_text(&implied, text.at, "the configuration implied by the weights", e);
    text_free(&text);
    if (rc) return rc;
    if (m->family != implied.family)
        rc = error_set(e, PL_USAGE, "model_type is %s, but the weights are those of a %s", m->family->model_type,
                       implied.family->model_type);
    for (size_t i = 0; i < COUNT(not_in_shapes) && !rc; i++) {
        if (!strcmp(field_print(m, &not_in_shapes[i], have), field_print(&implied, &not_in_shapes[i], assumed)))
            continue;
        /* the folders of SAM by transformers have another epsilon than the original code, which
         * changes results by a few parts in a million */
        if (not_in_shapes[i].kind == FIELD_REAL)
            log_warn("%s/config.json: %s is %s; programs that read the exported file assume %s", m->path,
                     not_in_shapes[i].key, have, assumed);
        else
            rc = error_set(e, PL_USAGE,
                           "%s is %s; the exported file cannot store it and would be read as %s, which is another "
                           "model. Set it to that value here to export anyway", not_in_shapes[i].key, have, assumed);
    }
    model_close(&implied);
    return rc ? error_prepend(e, "%s/config.json", m->path) : PL_OK;
}

/* --- preprocessor_config.json --------------------------------------------------------------- */

void sam_put_square(struct json_writer *w, const char *key, int64_t side)
{
    json_begin_map(w, key);
    json_put_int(w, "height", side);
    json_put_int(w, "width", side);
    json_end(w);
}

static void put_longest(struct json_writer *w, const char *key, int64_t side)
{
    json_begin_map(w, key);
    json_put_int(w, "longest_edge", side);
    json_end(w);
}

void sam_begin_processor(struct json_writer *w, const char *images, const char *all, bool pads)
{
    static const double mean[] = {0.485, 0.456, 0.406}, deviation[] = {0.229, 0.224, 0.225};
    static const char *const steps[] = {"do_convert_rgb", "do_normalize", "do_pad", "do_rescale", "do_resize"};
    json_begin_map(w, NULL);
    json_put_string(w, "image_processor_type", images);
    json_put_string(w, "processor_class", all);
    for (size_t i = 0; i < COUNT(steps); i++)
        if (pads || strcmp(steps[i], "do_pad")) json_put_bool(w, steps[i], true);
    json_begin_list(w, "image_mean");
    for (int i = 0; i < 3; i++) json_put_number(w, NULL, mean[i]);
    json_end(w);
    json_begin_list(w, "image_std");
    for (int i = 0; i < 3; i++) json_put_number(w, NULL, deviation[i]);
    json_end(w);
    json_put_int(w, "resample", 2);
    json_put_number(w, "rescale_factor", 1.0 / 255);
}

void sam_preprocessor_json(const struct sam_names *n, struct text *out)
{
    struct json_writer w = {.out = out, .indent = 2};
    int64_t side = image_size(n), mask = 4 * (side / patch_size(n));
    sam_begin_processor(&w, "SamImageProcessor", n->high ? "SamHQProcessor" : "SamProcessor", true);
    put_longest(&w, "size", side);
    sam_put_square(&w, "pad_size", side);
    put_longest(&w, "mask_size", mask);
    sam_put_square(&w, "mask_pad_size", mask);
    json_end(&w);
    text_append(out, "\n", 1);
}
