/*
 * kinds.c: kinds of models, by what a sample holds and what a prediction is (model.h).
 */
#include "models/heads.h"
#include "models/images.h"
#include "models/masks.h"
#include "models/prs_med.h"

static bool takes_tokens(const struct model *m) { return model_port(m, "input_ids"); }
static bool takes_images(const struct model *m) { return m->images; }
static bool takes_any_size(const struct model *m) { return images_grids(m); }
static bool takes_one_size(const struct model *m) { return m->images && !m->images->grids && !prs_model(m); }
static bool takes_sizes(const struct model *m) { return images_grids(m) || images_tiles(m); }
static bool shares_tokens(const struct model *m) { return takes_any_size(m) && !image_own_tokens(m); }
static bool takes_volumes(const struct model *m) { return m->images && m->images->modalities.n; }
static bool predicts_masks(const struct model *m) { return m->masks; }
static bool predicts_objects(const struct model *m) { return m->masks && m->masks->objects; }
static bool takes_clips(const struct model *m) { return m->masks && m->masks->clips; }
static bool matches_texts(const struct model *m) { return m->ground; }
static bool answers_questions(const struct model *m) { return prs_model(m); }
static bool has_head(const struct model *m) { return m->head; }
static bool has_classes(const struct model *m) { return m->head && m->head->kind == HEAD_CLASSES; }
static bool normalizes_batches(const struct model *m) { return m->batch_norm; }
static bool balances_experts(const struct model *m) { return m->balances; }

const struct model_kind model_kinds[] = {
    {"tokens", "a model that takes tokens", takes_tokens},
    {"media", "one that takes images among its tokens (llava, qwen2_vl)", takes_images},
    {"images", "one that takes images of one size among its tokens (llava)", takes_one_size},
    {"sized", "one whose images have tokens by their size (llava_onevision, qwen2_vl)", takes_sizes},
    {"grids", "one whose images have any size (qwen2_vl)", takes_any_size},
    {"sizes", "one whose images have any size, and tokens by it (qwen2_vl)", image_own_tokens},
    {"shares", "one that shares tokens among patches (arr_coc_qwen2_vl)", shares_tokens},
    {"modalities", "one that takes volumes among its tokens (model.modalities)", takes_volumes},
    {"masks", "a mask model (sam, tinysam, sam2)", predicts_masks},
    {"clips", "one that takes clips of videos (sam2_video)", takes_clips},
    {"objects", "one that predicts whether there is an object (sam2)", predicts_objects},
    {"ground", "arr_coc", matches_texts},
    {"questions", "prs_med", answers_questions},
    {"head", "a vision tower with a head (clip, siglip)", has_head},
    {"classes", "one with a head for classes", has_classes},
    {"experts", "a mixture of experts with output_router_logits in its config.json", balances_experts},
    {"batch_norm", "one with batch normalization (tinysam, prs_med)", normalizes_batches},
    {NULL, NULL, NULL},
};

bool model_is(const struct model *m, const char *word)
{
    const struct model_kind *k = model_kinds;
    while (k->word && strcmp(k->word, word)) k++;
    CHECK(k->word, "no kind of model is %s", word);
    return k->is(m);
}
