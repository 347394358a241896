/*
 * sam_names.c: see sam_names.h. Tables first; the rest reads them.
 *
 * A row is a tensor, or one tensor per block, stage or token: # is a placeholder for their numbers.
 * Its shape is written in letters that mean sizes ("3d d"). The sizes are taken from a few tensors
 * (find_sizes) and checked on all of them, so a file of weights is accepted or rejected as a whole.
 *
 *     d hidden size       m its MLP      h head       p patch     c channels   g grid
 *     r relative positions of a block    o channels of the embedding (= e)
 *     e prompt width      f frequencies  k, q channels of the mask's convolutions
 *     n decoder's MLP     a cross-attention's width   u, v upscaling   t mask tokens   i IoU head
 *   TinyViT
 *     b, s first convolutions            x, y width of this stage and the next  z MBConv's inner
 *     j heads             w window^2     l MLP        X last stage's width      N classes
 */
#include "models/sam_names.h"

/* The range of a row's numbers. */
enum over { ONCE, BLOCKS, POINTS, LAYERS, TOKENS, MBCONVS, MERGES, TINY_BLOCKS };

struct row {
    const char *original, *name, *shape;
    enum over over;
    bool optional;
};

#define PAIR(o, n, over, w, b) {o ".weight", n ".weight", w, over, false}, {o ".bias", n ".bias", b, over, false}
#define SAME(o, over, w, b) PAIR(o, o, over, w, b)
/* A convolution without bias and the normalisation after it, with `out` channels. */
#define CONV_BN(o, over, w, out)                                                                                       \
    {o ".c.weight", o ".c.weight", w, over, false}, SAME(o ".bn", over, out, out),                                     \
    {o ".bn.running_mean", o ".bn.running_mean", out, over, false},                                                    \
    {o ".bn.running_var", o ".bn.running_var", out, over, false},                                                      \
    {o ".bn.num_batches_tracked", o ".bn.num_batches_tracked", "", over, true}

/* --- the tables ------------------------------------------------------------------------ */

static const struct row vit[] = {
    {"image_encoder.pos_embed", "vision_encoder.pos_embed", "1 g g d", ONCE, false},
    PAIR("image_encoder.patch_embed.proj", "vision_encoder.patch_embed.projection", ONCE, "d c p p", "d"),
    PAIR("image_encoder.blocks.#.norm1", "vision_encoder.layers.#.layer_norm1", BLOCKS, "d", "d"),
    {"image_encoder.blocks.#.attn.rel_pos_h", "vision_encoder.layers.#.attn.rel_pos_h", "r h", BLOCKS, false},
    {"image_encoder.blocks.#.attn.rel_pos_w", "vision_encoder.layers.#.attn.rel_pos_w", "r h", BLOCKS, false},
    PAIR("image_encoder.blocks.#.attn.qkv", "vision_encoder.layers.#.attn.qkv", BLOCKS, "3d d", "3d"),
    PAIR("image_encoder.blocks.#.attn.proj", "vision_encoder.layers.#.attn.proj", BLOCKS, "d d", "d"),
    PAIR("image_encoder.blocks.#.norm2", "vision_encoder.layers.#.layer_norm2", BLOCKS, "d", "d"),
    PAIR("image_encoder.blocks.#.mlp.lin1", "vision_encoder.layers.#.mlp.lin1", BLOCKS, "m d", "m"),
    PAIR("image_encoder.blocks.#.mlp.lin2", "vision_encoder.layers.#.mlp.lin2", BLOCKS, "d m", "d"),
    {"image_encoder.neck.0.weight", "vision_encoder.neck.conv1.weight", "o d 1 1", ONCE, false},
    PAIR("image_encoder.neck.1", "vision_encoder.neck.layer_norm1", ONCE, "o", "o"),
    {"image_encoder.neck.2.weight", "vision_encoder.neck.conv2.weight", "o o 3 3", ONCE, false},
    PAIR("image_encoder.neck.3", "vision_encoder.neck.layer_norm2", ONCE, "o", "o"),
};

