/*
 * step_images.c: images, videos and volumes of a batch that is given: whether input_ids has the
 * tokens that follow from them, and where the features of each lie.
 */
#include <inttypes.h>

#include "batch/step_inputs.h"
#include "models/allocator.h"

/* --- images among tokens -------------------------------------------------------------------- */

/* Lists the images of [B,M,...] that are no padding: those with a pixel that is not zero. */
static int list_images(struct step *s, const struct st_entry *t, struct error *e)
{
    const int64_t all = t->dims[0] * t->dims[1], n = t->dims[2] * t->dims[3] * t->dims[4];
    void *raw = step_room(s, n, 8);
    float *pixels = step_room(s, n, sizeof *pixels);
    s->image_at = step_room(s, all, sizeof *s->image_at);
    s->size['N'] = 0;
    for (int64_t i = 0; i < all; i++) {
        TRY(step_reals(s, t, i, n, raw, pixels, e));
        for (int64_t k = 0; k < n; k++)
            if (pixels[k] != 0) {
                s->image_at[s->size['N']++] = i;
                break;
            }
    }
    return PL_OK;
}

/* Checks that the pixels of an image, unless it is padding, are all there. */
static int check_pixel_mask(struct step *s, const struct st_entry *t, struct error *e)
{
    const int64_t all = t->dims[0] * t->dims[1], pixels = t->dims[2] * t->dims[3];
    int64_t *mask = step_room(s, pixels, sizeof *mask);
    for (int64_t i = 0; i < (s->image_at ? s->size['N'] : all); i++) {
        const int64_t image = s->image_at ? s->image_at[i] : i;
        if (image < all) TRY(step_ints(s, t, image, pixels, mask, e));
        for (int64_t k = 0; k < pixels && image < all; k++)
            if (mask[k] != 1)
                return error_set(e, PL_USAGE,
                                 "%s: pixel_attention_mask leaves out pixels of image %" PRId64
                                 "; images must fill their squares: resize them to config.json's image_size",
                                 s->in.path, image);
    }
    return PL_OK;
}

/* Checks the types of a row's tokens: 1 at the tokens of images, or from the first label on. */
static int check_types(struct step *s, const struct model *m, int64_t r, const int64_t *ids, struct error *e)
{
    const struct st_entry *types = step_tensor(s, m, "token_type_ids"), *labels = step_tensor(s, m, "labels"),
                          *mask = step_tensor(s, m, "attention_mask");
    int64_t *type = step_room(s, s->T, sizeof *type), *label = step_room(s, s->T, sizeof *label),
            *seen = step_room(s, s->T, sizeof *seen);
    bool answer = false;
    if (!types) return PL_OK;
    TRY(step_ints(s, types, r, s->T, type, e));
    if (labels) TRY(step_ints(s, labels, r, s->T, label, e));
    if (mask) TRY(step_ints(s, mask, r, s->T, seen, e));
    for (int64_t i = 0; i < s->T; i++) {
        answer |= labels && label[i] >= 0;
        const bool expected = m->images->both == BOTH_PROMPT ? answer : (int32_t)ids[i] == m->images->token;
        if (type[i] == expected || (mask && !seen[i])) continue;
        return error_set(e, PL_USAGE, "%s: token_type_ids[%lld,%lld] is %lld, expected %d: 1 %s", s->in.path,
                         (long long)r, (long long)i, (long long)type[i], expected,
                         m->images->both == BOTH_PROMPT ? "from the first label of a row on" : "at image tokens");
    }
    return PL_OK;
}

/* Counts the image tokens of all rows; *videos: those of videos, where these have their own. */
static int count_tokens(struct step *s, const struct model *m, int64_t *count, int64_t *videos, struct error *e)
{
    const bool apart = images_sum(m);
    int64_t *ids = step_room(s, s->T, sizeof *ids);
    *count = *videos = 0;
    for (int64_t r = 0; r < s->B; r++) {
        TRY(step_ints(s, step_tensor(s, m, "input_ids"), r, s->T, ids, e));
        if (m->images->both) TRY(check_types(s, m, r, ids, e));
        for (int64_t i = 0; i < s->T; i++) {
            *count += (int32_t)ids[i] == m->images->token;
            *videos += apart && (int32_t)ids[i] == m->images->anyres->video;
        }
    }
    return PL_OK;
}

