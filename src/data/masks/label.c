/*
 * label.c: see label.h. One pass over the rows, a run of equal
 * pixels at a time, computes the area and box of every value; a table of all 65536 values maps a
 * value to its mask.
 */
#include "data/masks/label.h"

#include <math.h>
#include <strings.h>

#include "data/images/image.h"
#include "data/images/jpeg.h"
#include "data/faults.h"
#include "io/png.h"
#include "io/file.h"
#include "io/json.h"

enum { VALUES = 65536 };

static uint32_t pixel(const void *row, uint32_t x, int bytes)
{
    if (bytes == 1) return ((const uint8_t *)row)[x];
    uint16_t v;
    memcpy(&v, (const char *)row + 2 * (size_t)x, sizeof v);
    return v;
}

static void put(void *at, uint32_t v, int bytes)
{
    uint16_t wide = (uint16_t)v;
    if (bytes == 1) *(uint8_t *)at = (uint8_t)v;
    else memcpy(at, &wide, sizeof wide);
}

/* Turns values from the threshold on into 1, all others and the ignored value into 0. Returns
 * false if the image has several values, and the options expect one. */
static bool make_binary(void *pixels, uint64_t n, int bytes, const struct label_options *o)
{
    const uint32_t ignore = o->ignore > 0 ? (uint32_t)o->ignore : 0;
    uint32_t most = 0, other = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t v = pixel((char *)pixels + i * (uint64_t)bytes, 0, bytes);
        if (v == ignore) continue;
        if (v && other && v != other && o->one_value) return false;
        if (v) other = v;
        most = v > most ? v : most;
    }
    const uint32_t least = o->threshold ? o->threshold : most / 2 + 1;
    for (uint64_t i = 0; i < n; i++) {
        char *at = (char *)pixels + i * (uint64_t)bytes;
        uint32_t v = pixel(at, 0, bytes);
        put(at, v >= least && v && v != ignore, bytes);
    }
    return true;
}

static bool wanted(const struct label_options *o, uint32_t v)
{
    if (!v || (o->ignore > 0 && v == (uint32_t)o->ignore)) return false;
    bool in = !o->n_values;
    for (uint32_t i = 0; i < o->n_values; i++) in |= o->values[i] == v;
    return in;
}

/* Adds a run; box holds the first and last column and row until all runs are added. */
static void add_run(struct mask *m, uint32_t x, uint32_t end, uint32_t y)
{
    m->area += end - x;
    if ((float)x < m->box[0]) m->box[0] = (float)x;
    if ((float)(end - 1) > m->box[2]) m->box[2] = (float)(end - 1);
    m->box[3] = (float)y;
}

static struct mask new_mask(const struct label_options *o, const void *pixels, uint32_t h, uint32_t w, int bytes,
                            uint32_t value, uint32_t x, uint32_t y)
{
    return (struct mask){
        .id = value, .category = o->kind == LABELS_INSTANCES ? 0 : (int32_t)value,
        .box = {(float)x, (float)y, (float)x, (float)y},
        .predicted_iou = 1, .stability = 1, .point = {NAN, NAN},
        .shape = {.kind = SHAPE_LABEL, .h = h, .w = w,
                  .label = {.pixels = pixels, .stride = (size_t)w * (size_t)bytes, .bytes = bytes, .id = value}}};
}

