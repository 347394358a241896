/*
 * memmap_write.c: writes an index, a memory map and the images (see memmap.h) into a temporary
 * folder beside the target, which is renamed at the end.
 *
 * Of several processes that write one target, the first that is done leaves its whole folder, and
 * the others fail.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/formats/memmap.h"
#include "data/images/image.h"
#include "io/file.h"
#include "io/json.h"
#include "io/temporary.h"

struct memmap_writer {
    char *folder;
    struct temporary to; /* the folder until it is whole */
    int fd;             /* of the masks */
    uint32_t side;
    uint64_t masks, samples;
    uint8_t *bytes;     /* [side][side] of one mask */
    struct text index;
    struct json_writer json;
};

int memmap_create(struct memmap_writer **out, const char *folder, uint32_t side, struct error *e)
{
    struct names there = {0};
    bool folder_there = dir_exists(folder);
    if ((file_exists(folder) && !folder_there) || (folder_there && dir_list(folder, &there, e)) || there.n) {
        names_free(&there);
        return error_set(e, PL_USAGE, "%s exists already: choose another name, or remove it first", folder);
    }
    struct memmap_writer *w = mem_alloc(sizeof *w);
    struct text path = {0};
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    w->folder = mem_string(folder);
    w->folder[n] = 0;
    w->side = side;
    w->bytes = mem_alloc((size_t)side * side);
    w->fd = -1;
    w->json = (struct json_writer){.out = &w->index};
    json_begin_list(&w->json, NULL);
    int rc = temporary_folder(&w->to, w->folder, e);
    if (!rc) text_printf(&path, "%s/images", w->to.path), rc = dir_make(path.at, e);
    path.n = 0;
    if (!rc) text_printf(&path, "%s/masks.u8", w->to.path);
    if (!rc && (w->fd = open(path.at, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0)
        rc = file_error(path.at, "be written", e);
    text_free(&path);
    names_free(&there);
    if (rc) memmap_abandon(w);
    else *out = w;
    return rc;
}

static int put_mask(struct memmap_writer *w, const uint8_t *bits, struct error *e)
{
    size_t stride = grid_stride(w->side);
    for (uint32_t y = 0; y < w->side; y++)
        for (uint32_t x = 0; x < w->side; x++)
            w->bytes[(size_t)y * w->side + x] = bits[y * stride + x / 8] >> x % 8 & 1;
    return fd_write(w->fd, w->bytes, (size_t)w->side * w->side) ? file_error(w->to.path, "be written", e) : PL_OK;
}

/* "000012_sa_13.jpg": the number distinguishes equal keys of two shards. */
static void image_name(const struct memmap_writer *w, const struct memmap_new *s, struct text *to)
{
    const char *slash = strrchr(s->key, '/'), *key = slash ? slash + 1 : s->key, *dot = strrchr(key, '.');
    text_printf(to, "%06llu_%.*s.%s", (unsigned long long)w->samples,
                (int)min_u64(dot && dot > key ? (uint64_t)(dot - key) : strlen(key), 128), key,
                image_ending(s->image, s->n));
}

int memmap_add(struct memmap_writer *w, const struct memmap_new *s, struct error *e)
{
    struct text name = {0}, path = {0};
    size_t bytes = grid_mask_bytes(w->side, w->side);
    image_name(w, s, &name);
    text_printf(&path, "%s/images/%s", w->to.path, name.at);
    int fd = open(path.at, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc = fd < 0 || fd_write(fd, s->image, s->n) ? file_error(path.at, "be written", e) : PL_OK;
    if (fd >= 0 && close(fd) && !rc) rc = file_error(path.at, "be written", e);
    for (uint32_t k = 0; k < s->masks && !rc; k++) rc = put_mask(w, s->bits + k * bytes, e);
    json_begin_map(&w->json, NULL);
    struct text image = {0};
    text_printf(&image, "%s/images/%s", w->folder, name.at);
    json_put_string(&w->json, "image_path", image.at);
    text_free(&image);
    json_put_uint(&w->json, "mask_start_idx", w->masks);
    json_put_uint(&w->json, "mask_end_idx", w->masks + s->masks);
    json_put_string(&w->json, "name", s->name);
    if (s->group) json_put_string(&w->json, "group", s->group);
    json_put_uint(&w->json, "height", s->h);
    json_put_uint(&w->json, "width", s->w);
    json_put_uint(&w->json, "mask_height", w->side);
    json_put_uint(&w->json, "mask_width", w->side);
    json_end(&w->json);
    w->masks += s->masks;
    w->samples++;
    text_free(&name);
    text_free(&path);
    return rc;
}

int memmap_finish(struct memmap_writer *w, struct error *e)
{
    struct text path = {0};
    text_printf(&path, "%s/index.json", w->to.path);
    json_end(&w->json);
    text_append(&w->index, "\n", 1);
    int rc = fsync(w->fd) ? file_error(w->to.path, "be written", e)
                          : file_write_atomic(path.at, w->index.at, w->index.n, e);
    if (!rc) rc = temporary_keep(&w->to, w->folder, true, e); /* which may be an empty folder */
    text_free(&path);
    memmap_abandon(w);
    return rc;
}

void memmap_abandon(struct memmap_writer *w)
{
    if (w->fd >= 0) close(w->fd);
    temporary_drop(&w->to);
    mem_free(w->folder);
    mem_free(w->bytes);
    text_free(&w->index);
    mem_free(w);
}