/* --- images of any size ----------------------------------------------------------------------- */

/* Reads the grids of images or of videos, and checks that they have the patches of their pixels. */
static int read_grids(struct step *s, const struct model *m, bool video, struct error *e)
{
    const char *name = video ? "video_grid_thw" : "image_grid_thw",
               *pixels = video ? "pixel_values_videos" : "pixel_values";
    const struct st_entry *t = step_tensor(s, m, name),
                          *seconds = video ? step_tensor(s, m, "second_per_grid_ts") : NULL;
    const int64_t n = t ? t->dims[0] : 0, merge = m->images->grids->merge, found = s->size[video ? 'V' : 'P'];
    int64_t patches = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t x[3], raw;
        float each = 0;
        TRY(step_ints(s, t, i, 3, x, e));
        if (seconds) TRY(step_reals(s, seconds, i, 1, &raw, &each, e));
        for (int k = 0; k < 3; k++)
            if (x[k] < 1 || x[k] > STEP_SIZE_MOST || (k && x[k] % merge) || (!k && !video && x[k] > 1))
                return error_set(e, PL_USAGE,
                                 "%s: %s[%lld] is %lld, %lld, %lld; expected %s, then rows and columns of patches, "
                                 "multiples of %lld", s->in.path, name, (long long)i, (long long)x[0], (long long)x[1],
                                 (long long)x[2], video ? "frames" : "1", (long long)merge);
        s->grids[s->n_grids] = (struct image_grid){x[0], x[1], x[2], video, (double)each};
        TRY(allocator_check(m->images->grids, &s->grids[s->n_grids], e));
        patches += grid_patches(&s->grids[s->n_grids++]);
    }
    if (patches == found) return PL_OK;
    return error_set(e, PL_USAGE, "%s: %s has %lld rows; expected %lld, the patches of the %lld grids of %s",
                     s->in.path, pixels, (long long)found, (long long)patches, (long long)n, name);
}

int step_find_features(struct step *s, const struct model *m, int64_t r, struct grid_walk *walk, int64_t *raw,
                       struct grid_tokens *out, struct error *e)
{
    const struct st_entry *mask = step_tensor(s, m, "attention_mask"), *kinds = step_tensor(s, m, "mm_token_type_ids");
    const struct grid_model *g = m->images->grids;
    int64_t begin = 0, end = s->T;
    if (mask) {
        TRY(step_ints(s, mask, r, s->T, raw, e));
        TRY(step_unpadded(s, r, raw, &begin, &end, e));
    }
    TRY(step_ints(s, step_tensor(s, m, "input_ids"), r, s->T, raw, e));
    for (int64_t i = 0; i < s->T; i++) {
        out->ids[i] = (int32_t)raw[i];
        out->index[i] = -1;
        memset(out->positions[i], 0, sizeof out->positions[i]);
    }
    if (kinds) TRY(step_ints(s, kinds, r, s->T, raw, e));
    for (int64_t i = begin; kinds && i < end; i++) {
        const int expected = out->ids[i] == g->image ? 1 : out->ids[i] == g->video ? 2 : 0;
        if (raw[i] != expected)
            return error_set(e, PL_USAGE, "%s: mm_token_type_ids[%lld,%lld] is %lld, and the token %d is of kind %d",
                             s->in.path, (long long)r, (long long)i, (long long)raw[i], out->ids[i], expected);
    }
    if (grid_document(walk, out->ids + begin, end - begin, out->positions + begin, out->index + begin)) return PL_OK;
    return error_set(
        e, PL_USAGE,
        "%s: the image tokens (id %d) and video tokens (id %d) of row %lld do not match the grids: expected "
        "the patches / %lld of the next image or video wherever such tokens begin",
        s->in.path, g->image, g->video, (long long)r, (long long)(g->merge * g->merge));
}

