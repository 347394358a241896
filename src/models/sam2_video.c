/*
 * sam2_video.c: SAM 2 on clips of a video: prompts on some frames, and memories of earlier frames
 * for the others.
 *
 *     image (b, t) ── memory attention ── mask decoder ── logits, object, token of the best mask
 *                        │                                  │                │
 *                        │            pointer ◄─────────────┼── MLP ─────────┘
 *                        │            memory  ◄── memory encoder: the image and the mask
 *                        └─ memories and pointers of the prompted frames and of the last tracked ones
 *
 * Rows. B clips of T frames have M objects each. The first K frames of a clip have prompts,
 * whatever their times in the video; the other frames are tracked, in the order of their times. So
 * the graph is the same for all clips, and what differs is data:
 *
 *     frame_times    i32 [B,T]      the number of each frame in the video, from which follow:
 *     memory_rows    i32 [B,T,T]    which temporal position the memory of frame j has for frame i
 *     pointer_rows   i32 [B,T,T]    0: frame i sees the pointer of frame j; 1: it does not
 *     pointer_times  f32 [B,T,T,2]  how far apart both frames are
 *
 * Prompted frames see no memories, as in the reference; the decoder takes them at once. Tracked
 * frames follow one after the other, unrolled: the backward goes through the memories.
 *
 * A choice between two tensors by a logit is an index (TOPK) that a GATHER reads: the choice is a
 * constant, and the gradient goes to what was chosen.
 */
#include "models/sam2_video.h"

#include <math.h>

#include "graph/emit.h"
#include "graph/sizes.h"
#include "models/layers.h"

/* The logit of a mask of an object that is not there. */
static const double NO_OBJECT = -1024;
/* The logits of a mask that is given: x * GIVEN_SCALE + GIVEN_OFFSET. */
static const double GIVEN_SCALE = 20, GIVEN_OFFSET = -10;
static const double PI = 3.14159265358979323846;

/* --- configuration ------------------------------------------------------------------------- */

static const struct sam_video usual = {
    .memories = 7, .pointers = 16, .prompted = -1, .points = {0, 1}, .several = true, .several_tracked = true,
    .temporal = true, .occlusion = true, .hidden = 256, .layers = 4, .heads = 1, .downsample = 1, .inner = 2048,
    .theta = 10000, .act = ACT_RELU, .encoder = 256, .channels = 64, .stride = 2, .total = 16, .kernel = 3, .pad = 1,
    .embed = 256, .scale = 20, .bias = -10, .mask_act = ACT_GELU, .fuser = 256, .fuser_layers = 2,
    .fuser_inner = 1024, .fuser_kernel = 7, .fuser_pad = 3, .fuser_act = ACT_GELU};

/* Checks the sizes that clips need. */
static int check_sizes(const struct sam *c, const struct sam_video *v, struct error *e)
{
    const int64_t C = c->vision.output, D = v->hidden / max_i64(1, v->heads * v->downsample);
    const struct {
        const char *key;
        int64_t found;
    } widths[] = {{"memory_attention_hidden_size", v->hidden}, {"memory_encoder_hidden_size", v->encoder},
                  {"mask_downsampler_embed_dim", v->embed}, {"memory_fuser_embed_dim", v->fuser}};
    for (size_t i = 0; i < COUNT(widths); i++)
        if (widths[i].found != C)
            return error_set(e, PL_USAGE, "%s is %lld, expected fpn_hidden_size %lld", widths[i].key,
                             (long long)widths[i].found, (long long)C);
    if (D * v->heads * v->downsample != v->hidden || D % 4)
        return error_set(e, PL_USAGE,
                         "memory_attention_hidden_size %lld, in %lld heads and %lld times narrower, has no heads of a "
                         "multiple of 4", (long long)v->hidden, (long long)v->heads, (long long)v->downsample);
    if (C % v->channels || v->channels % 4)
        return error_set(e, PL_USAGE,
                         "memory_encoder_output_channels is %lld, expected a divisor of fpn_hidden_size %lld that "
                         "is divisible by 4", (long long)v->channels, (long long)C);
    if (!sam_mask_layers(v) || v->total != c->vision.patch || v->total != 16)
        return error_set(e, PL_USAGE,
                         "mask_downsampler_stride %lld and mask_downsampler_total_stride %lld, with a map of 1/%lld of "
                         "the image: expected powers of the stride that make 16, and such a map",
                         (long long)v->stride, (long long)v->total, (long long)c->vision.patch);
    if (v->kernel - 2 * v->pad < 1 || v->kernel - 2 * v->pad > v->stride)
        return error_set(e, PL_USAGE,
                         "mask_downsampler_kernel_size %lld and mask_downsampler_padding %lld: expected maps that "
                         "go down by mask_downsampler_stride %lld", (long long)v->kernel, (long long)v->pad,
                         (long long)v->stride);
    if (v->fuser_kernel != 2 * v->fuser_pad + 1)
        return error_set(e, PL_USAGE, "memory_fuser_kernel_size %lld and memory_fuser_padding %lld: expected maps that "
                         "keep their size", (long long)v->fuser_kernel, (long long)v->fuser_pad);
    return PL_OK;
}

