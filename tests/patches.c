/*
 * patches.c: images and videos as patches, for tests/golden/make_qwen_vl_pixels.py:
 *
 *     patches image FOLDER FAMILY WIDTH HEIGHT RGB OUT
 *     patches video FOLDER FAMILY WIDTH HEIGHT RGB OUT FRAMES FPS SET_FPS SET_MAX_FRAMES
 *     patches list FOLDER FAMILY VIDEO
 *     patches sizes FOLDER FAMILY
 *     patches frames FOLDER FAMILY
 *
 * FAMILY is qwen2 or qwen3; RGB has bytes [frames][h][w][3]; OUT gets f32 [patches][floats of one].
 * FPS is the video's (0: a folder of images), SET_FPS and SET_MAX_FRAMES are the user's. Prints the
 * grid, t h w, and the tokens; of a video also the seconds of a grid, the frames and the text.
 *
 * `list` prints what is known of a video file or folder, FRAMES FPS WIDTH HEIGHT, and the frames
 * that are taken. The last two read lines, and print the grid or the frames of each, or 0 where it
 * is refused: FRAMES WIDTH HEIGHT, of an image if FRAMES is 0; FRAMES FPS SET_FPS SET_MAX_FRAMES.
 */

#include "data/images/patches.h"
#include "io/file.h"
#include "text/template/chat_images.h"

#include "pixel_values.h"

struct job {
    struct patch_rules rules;
    uint32_t width, height, frames;
    uint8_t *rgb;
    size_t bytes;
};

static enum patch_family family_of(const char *name)
{
    return !strcmp(name, "qwen3") ? PATCHES_QWEN3_VL : PATCHES_QWEN2_VL;
}

static int open_job(struct job *j, char **a, bool videos, const struct patch_overrides *o, struct error *e)
{
    char *bytes;
    TRY(patch_rules_read(&j->rules, a[2], family_of(a[3]), videos, o, e));
    j->width = (uint32_t)atoi(a[4]);
    j->height = (uint32_t)atoi(a[5]);
    TRY(file_read(a[6], UINT64_C(1) << 34, &bytes, &j->bytes, e));
    j->rgb = (uint8_t *)bytes;
    CHECK(j->bytes == (size_t)j->frames * j->width * j->height * 3, "%s has %zu bytes", a[6], j->bytes);
    return PL_OK;
}

static void print_grid(const struct job *j, const struct patch_grid *g)
{
    printf("%u %u %u %llu\n", g->t, g->h, g->w, (unsigned long long)patch_grid_tokens(&j->rules, g));
}

static size_t count_values(const struct job *j, const struct patch_grid *g)
{
    return patch_grid_patches(g) * patch_bytes(&j->rules);
}

/* Writes the values of the patches to a file. */
static int write_values(const struct job *j, const struct patch_grid *g, const uint8_t *patches, const char *path,
                        struct error *e)
{
    const size_t n = count_values(j, g);
    float value[3][256];
    patch_values(&j->rules, value);
    float *values = pixel_values(patches, n, patch_bytes(&j->rules) / 3, value);
    int rc = file_write_atomic(path, values, n * sizeof *values, e);
    mem_free(values);
    return rc;
}

static int image(char **a, struct error *e)
{
    struct job j = {.frames = 1};
    struct patch_grid g;
    TRY(open_job(&j, a, false, NULL, e));
    TRY(patch_grid_image(&j.rules, j.width, j.height, &g, e));
    const uint64_t room = patch_scratch(&j.rules, &g, j.width, j.height);
    void *scratch = mem_alloc(room);
    uint8_t *to = mem_alloc(count_values(&j, &g));
    patch_image(&j.rules, &g, j.rgb, j.width, j.height, scratch, room, to);
    print_grid(&j, &g);
    int rc = write_values(&j, &g, to, a[7], e);
    mem_free(to);
    mem_free(scratch);
    mem_free(j.rgb);
    return rc;
}

static void print_video(const struct job *j, const struct video_facts *v, const struct patch_grid *g,
                        const uint32_t *chosen, uint32_t n)
{
    double *seconds = mem_alloc(g->t * sizeof *seconds);
    const uint64_t tokens = patch_grid_tokens(&j->rules, g) / g->t;
    struct text out = {0};
    patch_grid_seconds(&j->rules, v, chosen, n, seconds);
    vision_text_put(&(struct vision_text){"<|video_pad|>", "<|vision_start|>", "<|vision_end|>", g->t, tokens,
                                          j->rules.family == PATCHES_QWEN3_VL ? seconds : NULL}, &out);
    printf("%.17g\n", patch_seconds_per_grid(&j->rules, v, n));
    for (uint32_t i = 0; i < n; i++) printf("%u ", chosen[i]);
    printf("\n%s\n", out.at);
    text_free(&out);
    mem_free(seconds);
}

