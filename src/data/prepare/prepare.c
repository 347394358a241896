/*
 * prepare.c: see prepare.h.
 *
 *   IN.tar, IN.tar.gz, gzip under a .tar name, a folder of them, a folder of extracted files
 *       gunzip to a file beside the output       only if the input is compressed
 *       index: pairs by name, report of damage   data/formats/sa1b.h
 *       pairs in order of their names, decoded, unchanged or resized
 *   OUT/IN.tar   plain ustar, sorted, and its index OUT/IN.tar.idx
 */
#include "data/prepare/prepare.h"

#include <fcntl.h>
#include <unistd.h>

#include "data/formats/sa1b.h"
#include "data/formats/tar.h"
#include "data/images/image.h"
#include "data/images/jpeg.h"
#include "data/images/resize.h"
#include "data/masks/annotation.h"
#include "data/masks/grid.h"
#include "io/gunzip.h"
#include "io/png.h"
#include "io/temporary.h"

enum { BLOCK = 32, MAX_MASKS = 8192 };

struct pair {
    struct text image, text;
    size_t bytes; /* of both files as read */
    const char *extension;
    struct error error; /* why it is left out */
};

/* ---- one pair ---- */

/* Resizes the image so that its longer side is `long_side` and encodes it as a JPEG. *w and *h
 * become the new size. */
static int shrink_image(const struct prepare *p, struct jpg *j, struct pair *pair, uint32_t *w, uint32_t *h,
                        struct error *e)
{
    const struct image_options o = {.range = {.kind = RANGE_FULL}, .jpg = j};
    struct text *file = &pair->image;
    struct image from;
    struct png_header head;
    if (image_format(file->at, file->n) == IMAGE_PNG) {
        TRY(png_peek(file->at, file->n, &head, e));
        if (head.depth == 16)
            return error_set(e, PL_USAGE,
                "the image has 16 bits, and --long-side writes 8: leave it out, or use `plimsoll data pack --range`");
    }
    TRY(image_decode(&from, file->at, file->n, &o, NULL, 0, e));
    resize_longest(from.width, from.height, (uint32_t)p->long_side, w, h);
    uint8_t *to = resize_image(from.rgb, from.width, from.height, *w, *h);
    file->n = 0;
    pair->extension = "jpg";
    int rc = jpg_encode(file, *w, *h, to, 0, (int)p->quality, e);
    mem_free(to);
    mem_free(from.rgb);
    return rc;
}

struct bits {
    const uint8_t *at;
    size_t stride;
};

static bool bit_set(const void *of, uint32_t x, uint32_t y)
{
    const struct bits *b = of;
    return b->at[y * b->stride + x / 8] >> (x % 8) & 1;
}

/* Resamples one mask to the new size. Returns false if no pixel is left, or its runs are
 * invalid. */
static bool shrink_mask(const struct grid *g, const struct mask *m, uint8_t *bits, struct traced *t)
{
    struct rle_facts f;
    if (rle_measure(&m->shape.rle, &f) || !f.area || grid_raster(g, &m->shape.rle, bits)) return false;
    uint32_t w = g->at.gw, h = g->at.gh;
    uint32_t x0 = (uint32_t)((uint64_t)f.x * w / g->at.w), x1 = (uint32_t)((uint64_t)(f.x + f.w) * w / g->at.w);
    uint32_t y0 = (uint32_t)((uint64_t)f.y * h / g->at.h), y1 = (uint32_t)((uint64_t)(f.y + f.h) * h / g->at.h);
    trace_runs(t, h, w, x0, y0, x1 < w ? x1 : w - 1, y1 < h ? y1 : h - 1, bit_set, &(struct bits){bits, g->stride});
    return t->area > 0;
}

/* Reports whether the mask still covers its point: resampling can lose that pixel. A point that the
 * file does not give is NAN, which is outside. */
static bool point_inside(const struct annotation_mask *m, const uint8_t *bits, size_t stride, uint32_t w, uint32_t h)
{
    double x = m->point[0], y = m->point[1];
    return x >= 0 && y >= 0 && x < w && y < h && bit_set(&(struct bits){bits, stride}, (uint32_t)x, (uint32_t)y);
}