static int parse_numbers(struct sam_video *v, const struct value *config, struct error *e)
{
    const struct size_key keys[] = {
        {"num_maskmem", &v->memories, 2, 64},
        {"max_object_pointers_in_encoder", &v->pointers, 2, 1 << 10},
        {"max_cond_frame_num", &v->prompted, -1, 1 << 10},
        {"multimask_min_pt_num", &v->points[0], 0, 1 << 10},
        {"multimask_max_pt_num", &v->points[1], 0, 1 << 10},
        {"memory_attention_hidden_size", &v->hidden, 1, 1 << 16},
        {"memory_attention_num_layers", &v->layers, 1, 256},
        {"memory_attention_num_attention_heads", &v->heads, 1, 1 << 10},
        {"memory_attention_downsample_rate", &v->downsample, 1, 1 << 10},
        {"memory_attention_feed_forward_hidden_size", &v->inner, 1, 1 << 20},
        {"memory_encoder_hidden_size", &v->encoder, 1, 1 << 16},
        {"memory_encoder_output_channels", &v->channels, 1, 1 << 16},
        {"mask_downsampler_embed_dim", &v->embed, 1, 1 << 16},
        {"mask_downsampler_stride", &v->stride, 2, 16},
        {"mask_downsampler_total_stride", &v->total, 2, 1 << 10},
        {"mask_downsampler_kernel_size", &v->kernel, 1, 64},
        {"mask_downsampler_padding", &v->pad, 0, 64},
        {"memory_fuser_embed_dim", &v->fuser, 1, 1 << 16},
        {"memory_fuser_num_layers", &v->fuser_layers, 1, 64},
        {"memory_fuser_intermediate_dim", &v->fuser_inner, 1, 1 << 20},
        {"memory_fuser_kernel_size", &v->fuser_kernel, 1, 64},
        {"memory_fuser_padding", &v->fuser_pad, 0, 64},
    };
    const struct value *rope = value_get(config, "rope_parameters");
    TRY(layer_parse_sizes(config, keys, COUNT(keys), e));
    TRY(value_opt_number(config, "memory_attention_rope_theta", &v->theta, e));
    if (rope && rope->kind == VALUE_MAP) TRY(value_opt_number(rope, "rope_theta", &v->theta, e));
    TRY(value_opt_number(config, "sigmoid_scale_for_mem_enc", &v->scale, e));
    return value_opt_number(config, "sigmoid_bias_for_mem_enc", &v->bias, e);
}

static int parse_choices(struct sam_video *v, const struct value *config, struct error *e)
{
    TRY(value_opt_bool(config, "multimask_output_in_sam", &v->several, e));
    TRY(value_opt_bool(config, "multimask_output_for_tracking", &v->several_tracked, e));
    TRY(value_opt_bool(config, "enable_temporal_pos_encoding_for_object_pointers", &v->temporal, e));
    TRY(value_opt_bool(config, "enable_occlusion_spatial_embedding", &v->occlusion, e));
    TRY(layer_parse_act_at(config, "memory_attention_feed_forward_hidden_act", &v->act, e));
    TRY(layer_parse_act_at(config, "mask_downsampler_hidden_act", &v->mask_act, e));
    return layer_parse_act_at(config, "memory_fuser_hidden_act", &v->fuser_act, e);
}

/* Beginnings of the names of what a folder for videos has besides that for images. */
static const char *const video_weights[] = {
    "memory_", "mask_downsample.", "object_pointer_proj.", "temporal_positional_encoding_projection_layer.",
    "no_memory_positional_encoding", "no_memory_embedding", "no_object_pointer",
    "occlusion_spatial_embedding_parameter", NULL};

/* Parses the model for videos, which also takes images: the published folders of SAM 2 are such
 * ones. Sizes that clips cannot have are refused when a clip is built. */
static int parse_sam2_video(struct model *m, const struct value *config, struct error *e)
{
    TRY(sam2_parse(m, config, e));
    m->copied = video_weights;
    struct sam *c = m->config;
    struct sam_video *v = bump_alloc(&m->memory, sizeof *v);
    struct error sizes;
    *v = usual;
    c->video = v;
    TRY(parse_numbers(v, config, e));
    TRY(parse_choices(v, config, e));
    if (check_sizes(c, v, &sizes)) v->refused = bump_string(&m->memory, sizes.text);
    /* L: frames of a clip; M: its prompts, G: its targets, of frame after frame */
    const struct port ports[] = {
        {"pixel_values_videos", VALUES_REAL, 5, {OPEN('B'), OPEN('L'), c->vision.channels, OPEN('S'), OPEN('S')}, true},
        {"frame_times", VALUES_INDEX, 2, {OPEN('B'), OPEN('L')}, true, INT32_MAX},
        {"prompt_masks", VALUES_REAL, 4, {OPEN('B'), OPEN('M'), OPEN('S'), OPEN('S')}, true},
    };
    for (int i = 0; i < m->n_ports; i++) {
        if (!strcmp(m->ports[i].name, "pixel_values")) m->ports[i].optional = true;
        if (!strcmp(m->ports[i].name, "gt_masks")) m->ports[i].dim[1] = OPEN('G');
    }
    for (size_t i = 0; i < COUNT(ports); i++) model_add_port(m, &ports[i]);
    model_add_output(m, "object_pointers");
    m->masks->clips = true;
    return PL_OK;
}

/* --- what is data --------------------------------------------------------------------------- */

static const struct sam_video *video_of(const struct model *m) { return ((const struct sam *)m->config)->video; }

int64_t clip_memories(const struct model *m) { return video_of(m)->memories; }
int64_t clip_pointers(const struct model *m) { return video_of(m)->pointers; }
int64_t clip_prompted(const struct model *m) { return video_of(m)->prompted; }

struct clip_sight clip_see(const struct model *m, int64_t apart, bool prompted, bool later, int64_t pointers)
{
    const int64_t memories = video_of(m)->memories;
    const bool remembered = prompted || (apart > 0 && apart < memories),
               points = prompted ? apart >= 0 || later : apart > 0 && apart < pointers;
    return (struct clip_sight){
        .memory = (int32_t)(remembered ? prompted ? memories - 1 : apart - 1 : memories),
        .pointer = !points,
        .time = points ? (float)(((double)apart / (double)max_i64(1, pointers - 1) + 1) / 2) : 0.5f};
}

