/*
 * sam_names.c: see sam_names.h.
 *
 * The tensors of a model are those of its layer code: the sizes are taken from a few tensors, the
 * configuration that they imply is built (sam.c, tinysam.c), and its parameters are compared with
 * all tensors. So a file of weights is accepted or rejected as a whole. Layer code has the names of
 * transformers; `renamed` says where the published ones differ.
 *
 * The sizes have letters:
 *     d hidden size       m its MLP      h head       p patch     c channels   g grid
 *     B blocks            o channels of the embedding (= e)
 *     e prompt width      f frequencies  k channels of the mask's convolutions  P point embeddings
 *     n decoder's MLP     a cross-attention's width   L layers    t mask tokens   i IoU head
 *     N classes of a TinyViT's head
 */
#include "models/model.h"
#include "models/sam_names.h"

#define TINY "image_encoder.layers.#.blocks.#"
#define LAYER "mask_decoder.transformer.layers.#"
#define HYPER "mask_decoder.output_hypernetworks_mlps.#"
#define IOU "mask_decoder.iou_prediction_head"
#define HIGH "mask_decoder.hf_token"
#define GAUSSIAN "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"
/* transformers' second name for the same tensor */
#define SECOND_NAME "prompt_encoder.shared_embedding.positional_embedding"

/* Beginnings of names; # is a number. The first that a name has counts. */
static const struct renaming {
    const char *original, *name;
} renamed[] = {
    {"image_encoder.blocks.#.norm", "vision_encoder.layers.#.layer_norm"},
    {"image_encoder.blocks.#.", "vision_encoder.layers.#."},
    {"image_encoder.patch_embed.proj.", "vision_encoder.patch_embed.projection."},
    {"image_encoder.neck.0.", "vision_encoder.neck.conv1."},
    {"image_encoder.neck.1.", "vision_encoder.neck.layer_norm1."},
    {"image_encoder.neck.2.", "vision_encoder.neck.conv2."},
    {"image_encoder.neck.3.", "vision_encoder.neck.layer_norm2."},
    {"image_encoder.", "vision_encoder."},
    {GAUSSIAN, "shared_image_embedding.positional_embedding"},
    {GAUSSIAN, SECOND_NAME},
    {"prompt_encoder.point_embeddings.", "prompt_encoder.point_embed."},
    {"prompt_encoder.mask_downscaling.0.", "prompt_encoder.mask_embed.conv1."},
    {"prompt_encoder.mask_downscaling.1.", "prompt_encoder.mask_embed.layer_norm1."},
    {"prompt_encoder.mask_downscaling.3.", "prompt_encoder.mask_embed.conv2."},
    {"prompt_encoder.mask_downscaling.4.", "prompt_encoder.mask_embed.layer_norm2."},
    {"prompt_encoder.mask_downscaling.6.", "prompt_encoder.mask_embed.conv3."},
    {LAYER ".norm", LAYER ".layer_norm"},
    {"mask_decoder.transformer.norm_final", "mask_decoder.transformer.layer_norm_final"},
    {"mask_decoder.output_upscaling.0.", "mask_decoder.upscale_conv1."},
    {"mask_decoder.output_upscaling.1.", "mask_decoder.upscale_layer_norm."},
    {"mask_decoder.output_upscaling.3.", "mask_decoder.upscale_conv2."},
    {HYPER ".layers.0.", HYPER ".proj_in."},
    {HYPER ".layers.1.", HYPER ".layers.0."},
    {HYPER ".layers.2.", HYPER ".proj_out."},
    {IOU ".layers.0.", IOU ".proj_in."},
    {IOU ".layers.1.", IOU ".layers.0."},
    {IOU ".layers.2.", IOU ".proj_out."},
    {HIGH ".", "mask_decoder.hq_token."},
    {"mask_decoder.hf_mlp.layers.0.", "mask_decoder.hq_mask_mlp.proj_in."},
    {"mask_decoder.hf_mlp.layers.1.", "mask_decoder.hq_mask_mlp.layers.0."},
    {"mask_decoder.hf_mlp.layers.2.", "mask_decoder.hq_mask_mlp.proj_out."},
    {"mask_decoder.compress_vit_feat.0.", "mask_decoder.compress_vit_conv1."},
    {"mask_decoder.compress_vit_feat.1.", "mask_decoder.compress_vit_norm."},
    {"mask_decoder.compress_vit_feat.3.", "mask_decoder.compress_vit_conv2."},
    {"mask_decoder.embedding_encoder.0.", "mask_decoder.encoder_conv1."},
    {"mask_decoder.embedding_encoder.1.", "mask_decoder.encoder_norm."},
    {"mask_decoder.embedding_encoder.3.", "mask_decoder.encoder_conv2."},
    {"mask_decoder.embedding_maskfeature.0.", "mask_decoder.mask_conv1."},
    {"mask_decoder.embedding_maskfeature.1.", "mask_decoder.mask_norm."},
    {"mask_decoder.embedding_maskfeature.3.", "mask_decoder.mask_conv2."},
};