static int video(char **a, struct error *e)
{
    const struct video_facts v = {.frames = (uint32_t)atoi(a[8]), .fps = atof(a[9])};
    struct job j = {.frames = v.frames};
    struct patch_grid g;
    uint32_t n;
    TRY(open_job(&j, a, true,
                 &(struct patch_overrides){.fps = atof(a[10]), .max_frames = (uint32_t)atoi(a[11])}, e));
    uint32_t *chosen = mem_alloc(v.frames * sizeof *chosen);
    TRY(patch_frames_choose(&j.rules, &v, chosen, &n, e));
    TRY(patch_grid_video(&j.rules, n, j.width, j.height, &g, e));
    const uint64_t room = patch_scratch(&j.rules, &g, j.width, j.height);
    const size_t frame = (size_t)j.width * j.height * 3;
    void *scratch = mem_alloc(room);
    uint8_t *to = mem_alloc(count_values(&j, &g));
    for (uint32_t i = n; i-- > 0;)
        patch_frame(&j.rules, &g, i, n, j.rgb + chosen[i] * frame, j.width, j.height, scratch, room, to);
    print_grid(&j, &g);
    print_video(&j, &v, &g, chosen, n);
    int rc = write_values(&j, &g, to, a[7], e);
    mem_free(to);
    mem_free(scratch);
    mem_free(chosen);
    mem_free(j.rgb);
    return rc;
}

static int list(char **a, struct error *e)
{
    struct bump b = {0};
    struct patch_rules rules;
    struct video_choice c;
    TRY(patch_rules_read(&rules, a[2], family_of(a[3]), true, NULL, e));
    const struct video_options o = {.choose = patch_frames_choose, .chooser = &rules};
    int rc = video_list(VIDEO_AT(a[4]), &o, &b, &c, e);
    if (!rc) printf("%u %.17g %u %u:", c.facts.frames, c.facts.fps, c.facts.width, c.facts.height);
    for (uint32_t i = 0; !rc && i < c.n; i++) printf(" %u", c.chosen[i]);
    printf("\n");
    bump_free(&b);
    return rc;
}

static int sizes(char **a, struct error *e)
{
    const enum patch_family family = family_of(a[3]);
    struct patch_rules images, videos;
    uint32_t frames, w, h;
    TRY(patch_rules_read(&images, a[2], family, false, NULL, e));
    TRY(patch_rules_read(&videos, a[2], family, true, NULL, e));
    while (scanf("%u %u %u", &frames, &w, &h) == 3) {
        struct patch_grid g = {0};
        if (frames) patch_grid_video(&videos, frames, w, h, &g, e);
        else patch_grid_image(&images, w, h, &g, e);
        printf("%u %u %u\n", g.t, g.h, g.w);
    }
    return PL_OK;
}

static int frames(char **a, struct error *e)
{
    struct video_facts v = {0};
    struct patch_overrides o = {0};
    struct patch_rules rules;
    uint32_t n;
    while (scanf("%u %lf %lf %u", &v.frames, &v.fps, &o.fps, &o.max_frames) == 4) {
        TRY(patch_rules_read(&rules, a[2], family_of(a[3]), true, &o, e));
        uint32_t *chosen = mem_alloc(v.frames * sizeof *chosen);
        if (patch_frames_choose(&rules, &v, chosen, &n, e)) printf("0");
        else for (uint32_t i = 0; i < n; i++) printf("%u ", chosen[i]);
        printf("\n");
        mem_free(chosen);
    }
    return PL_OK;
}

int main(int argc, char **argv)
{
    struct error e;
    int rc = 2;
    if (argc == 8 && !strcmp(argv[1], "image")) rc = image(argv, &e);
    else if (argc == 12 && !strcmp(argv[1], "video")) rc = video(argv, &e);
    else if (argc == 5 && !strcmp(argv[1], "list")) rc = list(argv, &e);
    else if (argc == 4 && !strcmp(argv[1], "sizes")) rc = sizes(argv, &e);
    else if (argc == 4 && !strcmp(argv[1], "frames")) rc = frames(argv, &e);
    else return fprintf(stderr, "usage: patches image | video | list | sizes | frames, see tests/patches.c\n"), 2;
    if (rc) fprintf(stderr, "%s\n", e.text);
    return rc;
}