void clip_rows(const struct model *m, const struct prompting *p, const int32_t *times, struct clip_rows *out)
{
    const int64_t T = p->frames, pointers = min_i64(T, clip_pointers(m));
    for (int64_t i = 0; i < T; i++)
        for (int64_t j = 0; j < T; j++) {
            const int64_t k = i * T + j;
            const struct clip_sight s =
                clip_see(m, (int64_t)times[i] - times[j], j < p->prompted, !p->stable, pointers);
            out->memory[k] = s.memory;
            out->pointer[k] = s.pointer;
            if (out->time) out->time[k][0] = s.time, out->time[k][1] = 0.5f;
        }
}

/* --- constants ------------------------------------------------------------------------------ */

static int64_t rows(const struct graph *g, id x) { return tensor_at(g, x)->dim[0]; }

/* Returns the sine positions of a map of n x n, [n*n,C]: of its rows, then of its columns. */
static id sine_positions(struct graph *g, int64_t n, int64_t C)
{
    char name[64];
    const int64_t half = C / 2;
    float *at = mem_alloc((size_t)(n * n * C) * sizeof *at);
    for (int64_t i = 0; i < n * n; i++)
        for (int64_t k = 0; k < C; k++) {
            const int64_t place = k < half ? i / n : i % n, pair = k % half / 2;
            const double x = (double)(place + 1) / ((double)n + 1e-6) * 2 * PI /
                             pow(10000, 2.0 * (double)pair / (double)half);
            at[i * C + k] = (float)(k % 2 ? cos(x) : sin(x));
        }
    snprintf(name, sizeof name, "sine_positions.%lldx%lld", (long long)n, (long long)C);
    id x = graph_const(g, name, DT_F32, 2, (int64_t[]){n * n, C}, at);
    mem_free(at);
    return op_cast(g, x, DT_NONE);
}

/* Returns frequencies [2,C/2] with which FOURIER turns (d + 1) / 2 and 1/2 into the sines and
 * cosines of d / 10000^(2 (k/2) / (C/2)). */
static id time_frequencies(struct graph *g, int64_t C)
{
    const int64_t n = C / 2;
    float *at = mem_alloc((size_t)(2 * n) * sizeof *at);
    for (int64_t k = 0; k < n; k++) {
        at[k] = (float)(1 / (2 * PI * pow(10000, 2.0 * (double)(k / 2) / (double)n)));
        at[n + k] = 0;
    }
    id x = graph_const(g, "time_frequencies", DT_F32, 2, (int64_t[]){2, n}, at);
    mem_free(at);
    return x;
}

/* Returns a table of one column, [1,n,1]. */
static id column(struct graph *g, const char *name, int64_t n, const float *values)
{
    return graph_const(g, name, DT_F32, 3, (int64_t[]){1, n, 1}, values);
}

/* --- a frame -------------------------------------------------------------------------------- */

/* The result of the decoder on one or more frames, by row. */
struct tracked {
    struct sam_masks masks; /* all candidates; without an object, NO_OBJECT everywhere */
    id logits;              /* f32 [R,h,h]: of the best candidate */
    id iou;                 /* [R,1]: its predicted IoU */
    id pointer;             /* [R,C] */
    id memory;              /* [R,grid*grid,channels] */
    id object;              /* [R,1] */
};

/* Returns the row of `yes` where `which` i32 [R,1] is 1, and of `no` where it is 0: of [R,n]. */
static id select_rows(struct graph *g, id no, id yes, id which)
{
    if (!no || !yes) return 0;
    const struct tensor t = *tensor_at(g, yes);
    const int64_t n = tensor_elements(&t) / t.dim[0];
    no = op_reshape(g, no, 3, (int64_t[]){t.dim[0], 1, n});
    yes = op_reshape(g, yes, 3, (int64_t[]){t.dim[0], 1, n});
    return op_reshape(g, op_gather(g, op_concat(g, (id[]){no, yes}, 2, 1), which), t.rank, t.dim);
}

/* Returns i32 [R,1]: 1 where a logit [R,1] is above 0. */
static id above_zero(struct graph *g, id logit)
{
    id x = op_cast(g, logit, DT_F32);
    if (!x) return 0;
    id zero = op_fill(g, DT_F32, 2, (int64_t[]){rows(g, x), 1}, 0);
    return op_topk(g, op_concat(g, (id[]){zero, x}, 2, 1), 1);
}

/* Returns the pointer of a token [R,C], or where there is no object the one that says so. */
static id object_pointer(const struct sam_build *b, id token, id shown)
{
    struct graph *g = b->g;
    const int64_t C = b->c->decoder.hidden;
    if (!token) return 0;
    id pointer = sam_mlp(g, token, "object_pointer_proj.", C, C, 3);
    id none = layer_param(g, "", "no_object_pointer", 2, (int64_t[]){1, C}, 0.02);
    return select_rows(g, op_repeat(g, none, pointer), pointer, shown);
}

/* Takes the best candidate of each row. */
static void choose_candidate(const struct sam_build *b, struct tracked *t, id shown)
{
    struct graph *g = b->g;
    const struct tensor l = *tensor_at(g, t->masks.logits);
    const int64_t R = l.dim[0], n = l.dim[1], h = l.dim[2], C = b->c->decoder.hidden;
    id flat = op_reshape(g, t->masks.logits, 3, (int64_t[]){R, n, h * h}), token = t->masks.tokens;
    t->iou = t->masks.iou;
    if (n > 1) {
        id best = op_topk(g, t->masks.iou, 1);
        flat = op_gather(g, flat, best);
        token = op_gather(g, token, best);
        t->iou = op_gather(g, op_reshape(g, t->iou, 3, (int64_t[]){R, n, 1}), best);
    }
    t->iou = op_reshape(g, t->iou, 2, (int64_t[]){R, 1});
    t->logits = op_reshape(g, flat, 3, (int64_t[]){R, h, h});
    t->pointer = object_pointer(b, op_reshape(g, token, 2, (int64_t[]){R, C}), shown);
}