enum data_fault label_masks(void *pixels, uint32_t h, uint32_t w, int bytes, const struct label_options *o,
                            uint16_t *map, struct mask *masks, uint32_t room, struct dataset_masks *out,
                            struct error *e)
{
    enum { UNSEEN, UNWANTED, FIRST }; /* in the map: FIRST + k is mask k */
    *out = (struct dataset_masks){.h = h, .w = w};
    memset(map, 0, VALUES * sizeof *map);
    if (room > VALUES - FIRST) room = VALUES - FIRST;
    const struct label_options binary = {.kind = LABELS_BINARY, .values = o->values, .n_values = o->n_values};
    CHECK(o->kind != LABELS_AUTO, "the meaning of the values is not decided");
    if (o->kind == LABELS_BINARY) {
        if (!make_binary(pixels, (uint64_t)h * w, bytes, o))
            return error_set(e, PL_USAGE,
                       "it has several values, and the mask images that data.labels auto looked at have one each: "
                       "set data.labels to binary, classes or instances"), FAULT_MASK;
        o = &binary; /* 1 is the mask, whatever value is ignored */
    }
    for (uint32_t y = 0; y < h; y++) {
        const char *row = (const char *)pixels + (size_t)y * w * (size_t)bytes;
        for (uint32_t x = 0, end; x < w; x = end) {
            uint32_t v = pixel(row, x, bytes);
            for (end = x + 1; end < w && pixel(row, end, bytes) == v;) end++;
            if (map[v] == UNSEEN && !wanted(o, v)) map[v] = UNWANTED;
            if (map[v] == UNWANTED) continue;
            if (map[v] == UNSEEN) {
                if (out->n == room) return error_set(e, PL_USAGE, "more than %u masks", room), FAULT_MANY;
                masks[out->n] = new_mask(o, pixels, h, w, bytes, v, x, y);
                map[v] = (uint16_t)(FIRST + out->n++);
            }
            add_run(&masks[map[v] - FIRST], x, end, y);
        }
    }
    for (uint32_t i = 0; i < out->n; i++) {
        masks[i].box[2] += 1 - masks[i].box[0];
        masks[i].box[3] += 1 - masks[i].box[1];
    }
    return FAULT_NONE;
}

/* --- files ------------------------------------------------------------------------------------ */

/* A file in memory, in the upper part of the scratch, and the room below it. */
struct label_file {
    const char *path, *file;
    size_t n;    /* bytes of the file */
    char *to;
    size_t room;
};

static enum data_fault too_large(const struct label_file *s, size_t need, struct error *e)
{
    return error_set(e, PL_NOFIT, "%s: it takes %zu bytes; expected at most %zu", s->path, need + s->n, s->room + s->n),
           FAULT_TOO_LARGE;
}

static enum data_fault decode_png(const struct label_file *s, struct label_image *out, struct error *e)
{
    struct png_header h;
    struct png_pixels p;
    const struct unread *u = unread_by_bytes(s->file, s->n);
    if (u) return error_set(e, PL_USAGE, "%s is %s, which is not read: %s", s->path, u->name, u->advice), FAULT_MASK;
    if (png_peek(s->file, s->n, &h, e)) return error_prepend(e, "%s", s->path), FAULT_MASK;
    size_t pixels = (size_t)align_up(png_bytes(&h, PNG_AS_LABELS), 8), need = pixels + VALUES * sizeof(uint16_t);
    if (need > s->room) return too_large(s, need, e);
    if (png_decode(s->file, s->n, PNG_AS_LABELS, 0, s->to, s->room, &p, e))
        return error_prepend(e, "%s", s->path), FAULT_MASK;
    *out = (struct label_image){.h = p.height, .w = p.width, .bytes = p.depth == 16 ? 2 : 1, .pixels = s->to,
                                .map = (uint16_t *)(void *)(s->to + pixels)};
    return FAULT_NONE;
}

/* Returns one row of RGB to grey. Returns the number of coloured pixels. */
static uint64_t fold_row(const uint8_t *rgb, uint32_t w, uint8_t *to)
{
    enum { COLOUR = 48 }; /* compression makes grey slightly coloured */
    uint64_t coloured = 0;
    for (uint32_t x = 0; x < w; x++, rgb += 3) {
        uint8_t low = rgb[0], high = rgb[0];
        for (int c = 1; c < 3; c++) {
            if (rgb[c] < low) low = rgb[c];
            if (rgb[c] > high) high = rgb[c];
        }
        coloured += high - low > COLOUR;
        to[x] = rgb[1];
    }
    return coloured;
}

