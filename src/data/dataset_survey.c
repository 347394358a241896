/*
 * dataset_survey.c: what the files of a dataset hold, looked at before training (see dataset.h).
 * Files are decoded in parallel; what is found is summed, so the order of threads changes nothing.
 * A file that cannot be read is left to the readers, which report it.
 */
#include "data/dataset.h"

#include "base/progress.h"
#include "data/images/image.h"
#include "data/images/jpeg.h"
#include "data/masks/label.h"
#include "io/file.h"

static const size_t first_bytes = 4 << 20;

/* Returns sample k of n, at equal distances over `all`. */
static uint64_t sampled(uint64_t k, uint64_t n, uint64_t all) { return n == all ? k : k * all / n; }

/* A buffer that grows until a reader has enough, up to the room that a sample has. */
struct buffer {
    char *at;
    size_t n, most;
};

static bool grow(struct buffer *b)
{
    if (b->n >= b->most) return false;
    b->n = (size_t)min_u64(b->n ? 4 * b->n : first_bytes, b->most);
    mem_free(b->at);
    b->at = mem_alloc(b->n);
    return true;
}

/* --- mask images ----------------------------------------------------------------------------- */

struct found {
    uint64_t looks[LOOKS];
    uint64_t first[LOOKS];   /* the first sample of each look */
    bool seen[65536];
    uint32_t largest;
    bool all_two_ends;       /* of those with several values */
    uint64_t whole;          /* images with one value everywhere, which is not 0 */
    bool beside_255;         /* some image has 255 and other values */
    uint64_t read;
};

static void merge(struct found *f, const struct label_facts *x, uint64_t i, uint32_t ignore)
{
    f->read++;
    f->looks[x->look]++;
    f->whole += x->look == LOOK_ONE && !x->seen[0];
    if (i < f->first[x->look]) f->first[x->look] = i;
    if (x->look == LOOK_VALUES) f->all_two_ends &= x->two_ends;
    if (x->largest > f->largest) f->largest = x->largest;
    f->beside_255 |= x->seen[255] && ignore != 255 && x->values > 1;
    for (uint32_t v = 1; v < 65536; v++) f->seen[v] |= x->seen[v];
}

static void look_at_masks(const struct dataset *d, uint64_t n, struct found *f)
{
    const int ignore = d->labels.ignore;
    for (int k = 0; k < LOOKS; k++) f->first[k] = UINT64_MAX;
    f->all_two_ends = true;
    struct progress progress;
    progress_begin(&progress, "looking at", "mask images", n);
#pragma omp parallel
    {
        struct buffer b = {.most = d->room};
        struct label_facts *x = mem_alloc(sizeof *x);
#pragma omp for schedule(dynamic)
        for (uint64_t k = 0; k < n; k++) {
            struct label_image m;
            struct error ignored;
            uint64_t i = sampled(k, n, d->total);
#pragma omp critical
            progress_add(&progress, 1);
            enum data_fault fault = b.n ? d->format->values(d, i, b.at, b.n, &m, &ignored) : FAULT_TOO_LARGE;
            while (fault == FAULT_TOO_LARGE && grow(&b)) fault = d->format->values(d, i, b.at, b.n, &m, &ignored);
            if (fault) continue;
            label_look(&m, ignore, x);
#pragma omp critical
            merge(f, x, i, ignore > 0 ? (uint32_t)ignore : 0);
        }
        mem_free(x);
        mem_free(b.at);
    }
    progress_clear();
}

/* Reports whether 255 means "not labelled": it occurs in the same image as other values, and those
 * are small or nearly consecutive numbers, as those of classes are; 85, 170, 255 are three
 * classes. */
static bool ignores_255(const struct found *f, const struct label_options *o)
{
    uint32_t others = 0, largest = 0;
    if (o->ignore > 0 || !f->seen[255] || !f->beside_255) return false;
    for (uint32_t v = 1; v < 65536; v++)
        if (v != 255 && f->seen[v]) others++, largest = v;
    return largest < 255 && (largest <= 32 || 4 * others >= largest);
}

static void count_values(struct dataset_survey *s, const struct found *f, int ignore)
{
    for (uint32_t v = 1; v < 65536; v++) {
        if (!f->seen[v] || (int)v == ignore) continue;
        if (s->values < SURVEY_SHOWN) s->shown[s->values] = v;
        s->values++;
        s->largest = v;
    }
}