/* Decodes images with prompts, or with memories; raw: the images before both. */
static struct tracked decode(const struct sam_build *b, struct sam_image image, const struct sam_encoded *p)
{
    struct graph *g = b->g;
    struct tracked t = {.masks = sam_decode(b, image, p)};
    if (!t.masks.logits) return t;
    const struct tensor l = *tensor_at(g, t.masks.logits);
    t.object = t.masks.object;
    IN_SCOPE(g, "object_pointer_proj", 0) {
        id shown = above_zero(g, t.object), none = op_fill(g, DT_F32, l.rank, l.dim, NO_OBJECT);
        t.masks.logits = select_rows(g, none, t.masks.logits, shown);
        choose_candidate(b, &t, shown);
    }
    return t;
}

/* Remembers the masks of decoded frames. */
static void remember(const struct sam_build *b, struct tracked *t, id raw, bool binary)
{
    struct graph *g = b->g;
    if (!t->logits) return;
    const int64_t R = rows(g, t->logits), h = 4 * b->grid;
    id x = op_resize(g, op_reshape(g, t->logits, 4, (int64_t[]){R, h, h, 1}), b->side, b->side, false);
    t->memory = sam_encode_memory(b, raw, x, above_zero(g, t->object), binary);
}

/* --- a clip --------------------------------------------------------------------------------- */

struct clip {
    struct sam_build b;      /* of a tracked frame: a row for each object */
    struct graph *g;
    int64_t B, T, K, M, R, C, cells;
    bool inference;
    struct sam_image images; /* of all frames: rows B*T */
    id positions;            /* of the grid */
    id sines, memory_sines;
    struct sam_encoded nothing; /* the prompt of a tracked frame */
    id memory_scores, times, pointer_scores, pointer_codes; /* [B,T,T] and [B,T,T,channels] */
    struct tracked first;    /* of the prompted frames: rows B*K*M */
    struct tracked *of;      /* [T]: of the tracked ones: rows B*M */
    id *memory, *pointer;    /* [T]: of each frame, rows B*M */
};

/* Returns rows first .. first + n - 1 of the `per` rows of each clip of x [B*per,...]. */
static id part_of(const struct clip *c, id x, int64_t per, int64_t first, int64_t n)
{
    struct graph *g = c->g;
    if (!x || n == per) return x;
    struct tensor t = *tensor_at(g, x);
    x = op_reshape(g, x, 3, (int64_t[]){c->B, per, tensor_elements(&t) / (c->B * per)});
    x = op_dense(g, op_slice(g, x, 1, first, n));
    t.dim[0] = c->B * n;
    return op_reshape(g, x, t.rank, t.dim);
}

static struct sam_image frames_of(const struct clip *c, int64_t first, int64_t n)
{
    return (struct sam_image){part_of(c, c->images.coarse, c->T, first, n),
                              {part_of(c, c->images.fine[0], c->T, first, n),
                               part_of(c, c->images.fine[1], c->T, first, n)}};
}

/* Looks up scores of keys: 0, and -inf where a row of `rows` i32 is `unseen`. */
static id look_up_scores(struct graph *g, const char *name, int64_t unseen, id rows_)
{
    const struct tensor t = *tensor_at(g, rows_);
    float *seen = mem_alloc((size_t)(unseen + 1) * sizeof *seen);
    memset(seen, 0, (size_t)(unseen + 1) * sizeof *seen);
    seen[unseen] = -INFINITY;
    id x = op_gather(g, column(g, name, unseen + 1, seen),
                     op_reshape(g, rows_, 2, (int64_t[]){1, tensor_elements(&t)}));
    mem_free(seen);
    return op_reshape(g, x, t.rank, t.dim);
}

/* Looks up the temporal positions of memories [A,B,n], [A,B,n,channels]. */
static id look_up_times(const struct sam_build *b, id rows_)
{
    const struct sam_video *v = b->c->video;
    struct graph *g = b->g;
    const struct tensor t = *tensor_at(g, rows_);
    id table = layer_param(g, "", "memory_temporal_positional_encoding", 4, (int64_t[]){v->memories, 1, 1, v->channels},
                           0.02);
    id x = op_gather(g, op_reshape(g, table, 3, (int64_t[]){1, v->memories, v->channels}),
                     op_reshape(g, rows_, 2, (int64_t[]){1, tensor_elements(&t)}));
    return op_reshape(g, x, 4, (int64_t[]){t.dim[0], t.dim[1], t.dim[2], v->channels});
}

/* Reads what each of A frames sees of n memories and P pointers, and looks up positions in time. */
static void look_up(struct clip *c, int64_t A, int64_t n, int64_t P)
{
    const struct sam_video *v = c->b.c->video;
    struct graph *g = c->g;
    id memory = graph_input(g, "memory_rows", DT_I32, 3, (int64_t[]){c->B, A, n});
    id pointer = graph_input(g, "pointer_rows", DT_I32, 3, (int64_t[]){c->B, A, P});
    c->memory_scores = look_up_scores(g, "memory_scores", v->memories, memory);
    c->pointer_scores = look_up_scores(g, "pointer_scores", 1, pointer);
    c->times = look_up_times(&c->b, memory);
    if (!v->temporal) return;
    id apart = graph_input(g, "pointer_times", DT_F32, 4, (int64_t[]){c->B, A, P, 2});
    id codes = op_cast(g, op_fourier(g, apart, time_frequencies(g, c->C)), DT_NONE);
    c->pointer_codes = layer_linear(g, codes, "", "temporal_positional_encoding_projection_layer", v->channels);
}