static int read_rows(struct jpg *j, uint8_t *row, uint32_t w, uint32_t h, uint8_t *to, struct error *e)
{
    uint64_t coloured = 0;
    for (uint32_t y = 0; y < h; y++) {
        if (jpg_rows(j, row, 0, 1, e)) return e->code; /* jpg_rows has released everything */
        coloured += fold_row(row, w, to + (size_t)y * w);
    }
    if (jpg_finish(j, e)) return e->code;
    if (coloured > (uint64_t)w * h / 100)
        return error_set(e, PL_USAGE, "the JPEG is in colour, and a mask was expected; is it an image?");
    return PL_OK;
}

static enum data_fault decode_jpg(const struct label_file *s, struct label_image *out, struct error *e)
{
    struct jpg_header h;
    uint32_t w, rows;
    if (jpg_peek(s->file, s->n, &h, e)) return error_prepend(e, "%s", s->path), FAULT_MASK;
    size_t map = (size_t)align_up((uint64_t)h.width * h.height, 64), reader = map + VALUES * sizeof(uint16_t);
    size_t row = reader + (size_t)align_up(jpg_bytes(), 64) + 64, need = row + 3 * (size_t)h.width;
    if (need > s->room) return too_large(s, need, e);
    struct jpg *j = jpg_open((void *)(uintptr_t)align_up((uintptr_t)(s->to + reader), 64),
                             &(struct jpg_limits){.memory = 32 << 20});
    int rc = jpg_start(j, s->file, s->n, 1, &w, &rows, e);
    if (!rc) rc = read_rows(j, (uint8_t *)s->to + row, w, rows, (uint8_t *)s->to, e);
    jpg_close(j);
    if (rc) return error_prepend(e, "%s", s->path), FAULT_MASK;
    *out = (struct label_image){.h = rows, .w = w, .bytes = 1, .lossy = "JPEG", .pixels = s->to,
                                .map = (uint16_t *)(void *)(s->to + map)};
    return FAULT_NONE;
}

/* Decodes a WebP to RGB, which is folded to grey in place. */
static enum data_fault decode_webp(const struct label_file *s, struct label_image *out, struct error *e)
{
    struct webp_header h;
    uint64_t coloured = 0;
    if (webp_peek(s->file, s->n, &h, e)) return error_prepend(e, "%s", s->path), FAULT_MASK;
    const uint64_t pixels = (uint64_t)h.width * h.height;
    size_t map = (size_t)align_up(3 * pixels, 64), need = map + VALUES * sizeof(uint16_t);
    if (need > s->room) return too_large(s, need, e);
    if (webp_decode(s->file, s->n, false, (uint8_t *)s->to, map, e)) return error_prepend(e, "%s", s->path), FAULT_MASK;
    for (uint32_t y = 0; y < h.height; y++)
        coloured +=
            fold_row((uint8_t *)s->to + 3 * (size_t)y * h.width, h.width, (uint8_t *)s->to + (size_t)y * h.width);
    if (coloured > pixels / 100)
        return error_set(e, PL_USAGE, "%s: the WebP is in colour, and a mask was expected; is it an image?", s->path),
               FAULT_MASK;
    *out = (struct label_image){.h = h.height, .w = h.width, .bytes = 1, .lossy = h.lossless ? NULL : "lossy WebP",
                                .pixels = s->to, .map = (uint16_t *)(void *)(s->to + map)};
    return FAULT_NONE;
}

/* Reads a label image. The file goes to the end of the scratch; the pixels are decoded into its
 * front. */
enum data_fault label_decode_bytes(const char *path, void *scratch, size_t n, size_t file_n, struct label_image *out,
                                   struct error *e)
{
    char *file = (char *)scratch + (n - file_n);
    memmove(file, scratch, file_n);
    const struct label_file s = {.path = path, .file = file, .n = file_n, .to = scratch, .room = n - file_n};
    const enum image_format format = image_format(file, file_n);
    return format == IMAGE_WEBP                 ? decode_webp(&s, out, e)
           : file_n && *(uint8_t *)file == 0xff ? decode_jpg(&s, out, e)
                                                : decode_png(&s, out, e);
}

