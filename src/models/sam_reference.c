/*
 * sam_reference.c: see sam_reference.h. One table, read from left to right or from right to left.
 *
 * In a pattern # stands for a number and * for the rest of a name, the same on both sides. The first row that
 * fits is taken; a name that no row fits is the same on both sides.
 */
#include "models/sam_reference.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

#define LAYER "mask_decoder.transformer.layers.#"
#define FILTER "mask_decoder.output_hypernetworks_mlps.#"
#define IOU "mask_decoder.iou_prediction_head"

static const struct row {
    const char *side[2]; /* transformers, reference */
} rows[] = {
    {{"vision_encoder.patch_embed.projection.*", "image_encoder.patch_embed.proj.*"}},
    {{"vision_encoder.layers.#.layer_norm1.*", "image_encoder.blocks.#.norm1.*"}},
    {{"vision_encoder.layers.#.layer_norm2.*", "image_encoder.blocks.#.norm2.*"}},
    {{"vision_encoder.layers.#.attn.*", "image_encoder.blocks.#.attn.*"}},
    {{"vision_encoder.layers.#.mlp.*", "image_encoder.blocks.#.mlp.*"}},
    {{"vision_encoder.neck.conv1.*", "image_encoder.neck.0.*"}},
    {{"vision_encoder.neck.layer_norm1.*", "image_encoder.neck.1.*"}},
    {{"vision_encoder.neck.conv2.*", "image_encoder.neck.2.*"}},
    {{"vision_encoder.neck.layer_norm2.*", "image_encoder.neck.3.*"}},
    {{"vision_encoder.pos_embed", "image_encoder.pos_embed"}},
    {{"shared_image_embedding.positional_embedding", "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"}},
    {{"prompt_encoder.point_embed.#.weight", "prompt_encoder.point_embeddings.#.weight"}},
    {{"prompt_encoder.mask_embed.conv1.*", "prompt_encoder.mask_downscaling.0.*"}},
    {{"prompt_encoder.mask_embed.layer_norm1.*", "prompt_encoder.mask_downscaling.1.*"}},
    {{"prompt_encoder.mask_embed.conv2.*", "prompt_encoder.mask_downscaling.3.*"}},
    {{"prompt_encoder.mask_embed.layer_norm2.*", "prompt_encoder.mask_downscaling.4.*"}},
    {{"prompt_encoder.mask_embed.conv3.*", "prompt_encoder.mask_downscaling.6.*"}},
    {{LAYER ".layer_norm1.*", LAYER ".norm1.*"}},
    {{LAYER ".layer_norm2.*", LAYER ".norm2.*"}},
    {{LAYER ".layer_norm3.*", LAYER ".norm3.*"}},
    {{LAYER ".layer_norm4.*", LAYER ".norm4.*"}},
    {{"mask_decoder.transformer.layer_norm_final_attn.*", "mask_decoder.transformer.norm_final_attn.*"}},
    {{"mask_decoder.upscale_conv1.*", "mask_decoder.output_upscaling.0.*"}},
    {{"mask_decoder.upscale_layer_norm.*", "mask_decoder.output_upscaling.1.*"}},
    {{"mask_decoder.upscale_conv2.*", "mask_decoder.output_upscaling.3.*"}},
    {{FILTER ".proj_in.*", FILTER ".layers.0.*"}},
    {{FILTER ".layers.0.*", FILTER ".layers.1.*"}},
    {{FILTER ".proj_out.*", FILTER ".layers.2.*"}},
    {{IOU ".proj_in.*", IOU ".layers.0.*"}},
    {{IOU ".layers.0.*", IOU ".layers.1.*"}},
    {{IOU ".proj_out.*", IOU ".layers.2.*"}},
};

/* What # and * of a pattern stand for; each occurs at most once. */
struct found {
    const char *number, *rest;
    int digits;
};

static bool match(const char *pattern, const char *name, struct found *f)
{
    *f = (struct found){"", "", 0};
    for (; *pattern && *pattern != '*'; pattern++) {
        if (*pattern != '#') {
            if (*name++ != *pattern) return false;
            continue;
        }
        f->number = name;
        f->digits = (int)strspn(name, "0123456789");
        if (!f->digits) return false;
        name += f->digits;
    }
    f->rest = name;
    return *pattern ? *name != '\0' : *name == '\0';
}

static const char *fill(const char *pattern, const struct found *f, char *out, size_t room)
{
    const char *hash = strchr(pattern, '#'), *star = strchr(pattern, '*');
    const char *end = star ? star : pattern + strlen(pattern);
    const int before = (int)((hash ? hash : end) - pattern), between = hash ? (int)(end - hash) - 1 : 0;
    snprintf(out, room, "%.*s%.*s%.*s%s", before, pattern, hash ? f->digits : 0, f->number, between, hash ? hash + 1 : "",
             star ? f->rest : "");
    return out;
}

static const char *translate(const char *name, int from, char *out, size_t room)
{
    struct found f;
    for (size_t i = 0; i < COUNT(rows); i++)
        if (match(rows[i].side[from], name, &f)) return fill(rows[i].side[!from], &f, out, room);
    return name;
}

const char *sam_reference_name(const char *transformers, char *out, size_t room) { return translate(transformers, 0, out, room); }
const char *sam_transformers_name(const char *reference, char *out, size_t room) { return translate(reference, 1, out, room); }