/* Returns what frame i sees of the K prompted frames and of those from `from` to before i: of x
 * [B,T,T,...], [B,n,...]. */
static id seen_by(const struct clip *c, id x, int64_t i, int64_t from)
{
    struct graph *g = c->g;
    if (!x) return 0;
    const struct tensor t = *tensor_at(g, x);
    const int64_t n = c->K + i - from, last = t.rank > 3 ? t.dim[3] : 1;
    x = op_slice(g, x, 1, i, 1);
    id part[2] = {op_dense(g, op_slice(g, x, 2, 0, c->K)), 0};
    if (i > from) part[1] = op_dense(g, op_slice(g, x, 2, from, i - from));
    x = part[1] ? op_concat(g, part, 2, 2) : part[0];
    return op_reshape(g, x, t.rank - 1, (int64_t[]){c->B, n, last});
}

/* Returns `scores` [B,n] for each object and each of `keys` keys of a frame, [R,n*keys]. */
static id spread_scores(const struct clip *c, id scores, int64_t keys)
{
    struct graph *g = c->g;
    if (!scores) return 0;
    const int64_t n = tensor_at(g, scores)->dim[1];
    id zeros = op_fill(g, DT_F32, 4, (int64_t[]){c->B, c->M, n, keys}, 0);
    return op_reshape(g, op_add(g, zeros, op_reshape(g, scores, 4, (int64_t[]){c->B, 1, n, 1})), 2,
                      (int64_t[]){c->R, n * keys});
}

/* Adds `codes` [B,n,channels], 0: none, to the keys of each frame, x [R,n*keys,channels]. */
static id add_codes(const struct clip *c, id x, id codes, int64_t n)
{
    struct graph *g = c->g;
    const int64_t Cm = c->b.c->video->channels;
    if (!x || !codes) return x;
    const struct tensor t = *tensor_at(g, x);
    x = op_reshape(g, x, 5, (int64_t[]){c->B, c->M, n, t.dim[1] / n, Cm});
    return op_reshape(g, op_add(g, x, op_reshape(g, codes, 5, (int64_t[]){c->B, 1, n, 1, Cm})), 3, t.dim);
}

/* Collects the frames [0,K) and [from,i) of a list of rows [R,keys,channels]. */
static id collect(const struct clip *c, const id *of, int64_t i, int64_t from)
{
    id *part = mem_alloc((size_t)c->T * sizeof *part);
    int n = 0;
    for (int64_t k = 0; k < i; k++)
        if (k < c->K || k >= from) part[n++] = of[k];
    id x = n > 1 ? op_concat(c->g, part, n, 1) : part[0];
    mem_free(part);
    return x;
}

/* What a frame sees: of n memories and P pointers of each object the values, and by frame [B,n,...]
 * their scores and their positions in time (codes 0: none). */
struct seen {
    int64_t n, P;
    id maps, pointers; /* [R,n*cells,channels], [R,P*splits,channels] */
    id times, codes, memory_scores, pointer_scores;
};

/* Joins memories and pointers. */
static struct bank join_bank(const struct clip *c, const struct seen *x)
{
    struct graph *g = c->g;
    const int64_t Cm = c->b.c->video->channels, splits = c->C / Cm;
    if (!x->maps || !x->pointers) return (struct bank){0};
    id keys = op_reshape(g, x->maps, 4, (int64_t[]){c->R, x->n, c->cells, Cm});
    keys = op_reshape(g, op_add(g, keys, c->memory_sines), 3, (int64_t[]){c->R, x->n * c->cells, Cm});
    keys = add_codes(c, keys, x->times, x->n);
    id codes = add_codes(c, x->pointers, x->codes, x->P);
    id scores[2] = {spread_scores(c, x->memory_scores, c->cells), spread_scores(c, x->pointer_scores, splits)};
    return (struct bank){op_concat(g, (id[]){x->maps, x->pointers}, 2, 1), op_concat(g, (id[]){keys, codes}, 2, 1),
                         op_concat(g, scores, 2, 1), sam_key_positions(g, c->R, x->n, c->b.grid, x->P * splits)};
}

/* Collects what frame i of a clip sees. */
static struct bank bank_of(const struct clip *c, int64_t i)
{
    const struct sam_video *v = c->b.c->video;
    const int64_t from = max_i64(c->K, i - (v->memories - 1)), first = max_i64(c->K, i - (v->pointers - 1));
    return join_bank(c, &(struct seen){.n = c->K + i - from, .P = c->K + i - first,
                                       .maps = collect(c, c->memory, i, from),
                                       .pointers = collect(c, c->pointer, i, first),
                                       .times = seen_by(c, c->times, i, from),
                                       .codes = seen_by(c, c->pointer_codes, i, first),
                                       .memory_scores = seen_by(c, c->memory_scores, i, from),
                                       .pointer_scores = seen_by(c, c->pointer_scores, i, first)});
}

/* Returns how many memories or pointers a bank has of each object: those of prompted frames, and of
 * the last `most` - 1 tracked ones. */
static int64_t bank_slots(const struct sam_build *b, int64_t most) { return b->prompting.bank + most - 1; }

/* Reads what the only frame sees. Each object is as a clip of its own, as they may be prompted on
 * different frames. */