#define MB "image_encoder.layers.0.blocks.#"
#define MERGE "image_encoder.layers.#.downsample"
#define TINY "image_encoder.layers.#.blocks.#"
static const struct row tinyvit[] = {
    CONV_BN("image_encoder.patch_embed.seq.0", ONCE, "b c 3 3", "b"),
    CONV_BN("image_encoder.patch_embed.seq.2", ONCE, "s b 3 3", "s"), CONV_BN(MB ".conv1", MBCONVS, "z x 1 1", "z"),
    CONV_BN(MB ".conv2", MBCONVS, "z 1 3 3", "z"), CONV_BN(MB ".conv3", MBCONVS, "x z 1 1", "x"),
    {TINY ".attn.attention_biases", TINY ".attn.attention_biases", "j w", TINY_BLOCKS, false},
    SAME(TINY ".attn.norm", TINY_BLOCKS, "x", "x"), SAME(TINY ".attn.qkv", TINY_BLOCKS, "3x x", "3x"),
    SAME(TINY ".attn.proj", TINY_BLOCKS, "x x", "x"), SAME(TINY ".mlp.norm", TINY_BLOCKS, "x", "x"),
    SAME(TINY ".mlp.fc1", TINY_BLOCKS, "l x", "l"), SAME(TINY ".mlp.fc2", TINY_BLOCKS, "x l", "x"),
    CONV_BN(TINY ".local_conv", TINY_BLOCKS, "x 1 3 3", "x"), CONV_BN(MERGE ".conv1", MERGES, "y x 1 1", "y"),
    CONV_BN(MERGE ".conv2", MERGES, "y 1 3 3", "y"), CONV_BN(MERGE ".conv3", MERGES, "y y 1 1", "y"),
    /* a classifier head that is never used */
    {"image_encoder.norm_head.weight", "image_encoder.norm_head.weight", "X", ONCE, true},
    {"image_encoder.norm_head.bias", "image_encoder.norm_head.bias", "X", ONCE, true},
    {"image_encoder.head.weight", "image_encoder.head.weight", "N X", ONCE, true},
    {"image_encoder.head.bias", "image_encoder.head.bias", "N", ONCE, true},
    {"image_encoder.neck.0.weight", "image_encoder.neck.0.weight", "o X 1 1", ONCE, false},
    SAME("image_encoder.neck.1", ONCE, "o", "o"),
    {"image_encoder.neck.2.weight", "image_encoder.neck.2.weight", "o o 3 3", ONCE, false},
    SAME("image_encoder.neck.3", ONCE, "o", "o"),
};

/* A decoder attention from width e to the inner width `in` and back. */
#define ATTENTION(o, over, in)                                                                                         \
    SAME(o ".q_proj", over, in " e", in), SAME(o ".k_proj", over, in " e", in), SAME(o ".v_proj", over, in " e", in), \
    SAME(o ".out_proj", over, "e " in, "e")
#define LAYER "mask_decoder.transformer.layers.#"
#define HYPER "mask_decoder.output_hypernetworks_mlps.#"
#define IOU "mask_decoder.iou_prediction_head"
#define GAUSSIAN "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"
static const struct row heads[] = {
    {GAUSSIAN, "shared_image_embedding.positional_embedding", "2 f", ONCE, false},
    {GAUSSIAN, "prompt_encoder.shared_embedding.positional_embedding", "2 f", ONCE, false},
    {"prompt_encoder.point_embeddings.#.weight", "prompt_encoder.point_embed.#.weight", "1 e", POINTS, false},
    {"prompt_encoder.not_a_point_embed.weight", "prompt_encoder.not_a_point_embed.weight", "1 e", ONCE, false},
    PAIR("prompt_encoder.mask_downscaling.0", "prompt_encoder.mask_embed.conv1", ONCE, "q 1 2 2", "q"),
    PAIR("prompt_encoder.mask_downscaling.1", "prompt_encoder.mask_embed.layer_norm1", ONCE, "q", "q"),
    PAIR("prompt_encoder.mask_downscaling.3", "prompt_encoder.mask_embed.conv2", ONCE, "k q 2 2", "k"),
    PAIR("prompt_encoder.mask_downscaling.4", "prompt_encoder.mask_embed.layer_norm2", ONCE, "k", "k"),
    PAIR("prompt_encoder.mask_downscaling.6", "prompt_encoder.mask_embed.conv3", ONCE, "e k 1 1", "e"),
    {"prompt_encoder.no_mask_embed.weight", "prompt_encoder.no_mask_embed.weight", "1 e", ONCE, false},
    ATTENTION(LAYER ".self_attn", LAYERS, "e"), PAIR(LAYER ".norm1", LAYER ".layer_norm1", LAYERS, "e", "e"),
    ATTENTION(LAYER ".cross_attn_token_to_image", LAYERS, "a"),
    PAIR(LAYER ".norm2", LAYER ".layer_norm2", LAYERS, "e", "e"), SAME(LAYER ".mlp.lin1", LAYERS, "n e", "n"),
    SAME(LAYER ".mlp.lin2", LAYERS, "e n", "e"), PAIR(LAYER ".norm3", LAYER ".layer_norm3", LAYERS, "e", "e"),
    PAIR(LAYER ".norm4", LAYER ".layer_norm4", LAYERS, "e", "e"),
    ATTENTION(LAYER ".cross_attn_image_to_token", LAYERS, "a"),
    ATTENTION("mask_decoder.transformer.final_attn_token_to_image", ONCE, "a"),
    PAIR("mask_decoder.transformer.norm_final_attn", "mask_decoder.transformer.layer_norm_final_attn", ONCE, "e", "e"),
    {"mask_decoder.iou_token.weight", "mask_decoder.iou_token.weight", "1 e", ONCE, false},
    {"mask_decoder.mask_tokens.weight", "mask_decoder.mask_tokens.weight", "t e", ONCE, false},
    PAIR("mask_decoder.output_upscaling.0", "mask_decoder.upscale_conv1", ONCE, "e u 2 2", "u"),
    PAIR("mask_decoder.output_upscaling.1", "mask_decoder.upscale_layer_norm", ONCE, "u", "u"),
    PAIR("mask_decoder.output_upscaling.3", "mask_decoder.upscale_conv2", ONCE, "u v 2 2", "v"),
    PAIR(HYPER ".layers.0", HYPER ".proj_in", TOKENS, "e e", "e"),
    PAIR(HYPER ".layers.1", HYPER ".layers.0", TOKENS, "e e", "e"),
    PAIR(HYPER ".layers.2", HYPER ".proj_out", TOKENS, "v e", "v"),
    PAIR(IOU ".layers.0", IOU ".proj_in", ONCE, "i e", "i"), PAIR(IOU ".layers.1", IOU ".layers.0", ONCE, "i i", "i"),
    PAIR(IOU ".layers.2", IOU ".proj_out", ONCE, "t i", "t"),
};