enum data_fault label_decode(const char *path, void *scratch, size_t n, struct label_image *out, struct error *e)
{
    size_t file_n;
    enum data_fault f = fault_read_file(path, scratch, n, &file_n, e);
    return f ? f : label_decode_bytes(path, scratch, n, file_n, out, e);
}

enum data_fault label_image_masks(const char *path, const struct label_image *m, const struct label_options *o,
                                  struct mask *masks, uint32_t room, struct dataset_masks *out, struct error *e)
{
    struct label_options given = *o;
    if (m->lossy && o->kind != LABELS_BINARY)
        return error_set(e, PL_USAGE,
                         "%s: it is a %s, whose compression changes values: masks of classes or instances need PNG "
                         "files; data.labels binary takes it as one mask", path, m->lossy), FAULT_MASK;
    if (m->lossy && !given.threshold) given.threshold = 128; /* an empty mask has dark noise */
    enum data_fault f = label_masks(m->pixels, m->h, m->w, m->bytes, &given, m->map, masks, room, out, e);
    if (f && f != FAULT_MANY) error_prepend(e, "%s", path);
    return f;
}

enum data_fault label_read(const char *path, const struct label_options *o, void *scratch, size_t n,
                           struct mask *masks, uint32_t room, struct dataset_masks *out, struct error *e)
{
    struct label_image m;
    enum data_fault f = label_decode(path, scratch, n, &m, e);
    return f ? f : label_image_masks(path, &m, o, masks, room, out, e);
}

int label_set_values(struct label_options *o, char *const *categories, uint32_t n, const struct dataset_json *names,
                     struct error *e)
{
    int64_t *values = mem_alloc((n + 1) * sizeof *values);
    o->values = values;
    o->n_values = n;
    for (uint32_t i = 0; i < n; i++) {
        char *end;
        const int64_t named = names ? dataset_json_value(names, categories[i]) : 0;
        values[i] = named > 0 ? named : strtoll(categories[i], &end, 10);
        if (named <= 0 && (*end || end == categories[i] || values[i] < 1 || values[i] > 65535))
            return error_set(e, PL_USAGE, "category %s: the categories of label images are numbers from 1 to 65535%s",
                             categories[i], names ? ", or names in dataset.json" : "");
    }
    return PL_OK;
}

/* ---- Looking at label images ----
 *
 * what a mask image looks like, from the neighbours of its pixels (see label.h).
 *
 * A pixel is inside if its four neighbours have its value. It is on a slope if, along a row, a
 * column or a diagonal, one neighbour is darker and the opposite one brighter.
 *
 *     an area of one value      0 0 3 3 3 3        inside, or beside its own value
 *     a soft edge               0 0 40 160 255     on a slope, at every value between the ends
 *     a photograph              slopes everywhere
 *
 * A value is thin if most of its pixels are on slopes and nearly none is inside: soft edges are
 * made of such values. Thin objects (vessels, contours) are not: beside them is the background on
 * both sides. Smoothing needs values to put between two others, so an image whose largest value is
 * small has classes or instances.
 */

enum {
    SMOOTHED = 32,    /* the least largest value of a smoothed mask */
    THIN = 3,         /* the least number of thin values of a smoothed mask */
    MANY = 32,        /* the least number of different values of a photograph */
    WHITE = 240,      /* the least largest value of a compressed mask */
};

struct tally {
    uint32_t count, inside, slope;
};

static bool between(uint32_t a, uint32_t v, uint32_t b) { return (a < v && v < b) || (b < v && v < a); }

/* Copies a row of values. */
static void copy_row(const struct label_image *m, uint32_t y, uint16_t *to)
{
    const uint8_t *narrow = (const uint8_t *)m->pixels + (size_t)y * m->w;
    if (m->bytes == 2) memcpy(to, (const uint16_t *)m->pixels + (size_t)y * m->w, m->w * sizeof *to);
    else for (uint32_t x = 0; x < m->w; x++) to[x] = narrow[x];
}