static struct bank given_bank(const struct clip *c)
{
    const struct sam_video *v = c->b.c->video;
    struct graph *g = c->g;
    const int64_t n = bank_slots(&c->b, v->memories), P = bank_slots(&c->b, v->pointers), R = c->R, Cm = v->channels,
                  splits = c->C / Cm;
    struct clip each = *c;
    each.B = R, each.M = 1;
    id maps = graph_input(g, "bank_memories", DT_F32, 4, (int64_t[]){1, R, n * c->cells, Cm});
    id pointers = graph_input(g, "bank_pointers", DT_F32, 4, (int64_t[]){1, R, P * splits, Cm});
    return join_bank(&each, &(struct seen){
        .n = n, .P = P, .maps = op_cast(g, op_reshape(g, maps, 3, (int64_t[]){R, n * c->cells, Cm}), DT_NONE),
        .pointers = op_cast(g, op_reshape(g, pointers, 3, (int64_t[]){R, P * splits, Cm}), DT_NONE),
        .times = op_reshape(g, c->times, 3, (int64_t[]){R, n, Cm}),
        .codes = c->pointer_codes ? op_reshape(g, c->pointer_codes, 3, (int64_t[]){R, P, Cm}) : 0,
        .memory_scores = op_reshape(g, c->memory_scores, 2, (int64_t[]){R, n}),
        .pointer_scores = op_reshape(g, c->pointer_scores, 2, (int64_t[]){R, P})});
}

/* Lists memories and pointers of the frames first .. first + n - 1, whose rows are B*n*M. */
static void list_memories(struct clip *c, const struct tracked *t, int64_t first, int64_t n)
{
    struct graph *g = c->g;
    const int64_t Cm = c->b.c->video->channels;
    for (int64_t k = 0; k < n && t->memory && t->pointer; k++) {
        c->memory[first + k] = part_of(c, t->memory, n * c->M, k * c->M, c->M);
        c->pointer[first + k] = op_reshape(g, part_of(c, t->pointer, n * c->M, k * c->M, c->M), 3,
                                           (int64_t[]){c->R, c->C / Cm, Cm});
    }
}

/* Returns the matrix [to,from] of bilinear interpolation that takes all pixels of what it
 * shrinks. */
static id shrinking(struct graph *g, int64_t to, int64_t from)
{
    const double ratio = (double)from / (double)to;
    float *at = mem_alloc((size_t)(to * from) * sizeof *at);
    for (int64_t i = 0; i < to; i++) {
        const double centre = ((double)i + 0.5) * ratio;
        double sum = 0;
        for (int64_t k = 0; k < from; k++) sum += fmax(0, 1 - fabs((double)k + 0.5 - centre) / ratio);
        for (int64_t k = 0; k < from; k++)
            at[i * from + k] = (float)(fmax(0, 1 - fabs((double)k + 0.5 - centre) / ratio) / sum);
    }
    id x = graph_const(g, "mask_shrinking", DT_F32, 2, (int64_t[]){to, from}, at);
    mem_free(at);
    return x;
}

/* Returns logits [R,side,side] at the size of the decoder's masks. */
static id shrink(const struct sam_build *b, id x)
{
    struct graph *g = b->g;
    if (!x) return 0;
    const int64_t R = rows(g, x), S = b->side, h = 4 * b->grid;
    id matrix = shrinking(g, h, S);
    x = op_matmul(g, op_reshape(g, x, 2, (int64_t[]){R * S, S}), matrix, false, true, DT_F32);
    x = op_dense(g, op_permute(g, op_reshape(g, x, 3, (int64_t[]){R, S, h}), (int[]){0, 2, 1}));
    x = op_matmul(g, op_reshape(g, x, 2, (int64_t[]){R * h, S}), matrix, false, true, DT_F32);
    return op_dense(g, op_permute(g, op_reshape(g, x, 3, (int64_t[]){R, h, h}), (int[]){0, 2, 1}));
}

/* Takes the masks themselves as prompts: they are the frame's masks, and the decoder makes its
 * pointer. */
static void given_masks(struct clip *c, struct sam_build *b)
{
    struct graph *g = c->g;
    const int64_t N = b->M, R = c->B * N, S = b->side, h = 4 * b->grid;
    const float object[2] = {(float)GIVEN_OFFSET, (float)(GIVEN_OFFSET + GIVEN_SCALE)}, offset = (float)GIVEN_OFFSET,
                one[2] = {1, 1};
    struct sam_image image = frames_of(c, 0, c->K);
    id mask = op_reshape(g, graph_input(g, "prompt_masks", DT_F32, 4, (int64_t[]){c->B, N, S, S}), 4,
                         (int64_t[]){R, S, S, 1});
    id shown = op_reshape(g, graph_input(g, "mask_shown", DT_I32, 2, (int64_t[]){c->B, N}), 2, (int64_t[]){R, 1});
    IN_SCOPE(g, "mask_downsample", 0)
        b->masks = op_reshape(g, layer_conv(g, op_cast(g, mask, DT_NONE), "", "mask_downsample", 1,
                                            (struct kernel_shape){4, 4, 0, true}), 4, (int64_t[]){c->B, N, h, h});
    b->prompting.mask_inputs = N;
    const struct sam_encoded p = sam_prompt(b, c->positions);
    b->B = c->B * c->K, b->M = c->M;
    c->first = decode(b, image, &p);
    if (!c->first.pointer) return;
    id none = layer_param(g, "", "no_object_pointer", 2, (int64_t[]){1, c->C}, 0.02);
    c->first.pointer = select_rows(g, op_repeat(g, none, c->first.pointer), c->first.pointer, shown);
    id logits = op_scale(g, op_cast(g, mask, DT_F32), GIVEN_SCALE);
    logits = op_add(g, logits, graph_const(g, "given_offset", DT_F32, 1, (int64_t[]){1}, &offset));
    id row = op_reshape(g, shown, 2, (int64_t[]){1, R});
    id score = op_cast(g, op_gather(g, column(g, "given_object", 2, object), row), DT_NONE);
    c->first.object = op_reshape(g, score, 2, (int64_t[]){R, 1});
    score = op_cast(g, op_gather(g, column(g, "given_iou", 2, one), row), DT_NONE);
    c->first.iou = op_reshape(g, score, 2, (int64_t[]){R, 1});
    c->first.logits = shrink(b, op_reshape(g, logits, 3, (int64_t[]){R, S, S}));
    c->first.memory = sam_encode_memory(b, image.coarse, logits, shown, c->inference);
}