/* Replaces the annotations for an image of a->w x a->h with those for w x h. */
static int shrink_text(struct pair *pair, const struct annotation *a, const struct mask *masks, const char *key,
                       uint32_t w, uint32_t h, struct error *e)
{
    uint32_t side = a->w > a->h ? a->w : a->h, cells = w > h ? w : h, n = 0;
    void *memory = mem_alloc(grid_bytes(side, cells)), *bits = mem_alloc(grid_mask_bytes(w, h));
    struct grid g;
    struct traced t = {0};
    struct text out = {0};
    struct grid_geometry at =
        {.h = a->h, .w = a->w, .resized_w = w, .resized_h = h, .canvas_w = w, .canvas_h = h, .gw = w, .gh = h};
    grid_init(&g, memory, side, cells);
    int rc = grid_set(&g, &at, e);
    char *name = mem_alloc(strlen(key) + 8);
    sprintf(name, "%s.jpg", key);
    annotation_write_begin(&out, a->id, w, h, name);
    double sx = (double)w / a->w, sy = (double)h / a->h;
    for (uint32_t i = 0; i < a->masks && !rc; i++) {
        const struct mask *m = &masks[i];
        if (!shrink_mask(&g, m, bits, &t)) continue;
        struct annotation_mask to = {.shape = &t, .predicted_iou = m->predicted_iou, .stability = m->stability,
                                     .id = m->id, .point = {m->point[0] * sx, m->point[1] * sy},
                                     .crop_box = {m->crop_box[0] * sx, m->crop_box[1] * sy, m->crop_box[2] * sx,
                                                  m->crop_box[3] * sy}};
        if (!point_inside(&to, bits, g.stride, w, h)) to.point[0] = t.point[0] + 0.5, to.point[1] = t.point[1] + 0.5;
        annotation_write_mask(&out, n++, w, h, &to);
    }
    annotation_write_end(&out);
    if (!rc && !n) rc = error_set(e, PL_USAGE, "no mask is left at %ux%u", w, h);
    text_free(&pair->text);
    pair->text = out;
    trace_free(&t);
    mem_free(name);
    mem_free(bits);
    mem_free(memory);
    return rc;
}

/* Reads a file of pair i into a buffer of its size. A tar states the size of a member; for a file
 * in a folder the first attempt returns it. */
static int read_half(const struct shard *s, uint32_t i, enum shard_half half, struct text *out, struct error *e)
{
    size_t n = s->pairs[i].n[half] ? s->pairs[i].n[half] : 1 << 20, got = 0;
    int rc = PL_NOFIT;
    for (int attempt = 0; attempt < 2 && rc == PL_NOFIT; attempt++) {
        mem_free(out->at);
        *out = (struct text){mem_alloc(n + 1), 0, n + 1};
        rc = shard_read(s, i, half, out->at, n, &got, e);
        if (rc == PL_NOFIT) n = got;
    }
    out->n = rc ? 0 : got;
    if (!rc) e->code = PL_OK; /* the first attempt may have set it */
    return rc;
}

/* Checks a pair and, with --long-side, resizes it if it is larger. Other images are decoded too, to
 * find truncated or damaged ones. */
static int check_pair(const struct prepare *p, struct jpg *j, const char *key, struct mask *masks, struct pair *pair,
                      struct error *e)
{
    const struct image_options o = {.range = {.kind = RANGE_FULL}, .jpg = j};
    const struct text *file = &pair->image;
    struct annotation a;
    struct image whole;
    uint32_t w, h;
    size_t room;
    if (annotation_read(pair->text.at, pair->text.n, &a, masks, MAX_MASKS, e)) return error_prepend(e, "annotations");
    if (!a.masks) return error_set(e, PL_USAGE, "the sample has no masks");
    TRY(image_peek(file->at, file->n, &o, &w, &h, &room, e));
    if (a.w != w || a.h != h) return mask_size_differs(w, h, a.w, a.h, e);
    pair->extension = image_ending(file->at, file->n);
    if (p->long_side && (w > p->long_side || h > p->long_side)) {
        TRY(shrink_image(p, j, pair, &w, &h, e));
        return w != a.w || h != a.h ? shrink_text(pair, &a, masks, key, w, h, e) : PL_OK;
    }
    TRY(image_decode(&whole, file->at, file->n, &o, NULL, 0, e));
    mem_free(whole.rgb);
    return PL_OK;
}

/* Reads and checks a pair; pair->error says why it is unusable. */
static void prepare_pair(const struct prepare *p, struct jpg *j, const struct shard *s, uint32_t i, struct pair *pair)
{
    struct error *e = &pair->error;
    struct mask *masks = mem_alloc(MAX_MASKS * sizeof *masks);
    int rc = read_half(s, i, SHARD_IMAGE, &pair->image, e);
    if (!rc) rc = read_half(s, i, SHARD_TEXT, &pair->text, e);
    pair->bytes = pair->image.n + pair->text.n;
    if (!rc) check_pair(p, j, shard_key(s, i), masks, pair, e);
    mem_free(masks);
}