struct grid_tokens step_grid_tokens(struct step *s)
{
    return (struct grid_tokens){step_room(s, s->T, sizeof(int32_t)), step_room(s, s->T, sizeof(int32_t)),
                                step_room(s, s->T, 3 * sizeof(int32_t))};
}

/* Checks images and videos of any size. pixel_values and pixel_values_videos are the patches of the
 * whole batch, image_grid_thw and video_grid_thw how many of them each has, and the tokens come in
 * their order. */
static int check_grids(struct step *s, const struct model *m, struct error *e)
{
    const int64_t n = s->size['N'] + s->size['F'];
    s->grids = step_room(s, max_i64(n, 1), sizeof *s->grids);
    for (int video = 0; video < 2; video++) TRY(read_grids(s, m, video, e));
    struct grid_walk walk = {.model = m->images->grids, .grids = s->grids, .n = s->n_grids};
    struct grid_tokens tokens = step_grid_tokens(s);
    int64_t *raw = step_room(s, s->T, sizeof *raw);
    for (int64_t r = 0; r < s->B; r++) TRY(step_find_features(s, m, r, &walk, raw, &tokens, e));
    for (int video = 0; video < 2; video++)
        for (; walk.next[video] < n; walk.next[video]++)
            if (s->grids[walk.next[video]].video == video)
                return error_set(e, PL_USAGE, "%s: input_ids has no tokens for all of the %lld grids of %s", s->in.path,
                                 (long long)s->size[video ? 'F' : 'N'], video ? "video_grid_thw" : "image_grid_thw");
    return PL_OK;
}

/* --- images in tiles with a map --------------------------------------------------------------- */

/* Finds, of each image, whether its conversation has others, by batch_num_images; without that none
 * has. */
static int read_counts(struct step *s, const struct model *m, bool *beside, struct error *e)
{
    const struct st_entry *t = step_tensor(s, m, "batch_num_images");
    int64_t n = 0, sum = 0;
    for (int64_t i = 0; t && i < t->dims[0]; i++) {
        TRY(step_ints(s, t, i, 1, &n, e));
        for (int64_t k = 0; k < n && sum + k < s->n_shapes; k++) beside[sum + k] = n > 1;
        sum += n;
        if (n < 0 || sum > s->n_shapes) break;
    }
    if (!t || (n >= 0 && sum == s->n_shapes)) return PL_OK;
    return error_set(e, PL_USAGE, "%s: batch_num_images does not add up to the %lld images of image_sizes", s->in.path,
                     (long long)s->n_shapes);
}

/* Reads the shapes of images and videos. */
static int read_shapes(struct step *s, const struct model *m, struct error *e)
{
    const struct st_entry *t = step_tensor(s, m, "image_sizes"), *videos = step_tensor(s, m, "pixel_values_videos");
    const struct anyres *a = m->images->anyres;
    s->n_shapes = t ? t->dims[0] : 0;
    if (videos && videos->rank != 5)
        return error_set(e, PL_USAGE, "%s: pixel_values_videos has %d dimensions, expected videos, frames, channels, "
                         "height and width", s->in.path, videos->rank);
    s->n_videos = videos ? videos->dims[0] : 0;
    if (videos) s->size['F'] = videos->dims[0] * videos->dims[1];
    s->shapes = step_room(s, max_i64(s->n_shapes + s->n_videos, 1), sizeof *s->shapes);
    bool *beside = step_room(s, max_i64(s->n_shapes, 1), sizeof *beside);
    memset(beside, 0, (size_t)max_i64(s->n_shapes, 1) * sizeof *beside);
    TRY(read_counts(s, m, beside, e));
    for (int64_t i = 0; i < s->n_shapes; i++) {
        int64_t size[2];
        TRY(step_ints(s, t, i, 2, size, e));
        if (size[0] < 1 || size[1] < 1 || size[0] > STEP_SIZE_MOST || size[1] > STEP_SIZE_MOST)
            return error_set(e, PL_USAGE, "%s: image_sizes[%lld] is %lld, %lld; expected height and width", s->in.path,
                             (long long)i, (long long)size[0], (long long)size[1]);
        s->shapes[i] = beside[i] ? (struct anyres_shape){0}
                                 : anyres_shape_of(a, (uint32_t)size[1], (uint32_t)size[0]);
    }
    for (int64_t i = 0; i < s->n_videos; i++)
        s->shapes[s->n_shapes + i] = (struct anyres_shape){.frames = (int32_t)videos->dims[1]};
    return PL_OK;
}

