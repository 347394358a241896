/*
 * data_prepare.c: `plimsoll data prepare`: converts downloaded shards to shards for training.
 *
 *   IN.tar, IN.tar.gz, gzip under a .tar name, a folder of them, a folder of extracted files
 *       gunzip to a file beside the output       only if the input is compressed
 *       index: pairs by name, report of damage   data/formats/shard.h
 *       pairs in order of their names, decoded, unchanged or resized
 *   OUT/IN.tar   plain ustar, sorted, and its index OUT/IN.tar.idx
 *
 * An output gets its final name when it is complete. An output that exists already is kept, so an
 * interrupted run can be continued. An unusable pair is reported and left out.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/progress.h"
#include "cli/data.h"
#include "cli/data_samples.h"
#include "data/masks/annotation.h"
#include "data/masks/annotation_write.h"
#include "data/masks/grid.h"
#include "data/images/image.h"
#include "data/images/jpeg.h"
#include "data/images/resize.h"
#include "data/formats/shard.h"
#include "data/formats/tar.h"
#include "io/gunzip.h"
#include "io/png.h"
#include "io/temporary.h"

enum { BLOCK = 32, MAX_MASKS = 8192 };

struct prepare {
    const char *out;
    uint64_t long_side; /* 0: keep the bytes */
    uint64_t quality;
    uint64_t read, written, dropped, bytes_in, bytes_out;
    uint64_t existing; /* outputs that existed already and were kept */
    struct progress progress; /* in the current shard */
};

struct pair {
    struct text image, text;
    size_t bytes; /* of both files as read */
    const char *extension;
    struct error error; /* why it is left out */
};

/* ---- one pair ---- */

/* Decodes to contiguous RGB rows; the caller frees them with mem_free. */
static int decode(struct jpg *j, const struct text *image, uint32_t *w, uint32_t *h, uint8_t **pixels, struct error *e)
{
    struct image x;
    struct png_header head;
    if (!image_is_whole(image->at, image->n)) return jpg_decode(j, image->at, image->n, 1, w, h, pixels, e);
    if (image_is_png(image->at, image->n)) {
        if (png_peek(image->at, image->n, &head, e)) return e->code;
        if (head.depth == 16)
            return error_set(
                e, PL_USAGE,
                "the image has 16 bits, and --long-side writes 8: leave it out, or use `plimsoll data pack --range`");
    }
    if (image_decode(&x, image->at, image->n, &(struct image_options){.range = {.kind = RANGE_FULL}}, NULL, 0, e))
        return e->code;
    *w = x.width, *h = x.height, *pixels = x.rgb;
    return PL_OK;
}

/* Resizes the image so that its longer side is `long_side` and encodes it as a JPEG. *w and *h
 * become the new size. */