/* ---- one shard ---- */

static int write_pair(struct tar_writer *tar, const char *key, const struct pair *pair, struct error *e)
{
    struct bump names = {0};
    int rc = tar_write_member(tar, bump_format(&names, "%s.%s", key, pair->extension), pair->image.at, pair->image.n,
                              e);
    if (!rc) rc = tar_write_member(tar, bump_format(&names, "%s.json", key), pair->text.at, pair->text.n, e);
    bump_free(&names);
    return rc;
}

static int write_block(struct prepare *p, const struct shard *s, uint32_t first, uint32_t n, struct tar_writer *tar,
                       struct error *e)
{
    struct pair *pairs = mem_alloc(BLOCK * sizeof *pairs);
    int rc = PL_OK;
#pragma omp parallel
    {
        struct jpg *j = jpg_new(NULL);
#pragma omp for schedule(dynamic)
        for (uint32_t i = 0; i < n; i++) {
            prepare_pair(p, j, s, first + i, &pairs[i]);
#pragma omp critical
            progress_add(&p->progress, 1);
        }
        jpg_free(j);
    }
    for (uint32_t i = 0; i < n; i++) {
        p->read++;
        p->bytes_in += pairs[i].bytes;
        if (pairs[i].error.code) {
            p->dropped++;
            progress_clear();
            print_line("  left out: %s: %s", shard_key(s, first + i), pairs[i].error.text);
        } else if (!rc) {
            rc = write_pair(tar, shard_key(s, first + i), &pairs[i], e);
            p->written++;
            p->bytes_out += pairs[i].image.n + pairs[i].text.n;
        }
        text_free(&pairs[i].image);
        text_free(&pairs[i].text);
    }
    mem_free(pairs);
    return rc;
}

/* Writes no output when no pair is usable. */
static int write_tar(struct prepare *p, const struct shard *s, const char *path, struct error *e)
{
    struct temporary t;
    const uint64_t before = p->written;
    if (temporary_file(&t, path, e)) return e->code;
    struct tar_writer tar = {.fd = t.fd, .path = path};
    int rc = PL_OK;
    progress_begin(&p->progress, "preparing", "pairs", s->n);
    for (uint32_t i = 0; i < s->n && !rc; i += BLOCK)
        rc = write_block(p, s, i, (uint32_t)min_u64(s->n - i, BLOCK), &tar, e);
    progress_clear();
    if (!rc) rc = tar_write_end(&tar, e);
    if (!rc && p->written > before) return temporary_keep(&t, path, true, e);
    temporary_drop(&t);
    return rc;
}

/* Writes the usable pairs of a shard and their index, which opening the new shard makes. */
static int rewrite_shard(struct prepare *p, const char *from, const char *path, struct error *e)
{
    struct shard s, made;
    char line[512];
    TRY(shard_open(&s, from, e));
    if (shard_report_print(&s.report, line, sizeof line)) print_line("  %s", line);
    const uint64_t before = p->written;
    int rc = s.n ? write_tar(p, &s, path, e) : PL_OK;
    shard_close(&s);
    TRY(rc);
    if (p->written == before) {
        print_line("  no usable pair of an image and its annotations: no file is written");
        return PL_OK;
    }
    TRY(shard_open(&made, path, e));
    shard_close(&made);
    return PL_OK;
}

/* Rewrites a compressed shard: writes an uncompressed copy first and removes it and its index at
 * the end. */
static int unpack_shard(struct prepare *p, const char *from, int fd, const char *path, struct error *e)
{
    struct text index = {0};
    struct gunzip_report r;
    struct temporary plain;
    TRY(temporary_file(&plain, path, e));
    text_printf(&index, "%s.idx", plain.path);
    int rc = gunzip(fd, plain.fd, &r, e);
    if (rc) error_prepend(e, "%s", from);
    if (!rc && r.damaged)
        print_line("  the gzip file is damaged (%s): %llu bytes were recovered", r.reason, (unsigned long long)r.out);
    if (!rc) rc = rewrite_shard(p, plain.path, path, e);
    unlink(index.at);
    temporary_drop(&plain);
    text_free(&index);
    return rc;
}