/* Reads the shapes of images in tiles with a map, and checks that pixels and tokens are as many as
 * follow from them. */
static int check_shapes(struct step *s, const struct model *m, struct error *e)
{
    const struct anyres *a = m->images->anyres;
    int64_t tokens[2], expected[2] = {0}, images = 0;
    TRY(read_shapes(s, m, e));
    TRY(count_tokens(s, m, &tokens[0], &tokens[1], e));
    for (int64_t i = 0; i < s->n_shapes + s->n_videos; i++) {
        images += anyres_images(s->shapes[i]);
        expected[i >= s->n_shapes] += anyres_tokens(a, s->shapes[i]);
    }
    if (images != s->size['N'] || expected[0] != tokens[0])
        return error_set(e, PL_USAGE,
                         "%s: the %lld images of image_sizes have %lld tiles and %lld tokens; pixel_values has %lld, "
                         "and input_ids has %lld image tokens (id %d)", s->in.path, (long long)s->n_shapes,
                         (long long)images, (long long)expected[0], (long long)s->size['N'], (long long)tokens[0],
                         a->token);
    if (expected[1] == tokens[1]) return PL_OK;
    return error_set(e, PL_USAGE, "%s: the %lld videos of pixel_values_videos have %lld tokens; input_ids has %lld "
                     "video tokens (id %d)", s->in.path, (long long)s->n_videos, (long long)expected[1],
                     (long long)tokens[1], a->video);
}

int step_put_shapes(struct step *s, const struct anyres *a, int64_t r, int32_t *ids, struct error *e)
{
    for (int64_t i = 0, n = 1; i < s->T; i += n, n = 1) {
        const int32_t id = ids[i];
        if (!anyres_is_token(a, id)) continue;
        const bool video = a->pooled && id == a->video;
        const int64_t nth = s->next_shape[video]++;
        const bool known = nth < (video ? s->n_videos : s->n_shapes);
        const struct anyres_shape shape =
            known ? s->shapes[(video ? s->n_shapes : 0) + nth] : (struct anyres_shape){0};
        n = anyres_tokens(a, shape);
        for (int64_t k = 0; k < n; k++)
            if (!known || i + k >= s->T || ids[i + k] != id)
                return error_set(e, PL_USAGE,
                                 "%s: input_ids, sample %lld: %s %lld has %lld tokens, one after the other",
                                 s->in.path, (long long)r, video ? "video" : "image", (long long)nth, (long long)n);
        anyres_put(a, shape, ids + i);
    }
    return PL_OK;
}

/* --- volumes ---------------------------------------------------------------------------------- */

/* Adds the tokens of an image, or of a volume, with the features from `row` on. */
static void add_run(struct step *s, int64_t tokens, int64_t row, bool volume)
{
    const int64_t before = s->n_runs ? s->runs[s->n_runs - 1].end : 0;
    s->runs[s->n_runs++] = (struct image_run){before + tokens, row, volume};
}