#define SET_LABELS                                                                                                     \
    "set data.labels: binary (one mask: the brighter half of the values), classes or instances (one mask per value)"

static int refuse(const struct dataset *d, const struct found *f, enum label_look look, struct error *e)
{
    const char *path = d->format->label(d, f->first[look]);
    const unsigned long long n = f->looks[look], all = f->read;
    if (look == LOOK_IMAGE)
        return error_set(e, PL_USAGE,
                         "%s looks like an image and not like a mask: it has many values and no areas of one value "
                         "(%llu of %llu mask images looked at do). "
                         "Check the folder of the masks (data.masks); if they are masks, " SET_LABELS, path, n, all);
    if (look == LOOK_SOFT_VALUES)
        return error_set(e, PL_USAGE,
                         "%s has areas of several values, and other values between them along their borders: it was "
                         "resized or compressed with smoothing "
                         "(%llu of %llu mask images looked at were). Write the masks again without (nearest neighbour, "
                         "PNG), or " SET_LABELS, path, n, all);
    return error_set(e, PL_USAGE,
        "%s is a binary mask with soft edges, and %s has several values: data.labels auto cannot decide; " SET_LABELS,
        path, d->format->label(d, f->first[LOOK_VALUES]));
}

static int decide_labels(struct dataset *d, const struct found *f, struct error *e)
{
    struct label_options *o = &d->labels;
    struct dataset_survey *s = &d->survey;
    if (f->looks[LOOK_IMAGE]) return refuse(d, f, LOOK_IMAGE, e);
    if (f->looks[LOOK_SOFT_VALUES]) return refuse(d, f, LOOK_SOFT_VALUES, e);
    if (f->looks[LOOK_SOFT] && !f->all_two_ends) return refuse(d, f, LOOK_SOFT, e);
    s->void_255 = !f->looks[LOOK_SOFT] && ignores_255(f, o);
    if (s->void_255) o->ignore = 255;
    count_values(s, f, o->ignore);
    s->soft = f->looks[LOOK_SOFT];
    /* 0 and 1 in some files, 0 and 255 in others; or several shades of white. */
    const bool white = (s->values == 2 && s->shown[0] == 1 && s->largest == 255 && !f->beside_255) ||
                       (s->largest >= 128 && 8 * s->shown[0] >= 7 * s->largest);
    if (s->soft) {
        o->kind = LABELS_BINARY;
        if (!o->threshold) o->threshold = (f->largest + 1) / 2;
    } else if ((s->values < 2 || white) && !o->n_values) {
        o->kind = LABELS_BINARY;
        o->one_value = s->values < 2;
    } else {
        o->kind = s->values > 255 ? LABELS_INSTANCES : LABELS_CLASSES;
    }
    return PL_OK;
}

/* Refuses an image file that is its own mask. All names are compared; links are followed for the
 * files looked at. */
static int refuse_own_masks(const struct dataset *d, uint64_t n, struct error *e)
{
    const char *image, *mask;
    bool same = false;
    for (uint64_t i = 0; i < d->total && !same; i++) {
        image = d->format->image_path(d, i), mask = d->format->label(d, i);
        same = !strcmp(image, mask);
    }
    for (uint64_t k = 0; k < n && !same; k++) {
        uint64_t i = sampled(k, n, d->total);
        image = d->format->image_path(d, i), mask = d->format->label(d, i);
        same = file_same(image, mask);
    }
    if (!same) return PL_OK;
    return error_set(e, PL_USAGE,
                     "%s is the image and also its mask%s%s: give the folder or the column of the masks (data.masks, "
                     "data.mask_column)", image, strcmp(image, mask) ? ", as " : "", strcmp(image, mask) ? mask : "");
}

static int survey_labels(struct dataset *d, struct error *e)
{
    const uint64_t n = min_u64(d->total, SURVEY_LABELS);
    if (d->format->image_path && refuse_own_masks(d, n, e)) return e->code;
    if (d->labels.kind != LABELS_AUTO) return PL_OK;
    struct found *f = mem_alloc(sizeof *f);
    look_at_masks(d, n, f);
    d->survey.labels = f->read ? d->total : 0;
    d->survey.labels_seen = f->read;
    d->survey.whole = f->whole;
    int rc = decide_labels(d, f, e);
    mem_free(f);
    return rc;
}