/* Buffers that some programs save and that can be recreated. */
static const char *const dropped[] = {"pixel_mean", "pixel_std",
                                      "image_encoder.layers.#.blocks.#.attn.attention_bias_idxs",
                                      "image_encoder.layers.#.blocks.#.attn.ab"};

/* --- names ------------------------------------------------------------------------------- */

enum naming { SAM_ORIGINAL, SAM_FOLDER, TINY_ORIGINAL, NAMINGS };

static const struct row *row_at(bool tiny, uint32_t i)
{
    uint32_t n = tiny ? COUNT(tinyvit) : COUNT(vit);
    if (i < n) return tiny ? &tinyvit[i] : &vit[i];
    return i - n < COUNT(heads) ? &heads[i - n] : NULL;
}

/* Returns the name to save: in a tinysam folder the name is the published one. */
static const char *folder_name(bool tiny, const struct row *r) { return tiny ? r->original : r->name; }

/* Reports whether `name` is `pattern` with numbers, without leading zeros, in place of #. */
static bool match(const char *pattern, const char *name, int at[2])
{
    int k = 0;
    for (; *pattern; pattern++) {
        if (*pattern != '#') {
            if (*name++ != *pattern) return false;
            continue;
        }
        size_t digits = strspn(name, "0123456789");
        if (!digits || digits > 4 || (digits > 1 && *name == '0')) return false;
        at[k++] = atoi(name);
        name += digits;
    }
    return !*name;
}

enum { NAME_ROOM = 256 };

static char *print_name(const char *pattern, const int at[2], char *out, size_t room)
{
    size_t n = 0;
    for (int k = 0; *pattern && n + 8 < room; pattern++) {
        if (*pattern == '#') n += (size_t)snprintf(out + n, room - n, "%d", at[k++]);
        else out[n++] = *pattern;
    }
    out[n] = 0;
    return out;
}

static const char *fill(struct bump *b, const char *pattern, const int at[2])
{
    char out[NAME_ROOM];
    return bump_string(b, print_name(pattern, at, out, sizeof out));
}

const char *sam_original_name(const char *name, char *out, size_t room)
{
    int at[2] = {0};
    const struct row *r;
    for (uint32_t i = 0; (r = row_at(false, i)); i++)
        if (match(r->name, name, at)) return print_name(r->original, at, out, room);
    return name;
}

/* Returns the published name of `name`, which is in the given naming. "": dropped; NULL:
 * unknown. */