/* Buffers that some programs save and that can be recreated. */
static const char *const dropped[] = {"pixel_mean", "pixel_std", TINY ".attn.attention_bias_idxs", TINY ".attn.ab"};
/* A counter of BatchNorm that nothing reads: kept where it is. */
static const char COUNTER[] = ".num_batches_tracked";

/* --- names ------------------------------------------------------------------------------- */

enum { NAME_ROOM = 256 };

/* Prints a pattern with numbers in place of #. */
static char *print_name(const char *pattern, const int at[2], char out[NAME_ROOM])
{
    size_t n = 0;
    for (int k = 0; *pattern && n + 8 < NAME_ROOM; pattern++) {
        if (*pattern == '#') n += (size_t)snprintf(out + n, NAME_ROOM - n, "%d", at[k++]);
        else out[n++] = *pattern;
    }
    out[n] = 0;
    return out;
}

/* Returns the pattern of a name: # for each part between dots that is a number without leading
 * zeros. */
static const char *pattern_of(const char *name, char out[NAME_ROOM])
{
    size_t n = 0;
    for (const char *s = name; *s && n + 2 < NAME_ROOM;) {
        const size_t digits = (s == name || s[-1] == '.') ? strspn(s, "0123456789") : 0;
        const bool number = digits && digits < 5 && (s[digits] == '.' || !s[digits]) && (digits == 1 || *s != '0');
        out[n++] = number ? '#' : *s;
        s += number ? digits : 1;
    }
    out[n] = 0;
    return out;
}

const char *sam_original_name(const char *name, char *out, size_t room)
{
    for (size_t i = 0; i < COUNT(renamed); i++) {
        const char *rest = name, *to = renamed[i].original;
        int number = 0;
        for (const char *p = renamed[i].name; rest && *p; p++) {
            char *end = (char *)(uintptr_t)rest;
            if (*p == '#') number = (int)strtol(rest, &end, 10);
            else end += *p == *rest;
            rest = end > rest ? end : NULL;
        }
        if (!rest) continue;
        const int n = (int)strcspn(to, "#");
        if (to[n]) snprintf(out, room, "%.*s%d%s%s", n, to, number, to + n + 1, rest);
        else snprintf(out, room, "%s%s", to, rest);
        return out;
    }
    return name;
}

/* --- the tensors of a configuration ----------------------------------------------------------- */

struct listed {
    struct model model;
    struct graph graph;
};

static void list_close(struct listed *l)
{
    graph_free(&l->graph);
    model_close(&l->model);
}

/* Builds a model. On failure nothing needs closing. */
static int list_open(struct listed *l, const char *config, struct error *e)
{
    TRY(model_text(&l->model, config, "the configuration that the weights imply", e));
    graph_init(&l->graph);
    l->model.family->build(&l->model, &l->graph, &(struct batch){.B = 1, .outputs = true});
    if (!l->graph.error.code) return PL_OK;
    *e = l->graph.error;
    list_close(l);
    return e->code;
}

/* Returns the name of parameter i, or as `original` the published one; NULL: it is a constant. */
static const char *listed_name(const struct listed *l, uint32_t i, bool original, char out[NAME_ROOM])
{
    const id t = l->graph.params.at[i].tensor;
    const char *name = graph_name(&l->graph, tensor_at(&l->graph, t)->name);
    if (storage_of(&l->graph, t)->kind == KIND_CONST) return NULL;
    return original && strncmp(name, "image_encoder.", 14) ? sam_original_name(name, out, NAME_ROOM) : name;
}