/* Finds the features of image tokens by volume_order. */
static int order_runs(struct step *s, const struct model *m, const struct st_entry *t, struct error *e)
{
    const struct modality_list *l = &m->images->modalities;
    const int64_t n = t->dims[0];
    int64_t *order = step_room(s, n, sizeof *order), images = 0, seen[MODALITIES] = {0}, first[MODALITIES] = {0};
    TRY(step_ints(s, t, 0, n, order, e));
    s->runs = step_room(s, n, sizeof *s->runs);
    for (int k = 1; k < l->n; k++) first[k] = first[k - 1] + s->size['a' + k - 1] * l->at[k - 1].tokens;
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = order[i];
        if (k >= l->n)
            return error_set(e, PL_USAGE, "%s: volume_order[%lld] is %lld, expected a modality below %d, or -1 for an "
                             "image", s->in.path, (long long)i, (long long)k, l->n);
        if (k < 0) add_run(s, m->images->features, images++ * m->images->features, false);
        else add_run(s, l->at[k].tokens, first[k] + seen[k]++ * l->at[k].tokens, true);
    }
    bool all = images == s->size['N'] && !s->size['F'];
    for (int k = 0; k < l->n; k++) all &= seen[k] == s->size['a' + k];
    if (all) return PL_OK;
    return error_set(e, PL_USAGE, "%s: volume_order has %lld entries, expected one for each image of pixel_values and "
                     "each volume, and no frames", s->in.path, (long long)n);
}

/* Finds the features of image tokens of a batch with volumes: in volume_order, or those of images
 * first and then those of one modality after the other. *tokens is how many there are. */
static int find_runs(struct step *s, const struct model *m, int64_t images, int64_t *tokens, struct error *e)
{
    const struct modality_list *l = &m->images->modalities;
    const struct st_entry *t = step_tensor(s, m, "volume_order");
    int64_t row = 0;
    *tokens = images;
    for (int k = 0; k < l->n; k++) *tokens += s->size['a' + k] * l->at[k].tokens;
    if (t) return order_runs(s, m, t, e);
    s->runs = step_room(s, l->n + 1, sizeof *s->runs);
    add_run(s, images, 0, false);
    for (int k = 0; k < l->n; k++) {
        const int64_t n = s->size['a' + k] * l->at[k].tokens;
        add_run(s, n, row, true);
        row += n;
    }
    return PL_OK;
}

int step_check_images(struct step *s, const struct model *m, struct error *e)
{
    if (!m->images) return PL_OK;
    if (m->images->grids) return check_grids(s, m, e);
    const struct st_entry *t = step_tensor(s, m, "pixel_values"), *mask = step_tensor(s, m, "pixel_attention_mask");
    int64_t tokens = 0, each = 0, none;
    if (t && t->rank == 5) TRY(list_images(s, t, e));
    if (mask) TRY(check_pixel_mask(s, mask, e));
    if (m->images->anyres) return check_shapes(s, m, e);
    TRY(count_tokens(s, m, &tokens, &none, e));
    const int64_t images = s->size['N'], frames = s->size['F'];
    if (frames) TRY(images_frame_tokens(m, s->holds.media.tokens_per_frame, &each, e));
    int64_t expected = images * m->images->features + frames * each;
    if (m->images->modalities.n) TRY(find_runs(s, m, expected, &expected, e));
    if (tokens == expected) return PL_OK;
    if (m->images->modalities.n)
        return error_set(e, PL_USAGE,
                         "%s: input_ids has %" PRId64 " image tokens (id %d); its images and volumes have %" PRId64,
                         s->in.path, tokens, m->images->token, expected);
    if (frames)
        return error_set(e, PL_USAGE,
                         "%s: input_ids has %" PRId64 " image tokens (id %d); expected %" PRId64 ": %" PRId64
                         " for each of %" PRId64 " images in pixel_values, then %" PRId64 " for each of %" PRId64
                         " frames in frame_values",
                         s->in.path, tokens, m->images->token, expected, m->images->features, images, each, frames);
    return error_set(e, PL_USAGE,
                     "%s: input_ids has %" PRId64 " image tokens (id %d), and pixel_values %" PRId64
                     " images of %" PRId64 " features: expected %" PRId64 " tokens",
                     s->in.path, tokens, m->images->token, images, m->images->features, expected);
}