static const char *rename_one(struct bump *b, enum naming naming, const char *name)
{
    int at[2] = {0};
    const struct row *r;
    for (uint32_t i = 0; (r = row_at(naming == TINY_ORIGINAL, i)); i++)
        if (match(naming == SAM_FOLDER ? r->name : r->original, name, at)) return fill(b, r->original, at);
    for (size_t i = 0; i < COUNT(dropped); i++)
        if (match(dropped[i], name, at)) return "";
    return NULL;
}

/* Returns the naming that recognises the most names; two namings share the names of heads. */
static enum naming find_naming(struct sam_names *n)
{
    enum naming best = SAM_ORIGINAL;
    uint32_t most = 0;
    for (enum naming k = SAM_ORIGINAL; k < NAMINGS; k++) {
        uint32_t known = 0;
        for (uint32_t i = 0; i < n->found.n; i++) known += rename_one(&n->memory, k, n->found.at[i].found) != NULL;
        if (known > most) most = known, best = k;
    }
    return best;
}

static const char *const kinds[] = {"SAM's", "transformers' SamModel's", "TinySAM's"};
static const char expected[] = "expected image_encoder.blocks.0.attn.qkv.weight and so on (SAM, MedSAM), "
    "image_encoder.layers.0.blocks.0.conv1.c.weight and so on "
    "(MobileSAM, TinySAM), or vision_encoder.layers.0.attn.qkv.weight and so on (transformers)";

static int rename_all(struct sam_names *n, struct error *e)
{
    enum naming naming = find_naming(n);
    uint32_t unknown = 0;
    struct text first = {0};
    text_append(&first, "", 0);
    n->tiny = naming == TINY_ORIGINAL;
    for (uint32_t i = 0; i < n->found.n; i++) {
        struct sam_tensor *t = &n->found.at[i];
        const char *original = rename_one(&n->memory, naming, t->found);
        t->original = original && !*original ? NULL : original;
        if (original) continue;
        if (unknown++ < 4) text_printf(&first, "%s%.120s", first.n ? ", " : "", t->found);
    }
    int rc = PL_OK;
    if (!n->found.n) rc = error_set(e, PL_USAGE, "no tensors in it; %s", expected);
    else if (unknown)
        rc = error_set(e, PL_USAGE, "%u of %u tensors have names that are not %s: %s%s; %s", unknown, n->found.n,
                       kinds[naming], first.at, unknown > 4 ? ", ..." : "", expected);
    text_free(&first);
    return rc;
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
    return find(n, print_name(pattern, (int[2]){a, b}, name, sizeof name));
}

/* Returns a dimension of a tensor; 0: the tensor or the dimension does not exist. */
static int64_t size_of(const struct sam_tensor *t, int dim) { return t && dim < t->rank ? t->dim[dim] : 0; }

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
    s['e'] = size_of(find(n, "mask_decoder.mask_tokens.weight"), 1);
    s['t'] = size_of(find(n, "mask_decoder.mask_tokens.weight"), 0);
    s['f'] = size_of(find(n, GAUSSIAN), 1);
    s['k'] = size_of(find(n, "prompt_encoder.mask_downscaling.3.weight"), 0);
    s['q'] = s['k'] / 4;
    s['n'] = size_of(find(n, "mask_decoder.transformer.layers.0.mlp.lin1.weight"), 0);
    s['a'] = size_of(find(n, "mask_decoder.transformer.final_attn_token_to_image.q_proj.weight"), 0);
    s['u'] = s['e'] / 4;
    s['v'] = s['e'] / 8;
    s['i'] = size_of(find(n, IOU ".layers.0.weight"), 0);
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
    const struct sam_tensor *patch = find(n, "image_encoder.patch_embed.proj.weight");
    s['d'] = size_of(patch, 0);
    s['c'] = size_of(patch, 1);
    s['p'] = size_of(patch, 2);
    s['g'] = size_of(find(n, "image_encoder.pos_embed"), 1);
    s['h'] = size_of(find(n, "image_encoder.blocks.0.attn.rel_pos_h"), 1);
    s['m'] = size_of(find(n, "image_encoder.blocks.0.mlp.lin1.weight"), 0);
    if (s['h'] && s['d'] % s['h'])
        return error_set(e, PL_USAGE, "a hidden size of %lld is not divisible into heads of %lld", (long long)s['d'],
                         (long long)s['h']);
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
    if (g->heads && g->dim % g->heads)
        return error_set(e, PL_USAGE, "%s: a width of %lld is not divisible into %lld heads", table->found,
                         (long long)g->dim, (long long)g->heads);
    return PL_OK;
}

