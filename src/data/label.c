/*
 * label.c: see label.h. One pass over the rows, a run of equal pixels at a time, computes the area
 * and box of every value; a table of all 65536 values maps a value to its mask.
 */
#include "data/label.h"

#include <math.h>
#include <string.h>

#include "io/png.h"

enum { VALUES = 65536 };

static uint32_t pixel(const void *row, uint32_t x, int bytes)
{
    if (bytes == 1) return ((const uint8_t *)row)[x];
    uint16_t v;
    memcpy(&v, (const char *)row + 2 * (size_t)x, sizeof v);
    return v;
}

/* Thresholds at half of the largest value, so that smoothed edges become binary. */
static void make_binary(void *pixels, uint64_t n, int bytes)
{
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t v = pixel((char *)pixels + i * (uint64_t)bytes, 0, bytes);
        most = v > most ? v : most;
    }
    for (uint64_t i = 0; i < n; i++) {
        char *at = (char *)pixels + i * (uint64_t)bytes;
        uint16_t set = 2 * pixel(at, 0, bytes) > most;
        if (bytes == 1) *at = (char)set;
        else memcpy(at, &set, sizeof set);
    }
}

static bool wanted(const struct label_options *o, uint32_t v)
{
    if (!v || (o->ignore > 0 && v == (uint32_t)o->ignore)) return false;
    bool in = !o->n_values;
    for (uint32_t i = 0; i < o->n_values; i++) in |= o->values[i] == v;
    return in;
}

/* box holds the first and last column and row until all runs are added. */
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
    return (struct mask){.id = value, .category = o->kind == LABELS_INSTANCES ? 0 : (int32_t)value,
                         .box = {(float)x, (float)y, (float)x, (float)y}, .predicted_iou = 1, .stability = 1, .point = {NAN, NAN},
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
    if (o->kind == LABELS_BINARY) make_binary(pixels, (uint64_t)h * w, bytes);
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
    if (o->kind == LABELS_AUTO && out->n == 1) masks[0].category = 1; /* 255 means white here, not a class */
    return FAULT_NONE;
}

/* The file is read into the end of the scratch; the pixels are decoded into its front. */
enum data_fault label_read(const char *path, const struct label_options *o, void *scratch, size_t n,
                           struct mask *masks, uint32_t room, struct dataset_masks *out, struct error *e)
{
    size_t file_n, map_n = VALUES * sizeof(uint16_t);
    struct png_pixels p = {0};
    enum data_fault f = dataset_read_file(path, scratch, n, &file_n, e);
    if (f) return f;
    char *file = (char *)scratch + (n - file_n);
    memmove(file, scratch, file_n);
    struct png_header h;
    if (png_peek(file, file_n, &h, e)) return error_prepend(e, "%s", path), FAULT_MASK;
    size_t need = png_bytes(&h, PNG_AS_LABELS);
    if (align_up(need, 8) + file_n + map_n > n)
        return error_set(e, PL_NOFIT, "%s: it takes %zu bytes; expected at most %zu", path, need + file_n + map_n, n), FAULT_TOO_LARGE;
    if (png_decode(file, file_n, PNG_AS_LABELS, 0, scratch, n - file_n, &p, e)) return error_prepend(e, "%s", path), FAULT_MASK;
    uint16_t *map = (uint16_t *)((char *)scratch + align_up(need, 8));
    return label_masks(scratch, p.height, p.width, p.depth == 16 ? 2 : 1, o, map, masks, room, out, e);
}