/* --- images ----------------------------------------------------------------------------------- */

struct light {
    uint64_t counts[RANGE_VALUES]; /* of values of 16 bits */
    uint64_t bright[256];          /* of pixels of 8 bits, by their brightest channel */
    uint64_t decoded, deep, turned, volumes;
    double least;                  /* of the values of volumes */
};

static void add_rows(uint64_t bright[256], const uint8_t *rgb, size_t stride, uint32_t w, uint32_t h)
{
    for (uint32_t y = 0; y < h; y++, rgb += stride)
        for (uint32_t x = 0; x < w; x++) {
            const uint8_t *p = rgb + 3 * (size_t)x;
            uint8_t most = p[0] > p[1] ? p[0] : p[1];
            bright[p[2] > most ? p[2] : most]++;
        }
}

static bool add_png(struct light *l, const void *bytes, size_t n, size_t room)
{
    struct png_header h;
    struct png_pixels p;
    struct error ignored;
    if (png_peek(bytes, n, &h, &ignored)) return false;
    const bool deep = h.depth == 16;
    if (png_bytes(&h, deep ? PNG_AS_SAMPLES : PNG_AS_RGB) > room) return false;
    if (png_decode(bytes, n, deep ? PNG_AS_SAMPLES : PNG_AS_RGB, 0, NULL, 0, &p, &ignored)) return false;
    if (deep) range_count(p.at, (size_t)p.width * p.height * p.channels, l->counts), l->deep++;
    else add_rows(l->bright, p.at, (size_t)p.width * 3, p.width, p.height);
    mem_free(p.at);
    return true;
}

static bool add_jpg(struct light *l, const void *bytes, size_t n)
{
    struct jpg_header h;
    struct error ignored;
    uint32_t w, rows;
    uint8_t *rgb;
    if (jpg_peek(bytes, n, &h, &ignored)) return false;
    struct jpg *j = jpg_new(NULL);
    bool decoded = !jpg_decode(j, bytes, n, jpg_divisor(h.width, h.height, 256), &w, &rows, &rgb, &ignored);
    jpg_free(j);
    if (!decoded) return false;
    /* otherwise the sizes of image and masks would differ */
    l->turned += h.orientation > 1 && (h.orientation < 5 || h.width == h.height);
    add_rows(l->bright, rgb, (size_t)w * 3, w, rows);
    mem_free(rgb);
    return true;
}

static bool add_webp(struct light *l, const void *bytes, size_t n, size_t room)
{
    struct image x;
    struct error ignored;
    uint32_t w, h;
    size_t need;
    if (image_peek(bytes, n, &(struct image_options){0}, &w, &h, &need, &ignored) || need > room) return false;
    if (image_decode(&x, bytes, n, &(struct image_options){0}, NULL, 0, &ignored)) return false;
    add_rows(l->bright, x.rgb, (size_t)x.width * 3, x.width, x.height);
    mem_free(x.rgb);
    return true;
}

static bool add_file(struct light *l, const void *bytes, size_t n, size_t room)
{
    const enum image_format f = image_format(bytes, n);
    return f == IMAGE_PNG    ? add_png(l, bytes, n, room)
           : f == IMAGE_WEBP ? add_webp(l, bytes, n, room)
                             : add_jpg(l, bytes, n);
}

/* Returns the values of a slice, which no range has changed. False: the image is not a slice. */
static bool add_plane(const struct dataset *d, uint64_t i, struct buffer *b, struct light *l)
{
    struct plane p;
    struct error ignored;
    bool is_plane = true;
    enum data_fault fault = b->n ? d->format->plane(d, i, b->at, b->n, &p, &is_plane, &ignored) : FAULT_TOO_LARGE;
    while (fault == FAULT_TOO_LARGE && grow(b)) fault = d->format->plane(d, i, b->at, b->n, &p, &is_plane, &ignored);
    if (fault || !is_plane) return is_plane;
    const size_t n = (size_t)p.w * p.h * p.channels;
    l->decoded++;
    if (plane_is_pixels(&p)) {
        for (size_t k = 0; k < n; k++) l->bright[((const uint8_t *)p.at)[k]]++;
    } else if (p.type == PLANE_U16 && p.slope == 1 && p.inter == 0) {
        range_count(p.at, n, l->counts), l->deep++;
    } else {
        l->volumes++;
        for (size_t k = 0; k < n; k++) l->least = plane_value(&p, k) < l->least ? plane_value(&p, k) : l->least;
    }
    return true;
}