/* Tallies a row, given the rows above and below it. Beyond the image's edge is the value of the
 * edge. */
static void tally_row(const uint16_t *up, const uint16_t *row, const uint16_t *down, uint32_t w, struct tally *t)
{
    for (uint32_t x = 0; x < w; x++) {
        const uint32_t v = row[x], l = x ? x - 1 : x, r = x + 1 < w ? x + 1 : x;
        t[v].count++;
        if (!v) continue;
        if (row[l] == v && row[r] == v && up[x] == v && down[x] == v) t[v].inside++;
        else if (between(row[l], v, row[r]) || between(up[x], v, down[x]) || between(up[l], v, down[r]) ||
                 between(up[r], v, down[l]))
            t[v].slope++;
    }
}

static void tally_image(const struct label_image *m, struct tally *t)
{
    uint16_t *rows = mem_alloc(3 * (size_t)m->w * sizeof *rows), *up = rows, *row = rows, *down = rows + m->w;
    copy_row(m, 0, row);
    for (uint32_t y = 0; y < m->h; y++) {
        if (y + 1 < m->h) copy_row(m, y + 1, down);
        tally_row(up, row, y + 1 < m->h ? down : row, m->w, t);
        uint16_t *next = y ? up : rows + 2 * (size_t)m->w;
        up = row, row = down, down = next;
    }
    mem_free(rows);
}

/* Sums over the values above 0. */
struct sums {
    uint64_t pixels, inside, slope;
    uint64_t dark, dark_inside; /* up to an eighth of the largest value */
    uint64_t grey;   /* between dark and white */
    uint64_t middle; /* between dark and three quarters of the largest value, of values that are not thin */
    uint32_t thin;   /* number of thin values */
    uint32_t white;  /* number of values within a sixteenth of the largest */
};

static bool is_dark(uint32_t v, uint32_t largest) { return 8 * (uint64_t)v <= largest; }
static bool is_bright(uint32_t v, uint32_t largest) { return 4 * (uint64_t)v >= 3 * (uint64_t)largest; }
static bool is_white(uint32_t v, uint32_t largest) { return 16 * (uint64_t)v >= 15 * (uint64_t)largest; }

static struct sums add_up(const struct tally *t, uint32_t ignore, struct label_facts *f)
{
    struct sums s = {0};
    for (uint32_t v = 1; v < 65536; v++)
        if (t[v].count && v != ignore) f->values++, f->largest = v;
    f->two_ends = true;
    for (uint32_t v = 0; v < 65536; v++) {
        f->seen[v] = t[v].count;
        if (!v || !t[v].count || v == ignore) continue;
        const bool thin = 2 * (uint64_t)t[v].slope >= t[v].count && 20 * (uint64_t)t[v].inside < t[v].count;
        s.pixels += t[v].count;
        s.inside += t[v].inside;
        s.slope += t[v].slope;
        s.thin += thin;
        if (is_dark(v, f->largest)) {
            s.dark += t[v].count;
            s.dark_inside += t[v].inside;
            continue;
        }
        if (is_white(v, f->largest)) s.white++;
        else s.grey += t[v].count;
        if (is_bright(v, f->largest)) continue;
        f->two_ends = false;
        if (!thin) s.middle += t[v].count;
    }
    return s;
}

/* Shades of white, and dark pixels without areas: what compression leaves of black and white. */
static bool is_noisy_white(const struct label_image *m, const struct label_facts *f, const struct sums *s)
{
    return m->bytes == 1 && f->largest >= WHITE && s->white >= 2 && !s->grey && 4 * s->dark_inside <= s->dark;
}