/* The patterns of the published names that models of one kind have, sorted. */
struct known {
    struct bump memory;
    const char **at;
    uint32_t n;
};

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static int list_known(struct known *k, const struct sam_names *n, struct error *e)
{
    struct listed l;
    char own[NAME_ROOM], pattern[NAME_ROOM], config[64];
    snprintf(config, sizeof config, "{\"model_type\": \"%s\"}", n->type);
    TRY(list_open(&l, config, e));
    k->at = bump_alloc(&k->memory, l.graph.params.n * sizeof *k->at);
    for (uint32_t i = 0; i < l.graph.params.n; i++) {
        const char *name = listed_name(&l, i, !n->tiny, own);
        if (name) k->at[k->n++] = bump_string(&k->memory, pattern_of(name, pattern));
    }
    qsort(k->at, k->n, sizeof *k->at, by_text);
    list_close(&l);
    return PL_OK;
}

static bool is_known(const struct known *k, const char *name)
{
    char wanted[NAME_ROOM];
    const char *key = pattern_of(name, wanted);
    if (text_ends_with(wanted, COUNTER)) strcpy(wanted + strlen(wanted) - strlen(COUNTER), ".running_var");
    return bsearch(&key, k->at, k->n, sizeof *k->at, by_text);
}

enum naming { SAM_ORIGINAL, SAM_FOLDER, TINY_ORIGINAL };
static const char *const kinds[] = {"SAM's", "transformers' SamModel's", "TinySAM's"};
static const char expected[] = "expected image_encoder.blocks.0.attn.qkv.weight and so on (SAM, MedSAM), "
    "image_encoder.layers.0.blocks.0.conv1.c.weight and so on "
    "(MobileSAM, TinySAM), image_encoder.trunk.blocks.0.attn.qkv.weight and so on (SAM 2), or "
    "vision_encoder.layers.0.attn.qkv.weight and so on (transformers)";

/* Returns the naming by the names of the encoder: the heads have names that two namings share. */
static enum naming find_naming(const struct sam_names *n)
{
    for (uint32_t i = 0; i < n->found.n; i++) {
        if (!strncmp(n->found.at[i].found, "vision_encoder.", 15)) return SAM_FOLDER;
        if (!strncmp(n->found.at[i].found, "image_encoder.layers.", 21)) return TINY_ORIGINAL;
    }
    return SAM_ORIGINAL;
}

/* Reports whether SAM-HQ's token is among the tensors. */
static bool has_high(const struct sam_names *n)
{
    char other[NAME_ROOM];
    bool has = false;
    for (uint32_t i = 0; i < n->found.n; i++)
        has |= !strcmp(sam_original_name(n->found.at[i].found, other, sizeof other), HIGH ".weight");
    return has;
}

/* Sets the published name of a tensor, or NULL if it is dropped; returns false if it is unknown. */
static bool rename_one(struct sam_names *n, enum naming naming, const struct known *known, struct sam_tensor *t)
{
    char other[NAME_ROOM], pattern[NAME_ROOM];
    const char *name = naming == SAM_FOLDER ? sam_original_name(t->found, other, sizeof other) : t->found;
    pattern_of(t->found, pattern);
    for (size_t i = 0; i < COUNT(dropped); i++)
        if (!strcmp(pattern, dropped[i])) return true;
    t->original = bump_string(&n->memory, name);
    return is_known(known, name);
}

static int rename_all(struct sam_names *n, struct error *e)
{
    const enum naming naming = find_naming(n);
    uint32_t unknown = 0;
    struct known known = {0};
    struct text first = {0};
    text_append(&first, "", 0);
    n->tiny = naming == TINY_ORIGINAL;
    n->high = !n->tiny && has_high(n);
    n->type = n->tiny ? "tinysam" : n->high ? "sam_hq" : "sam";
    if (!n->found.n) return error_set(e, PL_USAGE, "no tensors in it; %s", expected);
    TRY(list_known(&known, n, e));
    for (uint32_t i = 0; i < n->found.n; i++)
        if (!rename_one(n, naming, &known, &n->found.at[i]) && unknown++ < 4)
            text_printf(&first, "%s%.120s", first.n ? ", " : "", n->found.at[i].found);
    bump_free(&known.memory);
    if (unknown)
        error_set(e, PL_USAGE, "%u of %u tensors have names that are not %s: %s%s; %s", unknown, n->found.n,
                  kinds[naming], first.at, unknown > 4 ? ", ..." : "", expected);
    text_free(&first);
    return unknown ? e->code : PL_OK;
}