static void add_image(const struct dataset *d, uint64_t i, struct buffer *b, struct light *l)
{
    if (d->format->plane && add_plane(d, i, b, l)) return;
    struct dataset_image x = {0};
    struct error ignored;
    enum data_fault fault = FAULT_TOO_LARGE;
    if (b->n) fault = d->format->image(d, i, b->at, b->n, &x, &ignored);
    while (fault == FAULT_TOO_LARGE && grow(b)) {
        x = (struct dataset_image){0};
        fault = d->format->image(d, i, b->at, b->n, &x, &ignored);
    }
    if (fault || (!x.decoded && !x.n)) return;
    if (x.decoded) add_rows(l->bright, x.pixels, x.stride, x.w, x.h), l->decoded++;
    else l->decoded += add_file(l, b->at, x.n, d->room);
}

/* Returns the brightness that 99.5 % of the pixels do not exceed, after the range is applied; -1:
 * no pixel is known, or the range is that of each image. */
static int brightness(const struct light *l, const struct pixel_range *r)
{
    uint64_t bright[256], total = 0, seen = 0;
    static const double full[2] = {0, RANGE_VALUES - 1};
    memcpy(bright, l->bright, sizeof bright);
    if (l->deep && r->kind != RANGE_FULL && r->kind != RANGE_WINDOW) return -1;
    for (uint32_t v = 0; v < RANGE_VALUES && l->deep; v++)
        bright[range_map(v, r->kind == RANGE_WINDOW ? r->window : full)] += l->counts[v];
    for (int v = 0; v < 256; v++) total += bright[v];
    for (int v = 0; v < 256 && total; v++)
        if ((double)(seen += bright[v]) >= 0.995 * (double)total) return v;
    return -1;
}

static void survey_images(struct dataset *d)
{
    struct dataset_survey *s = &d->survey;
    struct light *all = mem_alloc(sizeof *all);
    const uint64_t n = min_u64(d->total, SURVEY_IMAGES);
#pragma omp parallel
    {
        struct buffer b = {.most = d->room};
        struct light *l = mem_alloc(sizeof *l);
#pragma omp for schedule(dynamic)
        for (uint64_t k = 0; k < n; k++) add_image(d, sampled(k, n, d->total), &b, l);
#pragma omp critical
        {
            all->decoded += l->decoded;
            all->deep += l->deep;
            all->turned += l->turned;
            all->volumes += l->volumes;
            if (l->least < all->least) all->least = l->least;
            for (uint32_t v = 0; v < RANGE_VALUES; v++) all->counts[v] += l->counts[v];
            for (int v = 0; v < 256; v++) all->bright[v] += l->bright[v];
        }
        mem_free(l);
        mem_free(b.at);
    }
    s->images = d->total;
    s->images_seen = all->decoded;
    s->deep = all->deep;
    s->turned = all->turned;
    s->range_decided = all->deep && d->range.kind == RANGE_AUTO;
    if (s->range_decided) d->range = range_choose(all->counts, &d->range);
    else if (all->volumes && d->range.kind == RANGE_AUTO)
        s->volumes = all->volumes, volume_auto_range(&d->range, all->least);
    s->bright = brightness(all, &d->range);
    mem_free(all);
}

int survey_dataset(struct dataset *d, struct error *e)
{
    d->survey.bright = -1;
    if (!d->total) return PL_OK;
    if (d->format->label && survey_labels(d, e)) return e->code;
    survey_images(d);
    return PL_OK;
}

/* --- in words --------------------------------------------------------------------------------- */

/* Prints "in 120 mask images" or "in 1000 of 5321 mask images looked at". */
static void print_seen(uint64_t seen, uint64_t all, const char *what, struct text *out)
{
    if (seen == all) text_printf(out, "in %llu %s", (unsigned long long)all, what);
    else text_printf(out, "in %llu of %llu %s looked at", (unsigned long long)seen, (unsigned long long)all, what);
}

static void print_values(const struct dataset_survey *s, struct text *out)
{
    for (uint32_t i = 0; i < s->values && i < SURVEY_SHOWN; i++) text_printf(out, "%s%u", i ? ", " : "", s->shown[i]);
    if (s->values > SURVEY_SHOWN + 1) text_printf(out, ", ...");
    if (s->values > SURVEY_SHOWN) text_printf(out, ", %u", s->largest);
}