static int tiny_sizes(struct sam_names *n, struct error *e)
{
    int64_t *s = n->size;
    s['b'] = size_of(find(n, "image_encoder.patch_embed.seq.0.c.weight"), 0);
    s['c'] = size_of(find(n, "image_encoder.patch_embed.seq.0.c.weight"), 1);
    s['s'] = size_of(find(n, "image_encoder.patch_embed.seq.2.c.weight"), 0);
    s['N'] = size_of(find(n, "image_encoder.head.weight"), 0);
    int rc = PL_OK;
    for (int64_t dim = s['s']; dim && !rc && n->n_stages < SAM_STAGES; n->n_stages++) {
        n->stage[n->n_stages].dim = s['X'] = dim;
        rc = stage_sizes(n, n->n_stages, e);
        dim = size_of(find_at(n, MERGE ".conv3.c.weight", n->n_stages, 0), 0);
    }
    /* No table determines the head width of stage 0: the next stage's is used. */
    if (!rc && n->n_stages > 1 && n->stage[1].heads) {
        n->stage[0].heads = max_i64(1, n->stage[0].dim / (n->stage[1].dim / n->stage[1].heads));
        n->stage[0].window = n->stage[1].window;
    }
    return rc;
}

/* --- the tensors of the model ---------------------------------------------------------------- */

/* Returns the number of tensors of a row, by its first number and then its second. add_parts
 * iterates over the stages of a TinyViT. */
static int64_t count_first(const struct sam_names *n, enum over over)
{
    switch (over) {
    case BLOCKS: return n->size['B'];
    case POINTS: return n->size['P'];
    case LAYERS: return n->size['L'];
    case TOKENS: return n->size['t'];
    case MBCONVS: return n->n_stages ? n->stage[0].depth : 0;
    default: return 1;
    }
}

static int64_t count_second(const struct sam_names *n, enum over over, int first)
{
    return over != TINY_BLOCKS ? 1 : first ? n->stage[first].depth : 0;
}

/* Sets the letters with sizes that depend on the row's number. */
static void bind(struct sam_names *n, enum over over, int first)
{
    int64_t *s = n->size;
    if (over == BLOCKS) s['r'] = n->table[first];
    if (over == MBCONVS) s['x'] = n->stage[0].dim, s['z'] = n->stage[0].inner;
    if (over == MERGES) s['x'] = n->stage[first].dim, s['y'] = n->stage[first + 1].dim;
    if (over != TINY_BLOCKS) return;
    const struct sam_stage *g = &n->stage[first];
    s['x'] = g->dim, s['j'] = g->heads, s['w'] = g->window * g->window, s['l'] = g->inner;
}

/* Reads a shape such as "3d d" with this model's sizes. */
static int read_shape(const struct sam_names *n, const char *shape, int64_t dim[4])
{
    int rank = 0;
    while (*shape) {
        char *end;
        int64_t x = strtoll(shape, &end, 10);
        if (end == shape) x = 1;
        if (*end && *end != ' ') x *= n->size[(unsigned char)*end++];
        dim[rank++] = x;
        shape = *end ? end + 1 : end;
    }
    return rank;
}

static void print_shape(char out[128], int rank, const int64_t *dim)
{
    size_t k = (size_t)snprintf(out, 128, "[");
    for (int i = 0; i < rank && k < 100; i++)
        k += (size_t)snprintf(out + k, 128 - k, "%s%lld", i ? "," : "", (long long)dim[i]);
    snprintf(out + k, 128 - k, "]");
}

static int check_shape(const struct sam_names *n, const struct row *r, const struct sam_tensor *t, struct error *e)
{
    int64_t want[4];
    char a[128], b[128];
    int rank = read_shape(n, r->shape, want);
    bool same = rank == t->rank;
    for (int i = 0; i < rank && same; i++) same = want[i] == t->dim[i];
    if (same) return PL_OK;
    print_shape(a, t->rank, t->dim);
    print_shape(b, rank, want);
    return error_set(e, PL_USAGE, "%s is %s; the other tensors imply %s", t->found, a, b);
}

static int add_part(struct sam_names *n, const struct row *r, bool again, const int at[2], struct error *e)
{
    struct sam_part p = {.original = fill(&n->memory, r->original, at), .again = again};
    struct sam_tensor *t = find(n, p.original);
    if (!t && r->optional) return PL_OK;
    p.name = fill(&n->memory, folder_name(n->tiny, r), at);
    if (!t && n->tiny) return error_set(e, PL_USAGE, "%s is missing", p.original);
    if (!t) return error_set(e, PL_USAGE, "%s is missing (%s in a folder)", p.original, p.name);
    p.from = t;
    t->used = true;
    vec_push(&n->parts, p);
    return check_shape(n, r, t, e);
}