/* --- looking tensors up ----------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sam_tensor *)a)->original, ((const struct sam_tensor *)b)->original);
}

static int by_original(const void *a, const void *b)
{
    const struct sam_tensor *x = a, *y = b;
    int c = by_name(a, b);
    return c ? c : x->source < y->source ? -1 : x->source > y->source;
}

/* Sorts and removes duplicates: a tensor that a folder stores twice is one tensor. */
static void sort_found(struct sam_names *n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n->found.n; i++)
        if (n->found.at[i].original) n->found.at[kept++] = n->found.at[i];
    n->found.n = kept;
    if (kept) qsort(n->found.at, kept, sizeof *n->found.at, by_original);
    kept = 0;
    for (uint32_t i = 0; i < n->found.n; i++)
        if (!kept || strcmp(n->found.at[kept - 1].original, n->found.at[i].original))
            n->found.at[kept++] = n->found.at[i];
    n->found.n = kept;
}

static struct sam_tensor *find(const struct sam_names *n, const char *original)
{
    const struct sam_tensor key = {.original = original};
    return n->found.n ? bsearch(&key, n->found.at, n->found.n, sizeof key, by_name) : NULL;
}

static struct sam_tensor *find_at(const struct sam_names *n, const char *pattern, int a, int b)
{
    char name[NAME_ROOM];
    return find(n, print_name(pattern, (int[2]){a, b}, name));
}

/* Returns a dimension of a tensor; 0: the tensor or the dimension does not exist. */
static int64_t size_of(const struct sam_tensor *t, int dim) { return t && dim < t->rank ? t->dim[dim] : 0; }

/* Does the same for a tensor that every model has. */
static int64_t need(struct sam_names *n, const char *original, int dim)
{
    const struct sam_tensor *t = find(n, original);
    if (!t && !n->missing) n->missing = original;
    return size_of(t, dim);
}

/* --- sizes ---------------------------------------------------------------------------------- */

static int64_t square_root(int64_t x)
{
    int64_t r = 0;
    while ((r + 1) * (r + 1) <= x && r < 1 << 15) r++;
    return r * r == x ? r : 0;
}

/* Finds the sizes of prompt encoder and mask decoder. */
static void head_sizes(struct sam_names *n)
{
    int64_t *s = n->size;
    s['e'] = need(n, "mask_decoder.mask_tokens.weight", 1);
    s['t'] = need(n, "mask_decoder.mask_tokens.weight", 0);
    s['f'] = need(n, GAUSSIAN, 1);
    s['k'] = need(n, "prompt_encoder.mask_downscaling.3.weight", 0);
    s['n'] = need(n, "mask_decoder.transformer.layers.0.mlp.lin1.weight", 0);
    s['a'] = need(n, "mask_decoder.transformer.final_attn_token_to_image.q_proj.weight", 0);
    s['i'] = need(n, IOU ".layers.0.weight", 0);
    s['o'] = s['e'];
    while (find_at(n, "prompt_encoder.point_embeddings.#.weight", (int)s['P'], 0)) s['P']++;
    while (find_at(n, LAYER ".norm1.weight", (int)s['L'], 0)) s['L']++;
    /* At least the two labels, the two corners of a box and one layer: missing tensors are then
     * reported by name. */
    s['P'] = max_i64(s['P'], 4);
    s['L'] = max_i64(s['L'], 1);
}