bool survey_print_labels(const struct dataset *d, struct text *out)
{
    const struct dataset_survey *s = &d->survey;
    if (!s->labels) return false;
    text_printf(out, "data.labels auto: ");
    if (s->soft) {
        text_printf(out, "binary, soft edges: the mask is the values from %u on, ", d->labels.threshold);
    } else if (d->labels.kind == LABELS_BINARY) {
        text_printf(out, "binary, ");
        if (s->values) text_printf(out, "the value "), print_values(s, out), text_printf(out, " ");
        else text_printf(out, "no value besides 0 ");
    } else {
        text_printf(out, "%s, %u %s ", d->labels.kind == LABELS_CLASSES ? "classes" : "instances", s->values,
                    s->values == 1 ? "value" : "values");
        text_printf(out, "("), print_values(s, out), text_printf(out, ") ");
    }
    print_seen(s->labels_seen, s->labels, s->labels == 1 ? "mask image" : "mask images", out);
    if (s->void_255) text_printf(out, "; 255 is ignored");
    if (d->labels.kind == LABELS_CLASSES) text_printf(out, "; data.labels: instances if each value is an object");
    return true;
}

bool survey_print_range(const struct dataset *d, struct text *out)
{
    const struct dataset_survey *s = &d->survey;
    char range[96];
    if (!s->range_decided && !s->volumes) return false;
    text_printf(out, "data.range auto: %s, ", range_print(&d->range, range));
    if (s->volumes) {
        text_printf(out, d->range.kind == RANGE_WINDOW
                             ? "soft tissue: values below -500 look like a CT "
                             : "of the values above 0 of each volume; no value below -500, as a CT has ");
        print_seen(s->images_seen, s->images, s->images == 1 ? "slice" : "slices", out);
        return true;
    }
    if (d->range.kind == RANGE_WINDOW) text_printf(out, "the percentiles of the values above 0 ");
    else text_printf(out, "the values are spread over at least half of it ");
    print_seen(s->images_seen, s->images, s->images == 1 ? "image" : "images", out);
    text_printf(out, ", %llu of them of 16 bits", (unsigned long long)s->deep);
    return true;
}

static bool print_turned(const struct dataset *d, struct text *out)
{
    const struct dataset_survey *s = &d->survey;
    if (!s->turned) return false;
    text_printf(out,
                "%llu of %llu images looked at have an EXIF orientation, which is not applied: if their masks were "
                "drawn on the images as programs show them, store the images upright, "
                "such as by `mogrify -auto-orient`", (unsigned long long)s->turned, (unsigned long long)s->images_seen);
    return true;
}

static bool print_whole(const struct dataset *d, struct text *out)
{
    const struct dataset_survey *s = &d->survey;
    if (2 * s->whole <= s->labels_seen) return false;
    text_printf(out,
                "%llu of %llu mask images looked at have one value everywhere, so that the mask is the whole image: "
                "are these the masks, with 0 as the background?",
                (unsigned long long)s->whole, (unsigned long long)s->labels_seen);
    return true;
}

static bool print_dark(const struct dataset *d, struct text *out)
{
    enum { DARK = 32 };
    const struct dataset_survey *s = &d->survey;
    if (s->bright < 0 || s->bright >= DARK) return false;
    text_printf(out, "the images are nearly black: 99.5 %% of the pixels of %llu images are at most %d of 255; ",
                (unsigned long long)s->images_seen, s->bright);
    text_printf(out, s->deep
                         ? "data.range: percentiles uses the range of values that occur"
                         : "write them again with the range of values that occur (8-bit images are used as they are)");
    return true;
}

bool survey_next_warning(const struct dataset *d, int *k, struct text *out)
{
    static bool (*const each[])(const struct dataset *, struct text *) = {print_dark, print_turned, print_whole};
    while (*k < (int)COUNT(each))
        if (each[(*k)++](d, out)) return true;
    return false;
}

void survey_log(const struct dataset *d)
{
    struct text line = {0};
    if (survey_print_labels(d, &line)) log_note("%s", line.at);
    text_free(&line);
    if (survey_print_range(d, &line)) log_note("%s", line.at);
    text_free(&line);
    for (int k = 0; survey_next_warning(d, &k, &line); text_free(&line)) log_warn("%s", line.at);
}