/* Decodes the prompted frames. */
static void prompted_frames(struct clip *c, const struct sam_build *given)
{
    const struct sam_video *v = c->b.c->video;
    const int64_t points = given->prompting.points + 2 * given->prompting.boxes;
    struct sam_build b = *given;
    b.B = c->B, b.M = c->K * c->M; /* one call encodes the prompts of all of them */
    /* in slots, which hold any prompt, all have several candidates, as those of images do */
    b.prompting.single = !given->prompting.mask_prompts &&
                         !(v->several && (b.prompting.slots || (v->points[0] <= points && points <= v->points[1])));
    IN_SCOPE(c->g, "prompted", SCOPE_PASS) {
        if (b.prompting.mask_prompts) {
            b.prompting.points = 0, b.prompting.boxes = false;
            given_masks(c, &b);
        } else {
            struct sam_image image = frames_of(c, 0, c->K);
            id raw = image.coarse;
            const struct sam_encoded p = sam_prompt(&b, c->positions);
            image.coarse = sam_no_memory(&b, raw);
            b.B = c->B * c->K, b.M = c->M;
            c->first = decode(&b, image, &p);
            remember(&b, &c->first, raw, c->inference);
        }
        list_memories(c, &c->first, 0, c->K);
    }
}

/* Tracks the objects on frame i. */
static void track(struct clip *c, int64_t i)
{
    struct graph *g = c->g;
    char name[32];
    snprintf(name, sizeof name, "frame.%lld", (long long)i);
    IN_SCOPE(g, name, SCOPE_PASS) {
        struct sam_image image = frames_of(c, i, 1);
        id raw = image.coarse, x = op_reshape(g, raw, 3, (int64_t[]){c->B, c->cells, c->C});
        x = op_add(g, x, c->sines);
        const struct bank k = c->b.prompting.bank ? given_bank(c) : bank_of(c, i);
        x = k.values ? sam_memory_attention(&c->b, op_repeat(g, x, k.values), &k) : 0;
        image.coarse = op_reshape(g, x, 4, (int64_t[]){c->R, c->b.grid, c->b.grid, c->C});
        c->of[i] = decode(&c->b, image, &c->nothing);
        if (i + 1 < c->T || c->inference) remember(&c->b, &c->of[i], raw, false);
        if (c->of[i].memory) list_memories(c, &c->of[i], i, 1);
    }
}

/* --- results -------------------------------------------------------------------------------- */

/* Returns a member of the results of all frames, [B,T,M,...]: its rows are `dim`, n sizes. */
static id all_frames(const struct clip *c, size_t member, int n, const int64_t *dim)
{
    struct graph *g = c->g;
    id *part = mem_alloc((size_t)c->T * sizeof *part);
    int64_t size = 1, shape[MAX_RANK] = {c->B, c->T, c->M};
    for (int k = 0; k < n; k++) size *= shape[3 + k] = dim[k];
    int parts = 0;
    for (int64_t i = 0; i < c->T; i = i ? i + 1 : c->K) {
        const struct tracked *t = i ? &c->of[i] : &c->first;
        id x;
        memcpy(&x, (const char *)t + member, sizeof x);
        part[parts++] = op_reshape(g, x, 3, (int64_t[]){c->B, i ? 1 : c->K, c->M * size});
    }
    id x = parts > 1 ? op_concat(g, part, parts, 1) : part[0];
    mem_free(part);
    return op_reshape(g, x, 3 + n, shape);
}

static void output_clip(const struct model *m, const struct clip *c, const struct batch *batch)
{
    struct graph *g = c->g;
    const int64_t h = 4 * c->b.grid, one = 1;
    model_output(m, g, batch, "object_score_logits", all_frames(c, offsetof(struct tracked, object), 1, &one));
    model_output(m, g, batch, "iou_scores", all_frames(c, offsetof(struct tracked, iou), 0, NULL));
    model_output(m, g, batch, "pred_masks", all_frames(c, offsetof(struct tracked, logits), 2, (int64_t[]){h, h}));
    model_output(m, g, batch, "object_pointers", all_frames(c, offsetof(struct tracked, pointer), 1, &c->C));
}

/* Emits the loss: the sum over the frames, but for those whose masks are the prompts. */
static void clip_loss(const struct clip *c)
{
    struct graph *g = c->g;
    const int64_t h = 4 * c->b.grid, row = mask_row_bytes(h), N = c->T * c->M;
    id bits = graph_input(g, "gt_masks", DT_U8, 4, (int64_t[]){c->B, N, h, row}), loss = 0;
    id valid = graph_input(g, "gt_valid", DT_I32, 3, (int64_t[]){c->B, N, 2});
    bits = op_reshape(g, bits, 3, (int64_t[]){c->B * N, h, row});
    valid = op_reshape(g, valid, 2, (int64_t[]){c->B * N, 2});
    IN_SCOPE(g, "loss", SCOPE_PASS)
        for (int64_t i = 0; i < c->T; i = i ? i + 1 : c->K) {
            const int64_t n = i ? 1 : c->K;
            if (!i && c->b.prompting.mask_prompts) continue;
            const struct tracked *t = i ? &c->of[i] : &c->first;
            const struct sam_losses l = sam_loss(&c->b, &t->masks, part_of(c, bits, N, i * c->M, n * c->M),
                                                 part_of(c, valid, N, i * c->M, n * c->M));
            id sum = l.scores ? op_add(g, l.masks, l.scores) : l.masks;
            loss = loss ? op_add(g, loss, sum) : sum;
        }
    graph_output(g, "loss", loss);
}