/* Finds the sizes of the blocks. A block is global if its table covers the whole grid. */
static int block_sizes(struct sam_names *n, struct error *e)
{
    int64_t *s = n->size;
    const struct sam_tensor *t;
    n->window = 0;
    for (s['B'] = 0; (t = find_at(n, "image_encoder.blocks.#.attn.rel_pos_h", (int)s['B'], 0)); s['B']++) {
        if (s['B'] >= SAM_BLOCKS) return error_set(e, PL_USAGE, "more than %d blocks", SAM_BLOCKS);
        int64_t length = size_of(t, 0), reach = (length + 1) / 2;
        if (length % 2 == 0)
            return error_set(e, PL_USAGE, "%s has %lld rows; it must be an odd number, one for each distance", t->found,
                             (long long)length);
        n->table[s['B']] = length;
        if (reach == s['g']) continue;
        if (n->window && n->window != reach)
            return error_set(e, PL_USAGE,
                             "%s has %lld rows, a window of %lld; blocks before it have %lld, and the grid is %lld",
                             t->found, (long long)length, (long long)reach, (long long)n->window, (long long)s['g']);
        n->window = reach;
    }
    s['B'] = max_i64(s['B'], 1);
    if (!n->window) n->window = 14; /* all blocks are global: the window is not used */
    return PL_OK;
}

static int vit_sizes(struct sam_names *n, struct error *e)
{
    int64_t *s = n->size;
    s['d'] = need(n, "image_encoder.patch_embed.proj.weight", 0);
    s['c'] = need(n, "image_encoder.patch_embed.proj.weight", 1);
    s['p'] = need(n, "image_encoder.patch_embed.proj.weight", 2);
    s['g'] = need(n, "image_encoder.pos_embed", 1);
    s['h'] = need(n, "image_encoder.blocks.0.attn.rel_pos_h", 1);
    s['m'] = need(n, "image_encoder.blocks.0.mlp.lin1.weight", 0);
    return block_sizes(n, e);
}

/* Finds the sizes of the stages. Stage 0 consists of MBConv blocks; the later stages have
 * attention. */
static int stage_sizes(struct sam_names *n, int i, struct error *e)
{
    struct sam_stage *g = &n->stage[i];
    const char *mark = i ? TINY ".attn.norm.weight" : TINY ".conv1.c.weight";
    while (find_at(n, mark, i, (int)g->depth)) g->depth++;
    g->depth = max_i64(g->depth, 1);
    const struct sam_tensor *table = find_at(n, TINY ".attn.attention_biases", i, 0);
    g->heads = size_of(table, 0);
    g->window = square_root(size_of(table, 1));
    g->inner = size_of(find_at(n, i ? TINY ".mlp.fc1.weight" : TINY ".conv1.c.weight", i, 0), 0);
    if (table && !g->window)
        return error_set(e, PL_USAGE, "%s has %lld columns, expected the square of a window", table->found,
                         (long long)size_of(table, 1));
    return PL_OK;
}

static int tiny_sizes(struct sam_names *n, struct error *e)
{
    int64_t *s = n->size;
    s['c'] = need(n, "image_encoder.patch_embed.seq.0.c.weight", 1);
    s['N'] = size_of(find(n, "image_encoder.head.weight"), 0);
    int rc = PL_OK;
    int64_t dim = need(n, "image_encoder.patch_embed.seq.2.c.weight", 0);
    for (; dim && !rc && n->n_stages < SAM_STAGES; n->n_stages++) {
        n->stage[n->n_stages].dim = dim;
        rc = stage_sizes(n, n->n_stages, e);
        dim = size_of(find_at(n, "image_encoder.layers.#.downsample.conv3.c.weight", n->n_stages, 0), 0);
    }
    /* No table determines the head width of stage 0: the next stage's is used. */
    if (!rc && n->n_stages > 1 && n->stage[1].heads) {
        n->stage[0].heads = max_i64(1, n->stage[0].dim / (n->stage[1].dim / n->stage[1].heads));
        n->stage[0].window = n->stage[1].window;
    }
    return rc;
}

/* --- the tensors of the model ---------------------------------------------------------------- */

static void print_shape(char out[128], int rank, const int64_t *dim)
{
    size_t k = (size_t)snprintf(out, 128, "[");
    for (int i = 0; i < rank && k < 100; i++)
        k += (size_t)snprintf(out + k, 128 - k, "%s%lld", i ? "," : "", (long long)dim[i]);
    snprintf(out + k, 128 - k, "]");
}

