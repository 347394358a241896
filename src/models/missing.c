/*
 * missing.c: the messages for a model that is not there. People name a model by its id on the
 * Hugging Face Hub, by a checkpoint's file name, or by a preset: each message says how such a name
 * becomes a model folder.
 */
#include <ctype.h>

#include "io/file.h"
#include "models/catalogue.h"
#include "models/model.h"

/* Checkpoints that their authors publish outside of the Hub. */
static const struct {
    const char *file, *url;
} published[] = {
    {"sam_vit_b_01ec64.pth", "https://dl.fbaipublicfiles.com/segment_anything/sam_vit_b_01ec64.pth"},
    {"sam_vit_l_0b3195.pth", "https://dl.fbaipublicfiles.com/segment_anything/sam_vit_l_0b3195.pth"},
    {"sam_vit_h_4b8939.pth", "https://dl.fbaipublicfiles.com/segment_anything/sam_vit_h_4b8939.pth"},
    {"medsam_vit_b.pth", "https://zenodo.org/records/10689643/files/medsam_vit_b.pth"},
    {"sam2.1_hiera_tiny.pt", "https://dl.fbaipublicfiles.com/segment_anything_2/092824/sam2.1_hiera_tiny.pt"},
    {"sam2.1_hiera_small.pt", "https://dl.fbaipublicfiles.com/segment_anything_2/092824/sam2.1_hiera_small.pt"},
    {"sam2.1_hiera_base_plus.pt",
     "https://dl.fbaipublicfiles.com/segment_anything_2/092824/sam2.1_hiera_base_plus.pt"},
    {"sam2.1_hiera_large.pt", "https://dl.fbaipublicfiles.com/segment_anything_2/092824/sam2.1_hiera_large.pt"},
    {"sam2_hiera_tiny.pt", "https://dl.fbaipublicfiles.com/segment_anything_2/072824/sam2_hiera_tiny.pt"},
    {"sam2_hiera_small.pt", "https://dl.fbaipublicfiles.com/segment_anything_2/072824/sam2_hiera_small.pt"},
    {"sam2_hiera_base_plus.pt", "https://dl.fbaipublicfiles.com/segment_anything_2/072824/sam2_hiera_base_plus.pt"},
    {"sam2_hiera_large.pt", "https://dl.fbaipublicfiles.com/segment_anything_2/072824/sam2_hiera_large.pt"},
    {"mobile_sam.pt", "https://github.com/ChaoningZhang/MobileSAM/raw/master/weights/mobile_sam.pt"},
    {"tinysam.pth", "https://github.com/xinghaochen/TinySAM/releases/download/1.0/tinysam.pth"},
    {"tinysam_42.3.pth", "https://github.com/xinghaochen/TinySAM/releases/download/3.0/tinysam_42.3.pth"},
};

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Prints "models/" and the file's name without its extension. */
static void folder_for(const char *file, struct text *out)
{
    const char *name = last_part(file), *dot = strrchr(name, '.');
    text_printf(out, "models/%.*s", dot ? (int)(dot - name) : (int)strlen(name), name);
}

static bool is_checkpoint(const char *path)
{
    return text_ends_with(path, ".pth") || text_ends_with(path, ".pt") || text_ends_with(path, ".ckpt") ||
           text_ends_with(path, ".bin");
}

static int missing_checkpoint(const char *path, struct error *e)
{
    struct text folder = {0};
    const char *url = NULL, *name = last_part(path);
    for (size_t i = 0; i < COUNT(published); i++)
        if (!strcmp(published[i].file, name)) url = published[i].url;
    folder_for(path, &folder);
    if (file_exists(path))
        error_set(e, PL_USAGE,
                  "%s is a PyTorch checkpoint, not a folder. Convert it first: plimsoll convert %s -o %s; then use %s",
                  path, path, folder.at, folder.at);
    else if (url)
        error_set(e, PL_USAGE,
                  "%s is not here. Download it and convert it to a model folder: curl -LO %s && plimsoll convert %s -o "
                  "%s; then use %s", path, url, name, folder.at, folder.at);
    else
        error_set(e, PL_USAGE,
                  "%s: No such file. A checkpoint becomes a model folder by `plimsoll convert FILE -o FOLDER`", path);
    text_free(&folder);
    return e->code;
}

/* Returns the part of a name that is an id on the Hub, "owner/model"; NULL: it is none. */
static const char *hub_id(const char *path)
{
    static const char *const prefixes[] = {"https://huggingface.co/", "http://huggingface.co/", "huggingface.co/",
                                           "hf://"};
    bool url = false;
    for (size_t i = 0; i < COUNT(prefixes) && !url; i++)
        if (!strncmp(path, prefixes[i], strlen(prefixes[i]))) path += strlen(prefixes[i]), url = true;
    int slashes = 0;
    for (const char *c = path; *c; c++) {
        slashes += *c == '/';
        if (!isalnum((unsigned char)*c) && !strchr("/._-", *c)) return NULL;
    }
    const char *slash = strchr(path, '/');
    if (slashes != 1 || slash == path || !slash[1] || *path == '.') return NULL;
    struct text owner = {0};
    text_printf(&owner, "%.*s", (int)(slash - path), path);
    /* a path, not an id */
    bool local = !url && (dir_exists(owner.at) || !strcmp(owner.at, "models") || !strcmp(owner.at, "runs"));
    text_free(&owner);
    return local ? NULL : path;
}