static int shrink_image(const struct prepare *p, struct jpg *j, struct pair *pair, uint32_t *w, uint32_t *h,
                        struct error *e)
{
    uint8_t *pixels;
    uint32_t from_w, from_h;
    if (decode(j, &pair->image, &from_w, &from_h, &pixels, e)) return e->code;
    resize_longest(from_w, from_h, (uint32_t)p->long_side, w, h);
    struct resize r;
    struct resize_view view = {.width = from_w,
                               .height = from_h,
                               .to_width = *w,
                               .to_height = *h,
                               .stride = (size_t)*w * 3};
    view.to = mem_alloc(view.stride * *h);
    size_t room = resize_scratch(&view);
    void *scratch = mem_alloc(room);
    resize_begin(&r, &view, scratch, room);
    for (uint32_t y = 0; resize_wants(&r); y++) resize_row(&r, pixels + (size_t)y * from_w * 3);
    pair->image.n = 0;
    pair->extension = "jpg";
    int rc = jpg_encode(&pair->image, *w, *h, view.to, 0, (int)p->quality, e);
    mem_free(scratch);
    mem_free(view.to);
    mem_free(pixels);
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

/* Resamples one mask to the new size. False: no pixel is left, or its runs are invalid. */
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

/* Whether the mask still covers its point: resampling can lose that pixel. A point that the file
 * does not give is NAN, which is outside. */
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
        struct annotation_mask to = {.shape = &t,
                                     .predicted_iou = m->predicted_iou,
                                     .stability = m->stability,
                                     .id = m->id,
                                     .point = {m->point[0] * sx, m->point[1] * sy},
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

static int check_size(const struct annotation *a, uint32_t w, uint32_t h, struct error *e)
{
    if (a->w == w && a->h == h) return PL_OK;
    return mask_size_differs(w, h, a->w, a->h, e);
}

/* Resizes an image that is too large. Other images are decoded too, to find truncated or damaged
 * ones. */
static int prepare_image(const struct prepare *p, struct jpg *j, struct pair *pair, uint32_t *w, uint32_t *h,
                         struct error *e)
{
    pair->extension = image_ending(pair->image.at, pair->image.n);
    if (p->long_side && (*w > p->long_side || *h > p->long_side)) return shrink_image(p, j, pair, w, h, e);
    return image_check(j, pair->image.at, pair->image.n, w, h, e);
}

/* Reads, checks and, with --long-side, resizes a pair; pair->error states why it is unusable. */
static void prepare_pair(const struct prepare *p, struct jpg *j, const struct shard *s, uint32_t i, struct pair *pair)
{
    struct error *e = &pair->error;
    struct annotation a;
    struct mask *masks = mem_alloc(MAX_MASKS * sizeof *masks);
    uint32_t w, h;
    int rc = samples_read_half(s, i, SHARD_IMAGE, &pair->image, e);
    if (!rc) rc = samples_read_half(s, i, SHARD_TEXT, &pair->text, e);
    pair->bytes = pair->image.n + pair->text.n;
    if (!rc && annotation_read(pair->text.at, pair->text.n, &a, masks, MAX_MASKS, e))
        rc = error_prepend(e, "annotations");
    if (!rc && !a.masks) rc = error_set(e, PL_USAGE, "the sample has no masks");
    if (!rc && !(rc = image_size(pair->image.at, pair->image.n, &w, &h, e))) rc = check_size(&a, w, h, e);
    if (!rc) rc = prepare_image(p, j, pair, &w, &h, e);
    if (!rc && (w != a.w || h != a.h)) shrink_text(pair, &a, masks, shard_key(s, i), w, h, e);
    mem_free(masks);
}

/* ---- one shard ---- */

static int write_pair(struct tar_writer *tar, const char *key, const struct pair *pair, struct error *e)
{
    struct text name = {0};
    text_printf(&name, "%s.%s", key, pair->extension);
    int rc = tar_write_member(tar, name.at, pair->image.at, pair->image.n, e);
    name.n = 0;
    text_printf(&name, "%s.json", key);
    if (!rc) rc = tar_write_member(tar, name.at, pair->text.at, pair->text.n, e);
    text_free(&name);
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

/* Opening the new shard writes its index. */
static int index_output(const char *path, struct error *e)
{
    struct shard s;
    if (shard_open(&s, path, e)) return e->code;
    shard_close(&s);
    return PL_OK;
}

static int pack_shard(struct prepare *p, const char *from, const char *path, struct error *e)
{
    struct shard s;
    char line[512];
    if (shard_open(&s, from, e)) return e->code;
    if (shard_report_print(&s.report, line, sizeof line)) print_line("  %s", line);
    const uint64_t before = p->written;
    int rc = s.n ? write_tar(p, &s, path, e) : PL_OK;
    if (!rc && p->written == before) printf("  no usable pair of an image and its annotations: no file is written\n");
    else if (!rc) rc = index_output(path, e);
    shard_close(&s);
    return rc;
}

/* A compressed shard: writes an uncompressed copy first and removes it and its index at the end. */
static int unpack_shard(struct prepare *p, const char *from, int fd, const char *path, struct error *e)
{
    struct text index = {0};
    struct gunzip_report r;
    struct temporary plain;
    if (temporary_file(&plain, path, e)) return e->code;
    text_printf(&index, "%s.idx", plain.path);
    int rc = gunzip(fd, plain.fd, &r, e);
    if (rc) error_prepend(e, "%s", from);
    if (!rc && r.damaged)
        printf("  the gzip file is damaged (%s): %llu bytes were recovered\n", r.reason, (unsigned long long)r.out);
    if (!rc) rc = pack_shard(p, plain.path, path, e);
    unlink(index.at);
    temporary_drop(&plain);
    text_free(&index);
    return rc;
}

/* DIR/NAME.tar for any of a/NAME, a/NAME.tar, a/NAME.tar.gz, a/NAME.tgz */
static void output_path(const struct prepare *p, const char *from, struct text *out)
{
    static const char *const endings[] = {".gz", ".tgz", ".tar"};
    size_t n = strlen(from);
    while (n > 1 && from[n - 1] == '/') n--;
    size_t start = n;
    while (start && from[start - 1] != '/') start--;
    for (size_t k = 0; k < COUNT(endings); k++) {
        size_t m = strlen(endings[k]);
        if (n - start > m && !strncmp(from + n - m, endings[k], m)) n -= m;
    }
    text_printf(out, "%s/%.*s.tar", p->out, (int)(n - start), from + start);
}

static int prepare_shard(struct prepare *p, const char *from, struct error *e)
{
    struct text path = {0};
    uint8_t head[8] = {0};
    output_path(p, from, &path);
    if (file_exists(path.at)) {
        const int kept = file_open(path.at, NULL, e);
        if (kept >= 0) {
            print_line("%s: exists already, kept", path.at);
            p->existing++;
            close(kept);
        }
        text_free(&path);
        return kept < 0 ? e->code : PL_OK;
    }
    print_line("%s -> %s", from, path.at);
    const bool folder = dir_exists(from);
    int fd = folder ? -1 : file_open(from, NULL, e), rc = folder || fd >= 0 ? PL_OK : e->code;
    ssize_t got = fd < 0 ? 0 : pread(fd, head, sizeof head, 0);
    enum tar_kind kind = got > 0 ? tar_sniff(head, (size_t)got) : TAR_PLAIN;
    if (!rc && kind == TAR_ZSTD)
        rc = error_set(e, PL_USAGE, "%s is compressed with zstd: unpack it first, with `unzstd`", from);
    if (!rc) rc = kind == TAR_GZIP ? unpack_shard(p, from, fd, path.at, e) : pack_shard(p, from, path.at, e);
    if (fd >= 0) close(fd);
    text_free(&path);
    return rc;
}

/* A folder with shards means all of them; a folder without is a shard of extracted files. */
static int add_input(struct names *inputs, const char *path, struct error *e)
{
    static const char *const endings[] = {".tar", ".tar.gz", ".tgz"};
    uint32_t before = inputs->n;
    int rc = PL_OK;
    for (size_t i = 0; i < COUNT(endings) && !rc && dir_exists(path); i++) {
        struct names found = {0};
        rc = dir_list_ending(path, endings[i], &found, e);
        for (uint32_t k = 0; k < found.n && !rc; k++) vec_push(inputs, mem_string(found.at[k]));
        names_free(&found);
    }
    if (!rc && inputs->n == before) vec_push(inputs, mem_string(path));
    return rc;
}

/* Outputs take the names of their inputs. Two inputs with the same name are refused, because the
 * second would be lost. */
static int check_names(const struct prepare *p, const struct names *inputs, struct error *e)
{
    struct names outputs = {0};
    int rc = PL_OK;
    for (uint32_t i = 0; i < inputs->n && !rc; i++) {
        struct text path = {0};
        output_path(p, inputs->at[i], &path);
        for (uint32_t k = 0; k < i && !rc; k++)
            if (!strcmp(outputs.at[k], path.at))
                rc = error_set(e, PL_USAGE, "%s and %s would both become %s: prepare them into two folders",
                               inputs->at[k], inputs->at[i], path.at);
        vec_push(&outputs, mem_string(path.at));
        text_free(&path);
    }
    names_free(&outputs);
    return rc;
}

static int prepare_all(struct prepare *p, const struct names *paths, struct error *e)
{
    struct names inputs = {0};
    const bool made = !file_exists(p->out);
    int rc = PL_OK;
    for (uint32_t i = 0; i < paths->n && !rc; i++) {
        struct names found = {0};
        rc = file_glob(paths->at[i], &found, e);
        if (!rc && !found.n) rc = error_set(e, PL_USAGE, "%s: no such file or folder", paths->at[i]);
        for (uint32_t k = 0; k < found.n && !rc; k++) rc = add_input(&inputs, found.at[k], e);
        names_free(&found);
    }
    if (!rc) rc = check_names(p, &inputs, e);
    if (!rc) rc = dir_make(p->out, e);
    const double from = clock_seconds();
    for (uint32_t i = 0; i < inputs.n && !rc; i++) rc = prepare_shard(p, inputs.at[i], e);
    char in[32], out[32], time[32];
    if (!rc)
        printf("%llu pairs read, %llu written, %llu left out; %s to %s, %s\n", (unsigned long long)p->read,
               (unsigned long long)p->written, (unsigned long long)p->dropped, size_print(p->bytes_in, in),
               size_print(p->bytes_out, out), duration_print(clock_seconds() - from, time));
    if (!rc && !p->written && !p->existing)
        rc = error_set(e, PL_USAGE, "%s%s: no usable pair of an image and its annotations: no file is written",
                       paths->at[0], paths->n > 1 ? " and the others" : "");
    if (rc && made) rmdir(p->out); /* fails, as it should, when the folder is not empty */
    names_free(&inputs);
    return rc;
}

static int run(int argc, char **argv, struct error *e)
{
    struct prepare p = {.quality = 95};
    struct names paths = {0};
    bool help;
    const struct data_option table[] = {
        {"-o", DATA_TEXT, &p.out},
        {"--out", DATA_TEXT, &p.out},
        {"--long-side", DATA_POSITIVE, &p.long_side},
        {"--quality", DATA_COUNT, &p.quality},
    };
    int rc = data_options(&data_prepare, table, COUNT(table), argc, argv, &paths, &help, e);
    if (!rc && !help) {
        if (!paths.n)
            rc = error_set(e, PL_USAGE, "no shards are given: add tar files, folders of them or globs (see --help)");
        else if (!p.out) rc = error_set(e, PL_USAGE, "no output is given: add -o DIR");
        else if (p.quality < 1 || p.quality > 100)
            rc = error_set(e, PL_USAGE, "--quality %llu: expected 1 to 100", (unsigned long long)p.quality);
        else if (p.long_side && (p.long_side < 16 || p.long_side > 16384))
            rc = error_set(e, PL_USAGE, "--long-side %llu: expected 16 to 16384 pixels",
                           (unsigned long long)p.long_side);
        else rc = prepare_all(&p, &paths, e);
    }
    names_free(&paths);
    return rc;
}

const struct command data_prepare = {
    "prepare", "data prepare IN... -o DIR [--long-side N] [--quality Q]",
    "Rewrites downloaded shards for training: decompresses them, skips damaged data, pairs images\n"
    "with their annotations, and writes plain sorted tars with an index. Every image is decoded\n"
    "once as a check. Unusable pairs are reported and left out; outputs that exist already are kept.\n"
    "\n"
    "  IN              tar files (also gzip under a .tar name), folders of them, folders of extracted\n"
    "                  files, globs\n"
    "  -o DIR          the folder for the new shards, which keep the names of the old\n"
    "  --long-side N   resizes images whose longer side is above N, with their masks, and encodes them\n"
    "                  as JPEG, PNGs too (1024 loads about five times as fast; without this option the\n"
    "                  image bytes do not change)\n"
    "  --quality Q     JPEG quality of resized images (95)",
    run};