static enum label_look decide(const struct label_image *m, const struct label_facts *f, const struct sums *s)
{
    if (!f->values) return LOOK_EMPTY;
    if (f->values >= MANY && 20 * s->grey >= 9 * s->pixels && 2 * s->inside < s->pixels &&
        10 * s->slope >= 3 * s->pixels)
        return LOOK_IMAGE;
    if (m->lossy) return LOOK_SOFT;
    if (f->values == 1) return LOOK_ONE;
    if (is_noisy_white(m, f, s)) return LOOK_SOFT;
    if (f->largest < SMOOTHED || s->thin < THIN) return LOOK_VALUES;
    if (20 * s->middle <= s->pixels) return LOOK_SOFT;
    return 3 * s->thin >= f->values ? LOOK_SOFT_VALUES : LOOK_VALUES; /* a few of many instances may be thin */
}

void label_look(const struct label_image *m, int ignore, struct label_facts *out)
{
    struct tally *t = mem_alloc(65536 * sizeof *t);
    memset(out, 0, sizeof *out);
    tally_image(m, t);
    const struct sums s = add_up(t, ignore > 0 ? (uint32_t)ignore : 0, out);
    out->look = decide(m, out, &s);
    if (m->lossy) out->largest = 255; /* an empty mask has dark noise */
    mem_free(t);
}

/* ---- Names of labels ---- */

/* Adds a name to a number, or a number to a name. Regions, lists of several values, are left
 * out. */
static void add_label(struct dataset_json *j, const struct value *v)
{
    char *end;
    struct dataset_json_label l = {.value = -1};
    if (v->kind == VALUE_STRING) {
        l.value = strtoll(v->key, &end, 10);
        if (*end || end == v->key) return;
        snprintf(l.name, sizeof l.name, "%.63s", v->text);
    } else if (v->kind == VALUE_NUMBER) {
        l.value = (int64_t)v->number;
        snprintf(l.name, sizeof l.name, "%.63s", v->key);
    }
    if (l.value < 1 || l.value > 65535) return;
    j->labels = mem_resize(j->labels, (j->n_labels + 1) * sizeof *j->labels);
    j->labels[j->n_labels++] = l;
}

static void read_names(struct dataset_json *j, const struct value *root)
{
    const struct value *labels = value_get(root, "labels"), *channels = value_get(root, "channel_names");
    if (!channels) channels = value_get(root, "modality");
    for (uint32_t i = 0; labels && labels->kind == VALUE_MAP && i < labels->count; i++) add_label(j, labels->items[i]);
    for (uint32_t i = 0; channels && channels->kind == VALUE_MAP && i < channels->count; i++) {
        const size_t n = strlen(j->modality);
        if (channels->items[i]->kind == VALUE_STRING)
            snprintf(j->modality + n, sizeof j->modality - n, "%s%s", n ? ", " : "", channels->items[i]->text);
        j->modalities++;
    }
}

void dataset_json_read(struct dataset_json *j, const char *folder)
{
    struct error ignored;
    *j = (struct dataset_json){0};
    for (int i = 0; i < 2 && !j->n_labels; i++) {
        struct bump b = {0};
        struct value *root;
        struct text path = {0};
        text_printf(&path, i ? "%s/../dataset.json" : "%s/dataset.json", folder);
        if (file_exists(path.at) && !json_read_file(path.at, 64 << 20, &b, &root, &ignored)) read_names(j, root);
        text_free(&path);
        bump_free(&b);
    }
}

void dataset_json_free(struct dataset_json *j)
{
    mem_free(j->labels);
    *j = (struct dataset_json){0};
}

const char *dataset_json_name(const struct dataset_json *j, int64_t value)
{
    for (uint32_t i = 0; i < j->n_labels; i++)
        if (j->labels[i].value == value) return j->labels[i].name;
    return NULL;
}

int64_t dataset_json_value(const struct dataset_json *j, const char *name)
{
    for (uint32_t i = 0; i < j->n_labels; i++)
        if (!strcasecmp(j->labels[i].name, name)) return j->labels[i].value;
    return -1;
}