static const char *nearest_preset(const char *name)
{
    const char *found = NULL;
    int best = 3;
    for (const struct preset *p = presets; p->name; p++)
        if (edit_distance(name, p->name) < best) best = edit_distance(name, p->name), found = p->name;
    return found ? found : catalogue_nearest(name);
}

/* Prints "; models has sam, tinyllama": what is in the folder that should hold the model. */
static void list_parent(const char *path, struct text *out)
{
    struct names l = {0};
    struct error ignored;
    const char *name = last_part(path);
    struct text parent = {0};
    text_printf(&parent, "%.*s", name > path ? (int)(name - path) - 1 : 0, path);
    if (parent.n && dir_exists(parent.at) && !dir_list(parent.at, &l, &ignored) && l.n) {
        text_printf(out, "; %s has ", parent.at);
        for (uint32_t i = 0; i < l.n && i < 5; i++) text_printf(out, "%s%.100s", i ? ", " : "", l.at[i]);
        if (l.n > 5) text_printf(out, ", ...");
    }
    names_free(&l);
    text_free(&parent);
}

/* Says how a model of the Hub is downloaded; `near`: the published model with the nearest name;
 * NULL: none. */
static int missing_download(const char *path, const char *hub, const char *near, struct error *e)
{
    const bool published = preset_config(hub);
    return error_set(e, PL_USAGE,
                     "%s is not a folder. A model of the Hugging Face Hub is downloaded first: hf download %s "
                     "--local-dir models/%s; then use models/%s "
                     "(`pip install huggingface_hub` has the command; a model with access conditions also needs "
                     "`hf auth login`)%s%s%s", path, hub, last_part(hub), last_part(hub),
                     published ? ". To plan without its weights: model.preset: "
                     : near    ? "; did you mean "
                               : "",
                     published ? hub
                     : near    ? near
                               : "",
                     near && !published ? "?" : "");
}

int model_missing(const char *path, struct error *e)
{
    const char *hub = hub_id(path), *preset = nearest_preset(path);
    if (!hub && preset_config(path))
        return error_set(e, PL_USAGE,
                         "%s is not a folder: it is the name of a preset, which has random weights (model.preset)",
                         path);
    if (is_checkpoint(path)) return missing_checkpoint(path, e);
    if (file_exists(path))
        return error_set(e, PL_USAGE,
                         "%s is a file, not a folder: name the folder that holds config.json and *.safetensors", path);
    if (hub) return missing_download(path, hub, preset, e);
    struct text beside = {0};
    list_parent(path, &beside);
    error_set(e, PL_USAGE, "%s is not a folder; expected a model folder with config.json and *.safetensors%s%s%s%s",
              path, beside.n ? beside.at : "", preset ? "; did you mean the preset " : "", preset ? preset : "",
              preset ? "?" : "");
    text_free(&beside);
    return e->code;
}

int model_missing_preset(const char *name, struct error *e)
{
    struct text known = {0};
    const char *nearest = nearest_preset(name);
    for (const struct preset *p = presets; p->name; p++) text_printf(&known, "%s%s", p == presets ? "" : ", ", p->name);
    error_set(e, PL_USAGE, "%s is not one of the presets %s, nor of the models of `plimsoll models`%s%s%s", name,
              known.at, nearest ? "; did you mean " : "",
              nearest ? nearest : "", nearest ? "?" : "");
    text_free(&known);
    return e->code;
}

int model_missing_config(const char *path, struct error *e)
{
    struct names l = {0};
    struct error ignored;
    const char *checkpoint = NULL;
    bool meta = false, cache = false, adapter = false;
    if (!dir_list(path, &l, &ignored))
        for (uint32_t i = 0; i < l.n; i++) {
            if (is_checkpoint(l.at[i])) checkpoint = l.at[i];
            meta |= !strcmp(l.at[i], "params.json");
            cache |= !strcmp(l.at[i], "snapshots");
            adapter |= !strcmp(l.at[i], "adapter_config.json");
        }
    if (adapter)
        error_set(e, PL_USAGE,
                  "%s holds an adapter, not a model: give it as adapter.path (--adapter), and the folder of its base "
                  "model as model.path (--model)", path);
    else if (meta)
        error_set(e, PL_USAGE,
                  "%s has params.json and no config.json: these are Meta's own files. Use the model's Hugging Face "
                  "version, with config.json and *.safetensors", path);
    else if (cache)
        error_set(e, PL_USAGE,
            "%s has no config.json: it is a folder of the Hub's cache. The model is in a folder below %s/snapshots",
            path, path);
    else if (checkpoint)
        error_set(e, PL_USAGE,
                  "%s has no config.json. It has the checkpoint %s, which for SAM, SAM 2, MedSAM, MobileSAM or TinySAM "
                  "becomes a model folder: plimsoll convert %s/%s -o FOLDER", path, checkpoint, path, checkpoint);
    else
        error_set(e, PL_USAGE, "%s has no config.json; expected a model folder with config.json and *.safetensors",
                  path);
    names_free(&l);
    return e->code;
}