/* Adds rows [from, to), which have the same range, for the first numbers [low, high): block by
 * block, in the published order. */
static int add_rows(struct sam_names *n, uint32_t from, uint32_t to, int64_t low, int64_t high, struct error *e)
{
    enum over over = row_at(n->tiny, from)->over;
    int rc = PL_OK;
    for (int i = (int)low; i < high && !rc; i++) {
        bind(n, over, i);
        for (int k = 0; k < count_second(n, over, i) && !rc; k++)
            for (uint32_t j = from; j < to && !rc; j++) {
                bool again = j > from && !strcmp(row_at(n->tiny, j - 1)->original, row_at(n->tiny, j)->original);
                if (!(again && n->tiny)) rc = add_part(n, row_at(n->tiny, j), again, (int[2]){i, k}, e);
            }
    }
    return rc;
}

/* Returns the end of the run of rows that begins at `from`. */
static uint32_t run_end(bool tiny, uint32_t from)
{
    uint32_t to = from + 1;
    while (row_at(tiny, to) && row_at(tiny, to)->over == row_at(tiny, from)->over) to++;
    return to;
}

static int add_parts(struct sam_names *n, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t from = 0, to, end; row_at(n->tiny, from) && !rc; from = end) {
        enum over over = row_at(n->tiny, from)->over;
        to = end = run_end(n->tiny, from);
        if (over != TINY_BLOCKS) {
            rc = add_rows(n, from, to, 0, count_first(n, over), e);
            continue;
        }
        end = run_end(n->tiny, to); /* for each stage, its blocks, then the downsampling to the next stage */
        for (int i = 0; i < n->n_stages && !rc; i++) {
            rc = add_rows(n, from, to, i, i + 1, e);
            if (!rc && i + 1 < n->n_stages) rc = add_rows(n, to, end, i, i + 1, e);
        }
    }
    for (uint32_t i = 0; i < n->found.n && !rc; i++)
        if (!n->found.at[i].used)
            rc = error_set(e, PL_USAGE,
                           "%s does not belong to a model of %lld blocks, %lld decoder layers and %lld mask tokens",
                           n->found.at[i].found, (long long)(n->tiny ? n->n_stages : n->size['B']),
                           (long long)n->size['L'], (long long)n->size['t']);
    return rc;
}

/* --- checks across tensors
 * ----------------------------------------------------------------------- */

/* Checks that no tensor is empty, and no dimension is so large that the product of two sizes
 * overflows. */
static int check_dims(const struct sam_names *n, struct error *e)
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

static int check_sizes(const struct sam_names *n, struct error *e)
{
    const int64_t *s = n->size;
    const struct sam_stage *last = &n->stage[n->tiny ? n->n_stages - 1 : 0];
    if (s['e'] % s['a'])
        return error_set(e, PL_USAGE,
                         "the decoder's cross-attention has a width of %lld, which is not a divisor of %lld",
                         (long long)s['a'], (long long)s['e']);
    if (s['e'] != 2 * s['f'])
        return error_set(e, PL_USAGE, "%s has %lld columns; half the width of %lld is expected", GAUSSIAN,
                         (long long)s['f'], (long long)s['e']);
    for (int i = 1; i < n->n_stages; i++)
        if (n->stage[i].inner * last->dim != last->inner * n->stage[i].dim)
            return error_set(e, PL_USAGE,
                             "image_encoder.layers.%d has an MLP of %lld for a width of %lld, the last stage %lld for "
                             "%lld: one ratio is expected",
                             i, (long long)n->stage[i].inner, (long long)n->stage[i].dim, (long long)last->inner,
                             (long long)last->dim);
    return PL_OK;
}

/* --- interface
 * ---------------------------------------------------------------------------------- */

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
    if (check_dims(n, e)) return e->code;
    head_sizes(n);
    int rc = n->tiny ? tiny_sizes(n, e) : vit_sizes(n, e);
    if (!rc) rc = add_parts(n, e);
    return rc ? rc : check_sizes(n, e);
}

void sam_names_free(struct sam_names *n)
{
    vec_free(&n->found);
    vec_free(&n->parts);
    bump_free(&n->memory);
    *n = (struct sam_names){0};
}