/* Emits the pixels of the frames of clips, [B*frames,side,side,channels]; of training from bytes,
 * as the reader provides them. */
static id clip_pixels(const struct sam_build *b)
{
    struct graph *g = b->g;
    const int64_t T = b->prompting.frames, C = b->c->vision.channels, S = b->side;
    if (b->prompting.rounds) {
        id bytes = graph_input(g, "images", DT_U8, 5, (int64_t[]){b->B, T, S, S, 3});
        id valid = graph_input(g, "image_valid", DT_I32, 3, (int64_t[]){b->B, T, 2});
        return sam_normalised(b, op_reshape(g, bytes, 4, (int64_t[]){b->B * T, S, S, 3}),
                              op_reshape(g, valid, 2, (int64_t[]){b->B * T, 2}));
    }
    id x = graph_input(g, "pixel_values_videos", DT_F32, 5, (int64_t[]){b->B, T, C, S, S});
    x = op_reshape(g, x, 4, (int64_t[]){b->B * T, C, S, S});
    return op_dense(g, op_permute(g, x, (int[]){0, 2, 3, 1}));
}

/* Refuses a clip that the model cannot have. */
static bool clip_fits(const struct sam_build *b)
{
    const struct sam_video *v = b->c->video;
    const struct prompting *p = &b->prompting;
    if (v->refused) graph_fail(b->g, "clips: %s", v->refused);
    else if (p->prompted < !p->bank || p->prompted > p->frames)
        graph_fail(b->g, "clips of %lld frames with prompts on %lld: expected prompts on 1 to %lld frames",
                   (long long)p->frames, (long long)p->prompted, (long long)p->frames);
    else if (v->prompted >= 0 && p->prompted > v->prompted)
        graph_fail(b->g, "clips with prompts on %lld frames: max_cond_frame_num of the model is %lld",
                   (long long)p->prompted, (long long)v->prompted);
    else if (p->mask_prompts && (p->points || p->boxes))
        graph_fail(b->g, "clips whose prompts are masks have neither points nor boxes");
    else if (p->mask_prompts && p->targets && p->prompted == p->frames)
        graph_fail(b->g, "clips whose masks are given on all frames have no loss");
    return !b->g->error.code;
}

/* Emits the forward of clips, with the outputs or the loss of all frames. */
static void clip_forward(const struct model *m, const struct sam_build *given, const struct batch *batch)
{
    const struct sam_video *v = given->c->video;
    struct graph *g = given->g;
    const struct prompting *p = &given->prompting;
    struct sam_build images = *given;
    if (!clip_fits(given)) return;
    struct clip c = {.b = *given, .g = g, .B = given->B, .T = p->frames, .K = p->prompted, .M = given->M,
                     .R = given->B * given->M, .C = given->c->decoder.hidden, .cells = given->grid * given->grid,
                     .inference = p->stable};
    id pixels = clip_pixels(given);
    images.B = c.B * c.T, images.frames = true;
    c.images = given->c->encode(&images, pixels);
    c.positions = sam_positions(given);
    c.of = mem_alloc((size_t)c.T * sizeof *c.of);
    c.memory = mem_alloc((size_t)(2 * c.T) * sizeof *c.memory);
    c.pointer = c.memory + c.T;
    c.b.B = c.R, c.b.M = 1;
    c.b.frames = true;
    c.b.prompting.points = c.b.prompting.mask_inputs = 0, c.b.prompting.boxes = false;
    c.b.prompting.single = !(v->several && v->several_tracked && v->points[0] <= 0);
    struct sam_build prompted = *given;
    prompted.frames = true;
    if (c.K) prompted_frames(&c, &prompted);
    if (c.T > c.K) {
        if (p->bank) look_up(&c, c.M, bank_slots(given, v->memories), bank_slots(given, v->pointers));
        else look_up(&c, c.T, c.T, c.T);
        c.nothing = sam_prompt(&c.b, c.positions);
        c.sines = op_scale(g, sine_positions(g, given->grid, c.C), 0.1);
        c.memory_sines = sine_positions(g, given->grid, v->channels);
    }
    for (int64_t i = c.K; i < c.T && !g->error.code; i++) track(&c, i);
    if (!c.K) c.first = c.of[0], c.K = 1; /* the only frame */
    if (!g->error.code) {
        if (batch->outputs || !p->targets) output_clip(m, &c, batch);
        if (p->targets) clip_loss(&c);
        if (p->bank) graph_output(g, "object_memories", c.memory[0]);
    }
    mem_free(c.of);
    mem_free(c.memory);
}

/* Declares the weights that clips with points and boxes do not read, for the folder that a preset
 * becomes. A folder's own are copied. */
static void declare_unread(struct graph *g, const struct prompting *p, int64_t C)
{
    if (!p->mask_prompts) layer_conv_weights(g, "", "mask_downsample", 1, 1, 4);
    layer_param(g, "", "no_memory_positional_encoding", 3, (int64_t[]){1, 1, C}, 0.02);
}

static void sam2_video_forward(const struct model *m, struct graph *g, const struct batch *given)
{
    if (!contents_of(given)->prompts.frames) {
        sam_forward(m, g, given);
        return;
    }
    struct batch batch = *given;
    const struct sam_build b = sam_begin(m, g, given);
    if (g->error.code) return;
    if (b.prompting.targets) batch.loss_output = ""; /* no output: the masks have their own loss */
    clip_forward(m, &b, &batch);
    if (!m->path[0]) declare_unread(g, &b.prompting, b.c->vision.output);
    if (!g->error.code) graph_param_of(g, sam_frequencies(&b))->frozen = true;
}

const struct family sam2_video_family = {"sam2_video", parse_sam2_video, sam2_video_forward, "", false,
                                         sam_read_folder};