/* Returns DIR/NAME.tar, which the caller frees, for any of a/NAME, a/NAME.tar, a/NAME.tar.gz,
 * a/NAME.tgz */
static char *output_path(const struct prepare *p, const char *from)
{
    struct text out = {0};
    static const char *const endings[] = {".gz", ".tgz", ".tar"};
    size_t n = strlen(from);
    while (n > 1 && from[n - 1] == '/') n--;
    size_t start = n;
    while (start && from[start - 1] != '/') start--;
    for (size_t k = 0; k < COUNT(endings); k++) {
        size_t m = strlen(endings[k]);
        if (n - start > m && !strncmp(from + n - m, endings[k], m)) n -= m;
    }
    text_printf(&out, "%s/%.*s.tar", p->out, (int)(n - start), from + start);
    return out.at;
}

/* Rewrites one input as `path`, unless that exists already. */
static int prepare_shard(struct prepare *p, const char *from, const char *path, struct error *e)
{
    uint8_t head[8] = {0};
    if (file_exists(path)) {
        TRY(file_check(path, e));
        print_line("%s: exists already, kept", path);
        p->existing++;
        return PL_OK;
    }
    print_line("%s -> %s", from, path);
    if (dir_exists(from)) return rewrite_shard(p, from, path, e);
    const int fd = file_open(from, NULL, e);
    if (fd < 0) return e->code;
    const ssize_t got = pread(fd, head, sizeof head, 0);
    const enum tar_kind kind = got > 0 ? tar_sniff(head, (size_t)got) : TAR_PLAIN;
    int rc = kind == TAR_ZSTD
                 ? error_set(e, PL_USAGE, "%s is compressed with zstd: unpack it first, with `unzstd`", from)
             : kind == TAR_GZIP ? unpack_shard(p, from, fd, path, e)
                                : rewrite_shard(p, from, path, e);
    close(fd);
    return rc;
}

/* ---- all shards ---- */

/* Adds an input: a folder with shards means all of them, one without is a shard of extracted
 * files. */
static int add_input(struct names *inputs, const char *path, struct error *e)
{
    static const char *const endings[] = {".tar", ".tar.gz", ".tgz"};
    uint32_t before = inputs->n;
    for (size_t i = 0; i < COUNT(endings) && dir_exists(path); i++) {
        struct names found = {0};
        TRY(dir_list_ending(path, endings[i], &found, e));
        for (uint32_t k = 0; k < found.n; k++) vec_push(inputs, mem_string(found.at[k]));
        names_free(&found);
    }
    if (inputs->n == before) vec_push(inputs, mem_string(path));
    return PL_OK;
}

/* Lists the inputs of the paths and their outputs, which take their names. Two inputs with the same
 * name are refused, because the second would be lost. */
static int list_inputs(const struct prepare *p, const struct names *paths, struct names *inputs, struct names *outputs,
                       struct error *e)
{
    int rc = PL_OK;
    for (uint32_t i = 0; i < paths->n && !rc; i++) {
        struct names found = {0};
        rc = file_glob(paths->at[i], &found, e);
        if (!rc && !found.n) rc = error_set(e, PL_USAGE, "%s: no such file or folder", paths->at[i]);
        for (uint32_t k = 0; k < found.n && !rc; k++) rc = add_input(inputs, found.at[k], e);
        names_free(&found);
    }
    TRY(rc);
    for (uint32_t i = 0; i < inputs->n; i++) {
        vec_push(outputs, output_path(p, inputs->at[i]));
        for (uint32_t k = 0; k < i; k++)
            if (!strcmp(outputs->at[k], outputs->at[i]))
                return error_set(e, PL_USAGE, "%s and %s would both become %s: prepare them into two folders",
                                 inputs->at[k], inputs->at[i], outputs->at[i]);
    }
    return PL_OK;
}

int prepare_shards(struct prepare *p, const struct names *paths, struct error *e)
{
    struct names inputs = {0}, outputs = {0};
    const bool made = !file_exists(p->out);
    int rc = list_inputs(p, paths, &inputs, &outputs, e);
    if (!rc) rc = dir_make(p->out, e);
    for (uint32_t i = 0; i < inputs.n && !rc; i++) rc = prepare_shard(p, inputs.at[i], outputs.at[i], e);
    if (made && (rc || (!p->written && !p->existing)))
        rmdir(p->out); /* fails, as it should, when the folder is not empty */
    names_free(&inputs);
    names_free(&outputs);
    return rc;
}
