/*
 * pixels.c: images as the library reads, resizes and processes them, for
 * tests/golden/make_pixels.py:
 *
 *     pixels decode white|drop IMAGE OUT            prints WIDTH HEIGHT; OUT: bytes [h][w][3]
 *     pixels resize FILTER WIDTH HEIGHT IMAGE OUT   bilinear, bicubic, lanczos, torch; [HEIGHT][WIDTH][3]
 *     pixels process FOLDER FAMILY SIDE IMAGE OUT   FAMILY: clip, siglip, idefics3, internvl, gemma3,
 *                                                   anyres, onevision; onevision_beside: one of
 *                                                   several images; onevision_frame: of a video;
 *                                                   prints COUNT ROWS COLUMNS H W;
 *                                                   OUT: f32 [count][3][H][W]
 *     pixels frames FOLDER SIDE FRAMES RATE FPS MOST  prints which frames of a video are taken
 *     pixels tokens FOLDER WIDTH HEIGHT             prints the tokens of an image, of a model
 */

#include "data/images/image.h"
#include "data/images/image_processor.h"
#include "io/file.h"
#include "models/images.h"

#include "pixel_values.h"

static int read_image(const char *path, bool on_white, struct image *out, struct error *e)
{
    char *bytes;
    size_t n;
    if (file_read(path, 1 << 30, &bytes, &n, e)) return e->code;
    int rc = image_decode(out, bytes, n, &(struct image_options){.on_white = on_white}, NULL, 0, e);
    mem_free(bytes);
    return rc;
}

static int word(const char *name, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(words[i], name)) return i;
    fprintf(stderr, "pixels: unknown word %s\n", name);
    exit(2);
}

static int decode(char **a, struct error *e)
{
    struct image i;
    if (read_image(a[3], !strcmp(a[2], "white"), &i, e)) return e->code;
    printf("%u %u\n", i.width, i.height);
    int rc = file_write_atomic(a[4], i.rgb, (size_t)i.width * i.height * 3, e);
    mem_free(i.rgb);
    return rc;
}

static int resize(char **a, struct error *e)
{
    struct image i;
    if (read_image(a[5], true, &i, e)) return e->code;
    struct resize_view v = {.filter = (enum resize_filter)word(a[2], (const char *const[]){"bilinear", "bicubic",
                                                                                           "lanczos", "torch", NULL}),
                            .width = i.width,
                            .height = i.height,
                            .to_width = (uint32_t)atoi(a[3]),
                            .to_height = (uint32_t)atoi(a[4])};
    size_t room = resize_scratch(&v), bytes = (size_t)v.to_width * v.to_height * 3;
    void *scratch = mem_alloc(room);
    struct resize r;
    v.to = mem_alloc(bytes);
    v.stride = (size_t)v.to_width * 3;
    resize_begin(&r, &v, scratch, room);
    for (uint32_t y = 0; resize_wants(&r); y++) resize_row(&r, i.rgb + (size_t)y * i.width * 3);
    int rc = file_write_atomic(a[6], v.to, bytes, e);
    mem_free(v.to);
    mem_free(scratch);
    mem_free(i.rgb);
    return rc;
}

static int process(char **a, struct error *e)
{
    struct image_processor p;
    struct image i;
    uint32_t rows, columns, h, w;
    static const char *const families[] = {"clip", "siglip", "idefics3", "internvl", "gemma3", "anyres", "onevision",
                                           "onevision_beside", "onevision_frame", NULL};
    const int which = word(a[3], families);
    const enum image_family family = (enum image_family)(which < IMAGES_ONEVISION ? which : IMAGES_ONEVISION);
    const bool frame = which == IMAGES_ONEVISION + 2;
    if ((frame ? image_processor_read_frames : image_processor_read)(&p, a[2], family, (uint32_t)atoi(a[4]), e) ||
        read_image(a[5], true, &i, e))
        return e->code;
    if (which == IMAGES_ONEVISION + 1) p = image_processor_beside(&p);
    size_t room = image_processor_scratch(&p, i.width, i.height);
    void *scratch = mem_alloc(room);
    uint32_t count = image_processor_count(&p, i.width, i.height, &rows, &columns);
    image_processor_size(&p, &h, &w);
    const size_t n = (size_t)count * 3 * h * w;
    uint8_t *to = mem_alloc(n);
    float value[3][256];
    image_processor_run(&p, i.rgb, i.width, i.height, scratch, room, to);
    image_processor_values(&p, value);
    float *values = pixel_values(to, n, (size_t)h * w, value);
    printf("%u %u %u %u %u\n", count, rows, columns, h, w);
    int rc = file_write_atomic(a[6], values, n * sizeof *values, e);
    mem_free(values);
    mem_free(to);
    mem_free(scratch);
    mem_free(i.rgb);
    return rc;
}

static int frames(char **a, struct error *e)
{
    const struct video_facts f = {.frames = (uint32_t)atoi(a[4]), .fps = atof(a[5])};
    struct image_processor p;
    uint32_t *chosen = mem_alloc(f.frames * sizeof *chosen), n = 0;
    if (image_processor_read_frames(&p, a[2], IMAGES_ONEVISION, (uint32_t)atoi(a[3]), e)) return e->code;
    const struct video_sampling s = video_sampling_with(&p.frames, atof(a[6]), (uint32_t)atoi(a[7]));
    int rc = video_sample(&s, &f, chosen, &n, e);
    for (uint32_t i = 0; i < n && !rc; i++) printf("%u ", chosen[i]);
    printf("\n");
    mem_free(chosen);
    return rc;
}

static int tokens(char **a, struct error *e)
{
    struct model m;
    if (model_open(&m, a[2], e)) return e->code;
    const struct anyres *x = m.images->anyres;
    printf("%d\n", anyres_tokens(x, anyres_shape_of(x, (uint32_t)atoi(a[3]), (uint32_t)atoi(a[4]))));
    model_close(&m);
    return PL_OK;
}

int main(int argc, char **argv)
{
    struct error e;
    int rc = 2;
    if (argc == 5 && !strcmp(argv[1], "decode")) rc = decode(argv, &e);
    else if (argc == 7 && !strcmp(argv[1], "resize")) rc = resize(argv, &e);
    else if (argc == 7 && !strcmp(argv[1], "process")) rc = process(argv, &e);
    else if (argc == 8 && !strcmp(argv[1], "frames")) rc = frames(argv, &e);
    else if (argc == 5 && !strcmp(argv[1], "tokens")) rc = tokens(argv, &e);
    else return fprintf(stderr, "usage: pixels decode | resize | process | frames | tokens, see tests/pixels.c\n"), 2;
    if (rc) fprintf(stderr, "%s\n", e.text);
    return rc;
}