/* Adds a tensor that has this name in a folder. */
static int add_part(struct sam_names *n, const char *name, const char *original, int rank, const int64_t *dim,
                    struct error *e)
{
    struct sam_tensor *t = find(n, original);
    char a[128], b[128];
    if (!t) return error_set(e, PL_USAGE, n->tiny ? "%s is missing" : "%s is missing (%s in a folder)", original, name);
    struct sam_part p = {.original = t->original, .name = bump_string(&n->memory, name), .again = t->used, .from = t};
    t->used = true;
    vec_push(&n->parts, p);
    if (t->rank == rank && !memcmp(t->dim, dim, (size_t)rank * sizeof *dim)) return PL_OK;
    print_shape(a, t->rank, t->dim);
    print_shape(b, rank, dim);
    return error_set(e, PL_USAGE, "%s is %s; the other tensors imply %s", t->found, a, b);
}

/* Adds what layer code does not know: the counters, and transformers' second name. */
static int add_others(struct sam_names *n, struct error *e)
{
    for (uint32_t i = 0; i < n->found.n; i++) {
        const struct sam_tensor *t = &n->found.at[i];
        if (!t->used && text_ends_with(t->original, COUNTER)) TRY(add_part(n, t->original, t->original, 0, NULL, e));
    }
    const struct sam_tensor *t = find(n, GAUSSIAN);
    return n->tiny ? PL_OK : add_part(n, SECOND_NAME, GAUSSIAN, t->rank, t->dim, e);
}

static int part_order(const void *a, const void *b)
{
    const struct sam_part *x = a, *y = b;
    return x->from == y->from ? x->again - y->again : x->from->source < y->from->source ? -1 : 1;
}

static int add_parts(struct sam_names *n, struct error *e)
{
    struct listed l;
    struct text config = {0};
    char name[NAME_ROOM];
    sam_config_json(n, &config);
    int rc = list_open(&l, config.at, e);
    text_free(&config);
    if (rc) return rc;
    for (uint32_t i = 0; i < l.graph.params.n && !rc; i++) {
        const struct tensor *t = tensor_at(&l.graph, l.graph.params.at[i].tensor);
        const char *own = listed_name(&l, i, false, name);
        if (own) rc = add_part(n, own, listed_name(&l, i, !n->tiny, name), t->rank, t->dim, e);
    }
    list_close(&l);
    if (!rc) rc = add_others(n, e);
    for (uint32_t i = 0; i < n->found.n && !rc; i++)
        if (!n->found.at[i].used)
            rc = error_set(e, PL_USAGE,
                           "%s does not belong to a model of %lld blocks, %lld decoder layers and %lld mask tokens",
                           n->found.at[i].found, (long long)(n->tiny ? n->n_stages : n->size['B']),
                           (long long)n->size['L'], (long long)n->size['t']);
    if (n->parts.n) qsort(n->parts.at, n->parts.n, sizeof *n->parts.at, part_order);
    return rc;
}

/* --- interface -------------------------------------------------------------------------------- */

int sam_names_check_dims(const struct sam_names *n, struct error *e)
{
    char shape[128];
    for (uint32_t i = 0; i < n->found.n; i++)
        for (int k = 0; k < n->found.at[i].rank; k++) {
            const struct sam_tensor *t = &n->found.at[i];
            if (t->dim[k] >= 1 && t->dim[k] <= 1 << 24) continue;
            print_shape(shape, t->rank, t->dim);
            return error_set(e, PL_USAGE, "%s is %s: an invalid shape for this model", t->found, shape);
        }
    return PL_OK;
}

void sam_names_add(struct sam_names *n, const char *name, enum dtype t, int rank, const int64_t *dim, uint32_t source)
{
    struct sam_tensor x = {.found = bump_string(&n->memory, name), .dtype = t, .rank = rank, .source = source};
    CHECK(rank <= SAM_RANK, "tensor %s has %d dimensions", name, rank);
    for (int i = 0; i < rank; i++) x.dim[i] = dim[i];
    vec_push(&n->found, x);
}

int sam_names_resolve(struct sam_names *n, struct error *e)
{
    TRY(rename_all(n, e));
    sort_found(n);
    TRY(sam_names_check_dims(n, e));
    head_sizes(n);
    TRY(n->tiny ? tiny_sizes(n, e) : vit_sizes(n, e));
    if (n->missing) return error_set(e, PL_USAGE, "%s is missing", n->missing);
    return add_parts(n, e);
}

void sam_names_free(struct sam_names *n)
{
    vec_free(&n->found);
    vec_free(&n->parts);
    bump_free(&n->memory);
    *n = (struct sam_names){0};
}
